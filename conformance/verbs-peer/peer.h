/* verbs_peer: every verb of RC, UC and UD, between two processes that share only the wire.
 *
 * One side serves, the other runs tests against it. The programs connect the queue pairs by themselves.
 * They exchange the connection parameters, and the client's commands to the server, over a TCP
 * connection as lines of text (control.c). The program uses only the public verbs API. The Rust
 * program verbs-peer of this folder's crate has the same protocol, so that either side can be either stack. */
#ifndef PEER_H
#define PEER_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum {
	REGION = 2 << 20, /* bytes that the peer may reach, at offset 0 of the buffer */
	LOCAL = 2 << 20,  /* bytes of our own messages, behind them */
	GRH = 40,         /* what precedes a datagram in its receive buffer */
	QKEY = 0x11223344,
	ALL_RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		     IBV_ACCESS_REMOTE_ATOMIC,
};

/* The data of one side's queue pair and memory that the other side needs. */
struct side {
	uint32_t qpn, psn, mtu, rkey;
	uint64_t addr;
	union ibv_gid gid;
};

/* The parameters of a session besides its transport. */
struct wants {
	enum ibv_qp_type type;
	unsigned rights;    /* of the server's region */
	unsigned rnr_retry; /* of the client */
	unsigned retry_cnt; /* of the client */
	bool srq;           /* the server receives from a shared receive queue */
};

/* One end of a session. */
struct peer {
	FILE *in, *out; /* the control connection */
	struct wants wants;
	struct ibv_context *device;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	struct ibv_ah *ah; /* UD */
	struct ibv_mw *mw;
	struct ibv_srq *srq;
	uint8_t *buf;
	int gid_index;
	struct side me, you;
};

/* device.c: all return 0, or -1 after printing the reason on stderr */
int peer_create(struct peer *p, const union ibv_gid *local);
int peer_connect(struct peer *p);
void peer_destroy(struct peer *p);
int peer_recv(struct peer *p, uint32_t len);
int peer_poll(struct peer *p, struct ibv_wc *wc); /* waits a minute at most */
uint64_t at(const struct peer *p, uint32_t offset);
void fill(uint8_t *to, uint32_t len, uint32_t seed);
int64_t compare(const uint8_t *data, uint32_t len, uint32_t seed); /* first difference, or -1 */

/* control.c */
int serve(const char *addr, const char *port);
int control_open(struct peer *p, const char *addr, const char *port, union ibv_gid *local);
int ask(struct peer *p, char *answer, size_t size, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
int session_open(struct peer *p, const union ibv_gid *local);

/* tests.c */
int run_tests(const char *addr, const char *port, char **names); /* those that begin so; all if none */

#endif
