//! The way of packets from port to port, as the switches' tables have it.

use rdmux_wire::Lid;
use rdmux_wire::sa::Rate;

use super::links::{Link, Links};
use super::rate;
use crate::manager::Model;
use crate::topology::PortRef;

/// The most switches on a way.
const MAX_HOPS: usize = 64;

/// What a way can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// A code of an MTU: the smallest of all ports'.
    pub(super) mtu: u8,
    /// The lowest of all links', by its place among all rates.
    rate: u8,
}

impl Route {
    /// The lowest rate of all links.
    pub(super) fn rate(self) -> Rate {
        rate::at(self.rate)
    }

    /// A packet passes this port.
    fn pass(&mut self, link: Option<Link>) -> Option<Link> {
        let link = link?;
        self.mtu = self.mtu.min(link.mtu);
        self.rate = self.rate.min(link.rate.unwrap_or(u8::MAX));
        Some(link)
    }
}

/// Follows the route of a LID. None where it ends elsewhere, is longer than 64 switches, or runs in a circle.
pub(super) fn follow(
    model: &Model,
    links: &Links,
    from: PortRef,
    to: PortRef,
    dlid: Lid,
) -> Option<Route> {
    let mut route = Route { mtu: u8::MAX, rate: u8::MAX };
    let mut link = route.pass(links.get(model, from))?;
    if from == to {
        return Some(route);
    }
    if let Some(switch) = model.node(from.node)?.switch.as_ref() {
        let egress = PortRef { node: from.node, port: switch.egress(dlid)? };
        link = route.pass(links.get(model, egress))?;
    }
    for _ in 0..MAX_HOPS {
        let next = link.peer?;
        route.pass(links.get(model, next))?;
        if next == to {
            return Some(route);
        }
        let switch = model.node(next.node)?.switch.as_ref()?;
        let at = PortRef { node: next.node, port: switch.egress(dlid)? };
        // Port 0 is the end, without a cable.
        link = route.pass(links.get(model, at))?;
        if at == to {
            return Some(route);
        }
    }
    None
}
