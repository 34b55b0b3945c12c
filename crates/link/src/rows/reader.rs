//! The reader's side of rows.

use std::io;
use std::os::fd::AsFd;

use super::{Counted, MAGIC, MAX_PACKETS, MAX_WORDS, ROWS, at, row_at, state};
use crate::shared::{Mapping, Ordering, fence};

/// The rows of a process, for the owner of the subnet, which is the only reader.
#[derive(Debug)]
pub struct RowReader {
    map: Mapping,
    read: Vec<Read>,
    /// The word that changes with drops, at the last read.
    dropped: u64,
}

/// The state of a row at the last read.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    packets: u64,
    words: u64,
    /// The number of words that fit into the packets reported so far, and have not been reported themselves.
    room: u64,
    /// The number of words that did not fit.
    waiting: u64,
}

/// The counts of a row since the last read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRead {
    /// The key.
    pub counted: Counted,
    /// Packets.
    pub packets: u64,
    /// Words of four bytes.
    pub words: u64,
    /// Whether the row may still be in use.
    pub is_open: bool,
}

impl RowReader {
    /// Maps the rows of a process, which is not trusted. Earlier counts are included.
    ///
    /// # Errors
    ///
    /// `InvalidData` for anything else than rows; `ENOMEM`.
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        let map = Mapping::map(fd, at::END)?;
        if map.word(0).load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not counter rows, or of another version",
            ));
        }
        Ok(Self { map, read: Vec::new(), dropped: 0 })
    }

    /// Returns whether packets that the port itself drops were counted since the last read.
    pub fn has_dropped(&self) -> bool {
        self.map.word(at::DROPPED).load(Ordering::Acquire) != self.dropped
    }

    /// Passes each row to `show` that is in use, or has been since the last call. After a change of the route table, each old way by which
    /// a process still counts is among the open rows.
    pub fn read(&mut self, show: impl FnMut(&RowRead)) {
        self.read_within(|used| used, show);
    }

    /// Reads like [`read`](Self::read), but only the rows that were read before, and as many as `most` returns for the number of rows
    /// that have been in use. The counts and ways of the other rows are not known then.
    pub fn read_within(
        &mut self,
        most: impl FnOnce(usize) -> usize,
        mut show: impl FnMut(&RowRead),
    ) {
        self.dropped = self.map.word(at::DROPPED).load(Ordering::Acquire);
        // See the module.
        fence(Ordering::SeqCst);
        let used = self.map.word(at::USED).load(Ordering::Acquire).min(ROWS.into());
        let used = usize::try_from(used).unwrap_or(0);
        let used = most(used).min(used);
        if self.read.len() < used {
            self.read.resize(used, Read::default());
        }
        for (row, before) in (0..).zip(&mut self.read) {
            if let Some(read) = read_row(&self.map, row, before) {
                show(&read);
            }
        }
    }
}

fn read_row(map: &Mapping, row: u32, before: &mut Read) -> Option<RowRead> {
    let word = |at| map.word(row_at(row) + at);
    // The key of a row is valid while it is open, and then until its closing is acknowledged.
    let about = word(at::ABOUT).load(Ordering::Acquire);
    let (closed, known) = (word(at::CLOSED).load(Ordering::Relaxed), word(at::KNOWN));
    let is_open = match (about & 0xff) as u8 {
        state::OPEN => true,
        state::CLOSED if known.load(Ordering::Relaxed) != closed => false,
        // It may have another key by now, which is read the next time.
        _ => return None,
    };
    let route = word(at::ROUTE).load(Ordering::Relaxed);
    // Words are read first: words that are seen belong to packets that are seen.
    let words = word(at::WORDS).load(Ordering::Acquire);
    let (packets, words) = before.advance(word(at::PACKETS).load(Ordering::Relaxed), words);
    if !is_open {
        (before.room, before.waiting) = (0, 0);
        known.store(closed, Ordering::Release);
    }
    let counted = Counted::from_words([about, route])?;
    Some(RowRead { counted, packets, words, is_open })
}

impl Read {
    /// Returns how many packets and words were added, as far as that is plausible.
    fn advance(&mut self, packets: u64, words: u64) -> (u64, u64) {
        let new = packets.wrapping_sub(self.packets);
        let new = if new <= MAX_PACKETS { new } else { 0 };
        self.waiting = self.waiting.saturating_add(words.wrapping_sub(self.words));
        self.room = self.room.saturating_add(new.saturating_mul(MAX_WORDS));
        let shown = self.waiting.min(self.room);
        (self.room, self.waiting) = (self.room - shown, self.waiting - shown);
        (self.packets, self.words) = (packets, words);
        (new, shown)
    }
}
