//! Copies of the management datagrams of ports, for captures: those of programs and of the ports' own agents.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use rdmux_link::capture::{FrameHeader, FrameKind};
use rdmux_subnet::{MadPacket, PortId};
use rdmux_wire::{Bth, Deth, IbPacket, Lrh, Opcode, Packet, Psn};

use super::connection::{ConnectionId, Part};
use super::core::{Core, Ends, watch};
use super::counters::Count;
use crate::proto::{Failure, PortRef};

/// Length of a datagram's packet in bytes: LRH, GRH, BTH, DETH, 256 bytes, ICRC and VCRC.
const MAX_PACKET: usize = 8 + 40 + 12 + 8 + 256 + 4 + 2;

/// The virtual lane of subnet management (IBTA 3.5.8.1).
const MANAGEMENT_LANE: u8 = 15;

/// The captured ports with their number of captures, and the frames that were captured.
#[derive(Debug, Default)]
pub(super) struct Captured {
    ports: BTreeMap<PortId, usize>,
    frames: Vec<(PortId, Vec<u8>)>,
}

impl Captured {
    /// Captures a datagram that a port sent or received, if the port is captured.
    #[inline]
    pub(super) fn passed(&mut self, port: PortId, sent: bool, packet: &MadPacket) {
        if !self.ports.is_empty() && self.ports.contains_key(&port) {
            self.frames.push((port, frame(sent, packet)));
        }
    }

    fn begin(&mut self, port: PortId) {
        *self.ports.entry(port).or_default() += 1;
    }

    fn end(&mut self, port: PortId) {
        if let Some(count) = self.ports.get_mut(&port) {
            *count -= 1;
            if *count == 0 {
                self.ports.remove(&port);
            }
        }
    }
}

/// Makes the frame of a datagram.
fn frame(sent: bool, mad: &MadPacket) -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let header = FrameHeader { sent, memory: false, kind: FrameKind::InfiniBand, time };
    let vl = if mad.is_vl15() { MANAGEMENT_LANE } else { 0 };
    let lrh = Lrh { vl, sl: mad.sl & 0xf, slid: mad.slid, dlid: mad.dlid, ..Lrh::DEFAULT };
    let mut bth = Bth::new(Opcode::UD_SEND_ONLY, mad.dst_qpn, Psn::new(0));
    bth.pkey = mad.pkey;
    let mut packet = Packet::new(bth, &mad.mad[..]);
    packet.deth = Some(Deth { qkey: mad.qkey, src_qpn: mad.src_qpn });
    let mut bytes = header.to_bytes().to_vec();
    bytes.resize(FrameHeader::LEN + MAX_PACKET, 0);
    let len = IbPacket { lrh, grh: mad.grh, packet }.emit(&mut bytes[FrameHeader::LEN..]);
    bytes.truncate(FrameHeader::LEN + len);
    bytes
}

impl Core {
    /// Starts a capture of a port for a client: the owner of the fabric, root, or the user whose host has the port,
    /// until that host releases it.
    pub(super) fn capture(&mut self, id: ConnectionId, port: &PortRef) -> Result<(), Ends> {
        let found = self.find_port(port).and_then(|at| {
            let may = self.connections.get(id).is_some_and(|c| self.may_capture(c.uid, at));
            let why = "only the fabric's owner, root, and the owner of the attached host may capture its datagrams";
            if may { Ok(at) } else { Err(Failure::new(libc::EPERM, why)) }
        });
        match found {
            Ok(at) => {
                self.become_part(id, Part::Capture(at));
                if let Some(connection) = self.connections.get_mut(id) {
                    connection.out.limit(self.files.unread.none(connection.uid));
                }
                self.world.captured().begin(at);
                self.welcome(id, Ok(()))
            }
            Err(failure) => self.welcome::<()>(id, Err(failure)),
        }
    }

    fn may_capture(&self, uid: u32, port: PortId) -> bool {
        let owner = rustix::process::geteuid().as_raw();
        let holder = self.attachments.holder(port).and_then(|id| self.connections.get(id));
        uid == owner || uid == 0 || holder.is_some_and(|holder| holder.uid == uid)
    }

    /// Ends the captures of a port by users who may no longer capture it.
    pub(super) fn end_captures_of_others(&mut self, port: PortId) {
        // They still get the frames that were captured before.
        self.pass_captured();
        let captures = |part: &Part| matches!(part, Part::Capture(at) if *at == port);
        let others = self.connections.iter().filter(|(_, c)| captures(&c.part));
        let others = others.filter(|(_, c)| !self.may_capture(c.uid, port));
        for id in others.map(|(id, _)| id).collect::<Vec<_>>() {
            self.close(id, Ends::Closed);
        }
    }

    /// Records the end of a capture of a port.
    pub(super) fn end_capture(&mut self, port: PortId) {
        self.world.captured().end(port);
    }

    /// Passes on the captured frames.
    #[inline]
    pub(super) fn pass_captured(&mut self) {
        if !self.world.captured().frames.is_empty() {
            self.pass_all();
        }
    }

    fn pass_all(&mut self) {
        let frames = std::mem::take(&mut self.world.captured().frames);
        let is_reader =
            |part: &Part| if let Part::Capture(port) = part { Some(*port) } else { None };
        let readers: Vec<_> =
            self.connections.iter().filter_map(|(id, c)| Some((id, is_reader(&c.part)?))).collect();
        for (id, port) in readers {
            let Some(connection) = self.connections.get_mut(id) else { continue };
            let mut dropped = 0;
            for (_, frame) in frames.iter().filter(|(at, _)| *at == port) {
                if connection.out.has_room(frame.len()) {
                    connection.out.push(frame);
                } else {
                    dropped += 1;
                }
            }
            // The poller reports when a client is gone.
            let _ = connection.out.try_flush(&connection.socket);
            watch(&self.poller, id, connection);
            (0..dropped).for_each(|_| self.count(Count::CaptureDrops));
        }
    }
}

#[cfg(test)]
mod tests {
    use rdmux_subnet::NodeId;
    use rdmux_wire::mad::MAD_LEN;
    use rdmux_wire::{Grh, Lid, Pkey, Qkey, Qpn, vcrc};

    use super::*;

    #[test]
    fn captured_frame_has_lrh_grh_bth_deth_and_vcrc_of_the_mad() {
        let mut mad = MadPacket::smp(Lid(3), Lid(7), 2, Box::new([5; MAD_LEN]));
        let read = |mad: &MadPacket| {
            let bytes = frame(true, mad);
            let (header, packet) = FrameHeader::parse(&bytes).expect("a frame");
            assert!(header.sent && header.kind == FrameKind::InfiniBand && header.time > 0);
            assert!(vcrc::check(packet));
            let packet = IbPacket::parse(packet).expect("a packet");
            assert_eq!(packet.packet.payload, &mad.mad[..]);
            (packet.lrh, packet.grh, packet.packet.bth, packet.packet.deth)
        };
        let (lrh, grh, bth, _) = read(&mad);
        assert_eq!((lrh.vl, lrh.sl, lrh.slid, lrh.dlid), (15, 2, Lid(3), Lid(7)));
        assert_eq!((grh, bth.dest_qpn), (None, Qpn::QP0));
        (mad.src_qpn, mad.dst_qpn, mad.qkey) = (Qpn::new(9), Qpn::QP1, Qkey::QP1);
        mad.pkey = Pkey(0x8001);
        mad.grh = Grh::parse(&[0x60; Grh::LEN]).ok();
        let (lrh, grh, bth, deth) = read(&mad);
        assert_eq!((lrh.vl, bth.pkey, bth.dest_qpn), (0, Pkey(0x8001), Qpn::QP1));
        assert_eq!(deth, Some(Deth { qkey: Qkey::QP1, src_qpn: Qpn::new(9) }));
        assert_eq!(grh.map(|grh| grh.sgid), mad.grh.map(|grh| grh.sgid));
    }

    #[test]
    fn only_packets_of_captured_ports_are_copied() {
        let port = PortId::new(NodeId(1), 1);
        let mad = MadPacket::smp(Lid(3), Lid(7), 2, Box::new([5; MAD_LEN]));
        let mut captured = Captured::default();
        let copies = |captured: &mut Captured| {
            captured.passed(port, true, &mad);
            captured.passed(PortId::new(NodeId(2), 1), true, &mad);
            std::mem::take(&mut captured.frames).len()
        };
        assert_eq!(copies(&mut captured), 0);
        captured.begin(port);
        captured.begin(port);
        assert_eq!(copies(&mut captured), 1);
        captured.end(port);
        assert_eq!(copies(&mut captured), 1);
        captured.end(port);
        assert_eq!(copies(&mut captured), 0);
    }
}
