//! The end of the host service: ids get DEVICE_REMOVAL. It ends for the whole process, so this test is alone in its program.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "C functions, passed what the test itself made"
)]

mod cm_common;

use std::collections::BTreeSet;
use std::ptr::null_mut;

use cm_common::*;

#[test]
fn cm_ids_get_device_removal_once_when_the_service_ends() {
    let channel = Channel::new();
    let (listener, port) = channel.listener(RDMA_PS_TCP);
    let active = channel.resolved(RDMA_PS_TCP, port);
    let gone = channel.id(RDMA_PS_TCP);
    let other = Channel::new();
    let elsewhere = other.id(RDMA_PS_UDP);
    end_service();
    ok(unsafe { rdma_destroy_id(gone) });
    let mut removed = BTreeSet::new();
    for _ in 0..2 {
        let event = channel.expect(RDMA_CM_EVENT_DEVICE_REMOVAL);
        removed.insert(event.id());
        event.ack();
    }
    assert_eq!(removed, BTreeSet::from([listener, active]));
    fails(unsafe { rdma_get_cm_event(channel.0, &mut null_mut()) }, libc::EIO);
    let event = other.expect(RDMA_CM_EVENT_DEVICE_REMOVAL);
    assert_eq!(event.id(), elsewhere);
    event.ack();
    for id in [listener, active, elsewhere] {
        ok(unsafe { rdma_destroy_id(id) });
    }
    channel.destroy();
    other.destroy();
}
