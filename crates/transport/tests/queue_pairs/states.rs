//! The queue pair state machine: attributes, posting, draining, flushing.

use super::*;
use rdmux_transport::{ModifyError, PostError};

const OK: WcStatus = WcStatus::Success;

fn modify(s: &mut Side2, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
    s.qp.modify(Time::ZERO, attr, mask, &mut s.w)
}

#[test]
fn modify_without_a_required_or_with_a_disallowed_attribute_fails() {
    for qp_type in QpType::ALL {
        let mut s = Side2::new(1, qp_type, false);
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let attr = QpAttr { state: to, ..attributes(1, 2) };
            let from = s.qp.state();
            let mask = required(from, to, qp_type);
            for missing in mask.difference(AttrMask::STATE).iter() {
                assert_eq!(
                    modify(&mut s, &attr, mask.difference(missing)),
                    Err(ModifyError::Missing { from, to, missing })
                );
                assert_eq!(s.qp.state(), from);
            }
            let excess = AttrMask::CAP | AttrMask::RATE_LIMIT;
            assert_eq!(
                modify(&mut s, &attr, mask | excess),
                Err(ModifyError::NotAllowed { from, to, excess })
            );
            modify(&mut s, &attr, mask).unwrap();
        }
    }
}

#[test]
fn modify_with_value_out_of_range_fails_and_changes_nothing() {
    let mut s = Side2::new(1, QpType::Rc, false);
    let good = attributes(1, 2);
    s.step(&good, QpState::Init);
    s.w.link.max_payload = 512;
    let rtr = QpAttr { state: QpState::Rtr, ..good };
    let mask = required(QpState::Init, QpState::Rtr, QpType::Rc);
    let error = ModifyError::OutOfRange { attr: AttrMask::PATH_MTU, value: 1024, max: 512 };
    assert_eq!(modify(&mut s, &rtr, mask), Err(error));
    assert_eq!(s.qp.attr().dest_qpn, Qpn::new(0));
    s.w.link.max_payload = 4096;
    let pkey = QpAttr { pkey_index: 3, ..rtr };
    assert_eq!(modify(&mut s, &pkey, mask | AttrMask::PKEY_INDEX), Err(ModifyError::PkeyIndex(3)));
    modify(&mut s, &rtr, mask).unwrap();
    let rts = QpAttr { state: QpState::Rts, retry_cnt: 8, ..good };
    let mask = required(QpState::Rtr, QpState::Rts, QpType::Rc);
    let error = ModifyError::OutOfRange { attr: AttrMask::RETRY_CNT, value: 8, max: 7 };
    assert_eq!(modify(&mut s, &rts, mask), Err(error));
    let claimed = QpAttr { state: QpState::Rts, cur_state: QpState::Rts, ..good };
    let error = ModifyError::CurState { actual: QpState::Rtr, claimed: QpState::Rts };
    assert_eq!(modify(&mut s, &claimed, mask | AttrMask::CUR_STATE), Err(error));
    let to_init = QpAttr { state: QpState::Init, ..good };
    assert!(matches!(
        modify(&mut s, &to_init, AttrMask::STATE),
        Err(ModifyError::Transition { from: QpState::Rtr, to: QpState::Init, .. })
    ));
}

#[test]
fn post_send_and_post_recv_are_allowed_by_qp_state() {
    let mut s = Side2::new(1, QpType::Rc, false);
    let attr = attributes(1, 2);
    let send = SendWr::new(1, SendOp::Send, SendData::Inline(&[]));
    let recv = RecvWr { wr_id: 2, sges: &[] };
    assert_eq!(s.qp.post_recv(&recv), Err(PostError::State(QpState::Reset)));
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let state = s.qp.state();
        assert_eq!(s.qp.post_send(Time::ZERO, &send), Err(PostError::State(state)));
        s.step(&attr, to);
        assert_eq!(s.qp.post_recv(&recv), Ok(()));
    }
    assert_eq!(s.qp.post_send(Time::ZERO, &send), Ok(()));
    s.step(&attr, QpState::Err);
    s.w.completions.clear();
    s.qp.post_send(Time::ZERO, &send).unwrap();
    s.qp.post_recv(&recv).unwrap();
    s.poll(Time::ZERO);
    assert_eq!(s.w.statuses(), [(1, WcStatus::WrFlushErr), (2, WcStatus::WrFlushErr)]);
}

#[test]
fn post_send_beyond_sge_inline_length_or_queue_limits_fails() {
    let mut p = Pair::new(QpType::Rc);
    let mut post = |op, data: SendData<'_>| {
        let wr = SendWr::new(0, op, data);
        p.a.qp.post_send(Time::ZERO, &wr)
    };
    let five = [sge(0, 1); 5];
    assert_eq!(
        post(SendOp::Send, SendData::Sges(&five)),
        Err(PostError::TooManySges { given: 5, max: 4 })
    );
    let long = [0; 40];
    assert_eq!(
        post(SendOp::Send, SendData::Inline(&[&long, &long])),
        Err(PostError::InlineTooLong { given: 80, max: 64 })
    );
    let read = SendOp::Read { remote_addr: 0, rkey: Rkey(0) };
    assert_eq!(
        post(read, SendData::Inline(&[])),
        Err(PostError::Operation(QpType::Rc)),
        "nothing can be read into bytes that are gone"
    );
    let half = sge(0, 1 << 30);
    assert_eq!(
        post(SendOp::Send, SendData::Sges(&[half, half, sge(0, 1)])),
        Err(PostError::TooLong((1 << 31) + 1))
    );
    for _ in 0..16 {
        post(SendOp::Send, SendData::Sges(&[])).unwrap();
    }
    assert_eq!(post(SendOp::Send, SendData::Sges(&[])), Err(PostError::Full(16)));
}

#[test]
fn sqd_finishes_the_started_message_and_holds_later_requests() {
    let mut p = Pair::new(QpType::Rc);
    let write = SendOp::Write { remote_addr: 0, rkey: Rkey(KEY) };
    p.a.send(1, write, 0, 100_000);
    p.a.poll(p.now);
    p.a.send(2, write, 0, 10);
    let sqd = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..attributes(1, 2) };
    modify(&mut p.a, &sqd, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    assert!(p.a.qp.attr().sq_draining);
    p.run();
    assert_eq!((p.a.w.statuses(), p.a.w.events.clone()), (vec![(1, OK)], vec![QpEvent::SqDrained]));
    assert!(!p.a.qp.attr().sq_draining);
    p.a.send(3, write, 0, 10);
    p.run();
    assert!(p.a.w.completions.is_empty());
    p.a.step(&attributes(1, 2), QpState::Rts);
    p.run();
    assert_eq!(p.a.w.statuses(), [(2, OK), (3, OK)]);
}

/// The notification must be requested with each transition.
#[test]
fn sq_drained_event_is_raised_only_if_requested_with_the_transition() {
    let mut p = Pair::new(QpType::Rc);
    let sqd = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..attributes(1, 2) };
    for (mask, events) in [(AttrMask::EN_SQD_ASYNC_NOTIFY, 1), (AttrMask::empty(), 0)] {
        modify(&mut p.a, &sqd, AttrMask::STATE | mask).unwrap();
        assert_eq!(p.a.w.events.len(), events);
        p.a.w.events.clear();
        p.a.step(&attributes(1, 2), QpState::Rts);
    }
}

#[test]
fn sqd_drains_a_partly_sent_uc_message_and_raises_sq_drained() {
    let mut p = Pair::new(QpType::Uc);
    p.a.send(1, SendOp::Write { remote_addr: 0, rkey: Rkey(KEY) }, 0, 5000);
    p.a.qp.poll_transmit(p.now, 2, &mut p.a.w);
    let sqd = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..attributes(1, 2) };
    modify(&mut p.a, &sqd, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    assert!(p.a.w.events.is_empty());
    p.run();
    assert_eq!((p.a.w.statuses(), p.a.w.events.clone()), (vec![(1, OK)], vec![QpEvent::SqDrained]));
}

/// Requests that have started complete, whatever the limit for new ones has become.
#[test]
fn max_rd_atomic_zero_in_sqd_lets_started_reads_and_atomics_finish() {
    let mut p = Pair::with(QpType::Rc, |a| a.max_rd_atomic = 1);
    let read = SendOp::Read { remote_addr: 0, rkey: Rkey(KEY) };
    let add = SendOp::FetchAdd { remote_addr: 0, rkey: Rkey(KEY), add: 1 };
    for (first, len, second) in [(read, 200_000, 0), (read, 8, 8)] {
        p.a.send(1, first, 0, len);
        (0..second / 8).for_each(|_| p.a.send(2, add, 0, second));
        p.a.poll(p.now);
        assert_eq!(p.a.w.packets.len(), 1, "only one at a time");
        let sqd = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..attributes(1, 2) };
        modify(&mut p.a, &sqd, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
        let none = QpAttr { max_rd_atomic: 0, ..sqd };
        modify(&mut p.a, &none, AttrMask::STATE | AttrMask::MAX_QP_RD_ATOMIC).unwrap();
        p.run();
        assert!(p.a.w.statuses().iter().all(|(_, status)| *status == OK));
        assert_eq!(std::mem::take(&mut p.a.w.events), [QpEvent::SqDrained]);
        let one = QpAttr { max_rd_atomic: 1, ..sqd };
        modify(&mut p.a, &one, AttrMask::STATE | AttrMask::MAX_QP_RD_ATOMIC).unwrap();
        p.a.step(&attributes(1, 2), QpState::Rts);
    }
}

#[test]
fn reset_discards_requests_without_completions_and_qp_is_reusable() {
    let mut p = Pair::new(QpType::Rc);
    p.a.recv(1, 0, 10);
    p.a.send(2, SendOp::Send, 0, 10);
    p.a.poll(p.now);
    p.a.w.packets.clear();
    for side in [&mut p.a, &mut p.b] {
        side.step(&attributes(1, 2), QpState::Reset);
    }
    assert!(p.a.w.completions.is_empty());
    assert_eq!((p.a.qp.poll_timeout(), p.a.qp.attr().access), (None, Access::empty()));
    p.a.up(&attributes(1, 2));
    p.b.up(&attributes(2, 1));
    p.b.recv(7, 0, 10);
    p.a.send(3, SendOp::Send, 0, 10);
    p.run();
    assert_eq!((p.a.w.statuses(), p.b.w.statuses()), (vec![(3, OK)], vec![(7, OK)]));
}

#[test]
fn query_qp_returns_current_sq_psn_and_rq_psn() {
    let mut p = Pair::new(QpType::Rc);
    let start = attributes(1, 2).sq_psn;
    p.a.send(1, SendOp::Write { remote_addr: 0, rkey: Rkey(KEY) }, 0, 3000);
    p.run();
    assert_eq!(p.a.qp.attr().sq_psn, start.add(3));
    assert_eq!(p.b.qp.attr().rq_psn, start.add(3));
    assert_eq!(p.a.qp.attr().state, QpState::Rts);
}

/// A thousand connections are usual, so the size of each must be known.
#[test]
fn rc_qp_with_queues_of_128_takes_less_than_16_kib() {
    assert!(size_of::<Qp>() <= 1024, "{}", size_of::<Qp>());
    let caps = QpCaps {
        max_send_wr: 128,
        max_recv_wr: 128,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let init =
        QpInit { qpn: Qpn::new(1), qp_type: QpType::Rc, caps, sq_sig_all: true, has_srq: false };
    let footprint = Qp::new(&init).footprint();
    let whole = size_of::<Qp>() + Qp::queues_size(&init);
    assert!(whole < 16 << 10);
    assert!(footprint < whole, "idle, it takes less: {footprint}");
    let endless = QpCaps { max_send_wr: u32::MAX, max_inline_data: u32::MAX, ..caps };
    assert!(Qp::queues_size(&QpInit { caps: endless, ..init }) > 1 << 60);
}
