//! What programs ask their host's service, and its answers: messages over a stream socket, as ibacm has them.
//!
//! Every message begins with a [`Header`] that says how long it is; [`Frame`] finds where it ends. A program sends a
//! [`Request`] and gets a [`Reply`]. What a service does with a request that it cannot read, [`Refusal`] says.
//!
//! ```
//! # use rdmux_wire::acm::Address;
//! # use rdmux_wire::acm::client::{Query, Request};
//! let dest = Address::name("node2").expect("short enough");
//! let query = Query::Resolve { source: None, dest, cached_only: false };
//! let request = Request { tid: 1, query };
//! let bytes = request.to_bytes();
//! assert_eq!(bytes.len(), 16 + 72);
//! assert_eq!(Request::parse(&bytes), Ok(request));
//! ```

use arrayvec::ArrayVec;

use crate::WireError;

mod endpoint;
mod entry;
mod header;
mod reply;
mod request;
mod statistic;
mod status;

pub use endpoint::{Endpoint, EndpointInfo, MAX_ENDPOINT_ADDRESSES};
pub use entry::{ENTRY_LEN, EntryFlags, PathFlags};
pub use header::{Frame, Header, Op, VERSION};
pub use reply::{Answer, COUNTERS, Counters, PathData, Paths, Reply};
pub use request::{Query, Refusal, Request, Subject};
pub use statistic::{STATISTIC_LEN, Statistic};
pub use status::Status;

/// The most entries that a message has.
pub const MAX_ENTRIES: usize = 8;

/// The longest message but for answers about endpoints and statistics, in bytes.
pub const MAX_LEN: usize = Header::LEN + MAX_ENTRIES * ENTRY_LEN;

/// The longest of those, in bytes: what the header's length can say.
pub const MAX_LONG_LEN: usize = u16::MAX as usize;

/// The bytes of a message.
pub type Bytes = ArrayVec<u8, MAX_LEN>;

/// A length that is not what the message says, or none that it may have.
fn bad_length(what: &'static str, value: usize) -> WireError {
    WireError::Value { what, value: u32::try_from(value).unwrap_or(u32::MAX) }
}

#[cfg(test)]
mod tests;
