//! Links: how they come up and go down, and the states of the ports at both ends (IBTA 7.2.7).

use rdmux_wire::sm::{
    LinkDownDefault, LinkSpeed, LinkSpeedExt, LinkWidth, MlnxLinkSpeed, PhysState, PortState,
};

use crate::counters::Counter;
use crate::port::PortKind;
use crate::sink::{PortEvent, Sink};
use crate::subnet::{Cx, Subnet};
use crate::topology::{LinkRate, Speed, Width};

impl Subnet {
    /// Connects two ports that have no cable.
    pub(crate) fn lay_cable(&mut self, a: usize, b: usize, rate: LinkRate) {
        for (end, other) in [(a, b), (b, a)] {
            let port = &mut self.ports[end];
            port.peer = Some(other);
            port.cable_up = true;
            port.set_rate(rate);
            self.port_changed(end);
        }
    }

    /// Brings the link of a port up, if both ends allow it and have a width and a speed in common. Both ports are then in
    /// state Init.
    pub(crate) fn train(&mut self, a: usize, cx: &mut Cx<'_, impl Sink>) {
        let Some(b) = self.ports[a].peer else { return };
        let ready = [a, b].iter().all(|&end| {
            let port = &self.ports[end];
            port.cable_up && port.info.port_physical_state == PhysState::POLLING
        });
        let Some(rate) = self.common_rate(a, b).filter(|_| ready) else { return };
        for end in [a, b] {
            let port = &mut self.ports[end];
            port.mlnx.active = MlnxLinkSpeed::from_bits_retain(rate.speed.mlnx_code());
            let info = &mut port.info;
            info.port_physical_state = PhysState::LINK_UP;
            info.link_width_active = LinkWidth::from_bits_retain(rate.width.code());
            info.link_speed_ext_active = LinkSpeedExt::from_bits_retain(rate.speed.ext_code());
            // With an extended speed this field has the fastest speed that it can express.
            let code = if rate.speed.code() == 0 { Speed::Qdr.code() } else { rate.speed.code() };
            info.link_speed_active = LinkSpeed::from_bits_retain(code);
            self.set_state(end, PortState::INIT, cx);
            self.report_change(end, cx);
        }
    }

    /// Returns the widest and fastest rate that is enabled at both ends.
    fn common_rate(&self, a: usize, b: usize) -> Option<LinkRate> {
        let [a, b] = [a, b].map(|end| &self.ports[end]);
        let mlnx = a.mlnx.enabled & b.mlnx.enabled;
        let [a, b] = [&a.info, &b.info];
        let width = Width::widest((a.link_width_enabled & b.link_width_enabled).bits())?;
        let speeds = a.link_speed_enabled & b.link_speed_enabled;
        let ext = a.link_speed_ext_enabled & b.link_speed_ext_enabled;
        Some(LinkRate { width, speed: Speed::fastest(speeds.bits(), ext.bits(), mlnx.bits())? })
    }

    /// Returns the highest rate that a port's hardware supports.
    pub(crate) fn capability(&self, at: usize) -> LinkRate {
        let (info, mlnx) = (&self.ports[at].info, self.ports[at].mlnx.supported);
        let width = Width::widest(info.link_width_supported.bits());
        let (speeds, ext) = (info.link_speed_supported, info.link_speed_ext_supported);
        let speed = Speed::fastest(speeds.bits(), ext.bits(), mlnx.bits());
        LinkRate {
            width: width.unwrap_or(LinkRate::DEFAULT.width),
            speed: speed.unwrap_or(LinkRate::DEFAULT.speed),
        }
    }

    /// Takes the link of a port down. The port enters the physical state `phys`, and its peer its default down state. The
    /// link does not come up by itself: see [`Subnet::train`].
    pub(crate) fn take_down(&mut self, at: usize, phys: PhysState, cx: &mut Cx<'_, impl Sink>) {
        let peer = self.ports[at].peer;
        if self.ports[at].is_up() {
            self.lose_link(at, cx);
            if let Some(peer) = peer {
                self.lose_link(peer, cx);
                let default = self.ports[peer].info.link_down_default_state;
                self.ports[peer].info.port_physical_state = down_state(default);
                self.report_change(peer, cx);
            }
        }
        self.ports[at].info.port_physical_state = phys;
    }

    fn lose_link(&mut self, at: usize, cx: &mut Cx<'_, impl Sink>) {
        self.set_state(at, PortState::DOWN, cx);
        let port = &mut self.ports[at];
        port.info.link_width_active = LinkWidth::empty();
        port.info.link_speed_active = LinkSpeed::empty();
        port.info.link_speed_ext_active = LinkSpeedExt::empty();
        port.mlnx.active = MlnxLinkSpeed::empty();
        port.counters.add(Counter::LinkDowned, 1);
    }

    /// Changes the logical state of a port and notifies its programs.
    pub(crate) fn set_state(&mut self, at: usize, new: PortState, cx: &mut Cx<'_, impl Sink>) {
        let port = &mut self.ports[at];
        let old = core::mem::replace(&mut port.info.port_state, new);
        if old != new {
            self.port_changed(at);
        }
        let event = match (old == PortState::ACTIVE, new == PortState::ACTIVE) {
            (false, true) => PortEvent::Active,
            (true, false) => PortEvent::Error,
            _ => return,
        };
        self.event(at, event, cx);
    }

    /// Notifies the programs of an adapter's port, or of port 0 of a switch.
    pub(crate) fn event(&mut self, at: usize, event: PortEvent, cx: &mut Cx<'_, impl Sink>) {
        if self.kind(at) != PortKind::External {
            cx.sink.port_event(self.ports[at].id, event);
        }
    }

    /// Records that a link came up or went down without a command to this port: a switch sets its port state change bit and
    /// sends a trap to the manager (IBTA 14.2.5.4, 14.3.2).
    pub(crate) fn report_change(&mut self, at: usize, cx: &mut Cx<'_, impl Sink>) {
        if self.kind(at) != PortKind::External {
            return;
        }
        if let Some(switch) = &mut self.node_of_mut(at).switch {
            switch.info.port_state_change = true;
        }
        self.raise_link_state(self.manager_of(at), cx);
    }

    /// Returns whether a port takes a packet that is not subnet management. An armed port becomes active when it receives one
    /// (IBTA 7.2.7.1.3).
    pub(crate) fn may_take_data(&mut self, at: usize, cx: &mut Cx<'_, impl Sink>) -> bool {
        match self.ports[at].info.port_state {
            PortState::ACTIVE => true,
            PortState::ARMED => {
                self.set_state(at, PortState::ACTIVE, cx);
                true
            }
            _ => false,
        }
    }
}

/// Returns the physical state of a port after its link goes down.
pub(crate) const fn down_state(default: LinkDownDefault) -> PhysState {
    match default {
        LinkDownDefault::SLEEP => PhysState::SLEEP,
        _ => PhysState::POLLING,
    }
}
