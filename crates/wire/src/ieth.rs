//! Invalidate Extended Transport Header: the key that a SEND invalidates (IBTA 9.3.7).

use core::fmt;

use crate::{Rkey, WireError};

/// The invalidate extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth(pub Rkey);

header!(Ieth, 4, "IETH");

impl Ieth {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self(Rkey(u32::from_be_bytes(*b))))
    }

    /// Returns the header in wire format.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        self.0.0.to_be_bytes()
    }
}

impl fmt::Display for Ieth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalidate {}", self.0)
    }
}
