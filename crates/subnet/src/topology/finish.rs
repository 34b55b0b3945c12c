//! The steps after all lines are read: GUIDs of nodes without one, and cables.

use alloc::collections::BTreeSet;
use alloc::format;

use rdmux_wire::Guid;

use super::error::{ParseError, Rule};
use super::model::{Node, NodeKind, Port, PortRef, Topology};
use super::names::Remote;
use super::parse::{Cable, FIRST_GUIDS, Origin, Reader, place_of};
use super::rate::LinkRate;

impl Reader {
    /// Builds the topology from all lines.
    pub(super) fn finish(mut self) -> Result<Topology, ParseError> {
        let mut seen = self.given_guids()?;
        self.choose_guids(&mut seen);
        self.commanded_guids(&mut seen)?;
        for cable in core::mem::take(&mut self.cables) {
            self.connect(&cable)?;
        }
        self.drop_default_guids();
        Ok(self.topology)
    }

    fn connect(&mut self, cable: &Cable) -> Result<(), ParseError> {
        let (to, rate) = match &cable.to {
            Remote::Port(to, rate) => (Some(*to), *rate),
            Remote::Named(name, port) => {
                (self.names.node(name).map(|node| PortRef { node, port: *port }), None)
            }
        };
        let exists = |to: &PortRef| (1..=self.topology.nodes[to.node].num_ports).contains(&to.port);
        let to = to.filter(exists).ok_or_else(|| self.cable_error(cable, Rule::Remote))?;
        let known = self.topology.link(cable.from).map(|(_, rate)| rate);
        let rate = cable.rate.or(rate).or(known).unwrap_or(LinkRate::DEFAULT);
        let put = self.topology.connect(cable.from, to, rate);
        put.map_err(|e| self.cable_error(cable, Rule::Cable(e)))
    }

    fn cable_error(&self, cable: &Cable, rule: Rule) -> ParseError {
        let token = match &cable.to {
            Remote::Named(name, port) => format!("\"{name}\"[{port}]"),
            Remote::Port(to, _) => format!("\"{}\"[{}]", self.topology.nodes[to.node].id, to.port),
        };
        self.error_at(cable.at, &token, rule)
    }

    /// Returns the GUIDs in the file. Duplicates are refused.
    fn given_guids(&mut self) -> Result<BTreeSet<Guid>, ParseError> {
        let mut seen = BTreeSet::new();
        for (index, &(origin, at)) in self.origins.iter().enumerate() {
            let (Origin::Given(guid) | Origin::InName(guid)) = origin else { continue };
            if guid == Guid(0) || !seen.insert(guid) {
                let id = &self.topology.nodes[index].id;
                return Err(self.error_at(at, id, Rule::Guid(guid)));
            }
            self.topology.nodes[index].guid = guid;
        }
        Ok(seen)
    }

    /// Assigns GUIDs to nodes without one as ibsim does: the GUID of the last node of their kind that has one by a keyword or
    /// an assignment, plus as many as that node and its ports need.
    fn choose_guids(&mut self, seen: &mut BTreeSet<Guid>) {
        let mut next = FIRST_GUIDS;
        for (node, (origin, _)) in self.topology.nodes.iter_mut().zip(&self.origins) {
            let next = &mut next[place_of(node.kind)];
            let step =
                if node.kind == NodeKind::Switch { 1 } else { u64::from(node.num_ports) + 1 };
            match origin {
                Origin::InName(_) => {}
                Origin::Given(guid) => *next = Guid(guid.0.wrapping_add(step)),
                Origin::Next => {
                    while *next == Guid(0) || !seen.insert(*next) {
                        next.0 = next.0.wrapping_add(step);
                    }
                    node.guid = *next;
                    next.0 = next.0.wrapping_add(step);
                }
            }
            if node.system_guid == Guid(0) {
                node.system_guid = node.guid;
            }
        }
    }

    /// Applies the GUIDs of `do Guid`. When a node's GUID changes, its ports keep their GUIDs.
    fn commanded_guids(&mut self, seen: &mut BTreeSet<Guid>) -> Result<(), ParseError> {
        for &(at, index, port, guid) in &self.commanded {
            let node = &mut self.topology.nodes[index];
            if let Some(port) = port {
                node.ports.entry(port).or_default().guid = Some(guid);
                continue;
            }
            if node.guid == guid {
                continue;
            }
            if guid == Guid(0) || !seen.insert(guid) {
                let token = format!("{guid}");
                return Err(self.error_at(at, &token, Rule::Guid(guid)));
            }
            seen.remove(&node.guid);
            node.keep_port_guids();
            node.guid = guid;
        }
        Ok(())
    }

    /// Removes port GUIDs that equal the default.
    fn drop_default_guids(&mut self) {
        for node in &mut self.topology.nodes {
            let (guid, is_switch) = (node.guid.0, node.kind == NodeKind::Switch);
            for (&number, port) in &mut node.ports {
                let default = Guid(guid.wrapping_add(if is_switch { 0 } else { number.into() }));
                let ignored = is_switch && number != 0;
                port.guid = port.guid.filter(|g| *g != default && !ignored);
            }
            node.ports.retain(|_, p| *p != Port::default());
        }
    }
}

impl Node {
    /// Stores the default GUIDs of the ports explicitly.
    fn keep_port_guids(&mut self) {
        let ports = match self.kind {
            NodeKind::Switch => 0..=0,
            NodeKind::Ca | NodeKind::Router => 1..=self.num_ports,
        };
        for number in ports {
            let guid = self.port_guid(number);
            self.ports.entry(number).or_default().guid = Some(guid);
        }
    }
}
