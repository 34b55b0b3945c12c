//! Doubt: detects whether tables may have reached other switches than intended.
//!
//! A directed-route datagram goes to the node that is at the end of the route now. If a cable on the route was moved after
//! discovery, a table reaches another switch, whose answer looks the same. Both switches then have tables that differ from
//! the model. If the cable is moved back before the next discovery, that discovery finds the same nodes and cables as before.
//!
//! The next discovery has these clues. Up to the first moved cable a route is correct. The switch before that cable, or the
//! manager's own port, has seen the link go down and come up. So that switch reports a port state change, and the link is not
//! active, unless it was not active when the tables were set either and was activated since. Replugging an adapter does not
//! affect links between switches, so it is no reason to set all tables again.
//!
//! Tables also differ if two managers were masters and each has set its own. Discovery finds other masters. A master that had
//! its answers by then, or is gone, has set itself as the ports' manager.

use rdmux_wire::Guid;
use rdmux_wire::sm::{PortState, SmState};

use super::Manager;
use super::discovery::far_end;
use super::graph::Graph;
use super::model::Model;
use super::requests::What;
use super::tables::Dirty;
use crate::topology::PortRef;

/// Evidence that tables may not be where they were sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Doubt {
    /// Something was sent to switches since it was last certain that no cable was moved.
    sent: bool,
    /// A switch has reported a port state change since then.
    changed: bool,
    /// A link on directed routes was not active when the last discovery saw it.
    young: bool,
    /// Another manager was also a master, and may have set tables since the last discovery.
    rivalled: bool,
    /// A command says that another manager is a master, as any program may say.
    claimed: bool,
    /// The far end of the manager's own cable; none for a switch, whose routes use all ports.
    root: Option<(Guid, u8)>,
}

impl Doubt {
    /// Notes that a request is sent.
    pub(super) fn note_sent(&mut self, what: What) {
        self.sent |= matches!(
            what,
            What::Identity
                | What::SwitchSetup
                | What::Linear(_)
                | What::Multicast { .. }
                | What::SlToVl(_)
        );
    }

    /// Notes that discovery has found a switch with a port state change. Discovery clears the bit, and may be abandoned afterwards.
    pub(super) fn note_change(&mut self) {
        self.changed = true;
    }

    /// Notes that another manager is a master, or was until now.
    pub(super) fn note_rival(&mut self) {
        self.rivalled = true;
    }

    /// Notes a command of another master. It counts only if the next discovery finds another manager.
    pub(super) fn note_claim(&mut self) {
        self.claimed = true;
    }

    /// Notes that a light sweep has queried all switches and none reported a port state change: everything sent so far
    /// reached its destination.
    pub(super) fn note_quiet(&mut self) {
        self.sent &= self.changed;
    }
}

impl Manager {
    /// Evaluates the evidence with a new model. If tables may not be where they were sent, all of them are set again.
    pub(super) fn settle_doubt(&mut self) {
        let graph = Graph::new(&self.model);
        // A master that is found now may still set tables after this manager has set them.
        let rivalled = self.rivals.iter().any(|rival| rival.info.state == SmState::MASTER);
        let was = core::mem::replace(
            &mut self.doubt,
            Doubt {
                young: has_young_link(&self.model, self.own),
                root: far_end(&self.model, self.own),
                rivalled,
                ..Doubt::default()
            },
        );
        let was_rivalled = was.rivalled || was.claimed && !self.rivals.is_empty();
        let moved = !graph.has_cables_of(&self.graph) || self.doubt.root != was.root;
        let may_have_moved = was.changed && (was.young || self.doubt.young);
        let astray = was.sent && (moved || may_have_moved);
        let asked = core::mem::take(&mut self.asked);
        if was.sent && moved {
            // The port that was asked to reregister may have been another one.
            self.unasked.extend(asked);
        }
        if was_rivalled && !rivalled {
            // Programs may have registered with the other master, which may have had the same LID.
            self.ask_all_again();
        }
        if astray || was_rivalled || rivalled {
            self.dirty.iter_mut().flatten().for_each(|dirty| **dirty = Dirty::everything());
            self.trees.forget_places();
            self.model.forget_sl_to_vl();
        }
    }
}

/// Returns whether a link between switches, or of the manager's own port, is up and not active.
fn has_young_link(model: &Model, own: PortRef) -> bool {
    let is_switch = |index: usize| model.node(index).is_some_and(|node| node.switch.is_some());
    let is_young = |port: &super::model::Port| {
        port.is_up() && port.info.is_some_and(|info| info.port_state < PortState::ACTIVE)
    };
    let switches = model.nodes().iter().filter(|node| node.switch.is_some());
    let mut between = switches
        .flat_map(|node| node.ports.iter())
        .filter(|port| port.peer.is_some_and(|peer| is_switch(peer.node)));
    between.any(is_young)
        || model.port(own).is_some_and(|port| port.peer.is_some() && is_young(port))
}
