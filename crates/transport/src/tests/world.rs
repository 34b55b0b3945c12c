//! The world around a queue pair under test: memory, completion queues, and a wire that collects.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;

use rdmux_wire::{Pkey, Psn, Rkey};

use super::{KEY, LOSSY, MEMORY};
use crate::attr::Access;
use crate::env::{
    AccessFault, AtomicAnswer, AtomicOp, Direct, Drop, Env, FetchError, LinkCaps, Named, QpEvent,
    Side, SrqEntry, TxError, TxPacket, TxPayload,
};
use crate::wr::{Completion, MwBind, Sge, WcStatus};

/// A world of one memory region that starts at address 0, and a wire that collects packets.
pub(crate) struct World {
    pub(super) mem: Vec<u8>,
    pub(super) rights: Access,
    pub(super) link: LinkCaps,
    pub(super) busy: bool,
    /// Whether what comes behind a gap may be kept.
    pub(super) keeps: bool,
    /// Whether every address exists, and they are all the same.
    pub(super) endless: bool,
    pub(super) out: VecDeque<Vec<u8>>,
    /// The ACK that was piggybacked on each, on a link that does so.
    pub(super) acks: VecDeque<Option<Psn>>,
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
    /// Why no memory can be had, if so.
    pub(super) refuses: Option<AccessFault>,
    /// What a stream took and nobody has yet, how much it holds, and whether it is broken.
    pub(super) stream: VecDeque<u8>,
    pub(super) room: usize,
    /// Bytes that may be in flight.
    pub(super) share: u32,
    pub(super) broken: bool,
    /// Binds carried out. Those to no bytes are refused.
    pub(super) bound: Vec<MwBind>,
    /// The peer's memory while it is in reach, how much of it may be copied yet, and the lengths of the copies.
    pub(super) reached: Option<Vec<u8>>,
    pub(super) reach_left: u32,
    pub(super) copies: Vec<u32>,
    /// Whether payload may be named, and the packets that named theirs, with what they named behind them.
    pub(super) names: bool,
    pub(super) named: Vec<Vec<u8>>,
    /// Whether what a peer names can be had.
    pub(super) fetches: bool,
    /// How many sends were complete when the queue pair was closed.
    pub(super) closed_at: Option<usize>,
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            mem: vec![0; MEMORY],
            rights: Access::LOCAL_WRITE
                | Access::REMOTE_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_ATOMIC,
            link: LOSSY,
            busy: false,
            keeps: true,
            endless: false,
            out: VecDeque::new(),
            acks: VecDeque::new(),
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
            reached: None,
            reach_left: u32::MAX,
            copies: Vec::new(),
            names: false,
            named: Vec::new(),
            fetches: true,
            closed_at: None,
            refuses: None,
            stream: VecDeque::new(),
            room: usize::MAX,
            share: u32::MAX,
            broken: false,
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
        if let Some(fault) = self.refuses {
            return Err(fault);
        }
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

    /// Appends what a payload is.
    pub(super) fn append(
        &self,
        payload: &TxPayload<'_>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), AccessFault> {
        match *payload {
            TxPayload::None => {}
            TxPayload::Bytes(b) => bytes.extend_from_slice(b),
            TxPayload::Gather { len, .. } if self.endless => {
                bytes.extend_from_slice(&self.mem[..len as usize]);
            }
            TxPayload::Gather { sges, offset, len } => {
                let mut all = Vec::new();
                for s in sges {
                    let at = self.slice(s.lkey.0, s.addr, s.length.into(), Access::empty())?;
                    all.extend_from_slice(&self.mem[at..at + s.length as usize]);
                }
                bytes.extend_from_slice(&all[offset as usize..(offset + len) as usize]);
            }
            TxPayload::Remote { rkey, va, len, srqn } => {
                let at = self.slice_of(srqn, rkey.0, va, len.into(), Access::REMOTE_READ)?;
                bytes.extend_from_slice(&self.mem[at..at + len as usize]);
            }
        }
        Ok(())
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
    fn room(&self) -> u32 {
        self.share
    }
    fn buffers_out_of_order(&self) -> bool {
        self.keeps
    }
    fn transmit(&mut self, packet: &TxPacket<'_>) -> Result<(), TxError> {
        if self.busy {
            return Err(TxError::Busy);
        }
        let mut bytes = packet.header.to_vec();
        self.append(&packet.payload, &mut bytes).map_err(TxError::Memory)?;
        bytes.resize(bytes.len() + usize::from(packet.pad), 0);
        assert_eq!(bytes.len() % 4, 0);
        self.out.push_back(bytes);
        if self.link.piggybacks_acks {
            self.acks.push_back(packet.ack);
        } else {
            assert_eq!(packet.ack, None);
        }
        Ok(())
    }
    fn transmit_named(&mut self, packet: &TxPacket<'_>) -> Result<bool, TxError> {
        if self.busy {
            return Err(TxError::Busy);
        }
        if self.names {
            assert!(packet.pad == 0 && matches!(packet.payload, TxPayload::Gather { .. }));
            let mut bytes = packet.header.to_vec();
            self.append(&packet.payload, &mut bytes).map_err(TxError::Memory)?;
            self.named.push(bytes.clone());
            self.out.push_back(bytes);
        }
        Ok(self.names)
    }
    fn fetch(&mut self, sges: &[Sge], offset: u32, from: &Named<'_>) -> Result<(), FetchError> {
        if !self.fetches {
            return Err(FetchError::OutOfReach);
        }
        self.scatter(sges, offset, from.at).map_err(FetchError::Memory)
    }
    fn fetch_remote(&mut self, rkey: Rkey, va: u64, from: &Named<'_>) -> Result<(), FetchError> {
        if !self.fetches {
            return Err(FetchError::OutOfReach);
        }
        self.write_remote(rkey, va, from.at).map_err(FetchError::Memory)
    }
    fn direct(&mut self, copy: &Direct<'_>) -> bool {
        let Some(mut far) = self.reached.take() else { return false };
        let at = copy.va as usize;
        let lawful = copy.rkey.0 == KEY
            && copy.len <= self.reach_left
            && at + copy.len as usize <= far.len();
        let mut bytes = Vec::new();
        if !lawful || self.append(&copy.near, &mut bytes).is_err() {
            self.reached = Some(far);
            return false;
        }
        self.reach_left -= copy.len;
        self.copies.push(copy.len);
        let there = at..at + copy.len as usize;
        if copy.write {
            far[there].copy_from_slice(&bytes);
        } else if let TxPayload::Gather { sges, offset, .. } = copy.near {
            self.scatter(sges, offset, &far[there]).unwrap();
        }
        self.reached = Some(far);
        true
    }
    fn closed(&mut self) {
        self.closed_at = Some(self.wc.len());
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
