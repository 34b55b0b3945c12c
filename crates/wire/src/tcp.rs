//! TCP header, with the fields needed to follow streams in a capture (RFC 9293, section 3.1).

use core::fmt;

use crate::WireError;
use crate::bytes::{get16, get32, head, put16, put32};

/// A TCP header. Options are counted in the length, and skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// The sequence number of the first byte, or of SYN.
    pub seq: u32,
    /// The next sequence number that the sender expects, if ACK is set.
    pub ack: u32,
    /// Length of the header with its options in bytes, 20 to 60.
    pub header_len: u8,
    /// The control bits.
    pub flags: Flags,
    /// The window, not scaled.
    pub window: u16,
}

/// Control bits of a TCP header, the lower eight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// The sender sends no more data.
    pub const FIN: Self = Self(0x01);
    /// The segment is the first of its direction.
    pub const SYN: Self = Self(0x02);
    /// The connection is reset.
    pub const RST: Self = Self(0x04);
    /// The data is to be delivered without waiting for more.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement number is valid.
    pub const ACK: Self = Self(0x10);

    /// Returns whether all bits of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

mod field {
    pub(super) const SRC_PORT: usize = 0;
    pub(super) const DST_PORT: usize = 2;
    pub(super) const SEQ: usize = 4;
    pub(super) const ACK: usize = 8;
    pub(super) const DATA_OFFSET: usize = 12;
    pub(super) const FLAGS: usize = 13;
    pub(super) const WINDOW: usize = 14;
}

impl Tcp {
    /// The length on the wire without options, in bytes.
    pub const LEN: usize = 20;

    /// Parses the header at the start of `bytes`. Options need not be present.
    ///
    /// # Errors
    /// If there are too few bytes, or the header length is invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = head::<{ Self::LEN }>(bytes, "TCP header")?;
        let header_len = (b[field::DATA_OFFSET] >> 4) * 4;
        if usize::from(header_len) < Self::LEN {
            return Err(WireError::Value { what: "TCP header length", value: header_len.into() });
        }
        Ok(Self {
            src_port: get16(b, field::SRC_PORT),
            dst_port: get16(b, field::DST_PORT),
            seq: get32(b, field::SEQ),
            ack: get32(b, field::ACK),
            header_len,
            flags: Flags(b[field::FLAGS]),
            window: get16(b, field::WINDOW),
        })
    }

    /// Returns the header in wire format, without options and checksum.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put16(&mut b, field::SRC_PORT, self.src_port);
        put16(&mut b, field::DST_PORT, self.dst_port);
        put32(&mut b, field::SEQ, self.seq);
        put32(&mut b, field::ACK, self.ack);
        b[field::DATA_OFFSET] = 5 << 4;
        b[field::FLAGS] = self.flags.0;
        put16(&mut b, field::WINDOW, self.window);
        b
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(Flags, &str); 5] = [
            (Flags::SYN, "SYN"),
            (Flags::FIN, "FIN"),
            (Flags::RST, "RST"),
            (Flags::PSH, "PSH"),
            (Flags::ACK, "ACK"),
        ];
        let mut separator = "";
        for (_, name) in NAMES.into_iter().filter(|(flag, _)| self.has(*flag)) {
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        Ok(())
    }
}

impl fmt::Display for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TCP {} > {} [{}]", self.src_port, self.dst_port, self.flags)
    }
}
