//! MPA start-up frames: request and reply, each the first bytes of its direction of the stream
//! (RFC 5044, section 7.1; revision 2 in RFC 6581).

use core::fmt;

use crate::WireError;
use crate::bytes::{get16, put, put16};

/// The kind of a start-up frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Sent by the initiator, first.
    Request,
    /// Sent by the responder.
    Reply,
}

impl Kind {
    /// Returns the sixteen bytes that such a frame begins with.
    pub const fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }
}

/// The flags of a start-up frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// M: the sender wants markers in the stream that it receives.
    pub const MARKERS: Self = Self(0x80);
    /// C: the sender wants CRCs. CRCs are used in both directions if either end wants them.
    pub const CRC: Self = Self(0x40);
    /// R: the connection is rejected. In a reply only.
    pub const REJECT: Self = Self(0x20);
    /// S: the private data begins with [`Enhanced`] (RFC 6581, section 7).
    pub const ENHANCED: Self = Self(0x10);
    /// The kernel's siw only: it accepts frames that are longer than a TCP segment.
    pub const SIW_GSO: Self = Self(0x08);

    /// Returns whether all flags of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns these flags, plus those of `other` if `on`.
    #[must_use]
    pub const fn with(self, other: Self, on: bool) -> Self {
        if on { Self(self.0 | other.0) } else { self }
    }
}

/// The header that revision 2 puts before the private data (RFC 6581, section 9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enhanced {
    /// A: peer-to-peer mode, in which the initiator sends a ready-to-receive frame first.
    pub peer_to_peer: bool,
    /// B: that frame may be a zero-length Send.
    pub rtr_send: bool,
    /// C: that frame may be a zero-length RDMA Write.
    pub rtr_write: bool,
    /// D: that frame may be a zero-length RDMA Read.
    pub rtr_read: bool,
    /// The number of inbound RDMA Reads that the sender serves at a time, 14 bits; [`Enhanced::NOT_NEGOTIATED`].
    pub ird: u16,
    /// The number of outbound RDMA Reads that the sender has outstanding, 14 bits; [`Enhanced::NOT_NEGOTIATED`].
    pub ord: u16,
}

impl Enhanced {
    /// The length on the wire, in bytes. It counts as private data.
    pub const LEN: usize = 4;
    /// A depth of all ones: not negotiated here, but by the programs.
    pub const NOT_NEGOTIATED: u16 = 0x3fff;

    const fn from_bytes([a, b, c, d]: [u8; Self::LEN]) -> Self {
        let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Self {
            peer_to_peer: first & 0x8000 != 0,
            rtr_send: first & 0x4000 != 0,
            rtr_write: second & 0x8000 != 0,
            rtr_read: second & 0x4000 != 0,
            ird: first & Self::NOT_NEGOTIATED,
            ord: second & Self::NOT_NEGOTIATED,
        }
    }

    /// Returns the wire format, with the low 14 bits of the depths.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let word = |high: bool, low: bool, depth: u16| {
            u16::from(high) << 15 | u16::from(low) << 14 | depth & Self::NOT_NEGOTIATED
        };
        let [a, b] = word(self.peer_to_peer, self.rtr_send, self.ird).to_be_bytes();
        let [c, d] = word(self.rtr_write, self.rtr_read, self.ord).to_be_bytes();
        [a, b, c, d]
    }
}

/// A start-up frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Startup<'a> {
    /// Request or reply.
    pub kind: Kind,
    /// The flags. When revision 2 is written, [`Flags::ENHANCED`] is derived from `enhanced`.
    pub flags: Flags,
    /// The revision: 1 or 2 from a conforming peer. Any value is accepted.
    pub revision: u8,
    /// The header of revision 2, if S is set and the revision is not older.
    pub enhanced: Option<Enhanced>,
    /// The program's private data, after `enhanced`.
    pub private_data: &'a [u8],
}

mod field {
    pub(super) const FLAGS: usize = 16;
    pub(super) const REVISION: usize = 17;
    pub(super) const PD_LENGTH: usize = 18;
}

impl<'a> Startup<'a> {
    /// The length of a frame without private data.
    pub const HEADER_LEN: usize = 20;
    /// The maximum length of the private data, [`Enhanced`] included (RFC 5044, section 7.1.1).
    pub const MAX_PRIVATE_DATA: usize = 512;
    /// The length of the longest frame.
    pub const MAX_LEN: usize = Self::HEADER_LEN + Self::MAX_PRIVATE_DATA;

    /// Returns the length of the frame that `bytes` begin with, as far as known: first the header's
    /// length, then the frame's. With that many bytes the frame is complete.
    ///
    /// # Errors
    /// If no frame begins so: the key is unknown, or there is too much private data.
    pub fn need(bytes: &[u8]) -> Result<usize, WireError> {
        let shown = bytes.len().min(16);
        let begins = |kind: Kind| bytes[..shown] == kind.key()[..shown];
        if !begins(Kind::Request) && !begins(Kind::Reply) {
            let mut start = [0; 4];
            let len = shown.min(4);
            start[..len].copy_from_slice(&bytes[..len]);
            return Err(WireError::Value { what: "MPA key", value: u32::from_be_bytes(start) });
        }
        let Some(header) = bytes.first_chunk::<{ Startup::HEADER_LEN }>() else {
            return Ok(Self::HEADER_LEN);
        };
        let private_data = get16(header, field::PD_LENGTH);
        if usize::from(private_data) > Self::MAX_PRIVATE_DATA {
            let value = private_data.into();
            return Err(WireError::Value { what: "MPA private data length", value });
        }
        Ok(Self::HEADER_LEN + usize::from(private_data))
    }

    /// Parses the frame that `bytes` begin with, which has [`Startup::len`] bytes.
    ///
    /// # Errors
    /// See [`Startup::need`]. Also if bytes are missing, or the private data has no room for the header that S announces.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let need = Self::need(bytes)?;
        let short = WireError::Short { what: "MPA start-up frame", need, have: bytes.len() };
        let (header, private_data) = bytes
            .get(..need)
            .and_then(|frame| frame.split_first_chunk::<{ Startup::HEADER_LEN }>())
            .ok_or(short)?;
        let kind =
            if header.starts_with(Kind::Request.key()) { Kind::Request } else { Kind::Reply };
        let flags = Flags(header[field::FLAGS]);
        let revision = header[field::REVISION];
        let mut startup = Self { kind, flags, revision, enhanced: None, private_data };
        if revision >= 2 && flags.has(Flags::ENHANCED) {
            let (enhanced, rest) = private_data.split_first_chunk().ok_or(WireError::Short {
                what: "MPA enhanced connection data",
                need: Enhanced::LEN,
                have: private_data.len(),
            })?;
            startup.enhanced = Some(Enhanced::from_bytes(*enhanced));
            startup.private_data = rest;
        }
        Ok(startup)
    }

    /// Returns the length on the wire, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a frame is never empty")]
    pub fn len(&self) -> usize {
        Self::HEADER_LEN + self.pd_length()
    }

    fn pd_length(&self) -> usize {
        self.enhanced.map_or(0, |_| Enhanced::LEN) + self.private_data.len()
    }

    /// Writes the frame at the start of `out`, and returns its length.
    ///
    /// # Panics
    /// If `out` is too short. [`Startup::MAX_LEN`] bytes suffice, unless there is more private data
    /// than a frame can have.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.len();
        let out = &mut out[..len];
        put(out, 0, *self.kind.key());
        let Flags(said) = self.flags;
        let flags = Flags(if self.revision >= 2 { said & !Flags::ENHANCED.0 } else { said });
        out[field::FLAGS] = flags.with(Flags::ENHANCED, self.enhanced.is_some()).0;
        out[field::REVISION] = self.revision;
        put16(out, field::PD_LENGTH, u16::try_from(self.pd_length()).unwrap_or(u16::MAX));
        let mut rest = &mut out[Self::HEADER_LEN..];
        if let Some(enhanced) = &self.enhanced {
            put(rest, 0, enhanced.to_bytes());
            rest = &mut rest[Enhanced::LEN..];
        }
        rest.copy_from_slice(self.private_data);
        len
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "request",
            Self::Reply => "reply",
        })
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(Flags, &str); 5] = [
            (Flags::MARKERS, "M"),
            (Flags::CRC, "C"),
            (Flags::REJECT, "R"),
            (Flags::ENHANCED, "S"),
            (Flags::SIW_GSO, "GSO"),
        ];
        if self.0 & 0xf8 == 0 {
            f.write_str("none")?;
        }
        let mut separator = "";
        for (_, name) in NAMES.into_iter().filter(|(flag, _)| self.has(*flag)) {
            write!(f, "{separator}{name}")?;
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Display for Enhanced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.peer_to_peer {
            f.write_str("peer-to-peer ")?;
        }
        let kinds = [(self.rtr_send, "send"), (self.rtr_write, "write"), (self.rtr_read, "read")];
        for (_, name) in kinds.into_iter().filter(|(on, _)| *on) {
            write!(f, "rtr {name} ")?;
        }
        for (name, depth, end) in [("ird", self.ird, " "), ("ord", self.ord, "")] {
            match depth {
                Self::NOT_NEGOTIATED => write!(f, "{name} not negotiated{end}")?,
                depth => write!(f, "{name} {depth}{end}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Startup<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, flags, revision, .. } = self;
        write!(f, "MPA {kind} revision {revision} flags {flags}")?;
        if let Some(enhanced) = &self.enhanced {
            write!(f, " {enhanced}")?;
        }
        write!(f, " private data {}", self.private_data.len())
    }
}
