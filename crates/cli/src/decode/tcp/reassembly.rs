//! Reassembly of one direction of a TCP connection from out-of-order, duplicate and missing segments.

use std::collections::BTreeMap;

/// The memory of out-of-order segments, in bytes, beyond which the missing ones are given up.
const MAX_HELD: usize = 16 << 20;
/// The memory of an out-of-order segment besides its bytes.
const HELD_COST: usize = 128;
/// After the receiver has acknowledged missing segments, and this many later ones are buffered, the missing ones
/// were not captured and are given up. Until then the capture may contain them a little later.
const MAX_LATE: usize = 4;

/// A part of the stream.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Piece {
    Bytes(Vec<u8>),
    /// This many bytes were not captured.
    Missing(u64),
}

/// The order in which a segment arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Arrival {
    /// In order.
    New,
    /// A duplicate.
    Old,
    /// Out of order: preceding segments are missing.
    Early,
}

/// The state of the stream.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    /// The sequence number of the first byte.
    first: Option<u32>,
    /// The number of bytes returned.
    position: u64,
    /// The out-of-order segments, by position: bytes, and how many further ones were not captured.
    held: BTreeMap<u64, (Vec<u8>, usize)>,
    held_bytes: usize,
    /// The position up to which the receiver has acknowledged.
    acknowledged: i64,
}

impl Reassembly {
    /// Returns a stream whose first byte has this sequence number.
    pub(super) fn starting_at(first: u32) -> Self {
        Self { first: Some(first), ..Self::default() }
    }

    /// Returns the sequence number of the first byte, if it is known.
    pub(super) fn first(&self) -> Option<u32> {
        self.first
    }

    /// Returns the number of buffered bytes.
    pub(super) fn held(&self) -> u64 {
        self.held_bytes as u64
    }

    /// Stops reassembly and drops everything but the first sequence number.
    pub(super) fn give_up(&mut self) {
        *self = Self { first: self.first, ..Self::default() };
    }

    /// Drops the buffered segments.
    pub(super) fn discard(&mut self) {
        (self.held, self.held_bytes) = (BTreeMap::new(), 0);
    }

    /// Takes a segment: `bytes`, and `missing` further ones that were not captured.
    pub(super) fn take(
        &mut self,
        seq: u32,
        bytes: &[u8],
        missing: usize,
        out: &mut Vec<Piece>,
    ) -> Arrival {
        let arrival = self.place(seq, bytes, missing, out);
        self.wait_no_longer(MAX_LATE, out);
        arrival
    }

    /// Records that the receiver has everything up to this sequence number.
    pub(super) fn acknowledge(&mut self, ack: u32) {
        self.acknowledged = self.acknowledged.max(self.position_of(ack));
    }

    /// Records that the sender sends nothing new any more.
    pub(super) fn close(&mut self, out: &mut Vec<Piece>) {
        self.wait_no_longer(0, out);
    }

    fn wait_no_longer(&mut self, late: usize, out: &mut Vec<Piece>) {
        while let Some((&next, _)) = self.held.first_key_value() {
            let received = self.acknowledged >= next.cast_signed();
            let memory = self.held_bytes + self.held.len() * HELD_COST;
            if !(received && self.held.len() >= late || memory > MAX_HELD) {
                return;
            }
            out.push(Piece::Missing(next - self.position));
            self.position = next;
            self.release(out);
        }
    }

    fn place(&mut self, seq: u32, bytes: &[u8], missing: usize, out: &mut Vec<Piece>) -> Arrival {
        self.first.get_or_insert(seq);
        let at = self.position_of(seq);
        let end = at + i64::try_from(bytes.len() + missing).unwrap_or(i64::MAX);
        let position = self.position.cast_signed();
        if end <= position {
            return Arrival::Old;
        }
        if at > position {
            self.hold(at.cast_unsigned(), bytes, missing);
            return Arrival::Early;
        }
        self.give(at, bytes, missing, out);
        self.release(out);
        Arrival::New
    }

    /// Returns the position of a sequence number near the current one.
    fn position_of(&self, seq: u32) -> i64 {
        let low = u32::try_from(self.position & 0xffff_ffff).unwrap_or_default();
        let next = self.first.unwrap_or(seq).wrapping_add(low);
        self.position.cast_signed() + i64::from(seq.wrapping_sub(next).cast_signed())
    }

    fn hold(&mut self, at: u64, bytes: &[u8], missing: usize) {
        let before = self.held.get(&at).map_or(0, |(bytes, missing)| bytes.len() + missing);
        if before >= bytes.len() + missing {
            return;
        }
        if let Some((old, _)) = self.held.insert(at, (bytes.to_vec(), missing)) {
            self.held_bytes -= old.len();
        }
        self.held_bytes += bytes.len();
    }

    /// Adds to `out` the buffered segments that are in order now.
    fn release(&mut self, out: &mut Vec<Piece>) {
        while let Some(entry) = self.held.first_entry() {
            if *entry.key() > self.position {
                break;
            }
            let (at, (bytes, missing)) = entry.remove_entry();
            self.held_bytes -= bytes.len();
            self.give(at.cast_signed(), &bytes, missing, out);
        }
    }

    /// Adds to `out` the new part of a segment that does not begin after the next byte.
    fn give(&mut self, at: i64, bytes: &[u8], missing: usize, out: &mut Vec<Piece>) {
        let known = usize::try_from(self.position.cast_signed() - at).unwrap_or_default();
        let new = bytes.get(known..).unwrap_or_default();
        if !new.is_empty() {
            out.push(Piece::Bytes(new.to_vec()));
        }
        let missing = missing.saturating_sub(known.saturating_sub(bytes.len())) as u64;
        if missing > 0 {
            out.push(Piece::Missing(missing));
        }
        self.position += new.len() as u64 + missing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all bytes, with `?` for missing ones.
    fn text(pieces: &[Piece]) -> String {
        let text = |piece: &Piece| match piece {
            Piece::Bytes(bytes) => String::from_utf8(bytes.clone()).unwrap(),
            Piece::Missing(n) => "?".repeat(usize::try_from(*n).unwrap()),
        };
        pieces.iter().map(text).collect()
    }

    #[test]
    fn any_order_twice_and_overlapping_across_the_end_of_numbers() {
        const FIRST: u32 = u32::MAX - 4;
        let whole = b"abcdefghijkl";
        let segments = [(0, 3), (6, 3), (0, 5), (2, 3), (6, 6), (4, 4), (11, 1)];
        for rotation in 0..segments.len() {
            let mut stream = Reassembly::starting_at(FIRST);
            let mut out = Vec::new();
            for i in 0..segments.len() {
                let (at, len) = segments[(rotation + i) % segments.len()];
                let seq = FIRST.wrapping_add(u32::try_from(at).unwrap());
                stream.take(seq, &whole[at..at + len], 0, &mut out);
            }
            assert_eq!(text(&out), "abcdefghijkl", "{rotation}");
            assert_eq!(stream.held(), 0);
        }
    }

    #[test]
    fn arrivals() {
        let mut stream = Reassembly::default();
        let mut out = Vec::new();
        assert_eq!(stream.take(100, b"ab", 0, &mut out), Arrival::New);
        assert_eq!(stream.take(104, b"e", 0, &mut out), Arrival::Early);
        assert_eq!(stream.take(101, b"b", 0, &mut out), Arrival::Old);
        assert_eq!(stream.take(99, b"xab", 0, &mut out), Arrival::Old);
        assert_eq!(stream.held(), 1);
        assert_eq!(stream.take(101, b"bcd", 0, &mut out), Arrival::New);
        assert_eq!(text(&out), "abcde");
    }

    /// Acknowledged bytes were sent, so missing ones were not captured. Other bytes may still arrive.
    #[test]
    fn acknowledged_gap_is_skipped_in_reassembly() {
        let mut out = Vec::new();
        let mut stream = Reassembly::starting_at(0);
        stream.take(0, b"ab", 0, &mut out);
        for (at, byte) in [(4, b"e"), (5, b"f"), (6, b"g"), (7, b"h"), (8, b"i")] {
            stream.take(at, byte, 0, &mut out);
            stream.acknowledge(2);
            assert_eq!(text(&out), "ab");
        }
        stream.acknowledge(5);
        stream.take(9, b"j", 0, &mut out);
        assert_eq!(text(&out), "ab??efghij");
        stream.take(11, b"l", 0, &mut out);
        stream.acknowledge(12);
        assert_eq!(stream.held(), 1);
        stream.close(&mut out);
        assert_eq!(text(&out), "ab??efghij?l");
    }

    #[test]
    fn segments_without_bytes_are_not_held_without_end() {
        let mut out = Vec::new();
        let mut stream = Reassembly::starting_at(0);
        for n in 0..300_000 {
            stream.take(2 + n * 2, b"", 1, &mut out);
        }
        assert!(!out.is_empty());
        assert!(stream.held.len() < 300_000);
    }

    #[test]
    fn truncated_segment_leaves_a_gap_in_reassembly() {
        let mut out = Vec::new();
        let mut stream = Reassembly::starting_at(0);
        stream.take(0, b"ab", 3, &mut out);
        stream.take(5, b"fg", 0, &mut out);
        stream.take(3, b"def", 5, &mut out); // its missing part is one byte longer than what is known
        assert_eq!(text(&out), "ab???fg????");
    }
}
