//! One side of a pair of rings.

use super::{Broken, Consumer, Producer, RingError};
use crate::doorbell::PeerBell;
use crate::link::{Frame, Link, LinkCaps, LinkError, Payload};

/// One side of a pair of rings: produces into one, consumes from the other, wakes the peer.
///
/// As a [`Link`] it sends each frame as a record of kind [`PACKET`](Self::PACKET), whose first two
/// bytes of meta are the length of the header, in the machine's byte order, and whose third is the pad.
#[derive(Debug)]
pub struct RingEnd {
    /// Towards the peer.
    pub tx: Producer,
    /// From the peer.
    pub rx: Consumer,
    /// Our end of what the two wake each other with.
    pub bell: PeerBell,
    pushed: bool,
}

impl RingEnd {
    /// The kind of a record that holds a packet.
    pub const PACKET: u8 = 1;

    /// Puts one together. `bell` wakes the other side, and is rung by it.
    pub fn new(tx: Producer, rx: Consumer, bell: PeerBell) -> Self {
        Self { tx, rx, bell, pushed: false }
    }

    /// Wakes the peer if it sleeps and something was produced, or if it waits for room.
    pub fn wake_peer(&mut self) {
        if self.tx.consumer_sleeps() | self.rx.producer_waits() {
            // A peer that closed its end, or shut it down, is not woken: its own doing.
            let _ = self.bell.ring();
        }
    }
}

impl Link for RingEnd {
    fn caps(&self) -> LinkCaps {
        let room = self.tx.max_record().saturating_sub(rdmux_wire::MAX_HEADER + 3);
        let max_payload = u32::try_from(room).unwrap_or(u32::MAX);
        LinkCaps { max_payload, lossless: true, by_reference: false, acks_along: false }
    }

    fn push(&mut self, frame: &Frame<'_>) -> Result<(), LinkError> {
        let pad = frame.pad & 3;
        let len =
            frame.header.len().saturating_add(frame.payload.len()).saturating_add(usize::from(pad));
        let max = self.tx.max_record();
        let header = u16::try_from(frame.header.len())
            .map_err(|_| LinkError::TooLarge { len: frame.header.len(), max })?;
        let mut record = self.tx.reserve(len)?;
        record.put(frame.header);
        match frame.payload {
            Payload::None => {}
            Payload::Bytes(bytes) => record.put(bytes),
            Payload::Pieces(pieces) => pieces.iter().try_for_each(|p| record.put_piece(*p))?,
        }
        record.put(&[0; 3][..usize::from(pad)]);
        let mut meta = [0; 16];
        meta[..2].copy_from_slice(&header.to_ne_bytes());
        meta[2] = pad;
        record.publish(Self::PACKET, meta);
        self.pushed = true;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        if std::mem::take(&mut self.pushed) {
            self.wake_peer();
        }
        Ok(())
    }
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
