//! Asynchronous events of the device and its objects, which no work request reports.

use rdmux_transport::env::QpEvent;
use rdmux_verbs::port::PortEvent;
use rdmux_verbs::{AsyncEvent as Raw, AsyncEventKind};
use rdmux_wire::Qpn;

/// An asynchronous event of the device or of one of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// An event of a queue pair.
    Qp {
        /// The number of the queue pair.
        qpn: Qpn,
        /// The event.
        event: QpEvent,
    },
    /// A completion queue overflowed. Neither it nor the queue pairs that use it can be used any more.
    CqError,
    /// The number of receives in a shared receive queue fell below its limit.
    SrqLimit,
    /// An event of an XRC receive queue pair, raised once for each handle that this program holds on it.
    XrcTarget {
        /// The number of the target.
        qpn: Qpn,
        /// The event.
        event: QpEvent,
    },
    /// An event of an XRC receive queue pair for which this program is registered.
    XrcRegistered {
        /// The number of the target.
        qpn: Qpn,
        /// The event.
        event: QpEvent,
    },
    /// The port with this number has become active.
    PortActive(u8),
    /// The port is no longer active.
    PortError(u8),
    /// The port's LID or LMC changed.
    LidChange(u8),
    /// The LID of the port's subnet manager, or the service level to it, changed.
    SmChange(u8),
    /// The port's subnet manager lost its multicast groups, services and subscriptions, which clients must register
    /// again.
    ClientReregister(u8),
    /// The port's P_Key table changed.
    PkeyChange(u8),
    /// The port's GID table changed.
    GidChange(u8),
    /// The host service has exited, and the device is gone with it: open a new context.
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
