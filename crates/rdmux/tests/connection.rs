//! Connections, through the public API.

mod common;

use std::thread;

use common::{host, on, over_every_link};
use rdmux::cm::{ConnParam, Event, EventChannel, EventKind, Id, PortSpace};
use rdmux::{Access, Cause, Connection, Context, Options, QpType, RemoteMr, SendWr};

/// Returns both ends of a connection from `a` to `b`.
fn pair(
    a: &Context,
    b: &Context,
    options: impl Fn(&Context) -> Options,
) -> (Connection, Connection) {
    let mut listener = options(b).bind((b.address().unwrap(), 0).into()).unwrap();
    let to = listener.local_addr();
    thread::scope(|s| {
        let accepted = s.spawn(move || listener.accept().unwrap());
        let connected = options(a).connect(to).unwrap();
        (connected, accepted.join().unwrap())
    })
}

#[test]
fn messages_of_all_sizes_come_whole_and_in_order() {
    over_every_link(|a, b| {
        let (mut left, mut right) = pair(a, b, on);
        let sizes = [0, 1, 3, 255, 256, 1023, 1024, 4096, 4097, 65535, 65536];
        let message = |n: usize| (0..251).cycle().take(n).collect::<Vec<u8>>();
        thread::scope(|s| {
            s.spawn(|| {
                for n in sizes {
                    left.send(&message(n)).unwrap();
                }
                assert_eq!(left.recv().unwrap().unwrap(), b"thanks");
            });
            for n in sizes {
                assert_eq!(right.recv().unwrap().unwrap(), message(n), "{n} bytes");
            }
            right.send(b"thanks").unwrap();
        });
    });
}

#[test]
fn a_slow_receiver_loses_nothing() {
    over_every_link(|a, b| {
        let (mut left, mut right) = pair(a, b, |c| on(c).depth(2).message_size(64));
        thread::scope(|s| {
            s.spawn(|| (0..100_u32).for_each(|n| left.send(&n.to_be_bytes()).unwrap()));
            for n in 0..100_u32 {
                assert_eq!(right.recv().unwrap().unwrap(), n.to_be_bytes());
            }
        });
    });
}

#[test]
fn close_delivers_pending_messages_then_end_of_stream() {
    over_every_link(|a, b| {
        let (mut left, mut right) = pair(a, b, on);
        left.send(b"one").unwrap();
        left.send(b"two").unwrap();
        left.close().unwrap();
        assert_eq!(right.recv().unwrap().as_deref(), Some(&b"one"[..]));
        assert_eq!(right.recv().unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(right.recv().unwrap(), None);
        assert_eq!(right.recv().unwrap(), None);
    });
}

#[test]
fn send_on_closed_connection_is_disconnected_error() {
    over_every_link(|a, b| {
        let (left, mut right) = pair(a, b, on);
        drop(left);
        assert_eq!(right.recv().unwrap(), None);
        assert!(right.send(b"x").unwrap_err().is_disconnected());
    });
}

#[test]
fn a_message_too_long_for_the_buffer_waits_for_a_longer_one() {
    over_every_link(|a, b| {
        let (mut left, mut right) = pair(a, b, on);
        left.send(b"four").unwrap();
        let error = right.recv_into(&mut [0; 3]).unwrap_err();
        assert!(matches!(error.cause(), Cause::TooLong { len: 4, max: 3 }), "{error}");
        let mut buffer = [0; 8];
        assert_eq!(right.recv_into(&mut buffer).unwrap(), Some(4));
        assert_eq!(&buffer[..4], b"four");
    });
}

#[test]
fn a_message_longer_than_agreed_is_refused_at_once() {
    over_every_link(|a, b| {
        let (mut left, mut right) = pair(a, b, |c| on(c).message_size(16));
        let error = left.send(&[0; 17]).unwrap_err();
        assert!(matches!(error.cause(), Cause::TooLong { len: 17, max: 16 }), "{error}");
        left.send(&[7; 16]).unwrap();
        assert_eq!(right.recv().unwrap().unwrap(), [7; 16]);
    });
}

#[test]
fn remote_memory_is_written_read_and_updated_by_atomics() {
    over_every_link(|a, b| {
        let (mut left, mut right) = pair(a, b, on);
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let theirs = right.pd().alloc(1 << 20, all).unwrap();
        right.send(&theirs.remote().to_bytes()).unwrap();
        let remote = RemoteMr::from_bytes(&left.recv().unwrap().unwrap()).unwrap();

        let data: Vec<u8> = (0..253).cycle().take(1 << 20).collect();
        let ours = left.pd().register(data.clone(), Access::LOCAL_WRITE).unwrap();
        left.write(ours.slice(..), remote).unwrap();
        assert!(theirs.to_vec(..) == data);

        theirs.write(1000, b"changed");
        left.read(ours.slice(5..12), remote.at(1000)).unwrap();
        assert_eq!(ours.to_vec(5..12), b"changed");

        theirs.store(8, 40);
        assert_eq!(left.fetch_add(remote.at(8), 2).unwrap(), 40);
        assert_eq!(left.compare_and_swap(remote.at(8), 41, 1).unwrap(), 42);
        assert_eq!(left.compare_and_swap(remote.at(8), 42, 43).unwrap(), 42);
        assert_eq!(theirs.load(8), 43);
    });
}

#[test]
fn write_to_deregistered_region_fails_the_connection_for_both() {
    over_every_link(|a, b| {
        let (mut left, mut right) = pair(a, b, on);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let theirs = right.pd().alloc(64, access).unwrap();
        let remote = theirs.remote();
        let ours = left.pd().alloc(64, Access::LOCAL_WRITE).unwrap();
        left.write(ours.slice(..), remote).unwrap();
        drop(theirs);
        let error = left.write(ours.slice(..), remote).unwrap_err();
        assert!(
            matches!(error.cause(), Cause::Completion(rdmux::WcStatus::RemAccessErr)),
            "{error}"
        );
        // Neither side has closed the connection: it failed, for both.
        for end in [&mut left, &mut right] {
            let error = end.recv().unwrap_err();
            let flushed = Cause::Completion(rdmux::WcStatus::WrFlushErr);
            assert_eq!(error.cause().to_string(), flushed.to_string());
        }
        assert!(!left.send(b"lost").and_then(|()| left.close()).unwrap_err().is_disconnected());
        // The other end learns later that its connection has failed.
        while right.recv().map_or(true, |message| message.is_some()) {}
    });
}

#[test]
fn private_data_and_addresses_are_known_to_both() {
    over_every_link(|a, b| {
        let (left, right) = pair(a, b, |c| on(c).private_data(*b"hello"));
        assert!(left.private_data().starts_with(b"hello"));
        assert!(right.private_data().starts_with(b"hello"));
        assert_eq!(left.peer_addr(), right.local_addr());
        assert_eq!(left.local_addr(), right.peer_addr());
        assert_eq!(left.is_same_host(), a.address().unwrap() == b.address().unwrap());
    });
}

#[test]
fn split_sender_and_receiver_work_in_separate_threads() {
    over_every_link(|a, b| {
        let (left, mut right) = pair(a, b, on);
        let (mut sender, mut receiver) = left.split();
        thread::scope(|s| {
            s.spawn(move || {
                (0..50_u8).for_each(|n| sender.send(&[n]).unwrap());
                sender.flush().unwrap();
            });
            s.spawn(move || {
                for n in 0..50_u8 {
                    assert_eq!(receiver.recv().unwrap().unwrap(), [n]);
                }
            });
            for _ in 0..50 {
                let message = right.recv().unwrap().unwrap();
                right.send(&message).unwrap();
            }
        });
    });
}

#[test]
fn dropped_half_of_a_split_connection_leaves_the_other_usable() {
    over_every_link(|a, b| {
        let (left, mut right) = pair(a, b, on);
        let (mut sender, mut receiver) = left.split();
        sender.send(&[7; 65536]).unwrap();
        drop(sender);
        assert_eq!(right.recv().unwrap().unwrap(), vec![7; 65536]);
        right.send(b"answer").unwrap();
        assert_eq!(receiver.recv().unwrap().unwrap(), b"answer");
        drop(receiver);
        assert_eq!(right.recv().unwrap(), None);

        let (left, mut right) = pair(a, b, on);
        let (mut sender, receiver) = left.split();
        drop(receiver);
        right.send(&[8; 65536]).unwrap();
        for n in 0..50 {
            sender.send(&[n]).unwrap();
            assert_eq!(right.recv().unwrap().unwrap(), [n]);
        }
        sender.flush().unwrap();
        drop(sender);
        assert_eq!(right.recv().unwrap(), None);
    });
}

#[test]
fn write_with_immediate_is_not_received_as_a_message() {
    over_every_link(|a, b| {
        let next = |channel: &EventChannel, kind| -> Event {
            channel.next(None).unwrap().unwrap().expect(kind, "go on").unwrap()
        };
        let channel = EventChannel::new(b).unwrap();
        let listening = Id::new(&channel, PortSpace::Tcp).unwrap();
        let at = listening.bind(std::net::SocketAddr::new(b.address().unwrap(), 0)).unwrap();
        listening.listen(1).unwrap();
        let (cq, pd) = (b.cq(16).unwrap(), b.pd());
        let qp = pd.qp(QpType::Rc).cq(&cq).max_inline(64).build().unwrap();
        let (mut connection, _passive) = thread::scope(|scope| {
            let options = on(a).message_size(64).depth(2);
            let connecting = scope.spawn(move || options.connect(at.socket().unwrap()).unwrap());
            let id = next(&channel, EventKind::ConnectRequest).take_id().unwrap();
            id.attach_qp(&qp).unwrap();
            let param = ConnParam { retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() };
            id.accept(&param).unwrap();
            drop(next(&channel, EventKind::Established));
            (connecting.join().unwrap(), id)
        });
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let theirs = connection.pd().alloc(4096, access).unwrap();
        let ours = pd.register(vec![7; 4096], Access::LOCAL_WRITE).unwrap();
        // More messages than there are receives, and longer ones.
        for n in 0..5 {
            let write = SendWr::write(n, theirs.remote()).imm([9; 4]);
            qp.post_send(&write.sges(&[ours.slice(..)]).signaled()).unwrap();
            qp.post_send(&SendWr::send(n).inline(&[b"message"]).signaled()).unwrap();
            assert_eq!(connection.recv().unwrap().unwrap(), b"message");
            for _ in 0..2 {
                cq.wait_one(None).unwrap();
            }
        }
        assert_eq!(theirs.to_vec(..), [7; 4096]);
    });
}

#[test]
fn sizes_that_no_memory_holds_are_errors_at_once() {
    let host = host();
    let at = (host.address().unwrap(), 0).into();
    let too_large = [
        on(&host).message_size(usize::MAX),
        on(&host).message_size(usize::MAX / 16),
        on(&host).message_size((1 << 31) + 1).depth(1),
        on(&host).depth(u32::MAX),
    ];
    for options in too_large {
        let error = options.clone().bind(at).unwrap_err();
        assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
        let error = options.connect(at).unwrap_err();
        assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
    }
    let error = on(&host).depth(u32::MAX).datagram(at).unwrap_err();
    assert!(matches!(error.cause(), Cause::Invalid(_)), "{error}");
}

#[test]
fn connecting_without_listener_is_rejected_with_reason_8() {
    over_every_link(|a, b| {
        let error = on(a).connect((b.address().unwrap(), 1).into()).unwrap_err();
        assert!(matches!(error.cause(), Cause::Rejected { reason: 8, .. }), "{error}");
    });
}

#[test]
fn many_connections_are_accepted_in_whatever_order_they_come() {
    over_every_link(|a, b| {
        let mut listener = on(b).depth(1).bind((b.address().unwrap(), 0).into()).unwrap();
        let to = listener.local_addr();
        thread::scope(|s| {
            for n in 0..8_u8 {
                s.spawn(move || {
                    let mut c = on(a).depth(1).connect(to).unwrap();
                    c.send(&[n]).unwrap();
                    assert_eq!(c.recv().unwrap().unwrap(), [n]);
                });
            }
            for _ in 0..8 {
                let mut c = listener.accept().unwrap();
                s.spawn(move || {
                    let n = c.recv().unwrap().unwrap();
                    c.send(&n).unwrap();
                    assert_eq!(c.recv().unwrap(), None);
                });
            }
        });
    });
}
