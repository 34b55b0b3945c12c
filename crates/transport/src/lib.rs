//! The verbs transports RC, UC, UD, XRC and iWARP as state machines without I/O.
//!
//! A [`Qp`] takes work requests and packets, and uses an [`env::Env`] for everything else: memory,
//! a link to send on, completion queues. Time is an argument. Only packets that arrive out of order are kept in allocated memory.
//!
//! A message is processed as follows. A [`wr`] is posted to the send queue. The requester builds packets by the opcode
//! table. The peer's responder places them, takes a receive, and acknowledges. The requester completes the work
//! request. [`state_table`] defines the transitions that `modify` allows, and `fault` the effects of a fault.
//!
//! [`iwarp`] provides the same over a byte stream instead of packets, with a [`iwarp::Qp`] of its own.
//!
//! [`timers`] holds the deadlines of drivers that have many.
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
