//! Addresses of packets: built from the records that a program writes, and reported in those that it reads.

use alloc::boxed::Box;

use rdmux_wire::{Gid, Grh, Lid, Pkey, Qkey, Qpn};

use super::{Errno, Ports, UserAddress, UserGrh};
use crate::rmpp::Mad;
use crate::{MadPacket, PortId};

/// The permissive LID: of a port without a LID, and of the next node.
const PERMISSIVE: Lid = Lid(0xffff);

/// The first multicast LID.
const MULTICAST: Lid = Lid(0xc000);

/// A packet without its MAD.
#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope {
    pub(super) slid: Lid,
    pub(super) dlid: Lid,
    sl: u8,
    src_qpn: Qpn,
    pub(super) dst_qpn: Qpn,
    qkey: Qkey,
    pkey: Pkey,
    grh: Option<Grh>,
}

/// The part of an address that identifies a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Peer {
    /// The peer of packets without a global route header.
    Lid(Lid),
    /// The peer of packets with a global route header.
    Gid(Gid),
}

impl Envelope {
    /// Builds the envelope of a packet that a program sends from a queue pair of a port.
    pub(super) fn outgoing(
        port: PortId,
        qpn: Qpn,
        to: &UserAddress,
        ports: &impl Ports,
    ) -> Result<Self, Errno> {
        let lid = ports.lid(port);
        if lid.is_none() && to.grh.is_none() {
            return Err(Errno::Inval);
        }
        let (pkey, qkey) = if qpn == Qpn::QP0 {
            (Pkey::DEFAULT, Qkey(0))
        } else {
            (ports.pkey(port, to.pkey_index).ok_or(Errno::Inval)?, Qkey::QP1)
        };
        let grh = match to.grh {
            None => None,
            Some(grh) => Some(outgoing_grh(port, &grh, ports)?),
        };
        let slid = match lid {
            None => Lid(0),
            Some((Lid(0), _)) => PERMISSIVE,
            Some((Lid(base), lmc)) => Lid(base | u16::from(to.path_bits) & mask(lmc)),
        };
        let dlid = if lid.is_some() { to.lid } else { Lid(0) };
        Ok(Self { slid, dlid, sl: to.sl & 0xf, src_qpn: qpn, dst_qpn: to.qpn, qkey, pkey, grh })
    }

    /// Builds the envelope of an answer to a packet that a port received.
    pub(super) fn answer(port: PortId, to: &MadPacket, ports: &impl Ports) -> Self {
        let own = ports.lid(port).map_or(Lid(0), |(lid, _)| lid);
        let unicast = to.dlid < MULTICAST || to.dlid == PERMISSIVE;
        // Use the port's own key of the partition: the key of a limited member would not reach that member.
        let pkey = ports.pkey_index(port, to.pkey).and_then(|index| ports.pkey(port, index));
        let grh = to.grh.map(|grh| Grh { sgid: grh.dgid, dgid: grh.sgid, hop_limit: 0xff, ..grh });
        Self {
            slid: if unicast { to.dlid } else { own },
            dlid: to.slid,
            sl: to.sl,
            src_qpn: to.dst_qpn,
            dst_qpn: to.src_qpn,
            qkey: if to.dst_qpn == Qpn::QP0 { Qkey(0) } else { Qkey::QP1 },
            pkey: pkey.unwrap_or(to.pkey),
            grh,
        }
    }

    /// Returns the packet with this MAD.
    pub(super) fn packet(&self, mad: Box<Mad>) -> MadPacket {
        let Self { slid, dlid, sl, src_qpn, dst_qpn, qkey, pkey, grh } = *self;
        MadPacket { slid, dlid, sl, src_qpn, dst_qpn, qkey, pkey, grh, mad }
    }

    /// Returns the peer that it is sent to.
    pub(super) fn peer(&self) -> Peer {
        self.grh.map_or(Peer::Lid(self.dlid), |grh| Peer::Gid(grh.dgid))
    }

    /// Returns whether a received `packet` comes from the destination of this envelope and is addressed to its source.
    pub(super) fn is_answered_by(
        &self,
        packet: &MadPacket,
        port: PortId,
        ports: &impl Ports,
    ) -> bool {
        match (&self.grh, &packet.grh) {
            (Some(to), Some(from)) => to.dgid == from.sgid && to.sgid == from.dgid,
            (None, None) => {
                let next = self.dlid == PERMISSIVE || self.dlid == Lid(0);
                let path = |lid| path_bits(port, lid, ports);
                (next || self.dlid == packet.slid) && path(self.slid) == path(packet.dlid)
            }
            _ => false,
        }
    }
}

impl Peer {
    /// The first peer in sort order.
    pub(super) const FIRST: Self = Self::Lid(Lid(0));

    /// Returns the sender of a packet.
    pub(super) fn source(packet: &MadPacket) -> Self {
        packet.grh.map_or(Self::Lid(packet.slid), |grh| Self::Gid(grh.sgid))
    }

    /// Returns the peer whose limits count for this one, which has `lid`: the port, whichever of its GIDs and LIDs a packet has.
    /// All ports are assumed to have the LMC of `port`. Without LIDs it is the peer itself.
    pub(super) fn share(self, lid: Lid, port: PortId, ports: &impl Ports) -> Self {
        ports.lid(port).map_or(self, |(_, lmc)| Self::Lid(Lid(lid.0 & !mask(lmc))))
    }
}

/// Returns the source address of a packet, as reported to a program.
pub(super) fn incoming(port: PortId, packet: &MadPacket, ports: &impl Ports) -> UserAddress {
    UserAddress {
        qpn: packet.src_qpn,
        qkey: Qkey(0),
        lid: packet.slid,
        sl: packet.sl,
        path_bits: path_bits(port, packet.dlid, ports),
        grh: packet.grh.map(|grh| UserGrh {
            gid_index: ports.gid_index(port, grh.dgid).unwrap_or(0),
            gid: grh.sgid,
            hop_limit: grh.hop_limit,
            traffic_class: grh.tclass,
            flow_label: grh.flow_label,
        }),
        pkey_index: match packet.dst_qpn {
            Qpn::QP0 => 0,
            _ => ports.pkey_index(port, packet.pkey).unwrap_or(0),
        },
    }
}

fn outgoing_grh(port: PortId, to: &UserGrh, ports: &impl Ports) -> Result<Grh, Errno> {
    /// BTH 12, DETH 8, MAD 256 and ICRC 4 bytes.
    const PAY_LEN: u16 = 280;
    let sgid = ports.gid(port, to.gid_index).ok_or(Errno::Inval)?;
    Ok(Grh {
        tclass: to.traffic_class,
        flow_label: to.flow_label & 0x000f_ffff,
        pay_len: PAY_LEN,
        next_hdr: Grh::NEXT_BTH,
        hop_limit: to.hop_limit,
        sgid,
        dgid: to.gid,
    })
}

/// Returns the offset of a port's LID from its base LID; 0 for a group's, foreign or permissive LID.
fn path_bits(port: PortId, lid: Lid, ports: &impl Ports) -> u8 {
    let lmc = ports.lid(port).map_or(0, |(_, lmc)| lmc);
    if lid >= MULTICAST { 0 } else { (lid.0 & mask(lmc)).to_be_bytes()[1] }
}

/// Returns the mask of the path bits for an LMC.
fn mask(lmc: u8) -> u16 {
    (1 << lmc.min(7)) - 1
}
