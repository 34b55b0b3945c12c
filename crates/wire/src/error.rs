//! The errors of decoders.

/// A decoding error. Small and `Copy`, since rejecting hostile packets must be cheap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end before the header does.
    #[error("{what} needs {need} bytes, got {have}")]
    Short {
        /// The header or message.
        what: &'static str,
        /// The length that it needs, in bytes.
        need: usize,
        /// The bytes available.
        have: usize,
    },
    /// A field has a value that the format does not allow.
    #[error("{what} cannot be {value:#x}")]
    Value {
        /// The field.
        what: &'static str,
        /// The value.
        value: u32,
    },
    /// The transport header version is not 0 (IBTA 9.2.4).
    #[error("transport header version {0}, not 0")]
    Version(u8),
    /// The operation does not exist, or is known by name only.
    #[error("cannot decode {0}: unsupported operation")]
    Opcode(crate::Opcode),
    /// The BTH's pad count exceeds the bytes after the headers.
    #[error("{pad} pad bytes, but {have} bytes of payload")]
    Pad {
        /// The pad count, 0 to 3.
        pad: u8,
        /// Payload and pad as received, in bytes.
        have: usize,
    },
    /// A length field exceeds the bytes available.
    #[error("{what} claims {says} bytes, got {have}")]
    Truncated {
        /// The header that contains the length field.
        what: &'static str,
        /// The value of the field.
        says: usize,
        /// The bytes available.
        have: usize,
    },
    /// A packet's invariant CRC is wrong (IBTA 7.8.1).
    #[error("ICRC {found:08x}, expected {right:08x}")]
    Icrc {
        /// The received CRC, in wire order.
        found: u32,
        /// The computed CRC, in wire order.
        right: u32,
    },
    /// A packet's variant CRC is wrong (IBTA 7.8.2).
    #[error("VCRC {found:04x}, expected {right:04x}")]
    Vcrc {
        /// The received CRC, in wire order.
        found: u16,
        /// The computed CRC, in wire order.
        right: u16,
    },
    /// The DDP version is not 1 (RFC 5041, section 4.1).
    #[error("DDP version {version}, not 1")]
    DdpVersion {
        /// Whether the segment is tagged, which determines the Terminate.
        tagged: bool,
        /// The version in the control field, 0 to 3.
        version: u8,
    },
    /// The RDMAP version is not 1 (RFC 5040, section 4.1).
    #[error("RDMAP version {0}, not 1")]
    RdmapVersion(u8),
    /// A frame's CRC is wrong (RFC 5044, section 4.4).
    #[error("MPA CRC {found:#010x}, expected {right:#010x}")]
    Crc {
        /// The received CRC.
        found: u32,
        /// The computed CRC.
        right: u32,
    },
    /// A marker does not point to the start of its frame (RFC 5044, section 4.3).
    #[error("MPA marker points {found} bytes back, not {right}")]
    Marker {
        /// The received pointer.
        found: u16,
        /// The correct pointer.
        right: u16,
    },
}
