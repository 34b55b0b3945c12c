//! The ports' counts of the packets that hosts exchange, compared with the packets that were sent, whose routes `rdmux_fabric::routes`
//! computes.

mod common;

use std::collections::BTreeMap;
use std::ops::AddAssign;

use common::counters::Counters;
use common::traffic::{Burst, Host};
use common::{Fabric, managed, up};
use rdmux_fabric::client::admin;
use rdmux_fabric::proto::{End, NodeView, Snapshot, Tables};
use rdmux_fabric::routes::{Lost, Routes};
use rdmux_fabric::server::{ManagerSetup, PartitionsFile, Setup};
use rdmux_link::rows::{Counted, Rows, Tally};
use rdmux_wire::mad::Method;
use rdmux_wire::sm::{LinearForwardingTable, MulticastForwardingTable};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Lid, Pkey, Qpn};

/// A port: the index of its node in the snapshot, and its number.
type At = (u32, u8);

/// The counts of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    sent: u64,
    sent_words: u64,
    came: u64,
    came_words: u64,
    discards: u64,
    relay_errors: u64,
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.sent_words += other.sent_words;
        self.came += other.came;
        self.came_words += other.came_words;
        self.discards += other.discards;
        self.relay_errors += other.relay_errors;
    }
}

/// A subnet whose manager has nothing left to do, and the agents of its nodes.
struct Net {
    fabric: Fabric,
    shown: Snapshot,
    tables: Tables,
    agents: Vec<Counters>,
    /// The counts that the ports must have.
    expected: BTreeMap<At, Count>,
}

impl Net {
    fn new(shape: &str, setup: Setup) -> Self {
        let manager = ManagerSetup { sweep_ms: Some(3_600_000), ..setup.manager.clone() };
        let (fabric, shown) = managed(shape, Setup { manager, ..setup });
        let agents = shown.nodes.iter().map(|node| Counters::of(&fabric, node)).collect();
        let tables = admin::tables(&fabric.options, &fabric.name).unwrap();
        let net = Self { fabric, shown, tables, agents, expected: BTreeMap::new() };
        // The manager sweeps once more, because the first sweep has changed ports.
        let look = || (up(&net.fabric).sweeps, net.counted());
        while look() != look() {}
        net
    }

    /// Returns the n-th adapter.
    fn adapter(&self, n: usize) -> (u32, &NodeView) {
        let all = (0..).zip(&self.shown.nodes).filter(|(_, node)| !node.is_switch);
        all.collect::<Vec<_>>()[n]
    }

    /// Makes a host on the n-th adapter.
    fn host(&self, n: usize, processes: u16) -> Host {
        let guid = self.adapter(n).1.guid;
        let host = Host::new(&self.fabric, &format!("h{n}"), guid, processes);
        assert_eq!(host.described.node_guid, guid);
        host
    }

    /// Makes the present counters of all ports the expected ones.
    fn take_as_expected(&mut self) {
        self.expected = self.counted();
    }

    fn ports(&self) -> Vec<At> {
        let nodes = (0..).zip(&self.shown.nodes);
        nodes.flat_map(|(n, node)| node.ports.iter().map(move |port| (n, port.number))).collect()
    }

    fn counted(&self) -> BTreeMap<At, Count> {
        let count = |(node, port): At| {
            let of = self.agents[node as usize].extended(port);
            assert_eq!(of.port_xmit_pkts, of.port_unicast_xmit_pkts + of.port_multicast_xmit_pkts);
            assert_eq!(of.port_rcv_pkts, of.port_unicast_rcv_pkts + of.port_multicast_rcv_pkts);
            Count {
                sent: of.port_xmit_pkts,
                sent_words: of.port_xmit_data,
                came: of.port_rcv_pkts,
                came_words: of.port_rcv_data,
                discards: of.port_xmit_discards,
                relay_errors: of.port_rcv_switch_relay_errors,
            }
        };
        self.ports().into_iter().map(|at| (at, count(at))).collect()
    }

    fn check(&self) {
        for (at, counted) in self.counted() {
            let expected = self.expected.get(&at).copied().unwrap_or_default();
            assert_eq!(counted, expected, "{} port {}", self.shown.nodes[at.0 as usize].id, at.1);
        }
    }

    /// Returns the other end of a cable.
    fn peer(&self, at: At) -> At {
        let ends = self.shown.links.iter().flat_map(|link| [(link.a, link.b), (link.b, link.a)]);
        ends.into_iter().find(|(a, _)| *a == at).unwrap().1
    }

    /// Adds packets that an adapter sends to the expected counts. Returns whether they arrive.
    fn expect(&mut self, from: At, burst: &Burst) -> bool {
        let mut crossed = |out: At, into: At| {
            let Burst { packets, .. } = *burst;
            let words = packets * burst.words();
            let sent = Count { sent: packets, sent_words: words, ..Count::default() };
            let came = Count { came: packets, came_words: words, ..Count::default() };
            *self.expected.entry(out).or_default() += sent;
            *self.expected.entry(into).or_default() += came;
        };
        let peers: BTreeMap<At, At> =
            self.shown.links.iter().flat_map(|link| [(link.a, link.b), (link.b, link.a)]).collect();
        let route = Routes::new(&self.shown, &self.tables).route(from, burst.dlid);
        let mut out = from;
        match route {
            Ok(hops) => {
                for hop in hops {
                    crossed(out, (hop.node, hop.ingress));
                    out = (hop.node, hop.egress);
                }
                true
            }
            // They are lost at the first switch.
            Err(Lost::NoRoute(_) | Lost::NoSuchLid) => {
                let into = peers[&out];
                crossed(out, into);
                self.expected.entry(into).or_default().relay_errors += burst.packets;
                false
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    /// Makes the switch of an adapter forward a LID to another port.
    fn reroute(&mut self, adapter: At, lid: Lid, port: u8) {
        let (leaf, _) = self.peer(adapter);
        let mut manager = self.fabric.manager(&self.shown.nodes[leaf as usize].id, 0);
        let block = u32::from(lid.0 / 64);
        let table = manager.get(&[], LinearForwardingTable::ATTR_ID, block).data;
        let mut smp = Smp::directed(Method::SET, LinearForwardingTable::ATTR_ID, block, &[]);
        smp.data = table;
        smp.data[usize::from(lid.0 % 64)] = port;
        manager.ask(&smp);
        let table = self.tables.switches.iter_mut().find(|table| table.node == leaf).unwrap();
        table.linear[usize::from(lid.0)] = port;
    }

    fn clear(&mut self, at: At) {
        self.agents[at.0 as usize].clear(at.1);
        self.expected.remove(&at);
    }
}

/// A generator of numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

#[test]
fn all_ports_of_a_fat_tree_count_what_was_sent_while_routes_change_and_processes_die() {
    let mut net = Net::new("fattree:40", Setup::default());
    // Two on each of three leaves.
    let adapters = [0, 1, 14, 15, 27, 39];
    let ends: Vec<At> = adapters.iter().map(|n| (net.adapter(*n).0, 1)).collect();
    let leaves: Vec<u32> = ends.iter().map(|end| net.peer(*end).0).collect();
    assert!(leaves[0] == leaves[1] && leaves[2] != leaves[0] && leaves[4] != leaves[2]);
    let mut hosts: Vec<Host> = adapters.iter().map(|n| net.host(*n, 2)).collect();
    net.take_as_expected();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let (mut slot, mut arrived, mut lost) = (2, 0, 0);
    for round in 0..1500 {
        let (from, to) = (random.below(6), random.below(6));
        match random.below(12) {
            0..8 if from != to => {
                let packets = 1 + random.below(20) as u64;
                let burst = Burst::to(&hosts[to], packets, random.below(300));
                let burst = Burst { sl: random.below(16).to_le_bytes()[0], ..burst };
                let process = random.below(hosts[from].processes.len());
                hosts[from].processes[process].send(&burst);
                if net.expect(ends[from], &burst) {
                    hosts[to].processes[0].expect(packets);
                    arrived += packets;
                } else {
                    lost += packets;
                }
            }
            8 | 9 if leaves[from] != leaves[to] => {
                // Rerouted to another switch above, or nowhere.
                let lid = hosts[to].lid();
                let up = [19, 20, 25, 30, 36, 255][random.below(6)];
                net.reroute(ends[from], lid, up);
            }
            10 => {
                let all = net.ports();
                let at = all[random.below(all.len())];
                net.clear(at);
            }
            11 if random.below(4) == 0 => {
                // The first process receives, so it is not killed.
                hosts[from].kill(1);
                slot += 1;
                hosts[from].start(slot);
            }
            _ => {}
        }
        if round % 100 == 0 {
            net.check();
        }
    }
    net.check();
    assert!(arrived > 5000 && lost > 300, "{arrived} {lost}");
    // The counts of hosts that are gone stay.
    let burst = Burst::to(&hosts[3], 7, 100);
    hosts[0].processes[1].send(&burst);
    if net.expect(ends[0], &burst) {
        hosts[3].processes[0].expect(7);
    }
    hosts.truncate(0);
    while !admin::status(&net.fabric.options, &net.fabric.name).unwrap().attached.is_empty() {
        std::thread::yield_now();
    }
    net.check();
}

#[test]
fn links_of_a_groups_tree_count_each_packet_once() {
    let mut net = Net::new("switch:5", Setup::default());
    let hosts: Vec<Host> = (0..4).map(|n| net.host(n, 1)).collect();
    let ends: Vec<At> = (0..4).map(|n| (net.adapter(n).0, 1)).collect();
    let switch = net.peer(ends[0]).0;
    let mlid = Lid(0xc045);
    let mut manager = net.fabric.manager(&net.shown.nodes[switch as usize].id, 0);
    let mut smp = Smp::directed(Method::SET, MulticastForwardingTable::ATTR_ID, 2, &[]);
    for end in &ends[..3] {
        smp.data[2 * 5 + 1] |= 1 << net.peer(*end).1;
    }
    manager.ask(&smp);
    net.take_as_expected();
    let multicasts = |net: &Net, at: At| {
        let of = net.agents[at.0 as usize].extended(at.1);
        (of.port_multicast_xmit_pkts, of.port_multicast_rcv_pkts)
    };
    let before = multicasts(&net, net.peer(ends[1]));
    let burst = Burst { dlid: mlid, to: Qpn::MULTICAST, ..Burst::to(&hosts[0], 9, 60) };
    hosts[0].processes[0].send(&burst);
    // With a GRH.
    let words = 9 * (burst.words() + 10);
    let [sent, came] = [
        Count { sent: 9, sent_words: words, ..Count::default() },
        Count { came: 9, came_words: words, ..Count::default() },
    ];
    for (at, count) in [
        (ends[0], sent),
        (net.peer(ends[0]), came),
        (net.peer(ends[1]), sent),
        (ends[1], came),
        (net.peer(ends[2]), sent),
        (ends[2], came),
    ] {
        *net.expected.entry(at).or_default() += count;
    }
    net.check();
    assert_eq!(multicasts(&net, net.peer(ends[1])), (before.0 + 9, before.1));
    // Packets to a group without members arrive at the switch, and no further.
    hosts[3].processes[0].send(&Burst { dlid: Lid(0xc123), ..burst });
    *net.expected.entry(ends[3]).or_default() += sent;
    let into = net.peer(ends[3]);
    *net.expected.entry(into).or_default() += came;
    net.check();
}

#[test]
fn packets_are_counted_along_the_route_at_the_time_of_sending() {
    let mut net = Net::new("switch:3", Setup::default());
    let [a, mut b] = [0, 1].map(|n| net.host(n, 1));
    let ends = [0, 1].map(|n| (net.adapter(n).0, 1));
    let switch = net.peer(ends[1]);
    let end = |at: At| -> End { net.shown.nodes[at.0 as usize].id.parse().unwrap() };
    let (cable, options, name) =
        ([end(ends[1]), end(switch)], net.fabric.options.clone(), net.fabric.name.clone());
    net.take_as_expected();
    let burst = Burst::to(&b, 5, 40);
    a.processes[0].send(&burst);
    net.expect(ends[0], &burst);
    b.processes[0].expect(5);
    admin::link(&options, &name, false, &cable[0], &cable[1]).unwrap();
    a.processes[0].send(&burst);
    // They are lost at the cable, or at the switch where they enter once the manager has removed the route. Its own
    // datagrams are not counted here.
    let into = net.peer(ends[0]);
    let lost = |net: &Net| {
        let [at_cable, at_entry] =
            [switch, into].map(|at| net.agents[at.0 as usize].extended(at.1));
        let before = net.expected[&switch].discards + net.expected[&into].relay_errors;
        at_cable.port_xmit_discards + at_entry.port_rcv_switch_relay_errors - before
    };
    assert_eq!(lost(&net), 5);
    admin::link(&options, &name, true, &cable[0], &cable[1]).unwrap();
    while !b.view.own().active || a.view.way(b.lid()).is_none() {
        std::thread::yield_now();
    }
    assert_eq!(lost(&net), 5);
}

#[test]
fn switch_reset_clears_its_port_counters() {
    let mut net = Net::new("fattree:20", Setup::default());
    let [a, mut b] = [0, 19].map(|n| net.host(n, 1));
    let ends = [0, 19].map(|n| (net.adapter(n).0, 1));
    let switch = net.peer(ends[1]);
    assert_ne!(switch.0, net.peer(ends[0]).0);
    let node: End = net.shown.nodes[switch.0 as usize].id.parse().unwrap();
    net.take_as_expected();
    let burst = Burst::to(&b, 50, 4096);
    a.processes[0].send(&burst);
    b.processes[0].expect(50);
    let (options, name) = (&net.fabric.options, &net.fabric.name);
    admin::reset(options, name, &node.node).unwrap();
    // The manager assigns it its LID again.
    while !b.view.own().active || a.view.way(b.lid()).is_none() {
        std::thread::yield_now();
    }
    let data = || net.agents[switch.0 as usize].extended(switch.1).port_xmit_data;
    let before = data();
    assert!(before < 50 * burst.words(), "{before}");
    a.processes[0].send(&burst);
    b.processes[0].expect(50);
    assert!((50 * burst.words()..51 * burst.words()).contains(&(data() - before)));
}

#[test]
fn packets_with_a_bad_pkey_are_counted_as_xmit_constraint_errors_of_the_switch() {
    let text = "Default=0x7fff, ipoib: ALL=full;\nStorage=0x10: 0x0002000000100101=full;\n";
    let partitions = PartitionsFile { name: "p.conf".into(), text: text.into() };
    let manager = ManagerSetup { partitions: Some(partitions), ..ManagerSetup::default() };
    let mut net = Net::new("switch:3", Setup { manager, ..Setup::default() });
    let [mut a, mut b] = [0, 1].map(|n| net.host(n, 1));
    let ends = [0, 1].map(|n| (net.adapter(n).0, 1));
    net.take_as_expected();
    // A packet with a P_Key that the receiver does not have is not sent.
    let burst = Burst { pkey: Pkey(0x8010), ..Burst::to(&b, 6, 40) };
    a.processes[0].send(&burst);
    assert_eq!(a.processes[0].dropped(), [("tx_pkey", 6)]);
    let words = 6 * burst.words();
    let [sent, came] = [
        Count { sent: 6, sent_words: words, ..Count::default() },
        Count { came: 6, came_words: words, ..Count::default() },
    ];
    let (into, out) = (net.peer(ends[0]), net.peer(ends[1]));
    *net.expected.entry(ends[0]).or_default() += sent;
    *net.expected.entry(into).or_default() += came;
    net.check();
    let of = net.agents[out.0 as usize].extended(out.1);
    assert_eq!((of.port_xmit_constraint_errors, of.port_rcv_constraint_errors), (6, 0));
    assert_eq!(net.agents[out.0 as usize].classic(out.1).port_xmit_constraint_errors, 6);
    // A host's updates include its own port's counters.
    let facts = a.attachment.refresh().unwrap().port;
    let counter = |name: &str| facts.counters.iter().find(|(n, _)| n == name).unwrap().1;
    assert_eq!(counter("port_xmit_packets"), net.expected[&ends[0]].sent);
    assert_eq!(counter("port_xmit_data"), net.expected[&ends[0]].sent_words);
    let burst = Burst::to(&b, 1, 0);
    a.processes[0].send(&burst);
    b.processes[0].expect(1);
}

#[test]
fn classic_counters_stay_at_their_largest_value_until_they_are_set() {
    let net = Net::new("two", Setup::default());
    let [mut a, b] = [0, 1].map(|n| net.host(n, 1));
    let ends = [0, 1].map(|n| (net.adapter(n).0, 1));
    // A process claims to have sent more than is possible.
    let fd = Rows::create().unwrap();
    a.attachment.count_in(9, std::os::fd::AsFd::as_fd(&fd)).unwrap();
    let rows = std::sync::Arc::new(Rows::map(&fd).unwrap());
    let mut tally = Tally::new(rows);
    let (route, dlid) = (a.view.route_id(b.lid()), b.lid());
    let counted = Counted::Sent { route, dlid, sl: 0, pkey: 0, payload: 0 };
    let row = tally.find(&counted, |_| true).unwrap();
    let agents = ends.map(|end| &net.agents[end.0 as usize]);
    let before = agents[1].extended(1);
    tally.add(row, 1 << 33, 1 << 40);
    for (agent, what) in agents.iter().zip(["sent", "came"]) {
        let classic = agent.classic(1);
        let (packets, words) = match what {
            "sent" => (classic.port_xmit_pkts, classic.port_xmit_data),
            _ => (classic.port_rcv_pkts, classic.port_rcv_data),
        };
        assert_eq!((packets, words), (u32::MAX, u32::MAX), "{what}");
    }
    let after = agents[1].extended(1);
    assert_eq!(after.port_rcv_pkts - before.port_rcv_pkts, 1 << 33);
    assert_eq!(after.port_rcv_data - before.port_rcv_data, 1 << 40);
    tally.add(row, 1 << 33, 1 << 40);
    agents[1].clear(1);
    tally.add(row, 3, 30);
    let classic = agents[1].classic(1);
    assert_eq!((classic.port_rcv_pkts, classic.port_rcv_data), (3, 30));
    assert_eq!(agents[0].classic(1).port_xmit_pkts, u32::MAX);
    assert_eq!(agents[1].extended(1).port_rcv_pkts, 3);
    drop(b);
}
