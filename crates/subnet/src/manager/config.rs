//! Options of a manager.

use alloc::collections::BTreeMap;
use core::time::Duration;

use rdmux_wire::sm::SlToVlTable;
use rdmux_wire::{Gid, Guid, Lid, Mkey, SmKey};

/// How a manager computes routes between switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum RoutingEngine {
    /// Shortest routes, balanced over the ports that begin one.
    #[default]
    Minhop,
    /// Routes that first go up, away from the adapters, and then only down. Their channel dependencies have no cycle, so they
    /// cannot deadlock.
    Updn,
}

/// The error for a routing engine name that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown routing engine: use `minhop` or `updn`")]
pub struct NoSuchEngine;

impl core::str::FromStr for RoutingEngine {
    type Err = NoSuchEngine;

    fn from_str(name: &str) -> Result<Self, NoSuchEngine> {
        match name {
            "minhop" => Ok(Self::Minhop),
            "updn" => Ok(Self::Updn),
            _ => Err(NoSuchEngine),
        }
    }
}

impl core::fmt::Display for RoutingEngine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Minhop => "minhop",
            Self::Updn => "updn",
        })
    }
}

/// Options of a manager. The defaults are OpenSM's where it has the option.
#[derive(Clone, Debug)]
pub struct Config {
    /// The priority, 0 to 15. The manager with the highest priority becomes master; of equal ones that with the lowest port
    /// GUID (IBTA 14.4.1).
    pub priority: u8,
    /// The GUID of the manager's port; 0 to read it from the port. Until it is known, the manager does not answer other managers.
    pub guid: Guid,
    /// The algorithm for routes between switches.
    pub routing: RoutingEngine,
    /// The LID mask control, 0 to 7: each port of an adapter gets 2^lmc LIDs.
    pub lmc: u8,
    /// Earlier LIDs by port GUID, which ports get again. They apply until another manager is the master: after that, ports
    /// keep the LIDs that they have.
    pub lids: BTreeMap<Guid, Lid>,
    /// The subnet prefix.
    pub prefix: u64,
    /// The M_Key that is presented to all ports and set at them; 0 means no protection.
    pub mkey: Mkey,
    /// The key that all managers of a subnet share. It is part of SMInfo answers. OpenSM ignores managers with another key.
    pub sm_key: SmKey,
    /// The protection level, 0 to 3 (PortInfo's M_KeyProtectBits). Without the key nothing can be set. From 1 on the key is
    /// not shown, from 2 on queries are not answered. Applies only with a nonzero key.
    pub mkey_protect: u8,
    /// Seconds until a port drops its protection if the right key is not presented after a wrong one (M_KeyLeasePeriod); 0 is
    /// never.
    pub mkey_lease: u16,
    /// The virtual lane of each service level, at each port with more than one lane. A lane that a port lacks is taken modulo
    /// the number that it has, as with [`Config::SL_TO_VL`] and OpenSM's `qos_sl2vl`. None leaves the tables unchanged and
    /// does not read them.
    pub sl_to_vl: Option<SlToVlTable>,
    /// The time from a sweep to the light sweep that follows it.
    pub sweep_interval: Duration,
    /// The time until a sweep with errors is repeated. It doubles with each further failure.
    pub retry_interval: Duration,
    /// How often a standby polls the master.
    pub poll_interval: Duration,
    /// The number of unanswered polls after which the master counts as dead.
    pub poll_misses: u32,
    /// The most requests in flight, at most 1024.
    pub outstanding: usize,
    /// How long to wait for an answer.
    pub timeout: Duration,
    /// How often a request is retransmitted.
    pub retries: u32,
    /// Whether to disable a port that sends so many traps of link errors (129 to 131) in a row that they are no longer
    /// reported: OpenSM's `babbling_port_policy`. The switch's port stays disabled until an operator enables it.
    pub disable_babbling: bool,
    /// The most ports of all nodes together, including port 0 of adapters. Nodes beyond that are reported and ignored, which
    /// bounds the memory that a forged endless subnet takes.
    pub max_ports: usize,
    /// How many cable ends one call of `handle_timeout` processes while routes are computed, at least those on the routes to
    /// one switch. `next_timeout` is then due at once.
    pub routing_slice: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            priority: 0,
            guid: Guid(0),
            routing: RoutingEngine::Minhop,
            lmc: 0,
            lids: BTreeMap::new(),
            prefix: Gid::DEFAULT_PREFIX,
            mkey: Mkey(0),
            sm_key: SmKey(1),
            mkey_protect: 0,
            mkey_lease: 0,
            sl_to_vl: None,
            sweep_interval: Duration::from_secs(10),
            retry_interval: Duration::from_secs(1),
            poll_interval: Duration::from_secs(10),
            poll_misses: 4,
            outstanding: 64,
            timeout: Duration::from_millis(200),
            retries: 3,
            disable_babbling: false,
            max_ports: 1 << 20,
            routing_slice: 1 << 20,
        }
    }
}
