/* Asynchronous events of a port of a subnet: ibv_get_async_event(3) reports the manager's changes to it. The test is the manager, by
 * directed routes of no hop. */
#define _GNU_SOURCE
#include "umad_fixture.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <string.h>

/* Offsets in PortInfo of the fields that are set here. */
enum {
	GID_PREFIX = 8,
	LID = 16,
	SM_LID = 18,
	STATE = 32,
	PHYSICAL_STATE = 33,
	REREGISTER_AND_TIMEOUT = 51,
};
enum { DOWN = 1, ARMED = 3, ACTIVE = 4, REREGISTER = 0x80 };

static int port, manager;
static uint32_t tid;

static struct ibv_context *opened(void)
{
	struct ibv_context *context = NULL;
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list != NULL);
	for (int i = 0; list[i] && !context; i++) {
		struct ibv_port_attr attr;

		CHECK((context = ibv_open_device(list[i])) != NULL);
		EQUAL(ibv_query_port(context, 1, &attr), 0);
		if (attr.link_layer != IBV_LINK_LAYER_INFINIBAND) {
			EQUAL(ibv_close_device(context), 0);
			context = NULL;
		}
	}
	ibv_free_device_list(list);
	CHECK(context != NULL);
	port = open_port();
	manager = directed_agent(port);
	return context;
}

static uint8_t *asked(struct buffer *b, uint8_t method, uint16_t attr_id, uint32_t modifier)
{
	struct umad_smp *smp = (struct umad_smp *)b->mad;

	smp->method = method;
	smp->attr_id = htons(attr_id);
	smp->attr_mod = htonl(modifier);
	smp->tid = htobe64(++tid);
	EQUAL(post(port, manager, b, 30000, 0), 0);
	answered(port, manager, tid, b);
	return smp->data;
}

/* Reads an attribute of the local port, to be changed and passed to `set`. */
static uint8_t *get(struct buffer *b, uint16_t attr_id, uint32_t modifier)
{
	directed(b, UMAD_METHOD_GET, attr_id, tid, NULL, 0);
	return asked(b, UMAD_METHOD_GET, attr_id, modifier);
}

static void set(struct buffer *b, uint16_t attr_id, uint32_t modifier)
{
	uint8_t data[UMAD_LEN_SMP_DATA];

	memcpy(data, ((struct umad_smp *)b->mad)->data, sizeof(data));
	directed(b, UMAD_METHOD_SET, attr_id, tid, NULL, 0);
	memcpy(((struct umad_smp *)b->mad)->data, data, sizeof(data));
	asked(b, UMAD_METHOD_SET, attr_id, modifier);
}

/* Reads the PortInfo of the local port, with states that a Set leaves unchanged. */
static uint8_t *get_port_info(struct buffer *b)
{
	uint8_t *info = get(b, UMAD_SM_ATTR_PORT_INFO, 1);

	info[STATE] &= 0xf0;
	info[PHYSICAL_STATE] = 0;
	info[REREGISTER_AND_TIMEOUT] &= 0x7f;
	return info;
}

static void set_port_info(struct buffer *b)
{
	set(b, UMAD_SM_ATTR_PORT_INFO, 1);
}

static void set_lids(uint16_t lid, uint16_t sm_lid)
{
	struct buffer b;
	uint8_t *info = get_port_info(&b);

	info[LID] = lid >> 8, info[LID + 1] = lid & 0xff;
	info[SM_LID] = sm_lid >> 8, info[SM_LID + 1] = sm_lid & 0xff;
	set_port_info(&b);
}

static void set_state(uint8_t state)
{
	struct buffer b;

	get_port_info(&b)[STATE] |= state;
	set_port_info(&b);
}

/* Reads the next event, which must be this one, on the port. */
static void next(struct ibv_context *context, enum ibv_event_type type)
{
	struct ibv_async_event event;

	EQUAL(ibv_get_async_event(context, &event), 0);
	if (event.event_type != type)
		FAIL("event %s, not %s", ibv_event_type_str(event.event_type), ibv_event_type_str(type));
	EQUAL(event.element.port_num, 1);
	ibv_ack_async_event(&event);
}

/* Checks that there is no further event. */
static void no_more(struct ibv_context *context)
{
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };

	EQUAL(poll(&fd, 1, 0), 0);
}

static void lid_and_manager(void)
{
	struct ibv_context *context = opened();
	struct ibv_port_attr attr;
	uint16_t lid, sm_lid;

	/* Values that differ from its current ones, which another program may have set. */
	EQUAL(ibv_query_port(context, 1, &attr), 0);
	lid = attr.lid == 0x11 ? 0x12 : 0x11;
	sm_lid = attr.sm_lid == 0x21 ? 0x22 : 0x21;
	set_lids(lid, sm_lid);
	next(context, IBV_EVENT_LID_CHANGE);
	next(context, IBV_EVENT_SM_CHANGE);
	EQUAL(ibv_query_port(context, 1, &attr), 0);
	EQUAL(attr.lid, lid);
	EQUAL(attr.sm_lid, sm_lid);
	set_lids(lid, 0x23);
	next(context, IBV_EVENT_SM_CHANGE);
	set_lids(0x13, 0x23);
	next(context, IBV_EVENT_LID_CHANGE);
	no_more(context);
	EQUAL(ibv_close_device(context), 0);
}

static void active_and_down(void)
{
	struct ibv_context *context = opened();
	struct ibv_port_attr attr;

	set_state(ARMED);
	set_state(ACTIVE);
	next(context, IBV_EVENT_PORT_ACTIVE);
	EQUAL(ibv_query_port(context, 1, &attr), 0);
	EQUAL(attr.state, IBV_PORT_ACTIVE);
	set_state(DOWN);
	next(context, IBV_EVENT_PORT_ERR);
	no_more(context);
	EQUAL(ibv_close_device(context), 0);
}

static void registration_is_asked_for(void)
{
	struct ibv_context *context = opened();
	struct buffer b;

	get_port_info(&b)[REREGISTER_AND_TIMEOUT] |= REREGISTER;
	set_port_info(&b);
	next(context, IBV_EVENT_CLIENT_REREGISTER);
	no_more(context);
	EQUAL(ibv_close_device(context), 0);
}

static void pkeys_and_gids(void)
{
	struct ibv_context *context = opened();
	struct buffer b;
	union ibv_gid gid;
	__be16 pkey;
	uint8_t *table = get(&b, UMAD_SM_ATTR_PKEY_TABLE, 0);

	table[2] = 0x80, table[3] = table[3] == 5 ? 6 : 5;
	set(&b, UMAD_SM_ATTR_PKEY_TABLE, 0);
	next(context, IBV_EVENT_PKEY_CHANGE);
	EQUAL(ibv_query_pkey(context, 1, 1, &pkey), 0);
	EQUAL(ntohs(pkey) >> 8, 0x80);

	get_port_info(&b)[GID_PREFIX + 1] ^= 0x01;
	((struct umad_smp *)b.mad)->data[GID_PREFIX] = 0xfe;
	set_port_info(&b);
	next(context, IBV_EVENT_GID_CHANGE);
	EQUAL(ibv_query_gid(context, 1, 0, &gid), 0);
	get_port_info(&b);
	EQUAL(memcmp(gid.raw, ((struct umad_smp *)b.mad)->data + GID_PREFIX, 8), 0);
	no_more(context);
	EQUAL(ibv_close_device(context), 0);
}

static const struct test tests[] = {
	TEST(lid_and_manager),
	TEST(active_and_down),
	TEST(registration_is_asked_for),
	TEST(pkeys_and_gids),
};

CHECK_MAIN(tests)
