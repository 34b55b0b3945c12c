//! Traps: the master represses each, acts on some, and reports to administration those that ports send about their own node,
//! except traps of babbling ports.

use alloc::boxed::Box;

use rdmux_wire::mad::Method;
use rdmux_wire::sm::{LocalChange, LocalChangeFlags, Notice, SmState, Trap};
use rdmux_wire::smp::Smp;

use super::requests::{Request, What};
use super::sweep::Phase;
use super::{Event, Manager, ManagerSink};
use crate::Time;
use crate::topology::PortRef;
use crate::umad::UserAddress;

impl Manager {
    /// Handles a trap. Managers that are not the master leave it to the master.
    pub(super) fn handle_trap(
        &mut self,
        now: Time,
        from: &UserAddress,
        smp: &Smp,
        out: &mut impl ManagerSink,
    ) {
        if self.state != SmState::MASTER || smp.is_directed() {
            return;
        }
        let Ok(notice) = Notice::parse(&smp.data[..]) else { return };
        let mut repress =
            Smp::lid_routed(Method::TRAP_REPRESS, Notice::ATTR_ID, smp.header.attr_mod);
        repress.header.tid = smp.header.tid;
        repress.mkey = self.config.mkey;
        repress.data = smp.data;
        out.send(UserAddress::smi(from.lid), Box::new(repress.to_bytes()));
        let sender = self.model.by_lid(from.lid);
        if self.is_babble(now, sender, &notice, out) {
            return;
        }
        let known = self.model.by_lid(notice.issuer_lid);
        match notice.trap().filter(|_| known.is_some()) {
            Some(Trap::Local(change)) if is_name_only(&change) => {
                self.read_name_again(now, sender, &change);
            }
            Some(Trap::LinkState(_) | Trap::Local(_)) => self.request_sweep_for(now, sender),
            Some(Trap::SystemImageGuid(change)) => {
                let node = |lid| self.model.by_lid(lid).map(|port| port.node);
                // Ignore traps that a node sends in the name of another.
                let own = node(change.lid).filter(|own| node(from.lid) == Some(*own));
                if let Some(node) = own.and_then(|node| self.model.node_mut(node)) {
                    node.info.system_image_guid = change.system_image_guid;
                }
            }
            _ => {}
        }
        // Ignore traps in the name of another node or of administration.
        let is_own = sender.is_some_and(|sender| known.is_some_and(|at| at.node == sender.node));
        if is_own && !notice.trap().is_some_and(|trap| is_of_administration(&trap)) {
            out.event(Event::Trap(notice));
        }
    }

    fn read_name_again(&mut self, now: Time, sender: Option<PortRef>, change: &LocalChange) {
        let Some(port) = self.model.by_lid(change.lid) else { return };
        if self.phase == Phase::Discovery {
            // The description may already have been read.
            self.request_sweep_for(now, sender);
        } else {
            self.queue.push_back(Request { port, what: What::Description });
        }
    }
}

/// Returns whether only administration raises this trap.
const fn is_of_administration(trap: &Trap) -> bool {
    matches!(
        trap,
        Trap::GidInService(_)
            | Trap::GidOutOfService(_)
            | Trap::GroupCreated(_)
            | Trap::GroupDeleted(_)
    )
}

/// Returns whether only the node description has changed.
fn is_name_only(change: &LocalChange) -> bool {
    change.other_local_changes && change.change_flags == LocalChangeFlags::NODE_DESCRIPTION
}
