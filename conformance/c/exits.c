/* Processes that just end. Whoever runs this looks afterwards whether the host still knows of anything. */
#include "fixture.h"

#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Everything at once: queue pairs with work on them, a listener, events that nobody takes. */
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

/* Its own crash stays its own: our handler of the signal does not hide it. */
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

static const struct test tests[] = {
	TEST(returns_from_main),
	TEST(exits_without_handlers),
	TEST(killed),
	TEST(terminated),
	TEST(crashed),
	TEST(killed_while_its_child_lives),
};

CHECK_MAIN(tests)
