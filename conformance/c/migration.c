/* Automatic path migration (IBTA 17.2.8): an alternate path is loaded, armed, migrated to on request and after retries, and loaded
 * again. On RoCE paths are between addresses of the host, on InfiniBand from port to port and from LID to LID. */
#define _GNU_SOURCE
#include "fixture.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

enum {
	LENGTH = 6000,
	TIMEOUT = 12, /* 16 ms */
	RETRIES = 1,
};

/* One of the two paths between the ends of a pair, as seen from each end. */
struct path {
	struct ibv_ah_attr ah[2];
};

struct pair {
	struct fixture f;
	bool infiniband;
	struct path path[2];
	struct ibv_qp *qp[2];
};

static struct ibv_port_attr port_of(struct pair *p, uint8_t number)
{
	struct ibv_port_attr port;

	EQUAL(ibv_query_port(p->f.device, number, &port), 0);
	EQUAL(port.state, IBV_PORT_ACTIVE);
	return port;
}

/* Sets up a path from one address of the host to another, or to itself. */
static void address_to_address(struct pair *p, int first, int second, struct path *path)
{
	int index[2] = { first, second };

	for (int end = 0; end < 2; end++) {
		struct ibv_ah_attr ah = {
			.is_global = 1,
			.port_num = PORT,
			.grh = { .sgid_index = index[end], .hop_limit = 1 },
		};

		EQUAL(ibv_query_gid(p->f.device, PORT, index[!end], &ah.grh.dgid), 0);
		path->ah[end] = ah;
	}
}

/* Sets up a path from a LID of a port to another, given the path bits of each end. */
static void lid_to_lid(struct pair *p, uint8_t port, uint8_t bits, struct path *path)
{
	uint16_t lid = port_of(p, port).lid;

	for (int end = 0; end < 2; end++)
		path->ah[end] = (struct ibv_ah_attr){
			.dlid = lid + (end ? bits : 0),
			.src_path_bits = end ? 0 : bits,
			.port_num = port,
		};
}

static void open_objects(struct pair *p)
{
	struct fixture *f = &p->f;

	f->device = open_device();
	CHECK((f->pd = ibv_alloc_pd(f->device)) != NULL);
	CHECK((f->cq = ibv_create_cq(f->device, 256, NULL, NULL, 0)) != NULL);
	CHECK((f->memory = aligned_alloc(4096, BUFFER)) != NULL);
	memset(f->memory, 0, BUFFER);
	CHECK((f->mr = ibv_reg_mr(f->pd, f->memory, BUFFER, ALL_RIGHTS)) != NULL);
	p->infiniband = port_of(p, PORT).link_layer == IBV_LINK_LAYER_INFINIBAND;
}

static void connect_end(struct pair *p, int end)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = p->path[0].ah[end].port_num,
		.qp_access_flags = ALL_RIGHTS,
	};

	EQUAL(ibv_modify_qp(p->qp[end], &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	      0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = p->qp[!end]->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = p->path[0].ah[end],
	};
	EQUAL(ibv_modify_qp(p->qp[end], &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				    IBV_QP_MIN_RNR_TIMER),
	      0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = TIMEOUT,
		.retry_cnt = RETRIES,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	EQUAL(ibv_modify_qp(p->qp[end], &attr,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
	      0);
}

static void connect_both(struct pair *p)
{
	for (int end = 0; end < 2; end++)
		p->qp[end] = create_qp(&p->f, IBV_QPT_RC);
	for (int end = 0; end < 2; end++)
		connect_end(p, end);
}

/* Connects two queue pairs by the first path. */
static struct pair *connected(void)
{
	struct pair *p = calloc(1, sizeof(*p));

	CHECK(p != NULL);
	open_objects(p);
	for (int i = 0; i < 2; i++) {
		if (p->infiniband)
			lid_to_lid(p, i + 1, 0, &p->path[i]);
		else
			address_to_address(p, i, i, &p->path[i]);
	}
	connect_both(p);
	return p;
}

static struct ibv_qp_attr query(struct pair *p, int end)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	EQUAL(ibv_query_qp(p->qp[end], &attr, ~0, &init), 0);
	return attr;
}

/* Loads a path, and arms the queue pair for migration to it. */
static int rearm(struct pair *p, int end, int path)
{
	struct ibv_qp_attr attr = {
		.alt_ah_attr = p->path[path].ah[end],
		.alt_port_num = p->path[path].ah[end].port_num,
		.alt_timeout = TIMEOUT + 1,
		.path_mig_state = IBV_MIG_REARM,
	};

	return ibv_modify_qp(p->qp[end], &attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE);
}

static int ask(struct pair *p, int end, enum ibv_mig_state state)
{
	struct ibv_qp_attr attr = { .path_mig_state = state };

	return ibv_modify_qp(p->qp[end], &attr, IBV_QP_PATH_MIG_STATE);
}

static void until_both_are(struct pair *p, enum ibv_mig_state state)
{
	while (query(p, 0).path_mig_state != state || query(p, 1).path_mig_state != state)
		sched_yield();
}

static void arm(struct pair *p, int path)
{
	for (int end = 0; end < 2; end++)
		EQUAL(rearm(p, end, path), 0);
	until_both_are(p, IBV_MIG_ARMED);
}

/* Checks that the ends use a path. */
static void at(struct pair *p, int path)
{
	for (int end = 0; end < 2; end++) {
		struct ibv_qp_attr attr = query(p, end);
		const struct ibv_ah_attr *ah = &p->path[path].ah[end];

		EQUAL(attr.qp_state, IBV_QPS_RTS);
		EQUAL(attr.port_num, ah->port_num);
		EQUAL(attr.ah_attr.dlid, ah->dlid);
		EQUAL(attr.ah_attr.src_path_bits, ah->src_path_bits);
		EQUAL(attr.ah_attr.grh.sgid_index, ah->grh.sgid_index);
		EQUAL(memcmp(&attr.ah_attr.grh.dgid, &ah->grh.dgid, sizeof(ah->grh.dgid)), 0);
	}
}

static struct ibv_async_event event_of(struct pair *p)
{
	struct pollfd ready = { .fd = p->f.device->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	EQUAL(poll(&ready, 1, 10000), 1);
	EQUAL(ibv_get_async_event(p->f.device, &event), 0);
	ibv_ack_async_event(&event);
	return event;
}

/* Each end gets one event that it has migrated. There may also be an event of a port that went down. */
static void both_are_told(struct pair *p)
{
	bool told[2] = { false };

	while (!told[0] || !told[1]) {
		struct ibv_async_event event = event_of(p);
		int end = event.element.qp == p->qp[1];

		if (event.event_type != IBV_EVENT_PATH_MIG)
			continue;
		CHECK(event.element.qp == p->qp[end] && !told[end]);
		told[end] = true;
	}
	until_both_are(p, IBV_MIG_MIGRATED);
}

static void nothing_is_told(struct pair *p)
{
	struct pollfd ready = { .fd = p->f.device->async_fd, .events = POLLIN };

	EQUAL(poll(&ready, 1, 0), 0);
}

/* Sends a message each way, a WRITE and a READ. */
static void both_ways(struct pair *p)
{
	struct fixture *f = &p->f;
	struct ibv_qp *reversed[2] = { p->qp[1], p->qp[0] };
	uint8_t *near = f->memory, *far = f->memory + BUFFER / 2;

	exchange(f, p->qp);
	exchange(f, reversed);
	for (int i = 0; i < LENGTH; i++)
		near[i] = i * 5;
	EQUAL(write_bytes(f, p->qp[0], near, f->mr, far, f->mr->rkey, LENGTH), IBV_WC_SUCCESS);
	EQUAL(memcmp(near, far, LENGTH), 0);
	memset(near, 0, LENGTH);
	post(p->qp[1], request(IBV_WR_RDMA_READ, near, LENGTH, f->mr, far, f->mr->rkey));
	EQUAL(completion(f->cq).status, IBV_WC_SUCCESS);
	EQUAL(memcmp(near, far, LENGTH), 0);
}

static void the_device_says_that_it_migrates(void)
{
	struct ibv_device_attr attr;

	EQUAL(ibv_query_device(open_device(), &attr), 0);
	CHECK(attr.device_cap_flags & IBV_DEVICE_AUTO_PATH_MIG);
}

static void attributes_of_the_alternate_path_are_told(void)
{
	struct pair *p = connected();
	struct ibv_qp_attr attr;

	EQUAL(query(p, 0).path_mig_state, IBV_MIG_MIGRATED);
	EQUAL(rearm(p, 0, 1), 0);
	attr = query(p, 0);
	EQUAL(attr.path_mig_state, IBV_MIG_REARM);
	EQUAL(attr.alt_port_num, p->path[1].ah[0].port_num);
	EQUAL(attr.alt_timeout, TIMEOUT + 1);
	EQUAL(attr.alt_ah_attr.dlid, p->path[1].ah[0].dlid);
	EQUAL(attr.alt_ah_attr.grh.sgid_index, p->path[1].ah[0].grh.sgid_index);
	both_ways(p);
	EQUAL(query(p, 0).path_mig_state, IBV_MIG_REARM);
	at(p, 0);
}

static void bad_requests_are_refused(void)
{
	struct pair *p = connected();
	struct ibv_qp_attr attr = {
		.alt_ah_attr = p->path[1].ah[0],
		.alt_port_num = p->path[1].ah[0].port_num,
	};

	RETURNS(ask(p, 0, IBV_MIG_REARM), EINVAL); /* no alternate path */
	RETURNS(ask(p, 0, IBV_MIG_ARMED), EINVAL); /* only the peer's packets arm */
	RETURNS(ask(p, 0, 3), EINVAL);
	attr.alt_pkey_index = 60000;
	RETURNS(ibv_modify_qp(p->qp[0], &attr, IBV_QP_ALT_PATH), EINVAL);
	attr.alt_pkey_index = 0;
	attr.alt_port_num = 3;
	RETURNS(ibv_modify_qp(p->qp[0], &attr, IBV_QP_ALT_PATH), EINVAL);
	attr.alt_port_num = 0;
	RETURNS(ibv_modify_qp(p->qp[0], &attr, IBV_QP_ALT_PATH), EINVAL);
	EQUAL(rearm(p, 0, 1), 0);
	RETURNS(ask(p, 0, IBV_MIG_MIGRATED), EINVAL); /* not armed yet */
	EQUAL(rearm(p, 1, 1), 0);
	until_both_are(p, IBV_MIG_ARMED);
	EQUAL(ask(p, 0, IBV_MIG_MIGRATED), 0);
	both_are_told(p);
	RETURNS(ask(p, 0, IBV_MIG_REARM), EINVAL); /* it was used up */
	both_ways(p);
}

static void migrate_by_request(struct pair *p)
{
	both_ways(p);
	for (int i = 0; i < 4; i++) {
		int path = !(i & 1);

		arm(p, path);
		both_ways(p);
		at(p, !path);
		nothing_is_told(p);
		EQUAL(ask(p, i / 2, IBV_MIG_MIGRATED), 0);
		both_are_told(p);
		at(p, path);
		EQUAL(query(p, 0).timeout, TIMEOUT + 1);
		both_ways(p);
	}
}

static void a_connection_migrates_by_request_and_back(void)
{
	migrate_by_request(connected());
}

/* On one port: to paths whose ends have different LIDs, or addresses. */
static void a_connection_migrates_between_different_ends(void)
{
	struct pair *p = calloc(1, sizeof(*p));

	CHECK(p != NULL);
	open_objects(p);
	if (p->infiniband) {
		EQUAL(port_of(p, 1).lmc, 2);
		lid_to_lid(p, 1, 0, &p->path[0]);
		lid_to_lid(p, 1, 3, &p->path[1]);
	} else {
		address_to_address(p, 1, 0, &p->path[0]);
		address_to_address(p, 0, 1, &p->path[1]);
	}
	connect_both(p);
	migrate_by_request(p);
}

/* The ends disagree: one migrates to a path that the other does not expect. */
static void a_request_by_the_wrong_path_is_told_and_changes_nothing(void)
{
	struct pair *p = connected();
	struct path wrong = p->path[1];
	struct ibv_async_event event;

	if (p->infiniband)
		lid_to_lid(p, 1, 1, &wrong);
	else
		wrong = p->path[0];
	EQUAL(rearm(p, 0, 1), 0);
	p->path[1] = wrong;
	EQUAL(rearm(p, 1, 1), 0);
	until_both_are(p, IBV_MIG_ARMED);
	EQUAL(ask(p, 0, IBV_MIG_MIGRATED), 0);
	/* Both events wait in the queue, in any order. */
	for (int i = 0; i < 2; i++) {
		event = event_of(p);
		if (event.element.qp == p->qp[0])
			EQUAL(event.event_type, IBV_EVENT_PATH_MIG);
		else
			EQUAL(event.event_type, IBV_EVENT_PATH_MIG_ERR);
	}
	EQUAL(query(p, 1).path_mig_state, IBV_MIG_ARMED);
	/* Its requests are not answered, and there is no other path left. */
	EQUAL(write_bytes(&p->f, p->qp[0], p->f.memory, p->f.mr, p->f.memory + LENGTH,
			  p->f.mr->rkey, LENGTH),
	      IBV_WC_RETRY_EXC_ERR);
}

static void connections_of_other_kinds_are_refused(void)
{
	struct pair *p = connected();
	struct ibv_qp *datagrams = create_qp(&p->f, IBV_QPT_UD);
	struct ibv_qp_attr attr = { .path_mig_state = IBV_MIG_REARM };

	RETURNS(ibv_modify_qp(datagrams, &attr, IBV_QP_PATH_MIG_STATE), EINVAL);
	attr.alt_ah_attr = p->path[1].ah[0];
	attr.alt_port_num = p->path[1].ah[0].port_num;
	RETURNS(ibv_modify_qp(datagrams, &attr, IBV_QP_ALT_PATH), EINVAL);
}

static const struct test tests[] = {
	TEST(the_device_says_that_it_migrates),
	TEST(attributes_of_the_alternate_path_are_told),
	TEST(bad_requests_are_refused),
	TEST(a_connection_migrates_by_request_and_back),
	TEST(a_connection_migrates_between_different_ends),
	TEST(a_request_by_the_wrong_path_is_told_and_changes_nothing),
	TEST(connections_of_other_kinds_are_refused),
};

CHECK_MAIN(tests)
