//! Up and down: an order of all switches in which every cable leads up one way and down the other.

use alloc::vec;
use alloc::vec::Vec;

use super::super::graph::Graph;

/// An order of the switches.
#[derive(Debug)]
pub(super) struct Order {
    /// By switch: how far up it is. All are different.
    height: Vec<u32>,
    /// The switches, the uppermost first.
    topmost_first: Vec<usize>,
    tree: bool,
}

impl Order {
    /// Layers by the distance from the nearest adapters: in a fat tree the roots are on top. Not every subnet has such layers.
    pub(super) fn layers(graph: &Graph) -> Self {
        let leaves = (0..graph.len()).filter(|&switch| graph.has_adapters(switch));
        let distance = graph.distances(leaves);
        // Without a way to an adapter a switch is on no way either.
        Self::by(graph, |switch| distance[switch], false)
    }

    /// One root, from which all others hang: in this order every switch can reach every other. The root is the one that the
    /// farthest switch is nearest to.
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

    /// Whether the way from `lower` to `upper` leads up.
    #[inline]
    pub(super) fn is_above(&self, upper: usize, lower: usize) -> bool {
        self.height[upper] > self.height[lower]
    }

    /// All switches, the uppermost first.
    pub(super) fn topmost_first(&self) -> &[usize] {
        &self.topmost_first
    }

    /// Whether it hangs from one root.
    pub(super) fn is_tree(&self) -> bool {
        self.tree
    }
}
