//! Entries, eviction, and the size of a cache.

use super::*;
use alloc::format;
use alloc::vec::Vec;

fn cache(max: usize) -> Cache {
    Cache::new([7; 16], max)
}

fn holder(n: u64) -> Holder {
    let lid = Lid(u16::try_from(n % 40_000 + 1).unwrap());
    Holder { gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(n)), lid, qpn: Qpn::new(9), group: Some(0) }
}

fn name(n: usize) -> Address {
    Address::name(format!("node{n}")).unwrap()
}

fn path(n: u64, sl: u8) -> PathRecord {
    let Holder { gid: dgid, lid: dlid, .. } = holder(n);
    PathRecord { dgid, dlid, sl, ..PathRecord::default() }
}

#[test]
fn entries_take_44_bytes() {
    assert_eq!(size_of::<Entry>(), 44);
}

#[test]
fn every_address_type_is_found_in_cache_until_removed() {
    let mut cache = cache(100);
    let addresses = [
        name(1),
        Address::name([b'x'; 16]).unwrap(),
        Address::name([b'x'; 17]).unwrap(),
        Address::name([b'x'; 63]).unwrap(),
        Address::Ip4([10, 0, 0, 1].into()),
        Address::Ip6([1; 16].into()),
        Address::Gid(Gid([1; 16])),
        Address::Lid(Lid(0x0a00)),
    ];
    for (n, address) in addresses.iter().enumerate() {
        let at = cache.put(&cache.hashed(address), &holder(n as u64), 10).unwrap();
        assert_eq!((cache.find(&cache.hashed(address)), cache.address(at)), (Some(at), *address));
    }
    for (n, address) in addresses.iter().enumerate() {
        assert_eq!(cache.holder(cache.find(&cache.hashed(address)).unwrap()), holder(n as u64));
    }
    for (n, address) in addresses.iter().enumerate() {
        cache.remove(cache.find(&cache.hashed(address)).unwrap());
        assert_eq!(cache.find(&cache.hashed(address)), None);
        let left =
            addresses[n + 1..].iter().filter(|left| cache.find(&cache.hashed(left)).is_some());
        assert_eq!(left.count(), addresses.len() - n - 1);
    }
    assert_eq!(cache.len(), 0);
}

#[test]
fn memory_of_removed_long_names_is_reused() {
    let mut cache = cache(100);
    for round in 0..50 {
        let address = Address::name(format!("a-name-of-more-than-16-bytes-{round}")).unwrap();
        let at = cache.put(&cache.hashed(&address), &holder(1), 10).unwrap();
        cache.remove(at);
    }
    assert!(cache.names.bytes() < 500, "{}", cache.names.bytes());
}

#[test]
fn equal_paths_are_kept_once() {
    let mut cache = cache(1000);
    for n in 0..500 {
        let at = cache.put(&cache.hashed(&name(n)), &holder(n as u64), 10).unwrap();
        let path = path(n as u64, u8::try_from(n % 4).unwrap());
        assert!(cache.set_way(at, &Way::Path(path), 10));
        assert_eq!(cache.way(at, 9), Way::Path(path));
        assert_eq!(cache.way(at, 10), Way::None);
    }
    assert_eq!(cache.paths.len(), 4);
    for n in 0..500 {
        cache.remove(cache.find(&cache.hashed(&name(n))).unwrap());
    }
    assert_eq!(cache.paths.len(), 0);
    assert!(cache.bytes() < 8000, "{}", cache.bytes());
}

#[test]
fn changed_holder_of_an_address_drops_its_cached_path() {
    let mut cache = cache(10);
    let at = cache.put(&cache.hashed(&name(1)), &holder(1), 10).unwrap();
    cache.set_way(at, &Way::Path(path(1, 0)), 10);
    cache.put(&cache.hashed(&name(1)), &Holder { qpn: Qpn::new(77), ..holder(1) }, 20);
    assert_eq!(cache.way(at, 5), Way::Path(path(1, 0)));
    cache.put(&cache.hashed(&name(1)), &holder(2), 20);
    assert_eq!((cache.way(at, 5), cache.holder(at)), (Way::None, holder(2)));
}

#[test]
fn unsolicited_entries_evict_only_unrequested_ones() {
    let mut cache = cache(100);
    for n in 0..100 {
        let at = cache.put(&cache.hashed(&name(n)), &holder(n as u64), 10).unwrap();
        if n < 40 {
            cache.set_used(at);
        }
    }
    assert_eq!(cache.put(&cache.hashed(&name(1000)), &holder(1), 10), None);
    for n in 1000..3000 {
        if let Ok(Some(at)) = cache.victim(By::Stranger, 1) {
            cache.remove(at);
            cache.put(&cache.hashed(&name(n)), &holder(1), 10).unwrap();
        }
    }
    assert!((0..40).all(|n| cache.find(&cache.hashed(&name(n))).is_some()));
    assert_eq!(cache.len(), 100);
    // Programs evict entries that no program has requested since.
    for n in 4000..4100 {
        let at = cache.victim(By::Us, 1).unwrap().unwrap();
        cache.remove(at);
        let at = cache.put(&cache.hashed(&name(n)), &holder(1), 10).unwrap();
        cache.set_used(at);
    }
    assert_eq!(cache.len(), 100);
}

#[test]
fn unsolicited_entry_evicts_nothing_from_cache_full_of_used_entries() {
    let mut cache = cache(10);
    for n in 0..10 {
        let at = cache.put(&cache.hashed(&name(n)), &holder(1), 10).unwrap();
        cache.set_used(at);
    }
    assert_eq!(cache.victim(By::Stranger, 1), Err(()));
    // Except for expired entries.
    assert!(matches!(cache.victim(By::Stranger, 10), Ok(Some(_))));
}

#[test]
fn loaded_entries_are_never_evicted() {
    let mut cache = cache(1000);
    for n in 0..1000 {
        let at = cache.put(&cache.hashed(&name(n)), &holder(1), FOREVER).unwrap();
        if n != 500 {
            cache.set_loaded(at);
        }
    }
    // There are more entries than a remote endpoint's address may check, and the first check repeatedly finds the
    // one to evict.
    for n in 2000..2010 {
        let at = cache.victim(By::Stranger, 1).unwrap().unwrap();
        assert!(!cache.is_loaded(at));
        cache.remove(at);
        cache.put(&cache.hashed(&name(n)), &holder(1), 10).unwrap();
    }
    let last = cache.victim(By::Us, 1).unwrap().unwrap();
    assert_eq!(cache.address(last), name(2009));
    cache.set_loaded(last);
    assert_eq!([By::Us, By::Stranger].map(|by| cache.victim(by, 1)), [Err(()), Err(())]);
}

#[test]
fn random_cache_inserts_and_removals_keep_entries_and_loaded_flags() {
    let mut cache = cache(40);
    let mut loaded = alloc::collections::BTreeMap::new();
    let mut dice = 1_u32;
    for _ in 0..5000 {
        dice = dice.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let n = (dice >> 16) as usize % 60;
        match (cache.find(&cache.hashed(&name(n))), dice >> 28) {
            (Some(at), 0..6) => {
                cache.remove(at);
                loaded.remove(&n);
            }
            (Some(at), 6..10) => {
                let at = cache.set_loaded(at);
                assert_eq!(cache.address(at), name(n));
                loaded.insert(n, true);
            }
            (None, _) if cache.put(&cache.hashed(&name(n)), &holder(n as u64), 10).is_some() => {
                loaded.insert(n, false);
            }
            _ => {}
        }
        assert_eq!(cache.len(), loaded.len());
        for (n, is_loaded) in &loaded {
            let at = cache.find(&cache.hashed(&name(*n))).unwrap();
            assert_eq!((cache.address(at), cache.is_loaded(at)), (name(*n), *is_loaded));
            assert_eq!(cache.holder(at), holder(*n as u64));
        }
    }
}

#[test]
fn bytes_of_65536_peers() {
    let mut cache = cache(1 << 17);
    for n in 0..65_536_u32 {
        cache.put(&cache.hashed(&Address::Ip4(n.into())), &holder(n.into()), 10).unwrap();
    }
    let each = cache.bytes() / 65_536;
    assert!(each <= 54, "{each} bytes for each peer");
    let all: Vec<_> = (0..65_536_u32)
        .filter(|n| cache.find(&cache.hashed(&Address::Ip4((*n).into()))).is_none())
        .collect();
    assert!(all.is_empty());
}
