//! Addresses in 17 bytes: names of up to 16 bytes are stored inline, longer ones in a table.

use alloc::boxed::Box;
use alloc::vec::Vec;

use rdmux_wire::acm::{Address, Name};
use rdmux_wire::{Gid, Lid};
use siphasher::sip::SipHasher13;

/// The kind of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Ip4,
    Ip6,
    Gid,
    Lid,
    /// The name, padded with zeroes.
    ShortName,
    /// The name's row in [`Names`], 4 bytes.
    LongName,
}

/// An address in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    kind: Kind,
    bytes: [u8; 16],
}

/// The names that are too long to be stored inline.
#[derive(Debug, Default)]
pub(super) struct Names {
    rows: Vec<Box<[u8]>>,
    free: Vec<u32>,
}

impl Names {
    fn add(&mut self, name: &[u8]) -> u32 {
        if let Some(row) = self.free.pop() {
            self.rows[row as usize] = name.into();
            return row;
        }
        self.rows.push(name.into());
        u32::try_from(self.rows.len() - 1).unwrap_or(u32::MAX)
    }

    /// Returns the bytes used on the heap.
    pub(super) fn bytes(&self) -> usize {
        let names: usize = self.rows.iter().map(|name| name.len()).sum();
        names + self.rows.capacity() * size_of::<Box<[u8]>>() + self.free.capacity() * 4
    }
}

/// Returns the bytes padded with trailing zeroes.
fn filled(bytes: &[u8]) -> [u8; 16] {
    let mut all = [0; 16];
    all[..bytes.len()].copy_from_slice(bytes);
    all
}

/// Returns the kind and the bytes of an address; the bytes of a long name are left zero.
fn parts(address: &Address) -> (Kind, [u8; 16]) {
    match address {
        Address::Ip4(ip) => (Kind::Ip4, filled(&ip.octets())),
        Address::Ip6(ip) => (Kind::Ip6, ip.octets()),
        Address::Gid(gid) => (Kind::Gid, gid.0),
        Address::Lid(lid) => (Kind::Lid, filled(&lid.0.to_be_bytes())),
        Address::Name(name) if name.as_bytes().len() <= 16 => {
            (Kind::ShortName, filled(name.as_bytes()))
        }
        Address::Name(_) => (Kind::LongName, [0; 16]),
    }
}

fn name_of(address: &Address) -> &[u8] {
    match address {
        Address::Name(name) => name.as_bytes(),
        _ => &[],
    }
}

/// Returns a keyed hash, so that remote endpoints cannot choose colliding addresses.
fn hash(kind: Kind, bytes: &[u8], seed: &[u8; 16]) -> u64 {
    let mut all = [0; 1 + Name::MAX];
    all[0] = kind as u8;
    all[1..=bytes.len()].copy_from_slice(bytes);
    SipHasher13::new_with_key(seed).hash(&all[..=bytes.len()])
}

/// An address with its hash in a cache, computed once for all operations on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hashed<'a> {
    pub(crate) address: &'a Address,
    pub(crate) hash: u64,
    /// The key of the address, without the row of a long name.
    key: Key,
}

impl<'a> Hashed<'a> {
    /// Hashes an address for the cache that has this seed.
    pub(super) fn new(address: &'a Address, seed: &[u8; 16]) -> Self {
        let (kind, bytes) = parts(address);
        let hash = match kind {
            Kind::LongName => hash(kind, name_of(address), seed),
            _ => hash(kind, &bytes, seed),
        };
        Self { address, hash, key: Key { kind, bytes } }
    }

    /// Rebuilds it from an address and its stored hash.
    pub(crate) fn again(address: &'a Address, hash: u64) -> Self {
        let (kind, bytes) = parts(address);
        Self { address, hash, key: Key { kind, bytes } }
    }
}

impl Key {
    pub(super) fn new(address: &Hashed<'_>, names: &mut Names) -> Self {
        let Key { kind, mut bytes } = address.key;
        if kind == Kind::LongName {
            bytes = filled(&names.add(name_of(address.address)).to_be_bytes());
        }
        Self { kind, bytes }
    }

    fn row(&self) -> usize {
        let [a, b, c, d, ..] = self.bytes;
        u32::from_be_bytes([a, b, c, d]) as usize
    }

    pub(super) fn hash(&self, names: &Names, seed: &[u8; 16]) -> u64 {
        match self.kind {
            Kind::LongName => hash(self.kind, &names.rows[self.row()], seed),
            kind => hash(kind, &self.bytes, seed),
        }
    }

    /// Returns whether this is the key of the given address.
    pub(super) fn is(&self, address: &Hashed<'_>, names: &Names) -> bool {
        match address.key.kind {
            Kind::LongName => {
                self.kind == Kind::LongName && *names.rows[self.row()] == *name_of(address.address)
            }
            _ => *self == address.key,
        }
    }

    /// Returns the address.
    pub(super) fn address(&self, names: &Names) -> Address {
        let b = &self.bytes;
        let name = match self.kind {
            Kind::Ip4 => return Address::Ip4([b[0], b[1], b[2], b[3]].into()),
            Kind::Ip6 => return Address::Ip6(self.bytes.into()),
            Kind::Gid => return Address::Gid(Gid(self.bytes)),
            Kind::Lid => return Address::Lid(Lid(u16::from_be_bytes([b[0], b[1]]))),
            Kind::ShortName => {
                let end = b.iter().position(|byte| *byte == 0).unwrap_or(b.len());
                Name::new(&b[..end])
            }
            Kind::LongName => Name::new(&*names.rows[self.row()]),
        };
        // Only names become keys of these kinds.
        name.map_or(Address::Lid(Lid::NONE), Address::Name)
    }

    /// Frees the key's row in the table.
    pub(super) fn free(&self, names: &mut Names) {
        if self.kind == Kind::LongName {
            let row = self.row();
            names.rows[row] = Box::default();
            names.free.push(u32::try_from(row).unwrap_or(u32::MAX));
        }
    }
}
