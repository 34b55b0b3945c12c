//! Reads the forwarding tables of all switches, for commands.

use rdmux_subnet::Subnet;

use super::core::Core;
use crate::proto::{SwitchTables, Tables};

impl Core {
    pub(super) fn tables(&self) -> Tables {
        let subnet: &Subnet = self.world.subnet();
        let switches = self.nodes.iter().filter(|(_, named)| named.is_switch());
        let tables = switches.map(|(node, _)| SwitchTables {
            node: node.0,
            linear: subnet.linear_table(node),
            multicast: subnet.multicast_table(node),
        });
        Tables { switches: tables.collect() }
    }
}
