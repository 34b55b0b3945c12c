//! The transports against each other, over a wire that the test holds in its hands.
#![expect(clippy::cast_possible_truncation, reason = "small numbers of the tests themselves")]

mod hostile;
mod rc_errors;
mod rc_messages;
mod rc_recovery;
mod states;
mod unreliable;
mod windows;
mod xrc;
mod xrc_waits;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use rdmux_wire::{AckTimeout, Gid, Lkey, Mtu, Packet, Pkey, Psn, Qkey, Qpn, Rkey, RnrTimer};

use crate::attr::{Access, AttrMask, QpAttr, QpCaps, QpState, QpType};
use crate::env::{
    AccessFault, AtomicAnswer, AtomicOp, Drop, Env, LinkCaps, QpEvent, Side, SrqEntry, TxError,
    TxPacket, TxPayload,
};
use crate::wr::{Completion, MwBind, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, WcStatus};
use crate::{Qp, QpInit, RxPacket, Source, Time};

/// The key of the one region of each side, local and remote.
pub(super) const KEY: u32 = 0x1234;
pub(super) const MEMORY: usize = 1 << 20;
pub(super) const QKEY: Qkey = Qkey(0x1111_1111);
const LOSSY: LinkCaps = LinkCaps { max_payload: 4096, lossless: false, by_reference: false };

/// A world of one memory region that starts at address 0, and a wire that collects packets.
pub(super) struct World {
    pub(super) mem: Vec<u8>,
    pub(super) rights: Access,
    pub(super) link: LinkCaps,
    pub(super) busy: bool,
    /// Whether every address exists, and they are all the same.
    pub(super) endless: bool,
    pub(super) out: VecDeque<Vec<u8>>,
    pub(super) wc: VecDeque<(Side, Completion)>,
    pub(super) events: Vec<QpEvent>,
    pub(super) dropped: Vec<Drop>,
    pub(super) srq: VecDeque<(u64, Vec<Sge>)>,
    /// The shared receive queues that XRC may name. The key of memory there is [`KEY`] and the number
    /// of the queue.
    pub(super) srqs: BTreeMap<u32, VecDeque<(u64, Vec<Sge>)>>,
    pub(super) selected: u32,
    /// Receives that completed, by shared receive queue.
    pub(super) received: Vec<(u32, u64, WcStatus)>,
    /// How many accesses for a peer go well until one meets a busy owner.
    pub(super) until_busy: usize,
    /// Whether atomics are answered later, and those that are to be.
    pub(super) later: bool,
    pub(super) put_off: VecDeque<(Psn, u64, AtomicOp)>,
    pub(super) invalidated: Vec<Rkey>,
    /// Binds carried out. Those to no bytes are refused.
    pub(super) bound: Vec<MwBind>,
}

impl World {
    fn new() -> Self {
        Self {
            mem: vec![0; MEMORY],
            rights: Access::LOCAL_WRITE
                | Access::REMOTE_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_ATOMIC,
            link: LOSSY,
            busy: false,
            endless: false,
            out: VecDeque::new(),
            wc: VecDeque::new(),
            events: Vec::new(),
            dropped: Vec::new(),
            srq: VecDeque::new(),
            srqs: BTreeMap::new(),
            selected: 0,
            received: Vec::new(),
            until_busy: usize::MAX,
            later: false,
            put_off: VecDeque::new(),
            invalidated: Vec::new(),
            bound: Vec::new(),
        }
    }

    fn slice(&self, key: u32, addr: u64, len: u64, need: Access) -> Result<usize, AccessFault> {
        self.slice_of(self.selected, key, addr, len, need)
    }

    fn slice_of(
        &self,
        srqn: u32,
        key: u32,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<usize, AccessFault> {
        if key != KEY + srqn {
            return Err(AccessFault::Key);
        }
        if !self.rights.contains(need) {
            return Err(AccessFault::Rights);
        }
        let end = addr.checked_add(len).ok_or(AccessFault::Bounds)?;
        if self.endless {
            return Ok(0);
        }
        if end > self.mem.len() as u64 { Err(AccessFault::Bounds) } else { Ok(addr as usize) }
    }

    fn meet_owner(&mut self) -> Result<(), AccessFault> {
        let busy = self.until_busy == 0;
        self.until_busy = self.until_busy.wrapping_sub(1);
        if busy { Err(AccessFault::Busy) } else { Ok(()) }
    }

    /// Does what was put off longest.
    pub(super) fn do_atomic(&mut self) -> (Psn, u64) {
        let (psn, va, op) = self.put_off.pop_front().expect("an atomic");
        (psn, self.change(va as usize, op))
    }

    fn change(&mut self, at: usize, op: AtomicOp) -> u64 {
        let old = u64::from_ne_bytes(self.mem[at..at + 8].try_into().unwrap());
        let new = match op {
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
            AtomicOp::CmpSwap { compare, swap } if old == compare => swap,
            AtomicOp::CmpSwap { .. } => old,
        };
        self.mem[at..at + 8].copy_from_slice(&new.to_ne_bytes());
        old
    }

    pub(super) fn fill(&mut self, at: usize, len: usize, seed: u8) {
        for (i, b) in self.mem[at..at + len].iter_mut().enumerate() {
            *b = (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed);
        }
    }

    /// The statuses of one side's completions since the last call.
    pub(super) fn statuses(&mut self) -> Vec<(u64, WcStatus)> {
        self.wc.drain(..).map(|(_, c)| (c.wr_id, c.status)).collect()
    }

    pub(super) fn take_wc(&mut self) -> Completion {
        self.wc.pop_front().expect("a completion").1
    }
}

impl Env for World {
    fn link(&self) -> LinkCaps {
        self.link
    }
    fn transmit(&mut self, packet: &TxPacket<'_>) -> Result<(), TxError> {
        if self.busy {
            return Err(TxError::Busy);
        }
        let mut bytes = packet.header.to_vec();
        match packet.payload {
            TxPayload::None => {}
            TxPayload::Bytes(b) => bytes.extend_from_slice(b),
            TxPayload::Gather { len, .. } if self.endless => {
                bytes.extend_from_slice(&self.mem[..len as usize]);
            }
            TxPayload::Gather { sges, offset, len } => {
                let mut all = Vec::new();
                for s in sges {
                    let at = self
                        .slice(s.lkey.0, s.addr, s.length.into(), Access::empty())
                        .map_err(TxError::Memory)?;
                    all.extend_from_slice(&self.mem[at..at + s.length as usize]);
                }
                bytes.extend_from_slice(&all[offset as usize..(offset + len) as usize]);
            }
            TxPayload::Remote { rkey, va, len, srqn } => {
                let at = self
                    .slice_of(srqn, rkey.0, va, len.into(), Access::REMOTE_READ)
                    .map_err(TxError::Memory)?;
                bytes.extend_from_slice(&self.mem[at..at + len as usize]);
            }
        }
        bytes.resize(bytes.len() + usize::from(packet.pad), 0);
        assert_eq!(bytes.len() % 4, 0);
        self.out.push_back(bytes);
        Ok(())
    }
    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), AccessFault> {
        sges.iter()
            .try_for_each(|s| self.slice(s.lkey.0, s.addr, s.length.into(), access).map(|_| ()))
    }
    fn scatter(&mut self, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), AccessFault> {
        self.meet_owner()?;
        if self.endless {
            assert!(u64::from(offset) + data.len() as u64 <= u64::from(crate::MAX_MESSAGE));
            return Ok(());
        }
        let (mut skip, mut data) = (offset as usize, data);
        for s in sges {
            let here = (s.length as usize).saturating_sub(skip).min(data.len());
            if here != 0 {
                let at = self.slice(s.lkey.0, s.addr, s.length.into(), Access::LOCAL_WRITE)? + skip;
                self.mem[at..at + here].copy_from_slice(&data[..here]);
                data = &data[here..];
            }
            skip = skip.saturating_sub(s.length as usize);
        }
        assert!(data.is_empty(), "the list was checked to be long enough");
        Ok(())
    }
    fn check_remote(&self, rkey: Rkey, va: u64, len: u64, a: Access) -> Result<(), AccessFault> {
        self.slice(rkey.0, va, len, a).map(|_| ())
    }
    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), AccessFault> {
        self.meet_owner()?;
        let at = self.slice(rkey.0, va, data.len() as u64, Access::REMOTE_WRITE)?;
        self.mem[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }
    fn atomic(
        &mut self,
        psn: Psn,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<AtomicAnswer, AccessFault> {
        self.meet_owner()?;
        let at = self.slice(rkey.0, va, 8, Access::REMOTE_ATOMIC)?;
        if self.later {
            self.put_off.push_back((psn, va, op));
            return Ok(AtomicAnswer::Later);
        }
        Ok(AtomicAnswer::Now(self.change(at, op)))
    }
    fn invalidate(&mut self, rkey: Rkey, remote: bool) -> Result<(), AccessFault> {
        if remote {
            self.meet_owner()?;
        }
        if rkey.0 == KEY {
            return Err(AccessFault::Key);
        }
        self.invalidated.push(rkey);
        Ok(())
    }
    fn bind(&mut self, bind: &MwBind) -> Result<(), AccessFault> {
        if bind.length == 0 {
            return Err(AccessFault::Bounds);
        }
        self.bound.push(*bind);
        Ok(())
    }
    fn select_srq(&mut self, srqn: u32) -> Result<(), AccessFault> {
        if !self.srqs.contains_key(&srqn) {
            return Err(AccessFault::Domain);
        }
        self.selected = srqn;
        Ok(())
    }
    fn pop_srq(&mut self, sges: &mut [Sge]) -> Option<SrqEntry> {
        let queue = self.srqs.get_mut(&self.selected).unwrap_or(&mut self.srq);
        let (wr_id, list) = queue.pop_front()?;
        sges[..list.len()].copy_from_slice(&list);
        Some(SrqEntry { wr_id, num_sge: list.len() })
    }
    fn complete(&mut self, side: Side, completion: Completion) {
        if side == Side::Recv {
            self.received.push((self.selected, completion.wr_id, completion.status));
        }
        self.wc.push_back((side, completion));
    }
    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }
    fn count(&mut self, reason: Drop) {
        self.dropped.push(reason);
    }
    fn pkey(&self, index: u16) -> Option<Pkey> {
        (index == 0).then_some(Pkey::DEFAULT)
    }
}

/// A queue pair and its world.
pub(super) struct Side2 {
    pub(super) qp: Qp,
    pub(super) w: World,
}

pub(super) const CAPS: QpCaps = QpCaps {
    max_send_wr: 16,
    max_recv_wr: 16,
    max_send_sge: 4,
    max_recv_sge: 4,
    max_inline_data: 64,
};

/// Attributes that connect queue pair `from` to `to`, for every transition up to RTS.
pub(super) fn attributes(from: u32, to: u32) -> QpAttr {
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

pub(super) fn gid(qpn: u32) -> Gid {
    core::net::Ipv4Addr::new(10, 0, 0, qpn as u8).into()
}

/// What a transition must be given.
pub(super) fn required(from: QpState, to: QpState, qp_type: QpType) -> AttrMask {
    let line = crate::state_table::find(from, to).unwrap();
    line.required.of(qp_type) | AttrMask::STATE
}

impl Side2 {
    pub(super) fn new(qpn: u32, qp_type: QpType, has_srq: bool) -> Self {
        let init = QpInit { qpn: Qpn::new(qpn), qp_type, caps: CAPS, sq_sig_all: true, has_srq };
        Self { qp: Qp::new(&init), w: World::new() }
    }

    pub(super) fn step(&mut self, attr: &QpAttr, to: QpState) {
        let mask = required(self.qp.state(), to, self.qp.qp_type());
        let attr = QpAttr { state: to, ..*attr };
        self.qp.modify(Time::ZERO, &attr, mask, &mut self.w).unwrap();
    }

    pub(super) fn up(&mut self, attr: &QpAttr) {
        for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
            self.step(attr, to);
        }
    }

    pub(super) fn send(&mut self, wr_id: u64, op: SendOp, at: u64, length: u32) {
        self.post(wr_id, op, &[sge(at, length)], SendFlags::SIGNALED);
    }

    pub(super) fn post(&mut self, wr_id: u64, op: SendOp, sges: &[Sge], flags: SendFlags) {
        let wr = SendWr { flags, ..SendWr::new(wr_id, op, SendData::Sges(sges)) };
        self.qp.post_send(Time::ZERO, &wr).unwrap();
    }

    pub(super) fn recv(&mut self, wr_id: u64, at: u64, length: u32) {
        self.qp.post_recv(&RecvWr { wr_id, sges: &[sge(at, length)] }).unwrap();
    }

    pub(super) fn poll(&mut self, now: Time) {
        while self.qp.poll_transmit(now, 64, &mut self.w) == crate::TxState::More {}
        self.qp.flush_ack(now, &mut self.w);
    }

    pub(super) fn feed(&mut self, now: Time, bytes: &[u8], from: u32) {
        let Ok(packet) = Packet::parse(bytes) else { return };
        let source = Source {
            sgid: gid(from),
            dgid: gid(self.qp.qpn().get()),
            grh: &[0x45; 40],
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
            has_grh: true,
        };
        self.qp.handle_packet(now, &RxPacket { packet, source }, &mut self.w);
    }
}

pub(super) fn sge(addr: u64, length: u32) -> Sge {
    Sge { addr, length, lkey: Lkey(KEY) }
}

/// Two connected queue pairs, numbers 1 and 2, and the wire between them.
pub(super) struct Pair {
    pub(super) a: Side2,
    pub(super) b: Side2,
    pub(super) now: Time,
    /// Packets that crossed, as (from, bytes), in order.
    pub(super) log: Vec<(u32, Vec<u8>)>,
}

impl Pair {
    pub(super) fn new(qp_type: QpType) -> Self {
        Self::with(qp_type, |_| {})
    }

    pub(super) fn with(qp_type: QpType, change: impl Fn(&mut QpAttr)) -> Self {
        let mut pair = Self::down(qp_type, false);
        for (side, from, to) in [(&mut pair.a, 1, 2), (&mut pair.b, 2, 1)] {
            let mut attr = attributes(from, to);
            change(&mut attr);
            side.up(&attr);
        }
        pair
    }

    pub(super) fn down(qp_type: QpType, srq: bool) -> Self {
        Self {
            a: Side2::new(1, qp_type, false),
            b: Side2::new(2, qp_type, srq),
            now: Time(1),
            log: Vec::new(),
        }
    }

    /// Moves packets until nothing moves. `verdict(from, n-th of that side, bytes)` drops on false.
    pub(super) fn run_with(&mut self, mut verdict: impl FnMut(u32, usize, &Packet<'_>) -> bool) {
        let mut seen = [0; 2];
        loop {
            self.a.poll(self.now);
            self.b.poll(self.now);
            let mut moved = false;
            for (from, i) in [(1, 0), (2, 1)] {
                let (src, dst) =
                    if from == 1 { (&mut self.a, &mut self.b) } else { (&mut self.b, &mut self.a) };
                while let Some(bytes) = src.w.out.pop_front() {
                    moved = true;
                    seen[i] += 1;
                    let keep = verdict(from, seen[i], &Packet::parse(&bytes).unwrap());
                    if keep {
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

    pub(super) fn run(&mut self) {
        self.run_with(|_, _, _| true);
    }

    /// Lets the next timer of either side run out. False if none runs.
    pub(super) fn tick(&mut self) -> bool {
        let next = [&self.a, &self.b].into_iter().filter_map(|s| s.qp.poll_timeout()).min();
        let Some(at) = next else { return false };
        self.now = self.now.max(at);
        self.a.qp.handle_timeout(self.now, &mut self.a.w);
        self.b.qp.handle_timeout(self.now, &mut self.b.w);
        true
    }

    /// The opcodes that crossed from one side.
    pub(super) fn opcodes(&self, from: u32) -> Vec<u8> {
        self.log.iter().filter(|(f, _)| *f == from).map(|(_, b)| b[0]).collect()
    }
}
