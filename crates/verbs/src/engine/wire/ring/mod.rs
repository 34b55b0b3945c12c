//! Communication by rings with processes of this host and of the user's other hosts: records, which include packets, and shortcuts that
//! need no packets.
//!
//! - `inbox`: receiving from rings
//! - `short`: short SENDs, directly from the send queue into a record
//! - `named`: packets that name their payload
//! - `direct`: WRITEs and READs without any record

pub(crate) mod direct;
mod inbox;
pub(crate) mod named;
pub(crate) mod short;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::RwLock;
use rdmux_link::ring::{Meta, PACKET, RingError, RingPath, SHORT, dest_qpn};
use rdmux_link::{Consumer, Frame, LinkCaps, LinkError, PeerBell, Producer, Ring, Wire, ring};
use rdmux_transport::attr::{AddressVector, QpType};
use rdmux_transport::env::TxPacket;
use rdmux_wire::{Bth, Psn, Qpn};

pub(super) use self::inbox::Inbox;
use self::named::Names;
use crate::engine::device::{Device, PORT};
use crate::engine::receive::count;
use crate::objects::brief::Mutex;
use crate::objects::control::{RingEnd, RingPeer};
use crate::objects::counters::{Counter, Counters};
use crate::objects::error::VerbsError;
use crate::objects::reach::Reach;

/// The kind of a record that holds a packet which names its payload (`named`).
const NAMED: u8 = 9;
/// The kind of a record that is only an acknowledgement.
const ACK: u8 = 10;
/// Data bytes of the ring of a process to itself.
const LOOP_CAPACITY: usize = rdmux_link::ring::DEFAULT_CAPACITY;
/// The maximum payload of an XRC packet. For each packet the hub makes the kernel copy, which takes as long as copying some ten thousand
/// bytes.
const MAX_XRC_PAYLOAD: u32 = 64 << 10;
/// The length from which on bytes are left in place until they are copied to their destination.
pub(crate) const IN_PLACE: usize = 4096;
/// A process of this machine, which may be this one: the ring to it, and the doorbell that wakes
/// it.
#[derive(Debug)]
pub(crate) struct Neighbour {
    tx: Mutex<Tx>,
    wire: Ring,
    /// The process's memory, if it is accessible.
    reach: Option<Arc<Reach>>,
}

/// Wakeups that the hub holds back until the end of its round, when its acknowledgements are sent. A process that is woken earlier may
/// answer before the sender has the acknowledgement, and programs expect their own completion first.
#[derive(Debug, Default)]
pub(crate) struct LateWakes(parking_lot::Mutex<Option<Vec<Arc<PeerBell>>>>);

impl LateWakes {
    /// Starts to hold back wakeups.
    pub(in crate::engine) fn hold(&self) {
        self.0.lock().get_or_insert_default();
    }

    /// Stops holding back wakeups. Returns the processes to wake, each once.
    pub(in crate::engine) fn take(&self) -> Vec<Arc<PeerBell>> {
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

/// Wakes the process at the other end. Never blocks, whatever that process does.
fn wake(device: &Device, wire: &Ring) {
    if !wire.wake() {
        device.engine().waiter.wake();
    }
}

/// A ring that this process fills, and the records that have not been added to the counters. All rings share the counters, and sending a
/// small message takes hardly longer than counting it.
#[derive(Debug)]
struct Tx {
    ring: Producer,
    packets: u64,
    bytes: u64,
    /// Whether the process at the other end is gone.
    is_gone: bool,
}

impl Tx {
    /// The maximum number of packets by which the counters may lag behind.
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

impl Neighbour {
    /// Returns the capabilities of the ring for queue pairs of a type.
    pub(crate) fn caps(&self, qp_type: QpType) -> LinkCaps {
        let mut caps = self.wire.caps();
        if qp_type.is_xrc() {
            caps.max_payload = MAX_XRC_PAYLOAD;
        }
        caps.by_reference = qp_type == QpType::Rc && self.reach.is_some();
        caps
    }

    /// Returns the process's memory, if it is accessible.
    pub(crate) fn reach(&self) -> Option<&Arc<Reach>> {
        self.reach.as_ref()
    }

    /// Sends a record that is not a packet, and wakes the peer if it sleeps. Returns the position after the record.
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
            device.engine().wires.late_wakes.wake(device, &self.wire);
        }
        Ok(position)
    }

    /// Returns whether there is room for this many bytes. If not, the peer will wake this process when there is.
    pub(crate) fn has_room_or_wait(&self, bytes: usize) -> bool {
        self.tx.lock().ring.has_room_or_wait(bytes)
    }

    /// Returns the position up to which the peer has consumed the ring. The peer advances past a record that is not a packet when it has
    /// finished with it.
    pub(crate) fn consumed(&self) -> u64 {
        self.tx.lock().ring.consumed()
    }

    /// Updates the counters.
    fn tell(&self, device: &Device) {
        self.tx.lock().tell(device);
    }

    /// Prevents the process at the other end from waking this one.
    fn ignore(&self, device: &Device) {
        if let Some(bell) = self.wire.bell() {
            device.engine().waiter.ignore(bell);
        }
    }
}

impl Neighbour {
    /// Sends a packet, and wakes the peer if it sleeps.
    pub(crate) fn send(
        &self,
        device: &Arc<Device>,
        path: RingPath,
        av: &AddressVector,
        frame: &Frame<'_>,
    ) -> Result<(), LinkError> {
        if device.engine().detour().is_cut(av.port_num.max(PORT)) {
            // Dropped, as on an unplugged cable: the transport notices.
            count(device, Counter::TxNoLink);
            return Ok(());
        }
        let mut tx = self.tx.lock();
        match self.wire.send(&mut tx.ring, &path, frame) {
            Ok(()) => {}
            // No thread will make room: lost, as on the way to a port that has no queue pair any more.
            Err(LinkError::Busy) if tx.is_gone => {}
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

/// A short packet, in the form of its record.
pub(super) struct Short {
    /// The packet's headers and payload.
    pub(super) bytes: [u8; SHORT],
    /// The number of bytes in use.
    pub(super) len: usize,
    /// The number of pad bytes after the payload.
    pub(super) pad: u8,
    /// The PSN of the acknowledgement that is piggybacked.
    pub(super) ack: Option<Psn>,
    /// The path between the two processes.
    pub(super) path: RingPath,
}

impl Default for Short {
    fn default() -> Self {
        Self { bytes: [0; SHORT], len: 0, pad: 0, ack: None, path: RingPath::default() }
    }
}

impl Neighbour {
    /// Sends a packet without extension headers, and wakes the peer if it sleeps. Returns false if there is no room.
    #[inline]
    pub(super) fn send_short(&self, device: &Device, short: &Short) -> bool {
        let meta = Meta {
            header: u8::try_from(Bth::LEN).unwrap_or(0),
            pad: short.pad,
            dest_qpn: dest_qpn(&short.bytes),
            ack: short.ack,
            path: short.path,
        };
        self.push_short(device, PACKET, meta, &short.bytes, short.len)
    }

    /// Sends an acknowledgement to a queue pair of the peer, and wakes the peer if it sleeps. Returns false if there is no room.
    pub(in crate::engine) fn send_ack(&self, device: &Device, dest_qpn: Qpn, psn: Psn) -> bool {
        let path = RingPath::default();
        let meta = Meta { header: 0, pad: 0, dest_qpn: dest_qpn.get(), ack: Some(psn), path };
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

    /// Sends a packet that names its payload, and wakes the peer if it sleeps.
    pub(in crate::engine) fn send_named(
        &self,
        device: &Device,
        path: RingPath,
        packet: &TxPacket<'_>,
        names: &Names,
    ) -> Result<(), LinkError> {
        let meta = Meta {
            header: u8::try_from(packet.header.len()).unwrap_or(0),
            pad: 0,
            dest_qpn: dest_qpn(packet.header),
            ack: packet.ack,
            path,
        };
        self.put(device, NAMED, meta.to_bytes(), &[packet.header, names.as_bytes()]).map(drop)
    }
}

/// The rings that this process fills, by the number of the peer.
#[derive(Default)]
pub(crate) struct Neighbours {
    rings: RwLock<Vec<(u16, Arc<Neighbour>)>>,
    /// The numbers by which processes of other hosts are known.
    remote: RwLock<HashMap<RingPeer, u16>>,
    departures: parking_lot::Mutex<Departures>,
}

/// Counts the processes that have gone. A reply of the service about rings to one of them may be older.
#[derive(Debug, Default)]
struct Departures {
    count: u64,
    /// The count at which the last process with a number had gone, by number.
    last: HashMap<u16, u64>,
}

impl Departures {
    fn note(&mut self, number: u16) {
        self.count += 1;
        self.last.insert(number, self.count);
    }

    /// Returns whether the process with a number has gone since the count had this value.
    fn has_gone_since(&self, count: u64, number: u16) -> bool {
        self.last.get(&number).is_some_and(|last| *last > count)
    }
}

impl Neighbours {
    /// Returns the ring to the process that has `slot`, if the two may share memory.
    pub(crate) fn to(
        &self,
        device: &Arc<Device>,
        slot: u16,
    ) -> Result<Option<Arc<Neighbour>>, VerbsError> {
        // Perhaps the slot's last owner is gone, or its present owner requested a ring first.
        device.engine().control_events(device);
        let own = device.qps().read().owns(slot);
        let slot = if own { device.control().info().slot.slot } else { slot };
        if let Some(ring) = self.find(slot) {
            return Ok(Some(ring));
        }
        if own {
            // Two of its queue pairs are connected to each other: it empties the ring that it fills.
            let ring = ring::create(LOOP_CAPACITY);
            let ring = ring.map_err(VerbsError::os("create a loopback ring"))?;
            let wire = Ring::to_ourselves();
            return self.open(device, slot, (&ring, &ring), wire, |_| None);
        }
        self.ask(device, RingPeer::here(slot))
    }

    /// Returns the ring to the process that has `slot` of the host that receives packets at an address, if the two may share memory.
    pub(crate) fn at(
        &self,
        device: &Arc<Device>,
        host: SocketAddr,
        slot: u16,
    ) -> Result<Option<Arc<Neighbour>>, VerbsError> {
        let peer = RingPeer { host: Some(host), slot };
        let known = self.remote.read().get(&peer).copied();
        if let Some(ring) = known.and_then(|number| self.find(number)) {
            return Ok(Some(ring));
        }
        self.ask(device, peer)
    }

    /// Requests the ring to a process from the service.
    fn ask(
        &self,
        device: &Arc<Device>,
        peer: RingPeer,
    ) -> Result<Option<Arc<Neighbour>>, VerbsError> {
        loop {
            let before = self.departures.lock().count;
            let Some((number, end)) = device.control().connect_ring(peer)? else { return Ok(None) };
            // Another thread may meanwhile have processed the event that the process is gone, which is sent only once. From here on no
            // thread processes events, so a ring that is opened now is removed only by a later event.
            let told = device.engine().told.lock();
            if !self.departures.lock().has_gone_since(before, number) {
                let ring = self.open_to_process(device, number, end)?;
                if ring.is_some() && peer.host.is_some() {
                    self.remote.write().insert(peer, number);
                }
                return Ok(ring);
            }
            drop(told);
            // The service may pass the same end again.
            end.bell.leave();
        }
    }

    /// Opens this process's end of rings that a peer requested.
    pub(crate) fn add(&self, device: &Arc<Device>, slot: u16, end: RingEnd) {
        // A connection to the peer requests the rings again, and reports the error to the program.
        if let Err(error) = self.open_to_process(device, slot, end) {
            crate::throttled!(warn, slot, %error, "cannot open the rings to a process; they are \
                requested again with the next connection");
        }
    }

    /// Drops the rings to a process that is gone.
    pub(crate) fn remove(&self, device: &Device, slot: u16) {
        self.departures.lock().note(slot);
        self.tell(device);
        self.remote.write().retain(|_, number| *number != slot);
        self.rings.write().retain(|(s, ring)| {
            let stays = *s != slot;
            if !stays {
                ring.tx.lock().is_gone = true;
                ring.ignore(device);
            }
            stays
        });
        device.reaches().remove(slot);
        device.engine().inbound(|inbound| {
            inbound.tell(device);
            inbound.near.remove(slot);
        });
    }

    /// Updates the counters.
    pub(crate) fn tell(&self, device: &Device) {
        self.rings.read().iter().for_each(|(_, ring)| ring.tell(device));
    }

    /// Returns the ring to the process that is known by a number.
    pub(in crate::engine) fn find(&self, slot: u16) -> Option<Arc<Neighbour>> {
        self.rings.read().iter().find(|(s, _)| *s == slot).map(|(_, r)| r.clone())
    }

    fn open_to_process(
        &self,
        device: &Device,
        slot: u16,
        end: RingEnd,
    ) -> Result<Option<Arc<Neighbour>>, VerbsError> {
        let RingEnd { tx, rx, bell, known_as, reach } = end;
        let reach = |device: &Device| device.reaches().add((slot, known_as), reach);
        let wire = Ring::to_process(bell);
        let bell = wire.bell().cloned();
        let opened = self.open(device, slot, (&tx, &rx), wire, reach);
        if !matches!(opened, Ok(None))
            && let Some(bell) = bell.and_then(Arc::into_inner)
        {
            // The end was opened before, or the rings may be requested again, and the service then passes the same end.
            bell.leave();
        }
        opened
    }

    /// Opens this process's end of rings. Returns none if the descriptors are not valid rings. A failure of this process to use valid rings
    /// is an error: its peer has opened its end, and sends by no other path.
    fn open(
        &self,
        device: &Device,
        slot: u16,
        (tx, rx): (&OwnedFd, &OwnedFd),
        wire: Ring,
        reach: impl FnOnce(&Device) -> Option<Arc<Reach>>,
    ) -> Result<Option<Arc<Neighbour>>, VerbsError> {
        let mapped = Producer::map(tx).and_then(|tx| Ok((tx, Consumer::map(rx)?)));
        let (tx, rx) = match mapped {
            Ok(both) => both,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                crate::throttled!(warn, slot, %error, "cannot map the rings to a process");
                count(device, Counter::RingCorrupt);
                return Ok(None);
            }
            Err(error) => return Err(VerbsError::os("map the rings to a process")(error)),
        };
        let mut ends = self.rings.write();
        // Both processes may have requested rings. The second reply names the same rings.
        if let Some((_, first)) = ends.iter().find(|(s, _)| *s == slot) {
            return Ok(Some(first.clone()));
        }
        if let Some(bell) = wire.bell() {
            let heard = device.engine().waiter.listen_to(bell);
            heard.map_err(VerbsError::os("watch the doorbell of a process"))?;
        }
        let tx = Mutex::new(Tx { ring: tx, packets: 0, bytes: 0, is_gone: false });
        let reach = reach(device);
        let ring = Arc::new(Neighbour { tx, wire, reach });
        ends.push((slot, ring.clone()));
        drop(ends);
        device.engine().inbound(|inbound| inbound.near.add(slot, rx, ring.clone()));
        // A background thread that already sleeps does not yet wait for this ring.
        device.engine().wake_sleeper();
        Ok(Some(ring))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::Lab;

    #[test]
    fn hub_defers_wakeups_until_its_round_ends() {
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
