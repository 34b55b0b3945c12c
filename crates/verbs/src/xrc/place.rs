//! What a target asks of its surroundings: receives, memory and completions of whichever process the
//! packet in hand names.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rdmux_link::LinkError;
use rdmux_transport::attr::Access;
use rdmux_transport::env::{AccessFault, AtomicOp, SrqEntry};
use rdmux_transport::wr::{Completion, Sge};
use rdmux_wire::{Lkey, Psn, Qpn, Rkey};

use std::collections::HashMap;

use super::member::RemoteSrq;
use super::record::{Atomic, Completed, Place, kind};
use super::side::Outbox;
use crate::device::Device;
use crate::engine::env::parts;

/// From how many bytes on data are copied to where they belong by the operating system, which costs a system
/// call and saves two copies.
const DIRECT: usize = 16 << 10;

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
    pub(crate) fn get(&self, srqn: u32) -> Option<Arc<RemoteSrq>> {
        self.srqs.read().get(&srqn).cloned()
    }
    pub(crate) fn len(&self) -> usize {
        self.srqs.read().len()
    }
}

/// What a target has besides its machine.
#[derive(Debug)]
pub(crate) struct TargetEnds {
    pub(crate) domain: Arc<Domain>,
    sent: Mutex<Sent>,
}

/// What a target has put into rings.
#[derive(Debug, Default)]
struct Sent {
    /// By the slot of the process: the position after the last record.
    last: Vec<(u16, u64)>,
    /// Atomics that are not answered: their PSN, and the slot of the process that has them.
    atomics: Vec<(u32, u16)>,
}

impl Sent {
    fn note(&mut self, slot: u16, position: u64) {
        match self.last.iter_mut().find(|(s, _)| *s == slot) {
            Some((_, last)) => *last = position,
            None => self.last.push((slot, position)),
        }
    }
}

impl TargetEnds {
    pub(crate) fn new(domain: Arc<Domain>) -> Self {
        Self { domain, sent: Mutex::default() }
    }

    /// An answer from the process of `slot`: whether this atomic waited for it.
    pub(crate) fn answered(&self, psn: u32, slot: u16) -> bool {
        let mut sent = self.sent.lock();
        let at = sent.atomics.iter().position(|a| *a == (psn, slot));
        at.inspect(|&at| _ = sent.atomics.swap_remove(at)).is_some()
    }

    /// The process of `slot` is gone: the atomics that it will not answer.
    pub(crate) fn abandoned(&self, slot: u16) -> Vec<u32> {
        let mut sent = self.sent.lock();
        sent.last.retain(|(s, _)| *s != slot);
        let gone = sent.atomics.iter().filter(|(_, s)| *s == slot).map(|(psn, _)| *psn).collect();
        sent.atomics.retain(|(_, s)| *s != slot);
        gone
    }

    /// In RESET no answer is awaited any more.
    pub(crate) fn forget(&self) {
        self.sent.lock().atomics.clear();
    }
}

/// The surroundings of a target while it is locked.
pub(crate) struct Placing<'a> {
    device: &'a Arc<Device>,
    qpn: Qpn,
    ends: &'a TargetEnds,
    selected: Option<Arc<RemoteSrq>>,
}

impl<'a> Placing<'a> {
    pub(crate) fn new(device: &'a Arc<Device>, qpn: Qpn, ends: &'a TargetEnds) -> Self {
        Self { device, qpn, ends, selected: None }
    }

    pub(crate) fn select(&mut self, srqn: u32) -> Result<(), AccessFault> {
        if self.selected.as_ref().is_none_or(|srq| srq.srqn != srqn) {
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
        // A process that does not take what it has gets no more.
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
        &self,
        sges: &[Sge],
        offset: u32,
        data: &[u8],
    ) -> Result<(), AccessFault> {
        let len = u32::try_from(data.len()).map_err(|_| AccessFault::Bounds)?;
        let mut rest = data;
        for (sge, addr, take) in parts(sges, offset, len) {
            let (now, later) = rest.split_at(take as usize);
            self.place(
                false,
                Sge { addr, length: take, lkey: sge.lkey },
                Access::LOCAL_WRITE,
                now,
            )?;
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

    pub(crate) fn write_remote(&self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), AccessFault> {
        let at = named(rkey, va, data.len() as u64)?;
        self.place(true, at, Access::REMOTE_WRITE, data)
    }

    /// Brings bytes to a process's memory, after the keys were checked.
    fn place(&self, remote: bool, at: Sge, access: Access, data: &[u8]) -> Result<(), AccessFault> {
        let (srq, outbox) = self.selected()?;
        let regions = srq.member.regions();
        let to = regions.find(srq.pd, remote, &at, access)?;
        if data.len() >= DIRECT && srq.member.is_direct() && self.is_settled(srq, outbox) {
            match to.space.write(to.addr, data) {
                Err(AccessFault::Gone) => srq.member.not_direct(),
                other => return other,
            }
        }
        let place = Place { srqn: srq.srqn, remote, at, data };
        let position = outbox.offer(self.device, kind::PLACE, place.meta(), data).map_err(fault)?;
        self.ends.sent.lock().note(srq.member.slot, position);
        Ok(())
    }

    /// Whether the process has done all that this target told it: what it has not could come after what
    /// is done to its memory directly.
    fn is_settled(&self, srq: &RemoteSrq, outbox: &Outbox) -> bool {
        let sent = self.ends.sent.lock();
        let last = sent.last.iter().find(|(slot, _)| *slot == srq.member.slot);
        last.is_none_or(|(_, position)| outbox.has_done(*position))
    }

    /// Reads a process's memory for a peer.
    pub(crate) fn read_remote(
        &self,
        rkey: Rkey,
        va: u64,
        into: &mut [u8],
    ) -> Result<(), AccessFault> {
        let (srq, outbox) = self.selected()?;
        let at = named(rkey, va, into.len() as u64)?;
        let regions = srq.member.regions();
        let from = regions.find(srq.pd, true, &at, Access::REMOTE_READ)?;
        if !self.is_settled(srq, outbox) {
            return Err(AccessFault::Busy);
        }
        from.space.read(from.addr, into).inspect_err(|_| srq.member.not_direct())
    }

    /// Sends an atomic to its process.
    pub(crate) fn atomic(
        &self,
        psn: Psn,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<(), AccessFault> {
        let (srq, outbox) = self.selected()?;
        let at = named(rkey, va, 8)?;
        srq.member.regions().find(srq.pd, true, &at, Access::REMOTE_ATOMIC)?;
        let psn = psn.get();
        let atomic = Atomic { qpn: self.qpn, psn, srqn: srq.srqn, rkey, va, op };
        let (meta, bytes) = atomic.encode();
        // The answer may come before the next line.
        let mut sent = self.ends.sent.lock();
        let position = outbox.offer(self.device, kind::ATOMIC, meta, &bytes).map_err(fault)?;
        sent.note(srq.member.slot, position);
        sent.atomics.push((psn, srq.member.slot));
        Ok(())
    }

    pub(crate) fn invalidate(&self, rkey: Rkey) -> Result<(), AccessFault> {
        let (srq, _) = self.selected()?;
        srq.member.invalidate(srq.pd, rkey)
    }

    /// Tells the process that a receive is complete.
    pub(crate) fn complete(&self, completion: &Completion) {
        let Ok((srq, outbox)) = self.selected() else { return };
        let (meta, bytes) = Completed::encode(srq.srqn, completion);
        if let Some(position) = outbox.send(self.device, kind::COMPLETE, meta, &bytes) {
            self.ends.sent.lock().note(srq.member.slot, position);
        }
    }
}

/// Memory that a peer named.
fn named(rkey: Rkey, va: u64, len: u64) -> Result<Sge, AccessFault> {
    let length = u32::try_from(len).map_err(|_| AccessFault::Bounds)?;
    Ok(Sge { addr: va, length, lkey: Lkey(rkey.0) })
}

/// What a ring's refusal means to the sender: to come again while it is full, else that the process is gone.
fn fault(error: LinkError) -> AccessFault {
    if matches!(error, LinkError::Busy) { AccessFault::Busy } else { AccessFault::Gone }
}
