//! A manager's requests, and those in flight.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::Time;
use crate::topology::PortRef;

/// The bits of a transaction ID that hold the slot of its request. The remaining bits only make IDs differ.
const SLOT_BITS: u32 = 10;

/// The most requests in flight.
pub(super) const MAX_OUTSTANDING: usize = 1 << SLOT_BITS;

/// Returns the lower half of a transaction ID: the upper half belongs to the user MAD device.
pub(super) fn low(tid: u64) -> u32 {
    u32::try_from(tid & u64::from(u32::MAX)).unwrap_or_default()
}

/// A query to a port, or a setting for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) port: PortRef,
    pub(super) what: What,
}

/// The kind of a [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// NodeInfo of the manager's own node.
    Own,
    /// NodeInfo of the node at the other end of the port's cable.
    Probe,
    Description,
    SwitchInfo,
    PortInfo,
    /// A block of the P_Key table.
    Pkeys(u16),
    /// SMInfo of another manager.
    SmInfo,
    /// Clears PortStateChange before the states of the ports are read.
    ClearChange,
    /// LID and the other identity settings of an end port.
    Identity,
    /// A block of the P_Key table.
    SetPkeys(u16),
    /// Partition enforcement at a switch's port that is up.
    Enforce,
    /// The used size of the forwarding tables.
    SwitchSetup,
    Linear(u16),
    Multicast {
        position: u8,
        block: u16,
    },
    /// An SLtoVL table, by input port.
    SlToVl(u8),
    /// A block of the VL arbitration table, from 1.
    Arbitration(u8),
    /// A block of GUIDInfo.
    Guids(u8),
    SetGuids(u8),
    Arm,
    Activate,
    /// Disables a babbling port.
    Disable,
    /// SwitchInfo in a light sweep.
    Changed,
    /// PortInfo of the manager's own port, in a light sweep. For an adapter no switch reports that end of the cable. It also
    /// shows whether another, unknown master has set itself as the port's manager.
    OwnPort,
    /// NodeInfo of the node at the other end of the manager's own cable, in a light sweep. Without a switch nothing else
    /// reports that the node has changed.
    Neighbour,
    /// SMInfo of the master, polled by a standby.
    Poll,
    /// SMInfo of another manager, polled by the master in a light sweep.
    Rival,
    /// HANDOVER to another manager.
    Handover,
    /// ACKNOWLEDGE of another manager's handover.
    Acknowledge,
    /// DISCOVER to a lower-ranked master, so that it sweeps.
    Discover,
    /// HANDOVER to a lower-ranked master that refuses DISCOVER: a master sweeps when it receives one.
    Wake,
}

impl What {
    /// Returns whether the method is Set.
    pub(super) const fn is_set(self) -> bool {
        matches!(
            self,
            Self::ClearChange
                | Self::Identity
                | Self::SetPkeys(_)
                | Self::Enforce
                | Self::SwitchSetup
                | Self::Linear(_)
                | Self::Multicast { .. }
                | Self::SlToVl(_)
                | Self::SetGuids(_)
                | Self::Arm
                | Self::Activate
                | Self::Disable
                | Self::Handover
                | Self::Acknowledge
                | Self::Discover
                | Self::Wake
        )
    }
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) request: Request,
    /// The lower half of the transaction ID.
    pub(super) tid: u32,
    pub(super) attr_id: u16,
    pub(super) modifier: u32,
    /// The remaining retransmissions.
    retries: u32,
}

/// The fate of a request whose answer is overdue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Overdue {
    /// Retransmit it.
    Again(Pending),
    /// The request has failed: no retransmissions remain.
    Failed(Request),
}

/// The requests in flight. The lower half of a transaction ID has the slot of its request.
#[derive(Debug, Default)]
pub(super) struct Requests {
    slots: Vec<Option<Pending>>,
    free: Vec<u16>,
    /// Slot and ID of each request by the time when its answer is due, which is the order of transmission.
    order: VecDeque<(Time, u16, u32)>,
    count: u32,
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a request that is sent now and returns its ID. There must be fewer than [`MAX_OUTSTANDING`].
    pub(super) fn add(
        &mut self,
        request: Request,
        (attr_id, modifier): (u16, u32),
        due: Time,
        retries: u32,
    ) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u16::try_from(self.slots.len() - 1).unwrap_or_default()
        });
        self.count = self.count.wrapping_add(1);
        let tid = self.count << SLOT_BITS | u32::from(slot);
        self.slots[usize::from(slot)] = Some(Pending { request, tid, attr_id, modifier, retries });
        self.order.push_back((due, slot, tid));
        tid
    }

    /// Removes and returns the request that an answer with this ID, attribute and modifier matches.
    pub(super) fn take(&mut self, tid: u32, attr_id: u16, modifier: u32) -> Option<Request> {
        let slot = u16::try_from(tid & ((1 << SLOT_BITS) - 1)).ok()?;
        let pending = self.slots.get(usize::from(slot))?.as_ref()?;
        if (pending.tid, pending.attr_id, pending.modifier) != (tid, attr_id, modifier) {
            return None;
        }
        self.remove(slot).map(|pending| pending.request)
    }

    /// Returns a request whose answer is overdue at `now`. It stays until `again` if retransmissions remain, and is removed
    /// otherwise.
    pub(super) fn overdue(&mut self, now: Time, again: Time) -> Option<Overdue> {
        let slot = self.front().filter(|&(due, _)| due <= now)?.1;
        self.order.pop_front();
        let pending = self.slots.get_mut(usize::from(slot))?.as_mut()?;
        if let Some(left) = pending.retries.checked_sub(1) {
            pending.retries = left;
            let pending = *pending;
            self.order.push_back((again, slot, pending.tid));
            return Some(Overdue::Again(pending));
        }
        self.remove(slot).map(|pending| Overdue::Failed(pending.request))
    }

    /// Returns when the next answer is due.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.order.front().map(|&(due, ..)| due)
    }

    /// Forgets all requests.
    pub(super) fn clear(&mut self) {
        for slot in 0..self.slots.len() {
            self.remove(u16::try_from(slot).unwrap_or_default());
        }
        self.order.clear();
    }

    /// Returns the first request that is due, and drops entries whose request is gone.
    fn front(&mut self) -> Option<(Time, u16)> {
        while let Some(entry) = self.order.front() {
            if self.is_current(entry) {
                return Some((entry.0, entry.1));
            }
            self.order.pop_front();
        }
        None
    }

    fn is_current(&self, &(_, slot, tid): &(Time, u16, u32)) -> bool {
        self.slots[usize::from(slot)].as_ref().is_some_and(|pending| pending.tid == tid)
    }

    fn remove(&mut self, slot: u16) -> Option<Pending> {
        let pending = self.slots.get_mut(usize::from(slot))?.take()?;
        self.free.push(slot);
        self.front();
        Some(pending)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO.after(Duration::from_millis(ms))
    }

    const ASK: Request = Request { port: PortRef { node: 0, port: 0 }, what: What::Own };

    #[test]
    fn answers_must_have_id_attribute_and_modifier_of_their_request() {
        let mut all = Requests::default();
        let first = all.add(ASK, (0x11, 0), at(5), 1);
        let second = all.add(ASK, (0x15, 7), at(6), 1);
        assert_ne!(first, second);
        assert_eq!(all.take(second, 0x15, 6), None);
        assert_eq!(all.take(second, 0x11, 7), None);
        assert_eq!(all.take(second + (1 << 20), 0x15, 7), None);
        assert_eq!(all.take(second, 0x15, 7), Some(ASK));
        assert_eq!(all.take(second, 0x15, 7), None, "answered already");
        assert_eq!(all.len(), 1);
        let third = all.add(ASK, (0x15, 7), at(7), 1);
        assert_ne!(third, second, "the slot is used again, the ID is not");
    }

    #[test]
    fn overdue_requests_are_retried_in_send_order_then_fail() {
        let mut all = Requests::default();
        let tids = [5, 6, 7].map(|ms| all.add(ASK, (0x11, 0), at(ms), 1));
        all.take(tids[0], 0x11, 0);
        assert_eq!(all.next_timeout(), Some(at(6)));
        assert!(all.overdue(at(5), at(15)).is_none());
        for tid in &tids[1..] {
            let again = all.overdue(at(9), at(19));
            assert!(matches!(again, Some(Overdue::Again(p)) if p.tid == *tid), "{again:?}");
        }
        assert!(all.overdue(at(18), at(28)).is_none());
        all.take(tids[2], 0x11, 0);
        assert!(matches!(all.overdue(at(19), at(29)), Some(Overdue::Failed(ASK))));
        assert!(all.overdue(at(99), at(99)).is_none() && all.is_empty());
        assert_eq!(all.next_timeout(), None);
    }
}
