#include "fixture.h"

#include <stdlib.h>
#include <string.h>

struct ibv_context *open_device(void)
{
	int count = 0;
	struct ibv_device **list;
	struct ibv_context *device;

	CHECK((list = ibv_get_device_list(&count)) != NULL);
	CHECK(count > 0 && list[0] && !list[count]);
	CHECK((device = ibv_open_device(list[0])) != NULL);
	ibv_free_device_list(list);
	return device;
}

/* Chooses the port's first RoCE v2 address that is an IPv4 address (as ::ffff:a.b.c.d), or of an InfiniBand port its LID and first GID. */
static void choose_address(struct fixture *f)
{
	static const uint8_t mapped[12] = { [10] = 0xff, 0xff };
	struct ibv_port_attr port;
	struct ibv_gid_entry entry;

	EQUAL(ibv_query_port(f->device, PORT, &port), 0);
	f->lid = port.lid;
	if (port.link_layer == IBV_LINK_LAYER_INFINIBAND) {
		f->gid_index = 0;
		EQUAL(ibv_query_gid(f->device, PORT, 0, &f->gid), 0);
		return;
	}
	for (int i = 0; i < port.gid_tbl_len; i++) {
		if (ibv_query_gid_ex(f->device, PORT, i, &entry, 0) == 0 &&
		    entry.gid_type == IBV_GID_TYPE_ROCE_V2 &&
		    memcmp(entry.gid.raw, mapped, sizeof(mapped)) == 0) {
			f->gid_index = i;
			f->gid = entry.gid;
			return;
		}
	}
	FAIL("no RoCE v2 address of IPv4");
}

void open_fixture(struct fixture *f)
{
	f->device = open_device();
	choose_address(f);
	CHECK((f->channel = ibv_create_comp_channel(f->device)) != NULL);
	CHECK((f->pd = ibv_alloc_pd(f->device)) != NULL);
	CHECK((f->cq = ibv_create_cq(f->device, 64, f, f->channel, 0)) != NULL);
	CHECK((f->memory = aligned_alloc(4096, BUFFER)) != NULL);
	memset(f->memory, 0, BUFFER);
	CHECK((f->mr = ibv_reg_mr(f->pd, f->memory, BUFFER, ALL_RIGHTS)) != NULL);
}

void close_fixture(struct fixture *f)
{
	EQUAL(ibv_dereg_mr(f->mr), 0);
	EQUAL(ibv_destroy_cq(f->cq), 0);
	EQUAL(ibv_dealloc_pd(f->pd), 0);
	EQUAL(ibv_destroy_comp_channel(f->channel), 0);
	EQUAL(ibv_close_device(f->device), 0);
	free(f->memory);
}

struct ibv_qp *create_qp(struct fixture *f, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = f->cq,
		.recv_cq = f->cq,
		.qp_type = type,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2 },
	};
	struct ibv_qp *qp;

	CHECK((qp = ibv_create_qp(f->pd, &attr)) != NULL);
	return qp;
}

void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PORT,
		.qp_access_flags = ALL_RIGHTS,
	};

	EQUAL(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
	      0);
}

void rtr_to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};

	EQUAL(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
	      0);
}

void to_rts(struct fixture *f, struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {
			.is_global = 1,
			.dlid = f->lid,
			.port_num = PORT,
			.grh = { .dgid = f->gid, .sgid_index = f->gid_index, .hop_limit = 1 },
		},
	};

	to_init(qp);
	EQUAL(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				    IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				    IBV_QP_MIN_RNR_TIMER),
	      0);
	rtr_to_rts(qp);
}

void connected_pair(struct fixture *f, struct ibv_qp *pair[2])
{
	for (int i = 0; i < 2; i++)
		pair[i] = create_qp(f, IBV_QPT_RC);
	for (int i = 0; i < 2; i++)
		to_rts(f, pair[i], pair[!i]->qp_num);
}

struct ibv_send_wr *request(enum ibv_wr_opcode opcode, void *addr, uint32_t length,
			    struct ibv_mr *mr, void *remote, uint32_t rkey)
{
	static _Thread_local struct ibv_sge sge;
	static _Thread_local struct ibv_send_wr wr;

	sge = (struct ibv_sge){ .addr = (uintptr_t)addr, .length = length, .lkey = mr->lkey };
	wr = (struct ibv_send_wr){
		.opcode = opcode,
		.sg_list = &sge,
		.num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)remote, .rkey = rkey },
	};
	return &wr;
}

void post(struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	EQUAL(ibv_post_send(qp, wr, &bad), 0);
}

void post_receive(struct ibv_qp *qp, void *addr, uint32_t length, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)addr, .length = length, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	EQUAL(ibv_post_recv(qp, &wr, &bad), 0);
}

struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	EQUAL(n, 1);
	return wc;
}

enum ibv_wc_status write_bytes(struct fixture *f, struct ibv_qp *qp, void *from, struct ibv_mr *mr,
			       void *to, uint32_t rkey, uint32_t length)
{
	post(qp, request(IBV_WR_RDMA_WRITE, from, length, mr, to, rkey));
	return completion(f->cq).status;
}

void exchange(struct fixture *f, struct ibv_qp *pair[2])
{
	const uint32_t length = 3000;
	uint8_t *from = f->memory, *to = f->memory + BUFFER / 2;
	static _Thread_local uint8_t salt;

	for (uint32_t i = 0; i < length; i++)
		from[i] = i * 7 + salt;
	salt++;
	memset(to, 0, length);
	post_receive(pair[1], to, length, f->mr);
	post(pair[0], request(IBV_WR_SEND, from, length, f->mr, NULL, 0));
	for (int i = 0; i < 2; i++)
		EQUAL(completion(f->cq).status, IBV_WC_SUCCESS);
	EQUAL(memcmp(from, to, length), 0);
}
