//! Which pairs of processes of two hosts have rings, without I/O.
//!
//! The two services of a pair must come to the same answer, whoever asks first, whatever is lost and whoever stops. So one
//! of them *offers* rings, the other *takes* them, and the offerer *commits*: only then has either process rings. A commit
//! either is in the other's queue or fails, which the kernel decides, so both know. An answer is for as long as the process
//! lives that it was given to: who was told that there are no rings sends over UDP, and would not look into a ring.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use rdmux_cm::Time;

/// How long the other service may take for a step. A process waits for it, once for each peer at most.
const ANSWER: Duration = Duration::from_secs(1);
/// For how long a service that has not answered is not asked again.
const SULK: Duration = Duration::from_secs(5);
/// Numbers of processes of other hosts begin here: no slot is as high.
const FIRST_NUMBER: u16 = 2048;
/// The most pairs of one process. Each holds some descriptors.
const MAX_PAIRS: usize = 1024;
/// The most answers that are kept for one process, those for whole hosts included.
const MAX_ANSWERS: usize = 4096;

/// A pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PairId(pub(crate) u64);

/// A process of this host, by its first slot, and a slot of a process of another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ends {
    pub(crate) local: u16,
    /// Where the other host takes packets.
    pub(crate) host: SocketAddr,
    pub(crate) slot: u16,
}

/// How far a pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// This service has offered it.
    Offered { until: Time },
    /// This service has taken it, and waits for the commit.
    Taken { until: Time },
    /// Both processes have it.
    Up,
}

/// A pair, with what it is made of.
#[derive(Debug)]
pub(crate) struct Pair<L> {
    pub(crate) ends: Ends,
    /// By which number the local process knows the other one, and is known to it.
    pub(crate) number: u16,
    pub(crate) known_as: u16,
    /// Who the other process is, by a number that no other has.
    process: Option<u64>,
    state: State,
    /// How many requests of the local process wait for the outcome.
    pub(crate) waiting: u32,
    pub(crate) link: L,
}

/// What there is to say to a process that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It has rings.
    Up(PairId),
    /// It is told when that is known.
    Wait(PairId),
    /// There are none.
    No,
    /// Nobody knows yet: an offer is to be made.
    New,
}

/// What there is to say to another service that offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    /// The processes have rings already.
    Known,
    /// There will be none.
    No,
    /// Our own offer goes first: ask again when this is decided.
    Hold(PairId),
    /// It is taken. If there is one, this pair's offer of ours is withdrawn, and who waits for it waits for the new one.
    Take { instead: Option<PairId> },
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Pair(PairId),
    None,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Pairs<L> {
    pairs: BTreeMap<PairId, Pair<L>>,
    answers: BTreeMap<Ends, Answer>,
    /// Between these processes and hosts there is nothing new, since nobody knows what the other service thinks.
    given_up: BTreeSet<(u16, SocketAddr)>,
    /// For these processes there is nothing new at all: they have as many answers as are kept.
    full: BTreeSet<u16>,
    /// Services that have not answered, and until when they are not asked.
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

    /// The pair of which this is so.
    pub(crate) fn find(&self, is_it: impl Fn(&Pair<L>) -> bool) -> Option<PairId> {
        self.pairs.iter().find(|(_, pair)| is_it(pair)).map(|(id, _)| *id)
    }

    /// A local process asks for rings.
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

    /// Whether there may be a pair for which there is no answer yet. If not, there never may: so also if the other service
    /// sulks now.
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

    /// An offer of ours is about to leave; the process that asked waits. Returns its number.
    pub(crate) fn offer(&mut self, now: Time, ends: Ends, link: L) -> Option<(PairId, u16)> {
        let until = now.after(ANSWER);
        let (id, number) = self.add(ends, State::Offered { until }, link)?;
        if let Some(pair) = self.pairs.get_mut(&id) {
            pair.waiting = 1;
        }
        Some((id, number))
    }

    /// Another service offers rings between a process of its host and one of ours. `process` is who the former is, `first`
    /// whether our address is the lower one, so that of two offers that cross ours goes first.
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
                // An earlier process of that slot: the end of its pair has not been heard of yet.
                _ => Offered::No,
            };
        }
        if self.may_be_new(ends, false) { Offered::Take { instead: None } } else { Offered::No }
    }

    /// Takes an offer, in which the local process is `known_as`.
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
        // The one that was free the longest: a process may still remember who had it before.
        let next = |number: u16| number.checked_add(1).unwrap_or(FIRST_NUMBER);
        let first = self.next_number;
        let all = std::iter::successors(Some(first), |n| Some(next(*n)).filter(|n| *n != first));
        let number = all.into_iter().find(|number| !taken.contains(number))?;
        self.next_number = next(number);
        Some(number)
    }

    /// Our offer is taken by a process whose first slot this is, which knows the local one by a number. Both have it from
    /// now on; if the commit cannot leave, [`give_up`](Self::give_up) says so.
    pub(crate) fn taken(&mut self, id: PairId, slot: u16, known_as: u16) -> Option<&mut Pair<L>> {
        let pair = self.pairs.get_mut(&id).filter(|p| matches!(p.state, State::Offered { .. }))?;
        self.answers.insert(Ends { slot, ..pair.ends }, Answer::Pair(id));
        (pair.state, pair.known_as) = (State::Up, known_as);
        Some(pair)
    }

    /// The commit has come.
    pub(crate) fn committed(&mut self, id: PairId) -> Option<&mut Pair<L>> {
        let pair = self.pairs.get_mut(&id).filter(|p| matches!(p.state, State::Taken { .. }))?;
        pair.state = State::Up;
        Some(pair)
    }

    /// Our offer was for a process with which there are rings already, whose first slot this is. Returns the pair that is
    /// no more. Who waited for it waits for the other one, if that is not up yet, or has it; its number comes along.
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

    /// The other service does not want a pair.
    pub(crate) fn refused(&mut self, id: PairId) -> Option<Pair<L>> {
        let pair = self.pairs.remove(&id)?;
        self.forget(id);
        self.answers.insert(pair.ends, Answer::None);
        Some(pair)
    }

    /// There are no rings between these, since none can be offered.
    pub(crate) fn refuse(&mut self, ends: Ends) {
        self.answers.insert(ends, Answer::None);
    }

    /// Nobody knows what the other service thinks of a pair that is not up: there will be none.
    pub(crate) fn give_up(&mut self, id: PairId) -> Option<Pair<L>> {
        let pair = self.pairs.remove(&id)?;
        self.forget(id);
        self.given_up.insert((pair.ends.local, pair.ends.host));
        Some(pair)
    }

    /// Replaces an offer of ours by that of the other, which is taken: who waited for it waits on.
    pub(crate) fn withdraw(&mut self, id: PairId) -> Option<Pair<L>> {
        let pair = self.pairs.remove(&id)?;
        self.forget(id);
        Some(pair)
    }

    /// The process at the other end of a pair, or its service, is gone. Whether the pair was up.
    pub(crate) fn gone(&mut self, id: PairId) -> Option<(Pair<L>, bool)> {
        if self.pairs.get(&id)?.state == State::Up {
            let pair = self.pairs.remove(&id)?;
            self.forget(id);
            return Some((pair, true));
        }
        self.give_up(id).map(|pair| (pair, false))
    }

    /// A local process is gone. Returns its pairs.
    pub(crate) fn local_gone(&mut self, local: u16) -> Vec<(PairId, Pair<L>)> {
        self.answers.retain(|ends, _| ends.local != local);
        self.given_up.retain(|(l, _)| *l != local);
        self.full.remove(&local);
        self.pairs.extract_if(.., |_, pair| pair.ends.local == local).collect()
    }

    fn forget(&mut self, id: PairId) {
        self.answers.retain(|_, answer| !matches!(answer, Answer::Pair(other) if *other == id));
    }

    /// When something is due.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        self.pairs.values().filter_map(Pair::until).min()
    }

    /// A pair whose other service has not answered in time, and whether it is ours that was offered.
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
