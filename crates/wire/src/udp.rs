//! UDP header (RFC 768).

use core::fmt;

use crate::WireError;
use crate::bytes::{get16, put16};

/// The destination port of RoCEv2.
pub const ROCE_PORT: u16 = 4791;

/// The UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// The source port; RoCEv2 puts a hash of the flow there.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Length of header and payload, in bytes.
    pub length: u16,
    /// Checksum, 0 for none.
    pub checksum: u16,
}

mod field {
    pub(super) const SRC_PORT: usize = 0;
    pub(super) const DST_PORT: usize = 2;
    pub(super) const LENGTH: usize = 4;
    pub(super) const CHECKSUM: usize = 6;
}

header!(Udp, 8, "UDP header");

impl Udp {
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        let length = get16(b, field::LENGTH);
        if usize::from(length) < Self::LEN {
            return Err(WireError::Value { what: "UDP length", value: length.into() });
        }
        Ok(Self {
            src_port: get16(b, field::SRC_PORT),
            dst_port: get16(b, field::DST_PORT),
            length,
            checksum: get16(b, field::CHECKSUM),
        })
    }

    /// Returns the header in wire format.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put16(&mut b, field::SRC_PORT, self.src_port);
        put16(&mut b, field::DST_PORT, self.dst_port);
        put16(&mut b, field::LENGTH, self.length);
        put16(&mut b, field::CHECKSUM, self.checksum);
        b
    }
}

impl fmt::Display for Udp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UDP {} > {} length {}", self.src_port, self.dst_port, self.length)
    }
}
