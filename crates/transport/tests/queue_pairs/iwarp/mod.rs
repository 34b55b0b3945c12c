//! Two queue pairs over a byte stream each way, which the test splits and merges freely.

mod closing;
mod faults;
mod heard;
mod messages;
mod pipe;
mod receives;
mod requests;

use rdmux_wire::Qpn;

use super::world::{World, world};
use super::{CAPS, KEY, sge};
use pipe::Pair;
use rdmux_transport::attr::{Access, AttrMask, QpAttr, QpState, QpType};
use rdmux_transport::env::{QpEvent, Side};
use rdmux_transport::iwarp::{Qp, StreamParams, Wish};
use rdmux_transport::wr::{Completion, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, WcStatus};
use rdmux_transport::{QpInit, Time};

/// A stream without CRC, markers or a ready-to-receive frame.
const PLAIN: StreamParams = StreamParams {
    initiator: true,
    crc: false,
    tx_markers: false,
    rx_markers: false,
    ord: 4,
    ird: 4,
    rtr: None,
};

/// A queue pair, its environment, and the bytes that arrived and were not consumed.
struct End {
    qp: Qp,
    w: World,
    inbox: Vec<u8>,
    /// Whether this end was notified that the peer ended the stream.
    ended: bool,
    /// Whether any of them waited for a receive.
    waited: bool,
}

impl End {
    /// Creates an end in INIT, which grants its peer all access.
    fn new(qpn: u32, has_srq: bool) -> Self {
        let init = QpInit {
            qpn: Qpn::new(qpn),
            qp_type: QpType::Rc,
            caps: CAPS,
            sq_sig_all: true,
            has_srq,
        };
        let (qp, w) = (Qp::new(&init), world());
        let mut end = Self { qp, w, inbox: Vec::new(), ended: false, waited: false };
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let attr = QpAttr { state: QpState::Init, access, ..QpAttr::default() };
        let mask = AttrMask::STATE | AttrMask::ACCESS_FLAGS;
        end.qp.modify(Time::ZERO, &attr, mask, &mut end.w).unwrap();
        end
    }

    /// Creates an end with a stream, whose other end the test is.
    fn attached(params: &StreamParams) -> Self {
        let mut end = Self::new(1, false);
        end.qp.attach(Time::ZERO, params, 1460, &mut end.w).unwrap();
        end
    }

    fn go_to(&mut self, state: QpState) -> Result<(), rdmux_transport::ModifyError> {
        let attr = QpAttr { state, ..QpAttr::default() };
        self.qp.modify(Time::ZERO, &attr, AttrMask::STATE, &mut self.w)
    }

    fn send(&mut self, wr_id: u64, op: SendOp, at: u64, length: u32) {
        self.post(wr_id, op, &[sge(at, length)], SendFlags::empty());
    }

    fn post(&mut self, wr_id: u64, op: SendOp, sges: &[Sge], flags: SendFlags) {
        let wr = SendWr { flags, ..SendWr::new(wr_id, op, SendData::Sges(sges)) };
        self.qp.post_send(Time::ZERO, &wr).unwrap();
    }

    fn recv(&mut self, wr_id: u64, at: u64, length: u32) {
        self.qp.post_recv(&RecvWr { wr_id, sges: &[sge(at, length)] }).unwrap();
    }

    fn poll(&mut self, now: Time) {
        while self.qp.poll_transmit(now, 16, &mut self.w) == rdmux_transport::TxState::More {}
    }

    /// Delivers bytes.
    fn feed(&mut self, now: Time, bytes: &[u8]) {
        self.inbox.extend_from_slice(bytes);
        let used = self.qp.handle_bytes(now, &self.inbox, &mut self.w);
        self.inbox.drain(..used);
        self.waited = self.qp.waits_for_receive();
    }

    /// Returns the bytes sent since the last call.
    fn sent(&mut self) -> Vec<u8> {
        self.poll(Time::ZERO);
        self.w.stream.bytes.drain(..).collect()
    }

    /// Returns the completions of one side since the last call.
    fn done(&mut self, side: Side) -> Vec<(u64, WcStatus)> {
        let mut found = Vec::new();
        self.w.completions.retain(|(of, c)| {
            if *of == side {
                found.push((c.wr_id, c.status));
            }
            *of != side
        });
        found
    }

    fn completion(&mut self) -> Completion {
        self.w.take_completion()
    }

    fn events(&mut self) -> Vec<QpEvent> {
        std::mem::take(&mut self.w.events)
    }
}

/// Returns successful completions in this order.
fn good(ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    ids.into_iter().map(|id| (id, WcStatus::Success)).collect()
}
