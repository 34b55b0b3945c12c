/* Multicast groups as options of ids (<rdmux/multicast.h>) on a port of a subnet whose administration is this test. It grants and
 * refuses requests, ignores, delays and forgets them, and checks their contents. */
#define _GNU_SOURCE
#include "umad_fixture.h"

#include <arpa/inet.h>
#include <infiniband/ib.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdmux/multicast.h>
#include <stdlib.h>
#include <string.h>

#ifndef AF_IB
#define AF_IB 27
#endif

/* Offsets in PortInfo of the fields that are set here. */
enum { LID = 16, SM_LID = 18, STATE = 32, PHYSICAL_STATE = 33, REREGISTER_AND_TIMEOUT = 51 };
enum { DOWN = 1, ARMED = 3, ACTIVE = 4, REREGISTER = 0x80, OWN_LID = 0x31 };

/* Subnet administration: attribute, methods, and the offsets of the record's fields. */
enum { MC_MEMBER = 0x38, DELETE = 0x15, RECORD = 52, QKEY = 32, MLID = 36, MTU = 38, PKEY = 40, SL = 44, STATE_OF = 48 };
enum { FULL = 1, NON = 2, SEND_ONLY_NON = 4, SEND_ONLY = 8 };
enum { REFUSED_STATUS = 0x0200 };
#define KEYS (IB_SA_MCMEMBER_REC_MGID | IB_SA_MCMEMBER_REC_PORT_GID | IB_SA_MCMEMBER_REC_JOIN_STATE)
#define ALL_COMPONENTS 0x3ffffULL

/* How administration treats groups other than the broadcast group, which it always grants. */
enum mode { GRANT, REFUSE, SILENT, HOLD };

struct question {
	uint8_t method;
	uint64_t tid, mask;
	uint8_t record[RECORD];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static enum mode mode;
static struct question asked_of[256];
static int questions;
static struct buffer held;
static bool is_held;

static int port, manager, administration, sa_port;
static uint32_t tid;

static const uint8_t broadcast[16] = { 0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, [12] = 0xff, 0xff, 0xff, 0xff };

/* The group by which a test detects that its port is ready. Its membership may end after the test has begun. */
static const char first_group[] = "239.0.0.1";
static const uint8_t first_mgid[16] = { 0xff, 0x12, 0x40, 0x01, 0xff, 0xff, [12] = 0x0f, 0, 0, 1 };

/* The transaction ID of the newest request to join it. */
static uint64_t first_tid = UINT64_MAX;

/* The parameters of the broadcast group. */
static const uint8_t parameters[RECORD] = {
	[QKEY] = 0, 0, 0x0b, 0x1b, 0xc0, 0x01,
	[MTU] = 0x84, 0x28, 0xff, 0xff, 0x83, 0x90,
	[SL] = 0x31, 0x23, 0x45, 0x09, 0x20,
};

static void answer(struct buffer *b, uint16_t status)
{
	struct umad_sa_packet *sa = (struct umad_sa_packet *)b->mad;
	uint8_t mgid[16], own[16], state = sa->data[STATE_OF] & 0x0f;
	static const uint8_t none[16];
	uint32_t qkey = 0;

	memcpy(mgid, sa->data, 16);
	memcpy(own, sa->data + 16, 16);
	memcpy(&qkey, sa->data + QKEY, 4);
	if (!memcmp(mgid, none, 16) || !(be64toh(sa->comp_mask) & IB_SA_MCMEMBER_REC_MGID)) {
		const uint8_t assigned[16] = { 0xff, 0x12, 0xa0, 0x1b, 0xfe, 0x80, [15] = (uint8_t)questions };

		memcpy(mgid, assigned, 16);
	}
	memset(sa->data, 0, sizeof(sa->data));
	memcpy(sa->data, parameters, RECORD);
	memcpy(sa->data, mgid, 16);
	memcpy(sa->data + 16, own, 16);
	if (be64toh(sa->comp_mask) & IB_SA_MCMEMBER_REC_QKEY)
		memcpy(sa->data + QKEY, &qkey, 4);
	sa->data[MLID + 1] = memcmp(mgid, broadcast, 16) ? 0x02 : 0x01;
	sa->data[STATE_OF] |= state;
	sa->mad_hdr.method = sa->mad_hdr.method == DELETE ? 0x95 : 0x81;
	sa->mad_hdr.status = htons(status);
	b->umad.agent_id = administration;
	b->umad.addr.qkey = htonl(0x80010000);
	if (umad_send(sa_port, administration, b, sizeof(b->mad), 0, 0) != 0)
		abort();
}

/* Returns whether a request belongs to the test itself: not to its preparation, and not a retransmission from an earlier test. The
 * service numbers its requests. */
static bool is_of_test(const struct umad_sa_packet *sa)
{
	uint64_t tid = be64toh(sa->mad_hdr.tid);

	if (!memcmp(sa->data, first_mgid, 16)) {
		if (sa->mad_hdr.method == UMAD_METHOD_SET)
			first_tid = tid;
		return false;
	}
	return memcmp(sa->data, broadcast, 16) && tid > first_tid;
}

/* Records a request, once, however often it is retransmitted. */
static void note(const struct umad_sa_packet *sa)
{
	uint64_t tid = be64toh(sa->mad_hdr.tid);
	struct question *q = &asked_of[questions % 256];

	for (int i = 0; i < questions && i < 256; i++)
		if (asked_of[i].tid == tid)
			return;
	questions++;
	q->method = sa->mad_hdr.method;
	q->tid = tid;
	q->mask = be64toh(sa->comp_mask);
	memcpy(q->record, sa->data, RECORD);
	pthread_cond_broadcast(&changed);
}

static void *administer(void *nothing)
{
	for (;;) {
		struct buffer b;
		struct umad_sa_packet *sa = (struct umad_sa_packet *)b.mad;
		int length = sizeof(b.mad);

		if (umad_recv(sa_port, &b, &length, -1) < 0)
			continue;
		if (sa->mad_hdr.attr_id != htons(MC_MEMBER))
			continue;
		pthread_mutex_lock(&lock);
		if (is_of_test(sa)) {
			note(sa);
			if (mode == GRANT || sa->mad_hdr.method == DELETE)
				answer(&b, 0);
			else if (mode == REFUSE)
				answer(&b, REFUSED_STATUS);
			else if (mode == HOLD && !is_held)
				held = b, is_held = true;
		} else {
			answer(&b, 0);
		}
		pthread_mutex_unlock(&lock);
	}
	return nothing;
}

static void set_mode(enum mode now)
{
	pthread_mutex_lock(&lock);
	mode = now;
	pthread_mutex_unlock(&lock);
}

/* Waits for the request with this number, from 0. */
static struct question question(int number)
{
	struct question q;

	pthread_mutex_lock(&lock);
	while (questions <= number)
		pthread_cond_wait(&changed, &lock);
	q = asked_of[number % 256];
	pthread_mutex_unlock(&lock);
	return q;
}

static int asked_so_far(void)
{
	int n;

	pthread_mutex_lock(&lock);
	n = questions;
	pthread_mutex_unlock(&lock);
	return n;
}

/* Sends a request to the local port's agent. Returns the data of the answer. */
static uint8_t *asked_for(struct buffer *b, uint8_t method, uint16_t attr_id, uint32_t attr_mod)
{
	struct umad_smp *smp = (struct umad_smp *)b->mad;

	smp->method = method;
	smp->attr_id = htons(attr_id);
	smp->attr_mod = htonl(attr_mod);
	smp->tid = htobe64(++tid);
	EQUAL(post(port, manager, b, 30000, 0), 0);
	answered(port, manager, tid, b);
	return smp->data;
}

static uint8_t *asked(struct buffer *b, uint8_t method)
{
	return asked_for(b, method, UMAD_SM_ATTR_PORT_INFO, 1);
}

/* Changes the local port, as a manager does. */
static void change_port(uint8_t state, uint8_t flags)
{
	struct buffer b;
	uint8_t data[UMAD_LEN_SMP_DATA], *info;

	directed(&b, UMAD_METHOD_GET, UMAD_SM_ATTR_PORT_INFO, tid, NULL, 0);
	info = asked(&b, UMAD_METHOD_GET);
	info[STATE] = (info[STATE] & 0xf0) | state;
	info[PHYSICAL_STATE] = 0;
	info[REREGISTER_AND_TIMEOUT] = (info[REREGISTER_AND_TIMEOUT] & 0x7f) | flags;
	info[LID] = info[SM_LID] = 0;
	info[LID + 1] = info[SM_LID + 1] = OWN_LID;
	memcpy(data, info, sizeof(data));
	directed(&b, UMAD_METHOD_SET, UMAD_SM_ATTR_PORT_INFO, tid, NULL, 0);
	memcpy(((struct umad_smp *)b.mad)->data, data, sizeof(data));
	asked(&b, UMAD_METHOD_SET);
}

/* Gives the local port a second partition, or removes it with 0. */
static void change_partition(struct ibv_context *device, uint16_t pkey)
{
	struct ibv_async_event event;
	struct buffer b;
	uint16_t keys[UMAD_LEN_SMP_DATA / 2];

	directed(&b, UMAD_METHOD_GET, UMAD_SM_ATTR_PKEY_TABLE, tid, NULL, 0);
	memcpy(keys, asked_for(&b, UMAD_METHOD_GET, UMAD_SM_ATTR_PKEY_TABLE, 0), sizeof(keys));
	keys[1] = htons(pkey);
	directed(&b, UMAD_METHOD_SET, UMAD_SM_ATTR_PKEY_TABLE, tid, NULL, 0);
	memcpy(((struct umad_smp *)b.mad)->data, keys, sizeof(keys));
	asked_for(&b, UMAD_METHOD_SET, UMAD_SM_ATTR_PKEY_TABLE, 0);
	/* The service has handled the change when programs see it. */
	do {
		EQUAL(ibv_get_async_event(device, &event), 0);
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_PKEY_CHANGE);
}

static uint8_t port_state(void)
{
	struct buffer b;

	directed(&b, UMAD_METHOD_GET, UMAD_SM_ATTR_PORT_INFO, tid, NULL, 0);
	return asked(&b, UMAD_METHOD_GET)[STATE] & 0x0f;
}

static void activate(void)
{
	change_port(0, 0);
	if (port_state() < ARMED)
		change_port(ARMED, 0);
	if (port_state() < ACTIVE)
		change_port(ACTIVE, 0);
}

static struct rdma_event_channel *channel;

static struct sockaddr_in v4(const char *ip)
{
	struct sockaddr_in a = { .sin_family = AF_INET };

	EQUAL(inet_pton(AF_INET, ip, &a.sin_addr), 1);
	return a;
}

/* Creates a datagram id on an address, with a queue pair. Its events come on this channel; without one its calls wait for them. */
static struct rdma_cm_id *bound_on(struct rdma_event_channel *events, enum rdma_port_space space, void *local)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64 },
	};
	struct rdma_cm_id *id;

	EQUAL(rdma_create_id(events, &id, NULL, space), 0);
	EQUAL(rdma_bind_addr(id, local), 0);
	CHECK(id->verbs != NULL);
	EQUAL(rdma_create_qp(id, NULL, &attr), 0);
	EQUAL(id->qp->state, IBV_QPS_RTS);
	return id;
}

static struct rdma_cm_id *bound_to(enum rdma_port_space space, void *local)
{
	return bound_on(channel, space, local);
}

/* Returns the host's IPv4 address. */
static struct sockaddr_in own_address(void)
{
	const char *own = getenv("RDMUX_ADDRESS");

	if (!own)
		FAIL("no address of this host in $RDMUX_ADDRESS");
	return v4(own);
}

/* Creates one on the host's IPv4 address. */
static struct rdma_cm_id *bound(enum rdma_port_space space)
{
	struct sockaddr_in local = own_address();

	return bound_to(space, &local);
}

static void end(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	EQUAL(rdma_destroy_id(id), 0);
}

/* Reads and acknowledges the next event. Returns its status if it reports a failure, 0 for a join. */
static int outcome(struct rdma_cm_id *id)
{
	struct rdma_cm_event *event;
	int status;

	EQUAL(rdma_get_cm_event(channel, &event), 0);
	CHECK(event->id == id);
	status = event->status;
	if (event->event == RDMA_CM_EVENT_MULTICAST_ERROR)
		CHECK(status < 0);
	else
		EQUAL(event->event, RDMA_CM_EVENT_JOIN_COMPLETE);
	EQUAL(rdma_ack_cm_event(event), 0);
	return status;
}

static void no_event(void)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };

	EQUAL(poll(&fd, 1, 0), 0);
}

static int option(struct rdma_cm_id *id, int name, const char *group)
{
	struct ip_mreq mreq = { .imr_multiaddr = v4(group).sin_addr };

	return rdma_set_option(id, RDMA_PROTO_IP, name, &mreq, sizeof(mreq));
}

static int add(struct rdma_cm_id *id, const char *group)
{
	return option(id, IP_ADD_MEMBERSHIP, group);
}

static int drop(struct rdma_cm_id *id, const char *group)
{
	return option(id, IP_DROP_MEMBERSHIP, group);
}

static int send_to(struct rdma_cm_id *id, struct ibv_send_wr *wr, void *to)
{
	static char bytes[16];
	static struct ibv_sge sge;

	sge = (struct ibv_sge){ .addr = (uintptr_t)bytes, .length = sizeof(bytes) };
	*wr = (struct ibv_send_wr){ .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED };
	return rdma_sendto(id, wr, to);
}

static void mgid_of(const char *text, uint8_t mgid[16])
{
	EQUAL(inet_pton(AF_INET6, text, mgid), 1);
}

/* Joins a group, and retries until the service is in the broadcast group. */
static void until_joined(struct rdma_cm_id *id, const char *group)
{
	int status;

	do {
		EQUAL(add(id, group), 0);
		status = outcome(id);
		CHECK(status == 0 || status == -EADDRNOTAVAIL || status == -ENETDOWN || status == -ENETRESET);
	} while (status != 0);
}

/* Waits until the port is active, administration grants, and the service is in the broadcast group. */
static void ready(void)
{
	pthread_t thread;
	struct rdma_cm_id *id;

	port = open_port();
	manager = directed_agent(port);
	CHECK((sa_port = umad_open_port(NULL, 0)) >= 0);
	administration = agent(sa_port, UMAD_CLASS_SUBN_ADM, UMAD_SA_CLASS_VERSION, 0,
			       1ULL << UMAD_METHOD_SET | 1ULL << DELETE | 1ULL << UMAD_METHOD_GET);
	CHECK(administration >= 0);
	EQUAL(pthread_create(&thread, NULL, administer, NULL), 0);
	activate();
	CHECK((channel = rdma_create_event_channel()) != NULL);
	id = bound(RDMA_PS_UDP);
	until_joined(id, first_group);
	/* The service learns of its port's change a moment after the manager gets the answer. It has when it reports the loss. */
	change_port(0, REREGISTER);
	EQUAL(outcome(id), -ENETRESET);
	until_joined(id, first_group);
	EQUAL(drop(id, first_group), 0);
	end(id);
}

/* Checks the fields that groups take from the broadcast group. */
static void as_the_broadcast_group(const struct question *q)
{
	EQUAL(memcmp(q->record + PKEY, parameters + PKEY, 2), 0);
	EQUAL(memcmp(q->record + SL, parameters + SL, 4), 0);
	EQUAL(q->record[MTU + 1], parameters[MTU + 1]);
}

static void parameters_are_those_of_the_broadcast_group(void)
{
	static const struct {
		enum rdma_port_space space;
		const char *mgid;
		uint32_t qkey;
		uint64_t more;
	} table[] = {
		{ RDMA_PS_UDP, "ff12:4001:ffff::f01:203", RDMA_UDP_QKEY, 0 },
		{ RDMA_PS_IPOIB, "ff12:401b:ffff::f01:203", 0x0b1b,
		  IB_SA_MCMEMBER_REC_RATE | IB_SA_MCMEMBER_REC_RATE_SELECTOR | IB_SA_MCMEMBER_REC_MTU |
			  IB_SA_MCMEMBER_REC_MTU_SELECTOR | IB_SA_MCMEMBER_REC_HOP_LIMIT },
	};

	ready();
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		struct rdma_cm_id *id = bound(table[i].space);
		int n = asked_so_far();
		struct question q;
		uint8_t mgid[16];
		uint32_t qkey = htonl(table[i].qkey);
		struct ib_sa_mcmember_rec rec;
		struct sockaddr_in group = v4("239.1.2.3");
		struct ibv_send_wr wr;

		EQUAL(add(id, "239.1.2.3"), 0);
		q = question(n);
		mgid_of(table[i].mgid, mgid);
		EQUAL(memcmp(q.record, mgid, 16), 0);
		EQUAL(memcmp(q.record + QKEY, &qkey, 4), 0);
		EQUAL(q.record[STATE_OF] & 0xf, FULL);
		EQUAL(q.mask, KEYS | IB_SA_MCMEMBER_REC_PKEY | IB_SA_MCMEMBER_REC_QKEY | IB_SA_MCMEMBER_REC_SL |
				      IB_SA_MCMEMBER_REC_FLOW_LABEL | IB_SA_MCMEMBER_REC_TRAFFIC_CLASS | table[i].more);
		as_the_broadcast_group(&q);
		EQUAL(outcome(id), 0);

		/* The record is the one from administration. */
		EQUAL(rdma_get_option(id, RDMA_PROTO_IP, IP_ADD_MEMBERSHIP, &rec, sizeof(rec)), 0);
		EQUAL(memcmp(rec.mgid.raw, mgid, 16), 0);
		EQUAL(memcmp(rec.port_gid.raw, q.record + 16, 16), 0);
		EQUAL(rec.qkey, qkey);
		EQUAL(ntohs(rec.mlid), 0xc002);
		EQUAL(rec.mtu_selector, 2);
		EQUAL(rec.mtu, 4);
		EQUAL(rec.traffic_class, 0x28);
		EQUAL(ntohs(rec.pkey), 0xffff);
		EQUAL(rec.rate_selector, 2);
		EQUAL(rec.rate, 3);
		EQUAL(rec.packet_life_time_selector, 2);
		EQUAL(rec.packet_life_time, 0x10);
		EQUAL(rec.sl, 3);
		EQUAL(ntohl(rec.flow_label), 0x12345);
		EQUAL(rec.hop_limit, 9);
		EQUAL(rec.scope, 2);
		EQUAL(rec.join_state, FULL);
		EQUAL(rec.proxy_join, 0);
		EQUAL(send_to(id, &wr, &group), 0);
		EQUAL(wr.wr.ud.remote_qpn, 0xffffff);
		EQUAL(htonl(wr.wr.ud.remote_qkey), qkey);
		CHECK(wr.wr.ud.ah != NULL);
		EQUAL(drop(id, "239.1.2.3"), 0);
		EQUAL(question(n + 1).method, DELETE);
		end(id);
	}
}

/* Returns a record with a valid value in every field. */
static struct ib_mreq full_record(struct rdma_cm_id *id)
{
	struct ib_mreq mreq = {
		.rec = {
			.qkey = htonl(0x11223344), .mlid = htons(0xc123), .mtu_selector = 1, .mtu = 2,
			.traffic_class = 0x66, .pkey = htons(0xffff), .rate_selector = 3, .rate = 7,
			.packet_life_time_selector = 1, .packet_life_time = 0x15, .sl = 9,
			.flow_label = htonl(0xabcde), .hop_limit = 0x77, .scope = 5, .join_state = FULL,
			.proxy_join = 1,
		},
	};

	mgid_of("ff15:1234::5678", mreq.rec.mgid.raw);
	EQUAL(ibv_query_gid(id->verbs, 1, 0, &mreq.rec.port_gid), 0);
	return mreq;
}

static void every_component_reaches_administration(void)
{
	static const uint8_t wire[RECORD - 32] = {
		0x11, 0x22, 0x33, 0x44, 0xc1, 0x23, 0x42, 0x66, 0xff, 0xff, 0xc7, 0x55,
		0x9a, 0xbc, 0xde, 0x77, 0x51, 0x80,
	};
	struct rdma_cm_id *id;
	struct ib_mreq mreq;

	ready();
	set_mode(REFUSE);
	id = bound(RDMA_PS_UDP);
	mreq = full_record(id);
	for (int bit = 0; bit <= 18; bit++) {
		int n = asked_so_far();
		struct question q;

		mreq.comp_mask = bit == 18 ? ALL_COMPONENTS : 1ULL << bit;
		EQUAL(rdma_set_option(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &mreq, sizeof(mreq)), 0);
		q = question(n);
		EQUAL(q.method, UMAD_METHOD_SET);
		EQUAL(q.mask, mreq.comp_mask);
		EQUAL(memcmp(q.record, mreq.rec.mgid.raw, 16), 0);
		EQUAL(memcmp(q.record + 16, mreq.rec.port_gid.raw, 16), 0);
		EQUAL(memcmp(q.record + 32, wire, sizeof(wire)), 0);
		EQUAL(outcome(id), -EINVAL);
		no_event();
	}
	end(id);
}

static void fields_that_cannot_be_are_refused(void)
{
	struct rdma_cm_id *id;
	struct ib_mreq good, bad;

	ready();
	id = bound(RDMA_PS_UDP);
	good = full_record(id);
	good.comp_mask = KEYS | IB_SA_MCMEMBER_REC_PKEY | IB_SA_MCMEMBER_REC_MTU;
#define WRONG(change)                                                                                 \
	do {                                                                                          \
		bad = good;                                                                           \
		change;                                                                               \
		SETS(rdma_set_option(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &bad, sizeof(bad)), EINVAL); \
	} while (0)
	WRONG(bad.rec.mgid.raw[0] = 0xfe);
	WRONG(memcpy(bad.rec.mgid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff\xef\1\2\3", 16));
	WRONG(bad.rec.port_gid.raw[15] ^= 1);
	WRONG(bad.rec.pkey = htons(0x8765));
	WRONG(bad.rec.mtu = 6);
	WRONG(bad.rec.join_state = 0);
	WRONG(bad.rec.join_state = 0x11);
	WRONG(bad.rec.scope = 0x15);
	WRONG(bad.rec.sl = 0x19);
	WRONG(bad.rec.flow_label = htonl(0x100000));
	WRONG(bad.rec.rate = 0x40);
	WRONG(bad.rec.rate_selector = 4);
	WRONG(bad.rec.packet_life_time_selector = 4);
	WRONG(bad.rec.proxy_join = -1);
	WRONG(bad.comp_mask |= 1ULL << 18);
	WRONG(bad.comp_mask |= 1ULL << 63);
	SETS(rdma_set_option(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &good, sizeof(good) - 8), EINVAL);
	SETS(rdma_set_option(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, NULL, sizeof(good)), EINVAL);
	/* Administration got no request for any of them: its first one is for a valid record. */
	EQUAL(rdma_set_option(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &good, sizeof(good)), 0);
	EQUAL(outcome(id), 0);
	EQUAL(question(0).mask, good.comp_mask);
	EQUAL(asked_so_far(), 1);
	no_event();
	end(id);
}

static void call_returns_first_and_one_event_follows(void)
{
	struct rdma_cm_id *id;
	struct ib_sa_mcmember_rec rec;
	struct sockaddr_in group = v4("239.2.2.2");
	struct ibv_send_wr wr;

	ready();
	set_mode(HOLD);
	id = bound(RDMA_PS_UDP);
	EQUAL(add(id, "239.2.2.2"), 0);
	question(0);
	no_event();
	SETS(rdma_get_option(id, RDMA_PROTO_IP, IP_ADD_MEMBERSHIP, &rec, sizeof(rec)), ENOTCONN);
	SETS(send_to(id, &wr, &group), ENOTCONN);
	SETS(add(id, "239.2.2.2"), EINVAL);
	pthread_mutex_lock(&lock);
	answer(&held, 0);
	pthread_mutex_unlock(&lock);
	EQUAL(outcome(id), 0);
	EQUAL(rdma_get_option(id, RDMA_PROTO_IP, IP_ADD_MEMBERSHIP, &rec, sizeof(rec)), 0);
	EQUAL(send_to(id, &wr, &group), 0);
	no_event();
	end(id);
}

static void refusal_and_silence_have_an_errno_each(void)
{
	struct rdma_cm_id *id;
	struct sockaddr_in group = v4("239.3.3.3");
	struct ib_sa_mcmember_rec rec;
	struct ibv_send_wr wr;

	ready();
	id = bound(RDMA_PS_UDP);
	set_mode(REFUSE);
	EQUAL(add(id, "239.3.3.3"), 0);
	EQUAL(outcome(id), -EINVAL);
	SETS(send_to(id, &wr, &group), EINVAL);
	SETS(rdma_get_option(id, RDMA_PROTO_IP, IP_ADD_MEMBERSHIP, &rec, sizeof(rec)), EINVAL);
	set_mode(SILENT);
	EQUAL(add(id, "239.3.3.3"), 0);
	EQUAL(outcome(id), -ETIMEDOUT);
	SETS(send_to(id, &wr, &group), ETIMEDOUT);
	/* It may be joined again without being left, and then left once. */
	set_mode(GRANT);
	EQUAL(add(id, "239.3.3.3"), 0);
	EQUAL(outcome(id), 0);
	EQUAL(send_to(id, &wr, &group), 0);
	EQUAL(drop(id, "239.3.3.3"), 0);
	SETS(drop(id, "239.3.3.3"), EADDRNOTAVAIL);
	SETS(send_to(id, &wr, &group), EADDRNOTAVAIL);
	no_event();
	end(id);
}

static void groups_that_are_forgotten_are_told(void)
{
	struct rdma_cm_id *id;
	struct sockaddr_in group = v4("239.4.4.4");
	struct ibv_send_wr wr;

	ready();
	id = bound(RDMA_PS_UDP);
	for (int way = 0; way < 2; way++) {
		EQUAL(add(id, "239.4.4.4"), 0);
		EQUAL(outcome(id), 0);
		if (way == 0)
			change_port(0, REREGISTER);
		else
			change_port(DOWN, 0);
		EQUAL(outcome(id), -ENETRESET);
		SETS(send_to(id, &wr, &group), ENETRESET);
		no_event();
		activate();
		until_joined(id, "239.4.4.4");
		EQUAL(send_to(id, &wr, &group), 0);
		EQUAL(drop(id, "239.4.4.4"), 0);
	}
	end(id);
}

static void synchronous_joins_return_their_own_outcome(void)
{
	static const char *const groups[] = { "239.4.5.1", "239.4.5.2" };
	struct sockaddr_in local = own_address();
	struct sockaddr_in to[] = { v4(groups[0]), v4(groups[1]) };
	struct rdma_cm_id *id;
	struct pollfd fd = { .events = POLLIN };
	struct ibv_send_wr wr;

	ready();
	id = bound_on(NULL, RDMA_PS_UDP, &local);
	for (int i = 0; i < 2; i++)
		EQUAL(add(id, groups[i]), 0);
	change_port(0, REREGISTER);
	/* The events of both losses are in the id's channel, where a program does not look. */
	fd.fd = id->channel->fd;
	EQUAL(poll(&fd, 1, -1), 1);
	while (add(id, groups[0]) != 0)
		if (errno != EADDRNOTAVAIL)
			FAIL("joining again sets errno %d", errno);
	EQUAL(send_to(id, &wr, &to[0]), 0);
	SETS(send_to(id, &wr, &to[1]), ENETRESET);
	EQUAL(add(id, groups[1]), 0);
	EQUAL(send_to(id, &wr, &to[1]), 0);
	for (int i = 0; i < 2; i++)
		EQUAL(drop(id, groups[i]), 0);
	end(id);
}

static void groups_may_be_joined_again_before_their_loss_is_read(void)
{
	struct rdma_cm_id *id;
	struct pollfd fd = { .fd = -1, .events = POLLIN };
	/* This join needs nothing of the broadcast group. */
	struct ib_mreq mreq = { .rec = { .join_state = FULL }, .comp_mask = KEYS };
	struct ib_sa_mcmember_rec rec;
	struct sockaddr_ib to = { .sib_family = AF_IB };
	struct ibv_send_wr wr;

	ready();
	id = bound(RDMA_PS_UDP);
	fd.fd = channel->fd;
	mgid_of("ff12:4001:ffff::f04:406", mreq.rec.mgid.raw);
	memcpy(&to.sib_addr, mreq.rec.mgid.raw, 16);
	EQUAL(ibv_query_gid(id->verbs, 1, 0, &mreq.rec.port_gid), 0);
	for (int leaves_first = 0; leaves_first < 2; leaves_first++) {
		EQUAL(rdma_set_option(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &mreq, sizeof(mreq)), 0);
		EQUAL(outcome(id), 0);
		change_port(0, REREGISTER);
		EQUAL(poll(&fd, 1, -1), 1);
		EQUAL(rdma_set_option(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &mreq, sizeof(mreq)), 0);
		if (leaves_first)
			EQUAL(rdma_set_option(id, RDMA_PROTO_IB, IB_DROP_MEMBERSHIP, &mreq, sizeof(mreq)), 0);
		EQUAL(outcome(id), -ENETRESET);
		if (!leaves_first) {
			EQUAL(outcome(id), 0);
			EQUAL(rdma_get_option(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &rec, sizeof(rec)), 0);
			EQUAL(memcmp(rec.mgid.raw, mreq.rec.mgid.raw, 16), 0);
			EQUAL(send_to(id, &wr, &to), 0);
			EQUAL(rdma_set_option(id, RDMA_PROTO_IB, IB_DROP_MEMBERSHIP, &mreq, sizeof(mreq)), 0);
		}
		SETS(send_to(id, &wr, &to), EADDRNOTAVAIL);
		SETS(rdma_set_option(id, RDMA_PROTO_IB, IB_DROP_MEMBERSHIP, &mreq, sizeof(mreq)), EADDRNOTAVAIL);
		no_event();
	}
	end(id);
}

static void partitions_of_others_end_no_membership(void)
{
	struct rdma_cm_id *id;
	struct sockaddr_in group = v4("239.4.4.5");
	struct ibv_send_wr wr;

	ready();
	id = bound(RDMA_PS_UDP);
	EQUAL(add(id, "239.4.4.5"), 0);
	EQUAL(outcome(id), 0);
	for (uint16_t pkey = 0x8123;; pkey = 0) {
		change_partition(id->verbs, pkey);
		no_event();
		EQUAL(send_to(id, &wr, &group), 0);
		if (!pkey)
			break;
	}
	EQUAL(drop(id, "239.4.4.5"), 0);
	end(id);
}

static void port_leaves_with_the_last_member(void)
{
	struct rdma_cm_id *one, *two;
	struct question q;
	struct ib_mreq mreq = { .comp_mask = KEYS };

	ready();
	one = bound(RDMA_PS_UDP);
	two = bound(RDMA_PS_UDP);
	EQUAL(add(one, "239.5.5.5"), 0);
	EQUAL(outcome(one), 0);
	EQUAL(add(two, "239.5.5.5"), 0);
	EQUAL(outcome(two), 0);
	EQUAL(asked_so_far(), 1);
	EQUAL(drop(one, "239.5.5.5"), 0);
	EQUAL(add(one, "239.6.6.6"), 0);
	EQUAL(outcome(one), 0);
	EQUAL(asked_so_far(), 2);
	EQUAL(question(1).method, UMAD_METHOD_SET);
	end(two);
	q = question(2);
	EQUAL(q.method, DELETE);
	EQUAL(q.record[STATE_OF] & 0xf, FULL);
	EQUAL(q.mask, KEYS);
	EQUAL(memcmp(q.record, question(0).record, 16), 0);

	/* A send-only membership is another kind, and separate. */
	mgid_of("ff12:4001:ffff::f06:606", mreq.rec.mgid.raw);
	EQUAL(ibv_query_gid(one->verbs, 1, 0, &mreq.rec.port_gid), 0);
	mreq.rec.join_state = SEND_ONLY;
	EQUAL(rdma_set_option(one, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &mreq, sizeof(mreq)), 0);
	EQUAL(outcome(one), 0);
	q = question(3);
	EQUAL(q.record[STATE_OF] & 0xf, SEND_ONLY);
	EQUAL(drop(one, "239.6.6.6"), 0);
	q = question(4);
	EQUAL(q.method, DELETE);
	EQUAL(q.record[STATE_OF] & 0xf, FULL);
	EQUAL(rdma_set_option(one, RDMA_PROTO_IB, IB_DROP_MEMBERSHIP, &mreq, sizeof(mreq)), 0);
	EQUAL(question(5).record[STATE_OF] & 0xf, SEND_ONLY);
	end(one);
}

static void gids_are_assigned(void)
{
	struct rdma_cm_id *id;
	struct ib_mreq mreq = { .comp_mask = KEYS }, told[2] = {};
	struct sockaddr_ib to = { .sib_family = AF_IB };
	struct ibv_send_wr wr;

	ready();
	id = bound(RDMA_PS_UDP);
	EQUAL(ibv_query_gid(id->verbs, 1, 0, &mreq.rec.port_gid), 0);
	mreq.rec.join_state = FULL;
	/* Two at a time, by either interface. */
	EQUAL(rdma_set_option(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &mreq, sizeof(mreq)), 0);
	EQUAL(outcome(id), 0);
	EQUAL(rdma_get_option(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &told[0], sizeof(told[0])), 0);
	EQUAL(rdma_join_multicast(id, (struct sockaddr *)&to, NULL), 0);
	EQUAL(outcome(id), 0);
	SETS(rdma_get_option(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &told[1], sizeof(told[1])), ENOTUNIQ);
	EQUAL(told[0].comp_mask, ALL_COMPONENTS);
	EQUAL(told[0].rec.mgid.raw[2], 0xa0);
	memcpy(&to.sib_addr, told[0].rec.mgid.raw, 16);
	EQUAL(send_to(id, &wr, &to), 0);
	EQUAL(rdma_set_option(id, RDMA_PROTO_IB, IB_DROP_MEMBERSHIP, &told[0], sizeof(told[0])), 0);
	SETS(send_to(id, &wr, &to), EADDRNOTAVAIL);
	EQUAL(rdma_get_option(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &told[1], sizeof(told[1])), 0);
	CHECK(memcmp(told[1].rec.mgid.raw, told[0].rec.mgid.raw, 16) != 0);
	EQUAL(rdma_set_option(id, RDMA_PROTO_IB, IB_DROP_MEMBERSHIP, &told[1], sizeof(told[1])), 0);

	/* A group that has no GID yet is named by zero. */
	set_mode(HOLD);
	EQUAL(rdma_set_option(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &mreq, sizeof(mreq)), 0);
	EQUAL(rdma_set_option(id, RDMA_PROTO_IB, IB_DROP_MEMBERSHIP, &mreq, sizeof(mreq)), 0);
	SETS(rdma_set_option(id, RDMA_PROTO_IB, IB_DROP_MEMBERSHIP, &mreq, sizeof(mreq)), EADDRNOTAVAIL);
	end(id);
}

/* As with Linux: the unspecified address asks for a new group, which others join by its GID, written as an IPv6 address. */
static void unspecified_address_asks_for_a_new_group(void)
{
	struct sockaddr_in any4 = { .sin_family = AF_INET };
	struct sockaddr_in6 any6 = { .sin6_family = AF_INET6 }, to = any6;
	struct sockaddr *any[] = { (struct sockaddr *)&any4, (struct sockaddr *)&any6 };
	static const uint8_t none[16];
	struct rdma_cm_id *id, *other;
	struct ib_sa_mcmember_rec rec;
	struct ibv_send_wr wr;

	ready();
	id = bound(RDMA_PS_UDP);
	other = bound(RDMA_PS_UDP);
	for (int i = 0; i < 2; i++) {
		int n = asked_so_far();

		EQUAL(rdma_join_multicast(id, any[i], NULL), 0);
		EQUAL(memcmp(question(n).record, none, 16), 0);
		EQUAL(outcome(id), 0);
		EQUAL(rdma_get_option(id, RDMA_PROTO_IP, IP_ADD_MEMBERSHIP, &rec, sizeof(rec)), 0);
		EQUAL(rec.mgid.raw[2], 0xa0);
		/* Ids of IPv4 addresses join it, too. */
		memcpy(&to.sin6_addr, rec.mgid.raw, 16);
		EQUAL(rdma_join_multicast(other, (struct sockaddr *)&to, NULL), 0);
		EQUAL(outcome(other), 0);
		EQUAL(send_to(other, &wr, &to), 0);
		EQUAL(memcmp(question(n).record, none, 16), 0);
		EQUAL(asked_so_far(), n + 1);
		EQUAL(rdma_leave_multicast(other, (struct sockaddr *)&to), 0);
		/* It is left by the address by which it was joined. */
		EQUAL(rdma_leave_multicast(id, any[i]), 0);
		SETS(rdma_leave_multicast(id, any[i]), EADDRNOTAVAIL);
		EQUAL(question(n + 1).method, DELETE);
	}
	end(id);
	end(other);
}

static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	EQUAL(n, 1);
	EQUAL(wc.status, IBV_WC_SUCCESS);
	return wc;
}

/* A datagram to a group's address reaches its members, of which the sender is the only one, with the group's GID. */
static void reaches_members(struct rdma_cm_id *id, struct sockaddr *group, const uint8_t mgid[16])
{
	static uint8_t buffer[64];
	const struct ibv_grh *grh = (const struct ibv_grh *)buffer;
	struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof(buffer));
	struct ibv_send_wr wr;

	CHECK(mr != NULL);
	EQUAL(rdma_post_recv(id, NULL, buffer, sizeof(buffer), mr), 0);
	EQUAL(send_to(id, &wr, group), 0);
	EQUAL(wr.wr.ud.remote_qpn, 0xffffff);
	EQUAL(wr.wr.ud.remote_qkey, RDMA_UDP_QKEY);
	CHECK(wr.wr.ud.ah != NULL);
	completion(id->send_cq);
	EQUAL(completion(id->recv_cq).byte_len, 40 + 16);
	EQUAL(memcmp(grh->dgid.raw, mgid, 16), 0);
	EQUAL(rdma_dereg_mr(mr), 0);
}

static void ids_that_are_bound_by_gid_join_groups_of_every_kind(void)
{
	struct rdma_cm_id *id;
	struct sockaddr_ib at = { .sib_family = AF_IB, .sib_sid_mask = 0 };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
	struct sockaddr_ib by = { .sib_family = AF_IB };
	struct ipv6_mreq mreq = {};
	struct ibv_send_wr wr;
	union ibv_gid own;
	uint8_t mgid[16];

	ready();
	id = bound(RDMA_PS_UDP);
	EQUAL(ibv_query_gid(id->verbs, 1, 0, &own), 0);
	SETS(rdma_set_option(id, RDMA_PROTO_IP, IP_ADD_MEMBERSHIP, &mreq, sizeof(mreq)), EINVAL);
	end(id);
	memcpy(&at.sib_addr, own.raw, 16);
	id = bound_to(RDMA_PS_UDP, &at);
	/* IPv4, IPv6, a GID, and GIDs with the signature of both families. */
	EQUAL(add(id, "239.7.7.7"), 0);
	EQUAL(outcome(id), 0);
	EQUAL(inet_pton(AF_INET6, "ff0e::1:2", &mreq.ipv6mr_multiaddr), 1);
	EQUAL(rdma_set_option(id, RDMA_PROTO_IP, IP_ADD_MEMBERSHIP, &mreq, sizeof(mreq)), 0);
	EQUAL(outcome(id), 0);
	mgid_of("ff12:6001:ffff::1:2", mgid);
	EQUAL(memcmp(question(1).record, mgid, 16), 0);
	v6.sin6_addr = mreq.ipv6mr_multiaddr;
	reaches_members(id, (struct sockaddr *)&v6, mgid);
	mgid_of("ff15:77::1", (uint8_t *)&by.sib_addr);
	EQUAL(rdma_join_multicast(id, (struct sockaddr *)&by, NULL), 0);
	EQUAL(outcome(id), 0);
	EQUAL(memcmp(question(2).record, &by.sib_addr, 16), 0);
	by.sib_pkey = htons(0x8123);
	SETS(rdma_join_multicast(id, (struct sockaddr *)&by, NULL), EINVAL);
	EQUAL(rdma_leave_multicast(id, (struct sockaddr *)&v6), 0);
	SETS(send_to(id, &wr, &v6), EADDRNOTAVAIL);
	EQUAL(rdma_leave_multicast(id, (struct sockaddr *)&by), 0);
	end(id);
}

static const struct test tests[] = {
	TEST(parameters_are_those_of_the_broadcast_group),
	TEST(every_component_reaches_administration),
	TEST(fields_that_cannot_be_are_refused),
	TEST(call_returns_first_and_one_event_follows),
	TEST(refusal_and_silence_have_an_errno_each),
	TEST(groups_that_are_forgotten_are_told),
	TEST(synchronous_joins_return_their_own_outcome),
	TEST(groups_may_be_joined_again_before_their_loss_is_read),
	TEST(partitions_of_others_end_no_membership),
	TEST(port_leaves_with_the_last_member),
	TEST(gids_are_assigned),
	TEST(unspecified_address_asks_for_a_new_group),
	TEST(ids_that_are_bound_by_gid_join_groups_of_every_kind),
};
CHECK_MAIN(tests)
