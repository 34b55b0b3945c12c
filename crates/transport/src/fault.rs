//! The mapping from an internal fault to a syndrome on the wire, a completion status and an asynchronous event.

use rdmux_wire::NakCode;

use crate::env::{AccessFault, QpEvent};
use crate::wr::WcStatus;

/// The reason why a responder cannot carry out a request, so that the queue pair fails (IBTA 9.9.3, class C;
/// class A for its own memory; and class J for a key that cannot be invalidated).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponderFault {
    /// The operation is out of sequence, of a wrong length, misaligned, or not allowed by this queue pair.
    InvalidRequest,
    /// The shared receive queue that an XRC packet names does not exist, or is in another domain.
    NoSuchSrq,
    /// The message is longer than the receive.
    ReceiveTooShort,
    /// The key, range or access right of remote memory is wrong.
    RemoteAccess,
    /// The key that a SEND requests to invalidate is not valid for that.
    Invalidate,
    /// The receive's own memory is not writable.
    LocalProtection,
    /// The memory no longer exists.
    Operation,
}

/// The consequences of a [`ResponderFault`].
pub(crate) struct Consequence {
    /// The NAK for the requester. None acknowledges the request.
    pub(crate) nak: Option<NakCode>,
    /// The status of the receive that was taken for the message.
    pub(crate) status: WcStatus,
    /// The event for the responder's program.
    pub(crate) event: Option<QpEvent>,
}

impl ResponderFault {
    /// Returns the consequences, from IBTA table 60 "Responder error behavior summary" and 11.6.3.
    pub(crate) const fn consequence(self) -> Consequence {
        let (nak, status, event) = match self {
            Self::InvalidRequest => {
                (Some(NakCode::InvalidRequest), WcStatus::RemInvReqErr, Some(QpEvent::ReqErr))
            }
            // The program gets an event of an access violation (IBTA annex A14).
            Self::NoSuchSrq => {
                (Some(NakCode::InvalidRequest), WcStatus::RemInvReqErr, Some(QpEvent::AccessErr))
            }
            Self::ReceiveTooShort => (Some(NakCode::InvalidRequest), WcStatus::LocLenErr, None),
            // Of these requests only an RDMA WRITE with immediate data takes a receive, which
            // completes with a local access error (IBTA 11.6.2).
            Self::RemoteAccess => {
                (Some(NakCode::RemoteAccess), WcStatus::LocAccessErr, Some(QpEvent::AccessErr))
            }
            // Class J: the message has arrived in full, so the requester has done its part. Only the
            // responder's program is notified of the "memory management operation error" (IBTA 11.6.2).
            Self::Invalidate => (None, WcStatus::MwBindErr, None),
            Self::LocalProtection => (Some(NakCode::RemoteOperational), WcStatus::LocProtErr, None),
            Self::Operation => {
                (Some(NakCode::RemoteOperational), WcStatus::LocQpOpErr, Some(QpEvent::Fatal))
            }
        };
        Consequence { nak, status, event }
    }

    /// Returns the fault for a key that the peer requested to invalidate.
    pub(crate) const fn invalidate(fault: AccessFault) -> Self {
        match fault {
            AccessFault::Gone | AccessFault::Busy => Self::Operation,
            _ => Self::Invalidate,
        }
    }

    /// Returns the fault for memory that the peer named.
    pub(crate) const fn remote(fault: AccessFault) -> Self {
        match fault {
            AccessFault::Gone | AccessFault::Busy => Self::Operation,
            _ => Self::RemoteAccess,
        }
    }

    /// Returns the fault for memory that the receive named.
    pub(crate) const fn local(fault: AccessFault) -> Self {
        match fault {
            AccessFault::Gone | AccessFault::Busy => Self::Operation,
            _ => Self::LocalProtection,
        }
    }
}

/// Returns the status of a work request whose own memory is not accessible.
pub(crate) const fn local_status(fault: AccessFault) -> WcStatus {
    match fault {
        AccessFault::Gone | AccessFault::Busy => WcStatus::LocQpOpErr,
        _ => WcStatus::LocProtErr,
    }
}

/// Returns the status of a work request that the responder refused, or none for a NAK that requests a retry.
pub(crate) const fn nak_status(code: NakCode) -> Option<WcStatus> {
    Some(match code {
        NakCode::PsnSequence => return None,
        NakCode::InvalidRequest => WcStatus::RemInvReqErr,
        NakCode::RemoteAccess => WcStatus::RemAccessErr,
        NakCode::RemoteOperational => WcStatus::RemOpErr,
        // The code is of another transport or reserved. A responder may not send it.
        NakCode::InvalidRdRequest | NakCode::Reserved(_) => WcStatus::BadRespErr,
    })
}
