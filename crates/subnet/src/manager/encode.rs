//! Encodes requests as datagrams: attribute, modifier, data and route.

use rdmux_wire::mad::Method;
use rdmux_wire::sm::{
    Attribute, GuidInfo, LinearForwardingTable, MulticastForwardingTable, NodeDescription,
    NodeInfo, PkeyTable, PortInfo, PortState, SlToVlTable, SmInfo, SmState, SwitchInfo,
    VlArbitration,
};
use rdmux_wire::smp::{DATA_LEN, MAX_HOPS, Smp};
use rdmux_wire::{Lid, Pkey};

use super::Manager;
use super::model::Model;
use super::pkeys::PKEY_BLOCK;
use super::requests::{Request, What};
use super::sweep::Phase;
use super::tables::{linear_block, multicast_block};
use crate::topology::PortRef;

/// The egress ports of a directed route.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hops {
    ports: [u8; MAX_HOPS as usize],
    count: usize,
}

impl Hops {
    /// Creates a route; none if it is too long.
    pub(super) fn new(way: &[u8], last: Option<u8>) -> Option<Self> {
        let mut hops = Self { ports: [0; MAX_HOPS as usize], count: 0 };
        for &port in way.iter().chain(&last) {
            *hops.ports.get_mut(hops.count)? = port;
            hops.count += 1;
        }
        Some(hops)
    }

    /// Returns the egress ports in order.
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.ports[..self.count]
    }
}

impl Manager {
    /// Returns the model that requests refer to: during discovery, the one found so far.
    pub(super) fn working(&self) -> &Model {
        if self.phase == Phase::Discovery { &self.found } else { &self.model }
    }

    /// Returns the model that requests refer to, for changes.
    pub(super) fn working_mut(&mut self) -> &mut Model {
        if self.phase == Phase::Discovery { &mut self.found } else { &mut self.model }
    }

    /// Returns the route from the manager's port to a port. It must be the port where the datagram arrives, since an adapter
    /// does not forward to its other ports.
    pub(super) fn hops_to(&self, model: &Model, port: PortRef) -> Option<Hops> {
        let node = model.node(port.node)?;
        if node.is_switch() || port.node == self.own.node && port.port == self.own.port {
            return Hops::new(&node.route, None);
        }
        match model.port(port)?.peer {
            Some(peer) => Hops::new(&model.node(peer.node)?.route, Some(peer.port)),
            None => Hops::new(&node.route, None),
        }
    }

    /// Encodes a request, without its transaction ID; none if its port is gone.
    pub(super) fn smp(&self, request: Request) -> Option<Smp> {
        let Request { port, what } = request;
        let model = self.working();
        let hops = match what {
            What::Own => Hops::new(&[], None),
            What::Probe | What::Neighbour => {
                Hops::new(&model.node(port.node)?.route, Some(port.port))
            }
            What::Poll => Hops::new(&self.master.as_ref()?.route, None),
            What::Rival | What::Handover | What::Acknowledge | What::Discover | What::Wake => {
                Hops::new(&self.rivals.get(port.node)?.route, None)
            }
            _ => self.hops_to(model, port),
        }?;
        let method = if what.is_set() { Method::SET } else { Method::GET };
        let (attr_id, modifier) = key(model, request)?;
        let mut smp = Smp::directed(method, attr_id, modifier, hops.as_slice());
        smp.mkey = self.config.mkey;
        if what.is_set() {
            smp.set_attribute(&self.value(model, request)?);
        }
        Some(smp)
    }

    /// Returns the attribute that a Set writes.
    pub(super) fn value(&self, model: &Model, request: Request) -> Option<Attribute> {
        let Request { port, what } = request;
        let switch = || model.node(port.node)?.switch.as_deref();
        Some(match what {
            What::ClearChange => SwitchInfo { port_state_change: true, ..switch()?.info }.into(),
            What::SwitchSetup => self.switch_setup(&switch()?.info).into(),
            What::Identity => self.identity(model, port)?.into(),
            What::Enforce => self.enforce(model, port)?.into(),
            What::Arm => self.link(model, port, PortState::ARMED)?.into(),
            What::Activate => self.link(model, port, PortState::ACTIVE)?.into(),
            What::Disable => self.disabled(model, port)?.into(),
            What::SetPkeys(block) => {
                let planned = self.pkey_plans.get(&port)?;
                let first = usize::from(block) * PKEY_BLOCK;
                let key = |n| planned.get(first + n).copied().unwrap_or(Pkey(0));
                PkeyTable { pkeys: core::array::from_fn(key) }.into()
            }
            What::Linear(block) => {
                LinearForwardingTable { ports: linear_block(&switch()?.forwarding, block) }.into()
            }
            What::Multicast { position, block } => MulticastForwardingTable {
                port_masks: multicast_block(&switch()?.multicast, position, block),
            }
            .into(),
            What::SlToVl(_) => self.wanted_sl_to_vl(model, port)?.into(),
            What::SetGuids(block) => self.wanted_guids(model, port, block)?.into(),
            What::Handover | What::Discover | What::Wake => self.sm_info(SmState::MASTER).into(),
            What::Acknowledge => self.sm_info(SmState::STANDBY).into(),
            _ => return None,
        })
    }
}

/// Returns the attribute ID and modifier.
fn key(model: &Model, request: Request) -> Option<(u16, u32)> {
    let Request { port, what } = request;
    let is_switch = || model.node(port.node).is_some_and(|node| node.is_switch());
    let number = u32::from(port.port);
    // The port that owns the table: only the agent of a switch manages several.
    let table_port = || if is_switch() { number } else { 0 };
    Some(match what {
        What::Own | What::Probe | What::Neighbour => (NodeInfo::ATTR_ID, 0),
        What::Description => (NodeDescription::ATTR_ID, 0),
        What::SwitchInfo | What::ClearChange | What::SwitchSetup | What::Changed => {
            (SwitchInfo::ATTR_ID, 0)
        }
        What::PortInfo
        | What::OwnPort
        | What::Identity
        | What::Enforce
        | What::Arm
        | What::Activate
        | What::Disable => (PortInfo::ATTR_ID, number),
        What::Pkeys(block) | What::SetPkeys(block) => {
            (PkeyTable::ATTR_ID, table_port() << 16 | u32::from(block))
        }
        What::Linear(block) => (LinearForwardingTable::ATTR_ID, block.into()),
        What::Multicast { position, block } => {
            (MulticastForwardingTable::ATTR_ID, u32::from(position) << 28 | u32::from(block))
        }
        What::SlToVl(input) => {
            (SlToVlTable::ATTR_ID, if is_switch() { u32::from(input) << 8 | number } else { 0 })
        }
        What::Arbitration(block) => (VlArbitration::ATTR_ID, u32::from(block) << 16 | table_port()),
        What::Guids(block) | What::SetGuids(block) => (GuidInfo::ATTR_ID, block.into()),
        What::SmInfo | What::Poll | What::Rival => (SmInfo::ATTR_ID, 0),
        What::Handover | What::Wake => (SmInfo::ATTR_ID, SmInfo::HANDOVER),
        What::Acknowledge => (SmInfo::ATTR_ID, SmInfo::ACKNOWLEDGE),
        What::Discover => (SmInfo::ATTR_ID, SmInfo::DISCOVER),
    })
}

/// Returns whether the answer to a Set has the requested values, in all fields that the agent may not choose.
pub(super) fn is_kept(wanted: &Attribute, data: &[u8; DATA_LEN]) -> bool {
    match wanted {
        Attribute::PortInfo(wanted) => {
            let now = PortInfo::from_bytes(data);
            let state = wanted.port_state;
            (wanted.lid, wanted.lmc, wanted.sm_lid) == (now.lid, now.lmc, now.sm_lid)
                && wanted.partition_enforcement_inbound == now.partition_enforcement_inbound
                && wanted.partition_enforcement_outbound == now.partition_enforcement_outbound
                && (wanted.mkey_protect_bits, wanted.mkey_lease_period)
                    == (now.mkey_protect_bits, now.mkey_lease_period)
                && (state == PortState::NO_CHANGE
                    || state == PortState::DOWN
                    || now.port_state >= state)
        }
        Attribute::SwitchInfo(wanted) => {
            SwitchInfo::parse(data).is_ok_and(|now| now.linear_fdb_top == wanted.linear_fdb_top)
        }
        Attribute::SmInfo(_) => true,
        other => {
            let mut bytes = [0; DATA_LEN];
            other.emit(&mut bytes);
            bytes == *data
        }
    }
}

/// Returns the LID of a port, or 0.
pub(super) fn lid_of(model: &Model, port: PortRef) -> Lid {
    model.port(port).map_or(Lid::NONE, |port| port.assigned)
}
