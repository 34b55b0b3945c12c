//! Hosts that resolve names and addresses to paths by ACM. The subnet loses, duplicates and delays datagrams, ports get new
//! LIDs, administration is slow, refuses or does not answer, and some hosts claim addresses of others.
//!
//! Invariants: within the time that the options allow, no path leads to a port that has not had the address, or to a LID that
//! the port has not had. The same holds for what programs may read without a request. Each request is answered once, at the
//! latest at its deadline. Cache, searches and queues are bounded. If nothing goes wrong, every address that a host has is
//! found. At the end nothing is left.

#[cfg(test)]
mod broken;
mod driver;
mod oracle;
mod world;

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use rand::Rng;
use rdmux_acm::{ClaimPolicy, Options, RouteProtocol};
use rdmux_transport::Time;

/// The parameters of a run, all drawn before the clock starts.
#[derive(Clone, Debug)]
pub struct AcmScenario {
    /// The number of hosts.
    pub hosts: usize,
    /// The number of names and addresses, each of one host at a time.
    pub addresses: usize,
    /// The options of all machines.
    pub options: Options,
    /// The probability that a datagram is lost on the way to a host.
    pub loss: f64,
    /// The probability that a datagram is duplicated.
    pub duplicate: f64,
    /// The longest delay of a datagram.
    pub delay: Duration,
    /// The number of programs' requests.
    pub requests: u32,
    /// The timeout of programs' requests.
    pub timeout: Duration,
    /// How often an address moves to another host, or to none.
    pub moves: u32,
    /// How often a port gets a new LID.
    pub renumbers: u32,
    /// How often a service restarts with an empty cache.
    pub restarts: u32,
    /// How often a host is disconnected for some time.
    pub cuts: u32,
    /// How often a host claims an address of another one.
    pub lies: u32,
    /// How often a service receives a flush command, or its port gets another subnet manager, or the port goes down and up.
    pub events: u32,
    /// The longest delay of administration.
    pub think: Duration,
    /// The probability that administration refuses, or does not answer.
    pub refuses: f64,
    /// The probability that a send queue is full.
    pub full: f64,
    /// The time span in which all of this happens.
    pub span: Duration,
}

impl AcmScenario {
    /// Draws a scenario. In a third of all scenarios nothing goes wrong, except that hosts claim others' addresses in a third of these.
    pub fn draw(rng: &mut impl Rng) -> Self {
        let bad = rng.random_bool(0.67);
        let chance = |p: f64| if bad { p } else { 0.0 };
        let few = |rng: &mut dyn rand::RngCore, most| {
            if !bad || rng.random_bool(0.5) { 0 } else { rng.random_range(0..=most) }
        };
        let pick = |rng: &mut dyn rand::RngCore, from: &[u64]| {
            Duration::from_millis(from[rng.random_range(0..from.len())])
        };
        let claims = [ClaimPolicy::First, ClaimPolicy::Newest, ClaimPolicy::Verified];
        let protocols = [RouteProtocol::Sa, RouteProtocol::Acm];
        let options = Options {
            address_timeout: pick(rng, &[2000, 5000, 20_000, 100_000]),
            route_timeout: pick(rng, &[2000, 10_000, 100_000]),
            negative_timeout: pick(rng, &[0, 1000, 3000]),
            route_protocol: protocols[rng.random_range(0..2)],
            local_loopback: rng.random_bool(0.9),
            timeout: pick(rng, &[100, 500, 2000]),
            retries: rng.random_range(0..=4),
            deadline: Duration::from_secs(rng.random_range(1..=30)),
            resolve_depth: rng.random_range(1..=4),
            sa_depth: rng.random_range(1..=4),
            send_depth: rng.random_range(1..=16),
            recv_depth: [2, 16, 1024][rng.random_range(0..3)],
            max_groups: rng.random_range(1..=6),
            claims: claims[rng.random_range(0..3)],
            max_entries: if bad { rng.random_range(2..=40) } else { 1000 },
            max_requests_per_client: if bad { rng.random_range(1..=40) } else { 1000 },
            max_requests: if bad { rng.random_range(1..=60) } else { 1000 },
            refresh: rng.random_bool(0.7),
            announce: rng.random_bool(0.7),
            ..Options::default()
        };
        Self {
            hosts: rng.random_range(2..=8),
            addresses: rng.random_range(2..=24),
            options,
            loss: chance(rng.random_range(0.0..0.4)),
            duplicate: chance(rng.random_range(0.0..0.3)),
            delay: Duration::from_micros(rng.random_range(10..40_000)),
            requests: rng.random_range(1..=300),
            timeout: Duration::from_millis(rng.random_range(1..20_000)),
            moves: few(rng, 10),
            renumbers: few(rng, 10),
            restarts: few(rng, 6),
            cuts: few(rng, 6),
            lies: if bad || rng.random_bool(0.67) {
                few(rng, 40)
            } else {
                rng.random_range(1..=40)
            },
            events: few(rng, 10),
            think: Duration::from_millis(rng.random_range(1..400)),
            refuses: chance(rng.random_range(0.0..0.3)),
            full: chance(rng.random_range(0.0..0.3)),
            span: Duration::from_secs(rng.random_range(1..200)),
        }
    }

    /// Returns whether nothing goes wrong.
    pub fn is_good(&self) -> bool {
        self.is_good_but_for_lies() && self.lies == 0
    }

    /// Returns whether nothing goes wrong, except that hosts may claim others' addresses.
    pub(super) fn is_good_but_for_lies(&self) -> bool {
        let faults = self.loss + self.duplicate + self.refuses + self.full;
        let events = self.moves + self.renumbers + self.restarts + self.cuts + self.events;
        faults == 0.0 && events == 0 && self.options.max_requests >= 1000
    }

    /// Returns whether no claim of an address that another host holds in a cache may be believed: by the policy `first` never, by
    /// `verified` if the holder's answers arrive in time.
    pub(super) fn refuses_lies(&self) -> bool {
        match self.options.claims {
            ClaimPolicy::First => true,
            ClaimPolicy::Newest => false,
            ClaimPolicy::Verified => {
                self.is_good_but_for_lies() && self.options.timeout > self.delay * 2
            }
        }
    }
}

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Statistics of a run without failures.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct AcmStats {
            $($(#[$doc])* pub $name: u64,)*
            /// The virtual time of the run.
            pub virtual_time: Duration,
            /// A fingerprint that differs when anything is sent at another time.
            pub fingerprint: u64,
        }

        impl AddAssign for AcmStats {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
                self.virtual_time += other.virtual_time;
                // Independent of the order of the runs.
                self.fingerprint ^= other.fingerprint;
            }
        }
    };
}

stats! {
    /// The number of runs.
    seeds,
    /// Runs in which nothing went wrong.
    good,
    /// Programs' requests.
    requests,
    /// Requests that got a path.
    found,
    /// Requests that were answered at once.
    at_once,
    /// Requests that got no path.
    failed,
    /// Paths that were outdated but still within their allowed time.
    stale,
    /// Paths that programs read without a request.
    read,
    /// Datagrams sent.
    sent,
    /// Datagrams lost.
    lost,
    /// Datagrams duplicated.
    duplicated,
    /// Searches that were answered by overheard answers.
    overheard,
    /// Addresses that two hosts claimed.
    contradictions,
    /// Contradictions in which the new claim was accepted.
    replaced,
    /// Addresses confirmed before they expired.
    refreshed,
    /// Addresses evicted to make room.
    evicted,
    /// Requests refused by negative cache entries.
    negative,
    /// Path queries to administration.
    questions,
    /// Requests that reached their deadline.
    deadlines,
    /// Answers dropped because too many were queued.
    dropped,
}

impl fmt::Display for AcmStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} seeds ({} in which nothing goes wrong), {:.1} s on their clocks: {} requests, {} paths found ({} known, {} true before), {} not; {} paths read; {} datagrams, {} lost, {} duplicated",
            self.seeds,
            self.good,
            self.virtual_time.as_secs_f64(),
            self.requests,
            self.found,
            self.at_once,
            self.stale,
            self.failed,
            self.read,
            self.sent,
            self.lost,
            self.duplicated
        )?;
        write!(
            f,
            "{} overheard, {} contradictions ({} believed), {} confirmed, {} evicted, {} known not to exist, {} questions about paths, {} deadlines, {} answers dropped; fingerprint {:016x}",
            self.overheard,
            self.contradictions,
            self.replaced,
            self.refreshed,
            self.evicted,
            self.negative,
            self.questions,
            self.deadlines,
            self.dropped,
            self.fingerprint
        )
    }
}

/// A failed run.
#[derive(Clone, Debug)]
pub struct AcmFailure {
    /// The seed of the run.
    pub seed: u64,
    /// The virtual time of the failure.
    pub at: Time,
    /// The invariant that was violated, in words.
    pub what: String,
    /// The scenario of the seed.
    pub scenario: AcmScenario,
}

impl fmt::Display for AcmFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, at, what, scenario } = self;
        writeln!(f, "seed {seed} fails at {} ns: {what}", at.0)?;
        let replay = "cargo run --release -p rdmux-sim -- --acm --trace --seed";
        write!(f, "replay it: {replay} {seed}\n{scenario:#?}")
    }
}

impl std::error::Error for AcmFailure {}

/// Runs the simulation of a seed.
///
/// # Errors
/// The first failure. The same seed fails in the same way.
pub fn run_acm_seed(seed: u64) -> Result<AcmStats, Box<AcmFailure>> {
    world::World::new(seed, false).run(seed)
}

/// Runs the simulation of a seed and logs its events to standard error.
///
/// # Errors
/// As [`run_acm_seed`].
pub fn trace_acm_seed(seed: u64) -> Result<AcmStats, Box<AcmFailure>> {
    world::World::new(seed, true).run(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acm_simulation_of_400_seeds_finds_no_violation() {
        let mut all = AcmStats::default();
        for seed in 0..400 {
            match run_acm_seed(seed) {
                Ok(stats) => all += stats,
                Err(failure) => panic!("{failure}"),
            }
        }
        // The seeds reach the cases that they are meant for.
        assert!(all.good > 80 && all.found > 20_000 && all.failed > 1000, "{all}");
        assert!(all.stale > 100 && all.read > 1000 && all.lost > 1000, "{all}");
        assert!(all.duplicated > 1000, "{all}");
        assert!(all.overheard > 50 && all.contradictions > 100 && all.replaced > 30, "{all}");
        assert!(all.refreshed > 50 && all.evicted > 500 && all.negative > 100, "{all}");
        assert!(all.questions > 1000 && all.deadlines > 100 && all.dropped > 0, "{all}");
    }

    #[test]
    fn acm_simulation_is_deterministic_for_a_seed() {
        for seed in 0..10 {
            assert_eq!(run_acm_seed(seed).unwrap(), run_acm_seed(seed).unwrap());
        }
    }
}
