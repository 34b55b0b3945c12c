//! The exchanges of rdma-core's example programs, which may be the peer.

pub(crate) mod cmtest;
pub(crate) mod mctest;
pub(crate) mod udtest;

/// Returns the parser of a number of messages, all of which are posted at once: at most a queue's work requests (`max_qp_wr`).
fn count_parser() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(..=16384)
}

/// Returns the contents of message number `n`: a pattern that depends on message and position.
fn pattern(n: u32, len: usize) -> Vec<u8> {
    let first = n.wrapping_mul(31).to_le_bytes()[0];
    (0..=u8::MAX).cycle().skip(first.into()).take(len).collect()
}
