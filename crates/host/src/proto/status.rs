//! The data of `rdmux host status`.

use std::net::IpAddr;

use rdmux_verbs::port::GidEntry;
use rdmux_wire::{Gid, Guid, Pkey};
use serde::{Deserialize, Serialize};

/// The state of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The host's name.
    pub host: String,
    /// The service's process.
    pub pid: u32,
    /// Milliseconds since it started.
    pub uptime_ms: u64,
    /// Whether the service runs as a thread of a client process.
    pub embedded: bool,
    /// GUID of its node.
    pub node_guid: Guid,
    /// The host's addresses: RoCE's GID table, in order of index.
    pub gids: Vec<GidEntry>,
    /// The UDP port.
    pub port: u16,
    /// The state of the fabrics of the service's ports.
    pub fabrics: Vec<FabricStatus>,
    /// Processes, in order of arrival.
    pub clients: Vec<ClientStatus>,
    /// Ids of the connection manager.
    pub ids: Vec<IdStatus>,
    /// Multicast groups.
    pub groups: Vec<GroupStatus>,
    /// XRC domains.
    pub xrc_domains: Vec<DomainStatus>,
    /// XRC receive queue pairs, which belong to no process.
    pub xrc_targets: Vec<TargetStatus>,
    /// Counters of all devices, including those of dead processes: name and value, even if zero.
    pub device_counters: Vec<(String, u64)>,
    /// Counters of the service: management datagrams, clients, protocol errors.
    pub service_counters: Vec<(String, u64)>,
    /// Counters of the connection manager.
    pub cm_counters: Vec<(String, u64)>,
    /// Slots in use, not counting the service's own.
    pub slots: u32,
    /// Ring pairs between processes.
    pub rings: u32,
}

impl Status {
    /// Returns a counter by its name, in any of the lists.
    pub fn counter(&self, name: &str) -> Option<u64> {
        [&self.device_counters, &self.service_counters, &self.cm_counters]
            .into_iter()
            .flatten()
            .find(|(n, _)| n == name)
            .map(|&(_, v)| v)
    }
}

/// The state of a host's port on a fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricStatus {
    /// The number of the port on the fabric.
    pub port: u8,
    /// The fabric's name.
    pub name: String,
    /// GUID of the adapter's node, if the fabric has assigned one.
    pub node_guid: Option<Guid>,
    /// The LID of the port; 0 for none.
    pub lid: u16,
    /// The number of path bits in the LID.
    pub lmc: u8,
    /// The LID of the subnet manager; 0 for none.
    pub sm_lid: u16,
    /// The service level to it.
    pub sm_sl: u8,
    /// The partitions of the port.
    pub pkeys: Vec<Pkey>,
    /// The GIDs of the port.
    pub gids: Vec<Gid>,
    /// The state of the port.
    pub state: String,
    /// Whether a subnet manager of this host holds the port.
    pub is_sm: bool,
    /// The reason why the host has no adapter although the fabric is up.
    pub why: Option<String>,
}

/// A client process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientStatus {
    /// The process ID, or 0 if the kernel does not show it to the service.
    pub pid: i32,
    /// The name of the process (`/proc/PID/comm`).
    pub comm: String,
    /// The name of the device that the process opened.
    pub device: String,
    /// The slots of the process.
    pub slots: Vec<u16>,
    /// Queue pairs that it has now.
    pub qps: u64,
    /// The number of event channels of the process.
    pub channels: u32,
    /// The number of ids of the process.
    pub ids: u32,
    /// Milliseconds since it connected.
    pub uptime_ms: u64,
}

/// An id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdStatus {
    /// The number of the id.
    pub id: u64,
    /// The process ID of the id's owner, or 0 if the kernel does not show it to the service.
    pub pid: i32,
    /// The port space of the id.
    pub space: String,
    /// The state of the id.
    pub state: String,
    /// The local address and port, if bound.
    pub src: Option<String>,
    /// The peer's address and port, if known.
    pub dst: Option<String>,
}

/// An XRC domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainStatus {
    /// The name of its device.
    pub device: String,
    /// The number of the domain, unique in the device.
    pub id: u64,
    /// Device and inode of its file; none if it is private.
    pub file: Option<(u64, u64)>,
    /// The PIDs of the processes that opened it, one entry for each opening.
    pub pids: Vec<i32>,
    /// The number of shared receive queues in the domain.
    pub srqs: u64,
}

/// An XRC receive queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetStatus {
    /// The name of its device.
    pub device: String,
    /// The number of the target.
    pub qpn: u32,
    /// The number of the target's domain.
    pub domain: u64,
    /// The state of the target, or "busy" if it was in use for as long as the service waited for
    /// it.
    pub state: String,
    /// The sender's queue pair; 0 if it is busy.
    pub dest_qpn: u32,
    /// Memory that it uses, in bytes; 0 if it is busy.
    pub bytes: u64,
    /// The processes that hold it.
    pub holders: Vec<HolderStatus>,
}

/// A process that holds an XRC receive queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderStatus {
    /// The process ID, or 0 if the kernel does not show it to the service.
    pub pid: i32,
    /// The name of the process.
    pub comm: String,
    /// The number of handles of the process.
    pub handles: u32,
    /// Whether the process is registered.
    pub registered: bool,
}

/// A multicast group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatus {
    /// The group.
    pub group: IpAddr,
    /// The local address that it was joined on.
    pub local: IpAddr,
    /// Queue pairs and ids that are members.
    pub members: u32,
}
