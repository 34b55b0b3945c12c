//! Checks of packets to send, and their destinations.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rdmux_transport::attr::AddressVector;
use rdmux_wire::lrh::{Lnh, Lrh};
use rdmux_wire::{Grh, Guid, Lid, Pkey, Qpn};

use super::batch::{Batch, Contents, Numbers, Outcome, Shape};
use super::state::Known;
use super::wire::own_addr;
use super::{
    Encap, IbDrop, KeyViolation, Name, Outlet, Routes, SentCounts, SentKind, Violated, WayChanged,
    multicast,
};
use crate::guarded::Unmapped;
use crate::routes::{Peer, Route, RouteId, RouteView, Way};
use crate::rows::Row;
use crate::udp::ZeroCopyBuf;
use crate::wire::{Flushed, Frame, LinkError, TxFail};

/// The private state of a sender: gathered packets, and known destinations. It belongs to one thread, and serves its wires in turn; packets
/// gathered for one wire are flushed before it serves another.
pub struct Sender {
    /// The routes that are known.
    of: Option<Arc<Routes>>,
    known: Known,
    counts: SentCounts,
    /// The destinations that were looked up last, by the LID's low bits.
    found: [Found; Self::FOUND],
    /// Ways to a group's members.
    group: Vec<Way>,
    /// The ports that receive a group by IP multicast, and the addresses at which they receive copies.
    near: Vec<(Guid, SocketAddr)>,
    /// A buffer for a packet with several destinations.
    copy: Vec<u8>,
    /// A buffer for the datagram with it for ports that receive the group by IP multicast.
    datagram: Vec<u8>,
    pub(super) batch: Batch,
    /// The packets and bytes sent since the last flush.
    left: Flushed,
}

/// The slot whose socket of a host gets packets to a group: slot 0, which is the service's. The destination QPN, all ones, would select the
/// socket of XRC targets.
const GROUP_STEER: u32 = 0;

/// The destination of packets to a LID.
#[derive(Clone, Copy, Debug)]
struct Target {
    addr: SocketAddr,
    /// The way to the port. None for this port itself.
    way: Option<Way>,
    /// The route by which packets are counted.
    route: RouteId,
}

/// A cached destination; unused if its LID is 0.
#[derive(Clone, Copy, Debug)]
struct Found {
    dlid: Lid,
    target: Target,
}

impl Found {
    const NOTHING: Self = Self {
        dlid: Lid::NONE,
        target: Target {
            addr: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
            way: None,
            route: RouteId::NONE,
        },
    };
}

/// The wire by which packets leave.
pub(super) struct Exit<'w, O> {
    pub(super) port: &'w O,
    pub(super) routes: &'w Arc<Routes>,
    pub(super) numbers: &'w Numbers,
}

impl<O> Clone for Exit<'_, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O> Copy for Exit<'_, O> {}

/// The reason why a packet is not sent.
pub(super) enum Refused {
    /// The packet is lost.
    Lost(IbDrop),
    /// The error must be reported to the queue pair.
    Link(LinkError),
}

impl From<IbDrop> for Refused {
    fn from(why: IbDrop) -> Self {
        Self::Lost(why)
    }
}

impl From<Unmapped> for Refused {
    fn from(error: Unmapped) -> Self {
        Self::Link(error.into())
    }
}

/// LRH and GRH, encoded.
pub(super) struct RouteHeaders {
    bytes: [u8; Lrh::LEN + Grh::LEN],
    len: usize,
}

impl RouteHeaders {
    /// Creates the headers, with length fields for this many bytes from BTH to ICRC. Returns none if the LRH cannot encode the length.
    #[inline]
    pub(super) fn new(lrh: Lrh, grh: Option<Grh>, rest: usize) -> Option<Self> {
        let len = Lrh::LEN + if grh.is_some() { Grh::LEN } else { 0 };
        let total = len.checked_add(rest).filter(|total| total % 4 == 0)?;
        let pkt_len = u16::try_from(total / 4).ok().filter(|len| *len <= Lrh::MAX_PKT_LEN)?;
        let lnh = if grh.is_some() { Lnh::Global } else { Lnh::Local };
        let mut bytes = [0; Lrh::LEN + Grh::LEN];
        bytes[..Lrh::LEN].copy_from_slice(&Lrh { lnh, pkt_len, ..lrh }.to_bytes());
        if let Some(grh) = grh {
            let pay_len = u16::try_from(rest).ok()?;
            let grh = Grh { pay_len, next_hdr: Grh::NEXT_BTH, ..grh };
            bytes[Lrh::LEN..].copy_from_slice(&grh.to_bytes());
        }
        Some(Self { bytes, len })
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Sender {
    /// The number of cached LIDs.
    const FOUND: usize = 64;
    /// The maximum number of changes of a route while a packet is sent.
    const TRIES: usize = 16;

    /// Creates a sender without packets or known routes.
    pub fn new() -> Self {
        Self {
            of: None,
            known: Known::default(),
            counts: SentCounts::new(),
            found: [Found::NOTHING; Self::FOUND],
            group: Vec::new(),
            near: Vec::new(),
            copy: Vec::new(),
            datagram: Vec::new(),
            batch: Batch::new(),
            left: Flushed::default(),
        }
    }

    /// Updates the known routes to the present ones of a wire.
    #[inline]
    fn turn_to(&mut self, routes: &Arc<Routes>) {
        if !self.of.as_ref().is_some_and(|of| Arc::ptr_eq(of, routes)) {
            self.batch.clear();
            (self.of, self.known) = (Some(routes.clone()), Known::default());
        }
        if self.known.refresh(routes) {
            self.found = [Found::NOTHING; Self::FOUND];
            self.counts.refresh(self.known.count_by());
            routes.widen();
        }
    }

    /// Gathers a packet, if the batch has room for it.
    pub(super) fn send(
        &mut self,
        exit: Exit<'_, impl Outlet>,
        av: &AddressVector,
        frame: &Frame<'_>,
    ) -> Result<(), Refused> {
        self.turn_to(exit.routes);
        if !self.known.is_active() {
            return Err(IbDrop::TxInactive.into());
        }
        let (pkey, dest) = addressed(frame).ok_or(IbDrop::TxLength)?;
        let pkey = self.known.pkey_index(pkey).ok_or(IbDrop::TxPkey)?;
        let headers = self.headers(av, frame)?;
        let contents = Contents { route: headers.as_slice(), frame };
        let total = u16::try_from(contents.len()).map_err(|_| IbDrop::TxLength)?;
        let dlid = Lid(av.dlid);
        if dlid.is_multicast() {
            return self.send_to_group(exit, (av, pkey), &contents, total);
        }
        let kind = kind(av, pkey);
        let words = u64::from(total / 4);
        let checked = self.find_counted(exit.port, kind).and_then(|(at, row)| {
            let Target { addr, way, .. } = &self.found[at].target;
            let checked = self.known.check(way.as_ref(), av.sl, pkey, frame.payload.len());
            checked.map(|()| (*addr, row))
        });
        let (addr, row) = match checked {
            Ok(found) => found,
            Err(why) => {
                exit.routes.lose(kind, frame.payload.len(), words);
                if why == IbDrop::TxPkey {
                    report(exit.routes, contents.route, frame);
                }
                return Err(why.into());
            }
        };
        let shape = shape(exit, addr, dest.get(), total)?;
        if !self.batch.has_room(&shape) {
            return Err(Refused::Link(LinkError::Full));
        }
        self.batch.push(&shape, exit.numbers, |to| contents.put(to))?;
        self.counts.add(row, 1, words);
        Ok(())
    }

    /// Sends a packet to each member of the group.
    fn send_to_group(
        &mut self,
        exit: Exit<'_, impl Outlet>,
        (av, pkey): (&AddressVector, usize),
        contents: &Contents<'_>,
        total: u16,
    ) -> Result<(), Refused> {
        // No port sends a packet that it must not, not even to its own host.
        self.known.check(None, av.sl, pkey, contents.frame.payload.len())?;
        let view = self.known.view.clone().ok_or(IbDrop::TxInactive)?;
        let (mut group, mut near) =
            (std::mem::take(&mut self.group), std::mem::take(&mut self.near));
        let row = self.find_group(&view, kind(av, pkey), &mut group);
        near.clear();
        let sent = self.send_to_ways(exit, &view, (av, pkey), contents, (&group, &mut near));
        let is_empty = group.is_empty();
        (self.group, self.near) = (group, near);
        // A packet that fails has not left.
        sent?;
        self.counts.add(row, 1, u64::from(total / 4));
        if is_empty { Err(IbDrop::TxNoWay.into()) } else { Ok(()) }
    }

    fn send_to_ways(
        &mut self,
        exit: Exit<'_, impl Outlet>,
        view: &RouteView,
        (av, pkey): (&AddressVector, usize),
        contents: &Contents<'_>,
        (group, near): (&[Way], &mut Vec<(Guid, SocketAddr)>),
    ) -> Result<(), Refused> {
        let mut copy = std::mem::take(&mut self.copy);
        copy.resize(contents.len(), 0);
        let mut send_all = || -> Result<(), Refused> {
            contents.put(&mut copy)?;
            // Members of the own port receive it, too, as no switch sends it back (IBTA 10.5.2.2).
            let own = own_addr(exit.port);
            if self.known.own.multicast {
                near.push((self.known.own.port_guid, own));
            } else {
                self.copy_at(exit, own, &copy)?;
            }
            for way in group {
                match self.end_of(view, (way, av.sl, pkey), contents) {
                    Ok(peer) if peer.multicast && self.known.own.multicast => {
                        near.push((peer.port_guid, peer.addr));
                    }
                    // Some members may have it already; to the others it is lost.
                    Ok(peer) => {
                        if self.copy_at(exit, peer.addr, &copy).is_err() {
                            exit.routes.count(IbDrop::TxRefused, 1);
                        }
                    }
                    Err(why) => {
                        exit.routes.count(why, 1);
                        if why == IbDrop::TxPkey {
                            report(exit.routes, contents.route, contents.frame);
                        }
                    }
                }
            }
            near.chunks(multicast::MOST).for_each(|near| self.send_near(exit, av, near, &copy));
            Ok(())
        };
        let sent = send_all();
        self.copy = copy;
        sent
    }

    /// Returns the destination of a group's packet along one of its ways.
    fn end_of(
        &self,
        view: &RouteView,
        (way, sl, pkey): (&Way, u8, usize),
        contents: &Contents<'_>,
    ) -> Result<Peer, IbDrop> {
        self.known.check(Some(way), sl, pkey, contents.frame.payload.len())?;
        view.peer(way.peer).ok_or(IbDrop::TxNoWay)
    }

    /// Sends a packet to ports that receive its group by IP multicast: one datagram for all, or a copy for each if the kernel refuses that.
    fn send_near(
        &mut self,
        exit: Exit<'_, impl Outlet>,
        av: &AddressVector,
        near: &[(Guid, SocketAddr)],
        copy: &[u8],
    ) {
        // Packets gathered earlier are sent first.
        let flushed = self.flush_batch(exit, None).1;
        let ports = near.iter().map(|(guid, _)| *guid);
        multicast::put(self.known.fabric, ports, copy, &mut self.datagram);
        let name = Name::from(multicast::destination(av.dgid));
        let len = self.datagram.len();
        if flushed.is_ok() && exit.port.send(&name, len, &self.datagram).is_ok() {
            self.left.packets += 1;
            self.left.bytes += copy.len();
            return;
        }
        for (_, addr) in near {
            if self.copy_at(exit, *addr, copy).is_err() {
                exit.routes.count(IbDrop::TxRefused, 1);
            }
        }
    }

    /// Sends a copy to one address.
    fn copy_at(
        &mut self,
        exit: Exit<'_, impl Outlet>,
        addr: SocketAddr,
        copy: &[u8],
    ) -> Result<(), Refused> {
        let total = u16::try_from(copy.len()).map_err(|_| IbDrop::TxLength)?;
        let shape = shape(exit, addr, GROUP_STEER, total)?;
        if !self.batch.has_room(&shape) && self.flush_batch(exit, None).1.is_err() {
            return Err(Refused::Link(LinkError::Busy));
        }
        self.batch.push(&shape, exit.numbers, |to| {
            to.copy_from_slice(copy);
            Ok(())
        })?;
        Ok(())
    }

    #[inline]
    fn headers(&self, av: &AddressVector, frame: &Frame<'_>) -> Result<RouteHeaders, IbDrop> {
        let own = &self.known.own;
        let (dlid, sl) = (Lid(av.dlid), av.sl & 0xf);
        let slid = own.lid_with(av.src_path_bits);
        let grh = if av.is_global || dlid.is_multicast() {
            let sgid = self.known.gids.get(usize::from(av.sgid_index)).ok_or(IbDrop::TxGid)?;
            Some(Grh {
                tclass: av.traffic_class,
                flow_label: av.flow_label,
                pay_len: 0,
                next_hdr: Grh::NEXT_BTH,
                hop_limit: av.hop_limit,
                sgid: *sgid,
                dgid: av.dgid,
            })
        } else {
            None
        };
        let lrh = Lrh { sl, dlid, slid, ..Lrh::DEFAULT };
        let rest = frame.len().saturating_add(rdmux_wire::icrc::Icrc::LEN);
        RouteHeaders::new(lrh, grh, rest).ok_or(IbDrop::TxLength)
    }

    /// Returns the index of the destination in `found`, and the row in which its packets are counted. Packets to the own port have no row.
    #[inline]
    fn find_counted(
        &mut self,
        port: &impl Outlet,
        kind: SentKind,
    ) -> Result<(usize, Option<Row>), IbDrop> {
        for _ in 0..Self::TRIES {
            let at = self.find(port, kind.dlid).ok_or(IbDrop::TxNoWay)?;
            let Target { way, route, .. } = &self.found[at].target;
            if way.is_none() {
                return Ok((at, None));
            }
            match self.counts.row(self.known.count_by(), kind, *route) {
                Ok(row) => return Ok((at, row)),
                Err(WayChanged) => self.found[at] = Found::NOTHING,
            }
        }
        Err(IbDrop::TxNoWay)
    }

    /// Finds the ways to a group's members, and the row in which a packet is counted.
    fn find_group(
        &mut self,
        view: &RouteView,
        kind: SentKind,
        group: &mut Vec<Way>,
    ) -> Option<Row> {
        for _ in 0..Self::TRIES {
            let route = view.group(kind.dlid, group);
            if let Ok(row) = self.counts.row(self.known.count_by(), kind, route) {
                return row;
            }
        }
        None
    }

    /// Returns the index in `found` of the destination of packets to a LID.
    #[inline]
    fn find(&mut self, port: &impl Outlet, dlid: Lid) -> Option<usize> {
        let at = usize::from(dlid.0) % Self::FOUND;
        if self.found[at].dlid == dlid && dlid != Lid::NONE {
            return Some(at);
        }
        self.look_up(port, dlid, at)
    }

    #[cold]
    fn look_up(&mut self, port: &impl Outlet, dlid: Lid, at: usize) -> Option<usize> {
        let target = if self.known.own.path_bits(dlid).is_some() {
            Target { addr: own_addr(port), way: None, route: RouteId::NONE }
        } else {
            let view = self.known.view.as_ref()?;
            let Route { id, way } = view.route(dlid);
            let way = way?;
            Target { addr: view.peer(way.peer)?.addr, way: Some(way), route: id }
        };
        self.found[at] = Found { dlid, target };
        Some(at)
    }

    /// Sends the gathered packets. Returns whether the kernel may use the zero-copy buffer.
    fn flush_batch(
        &mut self,
        exit: Exit<'_, impl Outlet>,
        buf: Option<&mut ZeroCopyBuf>,
    ) -> (bool, io::Result<()>) {
        let Exit { port, routes, numbers } = exit;
        let (taken, outcome) = match buf {
            Some(buf) => self.batch.flush_zerocopy(port, numbers, buf),
            None => (false, self.batch.flush(port, numbers)),
        };
        let Outcome { sent, refused, narrowed } = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return (taken, Err(error)),
        };
        self.left.packets += sent.packets;
        self.left.bytes += sent.bytes;
        if refused != 0 {
            routes.count(IbDrop::TxRefused, refused);
        }
        if let Some((to, room)) = narrowed {
            routes.narrow(to, room);
        }
        (taken, Ok(()))
    }

    /// Sends one packet at once, after the gathered ones.
    pub(super) fn send_alone(
        &mut self,
        exit: Exit<'_, impl Outlet>,
        shape: &Shape,
        contents: &Contents<'_>,
    ) -> Result<(), LinkError> {
        let flush = |sender: &mut Self| match sender.flush_batch(exit, None).1 {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(LinkError::Busy),
            other => Ok(other?),
        };
        self.turn_to(exit.routes);
        flush(self)?;
        self.batch.push(shape, exit.numbers, |to| contents.put(to))?;
        flush(self)
    }

    /// Sends the gathered packets. Returns what was sent since the last time, and whether the kernel may use the zero-copy buffer.
    pub(super) fn flush(
        &mut self,
        exit: Exit<'_, impl Outlet>,
        buf: Option<&mut ZeroCopyBuf>,
    ) -> (bool, Result<Flushed, TxFail>) {
        let (taken, flushed) = self.flush_batch(exit, buf);
        let sent = std::mem::take(&mut self.left);
        let kept = self.batch.len();
        (taken, if flushed.is_ok() { Ok(sent) } else { Err(TxFail::Busy { sent, kept }) })
    }
}

impl Default for Sender {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("batch", &self.batch).finish_non_exhaustive()
    }
}

/// Returns the kind under which a packet along an address vector is counted, with the P_Key at this index.
fn kind(av: &AddressVector, pkey: usize) -> SentKind {
    let pkey = u8::try_from(pkey).unwrap_or(u8::MAX);
    SentKind { dlid: Lid(av.dlid), sl: av.sl & 0xf, pkey }
}

/// Reports that a switch on the way does not pass a packet's partition.
#[cold]
fn report(routes: &Routes, route: &[u8], frame: &Frame<'_>) {
    if let Some(violation) = KeyViolation::of(Violated::SwitchPkey, route, frame.header) {
        routes.violated(&violation);
    }
}

/// Returns the destination and division into parts of a packet.
fn shape(
    exit: Exit<'_, impl Outlet>,
    to: SocketAddr,
    steer: u32,
    total: u16,
) -> Result<Shape, IbDrop> {
    if to.is_ipv4() != exit.port.local_addr().is_ipv4() {
        return Err(IbDrop::TxNoWay);
    }
    let parts = Encap::parts_for(total, exit.routes.room(to)).ok_or(IbDrop::TxLength)?;
    Ok(Shape { to, steer, total, parts })
}

/// Returns the P_Key and the destination QPN in a BTH.
fn addressed(frame: &Frame<'_>) -> Option<(Pkey, Qpn)> {
    let [_, _, p1, p2, _, q1, q2, q3, ..] = *frame.header else { return None };
    let pkey = Pkey(u16::from_be_bytes([p1, p2]));
    Some((pkey, Qpn::new(u32::from_be_bytes([0, q1, q2, q3]))))
}
