/* Without arguments: prints the address of a secret, and waits until standard input ends. With a process and
   an address: copies the secret from there and prints it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

static char secret[] = "secret";

int main(int argc, char **argv)
{
	char copy[sizeof secret], byte;
	struct iovec here = { copy, sizeof copy }, there;

	if (argc < 3) {
		printf("%d %llu\n", getpid(), (unsigned long long)(size_t)secret);
		fflush(stdout);
		return read(0, &byte, 1) != 0;
	}
	there.iov_base = (void *)(size_t)strtoull(argv[2], NULL, 10);
	there.iov_len = sizeof copy;
	if (process_vm_readv(atoi(argv[1]), &here, 1, &there, 1, 0) != sizeof copy) {
		perror("process_vm_readv");
		return 1;
	}
	puts(copy);
	return 0;
}
