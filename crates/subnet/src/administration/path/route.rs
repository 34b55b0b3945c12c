//! Routes from port to port, as the switches' forwarding tables define them.

use rdmux_wire::Lid;
use rdmux_wire::sa::Rate;

use super::links::{Link, Links};
use super::rate;
use crate::manager::Model;
use crate::topology::PortRef;

/// The most switches of a route.
const MAX_HOPS: usize = 64;

/// The MTU and rate of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// The MTU code: the smallest of all ports.
    pub(super) mtu: u8,
    /// The rank of the lowest rate of all links.
    rate: u8,
}

/// The route from a switch to the end port of a LID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// An adapter's port, or port 0 of a switch.
    pub(super) end: PortRef,
    /// The MTU code, as in [`Route`].
    pub(super) mtu: u8,
    pub(super) rate: u8,
}

impl Route {
    const ANY: Self = Self { mtu: u8::MAX, rate: u8::MAX };

    /// Returns the lowest rate of all links.
    pub(super) fn rate(self) -> Rate {
        rate::at(self.rate)
    }

    /// Accounts for a port on the route.
    fn pass(&mut self, link: Option<Link>) -> Option<Link> {
        let link = link?;
        self.mtu = self.mtu.min(link.mtu);
        self.rate = self.rate.min(link.rate.unwrap_or(u8::MAX));
        Some(link)
    }
}

/// Follows the route of a LID. Returns none if it ends elsewhere, is longer than 64 switches, or loops.
pub(super) fn follow(
    model: &Model,
    links: &Links,
    from: PortRef,
    to: PortRef,
    dlid: Lid,
) -> Option<Route> {
    let mut route = Route::ANY;
    let link = route.pass(links.get(model, from))?;
    if from == to {
        return Some(route);
    }
    let switch = if links.is_switch(model, from.node) {
        from.node
    } else {
        let next = link.peer?;
        route.pass(links.get(model, next))?;
        if next == to {
            return Some(route);
        }
        next.node
    };
    let way = links.way(switch, dlid, || way(model, links, switch, dlid))?;
    let Route { mtu, rate } = route;
    (way.end == to).then(|| Route { mtu: mtu.min(way.mtu), rate: rate.min(way.rate) })
}

/// Follows the route of a LID from a switch to its end port.
fn way(model: &Model, links: &Links, from: usize, dlid: Lid) -> Option<Way> {
    let (mut route, mut node) = (Route::ANY, from);
    for _ in 0..MAX_HOPS {
        let switch = model.node(node)?.switch.as_ref()?;
        let mut at = PortRef { node, port: switch.egress(dlid)? };
        let link = route.pass(links.get(model, at))?;
        // Port 0 ends the route and has no cable.
        if at.port != 0 {
            at = link.peer?;
            route.pass(links.get(model, at))?;
        }
        if at.port == 0 || model.node(at.node)?.switch.is_none() {
            return Some(Way { end: at, mtu: route.mtu, rate: route.rate });
        }
        node = at.node;
    }
    None
}
