//! A summary of the ports, with the fields that routes depend on. It is so small that it stays in the processor's caches: a
//! route through a large subnet passes ten ports, and a [`Model`] has several distant cache lines for each of them.

use alloc::vec::Vec;

use rdmux_wire::{Guid, Lid};

use super::rate;
use super::route::Way;
use super::sets::Sets;
use super::ways::Ways;
use crate::manager::Model;
use crate::manager::model::Port;
use crate::topology::PortRef;

/// How many queries a changed model answers before a summary is built. During a sweep, which changes the model all the time,
/// only queries for many paths cause one.
const STALE_QUESTIONS: u32 = 32;

/// The cost of summarizing a port, in bytes.
const SUMMARIZE: usize = 16;

/// The most ports that the GUID cache holds.
const MOST_GUIDS: usize = 1 << 18;

/// A summary of the ports of a model; empty while building one does not pay off.
#[derive(Debug, Default)]
pub(in crate::administration) struct Links {
    /// For each node the index of its first port in `ports`, and whether it is a switch. The last element marks the end.
    first: Vec<(u32, bool)>,
    ports: Vec<Packed>,
    ways: Ways,
    /// Ports by requested GUIDs.
    guids: Sets<(u32, u8)>,
    /// The model version that this summary was built from.
    version: Option<u64>,
    /// The model version seen last, and how many queries it has answered without a summary.
    seen: (u64, u32),
    is_fresh: bool,
}

/// The properties of a port that matter to routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// The port at the other end of the cable.
    pub(super) peer: Option<PortRef>,
    /// The code of the largest MTU that the port supports.
    pub(super) mtu: u8,
    /// The rank of the link's rate; none for a port without a link.
    pub(super) rate: Option<u8>,
}

/// A packed [`Link`], or a mark that nothing is known of the port.
#[derive(Clone, Copy, Debug)]
struct Packed {
    node: u32,
    port: u8,
    mtu: u8,
    rate: u8,
    known: bool,
}

/// Marks a port without peer; `NO_RATE` marks a link without a ranked rate.
const NO_NODE: u32 = u32::MAX;
const NO_RATE: u8 = u8::MAX;

impl Link {
    /// Summarizes a port, if its PortInfo is known.
    fn of(port: &Port) -> Option<Self> {
        let info = port.info.as_ref()?;
        let rate = rate::of(info).and_then(rate::rank).and_then(|rank| u8::try_from(rank).ok());
        Some(Self { peer: port.peer, mtu: info.mtu_cap, rate })
    }
}

impl Packed {
    fn of(port: &Port) -> Self {
        let none = Self { node: NO_NODE, port: 0, mtu: 0, rate: NO_RATE, known: false };
        let Some(link) = Link::of(port) else { return none };
        let peer = link.peer.and_then(|peer| Some((u32::try_from(peer.node).ok()?, peer.port)));
        let (node, port) = peer.unwrap_or((NO_NODE, 0));
        Self { node, port, mtu: link.mtu, rate: link.rate.unwrap_or(NO_RATE), known: true }
    }

    fn link(self) -> Option<Link> {
        let peer = PortRef { node: self.node as usize, port: self.port };
        self.known.then_some(Link {
            peer: (self.node != NO_NODE).then_some(peer),
            mtu: self.mtu,
            rate: (self.rate != NO_RATE).then_some(self.rate),
        })
    }
}

impl Links {
    /// Builds a summary before a query if the model has changed and it pays off. `many`: the answer may be long. Returns the cost
    /// in bytes.
    pub(in crate::administration) fn prepare(&mut self, model: &Model, many: bool) -> usize {
        let (version, mut cost) = (model.version(), 0);
        if self.version != Some(version) {
            let asked = if self.seen.0 == version { self.seen.1 } else { 0 };
            self.seen = (version, asked + 1);
            if many || asked >= STALE_QUESTIONS {
                self.make(model);
                self.version = Some(version);
                cost = self.ports.len().saturating_mul(SUMMARIZE);
            }
        }
        self.is_fresh = self.version == Some(version);
        cost
    }

    fn make(&mut self, model: &Model) {
        self.first.clear();
        self.ports.clear();
        let place = |ports: usize| u32::try_from(ports).unwrap_or(u32::MAX);
        for node in model.nodes() {
            self.first.push((place(self.ports.len()), node.switch.is_some()));
            self.ports.extend(node.ports.iter().map(Packed::of));
        }
        self.first.push((place(self.ports.len()), false));
        let ends = model.end_ports().count();
        self.ways.clear(ends);
        self.guids.clear(ends.saturating_mul(2).min(MOST_GUIDS));
    }

    /// Returns the route from a switch to the end port of a LID; calls `follow` if it is not cached.
    pub(super) fn way(
        &self,
        switch: usize,
        dlid: Lid,
        follow: impl FnOnce() -> Option<Way>,
    ) -> Option<Way> {
        if self.is_fresh { self.ways.get(switch, dlid, follow) } else { follow() }
    }

    /// Returns the port with a GUID or alias GUID.
    pub(super) fn by_port_guid(&self, model: &Model, guid: Guid) -> Option<PortRef> {
        if !self.is_fresh {
            return model.by_port_guid(guid);
        }
        let find = || {
            let at = model.by_port_guid(guid)?;
            Some((u32::try_from(at.node).ok()?, at.port))
        };
        let (node, port) = self.guids.get(guid.0, find)?;
        Some(PortRef { node: node as usize, port })
    }

    /// Returns whether a node has the tables of a switch.
    pub(super) fn is_switch(&self, model: &Model, node: usize) -> bool {
        if self.is_fresh {
            return self.first.get(node).is_some_and(|&(_, is_switch)| is_switch);
        }
        model.node(node).is_some_and(|node| node.switch.is_some())
    }

    /// Returns a port, if anything is known of it.
    pub(super) fn get(&self, model: &Model, at: PortRef) -> Option<Link> {
        if !self.is_fresh {
            return Link::of(model.port(at)?);
        }
        let &[(first, _), (end, _)] = self.first.get(at.node..at.node + 2)? else { return None };
        let index = first as usize + usize::from(at.port);
        self.ports.get(index).filter(|_| index < end as usize)?.link()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::administration::path::route::follow;
    use crate::administration::tests::model;
    use crate::topology::Shape;

    fn every_port(model: &Model) -> Vec<PortRef> {
        let ports = model.nodes().iter().enumerate();
        let ports = ports.flat_map(|(node, n)| {
            let count = u8::try_from(n.ports.len()).unwrap();
            // One more than the node has.
            (0..=count).map(move |port| PortRef { node, port })
        });
        ports.chain([PortRef { node: model.nodes().len(), port: 0 }]).collect()
    }

    #[test]
    fn link_summary_equals_the_model() {
        let mut model = model(&Shape::FatTree(40).topology(Guid(0x1000)), 0);
        let last = PortRef { node: model.nodes().len() - 1, port: 1 };
        model.port_mut(last).unwrap().info = None;
        let (without, mut with) = (Links::default(), Links::default());
        with.prepare(&model, true);
        assert!(with.is_fresh && !without.is_fresh);
        assert_eq!(with.get(&model, last), None);
        for at in every_port(&model) {
            assert_eq!(with.get(&model, at), without.get(&model, at), "{at:?}");
            assert_eq!(with.is_switch(&model, at.node), without.is_switch(&model, at.node));
        }
        for _ in 0..2 {
            for guid in model.end_ports().map(|(_, port)| port.guid).chain([Guid(0), Guid(7)]) {
                assert_eq!(with.by_port_guid(&model, guid), model.by_port_guid(guid), "{guid}");
            }
        }
    }

    #[test]
    fn link_summary_is_rebuilt_after_queries_without_a_model_change() {
        let mut model = model(&Shape::Two.topology(Guid(0x1000)), 0);
        let (mut links, at) = (Links::default(), PortRef { node: 0, port: 1 });
        for mtu in 1..=5 {
            model.port_mut(at).unwrap().info.as_mut().unwrap().mtu_cap = mtu;
            for question in 0..=STALE_QUESTIONS {
                links.prepare(&model, false);
                assert_eq!(links.is_fresh, question == STALE_QUESTIONS);
                assert_eq!(links.get(&model, at).unwrap().mtu, mtu);
            }
        }
    }

    #[test]
    fn cached_routes_equal_routes_followed_in_the_model() {
        let mut model = model(&Shape::FatTree(40).topology(Guid(0x1000)), 0);
        let ends: Vec<_> = model.end_ports().filter_map(|(at, p)| Some((at, p.lid()?))).collect();
        let switch = ends.iter().position(|(at, _)| model.nodes()[at.node].is_switch()).unwrap();
        let (without, mut with) = (Links::default(), Links::default());
        for has_all in [true, false] {
            with.prepare(&model, true);
            for _ in 0..2 {
                let mut count = 0;
                for (&(from, _), &(to, lid)) in
                    ends.iter().flat_map(|a| ends.iter().map(move |b| (a, b)))
                {
                    let way = follow(&model, &with, from, to, lid);
                    assert_eq!(way, follow(&model, &without, from, to, lid), "{from:?} {to:?}");
                    count += usize::from(way.is_some());
                }
                assert_eq!(count == ends.len().pow(2), has_all);
            }
            // The switch loses its routes.
            let node = model.node_mut(ends[switch].0.node).unwrap();
            node.switch.as_deref_mut().unwrap().forwarding.clear();
        }
    }
}
