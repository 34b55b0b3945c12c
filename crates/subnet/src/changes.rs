//! A log of changes that affect the routes of packets, so that a cache of routes revalidates only those that may have changed.

use alloc::vec::Vec;

use crate::packet::{NodeId, PortId};
use crate::subnet::Subnet;

/// A change after which packets may take another route, or none, or need other keys or service levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// Anything about a switch.
    Node(NodeId),
    /// LID, state, cable, MTU, lanes or P_Keys of a port. For port 0 of a switch: the LID of all its ports.
    Port(PortId),
    /// The service levels that map to a lane from one port of a switch to another.
    Lanes {
        /// The switch.
        node: NodeId,
        /// The port by which packets enter.
        input: u8,
        /// The port by which packets leave.
        output: u8,
    },
    /// A block of 64 LIDs of a switch's linear forwarding table.
    Linear {
        /// The switch.
        node: NodeId,
        /// The block number: its first LID is 64 times this number.
        block: u16,
    },
    /// A block of 32 LIDs of a switch's multicast forwarding table.
    Multicast {
        /// The switch.
        node: NodeId,
        /// The block number: its first LID is 0xc000 plus 32 times this number.
        block: u16,
    },
}

/// The most changes that are kept. A consumer that falls further behind checks everything.
const MOST: usize = 1 << 16;

/// The log of changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    generation: u64,
    kept: Option<Vec<Change>>,
    too_many: bool,
}

impl Changes {
    /// Counts a change, and records it if recording is on.
    #[inline]
    pub(crate) fn add(&mut self, change: Change) {
        self.generation += 1;
        let Some(kept) = &mut self.kept else { return };
        if kept.last() == Some(&change) || self.too_many {
            return;
        }
        if kept.len() < MOST {
            kept.push(change);
        } else {
            self.too_many = true;
        }
    }
}

impl Subnet {
    /// Returns a number that grows with every change that can affect a route. Results of [`Subnet::way`] and
    /// [`Subnet::group_ways`] are valid while it stays the same.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.changes.generation
    }

    /// Turns the recording of changes for [`Subnet::take_changes`] on or off. While it is off, a change only costs a counter
    /// increment.
    pub fn keep_changes(&mut self, keep: bool) {
        self.changes.kept = keep.then(Vec::new);
        self.changes.too_many = false;
    }

    /// Returns the changes since the last call, possibly with duplicates. Returns none if they are unknown: recording was
    /// off, or there were too many.
    pub fn take_changes(&mut self) -> Option<Vec<Change>> {
        let changes = &mut self.changes;
        let kept = core::mem::take(changes.kept.as_mut()?);
        (!core::mem::take(&mut changes.too_many)).then_some(kept)
    }

    /// Records a change of a port.
    pub(crate) fn port_changed(&mut self, at: usize) {
        self.changes.add(Change::Port(self.ports[at].id));
    }
}
