/* The protocol of text lines over TCP. Each line of the client gets one line as answer, "ok ..." or "err ...":
 *
 *   open TYPE RIGHTS QPN PSN MTU GID    ok QPN PSN MTU GID ADDR RKEY    connects the queue pairs
 *   recv LEN                            ok                             posts a receive
 *   wait SEED                           ok STATUS OPCODE LEN IMM FLAGS DIFF SRC_QP  a completion;
 *                                       with invalidation IMM is the key
 *   fill OFF LEN SEED                   ok                             writes the region
 *   check OFF LEN SEED                  ok | err DIFF                  compares the region
 *   peek OFF                            ok VALUE                       eight bytes of the region
 *   poke OFF VALUE                      ok
 *   bind LEN                            ok RKEY ADDR                   a key that may be invalidated
 *   state                               ok STATE                       of the queue pair
 *   limit N                             ok                             of the shared receive queue
 *   event                               ok EVENT                       the next asynchronous one
 *   drop                                ok                             deregisters the region
 *   compute MS                          ok                             then no verb for MS milliseconds
 *
 * TYPE is rc, uc, ud, or srq: rc with a shared receive queue.
 * Numbers are hexadecimal without 0x; STATUS, OPCODE, FLAGS and STATE are the verbs API's values; DIFF
 * is the offset of the first wrong byte or "-". The connection's end ends the session. */
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const struct addrinfo numeric = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST };

static void gid_of(int fd, union ibv_gid *gid)
{
	struct sockaddr_storage a;
	socklen_t len = sizeof a;

	memset(gid, 0, sizeof *gid);
	if (getsockname(fd, (struct sockaddr *)&a, &len))
		return;
	if (a.ss_family == AF_INET6) {
		memcpy(gid, &((struct sockaddr_in6 *)&a)->sin6_addr, 16);
	} else {
		gid->raw[10] = gid->raw[11] = 0xff;
		memcpy(gid->raw + 12, &((struct sockaddr_in *)&a)->sin_addr, 4);
	}
}

static void gid_text(const union ibv_gid *gid, char text[33])
{
	for (int i = 0; i < 16; i++)
		sprintf(text + 2 * i, "%02x", gid->raw[i]);
}

static bool gid_parse(const char *text, union ibv_gid *gid)
{
	unsigned b;

	for (int i = 0; i < 16; i++) {
		if (sscanf(text + 2 * i, "%2x", &b) != 1)
			return false;
		gid->raw[i] = (uint8_t)b;
	}
	return true;
}

/* ---- the server's answers */

static void answer(struct peer *p, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vfprintf(p->out, fmt, args);
	va_end(args);
	fputc('\n', p->out);
	fflush(p->out);
}

static void do_open(struct peer *p, const char *args, const union ibv_gid *local)
{
	char type[8], gid[33];

	if (p->qp || sscanf(args, "%7s %x %x %x %x %32s", type, &p->wants.rights, &p->you.qpn,
			    &p->you.psn, &p->you.mtu, gid) != 6 || !gid_parse(gid, &p->you.gid))
		return answer(p, "err open");
	p->wants.type = !strcmp(type, "uc") ? IBV_QPT_UC : !strcmp(type, "ud") ? IBV_QPT_UD : IBV_QPT_RC;
	p->wants.srq = !strcmp(type, "srq");
	p->wants.rnr_retry = p->wants.retry_cnt = 7;
	if (peer_create(p, local) || peer_connect(p))
		return answer(p, "err cannot open");
	gid_text(local, gid);
	answer(p, "ok %x %x %x %s %" PRIx64 " %x", p->me.qpn, p->me.psn, p->me.mtu, gid, p->me.addr,
	       p->me.rkey);
}

static void do_wait(struct peer *p, uint32_t seed)
{
	struct ibv_wc wc = { 0 };
	uint32_t skip = p->wants.type == IBV_QPT_UD ? GRH : 0, len, extra;
	int64_t diff = -1;
	char where[24] = "-";

	if (peer_poll(p, &wc))
		return answer(p, "err no completion");
	len = wc.status ? 0 : wc.byte_len;
	if (wc.opcode == IBV_WC_RECV && len >= skip)
		diff = compare(p->buf + REGION + skip, len - skip, seed);
	if (diff >= 0)
		sprintf(where, "%" PRIx64, (uint64_t)diff);
	/* rxe shows the kernel's value of the invalidation flag, 4 */
	if (p->wants.type == IBV_QPT_RC && wc.wc_flags & 4)
		wc.wc_flags ^= 4 | IBV_WC_WITH_INV;
	extra = wc.wc_flags & IBV_WC_WITH_INV ? wc.invalidated_rkey : ntohl(wc.imm_data);
	answer(p, "ok %x %x %x %x %x %s %x", wc.status, wc.opcode, len, extra, wc.wc_flags, where,
	       wc.src_qp);
}

/* A memory window (type 2) over the region; its key can be invalidated by the peer. */
static void do_bind(struct peer *p, uint32_t len)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_wc wc;

	p->mw = ibv_alloc_mw(p->pd, IBV_MW_TYPE_2);
	if (!p->mw)
		return answer(p, "err no window: %s", strerror(errno));
	wr.bind_mw.mw = p->mw;
	wr.bind_mw.rkey = ibv_inc_rkey(p->mw->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
		.mr = p->mr, .addr = at(p, 0), .length = len,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	if (ibv_post_send(p->qp, &wr, &bad) || peer_poll(p, &wc) || wc.status)
		return answer(p, "err bind");
	answer(p, "ok %x %" PRIx64, wr.bind_mw.rkey, at(p, 0));
}

/* Waits for the next asynchronous event except "communication established". */
static void do_event(struct peer *p)
{
	struct pollfd fd = { .fd = p->device->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	do {
		if (poll(&fd, 1, 10000) != 1 || ibv_get_async_event(p->device, &event))
			return answer(p, "err no event");
		ibv_ack_async_event(&event);
	} while (event.event_type == IBV_EVENT_COMM_EST);
	answer(p, "ok %x", event.event_type);
}

static void compute(uint32_t ms)
{
	struct timespec from, now;

	clock_gettime(CLOCK_MONOTONIC, &from);
	do {
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - from.tv_sec) * 1000 + (now.tv_nsec - from.tv_nsec) / 1000000 < ms);
}

static void do_drop(struct peer *p)
{
	int failed = ibv_dereg_mr(p->mr);

	p->mr = NULL;
	answer(p, failed ? "err drop" : "ok");
}

static void do_state(struct peer *p)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	if (ibv_query_qp(p->qp, &attr, IBV_QP_STATE, &init))
		return answer(p, "err state");
	answer(p, "ok %x", attr.qp_state);
}

static void do_limit(struct peer *p, uint32_t limit)
{
	struct ibv_srq_attr attr = { .srq_limit = limit };

	answer(p, !p->srq || ibv_modify_srq(p->srq, &attr, IBV_SRQ_LIMIT) ? "err limit" : "ok");
}

static void do_region(struct peer *p, const char *what, uint32_t off, uint32_t len, uint64_t third)
{
	int64_t diff;
	uint64_t value;

	if (off > REGION || len > REGION - off || off > REGION - 8)
		return answer(p, "err outside the region");
	if (!strcmp(what, "fill")) {
		fill(p->buf + off, len, (uint32_t)third);
		answer(p, "ok");
	} else if (!strcmp(what, "check")) {
		diff = compare(p->buf + off, len, (uint32_t)third);
		if (diff < 0)
			answer(p, "ok");
		else
			answer(p, "err %" PRIx64, (uint64_t)diff);
	} else if (!strcmp(what, "peek")) {
		memcpy(&value, p->buf + off, 8);
		answer(p, "ok %" PRIx64, value);
	} else {
		memcpy(p->buf + off, &third, 8);
		answer(p, "ok");
	}
}

static void handle(struct peer *p, const char *line, const union ibv_gid *local)
{
	char what[9] = "";
	uint32_t a = 0, b = 0;
	uint64_t value = 0;
	int skip = 0;

	sscanf(line, "%8s %n", what, &skip);
	if (!strcmp(what, "open"))
		return do_open(p, line + skip, local);
	if (!p->qp)
		return answer(p, "err not open");
	if (!strcmp(what, "poke"))
		sscanf(line + skip, "%x %" SCNx64, &a, &value);
	else
		sscanf(line + skip, "%x %x %" SCNx64, &a, &b, &value);
	if (!strcmp(what, "recv"))
		answer(p, a <= LOCAL && !peer_recv(p, a) ? "ok" : "err recv");
	else if (!strcmp(what, "wait"))
		do_wait(p, a);
	else if (!strcmp(what, "state"))
		do_state(p);
	else if (!strcmp(what, "limit"))
		do_limit(p, a);
	else if (!strcmp(what, "event"))
		do_event(p);
	else if (!strcmp(what, "drop"))
		do_drop(p);
	else if (!strcmp(what, "compute"))
		answer(p, "ok"), compute(a);
	else if (!strcmp(what, "bind"))
		do_bind(p, a);
	else if (strstr("fill check peek poke", what) && *what)
		do_region(p, what, a, b, value);
	else
		answer(p, "err unknown");
}

static void session(int fd)
{
	struct peer p = { .in = fdopen(fd, "r"), .out = fdopen(dup(fd), "w") };
	union ibv_gid local;
	char line[256];

	gid_of(fd, &local);
	while (p.in && p.out && fgets(line, sizeof line, p.in))
		handle(&p, line, &local);
	peer_destroy(&p);
}

int serve(const char *addr, const char *port)
{
	struct addrinfo *ai;
	int on = 1, fd, s;

	if (getaddrinfo(addr, port, &numeric, &ai))
		return fprintf(stderr, "verbs_peer: bad address %s\n", addr), 2;
	fd = socket(ai->ai_family, SOCK_STREAM, 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (fd < 0 || bind(fd, ai->ai_addr, ai->ai_addrlen) || listen(fd, 16))
		return perror("verbs_peer: listen"), 1;
	printf("serving\n");
	fflush(stdout);
	while ((s = accept(fd, NULL, NULL)) >= 0)
		session(s);
	return 1;
}

/* ---- the client's commands */

int control_open(struct peer *p, const char *addr, const char *port, union ibv_gid *local)
{
	struct addrinfo *ai;
	int fd;

	if (getaddrinfo(addr, port, &numeric, &ai))
		return -1;
	fd = socket(ai->ai_family, SOCK_STREAM, 0);
	if (fd >= 0 && !connect(fd, ai->ai_addr, ai->ai_addrlen)) {
		gid_of(fd, local);
		p->in = fdopen(fd, "r");
		p->out = fdopen(dup(fd), "w");
	}
	freeaddrinfo(ai);
	return p->in && p->out ? 0 : -1;
}

/* Sends a line and waits for the answer, whose text after "ok" is stored. Returns -1 for any other answer. */
int ask(struct peer *p, char *text, size_t size, const char *fmt, ...)
{
	char line[256];
	va_list args;

	va_start(args, fmt);
	vfprintf(p->out, fmt, args);
	va_end(args);
	fputc('\n', p->out);
	fflush(p->out);
	if (!fgets(line, sizeof line, p->in))
		strcpy(line, "err the server is gone");
	line[strcspn(line, "\n")] = 0;
	if (strncmp(line, "ok", 2)) {
		fprintf(stderr, "verbs_peer: the server says: %s\n", line);
		return -1;
	}
	if (text)
		snprintf(text, size, "%s", line + 2);
	return 0;
}

int session_open(struct peer *p, const union ibv_gid *local)
{
	static const char *const names[] = { [IBV_QPT_RC] = "rc", [IBV_QPT_UC] = "uc", [IBV_QPT_UD] = "ud" };
	unsigned rights = p->wants.rights;
	bool srq = p->wants.srq;
	char gid[33], text[256];

	p->wants.rights = ALL_RIGHTS;
	p->wants.srq = false;
	if (peer_create(p, local))
		return -1;
	gid_text(local, gid);
	if (ask(p, text, sizeof text, "open %s %x %x %x %x %s", srq ? "srq" : names[p->wants.type], rights, p->me.qpn,
		p->me.psn, p->me.mtu, gid) ||
	    sscanf(text, "%x %x %x %32s %" SCNx64 " %x", &p->you.qpn, &p->you.psn, &p->you.mtu, gid,
		   &p->you.addr, &p->you.rkey) != 6 || !gid_parse(gid, &p->you.gid))
		return -1;
	return peer_connect(p);
}
