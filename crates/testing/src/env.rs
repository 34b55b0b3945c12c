//! Surroundings for queue pairs of which only headers, lengths and outcomes matter.

use std::collections::VecDeque;

use rdmux_transport::attr::Access;
use rdmux_transport::env::{
    AccessFault, AtomicAnswer, AtomicOp, Drop, Env, LinkCaps, QpEvent, Side, SrqEntry, TxError,
    TxPacket, TxPayload,
};
use rdmux_transport::iwarp::{Segment, SendFault, StreamEnv};
use rdmux_transport::wr::{Completion, Sge, WcStatus};
use rdmux_wire::{Pkey, Psn, Rkey};

/// An [`Env`] without memory: every address exists and reads as zero, whatever the key. It collects what is sent.
#[derive(Debug)]
pub struct Hollow {
    /// What the link can do.
    pub link: LinkCaps,
    /// Whether packets behind a gap are kept.
    pub buffers_out_of_order: bool,
    /// How many packets the link takes until it is full.
    pub room: usize,
    /// The packets that were sent.
    pub packets: VecDeque<Vec<u8>>,
    /// The bytes that were sent, of a stream.
    pub stream: Vec<u8>,
    /// How work requests ended, in order.
    pub statuses: Vec<(Side, WcStatus)>,
    /// What the next atomics find; 0 when there are no more.
    pub originals: VecDeque<u64>,
}

impl Hollow {
    /// On a link like this, which is never full.
    pub fn new(link: LinkCaps) -> Self {
        Self {
            link,
            buffers_out_of_order: true,
            room: usize::MAX,
            packets: VecDeque::new(),
            stream: Vec::new(),
            statuses: Vec::new(),
            originals: VecDeque::new(),
        }
    }
}

/// A link of this size, on which queue pairs cannot reach each other's memory.
pub const fn link(max_payload: u32, lossless: bool) -> LinkCaps {
    LinkCaps { max_payload, lossless, by_reference: false, piggybacks_acks: false }
}

/// How many bytes a payload has.
///
/// # Panics
/// When it leaves its gather list.
pub fn payload_len(payload: &TxPayload<'_>) -> usize {
    match *payload {
        TxPayload::None => 0,
        TxPayload::Bytes(data) => data.len(),
        TxPayload::Gather { sges, offset, len } => {
            check_list(sges, offset, len as usize);
            len as usize
        }
        TxPayload::Remote { len, .. } => len as usize,
    }
}

/// Checks that `len` bytes from `offset` on are within a list.
///
/// # Panics
/// When they are not.
pub fn check_list(sges: &[Sge], offset: u32, len: usize) {
    let all: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
    assert!(u64::from(offset) + len as u64 <= all, "beyond the list");
}

impl Env for Hollow {
    fn link(&self) -> LinkCaps {
        self.link
    }
    fn buffers_out_of_order(&self) -> bool {
        self.buffers_out_of_order
    }
    fn transmit(&mut self, packet: &TxPacket<'_>) -> Result<(), TxError> {
        self.room = self.room.checked_sub(1).ok_or(TxError::Busy)?;
        let mut bytes = packet.header.to_vec();
        let len = payload_len(&packet.payload) + usize::from(packet.pad);
        bytes.resize(bytes.len() + len, 0);
        self.packets.push_back(bytes);
        Ok(())
    }
    fn check_local(&self, _: &[Sge], _: Access) -> Result<(), AccessFault> {
        Ok(())
    }
    fn scatter(&mut self, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), AccessFault> {
        check_list(sges, offset, data.len());
        Ok(())
    }
    fn check_remote(&self, _: Rkey, _: u64, _: u64, _: Access) -> Result<(), AccessFault> {
        Ok(())
    }
    fn write_remote(&mut self, _: Rkey, _: u64, _: &[u8]) -> Result<(), AccessFault> {
        Ok(())
    }
    fn atomic(
        &mut self,
        _: Psn,
        _: Rkey,
        _: u64,
        _: AtomicOp,
    ) -> Result<AtomicAnswer, AccessFault> {
        Ok(AtomicAnswer::Now(self.originals.pop_front().unwrap_or(0)))
    }
    fn invalidate(&mut self, _: Rkey, _: bool) -> Result<(), AccessFault> {
        Ok(())
    }
    fn pop_srq(&mut self, _: &mut [Sge]) -> Option<SrqEntry> {
        None
    }
    fn complete(&mut self, side: Side, completion: Completion) {
        self.statuses.push((side, completion.status));
    }
    fn event(&mut self, _: QpEvent) {}
    fn count(&mut self, _: Drop) {}
    fn pkey(&self, _: u16) -> Option<Pkey> {
        Some(Pkey::DEFAULT)
    }
}

impl StreamEnv for Hollow {
    fn send(&mut self, segments: &[Segment<'_>], skip: usize) -> Result<usize, SendFault> {
        assert_eq!(skip, 0, "this stream takes everything");
        let before = self.stream.len();
        for segment in segments {
            self.stream.extend_from_slice(segment.head);
            let end = self.stream.len() + payload_len(&segment.payload);
            self.stream.resize(end, 0);
            self.stream.extend_from_slice(segment.tail);
        }
        Ok(self.stream.len() - before)
    }
    fn read(&mut self, _: &TxPayload<'_>, out: &mut [u8]) -> Result<(), AccessFault> {
        out.fill(0);
        Ok(())
    }
}
