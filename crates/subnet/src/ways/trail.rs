//! The record of a walk: the ports that it depends on, and what each of them counts.

use alloc::vec::Vec;

use rdmux_wire::Lid;

use super::{linear_block, multicast_block};
use crate::changes::Change;
use crate::counters::{Counter, DropReason, Way};
use crate::packet::{NodeId, PortId};
use crate::port::PortData;
use crate::subnet::Subnet;

/// The dependencies of a walk, and the counts of packets that take its route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trail {
    ports: Vec<PortId>,
    links: Vec<Crossed>,
    losses: Vec<Loss>,
    /// The packet sets that links and losses refer to. Usually there is one, since all packets take the same route.
    kinds: Vec<Kinds>,
}

/// A link that some packets cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Crossed {
    out: PortId,
    into: PortId,
    kinds: u16,
}

/// A port that drops some packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loss {
    at: PortId,
    reason: DropReason,
    kinds: u16,
}

/// A set of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kinds {
    /// Bit n: packets of service level n.
    pub(super) sls: u16,
    /// Bit i: packets with the P_Key at index i of the sender's table.
    pub(super) pkeys: u128,
    /// Packets with more payload than this, in bytes; zero stands for no limit.
    pub(super) above: u16,
    /// Packets with at most this much payload.
    pub(super) up_to: u16,
}

impl Kinds {
    const fn is_empty(&self) -> bool {
        self.sls == 0 || self.pkeys == 0 || self.above >= self.up_to
    }

    const fn has(&self, packet: &PacketKind) -> bool {
        let PacketKind { sl, pkey, payload } = *packet;
        let is_long = self.above == 0 || payload > self.above;
        let fits = is_long && payload <= self.up_to;
        fits && sl < 16 && self.sls >> sl & 1 != 0 && pkey < 128 && self.pkeys >> pkey & 1 != 0
    }
}

/// The properties that decide a packet's route, apart from its LIDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketKind {
    /// Its service level, 0 to 15.
    pub sl: u8,
    /// The index of its P_Key in the sender's table.
    pub pkey: u8,
    /// Bytes of payload.
    pub payload: u16,
}

/// A number of sent packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of packets.
    pub packets: u64,
    /// Their total length in words of four bytes, LRH to ICRC (IBTA 16.1.3.5).
    pub words: u64,
    /// Whether the packets were sent to a multicast group.
    pub is_multicast: bool,
}

impl Trail {
    /// Returns the ports that packets pass, up to the last ones that they reach; in a group's tree possibly with duplicates.
    pub fn ports(&self) -> &[PortId] {
        &self.ports
    }

    /// Returns whether the route to `dlid` that has left this trail may differ after a change.
    pub fn depends_on(&self, dlid: Lid, change: Change) -> bool {
        let crosses = |node| self.ports.iter().any(|port| port.node == node);
        match change {
            Change::Node(node) | Change::Port(PortId { node, number: 0 }) => crosses(node),
            Change::Port(port) => self.ports.contains(&port),
            Change::Lanes { node, input, output } => {
                [input, output].iter().all(|&number| self.ports.contains(&PortId { node, number }))
            }
            Change::Linear { node, block } => {
                dlid.is_unicast() && linear_block(dlid) == block && crosses(node)
            }
            Change::Multicast { node, block } => {
                multicast_block(dlid) == Some(block) && crosses(node)
            }
        }
    }

    /// Returns whether packets of another trail are counted the same way.
    pub fn counts_as(&self, other: &Self) -> bool {
        (&self.links, &self.losses, &self.kinds) == (&other.links, &other.losses, &other.kinds)
    }

    /// Returns the port that drops packets of a kind, and the reason; the first such port, if copies are dropped at several.
    pub fn loss(&self, packet: PacketKind) -> Option<(PortId, DropReason)> {
        let is_lost = |loss: &&Loss| self.kinds_of(loss.kinds).has(&packet);
        self.losses.iter().find(is_lost).map(|loss| (loss.at, loss.reason))
    }

    pub(super) fn push(&mut self, port: &PortData) {
        self.ports.push(port.id);
    }

    /// Records that packets cross a link.
    pub(super) fn cross(&mut self, out: PortId, into: PortId, kinds: Kinds) {
        let kinds = self.number(kinds);
        self.links.push(Crossed { out, into, kinds });
    }

    /// Records that a port drops packets, if there are any.
    pub(super) fn lose(&mut self, at: PortId, reason: DropReason, kinds: Kinds) {
        if !kinds.is_empty() {
            let kinds = self.number(kinds);
            self.losses.push(Loss { at, reason, kinds });
        }
    }

    fn number(&mut self, kinds: Kinds) -> u16 {
        let at = self.kinds.iter().rposition(|known| *known == kinds).unwrap_or_else(|| {
            self.kinds.push(kinds);
            self.kinds.len() - 1
        });
        // Each port of a route distinguishes at most 16 service levels, 128 keys and 5 MTUs.
        u16::try_from(at).unwrap_or(u16::MAX)
    }

    fn kinds_of(&self, number: u16) -> Kinds {
        const NONE: Kinds = Kinds { sls: 0, pkeys: 0, above: 0, up_to: 0 };
        self.kinds.get(usize::from(number)).copied().unwrap_or(NONE)
    }
}

/// A trail of known ports that counts no packets.
impl FromIterator<PortId> for Trail {
    fn from_iter<T: IntoIterator<Item = PortId>>(ports: T) -> Self {
        Self { ports: ports.into_iter().collect(), ..Self::default() }
    }
}

impl Change {
    /// Returns the node that has changed, or whose port has.
    pub const fn node(self) -> NodeId {
        match self {
            Self::Port(port) => port.node,
            Self::Node(node)
            | Self::Lanes { node, .. }
            | Self::Linear { node, .. }
            | Self::Multicast { node, .. } => node,
        }
    }
}

impl Subnet {
    /// Makes the ports of a trail count packets that were sent along it, as if they had been forwarded: links count them, and
    /// ports that drop some count those.
    pub fn count_along(&mut self, trail: &Trail, packet: PacketKind, traffic: Traffic) {
        for link in trail.links.iter().filter(|link| trail.kinds_of(link.kinds).has(&packet)) {
            if let (Some(out), Some(into)) = (self.index(link.out), self.index(link.into)) {
                self.count_link(out, into, packet.sl, traffic);
            }
        }
        for loss in trail.losses.iter().filter(|loss| trail.kinds_of(loss.kinds).has(&packet)) {
            self.count_loss(loss.at, loss.reason, traffic.packets);
        }
    }

    /// Makes a port count packets that it drops.
    pub fn count_loss(&mut self, at: PortId, reason: DropReason, packets: u64) {
        if let Some(at) = self.index(at) {
            self.ports[at].counters.drop_many(reason, packets);
        }
    }

    /// Makes a port count packets that it did not admit, because their P_Key was not in its table or their Q_Key not that of
    /// the queue pair. The counters of PortInfo saturate.
    pub fn count_violations(&mut self, at: PortId, reason: DropReason, packets: u64) {
        self.count_loss(at, reason, packets);
        let Some(at) = self.index(at) else { return };
        let info = &mut self.ports[at].info;
        let counter = match reason {
            DropReason::WrongPkey => &mut info.pkey_violations,
            DropReason::WrongQkey => &mut info.qkey_violations,
            _ => return,
        };
        *counter = counter.saturating_add(u16::try_from(packets).unwrap_or(u16::MAX));
    }

    /// Counts packets at both ends of a link that they cross.
    pub(crate) fn count_link(&mut self, out: usize, into: usize, sl: u8, traffic: Traffic) {
        let Traffic { packets, words, is_multicast } = traffic;
        let (sent, received) = if is_multicast {
            (Counter::PortMulticastXmitPkts, Counter::PortMulticastRcvPkts)
        } else {
            (Counter::PortUnicastXmitPkts, Counter::PortUnicastRcvPkts)
        };
        for (at, way, all, of_kind) in [
            (out, Way::Xmit, Counter::PortXmitPkts, sent),
            (into, Way::Rcv, Counter::PortRcvPkts, received),
        ] {
            let counters = &mut self.ports[at].counters;
            counters.add_data(way, sl, words);
            counters.add(all, packets);
            counters.add(of_kind, packets);
        }
    }
}
