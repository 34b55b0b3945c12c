//! RDMAP: the operations of segments, and the contents of requests and responses (RFC 5040, section 4; RFC 7306).

use core::fmt;

use crate::bytes::{get32, get64, put32, put64};
use crate::{Stag, WireError};

/// The supported version of RDMAP.
pub const VERSION: u8 = 1;

/// The operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Writes the payload into the memory that the header names.
    Write = 0,
    /// Asks for a [`Opcode::ReadResponse`], with a [`ReadRequest`].
    ReadRequest = 1,
    /// Writes the payload into the memory that the request named.
    ReadResponse = 2,
    /// Writes the payload into a posted receive.
    Send = 3,
    /// A Send that also invalidates a key of the receiver.
    SendInvalidate = 4,
    /// A Send with a solicited event.
    SendSolicited = 5,
    /// A Send with a solicited event that invalidates a key of the receiver.
    SendSolicitedInvalidate = 6,
    /// Reports why the sender stops, see [`super::terminate`].
    Terminate = 7,
    /// Completes a posted receive with [`Immediate`] data (RFC 7306, section 6).
    Immediate = 8,
    /// Immediate data with a solicited event.
    ImmediateSolicited = 9,
    /// Asks for a [`Opcode::AtomicResponse`], with an [`AtomicRequest`] (RFC 7306, section 5).
    AtomicRequest = 10,
    /// Carries an [`AtomicResponse`].
    AtomicResponse = 11,
}

impl Opcode {
    /// The opcodes in the order of their codes.
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

    /// Returns the opcode of RDMAP's control byte: version in the upper two bits, opcode in the lower four.
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

    /// Returns RDMAP's control byte.
    pub const fn control(self) -> u8 {
        VERSION << 6 | self.code()
    }

    /// Returns the four bits on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns whether segments with this opcode are tagged.
    pub const fn is_tagged(self) -> bool {
        matches!(self, Self::Write | Self::ReadResponse)
    }

    /// Returns the queue of segments with this opcode, unless they are tagged; see [`super::ddp::queue`].
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

    /// Returns whether the message invalidates a key of the receiver.
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }

    /// Returns whether the message is a solicited event for the receiver.
    pub const fn is_solicited(self) -> bool {
        matches!(
            self,
            Self::SendSolicited | Self::SendSolicitedInvalidate | Self::ImmediateSolicited
        )
    }
}

/// The contents of a Read Request (RFC 5040, section 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The STag of the requester's memory for the response.
    pub sink_stag: Stag,
    /// The address in this memory.
    pub sink_to: u64,
    /// The length in bytes, up to 2^32 - 1.
    pub len: u32,
    /// The STag of the responder's memory to read.
    pub source_stag: Stag,
    /// The address in this memory.
    pub source_to: u64,
}

/// The contents of an Atomic Request (RFC 7306, section 5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// The operation.
    pub op: AtomicOp,
    /// The identifier, which the response repeats.
    pub id: u32,
    /// The STag of the responder's memory.
    pub stag: Stag,
    /// The address of 8 aligned bytes in this memory.
    pub to: u64,
    /// The operand to add, or to swap in.
    pub data: u64,
    /// The mask of the operand. A swap replaces only these bits. An addition stops carries at them.
    pub mask: u64,
    /// The operand that memory must equal for a swap.
    pub compare: u64,
    /// The bits to compare.
    pub compare_mask: u64,
}

/// An atomic operation, 4 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum AtomicOp {
    /// Fetch and add.
    FetchAdd = 0,
    /// Compare and swap.
    CmpSwap = 2,
}

/// The contents of an Atomic Response (RFC 7306, section 5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// The identifier of the request.
    pub id: u32,
    /// The original value.
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

    /// Returns the wire format.
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

    /// Returns the wire format.
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

    /// Returns the wire format.
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

    /// Returns the wire format.
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
