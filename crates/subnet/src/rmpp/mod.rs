//! RMPP: messages that take several MADs, in windows that the receiver opens (IBTA 13.6).
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
//! An ACK that does not come makes the sender send again from the last that came. The receiver
//! buffers what comes behind a gap, acknowledges what it has acknowledged before, and remembers a
//! whole message for [`REMEMBERED`], since its last ACK may be lost. A message goes one way. Where the request has several segments as well (GetMulti), the two
//! sides turn: the requester acknowledges segment 0 with the window that the response begins with.
//!
//! A MAD that is sent this way is written as one long MAD: the header of its class (MAD header, RMPP
//! header and what follows, [`data_offset`]), then all of the data. Every segment repeats that header,
//! and the receiver gives out the header of the first segment and all of the data.

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

/// How many segments a receiver lets the sender send after an ACK.
pub const WINDOW: u32 = 64;

/// How many segments a sender sends at once; a wider window is used in several turns.
pub const BURST: u32 = 64;

/// The longest time that a sender waits for an ACK before it sends again.
pub const ACK_WAIT: Duration = Duration::from_secs(2);

/// How long a message may take to come in whole, from its first segment.
pub const TOTAL_TIME: Duration = Duration::from_secs(40);

/// How long a whole message is remembered, to acknowledge its segments again.
pub const REMEMBERED: Duration = Duration::from_secs(10);

/// Where the data of a class's MADs start, in bytes. Classes that have no RMPP of their own are
/// taken to have no header behind RMPP's.
pub fn data_offset(class: MgmtClass) -> usize {
    Rmpp::data_offset(class).unwrap_or(rdmux_wire::rmpp::OFFSET + Rmpp::LEN)
}

/// What is wrong with a packet in itself, whatever the transfer that it belongs to: its version and
/// whether its type can have its status.
///
/// # Errors
/// The status of the ABORT that says so.
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
