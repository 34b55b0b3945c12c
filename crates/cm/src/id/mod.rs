//! Ids: what a program holds of a connection, a listener or a datagram peer.
//!
//! | file | what |
//! |---|---|
//! | `entry` | one id and its states |
//! | `bind` | create, bind, migrate, query |
//! | `options` | set_option |
//! | `resolve` | resolve_addr |
//! | `route` | resolve_route, the path behind a route |
//! | `supplied` | set_paths: path records of the program's |
//! | `listen` | listen, take, the requests that come |
//! | `peer_path` | the path to a peer that asked |
//! | `native` | InfiniBand's own addresses: bind, resolve_addr, listeners |
//! | `held` | requests that came between two listeners |
//! | `connect` | connect, accept, establish, disconnect, notify |
//! | `refuse` | reject |
//! | `alternate` | load_alternate, answer_alternate, migrated: LAP, APR, and the paths of a connection |
//! | `messages` | ask_for_time, set_private_data, requests that go elsewhere |
//! | `upcall` | what connections tell, as events |
//! | `stream` | connections of iWARP |
//! | `mcast` | join, leave |
//! | `destroy` | destroy, the end of a channel, lost addresses |

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
/// Commands that start something give their result as an event. A command's error changes
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
    /// When route queries and path queries end without an answer.
    timers: Timers<IdHandle>,
    last_id: u64,
    arrived: Arrived,
}

impl Manager {
    /// A manager without ids. `seed` is for initial PSNs, communication and transaction ids, request ids of SIDR and
    /// ephemeral ports, which a peer must not guess: take it from the kernel's random source, never twice.
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

    /// A datagram that came to QP1 with management class 7. `mad` must be 256 bytes; anything
    /// else is dropped and counted.
    pub fn handle_mad(&mut self, now: Time, path: &MadPath, mad: &[u8], sink: &mut impl Sink) {
        if let Some(upcall) = self.cm.handle_mad(now, path, mad, sink) {
            self.arrived.set(mad);
            self.handle_upcall(now, upcall, sink);
            self.arrived.clear();
        }
    }

    /// The earliest time at which [`handle_timeout`](Self::handle_timeout) has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        let all = [
            self.cm.poll_timeout(),
            self.iw.poll_timeout(),
            self.timers.next(),
            self.held.poll_timeout(),
        ];
        all.into_iter().flatten().min()
    }

    /// Does what is due at `now`.
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

    /// A hint: the host with this address does not exist or nobody there speaks RoCE (ICMP).
    /// Requests that wait for it fail now, with -EHOSTUNREACH, instead of after their last retry.
    pub fn handle_unreachable(&mut self, now: Time, remote: IpAddr, sink: &mut impl Sink) {
        for waiting in self.cm.waiting_for(Peer::Gid(remote.into())) {
            if let Some(upcall) = self.cm.unreachable(now, waiting, sink) {
                self.handle_upcall(now, upcall, sink);
            }
        }
    }

    /// The channel that an id belongs to, for the driver's check that a process commands only its
    /// own ids.
    pub fn channel_of(&self, id: IdHandle) -> Option<ChannelId> {
        self.ids.get(&id).map(|i| i.channel)
    }
    /// All ids, in order.
    pub fn ids(&self) -> impl Iterator<Item = IdHandle> + '_ {
        self.ids.keys().copied()
    }
    /// The number of connections and lookups below the ids, those in timewait included.
    pub fn connections(&self) -> usize {
        self.cm.len() + self.iw.len()
    }
    /// Whether a DREQ is out that its peer has not answered. It may be lost, so a driver that ends now should
    /// wait until it is answered or was sent often enough.
    pub fn says_goodbye(&self) -> bool {
        self.cm.says_goodbye()
    }
    /// The number of deadlines that are set.
    pub fn deadlines(&self) -> usize {
        self.cm.deadlines() + self.iw.deadlines() + self.timers.len() + self.held.len()
    }
    /// The number of ports in use, in all port spaces, and of service IDs.
    pub fn ports_in_use(&self) -> usize {
        self.ports.values().map(PortTable::len).sum::<usize>() + self.services.len()
    }
    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.cm.counters
    }
    /// What was counted of iWARP's connections.
    pub fn stream_counters(&self) -> &iw::Counters {
        &self.iw.counters
    }
    /// What was configured.
    pub fn config(&self) -> &Config {
        &self.cm.config
    }

    fn get(&self, id: IdHandle, command: Command) -> Result<&Id, CmError> {
        self.ids.get(&id).map(Box::as_ref).ok_or(CmError::NoSuchId { id, command })
    }

    fn get_mut(&mut self, id: IdHandle, command: Command) -> Result<&mut Id, CmError> {
        self.ids.get_mut(&id).map(Box::as_mut).ok_or(CmError::NoSuchId { id, command })
    }

    /// The id, if it is in the state that the command wants.
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

    /// The error that says that the id's state does not allow the command.
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

    /// An address of a device.
    fn address_of(&self, device: u32, ip: IpAddr) -> Option<&LocalAddress> {
        self.addresses.iter().find(|a| a.ip == ip && a.device == device)
    }

    /// An address of a device at the port by which packets come.
    fn address_at_port(&self, device: u32, port_num: u8, ip: IpAddr) -> Option<&LocalAddress> {
        let is_it = |a: &&LocalAddress| a.ip == ip && a.device == device && a.port_num == port_num;
        self.addresses.iter().find(is_it)
    }

    /// The device that an id has by an address: the first of those that it may have.
    fn device_of(&self, id: &Id, ip: IpAddr) -> Option<&LocalAddress> {
        let mut has = self.addresses.iter().filter(|a| a.ip == ip);
        has.find(|a| id.may_use(a.device, a.transport))
    }

    /// A port of a device.
    fn device_port(&self, device: u32, port_num: u8) -> Option<&DevicePort> {
        self.device_ports.iter().find(|p| p.device == device && p.port_num == port_num)
    }

    /// The port of ours that a request is for, by our GID in it: that of a device with LIDs may have come to another port than its path begins
    /// at.
    fn asked_port(&self, path: &MadPath, gid: Gid) -> u8 {
        let came = path.av.port_num.max(1);
        let has = |port: &&DevicePort| {
            port.device == path.device && port.has_lids && port.gid_index(gid).is_some()
        };
        let mut ports = self.device_ports.iter().filter(has);
        let is_there = ports.clone().any(|port| port.port_num == came);
        if is_there { came } else { ports.next().map_or(came, |port| port.port_num) }
    }

    /// The first address of the family of `ip`.
    fn first_address(&self, ip: IpAddr) -> Option<IpAddr> {
        self.addresses.iter().map(|a| a.ip).find(|a| a.is_ipv4() == ip.is_ipv4())
    }

    /// What a program means by an address of its own host: 127.0.0.1 and ::1 are this host, also where it
    /// does not have them, as a virtual host; an IPv4 address in IPv6's clothes is an IPv4 address.
    fn meant(&self, addr: SocketAddr) -> SocketAddr {
        let addr = normalised(addr);
        let ip = addr.ip();
        let localhost = ip == Ipv4Addr::LOCALHOST || ip == Ipv6Addr::LOCALHOST;
        match self.first_address(ip) {
            Some(own) if localhost && self.address(ip).is_none() => (own, addr.port()).into(),
            _ => addr,
        }
    }

    /// Gives an event to the id's channel and counts it.
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

/// What an event says besides whose it is.
struct EventBody {
    kind: EventKind,
    status: i32,
    param: EventParam,
    route: Option<Route>,
    negotiated: Option<Negotiated>,
    /// The new id, in CONNECT_REQUEST.
    child: Option<IdHandle>,
    /// Instead of the id's own.
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

/// An IPv4 address in IPv6's clothes is an IPv4 address.
fn normalised(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddrV4::new(v4, v6.port()).into(),
            None => addr,
        },
        SocketAddr::V4(_) => addr,
    }
}

/// The flow label of a connection: what the program asked for, or one that spreads connections
/// over links.
fn flow_label(src: &Addr, dst: &Addr) -> u32 {
    match dst {
        Addr::Ip(SocketAddr::V6(v6)) if v6.flowinfo() & 0xf_ffff != 0 => v6.flowinfo() & 0xf_ffff,
        Addr::Ib(ib) if ib.flow_label() != 0 => ib.flow_label(),
        _ => (u32::from(src.port()) * 31 + u32::from(dst.port())) & 0xf_ffff,
    }
}
