//! The side that reads.

use std::io;
use std::os::fd::AsFd;

use super::{Counted, MAGIC, MAX_PACKETS, MAX_WORDS, ROWS, at, row_at, state};
use crate::shared::{Mapping, Ordering, fence};

/// The rows of a process, for the owner of the subnet. It is the only one who reads them.
#[derive(Debug)]
pub struct RowReader {
    map: Mapping,
    read: Vec<Read>,
    /// The word that changes with what is dropped, as it was then.
    dropped: u64,
}

/// What was read of a row before.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    packets: u64,
    words: u64,
    /// Words that fit into packets that were shown, and have not been shown themselves.
    room: u64,
    /// Words that did not fit.
    waiting: u64,
}

/// What has been counted in a row since it was read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRead {
    /// Of what.
    pub counted: Counted,
    /// Packets.
    pub packets: u64,
    /// Words of four bytes.
    pub words: u64,
    /// Whether the row may still be counted in.
    pub is_open: bool,
}

impl RowReader {
    /// Maps rows that a process may have made. What was counted before counts.
    ///
    /// # Errors
    ///
    /// `InvalidData` for anything else than rows; `ENOMEM`.
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        let map = Mapping::map(fd, at::END)?;
        if map.word(0).load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "no counter rows"));
        }
        Ok(Self { map, read: Vec::new(), dropped: 0 })
    }

    /// Whether anything was counted since the last reading that the port drops itself.
    pub fn has_dropped(&self) -> bool {
        self.map.word(at::DROPPED).load(Ordering::Acquire) != self.dropped
    }

    /// Shows each row that is in use, or that has been since the last time. After a change of the table of ways, each way that it had before
    /// and that a process still counts by is among the open ones.
    pub fn read(&mut self, show: impl FnMut(&RowRead)) {
        self.read_within(|used| used, show);
    }

    /// The same of so many rows as `most` says, which gets how many have been in use, and of those that were read before. What others count is not
    /// known then, nor by which ways they do.
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
    // A row says what it counts as long as it is open, and then until that is known.
    let about = word(at::ABOUT).load(Ordering::Acquire);
    let (closed, known) = (word(at::CLOSED).load(Ordering::Relaxed), word(at::KNOWN));
    let is_open = match (about & 0xff) as u8 {
        state::OPEN => true,
        state::CLOSED if known.load(Ordering::Relaxed) != closed => false,
        // It may count something else by now, which is read the next time.
        _ => return None,
    };
    let route = word(at::ROUTE).load(Ordering::Relaxed);
    // Words first: those that are seen are of packets that are seen.
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
    /// How many packets and words more these are, as far as that is to be believed.
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
