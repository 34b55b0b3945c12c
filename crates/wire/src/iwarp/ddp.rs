//! DDP headers: tagged, with a tag and an offset, and untagged, with a queue, a message and an
//! offset (RFC 5041, section 4), including RDMAP's byte in each (RFC 5040, section 4.1).

use core::fmt;
use core::ops::Deref;

use super::rdmap::Opcode;
use crate::bytes::{get32, get64, head, put32, put64};
use crate::{Stag, WireError};

/// The supported version of DDP.
pub const VERSION: u8 = 1;

/// The queues of the untagged model (RFC 5040, section 4.2; RFC 7306, section 4).
pub mod queue {
    /// Sends, and immediate data.
    pub const SEND: u32 = 0;
    /// Read and atomic requests.
    pub const READ_REQUEST: u32 = 1;
    /// The Terminate.
    pub const TERMINATE: u32 = 2;
    /// Atomic responses.
    pub const ATOMIC_RESPONSE: u32 = 3;
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The RDMAP operation.
    pub opcode: Opcode,
    /// The destination of the payload.
    pub model: Model,
}

/// The destination of a segment's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Memory that the receiver has named.
    Tagged(Tagged),
    /// The next buffer of a queue.
    Untagged(Untagged),
}

/// A segment for named memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// Whether it is the last segment of its message.
    pub last: bool,
    /// The STag of the memory.
    pub stag: Stag,
    /// The tagged offset: an address in the memory.
    pub to: u64,
}

/// A segment for a buffer of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untagged {
    /// Whether it is the last segment of its message.
    pub last: bool,
    /// The key that a Send invalidates; reserved and 0 in other messages.
    pub invalidate: Stag,
    /// The queue number, see [`queue`].
    pub qn: u32,
    /// The message sequence number, from 1 in each queue.
    pub msn: u32,
    /// The message offset, in bytes.
    pub mo: u32,
}

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;

mod field {
    pub(super) const DDP_CONTROL: usize = 0;
    pub(super) const RDMAP_CONTROL: usize = 1;
    pub(super) const STAG: usize = 2;
    pub(super) const TO: usize = 6;
    pub(super) const INVALIDATE: usize = 2;
    pub(super) const QN: usize = 6;
    pub(super) const MSN: usize = 10;
    pub(super) const MO: usize = 14;
}

impl Header {
    /// The length of a tagged header, in bytes.
    pub const TAGGED_LEN: usize = 14;
    /// The length of an untagged header, in bytes.
    pub const UNTAGGED_LEN: usize = 18;
    /// The longest header.
    pub const MAX_LEN: usize = Self::UNTAGGED_LEN;

    /// Creates a header.
    pub const fn new(opcode: Opcode, model: Model) -> Self {
        Self { opcode, model }
    }

    /// Returns the length of the header that begins with this byte.
    pub const fn len_of(first: u8) -> usize {
        if first & TAGGED != 0 { Self::TAGGED_LEN } else { Self::UNTAGGED_LEN }
    }

    /// Returns the length on the wire, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub const fn len(&self) -> usize {
        match self.model {
            Model::Tagged(_) => Self::TAGGED_LEN,
            Model::Untagged(_) => Self::UNTAGGED_LEN,
        }
    }

    /// Returns whether the segment is the last segment of its message.
    pub const fn last(&self) -> bool {
        match self.model {
            Model::Tagged(Tagged { last, .. }) | Model::Untagged(Untagged { last, .. }) => last,
        }
    }

    /// Parses the header of a segment. Reserved bits are ignored.
    ///
    /// # Errors
    /// If bytes are missing; [`WireError::DdpVersion`], [`WireError::RdmapVersion`], or
    /// [`WireError::Value`] for an opcode that is unknown or of the other model.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let &[control, rdmap] = head::<2>(bytes, "DDP header")?;
        let (tagged, last) = (control & TAGGED != 0, control & LAST != 0);
        let version = control & VERSION_MASK;
        if version != VERSION {
            return Err(WireError::DdpVersion { tagged, version });
        }
        let opcode = Opcode::from_control(rdmap)?;
        if opcode.is_tagged() != tagged {
            let value = opcode.code().into();
            let what =
                if tagged { "opcode of a tagged segment" } else { "opcode of an untagged segment" };
            return Err(WireError::Value { what, value });
        }
        let model = Model::parse(bytes, tagged, last)?;
        Ok(Self { opcode, model })
    }

    /// Returns the header in wire format.
    pub fn to_buf(&self) -> HeaderBuf {
        let mut bytes = [0; Self::MAX_LEN];
        let last = if self.last() { LAST } else { 0 };
        bytes[field::RDMAP_CONTROL] = self.opcode.control();
        match &self.model {
            Model::Tagged(tagged) => {
                bytes[field::DDP_CONTROL] = TAGGED | last | VERSION;
                put32(&mut bytes, field::STAG, tagged.stag.0);
                put64(&mut bytes, field::TO, tagged.to);
            }
            Model::Untagged(untagged) => {
                bytes[field::DDP_CONTROL] = last | VERSION;
                put32(&mut bytes, field::INVALIDATE, untagged.invalidate.0);
                put32(&mut bytes, field::QN, untagged.qn);
                put32(&mut bytes, field::MSN, untagged.msn);
                put32(&mut bytes, field::MO, untagged.mo);
            }
        }
        HeaderBuf { bytes, len: self.len() }
    }
}

impl Model {
    fn parse(bytes: &[u8], tagged: bool, last: bool) -> Result<Self, WireError> {
        if tagged {
            let b = head::<{ Header::TAGGED_LEN }>(bytes, "DDP tagged header")?;
            let (stag, to) = (Stag(get32(b, field::STAG)), get64(b, field::TO));
            return Ok(Self::Tagged(Tagged { last, stag, to }));
        }
        let b = head::<{ Header::UNTAGGED_LEN }>(bytes, "DDP untagged header")?;
        Ok(Self::Untagged(Untagged {
            last,
            invalidate: Stag(get32(b, field::INVALIDATE)),
            qn: get32(b, field::QN),
            msn: get32(b, field::MSN),
            mo: get32(b, field::MO),
        }))
    }
}

/// A header in wire format, of either length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderBuf {
    bytes: [u8; Header::MAX_LEN],
    len: usize,
}

impl Deref for HeaderBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{} {}", self.opcode, if self.last() { "" } else { " more" }, self.model)?;
        match self.model {
            Model::Untagged(untagged) if self.opcode.invalidates() => {
                write!(f, " invalidate {}", untagged.invalidate)
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tagged(Tagged { stag, to, .. }) => write!(f, "stag {stag} to {to:#x}"),
            Self::Untagged(Untagged { qn, msn, mo, .. }) => write!(f, "qn {qn} msn {msn} mo {mo}"),
        }
    }
}
