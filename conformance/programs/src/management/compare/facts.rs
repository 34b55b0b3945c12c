//! What the questions are about: ports of the fabric.

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
    /// The port that asks.
    pub(super) own: Port,
    /// OpenSM's host.
    pub(super) other: Port,
    /// The adapter that is the last: on a large fabric far away.
    pub(super) last: Port,
    /// Port 0 of the first switch, where there is one.
    pub(super) switch: Option<Port>,
    /// The adapters, in the order of the fabric.
    pub(super) adapters: Vec<Port>,
    /// The switches.
    pub(super) switches: Vec<Port>,
    /// LID mask control.
    pub(super) lmc: u8,
    /// A LID that no port has.
    pub(super) free: Lid,
    /// All of them.
    all: Vec<Port>,
}

impl Facts {
    pub(super) fn new(shown: &Snapshot, lmc: u8) -> Result<Self> {
        let port = |node: &NodeView| -> Result<Port> {
            let guid = Guid(ground::port_guid(node));
            Ok(Port { lid: ground::lid(node)?, guid, gid: Gid::new(Gid::DEFAULT_PREFIX, guid) })
        };
        let all = shown.nodes.iter().map(port).collect::<Result<Vec<Port>>>()?;
        let highest = all.iter().map(|port| port.lid.0).max().context("a port")?;
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
        })
    }

    /// Whether a record begins with the LID of an adapter.
    pub(super) fn is_adapters(&self, record: &[u8]) -> bool {
        let lid = record.first_chunk().map(|lid| Lid(u16::from_be_bytes(*lid)));
        self.adapters.iter().any(|port| Some(port.lid) == lid)
    }
}
