//! What links have in common.
//!
//! A [`Piece`] names memory by address and length, because a payload lies in memory that the
//! application registered, which it may change, share or unmap while we read. It is only ever read,
//! by guarded copies into private memory or into a ring.

use std::fmt;
use std::io;

use crate::guarded::{self, Unmapped};

/// What a link can do.
///
/// The same facts as `rdmux_transport::env::LinkCaps`, which this crate does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkCaps {
    /// The most payload bytes of one packet.
    pub max_payload: u32,
    /// Whether every packet arrives, in order, unless the peer dies.
    pub lossless: bool,
    /// Whether payload may be handed over by reference: the receiver can reach the sender's memory.
    pub by_reference: bool,
    /// Whether a packet may take an acknowledgement along.
    pub acks_along: bool,
}

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
}

/// Why a packet did not leave.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The link is full: ask again when it has room.
    #[error("the link is full")]
    Busy,
    /// The packet is larger than the link or the path to its destination can take.
    #[error("a packet of {len} bytes is too large for the link, which takes {max}")]
    TooLarge {
        /// Bytes of the packet.
        len: usize,
        /// Bytes that would have been taken, 0 if not known.
        max: usize,
    },
    /// The payload's memory is not there. The packet was not taken.
    #[error(transparent)]
    Unmapped(#[from] Unmapped),
    /// The other end is gone or broke the rules of the link, which is of no more use.
    #[error("the link is broken")]
    Broken,
    /// The system refused.
    #[error("the system refused to send: {0}")]
    Io(#[from] io::Error),
}

/// A way for packets out of this process.
pub trait Link {
    /// What it can do.
    fn caps(&self) -> LinkCaps;

    /// Takes a packet, to send it now or at the next [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// [`LinkError::Busy`] when there is no room; the packet was not taken. Any other error is
    /// about this packet, or about earlier ones that had to leave first.
    fn push(&mut self, frame: &Frame<'_>) -> Result<(), LinkError>;

    /// Sends what was taken and wakes the other end if it sleeps.
    ///
    /// # Errors
    ///
    /// [`LinkError::Busy`] when the link is full: what was taken stays, flush again later.
    fn flush(&mut self) -> Result<(), LinkError>;
}
