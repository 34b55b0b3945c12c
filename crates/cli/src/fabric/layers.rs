//! The vertical layout of a subnet: adapters at the bottom, switches above them by their distance.

use std::collections::VecDeque;

use rdmux_fabric::proto::Snapshot;

/// Returns the layer of each node: 0 for adapters, and for a switch the number of links to the nearest adapter.
pub(super) fn layers(s: &Snapshot) -> Vec<usize> {
    let neighbours = neighbours(s);
    let mut layers = vec![usize::MAX; s.nodes.len()];
    let mut queue = VecDeque::new();
    for (index, node) in s.nodes.iter().enumerate() {
        if !node.is_switch {
            layers[index] = 0;
            queue.push_back(index);
        }
    }
    while let Some(index) = queue.pop_front() {
        for &next in &neighbours[index] {
            if layers[next] == usize::MAX {
                layers[next] = layers[index] + 1;
                queue.push_back(next);
            }
        }
    }
    // Switches without an adapter nearby.
    for layer in &mut layers {
        if *layer == usize::MAX {
            *layer = 1;
        }
    }
    layers
}

/// Returns the nodes to which each node has a cable. Cables without a second end, which a fabric does not show, are
/// omitted.
pub(super) fn neighbours(s: &Snapshot) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new(); s.nodes.len()];
    for link in &s.links {
        let (a, b) = (link.a.0 as usize, link.b.0 as usize);
        if a < all.len() && b < all.len() {
            all[a].push(b);
            all[b].push(a);
        }
    }
    all
}
