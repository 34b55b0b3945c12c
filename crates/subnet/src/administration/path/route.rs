//! The way of packets from port to port, as the switches' tables have it.

use rdmux_wire::Lid;
use rdmux_wire::sa::Rate;

use super::rate;
use crate::manager::Model;
use crate::manager::model::Port;
use crate::topology::PortRef;

/// The most switches on a way.
const MAX_HOPS: usize = 64;

/// What a way can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// A code of an MTU: the smallest of all ports'.
    pub(super) mtu: u8,
    /// The lowest of all links'.
    pub(super) rate: Rate,
}

impl Route {
    /// A packet passes this port.
    fn pass(&mut self, port: &Port) -> Option<()> {
        let info = port.info.as_ref()?;
        self.mtu = self.mtu.min(info.mtu_cap);
        if let Some(rate) = rate::of(info) {
            self.rate = rate::lower(self.rate, rate);
        }
        Some(())
    }
}

/// Follows the route of a LID. None where it ends elsewhere, is longer than 64 switches, or runs in a circle.
pub(super) fn follow(model: &Model, from: PortRef, to: PortRef, dlid: Lid) -> Option<Route> {
    let mut route = Route { mtu: u8::MAX, rate: rate::HIGHEST };
    route.pass(model.port(from)?)?;
    if from == to {
        return Some(route);
    }
    let mut at = match model.node(from.node)?.switch.as_ref() {
        None => from,
        Some(switch) => {
            let egress = PortRef { node: from.node, port: switch.egress(dlid)? };
            route.pass(model.port(egress)?)?;
            egress
        }
    };
    for _ in 0..MAX_HOPS {
        let next = model.port(at)?.peer?;
        route.pass(model.port(next)?)?;
        if next == to {
            return Some(route);
        }
        let switch = model.node(next.node)?.switch.as_ref()?;
        at = PortRef { node: next.node, port: switch.egress(dlid)? };
        // Port 0 is the end, without a cable.
        route.pass(model.port(at)?)?;
        if at == to {
            return Some(route);
        }
    }
    None
}
