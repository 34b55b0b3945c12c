//! Variant CRC of InfiniBand's link layer, which every hop recomputes (IBTA 7.8.2). RoCE has none.
//!
//! The evidence for this form: the library of Endace's DAG cards, which capture from InfiniBand
//! links, computes it in this way (reflected, 0xD008, ones at both ends). Its bytes are in the
//! order of the ICRC's, which the specification's sample packet shows: the same shift register
//! sends both, the coefficient of the highest power first. The sample's VCRC is not public.

use crate::crc::Crc16;

/// The length on the wire, in bytes.
pub const LEN: usize = 2;

/// Returns the variant CRC of a packet in wire format, least significant byte first. The packet is
/// given as pieces from the first byte of the LRH through the ICRC.
pub fn vcrc(pieces: &[&[u8]]) -> [u8; LEN] {
    let mut crc = Crc16::new();
    for piece in pieces {
        crc.update(piece);
    }
    crc.finish().to_le_bytes()
}

/// Returns whether `packet`, from the LRH through the VCRC, has a correct VCRC.
pub fn check(packet: &[u8]) -> bool {
    packet.split_last_chunk::<LEN>().is_some_and(|(covered, found)| vcrc(&[covered]) == *found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vcrc_detects_every_flipped_bit() {
        let mut packet = [0x5a_u8; 40];
        let (covered, end) = packet.split_at_mut(38);
        end.copy_from_slice(&vcrc(&[&covered[..7], &covered[7..]]));
        assert!(check(&packet));
        for bit in 0..packet.len() * 8 {
            let mut bad = packet;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!check(&bad), "bit {bit}");
        }
        assert!(!check(&[]));
    }
}
