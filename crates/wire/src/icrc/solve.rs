//! Recovering the IPv4 Identification from a received ICRC.
//!
//! The ICRC covers the Identification, but the owner of a UDP socket does not see it. The CRC is linear: the difference
//! between the packet's CRC for Identification 0 and the received one is the CRC of the 16 unknown bits alone, multiplied
//! by a power of x that depends on the number of bytes after them. Divided by this power, a valid packet leaves 16 bits,
//! the Identification, and 16 zeros. These zeros are the remaining check: an invalid packet passes once in 65,536.
//!
//! Polynomials over GF(2) are reflected here, as in the CRC: bit 31 is the coefficient of x^0.

use super::Icrc;

/// CRC-32's polynomial without its x^32, reflected.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// Returns the Identification with which a packet is valid, given the ICRC computed for
/// Identification 0 and the received one. Returns none if there is no such Identification (or
/// `udp_len` is too small). `udp_len` is the length in the UDP header.
#[inline]
pub fn solve_ipv4_id(
    computed: [u8; Icrc::LEN],
    received: [u8; Icrc::LEN],
    udp_len: u16,
) -> Option<u16> {
    // Flags, TTL, protocol, checksum and the addresses; then the UDP datagram, less the ICRC.
    solve_id(computed, received, 14 + usize::from(udp_len).checked_sub(Icrc::LEN)?)
}

/// Like [`solve_ipv4_id`], with the number of covered bytes that follow the Identification.
pub fn solve_id(
    computed: [u8; Icrc::LEN],
    received: [u8; Icrc::LEN],
    behind: usize,
) -> Option<u16> {
    let difference = u32::from_le_bytes(computed) ^ u32::from_le_bytes(received);
    if difference == 0 {
        return Some(0);
    }
    // The register also shifts by 8 for each of the two bytes themselves.
    let [low, high] = u16::try_from(behind.checked_add(2)?).ok()?.to_le_bytes();
    let id = multiply(difference, INVERSE_LOW[usize::from(low)]);
    let id = multiply(id, INVERSE_HIGH[usize::from(high)]);
    u16::try_from(id).ok().map(u16::swap_bytes)
}

/// x^(-8 n) for n below 256, and x^(-8 * 256 n).
static INVERSE_LOW: [u32; 256] = powers(divide_by_x8(ONE));
static INVERSE_HIGH: [u32; 256] = powers(multiply(INVERSE_LOW[255], INVERSE_LOW[1]));

/// x^0.
const ONE: u32 = 1 << 31;

/// `v` x^32 by bytes: the CRC of a byte followed by 3, 2, 1 and 0 zero bytes.
static TIMES_X32: [[u32; 256]; 4] = {
    let mut tables = [[0; 256]; 4];
    let mut i = 0;
    while i < 256_u32 {
        let mut v = i;
        let mut shifts = 0;
        while shifts < 4 {
            let mut bit = 0;
            while bit < 8 {
                v = times_x(v);
                bit += 1;
            }
            tables[3 - shifts][i as usize] = v;
            shifts += 1;
        }
        i += 1;
    }
    tables
};

const fn times_x(v: u32) -> u32 {
    v >> 1 ^ if v & 1 == 1 { POLYNOMIAL } else { 0 }
}

const fn divide_by_x8(mut v: u32) -> u32 {
    let mut bit = 0;
    while bit < 8 {
        v = if v >> 31 == 1 { (v ^ POLYNOMIAL) << 1 | 1 } else { v << 1 };
        bit += 1;
    }
    v
}

const fn powers(base: u32) -> [u32; 256] {
    let mut table = [ONE; 256];
    let mut i = 1;
    while i < 256 {
        table[i] = multiply(table[i - 1], base);
        i += 1;
    }
    table
}

/// Returns the product of two polynomials, modulo CRC-32's.
const fn multiply(a: u32, b: u32) -> u32 {
    // All 63 coefficients of the product, four of `b` at a time; bit 63 is x^0.
    let a = (a as u64) << 32;
    let mut multiples = [0; 16];
    let mut i = 8_usize;
    let mut multiple = a;
    while i > 0 {
        multiples[i] = multiple;
        multiple >>= 1;
        i /= 2;
    }
    let mut i = 1_usize;
    while i < 16 {
        let lowest = i & i.wrapping_neg();
        multiples[i] = multiples[lowest] ^ multiples[i ^ lowest];
        i += 1;
    }
    let mut product = 0_u64;
    let mut shift = 0;
    while shift < 32 {
        product ^= multiples[(b >> (28 - shift) & 0xf) as usize] >> shift;
        shift += 4;
    }
    // The product's upper half, x^32 and more, is in the low bits.
    let [.., w, x, y, z] = product.to_be_bytes();
    let reduced = TIMES_X32[0][z as usize]
        ^ TIMES_X32[1][y as usize]
        ^ TIMES_X32[2][x as usize]
        ^ TIMES_X32[3][w as usize];
    (product >> 32) as u32 ^ reduced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32_polynomial_multiplication_and_division_by_x8() {
        assert_eq!(multiply(ONE, 0x1234_5678), 0x1234_5678);
        assert_eq!(multiply(0x8765_4321, ONE), 0x8765_4321);
        // x * x^31 is x^32, which is the remainder of the polynomial.
        assert_eq!(multiply(1, ONE >> 1), POLYNOMIAL);
        for v in [1, ONE, 0xdead_beef, POLYNOMIAL] {
            let mut forth = divide_by_x8(v);
            for _ in 0..8 {
                forth = times_x(forth);
            }
            assert_eq!(forth, v);
            let mut slow = v;
            for _ in 0..256 {
                slow = divide_by_x8(slow);
            }
            assert_eq!(multiply(v, INVERSE_HIGH[1]), slow);
        }
    }
}
