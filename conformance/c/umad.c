/* libibumad without a subnet: adapters read from files, invalid arguments, and ids of ports that are not open.
 * Each test writes the files that it needs; the library that redirects paths shows them (RDMUX_VIEW). */
#define _GNU_SOURCE
#include "check.h"

#include <infiniband/umad.h>
#include <infiniband/umad_str.h>
#include <infiniband/umad_types.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/rdmux-umad-XXXXXX";

static void remove_tree(void)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -rf %s", root);
	if (system(command) != 0)
		perror(command);
}

/* Writes a file below /sys/class with one line. */
static void put(const char *text, const char *format, ...)
{
	char path[PATH_MAX];
	va_list args;
	FILE *file;
	int n = snprintf(path, sizeof(path), "%s/sys/class/", root);

	va_start(args, format);
	vsnprintf(path + n, sizeof(path) - n, format, args);
	va_end(args);
	for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		CHECK(mkdir(path, 0700) == 0 || errno == EEXIST);
		*slash = '/';
	}
	CHECK((file = fopen(path, "w")) != NULL);
	CHECK(fprintf(file, "%s\n", text) > 0);
	EQUAL(fclose(file), 0);
}

/* Starts with an empty tree of files for this test. */
static void fresh(void)
{
	CHECK(mkdtemp(root) != NULL);
	EQUAL(atexit(remove_tree), 0);
	EQUAL(setenv("RDMUX_VIEW", root, 1), 0);
}

static void put_ca(const char *ca)
{
	put("1: CA", "infiniband/%s/node_type", ca);
	put("2.42.5000", "infiniband/%s/fw_ver", ca);
	put("0x1", "infiniband/%s/hw_rev", ca);
	put("MT4099", "infiniband/%s/hca_type", ca);
	put("0002:c903:0012:3456", "infiniband/%s/node_guid", ca);
	put("0002:c903:0012:3459", "infiniband/%s/sys_image_guid", ca);
}

static void put_port(const char *ca, int port, const char *state, const char *phys_state)
{
	static const char *const files[][2] = {
		{ "lid", "0x12" },	  { "lid_mask_count", "2" },
		{ "sm_lid", "0x1" },	  { "sm_sl", "3" },
		{ "rate", "2.5 Gb/sec (1X SDR)" }, { "cap_mask", "0x02514868" },
		{ "link_layer", "InfiniBand" },
		{ "gids/0", "fe80:0000:0000:0000:0002:c903:0012:3457" },
		{ "pkeys/0", "0xffff" },  { "pkeys/1", "0x8001" },
	};

	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++)
		put(files[i][1], "infiniband/%s/ports/%d/%s", ca, port, files[i][0]);
	put(state, "infiniband/%s/ports/%d/state", ca, port);
	put(phys_state, "infiniband/%s/ports/%d/phys_state", ca, port);
}

/* Writes two adapters: one with a port that is down and one that is up, and one with a port that is active. */
static void put_adapters(void)
{
	fresh();
	put_ca("b0");
	put_port("b0", 1, "1: DOWN", "2: Polling");
	put_port("b0", 2, "2: INIT", "5: LinkUp");
	put_ca("c0");
	put_port("c0", 1, "4: ACTIVE", "5: LinkUp");
}

static void put_mad_device(int number, const char *ca, const char *port)
{
	put("5", "infiniband_mad/abi_version");
	put(ca, "infiniband_mad/umad%d/ibdev", number);
	put(port, "infiniband_mad/umad%d/port", number);
}

static void machine_without_adapters(void)
{
	char names[4][UMAD_CA_NAME_LEN], path[64];
	__be64 guids[UMAD_CA_MAX_PORTS];
	umad_port_t port;
	umad_ca_t ca;

	fresh();
	EQUAL(umad_init(), 0);
	EQUAL(umad_get_cas_names(names, 4), 0);
	/* ibstat takes a nonzero errno for a failure. */
	errno = EBADF;
	if (umad_get_ca_device_list() || errno)
		FAIL("a list, or errno %d", errno);
	EQUAL(umad_get_ca(NULL, &ca), -ENODEV);
	EQUAL(umad_get_port(NULL, 0, &port), -ENODEV);
	EQUAL(umad_get_ca_portguids(NULL, guids, UMAD_CA_MAX_PORTS), -ENODEV);
	EQUAL(umad_get_issm_path(NULL, 0, path, sizeof(path)), -ENODEV);
	EQUAL(umad_open_port(NULL, 0), -EOPNOTSUPP);
	EQUAL(umad_done(), 0);
}

static void adapters_are_what_files_tell(void)
{
	char names[8][UMAD_CA_NAME_LEN];
	__be64 guids[UMAD_CA_MAX_PORTS];
	umad_port_t port;
	umad_ca_t ca;

	put_adapters();
	/* It has another protocol. */
	put_ca("a0");
	put("4: RNIC", "infiniband/a0/node_type");
	EQUAL(umad_get_cas_names(names, 8), 2);
	EQUAL(strcmp(names[0], "b0"), 0);
	EQUAL(strcmp(names[1], "c0"), 0);
	EQUAL(umad_get_cas_names(names, 1), 1);

	EQUAL(umad_get_ca("b0", &ca), 0);
	EQUAL(strcmp(ca.ca_name, "b0"), 0);
	EQUAL(ca.node_type, 1);
	EQUAL(ca.numports, 2);
	EQUAL(strcmp(ca.fw_ver, "2.42.5000"), 0);
	EQUAL(strcmp(ca.ca_type, "MT4099"), 0);
	EQUAL(strcmp(ca.hw_ver, "0x1"), 0);
	EQUAL(be64toh(ca.node_guid), 0x0002c90300123456);
	EQUAL(be64toh(ca.system_guid), 0x0002c90300123459);
	CHECK(!ca.ports[0] && ca.ports[1] && ca.ports[2] && !ca.ports[3]);
	EQUAL(ca.ports[1]->state, 1);
	EQUAL(ca.ports[2]->phys_state, 5);
	EQUAL(umad_release_ca(&ca), 0);

	EQUAL(umad_get_port("c0", 1, &port), 0);
	EQUAL(strcmp(port.ca_name, "c0"), 0);
	EQUAL(port.portnum, 1);
	EQUAL(port.base_lid, 0x12);
	EQUAL(port.lmc, 2);
	EQUAL(port.sm_lid, 1);
	EQUAL(port.sm_sl, 3);
	EQUAL(port.state, 4);
	EQUAL(port.rate, 2);
	EQUAL(be32toh(port.capmask), 0x02514868);
	EQUAL(be64toh(port.gid_prefix), 0xfe80000000000000);
	EQUAL(be64toh(port.port_guid), 0x0002c90300123457);
	EQUAL(port.pkeys_size, 2);
	EQUAL(port.pkeys[1], 0x8001);
	EQUAL(strcmp(port.link_layer, "InfiniBand"), 0);
	EQUAL(umad_release_port(&port), 0);

	EQUAL(umad_get_ca_portguids("b0", guids, UMAD_CA_MAX_PORTS), 3);
	EQUAL(guids[0], 0);
	EQUAL(be64toh(guids[2]), 0x0002c90300123457);
}

static void default_port_is_the_best_of_all(void)
{
	umad_port_t port;
	umad_ca_t ca;

	put_adapters();
	EQUAL(umad_get_port(NULL, 0, &port), 0);
	EQUAL(strcmp(port.ca_name, "c0"), 0);
	EQUAL(umad_release_port(&port), 0);
	EQUAL(umad_get_ca(NULL, &ca), 0);
	EQUAL(strcmp(ca.ca_name, "c0"), 0);
	EQUAL(umad_release_ca(&ca), 0);
	EQUAL(umad_get_port("b0", 0, &port), 0);
	EQUAL(port.portnum, 2);
	EQUAL(umad_release_port(&port), 0);
	EQUAL(umad_get_port(NULL, 2, &port), 0);
	EQUAL(strcmp(port.ca_name, "b0"), 0);
	EQUAL(umad_release_port(&port), 0);
	CHECK(umad_get_port(NULL, 3, &port) < 0);
}

static void names_and_numbers_of_nothing(void)
{
	static const char *const names[] = { "", ".", "..", "x", "../class/infiniband/b0", "b0/",
					     "a name of more than twenty characters" };
	char cas[2][UMAD_CA_NAME_LEN];
	__be64 guids[2];
	umad_port_t port;
	umad_ca_t ca;

	put_adapters();
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		CHECK(umad_get_ca(names[i], &ca) < 0);
		CHECK(umad_get_port(names[i], 0, &port) < 0);
		CHECK(umad_get_port(names[i], 1, &port) < 0);
		CHECK(umad_get_ca_portguids(names[i], guids, 2) < 0);
	}
	EQUAL(umad_get_port("b0", 3, &port), -EIO);
	CHECK(umad_get_port("b0", -1, &port) < 0);
	CHECK(umad_get_port("b0", INT_MAX, &port) < 0);
	CHECK(umad_get_port("b0", INT_MIN, &port) < 0);
	EQUAL(umad_get_ca_portguids("b0", guids, 2), -ENOMEM);
	EQUAL(umad_get_ca_portguids("b0", guids, -1), -ENOMEM);
	EQUAL(umad_get_cas_names(cas, 0), 0);
	EQUAL(umad_get_cas_names(cas, -1), 0);
}

static void null_pointers(void)
{
	struct umad_reg_attr attr = { .mgmt_class = UMAD_CLASS_SUBN_ADM };
	uint32_t agent;

	put_adapters();
	put_mad_device(0, "c0", "1");
	CHECK(umad_get_cas_names(NULL, 2) < 0);
	CHECK(umad_get_ca("b0", NULL) < 0);
	CHECK(umad_get_port("b0", 1, NULL) < 0);
	CHECK(umad_get_ca_portguids("b0", NULL, 10) < 0);
	CHECK(umad_get_issm_path("c0", 1, NULL, 10) < 0);
	CHECK(umad_release_ca(NULL) < 0);
	CHECK(umad_release_port(NULL) < 0);
	CHECK(umad_sort_ca_device_list(NULL, 0) != 0);
	umad_free_ca_device_list(NULL);
	CHECK(umad_get_mad(NULL) == NULL);
	CHECK(umad_get_mad_addr(NULL) == NULL);
	CHECK(umad_status(NULL) != 0);
	CHECK(umad_set_addr(NULL, 1, 1, 0, 0) != 0);
	CHECK(umad_set_addr_net(NULL, 1, 1, 0, 0) != 0);
	CHECK(umad_set_grh(NULL, NULL) != 0);
	CHECK(umad_set_pkey(NULL, 0) != 0);
	CHECK(umad_get_pkey(NULL) < 0);
	umad_dump(NULL);
	umad_addr_dump(NULL);
	CHECK(umad_register2(0, NULL, &agent) > 0);
	CHECK(umad_register2(0, &attr, NULL) > 0);
}

/* One file of a port at a time is missing, or contains no number. */
static void files_that_cannot_be_read(void)
{
	static const char *const files[] = { "lid",   "lid_mask_count", "sm_lid", "sm_sl",
					     "state", "phys_state",	"rate",	  "cap_mask",
					     "gids/0" };
	char path[PATH_MAX];
	umad_port_t port;
	umad_ca_t ca;

	put_adapters();
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		put_port("c0", 1, "4: ACTIVE", "5: LinkUp");
		EQUAL(umad_get_ca("c0", &ca), 0);
		EQUAL(umad_release_ca(&ca), 0);
		snprintf(path, sizeof(path), "%s/sys/class/infiniband/c0/ports/1/%s", root, files[i]);
		EQUAL(unlink(path), 0);
		EQUAL(umad_get_port("c0", 1, &port), -EIO);
		EQUAL(umad_get_ca("c0", &ca), -EIO);
		EQUAL(mkdir(path, 0700), 0);
		EQUAL(umad_get_port("c0", 1, &port), -EIO);
		EQUAL(rmdir(path), 0);
	}
	put_port("c0", 1, "4: ACTIVE", "5: LinkUp");
	put("x", "infiniband/c0/ports/1/pkeys/0");
	EQUAL(umad_get_port("c0", 1, &port), -EIO);
	/* Then the other adapter is the default. */
	EQUAL(umad_get_ca(NULL, &ca), 0);
	EQUAL(strcmp(ca.ca_name, "b0"), 0);
	EQUAL(umad_release_ca(&ca), 0);
}

static void list_of_adapters(void)
{
	struct umad_device_node *head, *node;
	int count = 0;

	put_adapters();
	put_ca("a1");
	CHECK((head = umad_get_ca_device_list()) != NULL);
	for (node = head; node; node = node->next)
		count++;
	EQUAL(count, 3);
	EQUAL(umad_sort_ca_device_list(&head, 2), EINVAL);
	EQUAL(umad_sort_ca_device_list(&head, 3), 0);
	EQUAL(strcmp(head->ca_name, "a1"), 0);
	EQUAL(strcmp(head->next->ca_name, "b0"), 0);
	EQUAL(umad_sort_ca_device_list(&head, 0), 0);
	EQUAL(strcmp(head->next->next->ca_name, "c0"), 0);
	CHECK(!head->next->next->next);
	umad_free_ca_device_list(head);
}

static void ports_without_a_mad_device(void)
{
	char path[64];

	put_adapters();
	EQUAL(umad_open_port("c0", 1), -EOPNOTSUPP);
	put("4", "infiniband_mad/abi_version");
	EQUAL(umad_open_port("c0", 1), -EOPNOTSUPP);
	put_mad_device(3, "b0", "1");
	EQUAL(umad_open_port("c0", 1), -EINVAL);
	EQUAL(umad_open_port(NULL, 0), -EINVAL);
	EQUAL(umad_open_port("b0", 2), -EINVAL);
	EQUAL(umad_open_port("x", 1), -EINVAL);
	EQUAL(umad_open_port("x", 0), -ENODEV);
	EQUAL(umad_open_port("b0", -1), -EINVAL);
	EQUAL(umad_get_issm_path("c0", 1, path, sizeof(path)), -EINVAL);
	EQUAL(umad_get_issm_path("x", 0, path, sizeof(path)), -ENODEV);
	EQUAL(umad_get_issm_path("b0", 1, path, sizeof(path)), 0);
	EQUAL(strcmp(path, "/dev/infiniband/issm3"), 0);
	EQUAL(umad_get_issm_path("b0", 1, path, 5), 0);
	EQUAL(strcmp(path, "/dev"), 0);
	CHECK(umad_get_issm_path("b0", 1, path, 0) < 0);
	CHECK(umad_get_issm_path("b0", 1, path, -1) < 0);
	/* There is a file, but no such port behind it. */
	EQUAL(umad_open_port("b0", 1), -EIO);
	if (errno == 0)
		FAIL("errno does not say why");
}

static void ids_of_ports_that_are_not_open(void)
{
	struct umad_reg_attr attr = { .mgmt_class = UMAD_CLASS_PERF_MGMT, .mgmt_class_version = 1 };
	int ids[] = { -1, 0, 1, 999, INT_MAX, INT_MIN }, length;
	uint8_t oui[3] = { 0, 0x14, 5 };
	void *umad = umad_alloc(1, umad_size() + 256);
	uint32_t agent;

	CHECK(umad != NULL);
	fresh();
	for (size_t i = 0; i < sizeof(ids) / sizeof(*ids); i++) {
		EQUAL(umad_close_port(ids[i]), -EINVAL);
		EQUAL(umad_get_fd(ids[i]), -EINVAL);
		EQUAL(umad_register(ids[i], UMAD_CLASS_PERF_MGMT, 1, 0, NULL), -EINVAL);
		EQUAL(umad_register_oui(ids[i], 0x32, 0, oui, NULL), -EINVAL);
		CHECK(umad_register2(ids[i], &attr, &agent) > 0);
		EQUAL(umad_unregister(ids[i], 0), -EINVAL);
		EQUAL(umad_send(ids[i], 0, umad, 256, 0, 0), -EINVAL);
		EQUAL(umad_send(ids[i], 0, NULL, 256, 0, 0), -EINVAL);
		EQUAL(umad_send(ids[i], 0, umad, INT_MAX, 0, 0), -EINVAL);
		EQUAL(umad_poll(ids[i], 0), -EINVAL);
		EQUAL(umad_poll(ids[i], -1), -EINVAL);
		length = 256;
		EQUAL(umad_recv(ids[i], umad, &length, 0), -EINVAL);
		EQUAL(umad_recv(ids[i], umad, &length, -1), -EINVAL);
		EQUAL(umad_recv(ids[i], umad, NULL, 0), -EINVAL);
		EQUAL(length, 256);
	}
	/* The ids are descriptors, and they are still open. */
	CHECK(dup(1) > 0);
	umad_free(umad);
}

static void buffers(void)
{
	ib_mad_addr_t from = { .gid = { 0xfe, 0x80 }, .hop_limit = 64, .traffic_class = 7,
			       .flow_label = 0xabcde };
	ib_user_mad_t *umad = umad_alloc(1, umad_size() + 256);

	CHECK(umad != NULL);
	EQUAL(umad_size(), sizeof(*umad));
	CHECK(umad_get_mad(umad) == umad->data);
	CHECK(umad_get_mad_addr(umad) == &umad->addr);
	EQUAL(umad_set_addr(umad, 0x1234, 1, 5, UMAD_QKEY), 0);
	EQUAL(be16toh(umad->addr.lid), 0x1234);
	EQUAL(be32toh(umad->addr.qpn), 1);
	EQUAL(be32toh(umad->addr.qkey), UMAD_QKEY);
	EQUAL(umad->addr.sl, 5);
	EQUAL(umad_set_addr_net(umad, htobe16(7), htobe32(2), 3, htobe32(4)), 0);
	EQUAL(be16toh(umad->addr.lid), 7);
	EQUAL(be32toh(umad->addr.qpn), 2);
	EQUAL(umad_set_pkey(umad, 9), 0);
	EQUAL(umad_get_pkey(umad), 9);
	EQUAL(umad->addr.pkey_index, 9);
	EQUAL(umad_set_grh(umad, &from), 0);
	EQUAL(umad->addr.grh_present, 1);
	EQUAL(umad->addr.hop_limit, 64);
	EQUAL(be32toh(umad->addr.flow_label), 0xabcde);
	EQUAL(memcmp(umad->addr.gid, from.gid, 16), 0);
	EQUAL(umad_set_grh(umad, NULL), 0);
	EQUAL(umad->addr.grh_present, 0);
	umad->status = ETIMEDOUT;
	EQUAL(umad_status(umad), ETIMEDOUT);
	umad_free(umad);
}

static void words(void)
{
	EQUAL(strcmp(umad_class_str(UMAD_CLASS_SUBN_DIRECTED_ROUTE), "Subn"), 0);
	EQUAL(strcmp(umad_class_str(0xff), "<unknown>"), 0);
	EQUAL(strcmp(umad_method_str(UMAD_CLASS_SUBN_ADM, 0x92), "GetTableResp"), 0);
	EQUAL(strcmp(umad_attribute_str(UMAD_CLASS_SUBN_ADM, htobe16(0x35)), "PathRecord"), 0);
	EQUAL(strcmp(umad_common_mad_status_str(htobe16(UMAD_STATUS_BUSY)), "Busy"), 0);
	EQUAL(strcmp(umad_sa_mad_status_str(htobe16(0x0300)), "No Records"), 0);
	for (unsigned value = 0; value < 0x10000; value++) {
		CHECK(umad_attribute_str(value >> 8, value) != NULL);
		CHECK(umad_method_str(value >> 8, value) != NULL);
		CHECK(umad_common_mad_status_str(value) && umad_sa_mad_status_str(value));
	}
	EQUAL(umad_debug(-1), 0);
}

static const struct test tests[] = {
	TEST(machine_without_adapters),
	TEST(adapters_are_what_files_tell),
	TEST(default_port_is_the_best_of_all),
	TEST(names_and_numbers_of_nothing),
	TEST(null_pointers),
	TEST(files_that_cannot_be_read),
	TEST(list_of_adapters),
	TEST(ports_without_a_mad_device),
	TEST(ids_of_ports_that_are_not_open),
	TEST(buffers),
	TEST(words),
};

CHECK_MAIN(tests)
