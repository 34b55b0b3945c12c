//! What the demo asks of its other side.

use std::net::{IpAddr, SocketAddr};

use rdmux::{QpType, RemoteMr, Rkey};
use serde::{Deserialize, Serialize};

/// The transports that connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// Reliable.
    Rc,
    /// Unreliable.
    Uc,
    /// Reliable, with a shared receive queue on the accepting side.
    RcSrq,
}

impl Kind {
    /// The transport.
    pub(super) fn qp_type(self) -> QpType {
        if self == Self::Uc { QpType::Uc } else { QpType::Rc }
    }
}

/// A message or a piece of memory: so many bytes of the pattern that `seed` makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Data {
    /// Bytes.
    pub(super) len: usize,
    /// What makes them differ from others.
    pub(super) seed: u32,
}

/// A request. Whatever listens answers [`Answer::Listening`] first and something else at the end.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Accept a connection and keep it; ends with [`Answer::Memory`].
    Accept {
        /// Where to listen.
        at: IpAddr,
        /// Which transport.
        kind: Kind,
    },
    /// Refuse a connection with these words.
    Reject {
        /// Where to listen.
        at: IpAddr,
        /// Private data.
        words: String,
    },
    /// Post a receive.
    PostReceive,
    /// Wait for a message and compare it; ends with [`Answer::Message`].
    Receive(Data),
    /// Put data into the memory.
    Fill(Data),
    /// Wait until the memory holds data. The side that wrote them knows that they are there, except on
    /// UC.
    Compare(Data),
    /// Read a word of the memory; ends with [`Answer::Word`].
    Load,
    /// Store a word in the memory.
    Store(u64),
    /// A region of its own, to be invalidated; ends with [`Answer::Memory`].
    Disposable,
    /// Wait until the connection is down.
    WaitDisconnected,
    /// Receive datagrams from now on.
    Datagrams {
        /// Where.
        at: IpAddr,
    },
    /// Join a group.
    Join(IpAddr),
    /// Wait for a datagram, compare it and send it back.
    ReturnDatagram(Data),
    /// Send data, though nothing came over the connection yet.
    Send(Data),
    /// Accept connections one after the other, and on each say first which one it is.
    SayFirst {
        /// Where to listen.
        at: IpAddr,
        /// How many there will be.
        connections: u32,
    },
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Now the asker may come.
    Listening(SocketAddr),
    /// It is done.
    Done,
    /// Memory that may be written, read and changed.
    Memory(Memory),
    /// A message came, and was as expected.
    Message {
        /// Its immediate data.
        imm: Option<[u8; 4]>,
        /// The key that it invalidated.
        invalidated: Option<u32>,
    },
    /// A word.
    Word(u64),
}

/// A [`RemoteMr`] on its way.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Memory {
    addr: u64,
    rkey: u32,
    len: u64,
}

impl From<RemoteMr> for Memory {
    fn from(r: RemoteMr) -> Self {
        Self { addr: r.addr, rkey: r.rkey.0, len: r.len }
    }
}
impl From<Memory> for RemoteMr {
    fn from(m: Memory) -> Self {
        Self { addr: m.addr, rkey: Rkey(m.rkey), len: m.len }
    }
}
