//! Control messages (`cmsg(3)`), written and read as bytes.

/// The length of a control message's header in bytes.
const HEADER: usize = size_of::<libc::cmsghdr>();
/// Control messages start at multiples of this.
const ALIGN: usize = size_of::<usize>();

/// Returns the offset of the next control message after one with `len` bytes of header and data.
const fn aligned(len: usize) -> usize {
    len.next_multiple_of(ALIGN)
}

/// Control messages to send with a packet.
#[derive(Debug)]
pub(crate) struct ControlBuf {
    bytes: [u8; 96],
    len: usize,
}

impl ControlBuf {
    /// Creates an empty buffer.
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; 96], len: 0 }
    }

    /// Adds a message of at most four bytes of data. There is room for four.
    pub(crate) fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let message = &mut self.bytes[self.len..self.len + aligned(HEADER + data.len())];
        message[..ALIGN].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        message[ALIGN..ALIGN + 4].copy_from_slice(&level.to_ne_bytes());
        message[ALIGN + 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        message[HEADER..HEADER + data.len()].copy_from_slice(data);
        self.len += aligned(HEADER + data.len());
    }

    /// Returns all control messages.
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Parses the control messages of a received packet: level, type, data. Ends at the first malformed one.
pub(crate) fn parse(mut bytes: &[u8]) -> impl Iterator<Item = (i32, i32, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from_ne_bytes(*bytes.first_chunk()?);
        let level = i32::from_ne_bytes(bytes.get(ALIGN..ALIGN + 4)?.try_into().ok()?);
        let kind = i32::from_ne_bytes(bytes.get(ALIGN + 4..HEADER)?.try_into().ok()?);
        let data = bytes.get(HEADER..len)?;
        bytes = bytes.get(aligned(len)..).unwrap_or_default();
        Some((level, kind, data))
    })
}

/// Parses a small integer of one or four bytes, as in control messages for TOS and TTL.
pub(crate) fn small_int(data: &[u8]) -> Option<u32> {
    match *data {
        [b] => Some(b.into()),
        [a, b, c, d, ..] => u32::try_from(i32::from_ne_bytes([a, b, c, d])).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut buf = ControlBuf::new();
        buf.push(17, 103, &1234u16.to_ne_bytes());
        buf.push(0, 1, &7i32.to_ne_bytes());
        let read: Vec<_> = parse(buf.as_slice()).map(|(l, k, d)| (l, k, d.to_vec())).collect();
        assert_eq!(
            read,
            [(17, 103, 1234u16.to_ne_bytes().to_vec()), (0, 1, 7i32.to_ne_bytes().to_vec())]
        );
    }

    #[test]
    fn malformed_messages_end_the_list() {
        for len in [0usize, 3, 15, 17, 4096, usize::MAX, usize::MAX - 3] {
            let mut bytes = [0u8; 16];
            bytes[..ALIGN].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(parse(&bytes).count(), 0, "{len}");
        }
        assert_eq!(parse(&[]).count(), 0);
        assert_eq!(parse(&[1, 2, 3]).count(), 0);
    }
}
