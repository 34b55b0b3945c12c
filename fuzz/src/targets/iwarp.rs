//! A queue pair over a stream: any bytes, or a script of posts, arrivals and time.

mod frames;
mod sent;

use std::time::Duration;

use anyhow::Result;
use rdmux_testing::env::{Stream, TestEnv, link};
use rdmux_testing::ledger::Ledger;
use rdmux_testing::memory::{Memory as _, Zeroes};
use rdmux_transport::attr::{Access, AttrMask, QpAttr, QpCaps, QpState, QpType};
use rdmux_transport::env::{AccessFault, Side};
use rdmux_transport::iwarp::{Direct, Qp, Rtr, StreamParams, Wish};
use rdmux_transport::wr::{Completion, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, WcStatus};
use rdmux_transport::{QpInit, Time};
use rdmux_wire::iwarp::fpdu::Framing;
use rdmux_wire::{Lkey, Qpn, Rkey};

use crate::corpus;
use frames::Peer;
use sent::Sent;

/// Feeds bytes of an untrusted peer: the first bytes choose the parameters, all others arrive in pieces.
pub fn iwarp_bytes(data: &[u8]) {
    feed(data);
}

/// Runs the target. Returns how many receives succeeded.
fn feed(data: &[u8]) -> u32 {
    let mut script = Script::new(data);
    script.bring_up();
    for _ in 0..4 {
        script.recv(&[Sge { addr: 0, length: 100, lkey: Lkey(1) }]);
    }
    let read = SendOp::Read { remote_addr: 0, rkey: Rkey(1) };
    script.send(read, SendData::Sges(&[Sge { addr: 0, length: 64, lkey: Lkey(1) }]), 0);
    let (size, bytes) = script.data.split_at(script.data.len().min(1));
    let size = usize::from(size.first().copied().unwrap_or_default()) + 1;
    for piece in bytes.chunks(size) {
        script.transmit(usize::MAX, 8);
        script.feed(piece);
        script.settle();
    }
    script.end();
    script.received
}

/// Returns frames of iWARP streams, with and without CRCs and markers, behind the bytes that choose the same options and pieces
/// of 16 or 256 bytes.
///
/// # Errors
/// When the captures cannot be read.
pub fn streams() -> Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for segment in corpus::segments()? {
        for options in 0..8 {
            let framing = Framing { crc: options & 1 != 0, markers: options & 2 != 0 };
            let mut bytes = vec![0; framing.frame_len(0, segment.len())];
            framing.emit(0, &[&segment], &mut bytes);
            let flags =
                if framing.crc { CRC } else { 0 } | if framing.markers { RX_MARKERS } else { 0 };
            let piece = if options & 4 != 0 { 255 } else { 15 };
            all.push([&[flags, 0xff, 0, piece][..], &bytes].concat());
        }
    }
    Ok(all)
}

/// Bits of the first byte: the options of the peer's frames.
const CRC: u8 = 8;
const RX_MARKERS: u8 = 0x20;

/// Runs a queue pair under a script, with usually valid frames.
pub fn iwarp_script(data: &[u8]) {
    Script::new(data).run();
}

/// Bytes for payloads.
static ZEROES: [u8; 1 << 16] = [0; 1 << 16];

/// A queue pair and its peer, with the rest of the input.
struct Script<'a> {
    data: &'a [u8],
    now: Time,
    qp: Qp,
    env: TestEnv,
    ledger: Ledger,
    sent: Sent,
    peer: Peer,
    params: StreamParams,
    mulpdu: u32,
    /// Received bytes that are not consumed.
    inbox: Vec<u8>,
    /// Receives that succeeded.
    received: u32,
}

impl<'a> Script<'a> {
    fn new(data: &'a [u8]) -> Self {
        let caps = QpCaps {
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        let (head, data) = data.split_at(data.len().min(3));
        let [flags, sizes, rtr] = core::array::from_fn(|i| head.get(i).copied().unwrap_or(0));
        let (has_srq, sq_sig_all) = (flags & 1 != 0, flags & 2 != 0);
        let init = QpInit { qpn: Qpn::new(7), qp_type: QpType::Rc, caps, sq_sig_all, has_srq };
        let params = StreamParams {
            initiator: flags & 4 != 0,
            crc: flags & CRC != 0,
            tx_markers: flags & 0x10 != 0,
            rx_markers: flags & RX_MARKERS != 0,
            ord: u16::from(sizes & 3),
            ird: u16::from(sizes >> 2 & 3),
            rtr: [None, Some(Rtr::Send), Some(Rtr::Write), Some(Rtr::Read)][usize::from(rtr & 3)],
        };
        let memory = Zeroes {
            size: 1 << 20,
            // Few keys are invalid.
            is_wrong: |key| key % 64 == 63,
            fault: AccessFault::Gone,
            reads_ask: true,
            writes_are_checked: true,
            ..Zeroes::default()
        };
        let mulpdu = [128, 512, 1460, 65_535][usize::from(sizes >> 4 & 3)];
        Self {
            data,
            now: Time::ZERO,
            qp: Qp::new(&init),
            env: TestEnv::new(link(0, true), memory),
            ledger: Ledger::default(),
            sent: Sent::new(&params),
            peer: Peer::new(&params),
            params,
            mulpdu,
            inbox: Vec::new(),
            received: 0,
        }
    }

    fn byte(&mut self) -> u8 {
        let Some((&b, rest)) = self.data.split_first() else { return 0 };
        self.data = rest;
        b
    }
    fn u32(&mut self) -> u32 {
        u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }
    /// Returns a length: usually small, sometimes arbitrary.
    fn length(&mut self) -> u32 {
        match self.byte() {
            0..=3 => self.u32(),
            4..=60 => self.u32() % 10_000,
            b => u32::from(b),
        }
    }
    fn address(&mut self) -> u64 {
        u64::from(self.byte()) * 8 + u64::from(self.byte() < 8)
    }

    fn run(mut self) {
        self.bring_up();
        while !self.data.is_empty() {
            match self.byte() % 16 {
                0..=2 => self.post_send(),
                3 => self.post_recv(),
                4..=6 => {
                    let (room, budget) = (self.byte(), self.byte() % 40);
                    let room = if room < 128 { usize::from(room) } else { usize::MAX };
                    self.transmit(room, budget.into());
                }
                7 => self.oddities(),
                _ => self.arrive(),
            }
            self.settle();
            if self.qp.state() == QpState::Err {
                self.end();
                self.bring_up();
            }
        }
        self.end();
    }

    /// Records what was sent, consumed and completed, after each call.
    fn settle(&mut self) {
        self.sent.enter(&mut self.env.stream);
        let received = |(side, wc): &&(Side, Completion)| {
            *side == Side::Recv && wc.status == WcStatus::Success
        };
        self.received += self.env.completions.iter().filter(received).map(|_| 1).sum::<u32>();
        self.ledger.enter(&mut self.env);
        self.env.forget();
    }

    /// Checks that everything outstanding is flushed at the end, and that a reset restores the initial state.
    fn end(&mut self) {
        // A driver transmits what is left to send.
        self.transmit(usize::MAX, 64);
        for state in [QpState::Err, QpState::Reset] {
            let attr = QpAttr { state, ..self.qp.attr() };
            let moved = self.qp.modify(self.now, &attr, AttrMask::STATE, &mut self.env);
            moved.expect("from any state");
            self.qp.poll_transmit(self.now, 64, &mut self.env);
        }
        assert!(self.qp.poll_timeout().is_none(), "a timer runs in RESET");
        assert!(matches!(self.qp.wish(), Wish::Abort | Wish::Close), "a stream is kept");
        self.settle();
        self.ledger.assert_balanced(self.qp.init().sq_sig_all);
    }

    fn bring_up(&mut self) {
        let attr = QpAttr {
            state: QpState::Init,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE | AttrMask::ACCESS_FLAGS;
        self.qp.modify(self.now, &attr, mask, &mut self.env).expect("a usual step");
        self.qp.attach(self.now, &self.params, self.mulpdu, &mut self.env).expect("a usual step");
        self.env.stream = Stream::default();
        self.env.memory.until_fault = u32::MAX;
        self.sent = Sent::new(&self.params);
        self.peer = Peer::new(&self.params);
        self.inbox.clear();
    }

    fn sges(&mut self) -> Vec<Sge> {
        let n = usize::from(self.byte() % 16).min(5) / 2;
        let one = |s: &mut Self| Sge {
            addr: s.address(),
            length: s.length(),
            lkey: Lkey(s.byte().into()),
        };
        (0..n).map(|_| one(self)).collect()
    }

    fn post_send(&mut self) {
        let (remote_addr, rkey) = (self.address(), Rkey(self.byte().into()));
        let op = match self.byte() % 9 {
            0 => SendOp::Send,
            1 => SendOp::SendImm([1; 4]),
            2 => SendOp::SendInv(rkey),
            3 => SendOp::Write { remote_addr, rkey },
            4 => SendOp::WriteImm { remote_addr, rkey, imm: [2; 4] },
            5 => SendOp::Read { remote_addr, rkey },
            6 => SendOp::FetchAdd { remote_addr, rkey, add: 1 },
            7 => SendOp::CmpSwap { remote_addr, rkey, compare: 1, swap: 2 },
            _ => SendOp::LocalInv(rkey),
        };
        let sges = self.sges();
        let inline = [&ZEROES[..usize::from(self.byte() % 80)]];
        let is_inline = self.byte() < 64;
        let data = if is_inline { SendData::Inline(&inline) } else { SendData::Sges(&sges) };
        let flags = self.byte();
        self.send(op, data, flags);
    }

    fn send(&mut self, op: SendOp, data: SendData<'_>, flags: u8) {
        let flags = SendFlags::from_bits_truncate(flags.into());
        let wr = SendWr { flags, ..SendWr::new(1, op, data) };
        if self.qp.post_send(self.now, &wr).is_ok() {
            self.ledger.posted(Side::Send);
        }
    }

    fn post_recv(&mut self) {
        let sges = self.sges();
        self.env.memory.receives += u32::from(self.byte() % 3);
        self.recv(&sges);
    }

    fn recv(&mut self, sges: &[Sge]) {
        if self.qp.post_recv(&RecvWr { wr_id: 2, sges }).is_ok() {
            self.ledger.posted(Side::Recv);
        }
    }

    fn transmit(&mut self, room: usize, budget: u32) {
        self.env.stream.room = room;
        self.qp.poll_transmit(self.now, budget, &mut self.env);
    }

    fn oddities(&mut self) {
        match self.byte() % 32 {
            0 => self.qp.shutdown(self.now, &mut self.env),
            1 => self.qp.handle_end(self.now, true, &mut self.env),
            2 => self.qp.handle_end(self.now, false, &mut self.env),
            3 => self.env.stream.broken = true,
            4 => self.env.memory.until_fault = u32::from(self.byte() % 4),
            5..=8 => self.modify(),
            _ => {
                let us = u64::from(self.byte()) * u64::from(self.byte());
                self.now = self.now.after(Duration::from_micros(us));
                if let Some(at) = self.qp.poll_timeout() {
                    self.now = self.now.max(at);
                    self.qp.handle_timeout(self.now, &mut self.env);
                }
            }
        }
    }

    fn modify(&mut self) {
        let states = [QpState::Rts, QpState::Sqd, QpState::Init, QpState::Rtr, QpState::Sqe];
        let state = states[usize::from(self.byte()) % states.len()];
        let attr = QpAttr { state, ..self.qp.attr() };
        let _ = self.qp.modify(self.now, &attr, AttrMask::STATE, &mut self.env);
    }

    /// Delivers a part of a frame, a whole frame, or garbage.
    fn arrive(&mut self) {
        let how = self.byte();
        if how < 4 {
            let len = usize::from(self.byte() % 40).min(self.data.len());
            let (bytes, rest) = self.data.split_at(len);
            self.data = rest;
            return self.feed(bytes);
        }
        let mut bytes = self.frame();
        if how < 8 {
            let at = self.u32() as usize % bytes.len();
            bytes[at] ^= self.byte();
        }
        if how & 8 == 0 {
            return self.feed(&bytes);
        }
        let at = usize::from(self.byte()) % bytes.len();
        self.feed(&bytes[..at]);
        if how & 16 == 0 {
            self.transmit(7, 3);
        }
        self.feed(&bytes[at..]);
    }

    /// Delivers bytes, some of which may be placed directly.
    fn feed(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        if self.inbox.is_empty() && bytes.len().is_multiple_of(2) {
            let len = match self.qp.direct() {
                None => 0,
                Some(Direct::Local { sges, offset, len, .. }) => {
                    let all: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
                    assert!(u64::from(offset) + u64::from(len) <= all, "beyond the list");
                    len
                }
                Some(Direct::Remote { rkey, va, len }) => {
                    let is_there =
                        self.env.memory.check(0, rkey.0, va, len.into(), Access::REMOTE_WRITE);
                    is_there.expect("it was checked");
                    len
                }
            };
            let len = bytes.len().min(len as usize);
            let placed = u32::try_from(len).expect("of one frame");
            self.qp.handle_placed(self.now, placed, &mut self.env);
            bytes = &bytes[len..];
        }
        self.inbox.extend_from_slice(bytes);
        let used = self.qp.handle_bytes(self.now, &self.inbox, &mut self.env);
        assert!(used <= self.inbox.len());
        self.inbox.drain(..used);
        let most = rdmux_transport::iwarp::MAX_FRAME;
        assert!(self.inbox.len() < most, "{} bytes are not taken", self.inbox.len());
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeds_complete_receives() {
        let seeds = super::streams().expect("readable");
        let received: u32 = seeds.iter().map(|seed| super::feed(seed)).sum();
        assert!(received > 0, "no frame of {} seeds completes a receive", seeds.len());
    }
}
