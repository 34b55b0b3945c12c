//! Deterministic simulation: nodes on a virtual clock, and a network that loses, duplicates, delays, corrupts and partitions,
//! all from one seed. The state machines are those of real processes; only their environment is simulated.
//!
//! [`agenda`] is the clock, [`net`] the network, and [`memory`] the nodes' RAM. [`cm`] runs the connection manager, [`iwarp`]
//! queue pairs over streams, [`mads`] programs that manage a subnet, [`subnet`] subnet managers, [`ipoib`] hosts that resolve
//! IP addresses and join groups, [`multicast`] ids that join groups and send to them, [`acm`] hosts that resolve names to
//! paths, [`fabric`] queue pairs whose packets are routed by the tables of a subnet's switches, [`acm_scale`] ACM on subnets
//! of up to 65,536 endpoints. For the other transports, [`scenario`] defines the scenario of a seed and the world runs it:
//! applications post random work, and every completion is checked for its order, its status and every byte.
#![forbid(unsafe_code)]

pub mod acm;
pub mod acm_scale;
pub mod agenda;
pub mod bottleneck;
pub mod cm;
pub mod fabric;
pub mod ipoib;
pub mod iwarp;
pub mod mads;
pub mod memory;
pub mod multicast;
pub mod net;
pub mod scenario;
pub mod subnet;

mod administration;
mod check;
mod endpoint;
mod env;
mod life;
mod packets;
mod paths;
mod workload;
mod world;

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use rdmux_transport::Time;

use crate::net::NetStats;
use crate::scenario::Poison;

/// Statistics of a run without failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The number of seeds.
    pub seeds: u64,
    /// Packets that queue pairs sent.
    pub packets: u64,
    /// Packets that queue pairs dropped or refused.
    pub refused: u64,
    /// Packets buffered out of order.
    pub kept: u64,
    /// Gaps with buffered packets after them that were filled.
    pub filled: u64,
    /// Timers that expired.
    pub timeouts: u64,
    /// Completions of either queue.
    pub completions: u64,
    /// Completions with an error.
    pub errors: u64,
    /// Bytes of messages that arrived and were compared.
    pub bytes: u64,
    /// Atomics that a process executed later for an XRC target.
    pub late_atomics: u64,
    /// How often a process was busy when an XRC target needed its memory.
    pub busy: u64,
    /// How often a node was paused.
    pub pauses: u64,
    /// How often an end of a connection continued on its other path.
    pub migrations: u64,
    /// Paths that were dead for some time, or for good.
    pub dead_paths: u64,
    /// Partitions of two nodes.
    pub cuts: u64,
    /// Nodes that crashed.
    pub crashes: u64,
    /// Mistakes that completed with their own error, by mistake.
    pub mistakes: [u64; Poison::ALL.len()],
    /// Statistics of the network.
    pub net: NetStats,
    /// The virtual time of the run.
    pub virtual_time: Duration,
    /// A fingerprint that differs when anything is sent at another time.
    pub fingerprint: u64,
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.packets += other.packets;
        self.refused += other.refused;
        self.kept += other.kept;
        self.filled += other.filled;
        self.timeouts += other.timeouts;
        self.completions += other.completions;
        self.errors += other.errors;
        self.bytes += other.bytes;
        self.late_atomics += other.late_atomics;
        self.busy += other.busy;
        self.pauses += other.pauses;
        self.migrations += other.migrations;
        self.dead_paths += other.dead_paths;
        self.cuts += other.cuts;
        self.crashes += other.crashes;
        self.mistakes.iter_mut().zip(other.mistakes).for_each(|(mine, more)| *mine += more);
        self.net += other.net;
        self.virtual_time += other.virtual_time;
        // Independent of the order of the runs.
        self.fingerprint ^= other.fingerprint;
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let net = &self.net;
        writeln!(
            f,
            "{} seeds, {:.1} s on their clocks: {} packets, {} completions ({} errors, all of them due), {} bytes compared",
            self.seeds,
            self.virtual_time.as_secs_f64(),
            self.packets,
            self.completions,
            self.errors,
            self.bytes
        )?;
        write!(
            f,
            "network: {} lost, {} unreachable, {} duplicated, {} damaged, {} delayed; {} timers, {} packets refused, {} kept behind {} gaps; {} atomics done later, {} times busy, {} pauses; {} migrations, {} paths dead, {} cuts, {} crashes, {} mistakes found; fingerprint {:016x}",
            net.lost,
            net.unreachable,
            net.duplicated,
            net.corrupted,
            net.delayed,
            self.timeouts,
            self.refused,
            self.kept,
            self.filled,
            self.late_atomics,
            self.busy,
            self.pauses,
            self.migrations,
            self.dead_paths,
            self.cuts,
            self.crashes,
            self.mistakes.iter().sum::<u64>(),
            self.fingerprint
        )
    }
}

/// A failed run.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed of the run.
    pub seed: u64,
    /// The virtual time of the failure.
    pub at: Time,
    /// The invariant that was violated, in words.
    pub what: String,
    /// The scenario of the seed.
    pub scenario: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {} fails at {} ns: {}\nreplay it: cargo run --release -p rdmux-sim -- --seed {} --trace\n{}",
            self.seed, self.at.0, self.what, self.seed, self.scenario
        )
    }
}

impl std::error::Error for Failure {}

/// Runs the transport simulation of a seed.
///
/// # Errors
/// The first failure. The same seed fails in the same way.
pub fn run_seed(seed: u64) -> Result<Stats, Box<Failure>> {
    run(seed, false)
}

/// Runs the simulation of a seed and logs its events to standard error.
///
/// # Errors
/// As [`run_seed`].
pub fn trace_seed(seed: u64) -> Result<Stats, Box<Failure>> {
    run(seed, true)
}

fn run(seed: u64, tracing: bool) -> Result<Stats, Box<Failure>> {
    let mut world = world::World::new(seed, tracing);
    let result = world.run();
    world.into_result(seed, result).map_err(Box::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transport_simulation_of_600_seeds_finds_no_violation() {
        let mut all = Stats::default();
        for seed in 0..600 {
            match run_seed(seed) {
                Ok(stats) => all += stats,
                Err(failure) => panic!("{failure}"),
            }
        }
        // The seeds reach the cases that they are meant for.
        assert!(all.late_atomics > 500 && all.busy > 500 && all.errors > 500, "{all:?}");
        assert!(all.kept > 500 && all.filled > 500 && all.pauses > 500, "{all:?}");
        assert!(all.migrations > 300 && all.dead_paths > 50, "{all:?}");
        assert!(all.cuts > 20 && all.crashes > 20, "{all:?}");
        assert!(all.mistakes.iter().all(|&n| n > 0), "{all:?}");
        let net = all.net;
        assert!(net.lost > 500 && net.duplicated > 500 && net.corrupted > 500, "{all:?}");
        assert!(net.delayed > 500 && net.unreachable > 500, "{all:?}");
    }

    #[test]
    fn transport_simulation_is_deterministic_for_a_seed() {
        for seed in 0..10 {
            assert_eq!(run_seed(seed).unwrap(), run_seed(seed).unwrap());
        }
    }
}
