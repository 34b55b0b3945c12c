//! Reassembly: incoming messages, and messages that were recently completed.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use rdmux_transport::timers::{Deadline, Timers};
use rdmux_wire::{Qpn, Rmpp, RmppFlags, RmppStatus};

use super::{Mad, REMEMBERED, Receiver, TOTAL_TIME, Taken, abort, acknowledge, stop};
use crate::Time;

/// Limits on incoming messages. A segment that would exceed one is answered with STOP.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one message.
    pub message: usize,
    /// Bytes of all incoming messages.
    pub bytes: usize,
    /// The number of incoming messages.
    pub transfers: usize,
    /// Bytes of incoming messages of one share.
    pub peer_bytes: usize,
    /// The number of incoming messages of one share.
    pub peer_transfers: usize,
    /// The number of complete messages that are remembered. A further one evicts the oldest.
    pub remembered: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message: 64 << 20,
            bytes: 256 << 20,
            transfers: 1024,
            peer_bytes: 64 << 20,
            peer_transfers: 64,
            remembered: 4096,
        }
    }
}

/// The key of a transfer at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransferId<P> {
    /// The sender, in the driver's terms.
    pub peer: P,
    /// The sender's queue pair.
    pub qpn: Qpn,
    /// Transaction ID.
    pub tid: u64,
    /// Management class.
    pub class: u8,
    /// Method of the segments.
    pub method: u8,
}

/// The outcome of a segment.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The segment was refused, or was a duplicate.
    Nothing,
    /// The segment was accepted, and the message is still incomplete.
    Progress,
    /// The segment completed the message: one long MAD.
    Whole(Vec<u8>),
}

/// Receives messages from peers `P`. Answers go to an address `A`; each transfer keeps that of its first segment, and counts
/// towards the limits of the share `S` of its first segment, which several peers may have in common.
#[derive(Debug)]
pub struct Reassembly<P, A, S = P> {
    limits: Limits,
    transfers: BTreeMap<TransferId<P>, Transfer<A, S>>,
    /// Incomplete transfers by their deadline.
    open: Timers<TransferId<P>>,
    /// Complete transfers by the time when they are forgotten.
    whole: Timers<TransferId<P>>,
    shares: BTreeMap<S, Usage>,
    bytes: usize,
}

/// A transfer, incomplete or remembered.
#[derive(Debug)]
struct Transfer<A, S> {
    receiver: Receiver,
    address: A,
    share: S,
    deadline: Deadline,
    /// The initial window of a response to this message.
    turned: u32,
}

/// The resources that a share's transfers use.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    transfers: usize,
    bytes: usize,
}

impl<P: Copy + Ord, A, S: Copy + Ord> Reassembly<P, A, S> {
    /// Creates a reassembly without transfers.
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            transfers: BTreeMap::new(),
            open: Timers::new(),
            whole: Timers::new(),
            shares: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// Returns the number of transfers, including those that are remembered.
    pub fn len(&self) -> usize {
        self.transfers.len()
    }

    /// Returns whether there are no transfers.
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    /// Returns the bytes of all incoming messages.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether a transfer is known, complete or not.
    pub fn knows(&self, id: &TransferId<P>) -> bool {
        self.transfers.contains_key(id)
    }

    /// Handles a segment from `address` that [`check`](super::check) has passed. Responses are passed to `answer`. A transfer
    /// that the segment begins counts towards the limits of `share`.
    pub fn handle_data(
        &mut self,
        now: Time,
        id: TransferId<P>,
        share: S,
        address: A,
        mad: &Mad,
        mut answer: impl FnMut(Box<Mad>),
    ) -> Arrival {
        let rmpp = Rmpp::of(mad);
        if !self.knows(&id)
            && let Err(refusal) = self.begin(now, id, share, address, mad, &rmpp)
        {
            refusal.answer(mad, &mut answer);
            return Arrival::Nothing;
        }
        match self.continue_with(now, &id, mad, &rmpp) {
            Ok((arrival, ack)) => {
                if let Some((segment, window)) = ack {
                    answer(acknowledge(mad, segment, window));
                }
                arrival
            }
            Err(refusal) => {
                refusal.answer(mad, &mut answer);
                self.end(&id);
                Arrival::Nothing
            }
        }
    }

    /// Ends an incomplete transfer, because its sender has ended it.
    pub fn end(&mut self, id: &TransferId<P>) {
        if self.transfers.get(id).is_some_and(|t| !t.receiver.is_complete()) {
            self.remove(id);
        }
    }

    /// Notes that the sender of a complete message now receives: it allows a response of up to `window` segments at first.
    pub fn turn(&mut self, id: &TransferId<P>, window: u32) {
        if let Some(transfer) = self.transfers.get_mut(id).filter(|t| t.receiver.is_complete()) {
            transfer.turned = window.max(1);
        }
    }

    /// Returns the initial window of a response to this message.
    pub fn turned(&self, id: &TransferId<P>) -> u32 {
        self.transfers.get(id).map_or(1, |t| t.turned)
    }

    /// Keeps only the transfers for which `keep` returns true.
    pub fn retain(&mut self, mut keep: impl FnMut(&TransferId<P>) -> bool) {
        let gone: Vec<_> = self.transfers.keys().filter(|id| !keep(id)).copied().collect();
        gone.iter().for_each(|id| self.remove(id));
    }

    /// Returns when [`Reassembly::handle_timeout`] is due.
    pub fn next_timeout(&self) -> Option<Time> {
        match (self.open.next(), self.whole.next()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Aborts one transfer that took too long, or forgets a complete one, if its time has come. The ABORT is passed to
    /// `answer`. Returns whether there was one.
    pub fn handle_timeout(&mut self, now: Time, answer: impl FnOnce(&A, Box<Mad>)) -> bool {
        let old = self.whole.due(now).next();
        if let Some(id) = old {
            self.remove(&id);
            return true;
        }
        let Some(id) = self.open.due(now).next() else { return false };
        if let Some(transfer) = self.transfers.get(&id) {
            let mad = abort(transfer.receiver.message(), RmppStatus::TOTAL_TIME);
            answer(&transfer.address, mad);
        }
        self.remove(&id);
        true
    }

    /// Makes room for the transfer that `mad` starts.
    fn begin(
        &mut self,
        now: Time,
        id: TransferId<P>,
        share: S,
        address: A,
        mad: &Mad,
        rmpp: &Rmpp,
    ) -> Result<(), Refusal> {
        let first = rmpp.flags.contains(RmppFlags::FIRST);
        if rmpp.segment == 0 || first != (rmpp.segment == 1) {
            return Err(Refusal::Abort(RmppStatus::FIRST_SEGMENT));
        }
        if !first {
            // A late segment of a transfer that was aborted or forgotten.
            return Err(Refusal::Silence);
        }
        let theirs = self.shares.get(&share).copied().unwrap_or_default();
        if theirs.transfers >= self.limits.peer_transfers
            || self.open.len() >= self.limits.transfers
        {
            return Err(Refusal::Stop);
        }
        let receiver = Receiver::new(mad);
        let usage = self.shares.entry(share).or_default();
        usage.transfers += 1;
        usage.bytes += receiver.len();
        self.bytes += receiver.len();
        let mut deadline = Deadline::default();
        self.open.set(&mut deadline, id, now.after(TOTAL_TIME));
        self.transfers.insert(id, Transfer { receiver, address, share, deadline, turned: 1 });
        Ok(())
    }

    /// Handles a segment of a known transfer. Returns the segment and window to acknowledge, if any.
    fn continue_with(
        &mut self,
        now: Time,
        id: &TransferId<P>,
        mad: &Mad,
        rmpp: &Rmpp,
    ) -> Result<(Arrival, Option<(u32, u32)>), Refusal> {
        let Some(transfer) = self.transfers.get_mut(id) else { return Err(Refusal::Silence) };
        let receiver = &mut transfer.receiver;
        let before = receiver.len();
        let taken = receiver.handle_data(mad, rmpp).map_err(Refusal::Abort)?;
        let ack = match taken {
            Taken::Dropped | Taken::Stored => None,
            Taken::Window | Taken::Again | Taken::Complete => Some(receiver.ack()),
        };
        // An out-of-order segment takes more room while buffered than in the message.
        let (more, less) =
            (receiver.len().saturating_sub(before), before.saturating_sub(receiver.len()));
        if taken == Taken::Complete {
            return Ok((Arrival::Whole(self.complete(now, id, before)), ack));
        }
        self.charge(id, more, less)?;
        let progress = matches!(taken, Taken::Stored | Taken::Window);
        Ok((if progress { Arrival::Progress } else { Arrival::Nothing }, ack))
    }

    /// Takes the message of a complete transfer and remembers the transfer, which was charged `charged` bytes.
    fn complete(&mut self, now: Time, id: &TransferId<P>, charged: usize) -> Vec<u8> {
        let Some(transfer) = self.transfers.get_mut(id) else { return Vec::new() };
        let message = transfer.receiver.take();
        self.open.clear(&mut transfer.deadline, *id);
        self.whole.set(&mut transfer.deadline, *id, now.after(REMEMBERED));
        let share = transfer.share;
        self.release(share, charged);
        let oldest = self.whole.due(Time::NEVER).next();
        if let Some(oldest) = oldest.filter(|_| self.whole.len() > self.limits.remembered) {
            self.remove(&oldest);
        }
        message
    }

    /// Adjusts the bytes that a transfer is charged.
    fn charge(&mut self, id: &TransferId<P>, more: usize, less: usize) -> Result<(), Refusal> {
        let Some(transfer) = self.transfers.get(id) else { return Ok(()) };
        let held = transfer.receiver.len();
        let usage = self.shares.entry(transfer.share).or_default();
        usage.bytes = usage.bytes + more - less.min(usage.bytes);
        self.bytes = self.bytes + more - less.min(self.bytes);
        let limits = &self.limits;
        let fits = held <= limits.message
            && usage.bytes <= limits.peer_bytes
            && self.bytes <= limits.bytes;
        if fits { Ok(()) } else { Err(Refusal::Stop) }
    }

    /// Releases a transfer of a share, which was charged `bytes`.
    fn release(&mut self, share: S, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        let Some(usage) = self.shares.get_mut(&share) else { return };
        usage.bytes = usage.bytes.saturating_sub(bytes);
        usage.transfers = usage.transfers.saturating_sub(1);
        if usage.transfers == 0 {
            self.shares.remove(&share);
        }
    }

    /// Forgets a transfer.
    fn remove(&mut self, id: &TransferId<P>) {
        let Some(mut transfer) = self.transfers.remove(id) else { return };
        if transfer.receiver.is_complete() {
            self.whole.clear(&mut transfer.deadline, *id);
        } else {
            self.open.clear(&mut transfer.deadline, *id);
            self.release(transfer.share, transfer.receiver.len());
        }
    }
}

/// The reason why a segment is refused, which determines the answer to its sender.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    Silence,
    Stop,
    Abort(RmppStatus),
}

impl Refusal {
    fn answer(self, to: &Mad, answer: &mut impl FnMut(Box<Mad>)) {
        match self {
            Self::Silence => {}
            Self::Stop => answer(stop(to)),
            Self::Abort(status) => answer(abort(to, status)),
        }
    }
}
