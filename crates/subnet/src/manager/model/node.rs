//! A node, its ports, and what only a switch has.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use rdmux_wire::sm::{
    NO_ROUTE, NodeDescription, NodeInfo, NodeType, PortInfo, PortState, SlToVlTable, SmInfo,
    SwitchInfo, VlArbitration,
};
use rdmux_wire::{Guid, Lid, Pkey};

use super::PortSet;
use crate::topology::PortRef;

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it says of itself, by the port that was asked first.
    pub info: NodeInfo,
    /// Its name.
    pub description: NodeDescription,
    /// Its ports by number. Of an adapter port 0 stands for nothing, as do ports that are not cabled to the subnet.
    pub ports: Vec<Port>,
    /// What only a switch has.
    pub switch: Option<Box<Switch>>,
    /// The way to it from the manager's port: port numbers to leave by.
    pub route: Vec<u8>,
}

/// A port of a node.
#[derive(Clone, Debug, Default)]
pub struct Port {
    /// PortGUID; of a switch's external port that of port 0.
    pub guid: Guid,
    /// PortInfo as it was read or set last; none while it was not.
    pub info: Option<PortInfo>,
    /// The P_Key table up to its last entry in use; zero where there is none.
    pub pkeys: Vec<Pkey>,
    /// Alias GUIDs by their index, from 1; zero where there is none.
    pub aliases: Vec<Guid>,
    /// The port at the other end of the cable.
    pub peer: Option<PortRef>,
    /// SLtoVL tables by the port that a packet comes in by (an adapter has one); none where it is not known.
    pub sl_to_vl: Vec<Option<SlToVlTable>>,
    /// The VL arbitration tables as far as they are known: blocks 1 to 4 in their order.
    pub vl_arbitration: Vec<VlArbitration>,
    /// The manager on this port, if it has one; also the manager whose model this is.
    pub manager: Option<SmInfo>,
    /// The base LID that the port is given, or 0. The port has it once [`Port::lid`] says so.
    pub assigned: Lid,
}

/// What only a switch has.
#[derive(Clone, Debug)]
pub struct Switch {
    /// SwitchInfo as it was read or set last.
    pub info: SwitchInfo,
    /// The port to leave by, by LID; [`NO_ROUTE`] and what is behind the end is no route.
    pub forwarding: Vec<u8>,
    /// The ports to leave by, by multicast LID.
    pub multicast: BTreeMap<Lid, PortSet>,
}

impl Switch {
    /// The port by which packets to a LID leave; none where there is no route.
    pub fn egress(&self, lid: Lid) -> Option<u8> {
        self.forwarding.get(usize::from(lid.0)).copied().filter(|&port| port != NO_ROUTE)
    }
}

impl Node {
    /// Whether it is a switch.
    pub fn is_switch(&self) -> bool {
        self.info.node_type == NodeType::SWITCH
    }

    /// The numbers of ports that have a LID of their own: port 0 of a switch, all of another node.
    pub fn end_ports(&self) -> impl Iterator<Item = u8> + use<> {
        let (first, last) = if self.is_switch() { (0, 0) } else { (1, self.info.num_ports) };
        first..=last
    }
}

impl Port {
    /// Whether it has a link, as far as it says.
    pub fn is_up(&self) -> bool {
        self.info.as_ref().is_some_and(|info| info.port_state >= PortState::INIT)
    }

    /// The base LID, if it has one.
    pub fn lid(&self) -> Option<Lid> {
        self.info.as_ref().map(|info| info.lid).filter(|lid| lid.is_unicast())
    }

    /// How many low bits of the LID are path bits.
    pub fn lmc(&self) -> u8 {
        self.info.as_ref().map_or(0, |info| info.lmc)
    }
}
