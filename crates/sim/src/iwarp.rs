//! iWARP queue pairs over byte streams that are split and merged anywhere, that stall, fill up, break and end, and that carry
//! data that no peer should send.
//!
//! Invariants: every completion occurs once, in order, with every byte right. A WRITE is placed before the response of a
//! later READ arrives. A program that disconnects loses nothing that it has posted. A mistake ends the connection on both
//! sides, and no side waits forever.

mod check;
mod end;
mod pipe;
mod work;
mod world;

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use rand::Rng;
use rand::seq::IndexedRandom;
use rdmux_transport::Time;
use rdmux_transport::iwarp::{Rtr, StreamParams};

/// How long messages wait for a receive, if they do: longer than any program here takes to post one.
const RECEIVE_WAIT: Duration = Duration::from_secs(1);

/// A mistake that one end makes on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// WRITE with an invalid key.
    WriteKey,
    /// READ beyond the end of a region.
    ReadBounds,
    /// An atomic on a misaligned address.
    Misaligned,
    /// SEND from memory with an invalid key.
    LocalKey,
    /// SEND longer than the receive.
    TooLong,
    /// SEND where no receive is posted.
    NoReceive,
}

impl Mistake {
    /// All mistakes.
    const ALL: [Self; 6] = [
        Self::WriteKey,
        Self::ReadBounds,
        Self::Misaligned,
        Self::LocalKey,
        Self::TooLong,
        Self::NoReceive,
    ];
}

/// A trouble of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The stream is reset.
    Reset,
    /// A bit of an end's data is flipped.
    Flip(usize),
    /// Bytes that an end did not send are inserted into its data.
    Noise(usize),
    /// From now on nothing that this end sends arrives.
    Silence(usize),
    /// The program of an end disconnects in the middle of its work.
    Disconnect(usize),
    /// An end goes to ERR.
    Err(usize),
}

/// The parameters of a run, all drawn before the clock starts.
#[derive(Clone, Debug)]
pub struct IwScenario {
    /// The parameters that the first end negotiated.
    pub params: StreamParams,
    /// The MULPDU of each end: the most bytes between a frame's length and its padding.
    pub mulpdu: [u32; 2],
    /// The capacity of each direction of the stream in bytes.
    pub room: [usize; 2],
    /// The most bytes that arrive at a time.
    pub chunk: usize,
    /// The probability that bytes are placed directly, without passing through the queue pair.
    pub direct: f64,
    /// The longest delay of bytes.
    pub delay: Duration,
    /// The probability of a delay of a tenth of a second.
    pub stall: f64,
    /// How many operations each end posts.
    pub ops: [u32; 2],
    /// The longest message.
    pub max_len: u32,
    /// Entries of each queue.
    pub depth: u32,
    /// Whether an end uses a shared receive queue.
    pub shared: [bool; 2],
    /// How long an end's messages wait for a receive; zero for not at all.
    pub receive_wait: [Duration; 2],
    /// Whether every send is signaled.
    pub signal_all: bool,
    /// The end that makes a mistake, the number of its operation, and the mistake.
    pub mistake: Option<(usize, u32, Mistake)>,
    /// The trouble and its time.
    pub trouble: Option<(Duration, Trouble)>,
}

impl IwScenario {
    /// Draws a scenario.
    pub fn draw(rng: &mut impl Rng) -> Self {
        let params = StreamParams {
            initiator: true,
            crc: rng.random_bool(0.4),
            tx_markers: rng.random_bool(0.2),
            rx_markers: rng.random_bool(0.2),
            ord: rng.random_range(1..=8),
            ird: rng.random_range(1..=8),
            rtr: *[None, None, Some(Rtr::Send), Some(Rtr::Write), Some(Rtr::Read)]
                .choose(rng)
                .expect("five"),
        };
        let mulpdu = [128, 537, 1460, 8960, 65_535];
        let room = [1, 100, 5000, 1 << 18];
        let chunk = [1, 3, 200, 5000, 1 << 20];
        let chunk = *chunk.choose(rng).expect("five");
        let room: [usize; 2] = core::array::from_fn(|_| *room.choose(rng).expect("four"));
        let slow = chunk < 200 || room.iter().any(|&room| room < 1000);
        let max_len =
            if slow { 3000 } else { *[3000, 70_000, 300_000].choose(rng).expect("three") };
        let most = if slow || max_len > 100_000 { 15 } else { 60 };
        let ops: [u32; 2] = core::array::from_fn(|_| rng.random_range(0..=most));
        let mistake = rng.random_bool(0.15).then(|| {
            let end = rng.random_range(0..2);
            let at = rng.random_range(0..=ops[end]);
            (end, at, *Mistake::ALL.choose(rng).expect("six"))
        });
        let end = rng.random_range(0..2);
        let troubles = [
            Trouble::Reset,
            Trouble::Flip(end),
            Trouble::Noise(end),
            Trouble::Silence(end),
            Trouble::Disconnect(end),
            Trouble::Disconnect(end),
            Trouble::Err(end),
        ];
        let trouble = rng.random_bool(0.4).then(|| {
            let at = Duration::from_micros(rng.random_range(0..3000));
            (at, *troubles.choose(rng).expect("seven"))
        });
        let mut scenario = Self {
            params,
            mulpdu: core::array::from_fn(|_| *mulpdu.choose(rng).expect("five")),
            room,
            chunk,
            direct: *[0.0, 0.5, 1.0].choose(rng).expect("three"),
            delay: Duration::from_micros(rng.random_range(1..100)),
            stall: if rng.random_bool(0.2) { 0.001 } else { 0.0 },
            ops,
            max_len,
            depth: rng.random_range(1..=16),
            shared: core::array::from_fn(|_| rng.random_bool(0.3)),
            receive_wait: core::array::from_fn(|_| {
                if rng.random_bool(0.5) { RECEIVE_WAIT } else { Duration::ZERO }
            }),
            signal_all: rng.random_bool(0.5),
            mistake,
            trouble,
        };
        // Only shared receives can be withdrawn, and only without a wait is their absence a mistake.
        if let Some((end, _, Mistake::NoReceive)) = mistake {
            scenario.shared[1 - end] = true;
            scenario.receive_wait[1 - end] = Duration::ZERO;
        }
        scenario
    }
}

/// Statistics of a run without failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IwStats {
    /// The number of runs.
    pub seeds: u64,
    /// Bytes that streams carried.
    pub carried: u64,
    /// How often bytes arrived.
    pub arrivals: u64,
    /// Bytes placed in memory without passing through a queue pair.
    pub placed: u64,
    /// Completions of either queue.
    pub completions: u64,
    /// Completions with an error.
    pub errors: u64,
    /// Bytes of messages that arrived and were compared.
    pub compared: u64,
    /// Asynchronous events.
    pub events: u64,
    /// Timers that expired.
    pub timeouts: u64,
    /// How often a message waited for a receive.
    pub waits: u64,
    /// Streams that ended in order.
    pub ended: u64,
    /// Streams that were reset.
    pub reset: u64,
    /// Streams that ended because of a mistake alone, by mistake.
    pub mistakes: [u64; Mistake::ALL.len()],
    /// The virtual time of the run.
    pub virtual_time: Duration,
    /// A fingerprint that differs when anything is sent at another time.
    pub fingerprint: u64,
}

impl AddAssign for IwStats {
    fn add_assign(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.carried += other.carried;
        self.arrivals += other.arrivals;
        self.placed += other.placed;
        self.completions += other.completions;
        self.errors += other.errors;
        self.compared += other.compared;
        self.events += other.events;
        self.timeouts += other.timeouts;
        self.waits += other.waits;
        self.ended += other.ended;
        self.reset += other.reset;
        self.mistakes.iter_mut().zip(other.mistakes).for_each(|(mine, more)| *mine += more);
        self.virtual_time += other.virtual_time;
        // Independent of the order of the runs.
        self.fingerprint ^= other.fingerprint;
    }
}

impl fmt::Display for IwStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} seeds, {:.1} s on their clocks: {} bytes in {} arrivals ({} placed directly), {} completions ({} errors, all of them due), {} bytes compared",
            self.seeds,
            self.virtual_time.as_secs_f64(),
            self.carried,
            self.arrivals,
            self.placed,
            self.completions,
            self.errors,
            self.compared
        )?;
        write!(
            f,
            "{} events, {} timers, {} messages waited for a receive; {} streams ended in order, {} reset, {} ended by a mistake; fingerprint {:016x}",
            self.events,
            self.timeouts,
            self.waits,
            self.ended,
            self.reset,
            self.mistakes.iter().sum::<u64>(),
            self.fingerprint
        )
    }
}

/// A failed run.
#[derive(Clone, Debug)]
pub struct IwFailure {
    /// The seed of the run.
    pub seed: u64,
    /// The virtual time of the failure.
    pub at: Time,
    /// The invariant that was violated, in words.
    pub what: String,
    /// The scenario of the seed.
    pub scenario: IwScenario,
}

impl fmt::Display for IwFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, at, what, scenario } = self;
        writeln!(f, "seed {seed} fails at {} ns: {what}", at.0)?;
        let replay = "cargo run --release -p rdmux-sim -- --streams --trace --seed";
        write!(f, "replay it: {replay} {seed}\n{scenario:#?}")
    }
}

impl std::error::Error for IwFailure {}

/// Runs the iWARP simulation of a seed.
///
/// # Errors
/// The first failure. The same seed fails in the same way.
pub fn run_iwarp_seed(seed: u64) -> Result<IwStats, Box<IwFailure>> {
    world::World::new(seed, false).run(seed)
}

/// Runs the simulation of a seed and logs its events to standard error.
///
/// # Errors
/// As [`run_iwarp_seed`].
pub fn trace_iwarp_seed(seed: u64) -> Result<IwStats, Box<IwFailure>> {
    world::World::new(seed, true).run(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iwarp_simulation_of_600_seeds_finds_no_violation() {
        let mut all = IwStats::default();
        for seed in 0..600 {
            match run_iwarp_seed(seed) {
                Ok(stats) => all += stats,
                Err(failure) => panic!("{failure}"),
            }
        }
        // The seeds reach the cases that they are meant for.
        assert!(all.ended > 500 && all.reset > 50 && all.timeouts > 5, "{all:?}");
        assert!(all.waits > 100, "{all:?}");
        assert!(all.mistakes.iter().all(|&n| n > 0), "{all:?}");
        assert!(all.errors > 500 && all.events > 50 && all.placed > 1_000_000, "{all:?}");
    }

    #[test]
    fn iwarp_simulation_is_deterministic_for_a_seed() {
        for seed in 0..10 {
            assert_eq!(run_iwarp_seed(seed).unwrap(), run_iwarp_seed(seed).unwrap());
        }
    }
}
