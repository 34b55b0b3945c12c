//! Decides which pairs of processes of two hosts have rings, without I/O.
//!
//! The two services of a pair must reach the same decision, regardless of which requests first and what is lost or hangs.
//! So one of them *offers* rings, the other *takes* them, and the offerer *commits*: only then may either process use
//! them. A commit is either in the other service's queue or fails, and the kernel reports which, so both know. A decision
//! holds for the lifetime of the process that was notified of it: a process that was denied rings sends over UDP, and
//! would not look into a ring.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use rdmux_cm::Time;

/// Time that the other service may take for a step. A process waits for it at most once for each peer.
const ANSWER: Duration = Duration::from_secs(1);
/// Time for which a service that did not answer gets no further requests.
const SULK: Duration = Duration::from_secs(5);
/// The first number of processes of other hosts. No slot is as high.
const FIRST_NUMBER: u16 = 2048;
/// Maximum number of pairs of one process. Each holds some descriptors.
const MAX_PAIRS: usize = 1024;
/// Maximum number of decisions that are kept for one process, including those for whole hosts.
const MAX_ANSWERS: usize = 4096;

/// The id of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PairId(pub(crate) u64);

/// The ends of a pair: a process of this host, by its first slot, and a slot of a process of another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ends {
    /// The first slot of the process of this host.
    pub(crate) local: u16,
    /// The address at which the other host receives packets.
    pub(crate) host: SocketAddr,
    /// A slot of the process of the other host.
    pub(crate) slot: u16,
}

/// The state of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// This service has offered the pair, and waits for the answer.
    Offered { until: Time },
    /// This service has taken the pair, and waits for the commit.
    Taken { until: Time },
    /// Both processes have the rings.
    Up,
}

/// A pair, with its link.
#[derive(Debug)]
pub(crate) struct Pair<L> {
    /// The two processes.
    pub(crate) ends: Ends,
    /// The number by which the local process knows the other one. `known_as` is the number by which the other knows the
    /// local one.
    pub(crate) number: u16,
    pub(crate) known_as: u16,
    /// The unique number of the other process.
    process: Option<u64>,
    state: State,
    /// The number of requests of the local process that wait for the decision.
    pub(crate) waiting: u32,
    /// The connection to the other service.
    pub(crate) link: L,
}

/// The answer to a process that requests rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The process has rings.
    Up(PairId),
    /// The process gets the answer when the decision is made.
    Wait(PairId),
    /// The process gets no rings.
    No,
    /// Nothing is decided: an offer must be made.
    New,
}

/// The answer to another service's offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    /// The processes have rings already.
    Known,
    /// The offerer gets no rings.
    No,
    /// This service's own offer takes precedence: the other must request again after its decision.
    Hold(PairId),
    /// The offer is taken. `instead`: the pair that this service offered is withdrawn, and requests that wait for it wait
    /// for the new one.
    Take { instead: Option<PairId> },
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Pair(PairId),
    None,
}

/// All pairs of a service, with the decisions that were made.
#[derive(Debug)]
pub(crate) struct Pairs<L> {
    pairs: BTreeMap<PairId, Pair<L>>,
    answers: BTreeMap<Ends, Answer>,
    /// Processes and hosts that get no new pair, because the other service's decision is unknown.
    given_up: BTreeSet<(u16, SocketAddr)>,
    /// Processes with no new pairs at all, because they have the most decisions that are kept.
    full: BTreeSet<u16>,
    /// Services that did not answer, and the times until which they get no requests.
    sulking: BTreeMap<SocketAddr, Time>,
    next_id: u64,
    next_number: u16,
}

impl<L> Default for Pairs<L> {
    fn default() -> Self {
        Self {
            pairs: BTreeMap::new(),
            answers: BTreeMap::new(),
            given_up: BTreeSet::new(),
            full: BTreeSet::new(),
            sulking: BTreeMap::new(),
            next_id: 1,
            next_number: FIRST_NUMBER,
        }
    }
}

impl<L> Pairs<L> {
    pub(crate) fn len(&self) -> usize {
        self.pairs.len()
    }

    pub(crate) fn get(&self, id: PairId) -> Option<&Pair<L>> {
        self.pairs.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: PairId) -> Option<&mut Pair<L>> {
        self.pairs.get_mut(&id)
    }

    /// Finds a pair by a condition.
    pub(crate) fn find(&self, is_it: impl Fn(&Pair<L>) -> bool) -> Option<PairId> {
        self.pairs.iter().find(|(_, pair)| is_it(pair)).map(|(id, _)| *id)
    }

    /// Handles a local process's request for rings.
    pub(crate) fn ask(&mut self, now: Time, ends: Ends) -> Asked {
        match self.answers.get(&ends) {
            Some(Answer::None) => return Asked::No,
            Some(&Answer::Pair(id)) => {
                let Some(pair) = self.pairs.get_mut(&id) else { return Asked::No };
                if pair.state == State::Up {
                    return Asked::Up(id);
                }
                pair.waiting = pair.waiting.saturating_add(1);
                return Asked::Wait(id);
            }
            None => {}
        }
        let sulks = self.sulking.get(&ends.host).is_some_and(|until| *until > now);
        if self.may_be_new(ends, sulks) { Asked::New } else { Asked::No }
    }

    /// Returns whether a pair may be made if nothing is decided yet. A refusal is final, even if its only reason is that
    /// the other service is backed off from now.
    fn may_be_new(&mut self, ends: Ends, sulks: bool) -> bool {
        let Ends { local, host, .. } = ends;
        if self.full.contains(&local) || self.given_up.contains(&(local, host)) {
            return false;
        }
        let answers = self.answers.keys().filter(|ends| ends.local == local).count();
        let given_up = self.given_up.iter().filter(|(l, _)| *l == local).count();
        if answers + given_up >= MAX_ANSWERS {
            self.full.insert(local);
            self.given_up.retain(|(l, _)| *l != local);
            return false;
        }
        let pairs = self.pairs.values().filter(|pair| pair.ends.local == local).count();
        let may = !sulks && pairs < MAX_PAIRS;
        if !may {
            self.given_up.insert((local, host));
        }
        may
    }

    /// Records an offer that is about to be sent, and that a process waits for. Returns the pair and its number.
    pub(crate) fn offer(&mut self, now: Time, ends: Ends, link: L) -> Option<(PairId, u16)> {
        let until = now.after(ANSWER);
        let (id, number) = self.add(ends, State::Offered { until }, link)?;
        if let Some(pair) = self.pairs.get_mut(&id) {
            pair.waiting = 1;
        }
        Some((id, number))
    }

    /// Handles another service's offer of rings between a process of its host and one of this host. `process` is the
    /// number of the former. `first` is set if this host has the lower address, so that its offer takes precedence if two
    /// cross.
    pub(crate) fn offered(&mut self, ends: Ends, process: u64, first: bool) -> Offered {
        if let Some(answer) = self.answers.get(&ends) {
            let &Answer::Pair(id) = answer else { return Offered::No };
            return match self.pairs.get(&id) {
                Some(pair) if matches!(pair.state, State::Offered { .. }) => {
                    if first {
                        Offered::Hold(id)
                    } else {
                        Offered::Take { instead: Some(id) }
                    }
                }
                Some(pair) if pair.process == Some(process) && pair.state == State::Up => {
                    Offered::Known
                }
                // The slot's earlier process: the end of its pair was not reported yet.
                _ => Offered::No,
            };
        }
        if self.may_be_new(ends, false) { Offered::Take { instead: None } } else { Offered::No }
    }

    /// Takes an offer. `known_as` is the number of the local process in it.
    pub(crate) fn take(
        &mut self,
        now: Time,
        ends: Ends,
        (process, known_as): (u64, u16),
        link: L,
    ) -> Option<(PairId, u16)> {
        let until = now.after(ANSWER);
        let (id, number) = self.add(ends, State::Taken { until }, link)?;
        if let Some(pair) = self.pairs.get_mut(&id) {
            (pair.process, pair.known_as) = (Some(process), known_as);
        }
        Some((id, number))
    }

    fn add(&mut self, ends: Ends, state: State, link: L) -> Option<(PairId, u16)> {
        let number = self.free_number()?;
        let id = PairId(self.next_id);
        self.next_id += 1;
        let (process, known_as, waiting) = (None, 0, 0);
        self.pairs.insert(id, Pair { ends, number, known_as, process, state, waiting, link });
        self.answers.insert(ends, Answer::Pair(id));
        Some((id, number))
    }

    fn free_number(&mut self) -> Option<u16> {
        let taken: BTreeSet<_> = self.pairs.values().map(|pair| pair.number).collect();
        // The number that was free the longest: a process may still remember its earlier owner.
        let next = |number: u16| number.checked_add(1).unwrap_or(FIRST_NUMBER);
        let first = self.next_number;
        let all = std::iter::successors(Some(first), |n| Some(next(*n)).filter(|n| *n != first));
        let number = all.into_iter().find(|number| !taken.contains(number))?;
        self.next_number = next(number);
        Some(number)
    }

    /// Records that this service's offer was taken, by a process with this first slot, which knows the local one by
    /// `known_as`. Both have the rings from now on. If the commit cannot be sent, [`give_up`](Self::give_up) must be
    /// called.
    pub(crate) fn taken(&mut self, id: PairId, slot: u16, known_as: u16) -> Option<&mut Pair<L>> {
        let pair = self.pairs.get_mut(&id).filter(|p| matches!(p.state, State::Offered { .. }))?;
        self.answers.insert(Ends { slot, ..pair.ends }, Answer::Pair(id));
        (pair.state, pair.known_as) = (State::Up, known_as);
        Some(pair)
    }

    /// Records that the commit has arrived.
    pub(crate) fn committed(&mut self, id: PairId) -> Option<&mut Pair<L>> {
        let pair = self.pairs.get_mut(&id).filter(|p| matches!(p.state, State::Taken { .. }))?;
        pair.state = State::Up;
        Some(pair)
    }

    /// Handles the answer that the local process already has rings to the process with this first slot. Returns the
    /// withdrawn pair, and the existing one's id. Requests for the former then wait for the latter, if that is not up
    /// yet.
    pub(crate) fn known(&mut self, id: PairId, slot: u16) -> Option<(Pair<L>, Option<PairId>)> {
        let pair = self.withdraw(id)?;
        let other = match self.answers.get(&Ends { slot, ..pair.ends }) {
            Some(&Answer::Pair(other)) => self.pairs.get_mut(&other).map(|there| (other, there)),
            _ => None,
        };
        let Some((other, there)) = other else {
            self.answers.insert(pair.ends, Answer::None);
            return Some((pair, None));
        };
        if there.state != State::Up {
            there.waiting = there.waiting.saturating_add(pair.waiting);
        }
        self.answers.insert(pair.ends, Answer::Pair(other));
        Some((pair, Some(other)))
    }

    /// Records that the other service refused a pair.
    pub(crate) fn refused(&mut self, id: PairId) -> Option<Pair<L>> {
        let pair = self.pairs.remove(&id)?;
        self.forget(id);
        self.answers.insert(pair.ends, Answer::None);
        Some(pair)
    }

    /// Records that these processes get no rings, because none can be offered.
    pub(crate) fn refuse(&mut self, ends: Ends) {
        self.answers.insert(ends, Answer::None);
    }

    /// Gives up a pair that is not up, because the other service's decision is unknown.
    pub(crate) fn give_up(&mut self, id: PairId) -> Option<Pair<L>> {
        let pair = self.pairs.remove(&id)?;
        self.forget(id);
        self.given_up.insert((pair.ends.local, pair.ends.host));
        Some(pair)
    }

    /// Withdraws this service's offer in favour of another pair. Its requests keep waiting.
    pub(crate) fn withdraw(&mut self, id: PairId) -> Option<Pair<L>> {
        let pair = self.pairs.remove(&id)?;
        self.forget(id);
        Some(pair)
    }

    /// Handles the death of the other process of a pair, or the end of its service. Returns the pair and whether it was
    /// up.
    pub(crate) fn gone(&mut self, id: PairId) -> Option<(Pair<L>, bool)> {
        if self.pairs.get(&id)?.state == State::Up {
            let pair = self.pairs.remove(&id)?;
            self.forget(id);
            return Some((pair, true));
        }
        self.give_up(id).map(|pair| (pair, false))
    }

    /// Handles the death of a local process. Returns its pairs.
    pub(crate) fn local_gone(&mut self, local: u16) -> Vec<(PairId, Pair<L>)> {
        self.answers.retain(|ends, _| ends.local != local);
        self.given_up.retain(|(l, _)| *l != local);
        self.full.remove(&local);
        self.pairs.extract_if(.., |_, pair| pair.ends.local == local).collect()
    }

    fn forget(&mut self, id: PairId) {
        self.answers.retain(|_, answer| !matches!(answer, Answer::Pair(other) if *other == id));
    }

    /// Returns the earliest deadline.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.pairs.values().filter_map(Pair::until).min()
    }

    /// Returns a pair whose other service did not answer in time, and whether it is this service's offer.
    pub(crate) fn expired(&mut self, now: Time) -> Option<(PairId, bool)> {
        self.sulking.retain(|_, until| *until > now);
        let late = |(_, pair): &(&PairId, &Pair<L>)| pair.until().is_some_and(|until| until <= now);
        let (&id, pair) = self.pairs.iter().find(late)?;
        let ours = matches!(pair.state, State::Offered { .. });
        if ours {
            self.sulking.insert(pair.ends.host, now.after(SULK));
        }
        Some((id, ours))
    }
}

impl<L> Pair<L> {
    pub(crate) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    fn until(&self) -> Option<Time> {
        match self.state {
            State::Offered { until } | State::Taken { until } => Some(until),
            State::Up => None,
        }
    }
}

#[cfg(test)]
mod tests;
