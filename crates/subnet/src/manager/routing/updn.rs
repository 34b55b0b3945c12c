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

    /// Orders switches as a tree with one root, so that every switch can reach every other. The root is about in the middle.
    pub(super) fn tree(graph: &Graph) -> Self {
        let distances = |switch| graph.distances(core::iter::once(switch));
        let most_cables = (0..graph.len()).max_by_key(|&switch| graph.cables(switch).len());
        let distance = most_cables.map(|first| distances(centre(first, distances)));
        let distance = distance.unwrap_or_default();
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

/// Returns the switch halfway between the two switches that are farthest apart, as found by three searches: from `first`, from
/// the switch that is farthest from it, and from the one that is farthest from that. In a tree of switches it is the centre.
fn centre(first: usize, mut distances: impl FnMut(usize) -> Vec<u32>) -> usize {
    let farthest = |distance: &[u32]| {
        let reached = (0..distance.len()).filter(|&switch| distance[switch] != u32::MAX);
        reached.max_by_key(|&switch| distance[switch]).unwrap_or(first)
    };
    let start = distances(first);
    let one = distances(farthest(&start));
    let other = distances(farthest(&one));
    let place = |&switch: &usize| {
        let (to_one, to_other) = (one[switch], other[switch]);
        (to_one.max(to_other), to_one.saturating_add(to_other))
    };
    (0..one.len()).min_by_key(place).unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the centre of `count` switches, and the number of searches that it took.
    fn centre_of(count: u32, first: usize, distance: impl Fn(u32, u32) -> u32) -> (usize, u32) {
        let mut searches = 0;
        let root = centre(first, |from| {
            searches += 1;
            let from = u32::try_from(from).unwrap();
            (0..count).map(|to| distance(from, to)).collect()
        });
        (root, searches)
    }

    #[test]
    fn centre_takes_three_searches_whatever_the_number_of_switches() {
        let chain = |from: u32, to: u32| from.abs_diff(to);
        for first in [0, 7, 50, 100] {
            assert_eq!(centre_of(101, first, chain), (50, 3), "{first}");
        }
        // Switch 0 is the hub of 200 others.
        let star = |from, to| {
            u32::from(from != 0) + u32::from(to != 0) - 2 * u32::from(from == to && to != 0)
        };
        assert_eq!(centre_of(201, 5, star), (0, 3));
        // The last switch has no cable.
        let apart = |from, to| match (from == 101, to == 101) {
            (true, true) => 0,
            (false, false) => chain(from, to),
            _ => u32::MAX,
        };
        assert_eq!(centre_of(102, 3, apart), (50, 3));
    }
}
