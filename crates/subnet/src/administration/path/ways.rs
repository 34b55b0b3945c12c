//! Ways from switches that were followed already.
//!
//! To follow a way through a large subnet reads two dozen places far from each other. All ports of a switch ask for the same ways, and all
//! answers to a port lead to the same LID, so that most ways were followed before.

use alloc::boxed::Box;
use alloc::vec;
use core::cell::Cell;

use rdmux_wire::Lid;

use super::route::Way;
use crate::topology::PortRef;

/// How many ways are kept. One that has the place of another replaces it.
const COUNT: usize = 1 << BITS;
const BITS: u32 = 14;

/// Ways by the switch where they begin and the LID.
#[derive(Debug, Default)]
pub(super) struct Ways(Box<[Cell<Entry>]>);

#[derive(Clone, Copy, Debug)]
struct Entry {
    switch: u32,
    lid: Lid,
    /// Where the way ends, its MTU and its rate.
    port: u8,
    mtu: u8,
    node: u32,
    rate: u8,
}

const EMPTY: Entry = Entry { switch: u32::MAX, lid: Lid(0), port: 0, mtu: 0, node: 0, rate: 0 };

impl Ways {
    /// Forgets all.
    pub(super) fn clear(&mut self) {
        if self.0.is_empty() {
            self.0 = vec![Cell::new(EMPTY); COUNT].into();
        }
        self.0.fill(Cell::new(EMPTY));
    }

    /// The way from a switch, by its node, to where packets with a LID end. One that is not known is followed by `follow`.
    pub(super) fn get(
        &self,
        switch: usize,
        lid: Lid,
        follow: impl FnOnce() -> Option<Way>,
    ) -> Option<Way> {
        let place = u32::try_from(switch).ok().filter(|&switch| switch != EMPTY.switch);
        let place = place.and_then(|switch| Some((switch, self.0.get(place_of(switch, lid))?)));
        let Some((switch, place)) = place else { return follow() };
        let entry = place.get();
        if (entry.switch, entry.lid) == (switch, lid) {
            let end = PortRef { node: entry.node as usize, port: entry.port };
            return Some(Way { end, mtu: entry.mtu, rate: entry.rate });
        }
        let way = follow()?;
        if let Ok(node) = u32::try_from(way.end.node) {
            let Way { end, mtu, rate } = way;
            place.set(Entry { switch, lid, port: end.port, mtu, node, rate });
        }
        Some(way)
    }
}

fn place_of(switch: u32, lid: Lid) -> usize {
    let key = switch.wrapping_shl(16) ^ switch.wrapping_shr(16) ^ u32::from(lid.0);
    (key.wrapping_mul(0x9e37_79b1) >> (u32::BITS - BITS)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(node: usize) -> Way {
        Way { end: PortRef { node, port: 3 }, mtu: 4, rate: 5 }
    }

    #[test]
    fn way_is_followed_once_until_all_are_forgotten_or_another_has_its_place() {
        let mut ways = Ways::default();
        let followed = Cell::new(0);
        let get = |ways: &Ways, switch: usize, lid: u16| {
            let found = ways.get(switch, Lid(lid), || {
                followed.set(followed.get() + 1);
                Some(way(switch + usize::from(lid)))
            });
            assert_eq!(found, Some(way(switch + usize::from(lid))));
            followed.get()
        };
        assert_eq!(
            (get(&ways, 7, 8), get(&ways, 7, 8)),
            (1, 2),
            "nothing is kept before it is cleared"
        );
        ways.clear();
        assert_eq!((get(&ways, 7, 8), get(&ways, 7, 8), get(&ways, 8, 7)), (3, 3, 4));
        ways.clear();
        assert_eq!(get(&ways, 7, 8), 5);
        // More than there is room for: each is right, whatever was there.
        for (switch, lid) in (0..300).flat_map(|switch| (1..200).map(move |lid| (switch, lid))) {
            get(&ways, switch, lid);
        }
        assert_eq!(ways.get(u32::MAX as usize, Lid(0), || None), None);
    }

    #[test]
    fn way_that_does_not_end_is_not_kept() {
        let mut ways = Ways::default();
        ways.clear();
        assert_eq!(ways.get(1, Lid(2), || None), None);
        assert_eq!(ways.get(1, Lid(2), || Some(way(9))), Some(way(9)));
    }
}
