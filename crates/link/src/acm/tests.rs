//! Entries, expiry, replacement, and reading while the table is written.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::AtomicBool;
use std::thread;

use rdmux_wire::Lid;

use super::*;
use crate::shared::{Mapping, Ordering};

fn pair(slots: usize) -> (PathTable, PathCache) {
    let mut table = PathTable::create(slots, 7).unwrap();
    table.renew(1000);
    let cache = PathCache::map(table.fd()).unwrap();
    (table, cache)
}

fn name(n: u32) -> Address {
    Address::name(format!("node{n}")).unwrap()
}

fn key(n: u32) -> Key {
    Key { source: None, dest: name(n) }
}

/// An entry whose fields are all derived from `n`.
fn entry(n: u32) -> Entry {
    let (ip, mut path) = (Ipv6Addr::from_bits(u128::from(n) << 70 | u128::from(n)), [0; 64]);
    path.as_chunks_mut().0.fill(n.to_be_bytes());
    let path =
        PathData { flags: PathFlags::from_bits_retain(n), path: PathRecord::from_bytes(&path) };
    Entry { path, source: Some(ip.into()), expiry: 2000 + u64::from(n) }
}

fn number(entry: &Entry) -> u32 {
    entry.path.flags.bits()
}

#[test]
fn entry_is_found_by_its_key_until_it_is_removed() {
    let (mut table, cache) = pair(64);
    assert_eq!(cache.get(&key(1), 1), None);
    let other = Key { source: Some(name(9)), ..key(1) };
    let kind = Key { dest: Lid(1).into(), ..key(1) };
    for (n, key) in (1..).zip([key(1), other, kind, key(2)]) {
        assert!(table.put(&key, &entry(n), 0));
        assert_eq!(cache.get(&key, 1), Some(entry(n)));
    }
    assert_eq!(cache.get(&key(1), 1), Some(entry(1)));
    for source in [None, Some([10, 1, 2, 3].into()), Some(Ipv6Addr::LOCALHOST.into())] {
        let entry = Entry { source, ..entry(7) };
        table.put(&key(1), &entry, 0);
        assert_eq!(cache.get(&key(1), 1), Some(entry));
    }
    assert!(table.remove(&key(1)) && !table.remove(&key(1)));
    assert_eq!((cache.get(&key(1), 1), cache.get(&other, 1)), (None, Some(entry(2))));
}

#[test]
fn expired_and_flushed_entries_reuse_their_slots() {
    let (mut table, _cache) = pair(16);
    let first = |n: u32| window(Sought::new(&key(n), 7).hash, 16).next().unwrap();
    let file = File::from(table.fd().try_clone().unwrap());
    let used = || {
        let mut bytes = vec![0; bytes(16)];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes[at::FIRST..].chunks(SLOT).filter(|slot| slot[at::HASH..][..8] != [0; 8]).count()
    };
    // The windows of all these keys start at one slot.
    for (now, n) in (0..).zip((0..1000).filter(|n| first(*n) == first(0)).take(20)) {
        assert!(table.put(&key(n), &Entry { expiry: now + 1, ..entry(n) }, now));
        assert_eq!(used(), 1, "the one before has expired");
    }
    for n in 0..9 {
        table.flush();
        assert!(table.put(&key(0), &entry(n), 0));
        assert_eq!(used(), 1, "those before do not count");
    }
}

#[test]
fn entry_is_not_found_after_expiry_flush_or_lease_end() {
    let (mut table, cache) = pair(64);
    table.renew(3000);
    table.put(&key(1), &entry(1), 0);
    assert_eq!((cache.get(&key(1), 2000), cache.get(&key(1), 2001)), (Some(entry(1)), None));
    table.flush();
    assert_eq!(cache.get(&key(1), 1), None);
    table.put(&key(1), &entry(1), 0);
    assert_eq!(cache.get(&key(1), 1), Some(entry(1)));
    table.renew(500);
    assert!(cache.is_leased(499) && !cache.is_leased(500));
    assert_eq!(cache.get(&key(1), 500), None);
    table.renew(1000 + MAX_LEASE);
    assert!(cache.is_leased(1000) && !cache.is_leased(999), "nobody is believed for so long");
    table.renew(1000);
    drop(table);
    assert_eq!((cache.is_leased(1), cache.get(&key(1), 1)), (false, None));
}

#[test]
fn full_window_evicts_the_entry_that_expires_first() {
    let (mut table, cache) = pair(WINDOW);
    let entries = u32::try_from(WINDOW).unwrap();
    assert!((1..=entries).all(|n| table.put(&key(n), &entry(n), 0)));
    assert!((1..=entries).all(|n| cache.get(&key(n), 1) == Some(entry(n))));
    assert!(!table.put(&key(100), &entry(100), 0), "it displaced one");
    let found: Vec<_> = (1..=entries).filter(|n| cache.get(&key(*n), 1).is_some()).collect();
    assert_eq!(found, (2..=entries).collect::<Vec<_>>());
    // An expired entry is replaced without loss.
    assert!(table.put(&key(101), &entry(101), 2002));
    assert_eq!((cache.get(&key(2), 1), cache.get(&key(100), 1)), (None, Some(entry(100))));
}

#[test]
fn half_full_table_evicts_at_most_8_of_4096_entries() {
    let (mut table, cache) = pair(8192);
    let lost = (0..4096).filter(|n| !table.put(&key(*n), &entry(*n), 0)).count();
    let found = (0..4096).filter(|n| cache.get(&key(*n), 1) == Some(entry(*n))).count();
    assert!(lost <= 8 && found + lost >= 4096, "{lost}, {found}");
}

#[test]
fn slots_in_use_grow_with_the_entries_without_losing_any() {
    let (mut table, cache) = pair(1 << 17);
    let in_use = || cache.in_use();
    for n in 0..3000 {
        assert!(table.put(&key(n), &entry(n), 0));
        let most = FIRST_SLOTS.max(8 * (usize::try_from(n).unwrap() + 1));
        assert!(in_use() <= most, "{} for {n} entries", in_use());
        if n.is_power_of_two() {
            assert!((0..=n).all(|n| cache.get(&key(n), 1) == Some(entry(n))));
        }
    }
    assert!((0..3000).all(|n| cache.get(&key(n), 1) == Some(entry(n))));
    // Expired entries are not kept, and the slots are reused after a flush.
    let before = in_use();
    table.flush();
    assert!((0..3000).all(|n| cache.get(&key(n), 1).is_none()));
    assert!((0..3000).all(|n| table.put(&key(n), &entry(n), 0)));
    assert_eq!(in_use(), before);
}

#[test]
fn reader_finds_newest_entry_or_none_while_slots_grow() {
    let (mut table, cache) = pair(1 << 14);
    table.put(&key(0), &entry(0), 0);
    let newest = std::sync::atomic::AtomicU32::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..4000 {
                // The entries of key 0 have even numbers.
                table.put(&key(2 * n + 1), &entry(2 * n + 1), 0);
                table.put(&key(0), &entry(2 * n), 0);
                newest.store(2 * n, Ordering::Release);
            }
            newest.store(u32::MAX, Ordering::Release);
        });
        loop {
            let before = newest.load(Ordering::Acquire);
            if before == u32::MAX {
                break;
            }
            if let Some(found) = cache.get(&key(0), 1) {
                let n = number(&found);
                assert!(n.is_multiple_of(2) && n >= before && found == entry(n), "{n}, {before}");
            }
        }
    });
}

#[test]
fn each_visits_the_unexpired_entries_kept_by_retain() {
    let (mut table, cache) = pair(256);
    (0..100).for_each(|n| assert!(table.put(&key(n), &entry(n), 0)));
    table.retain(2010, |_, entry| number(entry).is_multiple_of(2));
    let mut seen = Vec::new();
    table.renew(2020);
    cache.each(2012, |found, it| {
        assert_eq!((*found, *it), (key(number(it)), entry(number(it))));
        seen.push(number(it));
    });
    seen.sort_unstable();
    assert_eq!(seen, (14..100).step_by(2).collect::<Vec<_>>());
}

#[test]
fn nothing_is_read_torn_while_it_is_written() {
    let (mut table, cache) = pair(WINDOW);
    table.renew(1500);
    let stop = AtomicBool::new(false);
    table.put(&key(1), &entry(1), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..100_000 {
                table.put(&key(n % 3), &entry(n), 0);
                if n % 16 == 0 {
                    table.remove(&key(n % 3));
                }
            }
            stop.store(true, Ordering::Release);
        });
        while !stop.load(Ordering::Acquire) {
            for n in 0..3 {
                let found = cache.get(&key(n), 1);
                assert!(found.is_none_or(|it| number(&it) % 3 == n && it == entry(number(&it))));
            }
        }
    });
}

#[test]
fn readers_cannot_write() {
    let (table, _cache) = pair(16);
    let error = Mapping::map(table.fd(), 4096).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
}

#[test]
fn slot_count_is_rounded_to_a_power_of_two_within_bounds() {
    for (asked, made) in [(0, 16), (17, 32), (usize::MAX, MAX_SLOTS)] {
        let table = PathTable::create(asked, 0).unwrap();
        let size = rustix::fs::fstat(table.fd()).unwrap().st_size;
        assert_eq!(usize::try_from(size).unwrap(), bytes(made));
        PathCache::map(table.fd()).unwrap();
    }
}

/// A table with a malicious writer.
fn hostile(slots: u64, size: usize) -> (Mapping, std::io::Result<PathCache>) {
    let fd = Mapping::create_fd("hostile", size).unwrap();
    let map = Mapping::map(&fd, size).unwrap();
    map.word(0).store(MAGIC, Ordering::Relaxed);
    map.word(at::SLOTS).store(slots, Ordering::Relaxed);
    map.word(at::LEASE).store(1000, Ordering::Relaxed);
    (map, PathCache::map(&fd))
}

#[test]
fn what_is_no_table_is_not_taken_for_one() {
    let (size, long) = (bytes(64), (MAX_SLOTS as u64) << 1);
    for slots in [0, 1, 8, 48, 128, long, u64::MAX, 1 << 63] {
        let (_map, cache) = hostile(slots, size);
        assert!(cache.is_err(), "{slots}");
    }
    let fd = Mapping::create_fd("other", size).unwrap();
    assert_eq!(PathCache::map(&fd).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    let short = Mapping::create_fd("short", 64).unwrap();
    assert!(PathCache::map(&short).is_err());
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(PathCache::map(&file).is_err(), "it could be cut short");
}

#[test]
fn any_words_at_all_are_only_something_or_nothing() {
    let (map, cache) = hostile(64, bytes(64));
    let cache = cache.unwrap();
    let mut x = 88_172_645_463_325_252_u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    for _ in 0..200 {
        map.word(at::IN_USE).store(next(), Ordering::Relaxed);
        for word in &map.words()[at::FIRST / 8..] {
            word.store(next(), Ordering::Relaxed);
        }
        let hash = Sought::new(&key(1), 0).hash;
        for slot in window(hash, 64) {
            map.word(slot).store(next() & !1, Ordering::Relaxed);
            map.word(slot + at::HASH).store(hash, Ordering::Relaxed);
            map.word(slot + at::CONTENT).store(0, Ordering::Relaxed);
        }
        assert_eq!(cache.get(&key(1), 1), None, "no slot has the key");
        cache.each(1, |_, entry| assert!(entry.expiry > 1));
    }
}

#[test]
fn slot_of_a_writer_that_died_midway_is_read_as_empty() {
    let (map, cache) = hostile(16, bytes(16));
    let cache = cache.unwrap();
    let hash = Sought::new(&key(1), 0).hash;
    let slot = window(hash, 16).next().unwrap();
    map.word(slot + at::HASH).store(hash, Ordering::Relaxed);
    for (i, word) in content(&Sought::new(&key(1), 0), &entry(1), 0).into_iter().enumerate() {
        map.word(slot + at::CONTENT + 8 * i).store(word, Ordering::Relaxed);
    }
    assert_eq!(cache.get(&key(1), 1), Some(entry(1)));
    map.word(slot).store(1, Ordering::Relaxed);
    assert_eq!(cache.get(&key(1), 1), None);
}
