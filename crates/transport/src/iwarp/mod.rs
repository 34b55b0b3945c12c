//! iWARP: a queue pair over a TCP stream, without I/O.
//!
//! The connection manager opens the stream, exchanges MPA's start-up frames and, in peer-to-peer mode,
//! the ready-to-receive frame; then it hands the stream over with a [`StreamParams`], and
//! [`Qp::attach`] brings the queue pair to RTS.
//!
//! In the order in which a message passes: `tx` makes frames of the send queue and of the responses that
//! are owed, `frame` is one of them and `pack` their form with CRC or markers; `rx` finds the frames in
//! arriving bytes, `segment` checks where each belongs, `message` does what a complete one asks for, and
//! `serve` keeps the peer's READs and atomics. `fault` is the one table from what is wrong to the
//! Terminate, the completion and the event, `close` the ends of a stream.

mod close;
mod emit;
mod fault;
mod frame;
mod message;
mod modify;
mod pack;
mod qp;
mod rx;
mod seam;
mod segment;
mod serve;
mod terminate;
mod tx;

pub use close::{CLOSING_TIME, STALL_TIME, TERMINATE_TIME};
pub use pack::MAX_FRAME;
pub use qp::Qp;
pub use rx::Direct;
pub use seam::{Rtr, Segment, SendFault, StreamEnv, StreamParams, Wish};
