//! What a manager knows of its subnet: nodes, ports, cables, and the tables that it has set.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use rdmux_wire::sm::{
    NO_ROUTE, NodeDescription, NodeInfo, NodeType, PortInfo, PortState, SlToVlTable, SmInfo,
    SwitchInfo, VlArbitration,
};
use rdmux_wire::{Guid, Lid, Pkey};

use crate::topology::PortRef;

/// All nodes that a manager has found. A [`PortRef`] names a port by the index of its node and its number.
#[derive(Clone, Debug, Default)]
pub struct Model {
    nodes: Vec<Node>,
    by_node_guid: BTreeMap<Guid, usize>,
    /// Ports by their GUIDs and alias GUIDs. Of a switch it is port 0.
    by_port_guid: BTreeMap<Guid, PortRef>,
    /// Who has a LID, by the LID: 2^LMC entries for each port.
    by_lid: Vec<Option<PortRef>>,
    /// Of all nodes together.
    ports: usize,
    version: u64,
}

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

/// A set of ports of a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSet([u64; 4]);

impl PortSet {
    /// Adds a port.
    pub fn insert(&mut self, port: u8) {
        self.0[usize::from(port) / 64] |= 1 << (port % 64);
    }

    /// Takes a port away.
    pub fn remove(&mut self, port: u8) {
        self.0[usize::from(port) / 64] &= !(1 << (port % 64));
    }

    /// Whether a port is in it.
    pub fn contains(&self, port: u8) -> bool {
        self.0[usize::from(port) / 64] & (1 << (port % 64)) != 0
    }

    /// Whether no port is in it.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// Its ports in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        (0..=u8::MAX).filter(|&port| self.contains(port))
    }

    /// The mask of 16 ports from `16 * position` on, as a multicast forwarding table has it.
    pub fn mask(&self, position: u8) -> u16 {
        let bit = usize::from(position % 16) * 16;
        u16::try_from((self.0[bit / 64] >> (bit % 64)) & 0xffff).unwrap_or_default()
    }
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

impl Model {
    /// Another number whenever something may have changed.
    pub fn version(&self) -> u64 {
        self.version
    }

    fn changes(&mut self) {
        self.version = self.version.wrapping_add(1);
    }

    /// All nodes, in the order in which they were found.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// How many ports all nodes have together, port 0 of each too.
    pub fn port_count(&self) -> usize {
        self.ports
    }

    /// A node by its index.
    pub fn node(&self, node: usize) -> Option<&Node> {
        self.nodes.get(node)
    }

    /// A node by its index, to be changed. Its GUIDs and LIDs stay.
    pub fn node_mut(&mut self, node: usize) -> Option<&mut Node> {
        self.changes();
        self.nodes.get_mut(node)
    }

    /// A port.
    pub fn port(&self, port: PortRef) -> Option<&Port> {
        self.nodes.get(port.node)?.ports.get(usize::from(port.port))
    }

    /// A port, to be changed. Its GUIDs and LIDs are changed by [`Model::set_lid`] and [`Model::set_alias`].
    pub fn port_mut(&mut self, port: PortRef) -> Option<&mut Port> {
        self.changes();
        self.nodes.get_mut(port.node)?.ports.get_mut(usize::from(port.port))
    }

    /// The ports that have a LID of their own or could have one, in the order of the nodes.
    pub fn end_ports(&self) -> impl Iterator<Item = (PortRef, &Port)> {
        self.nodes.iter().enumerate().flat_map(|(index, node)| {
            node.end_ports().filter_map(move |number| {
                let port = node.ports.get(usize::from(number))?;
                Some((PortRef { node: index, port: number }, port))
            })
        })
    }

    /// A node by its GUID.
    pub fn by_node_guid(&self, guid: Guid) -> Option<usize> {
        self.by_node_guid.get(&guid).copied()
    }

    /// A port by its GUID or one of its alias GUIDs.
    pub fn by_port_guid(&self, guid: Guid) -> Option<PortRef> {
        self.by_port_guid.get(&guid).copied()
    }

    /// The port that has a LID: its base LID or one with path bits.
    pub fn by_lid(&self, lid: Lid) -> Option<PortRef> {
        self.by_lid.get(usize::from(lid.0)).copied().flatten()
    }

    /// The highest LID that a port has; 0 if none has.
    pub fn highest_lid(&self) -> Lid {
        let at = self.by_lid.iter().rposition(Option::is_some).unwrap_or(0);
        Lid(u16::try_from(at).unwrap_or(u16::MAX))
    }

    /// Adds a node. Its index stays until [`Model::clear`]. A node whose GUID is there already is not added.
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

    /// Says what GUID a port has, once it is known.
    pub fn set_guid(&mut self, port: PortRef, guid: Guid) {
        let Some(entry) = self.port_mut(port) else { return };
        entry.guid = guid;
        self.know_guid(guid, port);
    }

    /// Gives a port another alias GUID, or none where it is zero.
    pub fn set_alias(&mut self, port: PortRef, index: u8, guid: Guid) {
        let Some(entry) = self.port_mut(port) else { return };
        let Some(at) = usize::from(index).checked_sub(1) else { return };
        if entry.aliases.len() <= at {
            entry.aliases.resize(at + 1, Guid(0));
        }
        let old = core::mem::replace(&mut entry.aliases[at], guid);
        if old != Guid(0) && self.by_port_guid.get(&old) == Some(&port) {
            self.by_port_guid.remove(&old);
        }
        self.know_guid(guid, port);
    }

    /// Gives a port a LID. PortInfo must have been read.
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

    /// Chooses a LID for a port, which is its from now on.
    pub(super) fn assign(&mut self, port: PortRef, lid: Lid, lmc: u8) {
        let Some(entry) = self.port_mut(port) else { return };
        entry.assigned = lid;
        self.know_lid(lid, lmc, Some(port));
    }

    /// Says that two ports are at the ends of a cable; false if one of them is at the end of another.
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

    /// Nothing is known of the SLtoVL tables of any port.
    pub(super) fn forget_sl_to_vl(&mut self) {
        self.changes();
        let ports = self.nodes.iter_mut().flat_map(|node| node.ports.iter_mut());
        ports.for_each(|port| port.sl_to_vl.clear());
    }

    /// Forgets everything, before a sweep from the beginning.
    pub fn clear(&mut self) {
        let version = self.version.wrapping_add(1);
        *self = Self { version, ..Self::default() };
    }

    /// Says that this is there instead of another one.
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

/// The LIDs of a port: 2^LMC from the base LID on.
fn lids(lid: Lid, lmc: u8) -> impl Iterator<Item = Lid> {
    let count = if lid.is_unicast() { 1 << lmc.min(7) } else { 0 };
    (0..count).map(move |bits| Lid(lid.0.saturating_add(bits))).filter(|lid| lid.is_unicast())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

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
        model.set_alias(port, 2, Guid(78));
        assert_eq!(model.by_port_guid(Guid(77)), None);
        assert_eq!(model.port(port).unwrap().aliases, [Guid(0), Guid(78)]);
    }

    #[test]
    fn whatever_may_change_a_model_gives_it_another_version() {
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

    #[test]
    fn sets_of_ports_are_masks_of_16() {
        let mut set = PortSet::default();
        assert!(set.is_empty());
        for port in [0, 3, 17, 255] {
            set.insert(port);
        }
        assert_eq!([set.mask(0), set.mask(1), set.mask(2), set.mask(15)], [0b1001, 2, 0, 0x8000]);
        assert!(set.iter().eq([0, 3, 17, 255]) && !set.contains(4));
    }
}
