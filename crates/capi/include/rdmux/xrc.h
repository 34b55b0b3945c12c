/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * XRC receive queue pairs that belong to no process.
 *
 * Such a queue pair is the receiving end of one connection, and reaches the
 * shared receive queues of all processes that have opened its XRC domain. It
 * lives in the host's service. Processes register for it; when the last one
 * takes its registration back or ends, however it ends, the queue pair goes.
 *
 * There are three interfaces to the same objects, which may be mixed:
 *
 * - Today's, in <infiniband/verbs.h>: ibv_open_xrcd, ibv_create_srq_ex,
 *   ibv_create_qp_ex with IBV_QPT_XRC_RECV, ibv_open_qp. A process holds the
 *   queue pair by handles, each of which counts.
 * - The proposal of December 2007: ibv_xrc_rcv_qp_alloc, _register and
 *   _unregister. Errors are negative.
 * - What OFED 1.3 made of it: ibv_create_xrc_rcv_qp and its like. Errors are
 *   positive.
 *
 * Handles and registrations both keep a queue pair alive. A process is
 * registered or not: there is no count.
 *
 * Compile and link with `pkg-config --cflags --libs rdmux`.
 */
#ifndef RDMUX_XRC_H
#define RDMUX_XRC_H

#include <infiniband/verbs.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An XRC domain. It begins as struct ibv_xrcd, and pointers to the one may be
 * cast to the other. */
struct ibv_xrc_domain {
	struct ibv_context *context;
	uint32_t handle;
};

/* Opens a domain: that of the file that `fd` is open on, which `oflag` may
 * have made (O_CREAT) and want to be new (O_CREAT | O_EXCL); or with -1 one of
 * this process's own.
 *
 * NULL with errno EAGAIN if there is none and O_CREAT is not given, EINVAL if
 * there is one and O_EXCL is, EBADF for a descriptor that is not open. */
struct ibv_xrc_domain *ibv_open_xrc_domain(struct ibv_context *context, int fd, int oflag);

/* Closes it. EBUSY while a shared receive queue, handle or registration that
 * was made with it exists. */
int ibv_close_xrc_domain(struct ibv_xrc_domain *xrc_domain);

/* Makes a shared receive queue of the domain, whose receives complete in
 * `xrc_cq`. Senders name it by its number: ibv_get_srq_num(). NULL and errno,
 * if it fails. */
struct ibv_srq *ibv_create_xrc_srq(struct ibv_pd *pd, struct ibv_xrc_domain *xrc_domain,
				   struct ibv_cq *xrc_cq, struct ibv_srq_init_attr *init_attr);

/*
 * The proposal of 2007. 0, or a negative error number.
 */

/* Creates a receive queue pair, takes it through INIT to RTR, and registers
 * the process for it. Its number, which the sender connects to, is put into
 * `xrc_rcv_qpn`. `pd` only says which device.
 *
 * `attr` needs what the two transitions need, and `attr_mask` says that it is
 * there: PKEY_INDEX, PORT, ACCESS_FLAGS; AV, PATH_MTU, DEST_QPN, RQ_PSN,
 * MIN_RNR_TIMER, and for RDMA READs and atomics MAX_DEST_RD_ATOMIC, which is
 * for all shared receive queues together. Further bits that ibv_modify_qp()
 * knows are taken, and mean nothing here.
 *
 * -EINVAL if something is missing or cannot be, -ENOMEM if there are too many.
 * Nothing is left then. */
int ibv_xrc_rcv_qp_alloc(struct ibv_pd *pd, struct ibv_xrc_domain *xrc_domain,
			 struct ibv_qp_attr *attr, int attr_mask, uint32_t *xrc_rcv_qpn);

/* Registers the process, so that the queue pair stays. To do so again is no
 * error, and changes nothing.
 *
 * -EINVAL if there is no queue pair of this number, if it is not an XRC
 * receive queue pair, or if it does not belong to this domain. */
int ibv_xrc_rcv_qp_register(struct ibv_xrc_domain *xrc_domain, uint32_t xrc_qp_num);

/* Takes the registration back. If nobody holds the queue pair any more, it is
 * destroyed; that is success, too.
 *
 * -EINVAL as for ibv_xrc_rcv_qp_register(), and if the process is not
 * registered. */
int ibv_xrc_rcv_qp_unregister(struct ibv_xrc_domain *xrc_domain, uint32_t xrc_qp_num);

/*
 * OFED 1.3. 0, or a positive error number.
 */

/* OFED 1.3's struct ibv_qp_init_attr: today's has no domain. */
struct ibv_xrc_init_attr {
	void *qp_context;
	struct ibv_cq *send_cq;
	struct ibv_cq *recv_cq;
	struct ibv_srq *srq;
	struct ibv_qp_cap cap;
	enum ibv_qp_type qp_type;
	int sq_sig_all;
	struct ibv_xrc_domain *xrc_domain;
};

/* Creates a receive queue pair in RESET, and registers the process for it. Of
 * `init_attr` only the domain counts. */
int ibv_create_xrc_rcv_qp(struct ibv_xrc_init_attr *init_attr, uint32_t *xrc_rcv_qpn);

/* Changes attributes and state, as ibv_modify_qp(). It receives from RTR on.
 * EINVAL as for ibv_xrc_rcv_qp_register(). */
int ibv_modify_xrc_rcv_qp(struct ibv_xrc_domain *xrc_domain, uint32_t xrc_qp_num,
			  struct ibv_qp_attr *attr, int attr_mask);

/* All its attributes, whatever the mask. EINVAL as for
 * ibv_xrc_rcv_qp_register(). */
int ibv_query_xrc_rcv_qp(struct ibv_xrc_domain *xrc_domain, uint32_t xrc_qp_num,
			 struct ibv_qp_attr *attr, int attr_mask,
			 struct ibv_xrc_init_attr *init_attr);

/* ibv_xrc_rcv_qp_register() and ibv_xrc_rcv_qp_unregister(). */
int ibv_reg_xrc_rcv_qp(struct ibv_xrc_domain *xrc_domain, uint32_t xrc_qp_num);
int ibv_unreg_xrc_rcv_qp(struct ibv_xrc_domain *xrc_domain, uint32_t xrc_qp_num);

/*
 * Events. Who is registered gets the queue pair's events by ibv_get_async_event()
 * of the context that the domain was opened with: event_type has this bit
 * besides, and a number takes the place of the object. They are acknowledged
 * as others are. A handle has events of its own, as of any queue pair.
 */
#define IBV_XRC_QP_EVENT_FLAG 0x80000000u

/* The number of the queue pair that the event is about; 0 if it is no such
 * event. */
static inline uint32_t rdmux_xrc_event_qp_num(const struct ibv_async_event *event)
{
	if (((uint32_t)event->event_type & IBV_XRC_QP_EVENT_FLAG) == 0)
		return 0;
	return (uint32_t)event->element.port_num;
}

/* What has happened to it. */
static inline enum ibv_event_type rdmux_xrc_event_type(const struct ibv_async_event *event)
{
	return (enum ibv_event_type)((uint32_t)event->event_type & ~IBV_XRC_QP_EVENT_FLAG);
}

/*
 * With RDMUX_OFED_1_3_NAMES defined before, programs find members and values
 * where OFED 1.3 had them. It is up to the program, as these are common words.
 * A queue pair of type IBV_QPT_XRC sends only.
 */
#ifdef RDMUX_OFED_1_3_NAMES
#define IBV_QPT_XRC IBV_QPT_XRC_SEND
#define xrc_remote_srq_num qp_type.xrc.remote_srqn /* of struct ibv_send_wr */
#define xrc_qp_num port_num /* of struct ibv_async_event's element */
#endif

#ifdef __cplusplus
}
#endif

#endif
