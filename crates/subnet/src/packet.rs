//! Management datagrams with their addresses, and the names of nodes and ports.

use alloc::boxed::Box;
use core::fmt;

use rdmux_wire::mad::MAD_LEN;
use rdmux_wire::{Grh, Lid, Pkey, Qkey, Qpn};

/// The index of a node in its subnet, in the order of the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NodeId(pub u32);

/// A port of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PortId {
    /// The node.
    pub node: NodeId,
    /// The port's number: from 1, or 0 for the management port of a switch.
    pub number: u8,
}

impl PortId {
    /// Names port `number` of node `node`.
    pub const fn new(node: NodeId, number: u8) -> Self {
        Self { node, number }
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port {}", self.node, self.number)
    }
}

/// A management datagram with its addresses, as it travels from port to port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadPacket {
    /// The source LID; 0xffff while the sender has none.
    pub slid: Lid,
    /// The destination LID, a multicast LID, or 0xffff for the next node.
    pub dlid: Lid,
    /// Service level, 0 to 15; not meaningful from QP0.
    pub sl: u8,
    /// QP0, QP1, or a program's queue pair.
    pub src_qpn: Qpn,
    /// QP0, QP1, or a program's queue pair.
    pub dst_qpn: Qpn,
    /// Queue key; not meaningful on QP0.
    pub qkey: Qkey,
    /// Partition key; not meaningful on QP0.
    pub pkey: Pkey,
    /// The global route header, if it has one.
    pub grh: Option<Grh>,
    /// The datagram itself.
    pub mad: Box<[u8; MAD_LEN]>,
}

impl MadPacket {
    /// Creates a subnet management packet, from QP0 to QP0, whose queue key and partition key have no meaning (IBTA 3.5.8.1).
    /// A sender without a LID, 0, uses the permissive LID (IBTA 14.2.1.1).
    pub fn smp(slid: Lid, dlid: Lid, sl: u8, mad: Box<[u8; MAD_LEN]>) -> Self {
        Self {
            slid: if slid == Lid::NONE { Lid::PERMISSIVE } else { slid },
            dlid,
            sl,
            src_qpn: Qpn::QP0,
            dst_qpn: Qpn::QP0,
            qkey: Qkey(0),
            pkey: Pkey::DEFAULT,
            grh: None,
            mad,
        }
    }

    /// Returns whether the packet uses virtual lane 15, which only QP0 uses (IBTA 3.5.8.1).
    pub fn is_vl15(&self) -> bool {
        self.src_qpn == Qpn::QP0
    }

    /// Returns the length on the wire in 4-byte words, from the LRH through the ICRC, as data counters count it.
    pub fn words(&self) -> u64 {
        const PLAIN: usize = 8 + 12 + 8 + MAD_LEN + 4;
        let bytes = PLAIN + if self.grh.is_some() { Grh::LEN } else { 0 };
        (bytes / 4) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smp_of_a_port_without_lid_has_the_permissive_slid_on_qp0() {
        let packet = MadPacket::smp(Lid::NONE, Lid(5), 3, Box::new([0; MAD_LEN]));
        assert_eq!((packet.slid, packet.dlid, packet.sl), (Lid::PERMISSIVE, Lid(5), 3));
        assert!(packet.is_vl15() && packet.dst_qpn == Qpn::QP0);
        assert_eq!(MadPacket::smp(Lid(7), Lid(5), 0, packet.mad).slid, Lid(7));
    }

    #[test]
    fn a_datagram_counts_as_72_words_and_10_more_with_grh() {
        let mut packet = MadPacket {
            slid: Lid(1),
            dlid: Lid(2),
            sl: 0,
            src_qpn: Qpn::QP1,
            dst_qpn: Qpn::QP1,
            qkey: Qkey::QP1,
            pkey: Pkey::DEFAULT,
            grh: None,
            mad: Box::new([0; MAD_LEN]),
        };
        assert_eq!(packet.words(), 72);
        packet.grh = Grh::parse(&[0x60; Grh::LEN]).ok();
        assert_eq!(packet.words(), 82);
    }
}
