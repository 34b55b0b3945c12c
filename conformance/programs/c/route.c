/* Calls rdma_getaddrinfo of the librdmacm at a path, and prints the result: for each answer its address family, and its
 * route in hexadecimal. It needs no headers: the structure is that of rdma-core since 2010. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct rdma_addrinfo {
	int flags, family, qp_type, port_space;
	uint32_t src_len, dst_len;
	void *src_addr, *dst_addr;
	char *src_canonname, *dst_canonname;
	size_t route_len;
	unsigned char *route;
	size_t connect_len;
	void *connect;
	struct rdma_addrinfo *next;
};

enum { RDMA_PS_TCP = 0x0106 };

typedef int lookup(const char *node, const char *service, const struct rdma_addrinfo *hints,
		   struct rdma_addrinfo **res);

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .port_space = RDMA_PS_TCP }, *found;
	void *library;
	lookup *find;

	if (argc != 3) {
		fprintf(stderr, "usage: route LIBRARY NODE\n");
		return 2;
	}
	library = dlopen(argv[1], RTLD_NOW);
	find = library ? (lookup *)dlsym(library, "rdma_getaddrinfo") : NULL;
	if (!find) {
		fprintf(stderr, "%s\n", dlerror());
		return 2;
	}
	if (find(argv[2], "7471", &hints, &found)) {
		perror("rdma_getaddrinfo");
		return 1;
	}
	for (; found; found = found->next) {
		printf("family %d route ", found->family);
		for (size_t i = 0; i < found->route_len; i++)
			printf("%02x", found->route[i]);
		printf("\n");
	}
	return 0;
}
