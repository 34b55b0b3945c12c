//! A table of clients by their numbers.

use rdmux_acm::ClientId;
use slab::Slab;

/// The maximum number of clients.
pub(super) const MOST: usize = 1 << PLACE;
/// Number of low bits of a client's number that are its index. The other bits count clients, so that a number is not reused
/// soon.
const PLACE: u32 = 16;

/// A table of clients, or of values for each client.
#[derive(Debug)]
pub(super) struct Table<T> {
    all: Slab<(ClientId, T)>,
    count: u32,
}

impl<T> Table<T> {
    pub(super) fn new() -> Self {
        Self { all: Slab::new(), count: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the number of the next inserted client; none if the table is full.
    pub(super) fn next(&self) -> Option<ClientId> {
        let place = self.all.vacant_key();
        let place = u32::try_from(place).ok().filter(|_| place < MOST)?;
        Some(ClientId(self.count << PLACE | place))
    }

    /// Inserts a client, whose number is [`next`](Self::next).
    pub(super) fn insert(&mut self, value: T) {
        if let Some(id) = self.next() {
            self.all.insert((id, value));
            self.count = self.count.wrapping_add(1);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ClientId, &T)> {
        self.all.iter().map(|(_, (id, value))| (*id, value))
    }

    pub(super) fn get(&self, id: ClientId) -> Option<&T> {
        self.all.get(place(id)).filter(|(of, _)| *of == id).map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, id: ClientId) -> Option<&mut T> {
        self.all.get_mut(place(id)).filter(|(of, _)| *of == id).map(|(_, value)| value)
    }

    pub(super) fn remove(&mut self, id: ClientId) -> Option<T> {
        self.get(id)?;
        self.all.try_remove(place(id)).map(|(_, value)| value)
    }
}

fn place(id: ClientId) -> usize {
    usize::try_from(id.0).map_or(usize::MAX, |id| id % MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_client_id_stays_invalid_when_its_place_is_reused() {
        let mut table = Table::new();
        let mut last = None;
        for n in 0..1_u32 << PLACE {
            let id = table.next().unwrap();
            table.insert(n);
            assert_eq!((table.get(id), table.len()), (Some(&n), 1));
            assert!(table.get_mut(id).is_some());
            assert!(
                last.is_none_or(|last| table.get(last).is_none() && table.remove(last).is_none())
            );
            assert_eq!((table.remove(id), table.remove(id), table.get(id)), (Some(n), None, None));
            last = Some(id);
        }
        assert_eq!(place(last.unwrap()), place(table.next().unwrap()));
    }

    #[test]
    fn table_has_room_for_so_many_and_no_more() {
        let mut table = Table::new();
        while let Some(id) = table.next() {
            table.insert(());
            assert!(table.get(id).is_some());
        }
        assert_eq!(table.len(), MOST);
        table.insert(());
        assert_eq!(table.len(), MOST);
    }
}
