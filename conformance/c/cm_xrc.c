/* XRC through the connection manager: one connection, and any number of shared receive queues at the receiver. */
#define _GNU_SOURCE
#include "fixture.h"

#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	QUEUES = 3,
	EACH = 20, /* messages to each of them */
	LENGTH = 16,
};

/* Returns an IPv4 address of the device, without a port. */
static struct sockaddr_in own_address(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct fixture f;

	open_fixture(&f);
	memcpy(&address.sin_addr, f.gid.raw + 12, 4);
	close_fixture(&f);
	return address;
}

/* Creates an endpoint that listens at an address, or that has resolved it. */
static struct rdma_cm_id *endpoint(bool passive, enum ibv_qp_type type, struct sockaddr_in *address,
				   struct ibv_qp_init_attr *attr)
{
	struct rdma_addrinfo info = {
		.ai_flags = passive ? RAI_PASSIVE : 0,
		.ai_family = AF_INET,
		.ai_qp_type = type,
		.ai_port_space = RDMA_PS_IB,
	};
	struct rdma_cm_id *id;

	if (passive) {
		info.ai_src_addr = (struct sockaddr *)address;
		info.ai_src_len = sizeof(*address);
	} else {
		info.ai_dst_addr = (struct sockaddr *)address;
		info.ai_dst_len = sizeof(*address);
	}
	EQUAL(rdma_create_ep(&id, &info, NULL, attr), 0);
	EQUAL(id->qp_type, type);
	return id;
}

static struct rdma_cm_id *receiver(struct sockaddr_in *address, struct ibv_qp_init_attr *attr)
{
	return endpoint(true, IBV_QPT_XRC_RECV, address, attr);
}

static struct rdma_cm_id *sender(struct sockaddr_in *address, struct ibv_qp_init_attr *attr)
{
	return endpoint(false, IBV_QPT_XRC_SEND, address, attr);
}

static struct ibv_qp_init_attr sizes(void)
{
	return (struct ibv_qp_init_attr){
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
}

/* A process, of another host or this one, that plays the other part. It is told the address to connect to. */
struct other {
	int child;
	int pipe;
};

static struct other start(void (*part)(struct sockaddr_in *), const char *host)
{
	struct sockaddr_in address;
	int ends[2], child;

	EQUAL(pipe2(ends, O_CLOEXEC), 0);
	child = check_fork();
	if (child == 0) {
		close(ends[1]);
		if (host)
			setenv("RDMUX_HOST", host, 1);
		EQUAL(read(ends[0], &address, sizeof(address)), sizeof(address));
		part(&address);
		exit(0);
	}
	close(ends[0]);
	return (struct other){ .child = child, .pipe = ends[1] };
}

static void tell(struct other *other, struct rdma_cm_id *listener)
{
	struct sockaddr_in address = *(struct sockaddr_in *)rdma_get_local_addr(listener);

	CHECK(address.sin_port != 0);
	EQUAL(write(other->pipe, &address, sizeof(address)), sizeof(address));
	close(other->pipe);
}

/* Fills in the n-th message to a queue. */
static void fill(uint8_t *message, int queue, int n)
{
	for (int i = 0; i < LENGTH; i++)
		message[i] = queue * 64 + n + i;
}

/* The first queue belongs to the id; the others are in its domain, and complete to one shared completion queue. */
struct queues {
	struct ibv_srq *srq[QUEUES];
	struct ibv_cq *cq[QUEUES];
	uint32_t number[QUEUES]; /* in network order, as sent to the peer */
	struct ibv_mr *mr;
	uint8_t *memory; /* a slot for each message */
};

static uint8_t *place(struct queues *q, int queue, int n)
{
	return q->memory + (queue * EACH + n) * LENGTH;
}

static void open_queues(struct queues *q, struct rdma_cm_id *id)
{
	struct ibv_srq_init_attr_ex attr = {
		.attr = { .max_wr = EACH, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE,
		.srq_type = IBV_SRQT_XRC,
	};
	uint32_t number;

	EQUAL(rdma_create_srq_ex(id, &attr), 0);
	q->srq[0] = id->srq;
	CHECK(attr.xrcd && attr.cq && attr.cq == id->recv_cq);
	CHECK((attr.cq = ibv_create_cq(id->verbs, QUEUES * EACH, NULL, NULL, 0)) != NULL);
	CHECK((q->memory = calloc(QUEUES * EACH, LENGTH)) != NULL);
	CHECK((q->mr = rdma_reg_msgs(id, q->memory, QUEUES * EACH * LENGTH)) != NULL);
	for (int i = 0; i < QUEUES; i++) {
		if (i > 0)
			CHECK((q->srq[i] = ibv_create_srq_ex(id->verbs, &attr)) != NULL);
		q->cq[i] = i > 0 ? attr.cq : id->recv_cq;
		EQUAL(ibv_get_srq_num(q->srq[i], &number), 0);
		q->number[i] = htobe32(number);
		for (int n = 0; n < EACH; n++) {
			struct ibv_sge sge = { (uintptr_t)place(q, i, n), LENGTH, q->mr->lkey };
			struct ibv_recv_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = 1 }, *bad;

			EQUAL(ibv_post_srq_recv(q->srq[i], &wr, &bad), 0);
		}
	}
	for (int i = 0; i < QUEUES; i++)
		for (int j = 0; j < i; j++)
			CHECK(q->number[i] != q->number[j]);
}

static void close_queues(struct queues *q)
{
	for (int i = 1; i < QUEUES; i++)
		EQUAL(ibv_destroy_srq(q->srq[i]), 0);
	EQUAL(ibv_destroy_cq(q->cq[1]), 0);
	EQUAL(rdma_dereg_mr(q->mr), 0);
	free(q->memory);
}

/* Returns the queue, of those that complete to `cq`, in which the n-th message arrived. */
static int queue_of(struct queues *q, struct ibv_cq *cq, int n)
{
	uint8_t expected[LENGTH];

	for (int i = 0; i < QUEUES; i++) {
		fill(expected, i, n);
		if (q->cq[i] == cq && memcmp(place(q, i, n), expected, LENGTH) == 0)
			return i;
	}
	FAIL("message %d is in none of its queues", n);
}

/* Checks that each message arrives in its queue, once, and in the order sent to that queue. */
static void receive_all(struct queues *q)
{
	struct ibv_cq *cqs[2] = { q->cq[0], q->cq[1] };
	int arrived[QUEUES] = { 0 };

	for (int left = QUEUES * EACH, turn = 0; left > 0; turn = !turn) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(cqs[turn], 1, &wc);

		CHECK(n >= 0);
		if (n == 0)
			continue;
		EQUAL(wc.status, IBV_WC_SUCCESS);
		EQUAL(wc.opcode, IBV_WC_RECV);
		EQUAL(wc.byte_len, LENGTH);
		n = queue_of(q, cqs[turn], wc.wr_id);
		EQUAL(wc.wr_id, arrived[n]);
		arrived[n]++;
		memset(place(q, n, wc.wr_id), 0, LENGTH);
		left--;
	}
}

static void send_all(struct rdma_cm_id *id, const uint32_t *number)
{
	uint8_t message[LENGTH];
	struct ibv_wc wc;

	for (int n = 0; n < EACH; n++) {
		for (int i = 0; i < QUEUES; i++) {
			struct ibv_sge sge = { (uintptr_t)message, LENGTH, 0 };
			struct ibv_send_wr wr = {
				.opcode = IBV_WR_SEND,
				.send_flags = IBV_SEND_INLINE,
				.sg_list = &sge,
				.num_sge = 1,
			};
			int queue = (i + n) % QUEUES;

			fill(message, queue, n);
			wr.qp_type.xrc.remote_srqn = be32toh(number[queue]);
			post(id->qp, &wr);
			EQUAL(rdma_get_send_comp(id, &wc), 1);
			EQUAL(wc.status, IBV_WC_SUCCESS);
		}
	}
}

static void send_to_several(struct sockaddr_in *address)
{
	struct ibv_qp_init_attr attr = sizes();
	struct rdma_cm_id *id = sender(address, &attr);
	uint32_t number[QUEUES];

	CHECK(id->qp && id->send_cq && !id->recv_cq);
	EQUAL(rdma_connect(id, NULL), 0);
	EQUAL(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
	EQUAL(id->event->param.conn.srq, 1);
	CHECK(id->event->param.conn.private_data_len >= sizeof(number));
	memcpy(number, id->event->param.conn.private_data, sizeof(number));
	send_all(id, number);
	EQUAL(rdma_disconnect(id), 0);
	rdma_destroy_ep(id);
}

static void receive_with_several(const char *host)
{
	struct other other = start(send_to_several, host);
	struct sockaddr_in address = own_address();
	struct ibv_qp_init_attr attr = sizes();
	struct rdma_cm_id *listener = receiver(&address, &attr), *id;
	struct rdma_conn_param param = { .responder_resources = 1, .rnr_retry_count = 7 };
	struct queues q;

	EQUAL(rdma_listen(listener, 1), 0);
	tell(&other, listener);
	EQUAL(rdma_get_request(listener, &id), 0);
	EQUAL(id->qp_type, IBV_QPT_XRC_RECV);
	CHECK(id->qp && !id->send_cq && !id->recv_cq && !id->srq);
	open_queues(&q, id);
	param.private_data = q.number;
	param.private_data_len = sizeof(q.number);
	EQUAL(rdma_accept(id, &param), 0);
	EQUAL(id->event->event, RDMA_CM_EVENT_ESTABLISHED);
	receive_all(&q);
	EQUAL(rdma_disconnect(id), 0);
	close_queues(&q);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	check_child(other.child);
}

static void several_queues_on_one_host(void)
{
	receive_with_several(NULL);
}

static void several_queues_between_hosts(void)
{
	const char *host = getenv("RDMUX_OTHER_HOST");

	CHECK(host != NULL);
	receive_with_several(host);
}

/* Takes a queue pair of the program's own to a state with the connection manager's attributes. */
static void follow(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state, int expected)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	int mask;

	EQUAL(rdma_init_qp_attr(id, &attr, &mask), 0);
	EQUAL(mask, IBV_QP_STATE | expected);
	EQUAL(ibv_modify_qp(qp, &attr, mask), 0);
}

enum {
	INIT = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	PATH = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
	RESPONDER = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	TIMER = IBV_QP_SQ_PSN | IBV_QP_TIMEOUT,
	REQUESTER = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
};

static void send_by_hand(struct sockaddr_in *address)
{
	struct ibv_qp_init_attr attr = sizes();
	struct rdma_cm_id *id = sender(address, NULL);
	struct rdma_conn_param param = { .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };
	uint32_t number;
	uint8_t message[LENGTH];
	struct ibv_sge sge = { (uintptr_t)message, LENGTH, 0 };
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_INLINE,
		.sg_list = &sge,
		.num_sge = 1,
	};
	struct ibv_qp *qp;

	CHECK(!id->qp);
	CHECK((attr.send_cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0)) != NULL);
	attr.qp_type = IBV_QPT_XRC_SEND;
	CHECK((qp = ibv_create_qp(id->pd, &attr)) != NULL);
	param.qp_num = qp->qp_num;
	EQUAL(rdma_connect(id, &param), 0);
	EQUAL(id->event->event, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(id->event->param.conn.qp_num & 0x800000);
	memcpy(&number, id->event->param.conn.private_data, sizeof(number));
	follow(id, qp, IBV_QPS_INIT, INIT);
	follow(id, qp, IBV_QPS_RTR, PATH);
	follow(id, qp, IBV_QPS_RTS, TIMER | REQUESTER);
	EQUAL(rdma_establish(id), 0);
	fill(message, 1, 1);
	wr.qp_type.xrc.remote_srqn = be32toh(number);
	post(qp, &wr);
	EQUAL(completion(attr.send_cq).status, IBV_WC_SUCCESS);
	EQUAL(rdma_disconnect(id), 0);
	EQUAL(ibv_destroy_qp(qp), 0);
	EQUAL(ibv_destroy_cq(attr.send_cq), 0);
	rdma_destroy_ep(id);
}

/* Programs that create and modify their queue pairs themselves. */
static void queue_pairs_of_their_own(void)
{
	struct other other = start(send_by_hand, NULL);
	struct sockaddr_in address = own_address();
	struct rdma_cm_id *listener = receiver(&address, NULL), *id;
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = O_CREAT,
	};
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_XRC_RECV,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD,
	};
	struct ibv_srq_init_attr_ex of_queue = {
		.attr = { .max_wr = 1, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD,
		.srq_type = IBV_SRQT_XRC,
	};
	struct rdma_conn_param param = { .responder_resources = 1, .rnr_retry_count = 7 };
	uint8_t message[LENGTH], expected[LENGTH];
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	struct ibv_wc wc;
	uint32_t number;

	EQUAL(rdma_listen(listener, 1), 0);
	tell(&other, listener);
	EQUAL(rdma_get_request(listener, &id), 0);
	CHECK(!id->qp);
	CHECK((attr.xrcd = of_queue.xrcd = ibv_open_xrcd(id->verbs, &domain)) != NULL);
	CHECK((qp = ibv_create_qp_ex(id->verbs, &attr)) != NULL);
	EQUAL(rdma_create_srq_ex(id, &of_queue), 0);
	CHECK(of_queue.xrcd == attr.xrcd);
	EQUAL(ibv_get_srq_num(id->srq, &number), 0);
	CHECK((mr = rdma_reg_msgs(id, message, LENGTH)) != NULL);
	EQUAL(rdma_post_recv(id, NULL, message, LENGTH, mr), 0);
	follow(id, qp, IBV_QPS_INIT, INIT);
	follow(id, qp, IBV_QPS_RTR, PATH | RESPONDER);
	follow(id, qp, IBV_QPS_RTS, TIMER);
	number = htobe32(number);
	param.private_data = &number;
	param.private_data_len = sizeof(number);
	param.qp_num = qp->qp_num;
	EQUAL(rdma_accept(id, &param), 0);
	EQUAL(rdma_get_recv_comp(id, &wc), 1);
	EQUAL(wc.status, IBV_WC_SUCCESS);
	fill(expected, 1, 1);
	EQUAL(memcmp(message, expected, LENGTH), 0);
	EQUAL(rdma_disconnect(id), 0);
	EQUAL(ibv_destroy_qp(qp), 0);
	EQUAL(rdma_dereg_mr(mr), 0);
	rdma_destroy_srq(id);
	CHECK(!id->srq && !id->recv_cq && !id->recv_cq_channel);
	EQUAL(ibv_close_xrcd(attr.xrcd), 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	check_child(other.child);
}

/* The queues in an id's fields, and their lifetimes. */
static void what_an_id_has(void)
{
	struct sockaddr_in address = own_address();
	struct ibv_srq_init_attr of_queue = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_qp_init_attr attr = sizes();
	struct rdma_cm_id *id = receiver(&address, NULL);
	uint32_t number;

	CHECK(id->verbs && id->pd && !id->srq);
	EQUAL(rdma_create_srq(id, NULL, &of_queue), 0);
	CHECK(id->srq && id->recv_cq && id->recv_cq_channel && !id->send_cq);
	CHECK(of_queue.attr.max_wr >= 4);
	EQUAL(ibv_get_srq_num(id->srq, &number), 0);
	SETS(rdma_create_srq(id, NULL, &of_queue), EINVAL);
	attr.qp_type = IBV_QPT_XRC_RECV;
	EQUAL(rdma_create_qp(id, NULL, &attr), 0);
	CHECK(id->qp && id->qp->qp_type == IBV_QPT_XRC_RECV && !id->send_cq);
	rdma_destroy_qp(id);
	CHECK(!id->qp && id->srq && id->recv_cq && id->recv_cq_channel);
	EQUAL(rdma_create_qp(id, NULL, &attr), 0);
	rdma_destroy_srq(id);
	CHECK(id->qp && !id->srq && !id->recv_cq && !id->recv_cq_channel);
	EQUAL(rdma_create_srq(id, NULL, &of_queue), 0);
	rdma_destroy_ep(id);
}

static void ask_for_rc(struct sockaddr_in *address)
{
	struct ibv_qp_init_attr attr = sizes();
	struct rdma_cm_id *id = endpoint(false, IBV_QPT_RC, address, &attr);

	SETS(rdma_connect(id, NULL), ECONNREFUSED);
	EQUAL(id->event->event, RDMA_CM_EVENT_REJECTED);
	CHECK(id->event->status > 0);
	rdma_destroy_ep(id);
}

static void ask_for_xrc(struct sockaddr_in *address)
{
	struct ibv_qp_init_attr attr = sizes();
	struct rdma_cm_id *id = sender(address, &attr);

	SETS(rdma_connect(id, NULL), ECONNREFUSED);
	EQUAL(id->event->event, RDMA_CM_EVENT_REJECTED);
	rdma_destroy_ep(id);
}

/* A listener for one transport gets no requests for the other. */
static void other_transports_are_refused(void)
{
	static const struct {
		enum ibv_qp_type listens;
		void (*asks)(struct sockaddr_in *);
	} cases[] = { { IBV_QPT_XRC_RECV, ask_for_rc }, { IBV_QPT_RC, ask_for_xrc } };

	for (int i = 0; i < 2; i++) {
		struct other other = start(cases[i].asks, NULL);
		struct sockaddr_in address = own_address();
		struct rdma_cm_id *listener = endpoint(true, cases[i].listens, &address, NULL), *id;

		EQUAL(rdma_listen(listener, 1), 0);
		tell(&other, listener);
		check_child(other.child);
		EQUAL(fcntl(listener->channel->fd, F_SETFL, O_NONBLOCK), 0);
		SETS(rdma_get_request(listener, &id), EAGAIN);
		rdma_destroy_ep(listener);
	}
}

/* The sending end cannot listen, the receiving end cannot connect, and neither can have the other's queues. */
static void the_wrong_end(void)
{
	struct sockaddr_in address = own_address(), peer = address;
	struct rdma_cm_id *listener = receiver(&address, NULL), *id;
	struct ibv_qp_init_attr attr = sizes();
	struct ibv_srq_init_attr_ex of_queue = {
		.attr = { .max_wr = 1, .max_sge = 1 },
		.srq_type = IBV_SRQT_XRC,
	};

	EQUAL(rdma_listen(listener, 1), 0);
	peer.sin_port = rdma_get_src_port(listener);
	SETS(rdma_create_srq_ex(listener, &of_queue), EINVAL);
	id = endpoint(false, IBV_QPT_XRC_RECV, &peer, &attr);
	CHECK(id->qp && !id->send_cq && !id->recv_cq);
	SETS(rdma_connect(id, NULL), EINVAL);
	rdma_destroy_ep(id);
	id = endpoint(true, IBV_QPT_XRC_SEND, &address, NULL);
	SETS(rdma_listen(id, 1), EINVAL);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
}

static const struct test tests[] = {
	TEST(what_an_id_has),
	TEST(the_wrong_end),
	TEST(several_queues_on_one_host),
	TEST(several_queues_between_hosts),
	TEST(queue_pairs_of_their_own),
	TEST(other_transports_are_refused),
};

CHECK_MAIN(tests)
