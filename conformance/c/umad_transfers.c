/* libibumad on a port of a subnet: sending and receiving, and invalid lengths, agents and times. */
#define _GNU_SOURCE
#include "umad_fixture.h"

#include <arpa/inet.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Checks that a MAD is not sent, with the device's reason. */
#define EIO_BY(call, reason)                                                         \
	do {                                                                         \
		EQUAL(call, -EIO);                                                   \
		if (errno != (reason))                                               \
			FAIL("%s: the reason is %d, not " #reason, #call, errno);    \
	} while (0)

/* Checks that the port works. */
static void still_works(int port, int agent)
{
	struct buffer b;

	directed(&b, UMAD_METHOD_GET, UMAD_SM_ATTR_NODE_INFO, 0xabcd, NULL, 0);
	EQUAL(post(port, agent, &b, 30000, 0), 0);
	answered(port, agent, 0xabcd, &b);
}

static void lengths_that_cannot_be_sent(void)
{
	static const int lengths[] = { -1, INT_MIN, INT_MIN + 64, 0, 1, 24, 35, 257, 4096, INT_MAX };
	int port = open_port(), number = directed_agent(port), rmpp;
	struct buffer b;

	directed(&b, UMAD_METHOD_GET, UMAD_SM_ATTR_NODE_INFO, 1, NULL, 0);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++)
		EIO_BY(post_length(port, number, &b, lengths[i], 30000), EINVAL);
	/* A long MAD without a valid RMPP header; and one that is longer than the limit. */
	CHECK((rmpp = agent(port, UMAD_CLASS_SUBN_ADM, 2, 1, NO_METHODS)) > 0);
	to_own_lid(&b, UMAD_CLASS_SUBN_ADM, 2, UMAD_SA_METHOD_GET_TABLE, 1, 1);
	EIO_BY(post_length(port, rmpp, &b, 257, 0), EINVAL);
	((struct umad_rmpp_packet *)b.mad)->rmpp_hdr.rmpp_rtime_flags = UMAD_RMPP_FLAG_ACTIVE;
	EIO_BY(post_length(port, rmpp, &b, INT_MAX, 0), ENOMEM);
	EIO_BY(post_length(port, number, &b, 257, 0), EINVAL);
	/* Shorter than a MAD, but with both headers: it is padded. */
	directed(&b, UMAD_METHOD_GET, UMAD_SM_ATTR_NODE_INFO, 2, NULL, 0);
	EQUAL(post_length(port, number, &b, 64, 30000), 0);
	answered(port, number, 2, &b);
	still_works(port, number);
}

static void agents_that_are_not_registered(void)
{
	int port = open_port(), number = directed_agent(port);
	struct buffer b;

	directed(&b, UMAD_METHOD_GET, UMAD_SM_ATTR_NODE_INFO, 1, NULL, 0);
	EIO_BY(post(port, number + 1, &b, 0, 0), EIO);
	EIO_BY(post(port, 31, &b, 0, 0), EIO);
	EIO_BY(post(port, 32, &b, 0, 0), EINVAL);
	EIO_BY(post(port, -1, &b, 0, 0), EINVAL);
	EIO_BY(post(port, INT_MIN, &b, 0, 0), EINVAL);
	EQUAL(umad_send(port, number, NULL, 256, 0, 0), -EINVAL);
	EQUAL(umad_unregister(port, number), 0);
	EIO_BY(post(port, number, &b, 0, 0), EIO);
	EQUAL(directed_agent(port), number);
	still_works(port, number);
}

static void nothing_to_receive(void)
{
	int port = open_port(), number = directed_agent(port), length = 256;
	struct buffer b;

	EQUAL(umad_recv(port, &b, &length, 0), -EAGAIN);
	EQUAL(umad_recv(port, &b, &length, 1), -ETIMEDOUT);
	EQUAL(umad_poll(port, 0), -ETIMEDOUT);
	EQUAL(umad_poll(port, 1), -ETIMEDOUT);
	EQUAL(length, 256);
	/* Any negative time means for ever: the answer arrives. */
	directed(&b, UMAD_METHOD_GET, UMAD_SM_ATTR_NODE_INFO, 3, NULL, 0);
	EQUAL(post(port, number, &b, 30000, 0), 0);
	EQUAL(umad_poll(port, INT_MIN), 0);
	EQUAL(umad_recv(port, &b, &length, -7), number);
	EQUAL(tid_of(&b), 3);
}

static void buffers_without_room(void)
{
	int port = open_port(), number = directed_agent(port), length;
	struct buffer b;

	directed(&b, UMAD_METHOD_GET, UMAD_SM_ATTR_NODE_INFO, 4, NULL, 0);
	EQUAL(post(port, number, &b, 30000, 0), 0);
	EQUAL(umad_poll(port, -1), 0);
	for (length = 0; length < 256; length += 51) {
		int given = length;

		EQUAL(umad_recv(port, &b, &given, 0), -EINVAL);
	}
	length = -1;
	EQUAL(umad_recv(port, &b, &length, 0), -EINVAL);
	length = INT_MIN;
	EQUAL(umad_recv(port, &b, &length, 0), -EINVAL);
	EQUAL(umad_recv(port, &b, NULL, 0), -EINVAL);
	length = 256;
	EQUAL(umad_recv(port, NULL, &length, 0), -EINVAL);
	/* It is still in the queue. An excessive length matters only if it is used. */
	length = INT_MAX;
	EQUAL(umad_recv(port, &b, &length, 0), number);
	EQUAL(length, 256);
	EQUAL(tid_of(&b), 4);
}

/* A table of 5,000 bytes by RMPP, from an agent of the port to another one. */
static void long_answer_needs_its_room(void)
{
	enum { LENGTH = 5000 };
	int port = open_port(), length, client, server;
	uint8_t *table = calloc(1, sizeof(struct ib_user_mad) + LENGTH);
	uint8_t *room = calloc(1, sizeof(struct ib_user_mad) + LENGTH);
	struct umad_sa_packet *packet;
	uint16_t lid = own_lid(port);
	struct buffer b;

	CHECK(table && room);
	CHECK((server = agent(port, UMAD_CLASS_SUBN_ADM, 2, 1, 1 << UMAD_SA_METHOD_GET_TABLE)) >= 0);
	CHECK((client = agent(port, UMAD_CLASS_SUBN_ADM, 2, 1, NO_METHODS)) >= 0);
	to_own_lid(&b, UMAD_CLASS_SUBN_ADM, 2, UMAD_SA_METHOD_GET_TABLE, 9, lid);
	EQUAL(post(port, client, &b, 30000, 3), 0);
	EQUAL(take(port, &b, &length), server);
	memcpy(table, &b, sizeof(b));
	packet = umad_get_mad(table);
	packet->mad_hdr.method = UMAD_SA_METHOD_GET_TABLE_RESP;
	packet->rmpp_hdr.rmpp_version = UMAD_RMPP_VERSION;
	packet->rmpp_hdr.rmpp_rtime_flags = UMAD_RMPP_FLAG_ACTIVE;
	for (int i = 0; i < LENGTH - (int)sizeof(struct ib_user_mad); i++)
		packet->data[i] = i * 7;
	EQUAL(umad_send(port, server, table, LENGTH, 0, 3), 0);

	/* Room for one MAD: returns its beginning, and the length that it needs, each time. */
	for (int i = 0; i < 3; i++) {
		length = 256;
		EQUAL(umad_recv(port, &b, &length, -1), -ENOSPC);
		EQUAL(length, LENGTH);
		EQUAL(tid_of(&b), 9);
	}
	length = LENGTH - 1;
	EQUAL(umad_recv(port, room, &length, 0), -ENOSPC);
	EQUAL(length, LENGTH);
	length = 255;
	EQUAL(umad_recv(port, room, &length, 0), -EINVAL);
	length = LENGTH;
	EQUAL(umad_recv(port, room, &length, 0), client);
	EQUAL(length, LENGTH);
	EQUAL(umad_status(room), 0);
	EQUAL(memcmp(((struct umad_sa_packet *)umad_get_mad(room))->data, packet->data,
		     LENGTH - offsetof(struct umad_sa_packet, data)),
	      0);
	EQUAL(umad_recv(port, room, &length, 0), -EAGAIN);
}

static void request_without_an_answer_comes_back(void)
{
	int port = open_port(), number = directed_agent(port), length;
	struct buffer b;

	unanswerable(&b, 0x1234);
	EQUAL(post(port, number, &b, 1, 2), 0);
	EQUAL(take(port, &b, &length), number);
	EQUAL(umad_status(&b), ETIMEDOUT);
	EQUAL(length, 24);
	EQUAL(tid_of(&b), 0x1234);
	EQUAL(((struct umad_hdr *)b.mad)->method, UMAD_METHOD_GET);
	/* Without a timeout nothing is returned at all. */
	unanswerable(&b, 0x1235);
	EQUAL(post(port, number, &b, 0, 1), 0);
	EQUAL(umad_poll(port, 20), -ETIMEDOUT);
	still_works(port, number);
}

static void id_that_is_outstanding(void)
{
	int port = open_port(), number = directed_agent(port);
	struct buffer b;

	/* A negative time is the longest. */
	unanswerable(&b, 6);
	EQUAL(post(port, number, &b, -1, -1), 0);
	EIO_BY(post(port, number, &b, 1, 0), EINVAL);
	EIO_BY(post(port, number, &b, INT_MIN, INT_MIN), EINVAL);
	/* Not the ID of another agent's request. */
	EQUAL(directed_agent(port), number + 1);
	EQUAL(post(port, number + 1, &b, 60000, 0), 0);
	/* The request ends with its agent. */
	EQUAL(umad_unregister(port, number), 0);
	EQUAL(directed_agent(port), number);
	EQUAL(post(port, number, &b, 60000, 0), 0);
	EQUAL(umad_poll(port, 0), -ETIMEDOUT);
	still_works(port, number);
}

/* More than a port may have outstanding: requests beyond the limit are returned at once, and others are not affected. */
static void twenty_thousand_outstanding(void)
{
	enum { SENT = 20000, LIMIT = 16384 };
	int port = open_port(), number = directed_agent(port), other = open_port(), length;
	int others = directed_agent(other);
	struct buffer b;

	for (int i = 0; i < SENT; i++) {
		unanswerable(&b, i);
		EQUAL(post(port, number, &b, 60000, 0), 0);
		if (i % 1000 == 0)
			still_works(other, others);
	}
	for (int i = LIMIT; i < SENT; i++) {
		EQUAL(take(port, &b, &length), number);
		EQUAL(length, 24);
		EQUAL(umad_status(&b), ENOMEM);
		EQUAL(tid_of(&b), i);
	}
	EQUAL(umad_poll(port, 0), -ETIMEDOUT);
	still_works(other, others);
	/* Requests of an agent end with it. */
	EQUAL(umad_unregister(port, number), 0);
	EQUAL(directed_agent(port), number);
	still_works(port, number);
}

enum { MANY = 5000 };

static void *sends_many(void *at)
{
	int port = ((int *)at)[0], number = ((int *)at)[1];
	struct buffer b;

	for (int i = 0; i < MANY; i++) {
		directed(&b, UMAD_METHOD_GET, UMAD_SM_ATTR_NODE_INFO, i, NULL, 0);
		EQUAL(post(port, number, &b, 60000, 0), 0);
	}
	return NULL;
}

/* Two threads send, each by its agent, and a third receives. */
static void threads_share_a_port(void)
{
	int port = open_port(), agents[2] = { directed_agent(port), directed_agent(port) }, length;
	int at[2][2] = { { port, agents[0] }, { port, agents[1] } };
	static bool seen[2][MANY];
	pthread_t senders[2];
	struct buffer b;

	for (int i = 0; i < 2; i++)
		EQUAL(pthread_create(&senders[i], NULL, sends_many, at[i]), 0);
	for (int i = 0; i < 2 * MANY; i++) {
		int number = take(port, &b, &length);

		CHECK(number == agents[0] || number == agents[1]);
		EQUAL(umad_status(&b), 0);
		CHECK(tid_of(&b) < MANY && !seen[number == agents[1]][tid_of(&b)]);
		seen[number == agents[1]][tid_of(&b)] = true;
	}
	for (int i = 0; i < 2; i++)
		EQUAL(pthread_join(senders[i], NULL), 0);
	EQUAL(umad_poll(port, 0), -ETIMEDOUT);
}

/* An index beyond the port's tables. */
static void addresses_that_cannot_be(void)
{
	int port = open_port(), length, number;
	ib_mad_addr_t far = { .gid = { 0xfe, 0x80 }, .gid_index = 255, .hop_limit = 1 };
	uint16_t lid = own_lid(port);
	struct buffer b;

	CHECK((number = agent(port, UMAD_CLASS_PERF_MGMT, 1, 0, NO_METHODS)) >= 0);
	to_own_lid(&b, UMAD_CLASS_PERF_MGMT, 1, UMAD_METHOD_GET, 1, lid);
	EQUAL(umad_set_pkey(&b, 0xffff), 0);
	EQUAL(post(port, number, &b, 30000, 0), 0);
	EQUAL(take(port, &b, &length), number);
	EQUAL(umad_status(&b), EINVAL);
	to_own_lid(&b, UMAD_CLASS_PERF_MGMT, 1, UMAD_METHOD_GET, 2, lid);
	EQUAL(umad_set_grh(&b, &far), 0);
	umad_get_mad_addr(&b)->gid_index = 255;
	EQUAL(post(port, number, &b, 30000, 0), 0);
	EQUAL(take(port, &b, &length), number);
	EQUAL(umad_status(&b), EINVAL);
	EQUAL(tid_of(&b), 2);
}

static const struct test tests[] = {
	TEST(lengths_that_cannot_be_sent),
	TEST(agents_that_are_not_registered),
	TEST(nothing_to_receive),
	TEST(buffers_without_room),
	TEST(long_answer_needs_its_room),
	TEST(request_without_an_answer_comes_back),
	TEST(id_that_is_outstanding),
	TEST(twenty_thousand_outstanding),
	TEST(threads_share_a_port),
	TEST(addresses_that_cannot_be),
};

CHECK_MAIN(tests)
