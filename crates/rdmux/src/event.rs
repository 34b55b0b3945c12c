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
    /// The port with this number has become active.
    PortActive(u8),
    /// The port is no longer active.
    PortError(u8),
    /// The port's LID or LMC is another one.
    LidChange(u8),
    /// The LID of the port's subnet manager, or the service level to it, is another one.
    SmChange(u8),
    /// The port's subnet manager has forgotten multicast groups, services and subscriptions.
    ClientReregister(u8),
    /// The port's P_Key table changed.
    PkeyChange(u8),
    /// The port's GID table changed.
    GidChange(u8),
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
            AsyncEventKind::Port(number, event) => Self::of_port(*number, *event),
            AsyncEventKind::DeviceFatal => Self::DeviceFatal,
        }
    }
}

impl AsyncEvent {
    fn of_port(number: u8, event: PortEvent) -> Self {
        match event {
            PortEvent::Active => Self::PortActive(number),
            PortEvent::Error => Self::PortError(number),
            PortEvent::LidChange => Self::LidChange(number),
            PortEvent::SmChange => Self::SmChange(number),
            PortEvent::ClientReregister => Self::ClientReregister(number),
            PortEvent::PkeyChange => Self::PkeyChange(number),
            PortEvent::GidChange => Self::GidChange(number),
        }
    }
}
