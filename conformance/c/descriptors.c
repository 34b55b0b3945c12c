/* Descriptors from this library, used like any other. */
#include "fixture.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

static void set_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	CHECK(flags >= 0);
	EQUAL(fcntl(fd, F_SETFL, flags | O_NONBLOCK), 0);
}

/* Creates an epoll instance on one descriptor, edge-triggered. */
static int watch(int fd)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET };
	int epoll = epoll_create1(EPOLL_CLOEXEC);

	CHECK(epoll >= 0);
	EQUAL(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);
	return epoll;
}

/* Returns how many descriptors become ready within so many milliseconds; -1 waits. */
static int ready(int epoll, int timeout)
{
	struct epoll_event event;

	return epoll_wait(epoll, &event, 1, timeout);
}

static void all_are_distinct(void)
{
	struct fixture f;
	struct rdma_event_channel *events;

	open_fixture(&f);
	CHECK((events = rdma_create_event_channel()) != NULL);
	int fds[] = { f.device->async_fd, f.device->cmd_fd, f.channel->fd, events->fd };
	for (int i = 0; i < 4; i++) {
		CHECK(fcntl(fds[i], F_GETFD) >= 0);
		for (int j = 0; j < i; j++)
			CHECK(fds[i] != fds[j]);
	}
	rdma_destroy_event_channel(events);
	close_fixture(&f);
}

static void nothing_yet_is_eagain(void)
{
	struct fixture f;
	struct rdma_event_channel *events;
	struct ibv_async_event async;
	struct rdma_cm_event *event;
	struct ibv_cq *cq;
	void *context;

	open_fixture(&f);
	CHECK((events = rdma_create_event_channel()) != NULL);
	set_nonblocking(f.device->async_fd);
	set_nonblocking(f.channel->fd);
	set_nonblocking(events->fd);
	SETS(ibv_get_async_event(f.device, &async), EAGAIN);
	SETS(ibv_get_cq_event(f.channel, &cq, &context), EAGAIN);
	SETS(rdma_get_cm_event(events, &event), EAGAIN);
	rdma_destroy_event_channel(events);
	close_fixture(&f);
}

/* Arms the queue, completes a WRITE, and reads the event from the channel. */
static void one_event(struct fixture *f, struct ibv_qp *qp, int epoll)
{
	uint8_t *to = f->memory + BUFFER / 2;
	struct ibv_cq *cq;
	void *context;

	EQUAL(ibv_req_notify_cq(f->cq, 0), 0);
	post(qp, request(IBV_WR_RDMA_WRITE, f->memory, 8, f->mr, to, f->mr->rkey));
	EQUAL(ready(epoll, -1), 1);
	EQUAL(ibv_get_cq_event(f->channel, &cq, &context), 0);
	CHECK(cq == f->cq && context == f);
	SETS(ibv_get_cq_event(f->channel, &cq, &context), EAGAIN);
	ibv_ack_cq_events(cq, 1);
	EQUAL(completion(f->cq).status, IBV_WC_SUCCESS);
}

static void completion_channel_edge_by_edge(void)
{
	struct fixture f;
	struct ibv_qp *pair[2];
	int epoll;

	open_fixture(&f);
	connected_pair(&f, pair);
	set_nonblocking(f.channel->fd);
	epoll = watch(f.channel->fd);
	for (int i = 0; i < 20; i++)
		one_event(&f, pair[0], epoll);
	EQUAL(ready(epoll, 0), 0);
}

/* Two pending events are two reads, but one poll reports both. */
static void completion_channel_of_two_queues(void)
{
	struct fixture f;
	struct ibv_qp *pairs[2][2];
	struct ibv_cq *cqs[2], *cq;
	void *context;
	struct pollfd look;
	int epoll;

	open_fixture(&f);
	set_nonblocking(f.channel->fd);
	epoll = watch(f.channel->fd);
	cqs[0] = f.cq;
	CHECK((cqs[1] = ibv_create_cq(f.device, 16, NULL, f.channel, 0)) != NULL);
	for (int i = 0; i < 2; i++) {
		f.cq = cqs[i];
		connected_pair(&f, pairs[i]);
		EQUAL(ibv_req_notify_cq(cqs[i], 0), 0);
		post(pairs[i][0], request(IBV_WR_RDMA_WRITE, f.memory, 8, f.mr, f.memory + 64,
					  f.mr->rkey));
	}
	for (int i = 0; i < 2; i++)
		EQUAL(completion(cqs[i]).status, IBV_WC_SUCCESS);
	EQUAL(ready(epoll, -1), 1);
	for (int i = 0; i < 2; i++) {
		look = (struct pollfd){ .fd = f.channel->fd, .events = POLLIN };
		EQUAL(poll(&look, 1, -1), 1);
		EQUAL(ibv_get_cq_event(f.channel, &cq, &context), 0);
		ibv_ack_cq_events(cq, 1);
	}
	SETS(ibv_get_cq_event(f.channel, &cq, &context), EAGAIN);
}

/* A further event is a further edge, even if the one before was not read. */
static void an_edge_for_each_event(void)
{
	struct fixture f;
	struct ibv_qp *pair[2];
	struct ibv_cq *cqs[2], *cq;
	void *context;
	int epoll;

	open_fixture(&f);
	epoll = watch(f.channel->fd);
	cqs[0] = f.cq;
	CHECK((cqs[1] = ibv_create_cq(f.device, 16, NULL, f.channel, 0)) != NULL);
	for (int i = 0; i < 2; i++) {
		f.cq = cqs[i];
		connected_pair(&f, pair);
		EQUAL(ibv_req_notify_cq(cqs[i], 0), 0);
		EQUAL(write_bytes(&f, pair[0], f.memory, f.mr, f.memory + 64, f.mr->rkey, 8),
		      IBV_WC_SUCCESS);
		EQUAL(ready(epoll, -1), 1);
		EQUAL(ready(epoll, 0), 0);
	}
	for (int i = 0; i < 2; i++) {
		EQUAL(ibv_get_cq_event(f.channel, &cq, &context), 0);
		CHECK(cq == cqs[i]);
		ibv_ack_cq_events(cq, 1);
	}
}

static volatile bool interrupted;

static void on_signal(int signal)
{
	(void)signal;
}

static void *interrupts(void *waiting)
{
	while (!interrupted)
		pthread_kill(*(pthread_t *)waiting, SIGUSR1);
	return NULL;
}

/* A signal interrupts the wait if its handler was installed without SA_RESTART (signal(7)). */
static void interrupted_by_a_signal(void)
{
	struct sigaction action = { .sa_handler = on_signal };
	struct rdma_event_channel *events;
	struct ibv_async_event async;
	struct rdma_cm_event *event;
	pthread_t self = pthread_self(), thread;
	struct fixture f;
	struct ibv_cq *cq;
	void *context;

	open_fixture(&f);
	CHECK((events = rdma_create_event_channel()) != NULL);
	EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
	EQUAL(pthread_create(&thread, NULL, interrupts, &self), 0);
	SETS(ibv_get_async_event(f.device, &async), EINTR);
	SETS(ibv_get_cq_event(f.channel, &cq, &context), EINTR);
	SETS(rdma_get_cm_event(events, &event), EINTR);
	interrupted = true;
	EQUAL(pthread_join(thread, NULL), 0);
	rdma_destroy_event_channel(events);
	close_fixture(&f);
}

/* A queue pair that a bad request moves to the error state raises events on the device's descriptor. */
static void async_events_edge_by_edge(void)
{
	struct fixture f;
	struct ibv_qp *pair[2];
	struct ibv_async_event event;
	int epoll;

	open_fixture(&f);
	set_nonblocking(f.device->async_fd);
	epoll = watch(f.device->async_fd);
	for (int i = 0; i < 3; i++) {
		connected_pair(&f, pair);
		/* The responder refuses the key, and its queue pair gets an event. */
		EQUAL(write_bytes(&f, pair[0], f.memory, f.mr, f.memory, ~f.mr->rkey, 8),
		      IBV_WC_REM_ACCESS_ERR);
		EQUAL(ready(epoll, -1), 1);
		EQUAL(ibv_get_async_event(f.device, &event), 0);
		EQUAL(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
		CHECK(event.element.qp == pair[1]);
		ibv_ack_async_event(&event);
		SETS(ibv_get_async_event(f.device, &event), EAGAIN);
		for (int j = 0; j < 2; j++)
			EQUAL(ibv_destroy_qp(pair[j]), 0);
	}
}

static void event_channel_edge_by_edge(void)
{
	struct rdma_event_channel *events;
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(4321) };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct fixture f;
	int epoll;

	open_fixture(&f);
	memcpy(&address.sin_addr, f.gid.raw + 12, 4);
	CHECK((events = rdma_create_event_channel()) != NULL);
	set_nonblocking(events->fd);
	epoll = watch(events->fd);
	for (int i = 0; i < 5; i++) {
		EQUAL(rdma_create_id(events, &id, NULL, RDMA_PS_TCP), 0);
		EQUAL(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000), 0);
		EQUAL(ready(epoll, -1), 1);
		EQUAL(rdma_get_cm_event(events, &event), 0);
		EQUAL(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(event->id == id);
		EQUAL(rdma_ack_cm_event(event), 0);
		EQUAL(rdma_resolve_route(id, 2000), 0);
		EQUAL(ready(epoll, -1), 1);
		EQUAL(rdma_get_cm_event(events, &event), 0);
		EQUAL(event->event, RDMA_CM_EVENT_ROUTE_RESOLVED);
		EQUAL(rdma_ack_cm_event(event), 0);
		SETS(rdma_get_cm_event(events, &event), EAGAIN);
		EQUAL(rdma_destroy_id(id), 0);
	}
	rdma_destroy_event_channel(events);
}

static const struct test tests[] = {
	TEST(all_are_distinct),
	TEST(nothing_yet_is_eagain),
	TEST(completion_channel_edge_by_edge),
	TEST(completion_channel_of_two_queues),
	TEST(an_edge_for_each_event),
	TEST(interrupted_by_a_signal),
	TEST(async_events_edge_by_edge),
	TEST(event_channel_edge_by_edge),
};

CHECK_MAIN(tests)
