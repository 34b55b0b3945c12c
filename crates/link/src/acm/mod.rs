//! Paths that an ACM service has resolved: a table that the service writes and its clients read, so that a cached path costs no message.
//!
//! # Layout
//!
//! A memfd of a size that is fixed at creation; only the part in use takes memory. Only [`PathTable`] writes it; others map it for reading
//! ([`PathCache`]).
//!
//! ```text
//! page 0   magic; number of slots; seed of the hash; lease; epoch; number of slots in use
//! then     slots, 256 bytes each: sequence number, hash, epoch, types and flags, expiry, source, destination, path, chosen source
//! ```
//!
//! A slot is found by the hash of its [`Key`]: it is one of the [`WINDOW`] slots from there on, among those in use. At first few are in
//! use, so that a small cache takes a few pages. When a new entry finds no room in its window, the number in use is doubled, and all
//! entries are rewritten with a new epoch. Once all are in use, the entry that expires first is replaced. For a key that is not in the
//! table, a client sends a request to the service.
//!
//! # Reading while it is written
//!
//! Each slot is a seqlock: its sequence number is odd while the writer changes it, and a reader that finds it odd or changed reads again, a
//! few times, and then treats the entry as missing. So readers never wait for the writer, even if it dies between two steps.
//!
//! # Validity
//!
//! - An entry has an expiry.
//! - The table has a lease, which the writer renews ([`PathTable::renew`]). A table whose writer is gone or hangs is not used after the
//!   lease. A writer that exits properly ends the lease.
//! - The epoch changes when everything is invalidated at once ([`PathTable::flush`]); entries of another epoch are invalid.
//!
//! Times are nanoseconds of `CLOCK_BOOTTIME` ([`now`]), which all processes of a machine share.
//!
//! # A hostile writer
//!
//! The memfd cannot shrink, which is checked, so reading never faults. Data is copied once before it is used, and all loops are bounded. A
//! writer can provide wrong paths, as a service can by its socket, and nothing worse. Keys with the same hash only replace each other.

mod reader;
mod writer;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rdmux_wire::acm::client::{PathData, PathFlags};
use rdmux_wire::acm::{Address, AddressType};
use rdmux_wire::sa::PathRecord;

pub use self::reader::PathCache;
pub use self::writer::PathTable;
use crate::shared::size;

/// The number of slots that a key may be in.
pub const WINDOW: usize = size(16, 1);
/// The maximum number of slots of a table.
pub const MAX_SLOTS: usize = 1 << 20;
/// The number of slots that are in use at first: 64 KiB.
const FIRST_SLOTS: usize = size(256, 1);
/// The longest lease that a reader accepts, in nanoseconds: one minute.
pub const MAX_LEASE: u64 = 60_000_000_000;

/// The key of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The source that the client names; none if the service chooses it.
    pub source: Option<Address>,
    /// The destination.
    pub dest: Address,
}

/// The result for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The path.
    pub path: PathData,
    /// The source address that the service chose, if the client named none.
    pub source: Option<IpAddr>,
    /// The time when it expires.
    pub expiry: u64,
}

/// Returns the time on the clock of expiries: nanoseconds of `CLOCK_BOOTTIME`.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let [seconds, nanos] = [time.tv_sec, time.tv_nsec].map(|n| u64::try_from(n).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// The size of a slot in bytes.
const SLOT: usize = 256;
/// "rdmuxpa" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"rdmuxpa\x03");

/// Offsets, in bytes.
mod at {
    pub(super) const SLOTS: usize = 8;
    pub(super) const SEED: usize = 16;
    pub(super) const LEASE: usize = 64;
    pub(super) const EPOCH: usize = 128;
    pub(super) const IN_USE: usize = 136;
    pub(super) const FIRST: usize = crate::shared::size(4096, 256);
    // Of a slot.
    pub(super) const SEQUENCE: usize = 0;
    pub(super) const HASH: usize = 8;
    pub(super) const CONTENT: usize = 16;
}

/// Returns the size of a table in bytes.
const fn bytes(slots: usize) -> usize {
    at::FIRST + slots * SLOT
}

/// Returns the offsets of the slots of a hash's window, among the first `slots` (a power of two).
fn window(hash: u64, slots: usize) -> impl Iterator<Item = usize> + Clone {
    let first = usize::try_from(hash >> 32).unwrap_or(0);
    (first..first + WINDOW).map(move |slot| at::FIRST + (slot & (slots - 1)) * SLOT)
}

/// The number of words in a slot after its hash.
const WORDS: usize = 30;
/// The words after the hash: the epoch; kinds and flags; the expiry; eight of the source, eight of the destination, eight of the path; the
/// family of the chosen source, and two of its address.
type Content = [u64; WORDS];

/// The indexes of the fields in these words.
mod word {
    pub(super) const EPOCH: usize = 0;
    pub(super) const ABOUT: usize = 1;
    pub(super) const EXPIRY: usize = 2;
    pub(super) const SOURCE: usize = 3;
    pub(super) const DEST: usize = 11;
    pub(super) const PATH: usize = 19;
    pub(super) const FAMILY: usize = 27;
    pub(super) const CHOSEN: usize = 28;
}

/// The words that are written and read. Models use two, which reveal a mixture as well as all would, in less time.
const USED: std::ops::Range<usize> =
    if cfg!(loom) { word::ABOUT..word::SOURCE } else { word::EPOCH..WORDS };
/// The first epoch. In models it is the value of the words that are not written.
const FIRST_EPOCH: u64 = size(1, 0) as u64;

/// A key as it is stored in a slot, and its hash in a table.
struct Sought {
    /// The address types: the source's is 0 if there is none.
    kinds: u32,
    /// Eight words of the source, eight of the destination.
    words: [u64; 16],
    hash: u64,
}

impl Sought {
    fn new(key: &Key, seed: u64) -> Self {
        let (source, field) = match &key.source {
            Some(source) => (source.kind(), words(&source.to_field())),
            None => (AddressType::INVALID, [0; 8]),
        };
        let mut all = [0; 16];
        all[..8].copy_from_slice(&field);
        all[8..].copy_from_slice(&words(&key.dest.to_field()));
        let kinds = u32::from(key.dest.kind().0) << 16 | u32::from(source.0);
        Self { kinds, words: all, hash: hash(seed, kinds, &all) }
    }

    /// Returns whether a slot has this key.
    fn is_in(&self, content: &Content) -> bool {
        content[word::ABOUT] << 32 == u64::from(self.kinds) << 32
            && content[word::SOURCE..word::PATH] == self.words
    }
}

/// Returns the hash of a key, which is not zero. It is not secure against programs that know the seed: see the module.
fn hash(seed: u64, kinds: u32, words: &[u64; 16]) -> u64 {
    let fold = |hash: u64, [one, other]: [u64; 2]| {
        let product = u128::from(hash ^ one) * u128::from(other ^ 0x9e37_79b9_7f4a_7c15);
        (product >> 64) as u64 ^ low(product) ^ hash.rotate_left(23)
    };
    let all = words.as_chunks().0.iter().copied();
    all.fold(fold(seed | 1, [kinds.into(), 0]), fold).max(1)
}

fn low(bits: u128) -> u64 {
    (bits << 64 >> 64) as u64
}

fn content(key: &Sought, entry: &Entry, epoch: u64) -> Content {
    let mut content = [0; WORDS];
    let (family, chosen) = match entry.source {
        None => (0, 0),
        Some(IpAddr::V4(ip)) => (4, u128::from(ip.to_bits())),
        Some(IpAddr::V6(ip)) => (6, ip.to_bits()),
    };
    content[word::EPOCH] = epoch;
    content[word::ABOUT] = u64::from(entry.path.flags.bits()) << 32 | u64::from(key.kinds);
    content[word::EXPIRY] = entry.expiry;
    content[word::SOURCE..word::PATH].copy_from_slice(&key.words);
    content[word::PATH..word::FAMILY].copy_from_slice(&words(&entry.path.path.to_bytes()));
    content[word::FAMILY] = family;
    content[word::CHOSEN] = (chosen >> 64) as u64;
    content[word::CHOSEN + 1] = low(chosen);
    content
}

/// Parses a slot's words. Returns none if they are invalid.
fn parsed(content: &Content) -> Option<(Key, Entry)> {
    let [a, b, c, d, flags @ ..] = content[word::ABOUT].to_le_bytes();
    let [source, dest] = [[a, b], [c, d]].map(|kind| AddressType(u16::from_le_bytes(kind)));
    let address = |kind, at| Address::from_field(kind, &taken(&content[at..at + 8])).ok();
    let chosen = u128::from(content[word::CHOSEN]) << 64 | u128::from(content[word::CHOSEN + 1]);
    let key = Key {
        source: match source {
            AddressType::INVALID => None,
            kind => Some(address(kind, word::SOURCE)?),
        },
        dest: address(dest, word::DEST)?,
    };
    let entry = Entry {
        path: PathData {
            flags: PathFlags::from_bits_retain(u32::from_le_bytes(flags)),
            path: PathRecord::from_bytes(&taken(&content[word::PATH..word::FAMILY])),
        },
        source: match content[word::FAMILY] {
            0 => None,
            4 => Some(Ipv4Addr::from_bits(u32::try_from(chosen).ok()?).into()),
            6 => Some(Ipv6Addr::from_bits(chosen).into()),
            _ => return None,
        },
        expiry: content[word::EXPIRY],
    };
    Some((key, entry))
}

fn words(bytes: &[u8; 64]) -> [u64; 8] {
    std::array::from_fn(|i| u64::from_le_bytes(bytes.as_chunks().0[i]))
}

fn taken(words: &[u64]) -> [u8; 64] {
    let mut all = [0; 64];
    for (bytes, word) in all.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    all
}

#[cfg(all(test, not(loom)))]
mod tests;
