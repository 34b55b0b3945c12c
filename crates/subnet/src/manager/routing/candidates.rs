//! The ports of every switch that begin a route to one destination.

use alloc::vec;
use alloc::vec::Vec;

use super::super::graph::Graph;
use super::updn::Order;

/// Unreachable.
const FAR: u32 = u32::MAX;

/// For each switch, the indices of its cables that begin a route.
#[derive(Debug)]
pub(super) struct Candidates {
    /// Room for one entry per cable of each switch.
    ways: Vec<u8>,
    counts: Vec<u8>,
    /// Hops to the destination.
    hops: Vec<u32>,
    queue: Vec<u32>,
}

impl Candidates {
    pub(super) fn new(graph: &Graph) -> Self {
        let switches = graph.len();
        Self {
            ways: vec![0; graph.cable_ends()],
            counts: vec![0; switches],
            hops: vec![FAR; switches],
            queue: Vec::with_capacity(switches),
        }
    }

    /// Returns the candidates of a switch, after one of the searches.
    #[inline]
    pub(super) fn of(&self, graph: &Graph, switch: usize) -> &[u8] {
        let first = graph.first_cable(switch);
        &self.ways[first..first + usize::from(self.counts[switch])]
    }

    fn clear(&mut self) {
        self.counts.fill(0);
        self.hops.fill(FAR);
        self.queue.clear();
    }

    /// Finds all cables that begin a shortest route.
    pub(super) fn shortest(&mut self, graph: &Graph, to: usize) {
        self.clear();
        self.hops[to] = 0;
        self.queue.push(index(to));
        self.search(graph, |_, _| true);
        for switch in 0..graph.len() {
            self.choose(graph, switch, |_| true);
        }
    }

    /// Finds all cables that begin a shortest up-down route. A switch that can go down all the way does: a packet that
    /// reaches it from above may not go up again. Returns false if some adapters cannot reach the destination's adapters in
    /// this order. Switches without an up-down route get another, loop-free one, since management must reach them.
    pub(super) fn up_and_down(&mut self, graph: &Graph, order: &Order, to: usize) -> bool {
        self.clear();
        self.hops[to] = 0;
        self.queue.push(index(to));
        // Search backwards: from the destination up to all switches that can go down to it.
        self.search(graph, |from, next| order.is_above(next, from));
        for switch in 0..graph.len() {
            self.choose(graph, switch, |next| order.is_above(switch, next));
        }
        // All others go up; switches above are done first.
        for &switch in order.topmost_first() {
            if self.hops[switch] != FAR {
                continue;
            }
            let up = graph.cables(switch).iter().map(|cable| cable.to as usize);
            let up = up.filter(|&next| order.is_above(next, switch)).map(|next| self.hops[next]);
            if let Some(hops) = up.min().filter(|&hops| hops != FAR) {
                self.hops[switch] = hops + 1;
                self.choose(graph, switch, |next| order.is_above(next, switch));
            }
        }
        let lost: Vec<usize> = (0..graph.len()).filter(|&s| self.hops[s] == FAR).collect();
        if lost.is_empty() {
            return true;
        }
        let complete = !graph.has_adapters(to) || !lost.iter().any(|&s| graph.has_adapters(s));
        self.queue.clear();
        self.queue.extend((0..graph.len()).filter(|&s| self.hops[s] != FAR).map(index));
        self.search(graph, |_, _| true);
        for switch in lost {
            self.choose(graph, switch, |_| true);
        }
        complete
    }

    /// Extends the search from the queued switches along all hops that `may(from, next)` allows.
    fn search(&mut self, graph: &Graph, may: impl Fn(usize, usize) -> bool) {
        let mut done = 0;
        while let Some(&switch) = self.queue.get(done) {
            done += 1;
            let switch = switch as usize;
            let hops = self.hops[switch] + 1;
            for cable in graph.cables(switch) {
                let next = cable.to as usize;
                if self.hops[next] == FAR && may(switch, next) {
                    self.hops[next] = hops;
                    self.queue.push(cable.to);
                }
            }
        }
    }

    /// Selects the cables of a switch to neighbours that are one hop nearer and that `may` allows.
    #[inline]
    fn choose(&mut self, graph: &Graph, switch: usize, may: impl Fn(usize) -> bool) {
        let hops = self.hops[switch];
        if hops == FAR || hops == 0 {
            return;
        }
        let first = graph.first_cable(switch);
        let mut count = 0;
        for (way, cable) in (0..=u8::MAX).zip(graph.cables(switch)) {
            let next = cable.to as usize;
            if self.hops[next] == hops - 1 && may(next) {
                self.ways[first + usize::from(count)] = way;
                count += 1;
            }
        }
        self.counts[switch] = count;
    }
}

fn index(switch: usize) -> u32 {
    u32::try_from(switch).unwrap_or(u32::MAX)
}
