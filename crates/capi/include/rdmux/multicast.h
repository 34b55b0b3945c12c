/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Multicast groups as options of connection manager ids, and datagrams to a
 * group by its address: the interface that was proposed for librdmacm in 2006,
 * in addition to rdma_join_multicast(3).
 *
 *	rdma_create_id(channel, &id, context, RDMA_PS_UDP);
 *	rdma_bind_addr(id, local);
 *	rdma_create_qp(id, pd, &init_attr);	(of UD: it is in RTS)
 *	rdma_set_option(id, RDMA_PROTO_IP, IP_ADD_MEMBERSHIP, &mreq, sizeof(mreq));
 *	rdma_get_cm_event(channel, &event);	(JOIN_COMPLETE)
 *	rdma_ack_cm_event(event);
 *	rdma_sendto(id, &wr, group);
 *	rdma_set_option(id, RDMA_PROTO_IP, IP_DROP_MEMBERSHIP, &mreq, sizeof(mreq));
 *
 * Compile and link with `pkg-config --cflags --libs rdmux`. The functions are
 * in librdmacm.so.1, with the version RDMUX_1.0. With other librdmacms
 * rdma_set_option(3) fails with ENOSYS for these levels.
 *
 * With RDMUX_LOG=warn in the environment a line on standard error
 * names the argument or the field of a record that was refused, and says why.
 */
#ifndef RDMUX_MULTICAST_H
#define RDMUX_MULTICAST_H

#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Levels of rdma_set_option(3), in addition to RDMA_OPTION_ID (0) and RDMA_OPTION_IB
 * (1), and of rdma_get_option. */
#define RDMA_PROTO_IP 0x7269
#define RDMA_PROTO_IB 0x7262

/*
 * Level RDMA_PROTO_IP.
 *
 * IP_ADD_MEMBERSHIP and IP_DROP_MEMBERSHIP of <netinet/in.h> join and leave a
 * group by its IP address. The value is one of
 *
 *	struct ip_mreq		8 bytes
 *	struct ip_mreqn		12 bytes
 *	struct ipv6_mreq	20 bytes
 *
 * which optlen tells apart. Groups are joined on the address that the id
 * is bound to: the interface is 0 (INADDR_ANY), or that address or its
 * interface.
 *
 * The group has the parameters of IP over InfiniBand's broadcast group (P_Key,
 * service level, flow label, traffic class; with RDMA_PS_IPOIB also Q_Key,
 * rate, MTU and hop limit), and the GID that IP over InfiniBand gives it, with
 * the signatures 0x4001 and 0x6001 for RDMA_PS_UDP, and 0x401B and 0x601B for
 * RDMA_PS_IPOIB. On RoCE the address is the GID, and the host joins the group
 * by IGMP or MLD.
 */

/*
 * Level RDMA_PROTO_IB.
 *
 * IB_ADD_MEMBERSHIP and IB_DROP_MEMBERSHIP, with a struct ib_mreq, join and
 * leave a group by an MCMemberRecord (InfiniBand specification 15.2.5.17). The
 * record and its component mask are sent to subnet administration unchanged.
 *
 * A GID of zero, or one without its bit in the mask, asks for a group with a
 * GID that administration assigns; rdma_get_option returns it. To leave, only
 * the GID counts; zero names a group that has none yet, otherwise the first one
 * whose GID was assigned. In rdma_join_multicast(3) and rdma_leave_multicast(3)
 * the addresses 0.0.0.0 and :: are such a GID of zero.
 *
 * join_state is the kind of member: 1 full, 2 non, 4 send-only non, 8
 * send-only full, or several of them. The queue pair is attached for the first
 * two.
 *
 * RoCE has no subnet administration. The record's GID is an IPv6 group or an
 * IPv4 group as ::ffff:a.b.c.d; Q_Key, service level, flow label, traffic class
 * and hop limit are taken from the record; an impossible value is EINVAL.
 */
#define IB_ADD_MEMBERSHIP 35
#define IB_DROP_MEMBERSHIP 36

/* A member of a group, or a group. Fields of more than one byte are in network
 * order, except proxy_join. */
struct ib_sa_mcmember_rec {
	union ibv_gid	mgid;
	union ibv_gid	port_gid;
	__be32		qkey;
	__be16		mlid;
	uint8_t		mtu_selector;
	uint8_t		mtu;		/* enum ibv_mtu */
	uint8_t		traffic_class;
	__be16		pkey;
	uint8_t		rate_selector;
	uint8_t		rate;		/* enum ibv_rate; 0 on RoCE: the port's */
	uint8_t		packet_life_time_selector;
	uint8_t		packet_life_time;	/* 4.096 us * 2^n */
	uint8_t		sl;
	__be32		flow_label;	/* 20 bits */
	uint8_t		hop_limit;
	uint8_t		scope;
	uint8_t		join_state;
	int		proxy_join;	/* 0 or 1 */
};

/* Components of a record, in host order. */
typedef uint64_t ib_sa_comp_mask;

#define IB_SA_MCMEMBER_REC_MGID				(1ULL << 0)
#define IB_SA_MCMEMBER_REC_PORT_GID			(1ULL << 1)
#define IB_SA_MCMEMBER_REC_QKEY				(1ULL << 2)
#define IB_SA_MCMEMBER_REC_MLID				(1ULL << 3)
#define IB_SA_MCMEMBER_REC_MTU_SELECTOR			(1ULL << 4)
#define IB_SA_MCMEMBER_REC_MTU				(1ULL << 5)
#define IB_SA_MCMEMBER_REC_TRAFFIC_CLASS		(1ULL << 6)
#define IB_SA_MCMEMBER_REC_PKEY				(1ULL << 7)
#define IB_SA_MCMEMBER_REC_RATE_SELECTOR		(1ULL << 8)
#define IB_SA_MCMEMBER_REC_RATE				(1ULL << 9)
#define IB_SA_MCMEMBER_REC_PACKET_LIFE_TIME_SELECTOR	(1ULL << 10)
#define IB_SA_MCMEMBER_REC_PACKET_LIFE_TIME		(1ULL << 11)
#define IB_SA_MCMEMBER_REC_SL				(1ULL << 12)
#define IB_SA_MCMEMBER_REC_FLOW_LABEL			(1ULL << 13)
#define IB_SA_MCMEMBER_REC_HOP_LIMIT			(1ULL << 14)
#define IB_SA_MCMEMBER_REC_SCOPE			(1ULL << 15)
#define IB_SA_MCMEMBER_REC_JOIN_STATE			(1ULL << 16)
#define IB_SA_MCMEMBER_REC_PROXY_JOIN			(1ULL << 17)

struct ib_mreq {
	struct ib_sa_mcmember_rec	rec;
	ib_sa_comp_mask			comp_mask;
};

/*
 * Joining.
 *
 * rdma_set_option returns before the network has answered. One event follows:
 *
 * | event                        | status    | means                          |
 * |------------------------------|-----------|--------------------------------|
 * | RDMA_CM_EVENT_JOIN_COMPLETE  | 0         | joined; the id's queue pair is |
 * | (..._MULTICAST_JOIN)         |           | attached, unless it only sends |
 * | RDMA_CM_EVENT_MULTICAST_ERROR| -EINVAL   | administration refused         |
 * |                              | -ETIMEDOUT| administration did not answer  |
 * |                              | -ENETDOWN | the port has no link           |
 * |                              | -EADDRNOTAVAIL | the broadcast group is    |
 * |                              |           | not known                      |
 *
 * A joined group can be lost: MULTICAST_ERROR with -ENETRESET, when the port
 * went down, got another LID, or its subnet manager asks for reregistration.
 * Then, and after a failure, it may be joined again without leaving, or left.
 *
 * The events' param.ud contains what an address handle needs; its private_data
 * is NULL. With an id in synchronous mode the call returns after the event.
 * Leaving waits until the events of the group are acknowledged, as
 * rdma_destroy_id(3) does for all of them. A group that was joined in one way
 * may be left in the other.
 *
 * -1 with errno:
 *
 * EINVAL		optlen fits no structure; the address is no group; a
 *			field of the record is invalid; the id is not of UD, not
 *			bound to a device's address, or has the group already
 * ENODEV		the interface is not that of the id's address
 * EADDRNOTAVAIL	leaving: the id has not joined this group
 * EOPNOTSUPP		the id's device is an iWARP device, which has no multicast
 * ENOMEM		the id has 4,096 groups
 * ENOSYS		no such option
 */
#define RDMA_CM_EVENT_JOIN_COMPLETE RDMA_CM_EVENT_MULTICAST_JOIN

/* A group by its address, for rdma_get_option. */
struct rdmux_ip_group {
	struct sockaddr_storage		addr;	/* in: AF_INET, AF_INET6, AF_IB */
	struct ib_sa_mcmember_rec	rec;	/* out */
};

/* Returns the MCMemberRecord of a group of the id, as the network gave it. The
 * option is that by which it is joined (IP_ADD_MEMBERSHIP, IB_ADD_MEMBERSHIP),
 * the value one of
 *
 *	struct ib_sa_mcmember_rec	of the id's only group
 *	struct ib_mreq			level RDMA_PROTO_IB: of the group with
 *					this rec.mgid, zero: the only one
 *	struct rdmux_ip_group		level RDMA_PROTO_IP: of this group
 *
 * -1 with errno: EINVAL for another optlen, EADDRNOTAVAIL for a group that the
 * id has not joined, ENOTUNIQ if it has several and the value names none,
 * ENOTCONN until the network has answered; after MULTICAST_ERROR that event's
 * errno; ENOSYS for another option. */
int rdma_get_option(struct rdma_cm_id *id, int level, int optname, void *optval, size_t optlen);

/* Posts a message on the id's queue pair to a group that the id has joined,
 * named by its IP address or, with AF_IB, by its GID. send_wr is as for
 * ibv_post_send(3), except that the address handle, remote_qpn and remote_qkey
 * in wr.ud are filled in. The handle belongs to the id, for as long as the id
 * is a member and has its queue pair. Queue pairs must be destroyed with
 * rdma_destroy_qp(3), and before their protection domain.
 *
 * It takes no lock and makes no system call except those of ibv_post_send(3).
 *
 * Returns -1 with errno, and sends nothing:
 *
 * EADDRNOTAVAIL	the id has not joined this group, or has left it
 * ENOTCONN		the event that reports the join was not read yet
 * EINVAL, ETIMEDOUT, ENETDOWN, ENETRESET, ...
 *			the join failed or the group was lost, as an event reported
 * EAFNOSUPPORT		a family that the id's groups do not have
 * EINVAL		NULL; send_wr->next is set; the id has no queue pair of
 *			UD; and the errors of ibv_post_send(3) for send_wr
 * ENOMEM		the send queue is full
 */
int rdma_sendto(struct rdma_cm_id *id, struct ibv_send_wr *send_wr, struct sockaddr *to);

#ifdef __cplusplus
}
#endif

#endif
