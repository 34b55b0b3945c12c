//! The route tables of attached hosts: they agree with the switches' tables, and change before any client learns of a
//! change.

mod common;

use std::net::SocketAddr;

use common::asker::Asker;
use common::{Fabric, managed, up};
use rdmux_fabric::client::{Attachment, Progress, admin};
use rdmux_fabric::proto::{Described, End, HostPort, Snapshot};
use rdmux_fabric::server::{FIRST_GUID, ManagerSetup, PartitionsFile, Setup};
use rdmux_fabric::{Config, FabricDir};
use rdmux_link::routes::{Peer, PeerId, RouteView, Way};
use rdmux_subnet::topology::{LinkRate, Node, NodeKind, PortRef, Topology};
use rdmux_wire::mad::Method;
use rdmux_wire::sa::{JoinState, McMemberRecord, McMemberRecordMask, Rate};
use rdmux_wire::sm::{LinearForwardingTable, MulticastForwardingTable, PkeyTable};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Gid, Guid, Lid, Mtu, Pkey};

/// A host with its table.
struct Host {
    attachment: Attachment,
    described: Described,
    view: RouteView,
    addr: SocketAddr,
}

impl Host {
    /// Attaches, without saying where it receives packets.
    fn silent(fabric: &Fabric, n: u16) -> Self {
        let (name, guid) = (format!("h{n}"), Guid(n.into()));
        let opened = Attachment::open(&fabric.options, &fabric.name, &name, guid);
        let (attachment, described) = opened.unwrap();
        let view = RouteView::map(attachment.routes().unwrap()).unwrap();
        Self { attachment, described, view, addr: SocketAddr::from(([127, 0, 0, 1], 4000 + n)) }
    }

    fn new(fabric: &Fabric, n: u16) -> Self {
        let mut host = Self::silent(fabric, n);
        let addr = host.addr;
        host.says(addr);
        host
    }

    /// Reports to the fabric where the host receives packets, and waits for the answer.
    fn says(&mut self, addr: SocketAddr) {
        self.attachment.set_endpoint(addr, false, false).unwrap();
        let first = self.attachment.refresh().unwrap();
        let mut answers = usize::from(first.events.is_empty());
        while answers < 2 {
            match self.attachment.poll_update().unwrap() {
                Some(update) => answers += usize::from(update.events.is_empty()),
                None => std::thread::yield_now(),
            }
        }
    }

    fn lid(&self) -> Lid {
        self.view.own().lid
    }

    fn peer(&self) -> Peer {
        let own = self.view.own();
        let (addr, port_guid) = (self.addr, self.described.port.guid);
        Peer { addr, port_guid, lid: own.lid, lmc: own.lmc, multicast: false }
    }

    fn way_to(&self, to: &Host) -> Option<Way> {
        self.view.way(to.lid())
    }

    fn group(&self, mlid: Lid) -> Vec<Way> {
        let mut ways = Vec::new();
        self.view.group(mlid, &mut ways);
        ways
    }

    /// Returns its node's name in commands.
    fn end(&self) -> End {
        format!("{:#x}", self.described.node_guid.0).parse().unwrap()
    }
}

fn attached(fabric: &Fabric) -> usize {
    admin::status(&fabric.options, &fabric.name).unwrap().attached.len()
}

fn switch(shown: &Snapshot) -> End {
    shown.nodes.iter().find(|node| node.is_switch).unwrap().id.parse().unwrap()
}

#[test]
fn hosts_with_an_endpoint_have_routes_to_each_other() {
    let (fabric, _) = managed("switch:4", Setup::default());
    let a = Host::new(&fabric, 1);
    let silent = Host::silent(&fabric, 2);
    let b = Host::new(&fabric, 3);
    let own = a.view.own();
    let port = &a.described.port;
    assert!(own.active && own.lid == port.lid && own.lmc == 0 && own.mtu == Mtu::M4096);
    assert_eq!((own.gid_prefix, own.port_guid), (Gid::DEFAULT_PREFIX, port.guid));
    assert_eq!((own.pkeys[0], own.pkeys[1]), (Pkey::DEFAULT, Pkey(0)));
    let way = a.way_to(&b).unwrap();
    assert_eq!(a.view.peer(way.peer), Some(b.peer()));
    let rate = Rate::GBPS_100.0;
    let (peer, mtu, sls) = (way.peer, Mtu::M4096, 0xffff);
    let expected = Way { peer, hops: 2, mtu, rate, sls, pkeys: 1, back: 1, answered: 1 };
    assert_eq!(way, expected);
    let back = b.way_to(&a).unwrap();
    assert_eq!(b.view.peer(back.peer), Some(a.peer()));
    assert_eq!(a.view.way(a.lid()), None, "own LIDs need none");
    let silent_lid = silent.described.port.lid;
    assert!(silent_lid.is_unicast());
    assert_eq!((a.view.way(silent_lid), silent.way_to(&a)), (None, None));
    assert!(!silent.view.own().active);
}

#[test]
fn peer_entry_follows_a_hosts_address_change_and_is_removed_when_it_detaches() {
    let (fabric, _) = managed("switch:3", Setup::default());
    let a = Host::new(&fabric, 1);
    let mut b = Host::new(&fabric, 2);
    let (way, lid) = (a.way_to(&b).unwrap(), b.lid());
    let epoch = a.view.epoch();
    b.addr = SocketAddr::from(([127, 0, 0, 9], 9));
    b.says(b.addr);
    assert!(a.view.epoch() > epoch);
    assert_eq!((a.way_to(&b), a.view.peer(way.peer)), (Some(way), Some(b.peer())));
    let epoch = a.view.epoch();
    drop(b);
    while attached(&fabric) > 1 {
        std::thread::yield_now();
    }
    assert_eq!((a.view.way(lid), a.view.peer(way.peer)), (None, None));
    assert!(a.view.epoch() > epoch);
    let c = Host::new(&fabric, 3);
    let there = a.way_to(&c).unwrap();
    assert_eq!(a.view.peer(there.peer), Some(c.peer()));
    assert_eq!(PeerId::new(3), PeerId::new(there.peer.get() + 1), "the number is used again");
}

#[test]
fn new_hosts_have_correct_peers_after_all_hosts_have_detached() {
    let (fabric, _) = managed("switch:3", Setup::default());
    let [a, b] = [1, 2].map(|n| Host::new(&fabric, n));
    drop((a, b));
    while attached(&fabric) > 0 {
        std::thread::yield_now();
    }
    let [c, d] = [3, 4].map(|n| Host::new(&fabric, n));
    let (way, back) = (c.way_to(&d).unwrap(), d.way_to(&c).unwrap());
    assert_eq!((c.view.peer(way.peer), d.view.peer(back.peer)), (Some(d.peer()), Some(c.peer())));
}

#[test]
fn routes_over_a_link_are_removed_before_the_link_down_command_returns() {
    let (fabric, shown) = managed("switch:3", Setup::default());
    let hosts = [1, 2, 3].map(|n| Host::new(&fabric, n));
    let [a, b, c] = &hosts;
    let (lids, switch) = ([a.lid(), b.lid()], switch(&shown));
    assert!(a.way_to(b).is_some());
    admin::link(&fabric.options, &fabric.name, false, &b.end(), &switch).unwrap();
    assert_eq!((a.view.way(lids[1]), b.view.way(lids[0])), (None, None));
    assert!(!b.view.own().active && a.view.own().active && a.way_to(c).is_some());
    admin::link(&fabric.options, &fabric.name, true, &b.end(), &switch).unwrap();
    // The manager makes the port active again. Nothing has reported that yet, so one table may have an entry before another has its
    // own.
    let is_back = |view: &RouteView, lid| view.way(lid).is_some_and(|way| way.back != 0);
    while !(b.view.own().active && is_back(&a.view, lids[1]) && is_back(&b.view, lids[0])) {
        std::thread::yield_now();
    }
    admin::reset(&fabric.options, &fabric.name, &switch.node).unwrap();
    assert_eq!((a.view.way(lids[1]), c.view.way(lids[1])), (None, None));
}

/// Makes three switches in a ring, with an adapter on each of the first two. Ports 1 and 2 of a switch connect to the others, port 3
/// to the adapter.
fn ring() -> Topology {
    let mut topology = Topology::default();
    for n in 0..3 {
        let guid = Guid(FIRST_GUID.0 + 0x100 * n);
        topology.add(Node::new(NodeKind::Switch, format!("S{n}"), guid, 3));
    }
    for n in 0..2 {
        let guid = Guid(FIRST_GUID.0 + 0x1000 + 0x100 * n);
        topology.add(Node::new(NodeKind::Ca, format!("H{n}"), guid, 1));
    }
    let cables =
        [((0, 1), (1, 1)), ((0, 2), (2, 1)), ((1, 2), (2, 2)), ((3, 1), (0, 3)), ((4, 1), (1, 3))];
    for ((a, port), (b, far)) in cables {
        let (a, b) = (PortRef { node: a, port }, PortRef { node: b, port: far });
        topology.connect(a, b, LinkRate::DEFAULT).unwrap();
    }
    topology
}

#[test]
fn route_that_a_manager_sets_is_in_the_tables_when_it_has_the_answer() {
    let fabric = Fabric::of(ring(), Setup::default(), Config::default());
    up(&fabric);
    let [a, b] = [1, 2].map(|n| Host::new(&fabric, n));
    // Hosts get the first free adapters.
    assert_eq!([&a, &b].map(|host| host.described.node_guid.0 & 0xf00), [0, 0x100]);
    assert_eq!((a.way_to(&b).unwrap().hops, b.way_to(&a).unwrap().hops), (3, 3));
    let mut manager = fabric.manager("S0", 0);
    let block = u32::from(b.lid().0 / 64);
    let mut table = manager.get(&[], LinearForwardingTable::ATTR_ID, block).data;
    let mut set = |port: u8| {
        table[usize::from(b.lid().0 % 64)] = port;
        let mut smp = Smp::directed(Method::SET, LinearForwardingTable::ATTR_ID, block, &[]);
        smp.data = table;
        manager.ask(&smp);
    };
    for _ in 0..20 {
        set(2);
        let (way, back) = (a.way_to(&b).unwrap(), b.way_to(&a).unwrap());
        assert_eq!((way.hops, way.back, back.hops, back.back), (4, 1, 3, 1));
        // Routed to the wrong adapter, or nowhere.
        for port in [3, 255] {
            set(port);
            assert_eq!((a.way_to(&b), b.way_to(&a).unwrap().back), (None, 0));
        }
        set(1);
        assert_eq!((a.way_to(&b).unwrap().hops, b.way_to(&a).unwrap().back), (3, 1));
    }
}

#[test]
fn route_pkeys_and_own_pkey_table_follow_the_partitions() {
    let text = "Default=0x7fff, ipoib: ALL, SELF=full;
Storage=0x10: 0x0002000000100101=full, 0x0002000000100201;
";
    let partitions = PartitionsFile { name: "p.conf".into(), text: text.into() };
    let manager = ManagerSetup { partitions: Some(partitions), ..ManagerSetup::default() };
    let (fabric, _) = managed("switch:3", Setup { manager, ..Setup::default() });
    let hosts = [1, 2, 3].map(|n| Host::new(&fabric, n));
    let [full, limited, other] = &hosts;
    assert_eq!(full.view.own().pkeys[..3], [0x7fff, 0x8010, 0].map(Pkey));
    // All are limited members of the default partition.
    assert_eq!(full.way_to(limited).unwrap().pkeys, 0b10);
    assert_eq!(limited.way_to(full).unwrap().pkeys, 0b10);
    assert_eq!((full.way_to(other), other.way_to(full)), (None, None));
    // A third host becomes a full member at both ends of its cable.
    let mut manager = fabric.manager("S-0002000000100000", 0);
    let mut keys = PkeyTable::default();
    keys.pkeys[0] = Pkey(0xffff);
    for (route, modifier) in [(&[3][..], 0), (&[], 3 << 16)] {
        let mut smp = Smp::directed(Method::SET, PkeyTable::ATTR_ID, modifier, route);
        smp.data = keys.to_bytes();
        manager.ask(&smp);
    }
    assert_eq!(full.way_to(other).unwrap().pkeys, 0b01);
    assert_eq!(
        (other.view.own().pkeys[0], other.way_to(limited).unwrap().pkeys),
        (Pkey(0xffff), 1)
    );
}

#[test]
fn every_lmc_path_bit_has_its_route_and_reverse_route() {
    let manager = ManagerSetup { lmc: 2, ..ManagerSetup::default() };
    let (fabric, _) = managed("switch:3", Setup { manager, ..Setup::default() });
    let [a, b] = [1, 2].map(|n| Host::new(&fabric, n));
    assert_eq!(b.view.own().lmc, 2);
    for bits in 0..4 {
        let way = a.view.way(b.view.own().lid_with(bits)).unwrap();
        assert_eq!((way.hops, way.back), (2, 0b1111));
    }
    assert_eq!(a.view.way(Lid(b.lid().0 + 4)), None);
    // The switch no longer forwards the third LID of `b`.
    let third = b.view.own().lid_with(2);
    let mut manager = fabric.manager("S-0002000000100000", 0);
    let block = u32::from(third.0 / 64);
    let get = manager.get(&[], LinearForwardingTable::ATTR_ID, block);
    let mut smp = Smp::directed(Method::SET, LinearForwardingTable::ATTR_ID, block, &[]);
    smp.data = get.data;
    smp.data[usize::from(third.0 % 64)] = 255;
    manager.ask(&smp);
    assert_eq!((a.view.way(third), a.way_to(&b).unwrap().back), (None, 0b1111));
    assert_eq!(b.way_to(&a).unwrap().back, 0b1011);
}

#[test]
fn multicast_members_have_group_routes_to_each_other() {
    let (fabric, shown) = managed("switch:3", Setup::default());
    let hosts = [1, 2, 3].map(|n| Host::new(&fabric, n));
    let [a, b, c] = &hosts;
    let mgid = Gid::from("ff12:401b:ffff::ffff:ffff".parse::<std::net::Ipv6Addr>().unwrap());
    let mlids = [0, 1].map(|n| {
        let asker = Asker::new(&fabric, &shown, n);
        let member = McMemberRecord {
            mgid,
            port_gid: asker.gid,
            join_state: JoinState::FULL_MEMBER,
            ..McMemberRecord::default()
        };
        let mask = McMemberRecordMask::MGID
            | McMemberRecordMask::PORT_GID
            | McMemberRecordMask::JOIN_STATE;
        let joined: McMemberRecord =
            asker.get(Method::SET, McMemberRecord::ATTR_ID, mask.bits(), &member.to_bytes());
        joined.mlid
    });
    let mlid = mlids[0];
    // The manager soon sets the switch.
    while a.group(mlid).is_empty() || b.group(mlid).is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(a.group(mlid), [a.way_to(b).unwrap()]);
    assert_eq!(b.group(mlid), [b.way_to(a).unwrap()]);
    // A table that a program sets is effective at once: all three ports have another group.
    let mut manager = fabric.manager("S-0002000000100000", 0);
    let other = Lid(0xc045);
    let mut set = |mask: u8| {
        let mut smp = Smp::directed(Method::SET, MulticastForwardingTable::ATTR_ID, 2, &[]);
        smp.data[2 * 5 + 1] = mask;
        manager.ask(&smp);
    };
    assert_eq!(c.group(other), []);
    set(0b1110);
    let mut ways = c.group(other);
    ways.sort_by_key(|way| way.peer);
    assert_eq!(ways, [c.way_to(a).unwrap(), c.way_to(b).unwrap()]);
    set(0b1010);
    assert_eq!((c.group(other).len(), a.group(other).len(), b.group(other).len()), (1, 1, 2));
    set(0);
    assert_eq!((c.group(other), b.group(other)), (Vec::new(), Vec::new()));
}

#[test]
fn back_to_back_adapters_have_unicast_and_multicast_routes() {
    let (fabric, _) = managed("two", Setup::default());
    let [a, b] = [1, 2].map(|n| Host::new(&fabric, n));
    assert_eq!(a.way_to(&b).unwrap().hops, 1);
    assert_eq!(b.group(Lid(0xc003)), [b.way_to(&a).unwrap()]);
}

#[test]
fn route_table_of_a_stopped_fabric_stays_unchanged() {
    let (mut fabric, _) = managed("switch:2", Setup::default());
    let [mut a, b] = [1, 2].map(|n| Host::new(&fabric, n));
    let (way, epoch) = (a.way_to(&b).unwrap(), a.view.epoch());
    fabric.stop();
    while a.attachment.poll_update().is_ok() {}
    assert_eq!(
        (a.way_to(&b), a.view.peer(way.peer), a.view.epoch()),
        (Some(way), Some(b.peer()), epoch)
    );
    // The next fabric has another table.
    fabric.start();
    up(&fabric);
    let again = Host::new(&fabric, 1);
    assert_eq!((again.view.own().lid, again.way_to(&b)), (a.lid(), None));
}

#[test]
fn nonblocking_attachment_has_a_route_table_and_invalid_endpoint_is_einval() {
    let fabric = Fabric::up("two");
    let dir = FabricDir::open(&fabric.options.user, &fabric.name).unwrap();
    let mut attaching = Attachment::begin(&dir, "h1", Guid(1), &HostPort::only()).unwrap().unwrap();
    let (mut attachment, _) = loop {
        match attaching.poll().unwrap() {
            Progress::Done(done) => break done,
            Progress::Pending(pending) => attaching = pending,
        }
    };
    let view = RouteView::map(attachment.routes().unwrap()).unwrap();
    assert_eq!(view.epoch(), 1);
    for addr in ["0.0.0.0:9", "[::]:9", "127.0.0.1:0", "192.0.2.1:9"] {
        let e = attachment.set_endpoint(addr.parse().unwrap(), true, false).unwrap_err();
        assert_eq!(e.errno(), libc::EINVAL, "{e}");
    }
    attachment.ask().unwrap();
    while attachment.poll_update().unwrap().is_none() {}
}
