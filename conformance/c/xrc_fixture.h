/* XRC between processes of one host: a sender, which is the test itself, and receivers, which execute its orders. */
#ifndef XRC_FIXTURE_H
#define XRC_FIXTURE_H

#include "fixture.h"

#include <rdmux/xrc.h>
#include <sys/types.h>

/* Creates a file for a domain, and unlinks it. */
int domain_file(void);

struct ibv_xrcd *open_xrcd(struct ibv_context *device, int fd, int oflags);

/* Creates a shared receive queue that completes in `f->cq`. Returns its number, too. */
struct ibv_srq *create_xrc_srq(struct fixture *f, struct ibv_xrcd *xrcd, uint32_t *number);
void post_srq_receive(struct ibv_srq *srq, void *addr, uint32_t length, struct ibv_mr *mr);

/* Create a receive queue pair in RESET, and a further handle on one, or NULL. */
struct ibv_qp *create_target(struct ibv_context *device, struct ibv_xrcd *xrcd);
struct ibv_qp *open_target(struct ibv_context *device, struct ibv_xrcd *xrcd, uint32_t number);

/* The attributes that take a receive queue pair to INIT, and then to RTR, for a sender of this number. */
enum {
	INIT_MASK = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	PATH_MASK = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
	RTR_MASK = IBV_QP_STATE | PATH_MASK | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	ALLOC_MASK = (INIT_MASK | RTR_MASK) & ~IBV_QP_STATE,
};
struct ibv_qp_attr target_attr(const struct fixture *f, uint32_t sender);
void target_to_rtr(struct fixture *f, struct ibv_qp *target, uint32_t sender);

/* Creates a sending queue pair in INIT; and takes it to RTS. */
struct ibv_qp *create_sender(struct fixture *f);
void sender_to_rts(struct fixture *f, struct ibv_qp *sender, uint32_t target);

/* Returns a request like `request`, for one of the peer's shared receive queues. */
struct ibv_send_wr *request_to(uint32_t srqn, enum ibv_wr_opcode opcode, void *addr,
			       uint32_t length, struct ibv_mr *mr, void *remote, uint32_t rkey);

/* Fills memory with bytes that nothing else writes. */
void fill(uint8_t *at, uint32_t length, uint8_t salt);
bool holds(const uint8_t *at, uint32_t length, uint8_t salt);

/* A process with a device, the domain of the file, and a shared receive queue. */
struct receiver {
	pid_t child;
	int line;
	uint32_t srqn, rkey;
	uint8_t *memory; /* in its process, BUFFER bytes */
};

/* Starts a receiver. It opens its device itself, because objects opened before a fork are dead after it. */
struct receiver start_receiver(int file);
/* Ends it: by an order, after which nothing of it may remain; or by a signal, at an arbitrary moment. */
void end_receiver(struct receiver *r);
void kill_receiver(struct receiver *r);

enum order {
	/* Post a receive of so many bytes, at the start of the memory. */
	RECEIVE,
	/* By handle. It has one at a time. */
	CREATE, /* a receive queue pair, for this sender; answers its number */
	OPEN,
	DESTROY,
	/* By number, by the interfaces of 2007 and of OFED 1.3. */
	ALLOC, /* for this sender; answers the number, or a negative error */
	REGISTER,
	UNREGISTER,
	REG,
	UNREG,
	/* Query whether such a receive queue pair exists: answers its state, or a negative error. */
	LOOK,
	/* Fill the memory from its start, or answer whether it holds this: so many bytes, and a salt in the upper eight bits. */
	FILL,
	HOLDS,
	/* Wait for an asynchronous event; answers its type. It must be about the handle, or about this number. */
	EVENT,
	/* Fork, and let the child try calls that must fail; then it ends. Answers 0. */
	FORK,
	COMPLETION, /* for `received` only */
	QUIT,
};
long order(struct receiver *r, enum order order, uint32_t argument);
#define SALTED(length, salt) ((uint32_t)(salt) << 24 | (length))

/* Returns the completion of a receive of the receiver. */
struct ibv_wc received(struct receiver *r);

#endif
