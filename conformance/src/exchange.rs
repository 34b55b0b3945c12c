//! Common definitions of both verbs peers: the names of the tests, the layout of the memory, the pattern.

/// The size of the region that the peer may access, at offset 0 of the buffer.
pub const REGION: usize = 2 << 20;
/// The size of the area for local messages, which follows the region.
pub const LOCAL: usize = 2 << 20;
/// The size of the GRH that precedes a datagram in its receive buffer.
pub const GRH: usize = 40;
/// The Q_Key of both sides.
pub const QKEY: u32 = 0x1122_3344;
/// Message sizes: zero, one, and around the packet and pad sizes.
pub const SIZES: &[usize] =
    &[0, 1, 3, 4, 63, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 65536, 1_048_576 + 5];

/// The start of a client's report when the server refused a request and the wire lost the NAK, which is
/// sent only once.
pub const LOST_ANSWER: &str = "the answer was lost";

/// The tests that need a wire without loss, because the transport is unreliable.
pub const UNRELIABLE: &[&str] = &[
    "uc/send",
    "uc/send_imm",
    "uc/send_gather",
    "uc/send_inline",
    "uc/write",
    "uc/write_imm",
    "ud/send",
    "ud/send_imm",
    "ud/wrong_qkey",
];

/// The tests of the reliable transport.
pub const RELIABLE: &[&str] = &[
    "rc/send",
    "rc/send_imm",
    "rc/send_gather",
    "rc/send_inline",
    "rc/send_inv",
    "rc/write",
    "rc/write_imm",
    "rc/read",
    "rc/read_many",
    "rc/fetch_add",
    "rc/cmp_swap",
    "rc/mixed",
    "rc/write_bad_key",
    "rc/read_out_of_range",
    "rc/write_no_right",
    "rc/atomic_unaligned",
    "rc/send_too_long",
    "rc/flush",
    "rc/rnr_then_ready",
    "rc/rnr_exceeded",
    "rc/nobody_answers",
];

/// The tests of other objects of the server.
pub const OBJECTS: &[&str] = &["rc/srq", "rc/background", "rc/deregistered"];

/// Returns the byte at index `i` of the data of `seed`.
#[expect(clippy::cast_possible_truncation, reason = "the low byte is wanted")]
pub fn pattern(i: usize, seed: u32) -> u8 {
    let i = i as u32;
    let sum = seed.wrapping_mul(31).wrapping_add(i.wrapping_mul(7));
    sum.wrapping_add((i >> 8).wrapping_mul(13)).wrapping_add(i >> 16) as u8
}

/// Fills a buffer with the data of `seed`.
pub fn fill(to: &mut [u8], seed: u32) {
    for (i, b) in to.iter_mut().enumerate() {
        *b = pattern(i, seed);
    }
}

/// Returns the first index at which `data` is not the data of `seed`.
pub fn difference(data: &[u8], seed: u32) -> Option<usize> {
    data.iter().enumerate().position(|(i, b)| *b != pattern(i, seed))
}

#[cfg(test)]
mod tests {
    use super::{OBJECTS, RELIABLE, UNRELIABLE};

    #[test]
    fn the_c_program_has_the_same_tests() {
        let c = include_str!("../verbs-peer/tests.c");
        let names: Vec<&str> = c
            .lines()
            .filter_map(|l| l.trim().strip_prefix("{ \"")?.split('"').next())
            .filter(|n| n.contains('/'))
            .collect();
        assert_eq!(names, [RELIABLE, OBJECTS, UNRELIABLE].concat());
    }
}
