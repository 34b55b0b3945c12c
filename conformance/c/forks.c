/* A process that forks with a device open. Objects that the child inherits are dead in it; those that it creates work. */
#include "fixture.h"

#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Opens a device of the process's own and sends over it. */
static void opens_afresh(void)
{
	struct fixture f;
	struct ibv_qp *pair[2];

	open_fixture(&f);
	connected_pair(&f, pair);
	exchange(&f, pair);
	for (int i = 0; i < 2; i++)
		EQUAL(ibv_destroy_qp(pair[i]), 0);
	close_fixture(&f);
}

static void both_work(void)
{
	struct fixture f;
	struct ibv_qp *pair[2];
	int child;

	open_fixture(&f);
	connected_pair(&f, pair);
	exchange(&f, pair);
	if ((child = check_fork()) == 0) {
		opens_afresh();
		exit(0);
	}
	for (int i = 0; i < 100; i++)
		exchange(&f, pair);
	check_child(child);
	exchange(&f, pair);
	for (int i = 0; i < 2; i++)
		EQUAL(ibv_destroy_qp(pair[i]), 0);
	close_fixture(&f);
}

/* The child ends by exit, with handlers and destructors, and by _exit: the parent is not affected. */
static void a_child_that_ends_harms_nothing(void)
{
	struct fixture f;
	struct ibv_qp *pair[2];
	int child;

	open_fixture(&f);
	connected_pair(&f, pair);
	for (int i = 0; i < 6; i++) {
		if ((child = check_fork()) == 0) {
			if (i & 1)
				exit(0);
			_exit(0);
		}
		check_child(child);
		exchange(&f, pair);
	}
}

/* Calls on inherited objects fail or do nothing, and do not affect the parent's. */
static void inherited_objects_are_dead(void)
{
	struct fixture f;
	struct ibv_qp *pair[2];
	struct ibv_send_wr *bad;
	struct ibv_device_attr attr;
	struct ibv_wc wc;
	int child;

	open_fixture(&f);
	connected_pair(&f, pair);
	exchange(&f, pair);
	if ((child = check_fork()) == 0) {
		CHECK(ibv_post_send(pair[0],
				    request(IBV_WR_RDMA_WRITE, f.memory, 8, f.mr, f.memory + 64,
					    f.mr->rkey),
				    &bad) != 0);
		CHECK(ibv_poll_cq(f.cq, 1, &wc) <= 0);
		CHECK(ibv_alloc_pd(f.device) == NULL);
		CHECK(ibv_reg_mr(f.pd, f.memory, BUFFER, 0) == NULL);
		CHECK(ibv_create_cq(f.device, 4, NULL, NULL, 0) == NULL);
		(void)ibv_query_device(f.device, &attr);
		/* Cleaning up, as many programs do. It may succeed or fail. */
		for (int i = 0; i < 2; i++)
			(void)ibv_destroy_qp(pair[i]);
		(void)ibv_dereg_mr(f.mr);
		(void)ibv_destroy_cq(f.cq);
		(void)ibv_dealloc_pd(f.pd);
		(void)ibv_destroy_comp_channel(f.channel);
		(void)ibv_close_device(f.device);
		opens_afresh();
		exit(0);
	}
	check_child(child);
	exchange(&f, pair);
	for (int i = 0; i < 2; i++)
		EQUAL(ibv_destroy_qp(pair[i]), 0);
	close_fixture(&f);
}

/* The same for the connection manager: an event channel of the child's own resolves an address. */
static void resolve(const union ibv_gid *gid)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = 1 };
	struct rdma_event_channel *events;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	memcpy(&address.sin_addr, gid->raw + 12, 4);
	CHECK((events = rdma_create_event_channel()) != NULL);
	EQUAL(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000), 0);
	EQUAL(rdma_get_cm_event(events, &event), 0);
	EQUAL(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
	EQUAL(rdma_ack_cm_event(event), 0);
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(events);
}

static void connection_manager_afresh(void)
{
	struct ibv_context **devices;
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct fixture f;
	int child;

	open_fixture(&f);
	CHECK((devices = rdma_get_devices(NULL)) != NULL);
	CHECK((events = rdma_create_event_channel()) != NULL);
	EQUAL(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), 0);
	if ((child = check_fork()) == 0) {
		resolve(&f.gid);
		CHECK(rdma_listen(id, 1) != 0);
		exit(0);
	}
	check_child(child);
	resolve(&f.gid);
	EQUAL(rdma_listen(id, 1), 0);
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(events);
	rdma_free_devices(devices);
}

/* A shell between parent and grandchild, as system(3) starts it: a fork and an exec. */
static void programs_may_be_started(void)
{
	struct fixture f;
	struct ibv_qp *pair[2];

	open_fixture(&f);
	connected_pair(&f, pair);
	for (int i = 0; i < 3; i++) {
		EQUAL(system("exit 0"), 0);
		exchange(&f, pair);
	}
}

/* A child of a child, both with their own device, while the first one lives. */
static void three_generations(void)
{
	struct fixture f;
	int child, grandchild;

	open_fixture(&f);
	if ((child = check_fork()) == 0) {
		opens_afresh();
		if ((grandchild = check_fork()) == 0) {
			opens_afresh();
			exit(0);
		}
		opens_afresh();
		check_child(grandchild);
		exit(0);
	}
	check_child(child);
	close_fixture(&f);
}

static bool done;

/* Is inside the library at an arbitrary place whenever the process forks. */
static void *works(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(&done, __ATOMIC_RELAXED))
		opens_afresh();
	return NULL;
}

static void while_other_threads_work(void)
{
	pthread_t threads[4];
	int child;

	for (int i = 0; i < 4; i++)
		EQUAL(pthread_create(&threads[i], NULL, works, NULL), 0);
	for (int i = 0; i < 40; i++) {
		if ((child = check_fork()) == 0) {
			opens_afresh();
			exit(0);
		}
		check_child(child);
	}
	__atomic_store_n(&done, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 4; i++)
		EQUAL(pthread_join(threads[i], NULL), 0);
}

static void fork_init_is_not_needed(void)
{
	EQUAL(ibv_fork_init(), 0);
	CHECK(ibv_is_fork_initialized() != IBV_FORK_DISABLED);
	both_work();
}

static const struct test tests[] = {
	TEST(both_work),
	TEST(a_child_that_ends_harms_nothing),
	TEST(inherited_objects_are_dead),
	TEST(connection_manager_afresh),
	TEST(programs_may_be_started),
	TEST(three_generations),
	TEST(while_other_threads_work),
	TEST(fork_init_is_not_needed),
};

CHECK_MAIN(tests)
