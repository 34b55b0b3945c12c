//! The environment of a queue pair in the device: memory through the region table, packets through the wire of its path,
//! completions through its completion queues.

use std::cell::OnceCell;
use std::sync::Arc;

use arrayvec::ArrayVec;
use parking_lot::{RwLock, RwLockReadGuard};
use rdmux_link::ib::{KeyViolation, Violated};
use rdmux_link::procmem::Range;
use rdmux_link::{Frame, LinkError, Payload, Piece};
use rdmux_transport::attr::{Access, AddressVector, QpAttr, QpType};
use rdmux_transport::env::{
    AccessFault, AtomicAnswer, AtomicOp, Direct, Drop as DropReason, Env, FetchError, LinkCaps,
    Named, QpEvent, Side, SrqEntry, TxError, TxPacket, TxPayload,
};
use rdmux_transport::wr::{Completion, MwBind, Sge};
use rdmux_transport::{RxPacket, Source};
use rdmux_wire::{Aeth, Bth, Lid, Pkey, Psn, Qpn, Rkey};

use super::wire::direct::{self, near_list, reach_of};
use super::wire::named::{self, Names};
use super::wire::{Gathered, Neighbour, Path, RingPath};
use crate::engine::device::{Device, PORT};
use crate::engine::qp::{Ends, Objects, QpCore};
use crate::engine::xrc::place::{Placing, Stage};
use crate::objects::cached_region::CachedRegion;
use crate::objects::counters::{Counter, Counters};
use crate::objects::event::Raised;
use crate::objects::memory::Space;
use crate::objects::pd::PdId;
use crate::objects::reach::{Origin, Reach};
use crate::objects::region::{Asker, Located};
use crate::objects::regions::Regions;

/// The maximum number of pieces of memory that one packet is gathered from.
const MAX_PIECES: usize = 32;

/// A buffer for the bytes that a packet takes from another process's memory.
pub(crate) type Bounce = Vec<u8>;

/// The objects that a queue pair works with.
pub(super) enum Here<'a> {
    /// The objects of the queue pair's own process.
    Own(&'a Objects, OwnRegions<'a>),
    /// The objects of the process that the current packet names, for an XRC target.
    Target(Placing<'a>),
}

/// The table of regions, locked at the first access: inline data and acknowledgements do not need it.
pub(super) struct OwnRegions<'a> {
    table: &'a RwLock<Regions>,
    locked: OnceCell<RwLockReadGuard<'a, Regions>>,
}

impl<'a> OwnRegions<'a> {
    fn of(device: &'a Device) -> Self {
        Self { table: device.regions(), locked: OnceCell::new() }
    }

    /// Changes the table. Other threads may have changed it as well when this returns: earlier lookups are no longer valid.
    fn change<R>(&mut self, f: impl FnOnce(&mut Regions) -> R) -> R {
        drop(self.locked.take());
        f(&mut self.table.write())
    }
}

impl std::ops::Deref for OwnRegions<'_> {
    type Target = Regions;

    #[inline]
    fn deref(&self) -> &Regions {
        self.locked.get_or_init(|| self.table.read())
    }
}

/// A queue pair's environment while it is locked. Dropped before the lock is released, which sends the gathered batch.
pub(crate) struct QpEnv<'a> {
    pub(super) device: &'a Arc<Device>,
    pub(super) core: &'a Arc<QpCore>,
    pub(super) path: &'a mut Path,
    /// The objects that the current packet accesses.
    pub(super) here: Here<'a>,
    /// The buffer in which packets are gathered; none if they are sent one by one.
    gathered: Option<&'a mut Gathered>,
    /// The buffer for bytes from another process's memory.
    pub(super) bounce: &'a mut Bounce,
    /// The time of completions, once it has been read.
    time: Option<u64>,
    /// The region that data was last written to; known in rounds only.
    pub(super) cached: Option<CachedRegion>,
    /// Whether a completion queue overflowed.
    pub(crate) overflow: bool,
    /// Whether the queue pair has become open to its peer, in RTR, or by another path.
    pub(crate) established: bool,
    /// The way by which the current packet arrived.
    pub(crate) arrived: Arrived,
}

/// The way by which a packet arrived, which its headers do not contain.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Arrived {
    /// Unknown.
    #[default]
    Somehow,
    /// By a ring, in a record that names the path.
    ByRing(RingPath),
    /// At the InfiniBand port with this number.
    AtPort(u8),
    /// At the address that it was sent to.
    AtAddress,
}

impl<'a> QpEnv<'a> {
    /// Creates the environment for calls that gather their packets.
    pub(crate) fn new(
        device: &'a Arc<Device>,
        core: &'a Arc<QpCore>,
        path: &'a mut Path,
        gathered: &'a mut Gathered,
        bounce: &'a mut Bounce,
        stage: &'a mut Stage,
    ) -> Self {
        let here = match &core.ends {
            Ends::Own(objects) => Here::Own(objects, OwnRegions::of(device)),
            Ends::Target(target) => Here::Target(Placing::new(device, core.qpn, target, stage)),
        };
        Self::with(device, core, path, here, Some(gathered), bounce)
    }

    /// Creates the environment of a queue pair whose peer is a neighbour.
    #[inline]
    pub(crate) fn near(
        device: &'a Arc<Device>,
        core: &'a Arc<QpCore>,
        path: &'a mut Path,
        objects: &'a Objects,
        bounce: &'a mut Bounce,
    ) -> Self {
        let here = Here::Own(objects, OwnRegions::of(device));
        Self::with(device, core, path, here, None, bounce)
    }

    #[inline]
    fn with(
        device: &'a Arc<Device>,
        core: &'a Arc<QpCore>,
        path: &'a mut Path,
        here: Here<'a>,
        gathered: Option<&'a mut Gathered>,
        bounce: &'a mut Bounce,
    ) -> Self {
        let (time, cached, overflow, established) = (None, None, false, false);
        let arrived = Arrived::default();
        Self {
            device,
            core,
            path,
            here,
            gathered,
            bounce,
            time,
            cached,
            overflow,
            established,
            arrived,
        }
    }

    /// Publishes the queue pair, so that the peer can access what it permits.
    pub(crate) fn open(&self, attr: &QpAttr) {
        direct::show(self.device, self.core, self.path, attr);
    }

    pub(crate) fn device(&self) -> &'a Arc<Device> {
        self.device
    }

    /// Returns the number of the queue pair's port.
    pub(crate) fn port(&self) -> u8 {
        self.core.port()
    }

    /// Sends the gathered packets. Packets that the socket does not accept are lost, as on any wire: the transport notices.
    pub(crate) fn flush(&mut self) {
        if let Some(gathered) = &mut self.gathered {
            self.path.flush(self.device, gathered);
        }
    }

    /// Passes a packet to the wire of the path. A packet that the wire can never accept is lost, as on any wire.
    fn send(&mut self, packet: &TxPacket<'_>, payload: Payload<'_>) -> Result<(), TxError> {
        let Self { device, path, gathered, .. } = self;
        let TxPacket { av, header, pad, ack, .. } = *packet;
        let frame = &Frame { header, payload, pad, ack };
        match path.send(device, av, frame, gathered.as_deref_mut()) {
            Ok(()) => Ok(()),
            Err(LinkError::Busy) => Err(TxError::Busy),
            Err(LinkError::Unmapped(_)) => Err(TxError::Memory(AccessFault::Unmapped)),
            Err(error) => {
                tracing::debug!(qpn = %self.core.qpn, %error, "packet dropped: the wire refused it");
                self.count_one(Counter::TxErrors);
                Ok(())
            }
        }
    }

    /// Changes the table of regions, on behalf of this queue pair.
    fn change_regions<R>(
        &mut self,
        f: impl FnOnce(&mut Regions, Asker) -> Result<R, AccessFault>,
    ) -> Result<R, AccessFault> {
        let Here::Own(objects, regions) = &mut self.here else { return Err(AccessFault::Key) };
        let who = asker(self.core, objects);
        regions.change(|table| f(table, who))
    }

    /// Copies bytes into a scatter list whose keys belong to a protection domain.
    #[inline]
    fn scatter_in(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        offset: u32,
        data: &[u8],
    ) -> Result<(), AccessFault> {
        let Here::Own(_, regions) = &mut self.here else { return Err(AccessFault::Key) };
        let len = u32::try_from(data.len()).map_err(|_| AccessFault::Bounds)?;
        if let ([sge], 0, Some(cached)) = (sges, offset, &mut self.cached)
            && sge.length >= len
        {
            if !cached.holds(pd, sge, len) {
                *cached = regions.cached(pd, sge.lkey, Access::LOCAL_WRITE);
            }
            if cached.holds(pd, sge, len) {
                return Space::Own.write(sge.addr, data);
            }
        }
        let mut rest = data;
        for (sge, addr, take) in parts(sges, offset, len) {
            let at = regions.local(pd, sge.lkey, addr, take.into(), Access::LOCAL_WRITE)?;
            let (now, later) = rest.split_at(take as usize);
            at.space.write(at.addr, now)?;
            rest = later;
        }
        if rest.is_empty() { Ok(()) } else { Err(AccessFault::Bounds) }
    }

    /// Returns whether a packet from a neighbour is from this queue pair's peer.
    pub(crate) fn is_peer(&self, from: &Arc<Neighbour>) -> bool {
        self.path.neighbour().is_some_and(|own| Arc::ptr_eq(own, from))
    }

    fn count_one(&self, counter: Counter) {
        Counters(self.device.counters()).add(counter, 1);
    }
}

/// Returns the peer's memory, if payloads that it names may be fetched from there now.
fn shortcut<'p>(device: &Device, core: &QpCore, path: &'p mut Path) -> Option<&'p Arc<Reach>> {
    if path.may_cut_short(device, core.port()) { reach_of(core, path) } else { None }
}

/// Returns the requester of access to this process's memory.
pub(super) fn asker(core: &QpCore, objects: &Objects) -> Asker {
    Asker { qpn: core.qpn, pd: objects.pd }
}

/// Returns the parts of a gather list from `offset` on, `len` bytes in all.
pub(crate) fn parts(sges: &[Sge], offset: u32, len: u32) -> impl Iterator<Item = (Sge, u64, u32)> {
    let (mut skip, mut left) = (offset, len);
    sges.iter().filter_map(move |sge| {
        let skipped = skip.min(sge.length);
        skip -= skipped;
        let take = (sge.length - skipped).min(left);
        left -= take;
        (take != 0).then_some((*sge, sge.addr.wrapping_add(skipped.into()), take))
    })
}

/// Memory to send from: as pieces if it is this process's, otherwise through the bounce buffer.
#[derive(Default)]
struct Pieces {
    list: ArrayVec<Piece, MAX_PIECES>,
    foreign: bool,
}

impl Pieces {
    fn add(&mut self, at: Located<'_>, len: u32, bounce: &mut Bounce) -> Result<(), AccessFault> {
        match at.space.piece(at.addr, len as usize) {
            Some(piece) if !self.foreign => {
                self.list.try_push(piece).map_err(|_| AccessFault::Bounds)
            }
            _ => {
                // If a list has memory of this and of another process, all of it is copied through the buffer.
                if !self.foreign {
                    self.foreign = true;
                    bounce.clear();
                    for piece in self.list.drain(..) {
                        crate::objects::memory::append(bounce, piece)?;
                    }
                }
                let start = bounce.len();
                bounce.resize(start + len as usize, 0);
                at.space.read(at.addr, &mut bounce[start..])
            }
        }
    }
}

impl Env for QpEnv<'_> {
    fn link(&self) -> LinkCaps {
        let mut caps = self.path.caps(self.core.qp_type);
        if self.core.qp_type == QpType::Ud {
            // A datagram is one packet, and the port's MTU is the only one that sender and receiver know (IBTA 9.8.3): a longer
            // one completes with `LOC_LEN_ERR` here, and is dropped there.
            let mtu = self.device.active_mtu(self.core.port());
            caps.max_payload = caps.max_payload.min(mtu.bytes());
        }
        caps
    }

    fn room(&self) -> u32 {
        self.path.room()
    }

    fn transmit(&mut self, packet: &TxPacket<'_>) -> Result<(), TxError> {
        self.path.find_route(self.device, self.core, packet.av)?;
        // The operations that a packet acknowledges are done before it is sent.
        if let Here::Target(place) = &mut self.here {
            place.flush();
        }
        let mut pieces = Pieces::default();
        match packet.payload {
            TxPayload::None => return self.send(packet, Payload::None),
            TxPayload::Bytes(bytes) => return self.send(packet, Payload::Bytes(bytes)),
            TxPayload::Gather { sges, offset, len } => {
                let Here::Own(objects, regions) = &self.here else {
                    return Err(TxError::Memory(AccessFault::Key));
                };
                for (sge, addr, take) in parts(sges, offset, len) {
                    regions
                        .local(objects.pd, sge.lkey, addr, take.into(), Access::empty())
                        .and_then(|at| pieces.add(at, take, self.bounce))
                        .map_err(TxError::Memory)?;
                }
            }
            TxPayload::Remote { rkey, va, len, srqn } => match &mut self.here {
                Here::Own(objects, regions) => {
                    let who = asker(self.core, objects);
                    regions
                        .remote(who, rkey, va, len.into(), Access::REMOTE_READ)
                        .and_then(|at| pieces.add(at, len, self.bounce))
                        .map_err(TxError::Memory)?;
                }
                Here::Target(place) => {
                    pieces.foreign = true;
                    self.bounce.clear();
                    self.bounce.resize(len as usize, 0);
                    let read = place.select(srqn);
                    match read.and_then(|()| place.read_remote(rkey, va, self.bounce)) {
                        Ok(()) => {}
                        Err(AccessFault::Busy) => return Err(TxError::Busy),
                        Err(fault) => return Err(TxError::Memory(fault)),
                    }
                }
            },
        }
        if pieces.foreign {
            let bounce = std::mem::take(self.bounce);
            let sent = self.send(packet, Payload::Bytes(&bounce));
            *self.bounce = bounce;
            return sent;
        }
        self.send(packet, Payload::Pieces(&pieces.list))
    }

    fn transmit_named(&mut self, packet: &TxPacket<'_>) -> Result<bool, TxError> {
        let Self { device, core, path, here, .. } = self;
        if !path.may_cut_short(device, core.port()) {
            return Ok(false);
        }
        let (Here::Own(objects, regions), Some(board), Some(neighbour)) =
            (here, device.reaches().board(), path.neighbour())
        else {
            return Ok(false);
        };
        let (TxPayload::Gather { sges, offset, len }, Some(_), Some(sequence)) =
            (packet.payload, reach_of(core, path), board.qp_sequence(core.qpn.get()))
        else {
            return Ok(false);
        };
        let mut names = Names::new(Origin { qpn: core.qpn.get(), sequence });
        for (sge, addr, take) in parts(sges, offset, len) {
            let at = regions
                .local(objects.pd, sge.lkey, addr, take.into(), Access::empty())
                .map_err(TxError::Memory)?;
            let ours = matches!(at.space, Space::Own);
            if !ours || !names.add(sge.lkey.0, Range { va: at.addr, len: take }) {
                return Ok(false);
            }
        }
        match neighbour.send_named(device, path.ring_path(), packet, &names) {
            Ok(()) => {
                path.sent(packet.header.len(), len as usize);
                Counters(device.counters()).add(Counter::OfferBytes, len.into());
                Ok(true)
            }
            Err(LinkError::Busy) => Err(TxError::Busy),
            Err(error) => {
                tracing::debug!(qpn = %core.qpn, %error, "packet dropped: the wire refused it");
                self.count_one(Counter::TxErrors);
                Ok(true)
            }
        }
    }

    #[inline]
    fn acknowledge(&mut self, dest_qpn: Qpn, psn: Psn) -> bool {
        if !self.path.may_cut_short(self.device, self.core.port()) {
            return false;
        }
        let (Some(neighbour), Here::Own(..)) = (self.path.neighbour(), &self.here) else {
            return false;
        };
        let sent = neighbour.send_ack(self.device, dest_qpn, psn);
        if sent {
            self.path.sent(Bth::LEN + Aeth::LEN, 0);
        }
        sent
    }

    fn fetch(&mut self, sges: &[Sge], offset: u32, from: &Named<'_>) -> Result<(), FetchError> {
        let Here::Own(objects, regions) = &self.here else { return Err(FetchError::OutOfReach) };
        let reach = shortcut(self.device, self.core, self.path).ok_or(FetchError::OutOfReach)?;
        let (here, part) = ((objects.recv_pd, &**regions), (offset, from.len));
        let near = near_list(here, sges, part, Access::LOCAL_WRITE)?;
        named::fetch(self.device, (self.core, reach), from, &near)
    }

    fn fetch_remote(&mut self, rkey: Rkey, va: u64, from: &Named<'_>) -> Result<(), FetchError> {
        let Here::Own(objects, regions) = &self.here else { return Err(FetchError::OutOfReach) };
        let reach = shortcut(self.device, self.core, self.path).ok_or(FetchError::OutOfReach)?;
        let who = asker(self.core, objects);
        let at = regions
            .remote(who, rkey, va, from.len.into(), Access::REMOTE_WRITE)
            .map_err(FetchError::Memory)?;
        let near = at.space.piece(at.addr, from.len as usize).ok_or(FetchError::OutOfReach)?;
        named::fetch(self.device, (self.core, reach), from, &[near])
    }

    fn direct(&mut self, copy: &Direct<'_>) -> bool {
        let Here::Own(objects, regions) = &self.here else { return false };
        direct::carry_out(self.device, self.core, self.path, (objects, regions), copy)
    }

    fn closed(&mut self) {
        direct::hide(self.device, self.core, self.path);
    }

    fn check_local(&self, sges: &[Sge], access: Access) -> Result<(), AccessFault> {
        match &self.here {
            Here::Own(objects, regions) => regions.check_list(objects.pd, sges, access),
            Here::Target(place) => place.check_local(sges, access),
        }
    }

    fn scatter(&mut self, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), AccessFault> {
        // A target has no send queue.
        let Here::Own(objects, _) = &self.here else { return Err(AccessFault::Key) };
        self.scatter_in(objects.pd, sges, offset, data)
    }

    #[inline]
    fn scatter_receive(
        &mut self,
        sges: &[Sge],
        offset: u32,
        data: &[u8],
    ) -> Result<(), AccessFault> {
        match &mut self.here {
            Here::Own(objects, _) => {
                let pd = objects.recv_pd;
                self.scatter_in(pd, sges, offset, data)
            }
            Here::Target(place) => place.scatter(sges, offset, data),
        }
    }

    fn check_remote(
        &self,
        rkey: Rkey,
        va: u64,
        len: u64,
        access: Access,
    ) -> Result<(), AccessFault> {
        match &self.here {
            Here::Own(objects, regions) => {
                regions.remote(asker(self.core, objects), rkey, va, len, access).map(drop)
            }
            Here::Target(place) => place.check_remote(rkey, va, len, access),
        }
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), AccessFault> {
        match &mut self.here {
            Here::Own(objects, regions) => {
                let (who, len) = (asker(self.core, objects), data.len() as u64);
                let at = regions.remote(who, rkey, va, len, Access::REMOTE_WRITE)?;
                at.space.write(at.addr, data)
            }
            Here::Target(place) => place.write_remote(rkey, va, data),
        }
    }

    fn atomic(
        &mut self,
        psn: Psn,
        rkey: Rkey,
        va: u64,
        op: AtomicOp,
    ) -> Result<AtomicAnswer, AccessFault> {
        let (objects, regions) = match &mut self.here {
            Here::Own(objects, regions) => (objects, regions),
            Here::Target(place) => {
                return place.atomic(psn, rkey, va, op).map(|()| AtomicAnswer::Later);
            }
        };
        let at = regions.remote(asker(self.core, objects), rkey, va, 8, Access::REMOTE_ATOMIC)?;
        // The address in the request is aligned, as the transport checked. The memory address must be, too.
        if at.addr % 8 != 0 {
            return Err(AccessFault::Bounds);
        }
        at.space.atomic(at.addr, op).map(AtomicAnswer::Now)
    }

    fn invalidate(&mut self, rkey: Rkey, _remote: bool) -> Result<(), AccessFault> {
        if let Here::Target(place) = &self.here {
            return place.invalidate(rkey);
        }
        let serial = self.change_regions(|regions, who| regions.invalidate(who, rkey))?;
        self.device.reaches().wait_for_copies();
        if let Some(serial) = serial {
            self.device.xrc().invalidated(self.device, rkey, serial);
        }
        Ok(())
    }

    fn select_srq(&mut self, srqn: u32) -> Result<(), AccessFault> {
        match &mut self.here {
            Here::Own(..) => Err(AccessFault::Domain),
            Here::Target(place) => place.select(srqn),
        }
    }

    fn bind(&mut self, bind: &MwBind) -> Result<(), AccessFault> {
        self.change_regions(|regions, who| regions.bind(who, bind))
    }

    fn pop_srq(&mut self, sges: &mut [Sge]) -> Option<SrqEntry> {
        match &self.here {
            Here::Own(objects, _) => {
                let srq = objects.srq.as_ref()?;
                let taken = if self.device.kind().has_streams() {
                    srq.pop_in_turn(self.core.qpn, sges)
                } else {
                    srq.pop(sges)
                }?;
                if taken.below_limit {
                    self.device.raise(Raised::SrqLimit(Arc::downgrade(srq)));
                }
                Some(taken.entry)
            }
            Here::Target(place) => place.pop(sges),
        }
    }

    fn complete(&mut self, side: Side, mut completion: Completion) {
        let cq = match (&mut self.here, side) {
            (Here::Own(objects, _), Side::Send) => &objects.send_cq,
            (Here::Own(objects, _), Side::Recv) => &objects.recv_cq,
            (Here::Target(place), _) => return place.complete(&completion),
        };
        if cq.wants_time() {
            completion.timestamp = *self.time.get_or_insert_with(|| self.device.now().0);
        }
        if let Err(overflow) = cq.push(completion) {
            self.device.cq_overflow(cq, overflow);
            self.overflow = true;
        }
    }

    fn event(&mut self, event: QpEvent) {
        self.established |= event == QpEvent::CommEst;
        self.device.raise(Raised::Qp(Arc::downgrade(&self.core.identity), event));
    }

    fn count(&mut self, reason: DropReason) {
        self.count_one(match reason {
            DropReason::State => Counter::RxState,
            DropReason::Opcode => Counter::RxOpcode,
            DropReason::Sequence => Counter::RxSequence,
            DropReason::Length => Counter::RxLength,
            DropReason::Pkey => Counter::RxPkey,
            DropReason::Qkey => Counter::RxQkey,
            DropReason::Source => Counter::RxSource,
            DropReason::Duplicate => Counter::RxDuplicate,
            DropReason::Gap => Counter::RxGap,
            DropReason::Early => Counter::RxKept,
            DropReason::Filled => Counter::RxGapFilled,
            DropReason::Stale => Counter::RxStale,
            DropReason::NoReceive => Counter::RxNoReceive,
            DropReason::Memory => Counter::RxMemory,
            DropReason::OutOfReach => Counter::FetchFailures,
        });
    }

    #[cold]
    fn wrong_key(&mut self, rx: &RxPacket<'_>, reason: DropReason) {
        if self.device.kind().is_on_fabric() {
            let port = self.core.port();
            let violation = violation(self.device, port, rx, reason);
            self.device.control().key_violation(port, &violation);
        }
    }

    #[inline]
    fn pkey(&self, index: u16) -> Option<Pkey> {
        self.device.pkey(self.core.port(), index)
    }

    fn pkey_of_port(&self, port: u8, index: u16) -> Option<Pkey> {
        self.device.pkey(port.max(PORT), index)
    }

    fn migrated(&mut self, attr: &QpAttr) {
        // Packets gathered before are sent by the path that they were meant for.
        self.flush();
        direct::hide(self.device, self.core, self.path);
        if let Some(alternate) = self.core.set_alternate(None) {
            *self.path = *alternate;
            self.path.follow(attr);
        }
        self.core.set_port(attr.port_num.max(PORT));
        self.established = true;
    }

    fn came_along(&self, av: &AddressVector, source: &Source<'_>) -> bool {
        let port = av.port_num.max(PORT);
        match self.arrived {
            Arrived::Somehow => true,
            Arrived::ByRing(path) if path.port == 0 => true,
            Arrived::ByRing(path) => path.reversed() == self.device.ring_path(av),
            Arrived::AtPort(at) => at == port && source.dlid_path_bits == av.src_path_bits,
            Arrived::AtAddress => {
                self.device.gid(port, av.sgid_index).is_some_and(|own| own.gid == source.dgid)
            }
        }
    }
}

/// Returns the report on a packet with a wrong key, for the subnet manager.
fn violation(device: &Device, port: u8, rx: &RxPacket<'_>, reason: DropReason) -> KeyViolation {
    let (bth, source) = (&rx.packet.bth, rx.source);
    let deth = rx.packet.deth;
    let (kind, key) = match (reason, deth) {
        (DropReason::Qkey, Some(deth)) => (Violated::Qkey, deth.qkey.0),
        _ => (Violated::Pkey, bth.pkey.0.into()),
    };
    KeyViolation {
        kind,
        slid: Lid(source.slid),
        dlid: device.own_lid(port, source.dlid_path_bits),
        sl: source.sl,
        key,
        src_qpn: deth.map_or(Qpn::QP0, |deth| deth.src_qpn),
        dst_qpn: bth.dest_qpn,
        gids: source.has_grh.then_some((source.sgid, source.dgid)),
    }
}

impl std::ops::Drop for QpEnv<'_> {
    fn drop(&mut self) {
        if let Here::Target(place) = &mut self.here {
            place.flush();
        }
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmux_wire::Lkey;

    #[test]
    fn sge_list_range_is_split_into_parts() {
        let sge = |addr, length| Sge { addr, length, lkey: Lkey(1) };
        let list = [sge(100, 10), sge(200, 0), sge(300, 5), sge(400, 20)];
        let got = |offset, len| -> Vec<(u64, u32)> {
            parts(&list, offset, len).map(|(_, addr, take)| (addr, take)).collect()
        };
        assert_eq!(got(0, 35), [(100, 10), (300, 5), (400, 20)]);
        assert_eq!(got(9, 3), [(109, 1), (300, 2)]);
        assert_eq!(got(10, 5), [(300, 5)]);
        assert_eq!(got(15, 20), [(400, 20)]);
        assert_eq!(got(0, 0), []);
    }
}
