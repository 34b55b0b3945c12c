//! The side that counts.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Counted, MAGIC, ROWS, at, row_at, state};
use crate::shared::{Mapping, Ordering, fence};

/// The rows of a process, for all that send by the port. Whoever sends has a [`Tally`] of its own.
#[derive(Debug)]
pub struct Rows {
    map: Mapping,
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    /// Rows from 0 to this one have been in use.
    used: u32,
    /// Those of them that are closed.
    closed: Vec<u32>,
}

impl Rows {
    /// New memory for the rows of a process, to be handed to both sides.
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

    /// Maps memory in which this process counts, and no other. It does so once.
    ///
    /// # Errors
    ///
    /// `InvalidData` for anything else than what [`create`](Self::create) makes; `ENOMEM`.
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        let map = Mapping::map(fd, at::END)?;
        if map.word(0).load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no counter rows"));
        }
        Ok(Self { map, free: Mutex::default() })
    }

    /// A row that nobody counts in, and that the reader knows all of.
    fn take(&self) -> Option<u32> {
        let mut free = self.free.lock();
        let is_known = |&row: &u32| {
            let [known, closed] = [at::KNOWN, at::CLOSED].map(|at| self.map.word(row_at(row) + at));
            known.load(Ordering::Acquire) == closed.load(Ordering::Relaxed)
        };
        // Those that were closed first are the first to be known.
        if let Some(at) = free.closed.iter().take(64).position(is_known) {
            return Some(free.closed.remove(at));
        }
        let row = (free.used < ROWS).then_some(free.used)?;
        free.used += 1;
        self.map.word(at::USED).store(free.used.into(), Ordering::Release);
        Some(row)
    }

    /// Has a row count this from now on.
    fn open(&self, row: u32, counted: &Counted) {
        let [about, route] = counted.to_words();
        self.map.word(row_at(row) + at::ROUTE).store(route, Ordering::Relaxed);
        let about = about | u64::from(state::OPEN);
        self.map.word(row_at(row) + at::ABOUT).store(about, Ordering::Release);
    }

    /// Nothing is counted in a row any more.
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

/// Why there is no row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfound {
    /// The table of ways does not have the name that is counted by: look the way up again.
    Changed,
    /// No row is left.
    Full,
}

/// The rows that one sender counts in. Who has it is the only one who does.
#[derive(Debug)]
pub struct Tally {
    rows: Arc<Rows>,
    open: HashMap<Counted, Row>,
    /// Whether ways may have changed since rows were opened.
    is_old: bool,
}

impl Tally {
    /// Without rows.
    pub fn new(rows: Arc<Rows>) -> Self {
        Self { rows, open: HashMap::new(), is_old: false }
    }

    /// Ways may have changed: what [`find`](Self::find) has found is not to be counted in any more.
    pub fn refresh(&mut self) {
        self.is_old = true;
    }

    /// Whether these are the rows that it counts in.
    pub fn is_of(&self, rows: &Arc<Rows>) -> bool {
        Arc::ptr_eq(&self.rows, rows)
    }

    /// The row for packets of a kind. `is_current` says, each time anew, whether the table of ways has the name that is counted by; rows
    /// for what it has no more are closed.
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

    /// Counts packets, and their length in words of four bytes from LRH to ICRC.
    #[inline]
    pub fn add(&mut self, row: Row, packets: u64, words: u64) {
        let word = |at| self.rows.map.word(row_at(row.0) + at);
        let add = |at, n, order| {
            word(at).store(word(at).load(Ordering::Relaxed).wrapping_add(n), order);
        };
        add(at::PACKETS, packets, Ordering::Relaxed);
        add(at::WORDS, words, Ordering::Release);
    }

    /// Says that something was counted that the port drops itself, which its reader may want to know before it reads all rows. One thread at a time
    /// does so.
    pub fn has_dropped(&self) {
        let word = self.rows.map.word(at::DROPPED);
        word.store(word.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Closes rows.
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
