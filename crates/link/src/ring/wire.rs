//! Two rings as a wire of records. Packets are one kind of record.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rdmux_wire::Psn;

use super::{Broken, Consumer, Head, Producer, RingError};
use crate::doorbell::PeerBell;
use crate::wire::{Flushed, Frame, LinkCaps, LinkError, Payload, TxFail, Wire};

/// The kind of a record that holds a packet.
pub const PACKET: u8 = 1;
/// The maximum payload of a packet, even if the ring permits more: half of it fits in a core's second-level cache together with
/// its copy.
const MAX_PAYLOAD: u32 = 32 << 10;

/// A wire to one process: a ring in each direction, and the doorbell between the two processes. The sender and the receiver own
/// the ends of the rings.
#[derive(Debug)]
pub struct Ring {
    bell: Option<Arc<PeerBell>>,
}

impl Ring {
    /// Creates the wire to another process, which has the other end of the bell.
    pub fn to_process(bell: PeerBell) -> Self {
        Self { bell: Some(Arc::new(bell)) }
    }

    /// Creates the wire of a process to itself: it empties the ring that it fills.
    pub fn to_ourselves() -> Self {
        Self { bell: None }
    }

    /// Returns the bell with which the other process wakes this one.
    pub fn bell(&self) -> Option<&Arc<PeerBell>> {
        self.bell.as_ref()
    }

    /// Wakes the other process. Never blocks, whatever that process does. Returns false if the other process is this one, which
    /// must wake itself.
    pub fn wake(&self) -> bool {
        let Some(bell) = &self.bell else { return false };
        // Fails only for a process that closed its end, or shut it down, and which is then not woken.
        let _ = bell.ring();
        true
    }
}

impl Wire for Ring {
    type To = RingPath;
    type Tx = Producer;
    type Rx = Consumer;
    type Arrived = Result<Option<Head>, Broken>;

    fn caps(&self) -> LinkCaps {
        LinkCaps {
            max_payload: MAX_PAYLOAD,
            lossless: true,
            by_reference: false,
            piggybacks_acks: true,
        }
    }

    /// Returns the bell, which rings once and must be cleared.
    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(|bell| bell.as_fd())
    }

    fn arm(&self, rx: &Consumer) -> bool {
        rx.prepare_sleep()
    }

    fn disarm(&self, rx: &Consumer) {
        rx.awake();
    }

    /// Writes the packet as a record. The other process sees it at once if it polls.
    #[inline]
    fn send(&self, tx: &mut Producer, path: &RingPath, frame: &Frame<'_>) -> Result<(), LinkError> {
        let pad = frame.pad & 3;
        let mut record = tx.reserve_or_wait(frame.len())?;
        record.put(frame.header);
        match frame.payload {
            Payload::None => {}
            Payload::Bytes(bytes) => record.put(bytes),
            Payload::Pieces(pieces) => pieces.iter().try_for_each(|p| record.put_piece(*p))?,
        }
        record.put(&[0; 3][..usize::from(pad)]);
        let header = u8::try_from(frame.header.len()).unwrap_or(0);
        let meta =
            Meta { header, pad, dest_qpn: dest_qpn(frame.header), ack: frame.ack, path: *path };
        record.publish(PACKET, meta.to_bytes());
        Ok(())
    }

    /// Wakes the other process if it sleeps.
    fn flush(&self, tx: &mut Producer) -> Result<Flushed, TxFail> {
        if tx.consumer_sleeps() {
            self.wake();
        }
        Ok(Flushed::default())
    }

    /// Returns the head of the next record. The receiver takes the record from the ring: most are examined one after another, and
    /// some are left in place.
    #[inline]
    fn receive(&self, rx: &mut Consumer) -> Self::Arrived {
        rx.peek()
    }
}

/// The properties of a packet in a record, besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The length of the packet's headers.
    pub header: u8,
    /// The number of zero bytes after its payload.
    pub pad: u8,
    /// The destination QPN, as in its header: consecutive packets for one queue pair share its lock.
    pub dest_qpn: u32,
    /// The PSN that the record acknowledges.
    pub ack: Option<Psn>,
    /// The path by which the record was sent.
    pub path: RingPath,
}

/// A path between two processes of a machine, with its ends as the sender names them. All paths share one ring, but a queue
/// pair that has two paths must know by which of them a packet arrived (IBTA 17.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RingPath {
    /// The number of the port of both ends, or [`ELSEWHERE`](Self::ELSEWHERE); 0 if the path is not given.
    pub port: u8,
    /// The sender's end: the index of its address if ports have addresses, on InfiniBand its LID.
    pub near: u16,
    /// The receiver's end, in the same form.
    pub far: u16,
}

impl RingPath {
    /// Used instead of the port's number: the ends are at ports of two hosts, whose numbers may differ.
    pub const ELSEWHERE: u8 = u8::MAX;

    /// Returns the path as its other end names it.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self { near: self.far, far: self.near, ..self }
    }
}

impl Meta {
    /// Set in the word with the PSN if it contains one.
    const ACK: u32 = 1 << 31;

    /// Encodes it for a record.
    #[inline]
    pub fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        (bytes[0], bytes[1]) = (self.header, self.pad);
        bytes[4..8].copy_from_slice(&self.dest_qpn.to_ne_bytes());
        let ack = self.ack.map_or(0, |psn| psn.get() | Self::ACK);
        bytes[8..12].copy_from_slice(&ack.to_ne_bytes());
        let RingPath { port, near, far } = self.path;
        bytes[2] = port;
        bytes[12..14].copy_from_slice(&near.to_ne_bytes());
        bytes[14..16].copy_from_slice(&far.to_ne_bytes());
        bytes
    }

    /// Parses it from a record.
    #[inline]
    pub fn parse(bytes: [u8; 16]) -> Self {
        let [header, pad, port, _, q0, q1, q2, q3, a0, a1, a2, a3, n0, n1, f0, f1] = bytes;
        let ack = u32::from_ne_bytes([a0, a1, a2, a3]);
        Self {
            header,
            pad,
            dest_qpn: u32::from_ne_bytes([q0, q1, q2, q3]),
            ack: (ack & Self::ACK != 0).then(|| Psn::new(ack & !Self::ACK)),
            path: RingPath {
                port,
                near: u16::from_ne_bytes([n0, n1]),
                far: u16::from_ne_bytes([f0, f1]),
            },
        }
    }
}

/// Returns the destination QPN in a header.
#[inline]
pub fn dest_qpn(header: &[u8]) -> u32 {
    header
        .get(4..8)
        .and_then(|b| b.first_chunk())
        .map_or(0, |b| u32::from_be_bytes(*b) & 0x00ff_ffff)
}

impl From<RingError> for LinkError {
    fn from(e: RingError) -> Self {
        match e {
            RingError::Full => Self::Busy,
            RingError::TooLarge { len, max } => Self::TooLarge { len, max },
            RingError::Broken(Broken) => Self::Broken,
        }
    }
}
