//! What a process counts of the packets that it sends by an InfiniBand port, for the ports that they come by.
//!
//! Ports of adapters and switches count what passes them, but packets go straight to their destination. So the sender counts them in
//! a row for each way that they take ([`RouteId`]), and the owner of the subnet, which knows the ports of each way, reads the rows when
//! somebody asks what the ports have counted, and before it forgets a way. The rows are memory of the sender's, so what it has
//! counted outlives it.
//!
//! A row has one writer, which has the only [`Tally`] that the row is in. To count is two loads and two stores, without a fence or a locked instruction.
//!
//! # Layout
//!
//! A memfd of fixed size, of which only what is used takes memory: a page with how many rows were in use and a word that changes with what is
//! dropped, then rows of a cache line each. A row is what is counted ([`Counted`]), how many packets and words, and two numbers: how often its writer has closed it,
//! and for which of these times the reader has said that it knows. These only grow; a reader keeps what it has read and goes by the
//! difference.
//!
//! # When a way changes
//!
//! A writer opens a row, then looks whether the way is still the one. The reader changes the table of ways first, then looks at
//! rows. Both have a full fence in between, so either the writer sees that the way is another one, or the reader sees a row that is still
//! counted in and keeps the way that it is for ([`RowReader::read`]). A row is used for something else only after the reader has
//! said that it knows all that it was used for before.
//!
//! # A hostile peer
//!
//! Either side may write anything. A row with nonsense is not read, more than [`MAX_PACKETS`] at once are not believed, and of words no more
//! than fit into these packets. A writer that lies does so about what it has sent itself.

mod reader;
mod writer;

use rdmux_wire::Lid;
use rdmux_wire::lrh::Lrh;

pub use self::reader::{RowRead, RowReader};
pub use self::writer::{Row, Rows, Tally, Unfound};
use crate::routes::RouteId;

/// How many packets are believed in one reading of a row. At 400 Gb/s so many small ones are sent in a day.
pub const MAX_PACKETS: u64 = 1 << 46;

/// What a row counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counted {
    /// Packets that leave the port.
    Sent {
        /// The way that they take, or [`RouteId::NONE`] if the table names none.
        route: RouteId,
        /// Where to.
        dlid: Lid,
        /// Their service level.
        sl: u8,
        /// The index of their P_Key in the port's table.
        pkey: u8,
        /// Bytes of payload: zero unless that is what they end by.
        payload: u16,
    },
    /// Packets that the port drops itself, by the number of the reason ([`IbDrop`](crate::ib::IbDrop)).
    Dropped(u8),
}

/// How many rows there are.
const ROWS: u32 = if cfg!(loom) { 2 } else { 4096 };
const LINE: usize = 64;
/// "rdmuxrw" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"rdmuxrw\x01");
/// The most words of a packet.
const MAX_WORDS: u64 = Lrh::MAX_PKT_LEN as u64;

/// Offsets, in bytes.
mod at {
    use crate::shared::size;

    /// How many rows were in use.
    pub(super) const USED: usize = 8;
    /// Changes when something was counted that the port drops itself.
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

/// Where a row is.
const fn row_at(row: u32) -> usize {
    at::ROWS + row as usize * LINE
}

/// What is done with a row, in the lowest byte of its first word.
mod state {
    pub(super) const OPEN: u8 = 1;
    pub(super) const CLOSED: u8 = 2;
}

/// What kind of packets it counts, in the byte above.
mod kind {
    pub(super) const SENT: u8 = 1;
    pub(super) const DROPPED: u8 = 2;
}

impl Counted {
    /// The two words, without the state.
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

    /// The way that packets take, if it has a name.
    pub fn route(&self) -> Option<RouteId> {
        match self {
            Self::Sent { route, .. } if *route != RouteId::NONE => Some(*route),
            _ => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
