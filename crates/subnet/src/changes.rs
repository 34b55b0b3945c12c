//! What has changed of that by which packets find their way, so that who keeps ways looks only for those that may be others.

use alloc::vec::Vec;

use crate::packet::{NodeId, PortId};
use crate::subnet::Subnet;

/// A change after which packets may go another way, or no more, or not with the same keys and service levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// Anything of a switch.
    Node(NodeId),
    /// LID, state, cable, MTU, lanes or P_Keys of a port. Port 0 of a switch stands for the LID of all its ports.
    Port(PortId),
    /// The service levels that have a lane from one port of a switch to another.
    Lanes {
        /// The switch.
        node: NodeId,
        /// Where packets come in.
        input: u8,
        /// Where they leave.
        output: u8,
    },
    /// A block of 64 LIDs of a switch's linear forwarding table.
    Linear {
        /// The switch.
        node: NodeId,
        /// The LIDs from 64 times this number on.
        block: u16,
    },
    /// A block of 32 LIDs of a switch's multicast forwarding table.
    Multicast {
        /// The switch.
        node: NodeId,
        /// The LIDs from 0xc000 and 32 times this number on.
        block: u16,
    },
}

/// The most changes that are kept. A consumer that comes so late looks at everything.
const MOST: usize = 1 << 16;

/// What has changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    generation: u64,
    kept: Option<Vec<Change>>,
    too_many: bool,
}

impl Changes {
    /// Counts a change, and keeps it if anybody asked for that.
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
    /// A number that grows with everything that can change a way: what [`Subnet::way`] and [`Subnet::group_ways`] found holds as
    /// long as it stays.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.changes.generation
    }

    /// Keeps changes from now on for [`Subnet::take_changes`], or no longer. As long as it does not, they cost no more than
    /// counting.
    pub fn keep_changes(&mut self, keep: bool) {
        self.changes.kept = keep.then(Vec::new);
        self.changes.too_many = false;
    }

    /// What has changed since the last call, the same change perhaps more than once. None if that is not known: nothing was kept, or
    /// there was too much of it.
    pub fn take_changes(&mut self) -> Option<Vec<Change>> {
        let changes = &mut self.changes;
        let kept = core::mem::take(changes.kept.as_mut()?);
        (!core::mem::take(&mut changes.too_many)).then_some(kept)
    }

    /// A port has changed.
    pub(crate) fn port_changed(&mut self, at: usize) {
        self.changes.add(Change::Port(self.ports[at].id));
    }
}
