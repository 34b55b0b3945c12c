//! P_Key tables: the keys of each end port, and enforcement at the switches' ports that connect to end ports.
//!
//! A switch port that connects to an adapter gets the adapter's table and enforces it both ways (SwitchInfo's
//! PartitionEnforcementCap and capability bits permitting), as in OpenSM. Enforcement is enabled when the table is known to
//! be written.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use rdmux_wire::Pkey;
use rdmux_wire::sm::{PortInfo, PortState};

use super::Manager;
use super::model::{Model, Node};
use super::requests::{Request, What};
use super::status::ProblemKind;
use crate::topology::PortRef;

/// P_Keys per block.
pub(super) const PKEY_BLOCK: usize = 32;

/// The most blocks that are read and written per port: 1024 P_Keys.
pub(super) const MAX_PKEY_BLOCKS: u16 = 32;

/// The assignment of ports to partitions.
pub trait PkeyTables: fmt::Debug {
    /// Returns the table of an end port, by index; unused entries are zero.
    fn of(&self, model: &Model, port: PortRef) -> Vec<Pkey>;
}

/// An assignment in which every port is a full member of the default partition only.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultPartition;

impl PkeyTables for DefaultPartition {
    fn of(&self, _: &Model, _: PortRef) -> Vec<Pkey> {
        vec![Pkey::DEFAULT]
    }
}

/// Returns how many P_Keys a port can have; a switch's external port, how many it can enforce.
pub(super) fn capacity(node: &Node, port: u8) -> u16 {
    match &node.switch {
        Some(switch) if port != 0 => switch.info.partition_enforcement_cap,
        _ => node.info.partition_cap,
    }
}

/// Returns the non-switch end port that a switch's external port connects to.
fn guarded(model: &Model, port: PortRef) -> Option<PortRef> {
    let peer = model.port(port)?.peer?;
    (!model.node(peer.node)?.is_switch()).then_some(peer)
}

/// Arranges the keys of `wanted` in a table that has room for all of them. The first is at index 0. The others stay where
/// `known` has them or another membership of their partition, so that queue pairs keep their partition. New keys are
/// appended, since a freed index may still be in use; they fill gaps only when there is no room at the end.
fn arrange(known: &[Pkey], wanted: Vec<Pkey>, capacity: usize) -> Vec<Pkey> {
    let Some(&first) = wanted.first().filter(|_| *known != *wanted) else { return wanted };
    let base = |key: Pkey| key.0 & 0x7fff;
    let all = (1..capacity).zip(known.iter().skip(1)).filter(|(_, key)| base(**key) != 0);
    let same: BTreeMap<Pkey, usize> = all.clone().map(|(at, key)| (*key, at)).collect();
    let alike: BTreeMap<u16, usize> = all.map(|(at, key)| (base(*key), at)).collect();
    let mut table = vec![Pkey(0); capacity];
    table[0] = first;
    let mut others = Vec::new();
    for &key in &wanted[1..] {
        match same.get(&key) {
            Some(&at) => table[at] = key,
            None => others.push(key),
        }
    }
    let mut free = (known.len()..capacity).chain(1..known.len().min(capacity));
    let mut new = Vec::new();
    for key in others {
        match alike.get(&base(key)).filter(|&&at| table[at] == Pkey(0)) {
            Some(&at) => table[at] = key,
            None => new.push(key),
        }
    }
    for key in new {
        let at = free.find(|&at| at > 0 && table[at] == Pkey(0));
        if let Some(slot) = at.and_then(|at| table.get_mut(at)) {
            *slot = key;
        }
    }
    let used = table.iter().rposition(|key| *key != Pkey(0)).map_or(0, |last| last + 1);
    table.truncate(used);
    table
}

impl Manager {
    /// Notes the keys of a block of a port's table.
    pub(super) fn know_pkeys(&mut self, port: PortRef, block: u16, keys: [Pkey; PKEY_BLOCK]) {
        let Some(port) = self.working_mut().port_mut(port) else { return };
        let first = usize::from(block) * PKEY_BLOCK;
        if port.pkeys.len() < first + PKEY_BLOCK {
            port.pkeys.resize(first + PKEY_BLOCK, Pkey(0));
        }
        port.pkeys[first..first + PKEY_BLOCK].copy_from_slice(&keys);
        let used = port.pkeys.iter().rposition(|key| *key != Pkey(0)).map_or(0, |last| last + 1);
        port.pkeys.truncate(used);
        port.pkeys.shrink_to_fit();
    }

    /// During discovery: handles a block of a port's table that could not be read. The former block is assumed, so that keys
    /// stay at their index; the next sweep reads it again.
    pub(super) fn keep_pkeys(&mut self, port: PortRef, block: u16) {
        let known = self.found.node(port.node).and_then(|node| {
            let node = self.model.by_node_guid(node.info.node_guid)?;
            self.model.port(PortRef { node, ..port })
        });
        let Some(known) = known else { return };
        let first = usize::from(block) * PKEY_BLOCK;
        let key = |n| known.pkeys.get(first + n).copied().unwrap_or(Pkey(0));
        let keys = core::array::from_fn(key);
        self.know_pkeys(port, block, keys);
    }

    /// Returns the table that a port should have. For an end port that is the part of its partitions' keys that fits, with
    /// present keys at their index. For a switch's external port it is the table of the end port behind it, in any order, if
    /// all of it fits. None for ports without a table of their own.
    pub(super) fn wanted_pkeys(&self, model: &Model, port: PortRef) -> Option<Vec<Pkey>> {
        let node = model.node(port.node)?;
        let is_external = port.port != 0 && node.is_switch();
        let end = if is_external { guarded(model, port)? } else { port };
        let mut table = self.pkeys.of(model, end);
        table.truncate(capacity(model.node(end.node)?, end.port).into());
        let capacity = usize::from(capacity(node, port.port));
        if is_external {
            return (table.len() <= capacity && !table.is_empty()).then_some(table);
        }
        Some(arrange(&model.port(port)?.pkeys, table, capacity))
    }

    /// Returns whether a switch port enforces partitions inbound and outbound, which it does once its table is written. None
    /// for other ports, and if the peer is unknown.
    fn enforcement(&self, model: &Model, port: PortRef) -> Option<(bool, bool)> {
        let switch = model.node(port.node)?.switch.as_deref().filter(|_| port.port != 0)?;
        let entry = model.port(port)?;
        entry.peer?;
        let known = &entry.pkeys;
        let has_table = self.wanted_pkeys(model, port).is_some_and(|wanted| wanted == *known);
        Some((
            has_table && switch.info.inbound_enforcement_cap,
            has_table && switch.info.outbound_enforcement_cap,
        ))
    }

    /// Returns PortInfo with the enforcement that the port should have.
    pub(super) fn enforcing(&self, model: &Model, port: PortRef, info: PortInfo) -> PortInfo {
        let Some((inbound, outbound)) = self.enforcement(model, port) else { return info };
        PortInfo {
            partition_enforcement_inbound: inbound,
            partition_enforcement_outbound: outbound,
            ..info
        }
    }

    /// Queues changes of enforcement at the ports of a switch that are up. Ports that are not yet up get it with their link state.
    pub(super) fn queue_enforcement(&mut self, index: usize) {
        let Some(node) = self.model.node(index).filter(|node| node.is_switch()) else { return };
        for (number, port) in (0..=u8::MAX).zip(&node.ports) {
            let place = PortRef { node: index, port: number };
            let Some(info) = port.info.filter(|info| info.port_state > PortState::INIT) else {
                continue;
            };
            if self.enforcing(&self.model, place, info) != info {
                self.queue.push_back(Request { port: place, what: What::Enforce });
            }
        }
    }

    /// Queues the blocks of all tables of a node that differ from the target.
    pub(super) fn queue_pkeys(&mut self, index: usize) {
        let Some(node) = self.model.node(index) else { return };
        for number in 0..=node.info.num_ports {
            self.queue_table(PortRef { node: index, port: number });
        }
    }

    /// Queues the blocks of a table that differ from the target.
    fn queue_table(&mut self, port: PortRef) {
        let Some(entry) = self.model.port(port).filter(|entry| entry.info.is_some()) else {
            return;
        };
        let Some(wanted) = self.wanted_pkeys(&self.model, port) else { return };
        let Some(node) = self.model.node(port.node) else { return };
        let cap = usize::from(capacity(node, port.port));
        // A switch's external port has the table of the end port behind it, if all of it fits.
        let is_end = port.port == 0 || !node.is_switch();
        let mut is_planned = false;
        let known = &entry.pkeys;
        let blocks = wanted.len().max(known.len()).min(cap).div_ceil(PKEY_BLOCK);
        let key = |keys: &[Pkey], at| keys.get(at).copied().unwrap_or(Pkey(0));
        for block in 0..u16::try_from(blocks).unwrap_or(u16::MAX).min(MAX_PKEY_BLOCKS) {
            let first = usize::from(block) * PKEY_BLOCK;
            let mut all = first..first + PKEY_BLOCK;
            if all.any(|at| key(&wanted, at) != key(known, at)) {
                self.queue.push_back(Request { port, what: What::SetPkeys(block) });
                is_planned = true;
            }
        }
        if is_end && self.pkeys.of(&self.model, port).len() > cap {
            self.problem(ProblemKind::NoPkey, port);
        }
        if is_planned {
            // Each answer changes the known table, from which another arrangement may follow.
            self.pkey_plans.insert(port, wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The present table, the wanted keys, the capacity, and the resulting table.
    type Case = (&'static [u16], &'static [u16], usize, &'static [u16]);

    #[test]
    fn retained_pkeys_keep_their_table_index() {
        let cases: &[Case] = &[
            (&[], &[0xffff, 0x8010], 8, &[0xffff, 0x8010]),
            (&[0xffff], &[0xffff, 0x8010, 0x8020], 8, &[0xffff, 0x8010, 0x8020]),
            // A removed key leaves a gap, and a new one is appended.
            (&[0xffff, 0x8010, 0x8020], &[0xffff, 0x8020], 8, &[0xffff, 0, 0x8020]),
            (&[0xffff, 0x8010, 0x8020], &[0xffff, 0x8005, 0x8020], 8, &[0xffff, 0, 0x8020, 0x8005]),
            (&[0xffff, 0x8010], &[0xffff], 8, &[0xffff]),
            // Without room at the end the gap is filled.
            (&[0xffff, 0x8010, 0x8020], &[0xffff, 0x8005, 0x8020], 3, &[0xffff, 0x8005, 0x8020]),
            // Another membership of the same partition takes its place; both memberships take two places.
            (&[0xffff, 0x8010, 0x8020], &[0xffff, 0x0010, 0x8020], 8, &[0xffff, 0x0010, 0x8020]),
            (&[0xffff, 0x0010], &[0xffff, 0x8010, 0x0010], 8, &[0xffff, 0x0010, 0x8010]),
            // A different key at index 0.
            (&[0xffff, 0x8010], &[0x8010, 0xffff], 8, &[0x8010, 0, 0xffff]),
            (&[0xffff, 0x8010], &[0x8010, 0xffff], 2, &[0x8010, 0xffff]),
            (&[0, 0x8010, 0x8010], &[0xffff, 0x8010], 8, &[0xffff, 0, 0x8010]),
            (&[0xffff; 4], &[0x7fff, 0x8001], 2, &[0x7fff, 0x8001]),
            (&[0xffff], &[], 0, &[]),
        ];
        let table = |keys: &[u16]| keys.iter().map(|key| Pkey(*key)).collect::<Vec<_>>();
        for (known, wanted, capacity, expected) in cases {
            let arranged = arrange(&table(known), table(wanted), *capacity);
            assert_eq!(arranged, table(expected), "{known:x?} {wanted:x?}");
            assert_eq!(
                arrange(&arranged, table(wanted), *capacity),
                arranged,
                "nothing is left to do"
            );
        }
    }
}
