//! The protocol between programs and their host's service: ibacm's messages over a stream socket.
//!
//! Every message begins with a [`Header`] that contains its length. [`Frame`] finds the end of a message. A program
//! sends a [`Request`] and gets a [`Reply`]. [`Refusal`] is a service's reaction to a request that it cannot parse.
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

/// The maximum number of entries in a message.
pub const MAX_ENTRIES: usize = 8;

/// The maximum length of a message in bytes, except replies about endpoints and statistics.
pub const MAX_LEN: usize = Header::LEN + MAX_ENTRIES * ENTRY_LEN;

/// The maximum length of those replies in bytes, which is the largest length that a header can contain.
pub const MAX_LONG_LEN: usize = u16::MAX as usize;

/// The bytes of a message.
pub type Bytes = ArrayVec<u8, MAX_LEN>;

/// Returns the error for a length that contradicts the message or is not allowed.
fn bad_length(what: &'static str, value: usize) -> WireError {
    WireError::Value { what, value: u32::try_from(value).unwrap_or(u32::MAX) }
}

#[cfg(test)]
mod tests;
