/* The connection manager asks ACM first. The service is this program, which answers, hangs, closes connections, and sends
 * invalid answers, on a host whose device has IP addresses as GIDs. */
#define _GNU_SOURCE
#include "check.h"

#include <arpa/inet.h>
#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
	TIMEOUT = 5000, /* ms */
	SOURCE = 1,
	DEST = 2,
	NODELAY = 1 << 30,
	IP4 = 2,
	GID = 4,
	PATH = 0x10,
	WHOLE = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL,
	LIFETIME = 9, /* a lifetime that no path of the host's service has */
};

/* ---- The protocol of ibacm ---- */

struct header {
	uint8_t version, opcode, status, data[3];
	uint16_t length;
	uint64_t tid;
};

struct entry {
	uint32_t flags;
	uint16_t type, reserved;
	union {
		uint8_t address[64];
		struct ibv_path_record path;
	};
};

struct message {
	struct header header;
	struct entry entries[8];
};

/* ---- The service ---- */

enum manner { ANSWERS, HANGS, CLOSES, CLOSES_AFTER_ONE, SAYS_HALF, LIES };

static enum manner manner;
static atomic_int connections, questions;
static struct message last; /* the last request */
static char folder[] = "/tmp/rdmux-acm-XXXXXX";

static struct in_addr own_address(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;
	struct in_addr address;

	EQUAL(rdma_getaddrinfo(getenv("RDMUX_HOST"), NULL, &hints, &found), 0);
	EQUAL(found->ai_family, AF_INET);
	address = ((struct sockaddr_in *)found->ai_dst_addr)->sin_addr;
	rdma_freeaddrinfo(found);
	return address;
}

static union ibv_gid gid_of(const void *ip4)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

	memcpy(gid.raw + 12, ip4, 4);
	return gid;
}

/* Replaces a request by its answer; it has source and destination addresses or GIDs, or an address of this host. */
static size_t answer(struct message *m)
{
	struct ibv_path_record path = {
		.flowlabel_hoplimit = htonl(64),
		.reversible_numpath = 0x81,
		.pkey = htons(0xffff),
		.mtu = 2 << 6 | IBV_MTU_512,
		.rate = 2 << 6 | IBV_RATE_10_GBPS,
		.packetlifetime = 2 << 6 | LIFETIME,
	};
	size_t count = (m->header.length - sizeof(m->header)) / sizeof(struct entry);

	for (size_t i = 0; i < count; i++) {
		union ibv_gid gid;

		if (m->entries[i].type == IP4)
			gid = gid_of(m->entries[i].address);
		else if (m->entries[i].type == GID)
			memcpy(gid.raw, m->entries[i].address, sizeof(gid.raw));
		else
			continue;
		if (m->entries[i].flags & DEST)
			path.dgid = gid;
		if (m->entries[i].flags & SOURCE || count == 1)
			path.sgid = gid;
	}
	if (manner == LIES)
		path.dgid.raw[15] ^= 0x40;
	m->entries[0] = (struct entry){ .flags = WHOLE, .type = PATH, .path = path };
	m->header.length = sizeof(m->header) + sizeof(struct entry);
	return m->header.length;
}

static void *serve(void *arg)
{
	int fd = (int)(intptr_t)arg;
	struct message m;

	if (manner == CLOSES)
		goto out;
	while (recv(fd, &m, sizeof(m), 0) > 0) {
		size_t length;

		last = m;
		atomic_fetch_add(&questions, 1);
		if (manner == HANGS)
			continue;
		length = answer(&m);
		send(fd, &m, manner == SAYS_HALF ? length / 2 : length, MSG_NOSIGNAL);
		if (manner == SAYS_HALF || manner == CLOSES_AFTER_ONE)
			break;
	}
out:
	close(fd);
	return NULL;
}

static void *listens(void *arg)
{
	int fd = (int)(intptr_t)arg, with;

	while ((with = accept(fd, NULL, NULL)) >= 0) {
		pthread_t thread;

		atomic_fetch_add(&connections, 1);
		EQUAL(pthread_create(&thread, NULL, serve, (void *)(intptr_t)with), 0);
		pthread_detach(thread);
	}
	return NULL;
}

/* Must be called before any request. */
static void start_service(enum manner how)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pthread_t thread;

	manner = how;
	CHECK(fd >= 0);
	CHECK(mkdtemp(folder) != NULL);
	snprintf(at.sun_path, sizeof(at.sun_path), "%s/ibacm.sock", folder);
	EQUAL(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	EQUAL(listen(fd, 64), 0);
	EQUAL(pthread_create(&thread, NULL, listens, (void *)(intptr_t)fd), 0);
	setenv("RDMUX_ACM_DIR", folder, 1);
	/* Longer than its threads can be kept from running. */
	setenv("RDMUX_ACM_TIMEOUT", "50000", 0);
}

static void stop_service(void)
{
	char path[64];

	snprintf(path, sizeof(path), "%s/ibacm.sock", folder);
	unlink(path);
	rmdir(folder);
}

/* ---- Programs ---- */

static struct rdma_addrinfo *found(const char *node, int flags)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = flags }, *info;

	EQUAL(rdma_getaddrinfo(node, "7471", &hints, &info), 0);
	EQUAL(info->ai_family, AF_INET);
	return info;
}

static void expect(struct rdma_event_channel *on, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;

	EQUAL(rdma_get_cm_event(on, &event), 0);
	EQUAL(event->event, kind);
	EQUAL(event->status, 0);
	EQUAL(rdma_ack_cm_event(event), 0);
}

/* Returns the lifetime of the path to this host's own address, which shows the origin of the path. */
static int lifetime_of_path(void)
{
	struct in_addr address = own_address();
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7471), .sin_addr = address };
	struct rdma_event_channel *on = rdma_create_event_channel();
	struct rdma_cm_id *id;
	int lifetime;

	CHECK(on != NULL);
	EQUAL(rdma_create_id(on, &id, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, TIMEOUT), 0);
	expect(on, RDMA_CM_EVENT_ADDR_RESOLVED);
	EQUAL(rdma_resolve_route(id, TIMEOUT), 0);
	expect(on, RDMA_CM_EVENT_ROUTE_RESOLVED);
	EQUAL(id->route.num_paths, 1);
	lifetime = id->route.path_rec->packet_life_time;
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(on);
	return lifetime;
}

/* ---- Tests ---- */

static void a_lookup_has_the_path_that_acm_knows(void)
{
	struct rdma_addrinfo *info;
	struct ibv_path_data *path;
	struct in_addr address;

	start_service(ANSWERS);
	info = found(getenv("RDMUX_HOST"), 0);
	address = ((struct sockaddr_in *)info->ai_dst_addr)->sin_addr;
	EQUAL(info->ai_route_len, sizeof(*path));
	path = info->ai_route;
	EQUAL(path->flags, WHOLE);
	EQUAL(path->path.packetlifetime, 2 << 6 | LIFETIME);
	CHECK(!memcmp(path->path.dgid.raw + 12, &address, 4));
	/* By GID: the program sees no InfiniBand device. */
	EQUAL(last.entries[0].type, GID);
	EQUAL(last.entries[0].flags, DEST);
	rdma_freeaddrinfo(info);
	stop_service();
}

static void a_lookup_that_is_to_be_quick_asks_for_what_is_cached(void)
{
	char text[INET_ADDRSTRLEN];
	struct in_addr address;
	struct rdma_addrinfo *info;

	start_service(ANSWERS);
	address = own_address();
	inet_ntop(AF_INET, &address, text, sizeof(text));
	info = found(text, RAI_NUMERICHOST);
	EQUAL(last.entries[0].flags, DEST | NODELAY);
	EQUAL(info->ai_route_len, sizeof(struct ibv_path_data));
	rdma_freeaddrinfo(info);
	info = found(text, RAI_NOROUTE);
	EQUAL(info->ai_route_len, 0);
	rdma_freeaddrinfo(info);
	stop_service();
}

static void a_destination_without_a_name_has_its_path(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7471) };
	struct rdma_addrinfo hints = {
		.ai_port_space = RDMA_PS_TCP,
		.ai_family = AF_INET,
		.ai_dst_addr = (struct sockaddr *)&to,
		.ai_dst_len = sizeof(to),
	}, *info;

	start_service(ANSWERS);
	to.sin_addr = own_address();
	EQUAL(rdma_getaddrinfo(NULL, NULL, &hints, &info), 0);
	EQUAL(info->ai_dst_len, sizeof(to));
	EQUAL(info->ai_route_len, sizeof(struct ibv_path_data));
	rdma_freeaddrinfo(info);
	stop_service();
}

static void a_route_is_the_path_that_acm_knows(void)
{
	start_service(ANSWERS);
	EQUAL(lifetime_of_path(), LIFETIME);
	/* By GIDs: a port on a fabric would have the same IP addresses. */
	EQUAL(last.entries[0].flags, SOURCE);
	EQUAL(last.entries[0].type, GID);
	EQUAL(last.entries[1].flags, DEST);
	EQUAL(last.entries[1].type, GID);
	/* Also if the program chooses the source; over the same connection. */
	EQUAL(lifetime_of_path(), LIFETIME);
	EQUAL(connections, 1);
	stop_service();
}

static void an_endpoint_uses_the_path_that_acm_knows(void)
{
	struct rdma_addrinfo *info;
	struct rdma_cm_id *id;

	start_service(ANSWERS);
	info = found(getenv("RDMUX_HOST"), 0);
	EQUAL(rdma_create_ep(&id, info, NULL, NULL), 0);
	EQUAL(id->route.path_rec->packet_life_time, LIFETIME);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(info);
	stop_service();
}

static void a_path_that_contradicts_the_address_is_not_used(void)
{
	struct rdma_addrinfo *info;
	struct rdma_cm_id *id;

	start_service(LIES);
	CHECK(lifetime_of_path() != LIFETIME);
	info = found(getenv("RDMUX_HOST"), 0);
	EQUAL(info->ai_route_len, sizeof(struct ibv_path_data));
	EQUAL(rdma_create_ep(&id, info, NULL, NULL), 0);
	CHECK(id->route.path_rec->packet_life_time != LIFETIME);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(info);
	stop_service();
}

static void a_service_that_hangs_is_done_without(void)
{
	setenv("RDMUX_ACM_TIMEOUT", "30", 1);
	start_service(HANGS);
	for (int i = 0; i < 4; i++)
		CHECK(lifetime_of_path() != LIFETIME);
	/* Lookups send requests, too; after two failures ACM is left alone. Its thread may read them later. */
	while (questions < 2)
		sched_yield();
	EQUAL(questions, 2);
	stop_service();
}

static void a_service_that_closes_sends_no_signal(void)
{
	start_service(CLOSES);
	for (int i = 0; i < 4; i++)
		CHECK(lifetime_of_path() != LIFETIME);
	stop_service();
}

static void a_connection_that_was_closed_is_made_again(void)
{
	start_service(CLOSES_AFTER_ONE);
	for (int i = 0; i < 4; i++)
		EQUAL(lifetime_of_path(), LIFETIME);
	stop_service();
}

static void half_an_answer_is_none(void)
{
	start_service(SAYS_HALF);
	CHECK(lifetime_of_path() != LIFETIME);
	stop_service();
}

static void nobody_is_asked_if_the_program_says_so(void)
{
	setenv("RDMA_CM_USE_IB_ACM", "0", 1);
	start_service(ANSWERS);
	CHECK(lifetime_of_path() != LIFETIME);
	EQUAL(connections, 0);
	stop_service();
}

static void a_service_that_cannot_be_started_is_done_without(void)
{
	setenv("RDMA_CM_USE_IB_ACM", "1", 1);
	setenv("RDMUX_ACM_DIR", "/nonexistent", 1);
	setenv("RDMUX_DAEMON", "/nonexistent/rdmux", 1);
	setenv("PATH", "/nonexistent", 1);
	CHECK(lifetime_of_path() != LIFETIME);
}

static void a_child_has_a_connection_of_its_own(void)
{
	int child;

	start_service(ANSWERS);
	EQUAL(lifetime_of_path(), LIFETIME);
	if ((child = check_fork()) == 0) {
		EQUAL(lifetime_of_path(), LIFETIME);
		exit(0);
	}
	check_child(child);
	EQUAL(lifetime_of_path(), LIFETIME);
	EQUAL(connections, 2);
	stop_service();
}

static void *many(void *arg)
{
	for (int i = 0; i < 20; i++)
		EQUAL(lifetime_of_path(), LIFETIME);
	return arg;
}

static void threads_ask_at_the_same_time(void)
{
	pthread_t threads[8];

	start_service(ANSWERS);
	for (int i = 0; i < 8; i++)
		EQUAL(pthread_create(&threads[i], NULL, many, NULL), 0);
	for (int i = 0; i < 8; i++)
		EQUAL(pthread_join(threads[i], NULL), 0);
	stop_service();
}

static const struct test tests[] = {
	TEST(a_lookup_has_the_path_that_acm_knows),
	TEST(a_lookup_that_is_to_be_quick_asks_for_what_is_cached),
	TEST(a_destination_without_a_name_has_its_path),
	TEST(a_route_is_the_path_that_acm_knows),
	TEST(an_endpoint_uses_the_path_that_acm_knows),
	TEST(a_path_that_contradicts_the_address_is_not_used),
	TEST(a_service_that_hangs_is_done_without),
	TEST(a_service_that_closes_sends_no_signal),
	TEST(a_connection_that_was_closed_is_made_again),
	TEST(half_an_answer_is_none),
	TEST(nobody_is_asked_if_the_program_says_so),
	TEST(a_service_that_cannot_be_started_is_done_without),
	TEST(a_child_has_a_connection_of_its_own),
	TEST(threads_ask_at_the_same_time),
};

CHECK_MAIN(tests)
