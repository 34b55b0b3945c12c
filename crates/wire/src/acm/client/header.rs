//! The header of every message, and the end of a message.

use core::ops::Range;

use super::{MAX_LEN, MAX_LONG_LEN, Status, bad_length};
use crate::WireError;
use crate::bytes::{get, get64, head, put, put64};
use crate::layout::codes;

/// The only version of the protocol.
pub const VERSION: u8 = 1;

/// The bit of the opcode that marks replies. Replies with paths lack it, as ibacm's do: clients ignore it.
const ACK: u8 = 0x80;

/// The bits of the opcode that name the operation. The others are ignored.
const OP: u8 = 0x0f;

codes! {
    /// The operation of a message.
    Op(u8, 8 bits) {
        /// Resolution of a path, by addresses or by a path record.
        RESOLVE = 1, "resolve";
        /// Query of counters.
        PERF_QUERY = 2, "perf query";
        /// Query of an endpoint.
        EP_QUERY = 3, "endpoint query";
        /// Invalidation of cache entries. An extension: ibacm closes the connection.
        FLUSH = 8, "flush";
        /// Query of all statistics of a service, by name. An extension, not of ibacm.
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
    /// The operation.
    pub op: Op,
    /// Whether the message is marked as a reply, which only some replies are.
    pub ack: bool,
    /// The status of a reply.
    pub status: Status,
    /// In a query about endpoints: the index of the endpoint, from 1. In a reply with counters: their number.
    pub src_out: u8,
    /// In a query of counters: the index of the endpoint, from 1, or 0. In a query about endpoints: the port, or 0.
    pub src_index: u8,
    /// Not used outside ibacm.
    pub dst_index: u8,
    /// The length of the message with this header, in bytes.
    pub length: u16,
    /// The transaction ID. A reply repeats that of its request, and only its client uses it.
    pub tid: u64,
}

impl Header {
    /// The length on the wire, in bytes.
    pub const LEN: usize = 16;
    /// The position of the transaction ID.
    pub const TID: Range<usize> = field::TID..field::TID + 8;

    /// Creates the header of a message without data.
    pub const fn new(op: Op, tid: u64) -> Self {
        let (status, length) = (Status::SUCCESS, 16);
        Self { op, ack: false, status, src_out: 0, src_index: 0, dst_index: 0, length, tid }
    }

    /// Parses the header at the start of `bytes`.
    ///
    /// # Errors
    /// If there are too few bytes, or the version or the opcode is unknown. The byte order of the
    /// length depends on the opcode.
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

    /// Returns the header in wire format.
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

    /// Returns the header of a failure reply, which has no data.
    pub fn failure(&self, status: Status) -> Self {
        Self { ack: true, status, ..Self::new(self.op, self.tid) }
    }
}

/// Returns the length of a message. Messages that resolve have it in host byte order, all others in network byte order.
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

/// The end of the first message in a stream's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// More bytes are needed, up to this total: the length of the header, or of the message.
    Needs(usize),
    /// The message is complete, and has this many bytes.
    Whole(usize),
}

impl Frame {
    /// Finds the end of a request.
    ///
    /// # Errors
    /// If the message has no valid header, or is longer than a request. The next message cannot be
    /// found then, so the stream must be closed.
    pub fn of_request(bytes: &[u8]) -> Result<Self, WireError> {
        Self::of(bytes, |_| MAX_LEN)
    }

    /// Finds the end of a reply.
    ///
    /// # Errors
    /// The same as for a request. Replies about endpoints and statistics may be longer.
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

/// Returns the header of a complete message.
pub(super) fn whole(bytes: &[u8]) -> Result<Header, WireError> {
    let header = Header::parse(bytes)?;
    if usize::from(header.length) == bytes.len() {
        Ok(header)
    } else {
        let (what, says, have) = ("ACM message", header.length.into(), bytes.len());
        Err(WireError::Truncated { what, says, have })
    }
}
