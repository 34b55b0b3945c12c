//! Ids of connection managers that join groups of an InfiniBand subnet, in which datagrams are lost and repeated, and whose
//! administration is slow, refuses, does not answer, and forgets.
//!
//! What must be true: a wish ends in one event, unless it is taken back before, and a group that was joined is lost at most once; a
//! group is known exactly as administration has told, and only while it is joined; a record and its components reach
//! administration as they are; an id that was told that it is a member is one there, so that a datagram to its group comes unless the
//! network loses it, once unless the network repeats it, and to nobody who has left or only sends; and when all have left,
//! nothing is left.

mod world;

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use rand::Rng;
use rdmux_transport::Time;

/// Everything that is decided before the clock starts.
#[derive(Clone, Debug)]
pub struct MulticastScenario {
    /// How many hosts there are.
    pub hosts: usize,
    /// How many ids each has.
    pub ids: usize,
    /// How many groups have a name.
    pub groups: u8,
    /// How likely it is that a datagram is lost, or comes twice: out of one.
    pub loss: f64,
    /// See above.
    pub duplicate: f64,
    /// How long a datagram takes at most.
    pub delay: Duration,
    /// How often an id joins or leaves a group.
    pub wishes: u32,
    /// How often an id sends to a group.
    pub sends: u32,
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

impl MulticastScenario {
    /// Draws one. In half of them nothing is lost.
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

/// What happened in a run that found nothing wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MulticastStats {
    /// Runs.
    pub seeds: u64,
    /// Groups that were joined.
    pub joined: u64,
    /// Those that did not come.
    pub failed: u64,
    /// Those that were lost.
    pub lost_groups: u64,
    /// Those that got a GID of administration.
    pub assigned: u64,
    /// Datagrams that were sent.
    pub sent: u64,
    /// Those that could not be, since the id was no member.
    pub unsent: u64,
    /// How often one was received.
    pub received: u64,
    /// How often the network lost one.
    pub lost: u64,
    /// How long it took, on its own clock.
    pub virtual_time: Duration,
    /// A number that differs when anything was told at another time.
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
        self.virtual_time += other.virtual_time;
        // Whatever the order in which they ran.
        self.fingerprint ^= other.fingerprint;
    }
}

impl fmt::Display for MulticastStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds, {:.1} s on their clocks: {} groups joined ({} with a GID assigned), {} not, {} lost; {} datagrams sent, {} refused, {} received, {} lost; fingerprint {:016x}",
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
            self.fingerprint
        )
    }
}

/// What was wrong.
#[derive(Clone, Debug)]
pub struct MulticastFailure {
    /// The seed that shows it.
    pub seed: u64,
    /// When.
    pub at: Time,
    /// What.
    pub what: String,
    /// What the seed means.
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
/// The first thing that was wrong. The same seed fails in the same way.
pub fn run_multicast_seed(seed: u64) -> Result<MulticastStats, Box<MulticastFailure>> {
    world::World::new(seed, false).run(seed)
}

/// The same, and tells on standard error what happens.
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
    fn hundreds_of_seeds() {
        let mut all = MulticastStats::default();
        for seed in 0..400 {
            match run_multicast_seed(seed) {
                Ok(stats) => all += stats,
                Err(failure) => panic!("{failure}"),
            }
        }
        // The seeds do reach what they are for.
        assert!(all.joined > 1000 && all.failed > 100 && all.lost_groups > 50, "{all}");
        assert!(all.assigned > 50 && all.sent > 500 && all.unsent > 500, "{all}");
        assert!(all.received > 200 && all.lost > 50, "{all}");
    }

    #[test]
    fn a_seed_repeats() {
        for seed in 0..10 {
            assert_eq!(run_multicast_seed(seed).unwrap(), run_multicast_seed(seed).unwrap());
        }
    }
}
