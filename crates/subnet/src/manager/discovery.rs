//! Discovery: finds nodes and cables with directed-route queries.
//!
//! Discovery explores each port that is not down, except the one by which its switch was found. Each cable between two
//! switches is therefore seen from both sides, and the two views must agree. If not, two nodes have the same GUID, or a cable
//! was moved.
//!
//! A switch keeps its port state change bit set until the manager clears it. The master clears it before it reads the states
//! of the ports, so that a change in between sets it again.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use rdmux_wire::sm::{
    CapabilityMask, NodeDescription, NodeInfo, NodeType, PortInfo, PortState, SmState, SwitchInfo,
};
use rdmux_wire::smp::{MAX_HOPS, Smp};
use rdmux_wire::{Guid, Lid};

use super::Manager;
use super::model::{Model, Node, Port, Switch};
use super::pkeys::{MAX_PKEY_BLOCKS, PKEY_BLOCK, capacity};
use super::requests::{Request, What};
use super::status::ProblemKind;
use super::sweep::Phase;
use super::tables::Dirty;
use crate::topology::PortRef;

impl Manager {
    /// Handles NodeInfo of the manager's own node or of the node behind a port.
    pub(super) fn found_node(&mut self, from: Option<PortRef>, smp: &Smp) {
        let Ok(info) = NodeInfo::parse(&smp.data[..]) else { return };
        let place = from.unwrap_or(self.own);
        let number = info.local_port_num;
        let is_switch = info.node_type == NodeType::SWITCH;
        let is_own_switch = is_switch && from.is_none();
        let ports = if is_own_switch { 0..=0 } else { 1..=info.num_ports };
        if info.node_guid == Guid(0) || info.port_guid == Guid(0) || !ports.contains(&number) {
            return self.problem(ProblemKind::Nonsense, place);
        }
        let known = self.found.by_node_guid(info.node_guid);
        let index = match known {
            Some(index) => index,
            None => {
                let Some(index) = self.add_node(from, info) else { return };
                index
            }
        };
        let Some(node) = self.found.node(index) else { return };
        let same = (node.info.node_type, node.info.num_ports) == (info.node_type, info.num_ports);
        let here = PortRef { node: index, port: number };
        if !same || from.is_some_and(|from| !self.found.connect(from, here)) {
            return self.problem(ProblemKind::DuplicateGuid, here);
        }
        if from.is_none() {
            self.own = here;
            self.guid = info.port_guid;
        }
        if !is_switch {
            self.found_end(here, info.port_guid);
            if let Some(from) = from.filter(|from| from.node != here.node) {
                self.ask_enforced(from);
            }
        } else if known.is_none() {
            let zero = PortRef { node: index, port: 0 };
            self.found.set_guid(zero, info.port_guid);
            self.ask(here.node, 0, What::SwitchInfo);
            self.ask_aliases(zero, info.port_guid);
        }
    }

    fn add_node(&mut self, from: Option<PortRef>, info: NodeInfo) -> Option<usize> {
        let mut route = match from.and_then(|from| self.found.node(from.node)) {
            Some(node) => node.route.clone(),
            None => vec![],
        };
        route.extend(from.map(|from| from.port));
        if route.len() > usize::from(MAX_HOPS) {
            self.problem(ProblemKind::TooFar, from.unwrap_or(self.own));
            return None;
        }
        let ports = usize::from(info.num_ports) + 1;
        if self.found.port_count() + ports > self.config.max_ports {
            self.problem(ProblemKind::TooMany, from.unwrap_or(self.own));
            return None;
        }
        route.shrink_to_fit();
        let index = self.found.add(Node {
            info,
            description: NodeDescription::default(),
            ports: vec![Port::default(); ports],
            switch: None,
            route,
        })?;
        self.ask(index, info.local_port_num, What::Description);
        Some(index)
    }

    /// Adds a port of an adapter. Each port is found by its own cable.
    fn found_end(&mut self, port: PortRef, guid: Guid) {
        let Some(entry) = self.found.port(port) else { return };
        if entry.guid != Guid(0) {
            return;
        }
        self.found.set_guid(port, guid);
        if self.found.by_port_guid(guid) != Some(port) {
            self.problem(ProblemKind::DuplicateGuid, port);
        }
        self.ask(port.node, port.port, What::PortInfo);
        self.ask_pkeys(port);
        self.ask_aliases(port, guid);
    }

    /// Handles SwitchInfo of a discovered switch.
    pub(super) fn found_switch(&mut self, port: PortRef, smp: &Smp) {
        let Ok(info) = SwitchInfo::parse(&smp.data[..]) else { return };
        let Some(node) = self.found.node_mut(port.node) else { return };
        let (forwarding, multicast) = (vec![], BTreeMap::new());
        node.switch = Some(Box::new(Switch { info, forwarding, multicast }));
        if info.port_state_change {
            self.doubt.note_change();
        }
        if info.port_state_change && self.state == SmState::MASTER && !self.fresh {
            self.ask(port.node, 0, What::ClearChange);
        } else {
            self.queue_ports(port.node);
        }
    }

    /// Handles the answer to the Set that clears a switch's port state change bit.
    pub(super) fn cleared_change(&mut self, port: PortRef, smp: &Smp) {
        if self.phase != Phase::Discovery {
            // The ports were read before and must be read again.
            self.stale = true;
            return;
        }
        let mut stuck = false;
        if let Some(switch) = self.found.node_mut(port.node).and_then(|n| n.switch.as_deref_mut())
            && let Ok(info) = SwitchInfo::parse(&smp.data[..])
        {
            stuck = info.port_state_change;
            switch.info = SwitchInfo { port_state_change: false, ..info };
        }
        if stuck {
            self.problem(ProblemKind::NotKept, port);
        }
        self.queue_ports(port.node);
    }

    /// Queues queries for all ports of a switch.
    pub(super) fn queue_ports(&mut self, index: usize) {
        let Some(node) = self.found.node(index) else { return };
        let (found_by, count) = (node.info.local_port_num, node.info.num_ports);
        for number in 0..=count {
            self.ask(index, number, What::PortInfo);
        }
        self.ask_pkeys(PortRef { node: index, port: 0 });
        self.ask_enforced(PortRef { node: index, port: found_by });
    }

    /// Handles PortInfo of a discovered port.
    pub(super) fn found_port(&mut self, place: PortRef, smp: &Smp) {
        let info = PortInfo::from_bytes(&smp.data);
        let Some(node) = self.found.node(place.node) else { return };
        let (is_switch, found_by) = (node.is_switch(), node.info.local_port_num);
        let switch_guid = node.ports.first().map_or(Guid(0), |port| port.guid);
        let is_external = is_switch && place.port != 0;
        let Some(port) = self.found.port_mut(place) else { return };
        port.info = Some(info);
        if is_external {
            port.guid = switch_guid;
        }
        let is_up = port.is_up();
        if place.port != 0 {
            self.ask_arbitration(place);
        }
        if is_external {
            if is_up && place.port != found_by {
                self.ask(place.node, place.port, What::Probe);
            }
            return;
        }
        self.ask_all_aliases(place, info.guid_cap);
        if place == self.own {
            if is_up && !is_switch {
                self.ask(place.node, place.port, What::Probe);
            }
        } else if info.capability_mask.contains(CapabilityMask::SM) {
            self.ask(place.node, place.port, What::SmInfo);
        }
    }

    /// Queries the P_Key table of a switch's port if its peer is an end port.
    fn ask_enforced(&mut self, port: PortRef) {
        let is_switch = |at: PortRef| self.found.node(at.node).is_some_and(|node| node.is_switch());
        let peer = self.found.port(port).and_then(|entry| entry.peer);
        if port.port != 0 && is_switch(port) && peer.is_some_and(|peer| !is_switch(peer)) {
            self.ask_pkeys(port);
        }
    }

    fn ask_pkeys(&mut self, port: PortRef) {
        let Some(node) = self.found.node(port.node) else { return };
        let blocks = usize::from(capacity(node, port.port)).div_ceil(PKEY_BLOCK);
        for block in 0..u16::try_from(blocks).unwrap_or(u16::MAX).min(MAX_PKEY_BLOCKS) {
            self.ask(port.node, port.port, What::Pkeys(block));
        }
    }

    fn ask(&mut self, node: usize, port: u8, what: What) {
        self.queue.push_back(Request { port: PortRef { node, port }, what });
    }

    /// Replaces the model with the discovered one, and keeps the known tables of switches that still have them. Returns the
    /// GUIDs of new ports and of ports that are gone.
    pub(super) fn adopt(&mut self) -> (Vec<Guid>, Vec<Guid>) {
        let mut old = core::mem::replace(&mut self.model, core::mem::take(&mut self.found));
        self.model.replaces(&old);
        self.graph_is_old = true;
        let mut old_dirty = core::mem::take(&mut self.dirty);
        let (mut appeared, mut gone) = (Vec::new(), Vec::new());
        let mut all_known = true;
        for index in 0..self.model.nodes().len() {
            let Some(node) = self.model.node_mut(index) else { continue };
            let before = old.by_node_guid(node.info.node_guid);
            let dirty = node.switch.as_deref_mut().map(|switch| {
                let was = before.and_then(|at| Some((at, old.node_mut(at)?)));
                let kept = was.filter(|_| !self.fresh).and_then(|(at, was)| {
                    // A switch that was reset has no LID. One that another manager configured has that manager's LID.
                    let lids = |port: &Port| port.info.map(|info| (info.lid, info.sm_lid));
                    let told = lids(was.ports.first()?);
                    let known = was.switch.as_deref_mut()?;
                    let same = known.info.linear_fdb_top == switch.info.linear_fdb_top
                        && told == lids(node.ports.first()?);
                    let dirty = old_dirty.get_mut(at)?.take()?;
                    switch.forwarding = core::mem::take(&mut known.forwarding);
                    switch.multicast = core::mem::take(&mut known.multicast);
                    for (port, was) in node.ports.iter_mut().zip(&mut was.ports) {
                        port.sl_to_vl = core::mem::take(&mut was.sl_to_vl);
                    }
                    same.then_some(dirty)
                });
                kept.unwrap_or_else(|| {
                    all_known = false;
                    node.ports.iter_mut().for_each(|port| port.sl_to_vl.clear());
                    Box::new(Dirty::everything())
                })
            });
            if dirty.is_none() && !self.fresh {
                keep_sl_to_vl(node, before.and_then(|at| old.node_mut(at)));
            }
            self.dirty.push(dirty);
            let Some(node) = self.model.node(index) else { continue };
            let mut aliases = vec![];
            for number in node.end_ports() {
                let Some(port) = node.ports.get(usize::from(number)) else { continue };
                if port.info.is_none() {
                    continue;
                }
                let was = old.by_own_guid(port.guid).and_then(|at| Some((at, old.port(at)?)));
                if self.fresh {
                    aliases.push((number, port.aliases.clone()));
                }
                match was {
                    Some((at, was)) if was.info.is_some() => {
                        if !self.fresh {
                            aliases.push((number, was.aliases.clone()));
                        }
                        // A port with this GUID at another place was another node, and that node may have been asked to reregister.
                        if !has_cable(&self.model, index, cable(&old, at)) {
                            self.unasked.insert(port.guid);
                        }
                    }
                    _ => appeared.push(port.guid),
                }
            }
            for (number, guids) in aliases {
                self.keep_aliases(PortRef { node: index, port: number }, &guids);
            }
        }
        if !all_known {
            self.trees.forget_places();
        }
        for (_, port) in old.end_ports().filter(|(_, port)| port.info.is_some()) {
            let now = self.model.by_own_guid(port.guid).and_then(|at| self.model.port(at));
            if now.is_none_or(|port| port.info.is_none()) {
                gone.push(port.guid);
            }
        }
        (appeared, gone)
    }

    /// Returns the manager's own LID.
    pub(super) fn own_lid(&self) -> Lid {
        super::encode::lid_of(&self.model, self.own)
    }
}

/// One end of a cable, and the node GUID and port at the other end.
type Cable = (u8, (Guid, u8));

/// Returns the cable by which requests reach an end port; none for the manager's own switch or without a cable.
fn cable(model: &Model, end: PortRef) -> Option<Cable> {
    let node = model.node(end.node)?;
    let number = if node.is_switch() { node.info.local_port_num } else { end.port };
    Some((number, far_end(model, PortRef { port: number, ..end })?))
}

/// Returns whether a node has this cable.
fn has_cable(model: &Model, node: usize, cable: Option<Cable>) -> bool {
    cable.is_none_or(|(port, far)| far_end(model, PortRef { node, port }) == Some(far))
}

/// Returns the node GUID and port at the other end of a port's cable.
pub(super) fn far_end(model: &Model, end: PortRef) -> Option<(Guid, u8)> {
    let peer = model.port(end)?.peer?;
    Some((model.node(peer.node)?.info.node_guid, peer.port))
}

/// Keeps the SL-to-VL tables of an adapter's ports that were not reset in the meantime.
fn keep_sl_to_vl(node: &mut Node, was: Option<&mut Node>) {
    let was = was.into_iter().flat_map(|was| &mut was.ports);
    for (port, was) in node.ports.iter_mut().zip(was) {
        if port.info.is_some_and(|info| info.port_state > PortState::INIT) {
            port.sl_to_vl = core::mem::take(&mut was.sl_to_vl);
        }
    }
}
