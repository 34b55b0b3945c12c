//! A cache of routes from switches to LIDs.
//!
//! Following a route through a large subnet reads two dozen distant cache lines. All ports of a switch need the same routes,
//! and all answers to a port lead to the same LID, so that most routes were followed before.

use rdmux_wire::Lid;

use super::route::Way;
use super::sets::Sets;
use crate::topology::PortRef;

/// Cached routes per port with a LID.
const FOR_EACH_PORT: usize = 4;
/// The most cached routes, of 16 bytes each.
const MOST: usize = 1 << 18;

/// Routes by the switch where they begin and the LID.
#[derive(Debug, Default)]
pub(super) struct Ways(Sets<Entry>);

/// A cached route: its end port, with its MTU and rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entry {
    /// The node of the end port.
    node: u32,
    port: u8,
    mtu: u8,
    rate: u8,
}

impl Ways {
    /// Clears the cache and makes room for a subnet with this many ports that have LIDs.
    pub(super) fn clear(&mut self, ports: usize) {
        self.0.clear(ports.saturating_mul(FOR_EACH_PORT).min(MOST));
    }

    /// Returns the route from a switch, named by its node, to the end port of a LID; calls `follow` if it is not cached.
    pub(super) fn get(
        &self,
        switch: usize,
        lid: Lid,
        follow: impl FnOnce() -> Option<Way>,
    ) -> Option<Way> {
        let key = (switch as u64) << 16 | u64::from(lid.0);
        let find = || {
            let Way { end, mtu, rate } = follow()?;
            let node = u32::try_from(end.node).ok()?;
            Some(Entry { node, port: end.port, mtu, rate })
        };
        let Entry { node, port, mtu, rate } = self.0.get(key, find)?;
        Some(Way { end: PortRef { node: node as usize, port }, mtu, rate })
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;

    fn way(node: usize) -> Way {
        Way { end: PortRef { node, port: 3 }, mtu: 4, rate: 5 }
    }

    #[test]
    fn route_is_cached_until_clear_or_eviction() {
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
        ways.clear(4);
        assert_eq!((get(&ways, 7, 8), get(&ways, 7, 8), get(&ways, 8, 7)), (3, 3, 4));
        ways.clear(4);
        assert_eq!(get(&ways, 7, 8), 5);
        // More routes than fit: each answer is right, whatever was evicted.
        for (switch, lid) in (0..300).flat_map(|switch| (1..200).map(move |lid| (switch, lid))) {
            get(&ways, switch, lid);
        }
    }

    #[test]
    fn unreachable_route_is_not_cached() {
        let mut ways = Ways::default();
        ways.clear(4);
        assert_eq!(ways.get(1, Lid(2), || None), None);
        assert_eq!(ways.get(1, Lid(2), || Some(way(9))), Some(way(9)));
    }
}
