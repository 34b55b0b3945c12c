//! RDMAP: what segments do, and what requests and responses carry (RFC 5040, section 4; RFC 7306).

use core::fmt;

use crate::bytes::{get32, get64, put32, put64};
use crate::{Stag, WireError};

/// The version of RDMAP that is spoken here.
pub const VERSION: u8 = 1;

/// What a message does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Payload goes into the memory that the header names.
    Write = 0,
    /// Asks for a [`Opcode::ReadResponse`], by a [`ReadRequest`].
    ReadRequest = 1,
    /// Payload goes into the memory that the request named.
    ReadResponse = 2,
    /// Payload goes into a posted receive.
    Send = 3,
    /// The same, and a key of the receiver becomes invalid.
    SendInvalidate = 4,
    /// A Send with a solicited event.
    SendSolicited = 5,
    /// All of that.
    SendSolicitedInvalidate = 6,
    /// The sender stops, see [`super::terminate`].
    Terminate = 7,
    /// [`Immediate`] completes a posted receive (RFC 7306, section 6).
    Immediate = 8,
    /// The same with a solicited event.
    ImmediateSolicited = 9,
    /// Asks for a [`Opcode::AtomicResponse`], by an [`AtomicRequest`] (RFC 7306, section 5).
    AtomicRequest = 10,
    /// Carries an [`AtomicResponse`].
    AtomicResponse = 11,
}

impl Opcode {
    /// In the order of their codes.
    pub const ALL: [Self; 12] = [
        Self::Write,
        Self::ReadRequest,
        Self::ReadResponse,
        Self::Send,
        Self::SendInvalidate,
        Self::SendSolicited,
        Self::SendSolicitedInvalidate,
        Self::Terminate,
        Self::Immediate,
        Self::ImmediateSolicited,
        Self::AtomicRequest,
        Self::AtomicResponse,
    ];

    /// From RDMAP's control byte: version in the upper two bits, opcode in the lower four.
    ///
    /// # Errors
    /// [`WireError::RdmapVersion`] or [`WireError::Value`].
    pub const fn from_control(control: u8) -> Result<Self, WireError> {
        let (version, code) = (control >> 6, control & 0x0f);
        if version != VERSION {
            return Err(WireError::RdmapVersion(version));
        }
        if (code as usize) < Self::ALL.len() {
            return Ok(Self::ALL[code as usize]);
        }
        Err(WireError::Value { what: "RDMAP opcode", value: code as u32 })
    }

    /// RDMAP's control byte.
    pub const fn control(self) -> u8 {
        VERSION << 6 | self.code()
    }

    /// The four bits on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Whether its segments are tagged.
    pub const fn is_tagged(self) -> bool {
        matches!(self, Self::Write | Self::ReadResponse)
    }

    /// The queue of its segments, if they are not tagged; see [`super::ddp::queue`].
    pub const fn queue(self) -> Option<u32> {
        use super::ddp::queue;
        match self {
            Self::Write | Self::ReadResponse => None,
            Self::ReadRequest | Self::AtomicRequest => Some(queue::READ_REQUEST),
            Self::Terminate => Some(queue::TERMINATE),
            Self::AtomicResponse => Some(queue::ATOMIC_RESPONSE),
            _ => Some(queue::SEND),
        }
    }

    /// Whether it makes a key of the receiver invalid.
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }

    /// Whether it is a solicited event for the receiver.
    pub const fn is_solicited(self) -> bool {
        matches!(
            self,
            Self::SendSolicited | Self::SendSolicitedInvalidate | Self::ImmediateSolicited
        )
    }
}

/// What a Read Request carries (RFC 5040, section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Where the response goes: memory of the requester.
    pub sink_stag: Stag,
    /// The address in it.
    pub sink_to: u64,
    /// How many bytes, up to 2^32 - 1.
    pub len: u32,
    /// Where they come from: memory of the responder.
    pub source_stag: Stag,
    /// The address in it.
    pub source_to: u64,
}

/// What an Atomic Request carries (RFC 7306, section 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// What is done.
    pub op: AtomicOp,
    /// The response repeats it.
    pub id: u32,
    /// Memory of the responder.
    pub stag: Stag,
    /// The address of 8 aligned bytes in it.
    pub to: u64,
    /// What is added, or swapped in.
    pub data: u64,
    /// Where it is added or swapped in: of a swap, only these bits; of an addition, where carries stop.
    pub mask: u64,
    /// What must be there for a swap.
    pub compare: u64,
    /// In these bits.
    pub compare_mask: u64,
}

/// What an atomic does, 4 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AtomicOp {
    /// Adds.
    FetchAdd = 0,
    /// Compares, and swaps if equal.
    CmpSwap = 2,
}

/// What an Atomic Response carries (RFC 7306, section 5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// The request's.
    pub id: u32,
    /// What was there before.
    pub original: u64,
}

/// Immediate data, eight bytes in iWARP (RFC 7306, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate(pub [u8; 8]);

mod field {
    pub(super) const SINK_STAG: usize = 0;
    pub(super) const SINK_TO: usize = 4;
    pub(super) const LEN: usize = 12;
    pub(super) const SOURCE_STAG: usize = 16;
    pub(super) const SOURCE_TO: usize = 20;

    pub(super) const OP: usize = 0;
    pub(super) const ID: usize = 4;
    pub(super) const STAG: usize = 8;
    pub(super) const TO: usize = 12;
    pub(super) const DATA: usize = 20;
    pub(super) const MASK: usize = 28;
    pub(super) const COMPARE: usize = 36;
    pub(super) const COMPARE_MASK: usize = 44;

    pub(super) const RESPONSE_ID: usize = 0;
    pub(super) const ORIGINAL: usize = 4;
}

header!(ReadRequest, 28, "RDMAP Read Request");
header!(AtomicRequest, 52, "RDMAP Atomic Request");
header!(AtomicResponse, 12, "RDMAP Atomic Response");
header!(Immediate, 8, "RDMAP immediate data");

impl ReadRequest {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self {
            sink_stag: Stag(get32(b, field::SINK_STAG)),
            sink_to: get64(b, field::SINK_TO),
            len: get32(b, field::LEN),
            source_stag: Stag(get32(b, field::SOURCE_STAG)),
            source_to: get64(b, field::SOURCE_TO),
        })
    }

    /// As it goes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put32(&mut b, field::SINK_STAG, self.sink_stag.0);
        put64(&mut b, field::SINK_TO, self.sink_to);
        put32(&mut b, field::LEN, self.len);
        put32(&mut b, field::SOURCE_STAG, self.source_stag.0);
        put64(&mut b, field::SOURCE_TO, self.source_to);
        b
    }
}

impl AtomicRequest {
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        let op = match get32(b, field::OP) & 0x0f {
            0 => AtomicOp::FetchAdd,
            2 => AtomicOp::CmpSwap,
            value => return Err(WireError::Value { what: "RDMAP atomic operation", value }),
        };
        Ok(Self {
            op,
            id: get32(b, field::ID),
            stag: Stag(get32(b, field::STAG)),
            to: get64(b, field::TO),
            data: get64(b, field::DATA),
            mask: get64(b, field::MASK),
            compare: get64(b, field::COMPARE),
            compare_mask: get64(b, field::COMPARE_MASK),
        })
    }

    /// As it goes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put32(&mut b, field::OP, self.op as u32);
        put32(&mut b, field::ID, self.id);
        put32(&mut b, field::STAG, self.stag.0);
        put64(&mut b, field::TO, self.to);
        put64(&mut b, field::DATA, self.data);
        put64(&mut b, field::MASK, self.mask);
        put64(&mut b, field::COMPARE, self.compare);
        put64(&mut b, field::COMPARE_MASK, self.compare_mask);
        b
    }
}

impl AtomicResponse {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self { id: get32(b, field::RESPONSE_ID), original: get64(b, field::ORIGINAL) })
    }

    /// As it goes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put32(&mut b, field::RESPONSE_ID, self.id);
        put64(&mut b, field::ORIGINAL, self.original);
        b
    }
}

impl Immediate {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self(*b))
    }

    /// As it goes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        self.0
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "WRITE",
            Self::ReadRequest => "READ_REQUEST",
            Self::ReadResponse => "READ_RESPONSE",
            Self::Send => "SEND",
            Self::SendInvalidate => "SEND_INVALIDATE",
            Self::SendSolicited => "SEND_SE",
            Self::SendSolicitedInvalidate => "SEND_SE_INVALIDATE",
            Self::Terminate => "TERMINATE",
            Self::Immediate => "IMMEDIATE",
            Self::ImmediateSolicited => "IMMEDIATE_SE",
            Self::AtomicRequest => "ATOMIC_REQUEST",
            Self::AtomicResponse => "ATOMIC_RESPONSE",
        })
    }
}

impl fmt::Display for ReadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sink_stag, sink_to, len, source_stag, source_to } = self;
        write!(f, "len {len} from stag {source_stag} to {source_to:#x}")?;
        write!(f, " into stag {sink_stag} to {sink_to:#x}")
    }
}

impl fmt::Display for AtomicRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, stag, to, data, mask, compare, compare_mask, .. } = self;
        match self.op {
            AtomicOp::FetchAdd => {
                write!(f, "FETCH_ADD id {id} stag {stag} to {to:#x} add {data:#x}")?
            }
            AtomicOp::CmpSwap => {
                write!(f, "CMP_SWAP id {id} stag {stag} to {to:#x} compare {compare:#x}")?;
                write!(f, " swap {data:#x} compare_mask {compare_mask:#x}")?;
            }
        }
        write!(f, " mask {mask:#x}")
    }
}

impl fmt::Display for AtomicResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "id {} original {:#x}", self.id, self.original)
    }
}

impl fmt::Display for Immediate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "imm {:#018x}", u64::from_be_bytes(self.0))
    }
}
