//! Bytes in and out of registered memory.
//!
//! # Safety of this file
//!
//! A region is registered by an `unsafe` call whose caller promises that the range stays mapped
//! until it is deregistered. Every access here is made with the region found in the table and the
//! table's read lock held, and deregistration takes the write lock, so no access happens after it.
//! Peers and the program may write the same bytes at the same time: the copies are raw copies
//! without references into the region, and what a torn copy holds is bytes, never a value with
//! invariants.
#![expect(unsafe_code, reason = "registered memory is reached by address")]

use std::sync::atomic::{AtomicU64, Ordering};

use rdmux_link::Piece;
use rdmux_link::procmem::ProcessMemory;
use rdmux_transport::env::{AccessFault, AtomicOp};

/// Whose memory a region is.
#[derive(Clone, Debug)]
pub enum Space {
    /// This process's.
    Own,
    /// Another process's, reached by the operating system's cross-process copy.
    Process(std::sync::Arc<ProcessMemory>),
    /// Nobody's: zeros, and what is written is forgotten.
    Null,
}

impl Space {
    /// Copies bytes out of the space.
    pub(crate) fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), AccessFault> {
        match self {
            Self::Own => {
                let from = addr_to_ptr(addr);
                // SAFETY: the range is inside a registered region (see the head of this file) and
                // `into` is a buffer of the engine's, which no region overlaps unless the program
                // registered it, in which case `copy` allows the overlap.
                unsafe { std::ptr::copy(from, into.as_mut_ptr(), into.len()) };
                Ok(())
            }
            Self::Process(memory) => memory.read(addr, into).map_err(|_| AccessFault::Gone),
            Self::Null => {
                into.fill(0);
                Ok(())
            }
        }
    }

    /// Copies bytes into the space.
    pub(crate) fn write(&self, addr: u64, data: &[u8]) -> Result<(), AccessFault> {
        match self {
            Self::Own => {
                let to = addr_to_ptr(addr);
                // SAFETY: as in `read`, with the roles exchanged; the region was registered as
                // writable memory if its rights allow writing, which the caller checked.
                unsafe { std::ptr::copy(data.as_ptr(), to, data.len()) };
                Ok(())
            }
            Self::Process(memory) => memory.write(addr, data).map_err(|_| AccessFault::Gone),
            Self::Null => Ok(()),
        }
    }

    /// The range by name, to be gathered into packets; none if it is another process's.
    ///
    /// The engine sends what it gathered before it lets go of the region table's read lock.
    pub(crate) fn piece(&self, addr: u64, len: usize) -> Option<Piece> {
        match self {
            Self::Own => {
                // SAFETY: the range is inside a registered region, hence mapped and readable until
                // the region is deregistered, which waits for the table's read lock: the caller
                // holds it until the batch that takes this piece was flushed or cleared.
                Some(unsafe { Piece::new(addr_to_ptr(addr), len) })
            }
            Self::Process(_) | Self::Null => None,
        }
    }

    /// Carries out an atomic on eight aligned bytes. Atomic among all who use atomics on this
    /// device; for another process's memory, among those who go through this engine.
    pub(crate) fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessFault> {
        match self {
            Self::Own => {
                // SAFETY: the range is inside a registered region with the right to atomics, the
                // caller checked that `addr` is a multiple of 8, and atomic access from many
                // threads is what `AtomicU64` is for.
                let cell = unsafe { AtomicU64::from_ptr(addr_to_ptr(addr).cast()) };
                Ok(apply(cell, op))
            }
            Self::Process(memory) => {
                let mut bytes = [0; 8];
                memory.read(addr, &mut bytes).map_err(|_| AccessFault::Gone)?;
                let cell = AtomicU64::new(u64::from_ne_bytes(bytes));
                let before = apply(&cell, op);
                let after = cell.into_inner().to_ne_bytes();
                memory.write(addr, &after).map_err(|_| AccessFault::Gone)?;
                Ok(before)
            }
            Self::Null => Ok(0),
        }
    }
}

/// Whether every page of a range of this process's memory is mapped, in whatever way.
pub(crate) fn is_mapped(addr: u64, length: u64) -> bool {
    /// Pages asked for in one call: 256 MiB.
    const PAGES: usize = 1 << 16;
    let page = rustix::param::page_size();
    let (Ok(start), Ok(length)) = (usize::try_from(addr), usize::try_from(length)) else {
        return false;
    };
    let Some(end) = start.checked_add(length) else { return false };
    if length == 0 {
        return true;
    }
    let mut presence = vec![0_u8; length.div_ceil(page).saturating_add(1).min(PAGES)];
    let mut at = start - start % page;
    while at < end {
        let step = (end - at).min(presence.len() * page);
        // SAFETY: mincore(2) reads no memory of the range, and writes a byte for each of its pages,
        // for which there is room.
        let mapped = unsafe {
            let from = std::ptr::with_exposed_provenance_mut(at);
            libc::mincore(from, step, presence.as_mut_ptr()) == 0
        };
        if !mapped {
            return false;
        }
        at += step;
    }
    true
}

/// Copies a piece to the end of a buffer.
pub(crate) fn append(buffer: &mut Vec<u8>, piece: Piece) {
    let start = buffer.len();
    buffer.resize(start + piece.len(), 0);
    // SAFETY: whoever made the piece vouches for `len` readable bytes at its address, and the
    // buffer was just made that much longer.
    unsafe {
        std::ptr::copy(piece.as_ptr(), buffer.as_mut_ptr().add(start), piece.len());
    }
}

/// Applies an atomic to a cell and returns what was there.
fn apply(cell: &AtomicU64, op: AtomicOp) -> u64 {
    match op {
        AtomicOp::FetchAdd { add } => cell.fetch_add(add, Ordering::AcqRel),
        AtomicOp::CmpSwap { compare, swap } => cell
            .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
            .unwrap_or_else(|found| found),
    }
}

fn addr_to_ptr(addr: u64) -> *mut u8 {
    // The C interface carries addresses as 64-bit numbers; a region's range was checked to fit.
    std::ptr::with_exposed_provenance_mut(usize::try_from(addr).unwrap_or(0))
}
