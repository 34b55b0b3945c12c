//! Packets to a process on the same host: a ring of records in shared memory, with one producer
//! and one consumer.
//!
//! # Layout
//!
//! One page of header, then `capacity` bytes of data, a power of two. Positions count bytes and
//! never wrap; a position modulo the capacity is an offset into the data. Records start at multiples
//! of a cache line and do not wrap around the end:
//!
//! ```text
//! word 0   state: zero = not written yet, else VALID | kind << 32 | length in bytes
//! word 1,2 16 bytes for the user
//! byte 24  the record's bytes, up to the next multiple of 64
//! ```
//!
//! The consumer polls the state word of the next record, so that a small message costs the transfer of only the cache line that
//! holds it. Before a producer sets a state word it clears the next one. A record that does not fit before the end of the data is
//! preceded by a marker, and starts at offset zero. The consumer publishes its position. The producer reads that only when the
//! last known position leaves no room.
//!
//! # Sleeping
//!
//! A side that is about to sleep sets its flag, then checks the ring again. The other side advances its position, then checks the
//! flag. Both sides have a full fence between the two steps, so at least one of them sees the other. The side that finds a flag
//! set clears it and rings a [`PeerBell`]. The producer, which checks after each record, leaves its fence to the consumer if the
//! kernel supports that (`fence`).
//!
//! # A hostile peer
//!
//! It can write anything anywhere in the shared memory at any time. Each word that matters is read once, checked, and used from a
//! private copy; an invalid one breaks the ring permanently ([`Broken`]). Each side keeps its own position privately. Bytes of
//! records may change while they are read, so they are copied out before they are examined.

mod consumer;
mod producer;
mod wire;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::doorbell::PeerBell;
use crate::shared::{AtomicU64, Mapping, Ordering, size};

pub use crate::shared::fence::prepare;
pub use consumer::{Consumer, Head, Record};
pub use producer::{Producer, Reserved, RingError, SHORT};
pub use wire::{Meta, PACKET, Ring, RingPath, dest_qpn};

/// The ring's other side violated the protocol. The ring is no longer usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer violated the ring's protocol")]
pub struct Broken;

/// The default number of data bytes of a ring.
pub const DEFAULT_CAPACITY: usize = 1 << 20;
/// The minimum number of data bytes of a ring.
pub const MIN_CAPACITY: usize = size(4096, 512);
/// The maximum number of data bytes of a ring.
pub const MAX_CAPACITY: usize = 1 << 30;
/// The maximum length of a record in a ring that is large enough: 64 KiB and a packet's headers.
pub const MAX_RECORD: usize = (64 << 10) + 128;

/// The size of the header page in bytes.
const HEADER: usize = 4096;
/// Records start at multiples of this. Words that different sides write never share such a line.
const LINE: usize = 64;
/// The length of the header of a record, in bytes.
const RECORD_HEADER: usize = 24;

/// Offsets in the header page.
mod field {
    /// [`super::MAGIC`].
    pub(super) const MAGIC: usize = 0;
    /// The number of data bytes.
    pub(super) const CAPACITY: usize = 8;
    /// The consumer's position.
    pub(super) const TAIL: usize = 64;
    /// This word is one while the consumer sleeps or is about to.
    pub(super) const SLEEPS: usize = 128;
    /// This word is one if the consumer executes the heavy fence before it sleeps.
    pub(super) const HEAVY: usize = 136;
    /// This word is one while the producer waits for room.
    pub(super) const WAITS: usize = 192;
}

/// "rdmuxrg" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"rdmuxrg\x01");
/// Set in every state word but zero.
const VALID: u64 = 1 << 63;
/// The state word of a marker: the next record is at offset zero.
const WRAP: u64 = VALID | 1 << 62;

/// Returns the number of bytes that a record of `len` bytes takes.
const fn stride(len: usize) -> usize {
    (RECORD_HEADER + len).next_multiple_of(LINE)
}

/// Clears the other side's flag, if it is set. Returns whether it was. A clear flag is not written to: the other side may be
/// setting it.
fn take_down(flag: &AtomicU64) -> bool {
    flag.load(Ordering::Relaxed) != 0
        && flag.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

/// The descriptors of one side's two rings.
#[derive(Debug)]
pub struct RingFds {
    /// The ring that this side produces into.
    pub tx: OwnedFd,
    /// The ring that this side consumes from.
    pub rx: OwnedFd,
}

/// Two rings, one per direction.
#[derive(Debug)]
pub struct RingPair;

impl RingPair {
    /// Creates a pair with `capacity` bytes of data each, rounded up to a power of two and into [`MIN_CAPACITY`] to
    /// [`MAX_CAPACITY`]. Returns the descriptors for each side.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn create(capacity: usize) -> io::Result<(RingFds, RingFds)> {
        let (ab, ba) = (create(capacity)?, create(capacity)?);
        let b = RingFds { tx: ba.try_clone()?, rx: ab.try_clone()? };
        Ok((RingFds { tx: ab, rx: ba }, b))
    }
}

impl RingFds {
    /// Maps both rings. `bell` wakes the other side, and the other side rings it.
    ///
    /// # Errors
    ///
    /// `InvalidData` if a descriptor is not that of a ring; `ENOMEM`.
    pub fn open(self, bell: PeerBell) -> io::Result<(Ring, Producer, Consumer)> {
        let (tx, rx) = (Producer::map(&self.tx)?, Consumer::map(&self.rx)?);
        Ok((Ring::to_process(bell), tx, rx))
    }
}

/// Creates one ring with `capacity` bytes of data, rounded as for [`RingPair::create`].
///
/// # Errors
///
/// `EMFILE`, `ENFILE`, `ENOMEM`.
pub fn create(capacity: usize) -> io::Result<OwnedFd> {
    let capacity = capacity.clamp(MIN_CAPACITY, MAX_CAPACITY).next_power_of_two();
    let fd = Mapping::create_fd("rdmux-ring", HEADER + capacity)?;
    let map = Mapping::map(&fd, HEADER + capacity)?;
    map.word(field::CAPACITY).store(capacity as u64, Ordering::Relaxed);
    map.word(field::MAGIC).store(MAGIC, Ordering::Release);
    Ok(fd)
}

/// A mapped ring.
#[derive(Debug)]
struct Shared {
    map: Mapping,
    capacity: usize,
}

impl Shared {
    /// Maps the ring of a peer, which is not trusted.
    fn map(fd: impl AsFd) -> io::Result<Self> {
        let bad = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let header = Mapping::map(&fd, HEADER)?;
        if header.word(field::MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(bad("not a ring, or of another version"));
        }
        let capacity = header.word(field::CAPACITY).load(Ordering::Relaxed);
        let capacity = usize::try_from(capacity)
            .ok()
            .filter(|c| c.is_power_of_two() && (MIN_CAPACITY..=MAX_CAPACITY).contains(c))
            .ok_or_else(|| bad("a ring of invalid capacity"))?;
        Ok(Self { map: Mapping::map(&fd, HEADER + capacity)?, capacity })
    }

    /// Returns the maximum length of a record.
    fn max_record(&self) -> usize {
        MAX_RECORD.min(self.capacity / 4 - RECORD_HEADER)
    }

    /// Returns after how many bytes the consumer checks whether the producer waits, which costs a fence. A producer that waits
    /// found twice as many bytes in the ring, so a check follows after it began to wait.
    fn asks_every(&self) -> u64 {
        self.capacity as u64 / 4
    }

    /// Returns the offset of a position in the mapping.
    #[expect(clippy::cast_possible_truncation, reason = "less than the capacity")]
    fn at(&self, position: u64) -> usize {
        HEADER + (position & (self.capacity as u64 - 1)) as usize
    }

    /// Returns the number of data bytes from a position to the end.
    fn to_end(&self, position: u64) -> usize {
        HEADER + self.capacity - self.at(position)
    }
}
