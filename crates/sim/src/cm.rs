//! Connections under adverse conditions: managers on several nodes, programs that do anything at any time, and a network that
//! loses, duplicates, reorders and partitions.
//!
//! Invariants: every connection ends in a defined state on both sides. Each event occurs at most once for its cause and in a
//! sensible order. When everything is destroyed, nothing is left. Connections are RoCE's, over that network, and iWARP's,
//! over streams that are split anywhere. Each side knows the other's queue pair, each path query ends as its driver answered,
//! and a client that requests an unserved transport is never connected. Programs ask for more time, redirect their peers, and
//! load alternate paths, each of which is loaded at both ends or at neither as far as the program knows. A rail of the
//! network may fail, and connections that migrate to the other one continue. If the seed has no long partition and no
//! restarted node, no side may give up, and no connection may be established on one side only.

mod life;
mod messages;
mod migration;
mod paths;
mod program;
mod streams;
mod world;

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use rand::Rng;
use rdmux_cm::Time;

pub use self::paths::PathOdds;
use crate::net::{Faults, NetStats};

/// The parameters of a run, all drawn before the clock starts.
#[derive(Clone, Debug)]
pub struct CmScenario {
    /// The number of nodes.
    pub nodes: usize,
    /// The network.
    pub faults: Faults,
    /// How many connections are attempted.
    pub connections: u32,
    /// The fraction of connections that use XRC.
    pub extended: f64,
    /// The fraction of the others that use iWARP.
    pub streaming: f64,
    /// How many streams are reset during connection setup.
    pub resets: u32,
    /// How many peers connect and send invalid data.
    pub strangers: u32,
    /// How many clients request an RC connection from the XRC service.
    pub strays: u32,
    /// How many lookups of datagram services are attempted.
    pub lookups: u32,
    /// How many random commands are executed.
    pub chaos: u32,
    /// How many processes die.
    pub deaths: u32,
    /// How many partitions there are, each between the first two nodes or another pair.
    pub cuts: u32,
    /// The duration of a partition.
    pub cut_lasts: Duration,
    /// How many nodes restart.
    pub restarts: u32,
    /// The listen backlog. A small one drops requests.
    pub backlog: u32,
    /// How path queries are answered.
    pub paths: PathOdds,
    /// The time span in which everything starts.
    pub span: Duration,
}

impl CmScenario {
    /// Draws a scenario in which paths are known at once.
    pub fn draw(rng: &mut impl Rng) -> Self {
        let bad = rng.random_bool(0.8);
        let chance = |p: f64| if bad { p } else { 0.0 };
        let faults = Faults {
            loss: chance(rng.random_range(0.0..0.3)),
            duplicate: chance(rng.random_range(0.0..0.3)),
            corrupt: 0.0,
            reorder: chance(rng.random_range(0.0..0.5)),
            delay: Duration::from_micros(rng.random_range(1..2000)),
            jitter: Duration::from_millis(rng.random_range(1..30)),
            at_most: Some(4),
        };
        let rough = rng.random_bool(0.3);
        Self {
            nodes: rng.random_range(1..=4),
            faults,
            connections: rng.random_range(1..=12),
            extended: rng.random_range(0.0..0.6),
            streaming: rng.random_range(0.0..1.0),
            resets: if rng.random_bool(0.3) { rng.random_range(1..=4) } else { 0 },
            strangers: rng.random_range(0..=2),
            strays: rng.random_range(0..=2),
            lookups: rng.random_range(0..=4),
            chaos: if rng.random_bool(0.5) { rng.random_range(1..=20) } else { 0 },
            deaths: if rng.random_bool(0.3) { rng.random_range(1..=3) } else { 0 },
            cuts: if rng.random_bool(0.3) { rng.random_range(1..=3) } else { 0 },
            cut_lasts: Duration::from_millis(if rough { 5000 } else { 15 }),
            restarts: u32::from(rough && rng.random_bool(0.5)),
            backlog: rng.random_range(1..=8),
            paths: PathOdds::default(),
            span: Duration::from_millis(rng.random_range(1..300)),
        }
    }

    /// Returns whether no side has an excuse for giving up.
    pub fn strict(&self) -> bool {
        self.restarts == 0 && (self.cuts == 0 || self.cut_lasts < Duration::from_millis(20))
    }
}

/// Statistics of a run without failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmStats {
    /// The number of runs.
    pub seeds: u64,
    /// Connections established on both sides.
    pub established: u64,
    /// XRC connections among them.
    pub extended: u64,
    /// Streams handed over to a queue pair, counted on both sides.
    pub streams: u64,
    /// Refusals that arrived.
    pub rejected: u64,
    /// Connections and lookups without an answer.
    pub unreachable: u64,
    /// Path queries that ended without a path.
    pub unrouted: u64,
    /// Lookups with an answer.
    pub looked_up: u64,
    /// LAPs sent, without retransmissions.
    pub laps: u64,
    /// Alternate paths that both ends have loaded.
    pub alternates: u64,
    /// Ends that continued on their alternate path.
    pub migrations: u64,
    /// Connections that survived the failure of a rail.
    pub saved: u64,
    /// Requests for more time (MRA) received.
    pub respites: u64,
    /// Redirected requests and lookups.
    pub redirected: u64,
    /// Connections ended by DREQ, counted on both sides.
    pub disconnected: u64,
    /// Processes that died with ids.
    pub deaths: u64,
    /// Nodes that restarted.
    pub restarts: u64,
    /// Streams that were reset during connection setup.
    pub resets: u64,
    /// Peers that sent invalid data, or none.
    pub strangers: u64,
    /// Clients of an unserved transport that were refused.
    pub strays: u64,
    /// Events of all kinds.
    pub events: u64,
    /// Statistics of the network.
    pub net: NetStats,
    /// The virtual time of the run.
    pub virtual_time: Duration,
    /// A fingerprint that differs when anything is sent at another time.
    pub fingerprint: u64,
}

impl AddAssign for CmStats {
    fn add_assign(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.established += other.established;
        self.extended += other.extended;
        self.streams += other.streams;
        self.rejected += other.rejected;
        self.unreachable += other.unreachable;
        self.unrouted += other.unrouted;
        self.looked_up += other.looked_up;
        self.laps += other.laps;
        self.alternates += other.alternates;
        self.migrations += other.migrations;
        self.saved += other.saved;
        self.respites += other.respites;
        self.redirected += other.redirected;
        self.disconnected += other.disconnected;
        self.deaths += other.deaths;
        self.restarts += other.restarts;
        self.resets += other.resets;
        self.strangers += other.strangers;
        self.strays += other.strays;
        self.events += other.events;
        self.net += other.net;
        self.virtual_time += other.virtual_time;
        // Independent of the order of the runs.
        self.fingerprint ^= other.fingerprint;
    }
}

impl fmt::Display for CmStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let net = &self.net;
        writeln!(
            f,
            "{} seeds, {:.1} s on their clocks: {} connections ({} of XRC), {} streams, {} refusals, {} given up, {} without a path, {} lookups, {} LAPs, {} alternate paths, {} migrations, {} connections that went on without a rail, {} requests for time, {} redirections, {} disconnections, {} processes died, {} nodes restarted, {} streams reset, {} strangers, {} clients of no service, {} events",
            self.seeds,
            self.virtual_time.as_secs_f64(),
            self.established,
            self.extended,
            self.streams,
            self.rejected,
            self.unreachable,
            self.unrouted,
            self.looked_up,
            self.laps,
            self.alternates,
            self.migrations,
            self.saved,
            self.respites,
            self.redirected,
            self.disconnected,
            self.deaths,
            self.restarts,
            self.resets,
            self.strangers,
            self.strays,
            self.events
        )?;
        write!(
            f,
            "network: {} sent, {} lost, {} unreachable, {} duplicated, {} delayed; fingerprint {:016x}",
            net.sent, net.lost, net.unreachable, net.duplicated, net.delayed, self.fingerprint
        )
    }
}

/// A failed run.
#[derive(Clone, Debug)]
pub struct CmFailure {
    /// The seed of the run.
    pub seed: u64,
    /// The virtual time of the failure.
    pub at: Time,
    /// The invariant that was violated, in words.
    pub what: String,
    /// The scenario of the seed.
    pub scenario: CmScenario,
}

impl fmt::Display for CmFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, at, what, scenario } = self;
        writeln!(f, "seed {seed} fails at {} ns: {what}", at.0)?;
        let replay = "cargo run --release -p rdmux-sim -- --connections --trace --seed";
        write!(f, "replay it: {replay} {seed}\n{scenario:#?}")
    }
}

impl std::error::Error for CmFailure {}

/// Runs the connection manager simulation of a seed.
///
/// # Errors
/// The first failure. The same seed fails in the same way.
pub fn run_cm_seed(seed: u64) -> Result<CmStats, Box<CmFailure>> {
    world::World::new(seed, false).run()
}

/// Runs the simulation of a seed and logs its events to standard error.
///
/// # Errors
/// As [`run_cm_seed`].
pub fn trace_cm_seed(seed: u64) -> Result<CmStats, Box<CmFailure>> {
    world::World::new(seed, true).run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cm_simulation_of_1000_seeds_finds_no_violation() {
        let mut all = CmStats::default();
        for seed in 0..1000 {
            match run_cm_seed(seed) {
                Ok(stats) => all += stats,
                Err(failure) => panic!("{failure}"),
            }
        }
        // The seeds reach the cases that they are meant for.
        assert!(all.established > 1000 && all.disconnected > 1000, "{all:?}");
        assert!(all.extended > 300 && all.streams > 1000, "{all:?}");
        assert!(all.rejected > 200 && all.unreachable > 20 && all.looked_up > 200, "{all:?}");
        assert!(all.unrouted > 200, "{all:?}");
        assert!(all.laps > 1000 && all.alternates > 400 && all.migrations > 400, "{all:?}");
        assert!(all.saved > 100 && all.respites > 200 && all.redirected > 100, "{all:?}");
        assert!(all.deaths > 50 && all.restarts > 50 && all.resets > 50, "{all:?}");
        assert!(all.strangers > 200 && all.strays > 200, "{all:?}");
        assert!(all.net.lost > 1000 && all.net.duplicated > 1000, "{all:?}");
        assert!(all.net.delayed > 1000 && all.net.unreachable > 500, "{all:?}");
    }

    /// Seeds that failed once, in long runs.
    #[test]
    fn formerly_failing_cm_seeds_pass() {
        // A DREQ that arrived before the program had established; later ones were lost.
        for seed in [5_015_044] {
            if let Err(failure) = run_cm_seed(seed) {
                panic!("{failure}");
            }
        }
    }

    #[test]
    fn cm_simulation_is_deterministic_for_a_seed() {
        for seed in 0..20 {
            assert_eq!(run_cm_seed(seed).unwrap(), run_cm_seed(seed).unwrap());
        }
    }
}
