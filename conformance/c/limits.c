/* The limits of ibv_query_device(3) are the actual ones: that many objects can be created, the next one is
 * ENOMEM, and after one is destroyed another can be created. The device is that of $RDMUX_SMALL_HOST, whose limits are small. */
#include "fixture.h"

#include <stdlib.h>

enum { MOST = 64 };

/* The device, and the objects that others need. */
struct small {
	struct ibv_context *device;
	struct ibv_device_attr attr;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	union ibv_gid gid;
	uint8_t memory[64];
};

static void open_small(struct small *s)
{
	const char *host = getenv("RDMUX_SMALL_HOST");

	CHECK(host != NULL);
	EQUAL(setenv("RDMUX_HOST", host, 1), 0);
	s->device = open_device();
	EQUAL(ibv_query_device(s->device, &s->attr), 0);
	CHECK((s->pd = ibv_alloc_pd(s->device)) != NULL);
	CHECK((s->cq = ibv_create_cq(s->device, 4, NULL, NULL, 0)) != NULL);
	EQUAL(ibv_query_gid(s->device, PORT, 0, &s->gid), 0);
}

static void *make_pd(struct small *s)
{
	return ibv_alloc_pd(s->device);
}

static int free_pd(void *pd)
{
	return ibv_dealloc_pd(pd);
}

static void *make_cq(struct small *s)
{
	return ibv_create_cq(s->device, 4, NULL, NULL, 0);
}

static int free_cq(void *cq)
{
	return ibv_destroy_cq(cq);
}

static struct ibv_qp *qp_of_type(struct small *s, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = {
		.send_cq = s->cq,
		.recv_cq = s->cq,
		.qp_type = type,
		.cap = { 1, 1, 1, 1, 0 },
	};

	return ibv_create_qp(s->pd, &init);
}

static void *make_qp(struct small *s)
{
	return qp_of_type(s, IBV_QPT_RC);
}

static int free_qp(void *qp)
{
	return ibv_destroy_qp(qp);
}

static void *make_srq(struct small *s)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };

	return ibv_create_srq(s->pd, &init);
}

static int free_srq(void *srq)
{
	return ibv_destroy_srq(srq);
}

static void *make_mr(struct small *s)
{
	return ibv_reg_mr(s->pd, s->memory, sizeof(s->memory), 0);
}

static int free_mr(void *mr)
{
	return ibv_dereg_mr(mr);
}

static void *make_mw(struct small *s)
{
	return ibv_alloc_mw(s->pd, IBV_MW_TYPE_1);
}

static int free_mw(void *mw)
{
	return ibv_dealloc_mw(mw);
}

static void *make_ah(struct small *s)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = PORT };

	attr.grh.dgid = s->gid;
	return ibv_create_ah(s->pd, &attr);
}

static int free_ah(void *ah)
{
	return ibv_destroy_ah(ah);
}

static void exhaust(int limit, int used, void *(*make)(struct small *), int (*free_it)(void *),
		    struct small *s)
{
	void *objects[MOST];
	int n = limit - used;

	CHECK(n > 0 && n <= MOST);
	for (int i = 0; i < n; i++)
		CHECK((objects[i] = make(s)) != NULL);
	for (int round = 0; round < 3; round++) {
		int gone = round % n;

		REFUSED(make(s), ENOMEM);
		EQUAL(free_it(objects[gone]), 0);
		CHECK((objects[gone] = make(s)) != NULL);
	}
	for (int i = 0; i < n; i++)
		EQUAL(free_it(objects[i]), 0);
}

static void objects_of_each_kind_run_out_at_the_limit(void)
{
	static struct small s;

	open_small(&s);
	exhaust(s.attr.max_pd, 1, make_pd, free_pd, &s);
	exhaust(s.attr.max_cq, 1, make_cq, free_cq, &s);
	exhaust(s.attr.max_qp, 0, make_qp, free_qp, &s);
	exhaust(s.attr.max_srq, 0, make_srq, free_srq, &s);
	exhaust(s.attr.max_mr, 0, make_mr, free_mr, &s);
	exhaust(s.attr.max_mw, 0, make_mw, free_mw, &s);
	exhaust(s.attr.max_ah, 0, make_ah, free_ah, &s);
	EQUAL(ibv_destroy_cq(s.cq), 0);
	EQUAL(ibv_dealloc_pd(s.pd), 0);
	EQUAL(ibv_close_device(s.device), 0);
}

static void sizes_above_the_limit_are_refused(void)
{
	static struct small s;

	open_small(&s);
	for (int over = 0; over <= 1; over++) {
		struct ibv_qp_cap caps[] = {
			{ s.attr.max_qp_wr + over, 1, 1, 1, 0 },
			{ 1, s.attr.max_qp_wr + over, 1, 1, 0 },
			{ 1, 1, s.attr.max_sge + over, 1, 0 },
			{ 1, 1, 1, s.attr.max_sge + over, 0 },
		};
		struct ibv_srq_init_attr srqs[] = {
			{ .attr = { .max_wr = s.attr.max_srq_wr + over, .max_sge = 1 } },
			{ .attr = { .max_wr = 1, .max_sge = s.attr.max_srq_sge + over } },
		};

		for (size_t i = 0; i < sizeof(caps) / sizeof(*caps); i++) {
			struct ibv_qp_init_attr init = {
				.send_cq = s.cq,
				.recv_cq = s.cq,
				.qp_type = IBV_QPT_RC,
				.cap = caps[i],
			};
			if (over)
				REFUSED(ibv_create_qp(s.pd, &init), EINVAL);
			else
				EQUAL(ibv_destroy_qp(ibv_create_qp(s.pd, &init)), 0);
		}
		for (size_t i = 0; i < sizeof(srqs) / sizeof(*srqs); i++) {
			if (over)
				REFUSED(ibv_create_srq(s.pd, &srqs[i]), EINVAL);
			else
				EQUAL(ibv_destroy_srq(ibv_create_srq(s.pd, &srqs[i])), 0);
		}
		if (over)
			REFUSED(ibv_create_cq(s.device, s.attr.max_cqe + 1, NULL, NULL, 0), EINVAL);
		else
			EQUAL(ibv_destroy_cq(ibv_create_cq(s.device, s.attr.max_cqe, NULL, NULL, 0)),
			      0);
	}
}

static void reads_and_atomics_above_the_limit_are_refused(void)
{
	static struct small s;

	open_small(&s);
	for (int over = 0; over <= 1; over++) {
		struct ibv_qp_attr attr = {
			.qp_state = IBV_QPS_INIT,
			.port_num = PORT,
			.path_mtu = IBV_MTU_1024,
			.min_rnr_timer = 12,
			.max_dest_rd_atomic = s.attr.max_qp_rd_atom + over,
			.ah_attr = { .is_global = 1, .port_num = PORT },
		};
		struct ibv_qp *qp = make_qp(&s);
		int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

		CHECK(qp != NULL);
		attr.ah_attr.grh.dgid = s.gid;
		attr.dest_qp_num = qp->qp_num;
		EQUAL(ibv_modify_qp(qp, &attr,
				    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					    IBV_QP_ACCESS_FLAGS),
		      0);
		attr.qp_state = IBV_QPS_RTR;
		RETURNS(ibv_modify_qp(qp, &attr, mask), over ? EINVAL : 0);
		EQUAL(ibv_destroy_qp(qp), 0);
	}
}

static void groups_and_their_members_run_out_at_the_limit(void)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = 1 };
	union ibv_gid group[3];
	struct ibv_qp *qp[3];
	static struct small s;

	open_small(&s);
	EQUAL(s.attr.max_mcast_grp, 2);
	EQUAL(s.attr.max_mcast_qp_attach, 2);
	EQUAL(s.attr.max_total_mcast_qp_attach, 4);
	for (int i = 0; i < 3; i++) {
		group[i] = (union ibv_gid){ .raw = { [10] = 0xff, 0xff, 239, 79, 2, i + 1 } };
		CHECK((qp[i] = qp_of_type(&s, IBV_QPT_UD)) != NULL);
		EQUAL(ibv_modify_qp(qp[i], &init,
				    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
		      0);
	}
	EQUAL(ibv_attach_mcast(qp[0], &group[0], 0), 0);
	EQUAL(ibv_attach_mcast(qp[1], &group[0], 0), 0);
	RETURNS(ibv_attach_mcast(qp[2], &group[0], 0), ENOMEM);
	EQUAL(ibv_attach_mcast(qp[0], &group[1], 0), 0);
	RETURNS(ibv_attach_mcast(qp[0], &group[2], 0), ENOMEM);
	EQUAL(ibv_detach_mcast(qp[1], &group[0], 0), 0);
	EQUAL(ibv_attach_mcast(qp[2], &group[0], 0), 0);
	EQUAL(ibv_detach_mcast(qp[0], &group[1], 0), 0);
	EQUAL(ibv_attach_mcast(qp[0], &group[2], 0), 0);
}

static void *make_xrc_target(struct small *s)
{
	static struct ibv_xrcd *domain;
	struct ibv_xrcd_init_attr xrcd = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = 0100, /* O_CREAT */
	};
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_RECV,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD,
	};

	if (domain == NULL)
		CHECK((domain = ibv_open_xrcd(s->device, &xrcd)) != NULL);
	init.xrcd = domain;
	return ibv_create_qp_ex(s->device, &init);
}

static void xrc_receive_queue_pairs_run_out_at_the_limit(void)
{
	static struct small s;

	open_small(&s);
	exhaust(s.attr.max_qp, 0, make_xrc_target, free_qp, &s);
}

static void device_memory_runs_out_at_the_limit(void)
{
	struct ibv_device_attr_ex attr;
	struct ibv_alloc_dm_attr half;
	struct ibv_dm *dm[2];
	static struct small s;

	open_small(&s);
	EQUAL(ibv_query_device_ex(s.device, NULL, &attr), 0);
	half = (struct ibv_alloc_dm_attr){ .length = attr.max_dm_size / 2 };
	for (int i = 0; i < 2; i++)
		CHECK((dm[i] = ibv_alloc_dm(s.device, &half)) != NULL);
	half.length = 64;
	REFUSED(ibv_alloc_dm(s.device, &half), ENOMEM);
	EQUAL(ibv_free_dm(dm[0]), 0);
	CHECK(ibv_alloc_dm(s.device, &half) != NULL);
}

static const struct test tests[] = {
	TEST(objects_of_each_kind_run_out_at_the_limit),
	TEST(sizes_above_the_limit_are_refused),
	TEST(reads_and_atomics_above_the_limit_are_refused),
	TEST(groups_and_their_members_run_out_at_the_limit),
	TEST(xrc_receive_queue_pairs_run_out_at_the_limit),
	TEST(device_memory_runs_out_at_the_limit),
};

CHECK_MAIN(tests)
