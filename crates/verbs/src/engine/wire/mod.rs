//! The wires that carry packets. Only this folder of the engine distinguishes kinds of wires; the rest uses a queue pair's [`Path`], and a
//! round's [`Inbound`].
//!
//! - [`AnyWire`]: a packet wire at an address, of any kind. A further kind becomes a variant of it, unless the device's driver provides the
//!   wire: [`AnyWire::Other`] is for such wires ([`Control::attach_wire`])
//! - `gathered`: packets gathered into one system call, zero-copy
//! - `udp`, `ib`: the wires that gather packets
//! - `ring`: records to a process of this host, and all shortcuts that need no packets
//! - `stream`: streams, one per queue pair
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

/// The form of a path in records, and preparations in the kernel before a wire exists.
pub(crate) use rdmux_link::ring::{RingPath, prepare};

pub(crate) use self::gathered::Gathered;
pub(crate) use self::inbound::Inbound;
pub(crate) use self::ring::{IN_PLACE, LateWakes, Neighbour, Neighbours, direct, named, short};
use self::stream::{Ended, Resumed, StreamPath};
use self::udp::UdpWire;
use self::udp::shared_buffer::{Share, SharedBuffers};
use self::udp::zerocopy::{SharedPool, ZeroCopySends};
use super::Engine;
use crate::engine::device::{Device, PORT};
use crate::engine::qp::QpCore;
use crate::objects::control::{ControlEvent, DriverWire, SERVICE_SLOT, is_target, slot_of};
use crate::objects::counters::Counter;
use crate::objects::error::VerbsError;
use crate::objects::kind::LinkLayer;
use crate::objects::port::{GidEntry, Port};

/// The wires of a device, and state that their senders share.
#[derive(Default)]
pub(crate) struct Wires {
    /// The wires of this device's addresses.
    of_addresses: Mutex<HashMap<Place, AnyWire>>,
    /// The ports and slots of datagram queue pairs, which receive on every address. Locked while wires are opened, and while the GID tables
    /// that determine them change.
    everywhere: Mutex<BTreeSet<(u8, u16)>>,
    /// Wires of removed addresses, by which connected queue pairs still send and receive: the address may return.
    left: Mutex<Vec<AnyWire>>,
    shared_buffers: SharedBuffers,
    zerocopy_pool: SharedPool,
    pub(super) neighbours: Neighbours,
    pub(super) late_wakes: LateWakes,
    /// Streams that are no longer needed.
    ended: Mutex<Vec<Ended>>,
    /// Paused streams that must be read again.
    resumed: Mutex<Vec<Resumed>>,
}

/// The key of a wire: a slot at an address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    port: u8,
    gid_index: u8,
    slot: u16,
}

/// The way by which a queue pair's packets are sent.
#[derive(Debug)]
pub(crate) enum Path {
    /// No path yet.
    None,
    /// Packets to one peer, by a packet wire.
    Peer(Route, Share),
    /// Packets to one peer in a process of this machine, by records that name this path. The guard decides whether packets pass, if the
    /// peer is on another host.
    Near(Arc<Neighbour>, RingPath, Option<Box<RouteGuard>>),
    /// Packets to the destination of each work request, by a packet wire. The last route is cached.
    Datagram(Option<(AddressVector, Route)>),
    /// Frames to one peer, by a stream.
    Stream(StreamPath),
}

/// A packet wire at one of this device's addresses, or at a multicast group's.
#[derive(Clone, Debug)]
pub(crate) enum AnyWire {
    /// A socket.
    Udp(Arc<UdpWire>),
    /// The wire of an InfiniBand port.
    Ib(Arc<IbWire>),
    /// A wire that the driver provides.
    Other(Arc<PacketWire>),
}

/// A packet wire, and the peer's address on it.
#[derive(Clone, Debug)]
pub(crate) enum Route {
    /// Through a socket.
    Udp(Arc<UdpWire>, Destination),
    /// Through an InfiniBand port, which finds the route by the address vector.
    Ib(Arc<IbWire>),
    /// Packets by a wire of another kind, which finds the route by the address vector.
    Other(Arc<PacketWire>),
}

impl AnyWire {
    /// Creates the wire that receives a multicast group from its socket.
    pub(crate) fn of_group(socket: OwnedFd) -> io::Result<Self> {
        let (port, interface) = (UdpPort::new(socket)?, 0);
        Ok(Self::Udp(Arc::new(UdpWire { port, interface })))
    }

    /// Returns a descriptor to wait on.
    fn readable(&self) -> io::Result<BorrowedFd<'_>> {
        let fd = match self {
            Self::Udp(wire) => wire.port.readable(),
            Self::Ib(wire) => wire.readable(),
            Self::Other(wire) => wire.readable(),
        };
        fd.ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Returns whether there may be more than the last receive took.
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

    /// Enables reporting of the network headers that datagram queue pairs expose.
    fn report_headers(&self) -> io::Result<()> {
        match self {
            Self::Udp(wire) => wire.port.report_headers(true),
            Self::Ib(_) | Self::Other(_) => Ok(()),
        }
    }

    /// Returns the route to a peer.
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
        zerocopy: Option<&mut ZeroCopySends>,
    ) -> Result<(), LinkError> {
        match self {
            Self::Udp(wire, to) => udp::send(device, (wire, to), gathered, zerocopy, frame),
            Self::Ib(wire) => ib::send(device, wire, av, gathered, zerocopy, frame),
            Self::Other(wire) => other::send(device, wire, av, gathered, frame),
        }
    }
}

/// The capabilities that are assumed before a wire exists.
const NO_CAPS: LinkCaps =
    LinkCaps { max_payload: 4096, lossless: false, by_reference: false, piggybacks_acks: false };

impl Path {
    /// Returns the stream, if the path is one.
    pub(crate) fn stream(&mut self) -> Option<&mut StreamPath> {
        match self {
            Self::Stream(stream) => Some(stream),
            _ => None,
        }
    }

    /// Returns the process at its other end, if it is reached by records.
    #[inline]
    pub(crate) fn neighbour(&self) -> Option<&Arc<Neighbour>> {
        if let Self::Near(near, ..) = self { Some(near) } else { None }
    }

    /// Returns whether shortcuts past packets are permitted: not during a capture, while the port has no link, or while the subnet would
    /// not pass every packet and every answer.
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

    /// Counts a packet that was sent without [`send`](Self::send), whose headers have this length from the BTH on: ports on the way count
    /// it.
    #[inline]
    pub(crate) fn sent(&mut self, header: usize, payload: usize) {
        if let Self::Near(.., Some(guard)) = self {
            guard.sent(header, payload);
        }
    }

    /// Returns whether ports on the way count packets, so that the owner of the data must send an answer itself.
    #[inline]
    pub(crate) fn is_counted(&self) -> bool {
        matches!(self, Self::Near(.., Some(_)))
    }

    /// Updates the guard for new attributes of the queue pair.
    pub(super) fn follow(&mut self, attr: &QpAttr) {
        if let Self::Near(.., Some(guard)) = self {
            guard.follow(attr);
        }
    }

    /// Returns the capabilities of the wire for queue pairs of a type.
    pub(crate) fn caps(&self, qp_type: QpType) -> LinkCaps {
        match self {
            Self::Near(near, ..) => near.caps(qp_type),
            Self::Peer(route, _) | Self::Datagram(Some((_, route))) => route.caps(),
            Self::Stream(stream) => stream.caps(),
            Self::None | Self::Datagram(None) => NO_CAPS,
        }
    }

    /// Returns the path's form in records, if it uses a ring.
    pub(crate) fn ring_path(&self) -> RingPath {
        if let Self::Near(_, path, _) = self { *path } else { RingPath::default() }
    }

    /// Returns whether a queue pair of this type can move from this path to another, with packets of `mtu` bytes.
    pub(crate) fn may_become(&self, other: &Self, (qp_type, mtu): (QpType, u32)) -> bool {
        let (own, other) = (self.caps(qp_type), other.caps(qp_type));
        let same = own.lossless == other.lossless && own.piggybacks_acks == other.piggybacks_acks;
        same && (mtu.max(if own.lossless { own.max_payload } else { 0 })) <= other.max_payload
    }

    /// Returns how many bytes may be in flight now.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        if let Self::Peer(_, share) = self { share.room() } else { u32::MAX }
    }

    /// Finds a datagram's route, unless it is cached.
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

    /// Passes a packet to the wire.
    pub(crate) fn send(
        &mut self,
        device: &Arc<Device>,
        av: &AddressVector,
        frame: &Frame<'_>,
        gathered: Option<&mut Gathered>,
    ) -> Result<(), LinkError> {
        let (route, zerocopy) = match self {
            Self::Near(near, by, guard) => {
                let Some(guard) = guard else { return near.send(device, *by, av, frame) };
                if !guard.passes(pkey_of(device, guard), frame) {
                    // Dropped on its way, and counted there: the transport notices.
                    return Ok(());
                }
                near.send(device, *by, av, frame)?;
                guard.sent(frame.header.len(), frame.payload.len());
                return Ok(());
            }
            Self::Peer(route, share) => (route, Some(share.zerocopy())),
            Self::Datagram(Some((_, route))) => (route, None),
            Self::None | Self::Datagram(None) | Self::Stream(_) => return Err(LinkError::Busy),
        };
        let gathered = gathered.ok_or(LinkError::Busy)?;
        route.send(device, av, frame, gathered, zerocopy)
    }

    /// Returns the packet wire to its one peer.
    pub(crate) fn wire(&self) -> Option<AnyWire> {
        let Self::Peer(route, _) = self else { return None };
        Some(match route {
            Route::Udp(wire, _) => AnyWire::Udp(wire.clone()),
            Route::Ib(wire) => AnyWire::Ib(wire.clone()),
            Route::Other(wire) => AnyWire::Other(wire.clone()),
        })
    }

    /// Sends the gathered packets.
    #[inline]
    pub(crate) fn flush(&mut self, device: &Device, gathered: &mut Gathered) {
        let zerocopy = if let Self::Peer(_, share) = self { Some(share.zerocopy()) } else { None };
        gathered.flush(device, zerocopy);
    }

    /// Records whether the queue pair has packets in flight, and recycles zero-copy buffers that the peer has acknowledged.
    #[inline]
    pub(crate) fn update_in_flight(
        &mut self,
        in_flight: bool,
        unacknowledged: impl FnOnce() -> Option<Psn>,
    ) {
        if let Self::Peer(_, share) = self {
            share.set_active(in_flight);
            share.zerocopy().recycle(unacknowledged);
        }
    }
}

/// Returns the key of the wire for packets along `av` from a port.
fn place_of(device: &Device, slot: u16, port: u8, av: &AddressVector) -> Place {
    let gid_index = match device.kind().row().link_layer {
        LinkLayer::Ethernet => av.sgid_index,
        LinkLayer::InfiniBand => 0,
    };
    Place { port, gid_index, slot }
}

/// Returns what the socket of a GID table entry is bound to: an address, and its interface if the address is link-local.
fn bound_to(entry: &GidEntry) -> (Gid, u32) {
    let is_of_link = matches!(entry.gid.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local());
    (entry.gid, if is_of_link { entry.interface_index } else { 0 })
}

/// Returns the port with this number.
fn port_of(ports: &[Port], number: u8) -> Option<&Port> {
    ports.get(usize::from(number).checked_sub(1)?)
}

fn no_such_index(place: Place) -> VerbsError {
    let why = format!("the GID table has no index {}", place.gid_index);
    VerbsError::invalid("find a path", why)
}

/// Discards the cached routes of datagram queue pairs.
fn forget_routes(device: &Device) {
    for core in device.qps().read().iter() {
        if let Path::Datagram(last) = &mut core.state.lock().path {
            *last = None;
        }
    }
}

/// Returns the P_Key that a queue pair sends with.
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
            tracing::debug!(qpn = %core.qpn, dgid = %av.dgid, %error, "no route to the destination");
            super::receive::count(device, Counter::TxErrors);
            Err(TxError::Memory(AccessFault::Gone))
        }
    }
}

impl Engine {
    /// Returns the path from a port that a queue pair has once `attr` is set: none if the call does not change it.
    pub(crate) fn path_for(
        &self,
        device: &Arc<Device>,
        qp: &QpCore,
        port: u8,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<Option<Path>, VerbsError> {
        if device.kind().has_streams() {
            // The connection manager sets its stream, which is closed in RESET.
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
        // Only in SQD. The peer stays the same, so the machine's state for the link remains valid.
        let (is_near, dest) = {
            let now = qp.state.lock();
            (now.path.neighbour().is_some(), now.machine.attr().dest_qpn)
        };
        let path = self.path_along(device, qp, (port, &attr.av), (dest, is_near))?;
        if is_near && path.neighbour().is_none() {
            let why = "the peer is a process of this host, and the new path does not lead to it";
            return Err(VerbsError::invalid("change a path", why.to_owned()));
        }
        Ok(Some(path))
    }

    /// Returns the alternate path of a connected queue pair once `attr` is set. If its present packets use a ring (`near`), those of the
    /// alternate path do, too. Otherwise both use a network. Returns none for a queue pair without such a path.
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
            // Within the host, packets are looped back at the port.
            _ if device.is_own(av) => None,
            // The process behind the ring need not be at the far end of the path: the receiver then sees that packets did not arrive by its
            // path.
            Some(routes) => Some(Box::new(RouteGuard::by_other_port(routes.clone()))),
            None => {
                let why = "the peer is a process of this host, and the alternate path does not lead to it";
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

    /// Returns the path along `av` from a port to a queue pair. Its process may be reached by records only if `may_be_near`.
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

    /// Returns the process of this host that has `dest`, if the two may share memory.
    fn neighbour_with(
        &self,
        device: &Arc<Device>,
        dest: Qpn,
    ) -> Result<Option<Arc<Neighbour>>, VerbsError> {
        let peer = slot_of(dest);
        // Objects that belong to no process are reached through the hub, except QP1.
        if peer == SERVICE_SLOT && !is_target(dest) {
            return Ok(None);
        }
        if is_target(dest) {
            self.goes_by_hub();
        }
        self.wires.neighbours.to(device, peer)
    }

    /// Returns the path to a queue pair of another host by a ring to its process, if rings reach it. Ports of a subnet have no IP network
    /// between them to imitate.
    fn path_to_host(
        &self,
        device: &Arc<Device>,
        qp: &QpCore,
        (port, av): (u8, &AddressVector),
        dest: Qpn,
    ) -> Result<Option<Path>, VerbsError> {
        // XRC belongs to the hub, which other hosts reach by packets. A host's rings belong to its first port.
        let slot = slot_of(dest);
        if slot == SERVICE_SLOT || qp.qp_type.is_xrc() || port != PORT {
            return Ok(None);
        }
        let Some(routes) = device.control().routes(port) else { return Ok(None) };
        // The service may have sent other events; they are processed now.
        self.control_events(device);
        let Some(host) = routes.endpoint(Lid(av.dlid)) else { return Ok(None) };
        let near = self.wires.neighbours.at(device, host, slot)?;
        let guard = || Some(Box::new(RouteGuard::new(routes.clone(), host)));
        Ok(near.map(|near| Path::Near(near, device.ring_path(av), guard())))
    }

    /// Opens wires on every address: a datagram may arrive on any of them, and may be sent from any. A send has the queue pair
    /// locked, when no wire can be opened.
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
            // The service announces the removal of an address before it refuses to attach it. Other events that it has sent are processed
            // before the first packet is sent.
            self.control_events(device);
            if heard.is_ok() || device.gids(port) == gids {
                return heard;
            }
        }
    }

    /// Opens the missing wires of a slot at the addresses of a port.
    fn hear_rows(
        &self,
        device: &Device,
        (port, gids): (u8, &[GidEntry]),
        slot: u16,
    ) -> Result<(), VerbsError> {
        // An InfiniBand port has one wire for all its GIDs.
        let one = device.kind().row().link_layer == LinkLayer::InfiniBand;
        let rows = (0..=u8::MAX).zip(gids).take(if one { 1 } else { usize::MAX });
        let rows = rows.filter(|(_, entry)| one || !entry.gid.is_zero());
        let heard = rows.map(|(gid_index, entry)| {
            let place = Place { port, gid_index, slot };
            let wire = match self.open_wire(place) {
                Some(wire) => wire,
                None => self.add_wire(device, place, entry)?,
            };
            wire.report_headers().map_err(VerbsError::os("enable network headers on a socket"))
        });
        heard.fold(Ok(()), Result::and)
    }

    /// Prepares for a change of the ports. Datagram queue pairs receive on new addresses before a program can see those. Only connected
    /// queue pairs still send from removed addresses. While the returned guard lives, no wire is opened by the old GID tables.
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
                // The address may have been removed again, which the service's next event reports.
                crate::throttled!(warn, %error, "cannot receive datagrams at a new address");
            }
        }
        if !stale.is_empty() {
            forget_routes(device);
            self.wires.left.lock().extend(stale);
        }
        self.close_left_wires(device);
        everywhere
    }

    /// Removes and returns the wires of addresses whose entries become empty or change. No new path uses them.
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

    /// Closes wires of removed addresses, except those of connected queue pairs. Called again when such a queue pair is gone. An address
    /// that returns can be served again only if its port is free.
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
        // A driver may have one wire for several addresses.
        unused.iter().filter(|wire| !is_in(&open, wire)).for_each(|wire| self.unlisten(wire));
    }

    /// Returns the route along `av` from a port, by a wire that is opened if need be.
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
        // Other events that the service has sent are processed before the first packet is sent.
        self.control_events(device);
        wire.route(av)
    }

    /// Returns the route along `av` from a port, if its wire is open.
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

    /// Opens a wire and starts receiving from it. The caller has [`Wires::everywhere`] locked.
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

    /// Handles an event of the service that concerns wires.
    pub(super) fn wire_event(&self, device: &Arc<Device>, event: ControlEvent) {
        match event {
            ControlEvent::Ring { peer, end } => self.wires.neighbours.add(device, peer, end),
            ControlEvent::Stream { qpn, number, stream, params, receive_wait } => {
                self.take_stream(device, (qpn, number), stream, &params, receive_wait);
            }
            ControlEvent::CloseStream { qpn, number } => self.close_stream(device, qpn, number),
            other => tracing::debug!(?other, "ignored an event that concerns no wire"),
        }
    }

    /// Removes the path of a queue pair that is being destroyed, or whose device has failed.
    pub(super) fn close_path(&self, qpn: Qpn, path: &mut Path) {
        if let Path::Stream(stream) = std::mem::replace(path, Path::None) {
            self.end_stream(stream.ended(qpn));
        }
    }

    /// Closes all wires after the service is gone: the next service needs their ports.
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

    /// Identifiers that name a kind of wire.
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

    /// Collects the lines of code below a folder that name a kind of wire.
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
    fn engine_source_outside_wire_names_no_wire_kind() {
        let mut found = Vec::new();
        named(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/engine"), &mut found);
        assert!(found.is_empty(), "{found:#?}");
    }
}
