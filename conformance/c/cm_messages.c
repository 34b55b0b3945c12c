/* Messages between InfiniBand's connection managers (<rdmux/cm.h>), and automatic path migration by them: on RoCE from address to
 * address of the host, on InfiniBand from LID to LID and from port to port. */
#define _GNU_SOURCE
#include "check.h"

#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdmux/cm.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum {
	LENGTH = 5000,
	PRIMARY = IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL,
	ALTERNATE = IBV_PATH_FLAG_ALTERNATE | IBV_PATH_FLAG_BIDIRECTIONAL,
};
static const uint64_t service = 0x10000000cafe0001;

/* Both ends of a connection, in one process. The first is the one that connects. */
struct pair {
	struct rdma_event_channel *channel[2];
	struct rdma_cm_id *id[2], *listener;
	struct ibv_mr *mr[2];
	uint8_t *memory[2];
	bool infiniband;
};

/* ---- Paths from the host to itself ---- */

static struct ibv_port_attr port_of(struct ibv_context *device, uint8_t number)
{
	struct ibv_port_attr port;

	EQUAL(ibv_query_port(device, number, &port), 0);
	return port;
}

/* Returns the path of a number: on RoCE between the addresses of that number, on InfiniBand 0 within the first port, 1 likewise with
 * another LID at one end, 2 within the second port. */
static struct ibv_path_data path(struct ibv_context *device, uint32_t flags, int number)
{
	struct ibv_path_data data = { .flags = flags };
	struct ibv_path_record *path = &data.path;
	bool infiniband = port_of(device, 1).link_layer == IBV_LINK_LAYER_INFINIBAND;
	uint8_t port = infiniband && number == 2 ? 2 : 1;
	union ibv_gid gid;

	EQUAL(ibv_query_gid(device, port, infiniband ? 0 : number, &gid), 0);
	path->sgid = path->dgid = gid;
	if (infiniband) {
		uint16_t lid = port_of(device, port).lid;

		path->slid = htobe16(lid + (number == 1 ? 3 : 0));
		path->dlid = htobe16(lid);
	} else {
		path->flowlabel_hoplimit = htobe32(64);
	}
	path->pkey = htobe16(0xffff);
	path->mtu = IBV_MTU_1024;
	path->rate = IBV_RATE_10_GBPS;
	path->packetlifetime = 12;
	return data;
}

/* Returns the number of the alternate path, the first one of these that the host has. */
static int other(struct pair *p)
{
	return p->infiniband ? 2 : 1;
}

/* ---- Connections ---- */

static struct rdma_cm_event *event_of(struct pair *p, int end, int kind, int status)
{
	struct rdma_cm_event *event;

	EQUAL(rdma_get_cm_event(p->channel[end], &event), 0);
	if ((int)event->event != kind || event->status != status)
		FAIL("%s (%d) with status %d, not %d with %d", rdma_event_str(event->event),
		     event->event, event->status, kind, status);
	return event;
}

static void expect(struct pair *p, int end, int kind, int status)
{
	EQUAL(rdma_ack_cm_event(event_of(p, end, kind, status)), 0);
}

static void option(struct rdma_cm_id *id, int name, uint32_t value)
{
	EQUAL(rdma_set_option(id, RDMUX_OPTION_CM, name, &value, sizeof(value)), 0);
}

static void make_qp(struct pair *p, int end)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};

	EQUAL(rdma_create_qp(p->id[end], NULL, &attr), 0);
	CHECK((p->memory[end] = calloc(1, LENGTH)) != NULL);
	CHECK((p->mr[end] = rdma_reg_msgs(p->id[end], p->memory[end], LENGTH)) != NULL);
}

/* Creates a listener, and an id that has its paths: the first one, and the alternate one of this number unless it is negative. */
static struct pair *routed(int alternate)
{
	struct pair *p = calloc(1, sizeof(*p));
	struct sockaddr_ib any = { .sib_family = AF_IB, .sib_sid = htobe64(service), .sib_sid_mask = ~0ull };
	struct sockaddr_ib to = any;
	struct ibv_path_data paths[2];
	struct ibv_context **devices;
	union ibv_gid gid;

	CHECK(p != NULL);
	for (int end = 0; end < 2; end++)
		CHECK((p->channel[end] = rdma_create_event_channel()) != NULL);
	EQUAL(rdma_create_id(p->channel[1], &p->listener, NULL, RDMA_PS_IB), 0);
	EQUAL(rdma_bind_addr(p->listener, (struct sockaddr *)&any), 0);
	option(p->listener, RDMUX_OPTION_CM_MESSAGES, 1);
	EQUAL(rdma_listen(p->listener, 8), 0);

	CHECK((devices = rdma_get_devices(NULL)) != NULL);
	p->infiniband = port_of(devices[0], 1).link_layer == IBV_LINK_LAYER_INFINIBAND;
	paths[0] = path(devices[0], PRIMARY, 0);
	paths[1] = path(devices[0], ALTERNATE, alternate < 0 ? 0 : alternate);
	EQUAL(ibv_query_gid(devices[0], 1, 0, &gid), 0);
	memcpy(&to.sib_addr, &gid, sizeof(gid));
	EQUAL(rdma_create_id(p->channel[0], &p->id[0], NULL, RDMA_PS_IB), 0);
	EQUAL(rdmux_resolve_along(p->id[0], NULL, (struct sockaddr *)&to, paths, alternate < 0 ? 1 : 2),
	      0);
	expect(p, 0, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	option(p->id[0], RDMUX_OPTION_CM_MESSAGES, 1);
	rdma_free_devices(devices);
	return p;
}

static struct rdma_cm_event *request(struct pair *p)
{
	struct rdma_cm_event *event = event_of(p, 1, RDMA_CM_EVENT_CONNECT_REQUEST, 0);

	p->id[1] = event->id;
	return event;
}

static void connect_to(struct pair *p)
{
	struct rdma_conn_param param = { .retry_count = 2, .rnr_retry_count = 7,
					 .responder_resources = 1, .initiator_depth = 1 };

	EQUAL(rdma_connect(p->id[0], &param), 0);
}

static void accept_it(struct pair *p)
{
	struct rdma_conn_param param = { .rnr_retry_count = 7, .responder_resources = 1,
					 .initiator_depth = 1 };

	EQUAL(rdma_accept(p->id[1], &param), 0);
}

static struct pair *connected(int alternate)
{
	struct pair *p = routed(alternate);
	struct rdma_cm_event *event;

	make_qp(p, 0);
	connect_to(p);
	event = request(p);
	make_qp(p, 1);
	accept_it(p);
	EQUAL(rdma_ack_cm_event(event), 0);
	expect(p, 0, RDMA_CM_EVENT_ESTABLISHED, 0);
	expect(p, 1, RDMA_CM_EVENT_ESTABLISHED, 0);
	return p;
}

static void end_it(struct pair *p)
{
	EQUAL(rdma_disconnect(p->id[0]), 0);
	expect(p, 1, RDMA_CM_EVENT_DISCONNECTED, 0);
	EQUAL(rdma_disconnect(p->id[1]), 0);
	expect(p, 0, RDMA_CM_EVENT_DISCONNECTED, 0);
}

/* Sends a message each way. */
static void both_ways(struct pair *p)
{
	for (int end = 0; end < 2; end++) {
		struct ibv_wc wc;

		EQUAL(rdma_post_recv(p->id[!end], NULL, p->memory[!end], LENGTH, p->mr[!end]), 0);
		for (int i = 0; i < LENGTH; i++)
			p->memory[end][i] = i * 7 + end;
		EQUAL(rdma_post_send(p->id[end], NULL, p->memory[end], LENGTH, p->mr[end], 0), 0);
		EQUAL(rdma_get_send_comp(p->id[end], &wc), 1);
		EQUAL(wc.status, IBV_WC_SUCCESS);
		EQUAL(rdma_get_recv_comp(p->id[!end], &wc), 1);
		EQUAL(wc.status, IBV_WC_SUCCESS);
		EQUAL(memcmp(p->memory[0], p->memory[1], LENGTH), 0);
	}
}

/* ---- Migration ---- */

static struct ibv_qp_attr query(struct pair *p, int end)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	EQUAL(ibv_query_qp(p->id[end]->qp, &attr, ~0, &init), 0);
	EQUAL(attr.qp_state, IBV_QPS_RTS);
	return attr;
}

static void until_both_are(struct pair *p, enum ibv_mig_state state)
{
	while (query(p, 0).path_mig_state != state || query(p, 1).path_mig_state != state)
		sched_yield();
}

/* Checks that both ends use a path: its port, and for the connecting end its LID or address. */
static void at(struct pair *p, int number)
{
	struct ibv_path_data want = path(p->id[0]->verbs, ALTERNATE, number);

	for (int end = 0; end < 2; end++) {
		struct ibv_qp_attr attr = query(p, end);
		bool other_lid = p->infiniband && number == 1;

		EQUAL(attr.port_num, p->infiniband && number == 2 ? 2 : 1);
		if (p->infiniband) {
			EQUAL(attr.ah_attr.src_path_bits, other_lid && end == 0 ? 3 : 0);
			EQUAL(attr.ah_attr.dlid,
			      be16toh(want.path.dlid) + (other_lid && end == 1 ? 3 : 0));
		} else {
			EQUAL(attr.ah_attr.grh.sgid_index, number);
			EQUAL(memcmp(&attr.ah_attr.grh.dgid, &want.path.dgid, 16), 0);
		}
	}
}

/* One end migrates, and both get one event. */
static void migrate(struct pair *p, int end)
{
	struct ibv_qp_attr attr = { .path_mig_state = IBV_MIG_MIGRATED };
	bool told[2] = { false };

	EQUAL(ibv_modify_qp(p->id[end]->qp, &attr, IBV_QP_PATH_MIG_STATE), 0);
	while (!told[0] || !told[1]) {
		struct ibv_async_event event;
		int which;

		EQUAL(ibv_get_async_event(p->id[0]->verbs, &event), 0);
		which = event.element.qp == p->id[1]->qp;
		if (event.event_type == IBV_EVENT_PATH_MIG) {
			CHECK(event.element.qp == p->id[which]->qp && !told[which]);
			told[which] = true;
		} else {
			EQUAL(event.event_type, IBV_EVENT_COMM_EST);
		}
		ibv_ack_async_event(&event);
	}
	until_both_are(p, IBV_MIG_MIGRATED);
	for (int i = 0; i < 2; i++)
		EQUAL(rdma_notify(p->id[i], IBV_EVENT_PATH_MIG), 0);
}

static void load(struct pair *p, int number)
{
	struct ibv_path_data data = path(p->id[0]->verbs, ALTERNATE, number);

	EQUAL(rdmux_load_alternate(p->id[0], &data, 1, "please", 7), 0);
	expect(p, 1, RDMUX_CM_EVENT_ALTERNATE_REQUEST, 0);
	EQUAL(rdmux_answer_alternate(p->id[1], 0, NULL, 0, "yes", 4), 0);
	expect(p, 0, RDMUX_CM_EVENT_ALTERNATE_RESPONSE, 0);
	until_both_are(p, IBV_MIG_ARMED);
}

static void the_alternate_path_of_the_request_is_armed_and_migrated_to(void)
{
	for (int number = 1; number <= 2; number++) {
		struct pair *p = connected(number);

		until_both_are(p, IBV_MIG_ARMED);
		both_ways(p);
		at(p, 0);
		migrate(p, number - 1);
		at(p, number);
		both_ways(p);
		end_it(p);
		EQUAL(rdma_destroy_id(p->listener), 0);
		if (!p->infiniband)
			return; /* the host has two addresses */
	}
}

static void it_migrates_again_and_again_once_lap_has_loaded_a_path(void)
{
	struct pair *p = connected(-1);

	EQUAL(query(p, 0).path_mig_state, IBV_MIG_MIGRATED);
	for (int i = 0; i < 6; i++) {
		int number = i % 2 ? 0 : other(p);

		load(p, number);
		both_ways(p);
		migrate(p, i % 2);
		at(p, number);
		both_ways(p);
	}
	end_it(p);
}

static void a_path_that_is_refused_is_loaded_at_neither_end(void)
{
	struct pair *p = connected(-1);
	struct ibv_path_data data = path(p->id[0]->verbs, ALTERNATE, 1);
	struct rdmux_cm_message message;
	struct rdma_cm_event *event;

	EQUAL(rdmux_load_alternate(p->id[0], &data, 1, NULL, 0), 0);
	event = event_of(p, 1, RDMUX_CM_EVENT_ALTERNATE_REQUEST, 0);
	EQUAL(rdmux_get_message(event, &message), 0);
	EQUAL(message.kind, RDMUX_CM_LAP);
	EQUAL(message.qpn, p->id[1]->qp->qp_num);
	EQUAL(memcmp(&message.alternate.local_gid, &data.path.sgid, 16), 0);
	EQUAL(rdma_ack_cm_event(event), 0);
	EQUAL(rdmux_ask_for_time(p->id[1], 10, "soon", 5), 0);
	expect(p, 0, RDMUX_CM_EVENT_MORE_TIME, 10);
	EQUAL(rdmux_answer_alternate(p->id[1], 12, "abc", 3, "no", 3), 0);
	event = event_of(p, 0, RDMUX_CM_EVENT_ALTERNATE_RESPONSE, 12);
	EQUAL(rdmux_get_message(event, &message), 0);
	EQUAL(message.kind, RDMUX_CM_APR);
	EQUAL(message.status, 12);
	EQUAL(message.info_len, 3);
	EQUAL(memcmp(message.info, "abc", 3), 0);
	EQUAL(memcmp(message.private_data, "no", 3), 0);
	EQUAL(rdma_ack_cm_event(event), 0);
	for (int end = 0; end < 2; end++)
		EQUAL(query(p, end).path_mig_state, IBV_MIG_MIGRATED);
	SETS(rdmux_answer_alternate(p->id[1], 0, NULL, 0, NULL, 0), EINVAL);
	both_ways(p);
	/* The path in use cannot be the alternate one. */
	data = path(p->id[0]->verbs, ALTERNATE, 0);
	EQUAL(rdmux_load_alternate(p->id[0], &data, 1, NULL, 0), 0);
	expect(p, 0, RDMUX_CM_EVENT_ALTERNATE_RESPONSE, 5);
	end_it(p);
}

static void a_server_may_leave_the_alternate_path(void)
{
	struct pair *p = routed(1);
	struct rdmux_cm_message message;
	struct rdma_cm_event *event;

	make_qp(p, 0);
	connect_to(p);
	event = request(p);
	option(p->id[1], RDMUX_OPTION_CM_FAILOVER_ACCEPTED, 1);
	make_qp(p, 1);
	accept_it(p);
	EQUAL(rdma_ack_cm_event(event), 0);
	event = event_of(p, 0, RDMA_CM_EVENT_ESTABLISHED, 0);
	EQUAL(rdmux_get_message(event, &message), 0);
	EQUAL(message.kind, RDMUX_CM_REP);
	EQUAL(message.failover_accepted, 1);
	EQUAL(rdma_ack_cm_event(event), 0);
	expect(p, 1, RDMA_CM_EVENT_ESTABLISHED, 0);
	for (int end = 0; end < 2; end++)
		EQUAL(query(p, end).path_mig_state, IBV_MIG_MIGRATED);
	both_ways(p);
	end_it(p);
}

static void queue_pairs_of_the_programs_own_are_told_of_the_path(void)
{
	struct pair *p = routed(1);
	struct rdma_conn_param param = { .qp_num = 0x1234 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	int mask;

	EQUAL(rdma_connect(p->id[0], &param), 0);
	EQUAL(rdma_ack_cm_event(request(p)), 0);
	param.qp_num = 0x4321;
	EQUAL(rdma_accept(p->id[1], &param), 0);
	expect(p, 0, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	for (int end = 0; end < 2; end++) {
		attr.qp_state = IBV_QPS_RTR;
		EQUAL(rdma_init_qp_attr(p->id[end], &attr, &mask), 0);
		CHECK(mask & IBV_QP_ALT_PATH && !(mask & IBV_QP_PATH_MIG_STATE));
		EQUAL(attr.alt_port_num, 1);
		CHECK(attr.alt_timeout > 0);
		attr.qp_state = IBV_QPS_RTS;
		EQUAL(rdma_init_qp_attr(p->id[end], &attr, &mask), 0);
		CHECK(mask & IBV_QP_PATH_MIG_STATE && mask & IBV_QP_SQ_PSN);
		EQUAL(attr.path_mig_state, IBV_MIG_REARM);
	}
	EQUAL(rdma_establish(p->id[0]), 0);
	expect(p, 1, RDMA_CM_EVENT_ESTABLISHED, 0);
}

/* ---- The other messages ---- */

static void every_field_of_the_request_is_set_and_told(void)
{
	struct pair *p = routed(-1);
	struct rdmux_cm_message message;
	struct rdma_cm_event *event;

	option(p->id[0], RDMUX_OPTION_CM_REMOTE_RESPONSE_TIMEOUT, 18);
	option(p->id[0], RDMUX_OPTION_CM_LOCAL_RESPONSE_TIMEOUT, 19);
	option(p->id[0], RDMUX_OPTION_CM_MAX_RETRIES, 7);
	option(p->id[0], RDMUX_OPTION_CM_STARTING_PSN, 0xabcdef);
	option(p->id[0], RDMUX_OPTION_CM_PATH_MTU, IBV_MTU_512);
	option(p->id[0], RDMUX_OPTION_CM_LOCAL_QKEY, 0x11223344);
	option(p->id[0], RDMUX_OPTION_CM_LOCAL_EECN, 0x123456);
	option(p->id[0], RDMUX_OPTION_CM_REMOTE_EECN, 0xfedcba);
	option(p->id[0], RDMUX_OPTION_CM_RDC_EXISTS, 1);
	EQUAL(rdmux_set_private_data(p->id[0], RDMUX_CM_RTU, "ready", 6), 0);
	EQUAL(rdmux_set_private_data(p->id[0], RDMUX_CM_DREQ, "enough", 7), 0);
	make_qp(p, 0);
	connect_to(p);
	event = request(p);
	EQUAL(rdmux_get_message(event, &message), 0);
	EQUAL(message.kind, RDMUX_CM_REQ);
	EQUAL(message.service_id, service);
	EQUAL(message.remote_response_timeout, 18);
	EQUAL(message.local_response_timeout, 19);
	EQUAL(message.max_retries, 7);
	EQUAL(message.starting_psn, 0xabcdef);
	EQUAL(message.path_mtu, IBV_MTU_512);
	EQUAL(message.qkey, 0x11223344);
	EQUAL(message.local_eecn, 0x123456);
	EQUAL(message.remote_eecn, 0xfedcba);
	EQUAL(message.rdc_exists, 1);
	EQUAL(message.qpn, p->id[0]->qp->qp_num);
	EQUAL(message.retry_count, 2);
	EQUAL(message.rnr_retry_count, 7);
	EQUAL(message.transport, 0);
	EQUAL(message.private_data_len, 92);
	EQUAL(rdma_ack_cm_event(event), 0);
	EQUAL(rdmux_ask_for_time(p->id[1], 12, "wait", 5), 0);
	event = event_of(p, 0, RDMUX_CM_EVENT_MORE_TIME, 12);
	EQUAL(rdmux_get_message(event, &message), 0);
	EQUAL(message.kind, RDMUX_CM_MRA);
	EQUAL(message.answered, 0);
	EQUAL(message.service_timeout, 12);
	EQUAL(memcmp(message.private_data, "wait", 5), 0);
	EQUAL(rdma_ack_cm_event(event), 0);

	option(p->id[1], RDMUX_OPTION_CM_TARGET_ACK_DELAY, 11);
	option(p->id[1], RDMUX_OPTION_CM_LOCAL_QKEY, 0x55667788);
	option(p->id[1], RDMUX_OPTION_CM_LOCAL_EECN, 0xabcdef);
	EQUAL(rdmux_set_private_data(p->id[1], RDMUX_CM_DREP, "well", 5), 0);
	make_qp(p, 1);
	accept_it(p);
	event = event_of(p, 0, RDMA_CM_EVENT_ESTABLISHED, 0);
	EQUAL(rdmux_get_message(event, &message), 0);
	EQUAL(message.target_ack_delay, 11);
	EQUAL(message.qkey, 0x55667788);
	EQUAL(message.qpn, p->id[1]->qp->qp_num);
	EQUAL(message.local_eecn, 0xabcdef);
	EQUAL(message.failover_accepted, 0);
	EQUAL(rdma_ack_cm_event(event), 0);
	event = event_of(p, 1, RDMA_CM_EVENT_ESTABLISHED, 0);
	EQUAL(rdmux_get_message(event, &message), 0);
	EQUAL(message.kind, RDMUX_CM_RTU);
	EQUAL(memcmp(message.private_data, "ready", 6), 0);
	EQUAL(rdma_ack_cm_event(event), 0);
	EQUAL(query(p, 0).path_mtu, IBV_MTU_512);
	EQUAL(query(p, 0).rq_psn, 0xabcdef);
	both_ways(p);

	EQUAL(rdma_disconnect(p->id[0]), 0);
	event = event_of(p, 1, RDMA_CM_EVENT_DISCONNECTED, 0);
	EQUAL(rdmux_get_message(event, &message), 0);
	EQUAL(message.kind, RDMUX_CM_DREQ);
	EQUAL(memcmp(message.private_data, "enough", 7), 0);
	EQUAL(rdma_ack_cm_event(event), 0);
	EQUAL(rdma_disconnect(p->id[1]), 0);
	event = event_of(p, 0, RDMA_CM_EVENT_DISCONNECTED, 0);
	EQUAL(rdmux_get_message(event, &message), 0);
	EQUAL(message.kind, RDMUX_CM_DREP);
	EQUAL(memcmp(message.private_data, "well", 5), 0);
	EQUAL(rdma_ack_cm_event(event), 0);
}

static void refusals_have_any_reason_and_information(void)
{
	struct pair *p = routed(-1);
	struct rdmux_cm_message message;
	struct rdma_cm_event *event;

	make_qp(p, 0);
	connect_to(p);
	EQUAL(rdma_ack_cm_event(request(p)), 0);
	SETS(rdmux_reject(p->id[1], 3, &message, 73, NULL, 0), EINVAL);
	SETS(rdmux_reject(p->id[1], 3, NULL, 0, &message, 149), EINVAL);
	EQUAL(rdmux_reject(p->id[1], 27, "\x04", 1, "few", 4), 0);
	event = event_of(p, 0, RDMA_CM_EVENT_REJECTED, 27);
	EQUAL(memcmp(event->param.conn.private_data, "few", 4), 0);
	EQUAL(rdmux_get_message(event, &message), 0);
	EQUAL(message.kind, RDMUX_CM_REJ);
	EQUAL(message.reason, 27);
	EQUAL(message.answered, 0);
	EQUAL(message.info_len, 1);
	EQUAL(message.info[0], 4);
	EQUAL(rdma_ack_cm_event(event), 0);
	SETS(rdmux_reject(p->id[1], 27, NULL, 0, NULL, 0), EINVAL);
}

static void a_redirected_request_is_followed(void)
{
	struct pair *p = routed(-1);
	struct ibv_path_data there = path(p->id[0]->verbs, PRIMARY, p->infiniband ? 0 : 1);
	struct rdmux_cm_redirect to = { .gid = there.path.dgid };
	struct rdmux_cm_message message;
	struct rdma_cm_event *event;

	if (p->infiniband)
		to.lid = be16toh(there.path.dlid) + 2;
	make_qp(p, 0);
	connect_to(p);
	EQUAL(rdma_ack_cm_event(request(p)), 0);
	SETS(rdmux_redirect(p->id[1], NULL, NULL, 0), EINVAL);
	EQUAL(rdmux_redirect(p->id[1], &to, NULL, 0), 0);
	event = request(p);
	EQUAL(rdmux_get_message(event, &message), 0);
	EQUAL(memcmp(&message.primary.remote_gid, &to.gid, 16), 0);
	if (p->infiniband)
		EQUAL(message.primary.remote_lid, to.lid);
	make_qp(p, 1);
	accept_it(p);
	EQUAL(rdma_ack_cm_event(event), 0);
	expect(p, 0, RDMA_CM_EVENT_ESTABLISHED, 0);
	expect(p, 1, RDMA_CM_EVENT_ESTABLISHED, 0);
	both_ways(p);
	end_it(p);
}

static void a_redirection_that_is_not_wanted_is_a_refusal(void)
{
	struct pair *p = routed(-1);
	struct ibv_path_data there = path(p->id[0]->verbs, PRIMARY, 0);
	struct rdmux_cm_redirect to = { .gid = there.path.dgid };

	option(p->id[0], RDMUX_OPTION_CM_MAX_REDIRECTS, 0);
	make_qp(p, 0);
	connect_to(p);
	EQUAL(rdma_ack_cm_event(request(p)), 0);
	EQUAL(rdmux_redirect(p->id[1], &to, "there", 6), 0);
	expect(p, 0, RDMA_CM_EVENT_REJECTED, 24);
}

static void each_connection_of_a_listener_may_have_its_own_starting_psn(void)
{
	struct pair *p = routed(-1);
	struct rdmux_cm_message message;
	struct rdma_cm_event *event;
	uint32_t psn = 0x13579b;

	make_qp(p, 0);
	connect_to(p);
	event = request(p);
	option(p->id[1], RDMUX_OPTION_CM_STARTING_PSN, psn);
	make_qp(p, 1);
	accept_it(p);
	EQUAL(rdma_ack_cm_event(event), 0);
	event = event_of(p, 0, RDMA_CM_EVENT_ESTABLISHED, 0);
	EQUAL(rdmux_get_message(event, &message), 0);
	EQUAL(message.starting_psn, psn);
	EQUAL(rdma_ack_cm_event(event), 0);
	expect(p, 1, RDMA_CM_EVENT_ESTABLISHED, 0);
	EQUAL(query(p, 0).sq_psn, psn);
	EQUAL(query(p, 1).rq_psn, psn);
	SETS(rdma_set_option(p->id[1], RDMUX_OPTION_CM, RDMUX_OPTION_CM_STARTING_PSN, &psn,
			     sizeof(psn)), EINVAL);
	both_ways(p);
	end_it(p);
}

/* ---- Lookups of datagram services ---- */

enum {
	IP_HEADER = 36, /* before private data */
	UD_QPN = 0x1234,
};

/* Creates a listener for lookups, and an id that has a path to it. */
static struct pair *lookup(void)
{
	struct pair *p = calloc(1, sizeof(*p));
	struct sockaddr_in address = { .sin_family = AF_INET };

	CHECK(p != NULL);
	EQUAL(inet_pton(AF_INET, getenv("RDMUX_ADDRESS"), &address.sin_addr), 1);
	for (int end = 0; end < 2; end++)
		CHECK((p->channel[end] = rdma_create_event_channel()) != NULL);
	EQUAL(rdma_create_id(p->channel[1], &p->listener, NULL, RDMA_PS_UDP), 0);
	EQUAL(rdma_bind_addr(p->listener, (struct sockaddr *)&address), 0);
	option(p->listener, RDMUX_OPTION_CM_MESSAGES, 1);
	EQUAL(rdma_listen(p->listener, 8), 0);
	EQUAL(rdma_create_id(p->channel[0], &p->id[0], NULL, RDMA_PS_UDP), 0);
	option(p->id[0], RDMUX_OPTION_CM_MESSAGES, 1);
	EQUAL(rdma_resolve_addr(p->id[0], NULL, rdma_get_local_addr(p->listener), 2000), 0);
	expect(p, 0, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	EQUAL(rdma_resolve_route(p->id[0], 2000), 0);
	expect(p, 0, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	return p;
}

/* Looks up the service. Returns the message of the request. */
static struct rdmux_cm_message asked(struct pair *p)
{
	struct rdma_conn_param param = { .private_data = "where", .private_data_len = 6 };
	struct rdmux_cm_message message;
	struct rdma_cm_event *event;

	EQUAL(rdma_connect(p->id[0], &param), 0);
	event = request(p);
	EQUAL(memcmp(event->param.ud.private_data, "where", 6), 0);
	EQUAL(rdmux_get_message(event, &message), 0);
	EQUAL(message.kind, RDMUX_CM_SIDR_REQ);
	EQUAL(rdma_ack_cm_event(event), 0);
	return message;
}

/* Returns the answer, which this event reports with this status. */
static struct rdmux_cm_message answer(struct pair *p, int kind, int status)
{
	struct rdma_cm_event *event = event_of(p, 0, kind, status);
	struct rdmux_cm_message message;

	EQUAL(rdmux_get_message(event, &message), 0);
	EQUAL(message.kind, RDMUX_CM_SIDR_REP);
	EQUAL(message.status, status);
	EQUAL(message.private_data_len, 136);
	if (kind == RDMA_CM_EVENT_ESTABLISHED) {
		EQUAL(event->param.ud.qp_num, message.qpn);
		EQUAL(event->param.ud.qkey, message.qkey);
	}
	EQUAL(rdma_ack_cm_event(event), 0);
	return message;
}

static void accept_lookup(struct pair *p)
{
	struct rdma_conn_param param = { .qp_num = UD_QPN, .private_data = "here",
					 .private_data_len = 5 };

	EQUAL(rdma_accept(p->id[1], &param), 0);
}

static void every_field_of_a_lookup_and_of_its_answer_is_told(void)
{
	struct pair *p = lookup();
	struct rdmux_cm_message req = asked(p), rep;

	EQUAL(req.service_id, 0x1000000 | RDMA_PS_UDP << 16 | ntohs(rdma_get_src_port(p->listener)));
	EQUAL(req.pkey, 0xffff);
	CHECK(req.local_comm_id != 0);
	EQUAL(req.private_data_len, 216);
	EQUAL(memcmp(req.private_data + IP_HEADER, "where", 6), 0);
	accept_lookup(p);
	rep = answer(p, RDMA_CM_EVENT_ESTABLISHED, 0);
	EQUAL(rep.tid, req.tid);
	EQUAL(rep.remote_comm_id, req.local_comm_id);
	EQUAL(rep.service_id, req.service_id);
	EQUAL(rep.qpn, UD_QPN);
	EQUAL(rep.qkey, RDMA_UDP_QKEY);
	EQUAL(rep.info_len, 0);
	EQUAL(memcmp(rep.private_data, "here", 5), 0);
}

static void a_lookup_is_refused_with_any_status_and_information(void)
{
	struct pair *p = lookup();
	struct rdmux_cm_message message;

	asked(p);
	SETS(rdmux_reject(p->id[1], 3, &message, 73, NULL, 0), EINVAL);
	SETS(rdmux_reject(p->id[1], 3, NULL, 0, &message, 137), EINVAL);
	SETS(rdmux_reject(p->id[1], 0, NULL, 0, NULL, 0), EINVAL);
	SETS(rdmux_reject(p->id[1], 256, NULL, 0, NULL, 0), EINVAL);
	EQUAL(rdmux_reject(p->id[1], 200, "abc", 3, "no", 3), 0);
	message = answer(p, RDMA_CM_EVENT_UNREACHABLE, 200);
	EQUAL(message.info_len, 3);
	EQUAL(memcmp(message.info, "abc", 4), 0);
	EQUAL(memcmp(message.private_data, "no", 3), 0);
	SETS(rdmux_reject(p->id[1], 200, NULL, 0, NULL, 0), EINVAL);
}

static void a_redirection_of_a_lookup_that_is_not_wanted_is_a_refusal(void)
{
	struct rdmux_cm_redirect to = { .lid = 5 };
	struct pair *p = lookup();
	struct rdmux_cm_message message;

	EQUAL(ibv_query_gid(p->id[0]->verbs, 1, 0, &to.gid), 0);
	option(p->id[0], RDMUX_OPTION_CM_MAX_REDIRECTS, 0);
	asked(p);
	EQUAL(rdmux_redirect(p->id[1], &to, "there", 6), 0);
	message = answer(p, RDMA_CM_EVENT_UNREACHABLE, 4);
	/* A ClassPortInfo, with the GID at 8 and the LID at 28. */
	EQUAL(message.info_len, 72);
	EQUAL(memcmp(message.info + 8, &to.gid, 16), 0);
	EQUAL(message.info[28] << 8 | message.info[29], to.lid);
	EQUAL(memcmp(message.private_data, "there", 6), 0);
}

static void the_answer_to_a_lookup_has_the_qkey_of_the_option(void)
{
	static const uint32_t qkeys[] = { 0x55667788, 0 };

	for (int i = 0; i < 2; i++) {
		struct pair *p = lookup();

		asked(p);
		option(p->id[1], RDMUX_OPTION_CM_LOCAL_QKEY, qkeys[i]);
		accept_lookup(p);
		EQUAL(answer(p, RDMA_CM_EVENT_ESTABLISHED, 0).qkey, qkeys[i]);
	}
}

/* ---- Errors ---- */

static void options_out_of_range_are_refused(void)
{
	static const struct {
		int name;
		uint32_t value;
	} bad[] = {
		{ RDMUX_OPTION_CM_REMOTE_RESPONSE_TIMEOUT, 32 },
		{ RDMUX_OPTION_CM_LOCAL_RESPONSE_TIMEOUT, 1000 },
		{ RDMUX_OPTION_CM_MAX_RETRIES, 16 },
		{ RDMUX_OPTION_CM_STARTING_PSN, 1 << 24 },
		{ RDMUX_OPTION_CM_PATH_MTU, 6 },
		{ RDMUX_OPTION_CM_TARGET_ACK_DELAY, 32 },
		{ RDMUX_OPTION_CM_FAILOVER_ACCEPTED, 3 },
		{ RDMUX_OPTION_CM_SERVICE_TIMEOUT, 32 },
		{ RDMUX_OPTION_CM_MAX_REDIRECTS, 16 },
		{ RDMUX_OPTION_CM_MESSAGES, 2 },
		{ RDMUX_OPTION_CM_LOCAL_EECN, 1 << 24 },
		{ RDMUX_OPTION_CM_REMOTE_EECN, 1 << 24 },
		{ RDMUX_OPTION_CM_RDC_EXISTS, 2 },
	};
	struct pair *p = routed(-1);
	uint32_t value;

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		value = bad[i].value;
		SETS(rdma_set_option(p->id[0], RDMUX_OPTION_CM, bad[i].name, &value, sizeof(value)),
		     EINVAL);
		value = 1;
		SETS(rdma_set_option(p->id[0], RDMUX_OPTION_CM, bad[i].name, &value, 1), EINVAL);
		SETS(rdma_set_option(p->id[0], RDMUX_OPTION_CM, bad[i].name, NULL, sizeof(value)),
		     EINVAL);
	}
	SETS(rdma_set_option(p->id[0], RDMUX_OPTION_CM, 14, &value, sizeof(value)), ENOSYS);
}

static void calls_in_the_wrong_state_are_refused(void)
{
	struct pair *p = connected(-1);
	struct ibv_path_data data = path(p->id[0]->verbs, ALTERNATE, 1);
	struct ibv_path_data primary = path(p->id[0]->verbs, PRIMARY, 1);
	struct rdmux_cm_message message;

	SETS(rdmux_load_alternate(p->id[1], &data, 1, NULL, 0), EINVAL); /* the accepting side */
	SETS(rdmux_load_alternate(p->listener, &data, 1, NULL, 0), EINVAL);
	SETS(rdmux_load_alternate(NULL, &data, 1, NULL, 0), EINVAL);
	SETS(rdmux_load_alternate(p->id[0], NULL, 1, NULL, 0), EINVAL);
	SETS(rdmux_load_alternate(p->id[0], &data, 0, NULL, 0), EINVAL);
	SETS(rdmux_load_alternate(p->id[0], &data, SIZE_MAX, NULL, 0), EINVAL);
	SETS(rdmux_load_alternate(p->id[0], &primary, 1, NULL, 0), EINVAL);
	SETS(rdmux_load_alternate(p->id[0], &data, 1, &message, 169), EINVAL);
	SETS(rdmux_ask_for_time(p->id[0], 10, NULL, 0), EINVAL); /* nothing to answer */
	SETS(rdmux_ask_for_time(p->id[0], 32, NULL, 0), EINVAL);
	SETS(rdmux_set_private_data(p->id[0], RDMUX_CM_REQ, NULL, 0), EINVAL);
	SETS(rdmux_set_private_data(p->id[0], RDMUX_CM_DREQ, &message, 221), EINVAL);
	SETS(rdmux_answer_alternate(p->id[1], 2, NULL, 0, NULL, 0), EINVAL);
	SETS(rdma_notify(p->id[0], IBV_EVENT_PATH_MIG), EINVAL); /* there is no other path */
	SETS(rdma_notify(p->id[0], IBV_EVENT_PATH_MIG_ERR), EINVAL);
	SETS(rdmux_get_message(NULL, &message), EINVAL);
	EQUAL(rdma_notify(p->id[1], IBV_EVENT_COMM_EST), 0);
	both_ways(p);
	end_it(p);
}

/* There is nothing to send, which is no error: the queue pair is in the error state. */
static void a_connection_may_be_ended_before_it_is_up(void)
{
	struct pair *p = routed(-1);
	struct rdma_conn_param param = { .qp_num = 0x1234 };

	SETS(rdma_disconnect(p->id[0]), EINVAL); /* there is no connection */
	EQUAL(rdma_connect(p->id[0], &param), 0);
	EQUAL(rdma_disconnect(p->id[0]), 0);
	EQUAL(rdma_ack_cm_event(request(p)), 0);
	EQUAL(rdma_disconnect(p->id[1]), 0);
	param.qp_num = 0x4321;
	EQUAL(rdma_accept(p->id[1], &param), 0);
	EQUAL(rdma_disconnect(p->id[1]), 0);
	expect(p, 0, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	EQUAL(rdma_disconnect(p->id[0]), 0);
	EQUAL(rdma_establish(p->id[0]), 0);
	expect(p, 1, RDMA_CM_EVENT_ESTABLISHED, 0);
	end_it(p);
}

static void events_without_a_message_say_so(void)
{
	struct pair *p = routed(-1);
	struct rdmux_cm_message message;
	struct rdma_cm_event *event;

	option(p->listener, RDMUX_OPTION_CM_MESSAGES, 0);
	make_qp(p, 0);
	connect_to(p);
	event = request(p);
	SETS(rdmux_get_message(event, &message), ENODATA);
	SETS(rdmux_get_message(event, NULL), EINVAL);
	EQUAL(rdma_ack_cm_event(event), 0);
}

static const struct test tests[] = {
	TEST(the_alternate_path_of_the_request_is_armed_and_migrated_to),
	TEST(it_migrates_again_and_again_once_lap_has_loaded_a_path),
	TEST(a_path_that_is_refused_is_loaded_at_neither_end),
	TEST(a_server_may_leave_the_alternate_path),
	TEST(queue_pairs_of_the_programs_own_are_told_of_the_path),
	TEST(every_field_of_the_request_is_set_and_told),
	TEST(refusals_have_any_reason_and_information),
	TEST(a_redirected_request_is_followed),
	TEST(a_redirection_that_is_not_wanted_is_a_refusal),
	TEST(each_connection_of_a_listener_may_have_its_own_starting_psn),
	TEST(every_field_of_a_lookup_and_of_its_answer_is_told),
	TEST(a_lookup_is_refused_with_any_status_and_information),
	TEST(a_redirection_of_a_lookup_that_is_not_wanted_is_a_refusal),
	TEST(the_answer_to_a_lookup_has_the_qkey_of_the_option),
	TEST(options_out_of_range_are_refused),
	TEST(calls_in_the_wrong_state_are_refused),
	TEST(a_connection_may_be_ended_before_it_is_up),
	TEST(events_without_a_message_say_so),
};

CHECK_MAIN(tests)
