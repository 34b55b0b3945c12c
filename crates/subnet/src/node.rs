//! A node: its NodeInfo and the indices of its ports.

use alloc::boxed::Box;

use rdmux_wire::Guid;
use rdmux_wire::sm::NodeDescription;

use crate::config::Config;
use crate::switch::Switch;
use crate::topology::{self, NodeKind};

/// The revision in every node's NodeInfo.
pub const REVISION: u32 = 0xa1;

/// A node of a subnet.
#[derive(Clone, Debug)]
pub(crate) struct NodeState {
    pub(crate) kind: NodeKind,
    pub(crate) guid: Guid,
    pub(crate) system_guid: Guid,
    pub(crate) vendor_id: u32,
    pub(crate) device_id: u16,
    pub(crate) num_ports: u8,
    pub(crate) description: NodeDescription,
    /// The index of the first port: port 0 of a switch, port 1 of an adapter.
    pub(crate) first: usize,
    pub(crate) switch: Option<Box<Switch>>,
}

impl NodeState {
    pub(crate) fn new(node: &topology::Node, first: usize, config: &Config) -> Self {
        let is_switch = node.kind == NodeKind::Switch;
        Self {
            kind: node.kind,
            guid: node.guid,
            system_guid: node.system_guid,
            vendor_id: node.vendor_id,
            device_id: node.device_id,
            num_ports: node.num_ports,
            description: node.description.as_str().into(),
            first,
            switch: is_switch.then(|| Box::new(Switch::new(config, node.enhanced_port0))),
        }
    }

    /// Returns the number of the first port.
    pub(crate) fn lowest(&self) -> u8 {
        u8::from(self.switch.is_none())
    }

    /// Returns the index of a port.
    #[inline]
    pub(crate) fn port(&self, number: u8) -> Option<usize> {
        let lowest = self.lowest();
        (lowest..=self.num_ports)
            .contains(&number)
            .then(|| self.first + usize::from(number - lowest))
    }

    /// Returns the number of ports, including port 0.
    pub(crate) fn all_ports(&self) -> usize {
        usize::from(self.num_ports) + usize::from(self.switch.is_some())
    }
}
