/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * What this connection manager has beside <rdma/rdma_cma.h>.
 *
 * Compile and link with `pkg-config --cflags --libs rdmux`. The functions are
 * in librdmacm.so.1, with the version RDMUX_1.0.
 */
#ifndef RDMUX_CM_H
#define RDMUX_CM_H

#include <infiniband/ib.h>
#include <infiniband/sa.h>
#include <rdma/rdma_cma.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Addresses and paths together.
 */

/* Takes a source, a destination and the paths between them, in place of
 * rdma_resolve_addr(3) and rdma_resolve_route(3). Nothing is resolved: no
 * neighbour is looked for, and subnet administration is not asked. What the
 * records say is used as it is. RDMA_CM_EVENT_ROUTE_RESOLVED follows; with an
 * id in synchronous mode the call returns when it is there.
 *
 * `id` is new, or bound. `src` is NULL, or an address of the port where the
 * paths begin; an id that is bound keeps its own. `src` and `dst` are of one
 * family: AF_IB, AF_INET or AF_INET6.
 *
 * `paths` are `count` records, one to five:
 *
 * | flags                                  | is                               |
 * |----------------------------------------|----------------------------------|
 * | GMP                                    | how the connection manager's own |
 * |                                        | datagrams go; else as the        |
 * |                                        | primary path                     |
 * | PRIMARY, OUTBOUND                      | how packets go                   |
 * | PRIMARY, INBOUND                       | how the peer's come: a record    |
 * |                                        | from the peer to us              |
 * | PRIMARY, OUTBOUND, INBOUND_REVERSE     | both, the same way there and     |
 * |                                        | back                             |
 * | ALTERNATE, OUTBOUND; ALTERNATE, INBOUND| as PRIMARY, of the path that the |
 * |                                        | connection may migrate to        |
 *
 * (IBV_PATH_FLAG_... of <infiniband/sa.h>, bits of ibv_path_data.flags.) There is a primary path. A request has one service
 * level, rate, flow label, traffic class, hop limit and partition for both
 * directions of a path, so records of both directions agree in these. On RoCE
 * a GID is an address: LIDs and service level mean nothing there.
 *
 * -1 with errno EINVAL for records that contradict each other, the addresses
 * or the port (with RDMUX_LOG=warn a line on standard error names the path and
 * the field), for a bad count, for addresses of two families, and for an id in
 * another state. Nothing was sent then, and the id is as it was. */
int rdmux_resolve_along(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst,
			const struct ibv_path_data *paths, size_t count);

#ifdef __cplusplus
}
#endif

#endif
