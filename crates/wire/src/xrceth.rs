//! XRC Extended Transport Header: the shared receive queue of a request (IBTA annex A14).

use core::fmt;

use crate::WireError;
use crate::bytes::{get24, put24};

/// The XRC extended transport header. All packets of requests have it, middle and last ones
/// included. Acknowledgements and READ responses do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcEth {
    /// The number of the shared receive queue, 24 bits.
    pub srqn: u32,
}

header!(XrcEth, 4, "XRCETH");

impl XrcEth {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self { srqn: get24(b, 1) })
    }

    /// Returns the header in wire format, with the low 24 bits of the number.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put24(&mut b, 1, self.srqn);
        b
    }
}

impl fmt::Display for XrcEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "srqn {:#08x}", self.srqn)
    }
}
