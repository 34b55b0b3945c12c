//! Which packets leave, and where to.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;

use rdmux_transport::attr::AddressVector;
use rdmux_wire::lrh::{Lnh, Lrh};
use rdmux_wire::{Grh, Lid, Pkey, Qpn};

use super::batch::{Batch, Contents, Outcome, Shape};
use super::state::{Known, room};
use super::{Encap, IbDrop, Routes};
use crate::guarded::Unmapped;
use crate::routes::{RouteView, Way};
use crate::udp::UdpPort;
use crate::wire::{Flushed, Frame, LinkError};

/// What senders have in turn.
#[derive(Debug)]
pub(super) struct Sender {
    known: Known,
    /// What was looked up last, by the LID's low bits.
    found: [Option<(Lid, Target)>; Self::FOUND],
    /// Ways to a group's members.
    group: Vec<Way>,
    /// A packet that goes to several.
    copy: Vec<u8>,
    pub(super) batch: Batch,
    /// How many bytes of a packet go to an address in one datagram, where the path is narrow.
    narrow: HashMap<SocketAddr, usize>,
    /// What has left since the last flush.
    left: Flushed,
}

/// Which socket of a host gets what is sent to a group: slot 0, which is the service's. The destination QPN, all ones, would lead
/// to that of XRC targets.
const GROUP_STEER: u32 = 0;

/// Where packets to a LID go.
#[derive(Clone, Copy, Debug)]
struct Target {
    addr: SocketAddr,
    /// None if it is the own port.
    way: Option<Way>,
}

/// Why a packet is not taken.
pub(super) enum Refused {
    /// It is lost.
    Lost(IbDrop),
    /// The queue pair must know.
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

/// LRH and GRH, as they go on the wire.
pub(super) struct RouteHeaders {
    bytes: [u8; Lrh::LEN + Grh::LEN],
    len: usize,
}

impl RouteHeaders {
    /// With the lengths that they need before so many bytes of BTH to ICRC. None if the LRH cannot tell the length.
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
    /// How many LIDs are remembered.
    const FOUND: usize = 64;

    pub(super) fn new(slot: u16) -> Self {
        Self {
            known: Known::default(),
            found: [None; Self::FOUND],
            group: Vec::new(),
            copy: Vec::new(),
            batch: Batch::new(slot),
            narrow: HashMap::new(),
            left: Flushed::default(),
        }
    }

    /// Takes a packet.
    pub(super) fn send(
        &mut self,
        port: &UdpPort,
        routes: &Routes,
        av: &AddressVector,
        frame: &Frame<'_>,
    ) -> Result<(), Refused> {
        if self.known.refresh(routes) {
            self.found = [None; Self::FOUND];
            self.narrow.clear();
        }
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
            return self.send_to_group(port, routes, (av, dlid, pkey), &contents, total);
        }
        let target = self.find(port, dlid).ok_or(IbDrop::TxNoWay)?;
        self.check(target.way.as_ref(), av.sl, pkey, frame)?;
        let shape = self.shape(port, target.addr, dest.get(), total)?;
        self.make_room(port, routes, &shape)?;
        self.batch.push(&shape, |to| contents.put(to))?;
        Ok(())
    }

    /// Sends a copy to each that the group has.
    fn send_to_group(
        &mut self,
        port: &UdpPort,
        routes: &Routes,
        (av, mlid, pkey): (&AddressVector, Lid, usize),
        contents: &Contents<'_>,
        total: u16,
    ) -> Result<(), Refused> {
        let (mut group, mut copy) =
            (std::mem::take(&mut self.group), std::mem::take(&mut self.copy));
        let mut send_all = || -> Result<(), Refused> {
            let view = self.known.view.clone().ok_or(IbDrop::TxInactive)?;
            view.group(mlid, &mut group);
            copy.resize(total.into(), 0);
            contents.put(&mut copy)?;
            // Members of the own port hear it, too, which no switch sends back (IBTA 10.5.2.2). The service passes it on to them.
            self.copy_at(port, routes, port.local_addr(), &copy)?;
            if group.is_empty() {
                return Err(IbDrop::TxNoWay.into());
            }
            for way in &group {
                let sent = self.copy_to(port, routes, &view, (way, av.sl, pkey), contents, &copy);
                match sent {
                    Ok(()) => {}
                    Err(Refused::Lost(why)) => routes.count(why, 1),
                    // Some have it already; to the others it is lost.
                    Err(Refused::Link(_)) => routes.count(IbDrop::TxRefused, 1),
                }
            }
            Ok(())
        };
        let sent = send_all();
        (self.group, self.copy) = (group, copy);
        sent
    }

    fn copy_to(
        &mut self,
        port: &UdpPort,
        routes: &Routes,
        view: &RouteView,
        (way, sl, pkey): (&Way, u8, usize),
        contents: &Contents<'_>,
        copy: &[u8],
    ) -> Result<(), Refused> {
        self.check(Some(way), sl, pkey, contents.frame)?;
        let addr = view.peer(way.peer).ok_or(IbDrop::TxNoWay)?.addr;
        self.copy_at(port, routes, addr, copy)
    }

    /// Sends a copy to one address.
    fn copy_at(
        &mut self,
        port: &UdpPort,
        routes: &Routes,
        addr: SocketAddr,
        copy: &[u8],
    ) -> Result<(), Refused> {
        let total = u16::try_from(copy.len()).map_err(|_| IbDrop::TxLength)?;
        let shape = self.shape(port, addr, GROUP_STEER, total)?;
        self.make_room(port, routes, &shape)?;
        self.batch.push(&shape, |to| {
            to.copy_from_slice(copy);
            Ok(())
        })?;
        Ok(())
    }

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

    /// Whether a packet passes all links of a way; of no way, to the own port.
    fn check(
        &self,
        way: Option<&Way>,
        sl: u8,
        pkey: usize,
        frame: &Frame<'_>,
    ) -> Result<(), IbDrop> {
        let mtu = way.map_or(self.known.own.mtu, |way| way.mtu.min(self.known.own.mtu));
        if frame.payload.len() > mtu.bytes() as usize {
            return Err(IbDrop::TxLength);
        }
        let Some(way) = way else { return Ok(()) };
        if !way.takes_pkey(pkey) {
            return Err(IbDrop::TxPkey);
        }
        if way.takes_sl(sl & 0xf) { Ok(()) } else { Err(IbDrop::TxSl) }
    }

    /// Where packets to a LID go.
    #[inline]
    fn find(&mut self, port: &UdpPort, dlid: Lid) -> Option<Target> {
        let at = usize::from(dlid.0) % Self::FOUND;
        if let Some((_, target)) = self.found[at].as_ref().filter(|(lid, _)| *lid == dlid) {
            return Some(*target);
        }
        let target = if self.known.own.path_bits(dlid).is_some() {
            Target { addr: port.local_addr(), way: None }
        } else {
            let view = self.known.view.as_ref()?;
            let way = view.way(dlid)?;
            Target { addr: view.peer(way.peer)?.addr, way: Some(way) }
        };
        self.found[at] = Some((dlid, target));
        Some(target)
    }

    fn shape(
        &self,
        port: &UdpPort,
        to: SocketAddr,
        steer: u32,
        total: u16,
    ) -> Result<Shape, IbDrop> {
        if to.is_ipv4() != port.local_addr().is_ipv4() {
            return Err(IbDrop::TxNoWay);
        }
        let narrow = if self.narrow.is_empty() { None } else { self.narrow.get(&to) };
        let room = narrow.copied().unwrap_or(room::WHOLE);
        let parts = Encap::parts_for(total, room).ok_or(IbDrop::TxLength)?;
        Ok(Shape { to, steer, total, parts })
    }

    fn make_room(&mut self, port: &UdpPort, routes: &Routes, shape: &Shape) -> Result<(), Refused> {
        if self.batch.has_room(shape) {
            return Ok(());
        }
        match self.flush_batch(port, routes) {
            Ok(()) => Ok(()),
            Err(_) => Err(Refused::Link(LinkError::Busy)),
        }
    }

    /// Sends what was gathered.
    fn flush_batch(&mut self, port: &UdpPort, routes: &Routes) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let Outcome { sent, refused, narrowed } = self.batch.flush(port)?;
        self.left.packets += sent.packets;
        self.left.bytes += sent.bytes;
        if refused != 0 {
            routes.count(IbDrop::TxRefused, refused);
        }
        if let Some((to, room)) = narrowed {
            self.narrow.insert(to, room);
        }
        Ok(())
    }

    /// Sends one packet at once, after what was gathered.
    pub(super) fn send_alone(
        &mut self,
        port: &UdpPort,
        routes: &Routes,
        shape: &Shape,
        contents: &Contents<'_>,
    ) -> Result<(), LinkError> {
        let flush = |sender: &mut Self| match sender.flush_batch(port, routes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(LinkError::Busy),
            other => Ok(other?),
        };
        flush(self)?;
        self.batch.push(shape, |to| contents.put(to))?;
        flush(self)
    }

    /// Sends what was gathered, and says what has left since the last time. What a full socket does not take now leaves
    /// with the next.
    pub(super) fn flush(&mut self, port: &UdpPort, routes: &Routes) -> Flushed {
        let _full = self.flush_batch(port, routes);
        std::mem::take(&mut self.left)
    }

    /// How large the parts to an address may be.
    #[cfg(test)]
    pub(super) fn room(&self, to: SocketAddr) -> usize {
        self.narrow.get(&to).copied().unwrap_or(room::WHOLE)
    }

    /// Has parts to an address be smaller.
    #[cfg(test)]
    pub(super) fn narrow(&mut self, routes: &Routes, to: SocketAddr, room: usize) {
        self.known.refresh(routes);
        self.narrow.insert(to, room);
    }
}

/// The P_Key and the destination QPN in a BTH.
fn addressed(frame: &Frame<'_>) -> Option<(Pkey, Qpn)> {
    let [_, _, p1, p2, _, q1, q2, q3, ..] = *frame.header else { return None };
    let pkey = Pkey(u16::from_be_bytes([p1, p2]));
    Some((pkey, Qpn::new(u32::from_be_bytes([0, q1, q2, q3]))))
}
