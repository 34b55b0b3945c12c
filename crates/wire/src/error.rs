//! Why bytes are not what they should be.

/// What a decoder found wrong. Small and `Copy`, since hostile packets must be cheap to refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes end before the header does.
    #[error("{what} needs {need} bytes, {have} are there")]
    Short {
        /// The header or message.
        what: &'static str,
        /// Its length in bytes.
        need: usize,
        /// The bytes that are there.
        have: usize,
    },
    /// A field has a value that the format does not allow.
    #[error("{what} cannot be {value:#x}")]
    Value {
        /// The field.
        what: &'static str,
        /// What it says.
        value: u32,
    },
    /// The transport header version is not 0 (IBTA 9.2.4).
    #[error("transport header version {0}, not 0")]
    Version(u8),
    /// No transport has such an operation, or one that is known by name only.
    #[error("{0} is not an operation that can be decoded")]
    Opcode(crate::Opcode),
    /// The BTH's pad count is greater than what follows the headers.
    #[error("{pad} pad bytes, but {have} bytes of payload")]
    Pad {
        /// From the BTH, 0 to 3.
        pad: u8,
        /// Payload and pad as received, in bytes.
        have: usize,
    },
    /// A length field says more than there is.
    #[error("{what} says {says} bytes, {have} are there")]
    Truncated {
        /// The header whose length field it is.
        what: &'static str,
        /// What the field says.
        says: usize,
        /// The bytes that are there.
        have: usize,
    },
    /// A packet's invariant CRC is not that of its bytes (IBTA 7.8.1).
    #[error("ICRC {found:08x}, not {right:08x}")]
    Icrc {
        /// As received, in the order of the wire.
        found: u32,
        /// As computed, in the order of the wire.
        right: u32,
    },
    /// A packet's variant CRC is not that of its bytes (IBTA 7.8.2).
    #[error("VCRC {found:04x}, not {right:04x}")]
    Vcrc {
        /// As received, in the order of the wire.
        found: u16,
        /// As computed, in the order of the wire.
        right: u16,
    },
    /// The DDP version is not 1 (RFC 5041, section 4.1).
    #[error("DDP version {version}, not 1")]
    DdpVersion {
        /// Whether the segment is tagged, on which the answer depends.
        tagged: bool,
        /// From the control field, 0 to 3.
        version: u8,
    },
    /// The RDMAP version is not 1 (RFC 5040, section 4.1).
    #[error("RDMAP version {0}, not 1")]
    RdmapVersion(u8),
    /// A frame's CRC is not that of its bytes (RFC 5044, section 4.4).
    #[error("MPA CRC {found:#010x}, not {right:#010x}")]
    Crc {
        /// As received.
        found: u32,
        /// As computed.
        right: u32,
    },
    /// A marker does not point to the start of its frame (RFC 5044, section 4.3).
    #[error("MPA marker points {found} bytes back, not {right}")]
    Marker {
        /// As received.
        found: u16,
        /// Where the frame starts.
        right: u16,
    },
}
