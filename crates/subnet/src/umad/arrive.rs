//! Handling of MADs that a port receives.

use alloc::vec::Vec;

use rdmux_wire::mad::{MadHeader, Method, MgmtClass, status};
use rdmux_wire::{Qpn, Rmpp};

use super::address::{self, Envelope};
use super::sends::SendId;
use super::write::is_response;
use super::{Agent, AgentNumber, FileId, Ports, Umad, UmadSink, UserMad};
use crate::{MadPacket, PortId, Time};

/// A packet for an agent.
pub(super) struct Inbound<'a> {
    pub(super) number: AgentNumber,
    pub(super) agent: Agent,
    pub(super) header: MadHeader,
    pub(super) packet: &'a MadPacket,
    /// Whether the packet is a response.
    pub(super) response: bool,
}

impl Umad {
    /// Handles a MAD for QP0 or QP1 of a port that none of the port's own agents answers.
    ///
    /// A response, or TrapRepress, goes to the agent whose number is in the upper half of the TID, if a request with this
    /// class and peer (for directed-route SMPs: with this class) is outstanding there. A request goes to the owner of its
    /// class, version, OUI and method. Get and Set without an owner are answered with status 0x000c, as the specification
    /// requires. Everything else is dropped and counted.
    pub fn arrived(
        &mut self,
        now: Time,
        port: PortId,
        packet: &MadPacket,
        ports: &impl Ports,
        sink: &mut impl UmadSink,
    ) {
        self.counters.received += 1;
        let Ok(header) = MadHeader::parse(&packet.mad[..]) else {
            self.counters.bad_version += 1;
            return;
        };
        let class = header.mgmt_class;
        let qpn = if class.is_subnet_management() { Qpn::QP0 } else { Qpn::QP1 };
        if packet.dst_qpn != qpn {
            self.counters.bad_qp += 1;
            return;
        }
        let response = is_response(class, header.method, header.attr_mod.to_be_bytes()[3]);
        match self.addressee(port, &header, packet, response) {
            Some((number, agent)) => {
                let inbound = Inbound { number, agent, header, packet, response };
                self.take(now, &inbound, ports, sink);
                self.settle(agent.file);
            }
            None if response => self.counters.no_request += 1,
            None => self.refuse(port, &header, packet, ports, sink),
        }
    }

    fn addressee(
        &self,
        port: PortId,
        header: &MadHeader,
        packet: &MadPacket,
        response: bool,
    ) -> Option<(AgentNumber, Agent)> {
        let number = if response {
            u32::try_from(header.tid >> 32).ok()?
        } else {
            self.owners.owner(port, header, &packet.mad)?
        };
        let agent = *self.agents.get(&number)?;
        (agent.port == port && agent.qpn() == packet.dst_qpn).then_some((number, agent))
    }

    fn take(
        &mut self,
        now: Time,
        inbound: &Inbound<'_>,
        ports: &impl Ports,
        sink: &mut impl UmadSink,
    ) {
        let Inbound { agent, header, packet, response, .. } = inbound;
        let active =
            Rmpp::data_offset(header.mgmt_class).is_some() && Rmpp::of(&packet.mad).is_active();
        if active && agent.what.reassembles() {
            self.take_rmpp(now, inbound, ports, sink);
        } else if !response || self.finish_request(inbound, ports) || active {
            // A program that does RMPP itself gets all packets.
            self.deliver(inbound, packet.mad.to_vec(), ports, sink);
        } else {
            self.counters.no_request += 1;
        }
    }

    /// Ends the request that this packet answers. Returns whether there is one.
    pub(super) fn finish_request(&mut self, inbound: &Inbound<'_>, ports: &impl Ports) -> bool {
        let Some(id) = self.request_of(inbound, ports) else { return false };
        let open = self.files.get_mut(&inbound.agent.file);
        open.and_then(|open| open.sends.remove(id)).is_some()
    }

    /// Returns the request that this packet answers.
    pub(super) fn request_of(&self, inbound: &Inbound<'_>, ports: &impl Ports) -> Option<SendId> {
        let Inbound { number, agent, header, packet, .. } = inbound;
        let class = header.mgmt_class;
        let open = self.files.get(&agent.file)?;
        let mut requests = open.sends.with_tid(class.0, false, header.tid);
        let answered = requests.find(|(_, pending)| {
            pending.agent == *number
                && (class == MgmtClass::SUBN_DIRECTED
                    || pending.envelope.is_answered_by(packet, agent.port, ports))
        });
        answered.map(|(id, _)| id)
    }

    /// Delivers a whole MAD to the program.
    pub(super) fn deliver(
        &mut self,
        inbound: &Inbound<'_>,
        data: Vec<u8>,
        ports: &impl Ports,
        sink: &mut impl UmadSink,
    ) {
        let Inbound { agent, packet, .. } = inbound;
        let address = address::incoming(agent.port, packet, ports);
        let record =
            UserMad { agent: agent.slot, status: 0, timeout_ms: 0, retries: 0, address, data };
        self.give(agent.file, record, sink);
    }

    /// Delivers a record to a file, and counts it.
    pub(super) fn give(&mut self, file: FileId, record: UserMad, sink: &mut impl UmadSink) {
        self.counters.delivered += 1;
        sink.readable(file, record);
    }

    /// Answers a request that has no owner, or drops it.
    fn refuse(
        &mut self,
        port: PortId,
        header: &MadHeader,
        packet: &MadPacket,
        ports: &impl Ports,
        sink: &mut impl UmadSink,
    ) {
        const UNSUPPORTED: u16 = status::UNSUPPORTED_METHOD_ATTRIBUTE;
        if header.method != Method::GET && header.method != Method::SET {
            self.counters.no_owner += 1;
            return;
        }
        let directed = header.mgmt_class == MgmtClass::SUBN_DIRECTED;
        let code = if directed { UNSUPPORTED | status::DIRECTION } else { UNSUPPORTED };
        let mut mad = packet.mad.clone();
        MadHeader { method: Method::GET_RESP, status: code, ..*header }.emit(&mut mad[..]);
        self.counters.unsupported += 1;
        self.counters.sent += 1;
        sink.transmit(port, Envelope::answer(port, packet, ports).packet(mad));
    }
}
