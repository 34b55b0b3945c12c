/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Peer-to-peer mode of iWARP connections (RFC 6581).
 *
 * iWARP lets only the side that connects send first. In peer-to-peer mode that
 * side's connection manager first sends a message of its own, without data and
 * invisible to the program; then either side may send first. The side that
 * accepts gets RDMA_CM_EVENT_ESTABLISHED after that message.
 *
 * The side that connects decides whether to ask for this mode. In order of
 * precedence:
 *
 * 1. the option below, set on the id before rdma_connect(3);
 * 2. the environment of the process: RDMUX_PEER_TO_PEER=0 or 1;
 * 3. the host's configuration: peer_to_peer = true or false, in [iwarp];
 * 4. on.
 *
 * The side that accepts follows the other. If the peer knows only the first
 * revision of MPA, or does not want the mode, the connection is made without
 * it: events report the result (rdmux_event_peer_to_peer).
 *
 * Compile with `pkg-config --cflags rdmux`. With other librdmacms
 * rdma_set_option(3) fails with ENOSYS, and drivers decide. Programs that call
 * the function also link with `pkg-config --libs rdmux`: it is in
 * librdmacm.so.1, with the version RDMUX_1.0.
 */
#ifndef RDMUX_IWARP_H
#define RDMUX_IWARP_H

#include <rdma/rdma_cma.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A level of rdma_set_option(3), in addition to RDMA_OPTION_ID and RDMA_OPTION_IB. */
#define RDMUX_OPTION_IWARP 0x7264

/* Options of that level. */

/* An int: 1 for peer-to-peer mode, 0 for none. It may be set on any id for
 * reliable connections, whichever device it will get; only iWARP uses it.
 * EINVAL for other values and sizes, and on other ids. */
#define RDMUX_OPTION_IWARP_PEER_TO_PEER 0

/* Returns the mode of an iWARP connection, as reported by its
 * RDMA_CM_EVENT_CONNECT_REQUEST and, on either side, RDMA_CM_EVENT_ESTABLISHED:
 * 1 if either side may send first, 0 if the side that connects must. -1 with
 * errno ENODATA for other events, and over InfiniBand and RoCE, where either
 * side may. The event must not be acknowledged yet. */
int rdmux_event_peer_to_peer(const struct rdma_cm_event *event);

#ifdef __cplusplus
}
#endif

#endif
