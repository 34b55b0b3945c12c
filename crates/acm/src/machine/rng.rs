//! Numbers from a seed that remote endpoints cannot predict.

use core::hash::Hasher as _;

use siphasher::sip::SipHasher13;

/// A keyed hash of a counter.
#[derive(Debug)]
pub(super) struct Rng {
    seed: [u8; 16],
    counter: u64,
}

impl Rng {
    pub(super) fn new(seed: [u8; 16]) -> Self {
        Self { seed, counter: 0 }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.counter += 1;
        let mut hasher = SipHasher13::new_with_key(&self.seed);
        hasher.write_u64(self.counter);
        hasher.finish()
    }

    /// Returns a key for a cache.
    pub(super) fn key(&mut self) -> [u8; 16] {
        (u128::from(self.next()) << 64 | u128::from(self.next())).to_be_bytes()
    }
}
