//! The scenario of a seed: nodes, connections, faults of the network, and troubles.

use std::time::Duration;

use rand::Rng;
use rand::seq::IndexedRandom;
use rdmux_transport::attr::QpType;
use rdmux_wire::Mtu;

use crate::net::{Faults, NodeId};

/// A deliberate mistake of one side of a connection, which makes it fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// WRITE with an invalid key.
    RemoteKey,
    /// READ beyond the end of a region.
    RemoteBounds,
    /// An atomic on a misaligned address.
    Misaligned,
    /// SEND from memory with an invalid key.
    LocalKey,
    /// SEND longer than the receive.
    TooLong,
    /// An atomic with an invalid key.
    AtomicKey,
    /// SEND to a shared receive queue that does not exist; XRC only.
    Queue,
}

impl Poison {
    /// All mistakes; the last is of XRC only.
    pub(crate) const ALL: [Self; 7] = [
        Self::RemoteKey,
        Self::RemoteBounds,
        Self::Misaligned,
        Self::LocalKey,
        Self::TooLong,
        Self::AtomicKey,
        Self::Queue,
    ];
}

/// A connection, or for UD a pair of communicating queue pairs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The ends.
    pub ends: [NodeId; 2],
    /// The transport; for XRC the initiator, which is the first end.
    pub qp_type: QpType,
    /// How many operations each end posts.
    pub ops: [u32; 2],
    /// The longest message.
    pub max_len: u32,
    /// Entries of each queue.
    pub depth: u32,
    /// The longest delay until an end replaces a used receive.
    pub refill: Duration,
    /// The limit on outstanding READs and atomics.
    pub rd_atomic: u8,
    /// Code of the transport timer.
    pub timeout: u8,
    /// Code of the receiver-not-ready timer.
    pub rnr_timer: u8,
    /// The end that makes a mistake, the number of its operation, and the mistake.
    pub poison: Option<(usize, u32, Poison)>,
    /// Whether an end drains its send queue in the middle of its work.
    pub drain: bool,
    /// Whether every send is signaled.
    pub signal_all: bool,
    /// The longest delay until an end posts again, in microseconds.
    pub pace: u64,
    /// The path events, if the connection has two paths.
    pub moves: Option<Moves>,
}

/// The path events of a connection with two paths.
#[derive(Clone, Debug)]
pub struct Moves {
    /// The time at which each end first loads the other path and arms.
    pub armed: [Duration; 2],
    /// The ends that request migration, and when.
    pub asks: Vec<(usize, Duration)>,
    /// Path failures.
    pub dead: Vec<DeadPath>,
}

/// A path that is dead for some time.
#[derive(Clone, Copy, Debug)]
pub struct DeadPath {
    /// The path.
    pub path: u8,
    /// The time at which the path fails, or as soon as both ends are ready after that.
    pub at: Duration,
    /// How long the path is dead.
    pub lasts: Duration,
    /// Whether the failure is skipped if the ends are never ready.
    pub is_merciful: bool,
}

impl Plan {
    /// Returns the queue pair type of an end.
    pub fn type_of(&self, end: usize) -> QpType {
        match self.qp_type {
            QpType::XrcSend if end == 1 => QpType::XrcRecv,
            both => both,
        }
    }
}

/// A partition of two nodes.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// The nodes.
    pub nodes: (NodeId, NodeId),
    /// The time at which the partition begins.
    pub at: Duration,
    /// The duration of the partition.
    pub lasts: Duration,
}

/// The parameters of a run, all drawn before the clock starts.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// How many nodes there are.
    pub nodes: usize,
    /// Whether the link under all connections is lossless.
    pub lossless: bool,
    /// The largest payload of a packet on the link.
    pub max_payload: u32,
    /// Path MTU.
    pub mtu: Mtu,
    /// The network.
    pub faults: Faults,
    /// The probability that a link is full.
    pub busy: f64,
    /// The probability that a process is busy when an XRC target needs its memory.
    pub owner_busy: f64,
    /// Whether such a process executes atomics later.
    pub late_atomics: bool,
    /// Nodes whose queue pairs share a receive queue.
    pub srq: Vec<bool>,
    /// Nodes whose queue pairs buffer out-of-order packets.
    pub keeps: Vec<bool>,
    /// The connections.
    pub plans: Vec<Plan>,
    /// A partition, if any.
    pub cut: Option<Cut>,
    /// A node that crashes, and when.
    pub crash: Option<(NodeId, Duration)>,
    /// Nodes that are paused for up to [`LONGEST_PAUSE`] from time to time. The network loses nothing if there is one, and no
    /// queue pair may mistake a pause for a loss.
    pub pauses: Vec<bool>,
}

/// The longest pause of a node.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The shortest and the longest time between pauses.
pub const BETWEEN_PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];
/// The timeout of perftest: code 14, 67 ms.
const TIMEOUT_WITH_PAUSES: u8 = 14;

impl Scenario {
    /// Draws a scenario.
    pub fn draw(rng: &mut impl Rng) -> Self {
        let nodes = rng.random_range(2..=4);
        let lossless = rng.random_bool(0.2);
        let mtu = Mtu::from_code(rng.random_range(1..=5)).expect("codes 1 to 5 exist");
        let mut faults = draw_faults(lossless, rng);
        let largest: u32 = match rng.random_range(0..100) {
            0..60 => 3 * mtu.bytes() + 7,
            60..90 => 40_000,
            90..97 => 200_000,
            _ => 1 << 20,
        };
        let count =
            if largest > 100_000 { rng.random_range(1..=2) } else { rng.random_range(1..=6) };
        let mut plans: Vec<Plan> =
            (0..count).map(|_| draw_plan(nodes, largest, lossless, rng)).collect();
        for plan in &mut plans {
            draw_moves(plan, lossless, rng);
        }
        let longest_timer = plans.iter().map(|p| 4096_u64 << p.timeout).max().unwrap_or(0);
        let shortest_timer = plans.iter().map(|p| 4096_u64 << p.timeout).min().unwrap_or(0);
        let soon = Duration::from_micros(rng.random_range(0..5000));
        let cut = (!lossless && rng.random_bool(0.15)).then(|| Cut {
            nodes: (0, 1),
            at: soon,
            // Either too short for either end to notice, or too long for either to survive.
            lasts: if rng.random_bool(0.5) {
                Duration::from_nanos(shortest_timer / 2)
            } else {
                Duration::from_nanos(longest_timer * 40)
            },
        });
        let crash = rng.random_bool(0.1).then_some((0, soon));
        let scarce = largest <= 40_000 && rng.random_bool(0.1);
        let pauses: Vec<bool> = (0..nodes).map(|_| scarce && rng.random_bool(0.5)).collect();
        if scarce {
            plans.iter_mut().for_each(|plan| plan.timeout = TIMEOUT_WITH_PAUSES);
            (faults.loss, faults.corrupt) = (0.0, 0.0);
        }
        Self {
            nodes,
            lossless,
            max_payload: if lossless {
                *[4096, 8192, 32_768].choose(rng).expect("three")
            } else {
                4096
            },
            mtu,
            faults,
            busy: if rng.random_bool(0.3) { 0.2 } else { 0.0 },
            // After a refused packet the whole rest of a long message is retransmitted.
            owner_busy: match rng.random_range(0..3) {
                0 => 0.0,
                1 => 0.002,
                _ if largest > 40_000 => 0.002,
                _ => 0.1,
            },
            late_atomics: rng.random_bool(0.7),
            srq: (0..nodes).map(|_| rng.random_bool(0.3)).collect(),
            keeps: (0..nodes).map(|_| rng.random_bool(0.7)).collect(),
            plans,
            cut: cut.filter(|_| !scarce),
            crash,
            pauses,
        }
    }
}

fn draw_faults(lossless: bool, rng: &mut impl Rng) -> Faults {
    let delay = Duration::from_nanos(rng.random_range(100..100_000));
    if lossless {
        return Faults::none(delay);
    }
    let mut level = |worst: f64| match rng.random_range(0..4) {
        0 => 0.0,
        1 => worst / 100.0,
        2 => worst / 10.0,
        _ => worst,
    };
    Faults {
        loss: level(0.1),
        duplicate: level(0.1),
        corrupt: level(0.05),
        reorder: level(0.1),
        delay,
        jitter: delay * 10,
        // Fewer than a connection's retries.
        at_most: Some(2),
    }
}

fn draw_plan(nodes: usize, largest: u32, lossless: bool, rng: &mut impl Rng) -> Plan {
    let a = rng.random_range(0..nodes);
    let b = (a + rng.random_range(1..nodes)) % nodes;
    let qp_type = match rng.random_range(0..10) {
        0 => QpType::Uc,
        1 => QpType::Ud,
        2..=4 => QpType::XrcSend,
        _ => QpType::Rc,
    };
    let is_xrc = qp_type == QpType::XrcSend;
    let most_ops: u32 = if largest > 100_000 { 12 } else { 60 };
    let ops =
        [rng.random_range(0..=most_ops), if is_xrc { 0 } else { rng.random_range(0..=most_ops) }];
    let poison = (qp_type.is_reliable() && rng.random_bool(0.15)).then(|| {
        let kinds = if is_xrc { &Poison::ALL[..] } else { &Poison::ALL[..6] };
        let end = if is_xrc { 0 } else { rng.random_range(0..2) };
        (end, rng.random_range(0..=ops[end]), *kinds.choose(rng).expect("some"))
    });
    Plan {
        ends: [a, b],
        qp_type,
        ops,
        max_len: if qp_type == QpType::Ud { 2048 } else { largest },
        depth: rng.random_range(1..=16),
        refill: Duration::from_micros(*[0, 0, 10, 300, 3000].choose(rng).expect("five")),
        rd_atomic: rng.random_range(1..=8),
        timeout: if lossless { 18 } else { rng.random_range(11..=17) },
        rnr_timer: rng.random_range(1..=18),
        poison,
        drain: qp_type.is_reliable() && rng.random_bool(0.2),
        signal_all: rng.random_bool(0.5),
        pace: 50,
        moves: None,
    }
}

fn draw_moves(plan: &mut Plan, lossless: bool, rng: &mut impl Rng) {
    if plan.qp_type == QpType::Ud || !rng.random_bool(0.3) {
        return;
    }
    let time = |most: u64, rng: &mut _| Duration::from_micros(Rng::random_range(rng, 0..most));
    plan.pace = *[50, 1000, 5000].choose(rng).expect("three");
    let both = rng.random_range(1..=4) * plan.pace * 10;
    let timer = Duration::from_nanos(4096 << plan.timeout);
    let dead = if lossless { 0 } else { rng.random_range(0..=3) };
    plan.moves = Some(Moves {
        armed: [time(500, rng), time(500, rng)],
        asks: (0..rng.random_range(0..=6))
            .map(|_| (rng.random_range(0..2), time(both, rng)))
            .collect(),
        dead: (0..dead)
            .map(|_| DeadPath {
                path: rng.random_range(0..2),
                at: time(both, rng),
                lasts: *[timer / 2, timer * 6, timer * 40, timer * 2000].choose(rng).expect("four"),
                is_merciful: rng.random_bool(0.9),
            })
            .collect(),
    });
}
