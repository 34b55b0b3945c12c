//! A simulated endpoint: its state machine, its receive buffers, and its client that requests paths to all others.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Duration;

use rdmux_acm::{
    ClientId, Dest, Endpoint, EndpointId, Failure, Io, Machine, Options, Peer, Port, PortId,
    PortKind, QuestionId, Request, RequestId, Resolved, RouteProtocol, Time, To,
};
use rdmux_wire::acm::{Address, Datagram};
use rdmux_wire::sa::{McMemberRecord, McMemberRecordMask, PathRecord, PathRecordMask, Rate};
use rdmux_wire::{Gid, Guid, Lid, Mtu, Pkey, Qpn};

use super::Setup;

/// The one endpoint of each machine.
pub(super) const ENDPOINT: EndpointId = EndpointId(0);
const PORT: PortId = PortId(0);
const CLIENT: ClientId = ClientId(0);

/// Unicast LIDs end at 0xBFFF, so endpoints beyond that share them. Nothing here is forwarded by LID.
const LIDS: u32 = 0xbf00;

/// The GUID of the first endpoint's port.
const FIRST_GUID: u64 = 0x0002_0000_0000_0000;

/// Returns the address of an endpoint.
pub(super) fn address_of(endpoint: u32) -> Address {
    Address::Ip4(Ipv4Addr::from_bits(0x0a00_0000 + endpoint))
}

/// Returns the endpoint with an address.
pub(super) fn endpoint_of(address: &Address) -> Option<u32> {
    match address {
        Address::Ip4(ip) => ip.to_bits().checked_sub(0x0a00_0000),
        _ => None,
    }
}

/// Returns the source address of an endpoint's datagrams.
pub(super) fn peer_of(endpoint: u32) -> Peer {
    Peer { gid: gid_of(endpoint), lid: lid_of(endpoint), qpn: Qpn::new(0x100), sl: 0 }
}

fn gid_of(endpoint: u32) -> Gid {
    Gid::new(Gid::DEFAULT_PREFIX, Guid(FIRST_GUID + u64::from(endpoint)))
}

/// Returns the endpoint with a GID; the largest number if there is none.
pub(super) fn endpoint_at(gid: Gid) -> u32 {
    gid.guid().0.checked_sub(FIRST_GUID).and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX)
}

fn lid_of(endpoint: u32) -> Lid {
    Lid(u16::try_from(endpoint % LIDS + 1).unwrap_or(1))
}

/// The requests of a machine to the world.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    pub(super) sends: Vec<(To, Datagram)>,
    pub(super) joins: Vec<McMemberRecord>,
    pub(super) answers: Vec<(u64, Result<Resolved, Failure>)>,
}

impl Io for Wishes {
    fn send(&mut self, _: EndpointId, to: To, datagram: &Datagram) -> bool {
        self.sends.push((to, datagram.clone()));
        true
    }

    fn join(&mut self, _: EndpointId, record: &McMemberRecord, _: McMemberRecordMask) {
        self.joins.push(*record);
    }

    fn leave(&mut self, _: EndpointId, _: Gid) {}

    fn ask_paths(&mut self, _: PortId, _: QuestionId, _: &PathRecord, _: PathRecordMask) {
        unreachable!("paths are built from groups");
    }

    fn ask_system(&mut self, _: EndpointId, _: QuestionId, _: &Address) {
        unreachable!("the port is of InfiniBand");
    }

    fn answer(&mut self, _: ClientId, request: RequestId, answer: Result<Resolved, Failure>) {
        self.answers.push((request.0, answer));
    }
}

/// A simulated endpoint.
#[derive(Debug)]
pub(super) struct Node {
    /// The number of the endpoint.
    pub(super) endpoint: u32,
    pub(super) machine: Machine,
    pub(super) wishes: Wishes,
    /// The expiry of its scheduled timer.
    pub(super) timer: Time,
    pub(super) has_joined: bool,
    /// Datagrams received, without lost ones.
    pub(super) received: u64,
    /// Datagrams dropped for lack of a buffer.
    pub(super) overflows: u64,
    /// The most buffers in use.
    pub(super) most_buffers: u64,
    /// The time at which each buffer in use is freed.
    buffers: VecDeque<Time>,
    next_stall: Time,
    /// The number of destinations that the node's client has requested, and the number that it has resolved.
    asked: u32,
    pub(super) resolved: u32,
    /// Failed requests of its client, each of which is repeated.
    pub(super) failures: u64,
    /// The destinations of failed requests that are to be repeated.
    pub(super) failed: Vec<u32>,
    pub(super) wrong: u64,
}

impl Node {
    pub(super) fn new(setup: &Setup, endpoint: u32) -> Self {
        let options = Options {
            route_protocol: RouteProtocol::Acm,
            recv_depth: setup.recv_depth,
            subnet_size: setup.endpoints,
            deadline: Duration::from_secs(120),
            ..Options::default()
        };
        let mut seed = [0; 16];
        seed[..8].copy_from_slice(&setup.seed.to_le_bytes());
        seed[8..12].copy_from_slice(&endpoint.to_le_bytes());
        Self {
            endpoint,
            machine: Machine::new(options, seed),
            wishes: Wishes::default(),
            timer: Time::NEVER,
            has_joined: false,
            received: 0,
            overflows: 0,
            most_buffers: 0,
            buffers: VecDeque::new(),
            next_stall: Time::ZERO,
            asked: 0,
            resolved: 0,
            failures: 0,
            failed: Vec::new(),
            wrong: 0,
        }
    }

    /// Brings the port and the endpoint up.
    pub(super) fn start(&mut self, now: Time) {
        let port = Port {
            kind: PortKind::InfiniBand,
            is_active: true,
            device_guid: Guid(u64::from(self.endpoint) + 1),
            number: 1,
            count: 1,
            lid: lid_of(self.endpoint),
            lmc: 0,
            sm_lid: Lid(1),
            sm_sl: 0,
            gids: vec![gid_of(self.endpoint)],
            pkeys: vec![Pkey::DEFAULT],
            rate: Rate::GBPS_100,
            mtu: Mtu::M4096,
            subnet_timeout: 18,
        };
        let endpoint = Endpoint {
            port: PORT,
            pkey: Pkey::DEFAULT,
            qpn: Qpn::new(0x100),
            addresses: vec![address_of(self.endpoint)],
        };
        self.machine.set_port(now, PORT, port, &mut self.wishes);
        self.machine.set_endpoint(now, ENDPOINT, endpoint, &mut self.wishes);
    }

    /// Requests the next destinations that fit the client's window: the endpoint after this one first, then on in a ring.
    pub(super) fn ask(&mut self, now: Time, endpoints: u32, window: u32) {
        while self.asked < endpoints - 1 && self.asked < self.resolved + window {
            self.asked += 1;
            let dest = (self.endpoint + self.asked) % endpoints;
            self.request(now, dest);
        }
    }

    /// Requests a path to a destination.
    pub(super) fn request(&mut self, now: Time, dest: u32) {
        let request = Request {
            source: Some(address_of(self.endpoint)),
            dest: Dest::Address(address_of(dest)),
            no_delay: false,
            timeout: None,
        };
        let id = RequestId(dest.into());
        self.machine.request(now, CLIENT, id, &request, &mut self.wishes);
    }

    /// Handles the machine's answer to the client.
    pub(super) fn answered(&mut self, dest: u64, answer: Result<Resolved, Failure>) {
        let dest = u32::try_from(dest).unwrap_or(u32::MAX);
        match answer {
            Ok(resolved) => {
                let path = &resolved.path;
                let is_right = path.dgid == gid_of(dest) && path.dlid == lid_of(dest);
                self.wrong += u64::from(!is_right);
                self.resolved += 1;
            }
            Err(_) => {
                self.failures += 1;
                self.failed.push(dest);
            }
        }
    }

    /// Restarts the client with the cache as it is.
    pub(super) fn forget_progress(&mut self) {
        self.asked = 0;
        self.resolved = 0;
    }

    /// Receives a datagram. Returns false if there was no buffer for it.
    pub(super) fn takes(&mut self, now: Time, setup: &Setup, random: u64) -> bool {
        while self.buffers.front().is_some_and(|free_at| *free_at <= now) {
            self.buffers.pop_front();
        }
        let mut begin = self.buffers.back().copied().unwrap_or(now);
        if now >= self.next_stall && !setup.stall.is_zero() {
            let pause = u64::try_from(setup.stall.as_nanos()).unwrap_or(u64::MAX);
            if self.next_stall != Time::ZERO {
                begin = begin.after(setup.stall);
            }
            self.next_stall = now.after(Duration::from_nanos(random % pause.saturating_mul(200)));
        }
        if self.buffers.len() >= setup.recv_depth as usize {
            self.overflows += 1;
            return false;
        }
        self.buffers.push_back(begin.after(setup.service_time));
        self.most_buffers = self.most_buffers.max(self.buffers.len() as u64);
        self.received += 1;
        true
    }
}
