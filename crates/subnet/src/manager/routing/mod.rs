//! Routing: computes the egress port of each LID at each switch.
//!
//! For each switch as destination, the routes from all other switches are computed. Among equally good ports the LIDs at that
//! switch alternate, starting with the port that the fewest LIDs use so far. This takes time proportional to switches times
//! cables. The LIDs of one port (LMC) take different routes if there are any.

mod candidates;
mod updn;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use rdmux_wire::Lid;
use rdmux_wire::sm::NO_ROUTE;

use self::candidates::Candidates;
use self::updn::Order;
use super::graph::Graph;
use super::model::Model;
use super::tables::{Dirty, put_route};
use super::{Manager, RoutingEngine};

/// A computation of routes in progress. It changes the model's tables in place and marks the changed blocks.
#[derive(Debug)]
pub(super) struct Routing {
    graph: Graph,
    /// The up-down order, if the engine needs it.
    order: Option<Order>,
    /// Switches completed as destinations; after the last one, switches whose old routes were removed.
    done: usize,
    ways: Candidates,
    /// The number of LIDs that use each cable end.
    loads: Vec<u32>,
    /// Whether each LID has an owner.
    owned: Vec<bool>,
}

impl Routing {
    pub(super) fn new(graph: Graph, engine: RoutingEngine) -> Self {
        let mut owned = vec![false; usize::from(Lid::FIRST_MULTICAST.0)];
        graph.all_lids().iter().for_each(|(lid, _)| owned[usize::from(lid.0)] = true);
        let order = (engine == RoutingEngine::Updn).then(|| Order::layers(&graph));
        let ways = Candidates::new(&graph);
        let loads = vec![0; graph.cable_ends()];
        Self { graph, order, done: 0, ways, loads, owned }
    }

    /// Continues until about `budget` cables have been processed. Returns whether routing is complete.
    pub(super) fn step(
        &mut self,
        model: &mut Model,
        dirty: &mut [Option<Box<Dirty>>],
        budget: usize,
    ) -> bool {
        let switches = self.graph.len();
        let mut spent = 0;
        while spent < budget && self.done < 2 * switches {
            spent += self.graph.cable_ends() + switches;
            match self.done.checked_sub(switches) {
                None if !self.find_ways(self.done) => {
                    // Some adapters cannot reach each other up and down these layers: restart with a single root.
                    self.order = Some(Order::tree(&self.graph));
                    self.loads.fill(0);
                    self.done = 0;
                    continue;
                }
                None => self.write_routes(self.done, model, dirty),
                Some(switch) => self.remove_old(switch, model, dirty),
            }
            self.done += 1;
        }
        self.done == 2 * switches
    }

    /// Finds the ports of all switches that begin a good route to switch `to`. Returns false if another order is needed.
    fn find_ways(&mut self, to: usize) -> bool {
        match &self.order {
            None => {
                self.ways.shortest(&self.graph, to);
                true
            }
            Some(order) => {
                let complete = self.ways.up_and_down(&self.graph, order, to);
                complete || order.is_tree()
            }
        }
    }

    fn write_routes(&mut self, to: usize, model: &mut Model, dirty: &mut [Option<Box<Dirty>>]) {
        let lids = self.graph.lids(to);
        for switch in 0..self.graph.len() {
            let node = self.graph.node(switch);
            let table = model.node_mut(node).and_then(|node| node.switch.as_deref_mut());
            let (Some(table), Some(Some(dirty))) = (table, dirty.get_mut(node)) else { continue };
            if switch == to {
                for &(lid, port) in lids {
                    put_route(&mut table.forwarding, dirty, lid.0, port);
                }
                continue;
            }
            let ways = self.ways.of(&self.graph, switch);
            if ways.is_empty() {
                for &(lid, _) in lids {
                    put_route(&mut table.forwarding, dirty, lid.0, NO_ROUTE);
                }
                continue;
            }
            let first = self.graph.first_cable(switch);
            let cables = self.graph.cables(switch);
            let load = |way: &u8| self.loads[first + usize::from(*way)];
            let least = (0..ways.len()).min_by_key(|&at| load(&ways[at])).unwrap_or(0);
            let mut turn = least;
            for &(lid, _) in lids {
                let way = usize::from(ways[turn]);
                self.loads[first + way] += 1;
                put_route(&mut table.forwarding, dirty, lid.0, cables[way].port);
                turn = if turn + 1 == ways.len() { 0 } else { turn + 1 };
            }
        }
    }

    /// Removes the routes of LIDs without an owner.
    fn remove_old(&self, switch: usize, model: &mut Model, dirty: &mut [Option<Box<Dirty>>]) {
        let node = self.graph.node(switch);
        let table = model.node_mut(node).and_then(|node| node.switch.as_deref_mut());
        let (Some(table), Some(Some(dirty))) = (table, dirty.get_mut(node)) else { return };
        for lid in 0..u16::try_from(table.forwarding.len()).unwrap_or(u16::MAX) {
            if !self.owned.get(usize::from(lid)).is_some_and(|owned| *owned) {
                put_route(&mut table.forwarding, dirty, lid, NO_ROUTE);
            }
        }
    }
}

impl Manager {
    /// Starts routing if the present routes are for other cables or LIDs. Returns whether it started.
    pub(super) fn begin_routing(&mut self) -> bool {
        self.check_links();
        let graph = Graph::new(&self.model);
        let has_routes = |&switch: &usize| {
            let node = self.model.node(graph.node(switch));
            node.and_then(|n| n.switch.as_ref()).is_some_and(|s| !s.forwarding.is_empty())
        };
        let same = graph.is_same(&self.graph) && (0..graph.len()).all(|switch| has_routes(&switch));
        self.graph = graph;
        self.graph_is_old = false;
        if !same {
            self.changed = true;
            self.trees.forget();
            let routing = Routing::new(self.graph.clone(), self.config.routing);
            self.job = Some(Box::new(routing));
        }
        !same
    }

    /// Continues routing.
    pub(super) fn compute(&mut self) {
        let Some(job) = &mut self.job else { return };
        if job.step(&mut self.model, &mut self.dirty, self.config.routing_slice) {
            self.job = None;
        }
    }
}
