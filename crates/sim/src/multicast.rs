//! Ids of connection managers that join groups of an InfiniBand subnet. Datagrams are lost and duplicated, and administration
//! is slow, refuses, does not answer, and forgets.
//!
//! Invariants: a join request ends in one event, unless it is cancelled before, and a joined group is lost at most once. A
//! group's parameters are those that administration has returned, and are known only while it is joined. A record and its
//! components reach administration unchanged. An id that got the event of its membership is a member: a datagram to its group
//! arrives unless the network loses it, once unless the network duplicates it, and never at an id that has left or only
//! sends. When all have left, nothing is left.

mod world;

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use rand::Rng;
use rdmux_transport::Time;

/// The parameters of a run, all drawn before the clock starts.
#[derive(Clone, Debug)]
pub struct MulticastScenario {
    /// The number of hosts.
    pub hosts: usize,
    /// The number of ids per host.
    pub ids: usize,
    /// The number of named groups.
    pub groups: u8,
    /// The probability that a datagram is lost.
    pub loss: f64,
    /// The probability that a datagram is duplicated.
    pub duplicate: f64,
    /// The longest delay of a datagram.
    pub delay: Duration,
    /// How often an id joins or leaves a group.
    pub wishes: u32,
    /// How often an id sends to a group.
    pub sends: u32,
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

impl MulticastScenario {
    /// Draws a scenario. In half of all scenarios nothing is lost.
    pub fn draw(rng: &mut impl Rng) -> Self {
        let bad = rng.random_bool(0.5);
        let chance = |p: f64| if bad { p } else { 0.0 };
        Self {
            hosts: rng.random_range(1..=4),
            ids: rng.random_range(1..=3),
            groups: rng.random_range(1..=4),
            loss: chance(rng.random_range(0.0..0.4)),
            duplicate: chance(rng.random_range(0.0..0.3)),
            delay: Duration::from_micros(rng.random_range(1..2_000_000)),
            wishes: rng.random_range(1..=80),
            sends: rng.random_range(1..=80),
            think: Duration::from_millis(rng.random_range(1..2000)),
            refuses: if rng.random_bool(0.5) { 0.0 } else { rng.random_range(0.0..0.3) },
            silent: chance(rng.random_range(0.0..0.3)),
            forgets: if rng.random_bool(0.5) { 0 } else { rng.random_range(0..=3) },
            span: Duration::from_secs(rng.random_range(1..100)),
        }
    }
}

/// Statistics of a run without failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MulticastStats {
    /// The number of runs.
    pub seeds: u64,
    /// Groups joined.
    pub joined: u64,
    /// Failed joins.
    pub failed: u64,
    /// Groups lost.
    pub lost_groups: u64,
    /// Groups with a GID assigned by administration.
    pub assigned: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams that could not be sent because the id was no member.
    pub unsent: u64,
    /// Datagrams received.
    pub received: u64,
    /// Datagrams lost.
    pub lost: u64,
    /// Datagrams duplicated.
    pub duplicated: u64,
    /// The virtual time of the run.
    pub virtual_time: Duration,
    /// A fingerprint that differs when anything is reported at another time.
    pub fingerprint: u64,
}

impl AddAssign for MulticastStats {
    fn add_assign(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.joined += other.joined;
        self.failed += other.failed;
        self.lost_groups += other.lost_groups;
        self.assigned += other.assigned;
        self.sent += other.sent;
        self.unsent += other.unsent;
        self.received += other.received;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.virtual_time += other.virtual_time;
        // Independent of the order of the runs.
        self.fingerprint ^= other.fingerprint;
    }
}

impl fmt::Display for MulticastStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds, {:.1} s on their clocks: {} groups joined ({} with a GID assigned), {} not, {} lost; {} datagrams sent, {} refused, {} received, {} lost, {} duplicated; fingerprint {:016x}",
            self.seeds,
            self.virtual_time.as_secs_f64(),
            self.joined,
            self.assigned,
            self.failed,
            self.lost_groups,
            self.sent,
            self.unsent,
            self.received,
            self.lost,
            self.duplicated,
            self.fingerprint
        )
    }
}

/// A failed run.
#[derive(Clone, Debug)]
pub struct MulticastFailure {
    /// The seed of the run.
    pub seed: u64,
    /// The virtual time of the failure.
    pub at: Time,
    /// The invariant that was violated, in words.
    pub what: String,
    /// The scenario of the seed.
    pub scenario: MulticastScenario,
}

impl fmt::Display for MulticastFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, at, what, scenario } = self;
        writeln!(f, "seed {seed} fails at {} ns: {what}", at.0)?;
        let replay = "cargo run --release -p rdmux-sim -- --multicast --trace --seed";
        write!(f, "replay it: {replay} {seed}\n{scenario:#?}")
    }
}

impl std::error::Error for MulticastFailure {}

/// Runs the simulation of a seed.
///
/// # Errors
/// The first failure. The same seed fails in the same way.
pub fn run_multicast_seed(seed: u64) -> Result<MulticastStats, Box<MulticastFailure>> {
    world::World::new(seed, false).run(seed)
}

/// Runs the simulation of a seed and logs its events to standard error.
///
/// # Errors
/// As [`run_multicast_seed`].
pub fn trace_multicast_seed(seed: u64) -> Result<MulticastStats, Box<MulticastFailure>> {
    world::World::new(seed, true).run(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multicast_simulation_of_400_seeds_finds_no_violation() {
        let mut all = MulticastStats::default();
        for seed in 0..400 {
            match run_multicast_seed(seed) {
                Ok(stats) => all += stats,
                Err(failure) => panic!("{failure}"),
            }
        }
        // The seeds reach the cases that they are meant for.
        assert!(all.joined > 1000 && all.failed > 100 && all.lost_groups > 50, "{all}");
        assert!(all.assigned > 50 && all.sent > 500 && all.unsent > 500, "{all}");
        assert!(all.received > 200 && all.lost > 50 && all.duplicated > 50, "{all}");
    }

    #[test]
    fn multicast_simulation_is_deterministic_for_a_seed() {
        for seed in 0..10 {
            assert_eq!(run_multicast_seed(seed).unwrap(), run_multicast_seed(seed).unwrap());
        }
    }
}
