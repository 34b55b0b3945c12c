//! Subnet managers and their subnet. Datagrams are lost and delayed, cables fail and change places, switches are reset,
//! managers die and restart, while programs join and leave groups, register services, subscribe to events and query paths. A
//! node may lie.
//!
//! Invariants once all that has ended and some time has passed, in each part of the subnet with a manager: one manager is the
//! master. Every cabled port is active. No two ports have the same LID, and the master knows the owner of each. Every port
//! reaches every other without a loop. Members of a group reach each other once. A further sweep sets nothing. Administration
//! has exactly the registrations of its programs. Services exist as long as their leases. Paths lead where they should, and
//! back. Subscribers get a Report of a new group.

#[cfg(test)]
mod broken;
mod check;
mod device;
mod lies;
mod programs;
mod registered;
mod traffic;
mod trouble;
mod wishes;
mod world;

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use rand::Rng;
use rdmux_subnet::manager::RoutingEngine;
use rdmux_transport::Time;

pub use self::lies::Lie;
pub(crate) use self::world::is_end;

/// The parameters of a run, all drawn before the clock starts.
#[derive(Clone, Debug)]
pub struct SubnetScenario {
    /// The nodes and cables.
    pub shape: &'static str,
    /// The number of managers.
    pub managers: usize,
    /// The algorithm for routes.
    pub routing: RoutingEngine,
    /// The LMC: each adapter's port gets 2^lmc LIDs.
    pub lmc: u8,
    /// The number of programs that query administration. Without programs, managers get the members of groups directly.
    pub programs: usize,
    /// The lie of one node, and whether it ends with the last trouble.
    pub lie: Option<(Lie, bool)>,
    /// The outstanding requests of a manager.
    pub outstanding: usize,
    /// The probability that a datagram to or from a manager is lost.
    pub loss: f64,
    /// The longest one-way delay of such a datagram.
    pub delay: Duration,
    /// The number of troubles.
    pub troubles: u32,
    /// The time span of the troubles.
    pub span: Duration,
}

impl SubnetScenario {
    /// Draws a scenario.
    pub fn draw(rng: &mut impl Rng) -> Self {
        const SHAPES: [&str; 7] = [
            "two",
            "switch:3",
            "switch:6",
            "torus:3x1x1",
            "torus:3x3x1",
            "fattree:24",
            "dragonfly:2,1,1",
        ];
        let programs = if rng.random_bool(0.75) { rng.random_range(1..=6) } else { 0 };
        let lie = rng.random_bool(0.3).then(|| {
            let passes = programs == 0 || rng.random_bool(0.5);
            let lies = if passes { &Lie::PASSING[..] } else { &Lie::LASTING };
            (lies[rng.random_range(0..lies.len())], passes)
        });
        Self {
            shape: SHAPES[rng.random_range(0..SHAPES.len())],
            managers: rng.random_range(1..=3),
            routing: if rng.random_bool(0.5) { RoutingEngine::Minhop } else { RoutingEngine::Updn },
            lmc: if rng.random_bool(0.3) { rng.random_range(1..=3) } else { 0 },
            programs,
            lie,
            outstanding: rng.random_range(1..=64),
            loss: if rng.random_bool(0.7) { rng.random_range(0.0..0.15) } else { 0.0 },
            delay: Duration::from_micros(rng.random_range(1..10_000)),
            troubles: rng.random_range(0..=12),
            span: Duration::from_millis(rng.random_range(1..10_000)),
        }
    }
}

/// Statistics of a run without failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubnetStats {
    /// The number of runs.
    pub seeds: u64,
    /// Datagrams to and from managers.
    pub datagrams: u64,
    /// Datagrams that were lost.
    pub lost: u64,
    /// Completed heavy sweeps.
    pub sweeps: u64,
    /// Problems found by sweeps.
    pub problems: u64,
    /// How often a manager became master.
    pub masters: u64,
    /// Cables that failed or recovered.
    pub flaps: u64,
    /// Swapped pairs of cables.
    pub swaps: u64,
    /// Switch resets.
    pub resets: u64,
    /// Managers that died.
    pub deaths: u64,
    /// Registrations with administration, and withdrawals.
    pub registrations: u64,
    /// Programs' requests that were refused, or got no answer.
    pub refusals: u64,
    /// How often a program was asked to reregister.
    pub reregistrations: u64,
    /// Path records that were compared with the tables.
    pub paths: u64,
    /// Lies that were executed.
    pub lies: u64,
    /// Reports that programs read.
    pub reports: u64,
    /// Pairs of port and LID whose route was checked.
    pub pairs: u64,
    /// The virtual time of the run.
    pub virtual_time: Duration,
    /// A fingerprint that differs when anything is sent at another time.
    pub fingerprint: u64,
}

impl AddAssign for SubnetStats {
    fn add_assign(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.datagrams += other.datagrams;
        self.lost += other.lost;
        self.sweeps += other.sweeps;
        self.problems += other.problems;
        self.masters += other.masters;
        self.flaps += other.flaps;
        self.swaps += other.swaps;
        self.resets += other.resets;
        self.deaths += other.deaths;
        self.registrations += other.registrations;
        self.refusals += other.refusals;
        self.reregistrations += other.reregistrations;
        self.paths += other.paths;
        self.reports += other.reports;
        self.lies += other.lies;
        self.pairs += other.pairs;
        self.virtual_time += other.virtual_time;
        // Independent of the order of the runs.
        self.fingerprint ^= other.fingerprint;
    }
}

impl fmt::Display for SubnetStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} seeds, {:.1} s on their clocks: {} sweeps ({} problems found), {} times a manager became the master, {} routes walked",
            self.seeds,
            self.virtual_time.as_secs_f64(),
            self.sweeps,
            self.problems,
            self.masters,
            self.pairs
        )?;
        writeln!(
            f,
            "{} registrations with administration ({} refused or without answer), {} times again after a manager asked for it, {} paths compared, {} reports read",
            self.registrations, self.refusals, self.reregistrations, self.paths, self.reports
        )?;
        write!(
            f,
            "{} datagrams, {} lost; {} cables failed or came back, {} swapped, {} switches reset, {} managers died, {} lies; fingerprint {:016x}",
            self.datagrams,
            self.lost,
            self.flaps,
            self.swaps,
            self.resets,
            self.deaths,
            self.lies,
            self.fingerprint
        )
    }
}

/// A failed run.
#[derive(Clone, Debug)]
pub struct SubnetFailure {
    /// The seed of the run.
    pub seed: u64,
    /// The virtual time of the failure.
    pub at: Time,
    /// The invariant that was violated, in words.
    pub what: String,
    /// The scenario of the seed.
    pub scenario: SubnetScenario,
}

impl fmt::Display for SubnetFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, at, what, scenario } = self;
        writeln!(f, "seed {seed} fails at {} ns: {what}", at.0)?;
        let replay = "cargo run --release -p rdmux-sim -- --subnet --trace --seed";
        write!(f, "replay it: {replay} {seed}\n{scenario:#?}")
    }
}

impl std::error::Error for SubnetFailure {}

/// Runs the subnet manager simulation of a seed.
///
/// # Errors
/// The first failure. The same seed fails in the same way.
pub fn run_subnet_seed(seed: u64) -> Result<SubnetStats, Box<SubnetFailure>> {
    world::World::new(seed, false).run(seed)
}

/// Runs the simulation of a seed and logs its events to standard error.
///
/// # Errors
/// As [`run_subnet_seed`].
pub fn trace_subnet_seed(seed: u64) -> Result<SubnetStats, Box<SubnetFailure>> {
    world::World::new(seed, true).run(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnet_simulation_of_300_seeds_finds_no_violation() {
        let mut all = SubnetStats::default();
        for seed in 0..300 {
            match run_subnet_seed(seed) {
                Ok(stats) => all += stats,
                Err(failure) => panic!("{failure}"),
            }
        }
        // The seeds reach the cases that they are meant for.
        assert!(
            all.lost > 1000 && all.flaps > 100 && all.swaps > 100 && all.resets > 50,
            "{all:?}"
        );
        assert!(all.deaths > 50 && all.problems > 100 && all.masters > 300, "{all:?}");
        assert!(all.registrations > 1000 && all.refusals > 500 && all.paths > 1000, "{all:?}");
        assert!(all.reregistrations > 500 && all.reports > 50 && all.lies > 500, "{all:?}");
    }

    #[test]
    fn subnet_simulation_is_deterministic_for_a_seed() {
        for seed in 0..10 {
            assert_eq!(run_subnet_seed(seed).unwrap(), run_subnet_seed(seed).unwrap());
        }
    }
}
