//! The consumer's side of a ring.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use super::{Broken, RECORD_HEADER, Shared, VALID, WRAP, field, stride, take_down};
use crate::shared::{Instant, Ordering, fence};

/// The reading end of a ring. There must be only one.
#[derive(Debug)]
pub struct Consumer {
    ring: Shared,
    tail: u64,
    /// The tail when the producer's flag for waiting was last checked.
    asked: u64,
    /// Whether the consumer executes the producer's fence.
    heavy: Cell<bool>,
    /// Time when the producer was requested to execute its own fences. None once it must have seen the request.
    told: Cell<Option<Instant>>,
    broken: bool,
}

/// Time for which the consumer does not sleep after it has requested that the producer execute its own fences: far longer than all
/// processors need to see a write, including writes of the producer from before it knew.
const KNOWN_AFTER: Duration = Duration::from_millis(10);

impl Consumer {
    /// Maps a ring from which nothing has been consumed yet.
    ///
    /// # Errors
    ///
    /// `InvalidData` for anything else than a ring; `ENOMEM`.
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        let ring = Shared::map(fd)?;
        let heavy = fence::can_do_heavy();
        ring.map.word(field::HEAVY).store(heavy.into(), Ordering::Release);
        let (heavy, told) = (Cell::new(heavy), Cell::new(None));
        Ok(Self { ring, tail: 0, asked: 0, heavy, told, broken: false })
    }

    /// Returns the next record, if any. Dropping it frees its room.
    ///
    /// # Errors
    ///
    /// [`Broken`], and from then on always.
    pub fn pop(&mut self) -> Result<Option<Record<'_>>, Broken> {
        Ok(self.peek()?.map(|head| self.take(head)))
    }

    /// Returns the head of the next record, if any.
    ///
    /// # Errors
    ///
    /// [`Broken`], and from then on always.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Head>, Broken> {
        let mut state = self.state();
        if state == 0 && !self.broken {
            return Ok(None);
        }
        if state == WRAP && !self.broken {
            self.tail += self.ring.to_end(self.tail) as u64;
            state = self.state();
        }
        // A marker is published after the record that it points at. There are never two in a row.
        let len = usize::try_from(state & 0xffff_ffff).unwrap_or(usize::MAX);
        let kind = u8::try_from(state >> 32 & 0xff).unwrap_or_default();
        if self.broken
            || state != (VALID | u64::from(kind) << 32 | len as u64)
            || len > self.ring.max_record()
            || stride(len) > self.ring.to_end(self.tail)
        {
            self.broken = true;
            return Err(Broken);
        }
        let at = self.ring.at(self.tail);
        let mut meta = [0; 16];
        for (bytes, word) in meta.as_chunks_mut().0.iter_mut().zip(self.ring.map.row(at + 8, 2)) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        Ok(Some(Head { at: at + RECORD_HEADER, len, kind, meta }))
    }

    /// Returns the record whose head [`peek`](Self::peek) returned last.
    #[inline]
    pub fn take(&mut self, head: Head) -> Record<'_> {
        Record { consumer: self, head }
    }

    /// Returns how many records the ring can hold at a time.
    pub fn max_records(&self) -> usize {
        self.ring.capacity / stride(0)
    }

    /// Returns whether the ring has no record to pop. A cheap check for a polling loop.
    pub fn is_empty(&self) -> bool {
        !self.broken && self.state() == 0
    }

    /// Requests to be woken for the next record. Returns false if there is one already, if the ring is broken, or if the producer may
    /// not see the request for a moment: the caller must not sleep then.
    pub fn prepare_sleep(&self) -> bool {
        Self::prepare_all([self].into_iter())
    }

    /// Prepares like [`prepare_sleep`](Self::prepare_sleep) for several rings, with only one fence.
    pub fn prepare_all<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> bool {
        let mut heavy = false;
        for one in all.clone() {
            one.ring.map.word(field::SLEEPS).store(1, Ordering::Relaxed);
            heavy |= one.heavy.get();
        }
        let mut fenced = true;
        if heavy {
            fenced = fence::heavy();
        } else {
            fence::light(false);
        }
        if !fenced {
            all.clone().for_each(Self::give_up_heavy);
        }
        fenced && all.clone().all(|one| one.is_known() && one.is_empty()) || {
            all.for_each(Self::awake);
            false
        }
    }

    /// Makes the producer execute its own fence from now on.
    fn give_up_heavy(&self) {
        if self.heavy.replace(false) {
            self.ring.map.word(field::HEAVY).store(0, Ordering::Release);
            self.told.set(Some(Instant::now()));
        }
    }

    /// Returns whether the producer knows which side executes its fence.
    fn is_known(&self) -> bool {
        let is_new = |told: Instant| told.elapsed() < KNOWN_AFTER;
        self.told.set(self.told.get().filter(|told| is_new(*told)));
        self.told.get().is_none()
    }

    /// Cancels [`prepare_sleep`](Self::prepare_sleep), regardless of what ended the sleep.
    pub fn awake(&self) {
        self.ring.map.word(field::SLEEPS).store(0, Ordering::Relaxed);
    }

    /// Returns whether the producer waits for room and must be woken now. To be called whenever records were popped. Returns true once
    /// for each time that the producer waits.
    pub fn producer_waits(&mut self) -> bool {
        if self.tail - self.asked < self.ring.asks_every() {
            return false;
        }
        self.asked = self.tail;
        let waits = self.ring.map.word(field::WAITS);
        fence::light(false);
        take_down(waits)
    }

    fn state(&self) -> u64 {
        self.ring.map.word(self.ring.at(self.tail)).load(Ordering::Acquire)
    }
}

/// The head of a record: read once, and checked.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    at: usize,
    len: usize,
    kind: u8,
    meta: [u8; 16],
}

impl Head {
    /// Returns the kind that the producer set.
    #[inline]
    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// Returns the bytes that the producer added.
    #[inline]
    pub fn meta(&self) -> [u8; 16] {
        self.meta
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "records without bytes are nothing special")]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// A record. Its bytes are in memory that the peer may write to: they must be copied before they are examined.
#[derive(Debug)]
pub struct Record<'c> {
    consumer: &'c mut Consumer,
    head: Head,
}

impl Record<'_> {
    /// Returns the kind that the producer set.
    pub fn kind(&self) -> u8 {
        self.head.kind
    }

    /// Returns the bytes that the producer added.
    pub fn meta(&self) -> [u8; 16] {
        self.head.meta
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.head.len
    }

    /// Returns whether the record has no bytes.
    pub fn is_empty(&self) -> bool {
        self.head.len == 0
    }

    /// Copies bytes, from `offset` on, into `to`. Returns how many were copied: fewer than the length of `to` if the record ends
    /// before.
    pub fn copy(&self, offset: usize, to: &mut [u8]) -> usize {
        let offset = offset.min(self.head.len);
        let n = to.len().min(self.head.len - offset);
        self.consumer.ring.map.read(self.head.at + offset, &mut to[..n]);
        n
    }

    /// Copies like [`copy`](Self::copy), but into memory given by address: the application's registered buffers.
    ///
    /// # Safety
    ///
    /// `len` bytes at `to` must be writable, and no Rust reference to them may be alive.
    #[expect(unsafe_code, reason = "the caller promises that the memory is writable")]
    pub unsafe fn copy_raw(&self, offset: usize, to: *mut u8, len: usize) -> usize {
        let offset = offset.min(self.head.len);
        let n = len.min(self.head.len - offset);
        // SAFETY: by the caller's promise.
        unsafe { self.consumer.ring.map.read_raw(self.head.at + offset, to, n) };
        n
    }

    /// Returns the bytes in place, without a copy.
    ///
    /// # Safety
    ///
    /// The peer may change them at any time. Either it is trusted not to, or the caller only moves them elsewhere and makes no
    /// decision by them.
    #[expect(unsafe_code, reason = "the caller promises what the peer may not")]
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: in bounds, checked by `pop`; by the caller's promise.
        unsafe { self.consumer.ring.map.slice(self.head.at, self.head.len) }
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        self.consumer.tail += stride(self.head.len) as u64;
        let tail = self.consumer.ring.map.word(field::TAIL);
        tail.store(self.consumer.tail, Ordering::Release);
    }
}
