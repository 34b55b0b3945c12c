//! Doubt: whether the tables that were set are at the switches for which they were meant.
//!
//! A datagram with a directed route goes to what is at the end of the route now. If a cable on the way was moved after a discovery, a
//! table goes to another switch, whose answer looks the same. Both switches then have tables other than the model says; and if the
//! cable is moved back before the next discovery, that finds the nodes and cables that it has found before.
//!
//! What the next discovery can see is this. Up to the first cable that was moved a route leads where it should: the switch before that
//! cable, or the manager's own port, has seen the link go down and come up. So that switch says that the state of a port has changed,
//! and the link is not active, unless it was not active either when the tables were set, and was made active since. Where an adapter was
//! unplugged and plugged again, the links between switches are as they were: that is no reason to set all tables again.
//!
//! Tables are also others where two managers were masters, of which each has set its own. Discoveries show other masters; and one that
//! has had its answer by then, or is gone, has told the ports that it is their manager.

use rdmux_wire::Guid;
use rdmux_wire::sm::{PortState, SmState};

use super::Manager;
use super::discovery::far_end;
use super::graph::Graph;
use super::model::Model;
use super::requests::What;
use super::tables::Dirty;
use crate::topology::PortRef;

/// What makes it doubtful that tables are where they were sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Doubt {
    /// Something was sent to switches since it was last certain that no cable was moved.
    sent: bool,
    /// A switch has said since then that the state of a port has changed.
    changed: bool,
    /// A link by which directed routes lead was not active when the last discovery saw it.
    young: bool,
    /// Another manager was a master as well, and may have set tables since the last discovery.
    rivalled: bool,
    /// Where the manager's own cable leads; none of a switch, from which routes lead by all ports.
    root: Option<(Guid, u8)>,
}

impl Doubt {
    /// A request is sent.
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

    /// A switch has said, in a discovery, that the state of a port has changed. The discovery clears that, and may end too early.
    pub(super) fn note_change(&mut self) {
        self.changed = true;
    }

    /// Another manager is a master, or was until now.
    pub(super) fn note_rival(&mut self) {
        self.rivalled = true;
    }

    /// A light sweep has asked all switches, and none has said that the state of a port has changed: until now everything went
    /// where it should.
    pub(super) fn note_quiet(&mut self) {
        self.sent &= self.changed;
    }
}

impl Manager {
    /// The model is new. Where it is doubtful that tables are where they were sent, all of them are to be set again.
    pub(super) fn settle_doubt(&mut self) {
        let graph = Graph::new(&self.model);
        // One that is found now may still set tables after this manager has set them.
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
        let moved = !graph.has_cables_of(&self.graph) || self.doubt.root != was.root;
        let may_have_moved = was.changed && (was.young || self.doubt.young);
        let astray = was.sent && (moved || may_have_moved);
        let asked = core::mem::take(&mut self.asked);
        if was.sent && moved {
            // What was asked to register again may have been another port.
            self.unasked.extend(asked);
        }
        if was.rivalled && !rivalled {
            // Programs may have registered with the other one, whose LID may have been the same.
            self.ask_all_again();
        }
        if astray || was.rivalled || rivalled {
            self.dirty.iter_mut().flatten().for_each(|dirty| **dirty = Dirty::everything());
            self.trees.forget_places();
            self.model.forget_sl_to_vl();
        }
    }
}

/// Whether a link between switches, or of the manager's own port, is up and not active.
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
