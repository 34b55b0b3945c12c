//! Asynchronous events: what happens to the device and its objects outside of any work request.

use rdmux_transport::env::QpEvent;
use rdmux_verbs::port::PortEvent;
use rdmux_verbs::{AsyncEvent as Raw, AsyncEventKind};
use rdmux_wire::Qpn;

/// Something that happened to the device or to one of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// On a queue pair.
    Qp {
        /// Its number.
        qpn: Qpn,
        /// What.
        event: QpEvent,
    },
    /// A completion queue overflowed; it and the queue pairs that use it are of no more use.
    CqError,
    /// A shared receive queue fell below its limit.
    SrqLimit,
    /// On an XRC receive queue pair that this program holds a handle on; once for each handle.
    XrcTarget {
        /// Its number.
        qpn: Qpn,
        /// What.
        event: QpEvent,
    },
    /// On an XRC receive queue pair that this program is registered for.
    XrcRegistered {
        /// Its number.
        qpn: Qpn,
        /// What.
        event: QpEvent,
    },
    /// The port has become active.
    PortActive,
    /// The port is no longer active.
    PortError,
    /// The port's LID or LMC is another one.
    LidChange,
    /// The subnet manager's LID, or the service level to it, is another one.
    SmChange,
    /// The subnet manager has forgotten multicast groups, services and subscriptions.
    ClientReregister,
    /// The P_Key table changed.
    PkeyChange,
    /// The GID table changed.
    GidChange,
    /// The host service is gone, and the device with it: open a new context.
    DeviceFatal,
}

impl From<&Raw> for AsyncEvent {
    fn from(event: &Raw) -> Self {
        match event.kind() {
            AsyncEventKind::Qp(qp, event) => Self::Qp { qpn: qp.qpn(), event: *event },
            AsyncEventKind::CqError(_) => Self::CqError,
            AsyncEventKind::SrqLimit(_) => Self::SrqLimit,
            AsyncEventKind::Target(target, event) => {
                Self::XrcTarget { qpn: target.qpn(), event: *event }
            }
            AsyncEventKind::XrcQp(qpn, event) => Self::XrcRegistered { qpn: *qpn, event: *event },
            AsyncEventKind::Port(event) => Self::of_port(*event),
            AsyncEventKind::DeviceFatal => Self::DeviceFatal,
        }
    }
}

impl AsyncEvent {
    fn of_port(event: PortEvent) -> Self {
        match event {
            PortEvent::Active => Self::PortActive,
            PortEvent::Error => Self::PortError,
            PortEvent::LidChange => Self::LidChange,
            PortEvent::SmChange => Self::SmChange,
            PortEvent::ClientReregister => Self::ClientReregister,
            PortEvent::PkeyChange => Self::PkeyChange,
            PortEvent::GidChange => Self::GidChange,
        }
    }
}
