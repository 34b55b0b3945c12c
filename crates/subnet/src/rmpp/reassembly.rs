//! All messages that are coming in, and those that came in last.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use rdmux_transport::timers::{Deadline, Timers};
use rdmux_wire::{Qpn, Rmpp, RmppFlags, RmppStatus};

use super::{Mad, REMEMBERED, Receiver, TOTAL_TIME, Taken, abort, acknowledge, stop};
use crate::Time;

/// How much may be coming in at a time. What would exceed it is answered with STOP.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of one message.
    pub message: usize,
    /// Bytes of all messages that are coming in.
    pub bytes: usize,
    /// Messages that are coming in.
    pub transfers: usize,
    /// Bytes of the messages that are coming in from one peer.
    pub peer_bytes: usize,
    /// Messages that are coming in from one peer.
    pub peer_transfers: usize,
    /// Whole messages that are remembered; the oldest is forgotten for another.
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

/// What tells one transfer from another, to its receiver.
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

/// What came of a segment.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It was refused, or said nothing new.
    Nothing,
    /// It brought its message further.
    Progress,
    /// The message is whole: one long MAD.
    Whole(Vec<u8>),
}

/// Receives messages from peers `P`; answers go out along an address `A`, of which each transfer
/// keeps that of its first segment.
#[derive(Debug)]
pub struct Reassembly<P, A> {
    limits: Limits,
    transfers: BTreeMap<TransferId<P>, Transfer<A>>,
    /// Those that are not whole, by when they are given up.
    open: Timers<TransferId<P>>,
    /// Those that are whole, by when they are forgotten.
    whole: Timers<TransferId<P>>,
    peers: BTreeMap<P, Usage>,
    bytes: usize,
}

#[derive(Debug)]
struct Transfer<A> {
    receiver: Receiver,
    address: A,
    deadline: Deadline,
    /// The window with which a response to this message begins.
    turned: u32,
}

/// What a peer has open.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    transfers: usize,
    bytes: usize,
}

impl<P: Copy + Ord, A> Reassembly<P, A> {
    /// Nothing is coming in.
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            transfers: BTreeMap::new(),
            open: Timers::new(),
            whole: Timers::new(),
            peers: BTreeMap::new(),
            bytes: 0,
        }
    }

    /// How many transfers there are, with those that are remembered.
    pub fn len(&self) -> usize {
        self.transfers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    /// The bytes of messages that are coming in.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a transfer is known, whole or not.
    pub fn knows(&self, id: &TransferId<P>) -> bool {
        self.transfers.contains_key(id)
    }

    /// Takes a segment, which [`check`](super::check) has passed, from `address`. What is to be sent back goes to `answer`.
    pub fn handle_data(
        &mut self,
        now: Time,
        id: TransferId<P>,
        address: A,
        mad: &Mad,
        mut answer: impl FnMut(Box<Mad>),
    ) -> Arrival {
        let rmpp = Rmpp::of(mad);
        if !self.knows(&id)
            && let Err(refusal) = self.begin(now, id, address, mad, &rmpp)
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

    /// The sender of a message has ended the transfer.
    pub fn end(&mut self, id: &TransferId<P>) {
        if self.transfers.get(id).is_some_and(|t| !t.receiver.is_complete()) {
            self.remove(id);
        }
    }

    /// The sender of a whole message has turned to receiving: the response to it may send up to `window` at first.
    pub fn turn(&mut self, id: &TransferId<P>, window: u32) {
        if let Some(transfer) = self.transfers.get_mut(id).filter(|t| t.receiver.is_complete()) {
            transfer.turned = window.max(1);
        }
    }

    /// The window with which a response to this message begins.
    pub fn turned(&self, id: &TransferId<P>) -> u32 {
        self.transfers.get(id).map_or(1, |t| t.turned)
    }

    /// Forgets the transfers for which `gone` is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&TransferId<P>) -> bool) {
        let gone: Vec<_> = self.transfers.keys().filter(|id| !keep(id)).copied().collect();
        gone.iter().for_each(|id| self.remove(id));
    }

    /// When [`Reassembly::handle_timeout`] is due.
    pub fn next_timeout(&self) -> Option<Time> {
        match (self.open.next(), self.whole.next()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Gives up one transfer that took too long, or forgets one, if its time has come. What is to be sent goes to `answer`.
    /// Returns whether there was one.
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

    /// Makes room for a transfer that `mad` begins.
    fn begin(
        &mut self,
        now: Time,
        id: TransferId<P>,
        address: A,
        mad: &Mad,
        rmpp: &Rmpp,
    ) -> Result<(), Refusal> {
        let first = rmpp.flags.contains(RmppFlags::FIRST);
        if rmpp.segment == 0 || first != (rmpp.segment == 1) {
            return Err(Refusal::Abort(RmppStatus::FIRST_SEGMENT));
        }
        if !first {
            // Of a transfer that was given up or forgotten.
            return Err(Refusal::Silence);
        }
        let theirs = self.peers.get(&id.peer).copied().unwrap_or_default();
        if theirs.transfers >= self.limits.peer_transfers
            || self.open.len() >= self.limits.transfers
        {
            return Err(Refusal::Stop);
        }
        let receiver = Receiver::new(mad);
        let usage = self.peers.entry(id.peer).or_default();
        usage.transfers += 1;
        usage.bytes += receiver.len();
        self.bytes += receiver.len();
        let mut deadline = Deadline::default();
        self.open.set(&mut deadline, id, now.after(TOTAL_TIME));
        self.transfers.insert(id, Transfer { receiver, address, deadline, turned: 1 });
        Ok(())
    }

    /// Takes a segment of a known transfer; what to acknowledge, if anything.
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
        // What was behind a gap took more room than it takes in the message.
        let (more, less) =
            (receiver.len().saturating_sub(before), before.saturating_sub(receiver.len()));
        if taken == Taken::Complete {
            return Ok((Arrival::Whole(self.complete(now, id, before)), ack));
        }
        self.charge(id, more, less)?;
        let progress = matches!(taken, Taken::Stored | Taken::Window);
        Ok((if progress { Arrival::Progress } else { Arrival::Nothing }, ack))
    }

    /// Takes the message of a transfer that is whole, and remembers that it was. It was charged `charged` bytes.
    fn complete(&mut self, now: Time, id: &TransferId<P>, charged: usize) -> Vec<u8> {
        let Some(transfer) = self.transfers.get_mut(id) else { return Vec::new() };
        let message = transfer.receiver.take();
        self.open.clear(&mut transfer.deadline, *id);
        self.whole.set(&mut transfer.deadline, *id, now.after(REMEMBERED));
        self.release(id.peer, charged);
        let oldest = self.whole.due(Time::NEVER).next();
        if let Some(oldest) = oldest.filter(|_| self.whole.len() > self.limits.remembered) {
            self.remove(&oldest);
        }
        message
    }

    /// Counts what a transfer holds more, and less, than before.
    fn charge(&mut self, id: &TransferId<P>, more: usize, less: usize) -> Result<(), Refusal> {
        let held = self.transfers.get(id).map_or(0, |t| t.receiver.len());
        let usage = self.peers.entry(id.peer).or_default();
        usage.bytes = usage.bytes + more - less.min(usage.bytes);
        self.bytes = self.bytes + more - less.min(self.bytes);
        let limits = &self.limits;
        let fits = held <= limits.message
            && usage.bytes <= limits.peer_bytes
            && self.bytes <= limits.bytes;
        if fits { Ok(()) } else { Err(Refusal::Stop) }
    }

    /// A peer has a transfer less, which was charged `bytes`.
    fn release(&mut self, peer: P, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        let Some(usage) = self.peers.get_mut(&peer) else { return };
        usage.bytes = usage.bytes.saturating_sub(bytes);
        usage.transfers = usage.transfers.saturating_sub(1);
        if usage.transfers == 0 {
            self.peers.remove(&peer);
        }
    }

    /// Forgets a transfer.
    fn remove(&mut self, id: &TransferId<P>) {
        let Some(mut transfer) = self.transfers.remove(id) else { return };
        if transfer.receiver.is_complete() {
            self.whole.clear(&mut transfer.deadline, *id);
        } else {
            self.open.clear(&mut transfer.deadline, *id);
            self.release(id.peer, transfer.receiver.len());
        }
    }
}

/// Why a segment is not taken, and what its sender is told.
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
