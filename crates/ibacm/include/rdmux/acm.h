/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * libibacm: asks the ACM service, ib_acm(1), for paths to names and addresses.
 *
 * Compile and link with `pkg-config --cflags --libs ibacm`. The service may be
 * rdmux's or the ibacm of rdma-core.
 *
 * All functions may be called from any thread concurrently. None raises a
 * signal or waits longer than its timeout, whatever the service does. After
 * fork(2), a child opens its own connections. It may use inherited objects,
 * unless another thread was using them during the fork.
 *
 * Entries that rdmux's service has cached are read from its shared memory,
 * without a system call.
 */
#ifndef RDMUX_ACM_H
#define RDMUX_ACM_H

#include <infiniband/sa.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>

#if defined(__has_include)
#if __has_include(<infiniband/acm.h>)
#include <infiniband/acm.h>
#define RDMUX_ACM_HAS_TYPES 1
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

#ifndef RDMUX_ACM_HAS_TYPES
/* From <infiniband/acm.h>, for systems without rdma-core's ibacm. */
#define ACM_FLAGS_QUERY_SA (1U << 31)
#define ACM_FLAGS_NODELAY (1U << 30)
#define ACM_MAX_ADDRESS 64
#define ACM_MAX_PROV_NAME 64
#define ACM_EP_INFO_NAME 0x0001
#define ACM_EP_INFO_ADDRESS_IP 0x0002
#define ACM_EP_INFO_ADDRESS_IP6 0x0003

union acm_ep_info {
	uint8_t addr[ACM_MAX_ADDRESS];
	uint8_t name[ACM_MAX_ADDRESS];
	struct ibv_path_record path;
};

/* An endpoint: a P_Key of a port, and its names and addresses. */
struct acm_ep_config_data {
	uint64_t dev_guid;
	uint8_t port_num;
	uint8_t phys_port_cnt;
	uint8_t rsvd[2];
	uint16_t pkey;
	uint16_t addr_cnt;
	uint8_t prov_name[ACM_MAX_PROV_NAME];
	union acm_ep_info addrs[];
};
#endif

/*
 * Blocking calls, with the names of 2009. Each returns 0, or -1 with errno set:
 * ENOTCONN before ib_acm_connect(), ECONNREFUSED if there is no service,
 * EHOSTUNREACH if the service's host has no known address, EACCES if an
 * untrusted user listens there, ECONNRESET if it closes the connection,
 * ETIMEDOUT, EPROTO if its answer is invalid, or the service's own status:
 * ENOMEM, EINVAL, ENODATA, ENOTCONN, ETIMEDOUT, EADDRNOTAVAIL.
 */

/* Sets the service of all later calls of the process: the path of a socket,
 * which begins with '/', or the name or address of a host where it listens on
 * TCP (port 6125, or the one in /run/ibacm-tcp.port). NULL or "" is the default
 * service: in the directory $RDMUX_ACM_DIR, or else of the virtual host, or
 * else in /run. Fails if no service listens there. */
int ib_acm_connect(char *dest_svc);

/* Disconnects later calls. Calls in progress continue. */
void ib_acm_disconnect(void);

/* Sets the timeout of each call, in milliseconds, for all threads; 10,000 by
 * default. Returns the previous value. */
int rdmux_acm_set_timeout(int milliseconds);

/* Returns the paths from a name or the default source (NULL) to a name of at
 * most 63 bytes: `*count` paths, best first, to be freed by
 * ib_acm_free_paths(). `flags` is 0, or ACM_FLAGS_NODELAY: ENODATA if they are
 * not cached. If `print` is not zero, prints the addresses on standard output. */
int ib_acm_resolve_name(char *src, char *dest, struct ibv_path_data **paths,
			int *count, uint32_t flags, int print);

/* The same for IPv4 and IPv6 addresses. */
int ib_acm_resolve_ip(struct sockaddr *src, struct sockaddr *dest,
		      struct ibv_path_data **paths, int *count, uint32_t flags,
		      int print);

#define ib_acm_free_paths(paths) free(paths)

/* Completes a path record that has a DLID or a DGID. With ACM_FLAGS_QUERY_SA,
 * queries subnet administration for a record with the nonzero fields. */
int ib_acm_resolve_path(struct ibv_path_record *path, uint32_t flags);

/* Returns the counters of the service (index 0) or of an endpoint, given by its
 * number or by an address of ACM_MAX_ADDRESS bytes: `*count` counters, to be
 * freed by ib_acm_free_perf(). */
int ib_acm_query_perf(int index, uint64_t **counters, int *count);
int ib_acm_query_perf_ep_addr(uint8_t *src, uint8_t type, uint64_t **counters,
			      int *count);

#define ib_acm_free_perf(counters) free(counters)

/* Returns the name of a counter; "Unknown" for an invalid index. */
const char *ib_acm_cntr_name(int index);

/* Returns an endpoint of the service's host, given by its number from 1 on among
 * those of a port, or of all ports (port 0). Integers are in host byte order,
 * addresses are text. To be freed by ib_acm_free_ep_data(). EINVAL if there is
 * none. */
int ib_acm_enum_ep(int index, struct acm_ep_config_data **data, uint8_t port);

#define ib_acm_free_ep_data(data) free(data)

/*
 * Nonblocking calls. Any number of requests may be outstanding.
 */

/* Requests to one service. */
struct rdmux_acm;

/* Returns requests to a service, named as for ib_acm_connect(). Connects on the
 * first request, and again after a restart of the service. NULL with errno set
 * if memory or descriptors are exhausted, or if the name, which is looked up
 * here, is unknown. */
struct rdmux_acm *rdmux_acm_open(const char *service);

/* Ends outstanding requests without an answer and frees `acm`, which no other
 * call may use any more. */
void rdmux_acm_close(struct rdmux_acm *acm);

/* Returns a descriptor that is readable when rdmux_acm_next() has work. Use it
 * only with poll(2) and the like. After its first call, a forked child has its
 * own descriptor of the same number. */
int rdmux_acm_fd(struct rdmux_acm *acm);

/* Start to resolve, for `timeout` milliseconds at most. Cached paths are
 * answered at once. The answer contains `context`. Return the id of the
 * request, from 1 on, or 0 with errno set for invalid arguments. */
uint64_t rdmux_acm_resolve_name(struct rdmux_acm *acm, const char *src,
				const char *dest, uint32_t flags, int timeout,
				void *context);
uint64_t rdmux_acm_resolve_ip(struct rdmux_acm *acm, const struct sockaddr *src,
			      const struct sockaddr *dest, uint32_t flags,
			      int timeout, void *context);
uint64_t rdmux_acm_resolve_path(struct rdmux_acm *acm,
				const struct ibv_path_record *path,
				uint32_t flags, int timeout, void *context);

#define RDMUX_ACM_MAX_PATHS 8

/* An answer. */
struct rdmux_acm_answer {
	uint64_t id;    /* of the request */
	void *context;  /* of the request */
	int error;      /* 0, or the errno of a blocking call */
	int count;      /* of paths */
	struct ibv_path_data paths[RDMUX_ACM_MAX_PATHS];
};

/* Takes the next answer, in any order. Returns 1, 0 if there is none yet, or
 * -1 with errno set. Never blocks. */
int rdmux_acm_next(struct rdmux_acm *acm, struct rdmux_acm_answer *answer);

/* Cancels a request, which gets no answer. Returns 0, or -1 with ENOENT if it
 * is unknown or its answer was already taken. */
int rdmux_acm_cancel(struct rdmux_acm *acm, uint64_t id);

#ifdef __cplusplus
}
#endif

#endif
