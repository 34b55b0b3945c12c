/* XRC by the current interface of <infiniband/verbs.h>: domains, shared receive queues with numbers, receive queue pairs by handle, and
 * one connection that reaches two processes. */
#include "xrc_fixture.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void the_device_says_so(void)
{
	struct ibv_context *device = open_device();
	struct ibv_device_attr attr;
	struct ibv_device_attr_ex more;

	EQUAL(ibv_query_device(device, &attr), 0);
	CHECK(attr.device_cap_flags & IBV_DEVICE_XRC);
	EQUAL(ibv_query_device_ex(device, NULL, &more), 0);
	CHECK(more.device_cap_flags_ex & IBV_DEVICE_XRC);
	CHECK(more.xrc_odp_caps & IBV_ODP_SUPPORT_SRQ_RECV);
	EQUAL(ibv_close_device(device), 0);
}

static void domains_are_opened_as_files_are(void)
{
	struct ibv_xrcd_init_attr no_flags = { .comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = -1 };
	struct ibv_context *device = open_device(), *other = open_device();
	struct ibv_xrcd *first, *second;
	int file = domain_file(), closed = 1000, child;

	REFUSED(open_xrcd(device, file, 0), EAGAIN);
	REFUSED(open_xrcd(device, file, O_EXCL), EAGAIN);
	CHECK((first = open_xrcd(device, file, O_CREAT | O_EXCL)) != NULL);
	REFUSED(open_xrcd(device, file, O_CREAT | O_EXCL), EINVAL);
	CHECK((second = open_xrcd(other, file, 0)) != NULL);
	if ((child = check_fork()) == 0) {
		struct ibv_xrcd *third;

		device = open_device();
		REFUSED(open_xrcd(device, file, O_CREAT | O_EXCL), EINVAL);
		CHECK((third = open_xrcd(device, file, 0)) != NULL);
		EQUAL(ibv_close_xrcd(third), 0);
		exit(0);
	}
	check_child(child);
	EQUAL(ibv_close_xrcd(first), 0);
	REFUSED(open_xrcd(device, file, O_CREAT | O_EXCL), EINVAL);
	EQUAL(ibv_close_xrcd(second), 0);
	/* The domain ended when the last process closed it. */
	REFUSED(open_xrcd(device, file, 0), EAGAIN);

	REFUSED(open_xrcd(device, closed, O_CREAT), EBADF);
	REFUSED(open_xrcd(device, -2, O_CREAT), EBADF);
	REFUSED(ibv_open_xrcd(device, &no_flags), EINVAL);
	no_flags.comp_mask = ~0u;
	REFUSED(ibv_open_xrcd(device, &no_flags), EINVAL);
	EQUAL(ibv_close_device(other), 0);
	EQUAL(ibv_close_device(device), 0);
}

static void private_domains_are_each_their_own(void)
{
	struct ibv_context *device = open_device();
	struct ibv_xrcd *first, *second;
	struct ibv_qp *target;

	CHECK((first = open_xrcd(device, -1, O_CREAT)) != NULL);
	CHECK((second = open_xrcd(device, -1, O_CREAT)) != NULL);
	target = create_target(device, first);
	REFUSED(open_target(device, second, target->qp_num), EINVAL);
	EQUAL(ibv_destroy_qp(target), 0);
	EQUAL(ibv_close_xrcd(second), 0);
	EQUAL(ibv_close_xrcd(first), 0);
	EQUAL(ibv_close_device(device), 0);
}

static void what_is_used_is_not_destroyed(void)
{
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
	struct ibv_qp *target;
	struct ibv_cq *cq;
	struct fixture f;
	uint32_t number;

	open_fixture(&f);
	CHECK((xrcd = open_xrcd(f.device, -1, O_CREAT)) != NULL);
	cq = f.cq;
	CHECK((f.cq = ibv_create_cq(f.device, 4, NULL, NULL, 0)) != NULL);
	srq = create_xrc_srq(&f, xrcd, &number);
	RETURNS(ibv_close_xrcd(xrcd), EBUSY);
	RETURNS(ibv_destroy_cq(f.cq), EBUSY);
	RETURNS(ibv_dealloc_pd(f.pd), EBUSY);
	EQUAL(ibv_destroy_srq(srq), 0);
	EQUAL(ibv_destroy_cq(f.cq), 0);
	f.cq = cq;
	target = create_target(f.device, xrcd);
	RETURNS(ibv_close_xrcd(xrcd), EBUSY);
	EQUAL(ibv_destroy_qp(target), 0);
	EQUAL(ibv_close_xrcd(xrcd), 0);
	close_fixture(&f);
}

static void shared_receive_queues_have_numbers(void)
{
	struct ibv_srq_init_attr_ex attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_init_attr basic = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq[2];
	uint32_t number[2];
	struct ibv_xrcd *xrcd;
	struct fixture f;
	struct ibv_qp_init_attr rc = { .qp_type = IBV_QPT_RC };

	open_fixture(&f);
	CHECK((xrcd = open_xrcd(f.device, -1, O_CREAT)) != NULL);
	for (int i = 0; i < 2; i++) {
		srq[i] = create_xrc_srq(&f, xrcd, &number[i]);
		CHECK(number[i] != 0 && number[i] >> 24 == 0);
		CHECK(srq[i]->context == f.device && srq[i]->pd == f.pd);
	}
	CHECK(number[0] != number[1]);

	/* Only the domain's receive queue pairs deliver to it. */
	rc.send_cq = rc.recv_cq = f.cq;
	rc.srq = srq[0];
	rc.cap.max_send_wr = rc.cap.max_send_sge = 1;
	REFUSED(ibv_create_qp(f.pd, &rc), EINVAL);
	for (int i = 0; i < 2; i++)
		EQUAL(ibv_destroy_srq(srq[i]), 0);

	CHECK((srq[0] = ibv_create_srq(f.pd, &basic)) != NULL);
	RETURNS(ibv_get_srq_num(srq[0], &number[0]), EINVAL);
	EQUAL(ibv_destroy_srq(srq[0]), 0);

	/* All of it is needed. */
	attr.srq_type = IBV_SRQT_XRC;
	attr.pd = f.pd;
	attr.xrcd = xrcd;
	attr.cq = f.cq;
	for (int left_out = IBV_SRQ_INIT_ATTR_PD; left_out <= IBV_SRQ_INIT_ATTR_CQ; left_out *= 2) {
		attr.comp_mask = (IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
				  IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ) & ~left_out;
		REFUSED(ibv_create_srq_ex(f.device, &attr), EINVAL);
	}
	EQUAL(ibv_close_xrcd(xrcd), 0);
	close_fixture(&f);
}

static void a_handle_is_a_queue_pair_without_queues(void)
{
	struct ibv_qp_init_attr_ex no_domain = { .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_qp_init_attr classic = { .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_recv_wr receive = { .wr_id = 1 }, *bad_receive;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_qp *target, *again;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_xrcd *xrcd;
	struct fixture f;

	open_fixture(&f);
	CHECK((xrcd = open_xrcd(f.device, -1, O_CREAT)) != NULL);
	target = create_target(f.device, xrcd);
	CHECK(target->qp_num >> 23 == 1);
	CHECK(!target->pd && !target->send_cq && !target->recv_cq && !target->srq);
	CHECK(target->context == f.device);
	EQUAL(target->qp_type, IBV_QPT_XRC_RECV);
	EQUAL(target->state, IBV_QPS_RESET);
	target_to_rtr(&f, target, 0x123);
	EQUAL(target->state, IBV_QPS_RTR);
	EQUAL(ibv_query_qp(target, &attr, IBV_QP_STATE, &init), 0);
	EQUAL(attr.qp_state, IBV_QPS_RTR);
	EQUAL(attr.dest_qp_num, 0x123);
	EQUAL(attr.path_mtu, IBV_MTU_1024);
	EQUAL(attr.min_rnr_timer, 12);
	EQUAL(init.qp_type, IBV_QPT_XRC_RECV);

	RETURNS(ibv_post_send(target, &send, &bad_send), EINVAL);
	CHECK(bad_send == &send);
	RETURNS(ibv_post_recv(target, &receive, &bad_receive), EINVAL);
	CHECK(bad_receive == &receive);
	RETURNS(ibv_attach_mcast(target, &f.gid, 0), EINVAL);
	CHECK(ibv_qp_to_qp_ex(target) == NULL);
	attr.qp_state = IBV_QPS_INIT;
	RETURNS(ibv_modify_qp(target, &attr, INIT_MASK), EINVAL);

	/* Another handle reports the same state, and changes it for both. */
	CHECK((again = open_target(f.device, xrcd, target->qp_num)) != NULL);
	EQUAL(again->qp_num, target->qp_num);
	EQUAL(again->qp_type, IBV_QPT_XRC_RECV);
	EQUAL(again->state, IBV_QPS_RTR);
	attr.qp_state = IBV_QPS_ERR;
	EQUAL(ibv_modify_qp(again, &attr, IBV_QP_STATE), 0);
	EQUAL(ibv_query_qp(target, &attr, IBV_QP_STATE, &init), 0);
	EQUAL(target->state, IBV_QPS_ERR);
	EQUAL(ibv_destroy_qp(target), 0);
	EQUAL(ibv_query_qp(again, &attr, IBV_QP_STATE, &init), 0);
	EQUAL(ibv_destroy_qp(again), 0);

	no_domain.comp_mask = IBV_QP_INIT_ATTR_XRCD;
	REFUSED(ibv_create_qp_ex(f.device, &no_domain), EINVAL);
	no_domain.comp_mask = 0;
	REFUSED(ibv_create_qp_ex(f.device, &no_domain), EINVAL);
	REFUSED(ibv_create_qp(f.pd, &classic), EINVAL);
	EQUAL(ibv_close_xrcd(xrcd), 0);
	close_fixture(&f);
}

static void only_what_is_there_is_opened(void)
{
	struct ibv_qp_open_attr attr = { .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_xrcd *xrcd, *other;
	struct ibv_qp *target, *rc;
	struct fixture f;
	uint32_t number;

	open_fixture(&f);
	CHECK((xrcd = open_xrcd(f.device, -1, O_CREAT)) != NULL);
	CHECK((other = open_xrcd(f.device, -1, O_CREAT)) != NULL);
	target = create_target(f.device, xrcd);
	number = target->qp_num;
	rc = create_qp(&f, IBV_QPT_RC);
	REFUSED(open_target(f.device, xrcd, rc->qp_num), EINVAL);
	REFUSED(open_target(f.device, xrcd, number ^ 1), EINVAL);
	REFUSED(open_target(f.device, xrcd, number | 1 << 24), EINVAL);
	REFUSED(open_target(f.device, other, number), EINVAL);
	REFUSED(open_target(f.device, NULL, number), EINVAL);
	attr.qp_num = number;
	attr.xrcd = xrcd;
	for (int left_out = IBV_QP_OPEN_ATTR_NUM; left_out <= IBV_QP_OPEN_ATTR_TYPE; left_out *= 2) {
		if (left_out == IBV_QP_OPEN_ATTR_CONTEXT)
			continue;
		attr.comp_mask = (IBV_QP_OPEN_ATTR_RESERVED - 1) & ~left_out;
		REFUSED(ibv_open_qp(f.device, &attr), EINVAL);
	}
	attr.comp_mask = IBV_QP_OPEN_ATTR_RESERVED * 2 - 1;
	REFUSED(ibv_open_qp(f.device, &attr), EINVAL);
	attr.comp_mask = IBV_QP_OPEN_ATTR_RESERVED - 1;
	attr.qp_type = IBV_QPT_RC;
	REFUSED(ibv_open_qp(f.device, &attr), EINVAL);
	EQUAL(ibv_destroy_qp(target), 0);
	REFUSED(open_target(f.device, xrcd, number), EINVAL);
	EQUAL(ibv_destroy_qp(rc), 0);
	EQUAL(ibv_close_xrcd(other), 0);
	EQUAL(ibv_close_xrcd(xrcd), 0);
	close_fixture(&f);
}

/* A sender, and two receivers whose shared receive queues it reaches by one connection. */
struct scene {
	int file;
	struct receiver to[2];
	struct fixture f;
	struct ibv_qp *sender;
	uint32_t target;
};

static void begin(struct scene *s)
{
	s->file = domain_file();
	for (int i = 0; i < 2; i++)
		s->to[i] = start_receiver(s->file);
	open_fixture(&s->f);
	s->sender = create_sender(&s->f);
	s->target = order(&s->to[0], CREATE, s->sender->qp_num);
	EQUAL(order(&s->to[1], OPEN, s->target), 0);
	sender_to_rts(&s->f, s->sender, s->target);
}

static void end(struct scene *s)
{
	EQUAL(ibv_destroy_qp(s->sender), 0);
	close_fixture(&s->f);
	close(s->file);
}

static enum ibv_wc_status send_to(struct scene *s, struct receiver *to, enum ibv_wr_opcode opcode,
				  uint32_t length, uint8_t salt)
{
	struct ibv_send_wr *wr;

	fill(s->f.memory, length, salt);
	wr = request_to(to->srqn, opcode, s->f.memory, length, s->f.mr, to->memory, to->rkey);
	wr->imm_data = salt;
	post(s->sender, wr);
	return completion(s->f.cq).status;
}

/* Sends a message, and checks that it is received completely. */
static void message(struct scene *s, struct receiver *to, uint32_t length, uint8_t salt)
{
	struct ibv_wc wc;

	EQUAL(order(to, RECEIVE, BUFFER), 0);
	EQUAL(send_to(s, to, IBV_WR_SEND, length, salt), IBV_WC_SUCCESS);
	wc = received(to);
	EQUAL(wc.status, IBV_WC_SUCCESS);
	EQUAL(wc.opcode, IBV_WC_RECV);
	EQUAL(wc.byte_len, length);
	EQUAL(wc.qp_num, s->target);
	CHECK(order(to, HOLDS, SALTED(length, salt)));
}

static void two_receivers_over_one_connection(void)
{
	/* One packet, several, and many: each takes another transfer path. */
	static const uint32_t lengths[] = { 1, 3000, 40000 };
	struct scene s;
	uint8_t salt = 0;

	begin(&s);
	for (size_t n = 0; n < 3; n++) {
		for (int i = 0; i < 4; i++) {
			struct receiver *to = &s.to[i & 1];
			uint32_t length = lengths[n];
			struct ibv_wc wc;

			message(&s, to, length, ++salt);

			EQUAL(order(to, RECEIVE, BUFFER), 0);
			EQUAL(send_to(&s, to, IBV_WR_SEND_WITH_IMM, length, ++salt), IBV_WC_SUCCESS);
			wc = received(to);
			EQUAL(wc.status, IBV_WC_SUCCESS);
			CHECK(wc.wc_flags & IBV_WC_WITH_IMM);
			EQUAL(wc.imm_data, salt);
			CHECK(order(to, HOLDS, SALTED(length, salt)));

			EQUAL(send_to(&s, to, IBV_WR_RDMA_WRITE, length, ++salt), IBV_WC_SUCCESS);
			CHECK(order(to, HOLDS, SALTED(length, salt)));

			EQUAL(order(to, RECEIVE, 0), 0);
			EQUAL(send_to(&s, to, IBV_WR_RDMA_WRITE_WITH_IMM, length, ++salt), IBV_WC_SUCCESS);
			wc = received(to);
			EQUAL(wc.status, IBV_WC_SUCCESS);
			EQUAL(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
			EQUAL(wc.byte_len, length);
			EQUAL(wc.imm_data, salt);
			CHECK(order(to, HOLDS, SALTED(length, salt)));

			EQUAL(order(to, FILL, SALTED(length, ++salt)), 0);
			post(s.sender, request_to(to->srqn, IBV_WR_RDMA_READ, s.f.memory, length, s.f.mr,
						  to->memory, to->rkey));
			EQUAL(completion(s.f.cq).status, IBV_WC_SUCCESS);
			CHECK(holds(s.f.memory, length, salt));
		}
	}
	for (int i = 0; i < 2; i++)
		end_receiver(&s.to[i]);
	end(&s);
}

/* Posts an atomic on the first eight bytes of a receiver's memory. Returns the previous value. */
static uint64_t atomic(struct scene *s, struct receiver *to, enum ibv_wr_opcode opcode,
		       uint64_t compare_add, uint64_t swap)
{
	struct ibv_send_wr *wr = request_to(to->srqn, opcode, s->f.memory, 8, s->f.mr, NULL, 0);
	uint64_t before;

	wr->wr.atomic.remote_addr = (uintptr_t)to->memory;
	wr->wr.atomic.rkey = to->rkey;
	wr->wr.atomic.compare_add = compare_add;
	wr->wr.atomic.swap = swap;
	post(s->sender, wr);
	EQUAL(completion(s->f.cq).status, IBV_WC_SUCCESS);
	memcpy(&before, s->f.memory, 8);
	return before;
}

static void atomics(void)
{
	struct scene s;

	begin(&s);
	for (int i = 0; i < 2; i++)
		EQUAL(atomic(&s, &s.to[i], IBV_WR_ATOMIC_FETCH_AND_ADD, 10 + i, 0), 0);
	for (int i = 0; i < 2; i++) {
		EQUAL(atomic(&s, &s.to[i], IBV_WR_ATOMIC_FETCH_AND_ADD, 5, 0), 10 + i);
		EQUAL(atomic(&s, &s.to[i], IBV_WR_ATOMIC_CMP_AND_SWP, 15 + i, 100), 15 + i);
		EQUAL(atomic(&s, &s.to[i], IBV_WR_ATOMIC_CMP_AND_SWP, 15 + i, 200), 100);
		EQUAL(atomic(&s, &s.to[i], IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 0), 100);
	}
	for (int i = 0; i < 2; i++)
		end_receiver(&s.to[i]);
	end(&s);
}

static void posting_by_building(void)
{
	struct scene s;
	struct ibv_qp_ex *sender;
	struct ibv_wc wc;

	begin(&s);
	CHECK((sender = ibv_qp_to_qp_ex(s.sender)) != NULL);
	for (int i = 0; i < 2; i++)
		EQUAL(order(&s.to[i], RECEIVE, BUFFER), 0);
	fill(s.f.memory, 3000, 9);
	ibv_wr_start(sender);
	for (int i = 0; i < 2; i++) {
		sender->wr_id = i;
		sender->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send_imm(sender, i);
		ibv_wr_set_xrc_srqn(sender, s.to[i].srqn);
		ibv_wr_set_sge(sender, s.f.mr->lkey, (uintptr_t)s.f.memory, 3000);
	}
	EQUAL(ibv_wr_complete(sender), 0);
	for (int i = 0; i < 2; i++) {
		wc = completion(s.f.cq);
		EQUAL(wc.wr_id, i);
		EQUAL(wc.status, IBV_WC_SUCCESS);
		wc = received(&s.to[i]);
		EQUAL(wc.status, IBV_WC_SUCCESS);
		EQUAL(wc.imm_data, i);
		CHECK(order(&s.to[i], HOLDS, SALTED(3000, 9)));
	}
	for (int i = 0; i < 2; i++)
		end_receiver(&s.to[i]);
	end(&s);
}

/* Its creator may end, or be killed: the other's handle keeps it. It is destroyed with the last handle. */
static void it_outlives_its_creator(void)
{
	struct scene s;
	enum ibv_wc_status status;

	begin(&s);
	message(&s, &s.to[0], 3000, 1);
	kill_receiver(&s.to[0]);
	for (int i = 0; i < 20; i++)
		message(&s, &s.to[1], 3000, 2 + i);
	EQUAL(order(&s.to[1], DESTROY, 0), 0);
	EQUAL(order(&s.to[1], LOOK, s.target), -EINVAL);
	EQUAL(order(&s.to[1], RECEIVE, BUFFER), 0);
	status = send_to(&s, &s.to[1], IBV_WR_SEND, 8, 1);
	CHECK(status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_REM_INV_REQ_ERR);
	end_receiver(&s.to[1]);
	end(&s);
}

/* One is killed while messages to the other are in flight. */
static void a_dead_receiver_harms_nobody_else(void)
{
	enum ibv_wc_status status;
	struct scene s;

	begin(&s);
	for (int i = 0; i < 8; i++)
		EQUAL(order(&s.to[1], RECEIVE, BUFFER), 0);
	EQUAL(order(&s.to[0], RECEIVE, BUFFER), 0);
	fill(s.f.memory, 40000, 3);
	for (int i = 0; i < 4; i++)
		post(s.sender, request_to(s.to[1].srqn, IBV_WR_SEND, s.f.memory, 40000, s.f.mr, NULL, 0));
	kill_receiver(&s.to[0]);
	for (int i = 0; i < 4; i++)
		EQUAL(completion(s.f.cq).status, IBV_WC_SUCCESS);
	for (int i = 0; i < 4; i++)
		EQUAL(received(&s.to[1]).status, IBV_WC_SUCCESS);
	CHECK(order(&s.to[1], HOLDS, SALTED(40000, 3)));
	/* A message to the dead one fails once the service has noticed, and never reaches another process. */
	while ((status = send_to(&s, &s.to[0], IBV_WR_SEND, 8, 1)) == IBV_WC_SUCCESS)
		;
	EQUAL(status, IBV_WC_REM_INV_REQ_ERR);
	CHECK(order(&s.to[1], HOLDS, SALTED(40000, 3)));
	end_receiver(&s.to[1]);
	end(&s);
}

static void a_number_that_is_no_queue_of_the_domain_is_refused(void)
{
	struct receiver stranger;
	struct scene s;
	uint32_t wrong[2];

	for (int i = 0; i < 2; i++) {
		int other = domain_file();

		stranger = start_receiver(other);
		begin(&s);
		wrong[0] = stranger.srqn;
		wrong[1] = 0;
		stranger.srqn = wrong[i];
		EQUAL(order(&stranger, RECEIVE, BUFFER), 0);
		EQUAL(send_to(&s, &stranger, IBV_WR_SEND, 8, 1), IBV_WC_REM_INV_REQ_ERR);
		EQUAL(order(&s.to[1], LOOK, s.target), IBV_QPS_ERR);
		for (int j = 0; j < 2; j++)
			end_receiver(&s.to[j]);
		end_receiver(&stranger);
		end(&s);
		close(other);
	}
}

/* A key gives access to memory of the process that has the shared receive queue, and of no other one. */
static void keys_are_those_of_the_receiver(void)
{
	struct scene s;
	struct ibv_send_wr *wr;

	begin(&s);
	EQUAL(order(&s.to[0], FILL, SALTED(64, 1)), 0);
	EQUAL(order(&s.to[1], FILL, SALTED(64, 2)), 0);
	fill(s.f.memory, 64, 3);
	wr = request_to(s.to[0].srqn, IBV_WR_RDMA_WRITE, s.f.memory, 64, s.f.mr, s.to[0].memory,
			s.to[0].rkey ^ 0x10000);
	post(s.sender, wr);
	EQUAL(completion(s.f.cq).status, IBV_WC_REM_ACCESS_ERR);
	CHECK(order(&s.to[0], HOLDS, SALTED(64, 1)));
	CHECK(order(&s.to[1], HOLDS, SALTED(64, 2)));
	for (int i = 0; i < 2; i++)
		end_receiver(&s.to[i]);
	end(&s);
}

/* All in one process, which can read all events: every handle gets each of them. */
static void every_handle_gets_its_event(void)
{
	struct ibv_qp *target[2], *sender;
	struct ibv_async_event event[2];
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
	struct fixture f;
	uint32_t srqn;

	open_fixture(&f);
	CHECK((xrcd = open_xrcd(f.device, -1, O_CREAT)) != NULL);
	srq = create_xrc_srq(&f, xrcd, &srqn);
	sender = create_sender(&f);
	target[0] = create_target(f.device, xrcd);
	target_to_rtr(&f, target[0], sender->qp_num);
	CHECK((target[1] = open_target(f.device, xrcd, target[0]->qp_num)) != NULL);
	sender_to_rts(&f, sender, target[0]->qp_num);
	post_srq_receive(srq, f.memory + 64, 64, f.mr);
	post(sender, request_to(srqn, IBV_WR_SEND, f.memory, 64, f.mr, NULL, 0));
	for (int i = 0; i < 2; i++)
		EQUAL(completion(f.cq).status, IBV_WC_SUCCESS);
	for (int i = 0; i < 2; i++) {
		EQUAL(ibv_get_async_event(f.device, &event[i]), 0);
		EQUAL(event[i].event_type, IBV_EVENT_COMM_EST);
	}
	CHECK(event[0].element.qp != event[1].element.qp);
	for (int i = 0; i < 2; i++) {
		CHECK(event[i].element.qp == target[0] || event[i].element.qp == target[1]);
		ibv_ack_async_event(&event[i]);
	}
	post(sender, request_to(srqn ^ 1, IBV_WR_SEND, f.memory, 64, f.mr, NULL, 0));
	EQUAL(completion(f.cq).status, IBV_WC_REM_INV_REQ_ERR);
	for (int i = 0; i < 2; i++) {
		EQUAL(ibv_get_async_event(f.device, &event[i]), 0);
		CHECK(event[i].event_type == IBV_EVENT_QP_REQ_ERR ||
		      event[i].event_type == IBV_EVENT_QP_ACCESS_ERR);
		ibv_ack_async_event(&event[i]);
	}
	for (int i = 0; i < 2; i++)
		EQUAL(ibv_destroy_qp(target[i]), 0);
	EQUAL(ibv_destroy_qp(sender), 0);
	EQUAL(ibv_destroy_srq(srq), 0);
	EQUAL(ibv_close_xrcd(xrcd), 0);
	close_fixture(&f);
}

static void a_queue_tells_when_it_runs_low(void)
{
	struct ibv_srq_attr limit = { .srq_limit = 2 }, now;
	struct ibv_async_event event;
	struct ibv_qp *target, *sender;
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
	struct fixture f;
	uint32_t srqn;

	open_fixture(&f);
	CHECK((xrcd = open_xrcd(f.device, -1, O_CREAT)) != NULL);
	srq = create_xrc_srq(&f, xrcd, &srqn);
	sender = create_sender(&f);
	target = create_target(f.device, xrcd);
	target_to_rtr(&f, target, sender->qp_num);
	sender_to_rts(&f, sender, target->qp_num);
	for (int i = 0; i < 2; i++)
		post_srq_receive(srq, f.memory + 64, 64, f.mr);
	EQUAL(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
	EQUAL(ibv_query_srq(srq, &now), 0);
	EQUAL(now.srq_limit, 2);
	post(sender, request_to(srqn, IBV_WR_SEND, f.memory, 64, f.mr, NULL, 0));
	for (int i = 0; i < 2; i++)
		EQUAL(completion(f.cq).status, IBV_WC_SUCCESS);
	do {
		EQUAL(ibv_get_async_event(f.device, &event), 0);
		ibv_ack_async_event(&event);
	} while (event.event_type == IBV_EVENT_COMM_EST);
	EQUAL(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(event.element.srq == srq);
	EQUAL(ibv_query_srq(srq, &now), 0);
	EQUAL(now.srq_limit, 0);
	EQUAL(ibv_destroy_qp(target), 0);
	EQUAL(ibv_destroy_qp(sender), 0);
	EQUAL(ibv_destroy_srq(srq), 0);
	EQUAL(ibv_close_xrcd(xrcd), 0);
	close_fixture(&f);
}

/* Events in each process that has a handle. */
static void events_reach_every_process(void)
{
	struct scene s;

	begin(&s);
	message(&s, &s.to[1], 64, 1);
	for (int i = 0; i < 2; i++)
		EQUAL(order(&s.to[i], EVENT, 0), IBV_EVENT_COMM_EST);
	for (int i = 0; i < 2; i++)
		end_receiver(&s.to[i]);
	end(&s);
}

struct crowd {
	struct fixture f;
	struct ibv_xrcd *xrcd;
	uint32_t shared; /* a receive queue pair that all of them open */
};

static void *comes_and_goes(void *argument)
{
	struct crowd *c = argument;
	struct ibv_qp *own, *again, *shared;
	struct ibv_srq *srq;
	uint32_t number;

	for (int i = 0; i < 50; i++) {
		srq = create_xrc_srq(&c->f, c->xrcd, &number);
		own = create_target(c->f.device, c->xrcd);
		CHECK((again = open_target(c->f.device, c->xrcd, own->qp_num)) != NULL);
		CHECK((shared = open_target(c->f.device, c->xrcd, c->shared)) != NULL);
		target_to_rtr(&c->f, again, number);
		EQUAL(ibv_destroy_qp(own), 0);
		EQUAL(ibv_destroy_srq(srq), 0);
		EQUAL(ibv_destroy_qp(shared), 0);
		EQUAL(ibv_destroy_qp(again), 0);
	}
	return NULL;
}

static void threads_share_a_domain(void)
{
	pthread_t thread[4];
	struct ibv_qp *shared;
	struct crowd c;

	open_fixture(&c.f);
	CHECK((c.xrcd = open_xrcd(c.f.device, -1, O_CREAT)) != NULL);
	shared = create_target(c.f.device, c.xrcd);
	c.shared = shared->qp_num;
	for (int i = 0; i < 4; i++)
		EQUAL(pthread_create(&thread[i], NULL, comes_and_goes, &c), 0);
	for (int i = 0; i < 4; i++)
		EQUAL(pthread_join(thread[i], NULL), 0);
	EQUAL(ibv_destroy_qp(shared), 0);
	EQUAL(ibv_close_xrcd(c.xrcd), 0);
	close_fixture(&c.f);
}

static void a_senders_queue_pair_needs_no_receive_queues(void)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_XRC_SEND };
	struct ibv_recv_wr receive = { .wr_id = 1 }, *bad;
	struct ibv_qp *sender;
	struct fixture f;

	open_fixture(&f);
	REFUSED(ibv_create_qp(f.pd, &attr), EINVAL);
	attr.send_cq = f.cq;
	attr.cap.max_send_wr = attr.cap.max_send_sge = 1;
	CHECK((sender = ibv_create_qp(f.pd, &attr)) != NULL);
	EQUAL(sender->qp_type, IBV_QPT_XRC_SEND);
	to_init(sender);
	CHECK(ibv_post_recv(sender, &receive, &bad) != 0);
	CHECK(bad == &receive);
	EQUAL(ibv_destroy_qp(sender), 0);
	close_fixture(&f);
}

static const struct test tests[] = {
	TEST(the_device_says_so),
	TEST(domains_are_opened_as_files_are),
	TEST(private_domains_are_each_their_own),
	TEST(what_is_used_is_not_destroyed),
	TEST(shared_receive_queues_have_numbers),
	TEST(a_handle_is_a_queue_pair_without_queues),
	TEST(only_what_is_there_is_opened),
	TEST(a_senders_queue_pair_needs_no_receive_queues),
	TEST(two_receivers_over_one_connection),
	TEST(atomics),
	TEST(posting_by_building),
	TEST(it_outlives_its_creator),
	TEST(a_dead_receiver_harms_nobody_else),
	TEST(a_number_that_is_no_queue_of_the_domain_is_refused),
	TEST(keys_are_those_of_the_receiver),
	TEST(every_handle_gets_its_event),
	TEST(a_queue_tells_when_it_runs_low),
	TEST(events_reach_every_process),
	TEST(threads_share_a_domain),
};

CHECK_MAIN(tests)
