//! The nodes of the subnet, with the properties that seldom change.

use std::collections::HashMap;

use rdmux_subnet::topology::{Node, NodeKind};
use rdmux_subnet::{NodeId, PortId, Subnet, Topology};
use rdmux_wire::Guid;

use crate::proto::{NodeRef, ambiguous};

/// The nodes, in the order of their numbers.
#[derive(Debug)]
pub(super) struct Nodes {
    all: Vec<Named>,
    by_guid: HashMap<Guid, NodeId>,
    by_id: HashMap<String, NodeId>,
}

/// A node.
#[derive(Debug)]
pub(super) struct Named {
    /// The node's name in the topology file.
    pub(super) id: String,
    pub(super) kind: NodeKind,
    pub(super) guid: Guid,
    pub(super) system_guid: Guid,
    pub(super) vendor_id: u32,
    pub(super) device_id: u16,
    pub(super) num_ports: u8,
}

impl Named {
    pub(super) fn is_switch(&self) -> bool {
        self.kind == NodeKind::Switch
    }

    /// Returns whether a host can attach it.
    pub(super) fn is_adapter(&self) -> bool {
        self.kind == NodeKind::Ca
    }

    /// Returns whether programs can use a port of it: those of an adapter, port 0 of a switch.
    pub(super) fn has_programs_at(&self, port: u8) -> bool {
        if self.is_switch() { port == 0 } else { (1..=self.num_ports).contains(&port) }
    }
}

impl Nodes {
    pub(super) fn new(topology: &Topology) -> Self {
        let mut nodes = Self { all: Vec::new(), by_guid: HashMap::new(), by_id: HashMap::new() };
        for node in &topology.nodes {
            nodes.add(node);
        }
        nodes
    }

    /// Adds the next node of the subnet.
    pub(super) fn add(&mut self, node: &Node) {
        let number = NodeId(u32::try_from(self.all.len()).unwrap_or(u32::MAX));
        let named = self.named(number, node);
        self.all.push(named);
    }

    /// Replaces a node.
    pub(super) fn replace(&mut self, number: NodeId, node: &Node) {
        let Some(at) = usize::try_from(number.0).ok().filter(|at| *at < self.all.len()) else {
            return;
        };
        self.by_guid.retain(|_, of| *of != number);
        self.by_id.retain(|_, of| *of != number);
        self.all[at] = self.named(number, node);
    }

    fn named(&mut self, number: NodeId, node: &Node) -> Named {
        for port in 0..=node.num_ports {
            self.by_guid.entry(node.port_guid(port)).or_insert(number);
        }
        self.by_guid.insert(node.guid, number);
        self.by_id.insert(node.id.clone(), number);
        Named {
            id: node.id.clone(),
            kind: node.kind,
            guid: node.guid,
            system_guid: node.system_guid,
            vendor_id: node.vendor_id,
            device_id: node.device_id,
            num_ports: node.num_ports,
        }
    }

    pub(super) fn get(&self, node: NodeId) -> Option<&Named> {
        self.all.get(usize::try_from(node.0).ok()?)
    }

    /// Sets the SystemImageGUID of a node.
    pub(super) fn set_system_guid(&mut self, node: NodeId, guid: Guid) {
        if let Some(named) = usize::try_from(node.0).ok().and_then(|at| self.all.get_mut(at)) {
            named.system_guid = guid;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeId, &Named)> {
        (0..).map(NodeId).zip(&self.all)
    }

    /// Returns the node with this GUID, or with a port that has it.
    pub(super) fn by_guid(&self, guid: Guid) -> Option<NodeId> {
        self.by_guid.get(&guid).copied()
    }

    /// Returns a port's name for messages.
    pub(super) fn name(&self, port: PortId) -> String {
        let id = self.get(port.node).map_or("?", |node| &node.id);
        format!("{id}[{}]", port.number)
    }

    /// Makes the message for two nodes of one name.
    pub(super) fn several(&self, name: &str, a: NodeId, b: NodeId) -> String {
        let (a, b) = (self.get(a), self.get(b));
        let [a, b] = [a, b].map(|node| node.map(|n| (n.id.as_str(), n.guid)).unwrap_or_default());
        ambiguous(name, a, b)
    }

    /// Finds the node that a user names, or returns why it cannot be determined.
    pub(super) fn find(&self, subnet: &Subnet, node: &NodeRef) -> Result<NodeId, String> {
        let name = match node {
            NodeRef::Guid(guid) => {
                return self.by_guid(*guid).ok_or_else(|| format!("no node has the GUID {guid}"));
            }
            NodeRef::Name(name) => name,
        };
        if let Some(found) = self.by_id.get(name) {
            return Ok(*found);
        }
        let is_described = |node: NodeId| subnet.node_description(node).is_some_and(|d| d == *name);
        let mut found = self.iter().filter(|(id, _)| is_described(*id));
        match (found.next(), found.next()) {
            (Some((one, _)), None) => Ok(one),
            (Some((a, _)), Some((b, _))) => Err(self.several(name, a, b)),
            _ => Err(format!("no node is called {name:?}: `rdmux fabric show` lists them")),
        }
    }
}
