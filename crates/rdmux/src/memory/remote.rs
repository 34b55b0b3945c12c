//! Descriptions of memory that one side sends to the other.

use std::ops::Range;

use rdmux_wire::Rkey;

/// A peer's memory, as needed for WRITE, READ and atomics. [`Mr::remote`] makes it on the side that owns the memory.
/// It is sent as bytes and used in work requests on the other side.
///
/// [`Mr::remote`]: crate::Mr::remote
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMr {
    /// The start address.
    pub addr: u64,
    /// The key.
    pub rkey: Rkey,
    /// The length in bytes.
    pub len: u64,
}

impl RemoteMr {
    /// The length of [`to_bytes`](Self::to_bytes).
    pub const LEN: usize = 20;
    /// The length of [`to_short_bytes`](Self::to_short_bytes).
    pub const SHORT_LEN: usize = 16;

    /// Returns a part of the memory.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    #[must_use]
    pub fn slice(self, range: Range<u64>) -> Self {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.len, "{start}..{end} exceeds {self:?}");
        Self { addr: self.addr + start, len: end - start, ..self }
    }
    /// Returns the part from `offset` to the end.
    ///
    /// # Panics
    /// If the offset is not inside the memory.
    #[must_use]
    pub fn at(self, offset: u64) -> Self {
        self.slice(offset..self.len)
    }
    /// Encodes address, key and length, big-endian.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[..8].copy_from_slice(&self.addr.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        b[12..].copy_from_slice(&self.len.to_be_bytes());
        b
    }
    /// Decodes [`to_bytes`](Self::to_bytes). None if there are too few bytes. More may follow, because private data
    /// are padded with zeroes.
    pub fn from_bytes(b: &[u8]) -> Option<Self> {
        let (addr, b) = b.split_first_chunk()?;
        let (rkey, b) = b.split_first_chunk()?;
        let (len, _) = b.split_first_chunk()?;
        Some(Self {
            addr: u64::from_be_bytes(*addr),
            rkey: Rkey(u32::from_be_bytes(*rkey)),
            len: u64::from_be_bytes(*len),
        })
    }
    /// Encodes address, key and a length of four bytes, as `rping` and many others do. None for 4 GiB or more.
    pub fn to_short_bytes(self) -> Option<[u8; Self::SHORT_LEN]> {
        let mut b = [0; Self::SHORT_LEN];
        b[..8].copy_from_slice(&self.addr.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        b[12..].copy_from_slice(&u32::try_from(self.len).ok()?.to_be_bytes());
        Some(b)
    }
    /// Decodes [`to_short_bytes`](Self::to_short_bytes). None if there are too few bytes.
    pub fn from_short_bytes(b: &[u8]) -> Option<Self> {
        let (addr, b) = b.split_first_chunk()?;
        let (rkey, b) = b.split_first_chunk()?;
        let (len, _) = b.split_first_chunk()?;
        Some(Self {
            addr: u64::from_be_bytes(*addr),
            rkey: Rkey(u32::from_be_bytes(*rkey)),
            len: u32::from_be_bytes(*len).into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const R: RemoteMr = RemoteMr { addr: 0x0102_0304_0506_0708, rkey: Rkey(0x0a0b_0c0d), len: 100 };

    #[test]
    fn both_forms_round_trip_and_are_big_endian() {
        assert_eq!(RemoteMr::from_bytes(&R.to_bytes()), Some(R));
        let short = R.to_short_bytes().unwrap();
        assert_eq!(short, [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 0, 0, 0, 100]);
        assert_eq!(RemoteMr::from_short_bytes(&short), Some(R));
        assert_eq!(RemoteMr::from_bytes(&R.to_bytes()[..19]), None);
        assert_eq!(RemoteMr { len: 1 << 32, ..R }.to_short_bytes(), None);
    }

    #[test]
    fn a_slice_keeps_the_key_and_moves_the_address() {
        assert_eq!(R.slice(8..16), RemoteMr { addr: R.addr + 8, len: 8, ..R });
        assert_eq!(R.at(100).len, 0);
    }

    #[test]
    #[should_panic(expected = "exceeds")]
    fn slice_beyond_remote_region_panics() {
        let _ = R.slice(99..101);
    }
}
