//! The table of the peer's faults: for each the Terminate to send, the status of the current work
//! request, and the asynchronous event for the program. Also the reverse mapping, from a received
//! Terminate (RFC 5040, section 7; RFC 5041, section 8.2; RFC 5044, section 8).
//!
//! The events are those of iWARP adapters: an access violation is reported as such, an impossible
//! operation as an invalid request, and a malformed stream as fatal to the queue pair.

use rdmux_wire::WireError;
use rdmux_wire::iwarp::terminate::Fault as Told;

use crate::env::{AccessFault, Drop, QpEvent};
use crate::wr::WcStatus;

/// A fault, named by what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The CRC of a frame is wrong.
    Crc,
    /// A marker has a wrong pointer, or a frame is too short for a segment header.
    Framing,
    /// The DDP version of a tagged segment is wrong.
    TaggedVersion,
    /// The DDP version of an untagged segment is wrong.
    UntaggedVersion,
    /// The RDMAP version is wrong.
    RdmapVersion,
    /// An opcode is unknown, or not allowed at this place: in this model, on this queue, or within another message.
    Opcode,
    /// A response arrived without a request.
    Unasked,
    /// The queue does not exist.
    Queue,
    /// No receive is posted.
    NoReceive,
    /// The peer has more READs and atomics outstanding than agreed.
    NoRead,
    /// A message is not the next of its queue.
    Sequence,
    /// A segment is not the next of its message.
    Offset,
    /// A message is longer than the receive.
    ReceiveTooShort,
    /// A message of fixed length is longer.
    TooLong,
    /// A message of fixed length is shorter, or its contents are invalid.
    Malformed,
    /// An atomic names memory that is not aligned.
    Misaligned,
    /// The queue pair does not allow this operation.
    Forbidden,
    /// The memory that a Write names is not accessible.
    Target(AccessFault),
    /// The range of a Write exceeds the address space.
    TargetWraps,
    /// The memory that a READ or an atomic names is not accessible.
    Source(AccessFault),
    /// The range of a READ exceeds the address space.
    SourceWraps,
    /// The key that a Send requests to invalidate is not valid for that.
    Invalidate(AccessFault),
    /// The memory of a local receive is not accessible.
    Receive(AccessFault),
    /// The memory of a local READ or atomic is not accessible.
    Sink(AccessFault),
    /// A READ response names another STag than the request did.
    SinkStag,
    /// A READ response has a wrong offset, or is longer than requested.
    SinkBounds,
    /// A READ response ends early, or an atomic response belongs to another request.
    BadResponse,
    /// The data to send is not accessible.
    Local,
}

/// The consequences of a fault.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// The error that the Terminate reports to the peer.
    pub(super) tells: Told,
    /// The status of the receive that was taken for the message.
    pub(super) receive: Option<WcStatus>,
    /// The status of the oldest send work request.
    pub(super) send: Option<WcStatus>,
    /// The event for the local program.
    pub(super) event: Option<QpEvent>,
    /// The counter to increment.
    pub(super) counts: Drop,
}

impl Fault {
    /// Returns the fault's row of the table.
    pub(super) fn row(self) -> Row {
        use QpEvent::{AccessErr, Fatal, ReqErr};
        let plain = |tells, event, counts| Row { tells, receive: None, send: None, event, counts };
        match self {
            Self::Crc => plain(Told::MpaCrc, Some(Fatal), Drop::Length),
            Self::Framing => plain(Told::MpaMarker, Some(Fatal), Drop::Length),
            Self::TaggedVersion => plain(Told::DdpTaggedVersion, Some(Fatal), Drop::Opcode),
            Self::UntaggedVersion => plain(Told::DdpUntaggedVersion, Some(Fatal), Drop::Opcode),
            Self::RdmapVersion => plain(Told::RdmapVersion, Some(Fatal), Drop::Opcode),
            Self::Opcode => plain(Told::RdmapOpcode, Some(ReqErr), Drop::Opcode),
            Self::Unasked => plain(Told::RdmapOpcode, Some(ReqErr), Drop::Stale),
            Self::Queue => plain(Told::DdpUntaggedQueue, Some(Fatal), Drop::Opcode),
            Self::NoReceive => plain(Told::DdpUntaggedNoBuffer, Some(Fatal), Drop::NoReceive),
            Self::NoRead => plain(Told::DdpUntaggedNoBuffer, Some(ReqErr), Drop::NoReceive),
            Self::Sequence => plain(Told::DdpUntaggedMsn, Some(Fatal), Drop::Sequence),
            Self::Offset => plain(Told::DdpUntaggedOffset, Some(Fatal), Drop::Sequence),
            Self::ReceiveTooShort => Row {
                receive: Some(WcStatus::LocLenErr),
                ..plain(Told::DdpUntaggedTooLong, None, Drop::Length)
            },
            Self::TooLong => plain(Told::DdpUntaggedTooLong, Some(ReqErr), Drop::Length),
            Self::Malformed => plain(Told::RdmapOperation, Some(ReqErr), Drop::Length),
            Self::Misaligned => plain(Told::RdmapOperation, Some(ReqErr), Drop::Memory),
            Self::Forbidden => plain(Told::RdmapAccess, Some(AccessErr), Drop::Memory),
            Self::Target(fault) => plain(target(fault), Some(access_event(fault)), Drop::Memory),
            Self::TargetWraps => plain(Told::DdpTaggedWrap, Some(AccessErr), Drop::Memory),
            Self::Source(fault) => plain(source(fault), Some(access_event(fault)), Drop::Memory),
            Self::SourceWraps => plain(Told::RdmapWrap, Some(AccessErr), Drop::Memory),
            Self::Invalidate(fault) => Row {
                receive: Some(WcStatus::MwBindErr),
                ..plain(invalidate(fault), Some(AccessErr), Drop::Memory)
            },
            Self::Receive(fault) => Row {
                receive: Some(crate::fault::local_status(fault)),
                ..plain(Told::RdmapCatastrophic, None, Drop::Memory)
            },
            Self::Sink(fault) => Row {
                send: Some(crate::fault::local_status(fault)),
                ..plain(Told::RdmapCatastrophic, None, Drop::Memory)
            },
            Self::SinkStag => Row {
                send: Some(WcStatus::BadRespErr),
                ..plain(Told::DdpTaggedStag, None, Drop::Memory)
            },
            Self::SinkBounds => Row {
                send: Some(WcStatus::BadRespErr),
                ..plain(Told::DdpTaggedBounds, None, Drop::Memory)
            },
            Self::BadResponse => Row {
                send: Some(WcStatus::BadRespErr),
                ..plain(Told::RdmapStreamCatastrophic, None, Drop::Sequence)
            },
            Self::Local => plain(Told::RdmapCatastrophic, None, Drop::Memory),
        }
    }

    /// Returns whether the Terminate can include the header of the faulty segment, because it was parsed.
    pub(super) const fn has_segment(self) -> bool {
        !matches!(self, Self::Crc | Self::Framing | Self::Local)
    }

    /// Returns the fault that corresponds to a header's parse error.
    pub(super) const fn of_header(error: &WireError) -> Self {
        match error {
            WireError::DdpVersion { tagged: true, .. } => Self::TaggedVersion,
            WireError::DdpVersion { tagged: false, .. } => Self::UntaggedVersion,
            WireError::RdmapVersion(_) => Self::RdmapVersion,
            WireError::Crc { .. } => Self::Crc,
            WireError::Short { .. } | WireError::Marker { .. } => Self::Framing,
            _ => Self::Opcode,
        }
    }
}

const fn access_event(fault: AccessFault) -> QpEvent {
    match fault {
        AccessFault::Gone | AccessFault::Busy => QpEvent::Fatal,
        _ => QpEvent::AccessErr,
    }
}

/// Returns the error for memory that a Write names. DDP checks keys, ranges and domains, RDMAP
/// checks rights (RFC 5040, section 7.2).
const fn target(fault: AccessFault) -> Told {
    match fault {
        AccessFault::Key => Told::DdpTaggedStag,
        AccessFault::Bounds | AccessFault::Unmapped => Told::DdpTaggedBounds,
        AccessFault::Rights => Told::RdmapAccess,
        AccessFault::Domain => Told::DdpTaggedNotAssociated,
        AccessFault::Gone | AccessFault::Busy => Told::RdmapStreamCatastrophic,
    }
}

/// Returns the error for memory that a READ names, which only RDMAP checks.
const fn source(fault: AccessFault) -> Told {
    match fault {
        AccessFault::Key => Told::RdmapStag,
        AccessFault::Bounds | AccessFault::Unmapped => Told::RdmapBounds,
        AccessFault::Rights => Told::RdmapAccess,
        AccessFault::Domain => Told::RdmapNotAssociated,
        AccessFault::Gone | AccessFault::Busy => Told::RdmapStreamCatastrophic,
    }
}

const fn invalidate(fault: AccessFault) -> Told {
    match fault {
        AccessFault::Rights | AccessFault::Domain => Told::RdmapProtectionInvalidate,
        _ => Told::RdmapInvalidate,
    }
}

/// Returns the status of the READ or atomic that a Terminate refers to, and the event for the program.
/// A Write or a Send is complete when the stream has accepted it, so none of them can still fail.
pub(super) const fn told(fault: Told) -> (WcStatus, QpEvent) {
    match fault.numbers() {
        (0, 1, _) | (1, 1, _) => (WcStatus::RemAccessErr, QpEvent::AccessErr),
        (0, 2, 5 | 6) | (1, 2, _) => (WcStatus::RemInvReqErr, QpEvent::ReqErr),
        (0, ..) => (WcStatus::RemOpErr, QpEvent::Fatal),
        _ => (WcStatus::WrFlushErr, QpEvent::Fatal),
    }
}
