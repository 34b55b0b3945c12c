/* The queue pair and the memory of one side. */
#include "peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int complain(const char *what)
{
	fprintf(stderr, "verbs_peer: %s: %s\n", what, strerror(errno));
	return -1;
}

/* Opens the device that has `local` in its GID table, as RoCE v2. */
static int find_device(struct peer *p, const union ibv_gid *local)
{
	int n = 0;
	struct ibv_device **list = ibv_get_device_list(&n);

	for (int d = 0; list && d < n && !p->device; d++) {
		struct ibv_context *c = ibv_open_device(list[d]);
		struct ibv_gid_entry e;

		for (unsigned i = 0; c && i < 64 && !p->device; i++)
			if (!ibv_query_gid_ex(c, 1, i, &e, 0) &&
			    e.gid_type == IBV_GID_TYPE_ROCE_V2 && !memcmp(&e.gid, local, 16)) {
				p->device = c;
				p->gid_index = (int)i;
			}
		if (c && !p->device)
			ibv_close_device(c);
	}
	if (list)
		ibv_free_device_list(list);
	errno = ENODEV;
	return p->device ? 0 : complain("no device has this address");
}

int peer_create(struct peer *p, const union ibv_gid *local)
{
	struct ibv_port_attr port;
	struct ibv_qp_init_attr init = {
		.qp_type = p->wants.type,
		.cap = { .max_send_wr = 256, .max_recv_wr = 256, .max_send_sge = 16,
			 .max_recv_sge = 4, .max_inline_data = 64 },
	};
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 64, .max_sge = 1 } };
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
		.qp_access_flags = ALL_RIGHTS & ~IBV_ACCESS_LOCAL_WRITE,
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

	if (find_device(p, local) || ibv_query_port(p->device, 1, &port))
		return -1;
	if (p->wants.type == IBV_QPT_UC)
		attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	p->buf = aligned_alloc(4096, REGION + LOCAL);
	p->pd = ibv_alloc_pd(p->device);
	p->cq = ibv_create_cq(p->device, 1024, NULL, NULL, 0);
	if (!p->buf || !p->pd || !p->cq)
		return complain("resources");
	memset(p->buf, 0, REGION + LOCAL);
	p->mr = ibv_reg_mr(p->pd, p->buf, REGION + LOCAL, p->wants.rights);
	init.send_cq = init.recv_cq = p->cq;
	if (p->wants.srq && !(p->srq = ibv_create_srq(p->pd, &srq)))
		return complain("shared receive queue");
	init.srq = p->srq;
	if (!p->mr || !(p->qp = ibv_create_qp(p->pd, &init)))
		return complain("memory region or queue pair");
	mask |= p->wants.type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	if ((errno = ibv_modify_qp(p->qp, &attr, mask)))
		return complain("to INIT");
	p->me = (struct side){ .qpn = p->qp->qp_num, .psn = 0xfffff0, .mtu = port.active_mtu,
			       .rkey = p->mr->rkey, .addr = (uintptr_t)p->buf, .gid = *local };
	return 0;
}

int peer_connect(struct peer *p)
{
	bool rc = p->wants.type == IBV_QPT_RC, ud = p->wants.type == IBV_QPT_UD;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = p->me.mtu < p->you.mtu ? p->me.mtu : p->you.mtu,
		.dest_qp_num = p->you.qpn, .rq_psn = p->you.psn,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12, /* 0.64 ms */
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = p->you.gid, .sgid_index = (uint8_t)p->gid_index,
				      .hop_limit = 64 } },
	};
	int mask = IBV_QP_STATE;

	if (!ud)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (rc)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	if (ud && !(p->ah = ibv_create_ah(p->pd, &attr.ah_attr)))
		return complain("address handle");
	if ((errno = ibv_modify_qp(p->qp, &attr, mask)))
		return complain("to RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = p->me.psn;
	/* 67 ms, or 268 ms where retries are exhausted, because a slow machine is not a dead one */
	attr.timeout = p->wants.retry_cnt == 7 ? 14 : 16;
	attr.retry_cnt = (uint8_t)p->wants.retry_cnt;
	attr.rnr_retry = (uint8_t)p->wants.rnr_retry;
	attr.max_rd_atomic = 4;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (rc)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_MAX_QP_RD_ATOMIC;
	if ((errno = ibv_modify_qp(p->qp, &attr, mask)))
		return complain("to RTS");
	return 0;
}

void peer_destroy(struct peer *p)
{
	if (p->qp)
		ibv_destroy_qp(p->qp);
	if (p->srq)
		ibv_destroy_srq(p->srq);
	if (p->mw)
		ibv_dealloc_mw(p->mw);
	if (p->ah)
		ibv_destroy_ah(p->ah);
	if (p->mr)
		ibv_dereg_mr(p->mr);
	if (p->cq)
		ibv_destroy_cq(p->cq);
	if (p->pd)
		ibv_dealloc_pd(p->pd);
	if (p->device)
		ibv_close_device(p->device);
	free(p->buf);
	if (p->in)
		fclose(p->in);
	if (p->out)
		fclose(p->out);
}

int peer_recv(struct peer *p, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)p->buf + REGION, len, p->mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

	errno = p->srq ? ibv_post_srq_recv(p->srq, &wr, &bad) : ibv_post_recv(p->qp, &wr, &bad);
	return errno ? complain("post receive") : 0;
}

int peer_poll(struct peer *p, struct ibv_wc *wc)
{
	time_t until = time(NULL) + 60;
	int n;

	while ((n = ibv_poll_cq(p->cq, 1, wc)) == 0)
		if (time(NULL) >= until) {
			errno = ETIMEDOUT;
			return complain("completion");
		}
	return n == 1 ? 0 : complain("poll");
}

uint64_t at(const struct peer *p, uint32_t offset)
{
	return (uintptr_t)p->buf + offset;
}

static uint8_t pattern(uint32_t i, uint32_t seed)
{
	return (uint8_t)(seed * 31 + i * 7 + (i >> 8) * 13 + (i >> 16));
}

void fill(uint8_t *to, uint32_t len, uint32_t seed)
{
	for (uint32_t i = 0; i < len; i++)
		to[i] = pattern(i, seed);
}

int64_t compare(const uint8_t *data, uint32_t len, uint32_t seed)
{
	for (uint32_t i = 0; i < len; i++)
		if (data[i] != pattern(i, seed))
			return i;
	return -1;
}
