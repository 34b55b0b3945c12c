//! The wires that packets come and go by. This folder is the one place of the engine that tells kinds of wires apart; the
//! rest asks a queue pair's [`Path`], and a round's [`Inbound`].
//!
//! - [`AnyWire`]: a wire of packets at an address, of whatever kind. A further kind is an arm of it, or no arm at all:
//!   [`AnyWire::Other`] is for wires that the device's driver brings ([`Control::attach_wire`])
//! - `gathered`: packets gathered into one call, zero-copy
//! - `udp`, `ib`: the wires that do that
//! - `ring`: records to a process of this host, and everything that is shorter than a packet
//! - `stream`: streams, each of one queue pair
//!
//! [`Control::attach_wire`]: crate::objects::control::Control::attach_wire

mod gathered;
mod ib;
pub(crate) mod inbound;
mod other;
mod ring;
mod stream;
mod udp;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rdmux_link::ib::RouteGuard;
use rdmux_link::wire::PacketWire;
use rdmux_link::{Destination, Frame, IbWire, LinkError, UdpPort, Wire};
use rdmux_transport::attr::{AddressVector, AttrMask, QpAttr, QpState, QpType};
use rdmux_transport::env::{AccessFault, LinkCaps, TxError};
use rdmux_wire::{Gid, Lid, Pkey, Psn, Qpn};

/// How records name a path; and what the kernel needs to know before there is a wire.
pub(crate) use rdmux_link::ring::{RingPath, prepare};

pub(crate) use self::gathered::Gathered;
pub(crate) use self::inbound::Inbound;
pub(crate) use self::ring::{IN_PLACE, LateWakes, Neighbour, Neighbours, direct, named, short};
use self::stream::{Ended, Resumed, StreamPath};
use self::udp::UdpWire;
use self::udp::lend::{Lender, Loans};
use self::udp::shared_buffer::{Share, SharedBuffers};
use super::Engine;
use crate::engine::device::{Device, PORT};
use crate::engine::qp::QpCore;
use crate::objects::control::{ControlEvent, DriverWire, SERVICE_SLOT, is_target, slot_of};
use crate::objects::counters::Counter;
use crate::objects::error::VerbsError;
use crate::objects::kind::LinkLayer;
use crate::objects::port::{GidEntry, Port};

/// The wires of a device, and what those who send by them share.
#[derive(Default)]
pub(crate) struct Wires {
    /// Those of our addresses.
    of_addresses: Mutex<HashMap<Place, AnyWire>>,
    /// The ports and slots of datagram queue pairs, which hear every address. Locked while wires are opened, and while the
    /// tables of GIDs change by which they are.
    everywhere: Mutex<BTreeSet<(u8, u16)>>,
    /// Wires of addresses that are gone, by which connected queue pairs still send and receive: the address may come back.
    left: Mutex<Vec<AnyWire>>,
    shared_buffers: SharedBuffers,
    lender: Lender,
    pub(super) neighbours: Neighbours,
    pub(super) late_wakes: LateWakes,
    /// Streams that are of no more use.
    ended: Mutex<Vec<Ended>>,
    /// Streams that were left unread, and are to be read again.
    resumed: Mutex<Vec<Resumed>>,
}

/// Which wire: that of a slot at an address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    port: u8,
    gid_index: u8,
    slot: u16,
}

/// How a queue pair's packets leave.
#[derive(Debug)]
pub(crate) enum Path {
    /// Not at all yet.
    None,
    /// To one peer, by a wire of packets.
    Peer(Route, Share),
    /// To one peer in a process of this machine, by records, which say that they came this way; with what decides whether packets
    /// pass, if that is another host's.
    Near(Arc<Neighbour>, RingPath, Option<Box<RouteGuard>>),
    /// To whom each work request says, by a wire of packets; the last route is kept.
    Datagram(Option<(AddressVector, Route)>),
    /// To one peer, by a stream.
    Stream(StreamPath),
}

/// A wire of packets at one of our addresses, or at a multicast group's.
#[derive(Clone, Debug)]
pub(crate) enum AnyWire {
    /// A socket.
    Udp(Arc<UdpWire>),
    /// An InfiniBand port's.
    Ib(Arc<IbWire>),
    /// One that the driver brought.
    Other(Arc<PacketWire>),
}

/// Such a wire, and what to tell it of the peer.
#[derive(Clone, Debug)]
pub(crate) enum Route {
    /// Through a socket.
    Udp(Arc<UdpWire>, Destination),
    /// Through an InfiniBand port, which finds its way by the address vector.
    Ib(Arc<IbWire>),
    /// By a wire that finds its way by the address vector.
    Other(Arc<PacketWire>),
}

impl AnyWire {
    /// The one that hears a multicast group, by its socket.
    pub(crate) fn of_group(socket: OwnedFd) -> io::Result<Self> {
        let (port, interface) = (UdpPort::new(socket)?, 0);
        Ok(Self::Udp(Arc::new(UdpWire { port, interface })))
    }

    /// A descriptor to wait on.
    fn readable(&self) -> io::Result<BorrowedFd<'_>> {
        let fd = match self {
            Self::Udp(wire) => wire.port.readable(),
            Self::Ib(wire) => wire.readable(),
            Self::Other(wire) => wire.readable(),
        };
        fd.ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Whether there may be more than was received last.
    fn may_have_more(&self) -> bool {
        match self {
            Self::Udp(wire) => wire.port.may_have_more(),
            Self::Ib(wire) => wire.port().may_have_more(),
            Self::Other(_) => true,
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Udp(a), Self::Udp(b)) => Arc::ptr_eq(a, b),
            (Self::Ib(a), Self::Ib(b)) => Arc::ptr_eq(a, b),
            (Self::Other(a), Self::Other(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Lets what arrives tell the headers that datagram queue pairs show.
    fn report_headers(&self) -> io::Result<()> {
        match self {
            Self::Udp(wire) => wire.port.report_headers(true),
            Self::Ib(_) | Self::Other(_) => Ok(()),
        }
    }

    /// The way to a peer.
    fn route(&self, av: &AddressVector) -> Result<Route, VerbsError> {
        match self {
            Self::Udp(wire) => Ok(Route::Udp(wire.clone(), wire.destination(av)?)),
            Self::Ib(wire) => Ok(Route::Ib(wire.clone())),
            Self::Other(wire) => Ok(Route::Other(wire.clone())),
        }
    }
}

impl From<DriverWire> for AnyWire {
    fn from(wire: DriverWire) -> Self {
        match wire {
            DriverWire::Ib(wire) => Self::Ib(wire),
            DriverWire::Other(wire) => Self::Other(wire),
        }
    }
}

impl Route {
    fn caps(&self) -> LinkCaps {
        match self {
            Self::Udp(wire, _) => wire.port.caps(),
            Self::Ib(wire) => wire.caps(),
            Self::Other(wire) => wire.caps(),
        }
    }

    /// Sends a packet, or gathers it with others of the same queue pair.
    fn send(
        &self,
        device: &Device,
        av: &AddressVector,
        frame: &Frame<'_>,
        gathered: &mut Gathered,
        loans: Option<&mut Loans>,
    ) -> Result<(), LinkError> {
        match self {
            Self::Udp(wire, to) => udp::send(device, (wire, to), gathered, loans, frame),
            Self::Ib(wire) => ib::send(device, wire, av, gathered, loans, frame),
            Self::Other(wire) => other::send(device, wire, av, gathered, frame),
        }
    }
}

/// What is known of a wire before there is one.
const NO_CAPS: LinkCaps =
    LinkCaps { max_payload: 4096, lossless: false, by_reference: false, piggybacks_acks: false };

impl Path {
    /// The stream, if it is one.
    pub(crate) fn stream(&mut self) -> Option<&mut StreamPath> {
        match self {
            Self::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// The process at its other end, if that is one which is reached by records.
    #[inline]
    pub(crate) fn neighbour(&self) -> Option<&Arc<Neighbour>> {
        if let Self::Near(near, ..) = self { Some(near) } else { None }
    }

    /// Whether something may be done there without a packet: not while somebody wants to see packets, while the port has no
    /// link, or while the subnet would not let all of them pass, and all answers.
    #[inline]
    pub(crate) fn may_cut_short(&mut self, device: &Device, port: u8) -> bool {
        let Self::Near(.., guard) = self else { return false };
        if device.engine().detour().is_needed(port) {
            return false;
        }
        match guard {
            None => true,
            Some(guard) => guard.is_open(pkey_of(device, guard)),
        }
    }

    /// Takes note of what has left without being handed to [`send`](Self::send), with headers as long as that from the BTH on: ports on the
    /// way count it.
    #[inline]
    pub(crate) fn sent(&mut self, header: usize, payload: usize) {
        if let Self::Near(.., Some(guard)) = self {
            guard.sent(header, payload);
        }
    }

    /// Whether ports on the way count what is sent, so that an answer must be sent by who has it.
    #[inline]
    pub(crate) fn is_counted(&self) -> bool {
        matches!(self, Self::Near(.., Some(_)))
    }

    /// Takes over attributes of the queue pair.
    pub(super) fn follow(&mut self, attr: &QpAttr) {
        if let Self::Near(.., Some(guard)) = self {
            guard.follow(attr);
        }
    }

    /// What the wire can do for queue pairs of a type.
    pub(crate) fn caps(&self, qp_type: QpType) -> LinkCaps {
        match self {
            Self::Near(near, ..) => near.caps(qp_type),
            Self::Peer(route, _) | Self::Datagram(Some((_, route))) => route.caps(),
            Self::Stream(stream) => stream.caps(),
            Self::None | Self::Datagram(None) => NO_CAPS,
        }
    }

    /// How to name the path in records, if it goes by any.
    pub(crate) fn ring_path(&self) -> RingPath {
        if let Self::Near(_, path, _) = self { *path } else { RingPath::default() }
    }

    /// Whether a queue pair of this type whose path this is may go on by another one, with packets of `mtu` bytes.
    pub(crate) fn may_become(&self, other: &Self, (qp_type, mtu): (QpType, u32)) -> bool {
        let (own, other) = (self.caps(qp_type), other.caps(qp_type));
        let same = own.lossless == other.lossless && own.piggybacks_acks == other.piggybacks_acks;
        same && (mtu.max(if own.lossless { own.max_payload } else { 0 })) <= other.max_payload
    }

    /// Bytes that may be in flight now.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        if let Self::Peer(_, share) = self { share.room() } else { u32::MAX }
    }

    /// Sees to it that a datagram's route is at hand.
    #[inline]
    pub(crate) fn find_route(
        &mut self,
        device: &Arc<Device>,
        core: &QpCore,
        av: &AddressVector,
    ) -> Result<(), TxError> {
        match self {
            Self::Peer(..) | Self::Near(..) => Ok(()),
            Self::Datagram(last) => find_datagram_route(device, core, av, last),
            Self::None | Self::Stream(_) => Err(TxError::Busy),
        }
    }

    /// Hands a packet to the wire.
    pub(crate) fn send(
        &mut self,
        device: &Arc<Device>,
        av: &AddressVector,
        frame: &Frame<'_>,
        gathered: Option<&mut Gathered>,
    ) -> Result<(), LinkError> {
        let (route, loans) = match self {
            Self::Near(near, by, guard) => {
                let Some(guard) = guard else { return near.send(device, *by, av, frame) };
                if !guard.passes(pkey_of(device, guard), frame) {
                    // Lost on its way, and counted there: the transport notices.
                    return Ok(());
                }
                near.send(device, *by, av, frame)?;
                guard.sent(frame.header.len(), frame.payload.len());
                return Ok(());
            }
            Self::Peer(route, share) => (route, Some(share.loans())),
            Self::Datagram(Some((_, route))) => (route, None),
            Self::None | Self::Datagram(None) | Self::Stream(_) => return Err(LinkError::Busy),
        };
        let gathered = gathered.ok_or(LinkError::Busy)?;
        route.send(device, av, frame, gathered, loans)
    }

    /// The wire of packets to its one peer.
    pub(crate) fn wire(&self) -> Option<AnyWire> {
        let Self::Peer(route, _) = self else { return None };
        Some(match route {
            Route::Udp(wire, _) => AnyWire::Udp(wire.clone()),
            Route::Ib(wire) => AnyWire::Ib(wire.clone()),
            Route::Other(wire) => AnyWire::Other(wire.clone()),
        })
    }

    /// Sends what was gathered.
    #[inline]
    pub(crate) fn flush(&mut self, device: &Device, gathered: &mut Gathered) {
        let loans = if let Self::Peer(_, share) = self { Some(share.loans()) } else { None };
        gathered.flush(device, loans);
    }

    /// Takes note of whether something is in flight, and takes back what the peer has acknowledged.
    #[inline]
    pub(crate) fn update_in_flight(
        &mut self,
        in_flight: bool,
        unacknowledged: impl FnOnce() -> Option<Psn>,
    ) {
        if let Self::Peer(_, share) = self {
            share.set_active(in_flight);
            share.loans().recycle(unacknowledged);
        }
    }
}

/// The wire by which packets along `av` leave from a port.
fn place_of(device: &Device, slot: u16, port: u8, av: &AddressVector) -> Place {
    let gid_index = match device.kind().row().link_layer {
        LinkLayer::Ethernet => av.sgid_index,
        LinkLayer::InfiniBand => 0,
    };
    Place { port, gid_index, slot }
}

/// What the socket of an entry of a table of GIDs is bound to: an address, and if that is link-local its interface.
fn bound_to(entry: &GidEntry) -> (Gid, u32) {
    let is_of_link = matches!(entry.gid.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
    (entry.gid, if is_of_link { entry.interface_index } else { 0 })
}

/// The port with this number.
fn port_of(ports: &[Port], number: u8) -> Option<&Port> {
    ports.get(usize::from(number).checked_sub(1)?)
}

fn no_such_index(place: Place) -> VerbsError {
    let why = format!("the GID table has no index {}", place.gid_index);
    VerbsError::invalid("find a path", why)
}

/// Datagram queue pairs find their ways anew.
fn forget_routes(device: &Device) {
    for core in device.qps().read().iter() {
        if let Path::Datagram(last) = &mut core.state.lock().path {
            *last = None;
        }
    }
}

/// The P_Key that a queue pair sends with.
#[inline]
fn pkey_of(device: &Device, guard: &RouteGuard) -> Pkey {
    device.pkey(guard.port(), guard.pkey_index()).unwrap_or(Pkey::DEFAULT)
}

fn find_datagram_route(
    device: &Arc<Device>,
    core: &QpCore,
    av: &AddressVector,
    last: &mut Option<(AddressVector, Route)>,
) -> Result<(), TxError> {
    if last.as_ref().is_some_and(|(known, _)| known == av) {
        return Ok(());
    }
    match device.engine().open_route(device, device.slot_for(core.qpn), core.port(), av) {
        Ok(route) => {
            *last = Some((*av, route));
            Ok(())
        }
        Err(error) => {
            tracing::debug!(qpn = %core.qpn, dgid = %av.dgid, %error, "no route");
            super::receive::count(device, Counter::TxErrors);
            Err(TxError::Memory(AccessFault::Gone))
        }
    }
}

impl Engine {
    /// The path from a port that a queue pair has once `attr` is set: none if the call does not change it.
    pub(crate) fn path_for(
        &self,
        device: &Arc<Device>,
        qp: &QpCore,
        port: u8,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<Option<Path>, VerbsError> {
        if device.kind().has_streams() {
            // Its stream comes from the connection manager, and is closed when RESET takes it away.
            return Ok(None);
        }
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset {
            return Ok(Some(Path::None));
        }
        let slot = device.slot_for(qp.qpn);
        if qp.qp_type == QpType::Ud {
            let ready = mask.contains(AttrMask::STATE) && attr.state == QpState::Rtr;
            if ready {
                self.listen_everywhere(device, port, slot)?;
            }
            return Ok(ready.then_some(Path::Datagram(None)));
        }
        if !mask.contains(AttrMask::AV) {
            return Ok(None);
        }
        if mask.contains(AttrMask::DEST_QPN) {
            return self.path_along(device, qp, (port, &attr.av), (attr.dest_qpn, true)).map(Some);
        }
        // Only in SQD. The peer stays, and what the machine knows of the link counts for as long.
        let (is_near, dest) = {
            let now = qp.state.lock();
            (now.path.neighbour().is_some(), now.machine.attr().dest_qpn)
        };
        let path = self.path_along(device, qp, (port, &attr.av), (dest, is_near))?;
        if is_near && path.neighbour().is_none() {
            let why =
                "the peer is a process that is reached by a ring, and the path does not lead there";
            return Err(VerbsError::invalid("change a path", why.to_owned()));
        }
        Ok(Some(path))
    }

    /// The alternate path that a connected queue pair has once `attr` is set. Where packets of its path go by a ring to a
    /// process (`near`) those of the alternate one do, too, and where by a network, by a network. None if a queue pair has no such path.
    pub(crate) fn alternate_for(
        &self,
        device: &Arc<Device>,
        qp: &QpCore,
        attr: &QpAttr,
        near: Option<&Arc<Neighbour>>,
    ) -> Result<Option<Path>, VerbsError> {
        if !qp.is_connected() || device.kind().has_streams() {
            return Ok(None);
        }
        let (port, av) = (attr.alt_port_num, &attr.alt_av);
        let Some(near) = near else {
            return self.path_along(device, qp, (port, av), (attr.dest_qpn, false)).map(Some);
        };
        let guard = match device.control().routes(port) {
            // Within the host packets turn back at the port.
            _ if device.is_own(av) => None,
            // What the ring leads to need not be at the far end: then the receiver sees that packets did not come by its path.
            Some(routes) => Some(Box::new(RouteGuard::by_other_port(routes.clone()))),
            None => {
                let why = "the peer is a process of this host, and the path does not lead there";
                return Err(VerbsError::invalid("load an alternate path", why.to_owned()));
            }
        };
        if device.kind().row().link_layer == LinkLayer::Ethernet
            && device.gid(port, av.sgid_index).is_none()
        {
            let why = format!("the GID table has no index {}", av.sgid_index);
            return Err(VerbsError::invalid("load an alternate path", why));
        }
        Ok(Some(Path::Near(near.clone(), device.ring_path(av), guard)))
    }

    /// The path along `av` from a port to a queue pair, whose process may be reached by records only where `may_be_near`.
    fn path_along(
        &self,
        device: &Arc<Device>,
        qp: &QpCore,
        (port, av): (u8, &AddressVector),
        (dest, may_be_near): (Qpn, bool),
    ) -> Result<Path, VerbsError> {
        if may_be_near {
            if device.is_own(av) {
                if let Some(near) = self.neighbour_with(device, dest)? {
                    return Ok(Path::Near(near, device.ring_path(av), None));
                }
            } else if let Some(path) = self.path_to_host(device, qp, (port, av), dest)? {
                return Ok(path);
            }
        }
        let route = self.route(device, device.slot_for(qp.qpn), port, av)?;
        let share = match &route {
            Route::Udp(wire, to) => self.wires.shared_buffers.share(&wire.port, to.addr, dest),
            Route::Ib(wire) => match wire.routes().endpoint(Lid(av.dlid)) {
                Some(to) => self.wires.shared_buffers.share(wire.port(), to, dest),
                None => Share::alone(),
            },
            Route::Other(_) => Share::alone(),
        };
        Ok(Path::Peer(route, share))
    }

    /// The process of this host that has `dest`, if the two may share memory.
    fn neighbour_with(
        &self,
        device: &Arc<Device>,
        dest: Qpn,
    ) -> Result<Option<Arc<Neighbour>>, VerbsError> {
        let peer = slot_of(dest);
        // What belongs to no process is reached by the hub, save QP1.
        if peer == SERVICE_SLOT && !is_target(dest) {
            return Ok(None);
        }
        if is_target(dest) {
            self.goes_by_hub();
        }
        self.wires.neighbours.to(device, peer)
    }

    /// The path to a queue pair of another host by a ring to its process, if that is within reach: there is no IP network to
    /// imitate between ports of a subnet.
    fn path_to_host(
        &self,
        device: &Arc<Device>,
        qp: &QpCore,
        (port, av): (u8, &AddressVector),
        dest: Qpn,
    ) -> Result<Option<Path>, VerbsError> {
        // XRC is the hub's, which other hosts reach by packets; a host's rings are those of its first port.
        let slot = slot_of(dest);
        if slot == SERVICE_SLOT || qp.qp_type.is_xrc() || port != PORT {
            return Ok(None);
        }
        let Some(routes) = device.control().routes(port) else { return Ok(None) };
        // What the service has told besides is known now.
        self.control_events(device);
        let Some(host) = routes.endpoint(Lid(av.dlid)) else { return Ok(None) };
        let near = self.wires.neighbours.at(device, host, slot)?;
        let guard = || Some(Box::new(RouteGuard::new(routes.clone(), host)));
        Ok(near.map(|near| Path::Near(near, device.ring_path(av), guard())))
    }

    /// Hears every address: a datagram may come to any of them, and may be sent from any, with the queue pair locked.
    fn listen_everywhere(
        &self,
        device: &Arc<Device>,
        port: u8,
        slot: u16,
    ) -> Result<(), VerbsError> {
        loop {
            let mut everywhere = self.wires.everywhere.lock();
            let gids = device.gids(port);
            let heard = self.hear_rows(device, (port, &gids), slot);
            if heard.is_ok() {
                everywhere.insert((port, slot));
            }
            drop(everywhere);
            // The service says that an address is gone before it refuses to attach it; and what it has told besides is known
            // when the first packet leaves.
            self.control_events(device);
            if heard.is_ok() || device.gids(port) == gids {
                return heard;
            }
        }
    }

    /// Opens what is missing of the wires of a slot at the addresses of a port.
    fn hear_rows(
        &self,
        device: &Device,
        (port, gids): (u8, &[GidEntry]),
        slot: u16,
    ) -> Result<(), VerbsError> {
        // An InfiniBand port has one wire, whatever its GIDs.
        let one = device.kind().row().link_layer == LinkLayer::InfiniBand;
        let rows = (0..=u8::MAX).zip(gids).take(if one { 1 } else { usize::MAX });
        let rows = rows.filter(|(_, entry)| one || !entry.gid.is_zero());
        let heard = rows.map(|(gid_index, entry)| {
            let place = Place { port, gid_index, slot };
            let wire = match self.open_wire(place) {
                Some(wire) => wire,
                None => self.add_wire(device, place, entry)?,
            };
            wire.report_headers().map_err(VerbsError::os("ask a socket for network headers"))
        });
        heard.fold(Ok(()), Result::and)
    }

    /// The ports are about to be like this. Who hears every address hears the new ones before a program can see them, and nothing
    /// more is sent from those that are gone, but by who is connected. While the guard lives no wire is opened by the table of
    /// GIDs that was.
    pub(super) fn follow_addresses<'a>(
        &'a self,
        device: &Arc<Device>,
        ports: &[Port],
    ) -> impl Sized + use<'a> {
        let everywhere = self.wires.everywhere.lock();
        let stale = self.take_stale(device, ports);
        for &(number, slot) in &*everywhere {
            let Some(gids) = port_of(ports, number).map(Port::gids) else { continue };
            if let Err(error) = self.hear_rows(device, (number, gids), slot) {
                // The address may be gone again, which the service says next.
                crate::throttled!(warn, %error, "datagrams to a new address are not heard");
            }
        }
        if !stale.is_empty() {
            forget_routes(device);
            self.wires.left.lock().extend(stale);
        }
        self.close_left_wires(device);
        everywhere
    }

    /// The wires of addresses whose rows will be empty, or others'. No new path leads by them.
    fn take_stale(&self, device: &Device, ports: &[Port]) -> Vec<AnyWire> {
        if device.kind().row().link_layer == LinkLayer::InfiniBand {
            return Vec::new();
        }
        let is_stale = |place: &Place| {
            let gids = port_of(ports, place.port).map_or(&[][..], Port::gids);
            let new = gids.get(usize::from(place.gid_index)).map(bound_to);
            new != device.gid(place.port, place.gid_index).as_ref().map(bound_to)
        };
        let mut wires = self.wires.of_addresses.lock();
        wires.extract_if(|place, _| is_stale(place)).map(|(_, wire)| wire).collect()
    }

    /// Closes wires of addresses that are gone, but for those of connected queue pairs; also when one of these is no more. An
    /// address that comes back can be served again only if nobody has its port.
    pub(crate) fn close_left_wires(&self, device: &Device) {
        if self.wires.left.lock().is_empty() {
            return;
        }
        let mut used = Vec::new();
        for core in device.qps().read().iter() {
            used.extend(core.state.lock().path.wire());
            used.extend(core.alternate_wire());
        }
        let open: Vec<_> = self.wires.of_addresses.lock().values().cloned().collect();
        let is_in = |all: &[AnyWire], wire: &AnyWire| all.iter().any(|other| other.is(wire));
        let unused: Vec<_> =
            self.wires.left.lock().extract_if(.., |wire| !is_in(&used, wire)).collect();
        // A driver may have one for several addresses.
        unused.iter().filter(|wire| !is_in(&open, wire)).for_each(|wire| self.unlisten(wire));
    }

    /// The way along `av` from a port, by a wire that is opened if need be.
    fn route(
        &self,
        device: &Arc<Device>,
        slot: u16,
        port: u8,
        av: &AddressVector,
    ) -> Result<Route, VerbsError> {
        let place = place_of(device, slot, port, av);
        if let Some(wire) = self.open_wire(place) {
            return wire.route(av);
        }
        // The address may be new.
        self.control_events(device);
        let everywhere = self.wires.everywhere.lock();
        let wire = match self.open_wire(place) {
            Some(wire) => wire,
            None => match device.gid(port, place.gid_index) {
                Some(entry) => self.add_wire(device, place, &entry)?,
                None => return Err(no_such_index(place)),
            },
        };
        drop(everywhere);
        // What the service has told besides is known when the first packet leaves.
        self.control_events(device);
        wire.route(av)
    }

    /// The same, by a wire that is open.
    fn open_route(
        &self,
        device: &Device,
        slot: u16,
        port: u8,
        av: &AddressVector,
    ) -> Result<Route, VerbsError> {
        let place = place_of(device, slot, port, av);
        self.open_wire(place).ok_or_else(|| no_such_index(place))?.route(av)
    }

    fn open_wire(&self, place: Place) -> Option<AnyWire> {
        self.wires.of_addresses.lock().get(&place).cloned()
    }

    /// Opens a wire, which is listened to from now on. The caller has [`Wires::everywhere`] locked.
    fn add_wire(
        &self,
        device: &Device,
        place: Place,
        entry: &GidEntry,
    ) -> Result<AnyWire, VerbsError> {
        let Place { port, gid_index, slot } = place;
        let wire = if let Some(wire) = device.control().attach_wire(port, gid_index, slot)? {
            AnyWire::from(wire)
        } else {
            let fd = device.control().attach_address(gid_index, slot)?;
            let port = UdpPort::new(fd).map_err(VerbsError::os("use the socket of an address"))?;
            AnyWire::Udp(Arc::new(UdpWire { port, interface: entry.interface_index }))
        };
        self.listen(wire.clone())?;
        self.wires.of_addresses.lock().insert(place, wire.clone());
        Ok(wire)
    }

    /// Takes in what the service says of wires.
    pub(super) fn wire_event(&self, device: &Arc<Device>, event: ControlEvent) {
        match event {
            ControlEvent::Ring { peer, end } => self.wires.neighbours.add(device, peer, end),
            ControlEvent::Stream { qpn, number, stream, params, receive_wait } => {
                self.take_stream(device, (qpn, number), stream, &params, receive_wait);
            }
            ControlEvent::CloseStream { qpn, number } => self.close_stream(device, qpn, number),
            other => tracing::debug!(?other, "no wire's"),
        }
    }

    /// A queue pair that is being destroyed, or whose device has failed, has no path any more.
    pub(super) fn close_path(&self, qpn: Qpn, path: &mut Path) {
        if let Path::Stream(stream) = std::mem::replace(path, Path::None) {
            self.end_stream(stream.ended(qpn));
        }
    }

    /// After the service is gone: the next one wants the ports that our wires are bound to.
    pub(super) fn close_wires(&self) {
        self.wires.of_addresses.lock().clear();
        self.wires.left.lock().clear();
        self.deafen();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    /// What names a kind of wire.
    const KINDS: [&str; 9] = [
        "UdpPort",
        "IbWire",
        "TxBatch",
        "RxBatch",
        "TcpStream",
        "RingEnd",
        "link::udp",
        "link::ring",
        "link::tcp",
    ];

    /// The lines of code below a folder that name one.
    fn named(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if !path.ends_with("engine/wire") {
                    named(&path, found);
                }
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let names = code.filter(|line| KINDS.iter().any(|kind| line.contains(kind)));
            found.extend(names.map(|line| format!("{}: {line}", path.display())));
        }
    }

    #[test]
    fn the_rest_of_the_engine_names_no_kind_of_wire() {
        let mut found = Vec::new();
        named(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine"), &mut found);
        assert!(found.is_empty(), "{found:#?}");
    }
}
