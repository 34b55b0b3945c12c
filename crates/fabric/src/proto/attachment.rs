//! The messages about an attached port of an adapter. A host with several ports has a connection for each.

use std::net::SocketAddr;

use rdmux_link::ib::{KeyViolation, Violated};
use rdmux_subnet::PortEvent;
use rdmux_wire::{Gid, Guid, Lid, Pkey};
use serde::{Deserialize, Serialize};

use super::update::RowEntry;

/// Maximum number of ports of a host's adapter, as in libibumad (`UMAD_CA_MAX_PORTS`).
pub const MAX_PORTS: u8 = 10;

/// The port of an adapter that a host attaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPort {
    /// The port's number, from 1.
    pub number: u8,
    /// The number of ports of the host's adapter.
    pub of: u8,
    /// The numbers of the adapter's ports that are on this fabric, including this one. The others are on another fabric, which has the
    /// same node, and have no cable here.
    pub here: Vec<u8>,
}

impl HostPort {
    /// Returns the port of an adapter with one port.
    pub fn only() -> Self {
        Self { number: 1, of: 1, here: vec![1] }
    }

    /// Returns whether such an adapter is possible.
    pub fn is_sound(&self) -> bool {
        let all = 1..=self.of;
        let is_rising = self.here.windows(2).all(|pair| pair[0] < pair[1]);
        self.of <= MAX_PORTS
            && is_rising
            && self.here.contains(&self.number)
            && self.here.iter().all(|number| all.contains(number))
    }

    /// Returns whether all of the adapter's ports are on this fabric.
    pub fn is_all_here(&self) -> bool {
        self.here.len() == usize::from(self.of)
    }
}

/// A host's request or report. Each request is answered by a [`PortUpdate`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttachmentRequest {
    /// Requests the state of the port, because its counters change without an event.
    Refresh,
    /// Changes the node's description, like a write to `node_desc` in sysfs.
    Describe(String),
    /// Sets the address where the host receives packets for the port. From the answer on, its route table is kept up to date, and
    /// others' tables have routes to it.
    Endpoint {
        /// The loopback address to which hosts of the same machine send.
        addr: SocketAddr,
        /// Whether packets are received at this UDP port at all addresses of the machine, so that hosts of other machines can send
        /// them.
        everywhere: bool,
        /// Whether the host receives groups by the machine's IP multicast ([`rdmux_link::ib::multicast`]).
        multicast: bool,
    },
    /// Reports the rows in which a process counts what it sends through the port ([`rdmux_link::rows`]), with their descriptor. They
    /// replace its earlier rows.
    Rows {
        /// The number of the process, chosen by the host.
        process: u16,
    },
    /// Reports that a process is gone. Its counts are kept.
    RowsGone {
        /// The number of the process.
        process: u16,
    },
    /// Reports a packet received or to be sent by the port that had a key that does not match. The rows that counted it are read, and the
    /// port that noticed it raises a trap, at the rate of traps.
    Violation(Violation),
    /// Reports what processes of the host have counted in their rows. Sent only by a bridge.
    Counted {
        /// The rows that were read.
        rows: Vec<RowEntry>,
    },
    /// Reports the routes by which processes of the host still count. Sent only by a bridge.
    CountBy {
        /// The number of the route table update that was applied before the rows were read.
        made: u64,
        /// The ids of the routes.
        ways: Vec<u64>,
    },
}

/// A packet with a key that does not match ([`rdmux_link::ib::KeyViolation`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// The rule that the packet violates.
    pub kind: ViolationKind,
    /// The packet's source LID.
    pub slid: Lid,
    /// The packet's destination LID.
    pub dlid: Lid,
    /// The packet's service level.
    pub sl: u8,
    /// The P_Key or Q_Key.
    pub key: u32,
    /// The queue pair that sent the packet, or 0 if the packet does not contain it.
    pub src_qpn: u32,
    /// The destination queue pair.
    pub dst_qpn: u32,
    /// Source and destination GID, if it has a GRH.
    pub gids: Option<(Gid, Gid)>,
}

/// The rule that a packet violates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ViolationKind {
    /// A received packet has a P_Key that is not in the port's table, or not that of its queue pair: trap 257.
    Pkey,
    /// A received packet has a Q_Key that is not that of its queue pair: trap 258.
    Qkey,
    /// A packet to send is in a partition that a switch on the path drops: trap 259.
    SwitchPkey,
}

impl From<&KeyViolation> for Violation {
    fn from(violation: &KeyViolation) -> Self {
        let &KeyViolation { kind, slid, dlid, sl, key, src_qpn, dst_qpn, gids } = violation;
        let kind = match kind {
            Violated::Pkey => ViolationKind::Pkey,
            Violated::Qkey => ViolationKind::Qkey,
            Violated::SwitchPkey => ViolationKind::SwitchPkey,
        };
        let (src_qpn, dst_qpn) = (src_qpn.get(), dst_qpn.get());
        Self { kind, slid, dlid, sl, key, src_qpn, dst_qpn, gids }
    }
}

/// The adapter that a host has attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// The adapter's node GUID: the host's own if the adapter is new.
    pub node_guid: Guid,
    /// GUID of its system.
    pub system_guid: Guid,
    /// The adapter's description.
    pub description: String,
    /// Vendor ID, 24 bits.
    pub vendor_id: u32,
    /// Device ID.
    pub device_id: u16,
    /// Hardware revision.
    pub revision: u32,
    /// Whether hosts on other machines can be on the fabric, so that the host must receive packets at all addresses of
    /// its machine.
    pub is_joined: bool,
    /// The state of the port.
    pub port: PortFacts,
}

/// A change of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortUpdate {
    /// The events of the port, in order, each kind at most once. Empty in the answer to a request.
    pub events: Vec<PortEvent>,
    /// The port's present state.
    pub port: PortFacts,
}

impl PortUpdate {
    /// Returns whether the update answers a request, rather than reporting events.
    pub fn is_answer(&self) -> bool {
        self.events.is_empty()
    }
}

/// The state of a port: the data of `ibv_query_port(3)` and of the files under `/sys`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortFacts {
    /// The port's number.
    pub number: u8,
    /// The port's GUID.
    pub guid: Guid,
    /// The upper half of its GIDs.
    pub gid_prefix: u64,
    /// The LID; 0 until a manager has assigned one.
    pub lid: Lid,
    /// The number of path bits in the LID.
    pub lmc: u8,
    /// The manager's LID.
    pub sm_lid: Lid,
    /// The service level to it.
    pub sm_sl: u8,
    /// State (IBTA 14.2.5.6): 1 Down, 2 Init, 3 Armed, 4 Active.
    pub state: u8,
    /// Physical state: 2 Polling, 3 Disabled, 5 LinkUp.
    pub phys_state: u8,
    /// CapabilityMask.
    pub capabilities: u32,
    /// Code of the largest MTU: 5 is 4096.
    pub max_mtu: u8,
    /// Code of the active MTU.
    pub active_mtu: u8,
    /// Code of the width: 2 is four lanes.
    pub active_width: u8,
    /// Code of the speed, as in `ibv_query_port(3)`: 4 QDR, 16 FDR, 32 EDR, 64 HDR, 128 NDR.
    pub active_speed: u8,
    /// Code of the number of virtual lanes.
    pub max_vls: u8,
    /// The subnet's timeout, 5 bits.
    pub subnet_timeout: u8,
    /// InitTypeReply.
    pub init_type_reply: u8,
    /// Count of P_Key violations.
    pub pkey_violations: u16,
    /// Count of Q_Key violations.
    pub qkey_violations: u16,
    /// The GID table; a GID of 0 is an empty entry.
    pub gids: Vec<Gid>,
    /// The P_Key table; a P_Key of 0 is an empty entry.
    pub pkeys: Vec<Pkey>,
    /// Counters, by their names in `/sys/class/infiniband/*/ports/*/counters`.
    pub counters: Vec<(String, u64)>,
}
