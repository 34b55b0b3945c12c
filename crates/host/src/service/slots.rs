//! Slots: blocks of queue pair numbers, and their sockets.
//!
//! A number must not be reused soon, or a late packet could reach another process's queue pair. So a slot that is released
//! is not reused while others are free, and its numbers continue where they stopped. A service that was killed has lost this
//! state. So the first index of a slot is random, and the next service does not repeat its numbers.
//!
//! A process may keep its slot's sockets after it has released the slot, and read packets that arrive there. So only processes of
//! the same user, which could read each other's in any case, get the slot again. A user's slots count towards its share, in use or
//! not.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use rdmux_runtime::{Share, Shares};

use super::clients::ClientId;

/// Slots that a queue pair number can name (bits 22..12).
const SLOTS: u16 = 2048;
/// Queue pair numbers of a slot.
const INDICES: u16 = 4096;
/// The number of released slots of a user that are not used again as long as fresh ones are left. Each slot ever used costs a
/// socket on each address.
const RESTING: usize = 32;
/// The step by which the index of a slot advances when a process died without reporting its last one.
const STRIDE: u16 = 1021;

/// All slots and their owners.
#[derive(Debug)]
pub(super) struct Slots {
    /// The slots that were ever used, by number. Slot 0 is the service's.
    used: Vec<Slot>,
    resting: VecDeque<u16>,
    /// The hash that determines the first index of a slot, different in each service.
    first: RandomState,
    shares: Shares,
    descriptors: Shares,
}

/// A slot that was used.
#[derive(Debug, Default)]
struct Slot {
    owner: Option<ClientId>,
    /// The user whose processes may have it.
    user: u32,
    next_index: u16,
    /// The shares for the slot, and for its sockets' descriptors.
    _shares: Option<[Share; 2]>,
}

impl Slots {
    /// Makes the table. Sockets of slots are charged to these shares.
    pub(super) fn new(descriptors: Shares) -> Self {
        Self {
            used: vec![Slot::default()],
            resting: VecDeque::new(),
            first: RandomState::new(),
            shares: Shares::new(usize::from(SLOTS) - 1),
            descriptors,
        }
    }

    /// Takes a slot for a process of a user. Returns the slot with the first index to use. A fresh slot has this many
    /// sockets.
    ///
    /// # Errors
    /// The reason why no slot is available: all are in use or other users', or the user's share is used up.
    pub(super) fn take(
        &mut self,
        owner: ClientId,
        user: u32,
        sockets: usize,
    ) -> Result<(u16, u16), String> {
        let is_its = |slot: &u16| self.used[usize::from(*slot)].user == user;
        let rest = self.resting.iter().filter(|slot| is_its(slot)).count();
        let fresh = if rest < RESTING { self.add(user, sockets) } else { Err(None) };
        let slot = fresh.or_else(|why| {
            let is_its = |slot: &u16| self.used[usize::from(*slot)].user == user;
            let again = self.resting.iter().position(is_its).and_then(|at| self.resting.remove(at));
            again.ok_or_else(|| why.unwrap_or_else(|| "all slots are in use".to_owned()))
        })?;
        let entry = &mut self.used[usize::from(slot)];
        entry.owner = Some(owner);
        Ok((slot, entry.next_index))
    }

    /// Adds a slot that was never used. The error gives the reason, if it is the user's share.
    fn add(&mut self, user: u32, sockets: usize) -> Result<u16, Option<String>> {
        let slot = u16::try_from(self.used.len()).ok().filter(|&slot| slot < SLOTS).ok_or(None)?;
        let share = self.shares.take(user, 1);
        let share =
            share.map_err(|e| Some(format!("the user's share of slots is used up: {e}")))?;
        let descriptors = self.descriptors.take(user, sockets);
        let descriptors = descriptors.map_err(|e| {
            Some(format!("the user's share of descriptors is too small for a slot's sockets: {e}"))
        })?;
        let next_index = self.first_index(slot);
        self.used.push(Slot { owner: None, user, next_index, _shares: Some([share, descriptors]) });
        Ok(slot)
    }

    #[expect(clippy::cast_possible_truncation, reason = "it is less than 4096")]
    fn first_index(&self, slot: u16) -> u16 {
        (self.first.hash_one(slot) % u64::from(INDICES)) as u16
    }

    /// Releases a slot. `next_index` is where numbers continue, if known.
    pub(super) fn give_back(&mut self, slot: u16, next_index: Option<u16>) {
        let Some(entry) = self.used.get_mut(usize::from(slot)) else { return };
        if entry.owner.take().is_some() {
            entry.next_index = next_index.unwrap_or(entry.next_index + STRIDE) % INDICES;
            self.resting.push_back(slot);
        }
    }

    /// Returns the owner of a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<ClientId> {
        self.used.get(usize::from(slot))?.owner
    }

    /// Returns how many slots are in use.
    pub(super) fn in_use(&self) -> usize {
        self.used.iter().filter(|s| s.owner.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientId = ClientId(7);
    /// A user whose slots are limited.
    const OTHER: u32 = 4001;

    fn slots() -> Slots {
        Slots::new(Shares::new(usize::MAX))
    }

    fn owner() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn take(slots: &mut Slots, user: u32) -> Result<(u16, u16), String> {
        slots.take(A, user, 1)
    }

    #[test]
    fn freed_slot_is_reused_only_after_others() {
        let mut slots = slots();
        let (first, _) = take(&mut slots, owner()).unwrap();
        assert_eq!((first, slots.owner(first)), (1, Some(A)));
        slots.give_back(first, Some(5));
        assert_eq!((slots.owner(first), slots.in_use()), (None, 0));
        let mut rounds = 0;
        let index = loop {
            let (slot, index) = take(&mut slots, owner()).unwrap();
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
    fn slot_and_index_pairs_are_unique_over_1000_processes() {
        let mut slots = slots();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..1000 {
            let (slot, index) = take(&mut slots, owner()).unwrap();
            assert!(seen.insert((slot, index)), "slot {slot} index {index}");
            slots.give_back(slot, None);
        }
    }

    #[test]
    fn each_service_starts_slot_indices_at_random() {
        let indices = || {
            let mut slots = slots();
            (0..8).map(|_| take(&mut slots, owner()).unwrap().1).collect::<Vec<_>>()
        };
        let (one, next) = (indices(), indices());
        assert!(one.iter().chain(&next).all(|index| *index < INDICES), "{one:?} {next:?}");
        // One of eight slots may have the same index by chance, but not all.
        assert_ne!(one, next);
    }

    #[test]
    fn all_slots_can_be_in_use_and_no_more() {
        let mut slots = slots();
        let taken: Vec<u16> = (1..SLOTS).map(|_| take(&mut slots, owner()).unwrap().0).collect();
        assert!(take(&mut slots, owner()).is_err());
        slots.give_back(taken[9], None);
        slots.give_back(taken[9], None);
        assert_eq!(take(&mut slots, owner()).unwrap().0, taken[9]);
        assert!(take(&mut slots, owner()).is_err());
    }

    #[test]
    fn a_slot_is_used_again_by_its_user_only() {
        let mut slots = slots();
        let of_owner: Vec<u16> =
            (1..SLOTS - 1).map(|_| take(&mut slots, owner()).unwrap().0).collect();
        let (of_other, _) = take(&mut slots, OTHER).unwrap();
        of_owner.iter().for_each(|slot| slots.give_back(*slot, None));
        assert!(take(&mut slots, OTHER).is_err());
        slots.give_back(of_other, None);
        assert_eq!(take(&mut slots, OTHER).unwrap().0, of_other);
        assert!(of_owner.contains(&take(&mut slots, owner()).unwrap().0));
    }

    #[test]
    fn a_user_that_has_its_share_keeps_no_other_from_a_slot() {
        let mut slots = slots();
        let half = usize::from(SLOTS) / 2;
        let has: Vec<u16> = (1..half).map(|_| take(&mut slots, OTHER).unwrap().0).collect();
        let why = take(&mut slots, OTHER).unwrap_err();
        assert!(why.contains("user 4001 holds 1023 of 2047"), "{why}");
        // Its released slots are still its own, and used again.
        has.iter().take(2).for_each(|slot| slots.give_back(*slot, None));
        let next = take(&mut slots, OTHER + 1).unwrap().0;
        assert!(!has.contains(&next));
        assert_eq!(
            [take(&mut slots, OTHER).unwrap().0, take(&mut slots, OTHER).unwrap().0],
            has[..2]
        );
        assert!(take(&mut slots, OTHER).is_err());
        let others = std::iter::from_fn(|| take(&mut slots, OTHER + 1).ok()).count();
        assert_eq!(others + 1, usize::from(SLOTS) / 4);
        let left = std::iter::from_fn(|| take(&mut slots, owner()).ok()).count();
        assert_eq!(left, usize::from(SLOTS) / 4);
        assert_eq!(slots.in_use(), usize::from(SLOTS) - 1);
    }

    #[test]
    fn a_slot_costs_its_user_the_descriptors_of_its_sockets() {
        let mut slots = Slots::new(Shares::new(8));
        let first = slots.take(A, OTHER, 2).unwrap().0;
        slots.take(A, OTHER, 2).unwrap();
        let why = slots.take(A, OTHER, 2).unwrap_err();
        assert!(why.contains("descriptors"), "{why}");
        slots.give_back(first, None);
        assert_eq!(slots.take(A, OTHER, 2).unwrap().0, first);
        slots.take(A, owner(), 9).unwrap();
    }
}
