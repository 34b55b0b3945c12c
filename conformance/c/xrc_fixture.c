#define _GNU_SOURCE
#include "xrc_fixture.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int domain_file(void)
{
	char name[] = "/tmp/xrcd-XXXXXX";
	int fd;

	CHECK((fd = mkstemp(name)) >= 0);
	EQUAL(unlink(name), 0);
	return fd;
}

struct ibv_xrcd *open_xrcd(struct ibv_context *device, int fd, int oflags)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = fd,
		.oflags = oflags,
	};

	return ibv_open_xrcd(device, &attr);
}

struct ibv_srq *create_xrc_srq(struct fixture *f, struct ibv_xrcd *xrcd, uint32_t *number)
{
	struct ibv_srq_init_attr_ex attr = {
		.attr = { .max_wr = 16, .max_sge = 2 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = f->pd,
		.xrcd = xrcd,
		.cq = f->cq,
	};
	struct ibv_srq *srq;

	CHECK((srq = ibv_create_srq_ex(f->device, &attr)) != NULL);
	EQUAL(ibv_get_srq_num(srq, number), 0);
	return srq;
}

void post_srq_receive(struct ibv_srq *srq, void *addr, uint32_t length, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)addr, .length = length, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = length, .sg_list = &sge, .num_sge = 1 }, *bad;

	EQUAL(ibv_post_srq_recv(srq, &wr, &bad), 0);
}

struct ibv_qp *create_target(struct ibv_context *device, struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_XRC_RECV,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD,
		.xrcd = xrcd,
	};
	struct ibv_qp *target;

	CHECK((target = ibv_create_qp_ex(device, &attr)) != NULL);
	return target;
}

struct ibv_qp *open_target(struct ibv_context *device, struct ibv_xrcd *xrcd, uint32_t number)
{
	struct ibv_qp_open_attr attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = number,
		.xrcd = xrcd,
		.qp_type = IBV_QPT_XRC_RECV,
	};

	return ibv_open_qp(device, &attr);
}

struct ibv_qp_attr target_attr(const struct fixture *f, uint32_t sender)
{
	return (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = sender,
		.qp_access_flags = ALL_RIGHTS & ~IBV_ACCESS_LOCAL_WRITE,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.port_num = PORT,
		.ah_attr = {
			.is_global = 1,
			.dlid = f->lid,
			.port_num = PORT,
			.grh = { .dgid = f->gid, .sgid_index = f->gid_index, .hop_limit = 1 },
		},
	};
}

void target_to_rtr(struct fixture *f, struct ibv_qp *target, uint32_t sender)
{
	struct ibv_qp_attr attr = target_attr(f, sender);

	attr.qp_state = IBV_QPS_INIT;
	EQUAL(ibv_modify_qp(target, &attr, INIT_MASK), 0);
	attr.qp_state = IBV_QPS_RTR;
	EQUAL(ibv_modify_qp(target, &attr, RTR_MASK), 0);
}

struct ibv_qp *create_sender(struct fixture *f)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = f->cq,
		.cap = { .max_send_wr = 8, .max_send_sge = 2 },
		.qp_type = IBV_QPT_XRC_SEND,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = f->pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
	};
	struct ibv_qp *sender;

	CHECK((sender = ibv_create_qp_ex(f->device, &attr)) != NULL);
	to_init(sender);
	return sender;
}

void sender_to_rts(struct fixture *f, struct ibv_qp *sender, uint32_t target)
{
	struct ibv_qp_attr attr = target_attr(f, target);

	EQUAL(ibv_modify_qp(sender, &attr, IBV_QP_STATE | PATH_MASK), 0);
	rtr_to_rts(sender);
}

struct ibv_send_wr *request_to(uint32_t srqn, enum ibv_wr_opcode opcode, void *addr,
			       uint32_t length, struct ibv_mr *mr, void *remote, uint32_t rkey)
{
	struct ibv_send_wr *wr = request(opcode, addr, length, mr, remote, rkey);

	wr->qp_type.xrc.remote_srqn = srqn;
	return wr;
}

void fill(uint8_t *at, uint32_t length, uint8_t salt)
{
	for (uint32_t i = 0; i < length; i++)
		at[i] = i * 7 + salt;
}

bool holds(const uint8_t *at, uint32_t length, uint8_t salt)
{
	for (uint32_t i = 0; i < length; i++)
		if (at[i] != (uint8_t)(i * 7 + salt))
			return false;
	return true;
}

static void tell(int line, const void *what, size_t size)
{
	EQUAL(send(line, what, size, MSG_NOSIGNAL), size);
}

static void hear(int line, void *what, size_t size)
{
	ssize_t n = recv(line, what, size, MSG_WAITALL);

	if (n == 0)
		FAIL(" the other process is gone");
	EQUAL(n, size);
}

struct command {
	enum order order;
	uint32_t argument;
};

struct answer {
	long result;
	struct ibv_wc wc;
};

/* The objects of a receiver. */
struct held {
	struct fixture f;
	struct ibv_xrcd *xrcd;
	struct ibv_xrc_domain *domain; /* the same */
	struct ibv_srq *srq;
	struct ibv_qp *handle;
};

/* Runs in a child of a receiver: all inherited objects are dead, and the parent is not affected by calls on them. */
static void try_in_vain(struct held *h, uint32_t number)
{
	CHECK(ibv_xrc_rcv_qp_register(h->domain, number) < 0);
	CHECK(ibv_xrc_rcv_qp_unregister(h->domain, number) < 0);
	CHECK(ibv_reg_xrc_rcv_qp(h->domain, number) > 0);
	CHECK(ibv_unreg_xrc_rcv_qp(h->domain, number) > 0);
	CHECK(open_target(h->f.device, h->xrcd, number) == NULL);
	if (h->handle)
		(void)ibv_destroy_qp(h->handle);
	(void)ibv_destroy_srq(h->srq);
	(void)ibv_close_xrcd(h->xrcd);
}

static long look(struct held *h, uint32_t number)
{
	struct ibv_xrc_init_attr init;
	struct ibv_qp_attr attr;
	int error = ibv_query_xrc_rcv_qp(h->domain, number, &attr, 0, &init);

	if (error)
		return -error;
	CHECK(init.xrc_domain == h->domain);
	EQUAL(init.qp_type, IBV_QPT_XRC_RECV);
	return attr.qp_state;
}

static long hear_event(struct held *h, uint32_t number)
{
	struct ibv_async_event event;

	EQUAL(ibv_get_async_event(h->f.device, &event), 0);
	if (rdmux_xrc_event_qp_num(&event))
		EQUAL(rdmux_xrc_event_qp_num(&event), number);
	else
		CHECK(event.element.qp == h->handle);
	ibv_ack_async_event(&event);
	return event.event_type;
}

static long carry_out(struct held *h, struct command c)
{
	struct ibv_qp_attr attr;
	uint32_t number;
	int error, child;

	switch (c.order) {
	case RECEIVE:
		post_srq_receive(h->srq, h->f.memory, c.argument, h->f.mr);
		return 0;
	case CREATE:
		h->handle = create_target(h->f.device, h->xrcd);
		target_to_rtr(&h->f, h->handle, c.argument);
		return h->handle->qp_num;
	case OPEN:
		h->handle = open_target(h->f.device, h->xrcd, c.argument);
		return h->handle ? 0 : -errno;
	case DESTROY:
		error = ibv_destroy_qp(h->handle);
		h->handle = NULL;
		return -error;
	case ALLOC:
		attr = target_attr(&h->f, c.argument);
		error = ibv_xrc_rcv_qp_alloc(h->f.pd, h->domain, &attr, ALLOC_MASK, &number);
		return error ? error : (long)number;
	case REGISTER:
		return ibv_xrc_rcv_qp_register(h->domain, c.argument);
	case UNREGISTER:
		return ibv_xrc_rcv_qp_unregister(h->domain, c.argument);
	case REG:
		return -ibv_reg_xrc_rcv_qp(h->domain, c.argument);
	case UNREG:
		return -ibv_unreg_xrc_rcv_qp(h->domain, c.argument);
	case LOOK:
		return look(h, c.argument);
	case FILL:
		fill(h->f.memory, c.argument & 0xffffff, c.argument >> 24);
		return 0;
	case HOLDS:
		return holds(h->f.memory, c.argument & 0xffffff, c.argument >> 24);
	case EVENT:
		return hear_event(h, c.argument);
	case FORK:
		if ((child = check_fork()) == 0) {
			try_in_vain(h, c.argument);
			exit(0);
		}
		check_child(child);
		return 0;
	case COMPLETION:
		break;
	case QUIT:
		if (h->handle)
			EQUAL(ibv_destroy_qp(h->handle), 0);
		EQUAL(ibv_destroy_srq(h->srq), 0);
		EQUAL(ibv_close_xrcd(h->xrcd), 0);
		close_fixture(&h->f);
		return 0;
	}
	return -ENOSYS;
}

static void receive(int file, int line)
{
	struct held h = { .handle = NULL };
	struct receiver self = { .line = -1 };
	struct command c;

	open_fixture(&h.f);
	CHECK((h.xrcd = open_xrcd(h.f.device, file, O_CREAT)) != NULL);
	h.domain = (struct ibv_xrc_domain *)h.xrcd;
	h.srq = create_xrc_srq(&h.f, h.xrcd, &self.srqn);
	self.rkey = h.f.mr->rkey;
	self.memory = h.f.memory;
	tell(line, &self, sizeof(self));
	do {
		struct answer a = { .result = 0 };

		hear(line, &c, sizeof(c));
		if (c.order == COMPLETION)
			a.wc = completion(h.f.cq);
		else
			a.result = carry_out(&h, c);
		tell(line, &a, sizeof(a));
	} while (c.order != QUIT);
}

struct receiver start_receiver(int file)
{
	struct receiver r;
	int lines[2], child;

	EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, lines), 0);
	if ((child = check_fork()) == 0) {
		close(lines[0]);
		receive(file, lines[1]);
		exit(0);
	}
	close(lines[1]);
	hear(lines[0], &r, sizeof(r));
	r.child = child;
	r.line = lines[0];
	return r;
}

static struct answer ask(struct receiver *r, struct command c)
{
	struct answer a;

	tell(r->line, &c, sizeof(c));
	hear(r->line, &a, sizeof(a));
	return a;
}

long order(struct receiver *r, enum order order, uint32_t argument)
{
	return ask(r, (struct command){ order, argument }).result;
}

struct ibv_wc received(struct receiver *r)
{
	return ask(r, (struct command){ COMPLETION, 0 }).wc;
}

void end_receiver(struct receiver *r)
{
	EQUAL(order(r, QUIT, 0), 0);
	check_child(r->child);
	close(r->line);
}

void kill_receiver(struct receiver *r)
{
	check_kill(r->child);
	close(r->line);
}
