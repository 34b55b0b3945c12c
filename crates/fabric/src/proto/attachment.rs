//! What a host is told about a port of its adapter. A host with several has a connection for each.

use std::net::SocketAddr;

use rdmux_link::ib::{KeyViolation, Violated};
use rdmux_subnet::PortEvent;
use rdmux_wire::{Gid, Guid, Lid, Pkey};
use serde::{Deserialize, Serialize};

use super::update::RowEntry;

/// The most ports of an adapter that a host has, as many as libibumad knows (`UMAD_CA_MAX_PORTS`).
pub const MAX_PORTS: u8 = 10;

/// Which port of its adapter a host takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPort {
    /// Its number, from 1.
    pub number: u8,
    /// How many ports the host's adapter has.
    pub of: u8,
    /// The numbers of those that are on this fabric, this one among them. The others are on another fabric, which knows the same node, and
    /// have no cable here.
    pub here: Vec<u8>,
}

impl HostPort {
    /// That of an adapter with one port.
    pub fn only() -> Self {
        Self { number: 1, of: 1, here: vec![1] }
    }

    /// Whether there can be such an adapter.
    pub fn is_sound(&self) -> bool {
        let all = 1..=self.of;
        let is_rising = self.here.windows(2).all(|pair| pair[0] < pair[1]);
        self.of <= MAX_PORTS
            && is_rising
            && self.here.contains(&self.number)
            && self.here.iter().all(|number| all.contains(number))
    }

    /// Whether all of the adapter's ports are on this fabric.
    pub fn is_all_here(&self) -> bool {
        self.here.len() == usize::from(self.of)
    }
}

/// What a host asks, or tells. What it asks is answered by a [`PortUpdate`] each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttachmentRequest {
    /// How the port is now: its counters change without an event.
    Refresh,
    /// To change the node's description, as writing `node_desc` in sysfs does.
    Describe(String),
    /// Where the host takes packets for the port. From the answer on its route table is kept, and others' tables have ways to it.
    Endpoint {
        /// By which address hosts of the same machine send them: a loopback address.
        addr: SocketAddr,
        /// Whether packets are taken at this UDP port at all addresses of the machine, so that hosts of other machines can send them.
        everywhere: bool,
        /// Whether the host hears groups by the machine's IP multicast ([`rdmux_link::ib::multicast`]).
        multicast: bool,
    },
    /// Tells, with a descriptor: a process counts what it sends by the port in these rows ([`rdmux_link::rows`]), in place of those that it had.
    Rows {
        /// Which process: a number of the host's.
        process: u16,
    },
    /// Tells: the process is gone. What it has counted stays.
    RowsGone {
        /// Which.
        process: u16,
    },
    /// Tells: a packet that came to the port, or was to leave by it, had a key that does not fit. What the rows have counted of it is read, and
    /// the port that noticed raises a trap, as often as traps are.
    Violation(Violation),
    /// Tells, of a bridge alone: what processes of the host have counted in their rows.
    Counted {
        /// What was read.
        rows: Vec<RowEntry>,
    },
    /// Tells, of a bridge alone: by which ways processes of the host still count.
    CountBy {
        /// The update of the route tables that was made before that was looked at.
        made: u64,
        /// The ways' names.
        ways: Vec<u64>,
    },
}

/// A packet with a key that does not fit ([`rdmux_link::ib::KeyViolation`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Which rule it broke.
    pub kind: ViolationKind,
    /// Its source LID.
    pub slid: Lid,
    /// Its destination LID.
    pub dlid: Lid,
    /// Its service level.
    pub sl: u8,
    /// The P_Key or Q_Key.
    pub key: u32,
    /// The queue pair that sent it, 0 unless the packet says.
    pub src_qpn: u32,
    /// The queue pair that it is for.
    pub dst_qpn: u32,
    /// Source and destination GID, if it has a GRH.
    pub gids: Option<(Gid, Gid)>,
}

/// Which rule a packet broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ViolationKind {
    /// It came with a P_Key that is none of the port's, or not that of its queue pair: trap 257.
    Pkey,
    /// It came with a Q_Key that is not that of its queue pair: trap 258.
    Qkey,
    /// It was to leave, and a switch on the way does not let its partition pass: trap 259.
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

/// The adapter that a host has got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// Its node GUID: the host's own if the adapter is new.
    pub node_guid: Guid,
    /// GUID of the system that it is in.
    pub system_guid: Guid,
    /// Its description.
    pub description: String,
    /// Vendor ID, 24 bits.
    pub vendor_id: u32,
    /// Device ID.
    pub device_id: u16,
    /// Hardware revision.
    pub revision: u32,
    /// Whether hosts on other machines can be on the fabric: then the host takes packets at all addresses of its machine.
    pub is_joined: bool,
    /// How the port is.
    pub port: PortFacts,
}

/// A change of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortUpdate {
    /// What happened to it, in this order, each kind at most once; nothing in the answer to a request.
    pub events: Vec<PortEvent>,
    /// How it is now.
    pub port: PortFacts,
}

impl PortUpdate {
    /// Whether it answers a request: nothing has happened of which it would tell.
    pub fn is_answer(&self) -> bool {
        self.events.is_empty()
    }
}

/// How a port is: what `ibv_query_port(3)` and the files under `/sys` tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortFacts {
    /// The port's number.
    pub number: u8,
    /// The port's GUID.
    pub guid: Guid,
    /// The upper half of its GIDs.
    pub gid_prefix: u64,
    /// The LID; 0 as long as no manager has given it one.
    pub lid: Lid,
    /// How many low bits of the LID are path bits.
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
    /// Code of the MTU in force.
    pub active_mtu: u8,
    /// Code of the width: 2 is four lanes.
    pub active_width: u8,
    /// Code of the speed as `ibv_query_port(3)` has it: 4 QDR, 16 FDR, 32 EDR, 64 HDR, 128 NDR.
    pub active_speed: u8,
    /// Code of the number of virtual lanes.
    pub max_vls: u8,
    /// The subnet's timeout, 5 bits.
    pub subnet_timeout: u8,
    /// InitTypeReply.
    pub init_type_reply: u8,
    /// Violations of P_Keys.
    pub pkey_violations: u16,
    /// Violations of Q_Keys.
    pub qkey_violations: u16,
    /// The GID table; a GID of 0 is an empty entry.
    pub gids: Vec<Gid>,
    /// The P_Key table; a P_Key of 0 is an empty entry.
    pub pkeys: Vec<Pkey>,
    /// Counters under the names of `/sys/class/infiniband/*/ports/*/counters`.
    pub counters: Vec<(String, u64)>,
}
