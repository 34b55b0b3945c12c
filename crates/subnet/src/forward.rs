//! Forwarding: moves a datagram hop by hop from port to port.

use alloc::vec::Vec;

use rdmux_wire::Lid;
use rdmux_wire::mad::MgmtClass;

use crate::counters::DropReason;
use crate::directed::{self, Here, Turn};
use crate::packet::MadPacket;
use crate::port::PortKind;
use crate::sink::Sink;
use crate::subnet::{Cx, Subnet};
use crate::ways::Traffic;

/// The most switches that a datagram crosses. Forwarding tables with loops make a packet circulate until its switch lifetime
/// ends; here the hops are counted instead.
pub(crate) const MAX_HOPS: usize = 1024;

/// The port where a datagram has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// The destination port: an adapter's, or port 0 of a switch.
    pub(crate) at: usize,
    /// The number of the port by which it entered.
    pub(crate) ingress: u8,
    /// Whether the datagram has crossed no link: the sender is on the same port.
    pub(crate) is_local: bool,
}

/// The next step of a datagram at a node.
enum Step {
    /// Deliver it to this port of the node.
    Here(usize),
    /// Send it by this port.
    Leave(usize),
}

impl Subnet {
    /// Moves a datagram from its sender, the port `from`, to its destination port. When port 0 of a switch sends to the
    /// permissive LID, it means the node at the port `neighbour`.
    pub(crate) fn forward(
        &mut self,
        from: usize,
        neighbour: Option<u8>,
        packet: &mut MadPacket,
        cx: &mut Cx<'_, impl Sink>,
    ) -> Option<Arrival> {
        let mut egress = match self.originate(from, neighbour, packet)? {
            Step::Here(at) => {
                cx.sink.passed(self.ports[from].id, true, packet);
                cx.sink.passed(self.ports[at].id, false, packet);
                return Some(Arrival { at, ingress: self.ports[at].id.number, is_local: true });
            }
            Step::Leave(egress) => egress,
        };
        for hop in 0..MAX_HOPS {
            let ingress = self.cross(egress, packet, cx)?;
            if hop == 0 {
                cx.sink.passed(self.ports[from].id, true, packet);
            }
            match self.relay(ingress, packet, cx)? {
                Step::Here(at) => {
                    let number = self.ports[ingress].id.number;
                    cx.sink.passed(self.ports[at].id, false, packet);
                    return Some(Arrival { at, ingress: number, is_local: false });
                }
                Step::Leave(next) => egress = next,
            }
        }
        self.drop(egress, DropReason::TooManyHops);
        None
    }

    /// Takes the first step, at the sender.
    fn originate(
        &mut self,
        from: usize,
        neighbour: Option<u8>,
        packet: &mut MadPacket,
    ) -> Option<Step> {
        if packet.is_vl15() && is_directed(packet) {
            let own = self.ports[from].id.number;
            match directed::originate(&mut packet.mad, own, self.kind(from) == PortKind::Management)
            {
                Turn::Here => return Some(Step::Here(from)),
                Turn::Leave(port) => return self.leave_by(from, port),
                Turn::LidRouted(None) => {}
                Turn::LidRouted(Some(_)) | Turn::Discard => {
                    self.drop(from, DropReason::DirectedRoute);
                    return None;
                }
            }
        }
        let port = &self.ports[from];
        let has_none = packet.is_vl15() && port.info.lid == Lid::NONE && packet.dlid == Lid::NONE;
        if port.owns(packet.dlid) || has_none {
            return Some(Step::Here(from));
        }
        match self.kind(from) {
            PortKind::Management if packet.dlid == Lid::PERMISSIVE => {
                self.leave_by(from, neighbour.unwrap_or(0))
            }
            PortKind::Management => self.look_up(from, None, packet),
            _ if packet.is_vl15() => Some(Step::Leave(from)),
            _ if port.lane(port.sl_to_vl.as_ref(), packet.sl).is_some() => Some(Step::Leave(from)),
            _ => {
                self.drop(from, DropReason::NoVirtualLane);
                None
            }
        }
    }

    /// Crosses the cable from the port by which a datagram leaves to the peer.
    fn cross(
        &mut self,
        egress: usize,
        packet: &MadPacket,
        cx: &mut Cx<'_, impl Sink>,
    ) -> Option<usize> {
        let vl15 = packet.is_vl15();
        let port = &self.ports[egress];
        let Some(ingress) = port.peer.filter(|_| port.is_up()) else {
            self.drop(egress, DropReason::NoLink);
            return None;
        };
        if !(vl15 || self.is_active(egress) && self.may_take_data(ingress, cx)) {
            self.drop(egress, DropReason::NotActive);
            return None;
        }
        let is_multicast = packet.dlid.is_multicast();
        let traffic = Traffic { packets: 1, words: packet.words(), is_multicast };
        self.count_link(egress, ingress, packet.sl, traffic);
        Some(ingress)
    }

    /// Handles a datagram at a node that it has entered by a port.
    fn relay(
        &mut self,
        ingress: usize,
        packet: &mut MadPacket,
        cx: &mut Cx<'_, impl Sink>,
    ) -> Option<Step> {
        let is_switch = self.kind(ingress) == PortKind::External;
        let end = self.manager_of(ingress);
        let vl15 = packet.is_vl15();
        let next = vl15 && packet.dlid == Lid::PERMISSIVE;
        if next || self.ports[end].owns(packet.dlid) {
            if vl15 && is_directed(packet) {
                return self.directed(ingress, end, is_switch, packet);
            }
            return self.check_in(ingress, packet, cx).then_some(Step::Here(end));
        }
        if !is_switch {
            self.drop(ingress, DropReason::WrongLid);
            return None;
        }
        if !self.check_in(ingress, packet, cx) {
            return None;
        }
        let step = self.look_up(end, Some(ingress), packet)?;
        match step {
            Step::Leave(egress) => self.check_out(ingress, egress, packet, cx).then_some(step),
            Step::Here(_) => Some(step),
        }
    }

    /// Applies the rules of directed routes, at a switch or an adapter.
    fn directed(
        &mut self,
        ingress: usize,
        end: usize,
        is_switch: bool,
        packet: &mut MadPacket,
    ) -> Option<Step> {
        let lid = self.ports[end].source();
        let number = self.ports[ingress].id.number;
        let routed = packet.dlid != Lid::PERMISSIVE;
        match directed::relay(&mut packet.mad, Here { ingress: number, is_switch, routed }) {
            Turn::Here => Some(Step::Here(end)),
            Turn::Leave(port) => {
                (packet.slid, packet.dlid) = (Lid::PERMISSIVE, Lid::PERMISSIVE);
                self.leave_by(end, port)
            }
            Turn::LidRouted(Some(to)) => {
                (packet.slid, packet.dlid) = (lid, to);
                if self.ports[end].owns(to) {
                    return Some(Step::Here(end));
                }
                self.look_up(end, None, packet)
            }
            Turn::LidRouted(None) | Turn::Discard => {
                self.drop(ingress, DropReason::DirectedRoute);
                None
            }
        }
    }

    /// Leaves by port `number` of the node of `at`, if it exists.
    fn leave_by(&mut self, at: usize, number: u8) -> Option<Step> {
        let egress = self.node_of(at).port(number).filter(|_| number != 0);
        if egress.is_none() {
            self.drop(at, DropReason::DirectedRoute);
        }
        egress.map(Step::Leave)
    }

    /// Looks up the linear forwarding table of the switch whose port 0 is `end`.
    fn look_up(&mut self, end: usize, ingress: Option<usize>, packet: &MadPacket) -> Option<Step> {
        let node = self.node_of(end);
        let route = node.switch.as_ref().and_then(|switch| switch.route(packet.dlid));
        let blame = ingress.unwrap_or(end);
        match route.and_then(|number| node.port(number)) {
            None => self.drop(blame, DropReason::NoRoute),
            Some(egress) if Some(egress) == ingress => self.drop(blame, DropReason::Loop),
            // The route leads to the switch itself, which does not have this LID.
            Some(egress) if egress == end => self.drop(blame, DropReason::WrongLid),
            Some(egress) => return Some(Step::Leave(egress)),
        }
        None
    }

    /// Returns whether partition enforcement lets a datagram enter a switch.
    fn check_in(&mut self, at: usize, packet: &MadPacket, cx: &mut Cx<'_, impl Sink>) -> bool {
        let port = &self.ports[at];
        let enforced = port.info.partition_enforcement_inbound && !packet.is_vl15();
        if !enforced || port.has_partition(packet.pkey) {
            return true;
        }
        self.drop(at, DropReason::PkeyIn);
        self.raise_switch_pkey(at, packet, cx);
        false
    }

    /// Returns whether a datagram has a lane to leave a switch by, and whether partition enforcement lets it out.
    fn check_out(
        &mut self,
        ingress: usize,
        egress: usize,
        packet: &MadPacket,
        cx: &mut Cx<'_, impl Sink>,
    ) -> bool {
        if packet.is_vl15() {
            return true;
        }
        let (node, port) = (self.node_of(egress), &self.ports[egress]);
        let input = self.ports[ingress].id.number;
        let table = node.switch.as_ref();
        let table = table.and_then(|s| s.sl_to_vl(node.num_ports, input, port.id.number));
        if port.lane(table, packet.sl).is_none() {
            self.drop(ingress, DropReason::NoVirtualLane);
            return false;
        }
        if !port.info.partition_enforcement_outbound || port.admits(packet.pkey) {
            return true;
        }
        self.drop(egress, DropReason::PkeyOut);
        self.raise_switch_pkey(egress, packet, cx);
        false
    }

    /// Returns the ports that a multicast datagram from `from` reaches by the present tables. Each (switch, port) is entered
    /// once, and no copy leaves by the port where it entered.
    pub(crate) fn forward_multicast(
        &mut self,
        from: usize,
        packet: &MadPacket,
        cx: &mut Cx<'_, impl Sink>,
    ) -> Vec<usize> {
        let mut reached = Vec::new();
        let mut entered = alloc::collections::BTreeSet::new();
        let mut leaving: Vec<usize> = match self.kind(from) {
            PortKind::Management => self.group_ports(from, None, packet.dlid),
            _ => {
                let port = &self.ports[from];
                if !packet.is_vl15() && port.lane(port.sl_to_vl.as_ref(), packet.sl).is_none() {
                    self.drop(from, DropReason::NoVirtualLane);
                    return reached;
                }
                Vec::from([from])
            }
        };
        while let Some(egress) = leaving.pop() {
            let Some(ingress) = self.cross(egress, packet, cx) else { continue };
            if egress == from {
                cx.sink.passed(self.ports[from].id, true, packet);
            }
            if self.kind(ingress) != PortKind::External {
                cx.sink.passed(self.ports[ingress].id, false, packet);
                reached.push(ingress);
                continue;
            }
            if !entered.insert(ingress) {
                self.drop(ingress, DropReason::Loop);
                continue;
            }
            if !self.check_in(ingress, packet, cx) {
                continue;
            }
            let end = self.manager_of(ingress);
            for next in self.group_ports(end, Some(ingress), packet.dlid) {
                if next == end {
                    cx.sink.passed(self.ports[end].id, false, packet);
                    reached.push(end);
                } else if self.check_out(ingress, next, packet, cx) {
                    leaving.push(next);
                }
            }
        }
        reached
    }

    /// Returns the ports by which a switch forwards packets to a multicast LID, except the ingress port.
    pub(crate) fn group_ports(&self, end: usize, ingress: Option<usize>, mlid: Lid) -> Vec<usize> {
        let node = self.node_of(end);
        let ports = node.switch.iter().flat_map(|switch| switch.group(mlid));
        ports.filter_map(|n| node.port(n)).filter(|at| Some(*at) != ingress).collect()
    }
}

fn is_directed(packet: &MadPacket) -> bool {
    packet.mad[1] == MgmtClass::SUBN_DIRECTED.0
}
