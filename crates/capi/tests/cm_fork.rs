//! A child of fork(2) starts with no state, and does not affect its parent's.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "C functions, passed what the test itself made"
)]

mod cm_common;

use std::ptr::null_mut;

use cm_common::*;

#[test]
fn parents_ids_are_enodev_in_a_forked_child_which_may_create_its_own() {
    unsafe {
        let channel = Channel::new();
        let (listener, port) = channel.listener(RDMA_PS_TCP);
        match libc::fork() {
            0 => {
                // A panic must not run the parent's tests.
                let child = std::panic::catch_unwind(|| in_child(&channel, listener, port));
                libc::_exit(i32::from(child.is_err()));
            }
            child => {
                let request = channel.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
                assert_eq!(request.get().listen_id, listener);
                ok(rdma_reject(request.id(), null_mut(), 0));
                let id = request.id();
                request.ack();
                ok(rdma_destroy_id(id));
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                assert_eq!(status, 0, "the child failed");
            }
        }
        // The child's calls had no effect on this id.
        fails(rdma_listen(listener, 1), libc::EINVAL);
        ok(rdma_destroy_id(listener));
        channel.destroy();
    }
}

unsafe fn in_child(inherited: &Channel, listener: *mut rdma_cm_id, port: u16) {
    unsafe {
        let mut id = null_mut();
        fails(rdma_listen(listener, 1), libc::ENODEV);
        fails(rdma_get_cm_event(inherited.0, &mut null_mut()), libc::ENODEV);
        fails(rdma_create_id(inherited.0, &raw mut id, null_mut(), RDMA_PS_TCP), libc::ENODEV);
        ok(rdma_destroy_id(listener));
        rdma_destroy_event_channel(inherited.0);

        let own = Channel::new();
        let id = own.resolved(RDMA_PS_TCP, port);
        create_qp(id);
        ok(rdma_connect(id, null_mut()));
        let refused = own.event();
        assert_eq!(refused.kind(), RDMA_CM_EVENT_REJECTED);
        refused.ack();
    }
}
