/* Invalid arguments to libibverbs: they are errors, and have no partial effect. */
#include "fixture.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A call that may return either. */
#define ONE_OF(call, a, b)                                                                     \
	do {                                                                                   \
		int result_ = (call);                                                          \
		if (result_ != (a) && result_ != (b))                                          \
			FAIL("%s returns %d, neither " #a " nor " #b, #call, result_);         \
	} while (0)

#define REFUSED_AS(call, a, b)                                                                 \
	do {                                                                                   \
		CHECK((call) == NULL);                                                         \
		if (errno != (a) && errno != (b))                                              \
			FAIL("%s sets errno %d, neither " #a " nor " #b, #call, errno);        \
	} while (0)

static void list_of_devices(void)
{
	struct ibv_device **list, *device;
	struct ibv_context *context;
	int count = -1, n = 0;

	CHECK((list = ibv_get_device_list(&count)) != NULL);
	while (list[n])
		n++;
	EQUAL(n, count);
	device = list[0];
	ibv_free_device_list(list);
	CHECK((list = ibv_get_device_list(NULL)) != NULL);
	CHECK(list[0] == device);
	EQUAL(device->node_type, IBV_NODE_CA);
	EQUAL(device->transport_type, IBV_TRANSPORT_IB);
	EQUAL(strcmp(ibv_get_device_name(device), device->name), 0);
	CHECK(ibv_get_device_guid(device) != 0);
	CHECK(ibv_get_device_index(device) >= -1);
	CHECK((context = ibv_open_device(device)) != NULL);
	ibv_free_device_list(list);
	CHECK(context->device == device);
	CHECK(context->num_comp_vectors > 0);
	EQUAL(ibv_close_device(context), 0);
}

static void ports_and_tables(void)
{
	struct fixture f;
	struct ibv_port_attr port;
	struct ibv_gid_entry entry;
	union ibv_gid gid;
	uint16_t pkey;

	open_fixture(&f);
	EQUAL(ibv_query_port(f.device, PORT, &port), 0);
	EQUAL(port.state, IBV_PORT_ACTIVE);
	EQUAL(port.link_layer, IBV_LINK_LAYER_ETHERNET);
	RETURNS(ibv_query_port(f.device, 0, &port), EINVAL);
	RETURNS(ibv_query_port(f.device, 255, &port), EINVAL);

	EQUAL(ibv_query_gid(f.device, PORT, f.gid_index, &gid), 0);
	EQUAL(memcmp(&gid, &f.gid, sizeof(gid)), 0);
	/* An entry that does not exist is all zeros, or an error. */
	if (ibv_query_gid(f.device, PORT, port.gid_tbl_len, &gid) == 0)
		EQUAL(gid.global.interface_id, 0);
	CHECK(ibv_query_gid_ex(f.device, PORT, port.gid_tbl_len, &entry, 0) != 0);
	CHECK(ibv_query_gid_ex(f.device, PORT + 9, 0, &entry, 0) != 0);
	ONE_OF(ibv_query_gid_ex(f.device, PORT, f.gid_index, &entry, 1u << 31), EINVAL, EOPNOTSUPP);

	EQUAL(ibv_query_pkey(f.device, PORT, 0, &pkey), 0);
	EQUAL(pkey, 0xffff);
	EQUAL(ibv_query_pkey(f.device, PORT, port.pkey_tbl_len, &pkey), -1);
	EQUAL(ibv_get_pkey_index(f.device, PORT, pkey), 0);
	EQUAL(ibv_get_pkey_index(f.device, PORT, 0x1234), -1);
	close_fixture(&f);
}

static void table_of_addresses(void)
{
	struct ibv_gid_entry entries[512];
	struct fixture f;
	ssize_t n;

	open_fixture(&f);
	CHECK((n = ibv_query_gid_table(f.device, entries, 512, 0)) > 0);
	for (ssize_t i = 0; i < n; i++)
		EQUAL(entries[i].port_num, PORT);
	CHECK(ibv_query_gid_table(f.device, entries, 0, 0) < 0);
	ONE_OF(ibv_query_gid_table(f.device, entries, 512, 1u << 31), -EINVAL, -EOPNOTSUPP);
	close_fixture(&f);
}

static void extended_device_query(void)
{
	struct ibv_query_device_ex_input input = { .comp_mask = 1 };
	struct ibv_device_attr_ex attr;
	struct ibv_device_attr plain;
	struct fixture f;

	open_fixture(&f);
	EQUAL(ibv_query_device(f.device, &plain), 0);
	EQUAL(ibv_query_device_ex(f.device, NULL, &attr), 0);
	/* Up to the last field; the padding is undefined. */
	EQUAL(memcmp(&plain, &attr.orig_attr, offsetof(struct ibv_device_attr, phys_port_cnt) + 1), 0);
	CHECK(ibv_query_device_ex(f.device, &input, &attr) != 0);
	CHECK(plain.max_qp > 0 && plain.max_qp_wr > 0 && plain.max_cq > 0 && plain.max_cqe > 0);
	CHECK(plain.max_mr > 0 && plain.max_pd > 0 && plain.max_sge > 0 && plain.phys_port_cnt == 1);
	close_fixture(&f);
}

static void completion_queues(void)
{
	struct ibv_device_attr attr;
	struct ibv_cq_init_attr_ex ex = { .cqe = 8 };
	struct ibv_cq *cq;
	struct fixture f;
	struct ibv_wc wc;

	open_fixture(&f);
	EQUAL(ibv_query_device(f.device, &attr), 0);
	REFUSED(ibv_create_cq(f.device, 0, NULL, NULL, 0), EINVAL);
	REFUSED(ibv_create_cq(f.device, -1, NULL, NULL, 0), EINVAL);
	REFUSED_AS(ibv_create_cq(f.device, attr.max_cqe + 1, NULL, NULL, 0), EINVAL, ENOMEM);
	REFUSED(ibv_create_cq(f.device, 8, NULL, NULL, f.device->num_comp_vectors), EINVAL);
	REFUSED(ibv_create_cq(f.device, 8, NULL, NULL, -1), EINVAL);
	CHECK((cq = ibv_create_cq(f.device, 8, &f, NULL, 0)) != NULL);
	CHECK(cq->cqe >= 8 && cq->cq_context == &f && cq->context == f.device && !cq->channel);
	EQUAL(ibv_poll_cq(cq, 1, &wc), 0);
	EQUAL(ibv_poll_cq(cq, 0, &wc), 0);
	EQUAL(ibv_resize_cq(cq, 16), 0);
	CHECK(cq->cqe >= 16);
	RETURNS(ibv_resize_cq(cq, 0), EINVAL);
	ONE_OF(ibv_resize_cq(cq, attr.max_cqe + 1), EINVAL, ENOMEM);
	EQUAL(ibv_destroy_cq(cq), 0);
	ex.wc_flags = 1ull << 60;
	REFUSED_AS((struct ibv_cq *)ibv_create_cq_ex(f.device, &ex), EOPNOTSUPP, EINVAL);
	ex = (struct ibv_cq_init_attr_ex){ .cqe = 8, .comp_mask = 1u << 30 };
	REFUSED_AS((struct ibv_cq *)ibv_create_cq_ex(f.device, &ex), EOPNOTSUPP, EINVAL);
	close_fixture(&f);
}

static void memory_regions(void)
{
	struct ibv_mr *mr;
	struct fixture f;

	open_fixture(&f);
	REFUSED(ibv_reg_mr(f.pd, f.memory, BUFFER, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	REFUSED(ibv_reg_mr(f.pd, f.memory, BUFFER, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	CHECK(ibv_reg_mr(f.pd, f.memory, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE) == NULL);
	REFUSED(ibv_reg_mr(f.pd, (void *)4096, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	/* An access flag that may be ignored, and an unknown one. */
	CHECK((mr = ibv_reg_mr(f.pd, f.memory, 64, IBV_ACCESS_RELAXED_ORDERING)) != NULL);
	EQUAL(ibv_dereg_mr(mr), 0);
	volatile int unknown = 1 << 19;
	REFUSED_AS(ibv_reg_mr(f.pd, f.memory, 64, unknown), EINVAL, EOPNOTSUPP);
	CHECK((mr = ibv_reg_mr(f.pd, f.memory, 100, 0)) != NULL);
	CHECK(mr->addr == f.memory && mr->length == 100 && mr->pd == f.pd && mr->context == f.device);
	EQUAL(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE),
	      IBV_REREG_MR_ERR_CMD);
	EQUAL(ibv_rereg_mr(mr, 1 << 20, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	/* Access flags, although IBV_REREG_MR_CHANGE_ACCESS is not set. */
	EQUAL(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, f.memory, 64, IBV_ACCESS_LOCAL_WRITE),
	      IBV_REREG_MR_ERR_INPUT);
	EQUAL(mr->length, 100);
	EQUAL(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 0, 0),
	      IBV_REREG_MR_ERR_INPUT);
	EQUAL(ibv_dereg_mr(mr), 0);
	close_fixture(&f);
}

static void what_is_in_use_stays(void)
{
	struct fixture f;
	struct ibv_qp *qp;

	open_fixture(&f);
	qp = create_qp(&f, IBV_QPT_RC);
	RETURNS(ibv_destroy_cq(f.cq), EBUSY);
	RETURNS(ibv_dealloc_pd(f.pd), EBUSY);
	RETURNS(ibv_destroy_comp_channel(f.channel), EBUSY);
	EQUAL(ibv_destroy_qp(qp), 0);
	RETURNS(ibv_dealloc_pd(f.pd), EBUSY);
	/* All of it still works. */
	struct ibv_qp *pair[2];
	connected_pair(&f, pair);
	exchange(&f, pair);
	for (int i = 0; i < 2; i++)
		EQUAL(ibv_destroy_qp(pair[i]), 0);
	close_fixture(&f);
}

static void shared_receive_queues(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_qp_init_attr qp_init = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 1 } };
	struct ibv_srq_attr attr;
	struct ibv_device_attr device;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct fixture f;

	open_fixture(&f);
	EQUAL(ibv_query_device(f.device, &device), 0);
	CHECK((srq = ibv_create_srq(f.pd, &init)) != NULL);
	EQUAL(ibv_query_srq(srq, &attr), 0);
	CHECK(attr.max_wr >= 4 && attr.srq_limit == 0);
	attr.srq_limit = attr.max_wr + 1;
	RETURNS(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), EINVAL);
	qp_init.srq = srq;
	qp_init.send_cq = qp_init.recv_cq = f.cq;
	CHECK((qp = ibv_create_qp(f.pd, &qp_init)) != NULL);
	RETURNS(ibv_destroy_srq(srq), EBUSY);
	EQUAL(ibv_destroy_qp(qp), 0);
	EQUAL(ibv_destroy_srq(srq), 0);
	init.attr.max_wr = device.max_srq_wr + 1;
	REFUSED_AS(ibv_create_srq(f.pd, &init), EINVAL, ENOMEM);
	init.attr = (struct ibv_srq_attr){ .max_wr = 1, .max_sge = device.max_srq_sge + 1 };
	REFUSED_AS(ibv_create_srq(f.pd, &init), EINVAL, ENOMEM);
	close_fixture(&f);
}

static void queue_pairs(void)
{
	struct ibv_device_attr device;
	struct fixture f;
	struct ibv_qp *qp;

	open_fixture(&f);
	EQUAL(ibv_query_device(f.device, &device), 0);
	const struct ibv_qp_init_attr good = {
		.send_cq = f.cq,
		.recv_cq = f.cq,
		.qp_type = IBV_QPT_RC,
		.cap = { 1, 1, 1, 1, 0 },
	};
	struct ibv_qp_init_attr bad = good;
	bad.cap.max_send_wr = device.max_qp_wr + 1;
	REFUSED_AS(ibv_create_qp(f.pd, &bad), EINVAL, ENOMEM);
	bad = good;
	bad.cap.max_recv_wr = device.max_qp_wr + 1;
	REFUSED_AS(ibv_create_qp(f.pd, &bad), EINVAL, ENOMEM);
	bad = good;
	bad.cap.max_send_sge = device.max_sge + 1;
	REFUSED_AS(ibv_create_qp(f.pd, &bad), EINVAL, ENOMEM);
	bad = good;
	bad.cap.max_inline_data = 1 << 30;
	REFUSED_AS(ibv_create_qp(f.pd, &bad), EINVAL, ENOMEM);
	bad = good;
	bad.send_cq = NULL;
	REFUSED(ibv_create_qp(f.pd, &bad), EINVAL);
	bad = good;
	bad.qp_type = 77;
	REFUSED_AS(ibv_create_qp(f.pd, &bad), EINVAL, EOPNOTSUPP);
	bad.qp_type = IBV_QPT_RAW_PACKET;
	REFUSED(ibv_create_qp(f.pd, &bad), EOPNOTSUPP);
	/* Attributes that a sender does not use stay unchanged. */
	bad = good;
	bad.qp_type = IBV_QPT_XRC_SEND;
	CHECK((qp = ibv_create_qp(f.pd, &bad)) != NULL);
	CHECK(bad.recv_cq == f.cq);
	EQUAL(ibv_destroy_qp(qp), 0);
	close_fixture(&f);
}

static void states(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	struct ibv_qp_init_attr init;
	struct fixture f;
	struct ibv_qp *qp;

	open_fixture(&f);
	qp = create_qp(&f, IBV_QPT_RC);
	EQUAL(qp->state, IBV_QPS_RESET);
	RETURNS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = PORT };
	/* Without the access flags, which are required. */
	RETURNS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT), EINVAL);
	/* With an attribute that is not allowed here. */
	RETURNS(ibv_modify_qp(qp, &attr,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				      IBV_QP_ACCESS_FLAGS | IBV_QP_QKEY),
		EINVAL);
	attr.port_num = 9;
	RETURNS(ibv_modify_qp(qp, &attr,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
		EINVAL);
	attr.port_num = PORT;
	attr.pkey_index = 999;
	RETURNS(ibv_modify_qp(qp, &attr,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
		EINVAL);
	EQUAL(qp->state, IBV_QPS_RESET);
	EQUAL(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
	EQUAL(attr.qp_state, IBV_QPS_RESET);
	to_rts(&f, qp, qp->qp_num);
	EQUAL(qp->state, IBV_QPS_RTS);
	attr.cur_qp_state = IBV_QPS_INIT;
	attr.qp_state = IBV_QPS_RTS;
	RETURNS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL);
	attr.qp_state = IBV_QPS_ERR;
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	attr.qp_state = IBV_QPS_RESET;
	EQUAL(ibv_modify_qp(qp, &attr, IBV_QP_STATE), 0);
	to_rts(&f, qp, qp->qp_num);
	EQUAL(ibv_destroy_qp(qp), 0);
	close_fixture(&f);
}

static void sends(void)
{
	struct ibv_sge sge = { .length = 8 };
	struct ibv_send_wr second = { .num_sge = 3, .opcode = IBV_WR_SEND }, first, *bad = NULL;
	struct ibv_qp *pair[2], *fresh;
	struct fixture f;

	open_fixture(&f);
	sge.addr = (uintptr_t)f.memory;
	sge.lkey = f.mr->lkey;
	first = (struct ibv_send_wr){
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = sge.addr + 64, .rkey = f.mr->rkey },
	};
	fresh = create_qp(&f, IBV_QPT_RC);
	RETURNS(ibv_post_send(fresh, &first, &bad), EINVAL);
	CHECK(bad == &first);
	to_init(fresh);
	RETURNS(ibv_post_send(fresh, &first, &bad), EINVAL);

	connected_pair(&f, pair);
	/* More entries than the queue pair has room for. */
	struct ibv_sge three[3] = { sge, sge, sge };
	second.sg_list = three;
	RETURNS(ibv_post_send(pair[0], &second, &bad), EINVAL);
	CHECK(bad == &second);
	/* The first request of a list is posted, the second is the bad one. */
	first.next = &second;
	RETURNS(ibv_post_send(pair[0], &first, &bad), EINVAL);
	CHECK(bad == &second);
	EQUAL(completion(f.cq).status, IBV_WC_SUCCESS);
	first.next = NULL;
	struct ibv_send_wr wrong = first;
	wrong.opcode = 99;
	ONE_OF(ibv_post_send(pair[0], &wrong, &bad), EINVAL, EOPNOTSUPP);
	wrong = first;
	wrong.send_flags |= IBV_SEND_INLINE;
	sge.length = BUFFER;
	RETURNS(ibv_post_send(pair[0], &wrong, &bad), EINVAL);
	sge.length = 8;
	EQUAL(write_bytes(&f, pair[0], f.memory, f.mr, f.memory + 64, f.mr->rkey, 8),
	      IBV_WC_SUCCESS);
}

static void a_full_send_queue(void)
{
	struct ibv_send_wr *bad = NULL;
	struct ibv_qp *pair[2];
	struct fixture f;
	int posted = 0, result;

	open_fixture(&f);
	connected_pair(&f, pair);
	/* The peer has no receive posted, so none of them completes. */
	while ((result = ibv_post_send(
			pair[0], request(IBV_WR_SEND, f.memory, 8, f.mr, NULL, 0), &bad)) == 0)
		CHECK(++posted < 10000);
	EQUAL(result, ENOMEM);
	CHECK(bad != NULL && posted >= 8);
}

static void receives(void)
{
	struct ibv_sge sge[3] = { { 0 } };
	struct ibv_recv_wr wr = { .sg_list = sge, .num_sge = 1 }, *bad = NULL;
	struct ibv_qp *qp;
	struct fixture f;
	int posted = 0, result;

	open_fixture(&f);
	qp = create_qp(&f, IBV_QPT_RC);
	RETURNS(ibv_post_recv(qp, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
	to_init(qp);
	wr.num_sge = 3;
	RETURNS(ibv_post_recv(qp, &wr, &bad), EINVAL);
	wr.num_sge = 1;
	while ((result = ibv_post_recv(qp, &wr, &bad)) == 0)
		CHECK(++posted < 10000);
	EQUAL(result, ENOMEM);
	CHECK(bad == &wr && posted >= 8);
	EQUAL(ibv_destroy_qp(qp), 0);
	close_fixture(&f);
}

static void keys_and_bounds(void)
{
	struct ibv_qp *pair[2];
	struct ibv_mr *small;
	struct fixture f;

	open_fixture(&f);
	CHECK((small = ibv_reg_mr(f.pd, f.memory, 100, ALL_RIGHTS)) != NULL);
	connected_pair(&f, pair);
	EQUAL(write_bytes(&f, pair[0], f.memory, small, f.memory + 64, f.mr->rkey, 101),
	      IBV_WC_LOC_PROT_ERR);
	connected_pair(&f, pair);
	EQUAL(write_bytes(&f, pair[0], f.memory, f.mr, f.memory, small->rkey, 101),
	      IBV_WC_REM_ACCESS_ERR);
	connected_pair(&f, pair);
	EQUAL(write_bytes(&f, pair[0], f.memory, f.mr, f.memory - 1, small->rkey, 8),
	      IBV_WC_REM_ACCESS_ERR);
	connected_pair(&f, pair);
	EQUAL(write_bytes(&f, pair[0], f.memory, f.mr, (void *)-8, small->rkey, 64),
	      IBV_WC_REM_ACCESS_ERR);
	connected_pair(&f, pair);
	EQUAL(ibv_dereg_mr(small), 0);
	EQUAL(write_bytes(&f, pair[0], f.memory, f.mr, f.memory, ~f.mr->rkey, 8),
	      IBV_WC_REM_ACCESS_ERR);
}

static void address_handles(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = PORT };
	struct ibv_ah *ah;
	struct fixture f;

	open_fixture(&f);
	attr.grh.dgid = f.gid;
	attr.grh.sgid_index = f.gid_index;
	CHECK((ah = ibv_create_ah(f.pd, &attr)) != NULL);
	EQUAL(ibv_destroy_ah(ah), 0);
	attr.port_num = 0;
	REFUSED(ibv_create_ah(f.pd, &attr), EINVAL);
	attr.port_num = PORT;
	attr.grh.sgid_index = 255;
	REFUSED_AS(ibv_create_ah(f.pd, &attr), EINVAL, ENODATA);
	attr.grh.sgid_index = f.gid_index;
	attr.is_global = 0;
	REFUSED(ibv_create_ah(f.pd, &attr), EINVAL);
	close_fixture(&f);
}

static void multicast(void)
{
	union ibv_gid group = { .raw = { [10] = 0xff, 0xff, 239, 1, 2, 3 } };
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = 1 };
	struct ibv_qp *rc, *ud;
	struct fixture f;

	open_fixture(&f);
	rc = create_qp(&f, IBV_QPT_RC);
	ud = create_qp(&f, IBV_QPT_UD);
	EQUAL(ibv_modify_qp(ud, &init,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
	      0);
	RETURNS(ibv_attach_mcast(rc, &group, 0), EINVAL);
	RETURNS(ibv_attach_mcast(ud, &f.gid, 0), EINVAL);
	EQUAL(ibv_attach_mcast(ud, &group, 0), 0);
	EQUAL(ibv_attach_mcast(ud, &group, 0), 0);
	RETURNS(ibv_destroy_qp(ud), EBUSY);
	/* It is attached once, however often it was attached. */
	EQUAL(ibv_detach_mcast(ud, &group, 0), 0);
	RETURNS(ibv_detach_mcast(ud, &group, 0), EINVAL);
	EQUAL(ibv_destroy_qp(rc), 0);
	EQUAL(ibv_destroy_qp(ud), 0);
	close_fixture(&f);
}

/* NULL in place of an object or a variable. (Functions that the headers define dereference it themselves.) */
static void null_pointers(void)
{
	struct ibv_ah_attr ah;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct ibv_wc wc = { 0 };
	struct fixture f;
	struct ibv_qp *qp;
	void *context;

	open_fixture(&f);
	qp = create_qp(&f, IBV_QPT_UD);
	REFUSED(ibv_open_device(NULL), EINVAL);
	RETURNS(ibv_close_device(NULL), EINVAL);
	REFUSED(ibv_alloc_pd(NULL), EINVAL);
	RETURNS(ibv_dealloc_pd(NULL), EINVAL);
	REFUSED(ibv_create_comp_channel(NULL), EINVAL);
	RETURNS(ibv_destroy_comp_channel(NULL), EINVAL);
	REFUSED(ibv_create_cq(NULL, 4, NULL, NULL, 0), EINVAL);
	RETURNS(ibv_resize_cq(NULL, 4), EINVAL);
	RETURNS(ibv_destroy_cq(NULL), EINVAL);
	REFUSED(ibv_create_srq(f.pd, NULL), EINVAL);
	RETURNS(ibv_query_srq(NULL, NULL), EINVAL);
	RETURNS(ibv_destroy_srq(NULL), EINVAL);
	REFUSED(ibv_create_qp(f.pd, NULL), EINVAL);
	REFUSED(ibv_create_qp(NULL, &init), EINVAL);
	RETURNS(ibv_modify_qp(qp, NULL, IBV_QP_STATE), EINVAL);
	RETURNS(ibv_modify_qp(NULL, &attr, IBV_QP_STATE), EINVAL);
	RETURNS(ibv_query_qp(qp, NULL, 0, &init), EINVAL);
	RETURNS(ibv_query_qp(qp, &attr, 0, NULL), EINVAL);
	RETURNS(ibv_destroy_qp(NULL), EINVAL);
	RETURNS(ibv_attach_mcast(qp, NULL, 0), EINVAL);
	REFUSED(ibv_create_ah(f.pd, NULL), EINVAL);
	RETURNS(ibv_destroy_ah(NULL), EINVAL);
	SETS(ibv_init_ah_from_wc(f.device, PORT, &wc, NULL, &ah), EINVAL);
	SETS(ibv_init_ah_from_wc(f.device, PORT, NULL, NULL, &ah), EINVAL);
	RETURNS(ibv_query_device(f.device, NULL), EINVAL);
	SETS(ibv_query_gid(f.device, PORT, 0, NULL), EINVAL);
	SETS(ibv_query_pkey(f.device, PORT, 0, NULL), EINVAL);
	RETURNS(ibv_dereg_mr(NULL), EINVAL);
	EQUAL(ibv_rereg_mr(NULL, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0),
	      IBV_REREG_MR_ERR_INPUT);
	SETS(ibv_get_async_event(f.device, NULL), EINVAL);
	SETS(ibv_get_cq_event(f.channel, NULL, &context), EINVAL);
	SETS(ibv_get_cq_event(NULL, NULL, NULL), EINVAL);
	EQUAL(ibv_poll_cq(f.cq, 1, NULL), -1);
	EQUAL(ibv_poll_cq(f.cq, -1, &wc), 0);
	EQUAL(ibv_post_send(qp, NULL, NULL), 0);
	EQUAL(ibv_post_recv(qp, NULL, NULL), 0);
	CHECK(ibv_get_device_name(NULL) == NULL);
	ibv_free_device_list(NULL);
	ibv_ack_async_event(NULL);
	ibv_ack_cq_events(NULL, 1);
	EQUAL(ibv_destroy_qp(qp), 0);
	close_fixture(&f);
}

/* Features that a software device cannot have. */
static void unsupported(void)
{
	struct ibv_counters_init_attr counters = { 0 };
	struct ibv_rwq_ind_table_init_attr table = { 0 };
	struct ibv_flow_attr flow = { .size = sizeof(flow), .port = PORT };
	struct ibv_wq_init_attr wq = { .max_wr = 1, .max_sge = 1 };
	struct ibv_qp *qp;
	struct fixture f;

	open_fixture(&f);
	qp = create_qp(&f, IBV_QPT_UD);
	REFUSED(ibv_create_counters(f.device, &counters), EOPNOTSUPP);
	REFUSED(ibv_create_rwq_ind_table(f.device, &table), EOPNOTSUPP);
	REFUSED(ibv_create_flow(qp, &flow), EOPNOTSUPP);
	wq.pd = f.pd;
	wq.cq = f.cq;
	REFUSED(ibv_create_wq(f.device, &wq), EOPNOTSUPP);
	REFUSED(ibv_reg_dmabuf_mr(f.pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE), EOPNOTSUPP);
	EQUAL(ibv_destroy_qp(qp), 0);
	close_fixture(&f);
}

/* Device memory lives as long as a region of it, whichever handle is freed first. */
static void device_memory_of_an_import(void)
{
	struct ibv_alloc_dm_attr attr = { .length = 4096 };
	struct ibv_device_attr_ex limits;
	struct ibv_context *import;
	struct ibv_dm *dm, *other;
	struct fixture f;
	struct ibv_mr *mr;
	int copy;

	open_fixture(&f);
	EQUAL(ibv_query_device_ex(f.device, NULL, &limits), 0);
	CHECK((copy = dup(f.device->cmd_fd)) >= 0);
	CHECK((import = ibv_import_device(copy)) != NULL);
	CHECK((dm = ibv_alloc_dm(f.device, &attr)) != NULL);
	CHECK((other = ibv_import_dm(import, dm->handle)) != NULL);
	EQUAL(ibv_free_dm(dm), 0);
	CHECK((mr = ibv_reg_dm_mr(f.pd, other, 0, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED)) != NULL);
	EQUAL(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, f.memory, 64, 0), IBV_REREG_MR_ERR_INPUT);
	EQUAL(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE),
	      IBV_REREG_MR_ERR_INPUT);
	ibv_unimport_dm(other);
	/* The context has not regained it. */
	attr.length = limits.max_dm_size;
	REFUSED(ibv_alloc_dm(f.device, &attr), ENOMEM);
	EQUAL(ibv_dereg_mr(mr), 0);
	CHECK((dm = ibv_alloc_dm(f.device, &attr)) != NULL);
	EQUAL(ibv_free_dm(dm), 0);
	EQUAL(ibv_close_device(import), 0);
	close_fixture(&f);
}

static void imports(void)
{
	struct ibv_parent_domain_init_attr parent = { 0 };
	struct ibv_context *import;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct fixture f;
	int copy, null;

	open_fixture(&f);
	CHECK((null = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0);
	CHECK(ibv_import_device(-1) == NULL);
	CHECK(ibv_import_device(null) == NULL);
	CHECK((copy = dup(f.device->cmd_fd)) >= 0);
	CHECK((import = ibv_import_device(copy)) != NULL);
	CHECK(ibv_import_pd(import, f.pd->handle + 1000) == NULL);
	CHECK((pd = ibv_import_pd(import, f.pd->handle)) != NULL);
	EQUAL(pd->handle, f.pd->handle);
	/* Only the process that registered a region can change it, not one that imports it. */
	CHECK((mr = ibv_import_mr(pd, f.mr->handle)) != NULL);
	EQUAL(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, f.memory, 64, 0),
	      IBV_REREG_MR_ERR_INPUT);
	EQUAL(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, f.pd, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	ibv_unimport_mr(mr);
	ibv_unimport_pd(pd);
	/* A parent domain that is destroyed leaves the domain that it was created from. */
	parent.pd = f.pd;
	CHECK((pd = ibv_alloc_parent_domain(f.device, &parent)) != NULL);
	EQUAL(ibv_dealloc_pd(pd), 0);
	CHECK((pd = ibv_import_pd(import, f.pd->handle)) != NULL);
	ibv_unimport_pd(pd);
	EQUAL(ibv_close_device(import), 0);
	close(null);
	close_fixture(&f);
}

/* An import belongs to the device of its descriptor. */
static void imports_of_every_device(void)
{
	struct ibv_context *device, *import;
	struct ibv_device **list;
	int count;

	EQUAL(setenv("RDMUX_DEVICE", "all", 1), 0);
	CHECK((list = ibv_get_device_list(&count)) != NULL);
	CHECK(count >= 2);
	for (int i = 0; i < count; i++) {
		CHECK((device = ibv_open_device(list[i])) != NULL);
		CHECK((import = ibv_import_device(dup(device->cmd_fd))) != NULL);
		CHECK(import->device == list[i]);
		EQUAL(ibv_close_device(import), 0);
		EQUAL(ibv_close_device(device), 0);
	}
	ibv_free_device_list(list);
}

static void names(void)
{
	for (int i = -2; i < 300; i++) {
		CHECK(ibv_wc_status_str(i) != NULL);
		CHECK(ibv_event_type_str(i) != NULL);
		CHECK(ibv_node_type_str(i) != NULL);
		CHECK(ibv_port_state_str(i) != NULL);
	}
	EQUAL(strcmp(ibv_wc_status_str(IBV_WC_SUCCESS), "success"), 0);
	EQUAL(strcmp(ibv_node_type_str(IBV_NODE_CA), "InfiniBand channel adapter"), 0);
	EQUAL(strcmp(ibv_port_state_str(IBV_PORT_ACTIVE), "active"), 0);
}

static void rates(void)
{
	EQUAL(ibv_rate_to_mult(IBV_RATE_10_GBPS), 4);
	EQUAL(mult_to_ibv_rate(4), IBV_RATE_10_GBPS);
	EQUAL(ibv_rate_to_mbps(IBV_RATE_100_GBPS), 103125);
	EQUAL(mbps_to_ibv_rate(103125), IBV_RATE_100_GBPS);
	EQUAL(ibv_rate_to_mult(99), -1);
	EQUAL(ibv_rate_to_mbps(99), -1);
	EQUAL(mult_to_ibv_rate(7), IBV_RATE_MAX);
	EQUAL(mbps_to_ibv_rate(7), IBV_RATE_MAX);
}

/* Events that are acknowledged late, or several at a time. */
static void acknowledgements(void)
{
	struct ibv_qp *pair[2];
	struct ibv_cq *cq;
	struct fixture f;
	void *context;

	open_fixture(&f);
	connected_pair(&f, pair);
	for (int i = 0; i < 3; i++) {
		EQUAL(ibv_req_notify_cq(f.cq, 0), 0);
		EQUAL(write_bytes(&f, pair[0], f.memory, f.mr, f.memory + 64, f.mr->rkey, 8),
		      IBV_WC_SUCCESS);
		EQUAL(ibv_get_cq_event(f.channel, &cq, &context), 0);
	}
	ibv_ack_cq_events(f.cq, 0);
	ibv_ack_cq_events(f.cq, 3);
	for (int i = 0; i < 2; i++)
		EQUAL(ibv_destroy_qp(pair[i]), 0);
	close_fixture(&f);
}

static const struct test tests[] = {
	TEST(list_of_devices),
	TEST(ports_and_tables),
	TEST(table_of_addresses),
	TEST(extended_device_query),
	TEST(completion_queues),
	TEST(memory_regions),
	TEST(what_is_in_use_stays),
	TEST(shared_receive_queues),
	TEST(queue_pairs),
	TEST(states),
	TEST(sends),
	TEST(a_full_send_queue),
	TEST(receives),
	TEST(keys_and_bounds),
	TEST(address_handles),
	TEST(multicast),
	TEST(null_pointers),
	TEST(unsupported),
	TEST(device_memory_of_an_import),
	TEST(imports),
	TEST(imports_of_every_device),
	TEST(names),
	TEST(rates),
	TEST(acknowledgements),
};

CHECK_MAIN(tests)
