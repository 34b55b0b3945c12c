//! iWARP: a queue pair over a TCP stream, without I/O.
//!
//! The connection manager opens the stream, exchanges MPA's start-up frames and, in peer-to-peer
//! mode, the ready-to-receive frame. Then it describes the stream in a [`StreamParams`], and
//! [`Qp::attach`] brings the queue pair to RTS.
//!
//! A message passes through these files in this order. `tx` builds frames from the send queue and from pending
//! responses. `frame` is one frame, and `pack` its form with CRC or markers. `rx` finds the frames in arriving bytes,
//! `segment` validates each and finds its place, `message` carries out a complete one, and `serve` queues the peer's
//! READs and atomics. `fault` is the table from faults to Terminate, completion and event. `close` ends a stream.

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
