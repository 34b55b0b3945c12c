//! Receiving from rings: records are taken one by one, and dispatched by their kind.

use std::sync::Arc;

use rdmux_link::ring::{Broken, Head, Meta, PACKET};
use rdmux_link::{Consumer, Record, Wire};
use rdmux_transport::env::Named;
use rdmux_transport::{RxPacket, Source, Time, TxState};
use rdmux_wire::{Bth, Gid, MAX_HEADER, Packet, Qpn};

use super::{ACK, IN_PLACE, NAMED, Neighbour, Tx, named, wake};
use crate::engine::device::Device;
use crate::engine::drive::{BUDGET, Bound};
use crate::engine::env::{Arrived, QpEnv};
use crate::engine::machine::Machine;
use crate::engine::receive::{NO_GRH, checked, count, parse};
use crate::engine::recent::RecentQps;
use crate::objects::counters::{Counter, Counters};
use crate::objects::xrc::record as xrc;

/// Number of records that a round takes from a ring before it polls the next ring.
const TURNS: usize = 64;

/// The receiving side of all rings.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    ends: Vec<RingRx>,
    /// A private buffer: records are copied here before their contents are examined.
    private: Vec<u8>,
    /// The queue pairs that received most recently, and the memory that each one's data was written to.
    pub(in crate::engine::wire) qps: RecentQps,
}

/// The ring that a process fills and this one empties. Only rounds use it, so that reading it takes no lock.
#[derive(Debug)]
struct RingRx {
    peer: u16,
    rx: Consumer,
    tx: Arc<Neighbour>,
    taken: Taken,
    /// Whether the peer wrote an invalid record: nothing from it can be trusted any more.
    broken: bool,
}

impl Inbox {
    /// Starts receiving from the ring of a process.
    pub(super) fn add(&mut self, peer: u16, rx: Consumer, tx: Arc<Neighbour>) {
        self.ends.push(RingRx { peer, rx, tx, taken: Taken::default(), broken: false });
    }

    /// Stops receiving from the ring of a process.
    pub(super) fn remove(&mut self, peer: u16) {
        self.ends.retain(|end| end.peer != peer);
    }

    /// Returns whether all rings are empty. Takes a few loads, and no lock or system call.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.iter().all(|end| end.rx.is_empty())
    }

    /// Receives packets from all rings.
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
            // Queue pairs that still send to such a peer notice by their retry counters.
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

    /// Receives from all rings until that of a process that is gone is empty. The process may still exist and continue, so at most
    /// as many records are taken as a ring holds.
    pub(in crate::engine::wire) fn receive_rest(
        &mut self,
        device: &Arc<Device>,
        peer: u16,
        now: Time,
        owed: &mut Vec<Qpn>,
    ) {
        let records = self.ends.iter().find(|end| end.peer == peer).map(|end| end.rx.max_records());
        for _ in 0..records.unwrap_or(0).div_ceil(TURNS) {
            if self.ends.iter().all(|end| end.peer != peer || end.rx.is_empty()) {
                return;
            }
            self.receive(device, now, owed);
        }
    }

    /// Updates the counters.
    pub(crate) fn tell(&mut self, device: &Device) {
        self.ends.iter_mut().for_each(|end| end.taken.tell(device));
    }

    /// Marks all rings as unattended. Returns false if a record waits in one: the caller must not sleep then.
    pub(crate) fn sleep(&self) -> bool {
        Consumer::prepare_all(self.ends.iter().map(|end| &end.rx))
    }

    /// Marks all rings as attended again.
    pub(crate) fn wake(&self) {
        self.ends.iter().for_each(|end| end.rx.awake());
    }
}

/// The state into which a ring is emptied.
struct Here<'a> {
    device: &'a Arc<Device>,
    /// A private buffer: records are copied here before their contents are examined.
    private: &'a mut Vec<u8>,
    qps: &'a mut RecentQps,
    now: Time,
    /// Queue pairs that owe an ACK.
    owed: &'a mut Vec<Qpn>,
}

/// The records taken from a ring that have not been added to the counters, as in [`Tx`].
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

/// The next record of a ring.
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
        let mut next = self.tx.wire.receive(&mut self.rx);
        while self.taken.records < end {
            let head = match next {
                Ok(Some(head)) => head,
                Ok(None) => break,
                Err(broken) => {
                    crate::throttled!(warn, peer = self.peer, %broken, "the ring from a process \
                        violated the protocol and was closed");
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
            next = self.tx.wire.receive(&mut self.rx);
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

    /// Handles a record that is not for one of this process's queue pairs, or is too long to be copied twice.
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

    /// Handles the packets at the front of the ring that are for the same queue pair as the first, under one lock, and then sends
    /// what they permit to be sent. Returns the next record.
    fn packets(&mut self, here: &mut Here<'_>, first: Head, end: u64) -> Next {
        let Here { device, private, qps, now, owed } = here;
        let (device, now) = (*device, *now);
        let Self { rx, tx, taken, .. } = self;
        let Meta { dest_qpn, path, .. } = Meta::parse(first.meta());
        let mut lost = |first: Head, why| {
            taken.add(first.len());
            drop(rx.take(first));
            count(device, why);
            tx.wire.receive(rx)
        };
        let Some((core, cached)) = qps.get(device, Qpn::new(dest_qpn)) else {
            return lost(first, Counter::RxNoQp);
        };
        if device.is_cut(path, core.port()) {
            return lost(first, Counter::RxNoLink);
        }
        let mut bound = Bound::lock(device, core);
        let av = bound.capture_av();
        let (state, next) = bound.run(|machine, env| {
            env.cached = Some(*cached);
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
                        break tx.wire.receive(rx);
                    }
                    if let Some(av) = &av {
                        device.engine().capture().received_in_memory(device, av, bytes);
                    }
                    take(device, (machine, env), tx, meta, bytes, now);
                }
                match tx.wire.receive(rx) {
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
            *cached = env.cached.take().unwrap_or_default();
            let idle = machine.is_idle();
            (if idle { TxState::Idle } else { machine.poll_transmit(now, BUDGET, env) }, next)
        });
        if bound.schedule_round(state) && core.owed.list() {
            owed.push(core.qpn);
        }
        next
    }
}

/// Copies a record's bytes to private memory, where the peer cannot change them.
fn copied<'a>(record: &Record<'_>, private: &'a mut Vec<u8>) -> &'a mut [u8] {
    if private.len() < record.len() {
        private.resize(record.len(), 0);
    }
    let bytes = &mut private[..record.len()];
    record.copy(0, bytes);
    bytes
}

/// Returns whether a record is passed to a queue pair from a private copy.
#[inline]
fn is_for_qp(head: &Head, device: &Device) -> bool {
    match head.kind() {
        PACKET => head.len() < IN_PLACE || !moves_only(device),
        NAMED | ACK => true,
        _ => false,
    }
}

/// Returns whether the payload of packets is only moved on, without being examined, as in the hub.
fn moves_only(device: &Device) -> bool {
    device.xrc().is_hub() && !device.engine().detour().is_captured()
}

/// Passes on a packet with its payload in place. Only the headers are copied before they are examined.
#[expect(unsafe_code, reason = "the payload stays in memory that the sender may write to")]
fn in_place(here: &mut Here<'_>, ring: &Arc<Neighbour>, meta: &Meta, record: &Record<'_>) {
    let (device, now) = (here.device, here.now);
    let headers = &mut [0; MAX_HEADER][..usize::from(meta.header).min(MAX_HEADER)];
    record.copy(0, headers);
    // SAFETY: a target's machine uses only the length of the payload, which is the record's, and its
    // environment only copies it on (`xrc::place`): no decision depends on these bytes.
    let payload = unsafe { record.bytes() }.get(headers.len()..).unwrap_or_default();
    let Some(packet) = checked(device, Packet::parse_parts(headers, payload)) else { return };
    let table = device.qps().read();
    let Some(core) = table.get(Qpn::new(meta.dest_qpn)) else {
        return count(device, Counter::RxNoQp);
    };
    if device.is_cut(meta.path, core.port()) {
        return count(device, Counter::RxNoLink);
    }
    let mut bound = Bound::lock(device, core);
    let state = bound.run(|machine, env| {
        hand_over(device, (machine, env), ring, meta, &packet, now);
        machine.poll_transmit(now, BUDGET, env)
    });
    bound.schedule_after(state);
}

/// Handles the hub's bytes for this process's memory in place.
#[expect(unsafe_code, reason = "the bytes stay in memory that the hub may write to")]
fn place_in_place(device: &Arc<Device>, from: u16, meta: [u8; 16], record: &Record<'_>) {
    // SAFETY: the bytes are copied to their destination (`Side::place`), and no decision depends on them.
    if !device.xrc().take_place(device, from, meta, unsafe { record.bytes() }) {
        count(device, Counter::RxMalformed);
    }
}

/// Handles the packet in these bytes. Plain packets, which most are, take the short path.
#[inline]
fn take(
    device: &Device,
    (machine, env): (&mut Machine, &mut QpEnv<'_>),
    ring: &Arc<Neighbour>,
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
            qp.handle_piggybacked_ack(now, psn, env);
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

/// Handles an acknowledgement that arrived without a packet.
#[inline]
fn ack(
    device: &Device,
    (machine, env): (&mut Machine, &mut QpEnv<'_>),
    ring: &Arc<Neighbour>,
    meta: &Meta,
    now: Time,
) {
    match meta.ack {
        Some(psn) if env.is_peer(ring) => machine.handle_piggybacked_ack(now, psn, env),
        Some(_) => count(device, Counter::RxSource),
        None => count(device, Counter::RxMalformed),
    }
}

/// Handles a packet that names its payload, and acknowledges it at once, since its payload is long.
fn named(
    device: &Device,
    (machine, env): (&mut Machine, &mut QpEnv<'_>),
    ring: &Arc<Neighbour>,
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
        machine.handle_piggybacked_ack(now, psn, env);
    }
    env.arrived = Arrived::ByRing(meta.path);
    let rx = RxPacket { packet: &packet, source: &NEIGHBOUR };
    machine.handle_named(now, &rx, &Named { len, at }, env);
    machine.flush_ack(now, env);
}

/// Returns whether a packet is for the queue pair that its record names, and is from its peer.
#[inline]
fn is_meant(
    (device, env): (&Device, &QpEnv<'_>),
    ring: &Arc<Neighbour>,
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

/// Passes a record's packet to its queue pair, after the acknowledgement that was piggybacked on it. Only the process that the
/// queue pair is connected to may send to it: its ring is the one that the queue pair itself sends into.
fn hand_over(
    device: &Device,
    (machine, env): (&mut Machine, &mut QpEnv<'_>),
    ring: &Arc<Neighbour>,
    meta: &Meta,
    packet: &Packet<'_>,
    now: Time,
) {
    if !is_meant((device, env), ring, meta, packet) {
        return;
    }
    if let Some(psn) = meta.ack {
        machine.handle_piggybacked_ack(now, psn, env);
    }
    env.arrived = Arrived::ByRing(meta.path);
    machine.handle_packet(now, &RxPacket { packet, source: &NEIGHBOUR }, env);
}

/// The source of packets from rings, which a connected queue pair does not read.
static NEIGHBOUR: Source<'static> = Source {
    sgid: Gid::ZERO,
    dgid: Gid::ZERO,
    grh: &NO_GRH,
    slid: 0,
    sl: 0,
    dlid_path_bits: 0,
    has_grh: false,
};
