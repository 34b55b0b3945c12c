//! The user MAD device's queries about its ports, answered by their subnet.

use rdmux_wire::{Gid, Lid, Pkey};

use crate::packet::PortId;
use crate::subnet::Subnet;
use crate::umad::Ports;

impl Ports for Subnet {
    fn lid(&self, port: PortId) -> Option<(Lid, u8)> {
        self.port(port).map(|view| (view.lid(), view.lmc()))
    }

    fn pkey(&self, port: PortId, index: u16) -> Option<Pkey> {
        let view = self.port(port).filter(|_| index < self.config.partition_cap)?;
        Some(view.pkey(index).unwrap_or_default())
    }

    fn gid(&self, port: PortId, index: u8) -> Option<Gid> {
        let view = self.port(port).filter(|view| index < view.info().guid_cap)?;
        Some(view.gid(index).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, NodeId, topology::Shape};
    use rdmux_wire::Guid;

    #[test]
    fn tables_end_at_their_capacity_and_empty_entries_are_zero() {
        let subnet = Subnet::new(&Shape::Two.topology(Guid(0x100)), Config::default());
        let port = PortId::new(NodeId(0), 1);
        assert_eq!(subnet.lid(port), Some((Lid(0), 0)));
        assert_eq!(Ports::pkey(&subnet, port, 0), Some(Pkey::DEFAULT));
        assert_eq!(Ports::pkey(&subnet, port, 63), Some(Pkey(0)));
        assert_eq!(Ports::pkey(&subnet, port, 64), None);
        assert_eq!(subnet.gid(port, 0), Some(Gid::new(Gid::DEFAULT_PREFIX, Guid(0x101))));
        assert_eq!((subnet.gid(port, 31), subnet.gid(port, 32)), (Some(Gid::ZERO), None));
        assert_eq!(subnet.lid(PortId::new(NodeId(2), 1)), None);
        let unknown = Pkey(0x8005);
        assert_eq!(subnet.pkey_index(port, unknown), None);
        assert_eq!(subnet.pkey_index(port, Pkey(0x7fff)), Some(0));
    }
}
