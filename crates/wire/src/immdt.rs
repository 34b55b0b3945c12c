//! Immediate data: four bytes that go into the receiver's completion (IBTA 9.3.6).

use core::fmt;

use crate::WireError;

/// Immediate data, as the bytes of the wire: their order is the application's affair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDt(pub [u8; 4]);

header!(ImmDt, 4, "ImmDt");

impl ImmDt {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self(*b))
    }

    /// The header as it goes on the wire.
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
