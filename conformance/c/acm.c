/* Tests libibacm (<rdmux/acm.h>) with a service that is this test, and that behaves well or badly. It reads requests as
 * rdma-core's ibacm does: each receive call must return one request, or it closes the connection. */
#define _GNU_SOURCE
#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdmux/acm.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum behaviour {
	ANSWER,     /* everything */
	ONCE,       /* one request of each connection, which is closed then */
	CLOSE,      /* nothing: the connection is closed */
	HALF,       /* half of the answer */
	HALF_CLOSE, /* half of the answer, and the connection is closed */
	DEAF,       /* nothing is read */
	GARBAGE,    /* something else */
	REFUSE,     /* no data */
};

struct header {
	uint8_t version, opcode, status, data[3];
	uint16_t length;
	uint64_t tid;
};

struct entry {
	uint32_t flags;
	uint16_t type, reserved;
	uint8_t info[64];
};

enum { LONG = 50000, SHORT = 40, PATH = 0x10, RESOLVED = 0x2b };

static char place[] = "/tmp/rdmux-acm-XXXXXX";
static struct sockaddr_un address = { .sun_family = AF_UNIX };
/* A second name of the socket. */
static char tool[sizeof(place) + 32];
static enum behaviour behaviour;
static int connections;

/* Returns the number in "nodeN", or the last byte of an address: the DLID of the answer. */
static uint16_t number(const struct entry *entry)
{
	switch (entry->type) {
	case ACM_EP_INFO_NAME:
		return atoi((const char *)entry->info + 4);
	case ACM_EP_INFO_ADDRESS_IP:
		return entry->info[3];
	case ACM_EP_INFO_ADDRESS_IP6:
		return entry->info[15];
	default:
		return entry->info[41];
	}
}

/* Replaces a request by its answer. Returns the length, or 0 for an invalid request. */
static size_t answer(uint8_t *message, size_t len)
{
	struct header *header = (struct header *)message;
	struct entry *entry = (struct entry *)(header + 1);
	struct acm_ep_config_data *ep = (struct acm_ep_config_data *)(header + 1);
	uint64_t *counters = (uint64_t *)(header + 1);
	uint16_t lid = 0;

	if (len < sizeof(*header) || header->version != 1)
		return 0;
	switch (header->opcode & 0xf) {
	case 1:
		if (header->length != len || (len - 16) % 72 != 0)
			return 0;
		for (size_t i = 0; i < (len - 16) / 72; i++) {
			if (entry[i].type == PATH || entry[i].flags & 2)
				lid = number(&entry[i]);
		}
		len = 16 + 72;
		memset(entry, 0, sizeof(*entry));
		entry->flags = RESOLVED;
		entry->type = PATH;
		entry->info[40] = lid >> 8;
		entry->info[41] = lid;
		header->length = len;
		break;
	case 2:
		len = 16 + 7 * 8;
		for (int i = 0; i < 7; i++)
			counters[i] = htobe64(i + 100 * header->data[1]);
		header->data[0] = 7;
		header->length = htons(len);
		header->opcode |= 0x80;
		break;
	case 3:
		if (header->data[0] > 2) {
			header->status = 2;
			len = 16;
		} else {
			len = 16 + 80 + 2 * 64;
			memset(ep, 0, len - 16);
			ep->dev_guid = htobe64(0x0102030405060708);
			ep->port_num = header->data[1];
			ep->phys_port_cnt = 2;
			ep->pkey = htons(0x8001);
			ep->addr_cnt = htons(2);
			strcpy((char *)ep->prov_name, "ibacmp");
			strcpy((char *)ep->addrs[0].name, "node1");
			/* Without a terminator. */
			memset(ep->addrs[1].name, 'x', 64);
		}
		header->length = htons(len);
		header->opcode |= 0x80;
		break;
	default:
		return 0;
	}
	if (behaviour == REFUSE) {
		header->status = 3;
		header->length = len = 16;
	}
	return len;
}

static void *serve_one(void *arg)
{
	int fd = (intptr_t)arg;
	_Alignas(8) uint8_t message[1024];
	ssize_t len;

	if (behaviour == DEAF) {
		pause();
		return NULL;
	}
	while ((len = recv(fd, message, 592, 0)) > 0) {
		if (behaviour == CLOSE || (len = answer(message, len)) == 0)
			break;
		if (behaviour == GARBAGE)
			memset(message, 0xee, len);
		if (behaviour == HALF || behaviour == HALF_CLOSE)
			len /= 2;
		send(fd, message, len, MSG_NOSIGNAL);
		if (behaviour == ONCE || behaviour == HALF_CLOSE)
			break;
	}
	close(fd);
	return NULL;
}

static void spawn(void *(*run)(void *), intptr_t arg)
{
	pthread_t thread;

	EQUAL(pthread_create(&thread, NULL, run, (void *)arg), 0);
	EQUAL(pthread_detach(thread), 0);
}

static void *serve_all(void *arg)
{
	int fd;

	while ((fd = accept((intptr_t)arg, NULL, NULL)) >= 0) {
		__atomic_add_fetch(&connections, 1, __ATOMIC_RELAXED);
		spawn(serve_one, fd);
	}
	return NULL;
}

static void clean(void)
{
	unlink(address.sun_path);
	unlink(tool);
	rmdir(place);
}

/* Starts without a service; its socket will be at address.sun_path. */
static void fresh(void)
{
	CHECK(mkdtemp(place) != NULL);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/ibacm.sock", place);
	snprintf(tool, sizeof(tool), "%s/ibacm-unix.sock", place);
	EQUAL(setenv("RDMUX_ACM_DIR", place, 1), 0);
	EQUAL(atexit(clean), 0);
}

/* Starts a service, in place of an earlier one. */
static void serve(enum behaviour how)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	behaviour = how;
	unlink(address.sun_path);
	unlink(tool);
	EQUAL(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	EQUAL(listen(fd, 64), 0);
	EQUAL(link(address.sun_path, tool), 0);
	spawn(serve_all, fd);
}

static void connected(enum behaviour how)
{
	fresh();
	serve(how);
	EQUAL(ib_acm_connect(address.sun_path), 0);
	EQUAL(rdmux_acm_set_timeout(LONG), 10000);
}

static uint16_t dlid(const struct ibv_path_data *path)
{
	return ntohs(path->path.dlid);
}

static void resolves(int n)
{
	struct ibv_path_data *paths = NULL;
	char name[16];
	int count = 0;

	snprintf(name, sizeof(name), "node%d", n);
	EQUAL(ib_acm_resolve_name(NULL, name, &paths, &count, 0, 0), 0);
	EQUAL(count, 1);
	EQUAL(dlid(paths), n);
	EQUAL(paths->flags, RESOLVED);
	ib_acm_free_paths(paths);
}

static void fails(int error)
{
	struct ibv_path_data *paths = (void *)1;
	char name[] = "node1";
	int count = -7, returned, found;

	errno = 0;
	returned = ib_acm_resolve_name(NULL, name, &paths, &count, 0, 0);
	found = errno;
	EQUAL(returned, -1);
	EQUAL(found, error);
	CHECK(paths == (void *)1 && count == -7);
}

static void before_connect_nothing_is_asked(void)
{
	uint64_t *counters;
	int count;

	fresh();
	fails(ENOTCONN);
	SETS(ib_acm_query_perf(0, &counters, &count), ENOTCONN);
	ib_acm_disconnect();
	SETS(ib_acm_connect(address.sun_path), ECONNREFUSED);
	SETS(ib_acm_connect(NULL), ECONNREFUSED);
	SETS(ib_acm_connect("no.such.host.invalid"), EHOSTUNREACH);
	fails(ENOTCONN);
}

static void usual_service_is_found(void)
{
	fresh();
	serve(ANSWER);
	EQUAL(ib_acm_connect(""), 0);
	resolves(3);
	ib_acm_disconnect();
	fails(ENOTCONN);
}

static void names_addresses_and_paths_resolve(void)
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };
	struct sockaddr *to = (struct sockaddr *)&in, *to6 = (struct sockaddr *)&in6;
	struct ibv_path_record record = { .dlid = htons(300) };
	struct ibv_path_data *paths;
	int count;

	connected(ANSWER);
	resolves(5);
	EQUAL(ib_acm_resolve_name("me", "node6", &paths, &count, ACM_FLAGS_NODELAY, 0), 0);
	EQUAL(dlid(paths), 6);
	ib_acm_free_paths(paths);
	inet_pton(AF_INET, "10.0.0.9", &in.sin_addr);
	EQUAL(ib_acm_resolve_ip(NULL, to, &paths, &count, 0, 0), 0);
	EQUAL(dlid(paths), 9);
	ib_acm_free_paths(paths);
	inet_pton(AF_INET6, "fd00::8", &in6.sin6_addr);
	EQUAL(ib_acm_resolve_ip(to6, to6, &paths, &count, 0, 0), 0);
	EQUAL(dlid(paths), 8);
	ib_acm_free_paths(paths);
	record.dlid = htons(44);
	EQUAL(ib_acm_resolve_path(&record, 0), 0);
	EQUAL(ntohs(record.dlid), 44);
	EQUAL(ib_acm_resolve_path(&record, ACM_FLAGS_QUERY_SA), 0);
	behaviour = REFUSE;
	fails(ENODATA);
}

static void bad_arguments_are_refused(void)
{
	struct sockaddr other = { .sa_family = AF_UNIX };
	struct ibv_path_data *paths;
	char name[] = "node1", longest[64], too_long[65];
	uint8_t nothing[64] = "";
	uint64_t *counters;
	int count;

	memset(longest, 'x', 63);
	longest[63] = '\0';
	memset(too_long, 'x', 64);
	too_long[64] = '\0';
	connected(ANSWER);
	EQUAL(ib_acm_resolve_name(longest, longest, &paths, &count, 0, 0), 0);
	ib_acm_free_paths(paths);
	SETS(ib_acm_resolve_name(NULL, too_long, &paths, &count, 0, 0), EINVAL);
	SETS(ib_acm_resolve_name(too_long, name, &paths, &count, 0, 0), EINVAL);
	SETS(ib_acm_resolve_name(NULL, "", &paths, &count, 0, 0), EINVAL);
	SETS(ib_acm_resolve_name(NULL, NULL, &paths, &count, 0, 0), EINVAL);
	SETS(ib_acm_resolve_name(NULL, name, NULL, &count, 0, 0), EINVAL);
	SETS(ib_acm_resolve_name(NULL, name, &paths, NULL, 0, 0), EINVAL);
	SETS(ib_acm_resolve_ip(NULL, &other, &paths, &count, 0, 0), EAFNOSUPPORT);
	SETS(ib_acm_resolve_ip(NULL, NULL, &paths, &count, 0, 0), EINVAL);
	SETS(ib_acm_resolve_path(NULL, 0), EINVAL);
	SETS(ib_acm_query_perf(-1, &counters, &count), EINVAL);
	SETS(ib_acm_query_perf(256, &counters, &count), EINVAL);
	SETS(ib_acm_query_perf(0, NULL, &count), EINVAL);
	SETS(ib_acm_query_perf_ep_addr(NULL, 1, &counters, &count), EINVAL);
	SETS(ib_acm_query_perf_ep_addr(nothing, 1, &counters, &count), EINVAL);
	SETS(ib_acm_query_perf_ep_addr(nothing, 9, &counters, &count), EINVAL);
	SETS(ib_acm_enum_ep(0, NULL, 0), EINVAL);
	SETS(rdmux_acm_set_timeout(-1), EINVAL);
	SETS(rdmux_acm_fd(NULL), EINVAL);
	EQUAL(rdmux_acm_resolve_name(NULL, NULL, name, 0, 1, NULL), 0);
	rdmux_acm_close(NULL);
}

static void counters_and_endpoints_are_read(void)
{
	struct acm_ep_config_data *ep;
	uint8_t me[64] = "me";
	uint64_t *counters;
	int count = 0;

	connected(ANSWER);
	EQUAL(ib_acm_query_perf(2, &counters, &count), 0);
	EQUAL(count, 7);
	EQUAL(counters[6], 206);
	ib_acm_free_perf(counters);
	EQUAL(ib_acm_query_perf_ep_addr(me, ACM_EP_INFO_NAME, &counters, &count), 0);
	EQUAL(counters[6], 6);
	ib_acm_free_perf(counters);
	CHECK(strcmp(ib_acm_cntr_name(2), "No Data") == 0);
	CHECK(strcmp(ib_acm_cntr_name(7), "Unknown") == 0);
	EQUAL(ib_acm_enum_ep(1, &ep, 2), 0);
	EQUAL(ep->dev_guid, 0x0102030405060708);
	EQUAL(ep->port_num, 2);
	EQUAL(ep->phys_port_cnt, 2);
	EQUAL(ep->pkey, 0x8001);
	EQUAL(ep->addr_cnt, 2);
	CHECK(strcmp((char *)ep->prov_name, "ibacmp") == 0);
	CHECK(strcmp((char *)ep->addrs[0].name, "node1") == 0);
	EQUAL(strlen((char *)ep->addrs[1].name), 63);
	ib_acm_free_ep_data(ep);
	SETS(ib_acm_enum_ep(3, &ep, 0), EINVAL);
}

static void bad_services_cost_a_bounded_time(void)
{
	static const struct {
		enum behaviour how;
		int error;
	} bad[] = {
		{ CLOSE, ECONNRESET }, { HALF_CLOSE, ECONNRESET }, { GARBAGE, EPROTO },
		{ HALF, ETIMEDOUT },   { DEAF, ETIMEDOUT },
	};
	struct rdmux_acm_answer answer;
	struct rdmux_acm *acm;
	struct pollfd fd = { .events = POLLIN };

	connected(ANSWER);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		serve(bad[i].how);
		ib_acm_disconnect();
		EQUAL(ib_acm_connect(address.sun_path), 0);
			rdmux_acm_set_timeout(bad[i].error == ETIMEDOUT ? SHORT : LONG);
		fails(bad[i].error);
		CHECK((acm = rdmux_acm_open(address.sun_path)) != NULL);
		CHECK(rdmux_acm_resolve_name(acm, NULL, "node1", 0,
					     bad[i].error == ETIMEDOUT ? SHORT : LONG, &fd) > 0);
		fd.fd = rdmux_acm_fd(acm);
		while (rdmux_acm_next(acm, &answer) == 0)
			EQUAL(poll(&fd, 1, -1), 1);
		EQUAL(answer.error, bad[i].error);
		CHECK(answer.context == &fd);
		EQUAL(answer.count, 0);
		EQUAL(rdmux_acm_next(acm, &answer), 0);
		EQUAL(poll(&fd, 1, 0), 0);
		rdmux_acm_close(acm);
	}
}

/* The connection that the library keeps is closed: writing to it would raise SIGPIPE. */
static void restart_of_the_service_goes_unnoticed(void)
{
	connected(ONCE);
	for (int n = 1; n < 20; n++)
		resolves(n);
	serve(ANSWER);
	resolves(20);
}

static void *resolve_many(void *arg)
{
	for (int n = 0; n < 100; n++)
		resolves((intptr_t)arg + n);
	return NULL;
}

static void threads_resolve_in_parallel(void)
{
	pthread_t threads[8];

	connected(ANSWER);
	for (intptr_t i = 0; i < 8; i++)
		EQUAL(pthread_create(&threads[i], NULL, resolve_many, (void *)(1000 * i)), 0);
	for (int i = 0; i < 8; i++)
		EQUAL(pthread_join(threads[i], NULL), 0);
}

static void child_has_connections_of_its_own(void)
{
	int child, before;

	connected(ANSWER);
	resolves(1);
	before = __atomic_load_n(&connections, __ATOMIC_RELAXED);
	if ((child = check_fork()) == 0) {
		resolve_many((void *)1000);
		_exit(0);
	}
	resolve_many((void *)2000);
	check_child(child);
	EQUAL(__atomic_load_n(&connections, __ATOMIC_RELAXED), before + 1);
}

static void children_are_forked_while_threads_resolve(void)
{
	pthread_t threads[4];
	int child;

	connected(ANSWER);
	for (intptr_t i = 0; i < 4; i++)
		EQUAL(pthread_create(&threads[i], NULL, resolve_many, (void *)(1000 * i)), 0);
	for (int n = 0; n < 20; n++) {
		if ((child = check_fork()) == 0) {
			resolves(n);
			_exit(0);
		}
		check_child(child);
	}
	for (int i = 0; i < 4; i++)
		EQUAL(pthread_join(threads[i], NULL), 0);
}

/* Reads the answers to `node0` up to `node(count - 1)`, whose contexts are their numbers. */
static void take(struct rdmux_acm *acm, int count)
{
	struct pollfd fd = { .fd = rdmux_acm_fd(acm), .events = POLLIN };
	struct rdmux_acm_answer answer;
	bool seen[256] = { false };
	int got;

	for (int n = 0; n < count; n++) {
		while ((got = rdmux_acm_next(acm, &answer)) == 0)
			EQUAL(poll(&fd, 1, -1), 1);
		EQUAL(got, 1);
		EQUAL(answer.error, 0);
		EQUAL(answer.count, 1);
		EQUAL(dlid(answer.paths), (intptr_t)answer.context);
		CHECK(!seen[(intptr_t)answer.context]);
		seen[(intptr_t)answer.context] = true;
	}
	EQUAL(rdmux_acm_next(acm, &answer), 0);
	EQUAL(poll(&fd, 1, 0), 0);
}

static void ask(struct rdmux_acm *acm, int count)
{
	char name[32];

	for (intptr_t n = 0; n < count; n++) {
		snprintf(name, sizeof(name), "node%zd", n);
		CHECK(rdmux_acm_resolve_name(acm, NULL, name, 0, LONG, (void *)n) > 0);
	}
}

static void many_requests_are_under_way(void)
{
	struct rdmux_acm *acm;

	connected(ANSWER);
	CHECK((acm = rdmux_acm_open(NULL)) != NULL);
	rdmux_acm_close(acm);
	CHECK((acm = rdmux_acm_open(address.sun_path)) != NULL);
	ask(acm, 200);
	take(acm, 200);
	ask(acm, 1);
	take(acm, 1);
	rdmux_acm_close(acm);
}

static void requests_of_all_kinds_are_answered(void)
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct ibv_path_record record = { .dlid = htons(2) };
	struct rdmux_acm *acm;

	connected(ANSWER);
	CHECK((acm = rdmux_acm_open(address.sun_path)) != NULL);
	inet_pton(AF_INET, "10.0.0.1", &in.sin_addr);
	CHECK(rdmux_acm_resolve_ip(acm, NULL, (struct sockaddr *)&in, 0, LONG, (void *)1) > 0);
	CHECK(rdmux_acm_resolve_path(acm, &record, 0, LONG, (void *)2) > 0);
	CHECK(rdmux_acm_resolve_name(acm, "me", "node0", 0, LONG, NULL) > 0);
	take(acm, 3);
	EQUAL(rdmux_acm_resolve_name(acm, NULL, "", 0, LONG, NULL), 0);
	EQUAL(rdmux_acm_resolve_name(acm, NULL, "node1", 0, -1, NULL), 0);
	EQUAL(rdmux_acm_next(acm, NULL), -1);
	take(acm, 0);
	rdmux_acm_close(acm);
}

static void cancelled_request_has_no_answer(void)
{
	struct rdmux_acm *acm;
	uint64_t id;

	connected(DEAF);
	CHECK((acm = rdmux_acm_open(address.sun_path)) != NULL);
	CHECK((id = rdmux_acm_resolve_name(acm, NULL, "node1", 0, LONG, NULL)) > 0);
	EQUAL(rdmux_acm_cancel(acm, id), 0);
	SETS(rdmux_acm_cancel(acm, id), ENOENT);
	take(acm, 0);
	behaviour = ANSWER;
	ask(acm, 10);
	take(acm, 10);
	rdmux_acm_close(acm);
}

static void child_is_answered_what_its_parent_asked(void)
{
	struct rdmux_acm *acm;
	int child;

	connected(ANSWER);
	CHECK((acm = rdmux_acm_open(address.sun_path)) != NULL);
	ask(acm, 40);
	if ((child = check_fork()) == 0) {
		ask(acm, 0);
		take(acm, 40);
		ask(acm, 5);
		take(acm, 5);
		_exit(0);
	}
	take(acm, 40);
	check_child(child);
	ask(acm, 5);
	take(acm, 5);
	rdmux_acm_close(acm);
}

static void child_that_cancels_does_its_parent_no_harm(void)
{
	struct rdmux_acm_answer answer;
	struct rdmux_acm *acm;
	struct pollfd fd = { .events = POLLIN };
	uint64_t id;
	int child;

	connected(DEAF);
	CHECK((acm = rdmux_acm_open(address.sun_path)) != NULL);
	CHECK((id = rdmux_acm_resolve_name(acm, NULL, "node1", 0, SHORT, NULL)) > 0);
	if ((child = check_fork()) == 0) {
		EQUAL(rdmux_acm_cancel(acm, id), 0);
		_exit(0);
	}
	check_child(child);
	fd.fd = rdmux_acm_fd(acm);
	EQUAL(poll(&fd, 1, LONG), 1);
	EQUAL(rdmux_acm_next(acm, &answer), 1);
	EQUAL(answer.error, ETIMEDOUT);
	rdmux_acm_close(acm);
}

static const struct test tests[] = {
	TEST(before_connect_nothing_is_asked),
	TEST(usual_service_is_found),
	TEST(names_addresses_and_paths_resolve),
	TEST(bad_arguments_are_refused),
	TEST(counters_and_endpoints_are_read),
	TEST(bad_services_cost_a_bounded_time),
	TEST(restart_of_the_service_goes_unnoticed),
	TEST(threads_resolve_in_parallel),
	TEST(child_has_connections_of_its_own),
	TEST(children_are_forked_while_threads_resolve),
	TEST(many_requests_are_under_way),
	TEST(requests_of_all_kinds_are_answered),
	TEST(cancelled_request_has_no_answer),
	TEST(child_is_answered_what_its_parent_asked),
	TEST(child_that_cancels_does_its_parent_no_harm),
};

CHECK_MAIN(tests)
