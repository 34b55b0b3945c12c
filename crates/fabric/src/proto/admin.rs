//! Commands' requests to a fabric, and the answers.

use std::fmt;
use std::str::FromStr;

use rdmux_subnet::Fault;
use rdmux_subnet::manager::RoutingEngine;
use rdmux_wire::{Guid, Lid};
use serde::{Deserialize, Serialize};

/// A node, as a user names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NodeRef {
    /// The GUID of the node or of a port.
    Guid(Guid),
    /// The node's name in the topology file, the name of the host that is attached there, or the node's
    /// description, if no other node has the same.
    Name(String),
}

impl FromStr for NodeRef {
    type Err = std::convert::Infallible;

    /// Parses a node: `0x` and up to 16 hexadecimal digits are a GUID.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let digits = s.strip_prefix("0x").filter(|d| d.len() <= 16);
        let guid = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        Ok(guid.map_or_else(|| Self::Name(s.to_owned()), |guid| Self::Guid(Guid(guid))))
    }
}

impl fmt::Display for NodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Guid(guid) => guid.fmt(f),
            Self::Name(name) => write!(f, "{name:?}"),
        }
    }
}

/// An end of a cable: `NODE` or `NODE:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The node.
    pub node: NodeRef,
    /// The port. If it is left out, the only one possible.
    pub port: Option<u8>,
}

impl FromStr for End {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let (node, port) = match s.rsplit_once(':') {
            Some((node, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
                let port = port.parse().ok().filter(|port| (1..=254).contains(port));
                (node, Some(port.ok_or_else(|| format!("{s:?} has no port number: use 1 to 254"))?))
            }
            _ => (s, None),
        };
        if node.is_empty() {
            return Err(format!("{s:?} names no node: use NODE or NODE:PORT, as in \"S-1:3\""));
        }
        Ok(Self { node: node.parse().unwrap_or_else(|e| match e {}), port })
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.node.fmt(f)?;
        self.port.map_or(Ok(()), |port| write!(f, " port {port}"))
    }
}

/// A command's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AdminRequest {
    /// Stay without clients. Answer: [`Status`].
    Stay,
    /// Return the status. Answer: [`Status`].
    Status,
    /// Return all nodes and cables. Answer: [`Snapshot`].
    Show,
    /// Return the topology in the format of `ibnetdiscover(8)`. Answer: text.
    Topology,
    /// Return the forwarding tables of all switches. Answer: [`Tables`](super::Tables).
    Tables,
    /// Connect two free ports with a cable. Answer: text.
    Plug {
        /// One end. Without a port, the first free one.
        a: End,
        /// The other end, with its port.
        b: End,
    },
    /// Remove a cable. Answer: text.
    Unplug(End),
    /// Take the links between two nodes down, or up again. Answer: text.
    Link {
        /// Whether to take them up.
        up: bool,
        /// One end.
        a: End,
        /// The other end.
        b: End,
    },
    /// Reset a switch, like a power cycle. Answer: text.
    Reset(NodeRef),
    /// Make a port see a fault of its link. Answer: text.
    Fault {
        /// The port.
        at: End,
        /// The kind of fault.
        fault: Fault,
        /// The number of resets in a row.
        times: u32,
    },
    /// Change the GUID of a node's system. Answer: text.
    SystemGuid {
        /// The node.
        node: NodeRef,
        /// The node's new SystemImageGUID.
        guid: Guid,
    },
    /// Reload the partitions from the stored options. Answer: text.
    Partitions,
}

/// The status of a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The name of the fabric.
    pub fabric: String,
    /// The process ID of the fabric.
    pub pid: u32,
    /// Milliseconds since the fabric came up.
    pub uptime_ms: u64,
    /// Whether the fabric stays when it has no clients.
    pub stays: bool,
    /// The origin of the fabric's topology.
    pub source: String,
    /// Whether adapters are only simulated, so that no host attaches.
    pub simulated: bool,
    /// The address where it listens for other machines.
    pub listen: Option<String>,
    /// Number of switches.
    pub switches: u32,
    /// Number of adapters.
    pub adapters: u32,
    /// Number of cables.
    pub links: u32,
    /// Number of cables whose link is not up.
    pub links_down: u32,
    /// Number of active ports.
    pub active_ports: u32,
    /// Hosts that are attached.
    pub attached: Vec<Attached>,
    /// Management interfaces that are open.
    pub files: Vec<FileStatus>,
    /// The subnet manager that is part of the fabric, if any.
    pub manager: Option<ManagerStatus>,
    /// Counters, by name.
    pub counters: Vec<(String, u64)>,
}

/// The subnet manager that is part of a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManagerStatus {
    /// The state of the manager: `discovering`, `standby`, `master` or `notactive`.
    pub state: String,
    /// The GUID of the manager's port, or zero until the port has answered.
    pub guid: Guid,
    /// The priority of the manager.
    pub priority: u8,
    /// The GUID of the master's port, if known.
    pub master: Option<Guid>,
    /// The routing engine of the manager.
    pub routing: RoutingEngine,
    /// Whether the manager is sweeping the subnet now.
    pub sweeping: bool,
    /// Heavy sweeps as the master so far.
    pub sweeps: u64,
    /// The file of the manager's partitions. Without one all ports are full members of the default
    /// partition.
    pub partitions: Option<String>,
    /// The last sweep.
    pub last: Option<SweepStatus>,
}

/// A heavy sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepStatus {
    /// Microseconds since the sweep ended.
    pub ago_us: u64,
    /// Microseconds that the sweep took.
    pub took_us: u64,
    /// Nodes that it found.
    pub nodes: u64,
    /// Switches among them.
    pub switches: u64,
    /// The number of attributes that the sweep set.
    pub sets: u64,
    /// The number of problems that the sweep found.
    pub problem_count: u64,
    /// The first problems: where, and what.
    pub problems: Vec<String>,
}

/// A host that is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// The host's name.
    pub host: String,
    /// The PID of the host's process, or 0 if the kernel does not show it to the fabric.
    pub pid: i32,
    /// The description of the host's adapter.
    pub adapter: String,
    /// The adapter's node GUID.
    pub guid: Guid,
    /// The number of the adapter's port.
    pub port: u8,
    /// The port's LID; 0 if it has none.
    pub lid: Lid,
}

/// A management interface that is open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStatus {
    /// The PID of the process that opened it; 0 if the kernel does not show it to the fabric.
    pub pid: i32,
    /// The program's name.
    pub comm: String,
    /// The node's description.
    pub node: String,
    /// The port's number.
    pub port: u8,
    /// Records that wait to be read, and their bytes.
    pub waiting: (u64, u64),
    /// Records that were dropped because the queue was full.
    pub dropped: u64,
}

/// All nodes of a subnet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The fabric's name.
    pub fabric: String,
    /// The nodes, in the order of the topology.
    pub nodes: Vec<NodeView>,
    /// All cables, each once.
    pub links: Vec<LinkView>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// Whether the node is a switch.
    pub is_switch: bool,
    /// The node's name in the topology file.
    pub id: String,
    /// The node's description.
    pub description: String,
    /// The node's GUID.
    pub guid: Guid,
    /// The host that is attached there.
    pub host: Option<String>,
    /// The node's ports. Those of a switch begin with port 0.
    pub ports: Vec<PortView>,
}

/// Makes the message for a name that two nodes have, with each one's name in the topology and its GUID.
pub fn ambiguous(name: &str, a: (&str, Guid), b: (&str, Guid)) -> String {
    let ((a, a_guid), (b, b_guid)) = (a, b);
    format!(
        "{name:?} is ambiguous: it names {a} ({a_guid}) and {b} ({b_guid}); use the name of one, or its GUID"
    )
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortView {
    /// The port's number.
    pub number: u8,
    /// The port's GUID. That of a switch is the node's.
    pub guid: Guid,
    /// The port's LID, or 0 if it has none, like external ports of switches.
    pub lid: Lid,
    /// The port's LMC.
    pub lmc: u8,
    /// The port's state (IBTA 14.2.5.6): 1 Down, 2 Init, 3 Armed, 4 Active.
    pub state: u8,
    /// Whether a subnet manager runs at the port.
    pub is_sm: bool,
}

/// A cable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkView {
    /// One end: the index of a node, and its port.
    pub a: (u32, u8),
    /// The other end.
    pub b: (u32, u8),
    /// Whether the link is up.
    pub up: bool,
    /// Width and speed, as `4xQDR`.
    pub rate: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cable_end_is_parsed_as_node_name_or_guid_with_optional_port() {
        let end = |s: &str| s.parse::<End>().map(|e| (e.node, e.port));
        let name = |s: &str| NodeRef::Name(s.to_owned());
        assert_eq!(end("S-1:3"), Ok((name("S-1"), Some(3))));
        assert_eq!(end("host a"), Ok((name("host a"), None)));
        assert_eq!(end("a:b"), Ok((name("a:b"), None)));
        assert_eq!(end("0x200000:1"), Ok((NodeRef::Guid(Guid(0x20_0000)), Some(1))));
        assert_eq!(end("0xhost"), Ok((name("0xhost"), None)));
        for bad in [":3", "", "S:0", "S:255", "S:99999"] {
            assert!(end(bad).is_err(), "{bad}");
        }
    }
}
