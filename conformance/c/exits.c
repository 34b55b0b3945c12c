/* Processes that end without cleaning up. The caller of this program checks afterwards that the host has forgotten them. */
#define _GNU_SOURCE
#include "fixture.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Creates everything at once: queue pairs with outstanding work, a listener, unread events. */
static void be_busy(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener, *id;
	static struct fixture f;
	struct ibv_qp *pair[2];

	open_fixture(&f);
	connected_pair(&f, pair);
	EQUAL(ibv_req_notify_cq(f.cq, 0), 0);
	for (int i = 0; i < 4; i++)
		post(pair[0], request(IBV_WR_RDMA_WRITE, f.memory, 4096, f.mr, f.memory + 8192,
				      f.mr->rkey));
	memcpy(&address.sin_addr, f.gid.raw + 12, 4);
	CHECK((events = rdma_create_event_channel()) != NULL);
	EQUAL(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_bind_addr(listener, (struct sockaddr *)&address), 0);
	EQUAL(rdma_listen(listener, 1), 0);
	EQUAL(rdma_create_id(events, &id, NULL, RDMA_PS_UDP), 0);
	EQUAL(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000), 0);
}

static void returns_from_main(void)
{
	be_busy();
}

static void exits_without_handlers(void)
{
	int child = check_fork();

	if (child == 0) {
		be_busy();
		_exit(0);
	}
	check_child(child);
}

static void ends_by(int signal)
{
	int status, child = check_fork();

	if (child == 0) {
		be_busy();
		raise(signal);
		_exit(1);
	}
	EQUAL(waitpid(child, &status, 0), child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == signal);
}

static void killed(void)
{
	ends_by(SIGKILL);
}

static void terminated(void)
{
	ends_by(SIGTERM);
}

/* The program's own crash stays one: the library's signal handler does not hide it. */
static void crashed(void)
{
	int status, child = check_fork();

	if (child == 0) {
		be_busy();
		*(volatile int *)8 = 1;
		_exit(1);
	}
	EQUAL(waitpid(child, &status, 0), child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

static void killed_while_its_child_lives(void)
{
	int status, child, hold[2];
	char end;

	/* The grandchild has copies of all descriptors, and ends when this test closes the pipe. */
	EQUAL(pipe(hold), 0);
	if ((child = check_fork()) == 0) {
		be_busy();
		if (check_fork() == 0) {
			close(hold[1]);
			_exit(read(hold[0], &end, 1) != 0);
		}
		raise(SIGKILL);
	}
	EQUAL(waitpid(child, &status, 0), child);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	be_busy();
}

static void *never_stops(void *unused)
{
	struct fixture f;
	struct ibv_qp *pair[2];

	(void)unused;
	for (;;) {
		open_fixture(&f);
		connected_pair(&f, pair);
		exchange(&f, pair);
		for (int i = 0; i < 2; i++)
			EQUAL(ibv_destroy_qp(pair[i]), 0);
		close_fixture(&f);
	}
}

/* A process ends by exit, while its threads run until the very end. */
static void exits_while_threads_work(void)
{
	pthread_t thread;
	int child;

	for (int i = 0; i < 20; i++) {
		if ((child = check_fork()) == 0) {
			for (int j = 0; j < 3; j++)
				EQUAL(pthread_create(&thread, NULL, never_stops, NULL), 0);
			be_busy();
			exit(0);
		}
		check_child(child);
	}
}

static struct fixture at_exit;

/* Uses all functions of a queue pair late: the thread has no thread-local data left. */
static void works_with_a_queue_pair(void *unused)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp *pair[2];

	(void)unused;
	connected_pair(&at_exit, pair);
	exchange(&at_exit, pair);
	for (int i = 0; i < 2; i++) {
		EQUAL(ibv_modify_qp(pair[i], &attr, IBV_QP_STATE), 0);
		EQUAL(ibv_destroy_qp(pair[i]), 0);
	}
}

static void works_at_exit(void)
{
	works_with_a_queue_pair(NULL);
	_exit(0);
}

static void *sets_a_key(void *key)
{
	struct ibv_qp *pair[2];

	connected_pair(&at_exit, pair);
	exchange(&at_exit, pair);
	EQUAL(pthread_setspecific(*(pthread_key_t *)key, key), 0);
	return NULL;
}

/* C++ destructors and atexit(3) functions run after those of Rust; so do destructors of thread-specific data. */
static void ends_with_work_in_destructors(void)
{
	pthread_t thread;
	pthread_key_t key;
	struct ibv_qp *pair[2];
	int child = check_fork();

	if (child == 0) {
		EQUAL(atexit(works_at_exit), 0);
		open_fixture(&at_exit);
		connected_pair(&at_exit, pair);
		exchange(&at_exit, pair);
		EQUAL(pthread_key_create(&key, works_with_a_queue_pair), 0);
		EQUAL(pthread_create(&thread, NULL, sets_a_key, &key), 0);
		EQUAL(pthread_join(thread, NULL), 0);
		exit(1);
	}
	check_child(child);
}

/* Killed at an arbitrary moment. */
static void killed_at_any_time(void)
{
	int status, child, go[2];
	char byte = 0;

	for (int i = 0; i < 60; i++) {
		EQUAL(pipe(go), 0);
		if ((child = check_fork()) == 0) {
			close(go[0]);
			for (;;) {
				if (write(go[1], &byte, 1) != 1)
					_exit(1);
				be_busy();
			}
		}
		close(go[1]);
		EQUAL(read(go[0], &byte, 1), 1);
		/* From before the device is open until long after. */
		for (volatile int spin = 0; spin < i * i * 1000; spin++)
			;
		EQUAL(kill(child, SIGKILL), 0);
		EQUAL(waitpid(child, &status, 0), child);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		close(go[0]);
	}
	be_busy();
}

static const struct test tests[] = {
	TEST(returns_from_main),
	TEST(exits_without_handlers),
	TEST(killed),
	TEST(terminated),
	TEST(crashed),
	TEST(killed_while_its_child_lives),
	TEST(exits_while_threads_work),
	TEST(ends_with_work_in_destructors),
	TEST(killed_at_any_time),
};

CHECK_MAIN(tests)
