//! Requests of a manager: what is asked, and which have no answer yet.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::Time;
use crate::topology::PortRef;

/// The bits of a transaction ID that say in which slot its request is. The others are of no meaning to anybody but make IDs
/// differ.
const SLOT_BITS: u32 = 10;

/// The most requests without an answer.
pub(super) const MAX_OUTSTANDING: usize = 1 << SLOT_BITS;

/// The lower half of a transaction ID: the upper one is the user MAD device's.
pub(super) fn low(tid: u64) -> u32 {
    u32::try_from(tid & u64::from(u32::MAX)).unwrap_or_default()
}

/// What is asked of a port, or set at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) port: PortRef,
    pub(super) what: What,
}

/// Of a [`Request`]: what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// NodeInfo of the manager's own node.
    Own,
    /// NodeInfo of what is at the other end of the port's cable.
    Probe,
    Description,
    SwitchInfo,
    PortInfo,
    /// A block of the P_Key table.
    Pkeys(u16),
    /// Of another manager.
    SmInfo,
    /// Clears PortStateChange, before the states of the ports are read.
    ClearChange,
    /// LID and what else an end port must know.
    Identity,
    /// A block of the P_Key table.
    SetPkeys(u16),
    /// Enforcement of partitions at a switch's port that is up.
    Enforce,
    /// The capacity of the tables that is in use.
    SwitchSetup,
    Linear(u16),
    Multicast {
        position: u8,
        block: u16,
    },
    /// By the port that packets come in by.
    SlToVl(u8),
    /// A block of the arbitration of virtual lanes, from 1.
    Arbitration(u8),
    /// A block of GUIDInfo.
    Guids(u8),
    SetGuids(u8),
    Arm,
    Activate,
    /// The port babbles.
    Disable,
    /// SwitchInfo in a light sweep.
    Changed,
    /// PortInfo of the manager's own port, in a light sweep: of an adapter no switch tells of that end of the cable; and another
    /// master, of which this one does not know, has told the port that it is its manager.
    OwnPort,
    /// NodeInfo of what is at the other end of the manager's own cable, in a light sweep: without a switch nobody tells that it is another
    /// node.
    Neighbour,
    /// SMInfo of the master, asked by a standby.
    Poll,
    /// SMInfo of another manager, asked by the master in a light sweep.
    Rival,
    /// The other manager is to be the master.
    Handover,
    /// Its handover has been heard.
    Acknowledge,
    /// A worse master is to look around again.
    Discover,
    /// The same for one that refuses that: it is told of a handover, which a master takes as a reason to look around.
    Wake,
}

impl What {
    /// Whether its method is Set.
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

/// A request without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) request: Request,
    /// The lower half of the transaction ID.
    pub(super) tid: u32,
    pub(super) attr_id: u16,
    pub(super) modifier: u32,
    /// How often it may be sent again.
    retries: u32,
}

/// What becomes of a request whose answer is overdue.
#[derive(Clone, Copy, Debug)]
pub(super) enum Overdue {
    /// It is to be sent again.
    Again(Pending),
    /// It has been sent often enough.
    Failed(Request),
}

/// All requests without an answer. The lower half of a transaction ID says where a request is.
#[derive(Debug, Default)]
pub(super) struct Requests {
    slots: Vec<Option<Pending>>,
    free: Vec<u16>,
    /// By the time at which their answers are due, which is the order in which they were sent: slot and ID.
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

    /// The ID of a request that is to be sent now. There must be fewer than [`MAX_OUTSTANDING`].
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

    /// The request that an answer with this ID, attribute and modifier is for.
    pub(super) fn take(&mut self, tid: u32, attr_id: u16, modifier: u32) -> Option<Request> {
        let slot = u16::try_from(tid & ((1 << SLOT_BITS) - 1)).ok()?;
        let pending = self.slots.get(usize::from(slot))?.as_ref()?;
        if (pending.tid, pending.attr_id, pending.modifier) != (tid, attr_id, modifier) {
            return None;
        }
        self.remove(slot).map(|pending| pending.request)
    }

    /// A request whose answer is overdue at `now`: it stays until `again` if it may be sent again, or else is no longer there.
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

    /// When the next answer is due.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.order.front().map(|&(due, ..)| due)
    }

    /// Nobody waits for any answer.
    pub(super) fn clear(&mut self) {
        for slot in 0..self.slots.len() {
            self.remove(u16::try_from(slot).unwrap_or_default());
        }
        self.order.clear();
    }

    /// The first that is due; those that are no longer there are forgotten.
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
    fn overdue_requests_come_in_the_order_in_which_they_were_sent() {
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
