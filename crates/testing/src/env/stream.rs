//! A byte stream instead of packets, for queue pairs over iWARP.

use std::collections::VecDeque;

use rdmux_transport::env::{AccessFault, TxPayload};
use rdmux_transport::iwarp::{Segment, SendFault, StreamEnv};

use super::TestEnv;
use crate::memory::Memory;

/// The data that a queue pair has written to its stream, and the room left in it.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Bytes that the stream accepted and the test has not taken.
    pub bytes: VecDeque<u8>,
    /// How many bytes the stream holds.
    pub room: usize,
    /// Whether the last bytes did not fit, so that the queue pair waits for room.
    pub is_full: bool,
    /// Whether the stream accepts no more data.
    pub broken: bool,
}

impl Default for Stream {
    /// Creates a stream that is never full.
    fn default() -> Self {
        Self { bytes: VecDeque::new(), room: usize::MAX, is_full: false, broken: false }
    }
}

impl Stream {
    fn take(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.room.saturating_sub(self.bytes.len()));
        self.bytes.extend(&bytes[..len]);
        self.is_full = len < bytes.len();
        len
    }
}

impl<M: Memory> StreamEnv for TestEnv<M> {
    fn send(&mut self, segments: &[Segment<'_>], skip: usize) -> Result<usize, SendFault> {
        assert!((1..=64).contains(&segments.len()), "{} segments", segments.len());
        if self.stream.broken {
            return Err(SendFault::Broken);
        }
        let mut bytes = Vec::new();
        for (segment, parts) in segments.iter().enumerate() {
            bytes.extend_from_slice(parts.head);
            self.append(&parts.payload, &mut bytes)
                .map_err(|fault| SendFault::Memory { segment, fault })?;
            bytes.extend_from_slice(parts.tail);
        }
        assert!(skip < bytes.len(), "nothing is left to send");
        Ok(self.stream.take(&bytes[skip..]))
    }

    fn read(&mut self, payload: &TxPayload<'_>, out: &mut [u8]) -> Result<(), AccessFault> {
        let mut bytes = Vec::new();
        self.append(payload, &mut bytes)?;
        out.copy_from_slice(&bytes);
        Ok(())
    }
}
