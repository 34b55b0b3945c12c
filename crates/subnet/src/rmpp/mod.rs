//! RMPP: messages of several MADs, sent in windows that the receiver opens (IBTA 13.6).
//!
//! ```text
//!   Sender                                  Receiver, one of a Reassembly
//!     | DATA 1, first ------------------------> |
//!     | <------------------ ACK 1, window to 65 |   the first window is one segment
//!     | DATA 2 .. 65 -------------------------> |
//!     | <---------------- ACK 65, window to 129 |   one ACK for a window
//!     | DATA 66 .. 70, last ------------------> |
//!     | <---------------- ACK 70, window to 129 |   and the message is whole
//! ```
//!
//! If an ACK is missing, the sender retransmits from the last acknowledged segment. The receiver buffers out-of-order
//! segments, acknowledges duplicates again, and remembers a complete message for [`REMEMBERED`], since its last ACK may be
//! lost. A message travels in one direction. If the request has several segments as well (GetMulti), the two sides turn
//! around: the requester acknowledges segment 0 with the initial window of the response.
//!
//! A MAD that is sent this way is written as one long MAD: the header of its class (MAD header, RMPP header and the rest up
//! to [`data_offset`]), then all of the data. Every segment repeats that header. The receiver delivers the header of the
//! first segment and all of the data.

mod control;
mod reassembly;
mod receiver;
mod sender;

use core::time::Duration;

use rdmux_wire::mad::{MAD_LEN, MgmtClass};
use rdmux_wire::{Rmpp, RmppStatus};

pub use control::{abort, abort_by_sender, acknowledge, stop};
pub use reassembly::{Arrival, Limits, Reassembly, TransferId};
pub use receiver::{Receiver, Taken};
pub use sender::{Ack, Sender, Timeout};

/// A management datagram.
pub type Mad = [u8; MAD_LEN];

/// How many segments a receiver allows beyond an ACK.
pub const WINDOW: u32 = 64;

/// How many segments a sender sends at once. A wider window takes several turns.
pub const BURST: u32 = 64;

/// The longest time that a sender waits for an ACK before it retransmits.
pub const ACK_WAIT: Duration = Duration::from_secs(2);

/// The longest time from the first segment of a message to its completion.
pub const TOTAL_TIME: Duration = Duration::from_secs(40);

/// How long a complete message is remembered, to acknowledge its segments again.
pub const REMEMBERED: Duration = Duration::from_secs(10);

/// Returns where the data of a class's MADs start, in bytes. Classes that do not define RMPP are taken to have no header
/// after RMPP's.
pub fn data_offset(class: MgmtClass) -> usize {
    Rmpp::data_offset(class).unwrap_or(rdmux_wire::rmpp::OFFSET + Rmpp::LEN)
}

/// Checks a packet by itself, without its transfer: its version, and whether its type can have its status.
///
/// # Errors
/// The status of the ABORT that reports the violation.
pub fn check(rmpp: &Rmpp) -> Result<(), RmppStatus> {
    use rdmux_wire::RmppType as Type;
    if rmpp.version != Rmpp::VERSION {
        return Err(RmppStatus::BAD_VERSION);
    }
    let legal = match rmpp.kind {
        Type::DATA | Type::ACK => rmpp.status == RmppStatus::NORMAL,
        Type::STOP => rmpp.status == RmppStatus::RESOURCES,
        Type::ABORT => rmpp.status.is_abort(),
        _ => return Err(RmppStatus::BAD_TYPE),
    };
    if legal { Ok(()) } else { Err(RmppStatus::ILLEGAL_STATUS) }
}

#[cfg(test)]
mod tests;
