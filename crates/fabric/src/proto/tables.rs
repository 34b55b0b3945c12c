//! Forwarding tables, as commands see them.

use rdmux_wire::Lid;
use serde::{Deserialize, Serialize};

/// The forwarding tables of all switches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tables {
    /// The switches, in the order of the topology.
    pub switches: Vec<SwitchTables>,
}

/// The forwarding tables of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchTables {
    /// The index of the switch's node in [`Snapshot::nodes`](super::Snapshot::nodes).
    pub node: u32,
    /// The port of each unicast LID from 0 to LinearFDBTop (IBTA 14.2.5.4); 255 if there is no route.
    pub linear: Vec<u8>,
    /// The multicast LIDs that have ports, ascending, with these ports.
    pub multicast: Vec<(Lid, Vec<u8>)>,
}

impl SwitchTables {
    /// Returns the port to which a unicast LID is routed.
    pub fn port(&self, lid: Lid) -> Option<u8> {
        const NO_ROUTE: u8 = 0xff;
        self.linear.get(usize::from(lid.0)).copied().filter(|port| *port != NO_ROUTE)
    }
}
