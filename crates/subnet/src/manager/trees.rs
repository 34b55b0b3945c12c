//! Trees of switches for multicast groups.
//!
//! A few switches far from the adapters are roots; from each of them hangs a tree of shortest ways to all switches. A group
//! has one of these trees by its LID, and of the tree what connects its members: the part below its *top*, the lowest switch that
//! all of them are below. So another member adds the way from its switch to that part, and no more.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;

use rdmux_wire::Lid;

use super::graph::Graph;
use super::model::PortSet;

/// The most trees.
const MAX_TREES: usize = 16;

/// The trees of a graph.
#[derive(Debug, Default)]
pub(super) struct Trees {
    trees: Vec<Tree>,
    /// Where groups are; not known of groups that are not here. One that has ended is on no switch.
    placed: BTreeMap<Lid, Placed>,
}

/// Where a group is.
#[derive(Debug, Default)]
pub(super) struct Placed {
    /// The switches on which it has ports, by the indices of the graph.
    pub(super) switches: BTreeSet<usize>,
    /// The switch that all others of the group are below. None where nobody receives, and where the switches are not all
    /// connected.
    pub(super) top: Option<usize>,
}

/// A tree. Switches that are not connected with its root are roots, too.
#[derive(Debug)]
pub(super) struct Tree {
    /// By switch: the way to the switch above it; none at the root.
    links: Vec<Option<Link>>,
    /// By switch: how many links the root is away.
    depth: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    above: usize,
    /// The port to the switch above, and that one's port back.
    up: u8,
    down: u8,
}

/// What a group gets for another member.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) top: usize,
    /// Ports of switches.
    pub(super) ports: Vec<(usize, u8)>,
}

impl Trees {
    /// Other switches or cables.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Nothing is known of what some switch has: all switches are told of the next group with any LID.
    pub(super) fn forget_places(&mut self) {
        self.placed.clear();
    }

    pub(super) fn make(&mut self, graph: &Graph) {
        if !self.trees.is_empty() || graph.len() == 0 {
            return;
        }
        let leaves = (0..graph.len()).filter(|&switch| graph.has_adapters(switch));
        let distance = graph.distances(leaves);
        let top = distance.iter().filter(|&&d| d != u32::MAX).max().copied().unwrap_or(u32::MAX);
        let tops: Vec<usize> = (0..graph.len()).filter(|&s| distance[s] == top).collect();
        let stride = tops.len().div_ceil(MAX_TREES).max(1);
        self.trees = tops.iter().step_by(stride).map(|&root| Tree::new(graph, root)).collect();
    }

    /// The tree of a group, and where the group is, if that is known.
    pub(super) fn of(&mut self, mlid: Lid) -> Option<(&Tree, &mut Placed)> {
        let number = usize::from(mlid.0.wrapping_sub(Lid::FIRST_MULTICAST.0));
        let tree = self.trees.get(number % self.trees.len().max(1))?;
        Some((tree, self.placed.get_mut(&mlid)?))
    }

    /// The ports of a group by switch, of members that receive, and of the switches of those that only send; and its top.
    pub(super) fn ports(
        &self,
        mlid: Lid,
        members: &BTreeSet<(usize, u8)>,
        senders: &BTreeSet<usize>,
    ) -> (BTreeMap<usize, PortSet>, Option<usize>) {
        let number = usize::from(mlid.0.wrapping_sub(Lid::FIRST_MULTICAST.0));
        let tree = self.trees.get(number % self.trees.len().max(1));
        tree.map(|tree| tree.ports(members, senders)).unwrap_or_default()
    }

    /// Says where a group is; where it was, if that was known.
    pub(super) fn place(&mut self, mlid: Lid, placed: Placed) -> Option<Placed> {
        self.placed.insert(mlid, placed)
    }

    /// Nothing is known of where a group is.
    pub(super) fn forget_place(&mut self, mlid: Lid) {
        self.placed.remove(&mlid);
    }
}

impl Tree {
    fn new(graph: &Graph, root: usize) -> Self {
        let (mut links, mut depth) = (vec![None; graph.len()], vec![0; graph.len()]);
        let mut order = vec![root];
        let mut next = 0;
        while let Some(&switch) = order.get(next) {
            next += 1;
            for cable in graph.cables(switch) {
                let to = cable.to as usize;
                if to != root && links[to].is_none() {
                    links[to] = Some(Link { above: switch, up: cable.back, down: cable.port });
                    depth[to] = depth[switch] + 1;
                    order.push(to);
                }
            }
        }
        Self { links, depth }
    }

    fn link(&self, switch: usize) -> Option<Link> {
        self.links.get(switch).copied().flatten()
    }

    fn ports(
        &self,
        members: &BTreeSet<(usize, u8)>,
        senders: &BTreeSet<usize>,
    ) -> (BTreeMap<usize, PortSet>, Option<usize>) {
        let mut all: BTreeMap<usize, PortSet> = BTreeMap::new();
        // By switch above: the switches below that are connected to it.
        let mut below: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &(member, port) in members {
            let mut known = all.contains_key(&member);
            all.entry(member).or_default().insert(port);
            let mut at = member;
            while !known && let Some(Link { above, up, down }) = self.link(at) {
                known = all.contains_key(&above);
                all.entry(at).or_default().insert(up);
                all.entry(above).or_default().insert(down);
                below.entry(above).or_default().push(at);
                at = above;
            }
        }
        if all.is_empty() {
            return (all, None);
        }
        for &sender in senders {
            let mut at = sender;
            while !all.contains_key(&at)
                && let Some(Link { above, up, .. }) = self.link(at)
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
        let mut roots = all.keys().copied().filter(|&switch| self.link(switch).is_none());
        let (root, another) = (roots.next(), roots.next());
        let mut at = root;
        while let Some(switch) = at.filter(|&switch| !is_member(switch)) {
            let Some(&[only]) = below.get(&switch).map(Vec::as_slice) else { break };
            all.remove(&switch);
            if let (Some(ports), Some(link)) = (all.get_mut(&only), self.link(only)) {
                ports.remove(link.up);
            }
            at = Some(only);
        }
        (all, at.filter(|_| another.is_none()))
    }

    /// What a group whose top this is gets for another member at a switch, its own port apart; none where the two are not connected.
    /// `has` says which ports the group has at a switch.
    pub(super) fn branch(
        &self,
        top: usize,
        switch: usize,
        receives: bool,
        has: impl Fn(usize) -> PortSet,
    ) -> Option<Branch> {
        let meeting = self.meeting(top, switch)?;
        let mut ports = Vec::new();
        let mut at = top;
        while let Some(Link { above, up, down }) = self.link(at).filter(|_| at != meeting) {
            ports.extend([(at, up), (above, down)]);
            at = above;
        }
        at = switch;
        while let Some(Link { above, up, down }) = self.link(at).filter(|_| at != meeting) {
            // The way of a member that receives is both ways; that of one that only sends ends where it meets any other.
            let is_there = if receives { has(above).contains(down) } else { !has(at).is_empty() };
            if is_there {
                break;
            }
            ports.push((at, up));
            if receives {
                ports.push((above, down));
            }
            at = above;
        }
        Some(Branch { top: meeting, ports })
    }

    /// The lowest switch that two are below.
    fn meeting(&self, mut a: usize, mut b: usize) -> Option<usize> {
        while a != b {
            if self.depth.get(a)? >= self.depth.get(b)? {
                a = self.link(a)?.above;
            } else {
                b = self.link(b)?.above;
            }
        }
        Some(a)
    }
}
