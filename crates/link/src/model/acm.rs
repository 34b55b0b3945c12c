//! The table of paths of an ACM service, with a writer and a client.

use std::net::{Ipv4Addr, Ipv6Addr};

use loom::thread;
use rdmux_wire::acm::client::{PathData, PathFlags};
use rdmux_wire::sa::PathRecord;

use super::check;
use crate::acm::{Entry, Key, PathCache, PathTable};

/// An entry with the fields that models write.
fn entry(n: u8) -> Entry {
    let flags = PathFlags::from_bits_retain(n.into());
    let path = PathData { flags, path: PathRecord::from_bytes(&[0; 64]) };
    Entry { path, source: None, expiry: 100 + u64::from(n) }
}

/// Two keys whose addresses are zeros.
fn key(n: u8) -> Key {
    let dest = if n == 1 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    Key { source: None, dest }
}

/// Needs: the writer's fence between the odd sequence number and the words, that the even one is written with Release and read with
/// Acquire, and the reader's fence before it reads the sequence number again.
#[test]
fn cached_path_is_not_read_torn() {
    check(2, || {
        let mut table = PathTable::create(1, 0).unwrap();
        table.renew(50);
        table.put(&key(1), &entry(1), 0);
        let cache = PathCache::map(table.fd()).unwrap();
        let reader = thread::spawn(move || {
            if let Some(it) = cache.get(&key(1), 1) {
                assert!((1..4).any(|n| it == entry(n)), "{it:?}");
            }
        });
        table.put(&key(1), &entry(2), 0);
        table.put(&key(1), &entry(3), 0);
        reader.join().unwrap();
    });
}

/// Needs the same: the only slot is reused for another key.
#[test]
fn cached_path_lookup_never_returns_an_entry_of_another_key() {
    check(2, || {
        let mut table = PathTable::create(1, 0).unwrap();
        table.renew(50);
        table.put(&key(1), &entry(1), 0);
        let cache = PathCache::map(table.fd()).unwrap();
        let reader = thread::spawn(move || {
            let found = cache.get(&key(1), 1);
            assert!(found.is_none_or(|it| it == entry(1)), "{found:?}");
        });
        table.put(&key(2), &entry(2), 0);
        table.remove(&key(2));
        reader.join().unwrap();
    });
}

/// Needs: that the epoch changes with the number of slots in use, and is written with Release after it and read with Acquire before
/// it.
#[test]
fn cached_path_lookup_is_newest_or_none_while_slots_grow() {
    check(2, || {
        let mut table = PathTable::create(2, 0).unwrap();
        table.renew(50);
        table.put(&key(1), &entry(1), 0);
        let cache = PathCache::map(table.fd()).unwrap();
        let reader = thread::spawn(move || {
            let found = cache.get(&key(1), 1);
            assert!(found.is_none_or(|it| it == entry(1)), "{found:?}");
        });
        table.put(&key(2), &entry(2), 0);
        reader.join().unwrap();
    });
}

/// Needs: Release and Acquire of the lease.
#[test]
fn visible_lease_makes_earlier_entries_visible() {
    check(3, || {
        let mut table = PathTable::create(1, 0).unwrap();
        let cache = PathCache::map(table.fd()).unwrap();
        let reader = thread::spawn(move || {
            if cache.is_leased(1) {
                assert_eq!(cache.get(&key(1), 1), Some(entry(1)));
            }
        });
        table.put(&key(1), &entry(1), 0);
        table.renew(50);
        reader.join().unwrap();
    });
}
