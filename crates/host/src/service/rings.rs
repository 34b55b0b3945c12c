//! Pairs of rings between processes of this host, which are known by their first slots, and the socket pairs for their
//! wakeups. The service makes them and hands them out; it never reads them. No process gets a descriptor of
//! another, and each has an end of its own, so none can make another's block.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use rdmux_link::ring::{DEFAULT_CAPACITY, RingFds};
use rdmux_link::{PeerBell, RingPair};
use rdmux_runtime::Share;

/// Descriptors that the service uses for one side of a pair.
pub(super) const END_DESCRIPTORS: usize = 3;

/// All pairs, by their two slots, the smaller first. The descriptors are kept, so that a process that requests rings
/// again gets the same ones.
#[derive(Debug, Default)]
pub(super) struct Rings(HashMap<(u16, u16), Pair>);

/// The rings of two processes.
#[derive(Debug)]
struct Pair {
    ends: [End; 2],
    /// The share of the user whose process asked for them first.
    _share: Share,
}

/// The descriptors of one side.
#[derive(Debug)]
struct End {
    rings: RingFds,
    bell: PeerBell,
}

impl Rings {
    /// Returns whether a pair exists.
    pub(super) fn has(&self, slot: u16, peer: u16) -> bool {
        self.0.contains_key(&key(slot, peer))
    }

    /// Returns one side's descriptors, and whether the pair is new, which is charged to the share.
    pub(super) fn connect(
        &mut self,
        slot: u16,
        peer: u16,
        share: Share,
    ) -> io::Result<([OwnedFd; END_DESCRIPTORS], bool)> {
        let new = !self.has(slot, peer);
        if new {
            let ((low, high), bells) = (RingPair::create(DEFAULT_CAPACITY)?, PeerBell::pair()?);
            let low = End { rings: low, bell: bells.0 };
            let ends = [low, End { rings: high, bell: bells.1 }];
            self.0.insert(key(slot, peer), Pair { ends, _share: share });
        }
        Ok((self.end_of(slot, peer)?, new))
    }

    /// Returns one side's descriptors of a pair: the ring that it fills, the ring that it empties, and its end of the
    /// bell.
    pub(super) fn end_of(&self, slot: u16, peer: u16) -> io::Result<[OwnedFd; END_DESCRIPTORS]> {
        let pair = self.0.get(&key(slot, peer)).ok_or(io::ErrorKind::NotFound)?;
        let End { rings, bell } = &pair.ends[usize::from(slot > peer)];
        Ok([rings.tx.try_clone()?, rings.rx.try_clone()?, bell.duplicate()?])
    }

    /// Removes all pairs of a slot. Mappings of its peers stay.
    pub(super) fn slot_gone(&mut self, slot: u16) {
        self.0.retain(|&(a, b), _| a != slot && b != slot);
    }

    /// Returns how many pairs there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

fn key(slot: u16, peer: u16) -> (u16, u16) {
    (slot.min(peer), slot.max(peer))
}

#[cfg(test)]
mod tests {
    use rdmux_runtime::Shares;

    use super::*;

    fn connect(rings: &mut Rings, slot: u16, peer: u16) -> ([OwnedFd; END_DESCRIPTORS], bool) {
        rings.connect(slot, peer, Shares::new(0).none(1)).unwrap()
    }

    fn inode(fd: &OwnedFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    #[test]
    fn both_sides_get_the_same_rings_however_often_they_ask() {
        let mut rings = Rings::default();
        let ([tx, rx, bell], new) = connect(&mut rings, 3, 2);
        assert!(new);
        let ([peer_tx, peer_rx, peer_bell], new) = connect(&mut rings, 2, 3);
        assert!(!new);
        let [bell, peer_bell] = [bell, peer_bell].map(|fd| PeerBell::from_fd(fd).unwrap());
        bell.ring().unwrap();
        assert!(peer_bell.clear().unwrap() && !bell.clear().unwrap());
        assert_eq!((inode(&tx), inode(&rx)), (inode(&peer_rx), inode(&peer_tx)));
        assert_ne!(inode(&tx), inode(&rx));
        let ([again, ..], _) = connect(&mut rings, 3, 2);
        assert_eq!(inode(&again), inode(&tx));
        rings.slot_gone(2);
        assert_eq!(rings.len(), 0);
        let ([fresh, ..], new) = connect(&mut rings, 3, 2);
        assert!(new);
        assert_ne!(inode(&fresh), inode(&tx));
    }
}
