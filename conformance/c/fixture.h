/* The setup of most tests. Each function fails the test if it cannot do what it says. */
#ifndef FIXTURE_H
#define FIXTURE_H

#include "check.h"

#include <infiniband/verbs.h>

enum {
	PORT = 1,
	BUFFER = 64 << 10, /* bytes of a fixture's memory */
	ALL_RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		     IBV_ACCESS_REMOTE_ATOMIC,
};

/* A device with one object of each kind. */
struct fixture {
	struct ibv_context *device;
	struct ibv_comp_channel *channel;
	struct ibv_pd *pd;
	struct ibv_cq *cq; /* on the channel */
	struct ibv_mr *mr; /* of `memory`, with all rights */
	uint8_t *memory;
	int gid_index;
	union ibv_gid gid; /* not of InfiniBand: an IPv4 address, in the last four bytes */
	uint16_t lid;	   /* of InfiniBand */
};

struct ibv_context *open_device(void);
void open_fixture(struct fixture *f);
void close_fixture(struct fixture *f);

/* Creates a queue pair in RESET whose completions all go to `f->cq`. */
struct ibv_qp *create_qp(struct fixture *f, enum ibv_qp_type type);

/* Takes an RC queue pair to INIT, or as far as RTS with another one of this host as its peer. */
void to_init(struct ibv_qp *qp);
void to_rts(struct fixture *f, struct ibv_qp *qp, uint32_t peer);

/* Takes a reliable queue pair from RTR to RTS. */
void rtr_to_rts(struct ibv_qp *qp);

/* Creates two RC queue pairs and connects them. */
void connected_pair(struct fixture *f, struct ibv_qp *pair[2]);

/* Returns a signalled request of this kind with one gather entry. The caller posts it before it makes another. */
struct ibv_send_wr *request(enum ibv_wr_opcode opcode, void *addr, uint32_t length,
			    struct ibv_mr *mr, void *remote, uint32_t rkey);

void post(struct ibv_qp *qp, struct ibv_send_wr *wr);
void post_receive(struct ibv_qp *qp, void *addr, uint32_t length, struct ibv_mr *mr);

/* Polls until there is a completion, and returns it. */
struct ibv_wc completion(struct ibv_cq *cq);

/* Posts an RDMA WRITE. Returns the status of its completion. */
enum ibv_wc_status write_bytes(struct fixture *f, struct ibv_qp *qp, void *from, struct ibv_mr *mr,
			       void *to, uint32_t rkey, uint32_t length);

/* Sends a message from a pair's first queue pair to its second one, and verifies it. */
void exchange(struct fixture *f, struct ibv_qp *pair[2]);

#endif
