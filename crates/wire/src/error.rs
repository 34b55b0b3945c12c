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
}
