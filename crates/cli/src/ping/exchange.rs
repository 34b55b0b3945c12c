//! The protocol of `rping`: its connection parameters, its messages and its data.
//!
//! One ping of the exchange:
//!
//! ```text
//!   client                                   server
//!     |  SEND {source buffer}                  |
//!     |--------------------------------------->|
//!     |                RDMA READ of the source |
//!     |<---------------------------------------|
//!     |              SEND {anything}: go ahead |
//!     |<---------------------------------------|
//!     |  SEND {sink buffer}                    |
//!     |--------------------------------------->|
//!     |                 RDMA WRITE to the sink |
//!     |<---------------------------------------|
//!     |              SEND {anything}: go ahead |
//!     |<---------------------------------------|
//! ```
//!
//! Every SEND has 16 bytes: address, key and length of a buffer, big-endian
//! ([`RemoteMr::to_short_bytes`](rdmux::RemoteMr::to_short_bytes)).

/// The default port of `rping`.
pub(crate) const PORT: u16 = 7174;
/// The maximum data size of `rping`.
pub(crate) const MAX_SIZE: usize = 64 * 1024 - 1;
/// The minimum data size: the text in front and its terminator.
pub(crate) const MIN_SIZE: usize = "rdma-ping-2147483647: ".len() + 1;

/// Returns the data of ping number `ping`: the text `rdma-ping-N: `, then letters from `A` to `z` that begin one
/// later at each ping, and a zero, because the server echoes it as a C string.
pub(crate) fn data(ping: u32, size: usize) -> Vec<u8> {
    let mut data = format!("rdma-ping-{ping}: ").into_bytes();
    let letters = (b'A'..=b'z').cycle().skip(ping as usize % usize::from(b'z' - b'A' + 1));
    let room = size.saturating_sub(data.len() + 1);
    data.extend(letters.take(room));
    data.truncate(size.saturating_sub(1));
    data.push(0);
    data
}

/// Returns the length that the server echoes: everything up to and including the first zero.
pub(crate) fn echo_len(data: &[u8]) -> usize {
    data.iter().position(|b| *b == 0).map_or(data.len(), |end| end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_text_letters_and_a_zero() {
        let first = data(0, 64);
        assert_eq!(first.len(), 64);
        assert_eq!(&first[..16], b"rdma-ping-0: ABC");
        assert_eq!(first[63], 0);
        assert_eq!(&data(1, 64)[..16], b"rdma-ping-1: BCD");
        assert_eq!(&data(58, 64)[..15], b"rdma-ping-58: A");
        assert_eq!(echo_len(&first), 64);
    }

    #[test]
    fn the_smallest_size_holds_the_longest_number() {
        let d = data(i32::MAX as u32, MIN_SIZE);
        assert_eq!(d, b"rdma-ping-2147483647: \0");
    }
}
