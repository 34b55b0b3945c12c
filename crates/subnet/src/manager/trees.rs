//! Trees of switches for multicast groups.
//!
//! A few switches far from the adapters are roots. From each of them hangs a tree of shortest routes to all switches. The LID
//! of a group selects a tree. The group has the part of the tree that connects its members: the part below its *top*, the
//! lowest switch above all of them. A new member adds only the route from its switch to that part. A leaving member removes
//! its route up to the next other branch or member.

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
    /// The place of each group. A group that is not here has an unknown place. A group that has ended is on no switch.
    placed: BTreeMap<Lid, Placed>,
}

/// The place of a group.
#[derive(Debug, Default)]
pub(super) struct Placed {
    /// The switches on which it has ports, by graph index.
    pub(super) switches: BTreeSet<usize>,
    /// The lowest switch above all others of the group. None if no member receives, or if the switches are not all connected.
    pub(super) top: Option<usize>,
}

/// A tree. Switches that are not connected to its root are roots as well.
#[derive(Debug)]
pub(super) struct Tree {
    /// The link to the switch above, by switch; none at a root.
    links: Vec<Option<Link>>,
    /// The distance from the root in links, by switch.
    depth: Vec<u32>,
}

/// The cable from a switch to the switch above it in a tree.
#[derive(Clone, Copy, Debug)]
struct Link {
    above: usize,
    /// The port to the switch above, and the port of that switch back here.
    up: u8,
    down: u8,
}

/// The additions to a group for a new member.
#[derive(Debug)]
pub(super) struct Branch {
    pub(super) top: usize,
    /// Pairs of switch and port.
    pub(super) ports: Vec<(usize, u8)>,
}

/// The remainder of a group's tree without a member.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) top: usize,
    /// All ports of those switches whose ports change.
    pub(super) ports: BTreeMap<usize, PortSet>,
}

impl Trees {
    /// Forgets everything after switches or cables have changed.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Forgets the places of all groups, so that the next update of any group goes to all switches.
    pub(super) fn forget_places(&mut self) {
        self.placed.clear();
    }

    /// Computes the trees of a subnet, unless that was done already.
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

    /// Returns the tree of a group and the group's place, if that is known.
    pub(super) fn of(&mut self, mlid: Lid) -> Option<(&Tree, &mut Placed)> {
        let number = usize::from(mlid.0.wrapping_sub(Lid::FIRST_MULTICAST.0));
        let tree = self.trees.get(number % self.trees.len().max(1))?;
        Some((tree, self.placed.get_mut(&mlid)?))
    }

    /// Returns the top of a group and its ports by switch, with the receiving members and the switches of send-only members.
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

    /// Sets the place of a group. Returns the former place, if that was known.
    pub(super) fn place(&mut self, mlid: Lid, placed: Placed) -> Option<Placed> {
        self.placed.insert(mlid, placed)
    }

    /// Forgets the place of a group.
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
        // By switch above: the connected switches below.
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
        // Remove the part that only leads from the root down to the members.
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

    /// Returns what a group with this top adds for a new member at a switch, except the member's own port; none if the two
    /// are not connected. `has` returns the group's ports at a switch.
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
            // A receiving member's branch is bidirectional. A send-only member's branch ends at the first switch of the group.
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

    /// Returns what a group with this top keeps without the member at a switch's port, which may be send-only; none if no
    /// receiver remains. `has` returns the group's former ports at a switch, `sends` whether a send-only member remains
    /// there.
    pub(super) fn without(
        &self,
        graph: &Graph,
        top: usize,
        (switch, port): (usize, u8),
        has: &dyn Fn(usize) -> PortSet,
        sends: &dyn Fn(usize) -> bool,
    ) -> Option<Rest> {
        let mut cut = Cut { tree: self, graph, has, ports: BTreeMap::new() };
        cut.remove(switch, port);
        let mut at = switch;
        while at != top
            && let Some(Link { above, up, down }) = self.link(at)
        {
            let mut receivers = cut.at(at);
            receivers.remove(up);
            if !receivers.is_empty() {
                break;
            }
            let led_here = cut.remove(above, down);
            let leads_up = !sends(at) && cut.below(at).next().is_none() && cut.remove(at, up);
            if !led_here && !leads_up {
                break;
            }
            at = above;
        }
        if cut.at(top).is_empty() {
            return None;
        }
        let mut top = top;
        // A top with a single branch and no member is not needed.
        while let Some(only) = cut.only_branch(top).filter(|_| !sends(top))
            && let Some(Link { up, down, .. }) = self.link(only)
        {
            cut.remove(top, down);
            cut.remove(only, up);
            top = only;
        }
        Some(Rest { top, ports: cut.ports })
    }

    /// Returns the lowest switch above both.
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

/// The part of a tree that a group has, while ports are removed from it.
struct Cut<'a> {
    tree: &'a Tree,
    graph: &'a Graph,
    has: &'a dyn Fn(usize) -> PortSet,
    /// The remaining ports of switches that have lost some.
    ports: BTreeMap<usize, PortSet>,
}

impl Cut<'_> {
    fn at(&self, switch: usize) -> PortSet {
        self.ports.get(&switch).copied().unwrap_or_else(|| (self.has)(switch))
    }

    /// Removes a port. Returns false if the group did not have it.
    fn remove(&mut self, switch: usize, port: u8) -> bool {
        let mut ports = self.at(switch);
        if !ports.contains(port) {
            return false;
        }
        ports.remove(port);
        self.ports.insert(switch, ports);
        true
    }

    /// Returns the switches directly below that lead up to this one.
    fn below(&self, switch: usize) -> impl Iterator<Item = usize> + '_ {
        let cables = self.graph.cables(switch).iter();
        cables.filter_map(move |cable| {
            let below = cable.to as usize;
            let link = self.tree.link(below)?;
            let is_tree = link.above == switch && link.down == cable.port;
            (is_tree && self.at(below).contains(link.up)).then_some(below)
        })
    }

    /// Returns the only switch directly below a top that has no other port and to which no other switch leads up.
    fn only_branch(&self, top: usize) -> Option<usize> {
        if self.at(top).len() > 1 {
            return None;
        }
        let mut below = self.below(top);
        let only = below.next().filter(|_| below.next().is_none())?;
        let down = self.tree.link(only)?.down;
        self.at(top).contains(down).then_some(only)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::administration::tests::model;
    use crate::manager::model::{Model, Port};
    use crate::topology::Shape;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};
    use rdmux_wire::Guid;

    /// Returns the places for members at a switch: its port 0 first, then the ports of adapters.
    fn places(model: &Model, graph: &Graph, switch: usize) -> Vec<(usize, u8)> {
        let node = model.node(graph.node(switch)).expect("a switch");
        let far = |port: &Port| model.node(port.peer?.node);
        let ports = (0..=u8::MAX).zip(&node.ports);
        let is_end = |port: &Port| far(port).is_some_and(|far| !far.is_switch());
        let ends = ports.filter(|(number, port)| *number == 0 || is_end(port));
        ends.map(|(number, _)| (switch, number)).collect()
    }

    /// A group: its members, and its part of the tree.
    struct Group {
        receivers: BTreeSet<(usize, u8)>,
        senders: BTreeSet<(usize, u8)>,
        ports: BTreeMap<usize, PortSet>,
        top: Option<usize>,
    }

    impl Group {
        fn whole(&self, tree: &Tree) -> (BTreeMap<usize, PortSet>, Option<usize>) {
            let senders = self.senders.iter().map(|&(switch, _)| switch).collect();
            tree.ports(&self.receivers, &senders)
        }

        /// Removes a member from the tree. Returns false if the tree must be computed.
        fn prune(&mut self, graph: &Graph, tree: &Tree, place: (usize, u8)) -> bool {
            let Some(top) = self.top else { return false };
            let has = |switch| self.ports.get(&switch).copied().unwrap_or_default();
            let sends =
                |switch| self.senders.range((switch, 0)..=(switch, u8::MAX)).next().is_some();
            let Some(rest) = tree.without(graph, top, place, &has, &sends) else { return false };
            self.top = Some(rest.top);
            for (switch, ports) in rest.ports {
                self.ports.insert(switch, ports);
                if ports.is_empty() {
                    self.ports.remove(&switch);
                }
            }
            true
        }
    }

    #[test]
    fn pruned_multicast_tree_equals_the_tree_computed_for_the_remaining_members() {
        for (seed, shape) in (0..400)
            .zip(["fattree:40", "torus:4x4x1", "dragonfly:3,1,1", "torus:3x3x2"].iter().cycle())
        {
            let shape: Shape = shape.parse().expect("a shape");
            let model = model(&shape.topology(Guid(0x1000)), 0);
            let graph = Graph::new(&model);
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut below = |count: usize| rng.next_u32() as usize % count;
            let tree = Tree::new(&graph, below(graph.len()));
            let places: Vec<_> = (0..graph.len()).flat_map(|s| places(&model, &graph, s)).collect();
            let mut group = Group {
                receivers: BTreeSet::new(),
                senders: BTreeSet::new(),
                ports: BTreeMap::new(),
                top: None,
            };
            for _ in 0..1 + below(2 * places.len()) {
                let place = places[below(places.len())];
                if below(3) == 0 && !group.receivers.contains(&place) {
                    group.senders.insert(place);
                } else if !group.senders.contains(&place) {
                    group.receivers.insert(place);
                }
            }
            (group.ports, group.top) = group.whole(&tree);
            while !group.receivers.is_empty() {
                let all: Vec<_> = group.receivers.union(&group.senders).copied().collect();
                // Some leave at once; a receiver may become send-only.
                let gone: Vec<_> = (0..=below(3)).map(|_| all[below(all.len())]).collect();
                for place in &gone {
                    let received = group.receivers.remove(place);
                    group.senders.remove(place);
                    if received && below(4) == 0 {
                        group.senders.insert(*place);
                    }
                }
                let pruned = gone.iter().all(|&place| group.prune(&graph, &tree, place));
                assert_eq!(pruned, !group.receivers.is_empty(), "seed {seed}");
                if pruned {
                    assert_eq!((group.ports.clone(), group.top), group.whole(&tree), "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn leaving_member_removes_only_its_own_port_from_the_multicast_tree() {
        let shape: Shape = "fattree:40".parse().expect("a shape");
        let model = model(&shape.topology(Guid(0x1000)), 0);
        let graph = Graph::new(&model);
        let tree = Tree::new(&graph, 0);
        let adapters: Vec<Vec<_>> = (0..graph.len())
            .map(|switch| places(&model, &graph, switch).split_off(1))
            .filter(|adapters| !adapters.is_empty())
            .collect();
        let (near, far) = (&adapters[0], &adapters[1]);
        let receivers = BTreeSet::from([near[0], near[1], far[0]]);
        let (all, top) = tree.ports(&receivers, &BTreeSet::new());
        let has = |switch| all.get(&switch).copied().unwrap_or_default();
        let without = |place| {
            let top = top.expect("a top");
            tree.without(&graph, top, place, &has, &|_| false).expect("others receive")
        };
        let rest = without(near[0]);
        assert_eq!(rest.ports.keys().copied().collect::<Vec<_>>(), [near[0].0]);
        assert_eq!(Some(rest.top), top);
        // Without the far member everything is at one switch, which becomes the top.
        let rest = without(far[0]);
        assert_eq!(rest.top, near[0].0);
        assert!(rest.ports[&far[0].0].is_empty());
        assert_eq!(rest.ports[&near[0].0].len(), 2);
        assert!(
            rest.ports.keys().all(|switch| *switch == near[0].0 || rest.ports[switch].is_empty())
        );
    }
}
