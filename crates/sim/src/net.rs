//! The network: the fate of each packet, drawn from the seed.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;
use rdmux_transport::Time;

/// A node of the network.
pub type NodeId = usize;

/// The faults of the network. Probabilities are per packet.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Probability of loss.
    pub loss: f64,
    /// Probability of duplication.
    pub duplicate: f64,
    /// Probability of flipped bits, which the receiver's checksum must detect.
    pub corrupt: f64,
    /// Probability of a delay beyond the packets that follow.
    pub reorder: f64,
    /// The base delay of every packet.
    pub delay: Duration,
    /// The largest additional delay of a delayed packet.
    pub jitter: Duration,
    /// How often the same packet may be lost or corrupted, so that a protocol with more retries has no excuse. `None` for no limit.
    pub at_most: Option<u8>,
}

impl Faults {
    /// Returns a network that delivers everything once and in order, with this delay.
    pub fn none(delay: Duration) -> Self {
        Self {
            loss: 0.0,
            duplicate: 0.0,
            corrupt: 0.0,
            reorder: 0.0,
            delay,
            jitter: Duration::ZERO,
            at_most: None,
        }
    }
}

/// The fate of a packet: its deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The deliveries; none if it is lost.
    pub deliveries: Vec<Delivery>,
}

/// One delivery of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The delay.
    pub after: Duration,
    /// Whether the packet arrives damaged.
    pub corrupt: bool,
}

/// Counts of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetStats {
    /// Sent.
    pub sent: u64,
    /// Lost at random.
    pub lost: u64,
    /// Lost to a partition or a crashed node.
    pub unreachable: u64,
    /// Delivered twice.
    pub duplicated: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Delayed.
    pub delayed: u64,
}

impl std::ops::AddAssign for NetStats {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.unreachable += other.unreachable;
        self.duplicated += other.duplicated;
        self.corrupted += other.corrupted;
        self.delayed += other.delayed;
    }
}

/// The network between nodes.
#[derive(Debug)]
pub struct Network {
    faults: Faults,
    /// The time until which each pair of nodes, smaller first, is partitioned.
    partitions: BTreeMap<(NodeId, NodeId), Time>,
    down: BTreeMap<NodeId, ()>,
    /// How often each packet was lost.
    losses: BTreeMap<u64, u8>,
    /// The latest arrival in order, by direction and path.
    fifo: BTreeMap<(NodeId, NodeId, u8), Time>,
    /// Statistics.
    pub stats: NetStats,
}

impl Network {
    /// Creates a network with these faults.
    pub fn new(faults: Faults) -> Self {
        Self {
            faults,
            partitions: BTreeMap::new(),
            down: BTreeMap::new(),
            losses: BTreeMap::new(),
            fifo: BTreeMap::new(),
            stats: NetStats::default(),
        }
    }

    /// Partitions two nodes until a time.
    pub fn partition(&mut self, a: NodeId, b: NodeId, until: Time) {
        self.partitions.insert((a.min(b), a.max(b)), until);
    }

    /// Crashes a node for good.
    pub fn crash(&mut self, node: NodeId) {
        self.down.insert(node, ());
    }

    /// Returns whether a node has crashed.
    pub fn is_down(&self, node: NodeId) -> bool {
        self.down.contains_key(&node)
    }

    /// Decides the fate of a packet. Packets with the same `identity` are retransmissions of each other.
    pub fn send(
        &mut self,
        now: Time,
        from: NodeId,
        to: NodeId,
        identity: u64,
        rng: &mut impl Rng,
    ) -> Verdict {
        self.send_by((from, to, 0), now, identity, rng)
    }

    /// Decides the fate of a packet on one of several paths. Packets on different paths may overtake each other.
    pub fn send_by(
        &mut self,
        way: (NodeId, NodeId, u8),
        now: Time,
        identity: u64,
        rng: &mut impl Rng,
    ) -> Verdict {
        let (from, to, _) = way;
        self.stats.sent += 1;
        let lost = Verdict { deliveries: Vec::new() };
        let cut = self.partitions.get(&(from.min(to), from.max(to))).is_some_and(|&t| now < t);
        if cut || self.is_down(from) || self.is_down(to) {
            self.stats.unreachable += 1;
            return lost;
        }
        let (drop, corrupt) =
            (self.chance(self.faults.loss, rng), self.chance(self.faults.corrupt, rng));
        let mut corrupt = corrupt;
        if (drop || corrupt) && !self.may_lose(identity) {
            corrupt = false;
        } else if drop {
            self.stats.lost += 1;
            return lost;
        }
        let mut deliveries = vec![Delivery { after: self.travel(now, way, rng), corrupt }];
        if corrupt {
            self.stats.corrupted += 1;
        }
        if self.chance(self.faults.duplicate, rng) {
            self.stats.duplicated += 1;
            deliveries.push(Delivery { after: self.travel(now, way, rng), corrupt: false });
        }
        Verdict { deliveries }
    }

    fn chance(&self, p: f64, rng: &mut impl Rng) -> bool {
        p > 0.0 && rng.random_bool(p)
    }

    fn may_lose(&mut self, identity: u64) -> bool {
        let Some(most) = self.faults.at_most else { return true };
        let count = self.losses.entry(identity).or_default();
        if *count >= most {
            return false;
        }
        *count += 1;
        true
    }

    /// Returns the delay of a packet. Arrivals keep their order, except delayed ones.
    fn travel(&mut self, now: Time, way: (NodeId, NodeId, u8), rng: &mut impl Rng) -> Duration {
        if self.chance(self.faults.reorder, rng) {
            self.stats.delayed += 1;
            return self.faults.delay + self.faults.jitter.mul_f64(rng.random());
        }
        let last = self.fifo.entry(way).or_default();
        let arrival = now.after(self.faults.delay).max(*last);
        *last = arrival;
        arrival.since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn network_without_faults_delivers_once_after_its_delay() {
        let mut net = Network::new(Faults::none(US));
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let verdict = net.send(Time(5), 0, 1, 9, &mut rng);
        assert_eq!(verdict.deliveries, [Delivery { after: US, corrupt: false }]);
    }

    #[test]
    fn same_packet_is_lost_at_most_the_configured_number_of_times() {
        let faults = Faults { loss: 1.0, at_most: Some(2), ..Faults::none(US) };
        let mut net = Network::new(faults);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let arrived: Vec<usize> =
            (0..4).map(|_| net.send(Time(0), 0, 1, 9, &mut rng).deliveries.len()).collect();
        assert_eq!(arrived, [0, 0, 1, 1]);
        assert!(net.send(Time(0), 0, 1, 10, &mut rng).deliveries.is_empty());
    }

    #[test]
    fn network_partition_ends_in_time_and_a_crash_never() {
        let mut net = Network::new(Faults::none(US));
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        net.partition(1, 0, Time(100));
        net.crash(2);
        let mut arrives =
            |now, from, to| !net.send(Time(now), from, to, 0, &mut rng).deliveries.is_empty();
        assert!(!arrives(99, 0, 1) && !arrives(99, 1, 0) && arrives(100, 0, 1));
        assert!(arrives(1, 0, 3) && !arrives(1000, 2, 0) && !arrives(1000, 0, 2));
    }
}
