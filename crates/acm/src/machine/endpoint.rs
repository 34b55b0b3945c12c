//! The machine's state of ports and endpoints.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use hashbrown::HashTable;
use rdmux_transport::Time;
use rdmux_wire::Lid;
use rdmux_wire::acm::{Address, Datagram};
use rdmux_wire::sa::PathRecord;

use super::groups::Memberships;
use super::pace::Pace;
use super::users::Turn;
use super::waiting::Waiting;
use crate::cache::{Cache, Holder, Way};
use crate::{Counters, Endpoint, Peer, Port, RouteProtocol};

/// A port.
#[derive(Debug)]
pub(super) struct PortState {
    pub(super) port: Port,
    /// The number of outstanding queries to subnet administration.
    pub(super) routes_asked: u32,
    /// The searches that wait for their turn to query it.
    pub(super) routes: Waiting,
    /// The turns of clients whose searches wait.
    pub(super) turn: Turn,
}

/// An endpoint.
#[derive(Debug)]
pub(super) struct EndpointState {
    pub(super) endpoint: Endpoint,
    /// The endpoint's addresses in sorted order, for lookups.
    pub(super) own: Vec<Address>,
    /// Whether the endpoint's port is active and has its P_Key.
    pub(super) is_up: bool,
    /// The addresses that the endpoint has cached.
    pub(super) cache: Cache,
    /// Searches for addresses, by the addresses' hashes in the cache.
    pub(super) searches: HashTable<u32>,
    /// The endpoint's group memberships.
    pub(super) groups: Memberships,
    /// The pacing of the endpoint's requests.
    pub(super) pace: Pace,
    /// The turns of clients that wait to send.
    pub(super) turn: Turn,
    /// Answers that the driver's send queue had no room for.
    pub(super) answers: VecDeque<(Peer, Datagram)>,
    /// Whether the driver has reported a full send queue.
    pub(super) is_blocked: bool,
    /// Own addresses to announce, each by a request.
    pub(super) announce: Vec<Address>,
    /// Time when the endpoint's last request was sent to the group, which all other endpoints received.
    pub(super) told: Option<Time>,
    /// Number of requests for this endpoint that arrived since then, from endpoints that have not learned its address.
    pub(super) asked_for: u32,
    /// The number of searches that wait until the endpoint has joined a group again.
    pub(super) joining: u32,
    /// The number of searches that verify claims.
    pub(super) claims: u32,
    pub(super) counters: Counters,
}

impl EndpointState {
    pub(super) fn new(endpoint: Endpoint, cache: Cache) -> Self {
        Self {
            own: sorted(&endpoint.addresses),
            endpoint,
            is_up: false,
            cache,
            searches: HashTable::new(),
            groups: Memberships::default(),
            pace: Pace::default(),
            turn: Turn::default(),
            answers: VecDeque::new(),
            is_blocked: false,
            announce: Vec::new(),
            told: None,
            asked_for: 0,
            joining: 0,
            claims: 0,
            counters: Counters::default(),
        }
    }

    /// Returns the path to a cache entry, if it is known.
    pub(super) fn path(
        &self,
        port: &Port,
        protocol: RouteProtocol,
        at: usize,
        now: crate::cache::Ticks,
    ) -> Option<PathRecord> {
        match self.cache.way(at, now) {
            Way::None => None,
            Way::Path(path) => Some(PathRecord {
                sgid: if path.sgid.is_zero() { port.gid() } else { path.sgid },
                slid: if path.slid == Lid::NONE { port.lid } else { path.slid },
                ..path
            }),
            Way::Group if protocol == RouteProtocol::Acm => {
                self.group_path(port, &self.cache.holder(at))
            }
            Way::Group => None,
        }
    }

    /// Returns a path to a holder when only the two ends are known.
    pub(super) fn ends(&self, port: &Port, to: &Holder) -> PathRecord {
        PathRecord {
            dgid: to.gid,
            dlid: to.lid,
            sgid: port.gid(),
            slid: port.lid,
            pkey: self.endpoint.pkey,
            reversible: true,
            ..PathRecord::default()
        }
    }

    /// Returns the path through the best group that the holder and this endpoint share.
    pub(super) fn group_path(&self, port: &Port, to: &Holder) -> Option<PathRecord> {
        let record = self.groups.record(to.group?)?;
        Some(PathRecord {
            sl: record.sl,
            mtu: record.mtu,
            rate: record.rate,
            packet_life_time: record.packet_life_time,
            flow_label: record.flow_label,
            hop_limit: record.hop_limit,
            tclass: record.tclass,
            ..port.path_to(self.endpoint.pkey, to.gid, to.lid)
        })
    }
}

/// Returns addresses in sorted order.
pub(super) fn sorted(addresses: &[Address]) -> Vec<Address> {
    let mut sorted = addresses.to_vec();
    sorted.sort_unstable();
    sorted
}
