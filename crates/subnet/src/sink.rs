//! The output of a subnet.

use crate::packet::{MadPacket, PortId};

/// Receives the output of a subnet.
pub trait Sink {
    /// Delivers a datagram to the programs of a port: one that the port's own agents do not answer.
    fn deliver(&mut self, port: PortId, packet: MadPacket);

    /// Reports an asynchronous event of a port, as `ibv_get_async_event(3)` returns it.
    fn port_event(&mut self, port: PortId, event: PortEvent);

    /// For captures: a datagram left or reached an adapter's port or port 0 of a switch, whether or not anything receives it.
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
    /// The manager asks programs to repeat the registrations that they had made with its predecessor.
    ClientReregister,
    /// The P_Key table has changed.
    PkeyChange,
    /// The subnet prefix or a GUID has changed, and therefore a GID.
    GidChange,
}

/// Discards all output.
impl Sink for () {
    fn deliver(&mut self, _: PortId, _: MadPacket) {}
    fn port_event(&mut self, _: PortId, _: PortEvent) {}
}
