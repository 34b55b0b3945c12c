//! Immediate data: four bytes for the receiver's completion (IBTA 9.3.6).

use core::fmt;

use crate::WireError;

/// Immediate data, as bytes in wire order. Their byte order is up to the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDt(pub [u8; 4]);

header!(ImmDt, 4, "ImmDt");

impl ImmDt {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self(*b))
    }

    /// Returns the header in wire format.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        self.0
    }
}

impl fmt::Display for ImmDt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "imm {:#010x}", u32::from_be_bytes(self.0))
    }
}
