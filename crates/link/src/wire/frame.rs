//! Packets to send, and references to their payload.
//!
//! A [`Piece`] refers to memory by address and length, because a payload is in memory that the application registered, and may
//! change, share or unmap while it is read. It is only ever read, by guarded copies into private memory or into a ring.

use std::fmt;

use rdmux_wire::Psn;

use crate::guarded::{self, Unmapped};

/// A run of bytes in this process's memory that is not copied until it must be.
///
/// It is not a slice, because the application may write to it at any time.
#[derive(Clone, Copy)]
pub struct Piece {
    ptr: *const u8,
    len: usize,
}

// SAFETY: a piece is an address; the memory there is only ever read, by guarded copies.
#[expect(unsafe_code, reason = "an address may travel between threads")]
unsafe impl Send for Piece {}

impl Piece {
    /// Refers to `len` bytes at `ptr`, which are read later. They may be written meanwhile: the packet then carries some mixture
    /// of old and new bytes.
    pub const fn new(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len }
    }

    /// Returns the start.
    pub const fn as_ptr(self) -> *const u8 {
        self.ptr
    }

    /// Returns the length in bytes.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Returns whether the length is zero.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Copies all of it to the start of `to`, which must be as long.
    ///
    /// # Errors
    ///
    /// [`Unmapped`]; some of it may have been copied.
    pub fn copy_to(self, to: &mut [u8]) -> Result<(), Unmapped> {
        guarded::read(self.ptr, &mut to[..self.len])
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} B at {:p})", self.len, self.ptr)
    }
}

/// The location of a packet's payload.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// No payload.
    None,
    /// The payload in these bytes, which are copied before the call returns.
    Bytes(&'a [u8]),
    /// The application's memory; copied before the call returns.
    Pieces(&'a [Piece]),
}

impl Payload<'_> {
    /// Returns the total length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Bytes(b) => b.len(),
            Self::Pieces(p) => p.iter().fold(0usize, |n, p| n.saturating_add(p.len())),
        }
    }

    /// Returns whether the piece has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A packet to send.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// BTH and extension headers, encoded.
    pub header: &'a [u8],
    /// The payload after them.
    pub payload: Payload<'a>,
    /// The number of zero bytes after the payload, 0 to 3 (also in the BTH).
    pub pad: u8,
    /// An acknowledgement of everything up to this PSN, where the wire piggybacks them ([`LinkCaps::piggybacks_acks`]).
    ///
    /// [`LinkCaps::piggybacks_acks`]: super::LinkCaps::piggybacks_acks
    pub ack: Option<Psn>,
}

impl Frame<'_> {
    /// Returns the total length in bytes, without a checksum.
    #[expect(clippy::len_without_is_empty, reason = "a packet has a header")]
    #[inline]
    pub fn len(&self) -> usize {
        let len = self.header.len().saturating_add(self.payload.len());
        len.saturating_add(usize::from(self.pad & 3))
    }

    /// Appends all bytes to a buffer, in wire order.
    ///
    /// # Errors
    ///
    /// [`Unmapped`]; some of them may have been appended.
    pub fn append_to(&self, to: &mut Vec<u8>) -> Result<(), Unmapped> {
        to.extend_from_slice(self.header);
        match self.payload {
            Payload::None => {}
            Payload::Bytes(bytes) => to.extend_from_slice(bytes),
            Payload::Pieces(pieces) => {
                for piece in pieces {
                    let start = to.len();
                    to.resize(start + piece.len(), 0);
                    piece.copy_to(&mut to[start..])?;
                }
            }
        }
        to.extend_from_slice(&[0; 3][..usize::from(self.pad & 3)]);
        Ok(())
    }
}
