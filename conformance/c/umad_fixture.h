/* A port of a subnet for management datagrams, and the least that a manager does with it. */
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

/* An agent that nothing is for but answers to its own requests. */
enum { NO_METHODS = 0 };

/* The default port, opened. It fails if there is none; the caller of this program makes one. */
int open_port(void);

/* Registers an agent of a class that has this version, for requests of the methods whose bits are set, 64 of them. Its number,
 * or what umad_register returns. */
int agent(int port, int mgmt_class, int version, uint8_t rmpp, uint64_t methods);

/* An agent for directed routes. */
int directed_agent(int port);

/* Makes a request along a directed route of so many hops, by the ports in `route`. */
void directed(struct buffer *b, uint8_t method, uint16_t attr_id, uint32_t tid, const uint8_t *route,
	      uint8_t hops);

/* Makes a request that nobody answers: no switch has so many ports, and an adapter sends nothing on. */
void unanswerable(struct buffer *b, uint32_t tid);

/* Makes a MAD of general services to the port's own LID. */
void to_own_lid(struct buffer *b, uint8_t mgmt_class, uint8_t version, uint8_t method, uint32_t tid,
		uint16_t lid);

/* Sends a MAD of 256 bytes. What umad_send returns; errno is the device's. */
int post(int port, int agent, struct buffer *b, int timeout_ms, int retries);

/* Sends a MAD of this length. */
int post_length(int port, int agent, struct buffer *b, int length, int timeout_ms);

/* Receives a MAD of 256 bytes at most, waited for. The agent, or what umad_recv returns. */
int take(int port, struct buffer *b, int *length);

/* Takes the answer to a request, which must be for this agent, with this ID and without an error. */
void answered(int port, int agent, uint32_t tid, struct buffer *b);

/* The lower half of a transaction ID. */
uint32_t tid_of(const struct buffer *b);

/* The port's LID. A port that has none gets one, from this test in place of a manager. */
uint16_t own_lid(int port);

#endif
