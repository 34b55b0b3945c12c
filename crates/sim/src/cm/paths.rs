//! Drivers that are asked for paths: they answer at once, late, too late, with a failure, or never.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rdmux_cm::error::errno;
use rdmux_cm::{Event, EventKind, IdHandle, Path, PathQuery};

use super::world::{Happening, Key, World};
use crate::net::NodeId;

/// The time in which programs want their path.
pub(super) const TIMEOUT: Duration = Duration::from_millis(100);

/// What becomes of path queries: each in so many out of one. All others are answered at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathOdds {
    /// Answered late, though not always too late.
    pub late: f64,
    /// Answered with a failure, late too.
    pub failing: f64,
    /// Not answered.
    pub silent: f64,
}

impl PathOdds {
    /// Draws some. Half of all scenarios have drivers that answer at once, as for RoCE and iWARP.
    pub fn draw(rng: &mut impl Rng) -> Self {
        if rng.random_bool(0.5) {
            return Self::default();
        }
        let mut odds = || rng.random_range(0.0..0.3);
        Self { late: odds(), failing: odds(), silent: odds() }
    }
}

/// The path queries of all nodes.
pub(super) struct Paths {
    /// Of its own, so that what else a seed means does not depend on paths.
    rng: ChaCha8Rng,
    pub(super) odds: PathOdds,
    /// Neither answered nor taken back.
    open: BTreeSet<(Key, u32)>,
    /// What each id must hear of its latest query.
    expected: BTreeMap<Key, i32>,
}

impl Paths {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ u64::from_be_bytes(*b"pathodds"));
        let odds = PathOdds::draw(&mut rng);
        Self { rng, odds, open: BTreeSet::new(), expected: BTreeMap::new() }
    }

    /// How many queries of a node are open.
    pub(super) fn open_at(&self, node: NodeId) -> usize {
        self.open.iter().filter(|(key, _)| key.0 == node).count()
    }

    /// A node starts anew: its driver does, too.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.open.retain(|(key, _)| key.0 != node);
    }

    /// What a query is answered with, and when; none if never.
    fn fate(&mut self, query: &PathQuery) -> Option<(Duration, Result<Path, i32>)> {
        let PathOdds { late, failing, silent } = self.odds;
        let at_once = Some((Duration::ZERO, Ok(query.by_address)));
        if self.odds.late + failing + silent == 0.0 {
            return at_once;
        }
        let draw: f64 = self.rng.random();
        let late_by = (3 * TIMEOUT).mul_f64(self.rng.random());
        // Exactly in time would be a tie with the timer.
        let late_by = if late_by == TIMEOUT { Duration::ZERO } else { late_by };
        if draw < late {
            Some((late_by, Ok(query.by_address)))
        } else if draw < late + failing {
            let errno = if self.rng.random() { errno::EHOSTUNREACH } else { errno::EINVAL };
            Some((late_by, Err(errno)))
        } else if draw < late + failing + silent {
            None
        } else {
            at_once
        }
    }

    /// Whether what an id hears of its path is what the driver said, or did not say in time.
    pub(super) fn check(&mut self, key: Key, event: &Event) -> Result<(), String> {
        match self.expected.remove(&key) {
            Some(status) if status == event.status => Ok(()),
            other => Err(format!("{key:?}: {} {}, not {other:?}", event.kind, event.status)),
        }
    }
}

impl World {
    /// A driver is asked.
    pub(super) fn asks_path(&mut self, at: NodeId, id: IdHandle, query: &PathQuery) {
        let key = (at, self.nodes[at].life, id);
        let fate = self.paths.fate(query);
        let status = match &fate {
            Some((after, answer)) if *after < query.timeout => answer.map_or_else(|e| -e, |_| 0),
            _ => -errno::ETIMEDOUT,
        };
        self.trace(format_args!("{key:?} asks for a path, will hear {status}"));
        self.paths.open.insert((key, query.attempt));
        self.paths.expected.insert(key, status);
        match fate {
            Some((after, answer)) if after.is_zero() => {
                self.answers_path(key, query.attempt, answer)
            }
            Some((after, answer)) => {
                self.agenda
                    .after(after, Happening::Path { to: key, attempt: query.attempt, answer });
            }
            None => {}
        }
    }

    /// A driver answers; perhaps nobody wants to know any more.
    pub(super) fn answers_path(&mut self, to: Key, attempt: u32, answer: Result<Path, i32>) {
        let (at, life, id) = to;
        let now = self.agenda.now();
        let node = &mut self.nodes[at];
        if node.life == life {
            self.paths.open.remove(&(to, attempt));
            node.cm.handle_path(now, id, attempt, answer, &mut node.out);
        }
    }

    /// A query is taken back.
    pub(super) fn cancels_path(
        &mut self,
        at: NodeId,
        id: IdHandle,
        attempt: u32,
    ) -> Result<(), String> {
        let key = (at, self.nodes[at].life, id);
        if self.paths.open.remove(&(key, attempt)) {
            return Ok(());
        }
        Err(format!("{key:?} takes path query {attempt} back, which is not open"))
    }

    /// There is no path, or nobody said so: a program tries again, or leaves it.
    pub(super) fn lacks_path(&mut self, key: Key, event: &Event) -> Result<(), String> {
        debug_assert_eq!(event.kind, EventKind::RouteError);
        self.stats.unrouted += 1;
        if self.paths.rng.random_bool(0.7) {
            return self.resolve_route(key.0, key.2);
        }
        Ok(())
    }
}
