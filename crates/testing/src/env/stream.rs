//! A byte stream in place of packets, for queue pairs over iWARP.

use std::collections::VecDeque;

use rdmux_transport::env::{AccessFault, TxPayload};
use rdmux_transport::iwarp::{Segment, SendFault, StreamEnv};

use super::TestEnv;
use crate::memory::Memory;

/// What a queue pair has written to its stream, and how much more of it there may be.
#[derive(Clone, Debug)]
pub struct Stream {
    /// What it took and nobody has taken from it.
    pub bytes: VecDeque<u8>,
    /// How many bytes it holds.
    pub room: usize,
    /// Whether the last bytes did not fit, so that the queue pair waits for room.
    pub is_full: bool,
    /// Whether it takes nothing any more.
    pub broken: bool,
}

impl Default for Stream {
    /// One that is never full.
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
