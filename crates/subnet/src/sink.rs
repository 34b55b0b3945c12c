//! What a subnet tells its driver.

use crate::packet::{MadPacket, PortId};

/// What the driver of a subnet does with what comes out of it.
pub trait Sink {
    /// A datagram arrives for the programs of a port: one that the port's own agents do not answer.
    fn deliver(&mut self, port: PortId, packet: MadPacket);

    /// Something about a port has changed, as `ibv_get_async_event(3)` would tell its programs.
    fn port_event(&mut self, port: PortId, event: PortEvent);

    /// For who captures: a datagram has left an adapter's port, or port 0 of a switch, or it has come to one, whoever takes it
    /// there.
    #[inline]
    fn passed(&mut self, _port: PortId, _sent: bool, _packet: &MadPacket) {}
}

/// An asynchronous event of a port (IBTA 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PortEvent {
    /// The port has become active.
    Active,
    /// The port is no longer active.
    Error,
    /// The LID or the LMC has changed.
    LidChange,
    /// The manager's LID or the service level to it has changed.
    SmChange,
    /// The manager asks programs to register again what they had registered with its predecessor.
    ClientReregister,
    /// The P_Key table has changed.
    PkeyChange,
    /// The subnet prefix or a GUID has changed, and so a GID.
    GidChange,
}

/// A sink that counts nothing and keeps nothing.
impl Sink for () {
    fn deliver(&mut self, _: PortId, _: MadPacket) {}
    fn port_event(&mut self, _: PortId, _: PortEvent) {}
}
