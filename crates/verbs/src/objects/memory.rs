//! Copies into and out of registered memory.
//!
//! # Safety of this file
//!
//! A region is registered by an `unsafe` call, by which the caller grants the engine and peers the given rights of access to the
//! range. Every access here is made with the region found in the table and the table's read lock held, and deregistration takes
//! the write lock, so no access happens after it; or in a round that has cached the region (`engine::recent`), and deregistration
//! waits for a round's end and invalidates the cache entry. Memory may be unmapped meanwhile: all copies are guarded
//! ([`rdmux_link::guarded`]). Peers and the program may write the same bytes at the same time: the copies make no references into
//! the region, and a torn copy holds only bytes, never a value with invariants.
#![expect(unsafe_code, reason = "registered memory is reached by address")]

use rdmux_link::procmem::{ProcMemError, ProcessMemory, Range};
use rdmux_link::tcp::Received;
use rdmux_link::{Piece, TcpStream, guarded};
use rdmux_transport::env::{AccessFault, AtomicOp};

/// The owner of a region's memory.
#[derive(Clone, Debug)]
pub enum Space {
    /// The memory of this process.
    Own,
    /// The memory of another process, accessed with the operating system's cross-process copy.
    Process(std::sync::Arc<ProcessMemory>),
    /// No memory: reads return zeros, and writes are discarded.
    Null,
}

impl Space {
    /// Copies bytes out of the space.
    pub(crate) fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), AccessFault> {
        match self {
            Self::Own => guarded::read(addr_to_ptr(addr), into).map_err(|_| AccessFault::Unmapped),
            Self::Process(memory) => memory.read(addr, into).map_err(|e| foreign(&e)),
            Self::Null => {
                into.fill(0);
                Ok(())
            }
        }
    }

    /// Copies bytes into the space.
    pub(crate) fn write(&self, addr: u64, data: &[u8]) -> Result<(), AccessFault> {
        match self {
            // SAFETY: the range is inside a registered region (see the head of this file), whose
            // rights the caller checked.
            Self::Own => unsafe { guarded::write(addr_to_ptr(addr), data) }
                .map_err(|_| AccessFault::Unmapped),
            Self::Process(memory) => memory.write(addr, data).map_err(|e| foreign(&e)),
            Self::Null => Ok(()),
        }
    }

    /// Returns the range as a piece for gathering into packets; none if it is not this process's memory.
    pub(crate) fn piece(&self, addr: u64, len: usize) -> Option<Piece> {
        match self {
            Self::Own => Some(Piece::new(addr_to_ptr(addr), len)),
            Self::Process(_) | Self::Null => None,
        }
    }

    /// Executes an atomic on eight aligned bytes. It is atomic with respect to other atomics of this device; for another
    /// process's memory, with respect to accesses of this engine.
    pub(crate) fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessFault> {
        match self {
            Self::Own => {
                let cell = addr_to_ptr(addr).cast();
                // SAFETY: the range is inside a registered region with the right to atomics, and
                // the caller checked that `addr` is a multiple of 8.
                unsafe {
                    match op {
                        AtomicOp::FetchAdd { add } => guarded::fetch_add(cell, add),
                        AtomicOp::CmpSwap { compare, swap } => {
                            guarded::compare_swap(cell, compare, swap)
                        }
                    }
                }
                .map_err(|_| AccessFault::Unmapped)
            }
            Self::Process(memory) => {
                let mut bytes = [0; 8];
                memory.read(addr, &mut bytes).map_err(|_| AccessFault::Gone)?;
                let before = u64::from_ne_bytes(bytes);
                let after = match op {
                    AtomicOp::FetchAdd { add } => before.wrapping_add(add),
                    AtomicOp::CmpSwap { compare, swap } if before == compare => swap,
                    AtomicOp::CmpSwap { .. } => before,
                };
                memory.write(addr, &after.to_ne_bytes()).map_err(|_| AccessFault::Gone)?;
                Ok(before)
            }
            Self::Null => Ok(0),
        }
    }
}

/// Returns the reason why another process's memory could not be accessed.
fn foreign(error: &ProcMemError) -> AccessFault {
    match error {
        ProcMemError::Refused { .. } => AccessFault::Rights,
        ProcMemError::Fault { .. } => AccessFault::Unmapped,
        _ => AccessFault::Gone,
    }
}

/// Returns whether every page of a range of this process's memory is mapped, with any protection.
pub(crate) fn is_mapped(addr: u64, length: u64) -> bool {
    /// Pages checked by one call: 256 MiB.
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
        // SAFETY: mincore(2) reads no memory of the range, and writes one byte for each of its pages. The array has
        // room for them.
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

/// Receives from a stream into pieces, then into `rest`. Each piece was found to be within a region with the right to write.
pub(crate) fn receive(
    tcp: &TcpStream,
    pieces: &[Piece],
    rest: &mut [u8],
) -> std::io::Result<Received> {
    // SAFETY: the pieces are inside registered regions (see the head of this file), whose rights the caller
    // checked and whose table it has locked.
    unsafe { tcp.receive_to(pieces, rest) }
}

/// Reads another process's memory into pieces. Each piece was found to be within a region with the right to write.
pub(crate) fn fetch(memory: &ProcessMemory, va: u64, pieces: &[Piece]) -> Result<(), ProcMemError> {
    // SAFETY: the pieces are inside registered regions (see the head of this file), whose rights the caller
    // checked and whose table it has locked.
    unsafe { memory.read_pieces(va, pieces) }
}

/// Fetches from ranges like [`fetch`].
pub(crate) fn fetch_ranges(
    memory: &ProcessMemory,
    from: &[Range],
    pieces: &[Piece],
) -> Result<(), ProcMemError> {
    // SAFETY: as in `fetch`.
    unsafe { memory.read_ranges(from, pieces) }
}

/// Copies a piece to the end of a buffer.
pub(crate) fn append(buffer: &mut Vec<u8>, piece: Piece) -> Result<(), AccessFault> {
    let start = buffer.len();
    buffer.resize(start + piece.len(), 0);
    piece.copy_to(&mut buffer[start..]).map_err(|_| AccessFault::Unmapped)
}

fn addr_to_ptr(addr: u64) -> *mut u8 {
    // The C interface has addresses as 64-bit numbers. A region's range was checked to fit.
    std::ptr::with_exposed_provenance_mut(usize::try_from(addr).unwrap_or(0))
}
