//! What a machine can be told: ibacm's options by their meaning, and those of its own.

use alloc::vec::Vec;
use core::time::Duration;

use rdmux_wire::acm::MAX_GROUPS;
use rdmux_wire::sa::Rate;
use rdmux_wire::{Lid, Mtu};

/// Options. Each has a default, which is ibacm's where ibacm has the option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long an address is known without being confirmed (`addr_timeout`, whose unit is minutes). [`Duration::MAX`] is for ever.
    pub address_timeout: Duration,
    /// How long a path is known that subnet administration gave (`route_timeout`). A path that is built from a group lives as
    /// long as its address.
    pub route_timeout: Duration,
    /// How long an address that nobody has is refused without asking again. Zero asks each time, as ibacm does.
    pub negative_timeout: Duration,
    /// Where paths come from (`route_prot`).
    pub route_protocol: RouteProtocol,
    /// Whether addresses of the own endpoints are resolved without asking (`loopback_prot local`).
    pub local_loopback: bool,
    /// How long the last try of a request waits, beside the port's subnet timeout (`timeout`). Each try before it waits half
    /// as long as the next, so that a lost datagram does not cost all of it.
    pub timeout: Duration,
    /// How often a request is sent again (`retries`).
    pub retries: u32,
    /// The longest that a client's request waits for its answer, whatever it asks for.
    pub deadline: Duration,
    /// Requests by multicast that wait for an answer, of an endpoint (`resolve_depth`). The others queue.
    pub resolve_depth: u32,
    /// Questions to subnet administration that wait for an answer, of a port (`sa_depth`).
    pub sa_depth: u32,
    /// Answers that wait until the driver has room for them, of an endpoint (`send_depth`). What comes beyond is dropped: who
    /// asked asks again.
    pub send_depth: u32,
    /// Receive buffers of an endpoint (`recv_depth`): how many requests may come at once. All endpoints of a subnet should
    /// have the same.
    pub recv_depth: u32,
    /// Requests a second that a receiver is expected to take, from all endpoints together. 0 is 20 times `recv_depth`.
    pub receive_rate: u32,
    /// How many endpoints there are, so far as is known, so that they do not all ask at once. 0 if it is not known: then endpoints with low
    /// LIDs, which every subnet has, ask at once, and the others as if the subnet were very large.
    pub subnet_size: u32,
    /// The rate of the lowest group, in which all endpoints must be (`min_rate`).
    pub min_rate: Rate,
    /// Its MTU (`min_mtu`).
    pub min_mtu: Mtu,
    /// How many groups an endpoint joins at most, 1 to 6: beside the lowest one, that of the port's own rate and MTU, then
    /// those of [`groups`](Self::groups), then those that others have who could not be talked to better otherwise. Only the lowest with
    /// [`RouteProtocol::Sa`].
    pub max_groups: usize,
    /// Groups to join beside them.
    pub groups: Vec<GroupSpec>,
    /// Whom to believe when two say that they have the same address.
    pub claims: ClaimPolicy,
    /// The most addresses that an endpoint remembers.
    pub max_entries: usize,
    /// The most requests of one client that wait for their answers.
    pub max_requests_per_client: usize,
    /// The most requests of all clients that do, and the most addresses that are asked for; half of those for clients that do not wait.
    pub max_requests: usize,
    /// Whether what programs use is confirmed before it expires.
    pub refresh: bool,
    /// Whether an endpoint tells the others, by one request for its own address, that its LID, GID or an address has changed.
    pub announce: bool,
}

/// Where paths come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum RouteProtocol {
    /// Subnet administration is asked for the path to each address that is used.
    #[default]
    Sa,
    /// Paths are built from the record of the best group of both ends: who hears a group at some rate can be sent to at that rate.
    /// Not true of every routing: those with different service levels for pairs of ports, as on tori, need [`Self::Sa`].
    Acm,
}

/// Whom to believe when an endpoint says that it has an address that another one has said it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ClaimPolicy {
    /// Who said it first, until that expires.
    First,
    /// Who said it last, as ibacm does.
    #[default]
    Newest,
    /// Who said it first, unless subnet administration confirms that the other's GID has the other's LID, and the first one does not
    /// answer for the address any more.
    Verified,
}

/// A group to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupSpec {
    /// Its rate.
    pub rate: Rate,
    /// Its MTU.
    pub mtu: Mtu,
    /// Its service level.
    pub sl: u8,
    /// Tells groups of the same rate and MTU apart.
    pub tos: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            address_timeout: Duration::from_secs(1440 * 60),
            route_timeout: Duration::MAX,
            negative_timeout: Duration::from_secs(1),
            route_protocol: RouteProtocol::Sa,
            local_loopback: true,
            timeout: Duration::from_millis(2000),
            retries: 2,
            deadline: Duration::from_secs(30),
            resolve_depth: 1,
            sa_depth: 1,
            send_depth: 1,
            recv_depth: 1024,
            receive_rate: 0,
            subnet_size: 0,
            min_rate: Rate::GBPS_10,
            min_mtu: Mtu::M2048,
            max_groups: MAX_GROUPS,
            groups: Vec::new(),
            claims: ClaimPolicy::Newest,
            max_entries: 1 << 17,
            max_requests_per_client: 4096,
            max_requests: 1 << 16,
            refresh: true,
            announce: true,
        }
    }
}

impl Options {
    /// Requests a second that receivers take, at least 1.
    pub(crate) fn rate(&self) -> u64 {
        match self.receive_rate {
            0 => u64::from(self.recv_depth.max(1)) * 20,
            rate => rate.into(),
        }
    }

    /// How many requests may come at once, so that receivers have buffers to spare: twice as many do if the subnet's size is not known.
    pub fn at_once(&self) -> u64 {
        u64::from(self.recv_depth / 4).max(1)
    }

    /// How many endpoints there may be, as an endpoint with this LID sees it.
    pub(crate) fn size(&self, lid: Lid) -> u64 {
        match self.subnet_size {
            0 if !self.leaves_to_chance(lid) => 0,
            0 => self.at_once() * 256,
            size => size.into(),
        }
    }

    /// Whether chance decides if an endpoint with this LID asks at once.
    pub(crate) fn leaves_to_chance(&self, lid: Lid) -> bool {
        self.subnet_size != 0 || u64::from(lid.0) > self.at_once()
    }

    /// How long the try number `tried`, from 0, waits.
    pub(crate) fn wait(&self, tried: u32, subnet_timeout: Duration) -> Duration {
        let halvings = self.retries.saturating_sub(tried).min(8);
        self.timeout / (1 << halvings) + subnet_timeout
    }
}
