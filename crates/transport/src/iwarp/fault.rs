//! The one table of what a peer can do wrong: which Terminate it hears, how the work request at hand
//! ends, and what the program is told asynchronously; and the way back, from a Terminate that is
//! received (RFC 5040, section 7; RFC 5041, section 8.2; RFC 5044, section 8).
//!
//! Events are those of iWARP adapters: a broken access rule is told as such, an operation that cannot be as
//! an invalid request, and a stream that makes no sense as fatal to the queue pair.

use rdmux_wire::WireError;
use rdmux_wire::iwarp::terminate::Fault as Told;

use crate::env::{AccessFault, Drop, QpEvent};
use crate::wr::WcStatus;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The CRC of a frame.
    Crc,
    /// A marker points elsewhere, or a frame is too short for the header of a segment.
    Framing,
    /// The version of DDP, in a tagged segment.
    TaggedVersion,
    /// The same in an untagged one.
    UntaggedVersion,
    /// The version of RDMAP.
    RdmapVersion,
    /// An opcode that there is not, or not in this place: another model, another queue, amid another
    /// message.
    Opcode,
    /// A response that nothing was asked for.
    Unasked,
    /// A queue that there is not.
    Queue,
    /// No receive is posted.
    NoReceive,
    /// More READs and atomics than were agreed on.
    NoRead,
    /// A message that is not the next of its queue.
    Sequence,
    /// A segment that is not the next of its message.
    Offset,
    /// A message that is longer than the receive.
    ReceiveTooShort,
    /// A message of fixed length that is longer.
    TooLong,
    /// A message of fixed length that is shorter, or that makes no sense.
    Malformed,
    /// An atomic on memory that is not aligned.
    Misaligned,
    /// The queue pair lets nobody do this.
    Forbidden,
    /// Memory that a Write names.
    Target(AccessFault),
    /// The range of a Write goes over the end of the address space.
    TargetWraps,
    /// Memory that a READ or an atomic names.
    Source(AccessFault),
    /// The range of a READ goes over the end of the address space.
    SourceWraps,
    /// A key that a Send invalidates.
    Invalidate(AccessFault),
    /// Memory of our own receive.
    Receive(AccessFault),
    /// Memory of our own READ or atomic.
    Sink(AccessFault),
    /// A READ's response names other memory than the request did.
    SinkStag,
    /// A READ's response goes elsewhere in it, or is longer than asked for.
    SinkBounds,
    /// A READ's response ends early, or an atomic's is of another.
    BadResponse,
    /// What is to be sent cannot be.
    Local,
}

/// What follows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// What the peer hears.
    pub(super) tells: Told,
    /// How the receive ends that was taken for the message.
    pub(super) receive: Option<WcStatus>,
    /// How the oldest send work request ends.
    pub(super) send: Option<WcStatus>,
    /// What our program hears.
    pub(super) event: Option<QpEvent>,
    /// What is counted.
    pub(super) counts: Drop,
}

impl Fault {
    /// Its row of the table.
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

    /// Whether the header of the segment at fault can be told, since it was understood that far.
    pub(super) const fn has_segment(self) -> bool {
        !matches!(self, Self::Crc | Self::Framing | Self::Local)
    }

    /// Why a header could not be read.
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

/// Keys, ranges and domains of Writes are DDP's to check, rights are RDMAP's (RFC 5040, section 7.2).
const fn target(fault: AccessFault) -> Told {
    match fault {
        AccessFault::Key => Told::DdpTaggedStag,
        AccessFault::Bounds | AccessFault::Unmapped => Told::DdpTaggedBounds,
        AccessFault::Rights => Told::RdmapAccess,
        AccessFault::Domain => Told::DdpTaggedNotAssociated,
        AccessFault::Gone | AccessFault::Busy => Told::RdmapStreamCatastrophic,
    }
}

/// What a READ names is RDMAP's alone.
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

/// How the READ or atomic that it is about ends, and what the program hears, when the peer tells a fault. A Write or
/// a Send is complete when the stream has taken it, so none is left to be blamed.
pub(super) const fn told(fault: Told) -> (WcStatus, QpEvent) {
    match fault.numbers() {
        (0, 1, _) | (1, 1, _) => (WcStatus::RemAccessErr, QpEvent::AccessErr),
        (0, 2, 5 | 6) | (1, 2, _) => (WcStatus::RemInvReqErr, QpEvent::ReqErr),
        (0, ..) => (WcStatus::RemOpErr, QpEvent::Fatal),
        _ => (WcStatus::WrFlushErr, QpEvent::Fatal),
    }
}
