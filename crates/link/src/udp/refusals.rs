//! Destinations to which the kernel has refused a kind of sending, so that it is not tried there each time.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The destinations to which the kernel has refused a kind of sending, or that it refuses it to all.
///
/// A refusal is forgotten when another destination takes its place in the table, and when the destination has been looked up
/// [`LASTS`](Self::LASTS) times, since routes and policies change. Two IPv6 addresses that cannot be told apart share refusals. Threads
/// that look up the same destination at once may count once for both.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// Whether the kernel refuses it to all destinations.
    everywhere: AtomicBool,
    /// Whether the table has had a destination.
    any: AtomicBool,
    /// In each place, the upper 48 bits identify a destination, and the lower 16 are the number of lookups left; zero if none are.
    places: [AtomicU64; Self::PLACES],
}

impl Refusals {
    /// The number of places of the table. A destination has one possible place.
    const PLACES: usize = 1 << Self::PLACE_BITS;
    const PLACE_BITS: u32 = 5;
    /// The number of lookups for which a refusal is known.
    pub(super) const LASTS: u64 = 4096;
    /// The bits of a place that count lookups.
    const COUNT: u64 = 0xffff;

    /// Returns whether the kernel has refused it to a destination.
    #[inline]
    pub(super) fn has(&self, to: SocketAddr) -> bool {
        self.everywhere.load(Relaxed) || (self.any.load(Relaxed) && self.find(to))
    }

    #[cold]
    fn find(&self, to: SocketAddr) -> bool {
        let (place, name) = self.place(to);
        let found = place.load(Relaxed);
        let has = found & Self::COUNT != 0 && found & !Self::COUNT == name;
        if has {
            place.store(found - 1, Relaxed);
        }
        has
    }

    /// Records that the kernel has refused it to a destination.
    #[cold]
    pub(super) fn add(&self, to: SocketAddr) {
        let (place, name) = self.place(to);
        place.store(name | Self::LASTS, Relaxed);
        self.any.store(true, Relaxed);
    }

    /// Records that the kernel refuses it to all destinations.
    #[cold]
    pub(super) fn add_all(&self) {
        self.everywhere.store(true, Relaxed);
    }

    /// Returns the place of a destination in the table, and the bits that identify it there. Its port makes no difference.
    fn place(&self, to: SocketAddr) -> (&AtomicU64, u64) {
        /// An odd number whose bits look random (2^64 divided by the golden ratio).
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let ip = match to.ip() {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            IpAddr::V6(ip) => {
                let [high, low] = [ip.to_bits() >> 64, ip.to_bits() & u128::from(u64::MAX)]
                    .map(|half| u64::try_from(half).unwrap_or_default());
                high.wrapping_mul(FACTOR).rotate_left(32) ^ low
            }
        };
        // Bits of a product depend only on lower bits of the factors, so the upper ones are used.
        let mixed = (ip ^ ip >> 32).wrapping_mul(FACTOR);
        let place = usize::try_from(mixed >> (u64::BITS - Self::PLACE_BITS)).unwrap_or_default();
        (&self.places[place % Self::PLACES], mixed << Self::PLACE_BITS & !Self::COUNT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u16) -> SocketAddr {
        let [a, b] = n.to_be_bytes();
        ([10, 7, a, b], 4791).into()
    }

    #[test]
    fn refusal_of_one_destination_is_of_no_other() {
        for to in [host(1), "[fd77::1]:4791".parse().unwrap()] {
            let refusals = Refusals::default();
            assert!(!refusals.has(to));
            refusals.add(to);
            assert!(refusals.has(to) && refusals.has(SocketAddr::new(to.ip(), 1)));
            let v6 = (1..500).map(|n| SocketAddr::new([0xfd77, 0, 0, 0, 0, 0, n, 2].into(), 4791));
            assert!(!(2..500).map(host).chain(v6).any(|other| refusals.has(other)));
        }
    }

    #[test]
    fn refusal_ends_when_it_was_looked_up_often_enough() {
        let refusals = Refusals::default();
        refusals.add(host(1));
        assert!((0..Refusals::LASTS).all(|_| refusals.has(host(1))));
        assert!(!refusals.has(host(1)));
        refusals.add(host(1));
        assert!(refusals.has(host(1)));
    }

    #[test]
    fn newer_refusals_take_the_places_of_older_ones() {
        let refusals = Refusals::default();
        for n in 0..1000 {
            refusals.add(host(n));
            assert!(refusals.has(host(n)));
        }
        let known = (0..1000).filter(|n| refusals.has(host(*n))).count();
        assert_eq!(known, Refusals::PLACES, "every place is in use");
        refusals.add_all();
        assert!((0..1000).all(|n| refusals.has(host(n))));
    }
}
