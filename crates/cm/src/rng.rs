//! Random numbers from a seed that the driver gives.

/// SplitMix64 (Steele, Lea, Flood 2014): small, and good enough for numbers whose secrecy rests on
/// the seed.
#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// The upper half, which is the better one.
    pub(crate) fn next_u32(&mut self) -> u32 {
        u32::try_from(self.next() >> 32).unwrap_or_default()
    }
}
