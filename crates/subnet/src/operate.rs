//! Operations of operators and drivers: cables, switch resets, and attaching programs.

use alloc::string::String;

use rdmux_transport::Time;
use rdmux_wire::Guid;
use rdmux_wire::sm::{CapabilityMask, LocalChangeFlags, NodeDescription, PhysState};

use crate::changes::Change;
use crate::counters::Counters;
use crate::packet::{NodeId, PortId};
use crate::port::{PortData, PortKind};
use crate::sink::Sink;
use crate::subnet::{Cx, Subnet};
use crate::topology::LinkRate;

/// The reason why an operator's command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperateError {
    /// There is no such port, or it is port 0 of a switch, which has no connector.
    #[error(
        "{0} does not exist or takes no cable: name a port from 1 to the node's number of ports"
    )]
    NoPort(PortId),
    /// The port already has a cable.
    #[error("{0} has a cable to {1} already: unplug it first")]
    Taken(PortId, PortId),
    /// Both ends of the cable are the same port.
    #[error("{0} cannot be cabled to itself")]
    Itself(PortId),
    /// The port has no cable.
    #[error("{0} has no cable: plug one first")]
    NoCable(PortId),
    /// The node is no switch: only switches are reset.
    #[error("{0} is not a switch of this subnet")]
    NoSwitch(NodeId),
}

impl Subnet {
    /// Connects two free ports. The link comes up at once if both ports allow it.
    ///
    /// # Errors
    /// [`OperateError`] when a port does not exist or has a cable.
    pub fn plug(
        &mut self,
        now: Time,
        a: PortId,
        b: PortId,
        rate: LinkRate,
        sink: &mut impl Sink,
    ) -> Result<(), OperateError> {
        let ends = [self.plug_at(a)?, self.plug_at(b)?];
        if a == b {
            return Err(OperateError::Itself(a));
        }
        if let Some((at, peer)) = ends.iter().find_map(|&at| Some((at, self.ports[at].peer?))) {
            return Err(OperateError::Taken(self.ports[at].id, self.ports[peer].id));
        }
        let mut cx = Cx { now, sink };
        self.lay_cable(ends[0], ends[1], rate);
        self.train(ends[0], &mut cx);
        self.expire(&mut cx);
        Ok(())
    }

    /// Removes the cable of a port at both ends, and returns the peer.
    ///
    /// # Errors
    /// [`OperateError`] when the port does not exist or has no cable.
    pub fn unplug(
        &mut self,
        now: Time,
        port: PortId,
        sink: &mut impl Sink,
    ) -> Result<PortId, OperateError> {
        let at = self.plug_at(port)?;
        let peer = self.ports[at].peer.ok_or(OperateError::NoCable(port))?;
        let mut cx = Cx { now, sink };
        self.cut(at, &mut cx);
        for end in [at, peer] {
            self.ports[end].peer = None;
            self.ports[end].cable_up = true;
            self.port_changed(end);
        }
        self.expire(&mut cx);
        Ok(self.ports[peer].id)
    }

    /// Switches the cable of a port off or on: the link goes down at both ends, or comes up.
    ///
    /// # Errors
    /// [`OperateError`] when the port does not exist or has no cable.
    pub fn set_cable(
        &mut self,
        now: Time,
        port: PortId,
        up: bool,
        sink: &mut impl Sink,
    ) -> Result<(), OperateError> {
        let at = self.plug_at(port)?;
        let peer = self.ports[at].peer.ok_or(OperateError::NoCable(port))?;
        let mut cx = Cx { now, sink };
        if !up {
            self.cut(at, &mut cx);
        }
        for end in [at, peer] {
            self.ports[end].cable_up = up;
        }
        if up {
            self.train(at, &mut cx);
        }
        self.expire(&mut cx);
        Ok(())
    }

    /// Cuts the signal at both ends, without a command to either.
    fn cut(&mut self, at: usize, cx: &mut Cx<'_, impl Sink>) {
        if self.ports[at].is_up() {
            let default = self.ports[at].info.link_down_default_state;
            self.take_down(at, crate::link::down_state(default), cx);
            self.report_change(at, cx);
        }
    }

    /// Power-cycles a switch: it loses its LID, forwarding tables and all other settings, and its links go down and come up again.
    ///
    /// # Errors
    /// [`OperateError::NoSwitch`] when the node is no switch.
    pub fn reset_switch(
        &mut self,
        now: Time,
        node: NodeId,
        sink: &mut impl Sink,
    ) -> Result<(), OperateError> {
        let first = self.index(PortId { node, number: 0 }).ok_or(OperateError::NoSwitch(node))?;
        let mut cx = Cx { now, sink };
        let all = first..first + self.node_of(first).all_ports();
        for at in all.clone().skip(1) {
            self.take_down(at, PhysState::POLLING, &mut cx);
        }
        for at in all.clone() {
            self.power_on(at);
        }
        let config = self.config;
        if let Some(switch) = &mut self.node_of_mut(first).switch {
            switch.reset(&config);
        }
        self.changes.add(Change::Node(node));
        for at in all.skip(1) {
            self.train(at, &mut cx);
        }
        self.expire(&mut cx);
        Ok(())
    }

    /// Resets a port to its state after power-on. It keeps its cable.
    fn power_on(&mut self, at: usize) {
        if let Some(end) = self.ports[at].lease {
            self.timers.remove(&(end, crate::subnet::Timer::Lease(at)));
        }
        let (kind, rate) = (self.kind(at), self.capability(at));
        let old = &self.ports[at];
        let mut new = PortData::new(old.id, kind, old.guid, &self.config);
        (new.peer, new.cable_up, new.attached) = (old.peer, old.cable_up, old.attached);
        new.counters = Counters::new();
        if kind != PortKind::Management {
            new.set_rate(rate);
        }
        self.ports[at] = new;
    }

    /// Attaches programs to a port or detaches them. Without programs the agents answer in their place.
    pub fn set_attached(&mut self, port: PortId, attached: bool) {
        if let Some(at) = self.index(port) {
            self.ports[at].attached = attached;
        }
    }

    /// Attaches a subnet manager to a port or detaches it: sets the IsSM bit of the capability mask and notifies the master.
    pub fn set_is_sm(&mut self, now: Time, port: PortId, is_sm: bool, sink: &mut impl Sink) {
        let Some(at) = self.index(port) else { return };
        let mask = &mut self.ports[at].info.capability_mask;
        if mask.contains(CapabilityMask::SM) == is_sm {
            return;
        }
        mask.set(CapabilityMask::SM, is_sm);
        let mut cx = Cx { now, sink };
        self.raise_local_change(at, LocalChangeFlags::empty(), &mut cx);
        self.expire(&mut cx);
    }

    /// Sets a node's description, as `/sys/class/infiniband/*/node_desc` does, and notifies the master. Truncated to 64 bytes.
    pub fn set_node_description(
        &mut self,
        now: Time,
        node: NodeId,
        name: &str,
        sink: &mut impl Sink,
    ) {
        let first = [0, 1].iter().find_map(|&number| self.index(PortId { node, number }));
        let Some(first) = first else { return };
        self.node_of_mut(first).description = NodeDescription::from(name);
        let mut cx = Cx { now, sink };
        self.name_has_changed(first, &mut cx);
        self.expire(&mut cx);
    }

    /// Changes the system image GUID of a node, as `ib_modify_device` of the kernel does, and notifies the master (trap 145).
    pub fn set_system_guid(&mut self, now: Time, node: NodeId, guid: Guid, sink: &mut impl Sink) {
        let first = [0, 1].iter().find_map(|&number| self.index(PortId { node, number }));
        let Some(first) = first.filter(|&at| self.node_of(at).system_guid != guid) else { return };
        self.node_of_mut(first).system_guid = guid;
        let mut cx = Cx { now, sink };
        self.raise_system_guid(first, &mut cx);
        self.expire(&mut cx);
    }

    /// Notifies the master by the first port that can.
    pub(crate) fn name_has_changed(&mut self, at: usize, cx: &mut Cx<'_, impl Sink>) {
        self.raise_local_change(at, LocalChangeFlags::NODE_DESCRIPTION, cx);
    }

    /// Returns a node's description as text.
    pub fn node_description(&self, node: NodeId) -> Option<String> {
        let index = usize::try_from(node.0).ok()?;
        Some(text(&self.nodes.get(index)?.description))
    }

    /// Returns the index of a port that can have a cable.
    fn plug_at(&self, port: PortId) -> Result<usize, OperateError> {
        let at = self.index(port).filter(|at| self.kind(*at) != PortKind::Management);
        at.ok_or(OperateError::NoPort(port))
    }
}

/// Returns a description as text. Bytes that are not UTF-8 become U+FFFD.
pub(crate) fn text(description: &NodeDescription) -> String {
    String::from_utf8_lossy(description.node_description.as_bytes()).into_owned()
}
