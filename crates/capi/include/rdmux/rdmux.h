/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Extensions of rdmux to libibverbs and librdmacm, whose own headers are
 * <infiniband/verbs.h> and <rdma/rdma_cma.h>.
 *
 * Compile and link with `pkg-config --cflags --libs rdmux`.
 */
#ifndef RDMUX_H
#define RDMUX_H

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. */
#define RDMUX_VERSION_MAJOR 0
#define RDMUX_VERSION_MINOR 1
#define RDMUX_VERSION_PATCH 0

/* Returns a version as a number that compares: 16 bits major, 8 bits minor, 8 bits patch. */
#define RDMUX_MAKE_VERSION(major, minor, patch) \
	(((unsigned int)(major) << 16) | ((unsigned int)(minor) << 8) | (unsigned int)(patch))
#define RDMUX_VERSION \
	RDMUX_MAKE_VERSION(RDMUX_VERSION_MAJOR, RDMUX_VERSION_MINOR, RDMUX_VERSION_PATCH)

/* Returns the version of the library that the program runs with. */
unsigned int rdmux_version(void);

/* Returns the version as text, "0.1.0". The pointer stays valid. */
const char *rdmux_version_string(void);

#ifdef __cplusplus
}
#endif

#endif
