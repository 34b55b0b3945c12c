/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Extensions of this connection manager to <rdma/rdma_cma.h>.
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
 * Names.
 *
 * rdma_getaddrinfo(3) is independent of connections: it makes none, and its
 * answers contain all that a connection needs: port space, both addresses,
 * paths and connect data. A program passes the first answer to
 * rdma_create_ep(3) and, if that fails, the next.
 */

/* A flag of ai_flags in the hints, in addition to RAI_PASSIVE and the others.
 * It returns answers with InfiniBand's own addresses (AF_IB), on InfiniBand
 * and RoCE, with the path in ai_route, followed by the answers with IP
 * addresses. Over iWARP there are only the latter.
 *
 * In RDMA_PS_TCP and RDMA_PS_UDP ai_connect tells listeners with IP addresses
 * the address of the client, so these need not know of the flag; listeners are
 * found by IP address (RAI_PASSIVE). In RDMA_PS_IB listeners have AF_IB
 * addresses too, the private data are the program's alone, and `service` may be
 * a service ID of 64 bits, as "0x" and hexadecimal digits; the IP addresses
 * that follow are in RDMA_PS_TCP or RDMA_PS_UDP.
 *
 * Hints with RDMA_PS_IB or the family AF_IB also find AF_IB addresses without
 * this flag, with ai_connect, for listeners with IP addresses. */
#define RDMUX_RAI_NATIVE 0x20000000

/*
 * Addresses and paths together.
 */

/* Sets a source, a destination and the paths between them, in place of
 * rdma_resolve_addr(3) and rdma_resolve_route(3). Nothing is resolved: the
 * call sends no neighbour request and does not ask subnet administration. It
 * uses the records' values as they are. RDMA_CM_EVENT_ROUTE_RESOLVED follows;
 * with an id in synchronous mode the call returns after it.
 *
 * `id` is new, or bound. `src` is NULL, or an address of the port where the
 * paths begin; an id that is bound keeps its own. `src` and `dst` are of one
 * family: AF_IB, AF_INET or AF_INET6.
 *
 * `paths` are `count` records, one to six; five cover all the purposes:
 *
 * | flags                                  | purpose                          |
 * |----------------------------------------|----------------------------------|
 * | GMP                                    | the path of the connection       |
 * |                                        | manager's own datagrams; if none,|
 * |                                        | the primary path                 |
 * | PRIMARY, OUTBOUND                      | the path of this end's packets   |
 * | PRIMARY, INBOUND                       | the path of the peer's packets,  |
 * |                                        | as a record from the peer        |
 * | PRIMARY, OUTBOUND, INBOUND_REVERSE     | both: the peer's packets take    |
 * |                                        | the reverse path                 |
 * | ALTERNATE, OUTBOUND; ALTERNATE, INBOUND| as PRIMARY, of the path that the |
 * |                                        | connection may migrate to        |
 *
 * (IBV_PATH_FLAG_... of <infiniband/sa.h>, bits of ibv_path_data.flags.) A
 * primary path is required. A request has one service
 * level, rate, flow label, traffic class, hop limit and partition for both
 * directions of a path, so records of both directions agree in these. On RoCE
 * a GID is an address: LIDs and service level mean nothing there.
 *
 * Returns -1 with errno EINVAL for records that contradict each other, the
 * addresses or the port (with RDMUX_LOG=debug a line on standard error names
 * the path and the field), for a bad count, for addresses of two families, and
 * for an id in another state. Nothing was sent then, and the id is unchanged. */
int rdmux_resolve_along(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst,
			const struct ibv_path_data *paths, size_t count);

/*
 * All fields of the messages of InfiniBand's connection manager. They apply to
 * InfiniBand and RoCE; iWARP has none of these messages. Times are codes of
 * 4.096 us * 2^code, 0 to 31, unless another unit is named. docs/cm.md names
 * for each message and field what sets it, and the event that shows it.
 */

/* A level of rdma_set_option(3); the value of each option is a uint32_t. An id
 * that a connection request creates inherits its listener's options. EINVAL for
 * values out of range and in states that no longer allow the option. */
#define RDMUX_OPTION_CM 0x72636d

/* REQ, SIDR_REQ and LAP, before rdma_connect(3): the time within which the peer
 * should answer; REQ: that within which this end answers. They set the
 * retransmission intervals. SIDR_REQ does not carry it. Default 20, 4.3 s. */
#define RDMUX_OPTION_CM_REMOTE_RESPONSE_TIMEOUT 0
#define RDMUX_OPTION_CM_LOCAL_RESPONSE_TIMEOUT 1
/* REQ and SIDR_REQ, before rdma_connect(3): how often a message is
 * retransmitted, 0 to 15. Default 15. */
#define RDMUX_OPTION_CM_MAX_RETRIES 2
/* REQ and REP, before rdma_connect(3), rdma_listen(3) or rdma_accept(3): the
 * first PSN that this end expects, 24 bits. Default random. */
#define RDMUX_OPTION_CM_STARTING_PSN 3
/* REQ, before rdma_connect(3): the path MTU, as enum ibv_mtu. At most the
 * path's, which is the default. */
#define RDMUX_OPTION_CM_PATH_MTU 4
/* REQ and REP: the local Q_Key, which only reliable datagrams use. Default 0.
 * SIDR_REP, before rdma_accept(3): the Q_Key of the queue pair that it names.
 * Default that of the port space. */
#define RDMUX_OPTION_CM_LOCAL_QKEY 5
/* REP, before rdma_accept(3): how long this end's queue pair takes to
 * acknowledge. Default 15, 134 ms. */
#define RDMUX_OPTION_CM_TARGET_ACK_DELAY 6
/* REP, before rdma_accept(3): the outcome of REQ's alternate path. 0: it was
 * taken, or there was none; 1: this end does not migrate; 2: this end does not
 * migrate to that path. Default 0, or 2 if it leads to no port of this end.
 * With 1 and 2 it is not loaded. */
#define RDMUX_OPTION_CM_FAILOVER_ACCEPTED 7
/* MRA: the service timeout of those sent because the program has not answered
 * when the peer retransmits its message. Default 24, 68.7 s. */
#define RDMUX_OPTION_CM_SERVICE_TIMEOUT 8
/* How often a request may be redirected, 0 to 15. With 0 a redirection is
 * reported as a refusal, by RDMA_CM_EVENT_REJECTED or UNREACHABLE. Default 4. */
#define RDMUX_OPTION_CM_MAX_REDIRECTS 9
/* 1: events have the peer's message (rdmux_get_message), and LAP and MRA are
 * events. Default 0: a LAP is then refused, and an MRA obeyed silently. */
#define RDMUX_OPTION_CM_MESSAGES 10
/* REQ and REP: this end's end-to-end context, 24 bits; REQ: the peer's, and
 * whether (1) or not (0) there is a reliable datagram channel between the two.
 * Only reliable datagrams use these. XRC's REP carries the queue pair in this
 * end's field. Default 0. */
#define RDMUX_OPTION_CM_LOCAL_EECN 11
#define RDMUX_OPTION_CM_REMOTE_EECN 12
#define RDMUX_OPTION_CM_RDC_EXISTS 13

/* Events in addition to those of enum rdma_cm_event_type.
 *
 * LAP: the peer asks to load an alternate path for the connection;
 * rdmux_answer_alternate answers. */
#define RDMUX_CM_EVENT_ALTERNATE_REQUEST 128
/* APR: the outcome of rdmux_load_alternate. Status 0: the peer has loaded the
 * path, and so has the id's queue pair; APR's status (1 to 255, IBTA table
 * 124); or a negative errno, ETIMEDOUT if the peer did not answer. */
#define RDMUX_CM_EVENT_ALTERNATE_RESPONSE 129
/* MRA: the peer needs more time. The status is the code of that time. */
#define RDMUX_CM_EVENT_MORE_TIME 130

/* The messages. */
#define RDMUX_CM_REQ 0x10
#define RDMUX_CM_MRA 0x11
#define RDMUX_CM_REJ 0x12
#define RDMUX_CM_REP 0x13
#define RDMUX_CM_RTU 0x14
#define RDMUX_CM_DREQ 0x15
#define RDMUX_CM_DREP 0x16
#define RDMUX_CM_SIDR_REQ 0x17
#define RDMUX_CM_SIDR_REP 0x18
#define RDMUX_CM_LAP 0x19
#define RDMUX_CM_APR 0x1a

/* A path of the sender, as REQ and LAP describe it. In host byte order. */
struct rdmux_cm_path {
	union ibv_gid local_gid;
	union ibv_gid remote_gid;
	uint32_t flow_label;
	uint16_t local_lid;
	uint16_t remote_lid;
	uint8_t rate; /* enum ibv_rate */
	uint8_t tclass;
	uint8_t hop_limit;
	uint8_t sl;
	uint8_t subnet_local;
	uint8_t ack_timeout; /* code */
	uint8_t reserved[2];
};

/* A message of the peer, in host byte order. Fields that the message does
 * not have are zero. */
struct rdmux_cm_message {
	uint64_t tid; /* transaction ID of the datagram */
	uint64_t service_id;
	uint64_t ca_guid;
	uint32_t kind; /* RDMUX_CM_... */
	uint32_t local_comm_id; /* of the sender; of SIDR_REQ the request ID */
	uint32_t remote_comm_id; /* of SIDR_REP the request ID */
	uint32_t qpn; /* the sender's; of LAP and DREQ the receiver's */
	uint32_t qkey;
	uint32_t starting_psn;
	uint32_t vendor_id; /* of enhanced connection establishment, */
	uint32_t ece_options; /* and the options */
	uint32_t local_eecn; /* REQ, and REP except XRC's: end-to-end contexts */
	uint32_t remote_eecn;
	uint16_t pkey;
	uint16_t reason; /* REJ: IBTA table 108 */
	uint8_t status; /* SIDR_REP; APR: IBTA table 124 */
	uint8_t answered; /* REJ, MRA: the message answered. 0 REQ, 1 REP, 2 LAP (MRA) or no message (REJ) */
	uint8_t info_len; /* number of valid bytes of `info` */
	uint8_t transport; /* 0 RC, 1 UC, 5 XRC */
	uint8_t responder_resources;
	uint8_t initiator_depth;
	uint8_t flow_control; /* end to end */
	uint8_t retry_count;
	uint8_t rnr_retry_count;
	uint8_t srq;
	uint8_t path_mtu; /* enum ibv_mtu */
	uint8_t max_retries;
	uint8_t remote_response_timeout; /* code; also of LAP */
	uint8_t local_response_timeout; /* code */
	uint8_t target_ack_delay; /* code */
	uint8_t failover_accepted; /* as RDMUX_OPTION_CM_FAILOVER_ACCEPTED */
	uint8_t service_timeout; /* code */
	uint8_t private_data_len; /* the size of the field, however much of it the peer used */
	uint8_t rdc_exists; /* reliable datagram channel */
	uint8_t reserved[1];
	uint8_t info[72]; /* REJ, SIDR_REP, APR: additional information */
	struct rdmux_cm_path primary; /* REQ */
	struct rdmux_cm_path alternate; /* REQ, LAP */
	uint8_t private_data[224];
};

/* Returns the peer's message that caused an event, for an id with
 * RDMUX_OPTION_CM_MESSAGES: REQ or SIDR_REQ for CONNECT_REQUEST, REP for
 * CONNECT_RESPONSE, REP, RTU or SIDR_REP for ESTABLISHED, REJ for REJECTED,
 * SIDR_REP for UNREACHABLE, DREQ or DREP for DISCONNECTED, and LAP, APR and MRA
 * for the events above. -1 with errno ENODATA if there is none, as for a
 * timeout. The event must not be acknowledged yet. */
int rdmux_get_message(const struct rdma_cm_event *event, struct rdmux_cm_message *message);

/* Refuses a CONNECT_REQUEST, as rdma_reject(3), for any reason and with up to
 * 72 bytes of additional information. `reason` is REJ's; for datagrams it is
 * SIDR_REP's status, 1 to 255. Private data are 148 bytes at most, for
 * datagrams 136. EINVAL if something is too long, and if there is nothing to
 * refuse. */
int rdmux_reject(struct rdma_cm_id *id, uint16_t reason, const void *info, uint8_t info_len,
		 const void *private_data, uint8_t private_data_len);

/* The address to which a peer should send its request instead, in host byte
 * order. */
struct rdmux_cm_redirect {
	union ibv_gid gid; /* of the port there; on RoCE its address */
	uint32_t flow_label;
	uint16_t lid; /* of the port there; on RoCE 0, on InfiniBand 0 to look up the path to the GID */
	uint16_t pkey; /* 0 leaves it as it is */
	uint8_t sl;
	uint8_t tclass;
	uint8_t reserved[6];
};

/* Refuses a CONNECT_REQUEST and redirects its peer: REJ with reason 24, or
 * SIDR_REP with status 4. This connection manager follows redirections without
 * its program, RDMUX_OPTION_CM_MAX_REDIRECTS times at most, if it can find the
 * path: to a port of the same partition, on RoCE by address, on InfiniBand by
 * LID. It reports other redirections as refusals. */
int rdmux_redirect(struct rdma_cm_id *id, const struct rdmux_cm_redirect *to,
		   const void *private_data, uint8_t private_data_len);

/* Asks the peer for time, by MRA, before a CONNECT_REQUEST, a CONNECT_RESPONSE
 * or an ALTERNATE_REQUEST is answered: the peer waits for that long before it
 * retransmits. At most 222 bytes of private data. EINVAL if there is nothing
 * to answer. */
int rdmux_ask_for_time(struct rdma_cm_id *id, uint8_t service_timeout, const void *private_data,
		       uint8_t private_data_len);

/* Sets the private data of a message that other calls send: RDMUX_CM_RTU, at
 * most 224 bytes, before rdma_connect(3); RDMUX_CM_DREQ, 220, and
 * RDMUX_CM_DREP, 224, before rdma_disconnect(3). EINVAL for other messages and
 * for data that are too long. */
int rdmux_set_private_data(struct rdma_cm_id *id, unsigned int message, const void *private_data,
			   uint8_t private_data_len);

/* Asks the peer of a connection, which this id has made, to load another
 * alternate path, by LAP. `paths` are one or two records with
 * IBV_PATH_FLAG_ALTERNATE, as for rdmux_resolve_along. At most 168 bytes of
 * private data. RDMUX_CM_EVENT_ALTERNATE_RESPONSE follows; with an id in
 * synchronous mode the call returns after it, and ECONNREFUSED means that the
 * peer refused. The id's queue pair then has loaded the path (IBV_QP_ALT_PATH,
 * IBV_MIG_REARM). For a queue pair of the program's own, rdma_init_qp_attr(3)
 * to IBV_QPS_RTS returns the attributes to set.
 *
 * EINVAL if the id is not connected or is the accepting side, if the last such
 * request is not answered, and for records that describe no usable path. */
int rdmux_load_alternate(struct rdma_cm_id *id, const struct ibv_path_data *paths, size_t count,
			 const void *private_data, uint8_t private_data_len);

/* Answers RDMUX_CM_EVENT_ALTERNATE_REQUEST, by APR. With `status` 0 the call
 * first loads the path into the id's queue pair. Other statuses are in IBTA
 * table 124: 2 is not supported, 3 rejected by the consumer. At most 72 bytes
 * of additional information and 148 of private data. EINVAL if there is
 * nothing to answer.
 *
 * When the queue pair has migrated (IBV_EVENT_PATH_MIG), rdma_notify(3) with
 * that event moves the connection manager's own messages to the new path. */
int rdmux_answer_alternate(struct rdma_cm_id *id, uint8_t status, const void *info,
			   uint8_t info_len, const void *private_data, uint8_t private_data_len);

#ifdef __cplusplus
}
#endif

#endif
