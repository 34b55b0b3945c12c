/* InfiniBand's own addresses (AF_IB) in the connection manager, paths from the program, and lookups of names that return both: on
 * InfiniBand and on RoCE, where a GID is an IP address. */
#define _GNU_SOURCE
#include "check.h"

#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/umad.h>
#include <infiniband/umad_sa.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdmux/cm.h>
#include <stdlib.h>
#include <string.h>

enum {
	TIMEOUT = 5000, /* ms */
	LENGTH = 64,
	ANY_PATH = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL,
};
static const uint64_t service = 0x10000000dead0000;
static const uint16_t lab = 0x8020; /* a partition that a manager may have made */

union address {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
	struct sockaddr_ib ib;
	struct sockaddr_storage storage;
};

/* ---- Addresses of this host ---- */

static union address own_v4(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;
	union address address = { 0 };

	EQUAL(rdma_getaddrinfo(getenv("RDMUX_HOST"), NULL, &hints, &found), 0);
	EQUAL(found->ai_family, AF_INET);
	CHECK(found->ai_next == NULL);
	memcpy(&address, found->ai_dst_addr, found->ai_dst_len);
	rdma_freeaddrinfo(found);
	return address;
}

static union address own_v6(void)
{
	union address v4 = own_v4(), v6 = { .v6 = { .sin6_family = AF_INET6 } };

	memset(v6.v6.sin6_addr.s6_addr + 10, 0xff, 2);
	memcpy(v6.v6.sin6_addr.s6_addr + 12, &v4.v4.sin_addr, 4);
	return v6;
}

static struct rdma_event_channel *channel(void)
{
	struct rdma_event_channel *new = rdma_create_event_channel();

	CHECK(new != NULL);
	return new;
}

static struct rdma_cm_id *created(struct rdma_event_channel *on, enum rdma_port_space space)
{
	struct rdma_cm_id *id;

	EQUAL(rdma_create_id(on, &id, NULL, space), 0);
	return id;
}

/* Returns the GID of the port that has the host's IP address. */
static union ibv_gid own_gid(void)
{
	union address v4 = own_v4();
	struct rdma_event_channel *on = channel();
	struct rdma_cm_id *id = created(on, RDMA_PS_TCP);
	union ibv_gid gid;

	EQUAL(rdma_bind_addr(id, &v4.any), 0);
	gid = id->route.addr.addr.ibaddr.sgid;
	CHECK(gid.global.interface_id != 0);
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(on);
	return gid;
}

/* Returns the address of a service at this host's GID. */
static union address own_ib(uint64_t sid)
{
	union ibv_gid gid = own_gid();
	union address ib = { .ib = {
				     .sib_family = AF_IB,
				     .sib_pkey = htons(0xffff),
				     .sib_sid = htobe64(sid),
				     .sib_sid_mask = htobe64(UINT64_MAX),
			     } };

	memcpy(&ib.ib.sib_addr, gid.raw, sizeof(gid));
	return ib;
}

/* Returns the address of a port of a port space; 0 for any port. */
static union address own_ib_port(enum rdma_port_space space, uint16_t port)
{
	union address ib = own_ib(((uint64_t)space << 16) + port);

	if (!port)
		ib.ib.sib_sid_mask = htobe64(RDMA_IB_IP_PS_MASK);
	return ib;
}

/* Returns the same address with another port, in network order. */
static union address at_port(union address address, __be16 port)
{
	switch (address.any.sa_family) {
	case AF_INET:
		address.v4.sin_port = port;
		break;
	case AF_INET6:
		address.v6.sin6_port = port;
		break;
	default:
		address.ib.sib_sid = htobe64((be64toh(address.ib.sib_sid) & ~0xffffull) | ntohs(port));
		address.ib.sib_sid_mask = htobe64(UINT64_MAX);
	}
	return address;
}

/* ---- Connections ---- */

static struct rdma_cm_event *next(struct rdma_event_channel *on, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;

	EQUAL(rdma_get_cm_event(on, &event), 0);
	if (event->event != type || event->status != 0)
		FAIL("%s (%d), not %s", rdma_event_str(event->event), event->status,
		     rdma_event_str(type));
	return event;
}

static void expect(struct rdma_event_channel *on, enum rdma_cm_event_type type)
{
	EQUAL(rdma_ack_cm_event(next(on, type)), 0);
}

static void with_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = id->qp_type,
		.sq_sig_all = 1,
	};

	EQUAL(rdma_create_qp(id, NULL, &attr), 0);
}

static void message(struct rdma_cm_id *from, struct rdma_cm_id *to)
{
	static _Thread_local char sent[LENGTH], got[LENGTH];
	struct ibv_mr *source, *place;
	struct ibv_wc wc;

	memset(sent, 'a' + LENGTH % 26, sizeof(sent));
	CHECK((source = rdma_reg_msgs(from, sent, sizeof(sent))) != NULL);
	CHECK((place = rdma_reg_msgs(to, got, sizeof(got))) != NULL);
	EQUAL(rdma_post_recv(to, NULL, got, sizeof(got), place), 0);
	EQUAL(rdma_post_send(from, NULL, sent, sizeof(sent), source, 0), 0);
	EQUAL(rdma_get_send_comp(from, &wc), 1);
	EQUAL(wc.status, IBV_WC_SUCCESS);
	EQUAL(rdma_get_recv_comp(to, &wc), 1);
	EQUAL(wc.status, IBV_WC_SUCCESS);
	EQUAL(memcmp(sent, got, sizeof(got)), 0);
	EQUAL(rdma_dereg_mr(source), 0);
	EQUAL(rdma_dereg_mr(place), 0);
}

/* Two ends. */
struct pair {
	struct rdma_event_channel *server, *client;
	struct rdma_cm_id *listener, *child, *id;
};

static struct pair listening(enum rdma_port_space space, const union address *at)
{
	struct pair p = { .server = channel(), .client = channel() };
	union address address = *at;

	p.listener = created(p.server, space);
	EQUAL(rdma_bind_addr(p.listener, &address.any), 0);
	EQUAL(rdma_listen(p.listener, 4), 0);
	return p;
}

static void resolved(struct pair *p, enum rdma_port_space space, const union address *to)
{
	union address address = *to;

	p->id = created(p->client, space);
	EQUAL(rdma_resolve_addr(p->id, NULL, &address.any, TIMEOUT), 0);
	expect(p->client, RDMA_CM_EVENT_ADDR_RESOLVED);
	/* An IPv4-mapped IPv6 address is an IPv4 address. */
	EQUAL(rdma_get_peer_addr(p->id)->sa_family,
	      to->any.sa_family == AF_INET6 ? AF_INET : to->any.sa_family);
	EQUAL(rdma_resolve_route(p->id, TIMEOUT), 0);
	expect(p->client, RDMA_CM_EVENT_ROUTE_RESOLVED);
	EQUAL(p->id->route.num_paths, 1);
}

/* Connects ids that have a path, with so many bytes of private data; then sends a message each way. */
static void connects(struct pair *p, uint8_t data_len)
{
	uint8_t data[UINT8_MAX];
	struct rdma_conn_param param = {
		.private_data = data, .private_data_len = data_len, .responder_resources = 1,
		.initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7,
	};
	struct rdma_cm_event *event;

	memset(data, 0x5a, sizeof(data));
	with_qp(p->id);
	EQUAL(rdma_connect(p->id, &param), 0);
	event = next(p->server, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->listen_id == p->listener);
	CHECK(event->param.conn.private_data_len >= data_len);
	EQUAL(memcmp(event->param.conn.private_data, data, data_len), 0);
	p->child = event->id;
	EQUAL(rdma_ack_cm_event(event), 0);
	with_qp(p->child);
	param.private_data_len = 0;
	EQUAL(rdma_accept(p->child, &param), 0);
	expect(p->client, RDMA_CM_EVENT_ESTABLISHED);
	expect(p->server, RDMA_CM_EVENT_ESTABLISHED);
	message(p->id, p->child);
	message(p->child, p->id);
}

static void ends(struct pair *p)
{
	if (p->child) {
		EQUAL(rdma_disconnect(p->id), 0);
		expect(p->server, RDMA_CM_EVENT_DISCONNECTED);
		EQUAL(rdma_disconnect(p->child), 0);
		expect(p->client, RDMA_CM_EVENT_DISCONNECTED);
		rdma_destroy_qp(p->child);
		EQUAL(rdma_destroy_id(p->child), 0);
	}
	if (p->id) {
		if (p->id->qp)
			rdma_destroy_qp(p->id);
		EQUAL(rdma_destroy_id(p->id), 0);
	}
	EQUAL(rdma_destroy_id(p->listener), 0);
	rdma_destroy_event_channel(p->server);
	rdma_destroy_event_channel(p->client);
}

/* The same text for each family. */
static void one_connection(union address at)
{
	struct pair p = listening(RDMA_PS_TCP, &at);
	union address to = at_port(at, rdma_get_src_port(p.listener));

	EQUAL(rdma_get_local_addr(p.listener)->sa_family,
	      at.any.sa_family == AF_INET6 ? AF_INET : at.any.sa_family);
	CHECK(rdma_get_src_port(p.listener) != 0);
	resolved(&p, RDMA_PS_TCP, &to);
	EQUAL(rdma_get_dst_port(p.id), rdma_get_src_port(p.listener));
	connects(&p, 56);
	EQUAL(rdma_get_peer_addr(p.child)->sa_family, rdma_get_local_addr(p.listener)->sa_family);
	ends(&p);
}

static void connects_by_ipv4(void)
{
	one_connection(own_v4());
}

static void connects_by_ipv6(void)
{
	one_connection(own_v6());
}

static void connects_by_gid(void)
{
	one_connection(own_ib_port(RDMA_PS_TCP, 0));
}

/* ---- Service IDs ---- */

/* A listener of 256 services: the ID is sent unchanged, and private data begin at byte 0. */
static void services_by_mask(void)
{
	union address at = own_ib(service), to = own_ib(service + 0x42);
	const struct sockaddr_ib *asked;
	struct pair p;

	at.ib.sib_sid_mask = htobe64(~0xffull);
	p = listening(RDMA_PS_IB, &at);
	resolved(&p, RDMA_PS_IB, &to);
	connects(&p, 92);
	asked = (struct sockaddr_ib *)rdma_get_local_addr(p.child);
	EQUAL(asked->sib_family, AF_IB);
	EQUAL(be64toh(asked->sib_sid), service + 0x42);
	EQUAL(memcmp(&asked->sib_addr, &to.ib.sib_addr, 16), 0);
	ends(&p);
}

/* A request for a service without a listener is refused: REJ's reason 8. */
static void other_services_are_refused(void)
{
	union address at = own_ib(service), to = own_ib(service + 0x100);
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_event *event;
	struct pair p = listening(RDMA_PS_IB, &at);

	resolved(&p, RDMA_PS_IB, &to);
	with_qp(p.id);
	EQUAL(rdma_connect(p.id, &param), 0);
	EQUAL(rdma_get_cm_event(p.client, &event), 0);
	EQUAL(event->event, RDMA_CM_EVENT_REJECTED);
	EQUAL(event->status, 8);
	EQUAL(rdma_ack_cm_event(event), 0);
	ends(&p);
}

static struct rdma_cm_id *datagram_endpoint(union address *at, bool passive)
{
	struct rdma_addrinfo info = {
		.ai_flags = passive ? RAI_PASSIVE : 0,
		.ai_family = AF_IB,
		.ai_qp_type = IBV_QPT_UD,
		.ai_port_space = RDMA_PS_IB,
		.ai_src_addr = passive ? &at->any : NULL,
		.ai_src_len = passive ? sizeof(at->ib) : 0,
		.ai_dst_addr = passive ? NULL : &at->any,
		.ai_dst_len = passive ? 0 : sizeof(at->ib),
	};
	struct rdma_cm_id *id;

	EQUAL(rdma_create_ep(&id, &info, NULL, NULL), 0);
	EQUAL(id->qp_type, IBV_QPT_UD);
	return id;
}

/* Datagrams: the ID is looked up unchanged, and the private data belong to the program alone. */
static void datagram_services_have_ids_too(void)
{
	union address at = own_ib(service + 0x200);
	struct rdma_cm_id *listener = datagram_endpoint(&at, true), *child;
	struct rdma_cm_id *id = datagram_endpoint(&at, false);
	struct rdma_event_channel *client = channel();
	uint8_t data[UINT8_MAX];
	struct rdma_conn_param param = { .private_data = data, .private_data_len = 217 };
	struct rdma_cm_event *event;

	memset(data, 0x5a, sizeof(data));
	EQUAL(rdma_listen(listener, 1), 0);
	EQUAL(rdma_migrate_id(id, client), 0);
	SETS(rdma_connect(id, &param), EINVAL);
	param.private_data_len = 216;
	EQUAL(rdma_connect(id, &param), 0);
	EQUAL(rdma_get_request(listener, &child), 0);
	EQUAL(child->event->param.ud.private_data_len, 216);
	EQUAL(memcmp(child->event->param.ud.private_data, data, 216), 0);
	EQUAL(be64toh(((struct sockaddr_ib *)rdma_get_local_addr(child))->sib_sid), service + 0x200);
	param = (struct rdma_conn_param){ .qp_num = 0x1234 };
	EQUAL(rdma_accept(child, &param), 0);
	event = next(client, RDMA_CM_EVENT_ESTABLISHED);
	EQUAL(event->param.ud.qp_num, 0x1234);
	EQUAL(rdma_ack_cm_event(event), 0);
	rdma_destroy_ep(child);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	rdma_destroy_event_channel(client);
}

static void addresses_are_checked(void)
{
	struct rdma_event_channel *on = channel();
	struct rdma_cm_id *id = created(on, RDMA_PS_TCP), *taken = created(on, RDMA_PS_IB);
	union address ib = own_ib_port(RDMA_PS_UDP, 7174), other = own_ib(service), v4 = own_v4();

	/* The service ID of another port space. */
	SETS(rdma_bind_addr(id, &ib.any), EINVAL);
	/* A GID that no port has, and a partition likewise. */
	memset(&other.ib.sib_addr, 0x21, 16);
	SETS(rdma_bind_addr(taken, &other.any), EADDRNOTAVAIL);
	other = own_ib(service);
	other.ib.sib_pkey = htons(0x8123);
	SETS(rdma_bind_addr(taken, &other.any), EADDRNOTAVAIL);
	/* A service that another id has. */
	other.ib.sib_pkey = 0;
	EQUAL(rdma_bind_addr(taken, &other.any), 0);
	EQUAL(rdma_destroy_id(id), 0);
	id = created(on, RDMA_PS_IB);
	SETS(rdma_bind_addr(id, &other.any), EADDRINUSE);
	/* Source and destination of different families. */
	SETS(rdma_resolve_addr(taken, NULL, &v4.any, TIMEOUT), EINVAL);
	ib = own_ib(service);
	memset(&ib.ib.sib_addr, 0, 16);
	SETS(rdma_resolve_addr(id, NULL, &ib.any, TIMEOUT), EADDRNOTAVAIL);
	EQUAL(rdma_destroy_id(id), 0);
	EQUAL(rdma_destroy_id(taken), 0);
	rdma_destroy_event_channel(on);
}

/* A listener of one partition gets no requests from another. RoCE has one partition. */
static void partitions_are_respected(void)
{
	union address at = own_ib(service), to = own_ib(service);
	struct rdma_event_channel *on = channel();
	struct rdma_cm_id *id = created(on, RDMA_PS_IB);
	struct rdma_conn_param param = { .retry_count = 7 };
	struct rdma_cm_event *event;
	struct pair p;
	bool has_lab;

	at.ib.sib_pkey = htons(lab);
	has_lab = rdma_bind_addr(id, &at.any) == 0;
	if (!has_lab) {
		int why = errno;
		union address v4 = own_v4();

		EQUAL(why, EADDRNOTAVAIL);
		EQUAL(rdma_bind_addr(id, &v4.any), 0);
		EQUAL(ntohs(id->route.addr.addr.ibaddr.pkey), 0xffff);
	}
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(on);
	if (!has_lab)
		return;
	p = listening(RDMA_PS_IB, &at);
	resolved(&p, RDMA_PS_IB, &to);
	with_qp(p.id);
	EQUAL(rdma_connect(p.id, &param), 0);
	EQUAL(rdma_get_cm_event(p.client, &event), 0);
	EQUAL(event->event, RDMA_CM_EVENT_REJECTED);
	EQUAL(rdma_ack_cm_event(event), 0);
	rdma_destroy_qp(p.id);
	EQUAL(rdma_destroy_id(p.id), 0);
	to.ib.sib_pkey = htons(lab);
	resolved(&p, RDMA_PS_IB, &to);
	EQUAL(ntohs(p.id->route.addr.addr.ibaddr.pkey), lab);
	EQUAL(ntohs(p.id->route.path_rec->pkey), lab);
	connects(&p, 1);
	ends(&p);
}

/* ---- Datagrams ---- */

static void datagrams_by_gid(void)
{
	union address at = own_ib_port(RDMA_PS_UDP, 0), to;
	struct pair p = listening(RDMA_PS_UDP, &at);
	struct rdma_conn_param param = { .private_data = "datagrams", .private_data_len = 10 };
	struct rdma_cm_event *event;

	to = at_port(at, rdma_get_src_port(p.listener));
	resolved(&p, RDMA_PS_UDP, &to);
	with_qp(p.id);
	EQUAL(rdma_connect(p.id, &param), 0);
	event = next(p.server, RDMA_CM_EVENT_CONNECT_REQUEST);
	EQUAL(memcmp(event->param.ud.private_data, "datagrams", 10), 0);
	p.child = event->id;
	EQUAL(rdma_ack_cm_event(event), 0);
	with_qp(p.child);
	param.qp_num = p.child->qp->qp_num;
	EQUAL(rdma_accept(p.child, &param), 0);
	event = next(p.client, RDMA_CM_EVENT_ESTABLISHED);
	EQUAL(event->param.ud.qp_num, p.child->qp->qp_num);
	EQUAL(rdma_ack_cm_event(event), 0);
	rdma_destroy_qp(p.child);
	EQUAL(rdma_destroy_id(p.child), 0);
	p.child = NULL;
	ends(&p);
}

/* ---- Paths ---- */

/* Returns the path to this host's own GID, as another host would know it. */
static struct ibv_path_data own_path(void)
{
	union address at = own_ib(service);
	struct pair p = listening(RDMA_PS_IB, &at);
	struct ibv_path_data data = { .flags = ANY_PATH };
	const struct ibv_sa_path_rec *known;

	resolved(&p, RDMA_PS_IB, &at);
	known = p.id->route.path_rec;
	data.path = (struct ibv_path_record){
		.dgid = known->dgid,
		.sgid = known->sgid,
		.dlid = known->dlid,
		.slid = known->slid,
		.flowlabel_hoplimit = htobe32(be32toh(known->flow_label) << 8 | known->hop_limit),
		.tclass = known->traffic_class,
		.reversible_numpath = IBV_PATH_RECORD_REVERSIBLE | 1,
		.pkey = known->pkey,
		.qosclass_sl = htobe16(known->sl),
		.mtu = 2 << 6 | known->mtu,
		.rate = 2 << 6 | known->rate,
		.packetlifetime = 2 << 6 | known->packet_life_time,
	};
	ends(&p);
	return data;
}

static void connects_along_paths(void)
{
	struct ibv_path_data path = own_path(), both[2];
	union address at = own_ib(service);
	struct pair p = listening(RDMA_PS_IB, &at);

	p.id = created(p.client, RDMA_PS_IB);
	EQUAL(rdmux_resolve_along(p.id, NULL, &at.any, &path, 1), 0);
	expect(p.client, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(p.id->verbs != NULL && p.id->pd != NULL);
	EQUAL(memcmp(&p.id->route.addr.addr.ibaddr.sgid, &path.path.sgid, 16), 0);
	EQUAL(p.id->route.path_rec->dlid, path.path.dlid);
	connects(&p, 92);
	ends(&p);

	/* A record for each direction, and the option after an address is resolved. */
	p = listening(RDMA_PS_IB, &at);
	both[0] = both[1] = path;
	both[0].flags = IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_OUTBOUND;
	both[1].flags = IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_INBOUND;
	both[1].path.dlid = path.path.slid;
	both[1].path.slid = path.path.dlid;
	p.id = created(p.client, RDMA_PS_IB);
	EQUAL(rdma_resolve_addr(p.id, NULL, &at.any, TIMEOUT), 0);
	expect(p.client, RDMA_CM_EVENT_ADDR_RESOLVED);
	EQUAL(rdma_set_option(p.id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, both, sizeof(both)), 0);
	expect(p.client, RDMA_CM_EVENT_ROUTE_RESOLVED);
	connects(&p, 92);
	ends(&p);
}

/* IP addresses may come with paths as well; no id is bound to the port by IP. */
static void connects_along_paths_by_ip(void)
{
	struct ibv_path_data path = own_path();
	union address at = own_v4(), to;
	struct pair p = listening(RDMA_PS_TCP, &at);

	to = at_port(at, rdma_get_src_port(p.listener));
	p.id = created(p.client, RDMA_PS_TCP);
	EQUAL(rdmux_resolve_along(p.id, NULL, &to.any, &path, 1), 0);
	expect(p.client, RDMA_CM_EVENT_ROUTE_RESOLVED);
	EQUAL(rdma_get_local_addr(p.id)->sa_family, AF_INET);
	connects(&p, 56);
	ends(&p);
}

static void connection_without_a_path_is_refused(void)
{
	union address to = own_ib(service);
	struct rdma_event_channel *on = channel();
	struct rdma_cm_id *id = created(on, RDMA_PS_IB);
	struct rdma_conn_param param = { .retry_count = 7 };

	EQUAL(rdma_resolve_addr(id, NULL, &to.any, TIMEOUT), 0);
	expect(on, RDMA_CM_EVENT_ADDR_RESOLVED);
	with_qp(id);
	SETS(rdma_connect(id, &param), EINVAL);
	EQUAL(rdma_resolve_route(id, TIMEOUT), 0);
	expect(on, RDMA_CM_EVENT_ROUTE_RESOLVED);
	rdma_destroy_qp(id);
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(on);
}

static void records_are_checked(void)
{
	struct ibv_path_data good = own_path(), bad, seven[7];
	union address to = own_ib(service), v4 = own_v4();
	struct rdma_event_channel *on = channel();
	struct rdma_cm_id *id = created(on, RDMA_PS_IB);

	SETS(rdmux_resolve_along(id, NULL, &to.any, NULL, 1), EINVAL);
	SETS(rdmux_resolve_along(id, NULL, &to.any, &good, 0), EINVAL);
	for (int i = 0; i < 7; i++)
		seven[i] = good;
	SETS(rdmux_resolve_along(id, NULL, &to.any, seven, 7), EINVAL);
	SETS(rdmux_resolve_along(id, NULL, &to.any, seven, 2), EINVAL);
	SETS(rdmux_resolve_along(id, NULL, &to.any, seven, SIZE_MAX), EINVAL);
	SETS(rdmux_resolve_along(id, NULL, NULL, &good, 1), EINVAL);
	SETS(rdmux_resolve_along(id, &v4.any, &to.any, &good, 1), EINVAL);
#define BAD(change)                                                            \
	do {                                                                   \
		bad = good;                                                    \
		change;                                                        \
		SETS(rdmux_resolve_along(id, NULL, &to.any, &bad, 1), EINVAL); \
	} while (0)
	BAD(bad.flags = 0);
	BAD(bad.flags = 1 << 12 | ANY_PATH);
	BAD(bad.flags = IBV_PATH_FLAG_GMP);
	BAD(bad.flags = IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_OUTBOUND);
	BAD(bad.path.sgid.raw[15] ^= 1);
	BAD(bad.path.dgid.raw[15] ^= 1);
	BAD(bad.path.pkey = htons(0x8123));
	BAD(bad.path.mtu = 2 << 6 | 9);
	BAD(bad.path.mtu = 0);
	if (good.path.slid != 0) {
		BAD(bad.path.slid = htons(0x4321));
		BAD(bad.path.dlid = htons(0xc001));
	}
	/* The id is unchanged. */
	EQUAL(rdmux_resolve_along(id, NULL, &to.any, &good, 1), 0);
	expect(on, RDMA_CM_EVENT_ROUTE_RESOLVED);
	SETS(rdmux_resolve_along(id, NULL, &to.any, &good, 1), EINVAL);
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(on);
}

/* ---- Names ---- */

struct served {
	struct rdma_cm_id *listener;
	pthread_t thread;
};

/* Accepts a connection, with the attributes that rdma_create_ep(3) keeps, and waits for its end. */
static void *serve(void *listener)
{
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;

	EQUAL(rdma_get_request(listener, &id), 0);
	EQUAL(id->event->event, RDMA_CM_EVENT_CONNECT_REQUEST);
	EQUAL(memcmp(id->event->param.conn.private_data, "hello", 6), 0);
	EQUAL(rdma_accept(id, NULL), 0);
	EQUAL(rdma_get_cm_event(id->channel, &event), 0);
	EQUAL(event->event, RDMA_CM_EVENT_DISCONNECTED);
	EQUAL(rdma_ack_cm_event(event), 0);
	rdma_destroy_ep(id);
	return NULL;
}

static struct ibv_qp_init_attr sizes(void)
{
	return (struct ibv_qp_init_attr){
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
}

static struct served listen_as_found(const char *port, const struct rdma_addrinfo *hints)
{
	struct rdma_addrinfo passive = *hints, *found;
	struct ibv_qp_init_attr attr = sizes();
	struct served s;

	passive.ai_flags |= RAI_PASSIVE;
	EQUAL(rdma_getaddrinfo(NULL, port, &passive, &found), 0);
	EQUAL(rdma_create_ep(&s.listener, found, NULL, &attr), 0);
	EQUAL(rdma_listen(s.listener, 0), 0);
	rdma_freeaddrinfo(found);
	EQUAL(pthread_create(&s.thread, NULL, serve, s.listener), 0);
	return s;
}

/* Connects by the result of a lookup only. */
static void connect_as_found(struct rdma_addrinfo *found)
{
	struct rdma_conn_param param = {
		.private_data = "hello", .private_data_len = 6, .responder_resources = 1,
		.initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7,
	};
	struct ibv_qp_init_attr attr = sizes();
	struct rdma_cm_id *id;

	EQUAL(rdma_create_ep(&id, found, NULL, &attr), 0);
	EQUAL(rdma_connect(id, &param), 0);
	EQUAL(rdma_disconnect(id), 0);
	rdma_destroy_ep(id);
}

static void by_name(const char *node, const char *port, struct rdma_addrinfo hints, bool has_header)
{
	struct served s = listen_as_found(port, &hints);
	struct rdma_addrinfo *found;
	const struct sockaddr_ib *to;
	union ibv_gid gid = own_gid();

	EQUAL(rdma_getaddrinfo(node, port, &hints, &found), 0);
	EQUAL(found->ai_family, AF_IB);
	EQUAL(found->ai_port_space, hints.ai_port_space);
	EQUAL(found->ai_src_len, sizeof(struct sockaddr_ib));
	EQUAL(found->ai_dst_len, sizeof(struct sockaddr_ib));
	EQUAL(found->ai_route_len, sizeof(struct ibv_path_data));
	EQUAL(found->ai_connect_len, has_header ? 36 : 0);
	to = (struct sockaddr_ib *)found->ai_dst_addr;
	EQUAL(memcmp(&to->sib_addr, gid.raw, 16), 0);
	EQUAL(be64toh(to->sib_sid_mask), UINT64_MAX);
	connect_as_found(found);
	pthread_join(s.thread, NULL);
	rdma_destroy_ep(s.listener);
	rdma_freeaddrinfo(found);
}

static void names_lead_to_gids_and_paths(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RDMUX_RAI_NATIVE,
				       .ai_port_space = RDMA_PS_TCP };

	by_name(getenv("RDMUX_HOST"), "7471", hints, true);
}

static void names_lead_to_services_of_infiniband(void)
{
	struct rdma_addrinfo hints = { .ai_flags = RDMUX_RAI_NATIVE, .ai_port_space = RDMA_PS_IB };
	struct rdma_addrinfo *found;

	by_name(getenv("RDMUX_HOST"), "7472", hints, false);
	by_name(getenv("RDMUX_HOST"), "0x10000000dead0001", hints, false);
	/* The IP address that follows is for devices without GIDs. */
	EQUAL(rdma_getaddrinfo(getenv("RDMUX_HOST"), "7472", &hints, &found), 0);
	CHECK(found->ai_next != NULL);
	EQUAL(found->ai_next->ai_family, AF_INET);
	EQUAL(found->ai_next->ai_port_space, RDMA_PS_TCP);
	rdma_freeaddrinfo(found);
}

/* As in rdma-core where ibacm(8) runs: the listener has an IP address, of RDMA_PS_IB. */
static void listener_with_an_ip_address_is_found_by_gid(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_IB, .ai_qp_type = IBV_QPT_RC };

	by_name(getenv("RDMUX_HOST"), "7473", hints, true);
}

static void gids_are_names(void)
{
	union ibv_gid gid = own_gid();
	char text[INET6_ADDRSTRLEN];
	struct rdma_addrinfo hints = { .ai_flags = RAI_NUMERICHOST | RAI_FAMILY,
				       .ai_family = AF_IB,
				       .ai_port_space = RDMA_PS_TCP };
	struct rdma_addrinfo *found;
	struct served s = listen_as_found("7474", &hints);

	CHECK(inet_ntop(AF_INET6, gid.raw, text, sizeof(text)) != NULL);
	EQUAL(rdma_getaddrinfo(text, "7474", &hints, &found), 0);
	EQUAL(found->ai_family, AF_IB);
	EQUAL(found->ai_qp_type, IBV_QPT_RC);
	EQUAL(found->ai_route_len, 0);
	CHECK(found->ai_next == NULL);
	connect_as_found(found);
	pthread_join(s.thread, NULL);
	rdma_destroy_ep(s.listener);
	rdma_freeaddrinfo(found);
	CHECK(rdma_getaddrinfo("no gid", "7474", &hints, &found) == EAI_NONAME);
}

/* ---- Services that subnet administration knows ---- */

/* Newer than the headers of rdma-core 44. */
enum { SA = 0x10, DNS = 0x20, RESOLVED = 16, FAILED = 17 };
int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service_name,
			  const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);

/* Registers a service of this host at subnet administration, which the port's attributes name. */
static void registered(const char *name, uint64_t sid, const struct ibv_port_attr *attr)
{
	enum { SERVICE_RECORD = 0x31, ID = 1, GID = 2, PKEY = 4, LEASE = 1 << 4, NAME = 1 << 6 };
	struct {
		struct ib_user_mad umad;
		uint8_t mad[256];
	} b = { 0 };
	struct umad_sa_packet *sa = (struct umad_sa_packet *)b.mad;
	union ibv_gid gid = own_gid();
	__be64 id = htobe64(sid);
	int port, agent, length = sizeof(b.mad);

	EQUAL(umad_init(), 0);
	CHECK((port = umad_open_port(NULL, 1)) >= 0);
	CHECK((agent = umad_register(port, UMAD_CLASS_SUBN_ADM, 2, 0, NULL)) >= 0);
	EQUAL(umad_set_addr(&b, attr->sm_lid, 1, attr->sm_sl, (int)UMAD_QKEY), 0);
	sa->mad_hdr.base_version = UMAD_BASE_VERSION;
	sa->mad_hdr.mgmt_class = UMAD_CLASS_SUBN_ADM;
	sa->mad_hdr.class_version = 2;
	sa->mad_hdr.method = UMAD_METHOD_SET;
	sa->mad_hdr.tid = htobe64(sid & 0xffff);
	sa->mad_hdr.attr_id = htons(SERVICE_RECORD);
	sa->comp_mask = htobe64(ID | GID | PKEY | LEASE | NAME);
	memcpy(sa->data, &id, sizeof(id));
	memcpy(sa->data + 8, &gid, sizeof(gid));
	memset(sa->data + 24, 0xff, 2); /* the default partition */
	memset(sa->data + 28, 0xff, 4); /* for ever */
	strcpy((char *)sa->data + 48, name);
	EQUAL(umad_send(port, agent, &b, length, 30000, 0), 0);
	EQUAL(umad_recv(port, &b, &length, -1), agent);
	EQUAL(umad_status(&b), 0);
	EQUAL(ntohs(sa->mad_hdr.status), 0);
	EQUAL(umad_close_port(port), 0);
}

/* Checks the result: each is a service at this host. */
static void are_services(struct rdma_addrinfo *found, int count)
{
	union ibv_gid gid = own_gid();
	int n = 0;

	for (struct rdma_addrinfo *each = found; each; each = each->ai_next, n++) {
		const struct sockaddr_ib *to = (struct sockaddr_ib *)each->ai_dst_addr;

		EQUAL(each->ai_family, AF_IB);
		EQUAL(each->ai_port_space, RDMA_PS_IB);
		EQUAL(memcmp(&to->sib_addr, gid.raw, 16), 0);
		EQUAL(be64toh(to->sib_sid) & ~0xffull, service);
		EQUAL(be64toh(to->sib_sid_mask), UINT64_MAX);
		EQUAL(ntohs(to->sib_pkey), 0xffff);
	}
	EQUAL(n, count);
	rdma_freeaddrinfo(found);
}

static void services_by_name_of_administration(void)
{
	struct rdma_addrinfo hints = { .ai_flags = SA }, *found;
	struct rdma_event_channel *on = channel();
	struct rdma_cm_id *id = created(on, RDMA_PS_TCP);
	union address v4 = own_v4();
	struct rdma_cm_event *event;
	struct ibv_port_attr attr;

	EQUAL(rdma_bind_addr(id, &v4.any), 0);
	EQUAL(ibv_query_port(id->verbs, id->port_num, &attr), 0);
	SETS(rdma_getaddrinfo(NULL, "no such service", &hints, &found), ENOENT);
	if (attr.link_layer != IBV_LINK_LAYER_INFINIBAND) {
		SETS(rdma_resolve_addrinfo(id, NULL, "native", &hints), EINVAL);
		EQUAL(rdma_destroy_id(id), 0);
		rdma_destroy_event_channel(on);
		return;
	}
	registered("native", service + 1, &attr);
	registered("native", service + 2, &attr);
	EQUAL(rdma_getaddrinfo(NULL, "native", &hints, &found), 0);
	are_services(found, 2);
	EQUAL(rdma_getaddrinfo(NULL, "0x10000000dead0002", &hints, &found), 0);
	EQUAL(found->ai_src_len, sizeof(struct sockaddr_ib));
	are_services(found, 1);

	SETS(rdma_resolve_addrinfo(id, "a node", "native", &hints), EOPNOTSUPP);
	EQUAL(rdma_resolve_addrinfo(id, NULL, "native", &hints), 0);
	SETS(rdma_resolve_addrinfo(id, NULL, "native", &hints), EBUSY);
	expect(on, (enum rdma_cm_event_type)RESOLVED);
	EQUAL(rdma_query_addrinfo(id, &found), 0);
	EQUAL(found->ai_flags, SA);
	are_services(found, 2);
	EQUAL(rdma_resolve_addrinfo(id, NULL, "nobody", &hints), 0);
	EQUAL(rdma_get_cm_event(on, &event), 0);
	EQUAL(event->event, FAILED);
	EQUAL(event->status, -ENOENT);
	EQUAL(rdma_ack_cm_event(event), 0);
	SETS(rdma_query_addrinfo(id, &found), ENOENT);
	hints.ai_flags = DNS;
	EQUAL(rdma_resolve_addrinfo(id, getenv("RDMUX_HOST"), "7", &hints), 0);
	expect(on, (enum rdma_cm_event_type)RESOLVED);
	EQUAL(rdma_query_addrinfo(id, &found), 0);
	EQUAL(found->ai_family, AF_INET);
	rdma_freeaddrinfo(found);
	EQUAL(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(on);
}

static const struct test tests[] = {
	TEST(connects_by_ipv4),
	TEST(connects_by_ipv6),
	TEST(connects_by_gid),
	TEST(services_by_mask),
	TEST(other_services_are_refused),
	TEST(datagram_services_have_ids_too),
	TEST(addresses_are_checked),
	TEST(partitions_are_respected),
	TEST(datagrams_by_gid),
	TEST(connects_along_paths),
	TEST(connects_along_paths_by_ip),
	TEST(connection_without_a_path_is_refused),
	TEST(records_are_checked),
	TEST(names_lead_to_gids_and_paths),
	TEST(names_lead_to_services_of_infiniband),
	TEST(listener_with_an_ip_address_is_found_by_gid),
	TEST(gids_are_names),
	TEST(services_by_name_of_administration),
};
CHECK_MAIN(tests)
