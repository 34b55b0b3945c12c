//! Packets to send, and how their payload is named.
//!
//! A [`Piece`] names memory by address and length, because a payload lies in memory that the
//! application registered, which it may change, share or unmap while we read. It is only ever read,
//! by guarded copies into private memory or into a ring.

use std::fmt;

use rdmux_wire::Psn;

use crate::guarded::{self, Unmapped};

/// A run of bytes in this process's memory that is not copied until it must be.
///
/// Not a slice, because the application may write to it at any time.
#[derive(Clone, Copy)]
pub struct Piece {
    ptr: *const u8,
    len: usize,
}

// SAFETY: a piece is an address; what is there is only ever read, by guarded copies.
#[expect(unsafe_code, reason = "an address may travel between threads")]
unsafe impl Send for Piece {}

impl Piece {
    /// Names `len` bytes at `ptr`, whatever is there when they are read. They may be written
    /// meanwhile: the packet then carries some mixture of old and new bytes.
    pub const fn new(ptr: *const u8, len: usize) -> Self {
        Self { ptr, len }
    }

    /// Where it starts.
    pub const fn as_ptr(self) -> *const u8 {
        self.ptr
    }

    /// Bytes.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether there are none.
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

/// Where the payload of a packet lies.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Nowhere.
    None,
    /// Here; copied before the call returns.
    Bytes(&'a [u8]),
    /// In memory of the application's; copied before the call returns.
    Pieces(&'a [Piece]),
}

impl Payload<'_> {
    /// Bytes in total.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Bytes(b) => b.len(),
            Self::Pieces(p) => p.iter().fold(0usize, |n, p| n.saturating_add(p.len())),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A packet to send.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// BTH and extension headers, as they go on the wire.
    pub header: &'a [u8],
    /// What follows them.
    pub payload: Payload<'a>,
    /// Zero bytes after the payload, 0 to 3 (also in the BTH).
    pub pad: u8,
    /// An acknowledgement of everything up to this PSN, where the wire piggybacks them ([`LinkCaps::piggybacks_acks`]).
    ///
    /// [`LinkCaps::piggybacks_acks`]: super::LinkCaps::piggybacks_acks
    pub ack: Option<Psn>,
}

impl Frame<'_> {
    /// Bytes in total, without a checksum.
    #[expect(clippy::len_without_is_empty, reason = "a packet has a header")]
    #[inline]
    pub fn len(&self) -> usize {
        let len = self.header.len().saturating_add(self.payload.len());
        len.saturating_add(usize::from(self.pad & 3))
    }

    /// Appends all bytes to a buffer, in the order in which they go on the wire.
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
