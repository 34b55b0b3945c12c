//! Builds the model that a manager would have of a topology: LIDs in the order of the nodes and shortest routes.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use rdmux_wire::sm::{
    CapabilityMask, NO_ROUTE, NodeDescription, NodeInfo, NodeType, PortInfo, PortState, SwitchInfo,
};
use rdmux_wire::{Gid, Lid, Pkey};

use crate::manager::Model;
use crate::manager::model::{Node, Port, Switch};
use crate::topology::{self, PortRef, Topology};

/// Builds a model. LIDs count from 1, 2^lmc for each port of an adapter.
pub(crate) fn model(topology: &Topology, lmc: u8) -> Model {
    let mut model = Model::default();
    for node in &topology.nodes {
        model.add(self::node(node));
    }
    let mut next = 1 << lmc;
    let places: Vec<_> = model.end_ports().map(|(place, _)| place).collect();
    for &place in &places {
        let is_switch = model.node(place.node).is_some_and(Node::is_switch);
        let lmc = if is_switch { 0 } else { lmc };
        let base: u16 = (next + (1 << lmc) - 1) >> lmc << lmc;
        model.set_lid(place, Lid(base), lmc);
        next = base + (1 << lmc);
    }
    for &place in &places {
        route(&mut model, place, next);
    }
    model
}

fn node(from: &topology::Node) -> Node {
    let is_switch = from.kind == topology::NodeKind::Switch;
    let info = NodeInfo {
        base_version: 1,
        class_version: 1,
        node_type: NodeType(from.kind.code()),
        num_ports: from.num_ports,
        system_image_guid: from.system_guid,
        node_guid: from.guid,
        port_guid: from.port_guid(u8::from(!is_switch)),
        partition_cap: 64,
        device_id: from.device_id,
        revision: 1,
        local_port_num: u8::from(!is_switch),
        vendor_id: from.vendor_id,
    };
    let ports = (0..=from.num_ports).map(|number| port(from, is_switch, number)).collect();
    let switch = Switch {
        info: SwitchInfo {
            linear_fdb_cap: 0xc000,
            multicast_fdb_cap: 1024,
            partition_enforcement_cap: 32,
            ..SwitchInfo::default()
        },
        forwarding: Vec::new(),
        multicast: Default::default(),
    };
    Node {
        info,
        description: NodeDescription::from(from.description.as_str()),
        ports,
        switch: is_switch.then(|| Box::new(switch)),
        route: Vec::new(),
    }
}

fn port(of: &topology::Node, is_switch: bool, number: u8) -> Port {
    let link = of.ports.get(&number).and_then(|port| port.link);
    let is_there = link.is_some() || is_switch && number == 0;
    let mut info = PortInfo {
        gid_prefix: Gid::DEFAULT_PREFIX,
        sm_lid: Lid(1),
        capability_mask: CapabilityMask::TRAP | CapabilityMask::EXTENDED_SPEEDS,
        local_port_num: number,
        port_state: if is_there { PortState::ACTIVE } else { PortState::DOWN },
        mtu_cap: 5,
        neighbor_mtu: 5,
        guid_cap: 32,
        ..PortInfo::default()
    };
    if let Some((_, rate)) = link {
        info.link_width_active = rdmux_wire::sm::LinkWidth::from_bits_retain(rate.width.code());
        info.link_speed_active = rdmux_wire::sm::LinkSpeed::from_bits_retain(rate.speed.code());
        info.link_speed_ext_active =
            rdmux_wire::sm::LinkSpeedExt::from_bits_retain(rate.speed.ext_code());
    }
    let is_end = if is_switch { number == 0 } else { number > 0 };
    Port {
        guid: of.port_guid(number),
        info: (is_switch || is_end).then_some(info),
        pkeys: if is_end { vec![Pkey::DEFAULT] } else { Vec::new() },
        peer: link.map(|(peer, _)| peer),
        ..Port::default()
    }
}

/// Sets the routes of all switches to the LIDs of a port, by the fewest hops. Path bits choose between equal routes in turn.
fn route(model: &mut Model, to: PortRef, lids: u16) {
    let Some(port) = model.port(to) else { return };
    let (Some(base), lmc) = (port.lid(), port.lmc()) else { return };
    let mut hops = vec![usize::MAX; model.nodes().len()];
    let mut queue = VecDeque::from([to.node]);
    hops[to.node] = 0;
    while let Some(at) = queue.pop_front() {
        for peer in model.nodes()[at].ports.iter().filter_map(|port| port.peer) {
            let passes = model.nodes()[peer.node].is_switch();
            if passes && hops[peer.node] == usize::MAX {
                hops[peer.node] = hops[at] + 1;
                queue.push_back(peer.node);
            }
        }
    }
    for index in 0..model.nodes().len() {
        let node = &model.nodes()[index];
        if !node.is_switch() {
            continue;
        }
        let nearer = |(_, port): &(u8, &Port)| {
            let peer = port.peer.filter(|peer| hops[peer.node] < hops[index]);
            // Only the last hop leads to an adapter, and only to the right port.
            peer.is_some_and(|peer| peer == to || model.nodes()[peer.node].is_switch())
        };
        let ways: Vec<u8> =
            (0..=u8::MAX).zip(&node.ports).filter(nearer).map(|(number, _)| number).collect();
        let egress = |bits: u16| match ways.len() {
            _ if index == to.node => 0,
            0 => NO_ROUTE,
            n => ways[usize::from(base.0 + bits) % n],
        };
        let egress: Vec<u8> = (0..1 << lmc).map(egress).collect();
        let Some(switch) = model.node_mut(index).and_then(|node| node.switch.as_mut()) else {
            continue;
        };
        switch.info.linear_fdb_top = Lid(lids - 1);
        switch.forwarding.resize(lids.into(), NO_ROUTE);
        switch.forwarding[usize::from(base.0)..][..egress.len()].copy_from_slice(&egress);
    }
}
