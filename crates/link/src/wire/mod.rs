//! The seam between the engine and what carries its packets: the [`Wire`] trait.
//!
//! - `frame`: packets to send, and how their payload is named
//! - `arrival`: packets that have arrived
//!
//! Four wires are in this crate. [`UdpPort`](crate::UdpPort) carries packets to any destination and gathers them into one
//! system call, and so does [`IbWire`](crate::IbWire) ([`Gathering`]). [`Ring`](crate::Ring) carries records to one process, and a packet is one kind of record.
//! [`TcpStream`](crate::TcpStream) carries bytes to one queue pair. Each has shortcuts besides, which its part of the engine
//! knows. A wire that has none needs no part of the engine: it is a [`PacketWire`], which the device's control plane hands
//! to the engine. `crates/verbs/tests/unix_wire.rs` is one over Unix sockets.

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
use crate::udp::{Borrower, Loan};

/// What carries packets, records or a stream of bytes between processes, in both directions.
///
/// A wire is shared by all who send and receive. What only one of them may have at a time is in [`Tx`](Self::Tx) and
/// [`Rx`](Self::Rx), which they keep themselves, so that a wire needs no locks. No method blocks.
pub trait Wire: fmt::Debug {
    /// Where a packet goes; nothing if the wire has one other end.
    type To: ?Sized;
    /// What a sender has to itself: what it gathers packets in, or how far it is.
    type Tx: ?Sized;
    /// What a receiver has to itself: what it receives into. It shows what has arrived until the next receive.
    type Rx: ?Sized;
    /// What a receive brings: how much, or why nothing comes any more.
    type Arrived;

    /// What the wire can do.
    fn caps(&self) -> LinkCaps;

    /// The two ends of a packet that is sent to `to`, as captures show them. None if the wire has no addresses: captures
    /// then show those of the queue pairs.
    fn ends(&self, _to: &Self::To) -> Option<Ends> {
        None
    }

    /// A descriptor that is readable when something has arrived, for as long as that is so. One that must be armed
    /// ([`arm`](Self::arm)) is readable once after that. None if the receiver is woken by other means.
    fn readable(&self) -> Option<BorrowedFd<'_>>;

    /// The receiver is about to wait for [`readable`](Self::readable). False if something has arrived: do not wait then.
    fn arm(&self, _rx: &Self::Rx) -> bool {
        true
    }

    /// The receiver does not wait any more.
    fn disarm(&self, _rx: &Self::Rx) {}

    /// Takes a packet, to send it now or at the next [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// [`LinkError::Full`] when what was gathered must be flushed first, [`LinkError::Busy`] when there is no room: the
    /// packet was not taken. Any other error is about this packet, which is lost.
    fn send(&self, tx: &mut Self::Tx, to: &Self::To, frame: &Frame<'_>) -> Result<(), LinkError>;

    /// Sends what was gathered, and wakes the other end if that takes a call.
    ///
    /// # Errors
    ///
    /// [`TxFail`], which says what left, what is kept and what is gone.
    fn flush(&self, tx: &mut Self::Tx) -> Result<Flushed, TxFail>;

    /// Receives what there is, in place of what was received before.
    fn receive(&self, rx: &mut Self::Rx) -> Self::Arrived;
}

/// A wire that gathers packets in what the sender has to itself until they are flushed, and may send them zero-copy: out of
/// memory of a [`Loan`], which the kernel is lent.
pub trait Gathering: Wire {
    /// How many packets are gathered.
    fn packets(&self, tx: &Self::Tx) -> usize;

    /// How many bytes they are.
    fn bytes(&self, tx: &Self::Tx) -> usize;

    /// Whether the kernel may be lent memory.
    fn lends(&self) -> bool;

    /// The destination socket of the packets that are gathered. None if there are none.
    fn borrower(&self, tx: &Self::Tx) -> Option<Borrower>;

    /// As [`flush`](Wire::flush), but lends the kernel memory, taken for the [`borrower`](Self::borrower), if it takes it. Returns
    /// whether the kernel may have it.
    ///
    /// # Errors
    ///
    /// As there.
    fn flush_lent(&self, tx: &mut Self::Tx, loan: &mut Loan) -> (bool, Result<Flushed, TxFail>);

    /// Forgets what was gathered and has not left.
    fn forget(&self, tx: &mut Self::Tx);
}

/// A wire of packets that the engine drives by the methods of [`Wire`] alone. A receive brings so many packets, or an error
/// after which the next may bring more. A flush returns what has left since the last one, and keeps nothing: what does not
/// leave then is lost, as on any wire.
pub type PacketWire =
    dyn Wire<To = AddressVector, Tx = (), Rx = Arrivals, Arrived = io::Result<usize>> + Send + Sync;

/// Why a packet did not leave.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The packet does not go with those that were gathered: flush them, then send it again.
    #[error("flush what was gathered first")]
    Full,
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
    /// The kernel refused.
    #[error("the kernel refused to send: {0}")]
    Io(#[from] io::Error),
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Packets.
    pub packets: usize,
    /// Their bytes, ICRCs included.
    pub bytes: usize,
}

/// Why not all was sent.
#[derive(Debug, thiserror::Error)]
pub enum TxFail {
    /// The socket's buffer is full. The batch keeps the packets that did not leave: flush it again
    /// when the socket is writable, or clear it and let the transport send them again.
    #[error("the socket is full ({kept} packets kept)")]
    Busy {
        /// What left before.
        sent: Flushed,
        /// Packets that stay in the batch.
        kept: usize,
    },
    /// A packet is larger than the path takes. It and what followed it are gone.
    #[error("a packet of {len} bytes is larger than the path takes ({lost} packets lost)")]
    TooLarge {
        /// Bytes of UDP payload of the packet.
        len: usize,
        /// What left before.
        sent: Flushed,
        /// Packets that did not leave.
        lost: usize,
    },
    /// The kernel refused a packet: no route, a firewall. It and what followed it are gone.
    #[error("the kernel refused to send ({lost} packets lost): {source}")]
    Io {
        /// What it said.
        source: io::Error,
        /// What left before.
        sent: Flushed,
        /// Packets that did not leave.
        lost: usize,
    },
}
