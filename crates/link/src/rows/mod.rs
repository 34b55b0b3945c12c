//! A process's counts of the packets that it sends by an InfiniBand port, for the ports on their path.
//!
//! Ports of adapters and switches count passing packets, but here packets go directly to their destination. So the sender counts them in a
//! row for each way that they take ([`RouteId`]). The owner of the subnet, which knows the ports of each way, reads the rows when the
//! counters of a port are queried, and before it discards a way. The rows are in shared memory, so the sender's counts outlive it.
//!
//! A row has one writer, the owner of the only [`Tally`] that contains it. Counting takes two loads and two stores, without a fence or a
//! locked instruction.
//!
//! # Layout
//!
//! A memfd of fixed size; only the part in use takes memory. A page has the number of rows that were in use and a word that changes with
//! drops; rows of a cache line each follow. A row has its key ([`Counted`]), the numbers of packets and words, and two counts: how often
//! its writer has closed it, and which of these closings the reader has acknowledged. All numbers only grow. A reader remembers the
//! last values and uses the difference.
//!
//! # Changes of ways
//!
//! A writer opens a row, then checks that the way is unchanged. The reader changes the route table first, then reads rows. Both have a full
//! fence in between, so either the writer sees that the way has changed, or the reader sees an open row and keeps that row's way
//! ([`RowReader::read`]). A row is reused for another key only after the reader has acknowledged its closing.
//!
//! # A hostile peer
//!
//! Either side may write anything. An invalid row is not read. Increments of more than [`MAX_PACKETS`] are ignored, as are words beyond
//! what fits into these packets. A writer can only falsify the counts of its own packets.

mod reader;
mod writer;

use rdmux_wire::Lid;
use rdmux_wire::lrh::Lrh;

pub use self::reader::{RowRead, RowReader};
pub use self::writer::{Row, Rows, Tally, Unfound};
use crate::routes::RouteId;

/// The maximum number of packets that one read of a row accepts. At 400 Gb/s, this many small ones take a day to send.
pub const MAX_PACKETS: u64 = 1 << 46;

/// The key of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counted {
    /// Packets that leave the port.
    Sent {
        /// The way that the packets take, or [`RouteId::NONE`] if the table identifies none.
        route: RouteId,
        /// The destination of the packets.
        dlid: Lid,
        /// The service level of the packets.
        sl: u8,
        /// The index of the packets' P_Key in the port's table.
        pkey: u8,
        /// The payload of the packets in bytes, or zero unless they are dropped because of it.
        payload: u16,
    },
    /// Packets that the port itself drops, by the number of the reason ([`IbDrop`](crate::ib::IbDrop)).
    Dropped(u8),
}

/// The number of rows.
const ROWS: u32 = if cfg!(loom) { 2 } else { 4096 };
const LINE: usize = 64;
/// "rdmuxrw" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"rdmuxrw\x01");
/// The maximum number of words of a packet.
const MAX_WORDS: u64 = Lrh::MAX_PKT_LEN as u64;

/// Offsets, in bytes.
mod at {
    use crate::shared::size;

    /// The number of rows that were in use.
    pub(super) const USED: usize = 8;
    /// Changes when packets were counted that the port itself drops.
    pub(super) const DROPPED: usize = 16;
    pub(super) const ROWS: usize = size(4096, 64);
    pub(super) const END: usize = ROWS + super::ROWS as usize * super::LINE;
    // Of a row.
    pub(super) const ABOUT: usize = 0;
    pub(super) const ROUTE: usize = 8;
    pub(super) const PACKETS: usize = 16;
    pub(super) const WORDS: usize = 24;
    /// Written with each closing.
    pub(super) const CLOSED: usize = 32;
    /// Written by the reader.
    pub(super) const KNOWN: usize = 40;
}

/// Returns the offset of a row.
const fn row_at(row: u32) -> usize {
    at::ROWS + row as usize * LINE
}

/// The state of a row, in the lowest byte of its first word.
mod state {
    pub(super) const OPEN: u8 = 1;
    pub(super) const CLOSED: u8 = 2;
}

/// The kind of packets that it counts, in the next byte.
mod kind {
    pub(super) const SENT: u8 = 1;
    pub(super) const DROPPED: u8 = 2;
}

impl Counted {
    /// Encodes the key in two words, without the state.
    fn to_words(self) -> [u64; 2] {
        match self {
            Self::Sent { route, dlid, sl, pkey, payload } => {
                let [a, b] = dlid.0.to_le_bytes();
                let [c, d] = payload.to_le_bytes();
                [u64::from_le_bytes([0, kind::SENT, sl, pkey, a, b, c, d]), route.0]
            }
            Self::Dropped(why) => [u64::from_le_bytes([0, kind::DROPPED, why, 0, 0, 0, 0, 0]), 0],
        }
    }

    fn from_words([about, route]: [u64; 2]) -> Option<Self> {
        let [_, kind, sl, pkey, a, b, c, d] = about.to_le_bytes();
        match kind {
            kind::SENT if sl < 16 => Some(Self::Sent {
                route: RouteId(route),
                dlid: Lid(u16::from_le_bytes([a, b])),
                sl,
                pkey,
                payload: u16::from_le_bytes([c, d]),
            }),
            kind::DROPPED => Some(Self::Dropped(sl)),
            _ => None,
        }
    }

    /// Returns the ID of the way that packets take, if it has one.
    pub fn route(&self) -> Option<RouteId> {
        match self {
            Self::Sent { route, .. } if *route != RouteId::NONE => Some(*route),
            _ => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
