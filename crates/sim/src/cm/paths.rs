//! Drivers that answer path queries: at once, late, too late, with an error, or never.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rdmux_cm::error::errno;
use rdmux_cm::{Event, EventKind, IdHandle, Path, PathQuery};

use super::world::{Happening, Key, World};
use crate::net::NodeId;

/// The timeout of programs' path queries.
pub(super) const TIMEOUT: Duration = Duration::from_millis(100);

/// The fate of path queries, as probabilities. All others are answered at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathOdds {
    /// Answered late, though not always too late.
    pub late: f64,
    /// Answered with an error, possibly late.
    pub failing: f64,
    /// The probability that a query is not answered.
    pub silent: f64,
}

impl PathOdds {
    /// Draws probabilities. In half of all scenarios drivers answer at once, as for RoCE and iWARP.
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
    /// A separate generator, so that the rest of a seed does not depend on paths.
    rng: ChaCha8Rng,
    pub(super) odds: PathOdds,
    /// Queries neither answered nor cancelled.
    open: BTreeSet<(Key, u32)>,
    /// The expected status of each id's latest query.
    expected: BTreeMap<Key, i32>,
}

impl Paths {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ u64::from_be_bytes(*b"pathodds"));
        let odds = PathOdds::draw(&mut rng);
        Self { rng, odds, open: BTreeSet::new(), expected: BTreeMap::new() }
    }

    /// Returns the number of a node's open queries.
    pub(super) fn open_at(&self, node: NodeId) -> usize {
        self.open.iter().filter(|(key, _)| key.0 == node).count()
    }

    /// Forgets the queries of a restarted node.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.open.retain(|(key, _)| key.0 != node);
    }

    /// Returns the answer to a query and its delay; none if there is no answer.
    fn fate(&mut self, query: &PathQuery) -> Option<(Duration, Result<Path, i32>)> {
        let PathOdds { late, failing, silent } = self.odds;
        let at_once = Some((Duration::ZERO, Ok(query.by_address)));
        if self.odds.late + failing + silent == 0.0 {
            return at_once;
        }
        let draw: f64 = self.rng.random();
        let late_by = (3 * TIMEOUT).mul_f64(self.rng.random());
        // An answer exactly at the timeout would race with the timer.
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

    /// Checks that an id gets the driver's answer, or a timeout if there was none in time.
    pub(super) fn check(&mut self, key: Key, event: &Event) -> Result<(), String> {
        match self.expected.remove(&key) {
            Some(status) if status == event.status => Ok(()),
            other => Err(format!("{key:?}: {} {}, not {other:?}", event.kind, event.status)),
        }
    }
}

impl World {
    /// Handles a query to a driver.
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

    /// Delivers a driver's answer, which may arrive after the query ended.
    pub(super) fn answers_path(&mut self, to: Key, attempt: u32, answer: Result<Path, i32>) {
        let (at, life, id) = to;
        let now = self.agenda.now();
        let node = &mut self.nodes[at];
        if node.life == life {
            self.paths.open.remove(&(to, attempt));
            node.cm.handle_path(now, id, attempt, answer, &mut node.out);
        }
    }

    /// Cancels a query.
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

    /// Handles a failed query: the program tries again, or gives up.
    pub(super) fn lacks_path(&mut self, key: Key, event: &Event) -> Result<(), String> {
        debug_assert_eq!(event.kind, EventKind::RouteError);
        self.stats.unrouted += 1;
        if self.paths.rng.random_bool(0.7) {
            return self.resolve_route(key.0, key.2);
        }
        Ok(())
    }
}
