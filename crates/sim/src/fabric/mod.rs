//! Queue pairs over an InfiniBand fabric: hosts on the ports of a subnet with switches and managers. As on real hosts,
//! packets are sent by route tables that are computed from the switches' tables. Datagrams are lost, duplicated, delayed and
//! corrupted. Meanwhile links fail, cables are moved, switches are reset, managers die and sweep, forwarding tables are wrong
//! for a time, and ports lose P_Keys, LIDs and their connection to the fabric.
//!
//! Invariants: a packet is sent to exactly those hosts whose ports it would reach over cables, by a walk through the
//! switches' own tables, packet by packet, that shares no code with the one that computes route tables (`oracle`). A port
//! admits exactly what its state, LIDs and P_Keys allow at that moment. No byte is wrong. RC delivers every message once and
//! in order, or ends because no answer arrives, and that only if the fabric has dropped its packets. Datagrams have the right
//! source. At the end everything has completed in bounded time, and nothing is left.

mod audit;
#[cfg(test)]
mod broken;
mod check;
mod end;
mod host;
mod life;
mod managers;
mod oracle;
mod packets;
mod rogue;
mod trouble;
mod work;
mod world;

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use rand::Rng;
use rand::seq::IndexedRandom;
use rdmux_link::ib::IbDrop;
use rdmux_subnet::manager::RoutingEngine;
use rdmux_transport::Time;
use rdmux_transport::attr::QpType;
use rdmux_wire::Mtu;

use crate::net::{Faults, NetStats};

/// Two connected queue pairs, or one that sends datagrams.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The hosts of its ends. A UD queue pair is on the first.
    pub hosts: [usize; 2],
    /// The transport.
    pub qp_type: QpType,
    /// How many operations each end posts.
    pub ops: [u32; 2],
    /// The longest message.
    pub max_len: u32,
    /// Path MTU; for UD the largest datagram.
    pub mtu: Mtu,
    /// Entries of each queue.
    pub depth: u32,
    /// The longest delay until an end posts the next operation.
    pub pace: Duration,
    /// The longest delay until an end replaces a used receive.
    pub refill: Duration,
    /// The limit on outstanding READs and atomics.
    pub rd_atomic: u8,
    /// Code of the transport timer.
    pub timeout: u8,
    /// Code of the receiver-not-ready timer.
    pub rnr_timer: u8,
    /// Whether packets have a GRH that they do not need.
    pub grh: bool,
    /// Service level.
    pub sl: u8,
    /// Whether every send is signaled.
    pub signal_all: bool,
    /// How often the plan's ends reconnect after an error.
    pub lives: u32,
}

/// The parameters of a run, all drawn before the clock starts.
#[derive(Clone, Debug)]
pub struct FabricScenario {
    /// The nodes and cables.
    pub shape: &'static str,
    /// The most managers.
    pub managers: usize,
    /// The algorithm for routes.
    pub routing: RoutingEngine,
    /// The LMC: each adapter's port gets 2^lmc LIDs.
    pub lmc: u8,
    /// Whether managers set the mapping of service levels to virtual lanes.
    pub service_levels: bool,
    /// The MTU of every port.
    pub mtu: Mtu,
    /// The most hosts.
    pub hosts: usize,
    /// The number of multicast groups.
    pub groups: usize,
    /// The probability that a datagram to or from a manager is lost.
    pub loss: f64,
    /// The longest one-way delay of such a datagram.
    pub delay: Duration,
    /// The network below the fabric.
    pub faults: Faults,
    /// The largest datagram of that network in bytes.
    pub narrow: Option<usize>,
    /// Whether the kernel segments messages into datagrams.
    pub segments: bool,
    /// Whether hosts buffer out-of-order packets.
    pub keeps: bool,
    /// The queue pairs.
    pub plans: Vec<Plan>,
    /// The number of troubles.
    pub troubles: u32,
    /// The time span of the troubles, from when the fabric is up.
    pub span: Duration,
}

impl FabricScenario {
    /// Draws a scenario.
    pub fn draw(rng: &mut impl Rng) -> Self {
        const SHAPES: [&str; 8] = [
            "two",
            "switch:3",
            "switch:6",
            "torus:3x1x1",
            "torus:3x3x1",
            "fattree:20",
            "fattree:40",
            "dragonfly:2,1,1",
        ];
        let hosts = rng.random_range(2..=5);
        let mtu = *[Mtu::M4096, Mtu::M4096, Mtu::M2048, Mtu::M1024].choose(rng).expect("four");
        let troubles = if rng.random_bool(0.85) { rng.random_range(1..=24) } else { 0 };
        let service_levels = rng.random_bool(0.3);
        let connections = rng.random_range(1..=6);
        let mut draw = |qp_type| draw_plan(hosts, mtu, service_levels, qp_type, &mut *rng);
        let mut plans: Vec<Plan> = (0..connections).map(|_| draw(None)).collect();
        plans.extend((0..hosts).map(|_| draw(Some(QpType::Ud))));
        Self {
            shape: SHAPES.choose(rng).expect("some"),
            managers: rng.random_range(1..=2),
            routing: if rng.random_bool(0.5) { RoutingEngine::Minhop } else { RoutingEngine::Updn },
            lmc: if rng.random_bool(0.4) { rng.random_range(1..=2) } else { 0 },
            service_levels,
            mtu,
            hosts,
            groups: rng.random_range(0..=3),
            loss: if rng.random_bool(0.3) { rng.random_range(0.0..0.1) } else { 0.0 },
            delay: Duration::from_micros(rng.random_range(1..1000)),
            faults: draw_faults(rng),
            narrow: rng.random_bool(0.5).then(|| *[9000, 1452, 576].choose(rng).expect("three")),
            segments: rng.random_bool(0.8),
            keeps: rng.random_bool(0.7),
            plans,
            troubles,
            span: Duration::from_millis(rng.random_range(1..4000)),
        }
    }
}

fn draw_faults(rng: &mut impl Rng) -> Faults {
    let delay = Duration::from_nanos(rng.random_range(100..50_000));
    let mut level = |worst: f64| match rng.random_range(0..4) {
        0 | 1 => 0.0,
        2 => worst / 10.0,
        _ => worst,
    };
    Faults {
        loss: level(0.05),
        duplicate: level(0.05),
        corrupt: level(0.03),
        reorder: level(0.05),
        delay,
        jitter: delay * 10,
        // Fewer than a connection's retries.
        at_most: Some(2),
    }
}

fn draw_plan(
    hosts: usize,
    mtu: Mtu,
    service_levels: bool,
    qp_type: Option<QpType>,
    rng: &mut impl Rng,
) -> Plan {
    let drawn = match rng.random_range(0..10) {
        0 | 1 => QpType::Uc,
        _ => QpType::Rc,
    };
    let qp_type = qp_type.unwrap_or(drawn);
    let is_datagram = qp_type == QpType::Ud;
    let most = if is_datagram { 60 } else { 40 };
    let a = rng.random_range(0..hosts);
    // Sometimes both ends are on one host.
    let b = if rng.random_bool(0.9) { (a + rng.random_range(1..hosts)) % hosts } else { a };
    let code = rng.random_range(1..=mtu.code());
    let path_mtu = Mtu::from_code(if rng.random_bool(0.5) { mtu.code() } else { code });
    let path_mtu = path_mtu.unwrap_or(mtu);
    let longest = match rng.random_range(0..10) {
        0..7 => 3 * path_mtu.bytes() + 7,
        7..9 => 20_000,
        _ => 100_000,
    };
    Plan {
        hosts: [a, b],
        qp_type,
        ops: [rng.random_range(0..=most), rng.random_range(0..=most)],
        // A datagram may be too long for the links of a path.
        max_len: if is_datagram { 4096 } else { longest },
        mtu: path_mtu,
        depth: rng.random_range(1..=16),
        pace: Duration::from_micros(*[10, 100, 3000, 30_000, 300_000].choose(rng).expect("five")),
        refill: Duration::from_micros(*[0, 0, 10, 300, 3000].choose(rng).expect("five")),
        rd_atomic: rng.random_range(1..=8),
        timeout: rng.random_range(11..=15),
        rnr_timer: rng.random_range(1..=18),
        grh: rng.random_bool(0.4),
        sl: if service_levels || rng.random_bool(0.3) { rng.random_range(0..16) } else { 0 },
        signal_all: rng.random_bool(0.5),
        lives: rng.random_range(0..=4),
    }
}

/// Statistics of a run without failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricStats {
    /// The number of runs.
    pub seeds: u64,
    /// Packets that queue pairs sent.
    pub packets: u64,
    /// Packets among these that the fabric would not have delivered.
    pub forbidden: u64,
    /// Copies of packets to groups.
    pub copies: u64,
    /// Datagrams sent.
    pub datagrams: u64,
    /// Datagrams among these that were parts of packets.
    pub parts: u64,
    /// Packets that ports admitted.
    pub admitted: u64,
    /// Packets that links or ports dropped, by reason.
    pub drops: [u64; IbDrop::ALL.len()],
    /// Completions of either queue.
    pub completions: u64,
    /// Connections that ended because no answer arrived.
    pub failures: u64,
    /// Connections that were made again.
    pub reconnects: u64,
    /// Bytes of messages that arrived and were compared.
    pub bytes: u64,
    /// Datagrams that arrived at a queue pair.
    pub received: u64,
    /// Troubles of the subnet.
    pub troubles: u64,
    /// Completed heavy sweeps.
    pub sweeps: u64,
    /// Routes that were compared with a walk through the switches' tables.
    pub ways: u64,
    /// Statistics of the network.
    pub net: NetStats,
    /// The virtual time of the run.
    pub virtual_time: Duration,
    /// A fingerprint that differs when anything is sent at another time.
    pub fingerprint: u64,
}

impl AddAssign for FabricStats {
    fn add_assign(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.packets += other.packets;
        self.forbidden += other.forbidden;
        self.copies += other.copies;
        self.datagrams += other.datagrams;
        self.parts += other.parts;
        self.admitted += other.admitted;
        self.drops.iter_mut().zip(other.drops).for_each(|(mine, more)| *mine += more);
        self.completions += other.completions;
        self.failures += other.failures;
        self.reconnects += other.reconnects;
        self.bytes += other.bytes;
        self.received += other.received;
        self.troubles += other.troubles;
        self.sweeps += other.sweeps;
        self.ways += other.ways;
        self.net += other.net;
        self.virtual_time += other.virtual_time;
        // Independent of the order of the runs.
        self.fingerprint ^= other.fingerprint;
    }
}

impl FabricStats {
    /// Returns how many packets were dropped for a reason.
    pub fn dropped(&self, why: IbDrop) -> u64 {
        self.drops[why as usize]
    }
}

impl fmt::Display for FabricStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} seeds, {:.1} s on their clocks: {} packets in {} datagrams ({} of them parts), {} packets that the fabric brings nowhere, {} copies to groups; {} let in",
            self.seeds,
            self.virtual_time.as_secs_f64(),
            self.packets,
            self.datagrams,
            self.parts,
            self.forbidden,
            self.copies,
            self.admitted
        )?;
        writeln!(
            f,
            "{} completions, {} datagrams received, {} bytes compared; {} connections failed, {} were made anew; {} things happened to the subnet, {} sweeps, {} ways compared",
            self.completions,
            self.received,
            self.bytes,
            self.failures,
            self.reconnects,
            self.troubles,
            self.sweeps,
            self.ways
        )?;
        let dropped = IbDrop::ALL.iter().filter(|why| self.dropped(**why) != 0);
        let dropped: Vec<String> =
            dropped.map(|why| format!("{} {}", why.name(), self.dropped(*why))).collect();
        let net = &self.net;
        write!(
            f,
            "dropped: {}; network: {} lost, {} duplicated, {} damaged, {} delayed; fingerprint {:016x}",
            dropped.join(", "),
            net.lost,
            net.duplicated,
            net.corrupted,
            net.delayed,
            self.fingerprint
        )
    }
}

/// A failed run.
#[derive(Clone, Debug)]
pub struct FabricFailure {
    /// The seed of the run.
    pub seed: u64,
    /// The virtual time of the failure.
    pub at: Time,
    /// The invariant that was violated, in words.
    pub what: String,
    /// The scenario of the seed.
    pub scenario: FabricScenario,
}

impl fmt::Display for FabricFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, at, what, scenario } = self;
        writeln!(f, "seed {seed} fails at {} ns: {what}", at.0)?;
        let replay = "cargo run --release -p rdmux-sim -- --fabric --trace --seed";
        write!(f, "replay it: {replay} {seed}\n{scenario:#?}")
    }
}

impl std::error::Error for FabricFailure {}

/// Runs the fabric simulation of a seed.
///
/// # Errors
/// The first failure. The same seed fails in the same way.
pub fn run_fabric_seed(seed: u64) -> Result<FabricStats, Box<FabricFailure>> {
    world::World::new(seed, false).run(seed)
}

/// Runs the simulation of a seed and logs its events to standard error.
///
/// # Errors
/// As [`run_fabric_seed`].
pub fn trace_fabric_seed(seed: u64) -> Result<FabricStats, Box<FabricFailure>> {
    world::World::new(seed, true).run(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fabric_simulation_of_300_seeds_finds_no_violation() {
        let mut all = FabricStats::default();
        for seed in 0..300 {
            match run_fabric_seed(seed) {
                Ok(stats) => all += stats,
                Err(failure) => panic!("{failure}"),
            }
        }
        // The seeds reach the cases that they are meant for.
        println!("{all}");
        assert!(all.failures > 100 && all.reconnects > 50 && all.troubles > 1000, "{all}");
        assert!(all.forbidden > 1000 && all.copies > 1000 && all.parts > 1000, "{all}");
        assert!(all.received > 1000 && all.ways > 10_000, "{all}");
        for why in [
            IbDrop::TxInactive,
            IbDrop::TxNoWay,
            IbDrop::TxPkey,
            IbDrop::TxSl,
            IbDrop::TxLength,
            IbDrop::RxInactive,
            IbDrop::RxLid,
            IbDrop::RxPkey,
            IbDrop::RxPart,
            IbDrop::RxIcrc,
            IbDrop::RxGivenUp,
        ] {
            assert!(all.dropped(why) > 0, "{}: {all}", why.name());
        }
        let net = all.net;
        assert!(net.lost > 500 && net.duplicated > 500, "{all}");
        assert!(net.corrupted > 500 && net.delayed > 500, "{all}");
    }

    #[test]
    fn fabric_simulation_is_deterministic_for_a_seed() {
        for seed in 0..10 {
            assert_eq!(run_fabric_seed(seed).unwrap(), run_fabric_seed(seed).unwrap());
        }
    }
}
