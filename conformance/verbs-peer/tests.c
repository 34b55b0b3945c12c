/* The client's tests. Each test has a session of its own. */
#include "peer.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char why[256]; /* the test failed */

static int fail(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(why, sizeof why, fmt, args);
	va_end(args);
	return -1;
}

#define TRY(x) do { if (x) return *why ? -1 : fail("%s", #x); } while (0)

/* ---- requests */

/* Posts one work request over `n` pieces of the local half of the buffer. */
static int post_pieces(struct peer *p, enum ibv_wr_opcode op, const uint32_t *lens, int n,
		       uint64_t remote, uint32_t rkey, uint32_t extra, unsigned flags)
{
	struct ibv_sge sge[16];
	struct ibv_send_wr wr = { .sg_list = sge, .num_sge = n, .opcode = op, .send_flags = flags }, *bad;
	uint32_t off = REGION;

	for (int i = 0; i < n; off += lens[i++])
		sge[i] = (struct ibv_sge){ at(p, off), lens[i], p->mr->lkey };
	if (op == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = extra;
	else
		wr.imm_data = htonl(extra);
	if (p->wants.type == IBV_QPT_UD) {
		wr.wr.ud.ah = p->ah;
		wr.wr.ud.remote_qpn = p->you.qpn;
		wr.wr.ud.remote_qkey = (uint32_t)remote;
	} else {
		wr.wr.rdma.remote_addr = remote;
		wr.wr.rdma.rkey = rkey;
	}
	TRY(ibv_post_send(p->qp, &wr, &bad));
	return 0;
}

static int post(struct peer *p, enum ibv_wr_opcode op, uint32_t len, uint64_t remote, uint32_t extra,
		unsigned flags)
{
	return post_pieces(p, op, &len, len ? 1 : 0, remote, p->you.rkey, extra, flags);
}

static int post_atomic(struct peer *p, enum ibv_wr_opcode op, uint64_t remote, uint64_t a, uint64_t b)
{
	struct ibv_sge sge = { at(p, REGION), 8, p->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = op,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;

	wr.wr.atomic.remote_addr = remote;
	wr.wr.atomic.rkey = p->you.rkey;
	wr.wr.atomic.compare_add = a;
	wr.wr.atomic.swap = b;
	TRY(ibv_post_send(p->qp, &wr, &bad));
	return 0;
}

/* Checks that the next completion of the client has this status. */
static int done(struct peer *p, enum ibv_wc_status status)
{
	struct ibv_wc wc;

	TRY(peer_poll(p, &wc));
	if (wc.status != status)
		return fail("completed with %s (%u), not %s", ibv_wc_status_str(wc.status),
			    wc.vendor_err, ibv_wc_status_str(status));
	return 0;
}

/* Checks that the next completion of the client has one of two statuses, by which the server's queue pair reports, before it
 * fails, that it cannot execute the request. The NAK is sent once, because a failed queue pair drops incoming
 * packets (IBTA 9.9.3, 10.3.1): if the wire lost it, only the server's state shows the refusal. */
static int refused_as(struct peer *p, enum ibv_wc_status status, enum ibv_wc_status either)
{
	char state[256];
	struct ibv_wc wc;

	TRY(peer_poll(p, &wc));
	if (wc.status == IBV_WC_RETRY_EXC_ERR) {
		TRY(ask(p, state, sizeof state, "state"));
		if (strtoul(state, NULL, 16) == IBV_QPS_ERR)
			return fail("the answer was lost: the server's queue pair failed, "
				    "but its NAK did not come");
	}
	if (wc.status != status && wc.status != either)
		return fail("completed with %s (%u), not %s", ibv_wc_status_str(wc.status),
			    wc.vendor_err, ibv_wc_status_str(status));
	return 0;
}

static int refused(struct peer *p, enum ibv_wc_status status)
{
	return refused_as(p, status, status);
}

/* ---- completions on the server */

struct seen {
	uint32_t status, opcode, len, imm, flags, src_qp;
	char diff[17];
};

static int server_wait(struct peer *p, uint32_t seed, struct seen *s)
{
	char text[256];

	TRY(ask(p, text, sizeof text, "wait %x", seed));
	if (sscanf(text, "%x %x %x %x %x %16s %x", &s->status, &s->opcode, &s->len, &s->imm, &s->flags,
		   s->diff, &s->src_qp) != 7)
		return fail("bad answer:%s", text);
	return 0;
}

static int server_received(struct peer *p, uint32_t seed, enum ibv_wc_opcode opcode, uint32_t len,
			   struct seen *s)
{
	TRY(server_wait(p, seed, s));
	if (s->status || s->opcode != opcode || s->len != len)
		return fail("the server completed with status %u opcode %u length %u, not %u", s->status,
			    s->opcode, s->len, len);
	if (strcmp(s->diff, "-"))
		return fail("wrong byte at %s of %x", s->diff, len);
	return 0;
}

static int server_value(struct peer *p, uint32_t off, uint64_t want)
{
	char text[256];
	uint64_t v = 0;

	TRY(ask(p, text, sizeof text, "peek %x", off));
	if (sscanf(text, "%" SCNx64, &v) != 1 || v != want)
		return fail("the server has %" PRIx64 ", not %" PRIx64, v, want);
	return 0;
}

/* Zero, one, and around the packet and pad sizes. */
static const uint32_t sizes[] = { 0, 1, 3, 4, 63, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097,
				  65536, 1048576 + 5 };
#define EACH(len) (unsigned len##_i = 0; len##_i < sizeof sizes / sizeof *sizes; len##_i++)
enum { S = IBV_SEND_SIGNALED };

/* ---- RC and UC */

static int send_sizes(struct peer *p)
{
	struct seen s;

	for EACH(n) {
		uint32_t n = sizes[n_i];

		fill(p->buf + REGION, n, n);
		TRY(ask(p, NULL, 0, "recv %x", n));
		TRY(post(p, IBV_WR_SEND, n, 0, 0, S));
		TRY(done(p, IBV_WC_SUCCESS));
		TRY(server_received(p, n, IBV_WC_RECV, n, &s));
	}
	return 0;
}

static int send_imm(struct peer *p)
{
	struct seen s;

	fill(p->buf + REGION, 5000, 3);
	TRY(ask(p, NULL, 0, "recv %x", 5000));
	TRY(post(p, IBV_WR_SEND_WITH_IMM, 5000, 0, 0xdeadbeef, S | IBV_SEND_SOLICITED));
	TRY(done(p, IBV_WC_SUCCESS));
	TRY(server_received(p, 3, IBV_WC_RECV, 5000, &s));
	if (s.imm != 0xdeadbeef || !(s.flags & IBV_WC_WITH_IMM))
		return fail("immediate %x, flags %x", s.imm, s.flags);
	return 0;
}

static int send_gather(struct peer *p)
{
	static const uint32_t lens[] = { 1, 1000, 3, 24, 2000, 7, 1, 64 };
	uint32_t all = 0;
	struct seen s;

	for (int i = 0; i < 8; i++)
		all += lens[i];
	fill(p->buf + REGION, all, 4);
	TRY(ask(p, NULL, 0, "recv %x", all));
	TRY(post_pieces(p, IBV_WR_SEND, lens, 8, 0, 0, 0, S));
	TRY(done(p, IBV_WC_SUCCESS));
	return server_received(p, 4, IBV_WC_RECV, all, &s);
}

static int send_inline(struct peer *p)
{
	struct seen s;

	fill(p->buf + REGION, 64, 5);
	TRY(ask(p, NULL, 0, "recv %x", 64));
	TRY(post(p, IBV_WR_SEND, 64, 0, 0, S | IBV_SEND_INLINE));
	fill(p->buf + REGION, 64, 77); /* inline data was taken when it was posted */
	TRY(done(p, IBV_WC_SUCCESS));
	return server_received(p, 5, IBV_WC_RECV, 64, &s);
}

static int write_sizes(struct peer *p)
{
	for EACH(n) {
		uint32_t n = sizes[n_i];

		fill(p->buf + REGION, n, n + 1);
		TRY(post(p, IBV_WR_RDMA_WRITE, n, p->you.addr + 16, 0, S));
		TRY(done(p, IBV_WC_SUCCESS));
		if (p->wants.type == IBV_QPT_UC) { /* sent is not arrived: a SEND behind it is proof */
			struct seen s;

			TRY(ask(p, NULL, 0, "recv 0"));
			TRY(post(p, IBV_WR_SEND, 0, 0, 0, S));
			TRY(done(p, IBV_WC_SUCCESS));
			TRY(server_received(p, 0, IBV_WC_RECV, 0, &s));
		}
		TRY(ask(p, NULL, 0, "check 10 %x %x", n, n + 1));
	}
	return 0;
}

static int write_imm(struct peer *p)
{
	static const uint32_t lens[] = { 0, 9, 10000 };
	struct seen s;

	for (int i = 0; i < 3; i++) {
		fill(p->buf + REGION, lens[i], 6);
		TRY(ask(p, NULL, 0, "recv 0"));
		TRY(post(p, IBV_WR_RDMA_WRITE_WITH_IMM, lens[i], p->you.addr, 0x01020304, S));
		TRY(done(p, IBV_WC_SUCCESS));
		TRY(server_received(p, 0, IBV_WC_RECV_RDMA_WITH_IMM, lens[i], &s));
		if (s.imm != 0x01020304 || !(s.flags & IBV_WC_WITH_IMM))
			return fail("immediate %x, flags %x", s.imm, s.flags);
		TRY(ask(p, NULL, 0, "check 0 %x 6", lens[i]));
	}
	return 0;
}

/* ---- RC only */

static int read_sizes(struct peer *p)
{
	for EACH(n) {
		uint32_t n = sizes[n_i];
		int64_t diff;

		TRY(ask(p, NULL, 0, "fill 10 %x %x", n, n + 2));
		memset(p->buf + REGION, 0, n);
		TRY(post(p, IBV_WR_RDMA_READ, n, p->you.addr + 16, 0, S));
		TRY(done(p, IBV_WC_SUCCESS));
		diff = compare(p->buf + REGION, n, n + 2);
		if (diff >= 0)
			return fail("wrong byte at %" PRIx64 " of %x", (uint64_t)diff, n);
	}
	return 0;
}

/* More READs than the responder serves at a time, and a fenced SEND behind them. */
static int read_many(struct peer *p)
{
	enum { N = 40, LEN = 3000 };
	struct seen s;

	TRY(ask(p, NULL, 0, "fill 0 %x 7", N * LEN));
	TRY(ask(p, NULL, 0, "recv 8"));
	memset(p->buf + REGION, 0, N * LEN);
	for (uint32_t i = 0; i < N; i++) {
		struct ibv_sge sge = { at(p, REGION + i * LEN), LEN, p->mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
					  .send_flags = S, .wr_id = i }, *bad;

		wr.wr.rdma.remote_addr = p->you.addr + i * LEN;
		wr.wr.rdma.rkey = p->you.rkey;
		TRY(ibv_post_send(p->qp, &wr, &bad));
	}
	TRY(post(p, IBV_WR_SEND, 8, 0, 0, S | IBV_SEND_FENCE));
	for (int i = 0; i <= N; i++)
		TRY(done(p, IBV_WC_SUCCESS));
	if (compare(p->buf + REGION, N * LEN, 7) >= 0)
		return fail("wrong bytes");
	return server_received(p, 7, IBV_WC_RECV, 8, &s);
}

static int original(struct peer *p, uint64_t want)
{
	uint64_t v;

	TRY(done(p, IBV_WC_SUCCESS));
	memcpy(&v, p->buf + REGION, 8);
	if (v != want)
		return fail("the atomic returned %" PRIx64 ", not %" PRIx64, v, want);
	return 0;
}

static int fetch_add(struct peer *p)
{
	uint64_t v = 0xfffffffffffffff0;

	TRY(ask(p, NULL, 0, "poke 40 %" PRIx64, v));
	for (int i = 0; i < 50; i++, v += 0x0102030405060708) {
		TRY(post_atomic(p, IBV_WR_ATOMIC_FETCH_AND_ADD, p->you.addr + 0x40, 0x0102030405060708, 0));
		TRY(original(p, v));
	}
	return server_value(p, 0x40, v);
}

static int cmp_swap(struct peer *p)
{
	TRY(ask(p, NULL, 0, "poke 48 1122334455667788"));
	TRY(post_atomic(p, IBV_WR_ATOMIC_CMP_AND_SWP, p->you.addr + 0x48, 1, 2)); /* a miss */
	TRY(original(p, 0x1122334455667788));
	TRY(post_atomic(p, IBV_WR_ATOMIC_CMP_AND_SWP, p->you.addr + 0x48, 0x1122334455667788, 2));
	TRY(original(p, 0x1122334455667788));
	TRY(post_atomic(p, IBV_WR_ATOMIC_CMP_AND_SWP, p->you.addr + 0x48, 2, 3));
	TRY(original(p, 2));
	return server_value(p, 0x48, 3);
}

/* Many requests of all kinds in flight at once. */
static int mixed(struct peer *p)
{
	enum { N = 60 };
	struct seen s;
	uint32_t len = 1500;

	fill(p->buf + REGION, 4 * len, 8);
	for (int i = 0; i < N; i++)
		TRY(ask(p, NULL, 0, "recv %x", len));
	TRY(ask(p, NULL, 0, "poke 8 0"));
	for (uint32_t i = 0; i < N; i++) {
		TRY(post(p, IBV_WR_SEND, len, 0, 0, 0));
		TRY(post(p, IBV_WR_RDMA_WRITE, 4 * len, p->you.addr + 0x1000, 0, 0));
		TRY(post_atomic(p, IBV_WR_ATOMIC_FETCH_AND_ADD, p->you.addr + 8, 1, 0));
		TRY(done(p, IBV_WC_SUCCESS));
		fill(p->buf + REGION, 8, 8); /* where the atomic's result went */
	}
	for (int i = 0; i < N; i++)
		TRY(server_received(p, 8, IBV_WC_RECV, len, &s));
	TRY(ask(p, NULL, 0, "check 1000 %x 8", 4 * len));
	return server_value(p, 8, N);
}

/* Invalidation of a key of the server by a SEND. */
static int send_inv(struct peer *p)
{
	char text[64];
	uint64_t addr;
	uint32_t len = 100, rkey;
	struct seen s;

	TRY(ask(p, text, sizeof text, "bind 1000"));
	if (sscanf(text, "%x %" SCNx64, &rkey, &addr) != 2)
		return fail("bad answer:%s", text);
	fill(p->buf + REGION, len, 9);
	TRY(post_pieces(p, IBV_WR_RDMA_WRITE, &len, 1, addr, rkey, 0, S));
	TRY(done(p, IBV_WC_SUCCESS));
	TRY(ask(p, NULL, 0, "recv %x", len));
	TRY(post(p, IBV_WR_SEND_WITH_INV, len, 0, rkey, S));
	TRY(done(p, IBV_WC_SUCCESS));
	TRY(server_received(p, 9, IBV_WC_RECV, len, &s));
	if (!(s.flags & IBV_WC_WITH_INV) || s.imm != rkey)
		return fail("invalidated %x, flags %x", s.imm, s.flags);
	TRY(post_pieces(p, IBV_WR_RDMA_WRITE, &len, 1, addr, rkey, 0, S));
	return done(p, IBV_WC_REM_ACCESS_ERR);
}

/* ---- objects of the server */

/* Receives are taken from a shared queue, which raises an event when it falls below its limit. */
static int srq(struct peer *p)
{
	struct seen s;
	char text[64];

	for (int i = 0; i < 4; i++)
		TRY(ask(p, NULL, 0, "recv 40"));
	TRY(ask(p, NULL, 0, "limit 3"));
	fill(p->buf + REGION, 50, 14);
	for (int i = 0; i < 2; i++) {
		TRY(post(p, IBV_WR_SEND, 50, 0, 0, S));
		TRY(done(p, IBV_WC_SUCCESS));
		TRY(server_received(p, 14, IBV_WC_RECV, 50, &s));
	}
	TRY(ask(p, text, sizeof text, "event"));
	if (strtoul(text, NULL, 16) != IBV_EVENT_SRQ_LIMIT_REACHED)
		return fail("event%s", text);
	return 0;
}

/* The server's program computes; its memory can be read and written meanwhile. */
static int background(struct peer *p)
{
	time_t start = time(NULL);

	TRY(ask(p, NULL, 0, "fill 0 2710 f"));
	TRY(ask(p, NULL, 0, "compute 1770")); /* six seconds */
	for (int i = 0; i < 20; i++) {
		TRY(post(p, IBV_WR_RDMA_READ, 10000, p->you.addr, 0, S));
		TRY(done(p, IBV_WC_SUCCESS));
		TRY(post(p, IBV_WR_RDMA_WRITE, 10000, p->you.addr + 0x4000, 0, S));
		TRY(done(p, IBV_WC_SUCCESS));
	}
	if (time(NULL) - start > 4)
		return fail("the request waited for the server's program");
	return ask(p, NULL, 0, "check 4000 2710 f") ? fail("wrong bytes") : 0;
}

static int deregistered(struct peer *p)
{
	TRY(post(p, IBV_WR_RDMA_WRITE, 100, p->you.addr, 0, S));
	TRY(done(p, IBV_WC_SUCCESS));
	TRY(ask(p, NULL, 0, "drop"));
	TRY(post(p, IBV_WR_RDMA_WRITE, 100, p->you.addr, 0, S));
	return refused(p, IBV_WC_REM_ACCESS_ERR);
}

/* ---- refused requests */

static int write_bad_key(struct peer *p)
{
	p->you.rkey ^= 0x5500;
	TRY(post(p, IBV_WR_RDMA_WRITE, 100, p->you.addr, 0, S));
	return refused(p, IBV_WC_REM_ACCESS_ERR);
}

static int read_out_of_range(struct peer *p)
{
	TRY(post(p, IBV_WR_RDMA_READ, 100, p->you.addr + REGION + LOCAL - 99, 0, S));
	return refused(p, IBV_WC_REM_ACCESS_ERR);
}

static int write_no_right(struct peer *p)
{
	TRY(post(p, IBV_WR_RDMA_WRITE, 100, p->you.addr, 0, S));
	return refused(p, IBV_WC_REM_ACCESS_ERR);
}

static int atomic_unaligned(struct peer *p)
{
	if (post_atomic(p, IBV_WR_ATOMIC_FETCH_AND_ADD, p->you.addr + 4, 1, 0))
		return *why = 0; /* rxe refuses to post it */
	return refused(p, IBV_WC_REM_INV_REQ_ERR);
}

static int send_too_long(struct peer *p)
{
	TRY(ask(p, NULL, 0, "recv 10"));
	TRY(post(p, IBV_WR_SEND, 17, 0, 0, S));
	/* the specification requires an invalid request error here (IBTA 9.9.3), rxe returns an operational error */
	return refused_as(p, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR);
}

/* The error flushes the requests posted behind it. */
static int flush(struct peer *p)
{
	TRY(peer_recv(p, 16));
	p->you.rkey ^= 0x5500;
	TRY(post(p, IBV_WR_RDMA_WRITE, 4, p->you.addr, 0, S));
	TRY(post(p, IBV_WR_SEND, 4, 0, 0, S));
	TRY(refused(p, IBV_WC_REM_ACCESS_ERR));
	TRY(done(p, IBV_WC_WR_FLUSH_ERR));
	return done(p, IBV_WC_WR_FLUSH_ERR);
}

static int rnr_then_ready(struct peer *p)
{
	struct seen s;

	fill(p->buf + REGION, 2000, 10);
	TRY(post(p, IBV_WR_SEND, 2000, 0, 0, S));
	usleep(20000); /* time to be refused some thirty times */
	TRY(ask(p, NULL, 0, "recv %x", 2000));
	TRY(done(p, IBV_WC_SUCCESS));
	return server_received(p, 10, IBV_WC_RECV, 2000, &s);
}

static int rnr_exceeded(struct peer *p)
{
	TRY(post(p, IBV_WR_SEND, 8, 0, 0, S));
	return done(p, IBV_WC_RNR_RETRY_EXC_ERR);
}

static int nobody_answers(struct peer *p)
{
	fclose(p->out); /* ends the session: the server's queue pair goes */
	fclose(p->in);
	p->in = p->out = NULL;
	usleep(300000);
	TRY(post(p, IBV_WR_SEND, 8, 0, 0, S));
	return done(p, IBV_WC_RETRY_EXC_ERR);
}

/* ---- UD */

static int ud_send(struct peer *p)
{
	static const uint32_t lens[] = { 0, 1, 2, 3, 200, 1024 };
	struct seen s;

	for (int i = 0; i < 6; i++) {
		fill(p->buf + REGION, lens[i], 11);
		TRY(ask(p, NULL, 0, "recv %x", GRH + lens[i]));
		TRY(post(p, IBV_WR_SEND, lens[i], QKEY, 0, S));
		TRY(done(p, IBV_WC_SUCCESS));
		TRY(server_received(p, 11, IBV_WC_RECV, GRH + lens[i], &s));
		if (s.src_qp != p->me.qpn || !(s.flags & IBV_WC_GRH))
			return fail("source QPN %x, flags %x", s.src_qp, s.flags);
	}
	return 0;
}

static int ud_send_imm(struct peer *p)
{
	struct seen s;

	fill(p->buf + REGION, 100, 12);
	TRY(ask(p, NULL, 0, "recv %x", GRH + 100));
	TRY(post(p, IBV_WR_SEND_WITH_IMM, 100, QKEY, 0xcafe1234, S));
	TRY(done(p, IBV_WC_SUCCESS));
	TRY(server_received(p, 12, IBV_WC_RECV, GRH + 100, &s));
	if (s.imm != 0xcafe1234 || !(s.flags & IBV_WC_WITH_IMM))
		return fail("immediate %x, flags %x", s.imm, s.flags);
	return 0;
}

/* A wrong Q_Key is dropped; the datagram behind it arrives. */
static int ud_wrong_qkey(struct peer *p)
{
	struct seen s;

	TRY(ask(p, NULL, 0, "recv %x", GRH + 100));
	fill(p->buf + REGION, 200, 13);
	TRY(post(p, IBV_WR_SEND, 50, QKEY + 1, 0, S));
	TRY(done(p, IBV_WC_SUCCESS));
	TRY(post(p, IBV_WR_SEND, 60, QKEY, 0, S));
	TRY(done(p, IBV_WC_SUCCESS));
	return server_received(p, 13, IBV_WC_RECV, GRH + 60, &s);
}

/* ---- the table */

/* A number of retries that can be exhausted, for tests whose answer may be lost: 7 means for ever in rxe. */
enum { FEW = 6 };

static const struct test {
	const char *name;
	enum ibv_qp_type type;
	int (*run)(struct peer *);
	unsigned rights, rnr_retry, retry_cnt; /* 0: all rights, 7, 7 */
} tests[] = {
	{ "rc/send", IBV_QPT_RC, send_sizes, 0, 0, 0 },
	{ "rc/send_imm", IBV_QPT_RC, send_imm, 0, 0, 0 },
	{ "rc/send_gather", IBV_QPT_RC, send_gather, 0, 0, 0 },
	{ "rc/send_inline", IBV_QPT_RC, send_inline, 0, 0, 0 },
	{ "rc/send_inv", IBV_QPT_RC, send_inv, ALL_RIGHTS | IBV_ACCESS_MW_BIND, 0, 0 },
	{ "rc/write", IBV_QPT_RC, write_sizes, 0, 0, 0 },
	{ "rc/write_imm", IBV_QPT_RC, write_imm, 0, 0, 0 },
	{ "rc/read", IBV_QPT_RC, read_sizes, 0, 0, 0 },
	{ "rc/read_many", IBV_QPT_RC, read_many, 0, 0, 0 },
	{ "rc/fetch_add", IBV_QPT_RC, fetch_add, 0, 0, 0 },
	{ "rc/cmp_swap", IBV_QPT_RC, cmp_swap, 0, 0, 0 },
	{ "rc/mixed", IBV_QPT_RC, mixed, 0, 0, 0 },
	{ "rc/write_bad_key", IBV_QPT_RC, write_bad_key, 0, 0, FEW },
	{ "rc/read_out_of_range", IBV_QPT_RC, read_out_of_range, 0, 0, FEW },
	{ "rc/write_no_right", IBV_QPT_RC, write_no_right, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, 0, FEW },
	{ "rc/atomic_unaligned", IBV_QPT_RC, atomic_unaligned, 0, 0, FEW },
	{ "rc/send_too_long", IBV_QPT_RC, send_too_long, 0, 0, FEW },
	{ "rc/flush", IBV_QPT_RC, flush, 0, 0, FEW },
	{ "rc/rnr_then_ready", IBV_QPT_RC, rnr_then_ready, 0, 0, 0 },
	{ "rc/rnr_exceeded", IBV_QPT_RC, rnr_exceeded, 0, 2, 0 },
	{ "rc/nobody_answers", IBV_QPT_RC, nobody_answers, 0, 0, 2 },
	{ "rc/srq", IBV_QPT_RC, srq, 0, 0, 0 },
	{ "rc/background", IBV_QPT_RC, background, 0, 0, 0 },
	{ "rc/deregistered", IBV_QPT_RC, deregistered, 0, 0, 0 },
	{ "uc/send", IBV_QPT_UC, send_sizes, 0, 0, 0 },
	{ "uc/send_imm", IBV_QPT_UC, send_imm, 0, 0, 0 },
	{ "uc/send_gather", IBV_QPT_UC, send_gather, 0, 0, 0 },
	{ "uc/send_inline", IBV_QPT_UC, send_inline, 0, 0, 0 },
	{ "uc/write", IBV_QPT_UC, write_sizes, 0, 0, 0 },
	{ "uc/write_imm", IBV_QPT_UC, write_imm, 0, 0, 0 },
	{ "ud/send", IBV_QPT_UD, ud_send, 0, 0, 0 },
	{ "ud/send_imm", IBV_QPT_UD, ud_send_imm, 0, 0, 0 },
	{ "ud/wrong_qkey", IBV_QPT_UD, ud_wrong_qkey, 0, 0, 0 },
};

static int run_test(const struct test *t, const char *addr, const char *port)
{
	struct peer p = { .wants = { t->type, t->rights ? t->rights : ALL_RIGHTS,
				     t->rnr_retry ? t->rnr_retry : 7, t->retry_cnt ? t->retry_cnt : 7, t->run == srq } };
	union ibv_gid local;
	int rc;

	*why = 0;
	if (control_open(&p, addr, port, &local))
		rc = fail("cannot reach the server");
	else if (session_open(&p, &local))
		rc = fail("cannot open the session");
	else
		rc = t->run(&p);
	if (rc)
		printf("FAILED %s: %s\n", t->name, why);
	else
		printf("ok %s\n", t->name);
	fflush(stdout);
	peer_destroy(&p);
	return rc;
}

static bool wanted(const char *name, char **names)
{
	if (!*names)
		return true;
	for (; *names; names++)
		if (!strncmp(name, *names, strlen(*names)))
			return true;
	return false;
}

int run_tests(const char *addr, const char *port, char **names)
{
	int failed = 0;

	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
		if (wanted(tests[i].name, names))
			failed += run_test(&tests[i], addr, port) != 0;
	return failed != 0;
}
