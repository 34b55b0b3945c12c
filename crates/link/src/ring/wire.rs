//! Two rings as a wire of records, of which packets are one kind.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rdmux_wire::Psn;

use super::{Broken, Consumer, Head, Producer, RingError};
use crate::doorbell::PeerBell;
use crate::wire::{Flushed, Frame, LinkCaps, LinkError, Payload, TxFail, Wire};

/// The kind of a record that holds a packet.
pub const PACKET: u8 = 1;
/// The most payload bytes of a packet, whatever the ring would take: half of it fits in a core's
/// second-level cache together with its copy.
const MAX_PAYLOAD: u32 = 32 << 10;

/// A wire to one process: a ring in each direction, and what the two processes wake each other with. The ends of the rings
/// belong to who sends and who receives.
#[derive(Debug)]
pub struct Ring {
    bell: Option<Arc<PeerBell>>,
}

impl Ring {
    /// To another process, which has the other end of the bell.
    pub fn to_process(bell: PeerBell) -> Self {
        Self { bell: Some(Arc::new(bell)) }
    }

    /// To the process itself: what it fills it empties.
    pub fn to_ourselves() -> Self {
        Self { bell: None }
    }

    /// What the other process wakes this one with.
    pub fn bell(&self) -> Option<&Arc<PeerBell>> {
        self.bell.as_ref()
    }

    /// Wakes the other process, whatever it does. False if it is this one, which must wake itself.
    pub fn wake(&self) -> bool {
        let Some(bell) = &self.bell else { return false };
        // A process that closed its end, or shut it down, is not woken: its own doing.
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

    /// The bell, which rings once and must be cleared.
    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(|bell| bell.as_fd())
    }

    fn arm(&self, rx: &Consumer) -> bool {
        rx.prepare_sleep()
    }

    fn disarm(&self, rx: &Consumer) {
        rx.awake();
    }

    /// Puts the packet in. The other process sees it at once if it looks.
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

    /// What the next record says of itself. The receiver takes it from the ring: most are looked at one after the other,
    /// and some are left where they lie.
    #[inline]
    fn receive(&self, rx: &mut Consumer) -> Self::Arrived {
        rx.peek()
    }
}

/// What a record says about the packet in it besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Bytes of the packet's headers.
    pub header: u8,
    /// Zero bytes after its payload.
    pub pad: u8,
    /// Whom it is for, as its header says too: packets in a row for one queue pair share its lock.
    pub dest_qpn: u32,
    /// What it acknowledges.
    pub ack: Option<Psn>,
    /// The path that it was sent by.
    pub path: RingPath,
}

/// A path between two processes of a machine, as the sender names its ends. There is one ring whatever the paths, but a queue
/// pair that has two of them must know by which a packet came (IBTA 17.2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RingPath {
    /// The number of the port that both ends are at, or [`ELSEWHERE`](Self::ELSEWHERE); 0 if nothing is said of the path.
    pub port: u8,
    /// The sender's end: the index of its address where ports have addresses, on InfiniBand its LID.
    pub near: u16,
    /// The receiver's end, likewise.
    pub far: u16,
}

impl RingPath {
    /// In place of the port's number: the ends are at ports of two hosts, which need not have the same number.
    pub const ELSEWHERE: u8 = u8::MAX;

    /// The same path as its other end names it.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self { near: self.far, far: self.near, ..self }
    }
}

impl Meta {
    /// In the word with the PSN: there is one.
    const ACK: u32 = 1 << 31;

    /// As it is in a record.
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

    /// The same as the receiver reads it.
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

/// The queue pair that a header names.
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
