//! RMPP header: 12 bytes after the MAD header, for messages of several MADs (IBTA 13.6.2.1).

use core::fmt;

use crate::WireError;
use crate::bytes::{get32, put32};
use crate::mad::{MAD_LEN, MadHeader, MgmtClass};

/// The offset of the RMPP header in a MAD of a class that has one, in bytes.
pub const OFFSET: usize = MadHeader::LEN;

/// The bytes after the RMPP header in a MAD. [`Rmpp::length`] of a segment counts these, and so
/// includes the class's own header.
pub const SEGMENT_LEN: usize = MAD_LEN - OFFSET - Rmpp::LEN;

/// The RMPP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rmpp {
    /// The version of the protocol; [`Rmpp::VERSION`]. Ignored unless [`RmppFlags::ACTIVE`].
    pub version: u8,
    /// The type of the packet.
    pub kind: RmppType,
    /// The response time: a code of 5 bits, 4.096 us * 2^code; 31 means unspecified.
    pub resp_time: u8,
    /// Whether RMPP is used at all, and which segments these are.
    pub flags: RmppFlags,
    /// The reason why a transfer ends, in ABORT and STOP; otherwise [`RmppStatus::NORMAL`].
    pub status: RmppStatus,
    /// In DATA: the segment's number, from 1. In an ACK: the last segment that arrived in order.
    pub segment: u32,
    /// In the first segment: the bytes of the whole transfer, or 0. In the last: its bytes. In an ACK:
    /// the last segment that may be sent (NewWindowLast). Bytes are counted as in [`SEGMENT_LEN`].
    pub length: u32,
}

/// The type of an RMPP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RmppType(pub u8);

impl RmppType {
    /// A segment.
    pub const DATA: Self = Self(1);
    /// Acknowledges segments and moves the window.
    pub const ACK: Self = Self(2);
    /// Ends the transfer because the receiver has no room.
    pub const STOP: Self = Self(3);
    /// Ends the transfer because of an error.
    pub const ABORT: Self = Self(4);
}

/// The flags of an RMPP packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RmppFlags(pub u8);

impl RmppFlags {
    /// The MAD is part of an RMPP transfer.
    pub const ACTIVE: Self = Self(1);
    /// The MAD is the first segment.
    pub const FIRST: Self = Self(2);
    /// The MAD is the last segment.
    pub const LAST: Self = Self(4);

    /// Returns whether all flags of `other` are set here.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the flags of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The reason why a transfer ends (IBTA 13.6.2.1, table of RMPPStatus).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RmppStatus(pub u8);

impl RmppStatus {
    /// No error.
    pub const NORMAL: Self = Self(0);
    /// Resources exhausted; in a STOP.
    pub const RESOURCES: Self = Self(1);
    /// The total time of the transfer was too long.
    pub const TOTAL_TIME: Self = Self(118);
    /// The length does not match the last segment.
    pub const LAST_LENGTH: Self = Self(119);
    /// The first flag does not match the segment number.
    pub const FIRST_SEGMENT: Self = Self(120);
    /// The type does not exist.
    pub const BAD_TYPE: Self = Self(121);
    /// NewWindowLast is less than the acknowledged segment.
    pub const WINDOW_TOO_SMALL: Self = Self(122);
    /// The acknowledged segment may not have been sent.
    pub const SEGMENT_TOO_BIG: Self = Self(123);
    /// The status is not valid for this type.
    pub const ILLEGAL_STATUS: Self = Self(124);
    /// The version is not supported.
    pub const BAD_VERSION: Self = Self(125);
    /// The segment was sent too often.
    pub const TOO_MANY_RETRIES: Self = Self(126);
    /// Any other reason.
    pub const UNSPECIFIED: Self = Self(127);

    /// Returns whether the status is valid in an ABORT: 118 to 127.
    pub const fn is_abort(self) -> bool {
        self.0 >= Self::TOTAL_TIME.0 && self.0 <= Self::UNSPECIFIED.0
    }
}

mod field {
    pub(super) const VERSION: usize = 0;
    pub(super) const TYPE: usize = 1;
    pub(super) const RESP_TIME_FLAGS: usize = 2;
    pub(super) const STATUS: usize = 3;
    pub(super) const SEGMENT: usize = 4;
    pub(super) const LENGTH: usize = 8;
}

header!(Rmpp, 12, "RMPP header");

impl Rmpp {
    /// The only version of the protocol.
    pub const VERSION: u8 = 1;

    /// The code of [`Rmpp::resp_time`] that means unspecified.
    pub const NO_RESP_TIME: u8 = 31;

    /// Parses the RMPP header of a MAD, which starts at [`OFFSET`].
    pub fn of(mad: &[u8; MAD_LEN]) -> Self {
        let mut b = [0; Self::LEN];
        b.copy_from_slice(&mad[OFFSET..OFFSET + Self::LEN]);
        Self::read(&b)
    }

    /// Writes the header into a MAD, at [`OFFSET`].
    pub fn put(&self, mad: &mut [u8; MAD_LEN]) {
        self.emit(&mut mad[OFFSET..]);
    }

    /// Returns whether the MAD is part of an RMPP transfer.
    pub const fn is_active(&self) -> bool {
        self.flags.contains(RmppFlags::ACTIVE)
    }

    /// Returns the offset of the data in a class's MADs, in bytes from the start of the MAD; none
    /// for classes without RMPP. Every segment repeats the bytes before it (IBTA 13.6.2).
    pub const fn data_offset(class: MgmtClass) -> Option<usize> {
        match class.0 {
            0x03 => Some(56),
            0x06 | 0x10 | 0x12 => Some(64),
            0x30..=0x4f => Some(40),
            _ => None,
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self::read(b))
    }

    fn read(b: &[u8; Self::LEN]) -> Self {
        Self {
            version: b[field::VERSION],
            kind: RmppType(b[field::TYPE]),
            resp_time: b[field::RESP_TIME_FLAGS] >> 3,
            flags: RmppFlags(b[field::RESP_TIME_FLAGS] & 7),
            status: RmppStatus(b[field::STATUS]),
            segment: get32(b, field::SEGMENT),
            length: get32(b, field::LENGTH),
        }
    }

    /// Returns the header in wire format.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[field::VERSION] = self.version;
        b[field::TYPE] = self.kind.0;
        b[field::RESP_TIME_FLAGS] = self.resp_time << 3 | self.flags.0 & 7;
        b[field::STATUS] = self.status.0;
        put32(&mut b, field::SEGMENT, self.segment);
        put32(&mut b, field::LENGTH, self.length);
        b
    }
}

impl fmt::Display for RmppType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::DATA => "DATA",
            Self::ACK => "ACK",
            Self::STOP => "STOP",
            Self::ABORT => "ABORT",
            Self(other) => return write!(f, "type {other}"),
        })
    }
}

impl fmt::Display for RmppFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [(Self::ACTIVE, "active"), (Self::FIRST, "first"), (Self::LAST, "last")];
        let mut set = names.into_iter().filter(|&(flag, _)| self.contains(flag));
        let Some((_, first)) = set.next() else { return f.write_str("none") };
        f.write_str(first)?;
        set.try_for_each(|(_, name)| write!(f, "+{name}"))
    }
}

impl fmt::Display for RmppStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::NORMAL => "normal",
            Self::RESOURCES => "resources exhausted",
            Self::TOTAL_TIME => "total time too long",
            Self::LAST_LENGTH => "inconsistent last flag and length",
            Self::FIRST_SEGMENT => "inconsistent first flag and segment",
            Self::BAD_TYPE => "bad type",
            Self::WINDOW_TOO_SMALL => "NewWindowLast too small",
            Self::SEGMENT_TOO_BIG => "segment too big",
            Self::ILLEGAL_STATUS => "illegal status",
            Self::BAD_VERSION => "unsupported version",
            Self::TOO_MANY_RETRIES => "too many retries",
            Self::UNSPECIFIED => "unspecified",
            Self(other) => return write!(f, "status {other}"),
        })
    }
}

impl fmt::Display for Rmpp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, kind, flags, segment, length, .. } = self;
        if !self.is_active() {
            return f.write_str("RMPP not active");
        }
        write!(f, "RMPP {kind} version {version} flags {flags} segment {segment}")?;
        match *kind {
            RmppType::ACK => write!(f, " window to {length}")?,
            _ => write!(f, " length {length}")?,
        }
        if self.status == RmppStatus::NORMAL { Ok(()) } else { write!(f, " ({})", self.status) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first segment of a response of subnet administration, of three segments.
    const FIRST: [u8; 12] = [1, 1, 0xfb, 0, 0, 0, 0, 1, 0, 0, 0x02, 0x58];

    #[test]
    fn rmpp_first_segment_is_parsed_and_displayed() {
        let rmpp = Rmpp::parse(&FIRST).unwrap();
        assert_eq!((rmpp.kind, rmpp.resp_time, rmpp.segment), (RmppType::DATA, 31, 1));
        assert_eq!(rmpp.flags, RmppFlags::ACTIVE.with(RmppFlags::FIRST));
        assert_eq!(rmpp.length, 600);
        assert_eq!(rmpp.to_bytes(), FIRST);
        let shown = rmpp.to_string();
        assert_eq!(shown, "RMPP DATA version 1 flags active+first segment 1 length 600");
    }

    #[test]
    fn rmpp_header_is_at_byte_24_of_the_mad() {
        let mut mad = [0xee; MAD_LEN];
        let rmpp = Rmpp::parse(&FIRST).unwrap();
        rmpp.put(&mut mad);
        assert_eq!((mad[23], mad[24], mad[35], mad[36]), (0xee, 1, 0x58, 0xee));
        assert_eq!(Rmpp::of(&mad), rmpp);
    }

    #[test]
    fn rmpp_data_offset_depends_on_the_management_class() {
        let offset = |class| Rmpp::data_offset(MgmtClass(class));
        assert_eq!([0x03, 0x06, 0x30, 0x4f].map(offset), [Some(56), Some(64), Some(40), Some(40)]);
        assert_eq!([0x01, 0x04, 0x07, 0x2f, 0x50, 0x81].map(offset), [None; 6]);
        // 200, 192 and 216 bytes of data, of 220 after the RMPP header.
        assert_eq!(SEGMENT_LEN, 220);
    }

    #[test]
    fn rmpp_abort_status_is_118_to_127() {
        let may = [0, 1, 117, 118, 127, 128].map(|code| RmppStatus(code).is_abort());
        assert_eq!(may, [false, false, false, true, true, false]);
    }
}
