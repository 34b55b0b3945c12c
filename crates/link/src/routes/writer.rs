//! The writer's side of a table.

use std::io;
use std::os::fd::OwnedFd;

use rdmux_wire::Lid;

use super::{
    LINE, MAGIC, MAX_PEERS, NEXT, OwnPort, Peer, PeerId, ROWS, Route, RouteId, USED, Way, Words,
    at, first, lid_entry, mlid_entry, peer_entry,
};
use crate::shared::{Mapping, Ordering, fence};

/// The reason why an entry was not written. Its old value is removed as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// All rows are in use.
    #[error("the route table is full")]
    Full,
    /// A LID that is not of a port, a multicast LID that is not of a group, a group of more than [`MAX_PEERS`] ways, an
    /// LMC above 7, or a peer without an address.
    #[error("a route table has no such entry")]
    OutOfRange,
}

/// The table of one port, which only this process can change.
#[derive(Debug)]
pub struct RouteTable {
    fd: OwnedFd,
    map: Mapping,
    /// The numbers, from 1 on, of rows that are no longer in use.
    free: Vec<u32>,
    /// The highest number of a row that has been in use.
    pub(super) used: u32,
    /// Whether the table has changed since the last [`publish`](Self::publish).
    changed: bool,
}

impl RouteTable {
    /// Creates the table of a port that is not active and has no routes, on a fabric without a number. The epoch is 1.
    ///
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn create() -> io::Result<Self> {
        Self::of_fabric(0)
    }

    /// Creates a table like [`create`](Self::create), on the fabric with this number. The number should be random, so that
    /// the machine's fabrics have different ones.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    pub fn of_fabric(number: u64) -> io::Result<Self> {
        let (fd, map) = Mapping::create_readable("rdmux-routes", at::END)?;
        map.word(at::FABRIC).store(number, Ordering::Relaxed);
        map.word(at::EPOCH).store(1, Ordering::Relaxed);
        map.word(0).store(MAGIC, Ordering::Release);
        Ok(Self { fd, map, free: Vec::new(), used: 0, changed: false })
    }

    /// Returns the descriptor, to be passed to readers. They can only read.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Sets the properties of the port.
    ///
    /// # Errors
    ///
    /// [`RouteError::OutOfRange`]; nothing was changed.
    pub fn set_own(&mut self, port: &OwnPort) -> Result<(), RouteError> {
        if port.lmc > 7 {
            return Err(RouteError::OutOfRange);
        }
        let (entry, words) = (self.map.word(at::OWN), port.to_words());
        let old = entry.load(Ordering::Relaxed);
        // The two places are used alternately.
        let place = |first: u32| at::OWN_PLACES + (first as usize - 1) % 2 * at::OWN_SIZE;
        if first(old) != 0 {
            let there = self.map.row(place(first(old)), words.len());
            if there.zip(words).all(|(there, word)| there.load(Ordering::Relaxed) == word) {
                return Ok(());
            }
        }
        let next = if first(old) == 1 { 2 } else { 1 };
        // See `put`.
        fence(Ordering::Release);
        for (there, word) in self.map.row(place(next), words.len()).zip(words) {
            there.store(word, Ordering::Relaxed);
        }
        entry.store(written_again(old, next), Ordering::Release);
        self.changed = true;
        Ok(())
    }

    /// Sets the address of a peer, or removes it.
    ///
    /// # Errors
    ///
    /// [`RouteError`]; there is no such peer then.
    pub fn set_peer(&mut self, id: PeerId, peer: Option<&Peer>) -> Result<(), RouteError> {
        let checked = peer.and_then(|peer| peer.checked());
        self.set(peer_entry(id), checked.iter().map(|peer| peer.to_words()))?;
        if peer.is_some() && checked.is_none() { Err(RouteError::OutOfRange) } else { Ok(()) }
    }

    /// Sets the way to the port that has a LID, or removes it. The own LIDs need no way.
    ///
    /// # Errors
    ///
    /// [`RouteError`]; packets to this LID are lost then.
    pub fn set_way(&mut self, dlid: Lid, way: Option<&Way>) -> Result<(), RouteError> {
        self.set_route(dlid, Route { id: RouteId::NONE, way: way.copied() })
    }

    /// Sets a way like [`set_way`](Self::set_way), with the ID by which packets to the LID are counted.
    ///
    /// # Errors
    ///
    /// As for [`set_way`](Self::set_way).
    pub fn set_route(&mut self, dlid: Lid, route: Route) -> Result<(), RouteError> {
        let entry = lid_entry(dlid).ok_or(RouteError::OutOfRange)?;
        let row = (route != Route::default()).then(|| route.to_words());
        self.set(entry, row.into_iter())
    }

    /// Sets the ways to the ports that get a copy of a group's packets.
    ///
    /// # Errors
    ///
    /// [`RouteError`]; packets to this group are lost then.
    pub fn set_group(&mut self, mlid: Lid, ways: &[Way]) -> Result<(), RouteError> {
        self.set_group_route(mlid, RouteId::NONE, ways)
    }

    /// Sets a group like [`set_group`](Self::set_group), with the ID by which packets to the group are counted.
    ///
    /// # Errors
    ///
    /// As for [`set_group`](Self::set_group).
    pub fn set_group_route(
        &mut self,
        mlid: Lid,
        id: RouteId,
        ways: &[Way],
    ) -> Result<(), RouteError> {
        let entry = mlid_entry(mlid).ok_or(RouteError::OutOfRange)?;
        let fits = ways.len() <= MAX_PEERS.into();
        let ways = if fits { ways } else { &[] };
        if ways.is_empty() && id != RouteId::NONE {
            self.set(entry, [Route { id, way: None }.to_words()].into_iter())?;
        } else {
            let route = |way: &Way| Route { id, way: Some(*way) }.to_words();
            self.set(entry, ways.iter().map(route))?;
        }
        if fits { Ok(()) } else { Err(RouteError::OutOfRange) }
    }

    /// Raises the epoch if there are changes since the last call: readers then discard cached lookups. Returns the present epoch.
    pub fn publish(&mut self) -> u64 {
        let word = self.map.word(at::EPOCH);
        let epoch = word.load(Ordering::Relaxed);
        if !std::mem::take(&mut self.changed) {
            return epoch;
        }
        let epoch = epoch.wrapping_add(1);
        word.store(epoch, Ordering::Release);
        epoch
    }

    /// Writes an entry, unless it is unchanged.
    fn set(
        &mut self,
        entry: usize,
        rows: impl DoubleEndedIterator<Item = Words> + ExactSizeIterator + Clone,
    ) -> Result<(), RouteError> {
        if self.holds(entry, rows.clone()) {
            return Ok(());
        }
        if self.room() < rows.len() {
            // The old rows of the entry make room for the new ones. Readers find none in between.
            self.point(entry, 0);
            if self.room() < rows.len() {
                return Err(RouteError::Full);
            }
        }
        let row = rows.rev().fold(0, |next, words| self.put(words, next));
        self.point(entry, row);
        Ok(())
    }

    /// Returns whether an entry has these rows.
    fn holds(&self, entry: usize, rows: impl Iterator<Item = Words>) -> bool {
        let mut row = first(self.map.word(entry).load(Ordering::Relaxed));
        for words in rows {
            let Some(at) = self.row_at(row) else { return false };
            let there = self.map.row(at, words.len());
            if !there.zip(words).all(|(there, word)| there.load(Ordering::Relaxed) == word) {
                return false;
            }
            row = self.next(at);
        }
        row == 0
    }

    /// Returns the number of unused rows.
    fn room(&self) -> usize {
        self.free.len() + (ROWS - self.used) as usize
    }

    /// Writes an unused row, and returns its number. There must be room.
    fn put(&mut self, words: Words, next: u32) -> u32 {
        let row = self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used
        });
        if let Some(at) = self.row_at(row) {
            // A reader that sees any of these words while it follows an entry that had this row also sees that the entry no
            // longer has it.
            fence(Ordering::Release);
            for (there, word) in self.map.row(at, USED).zip(words) {
                there.store(word, Ordering::Relaxed);
            }
            self.map.word(at + 8 * NEXT).store(next.into(), Ordering::Relaxed);
        }
        row
    }

    /// Sets the first row of an entry; zero for none. Its old rows are freed.
    fn point(&mut self, entry: usize, row: u32) {
        let word = self.map.word(entry);
        let old = word.load(Ordering::Relaxed);
        word.store(written_again(old, row), Ordering::Release);
        self.changed = true;
        let mut gone = first(old);
        // Only this process can have written these words, if the kernel has that seal. Otherwise no more rows are freed than
        // exist.
        while let Some(at) = self.row_at(gone) {
            if self.free.len() >= self.used as usize {
                break;
            }
            self.free.push(gone);
            gone = self.next(at);
        }
    }

    fn row_at(&self, row: u32) -> Option<usize> {
        (1..=self.used).contains(&row).then(|| at::ROWS + (row as usize - 1) * LINE)
    }

    fn next(&self, at: usize) -> u32 {
        first(self.map.word(at + 8 * NEXT).load(Ordering::Relaxed))
    }
}

/// Returns the next value of an entry, with this row.
const fn written_again(old: u64, row: u32) -> u64 {
    ((old >> 32).wrapping_add(1) << 32) | row as u64
}
