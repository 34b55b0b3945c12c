//! The P_Key tables that a manager sets.

use alloc::vec::Vec;

use rdmux_wire::{Guid, Pkey};

use super::{EndPort, Partitions};
use crate::manager::{Model, PkeyTables};
use crate::topology::PortRef;

/// The partitions and the port that `SELF` names, for [`Manager::set_pkey_tables`](crate::manager::Manager::set_pkey_tables).
#[derive(Clone, Debug)]
pub struct PartitionTables {
    /// The partitions.
    pub partitions: Partitions,
    /// The manager's port.
    pub manager: Guid,
}

impl PkeyTables for PartitionTables {
    fn of(&self, model: &Model, port: PortRef) -> Vec<Pkey> {
        let (Some(node), Some(entry)) = (model.node(port.node), model.port(port)) else {
            return Vec::new();
        };
        self.partitions.table_for(&EndPort {
            guid: entry.guid,
            kind: node.info.node_type,
            is_manager: entry.guid == self.manager,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::administration::tests::model;
    use crate::topology::Shape;

    #[test]
    fn pkey_tables_follow_all_cas_all_switches_and_self_rules() {
        let shape: Shape = "switch:2".parse().unwrap();
        let model = model(&shape.topology(Guid(0x1000)), 0);
        let text = "A=1: ALL_CAS=full; B=2: ALL_SWITCHES; C=3: SELF=full;";
        let partitions = Partitions::parse("p", text).unwrap();
        let place = |node, port| PortRef { node, port };
        let manager = model.port(place(2, 1)).unwrap().guid;
        let tables = PartitionTables { partitions, manager };
        let of = |node, port| tables.of(&model, place(node, port));
        assert_eq!(of(0, 0), [Pkey(0x7fff), Pkey(2)]);
        assert_eq!(of(1, 1), [Pkey(0x7fff), Pkey(0x8001)]);
        assert_eq!(of(2, 1), [Pkey(0xffff), Pkey(0x8001), Pkey(0x8003)]);
        assert_eq!(of(9, 1), []);
    }
}
