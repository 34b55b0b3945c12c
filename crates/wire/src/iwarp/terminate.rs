//! Terminate: the last message of an end that detected a fault, which it reports (RFC 5040, section 4.8).
//!
//! It is an untagged segment of queue 2. [`Fault`] is the table of the codes in RFC 5040, 5041,
//! 5044 and 6581. RFC 7306 adds no codes: its operations fail with these.

use core::fmt;

use super::ddp::Header;
use super::rdmap::ReadRequest;
use crate::WireError;
use crate::bytes::{get16, put16};

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = ($layer:literal, $etype:literal, $code:literal), $text:literal;)*) => {
        /// A fault, and the layer that detected it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Fault {
            $($(#[$doc])* $name,)*
            /// A code that no RFC defines.
            Other {
                /// The layer, 4 bits.
                layer: u8,
                /// The error type, 4 bits.
                etype: u8,
                /// The error code.
                code: u8,
            },
        }

        impl Fault {
            /// All defined faults, by layer, type and code.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns the fault with these numbers.
            pub const fn new(layer: u8, etype: u8, code: u8) -> Self {
                match (layer & 0x0f, etype & 0x0f, code) {
                    $(($layer, $etype, $code) => Self::$name,)*
                    (layer, etype, code) => Self::Other { layer, etype, code },
                }
            }

            /// Returns layer, error type and error code.
            pub const fn numbers(self) -> (u8, u8, u8) {
                match self {
                    $(Self::$name => ($layer, $etype, $code),)*
                    Self::Other { layer, etype, code } => (layer & 0x0f, etype & 0x0f, code),
                }
            }
        }

        impl fmt::Display for Fault {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name => f.write_str($text),)*
                    Self::Other { layer, etype, code } => {
                        write!(f, "layer {layer} type {etype} code {code:#04x}")
                    }
                }
            }
        }
    };
}

faults! {
    /// RDMAP: this end failed.
    RdmapCatastrophic = (0, 0, 0x00), "RDMAP local catastrophic error";
    /// RDMAP: the STag does not exist.
    RdmapStag = (0, 1, 0x00), "RDMAP protection error: invalid STag";
    /// RDMAP: the range exceeds the memory.
    RdmapBounds = (0, 1, 0x01), "RDMAP protection error: base or bounds violation";
    /// RDMAP: the memory does not allow the access.
    RdmapAccess = (0, 1, 0x02), "RDMAP protection error: access violation";
    /// RDMAP: the memory is not associated with this stream.
    RdmapNotAssociated = (0, 1, 0x03), "RDMAP protection error: STag of another stream";
    /// RDMAP: the range exceeds the address space.
    RdmapWrap = (0, 1, 0x04), "RDMAP protection error: offset wraps";
    /// RDMAP: the STag cannot be invalidated.
    RdmapProtectionInvalidate = (0, 1, 0x09), "RDMAP protection error: STag cannot be invalidated";
    /// RDMAP: an unspecified protection fault.
    RdmapProtection = (0, 1, 0xff), "RDMAP protection error";
    /// RDMAP: the version is wrong.
    RdmapVersion = (0, 2, 0x05), "RDMAP operation error: invalid version";
    /// RDMAP: the opcode does not exist, or is unexpected.
    RdmapOpcode = (0, 2, 0x06), "RDMAP operation error: unexpected opcode";
    /// RDMAP: this stream failed.
    RdmapStreamCatastrophic = (0, 2, 0x07), "RDMAP operation error: catastrophic, localized to the stream";
    /// RDMAP: all streams failed.
    RdmapGlobalCatastrophic = (0, 2, 0x08), "RDMAP operation error: catastrophic, global";
    /// RDMAP: the STag that a Send is to invalidate cannot be invalidated.
    RdmapInvalidate = (0, 2, 0x09), "RDMAP operation error: STag cannot be invalidated";
    /// RDMAP: an unspecified fault of an operation.
    RdmapOperation = (0, 2, 0xff), "RDMAP operation error";
    /// DDP: this end failed.
    DdpCatastrophic = (1, 0, 0x00), "DDP local catastrophic error";
    /// DDP, tagged: the STag does not exist.
    DdpTaggedStag = (1, 1, 0x00), "DDP tagged: invalid STag";
    /// DDP, tagged: the range exceeds the memory.
    DdpTaggedBounds = (1, 1, 0x01), "DDP tagged: base or bounds violation";
    /// DDP, tagged: the memory is not associated with this stream.
    DdpTaggedNotAssociated = (1, 1, 0x02), "DDP tagged: STag of another stream";
    /// DDP, tagged: the range exceeds the address space.
    DdpTaggedWrap = (1, 1, 0x03), "DDP tagged: offset wraps";
    /// DDP, tagged: the version is wrong.
    DdpTaggedVersion = (1, 1, 0x04), "DDP tagged: invalid version";
    /// DDP, untagged: the queue does not exist.
    DdpUntaggedQueue = (1, 2, 0x01), "DDP untagged: invalid queue number";
    /// DDP, untagged: no buffer is posted.
    DdpUntaggedNoBuffer = (1, 2, 0x02), "DDP untagged: no buffer";
    /// DDP, untagged: the message sequence number is out of range.
    DdpUntaggedMsn = (1, 2, 0x03), "DDP untagged: message sequence number out of range";
    /// DDP, untagged: the message offset is wrong.
    DdpUntaggedOffset = (1, 2, 0x04), "DDP untagged: invalid message offset";
    /// DDP, untagged: the message is longer than the buffer.
    DdpUntaggedTooLong = (1, 2, 0x05), "DDP untagged: message too long for the buffer";
    /// DDP, untagged: the version is wrong.
    DdpUntaggedVersion = (1, 2, 0x06), "DDP untagged: invalid version";
    /// MPA: TCP lost the connection.
    MpaClosed = (2, 0, 0x01), "MPA: TCP connection closed, terminated or lost";
    /// MPA: the CRC is wrong.
    MpaCrc = (2, 0, 0x02), "MPA: CRC error";
    /// MPA: marker and length do not match.
    MpaMarker = (2, 0, 0x03), "MPA: marker and length mismatch";
    /// MPA: the start-up frame is invalid.
    MpaStartup = (2, 0, 0x04), "MPA: invalid request or reply";
    /// MPA: this end failed (RFC 6581, section 8).
    MpaCatastrophic = (2, 0, 0x05), "MPA: local catastrophic error";
    /// MPA: the peer serves fewer RDMA Reads than needed (RFC 6581, section 8).
    MpaInsufficientIrd = (2, 0, 0x06), "MPA: insufficient IRD";
    /// MPA: the ends support no common ready-to-receive frame (RFC 6581, section 8).
    MpaNoMatchingRtr = (2, 0, 0x07), "MPA: no matching RTR option";
}

/// The layout of the fields in the first four bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// The layout of RFC 5040: high bits first.
    #[default]
    Rfc,
    /// The layout of the kernel's siw on a little-endian machine: layer in the low half of the
    /// first byte, M, D and R in the lowest bits of the third.
    Siw,
}

/// The contents of a Terminate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate<'a> {
    /// The fault.
    pub fault: Fault,
    /// The layout of the received message. [`Terminate::emit`] uses that of the RFC.
    pub layout: Layout,
    /// M: the length of the faulty segment, in bytes.
    pub segment_len: Option<u16>,
    /// D: the DDP header of this segment, as received; empty if absent.
    pub ddp_header: &'a [u8],
    /// R: the faulty [`super::rdmap::ReadRequest`], as received; empty if absent.
    pub rdmap_header: &'a [u8],
}

const SEGMENT_LEN: u8 = 0x80;
const DDP_HEADER: u8 = 0x40;
const RDMAP_HEADER: u8 = 0x20;

impl<'a> Terminate<'a> {
    /// The length without headers, in bytes.
    pub const CONTROL_LEN: usize = 4;
    /// The maximum length, in bytes.
    pub const MAX_LEN: usize = Self::CONTROL_LEN + 2 + Header::MAX_LEN + ReadRequest::LEN;

    /// Creates a Terminate that only reports a fault.
    pub const fn new(fault: Fault) -> Self {
        Self { fault, layout: Layout::Rfc, segment_len: None, ddp_header: &[], rdmap_header: &[] }
    }

    /// Adds the length and the DDP header of the faulty segment.
    #[must_use]
    pub const fn of(self, segment_len: u16, header: &'a [u8]) -> Self {
        Self { segment_len: Some(segment_len), ddp_header: header, ..self }
    }

    /// Parses the contents. Truncated headers are returned as far as they go.
    ///
    /// # Errors
    /// When there are fewer than four bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (&[first, code, third, _], rest) =
            bytes.split_first_chunk().ok_or(WireError::Short {
                what: "Terminate",
                need: Self::CONTROL_LEN,
                have: bytes.len(),
            })?;
        let (layout, first, bits) = untangle(first, code, third);
        let mut terminate = Self { layout, ..Self::new(Fault::new(first >> 4, first, code)) };
        let mut rest = rest;
        if bits & (SEGMENT_LEN | DDP_HEADER) != 0 {
            let Some((len, behind)) = rest.split_first_chunk::<2>() else { return Ok(terminate) };
            terminate.segment_len = (bits & SEGMENT_LEN != 0).then_some(get16(len, 0));
            rest = behind;
        }
        if let (true, Some(first)) = (bits & DDP_HEADER != 0, rest.first()) {
            (terminate.ddp_header, rest) = rest.split_at(Header::len_of(*first).min(rest.len()));
        }
        if bits & RDMAP_HEADER != 0 {
            terminate.rdmap_header = &rest[..rest.len().min(ReadRequest::LEN)];
        }
        Ok(terminate)
    }

    /// Reinterprets the fault for an established connection. MPA's faults 5 and 6 only occur before
    /// that (RFC 6581, section 8), so they are RDMAP faults from siw. siw includes no headers with
    /// these, so the layout does not reveal it.
    #[must_use]
    pub const fn on_open_stream(self) -> Self {
        let fault = match self.fault {
            Fault::MpaCatastrophic => Fault::RdmapVersion,
            Fault::MpaInsufficientIrd => Fault::RdmapOpcode,
            _ => return self,
        };
        let bare = self.segment_len.is_none()
            && self.ddp_header.is_empty()
            && self.rdmap_header.is_empty();
        match self.layout {
            Layout::Rfc if bare => Self { fault, layout: Layout::Siw, ..self },
            _ => self,
        }
    }

    /// Returns the length on the wire, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a Terminate is never empty")]
    pub const fn len(&self) -> usize {
        let segment_len =
            if self.segment_len.is_some() || !self.ddp_header.is_empty() { 2 } else { 0 };
        Self::CONTROL_LEN + segment_len + self.ddp_header.len() + self.rdmap_header.len()
    }

    /// Writes the contents at the start of `out`, and returns their length.
    ///
    /// # Panics
    /// If `out` is too short. [`Terminate::MAX_LEN`] bytes suffice for headers that were parsed.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.len();
        let out = &mut out[..len];
        let (layer, etype, code) = self.fault.numbers();
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        let bits = bit(self.segment_len.is_some(), SEGMENT_LEN)
            | bit(!self.ddp_header.is_empty(), DDP_HEADER)
            | bit(!self.rdmap_header.is_empty(), RDMAP_HEADER);
        out[..Self::CONTROL_LEN].copy_from_slice(&[layer << 4 | etype, code, bits, 0]);
        let mut at = Self::CONTROL_LEN;
        if bits & (SEGMENT_LEN | DDP_HEADER) != 0 {
            put16(out, at, self.segment_len.unwrap_or_default());
            at += 2;
        }
        let (ddp, rdmap) = out[at..].split_at_mut(self.ddp_header.len());
        ddp.copy_from_slice(self.ddp_header);
        rdmap.copy_from_slice(self.rdmap_header);
        len
    }
}

/// Returns the layout, and the first and third byte in the RFC's layout. The lower five bits of the
/// third are reserved and the upper three are not. So if only lower ones are set, siw wrote the
/// message. If none is set, siw wrote it if only its layout gives a defined fault.
const fn untangle(first: u8, code: u8, third: u8) -> (Layout, u8, u8) {
    let swapped = first.rotate_left(4);
    let siw = match third {
        0 => !is_known(first, code) && is_known(swapped, code),
        bits => bits & 0xe0 == 0,
    };
    if siw {
        (Layout::Siw, swapped, (third & 1) << 7 | (third & 2) << 5 | (third & 4) << 3)
    } else {
        (Layout::Rfc, first, third)
    }
}

const fn is_known(first: u8, code: u8) -> bool {
    !matches!(Fault::new(first >> 4, first, code), Fault::Other { .. })
}

impl fmt::Display for Terminate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.fault)?;
        if self.layout == Layout::Siw {
            f.write_str(" (fields in siw's order)")?;
        }
        if let Some(len) = self.segment_len {
            write!(f, " segment of {len}")?;
        }
        if !self.ddp_header.is_empty() {
            match Header::parse(self.ddp_header) {
                Ok(header) => write!(f, ": {header}")?,
                Err(error) => write!(f, ": {error}")?,
            }
        }
        if let Ok(request) = super::rdmap::ReadRequest::parse(self.rdmap_header) {
            write!(f, " {request}")?;
        }
        Ok(())
    }
}
