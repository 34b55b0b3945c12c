//! The options of a machine: ibacm's by their meaning, and additional ones.

use alloc::vec::Vec;
use core::time::Duration;

use rdmux_wire::acm::MAX_GROUPS;
use rdmux_wire::sa::Rate;
use rdmux_wire::{Lid, Mtu};

/// Options. Each has a default, which is ibacm's where ibacm has the option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The lifetime of a cached address without confirmation (`addr_timeout`, in minutes there). [`Duration::MAX`] means forever.
    pub address_timeout: Duration,
    /// The lifetime of a path from subnet administration (`route_timeout`). A path built from a group lives as long as its
    /// address.
    pub route_timeout: Duration,
    /// The lifetime of a negative entry, which refuses requests without a query. Zero queries each time, as ibacm
    /// does.
    pub negative_timeout: Duration,
    /// The source of paths (`route_prot`).
    pub route_protocol: RouteProtocol,
    /// Whether local addresses are resolved without a query (`loopback_prot local`).
    pub local_loopback: bool,
    /// Time that the last attempt of a request waits, in addition to the port's subnet timeout (`timeout`). Each
    /// earlier attempt waits half as long as the next, so that a lost datagram does not cost the whole timeout.
    pub timeout: Duration,
    /// The number of retransmissions of a request (`retries`).
    pub retries: u32,
    /// The maximum time that a client's request waits for its answer, regardless of its own timeout.
    pub deadline: Duration,
    /// The maximum of an endpoint's outstanding multicast requests (`resolve_depth`). Others are queued.
    pub resolve_depth: u32,
    /// The maximum of a port's outstanding queries to subnet administration (`sa_depth`).
    pub sa_depth: u32,
    /// The maximum of an endpoint's queued answers while the send queue is full (`send_depth`). Further answers are dropped,
    /// and the requester retransmits.
    pub send_depth: u32,
    /// The receive buffers of an endpoint (`recv_depth`): how many requests may arrive at once. All endpoints of a subnet
    /// should have the same value.
    pub recv_depth: u32,
    /// The requests per second that a receiver is expected to handle, from all endpoints together. 0 means 20 times
    /// `recv_depth`.
    pub receive_rate: u32,
    /// The number of endpoints, as far as known, so that they do not all send at once. 0 if unknown: then endpoints with low LIDs, which
    /// every subnet has, send at once, and the others as if the subnet were very large.
    pub subnet_size: u32,
    /// The rate of the lowest group, in which all endpoints must be (`min_rate`).
    pub min_rate: Rate,
    /// The MTU of the lowest group (`min_mtu`).
    pub min_mtu: Mtu,
    /// The maximum number of groups that an endpoint joins, 1 to 6: besides the lowest one, that of the port's own rate and MTU, then
    /// those of [`groups`](Self::groups), then groups of remote endpoints that are better than the common ones. Only the lowest with
    /// [`RouteProtocol::Sa`].
    pub max_groups: usize,
    /// Additional groups to join.
    pub groups: Vec<GroupSpec>,
    /// The policy for two endpoints that claim the same address.
    pub claims: ClaimPolicy,
    /// The maximum of addresses that an endpoint caches.
    pub max_entries: usize,
    /// The maximum of waiting requests of one client.
    pub max_requests_per_client: usize,
    /// The maximum of waiting requests of all clients, and of searched addresses. A [user](crate::User) other than the owner may have half
    /// of it, all of these three quarters. Searches for clients that do not wait are at most half of it, and half of their user's share.
    pub max_requests: usize,
    /// Whether entries that programs use are confirmed before they expire.
    pub refresh: bool,
    /// Whether an endpoint announces a changed LID, GID or address to the others by one request for its own address.
    pub announce: bool,
}

/// The source of paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum RouteProtocol {
    /// Subnet administration is queried for the path to each address in use.
    #[default]
    Sa,
    /// Paths are built from the record of the best group of both ends: an endpoint that receives a group's datagrams at some rate
    /// can be sent to at that rate. This does not hold for every routing: routings with different service levels for pairs of
    /// ports, as on tori, need [`Self::Sa`].
    Acm,
}

/// The policy for an endpoint that claims an address that another has claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ClaimPolicy {
    /// The first claimant, until its entry expires.
    First,
    /// The last claimant, as ibacm does.
    #[default]
    Newest,
    /// Believes the first claimant, unless subnet administration confirms that the other's GID has the other's LID, and the first
    /// one does not answer for the address any more.
    Verified,
}

/// A group to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupSpec {
    /// The group's rate.
    pub rate: Rate,
    /// The group's MTU.
    pub mtu: Mtu,
    /// The group's service level.
    pub sl: u8,
    /// Distinguishes groups of the same rate and MTU.
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
    /// Returns the requests per second that receivers handle, at least 1.
    pub(crate) fn rate(&self) -> u64 {
        match self.receive_rate {
            0 => u64::from(self.recv_depth.max(1)) * 20,
            rate => rate.into(),
        }
    }

    /// Returns how many requests may arrive at once and leave receivers spare buffers. If the subnet's size is unknown, twice as
    /// many may arrive.
    pub fn at_once(&self) -> u64 {
        u64::from(self.recv_depth / 4).max(1)
    }

    /// Returns how many endpoints there may be, as seen by an endpoint with this LID.
    pub(crate) fn size(&self, lid: Lid) -> u64 {
        match self.subnet_size {
            0 if !self.leaves_to_chance(lid) => 0,
            0 => self.at_once() * 256,
            size => size.into(),
        }
    }

    /// Returns whether an endpoint with this LID decides at random whether to send at once.
    pub(crate) fn leaves_to_chance(&self, lid: Lid) -> bool {
        self.subnet_size != 0 || u64::from(lid.0) > self.at_once()
    }

    /// Returns the timeout of attempt `tried`, counted from 0.
    pub(crate) fn wait(&self, tried: u32, subnet_timeout: Duration) -> Duration {
        let halvings = self.retries.saturating_sub(tried).min(8);
        self.timeout / (1 << halvings) + subnet_timeout
    }
}
