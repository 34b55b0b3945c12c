//! A file's unfinished sends: outstanding requests and outgoing messages.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use core::time::Duration;

use rdmux_transport::timers::{Deadline, Timers};

use super::UserMad;
use super::address::{Envelope, Peer};
use crate::Time;
use crate::rmpp::{Mad, Sender};

/// The ID of a [`Pending`] in its file.
pub(super) type SendId = u64;

/// The key by which a response or an ACK refers to a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Transaction {
    pub(super) class: u8,
    /// Whether the send is a response.
    pub(super) response: bool,
    pub(super) tid: u64,
    pub(super) peer: Peer,
}

/// An unfinished send.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) transaction: Transaction,
    /// The peer whose limits a response counts towards; none for a request.
    share: Option<Peer>,
    pub(super) agent: super::AgentNumber,
    /// The record that the program reads on failure: the one that it wrote, with only the header of the MAD.
    pub(super) record: UserMad,
    pub(super) envelope: Envelope,
    pub(super) body: Body,
    /// How long to wait for a response; zero if none is expected.
    pub(super) timeout: Duration,
    pub(super) retries_left: u32,
    deadline: Deadline,
}

/// The data of a send.
#[derive(Debug)]
pub(super) enum Body {
    Single(Box<Mad>),
    Segments(Sender),
}

impl Body {
    fn len(&self) -> usize {
        match self {
            Self::Single(mad) => mad.len(),
            Self::Segments(sender) => sender.len(),
        }
    }
}

impl Pending {
    pub(super) fn new(
        transaction: Transaction,
        share: Option<Peer>,
        agent: super::AgentNumber,
        record: UserMad,
        envelope: Envelope,
        body: Body,
    ) -> Self {
        let timeout = Duration::from_millis(record.timeout_ms.into());
        let retries_left = record.retries;
        let deadline = Deadline::default();
        Self { transaction, share, agent, record, envelope, body, timeout, retries_left, deadline }
    }

    /// Returns the sender, while its message is not acknowledged.
    pub(super) fn sending(&mut self) -> Option<&mut Sender> {
        match &mut self.body {
            Body::Segments(sender) if !sender.is_complete() => Some(sender),
            _ => None,
        }
    }
}

/// The unfinished sends of a file.
#[derive(Debug, Default)]
pub(super) struct Sends {
    pending: BTreeMap<SendId, Pending>,
    transactions: BTreeSet<(Transaction, SendId)>,
    timers: Timers<SendId>,
    bytes: usize,
    responses: BTreeMap<Peer, Responses>,
    next: SendId,
}

/// Unfinished responses to one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Responses {
    pub(super) count: usize,
    pub(super) bytes: usize,
}

impl Sends {
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns the bytes of the MADs.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the unfinished responses to a peer, by its share.
    pub(super) fn responses_to(&self, share: Peer) -> Responses {
        self.responses.get(&share).copied().unwrap_or_default()
    }

    pub(super) fn insert(&mut self, pending: Pending) -> SendId {
        let id = self.next;
        self.next += 1;
        self.bytes += pending.body.len();
        if let Some(share) = pending.share {
            let to_peer = self.responses.entry(share).or_default();
            to_peer.count += 1;
            to_peer.bytes += pending.body.len();
        }
        self.transactions.insert((pending.transaction, id));
        self.pending.insert(id, pending);
        id
    }

    pub(super) fn remove(&mut self, id: SendId) -> Option<Pending> {
        let mut pending = self.pending.remove(&id)?;
        self.bytes -= pending.body.len();
        if let Some(share) = pending.share
            && let Some(to_peer) = self.responses.get_mut(&share)
        {
            to_peer.count -= 1;
            to_peer.bytes -= pending.body.len();
            if to_peer.count == 0 {
                self.responses.remove(&share);
            }
        }
        self.transactions.remove(&(pending.transaction, id));
        self.timers.clear(&mut pending.deadline, id);
        Some(pending)
    }

    pub(super) fn get_mut(&mut self, id: SendId) -> Option<&mut Pending> {
        self.pending.get_mut(&id)
    }

    /// Sets the timer of a send, replacing an earlier one.
    pub(super) fn wake_at(&mut self, id: SendId, at: Time) {
        if let Some(pending) = self.pending.get_mut(&id) {
            self.timers.set(&mut pending.deadline, id, at);
        }
    }

    /// Returns the sends with this class, direction and TID, to any peer.
    pub(super) fn with_tid(
        &self,
        class: u8,
        response: bool,
        tid: u64,
    ) -> impl Iterator<Item = (SendId, &Pending)> {
        let first = Transaction { class, response, tid, peer: Peer::FIRST };
        let same = move |t: &Transaction| (t.class, t.response, t.tid) == (class, response, tid);
        self.transactions
            .range((first, 0)..)
            .take_while(move |(t, _)| same(t))
            .filter_map(|&(_, id)| Some((id, self.pending.get(&id)?)))
    }

    /// Returns the sends of this transaction.
    pub(super) fn of(&self, transaction: Transaction) -> impl Iterator<Item = (SendId, &Pending)> {
        self.transactions
            .range((transaction, 0)..=(transaction, SendId::MAX))
            .filter_map(|&(_, id)| Some((id, self.pending.get(&id)?)))
    }

    /// Removes all sends of an agent.
    pub(super) fn remove_agent(&mut self, agent: super::AgentNumber) {
        let theirs = self.pending.iter().filter(|(_, p)| p.agent == agent);
        let ids: alloc::vec::Vec<_> = theirs.map(|(&id, _)| id).collect();
        for id in ids {
            self.remove(id);
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Returns a send whose timer has expired.
    pub(super) fn due(&self, now: Time) -> Option<SendId> {
        self.timers.due(now).next()
    }
}
