/* Invalid arguments to librdmacm, and calls at the wrong time. */
#include "fixture.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct cm {
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	struct sockaddr_in here; /* an address of the device, no port */
};

static void open_cm(struct cm *c, enum rdma_port_space ps)
{
	struct fixture f;

	open_fixture(&f);
	c->here = (struct sockaddr_in){ .sin_family = AF_INET };
	memcpy(&c->here.sin_addr, f.gid.raw + 12, 4);
	close_fixture(&f);
	CHECK((c->events = rdma_create_event_channel()) != NULL);
	EQUAL(rdma_create_id(c->events, &c->id, c, ps), 0);
}

static void close_cm(struct cm *c)
{
	EQUAL(rdma_destroy_id(c->id), 0);
	rdma_destroy_event_channel(c->events);
}

static struct sockaddr *any(struct sockaddr_in *address)
{
	return (struct sockaddr *)address;
}

/* Reads the next event, which must be of this type. */
static void expect(struct cm *c, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	EQUAL(rdma_get_cm_event(c->events, &event), 0);
	EQUAL(event->event, type);
	EQUAL(event->status, 0);
	EQUAL(rdma_ack_cm_event(event), 0);
}

static void identifiers(void)
{
	struct rdma_cm_id *id;
	struct cm c;

	open_cm(&c, RDMA_PS_TCP);
	CHECK(c.id->context == &c && c.id->channel == c.events && c.id->ps == RDMA_PS_TCP);
	CHECK(!c.id->verbs && !c.id->qp && !c.id->event);
	EQUAL(rdma_create_id(c.events, &id, NULL, 0x7777), -1);
	EQUAL(rdma_get_src_port(c.id), 0);
	EQUAL(rdma_get_dst_port(c.id), 0);
	close_cm(&c);
}

static void at_the_wrong_time(void)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct rdma_cm_event *event;
	struct cm c;

	open_cm(&c, RDMA_PS_TCP);
	SETS(rdma_resolve_route(c.id, 100), EINVAL);
	SETS(rdma_connect(c.id, &param), EINVAL);
	SETS(rdma_accept(c.id, &param), EINVAL);
	SETS(rdma_reject(c.id, NULL, 0), EINVAL);
	SETS(rdma_disconnect(c.id), EINVAL);
	SETS(rdma_create_qp(c.id, NULL, &attr), EINVAL);
	SETS(rdma_notify(c.id, IBV_EVENT_COMM_EST), EINVAL);
	SETS(rdma_get_cm_event(c.events, NULL), EINVAL);
	SETS(rdma_get_cm_event(NULL, &event), EINVAL);
	SETS(rdma_ack_cm_event(NULL), EINVAL);
	close_cm(&c);
}

/* NULL in place of an object or a variable. */
static void null_pointers(void)
{
	struct ibv_qp_init_attr attr = { 0 };
	struct rdma_addrinfo info = { 0 };
	struct rdma_cm_id *id;
	struct ibv_qp_attr qp;
	struct cm c;
	int mask;

	open_cm(&c, RDMA_PS_TCP);
	SETS(rdma_create_id(c.events, NULL, NULL, RDMA_PS_TCP), EINVAL);
	SETS(rdma_destroy_id(NULL), EINVAL);
	SETS(rdma_bind_addr(c.id, NULL), EINVAL);
	SETS(rdma_bind_addr(NULL, any(&c.here)), EINVAL);
	SETS(rdma_resolve_addr(c.id, NULL, NULL, 100), EINVAL);
	SETS(rdma_resolve_route(NULL, 100), EINVAL);
	SETS(rdma_listen(NULL, 1), EINVAL);
	SETS(rdma_connect(NULL, NULL), EINVAL);
	SETS(rdma_accept(NULL, NULL), EINVAL);
	SETS(rdma_reject(NULL, NULL, 0), EINVAL);
	SETS(rdma_disconnect(NULL), EINVAL);
	SETS(rdma_establish(NULL), EINVAL);
	SETS(rdma_create_qp(c.id, NULL, NULL), EINVAL);
	SETS(rdma_create_qp(NULL, NULL, &attr), EINVAL);
	SETS(rdma_create_qp_ex(c.id, NULL), EINVAL);
	SETS(rdma_create_srq(c.id, NULL, NULL), EINVAL);
	SETS(rdma_create_srq_ex(c.id, NULL), EINVAL);
	SETS(rdma_init_qp_attr(c.id, NULL, &mask), EINVAL);
	SETS(rdma_init_qp_attr(c.id, &qp, NULL), EINVAL);
	SETS(rdma_set_option(c.id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1), EINVAL);
	SETS(rdma_join_multicast(c.id, NULL, NULL), EINVAL);
	SETS(rdma_join_multicast_ex(c.id, NULL, NULL), EINVAL);
	SETS(rdma_leave_multicast(c.id, NULL), EINVAL);
	SETS(rdma_migrate_id(NULL, c.events), EINVAL);
	SETS(rdma_get_request(NULL, &id), EINVAL);
	SETS(rdma_create_ep(NULL, &info, NULL, NULL), EINVAL);
	SETS(rdma_create_ep(&id, NULL, NULL, NULL), EINVAL);
	SETS(rdma_getaddrinfo("127.0.0.1", NULL, NULL, NULL), EINVAL);
	SETS(rdma_set_local_ece(c.id, NULL), EINVAL);
	SETS(rdma_get_remote_ece(c.id, NULL), EINVAL);
	/* An endpoint with more connect data than any message holds. */
	info.ai_connect = &info;
	info.ai_connect_len = SIZE_MAX;
	info.ai_port_space = RDMA_PS_TCP;
	info.ai_qp_type = IBV_QPT_RC;
	SETS(rdma_create_ep(&id, &info, NULL, NULL), EINVAL);
	rdma_destroy_event_channel(NULL);
	rdma_freeaddrinfo(NULL);
	rdma_destroy_ep(NULL);
	rdma_destroy_qp(NULL);
	rdma_destroy_srq(NULL);
	close_cm(&c);
}

static void binding(void)
{
	struct sockaddr_in nowhere = { .sin_family = AF_INET };
	struct sockaddr odd = { .sa_family = AF_UNIX };
	struct rdma_cm_id *second;
	struct cm c;

	open_cm(&c, RDMA_PS_TCP);
	inet_pton(AF_INET, "192.0.2.1", &nowhere.sin_addr);
	EQUAL(rdma_bind_addr(c.id, any(&nowhere)), -1);
	CHECK(rdma_bind_addr(c.id, &odd) == -1);
	EQUAL(rdma_bind_addr(c.id, any(&c.here)), 0);
	CHECK(c.id->verbs && c.id->port_num == PORT && c.id->pd);
	CHECK(rdma_get_src_port(c.id) != 0);
	CHECK(rdma_get_local_addr(c.id)->sa_family == AF_INET);
	SETS(rdma_bind_addr(c.id, any(&c.here)), EINVAL);
	/* The same port, while another id listens on it. */
	EQUAL(rdma_listen(c.id, 1), 0);
	c.here.sin_port = rdma_get_src_port(c.id);
	EQUAL(rdma_create_id(c.events, &second, NULL, RDMA_PS_TCP), 0);
	SETS(rdma_bind_addr(second, any(&c.here)), EADDRINUSE);
	EQUAL(rdma_destroy_id(second), 0);
	close_cm(&c);
}

/* As in the kernel: EADDRNOTAVAIL if one of two claims on a port is for the wildcard address, and EADDRINUSE if both
 * are for the same one. */
static void bind_to_a_port_taken_on_the_wildcard(void)
{
	struct sockaddr_in wildcard = { .sin_family = AF_INET };
	struct rdma_cm_id *second;
	struct cm c;

	open_cm(&c, RDMA_PS_TCP);
	EQUAL(rdma_bind_addr(c.id, any(&wildcard)), 0);
	wildcard.sin_port = c.here.sin_port = rdma_get_src_port(c.id);
	EQUAL(rdma_create_id(c.events, &second, NULL, RDMA_PS_TCP), 0);
	SETS(rdma_bind_addr(second, any(&c.here)), EADDRNOTAVAIL);
	SETS(rdma_bind_addr(second, any(&wildcard)), EADDRNOTAVAIL);
	EQUAL(rdma_destroy_id(c.id), 0);
	EQUAL(rdma_bind_addr(second, any(&c.here)), 0);
	EQUAL(rdma_create_id(c.events, &c.id, NULL, RDMA_PS_TCP), 0);
	SETS(rdma_bind_addr(c.id, any(&wildcard)), EADDRNOTAVAIL);
	SETS(rdma_bind_addr(c.id, any(&c.here)), EADDRINUSE);
	EQUAL(rdma_destroy_id(second), 0);
	close_cm(&c);
}

static void listening_without_an_address(void)
{
	struct cm c;

	open_cm(&c, RDMA_PS_TCP);
	EQUAL(rdma_listen(c.id, 0), 0);
	CHECK(rdma_get_src_port(c.id) != 0);
	EQUAL(rdma_listen(c.id, 5) == 0 || errno == EINVAL, 1);
	close_cm(&c);
}

static void options(void)
{
	uint8_t tos = 32;
	int yes = 1;
	struct cm c;

	open_cm(&c, RDMA_PS_TCP);
	EQUAL(rdma_set_option(c.id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)), 0);
	EQUAL(rdma_set_option(c.id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &yes, sizeof(yes)), 0);
	SETS(rdma_set_option(c.id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &yes, sizeof(yes)), EINVAL);
	CHECK(rdma_set_option(c.id, RDMA_OPTION_ID, 99, &yes, sizeof(yes)) == -1);
	CHECK(rdma_set_option(c.id, 99, 0, &yes, sizeof(yes)) == -1);
	close_cm(&c);
}

/* Resolved, but there is no listener. */
static void nobody_listens(void)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct rdma_cm_event *event;
	struct cm c;

	open_cm(&c, RDMA_PS_TCP);
	c.here.sin_port = htons(1);
	EQUAL(rdma_resolve_addr(c.id, NULL, any(&c.here), 2000), 0);
	expect(&c, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(c.id->verbs && c.id->pd);
	EQUAL(rdma_get_dst_port(c.id), htons(1));
	EQUAL(rdma_resolve_route(c.id, 2000), 0);
	expect(&c, RDMA_CM_EVENT_ROUTE_RESOLVED);
	EQUAL(c.id->route.num_paths, 1);
	EQUAL(rdma_create_qp(c.id, NULL, &attr), 0);
	CHECK(c.id->qp && c.id->send_cq && c.id->recv_cq);
	EQUAL(rdma_connect(c.id, &param), 0);
	EQUAL(rdma_get_cm_event(c.events, &event), 0);
	EQUAL(event->event, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status != 0);
	EQUAL(rdma_ack_cm_event(event), 0);
	rdma_destroy_qp(c.id);
	CHECK(!c.id->qp);
	close_cm(&c);
}

/* More private data than any message holds, more depth than any queue pair has, invalid numbers. */
static void too_much(void)
{
	static const uint8_t data[255];
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct rdma_cm_id *other;
	struct cm c;

	open_cm(&c, RDMA_PS_TCP);
	EQUAL(rdma_create_id(c.events, &other, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_bind_addr(other, any(&c.here)), 0);
	EQUAL(rdma_listen(other, INT_MAX), 0);
	EQUAL(rdma_destroy_id(other), 0);
	EQUAL(rdma_create_id(c.events, &other, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_bind_addr(other, any(&c.here)), 0);
	EQUAL(rdma_listen(other, INT_MIN), 0);
	EQUAL(rdma_destroy_id(other), 0);
	for (int ps = -2; ps < 0x200; ps++) {
		if (rdma_create_id(c.events, &other, NULL, ps) == 0)
			EQUAL(rdma_destroy_id(other), 0);
	}
	c.here.sin_port = htons(1);
	EQUAL(rdma_resolve_addr(c.id, NULL, any(&c.here), INT_MAX), 0);
	expect(&c, RDMA_CM_EVENT_ADDR_RESOLVED);
	EQUAL(rdma_resolve_route(c.id, INT_MAX), 0);
	expect(&c, RDMA_CM_EVENT_ROUTE_RESOLVED);
	attr.cap.max_send_wr = UINT_MAX;
	CHECK(rdma_create_qp(c.id, NULL, &attr) == -1 && !c.id->qp && !c.id->send_cq);
	attr.cap.max_send_wr = 1;
	attr.cap.max_recv_wr = 1u << 31;
	CHECK(rdma_create_qp(c.id, NULL, &attr) == -1 && !c.id->qp && !c.id->recv_cq);
	attr.cap.max_recv_wr = 1;
	EQUAL(rdma_create_qp(c.id, NULL, &attr), 0);
	param.private_data = data;
	param.private_data_len = sizeof(data);
	SETS(rdma_connect(c.id, &param), EINVAL);
	param.private_data_len = 0;
	param.responder_resources = 200;
	SETS(rdma_connect(c.id, &param), EINVAL);
	param.responder_resources = 1;
	param.initiator_depth = 200;
	SETS(rdma_connect(c.id, &param), EINVAL);
	SETS(rdma_reject(c.id, data, sizeof(data)), EINVAL);
	rdma_destroy_qp(c.id);
	close_cm(&c);
}

static void synchronous(void)
{
	struct rdma_cm_id *id;
	struct cm c;

	open_cm(&c, RDMA_PS_TCP);
	EQUAL(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	c.here.sin_port = htons(1);
	EQUAL(rdma_resolve_addr(id, NULL, any(&c.here), 2000), 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	EQUAL(rdma_resolve_route(id, 2000), 0);
	SETS(rdma_resolve_route(id, 2000), EINVAL);
	EQUAL(rdma_destroy_id(id), 0);
	close_cm(&c);
}

static void migration(void)
{
	struct rdma_event_channel *other;
	struct cm c;

	open_cm(&c, RDMA_PS_TCP);
	EQUAL(rdma_bind_addr(c.id, any(&c.here)), 0);
	CHECK((other = rdma_create_event_channel()) != NULL);
	EQUAL(rdma_migrate_id(c.id, other), 0);
	CHECK(c.id->channel == other);
	EQUAL(rdma_resolve_addr(c.id, NULL, any(&c.here), 2000), 0);
	rdma_destroy_event_channel(c.events);
	c.events = other;
	expect(&c, RDMA_CM_EVENT_ADDR_RESOLVED);
	close_cm(&c);
}

static void names_and_services(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found = NULL;

	EQUAL(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &found), 0);
	CHECK(found && found->ai_dst_addr && found->ai_family == AF_INET);
	EQUAL(((struct sockaddr_in *)found->ai_dst_addr)->sin_port, htons(7471));
	rdma_freeaddrinfo(found);
	hints.ai_flags = RAI_NUMERICHOST;
	CHECK(rdma_getaddrinfo("no.such.name.invalid", "1", &hints, &found) != 0);
	hints.ai_flags = RAI_PASSIVE;
	EQUAL(rdma_getaddrinfo(NULL, "7471", &hints, &found), 0);
	CHECK(found && found->ai_src_addr);
	rdma_freeaddrinfo(found);
}

static void names_of_events(void)
{
	for (int i = -1; i < 99; i++)
		CHECK(rdma_event_str(i) != NULL);
	EQUAL(strcmp(rdma_event_str(RDMA_CM_EVENT_ESTABLISHED), "RDMA_CM_EVENT_ESTABLISHED"), 0);
}

/* None of them is an rsocket, so the calls behave as poll(2) and select(2). */
static void ordinary_descriptors(void)
{
	struct pollfd look;
	fd_set readable;
	int fds[2];

	EQUAL(pipe(fds), 0);
	look = (struct pollfd){ .fd = fds[0], .events = POLLIN };
	EQUAL(rpoll(&look, 1, 0), 0);
	EQUAL(write(fds[1], "", 1), 1);
	EQUAL(rpoll(&look, 1, -1), 1);
	EQUAL(look.revents, POLLIN);
	FD_ZERO(&readable);
	FD_SET(fds[0], &readable);
	EQUAL(rselect(fds[0] + 1, &readable, NULL, NULL, NULL), 1);
	CHECK(FD_ISSET(fds[0], &readable));
}

static void no_rsockets_yet(void)
{
	CHECK(rsocket(AF_INET, SOCK_STREAM, 0) == -1 && errno != 0);
	CHECK(rsend(-1, "", 1, 0) == -1);
	CHECK(rclose(-1) == -1);
}

static const struct test tests[] = {
	TEST(identifiers),
	TEST(at_the_wrong_time),
	TEST(null_pointers),
	TEST(binding),
	TEST(bind_to_a_port_taken_on_the_wildcard),
	TEST(listening_without_an_address),
	TEST(options),
	TEST(nobody_listens),
	TEST(too_much),
	TEST(synchronous),
	TEST(migration),
	TEST(names_and_services),
	TEST(names_of_events),
	TEST(ordinary_descriptors),
	TEST(no_rsockets_yet),
};

CHECK_MAIN(tests)
