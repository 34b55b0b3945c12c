//! The exchanges of rdma-core's example programs, so that those may be the peer.

pub(crate) mod cmtest;
pub(crate) mod mctest;
pub(crate) mod udtest;

/// What each byte of message number `n` is: a pattern that tells messages and positions apart.
fn pattern(n: u32, len: usize) -> Vec<u8> {
    let first = n.wrapping_mul(31).to_le_bytes()[0];
    (0..=u8::MAX).cycle().skip(first.into()).take(len).collect()
}
