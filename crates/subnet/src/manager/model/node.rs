//! A node, its ports, and the properties that only a switch has.

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
    /// NodeInfo, as answered by the port that was queried first.
    pub info: NodeInfo,
    /// Its name.
    pub description: NodeDescription,
    /// Ports by number. Port 0 of an adapter is unused, as are ports without a cable to the subnet.
    pub ports: Vec<Port>,
    /// The properties of a switch.
    pub switch: Option<Box<Switch>>,
    /// The route from the manager's port: the egress port of each hop.
    pub route: Vec<u8>,
}

/// A port of a node.
#[derive(Clone, Debug, Default)]
pub struct Port {
    /// PortGUID; for a switch's external port that of port 0.
    pub guid: Guid,
    /// PortInfo as it was last read or set; none before that.
    pub info: Option<PortInfo>,
    /// The P_Key table up to its last used entry; unused entries are zero.
    pub pkeys: Vec<Pkey>,
    /// Alias GUIDs by index, from 1; unused entries are zero.
    pub aliases: Vec<Guid>,
    /// The port at the other end of the cable.
    pub peer: Option<PortRef>,
    /// SLtoVL tables by input port (an adapter has one); none if unknown.
    pub sl_to_vl: Vec<Option<SlToVlTable>>,
    /// The known VL arbitration tables: blocks 1 to 4 in order.
    pub vl_arbitration: Vec<VlArbitration>,
    /// The manager on this port, if it has one. Also set for the manager that owns this model.
    pub manager: Option<SmInfo>,
    /// The base LID assigned to the port, or 0. The port has adopted it once [`Port::lid`] returns it.
    pub assigned: Lid,
}

/// The properties that only a switch has.
#[derive(Clone, Debug)]
pub struct Switch {
    /// SwitchInfo as it was last read or set.
    pub info: SwitchInfo,
    /// The egress port of each LID. [`NO_ROUTE`], and LIDs beyond the end, have no route.
    pub forwarding: Vec<u8>,
    /// The egress ports of each multicast LID.
    pub multicast: BTreeMap<Lid, PortSet>,
}

impl Switch {
    /// Returns the egress port of a LID; none without a route.
    pub fn egress(&self, lid: Lid) -> Option<u8> {
        self.forwarding.get(usize::from(lid.0)).copied().filter(|&port| port != NO_ROUTE)
    }
}

impl Node {
    /// Returns whether the node is a switch.
    pub fn is_switch(&self) -> bool {
        self.info.node_type == NodeType::SWITCH
    }

    /// Returns the numbers of ports that have a LID of their own: port 0 of a switch, all ports of another node.
    pub fn end_ports(&self) -> impl Iterator<Item = u8> + use<> {
        let (first, last) = if self.is_switch() { (0, 0) } else { (1, self.info.num_ports) };
        first..=last
    }
}

impl Port {
    /// Returns whether the port reports a link.
    pub fn is_up(&self) -> bool {
        self.info.as_ref().is_some_and(|info| info.port_state >= PortState::INIT)
    }

    /// Returns the base LID, if the port has one.
    pub fn lid(&self) -> Option<Lid> {
        self.info.as_ref().map(|info| info.lid).filter(|lid| lid.is_unicast())
    }

    /// Returns the LMC: the number of low LID bits that are path bits.
    pub fn lmc(&self) -> u8 {
        self.info.as_ref().map_or(0, |info| info.lmc)
    }
}
