//! Service IDs of IP-based services: a port space and a port (IBTA annex A11).

use core::fmt;

use crate::ServiceId;

/// The port spaces by number: the values of `rdma_port_space`.
const PORT_SPACES: [(u16, &str); 4] =
    [(0x0002, "ipoib"), (0x0106, "tcp"), (0x0111, "udp"), (0x013f, "ib")];

impl ServiceId {
    /// Returns the service ID of a port in the port space of this number.
    pub const fn from_port(space: u16, port: u16) -> Self {
        Self((space as u64) << 16 | port as u64)
    }

    /// Returns the number of the port space and the port, or none if this is not the service ID of an IP-based service.
    pub fn port(self) -> Option<(u16, u16)> {
        let [0, 0, 0, 0, s0, s1, p0, p1] = self.0.to_be_bytes() else { return None };
        let (space, port) = (u16::from_be_bytes([s0, s1]), u16::from_be_bytes([p0, p1]));
        PORT_SPACES.iter().any(|&(code, _)| code == space).then_some((space, port))
    }
}

/// A service ID, printed as `tcp port 7174`, or as a number if it is not that of a port.
pub(super) struct Service(pub(super) ServiceId);

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = self.0.port().map(|(space, _)| space);
        match PORT_SPACES.iter().find(|&&(code, _)| Some(code) == space) {
            Some((_, name)) => write!(f, "{name} port {}", self.0.0 & 0xffff),
            None => write!(f, "service {}", self.0),
        }
    }
}
