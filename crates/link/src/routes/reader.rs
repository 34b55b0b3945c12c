//! The readers' side of a table.

use std::io;
use std::os::fd::AsFd;

use rdmux_wire::Lid;

use super::{
    LINE, MAGIC, MAX_PEERS, NEXT, OWN_WORDS, OwnPort, Peer, PeerId, ROWS, Route, RouteId, USED,
    Way, Words, at, first, lid_entry, mlid_entry, peer_entry,
};
use crate::shared::{Ordering, ReadMapping, fence, size};

/// The maximum number of times that an entry that changes during the read is read again.
const TRIES: usize = size(16, 2);

/// A table that another process writes.
#[derive(Debug)]
pub struct RouteView {
    map: ReadMapping,
}

impl RouteView {
    /// Maps the table of a peer, which is not trusted.
    ///
    /// # Errors
    ///
    /// `InvalidData` for anything else than a table; `ENOMEM`.
    pub fn map(fd: impl AsFd) -> io::Result<Self> {
        let map = ReadMapping::map(fd, at::END)?;
        if map.load(0, Ordering::Acquire) != MAGIC {
            let what = "not a route table, or of another version";
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(Self { map })
    }

    /// Returns the number of the fabric, which is unique on the machine.
    pub fn fabric(&self) -> u64 {
        self.map.load(at::FABRIC, Ordering::Relaxed)
    }

    /// Returns the epoch. Lookups after this read remain valid as long as the epoch is unchanged.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.map.load(at::EPOCH, Ordering::Acquire)
    }

    /// Returns the port to which the table belongs; [`OwnPort::default`] if the table does not have it.
    pub fn own(&self) -> OwnPort {
        let port = self.settled(at::OWN, |place| {
            let at = match place {
                1 => at::OWN_PLACES,
                2 => at::OWN_PLACES + at::OWN_SIZE,
                _ => return None,
            };
            let mut words = [0; OWN_WORDS];
            self.load(at, &mut words);
            OwnPort::from_words(&words)
        });
        port.unwrap_or_default()
    }

    /// Returns the way to the port that has a LID, if any.
    pub fn way(&self, dlid: Lid) -> Option<Way> {
        self.route(dlid).way
    }

    /// Returns the entry of a port's LID; an empty one if the table has none.
    pub fn route(&self, dlid: Lid) -> Route {
        let found = lid_entry(dlid)
            .and_then(|entry| self.settled(entry, |row| Route::from_words(self.row(row)?.0)));
        found.unwrap_or_default()
    }

    /// Returns the ID by which packets to a LID, of a port or a group, are counted now.
    pub fn route_id(&self, lid: Lid) -> RouteId {
        if !lid.is_multicast() {
            return self.route(lid).id;
        }
        let found = mlid_entry(lid)
            .and_then(|entry| self.settled(entry, |row| Route::from_words(self.row(row)?.0)));
        found.unwrap_or_default().id
    }

    /// Returns the peer with this number, if any.
    pub fn peer(&self, id: PeerId) -> Option<Peer> {
        self.settled(peer_entry(id), |row| Peer::from_words(self.row(row)?.0))
    }

    /// Returns the peer that has a LID, whether or not a way to it exists.
    pub fn peer_with(&self, lid: Lid) -> Option<Peer> {
        let peer = |id| self.peer(id).filter(|peer| peer.has_lid(lid));
        let at_end = self.way(lid).and_then(|way| peer(way.peer));
        at_end.or_else(|| (1..=MAX_PEERS).filter_map(PeerId::new).find_map(peer))
    }

    /// Writes the ways to the ports that get a copy of a group's packets to `ways`, replacing its contents; none if there is no
    /// such group. Returns the ID by which packets to it are counted.
    pub fn group(&self, mlid: Lid, ways: &mut Vec<Way>) -> RouteId {
        let found = mlid_entry(mlid).and_then(|entry| {
            self.settled(entry, |mut row| {
                let mut all = RouteId::NONE;
                ways.clear();
                // No list is longer, unless it is cyclic.
                for _ in 0..=MAX_PEERS {
                    if row == 0 {
                        return Some(all);
                    }
                    let (words, next) = self.row(row)?;
                    let Route { id, way } = Route::from_words(words)?;
                    ways.extend(way);
                    (all, row) = (id, next);
                }
                None
            })
        });
        if found.is_none() {
            ways.clear();
        }
        found.unwrap_or_default()
    }

    /// Returns the result of `read` for an entry's rows, if they are consistent.
    fn settled<T>(&self, entry: usize, mut read: impl FnMut(u32) -> Option<T>) -> Option<T> {
        for _ in 0..TRIES {
            let word = self.map.load(entry, Ordering::Acquire);
            if first(word) == 0 {
                return None;
            }
            let value = read(first(word));
            fence(Ordering::Acquire);
            if self.map.load(entry, Ordering::Relaxed) == word {
                return value;
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Returns a row and the number of the next one.
    fn row(&self, row: u32) -> Option<(Words, u32)> {
        let at = (1..=ROWS).contains(&row).then(|| at::ROWS + (row as usize - 1) * LINE)?;
        let mut words = Words::default();
        self.load(at, &mut words[..USED]);
        Some((words, first(self.map.load(at + 8 * NEXT, Ordering::Relaxed))))
    }

    fn load(&self, at: usize, words: &mut [u64]) {
        for (i, word) in words.iter_mut().enumerate() {
            *word = self.map.load(at + 8 * i, Ordering::Relaxed);
        }
    }
}
