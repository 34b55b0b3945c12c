//! Reception: the agents of a port answer a datagram, or programs get it.

use rdmux_wire::mad::{MadHeader, Method, MgmtClass, status};
use rdmux_wire::sm::{CapabilityMask, SmInfo, Trap};
use rdmux_wire::{Lid, Qkey, Qpn};

use crate::counters::DropReason;
use crate::forward::Arrival;
use crate::packet::MadPacket;
use crate::sink::Sink;
use crate::subnet::{Cx, Subnet};
use crate::{mkey, pma, sma};

/// The class version: 1 for subnet and performance management.
const CLASS_VERSION: u8 = 1;

impl Subnet {
    /// Receives a datagram at its destination. Returns the answer of an agent, addressed to the requester.
    pub(crate) fn receive(
        &mut self,
        arrival: Arrival,
        packet: MadPacket,
        cx: &mut Cx<'_, impl Sink>,
    ) -> Option<MadPacket> {
        let at = arrival.at;
        let is_qp0 = packet.dst_qpn == Qpn::QP0;
        if packet.is_vl15() != is_qp0 {
            self.drop(at, DropReason::WrongQueuePair);
            return None;
        }
        let Ok(header) = MadHeader::parse(&packet.mad[..]) else {
            self.drop(at, DropReason::NotUnderstood);
            return None;
        };
        if is_qp0 {
            self.receive_smp(arrival, header, packet, cx)
        } else if self.check_keys(at, &packet, cx) {
            self.receive_gmp(at, header, packet, cx)
        } else {
            None
        }
    }

    /// Handles a subnet management datagram on QP0.
    fn receive_smp(
        &mut self,
        arrival: Arrival,
        header: MadHeader,
        mut packet: MadPacket,
        cx: &mut Cx<'_, impl Sink>,
    ) -> Option<MadPacket> {
        let at = arrival.at;
        if !header.mgmt_class.is_subnet_management() {
            self.drop(at, DropReason::NotUnderstood);
            return None;
        }
        if !matches!(header.method, Method::GET | Method::SET | Method::TRAP_REPRESS) {
            self.deliver(at, packet, cx);
            return None;
        }
        if header.class_version != CLASS_VERSION {
            let asked = header.method != Method::TRAP_REPRESS;
            return asked.then(|| self.smp_answer(at, header, packet, status::BAD_VERSION));
        }
        if !self.check_mkey(at, &header, &packet, cx) {
            self.drop(at, DropReason::WrongMkey);
            return None;
        }
        if header.method == Method::TRAP_REPRESS {
            if !self.repress(at, &header) {
                // The trap was sent by a program.
                mkey::hide(&mut packet.mad[..]);
                self.deliver(at, packet, cx);
            }
            return None;
        }
        let has_sm = self.ports[at].info.capability_mask.contains(CapabilityMask::SM);
        if header.attr_id == SmInfo::ATTR_ID && has_sm {
            mkey::hide(&mut packet.mad[..]);
            self.deliver(at, packet, cx);
            return None;
        }
        let request = sma::Request::new(arrival, &header, &packet.mad);
        let status = sma::answer(self, &request, &mut packet.mad, cx);
        Some(self.smp_answer(at, header, packet, status))
    }

    /// Turns a request, whose data is already the answer's, into the answer.
    fn smp_answer(
        &self,
        at: usize,
        header: MadHeader,
        mut packet: MadPacket,
        status: u16,
    ) -> MadPacket {
        const DR_DLID: usize = 34;
        let directed = header.mgmt_class == MgmtClass::SUBN_DIRECTED;
        let direction = if directed { status::DIRECTION } else { 0 };
        let answer = MadHeader { method: Method::GET_RESP, status: status | direction, ..header };
        answer.emit(&mut packet.mad[..]);
        let permissive = packet.mad[DR_DLID..DR_DLID + 2] == [0xff; 2];
        if directed && permissive {
            (packet.slid, packet.dlid) = (Lid::PERMISSIVE, Lid::PERMISSIVE);
            // The answer starts at the end of the directed route.
            return packet;
        }
        self.turn_around(at, &mut packet);
        packet
    }

    /// Addresses an answer to the requester. Its source is the LID that was addressed, including path bits.
    fn turn_around(&self, at: usize, packet: &mut MadPacket) {
        let port = &self.ports[at];
        let own = if port.owns(packet.dlid) { packet.dlid } else { port.source() };
        (packet.slid, packet.dlid) = (own, packet.slid);
        (packet.src_qpn, packet.dst_qpn) = (packet.dst_qpn, packet.src_qpn);
        if let Some(grh) = &mut packet.grh {
            (grh.sgid, grh.dgid) = (grh.dgid, grh.sgid);
        }
    }

    /// Returns whether P_Key and, for QP1, Q_Key admit a datagram (IBTA 10.9.3, 10.2.4).
    fn check_keys(&mut self, at: usize, packet: &MadPacket, cx: &mut Cx<'_, impl Sink>) -> bool {
        let port = &mut self.ports[at];
        if !port.admits(packet.pkey) {
            port.info.pkey_violations = port.info.pkey_violations.saturating_add(1);
            self.drop(at, DropReason::WrongPkey);
            self.raise_bad_key(at, packet, packet.pkey.0.into(), Trap::Pkey, cx);
            return false;
        }
        if packet.dst_qpn == Qpn::QP1 && packet.qkey != Qkey::QP1 {
            port.info.qkey_violations = port.info.qkey_violations.saturating_add(1);
            self.drop(at, DropReason::WrongQkey);
            self.raise_bad_key(at, packet, packet.qkey.0, Trap::Qkey, cx);
            return false;
        }
        true
    }

    /// Handles a general services datagram on QP1 or a program's queue pair.
    fn receive_gmp(
        &mut self,
        at: usize,
        header: MadHeader,
        mut packet: MadPacket,
        cx: &mut Cx<'_, impl Sink>,
    ) -> Option<MadPacket> {
        let asked = matches!(header.method, Method::GET | Method::SET);
        let is_own = packet.dst_qpn == Qpn::QP1 && asked;
        let status = if is_own && header.mgmt_class == MgmtClass::PERF {
            match header.class_version {
                CLASS_VERSION => pma::answer(self, at, &header, &mut packet.mad),
                _ => status::BAD_VERSION,
            }
        } else if is_own && !self.ports[at].attached {
            // Without programs the answer is that of a host whose programs have no agent for the class.
            status::UNSUPPORTED_METHOD_ATTRIBUTE
        } else {
            self.deliver(at, packet, cx);
            return None;
        };
        MadHeader { method: Method::GET_RESP, status, ..header }.emit(&mut packet.mad[..]);
        self.turn_around(at, &mut packet);
        // The requester, as a limited member, would not admit its own key.
        packet.pkey = self.ports[at].own_key(packet.pkey);
        packet.qkey = Qkey::QP1;
        Some(packet)
    }

    fn deliver(&self, at: usize, packet: MadPacket, cx: &mut Cx<'_, impl Sink>) {
        cx.sink.deliver(self.ports[at].id, packet);
    }
}
