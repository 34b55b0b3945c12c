//! The cache that an ACM service shares, as a hostile service would write it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::Result;
use rdmux_link::acm::{Entry, Key, PathCache, PathTable, WINDOW};
use rdmux_wire::Lid;
use rdmux_wire::acm::client::{PathData, PathFlags};
use rdmux_wire::sa::PathRecord;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::acm::addresses;

/// The size of the page before the slots, and of its used part.
const PAGE: usize = 4096;
const HEAD: usize = 136;
/// The size of the slots of the smallest table.
const SLOTS: usize = WINDOW * 256;
/// The time of all look-ups.
const NOW: u64 = 1_000_000_000;

/// Reads a table with arbitrary slots, and looks up given keys and the present ones. If the first byte is odd, the head is
/// arbitrary, too, taken from the end of the input.
pub fn acm_cache(data: &[u8]) {
    let Some((&kind, data)) = data.split_first() else { return };
    let mut table = own_table().expect("a table");
    let any_head = &data[data.len().saturating_sub(HEAD)..];
    if kind & 1 == 1 {
        table[..any_head.len()].copy_from_slice(any_head);
    }
    let slots = &data[..data.len().min(SLOTS)];
    table[PAGE..PAGE + slots.len()].copy_from_slice(slots);
    let fd = memfd_create("fuzz", MemfdFlags::ALLOW_SEALING).expect("a memfd");
    let file = File::from(fd);
    file.write_all_at(&table, 0).expect("room");
    fcntl_add_seals(&file, SealFlags::SHRINK).expect("sealed");
    let Ok(cache) = PathCache::map(&file) else { return };
    let mut shown = Vec::new();
    cache.each(NOW, |key, entry| shown.push((*key, *entry)));
    assert!(shown.len() <= WINDOW && (shown.is_empty() || cache.is_leased(NOW)));
    let asked = keys().into_iter().chain(shown.iter().map(|(key, _)| *key));
    for key in asked {
        let Some(entry) = cache.get(&key, NOW) else { continue };
        assert!(entry.expiry > NOW, "{key:?} has expired: {entry:?}");
        assert!(shown.contains(&(key, entry)), "{key:?} is found, and is not there: {entry:?}");
        let later = cache.get(&key, entry.expiry);
        assert!(later.is_none_or(|later| later.expiry > entry.expiry), "{key:?} after its end");
    }
}

/// Returns the keys to look up.
fn keys() -> Vec<Key> {
    let [source, ..] = addresses();
    let sources = [None, Some(source)];
    addresses().into_iter().flat_map(|dest| sources.map(|source| Key { source, dest })).collect()
}

/// Returns a table without entries.
fn own_table() -> Result<Vec<u8>> {
    let mut table = PathTable::create(WINDOW, 7)?;
    table.renew(NOW + 1_000_000);
    bytes(table)
}

fn bytes(table: PathTable) -> Result<Vec<u8>> {
    let mut bytes = vec![0; PAGE + SLOTS];
    File::from(table.fd().try_clone()?).read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Returns tables with an entry for each key, as a service writes them.
///
/// # Errors
/// When there is no memory for them.
pub fn tables() -> Result<Vec<Vec<u8>>> {
    let mut seeds = Vec::new();
    for kind in [0_u8, 1] {
        let mut table = PathTable::create(WINDOW, 7)?;
        table.renew(NOW + 1_000_000);
        for key in keys() {
            let path = PathRecord { dlid: Lid(7), ..PathRecord::default() };
            let path = PathData { flags: PathFlags::from_bits_retain(0x2b), path };
            let source = key.source.is_none().then(|| [10, 0, 0, 1].into());
            table.put(&key, &Entry { path, source, expiry: NOW + 1000 }, NOW);
        }
        let bytes = bytes(table)?;
        let (head, slots) = (&bytes[..HEAD], &bytes[PAGE..]);
        seeds.push([&[kind], slots, head].concat());
    }
    Ok(seeds)
}
