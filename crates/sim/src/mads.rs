//! Programs that exchange management datagrams, through the user MAD device and RMPP, in a network that loses, duplicates,
//! reorders and partitions, with strangers that send modified copies of overheard datagrams.
//!
//! Invariants: every request ends once, in its response with every byte right or in a timeout. Datagrams that strangers send
//! from their own address affect no others. No request times out without an excuse. At the end no request, no transfer and no
//! timer is left on any host.

mod message;
mod world;

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use rand::Rng;
use rdmux_transport::Time;

use crate::net::{Faults, NetStats};

/// The parameters of a run, all drawn before the clock starts.
#[derive(Clone, Debug)]
pub struct MadScenario {
    /// The number of hosts, each with a server.
    pub nodes: usize,
    /// The number of clients per host.
    pub clients: usize,
    /// The number of requests.
    pub requests: u32,
    /// The network.
    pub faults: Faults,
    /// Whether ports have GIDs only, as on RoCE.
    pub by_gid: bool,
    /// The most data of a response, in bytes.
    pub longest: u32,
    /// The longest delay of a server.
    pub think: Duration,
    /// The timeout of a request.
    pub timeout_ms: u32,
    /// How often unanswered requests are retransmitted.
    pub retries: u32,
    /// The probability that a server never answers a request.
    pub silent: f64,
    /// How often two hosts are partitioned for some time.
    pub cuts: u32,
    /// The duration of a partition.
    pub cut_lasts: Duration,
    /// How many programs die and are replaced.
    pub deaths: u32,
    /// How many packets strangers send.
    pub strangers: u32,
    /// The time span in which all requests are sent.
    pub span: Duration,
}

impl MadScenario {
    /// Draws a scenario. In half of all scenarios there is no excuse for a timeout.
    pub fn draw(rng: &mut impl Rng) -> Self {
        let strict = rng.random_bool(0.5);
        let bad = rng.random_bool(0.8);
        let chance = |p: f64| if bad { p } else { 0.0 };
        let faults = Faults {
            loss: chance(rng.random_range(0.0..0.2)),
            duplicate: chance(rng.random_range(0.0..0.3)),
            corrupt: 0.0,
            reorder: chance(rng.random_range(0.0..0.3)),
            delay: Duration::from_micros(rng.random_range(1..2000)),
            jitter: Duration::from_millis(rng.random_range(1..30)),
            at_most: Some(2),
        };
        // Windows of 1 and of 64 segments: 129 segments of 200 bytes take three windows, each of which may be sent five
        // times, two seconds apart, within the 40 seconds that a message has.
        let longest = if faults.loss > 0.0 { 129 * 200 } else { 2_000_000 };
        let some =
            |rng: &mut dyn rand::RngCore, most| if strict { 0 } else { rng.random_range(0..=most) };
        Self {
            nodes: rng.random_range(2..=4),
            clients: rng.random_range(1..=3),
            requests: rng.random_range(1..=30),
            by_gid: rng.random_bool(0.3),
            longest: rng.random_range(0..=longest),
            think: Duration::from_millis(rng.random_range(0..50)),
            timeout_ms: if strict {
                rng.random_range(2500..4000)
            } else {
                rng.random_range(20..3000)
            },
            retries: if strict { rng.random_range(6..9) } else { rng.random_range(0..5) },
            silent: if strict { 0.0 } else { rng.random_range(0.0..0.3) },
            cuts: some(rng, 3),
            cut_lasts: Duration::from_millis(rng.random_range(1..20_000)),
            deaths: some(rng, 3),
            strangers: if rng.random_bool(0.5) { rng.random_range(1..100) } else { 0 },
            span: Duration::from_millis(rng.random_range(1..3000)),
            faults,
        }
    }

    /// Returns whether there is no excuse for a timeout.
    pub fn strict(&self) -> bool {
        self.cuts == 0 && self.deaths == 0 && self.silent == 0.0 && self.timeout_ms >= 2500
    }
}

/// Statistics of a run without failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MadStats {
    /// The number of runs.
    pub seeds: u64,
    /// Requests sent.
    pub requests: u64,
    /// Requests whose response arrived.
    pub answered: u64,
    /// Requests that timed out, or that the peer ended.
    pub failed: u64,
    /// Requests whose program died first.
    pub orphaned: u64,
    /// Received responses of more than one segment.
    pub long: u64,
    /// Bytes of requests and responses that were compared.
    pub compared: u64,
    /// Datagrams that hosts sent.
    pub sent: u64,
    /// Requests and windows that were retransmitted.
    pub resent: u64,
    /// Aborted transfers.
    pub aborted: u64,
    /// Datagrams that strangers sent.
    pub foreign: u64,
    /// Statistics of the network.
    pub net: NetStats,
    /// The virtual time of the run.
    pub virtual_time: Duration,
    /// A fingerprint that differs when anything is sent at another time.
    pub fingerprint: u64,
}

impl AddAssign for MadStats {
    fn add_assign(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.requests += other.requests;
        self.answered += other.answered;
        self.failed += other.failed;
        self.orphaned += other.orphaned;
        self.long += other.long;
        self.compared += other.compared;
        self.sent += other.sent;
        self.resent += other.resent;
        self.aborted += other.aborted;
        self.foreign += other.foreign;
        self.net += other.net;
        self.virtual_time += other.virtual_time;
        // Independent of the order of the runs.
        self.fingerprint ^= other.fingerprint;
    }
}

impl fmt::Display for MadStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let net = &self.net;
        writeln!(
            f,
            "{} seeds, {:.1} s on their clocks: {} requests, {} answered ({} in several segments), {} failed with an excuse, {} outlived their program; {} bytes compared",
            self.seeds,
            self.virtual_time.as_secs_f64(),
            self.requests,
            self.answered,
            self.long,
            self.failed,
            self.orphaned,
            self.compared
        )?;
        write!(
            f,
            "{} datagrams, {} times sent again, {} transfers aborted, {} datagrams of strangers; network: {} lost, {} unreachable, {} duplicated, {} delayed; fingerprint {:016x}",
            self.sent,
            self.resent,
            self.aborted,
            self.foreign,
            net.lost,
            net.unreachable,
            net.duplicated,
            net.delayed,
            self.fingerprint
        )
    }
}

/// A failed run.
#[derive(Clone, Debug)]
pub struct MadFailure {
    /// The seed of the run.
    pub seed: u64,
    /// The virtual time of the failure.
    pub at: Time,
    /// The invariant that was violated, in words.
    pub what: String,
    /// The scenario of the seed.
    pub scenario: MadScenario,
}

impl fmt::Display for MadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, at, what, scenario } = self;
        writeln!(f, "seed {seed} fails at {} ns: {what}", at.0)?;
        let replay = "cargo run --release -p rdmux-sim -- --datagrams --trace --seed";
        write!(f, "replay it: {replay} {seed}\n{scenario:#?}")
    }
}

impl std::error::Error for MadFailure {}

/// Runs the management datagram simulation of a seed.
///
/// # Errors
/// The first failure. The same seed fails in the same way.
pub fn run_mad_seed(seed: u64) -> Result<MadStats, Box<MadFailure>> {
    world::World::new(seed, false).run(seed)
}

/// Runs the simulation of a seed and logs its events to standard error.
///
/// # Errors
/// As [`run_mad_seed`].
pub fn trace_mad_seed(seed: u64) -> Result<MadStats, Box<MadFailure>> {
    world::World::new(seed, true).run(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mad_simulation_of_400_seeds_finds_no_violation() {
        let mut all = MadStats::default();
        for seed in 0..400 {
            match run_mad_seed(seed) {
                Ok(stats) => all += stats,
                Err(failure) => panic!("{failure}"),
            }
        }
        // The seeds reach the cases that they are meant for.
        assert!(all.answered > 1000 && all.long > 1000 && all.failed > 100, "{all:?}");
        assert!(all.resent > 1000 && all.aborted > 20 && all.orphaned > 20, "{all:?}");
        assert!(all.foreign > 1000 && all.net.lost > 1000, "{all:?}");
    }

    #[test]
    fn mad_simulation_is_deterministic_for_a_seed() {
        for seed in 0..10 {
            assert_eq!(run_mad_seed(seed).unwrap(), run_mad_seed(seed).unwrap());
        }
    }
}
