//! Alias GUIDs: administration assigns them, and the manager restores them at ports that have lost them.
//!
//! The model has a port's aliases as long as it has the port. During discovery the manager reads the tables of ports that
//! should have aliases, and writes those that differ: a port that was reset has none. Before a manager is up, it adopts the
//! aliases it finds, which another master may have set.

use rdmux_wire::Guid;
use rdmux_wire::mad::Method;
use rdmux_wire::sm::{GuidInfo, SmState};
use rdmux_wire::smp::Smp;

use super::Manager;
use super::model::{Model, Port};
use super::requests::{Request, What};
use crate::Time;
use crate::topology::PortRef;

/// GUIDs per block.
const GUID_BLOCK: usize = 8;

/// Returns a block of the table that a port should have. The first GUID of block 0 is the port's own.
fn block_of(port: &Port, block: u8) -> GuidInfo {
    let guid = |index: usize| match index.checked_sub(1) {
        None => port.guid,
        Some(alias) => port.aliases.get(alias).copied().unwrap_or_default(),
    };
    GuidInfo { guids: core::array::from_fn(|n| guid(usize::from(block) * GUID_BLOCK + n)) }
}

/// Returns the number of the block that has the GUID with this index.
fn block_with(index: u8) -> u8 {
    index / u8::try_from(GUID_BLOCK).unwrap_or(u8::MAX)
}

impl Manager {
    /// Sets an alias GUID of a port, or removes it if `guid` is zero. Returns the directed-route request, without transaction
    /// ID, that writes it to the port; none if there is no such port.
    pub fn set_alias(&mut self, port: PortRef, index: u8, guid: Guid) -> Option<Smp> {
        self.model.set_alias(port, index, guid);
        let block = block_with(index);
        let hops = self.hops_to(&self.model, port)?;
        let mut smp = Smp::directed(Method::SET, GuidInfo::ATTR_ID, block.into(), hops.as_slice());
        smp.mkey = self.config.mkey;
        smp.set_attribute(&self.wanted_guids(&self.model, port, block)?.into());
        Some(smp)
    }

    /// Requests a sweep, which sets the aliases again that ports do not have.
    pub fn restore_aliases(&mut self, now: Time) {
        if self.state == SmState::MASTER {
            self.request_sweep_for(now, None);
        }
    }

    /// Returns the block of GUIDInfo that a port should have.
    pub(super) fn wanted_guids(&self, model: &Model, port: PortRef, block: u8) -> Option<GuidInfo> {
        Some(block_of(model.port(port)?, block))
    }

    /// During discovery: reads the blocks of a port that should have aliases.
    pub(super) fn ask_aliases(&mut self, place: PortRef, guid: Guid) {
        if !self.is_up() {
            return;
        }
        let known = self.model.by_own_guid(guid).and_then(|at| self.model.port(at));
        let Some(known) = known else { return };
        let Some(last) = known.aliases.iter().rposition(|alias| *alias != Guid(0)) else { return };
        for block in 0..=u8::try_from((last + 1) / GUID_BLOCK).unwrap_or(u8::MAX) {
            self.queue.push_back(Request { port: place, what: What::Guids(block) });
        }
    }

    /// During discovery, before the manager is up: reads all blocks of a port that may have aliases.
    pub(super) fn ask_all_aliases(&mut self, place: PortRef, guid_cap: u8) {
        if self.is_up() || guid_cap <= 1 {
            return;
        }
        for block in 0..=block_with(guid_cap - 1) {
            self.queue.push_back(Request { port: place, what: What::Guids(block) });
        }
    }

    /// Handles a block that a port has. A manager that is not up adopts it; otherwise it is compared with the aliases from
    /// before this discovery.
    pub(super) fn found_aliases(&mut self, place: PortRef, block: u8, smp: &Smp) {
        let is_up = self.is_up();
        let Some(port) = self.found.port_mut(place) else { return };
        if !is_up {
            let first = usize::from(block) * GUID_BLOCK;
            for (index, guid) in (first..).zip(GuidInfo::from_bytes(&smp.data).guids) {
                let Some(at) = index.checked_sub(1).filter(|_| guid != Guid(0)) else { continue };
                port.aliases.resize(port.aliases.len().max(at + 1), Guid(0));
                port.aliases[at] = guid;
            }
            return;
        }
        let guid = port.guid;
        let known = self.model.by_own_guid(guid).and_then(|at| self.model.port(at));
        if known.is_some_and(|port| block_of(port, block) != GuidInfo::from_bytes(&smp.data)) {
            self.lost_aliases.insert((guid, block));
        }
    }

    /// Restores the aliases that a port had, by index from 1, except those that are GUIDs of other ports by now: those are
    /// removed from its table.
    pub(super) fn keep_aliases(&mut self, place: PortRef, aliases: &[Guid]) {
        if let Some(port) = self.model.port_mut(place) {
            port.aliases.clear();
        }
        for (index, &alias) in (1..=u8::MAX).zip(aliases).filter(|(_, alias)| **alias != Guid(0)) {
            if self.model.by_port_guid(alias).is_none() {
                self.model.set_alias(place, index, alias);
            } else if let Some(port) = self.model.port(place) {
                self.lost_aliases.insert((port.guid, block_with(index)));
            }
        }
    }

    /// Queues requests that restore the blocks that a port has lost.
    pub(super) fn queue_aliases(&mut self, place: PortRef) {
        let Some(guid) = self.model.port(place).map(|port| port.guid) else { return };
        let range = (guid, 0)..=(guid, u8::MAX);
        let blocks: alloc::vec::Vec<_> =
            self.lost_aliases.range(range).map(|&(_, block)| block).collect();
        for block in blocks {
            self.lost_aliases.remove(&(guid, block));
            self.queue.push_back(Request { port: place, what: What::SetGuids(block) });
        }
    }
}
