//! A node that lies: it reports false GUIDs, does not keep its settings, does not answer, or sends traps endlessly.
//!
//! Some lies end with the last trouble, and then everything must be right. The others are those of adapters, and affect only
//! the liar.

use std::time::Duration;

use rand::Rng;
use rdmux_subnet::rmpp::Mad;
use rdmux_subnet::umad::UserAddress;
use rdmux_subnet::{NodeId, PortId};
use rdmux_wire::mad::Method;
use rdmux_wire::sm::{
    LinearForwardingTable, LinkError, MulticastForwardingTable, NodeInfo, Notice, PortInfo,
    Producer, Trap,
};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid};

use super::world::{Event, World};

/// The false behaviour of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Reports GUIDs of zero.
    NoGuid,
    /// Reports the GUID of a node that does not exist.
    StrangeGuid,
    /// Reports the GUID of another node of the subnet.
    GuidOfAnother,
    /// Keeps neither its forwarding tables nor, as an adapter, its port's settings, and its answers show that.
    Forgets,
    /// Does not answer.
    Silent,
    /// Sends traps of link errors endlessly.
    Babbles,
}

impl Lie {
    /// The lies that end with the last trouble, and the lasting lies of adapters.
    pub(super) const PASSING: [Self; 6] = [
        Self::NoGuid,
        Self::StrangeGuid,
        Self::GuidOfAnother,
        Self::Forgets,
        Self::Silent,
        Self::Babbles,
    ];
    pub(super) const LASTING: [Self; 5] =
        [Self::NoGuid, Self::StrangeGuid, Self::Forgets, Self::Silent, Self::Babbles];
}

/// The node that lies.
#[derive(Debug)]
pub(super) struct Liar {
    pub(super) node: NodeId,
    lie: Lie,
    /// Its real GUID.
    guid: Guid,
    /// The GUID that it reports for itself and its port.
    says: Guid,
    /// Whether the lie ends with the last trouble.
    passes: bool,
}

/// A GUID that no node has.
const STRANGE: Guid = Guid(0x66_6666);

/// The time between its traps.
const BABBLE: Duration = Duration::from_millis(300);

impl Liar {
    /// Returns whether the node cannot be managed and is excluded from the checks.
    pub(super) fn is_lost(&self) -> bool {
        !self.passes && self.lie != Lie::Babbles
    }
}

impl World {
    /// Chooses the lying node: one without a manager, and without a program if it does not stop.
    pub(super) fn pick_liar(&mut self, guids: &[Guid]) {
        let Some((lie, passes)) = self.scenario.lie else { return };
        let nodes = (0..guids.len()).filter_map(|index| u32::try_from(index).ok()).map(NodeId);
        let others: Vec<NodeId> = nodes
            .filter(|&node| {
                let has_manager = self.seats.iter().any(|seat| seat.port.node == node);
                let has_program = self.programs.iter().any(|program| program.port.node == node);
                // Registrations of a program under another's GUID belong to the other.
                let may_have_program = passes && lie != Lie::GuidOfAnother;
                let may = may_have_program || !has_program;
                !has_manager && may && (passes || !self.is_switch(node))
            })
            .collect();
        if others.is_empty() {
            return;
        }
        let node = others[self.rng.random_range(0..others.len())];
        let guid = |node: NodeId| guids.get(node.0 as usize).copied().unwrap_or_default();
        let twins = (0..guids.len()).filter_map(|index| u32::try_from(index).ok()).map(NodeId);
        let twins: Vec<NodeId> = twins
            .filter(|&other| other != node && self.is_switch(other) == self.is_switch(node))
            .collect();
        let says = match lie {
            Lie::GuidOfAnother if !twins.is_empty() => {
                guid(twins[self.rng.random_range(0..twins.len())])
            }
            Lie::StrangeGuid => STRANGE,
            _ => Guid(0),
        };
        self.liar = Some(Liar { node, lie, guid: guid(node), says, passes });
        if lie == Lie::Babbles {
            self.agenda.after(BABBLE, Event::Babble);
        }
    }

    /// Ends a passing lie. A node gets other GUIDs only when it restarts, with its links.
    pub(super) fn liar_reforms(&mut self) {
        let now = self.agenda.now();
        let Some(liar) = self.liar.take_if(|liar| liar.passes) else { return };
        if !matches!(liar.lie, Lie::StrangeGuid | Lie::GuidOfAnother) {
            return;
        }
        let ports = self.subnet.ports().map(|view| view.id()).filter(|id| id.node == liar.node);
        for port in ports.collect::<Vec<_>>() {
            if self.far(port).is_some() {
                let _ = self.subnet.set_cable(now, port, false, &mut self.inbox);
                let _ = self.subnet.set_cable(now, port, true, &mut self.inbox);
            }
        }
    }

    /// Returns the node at the end of a directed route from a port.
    fn target(&self, from: PortId, smp: &Smp) -> Option<NodeId> {
        let mut at = from;
        let hops = smp.initial_path.get(1..=usize::from(smp.hop_count()))?;
        for &egress in hops {
            let number = if self.is_switch(at.node) { egress } else { at.number };
            at = self.far(PortId::new(at.node, number))?;
        }
        Some(at.node)
    }

    /// Applies the lie to a request to the node. Returns false if the request is lost.
    pub(super) fn tamper_request(&mut self, from: PortId, mad: &mut Mad) -> bool {
        let Some((liar, mut smp)) = self.told_by_liar(from, mad) else { return true };
        // An answer to another manager has that manager's route.
        if smp.header.method.is_response() {
            return true;
        }
        let is_table =
            [LinearForwardingTable::ATTR_ID, MulticastForwardingTable::ATTR_ID, PortInfo::ATTR_ID]
                .contains(&smp.header.attr_id);
        match liar {
            Lie::Silent => return false,
            Lie::Forgets if smp.header.method == Method::SET && is_table => {
                self.stats.lies += 1;
                smp.header.method = Method::GET;
                *mad = smp.to_bytes();
            }
            _ => {}
        }
        true
    }

    /// Applies the lie to an answer that arrives at a manager.
    pub(super) fn tamper_answer(&mut self, at: PortId, mad: &mut Mad) {
        let Some((_, mut smp)) = self.told_by_liar(at, mad) else { return };
        let Some(liar) = &self.liar else { return };
        let lies = matches!(liar.lie, Lie::NoGuid | Lie::StrangeGuid | Lie::GuidOfAnother);
        if lies
            && smp.header.attr_id == NodeInfo::ATTR_ID
            && smp.header.method == Method::GET_RESP
            && let Ok(info) = NodeInfo::parse(&smp.data)
        {
            let port = Guid(info.port_guid.0.wrapping_sub(liar.guid.0).wrapping_add(liar.says.0));
            let port_guid = if liar.lie == Lie::NoGuid { Guid(0) } else { port };
            smp.set_attribute(&NodeInfo { node_guid: liar.says, port_guid, ..info }.into());
            *mad = smp.to_bytes();
            self.stats.lies += 1;
        }
    }

    /// Parses a directed-route datagram between a manager's port and the lying node.
    fn told_by_liar(&self, port: PortId, mad: &Mad) -> Option<(Lie, Smp)> {
        let liar = self.liar.as_ref()?;
        let smp = Smp::parse(mad).ok().filter(Smp::is_directed)?;
        (self.target(port, &smp) == Some(liar.node)).then_some((liar.lie, smp))
    }

    /// Returns whether the lying node makes a Set necessary repeatedly: one to it, or to the other end of its cables.
    pub(super) fn is_due_to_liar(&self, from: PortId, mad: &Mad) -> bool {
        let Some(liar) = self.liar.as_ref().filter(|liar| liar.is_lost()) else { return false };
        let Ok(smp) = Smp::parse(mad) else { return false };
        let target = self.target(from, &smp);
        let [.., number] = smp.header.attr_mod.to_be_bytes();
        let far = target.and_then(|node| self.far(PortId::new(node, number)));
        let is_end =
            smp.header.attr_id == PortInfo::ATTR_ID && far.is_some_and(|far| far.node == liar.node);
        target == Some(liar.node) || is_end
    }

    /// Returns whether a problem of a sweep is due to the lying node: at it, or at the other end of its cable.
    pub(super) fn is_problem_of_liar(&self, node: Guid, number: u8) -> bool {
        let Some(liar) = self.liar.as_ref().filter(|liar| liar.is_lost()) else { return false };
        let mut cables = self.subnet.ports().filter(|view| view.id().node == liar.node);
        let is_end = cables.any(|view| {
            self.far(view.id()).is_some_and(|far| far.number == number && far.number > 0)
        });
        node == Guid(0) || node == liar.guid || node == liar.says || is_end
    }

    /// Sends a trap of the lying node, and schedules the next one.
    pub(super) fn babble(&mut self) {
        let Some(liar) = &self.liar else { return };
        let node = liar.node;
        let first = self.subnet.ports().find(|view| view.id().node == node);
        let Some(view) = first else { return };
        let (port, lid, sm_lid) = (view.id(), view.lid(), view.sm_lid());
        self.agenda.after(BABBLE, Event::Babble);
        if lid == Lid::NONE || sm_lid == Lid::NONE {
            return;
        }
        let error = LinkError { lid, port: port.number.max(1), ..LinkError::default() };
        let producer = if self.is_switch(node) { Producer::SWITCH } else { Producer::CA };
        let notice = Notice::new(&Trap::LinkIntegrity(error), producer, lid);
        let mut smp = Smp::lid_routed(Method::TRAP, Notice::ATTR_ID, 0);
        smp.header.tid = self.agenda.now().0;
        smp.set_attribute(&notice.into());
        self.stats.lies += 1;
        let (to, mad) = (UserAddress::smi(sm_lid), Box::new(smp.to_bytes()));
        self.travel(Event::Transmit { from: port, to, mad });
    }
}
