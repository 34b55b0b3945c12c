//! Tests of the checks themselves: each breaks one thing on purpose in a good run.

use std::collections::BTreeSet;

use rdmux_subnet::{MadPacket, NodeId, PortId};
use rdmux_wire::Lid;
use rdmux_wire::mad::Method;
use rdmux_wire::sm::{Attribute, LinearForwardingTable, MulticastForwardingTable, NO_ROUTE};
use rdmux_wire::smp::Smp;

use super::world::World;

/// Returns a world with several programs and a switch, at its end, without a liar.
fn ended() -> World {
    for seed in 0.. {
        let mut world = World::new(seed, false);
        let scenario = &world.scenario;
        let fits = scenario.lie.is_none() && scenario.shape == "torus:3x1x1";
        if !fits || world.programs.len() < 3 {
            continue;
        }
        world.until_end().expect("a run in which nothing is broken");
        let part = world.part(world.programs[0].port);
        if part.len() == world.part(PortId::new(NodeId(0), 0)).len()
            && world.master(&part).is_some()
        {
            world.check_reports().expect("reports");
            world.check().expect("all is well");
            return world;
        }
    }
    unreachable!()
}

/// Returns the ports of all programs and managers, and the seat of the master.
fn part(world: &World) -> (BTreeSet<PortId>, usize) {
    let part = world.part(world.programs[0].port);
    let master = world.master(&part).expect("a master");
    (part, master)
}

/// Sets a table of a switch, without its manager's knowledge.
fn set(world: &mut World, switch: NodeId, attr_id: u16, modifier: u32, table: Attribute) {
    let mut smp = Smp::directed(Method::SET, attr_id, modifier, &[]);
    smp.set_attribute(&table);
    let mad = Box::new(smp.to_bytes());
    let packet = MadPacket::smp(Lid::NONE, Lid::PERMISSIVE, 0, mad);
    let now = world.agenda.now();
    world.subnet.send(now, PortId::new(switch, 0), packet, &mut world.inbox);
}

#[test]
fn a_group_without_members_that_a_switch_still_sends_is_found() {
    let mut world = ended();
    // LID 0xc140 is the first of block 10.
    let mut port_masks = [0; 32];
    port_masks[0] = 1 << 1;
    let table = MulticastForwardingTable { port_masks };
    set(&mut world, NodeId(0), MulticastForwardingTable::ATTR_ID, 10, table.into());
    let said = world.check().expect_err("a stale group");
    assert!(said.contains("which nobody is in"), "{said}");
}

#[test]
fn a_path_without_routes_is_found() {
    let mut world = ended();
    let (part, master) = part(&world);
    world.check_paths(&part, master).expect("paths");
    for node in 0..3 {
        let table = LinearForwardingTable { ports: [NO_ROUTE; 64] };
        set(&mut world, NodeId(node), LinearForwardingTable::ATTR_ID, 0, table.into());
    }
    let said = world.check_paths(&part, master).expect_err("no routes");
    assert!(said.starts_with("no way from"), "{said}");
    assert!(world.check().is_err());
}

#[test]
fn a_path_with_the_lid_of_another_port_and_none_at_all_are_found() {
    let mut world = ended();
    let (part, master) = part(&world);
    let port = world.programs[0].port;
    let at = world.programs[0].paths.iter().position(|(to, _)| *to != port).expect("a path");
    let known = world.programs[0].paths.clone();
    world.programs[0].paths[at].1[0].dlid = world.subnet.port(port).expect("a port").lid();
    let said = world.check_paths(&part, master).expect_err("another port's LID");
    assert!(said.starts_with("LIDs of other ports"), "{said}");
    world.programs[0].paths[at].1.clear();
    let said = world.check_paths(&part, master).expect_err("no record");
    assert!(said.contains("knows no path"), "{said}");
    world.programs[0].paths.remove(at);
    let said = world.check_paths(&part, master).expect_err("no answer");
    assert!(said.contains("has found no path"), "{said}");
    assert!(world.check().is_err());
    world.programs[0].paths = known;
    world.check().expect("all is well again");
}

#[test]
fn request_or_report_during_silence_is_detected() {
    let mut world = ended();
    world.programs.iter_mut().for_each(|program| program.begin_silence());
    world.check_silence().expect("silence");
    world.programs[0].sent = 1;
    let said = world.check_silence().expect_err("a request");
    assert!(said.contains("has sent 1 requests"), "{said}");
    world.programs[0].begin_silence();
    world.programs[0].reports.push(66);
    let said = world.check_silence().expect_err("a Report");
    assert!(said.contains("of traps [66]"), "{said}");
}
