//! Messages that arrive before their receive is posted.

use core::time::Duration;

use rdmux_wire::Rkey;

use super::pipe::{AT_ONCE, Carriage};
use super::*;
use rdmux_transport::env::Drop;

const WAIT: Duration = Duration::from_millis(10);
const RKEY: Rkey = Rkey(KEY);

/// Returns a pair whose second end waits for receives.
fn pair_that_waits(params: &StreamParams, carriage: Carriage) -> Pair {
    let mut pair = Pair::with(params, 1460, carriage);
    pair.b.qp.set_receive_wait(WAIT);
    pair
}

/// Returns the second end of a pair, to which a WRITE and a SEND of 100 bytes were sent, and which has no receive.
fn waiting(params: &StreamParams) -> Pair {
    let mut pair = pair_that_waits(params, AT_ONCE);
    pair.a.w.memory.bytes[..100].fill(7);
    pair.a.send(1, SendOp::Write { remote_addr: 0x1000, rkey: RKEY }, 0, 100);
    pair.a.send(2, SendOp::Send, 0, 100);
    pair.run();
    assert!(pair.b.qp.waits_for_receive());
    pair
}

fn framings() -> [StreamParams; 4] {
    let crc = StreamParams { crc: true, ..PLAIN };
    let markers = StreamParams { tx_markers: true, ..crc };
    [PLAIN, crc, markers, StreamParams { tx_markers: true, ..PLAIN }]
}

#[test]
fn message_without_receive_waits_until_one_is_posted() {
    for params in framings() {
        let mut pair = waiting(&params);
        assert_eq!(pair.b.w.memory.bytes[0x1000..0x1064], [7; 100], "what came before is done");
        assert_eq!((pair.b.qp.state(), pair.b.qp.wish()), (QpState::Rts, Wish::Keep));
        pair.b.recv(5, 0x2000, 100);
        assert!(!pair.b.qp.waits_for_receive());
        pair.b.feed(pair.now, &[]);
        assert_eq!(pair.b.done(Side::Recv), good([5]));
        assert_eq!(pair.b.w.memory.bytes[0x2000..0x2064], [7; 100]);
        assert_eq!(pair.b.qp.poll_timeout(), None);
        assert!(pair.b.w.dropped.is_empty() && pair.b.events().is_empty());
    }
}

#[test]
fn every_message_without_receive_waits_for_any_tcp_chunking() {
    for params in framings() {
        for chunk in [0, 1, 7, usize::MAX] {
            let mut pair = pair_that_waits(&params, Carriage { chunk, ..AT_ONCE });
            for id in 1..=4 {
                pair.a.send(id, SendOp::Send, 0, 3000);
            }
            let imm = [9; 4];
            let last = SendOp::WriteImm { remote_addr: 0x1000, rkey: RKEY, imm };
            pair.a.send(5, last, 0, 3000);
            for id in 1..=5 {
                pair.run();
                assert!(pair.b.qp.waits_for_receive() && pair.b.done(Side::Recv).is_empty());
                pair.now = pair.now.after(WAIT - Duration::from_nanos(1));
                pair.b.recv(id, 0x2000, 3000);
                pair.run();
                assert_eq!(pair.b.done(Side::Recv), good([id]));
            }
            assert_eq!(pair.a.done(Side::Send), good(1..=5));
        }
    }
}

#[test]
fn connection_ends_when_no_receive_is_posted_in_time() {
    let mut pair = waiting(&PLAIN);
    assert_eq!(pair.b.qp.poll_timeout(), Some(Time(1).after(WAIT)));
    assert!(pair.tick());
    assert_eq!((pair.b.qp.state(), pair.b.qp.waits_for_receive()), (QpState::Err, false));
    assert_eq!(pair.b.w.dropped, [Drop::NoReceive]);
    assert_eq!(pair.b.events(), [QpEvent::Fatal]);
    pair.run();
    assert_eq!((pair.a.qp.state(), pair.a.events()), (QpState::Err, vec![QpEvent::ReqErr]));
}

#[test]
fn message_presented_again_after_receive_wait_moves_qp_to_error() {
    let mut pair = waiting(&PLAIN);
    pair.now = pair.now.after(WAIT);
    pair.b.feed(pair.now, &[]);
    assert_eq!(pair.b.qp.state(), QpState::Err);
}

#[test]
fn receive_posted_as_the_time_ends_is_taken() {
    let mut pair = waiting(&PLAIN);
    pair.b.recv(5, 0x2000, 100);
    assert!(pair.tick());
    assert_eq!(pair.b.qp.poll_timeout(), None);
    pair.b.feed(pair.now, &[]);
    assert_eq!(pair.b.done(Side::Recv), good([5]));
}

#[test]
fn srq_receive_ends_the_wait_when_bytes_are_presented_again() {
    let mut end = End::new(2, true);
    end.qp
        .attach(Time::ZERO, &StreamParams { initiator: false, ..PLAIN }, 1460, &mut end.w)
        .unwrap();
    end.qp.set_receive_wait(WAIT);
    let mut sender = End::attached(&PLAIN);
    sender.send(1, SendOp::Send, 0, 64);
    let bytes = sender.sent();
    end.feed(Time(1), &bytes);
    assert!(end.qp.waits_for_receive());
    end.w.memory.srq.push_back((8, vec![sge(0, 64)]));
    assert!(end.qp.waits_for_receive(), "the queue pair does not see the shared queue");
    end.feed(Time(2), &[]);
    assert!(!end.qp.waits_for_receive());
    assert_eq!(end.done(Side::Recv), good([8]));
}

#[test]
fn side_that_disconnected_drops_messages_without_receive() {
    let mut early = pair_that_waits(&PLAIN, AT_ONCE);
    early.b.qp.shutdown(early.now, &mut early.b.w);
    early.a.send(1, SendOp::Send, 0, 64);
    let mut late = waiting(&PLAIN);
    late.b.qp.shutdown(late.now, &mut late.b.w);
    assert!(!late.b.qp.waits_for_receive());
    for mut pair in [early, late] {
        pair.run();
        assert!(pair.b.w.dropped.is_empty() && pair.b.events().is_empty());
        for end in [&pair.a, &pair.b] {
            assert_eq!((end.qp.state(), end.qp.wish()), (QpState::Err, Wish::Close));
        }
    }
}

#[test]
fn message_without_receive_waits_while_sends_before_disconnect_are_pending() {
    let mut pair = waiting(&PLAIN);
    pair.b.w.stream.room = 0;
    pair.b.send(3, SendOp::Send, 0, 64);
    pair.b.qp.shutdown(pair.now, &mut pair.b.w);
    pair.run();
    assert!(pair.b.qp.waits_for_receive());
    pair.b.w.stream.room = usize::MAX;
    pair.a.recv(4, 0x2000, 64);
    pair.run();
    assert_eq!((pair.a.done(Side::Recv), pair.b.done(Side::Send)), (good([4]), good([3])));
    assert_eq!(pair.b.qp.wish(), Wish::Close);
}

#[test]
fn message_without_receive_after_disconnect_is_discarded_and_pending_requests_complete() {
    for wait in [WAIT, Duration::ZERO] {
        for params in framings() {
            let mut pair = Pair::with(&params, 1460, AT_ONCE);
            pair.b.qp.set_receive_wait(wait);
            pair.b.w.stream.room = 100;
            let read = SendOp::Read { remote_addr: 0, rkey: RKEY };
            pair.b.send(3, read, 0x1000, 64);
            pair.b.send(4, SendOp::Send, 0, 5000);
            pair.b.qp.shutdown(pair.now, &mut pair.b.w);
            pair.b.poll(pair.now);
            // Messages of one and of several frames, before the response to the READ.
            pair.a.send(1, SendOp::Send, 0, 64);
            pair.a.send(2, SendOp::Send, 0, 3000);
            let imm = [9; 4];
            pair.a.send(3, SendOp::WriteImm { remote_addr: 0x3000, rkey: RKEY, imm }, 0, 64);
            let early = pair.a.sent();
            pair.b.feed(pair.now, &early);
            assert_eq!(pair.b.qp.waits_for_receive(), !wait.is_zero());
            if !wait.is_zero() {
                assert!(pair.tick());
            }
            assert_eq!(pair.b.qp.state(), QpState::Sqd);
            pair.b.feed(pair.now, &[]);
            pair.b.w.stream.room = usize::MAX;
            pair.a.recv(5, 0x2000, 5000);
            pair.run();
            assert_eq!(pair.b.done(Side::Send), good([3, 4]));
            assert_eq!(pair.a.done(Side::Recv), good([5]));
            assert!(pair.b.done(Side::Recv).is_empty() && pair.b.events().is_empty());
            assert_eq!(pair.b.qp.wish(), Wish::Close);
        }
    }
}

#[test]
fn qp_in_error_or_reset_no_longer_waits_for_a_receive() {
    for state in [QpState::Err, QpState::Reset] {
        let mut pair = waiting(&PLAIN);
        pair.b.go_to(state).unwrap();
        assert!(!pair.b.qp.waits_for_receive(), "{state:?}");
    }
}
