/* Ports of a subnet as verbs show them: LIDs with path bits, P_Keys, GIDs, service levels, datagrams to groups, and a device with two
 * ports. A manager has given both ports four LIDs and a second partition. */
#define _GNU_SOURCE
#include "umad_fixture.h"

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	GRH = 40,
	ROOM = 4096, /* of a receive */
	SLOTS = 8,
	QKEY = 0x11111111,
	LMC = 2,
};
#define PRIVILEGED 0x80000000u

struct device {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t memory[SLOTS][ROOM];
	struct ibv_port_attr port[3]; /* by number */
};

static void look_at_ports(struct device *d)
{
	for (uint8_t n = 1; n <= 2; n++) {
		EQUAL(ibv_query_port(d->context, n, &d->port[n]), 0);
		EQUAL(d->port[n].link_layer, IBV_LINK_LAYER_INFINIBAND);
		EQUAL(d->port[n].state, IBV_PORT_ACTIVE);
		EQUAL(d->port[n].lmc, LMC);
		CHECK(d->port[n].lid != 0);
	}
}

static struct device *opened(void)
{
	struct device *d = calloc(1, sizeof(*d));
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(d && list && list[0]);
	CHECK((d->context = ibv_open_device(list[0])) != NULL);
	ibv_free_device_list(list);
	CHECK((d->pd = ibv_alloc_pd(d->context)) != NULL);
	CHECK((d->cq = ibv_create_cq(d->context, 64, NULL, NULL, 0)) != NULL);
	d->mr = ibv_reg_mr(d->pd, d->memory, sizeof(d->memory),
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(d->mr != NULL);
	look_at_ports(d);
	return d;
}

static struct ibv_qp *created(struct device *d, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = d->cq,
		.recv_cq = d->cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = type,
		.sq_sig_all = 1,
	};
	struct ibv_qp *qp = ibv_create_qp(d->pd, &init);

	CHECK(qp != NULL);
	return qp;
}

enum { TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT };

static struct ibv_qp *with_qkey(struct device *d, uint8_t port, uint16_t pkey_index, uint32_t qkey)
{
	struct ibv_qp *qp = created(d, IBV_QPT_UD);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = pkey_index,
		.port_num = port,
		.qkey = qkey,
	};

	EQUAL(ibv_modify_qp(qp, &attr, TO_INIT | IBV_QP_QKEY), 0);
	attr.qp_state = IBV_QPS_RTR;
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	return qp;
}

/* Creates a queue pair for datagrams at a port. */
static struct ibv_qp *datagrams(struct device *d, uint8_t port, uint16_t pkey_index)
{
	return with_qkey(d, port, pkey_index, QKEY);
}

static void receive_into(struct device *d, struct ibv_qp *qp, int slot, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)d->memory[slot], length, d->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	memset(d->memory[slot], 0, ROOM);
	EQUAL(ibv_post_recv(qp, &wr, &bad), 0);
}

/* The last slot is the send buffer: bytes that encode their position. */
enum { SOURCE = SLOTS - 1 };

static void send_with(struct device *d, struct ibv_qp *qp, struct ibv_ah *ah, uint32_t to,
		      uint32_t qkey, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)d->memory[SOURCE], length, d->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = SOURCE,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.wr.ud = { .ah = ah, .remote_qpn = to, .remote_qkey = qkey },
	}, *bad;

	for (uint32_t i = 0; i < length; i++)
		d->memory[SOURCE][i] = i + 1;
	EQUAL(ibv_post_send(qp, &wr, &bad), 0);
}

static struct ibv_wc completion(struct device *d)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(d->cq, 1, &wc)) == 0)
		;
	EQUAL(n, 1);
	return wc;
}

/* Takes the completions of a message that was sent and arrived in a slot. Returns the latter. */
static struct ibv_wc arrived(struct device *d, int slot, uint32_t length)
{
	struct ibv_wc found = { .status = -1 };

	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = completion(d);

		EQUAL(wc.status, IBV_WC_SUCCESS);
		if (wc.wr_id != SOURCE)
			found = wc;
	}
	EQUAL(found.status, IBV_WC_SUCCESS);
	EQUAL(found.wr_id, slot);
	EQUAL(found.byte_len, GRH + length);
	EQUAL(memcmp(d->memory[slot] + GRH, d->memory[SOURCE], length), 0);
	return found;
}

/* Checks that a message was sent. It was dropped if a later one arrives in its place. */
static void sent(struct device *d)
{
	struct ibv_wc wc = completion(d);

	EQUAL(wc.wr_id, SOURCE);
	EQUAL(wc.status, IBV_WC_SUCCESS);
}

static struct ibv_ah *to_lid(struct device *d, uint8_t port, uint16_t lid)
{
	struct ibv_ah_attr attr = { .dlid = lid, .port_num = port };
	struct ibv_ah *ah = ibv_create_ah(d->pd, &attr);

	CHECK(ah != NULL);
	return ah;
}

static union ibv_gid gid_of(struct device *d, uint8_t port, int index)
{
	union ibv_gid gid;

	EQUAL(ibv_query_gid(d->context, port, index, &gid), 0);
	return gid;
}

static struct ibv_ah *to_gid(struct device *d, uint8_t port, uint16_t lid, union ibv_gid gid, int from)
{
	struct ibv_ah_attr attr = {
		.dlid = lid,
		.port_num = port,
		.is_global = 1,
		.grh = { .dgid = gid, .sgid_index = from, .hop_limit = 3, .traffic_class = 0x5a,
			 .flow_label = 0x12345 },
	};
	struct ibv_ah *ah = ibv_create_ah(d->pd, &attr);

	CHECK(ah != NULL);
	return ah;
}

static const struct ibv_grh *grh(struct device *d, int slot)
{
	return (const struct ibv_grh *)d->memory[slot];
}

static void data_is_behind_40_bytes(void)
{
	struct device *d = opened();
	struct ibv_qp *qp = datagrams(d, 1, 0);
	union ibv_gid gid = gid_of(d, 1, 0);
	struct ibv_wc wc;

	receive_into(d, qp, 0, ROOM);
	send_with(d, qp, to_lid(d, 1, d->port[1].lid), qp->qp_num, QKEY, 100);
	wc = arrived(d, 0, 100);
	EQUAL(wc.wc_flags & IBV_WC_GRH, 0);
	EQUAL(wc.src_qp, qp->qp_num);
	EQUAL(wc.slid, d->port[1].lid);

	receive_into(d, qp, 1, ROOM);
	send_with(d, qp, to_gid(d, 1, d->port[1].lid, gid, 0), qp->qp_num, QKEY, 100);
	wc = arrived(d, 1, 100);
	EQUAL(wc.wc_flags & IBV_WC_GRH, IBV_WC_GRH);
	EQUAL(memcmp(&grh(d, 1)->sgid, &gid, sizeof(gid)), 0);
	EQUAL(memcmp(&grh(d, 1)->dgid, &gid, sizeof(gid)), 0);
	EQUAL(ntohl(grh(d, 1)->version_tclass_flow), 0x65a12345);
	/* BTH, DETH, the data and the ICRC. */
	EQUAL(ntohs(grh(d, 1)->paylen), 12 + 8 + 100 + 4);
	EQUAL(grh(d, 1)->next_hdr, 0x1b);
	EQUAL(grh(d, 1)->hop_limit, 3);

	/* Immediate data. */
	receive_into(d, qp, 2, ROOM);
	{
		struct ibv_send_wr wr = {
			.wr_id = SOURCE,
			.opcode = IBV_WR_SEND_WITH_IMM,
			.imm_data = htonl(77),
			.wr.ud = { .ah = to_lid(d, 1, d->port[1].lid), .remote_qpn = qp->qp_num,
				   .remote_qkey = QKEY },
		}, *bad;

		EQUAL(ibv_post_send(qp, &wr, &bad), 0);
	}
	wc = arrived(d, 2, 0);
	EQUAL(wc.wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
	EQUAL(ntohl(wc.imm_data), 77);
}

static void path_bits_of_both_ends(void)
{
	struct device *d = opened();
	uint16_t lid = d->port[1].lid;
	struct ibv_qp *qp = datagrams(d, 1, 0);

	EQUAL(lid & 3, 0);
	for (uint8_t to = 0; to < 4; to++) {
		uint8_t from = 3 - to;
		struct ibv_ah_attr attr = {
			.dlid = lid + to, .src_path_bits = from, .sl = to, .port_num = 1,
		};
		struct ibv_ah *ah = ibv_create_ah(d->pd, &attr);
		struct ibv_wc wc;

		CHECK(ah != NULL);
		receive_into(d, qp, to, ROOM);
		send_with(d, qp, ah, qp->qp_num, QKEY, 10 + to);
		wc = arrived(d, to, 10 + to);
		EQUAL(wc.slid, lid + from);
		EQUAL(wc.dlid_path_bits, to);
		EQUAL(wc.sl, to);
		EQUAL(ibv_destroy_ah(ah), 0);
	}
	/* Path bits beyond the two of the port are ignored. */
	{
		struct ibv_ah_attr attr = { .dlid = lid, .src_path_bits = 5, .port_num = 1 };
		struct ibv_ah *ah = ibv_create_ah(d->pd, &attr);

		CHECK(ah != NULL);
		receive_into(d, qp, 0, ROOM);
		send_with(d, qp, ah, qp->qp_num, QKEY, 10);
		EQUAL(arrived(d, 0, 10).slid, lid + 1);
	}
}

/* Sends a request to subnet administration; the answer is in `b`. */
static void join(struct device *d, uint8_t port, const union ibv_gid *group, uint16_t *mlid,
		 uint32_t *qkey)
{
	enum { MC_MEMBER = 0x38, MGID = 1, PORT_GID = 2, JOIN_STATE = 1 << 16, FULL_MEMBER = 1 };
	int umad, number;
	struct buffer b;
	struct umad_sa_packet *sa = (struct umad_sa_packet *)b.mad;
	union ibv_gid own = gid_of(d, port, 0);

	EQUAL(umad_init(), 0);
	CHECK((umad = umad_open_port(NULL, port)) >= 0);
	CHECK((number = agent(umad, UMAD_CLASS_SUBN_ADM, 2, 0, NO_METHODS)) >= 0);
	to_own_lid(&b, UMAD_CLASS_SUBN_ADM, 2, UMAD_METHOD_SET, 0x31, d->port[port].sm_lid);
	sa->mad_hdr.attr_id = htons(MC_MEMBER);
	sa->comp_mask = htobe64(MGID | PORT_GID | JOIN_STATE);
	memcpy(sa->data, group, sizeof(*group));
	memcpy(sa->data + 16, &own, sizeof(own));
	sa->data[48] = FULL_MEMBER;
	EQUAL(post(umad, number, &b, 30000, 0), 0);
	answered(umad, number, 0x31, &b);
	*qkey = sa->data[32] << 24 | sa->data[33] << 16 | sa->data[34] << 8 | sa->data[35];
	*mlid = sa->data[36] << 8 | sa->data[37];
	EQUAL(umad_close_port(umad), 0);
}

/* The broadcast group of IPv4 in the default partition. */
static const union ibv_gid everybody = { .raw = { 0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, [12] = 0xff, 0xff, 0xff, 0xff } };

static void group_with_the_sender_in_it(void)
{
	struct device *d = opened();
	uint16_t mlid;
	uint32_t qkey;
	struct ibv_qp *qp[2];
	struct ibv_ah *ah;
	int seen = 0, empty = 0;

	join(d, 1, &everybody, &mlid, &qkey);
	CHECK(mlid >= 0xc000);
	for (int i = 0; i < 2; i++) {
		qp[i] = with_qkey(d, 1, 0, qkey & ~PRIVILEGED);
		EQUAL(ibv_attach_mcast(qp[i], &everybody, mlid), 0);
		receive_into(d, qp[i], i, ROOM);
	}
	/* Path bits are not used in a datagram to a group. */
	ah = to_gid(d, 1, mlid, everybody, 0);
	send_with(d, qp[0], ah, 0xffffff, qkey & ~PRIVILEGED, 64);
	for (int i = 0; i < 3; i++) {
		struct ibv_wc wc = completion(d);

		EQUAL(wc.status, IBV_WC_SUCCESS);
		if (wc.wr_id == SOURCE) {
			empty++;
			continue;
		}
		seen |= 1 << wc.wr_id;
		EQUAL(wc.byte_len, GRH + 64);
		EQUAL(wc.wc_flags & IBV_WC_GRH, IBV_WC_GRH);
		EQUAL(wc.dlid_path_bits, 0);
		EQUAL(wc.slid, d->port[1].lid);
		EQUAL(wc.src_qp, qp[0]->qp_num);
		EQUAL(memcmp(&grh(d, wc.wr_id)->dgid, &everybody, sizeof(everybody)), 0);
		EQUAL(memcmp(d->memory[wc.wr_id] + GRH, d->memory[SOURCE], 64), 0);
	}
	EQUAL(seen, 3);
	EQUAL(empty, 1);
	EQUAL(ibv_detach_mcast(qp[0], &everybody, mlid), 0);
	EQUAL(ibv_detach_mcast(qp[1], &everybody, mlid), 0);
}

static void what_is_too_long_is_lost(void)
{
	struct device *d = opened();
	struct ibv_qp *from = datagrams(d, 1, 0), *to = datagrams(d, 1, 0);
	struct ibv_ah *ah = to_lid(d, 1, d->port[1].lid);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	receive_into(d, to, 0, GRH + 16);
	send_with(d, from, ah, to->qp_num, QKEY, 17);
	sent(d);
	/* The receive is still posted for a message that fits. */
	send_with(d, from, ah, to->qp_num, QKEY, 16);
	arrived(d, 0, 16);
	EQUAL(ibv_query_qp(to, &attr, IBV_QP_STATE, &init), 0);
	EQUAL(attr.qp_state, IBV_QPS_RTS);
	EQUAL(ibv_query_qp(from, &attr, IBV_QP_STATE, &init), 0);
	EQUAL(attr.qp_state, IBV_QPS_RTS);
}

static void partitions_by_their_index(void)
{
	struct device *d = opened();
	struct ibv_ah *ah = to_lid(d, 1, d->port[1].lid);
	struct ibv_qp *all = datagrams(d, 1, 0), *few[2];
	__be16 pkey[2];
	struct ibv_wc wc;

	for (int i = 0; i < 2; i++) {
		EQUAL(ibv_query_pkey(d->context, 1, i, &pkey[i]), 0);
		few[i] = datagrams(d, 1, 1);
	}
	EQUAL(ntohs(pkey[0]), 0xffff);
	EQUAL(ntohs(pkey[1]), 0x8020);
	EQUAL(ibv_get_pkey_index(d->context, 1, htons(0x8020)), 1);
	receive_into(d, few[1], 0, ROOM);
	send_with(d, all, ah, few[1]->qp_num, QKEY, 20);
	sent(d);
	send_with(d, few[0], ah, few[1]->qp_num, QKEY, 21);
	wc = arrived(d, 0, 21);
	EQUAL(wc.pkey_index, 1);
	receive_into(d, all, 1, ROOM);
	send_with(d, all, ah, all->qp_num, QKEY, 22);
	EQUAL(arrived(d, 1, 22).pkey_index, 0);
}

static void qkeys_with_the_top_bit(void)
{
	struct device *d = opened();
	struct ibv_ah *ah = to_lid(d, 1, d->port[1].lid);
	/* The owner of the host may use this Q_Key. */
	struct ibv_qp *own = with_qkey(d, 1, 0, 0x80010000), *other = datagrams(d, 1, 0);

	receive_into(d, own, 0, ROOM);
	/* This sends QKEY, which is not the other queue pair's. */
	send_with(d, other, ah, own->qp_num, 0x80010000, 30);
	sent(d);
	send_with(d, own, ah, own->qp_num, PRIVILEGED, 31);
	arrived(d, 0, 31);
	receive_into(d, other, 1, ROOM);
	send_with(d, other, ah, other->qp_num, PRIVILEGED, 32);
	arrived(d, 1, 32);
}

static void expect_event(struct device *d, enum ibv_event_type type, int port)
{
	struct ibv_async_event event;

	EQUAL(ibv_get_async_event(d->context, &event), 0);
	if (event.event_type != type)
		FAIL("event %s, not %s", ibv_event_type_str(event.event_type), ibv_event_type_str(type));
	EQUAL(event.element.port_num, port);
	ibv_ack_async_event(&event);
}

static void no_more_events(struct device *d)
{
	struct pollfd fd = { .fd = d->context->async_fd, .events = POLLIN };

	EQUAL(poll(&fd, 1, 0), 0);
}

static void exchanged(int umad, int number, struct buffer *b, uint8_t method, uint16_t attr_id,
		      uint32_t modifier)
{
	static uint32_t tid = 0x100;
	uint8_t data[UMAD_LEN_SMP_DATA];
	struct umad_smp *smp = (struct umad_smp *)b->mad;

	memcpy(data, smp->data, sizeof(data));
	directed(b, method, attr_id, ++tid, NULL, 0);
	memcpy(smp->data, data, sizeof(data));
	smp->attr_mod = htonl(modifier);
	EQUAL(post(umad, number, b, 30000, 0), 0);
	answered(umad, number, tid, b);
}

static void gids_beside_the_first(void)
{
	struct device *d = opened();
	struct buffer b = { 0 };
	uint8_t *guids = ((struct umad_smp *)b.mad)->data;
	static const uint8_t guid[8] = { 0x02, 0, 0, 0, 0xa1, 0x1a, 0x50, 0x01 };
	union ibv_gid first = gid_of(d, 1, 0), alias;
	struct ibv_qp *qp = datagrams(d, 1, 0);
	int umad, number;

	EQUAL(umad_init(), 0);
	CHECK((umad = umad_open_port(NULL, 1)) >= 0);
	number = directed_agent(umad);
	exchanged(umad, number, &b, UMAD_METHOD_GET, UMAD_SM_ATTR_GUID_INFO, 0);
	memcpy(guids + 8, guid, 8);
	exchanged(umad, number, &b, UMAD_METHOD_SET, UMAD_SM_ATTR_GUID_INFO, 0);
	expect_event(d, IBV_EVENT_GID_CHANGE, 1);
	alias = gid_of(d, 1, 1);
	EQUAL(memcmp(alias.raw, first.raw, 8), 0);
	EQUAL(memcmp(alias.raw + 8, guid, 8), 0);

	receive_into(d, qp, 0, ROOM);
	send_with(d, qp, to_gid(d, 1, d->port[1].lid, first, 1), qp->qp_num, QKEY, 40);
	arrived(d, 0, 40);
	EQUAL(memcmp(&grh(d, 0)->sgid, &alias, sizeof(alias)), 0);
	EQUAL(memcmp(&grh(d, 0)->dgid, &first, sizeof(first)), 0);
	receive_into(d, qp, 1, ROOM);
	send_with(d, qp, to_gid(d, 1, d->port[1].lid, alias, 0), qp->qp_num, QKEY, 41);
	arrived(d, 1, 41);
	EQUAL(memcmp(&grh(d, 1)->sgid, &first, sizeof(first)), 0);
	EQUAL(memcmp(&grh(d, 1)->dgid, &alias, sizeof(alias)), 0);
	/* A datagram to a GID that the port does not have is lost, though the LID is the port's. */
	receive_into(d, qp, 2, ROOM);
	alias.raw[15] ^= 1;
	send_with(d, qp, to_gid(d, 1, d->port[1].lid, alias, 0), qp->qp_num, QKEY, 42);
	sent(d);
	send_with(d, qp, to_gid(d, 1, d->port[1].lid, first, 0), qp->qp_num, QKEY, 43);
	arrived(d, 2, 43);
}

static int number_in(const char *path)
{
	FILE *file = fopen(path, "r");
	int number;

	if (!file)
		FAIL("no file %s (errno %d)", path, errno);
	EQUAL(fscanf(file, "%i", &number), 1);
	fclose(file);
	return number;
}

static void two_ports(void)
{
	struct device *d = opened();
	struct ibv_device_attr attr;
	union ibv_gid one = gid_of(d, 1, 0), two = gid_of(d, 2, 0);
	struct ibv_qp *at[2] = { datagrams(d, 1, 0), datagrams(d, 2, 0) };
	umad_ca_t ca;
	umad_port_t port;
	int umad;

	EQUAL(ibv_query_device(d->context, &attr), 0);
	EQUAL(attr.phys_port_cnt, 2);
	CHECK(d->port[1].lid != d->port[2].lid);
	EQUAL(d->port[1].sm_lid, d->port[2].sm_lid);
	CHECK(memcmp(&one, &two, sizeof(one)) != 0);
	for (uint8_t from = 1; from <= 2; from++) {
		uint8_t to = 3 - from;
		struct ibv_wc wc;

		receive_into(d, at[to - 1], to, ROOM);
		send_with(d, at[from - 1], to_lid(d, from, d->port[to].lid + 1), at[to - 1]->qp_num, QKEY, 50);
		wc = arrived(d, to, 50);
		EQUAL(wc.slid, d->port[from].lid);
		EQUAL(wc.dlid_path_bits, 1);
		EQUAL(wc.src_qp, at[from - 1]->qp_num);
	}
	/* The files in sysfs agree. */
	EQUAL(number_in("/sys/class/infiniband/rdmux_ib0/ports/1/lid"), d->port[1].lid);
	EQUAL(number_in("/sys/class/infiniband/rdmux_ib0/ports/2/lid"), d->port[2].lid);
	EQUAL(number_in("/sys/class/infiniband/rdmux_ib0/ports/2/lid_mask_count"), LMC);
	EQUAL(number_in("/sys/class/infiniband/rdmux_ib0/ports/2/state"), 4);
	EQUAL(umad_init(), 0);
	EQUAL(umad_get_ca("rdmux_ib0", &ca), 0);
	EQUAL(ca.numports, 2);
	for (int n = 1; n <= 2; n++) {
		EQUAL(ca.ports[n]->base_lid, d->port[n].lid);
		EQUAL(umad_get_port("rdmux_ib0", n, &port), 0);
		EQUAL(port.portnum, n);
		EQUAL(port.base_lid, d->port[n].lid);
		EQUAL(be64toh(port.port_guid), be64toh((n == 1 ? one : two).global.interface_id));
		EQUAL(umad_release_port(&port), 0);
		CHECK((umad = umad_open_port("rdmux_ib0", n)) >= 0);
		EQUAL(umad_close_port(umad), 0);
	}
	EQUAL(umad_release_ca(&ca), 0);
	EQUAL(umad_open_port("rdmux_ib0", 3), -EINVAL);
}

static struct ibv_qp *connected(struct device *d, struct ibv_qp *qp, uint8_t port, uint32_t peer,
				uint16_t lid)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = port,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.ah_attr = { .dlid = lid, .port_num = port },
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.min_rnr_timer = 12,
	};

	(void)d;
	EQUAL(ibv_modify_qp(qp, &attr, TO_INIT | IBV_QP_ACCESS_FLAGS), 0);
	attr.qp_state = IBV_QPS_RTR;
	EQUAL(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
	      0);
	attr.qp_state = IBV_QPS_RTS;
	EQUAL(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
	      0);
	return qp;
}

static void connected_from_port_to_port(void)
{
	struct device *d = opened();
	struct ibv_qp *one = created(d, IBV_QPT_RC), *two = created(d, IBV_QPT_RC);
	struct ibv_sge sge = { (uintptr_t)d->memory[0], ROOM, d->mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { (uintptr_t)d->memory[1], d->mr->rkey },
	}, *bad;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	connected(d, one, 1, two->qp_num, d->port[2].lid);
	connected(d, two, 2, one->qp_num, d->port[1].lid);
	memset(d->memory[0], 0x77, ROOM);
	EQUAL(ibv_post_send(one, &wr, &bad), 0);
	EQUAL(completion(d).status, IBV_WC_SUCCESS);
	EQUAL(memcmp(d->memory[0], d->memory[1], ROOM), 0);
	EQUAL(ibv_query_qp(two, &attr, IBV_QP_PORT | IBV_QP_AV, &init), 0);
	EQUAL(attr.port_num, 2);
	EQUAL(attr.ah_attr.port_num, 2);
	EQUAL(attr.ah_attr.dlid, d->port[1].lid);
}

static void ports_that_are_wrong(void)
{
	struct device *d = opened();
	struct ibv_qp *qp = created(d, IBV_QPT_UD), *at_one = datagrams(d, 1, 0);
	static const uint8_t none[] = { 0, 3, 255 };

	for (size_t i = 0; i < sizeof(none); i++) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = none[i], .qkey = QKEY };
		struct ibv_ah_attr ah = { .dlid = d->port[1].lid, .port_num = none[i] };
		struct ibv_port_attr port;
		union ibv_gid gid;
		__be16 pkey;

		EQUAL(ibv_modify_qp(qp, &attr, TO_INIT | IBV_QP_QKEY), EINVAL);
		REFUSED(ibv_create_ah(d->pd, &ah), EINVAL);
		EQUAL(ibv_query_port(d->context, none[i], &port), EINVAL);
		EQUAL(ibv_query_gid(d->context, none[i], 0, &gid), -1);
		EQUAL(ibv_query_pkey(d->context, none[i], 0, &pkey), -1);
	}
	/* An address handle for another port than the queue pair's. */
	send_with(d, at_one, to_lid(d, 2, d->port[1].lid), at_one->qp_num, QKEY, 10);
	EQUAL(completion(d).status, IBV_WC_LOC_QP_OP_ERR);
}

/* An address handle of another device, whose ports and GIDs are others. */
static void address_handle_of_another_device(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
	struct device *d = opened();
	struct ibv_qp *qp = datagrams(d, 1, 0);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .wr.ud = { .remote_qpn = qp->qp_num } }, *bad;
	struct ibv_context *roce = NULL;
	struct ibv_device **list;

	EQUAL(setenv("RDMUX_DEVICE", "roce", 1), 0);
	CHECK((list = ibv_get_device_list(NULL)) && list[0]);
	CHECK((roce = ibv_open_device(list[0])) != NULL);
	EQUAL(ibv_query_gid(roce, 1, 0, &attr.grh.dgid), 0);
	CHECK((wr.wr.ud.ah = ibv_create_ah(ibv_alloc_pd(roce), &attr)) != NULL);
	EQUAL(ibv_post_send(qp, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
}

static void events_of_the_second_port(void)
{
	enum { STATE = 32, PHYSICAL_STATE = 33, REREGISTER_AND_TIMEOUT = 51, DOWN = 1 };
	struct device *d = opened();
	struct buffer b = { 0 };
	uint8_t *info = ((struct umad_smp *)b.mad)->data;
	struct ibv_port_attr attr;
	int umad, number;

	EQUAL(umad_init(), 0);
	CHECK((umad = umad_open_port(NULL, 2)) >= 0);
	number = directed_agent(umad);
	exchanged(umad, number, &b, UMAD_METHOD_GET, UMAD_SM_ATTR_PORT_INFO, 2);
	info[STATE] &= 0xf0, info[PHYSICAL_STATE] = 0, info[REREGISTER_AND_TIMEOUT] |= 0x80;
	exchanged(umad, number, &b, UMAD_METHOD_SET, UMAD_SM_ATTR_PORT_INFO, 2);
	expect_event(d, IBV_EVENT_CLIENT_REREGISTER, 2);
	exchanged(umad, number, &b, UMAD_METHOD_GET, UMAD_SM_ATTR_PORT_INFO, 2);
	info[STATE] = (info[STATE] & 0xf0) | DOWN, info[PHYSICAL_STATE] = 0;
	info[REREGISTER_AND_TIMEOUT] &= 0x7f;
	exchanged(umad, number, &b, UMAD_METHOD_SET, UMAD_SM_ATTR_PORT_INFO, 2);
	expect_event(d, IBV_EVENT_PORT_ERR, 2);
	EQUAL(ibv_query_port(d->context, 1, &attr), 0);
	EQUAL(attr.state, IBV_PORT_ACTIVE);
	/* The manager brings it up again, possibly with further events. */
	for (;;) {
		struct ibv_async_event event;
		enum ibv_event_type type;

		EQUAL(ibv_get_async_event(d->context, &event), 0);
		type = event.event_type;
		EQUAL(event.element.port_num, 2);
		ibv_ack_async_event(&event);
		if (type == IBV_EVENT_PORT_ACTIVE)
			break;
	}
	no_more_events(d);
	look_at_ports(d);
}

static const struct test tests[] = {
	TEST(data_is_behind_40_bytes),
	TEST(path_bits_of_both_ends),
	TEST(group_with_the_sender_in_it),
	TEST(what_is_too_long_is_lost),
	TEST(partitions_by_their_index),
	TEST(qkeys_with_the_top_bit),
	TEST(gids_beside_the_first),
	TEST(two_ports),
	TEST(connected_from_port_to_port),
	TEST(ports_that_are_wrong),
	TEST(address_handle_of_another_device),
	TEST(events_of_the_second_port),
};

CHECK_MAIN(tests)
