//! The graph of switches and cables that routing works on.

use alloc::vec;
use alloc::vec::Vec;

use rdmux_wire::{Guid, Lid};

use super::model::{Model, Port};

/// Marks a node that is no switch.
const NONE: u32 = u32::MAX;

/// The switches, ordered by GUID, so that routes do not depend on the order of discovery.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    guids: Vec<Guid>,
    /// The index in `cables` of each switch's first cable, and the end.
    starts: Vec<u32>,
    cables: Vec<Cable>,
    /// The index in `lids` of each switch's first LID, and the end.
    lid_starts: Vec<u32>,
    lids: Vec<(Lid, u8)>,
    /// The model's node of each switch, and the switch of each node.
    nodes: Vec<usize>,
    switch_of: Vec<u32>,
}

/// A cable from a switch to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cable {
    /// The other switch.
    pub(super) to: u32,
    /// The port here.
    pub(super) port: u8,
    /// The port there.
    pub(super) back: u8,
}

impl Graph {
    /// Builds the graph of a model, with the cables that both ends report.
    pub(super) fn new(model: &Model) -> Self {
        let mut nodes: Vec<usize> = (0..model.nodes().len())
            .filter(|&index| model.nodes()[index].switch.is_some())
            .collect();
        nodes.sort_unstable_by_key(|&index| model.nodes()[index].info.node_guid);
        let mut switch_of = vec![NONE; model.nodes().len()];
        for (&node, index) in nodes.iter().zip(0..) {
            switch_of[node] = index;
        }
        let guids = nodes.iter().map(|&node| model.nodes()[node].info.node_guid).collect();
        let mut graph = Self { guids, switch_of, ..Self::default() };
        for &node in &nodes {
            graph.starts.push(count(&graph.cables));
            graph.lid_starts.push(count(&graph.lids));
            graph.add_ports(model, node);
        }
        graph.starts.push(count(&graph.cables));
        graph.lid_starts.push(count(&graph.lids));
        graph.nodes = nodes;
        graph
    }

    fn add_ports(&mut self, model: &Model, index: usize) {
        let Some(node) = model.node(index) else { return };
        let first = self.lids.len();
        for (number, port) in (0..=u8::MAX).zip(&node.ports) {
            if number == 0 {
                self.add_lids(model, port, 0);
                continue;
            }
            let Some(peer) = port.peer.filter(|_| port.is_up()) else { continue };
            let Some(far) = model.port(peer).filter(|far| far.is_up()) else { continue };
            match self.switch_of[peer.node] {
                // An adapter, or a switch whose SwitchInfo is missing.
                NONE => self.add_lids(model, far, number),
                to if peer.node != index => {
                    self.cables.push(Cable { to, port: number, back: peer.port });
                }
                _ => {}
            }
        }
        self.lids[first..].sort_unstable();
    }

    fn add_lids(&mut self, model: &Model, port: &Port, egress: u8) {
        let first = port.assigned;
        let Some(owner) = model.by_lid(first) else { return };
        let all = (first.0..Lid::FIRST_MULTICAST.0).map(Lid);
        let own = all.take_while(|&lid| model.by_lid(lid) == Some(owner));
        self.lids.extend(own.map(|lid| (lid, egress)));
    }

    /// Returns the number of switches.
    pub(super) fn len(&self) -> usize {
        self.guids.len()
    }

    /// Returns the number of cable ends.
    pub(super) fn cable_ends(&self) -> usize {
        self.cables.len()
    }

    /// Returns the cables of a switch.
    #[inline]
    pub(super) fn cables(&self, switch: usize) -> &[Cable] {
        &self.cables[self.first_cable(switch)..self.starts[switch + 1] as usize]
    }

    /// Returns the index of a switch's first cable among all.
    #[inline]
    pub(super) fn first_cable(&self, switch: usize) -> usize {
        self.starts[switch] as usize
    }

    /// Returns the LIDs of a switch and of the adapters at it, with the port to each.
    pub(super) fn lids(&self, switch: usize) -> &[(Lid, u8)] {
        &self.lids[self.lid_starts[switch] as usize..self.lid_starts[switch + 1] as usize]
    }

    /// Returns all LIDs.
    pub(super) fn all_lids(&self) -> &[(Lid, u8)] {
        &self.lids
    }

    /// Returns whether adapters are connected to a switch.
    pub(super) fn has_adapters(&self, switch: usize) -> bool {
        self.lids(switch).iter().any(|&(_, port)| port != 0)
    }

    /// Returns the model's node of a switch.
    #[inline]
    pub(super) fn node(&self, switch: usize) -> usize {
        self.nodes[switch]
    }

    /// Returns the switch of a model's node.
    pub(super) fn switch(&self, node: usize) -> Option<usize> {
        let switch = self.switch_of.get(node).copied().filter(|&switch| switch != NONE)?;
        usize::try_from(switch).ok()
    }

    /// Returns whether switches, cables and LIDs are equal: then the routes are, too.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.has_cables_of(other)
            && (&self.lid_starts, &self.lids) == (&other.lid_starts, &other.lids)
    }

    /// Returns whether switches and the cables between them are equal.
    pub(super) fn has_cables_of(&self, other: &Self) -> bool {
        self.guids == other.guids && (&self.starts, &self.cables) == (&other.starts, &other.cables)
    }

    /// Returns the distance of each switch from the nearest of some switches; `u32::MAX` if it is unreachable.
    pub(super) fn distances(&self, from: impl Iterator<Item = usize>) -> Vec<u32> {
        let mut distance = vec![u32::MAX; self.len()];
        let mut order: Vec<usize> = from.collect();
        order.iter().for_each(|&switch| distance[switch] = 0);
        let mut next = 0;
        while let Some(&switch) = order.get(next) {
            next += 1;
            for cable in self.cables(switch) {
                let to = cable.to as usize;
                if distance[to] == u32::MAX {
                    distance[to] = distance[switch] + 1;
                    order.push(to);
                }
            }
        }
        distance
    }
}

fn count<T>(all: &[T]) -> u32 {
    u32::try_from(all.len()).unwrap_or(u32::MAX)
}
