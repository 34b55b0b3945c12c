//! The requests of the demo to its other side.

use std::net::{IpAddr, SocketAddr};

use rdmux::{QpType, RemoteMr, Rkey};
use serde::{Deserialize, Serialize};

/// The connected transports.
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
    /// Returns the transport.
    pub(super) fn qp_type(self) -> QpType {
        if self == Self::Uc { QpType::Uc } else { QpType::Rc }
    }
}

/// A message or a piece of memory: this many bytes of the pattern of `seed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Data {
    /// The length in bytes.
    pub(super) len: usize,
    /// The seed, which distinguishes it from others.
    pub(super) seed: u32,
}

/// A request. A request that listens is answered by [`Answer::Listening`] first and by another answer at the end.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Accept a connection and keep it; ends with [`Answer::Memory`].
    Accept {
        /// The address to listen at.
        at: IpAddr,
        /// The transport.
        kind: Kind,
    },
    /// Reject a connection with this private data.
    Reject {
        /// The address to listen at.
        at: IpAddr,
        /// The private data.
        words: String,
    },
    /// Post a receive.
    PostReceive,
    /// Wait for a message and compare it; ends with [`Answer::Message`].
    Receive(Data),
    /// Write data into the memory.
    Fill(Data),
    /// Wait until the memory contains data. The side that wrote them knows that they have arrived, except on UC.
    Compare(Data),
    /// Read a word of the memory; ends with [`Answer::Word`].
    Load,
    /// Store a word in the memory.
    Store(u64),
    /// Register a separate region, to be invalidated; ends with [`Answer::Memory`].
    Disposable,
    /// Wait until the connection is down.
    WaitDisconnected,
    /// Receive datagrams from now on.
    Datagrams {
        /// The address to receive at.
        at: IpAddr,
    },
    /// Join a group.
    Join(IpAddr),
    /// Wait for a datagram, compare it and send it back.
    ReturnDatagram(Data),
    /// Send data, although nothing was received on the connection yet.
    Send(Data),
    /// Accept connections one after the other, and first send the number of each on it.
    SayFirst {
        /// The address to listen at.
        at: IpAddr,
        /// The number of connections.
        connections: u32,
    },
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The requester may connect now.
    Listening(SocketAddr),
    /// The request is done.
    Done,
    /// Memory that may be written, read and modified.
    Memory(Memory),
    /// A message arrived, with the expected contents.
    Message {
        /// Its immediate data.
        imm: Option<[u8; 4]>,
        /// The key that it invalidated.
        invalidated: Option<u32>,
    },
    /// A word.
    Word(u64),
}

/// A [`RemoteMr`] in serializable form.
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
