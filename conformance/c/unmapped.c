/* Memory that a program unmaps while it is registered. Operations on it fail; the program does not crash. */
#define _GNU_SOURCE
#include "fixture.h"

#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LENGTH = 16 << 10 };

static void *map(void)
{
	void *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	memset(memory, 1, LENGTH);
	return memory;
}

/* Whether the other device belongs to another host, which is reached by UDP. */
static bool by_udp;

/* A device, another one to which it is connected, and a region of the first one of which all memory, or the second half,
 * is unmapped. */
struct gone {
	struct fixture f, other;
	struct ibv_qp *qp, *peer;
	uint8_t *memory;
	struct ibv_mr *mr;
};

static void connect_both(struct gone *g)
{
	union ibv_gid own = g->f.gid;

	g->qp = create_qp(&g->f, IBV_QPT_RC);
	g->peer = create_qp(&g->other, IBV_QPT_RC);
	/* Fixtures connect to their own address, so each gets the other's meanwhile. */
	g->f.gid = g->other.gid;
	to_rts(&g->f, g->qp, g->peer->qp_num);
	g->f.gid = own;
	own = g->other.gid;
	g->other.gid = g->f.gid;
	to_rts(&g->other, g->peer, g->qp->qp_num);
	g->other.gid = own;
}

static void make_with(struct gone *g, void *memory)
{
	const char *other = getenv("RDMUX_OTHER_HOST");

	open_fixture(&g->f);
	if (by_udp) {
		CHECK(other != NULL);
		EQUAL(setenv("RDMUX_HOST", other, 1), 0);
	}
	open_fixture(&g->other);
	EQUAL(by_udp, memcmp(&g->f.gid, &g->other.gid, sizeof(g->f.gid)) != 0);
	connect_both(g);
	g->memory = memory;
	CHECK((g->mr = ibv_reg_mr(g->f.pd, memory, LENGTH, ALL_RIGHTS)) != NULL);
}

static void make(struct gone *g, size_t from)
{
	make_with(g, map());
	EQUAL(munmap(g->memory + from, LENGTH - from), 0);
}

/* Both devices still work, with memory registered before and after. */
static void still_works(struct gone *g)
{
	struct ibv_qp *pair[2];

	EQUAL(ibv_dereg_mr(g->mr), 0);
	EQUAL(ibv_destroy_qp(g->qp), 0);
	EQUAL(ibv_destroy_qp(g->peer), 0);
	connect_both(g);
	EQUAL(write_bytes(&g->f, g->qp, g->f.memory, g->f.mr, g->other.memory, g->other.mr->rkey,
			  BUFFER),
	      IBV_WC_SUCCESS);
	connected_pair(&g->f, pair);
	exchange(&g->f, pair);
	connected_pair(&g->other, pair);
	exchange(&g->other, pair);
}

static bool is_local_error(enum ibv_wc_status status)
{
	return status == IBV_WC_LOC_PROT_ERR || status == IBV_WC_LOC_ACCESS_ERR ||
	       status == IBV_WC_LOC_QP_OP_ERR;
}

static void sent_from(void)
{
	struct gone g;

	make(&g, 0);
	EQUAL(write_bytes(&g.f, g.qp, g.memory, g.mr, g.other.memory, g.other.mr->rkey, 64),
	      IBV_WC_LOC_PROT_ERR);
	still_works(&g);
}

static void sent_from_in_part(void)
{
	struct gone g;

	make(&g, LENGTH / 2);
	EQUAL(write_bytes(&g.f, g.qp, g.memory, g.mr, g.other.memory, g.other.mr->rkey, LENGTH),
	      IBV_WC_LOC_PROT_ERR);
	still_works(&g);
}

/* Inline data are copied while they are posted, so posting fails instead of the request. */
static void inlined_from(void)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_send_sge = 1, .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_send_wr *wr, *bad = NULL;
	struct ibv_qp_ex *ex;
	struct ibv_qp *qp;
	struct gone g;

	make(&g, 0);
	attr.pd = g.f.pd;
	attr.send_cq = attr.recv_cq = g.f.cq;
	CHECK((qp = ibv_create_qp_ex(g.f.device, &attr)) != NULL);
	to_rts(&g.f, qp, g.peer->qp_num);
	wr = request(IBV_WR_SEND, g.memory, 64, g.mr, NULL, 0);
	wr->send_flags |= IBV_SEND_INLINE;
	RETURNS(ibv_post_send(qp, wr, &bad), EFAULT);
	CHECK(bad == wr);
	ex = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, g.memory, 64);
	RETURNS(ibv_wr_complete(ex), EFAULT);
	EQUAL(ibv_destroy_qp(qp), 0);
	still_works(&g);
}

static void read_into(void)
{
	struct gone g;

	make(&g, 0);
	post(g.qp, request(IBV_WR_RDMA_READ, g.memory, 64, g.mr, g.other.memory, g.other.mr->rkey));
	CHECK(is_local_error(completion(g.f.cq).status));
	still_works(&g);
}

static void written_by_the_peer(void)
{
	struct gone g;

	make(&g, 0);
	EQUAL(write_bytes(&g.other, g.peer, g.other.memory, g.other.mr, g.memory, g.mr->rkey, 64),
	      IBV_WC_REM_ACCESS_ERR);
	still_works(&g);
}

static void written_by_the_peer_in_part(void)
{
	struct gone g;

	make(&g, LENGTH / 2);
	EQUAL(write_bytes(&g.other, g.peer, g.other.memory, g.other.mr, g.memory, g.mr->rkey,
			  LENGTH),
	      IBV_WC_REM_ACCESS_ERR);
	still_works(&g);
}

static void read_by_the_peer(void)
{
	struct gone g;

	make(&g, 0);
	post(g.peer, request(IBV_WR_RDMA_READ, g.other.memory, 64, g.other.mr, g.memory, g.mr->rkey));
	EQUAL(completion(g.other.cq).status, IBV_WC_REM_ACCESS_ERR);
	still_works(&g);
}

static void read_by_the_peer_in_part(void)
{
	struct gone g;

	make(&g, LENGTH / 2);
	post(g.peer,
	     request(IBV_WR_RDMA_READ, g.other.memory, LENGTH, g.other.mr, g.memory, g.mr->rkey));
	EQUAL(completion(g.other.cq).status, IBV_WC_REM_ACCESS_ERR);
	still_works(&g);
}

static void swapped_by_the_peer(void)
{
	struct ibv_send_wr *wr;
	struct gone g;

	make(&g, 0);
	wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, g.other.memory, 8, g.other.mr, NULL, 0);
	wr->wr.atomic.remote_addr = (uintptr_t)g.memory;
	wr->wr.atomic.rkey = g.mr->rkey;
	wr->wr.atomic.compare_add = 1;
	post(g.peer, wr);
	EQUAL(completion(g.other.cq).status, IBV_WC_REM_ACCESS_ERR);
	still_works(&g);
}

static void received_into(void)
{
	struct gone g;

	make(&g, 0);
	post_receive(g.qp, g.memory, 64, g.mr);
	post(g.peer, request(IBV_WR_SEND, g.other.memory, 64, g.other.mr, NULL, 0));
	CHECK(is_local_error(completion(g.f.cq).status));
	CHECK(completion(g.other.cq).status != IBV_WC_SUCCESS);
	still_works(&g);
}

/* Still mapped, but without access: the same as unmapped. */
static void protected_instead(void)
{
	struct gone g;

	make_with(&g, map());
	EQUAL(mprotect(g.memory, LENGTH, PROT_READ), 0);
	EQUAL(write_bytes(&g.other, g.peer, g.other.memory, g.other.mr, g.memory, g.mr->rkey, 64),
	      IBV_WC_REM_ACCESS_ERR);
	still_works(&g);
}

/* A file that shrinks under its mapping: SIGBUS, not SIGSEGV. */
static void truncated_file(void)
{
	struct gone g;
	void *memory;
	int file;

	CHECK((file = memfd_create("gone", 0)) >= 0);
	EQUAL(ftruncate(file, LENGTH), 0);
	memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(memory != MAP_FAILED);
	make_with(&g, memory);
	EQUAL(ftruncate(file, 0), 0);
	EQUAL(write_bytes(&g.other, g.peer, g.other.memory, g.other.mr, g.memory, g.mr->rkey, 64),
	      IBV_WC_REM_ACCESS_ERR);
	still_works(&g);
}

static sigjmp_buf escape;
static volatile sig_atomic_t caught;

static void own_handler(int signal)
{
	caught = signal;
	siglongjmp(escape, 1);
}

/* The program's own fault reaches the program's own handler. */
static void own_fault(void)
{
	caught = 0;
	if (sigsetjmp(escape, 1) == 0)
		*(volatile int *)8 = 1;
	EQUAL(caught, SIGSEGV);
}

static void install(void)
{
	struct sigaction action = { .sa_handler = own_handler }, before;

	EQUAL(sigaction(SIGSEGV, &action, NULL), 0);
	/* Nor does the program see the library's. */
	EQUAL(sigaction(SIGSEGV, NULL, &before), 0);
	CHECK(before.sa_handler == own_handler);
}

/* A peer's access to unmapped memory, which must not affect the program otherwise. */
static void gone_unnoticed(struct gone *g)
{
	caught = 0;
	EQUAL(write_bytes(&g->other, g->peer, g->other.memory, g->other.mr, g->memory, g->mr->rkey,
			  64),
	      IBV_WC_REM_ACCESS_ERR);
	EQUAL(caught, 0);
}

static void handler_from_before(void)
{
	struct gone g;

	install();
	make(&g, 0);
	own_fault();
	gone_unnoticed(&g);
	own_fault();
	still_works(&g);
}

/* Installed later, it would replace the library's handler. */
static void handler_from_later(void)
{
	struct gone g;

	make(&g, 0);
	install();
	own_fault();
	gone_unnoticed(&g);
	own_fault();
	still_works(&g);
}

/* A handler of another component, with which the program starts and to which it returns. */
static void handlers_in_turn(void)
{
	struct gone g;

	make(&g, 0);
	CHECK(signal(SIGSEGV, own_handler) == SIG_DFL);
	own_fault();
	CHECK(signal(SIGSEGV, SIG_IGN) == own_handler);
	gone_unnoticed(&g);
	CHECK(signal(SIGSEGV, SIG_DFL) == SIG_IGN);
	CHECK(signal(SIGUSR1, own_handler) == SIG_DFL);
	CHECK(signal(SIGUSR1, SIG_DFL) == own_handler);
	install();
	own_fault();
	still_works(&g);
}

/* More handlers than the library can store. */
static void many_handlers(void)
{
	struct sigaction action = { .sa_handler = own_handler };
	struct gone g;

	make(&g, 0);
	for (int i = 1; i < 31; i++) {
		sigaddset(&action.sa_mask, i);
		EQUAL(sigaction(SIGSEGV, &action, NULL), 0);
		own_fault();
	}
	gone_unnoticed(&g);
	still_works(&g);
}

/* The program's own crash is the same as without the library. */
static void own_crash(void)
{
	int status, child = check_fork();

	if (child == 0) {
		struct gone g;

		make(&g, 0);
		gone_unnoticed(&g);
		*(volatile int *)8 = 1;
		_exit(1);
	}
	EQUAL(waitpid(child, &status, 0), child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

/* The same tests between hosts. */
#define BY_UDP(name)                   \
	static void name##_by_udp(void) \
	{                              \
		by_udp = true;         \
		name();                \
	}

BY_UDP(sent_from)
BY_UDP(sent_from_in_part)
BY_UDP(inlined_from)
BY_UDP(read_into)
BY_UDP(written_by_the_peer)
BY_UDP(written_by_the_peer_in_part)
BY_UDP(read_by_the_peer)
BY_UDP(read_by_the_peer_in_part)
BY_UDP(swapped_by_the_peer)
BY_UDP(received_into)
BY_UDP(protected_instead)
BY_UDP(truncated_file)

#define BOTH_WAYS(name) TEST(name), TEST(name##_by_udp)

static const struct test tests[] = {
	BOTH_WAYS(sent_from),
	BOTH_WAYS(sent_from_in_part),
	BOTH_WAYS(inlined_from),
	BOTH_WAYS(read_into),
	BOTH_WAYS(written_by_the_peer),
	BOTH_WAYS(written_by_the_peer_in_part),
	BOTH_WAYS(read_by_the_peer),
	BOTH_WAYS(read_by_the_peer_in_part),
	BOTH_WAYS(swapped_by_the_peer),
	BOTH_WAYS(received_into),
	BOTH_WAYS(protected_instead),
	BOTH_WAYS(truncated_file),
	TEST(handler_from_before),
	TEST(handler_from_later),
	TEST(handlers_in_turn),
	TEST(many_handlers),
	TEST(own_crash),
};

CHECK_MAIN(tests)
