//! Address resolution and group membership of hosts on InfiniBand ports. The subnet loses, duplicates and delays datagrams,
//! and its administration is slow, refuses, and forgets.
//!
//! Invariants: an address never leads to a host that has not had it within the life of a cache entry. A waiter is notified
//! once and in time, and gets the address of an existing host if nothing was lost. A join request ends with one answer.
//! Administration gets one query about a group at a time. It has each port in the state that members want, and in no more if
//! it never refused. When all have left, nothing is left.

mod world;

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use rand::Rng;
use rdmux_transport::Time;

/// The parameters of a run, all drawn before the clock starts.
#[derive(Clone, Debug)]
pub struct IpoibScenario {
    /// The number of hosts.
    pub hosts: usize,
    /// The number of addresses, each of one host at a time.
    pub addresses: usize,
    /// The number of groups, besides new ones.
    pub groups: u8,
    /// The probability that a datagram is lost.
    pub loss: f64,
    /// The probability that a datagram is duplicated.
    pub duplicate: f64,
    /// The longest delay of a datagram.
    pub delay: Duration,
    /// How often programs resolve an address.
    pub lookups: u32,
    /// How often an address moves to another host, or to none.
    pub moves: u32,
    /// How often a host flushes its cache, as when its port changes.
    pub flushes: u32,
    /// How often a program joins or leaves a group.
    pub wishes: u32,
    /// The longest delay of administration.
    pub think: Duration,
    /// The probability that administration refuses a query.
    pub refuses: f64,
    /// The probability that administration does not answer, so that the query times out.
    pub silent: f64,
    /// How often administration forgets all memberships and asks ports to reregister.
    pub forgets: u32,
    /// The time span in which all of this happens.
    pub span: Duration,
}

impl IpoibScenario {
    /// Draws a scenario. In half of all scenarios nothing is lost.
    pub fn draw(rng: &mut impl Rng) -> Self {
        let bad = rng.random_bool(0.5);
        let chance = |p: f64| if bad { p } else { 0.0 };
        let few = |rng: &mut dyn rand::RngCore, most| {
            if rng.random_bool(0.5) { 0 } else { rng.random_range(0..=most) }
        };
        Self {
            hosts: rng.random_range(2..=5),
            addresses: rng.random_range(1..=6),
            groups: rng.random_range(1..=3),
            loss: chance(rng.random_range(0.0..0.4)),
            duplicate: chance(rng.random_range(0.0..0.3)),
            delay: Duration::from_micros(rng.random_range(10..90_000)),
            lookups: rng.random_range(1..=60),
            moves: few(rng, 6),
            flushes: few(rng, 4),
            wishes: rng.random_range(1..=60),
            think: Duration::from_millis(rng.random_range(1..500)),
            refuses: if rng.random_bool(0.5) { 0.0 } else { rng.random_range(0.0..0.3) },
            silent: chance(rng.random_range(0.0..0.3)),
            forgets: few(rng, 3),
            span: Duration::from_secs(rng.random_range(1..200)),
        }
    }
}

/// Statistics of a run without failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpoibStats {
    /// The number of runs.
    pub seeds: u64,
    /// Address resolutions.
    pub lookups: u64,
    /// Resolutions from the cache.
    pub known: u64,
    /// Resolutions that found a host.
    pub found: u64,
    /// Resolutions without an answer.
    pub failed: u64,
    /// Outdated addresses from the cache.
    pub stale: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams lost.
    pub lost: u64,
    /// Datagrams duplicated.
    pub duplicated: u64,
    /// Join requests granted.
    pub granted: u64,
    /// Join requests refused.
    pub refused: u64,
    /// Memberships that administration forgot.
    pub forgotten: u64,
    /// Queries to administration.
    pub questions: u64,
    /// The virtual time of the run.
    pub virtual_time: Duration,
    /// A fingerprint that differs when anything is sent at another time.
    pub fingerprint: u64,
}

impl AddAssign for IpoibStats {
    fn add_assign(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.lookups += other.lookups;
        self.known += other.known;
        self.found += other.found;
        self.failed += other.failed;
        self.stale += other.stale;
        self.sent += other.sent;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.granted += other.granted;
        self.refused += other.refused;
        self.forgotten += other.forgotten;
        self.questions += other.questions;
        self.virtual_time += other.virtual_time;
        // Independent of the order of the runs.
        self.fingerprint ^= other.fingerprint;
    }
}

impl fmt::Display for IpoibStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} seeds, {:.1} s on their clocks: {} addresses looked for, {} known, {} found, {} not found, {} known where they had been; {} datagrams, {} lost, {} duplicated",
            self.seeds,
            self.virtual_time.as_secs_f64(),
            self.lookups,
            self.known,
            self.found,
            self.failed,
            self.stale,
            self.sent,
            self.lost,
            self.duplicated
        )?;
        write!(
            f,
            "{} questions about groups, {} wishes granted, {} refused, {} memberships forgotten; fingerprint {:016x}",
            self.questions, self.granted, self.refused, self.forgotten, self.fingerprint
        )
    }
}

/// A failed run.
#[derive(Clone, Debug)]
pub struct IpoibFailure {
    /// The seed of the run.
    pub seed: u64,
    /// The virtual time of the failure.
    pub at: Time,
    /// The invariant that was violated, in words.
    pub what: String,
    /// The scenario of the seed.
    pub scenario: IpoibScenario,
}

impl fmt::Display for IpoibFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, at, what, scenario } = self;
        writeln!(f, "seed {seed} fails at {} ns: {what}", at.0)?;
        let replay = "cargo run --release -p rdmux-sim -- --ipoib --trace --seed";
        write!(f, "replay it: {replay} {seed}\n{scenario:#?}")
    }
}

impl std::error::Error for IpoibFailure {}

/// Runs the simulation of a seed.
///
/// # Errors
/// The first failure. The same seed fails in the same way.
pub fn run_ipoib_seed(seed: u64) -> Result<IpoibStats, Box<IpoibFailure>> {
    world::World::new(seed, false).run(seed)
}

/// Runs the simulation of a seed and logs its events to standard error.
///
/// # Errors
/// As [`run_ipoib_seed`].
pub fn trace_ipoib_seed(seed: u64) -> Result<IpoibStats, Box<IpoibFailure>> {
    world::World::new(seed, true).run(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipoib_simulation_of_400_seeds_finds_no_violation() {
        let mut all = IpoibStats::default();
        for seed in 0..400 {
            match run_ipoib_seed(seed) {
                Ok(stats) => all += stats,
                Err(failure) => panic!("{failure}"),
            }
        }
        // The seeds reach the cases that they are meant for.
        assert!(all.known > 500 && all.found > 500 && all.failed > 100, "{all:?}");
        assert!(all.stale > 20 && all.lost > 500 && all.granted > 1000, "{all:?}");
        assert!(all.duplicated > 200, "{all:?}");
        assert!(all.refused > 200 && all.forgotten > 50 && all.questions > 2000, "{all:?}");
    }

    #[test]
    fn ipoib_simulation_is_deterministic_for_a_seed() {
        for seed in 0..10 {
            assert_eq!(run_ipoib_seed(seed).unwrap(), run_ipoib_seed(seed).unwrap());
        }
    }
}
