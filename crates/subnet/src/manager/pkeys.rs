//! P_Key tables: what each end port should have.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

use rdmux_wire::Pkey;

use super::Manager;
use super::model::Model;
use super::requests::{Request, What};
use crate::topology::PortRef;

/// P_Keys of a block.
pub(super) const PKEY_BLOCK: usize = 32;

/// The most blocks that are read and written of a port: 1024 P_Keys.
pub(super) const MAX_PKEY_BLOCKS: u16 = 32;

/// Who is in which partition.
pub trait PkeyTables: fmt::Debug {
    /// The table of an end port: index by index, zero where there is no key.
    fn of(&self, model: &Model, port: PortRef) -> Vec<Pkey>;
}

/// Every port is a full member of the default partition, and of no other.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultPartition;

impl PkeyTables for DefaultPartition {
    fn of(&self, _: &Model, _: PortRef) -> Vec<Pkey> {
        vec![Pkey::DEFAULT]
    }
}

impl Manager {
    /// Asks for the blocks of an end port's table that are not as they should be.
    pub(super) fn queue_pkeys(&mut self, port: PortRef) {
        let Some(entry) = self.model.port(port) else { return };
        let cap = self.model.node(port.node).map_or(0, |node| node.info.partition_cap);
        let wanted = self.pkeys.of(&self.model, port);
        let length = wanted.len().max(entry.pkeys.len()).min(cap.into());
        let blocks = length.div_ceil(PKEY_BLOCK);
        let key = |keys: &[Pkey], at| keys.get(at).copied().unwrap_or(Pkey(0));
        for block in 0..u16::try_from(blocks).unwrap_or(u16::MAX).min(MAX_PKEY_BLOCKS) {
            let first = usize::from(block) * PKEY_BLOCK;
            let mut all = first..first + PKEY_BLOCK;
            if all.any(|at| key(&wanted, at) != key(&entry.pkeys, at)) {
                self.queue.push_back(Request { port, what: What::SetPkeys(block) });
            }
        }
    }
}
