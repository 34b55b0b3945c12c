//! The queue pair types that a REQ joins (IBTA 12.6.5; XRC: annex A14).
//!
//! | requester | REQ's transport | responder |
//! |---|---|---|
//! | RC | 0 | RC |
//! | UC | 1 | UC |
//! | XRC, sending end | 3, extended transport 1 | XRC, receiving end |

use rdmux_transport::attr::QpType;
use rdmux_wire::cm::Transport;

/// Returns the transport that a queue pair of this type requests from its peer; none if this type does not connect.
pub(crate) const fn asked_by(qp_type: QpType) -> Option<Transport> {
    match qp_type {
        QpType::Rc => Some(Transport::Rc),
        QpType::Uc => Some(Transport::Uc),
        QpType::XrcSend => Some(Transport::XRC),
        QpType::Ud | QpType::XrcRecv => None,
    }
}

/// Returns the type of queue pair that a REQ for this transport requests; none for an unsupported transport.
pub(crate) const fn asked_for(transport: Transport) -> Option<QpType> {
    match transport {
        Transport::Rc => Some(QpType::Rc),
        Transport::Uc => Some(QpType::Uc),
        Transport::XRC => Some(QpType::XrcRecv),
        Transport::Rd | Transport::Extended(_) => None,
    }
}
