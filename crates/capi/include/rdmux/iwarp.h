/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Peer-to-peer mode of iWARP connections (RFC 6581).
 *
 * iWARP lets only the side that connects send first. In peer-to-peer mode that
 * side's connection manager sends a message of its own before anything else,
 * without data and unseen by the program; then either side may send first. The
 * side that accepts has RDMA_CM_EVENT_ESTABLISHED after that message.
 *
 * Whether a connection is made in this mode is asked for by the side that
 * connects. In order of precedence:
 *
 * 1. the option below, set on the id before rdma_connect(3);
 * 2. the environment of the process: RDMUX_PEER_TO_PEER=0 or 1;
 * 3. the host's configuration: peer_to_peer = true or false, in [iwarp];
 * 4. on.
 *
 * The side that accepts follows the other. A peer that knows only the first
 * revision of MPA, or that does not want it, is connected to without it: events
 * say what holds (rdmux_event_peer_to_peer).
 *
 * Compile with `pkg-config --cflags rdmux`. With other librdmacms
 * rdma_set_option(3) fails with ENOSYS, and drivers decide. Who calls the
 * function links with `pkg-config --libs rdmux`, too: it is in librdmacm.so.1,
 * with the version RDMUX_1.0.
 */
#ifndef RDMUX_IWARP_H
#define RDMUX_IWARP_H

#include <rdma/rdma_cma.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A level of rdma_set_option(3), beside RDMA_OPTION_ID and RDMA_OPTION_IB. */
#define RDMUX_OPTION_IWARP 0x7264

/* Options of that level. */

/* An int: 1 for peer-to-peer mode, 0 for none. It may be set on any id for
 * reliable connections, whichever device it will get; only iWARP looks at it.
 * EINVAL for other values and sizes, and on other ids. */
#define RDMUX_OPTION_IWARP_PEER_TO_PEER 0

/* The mode of an iWARP connection, as its RDMA_CM_EVENT_CONNECT_REQUEST and, on
 * either side, RDMA_CM_EVENT_ESTABLISHED tell it: 1 if either side may send
 * first, 0 if the side that connects must. -1 with errno ENODATA for other
 * events, and over InfiniBand and RoCE, where either side may. The event is not
 * acknowledged yet. */
int rdmux_event_peer_to_peer(const struct rdma_cm_event *event);

#ifdef __cplusplus
}
#endif

#endif
