//! Binding memory windows: when it happens, and the effect of a failure.

use super::*;
use rdmux_transport::wr::{MwBind, WcOpcode};

const OK: WcStatus = WcStatus::Success;

fn bind(length: u64) -> MwBind {
    let access = Access::REMOTE_READ | Access::ZERO_BASED;
    MwBind { rkey: Rkey(0x5a01), lkey: Lkey(KEY), addr: 1 << 40, length, access }
}

/// IBTA 10.8.3.3: requests posted after a bind may rely on it.
#[test]
fn bind_mw_completes_in_order_between_earlier_and_later_requests() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut p = Pair::new(qp_type);
        let write = SendOp::Write { remote_addr: 0, rkey: Rkey(KEY) };
        p.a.send(1, write, 0, 5000);
        p.a.send(2, SendOp::BindMw(bind(1 << 33)), 0, 0);
        p.a.send(3, write, 0, 10);
        p.a.poll(p.now);
        if qp_type == QpType::Rc {
            assert!(p.a.w.bound.is_empty(), "the WRITE is not complete");
        }
        p.run();
        assert_eq!(p.a.w.bound, [bind(1 << 33)]);
        let done: Vec<_> =
            p.a.w.completions.drain(..).map(|(_, c)| (c.wr_id, c.status, c.opcode)).collect();
        let (write, bind) = (WcOpcode::RdmaWrite, WcOpcode::BindMw);
        assert_eq!(done, [(1, OK, write), (2, OK, bind), (3, OK, write)]);
    }
}

#[test]
fn refused_bind_mw_is_mw_bind_error_and_moves_qp_to_error() {
    let mut p = Pair::new(QpType::Rc);
    p.a.send(1, SendOp::BindMw(bind(0)), 0, 0);
    p.a.send(2, SendOp::Send, 0, 1);
    p.run();
    assert_eq!(p.a.w.statuses(), [(1, WcStatus::MwBindErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(p.a.qp.state(), QpState::Err);
}

#[test]
fn bind_mw_on_ud_is_refused() {
    let mut p = Pair::new(QpType::Ud);
    let op = SendOp::BindMw(bind(8));
    let data = SendData::Sges(&[]);
    let wr = SendWr::new(1, op, data);
    assert_eq!(
        p.a.qp.post_send(Time::ZERO, &wr),
        Err(rdmux_transport::error::PostError::Operation(QpType::Ud))
    );
}
