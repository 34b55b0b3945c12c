//! Walks compared, packet by packet, with datagrams that the subnet forwards.

use alloc::boxed::Box;
use alloc::vec::Vec;

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};
use rdmux_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use rdmux_wire::sm::{
    LinearForwardingTable, MulticastForwardingTable, NO_ROUTE, PkeyTable, PortInfo, SlToVlTable,
    SwitchInfo, VlCap,
};
use rdmux_wire::{Guid, Qkey, Qpn};

use super::*;
use crate::counters::{Shown, Way};
use crate::forward::Arrival;
use crate::packet::{MadPacket, NodeId};
use crate::subnet::Cx;
use crate::topology::{LinkRate, Node, NodeKind, PortRef, Shape, Topology};
use crate::{Change, Config, Counter, Time, sma};

const KEYS: [u16; 6] = [0xffff, 0x7fff, 0x8001, 0x0001, 0x8002, 0];
const MLID: Lid = Lid(0xc001);
/// LIDs for which tables are written.
const LIDS: u16 = 24;

/// The counters of packets.
const COUNTED: [Counter; 17] = [
    Counter::PortRcvErrors,
    Counter::PortRcvSwitchRelayErrors,
    Counter::PortXmitDiscards,
    Counter::PortXmitConstraintErrors,
    Counter::PortRcvConstraintErrors,
    Counter::PortXmitPkts,
    Counter::PortRcvPkts,
    Counter::PortUnicastXmitPkts,
    Counter::PortUnicastRcvPkts,
    Counter::PortMulticastXmitPkts,
    Counter::PortMulticastRcvPkts,
    Counter::PortDlidMappingErrors,
    Counter::PortVlMappingErrors,
    Counter::PortLoopingErrors,
    Counter::PortInactiveDiscards,
    Counter::PortSwLifetimeLimitDiscards,
    Counter::PortNeighborMtuDiscards,
];
const DROPS: [DropReason; 9] = [
    DropReason::NoLink,
    DropReason::NotActive,
    DropReason::NoRoute,
    DropReason::Loop,
    DropReason::TooManyHops,
    DropReason::NoVirtualLane,
    DropReason::PkeyIn,
    DropReason::PkeyOut,
    DropReason::WrongLid,
];

/// A random subnet of switches, adapters and cables. [`Random::set`] randomizes its tables and states.
struct Random {
    rng: ChaCha8Rng,
    subnet: Subnet,
}

impl Random {
    fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut below = |n: usize| rng.next_u32() as usize % n;
        let mut topology = Topology::default();
        let (switches, adapters) = (1 + below(4), 2 + below(4));
        for index in 0..switches + adapters {
            let (kind, ports) = match index < switches {
                true => (NodeKind::Switch, 6),
                false => (NodeKind::Ca, 1 + u8::try_from(below(2)).unwrap()),
            };
            let guid = Guid(0x100 * (index as u64 + 1));
            topology.add(Node::new(kind, alloc::format!("n{index}"), guid, ports));
        }
        let end = |node: usize, port: usize| PortRef { node, port: u8::try_from(port).unwrap() };
        for adapter in switches..switches + adapters {
            let _ = topology.connect(
                end(adapter, 1),
                end(below(switches), 1 + below(6)),
                LinkRate::DEFAULT,
            );
        }
        for _ in 0..2 * switches {
            let (a, b) = (end(below(switches), 1 + below(6)), end(below(switches), 1 + below(6)));
            if a != b {
                let _ = topology.connect(a, b, LinkRate::DEFAULT);
            }
        }
        let mut random = Self { rng, subnet: Subnet::new(&topology, Config::default()) };
        let ends = random.ends();
        for (index, at) in ends.into_iter().enumerate() {
            random.subnet.ports[at].info.lid = Lid(1 + 2 * u16::try_from(index).unwrap());
        }
        for port in &mut random.subnet.ports {
            if port.is_up() {
                port.info.port_state = PortState::ACTIVE;
            }
        }
        for at in 0..random.subnet.ports.len() {
            if random.subnet.kind(at) == PortKind::External && random.below(2) == 0 {
                let enforced = [random.below(3) == 0, random.below(3) == 0];
                let info = &mut random.subnet.ports[at].info;
                [info.partition_enforcement_inbound, info.partition_enforcement_outbound] =
                    enforced;
                random.pkeys(at);
            }
        }
        for at in 0..random.subnet.ports.len() {
            let end = random.subnet.manager_of(at);
            if random.subnet.kind(at) == PortKind::Management {
                random.switch_info(end);
                random.linear(end);
                random.multicast(end);
            }
        }
        random
    }

    fn below(&mut self, n: usize) -> usize {
        self.rng.next_u32() as usize % n
    }

    fn byte_below(&mut self, n: usize) -> u8 {
        u8::try_from(self.below(n)).unwrap()
    }

    /// Returns the ports with a LID, which send and receive packets.
    fn ends(&self) -> Vec<usize> {
        let all = 0..self.subnet.ports.len();
        all.filter(|&at| self.subnet.kind(at) != PortKind::External).collect()
    }

    /// Sends a Set, as a manager does.
    fn ask(&mut self, end: usize, attr_id: u16, modifier: u32, data: &[u8]) {
        let mut mad = [0; MAD_LEN];
        let mut header = MadHeader::new(MgmtClass::SUBN_LID, 1, Method::SET);
        (header.attr_id, header.attr_mod) = (attr_id, modifier);
        header.emit(&mut mad);
        mad[64..64 + data.len()].copy_from_slice(data);
        let ingress = self.subnet.ports[end].id.number;
        let request =
            sma::Request::new(Arrival { at: end, ingress, is_local: false }, &header, &mad);
        let mut cx = Cx { now: Time::ZERO, sink: &mut () };
        sma::answer(&mut self.subnet, &request, &mut mad, &mut cx);
    }

    fn switch_info(&mut self, end: usize) {
        let top = if self.below(6) == 0 { self.below(30) } else { 63 };
        let linear_fdb_top = Lid(u16::try_from(top).unwrap());
        let info = SwitchInfo { linear_fdb_top, ..SwitchInfo::default() };
        self.ask(end, SwitchInfo::ATTR_ID, 0, &info.to_bytes());
    }

    fn linear(&mut self, end: usize) {
        let mut block = [NO_ROUTE; 64];
        for port in &mut block[..usize::from(LIDS)] {
            // Port 7 does not exist.
            *port = if self.below(10) == 0 { NO_ROUTE } else { self.byte_below(8) };
        }
        self.ask(end, LinearForwardingTable::ATTR_ID, 0, &block);
    }

    fn multicast(&mut self, end: usize) {
        let mut block = [0; 64];
        block[3] = self.byte_below(128);
        self.ask(end, MulticastForwardingTable::ATTR_ID, 0, &block);
    }

    fn pkeys(&mut self, at: usize) {
        let mut table = PkeyTable::default();
        for slot in 0..1 + self.below(4) {
            table.pkeys[slot] = Pkey(KEYS[self.below(KEYS.len())]);
        }
        let number = self.subnet.ports[at].id.number;
        let end = self.subnet.manager_of(at);
        self.ask(end, PkeyTable::ATTR_ID, u32::from(number) << 16, &table.to_bytes());
    }

    fn lanes(&mut self, at: usize) {
        let mut table = SlToVlTable::from_bytes(&[0; 8]);
        for vl in &mut table.vls {
            vl.0 = if self.below(3) == 0 { 15 } else { self.byte_below(8) };
        }
        let (end, output) = (self.subnet.manager_of(at), self.subnet.ports[at].id.number);
        let is_switch = self.subnet.node_of(at).switch.is_some();
        let input = if is_switch { self.below(7) } else { 0 };
        let modifier = u32::try_from(input).unwrap() << 8 | u32::from(output);
        self.ask(end, SlToVlTable::ATTR_ID, modifier, &table.to_bytes());
    }

    fn port_info(&mut self, at: usize) {
        let end = self.subnet.manager_of(at);
        let number = self.subnet.ports[at].id.number;
        let mut info = self.subnet.ports[at].info;
        match self.below(6) {
            0 => info.lid = Lid(1 + u16::try_from(self.below(LIDS.into())).unwrap()),
            1 => info.lmc = self.byte_below(2),
            2 => info.neighbor_mtu = 1 + self.byte_below(5),
            3 => info.partition_enforcement_inbound ^= true,
            4 => info.partition_enforcement_outbound ^= true,
            _ => info.operational_vls = VlCap(1 + self.byte_below(4)),
        }
        info.port_state = PortState(self.byte_below(5));
        info.port_physical_state = rdmux_wire::sm::PhysState(0);
        if self.below(4) != 0 {
            info.port_state = PortState(0);
        }
        self.ask(end, PortInfo::ATTR_ID, number.into(), &info.to_bytes());
    }

    /// Makes a random change.
    fn change(&mut self) {
        let at = self.below(self.subnet.ports.len());
        let end = self.subnet.manager_of(at);
        let port = self.subnet.ports[at].id;
        match self.below(16) {
            0 => self.switch_info(end),
            1 => self.linear(end),
            2 | 3 => self.multicast(end),
            4..7 => self.pkeys(at),
            7..9 => self.lanes(at),
            9..13 => self.port_info(at),
            13 => {
                let up = self.below(2) == 0;
                let _ = self.subnet.set_cable(Time::ZERO, port, up, &mut ());
            }
            14 => {
                if let Ok(peer) = self.subnet.unplug(Time::ZERO, port, &mut ()) {
                    let other = self.below(self.subnet.ports.len());
                    let other = self.subnet.ports[other].id;
                    let rate = LinkRate::DEFAULT;
                    let _ = self.subnet.plug(Time::ZERO, peer, other, rate, &mut ());
                }
            }
            _ if self.below(4) == 0 => {
                let _ = self.subnet.reset_switch(Time::ZERO, port.node, &mut ());
            }
            _ => {
                // Most links should be active.
                if self.subnet.ports[at].is_up() {
                    let mut cx = Cx { now: Time::ZERO, sink: &mut () };
                    self.subnet.set_state(at, PortState::ACTIVE, &mut cx);
                }
            }
        }
    }

    /// Sends one datagram. Returns the ports that it reaches, and how many links all copies crossed.
    fn sent(&mut self, from: usize, dlid: Lid, sl: u8, pkey: Pkey) -> (Vec<PortId>, u64) {
        let mut packet = MadPacket {
            slid: self.subnet.ports[from].source(),
            dlid,
            sl,
            src_qpn: Qpn::QP1,
            dst_qpn: Qpn::QP1,
            qkey: Qkey::QP1,
            pkey,
            grh: None,
            mad: Box::new([0; MAD_LEN]),
        };
        let states: Vec<_> = self.subnet.ports.iter().map(|port| port.info.port_state).collect();
        let crossed = |subnet: &Subnet| -> u64 {
            subnet.ports().map(|port| port.counter(Counter::PortXmitPkts)).sum()
        };
        let before = crossed(&self.subnet);
        let mut cx = Cx { now: Time::ZERO, sink: &mut () };
        let reached = if dlid.is_multicast() {
            self.subnet.forward_multicast(from, &packet, &mut cx)
        } else {
            let arrival = self.subnet.forward(from, None, &mut packet, &mut cx);
            arrival.map(|arrival| arrival.at).into_iter().collect()
        };
        let mut reached: Vec<_> = reached.iter().map(|&at| self.subnet.ports[at].id).collect();
        reached.sort_unstable();
        for (port, state) in self.subnet.ports.iter_mut().zip(states) {
            port.info.port_state = state;
        }
        (reached, crossed(&self.subnet) - before)
    }

    /// Returns all counters of all ports.
    fn counted(&self) -> Vec<u64> {
        let of = |port: &PortData| {
            let counters = COUNTED.map(|counter| port.counters.get(counter, Shown::Extended));
            let drops = DROPS.map(|reason| port.counters.drops(reason));
            let by_sl = [Way::Xmit, Way::Rcv].map(|way| port.counters.by_sl(way));
            counters.into_iter().chain(drops).chain(by_sl.concat()).collect::<Vec<_>>()
        };
        self.subnet.ports.iter().flat_map(of).collect()
    }

    /// Returns the packets that a port can send: service level, and index and value of the P_Key.
    fn packets(&self, from: usize) -> Vec<(u8, usize, Pkey)> {
        let keys = self.subnet.ports[from].pkeys.iter().copied().enumerate();
        let keys = keys.filter(|(_, key)| key.0 & 0x7fff != 0);
        keys.flat_map(|(index, key)| (0..16).map(move |sl| (sl, index, key))).collect()
    }
}

/// Returns whether packets of a kind take a route.
fn takes(way: &WayFound, sl: u8, index: usize) -> bool {
    way.sls >> sl & 1 != 0 && way.pkeys >> index & 1 != 0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn unicast_routes_equal_datagram_delivery_for_every_sl_and_pkey(seed: u64) {
        let mut random = Random::new(seed);
        for _ in 0..random.below(80) {
            random.change();
        }
        for from in random.ends() {
            let id = random.subnet.ports[from].id;
            for dlid in (1..LIDS).map(Lid) {
                let way = random.subnet.way(id, dlid);
                for (sl, index, key) in random.packets(from) {
                    let (reached, hops) = random.sent(from, dlid, sl, key);
                    let expected = way.ok().filter(|way| takes(way, sl, index));
                    let to: Vec<_> = expected.iter().map(|way| way.to).collect();
                    prop_assert_eq!(&reached, &to, "{} to {:?}, {} {:?} {:?}", id, dlid, sl, key, way);
                    if let Some(way) = expected {
                        prop_assert_eq!(hops, u64::from(way.hops));
                    }
                }
            }
        }
    }

    #[test]
    fn counters_along_a_trail_equal_those_of_a_sent_datagram(seed: u64) {
        let mut random = Random::new(seed);
        for _ in 0..random.below(80) {
            random.change();
        }
        for port in &mut random.subnet.ports {
            if port.info.port_state == PortState::ARMED {
                port.info.port_state = PortState::ACTIVE;
            }
        }
        for from in random.ends() {
            let id = random.subnet.ports[from].id;
            for dlid in (1..LIDS).map(Lid).chain([MLID]) {
                let mut trail = Trail::default();
                if dlid.is_multicast() {
                    random.subnet.group_ways_along(id, dlid, &mut trail);
                } else {
                    let _ = random.subnet.way_along(id, dlid, &mut trail);
                }
                let packets = random.packets(from);
                for _ in 0..packets.len().min(1) {
                    let (sl, index, key) = packets[random.below(packets.len())];
                    let before = random.counted();
                    random.sent(from, dlid, sl, key);
                    let sent = random.counted();
                    let kind = PacketKind { sl, pkey: u8::try_from(index).unwrap(), payload: 256 };
                    let is_multicast = dlid.is_multicast();
                    let traffic = Traffic { packets: 1, words: 72, is_multicast };
                    random.subnet.count_along(&trail, kind, traffic);
                    let counted = random.counted();
                    let both = before.iter().zip(&sent).zip(&counted);
                    for (at, ((before, sent), counted)) in both.enumerate() {
                        prop_assert_eq!(
                            counted - sent, sent - before,
                            "{} to {:?}, {} {:?}: {} of {:?}", id, dlid, sl, key, at, trail
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn multicast_routes_equal_datagram_delivery_for_every_sl_and_pkey(seed: u64) {
        let mut random = Random::new(seed);
        for _ in 0..random.below(80) {
            random.change();
        }
        // A copy that makes an armed port active would let a later copy out by it.
        for port in &mut random.subnet.ports {
            if port.info.port_state == PortState::ARMED {
                port.info.port_state = PortState::ACTIVE;
            }
        }
        for from in random.ends() {
            let id = random.subnet.ports[from].id;
            let ways = random.subnet.group_ways(id, MLID);
            for (sl, index, key) in random.packets(from) {
                let (reached, _) = random.sent(from, MLID, sl, key);
                let taken = ways.iter().filter(|way| takes(way, sl, index));
                let mut expected: Vec<_> = taken.map(|way| way.to).collect();
                expected.sort_unstable();
                prop_assert_eq!(&reached, &expected, "{}, {} {:?} {:?}", id, sl, key, &ways);
            }
        }
    }

    #[test]
    fn every_route_change_is_reported_as_a_change_on_its_trail(seed: u64) {
        let mut random = Random::new(seed);
        random.subnet.keep_changes(true);
        let all = |subnet: &Subnet, ends: &[usize]| -> Vec<_> {
            let ends = ends.iter().map(|&at| subnet.ports[at].id);
            ends.flat_map(|from| {
                let unicast = (1..LIDS).map(Lid).map(move |dlid| {
                    let mut trail = Trail::default();
                    let way = subnet.way_along(from, dlid, &mut trail);
                    let way = way.ok().into_iter().collect::<Vec<_>>();
                    (dlid, trail, way)
                });
                let mut trail = Trail::default();
                let ways = subnet.group_ways_along(from, MLID, &mut trail);
                unicast.chain([(MLID, trail, ways)])
            })
            .collect()
        };
        let ends = random.ends();
        let mut before = all(&random.subnet, &ends);
        for _ in 0..60 {
            let generation = random.subnet.generation();
            random.change();
            let after = all(&random.subnet, &ends);
            let changes = random.subnet.take_changes().expect("few changes");
            prop_assert_eq!(changes.is_empty(), generation == random.subnet.generation());
            for ((dlid, trail, old), (.., new)) in before.iter().zip(&after) {
                let expected = changes.iter().any(|change| trail.depends_on(*dlid, *change));
                prop_assert!(
                    old == new || expected,
                    "{:?} was {:?}, is {:?} after {:?} beside {:?}", dlid, old, new, changes, trail
                );
            }
            before = after;
        }
    }
}

/// Builds `switch:3` with LIDs 1 to 4 in the order of the nodes, routes to all, and active links.
fn star() -> Random {
    let subnet = Subnet::new(&Shape::Switch(3).topology(Guid(0x100)), Config::default());
    let mut random = Random { rng: ChaCha8Rng::seed_from_u64(0), subnet };
    let mut block = [NO_ROUTE; 64];
    block[1..5].copy_from_slice(&[0, 1, 2, 3]);
    let info = SwitchInfo { linear_fdb_top: Lid(4), ..SwitchInfo::default() };
    for (index, at) in random.ends().into_iter().enumerate() {
        random.subnet.ports[at].info.lid = Lid(1 + u16::try_from(index).unwrap());
    }
    for port in &mut random.subnet.ports {
        port.info.port_state = PortState::ACTIVE;
    }
    random.ask(0, SwitchInfo::ATTR_ID, 0, &info.to_bytes());
    random.ask(0, LinearForwardingTable::ATTR_ID, 0, &block);
    random
}

const fn port(node: u32, number: u8) -> PortId {
    PortId::new(NodeId(node), number)
}

#[test]
fn route_has_the_smallest_mtu_and_lowest_rate_of_its_links() {
    let mut random = star();
    let way = random.subnet.way(port(1, 1), Lid(4)).unwrap();
    let whole = WayFound {
        to: port(3, 1),
        hops: 2,
        mtu: Mtu::M4096,
        rate: Rate::GBPS_100,
        sls: 0xffff,
        pkeys: 1,
    };
    assert_eq!(way, whole);
    // The last link: first the switch's end, then the receiver's capabilities.
    let [out, into] = [port(0, 3), port(3, 1)].map(|id| random.subnet.index(id).unwrap());
    random.subnet.ports[out].info.neighbor_mtu = Mtu::M2048.code();
    random.subnet.ports[out].info.link_speed_ext_active = rdmux_wire::sm::LinkSpeedExt::FDR;
    let way = random.subnet.way(port(1, 1), Lid(4)).unwrap();
    assert_eq!((way.mtu, way.rate), (Mtu::M2048, Rate::GBPS_56));
    random.subnet.ports[into].info.mtu_cap = Mtu::M512.code();
    assert_eq!(random.subnet.way(port(1, 1), Lid(4)).unwrap().mtu, Mtu::M512);
    assert_eq!(random.subnet.way(port(1, 1), Lid(3)).unwrap().mtu, Mtu::M4096);
    let own = random.subnet.way(port(1, 1), Lid(2)).unwrap();
    assert_eq!((own.to, own.hops), (port(1, 1), 0));
}

#[test]
fn packet_above_neighbor_mtu_is_dropped_at_the_egress_port() {
    let mut random = star();
    let out = random.subnet.index(port(0, 3)).unwrap();
    random.subnet.ports[out].info.neighbor_mtu = Mtu::M1024.code();
    let mut trail = Trail::default();
    random.subnet.way_along(port(1, 1), Lid(4), &mut trail).unwrap();
    let traffic = Traffic { packets: 3, words: 900, is_multicast: false };
    let send = |random: &mut Random, payload| {
        let kind = PacketKind { sl: 2, pkey: 0, payload };
        random.subnet.count_along(&trail, kind, traffic);
        trail.loss(kind)
    };
    for fits in [0, 1, 1024] {
        assert_eq!(send(&mut random, fits), None);
    }
    let lost = Some((port(0, 3), DropReason::TooLong));
    assert_eq!([1025, 4096].map(|payload| send(&mut random, payload)), [lost; 2]);
    let counter = |id, counter| random.subnet.port(id).unwrap().counter(counter);
    assert_eq!(counter(port(1, 1), Counter::PortXmitData), 5 * 900);
    assert_eq!(counter(port(0, 1), Counter::PortUnicastRcvPkts), 15);
    assert_eq!(counter(port(0, 3), Counter::PortUnicastXmitPkts), 9);
    assert_eq!(counter(port(3, 1), Counter::PortRcvPkts), 9);
    let drops = [Counter::PortXmitDiscards, Counter::PortNeighborMtuDiscards];
    assert_eq!(drops.map(|it| counter(port(0, 3), it)), [6, 6]);
}

#[test]
fn route_error_names_the_port_and_drop_reason() {
    let mut random = star();
    let lost = |subnet: &Subnet, from, dlid| subnet.way(from, Lid(dlid)).unwrap_err();
    let at = |port, reason| Lost { at: port, reason };
    let a = port(1, 1);
    assert_eq!(lost(&random.subnet, a, 9), at(port(0, 1), DropReason::NoRoute));
    random.subnet.set_cable(Time::ZERO, port(0, 2), false, &mut ()).unwrap();
    assert_eq!(lost(&random.subnet, a, 3), at(port(0, 2), DropReason::NoLink));
    random.subnet.set_cable(Time::ZERO, port(0, 2), true, &mut ()).unwrap();
    assert_eq!(lost(&random.subnet, a, 3), at(port(0, 2), DropReason::NotActive));
    for dlid in [0, 0xc000, 0xffff] {
        assert_eq!(lost(&random.subnet, a, dlid), at(a, DropReason::NoRoute));
    }
    assert_eq!(lost(&random.subnet, port(0, 1), 2).reason, DropReason::NoRoute, "not a sender");
    assert_eq!(lost(&random.subnet, port(9, 1), 2).reason, DropReason::NoRoute, "not there");
    assert_eq!(random.subnet.group_ways(a, Lid(3)), []);
}

#[test]
fn multicast_datagram_whose_service_level_has_no_lane_stays_at_its_sender() {
    let mut random = star();
    let mut block = [0; 64];
    block[3] = 0b1110;
    random.ask(0, MulticastForwardingTable::ATTR_ID, 0, &block);
    let from = random.subnet.index(port(1, 1)).unwrap();
    let both = [port(2, 1), port(3, 1)];
    assert_eq!(random.sent(from, MLID, 5, Pkey::DEFAULT).0, both);
    random.subnet.ports[from].sl_to_vl = Some([0, 0, 0x0f, 0, 0, 0, 0, 0]);
    assert_eq!(random.sent(from, MLID, 5, Pkey::DEFAULT), (Vec::new(), 0));
    assert_eq!(random.subnet.port(port(1, 1)).unwrap().drops(DropReason::NoVirtualLane), 1);
    let ways = random.subnet.group_ways(port(1, 1), MLID);
    assert_eq!(
        ways.iter().map(|way| (way.to, way.sls)).collect::<Vec<_>>(),
        both.map(|to| (to, 0xffdf))
    );
}

#[test]
fn route_changes_are_recorded_on_request_and_up_to_a_limit() {
    let mut random = star();
    let flip = |random: &mut Random, up| {
        random.subnet.set_cable(Time::ZERO, port(0, 2), up, &mut ()).unwrap();
    };
    let generation = random.subnet.generation();
    flip(&mut random, false);
    assert!(random.subnet.generation() > generation);
    assert_eq!(random.subnet.take_changes(), None, "nobody asked for them");
    random.subnet.keep_changes(true);
    assert_eq!(random.subnet.take_changes(), Some(Vec::new()));
    flip(&mut random, true);
    let both = [port(0, 2), port(2, 1)].map(Change::Port);
    assert_eq!(random.subnet.take_changes().as_deref(), Some(&both[..]));
    for _ in 0..1 << 15 {
        flip(&mut random, false);
        flip(&mut random, true);
    }
    assert_eq!(random.subnet.take_changes(), None, "too many");
    assert_eq!(random.subnet.take_changes(), Some(Vec::new()));
    random.subnet.keep_changes(false);
    flip(&mut random, false);
    assert_eq!(random.subnet.take_changes(), None);
}
