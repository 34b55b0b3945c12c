/* Devices and their objects from many threads. */
#include "fixture.h"

#include <pthread.h>
#include <string.h>

enum { THREADS = 8 };

static void in_threads(void *(*run)(void *), void *argument)
{
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		EQUAL(pthread_create(&threads[i], NULL, run, argument), 0);
	for (int i = 0; i < THREADS; i++)
		EQUAL(pthread_join(threads[i], NULL), 0);
}

static void *open_and_close(void *unused)
{
	(void)unused;
	for (int i = 0; i < 10; i++) {
		struct fixture f;

		open_fixture(&f);
		close_fixture(&f);
	}
	return NULL;
}

static void devices_come_and_go(void)
{
	in_threads(open_and_close, NULL);
}

static void *own_connection(void *unused)
{
	struct fixture f;
	struct ibv_qp *pair[2];

	(void)unused;
	open_fixture(&f);
	connected_pair(&f, pair);
	for (int i = 0; i < 50; i++)
		exchange(&f, pair);
	for (int i = 0; i < 2; i++)
		EQUAL(ibv_destroy_qp(pair[i]), 0);
	close_fixture(&f);
	return NULL;
}

static void a_device_each(void)
{
	in_threads(own_connection, NULL);
}

/* On the shared device: its own completion queue, memory and queue pairs. */
static void *own_objects(void *argument)
{
	struct fixture *shared = argument, f = *shared;
	struct ibv_qp *pair[2];
	uint8_t memory[BUFFER];

	memset(memory, 0, sizeof(memory));
	f.memory = memory;
	CHECK((f.cq = ibv_create_cq(f.device, 16, NULL, NULL, 0)) != NULL);
	CHECK((f.mr = ibv_reg_mr(f.pd, memory, sizeof(memory), ALL_RIGHTS)) != NULL);
	for (int round = 0; round < 5; round++) {
		connected_pair(&f, pair);
		for (int i = 0; i < 10; i++)
			exchange(&f, pair);
		for (int i = 0; i < 2; i++)
			EQUAL(ibv_destroy_qp(pair[i]), 0);
	}
	EQUAL(ibv_dereg_mr(f.mr), 0);
	EQUAL(ibv_destroy_cq(f.cq), 0);
	return NULL;
}

static void one_device_for_all(void)
{
	struct fixture f;

	open_fixture(&f);
	in_threads(own_objects, &f);
	close_fixture(&f);
}

struct shared {
	struct fixture f;
	struct ibv_qp *pair[2];
	int completed;
};

/* Posts on one queue pair and polls one queue that all the others use too. */
static void *post_and_poll(void *argument)
{
	struct shared *s = argument;
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int result;

	for (int i = 0; i < 200; i++) {
		/* It may be full of the others' requests. */
		while ((result = ibv_post_send(s->pair[0],
					       request(IBV_WR_RDMA_WRITE, s->f.memory, 64, s->f.mr,
						       s->f.memory + BUFFER / 2, s->f.mr->rkey),
					       &bad)) == ENOMEM) {
			if (ibv_poll_cq(s->f.cq, 1, &wc) == 1) {
				EQUAL(wc.status, IBV_WC_SUCCESS);
				__atomic_add_fetch(&s->completed, 1, __ATOMIC_RELAXED);
			}
		}
		EQUAL(result, 0);
	}
	return NULL;
}

static void one_queue_pair_for_all(void)
{
	struct shared s = { .completed = 0 };

	open_fixture(&s.f);
	connected_pair(&s.f, s.pair);
	in_threads(post_and_poll, &s);
	for (; s.completed < THREADS * 200; s.completed++)
		EQUAL(completion(s.f.cq).status, IBV_WC_SUCCESS);
}

static const struct test tests[] = {
	TEST(devices_come_and_go),
	TEST(a_device_each),
	TEST(one_device_for_all),
	TEST(one_queue_pair_for_all),
};

CHECK_MAIN(tests)
