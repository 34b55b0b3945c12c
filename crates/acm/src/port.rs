//! Ports and endpoints, as the driver describes them.

use alloc::vec::Vec;
use core::time::Duration;

use rdmux_wire::acm::Address;
use rdmux_wire::sa::{PathRecord, Rate, Selector};
use rdmux_wire::{Gid, Guid, Lid, Mtu, Pkey, Qpn};

use crate::PortId;

/// The kind of network of a port, which determines how addresses are resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortKind {
    /// InfiniBand: by the multicast group, and by subnet administration.
    InfiniBand,
    /// RoCE: by the operating system. GIDs are IP addresses.
    Roce,
    /// iWARP: by the operating system. There are no GIDs; paths have IP addresses in their place.
    Iwarp,
}

impl PortKind {
    /// Returns whether the operating system resolves the addresses.
    pub const fn is_ip(self) -> bool {
        matches!(self, Self::Roce | Self::Iwarp)
    }
}

/// A port. [`Machine::set_port`](crate::Machine::set_port) compares it with the previous description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The network.
    pub kind: PortKind,
    /// Whether the port is active.
    pub is_active: bool,
    /// The GUID of the port's device.
    pub device_guid: Guid,
    /// The port's number, from 1.
    pub number: u8,
    /// The number of ports of the device.
    pub count: u8,
    /// The LID.
    pub lid: Lid,
    /// The number of path bits, the low bits of the LID.
    pub lmc: u8,
    /// The subnet manager's LID.
    pub sm_lid: Lid,
    /// The service level to it.
    pub sm_sl: u8,
    /// The GIDs, without zero ones; the first has the subnet prefix. Of a port that is not InfiniBand, its IP addresses.
    pub gids: Vec<Gid>,
    /// The P_Keys, without zero ones.
    pub pkeys: Vec<Pkey>,
    /// The rate.
    pub rate: Rate,
    /// The active MTU.
    pub mtu: Mtu,
    /// The maximum transit time of a packet through the subnet, 5 bits: 4.096 us * 2^code.
    pub subnet_timeout: u8,
}

impl Port {
    /// Returns the first GID, or zero.
    pub fn gid(&self) -> Gid {
        self.gids.first().copied().unwrap_or_default()
    }

    /// Returns whether this LID is one of the port's.
    pub fn has_lid(&self, lid: Lid) -> bool {
        self.lid != Lid::NONE && self.is_one_port(self.lid, lid)
    }

    /// Returns whether two LIDs belong to one port of the subnet. All ports have as many path bits as this one, because subnet managers
    /// support no other setting.
    pub(crate) fn is_one_port(&self, one: Lid, other: Lid) -> bool {
        let mask = u16::MAX.checked_shl(self.lmc.into()).unwrap_or(0);
        one.0 & mask == other.0 & mask
    }

    /// Returns whether the partition of this key is in the table.
    pub fn has_pkey(&self, pkey: Pkey) -> bool {
        self.pkeys.iter().any(|own| own.0 & 0x7fff == pkey.0 & 0x7fff)
    }

    /// Returns a path from the port, at its own rate and MTU, with no transit time, as for packets to the port
    /// itself.
    pub fn path_to(&self, pkey: Pkey, dgid: Gid, dlid: Lid) -> PathRecord {
        PathRecord {
            dgid,
            sgid: self.gid(),
            dlid,
            slid: self.lid,
            reversible: true,
            numb_path: 1,
            pkey,
            mtu_selector: Selector::EXACTLY,
            mtu: self.mtu.code(),
            rate_selector: Selector::EXACTLY,
            rate: self.rate,
            packet_life_time_selector: Selector::EXACTLY,
            ..PathRecord::default()
        }
    }

    /// Returns the maximum transit time of a packet, as ibacm counts it: 0 below 2 ms.
    pub(crate) fn subnet_timeout(&self) -> Duration {
        match self.subnet_timeout & 31 {
            code @ 8.. => Duration::from_millis(1 << (code - 8)),
            _ => Duration::ZERO,
        }
    }
}

/// An endpoint: a port and a partition, with names, addresses and a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The endpoint's port.
    pub port: PortId,
    /// The P_Key of the endpoint's partition, as in the port's table.
    pub pkey: Pkey,
    /// The endpoint's queue pair, or 0 if it has none, as on ports that are not InfiniBand.
    pub qpn: Qpn,
    /// The endpoint's names and addresses, without duplicates. The port's GIDs and LIDs may be omitted.
    pub addresses: Vec<Address>,
}
