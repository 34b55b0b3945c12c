//! Whole subnets: discovered, configured and activated. Then every port is queried by its LID.

use std::cell::Cell;
use std::rc::Rc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rdmux_subnet::topology::LinkRate;
use rdmux_subnet::{DropReason, PortId, Topology};
use rdmux_wire::Lid;
use rdmux_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass};
use rdmux_wire::sm::{Attribute, LinearForwardingTable, PortState, SwitchInfo};

use crate::manager::Manager;
use crate::net::{Net, port, qp1};

/// Shapes, and the node index of their first adapter.
const SHAPES: &[(&str, u32)] = &[
    ("two", 0),
    ("switch:8", 1),
    ("fattree:40", 5),
    ("fattree:700", 417),
    ("torus:3x3x2", 18),
    ("dragonfly:3,1,1", 12),
];

/// Returns a Get of PortCounters of the destination port.
fn perf_get(tid: u64, number: u8) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    let header = MadHeader::new(MgmtClass::PERF, 1, Method::GET);
    MadHeader { attr_id: 0x12, tid, ..header }.emit(&mut mad);
    mad[65] = number;
    mad
}

/// Queries every port by its LID on QP1, from the manager's port.
fn all_answer(net: &mut Net, from: PortId, lids: &[Lid]) {
    net.inbox.packets.clear();
    let own = net.subnet.port(from).expect("a port").lid();
    for lid in lids {
        let is_switch = net.subnet.ports().any(|p| p.lid() == *lid && p.id().number == 0);
        net.send(from, qp1(own, *lid, perf_get(lid.0.into(), u8::from(!is_switch))));
        let (at, packet) =
            net.inbox.packets.pop_front().unwrap_or_else(|| panic!("{lid} is silent"));
        assert_eq!((at, packet.slid, packet.dlid), (from, *lid, own));
        let header = MadHeader::parse(&packet.mad[..]).expect("a MAD");
        assert_eq!((header.method, header.status), (Method::GET_RESP, 0), "{lid}");
    }
}

#[test]
fn every_topology_shape_is_brought_up_and_all_lids_respond() {
    for (shape, first_adapter) in SHAPES {
        let mut net = Net::of(shape);
        let first = port(*first_adapter, 1);
        let lids = Manager::bring_up(&mut net, first).unwrap_or_else(|e| panic!("{shape}: {e:?}"));
        assert_eq!(lids.len(), net.subnet.node_count(), "{shape}");
        for view in net.subnet.ports() {
            let linked = net.subnet.peer(view.id()).is_some() || view.id().number == 0;
            let expected = if linked { PortState::ACTIVE } else { PortState::DOWN };
            assert_eq!(view.state(), expected, "{shape} {}", view.id());
        }
        all_answer(&mut net, first, &lids);
    }
}

#[test]
fn subnet_is_brought_up_although_a_third_of_the_smps_is_lost() {
    for seed in 0..8 {
        let mut net = Net::of("torus:3x3x1");
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let loses = move || rng.next_u32() % 3 == 0;
        let lids = Manager::bring_up_losing(&mut net, port(9, 1), loses);
        let lids = lids.unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
        all_answer(&mut net, port(9, 1), &lids);
    }
}

#[test]
fn cables_that_are_swapped_between_two_sweeps_are_found_by_the_second() {
    let mut net = Net::of("switch:4");
    Manager::bring_up(&mut net, port(1, 1)).expect("a subnet");
    swap(&mut net, [port(0, 2), port(0, 3)]);
    let lids = Manager::bring_up(&mut net, port(1, 1)).expect("a subnet");
    all_answer(&mut net, port(1, 1), &lids);
}

#[test]
fn a_link_that_comes_up_after_a_sweep_is_found_by_the_next() {
    let mut net = Net::of("switch:2");
    net.subnet.set_cable(net.now, port(0, 2), false, &mut net.inbox).expect("a cable");
    let some = Manager::bring_up(&mut net, port(1, 1)).expect("a subnet");
    assert_eq!(some.len(), 2);
    net.subnet.set_cable(net.now, port(0, 2), true, &mut net.inbox).expect("a cable");
    let all = Manager::bring_up(&mut net, port(1, 1)).expect("a subnet");
    assert_eq!(all.len(), 3);
    all_answer(&mut net, port(1, 1), &all);
}

/// Swaps two adapters of a switch.
fn swap(net: &mut Net, ends: [PortId; 2]) {
    let far = ends.map(|end| net.subnet.unplug(net.now, end, &mut net.inbox).expect("a cable"));
    for (end, far) in ends.into_iter().zip([far[1], far[0]]) {
        let plugged = net.subnet.plug(net.now, end, far, LinkRate::DEFAULT, &mut net.inbox);
        plugged.expect("free ports");
    }
}

#[test]
fn cables_that_are_swapped_at_any_moment_of_a_sweep_are_found_by_the_next() {
    let ends = [port(0, 2), port(0, 3)];
    for moment in 0.. {
        let mut net = Net::of("switch:3");
        let (mut questions, swapped) = (0, Rc::new(Cell::new(false)));
        let told = Rc::clone(&swapped);
        let during = move |net: &mut Net| {
            if questions == moment {
                swap(net, ends);
                told.set(true);
            }
            questions += 1;
        };
        // The sweep may fail, but must leave nothing that the next sweep cannot repair.
        let _ = Manager::bring_up_during(&mut net, port(1, 1), during);
        if !swapped.get() {
            assert!(moment > 30, "a sweep has more questions");
            break;
        }
        // The switch reports a change until a manager has seen it.
        let lids = Manager::bring_up(&mut net, port(1, 1));
        let lids = lids.unwrap_or_else(|e| panic!("swapped before question {moment}: {e:?}"));
        assert_eq!(lids.len(), 4, "swapped before question {moment}");
        all_answer(&mut net, port(1, 1), &lids);
    }
}

#[test]
fn lids_survive_a_restart_from_the_topology_that_was_written() {
    let mut net = Net::of("switch:3");
    let lids = Manager::bring_up(&mut net, port(1, 1)).expect("a subnet");
    let text = net.subnet.topology().to_string();
    let again = Net::new(&Topology::parse(&text).expect("what was written"));
    let known: Vec<_> =
        again.subnet.ports().map(|p| p.lid()).filter(|lid| *lid != Lid::NONE).collect();
    assert_eq!(known.len(), lids.len());
    for view in net.subnet.ports() {
        let new = again.subnet.port(view.id()).expect("the same ports");
        assert_eq!((new.lid(), new.guid()), (view.lid(), view.guid()));
        assert_eq!(again.subnet.peer(view.id()), net.subnet.peer(view.id()));
    }
    assert_eq!(again.subnet.topology().to_string(), text);
}

#[test]
fn duplicate_guids_are_refused_with_the_line() {
    let text = "caguid=0x1\nCa 1 \"a\"\n\ncaguid=0x1\nCa 1 \"b\"\n";
    let error = Topology::parse(text).expect_err("two nodes with one GUID").to_string();
    assert!(error.starts_with("line 5"), "{error}");
}

#[test]
fn packet_in_a_forwarding_loop_is_dropped_after_too_many_hops() {
    let text = "Switch 4 \"a\"\n[1] \"h\"[1]\n[2] \"b\"[2]\n[3] \"c\"[3]\n\nSwitch 4 \"b\"\n[4] \"c\"[4]\n\nSwitch 4 \"c\"\n\nCa 1 \"h\"\n";
    let mut net = Net::new(&Topology::parse(text).expect("a file"));
    let h = port(3, 1);
    Manager::bring_up(&mut net, h).expect("a subnet");
    // LID 60 is routed from a to b, from b to c, from c to a.
    for (hops, out) in [(&[1][..], 2), (&[1, 2], 4), (&[1, 3], 3)] {
        let mut ports = [255; 64];
        ports[60] = out;
        let table = LinearForwardingTable { ports };
        net.set(h, hops, table, 0).expect("an answer");
        let Attribute::SwitchInfo(info) = net.get(h, hops, SwitchInfo::ATTR_ID, 0) else {
            panic!("not SwitchInfo")
        };
        let top = SwitchInfo { linear_fdb_top: Lid(63), ..info };
        net.set(h, hops, top, 0).expect("an answer");
    }
    net.send(h, qp1(Lid(1), Lid(60), perf_get(1, 1)));
    let drops: u64 = net.subnet.ports().map(|p| p.drops(DropReason::TooManyHops)).sum();
    assert_eq!(drops, 1);
}
