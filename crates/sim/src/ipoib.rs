//! What hosts do on InfiniBand ports for IP addresses and groups, in a subnet that loses, repeats and delays datagrams, and whose
//! administration is slow, refuses, and forgets.
//!
//! What must be true: an address leads to nobody who has not had it within the life of what is known; who waits for one is told once, in
//! time, and of a host that is there if nothing was lost; a wish to be a member ends in one answer; administration is asked one
//! question about a group at a time, and has each port for what members want, and for no more if it never refused; and when all have left, nothing is left.

mod world;

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use rand::Rng;
use rdmux_transport::Time;

/// Everything that is decided before the clock starts.
#[derive(Clone, Debug)]
pub struct IpoibScenario {
    /// How many hosts there are.
    pub hosts: usize,
    /// How many addresses, each of one host at a time.
    pub addresses: usize,
    /// How many groups members are of, beside new ones.
    pub groups: u8,
    /// How likely it is that a datagram is lost, or comes twice: out of one.
    pub loss: f64,
    /// See above.
    pub duplicate: f64,
    /// How long a datagram takes at most.
    pub delay: Duration,
    /// How often programs look for an address.
    pub lookups: u32,
    /// How often an address goes to another host, or to none.
    pub moves: u32,
    /// How often a host forgets what it knows, as when its port changes.
    pub flushes: u32,
    /// How often a program joins or leaves a group.
    pub wishes: u32,
    /// How long administration takes at most.
    pub think: Duration,
    /// How likely it is that it refuses, or does not answer until it is given up.
    pub refuses: f64,
    /// See above.
    pub silent: f64,
    /// How often it forgets all memberships, and has ports register again.
    pub forgets: u32,
    /// All of this happens within this time.
    pub span: Duration,
}

impl IpoibScenario {
    /// Draws one. In half of them nothing is lost.
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

/// What happened in a run that found nothing wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpoibStats {
    /// Runs.
    pub seeds: u64,
    /// Addresses that were looked for.
    pub lookups: u64,
    /// Those that were known.
    pub known: u64,
    /// Those that were found.
    pub found: u64,
    /// Those that nobody said he had.
    pub failed: u64,
    /// Addresses that were known to be where they had been.
    pub stale: u64,
    /// Datagrams that were sent.
    pub sent: u64,
    /// Those that were lost.
    pub lost: u64,
    /// Wishes to be a member that were granted.
    pub granted: u64,
    /// Those that were refused.
    pub refused: u64,
    /// Memberships that administration forgot.
    pub forgotten: u64,
    /// Questions to administration.
    pub questions: u64,
    /// How long it took, on its own clock.
    pub virtual_time: Duration,
    /// A number that differs when anything was sent at another time.
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
        self.granted += other.granted;
        self.refused += other.refused;
        self.forgotten += other.forgotten;
        self.questions += other.questions;
        self.virtual_time += other.virtual_time;
        // Whatever the order in which they ran.
        self.fingerprint ^= other.fingerprint;
    }
}

impl fmt::Display for IpoibStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} seeds, {:.1} s on their clocks: {} addresses looked for, {} known, {} found, {} not found, {} known where they had been; {} datagrams, {} lost",
            self.seeds,
            self.virtual_time.as_secs_f64(),
            self.lookups,
            self.known,
            self.found,
            self.failed,
            self.stale,
            self.sent,
            self.lost
        )?;
        write!(
            f,
            "{} questions about groups, {} wishes granted, {} refused, {} memberships forgotten; fingerprint {:016x}",
            self.questions, self.granted, self.refused, self.forgotten, self.fingerprint
        )
    }
}

/// What was wrong.
#[derive(Clone, Debug)]
pub struct IpoibFailure {
    /// The seed that shows it.
    pub seed: u64,
    /// When.
    pub at: Time,
    /// What.
    pub what: String,
    /// What the seed means.
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
/// The first thing that was wrong. The same seed fails in the same way.
pub fn run_ipoib_seed(seed: u64) -> Result<IpoibStats, Box<IpoibFailure>> {
    world::World::new(seed, false).run(seed)
}

/// The same, and tells on standard error what happens.
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
    fn hundreds_of_seeds() {
        let mut all = IpoibStats::default();
        for seed in 0..400 {
            match run_ipoib_seed(seed) {
                Ok(stats) => all += stats,
                Err(failure) => panic!("{failure}"),
            }
        }
        // The seeds do reach what they are for.
        assert!(all.known > 500 && all.found > 500 && all.failed > 100, "{all:?}");
        assert!(all.stale > 20 && all.lost > 500 && all.granted > 1000, "{all:?}");
        assert!(all.refused > 200 && all.forgotten > 50 && all.questions > 2000, "{all:?}");
    }

    #[test]
    fn a_seed_repeats() {
        for seed in 0..10 {
            assert_eq!(run_ipoib_seed(seed).unwrap(), run_ipoib_seed(seed).unwrap());
        }
    }
}
