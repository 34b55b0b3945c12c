/* A port of a subnet for management datagrams, and the minimum that a manager does with it. */
#ifndef UMAD_FIXTURE_H
#define UMAD_FIXTURE_H

#include "check.h"

#include <infiniband/umad.h>
#include <infiniband/umad_sa.h>
#include <infiniband/umad_sm.h>
#include <infiniband/umad_types.h>

/* Room for a header and this many bytes of a MAD. */
struct buffer {
	struct ib_user_mad umad;
	uint8_t mad[256];
};

/* An agent that gets only answers to its own requests. */
enum { NO_METHODS = 0 };

/* Opens the default port. Fails without one; the caller of this program creates one. */
int open_port(void);

/* Registers an agent of a class that has this version, for requests of the methods whose bits are set, 64 of them. Returns its number,
 * or the error of umad_register. */
int agent(int port, int mgmt_class, int version, uint8_t rmpp, uint64_t methods);

/* Registers an agent for directed routes. */
int directed_agent(int port);

/* Fills in a request along a directed route of so many hops, by the ports in `route`. */
void directed(struct buffer *b, uint8_t method, uint16_t attr_id, uint32_t tid, const uint8_t *route,
	      uint8_t hops);

/* Fills in a request that is never answered: no switch has so many ports, and an adapter does not forward. */
void unanswerable(struct buffer *b, uint32_t tid);

/* Fills in a MAD of general services to the port's own LID. */
void to_own_lid(struct buffer *b, uint8_t mgmt_class, uint8_t version, uint8_t method, uint32_t tid,
		uint16_t lid);

/* Sends a MAD of 256 bytes. Returns the result of umad_send; errno is the device's. */
int post(int port, int agent, struct buffer *b, int timeout_ms, int retries);

/* Sends a MAD of this length. */
int post_length(int port, int agent, struct buffer *b, int length, int timeout_ms);

/* Waits for a MAD of 256 bytes at most. Returns the agent, or the error of umad_recv. */
int take(int port, struct buffer *b, int *length);

/* Receives the answer to a request, which must be for this agent, with this ID and without an error. */
void answered(int port, int agent, uint32_t tid, struct buffer *b);

/* Returns the lower half of a transaction ID. */
uint32_t tid_of(const struct buffer *b);

/* Returns the port's LID. A port without one gets one from this test, in place of a manager. */
uint16_t own_lid(int port);

#endif
