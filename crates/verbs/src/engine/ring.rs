//! Rings to processes of this host: who has one, packets into them and out of them.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rdmux_link::ring::RingError;
use rdmux_link::{
    Consumer, Doorbell, Frame, LinkCaps, LinkError, Payload, Producer, Record, RingPair,
};
use rdmux_transport::attr::AddressVector;
use rdmux_transport::{RxPacket, Source};
use rdmux_wire::{Gid, MAX_HEADER, Packet, Qpn};

use super::drive::{BUDGET, Bound};
use super::receive::{NO_GRH, checked, count, parse};
use crate::control::RingEnd;
use crate::counters::{Counter, Counters};
use crate::device::{Device, QpTable};
use crate::error::VerbsError;
use crate::xrc::record as xrc;

/// The kind of a record that holds a packet.
const PACKET: u8 = 1;
/// Bytes of data of the ring to ourselves.
const LOOP_CAPACITY: usize = rdmux_link::ring::DEFAULT_CAPACITY;
/// The most payload bytes of a record, whatever the ring would take: half of it fits in a core's
/// second-level cache together with its copy.
const MAX_PAYLOAD: u32 = 32 << 10;
/// The same for XRC: for each packet the hub asks the system to copy, which takes as long as some ten thousand bytes do.
pub(crate) const MAX_XRC_PAYLOAD: u32 = 64 << 10;
/// From how many bytes on it is worth to leave them where they lie until they are moved to where they belong.
pub(crate) const IN_PLACE: usize = 4096;
/// How many records of a ring a round takes before it looks at the next ring.
const TURNS: usize = 64;

/// A pair of rings to one process, which may be this one.
#[derive(Debug)]
pub(crate) struct RingTx {
    tx: Mutex<Producer>,
    peer: Doorbell,
}

/// The ring that the same process fills and we empty. A round's own: looking into it costs no lock.
#[derive(Debug)]
struct RingRx {
    peer: u16,
    rx: Consumer,
    tx: Arc<RingTx>,
    /// The peer wrote what no ring holds: nothing that comes from it can be trusted any more.
    broken: bool,
}

impl RingTx {
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
        let mut record = tx.reserve_or_wait(len).map_err(|error| {
            let full = error == RingError::Full;
            count(device, if full { Counter::TxBusy } else { Counter::TxErrors });
            LinkError::from(error)
        })?;
        parts.iter().for_each(|part| record.put(part));
        record.publish(kind, meta);
        if tx.consumer_sleeps() {
            // As in `send`.
            let _ = self.peer.ring();
        }
        Ok(tx.position())
    }

    /// Whether there is room for so many bytes. If not, the peer will wake us.
    pub(crate) fn has_room_or_wait(&self, bytes: usize) -> bool {
        self.tx.lock().has_room_or_wait(bytes)
    }

    /// The position that the peer has come to. It passes a record that is no packet when it is done with it.
    pub(crate) fn consumed(&self) -> u64 {
        self.tx.lock().consumed()
    }
}

/// All rings that a round empties.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    ends: Vec<RingRx>,
    /// Where records are copied to before anything in them is looked at.
    private: Vec<u8>,
}

/// What a ring can do.
pub(crate) const CAPS: LinkCaps =
    LinkCaps { max_payload: MAX_PAYLOAD, lossless: true, by_reference: false };

/// What a record says about the packet in it besides its bytes.
struct Meta {
    header: u16,
    pad: u8,
    sgid_index: u8,
    dgid_index: u8,
}

impl Meta {
    fn to_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&self.header.to_ne_bytes());
        bytes[2] = self.pad;
        bytes[3] = self.sgid_index;
        bytes[4] = self.dgid_index;
        bytes
    }
    fn parse(bytes: [u8; 16]) -> Self {
        let [h0, h1, pad, sgid_index, dgid_index, ..] = bytes;
        Self { header: u16::from_ne_bytes([h0, h1]), pad, sgid_index, dgid_index }
    }
}

impl RingTx {
    /// Puts a packet in and wakes the peer if it sleeps.
    pub(crate) fn send(
        &self,
        device: &Arc<Device>,
        av: &AddressVector,
        frame: &Frame<'_>,
    ) -> Result<(), LinkError> {
        let pad = usize::from(frame.pad & 3);
        let len = frame.header.len() + frame.payload.len() + pad;
        let meta = Meta {
            header: u16::try_from(frame.header.len()).unwrap_or(0),
            pad: frame.pad & 3,
            sgid_index: av.sgid_index,
            dgid_index: device.gid_index(av.dgid).unwrap_or(av.sgid_index),
        };
        let mut tx = self.tx.lock();
        let mut record = match tx.reserve_or_wait(len) {
            Ok(record) => record,
            Err(error) => {
                let full = error == RingError::Full;
                count(device, if full { Counter::TxBusy } else { Counter::TxErrors });
                return Err(error.into());
            }
        };
        record.put(frame.header);
        match frame.payload {
            Payload::None => {}
            Payload::Bytes(bytes) => record.put(bytes),
            Payload::Pieces(pieces) => pieces.iter().try_for_each(|p| record.put_piece(*p))?,
        }
        record.put(&[0; 3][..pad]);
        record.publish(PACKET, meta.to_bytes());
        if tx.consumer_sleeps() {
            // A descriptor that is no eventfd is the peer's own doing: it will not be woken.
            let _ = self.peer.ring();
        }
        drop(tx);
        let counters = Counters(device.counters());
        counters.add(Counter::RingTxPackets, 1);
        counters.add(Counter::RingTxBytes, len as u64);
        device.engine().capture().ring_sent(device, av, frame);
        Ok(())
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
            let end = loopback(device).map_err(VerbsError::os("make a ring to ourselves"))?;
            return Ok(self.open(device, slot, end));
        }
        let Some((slot, end)) = device.control().connect_ring(slot)? else { return Ok(None) };
        Ok(self.open(device, slot, end))
    }

    /// Takes our end of rings that a peer asked for.
    pub(crate) fn add(&self, device: &Arc<Device>, slot: u16, end: RingEnd) {
        self.open(device, slot, end);
    }

    /// Drops the rings to a process that is gone.
    pub(crate) fn remove(&self, device: &Device, slot: u16) {
        self.0.write().retain(|(s, _)| *s != slot);
        device.engine().inbox(|inbox| inbox.ends.retain(|end| end.peer != slot));
    }

    fn find(&self, slot: u16) -> Option<Arc<RingTx>> {
        self.0.read().iter().find(|(s, _)| *s == slot).map(|(_, r)| r.clone())
    }

    fn open(&self, device: &Device, slot: u16, end: RingEnd) -> Option<Arc<RingTx>> {
        let RingEnd { tx, rx, peer_doorbell } = end;
        let (tx, rx) = match Producer::map(&tx).and_then(|tx| Ok((tx, Consumer::map(&rx)?))) {
            Ok(both) => both,
            Err(error) => {
                tracing::warn!(slot, %error, "cannot map the rings to a process");
                count(device, Counter::RingCorrupt);
                return None;
            }
        };
        let mut ends = self.0.write();
        // Both may have asked; the second answer names the same rings.
        if let Some((_, first)) = ends.iter().find(|(s, _)| *s == slot) {
            return Some(first.clone());
        }
        let ring = Arc::new(RingTx { tx: Mutex::new(tx), peer: Doorbell::from_fd(peer_doorbell) });
        ends.push((slot, ring.clone()));
        drop(ends);
        let end = RingRx { peer: slot, rx, tx: ring.clone(), broken: false };
        device.engine().inbox(|inbox| inbox.ends.push(end));
        // A background thread that sleeps already does not attend to this one yet.
        device.engine().wake_sleeper();
        Some(ring)
    }
}

/// Rings from this process to itself: two of its queue pairs connected to each other.
fn loopback(device: &Device) -> std::io::Result<RingEnd> {
    let (near, far) = RingPair::create(LOOP_CAPACITY)?;
    let peer_doorbell = device.control().doorbell().duplicate()?;
    Ok(RingEnd { tx: near.tx, rx: far.rx, peer_doorbell })
}

impl Inbox {
    /// Whether no record waits in any ring. A few loads; no lock, no system call.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.iter().all(|end| end.rx.is_empty())
    }

    /// Takes packets from all rings.
    pub(crate) fn receive(&mut self, device: &Arc<Device>) -> usize {
        if self.is_empty() {
            return 0;
        }
        let table = device.qps().read();
        let Self { ends, private } = self;
        let received = ends.iter_mut().map(|end| end.receive(device, &table, private)).sum();
        // Queue pairs that still send to such a peer find out by their retry counters.
        ends.retain(|end| !end.broken);
        received
    }

    /// Marks all rings as unattended. False if a record waits in one: do not sleep then.
    pub(crate) fn sleep(&self) -> bool {
        self.ends.iter().all(|end| end.rx.prepare_sleep())
    }

    /// Takes that back.
    pub(crate) fn wake(&self) {
        self.ends.iter().for_each(|end| end.rx.awake());
    }
}

impl RingRx {
    fn receive(&mut self, device: &Arc<Device>, table: &QpTable, private: &mut Vec<u8>) -> usize {
        let rx = &mut self.rx;
        let (mut records, mut bytes) = (0, 0);
        while records < TURNS {
            match rx.pop() {
                Ok(Some(record)) => {
                    let (kind, meta) = (record.kind(), record.meta());
                    bytes += record.len() as u64;
                    let long = record.len() >= IN_PLACE;
                    if kind == PACKET && long && moves_only(device) {
                        deliver_in_place(device, table, &Meta::parse(meta), &record, private);
                    } else if kind == xrc::kind::PLACE && long {
                        place_in_place(device, self.peer, meta, &record);
                    } else {
                        private.resize(record.len(), 0);
                        record.copy(0, private);
                        if kind == PACKET {
                            drop(record);
                            let packet = parse(device, private);
                            deliver(device, table, &Meta::parse(meta), packet, private);
                        } else if !device.xrc().take(device, table, self.peer, kind, meta, private)
                        {
                            count(device, Counter::RxMalformed);
                        }
                    }
                }
                Ok(None) => break,
                Err(broken) => {
                    tracing::warn!(peer = self.peer, %broken, "a ring to a process is not used any more");
                    count(device, Counter::RingCorrupt);
                    self.broken = true;
                    break;
                }
            }
            records += 1;
        }
        if records != 0 {
            let counters = Counters(device.counters());
            counters.add(Counter::RingRxPackets, records as u64);
            counters.add(Counter::RingRxBytes, bytes);
            if rx.producer_waits() {
                let _ = self.tx.peer.ring();
            }
        }
        records
    }
}

/// Whether the payload of packets is only moved elsewhere, and nobody looks at it: so it is in the hub.
fn moves_only(device: &Device) -> bool {
    device.xrc().is_hub() && !device.engine().capture().is_on()
}

/// As [`deliver`], with the payload where it lies. Only the headers are copied before they are looked at.
#[expect(unsafe_code, reason = "the payload stays in memory that the sender may write to")]
fn deliver_in_place(
    device: &Arc<Device>,
    table: &QpTable,
    meta: &Meta,
    record: &Record<'_>,
    headers: &mut Vec<u8>,
) {
    headers.resize(usize::from(meta.header).min(MAX_HEADER), 0);
    record.copy(0, headers);
    // SAFETY: a target's machine takes nothing of the payload but its length, which is the record's, and its
    // surroundings only copy it on (`xrc::place`): nothing is decided by these bytes.
    let payload = unsafe { record.bytes() }.get(headers.len()..).unwrap_or_default();
    let packet = checked(device, Packet::parse_parts(headers, payload));
    deliver(device, table, meta, packet, headers);
}

/// Takes the hub's bytes for our memory from where they lie.
#[expect(unsafe_code, reason = "the bytes stay in memory that the hub may write to")]
fn place_in_place(device: &Arc<Device>, from: u16, meta: [u8; 16], record: &Record<'_>) {
    // SAFETY: the bytes are copied to where they belong (`Side::place`), and nothing is decided by them.
    if !device.xrc().take_place(device, from, meta, unsafe { record.bytes() }) {
        count(device, Counter::RxMalformed);
    }
}

/// Hands a record's packet to its queue pair. `bytes` are what a capture shows of it.
fn deliver(
    device: &Arc<Device>,
    table: &QpTable,
    meta: &Meta,
    packet: Option<Packet<'_>>,
    bytes: &[u8],
) {
    if usize::from(meta.header) > MAX_HEADER {
        return count(device, Counter::RxMalformed);
    }
    let Some(packet) = packet else { return };
    let Some(core) = table.get(Qpn::new(packet.bth.dest_qpn.get())) else {
        return count(device, Counter::RxNoQp);
    };
    let gid = |index| device.gid(index).map_or(Gid::ZERO, |entry| entry.gid);
    let source = Source {
        sgid: gid(meta.sgid_index),
        dgid: gid(meta.dgid_index),
        grh: &NO_GRH,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
        has_grh: true,
    };
    let mut bound = Bound::lock(device, core);
    device.engine().capture().ring_received(&source, bytes);
    let now = device.now();
    let state = bound.run(|machine, env| {
        machine.handle_packet(now, &RxPacket { packet, source }, env);
        machine.poll_transmit(now, BUDGET, env)
    });
    bound.settle_after(state);
}
