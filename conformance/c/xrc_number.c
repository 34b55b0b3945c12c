/* XRC receive queue pairs by number and registration: the proposal of 2007, and OFED 1.3's form of it. */
#include "xrc_fixture.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A sender that is connected to a receive queue pair. */
struct sender {
	struct fixture f;
	struct ibv_qp *qp;
};

static void open_sender(struct sender *s)
{
	open_fixture(&s->f);
	s->qp = create_sender(&s->f);
}

static void close_sender(struct sender *s)
{
	EQUAL(ibv_destroy_qp(s->qp), 0);
	close_fixture(&s->f);
}

static enum ibv_wc_status send_to(struct sender *s, struct receiver *to, uint32_t length, uint8_t salt)
{
	fill(s->f.memory, length, salt);
	post(s->qp, request_to(to->srqn, IBV_WR_SEND, s->f.memory, length, s->f.mr, NULL, 0));
	return completion(s->f.cq).status;
}

static void message(struct sender *s, struct receiver *to, uint32_t length, uint8_t salt)
{
	EQUAL(order(to, RECEIVE, BUFFER), 0);
	EQUAL(send_to(s, to, length, salt), IBV_WC_SUCCESS);
	EQUAL(received(to).status, IBV_WC_SUCCESS);
	CHECK(order(to, HOLDS, SALTED(length, salt)));
}

/* The peer does not answer any more. */
static void sends_in_vain(struct sender *s, struct receiver *to)
{
	enum ibv_wc_status status = send_to(s, to, 8, 0);

	CHECK(status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_REM_INV_REQ_ERR);
}

/* Follows the proposal's usage up to one of its nine steps. Returns the receive queue pair's number, once there is one. */
static long take_steps(struct sender *s, struct receiver r[2], int last)
{
	long number = 0;

	/* 1: the sender has created its queue pair. 2: it asks R1. */
	if (last >= 3) {
		/* 3: R1 allocates the other one, and is registered thereby. */
		number = order(&r[0], ALLOC, s->qp->qp_num);
		CHECK(number > 0 && number >> 23 == 1);
		EQUAL(order(&r[0], LOOK, number), IBV_QPS_RTR);
	}
	/* 4: R1 has a shared receive queue. */
	if (last >= 5) {
		/* 5: R1 answers, and the sender connects. */
		sender_to_rts(&s->f, s->qp, number);
		message(s, &r[0], 3000, 1);
		EQUAL((uint32_t)order(&r[0], EVENT, number), IBV_EVENT_COMM_EST | IBV_XRC_QP_EVENT_FLAG);
	}
	/* 6: the sender tells R2 the number. */
	if (last >= 7) {
		/* 7: R2 has a shared receive queue, and registers. */
		EQUAL(order(&r[1], REGISTER, number), 0);
		message(s, &r[1], 3000, 2);
		message(s, &r[0], 3000, 3);
	}
	if (last >= 8) {
		/* 8: R1 is done. R2 is not, so the queue pair stays. */
		EQUAL(order(&r[0], UNREGISTER, number), 0);
		EQUAL(order(&r[0], LOOK, number), IBV_QPS_RTR);
		message(s, &r[1], 3000, 4);
	}
	if (last >= 9) {
		/* 9: R2 is done, and the queue pair is destroyed. */
		EQUAL(order(&r[1], UNREGISTER, number), 0);
		EQUAL(order(&r[1], LOOK, number), -EINVAL);
	}
	return number;
}

static void the_nine_steps(void)
{
	int file = domain_file();
	struct receiver r[2] = { start_receiver(file), start_receiver(file) };
	struct sender s;

	open_sender(&s);
	take_steps(&s, r, 9);
	EQUAL(order(&r[1], RECEIVE, BUFFER), 0);
	sends_in_vain(&s, &r[1]);
	close_sender(&s);
	for (int i = 0; i < 2; i++)
		end_receiver(&r[i]);
	close(file);
}

/* Whichever process is killed, at any step: the queue pair stays if the other one is registered, otherwise it is destroyed. */
static void killed_between_any_two_steps(void)
{
	for (int last = 2; last <= 9; last++) {
		for (int victim = 0; victim < 2; victim++) {
			bool registered[2] = { last >= 3 && last < 8, last >= 7 && last < 9 };
			int file = domain_file(), other = !victim;
			struct receiver r[2] = { start_receiver(file), start_receiver(file) };
			struct sender s;
			long number;

			open_sender(&s);
			number = take_steps(&s, r, last);
			kill_receiver(&r[victim]);
			if (registered[other]) {
				if (last >= 5)
					message(&s, &r[other], 3000, 5);
				EQUAL(order(&r[other], UNREGISTER, number), 0);
			}
			/* The service detects a death soon, but not at once. */
			while (number && order(&r[other], LOOK, number) != -EINVAL)
				;
			close_sender(&s);
			end_receiver(&r[other]);
			close(file);
		}
	}
}

static void registrations_are_not_counted(void)
{
	int file = domain_file();
	struct receiver r1 = start_receiver(file), r2 = start_receiver(file);
	long number = order(&r1, ALLOC, 0x123);

	CHECK(number > 0);
	for (int i = 0; i < 3; i++)
		EQUAL(order(&r2, REGISTER, number), 0);
	EQUAL(order(&r1, REGISTER, number), 0);
	EQUAL(order(&r1, UNREGISTER, number), 0);
	EQUAL(order(&r1, UNREGISTER, number), -EINVAL);
	EQUAL(order(&r1, LOOK, number), IBV_QPS_RTR);
	EQUAL(order(&r2, UNREGISTER, number), 0);
	EQUAL(order(&r2, LOOK, number), -EINVAL);
	EQUAL(order(&r2, UNREGISTER, number), -EINVAL);
	EQUAL(order(&r2, REGISTER, number), -EINVAL);
	end_receiver(&r1);
	end_receiver(&r2);
	close(file);
}

/* A process is unregistered however it ends. */
static void death_unregisters(void)
{
	int file = domain_file();
	struct receiver r1 = start_receiver(file), r2 = start_receiver(file), r3;
	struct sender s;
	long number;

	open_sender(&s);
	number = order(&r1, ALLOC, s.qp->qp_num);
	CHECK(number > 0);
	EQUAL(order(&r2, REGISTER, number), 0);
	sender_to_rts(&s.f, s.qp, number);
	message(&s, &r1, 3000, 1);
	kill_receiver(&r1);
	for (int i = 0; i < 20; i++)
		message(&s, &r2, 3000, 2 + i);
	r3 = start_receiver(file);
	EQUAL(order(&r3, LOOK, number), IBV_QPS_RTR);
	kill_receiver(&r2);
	/* The service detects it soon, but not at once. */
	while (order(&r3, LOOK, number) != -EINVAL)
		;
	EQUAL(order(&r3, RECEIVE, BUFFER), 0);
	sends_in_vain(&s, &r3);
	close_sender(&s);
	end_receiver(&r3);
	close(file);
}

static void forks_of_a_registered_process(void)
{
	int file = domain_file();
	struct receiver r = start_receiver(file);
	struct sender s;
	long number;

	open_sender(&s);
	number = order(&r, ALLOC, s.qp->qp_num);
	CHECK(number > 0);
	sender_to_rts(&s.f, s.qp, number);
	for (int i = 0; i < 3; i++) {
		EQUAL(order(&r, FORK, number), 0);
		EQUAL(order(&r, LOOK, number), IBV_QPS_RTR);
		message(&s, &r, 3000, i);
	}
	EQUAL(order(&r, UNREGISTER, number), 0);
	EQUAL(order(&r, LOOK, number), -EINVAL);
	close_sender(&s);
	end_receiver(&r);
	close(file);
}

/* A device, two domains, a receive queue pair of the first one that it is registered for, and an RC queue pair. */
struct numbers {
	struct fixture f;
	struct ibv_xrc_domain *domain, *other;
	uint32_t number;
	struct ibv_qp *rc;
};

static void open_numbers(struct numbers *n)
{
	struct ibv_qp_attr attr;

	open_fixture(&n->f);
	CHECK((n->domain = ibv_open_xrc_domain(n->f.device, -1, O_CREAT)) != NULL);
	CHECK((n->other = ibv_open_xrc_domain(n->f.device, -1, O_CREAT)) != NULL);
	CHECK(n->domain->context == n->f.device);
	attr = target_attr(&n->f, 0x123);
	EQUAL(ibv_xrc_rcv_qp_alloc(n->f.pd, n->domain, &attr, ALLOC_MASK, &n->number), 0);
	n->rc = create_qp(&n->f, IBV_QPT_RC);
}

static void close_numbers(struct numbers *n)
{
	EQUAL(ibv_destroy_qp(n->rc), 0);
	EQUAL(ibv_close_xrc_domain(n->other), 0);
	EQUAL(ibv_close_xrc_domain(n->domain), 0);
	close_fixture(&n->f);
}

static void three_cases_of_einval(void)
{
	struct numbers n;

	open_numbers(&n);
	struct {
		struct ibv_xrc_domain *domain;
		uint32_t number;
	} wrong[] = {
		{ n.domain, n.number ^ 1 },   /* no such queue pair */
		{ n.domain, n.rc->qp_num },   /* not an XRC receive queue pair */
		{ n.other, n.number },	      /* of another domain */
		{ n.domain, n.number | 1 << 24 },
		{ n.domain, 0 },
		{ NULL, n.number },
	};

	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		struct ibv_qp_attr attr = target_attr(&n.f, 0x123);
		struct ibv_xrc_init_attr init;

		RETURNS(ibv_xrc_rcv_qp_register(wrong[i].domain, wrong[i].number), -EINVAL);
		RETURNS(ibv_xrc_rcv_qp_unregister(wrong[i].domain, wrong[i].number), -EINVAL);
		RETURNS(ibv_reg_xrc_rcv_qp(wrong[i].domain, wrong[i].number), EINVAL);
		RETURNS(ibv_unreg_xrc_rcv_qp(wrong[i].domain, wrong[i].number), EINVAL);
		RETURNS(ibv_query_xrc_rcv_qp(wrong[i].domain, wrong[i].number, &attr, 0, &init), EINVAL);
		attr.qp_state = IBV_QPS_ERR;
		RETURNS(ibv_modify_xrc_rcv_qp(wrong[i].domain, wrong[i].number, &attr, IBV_QP_STATE), EINVAL);
	}
	RETURNS(ibv_close_xrc_domain(NULL), EINVAL);
	REFUSED(ibv_open_xrc_domain(NULL, -1, O_CREAT), EINVAL);
	REFUSED(ibv_open_xrc_domain(n.f.device, 1000, O_CREAT), EBADF);
	RETURNS(ibv_close_xrc_domain(n.domain), EBUSY);
	EQUAL(ibv_xrc_rcv_qp_unregister(n.domain, n.number), 0);
	RETURNS(ibv_xrc_rcv_qp_unregister(n.domain, n.number), -EINVAL);
	close_numbers(&n);
}

/* A failure has no effect: the domain is not in use. */
static void alloc_needs_what_the_transitions_need(void)
{
	struct ibv_qp_attr attr;
	struct numbers n;
	uint32_t number;

	open_numbers(&n);
	EQUAL(ibv_unreg_xrc_rcv_qp(n.domain, n.number), 0);
	for (int bit = 1; bit <= IBV_QP_DEST_QPN; bit *= 2) {
		if (!(ALLOC_MASK & bit) || bit == IBV_QP_MAX_DEST_RD_ATOMIC)
			continue;
		attr = target_attr(&n.f, 0x123);
		RETURNS(ibv_xrc_rcv_qp_alloc(n.f.pd, n.domain, &attr, ALLOC_MASK & ~bit, &number), -EINVAL);
	}
	RETURNS(ibv_xrc_rcv_qp_alloc(n.f.pd, n.domain, &attr, ALLOC_MASK | 1 << 30, &number), -EINVAL);
	RETURNS(ibv_xrc_rcv_qp_alloc(NULL, n.domain, &attr, ALLOC_MASK, &number), -EINVAL);
	RETURNS(ibv_xrc_rcv_qp_alloc(n.f.pd, NULL, &attr, ALLOC_MASK, &number), -EINVAL);
	RETURNS(ibv_xrc_rcv_qp_alloc(n.f.pd, n.domain, NULL, ALLOC_MASK, &number), -EINVAL);
	RETURNS(ibv_xrc_rcv_qp_alloc(n.f.pd, n.domain, &attr, ALLOC_MASK, NULL), -EINVAL);
	attr.port_num = 77;
	RETURNS(ibv_xrc_rcv_qp_alloc(n.f.pd, n.domain, &attr, ALLOC_MASK, &number), -EINVAL);
	attr = target_attr(&n.f, 0x123);
	attr.pkey_index = 999;
	RETURNS(ibv_xrc_rcv_qp_alloc(n.f.pd, n.domain, &attr, ALLOC_MASK, &number), -EINVAL);

	/* Messages only, and with attributes that a receiver does not use. */
	attr = target_attr(&n.f, 0x123);
	EQUAL(ibv_xrc_rcv_qp_alloc(n.f.pd, n.domain, &attr,
				   (ALLOC_MASK & ~IBV_QP_MAX_DEST_RD_ATOMIC) | IBV_QP_STATE |
					   IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY,
				   &number),
	      0);
	EQUAL(ibv_xrc_rcv_qp_unregister(n.domain, number), 0);
	close_numbers(&n);
}

static void numbers_do_not_return_soon(void)
{
	enum { ROUNDS = 300 };
	uint32_t seen[ROUNDS];
	struct numbers n;

	open_numbers(&n);
	for (int i = 0; i < ROUNDS; i++) {
		struct ibv_xrc_init_attr init = { .xrc_domain = n.domain };

		EQUAL(ibv_create_xrc_rcv_qp(&init, &seen[i]), 0);
		CHECK(seen[i] >> 23 == 1);
		for (int j = 0; j < i; j++)
			CHECK(seen[i] != seen[j]);
		EQUAL(ibv_unreg_xrc_rcv_qp(n.domain, seen[i]), 0);
	}
	EQUAL(ibv_unreg_xrc_rcv_qp(n.domain, n.number), 0);
	close_numbers(&n);
}

/* OFED 1.3: created, then modified step by step; a shared receive queue by its own call. */
static void ofed_1_3(void)
{
	struct ibv_srq_init_attr queue = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_xrc_init_attr init = { 0 };
	struct ibv_qp_attr attr;
	struct ibv_qp *sender;
	struct ibv_srq *srq;
	struct numbers n;
	uint32_t number, srqn;

	open_numbers(&n);
	RETURNS(ibv_create_xrc_rcv_qp(&init, &number), EINVAL);
	RETURNS(ibv_create_xrc_rcv_qp(NULL, &number), EINVAL);
	init.xrc_domain = n.domain;
	RETURNS(ibv_create_xrc_rcv_qp(&init, NULL), EINVAL);
	EQUAL(ibv_create_xrc_rcv_qp(&init, &number), 0);
	CHECK((srq = ibv_create_xrc_srq(n.f.pd, n.domain, n.f.cq, &queue)) != NULL);
	EQUAL(ibv_get_srq_num(srq, &srqn), 0);
	REFUSED(ibv_create_xrc_srq(n.f.pd, NULL, n.f.cq, &queue), EINVAL);
	REFUSED(ibv_create_xrc_srq(n.f.pd, n.domain, NULL, &queue), EINVAL);
	sender = create_sender(&n.f);

	EQUAL(ibv_query_xrc_rcv_qp(n.domain, number, &attr, IBV_QP_STATE, &init), 0);
	EQUAL(attr.qp_state, IBV_QPS_RESET);
	attr = target_attr(&n.f, sender->qp_num);
	attr.qp_state = IBV_QPS_INIT;
	RETURNS(ibv_modify_xrc_rcv_qp(n.domain, number, &attr, INIT_MASK & ~IBV_QP_PORT), EINVAL);
	EQUAL(ibv_modify_xrc_rcv_qp(n.domain, number, &attr, INIT_MASK), 0);
	attr.qp_state = IBV_QPS_RTR;
	EQUAL(ibv_modify_xrc_rcv_qp(n.domain, number, &attr, RTR_MASK), 0);
	EQUAL(ibv_query_xrc_rcv_qp(n.domain, number, &attr, IBV_QP_STATE, &init), 0);
	EQUAL(attr.qp_state, IBV_QPS_RTR);
	EQUAL(attr.dest_qp_num, sender->qp_num);
	CHECK(init.xrc_domain == n.domain);

	sender_to_rts(&n.f, sender, number);
	post_srq_receive(srq, n.f.memory + 4096, 4096, n.f.mr);
	fill(n.f.memory, 3000, 5);
	post(sender, request_to(srqn, IBV_WR_SEND, n.f.memory, 3000, n.f.mr, NULL, 0));
	for (int i = 0; i < 2; i++)
		EQUAL(completion(n.f.cq).status, IBV_WC_SUCCESS);
	CHECK(holds(n.f.memory + 4096, 3000, 5));

	EQUAL(ibv_reg_xrc_rcv_qp(n.domain, number), 0);
	EQUAL(ibv_unreg_xrc_rcv_qp(n.domain, number), 0);
	RETURNS(ibv_unreg_xrc_rcv_qp(n.domain, number), EINVAL);
	EQUAL(ibv_unreg_xrc_rcv_qp(n.domain, n.number), 0);
	EQUAL(ibv_destroy_qp(sender), 0);
	EQUAL(ibv_destroy_srq(srq), 0);
	close_numbers(&n);
}

/* A number, a registration and a handle refer to the same queue pair. */
static void the_interfaces_mix(void)
{
	struct ibv_xrcd *xrcd;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_qp *handle;
	struct numbers n;

	open_numbers(&n);
	xrcd = (struct ibv_xrcd *)n.domain;
	CHECK((handle = open_target(n.f.device, xrcd, n.number)) != NULL);
	EQUAL(handle->state, IBV_QPS_RTR);
	EQUAL(ibv_xrc_rcv_qp_unregister(n.domain, n.number), 0);
	EQUAL(ibv_query_qp(handle, &attr, IBV_QP_STATE, &init), 0);
	EQUAL(ibv_reg_xrc_rcv_qp(n.domain, n.number), 0);
	EQUAL(ibv_destroy_qp(handle), 0);
	CHECK((handle = open_target(n.f.device, xrcd, n.number)) != NULL);
	EQUAL(ibv_destroy_qp(handle), 0);
	EQUAL(ibv_unreg_xrc_rcv_qp(n.domain, n.number), 0);
	REFUSED(open_target(n.f.device, xrcd, n.number), EINVAL);
	handle = create_target(n.f.device, xrcd);
	EQUAL(ibv_xrc_rcv_qp_register(n.domain, handle->qp_num), 0);
	n.number = handle->qp_num;
	EQUAL(ibv_destroy_qp(handle), 0);
	EQUAL(ibv_close_xrcd((struct ibv_xrcd *)n.other), 0);
	CHECK((n.other = (struct ibv_xrc_domain *)open_xrcd(n.f.device, -1, O_CREAT)) != NULL);
	EQUAL(ibv_xrc_rcv_qp_unregister(n.domain, n.number), 0);
	close_numbers(&n);
}

static void events_name_the_number(void)
{
	struct ibv_srq_init_attr queue = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_async_event event;
	struct ibv_qp_attr attr;
	struct ibv_qp *sender;
	struct ibv_srq *srq;
	struct numbers n;
	uint32_t number, srqn;

	open_numbers(&n);
	CHECK((srq = ibv_create_xrc_srq(n.f.pd, n.domain, n.f.cq, &queue)) != NULL);
	EQUAL(ibv_get_srq_num(srq, &srqn), 0);
	sender = create_sender(&n.f);
	attr = target_attr(&n.f, sender->qp_num);
	EQUAL(ibv_xrc_rcv_qp_alloc(n.f.pd, n.domain, &attr, ALLOC_MASK, &number), 0);
	sender_to_rts(&n.f, sender, number);
	post_srq_receive(srq, n.f.memory + 64, 64, n.f.mr);
	post(sender, request_to(srqn, IBV_WR_SEND, n.f.memory, 64, n.f.mr, NULL, 0));
	for (int i = 0; i < 2; i++)
		EQUAL(completion(n.f.cq).status, IBV_WC_SUCCESS);
	EQUAL(ibv_get_async_event(n.f.device, &event), 0);
	EQUAL((uint32_t)event.event_type, IBV_EVENT_COMM_EST | IBV_XRC_QP_EVENT_FLAG);
	EQUAL(rdmux_xrc_event_qp_num(&event), number);
	EQUAL(rdmux_xrc_event_type(&event), IBV_EVENT_COMM_EST);
	ibv_ack_async_event(&event);
	event.event_type = IBV_EVENT_COMM_EST;
	EQUAL(rdmux_xrc_event_qp_num(&event), 0);
	EQUAL(ibv_xrc_rcv_qp_unregister(n.domain, number), 0);
	EQUAL(ibv_xrc_rcv_qp_unregister(n.domain, n.number), 0);
	EQUAL(ibv_destroy_qp(sender), 0);
	EQUAL(ibv_destroy_srq(srq), 0);
	close_numbers(&n);
}

static const struct test tests[] = {
	TEST(three_cases_of_einval),
	TEST(alloc_needs_what_the_transitions_need),
	TEST(registrations_are_not_counted),
	TEST(numbers_do_not_return_soon),
	TEST(the_interfaces_mix),
	TEST(ofed_1_3),
	TEST(events_name_the_number),
	TEST(the_nine_steps),
	TEST(killed_between_any_two_steps),
	TEST(death_unregisters),
	TEST(forks_of_a_registered_process),
};

CHECK_MAIN(tests)
