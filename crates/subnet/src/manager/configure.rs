//! The settings of ports: LID, manager, partitions, MTU and virtual lanes, and then the states of links.

use rdmux_wire::sm::{
    CapabilityMask, LinkDownDefault, LinkSpeed, LinkSpeedExt, LinkWidth, PhysState, PortInfo,
    PortState,
};
use rdmux_wire::{Guid, Lid, Mkey};

use super::Manager;
use super::model::{Model, Port};
use super::requests::{Request, What};
use super::status::ProblemKind;
use crate::topology::PortRef;

/// SubnetTimeOut: ports repeat traps no faster than 4.096 us * 2^18, about one second.
const SUBNET_TIMEOUT: u8 = 18;

/// Returns a PortInfo for a Set that leaves the link's state and enabled widths and speeds unchanged.
const fn unchanged(info: &PortInfo) -> PortInfo {
    PortInfo {
        port_state: PortState::NO_CHANGE,
        port_physical_state: PhysState::NO_CHANGE,
        link_width_enabled: LinkWidth::empty(),
        link_speed_enabled: LinkSpeed::empty(),
        link_speed_ext_enabled: LinkSpeedExt::empty(),
        client_reregister: false,
        ..*info
    }
}

/// Sets MTU and lanes to the smaller values of both ends.
fn agree(info: &mut PortInfo, peer: &PortInfo) {
    info.neighbor_mtu = info.mtu_cap.min(peer.mtu_cap);
    info.operational_vls = info.vl_cap.min(peer.vl_cap);
}

impl Manager {
    /// Returns the PortInfo that an end port should have, except its link state; none if it was not read or has no LID.
    pub(super) fn identity(&self, model: &Model, place: PortRef) -> Option<PortInfo> {
        let port = model.port(place)?;
        let info = port.info.as_ref().filter(|_| port.assigned != Lid::NONE)?;
        let is_protected = self.config.mkey != Mkey(0);
        let mut new = PortInfo {
            mkey: self.config.mkey,
            mkey_protect_bits: if is_protected { self.config.mkey_protect.min(3) } else { 0 },
            mkey_lease_period: if is_protected { self.config.mkey_lease } else { 0 },
            gid_prefix: self.config.prefix,
            lid: port.assigned,
            lmc: self.lmc_of(model, place),
            sm_lid: self.own_lid(),
            master_smsl: 0,
            subnet_timeout: SUBNET_TIMEOUT,
            ..unchanged(info)
        };
        if let Some(peer) = port.peer.and_then(|peer| model.port(peer)?.info.as_ref()) {
            new.link_down_default_state = LinkDownDefault::POLLING;
            agree(&mut new, peer);
            if differs_on_link(&new, info) && info.port_state > PortState::INIT {
                // Retraining the link makes both ends adopt the new values.
                new.port_state = PortState::DOWN;
            }
        }
        let can = info.capability_mask.contains(CapabilityMask::CLIENT_REREGISTRATION);
        new.client_reregister = can && self.unasked.contains(&port.guid);
        Some(new)
    }

    /// Marks all ports to reregister.
    pub(super) fn ask_all_again(&mut self) {
        let known = self.model.end_ports().filter(|(_, port)| port.info.is_some());
        self.unasked.extend(known.map(|(_, port)| port.guid));
    }

    /// Marks the ports that must reregister: those new to this manager, those that another manager has configured since and
    /// that may have registered with it, and those that had another port's LID and thus its address.
    pub(super) fn note_unasked(&mut self, gone: &[Guid]) {
        let own = self.own_lid();
        self.unasked.retain(|guid| !gone.contains(guid));
        for (_, port) in self.model.end_ports() {
            let Some(info) = &port.info else { continue };
            let is_foreign = info.sm_lid != Lid::NONE && info.sm_lid != own;
            let is_mistaken = info.lid != Lid::NONE && info.lid != port.assigned;
            if self.fresh || is_foreign || is_mistaken || self.appeared.contains(&port.guid) {
                self.unasked.insert(port.guid);
            }
        }
    }

    fn lmc_of(&self, model: &Model, place: PortRef) -> u8 {
        let switch = model.node(place.node).and_then(|node| node.switch.as_ref());
        match switch {
            Some(switch) if !switch.info.enhanced_port0 => 0,
            _ => self.config.lmc.min(7),
        }
    }

    /// Returns the PortInfo that a port with a link should have when it enters a state.
    pub(super) fn link(&self, model: &Model, place: PortRef, state: PortState) -> Option<PortInfo> {
        let port = model.port(place)?;
        let peer = model.port(port.peer?)?.info.as_ref()?;
        let mut new = self.enforcing(model, place, unchanged(port.info.as_ref()?));
        agree(&mut new, peer);
        new.link_down_default_state = LinkDownDefault::POLLING;
        new.port_state = state;
        Some(new)
    }

    /// Returns the PortInfo of a switch's port that is up, with the partition enforcement that it should have.
    pub(super) fn enforce(&self, model: &Model, place: PortRef) -> Option<PortInfo> {
        let info = model.port(place)?.info.as_ref()?;
        Some(self.enforcing(model, place, unchanged(info)))
    }

    /// Returns the PortInfo that disables a port.
    pub(super) fn disabled(&self, model: &Model, place: PortRef) -> Option<PortInfo> {
        let info = unchanged(model.port(place)?.info.as_ref()?);
        Some(PortInfo { port_physical_state: PhysState::DISABLED, ..info })
    }

    /// Queues the settings that a node needs before routes are computed.
    pub(super) fn queue_identity(&mut self, index: usize) {
        let Some(node) = self.model.node(index) else { return };
        if self.fresh && node.switch.as_ref().is_some_and(|switch| switch.info.port_state_change) {
            // A manager that is not yet the master leaves the change bit set. Clear it before tables are set: a later change
            // is new.
            let port = PortRef { node: index, port: 0 };
            self.queue.push_back(Request { port, what: What::ClearChange });
        }
        let ends = node.end_ports();
        self.queue_pkeys(index);
        for number in ends {
            let port = PortRef { node: index, port: number };
            let Some(info) = self.model.port(port).and_then(|p| p.info) else { continue };
            self.queue_aliases(port);
            let Some(new) = self.identity(&self.model, port) else { continue };
            if new.port_state == PortState::DOWN {
                self.stale = true;
            }
            if new != unchanged(&info) {
                self.queue.push_back(Request { port, what: What::Identity });
            }
        }
        self.queue_sl_to_vl(index);
    }

    /// Queues the links of a node that are not yet in the state that `what` brings them to.
    pub(super) fn queue_links(&mut self, index: usize, what: What) {
        if what == What::Arm {
            self.queue_enforcement(index);
        }
        let Some(node) = self.model.node(index) else { return };
        let before = if what == What::Arm { PortState::INIT } else { PortState::ARMED };
        for (number, port) in (0..=u8::MAX).zip(&node.ports) {
            let place = PortRef { node: index, port: number };
            if port.info.is_some_and(|info| info.port_state == before) && self.is_linked(port) {
                self.queue.push_back(Request { port: place, what });
            }
        }
    }

    /// Returns whether a port and its peer both report a link. A one-sided link is a problem of the next sweep.
    pub(super) fn is_linked(&self, port: &Port) -> bool {
        let peer = port.peer.and_then(|peer| self.model.port(peer));
        port.is_up() && peer.is_some_and(Port::is_up)
    }

    /// Reports cables that only one end reports.
    pub(super) fn check_links(&mut self) {
        for index in 0..self.model.nodes().len() {
            for number in 0..=u8::MAX {
                let place = PortRef { node: index, port: number };
                let Some(port) = self.model.port(place) else { break };
                if port.peer.is_some() && port.info.is_some() && !self.is_linked(port) {
                    self.problem(ProblemKind::Silent, place);
                }
            }
        }
    }
}

/// Returns whether MTU or lanes differ.
fn differs_on_link(a: &PortInfo, b: &PortInfo) -> bool {
    (a.neighbor_mtu, a.operational_vls) != (b.neighbor_mtu, b.operational_vls)
}
