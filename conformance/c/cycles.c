/* Leak test: everything that is created is destroyed, ten thousand times. Afterwards the process has as many descriptors and
 * as much memory as before. The caller of this program checks the host for leaks. */
#define _GNU_SOURCE
#include "fixture.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <string.h>
#include <unistd.h>

enum {
	CYCLES = 10000,
	WARM_UP = 1000,	       /* until tables have the size that they keep */
	ROUNDS = 3,
	MOST_GROWTH = 512 << 10, /* bytes: 52 a cycle */
};

static int descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int n = 0;

	CHECK(folder != NULL);
	while (readdir(folder))
		n++;
	closedir(folder);
	return n;
}

/* Returns the number of bytes of resident memory. */
static long memory(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	long pages = 0;

	CHECK(file && fscanf(file, "%*s %ld", &pages) == 1);
	fclose(file);
	return pages * sysconf(_SC_PAGESIZE);
}

static void repeat(struct fixture *f, void (*once)(struct fixture *), int cycles)
{
	int fds, more;
	long growth = 0;

	for (int i = 0; i < cycles / (CYCLES / WARM_UP); i++)
		once(f);
	fds = descriptors();
	/* A leak grows every time; memory that the allocator keeps after a moment with more threads does not. */
	for (int round = 0; round == 0 || (growth > MOST_GROWTH && round < ROUNDS); round++) {
		long before = memory();

		for (int i = 0; i < cycles; i++)
			once(f);
		growth = memory() - before;
	}
	if (growth > MOST_GROWTH)
		FAIL("%ld bytes more after %d cycles", growth, cycles);
	/* The host closes its end when it learns of it. */
	for (int i = 0; (more = descriptors() - fds) > 0 && i < 2000; i++)
		usleep(10000);
	if (more > 0)
		FAIL("%d descriptors more after %d cycles", more, cycles);
}

static void ten_thousand(void (*once)(struct fixture *))
{
	struct fixture f;

	open_fixture(&f);
	repeat(&f, once, CYCLES);
	close_fixture(&f);
}

static void one_domain(struct fixture *f)
{
	struct ibv_parent_domain_init_attr attr = { 0 };
	struct ibv_td_init_attr td = { 0 };

	CHECK((attr.pd = ibv_alloc_pd(f->device)) != NULL);
	CHECK((attr.td = ibv_alloc_td(f->device, &td)) != NULL);
	struct ibv_pd *parent = ibv_alloc_parent_domain(f->device, &attr);

	CHECK(parent != NULL);
	EQUAL(ibv_dealloc_pd(parent), 0);
	EQUAL(ibv_dealloc_td(attr.td), 0);
	EQUAL(ibv_dealloc_pd(attr.pd), 0);
}

static void domains(void)
{
	ten_thousand(one_domain);
}

static void one_region(struct fixture *f)
{
	struct ibv_alloc_dm_attr attr = { .length = 4096 };
	struct ibv_mr *mr, *null, *of_dm;
	struct ibv_dm *dm;
	struct ibv_mw *mw;

	CHECK((mr = ibv_reg_mr(f->pd, f->memory, BUFFER, ALL_RIGHTS)) != NULL);
	CHECK((null = ibv_alloc_null_mr(f->pd)) != NULL);
	CHECK((dm = ibv_alloc_dm(f->device, &attr)) != NULL);
	CHECK((of_dm = ibv_reg_dm_mr(f->pd, dm, 0, 4096, IBV_ACCESS_ZERO_BASED)) != NULL);
	CHECK((mw = ibv_alloc_mw(f->pd, IBV_MW_TYPE_2)) != NULL);
	EQUAL(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, f->memory, 4096, 0), 0);
	EQUAL(ibv_dealloc_mw(mw), 0);
	EQUAL(ibv_dereg_mr(of_dm), 0);
	EQUAL(ibv_free_dm(dm), 0);
	EQUAL(ibv_dereg_mr(null), 0);
	EQUAL(ibv_dereg_mr(mr), 0);
}

static void regions(void)
{
	ten_thousand(one_region);
}

static void one_completion_queue(struct fixture *f)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 100, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_comp_channel *channel;
	struct ibv_cq_ex *ex;
	struct ibv_cq *cq;

	CHECK((channel = ibv_create_comp_channel(f->device)) != NULL);
	CHECK((cq = ibv_create_cq(f->device, 100, NULL, channel, 0)) != NULL);
	CHECK((ex = ibv_create_cq_ex(f->device, &attr)) != NULL);
	EQUAL(ibv_req_notify_cq(cq, 0), 0);
	EQUAL(ibv_resize_cq(cq, 200), 0);
	EQUAL(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), 0);
	EQUAL(ibv_destroy_cq(cq), 0);
	EQUAL(ibv_destroy_comp_channel(channel), 0);
}

static void completion_queues(void)
{
	ten_thousand(one_completion_queue);
}

static void one_queue_pair(struct fixture *f)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_send_sge = 2, .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *plain, *datagrams, *ex;

	CHECK((attr.srq = ibv_create_srq(f->pd, &init)) != NULL);
	attr.pd = f->pd;
	attr.send_cq = attr.recv_cq = f->cq;
	CHECK((ex = ibv_create_qp_ex(f->device, &attr)) != NULL);
	plain = create_qp(f, IBV_QPT_RC);
	to_init(plain);
	post_receive(plain, f->memory, 64, f->mr);
	datagrams = create_qp(f, IBV_QPT_UD);
	EQUAL(ibv_destroy_qp(plain), 0);
	EQUAL(ibv_destroy_qp(datagrams), 0);
	EQUAL(ibv_destroy_qp(ex), 0);
	EQUAL(ibv_destroy_srq(attr.srq), 0);
}

static void queue_pairs(void)
{
	ten_thousand(one_queue_pair);
}

/* Connected, used, and destroyed with outstanding work. */
static void one_connection(struct fixture *f)
{
	struct ibv_qp *pair[2];
	struct ibv_wc wc;

	connected_pair(f, pair);
	exchange(f, pair);
	post_receive(pair[1], f->memory, 64, f->mr);
	post(pair[0], request(IBV_WR_RDMA_READ, f->memory, 4096, f->mr, f->memory, f->mr->rkey));
	EQUAL(ibv_destroy_qp(pair[0]), 0);
	EQUAL(ibv_destroy_qp(pair[1]), 0);
	/* It may have completed before. */
	while (ibv_poll_cq(f->cq, 1, &wc) > 0)
		;
}

static void connections(void)
{
	ten_thousand(one_connection);
}

static void one_address(struct fixture *f)
{
	struct ibv_ah_attr attr = {
		.is_global = 1,
		.port_num = PORT,
		.grh = { .dgid = f->gid, .sgid_index = f->gid_index },
	};
	struct ibv_ah *ah;

	CHECK((ah = ibv_create_ah(f->pd, &attr)) != NULL);
	EQUAL(ibv_destroy_ah(ah), 0);
}

static void addresses(void)
{
	ten_thousand(one_address);
}

static void one_group(struct fixture *f)
{
	union ibv_gid group = { .raw = { [10] = 0xff, 0xff, 239, 1, 2, 3 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = 1 };
	struct ibv_qp *qp = create_qp(f, IBV_QPT_UD);

	EQUAL(ibv_modify_qp(qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
	      0);
	EQUAL(ibv_attach_mcast(qp, &group, 0), 0);
	EQUAL(ibv_detach_mcast(qp, &group, 0), 0);
	EQUAL(ibv_destroy_qp(qp), 0);
}

static void groups(void)
{
	ten_thousand(one_group);
}

static void one_import(struct fixture *f)
{
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;

	CHECK((context = ibv_import_device(dup(f->device->cmd_fd))) != NULL);
	CHECK((pd = ibv_import_pd(context, f->pd->handle)) != NULL);
	CHECK((mr = ibv_import_mr(pd, f->mr->handle)) != NULL);
	ibv_unimport_mr(mr);
	ibv_unimport_pd(pd);
	EQUAL(ibv_close_device(context), 0);
}

static void imports(void)
{
	ten_thousand(one_import);
}

/* An import may be destroyed after its object, and destroys no later region that has the same key. */
static void late_imports(void)
{
	enum { REGISTRATIONS = 256 }; /* until a key is reused */
	struct ibv_context *context;
	struct ibv_qp *pair[2];
	struct ibv_mr *mr, *import;
	struct fixture f;
	struct ibv_pd *pd;
	uint32_t lkey;

	open_fixture(&f);
	connected_pair(&f, pair);
	CHECK((context = ibv_import_device(dup(f.device->cmd_fd))) != NULL);
	CHECK((pd = ibv_import_pd(context, f.pd->handle)) != NULL);
	CHECK((mr = ibv_reg_mr(f.pd, f.memory, BUFFER, ALL_RIGHTS)) != NULL);
	lkey = mr->lkey;
	CHECK((import = ibv_import_mr(pd, mr->handle)) != NULL);
	for (int i = 0; i < REGISTRATIONS; i++) {
		EQUAL(ibv_dereg_mr(mr), 0);
		CHECK((mr = ibv_reg_mr(f.pd, f.memory, BUFFER, ALL_RIGHTS)) != NULL);
	}
	EQUAL(mr->lkey, lkey);
	ibv_unimport_mr(import);
	EQUAL(write_bytes(&f, pair[0], f.memory, mr, f.memory, mr->rkey, 64), IBV_WC_SUCCESS);
	EQUAL(ibv_dereg_mr(mr), 0);
	ibv_unimport_pd(pd);
	EQUAL(ibv_close_device(context), 0);
	EQUAL(ibv_destroy_qp(pair[0]), 0);
	EQUAL(ibv_destroy_qp(pair[1]), 0);
	close_fixture(&f);
}

static void one_id(struct fixture *f)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener, *id, *synchronous;
	struct rdma_cm_event *event;

	memcpy(&address.sin_addr, f->gid.raw + 12, 4);
	CHECK((events = rdma_create_event_channel()) != NULL);
	EQUAL(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_bind_addr(listener, (struct sockaddr *)&address), 0);
	EQUAL(rdma_listen(listener, 1), 0);
	address.sin_port = htons(9);
	EQUAL(rdma_create_id(events, &id, NULL, RDMA_PS_UDP), 0);
	EQUAL(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000), 0);
	EQUAL(rdma_get_cm_event(events, &event), 0);
	EQUAL(rdma_ack_cm_event(event), 0);
	/* Its event is left unread. */
	EQUAL(rdma_resolve_route(id, 2000), 0);
	EQUAL(rdma_create_id(NULL, &synchronous, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_destroy_id(synchronous), 0);
	EQUAL(rdma_destroy_id(id), 0);
	EQUAL(rdma_destroy_id(listener), 0);
	rdma_destroy_event_channel(events);
}

static void ids(void)
{
	ten_thousand(one_id);
}

static void one_endpoint(struct fixture *f)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = RAI_NUMERICHOST };
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct rdma_addrinfo *found;
	struct rdma_cm_id *id;
	char name[INET_ADDRSTRLEN];

	inet_ntop(AF_INET, f->gid.raw + 12, name, sizeof(name));
	EQUAL(rdma_getaddrinfo(name, "9", &hints, &found), 0);
	EQUAL(rdma_create_ep(&id, found, NULL, &attr), 0);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(found);
}

static void endpoints(void)
{
	ten_thousand(one_endpoint);
}

/* The receiving end of XRC, with queues of its process and others. */
static void one_receiver(struct fixture *f)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct rdma_addrinfo info = {
		.ai_flags = RAI_PASSIVE,
		.ai_family = AF_INET,
		.ai_port_space = RDMA_PS_IB,
		.ai_qp_type = IBV_QPT_XRC_RECV,
		.ai_src_addr = (struct sockaddr *)&address,
		.ai_src_len = sizeof(address),
	};
	struct ibv_srq_init_attr of_queue = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_XRC_RECV };
	struct rdma_cm_id *id;

	memcpy(&address.sin_addr, f->gid.raw + 12, 4);
	EQUAL(rdma_create_ep(&id, &info, NULL, NULL), 0);
	EQUAL(rdma_create_qp(id, NULL, &attr), 0);
	EQUAL(rdma_create_srq(id, NULL, &of_queue), 0);
	rdma_destroy_ep(id);
}

static void receivers(void)
{
	ten_thousand(one_receiver);
}

static void one_device(struct fixture *unused)
{
	struct fixture f;

	(void)unused;
	open_fixture(&f);
	close_fixture(&f);
}

static void devices(void)
{
	repeat(NULL, one_device, CYCLES);
}

static const struct test tests[] = {
	TEST(domains),	   TEST(regions), TEST(completion_queues), TEST(queue_pairs),
	TEST(connections), TEST(groups),  TEST(addresses),	   TEST(imports),
	TEST(late_imports), TEST(ids),	  TEST(endpoints),	   TEST(receivers),
	TEST(devices),
};

CHECK_MAIN(tests)
