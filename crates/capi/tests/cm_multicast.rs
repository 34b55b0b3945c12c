//! Multicast groups as options of ids, and datagrams to a group's address (<rdmux/multicast.h>), over RoCE.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "C functions, passed what the test itself made"
)]

mod cm_common;

use std::ffi::{c_int, c_void};
use std::mem::size_of_val;
use std::net::Ipv4Addr;
use std::ptr::null_mut;

use cm_common::*;
use libc::{in_addr, ip_mreq, ip_mreqn, ipv6_mreq, sockaddr};

unsafe extern "C" {
    fn rdma_get_option(
        id: *mut rdma_cm_id,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: usize,
    ) -> c_int;
    fn rdma_sendto(id: *mut rdma_cm_id, wr: *mut ibv_send_wr, to: *mut sockaddr) -> c_int;
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
}

const AF_IB: u16 = 27;

/// Returns a group that only this process uses.
fn group(n: u8) -> Ipv4Addr {
    let [.., a, b] = std::process::id().to_be_bytes();
    Ipv4Addr::new(239, n, a, b)
}

fn mreq(group: Ipv4Addr) -> ip_mreq {
    let at = |ip: Ipv4Addr| in_addr { s_addr: u32::from(ip).to_be() };
    ip_mreq { imr_multiaddr: at(group), imr_interface: at(Ipv4Addr::UNSPECIFIED) }
}

unsafe fn set<T>(id: *mut rdma_cm_id, level: u32, name: u32, value: &T) -> c_int {
    let value = std::ptr::from_ref(value);
    let (level, name, len) = (level.cast_signed(), name.cast_signed(), size_of::<T>());
    unsafe { rdma_set_option(id, level, name, value.cast_mut().cast(), len) }
}

unsafe fn get<T>(id: *mut rdma_cm_id, level: u32, name: u32, value: &mut T) -> c_int {
    let (level, name, len) = (level.cast_signed(), name.cast_signed(), size_of_val(value));
    unsafe { rdma_get_option(id, level, name, std::ptr::from_mut(value).cast(), len) }
}

unsafe fn add<T>(id: *mut rdma_cm_id, mreq: &T) -> c_int {
    unsafe { set(id, RDMA_PROTO_IP, IP_ADD_MEMBERSHIP, mreq) }
}

unsafe fn drop_group(id: *mut rdma_cm_id, group: Ipv4Addr) -> c_int {
    unsafe { set(id, RDMA_PROTO_IP, IP_DROP_MEMBERSHIP, &mreq(group)) }
}

/// Creates a datagram id with a queue pair.
unsafe fn bound(channel: &Channel) -> *mut rdma_cm_id {
    let id = channel.id(RDMA_PS_UDP);
    unsafe {
        ok(rdma_bind_addr(id, Addr::new(ip(), 0).ptr()));
        create_qp(id);
        assert_eq!(qp_state((*id).qp), IBV_QPS_RTS);
    }
    id
}

unsafe fn joined(channel: &Channel, id: *mut rdma_cm_id, group: Ipv4Addr) {
    unsafe { ok(add(id, &mreq(group))) };
    let event = channel.expect(RDMA_CM_EVENT_MULTICAST_JOIN);
    assert!(event.ud().private_data.is_null());
    event.ack();
}

/// Takes a queue pair to a state that needs no other attributes.
unsafe fn go(qp: *mut ibv_qp, state: ibv_qp_state) {
    let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attr.qp_state = state;
    assert_eq!(unsafe { ibv_modify_qp(qp, &raw mut attr, IBV_QP_STATE.cast_signed()) }, 0);
}

unsafe fn end(id: *mut rdma_cm_id) {
    unsafe {
        rdma_destroy_qp(id);
        ok(rdma_destroy_id(id));
    }
}

/// Returns a request with 16 inline bytes, without a destination.
fn request(bytes: &mut [u8; 16], sge: &mut ibv_sge) -> ibv_send_wr {
    let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
    *sge = ibv_sge { addr: bytes.as_mut_ptr() as u64, length: 16, lkey: 0 };
    (wr.sg_list, wr.num_sge, wr.opcode) = (sge, 1, IBV_WR_SEND);
    wr.send_flags = IBV_SEND_INLINE;
    wr
}

unsafe fn send(id: *mut rdma_cm_id, to: &mut Addr) -> c_int {
    let (mut bytes, mut sge) = ([7; 16], unsafe { std::mem::zeroed() });
    unsafe { rdma_sendto(id, &raw mut *Box::new(request(&mut bytes, &mut sge)), to.ptr()) }
}

fn gid(group: Ipv4Addr) -> ibv_gid {
    ibv_gid { raw: group.to_ipv6_mapped().octets() }
}

/// Returns an address of AF_IB.
fn by_gid(gid: ibv_gid, pkey: u16) -> sockaddr_ib {
    let mut ib: sockaddr_ib = unsafe { std::mem::zeroed() };
    (ib.sib_family, ib.sib_pkey, ib.sib_addr) = (AF_IB, pkey.to_be(), unsafe { gid.raw });
    ib
}

fn empty() -> ib_sa_mcmember_rec {
    unsafe { std::mem::zeroed() }
}

#[test]
fn a_datagram_by_address_reaches_members_of_the_group() {
    unsafe {
        let channel = Channel::new();
        let (to, from) = (bound(&channel), bound(&channel));
        let mut buffer = Buffer::new((*to).pd);
        buffer.post_recv((*to).qp);
        joined(&channel, to, group(91));
        joined(&channel, from, group(91));
        joined(&channel, from, group(92));

        let (mut bytes, mut sge) = ([9; 16], std::mem::zeroed());
        let mut wr = request(&mut bytes, &mut sge);
        ok(rdma_sendto(from, &raw mut wr, Addr::new(group(91), 0).ptr()));
        let ud = wr.wr.ud;
        assert_eq!((ud.remote_qpn, ud.remote_qkey), (0xff_ffff, RDMA_UDP_QKEY));
        assert!(!ud.ah.is_null());
        assert_eq!(poll((*from).send_cq).status, IBV_WC_SUCCESS);
        let done = poll((*to).recv_cq);
        assert_eq!((done.status, done.byte_len), (IBV_WC_SUCCESS, 56));
        assert_eq!(done.src_qp, (*(*from).qp).qp_num);
        assert_eq!(buffer.bytes[40..56], [9; 16]);

        // By its GID, too, and the same queue pair receives unicast datagrams.
        buffer.post_recv((*to).qp);
        let mut name = by_gid(gid(group(91)), 0);
        ok(rdma_sendto(from, &raw mut wr, (&raw mut name).cast()));
        assert_eq!(poll((*to).recv_cq).byte_len, 56);
        let mut attr: ibv_ah_attr = std::mem::zeroed();
        attr.grh.dgid = ibv_gid { raw: ip().to_ipv6_mapped().octets() };
        (attr.is_global, attr.port_num, attr.grh.hop_limit) = (1, 1, 64);
        let ah = ibv_create_ah((*from).pd, &raw mut attr);
        wr.wr.ud =
            ibv_send_wr_ud { ah, remote_qpn: (*(*to).qp).qp_num, remote_qkey: RDMA_UDP_QKEY };
        buffer.post_recv((*to).qp);
        let mut bad = null_mut();
        let post = (*(*(*from).qp).context).ops.post_send.unwrap();
        ok(post((*from).qp, &raw mut wr, &raw mut bad));
        assert_eq!(poll((*to).recv_cq).byte_len, 56);
        ok(ibv_destroy_ah(ah));

        // No datagram is received from a group that was left: a datagram to a second group arrives, so the first would have.
        joined(&channel, to, group(92));
        ok(drop_group(to, group(91)));
        buffer.post_recv((*to).qp);
        buffer.bytes.fill(0);
        bytes.fill(1);
        wr.wr_id = 1;
        ok(rdma_sendto(from, &raw mut wr, Addr::new(group(91), 0).ptr()));
        bytes.fill(2);
        ok(rdma_sendto(from, &raw mut wr, Addr::new(group(92), 0).ptr()));
        poll((*to).recv_cq);
        assert_eq!(buffer.bytes[40..56], [2; 16]);

        rdma_destroy_qp(to);
        buffer.free();
        ok(rdma_destroy_id(to));
        end(from);
    }
}

/// The most queue pairs in one group (`max_mcast_qp_attach`).
const MOST_MEMBERS: usize = 256;

#[test]
fn a_group_whose_queue_pair_could_not_be_attached_may_be_joined_again_or_left() {
    unsafe {
        let channel = Channel::new();
        let (id, name) = (bound(&channel), group(106));
        let members: Vec<_> = (0..MOST_MEMBERS).map(|_| bound(&channel)).collect();
        for member in &members {
            ok(ibv_attach_mcast((**member).qp, &gid(name), 0));
        }
        let refused = || {
            ok(add(id, &mreq(name)));
            let event = channel.event();
            let outcome = (event.kind(), event.status());
            assert_eq!(outcome, (RDMA_CM_EVENT_MULTICAST_ERROR, -libc::ENOMEM));
            event.ack();
            fails(send(id, &mut Addr::new(name, 0)), libc::ENOMEM);
            let mut rec = empty();
            fails(get(id, RDMA_PROTO_IP, IP_ADD_MEMBERSHIP, &mut rec), libc::ENOMEM);
        };
        refused();
        refused();
        ok(drop_group(id, name));
        fails(drop_group(id, name), libc::EADDRNOTAVAIL);

        refused();
        ok(ibv_detach_mcast((*members[0]).qp, &gid(name), 0));
        joined(&channel, id, name);
        let mut buffer = Buffer::new((*id).pd);
        buffer.post_recv((*id).qp);
        ok(send(id, &mut Addr::new(name, 0)));
        assert_eq!(poll((*id).recv_cq).byte_len, 56);
        ok(drop_group(id, name));
        rdma_destroy_qp(id);
        buffer.free();
        ok(rdma_destroy_id(id));
        members.into_iter().for_each(|member| end(member));
    }
}

#[test]
fn sending_to_a_group_fails_with_distinct_errnos() {
    unsafe {
        let channel = Channel::new();
        let id = bound(&channel);
        let mut known = Addr::new(group(93), 0);
        fails(send(id, &mut known), libc::EADDRNOTAVAIL);
        ok(add(id, &mreq(group(93))));
        fails(send(id, &mut known), libc::ENOTCONN);
        channel.expect(RDMA_CM_EVENT_MULTICAST_JOIN).ack();
        ok(send(id, &mut known));
        fails(send(id, &mut Addr::new(group(94), 0)), libc::EADDRNOTAVAIL);
        fails(send(id, &mut Addr::new(ip(), 0)), libc::EADDRNOTAVAIL);

        let mut v6: libc::sockaddr_in6 = std::mem::zeroed();
        v6.sin6_family = libc::AF_INET6.try_into().unwrap();
        v6.sin6_addr.s6_addr = "ff1e::7".parse::<std::net::Ipv6Addr>().unwrap().octets();
        let (mut bytes, mut sge) = ([0; 16], std::mem::zeroed());
        let mut wr = request(&mut bytes, &mut sge);
        fails(rdma_sendto(id, &raw mut wr, (&raw mut v6).cast()), libc::EAFNOSUPPORT);
        v6.sin6_family = libc::AF_UNIX.try_into().unwrap();
        fails(rdma_sendto(id, &raw mut wr, (&raw mut v6).cast()), libc::EAFNOSUPPORT);
        fails(rdma_sendto(id, null_mut(), known.ptr()), libc::EINVAL);
        fails(rdma_sendto(id, &raw mut wr, null_mut()), libc::EINVAL);
        fails(rdma_sendto(null_mut(), &raw mut wr, known.ptr()), libc::EINVAL);
        let mut second = request(&mut bytes, &mut sge);
        wr.next = &raw mut second;
        fails(rdma_sendto(id, &raw mut wr, known.ptr()), libc::EINVAL);
        (wr.next, wr.opcode) = (null_mut(), IBV_WR_RDMA_READ);
        fails(rdma_sendto(id, &raw mut wr, known.ptr()), libc::EINVAL);

        // The queue of a stopped queue pair fills up.
        assert_eq!(poll((*id).send_cq).status, IBV_WC_SUCCESS);
        go((*id).qp, IBV_QPS_SQD);
        let mut posted = 0;
        while send(id, &mut known) == 0 {
            posted += 1;
            assert!(posted < 10_000);
        }
        assert_eq!(errno(), libc::ENOMEM);
        assert!(posted >= 8);
        go((*id).qp, IBV_QPS_RTS);
        for _ in 0..posted {
            assert_eq!(poll((*id).send_cq).status, IBV_WC_SUCCESS);
        }
        ok(drop_group(id, group(93)));
        fails(send(id, &mut known), libc::EADDRNOTAVAIL);
        let mut wc: ibv_wc = std::mem::zeroed();
        let poll = (*(*(*id).send_cq).context).ops.poll_cq.unwrap();
        assert_eq!(poll((*id).send_cq, 1, &raw mut wc), 0, "nothing was sent");
        end(id);
    }
}

#[test]
fn an_id_that_migrates_takes_no_event_of_a_group_that_it_has_left_with_it() {
    unsafe {
        let (from, to) = (Channel::new(), Channel::new());
        let (other, id) = (from.id(RDMA_PS_TCP), bound(&from));
        // The first event hides those behind it.
        ok(rdma_write_cm_event(other, RDMA_CM_EVENT_USER, 0, 0));
        ok(add(id, &mreq(group(97))));
        ok(add(id, &mreq(group(98))));
        ok(drop_group(id, group(97)));
        ok(rdma_migrate_id(id, to.0));
        to.expect(RDMA_CM_EVENT_MULTICAST_JOIN).ack();
        assert!(!to.is_readable());

        ok(rdma_migrate_id(id, from.0));
        ok(add(id, &mreq(group(97))));
        ok(drop_group(id, group(97)));
        ok(rdma_migrate_id(id, to.0));
        assert!(!to.is_readable());
        from.expect(RDMA_CM_EVENT_USER).ack();
        end(id);
        ok(rdma_destroy_id(other));
    }
}

#[test]
fn ip_add_membership_takes_ip_mreq_ip_mreqn_and_ipv6_mreq_by_length() {
    unsafe {
        let channel = Channel::new();
        let id = bound(&channel);
        let at = |ip: Ipv4Addr| in_addr { s_addr: u32::from(ip).to_be() };
        // By the address of the interface, and with its index.
        ok(add(id, &ip_mreq { imr_interface: at(ip()), ..mreq(group(95)) }));
        channel.expect(RDMA_CM_EVENT_MULTICAST_JOIN).ack();
        ok(drop_group(id, group(95)));
        let loopback = libc::if_nametoindex(c"lo".as_ptr()).cast_signed();
        let index = |imr_ifindex, imr_address| ip_mreqn {
            imr_multiaddr: at(group(95)),
            imr_address: at(imr_address),
            imr_ifindex,
        };
        ok(add(id, &index(loopback, ip())));
        channel.expect(RDMA_CM_EVENT_MULTICAST_JOIN).ack();
        fails(add(id, &mreq(group(95))), libc::EINVAL);
        ok(set(id, RDMA_PROTO_IP, IP_DROP_MEMBERSHIP, &index(0, Ipv4Addr::UNSPECIFIED)));

        let other = Ipv4Addr::new(10, 9, 8, 7);
        fails(add(id, &ip_mreq { imr_interface: at(other), ..mreq(group(95)) }), libc::ENODEV);
        fails(add(id, &index(loopback, other)), libc::ENODEV);
        fails(add(id, &index(loopback + 77, ip())), libc::ENODEV);
        fails(add(id, &mreq(ip())), libc::EINVAL);
        fails(drop_group(id, group(95)), libc::EADDRNOTAVAIL);
        let mut v6: ipv6_mreq = std::mem::zeroed();
        v6.ipv6mr_multiaddr.s6_addr = "ff1e::7".parse::<std::net::Ipv6Addr>().unwrap().octets();
        fails(add(id, &v6), libc::EINVAL);
        for len in (0..64_usize).filter(|len| ![8, 12, 20].contains(len)) {
            let mut value = [0_u8; 64];
            let (level, name) = (RDMA_PROTO_IP.cast_signed(), IP_ADD_MEMBERSHIP.cast_signed());
            fails(rdma_set_option(id, level, name, value.as_mut_ptr().cast(), len), libc::EINVAL);
        }
        let ip_level = RDMA_PROTO_IP.cast_signed();
        fails(rdma_set_option(id, ip_level, 35, null_mut(), 8), libc::EINVAL);
        fails(set(id, RDMA_PROTO_IP, 37, &mreq(group(95))), libc::ENOSYS);
        fails(set(id, RDMA_PROTO_IB, 37, &mreq(group(95))), libc::ENOSYS);
        // No group was joined.
        fails(drop_group(id, group(95)), libc::EADDRNOTAVAIL);
        end(id);

        let stream = channel.id(RDMA_PS_TCP);
        ok(rdma_bind_addr(stream, Addr::new(ip(), 0).ptr()));
        fails(add(stream, &mreq(group(95))), libc::EINVAL);
        ok(rdma_destroy_id(stream));
        let unbound = channel.id(RDMA_PS_UDP);
        fails(add(unbound, &mreq(group(95))), libc::EINVAL);
        ok(rdma_destroy_id(unbound));
    }
}

#[test]
fn mcmember_record_of_a_joined_group_has_its_attributes() {
    unsafe {
        let channel = Channel::new();
        let id = bound(&channel);
        let mut rec = empty();
        let ask = |rec: &mut ib_sa_mcmember_rec| get(id, RDMA_PROTO_IP, IP_ADD_MEMBERSHIP, rec);
        fails(ask(&mut rec), libc::EADDRNOTAVAIL);
        joined(&channel, id, group(96));
        ok(ask(&mut rec));
        assert_eq!(rec.mgid.raw, gid(group(96)).raw);
        assert_eq!(rec.port_gid.raw, gid(ip()).raw);
        assert_eq!(u32::from_be(rec.qkey), RDMA_UDP_QKEY);
        assert_eq!((u16::from_be(rec.pkey), rec.hop_limit, rec.join_state), (0xffff, 64, 1));
        assert_eq!((rec.mlid, rec.mtu_selector), (0, 2));
        assert!((1..=5).contains(&rec.mtu));

        joined(&channel, id, group(97));
        fails(ask(&mut rec), libc::ENOTUNIQ);
        let mut named = rdmux_ip_group { addr: std::mem::zeroed(), rec: empty() };
        (&raw mut named.addr)
            .cast::<libc::sockaddr_storage>()
            .write(Addr::new(group(97), 0).ptr().cast::<libc::sockaddr_storage>().read());
        ok(get(id, RDMA_PROTO_IP, IP_ADD_MEMBERSHIP, &mut named));
        assert_eq!(named.rec.mgid.raw, gid(group(97)).raw);
        let mut by = ib_mreq { rec: empty(), comp_mask: 0 };
        by.rec.mgid = gid(group(96));
        ok(get(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &mut by));
        assert_eq!((by.rec.port_gid.raw, by.comp_mask), (gid(ip()).raw, 0x3_ffff));
        by.rec.mgid = gid(group(98));
        fails(get(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &mut by), libc::EADDRNOTAVAIL);
        fails(get(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &mut named), libc::EINVAL);
        fails(get(id, RDMA_PROTO_IB, IB_DROP_MEMBERSHIP, &mut by), libc::ENOSYS);
        fails(get(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &mut by), libc::ENOSYS);
        end(id);
    }
}

#[test]
fn a_record_joins_a_group_as_it_says() {
    unsafe {
        let channel = Channel::new();
        let id = bound(&channel);
        let wish = |change: fn(&mut ib_mreq)| {
            let mut mreq = ib_mreq { rec: empty(), comp_mask: 1 | 1 << 16 };
            (mreq.rec.mgid, mreq.rec.join_state) = (gid(group(99)), 1);
            change(&mut mreq);
            mreq
        };
        let add = |mreq: &ib_mreq| set(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, mreq);
        ok(add(&wish(|m| {
            (m.rec.qkey, m.rec.traffic_class) = (0x77_u32.to_be(), 0x20);
            m.comp_mask |= 1 << 2 | 1 << 6;
        })));
        let event = channel.expect(RDMA_CM_EVENT_MULTICAST_JOIN);
        assert_eq!((event.ud().qkey, event.ud().ah_attr.grh.traffic_class), (0x77, 0x20));
        event.ack();
        let mut name = by_gid(gid(group(99)), 0);
        let (mut bytes, mut sge) = ([0; 16], std::mem::zeroed());
        let mut wr = request(&mut bytes, &mut sge);
        ok(rdma_sendto(id, &raw mut wr, (&raw mut name).cast()));
        assert_eq!(wr.wr.ud.remote_qkey, 0x77);
        ok(set(id, RDMA_PROTO_IB, IB_DROP_MEMBERSHIP, &wish(|_| {})));
        fails(rdma_sendto(id, &raw mut wr, (&raw mut name).cast()), libc::EADDRNOTAVAIL);

        // A send-only member.
        ok(add(&wish(|m| m.rec.join_state = 8)));
        channel.expect(RDMA_CM_EVENT_MULTICAST_JOIN).ack();
        ok(set(id, RDMA_PROTO_IB, IB_DROP_MEMBERSHIP, &wish(|_| {})));

        let wrong: [fn(&mut ib_mreq); 10] = [
            |m| m.rec.join_state = 0,
            |m| m.rec.join_state = 16,
            |m| m.rec.mgid = gid(ip()),
            |m| m.rec.mgid.raw = [0; 16],
            |m| m.comp_mask &= !1,
            |m| m.comp_mask |= 1 << 18,
            |m| m.rec.proxy_join = 2,
            |m| m.rec.flow_label = (1_u32 << 20).to_be(),
            |m| m.rec.sl = 16,
            |m| (m.rec.mlid, m.comp_mask) = (0xc001_u16.to_be(), m.comp_mask | 1 << 3),
        ];
        for (n, change) in wrong.into_iter().enumerate() {
            let errno = (add(&wish(change)), errno());
            assert_eq!(errno, (-1, libc::EINVAL), "wish {n}");
        }
        fails(set(id, RDMA_PROTO_IB, IB_ADD_MEMBERSHIP, &empty()), libc::EINVAL);
        end(id);
    }
}

#[test]
fn a_group_may_be_named_by_its_gid_in_every_call() {
    unsafe {
        let channel = Channel::new();
        let id = bound(&channel);
        let mut name = by_gid(gid(group(100)), 0);
        ok(rdma_join_multicast(id, (&raw mut name).cast(), 0x55 as *mut c_void));
        let event = channel.expect(RDMA_CM_EVENT_MULTICAST_JOIN);
        assert_eq!(event.ud().private_data, 0x55 as *const c_void);
        assert_eq!(event.ud().ah_attr.grh.dgid.raw, gid(group(100)).raw);
        event.ack();
        let (mut bytes, mut sge) = ([0; 16], std::mem::zeroed());
        ok(rdma_sendto(
            id,
            &raw mut *Box::new(request(&mut bytes, &mut sge)),
            (&raw mut name).cast(),
        ));
        ok(rdma_leave_multicast(id, (&raw mut name).cast()));
        // Addresses that are no group, of another partition, or need an assigned GID.
        for mut wrong in [
            by_gid(gid(ip()), 0),
            by_gid(gid(group(100)), 0x8001),
            by_gid(ibv_gid { raw: [0; 16] }, 0),
        ] {
            fails(rdma_join_multicast(id, (&raw mut wrong).cast(), null_mut()), libc::EINVAL);
        }
        end(id);
    }
}

#[test]
fn domains_end_after_their_queue_pairs_while_ids_have_groups() {
    unsafe {
        let channel = Channel::new();
        let id = channel.id(RDMA_PS_UDP);
        ok(rdma_bind_addr(id, Addr::new(ip(), 0).ptr()));
        let pd = ibv_alloc_pd((*id).verbs);
        for _ in 0..2 {
            ok(rdma_create_qp(id, pd, &mut qp_attr(IBV_QPT_UD)));
            if (*id).qp.is_null() {
                panic!("no queue pair");
            }
            // The group that was joined first stays.
            if add(id, &mreq(group(101))) == 0 {
                channel.expect(RDMA_CM_EVENT_MULTICAST_JOIN).ack();
            }
            ok(send(id, &mut Addr::new(group(101), 0)));
            rdma_destroy_qp(id);
            fails(send(id, &mut Addr::new(group(101), 0)), libc::EINVAL);
        }
        assert_eq!(ibv_dealloc_pd(pd), 0);
        ok(rdma_destroy_id(id));
    }
}

#[test]
fn a_group_that_is_joined_twice_is_heard_until_it_is_left_twice() {
    unsafe {
        let channel = Channel::new();
        let (to, from) = (bound(&channel), bound(&channel));
        joined(&channel, from, group(103));
        joined(&channel, to, group(103));
        let mut name = by_gid(gid(group(103)), 0);
        ok(rdma_join_multicast(to, (&raw mut name).cast(), null_mut()));
        channel.expect(RDMA_CM_EVENT_MULTICAST_JOIN).ack();
        let mut buffer = Buffer::new((*to).pd);
        ok(drop_group(to, group(103)));
        buffer.post_recv((*to).qp);
        ok(send(from, &mut Addr::new(group(103), 0)));
        assert_eq!(poll((*to).recv_cq).byte_len, 56);
        ok(rdma_leave_multicast(to, (&raw mut name).cast()));
        fails(rdma_leave_multicast(to, (&raw mut name).cast()), libc::EADDRNOTAVAIL);
        rdma_destroy_qp(to);
        buffer.free();
        ok(rdma_destroy_id(to));
        end(from);
    }
}

#[test]
fn a_group_is_joined_also_where_the_program_attaches_the_queue_pair_itself() {
    unsafe {
        let channel = Channel::new();
        let id = bound(&channel);
        let mgid = gid(group(104));
        assert_eq!(ibv_attach_mcast((*id).qp, &raw const mgid, 0), 0);
        joined(&channel, id, group(104));
        assert_eq!(ibv_attach_mcast((*id).qp, &raw const mgid, 0), 0);
        let mut buffer = Buffer::new((*id).pd);
        buffer.post_recv((*id).qp);
        ok(send(id, &mut Addr::new(group(104), 0)));
        assert_eq!(poll((*id).recv_cq).byte_len, 56);
        // The queue pair is attached once, so the first detach ends it.
        ok(drop_group(id, group(104)));
        assert_eq!(ibv_detach_mcast((*id).qp, &raw const mgid, 0), libc::EINVAL);
        joined(&channel, id, group(104));
        assert_eq!(ibv_detach_mcast((*id).qp, &raw const mgid, 0), 0);
        ok(drop_group(id, group(104)));
        rdma_destroy_qp(id);
        buffer.free();
        ok(rdma_destroy_id(id));
    }
}

#[test]
fn a_group_that_is_left_while_its_event_is_taken_is_not_heard() {
    unsafe {
        let channel = Channel::new();
        let id = bound(&channel);
        let mgid = gid(group(105));
        let on = channel.0 as usize;
        let takes = std::thread::spawn(move || {
            let channel = Channel(on as *mut _);
            loop {
                let event = channel.event();
                let is_last = event.kind() == RDMA_CM_EVENT_USER;
                event.ack();
                if is_last {
                    break;
                }
            }
        });
        // Returns the error of sending: ENOTCONN until the group is joined.
        let why = || {
            let (mut bytes, mut sge) = ([0; 16], std::mem::zeroed());
            let mut wr = request(&mut bytes, &mut sge);
            wr.opcode = IBV_WR_RDMA_READ;
            assert_eq!(rdma_sendto(id, &raw mut wr, Addr::new(group(105), 0).ptr()), -1);
            errno()
        };
        let mut ready = libc::pollfd { fd: channel.fd(), events: libc::POLLIN, revents: 0 };
        for n in 0..2000 {
            ok(add(id, &mreq(group(105))));
            while libc::poll(&raw mut ready, 1, 0) == 0 && why() == libc::ENOTCONN {}
            // The other thread is about to take the event, or slightly further in each round.
            for _ in 0..n {
                std::hint::spin_loop();
            }
            ok(drop_group(id, group(105)));
            let again = ibv_detach_mcast((*id).qp, &raw const mgid, 0);
            assert_eq!(again, libc::EINVAL, "left, and still attached");
        }
        ok(rdma_write_cm_event(id, RDMA_CM_EVENT_USER, 0, 0));
        takes.join().unwrap();
        end(id);
    }
}

#[test]
fn in_synchronous_mode_an_option_joins_before_it_returns() {
    unsafe {
        let _ = ip();
        let mut id = null_mut();
        ok(rdma_create_id(null_mut(), &raw mut id, null_mut(), RDMA_PS_UDP));
        ok(rdma_bind_addr(id, Addr::new(ip(), 0).ptr()));
        create_qp(id);
        ok(add(id, &mreq(group(102))));
        assert_eq!((*(*id).event).event, RDMA_CM_EVENT_MULTICAST_JOIN);
        ok(send(id, &mut Addr::new(group(102), 0)));
        ok(drop_group(id, group(102)));
        end(id);
    }
}
