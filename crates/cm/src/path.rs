//! Paths: how management datagrams travel between two ports.

use core::net::IpAddr;

use rdmux_transport::attr::AddressVector;
use rdmux_wire::{Gid, Qpn};

/// How a management datagram travels, or travelled: from our QP1 along an address vector.
///
/// | | RoCEv2 | InfiniBand, with GRH | InfiniBand, without |
/// |---|---|---|---|
/// | `local` | our IP address | our GID | the port's default GID |
/// | `av.is_global` | yes | yes | no |
/// | `av.dgid` | the peer's IP address | the peer's GID | zero, or the peer's GID where it is known |
/// | `av.dlid`, `av.sl`, `av.src_path_bits` | 0 | as in the LRH | as in the LRH |
/// | `pkey_index` | 0 | the index of the P_Key | the index of the P_Key |
///
/// Of a datagram that came this is the way back to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadPath {
    /// Our GID, by which the driver also knows the port.
    pub local: Gid,
    /// The way to the peer. The hop limit and the flow label are only for sending; the GID index and the
    /// port of what came may be left out, since `local` says both.
    pub av: AddressVector,
    /// Index of the P_Key in the port's table.
    pub pkey_index: u16,
    /// The peer's queue pair: QP1.
    pub remote_qpn: Qpn,
}

/// Who is at the other end of a path, as packets tell: a GID if they have a GRH, otherwise a LID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// The GID.
    Gid(Gid),
    /// The LID.
    Lid(u16),
}

impl MadPath {
    /// QP1 to QP1 between two IP addresses, as on RoCEv2; hop limit, traffic class and flow label are 0.
    pub fn between(local: IpAddr, remote: IpAddr) -> Self {
        Self {
            local: local.into(),
            av: AddressVector {
                is_global: true,
                dgid: remote.into(),
                port_num: 1,
                ..AddressVector::default()
            },
            pkey_index: 0,
            remote_qpn: Qpn::QP1,
        }
    }

    /// The peer's GID; zero where only its LID is known.
    pub const fn remote(&self) -> Gid {
        self.av.dgid
    }

    /// Who is at the other end.
    pub const fn peer(&self) -> Peer {
        if self.av.is_global { Peer::Gid(self.av.dgid) } else { Peer::Lid(self.av.dlid) }
    }

    /// What the peer sees when a datagram comes along this path between two GIDs, as on RoCEv2: both ends
    /// change places.
    #[must_use]
    pub fn seen_by_peer(&self) -> Self {
        Self { local: self.av.dgid, av: AddressVector { dgid: self.local, ..self.av }, ..*self }
    }

    /// The same path for a reply: with a hop limit of our own, not with what was left of the peer's.
    #[must_use]
    pub(crate) fn reply(&self, hop_limit: u8) -> Self {
        Self { av: AddressVector { hop_limit, ..self.av }, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_without_a_grh_are_told_apart_by_their_lids() {
        let [a, b] = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])];
        let roce = MadPath::between(a, b);
        assert_eq!(roce.peer(), Peer::Gid(b.into()));
        assert_eq!(roce.seen_by_peer(), MadPath::between(b, a));
        let by_lid = |dlid| MadPath {
            av: AddressVector { is_global: false, dlid, sl: 3, src_path_bits: 1, ..roce.av },
            ..roce
        };
        // Whatever is known of the peer's GID, its packets do not say it.
        assert_eq!(by_lid(7).peer(), Peer::Lid(7));
        assert_ne!(by_lid(7).peer(), by_lid(8).peer());
        assert_ne!(by_lid(7).peer(), roce.peer());
        let reply = by_lid(7).reply(64);
        assert_eq!((reply.av.hop_limit, reply.peer()), (64, Peer::Lid(7)));
        assert_eq!((reply.av.sl, reply.av.src_path_bits), (3, 1));
    }
}
