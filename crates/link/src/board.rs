//! The board of a process: its regions, its queue pairs and its own copies in flight, published to the processes of its host so
//! that they can access its memory without its help.
//!
//! # Layout
//!
//! A memfd of fixed size; only the part in use takes memory. Only the owner writes it; others map it for reading.
//!
//! ```text
//! page 0   magic; end of the process; number of hazards ever used; slots whose queue pairs are published
//! page 1   hazards, one cache line each
//! then     queue pairs, one cache line each, by the index of their slot and their number
//! then     regions, one cache line each, by the index in their key
//! ```
//!
//! A row is a word with its key and validity (`VALID | sequence << 32 | key`), and further words, which are read between two
//! equal reads of the first. Each write of a row changes its sequence number.
//!
//! # Withdrawing rows that may be in use
//!
//! A process that copies sets a [`Hazard`] on its own board, *then* reads the other's rows, copies, and clears the hazard. An
//! owner that withdraws a row clears it, *then* reads the hazards of others, and waits for those on its memory to change once
//! ([`PeerBoard::wait_for_copies`]). Both sides have a full fence between the two steps, so at least one of them sees the other:
//! after the wait, no process that saw the row still copies.
//!
//! # The end of a process
//!
//! The rows of a process are void once it has ended or has called execve(2), which the word for its end shows: the kernel marks it
//! before the memory is replaced ([`EndMark`]). Others look at it before each copy, and after each that reads
//! ([`ProcessMemory::with_board`](crate::ProcessMemory::with_board)).
//!
//! # A hostile peer
//!
//! A peer's board is read once into private memory and checked. The peer can name any of its own memory, which harms only
//! itself. The wait for a hazard that never changes ends with a timeout ([`Stuck`]).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use rustix::thread::{Timespec, nanosleep};

use crate::shared::{AtomicU64, Mapping, Ordering, ReadMapping, fence, size};

/// The maximum number of copies of a process in flight at once.
pub const HAZARDS: usize = size(64, 2);
/// The number of slots of queue pair numbers that a board has room for.
pub const SLOTS: usize = size(16, 1);
/// The number of queue pairs of a slot.
const SLOT_QPS: usize = size(4096, 2);
/// The number of region indexes that it has room for.
const REGIONS: usize = size(1 << 16, 2);

const LINE: usize = 64;
const PAGE: usize = 4096;
/// "rdmuxbd" and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"rdmuxbd\x02");
/// Set in the first word of a valid row.
const VALID: u64 = 1 << 63;
/// Set in the word of a hazard while a copy is in flight.
const BUSY: u64 = 1 << 16;
/// Added to a hazard's word whenever it changes.
const STEP: u64 = 1 << 32;

/// Set by the kernel in the word for the end of a process (`FUTEX_OWNER_DIED`).
const ENDED: u64 = libc::FUTEX_OWNER_DIED as u64;

/// Offsets, in bytes.
mod at {
    pub(super) const PROCESS_END: usize = 8;
    pub(super) const USED_HAZARDS: usize = 64;
    pub(super) const SLOTS: usize = 128;
    pub(super) const HAZARDS: usize = super::PAGE;
    pub(super) const QPS: usize = HAZARDS + super::HAZARDS * super::LINE;
    pub(super) const REGIONS: usize = QPS + super::SLOTS * super::SLOT_QPS * super::LINE;
    pub(super) const END: usize = REGIONS + super::REGIONS * super::LINE;
}

/// A queue pair that accepts its peer's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpRow {
    /// The number of the queue pair.
    pub qpn: u32,
    /// The number of the peer's queue pair.
    pub dest_qpn: u32,
    /// The protection domain of the queue pair.
    pub pd: u32,
    /// The access rights of the peer, as the owner's bits.
    pub access: u32,
    /// The P_Key of the queue pair.
    pub pkey: u16,
}

/// A region of the owner's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionRow {
    /// The key of the region.
    pub key: u32,
    /// The protection domain of the region.
    pub pd: u32,
    /// The access rights, as the owner's bits.
    pub access: u32,
    /// The address of the region.
    pub addr: u64,
    /// The length of the region in bytes.
    pub length: u64,
    /// The address of the region's first byte in work requests.
    pub iova: u64,
}

impl RegionRow {
    /// Returns whether `len` bytes at an address of its process are all within the region.
    pub fn holds(&self, addr: u64, len: u64) -> bool {
        let Some(offset) = addr.checked_sub(self.addr) else { return false };
        offset.checked_add(len).is_some_and(|end| end <= self.length)
    }

    /// Returns the address of `va` in its process's memory, if `len` bytes there are all within the region.
    pub fn locate(&self, va: u64, len: u64) -> Option<u64> {
        let offset = va.checked_sub(self.iova)?;
        let end = offset.checked_add(len)?;
        self.addr.checked_add(end)?;
        (end <= self.length).then(|| self.addr + offset)
    }
}

/// The board of this process.
#[derive(Debug)]
pub struct Board {
    fd: OwnedFd,
    map: Mapping,
}

/// A copy in flight, as other processes see it. Dropped when it has ended.
#[derive(Debug)]
pub struct Hazard<'b> {
    word: &'b AtomicU64,
    busy: u64,
}

/// Makes the kernel mark a board when the process has ended or has called execve(2). Belongs to the thread that created it. When it is
/// dropped, the kernel no longer does.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct EndMark {
    _robust: crate::robust::Robust<EndWord>,
}

/// The word for the end of a board's process.
#[cfg(not(loom))]
#[derive(Debug)]
struct EndWord(Arc<Board>);

#[cfg(not(loom))]
impl AsRef<AtomicU64> for EndWord {
    fn as_ref(&self) -> &AtomicU64 {
        self.0.map.word(at::PROCESS_END)
    }
}

#[cfg(not(loom))]
impl EndMark {
    /// Makes the kernel mark a board at the end of the calling thread, which should be as long-lived as the process's queue pairs. Until
    /// the mark is dropped, the thread must not have another one. It must lock no robust mutex (`pthread_mutexattr_setrobust(3)`):
    /// other users of the mutex would not be told if the thread ended while it holds the mutex.
    ///
    /// # Errors
    ///
    /// Those of `set_robust_list(2)`.
    pub fn new(board: Arc<Board>) -> io::Result<Self> {
        crate::robust::Robust::register(EndWord(board)).map(|robust| Self { _robust: robust })
    }
}

impl Board {
    /// Creates an empty board.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn create() -> io::Result<Self> {
        let (fd, map) = Mapping::create_readable("rdmux-board", at::END)?;
        map.word(0).store(MAGIC, Ordering::Release);
        Ok(Self { fd, map })
    }

    /// Returns the descriptor, to be passed to other processes.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Makes room for the queue pairs of a slot, unless no room is left.
    pub fn add_slot(&self, slot: u16) {
        for i in 0..SLOTS {
            let word = self.map.word(at::SLOTS + 8 * i);
            let there = word.load(Ordering::Relaxed);
            if there == 0 || there == u64::from(slot) {
                return word.store(slot.into(), Ordering::Release);
            }
        }
    }

    /// Returns the offset of a queue pair's row, if the board has room for it.
    fn qp_at(&self, qpn: u32) -> Option<usize> {
        qp_at(qpn, |i| self.map.word(at::SLOTS + 8 * i).load(Ordering::Relaxed))
    }

    /// Publishes a queue pair, if the board has room for it. Calls for one queue pair must not run concurrently.
    pub fn show_qp(&self, row: &QpRow) {
        if let Some(at) = self.qp_at(row.qpn) {
            let ends = u64::from(row.pd) << 32 | u64::from(row.dest_qpn);
            let rights = u64::from(row.pkey) << 32 | u64::from(row.access);
            self.put(at, row.qpn, [ends, rights, 0, 0]);
        }
    }

    /// Returns the sequence number of a published queue pair's row.
    pub fn qp_sequence(&self, qpn: u32) -> Option<u32> {
        let first = self.map.word(self.qp_at(qpn)?).load(Ordering::Relaxed);
        (first & VALID != 0 && low(first) == qpn).then(|| sequence(first))
    }

    /// Withdraws a queue pair. Returns whether it was published. Other processes may still use it: see
    /// [`PeerBoard::wait_for_copies`].
    pub fn hide_qp(&self, qpn: u32) -> bool {
        self.qp_at(qpn).is_some_and(|at| self.clear(at))
    }

    /// Publishes a region, if the board has room for its index. Calls for one index must not run concurrently.
    pub fn show_region(&self, row: &RegionRow) {
        if let Some(at) = region_at(row.key) {
            let rights = u64::from(row.pd) << 32 | u64::from(row.access);
            self.put(at, row.key, [rights, row.addr, row.length, row.iova]);
        }
    }

    /// Withdraws the region with a key's index, as [`hide_qp`](Self::hide_qp). Returns whether one was published.
    pub fn hide_region(&self, key: u32) -> bool {
        region_at(key).is_some_and(|at| self.clear(at))
    }

    fn put(&self, at: usize, key: u32, words: [u64; 4]) {
        self.clear(at);
        fence(Ordering::SeqCst);
        for (i, word) in words.into_iter().enumerate() {
            self.map.word(at + 8 * (i + 1)).store(word, Ordering::Relaxed);
        }
        let first = self.map.word(at);
        let next = u64::from(sequence(first.load(Ordering::Relaxed)).wrapping_add(1) & 0x7fff_ffff);
        first.store(VALID | next << 32 | u64::from(key), Ordering::Release);
    }

    fn clear(&self, at: usize) -> bool {
        let first = self.map.word(at);
        let there = first.load(Ordering::Relaxed);
        if there & VALID != 0 {
            first.store(there & !VALID & !0xffff_ffff, Ordering::SeqCst);
        }
        there & VALID != 0
    }

    /// Publishes that a copy from or to the memory of `slot`'s process begins. The caller must read its board only after this.
    /// Returns none while [`HAZARDS`] others are in flight.
    pub fn enter(&self, slot: u16) -> Option<Hazard<'_>> {
        let hint = hint();
        for i in 0..HAZARDS {
            let hazard = (hint + i) % HAZARDS;
            let used = self.map.word(at::USED_HAZARDS);
            if used.load(Ordering::Relaxed) <= hazard as u64 {
                used.fetch_max(hazard as u64 + 1, Ordering::SeqCst);
            }
            let word = self.map.word(at::HAZARDS + hazard * LINE);
            let free = word.load(Ordering::Relaxed);
            let busy = (free & !(STEP - 1)).wrapping_add(STEP) | BUSY | u64::from(slot);
            let took = free & BUSY == 0
                && word.compare_exchange(free, busy, Ordering::SeqCst, Ordering::Relaxed).is_ok();
            if took {
                fence(Ordering::SeqCst);
                return Some(Hazard { word, busy });
            }
        }
        None
    }
}

impl Drop for Hazard<'_> {
    fn drop(&mut self) {
        let free = (self.busy & !(STEP - 1)).wrapping_add(STEP);
        self.word.store(free, Ordering::Release);
    }
}

/// Returns the index at which a thread starts to look for a free hazard: threads that copy at once do not contend.
fn hint() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static HINT: usize = NEXT.fetch_add(1, Ordering::Relaxed) % HAZARDS;
    }
    HINT.with(|hint| *hint)
}

fn qp_at(qpn: u32, slot: impl Fn(usize) -> u64) -> Option<usize> {
    let (own, index) = ((qpn as usize / SLOT_QPS) as u64, qpn as usize % SLOT_QPS);
    let place = (0..SLOTS).find(|&i| own != 0 && slot(i) == own)?;
    Some(at::QPS + (place * SLOT_QPS + index) * LINE)
}

fn region_at(key: u32) -> Option<usize> {
    let index = (key >> 8) as usize;
    (index < REGIONS).then_some(at::REGIONS + index * LINE)
}

/// A copy in flight did not end in time: its process is stopped or malicious.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer's copy does not finish")]
pub struct Stuck;

/// Another process's board.
#[derive(Debug)]
pub struct PeerBoard {
    map: Arc<ReadMapping>,
}

/// Shows whether the process of a board has ended or has called execve(2).
#[derive(Debug)]
pub(crate) struct ProcessEnd(Arc<ReadMapping>);

impl ProcessEnd {
    /// Returns whether the process is known to have ended or to have called execve(2). If it has no [`EndMark`], this is not known.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.0.load(at::PROCESS_END, Ordering::Acquire) & ENDED != 0
    }
}

impl PeerBoard {
    /// Maps the board of a peer, which is not trusted.
    ///
    /// # Errors
    ///
    /// `InvalidData` for anything else than a board; `ENOMEM`.
    pub fn map(fd: &OwnedFd) -> io::Result<Self> {
        let map = Arc::new(ReadMapping::map(fd, at::END)?);
        if map.load(0, Ordering::Acquire) != MAGIC {
            let what = "not a board, or of another version";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(Self { map })
    }

    /// Returns the part that shows the end of the process.
    pub(crate) fn process_end(&self) -> ProcessEnd {
        ProcessEnd(self.map.clone())
    }

    /// Returns whether the process has an [`EndMark`], or had one when it ended or called execve(2).
    pub fn shows_end(&self) -> bool {
        self.map.load(at::PROCESS_END, Ordering::Acquire) != 0
    }

    /// Returns whether a queue pair is published, and its row has not been rewritten since it had this sequence number.
    pub fn is_qp_since(&self, qpn: u32, sequence: u32) -> bool {
        qp_at(qpn, |i| self.map.load(at::SLOTS + 8 * i, Ordering::Relaxed)).is_some_and(|at| {
            let first = self.map.load(at, Ordering::Acquire);
            first & VALID != 0 && low(first) == qpn && self::sequence(first) == sequence
        })
    }

    /// Returns a queue pair, if it is published.
    pub fn qp(&self, qpn: u32) -> Option<QpRow> {
        let at = qp_at(qpn, |i| self.map.load(at::SLOTS + 8 * i, Ordering::Relaxed))?;
        let [ends, rights, ..] = self.row(at, qpn)?;
        let (access, pkey) = (low(rights), (rights >> 32 & 0xffff) as u16);
        Some(QpRow { qpn, dest_qpn: low(ends), pd: low(ends >> 32), access, pkey })
    }

    /// Returns a region, if it is published.
    pub fn region(&self, key: u32) -> Option<RegionRow> {
        let [rights, addr, length, iova] = self.row(region_at(key)?, key)?;
        Some(RegionRow { key, pd: low(rights >> 32), access: low(rights), addr, length, iova })
    }

    /// Reads the words of a row with this key, if they are consistent.
    fn row(&self, at: usize, key: u32) -> Option<[u64; 4]> {
        let first = self.map.load(at, Ordering::Acquire);
        if first & VALID == 0 || low(first) != key {
            return None;
        }
        let words = [1, 2, 3, 4].map(|i| self.map.load(at + 8 * i, Ordering::Relaxed));
        fence(Ordering::Acquire);
        (self.map.load(at, Ordering::Relaxed) == first).then_some(words)
    }

    /// Returns whether the peer is in the middle of a copy from or to the memory of `slot`'s process. Does not wait.
    pub fn is_copying(&self, slot: u16) -> bool {
        fence(Ordering::SeqCst);
        self.hazards().any(|hazard| is_of(self.map.load(hazard, Ordering::SeqCst), slot))
    }

    /// Returns the offsets of the hazards that it has used so far.
    fn hazards(&self) -> impl Iterator<Item = usize> {
        let used = self.map.load(at::USED_HAZARDS, Ordering::SeqCst);
        let used = usize::try_from(used).unwrap_or(HAZARDS).min(HAZARDS);
        (0..used).map(|hazard| at::HAZARDS + hazard * LINE)
    }

    /// Waits until the peer's copies from or to the memory of `slot`'s process that were in flight at the call have ended.
    /// Usually none are in flight. Must be called after rows were withdrawn. Checks occasionally whether the peer is `gone`: it
    /// then has no copies in flight.
    ///
    /// # Errors
    ///
    /// [`Stuck`] after `timeout`.
    pub fn wait_for_copies(
        &self,
        slot: u16,
        timeout: Duration,
        gone: impl Fn() -> bool,
    ) -> Result<(), Stuck> {
        fence(Ordering::SeqCst);
        let mut since = None;
        for hazard in self.hazards() {
            let look = || self.map.load(hazard, Ordering::SeqCst);
            let seen = look();
            if !is_of(seen, slot) {
                continue;
            }
            let mut turn = 0_u32;
            while look() == seen {
                turn = turn.saturating_add(1);
                if !wait_a_turn(turn) {
                    continue;
                }
                if gone() {
                    return Ok(());
                }
                if since.get_or_insert_with(Instant::now).elapsed() > timeout {
                    return Err(Stuck);
                }
            }
        }
        Ok(())
    }
}

/// Returns whether a hazard marks a copy from or to the memory of `slot`'s process.
fn is_of(hazard: u64, slot: u16) -> bool {
    hazard & BUSY != 0 && hazard & 0xffff == u64::from(slot)
}

/// Spins briefly, then yields, then sleeps. Returns whether the caller should check for other reasons to end the wait.
fn wait_a_turn(turn: u32) -> bool {
    #[cfg(loom)]
    loom::thread::yield_now();
    match turn {
        _ if cfg!(loom) => return false,
        0..1000 => std::hint::spin_loop(),
        1000..1100 => crate::spin_wait::yield_or_sleep(),
        // As a direct system call: the C library's sleep is a cancellation point, and polling must not be one.
        _ => drop(nanosleep(&Timespec { tv_sec: 0, tv_nsec: 100_000 })),
    }
    turn >= 1100
}

/// Returns the sequence number in the first word of a row.
fn sequence(first: u64) -> u32 {
    (first >> 32 & 0x7fff_ffff) as u32
}

fn low(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

#[cfg(all(test, not(loom)))]
mod tests;
