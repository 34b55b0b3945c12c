//! Endpoints in synchronous mode, and lookups of addresses for them.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "C functions, passed what the test itself made"
)]

mod cm_common;

use std::ffi::{CString, c_char, c_int};
use std::ptr::{null, null_mut};

use cm_common::*;

/// Returns the result of rdma_getaddrinfo for this host.
unsafe fn info(port: u16, flags: i32, space: rdma_port_space) -> *mut rdma_addrinfo {
    unsafe {
        let mut hints: rdma_addrinfo = std::mem::zeroed();
        hints.ai_flags = flags;
        hints.ai_port_space = space.cast_signed();
        let node = CString::new(ip().to_string()).unwrap();
        let service = CString::new(port.to_string()).unwrap();
        let mut res = null_mut();
        ok(rdma_getaddrinfo(node.as_ptr(), service.as_ptr(), &raw const hints, &raw mut res));
        res
    }
}

/// Creates a listening endpoint whose connections get queue pairs. Returns its port too.
unsafe fn listener() -> (*mut rdma_cm_id, u16) {
    unsafe {
        let res = info(0, RAI_PASSIVE | RAI_NUMERICHOST, RDMA_PS_TCP);
        assert_eq!((*res).ai_flags, RAI_PASSIVE);
        let mut id = null_mut();
        ok(rdma_create_ep(&raw mut id, res, null_mut(), &mut qp_attr(IBV_QPT_RC)));
        rdma_freeaddrinfo(res);
        assert!((*id).qp.is_null());
        ok(rdma_listen(id, 4));
        (id, u16::from_be(rdma_get_src_port(id)))
    }
}

#[test]
fn endpoints_connect_and_disconnect_call_by_call() {
    unsafe {
        let (listen, port) = listener();
        let listening = Id(listen);
        let server = std::thread::spawn(move || {
            let listen = listening.get();
            let mut id = null_mut();
            ok(rdma_get_request(listen, &raw mut id));
            assert_eq!((*(*id).event).event, RDMA_CM_EVENT_CONNECT_REQUEST);
            assert!(!(*id).qp.is_null() && (*id).channel != (*listen).channel);
            let mut to = Buffer::new((*id).pd);
            to.post_recv((*id).qp);
            ok(rdma_accept(id, null_mut()));
            assert_eq!((*(*id).event).event, RDMA_CM_EVENT_ESTABLISHED);
            assert_eq!(poll((*id).recv_cq).status, IBV_WC_SUCCESS);
            assert_eq!(&to.bytes[..16], b"from an endpoint");
            ok(rdma_disconnect(id));
            to.free();
            rdma_destroy_ep(id);
        });
        let res = info(port, 0, RDMA_PS_TCP);
        assert_eq!((*res).ai_qp_type, IBV_QPT_RC.cast_signed());
        let mut id = null_mut();
        ok(rdma_create_ep(&raw mut id, res, null_mut(), &mut qp_attr(IBV_QPT_RC)));
        rdma_freeaddrinfo(res);
        assert_eq!(qp_state((*id).qp), IBV_QPS_INIT);
        ok(rdma_connect(id, null_mut()));
        assert_eq!((*(*id).event).event, RDMA_CM_EVENT_ESTABLISHED);
        let mut from = Buffer::new((*id).pd);
        from.bytes[..16].copy_from_slice(b"from an endpoint");
        from.post_send((*id).qp);
        assert_eq!(poll((*id).send_cq).status, IBV_WC_SUCCESS);
        ok(rdma_disconnect(id));
        server.join().unwrap();
        from.free();
        rdma_destroy_ep(id);
        rdma_destroy_ep(listen);
    }
}

#[test]
fn a_refused_endpoint_gets_econnrefused() {
    unsafe {
        let (listen, port) = listener();
        let listening = Id(listen);
        let server = std::thread::spawn(move || {
            let mut id = null_mut();
            ok(rdma_get_request(listening.get(), &raw mut id));
            ok(rdma_reject(id, null(), 0));
            rdma_destroy_ep(id);
        });
        let res = info(port, 0, RDMA_PS_TCP);
        let mut id = null_mut();
        ok(rdma_create_ep(&raw mut id, res, null_mut(), &mut qp_attr(IBV_QPT_RC)));
        rdma_freeaddrinfo(res);
        fails(rdma_connect(id, null_mut()), libc::ECONNREFUSED);
        assert_eq!((*(*id).event).event, RDMA_CM_EVENT_REJECTED);
        rdma_destroy_ep(id);
        server.join().unwrap();
        rdma_destroy_ep(listen);
    }
}

#[test]
fn a_shared_receive_queue_serves_an_endpoint() {
    unsafe {
        let (_, port) = (Channel::new(), 9);
        let res = info(port, 0, RDMA_PS_TCP);
        let mut id = null_mut();
        ok(rdma_create_ep(&raw mut id, res, null_mut(), null_mut()));
        rdma_freeaddrinfo(res);
        let attr = ibv_srq_attr { max_wr: 8, max_sge: 1, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
        ok(rdma_create_srq(id, null_mut(), &raw mut init));
        assert!(init.attr.max_wr >= 8);
        create_qp(id);
        assert_eq!((*(*id).qp).srq, (*id).srq);
        fails(rdma_create_qp(id, null_mut(), &mut qp_attr(IBV_QPT_RC)), libc::EINVAL);
        rdma_destroy_ep(id);
    }
}

#[test]
fn requests_are_only_for_synchronous_listeners() {
    unsafe {
        let channel = Channel::new();
        let (id, _) = channel.listener(RDMA_PS_TCP);
        let mut new = null_mut();
        fails(rdma_get_request(id, &raw mut new), libc::EINVAL);
        ok(rdma_destroy_id(id));
    }
}

/// Returns whether a code of getaddrinfo(3) says that an address is of another family, for which C libraries have two codes.
fn is_of_wrong_family(code: c_int) -> bool {
    [EAI_ADDRFAMILY, libc::EAI_NONAME].contains(&code)
}

/// The code of the GNU C library.
const EAI_ADDRFAMILY: c_int = -9;

#[test]
fn rdma_getaddrinfo_follows_hints() {
    unsafe {
        let _ = ip();
        let mut res = null_mut();
        fails(rdma_getaddrinfo(null(), null(), NO_HINTS, &raw mut res), libc::EINVAL);

        // Datagrams, by port space or by queue pair.
        let found = info(7174, 0, RDMA_PS_UDP);
        assert_eq!((*found).ai_qp_type, IBV_QPT_UD.cast_signed());
        assert_eq!((*found).ai_port_space, RDMA_PS_UDP.cast_signed());
        assert_eq!(read((*found).ai_dst_addr.cast()), (ip(), 7174).into());
        assert_eq!((*found).ai_src_len, 0);
        rdma_freeaddrinfo(found);

        // A source from the hints, and IPv6.
        let mut hints: rdma_addrinfo = std::mem::zeroed();
        hints.ai_flags = RAI_FAMILY | RAI_NUMERICHOST;
        hints.ai_family = libc::AF_INET6;
        hints.ai_qp_type = IBV_QPT_UC.cast_signed();
        let mut src = Addr::new(ip(), 5);
        (hints.ai_src_addr, hints.ai_src_len) = (src.ptr(), 16);
        ok(rdma_getaddrinfo(c"::1".as_ptr(), c"1".as_ptr(), &raw const hints, &raw mut res));
        assert_eq!((*res).ai_family, libc::AF_INET6);
        assert_eq!((*res).ai_qp_type, IBV_QPT_UC.cast_signed());
        assert_eq!(read((*res).ai_src_addr.cast()), (ip(), 5).into());
        rdma_freeaddrinfo(res);
        let bad = rdma_getaddrinfo(c"localhost".as_ptr(), null(), &raw const hints, &raw mut res);
        assert_eq!(bad, libc::EAI_NONAME);

        // The family counts without RAI_FAMILY, too.
        hints.ai_flags = RAI_NUMERICHOST;
        let bad = rdma_getaddrinfo(c"127.0.0.1".as_ptr(), null(), &raw const hints, &raw mut res);
        assert!(is_of_wrong_family(bad), "{bad}");
        let mut any: rdma_addrinfo = std::mem::zeroed();
        any.ai_flags = RAI_PASSIVE;
        for (family, length) in [(libc::AF_INET6, 28), (libc::AF_INET, 16)] {
            any.ai_family = family;
            ok(rdma_getaddrinfo(null(), c"7".as_ptr(), &raw const any, &raw mut res));
            assert_eq!(((*res).ai_family, (*res).ai_src_len), (family, length));
            rdma_freeaddrinfo(res);
        }

        // A GID as text.
        hints.ai_flags |= RAI_FAMILY;
        (hints.ai_family, hints.ai_port_space) = (AF_IB, RDMA_PS_TCP.cast_signed());
        ok(rdma_getaddrinfo(c"fe80::1".as_ptr(), c"7".as_ptr(), &raw const hints, &raw mut res));
        assert_eq!(((*res).ai_family, (*res).ai_dst_len), (AF_IB, 48));
        let native = (*res).ai_dst_addr.cast::<sockaddr_ib>().read_unaligned();
        assert_eq!((native.sib_addr[0], native.sib_addr[15], native.sib_pkey), (0xfe, 1, 0xffff));
        assert_eq!((native.sib_sid.to_be(), native.sib_sid_mask), (0x0106_0007, u64::MAX));
        rdma_freeaddrinfo(res);
        let bad = rdma_getaddrinfo(c"node17".as_ptr(), null(), &raw const hints, &raw mut res);
        assert_eq!(bad, libc::EAI_NONAME);

        // Lookups at subnet administration, which this host does not have.
        let mut administration = |node: *const c_char, service: *const c_char, flags, errno| {
            hints.ai_flags = flags;
            fails(rdma_getaddrinfo(node, service, &raw const hints, &raw mut res), errno);
        };
        administration(null(), c"1".as_ptr(), RAI_SA, libc::ENOENT);
        administration(null(), null(), RAI_SA, libc::EINVAL);
        administration(c"a".as_ptr(), c"1".as_ptr(), RAI_SA, libc::EOPNOTSUPP);
        administration(null(), c"1".as_ptr(), RAI_SA | RAI_DNS, libc::EOPNOTSUPP);

        // Without names the answer repeats the query.
        let mut hints: rdma_addrinfo = std::mem::zeroed();
        let mut dst = Addr::new(ip(), 6);
        (hints.ai_dst_addr, hints.ai_dst_len) = (dst.ptr(), 16);
        ok(rdma_getaddrinfo(null(), null(), &raw const hints, &raw mut res));
        assert_eq!(read((*res).ai_dst_addr.cast()), (ip(), 6).into());
        rdma_freeaddrinfo(res);
        rdma_freeaddrinfo(null_mut());
    }
}

#[test]
fn rdma_resolve_addrinfo_completes_by_event() {
    unsafe {
        let channel = Channel::new();
        let id = channel.id(RDMA_PS_TCP);
        let mut res = null_mut();
        fails(rdma_query_addrinfo(id, &raw mut res), libc::ENOENT);
        let node = c"127.0.0.1".as_ptr();
        ok(rdma_resolve_addrinfo(id, node, c"80".as_ptr(), NO_HINTS));
        fails(rdma_resolve_addrinfo(id, node, null(), NO_HINTS), libc::EBUSY);
        channel.expect(RDMA_CM_EVENT_ADDRINFO_RESOLVED).ack();
        ok(rdma_query_addrinfo(id, &raw mut res));
        assert_eq!(read((*res).ai_dst_addr.cast()).to_string(), "127.0.0.1:80");
        rdma_freeaddrinfo(res);
        fails(rdma_query_addrinfo(id, &raw mut res), libc::ENOENT);

        // A failure is an event as well, after which the id may start another lookup.
        let mut hints: rdma_addrinfo = std::mem::zeroed();
        hints.ai_flags = RAI_NUMERICHOST;
        ok(rdma_resolve_addrinfo(id, c"node17".as_ptr(), null(), &raw const hints));
        let event = channel.event();
        let told = (event.kind(), event.status());
        assert_eq!(told, (RDMA_CM_EVENT_ADDRINFO_ERROR, -libc::ENOENT));
        event.ack();
        fails(rdma_query_addrinfo(id, &raw mut res), libc::ENOENT);
        fails(rdma_resolve_addrinfo(id, null(), null(), NO_HINTS), libc::EINVAL);
        hints.ai_flags = RAI_SA;
        let service = c"1".as_ptr();
        fails(rdma_resolve_addrinfo(id, node, service, &raw const hints), libc::EOPNOTSUPP);
        // The id is bound to no port of a subnet.
        fails(rdma_resolve_addrinfo(id, null(), service, &raw const hints), libc::EINVAL);
        ok(rdma_resolve_addrinfo(id, node, c"80".as_ptr(), NO_HINTS));
        // A result found after that is discarded.
        ok(rdma_destroy_id(id));
    }
}
