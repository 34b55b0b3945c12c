/* Behaviour of adapters from which a library could differ: the domain of a receive's memory, the end of failing work, and
 * unusual requests that are accepted. */
#include "fixture.h"

#include <string.h>

enum { LONG = 40 << 10 }; /* bytes of a message of many packets */

/* Returns the next two completions of a pair whose queue pairs share a completion queue, one of each. */
static void two_completions(struct fixture *f, struct ibv_qp *pair[2], struct ibv_wc wc[2])
{
	for (int i = 0; i < 2; i++) {
		struct ibv_wc next = completion(f->cq);

		CHECK(next.qp_num == pair[0]->qp_num || next.qp_num == pair[1]->qp_num);
		wc[next.qp_num == pair[1]->qp_num] = next;
	}
}

/* Connects a pair of which the second queue pair receives from a queue in another domain. */
static struct ibv_srq *pair_with_srq(struct fixture *f, struct ibv_pd *pd, struct ibv_qp *pair[2])
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_qp_init_attr attr = {
		.send_cq = f->cq,
		.recv_cq = f->cq,
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 8, .max_send_sge = 1 },
	};

	CHECK((attr.srq = ibv_create_srq(pd, &init)) != NULL);
	pair[0] = create_qp(f, IBV_QPT_RC);
	CHECK((pair[1] = ibv_create_qp(f->pd, &attr)) != NULL);
	for (int i = 0; i < 2; i++)
		to_rts(f, pair[i], pair[!i]->qp_num);
	return attr.srq;
}

static void shared_receive_queue_takes_memory_of_its_own_domain(void)
{
	struct ibv_sge sge = { 0 };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	static uint8_t memory[LONG];
	struct ibv_qp *pair[2];
	struct ibv_srq *srq;
	struct ibv_wc wc[2];
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct fixture f;

	for (uint32_t length = 8; length <= LONG; length += LONG - 8) {
		open_fixture(&f);
		CHECK((pd = ibv_alloc_pd(f.device)) != NULL);
		CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), ALL_RIGHTS)) != NULL);
		srq = pair_with_srq(&f, pd, pair);
		memset(f.memory, length, length);
		sge = (struct ibv_sge){ (uintptr_t)memory, length, mr->lkey };
		EQUAL(ibv_post_srq_recv(srq, &wr, &bad), 0);
		post(pair[0], request(IBV_WR_SEND, f.memory, length, f.mr, NULL, 0));
		two_completions(&f, pair, wc);
		EQUAL(wc[0].status, IBV_WC_SUCCESS);
		EQUAL(wc[1].status, IBV_WC_SUCCESS);
		EQUAL(memcmp(memory, f.memory, length), 0);
		/* WRITEs still use the queue pair's domain. */
		EQUAL(write_bytes(&f, pair[0], f.memory, f.mr, f.memory + 16, f.mr->rkey, 8),
		      IBV_WC_SUCCESS);
		sge = (struct ibv_sge){ (uintptr_t)f.memory, length, f.mr->lkey };
		EQUAL(ibv_post_srq_recv(srq, &wr, &bad), 0);
		post(pair[0], request(IBV_WR_SEND, f.memory, length, f.mr, NULL, 0));
		two_completions(&f, pair, wc);
		EQUAL(wc[0].status, IBV_WC_REM_OP_ERR);
		EQUAL(wc[1].status, IBV_WC_LOC_PROT_ERR);
	}
}

static void write_with_immediate_and_wrong_key_ends_the_receive_with_local_access_error(void)
{
	struct ibv_qp *pair[2];
	struct ibv_wc wc[2];
	struct fixture f;

	open_fixture(&f);
	connected_pair(&f, pair);
	post_receive(pair[1], f.memory, 64, f.mr);
	post(pair[0],
	     request(IBV_WR_RDMA_WRITE_WITH_IMM, f.memory, 8, f.mr, f.memory, ~f.mr->rkey));
	two_completions(&f, pair, wc);
	EQUAL(wc[0].status, IBV_WC_REM_ACCESS_ERR);
	EQUAL(wc[1].status, IBV_WC_LOC_ACCESS_ERR);
}

/* The message has arrived: only its receiver fails. */
static void send_with_invalidate_of_a_wrong_key_fails_the_responder_only(void)
{
	struct ibv_send_wr *wr;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_qp *pair[2];
	struct ibv_wc wc[2];
	struct fixture f;

	open_fixture(&f);
	connected_pair(&f, pair);
	post_receive(pair[1], f.memory, 64, f.mr);
	wr = request(IBV_WR_SEND_WITH_INV, f.memory, 8, f.mr, NULL, 0);
	wr->invalidate_rkey = ~f.mr->rkey;
	post(pair[0], wr);
	two_completions(&f, pair, wc);
	EQUAL(wc[0].status, IBV_WC_SUCCESS);
	EQUAL(wc[1].status, IBV_WC_MW_BIND_ERR);
	EQUAL(ibv_query_qp(pair[0], &attr, IBV_QP_STATE, &init), 0);
	EQUAL(attr.qp_state, IBV_QPS_RTS);
	EQUAL(ibv_query_qp(pair[1], &attr, IBV_QP_STATE, &init), 0);
	EQUAL(attr.qp_state, IBV_QPS_ERR);
}

static void region_of_no_bytes_is_registered_and_opens_nothing(void)
{
	struct ibv_qp *pair[2];
	struct ibv_mr *none;
	struct fixture f;

	open_fixture(&f);
	CHECK((none = ibv_reg_mr(f.pd, f.memory, 0, ALL_RIGHTS)) != NULL);
	CHECK(none->length == 0 && none->addr == f.memory);
	connected_pair(&f, pair);
	EQUAL(write_bytes(&f, pair[0], f.memory, none, f.memory, none->rkey, 0), IBV_WC_SUCCESS);
	EQUAL(write_bytes(&f, pair[0], f.memory, f.mr, f.memory, none->rkey, 1),
	      IBV_WC_REM_ACCESS_ERR);
	connected_pair(&f, pair);
	EQUAL(write_bytes(&f, pair[0], f.memory, none, f.memory, f.mr->rkey, 1),
	      IBV_WC_LOC_PROT_ERR);
	EQUAL(ibv_dereg_mr(none), 0);
}

/* The program chooses only the low 8 bits of the key of a window of type 2. */
static void window_of_type_2_keeps_its_index_whatever_the_key_says(void)
{
	struct ibv_qp *pair[2];
	struct ibv_mr *mr;
	struct ibv_mw *mw, *other;
	struct fixture f;

	open_fixture(&f);
	CHECK((mr = ibv_reg_mr(f.pd, f.memory, BUFFER, ALL_RIGHTS | IBV_ACCESS_MW_BIND)) != NULL);
	CHECK((mw = ibv_alloc_mw(f.pd, IBV_MW_TYPE_2)) != NULL);
	CHECK((other = ibv_alloc_mw(f.pd, IBV_MW_TYPE_2)) != NULL);
	connected_pair(&f, pair);

	struct ibv_send_wr wr = {
		.opcode = IBV_WR_BIND_MW,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_mw = {
			.mw = mw,
			.rkey = (other->rkey & ~0xffu) | 0x5a,
			.bind_info = { mr, (uintptr_t)f.memory, 64, IBV_ACCESS_REMOTE_WRITE },
		},
	};
	post(pair[1], &wr);
	EQUAL(completion(f.cq).status, IBV_WC_SUCCESS);
	EQUAL(write_bytes(&f, pair[0], f.memory + 64, f.mr, f.memory, (mw->rkey & ~0xffu) | 0x5a, 8),
	      IBV_WC_SUCCESS);
	/* The window with the key's index is not bound. */
	EQUAL(write_bytes(&f, pair[0], f.memory + 64, f.mr, f.memory, wr.bind_mw.rkey, 8),
	      IBV_WC_REM_ACCESS_ERR);
}

/* What a window of type 1 can never have is refused by the call, and the connection goes on. */
static void window_of_type_1_refuses_zero_based_addresses_and_unknown_access(void)
{
	static const unsigned int wrong[] = { IBV_ACCESS_ZERO_BASED, 1u << 30 };
	struct ibv_qp *pair[2];
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	struct fixture f;
	uint32_t rkey;

	open_fixture(&f);
	CHECK((mr = ibv_reg_mr(f.pd, f.memory, BUFFER, ALL_RIGHTS | IBV_ACCESS_MW_BIND)) != NULL);
	CHECK((mw = ibv_alloc_mw(f.pd, IBV_MW_TYPE_1)) != NULL);
	connected_pair(&f, pair);
	rkey = mw->rkey;
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct ibv_mw_bind bind = {
			.send_flags = IBV_SEND_SIGNALED,
			.bind_info = { mr, (uintptr_t)f.memory, 64,
				       IBV_ACCESS_REMOTE_WRITE | wrong[i] },
		};

		EQUAL(ibv_bind_mw(pair[1], mw, &bind), EINVAL);
		EQUAL(mw->rkey, rkey);
		bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
		EQUAL(ibv_bind_mw(pair[1], mw, &bind), 0);
		EQUAL(completion(f.cq).status, IBV_WC_SUCCESS);
		rkey = mw->rkey;
	}
	EQUAL(write_bytes(&f, pair[0], f.memory + 64, f.mr, f.memory, rkey, 8), IBV_WC_SUCCESS);
}

static struct ibv_qp *datagram_qp(struct fixture *f)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = 7 };
	struct ibv_qp *qp = create_qp(f, IBV_QPT_UD);

	EQUAL(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
	      0);
	attr.qp_state = IBV_QPS_RTR;
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RTS;
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	return qp;
}

static void datagram_above_the_active_mtu_ends_with_local_length_error(void)
{
	struct ibv_ah_attr way = { .is_global = 1, .port_num = PORT };
	struct ibv_port_attr port;
	struct ibv_qp *pair[2];
	struct ibv_wc wc[2];
	struct ibv_ah *ah;
	struct fixture f;
	uint32_t mtu;

	open_fixture(&f);
	EQUAL(ibv_query_port(f.device, PORT, &port), 0);
	mtu = 128 << port.active_mtu;
	way.grh.dgid = f.gid;
	way.grh.sgid_index = f.gid_index;
	way.grh.hop_limit = 1;
	CHECK((ah = ibv_create_ah(f.pd, &way)) != NULL);
	for (int i = 0; i < 2; i++)
		pair[i] = datagram_qp(&f);
	for (uint32_t length = mtu; length <= mtu + 1; length++) {
		struct ibv_send_wr *wr = request(IBV_WR_SEND, f.memory, length, f.mr, NULL, 0);

		wr->wr.ud.ah = ah;
		wr->wr.ud.remote_qpn = pair[1]->qp_num;
		wr->wr.ud.remote_qkey = 7;
		post_receive(pair[1], f.memory + BUFFER / 2, BUFFER / 2, f.mr);
		post(pair[0], wr);
		if (length == mtu) {
			two_completions(&f, pair, wc);
			EQUAL(wc[0].status, IBV_WC_SUCCESS);
			EQUAL(wc[1].byte_len, mtu + 40);
		} else {
			EQUAL(completion(f.cq).status, IBV_WC_LOC_LEN_ERR);
		}
	}
}

/* Both clocks give the same order and the same distances. */
static void wall_clock_times_of_completions_follow_the_devices_clock(void)
{
	struct ibv_cq_init_attr_ex init = {
		.cqe = 512,
		.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	struct ibv_poll_cq_attr all = { 0 };
	uint64_t ticks = 0, wall = 0;
	struct ibv_qp *pair[2];
	struct ibv_cq_ex *cq;
	struct fixture f;
	int polled = 0, result;

	open_fixture(&f);
	EQUAL(ibv_destroy_cq(f.cq), 0);
	CHECK((cq = ibv_create_cq_ex(f.device, &init)) != NULL);
	f.cq = ibv_cq_ex_to_cq(cq);
	connected_pair(&f, pair);
	while (polled < 2000) {
		post(pair[0], request(IBV_WR_RDMA_WRITE, f.memory, 8, f.mr, f.memory + 64,
				      f.mr->rkey));
		while ((result = ibv_start_poll(cq, &all)) == ENOENT)
			;
		EQUAL(result, 0);
		do {
			uint64_t now = ibv_wc_read_completion_ts(cq);
			uint64_t then = ibv_wc_read_completion_wallclock_ns(cq);

			EQUAL(cq->status, IBV_WC_SUCCESS);
			CHECK(now >= ticks && then >= wall);
			if (polled++ > 0)
				EQUAL(then - wall, now - ticks);
			ticks = now;
			wall = then;
		} while (ibv_next_poll(cq) == 0);
		ibv_end_poll(cq);
	}
}

static const struct test tests[] = {
	TEST(shared_receive_queue_takes_memory_of_its_own_domain),
	TEST(write_with_immediate_and_wrong_key_ends_the_receive_with_local_access_error),
	TEST(send_with_invalidate_of_a_wrong_key_fails_the_responder_only),
	TEST(region_of_no_bytes_is_registered_and_opens_nothing),
	TEST(window_of_type_2_keeps_its_index_whatever_the_key_says),
	TEST(window_of_type_1_refuses_zero_based_addresses_and_unknown_access),
	TEST(datagram_above_the_active_mtu_ends_with_local_length_error),
	TEST(wall_clock_times_of_completions_follow_the_devices_clock),
};

CHECK_MAIN(tests)
