/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * XRC receive queue pairs that are not owned by a process.
 *
 * Such a queue pair is the receiving end of one connection, and reaches the
 * shared receive queues of all processes that have opened its XRC domain. It
 * is kept by the host's service. Processes register for it; when the last one
 * unregisters or ends, however it ends, the queue pair is destroyed.
 *
 * There are three interfaces to the same objects, which can be mixed:
 *
 * - The current one, in <infiniband/verbs.h>: ibv_open_xrcd, ibv_create_srq_ex,
 *   ibv_create_qp_ex with IBV_QPT_XRC_RECV, ibv_open_qp. A process holds the
 *   queue pair by handles, each of which counts.
 * - The proposal of December 2007: ibv_xrc_rcv_qp_alloc, _register and
 *   _unregister. Errors are negative.
 * - OFED 1.3's form of it: ibv_create_xrc_rcv_qp and its like. Errors are
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

/* An XRC domain. Its first member is struct ibv_xrcd, so pointers to the two
 * may be cast to each other. */
struct ibv_xrc_domain {
	struct ibv_context *context;
	uint32_t handle;
};

/* Opens a domain: that of the file that `fd` refers to; `oflag` may create the
 * domain (O_CREAT) and require it to be new (O_CREAT | O_EXCL). With -1 it opens
 * one private to this process.
 *
 * Returns NULL with errno EAGAIN if there is none and O_CREAT is not given,
 * EINVAL if there is one and O_EXCL is given, EBADF if `fd` is not open. */
struct ibv_xrc_domain *ibv_open_xrc_domain(struct ibv_context *context, int fd, int oflag);

/* Closes it. EBUSY while a shared receive queue, handle or registration that
 * was made with it exists. */
int ibv_close_xrc_domain(struct ibv_xrc_domain *xrc_domain);

/* Creates a shared receive queue of the domain, whose receives complete in
 * `xrc_cq`. Senders name it by its number: ibv_get_srq_num(). Returns NULL with
 * errno if it fails. */
struct ibv_srq *ibv_create_xrc_srq(struct ibv_pd *pd, struct ibv_xrc_domain *xrc_domain,
				   struct ibv_cq *xrc_cq, struct ibv_srq_init_attr *init_attr);

/*
 * The proposal of 2007. 0, or a negative error number.
 */

/* Creates a receive queue pair, takes it through INIT to RTR, and registers
 * the process for it. Stores its number, which the sender connects to, in
 * `xrc_rcv_qpn`. `pd` only selects the device.
 *
 * `attr` needs the attributes of the two transitions, and `attr_mask` their
 * bits: PKEY_INDEX, PORT, ACCESS_FLAGS; AV, PATH_MTU, DEST_QPN, RQ_PSN,
 * MIN_RNR_TIMER, and for RDMA READs and atomics MAX_DEST_RD_ATOMIC, which is
 * for all shared receive queues together. Further bits that ibv_modify_qp()
 * knows are accepted and ignored.
 *
 * Returns -EINVAL if an attribute is missing or invalid, -ENOMEM if there are
 * too many queue pairs. Nothing is created then. */
int ibv_xrc_rcv_qp_alloc(struct ibv_pd *pd, struct ibv_xrc_domain *xrc_domain,
			 struct ibv_qp_attr *attr, int attr_mask, uint32_t *xrc_rcv_qpn);

/* Registers the process, so that the queue pair stays. Registering again is no
 * error and changes nothing.
 *
 * -EINVAL if there is no queue pair of this number, if it is not an XRC
 * receive queue pair, or if it does not belong to this domain. */
int ibv_xrc_rcv_qp_register(struct ibv_xrc_domain *xrc_domain, uint32_t xrc_qp_num);

/* Unregisters the process. If the queue pair has no user left, it is
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

/* Creates a receive queue pair in RESET, and registers the process for it. Only
 * the domain of `init_attr` is used. */
int ibv_create_xrc_rcv_qp(struct ibv_xrc_init_attr *init_attr, uint32_t *xrc_rcv_qpn);

/* Changes attributes and state, as ibv_modify_qp(). The queue pair receives
 * from RTR on. EINVAL as for ibv_xrc_rcv_qp_register(). */
int ibv_modify_xrc_rcv_qp(struct ibv_xrc_domain *xrc_domain, uint32_t xrc_qp_num,
			  struct ibv_qp_attr *attr, int attr_mask);

/* Returns all its attributes, whatever the mask. EINVAL as for
 * ibv_xrc_rcv_qp_register(). */
int ibv_query_xrc_rcv_qp(struct ibv_xrc_domain *xrc_domain, uint32_t xrc_qp_num,
			 struct ibv_qp_attr *attr, int attr_mask,
			 struct ibv_xrc_init_attr *init_attr);

/* As ibv_xrc_rcv_qp_register() and ibv_xrc_rcv_qp_unregister(). */
int ibv_reg_xrc_rcv_qp(struct ibv_xrc_domain *xrc_domain, uint32_t xrc_qp_num);
int ibv_unreg_xrc_rcv_qp(struct ibv_xrc_domain *xrc_domain, uint32_t xrc_qp_num);

/*
 * Events. A registered process gets the queue pair's events by
 * ibv_get_async_event() of the context that the domain was opened with. They
 * have this bit in event_type, and a number in place of the object. They are
 * acknowledged as others are. A handle has events of its own, as of any queue
 * pair.
 */
#define IBV_XRC_QP_EVENT_FLAG 0x80000000u

/* Returns the number of the queue pair that the event is about; 0 if it is no
 * such event. */
static inline uint32_t rdmux_xrc_event_qp_num(const struct ibv_async_event *event)
{
	if (((uint32_t)event->event_type & IBV_XRC_QP_EVENT_FLAG) == 0)
		return 0;
	return (uint32_t)event->element.port_num;
}

/* Returns the type of the event. */
static inline enum ibv_event_type rdmux_xrc_event_type(const struct ibv_async_event *event)
{
	return (enum ibv_event_type)((uint32_t)event->event_type & ~IBV_XRC_QP_EVENT_FLAG);
}

/*
 * With RDMUX_OFED_1_3_NAMES defined before, this header provides members and
 * values under their names of OFED 1.3. They are common words, so programs must
 * ask for them. A queue pair of type IBV_QPT_XRC sends only.
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
