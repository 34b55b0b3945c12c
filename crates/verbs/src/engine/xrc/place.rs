//! The environment of a target: receives, memory and completions of the process that the current packet names.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rdmux_link::LinkError;
use rdmux_transport::attr::Access;
use rdmux_transport::env::{AccessFault, AtomicOp, SrqEntry};
use rdmux_transport::wr::{Completion, Sge};
use rdmux_wire::{Lkey, Psn, Qpn, Rkey};

use std::collections::HashMap;

use super::member::RemoteSrq;
use super::side::Outbox;
use crate::engine::device::Device;
use crate::engine::env::parts;
use crate::engine::wire::IN_PLACE;
use crate::objects::quota::Permit;
use crate::objects::xrc::record::{Atomic, Completed, Delivered, Place, kind};

/// The number of bytes from which on data is not staged.
const AT_ONCE: usize = 16 << 10;
/// The number of bytes from which on the kernel copies data directly to its destination, which costs a system call and saves two
/// copies.
const DIRECT: usize = 8 << 10;
/// The maximum number of staged bytes, which are sent together: a record holds them and their header.
const MOST_STAGED: usize = 64 << 10;

/// A domain as targets see it.
#[derive(Debug, Default)]
pub(crate) struct Domain {
    srqs: RwLock<HashMap<u32, Arc<RemoteSrq>>>,
}

impl Domain {
    pub(crate) fn add(&self, srq: &Arc<RemoteSrq>) {
        self.srqs.write().insert(srq.srqn, srq.clone());
    }
    pub(crate) fn remove(&self, srqn: u32) {
        self.srqs.write().remove(&srqn);
    }
    /// Returns the shared receive queue with a number.
    pub(crate) fn get(&self, srqn: u32) -> Option<Arc<RemoteSrq>> {
        self.srqs.read().get(&srqn).cloned()
    }
    pub(crate) fn len(&self) -> usize {
        self.srqs.read().len()
    }
}

/// The state of a target besides its machine.
#[derive(Debug)]
pub(crate) struct TargetEnds {
    /// The target's XRC domain.
    pub(crate) domain: Arc<Domain>,
    sent: Mutex<Sent>,
    _permit: Option<Permit>,
}

/// The records that a target has put into rings.
#[derive(Debug, Default)]
struct Sent {
    /// The position after the last record, by slot of the process.
    last: Vec<(u16, u64)>,
    /// Whether a part of the current message has been sent.
    part: bool,
    /// Unanswered atomics: their PSN, and the slot of the process that has them.
    atomics: Vec<(u32, u16)>,
}

impl Sent {
    fn note(&mut self, slot: u16, position: u64) {
        match self.last.iter_mut().find(|(s, _)| *s == slot) {
            Some((_, last)) => *last = position.max(*last),
            None => self.last.push((slot, position)),
        }
    }
}

impl TargetEnds {
    /// Creates the state of a target, which is counted by its permit.
    pub(crate) fn new(domain: Arc<Domain>, permit: Option<Permit>) -> Self {
        Self { domain, sent: Mutex::default(), _permit: permit }
    }

    /// Removes an atomic that the process of `slot` has answered. Returns whether it was outstanding there.
    pub(crate) fn answered(&self, psn: u32, slot: u16) -> bool {
        let mut sent = self.sent.lock();
        let at = sent.atomics.iter().position(|a| *a == (psn, slot));
        at.inspect(|&at| _ = sent.atomics.swap_remove(at)).is_some()
    }

    /// Removes and returns the atomics that the process of `slot` will not answer, because it is gone.
    pub(crate) fn abandoned(&self, slot: u16) -> Vec<u32> {
        let mut sent = self.sent.lock();
        sent.last.retain(|(s, _)| *s != slot);
        let gone = sent.atomics.iter().filter(|(_, s)| *s == slot).map(|(psn, _)| *psn).collect();
        sent.atomics.retain(|(_, s)| *s != slot);
        gone
    }

    /// Discards outstanding atomics, for a transition to RESET.
    pub(crate) fn forget(&self) {
        self.sent.lock().atomics.clear();
    }
}

/// Data that a thread stages for a target: contiguous bytes for memory, until they are sent together; and bytes of a process's
/// memory that are read ahead.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    data: Vec<u8>,
    /// Destination address and key of `data`, and whether a peer named it; `length` is that of the data.
    at: Sge,
    remote: bool,
    ahead: Ahead,
}

/// Bytes of a process's memory that were read ahead.
#[derive(Debug, Default)]
struct Ahead {
    data: Vec<u8>,
    start: u64,
    rkey: Rkey,
}

impl Ahead {
    /// Returns bytes that have been read ahead.
    fn find(&self, rkey: Rkey, va: u64, len: usize) -> Option<&[u8]> {
        let skip = usize::try_from(va.wrapping_sub(self.start)).ok()?;
        self.data.get(skip..skip.checked_add(len)?).filter(|_| self.rkey == rkey)
    }

    /// Returns how many bytes to read when `len` are requested: if the request continues the previous one, four times as many as
    /// that read.
    fn wish(&self, rkey: Rkey, va: u64, len: usize) -> usize {
        let end = self.start.wrapping_add(self.data.len() as u64);
        let goes_on = !self.data.is_empty() && self.rkey == rkey && va == end;
        if goes_on { (4 * self.data.len()).min(MOST_STAGED).max(len) } else { len }
    }
}

/// The environment of a target while it is locked.
pub(crate) struct Placing<'a> {
    device: &'a Arc<Device>,
    qpn: Qpn,
    ends: &'a TargetEnds,
    selected: Option<Arc<RemoteSrq>>,
    stage: &'a mut Stage,
}

impl<'a> Placing<'a> {
    pub(crate) fn new(
        device: &'a Arc<Device>,
        qpn: Qpn,
        ends: &'a TargetEnds,
        stage: &'a mut Stage,
    ) -> Self {
        stage.data.clear();
        stage.ahead.data.clear();
        Self { device, qpn, ends, selected: None, stage }
    }

    /// Selects the shared receive queue of the current packet, and discards bytes that were read ahead for another.
    pub(crate) fn select(&mut self, srqn: u32) -> Result<(), AccessFault> {
        if self.selected.as_ref().is_none_or(|srq| srq.srqn != srqn) {
            self.flush();
            self.stage.ahead.data.clear();
            self.selected = self.ends.domain.get(srqn);
        }
        self.selected.is_some().then_some(()).ok_or(AccessFault::Domain)
    }

    fn selected(&self) -> Result<(&RemoteSrq, &Outbox), AccessFault> {
        let srq = self.selected.as_deref().ok_or(AccessFault::Domain)?;
        Ok((srq, srq.member.outbox().ok_or(AccessFault::Gone)?))
    }

    pub(crate) fn pop(&self, sges: &mut [Sge]) -> Option<SrqEntry> {
        let (srq, outbox) = self.selected().ok()?;
        // A process that does not empty its ring gets no more records.
        if outbox.is_waiting() && !outbox.flush(self.device) {
            return None;
        }
        srq.pop(sges)
    }

    pub(crate) fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), AccessFault> {
        let (srq, _) = self.selected()?;
        let regions = srq.member.regions();
        sges.iter()
            .filter(|sge| sge.length != 0)
            .try_for_each(|sge| regions.find(srq.pd, false, sge, access).map(drop))
    }

    pub(crate) fn scatter(
        &mut self,
        sges: &[Sge],
        offset: u32,
        data: &[u8],
    ) -> Result<(), AccessFault> {
        let len = u32::try_from(data.len()).map_err(|_| AccessFault::Bounds)?;
        let mut rest = data;
        for (sge, addr, take) in parts(sges, offset, len) {
            let (now, later) = rest.split_at(take as usize);
            self.place(false, Sge { addr, length: take, lkey: sge.lkey }, now)?;
            rest = later;
        }
        if rest.is_empty() { Ok(()) } else { Err(AccessFault::Bounds) }
    }

    pub(crate) fn check_remote(
        &self,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<(), AccessFault> {
        let (srq, _) = self.selected()?;
        let at = named(rkey, va, len)?;
        srq.member.regions().find(srq.pd, true, &at, access).map(drop)
    }

    pub(crate) fn write_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        data: &[u8],
    ) -> Result<(), AccessFault> {
        let at = named(rkey, va, data.len() as u64)?;
        self.place(true, at, data)
    }

    /// Sends bytes to a process's memory, after the keys were checked. They are sent before the next packet at the latest.
    fn place(&mut self, remote: bool, at: Sge, data: &[u8]) -> Result<(), AccessFault> {
        let (srq, outbox) = self.selected()?;
        srq.member.regions().find(srq.pd, remote, &at, writing(remote))?;
        if data.len() >= AT_ONCE && self.stage.data.is_empty() {
            let place = Place { srqn: srq.srqn, remote, at, data };
            if self.place_directly(srq, outbox, &place) {
                self.ends.sent.lock().part = true;
                return Ok(());
            }
            let sent = outbox.offer(self.device, kind::PLACE, place.meta(), &[data]);
            self.ends.sent.lock().note(srq.member.slot, sent.map_err(fault)?);
            return Ok(());
        }
        let stage = &self.stage;
        let follows = stage.remote == remote
            && stage.at.lkey == at.lkey
            && stage.at.addr.wrapping_add(stage.data.len() as u64) == at.addr
            && stage.data.len() + data.len() <= MOST_STAGED;
        if stage.data.is_empty() || !follows {
            // The staged data finds room, and so does this data after it.
            if !outbox.has_room_for(self.device, 2 * MOST_STAGED) {
                return Err(AccessFault::Busy);
            }
            self.flush();
            (self.stage.at, self.stage.remote) = (at, remote);
        }
        self.stage.data.extend_from_slice(data);
        Ok(())
    }

    /// Sends the staged data.
    pub(crate) fn flush(&mut self) {
        if !self.stage.data.is_empty() {
            self.flush_with(None);
        }
    }

    /// Sends the staged data, with a completion.
    fn flush_with(&mut self, completion: Option<&Completion>) {
        let Ok((srq, outbox)) = self.selected() else { return self.stage.data.clear() };
        let Stage { data, at, remote, .. } = &*self.stage;
        let at = Sge { length: u32::try_from(data.len()).unwrap_or(u32::MAX), ..*at };
        let place = Place { srqn: srq.srqn, remote: *remote, at, data };
        // A short message is sent through the ring. A part of a long one must not, or all following parts would have to wait for
        // it. Nor must a WRITE without a completion: the process may poll only its memory.
        let part = std::mem::replace(&mut self.ends.sent.lock().part, completion.is_none());
        let least = if part || completion.is_none() { 1 } else { DIRECT };
        let placed = data.len() >= least && self.place_directly(srq, outbox, &place);
        let sent = match completion {
            Some(completion) if data.is_empty() || placed => {
                let (meta, bytes) = Completed::encode(srq.srqn, completion);
                outbox.send(self.device, kind::COMPLETE, meta, &[&bytes]);
                None
            }
            // A long record is copied from its place in the ring, and its contents are not examined.
            Some(completion) if data.len() >= IN_PLACE => {
                let sent = Some(outbox.send(self.device, kind::PLACE, place.meta(), &[data]));
                let (meta, bytes) = Completed::encode(srq.srqn, completion);
                outbox.send(self.device, kind::COMPLETE, meta, &[&bytes]);
                sent
            }
            Some(completion) => {
                let head = Delivered::encode(srq.srqn, completion);
                Some(outbox.send(self.device, kind::DELIVER, place.meta(), &[&head, data]))
            }
            None if placed => None,
            None => Some(outbox.send(self.device, kind::PLACE, place.meta(), &[data])),
        };
        if let Some(position) = sent {
            self.ends.sent.lock().note(srq.member.slot, position);
        }
        self.stage.data.clear();
    }

    /// Makes the kernel copy bytes directly to their destination. Returns false if that is not possible, or fails. Access was
    /// checked before; if it is no longer permitted, the bytes are discarded, and the result is true.
    fn place_directly(&self, srq: &RemoteSrq, outbox: &Outbox, place: &Place<'_>) -> bool {
        if !srq.member.is_direct() || !self.has_caught_up(srq, outbox) {
            return false;
        }
        let regions = srq.member.regions();
        let Ok(to) = regions.find(srq.pd, place.remote, &place.at, writing(place.remote)) else {
            return true;
        };
        let written = to.space.write(to.addr, place.data);
        if written == Err(AccessFault::Rights) {
            srq.member.not_direct();
        }
        written.is_ok()
    }

    /// Returns whether the process has executed all records of this target that write its memory: otherwise they could be
    /// executed after the direct copy.
    fn has_caught_up(&self, srq: &RemoteSrq, outbox: &Outbox) -> bool {
        let sent = self.ends.sent.lock();
        let last = sent.last.iter().find(|(slot, _)| *slot == srq.member.slot);
        last.is_none_or(|(_, position)| outbox.has_done(*position))
    }

    /// Reads a process's memory for a peer.
    pub(crate) fn read_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        into: &mut [u8],
    ) -> Result<(), AccessFault> {
        let mut ahead = std::mem::take(&mut self.stage.ahead);
        let read = self.read_ahead(&mut ahead, rkey, va, into);
        self.stage.ahead = ahead;
        read
    }

    /// As [`read_remote`](Self::read_remote), and reads ahead bytes that are likely to be requested next.
    fn read_ahead(
        &self,
        ahead: &mut Ahead,
        rkey: Rkey,
        va: u64,
        into: &mut [u8],
    ) -> Result<(), AccessFault> {
        let (srq, outbox) = self.selected()?;
        let regions = srq.member.regions();
        let find = |len| regions.find(srq.pd, true, &named(rkey, va, len)?, Access::REMOTE_READ);
        let from = find(into.len() as u64)?;
        if let Some(bytes) = ahead.find(rkey, va, into.len()) {
            into.copy_from_slice(bytes);
            return Ok(());
        }
        if !self.has_caught_up(srq, outbox) {
            return Err(AccessFault::Busy);
        }
        let wish = ahead.wish(rkey, va, into.len());
        let len = find(wish as u64).map_or(into.len(), |_| wish);
        ahead.data.resize(len, 0);
        (ahead.start, ahead.rkey) = (va, rkey);
        let mut read = from.space.read(from.addr, &mut ahead.data);
        if read == Err(AccessFault::Unmapped) && len > into.len() {
            // The region may have parts without memory, which were not requested.
            ahead.data.truncate(into.len());
            read = from.space.read(from.addr, &mut ahead.data);
        }
        match read {
            Ok(()) => into.copy_from_slice(&ahead.data[..into.len()]),
            Err(_) => ahead.data.clear(),
        }
        if read == Err(AccessFault::Rights) {
            srq.member.not_direct();
        }
        read
    }

    /// Sends an atomic to its process.
    pub(crate) fn atomic(
        &mut self,
        psn: Psn,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<(), AccessFault> {
        self.flush();
        let (srq, outbox) = self.selected()?;
        let at = named(rkey, va, 8)?;
        srq.member.regions().find(srq.pd, true, &at, Access::REMOTE_ATOMIC)?;
        let psn = psn.get();
        let atomic = Atomic { qpn: self.qpn, psn, srqn: srq.srqn, rkey, va, op };
        let (meta, bytes) = atomic.encode();
        // The answer may arrive before the next line.
        let mut sent = self.ends.sent.lock();
        let position = outbox.offer(self.device, kind::ATOMIC, meta, &[&bytes]).map_err(fault)?;
        sent.note(srq.member.slot, position);
        sent.atomics.push((psn, srq.member.slot));
        Ok(())
    }

    pub(crate) fn invalidate(&self, rkey: Rkey) -> Result<(), AccessFault> {
        let (srq, _) = self.selected()?;
        srq.member.invalidate(srq.pd, rkey)
    }

    /// Notifies the process that a receive is complete.
    pub(crate) fn complete(&mut self, completion: &Completion) {
        self.flush_with(Some(completion));
    }
}

/// Returns the access right that memory must grant for a write.
fn writing(remote: bool) -> Access {
    if remote { Access::REMOTE_WRITE } else { Access::LOCAL_WRITE }
}

/// Returns the range of memory that a peer named.
fn named(rkey: Rkey, va: u64, len: u64) -> Result<Sge, AccessFault> {
    let length = u32::try_from(len).map_err(|_| AccessFault::Bounds)?;
    Ok(Sge { addr: va, length, lkey: Lkey(rkey.0) })
}

/// Converts a ring's error for the sender, which retries while the ring is full. Other errors mean that the process is gone.
fn fault(error: LinkError) -> AccessFault {
    if matches!(error, LinkError::Busy) { AccessFault::Busy } else { AccessFault::Gone }
}
