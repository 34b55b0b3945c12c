//! The output of a manager.

use alloc::boxed::Box;

use rdmux_wire::Guid;
use rdmux_wire::sm::{Notice, SmState};

use super::Report;
use crate::rmpp::Mad;
use crate::umad::UserAddress;

/// Receives the output of a manager.
pub trait ManagerSink {
    /// Sends a datagram from QP0 of the manager's port. The manager does timeouts and retransmission itself. An
    /// implementation must not call the manager.
    fn send(&mut self, to: UserAddress, mad: Box<Mad>);

    /// Reports an event.
    fn event(&mut self, event: Event);
}

/// An event of the manager. Administration reports some of them to subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The manager has changed its state.
    State(SmState),
    /// A port is now in service, by its GUID (trap 64).
    PortAppeared(Guid),
    /// A port is now out of service, by its GUID (trap 65).
    PortGone(Guid),
    /// The nodes, cables or LIDs of the model have changed.
    ModelChanged,
    /// A heavy sweep of the master has ended.
    SweepEnded(Report),
    /// A babbling port, named by the GUID of its node and its number, was disabled.
    PortDisabled {
        /// NodeGUID.
        node: Guid,
        /// The number of the port.
        port: u8,
    },
    /// The master has received a trap and not ignored it as one of too many.
    Trap(Notice),
}
