//! The writers' side of rows.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Counted, MAGIC, ROWS, at, row_at, state};
use crate::shared::{Mapping, Ordering, fence};

/// The rows of a process, for all its senders of a port. Each sender has its own [`Tally`].
#[derive(Debug)]
pub struct Rows {
    map: Mapping,
    free: Mutex<Free>,
}

/// The rows that can be opened.
#[derive(Debug, Default)]
struct Free {
    /// The number of rows that have been in use.
    used: u32,
    /// The rows of these that are closed.
    closed: Vec<u32>,
}

impl Rows {
    /// Creates memory for the rows of a process, to be passed to both sides.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn create() -> io::Result<OwnedFd> {
        let fd = Mapping::create_fd("rdmux-rows", at::END)?;
        let map = Mapping::map(&fd, at::END)?;
        map.word(0).store(MAGIC, Ordering::Release);
        Ok(fd)
    }

    /// Maps rows in which only this process counts. A process may map them only once.
    ///
    /// # Errors
    ///
    /// `InvalidData` for anything else than memory from [`create`](Self::create); `ENOMEM`.
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        let map = Mapping::map(fd, at::END)?;
        if map.word(0).load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not counter rows, or of another version",
            ));
        }
        Ok(Self { map, free: Mutex::default() })
    }

    /// Takes an unused row, whose counts the reader has acknowledged.
    fn take(&self) -> Option<u32> {
        let mut free = self.free.lock();
        let is_known = |&row: &u32| {
            let [known, closed] = [at::KNOWN, at::CLOSED].map(|at| self.map.word(row_at(row) + at));
            known.load(Ordering::Acquire) == closed.load(Ordering::Relaxed)
        };
        // The reader acknowledges the rows first that were closed first.
        if let Some(at) = free.closed.iter().take(64).position(is_known) {
            return Some(free.closed.remove(at));
        }
        let row = (free.used < ROWS).then_some(free.used)?;
        free.used += 1;
        self.map.word(at::USED).store(free.used.into(), Ordering::Release);
        Some(row)
    }

    /// Opens a row for a key.
    fn open(&self, row: u32, counted: &Counted) {
        let [about, route] = counted.to_words();
        self.map.word(row_at(row) + at::ROUTE).store(route, Ordering::Relaxed);
        let about = about | u64::from(state::OPEN);
        self.map.word(row_at(row) + at::ABOUT).store(about, Ordering::Release);
    }

    /// Closes a row.
    fn close(&self, row: u32) {
        let closed = self.map.word(row_at(row) + at::CLOSED);
        closed.store(closed.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        let about = self.map.word(row_at(row) + at::ABOUT);
        let open = about.load(Ordering::Relaxed);
        about.store(open & !0xff | u64::from(state::CLOSED), Ordering::Release);
        self.free.lock().closed.push(row);
    }
}

/// A row of a [`Tally`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row(pub(super) u32);

/// The reason why no row was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfound {
    /// The route table no longer has the ID: the way must be looked up again.
    Changed,
    /// No row is left.
    Full,
}

/// The rows in which one sender counts. Only its owner counts in them.
#[derive(Debug)]
pub struct Tally {
    rows: Arc<Rows>,
    open: HashMap<Counted, Row>,
    /// Whether ways may have changed since rows were opened.
    is_old: bool,
}

impl Tally {
    /// Creates a tally without rows.
    pub fn new(rows: Arc<Rows>) -> Self {
        Self { rows, open: HashMap::new(), is_old: false }
    }

    /// Records that ways may have changed: rows that [`find`](Self::find) returned must no longer be used.
    pub fn refresh(&mut self) {
        self.is_old = true;
    }

    /// Returns whether these are the rows in which it counts.
    pub fn is_of(&self, rows: &Arc<Rows>) -> bool {
        Arc::ptr_eq(&self.rows, rows)
    }

    /// Returns the row for a key. `is_current` checks each time whether the route table still has the key's way; rows for ways that it no
    /// longer has are closed.
    ///
    /// # Errors
    ///
    /// [`Unfound`].
    pub fn find(
        &mut self,
        counted: &Counted,
        mut is_current: impl FnMut(&Counted) -> bool,
    ) -> Result<Row, Unfound> {
        if std::mem::take(&mut self.is_old) {
            self.close(|row| !is_current(row));
        }
        if let Some(row) = self.open.get(counted) {
            return Ok(*row);
        }
        let row = self.rows.take().ok_or(Unfound::Full)?;
        self.rows.open(row, counted);
        // See the module.
        fence(Ordering::SeqCst);
        if !is_current(counted) {
            self.rows.close(row);
            return Err(Unfound::Changed);
        }
        self.open.insert(*counted, Row(row));
        Ok(Row(row))
    }

    /// Adds packets, and their length in words of four bytes from LRH to ICRC.
    #[inline]
    pub fn add(&mut self, row: Row, packets: u64, words: u64) {
        let word = |at| self.rows.map.word(row_at(row.0) + at);
        let add = |at, n, order| {
            word(at).store(word(at).load(Ordering::Relaxed).wrapping_add(n), order);
        };
        add(at::PACKETS, packets, Ordering::Relaxed);
        add(at::WORDS, words, Ordering::Release);
    }

    /// Records that packets were counted that the port itself drops, so that the reader can check for them before it reads all rows. Only
    /// one thread at a time may call this.
    pub fn has_dropped(&self) {
        let word = self.rows.map.word(at::DROPPED);
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Closes the rows that `is_closed` selects.
    fn close(&mut self, mut is_closed: impl FnMut(&Counted) -> bool) {
        self.open.retain(|counted, row| {
            let closes = is_closed(counted);
            if closes {
                self.rows.close(row.0);
            }
            !closes
        });
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.close(|_| true);
    }
}
