//! Datagram ids: services, and multicast groups.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "C functions, passed what the test itself made"
)]

mod cm_common;

use std::ffi::c_void;
use std::net::Ipv4Addr;
use std::ptr::null_mut;

use cm_common::*;

#[test]
fn udp_established_event_has_qpn_and_qkey_of_the_service() {
    unsafe {
        let (server, client) = (Channel::new(), Channel::new());
        let (listener, port) = server.listener(RDMA_PS_UDP);
        let active = client.resolved(RDMA_PS_UDP, port);
        create_qp(active);
        assert_eq!(qp_state((*active).qp), IBV_QPS_RTS);
        ok(rdma_connect(active, &mut conn_param(b"who")));
        let request = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        let passive = request.id();
        assert_eq!((*passive).qp_type, IBV_QPT_UD);
        let ud = request.ud();
        assert_eq!(ud.private_data_len, 180);
        assert_eq!(std::slice::from_raw_parts(ud.private_data.cast::<u8>(), 3), b"who");
        create_qp(passive);
        ok(rdma_accept(passive, &mut conn_param(b"me")));
        request.ack();
        let established = client.expect(RDMA_CM_EVENT_ESTABLISHED);
        let ud = established.ud();
        assert_eq!(ud.qp_num, (*(*passive).qp).qp_num);
        assert_eq!(ud.qkey, RDMA_UDP_QKEY);
        assert_eq!(ud.private_data_len, 136);
        assert_eq!(ud.ah_attr.is_global, 1);
        assert_eq!(ud.ah_attr.grh.dgid.raw, ip().to_ipv6_mapped().octets());
        established.ack();
        for id in [active, passive] {
            rdma_destroy_qp(id);
            ok(rdma_destroy_id(id));
        }

        // A service without a listener.
        ok(rdma_destroy_id(listener));
        let active = client.resolved(RDMA_PS_UDP, port);
        create_qp(active);
        ok(rdma_connect(active, null_mut()));
        let event = client.event();
        assert_eq!(event.kind(), RDMA_CM_EVENT_UNREACHABLE);
        assert!(event.status() > 0, "the status of SIDR");
        event.ack();
        rdma_destroy_qp(active);
        ok(rdma_destroy_id(active));
    }
}

/// Returns a group that only this process uses.
fn group(n: u8) -> Ipv4Addr {
    let [.., a, b] = std::process::id().to_be_bytes();
    Ipv4Addr::new(239, n, a, b)
}

const CONTEXT: *mut c_void = 0x1234_5678 as *mut c_void;

#[test]
fn a_member_of_a_group_hears_it() {
    unsafe {
        let channel = Channel::new();
        let id = channel.id(RDMA_PS_UDP);
        ok(rdma_bind_addr(id, Addr::new(ip(), 0).ptr()));
        create_qp(id);
        let mut to = Addr::new(group(81), 0);
        ok(rdma_join_multicast(id, to.ptr(), CONTEXT));
        let event = channel.expect(RDMA_CM_EVENT_MULTICAST_JOIN);
        let ud = event.ud();
        assert_eq!((event.id(), ud.private_data), (id, CONTEXT.cast_const()));
        assert_eq!((ud.qp_num, ud.qkey, ud.private_data_len), (0xff_ffff, RDMA_UDP_QKEY, 0));
        assert_eq!(ud.ah_attr.grh.dgid.raw, group(81).to_ipv6_mapped().octets());
        event.ack();

        let mut other = Addr::new(group(82), 0);
        fails(rdma_leave_multicast(id, other.ptr()), libc::EADDRNOTAVAIL);
        fails(rdma_join_multicast(id, null_mut(), CONTEXT), libc::EINVAL);
        ok(rdma_leave_multicast(id, to.ptr()));
        fails(rdma_leave_multicast(id, to.ptr()), libc::EADDRNOTAVAIL);
        // Again, and left by destroying the id.
        ok(rdma_join_multicast(id, to.ptr(), CONTEXT));
        channel.expect(RDMA_CM_EVENT_MULTICAST_JOIN).ack();
        ok(rdma_join_multicast(id, other.ptr(), null_mut()));
        channel.expect(RDMA_CM_EVENT_MULTICAST_JOIN).ack();
        rdma_destroy_qp(id);
        ok(rdma_destroy_id(id));
    }
}

#[test]
fn join_multicast_ex_as_sendonly_fullmember() {
    unsafe {
        let channel = Channel::new();
        let id = channel.id(RDMA_PS_UDP);
        ok(rdma_bind_addr(id, Addr::new(ip(), 0).ptr()));
        create_qp(id);
        let mut to = Addr::new(group(83), 0);
        let both = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        let mut attr = rdma_cm_join_mc_attr_ex {
            comp_mask: both,
            join_flags: RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
            addr: to.ptr(),
        };
        ok(rdma_join_multicast_ex(id, &raw mut attr, CONTEXT));
        channel.expect(RDMA_CM_EVENT_MULTICAST_JOIN).ack();
        ok(rdma_leave_multicast(id, to.ptr()));
        for (mask, flags, errno) in [
            (RDMA_CM_JOIN_MC_ATTR_RESERVED, 0, libc::EOPNOTSUPP),
            (RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, 0, libc::EINVAL),
            (RDMA_CM_JOIN_MC_ATTR_ADDRESS, 0, libc::EINVAL),
            (both, RDMA_MC_JOIN_FLAG_RESERVED, libc::EINVAL),
        ] {
            (attr.comp_mask, attr.join_flags) = (mask, flags);
            fails(rdma_join_multicast_ex(id, &raw mut attr, CONTEXT), errno);
        }
        rdma_destroy_qp(id);
        ok(rdma_destroy_id(id));
    }
}

#[test]
fn in_synchronous_mode_a_join_is_complete() {
    unsafe {
        let _ = ip();
        let mut id = null_mut();
        ok(rdma_create_id(null_mut(), &raw mut id, null_mut(), RDMA_PS_UDP));
        ok(rdma_bind_addr(id, Addr::new(ip(), 0).ptr()));
        let mut to = Addr::new(group(84), 0);
        ok(rdma_join_multicast(id, to.ptr(), CONTEXT));
        assert_eq!((*(*id).event).event, RDMA_CM_EVENT_MULTICAST_JOIN);
        ok(rdma_leave_multicast(id, to.ptr()));
        ok(rdma_destroy_id(id));
    }
}
