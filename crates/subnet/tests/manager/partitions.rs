//! P_Key tables at end ports, and at the switches' ports that connect to adapters.

use std::time::Duration;

use rdmux_subnet::manager::{Config as ManagerConfig, Event, Problem, ProblemKind};
use rdmux_subnet::partitions::{PartitionTables, Partitions};
use rdmux_subnet::service::Service;
use rdmux_subnet::topology::{LinkRate, Shape};
use rdmux_subnet::umad::{UserAddress, UserMad};
use rdmux_subnet::{Config, DropReason, PortId, Subnet};
use rdmux_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use rdmux_wire::sa::{InformInfo, SaMad};
use rdmux_wire::sm::Producer;
use rdmux_wire::{Guid, Lid, Pkey};

use crate::net::{Net, Way, config, port, qp1};

const QUIET: Duration = Duration::from_secs(60);

/// The adapters of `switch:4`, whose ports have the GUIDs 0x100101, 0x100201 and so on.
const A: PortId = port(1, 1);
const B: PortId = port(2, 1);
const C: PortId = port(3, 1);

/// Only A and B are in a partition, A as a full member. The manager is at the switch.
const TEXT: &str = "Default=0x7fff: ALL, SELF=full;\nStorage=0x10: 0x100101=full, 0x100201;";

fn tables(net: &Net, text: &str) -> Box<PartitionTables> {
    let partitions = Partitions::parse("p", text).expect("partitions");
    let manager = net.subnet.port(port(0, 0)).expect("a switch").guid();
    Box::new(PartitionTables { partitions, manager })
}

/// Changes the partitions and waits.
fn set(net: &mut Net, text: &str) {
    let tables = tables(net, text);
    net.with(0, |manager, now, _| manager.set_pkey_tables(now, tables));
    net.pass(QUIET);
}

fn up(text: &str) -> Net {
    let mut net = Net::up("switch:4", config());
    set(&mut net, text);
    net
}

fn keys(net: &Net, at: PortId) -> Vec<u16> {
    net.subnet.port(at).expect("a port").pkeys().iter().map(|key| key.0).collect()
}

/// Returns whether a port enforces partitions inbound and outbound.
fn enforces(net: &Net, at: PortId) -> (bool, bool) {
    let info = net.subnet.port(at).expect("a port").info();
    (info.partition_enforcement_inbound, info.partition_enforcement_outbound)
}

/// Returns whether a datagram with a P_Key gets from one port to another.
fn passes(net: &mut Net, from: PortId, to: PortId, pkey: u16) -> bool {
    let lid = |at| net.subnet.port(at).expect("a port").lid();
    let mut mad = [0; MAD_LEN];
    MadHeader::new(MgmtClass::COMM, 2, Method::SEND).emit(&mut mad);
    let mut packet = qp1(lid(from), lid(to), mad);
    packet.pkey = Pkey(pkey);
    net.deliver(from, packet).contains(&to)
}

fn problems(net: &Net) -> Vec<ProblemKind> {
    let last = net.managers[0].1.status().last.expect("a sweep");
    last.problems.iter().map(|problem| problem.what).collect()
}

#[test]
fn tables_of_adapters_are_at_the_switch_too_and_are_enforced_there() {
    let net = up(TEXT);
    assert_eq!(keys(&net, port(0, 0)), [0xffff]);
    for (end, table) in [
        (A, &[0x7fff, 0x8010][..]),
        (B, &[0x7fff, 0x0010]),
        (C, &[0x7fff]),
        (port(4, 1), &[0x7fff]),
    ] {
        assert_eq!(keys(&net, end), table, "{end}");
        let guard = net.subnet.peer(end).expect("a switch");
        assert_eq!(keys(&net, guard), table, "{guard}");
        assert_eq!(enforces(&net, guard), (true, true), "{guard}");
    }
    net.assert_configured();
    assert_eq!(problems(&net), []);
}

#[test]
fn packets_pass_within_a_partition_and_stop_at_the_switch_otherwise() {
    let mut net = up(TEXT);
    assert!(passes(&mut net, A, B, 0x8010), "from a full member");
    assert!(passes(&mut net, B, A, 0x0010), "from a limited member");
    assert!(passes(&mut net, C, port(0, 0), 0x7fff), "to the manager, a full member");
    let drops = |net: &Net, at, why| net.subnet.port(at).expect("a port").drops(why);
    // Limited members cannot communicate: the sender's switch port lets the packet pass, the receiver's does not.
    assert!(!passes(&mut net, B, C, 0x7fff));
    assert_eq!(drops(&net, port(0, 3), DropReason::PkeyOut), 1);
    // Packets of a port outside of the partition do not enter the switch.
    assert!(!passes(&mut net, C, A, 0x8010));
    assert_eq!(drops(&net, port(0, 3), DropReason::PkeyIn), 1);
}

#[test]
fn sweep_with_partitions_that_are_set_already_sends_no_set() {
    // More keys than fit a block.
    let many: String = (1..50).map(|n| format!("P{n}={n}: ALL=full;")).collect();
    for text in [TEXT, &many] {
        let mut net = up(text);
        net.sets = 0;
        net.with(0, |manager, now, _| manager.sweep(now));
        net.pass(QUIET);
        assert_eq!(net.sets, 0);
    }
    assert_eq!(keys(&up(&many), A).len(), 50);
}

#[test]
fn partitions_that_change_are_set_at_ports_that_are_active() {
    let mut net = up(TEXT);
    set(&mut net, "Other=0x20: 0x100101=full, 0x100301;");
    // A's key at index 1 is removed, and the new key is not there yet.
    let tables: [(PortId, &[u16], &[u16]); 3] = [
        (A, &[0x7fff, 0, 0x8020], &[0x7fff, 0x8020]),
        (B, &[0x7fff], &[0x7fff]),
        (C, &[0x7fff, 0x0020], &[0x7fff, 0x0020]),
    ];
    for (end, table, guarded) in tables {
        let guard = net.subnet.peer(end).expect("a switch");
        assert_eq!((keys(&net, end), keys(&net, guard)), (table.to_vec(), guarded.to_vec()));
        assert_eq!(enforces(&net, guard), (true, true));
    }
    assert!(passes(&mut net, C, A, 0x0020) && !passes(&mut net, B, A, 0x0010));
}

#[test]
fn ports_between_switches_enforce_nothing() {
    let mut net = Net::up("torus:3x1x1", config());
    set(&mut net, TEXT);
    let mut seen = [0, 0];
    for view in net.subnet.ports().filter(|view| view.id().number != 0) {
        let at = view.id();
        let Some(peer) = net.subnet.peer(at).filter(|_| net.is_switch(at.node)) else { continue };
        let guards = !net.is_switch(peer.node);
        assert_eq!(enforces(&net, at), (guards, guards), "{at}");
        seen[usize::from(guards)] += 1;
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

#[test]
fn a_cable_from_an_adapter_that_is_put_to_a_switch_is_no_longer_enforced() {
    let mut net = Net::up("torus:3x1x1", config());
    set(&mut net, TEXT);
    let is_end = |net: &Net, at: PortId| !net.is_switch(at.node);
    let ends: Vec<_> = net.ends().into_iter().filter(|at| is_end(&net, *at)).collect();
    let places: Vec<_> = ends
        .iter()
        .take(2)
        .map(|&end| net.change(|s, now, inbox| s.unplug(now, end, inbox)).expect("a cable"))
        .collect();
    net.change(|s, now, inbox| {
        s.plug(now, places[0], places[1], LinkRate::DEFAULT, inbox).expect("free ports");
    });
    net.pass(QUIET);
    assert_eq!([enforces(&net, places[0]), enforces(&net, places[1])], [(false, false); 2]);
    net.assert_configured();
}

#[test]
fn the_managers_own_cable_is_enforced_when_it_is_on_an_adapter() {
    let mut net = Net::of("switch:4");
    net.start(A, config());
    set(&mut net, "Default=0x7fff: ALL, SELF=full, 0x100101=full;");
    assert_eq!(keys(&net, port(0, 1)), [0xffff]);
    assert_eq!(enforces(&net, port(0, 1)), (true, true));
    assert!(passes(&mut net, B, A, 0x7fff));
}

/// Builds a subnet whose adapters or switches have room for fewer P_Keys.
fn small(config_of: Config) -> Net {
    let topology = "switch:4".parse::<Shape>().expect("a shape").topology(Guid(0x10_0000));
    let mut net = Net::new(&topology);
    net.subnet = Subnet::new(&topology, config_of);
    net.start_first(config());
    net
}

#[test]
fn a_table_that_a_switch_has_no_room_for_is_not_enforced() {
    let mut net = small(Config { partition_enforcement_cap: 1, ..Config::default() });
    set(&mut net, TEXT);
    assert_eq!((keys(&net, A), enforces(&net, port(0, 1))), (vec![0x7fff, 0x8010], (false, false)));
    assert_eq!((keys(&net, port(0, 3)), enforces(&net, port(0, 3))), (vec![0x7fff], (true, true)));
    assert!(passes(&mut net, A, B, 0x8010));
    // A switch without enforcement gets no tables.
    let mut net = small(Config { partition_enforcement_cap: 0, ..Config::default() });
    set(&mut net, TEXT);
    assert_eq!(enforces(&net, port(0, 3)), (false, false));
    assert_eq!(problems(&net), []);
}

#[test]
fn pkeys_beyond_partition_cap_are_reported_and_the_first_ones_set() {
    let mut net = small(Config { partition_cap: 2, ..Config::default() });
    set(&mut net, "A=1: ALL; B=2: 0x100101;");
    assert_eq!(keys(&net, A), [0x7fff, 0x0001]);
    assert_eq!(keys(&net, port(0, 1)), [0x7fff, 0x0001]);
    assert_eq!(problems(&net), [ProblemKind::NoPkey]);
}

#[test]
fn partitions_of_a_switch_are_not_counted_for_its_external_ports() {
    let mut net = small(Config { partition_enforcement_cap: 2, ..Config::default() });
    set(&mut net, "A=1: ALL_SWITCHES; B=2: ALL_SWITCHES;");
    assert_eq!((keys(&net, port(0, 0)).len(), keys(&net, port(0, 1))), (3, vec![0x7fff]));
    assert_eq!(problems(&net), []);
}

#[test]
fn enforcement_does_not_begin_before_the_table_is_there() {
    let mut net = up(TEXT);
    // Sets of the tables of a switch's external ports are dropped from now on.
    net.meddler = Box::new(|_, way, mad| {
        let header = MadHeader::parse(&mad[..]).expect("a MAD");
        let is_table = (header.method, header.attr_id) == (Method::SET, 0x16);
        !(way == Way::ToSubnet && is_table && header.attr_mod >> 16 != 0)
    });
    set(&mut net, "Other=0x20: 0x100101=full;");
    assert_eq!(
        (keys(&net, A), keys(&net, port(0, 1))),
        (vec![0x7fff, 0, 0x8020], vec![0x7fff, 0x8010])
    );
    assert_eq!(enforces(&net, port(0, 1)), (false, false), "what it has is not enforced");
    net.meddler = Box::new(|_, _, _| true);
    net.pass(Duration::from_secs(120));
    assert_eq!(
        (keys(&net, port(0, 1)), enforces(&net, port(0, 1))),
        (vec![0x7fff, 0x8020], (true, true))
    );
}

#[test]
fn keys_that_a_port_keeps_stay_at_their_index_and_a_sweep_changes_nothing_then() {
    let text = "Default=0x7fff: ALL, SELF=full; Low=0x05: 0x100101; Storage=0x10: 0x100101;";
    let mut net = up(TEXT);
    set(&mut net, text);
    assert_eq!(keys(&net, A), [0x7fff, 0x0010, 0x0005]);
    net.sets = 0;
    net.with(0, |manager, now, _| manager.sweep(now));
    net.pass(QUIET);
    assert_eq!(net.sets, 0);
    net.assert_configured();
}

#[test]
fn keys_of_a_table_that_could_not_be_read_stay_at_their_index() {
    // The first two blocks are in use, with a gap in each.
    let many = |gone: &[u32]| -> String {
        let numbers = (1..50).filter(|n| !gone.contains(n));
        numbers.map(|n| format!("P{n}={n}: ALL=full;")).collect()
    };
    let mut net = up(&many(&[]));
    set(&mut net, &many(&[7, 40]));
    let guard = net.subnet.peer(A).expect("a switch");
    let before = [keys(&net, A), keys(&net, guard)];
    assert_eq!((before[0][7], before[0][40], before[0][49]), (0, 0, 0x8031));
    for block in [0, 1] {
        net.meddler = Box::new(move |_, way, mad| {
            let header = MadHeader::parse(&mad[..]).expect("a MAD");
            let is_read = (header.method, header.attr_id) == (Method::GET, 0x16);
            !(way == Way::ToSubnet && is_read && header.attr_mod & 0xffff == block)
        });
        net.sets = 0;
        net.with(0, |manager, now, _| manager.sweep(now));
        net.pass(Duration::from_secs(2));
        assert!(problems(&net).contains(&ProblemKind::NoAnswer));
        assert_eq!([keys(&net, A), keys(&net, guard)], before, "block {block}");
        assert_eq!((net.sets, enforces(&net, guard)), (0, (true, true)));
    }
    net.meddler = Box::new(|_, _, _| true);
    net.pass(Duration::from_secs(120));
    assert_eq!(problems(&net), []);
}

#[test]
fn a_key_that_moves_to_the_next_block_is_set_and_reported_as_set() {
    let many = |numbers: &[u32]| -> String {
        numbers.iter().map(|n| format!("P{n}={n}: ALL=full;")).collect()
    };
    for outstanding in [1, 64] {
        let mut net = Net::up("switch:4", ManagerConfig { outstanding, ..config() });
        let mut numbers: Vec<u32> = (1..32).collect();
        set(&mut net, &many(&numbers));
        assert_eq!(keys(&net, A).len(), 32);
        // The last key of the first block goes, and a new one is the first of the second block.
        numbers[30] = 40;
        net.out.events.clear();
        set(&mut net, &many(&numbers));
        let table = keys(&net, A);
        assert_eq!((table.len(), table[31], table[32]), (33, 0, 0x8028), "{outstanding}");
        let reports = net.out.events.iter().filter_map(|(_, event)| match event {
            Event::SweepEnded(report) => Some(report),
            _ => None,
        });
        assert_eq!(
            reports.flat_map(|report| &report.problems).collect::<Vec<_>>(),
            [] as [&Problem; 0]
        );
        assert_eq!(enforces(&net, port(0, 1)), (true, true));
    }
}

/// Passes the manager's events to administration.
pub(crate) fn tell(net: &mut Net, service: &mut Service) {
    for (index, event) in std::mem::take(&mut net.out.events) {
        service.handle_event(net.now, &mut net.managers[index].1, &event);
    }
}

#[test]
fn trap_65_goes_to_subscribers_sharing_the_ports_newly_set_partition() {
    let mut net = up(TEXT);
    let mut service = Service::new(Default::default(), Partitions::default(), 1);
    tell(&mut net, &mut service);
    let lids = [B, C].map(|at| net.subnet.port(at).expect("a port").lid());
    for lid in lids {
        let what = InformInfo {
            lid_range_begin: Lid(0xffff),
            is_generic: 1,
            subscribe: 1,
            notice_type: 0xffff,
            trap_number: 65,
            producer: Producer(0xff_ffff),
            ..InformInfo::default()
        };
        let data = SaMad::new(Method::SET, InformInfo::ATTR_ID, &what.to_bytes()).to_bytes();
        let mad = UserMad {
            agent: 0,
            status: 0,
            timeout_ms: 0,
            retries: 0,
            address: UserAddress::gsi(lid),
            data: data.to_vec(),
        };
        service.handle_mad(net.now, net.manager(), &mad);
        let answer = service.next_mad().expect("an answer");
        assert_eq!(MadHeader::parse(&answer.data).expect("a MAD").status, 0);
    }
    set(&mut net, "Default=0x7fff: ALL, SELF=full; Other=0x20: 0x100101=full, 0x100301;");
    tell(&mut net, &mut service);
    net.change(|s, now, inbox| s.set_cable(now, A, false, inbox)).expect("a cable");
    net.pass(QUIET);
    tell(&mut net, &mut service);
    let told: Vec<_> = std::iter::from_fn(|| service.next_mad()).map(|m| m.address.lid).collect();
    assert_eq!(told, lids[1..]);
}
