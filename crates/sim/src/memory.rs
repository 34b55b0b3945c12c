//! A node's memory: regions with keys and access rights, and patterns that define every byte.

use std::collections::BTreeMap;
use std::ops::Range;

use rdmux_testing::memory::{changed, for_parts};
use rdmux_transport::attr::Access;
use rdmux_transport::env::{AccessFault, AtomicOp};
use rdmux_transport::wr::Sge;
use rdmux_wire::{Lkey, Rkey};

/// The value of bytes that were never written.
pub const CANARY: u8 = 0xcd;

/// The gap between two regions.
const GUARD: u64 = 4096;

/// A registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mr {
    /// The local and remote key.
    pub key: u32,
    /// The first address.
    pub addr: u64,
    /// The length in bytes.
    pub len: usize,
}

impl Mr {
    /// Returns the whole region as a list element.
    pub fn sge(&self) -> Sge {
        self.part(0..self.len)
    }
    /// Returns a part of the region as a list element.
    pub fn part(&self, range: Range<usize>) -> Sge {
        let length = u32::try_from(range.len()).expect("regions are small");
        Sge { addr: self.addr + range.start as u64, length, lkey: Lkey(self.key) }
    }
    /// Returns the remote key.
    pub fn rkey(&self) -> Rkey {
        Rkey(self.key)
    }
}

/// A registered memory region.
#[derive(Debug)]
struct Region {
    base: u64,
    bytes: Vec<u8>,
    rights: Access,
}

/// All regions of a node. Keys are never reused, so that a late access to a deregistered region is detected.
#[derive(Debug, Default)]
pub struct Memory {
    regions: BTreeMap<u32, Region>,
    last_key: u32,
    next_addr: u64,
}

impl Memory {
    /// Registers `bytes`.
    pub fn register(&mut self, bytes: Vec<u8>, rights: Access) -> Mr {
        self.last_key += 1;
        self.next_addr += GUARD;
        let mr = Mr { key: self.last_key, addr: self.next_addr, len: bytes.len() };
        // Atomics need eight aligned bytes, so every region starts at a multiple of 8.
        self.next_addr = (self.next_addr + mr.len as u64).next_multiple_of(64);
        self.regions.insert(mr.key, Region { base: mr.addr, bytes, rights });
        mr
    }

    /// Registers bytes that were never written.
    pub fn blank(&mut self, len: usize, rights: Access) -> Mr {
        self.register(vec![CANARY; len], rights)
    }

    /// Deregisters a region, and returns its bytes.
    pub fn deregister(&mut self, mr: &Mr) -> Vec<u8> {
        self.regions.remove(&mr.key).map(|r| r.bytes).unwrap_or_default()
    }

    /// Returns the number of regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Returns whether there are no regions.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Returns a region's bytes; empty if it is deregistered.
    pub fn bytes(&self, mr: &Mr) -> &[u8] {
        self.regions.get(&mr.key).map_or(&[], |r| &r.bytes)
    }

    /// Checks an access and returns its bytes.
    pub fn check(
        &self,
        key: u32,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<Range<usize>, AccessFault> {
        let region = self.regions.get(&key).ok_or(AccessFault::Key)?;
        let start = addr.checked_sub(region.base).ok_or(AccessFault::Bounds)?;
        let end = start.checked_add(len).ok_or(AccessFault::Bounds)?;
        if end > region.bytes.len() as u64 {
            return Err(AccessFault::Bounds);
        }
        if !region.rights.contains(need) {
            return Err(AccessFault::Rights);
        }
        Ok(index(start)..index(end))
    }

    /// Reads memory.
    pub fn read(&self, key: u32, addr: u64, len: u64, need: Access) -> Result<&[u8], AccessFault> {
        let range = self.check(key, addr, len, need)?;
        Ok(&self.regions[&key].bytes[range])
    }

    /// Writes memory.
    pub fn write(
        &mut self,
        key: u32,
        addr: u64,
        data: &[u8],
        need: Access,
    ) -> Result<(), AccessFault> {
        let range = self.check(key, addr, data.len() as u64, need)?;
        let region = self.regions.get_mut(&key).ok_or(AccessFault::Key)?;
        region.bytes[range].copy_from_slice(data);
        Ok(())
    }

    /// Executes an atomic and returns the former value.
    pub fn atomic(&mut self, rkey: Rkey, va: u64, op: AtomicOp) -> Result<u64, AccessFault> {
        let bytes = self.read(rkey.0, va, 8, Access::REMOTE_ATOMIC)?;
        let old = u64::from_ne_bytes(bytes.try_into().map_err(|_| AccessFault::Bounds)?);
        self.write(rkey.0, va, &changed(op, old).to_ne_bytes(), Access::REMOTE_ATOMIC)?;
        Ok(old)
    }

    /// Collects a part of a gather list.
    pub fn gather(&self, sges: &[Sge], offset: u32, len: u32) -> Result<Vec<u8>, AccessFault> {
        let mut out = Vec::with_capacity(len as usize);
        for_parts(sges, offset, len as usize, |sge, addr, part| {
            let len = part.len() as u64;
            out.extend_from_slice(self.read(sge.lkey.0, addr, len, Access::empty())?);
            Ok(())
        })?;
        Ok(out)
    }
}

fn index(v: u64) -> usize {
    usize::try_from(v).expect("within a region")
}

/// Returns the bytes of an operation: every eight of them follow from its number and their offset, and the first eight are
/// its number.
pub fn pattern(op: u64, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 8);
    let mut word = op;
    let mut place = 0_u64;
    while out.len() < len {
        out.extend_from_slice(&word.to_le_bytes());
        place += 1;
        word = mix(op ^ place << 40);
    }
    out.truncate(len);
    out
}

/// Returns SplitMix64's output for `v`.
pub fn mix(v: u64) -> u64 {
    let v = v.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let v = (v ^ v >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let v = (v ^ v >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    v ^ v >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deregistered_key_is_a_key_fault_and_is_not_reused() {
        let mut m = Memory::default();
        let a = m.blank(8, Access::empty());
        assert_eq!(m.check(a.key, a.addr, 8, Access::LOCAL_WRITE), Err(AccessFault::Rights));
        assert_eq!(m.check(a.key, a.addr + 1, 8, Access::empty()), Err(AccessFault::Bounds));
        m.deregister(&a);
        let b = m.blank(8, Access::empty());
        assert_ne!(a.key, b.key);
        assert_eq!(m.check(a.key, a.addr, 8, Access::empty()), Err(AccessFault::Key));
    }

    #[test]
    fn patterns_differ_by_operation_and_place() {
        let a = pattern(7, 100);
        assert_eq!(a[..8], 7_u64.to_le_bytes());
        assert_ne!(a[8..16], a[16..24]);
        assert_ne!(a[8..], pattern(8, 100)[8..]);
        assert_eq!(pattern(7, 13)[..], a[..13]);
    }
}
