//! Options, and the errors of wrong arguments.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "C functions, passed what the test itself made"
)]

mod cm_common;

use std::ffi::{c_int, c_void};
use std::net::Ipv4Addr;
use std::ptr::null_mut;

use cm_common::*;

unsafe fn set<T>(id: *mut rdma_cm_id, name: u32, mut value: T, len: usize) -> c_int {
    let value: *mut c_void = (&raw mut value).cast();
    unsafe { rdma_set_option(id, RDMA_OPTION_ID.cast_signed(), name.cast_signed(), value, len) }
}

#[test]
fn options_want_the_right_size_state_and_name() {
    unsafe {
        let channel = Channel::new();
        let id = channel.id(RDMA_PS_TCP);
        ok(set(id, RDMA_OPTION_ID_TOS, 0x20_u8, 1));
        fails(set(id, RDMA_OPTION_ID_TOS, 0x20_u32, 4), libc::EINVAL);
        ok(set(id, RDMA_OPTION_ID_REUSEADDR, 1_i32, 4));
        ok(set(id, RDMA_OPTION_ID_AFONLY, 1_i32, 4));
        fails(set(id, RDMA_OPTION_ID_AFONLY, 1_u8, 1), libc::EINVAL);
        ok(set(id, RDMA_OPTION_ID_ACK_TIMEOUT, 12_u8, 1));
        fails(set(id, RDMA_OPTION_ID_ACK_TIMEOUT, 32_u8, 1), libc::EINVAL);
        fails(set(id, 99, 0_u8, 1), libc::ENOSYS);
        fails(rdma_set_option(id, 99, 0, null_mut(), 0), libc::ENOSYS);
        fails(rdma_set_option(id, 0, 0, null_mut(), 1), libc::EINVAL);
        ok(rdma_bind_addr(id, Addr::new(ip(), 0).ptr()));
        ok(set(id, RDMA_OPTION_ID_REUSEADDR, 1_i32, 4));
        fails(set(id, RDMA_OPTION_ID_REUSEADDR, 0_i32, 4), libc::EINVAL);
        ok(set(id, RDMA_OPTION_ID_AFONLY, 1_i32, 4));
        ok(rdma_listen(id, 1));
        fails(set(id, RDMA_OPTION_ID_REUSEADDR, 1_i32, 4), libc::EINVAL);
        fails(set(id, RDMA_OPTION_ID_AFONLY, 1_i32, 4), libc::EINVAL);
        ok(rdma_destroy_id(id));
    }
}

#[test]
fn rdma_option_ib_path_resolves_the_route() {
    unsafe {
        let channel = Channel::new();
        let id = channel.id(RDMA_PS_TCP);
        ok(rdma_resolve_addr(id, null_mut(), Addr::new(ip(), 9).ptr(), 2000));
        channel.expect(RDMA_CM_EVENT_ADDR_RESOLVED).ack();
        let mut path: ibv_path_data = std::mem::zeroed();
        let set = |path: &mut ibv_path_data, len| {
            let (level, name) = (RDMA_OPTION_IB.cast_signed(), RDMA_OPTION_IB_PATH.cast_signed());
            rdma_set_option(id, level, name, std::ptr::from_mut(path).cast(), len)
        };
        fails(set(&mut path, 71), libc::EINVAL);
        fails(set(&mut path, 72), libc::EINVAL);
        path.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
        fails(set(&mut path, 72), libc::EINVAL);
        path.path.sgid.raw = ip().to_ipv6_mapped().octets();
        path.path.dgid.raw = path.path.sgid.raw;
        path.path.pkey = u16::MAX;
        path.path.mtu = 3;
        ok(set(&mut path, 72));
        channel.expect(RDMA_CM_EVENT_ROUTE_RESOLVED).ack();
        assert_eq!((*id).route.num_paths, 1);
        ok(rdma_destroy_id(id));
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    unsafe {
        let channel = Channel::new();
        let mut id = null_mut();
        fails(rdma_create_id(channel.0, &raw mut id, null_mut(), 0x1_0106), libc::EINVAL);
        fails(rdma_create_id(channel.0, &raw mut id, null_mut(), 1), libc::EINVAL);
        let id = channel.id(RDMA_PS_TCP);
        fails(rdma_bind_addr(id, null_mut()), libc::EINVAL);
        let mut elsewhere = Addr::new(Ipv4Addr::new(192, 0, 2, 1), 0);
        fails(rdma_bind_addr(id, elsewhere.ptr()), libc::EADDRNOTAVAIL);
        (*elsewhere.ptr()).sa_family = 99;
        fails(rdma_bind_addr(id, elsewhere.ptr()), libc::EINVAL);
        fails(rdma_resolve_addr(id, null_mut(), null_mut(), 1000), libc::EINVAL);
        // All these need more than a new id.
        fails(rdma_resolve_route(id, 1000), libc::EINVAL);
        fails(rdma_connect(id, &mut conn_param(b"")), libc::EINVAL);
        fails(rdma_accept(id, &mut conn_param(b"")), libc::EINVAL);
        fails(rdma_reject(id, null_mut(), 0), libc::EINVAL);
        fails(rdma_establish(id), libc::EINVAL);
        fails(rdma_disconnect(id), libc::EINVAL);
        fails(rdma_notify(id, IBV_EVENT_COMM_EST), libc::EINVAL);
        let mut attr = qp_attr(IBV_QPT_RC);
        fails(rdma_create_qp(id, null_mut(), &raw mut attr), libc::EINVAL);
        ok(rdma_destroy_id(id));
        fails(rdma_destroy_id(null_mut()), libc::EINVAL);
        fails(rsocket(libc::AF_INET, libc::SOCK_STREAM, 0), libc::EOPNOTSUPP);
    }
}

#[test]
fn depths_beyond_the_device_are_refused() {
    unsafe {
        let (server, client) = (Channel::new(), Channel::new());
        let (listener, port) = server.listener(RDMA_PS_TCP);
        let id = client.resolved(RDMA_PS_TCP, port);
        create_qp(id);
        let mut param = conn_param(&[0; 57]);
        fails(rdma_connect(id, &raw mut param), libc::EINVAL);
        param.private_data_len = 0;
        param.responder_resources = 254;
        fails(rdma_connect(id, &raw mut param), libc::EINVAL);
        // 255 means the maximum.
        param.responder_resources = 255;
        param.initiator_depth = 255;
        ok(rdma_connect(id, &raw mut param));
        let request = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        assert!(request.conn().initiator_depth > 1);
        request.ack();
        rdma_destroy_qp(id);
        ok(rdma_destroy_id(id));
        ok(rdma_destroy_id(listener));
    }
}

#[test]
fn rdma_get_devices_lists_one_context_for_all_ids() {
    unsafe {
        let channel = Channel::new();
        let mut count = 0;
        let list = rdma_get_devices(&raw mut count);
        assert_eq!(count, 1);
        let (first, end) = (*list, *list.add(1));
        assert!(end.is_null());
        rdma_free_devices(list);
        let list = rdma_get_devices(null_mut());
        assert_eq!(*list, first);
        rdma_free_devices(list);
        let (id, _) = channel.listener(RDMA_PS_TCP);
        assert_eq!((*id).verbs, first);
        ok(rdma_destroy_id(id));
    }
}
