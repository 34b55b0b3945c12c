/* Prints the address that rdma_getaddrinfo finds for each name. */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *found;
		char text[INET6_ADDRSTRLEN];

		if (rdma_getaddrinfo(argv[i], "7471", &hints, &found)) {
			puts("none");
			continue;
		}
		void *address = found->ai_family == AF_INET6
			? (void *)&((struct sockaddr_in6 *)found->ai_dst_addr)->sin6_addr
			: (void *)&((struct sockaddr_in *)found->ai_dst_addr)->sin_addr;
		puts(inet_ntop(found->ai_family, address, text, sizeof(text)));
		rdma_freeaddrinfo(found);
	}
	return 0;
}
