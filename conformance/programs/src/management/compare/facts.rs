//! The subjects of the requests: ports of the fabric.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use rdmux_fabric::proto::{NodeView, Snapshot};
use rdmux_wire::{Gid, Guid, Lid};

use super::super::ground::{self, HOSTS, Shown};

/// A port with a LID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) lid: Lid,
    pub(super) guid: Guid,
    pub(super) gid: Gid,
}

/// Ports of a fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// The requester's port.
    pub(super) own: Port,
    /// OpenSM's host.
    pub(super) other: Port,
    /// The last adapter: on a large fabric far away.
    pub(super) last: Port,
    /// Port 0 of the first switch, if there is one.
    pub(super) switch: Option<Port>,
    /// The adapters, in the fabric's order.
    pub(super) adapters: Vec<Port>,
    /// The switches.
    pub(super) switches: Vec<Port>,
    /// LID mask control.
    pub(super) lmc: u8,
    /// A LID that no port has.
    pub(super) free: Lid,
    /// The ports of the subnet.
    all: Vec<Port>,
    /// The ports of switches that lead to adapters, by the LID of the switch.
    guards: BTreeSet<(Lid, u8)>,
}

impl Facts {
    pub(super) fn new(shown: &Snapshot, lmc: u8) -> Result<Self> {
        let port = |node: &NodeView| -> Result<Port> {
            let guid = Guid(ground::port_guid(node));
            Ok(Port { lid: ground::lid(node)?, guid, gid: Gid::new(Gid::DEFAULT_PREFIX, guid) })
        };
        let all = shown.nodes.iter().map(port).collect::<Result<Vec<Port>>>()?;
        let highest = all.iter().map(|port| port.lid.0).max().context("a port")?;
        let mut guards = BTreeSet::new();
        for node in shown.switches() {
            let lid = ground::lid(node)?;
            let numbers = node.ports.iter().map(|port| port.number);
            let is_guard =
                |port: &u8| shown.far(node, *port).is_some_and(|(far, _)| !far.is_switch);
            guards.extend(numbers.filter(is_guard).map(|port| (lid, port)));
        }
        Ok(Self {
            own: port(shown.node(HOSTS[1])?)?,
            other: port(shown.node(HOSTS[0])?)?,
            last: port(shown.adapters().last().context("an adapter")?)?,
            switch: shown.switches().next().map(port).transpose()?,
            adapters: shown.adapters().map(port).collect::<Result<_>>()?,
            switches: shown.switches().map(port).collect::<Result<_>>()?,
            lmc,
            free: Lid(highest + (1 << lmc) + 7),
            all,
            guards,
        })
    }

    /// Returns whether a record of a P_Key table is of a switch's external port that leads to no adapter.
    pub(super) fn is_unguarded(&self, record: &[u8]) -> bool {
        let [high, low, _, _, port, ..] = *record else { return false };
        let place = (Lid(u16::from_be_bytes([high, low])), port);
        !self.is_adapters(record) && port != 0 && !self.guards.contains(&place)
    }

    /// Returns whether a record begins with the LID of an adapter.
    pub(super) fn is_adapters(&self, record: &[u8]) -> bool {
        let lid = record.first_chunk().map(|lid| Lid(u16::from_be_bytes(*lid)));
        self.adapters.iter().any(|port| Some(port.lid) == lid)
    }
}
