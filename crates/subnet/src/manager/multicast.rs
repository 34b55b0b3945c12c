//! Multicast: a tree of switches for each group ([`trees`](super::trees)), and the ports of its members.
//!
//! A new member adds its branch to the tree of its group. A leaving member removes what only it needed. Only the affected
//! switches are updated. The whole tree is computed in sweeps, and when the last receiving member leaves. In that case, too,
//! only switches whose ports change are updated.
//!
//! A send-only member has a route up to the rest of the tree, but no route leads back to it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use rdmux_wire::{Guid, Lid};

use super::graph::Graph;
use super::model::PortSet;
use super::status::Tally;
use super::sweep::Phase;
use super::tables::put_group;
use super::trees::Placed;
use super::{Manager, model::Model};
use crate::Time;

/// The pending work for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    /// The tree must be computed.
    All,
    /// Only these ports have joined, left, or changed whether they receive.
    Members(BTreeSet<Guid>),
}

/// Returns the switch and the switch's port where a port is connected.
fn place(model: &Model, graph: &Graph, guid: Guid) -> Option<(usize, u8)> {
    let at = model.by_own_guid(guid)?;
    if let Some(switch) = graph.switch(at.node) {
        return Some((switch, 0));
    }
    let peer = model.port(at)?.peer?;
    let up = [at, peer].iter().all(|&end| model.port(end).is_some_and(super::model::Port::is_up));
    Some((graph.switch(peer.node).filter(|_| up)?, peer.port))
}

impl Manager {
    /// Sets the ports, by GUID, that receive the packets of a multicast LID; no ports end the group. The switches are updated
    /// soon: see [`Manager::next_timeout`].
    pub fn set_group(&mut self, mlid: Lid, members: impl IntoIterator<Item = Guid>) {
        self.set_group_members(mlid, members.into_iter().map(|guid| (guid, true)));
    }

    /// Sets the members of a multicast LID and whether each receives. A send-only member gets no packets of the group, but
    /// the others get its packets.
    pub fn set_group_members(
        &mut self,
        mlid: Lid,
        members: impl IntoIterator<Item = (Guid, bool)>,
    ) {
        if mlid.is_multicast() {
            let mut all = BTreeMap::new();
            for (guid, receives) in members {
                // A port may be a member with several GUIDs.
                *all.entry(guid).or_insert(receives) |= receives;
            }
            self.groups.insert(mlid, all);
            self.changed_groups.insert(mlid, Changed::All);
        }
    }

    /// Sets whether a port, by GUID, is a receiving member of a group, a send-only member, or none. Other members stay.
    pub fn set_member(&mut self, mlid: Lid, port: Guid, receives: Option<bool>) {
        let was = match receives {
            Some(receives) if mlid.is_multicast() => {
                self.groups.entry(mlid).or_default().insert(port, receives)
            }
            _ => self.groups.get_mut(&mlid).and_then(|members| members.remove(&port)),
        };
        if was != receives && mlid.is_multicast() {
            let changed = self.changed_groups.entry(mlid);
            if let Changed::Members(ports) = changed.or_insert(Changed::Members(BTreeSet::new())) {
                ports.insert(port);
            }
        }
    }

    /// Returns whether groups have changed and the manager is free to process them.
    pub(super) fn has_group_work(&self) -> bool {
        let may_begin = self.phase == Phase::Idle && self.is_up() && !self.graph_is_old;
        may_begin && !self.changed_groups.is_empty()
    }

    /// Computes the changed groups and queues the updates of switches.
    pub(super) fn update_groups(&mut self, now: Time) {
        if !self.has_group_work() {
            return;
        }
        let mut touched = BTreeSet::new();
        for (mlid, changed) in core::mem::take(&mut self.changed_groups) {
            let is_done = match changed {
                Changed::All => false,
                Changed::Members(ports) => {
                    self.prune_group(mlid, &ports, &mut touched)
                        && self.extend_group(mlid, &ports, &mut touched)
                }
            };
            if !is_done {
                self.route_group(mlid, &mut touched);
            }
        }
        self.tally = Tally::new(now);
        self.phase = Phase::Groups;
        for switch in touched {
            self.queue_groups(self.graph.node(switch));
        }
    }

    /// Computes all groups during a sweep, since switches and cables may have changed.
    pub(super) fn route_all_groups(&mut self) {
        self.changed_groups.clear();
        let all: Vec<Lid> = self.groups.keys().copied().collect();
        for mlid in all {
            self.route_group(mlid, &mut BTreeSet::new());
        }
    }

    /// Removes ports that no longer receive from the existing tree of a group. Returns false if the tree must be computed.
    fn prune_group(
        &mut self,
        mlid: Lid,
        ports: &BTreeSet<Guid>,
        touched: &mut BTreeSet<usize>,
    ) -> bool {
        let Some(members) = self.groups.get(&mlid).filter(|members| !members.is_empty()) else {
            return false;
        };
        let Some((tree, placed)) = self.trees.of(mlid) else { return false };
        for guid in ports.iter().filter(|guid| members.get(guid) != Some(&true)) {
            let (model, graph) = (&self.model, &self.graph);
            let has = |switch| group_ports(model, graph.node(switch), mlid);
            let sends = |switch| has_sender(model, graph, members, switch);
            // A port that is gone cannot be located, so its branch is unknown.
            let Some(place) = place(model, graph, *guid) else { return false };
            let Some(top) = placed.top else { return false };
            let Some(rest) = tree.without(graph, top, place, &has, &sends) else { return false };
            placed.top = Some(rest.top);
            for (switch, ports) in rest.ports {
                let node = self.graph.node(switch);
                let table = self.model.multicast_mut(node);
                let (Some(table), Some(Some(dirty))) = (table, self.dirty.get_mut(node)) else {
                    return false;
                };
                put_group(table, dirty, mlid, ports);
                if ports.is_empty() {
                    placed.switches.remove(&switch);
                }
                touched.insert(switch);
            }
        }
        true
    }

    /// Adds those of the given ports that are members to the existing tree of a group. Returns false if the tree must be computed.
    fn extend_group(
        &mut self,
        mlid: Lid,
        new: &BTreeSet<Guid>,
        touched: &mut BTreeSet<usize>,
    ) -> bool {
        let Some(members) = self.groups.get(&mlid) else { return true };
        let Some((tree, placed)) = self.trees.of(mlid) else { return false };
        for guid in new {
            let Some(&receives) = members.get(guid) else { continue };
            let Some((switch, port)) = place(&self.model, &self.graph, *guid) else { continue };
            let Some(top) = placed.top else { return false };
            let (model, graph) = (&self.model, &self.graph);
            let has = |switch| group_ports(model, graph.node(switch), mlid);
            let Some(branch) = tree.branch(top, switch, receives, has) else { return false };
            placed.top = Some(branch.top);
            let own = receives.then_some((switch, port));
            for (switch, port) in branch.ports.into_iter().chain(own) {
                let node = self.graph.node(switch);
                let mut ports = group_ports(&self.model, node, mlid);
                if ports.contains(port) {
                    continue;
                }
                ports.insert(port);
                let table = self.model.multicast_mut(node);
                if let (Some(table), Some(Some(dirty))) = (table, self.dirty.get_mut(node)) {
                    put_group(table, dirty, mlid, ports);
                    placed.switches.insert(switch);
                    touched.insert(switch);
                }
            }
        }
        true
    }

    /// Computes the tree of a group and writes its ports into the model's tables. Adds the affected switches to `touched`.
    fn route_group(&mut self, mlid: Lid, touched: &mut BTreeSet<usize>) {
        self.trees.make(&self.graph);
        let Some(members) = self.groups.get(&mlid) else { return };
        let (mut receivers, mut senders) = (BTreeSet::new(), BTreeSet::new());
        for (&guid, &receives) in members {
            match place(&self.model, &self.graph, guid) {
                Some(place) if receives => drop(receivers.insert(place)),
                Some((switch, _)) => drop(senders.insert(switch)),
                None => {}
            }
        }
        let (ports, top) = self.trees.ports(mlid, &receivers, &senders);
        let ended = members.is_empty();
        let switches: BTreeSet<usize> = ports.keys().copied().collect();
        let old = self.trees.place(mlid, Placed { switches: switches.clone(), top });
        let was_placed = old.is_some();
        let concerned: BTreeSet<usize> = match old {
            Some(old) => old.switches.union(&switches).copied().collect(),
            None => (0..self.graph.len()).collect(),
        };
        for switch in concerned {
            let node = self.graph.node(switch);
            let table = self.model.multicast_mut(node);
            let (Some(table), Some(Some(dirty))) = (table, self.dirty.get_mut(node)) else {
                continue;
            };
            put_group(table, dirty, mlid, ports.get(&switch).copied().unwrap_or_default());
            touched.insert(switch);
        }
        if ended {
            // The group is known to be on no switch, so that the next group with its LID affects only its own switches. Not
            // if it ended before any switch was updated.
            self.groups.remove(&mlid);
            if !was_placed {
                self.trees.forget_place(mlid);
            }
        }
    }
}

/// Returns whether a send-only member is at a switch.
fn has_sender(model: &Model, graph: &Graph, members: &BTreeMap<Guid, bool>, switch: usize) -> bool {
    let Some(node) = model.node(graph.node(switch)) else { return false };
    (0..=u8::MAX).zip(&node.ports).any(|(number, port)| {
        let end = if number == 0 { Some(port) } else { port.peer.and_then(|far| model.port(far)) };
        let sends = |guid| members.get(&guid) == Some(&false);
        end.is_some_and(|end| {
            sends(end.guid) && place(model, graph, end.guid) == Some((switch, number))
        })
    })
}

/// Returns the ports of a group at a switch, by the model.
fn group_ports(model: &Model, node: usize, mlid: Lid) -> PortSet {
    let switch = model.node(node).and_then(|node| node.switch.as_deref());
    switch.and_then(|switch| switch.multicast.get(&mlid)).copied().unwrap_or_default()
}
