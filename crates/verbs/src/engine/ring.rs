//! Rings to processes of this host: who has one, packets into them and out of them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::RwLock;
use rdmux_link::ring::{Broken, Head, Meta, PACKET, RingError, SHORT, dest_qpn};
use rdmux_link::{
    Consumer, Frame, LinkCaps, LinkError, PeerBell, Producer, Record, Ring, Wire, ring,
};
use rdmux_transport::attr::{AddressVector, QpType};
use rdmux_transport::env::{Named, TxPacket};
use rdmux_transport::{RxPacket, Source, Time, TxState};
use rdmux_wire::{Bth, Gid, MAX_HEADER, Packet, Psn, Qpn};

use super::drive::{BUDGET, Bound};
use super::env::QpEnv;
use super::lately::Lately;
use super::machine::Machine;
use super::named::{self, Names};
use super::receive::{NO_GRH, checked, count, parse};
use crate::engine::device::Device;
use crate::objects::brief::Mutex;
use crate::objects::control::{ReachFds, RingEnd};
use crate::objects::counters::{Counter, Counters};
use crate::objects::error::VerbsError;
use crate::objects::reach::Reach;
use crate::objects::xrc::record as xrc;

/// The kind of a record that holds a packet which names its payload (`super::named`).
const NAMED: u8 = 9;
/// The kind of a record that is an acknowledgement and nothing else.
const ACK: u8 = 10;
/// Bytes of data of the ring to ourselves.
const LOOP_CAPACITY: usize = rdmux_link::ring::DEFAULT_CAPACITY;
/// The most payload bytes of an XRC packet: for each the hub asks the system to copy, which takes as long as some ten
/// thousand bytes do.
const MAX_XRC_PAYLOAD: u32 = 64 << 10;
/// From how many bytes on it is worth to leave them where they lie until they are moved to where they belong.
pub(crate) const IN_PLACE: usize = 4096;
/// How many records of a ring a round takes before it looks at the next ring.
const TURNS: usize = 64;

/// A ring to a process, which may be this one, and what wakes it.
#[derive(Debug)]
pub(crate) struct RingTx {
    tx: Mutex<Tx>,
    wire: Ring,
    /// The process's memory, if it is within reach.
    reach: Option<Arc<Reach>>,
}

/// Wakes that the hub holds back until the end of its round, when its acknowledgements are sent. A process that is woken
/// earlier may answer before the sender has the acknowledgement, and programs expect their own completion first.
#[derive(Debug, Default)]
pub(crate) struct LateWakes(parking_lot::Mutex<Option<Vec<Arc<PeerBell>>>>);

impl LateWakes {
    /// From here on wakes are held back.
    pub(super) fn hold(&self) {
        self.0.lock().get_or_insert_default();
    }

    /// Ends that. Returns whom to wake, each once.
    pub(super) fn take(&self) -> Vec<Arc<PeerBell>> {
        self.0.lock().take().unwrap_or_default()
    }

    fn wake(&self, device: &Device, wire: &Ring) {
        if let Some(bell) = wire.bell()
            && device.xrc().is_hub()
            && let Some(held) = &mut *self.0.lock()
        {
            if !held.iter().any(|b| Arc::ptr_eq(b, bell)) {
                held.push(bell.clone());
            }
            return;
        }
        wake(device, wire);
    }
}

/// Wakes the process at the other end. Never blocks, whatever it does.
fn wake(device: &Device, wire: &Ring) {
    if !wire.wake() {
        device.engine().waiter.wake();
    }
}

/// A ring that we fill, and what went into it that the counters do not tell yet: they are shared by all rings, and a
/// small message takes hardly longer than to count it.
#[derive(Debug)]
struct Tx {
    ring: Producer,
    packets: u64,
    bytes: u64,
}

impl Tx {
    /// How many packets the counters may be behind.
    const BEHIND: u64 = 64;

    #[inline]
    fn count(&mut self, device: &Device, len: usize) {
        self.packets += 1;
        self.bytes += len as u64;
        if self.packets >= Self::BEHIND {
            self.tell(device);
        }
    }

    fn tell(&mut self, device: &Device) {
        let counters = Counters(device.counters());
        counters.add(Counter::RingTxPackets, std::mem::take(&mut self.packets));
        counters.add(Counter::RingTxBytes, std::mem::take(&mut self.bytes));
    }
}

/// The ring that the same process fills and we empty. A round's own: looking into it costs no lock.
#[derive(Debug)]
struct RingRx {
    peer: u16,
    rx: Consumer,
    tx: Arc<RingTx>,
    taken: Taken,
    /// The peer wrote what no ring holds: nothing that comes from it can be trusted any more.
    broken: bool,
}

impl RingTx {
    /// What the ring can do for queue pairs of a type.
    pub(crate) fn caps(&self, qp_type: QpType) -> LinkCaps {
        let mut caps = self.wire.caps();
        if qp_type.is_xrc() {
            caps.max_payload = MAX_XRC_PAYLOAD;
        }
        caps.by_reference = qp_type == QpType::Rc && self.reach.is_some();
        caps
    }

    /// The process's memory, if it is within reach.
    pub(crate) fn reach(&self) -> Option<&Arc<Reach>> {
        self.reach.as_ref()
    }

    /// Puts in a record that is no packet, and wakes the peer if it sleeps. Returns the position after it.
    pub(crate) fn put(
        &self,
        device: &Device,
        kind: u8,
        meta: [u8; 16],
        parts: &[&[u8]],
    ) -> Result<u64, LinkError> {
        let mut tx = self.tx.lock();
        let len = parts.iter().map(|part| part.len()).sum();
        let mut record = tx.ring.reserve_or_wait(len).map_err(|error| {
            let full = error == RingError::Full;
            count(device, if full { Counter::TxBusy } else { Counter::TxErrors });
            LinkError::from(error)
        })?;
        parts.iter().for_each(|part| record.put(part));
        record.publish(kind, meta);
        let (sleeps, position) = (tx.ring.consumer_sleeps(), tx.ring.position());
        drop(tx);
        if sleeps {
            device.engine().late_wakes().wake(device, &self.wire);
        }
        Ok(position)
    }

    /// Whether there is room for so many bytes. If not, the peer will wake us.
    pub(crate) fn has_room_or_wait(&self, bytes: usize) -> bool {
        self.tx.lock().ring.has_room_or_wait(bytes)
    }

    /// The position that the peer has come to. It passes a record that is no packet when it is done with it.
    pub(crate) fn consumed(&self) -> u64 {
        self.tx.lock().ring.consumed()
    }

    /// Brings the counters up to date.
    fn tell(&self, device: &Device) {
        self.tx.lock().tell(device);
    }

    /// The process at its other end wakes this one no longer.
    fn ignore(&self, device: &Device) {
        if let Some(bell) = self.wire.bell() {
            device.engine().waiter.ignore(bell);
        }
    }
}

/// All rings that a round empties.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    ends: Vec<RingRx>,
    /// Where records are copied to before anything in them is looked at.
    private: Vec<u8>,
    /// The queue pairs that received last, and where each one's data was put.
    pub(super) qps: Lately,
}

impl RingTx {
    /// Puts a packet in and wakes the peer if it sleeps.
    pub(crate) fn send(
        &self,
        device: &Arc<Device>,
        av: &AddressVector,
        frame: &Frame<'_>,
    ) -> Result<(), LinkError> {
        let mut tx = self.tx.lock();
        match self.wire.send(&mut tx.ring, &(), frame) {
            Ok(()) => {}
            Err(error) => {
                match error {
                    LinkError::Busy => count(device, Counter::TxBusy),
                    LinkError::Unmapped(_) => {}
                    _ => count(device, Counter::TxErrors),
                }
                return Err(error);
            }
        }
        let sleeps = tx.ring.consumer_sleeps();
        tx.count(device, frame.len());
        drop(tx);
        if sleeps {
            wake(device, &self.wire);
        }
        device.engine().capture().sent_in_memory(device, av, frame);
        Ok(())
    }
}

/// A packet of few bytes, as it goes into a record.
pub(super) struct Short {
    pub(super) bytes: [u8; SHORT],
    pub(super) len: usize,
    pub(super) pad: u8,
    pub(super) ack: Option<Psn>,
}

impl Default for Short {
    fn default() -> Self {
        Self { bytes: [0; SHORT], len: 0, pad: 0, ack: None }
    }
}

impl RingTx {
    /// Puts a packet without extension headers in, and wakes the peer if it sleeps. False if there is no room.
    #[inline]
    pub(super) fn send_short(&self, device: &Device, short: &Short) -> bool {
        let meta = Meta {
            header: u8::try_from(Bth::LEN).unwrap_or(0),
            pad: short.pad,
            dest_qpn: dest_qpn(&short.bytes),
            ack: short.ack,
        };
        self.push_short(device, PACKET, meta, &short.bytes, short.len)
    }

    /// Puts an acknowledgement in for a queue pair of the peer's, likewise.
    pub(super) fn send_ack(&self, device: &Device, dest_qpn: Qpn, psn: Psn) -> bool {
        let meta = Meta { header: 0, pad: 0, dest_qpn: dest_qpn.get(), ack: Some(psn) };
        self.push_short(device, ACK, meta, &[0; SHORT], 0)
    }

    #[inline]
    fn push_short(
        &self,
        device: &Device,
        kind: u8,
        meta: Meta,
        bytes: &[u8; SHORT],
        len: usize,
    ) -> bool {
        let mut tx = self.tx.lock();
        if !tx.ring.push_short(kind, meta.to_bytes(), bytes, len) {
            return false;
        }
        let sleeps = tx.ring.consumer_sleeps();
        tx.count(device, len);
        drop(tx);
        if sleeps {
            wake(device, &self.wire);
        }
        true
    }

    /// Puts a packet in that names its payload, and wakes the peer if it sleeps.
    pub(super) fn send_named(
        &self,
        device: &Device,
        packet: &TxPacket<'_>,
        names: &Names,
    ) -> Result<(), LinkError> {
        let meta = Meta {
            header: u8::try_from(packet.header.len()).unwrap_or(0),
            pad: 0,
            dest_qpn: dest_qpn(packet.header),
            ack: packet.ack,
        };
        self.put(device, NAMED, meta.to_bytes(), &[packet.header, names.as_bytes()]).map(drop)
    }
}

/// The rings that a process fills, by the peer's slot.
#[derive(Default)]
pub(crate) struct Rings(RwLock<Vec<(u16, Arc<RingTx>)>>);

impl Rings {
    /// The ring to the process that has `slot`, if the two may share memory.
    pub(crate) fn to(
        &self,
        device: &Arc<Device>,
        slot: u16,
    ) -> Result<Option<Arc<RingTx>>, VerbsError> {
        // Perhaps the slot's last owner is gone, or its present one asked for a ring first.
        device.engine().control_events(device);
        let own = device.qps().read().owns(slot);
        let slot = if own { device.control().info().slot.slot } else { slot };
        if let Some(ring) = self.find(slot) {
            return Ok(Some(ring));
        }
        if own {
            // Two of its queue pairs are connected to each other: what it fills it empties.
            let ring = ring::create(LOOP_CAPACITY);
            let ring = ring.map_err(VerbsError::os("make a ring to ourselves"))?;
            return Ok(self.open(device, slot, (&ring, &ring), Ring::to_ourselves(), None));
        }
        let Some((slot, end)) = device.control().connect_ring(slot)? else { return Ok(None) };
        Ok(self.open_to_process(device, slot, end))
    }

    /// Takes our end of rings that a peer asked for.
    pub(crate) fn add(&self, device: &Arc<Device>, slot: u16, end: RingEnd) {
        self.open_to_process(device, slot, end);
    }

    /// Drops the rings to a process that is gone.
    pub(crate) fn remove(&self, device: &Device, slot: u16) {
        self.tell(device);
        self.0.write().retain(|(s, ring)| {
            let stays = *s != slot;
            if !stays {
                ring.ignore(device);
            }
            stays
        });
        device.reaches().remove(slot);
        device.engine().inbox(|inbox| {
            inbox.tell(device);
            inbox.ends.retain(|end| end.peer != slot);
        });
    }

    /// Brings the counters up to date.
    pub(crate) fn tell(&self, device: &Device) {
        self.0.read().iter().for_each(|(_, ring)| ring.tell(device));
    }

    fn find(&self, slot: u16) -> Option<Arc<RingTx>> {
        self.0.read().iter().find(|(s, _)| *s == slot).map(|(_, r)| r.clone())
    }

    fn open_to_process(&self, device: &Device, slot: u16, end: RingEnd) -> Option<Arc<RingTx>> {
        let RingEnd { tx, rx, bell, reach } = end;
        self.open(device, slot, (&tx, &rx), Ring::to_process(bell), reach)
    }

    fn open(
        &self,
        device: &Device,
        slot: u16,
        (tx, rx): (&OwnedFd, &OwnedFd),
        wire: Ring,
        reach: Option<ReachFds>,
    ) -> Option<Arc<RingTx>> {
        let mapped = Producer::map(tx).and_then(|tx| Ok((tx, Consumer::map(rx)?)));
        let (tx, rx) = match mapped {
            Ok(both) => both,
            Err(error) => {
                crate::throttled!(warn, slot, %error, "cannot map the rings to a process");
                count(device, Counter::RingCorrupt);
                return None;
            }
        };
        let mut ends = self.0.write();
        // Both may have asked; the second answer names the same rings.
        if let Some((_, first)) = ends.iter().find(|(s, _)| *s == slot) {
            return Some(first.clone());
        }
        if let Some(bell) = wire.bell()
            && let Err(error) = device.engine().waiter.listen_to(bell)
        {
            crate::throttled!(warn, slot, %error, "cannot be woken by a process");
            return None;
        }
        let tx = Mutex::new(Tx { ring: tx, packets: 0, bytes: 0 });
        let reach = device.reaches().add(slot, reach);
        let ring = Arc::new(RingTx { tx, wire, reach });
        ends.push((slot, ring.clone()));
        drop(ends);
        let (tx, taken) = (ring.clone(), Taken::default());
        let end = RingRx { peer: slot, rx, tx, taken, broken: false };
        device.engine().inbox(|inbox| inbox.ends.push(end));
        // A background thread that sleeps already does not attend to this one yet.
        device.engine().wake_sleeper();
        Some(ring)
    }
}

impl Inbox {
    /// Whether no record waits in any ring. A few loads; no lock, no system call.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.iter().all(|end| end.rx.is_empty())
    }

    /// Forgets a queue pair that is being destroyed.
    pub(crate) fn forget_qp(&mut self, qpn: Qpn) {
        self.qps.forget(qpn);
    }

    /// Forgets where something was put.
    pub(crate) fn forget_memory(&mut self) {
        self.qps.forget_memory();
    }

    /// Takes packets from all rings.
    pub(crate) fn receive(
        &mut self,
        device: &Arc<Device>,
        now: Time,
        owed: &mut Vec<Qpn>,
    ) -> usize {
        let Self { ends, private, qps } = self;
        let mut here = Here { device, private, qps, now, owed };
        let (mut received, mut broken) = (0, false);
        for end in ends.iter_mut() {
            received += end.receive(&mut here);
            broken |= end.broken;
        }
        if broken {
            // Queue pairs that still send to such a peer find out by their retry counters.
            ends.retain_mut(|end| {
                if end.broken {
                    end.taken.tell(device);
                    end.tx.ignore(device);
                }
                !end.broken
            });
        }
        received
    }

    /// Brings the counters up to date.
    pub(crate) fn tell(&mut self, device: &Device) {
        self.ends.iter_mut().for_each(|end| end.taken.tell(device));
    }

    /// Marks all rings as unattended. False if a record waits in one: do not sleep then.
    pub(crate) fn sleep(&self) -> bool {
        Consumer::prepare_all(self.ends.iter().map(|end| &end.rx))
    }

    /// Takes that back.
    pub(crate) fn wake(&self) {
        self.ends.iter().for_each(|end| end.rx.awake());
    }
}

/// What a ring is emptied into.
struct Here<'a> {
    device: &'a Arc<Device>,
    /// Where records are copied to before anything in them is looked at.
    private: &'a mut Vec<u8>,
    qps: &'a mut Lately,
    now: Time,
    /// Queue pairs that owe an ACK.
    owed: &'a mut Vec<Qpn>,
}

/// How much was taken from a ring that the counters do not tell yet, as in [`Tx`].
#[derive(Debug, Default)]
struct Taken {
    records: u64,
    bytes: u64,
}

impl Taken {
    #[inline]
    fn add(&mut self, len: usize) {
        self.records += 1;
        self.bytes += len as u64;
    }

    fn tell(&mut self, device: &Device) {
        let counters = Counters(device.counters());
        counters.add(Counter::RingRxPackets, std::mem::take(&mut self.records));
        counters.add(Counter::RingRxBytes, std::mem::take(&mut self.bytes));
    }
}

/// What is next in a ring.
type Next = Result<Option<Head>, Broken>;

impl RingRx {
    fn receive(&mut self, here: &mut Here<'_>) -> usize {
        let device = here.device;
        if self.tx.reach().is_some_and(|reach| reach.is_stuck()) {
            self.broken = true;
            return 0;
        }
        let before = self.taken.records;
        let end = before + TURNS as u64;
        let mut next = self.rx.peek();
        while self.taken.records < end {
            let head = match next {
                Ok(Some(head)) => head,
                Ok(None) => break,
                Err(broken) => {
                    crate::throttled!(warn, peer = self.peer, %broken, "a ring to a process is not used any more");
                    count(device, Counter::RingCorrupt);
                    self.broken = true;
                    break;
                }
            };
            if is_for_qp(&head, device) {
                next = self.packets(here, head, end);
                continue;
            }
            self.taken.add(head.len());
            self.other(here, head);
            next = self.rx.peek();
        }
        let taken = self.taken.records - before;
        if self.taken.records >= Tx::BEHIND {
            self.taken.tell(device);
        }
        if taken != 0 && self.rx.producer_waits() {
            wake(device, &self.tx.wire);
        }
        usize::try_from(taken).unwrap_or(usize::MAX)
    }

    /// Takes a record that is not for a queue pair of ours, or is too long to be copied twice.
    fn other(&mut self, here: &mut Here<'_>, head: Head) {
        let device = here.device;
        let (kind, meta, long) = (head.kind(), head.meta(), head.len() >= IN_PLACE);
        let record = self.rx.take(head);
        if kind == PACKET {
            in_place(here, &self.tx, &Meta::parse(meta), &record);
        } else if kind == xrc::kind::PLACE && long {
            place_in_place(device, self.peer, meta, &record);
        } else {
            let bytes = copied(&record, here.private);
            let table = device.qps().read();
            if !device.xrc().take(device, &table, self.peer, kind, meta, bytes) {
                count(device, Counter::RxMalformed);
            }
        }
    }

    /// Takes the packets at the front of the ring that are for the same queue pair as the first, under one lock,
    /// and then sends what they allow to be sent. Returns what is next.
    fn packets(&mut self, here: &mut Here<'_>, first: Head, end: u64) -> Next {
        let Here { device, private, qps, now, owed } = here;
        let (device, now) = (*device, *now);
        let Self { rx, tx, taken, .. } = self;
        let dest_qpn = Meta::parse(first.meta()).dest_qpn;
        let Some((core, spot)) = qps.get(device, Qpn::new(dest_qpn)) else {
            taken.add(first.len());
            drop(rx.take(first));
            count(device, Counter::RxNoQp);
            return rx.peek();
        };
        let mut bound = Bound::lock(device, core);
        let av = bound.capture_av();
        let (state, next) = bound.run(|machine, env| {
            env.spot = Some(*spot);
            let mut head = first;
            let next = loop {
                let (kind, meta) = (head.kind(), Meta::parse(head.meta()));
                taken.add(head.len());
                let record = rx.take(head);
                if kind == ACK {
                    drop(record);
                    ack(device, (machine, env), tx, &meta, now);
                } else {
                    let bytes = copied(&record, private);
                    drop(record);
                    if kind == NAMED {
                        named(device, (machine, env), tx, &meta, bytes, now);
                        break rx.peek();
                    }
                    if let Some(av) = &av {
                        device.engine().capture().received_in_memory(device, av, bytes);
                    }
                    take(device, (machine, env), tx, meta, bytes, now);
                }
                match rx.peek() {
                    Ok(Some(next))
                        if taken.records < end
                            && is_for_qp(&next, device)
                            && Meta::parse(next.meta()).dest_qpn == dest_qpn =>
                    {
                        head = next;
                    }
                    other => break other,
                }
            };
            *spot = env.spot.take().unwrap_or_default();
            let idle = machine.is_idle();
            (if idle { TxState::Idle } else { machine.poll_transmit(now, BUDGET, env) }, next)
        });
        if bound.settle_round(state) && core.owed.list() {
            owed.push(core.qpn);
        }
        next
    }
}

/// A record's bytes, where the peer cannot change them any more.
fn copied<'a>(record: &Record<'_>, private: &'a mut Vec<u8>) -> &'a mut [u8] {
    if private.len() < record.len() {
        private.resize(record.len(), 0);
    }
    let bytes = &mut private[..record.len()];
    record.copy(0, bytes);
    bytes
}

/// Whether a record is handed to a queue pair from a private copy.
#[inline]
fn is_for_qp(head: &Head, device: &Device) -> bool {
    match head.kind() {
        PACKET => head.len() < IN_PLACE || !moves_only(device),
        NAMED | ACK => true,
        _ => false,
    }
}

/// Whether the payload of packets is only moved elsewhere, and nobody looks at it: so it is in the hub.
fn moves_only(device: &Device) -> bool {
    device.xrc().is_hub() && !device.engine().capture().is_on()
}

/// Hands over a packet with the payload where it lies. Only the headers are copied before they are looked at.
#[expect(unsafe_code, reason = "the payload stays in memory that the sender may write to")]
fn in_place(here: &mut Here<'_>, ring: &Arc<RingTx>, meta: &Meta, record: &Record<'_>) {
    let (device, now) = (here.device, here.now);
    let headers = &mut [0; MAX_HEADER][..usize::from(meta.header).min(MAX_HEADER)];
    record.copy(0, headers);
    // SAFETY: a target's machine takes nothing of the payload but its length, which is the record's, and its
    // surroundings only copy it on (`xrc::place`): nothing is decided by these bytes.
    let payload = unsafe { record.bytes() }.get(headers.len()..).unwrap_or_default();
    let Some(packet) = checked(device, Packet::parse_parts(headers, payload)) else { return };
    let table = device.qps().read();
    let Some(core) = table.get(Qpn::new(meta.dest_qpn)) else {
        return count(device, Counter::RxNoQp);
    };
    let mut bound = Bound::lock(device, core);
    let state = bound.run(|machine, env| {
        hand_over(device, (machine, env), ring, meta, &packet, now);
        machine.poll_transmit(now, BUDGET, env)
    });
    bound.settle_after(state);
}

/// Takes the hub's bytes for our memory from where they lie.
#[expect(unsafe_code, reason = "the bytes stay in memory that the hub may write to")]
fn place_in_place(device: &Arc<Device>, from: u16, meta: [u8; 16], record: &Record<'_>) {
    // SAFETY: the bytes are copied to where they belong (`Side::place`), and nothing is decided by them.
    if !device.xrc().take_place(device, from, meta, unsafe { record.bytes() }) {
        count(device, Counter::RxMalformed);
    }
}

/// Hands over the packet in these bytes: in the short way if it is plain, in which most are.
#[inline]
fn take(
    device: &Device,
    (machine, env): (&mut Machine, &mut QpEnv<'_>),
    ring: &Arc<RingTx>,
    mut meta: Meta,
    bytes: &[u8],
    now: Time,
) {
    if usize::from(meta.header) == Bth::LEN
        && let (Some(tail), Ok(bth)) = (bytes.get(Bth::LEN..), Bth::parse(bytes))
        && let Some(len) = tail.len().checked_sub(bth.pad.into())
        && bth.dest_qpn.get() == meta.dest_qpn
        && env.is_peer(ring)
        && let Some(qp) = machine.packets()
    {
        if let Some(psn) = meta.ack {
            qp.handle_ack_along(now, psn, env);
        }
        if qp.handle_brief(&bth, &tail[..len], env) {
            return;
        }
        meta.ack = None;
    }
    if let Some(packet) = parse(device, bytes) {
        hand_over(device, (machine, env), ring, &meta, &packet, now);
    }
}

/// Hands over an acknowledgement that came by itself.
#[inline]
fn ack(
    device: &Device,
    (machine, env): (&mut Machine, &mut QpEnv<'_>),
    ring: &Arc<RingTx>,
    meta: &Meta,
    now: Time,
) {
    match meta.ack {
        Some(psn) if env.is_peer(ring) => machine.handle_ack_along(now, psn, env),
        Some(_) => count(device, Counter::RxSource),
        None => count(device, Counter::RxMalformed),
    }
}

/// Hands over a packet that names its payload, and acknowledges it at once: what it stands for is long.
fn named(
    device: &Device,
    (machine, env): (&mut Machine, &mut QpEnv<'_>),
    ring: &Arc<RingTx>,
    meta: &Meta,
    bytes: &[u8],
    now: Time,
) {
    let Some((headers, at)) = bytes.split_at_checked(meta.header.into()) else {
        return count(device, Counter::RxMalformed);
    };
    let Some(len) = named::len(at) else { return count(device, Counter::RxMalformed) };
    let Some(packet) = checked(device, Packet::parse_parts(headers, &[])) else { return };
    if !is_meant((device, env), ring, meta, &packet) {
        return;
    }
    if let Some(psn) = meta.ack {
        machine.handle_ack_along(now, psn, env);
    }
    let rx = RxPacket { packet: &packet, source: &NEIGHBOUR };
    machine.handle_named(now, &rx, &Named { len, at }, env);
    machine.flush_ack(now, env);
}

/// Whether a packet is for the queue pair that its record says, and comes from its peer.
#[inline]
fn is_meant(
    (device, env): (&Device, &QpEnv<'_>),
    ring: &Arc<RingTx>,
    meta: &Meta,
    packet: &Packet<'_>,
) -> bool {
    let fault = if packet.bth.dest_qpn.get() != meta.dest_qpn {
        Counter::RxMalformed
    } else if !env.is_peer(ring) {
        Counter::RxSource
    } else {
        return true;
    };
    count(device, fault);
    false
}

/// Hands a record's packet to its queue pair, after the acknowledgement that it took along. Only the process that the
/// queue pair is connected to may send it any: its ring is the one that the queue pair itself sends into.
fn hand_over(
    device: &Device,
    (machine, env): (&mut Machine, &mut QpEnv<'_>),
    ring: &Arc<RingTx>,
    meta: &Meta,
    packet: &Packet<'_>,
    now: Time,
) {
    if !is_meant((device, env), ring, meta, packet) {
        return;
    }
    if let Some(psn) = meta.ack {
        machine.handle_ack_along(now, psn, env);
    }
    machine.handle_packet(now, &RxPacket { packet, source: &NEIGHBOUR }, env);
}

/// Where packets of a ring come from: nothing that a connected queue pair looks at.
static NEIGHBOUR: Source<'static> = Source {
    sgid: Gid::ZERO,
    dgid: Gid::ZERO,
    grh: &NO_GRH,
    slid: 0,
    sl: 0,
    dlid_path_bits: 0,
    has_grh: false,
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Lab;

    #[test]
    fn wakes_of_the_hub_are_held_until_its_round_ends() {
        let (device, _control) = Lab::new(true).process("127.77.209.1");
        let (bell, process) = PeerBell::pair().unwrap();
        let (wakes, peer) = (LateWakes::default(), Ring::to_process(bell));
        let woken = || process.clear().unwrap();
        wakes.hold();
        wakes.wake(&device, &peer);
        assert!(woken(), "only the hub holds wakes back");
        device.xrc().host_members();
        wakes.wake(&device, &peer);
        wakes.wake(&device, &peer);
        assert!(!woken());
        assert_eq!(wakes.take().len(), 1);
        wakes.wake(&device, &peer);
        assert!(woken(), "the round has ended");
    }
}
