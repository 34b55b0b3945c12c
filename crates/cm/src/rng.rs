//! Random numbers from a seed that the driver supplies.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

/// ChaCha20 (RFC 8439) as a generator: a peer that has seen any number of its outputs cannot predict the
/// others. A generator that is only statistically good would reveal its state with the first PSNs.
#[derive(Debug)]
pub(crate) struct Rng(ChaCha20Rng);

impl Rng {
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        Self(ChaCha20Rng::from_seed(seed))
    }
    /// Returns the next 32 random bits.
    pub(crate) fn next_u32(&mut self) -> u32 {
        self.0.next_u32()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first words of the key stream for a key and a nonce of zeros (RFC 8439, appendix A.1, test vector 1).
    const KEY_STREAM: [u8; 16] = [
        0x76, 0xb8, 0xe0, 0xad, 0xa0, 0xf1, 0x3d, 0x90, 0x40, 0x5d, 0x6a, 0xe5, 0x53, 0x86, 0xbd,
        0x28,
    ];

    #[test]
    fn outputs_are_the_key_stream_of_chacha20() {
        let mut rng = Rng::new([0; 32]);
        let words = KEY_STREAM.chunks_exact(4);
        for word in words.map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])) {
            assert_eq!(rng.next_u32(), word);
        }
    }

    #[test]
    fn every_bit_of_the_seed_changes_the_sequence() {
        let sequence = |seed| {
            let mut rng = Rng::new(seed);
            [(); 4].map(|()| rng.next_u32())
        };
        let zero = sequence([0; 32]);
        for bit in 0..256 {
            let mut seed = [0; 32];
            seed[bit / 8] = 1 << (bit % 8);
            assert_ne!(sequence(seed), zero, "bit {bit}");
        }
    }
}
