//! Queue pairs as programs and events refer to them, and the table of all by number.

use std::sync::Arc;

use rdmux_wire::Qpn;

use crate::objects::control::{SLOT_QPS, SLOT_SHIFT, SlotGrant, is_target, slot_of};
use crate::objects::unacked::Unacked;
use crate::objects::xrc::numbers;

/// The identity of a queue pair towards the program, as events refer to it.
#[derive(Debug)]
pub(crate) struct QpIdentity {
    pub(crate) qpn: Qpn,
    /// The value that the creator of the queue pair set.
    pub(crate) context: u64,
    /// The count of unacknowledged events about it.
    pub(crate) unacked: Unacked,
}

impl QpIdentity {
    pub(crate) fn new(qpn: Qpn, context: u64) -> Arc<Self> {
        Arc::new(Self { qpn, context, unacked: Unacked::default() })
    }
}

/// Queue pairs by number. Slots are few, and a slot's queue pairs are contiguous.
#[derive(Debug)]
pub(crate) struct QpTable<Q> {
    slots: Vec<(u16, Vec<Option<Arc<Q>>>)>,
    /// XRC targets by index, with their numbers; only the hub has any.
    targets: Vec<Option<(Qpn, Arc<Q>)>>,
}

impl<Q> QpTable<Q> {
    /// Creates an empty table, with the device's first slot.
    pub(crate) fn new(slot: u16) -> Self {
        Self { slots: vec![(slot, Vec::new())], targets: Vec::new() }
    }

    pub(crate) fn get(&self, qpn: Qpn) -> Option<&Arc<Q>> {
        if is_target(qpn) {
            let target = self.targets.get(numbers::index_of(qpn.get()))?.as_ref();
            return target.filter(|(number, _)| *number == qpn).map(|(_, qp)| qp);
        }
        let slot = slot_of(qpn);
        let (_, row) = self.slots.iter().find(|(s, _)| *s == slot)?;
        row.get(index_of(qpn))?.as_ref()
    }

    /// Returns whether `slot` belongs to this device.
    pub(crate) fn owns(&self, slot: u16) -> bool {
        self.slots.iter().any(|(s, _)| *s == slot)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Q>> {
        let own = self.slots.iter().flat_map(|(_, row)| row.iter().flatten());
        own.chain(self.targets.iter().flatten().map(|(_, qp)| qp))
    }

    /// Inserts a target, or removes it.
    pub(crate) fn set_target(&mut self, qpn: Qpn, target: Option<Arc<Q>>) {
        let index = numbers::index_of(qpn.get());
        if self.targets.len() <= index {
            self.targets.resize_with(index + 1, || None);
        }
        self.targets[index] = target.map(|target| (qpn, target));
    }

    /// Adds a slot of this device.
    pub(crate) fn add_slot(&mut self, slot: u16) {
        self.slots.push((slot, Vec::new()));
    }

    /// Inserts a queue pair of this device, or removes it.
    pub(crate) fn set(&mut self, qpn: Qpn, qp: Option<Arc<Q>>) {
        let slot = slot_of(qpn);
        if let Some((_, row)) = self.slots.iter_mut().find(|(s, _)| *s == slot) {
            let index = index_of(qpn);
            if row.len() <= index {
                row.resize_with(index + 1, || None);
            }
            row[index] = qp;
        }
    }
}

fn index_of(qpn: Qpn) -> usize {
    (qpn.get() & (SLOT_QPS - 1)) as usize
}

/// The use of a slot's numbers.
#[derive(Debug)]
pub(crate) struct SlotUse {
    slot: u16,
    next: u32,
    used: u32,
    /// The numbers in use whose queue pairs are no longer in the table.
    leaving: Vec<Qpn>,
}

impl SlotUse {
    pub(crate) fn new(grant: SlotGrant) -> Self {
        Self { slot: grant.slot, next: u32::from(grant.first_index), used: 0, leaving: Vec::new() }
    }

    /// Returns the slot.
    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    /// Allocates the next free number after the last one allocated.
    pub(crate) fn take<Q>(&mut self, table: &QpTable<Q>) -> Option<Qpn> {
        if self.used >= SLOT_QPS {
            return None;
        }
        let base = u32::from(self.slot) << SLOT_SHIFT;
        let qpn = (0..SLOT_QPS)
            .map(|i| Qpn::new(base | ((self.next + i) & (SLOT_QPS - 1))))
            .find(|qpn| table.get(*qpn).is_none() && !self.leaving.contains(qpn))?;
        self.next = (qpn.get() & (SLOT_QPS - 1)) + 1;
        self.used += 1;
        Some(qpn)
    }

    /// Reserves the number of a queue pair that leaves the table, until it is given back.
    pub(crate) fn leave(&mut self, qpn: Qpn) {
        self.leaving.push(qpn);
    }

    /// Frees a number.
    pub(crate) fn give_back(&mut self, qpn: Qpn) {
        self.leaving.retain(|leaving| *leaving != qpn);
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(slot: u16) -> SlotGrant {
        SlotGrant { slot, first_index: 7 }
    }

    #[test]
    fn freed_qpn_is_reused_only_after_all_others_of_its_slot() {
        let mut table = QpTable::new(3);
        let mut slot = SlotUse::new(grant(3));
        let first = slot.take(&table).unwrap();
        assert_eq!((slot_of(first), index_of(first)), (3, 7));
        table.set(first, Some(Arc::new(())));
        table.set(first, None);
        slot.give_back(first);
        let others: Vec<_> = (1..SLOT_QPS)
            .map(|_| {
                let qpn = slot.take(&table).unwrap();
                table.set(qpn, Some(Arc::new(())));
                qpn
            })
            .collect();
        assert!(!others.contains(&first));
        assert_eq!(slot.take(&table), Some(first));
        assert_eq!(slot.take(&table), None, "the slot is full");
    }

    #[test]
    fn qpn_of_another_slot_or_earlier_generation_is_not_found() {
        let mut table = QpTable::new(3);
        let qpn = SlotUse::new(grant(3)).take(&table).unwrap();
        table.set(qpn, Some(Arc::new("own")));
        let other = SlotUse::new(grant(4)).take(&table).unwrap();
        assert!(table.get(qpn).is_some() && table.get(other).is_none());
        let mut targets = numbers::Numbers::default();
        let mut target = || Qpn::new(targets.take().unwrap());
        let earlier = target();
        table.set_target(earlier, Some(Arc::new("target")));
        assert_eq!(table.iter().count(), 2);
        let next = (earlier.get() + (1 << 14)) % numbers::TOP;
        let later = Qpn::new(numbers::TOP | next);
        assert!(table.get(earlier).is_some() && table.get(later).is_none());
    }
}
