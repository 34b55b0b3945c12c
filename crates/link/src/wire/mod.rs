//! The interface between the engine and the wires that carry its packets: the [`Wire`] trait.
//!
//! - `frame`: packets to send, and references to their payload
//! - `arrival`: received packets
//!
//! Four wires are in this crate. [`UdpPort`](crate::UdpPort) carries packets to any destination and gathers them into one system call, and
//! so does [`IbWire`](crate::IbWire) ([`Gathering`]). [`Ring`](crate::Ring) carries records to one process, and a packet is one kind of
//! record. [`TcpStream`](crate::TcpStream) carries bytes to one queue pair. Each also has shortcuts, which its part of the engine uses. A
//! wire without shortcuts needs no part in the engine: it is a [`PacketWire`], which the device's control plane passes to the engine.
//! `crates/verbs/tests/unix_wire.rs` is one over Unix sockets.

mod arrival;
mod frame;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use rdmux_transport::attr::AddressVector;
pub use rdmux_transport::env::LinkCaps;

pub use self::arrival::{Arrival, Arrivals, Ends, IbRoute, Trailer};
pub use self::frame::{Frame, Payload, Piece};
use crate::guarded::Unmapped;
use crate::udp::{ZeroCopyBuf, ZeroCopyDest};

/// A wire that carries packets, records or a stream of bytes between processes, in both directions.
///
/// A wire is shared by all its senders and receivers. Their exclusive state is in [`Tx`](Self::Tx) and [`Rx`](Self::Rx), which they own, so
/// that a wire needs no locks. No method blocks.
pub trait Wire: fmt::Debug {
    /// The destination of a packet; empty if the wire has only one other end.
    type To: ?Sized;
    /// The exclusive state of a sender: the packets that it gathers, or its progress.
    type Tx: ?Sized;
    /// The exclusive state of a receiver: its buffers. It holds the received packets until the next receive.
    type Rx: ?Sized;
    /// The result of a receive: how much arrived, or why nothing can arrive any more.
    type Arrived;

    /// Returns the capabilities of the wire.
    fn caps(&self) -> LinkCaps;

    /// Returns the two ends of a packet that is sent to `to`, as captures show them. None if the wire has no addresses: captures then show
    /// those of the queue pairs.
    fn ends(&self, _to: &Self::To) -> Option<Ends> {
        None
    }

    /// Returns a descriptor that is readable while something has arrived. One that must be armed ([`arm`](Self::arm)) is readable once
    /// after that. None if the receiver is woken by other means.
    fn readable(&self) -> Option<BorrowedFd<'_>>;

    /// Prepares to wait for [`readable`](Self::readable). Returns false if something has arrived: the receiver must not wait then.
    fn arm(&self, _rx: &Self::Rx) -> bool {
        true
    }

    /// Ends the wait that [`arm`](Self::arm) prepared.
    fn disarm(&self, _rx: &Self::Rx) {}

    /// Sends a packet, now or at the next [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// [`LinkError::Full`] if gathered packets must be flushed first, [`LinkError::Busy`] if the link has no room: the packet was not
    /// accepted. Any other error concerns this packet, which is lost.
    fn send(&self, tx: &mut Self::Tx, to: &Self::To, frame: &Frame<'_>) -> Result<(), LinkError>;

    /// Sends the gathered packets, and wakes the other end if that takes a call.
    ///
    /// # Errors
    ///
    /// [`TxFail`], which has the numbers of packets sent, kept and lost.
    fn flush(&self, tx: &mut Self::Tx) -> Result<Flushed, TxFail>;

    /// Receives what has arrived, and replaces what was received before.
    fn receive(&self, rx: &mut Self::Rx) -> Self::Arrived;
}

/// A wire that gathers packets in the sender's state until they are flushed, and may send them zero-copy, from the buffer of a [`ZeroCopyBuf`].
pub trait Gathering: Wire {
    /// Returns the number of gathered packets.
    fn packets(&self, tx: &Self::Tx) -> usize;

    /// Returns the length of the gathered packets in bytes.
    fn bytes(&self, tx: &Self::Tx) -> usize;

    /// Returns whether the gathered packets may be sent zero-copy.
    fn supports_zerocopy(&self, tx: &Self::Tx) -> bool;

    /// Returns the destination socket of the gathered packets. None if there are none.
    fn zerocopy_dest(&self, tx: &Self::Tx) -> Option<ZeroCopyDest>;

    /// Flushes like [`flush`](Wire::flush), but zero-copy from a buffer taken for the [`zerocopy_dest`](Self::zerocopy_dest), if the kernel accepts
    /// it. Returns whether the kernel may use the buffer.
    ///
    /// # Errors
    ///
    /// As for [`flush`](Wire::flush).
    fn flush_zerocopy(
        &self,
        tx: &mut Self::Tx,
        buf: &mut ZeroCopyBuf,
    ) -> (bool, Result<Flushed, TxFail>);

    /// Discards gathered packets that have not been sent.
    fn forget(&self, tx: &mut Self::Tx);
}

/// A packet wire that the engine uses only through the methods of [`Wire`]. A receive returns a number of packets, or an error after which
/// the next may return more. A flush returns what was sent since the last one, and keeps nothing: packets that are not sent then are lost,
/// as on any wire.
pub type PacketWire =
    dyn Wire<To = AddressVector, Tx = (), Rx = Arrivals, Arrived = io::Result<usize>> + Send + Sync;

/// The reason why a packet was not sent.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The packet cannot be combined with the gathered ones: flush them, then send it again.
    #[error("flush the gathered packets first")]
    Full,
    /// The link is full: try again when it has room.
    #[error("the link is full")]
    Busy,
    /// The packet is larger than the link or the path to its destination supports.
    #[error("a packet of {len} bytes is too large for the link, whose maximum is {max}")]
    TooLarge {
        /// The length of the packet in bytes.
        len: usize,
        /// The maximum length in bytes, 0 if not known.
        max: usize,
    },
    /// The payload's memory is not mapped. The packet was not accepted.
    #[error(transparent)]
    Unmapped(#[from] Unmapped),
    /// The other end is gone or violated the protocol of the link, which is no longer usable.
    #[error("the link is broken")]
    Broken,
    /// The kernel refused.
    #[error("the kernel refused to send: {0}")]
    Io(#[from] io::Error),
}

/// The amount that was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// The number of packets.
    pub packets: usize,
    /// The bytes of the packets, ICRCs included.
    pub bytes: usize,
}

/// The reason why not all packets were sent.
#[derive(Debug, thiserror::Error)]
pub enum TxFail {
    /// The socket's buffer is full. The batch keeps the packets that were not sent: flush it again when the socket is writable, or clear it
    /// and let the transport retransmit them.
    #[error("the socket is full ({kept} packets kept)")]
    Busy {
        /// The outcome of the earlier packets.
        sent: Flushed,
        /// The number of packets that remain in the batch.
        kept: usize,
    },
    /// A packet is larger than the path MTU. It and those after it are lost.
    #[error("a packet of {len} bytes exceeds the path MTU ({lost} packets lost)")]
    TooLarge {
        /// The packet's UDP payload in bytes.
        len: usize,
        /// The outcome of the earlier packets.
        sent: Flushed,
        /// The number of packets that were not sent.
        lost: usize,
    },
    /// The kernel refused a packet: no route, a firewall. It and those after it are lost.
    #[error("the kernel refused to send ({lost} packets lost): {source}")]
    Io {
        /// The kernel's error.
        source: io::Error,
        /// The outcome of the earlier packets.
        sent: Flushed,
        /// The number of packets that were not sent.
        lost: usize,
    },
}
