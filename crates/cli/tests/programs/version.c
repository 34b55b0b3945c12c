/* Checks that the library has the version that this was compiled with. */
#define _GNU_SOURCE /* dlvsym */
#include <rdmux/rdmux.h>
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
	/* Not linked, so that this can be compiled without the library. */
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);
	unsigned int (*version)(void) =
		(unsigned int (*)(void))(library ? dlvsym(library, "rdmux_version", "RDMUX_0.1") : 0);

	if (!version) {
		puts(dlerror());
		return 2;
	}
	printf("%x\n", version());
	return version() != RDMUX_VERSION;
}
