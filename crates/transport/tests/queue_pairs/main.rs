//! The transports against each other, over a wire that the test controls.
#![expect(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "small numbers of the tests themselves"
)]

mod brief;
mod direct;
mod hostile;
mod iwarp;
mod migration;
mod named;
mod rc_early;
mod rc_errors;
mod rc_mend;
mod rc_messages;
mod rc_recovery;
mod states;
mod unreliable;
mod windows;
mod world;
mod xrc;
mod xrc_waits;

use std::collections::VecDeque;

use rdmux_testing::env::link;
use rdmux_transport::attr::{Access, AttrMask, QpAttr, QpCaps, QpState, QpType};
use rdmux_transport::env::{AccessFault, Drop, LinkCaps, Named, QpEvent};
use rdmux_transport::wr::{RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, WcStatus};
use rdmux_transport::{Qp, QpInit, RxPacket, Source, Time};
use rdmux_wire::{AckTimeout, Gid, Lkey, Mtu, Packet, Pkey, Psn, Qkey, Qpn, Rkey, RnrTimer};

use world::{World, world};

/// The key, local and remote, of the only region of each side.
const KEY: u32 = 0x1234;
const MEMORY: usize = 1 << 20;
const QKEY: Qkey = Qkey(0x1111_1111);
const LOSSY: LinkCaps = link(4096, false);

/// A queue pair and its environment.
struct Side2 {
    qp: Qp,
    w: World,
}

const CAPS: QpCaps = QpCaps {
    max_send_wr: 16,
    max_recv_wr: 16,
    max_send_sge: 4,
    max_recv_sge: 4,
    max_inline_data: 64,
};

/// Returns attributes that connect queue pair `from` to `to`, for every transition up to RTS.
fn attributes(from: u32, to: u32) -> QpAttr {
    let mut a = QpAttr { caps: CAPS, ..QpAttr::default() };
    a.dest_qpn = Qpn::new(to);
    a.sq_psn = Psn::new(0xff_fff0 + from);
    a.rq_psn = Psn::new(0xff_fff0 + to);
    a.path_mtu = Mtu::M1024;
    a.av.is_global = true;
    a.av.dgid = gid(to);
    a.access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    a.qkey = QKEY;
    a.timeout = AckTimeout::new(14);
    a.retry_cnt = 7;
    a.rnr_retry = 7;
    a.max_rd_atomic = 4;
    a.max_dest_rd_atomic = 4;
    a.min_rnr_timer = RnrTimer::new(12);
    a.port_num = 1;
    a
}

fn gid(qpn: u32) -> Gid {
    core::net::Ipv4Addr::new(10, 0, 0, qpn as u8).into()
}

/// Returns the attributes that a transition requires.
fn required(from: QpState, to: QpState, qp_type: QpType) -> AttrMask {
    let line = rdmux_transport::state_table::find(from, to).unwrap();
    line.required.of(qp_type) | AttrMask::STATE
}

impl Side2 {
    fn new(qpn: u32, qp_type: QpType, has_srq: bool) -> Self {
        let init = QpInit { qpn: Qpn::new(qpn), qp_type, caps: CAPS, sq_sig_all: true, has_srq };
        Self { qp: Qp::new(&init), w: world() }
    }

    fn step(&mut self, attr: &QpAttr, to: QpState) {
        let mask = required(self.qp.state(), to, self.qp.qp_type());
        let attr = QpAttr { state: to, ..*attr };
        self.qp.modify(Time::ZERO, &attr, mask, &mut self.w).unwrap();
    }

    /// Changes attributes of a queue pair in RTS, by way of SQD.
    fn retune(&mut self, mask: AttrMask, change: impl FnOnce(&mut QpAttr)) {
        let mut attr = self.qp.attr();
        change(&mut attr);
        for (state, mask) in [
            (QpState::Sqd, AttrMask::empty()),
            (QpState::Sqd, mask),
            (QpState::Rts, AttrMask::empty()),
        ] {
            let attr = QpAttr { state, ..attr };
            self.qp.modify(Time::ZERO, &attr, mask | AttrMask::STATE, &mut self.w).unwrap();
        }
        self.w.events.retain(|event| *event != QpEvent::SqDrained);
    }

    fn up(&mut self, attr: &QpAttr) {
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.step(attr, to);
        }
    }

    fn send(&mut self, wr_id: u64, op: SendOp, at: u64, length: u32) {
        self.post(wr_id, op, &[sge(at, length)], SendFlags::SIGNALED);
    }

    fn post(&mut self, wr_id: u64, op: SendOp, sges: &[Sge], flags: SendFlags) {
        let wr = SendWr { flags, ..SendWr::new(wr_id, op, SendData::Sges(sges)) };
        self.qp.post_send(Time::ZERO, &wr).unwrap();
    }

    fn recv(&mut self, wr_id: u64, at: u64, length: u32) {
        self.qp.post_recv(&RecvWr { wr_id, sges: &[sge(at, length)] }).unwrap();
    }

    fn poll(&mut self, now: Time) {
        while self.qp.poll_transmit(now, 64, &mut self.w) == rdmux_transport::TxState::More {}
        self.qp.flush_ack(now, &mut self.w);
    }

    fn feed(&mut self, now: Time, bytes: &[u8], from: u32) {
        let Ok(packet) = Packet::parse(bytes) else { return };
        let source = source(from, self.qp.qpn().get());
        self.qp.handle_packet(now, &RxPacket { packet: &packet, source: &source }, &mut self.w);
    }

    /// Like [`feed`](Self::feed), for a packet that names the bytes after its headers.
    fn feed_named(&mut self, now: Time, bytes: &[u8], from: u32) {
        let Ok(mut packet) = Packet::parse(bytes) else { return };
        let at = std::mem::take(&mut packet.payload);
        let named = Named { len: at.len() as u32, at };
        let source = source(from, self.qp.qpn().get());
        let rx = RxPacket { packet: &packet, source: &source };
        self.qp.handle_named(now, &rx, &named, &mut self.w);
    }
}

fn source(from: u32, to: u32) -> Source<'static> {
    Source {
        sgid: gid(from),
        dgid: gid(to),
        grh: &[0x45; 40],
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
        has_grh: true,
    }
}

fn sge(addr: u64, length: u32) -> Sge {
    Sge { addr, length, lkey: Lkey(KEY) }
}

/// Two connected queue pairs, numbers 1 and 2, and the wire between them.
struct Pair {
    a: Side2,
    b: Side2,
    now: Time,
    /// The packets delivered, as (from, bytes), in order.
    log: Vec<(u32, Vec<u8>)>,
}

impl Pair {
    fn new(qp_type: QpType) -> Self {
        Self::with(qp_type, |_| {})
    }

    fn with(qp_type: QpType, change: impl Fn(&mut QpAttr)) -> Self {
        let mut pair = Self::down(qp_type, false);
        for (side, from, to) in [(&mut pair.a, 1, 2), (&mut pair.b, 2, 1)] {
            let mut attr = attributes(from, to);
            change(&mut attr);
            side.up(&attr);
        }
        pair
    }

    fn down(qp_type: QpType, srq: bool) -> Self {
        Self {
            a: Side2::new(1, qp_type, false),
            b: Side2::new(2, qp_type, srq),
            now: Time(1),
            log: Vec::new(),
        }
    }

    /// Delivers packets until nothing moves. `verdict(from, n-th of that side, bytes)` drops a packet by returning false.
    fn run_with(&mut self, mut verdict: impl FnMut(u32, usize, &Packet<'_>) -> bool) {
        let mut seen = [0; 2];
        loop {
            self.a.poll(self.now);
            self.b.poll(self.now);
            let mut moved = false;
            for (from, i) in [(1, 0), (2, 1)] {
                let (src, dst) =
                    if from == 1 { (&mut self.a, &mut self.b) } else { (&mut self.b, &mut self.a) };
                while let Some(bytes) = src.w.packets.pop_front() {
                    moved = true;
                    seen[i] += 1;
                    let keep = verdict(from, seen[i], &Packet::parse(&bytes).unwrap());
                    if keep && src.w.by_reference.named.contains(&bytes) {
                        dst.feed_named(self.now, &bytes, from);
                    } else if keep {
                        dst.feed(self.now, &bytes, from);
                    }
                    self.log.push((from, bytes));
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn run(&mut self) {
        self.run_with(|_, _, _| true);
    }

    /// Advances to the next expiry of a timer of either side. Returns false if none runs.
    fn tick(&mut self) -> bool {
        let next = [&self.a, &self.b].into_iter().filter_map(|s| s.qp.poll_timeout()).min();
        let Some(at) = next else { return false };
        self.now = self.now.max(at);
        self.a.qp.handle_timeout(self.now, &mut self.a.w);
        self.b.qp.handle_timeout(self.now, &mut self.b.w);
        true
    }

    /// Returns the opcodes of the packets delivered from one side.
    fn opcodes(&self, from: u32) -> Vec<u8> {
        self.log.iter().filter(|(f, _)| *f == from).map(|(_, b)| b[0]).collect()
    }
}
