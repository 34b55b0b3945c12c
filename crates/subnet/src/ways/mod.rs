//! Routes of data packets, found without sending any: a walk along the switches' tables as a datagram would be forwarded.
//!
//! All packets to a LID take one route. Whether they arrive also depends on their service level and P_Key. So a walk carries
//! the set of service levels and of the sender's P_Keys that reach this point, and each port removes those that it would
//! drop. Ports count nothing, and an armed port, which its first packet would make active, stays armed. Subnet management,
//! which has its own virtual lane and needs no LIDs, is handled by `crate::directed`.

mod group;
#[cfg(test)]
mod tests;
mod trail;

use rdmux_wire::sa::Rate;
use rdmux_wire::sm::PortState;
use rdmux_wire::{Lid, Mtu, Pkey};

use crate::administration::path::rate;
use crate::counters::DropReason;
use crate::forward::MAX_HOPS;
use crate::packet::PortId;
use crate::port::{PortData, PortKind};
use crate::subnet::Subnet;
use crate::switch::{LFT_BLOCK, MFT_BLOCK};

use self::trail::Kinds;
pub use self::trail::{PacketKind, Traffic, Trail};

/// The route of packets from one port to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WayFound {
    /// The destination: an adapter's port, or port 0 of a switch.
    pub to: PortId,
    /// The number of links; 0 if both ports are the same.
    pub hops: u16,
    /// The largest payload that every link carries (PortInfo's NeighborMTU and MTUCap, IBTA 14.2.5.6).
    pub mtu: Mtu,
    /// The lowest rate of all links.
    pub rate: Rate,
    /// Bit n: packets of service level n have a virtual lane on every link. At least one bit is set.
    pub sls: u16,
    /// Bit i: packets with the P_Key at index i of the sender's table pass the partition enforcement of every switch. At
    /// least one bit is set. Whether the receiver has the partition is not checked.
    pub pkeys: u128,
}

/// The reason why packets do not arrive: the port that drops all of them, and why it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("packets are dropped at {at}: {reason:?}")]
pub struct Lost {
    /// The port.
    pub at: PortId,
    /// The reason, as the port counts it.
    pub reason: DropReason,
}

/// Returns the block of the linear forwarding tables that has a LID.
pub const fn linear_block(lid: Lid) -> u16 {
    lid.0 >> LFT_BLOCK.trailing_zeros()
}

/// Returns the block of the multicast forwarding tables that has a multicast LID.
pub const fn multicast_block(mlid: Lid) -> Option<u16> {
    match mlid.0.checked_sub(Lid::FIRST_MULTICAST.0) {
        Some(index) => Some(index >> MFT_BLOCK.trailing_zeros()),
        None => None,
    }
}

/// The state of a walk at some port, and the packets that get there.
#[derive(Clone, Copy, Debug)]
struct Met<'a> {
    hops: u16,
    mtu: Mtu,
    rate: Rate,
    sls: u16,
    pkeys: u128,
    /// The sender's P_Key table.
    keys: &'a [Pkey],
}

impl Met<'_> {
    fn arrived(self, to: PortId) -> WayFound {
        let Self { hops, mtu, rate, sls, pkeys, .. } = self;
        WayFound { to, hops, mtu, rate, sls, pkeys }
    }

    /// Returns the remaining packets.
    fn kinds(&self) -> Kinds {
        let Self { sls, pkeys, mtu, .. } = *self;
        Kinds { sls, pkeys, above: 0, up_to: bytes(mtu) }
    }

    /// Removes packets whose keys a port drops.
    fn keep(
        &mut self,
        at: PortId,
        reason: DropReason,
        trail: &mut Trail,
        passes: impl Fn(Pkey) -> bool,
    ) {
        let before = self.kinds();
        for (index, key) in self.keys.iter().enumerate() {
            if self.pkeys >> index & 1 != 0 && !passes(*key) {
                self.pkeys &= !(1 << index);
            }
        }
        trail.lose(at, reason, Kinds { pkeys: before.pkeys & !self.pkeys, ..before });
    }

    /// Removes packets whose service level has no lane at a port, which drops them.
    fn keep_sls(&mut self, at: PortId, trail: &mut Trail, lanes: u16) {
        let before = self.kinds();
        self.sls &= lanes;
        trail.lose(at, DropReason::NoVirtualLane, Kinds { sls: before.sls & !lanes, ..before });
    }

    /// Removes packets longer than the link's MTU, which the port before it drops.
    fn keep_short(&mut self, at: PortId, trail: &mut Trail, mtu: Mtu) {
        let before = self.kinds();
        self.mtu = self.mtu.min(mtu);
        trail.lose(at, DropReason::TooLong, Kinds { above: bytes(self.mtu), ..before });
    }
}

/// One step of a walk.
enum Step {
    /// The walk ends at this port of the node.
    Here(usize),
    /// The walk leaves by this port.
    Leave(usize),
}

impl Subnet {
    /// Returns the route of packets from a port to a unicast LID.
    ///
    /// # Errors
    /// [`Lost`] when none arrives, regardless of service level and P_Key.
    pub fn way(&self, from: PortId, dlid: Lid) -> Result<WayFound, Lost> {
        self.way_along(from, dlid, &mut Trail::default())
    }

    /// Returns the route as [`Subnet::way`] does. Adds to `trail` what the result depends on, even if no packet arrives, and
    /// what ports count.
    ///
    /// # Errors
    /// As [`Subnet::way`].
    pub fn way_along(&self, from: PortId, dlid: Lid, trail: &mut Trail) -> Result<WayFound, Lost> {
        let Some(start) = self.sender(from).filter(|_| dlid.is_unicast()) else {
            return Err(Lost { at: from, reason: DropReason::NoRoute });
        };
        trail.push(&self.ports[start]);
        let mut met = self.begin(start)?;
        let found = self.walk(start, dlid, &mut met, trail);
        if let Err(Lost { at, reason }) = found {
            trail.lose(at, reason, met.kinds());
        }
        found
    }

    fn walk(
        &self,
        start: usize,
        dlid: Lid,
        met: &mut Met<'_>,
        trail: &mut Trail,
    ) -> Result<WayFound, Lost> {
        let mut egress = match self.first_step(start, dlid, met, trail)? {
            Step::Here(at) => return Ok(met.arrived(self.ports[at].id)),
            Step::Leave(egress) => egress,
        };
        if egress != start {
            trail.push(&self.ports[egress]);
        }
        for _ in 0..MAX_HOPS {
            let ingress = self.pass_link(egress, met, trail)?;
            match self.pass_node(ingress, dlid, met, trail)? {
                Step::Here(at) => return Ok(met.arrived(self.ports[at].id)),
                Step::Leave(next) => egress = next,
            }
        }
        Err(self.lost(egress, DropReason::TooManyHops))
    }

    /// Returns the index of a port that can send.
    fn sender(&self, from: PortId) -> Option<usize> {
        self.index(from).filter(|&at| self.kind(at) != PortKind::External)
    }

    /// Starts a walk with all packets that a port can send.
    fn begin(&self, from: usize) -> Result<Met<'_>, Lost> {
        let keys = &self.ports[from].pkeys;
        let keys = &keys[..keys.len().min(128)];
        let (mtu, rate) = (Mtu::M4096, rate::HIGHEST);
        let used = keys.iter().enumerate().filter(|(_, key)| key.0 & 0x7fff != 0);
        let pkeys = used.fold(0, |set, (index, _)| set | 1 << index);
        let met = Met { hops: 0, mtu, rate, sls: u16::MAX, pkeys, keys };
        if met.pkeys == 0 { Err(self.lost(from, DropReason::WrongPkey)) } else { Ok(met) }
    }

    /// Takes the first step, at the sender.
    fn first_step(
        &self,
        from: usize,
        dlid: Lid,
        met: &mut Met<'_>,
        trail: &mut Trail,
    ) -> Result<Step, Lost> {
        let port = &self.ports[from];
        if port.owns(dlid) {
            return Ok(Step::Here(from));
        }
        if self.kind(from) == PortKind::Management {
            return self.find(from, None, dlid);
        }
        self.leave_adapter(from, met, trail)?;
        Ok(Step::Leave(from))
    }

    /// Restricts packets to those that have a lane at the sending adapter.
    fn leave_adapter(&self, from: usize, met: &mut Met<'_>, trail: &mut Trail) -> Result<(), Lost> {
        let port = &self.ports[from];
        met.keep_sls(port.id, trail, lanes(port, port.sl_to_vl.as_ref()));
        if met.sls == 0 { Err(self.lost(from, DropReason::NoVirtualLane)) } else { Ok(()) }
    }

    /// Crosses a link to the port at its other end.
    fn pass_link(
        &self,
        egress: usize,
        met: &mut Met<'_>,
        trail: &mut Trail,
    ) -> Result<usize, Lost> {
        let out = &self.ports[egress];
        let Some(ingress) = out.peer.filter(|_| out.is_up()) else {
            return Err(self.lost(egress, DropReason::NoLink));
        };
        let into = &self.ports[ingress];
        trail.push(into);
        // An armed port becomes active with the first packet.
        let takes = matches!(into.info.port_state, PortState::ACTIVE | PortState::ARMED);
        if !(takes && self.is_active(egress)) {
            return Err(self.lost(egress, DropReason::NotActive));
        }
        met.hops += 1;
        let mtu = out.info.neighbor_mtu.min(into.info.mtu_cap);
        met.keep_short(out.id, trail, Mtu::from_code(mtu).unwrap_or(Mtu::M256));
        if let Some(of_link) = rate::of(&out.info) {
            met.rate = rate::lower(met.rate, of_link);
        }
        trail.cross(out.id, into.id, met.kinds());
        Ok(ingress)
    }

    /// Enters a node, and crosses it if it is a switch.
    fn pass_node(
        &self,
        ingress: usize,
        dlid: Lid,
        met: &mut Met<'_>,
        trail: &mut Trail,
    ) -> Result<Step, Lost> {
        let end = self.manager_of(ingress);
        let is_switch = self.kind(ingress) == PortKind::External;
        let is_here = self.ports[end].owns(dlid);
        if !(is_here || is_switch) {
            return Err(self.lost(ingress, DropReason::WrongLid));
        }
        self.enter(ingress, met, trail)?;
        if is_here {
            return Ok(Step::Here(end));
        }
        let step = self.find(end, Some(ingress), dlid)?;
        if let Step::Leave(egress) = step {
            trail.push(&self.ports[egress]);
            self.leave(ingress, egress, met, trail)?;
        }
        Ok(step)
    }

    /// Looks up the linear forwarding table of the switch whose port 0 is `end`.
    fn find(&self, end: usize, ingress: Option<usize>, dlid: Lid) -> Result<Step, Lost> {
        let node = self.node_of(end);
        let route = node.switch.as_ref().and_then(|switch| switch.route(dlid));
        let reason = match route.and_then(|number| node.port(number)) {
            None => DropReason::NoRoute,
            Some(egress) if Some(egress) == ingress => DropReason::Loop,
            Some(egress) if egress == end => DropReason::WrongLid,
            Some(egress) => return Ok(Step::Leave(egress)),
        };
        Err(self.lost(ingress.unwrap_or(end), reason))
    }

    /// Applies partition enforcement where packets enter a node.
    fn enter(&self, ingress: usize, met: &mut Met<'_>, trail: &mut Trail) -> Result<(), Lost> {
        let port = &self.ports[ingress];
        if port.info.partition_enforcement_inbound {
            met.keep(port.id, DropReason::PkeyIn, trail, |key| port.has_partition(key));
        }
        if met.pkeys == 0 { Err(self.lost(ingress, DropReason::PkeyIn)) } else { Ok(()) }
    }

    /// Applies the lanes and the partition enforcement of a switch's egress port.
    fn leave(
        &self,
        ingress: usize,
        egress: usize,
        met: &mut Met<'_>,
        trail: &mut Trail,
    ) -> Result<(), Lost> {
        let (node, port) = (self.node_of(egress), &self.ports[egress]);
        let input = self.ports[ingress].id.number;
        let table = node.switch.as_ref();
        let table = table.and_then(|s| s.sl_to_vl(node.num_ports, input, port.id.number));
        met.keep_sls(self.ports[ingress].id, trail, lanes(port, table));
        if met.sls == 0 {
            return Err(self.lost(ingress, DropReason::NoVirtualLane));
        }
        if port.info.partition_enforcement_outbound {
            met.keep(port.id, DropReason::PkeyOut, trail, |key| port.admits(key));
        }
        if met.pkeys == 0 { Err(self.lost(egress, DropReason::PkeyOut)) } else { Ok(()) }
    }

    fn lost(&self, at: usize, reason: DropReason) -> Lost {
        Lost { at: self.ports[at].id, reason }
    }
}

/// Returns the payload size of an MTU in bytes.
fn bytes(mtu: Mtu) -> u16 {
    u16::try_from(mtu.bytes()).unwrap_or(u16::MAX)
}

/// Returns the service levels that have a lane at a port.
fn lanes(port: &PortData, table: Option<&[u8; 8]>) -> u16 {
    (0..16).filter(|sl| port.lane(table, *sl).is_some()).fold(0, |set, sl| set | 1 << sl)
}
