//! The one place where an internal fault becomes a syndrome on the wire, a completion status and
//! an asynchronous event.

use rdmux_wire::NakCode;

use crate::env::{AccessFault, QpEvent};
use crate::wr::WcStatus;

/// Why a responder cannot carry out a request, so that the queue pair fails (IBTA 9.9.3, class C, class A
/// for its own memory, and class J for a key that is not to be invalidated).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponderFault {
    /// An operation out of sequence, of a wrong length, misaligned, or one that this queue pair
    /// does not serve.
    InvalidRequest,
    /// The shared receive queue that an XRC packet names is not there, or not in this domain.
    NoSuchSrq,
    /// The message is longer than the receive.
    ReceiveTooShort,
    /// Key, range or right of remote memory did not fit.
    RemoteAccess,
    /// The key that a SEND is to invalidate cannot be.
    Invalidate,
    /// The receive's own memory may not be written.
    LocalProtection,
    /// The memory is not there any more.
    Operation,
}

/// What follows from a [`ResponderFault`].
pub(crate) struct Consequence {
    /// What the requester hears; if nothing, its request is acknowledged.
    pub(crate) nak: Option<NakCode>,
    /// How the receive that was taken for the message ends.
    pub(crate) status: WcStatus,
    /// What the responder's program hears.
    pub(crate) event: Option<QpEvent>,
}

impl ResponderFault {
    /// IBTA table 60 "Responder error behavior summary" and 11.6.3.
    pub(crate) const fn consequence(self) -> Consequence {
        let (nak, status, event) = match self {
            Self::InvalidRequest => {
                (Some(NakCode::InvalidRequest), WcStatus::RemInvReqErr, Some(QpEvent::ReqErr))
            }
            // The program hears of it as of a broken access rule (IBTA annex A14).
            Self::NoSuchSrq => {
                (Some(NakCode::InvalidRequest), WcStatus::RemInvReqErr, Some(QpEvent::AccessErr))
            }
            Self::ReceiveTooShort => (Some(NakCode::InvalidRequest), WcStatus::LocLenErr, None),
            // Of these only an RDMA WRITE with immediate data takes a receive, which ends in a local access
            // error (IBTA 11.6.2).
            Self::RemoteAccess => {
                (Some(NakCode::RemoteAccess), WcStatus::LocAccessErr, Some(QpEvent::AccessErr))
            }
            // Class J: the message has arrived whole, so the requester has done its part. A "memory
            // management operation error" (IBTA 11.6.2) is told to the responder's program only.
            Self::Invalidate => (None, WcStatus::MwBindErr, None),
            Self::LocalProtection => (Some(NakCode::RemoteOperational), WcStatus::LocProtErr, None),
            Self::Operation => {
                (Some(NakCode::RemoteOperational), WcStatus::LocQpOpErr, Some(QpEvent::Fatal))
            }
        };
        Consequence { nak, status, event }
    }

    /// A key that the peer told us to invalidate.
    pub(crate) const fn invalidate(fault: AccessFault) -> Self {
        match fault {
            AccessFault::Gone | AccessFault::Busy => Self::Operation,
            _ => Self::Invalidate,
        }
    }

    /// A fault of memory that the peer named.
    pub(crate) const fn remote(fault: AccessFault) -> Self {
        match fault {
            AccessFault::Gone | AccessFault::Busy => Self::Operation,
            _ => Self::RemoteAccess,
        }
    }

    /// A fault of memory that the receive named.
    pub(crate) const fn local(fault: AccessFault) -> Self {
        match fault {
            AccessFault::Gone | AccessFault::Busy => Self::Operation,
            _ => Self::LocalProtection,
        }
    }
}

/// How a work request ends whose own memory may not be used.
pub(crate) const fn local_status(fault: AccessFault) -> WcStatus {
    match fault {
        AccessFault::Gone | AccessFault::Busy => WcStatus::LocQpOpErr,
        _ => WcStatus::LocProtErr,
    }
}

/// How a work request ends that the responder refused; none for a NAK that asks for a retry.
pub(crate) const fn nak_status(code: NakCode) -> Option<WcStatus> {
    Some(match code {
        NakCode::PsnSequence => return None,
        NakCode::InvalidRequest => WcStatus::RemInvReqErr,
        NakCode::RemoteAccess => WcStatus::RemAccessErr,
        NakCode::RemoteOperational => WcStatus::RemOpErr,
        // Not for this transport, or reserved: not an answer that a responder may give.
        NakCode::InvalidRdRequest | NakCode::Reserved(_) => WcStatus::BadRespErr,
    })
}
