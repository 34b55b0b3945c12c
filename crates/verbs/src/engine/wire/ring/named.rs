//! Packets through a ring that name their payload: the receiver fetches it with one copy from the sender's memory to its
//! destination.
//!
//! The names follow the packet's headers in the record: the sender's queue pair and the sequence of its row on the sender's
//! board, then for each range its region's key, its length and its address. The receiver checks them against the board while its
//! hazard is set, so nothing is fetched once a queue pair has failed or a region is gone: the program may then reuse its memory.

use arrayvec::ArrayVec;
use rdmux_link::Piece;
use rdmux_link::procmem::{MAX_PIECES, Range};
use rdmux_transport::env::{FetchError, Named};

use crate::engine::device::Device;
use crate::engine::qp::QpCore;
use crate::objects::counters::{Counter, Counters};
use crate::objects::memory;
use crate::objects::reach::{Origin, Reach};

/// The maximum number of bytes after the headers.
const MOST: usize = ORIGIN + MAX_PIECES * RANGE;
const ORIGIN: usize = 8;
const RANGE: usize = 16;

/// The location of a packet's payload, encoded for the receiver.
pub(crate) struct Names(ArrayVec<u8, MOST>);

impl Names {
    pub(crate) fn new(origin: Origin) -> Self {
        let mut bytes = ArrayVec::new();
        bytes.extend(origin.qpn.to_ne_bytes());
        bytes.extend(origin.sequence.to_ne_bytes());
        Self(bytes)
    }

    /// Adds a range. Returns false if they are too many.
    pub(crate) fn add(&mut self, key: u32, range: Range) -> bool {
        if self.0.remaining_capacity() < RANGE {
            return false;
        }
        self.0.extend(key.to_ne_bytes());
        self.0.extend(range.len.to_ne_bytes());
        self.0.extend(range.va.to_ne_bytes());
        true
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Names, decoded by the receiver.
#[derive(Debug)]
struct Parsed {
    origin: Origin,
    ranges: ArrayVec<Range, MAX_PIECES>,
    keys: ArrayVec<u32, MAX_PIECES>,
}

impl Parsed {
    /// Parses names. Returns none if they are invalid.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (origin, list) = bytes.split_first_chunk::<ORIGIN>()?;
        let [q0, q1, q2, q3, s0, s1, s2, s3] = *origin;
        let origin = Origin {
            qpn: u32::from_ne_bytes([q0, q1, q2, q3]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
        };
        let (list, []) = list.as_chunks::<RANGE>() else { return None };
        let (mut ranges, mut keys) = (ArrayVec::new(), ArrayVec::new());
        for entry in list {
            let [k0, k1, k2, k3, l0, l1, l2, l3, va @ ..] = *entry;
            keys.try_push(u32::from_ne_bytes([k0, k1, k2, k3])).ok()?;
            let len = u32::from_ne_bytes([l0, l1, l2, l3]);
            ranges.try_push(Range { va: u64::from_ne_bytes(va), len }).ok()?;
        }
        Some(Self { origin, ranges, keys })
    }
}

/// Returns how many bytes a record's names cover; none if they are invalid.
pub(crate) fn len(names: &[u8]) -> Option<u32> {
    Parsed::parse(names)?.ranges.iter().try_fold(0_u32, |sum, range| sum.checked_add(range.len))
}

/// Fetches the payload that a packet names into pieces of that length, if shortcuts past packets are permitted.
pub(crate) fn fetch(
    device: &Device,
    (own, reach): (&QpCore, &Reach),
    named: &Named<'_>,
    near: &[Piece],
) -> Result<(), FetchError> {
    let counters = Counters(device.counters());
    let open = reach.is_open();
    let names = Parsed::parse(named.at).filter(|_| open).ok_or(FetchError::OutOfReach)?;
    let hazard = device.reaches().enter(reach).ok_or(FetchError::OutOfReach)?;
    if !reach.sends(own.qpn, &names.origin, &names.ranges, &names.keys) {
        return Err(FetchError::OutOfReach);
    }
    let fetched = memory::fetch_ranges(reach.memory(), &names.ranges, near);
    drop(hazard);
    fetched.map_err(|error| {
        reach.failed(&counters, &error);
        FetchError::OutOfReach
    })?;
    counters.add(Counter::Fetches, 1);
    counters.add(Counter::FetchBytes, named.len.into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let origin = Origin { qpn: 0x1234, sequence: 7 };
        let mut names = Names::new(origin);
        for (key, i) in (0x100..).zip(0..MAX_PIECES as u64) {
            assert!(names.add(key, Range { va: i << 40, len: 1 << 15 }));
        }
        assert!(!names.add(1, Range { va: 0, len: 1 }));
        let parsed = Parsed::parse(names.as_bytes()).unwrap();
        assert_eq!(parsed.origin, origin);
        assert_eq!((parsed.keys[31], parsed.ranges[31].va), (0x11f, 31 << 40));
        assert_eq!(len(names.as_bytes()), Some(1 << 20));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert_eq!(len(&[0; 7]), None);
        assert_eq!(len(&[0; 8]), Some(0));
        assert_eq!(len(&[0; 23]), None);
        assert_eq!(len(&[0; ORIGIN + (MAX_PIECES + 1) * RANGE]), None);
        assert_eq!(len(&[0xff; ORIGIN + 2 * RANGE]), None, "more bytes than can be");
    }
}
