/* All three libraries in one process, as programs and plug-ins load them. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <link.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <string.h>
#include <unistd.h>

/* Not linked: the symbols come from the loaded libraries, as in a plug-in. */
static void *load(const char *name)
{
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);

	if (!library)
		FAIL("%s", dlerror());
	return library;
}

static void *symbol(void *library, const char *name, const char *version)
{
	void *address = dlvsym(library, name, version);

	if (!address)
		FAIL("%s", dlerror());
	return address;
}

/* Opens the first device with one library's functions. Returns its name. */
static const char *first_device(void *verbs)
{
	struct ibv_device **(*list)(int *) = symbol(verbs, "ibv_get_device_list", "IBVERBS_1.1");
	void (*free_list)(struct ibv_device **) = symbol(verbs, "ibv_free_device_list", "IBVERBS_1.1");
	struct ibv_context *(*open)(struct ibv_device *) =
		symbol(verbs, "ibv_open_device", "IBVERBS_1.1");
	int (*close)(struct ibv_context *) = symbol(verbs, "ibv_close_device", "IBVERBS_1.1");
	static char name[64];
	struct ibv_device **devices;
	struct ibv_context *context;

	CHECK((devices = list(NULL)) && devices[0]);
	strcpy(name, devices[0]->name);
	CHECK((context = open(devices[0])) != NULL);
	free_list(devices);
	EQUAL(close(context), 0);
	return name;
}

/* The names that programs link or load, each with a symbol and the version that they get of it. */
static const struct {
	const char *file, *symbol, *version;
} names[] = {
	{ "libibverbs.so.1", "ibv_get_device_list", "IBVERBS_1.1" },
	{ "librdmacm.so.1", "rdma_create_id", "RDMACM_1.0" },
	{ "libibumad.so.3", "umad_open_port", "IBUMAD_1.0" },
};

enum { NAMES = sizeof(names) / sizeof(*names) };

/* Returns the loader's entry of the library loaded by a name. */
static const struct link_map *loaded(int name)
{
	void *library = load(names[name].file);
	struct link_map *map;
	Dl_info info;

	EQUAL(dlinfo(library, RTLD_DI_LINKMAP, &map), 0);
	CHECK(dladdr(symbol(library, names[name].symbol, names[name].version), &info) != 0);
	if (info.dli_fbase != (void *)map->l_addr)
		FAIL("%s has %s from %s", names[name].file, names[name].symbol, info.dli_fname);
	return map;
}

static bool is_there(int name)
{
	return dlopen(names[name].file, RTLD_NOW | RTLD_NOLOAD) != NULL;
}

/* Whichever is loaded first, the others resolve to the same copy, which has all symbols under every name. */
static void loads_in_order(const int *order)
{
	const struct link_map *first;

	for (int i = 0; i < NAMES; i++)
		CHECK(!is_there(order[i]));
	first = loaded(order[0]);
	for (int i = 1; i < NAMES; i++) {
		void *library = load(names[order[i]].file);

		CHECK(loaded(order[i]) == first);
		for (int j = 0; j < NAMES; j++)
			symbol(library, names[j].symbol, names[j].version);
	}
	for (int i = 0; i < NAMES; i++)
		EQUAL(dlclose(load(names[order[i]].file)), 0);
}

static void one_copy_in_every_order(void)
{
	static const int orders[][NAMES] = {
		{ 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 },
	};

	for (size_t i = 0; i < sizeof(orders) / sizeof(*orders); i++) {
		int child = check_fork();

		if (child == 0) {
			loads_in_order(orders[i]);
			_exit(0);
		}
		check_child(child);
	}
}

/* Symbols of libibumad of 2.1 and 2.2 exist only in these versions. */
static void every_version_of_libibumad(void)
{
	void *umad = load("libibumad.so.3");
	int (*init)(void) = symbol(umad, "umad_init", "IBUMAD_1.0");

	symbol(umad, "umad_get_ca_device_list", "IBUMAD_1.1");
	symbol(umad, "umad_free_ca_device_list", "IBUMAD_1.1");
	symbol(umad, "umad_sort_ca_device_list", "IBUMAD_1.2");
	CHECK(!dlvsym(umad, "umad_sort_ca_device_list", "IBUMAD_1.0"));
	CHECK(!dlvsym(umad, "umad_init", "IBVERBS_1.1"));
	EQUAL(init(), 0);
}

/* The connection manager's context is on a device of the verbs library. */
static void one_object(void)
{
	void *verbs = load("libibverbs.so.1"), *cm = load("librdmacm.so.1");
	struct ibv_context **(*get)(int *) = symbol(cm, "rdma_get_devices", "RDMACM_1.0");
	void (*free_devices)(struct ibv_context **) = symbol(cm, "rdma_free_devices", "RDMACM_1.0");
	const char *(*name)(struct ibv_device *) =
		symbol(verbs, "ibv_get_device_name", "IBVERBS_1.1");
	struct ibv_context **contexts;
	int n = 0;

	CHECK((contexts = get(&n)) && n > 0);
	EQUAL(strcmp(name(contexts[0]->device), first_device(verbs)), 0);
	free_devices(contexts);
}

static void closed_and_opened_again(void)
{
	for (int i = 0; i < 3; i++) {
		void *verbs = load("libibverbs.so.1"), *cm = load("librdmacm.so.1");
		void *umad = load("libibumad.so.3");

		first_device(verbs);
		EQUAL(dlclose(umad), 0);
		/* In either order. */
		EQUAL(dlclose(i & 1 ? verbs : cm), 0);
		EQUAL(dlclose(i & 1 ? cm : verbs), 0);
	}
}

static void opened_and_closed_often(void)
{
	for (int i = 0; i < 10000; i++) {
		void *library = load(names[i % NAMES].file);

		if (i % 500 == 0)
			first_device(load("libibverbs.so.1"));
		EQUAL(dlclose(library), 0);
	}
}

static void *loads_and_ends(void *unused)
{
	void *verbs = load("libibverbs.so.1");

	(void)unused;
	first_device(verbs);
	EQUAL(dlclose(verbs), 0);
	return NULL;
}

/* Thread-specific data of the library are freed when the thread ends, after the library was closed. */
static void closed_by_a_thread_that_ends(void)
{
	pthread_t thread;

	for (int i = 0; i < 20; i++) {
		EQUAL(pthread_create(&thread, NULL, loads_and_ends, NULL), 0);
		EQUAL(pthread_join(thread, NULL), 0);
	}
}

/* Objects created before still work: the threads behind them are still running. */
static void closed_while_in_use(void)
{
	void *verbs = load("libibverbs.so.1");
	struct ibv_device **(*list)(int *) = symbol(verbs, "ibv_get_device_list", "IBVERBS_1.1");
	struct ibv_context *(*open)(struct ibv_device *) =
		symbol(verbs, "ibv_open_device", "IBVERBS_1.1");
	int (*close)(struct ibv_context *) = symbol(verbs, "ibv_close_device", "IBVERBS_1.1");
	struct ibv_device **devices;
	struct ibv_context *context;

	CHECK((devices = list(NULL)) && devices[0]);
	CHECK((context = open(devices[0])) != NULL);
	EQUAL(dlclose(verbs), 0);
	verbs = load("libibverbs.so.1");
	EQUAL(close(context), 0);
}

static void versions_of_2005_fail_as_they_should(void)
{
	void *verbs = load("libibverbs.so.1");
	void *(*list)(int *) = symbol(verbs, "ibv_get_device_list", "IBVERBS_1.0");
	int (*query)(void *, void *) = symbol(verbs, "ibv_query_device", "IBVERBS_1.0");

	REFUSED(list(NULL), EOPNOTSUPP);
	RETURNS(query(NULL, NULL), EOPNOTSUPP);
}

/* As libmlx5's constructor does. */
static void a_driver_may_register(void)
{
	void *verbs = load("libibverbs.so.1");
	void (*registers)(const void *) =
		symbol(verbs, "verbs_register_driver_34", "IBVERBS_PRIVATE_34");
	int (*command)(void *) = symbol(verbs, "ibv_cmd_dealloc_pd", "IBVERBS_PRIVATE_34");

	registers("an operations table");
	RETURNS(command(NULL), EOPNOTSUPP);
	first_device(verbs);
}

static const struct test tests[] = {
	TEST(one_copy_in_every_order),
	TEST(every_version_of_libibumad),
	TEST(one_object),
	TEST(closed_and_opened_again),
	TEST(opened_and_closed_often),
	TEST(closed_by_a_thread_that_ends),
	TEST(closed_while_in_use),
	TEST(versions_of_2005_fail_as_they_should),
	TEST(a_driver_may_register),
};

CHECK_MAIN(tests)
