/* Devices and their objects in use by many threads. */
#include "fixture.h"

#include <malloc.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 8 };

static void in_threads(void *(*run)(void *), void *argument)
{
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		EQUAL(pthread_create(&threads[i], NULL, run, argument), 0);
	for (int i = 0; i < THREADS; i++)
		EQUAL(pthread_join(threads[i], NULL), 0);
}

static void *open_and_close(void *unused)
{
	(void)unused;
	for (int i = 0; i < 10; i++) {
		struct fixture f;

		open_fixture(&f);
		close_fixture(&f);
	}
	return NULL;
}

static void devices_come_and_go(void)
{
	in_threads(open_and_close, NULL);
}

static void *own_connection(void *unused)
{
	struct fixture f;
	struct ibv_qp *pair[2];

	(void)unused;
	open_fixture(&f);
	connected_pair(&f, pair);
	for (int i = 0; i < 50; i++)
		exchange(&f, pair);
	for (int i = 0; i < 2; i++)
		EQUAL(ibv_destroy_qp(pair[i]), 0);
	close_fixture(&f);
	return NULL;
}

static void a_device_each(void)
{
	in_threads(own_connection, NULL);
}

/* Uses its own completion queue, memory and queue pairs on the shared device. */
static void *own_objects(void *argument)
{
	struct fixture *shared = argument, f = *shared;
	struct ibv_qp *pair[2];
	uint8_t memory[BUFFER];

	memset(memory, 0, sizeof(memory));
	f.memory = memory;
	CHECK((f.cq = ibv_create_cq(f.device, 16, NULL, NULL, 0)) != NULL);
	CHECK((f.mr = ibv_reg_mr(f.pd, memory, sizeof(memory), ALL_RIGHTS)) != NULL);
	for (int round = 0; round < 5; round++) {
		connected_pair(&f, pair);
		for (int i = 0; i < 10; i++)
			exchange(&f, pair);
		for (int i = 0; i < 2; i++)
			EQUAL(ibv_destroy_qp(pair[i]), 0);
	}
	EQUAL(ibv_dereg_mr(f.mr), 0);
	EQUAL(ibv_destroy_cq(f.cq), 0);
	return NULL;
}

static void one_device_for_all(void)
{
	struct fixture f;

	open_fixture(&f);
	in_threads(own_objects, &f);
	close_fixture(&f);
}

struct shared {
	struct fixture f;
	struct ibv_qp *pair[2];
	int completed;
};

/* Posts on one queue pair and polls a queue that all the others use too. */
static void *post_and_poll(void *argument)
{
	struct shared *s = argument;
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	int result;

	for (int i = 0; i < 200; i++) {
		/* The queue may be full of the others' requests. */
		while ((result = ibv_post_send(s->pair[0],
					       request(IBV_WR_RDMA_WRITE, s->f.memory, 64, s->f.mr,
						       s->f.memory + BUFFER / 2, s->f.mr->rkey),
					       &bad)) == ENOMEM) {
			if (ibv_poll_cq(s->f.cq, 1, &wc) == 1) {
				EQUAL(wc.status, IBV_WC_SUCCESS);
				__atomic_add_fetch(&s->completed, 1, __ATOMIC_RELAXED);
			}
		}
		EQUAL(result, 0);
	}
	return NULL;
}

static void one_queue_pair_for_all(void)
{
	struct shared s = { .completed = 0 };

	open_fixture(&s.f);
	connected_pair(&s.f, s.pair);
	in_threads(post_and_poll, &s);
	for (; s.completed < THREADS * 200; s.completed++)
		EQUAL(completion(s.f.cq).status, IBV_WC_SUCCESS);
}

/* A thread that posts, and ends before its request completes. */
static void *post_one(void *argument)
{
	struct shared *s = argument;

	post(s->pair[0], request(IBV_WR_RDMA_WRITE, s->f.memory, 4096, s->f.mr,
				 s->f.memory + BUFFER / 2, s->f.mr->rkey));
	return NULL;
}

static void threads_come_and_go(void)
{
	struct shared s = { .completed = 0 };
	pthread_t thread;

	open_fixture(&s.f);
	connected_pair(&s.f, s.pair);
	for (int i = 0; i < 500; i++) {
		EQUAL(pthread_create(&thread, NULL, post_one, &s), 0);
		EQUAL(pthread_join(thread, NULL), 0);
		EQUAL(completion(s.f.cq).status, IBV_WC_SUCCESS);
	}
}

static void *wait_for_completion(void *argument)
{
	struct fixture *f = argument;
	struct ibv_cq *cq;
	void *context;

	EQUAL(ibv_get_cq_event(f->channel, &cq, &context), 0);
	CHECK(cq == f->cq && context == f);
	ibv_ack_cq_events(cq, 1);
	return f;
}

static void *wait_for_event(void *argument)
{
	struct fixture *f = argument;
	struct ibv_async_event event;

	EQUAL(ibv_get_async_event(f->device, &event), 0);
	return f;
}

static void *wait_for_connection(void *argument)
{
	struct rdma_cm_event *event;

	EQUAL(rdma_get_cm_event(argument, &event), 0);
	return argument;
}

static void *wait_for_request(void *argument)
{
	struct rdma_cm_id *request;

	EQUAL(rdma_get_request(argument, &request), 0);
	rdma_destroy_ep(request);
	return argument;
}

/* A request arrives at a listener while a thread waits for it. */
static void requested_once(struct rdma_cm_id *listener, struct sockaddr_in *address)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_id *client;
	pthread_t thread;
	void *result;

	address->sin_port = rdma_get_src_port(listener);
	EQUAL(rdma_create_id(NULL, &client, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_resolve_addr(client, NULL, (struct sockaddr *)address, 5000), 0);
	EQUAL(rdma_resolve_route(client, 5000), 0);
	EQUAL(rdma_create_qp(client, NULL, &attr), 0);
	EQUAL(pthread_create(&thread, NULL, wait_for_request, listener), 0);
	/* The thread destroys the id, which refuses the request. */
	SETS(rdma_connect(client, &param), ECONNREFUSED);
	EQUAL(pthread_join(thread, &result), 0);
	CHECK(result == listener);
	rdma_destroy_ep(client);
}

/* Threads wait for events that never arrive, and are cancelled, which leaves all objects usable (pthreads(7)). */
static void cancelled_while_they_wait(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener;
	struct ibv_qp *pair[2];
	struct fixture f;
	pthread_t thread;
	void *result;

	open_fixture(&f);
	CHECK((events = rdma_create_event_channel()) != NULL);
	memcpy(&address.sin_addr, f.gid.raw + 12, sizeof(address.sin_addr));
	EQUAL(rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_bind_addr(listener, (struct sockaddr *)&address), 0);
	EQUAL(rdma_listen(listener, 1), 0);
	for (int i = 0; i < 40; i++) {
		void *(*waits[])(void *) = { wait_for_completion, wait_for_event,
					     wait_for_connection, wait_for_request };
		void *arguments[] = { &f, &f, events, listener };

		EQUAL(pthread_create(&thread, NULL, waits[i % 4], arguments[i % 4]), 0);
		EQUAL(pthread_cancel(thread), 0);
		EQUAL(pthread_join(thread, &result), 0);
		CHECK(result == PTHREAD_CANCELED);
	}
	connected_pair(&f, pair);
	for (int i = 0; i < 20; i++) {
		EQUAL(pthread_create(&thread, NULL, wait_for_completion, &f), 0);
		EQUAL(ibv_req_notify_cq(f.cq, 0), 0);
		post(pair[0], request(IBV_WR_RDMA_WRITE, f.memory, 8, f.mr, f.memory + 64,
				      f.mr->rkey));
		EQUAL(pthread_join(thread, &result), 0);
		CHECK(result == &f);
		EQUAL(completion(f.cq).status, IBV_WC_SUCCESS);
	}
	for (int i = 0; i < 2; i++)
		EQUAL(ibv_destroy_qp(pair[i]), 0);
	requested_once(listener, &address);
	EQUAL(rdma_destroy_id(listener), 0);
	rdma_destroy_event_channel(events);
	close_fixture(&f);
}

struct waiter {
	struct rdma_event_channel *events;
	_Atomic int tid;
};

static void *wait_in_vain(void *argument)
{
	struct waiter *waiter = argument;
	struct rdma_cm_event *event;

	waiter->tid = (int)syscall(SYS_gettid);
	rdma_get_cm_event(waiter->events, &event);
	FAIL("an event came from a channel that is gone");
}

static int is_asleep(int tid)
{
	char path[64], state = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	CHECK((file = fopen(path, "r")) != NULL);
	CHECK(fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
	fclose(file);
	return state == 'S';
}

/* A program ends and destroys its channel while a thread waits for events: the thread keeps waiting, as in a
 * system call. */
static void a_channel_goes_while_it_waits(void)
{
	for (int i = 0; i < 20; i++) {
		struct waiter waiter = { .events = rdma_create_event_channel() };
		pthread_t thread;
		void *result;
		int fd;

		CHECK(waiter.events && (fd = dup(waiter.events->fd)) >= 0);
		EQUAL(pthread_create(&thread, NULL, wait_in_vain, &waiter), 0);
		while (!waiter.tid || !is_asleep(waiter.tid))
			sched_yield();
		rdma_destroy_event_channel(waiter.events);
		EQUAL(shutdown(fd, SHUT_RDWR), 0);
		for (int turns = 0; turns < 100; turns++)
			sched_yield();
		EQUAL(pthread_cancel(thread), 0);
		EQUAL(pthread_join(thread, &result), 0);
		CHECK(result == PTHREAD_CANCELED);
		close(fd);
	}
}

/* The waiting thread starts only after the channel was destroyed. Memory is overwritten when it is freed. */
static void a_channel_goes_before_it_waits(void)
{
	struct waiter waiter = { .events = rdma_create_event_channel() };
	pthread_t thread;
	void *result;

	CHECK(waiter.events);
	mallopt(M_PERTURB, 0xa5);
	rdma_destroy_event_channel(waiter.events);
	mallopt(M_PERTURB, 0);
	EQUAL(pthread_create(&thread, NULL, wait_in_vain, &waiter), 0);
	while (!waiter.tid || !is_asleep(waiter.tid))
		sched_yield();
	EQUAL(pthread_cancel(thread), 0);
	EQUAL(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
}

static void *take_all(void *argument)
{
	struct waiter *waiter = argument;
	struct rdma_cm_event *event;

	waiter->tid = (int)syscall(SYS_gettid);
	for (;;) {
		EQUAL(rdma_get_cm_event(waiter->events, &event), 0);
		EQUAL(event->event, RDMA_CM_EVENT_ADDR_RESOLVED);
		EQUAL(rdma_ack_cm_event(event), 0);
	}
}

/* A thread reads events while another destroys their ids and then the channel. */
static void a_channel_goes_while_events_are_taken(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct fixture f;

	open_fixture(&f);
	memcpy(&address.sin_addr, f.gid.raw + 12, sizeof(address.sin_addr));
	for (int i = 0; i < 50; i++) {
		struct waiter waiter = { .events = rdma_create_event_channel() };
		struct rdma_cm_id *ids[8];
		pthread_t thread;
		void *result;

		CHECK(waiter.events);
		EQUAL(pthread_create(&thread, NULL, take_all, &waiter), 0);
		for (int n = 0; n < 8; n++) {
			EQUAL(rdma_create_id(waiter.events, &ids[n], NULL, RDMA_PS_TCP), 0);
			EQUAL(rdma_resolve_addr(ids[n], NULL, (struct sockaddr *)&address, 1000), 0);
		}
		for (int n = 0; n < 8; n++)
			EQUAL(rdma_destroy_id(ids[n]), 0);
		rdma_destroy_event_channel(waiter.events);
		while (!waiter.tid || !is_asleep(waiter.tid))
			sched_yield();
		EQUAL(pthread_cancel(thread), 0);
		EQUAL(pthread_join(thread, &result), 0);
		CHECK(result == PTHREAD_CANCELED);
	}
	close_fixture(&f);
}

/* Reads an event that must be of this type. Returns its id. */
static struct rdma_cm_id *take(struct rdma_event_channel *events, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	EQUAL(rdma_get_cm_event(events, &event), 0);
	EQUAL(event->event, type);
	EQUAL(event->status, 0);
	id = event->id;
	EQUAL(rdma_ack_cm_event(event), 0);
	return id;
}

struct destroyer {
	struct ibv_qp *qp;
	_Atomic int tid;
};

static void *destroy(void *argument)
{
	struct destroyer *destroyer = argument;

	destroyer->tid = (int)syscall(SYS_gettid);
	EQUAL(ibv_destroy_qp(destroyer->qp), 0);
	return NULL;
}

/* Destroying the object of an event waits until the event is acknowledged. Until then the event names an existing object: freed memory
 * would be overwritten. */
static void a_queue_pair_stays_until_its_event_is_acknowledged(void)
{
	struct ibv_async_event event;
	struct destroyer destroyer = { 0 };
	struct ibv_qp *pair[2];
	pthread_t thread;
	struct fixture f;
	uint32_t number;

	open_fixture(&f);
	connected_pair(&f, pair);
	/* The responder refuses the key, and its queue pair gets an event. */
	EQUAL(write_bytes(&f, pair[0], f.memory, f.mr, f.memory, ~f.mr->rkey, 8),
	      IBV_WC_REM_ACCESS_ERR);
	EQUAL(ibv_get_async_event(f.device, &event), 0);
	CHECK(event.element.qp == pair[1]);
	number = pair[1]->qp_num;
	pair[1]->qp_context = &f;
	destroyer.qp = pair[1];
	mallopt(M_PERTURB, 0xa5);
	EQUAL(pthread_create(&thread, NULL, destroy, &destroyer), 0);
	while (!destroyer.tid || !is_asleep(destroyer.tid))
		sched_yield();
	CHECK(event.element.qp->context == f.device && event.element.qp->qp_context == &f);
	EQUAL(event.element.qp->qp_num, number);
	ibv_ack_async_event(&event);
	EQUAL(pthread_join(thread, NULL), 0);
	mallopt(M_PERTURB, 0);
	EQUAL(ibv_destroy_qp(pair[0]), 0);
	close_fixture(&f);
}

/* Listens, connects and disconnects, on the context that all ids of a process share. */
static void connect_once(struct sockaddr *address, uint16_t *port)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_event_channel *there, *here;
	struct rdma_cm_id *listener, *server, *client;

	CHECK((there = rdma_create_event_channel()) && (here = rdma_create_event_channel()));
	*port = 0;
	EQUAL(rdma_create_id(there, &listener, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_bind_addr(listener, address), 0);
	EQUAL(rdma_listen(listener, 1), 0);
	*port = rdma_get_src_port(listener);
	EQUAL(rdma_create_id(here, &client, NULL, RDMA_PS_TCP), 0);
	EQUAL(rdma_resolve_addr(client, NULL, address, 5000), 0);
	CHECK(take(here, RDMA_CM_EVENT_ADDR_RESOLVED) == client);
	EQUAL(rdma_resolve_route(client, 5000), 0);
	CHECK(take(here, RDMA_CM_EVENT_ROUTE_RESOLVED) == client);
	EQUAL(rdma_create_qp(client, NULL, &attr), 0);
	EQUAL(rdma_connect(client, &param), 0);
	server = take(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	EQUAL(rdma_create_qp(server, NULL, &attr), 0);
	EQUAL(rdma_accept(server, &param), 0);
	CHECK(take(here, RDMA_CM_EVENT_ESTABLISHED) == client);
	CHECK(take(there, RDMA_CM_EVENT_ESTABLISHED) == server);
	EQUAL(rdma_disconnect(client), 0);
	CHECK(take(there, RDMA_CM_EVENT_DISCONNECTED) == server);
	rdma_destroy_qp(server);
	rdma_destroy_qp(client);
	EQUAL(rdma_destroy_id(server), 0);
	EQUAL(rdma_destroy_id(client), 0);
	EQUAL(rdma_destroy_id(listener), 0);
	rdma_destroy_event_channel(here);
	rdma_destroy_event_channel(there);
}

static void *polls(void *argument)
{
	struct fixture *f = argument;
	struct ibv_wc wc;

	for (;;) {
		for (int i = 0; i < 1000; i++)
			EQUAL(ibv_poll_cq(f->cq, 1, &wc), 0);
		pthread_testcancel();
	}
}

static void *computes(void *stop)
{
	while (!__atomic_load_n((int *)stop, __ATOMIC_RELAXED))
		;
	return NULL;
}

/* Polling is no cancellation point, even when it yields the processor to others. */
static void cancelled_while_it_polls(void)
{
	struct fixture f;
	pthread_t poller, others[8];
	void *result;
	int stop = 0;

	open_fixture(&f);
	for (int i = 0; i < 8; i++)
		EQUAL(pthread_create(&others[i], NULL, computes, &stop), 0);
	for (int i = 0; i < 8; i++) {
		EQUAL(pthread_create(&poller, NULL, polls, &f), 0);
		/* Until it has met the others. */
		for (int j = 0; j < 100; j++)
			sched_yield();
		EQUAL(pthread_cancel(poller), 0);
		EQUAL(pthread_join(poller, &result), 0);
		CHECK(result == PTHREAD_CANCELED);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 8; i++)
		EQUAL(pthread_join(others[i], NULL), 0);
	close_fixture(&f);
}

static void *connect_often(void *argument)
{
	struct sockaddr_in address = { .sin_family = AF_INET };

	memcpy(&address.sin_addr, argument, 4);
	for (int i = 0; i < 10; i++)
		connect_once((struct sockaddr *)&address, &address.sin_port);
	return NULL;
}

static void connections_from_all(void)
{
	struct fixture f;

	open_fixture(&f);
	in_threads(connect_often, f.gid.raw + 12);
	close_fixture(&f);
}

static const struct test tests[] = {
	TEST(devices_come_and_go),
	TEST(a_device_each),
	TEST(one_device_for_all),
	TEST(one_queue_pair_for_all),
	TEST(threads_come_and_go),
	TEST(cancelled_while_they_wait),
	TEST(cancelled_while_it_polls),
	TEST(a_channel_goes_while_it_waits),
	TEST(a_channel_goes_before_it_waits),
	TEST(a_channel_goes_while_events_are_taken),
	TEST(a_queue_pair_stays_until_its_event_is_acknowledged),
	TEST(connections_from_all),
};

CHECK_MAIN(tests)
