//! AtomicETH and AtomicAckETH: an atomic request and its result (IBTA 9.3.4 and 9.3.5.3).

use core::fmt;

use crate::bytes::{get32, get64, put32, put64};
use crate::{Rkey, WireError};

/// The atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// The address of 8 aligned bytes in the responder's region.
    pub va: u64,
    /// The responder's key.
    pub rkey: Rkey,
    /// The operand to swap in, or to add.
    pub swap_add: u64,
    /// The operand that memory must equal for a swap; FETCH_ADD ignores it.
    pub compare: u64,
}

/// The atomic acknowledge extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// The original value.
    pub original: u64,
}

mod field {
    pub(super) const VA: usize = 0;
    pub(super) const RKEY: usize = 8;
    pub(super) const SWAP_ADD: usize = 12;
    pub(super) const COMPARE: usize = 20;
}

header!(AtomicEth, 28, "AtomicETH");
header!(AtomicAckEth, 8, "AtomicAckETH");

impl AtomicEth {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self {
            va: get64(b, field::VA),
            rkey: Rkey(get32(b, field::RKEY)),
            swap_add: get64(b, field::SWAP_ADD),
            compare: get64(b, field::COMPARE),
        })
    }

    /// Returns the header in wire format.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put64(&mut b, field::VA, self.va);
        put32(&mut b, field::RKEY, self.rkey.0);
        put64(&mut b, field::SWAP_ADD, self.swap_add);
        put64(&mut b, field::COMPARE, self.compare);
        b
    }
}

impl AtomicAckEth {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self { original: u64::from_be_bytes(*b) })
    }

    /// Returns the header in wire format.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        self.original.to_be_bytes()
    }
}

impl fmt::Display for AtomicEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "va {:#x} rkey {} swap_add {:#x} compare {:#x}",
            self.va, self.rkey, self.swap_add, self.compare
        )
    }
}

impl fmt::Display for AtomicAckEth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "original {:#x}", self.original)
    }
}
