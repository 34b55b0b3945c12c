//! Ids: a program's handles of connections, listeners and datagram peers.
//!
//! | file | contents |
//! |---|---|
//! | `entry` | one id and its states |
//! | `bind` | create, bind, migrate, query |
//! | `options` | set_option |
//! | `resolve` | resolve_addr |
//! | `route` | resolve_route, the path behind a route |
//! | `supplied` | set_paths: path records from the program |
//! | `listen` | listen, take, incoming requests |
//! | `peer_path` | the path to the peer of a request |
//! | `native` | InfiniBand's own addresses: bind, resolve_addr, listeners |
//! | `held` | requests that arrive between two listeners |
//! | `connect` | connect, accept, establish, disconnect, notify |
//! | `refuse` | reject |
//! | `alternate` | load_alternate, answer_alternate, migrated: LAP, APR, and the paths of a connection |
//! | `messages` | ask_for_time, set_private_data, redirected requests |
//! | `upcall` | connections' upcalls, reported as events |
//! | `stream` | iWARP connections |
//! | `mcast` | join, leave |
//! | `destroy` | destroy, closed channels, lost addresses |

mod alternate;
mod bind;
mod connect;
mod destroy;
mod entry;
mod held;
mod listen;
mod mcast;
mod messages;
mod native;
mod options;
mod peer_path;
mod refuse;
mod resolve;
mod route;
mod stream;
mod supplied;
mod upcall;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};

use rdmux_transport::Time;

use self::entry::Id;
pub use self::entry::{IdInfo, IdState};
use self::held::Held;
pub use self::held::LISTEN_GRACE;
pub use self::stream::StreamListener;
use crate::address::Addr;
use crate::config::Config;
use crate::counters::Counters;
use crate::error::{CmError, Command};
use crate::event::{Event, EventKind, EventParam};
use crate::fields::Arrived;
use crate::ib::Cm;
use crate::iw::{self, Streams};
use crate::params::{Negotiated, Route};
use crate::path::{MadPath, Peer};
use crate::ports::{PortSpace, PortTable};
use crate::services::ServiceTable;
use crate::sink::{ChannelId, DevicePort, IdHandle, LocalAddress, Sink};
use crate::timers::Timers;
use rdmux_wire::Gid;

/// All ids of one host.
///
/// Commands that start something report their result by an event. A command that fails changes
/// nothing. `now` must not go backwards.
#[derive(Debug)]
pub struct Manager {
    cm: Cm,
    iw: Streams,
    ids: BTreeMap<IdHandle, Box<Id>>,
    channels: BTreeMap<ChannelId, BTreeSet<IdHandle>>,
    ports: BTreeMap<PortSpace, PortTable>,
    services: ServiceTable,
    addresses: Vec<LocalAddress>,
    device_ports: Vec<DevicePort>,
    held: Held,
    /// The deadlines of route queries and path queries.
    timers: Timers<IdHandle>,
    last_id: u64,
    arrived: Arrived,
}

impl Manager {
    /// Creates a manager without ids. `seed` is for initial PSNs, communication and transaction ids, request ids of SIDR and
    /// ephemeral ports, which a peer must not guess. Take it from the kernel's random source, and never use one twice.
    pub fn new(config: Config, seed: [u8; 32]) -> Self {
        Self {
            iw: Streams::new(config.iwarp.clone()),
            cm: Cm::new(config, seed),
            ids: BTreeMap::new(),
            channels: BTreeMap::new(),
            ports: BTreeMap::new(),
            services: ServiceTable::default(),
            addresses: Vec::new(),
            device_ports: Vec::new(),
            held: Held::default(),
            timers: Timers::new(),
            last_id: 0,
            arrived: Arrived::default(),
        }
    }

    /// Handles a datagram that arrived at QP1 with management class 7. `mad` must be 256 bytes; anything
    /// else is dropped and counted.
    pub fn handle_mad(&mut self, now: Time, path: &MadPath, mad: &[u8], sink: &mut impl Sink) {
        if let Some(upcall) = self.cm.handle_mad(now, path, mad, sink) {
            self.arrived.set(mad);
            self.handle_upcall(now, upcall, sink);
            self.arrived.clear();
        }
    }

    /// Returns the earliest time at which [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        let all = [
            self.cm.poll_timeout(),
            self.iw.poll_timeout(),
            self.timers.next(),
            self.held.poll_timeout(),
        ];
        all.into_iter().flatten().min()
    }

    /// Handles all deadlines that are due at `now`.
    pub fn handle_timeout(&mut self, now: Time, sink: &mut impl Sink) {
        while let Some(timer) = self.cm.pop_due(now) {
            if let Some(upcall) = self.cm.handle_timeout(now, timer, sink) {
                self.handle_upcall(now, upcall, sink);
            }
        }
        while let Some(id) = self.timers.pop_due(now) {
            match self.ids.get(&id).map(|i| i.state()) {
                Some(IdState::RouteQuery) => self.path_timeout(id, sink),
                Some(IdState::Connect) => self.no_way_found(now, id, sink),
                _ => self.resolve_timeout(id, sink),
            }
        }
        self.release_held(now, sink);
        self.handle_stream_timeouts(now, sink);
    }

    /// Handles a hint (ICMP) that the host with this address does not exist or does not speak RoCE.
    /// Requests that await it fail now, with -EHOSTUNREACH, instead of after their last retry.
    pub fn handle_unreachable(&mut self, now: Time, remote: IpAddr, sink: &mut impl Sink) {
        for waiting in self.cm.waiting_for(Peer::Gid(remote.into())) {
            if let Some(upcall) = self.cm.unreachable(now, waiting, sink) {
                self.handle_upcall(now, upcall, sink);
            }
        }
    }

    /// Returns the channel of an id, for the driver's check that a process commands only its
    /// own ids.
    pub fn channel_of(&self, id: IdHandle) -> Option<ChannelId> {
        self.ids.get(&id).map(|i| i.channel)
    }
    /// Returns all ids, in order.
    pub fn ids(&self) -> impl Iterator<Item = IdHandle> + '_ {
        self.ids.keys().copied()
    }
    /// Returns the number of connections and lookups below the ids, those in timewait included.
    pub fn connections(&self) -> usize {
        self.cm.len() + self.iw.len()
    }
    /// Returns whether a DREQ is in flight that its peer has not answered. It may be lost, so a driver that ends now should
    /// wait until it is answered or all retransmissions were sent.
    pub fn says_goodbye(&self) -> bool {
        self.cm.says_goodbye()
    }
    /// Returns the number of deadlines that are set.
    pub fn deadlines(&self) -> usize {
        self.cm.deadlines() + self.iw.deadlines() + self.timers.len() + self.held.len()
    }
    /// Returns the number of ports in use, in all port spaces, plus that of service IDs.
    pub fn ports_in_use(&self) -> usize {
        self.ports.values().map(PortTable::len).sum::<usize>() + self.services.len()
    }
    /// Returns the counters of the connection manager.
    pub fn counters(&self) -> &Counters {
        &self.cm.counters
    }
    /// Returns the counters of iWARP connections.
    pub fn stream_counters(&self) -> &iw::Counters {
        &self.iw.counters
    }
    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.cm.config
    }

    fn get(&self, id: IdHandle, command: Command) -> Result<&Id, CmError> {
        self.ids.get(&id).map(Box::as_ref).ok_or(CmError::NoSuchId { id, command })
    }

    fn get_mut(&mut self, id: IdHandle, command: Command) -> Result<&mut Id, CmError> {
        self.ids.get_mut(&id).map(Box::as_mut).ok_or(CmError::NoSuchId { id, command })
    }

    /// Returns the id, if it is in a state that the command allows.
    fn in_state(
        &mut self,
        id: IdHandle,
        command: Command,
        wanted: IdState,
    ) -> Result<&mut Id, CmError> {
        let found = self.get_mut(id, command)?;
        let state = found.state();
        if state == wanted { Ok(found) } else { Err(CmError::State { id, command, state }) }
    }

    /// Returns the error for an id whose state does not allow the command.
    fn wrong_state(&self, id: IdHandle, command: Command) -> CmError {
        match self.get(id, command) {
            Ok(found) => CmError::State { id, command, state: found.state() },
            Err(error) => error,
        }
    }

    fn port_table(&mut self, ps: PortSpace) -> &mut PortTable {
        self.ports.entry(ps).or_default()
    }

    fn address(&self, ip: IpAddr) -> Option<&LocalAddress> {
        self.addresses.iter().find(|a| a.ip == ip)
    }

    /// Returns the entry of an address on a device.
    fn address_of(&self, device: u32, ip: IpAddr) -> Option<&LocalAddress> {
        self.addresses.iter().find(|a| a.ip == ip && a.device == device)
    }

    /// Returns the entry of an address on a device at the port where packets arrive.
    fn address_at_port(&self, device: u32, port_num: u8, ip: IpAddr) -> Option<&LocalAddress> {
        let is_it = |a: &&LocalAddress| a.ip == ip && a.device == device && a.port_num == port_num;
        self.addresses.iter().find(is_it)
    }

    /// Returns the device that an id gets by an address: the first of those that it may have.
    fn device_of(&self, id: &Id, ip: IpAddr) -> Option<&LocalAddress> {
        let mut has = self.addresses.iter().filter(|a| a.ip == ip);
        has.find(|a| id.may_use(a.device, a.transport))
    }

    /// Returns a port of a device.
    fn device_port(&self, device: u32, port_num: u8) -> Option<&DevicePort> {
        self.device_ports.iter().find(|p| p.device == device && p.port_num == port_num)
    }

    /// Returns the local port that a request is for, by the local GID in it. On a device with LIDs the request may have arrived at another
    /// port than the one where its path begins.
    fn asked_port(&self, path: &MadPath, gid: Gid) -> u8 {
        let came = path.av.port_num.max(1);
        let has = |port: &&DevicePort| {
            port.device == path.device && port.has_lids && port.gid_index(gid).is_some()
        };
        let mut ports = self.device_ports.iter().filter(has);
        let is_there = ports.clone().any(|port| port.port_num == came);
        if is_there { came } else { ports.next().map_or(came, |port| port.port_num) }
    }

    /// Returns the first address of the family of `ip`.
    fn first_address(&self, ip: IpAddr) -> Option<IpAddr> {
        self.addresses.iter().map(|a| a.ip).find(|a| a.is_ipv4() == ip.is_ipv4())
    }

    /// Resolves addresses that mean the program's own host: 127.0.0.1 and ::1 are this host, even if it does not
    /// have them, as a virtual host; an IPv4-mapped IPv6 address is an IPv4 address.
    fn meant(&self, addr: SocketAddr) -> SocketAddr {
        let addr = normalised(addr);
        let ip = addr.ip();
        let localhost = ip == Ipv4Addr::LOCALHOST || ip == Ipv6Addr::LOCALHOST;
        match self.first_address(ip) {
            Some(own) if localhost && self.address(ip).is_none() => (own, addr.port()).into(),
            _ => addr,
        }
    }

    /// Sends an event to the id's channel and counts it.
    fn emit(&mut self, id: IdHandle, body: EventBody, sink: &mut impl Sink) {
        let Some(i) = self.ids.get_mut(&id) else { return };
        let event = Event {
            id: body.child.unwrap_or(id),
            context: body.context.unwrap_or(i.context),
            listen_id: body.child.map(|_| id),
            kind: body.kind,
            status: body.status,
            param: body.param,
            route: body.route.map(Box::new),
            negotiated: body.negotiated.map(Box::new),
            mad: if i.options.fields.messages { self.arrived.bytes() } else { None },
        };
        if i.is_unanswered && event.kind.ends_connection() {
            i.end.get_or_insert(Box::new(event));
            return;
        }
        i.tell(event, sink);
    }
}

/// The fields of an event other than its id.
struct EventBody {
    kind: EventKind,
    status: i32,
    param: EventParam,
    route: Option<Route>,
    negotiated: Option<Negotiated>,
    /// The new id, in CONNECT_REQUEST.
    child: Option<IdHandle>,
    /// Replaces the id's own context.
    context: Option<u64>,
}

impl EventBody {
    const fn new(kind: EventKind) -> Self {
        Self {
            kind,
            status: 0,
            param: EventParam::None,
            route: None,
            negotiated: None,
            child: None,
            context: None,
        }
    }
    fn failed(kind: EventKind, status: i32) -> Self {
        Self { status, ..Self::new(kind) }
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
fn normalised(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddrV4::new(v4, v6.port()).into(),
            None => addr,
        },
        SocketAddr::V4(_) => addr,
    }
}

/// Returns the flow label of a connection: the program's, or one that spreads connections
/// over links.
fn flow_label(src: &Addr, dst: &Addr) -> u32 {
    match dst {
        Addr::Ip(SocketAddr::V6(v6)) if v6.flowinfo() & 0xf_ffff != 0 => v6.flowinfo() & 0xf_ffff,
        Addr::Ib(ib) if ib.flow_label() != 0 => ib.flow_label(),
        _ => (u32::from(src.port()) * 31 + u32::from(dst.port())) & 0xf_ffff,
    }
}
