//! Multicast: a tree of switches for each group, and the ports of its members.
//!
//! A few switches far from the adapters are roots; from each of them hangs a tree of shortest ways to all switches. A group
//! takes one of these trees by its LID, and of the tree what connects its members. So a member that comes or goes changes only the
//! switches on its way.
//!
//! A member that only sends has a way up to the rest of the tree, and none leads back to it.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use rdmux_wire::{Guid, Lid};

use super::graph::Graph;
use super::model::PortSet;
use super::status::Tally;
use super::sweep::Phase;
use super::tables::put_group;
use super::{Manager, model::Model};
use crate::Time;

/// The most trees.
const MAX_TREES: usize = 16;

/// The trees of a graph.
#[derive(Debug, Default)]
pub(super) struct Trees {
    trees: Vec<Tree>,
    /// On which switches a group has ports, by the indices of the graph; not known of groups that are not here. One that has
    /// ended is on none.
    placed: BTreeMap<Lid, Vec<usize>>,
}

/// By switch: the switch above it, the port to it, and that one's port back; none at the root.
type Tree = Vec<Option<(usize, u8, u8)>>;

impl Trees {
    /// Other switches or cables.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Nothing is known of what some switch has: all switches are told of the next group with any LID.
    pub(super) fn forget_places(&mut self) {
        self.placed.clear();
    }

    fn make(&mut self, graph: &Graph) {
        if !self.trees.is_empty() || graph.len() == 0 {
            return;
        }
        let leaves = (0..graph.len()).filter(|&switch| graph.has_adapters(switch));
        let distance = graph.distances(leaves);
        let top = distance.iter().filter(|&&d| d != u32::MAX).max().copied().unwrap_or(u32::MAX);
        let tops: Vec<usize> = (0..graph.len()).filter(|&s| distance[s] == top).collect();
        let stride = tops.len().div_ceil(MAX_TREES).max(1);
        self.trees = tops.iter().step_by(stride).map(|&root| tree(graph, root)).collect();
    }

    /// The ports of a group by switch: of members that receive, and of the switches of those that only send.
    fn ports(
        &self,
        mlid: Lid,
        members: &BTreeSet<(usize, u8)>,
        senders: &BTreeSet<usize>,
    ) -> BTreeMap<usize, PortSet> {
        let mut all: BTreeMap<usize, PortSet> = BTreeMap::new();
        let number = usize::from(mlid.0.wrapping_sub(Lid::FIRST_MULTICAST.0));
        let Some(tree) = self.trees.get(number % self.trees.len().max(1)) else { return all };
        // By switch above: the only switch below that is connected to it, if it is only one.
        let mut below: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &(member, port) in members {
            let known = all.contains_key(&member);
            all.entry(member).or_default().insert(port);
            let mut at = member;
            let mut known = known;
            while !known && let Some(&Some((above, up, down))) = tree.get(at) {
                known = all.contains_key(&above);
                all.entry(at).or_default().insert(up);
                all.entry(above).or_default().insert(down);
                below.entry(above).or_default().push(at);
                at = above;
            }
        }
        if all.is_empty() {
            return all;
        }
        for &sender in senders {
            let mut at = sender;
            while !all.contains_key(&at)
                && let Some(&Some((above, up, _))) = tree.get(at)
            {
                all.entry(at).or_default().insert(up);
                below.entry(above).or_default().push(at);
                at = above;
            }
        }
        // What only leads from the root to where the members are is not needed.
        let is_member = |switch| {
            let mut ports = members.range((switch, 0)..=(switch, u8::MAX));
            ports.next().is_some() || senders.contains(&switch)
        };
        let root =
            all.keys().copied().find(|&switch| tree.get(switch).is_some_and(Option::is_none));
        let mut at = root;
        while let Some(switch) = at.filter(|&switch| !is_member(switch)) {
            let Some(&[only]) = below.get(&switch).map(Vec::as_slice) else { break };
            all.remove(&switch);
            if let (Some(ports), Some(&Some((_, up, _)))) = (all.get_mut(&only), tree.get(only)) {
                ports.remove(up);
            }
            at = Some(only);
        }
        all
    }
}

fn tree(graph: &Graph, root: usize) -> Tree {
    let mut above: Tree = vec![None; graph.len()];
    let mut order = vec![root];
    let mut next = 0;
    while let Some(&switch) = order.get(next) {
        next += 1;
        for cable in graph.cables(switch) {
            let to = cable.to as usize;
            if to != root && above[to].is_none() {
                above[to] = Some((switch, cable.back, cable.port));
                order.push(to);
            }
        }
    }
    above
}

/// Where a port is: its switch, and the port there.
fn place(model: &Model, graph: &Graph, guid: Guid) -> Option<(usize, u8)> {
    let at = model.by_port_guid(guid)?;
    if let Some(switch) = graph.switch(at.node) {
        return Some((switch, 0));
    }
    let peer = model.port(at)?.peer?;
    let up = [at, peer].iter().all(|&end| model.port(end).is_some_and(super::model::Port::is_up));
    Some((graph.switch(peer.node).filter(|_| up)?, peer.port))
}

impl Manager {
    /// Says which ports, by GUID, get the packets of a multicast LID; none ends the group. The switches are told soon: see
    /// [`Manager::next_timeout`].
    pub fn set_group(&mut self, mlid: Lid, members: impl IntoIterator<Item = Guid>) {
        self.set_group_members(mlid, members.into_iter().map(|guid| (guid, true)));
    }

    /// The same, with whether each member receives. To one that does not no packet of the group is sent, but what it sends reaches the others.
    pub fn set_group_members(
        &mut self,
        mlid: Lid,
        members: impl IntoIterator<Item = (Guid, bool)>,
    ) {
        if mlid.is_multicast() {
            let mut all = BTreeMap::new();
            for (guid, receives) in members {
                // A port may be a member for several GUIDs.
                *all.entry(guid).or_insert(receives) |= receives;
            }
            self.groups.insert(mlid, all);
            self.changed_groups.insert(mlid);
        }
    }

    /// A port, by its GUID, comes to a group.
    pub fn add_member(&mut self, mlid: Lid, port: Guid) {
        let is_new = |members: &mut BTreeMap<Guid, bool>| members.insert(port, true) != Some(true);
        if mlid.is_multicast() && is_new(self.groups.entry(mlid).or_default()) {
            self.changed_groups.insert(mlid);
        }
    }

    /// A port leaves a group.
    pub fn remove_member(&mut self, mlid: Lid, port: Guid) {
        if self.groups.get_mut(&mlid).is_some_and(|members| members.remove(&port).is_some()) {
            self.changed_groups.insert(mlid);
        }
    }

    /// Whether groups have changed, and nothing else is to be done first.
    pub(super) fn has_group_work(&self) -> bool {
        self.phase == Phase::Idle && self.is_up() && !self.changed_groups.is_empty()
    }

    /// Computes the groups that have changed, and begins to tell the switches.
    pub(super) fn update_groups(&mut self, now: Time) {
        if !self.has_group_work() {
            return;
        }
        let mut touched = BTreeSet::new();
        for mlid in core::mem::take(&mut self.changed_groups) {
            self.route_group(mlid, &mut touched);
        }
        self.tally = Tally::new(now);
        self.phase = Phase::Groups;
        for switch in touched {
            self.queue_groups(self.graph.node(switch));
        }
    }

    /// In a sweep: all groups, since switches and cables may be others.
    pub(super) fn route_all_groups(&mut self) {
        self.changed_groups.clear();
        let all: Vec<Lid> = self.groups.keys().copied().collect();
        for mlid in all {
            self.route_group(mlid, &mut BTreeSet::new());
        }
    }

    /// Writes the ports of a group into the tables of the model; adds the switches that are concerned.
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
        let ports = self.trees.ports(mlid, &receivers, &senders);
        let ended = members.is_empty();
        let new: Vec<usize> = ports.keys().copied().collect();
        let old = self.trees.placed.insert(mlid, new.clone());
        let was_placed = old.is_some();
        let concerned: Vec<usize> = match old {
            Some(old) => old.into_iter().chain(new).collect(),
            None => (0..self.graph.len()).collect(),
        };
        for switch in concerned {
            let node = self.graph.node(switch);
            let table = self.model.node_mut(node).and_then(|node| node.switch.as_deref_mut());
            let (Some(table), Some(Some(dirty))) = (table, self.dirty.get_mut(node)) else {
                continue;
            };
            put_group(table, dirty, mlid, ports.get(&switch).copied().unwrap_or_default());
            touched.insert(switch);
        }
        if ended {
            // It is known to be on no switch, so the next group with its LID concerns only those where that will be; but not if it
            // ended before any switch was told of it.
            self.groups.remove(&mlid);
            if !was_placed {
                self.trees.placed.remove(&mlid);
            }
        }
    }
}
