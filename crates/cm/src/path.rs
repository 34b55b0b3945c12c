//! Paths of packets from one port to another, and the driver's path queries.

use core::net::IpAddr;
use core::time::Duration;

use rdmux_transport::attr::AddressVector;
use rdmux_wire::{Gid, Lid, Mtu, Pkey, Qpn, ServiceId};

use crate::address::Addr;

/// The path of a management datagram: from the local QP1 along an address vector.
///
/// | | RoCEv2 | InfiniBand, with GRH | InfiniBand, without |
/// |---|---|---|---|
/// | `local` | the local IP address | the local GID | the port's default GID |
/// | `av.is_global` | yes | yes | no |
/// | `av.dgid` | the peer's IP address | the peer's GID | zero, or the peer's GID where it is known |
/// | `av.dlid`, `av.sl`, `av.src_path_bits` | 0 | as in the LRH | as in the LRH |
/// | `pkey_index` | 0 | the index of the P_Key | the index of the P_Key |
///
/// For a received datagram this is the path back to its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadPath {
    /// The device of [`LocalAddress::device`](crate::LocalAddress::device); `av.port_num` gives the port.
    pub device: u32,
    /// The local GID.
    pub local: Gid,
    /// The address vector to the peer. Hop limit and flow label matter only for sending. The GID index of a received datagram may be
    /// left out, because `local` gives the GID.
    pub av: AddressVector,
    /// Index of the P_Key in the port's table.
    pub pkey_index: u16,
    /// The peer's queue pair: QP1.
    pub remote_qpn: Qpn,
}

/// The other end of a path, as packets identify it: a GID if they have a GRH, otherwise a LID, which is valid in the subnet of
/// one port only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// The GID.
    Gid(Gid),
    /// The LID.
    Lid {
        /// The local port.
        port: u8,
        /// The peer's LID.
        lid: u16,
    },
}

impl MadPath {
    /// Returns the path from QP1 to QP1 of device 0 between two IP addresses, as on RoCEv2; hop limit, traffic class and flow label are 0.
    pub fn between(local: IpAddr, remote: IpAddr) -> Self {
        Self {
            device: 0,
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

    /// Returns the local IP address and the peer's, which the GIDs map on RoCEv2.
    pub(crate) fn addresses(&self) -> (IpAddr, IpAddr) {
        (self.local.ip(), self.remote().ip())
    }

    /// Returns the peer's GID; zero where only its LID is known.
    pub const fn remote(&self) -> Gid {
        self.av.dgid
    }

    /// Returns the other end.
    pub const fn peer(&self) -> Peer {
        match self.av.is_global {
            true => Peer::Gid(self.av.dgid),
            false => Peer::Lid { port: self.av.port_num, lid: self.av.dlid },
        }
    }

    /// Returns the path as the peer sees it when a datagram arrives along this one between two GIDs, as on RoCEv2, with the ends
    /// swapped.
    #[must_use]
    pub fn seen_by_peer(&self) -> Self {
        Self { local: self.av.dgid, av: AddressVector { dgid: self.local, ..self.av }, ..*self }
    }

    /// Returns the path for a reply: with this end's hop limit, not the remainder of the peer's.
    #[must_use]
    pub(crate) fn reply(&self, hop_limit: u8) -> Self {
        Self { av: AddressVector { hop_limit, ..self.av }, ..*self }
    }
}

/// A query for the path to a peer, which the driver answers with
/// [`Manager::handle_path`](crate::Manager::handle_path), at once or later.
///
/// On RoCE and iWARP the path follows from the addresses, and the answer is [`by_address`](Self::by_address).
/// On InfiniBand the driver queries subnet administration for a path record (IBTA 15.2.5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathQuery {
    /// The number of this query among the id's; the answer repeats it.
    pub attempt: u32,
    /// The device of [`LocalAddress::device`](crate::LocalAddress::device).
    pub device: u32,
    /// The local address.
    pub src: Addr,
    /// The peer's address.
    pub dst: Addr,
    /// The service that the program will contact, by which a subnet may distinguish qualities of service.
    pub service_id: ServiceId,
    /// The path by the addresses alone, with the program's traffic class.
    pub by_address: Path,
    /// The time after which the state machine gives up by itself and ignores the answer.
    pub timeout: Duration,
}

/// The path from a local port to a peer's: a path record, and the indexes of its GID and P_Key in the local port's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The local GID.
    pub local: Gid,
    /// The local LID with its path bits; 0 where there are no LIDs.
    pub slid: Lid,
    /// The local LID to which the peer sends, which may be another one; a driver may leave it 0 for `slid`.
    pub back_lid: Lid,
    /// The address vector towards the peer. `dgid` is the peer's GID even where there is no GRH.
    pub av: AddressVector,
    /// The partition.
    pub pkey: Pkey,
    /// Its index in the port's P_Key table.
    pub pkey_index: u16,
    /// Largest payload of a packet.
    pub mtu: Mtu,
    /// Lifetime of a packet; code.
    pub packet_lifetime: u8,
}

/// The paths of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The path at the start.
    pub primary: Path,
    /// The path that the connection may migrate to.
    pub alternate: Option<Path>,
    /// The path of the connection manager's own datagrams, if it differs.
    pub cm: Option<Path>,
}

impl From<Path> for Paths {
    fn from(primary: Path) -> Self {
        Self { primary, alternate: None, cm: None }
    }
}

impl Path {
    /// Fills in the fields that a driver may leave out, and clamps the lifetime to a code.
    pub(crate) fn normal(self) -> Self {
        let back_lid = if self.back_lid == Lid(0) { self.slid } else { self.back_lid };
        Self { back_lid, packet_lifetime: self.packet_lifetime.min(31), ..self }
    }

    /// Returns the path of datagrams to QP1 along this path, with its address vector as changed by the program's options.
    pub(crate) const fn mad_path(&self, device: u32, av: AddressVector) -> MadPath {
        MadPath { device, local: self.local, av, pkey_index: self.pkey_index, remote_qpn: Qpn::QP1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mad_peers_without_grh_are_distinguished_by_port_and_lid() {
        let [a, b] = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])];
        let roce = MadPath::between(a, b);
        assert_eq!(roce.peer(), Peer::Gid(b.into()));
        assert_eq!(roce.addresses(), (a, b));
        assert_eq!(roce.seen_by_peer(), MadPath::between(b, a));
        let by_lid = |dlid| MadPath {
            av: AddressVector { is_global: false, dlid, sl: 3, src_path_bits: 1, ..roce.av },
            ..roce
        };
        // Even if the peer's GID is known, its packets do not carry it.
        assert_eq!(by_lid(7).peer(), Peer::Lid { port: 1, lid: 7 });
        assert_ne!(by_lid(7).peer(), by_lid(8).peer());
        assert_ne!(by_lid(7).peer(), roce.peer());
        let elsewhere = MadPath { av: AddressVector { port_num: 2, ..by_lid(7).av }, ..roce };
        assert_ne!(by_lid(7).peer(), elsewhere.peer(), "another subnet may have that LID, too");
        let reply = by_lid(7).reply(64);
        assert_eq!((reply.av.hop_limit, reply.peer()), (64, by_lid(7).peer()));
        assert_eq!((reply.av.sl, reply.av.src_path_bits), (3, 1));
    }
}
