#define _GNU_SOURCE
#include "umad_fixture.h"

#include <arpa/inet.h>
#include <string.h>

/* Offsets in PortInfo of LIDs, and of the states that a Set must not change. */
enum { LID = 16, SM_LID = 18, STATE = 32, PHYSICAL_STATE = 33 };

static struct umad_smp *smp(struct buffer *b)
{
	return (struct umad_smp *)b->mad;
}

int open_port(void)
{
	int port;

	EQUAL(umad_init(), 0);
	port = umad_open_port(NULL, 0);
	if (port < 0)
		FAIL("no port for management datagrams: %d", port);
	return port;
}

int agent(int port, int mgmt_class, int version, uint8_t rmpp, uint64_t methods)
{
	uint64_t mask[2] = { methods, 0 };

	return umad_register(port, mgmt_class, version, rmpp, (long *)mask);
}

int directed_agent(int port)
{
	int number = agent(port, UMAD_CLASS_SUBN_DIRECTED_ROUTE, 1, 0, NO_METHODS);

	if (number < 0)
		FAIL("no agent for directed routes: %d", number);
	return number;
}

void directed(struct buffer *b, uint8_t method, uint16_t attr_id, uint32_t tid, const uint8_t *route,
	      uint8_t hops)
{
	memset(b, 0, sizeof(*b));
	EQUAL(umad_set_addr(b, 0xffff, 0, 0, 0), 0);
	smp(b)->base_version = UMAD_BASE_VERSION;
	smp(b)->mgmt_class = UMAD_CLASS_SUBN_DIRECTED_ROUTE;
	smp(b)->class_version = 1;
	smp(b)->method = method;
	smp(b)->hop_cnt = hops;
	smp(b)->tid = htobe64(tid);
	smp(b)->attr_id = htons(attr_id);
	smp(b)->dr_slid = smp(b)->dr_dlid = 0xffff;
	memcpy(smp(b)->initial_path + 1, route, hops);
}

void unanswerable(struct buffer *b, uint32_t tid)
{
	static const uint8_t nowhere[] = { 1, 254 };

	directed(b, UMAD_METHOD_GET, UMAD_SM_ATTR_NODE_INFO, tid, nowhere, 2);
}

void to_own_lid(struct buffer *b, uint8_t mgmt_class, uint8_t version, uint8_t method, uint32_t tid,
		uint16_t lid)
{
	struct umad_hdr *header = (struct umad_hdr *)b->mad;

	memset(b, 0, sizeof(*b));
	EQUAL(umad_set_addr(b, lid, 1, 0, (int)UMAD_QKEY), 0);
	header->base_version = UMAD_BASE_VERSION;
	header->mgmt_class = mgmt_class;
	header->class_version = version;
	header->method = method;
	header->tid = htobe64(tid);
}

int post_length(int port, int agent, struct buffer *b, int length, int timeout_ms)
{
	return umad_send(port, agent, b, length, timeout_ms, 0);
}

int post(int port, int agent, struct buffer *b, int timeout_ms, int retries)
{
	return umad_send(port, agent, b, sizeof(b->mad), timeout_ms, retries);
}

int take(int port, struct buffer *b, int *length)
{
	*length = sizeof(b->mad);
	return umad_recv(port, b, length, -1);
}

void answered(int port, int agent, uint32_t tid, struct buffer *b)
{
	const struct umad_hdr *header = (const struct umad_hdr *)b->mad;
	int length;

	EQUAL(take(port, b, &length), agent);
	EQUAL(umad_status(b), 0);
	EQUAL(length, 256);
	EQUAL(header->method, UMAD_METHOD_GET_RESP);
	EQUAL(tid_of(b), tid);
	EQUAL(ntohs(header->status) & ~UMAD_SMP_DIRECTION, 0);
}

uint32_t tid_of(const struct buffer *b)
{
	return be64toh(((const struct umad_hdr *)b->mad)->tid) & 0xffffffff;
}

static uint16_t lid_in(struct buffer *b)
{
	uint16_t lid;

	memcpy(&lid, smp(b)->data + LID, sizeof(lid));
	return ntohs(lid);
}

uint16_t own_lid(int port)
{
	int number = directed_agent(port);
	uint16_t lid = htons(1);
	struct buffer b;

	directed(&b, UMAD_METHOD_GET, UMAD_SM_ATTR_PORT_INFO, 1, NULL, 0);
	EQUAL(post(port, number, &b, 30000, 0), 0);
	answered(port, number, 1, &b);
	if (lid_in(&b) == 0) {
		struct buffer set;

		directed(&set, UMAD_METHOD_SET, UMAD_SM_ATTR_PORT_INFO, 2, NULL, 0);
		memcpy(smp(&set)->data, smp(&b)->data, UMAD_LEN_SMP_DATA);
		memcpy(smp(&set)->data + LID, &lid, sizeof(lid));
		memcpy(smp(&set)->data + SM_LID, &lid, sizeof(lid));
		smp(&set)->data[STATE] &= 0xf0;
		smp(&set)->data[PHYSICAL_STATE] = 0;
		EQUAL(post(port, number, &set, 30000, 0), 0);
		answered(port, number, 2, &b);
	}
	EQUAL(umad_unregister(port, number), 0);
	return lid_in(&b);
}
