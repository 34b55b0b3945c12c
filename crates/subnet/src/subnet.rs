//! The subnet: all nodes and ports, and the driver's interface.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use rdmux_transport::Time;
use rdmux_wire::sm::PortState;
use rdmux_wire::{Lid, Qpn};

use crate::changes::Changes;
use crate::config::Config;
use crate::counters::{Counter, DropReason};
use crate::directed;
use crate::forward::Arrival;
use crate::node::NodeState;
use crate::packet::{MadPacket, NodeId, PortId};
use crate::port::{PortData, PortKind, PortView};
use crate::sink::Sink;
use crate::switch::Switch;
use crate::topology::{self, PortRef, Topology};
use crate::traps::Outstanding;

/// A subnet: its nodes with their agents.
///
/// The driver passes in programs' datagrams ([`Subnet::send`]), operators' commands and the time. A [`Sink`] receives what is
/// delivered to programs. Link training and transit take no time.
#[derive(Debug)]
pub struct Subnet {
    pub(crate) config: Config,
    pub(crate) nodes: Vec<NodeState>,
    /// The ports of all nodes, those of a node together.
    pub(crate) ports: Vec<PortData>,
    /// The topology, with names and other details that the agents do not need.
    topology: Topology,
    pub(crate) timers: BTreeSet<(Time, Timer)>,
    /// Outstanding traps by the port that they are about and the trap number.
    pub(crate) traps: BTreeMap<(usize, u16), Outstanding>,
    pub(crate) next_tid: u64,
    pub(crate) changes: Changes,
}

/// The action of a timer when it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// The lease of a port's M_Key ends.
    Lease(usize),
    /// The trap of this number about a port may be sent, or repeated.
    Trap(usize, u16),
}

/// The time of a call, and the sink for its output.
pub(crate) struct Cx<'a, S> {
    pub(crate) now: Time,
    pub(crate) sink: &'a mut S,
}

impl Subnet {
    /// Creates a subnet in its state after power-on: links are up and in state Init, and ports have the LIDs of the topology,
    /// if it has any. No programs are attached.
    pub fn new(topology: &Topology, config: Config) -> Self {
        let mut subnet = Self {
            config,
            nodes: Vec::with_capacity(topology.nodes.len()),
            ports: Vec::new(),
            topology: topology.clone(),
            timers: BTreeSet::new(),
            traps: BTreeMap::new(),
            next_tid: 1,
            changes: Changes::default(),
        };
        for node in &topology.nodes {
            subnet.add_node(node);
        }
        let mut cx = Cx { now: Time::ZERO, sink: &mut () };
        for (a, b, rate) in topology.links() {
            if let (Some(a), Some(b)) = (subnet.port_at(a), subnet.port_at(b)) {
                subnet.lay_cable(a, b, rate);
                subnet.train(a, &mut cx);
            }
        }
        for port in &mut subnet.ports {
            port.counters = crate::counters::Counters::new();
        }
        subnet
    }

    /// Adds a node in its state after power-on, without cables. It gets the next number.
    pub fn add(&mut self, node: &topology::Node) -> NodeId {
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.add_node(node);
        self.topology.add(node.clone());
        id
    }

    /// Replaces an adapter that has no cables with another one in its state after power-on, which gets the same number.
    /// Returns false if the old node is no adapter, has a cable, or has another number of ports.
    pub fn replace(&mut self, node: NodeId, by: &topology::Node) -> bool {
        let at = usize::try_from(node.0).unwrap_or(usize::MAX);
        let Some(old) = self.nodes.get(at) else { return false };
        let ports = old.first..old.first + old.all_ports();
        let is_same_kind =
            old.kind == by.kind && old.switch.is_none() && old.num_ports == by.num_ports;
        if !is_same_kind || self.ports[ports.clone()].iter().any(|port| port.peer.is_some()) {
            return false;
        }
        self.timers.retain(|(_, timer)| match timer {
            Timer::Lease(port) | Timer::Trap(port, _) => !ports.contains(port),
        });
        self.traps.retain(|(port, _), _| !ports.contains(port));
        self.nodes[at] = NodeState::new(by, ports.start, &self.config);
        for port in ports {
            let PortId { number, .. } = self.ports[port].id;
            self.ports[port] = self.new_port(PortId { node, number }, by);
            self.port_changed(port);
        }
        self.topology.nodes[at] = by.clone();
        true
    }

    fn new_port(&self, id: PortId, node: &topology::Node) -> PortData {
        let kind = PortKind::of(node.kind, id.number);
        let mut port = PortData::new(id, kind, node.port_guid(id.number), &self.config);
        let known = node.ports.get(&id.number).filter(|p| p.lid.is_unicast() && p.lmc < 8);
        if let Some(known) = known.filter(|_| kind != PortKind::External) {
            (port.info.lid, port.info.lmc) = (known.lid, known.lmc);
        }
        port
    }

    fn add_node(&mut self, node: &topology::Node) {
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        let state = NodeState::new(node, self.ports.len(), &self.config);
        for number in state.lowest()..=state.num_ports {
            self.ports.push(self.new_port(PortId { node: id, number }, node));
        }
        self.nodes.push(state);
    }

    /// Sends a program's datagram from an adapter's port, or from port 0 of a switch. Agents answer before this returns. A
    /// datagram that cannot travel is dropped and counted. An unknown port sends nothing.
    pub fn send(&mut self, now: Time, from: PortId, packet: MadPacket, sink: &mut impl Sink) {
        let mut cx = Cx { now, sink };
        match self.index(from).filter(|&at| self.kind(at) != PortKind::External) {
            // Programs use QP0 and QP1 of a port. Other queue pairs cannot reach QP0.
            Some(at) if (packet.src_qpn == Qpn::QP0) == (packet.dst_qpn == Qpn::QP0) => {
                self.dispatch(at, packet, &mut cx);
            }
            Some(at) => self.drop(at, DropReason::WrongQueuePair),
            None => {}
        }
        self.expire(&mut cx);
    }

    /// Handles expired timers: ends leases of M_Keys, repeats traps.
    pub fn handle_timeout(&mut self, now: Time, sink: &mut impl Sink) {
        self.expire(&mut Cx { now, sink });
    }

    /// Returns when [`Subnet::handle_timeout`] has work to do.
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Handles the timers that have expired.
    pub(crate) fn expire(&mut self, cx: &mut Cx<'_, impl Sink>) {
        while let Some((_, timer)) = self.timers.first().filter(|(at, _)| *at <= cx.now).copied() {
            self.timers.pop_first();
            match timer {
                Timer::Lease(port) => self.end_lease(port),
                Timer::Trap(port, number) => self.trap_is_due(port, number, cx),
            }
        }
    }

    /// Moves a datagram from the port `at` to its receiver, and an agent's answer back.
    pub(crate) fn dispatch(&mut self, at: usize, packet: MadPacket, cx: &mut Cx<'_, impl Sink>) {
        let mut next = Some((at, None, packet));
        while let Some((at, neighbour, mut packet)) = next.take() {
            if packet.dlid.is_multicast() {
                self.multicast(at, packet, cx);
                return;
            }
            let Some(arrival) = self.forward(at, neighbour, &mut packet, cx) else { return };
            match self.receive(arrival, packet, cx) {
                // Agent and requester share the port: the answer crosses no link.
                Some(mut answer) if arrival.is_local => {
                    directed::return_at_once(&mut answer.mad);
                    cx.sink.deliver(self.ports[arrival.at].id, answer);
                }
                Some(answer) => next = Some((arrival.at, Some(arrival.ingress), answer)),
                None => {}
            }
        }
    }

    /// Delivers a copy of a multicast datagram to every port that the tables name.
    fn multicast(&mut self, at: usize, packet: MadPacket, cx: &mut Cx<'_, impl Sink>) {
        for at in self.forward_multicast(at, &packet, cx) {
            let arrival = Arrival { at, ingress: self.ports[at].id.number, is_local: false };
            self.receive(arrival, packet.clone(), cx);
        }
    }

    /// Returns a port.
    pub fn port(&self, port: PortId) -> Option<PortView<'_>> {
        Some(PortView { port: &self.ports[self.index(port)?] })
    }

    /// Returns all ports, ordered by node and number.
    pub fn ports(&self) -> impl Iterator<Item = PortView<'_>> {
        self.ports.iter().map(|port| PortView { port })
    }

    /// Returns the port at the other end of a cable, if there is one.
    pub fn peer(&self, port: PortId) -> Option<PortId> {
        let peer = self.ports[self.index(port)?].peer?;
        Some(self.ports[peer].id)
    }

    /// Returns whether an operator has switched off the cable of a port.
    pub fn is_cable_down(&self, port: PortId) -> bool {
        self.index(port).is_some_and(|at| !self.ports[at].cable_up)
    }

    /// Returns the number of nodes, which are numbered from 0.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the present topology with cables, descriptions and LIDs. It can be written to a file and read at the next
    /// start. A node's index is its [`NodeId`].
    pub fn topology(&self) -> Topology {
        let mut all = self.topology.clone();
        for (node, state) in all.nodes.iter_mut().zip(&self.nodes) {
            node.describe(&crate::operate::text(&state.description));
            node.system_guid = state.system_guid;
            for port in node.ports.values_mut() {
                (port.lid, port.lmc, port.link) = (Lid::NONE, 0, None);
            }
        }
        for (at, port) in self.ports.iter().enumerate() {
            let place = PortRef { node: self.node_index(at), port: port.id.number };
            if port.info.lid != Lid::NONE && self.kind(at) != PortKind::External {
                let entry = all.nodes[place.node].ports.entry(place.port).or_default();
                (entry.lid, entry.lmc) = (port.info.lid, port.info.lmc);
            }
            let Some(peer) = port.peer.filter(|peer| *peer > at) else { continue };
            let far = PortRef { node: self.node_index(peer), port: self.ports[peer].id.number };
            // Both ends exist and have one cable each, so this cannot fail.
            let _ = all.connect(place, far, self.capability(at));
        }
        for node in &mut all.nodes {
            node.ports.retain(|_, port| *port != topology::Port::default());
        }
        all
    }

    /// Returns the ports by which a switch forwards a LID: at most one for a unicast LID, any number for a multicast LID.
    pub fn routes(&self, switch: NodeId, lid: Lid) -> Vec<u8> {
        match self.switch(switch) {
            Some(s) if lid.is_multicast() => s.group(lid).collect(),
            Some(s) => s.route(lid).into_iter().collect(),
            None => Vec::new(),
        }
    }

    /// Returns the port of each unicast LID from 0 to the LinearFDBTop of a switch; 255 means no route.
    pub fn linear_table(&self, switch: NodeId) -> Vec<u8> {
        self.switch(switch).map_or_else(Vec::new, Switch::linear_table)
    }

    /// Returns the multicast LIDs that a switch forwards, ascending, with their ports.
    pub fn multicast_table(&self, switch: NodeId) -> Vec<(Lid, Vec<u8>)> {
        self.switch(switch).map_or_else(Vec::new, Switch::multicast_table)
    }

    fn switch(&self, node: NodeId) -> Option<&Switch> {
        self.nodes.get(usize::try_from(node.0).ok()?)?.switch.as_deref()
    }

    /// Returns the index of a port, if it exists.
    #[inline]
    pub(crate) fn index(&self, port: PortId) -> Option<usize> {
        self.nodes.get(usize::try_from(port.node.0).ok()?)?.port(port.number)
    }

    fn port_at(&self, port: PortRef) -> Option<usize> {
        self.nodes.get(port.node)?.port(port.port)
    }

    /// Returns the index of a port's node.
    #[inline]
    pub(crate) fn node_index(&self, at: usize) -> usize {
        self.ports[at].id.node.0 as usize
    }

    /// Returns the node of a port.
    #[inline]
    pub(crate) fn node_of(&self, at: usize) -> &NodeState {
        &self.nodes[self.node_index(at)]
    }

    /// Returns the node of a port.
    #[inline]
    pub(crate) fn node_of_mut(&mut self, at: usize) -> &mut NodeState {
        let node = self.node_index(at);
        &mut self.nodes[node]
    }

    /// Returns the kind of a port.
    pub(crate) fn kind(&self, at: usize) -> PortKind {
        PortKind::of(self.node_of(at).kind, self.ports[at].id.number)
    }

    /// Returns the port whose agents manage this one: port 0 of a switch, or the port itself.
    pub(crate) fn manager_of(&self, at: usize) -> usize {
        let node = self.node_of(at);
        if node.switch.is_some() { node.first } else { at }
    }

    /// Counts a datagram that is dropped at a port.
    pub(crate) fn drop(&mut self, at: usize, reason: DropReason) {
        self.ports[at].counters.drop(reason);
    }

    /// Adds to a counter of a port as if its hardware had counted, for tests that look for errors.
    pub fn count(&mut self, port: PortId, counter: Counter, n: u64) {
        if let Some(at) = self.index(port) {
            self.ports[at].counters.add(counter, n);
        }
    }

    /// Returns whether a port may send data.
    pub(crate) fn is_active(&self, at: usize) -> bool {
        self.ports[at].info.port_state == PortState::ACTIVE
    }
}
