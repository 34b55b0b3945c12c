//! Slots: blocks of queue pair numbers, and the sockets that go with them.
//!
//! A number must not come back soon, or a late packet finds a stranger's queue pair. So a slot that
//! is given back rests while others are given out, and counting goes on in it where it stopped. A service that was killed
//! has kept nothing of that: counting in a slot begins at random, so that the next service does not repeat its numbers.
//!
//! A process may keep its slot's sockets when it has given the slot back, and read what comes there. So only processes of the same
//! user, which could read each other's in any case, get the slot again.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use super::clients::ClientId;

/// Slots that a queue pair number can name (bits 22..12).
const SLOTS: u16 = 2048;
/// Numbers of a slot.
const INDICES: u16 = 4096;
/// How many slots of a user rest before the first of them is used again, as long as fresh ones are left. Each
/// slot ever used costs a socket on each address.
const RESTING: usize = 32;
/// How far counting moves on when a process died, and did not say how far it was.
const STRIDE: u16 = 1021;

/// Which slots are whose.
#[derive(Debug)]
pub(super) struct Slots {
    /// By slot; slot 0 is the service's.
    used: Vec<Slot>,
    resting: VecDeque<u16>,
    /// Where counting begins in a slot: another place in each service.
    first: RandomState,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    owner: Option<ClientId>,
    /// Whose processes may have it.
    user: u32,
    next_index: u16,
}

impl Slots {
    pub(super) fn new() -> Self {
        Self { used: vec![Slot::default()], resting: VecDeque::new(), first: RandomState::new() }
    }

    /// A slot for a process of a user, and the index from which to count; `None` when all are in use, or of other users.
    pub(super) fn take(&mut self, owner: ClientId, user: u32) -> Option<(u16, u16)> {
        let fresh = u16::try_from(self.used.len()).ok().filter(|&slot| slot < SLOTS);
        let is_its = |slot: &u16| self.used[usize::from(*slot)].user == user;
        let rest = self.resting.iter().filter(|slot| is_its(slot)).count();
        let slot = match fresh {
            Some(slot) if rest < RESTING => {
                let next_index = self.first_index(slot);
                self.used.push(Slot { owner: None, user, next_index });
                slot
            }
            _ => self.resting.iter().position(is_its).and_then(|at| self.resting.remove(at))?,
        };
        let entry = &mut self.used[usize::from(slot)];
        entry.owner = Some(owner);
        Some((slot, entry.next_index))
    }

    #[expect(clippy::cast_possible_truncation, reason = "it is less than 4096")]
    fn first_index(&self, slot: u16) -> u16 {
        (self.first.hash_one(slot) % u64::from(INDICES)) as u16
    }

    /// Takes a slot back. `next_index` is where to go on counting, if that is known.
    pub(super) fn give_back(&mut self, slot: u16, next_index: Option<u16>) {
        let Some(entry) = self.used.get_mut(usize::from(slot)) else { return };
        if entry.owner.take().is_some() {
            entry.next_index = next_index.unwrap_or(entry.next_index + STRIDE) % INDICES;
            self.resting.push_back(slot);
        }
    }

    /// Whose a slot is.
    pub(super) fn owner(&self, slot: u16) -> Option<ClientId> {
        self.used.get(usize::from(slot))?.owner
    }

    /// How many are in use.
    pub(super) fn in_use(&self) -> usize {
        self.used.iter().filter(|s| s.owner.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(7);

    #[test]
    fn a_slot_rests_before_it_is_used_again() {
        let mut slots = Slots::new();
        let (first, _) = slots.take(A, 1).unwrap();
        assert_eq!((first, slots.owner(first)), (1, Some(A)));
        slots.give_back(first, Some(5));
        assert_eq!((slots.owner(first), slots.in_use()), (None, 0));
        let mut rounds = 0;
        let index = loop {
            let (slot, index) = slots.take(A, 1).unwrap();
            if slot == first {
                break index;
            }
            slots.give_back(slot, None);
            rounds += 1;
        };
        assert!(rounds >= RESTING - 1, "{rounds}");
        assert_eq!(index, 5);
    }

    #[test]
    fn numbers_do_not_come_back_for_hundreds_of_lives() {
        let mut slots = Slots::new();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1000 {
            let (slot, index) = slots.take(A, 1).unwrap();
            assert!(seen.insert((slot, index)), "slot {slot} index {index}");
            slots.give_back(slot, None);
        }
    }

    #[test]
    fn the_next_service_counts_from_elsewhere() {
        let indices = || {
            let mut slots = Slots::new();
            (0..8).map(|_| slots.take(A, 1).unwrap().1).collect::<Vec<_>>()
        };
        let (one, next) = (indices(), indices());
        assert!(one.iter().chain(&next).all(|index| *index < INDICES), "{one:?} {next:?}");
        // Of eight slots one may have the same by chance, but not all.
        assert_ne!(one, next);
    }

    #[test]
    fn all_slots_can_be_in_use_and_no_more() {
        let mut slots = Slots::new();
        let taken: Vec<u16> = (1..SLOTS).map(|_| slots.take(A, 1).unwrap().0).collect();
        assert!(slots.take(A, 1).is_none());
        slots.give_back(taken[9], None);
        slots.give_back(taken[9], None);
        assert_eq!(slots.take(A, 1).unwrap().0, taken[9]);
        assert!(slots.take(A, 1).is_none());
    }

    #[test]
    fn a_slot_is_used_again_by_its_user_only() {
        let mut slots = Slots::new();
        let of_1: Vec<u16> = (1..SLOTS - 1).map(|_| slots.take(A, 1).unwrap().0).collect();
        let (of_2, _) = slots.take(A, 2).unwrap();
        of_1.iter().for_each(|slot| slots.give_back(*slot, None));
        assert!(slots.take(A, 2).is_none());
        slots.give_back(of_2, None);
        assert_eq!(slots.take(A, 2).unwrap().0, of_2);
        assert!(of_1.contains(&slots.take(A, 1).unwrap().0));
    }
}
