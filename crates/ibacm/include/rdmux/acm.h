/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * libibacm: asks the ACM service, ib_acm(1), for paths to names and addresses.
 *
 * Compile and link with `pkg-config --cflags --libs ibacm`. The service may be
 * rdmux's or the ibacm of rdma-core.
 *
 * All functions may be called from any thread, at the same time. None raises a
 * signal or waits longer than its timeout, whatever the service does. After
 * fork(2) a child has connections of its own; what it inherited it may use,
 * unless another thread was using it during the fork.
 *
 * What rdmux's service has cached is read from memory that it shares, without
 * a system call.
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
/* Of <infiniband/acm.h>, where rdma-core's ibacm is not installed. */
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
 * Calls that wait, by the names of 2009. Each returns 0, or -1 with errno set:
 * ENOTCONN before ib_acm_connect(); ECONNREFUSED if there is no service,
 * EHOSTUNREACH if its host has no address that is known,
 * EACCES if a stranger listens there, ECONNRESET if it closes the connection,
 * ETIMEDOUT, EPROTO if its answer is none; what the service says otherwise:
 * ENOMEM, EINVAL, ENODATA, ENOTCONN, ETIMEDOUT, EADDRNOTAVAIL.
 */

/* The service of all following calls of the process: the path of a socket that
 * begins with '/', or a host by name or address, where it listens on TCP (port
 * 6125, or the one in /run/ibacm-tcp.port); NULL or "" for the service that is
 * usual: in the directory $RDMUX_ACM_DIR, else of the virtual host, else the
 * one in /run. Fails if nobody listens there. */
int ib_acm_connect(char *dest_svc);

/* Calls that others are in go on. */
void ib_acm_disconnect(void);

/* How long each call may take, in milliseconds; 10,000 at first. Returns the
 * value before. For all threads. */
int rdmux_acm_set_timeout(int milliseconds);

/* The paths from a name or the usual source (NULL) to a name of at most 63
 * bytes, `*count` of them, the best first, to be freed by ib_acm_free_paths().
 * `flags` is 0, or ACM_FLAGS_NODELAY: ENODATA if they are not cached. If
 * `print` is not zero, the addresses are printed on the standard output. */
int ib_acm_resolve_name(char *src, char *dest, struct ibv_path_data **paths,
			int *count, uint32_t flags, int print);

/* The same of IPv4 and IPv6 addresses. */
int ib_acm_resolve_ip(struct sockaddr *src, struct sockaddr *dest,
		      struct ibv_path_data **paths, int *count, uint32_t flags,
		      int print);

#define ib_acm_free_paths(paths) free(paths)

/* Fills in the rest of a path record that has a DLID or a DGID; with
 * ACM_FLAGS_QUERY_SA subnet administration is asked for a record with the
 * fields that are not zero. */
int ib_acm_resolve_path(struct ibv_path_record *path, uint32_t flags);

/* The counters of the service (index 0), or of an endpoint, by its number or
 * by an address of ACM_MAX_ADDRESS bytes: `*count` of them, to be freed by
 * ib_acm_free_perf(). */
int ib_acm_query_perf(int index, uint64_t **counters, int *count);
int ib_acm_query_perf_ep_addr(uint8_t *src, uint8_t type, uint64_t **counters,
			      int *count);

#define ib_acm_free_perf(counters) free(counters)

/* What a counter counts; "Unknown" of an index that is none. */
const char *ib_acm_cntr_name(int index);

/* An endpoint of the service's host, by its number from 1 on among those of a
 * port, or of all (port 0): numbers in the order of the host, addresses as
 * text, to be freed by ib_acm_free_ep_data(). EINVAL if there is none. */
int ib_acm_enum_ep(int index, struct acm_ep_config_data **data, uint8_t port);

#define ib_acm_free_ep_data(data) free(data)

/*
 * Calls that do not wait. Any number of requests may be under way.
 */

/* Requests to one service. */
struct rdmux_acm;

/* Those of a service as ib_acm_connect() takes it. It is connected to when
 * something is asked, and again when it has restarted. NULL with errno set
 * without memory or descriptors, or for a name that is not known, which is
 * looked up here. */
struct rdmux_acm *rdmux_acm_open(const char *service);

/* Requests that are under way end without an answer. No other call may use it
 * any more. */
void rdmux_acm_close(struct rdmux_acm *acm);

/* A descriptor that is readable when rdmux_acm_next() has something to do:
 * for poll(2) and the like, and for nothing else. A child that was forked has
 * its own by the same number after its first call. */
int rdmux_acm_fd(struct rdmux_acm *acm);

/* Begin to resolve, for `timeout` milliseconds at most. What is cached is
 * answered at once. `context` comes back with the answer. Return the number
 * of the request, from 1 on, or 0 with errno set for arguments that cannot
 * be. */
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
	int error;      /* 0, or what errno is of calls that wait */
	int count;      /* of paths */
	struct ibv_path_data paths[RDMUX_ACM_MAX_PATHS];
};

/* Takes the next answer, in any order. Returns 1, or 0 if there is none now,
 * or -1 with errno set. Never waits. */
int rdmux_acm_next(struct rdmux_acm *acm, struct rdmux_acm_answer *answer);

/* Ends a request, which will have no answer. Returns 0, or -1 with ENOENT if
 * it is not under way and its answer was taken. */
int rdmux_acm_cancel(struct rdmux_acm *acm, uint64_t id);

#ifdef __cplusplus
}
#endif

#endif
