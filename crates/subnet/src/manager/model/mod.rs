//! The manager's model of its subnet: nodes, ports, cables, and the tables that it has set.
//!
//! [`Model`] finds nodes and ports by GUIDs and LIDs. [`Node`], [`Port`] and [`Switch`] have the properties of each.

mod node;
mod port_set;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use rdmux_wire::{Guid, Lid};

pub use self::node::{Node, Port, Switch};
pub use self::port_set::PortSet;
use crate::topology::PortRef;

/// All nodes that a manager has found. A [`PortRef`] names a port by the index of its node and its number.
#[derive(Clone, Debug, Default)]
pub struct Model {
    nodes: Vec<Node>,
    by_node_guid: BTreeMap<Guid, usize>,
    /// Ports by their GUIDs and alias GUIDs; for a switch, its port 0.
    by_port_guid: BTreeMap<Guid, PortRef>,
    /// The owner of each LID, indexed by LID: 2^LMC entries per port.
    by_lid: Vec<Option<PortRef>>,
    /// The number of ports of all nodes together.
    ports: usize,
    version: u64,
}

impl Model {
    /// Returns a number that changes whenever anything but the ports of multicast groups may have changed.
    pub fn version(&self) -> u64 {
        self.version
    }

    fn changes(&mut self) {
        self.version = self.version.wrapping_add(1);
    }

    /// Returns all nodes, in the order of discovery.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the number of ports of all nodes together, including port 0 of each.
    pub fn port_count(&self) -> usize {
        self.ports
    }

    /// Returns a node by its index.
    pub fn node(&self, node: usize) -> Option<&Node> {
        self.nodes.get(node)
    }

    /// Returns a node by its index for modification. Its GUIDs and LIDs must not be changed.
    pub fn node_mut(&mut self, node: usize) -> Option<&mut Node> {
        self.changes();
        self.nodes.get_mut(node)
    }

    /// Returns the multicast table of a switch for modification.
    pub(super) fn multicast_mut(&mut self, node: usize) -> Option<&mut BTreeMap<Lid, PortSet>> {
        Some(&mut self.nodes.get_mut(node)?.switch.as_deref_mut()?.multicast)
    }

    /// Returns a port.
    pub fn port(&self, port: PortRef) -> Option<&Port> {
        self.nodes.get(port.node)?.ports.get(usize::from(port.port))
    }

    /// Returns a port for modification. [`Model::set_lid`] and [`Model::set_alias`] change its GUIDs and LIDs.
    pub fn port_mut(&mut self, port: PortRef) -> Option<&mut Port> {
        self.changes();
        self.nodes.get_mut(port.node)?.ports.get_mut(usize::from(port.port))
    }

    /// Returns the ports that have or can have a LID of their own, in the order of the nodes.
    pub fn end_ports(&self) -> impl Iterator<Item = (PortRef, &Port)> {
        self.nodes.iter().enumerate().flat_map(|(index, node)| {
            node.end_ports().filter_map(move |number| {
                let port = node.ports.get(usize::from(number))?;
                Some((PortRef { node: index, port: number }, port))
            })
        })
    }

    /// Returns the node with a GUID.
    pub fn by_node_guid(&self, guid: Guid) -> Option<usize> {
        self.by_node_guid.get(&guid).copied()
    }

    /// Returns the port with a GUID or alias GUID.
    pub fn by_port_guid(&self, guid: Guid) -> Option<PortRef> {
        self.by_port_guid.get(&guid).copied()
    }

    /// Returns the port with this GUID as its own, not as an alias.
    pub fn by_own_guid(&self, guid: Guid) -> Option<PortRef> {
        let at = self.by_port_guid(guid)?;
        (self.port(at)?.guid == guid).then_some(at)
    }

    /// Returns the port that owns a LID, which is its base LID or has path bits.
    pub fn by_lid(&self, lid: Lid) -> Option<PortRef> {
        self.by_lid.get(usize::from(lid.0)).copied().flatten()
    }

    /// Returns the highest LID of a port; 0 if none has one.
    pub fn highest_lid(&self) -> Lid {
        let at = self.by_lid.iter().rposition(Option::is_some).unwrap_or(0);
        Lid(u16::try_from(at).unwrap_or(u16::MAX))
    }

    /// Adds a node and returns its index, which is valid until [`Model::clear`]. Adds nothing if the GUID exists already.
    pub fn add(&mut self, node: Node) -> Option<usize> {
        let index = self.nodes.len();
        if self.by_node_guid.contains_key(&node.info.node_guid) {
            return None;
        }
        self.changes();
        self.by_node_guid.insert(node.info.node_guid, index);
        self.ports += node.ports.len();
        self.nodes.push(node);
        let ports: Vec<_> = self.nodes[index].end_ports().collect();
        for number in ports {
            let place = PortRef { node: index, port: number };
            let Some(port) = self.port(place) else { continue };
            let (guid, lid) = (port.guid, port.lid().map(|lid| (lid, port.lmc())));
            self.know_guid(guid, place);
            if let Some((lid, lmc)) = lid {
                self.know_lid(lid, lmc, Some(place));
            }
        }
        Some(index)
    }

    /// Sets a port's GUID, once it is known.
    pub fn set_guid(&mut self, port: PortRef, guid: Guid) {
        let Some(entry) = self.port_mut(port) else { return };
        entry.guid = guid;
        self.know_guid(guid, port);
    }

    /// Sets an alias GUID of a port, or removes it if `guid` is zero.
    pub fn set_alias(&mut self, port: PortRef, index: u8, guid: Guid) {
        let Some(entry) = self.port_mut(port) else { return };
        let Some(at) = usize::from(index).checked_sub(1) else { return };
        if entry.aliases.len() <= at {
            entry.aliases.resize(at + 1, Guid(0));
        }
        let old = core::mem::replace(&mut entry.aliases[at], guid);
        let is_kept = entry.guid == old || entry.aliases.contains(&old);
        if !is_kept && self.by_port_guid.get(&old) == Some(&port) {
            self.by_port_guid.remove(&old);
        }
        self.know_guid(guid, port);
    }

    /// Sets a port's LID. PortInfo must have been read.
    pub fn set_lid(&mut self, port: PortRef, lid: Lid, lmc: u8) {
        let Some(info) = self.port_mut(port).and_then(|p| p.info.as_mut()) else { return };
        let (old, old_lmc) = (info.lid, info.lmc);
        (info.lid, info.lmc) = (lid, lmc);
        for old in
            lids(old, old_lmc).filter(|&old| self.by_lid(old) == Some(port)).collect::<Vec<_>>()
        {
            self.by_lid[usize::from(old.0)] = None;
        }
        self.know_lid(lid, lmc, Some(port));
    }

    /// Assigns a LID to a port, which owns it from now on.
    pub(super) fn assign(&mut self, port: PortRef, lid: Lid, lmc: u8) {
        let Some(entry) = self.port_mut(port) else { return };
        entry.assigned = lid;
        self.know_lid(lid, lmc, Some(port));
    }

    /// Connects two ports by a cable. Returns false if one of them is connected to another port.
    pub(super) fn connect(&mut self, a: PortRef, b: PortRef) -> bool {
        let ends = [(a, b), (b, a)];
        let fits = |&(end, far): &(PortRef, PortRef)| {
            self.port(end).is_some_and(|port| port.peer.is_none_or(|peer| peer == far))
        };
        if a == b || !ends.iter().all(fits) {
            return false;
        }
        for (end, far) in ends {
            if let Some(port) = self.port_mut(end) {
                port.peer = Some(far);
            }
        }
        true
    }

    /// Forgets the SLtoVL tables of all ports.
    pub(super) fn forget_sl_to_vl(&mut self) {
        self.changes();
        let ports = self.nodes.iter_mut().flat_map(|node| node.ports.iter_mut());
        ports.for_each(|port| port.sl_to_vl.clear());
    }

    /// Forgets everything, before a new discovery.
    pub fn clear(&mut self) {
        let version = self.version.wrapping_add(1);
        *self = Self { version, ..Self::default() };
    }

    /// Notes that this model replaces another one.
    pub(super) fn replaces(&mut self, old: &Self) {
        self.version = self.version.max(old.version).wrapping_add(1);
    }

    fn know_guid(&mut self, guid: Guid, port: PortRef) {
        if guid != Guid(0) {
            self.by_port_guid.entry(guid).or_insert(port);
        }
    }

    fn know_lid(&mut self, lid: Lid, lmc: u8, port: Option<PortRef>) {
        for lid in lids(lid, lmc) {
            let at = usize::from(lid.0);
            if self.by_lid.len() <= at {
                self.by_lid.resize(at + 1, None);
            }
            self.by_lid[at] = port;
        }
    }
}

/// Returns the LIDs of a port: 2^LMC from the base LID on.
fn lids(lid: Lid, lmc: u8) -> impl Iterator<Item = Lid> {
    let count = if lid.is_unicast() { 1 << lmc.min(7) } else { 0 };
    (0..count).map(move |bits| Lid(lid.0.saturating_add(bits))).filter(|lid| lid.is_unicast())
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use rdmux_wire::sm::{NodeDescription, NodeInfo, NodeType, PortInfo};

    use super::*;

    fn adapter(guid: u64) -> Node {
        Node {
            info: NodeInfo {
                node_type: NodeType::CA,
                num_ports: 1,
                node_guid: Guid(guid),
                ..NodeInfo::default()
            },
            description: NodeDescription::default(),
            ports: vec![
                Port::default(),
                Port { guid: Guid(guid + 1), info: Some(PortInfo::default()), ..Port::default() },
            ],
            switch: None,
            route: Vec::new(),
        }
    }

    #[test]
    fn ports_are_found_by_guid_alias_and_every_lid_of_their_mask() {
        let mut model = Model::default();
        let node = model.add(adapter(8)).unwrap();
        assert_eq!(model.add(adapter(8)), None, "its GUID is there already");
        let port = PortRef { node, port: 1 };
        assert_eq!(model.by_port_guid(Guid(9)), Some(port));
        model.set_lid(port, Lid(4), 2);
        assert_eq!([4, 7, 8].map(|lid| model.by_lid(Lid(lid))), [Some(port), Some(port), None]);
        assert_eq!(model.highest_lid(), Lid(7));
        model.set_lid(port, Lid(12), 0);
        assert_eq!([4, 12].map(|lid| model.by_lid(Lid(lid))), [None, Some(port)]);
        model.set_alias(port, 2, Guid(77));
        assert_eq!(model.by_port_guid(Guid(77)), Some(port));
        assert_eq!([9, 77].map(|guid| model.by_own_guid(Guid(guid))), [Some(port), None]);
        model.set_alias(port, 2, Guid(78));
        assert_eq!(model.by_port_guid(Guid(77)), None);
        assert_eq!(model.port(port).unwrap().aliases, [Guid(0), Guid(78)]);
    }

    #[test]
    fn every_mutation_of_the_model_changes_its_version() {
        let mut model = Model::default();
        let port = PortRef { node: 0, port: 1 };
        let changes: [fn(&mut Model, PortRef); 10] = [
            |model, _| assert!(model.add(adapter(8)).is_some()),
            |model, port| assert!(model.node_mut(port.node).is_some()),
            |model, port| assert!(model.port_mut(port).is_some()),
            |model, port| model.set_lid(port, Lid(4), 0),
            |model, port| model.set_alias(port, 1, Guid(77)),
            |model, port| model.assign(port, Lid(5), 0),
            |model, port| assert!(model.connect(port, PortRef { node: 0, port: 0 })),
            |model, _| model.forget_sl_to_vl(),
            |model, _| model.clear(),
            |model, _| {
                let mut other = Model::default();
                other.replaces(model);
                *model = other;
            },
        ];
        let mut seen = vec![model.version()];
        for change in changes {
            change(&mut model, port);
            assert!(!seen.contains(&model.version()));
            seen.push(model.version());
        }
    }
}
