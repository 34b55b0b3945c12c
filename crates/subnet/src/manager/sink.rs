//! What a manager asks its driver to do, and tells it.

use alloc::boxed::Box;

use rdmux_wire::Guid;
use rdmux_wire::sm::{Notice, SmState};

use super::Report;
use crate::rmpp::Mad;
use crate::umad::UserAddress;

/// What the driver of a manager does with what comes out of it.
pub trait ManagerSink {
    /// Sends a datagram from QP0 of the manager's port. The manager waits for the answer and sends again by itself. The driver must
    /// not call the manager from here.
    fn send(&mut self, to: UserAddress, mad: Box<Mad>);

    /// Something has happened.
    fn event(&mut self, event: Event);
}

/// What a manager tells: administration reports some of it to subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The manager does something else now.
    State(SmState),
    /// A port has come into service, by its GUID (trap 64).
    PortAppeared(Guid),
    /// A port has gone out of service, by its GUID (trap 65).
    PortGone(Guid),
    /// The nodes, cables or LIDs of the model are other ones than before.
    ModelChanged,
    /// A heavy sweep of the master has ended.
    SweepEnded(Report),
    /// A port that babbles is disabled, by the GUID of its node and its number.
    PortDisabled {
        /// NodeGUID.
        node: Guid,
        /// The number of the port.
        port: u8,
    },
    /// The master has got a trap, unless it is one of so many that it is ignored.
    Trap(Notice),
}
