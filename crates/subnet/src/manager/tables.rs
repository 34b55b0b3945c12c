//! The forwarding tables of switches, and which of their blocks still have to be written.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use rdmux_wire::Lid;
use rdmux_wire::sm::{NO_ROUTE, SwitchInfo};

use super::Manager;
use super::model::PortSet;
use super::requests::{Request, What};
use crate::topology::PortRef;

/// LIDs per block of a linear forwarding table.
pub(super) const LINEAR_BLOCK: u16 = 64;

/// [`LINEAR_BLOCK`] as a length.
const BLOCK_LEN: usize = LINEAR_BLOCK as usize;

/// LIDs per block of a multicast forwarding table.
pub(super) const MULTICAST_BLOCK: u16 = 32;

/// LifeTimeValue: the most time a packet may stay in a switch, 4.096 us * 2^18.
const LIFE_TIME: u8 = 0x12;

/// Blocks of the model's tables that a switch does not have yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Dirty {
    /// A bit for each block of the linear table.
    linear: [u64; 12],
    /// Position and block of each multicast table block.
    multicast: BTreeSet<(u8, u16)>,
    /// The number of multicast table blocks, from 0 on, that equal the model's except those above. The others are unknown: an
    /// earlier manager may have left groups there.
    multicast_known: u16,
}

impl Dirty {
    /// Returns the state of a switch whose tables are unknown: everything is dirty.
    pub(super) fn everything() -> Self {
        Self { linear: [u64::MAX; 12], multicast: BTreeSet::new(), multicast_known: 0 }
    }

    /// Marks a block of the linear forwarding table as dirty.
    pub(super) fn mark_linear(&mut self, block: u16) {
        if let Some(word) = self.linear.get_mut(usize::from(block / 64)) {
            *word |= 1 << (block % 64);
        }
    }

    /// Marks a block of the multicast forwarding table as dirty.
    pub(super) fn mark_multicast(&mut self, position: u8, block: u16) {
        self.multicast.insert((position, block));
    }

    /// Clears a block's mark and returns whether it was set. The block is written when the switch has answered.
    fn take_linear(&mut self, block: u16) -> bool {
        let Some(word) = self.linear.get_mut(usize::from(block / 64)) else { return false };
        let bit = 1 << (block % 64);
        core::mem::replace(word, *word & !bit) & bit != 0
    }
}

/// Writes the route of a LID into the model's table.
#[inline]
pub(super) fn put_route(forwarding: &mut Vec<u8>, dirty: &mut Dirty, lid: u16, port: u8) {
    let at = usize::from(lid);
    match forwarding.get_mut(at) {
        Some(entry) if *entry == port => return,
        Some(entry) => *entry = port,
        None if port == NO_ROUTE => return,
        None => {
            forwarding.resize((at / BLOCK_LEN + 1) * BLOCK_LEN, NO_ROUTE);
            forwarding[at] = port;
        }
    }
    dirty.mark_linear(lid / LINEAR_BLOCK);
}

/// Writes the ports of a multicast LID into the model's table.
pub(super) fn put_group(
    table: &mut BTreeMap<Lid, PortSet>,
    dirty: &mut Dirty,
    mlid: Lid,
    ports: PortSet,
) {
    let old = table.get(&mlid).copied().unwrap_or_default();
    let block = mlid.0.wrapping_sub(Lid::FIRST_MULTICAST.0) / MULTICAST_BLOCK;
    for position in (0..16).filter(|&position| old.mask(position) != ports.mask(position)) {
        dirty.mark_multicast(position, block);
    }
    if ports.is_empty() {
        table.remove(&mlid);
    } else {
        table.insert(mlid, ports);
    }
}

/// Returns a block of a linear table; LIDs beyond the end have no route.
pub(super) fn linear_block(forwarding: &[u8], block: u16) -> [u8; BLOCK_LEN] {
    let first = usize::from(block) * BLOCK_LEN;
    let stored = forwarding.get(first..).and_then(|rest| rest.first_chunk());
    stored.copied().unwrap_or([NO_ROUTE; BLOCK_LEN])
}

/// Returns a block of a multicast table.
pub(super) fn multicast_block(
    table: &BTreeMap<Lid, PortSet>,
    position: u8,
    block: u16,
) -> [u16; MULTICAST_BLOCK as usize] {
    let mut masks = [0; MULTICAST_BLOCK as usize];
    let first = Lid::FIRST_MULTICAST.0.saturating_add(block.saturating_mul(MULTICAST_BLOCK));
    let last = first.saturating_add(MULTICAST_BLOCK - 1);
    for (lid, ports) in table.range(Lid(first)..=Lid(last)) {
        masks[usize::from(lid.0 - first)] = ports.mask(position);
    }
    masks
}

impl Manager {
    /// Returns the SwitchInfo that a switch should have: the table is used up to the highest LID.
    pub(super) fn switch_setup(&self, info: &SwitchInfo) -> SwitchInfo {
        let top = self.model.highest_lid().0.min(info.linear_fdb_cap.saturating_sub(1));
        // PortStateChange is cleared before the ports are read, not here.
        SwitchInfo {
            linear_fdb_top: Lid(top),
            life_time_value: LIFE_TIME,
            port_state_change: false,
            ..*info
        }
    }

    /// Queues the tables that a switch does not have yet.
    pub(super) fn queue_tables(&mut self, index: usize) {
        let Some(switch) = self.model.node(index).and_then(|n| n.switch.as_deref()) else { return };
        let new = self.switch_setup(&switch.info);
        let top = new.linear_fdb_top;
        if (SwitchInfo { port_state_change: switch.info.port_state_change, ..new }) != switch.info {
            self.queue.push_back(Request { port: place(index), what: What::SwitchSetup });
        }
        let Some(dirty) = self.dirty.get_mut(index).and_then(Option::as_deref_mut) else { return };
        for block in 0..=top.0 / LINEAR_BLOCK {
            if dirty.take_linear(block) {
                self.queue.push_back(Request { port: place(index), what: What::Linear(block) });
            }
        }
        self.queue_groups(index);
    }

    /// Queues the multicast table blocks that a switch does not have yet.
    pub(super) fn queue_groups(&mut self, index: usize) {
        let Some(node) = self.model.node(index) else { return };
        let Some(cap) = node.switch.as_deref().map(|switch| switch.info.multicast_fdb_cap) else {
            return;
        };
        let Some(dirty) = self.dirty.get_mut(index).and_then(Option::as_deref_mut) else { return };
        // All blocks up to the last one in use are written once, including empty ones.
        let last = self.groups.keys().next_back();
        let blocks = 1 + last.map_or(0, |lid| lid.0 - Lid::FIRST_MULTICAST.0) / MULTICAST_BLOCK;
        for block in dirty.multicast_known..blocks {
            (0..=node.info.num_ports / 16).for_each(|p| dirty.mark_multicast(p, block));
        }
        dirty.multicast_known = dirty.multicast_known.max(blocks);
        for (position, block) in core::mem::take(&mut dirty.multicast) {
            if block.saturating_mul(MULTICAST_BLOCK) < cap && position <= node.info.num_ports / 16 {
                let what = What::Multicast { position, block };
                self.queue.push_back(Request { port: place(index), what });
            }
        }
    }
}

const fn place(node: usize) -> PortRef {
    PortRef { node, port: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn only_lft_blocks_with_changed_routes_are_dirty() {
        let (mut table, mut dirty) = (vec![], Dirty::default());
        put_route(&mut table, &mut dirty, 70, 3);
        assert_eq!((table.len(), table[70], table[69]), (128, 3, NO_ROUTE));
        assert!(dirty.take_linear(1) && !dirty.take_linear(1) && !dirty.take_linear(0));
        put_route(&mut table, &mut dirty, 70, 3);
        put_route(&mut table, &mut dirty, 900, NO_ROUTE);
        assert!(!dirty.take_linear(1) && !dirty.take_linear(14) && table.len() == 128);
        assert_eq!(linear_block(&table, 1)[6], 3);
        assert_eq!(linear_block(&table, 2), [NO_ROUTE; 64]);
    }

    #[test]
    fn a_group_that_gains_a_port_makes_the_block_of_its_position_dirty() {
        let mut table = BTreeMap::new();
        let (mut dirty, mut ports) = (Dirty::default(), PortSet::default());
        ports.insert(2);
        ports.insert(17);
        put_group(&mut table, &mut dirty, Lid(0xc021), ports);
        assert_eq!(dirty.multicast, BTreeSet::from([(0, 1), (1, 1)]));
        assert_eq!(multicast_block(&table, 0, 1)[1], 4);
        assert_eq!(multicast_block(&table, 1, 1)[1], 2);
        assert_eq!(multicast_block(&table, 1, 0), [0; 32]);
        dirty.multicast.clear();
        ports.insert(3);
        put_group(&mut table, &mut dirty, Lid(0xc021), ports);
        assert_eq!(dirty.multicast, BTreeSet::from([(0, 1)]));
        put_group(&mut table, &mut dirty, Lid(0xc021), PortSet::default());
        assert!(table.is_empty());
    }
}
