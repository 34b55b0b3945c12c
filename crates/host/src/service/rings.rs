//! Pairs of rings between processes of this host, which are known by their first slots. The service makes them and hands them out; it never
//! looks into them.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use rdmux_link::RingPair;
use rdmux_link::ring::{DEFAULT_CAPACITY, RingFds};

/// All pairs, by their two slots, the smaller first. The descriptors stay here, so that whoever asks
/// again gets the same rings.
#[derive(Debug, Default)]
pub(super) struct Rings(HashMap<(u16, u16), (RingFds, RingFds)>);

impl Rings {
    /// One side's descriptors (what it fills, what it empties), and whether the pair is new.
    pub(super) fn connect(&mut self, slot: u16, peer: u16) -> io::Result<([OwnedFd; 2], bool)> {
        let key = (slot.min(peer), slot.max(peer));
        let new = !self.0.contains_key(&key);
        if new {
            self.0.insert(key, RingPair::create(DEFAULT_CAPACITY)?);
        }
        let (low, high) = &self.0[&key];
        let side = if slot < peer { low } else { high };
        Ok(([side.tx.try_clone()?, side.rx.try_clone()?], new))
    }

    /// Forgets all pairs of a slot. What its peers have mapped stays with them.
    pub(super) fn slot_gone(&mut self, slot: u16) {
        self.0.retain(|&(a, b), _| a != slot && b != slot);
    }

    /// How many pairs there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(fd: &OwnedFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    #[test]
    fn both_sides_get_the_same_rings_however_often_they_ask() {
        let mut rings = Rings::default();
        let ([tx, rx], new) = rings.connect(3, 2).unwrap();
        assert!(new);
        let ([peer_tx, peer_rx], new) = rings.connect(2, 3).unwrap();
        assert!(!new);
        assert_eq!((inode(&tx), inode(&rx)), (inode(&peer_rx), inode(&peer_tx)));
        assert_ne!(inode(&tx), inode(&rx));
        let ([again, _], _) = rings.connect(3, 2).unwrap();
        assert_eq!(inode(&again), inode(&tx));
        rings.slot_gone(2);
        assert_eq!(rings.len(), 0);
        let ([fresh, _], new) = rings.connect(3, 2).unwrap();
        assert!(new);
        assert_ne!(inode(&fresh), inode(&tx));
    }
}
