//! Alias GUIDs: administration chooses them, and the manager sets them again at ports that have lost them.
//!
//! They are in the model as long as their port is. In a discovery a port that should have some is asked for them, and told again where it
//! has others: a port that was reset has none. Before a manager is up it takes those that ports have, which another master may have set.

use rdmux_wire::Guid;
use rdmux_wire::mad::Method;
use rdmux_wire::sm::GuidInfo;
use rdmux_wire::smp::Smp;

use super::Manager;
use super::model::{Model, Port};
use super::requests::{Request, What};
use crate::topology::PortRef;

/// GUIDs of a block.
const GUID_BLOCK: usize = 8;

/// A block of the table that a port should have; the first GUID of all is its own.
fn block_of(port: &Port, block: u8) -> GuidInfo {
    let guid = |index: usize| match index.checked_sub(1) {
        None => port.guid,
        Some(alias) => port.aliases.get(alias).copied().unwrap_or_default(),
    };
    GuidInfo { guids: core::array::from_fn(|n| guid(usize::from(block) * GUID_BLOCK + n)) }
}

/// The block with the GUID of an index.
fn block_with(index: u8) -> u8 {
    index / u8::try_from(GUID_BLOCK).unwrap_or(u8::MAX)
}

impl Manager {
    /// Gives a port another alias GUID, or none where it is zero. Returns the request by directed route, without transaction ID, that
    /// sets it at the port; none if there is no such port.
    pub fn set_alias(&mut self, port: PortRef, index: u8, guid: Guid) -> Option<Smp> {
        self.model.set_alias(port, index, guid);
        let block = block_with(index);
        let hops = self.hops_to(&self.model, port)?;
        let mut smp = Smp::directed(Method::SET, GuidInfo::ATTR_ID, block.into(), hops.as_slice());
        smp.mkey = self.config.mkey;
        smp.set_attribute(&self.wanted_guids(&self.model, port, block)?.into());
        Some(smp)
    }

    pub(super) fn wanted_guids(&self, model: &Model, port: PortRef, block: u8) -> Option<GuidInfo> {
        Some(block_of(model.port(port)?, block))
    }

    /// In a discovery: asks a port that should have aliases for the blocks with some.
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

    /// In a discovery of a manager that is not up: asks a port for all its blocks, if it may have aliases.
    pub(super) fn ask_all_aliases(&mut self, place: PortRef, guid_cap: u8) {
        if self.is_up() || guid_cap <= 1 {
            return;
        }
        for block in 0..=block_with(guid_cap - 1) {
            self.queue.push_back(Request { port: place, what: What::Guids(block) });
        }
    }

    /// What a port has is taken by a manager that is not up, or else compared with what is known of it from before this discovery.
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

    /// Gives a port the aliases that it had, by their index from 1, but for those that are GUIDs of other ports by now: they are taken out
    /// of its table.
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

    /// Asks for the blocks of a port's table that it has lost.
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
