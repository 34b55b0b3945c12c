/* iWARP devices: which ones are listed, their attributes and errors, and connections on which either side sends first. */
#define _GNU_SOURCE
#include "fixture.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdmux/iwarp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	MESSAGES = 8,
	LENGTH = 4 << 20, /* all of them are more than sockets hold */
};

static void see(const char *devices)
{
	setenv("RDMUX_DEVICE", devices, 1);
}

/* Returns how many devices are listed, and their names. */
static int names(const char *devices, const char *name[2])
{
	struct ibv_device **list;
	int count = -1;

	see(devices);
	CHECK((list = ibv_get_device_list(&count)) != NULL);
	for (int i = 0; i < count && i < 2; i++)
		name[i] = ibv_get_device_name(list[i]);
	ibv_free_device_list(list);
	return count;
}

static void chosen_by_kind(void)
{
	const char *name[2];

	EQUAL(names("roce", name), 1);
	CHECK(strcmp(name[0], "rdmux_roce0") == 0);
	EQUAL(names("iw", name), 1);
	CHECK(strcmp(name[0], "rdmux_iw0") == 0);
	EQUAL(names("all", name), 2);
	CHECK(strcmp(name[0], "rdmux_roce0") == 0 && strcmp(name[1], "rdmux_iw0") == 0);
	EQUAL(names("", name), 1);
	CHECK(strcmp(name[0], "rdmux_roce0") == 0);
	EQUAL(names("tokenring", name), 0);
}

static void what_it_is(void)
{
	struct ibv_context *device;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	union ibv_gid gid;
	uint16_t pkey;

	see("iw");
	device = open_device();
	EQUAL(device->device->node_type, IBV_NODE_RNIC);
	EQUAL(device->device->transport_type, IBV_TRANSPORT_IWARP);
	EQUAL(ibv_query_device(device, &attr), 0);
	EQUAL(attr.max_qp_rd_atom, 128);
	EQUAL(attr.max_qp_init_rd_atom, 128);
	EQUAL(attr.atomic_cap, IBV_ATOMIC_HCA);
	EQUAL(attr.max_ah + attr.max_mcast_grp + attr.max_mcast_qp_attach, 0);
	EQUAL(attr.max_pkeys, 1);
	EQUAL(attr.device_cap_flags & (IBV_DEVICE_XRC | IBV_DEVICE_RC_RNR_NAK_GEN), 0);
	EQUAL(ibv_query_port(device, PORT, &port), 0);
	EQUAL(port.state, IBV_PORT_ACTIVE);
	EQUAL(port.link_layer, IBV_LINK_LAYER_ETHERNET);
	EQUAL(port.lid, 0);
	EQUAL(port.gid_tbl_len, 1);
	EQUAL(ibv_query_gid(device, PORT, 0, &gid), 0);
	CHECK(gid.raw[0] == 2 && gid.global.interface_id == 0);
	SETS(ibv_query_gid(device, PORT, 1, &gid), EINVAL);
	EQUAL(ibv_query_pkey(device, PORT, 0, &pkey), 0);
	EQUAL(ibv_close_device(device), 0);
}

static void what_it_refuses(void)
{
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = PORT };
	struct ibv_xrcd_init_attr xrcd = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = O_CREAT,
	};
	struct ibv_qp_init_attr attr = { .cap = { 4, 4, 1, 1, 0 } };
	union ibv_gid group = { .raw = { 0xff, 0x0e } };
	struct ibv_context *device;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_ece ece;

	see("iw");
	device = open_device();
	CHECK((pd = ibv_alloc_pd(device)) != NULL);
	CHECK((cq = ibv_create_cq(device, 8, NULL, NULL, 0)) != NULL);
	attr.send_cq = attr.recv_cq = cq;
	attr.qp_type = IBV_QPT_UD;
	REFUSED(ibv_create_qp(pd, &attr), EOPNOTSUPP);
	attr.qp_type = IBV_QPT_UC;
	REFUSED(ibv_create_qp(pd, &attr), EOPNOTSUPP);
	attr.qp_type = IBV_QPT_RC;
	CHECK((qp = ibv_create_qp(pd, &attr)) != NULL);
	REFUSED(ibv_create_ah(pd, &ah), EOPNOTSUPP);
	REFUSED(ibv_open_xrcd(device, &xrcd), EOPNOTSUPP);
	RETURNS(ibv_attach_mcast(qp, &group, 0), EOPNOTSUPP);
	RETURNS(ibv_query_ece(qp, &ece), EOPNOTSUPP);
	EQUAL(ibv_destroy_qp(qp), 0);
	EQUAL(ibv_destroy_cq(cq), 0);
	EQUAL(ibv_dealloc_pd(pd), 0);
	EQUAL(ibv_close_device(device), 0);
}

/* Returns an IPv4 address of the host, without a port. */
static struct sockaddr_in own_address(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct fixture f;

	see("roce");
	open_fixture(&f);
	memcpy(&address.sin_addr, f.gid.raw + 12, 4);
	close_fixture(&f);
	return address;
}

static void an_id_has_the_right_device(void)
{
	struct sockaddr_in address = own_address();
	struct rdma_event_channel *events;
	struct ibv_context **all;
	struct rdma_cm_id *id;
	int count;

	see("all");
	CHECK((all = rdma_get_devices(&count)) != NULL);
	EQUAL(count, 2);
	CHECK(!all[2] && all[0]->device->node_type == IBV_NODE_CA &&
	      all[1]->device->node_type == IBV_NODE_RNIC);
	CHECK((events = rdma_create_event_channel()) != NULL);
	EQUAL(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_bind_addr(id, (struct sockaddr *)&address), 0);
	CHECK(id->verbs == all[0]);
	EQUAL(rdma_listen(id, 1), 0);
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(events);
	rdma_free_devices(all);
}

static void the_option(void)
{
	struct rdma_event_channel *events;
	struct rdma_cm_id *id;
	int on = 1, other = 2;

	see("iw");
	CHECK((events = rdma_create_event_channel()) != NULL);
	EQUAL(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_set_option(id, RDMUX_OPTION_IWARP, RDMUX_OPTION_IWARP_PEER_TO_PEER, &on,
			      sizeof(on)), 0);
	SETS(rdma_set_option(id, RDMUX_OPTION_IWARP, RDMUX_OPTION_IWARP_PEER_TO_PEER, &other,
			     sizeof(other)), EINVAL);
	SETS(rdma_set_option(id, RDMUX_OPTION_IWARP, RDMUX_OPTION_IWARP_PEER_TO_PEER, &on, 1),
	     EINVAL);
	SETS(rdma_set_option(id, RDMUX_OPTION_IWARP, 77, &on, sizeof(on)), ENOSYS);
	EQUAL(rdma_destroy_id(id), 0);
	EQUAL(rdma_create_id(events, &id, NULL, RDMA_PS_UDP), 0);
	SETS(rdma_set_option(id, RDMUX_OPTION_IWARP, RDMUX_OPTION_IWARP_PEER_TO_PEER, &on,
			     sizeof(on)), EINVAL);
	EQUAL(rdma_destroy_id(id), 0);
	setenv("RDMUX_PEER_TO_PEER", "maybe", 1);
	SETS(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), EINVAL);
	rdma_destroy_event_channel(events);
}

/* Creates an endpoint that listens at an address, or that has resolved it. */
static struct rdma_cm_id *endpoint(bool passive, struct sockaddr_in *address)
{
	struct rdma_addrinfo info = {
		.ai_flags = passive ? RAI_PASSIVE : 0,
		.ai_family = AF_INET,
		.ai_qp_type = IBV_QPT_RC,
		.ai_port_space = RDMA_PS_TCP,
		.ai_src_addr = passive ? (struct sockaddr *)address : NULL,
		.ai_src_len = passive ? sizeof(*address) : 0,
		.ai_dst_addr = passive ? NULL : (struct sockaddr *)address,
		.ai_dst_len = passive ? 0 : sizeof(*address),
	};
	struct ibv_qp_init_attr attr = {
		.cap = { MESSAGES, MESSAGES, 1, 1, 0 },
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *id;

	see("iw");
	EQUAL(rdma_create_ep(&id, &info, NULL, &attr), 0);
	return id;
}

/* Allocates memory of an id, filled with this byte, and registers it. */
static struct ibv_mr *memory(struct rdma_cm_id *id, int byte)
{
	uint8_t *bytes = malloc(MESSAGES * LENGTH);
	struct ibv_mr *mr;

	CHECK(bytes);
	memset(bytes, byte, MESSAGES * LENGTH);
	CHECK((mr = rdma_reg_msgs(id, bytes, MESSAGES * LENGTH)) != NULL);
	return mr;
}

static uint8_t *place(struct ibv_mr *mr, int n)
{
	return (uint8_t *)mr->addr + n * LENGTH;
}

/* Receives so many messages, all filled with this byte. */
static void receive(struct rdma_cm_id *id, struct ibv_mr *mr, int count, int byte)
{
	struct ibv_wc wc;

	for (int n = 0; n < count; n++) {
		EQUAL(rdma_get_recv_comp(id, &wc), 1);
		EQUAL(wc.status, IBV_WC_SUCCESS);
		EQUAL(wc.byte_len, LENGTH);
		for (int i = 0; i < LENGTH; i++)
			EQUAL(place(mr, n)[i], byte);
	}
}

static void post_receives(struct rdma_cm_id *id, struct ibv_mr *mr)
{
	for (int n = 0; n < MESSAGES; n++)
		EQUAL(rdma_post_recv(id, NULL, place(mr, n), LENGTH, mr), 0);
}

static void post_sends(struct rdma_cm_id *id, struct ibv_mr *mr)
{
	for (int n = 0; n < MESSAGES; n++)
		EQUAL(rdma_post_send(id, NULL, place(mr, n), LENGTH, mr, 0), 0);
}

/* The connecting side. It asks for a mode. If either side may send first, it receives before it sends. */
static void connecting(struct sockaddr_in *address, bool asked, bool either)
{
	struct rdma_cm_id *id = endpoint(false, address);
	struct ibv_mr *in = memory(id, 0), *out = memory(id, 2);
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1 };
	int mode = asked;

	post_receives(id, in);
	EQUAL(rdma_set_option(id, RDMUX_OPTION_IWARP, RDMUX_OPTION_IWARP_PEER_TO_PEER, &mode,
			      sizeof(mode)), 0);
	SETS(rdmux_event_peer_to_peer(id->event), ENODATA); /* of the route */
	EQUAL(rdma_connect(id, &param), 0);
	EQUAL(id->verbs->device->transport_type, IBV_TRANSPORT_IWARP);
	EQUAL(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
	EQUAL(rdmux_event_peer_to_peer(id->event), either);
	if (either)
		receive(id, in, MESSAGES, 1);
	/* Requests posted before the end are delivered. */
	post_sends(id, out);
	EQUAL(rdma_disconnect(id), 0);
	rdma_destroy_ep(id);
}

/* Connects two processes, of which the connecting one asks for a mode. `either`: whether either side may then send first. */
static void converse(bool asked, bool either)
{
	struct sockaddr_in address = own_address();
	struct rdma_cm_id *listener, *id;
	struct ibv_mr *in, *out;
	int ends[2], child;

	EQUAL(pipe2(ends, O_CLOEXEC), 0);
	child = check_fork();
	if (child == 0) {
		close(ends[1]);
		EQUAL(read(ends[0], &address, sizeof(address)), sizeof(address));
		connecting(&address, asked, either);
		exit(0);
	}
	listener = endpoint(true, &address);
	EQUAL(rdma_listen(listener, 1), 0);
	address = *(struct sockaddr_in *)rdma_get_local_addr(listener);
	EQUAL(write(ends[1], &address, sizeof(address)), sizeof(address));
	EQUAL(rdma_get_request(listener, &id), 0);
	EQUAL(id->verbs->device->transport_type, IBV_TRANSPORT_IWARP);
	EQUAL(id->event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
	EQUAL(rdmux_event_peer_to_peer(id->event), either);
	in = memory(id, 0);
	out = memory(id, 1);
	post_receives(id, in);
	EQUAL(rdma_accept(id, NULL), 0);
	EQUAL(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
	EQUAL(rdmux_event_peer_to_peer(id->event), either);
	if (either)
		post_sends(id, out);
	receive(id, in, MESSAGES, 2);
	EQUAL(rdma_disconnect(id), 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	check_child(child);
}

static void the_passive_side_sends_first(void)
{
	converse(true, true);
}

static void the_active_side_sends_first(void)
{
	converse(false, false);
}

/* A peer of MPA's first revision does not support the mode: the event says that the active side sends first. */
static void the_event_says_that_the_mode_was_not_to_be_had(void)
{
	setenv("RDMUX_HOST", getenv("RDMUX_OLD_HOST"), 1);
	converse(true, false);
}

struct polling {
	struct ibv_cq *cq;
	_Atomic int is_cancelled;
};

static void *polls_to_the_end(void *argument)
{
	struct polling *polling = argument;
	struct ibv_wc wc;
	int n;

	while (!polling->is_cancelled)
		;
	while ((n = ibv_poll_cq(polling->cq, 1, &wc)) == 0)
		;
	EQUAL(n, 1);
	EQUAL(wc.status, IBV_WC_WR_FLUSH_ERR);
	/* The stream may be closed a little later. */
	for (int i = 0; i < 1000; i++)
		CHECK(ibv_poll_cq(polling->cq, 1, &wc) >= 0);
	pthread_testcancel();
	return NULL;
}

/* Cancels a thread, and then lets the peer end the connection whose completions the thread polls. */
static void end_while_cancelled(void)
{
	static uint8_t byte;
	struct sockaddr_in address = own_address();
	struct rdma_cm_id *listener, *id;
	struct polling polling = { 0 };
	struct ibv_mr *mr;
	int ends[2], child;
	pthread_t poller;
	void *result;

	EQUAL(pipe2(ends, O_CLOEXEC), 0);
	child = check_fork();
	if (child == 0) {
		struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1 };

		close(ends[1]);
		EQUAL(read(ends[0], &address, sizeof(address)), sizeof(address));
		id = endpoint(false, &address);
		EQUAL(rdma_connect(id, &param), 0);
		EQUAL(read(ends[0], &byte, 1), 1);
		EQUAL(rdma_disconnect(id), 0);
		rdma_destroy_ep(id);
		exit(0);
	}
	listener = endpoint(true, &address);
	EQUAL(rdma_listen(listener, 1), 0);
	address = *(struct sockaddr_in *)rdma_get_local_addr(listener);
	EQUAL(write(ends[1], &address, sizeof(address)), sizeof(address));
	EQUAL(rdma_get_request(listener, &id), 0);
	CHECK((mr = rdma_reg_msgs(id, &byte, 1)) != NULL);
	EQUAL(rdma_post_recv(id, NULL, &byte, 1, mr), 0);
	EQUAL(rdma_accept(id, NULL), 0);
	polling.cq = id->recv_cq;
	EQUAL(pthread_create(&poller, NULL, polls_to_the_end, &polling), 0);
	EQUAL(pthread_cancel(poller), 0);
	polling.is_cancelled = 1;
	EQUAL(write(ends[1], "", 1), 1);
	EQUAL(pthread_join(poller, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
	rdma_disconnect(id);
	EQUAL(rdma_dereg_mr(mr), 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	close(ends[0]);
	close(ends[1]);
	check_child(child);
}

/* Polling is no cancellation point, even when it closes a stream that the peer has ended. The library's own thread closes some. */
static void cancelled_while_it_polls_to_the_end(void)
{
	for (int i = 0; i < 10; i++)
		end_while_cancelled();
}

static struct rdma_cm_event *next(struct rdma_event_channel *events, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	EQUAL(rdma_get_cm_event(events, &event), 0);
	EQUAL(event->event, type);
	SETS(rdmux_event_peer_to_peer(event), ENODATA);
	return event;
}

static void events_of_other_devices_have_no_mode(void)
{
	struct sockaddr_in address = own_address();
	struct rdma_conn_param param = { .qp_num = 0x1234 };
	struct rdma_cm_id *listener, *id;
	struct rdma_event_channel *events;
	struct rdma_cm_event *event;

	see("roce");
	SETS(rdmux_event_peer_to_peer(NULL), EINVAL);
	CHECK((events = rdma_create_event_channel()) != NULL);
	EQUAL(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_bind_addr(listener, (struct sockaddr *)&address), 0);
	EQUAL(rdma_listen(listener, 1), 0);
	EQUAL(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_resolve_addr(id, NULL, rdma_get_local_addr(listener), 2000), 0);
	EQUAL(rdma_ack_cm_event(next(events, RDMA_CM_EVENT_ADDR_RESOLVED)), 0);
	EQUAL(rdma_resolve_route(id, 2000), 0);
	EQUAL(rdma_ack_cm_event(next(events, RDMA_CM_EVENT_ROUTE_RESOLVED)), 0);
	EQUAL(rdma_connect(id, &param), 0);
	event = next(events, RDMA_CM_EVENT_CONNECT_REQUEST);
	EQUAL(rdma_reject(event->id, NULL, 0), 0);
	EQUAL(rdma_ack_cm_event(next(events, RDMA_CM_EVENT_REJECTED)), 0);
	EQUAL(rdma_destroy_id(event->id), 0);
	EQUAL(rdma_ack_cm_event(event), 0);
	EQUAL(rdma_destroy_id(id), 0);
	EQUAL(rdma_destroy_id(listener), 0);
	rdma_destroy_event_channel(events);
}

static const struct test tests[] = {
	TEST(chosen_by_kind),
	TEST(what_it_is),
	TEST(what_it_refuses),
	TEST(an_id_has_the_right_device),
	TEST(the_option),
	TEST(the_passive_side_sends_first),
	TEST(the_active_side_sends_first),
	TEST(the_event_says_that_the_mode_was_not_to_be_had),
	TEST(cancelled_while_it_polls_to_the_end),
	TEST(events_of_other_devices_have_no_mode),
};

CHECK_MAIN(tests)
