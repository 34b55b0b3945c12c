/* libibumad on a port of a subnet: agents and the methods that they own, also when a port is closed, a descriptor
 * is lost, or a process dies. */
#define _GNU_SOURCE
#include "umad_fixture.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

/* A vendor class, by OpenIB's OUI; and a method of it. */
enum { VENDOR = UMAD_CLASS_VENDOR_RANGE2_START + 2, GET_BIT = 1 << UMAD_METHOD_GET };

/* Checks that an agent is refused, with the device's reason. */
#define EPERM_BY(call, reason)                                                       \
	do {                                                                         \
		EQUAL(call, -EPERM);                                                 \
		if (errno != (reason))                                               \
			FAIL("%s: the reason is %d, not " #reason, #call, errno);    \
	} while (0)

static void numbers_are_given_and_taken_back_once(void)
{
	int port = open_port();

	EQUAL(directed_agent(port), 0);
	EQUAL(agent(port, UMAD_CLASS_SUBN_LID_ROUTED, 1, 0, NO_METHODS), 1);
	EQUAL(agent(port, UMAD_CLASS_SUBN_ADM, UMAD_SA_CLASS_VERSION, 1, NO_METHODS), 2);
	EQUAL(agent(port, UMAD_CLASS_PERF_MGMT, 1, 0, NO_METHODS), 3);
	EQUAL(umad_unregister(port, 1), 0);
	EQUAL(umad_unregister(port, 1), -EINVAL);
	EQUAL(umad_unregister(port, 4), -EINVAL);
	EQUAL(umad_unregister(port, 31), -EINVAL);
	EQUAL(umad_unregister(port, 32), -EINVAL);
	EQUAL(umad_unregister(port, -1), -EINVAL);
	EQUAL(umad_unregister(port, INT_MIN), -EINVAL);
	EQUAL(agent(port, VENDOR, 1, 0, NO_METHODS), 1);
	EQUAL(umad_close_port(port), 0);
}

static void thirty_two_agents_and_no_more(void)
{
	int port = open_port(), other = open_port();

	for (int i = 0; i < UMAD_CA_MAX_AGENTS; i++)
		EQUAL(agent(port, UMAD_CLASS_PERF_MGMT, 1, 0, NO_METHODS), i);
	EPERM_BY(agent(port, UMAD_CLASS_PERF_MGMT, 1, 0, NO_METHODS), ENOMEM);
	EQUAL(agent(other, UMAD_CLASS_PERF_MGMT, 1, 0, NO_METHODS), 0);
	EQUAL(umad_unregister(port, 17), 0);
	EQUAL(agent(port, UMAD_CLASS_PERF_MGMT, 1, 0, NO_METHODS), 17);
}

static void agents_that_cannot_be(void)
{
	struct umad_reg_attr attr = { .mgmt_class = VENDOR, .mgmt_class_version = 1 };
	uint8_t none[3] = { 0, 0, 0 };
	int port = open_port();
	uint32_t number;

	EPERM_BY(agent(port, 0x50, 1, 0, NO_METHODS), EINVAL);
	EPERM_BY(agent(port, 0x80, 1, 0, NO_METHODS), EINVAL);
	EPERM_BY(agent(port, 0xff, 1, 0, NO_METHODS), EINVAL);
	EPERM_BY(agent(port, UMAD_CLASS_PERF_MGMT, 8, 0, NO_METHODS), EINVAL);
	EPERM_BY(agent(port, UMAD_CLASS_PERF_MGMT, 1, 1, NO_METHODS), EINVAL);
	EPERM_BY(agent(port, UMAD_CLASS_SUBN_ADM, 2, 2, NO_METHODS), EINVAL);
	/* The kernel's connection manager owns it. */
	EPERM_BY(agent(port, UMAD_CLASS_CM, 2, 0, 1 << UMAD_METHOD_SEND), EINVAL);
	EQUAL(agent(port, 256, 1, 0, NO_METHODS), -EINVAL);
	EQUAL(agent(port, -1, 1, 0, NO_METHODS), -EINVAL);
	EQUAL(agent(port, UMAD_CLASS_PERF_MGMT, 256, 0, NO_METHODS), -EINVAL);
	EQUAL(umad_register_oui(port, UMAD_CLASS_PERF_MGMT, 0, none, NULL), -EINVAL);
	EPERM_BY(umad_register_oui(port, VENDOR, 0, none, NULL), EINVAL);
	RETURNS(umad_register2(port, &attr, &number), EINVAL);
	attr.oui = 0x01000000 | UMAD_OPENIB_OUI;
	RETURNS(umad_register2(port, &attr, &number), EINVAL);
	attr.oui = UMAD_OPENIB_OUI;
	attr.flags = ~0u;
	RETURNS(umad_register2(port, &attr, &number), EINVAL);
	EQUAL(attr.flags, UMAD_USER_RMPP);
	RETURNS(umad_register2(port, &attr, &number), 0);
	EQUAL(number, 0);
}

static void method_of_a_class_has_one_owner(void)
{
	int port = open_port(), other = open_port();

	EQUAL(agent(port, UMAD_CLASS_SUBN_ADM, 2, 1, GET_BIT), 0);
	EPERM_BY(agent(port, UMAD_CLASS_SUBN_ADM, 2, 1, GET_BIT), EINVAL);
	EPERM_BY(agent(other, UMAD_CLASS_SUBN_ADM, 2, 1, GET_BIT | 1 << UMAD_METHOD_SET), EINVAL);
	/* Another method, another version, and no method at all. */
	EQUAL(agent(other, UMAD_CLASS_SUBN_ADM, 2, 1, 1 << UMAD_METHOD_SET), 0);
	EQUAL(agent(other, UMAD_CLASS_SUBN_ADM, 1, 1, GET_BIT), 1);
	EQUAL(agent(other, UMAD_CLASS_SUBN_ADM, 2, 1, NO_METHODS), 2);
	EQUAL(umad_unregister(port, 0), 0);
	EQUAL(agent(other, UMAD_CLASS_SUBN_ADM, 2, 1, GET_BIT), 3);
	/* Methods are free as soon as the port is closed. */
	EQUAL(umad_close_port(other), 0);
	EQUAL(agent(port, UMAD_CLASS_SUBN_ADM, 2, 1, GET_BIT | 1 << UMAD_METHOD_SET), 0);
}

static void request_goes_to_the_owner_and_its_answer_back(void)
{
	int server = open_port(), client = open_port(), length;
	uint16_t lid = own_lid(client);
	struct umad_hdr *header;
	struct buffer b;

	EQUAL(agent(server, UMAD_CLASS_SUBN_ADM, 2, 0, GET_BIT), 0);
	EQUAL(agent(client, UMAD_CLASS_SUBN_ADM, 2, 0, NO_METHODS), 0);
	to_own_lid(&b, UMAD_CLASS_SUBN_ADM, 2, UMAD_METHOD_GET, 77, lid);
	EQUAL(post(client, 0, &b, 30000, 0), 0);
	EQUAL(take(server, &b, &length), 0);
	EQUAL(length, 256);
	EQUAL(be16toh(umad_get_mad_addr(&b)->lid), lid);
	EQUAL(be32toh(umad_get_mad_addr(&b)->qpn), 1);
	header = (struct umad_hdr *)b.mad;
	EQUAL(header->method, UMAD_METHOD_GET);
	header->method = UMAD_METHOD_GET_RESP;
	EQUAL(post(server, 0, &b, 0, 0), 0);
	answered(client, 0, 77, &b);
	/* An answer without a request is dropped. */
	EQUAL(post(server, 0, &b, 0, 0), 0);
	EQUAL(umad_poll(client, 20), -ETIMEDOUT);
	/* No agent owns Set: the host answers it. */
	to_own_lid(&b, UMAD_CLASS_SUBN_ADM, 2, UMAD_METHOD_SET, 78, lid);
	EQUAL(post(client, 0, &b, 30000, 0), 0);
	EQUAL(take(client, &b, &length), 0);
	EQUAL(be16toh(header->status), UMAD_STATUS_ATTR_NOT_SUPPORTED);
}

static void *receives(void *port)
{
	struct buffer b;
	int length;

	return (void *)(intptr_t)take(*(int *)port, &b, &length);
}

static void *polls(void *port)
{
	return (void *)(intptr_t)umad_poll(*(int *)port, -1);
}

/* The descriptor that a thread waits for is closed: the wait ends with an error. */
static void closed_while_others_wait(void)
{
	for (int i = 0; i < 50; i++) {
		int port = open_port();
		pthread_t receiver, poller;
		void *received, *polled;

		EQUAL(directed_agent(port), 0);
		EQUAL(pthread_create(&receiver, NULL, receives, &port), 0);
		EQUAL(pthread_create(&poller, NULL, polls, &port), 0);
		for (int j = 0; j < i; j++)
			sched_yield();
		EQUAL(umad_close_port(port), 0);
		EQUAL(umad_close_port(port), -EINVAL);
		EQUAL(pthread_join(receiver, &received), 0);
		EQUAL(pthread_join(poller, &polled), 0);
		if ((intptr_t)received >= 0)
			FAIL("received for agent %d", (int)(intptr_t)received);
		/* It was woken, or started too late. */
		if ((intptr_t)polled != 0 && (intptr_t)polled != -EINVAL && (intptr_t)polled != -EIO)
			FAIL("umad_poll returns %d", (int)(intptr_t)polled);
	}
}

/* The port's descriptor is closed, and another file has its number. */
static void descriptor_closed_by_the_program(void)
{
	int port = open_port(), other, length = 256;
	struct buffer b;

	EQUAL(directed_agent(port), 0);
	EQUAL(close(umad_get_fd(port)), 0);
	CHECK(umad_recv(port, &b, &length, 0) < 0);
	unanswerable(&b, 1);
	CHECK(post(port, 0, &b, 0, 0) < 0);
	CHECK((other = open("/dev/null", O_RDONLY)) == port);
	CHECK(umad_recv(port, &b, &length, 0) < 0);
	EQUAL(umad_close_port(port), 0);
	EQUAL(umad_close_port(port), -EINVAL);
	/* That file is not the library's, and stays open. */
	CHECK(fcntl(other, F_GETFD) >= 0);
	EQUAL(close(other), 0);
	EQUAL(umad_close_port(open_port()), 0);
}

static void descriptor_polls(void)
{
	int port = open_port(), copy;
	struct pollfd ready = { .events = POLLIN | POLLOUT };
	struct buffer b;

	EQUAL(directed_agent(port), 0);
	CHECK((copy = dup(umad_get_fd(port))) >= 0);
	ready.fd = copy;
	EQUAL(poll(&ready, 1, 0), 1);
	EQUAL(ready.revents, POLLOUT);
	directed(&b, UMAD_METHOD_GET, UMAD_SM_ATTR_NODE_INFO, 5, NULL, 0);
	EQUAL(post(port, 0, &b, 30000, 0), 0);
	ready.events = POLLIN;
	EQUAL(poll(&ready, 1, 30000), 1);
	EQUAL(ready.revents, POLLIN);
	answered(port, 0, 5, &b);
	EQUAL(poll(&ready, 1, 0), 0);
}

/* A process with agents, requests and an open port is killed: none of them remains. */
static void killed_with_agents(void)
{
	int child, said[2], port = open_port();
	char word;

	EQUAL(pipe(said), 0);
	if ((child = check_fork()) == 0) {
		int mine = open_port();
		struct buffer b;

		EQUAL(agent(mine, UMAD_CLASS_SUBN_ADM, 2, 1, GET_BIT), 0);
		EQUAL(directed_agent(mine), 1);
		for (int i = 0; i < 1000; i++) {
			unanswerable(&b, i);
			EQUAL(post(mine, 1, &b, 60000, 7), 0);
		}
		EQUAL(write(said[1], "x", 1), 1);
		for (;;)
			pause();
	}
	EQUAL(read(said[0], &word, 1), 1);
	EPERM_BY(agent(port, UMAD_CLASS_SUBN_ADM, 2, 1, GET_BIT), EINVAL);
	check_kill(child);
	/* The fabric detects that soon; otherwise the test times out. */
	while (agent(port, UMAD_CLASS_SUBN_ADM, 2, 1, GET_BIT) < 0) {
		int reason = errno;

		EQUAL(reason, EINVAL);
	}
}

/* A child closes the inherited port, whose agents and requests are its parent's, too; and one that becomes a daemon uses it. */
static void closed_by_a_child(void)
{
	int port = open_port(), child, length;
	struct buffer b;

	EQUAL(directed_agent(port), 0);
	unanswerable(&b, 1);
	EQUAL(post(port, 0, &b, 200, 0), 0);
	if ((child = check_fork()) == 0) {
		EQUAL(umad_close_port(port), 0);
		EQUAL(umad_close_port(port), -EINVAL);
		_exit(0);
	}
	check_child(child);
	EQUAL(take(port, &b, &length), 0);
	EQUAL(umad_status(&b), ETIMEDOUT);
	EQUAL(tid_of(&b), 1);
	directed(&b, UMAD_METHOD_GET, UMAD_SM_ATTR_NODE_INFO, 2, NULL, 0);
	EQUAL(post(port, 0, &b, 30000, 0), 0);
	answered(port, 0, 2, &b);
	if ((child = check_fork()) == 0) {
		directed(&b, UMAD_METHOD_GET, UMAD_SM_ATTR_NODE_INFO, 3, NULL, 0);
		EQUAL(post(port, 0, &b, 30000, 0), 0);
		answered(port, 0, 3, &b);
		_exit(0);
	}
	check_child(child);
	EQUAL(umad_close_port(port), 0);
}

/* Waits until the port's IsSM bit has this value: the host's service detects soon who has the file open. */
static void is_sm_becomes(int port, bool set)
{
	/* The offset of the capabilities in PortInfo, and the bit. */
	enum { CAPABILITY_MASK = 20, IS_SM = 1 << 1 };
	struct buffer b;
	uint32_t mask;

	do {
		directed(&b, UMAD_METHOD_GET, UMAD_SM_ATTR_PORT_INFO, 1, NULL, 0);
		EQUAL(post(port, 0, &b, 30000, 0), 0);
		answered(port, 0, 1, &b);
		memcpy(&mask, ((struct umad_smp *)b.mad)->data + CAPABILITY_MASK, sizeof(mask));
		sched_yield();
	} while (!(be32toh(mask) & IS_SM) == set);
}

/* A manager's bit is set as long as it has the file open, and is cleared when it dies. */
static void manager_holds_a_file_open(void)
{
	int port = open_port(), file, child, said[2];
	char path[64], word;

	EQUAL(directed_agent(port), 0);
	EQUAL(umad_get_issm_path(NULL, 0, path, sizeof(path)), 0);
	is_sm_becomes(port, false);
	CHECK((file = open(path, O_RDONLY | O_NONBLOCK)) >= 0);
	is_sm_becomes(port, true);
	EQUAL(close(file), 0);
	is_sm_becomes(port, false);

	EQUAL(pipe(said), 0);
	if ((child = check_fork()) == 0) {
		CHECK(open(path, O_RDWR) >= 0);
		EQUAL(write(said[1], "x", 1), 1);
		for (;;)
			pause();
	}
	EQUAL(read(said[0], &word, 1), 1);
	is_sm_becomes(port, true);
	check_kill(child);
	is_sm_becomes(port, false);
}

/* A second manager of the port gets EAGAIN, or waits until the first one ends. */
static void manager_waits_for_another(void)
{
	int port = open_port(), file, child, said[2];
	char path[64], word;

	EQUAL(directed_agent(port), 0);
	EQUAL(umad_get_issm_path(NULL, 0, path, sizeof(path)), 0);
	CHECK((file = open(path, O_RDONLY | O_NONBLOCK)) >= 0);
	is_sm_becomes(port, true);
	SETS(open(path, O_RDONLY | O_NONBLOCK), EAGAIN);
	SETS(open(path, O_RDWR | O_NONBLOCK), EAGAIN);
	EQUAL(pipe(said), 0);
	if ((child = check_fork()) == 0) {
		close(file);
		EQUAL(write(said[1], "1", 1), 1);
		CHECK((file = open(path, O_RDONLY)) >= 0);
		EQUAL(write(said[1], "2", 1), 1);
		EQUAL(fcntl(file, F_GETFL) & O_NONBLOCK, 0);
		for (;;)
			pause();
	}
	EQUAL(read(said[0], &word, 1), 1);
	EQUAL(word, '1');
	EQUAL(close(file), 0);
	EQUAL(read(said[0], &word, 1), 1);
	EQUAL(word, '2');
	is_sm_becomes(port, true);
	SETS(open(path, O_RDONLY | O_NONBLOCK), EAGAIN);
	check_kill(child);
	is_sm_becomes(port, false);
	CHECK((file = open(path, O_RDONLY | O_NONBLOCK)) >= 0);
	EQUAL(close(file), 0);
}

static void opened_very_often(void)
{
	int ports[100];

	for (int i = 0; i < 100; i++)
		EQUAL(directed_agent(ports[i] = open_port()), 0);
	for (int i = 0; i < 100; i++)
		EQUAL(umad_close_port(ports[i]), 0);
	for (int i = 0; i < 1000; i++)
		EQUAL(umad_close_port(open_port()), 0);
}

static const struct test tests[] = {
	TEST(numbers_are_given_and_taken_back_once),
	TEST(thirty_two_agents_and_no_more),
	TEST(agents_that_cannot_be),
	TEST(method_of_a_class_has_one_owner),
	TEST(request_goes_to_the_owner_and_its_answer_back),
	TEST(closed_while_others_wait),
	TEST(descriptor_closed_by_the_program),
	TEST(descriptor_polls),
	TEST(killed_with_agents),
	TEST(closed_by_a_child),
	TEST(manager_holds_a_file_open),
	TEST(manager_waits_for_another),
	TEST(opened_very_often),
};

CHECK_MAIN(tests)
