//! The oracle: finds out by the switches' tables of this moment what an adapter and switches with cables would do with one
//! packet. It shares no code with [`rdmux_subnet::ways`], nor with the forwarding of management datagrams.

use std::collections::{BTreeSet, VecDeque};

use rdmux_subnet::{MadPacket, PortEvent, PortId, PortView, Sink, Subnet, Time};
use rdmux_wire::mad::{MadHeader, Method};
use rdmux_wire::sm::{Attribute, PortState, SlToVlTable};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Lid, Mtu, Pkey};

use super::world::Inbox;

/// The longest route: a longer one has a loop.
const MOST_LINKS: usize = 1024;

/// The transaction ID of the oracle's queries.
const OWN_TID: u64 = 0x0dac_1e00;

/// The headers of a packet that the fabric examines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Headers {
    pub(super) dlid: Lid,
    pub(super) sl: u8,
    pub(super) pkey: Pkey,
    /// Bytes of payload.
    pub(super) payload: usize,
}

/// Walks through a subnet.
pub(super) struct Oracle<'a> {
    pub(super) subnet: &'a mut Subnet,
    pub(super) inbox: &'a mut Inbox,
    pub(super) now: Time,
}

impl Oracle<'_> {
    /// Returns the port that a packet reaches from an adapter's port to a unicast LID.
    pub(super) fn unicast(&mut self, from: PortId, packet: &Headers) -> Option<PortId> {
        if !self.may_send(from, packet) {
            return None;
        }
        if owns(self.view(from), packet.dlid) {
            return Some(from);
        }
        let mut egress = self.has_lane(from, 0, packet.sl).then_some(from)?;
        for _ in 0..MOST_LINKS {
            let ingress = self.link(egress, packet)?;
            let end = self.end_of(ingress);
            if owns(self.view(end), packet.dlid) {
                return self.enters(ingress, packet).then_some(end);
            }
            if end == ingress || !self.enters(ingress, packet) {
                return None;
            }
            let number = *self.subnet.routes(ingress.node, packet.dlid).first()?;
            if number == 0 || number == ingress.number {
                return None;
            }
            egress = self.leaves(ingress, number, packet)?;
        }
        None
    }

    /// Returns the ports that get a copy of a packet from an adapter's port to a multicast LID, once per copy.
    pub(super) fn multicast(&mut self, from: PortId, packet: &Headers) -> Vec<PortId> {
        let mut reached = Vec::new();
        if !(self.may_send(from, packet) && self.has_lane(from, 0, packet.sl)) {
            return reached;
        }
        let mut leaving = VecDeque::from([from]);
        let mut entered = BTreeSet::new();
        while let Some(egress) = leaving.pop_front() {
            let Some(ingress) = self.link(egress, packet) else { continue };
            let end = self.end_of(ingress);
            if end == ingress {
                reached.push(end);
                continue;
            }
            if !entered.insert(ingress) || !self.enters(ingress, packet) {
                continue;
            }
            for number in self.subnet.routes(ingress.node, packet.dlid) {
                if number == 0 {
                    reached.push(end);
                } else if number != ingress.number {
                    leaving.extend(self.leaves(ingress, number, packet));
                }
            }
        }
        reached
    }

    /// Returns whether a port sends a packet at all.
    pub(super) fn may_send(&self, from: PortId, packet: &Headers) -> bool {
        let view = self.view(from);
        let key = packet.pkey;
        view.state() == PortState::ACTIVE
            && view.lid().is_unicast()
            && key.0 & 0x7fff != 0
            && view.pkeys().contains(&key)
            && packet.payload <= bytes(view.info().neighbor_mtu)
    }

    /// Returns whether a port admits a packet with these LIDs and this P_Key now.
    pub(super) fn admits(&self, at: PortId, slid: Lid, dlid: Lid, pkey: Pkey) -> bool {
        let view = self.view(at);
        let same = |own: &Pkey| own.0 & 0x7fff == pkey.0 & 0x7fff;
        let full = |own: &Pkey| (own.0 | pkey.0) & 0x8000 != 0;
        view.state() == PortState::ACTIVE
            && view.lid().is_unicast()
            && slid.is_unicast()
            && (dlid.is_multicast() || owns(view, dlid))
            && pkey.0 & 0x7fff != 0
            && view.pkeys().iter().any(|own| same(own) && full(own))
    }

    /// Crosses a cable to the port at its other end.
    fn link(&self, egress: PortId, packet: &Headers) -> Option<PortId> {
        let ingress = self.subnet.peer(egress)?;
        let (out, into) = (self.view(egress), self.view(ingress));
        // An armed port becomes active with the first packet.
        let takes = [PortState::ACTIVE, PortState::ARMED].contains(&into.state());
        let mtu = out.info().neighbor_mtu.min(into.info().mtu_cap);
        let passes = out.state() == PortState::ACTIVE && takes && packet.payload <= bytes(mtu);
        passes.then_some(ingress)
    }

    /// Returns whether a node admits a packet that enters by a port.
    fn enters(&self, ingress: PortId, packet: &Headers) -> bool {
        let view = self.view(ingress);
        let same = |own: &Pkey| own.0 & 0x7fff == packet.pkey.0 & 0x7fff;
        !view.info().partition_enforcement_inbound || view.pkeys().iter().any(same)
    }

    /// Leaves a switch.
    fn leaves(&mut self, ingress: PortId, number: u8, packet: &Headers) -> Option<PortId> {
        let egress = PortId { node: ingress.node, number };
        self.subnet.port(egress)?;
        if !self.has_lane(egress, ingress.number, packet.sl) {
            return None;
        }
        let view = self.view(egress);
        let key = packet.pkey;
        let fits = |own: &Pkey| own.0 & 0x7fff == key.0 & 0x7fff && (own.0 | key.0) & 0x8000 != 0;
        let passes = !view.info().partition_enforcement_outbound || view.pkeys().iter().any(fits);
        passes.then_some(egress)
    }

    /// Returns whether a service level has a virtual lane out of a port.
    fn has_lane(&mut self, egress: PortId, input: u8, sl: u8) -> bool {
        let lanes = self.view(egress).info().operational_vls.count().max(1);
        let end = self.end_of(egress);
        let is_switch = end != egress;
        let output = if is_switch { egress.number } else { 0 };
        let table = self.ask(end, u32::from(input) << 8 | u32::from(output));
        table.is_some_and(|table| table.vls[usize::from(sl & 0xf)].0 < lanes)
    }

    /// Reads an SL-to-VL table, as a program on the node would.
    fn ask(&mut self, at: PortId, modifier: u32) -> Option<SlToVlTable> {
        let mut smp = Smp::directed(Method::GET, SlToVlTable::ATTR_ID, modifier, &[]);
        smp.header.tid = OWN_TID;
        let packet = MadPacket::smp(Lid::NONE, Lid::PERMISSIVE, 0, Box::new(smp.to_bytes()));
        let mut asker = Asker { answer: None, inbox: self.inbox };
        self.subnet.send(self.now, at, packet, &mut asker);
        match Smp::parse(&asker.answer?.mad[..]).ok()?.attribute()? {
            Attribute::SlToVlTable(table) => Some(table),
            _ => None,
        }
    }

    /// Returns the port whose LID a port uses: port 0 of a switch, or the port itself.
    fn end_of(&self, port: PortId) -> PortId {
        let zero = PortId { number: 0, ..port };
        if self.subnet.port(zero).is_some() { zero } else { port }
    }

    fn view(&self, port: PortId) -> PortView<'_> {
        self.subnet.port(port).expect("a walk meets ports that exist")
    }
}

/// Returns whether a LID belongs to a port.
fn owns(view: PortView<'_>, lid: Lid) -> bool {
    let count = 1_u32 << view.lmc();
    let first = u32::from(view.lid().0) / count * count;
    view.lid() != Lid::NONE && (first..first + count).contains(&u32::from(lid.0))
}

fn bytes(mtu: u8) -> usize {
    Mtu::from_code(mtu).unwrap_or(Mtu::M256).bytes() as usize
}

/// Captures the answer to a query, and passes everything else on.
struct Asker<'a> {
    answer: Option<MadPacket>,
    inbox: &'a mut Inbox,
}

impl Sink for Asker<'_> {
    fn deliver(&mut self, port: PortId, packet: MadPacket) {
        if MadHeader::parse(&packet.mad[..]).is_ok_and(|header| header.tid == OWN_TID) {
            self.answer = Some(packet);
        } else {
            self.inbox.deliver(port, packet);
        }
    }

    fn port_event(&mut self, port: PortId, event: PortEvent) {
        self.inbox.port_event(port, event);
    }
}
