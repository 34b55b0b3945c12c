//! ACK Extended Transport Header: the outcome of a request (IBTA 9.3.5, syndromes in 9.7.5.2.1).

use core::fmt;

use crate::bytes::{get24, put24};
use crate::{RnrTimer, WireError};

/// The ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// The kind of acknowledgement.
    pub syndrome: Syndrome,
    /// The message sequence number: the number of messages completed so far, modulo 2^24.
    pub msn: u32,
}

/// The kind of acknowledgement: a byte whose bits 6:5 are the kind and 4:0 a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// A positive acknowledgement.
    Ack {
        /// The code of end-to-end flow control credits; [`Syndrome::UNLIMITED`] without flow control.
        credits: u8,
    },
    /// No receive work request was available: retry after this time.
    Rnr(RnrTimer),
    /// A negative acknowledgement.
    Nak(NakCode),
    /// A value that the specification reserves, bit 7 included.
    Reserved(u8),
}

/// The reason of a negative acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A packet is missing: restart from the PSN of this acknowledgement.
    PsnSequence,
    /// The request is malformed, or not allowed by this queue pair.
    InvalidRequest,
    /// The key, range or access right is wrong.
    RemoteAccess,
    /// The responder failed.
    RemoteOperational,
    /// A reliable datagram has an invalid destination.
    InvalidRdRequest,
    /// A code, 5 to 31, that the specification reserves.
    Reserved(u8),
}

impl NakCode {
    /// Returns the code in the low five bits of a syndrome.
    pub const fn from_code(code: u8) -> Self {
        match code & 0x1f {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperational,
            4 => Self::InvalidRdRequest,
            other => Self::Reserved(other),
        }
    }

    /// Returns the low five bits of a syndrome.
    pub const fn code(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRdRequest => 4,
            Self::Reserved(other) => other & 0x1f,
        }
    }
}

impl Syndrome {
    /// The credit code of a responder without end-to-end flow control.
    pub const UNLIMITED: u8 = 0x1f;
    /// An ACK without credits, as sent by a responder without flow control.
    pub const ACK: Self = Self::Ack { credits: Self::UNLIMITED };

    /// Returns the syndrome of a byte. Every byte has one, which may be [`Syndrome::Reserved`].
    pub const fn from_byte(byte: u8) -> Self {
        match byte >> 5 {
            0 => Self::Ack { credits: byte & 0x1f },
            1 => Self::Rnr(RnrTimer::new(byte)),
            3 => Self::Nak(NakCode::from_code(byte)),
            _ => Self::Reserved(byte),
        }
    }

    /// Returns the byte of the syndrome.
    pub const fn byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::Rnr(timer) => 0x20 | timer.code(),
            Self::Nak(code) => 0x60 | code.code(),
            Self::Reserved(byte) => byte,
        }
    }
}

mod field {
    pub(super) const SYNDROME: usize = 0;
    pub(super) const MSN: usize = 1;
}

header!(Aeth, 4, "AETH");

impl Aeth {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self { syndrome: Syndrome::from_byte(b[field::SYNDROME]), msn: get24(b, field::MSN) })
    }

    /// Returns the header in wire format, with the low 24 bits of the MSN.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[field::SYNDROME] = self.syndrome.byte();
        put24(&mut b, field::MSN, self.msn);
        b
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PsnSequence => "PSN sequence error",
            Self::InvalidRequest => "invalid request",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperational => "remote operational error",
            Self::InvalidRdRequest => "invalid RD request",
            Self::Reserved(code) => return write!(f, "reserved code {code}"),
        })
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack { credits: Self::UNLIMITED } => f.write_str("ACK"),
            Self::Ack { credits } => write!(f, "ACK credits {credits}"),
            Self::Rnr(timer) => {
                let us = timer.duration().as_micros();
                write!(f, "RNR NAK {}.{:02} ms", us / 1000, us % 1000 / 10)
            }
            Self::Nak(code) => write!(f, "NAK {code}"),
            Self::Reserved(byte) => write!(f, "reserved syndrome {byte:#04x}"),
        }
    }
}

impl fmt::Display for Aeth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} msn {}", self.syndrome, self.msn)
    }
}
