/* Impossible sizes, and processes that have reached their resource limits: an error, never the end of the program. */
#define _GNU_SOURCE
#include "fixture.h"

#include <fcntl.h>
#include <limits.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Checks that a request for too much is refused. */
#define TOO_MUCH(call)                                                                         \
	do {                                                                                   \
		CHECK((call) == NULL);                                                         \
		if (errno != EINVAL && errno != ENOMEM && errno != EOPNOTSUPP)                 \
			FAIL("%s sets errno %d", #call, errno);                                \
	} while (0)

/* Numbers that overflow in some calculation. */
static const uint32_t numbers[] = {
	UINT_MAX, UINT_MAX - 1, 1u << 31, (1u << 31) + 1, INT_MAX, 1u << 30, 1u << 28, 1u << 24,
};
#define NUMBERS (sizeof(numbers) / sizeof(*numbers))

static void completion_queues(void)
{
	struct fixture f;

	open_fixture(&f);
	for (size_t i = 0; i < NUMBERS; i++) {
		struct ibv_cq_init_attr_ex ex = { .cqe = numbers[i] };

		TOO_MUCH(ibv_create_cq(f.device, numbers[i], NULL, NULL, 0));
		TOO_MUCH(ibv_create_cq(f.device, 4, NULL, NULL, numbers[i]));
		TOO_MUCH(ibv_create_cq_ex(f.device, &ex));
		ex = (struct ibv_cq_init_attr_ex){ .cqe = 4, .comp_vector = numbers[i] };
		TOO_MUCH(ibv_create_cq_ex(f.device, &ex));
		CHECK(ibv_resize_cq(f.cq, numbers[i]) != 0);
	}
	close_fixture(&f);
}

static void queue_pairs(void)
{
	struct fixture f;

	open_fixture(&f);
	for (size_t i = 0; i < NUMBERS; i++) {
		for (int field = 0; field < 5; field++) {
			struct ibv_qp_init_attr attr = {
				.send_cq = f.cq,
				.recv_cq = f.cq,
				.qp_type = i & 1 ? IBV_QPT_RC : IBV_QPT_UD,
				.cap = { 1, 1, 1, 1, 0 },
			};
			uint32_t *fields[] = { &attr.cap.max_send_wr, &attr.cap.max_recv_wr,
					       &attr.cap.max_send_sge, &attr.cap.max_recv_sge,
					       &attr.cap.max_inline_data };

			*fields[field] = numbers[i];
			TOO_MUCH(ibv_create_qp(f.pd, &attr));
		}
	}
	close_fixture(&f);
}

static void shared_receive_queues(void)
{
	struct ibv_srq_init_attr good = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq;
	struct fixture f;

	open_fixture(&f);
	CHECK((srq = ibv_create_srq(f.pd, &good)) != NULL);
	for (size_t i = 0; i < NUMBERS; i++) {
		struct ibv_srq_init_attr wr = { .attr = { .max_wr = numbers[i], .max_sge = 1 } };
		struct ibv_srq_init_attr sge = { .attr = { .max_wr = 1, .max_sge = numbers[i] } };
		struct ibv_srq_attr attr = { .max_wr = numbers[i], .srq_limit = numbers[i] };

		TOO_MUCH(ibv_create_srq(f.pd, &wr));
		TOO_MUCH(ibv_create_srq(f.pd, &sge));
		CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) != 0);
		CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) != 0);
		CHECK(ibv_modify_srq(srq, &attr, numbers[i]) != 0);
	}
	EQUAL(ibv_destroy_srq(srq), 0);
	close_fixture(&f);
}

static void memory(void)
{
	struct ibv_alloc_dm_attr dm = { 0 };
	struct fixture f;

	open_fixture(&f);
	for (size_t i = 0; i < NUMBERS; i++) {
		size_t huge = (size_t)numbers[i] << 32 | numbers[i];

		CHECK(ibv_reg_mr(f.pd, f.memory, huge, IBV_ACCESS_LOCAL_WRITE) == NULL);
		CHECK(ibv_reg_mr(f.pd, (void *)huge, 4096, IBV_ACCESS_LOCAL_WRITE) == NULL);
		CHECK(ibv_reg_mr_iova(f.pd, f.memory, 4096, UINT64_MAX - 100, 0) == NULL);
		CHECK(ibv_rereg_mr(f.mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, f.memory, huge, 0) != 0);
		dm.length = huge;
		TOO_MUCH(ibv_alloc_dm(f.device, &dm));
		dm = (struct ibv_alloc_dm_attr){ .length = 64, .log_align_req = numbers[i] };
		TOO_MUCH(ibv_alloc_dm(f.device, &dm));
	}
	close_fixture(&f);
}

/* Lists that are longer than any queue pair accepts are not read to their claimed end. */
static void lists(void)
{
	struct ibv_sge sge = { 0 };
	struct ibv_send_wr send = { .sg_list = &sge, .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr recv = { .sg_list = &sge }, *bad_recv;
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_qp *pair[2];
	struct ibv_srq *srq;
	struct fixture f;

	open_fixture(&f);
	connected_pair(&f, pair);
	CHECK((srq = ibv_create_srq(f.pd, &init)) != NULL);
	for (size_t i = 0; i < NUMBERS; i++) {
		send.num_sge = recv.num_sge = numbers[i];
		for (int flags = 0; flags <= IBV_SEND_INLINE; flags += IBV_SEND_INLINE) {
			send.send_flags = flags;
			RETURNS(ibv_post_send(pair[0], &send, &bad_send), EINVAL);
		}
		RETURNS(ibv_post_recv(pair[0], &recv, &bad_recv), EINVAL);
		RETURNS(ibv_post_srq_recv(srq, &recv, &bad_recv), EINVAL);
	}
	send.num_sge = recv.num_sge = 1;
	send.sg_list = recv.sg_list = NULL;
	RETURNS(ibv_post_send(pair[0], &send, &bad_send), EINVAL);
	RETURNS(ibv_post_recv(pair[0], &recv, &bad_recv), EINVAL);
	/* A list that is long enough in bytes, but not inline. */
	sge.length = UINT_MAX;
	send.sg_list = &sge;
	send.send_flags = IBV_SEND_INLINE;
	RETURNS(ibv_post_send(pair[0], &send, &bad_send), EINVAL);
	exchange(&f, pair);
	EQUAL(ibv_destroy_srq(srq), 0);
}

/* The same by building. Errors are reported at the end. */
static void lists_by_building(void)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 1,
			 .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_data_buf buf = { 0 };
	struct ibv_sge sge = { 0 };
	struct ibv_qp_ex *ex;
	struct fixture f;
	struct ibv_qp *qp;

	open_fixture(&f);
	attr.pd = f.pd;
	attr.send_cq = attr.recv_cq = f.cq;
	CHECK((qp = ibv_create_qp_ex(f.device, &attr)) != NULL);
	to_rts(&f, qp, qp->qp_num);
	ex = ibv_qp_to_qp_ex(qp);
	buf.addr = f.memory;
	for (int way = 0; way < 7; way++) {
		ibv_wr_start(ex);
		ibv_wr_send(ex);
		switch (way) {
		case 0:
			ibv_wr_set_sge_list(ex, SIZE_MAX, &sge);
			break;
		case 1:
			ibv_wr_set_sge_list(ex, 3, &sge);
			break;
		case 2:
			ibv_wr_set_inline_data(ex, f.memory, SIZE_MAX);
			break;
		case 3:
			ibv_wr_set_inline_data(ex, f.memory, 1 << 20);
			break;
		case 4:
			ibv_wr_set_inline_data_list(ex, SIZE_MAX, &buf);
			break;
		case 5:
			buf.length = SIZE_MAX;
			ibv_wr_set_inline_data_list(ex, 1, &buf);
			break;
		case 6:
			/* Before any request is begun. */
			ibv_wr_abort(ex);
			ibv_wr_start(ex);
			ibv_wr_set_sge(ex, f.mr->lkey, (uintptr_t)f.memory, 8);
			break;
		}
		EQUAL(ibv_wr_complete(ex), EINVAL);
	}
	EQUAL(ibv_destroy_qp(qp), 0);
	close_fixture(&f);
}

/* Every mask and every state: none crashes the program. */
static void masks_and_states(void)
{
	struct ibv_qp_attr attr;
	struct ibv_ah_attr ah;
	struct fixture f;
	struct ibv_qp *qp;
	uint32_t random = 12345;

	open_fixture(&f);
	qp = create_qp(&f, IBV_QPT_RC);
	for (int round = 0; round < 20000; round++) {
		uint8_t *bytes = (uint8_t *)&attr;

		for (size_t i = 0; i < sizeof(attr); i++) {
			random = random * 1103515245 + 12345;
			bytes[i] = random >> 24;
		}
		random = random * 1103515245 + 12345;
		attr.qp_state = round & 8 ? attr.qp_state : (random >> 16) % 8;
		attr.ah_attr.grh.dgid = f.gid;
		(void)ibv_modify_qp(qp, &attr, random >> 4);
		ah = attr.alt_ah_attr;
		struct ibv_ah *handle = ibv_create_ah(f.pd, &ah);

		if (handle)
			EQUAL(ibv_destroy_ah(handle), 0);
	}
	EQUAL(ibv_destroy_qp(qp), 0);
	close_fixture(&f);
}

/* Uses up every descriptor below a number, which is the limit from then on. */
static void use_up(rlim_t most)
{
	struct rlimit limit;

	EQUAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = most;
	EQUAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
	while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0)
		;
}

/* The process runs out of descriptors at every point of opening a device. */
static void no_descriptors(void)
{
	enum { USED = 100 };
	struct rlimit limit;
	struct rdma_event_channel *events;
	struct ibv_comp_channel *channel;
	struct ibv_device **list;
	struct ibv_context *device;
	struct fixture f;
	int more;

	open_fixture(&f);
	CHECK((list = ibv_get_device_list(NULL)) && list[0]);
	use_up(USED);
	REFUSED(ibv_create_comp_channel(f.device), EMFILE);
	CHECK(ibv_get_device_list(NULL) != NULL);
	EQUAL(getrlimit(RLIMIT_NOFILE, &limit), 0);
	for (more = 0; more < 100; more++) {
		limit.rlim_cur = USED + more;
		EQUAL(setrlimit(RLIMIT_NOFILE, &limit), 0);
		events = rdma_create_event_channel();
		device = ibv_open_device(list[0]);
		if (events)
			rdma_destroy_event_channel(events);
		if (device)
			EQUAL(ibv_close_device(device), 0);
		if (events && device)
			break;
	}
	if (more == 0 || more == 100)
		FAIL("opened with %d descriptors", more);
	CHECK((channel = ibv_create_comp_channel(f.device)) != NULL);
	EQUAL(ibv_destroy_comp_channel(channel), 0);
	ibv_free_device_list(list);
	close_fixture(&f);
}

/* Returns the size of the process's memory in bytes. */
static rlim_t size(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	unsigned long pages = 0;

	CHECK(file && fscanf(file, "%lu", &pages) == 1);
	fclose(file);
	return (rlim_t)pages * sysconf(_SC_PAGESIZE);
}

/* Allocates large objects until there is no room for another one. */
static void no_memory(void)
{
	enum { MANY = 4096 };
	struct rlimit before, limit;
	struct ibv_device_attr device;
	static struct ibv_qp *qps[MANY];
	static struct ibv_srq *srqs[MANY];
	static struct ibv_cq *cqs[MANY];
	struct ibv_qp *pair[2];
	struct fixture f;
	int n[3] = { 0 }, error;

	open_fixture(&f);
	connected_pair(&f, pair);
	EQUAL(ibv_query_device(f.device, &device), 0);
	struct ibv_qp_init_attr qp = {
		.send_cq = f.cq,
		.recv_cq = f.cq,
		.qp_type = IBV_QPT_RC,
		.cap = { device.max_qp_wr, device.max_qp_wr, device.max_sge, device.max_sge, 512 },
	};
	struct ibv_srq_init_attr srq = {
		.attr = { .max_wr = device.max_srq_wr, .max_sge = device.max_srq_sge },
	};
	EQUAL(getrlimit(RLIMIT_AS, &before), 0);
	limit = (struct rlimit){ .rlim_cur = size() + (64 << 20), .rlim_max = before.rlim_max };
	EQUAL(setrlimit(RLIMIT_AS, &limit), 0);
	while (n[0] < MANY && (qps[n[0]] = ibv_create_qp(f.pd, &qp)))
		n[0]++;
	error = errno;
	EQUAL(error, ENOMEM);
	CHECK(n[0] < MANY);
	while (n[1] < MANY && (srqs[n[1]] = ibv_create_srq(f.pd, &srq)))
		n[1]++;
	error = errno;
	EQUAL(error, ENOMEM);
	CHECK(n[1] < MANY);
	while (n[2] < MANY && (cqs[n[2]] = ibv_create_cq(f.device, device.max_cqe, NULL, NULL, 0)))
		n[2]++;
	error = errno;
	EQUAL(error, ENOMEM);
	CHECK(n[2] < MANY);
	exchange(&f, pair);
	EQUAL(setrlimit(RLIMIT_AS, &before), 0);
	while (n[0] > 0)
		EQUAL(ibv_destroy_qp(qps[--n[0]]), 0);
	while (n[1] > 0)
		EQUAL(ibv_destroy_srq(srqs[--n[1]]), 0);
	while (n[2] > 0)
		EQUAL(ibv_destroy_cq(cqs[--n[2]]), 0);
	exchange(&f, pair);
}

static const struct test tests[] = {
	TEST(completion_queues),
	TEST(queue_pairs),
	TEST(shared_receive_queues),
	TEST(memory),
	TEST(lists),
	TEST(lists_by_building),
	TEST(masks_and_states),
	TEST(no_descriptors),
	TEST(no_memory),
};

CHECK_MAIN(tests)
