//! The end of a stream.

use rdmux_wire::Rkey;

use super::pipe::{AT_ONCE, Carriage};
use super::*;
use rdmux_transport::iwarp::{CLOSING_TIME, STALL_TIME, TERMINATE_TIME};

const RKEY: Rkey = Rkey(KEY);
const FLUSHED: WcStatus = WcStatus::WrFlushErr;

#[test]
fn disconnect_completes_all_posted_requests_then_closes() {
    for room in [1, 64, usize::MAX] {
        let mut pair = Pair::with(&PLAIN, 1460, Carriage { chunk: 0, room, direct: false });
        pair.b.w.memory.fill(0, 0x4000, 1);
        for id in 1..=3 {
            pair.b.recv(id, id * 0x1000, 0x1000);
        }
        pair.a.recv(7, 0, 64);
        for id in 1..=3 {
            pair.a.send(id, SendOp::Send, 0, 3000);
        }
        pair.a.send(4, SendOp::Read { remote_addr: 0, rkey: RKEY }, 0x8000, 5000);
        pair.b.send(5, SendOp::Read { remote_addr: 0, rkey: RKEY }, 0x8000, 5000);
        pair.b.poll(pair.now);
        pair.a.qp.shutdown(pair.now, &mut pair.a.w);
        assert_eq!(pair.a.qp.state(), QpState::Sqd);
        pair.run();
        assert_eq!(pair.a.done(Side::Send), good([1, 2, 3, 4]), "room {room}");
        assert_eq!(pair.b.done(Side::Recv), good([1, 2, 3]));
        assert_eq!(pair.b.done(Side::Send), good([5]), "room {room}");
        assert_eq!(pair.a.done(Side::Recv), [(7, FLUSHED)]);
        assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Err, QpState::Err));
        assert_eq!((pair.a.qp.wish(), pair.b.qp.wish()), (Wish::Close, Wish::Close));
        assert!(pair.a.events().is_empty() && pair.b.events().is_empty());
    }
}

#[test]
fn pending_read_of_the_peer_is_answered_before_close() {
    let mut pair = Pair::new();
    pair.b.send(1, SendOp::Read { remote_addr: 0, rkey: RKEY }, 0x8000, 64);
    let request = pair.b.sent();
    pair.a.feed(pair.now, &request);
    pair.a.qp.shutdown(pair.now, &mut pair.a.w);
    assert_eq!(pair.a.qp.wish(), Wish::Keep);
    pair.run();
    assert_eq!(pair.b.done(Side::Send), good([1]));
    assert_eq!(pair.a.qp.wish(), Wish::Close);
}

#[test]
fn simultaneous_disconnect_completes_sends_and_closes_both_ends() {
    let mut pair = Pair::new();
    for end in [&mut pair.a, &mut pair.b] {
        end.recv(1, 0, 64);
        end.recv(2, 0, 64);
        end.send(1, SendOp::Send, 0, 64);
        end.qp.shutdown(Time(1), &mut end.w);
    }
    pair.run();
    for end in [&mut pair.a, &mut pair.b] {
        assert_eq!(end.done(Side::Send), good([1]));
        assert_eq!(end.done(Side::Recv), [(1, WcStatus::Success), (2, FLUSHED)]);
        assert_eq!(end.qp.wish(), Wish::Close);
    }
}

#[test]
fn simultaneous_disconnect_completes_a_long_send_and_its_receive() {
    for params in [PLAIN, StreamParams { crc: true, tx_markers: true, ..PLAIN }] {
        let mut pair = Pair::with(&params, 1460, Carriage { chunk: 0, room: 100, direct: false });
        pair.a.w.memory.bytes[..5000].fill(7);
        pair.b.recv(1, 0, 5000);
        pair.b.recv(2, 0, 64);
        pair.a.send(1, SendOp::Send, 0, 5000);
        pair.a.poll(pair.now);
        for end in [&mut pair.a, &mut pair.b] {
            end.qp.shutdown(Time(1), &mut end.w);
        }
        pair.run();
        assert_eq!(pair.a.done(Side::Send), good([1]));
        assert_eq!(pair.b.done(Side::Recv), [(1, WcStatus::Success), (2, FLUSHED)]);
        assert_eq!(pair.b.w.memory.bytes[..5000], [7; 5000]);
        for end in [&pair.a, &pair.b] {
            assert_eq!((end.qp.state(), end.qp.wish()), (QpState::Err, Wish::Close));
        }
    }
}

#[test]
fn stream_that_breaks_after_fin_of_the_peer_is_aborted() {
    let mut end = End::attached(&PLAIN);
    end.w.stream.room = 30;
    end.send(1, SendOp::Send, 0, 64);
    end.poll(Time(1));
    end.qp.shutdown(Time(1), &mut end.w);
    end.qp.handle_end(Time(1), true, &mut end.w);
    assert_eq!((end.qp.state(), end.qp.wish()), (QpState::Sqd, Wish::Keep));
    end.w.stream.broken = true;
    end.poll(Time(2));
    assert_eq!((end.qp.state(), end.qp.wish()), (QpState::Err, Wish::Abort));
    assert_eq!(end.done(Side::Send), [(1, FLUSHED)]);
}

#[test]
fn request_that_waits_for_a_response_ends_the_stream_at_the_peers_fin() {
    let mut end = End::attached(&PLAIN);
    end.send(1, SendOp::Read { remote_addr: 0, rkey: RKEY }, 0, 64);
    end.sent();
    end.qp.shutdown(Time(1), &mut end.w);
    end.qp.handle_end(Time(1), true, &mut end.w);
    assert_eq!((end.qp.state(), end.qp.wish()), (QpState::Err, Wish::Close));
    assert_eq!(end.done(Side::Send), [(1, FLUSHED)]);
}

#[test]
fn request_posted_in_sqd_after_disconnect_is_flushed() {
    let mut pair = Pair::new();
    pair.b.recv(1, 0, 64);
    pair.a.w.stream.room = 10;
    pair.a.send(1, SendOp::Send, 0, 64);
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
    pair.a.qp.modify(pair.now, &attr, mask, &mut pair.a.w).unwrap();
    assert!(pair.a.qp.attr().sq_draining);
    pair.a.send(2, SendOp::Send, 0, 64);
    pair.a.poll(pair.now);
    assert!(pair.a.events().is_empty());
    pair.run();
    assert_eq!(pair.a.done(Side::Send), [(1, WcStatus::Success), (2, FLUSHED)]);
    assert_eq!(pair.b.done(Side::Recv), good([1]));
    assert_eq!(pair.a.events(), [QpEvent::SqDrained]);
}

#[test]
fn tcp_fin_of_the_peer_flushes_and_closes() {
    let mut end = End::attached(&PLAIN);
    end.recv(1, 0, 64);
    end.send(2, SendOp::Read { remote_addr: 0, rkey: RKEY }, 0, 64);
    end.sent();
    end.qp.handle_end(Time(1), true, &mut end.w);
    assert_eq!(end.done(Side::Send), [(2, FLUSHED)]);
    assert_eq!(end.done(Side::Recv), [(1, FLUSHED)]);
    assert_eq!((end.qp.state(), end.qp.wish()), (QpState::Err, Wish::Close));
    assert!(end.events().is_empty());
    end.qp.handle_end(Time(1), false, &mut end.w);
    assert_eq!(end.qp.wish(), Wish::Close);
}

#[test]
fn partly_sent_fpdu_makes_close_an_abort() {
    for by_program in [false, true] {
        let mut end = End::attached(&PLAIN);
        end.w.stream.room = 30;
        end.send(1, SendOp::Send, 0, 64);
        end.poll(Time(1));
        if by_program {
            end.go_to(QpState::Err).unwrap();
        } else {
            end.qp.handle_end(Time(1), true, &mut end.w);
        }
        assert_eq!(end.done(Side::Send), [(1, FLUSHED)]);
        assert_eq!(end.qp.wish(), Wish::Abort, "by program: {by_program}");
    }
}

#[test]
fn transition_to_err_shuts_the_stream_down_after_sent_bytes() {
    let mut pair = Pair::new();
    pair.b.recv(1, 0, 64);
    pair.a.recv(2, 0, 64);
    pair.a.send(1, SendOp::Send, 0, 64);
    pair.a.poll(pair.now);
    pair.a.go_to(QpState::Err).unwrap();
    assert_eq!(pair.a.qp.wish(), Wish::Shutdown);
    pair.run();
    assert_eq!(pair.a.done(Side::Recv), [(2, FLUSHED)]);
    assert_eq!(pair.b.done(Side::Recv), good([1]));
    assert_eq!((pair.a.qp.wish(), pair.b.qp.wish()), (Wish::Close, Wish::Close));
}

#[test]
fn peer_without_fin_is_closed_after_closing_time() {
    let mut end = End::attached(&PLAIN);
    end.recv(1, 0, 64);
    end.qp.shutdown(Time(1), &mut end.w);
    assert_eq!(
        (end.qp.wish(), end.qp.poll_timeout()),
        (Wish::Shutdown, Some(Time(1).after(CLOSING_TIME)))
    );
    end.qp.handle_timeout(Time(2), &mut end.w);
    assert_eq!(end.qp.wish(), Wish::Shutdown, "not yet");
    end.qp.handle_timeout(Time(1).after(CLOSING_TIME), &mut end.w);
    assert_eq!((end.qp.state(), end.qp.wish()), (QpState::Err, Wish::Close));
    assert_eq!(end.done(Side::Recv), [(1, FLUSHED)]);
    assert_eq!(end.qp.poll_timeout(), None);
}

#[test]
fn peer_that_does_not_read_is_aborted_after_stall_time() {
    let mut end = End::attached(&PLAIN);
    end.w.stream.room = 100;
    end.send(1, SendOp::Send, 0, 1000);
    end.qp.shutdown(Time(1), &mut end.w);
    end.poll(Time(2));
    end.w.stream.bytes.clear();
    end.poll(Time(50));
    let until = Time(50).after(STALL_TIME);
    assert_eq!(end.qp.poll_timeout(), Some(until), "something moved");
    end.qp.handle_timeout(until, &mut end.w);
    assert_eq!(end.qp.wish(), Wish::Abort);
    assert_eq!(end.done(Side::Send), [(1, FLUSHED)]);
}

#[test]
fn slow_read_response_restarts_the_stall_timer() {
    let mut pair = Pair::new();
    pair.a.send(1, SendOp::Read { remote_addr: 0, rkey: RKEY }, 0, 64);
    let request = pair.a.sent();
    pair.a.qp.shutdown(Time(1), &mut pair.a.w);
    pair.b.feed(Time(1), &request);
    let response = pair.b.sent();
    for (at, piece) in response.chunks(20).enumerate().take(3) {
        let now = Time(at as u64 + 2);
        pair.a.feed(now, piece);
        assert_eq!(pair.a.qp.poll_timeout(), Some(now.after(STALL_TIME)), "piece {at}");
    }
}

#[test]
fn read_request_after_own_fin_is_not_answered_and_stream_is_not_reset() {
    let mut pair = Pair::new();
    pair.b.send(1, SendOp::Read { remote_addr: 0, rkey: RKEY }, 0, 64);
    let bytes = pair.b.sent();
    pair.a.qp.shutdown(Time(1), &mut pair.a.w);
    assert_eq!(pair.a.qp.wish(), Wish::Shutdown);
    pair.a.feed(Time(1), &bytes);
    // A reset would discard data that the peer has not read.
    assert_eq!((pair.a.qp.state(), pair.a.qp.wish()), (QpState::Err, Wish::Shutdown));
    assert!(pair.a.events().is_empty());
}

/// A Terminate that is not read, and one whose reader never ends the stream.
#[test]
fn unread_terminate_aborts_and_unanswered_one_closes_after_terminate_time() {
    for room in [0, usize::MAX] {
        let mut end = End::attached(&PLAIN);
        end.w.stream.room = room;
        end.feed(Time(1), &[0; 16]);
        assert_eq!(end.qp.wish(), Wish::Keep);
        end.poll(Time(1));
        let until = Time(1).after(TERMINATE_TIME);
        assert_eq!(end.qp.poll_timeout(), Some(until));
        end.qp.handle_timeout(until, &mut end.w);
        assert_eq!(end.qp.wish(), if room == 0 { Wish::Abort } else { Wish::Close });
    }
}

#[test]
fn terminate_follows_the_partly_sent_fpdu_also_after_fin_of_the_peer() {
    for crc in [false, true] {
        let params = StreamParams { crc, ..PLAIN };
        let mut pair = Pair::with(&params, 1460, AT_ONCE);
        pair.b.recv(1, 0, 2000);
        pair.a.w.memory.fill(0, 1000, 5);
        pair.a.w.stream.room = 100;
        pair.a.send(1, SendOp::Send, 0, 1000);
        pair.a.send(2, SendOp::Send, 0, 1000);
        pair.a.poll(pair.now);
        pair.a.feed(pair.now, &[0; 64]);
        pair.a.qp.handle_end(pair.now, true, &mut pair.a.w);
        assert_eq!(pair.a.qp.wish(), Wish::Keep);
        pair.a.ended = true;
        pair.a.w.stream.room = usize::MAX;
        pair.run();
        assert_eq!(pair.a.done(Side::Send), [(1, FLUSHED), (2, FLUSHED)]);
        assert_eq!(pair.b.done(Side::Recv), good([1]), "the frame that was begun");
        assert!(pair.b.w.memory.bytes[..1000] == pair.a.w.memory.bytes[..1000]);
        assert_eq!(pair.b.events().len(), 1, "and the Terminate");
        assert_eq!(pair.a.qp.wish(), Wish::Close);
        assert!(!pair.tick() || pair.b.qp.wish() == Wish::Close);
    }
}
