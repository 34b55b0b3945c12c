//! Event channels and events: descriptors, acknowledgement, several threads, migration.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "C functions, passed what the test itself made"
)]

mod cm_common;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use cm_common::*;
use libc::c_int;

const ARG: u64 = 0x5566_7788_99aa_bbcc;

unsafe fn write(id: *mut rdma_cm_id, status: c_int) {
    ok(unsafe { rdma_write_cm_event(id, RDMA_CM_EVENT_USER, status, ARG) });
}

#[test]
fn a_descriptor_that_does_not_block_gives_eagain() {
    unsafe {
        let channel = Channel::new();
        let flags = libc::fcntl(channel.fd(), libc::F_GETFL);
        ok(libc::fcntl(channel.fd(), libc::F_SETFL, flags | libc::O_NONBLOCK));
        let mut event = null_mut();
        fails(rdma_get_cm_event(channel.0, &raw mut event), libc::EAGAIN);
        fails(rdma_get_cm_event(channel.0, null_mut()), libc::EINVAL);
        let id = channel.id(RDMA_PS_TCP);
        write(id, 5);
        let event = channel.event();
        assert_eq!((event.kind(), event.status()), (RDMA_CM_EVENT_USER, 5));
        assert_eq!((event.id(), event.get().param.arg), (id, ARG));
        event.ack();
        fails(rdma_ack_cm_event(null_mut()), libc::EINVAL);
        fails(rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), libc::EINVAL);
        ok(rdma_destroy_id(id));
        channel.destroy();
    }
}

#[test]
fn an_edge_triggered_descriptor_tells_of_each_event() {
    unsafe {
        let channel = Channel::new();
        let id = channel.id(RDMA_PS_TCP);
        let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        let mut what = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 1 };
        ok(libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, channel.fd(), &raw mut what));
        for _ in 0..2 {
            assert_eq!(libc::epoll_wait(epoll, &raw mut what, 1, 0), 0);
            write(id, 0);
            assert_eq!(libc::epoll_wait(epoll, &raw mut what, 1, 2000), 1);
            assert_eq!(libc::epoll_wait(epoll, &raw mut what, 1, 0), 0, "the edge is over");
            channel.event().ack();
        }
        libc::close(epoll);
        ok(rdma_destroy_id(id));
    }
}

#[test]
fn an_id_stays_until_its_events_are_acknowledged() {
    unsafe {
        let channel = Channel::new();
        let id = channel.id(RDMA_PS_TCP);
        write(id, 0);
        let event = channel.event();
        let acknowledged = Arc::new(AtomicBool::new(false));
        let (seen, gone) = (acknowledged.clone(), Id(id));
        let destroyer = std::thread::spawn(move || {
            ok(rdma_destroy_id(gone.get()));
            assert!(seen.load(Ordering::SeqCst), "destroyed under an event");
        });
        // The id still exists for the thread that holds the event.
        assert_eq!((*event.id()).channel, channel.0);
        acknowledged.store(true, Ordering::SeqCst);
        event.ack();
        destroyer.join().unwrap();
        // Unread events were discarded with the id.
        let id = channel.id(RDMA_PS_TCP);
        write(id, 1);
        ok(rdma_destroy_id(id));
        let id = channel.id(RDMA_PS_TCP);
        write(id, 2);
        let event = channel.event();
        assert_eq!((event.id(), event.status()), (id, 2));
        event.ack();
        ok(rdma_destroy_id(id));
    }
}

#[test]
fn events_of_destroyed_ids_do_not_make_the_channel_readable() {
    unsafe {
        let channel = Channel::new();
        let is_readable = || channel.is_readable();
        let [gone, stays] = [channel.id(RDMA_PS_TCP), channel.id(RDMA_PS_TCP)];
        for (id, status) in [(gone, 1), (gone, 2), (stays, 3), (gone, 4)] {
            write(id, status);
        }
        channel.event().ack();
        ok(rdma_destroy_id(gone));
        assert!(is_readable());
        let event = channel.event();
        assert_eq!((event.id(), event.status()), (stays, 3));
        assert!(!is_readable(), "the last one is of the id that is gone");
        event.ack();
        write(stays, 5);
        ok(rdma_destroy_id(stays));
        assert!(!is_readable());
    }
}

#[test]
fn threads_share_an_event_channel_without_losing_events() {
    const EACH: c_int = 50;
    unsafe {
        let channel = Channel::new();
        let id = channel.id(RDMA_PS_TCP);
        let on = channel.0 as usize;
        let readers: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(move || {
                    let channel = Channel(on as *mut _);
                    (0..EACH)
                        .map(|_| {
                            let event = channel.event();
                            let status = event.status();
                            event.ack();
                            status
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        for n in 0..4 * EACH {
            write(id, n);
        }
        let mut all: Vec<_> = readers.into_iter().flat_map(|r| r.join().unwrap()).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..4 * EACH));
        ok(rdma_destroy_id(id));
    }
}

#[test]
fn a_thread_that_waits_for_an_event_can_be_cancelled() {
    extern "C-unwind" fn wait(channel: *mut c_void) -> *mut c_void {
        let mut event = null_mut();
        unsafe {
            rdma_get_cm_event(channel.cast(), &raw mut event);
            rdma_get_cm_event(channel.cast(), &raw mut event);
        }
        null_mut()
    }
    unsafe extern "C" {
        fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    }
    unsafe {
        let channel = Channel::new();
        let mut thread = 0;
        let start: extern "C" fn(*mut c_void) -> *mut c_void =
            std::mem::transmute(wait as extern "C-unwind" fn(*mut c_void) -> *mut c_void);
        ok(libc::pthread_create(&raw mut thread, std::ptr::null(), start, channel.0.cast()));
        ok(pthread_cancel(thread));
        let mut result = null_mut();
        ok(libc::pthread_join(thread, &raw mut result));
        assert_eq!(result as isize, -1, "PTHREAD_CANCELED");
        // The channel still works.
        let id = channel.id(RDMA_PS_TCP);
        write(id, 3);
        channel.expect_status(3);
        ok(rdma_destroy_id(id));
    }
}

impl Channel {
    fn expect_status(&self, status: c_int) {
        let event = self.event();
        assert_eq!(event.status(), status);
        event.ack();
    }
}

#[test]
fn an_id_migrates_with_its_unread_events() {
    unsafe {
        let (old, new) = (Channel::new(), Channel::new());
        let (id, other) = (old.id(RDMA_PS_TCP), old.id(RDMA_PS_TCP));
        write(id, 1);
        write(other, 2);
        ok(rdma_migrate_id(id, new.0));
        assert_eq!((*id).channel, new.0);
        new.expect_status(1);
        old.expect_status(2);
        write(id, 3);
        new.expect_status(3);

        // To synchronous mode and back.
        ok(rdma_migrate_id(id, null_mut()));
        assert!((*id).channel != new.0);
        fails(rdma_migrate_id(id, null_mut()), libc::EINVAL);
        ok(rdma_resolve_addr(id, null_mut(), Addr::new(ip(), 9).ptr(), 2000));
        assert_eq!((*(*id).event).event, RDMA_CM_EVENT_ADDR_RESOLVED);
        ok(rdma_migrate_id(id, old.0));
        assert!((*id).event.is_null());
        ok(rdma_resolve_route(id, 2000));
        old.expect(RDMA_CM_EVENT_ROUTE_RESOLVED).ack();
        ok(rdma_destroy_id(id));
        ok(rdma_destroy_id(other));
        old.destroy();
        new.destroy();
    }
}

#[test]
fn a_migration_waits_for_acknowledgements() {
    unsafe {
        let (old, new) = (Channel::new(), Channel::new());
        let id = old.id(RDMA_PS_TCP);
        write(id, 1);
        let event = old.event();
        let (barrier, moved) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
        let (there, done, to, it) = (barrier.clone(), moved.clone(), new.0 as usize, Id(id));
        let mover = std::thread::spawn(move || {
            there.wait();
            ok(rdma_migrate_id(it.get(), to as *mut _));
            assert!(done.load(Ordering::SeqCst));
        });
        barrier.wait();
        moved.store(true, Ordering::SeqCst);
        event.ack();
        mover.join().unwrap();
        ok(rdma_destroy_id(id));
    }
}

#[test]
fn events_have_names() {
    for kind in 0..20 {
        let name = unsafe { std::ffi::CStr::from_ptr(rdma_event_str(kind)) };
        assert!(name.to_str().unwrap().starts_with("RDMA_CM_EVENT_"), "{kind}");
    }
    let name = unsafe { std::ffi::CStr::from_ptr(rdma_event_str(1000)) };
    assert_eq!(name, c"UNKNOWN EVENT");
}
