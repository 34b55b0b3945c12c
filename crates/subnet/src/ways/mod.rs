//! Where packets with data go, without sending any: the tables of the switches are walked as a datagram would be forwarded.
//!
//! What is sent to a LID takes one way, whatever it holds; whether it arrives depends on its service level and P_Key, too. So a walk
//! carries the set of service levels and of the sender's P_Keys that would have come as far, and each port takes out what it would
//! drop. Nothing is counted at the ports, and a port in state Armed, which its first packet makes active, stays as it is.
//! Subnet management, which has a lane of its own and needs no LIDs, is `crate::directed`'s.

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

/// The way of packets from one port to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WayFound {
    /// The port that they come to: an adapter's, or port 0 of a switch.
    pub to: PortId,
    /// Links from port to port; 0 if both are the same port.
    pub hops: u16,
    /// The largest payload that every link takes (PortInfo's NeighborMTU and MTUCap, IBTA 14.2.5.6).
    pub mtu: Mtu,
    /// The lowest rate of a link.
    pub rate: Rate,
    /// Bit n: packets of service level n have a virtual lane on every link. At least one bit is set.
    pub sls: u16,
    /// Bit i: packets with the P_Key at index i of the sender's table pass the partition enforcement of every switch. At least one bit
    /// is set. Whether the receiver has the partition is not said.
    pub pkeys: u128,
}

/// Why packets do not arrive: the port that drops all of them, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("packets end at {at}: {reason:?}")]
pub struct Lost {
    /// The port.
    pub at: PortId,
    /// The reason that it counts.
    pub reason: DropReason,
}

/// The block of the linear forwarding tables in which a LID is.
pub const fn linear_block(lid: Lid) -> u16 {
    lid.0 >> LFT_BLOCK.trailing_zeros()
}

/// The block of the multicast forwarding tables in which a multicast LID is.
pub const fn multicast_block(mlid: Lid) -> Option<u16> {
    match mlid.0.checked_sub(Lid::FIRST_MULTICAST.0) {
        Some(index) => Some(index >> MFT_BLOCK.trailing_zeros()),
        None => None,
    }
}

/// What packets have met up to some port, and which are left.
#[derive(Clone, Copy, Debug)]
struct Met<'a> {
    hops: u16,
    mtu: Mtu,
    rate: Rate,
    sls: u16,
    pkeys: u128,
    /// The sender's table.
    keys: &'a [Pkey],
}

impl Met<'_> {
    fn arrived(self, to: PortId) -> WayFound {
        let Self { hops, mtu, rate, sls, pkeys, .. } = self;
        WayFound { to, hops, mtu, rate, sls, pkeys }
    }

    /// The packets that are left.
    fn kinds(&self) -> Kinds {
        let Self { sls, pkeys, mtu, .. } = *self;
        Kinds { sls, pkeys, above: 0, up_to: bytes(mtu) }
    }

    /// Takes out the packets with other keys, which a port drops.
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

    /// Takes out the packets of service levels without a lane, which a port drops.
    fn keep_sls(&mut self, at: PortId, trail: &mut Trail, lanes: u16) {
        let before = self.kinds();
        self.sls &= lanes;
        trail.lose(at, DropReason::NoVirtualLane, Kinds { sls: before.sls & !lanes, ..before });
    }

    /// Takes out the packets that are longer than a link takes, which the port before it drops.
    fn keep_short(&mut self, at: PortId, trail: &mut Trail, mtu: Mtu) {
        let before = self.kinds();
        self.mtu = self.mtu.min(mtu);
        trail.lose(at, DropReason::TooLong, Kinds { above: bytes(self.mtu), ..before });
    }
}

/// One step of a walk.
enum Step {
    /// It ends at a port of the node.
    Here(usize),
    /// It leaves by a port.
    Leave(usize),
}

impl Subnet {
    /// The way of packets from a port to a unicast LID.
    ///
    /// # Errors
    /// [`Lost`] when none arrives, whatever its service level and P_Key are.
    pub fn way(&self, from: PortId, dlid: Lid) -> Result<WayFound, Lost> {
        self.way_along(from, dlid, &mut Trail::default())
    }

    /// The same; adds to `trail` what the outcome depends on, also if none arrives, and what ports count.
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

    /// A port from which packets can come.
    fn sender(&self, from: PortId) -> Option<usize> {
        self.index(from).filter(|&at| self.kind(at) != PortKind::External)
    }

    /// All that a port can send.
    fn begin(&self, from: usize) -> Result<Met<'_>, Lost> {
        let keys = &self.ports[from].pkeys;
        let keys = &keys[..keys.len().min(128)];
        let (mtu, rate) = (Mtu::M4096, rate::HIGHEST);
        let used = keys.iter().enumerate().filter(|(_, key)| key.0 & 0x7fff != 0);
        let pkeys = used.fold(0, |set, (index, _)| set | 1 << index);
        let met = Met { hops: 0, mtu, rate, sls: u16::MAX, pkeys, keys };
        if met.pkeys == 0 { Err(self.lost(from, DropReason::WrongPkey)) } else { Ok(met) }
    }

    /// At the sender.
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

    /// The lanes by which an adapter sends.
    fn leave_adapter(&self, from: usize, met: &mut Met<'_>, trail: &mut Trail) -> Result<(), Lost> {
        let port = &self.ports[from];
        met.keep_sls(port.id, trail, lanes(port, port.sl_to_vl.as_ref()));
        if met.sls == 0 { Err(self.lost(from, DropReason::NoVirtualLane)) } else { Ok(()) }
    }

    /// Over a link, to the port at its other end.
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
        // What is armed becomes active by the first packet.
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

    /// Into a node, and through it if it is a switch.
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

    /// The linear forwarding table of the switch whose port 0 is `end`.
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

    /// Partition enforcement where packets enter a node.
    fn enter(&self, ingress: usize, met: &mut Met<'_>, trail: &mut Trail) -> Result<(), Lost> {
        let port = &self.ports[ingress];
        if port.info.partition_enforcement_inbound {
            met.keep(port.id, DropReason::PkeyIn, trail, |key| port.has_partition(key));
        }
        if met.pkeys == 0 { Err(self.lost(ingress, DropReason::PkeyIn)) } else { Ok(()) }
    }

    /// The lanes by which packets leave a switch, and partition enforcement there.
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

/// The largest payload.
fn bytes(mtu: Mtu) -> u16 {
    u16::try_from(mtu.bytes()).unwrap_or(u16::MAX)
}

/// The service levels that have a lane by a port.
fn lanes(port: &PortData, table: Option<&[u8; 8]>) -> u16 {
    (0..16).filter(|sl| port.lane(table, *sl).is_some()).fold(0, |set, sl| set | 1 << sl)
}
