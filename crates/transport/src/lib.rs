//! The verbs transports RC, UC, UD, XRC and iWARP as state machines without I/O.
//!
//! A [`Qp`] takes work requests and packets, and asks an [`env::Env`] for everything else: memory, a
//! link to send on, completion queues. Time is an argument. Nothing is allocated per packet.
//!
//! In the order in which a message passes: [`wr`] is posted to the send queue; the requester makes
//! packets of it by the opcode table; the peer's responder places them, takes a receive, and
//! acknowledges; the requester completes it. [`state_table`] says what `modify` may do, and `fault`
//! what happens when something cannot be done.
//!
//! [`iwarp`] is the same for a byte stream in place of packets, with a [`iwarp::Qp`] of its own.
//!
//! [`timers`] keeps the deadlines of machines that have many.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod attr;
pub mod env;
pub mod error;
pub mod iwarp;
pub mod qp;
pub mod state_table;
pub mod time;
pub mod timers;
pub mod wr;

mod fault;
mod optable;
mod rq;
mod sq;
mod timer;

pub use error::{ModifyError, PostError};
pub use qp::{
    BriefRequest, GRH_AREA, Qp, QpInit, RxPacket, SendMark, Source, TxState, is_privileged,
};
pub use sq::MAX_MESSAGE;
pub use time::Time;
