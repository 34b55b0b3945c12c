/* Memory that a program unmaps while it is registered. What touches it fails; the program does not crash. */
#define _GNU_SOURCE
#include "fixture.h"

#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LENGTH = 16 << 10 };

static void *map(void)
{
	void *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	memset(memory, 1, LENGTH);
	return memory;
}

/* Two connected queue pairs and a region whose memory is gone, or the second half of it. */
struct gone {
	struct fixture f;
	struct ibv_qp *pair[2];
	uint8_t *memory;
	struct ibv_mr *mr;
};

static void make(struct gone *g, size_t from)
{
	open_fixture(&g->f);
	connected_pair(&g->f, g->pair);
	g->memory = map();
	CHECK((g->mr = ibv_reg_mr(g->f.pd, g->memory, LENGTH, ALL_RIGHTS)) != NULL);
	EQUAL(munmap(g->memory + from, LENGTH - from), 0);
}

/* The device as a whole goes on, with what is registered before and after. */
static void still_works(struct gone *g)
{
	EQUAL(ibv_dereg_mr(g->mr), 0);
	for (int i = 0; i < 2; i++)
		EQUAL(ibv_destroy_qp(g->pair[i]), 0);
	connected_pair(&g->f, g->pair);
	exchange(&g->f, g->pair);
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
	EQUAL(write_bytes(&g.f, g.pair[0], g.memory, g.mr, g.f.memory, g.f.mr->rkey, 64),
	      IBV_WC_LOC_PROT_ERR);
	still_works(&g);
}

static void sent_from_in_part(void)
{
	struct gone g;

	make(&g, LENGTH / 2);
	EQUAL(write_bytes(&g.f, g.pair[0], g.memory, g.mr, g.f.memory, g.f.mr->rkey, LENGTH),
	      IBV_WC_LOC_PROT_ERR);
	still_works(&g);
}

static void inlined_from(void)
{
	struct gone g;
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_send_sge = 1, .max_inline_data = 64 },
	};
	struct ibv_send_wr *wr, *bad;
	struct ibv_qp *qp;
	int result;

	make(&g, 0);
	attr.send_cq = attr.recv_cq = g.f.cq;
	CHECK((qp = ibv_create_qp(g.f.pd, &attr)) != NULL);
	to_rts(&g.f, qp, g.pair[1]->qp_num);
	wr = request(IBV_WR_RDMA_WRITE, g.memory, 64, g.mr, g.f.memory, g.f.mr->rkey);
	wr->send_flags |= IBV_SEND_INLINE;
	/* It is copied while it is posted, so posting may fail instead of the request. */
	result = ibv_post_send(qp, wr, &bad);
	if (result == 0)
		CHECK(is_local_error(completion(g.f.cq).status));
	EQUAL(ibv_destroy_qp(qp), 0);
	still_works(&g);
}

static void read_into(void)
{
	struct gone g;

	make(&g, 0);
	post(g.pair[0],
	     request(IBV_WR_RDMA_READ, g.memory, 64, g.mr, g.f.memory, g.f.mr->rkey));
	CHECK(is_local_error(completion(g.f.cq).status));
	still_works(&g);
}

static void written_by_the_peer(void)
{
	struct gone g;

	make(&g, 0);
	EQUAL(write_bytes(&g.f, g.pair[0], g.f.memory, g.f.mr, g.memory, g.mr->rkey, 64),
	      IBV_WC_REM_ACCESS_ERR);
	still_works(&g);
}

static void written_by_the_peer_in_part(void)
{
	struct gone g;

	make(&g, LENGTH / 2);
	EQUAL(write_bytes(&g.f, g.pair[0], g.f.memory, g.f.mr, g.memory, g.mr->rkey, LENGTH),
	      IBV_WC_REM_ACCESS_ERR);
	still_works(&g);
}

static void read_by_the_peer(void)
{
	struct gone g;

	make(&g, 0);
	post(g.pair[0], request(IBV_WR_RDMA_READ, g.f.memory, 64, g.f.mr, g.memory, g.mr->rkey));
	EQUAL(completion(g.f.cq).status, IBV_WC_REM_ACCESS_ERR);
	still_works(&g);
}

static void swapped_by_the_peer(void)
{
	struct ibv_send_wr *wr;
	struct gone g;

	make(&g, 0);
	wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, g.f.memory, 8, g.f.mr, NULL, 0);
	wr->wr.atomic.remote_addr = (uintptr_t)g.memory;
	wr->wr.atomic.rkey = g.mr->rkey;
	wr->wr.atomic.compare_add = 1;
	post(g.pair[0], wr);
	EQUAL(completion(g.f.cq).status, IBV_WC_REM_ACCESS_ERR);
	still_works(&g);
}

static void received_into(void)
{
	struct ibv_wc wc;
	bool sent = false, received = false;
	struct gone g;

	make(&g, 0);
	post_receive(g.pair[1], g.memory, 64, g.mr);
	post(g.pair[0], request(IBV_WR_SEND, g.f.memory, 64, g.f.mr, NULL, 0));
	while (!sent || !received) {
		wc = completion(g.f.cq);
		if (wc.qp_num == g.pair[0]->qp_num) {
			CHECK(wc.status != IBV_WC_SUCCESS);
			sent = true;
		} else {
			CHECK(is_local_error(wc.status));
			received = true;
		}
	}
	still_works(&g);
}

/* Still mapped, but not for this: as good as gone. */
static void protected_instead(void)
{
	struct gone g;

	open_fixture(&g.f);
	connected_pair(&g.f, g.pair);
	g.memory = map();
	CHECK((g.mr = ibv_reg_mr(g.f.pd, g.memory, LENGTH, ALL_RIGHTS)) != NULL);
	EQUAL(mprotect(g.memory, LENGTH, PROT_READ), 0);
	EQUAL(write_bytes(&g.f, g.pair[0], g.f.memory, g.f.mr, g.memory, g.mr->rkey, 64),
	      IBV_WC_REM_ACCESS_ERR);
	still_works(&g);
}

/* A file that shrinks under its mapping: SIGBUS, not SIGSEGV. */
static void truncated_file(void)
{
	struct gone g;
	int file;

	open_fixture(&g.f);
	connected_pair(&g.f, g.pair);
	CHECK((file = memfd_create("gone", 0)) >= 0);
	EQUAL(ftruncate(file, LENGTH), 0);
	g.memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(g.memory != MAP_FAILED);
	CHECK((g.mr = ibv_reg_mr(g.f.pd, g.memory, LENGTH, ALL_RIGHTS)) != NULL);
	EQUAL(ftruncate(file, 0), 0);
	EQUAL(write_bytes(&g.f, g.pair[0], g.f.memory, g.f.mr, g.memory, g.mr->rkey, 64),
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

/* The program's own fault goes to the program's own handler. */
static void own_fault(void)
{
	caught = 0;
	if (sigsetjmp(escape, 1) == 0)
		*(volatile int *)8 = 1;
	EQUAL(caught, SIGSEGV);
}

static void install(void)
{
	struct sigaction action = { .sa_handler = own_handler };

	EQUAL(sigaction(SIGSEGV, &action, NULL), 0);
}

static void handler_from_before(void)
{
	struct gone g;

	install();
	make(&g, 0);
	own_fault();
	EQUAL(write_bytes(&g.f, g.pair[0], g.f.memory, g.f.mr, g.memory, g.mr->rkey, 64),
	      IBV_WC_REM_ACCESS_ERR);
	own_fault();
	still_works(&g);
}

/* It replaces ours, which must not make an access to what is gone fatal. */
static void handler_from_later(void)
{
	struct gone g;

	make(&g, 0);
	install();
	own_fault();
	caught = 0;
	EQUAL(write_bytes(&g.f, g.pair[0], g.f.memory, g.f.mr, g.memory, g.mr->rkey, 64),
	      IBV_WC_REM_ACCESS_ERR);
	/* Nor must the program see a fault that is not its own. */
	EQUAL(caught, 0);
	still_works(&g);
	own_fault();
}

static const struct test tests[] = {
	TEST(sent_from),
	TEST(sent_from_in_part),
	TEST(inlined_from),
	TEST(read_into),
	TEST(written_by_the_peer),
	TEST(written_by_the_peer_in_part),
	TEST(read_by_the_peer),
	TEST(swapped_by_the_peer),
	TEST(received_into),
	TEST(protected_instead),
	TEST(truncated_file),
	TEST(handler_from_before),
	TEST(handler_from_later),
};

CHECK_MAIN(tests)
