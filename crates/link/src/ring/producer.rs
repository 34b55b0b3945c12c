//! The producer's side of a ring.

use std::io;
use std::os::fd::OwnedFd;

use super::{Broken, LINE, RECORD_HEADER, Shared, VALID, WRAP, field, stride, take_down};
use crate::guarded::Unmapped;
use crate::shared::{Ordering, fence};
use crate::wire::Piece;

/// The maximum length of a record for [`Producer::push_short`]: the bytes of two lines.
pub const SHORT: usize = 2 * LINE - RECORD_HEADER;
/// Number of bytes that are cleared ahead: two small packets.
const CLEAR_AHEAD: u64 = 4 * LINE as u64;

/// The reason why a record was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The ring has no room until the consumer advances.
    #[error("the ring is full")]
    Full,
    /// The record is too long for a ring of this capacity.
    #[error("a record of {len} bytes does not fit in the ring, whose maximum is {max}")]
    TooLarge {
        /// The length of the record.
        len: usize,
        /// The maximum length.
        max: usize,
    },
    /// The consumer violated the protocol.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// The writing end of a ring. There must be only one.
#[derive(Debug)]
pub struct Producer {
    ring: Shared,
    head: u64,
    /// The consumer's position at the last read.
    tail: u64,
    /// The state words of all lines from `head` to here are zero.
    cleared: u64,
    /// Whether heavy fences of the consumer reach this process.
    registered: bool,
    broken: bool,
}

impl Producer {
    /// Maps a ring into which nothing has been produced yet.
    ///
    /// # Errors
    ///
    /// `InvalidData` for anything else than a ring; `ENOMEM`.
    pub fn map(fd: &OwnedFd) -> io::Result<Self> {
        let (ring, registered) = (Shared::map(fd)?, fence::register());
        Ok(Self { ring, head: 0, tail: 0, cleared: 0, registered, broken: false })
    }

    /// Returns the maximum length of a record.
    pub fn max_record(&self) -> usize {
        self.ring.max_record()
    }

    /// Writes a record that consists of the parts in order. The consumer sees it at once, but is not woken: the caller must check
    /// [`consumer_sleeps`](Self::consumer_sleeps) after the last of several.
    ///
    /// # Errors
    ///
    /// [`RingError`]; nothing was written.
    pub fn try_push(&mut self, kind: u8, meta: [u8; 16], parts: &[&[u8]]) -> Result<(), RingError> {
        let len = parts.iter().fold(0usize, |n, p| n.saturating_add(p.len()));
        let mut record = self.reserve(len)?;
        for part in parts {
            record.put(part);
        }
        record.publish(kind, meta);
        Ok(())
    }

    /// Writes the first `len` of these bytes as a record, if the ring has room: as [`try_push`](Self::try_push), but in fewer
    /// steps. Returns false if there is no room, or none in one piece.
    #[inline]
    pub fn push_short(
        &mut self,
        kind: u8,
        meta: [u8; 16],
        bytes: &[u8; SHORT],
        len: usize,
    ) -> bool {
        let (len, stride) = (len.min(SHORT), stride(len.min(SHORT)));
        let fits = self.has_room((stride + LINE) as u64) && stride <= self.ring.to_end(self.head);
        if self.broken || !fits {
            return false;
        }
        let at = self.ring.at(self.head) + RECORD_HEADER;
        let words = self.ring.map.row(at, len.div_ceil(8));
        for (word, bytes) in words.zip(bytes.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        self.show((self.head, false), len, kind, meta);
        true
    }

    /// Reserves room for a record of `len` bytes, which is written through the returned value.
    ///
    /// # Errors
    ///
    /// [`RingError`].
    pub fn reserve(&mut self, len: usize) -> Result<Reserved<'_>, RingError> {
        let skip = self.find_room(len)?;
        Ok(self.reserved(len, skip))
    }

    /// Reserves like [`reserve`](Self::reserve). If the ring is full, also requests a wakeup by the consumer when it advances.
    /// No wakeup is lost in between.
    ///
    /// # Errors
    ///
    /// [`RingError`].
    pub fn reserve_or_wait(&mut self, len: usize) -> Result<Reserved<'_>, RingError> {
        let skip = loop {
            match self.find_room(len) {
                Err(RingError::Full) if !self.prepare_wait()? => {}
                other => break other?,
            }
        };
        Ok(self.reserved(len, skip))
    }

    /// Ensures that a record of `len` bytes has room. Returns how many bytes are skipped before it.
    fn find_room(&mut self, len: usize) -> Result<usize, RingError> {
        let max = self.ring.max_record();
        if self.broken {
            return Err(Broken.into());
        }
        if len > max {
            return Err(RingError::TooLarge { len, max });
        }
        let stride = stride(len);
        let to_end = self.ring.to_end(self.head);
        let skip = if stride > to_end { to_end } else { 0 };
        // One more line, for the state word that is cleared behind the record.
        let need = (skip + stride + LINE) as u64;
        if !self.has_room(need) {
            self.read_tail()?;
            if !self.has_room(need) {
                return Err(RingError::Full);
            }
        }
        Ok(skip)
    }

    fn reserved(&mut self, len: usize, skip: usize) -> Reserved<'_> {
        let start = self.head + skip as u64;
        let at = self.ring.at(start) + RECORD_HEADER;
        Reserved { start, skips: skip > 0, len, at, end: at + len, producer: self }
    }

    /// Requests a wakeup when the consumer advances, for a caller that found the ring full. Returns false, without a request, if
    /// the consumer has already advanced: pushing may then succeed, or not yet.
    ///
    /// # Errors
    ///
    /// [`Broken`].
    pub fn prepare_wait(&mut self) -> Result<bool, Broken> {
        let seen = self.tail;
        let waits = self.ring.map.word(field::WAITS);
        waits.store(1, Ordering::Relaxed);
        fence::light(false);
        self.read_tail()?;
        if self.tail == seen {
            return Ok(true);
        }
        self.ring.map.word(field::WAITS).store(0, Ordering::Relaxed);
        Ok(false)
    }

    /// Returns whether the consumer sleeps and must be woken now. Returns true once for each time that it sleeps.
    pub fn consumer_sleeps(&self) -> bool {
        // A consumer announces its capability before it first sleeps. If the capability is lost, it waits until all processors
        // see records written before an earlier check. So the record must be written before the check, not only in program order.
        fence::light(true);
        let heavy = self.ring.map.word(field::HEAVY).load(Ordering::Acquire) == 1;
        fence::light(heavy && self.registered);
        take_down(self.ring.map.word(field::SLEEPS))
    }

    /// Returns whether the consumer has taken all records, as far as it reports.
    ///
    /// # Errors
    ///
    /// [`Broken`].
    pub fn is_drained(&mut self) -> Result<bool, Broken> {
        self.read_tail()?;
        Ok(self.tail == self.head)
    }

    /// Returns whether records that take `bytes` in total have room. If not, the consumer has been requested to wake this process
    /// when it advances.
    pub fn has_room_or_wait(&mut self, bytes: usize) -> bool {
        loop {
            if self.has_room(bytes as u64) {
                return true;
            }
            match self.prepare_wait() {
                Ok(false) => {}
                Ok(true) | Err(Broken) => return false,
            }
        }
    }

    /// Returns the position after the last record.
    pub fn position(&self) -> u64 {
        self.head
    }

    /// Returns the consumer's position, as far as it reports; never beyond [`position`](Self::position). For a broken ring, the
    /// last valid one.
    pub fn consumed(&mut self) -> u64 {
        let _ = self.read_tail();
        self.tail
    }

    /// Clears the state words of some lines ahead. Their cache lines then belong to this core when the next record is written,
    /// which would otherwise wait for each of them.
    fn clear_ahead(&mut self) {
        let end = (self.head + CLEAR_AHEAD).min(self.tail + self.ring.capacity as u64);
        while self.cleared < end {
            self.ring.map.word(self.ring.at(self.cleared)).store(0, Ordering::Relaxed);
            self.cleared += LINE as u64;
        }
    }

    fn has_room(&self, need: u64) -> bool {
        self.head - self.tail + need <= self.ring.capacity as u64
    }

    /// Reads the consumer's position, which only advances, and not past the producer's.
    fn read_tail(&mut self) -> Result<(), Broken> {
        let tail = self.ring.map.word(field::TAIL).load(Ordering::Acquire);
        if self.broken || tail < self.tail || tail > self.head {
            self.broken = true;
            return Err(Broken);
        }
        self.tail = tail;
        Ok(())
    }
}

/// Room for a record that is being written. Dropping it without publishing leaves the ring as it was.
#[derive(Debug)]
pub struct Reserved<'p> {
    producer: &'p mut Producer,
    start: u64,
    skips: bool,
    len: usize,
    at: usize,
    end: usize,
}

impl Reserved<'_> {
    /// Writes the next bytes. Bytes beyond the reserved length are cut off.
    pub fn put(&mut self, bytes: &[u8]) {
        let n = bytes.len().min(self.end - self.at);
        self.producer.ring.map.write(self.at, &bytes[..n]);
        self.at += n;
    }

    /// Writes like [`put`](Self::put), but from memory given by address.
    ///
    /// # Errors
    ///
    /// [`Unmapped`]; the caller must then drop the record.
    pub fn put_piece(&mut self, piece: Piece) -> Result<(), Unmapped> {
        let n = piece.len().min(self.end - self.at);
        self.producer.ring.map.write_guarded(self.at, piece.as_ptr(), n)?;
        self.at += n;
        Ok(())
    }

    /// Publishes the record to the consumer.
    pub fn publish(self, kind: u8, meta: [u8; 16]) {
        let Self { producer, start, skips, len, .. } = self;
        producer.show((start, skips), len, kind, meta);
    }
}

impl Producer {
    /// Publishes a record of `len` bytes that was written at `start`, with a marker if that is not where the last one ended.
    #[inline]
    fn show(&mut self, (start, skips): (u64, bool), len: usize, kind: u8, meta: [u8; 16]) {
        let map = &self.ring.map;
        let at = self.ring.at(start);
        for (word, bytes) in map.row(at + 8, 2).zip(meta.as_chunks().0) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        let next = start + stride(len) as u64;
        if self.cleared <= next {
            map.word(self.ring.at(next)).store(0, Ordering::Relaxed);
            self.cleared = next + LINE as u64;
        }
        map.word(at).store(VALID | u64::from(kind) << 32 | len as u64, Ordering::Release);
        if skips {
            map.word(self.ring.at(self.head)).store(WRAP, Ordering::Release);
        }
        self.head = next;
        self.clear_ahead();
    }
}
