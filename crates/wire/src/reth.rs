//! RDMA Extended Transport Header: the responder's memory for a WRITE or READ (IBTA 9.3.3).

use core::fmt;

use crate::bytes::{get32, get64, put32, put64};
use crate::{Rkey, WireError};

/// The RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// The address of the first byte, in the responder's region.
    pub va: u64,
    /// The responder's key.
    pub rkey: Rkey,
    /// The length of the whole message in bytes, up to 2^31.
    pub dma_len: u32,
}

mod field {
    pub(super) const VA: usize = 0;
    pub(super) const RKEY: usize = 8;
    pub(super) const DMA_LEN: usize = 12;
}

header!(Reth, 16, "RETH");

impl Reth {
    #[expect(clippy::unnecessary_wraps, reason = "the shape that header! asks for")]
    fn from_bytes(b: &[u8; Self::LEN]) -> Result<Self, WireError> {
        Ok(Self {
            va: get64(b, field::VA),
            rkey: Rkey(get32(b, field::RKEY)),
            dma_len: get32(b, field::DMA_LEN),
        })
    }

    /// Returns the header in wire format.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put64(&mut b, field::VA, self.va);
        put32(&mut b, field::RKEY, self.rkey.0);
        put32(&mut b, field::DMA_LEN, self.dma_len);
        b
    }
}

impl fmt::Display for Reth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "va {:#x} rkey {} len {}", self.va, self.rkey, self.dma_len)
    }
}
