//! Where the nodes of a subnet belong on a page: adapters at the bottom, switches above them by their distance.

use std::collections::VecDeque;

use rdmux_fabric::proto::Snapshot;

/// For each node its layer: 0 for adapters, and for a switch how many links the nearest adapter is away.
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
    // Switches that no adapter is near.
    for layer in &mut layers {
        if *layer == usize::MAX {
            *layer = 1;
        }
    }
    layers
}

/// The nodes that each node has a cable to. Cables that lead nowhere, which a fabric does not show, are left out.
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
