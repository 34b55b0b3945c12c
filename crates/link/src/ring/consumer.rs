//! The side that reads records.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use super::{Broken, RECORD_HEADER, Shared, VALID, WRAP, field, stride, take_down};
use crate::shared::{Instant, Ordering, fence};

/// The reading end of a ring. There must be one only.
#[derive(Debug)]
pub struct Consumer {
    ring: Shared,
    tail: u64,
    /// Where it was when the producer was last asked whether it waits.
    asked: u64,
    /// Whether the producer leaves its fence to us.
    heavy: Cell<bool>,
    /// When it was told to do its own from then on, until it must know.
    told: Cell<Option<Instant>>,
    broken: bool,
}

/// How long after the consumer has told the producer to do its own fences it does not sleep: far longer than it takes until a write is
/// seen by all processors, and until what the producer has written before it knew is.
const KNOWN_AFTER: Duration = Duration::from_millis(10);

impl Consumer {
    /// Maps a ring from its beginning: nobody has consumed from it.
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

    /// The next record, if there is one. Its room is given back when it is dropped.
    ///
    /// # Errors
    ///
    /// [`Broken`], from then on always.
    pub fn pop(&mut self) -> Result<Option<Record<'_>>, Broken> {
        Ok(self.peek()?.map(|head| self.take(head)))
    }

    /// What the next record says of itself, if there is one.
    ///
    /// # Errors
    ///
    /// [`Broken`], from then on always.
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
        // A marker is written after the record that it points at; two in a row are never.
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

    /// The record that [`peek`](Self::peek) returned last.
    #[inline]
    pub fn take(&mut self, head: Head) -> Record<'_> {
        Record { consumer: self, head }
    }

    /// How many records can wait in the ring at a time.
    pub fn max_records(&self) -> usize {
        self.ring.capacity / stride(0)
    }

    /// Whether there is nothing to pop. A cheap look for a polling loop.
    pub fn is_empty(&self) -> bool {
        !self.broken && self.state() == 0
    }

    /// Asks to be woken for the next record. Returns false if there is one already, or the ring is
    /// broken, or the producer may not notice for a moment: do not sleep then.
    pub fn prepare_sleep(&self) -> bool {
        Self::prepare_all([self].into_iter())
    }

    /// As [`prepare_sleep`](Self::prepare_sleep) for several rings, at the price of one.
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

    /// Leaves the producer's fence to it from now on.
    fn give_up_heavy(&self) {
        if self.heavy.replace(false) {
            self.ring.map.word(field::HEAVY).store(0, Ordering::Release);
            self.told.set(Some(Instant::now()));
        }
    }

    /// Whether the producer knows who does its fence.
    fn is_known(&self) -> bool {
        let is_new = |told: Instant| told.elapsed() < KNOWN_AFTER;
        self.told.set(self.told.get().filter(|told| is_new(*told)));
        self.told.get().is_none()
    }

    /// Takes back [`prepare_sleep`](Self::prepare_sleep), after whatever ended the sleep.
    pub fn awake(&self) {
        self.ring.map.word(field::SLEEPS).store(0, Ordering::Relaxed);
    }

    /// Whether the producer waits for room and must be woken now. Ask whenever records were popped. True once for each
    /// time that it waits.
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

/// What a record says of itself: read once, and checked.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    at: usize,
    len: usize,
    kind: u8,
    meta: [u8; 16],
}

impl Head {
    /// What the producer said it is.
    #[inline]
    pub fn kind(&self) -> u8 {
        self.kind
    }

    /// What the producer added.
    #[inline]
    pub fn meta(&self) -> [u8; 16] {
        self.meta
    }

    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "records without bytes are nothing special")]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// A record. Its bytes are in memory that the peer may write to: copy them before looking at them.
#[derive(Debug)]
pub struct Record<'c> {
    consumer: &'c mut Consumer,
    head: Head,
}

impl Record<'_> {
    /// What the producer said it is.
    pub fn kind(&self) -> u8 {
        self.head.kind
    }

    /// What the producer added.
    pub fn meta(&self) -> [u8; 16] {
        self.head.meta
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.head.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.head.len == 0
    }

    /// Copies bytes, from `offset` on, into `to`. Returns how many there were: fewer than `to` is
    /// long if the record ends before.
    pub fn copy(&self, offset: usize, to: &mut [u8]) -> usize {
        let offset = offset.min(self.head.len);
        let n = to.len().min(self.head.len - offset);
        self.consumer.ring.map.read(self.head.at + offset, &mut to[..n]);
        n
    }

    /// As [`copy`](Self::copy), into memory that is named by address: the application's registered
    /// buffers.
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

    /// The bytes in place, without a copy.
    ///
    /// # Safety
    ///
    /// The peer may change them at any time. Either it is trusted not to, or the caller only moves
    /// them elsewhere and decides nothing by them.
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
