//! The kernel's cross-process copy, the reference for access to another process's memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;
use rdmux_link::procmem::ProcessMemory;

use super::super::plain;

const PAGE: usize = 4096;

/// A separate cache line, into which other processes write a turn.
#[repr(align(128))]
pub(super) struct Line(pub(super) AtomicU64);

impl Line {
    /// Returns the line's address in this process.
    pub(super) fn address(&self) -> u64 {
        std::ptr::from_ref(&self.0).addr() as u64
    }

    /// Writes 8 bytes into the line of process `pid` at `va` and waits for the answer in this line, `count` times.
    /// Returns the seconds one way. The other side runs [`echo`](Self::echo).
    pub(super) fn ping(&self, pid: i32, va: u64, count: u64) -> Result<f64> {
        let peer = ProcessMemory::new(pid, None)?;
        self.0.store(0, Ordering::Release);
        let start = Instant::now();
        for turn in 1..=count {
            peer.write(va, &turn.to_ne_bytes())?;
            plain::wait_line(&self.0, turn, start)?;
        }
        Ok(start.elapsed().as_secs_f64() / count as f64 / 2.0)
    }

    /// Runs the other side of [`ping`](Self::ping).
    pub(super) fn echo(&self, pid: i32, va: u64, count: u64) -> Result<()> {
        let peer = ProcessMemory::new(pid, None)?;
        let start = Instant::now();
        for turn in 1..=count {
            plain::wait_line(&self.0, turn, start)?;
            peer.write(va, &turn.to_ne_bytes())?;
        }
        Ok(())
    }
}

/// Page-aligned memory, like perftest's.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// Allocates memory and writes all of it.
    pub(super) fn new(len: usize) -> Self {
        let bytes = vec![0x5a; len + PAGE];
        let start = bytes.as_ptr().addr().next_multiple_of(PAGE) - bytes.as_ptr().addr();
        Self { bytes, start, len }
    }

    /// Returns the buffer's address in this process.
    pub(super) fn address(&self) -> u64 {
        (self.bytes.as_ptr().addr() + self.start) as u64
    }

    /// Writes the buffer `count` times to the memory of process `pid` at `va`. Returns bytes per second.
    pub(super) fn write(&self, pid: i32, va: u64, count: u32) -> Result<f64> {
        let peer = ProcessMemory::new(pid, None)?;
        let bytes = &self.bytes[self.start..][..self.len];
        self.rate(count, || Ok(peer.write(va, bytes)?))
    }

    /// Reads the buffer `count` times from the memory of process `pid` at `va`. Returns bytes per second.
    pub(super) fn read(&mut self, pid: i32, va: u64, count: u32) -> Result<f64> {
        let peer = ProcessMemory::new(pid, None)?;
        let mut bytes = std::mem::take(&mut self.bytes);
        let rate = self.rate(count, || Ok(peer.read(va, &mut bytes[self.start..][..self.len])?));
        self.bytes = bytes;
        rate
    }

    fn rate(&self, count: u32, mut copy: impl FnMut() -> Result<()>) -> Result<f64> {
        let start = Instant::now();
        (0..count).try_for_each(|_| copy())?;
        Ok(self.len as f64 * f64::from(count) / start.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmark_buffers_are_aligned_and_report_their_address() {
        let (buffer, line) = (Buffer::new(10), Line(AtomicU64::new(0)));
        assert!(buffer.address().is_multiple_of(PAGE as u64));
        assert!(line.address().is_multiple_of(128));
        let outside = std::ptr::from_ref(&buffer.bytes[buffer.start]).addr() as u64;
        assert_eq!(outside, buffer.address());
    }
}
