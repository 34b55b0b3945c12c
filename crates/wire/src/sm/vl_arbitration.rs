//! VLArbitrationTable: the arbitration between virtual lanes (IBTA 14.2.5.9). The upper half of the
//! modifier is the block, 1 and 2 for low priority, 3 and 4 for high, and the lower half is the port.

use core::fmt;

use crate::layout::{Code, layout};

layout! {
    /// Half a table.
    VlArbitration("VLArbitrationTable", 64) {
        /// The entries in order; those without weight are skipped.
        entries: [VlArbEntry; 32] = 0;
    }
}

/// A virtual lane and how much it may send in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VlArbEntry {
    /// Reserved, 4 bits.
    pub reserved: u8,
    /// The lane, 4 bits.
    pub vl: u8,
    /// The amount, in units of 64 bytes.
    pub weight: u8,
}

impl Code for VlArbEntry {
    const BITS: usize = 16;
    fn from_raw(raw: u64) -> Self {
        let [.., vl, weight] = raw.to_be_bytes();
        Self { reserved: vl >> 4, vl: vl & 0xf, weight }
    }
    fn raw(self) -> u64 {
        u16::from_be_bytes([self.reserved << 4 | self.vl & 0xf, self.weight]).into()
    }
}

/// Prints `vl:weight`
impl fmt::Display for VlArbEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.vl, self.weight)
    }
}
