//! Paths: how packets get from one port to another, and how the driver is asked for one.

use core::net::IpAddr;
use core::time::Duration;

use rdmux_transport::attr::AddressVector;
use rdmux_wire::{Gid, Lid, Mtu, Pkey, Qpn, ServiceId};

use crate::address::Addr;

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
    /// The device of [`LocalAddress::device`](crate::LocalAddress::device); which port of it, `av.port_num` says.
    pub device: u32,
    /// Our GID.
    pub local: Gid,
    /// The way to the peer. The hop limit and the flow label are only for sending; the GID index of a received one may be left
    /// out, since `local` says it.
    pub av: AddressVector,
    /// Index of the P_Key in the port's table.
    pub pkey_index: u16,
    /// The peer's queue pair: QP1.
    pub remote_qpn: Qpn,
}

/// Who is at the other end of a path, as packets tell: a GID if they have a GRH, otherwise a LID, which is known in the subnet of
/// one port only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// The GID.
    Gid(Gid),
    /// The LID.
    Lid {
        /// The port of ours.
        port: u8,
        /// The peer's LID.
        lid: u16,
    },
}

impl MadPath {
    /// QP1 to QP1 of device 0 between two IP addresses, as on RoCEv2; hop limit, traffic class and flow label are 0.
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

    /// Our IP address and the peer's, for which the GIDs stand on RoCEv2.
    pub(crate) fn addresses(&self) -> (IpAddr, IpAddr) {
        (self.local.ip(), self.remote().ip())
    }

    /// The peer's GID; zero where only its LID is known.
    pub const fn remote(&self) -> Gid {
        self.av.dgid
    }

    /// Who is at the other end.
    pub const fn peer(&self) -> Peer {
        match self.av.is_global {
            true => Peer::Gid(self.av.dgid),
            false => Peer::Lid { port: self.av.port_num, lid: self.av.dlid },
        }
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

/// A question for the path to a peer, which the driver answers with
/// [`Manager::handle_path`](crate::Manager::handle_path), at once or later.
///
/// On RoCE and iWARP the path follows from the addresses, and the answer is [`by_address`](Self::by_address).
/// InfiniBand asks subnet administration for a path record (IBTA 15.2.5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathQuery {
    /// Which of the id's queries this is; the answer says it again.
    pub attempt: u32,
    /// The device of [`LocalAddress::device`](crate::LocalAddress::device).
    pub device: u32,
    /// Our address.
    pub src: Addr,
    /// The peer's address.
    pub dst: Addr,
    /// The service that the program will ask the peer for, by which a subnet may tell qualities of service apart.
    pub service_id: ServiceId,
    /// The path by the addresses alone, with the traffic class that the program wants.
    pub by_address: Path,
    /// After this the machine gives up by itself and takes no notice of the answer.
    pub timeout: Duration,
}

/// The path from one of our ports to a peer's: a path record, and where its GID and P_Key are in our port's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Our GID.
    pub local: Gid,
    /// Our LID with its path bits; 0 where there are no LIDs.
    pub slid: Lid,
    /// Our LID to which the peer's packets come, which may be another one; a driver may leave it 0 for `slid`.
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
    /// The one that it begins with.
    pub primary: Path,
    /// The one that it may migrate to.
    pub alternate: Option<Path>,
    /// That of the connection manager's own datagrams, if it is another one.
    pub cm: Option<Path>,
}

impl From<Path> for Paths {
    fn from(primary: Path) -> Self {
        Self { primary, alternate: None, cm: None }
    }
}

impl Path {
    /// With what a driver may leave out, and a lifetime that is a code.
    pub(crate) fn normal(self) -> Self {
        let back_lid = if self.back_lid == Lid(0) { self.slid } else { self.back_lid };
        Self { back_lid, packet_lifetime: self.packet_lifetime.min(31), ..self }
    }

    /// How datagrams to QP1 travel along it, by its address vector as the program's options changed it.
    pub(crate) const fn mad_path(&self, device: u32, av: AddressVector) -> MadPath {
        MadPath { device, local: self.local, av, pkey_index: self.pkey_index, remote_qpn: Qpn::QP1 }
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
        assert_eq!(roce.addresses(), (a, b));
        assert_eq!(roce.seen_by_peer(), MadPath::between(b, a));
        let by_lid = |dlid| MadPath {
            av: AddressVector { is_global: false, dlid, sl: 3, src_path_bits: 1, ..roce.av },
            ..roce
        };
        // Whatever is known of the peer's GID, its packets do not say it.
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
