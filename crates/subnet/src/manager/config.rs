//! What a manager is to do, and how fast.

use alloc::collections::BTreeMap;
use core::time::Duration;

use rdmux_wire::sm::SlToVlTable;
use rdmux_wire::{Gid, Guid, Lid, Mkey, SmKey};

/// How a manager finds routes between switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum RoutingEngine {
    /// Shortest routes, spread over the ports that begin one.
    #[default]
    Minhop,
    /// Routes that go up, to switches that are further from the adapters, and then only down: their channel dependencies have
    /// no cycle, so that they cannot deadlock.
    Updn,
}

/// A name of a routing engine that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such routing engine: it is `minhop` or `updn`")]
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
    /// 0 to 15: of several managers the one with the highest priority becomes the master, of equal ones that with the lowest
    /// port GUID (IBTA 14.4.1).
    pub priority: u8,
    /// The GUID of the manager's port; 0 if the manager is to ask the port. Until it knows, it does not answer other managers.
    pub guid: Guid,
    /// Routes between switches.
    pub routing: RoutingEngine,
    /// LID mask control, 0 to 7: each port of an adapter gets 2^lmc LIDs.
    pub lmc: u8,
    /// LIDs that ports had before and get again, by port GUID. They count until another manager is the master: after that ports
    /// keep the LIDs that they have.
    pub lids: BTreeMap<Guid, Lid>,
    /// The subnet prefix.
    pub prefix: u64,
    /// The key that is shown to all ports, and set at them; 0 protects nothing.
    pub mkey: Mkey,
    /// What managers of one subnet have in common: it is shown to who asks for SMInfo, and OpenSM takes no notice of a manager that
    /// has another one.
    pub sm_key: SmKey,
    /// How a wrong key is dealt with, 0 to 3 (PortInfo's M_KeyProtectBits): without the key nothing is set; from 1 on the key is not shown, from 2
    /// on no question is answered. It counts with a key only.
    pub mkey_protect: u8,
    /// After how many seconds without the right key, once a wrong one was shown, a port is protected no more (M_KeyLeasePeriod); 0 is never.
    pub mkey_lease: u16,
    /// Which virtual lane each service level takes, at each port with more than one; a lane that a port does not have is taken modulo those that
    /// it has, as [`Config::SL_TO_VL`] and OpenSM's `qos_sl2vl` have it. None leaves the tables as they are, and does not read them.
    pub sl_to_vl: Option<SlToVlTable>,
    /// How long after a sweep the switches are asked whether something has changed.
    pub sweep_interval: Duration,
    /// How long after a sweep with errors it is repeated, the first time; each further time twice as long.
    pub retry_interval: Duration,
    /// How often a standby asks the master whether it is still there.
    pub poll_interval: Duration,
    /// After how many such questions without an answer the master counts as dead.
    pub poll_misses: u32,
    /// How many requests may be without an answer at a time, at most 1024.
    pub outstanding: usize,
    /// How long an answer may take.
    pub timeout: Duration,
    /// How often a request is sent again.
    pub retries: u32,
    /// Whether the port is disabled of which so many traps of link errors (129 to 131) come one after the other that nobody is told of them
    /// any more: OpenSM's `babbling_port_policy`. The switch's port stays disabled until somebody enables it.
    pub disable_babbling: bool,
    /// The most ports of all nodes together, port 0 of adapters too, that are looked at. Nodes that are found when there are more are reported
    /// and left out: what says that it is a subnet without end takes no more memory than that.
    pub max_ports: usize,
    /// How many cables a call of `handle_timeout` looks at while routes are computed; then `next_timeout` is due at once.
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
