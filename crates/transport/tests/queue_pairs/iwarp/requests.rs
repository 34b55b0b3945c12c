//! The calls that a program may make, and the states that allow them.

use rdmux_wire::Rkey;

use super::*;
use rdmux_transport::env::AccessFault;
use rdmux_transport::{ModifyError, PostError};

const RKEY: Rkey = Rkey(KEY);

#[test]
fn only_an_attached_stream_moves_qp_to_rts() {
    let mut end = End::new(1, false);
    end.go_to(QpState::Init).unwrap();
    end.go_to(QpState::Rtr).unwrap();
    assert_eq!(end.qp.state(), QpState::Init);
    for to in [QpState::Rts, QpState::Sqd, QpState::Sqe] {
        assert!(matches!(end.go_to(to), Err(ModifyError::Transition { .. })), "{to:?}");
    }
    end.qp.attach(Time::ZERO, &PLAIN, 1460, &mut end.w).unwrap();
    assert_eq!(end.qp.state(), QpState::Rts);
    end.go_to(QpState::Rtr).unwrap();
    end.go_to(QpState::Rts).unwrap();
    assert!(end.qp.attach(Time::ZERO, &PLAIN, 1460, &mut end.w).is_err());
    let attr = end.qp.attr();
    assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (4, 4));
    let attr = QpAttr { cur_state: QpState::Init, ..QpAttr::default() };
    let claimed = end.qp.modify(Time::ZERO, &attr, AttrMask::CUR_STATE, &mut end.w);
    assert!(matches!(claimed, Err(ModifyError::CurState { .. })));
}

#[test]
fn post_in_wrong_state_full_queue_or_with_unsupported_operation_fails() {
    let mut end = End::new(1, false);
    let wr = SendWr::new(1, SendOp::Send, SendData::Sges(&[]));
    let refused = end.qp.post_send(Time::ZERO, &wr);
    assert_eq!(refused, Err(PostError::State(QpState::Init)));
    end.qp.attach(Time::ZERO, &PLAIN, 1460, &mut end.w).unwrap();
    let imm = SendWr::new(1, SendOp::SendImm([0; 4]), SendData::Sges(&[]));
    assert!(matches!(end.qp.post_send(Time::ZERO, &imm), Err(PostError::Operation(_))));
    let mark = end.qp.sends_posted();
    for _ in 0..16 {
        end.qp.post_send(Time::ZERO, &wr).unwrap();
    }
    assert_eq!(end.qp.post_send(Time::ZERO, &wr), Err(PostError::Full(16)));
    end.qp.withdraw_sends(mark);
    assert!(end.sent().is_empty());
    let mut fresh = Qp::new(end.qp.init());
    let recv = RecvWr { wr_id: 1, sges: &[] };
    assert_eq!(fresh.post_recv(&recv), Err(PostError::State(QpState::Reset)));
}

#[test]
fn reset_discards_requests_and_a_new_stream_starts_at_msn_1() {
    let mut end = End::attached(&PLAIN);
    end.recv(1, 0, 64);
    end.send(1, SendOp::Read { remote_addr: 0, rkey: RKEY }, 0, 8);
    end.sent();
    end.go_to(QpState::Reset).unwrap();
    assert_eq!((end.qp.state(), end.qp.wish()), (QpState::Reset, Wish::Abort));
    assert!(end.w.completions.is_empty());
    end.go_to(QpState::Init).unwrap();
    end.qp.attach(Time::ZERO, &PLAIN, 1460, &mut end.w).unwrap();
    assert_eq!(end.qp.wish(), Wish::Keep);
    end.send(2, SendOp::Send, 0, 0);
    let bytes = end.sent();
    assert_eq!(bytes[12..16], 1_u32.to_be_bytes(), "message sequence numbers begin at 1");
    assert_eq!(end.done(Side::Send), good([2]));
}

#[test]
fn stream_buffers_are_allocated_at_attach_and_freed_at_reset() {
    let mut end = End::new(1, false);
    let before = end.qp.footprint();
    let queues = Qp::queues_size(end.qp.init());
    assert!(before < queues + size_of::<Qp>(), "queues come with their first requests");
    let params = StreamParams { crc: true, ..PLAIN };
    end.qp.attach(Time::ZERO, &params, 65_535, &mut end.w).unwrap();
    assert!(end.qp.footprint() > before + 128 * 1024, "those of the stream come with it");
    end.go_to(QpState::Reset).unwrap();
    assert_eq!(end.qp.footprint(), before);
}

/// A fault of this end's own memory fails the work request. The peer is notified that this end
/// failed.
#[test]
fn local_memory_fault_is_local_protection_error_and_terminates_the_stream() {
    for crc in [false, true] {
        let mut pair = Pair::with(&StreamParams { crc, ..PLAIN }, 1460, super::pipe::AT_ONCE);
        pair.b.recv(1, 0, 64);
        pair.a.send(1, SendOp::Send, 0, 64);
        pair.a.send(2, SendOp::Read { remote_addr: 0, rkey: RKEY }, 0x100, 64);
        pair.a.send(3, SendOp::Send, super::super::MEMORY as u64, 64);
        pair.a.send(4, SendOp::Send, 0, 64);
        pair.run();
        let expected = [
            (1, WcStatus::Success),
            (2, WcStatus::Success),
            (3, WcStatus::LocProtErr),
            (4, WcStatus::WrFlushErr),
        ];
        assert_eq!(pair.a.done(Side::Send), expected, "crc {crc}");
        assert_eq!(pair.b.done(Side::Recv), good([1]));
        assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Err, QpState::Err));
        assert_eq!(pair.b.events(), [QpEvent::Fatal], "local catastrophic error");
    }
}

#[test]
fn read_without_valid_sink_or_with_ord_zero_fails() {
    let mut end = End::attached(&PLAIN);
    let read = SendOp::Read { remote_addr: 0, rkey: RKEY };
    end.send(1, read, super::super::MEMORY as u64, 64);
    end.sent();
    assert_eq!(end.done(Side::Send), [(1, WcStatus::LocProtErr)]);
    let mut end = End::attached(&StreamParams { ord: 0, ..PLAIN });
    end.send(1, read, 0, 64);
    end.sent();
    assert_eq!(end.done(Side::Send), [(1, WcStatus::LocQpOpErr)]);
    let mut end = End::attached(&PLAIN);
    end.w.bound.clear();
    let bind = rdmux_transport::wr::MwBind {
        rkey: Rkey(1),
        lkey: rdmux_wire::Lkey(KEY),
        addr: 0,
        length: 0,
        access: Access::empty(),
    };
    end.send(1, SendOp::BindMw(bind), 0, 0);
    end.sent();
    assert_eq!(end.done(Side::Send), [(1, WcStatus::MwBindErr)]);
}

/// Memory disappears while a frame is partly sent: the rest cannot be sent, so the stream is reset.
#[test]
fn memory_lost_within_a_partly_sent_fpdu_aborts_the_stream() {
    let mut end = End::attached(&PLAIN);
    end.w.stream.room = 100;
    end.send(1, SendOp::Send, 0, 1000);
    end.poll(Time(1));
    end.w.memory.refuses = Some(AccessFault::Unmapped);
    end.w.stream.bytes.clear();
    end.poll(Time(1));
    assert_eq!(end.done(Side::Send), [(1, WcStatus::LocProtErr)]);
    assert_eq!(end.qp.wish(), Wish::Abort);
}

/// Data that the peer sent before it reset the stream is processed, and nothing more is sent.
#[test]
fn data_received_before_a_tcp_reset_is_processed() {
    let mut pair = Pair::new();
    pair.a.recv(9, 0, 64);
    pair.a.recv(10, 0, 64);
    pair.b.send(2, SendOp::Send, 0, 64);
    let bytes = pair.b.sent();
    pair.a.w.stream.broken = true;
    pair.a.send(1, SendOp::Send, 0, 1000);
    pair.a.poll(Time(1));
    pair.a.w.stream.broken = false;
    pair.a.send(3, SendOp::Send, 0, 1000);
    pair.a.feed(Time(1), &bytes);
    assert!(pair.a.sent().is_empty());
    assert_eq!(pair.a.done(Side::Recv), good([9]));
    pair.a.qp.handle_end(Time(1), true, &mut pair.a.w);
    let flushed = |id| (id, WcStatus::WrFlushErr);
    assert_eq!(pair.a.done(Side::Send), [flushed(1), flushed(3)]);
    assert_eq!(pair.a.done(Side::Recv), [flushed(10)]);
    assert_eq!(pair.a.qp.wish(), Wish::Abort);
}

/// A program that has disconnected gets no success for data that was not sent.
#[test]
fn tcp_reset_while_draining_flushes_requests_and_aborts() {
    let mut end = End::attached(&PLAIN);
    end.send(1, SendOp::Send, 0, 1000);
    end.qp.shutdown(Time(1), &mut end.w);
    end.w.stream.broken = true;
    end.poll(Time(1));
    assert_eq!(end.qp.wish(), Wish::ReadOut);
    end.go_to(QpState::Err).unwrap();
    assert_eq!(end.done(Side::Send), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(end.qp.wish(), Wish::Abort);
}

#[test]
fn tcp_reset_flushes_all_requests() {
    let mut end = End::attached(&PLAIN);
    end.recv(9, 0, 64);
    end.send(1, SendOp::Send, 0, 1000);
    end.w.stream.broken = true;
    end.poll(Time(1));
    assert_eq!((end.qp.state(), end.qp.wish()), (QpState::Rts, Wish::ReadOut));
    end.qp.handle_end(Time(1), true, &mut end.w);
    assert_eq!(end.done(Side::Send), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(end.done(Side::Recv), [(9, WcStatus::WrFlushErr)]);
    assert_eq!((end.qp.state(), end.qp.wish()), (QpState::Err, Wish::Abort));
    end.recv(10, 0, 64);
    end.send(2, SendOp::Send, 0, 1000);
    end.poll(Time(1));
    assert_eq!(end.done(Side::Send), [(2, WcStatus::WrFlushErr)]);
    assert_eq!(end.done(Side::Recv), [(10, WcStatus::WrFlushErr)]);
}
