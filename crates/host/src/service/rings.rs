//! Pairs of rings between processes of this host, which are known by their first slots, and what the processes wake each
//! other with. The service makes them and hands them out; it never looks into them. No descriptor of a process goes to
//! another, and each process has an end of its own: so none can make another's block.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use rdmux_link::ring::{DEFAULT_CAPACITY, RingFds};
use rdmux_link::{PeerBell, RingPair};

/// All pairs, by their two slots, the smaller first. The descriptors stay here, so that a process that asks
/// again gets the same ones.
#[derive(Debug, Default)]
pub(super) struct Rings(HashMap<(u16, u16), [End; 2]>);

/// What one side has.
#[derive(Debug)]
struct End {
    rings: RingFds,
    bell: PeerBell,
}

impl Rings {
    /// One side's descriptors (what it fills, what it empties, its end of the bell), and whether the pair is new.
    pub(super) fn connect(&mut self, slot: u16, peer: u16) -> io::Result<([OwnedFd; 3], bool)> {
        let key = (slot.min(peer), slot.max(peer));
        let new = !self.0.contains_key(&key);
        if new {
            let ((low, high), bells) = (RingPair::create(DEFAULT_CAPACITY)?, PeerBell::pair()?);
            let low = End { rings: low, bell: bells.0 };
            self.0.insert(key, [low, End { rings: high, bell: bells.1 }]);
        }
        let End { rings, bell } = &self.0[&key][usize::from(slot > peer)];
        Ok(([rings.tx.try_clone()?, rings.rx.try_clone()?, bell.duplicate()?], new))
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
        let ([tx, rx, bell], new) = rings.connect(3, 2).unwrap();
        assert!(new);
        let ([peer_tx, peer_rx, peer_bell], new) = rings.connect(2, 3).unwrap();
        assert!(!new);
        let [bell, peer_bell] = [bell, peer_bell].map(|fd| PeerBell::from_fd(fd).unwrap());
        bell.ring().unwrap();
        assert!(peer_bell.clear().unwrap() && !bell.clear().unwrap());
        assert_eq!((inode(&tx), inode(&rx)), (inode(&peer_rx), inode(&peer_tx)));
        assert_ne!(inode(&tx), inode(&rx));
        let ([again, ..], _) = rings.connect(3, 2).unwrap();
        assert_eq!(inode(&again), inode(&tx));
        rings.slot_gone(2);
        assert_eq!(rings.len(), 0);
        let ([fresh, ..], new) = rings.connect(3, 2).unwrap();
        assert!(new);
        assert_ne!(inode(&fresh), inode(&tx));
    }
}
