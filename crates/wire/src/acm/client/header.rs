//! What every message begins with, and where it ends.

use core::ops::Range;

use super::{MAX_LEN, MAX_LONG_LEN, Status, bad_length};
use crate::WireError;
use crate::bytes::{get, get64, head, put, put64};
use crate::layout::codes;

/// The only version of the protocol.
pub const VERSION: u8 = 1;

/// The bit of the opcode that marks answers. Answers with paths lack it, as ibacm's do: clients do not look at it.
const ACK: u8 = 0x80;

/// The bits of the opcode that say what a message is about; the others are ignored.
const OP: u8 = 0x0f;

codes! {
    /// What a message is about.
    Op(u8, 8 bits) {
        /// A path, by addresses or by a path record.
        RESOLVE = 1, "resolve";
        /// Counters.
        PERF_QUERY = 2, "perf query";
        /// An endpoint.
        EP_QUERY = 3, "endpoint query";
        /// What is cached is to be forgotten. Not of ibacm, which closes the connection.
        FLUSH = 8, "flush";
        /// All that a service counts, by name. Not of ibacm.
        STATISTICS = 9, "statistics";
    }
}

mod field {
    pub(super) const VERSION: usize = 0;
    pub(super) const OPCODE: usize = 1;
    pub(super) const STATUS: usize = 2;
    pub(super) const SRC_OUT: usize = 3;
    pub(super) const SRC_INDEX: usize = 4;
    pub(super) const DST_INDEX: usize = 5;
    pub(super) const LENGTH: usize = 6;
    pub(super) const TID: usize = 8;
}

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is about.
    pub op: Op,
    /// Whether it says that it is an answer, which only some answers do.
    pub ack: bool,
    /// Of an answer: how it ended.
    pub status: Status,
    /// A question about endpoints: which one, from 1 on. An answer with counters: how many.
    pub src_out: u8,
    /// A question about counters: of which endpoint, from 1 on, or 0. A question about endpoints: of which port, or 0.
    pub src_index: u8,
    /// Of no use outside ibacm.
    pub dst_index: u8,
    /// The length of the message with this header, in bytes.
    pub length: u16,
    /// An answer repeats that of its question; nobody else looks at it.
    pub tid: u64,
}

impl Header {
    /// The length on the wire, in bytes.
    pub const LEN: usize = 16;
    /// Where the transaction ID is.
    pub const TID: Range<usize> = field::TID..field::TID + 8;

    /// Of a message that has nothing behind the header.
    pub const fn new(op: Op, tid: u64) -> Self {
        let (status, length) = (Status::SUCCESS, 16);
        Self { op, ack: false, status, src_out: 0, src_index: 0, dst_index: 0, length, tid }
    }

    /// Reads the header that `bytes` start with.
    ///
    /// # Errors
    /// When there are too few, or it is of another version, or of an unknown opcode, whose length has no known order of
    /// bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = head::<{ Self::LEN }>(bytes, "ACM message header")?;
        if b[field::VERSION] != VERSION {
            let value = b[field::VERSION].into();
            return Err(WireError::Value { what: "ACM message version", value });
        }
        let op = Op(b[field::OPCODE] & OP);
        let length = length_of(op, get(b, field::LENGTH))?;
        Ok(Self {
            op,
            ack: b[field::OPCODE] & ACK != 0,
            status: Status(b[field::STATUS]),
            src_out: b[field::SRC_OUT],
            src_index: b[field::SRC_INDEX],
            dst_index: b[field::DST_INDEX],
            length,
            tid: get64(b, field::TID),
        })
    }

    /// The header as it goes over the socket.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[field::VERSION] = VERSION;
        b[field::OPCODE] = self.op.0 & OP | if self.ack { ACK } else { 0 };
        b[field::STATUS] = self.status.0;
        b[field::SRC_OUT] = self.src_out;
        b[field::SRC_INDEX] = self.src_index;
        b[field::DST_INDEX] = self.dst_index;
        put(&mut b, field::LENGTH, length_bytes(self.op, self.length));
        put64(&mut b, field::TID, self.tid);
        b
    }

    /// The answer that something went wrong, which has nothing behind the header.
    pub fn failure(&self, status: Status) -> Self {
        Self { ack: true, status, ..Self::new(self.op, self.tid) }
    }
}

/// Messages that resolve have their length in the order of the host, all others in that of the network.
fn length_of(op: Op, bytes: [u8; 2]) -> Result<u16, WireError> {
    match op {
        Op::RESOLVE => Ok(u16::from_ne_bytes(bytes)),
        Op::PERF_QUERY | Op::EP_QUERY | Op::FLUSH | Op::STATISTICS => Ok(u16::from_be_bytes(bytes)),
        Op(other) => Err(WireError::Value { what: "ACM opcode", value: other.into() }),
    }
}

fn length_bytes(op: Op, length: u16) -> [u8; 2] {
    if op == Op::RESOLVE { length.to_ne_bytes() } else { length.to_be_bytes() }
}

/// Where the first message of a stream's bytes ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// More bytes are needed until there are this many: the header's, or the message's.
    Needs(usize),
    /// The first so many bytes are the message.
    Whole(usize),
}

impl Frame {
    /// Of what a service receives.
    ///
    /// # Errors
    /// When the message has no header, or is longer than a request: the stream has no other end of it, and is to be closed.
    pub fn of_request(bytes: &[u8]) -> Result<Self, WireError> {
        Self::of(bytes, |_| MAX_LEN)
    }

    /// Of what a program receives.
    ///
    /// # Errors
    /// The same; answers about endpoints and statistics may be longer.
    pub fn of_reply(bytes: &[u8]) -> Result<Self, WireError> {
        Self::of(bytes, |op| match op {
            Op::EP_QUERY | Op::STATISTICS => MAX_LONG_LEN,
            _ => MAX_LEN,
        })
    }

    fn of(bytes: &[u8], max: impl Fn(Op) -> usize) -> Result<Self, WireError> {
        if bytes.len() < Header::LEN {
            return Ok(Self::Needs(Header::LEN));
        }
        let header = Header::parse(bytes)?;
        let len = usize::from(header.length);
        if len < Header::LEN || len > max(header.op) {
            return Err(bad_length("length of an ACM message", len));
        }
        Ok(if bytes.len() < len { Self::Needs(len) } else { Self::Whole(len) })
    }
}

/// The header of a message that is there whole.
pub(super) fn whole(bytes: &[u8]) -> Result<Header, WireError> {
    let header = Header::parse(bytes)?;
    if usize::from(header.length) == bytes.len() {
        Ok(header)
    } else {
        let (what, says, have) = ("ACM message", header.length.into(), bytes.len());
        Err(WireError::Truncated { what, says, have })
    }
}
