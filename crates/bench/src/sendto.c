/* Measures the nanoseconds per datagram of 64 bytes to a multicast group: by rdma_sendto, and by ibv_post_send with an existing address
 * handle. Prints both, one line per round. The two alternate within a round. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <err.h>
#include <rdma/rdma_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* The call of <rdmux/multicast.h>. It is resolved at run time, so that the distribution's headers and libraries suffice to build this. */
static int (*sendto_group)(struct rdma_cm_id *id, struct ibv_send_wr *wr, struct sockaddr *to);

enum { TURNS = 40, SENDS = 1600, BATCH = 32 };

static struct rdma_cm_id *id;
static struct sockaddr_in group;
static struct {
	struct ibv_ah *ah;
	uint32_t qpn, qkey;
} way;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double turn(int by_address)
{
	static char words[64];
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	double start = now();

	for (int n = 1; n <= SENDS; n++) {
		struct ibv_sge sge = { .addr = (uintptr_t)words, .length = sizeof(words) };
		struct ibv_send_wr wr = { .wr_id = (uint64_t)n, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_INLINE };

		if (n % BATCH == 0)
			wr.send_flags |= IBV_SEND_SIGNALED;
		if (by_address) {
			if (sendto_group(id, &wr, (struct sockaddr *)&group))
				err(1, "rdma_sendto");
		} else {
			wr.wr.ud.ah = way.ah;
			wr.wr.ud.remote_qpn = way.qpn;
			wr.wr.ud.remote_qkey = way.qkey;
			if (ibv_post_send(id->qp, &wr, &bad))
				err(1, "ibv_post_send");
		}
		if (n % BATCH == 0) {
			int got;

			while ((got = ibv_poll_cq(id->send_cq, 1, &wc)) == 0)
				;
			if (got < 0 || wc.status != IBV_WC_SUCCESS)
				errx(1, "a datagram was not sent: %s", got < 0 ? "no completion" : ibv_wc_status_str(wc.status));
		}
	}
	return now() - start;
}

int main(int argc, char **argv)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_UD, .cap = { 2 * BATCH, 1, 1, 1, 64 } };
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct sockaddr_in own = { .sin_family = AF_INET };
	struct rdma_cm_join_mc_attr_ex join = {
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		/* Does not receive its own datagrams: only sending is measured. */
		.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
		.addr = (struct sockaddr *)&group,
	};
	struct rdma_cm_event *event;

	*(void **)&sendto_group = dlsym(RTLD_DEFAULT, "rdma_sendto");
	if (!sendto_group)
		errx(1, "librdmacm has no rdma_sendto");
	group.sin_family = AF_INET;
	if (argc != 4 || !inet_aton(argv[1], &own.sin_addr) || !inet_aton(argv[2], &group.sin_addr))
		errx(2, "usage: %s OWN-ADDRESS GROUP ROUNDS", argv[0]);
	if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) || rdma_bind_addr(id, (struct sockaddr *)&own) ||
	    rdma_create_qp(id, NULL, &attr) || rdma_join_multicast_ex(id, &join, NULL) ||
	    rdma_get_cm_event(channel, &event))
		err(1, "joining %s on %s", argv[2], argv[1]);
	if (event->event != RDMA_CM_EVENT_MULTICAST_JOIN)
		errx(1, "joining: %s, status %d", rdma_event_str(event->event), event->status);
	way.ah = ibv_create_ah(id->pd, &event->param.ud.ah_attr);
	way.qpn = event->param.ud.qp_num;
	way.qkey = event->param.ud.qkey;
	if (!way.ah)
		err(1, "ibv_create_ah");
	rdma_ack_cm_event(event);
	turn(1), turn(0);
	for (int round = atoi(argv[3]); round > 0; round--) {
		double address = 0, handle = 0;

		for (int n = 0; n < TURNS; n++) {
			handle += turn(0);
			address += turn(1);
		}
		printf("%.3f %.3f\n", address / (TURNS * SENDS), handle / (TURNS * SENDS));
	}
	ibv_destroy_ah(way.ah);
	rdma_leave_multicast(id, (struct sockaddr *)&group);
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(channel);
	return 0;
}
