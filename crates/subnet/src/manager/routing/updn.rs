//! Up-down: an order of all switches in which every cable leads up in one direction and down in the other.

use alloc::vec;
use alloc::vec::Vec;

use super::super::graph::Graph;

/// An order of the switches.
#[derive(Debug)]
pub(super) struct Order {
    /// The height of each switch. All are different.
    height: Vec<u32>,
    /// The switches, highest first.
    topmost_first: Vec<usize>,
    tree: bool,
}

impl Order {
    /// Orders switches by the distance from the nearest adapters: in a fat tree the roots are on top. Not every subnet has
    /// such layers.
    pub(super) fn layers(graph: &Graph) -> Self {
        let leaves = (0..graph.len()).filter(|&switch| graph.has_adapters(switch));
        let distance = graph.distances(leaves);
        // A switch without a route to an adapter is on no route either.
        Self::by(graph, |switch| distance[switch], false)
    }

    /// Orders switches as a tree with one root, so that every switch can reach every other. The root is the switch with the
    /// smallest distance to the farthest switch.
    pub(super) fn tree(graph: &Graph) -> Self {
        let farthest = |switch: usize| {
            let distances = graph.distances(core::iter::once(switch)).into_iter();
            distances
                .filter(|&d| d != u32::MAX)
                .fold((0, 0), |(max, sum), d| (d.max(max), sum + u64::from(d)))
        };
        let root = (0..graph.len()).min_by_key(|&switch| farthest(switch)).unwrap_or(0);
        let distance = graph.distances((0..graph.len()).filter(|&switch| switch == root));
        Self::by(graph, |switch| u32::MAX - distance[switch], true)
    }

    fn by(graph: &Graph, layer: impl Fn(usize) -> u32, tree: bool) -> Self {
        let mut topmost_first: Vec<usize> = (0..graph.len()).collect();
        topmost_first.sort_by_key(|&switch| (core::cmp::Reverse(layer(switch)), switch));
        let mut height = vec![0; graph.len()];
        for (&switch, place) in topmost_first.iter().rev().zip(0..) {
            height[switch] = place;
        }
        Self { height, topmost_first, tree }
    }

    /// Returns whether the hop from `lower` to `upper` leads up.
    #[inline]
    pub(super) fn is_above(&self, upper: usize, lower: usize) -> bool {
        self.height[upper] > self.height[lower]
    }

    /// Returns all switches, highest first.
    pub(super) fn topmost_first(&self) -> &[usize] {
        &self.topmost_first
    }

    /// Returns whether the order is a tree with one root.
    pub(super) fn is_tree(&self) -> bool {
        self.tree
    }
}
