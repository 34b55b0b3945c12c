//! iWARP: a queue pair over a TCP stream, without I/O.
//!
//! The connection manager opens the stream, exchanges MPA's start-up frames and, in peer-to-peer mode,
//! the ready-to-receive frame; then it hands the stream over with a [`StreamParams`].

mod seam;

pub use seam::{Rtr, Segment, SendFault, StreamEnv, StreamParams, Wish};
