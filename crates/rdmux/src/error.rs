//! Errors: the object, the operation, the cause, and a remedy.

use std::fmt;
use std::io;

use rdmux_fabric::FabricError;
use rdmux_host::HostError;
use rdmux_host::resolver::ResolveError;
use rdmux_transport::PostError;
use rdmux_transport::wr::WcStatus;
use rdmux_verbs::{VerbsError, control::ControlError};

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error: the object, the operation on it, and the cause.
///
/// Its text reads as one sentence and ends with a remedy, if one is known:
///
/// ```
/// use rdmux::{Cause, Error};
/// let e = Error::new("connection to 127.77.0.9:7471", "connect", Cause::Rejected { reason: 8, sidr: false, private_data: Vec::new() });
/// assert_eq!(
///     e.to_string(),
///     "connection to 127.77.0.9:7471: cannot connect: the peer rejected it: \
///      invalid service ID (reason 8); check that a program listens on that address and port"
/// );
/// ```
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    object: String,
    asked: &'static str,
    cause: Cause,
}

impl Error {
    /// Returns an error of `object` in the operation `asked` (a verb phrase).
    pub fn new(object: impl Into<String>, asked: &'static str, cause: Cause) -> Self {
        Self(Box::new(Inner { object: object.into(), asked, cause }))
    }
    /// Returns the name of the object, such as `queue pair 0x001002` or `host b`.
    pub fn object(&self) -> &str {
        &self.0.object
    }
    /// Returns the operation, as a verb phrase.
    pub fn asked(&self) -> &'static str {
        self.0.asked
    }
    /// Returns the cause.
    pub fn cause(&self) -> &Cause {
        &self.0.cause
    }
    /// Returns whether the caller's timeout expired.
    pub fn is_timeout(&self) -> bool {
        matches!(self.cause(), Cause::TimedOut)
    }
    /// Returns whether the peer closed the connection.
    pub fn is_disconnected(&self) -> bool {
        matches!(self.cause(), Cause::Disconnected)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { object, asked, cause } = &*self.0;
        write!(f, "{object}: cannot {asked}: {cause}")?;
        match cause.advice() {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

// The text includes all causes. A source would repeat them where chains are printed.
impl std::error::Error for Error {}

/// The cause of an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The host service cannot be reached or started, or it refused. The error contains the reason and a remedy.
    #[error("{}", host_error(.0))]
    Host(HostError),
    /// A fabric cannot be reached, or it refused. The error contains the reason and a remedy.
    #[error("{0}")]
    Fabric(FabricError),
    /// The host service has exited or has closed this process's connection, and the device is gone with it.
    #[error("the host service is gone, or has closed this process's connection")]
    Gone,
    /// A limit of the device is reached, or the object is still in use.
    #[error("{0}")]
    Resources(String),
    /// The operating system failed the operation, for the reason in the error's kind.
    #[error("{0}")]
    Os(io::Error),
    /// An argument is invalid here.
    #[error("{0}")]
    Invalid(String),
    /// A queue is full.
    #[error("its queue is full ({0} entries)")]
    Full(u32),
    /// The caller's timeout expired.
    #[error("no answer before the timeout")]
    TimedOut,
    /// The peer's host rejected the connection, or no program receives datagrams there.
    #[error("the peer rejected it: {}", rejection(*.reason, *.sidr))]
    Rejected {
        /// The REJ message's reason (IBTA 12.6.7.2), or for datagrams the SIDR status. Over iWARP
        /// there is none: 0.
        reason: u16,
        /// Whether `reason` is a SIDR status.
        sidr: bool,
        /// The private data of the peer's program, if the program rejected it.
        private_data: Vec<u8>,
    },
    /// The peer's host does not answer.
    #[error("the peer's host does not answer ({0})")]
    Unreachable(io::Error),
    /// A name is unknown or does not resolve to a usable address.
    #[error("{0}")]
    Unresolved(ResolveError),
    /// The ACM service is not running or answered with an error. The error contains a remedy.
    #[error("{0}")]
    Acm(rdmux_acm_client::Error),
    /// The connection is closed.
    #[error("the connection is closed")]
    Disconnected,
    /// A work request failed.
    #[error("{}", wc_status(*.0))]
    Completion(WcStatus),
    /// A message is longer than the receiver's or the sender's buffer.
    #[error("the message has {len} bytes, the maximum is {max}")]
    TooLong {
        /// The message's length.
        len: usize,
        /// The longest message that fits.
        max: usize,
    },
}

impl Cause {
    /// Returns a remedy for the error, if any.
    pub fn advice(&self) -> Option<&'static str> {
        Some(match self {
            Self::Gone => {
                "open the device again, which starts a new service if necessary; the service \
                 disconnects a process that leaves more than 16384 messages of events or 4096 \
                 notifications of a device unread, and logs that"
            }
            Self::Host(_) | Self::Os(_) => match self.kind() {
                io::ErrorKind::AddrInUse => IN_USE,
                // The errno of rdma_cm has no more details.
                io::ErrorKind::AddrNotAvailable if self.is_port_in_use() => IN_USE,
                io::ErrorKind::AddrNotAvailable => {
                    "the address must belong to this host (`rdmux devices`), and no wildcard \
                     address may use its port (`rdmux host status`)"
                }
                _ => return None,
            },
            Self::Full(_) => "poll completions first, or create a larger queue",
            Self::Rejected { reason: 0, private_data, .. } if !private_data.is_empty() => {
                return None;
            }
            Self::Rejected { reason: 0 | 8, sidr: false, .. }
            | Self::Rejected { reason: 1, sidr: true, .. } => {
                "check that a program listens on that address and port"
            }
            Self::Unreachable(_) => "check the address, and that the peer's host is up",
            Self::Completion(status) => return completion_advice(*status),
            Self::TooLong { .. } => "send it in parts, or make the buffers larger on both sides",
            _ => return None,
        })
    }

    /// Returns whether the service refused a port because another id has it, on all addresses or on one of them.
    fn is_port_in_use(&self) -> bool {
        matches!(self, Self::Host(HostError::Refused { why, .. }) if why.contains("in use in this port space"))
    }

    /// Returns the standard library's kind for this error.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Host(e) => io::Error::from_raw_os_error(e.errno()).kind(),
            Self::Fabric(e) => io::Error::from_raw_os_error(e.errno()).kind(),
            Self::Os(e) | Self::Unreachable(e) => e.kind(),
            Self::Unresolved(e) => io::Error::from_raw_os_error(e.errno()).kind(),
            Self::Acm(e) => io::Error::from_raw_os_error(e.errno()).kind(),
            Self::Gone => io::ErrorKind::NotConnected,
            Self::Invalid(_) | Self::TooLong { .. } => io::ErrorKind::InvalidInput,
            Self::TimedOut => io::ErrorKind::TimedOut,
            Self::Rejected { .. } => io::ErrorKind::ConnectionRefused,
            Self::Disconnected => io::ErrorKind::ConnectionReset,
            Self::Resources(_) | Self::Full(_) => io::ErrorKind::OutOfMemory,
            Self::Completion(_) => io::ErrorKind::Other,
        }
    }
}

/// The remedy for a port that is in use.
const IN_USE: &str = "choose another port, or find its owner with `rdmux host status`";

/// Returns the text of a host error without the operation, which the error already names.
fn host_error(e: &HostError) -> String {
    match e {
        HostError::Refused { why, .. } => why.clone(),
        e => e.to_string(),
    }
}

/// Returns the text of a REJ reason (IBTA table 108).
pub fn reject_reason(reason: u16) -> &'static str {
    match reason {
        0 => "connection refused or reset",
        1 => "no queue pair available",
        2 => "no EE context available",
        3 => "no resources available",
        4 => "timeout",
        5 => "unsupported request",
        6 => "invalid communication ID",
        7 => "invalid communication instance",
        8 => "invalid service ID",
        9 => "invalid transport service type",
        10 => "stale connection",
        11 => "RDC does not exist",
        12 => "invalid primary remote GID",
        13 => "invalid primary remote LID",
        14 => "invalid service level",
        15 => "invalid traffic class",
        16 => "invalid hop limit",
        17 => "invalid packet rate",
        18..=23 => "invalid alternate path",
        24 => "CM redirect",
        25 => "port redirect",
        26 => "invalid path MTU",
        27 => "insufficient responder resources",
        28 => "the program refused",
        29 => "invalid RNR retry count",
        30 => "duplicate communication ID",
        31 => "invalid class version",
        32 | 33 => "invalid flow label",
        _ => "unknown reason",
    }
}

/// Returns the text of a SIDR status (IBTA 12.11.2), by which the host of a datagram peer refuses to resolve it.
pub fn sidr_status(status: u16) -> &'static str {
    match status {
        0 => "valid",
        1 => "no such service",
        2 => "the program refused",
        3 => "no queue pair available",
        4 => "redirect",
        5 => "unsupported version",
        _ => "unknown status",
    }
}

fn rejection(reason: u16, sidr: bool) -> String {
    if sidr {
        format!("{} (SIDR status {reason})", sidr_status(reason))
    } else {
        format!("{} (reason {reason})", reject_reason(reason))
    }
}

/// Returns the text of a completion status, as in the manual pages.
pub fn wc_status(status: WcStatus) -> &'static str {
    match status {
        WcStatus::Success => "success",
        WcStatus::LocLenErr => "local length error: the message is longer than the buffer",
        WcStatus::LocQpOpErr => "local queue pair operation error",
        WcStatus::LocProtErr => {
            "local protection error: the memory is not registered for this access"
        }
        WcStatus::WrFlushErr => "flushed: the queue pair went into the error state first",
        WcStatus::MwBindErr => "a memory window could not be bound",
        WcStatus::BadRespErr => "bad response from the peer",
        WcStatus::LocAccessErr => "local access error",
        WcStatus::RemInvReqErr => "the peer refused the request as invalid",
        WcStatus::RemAccessErr => "the peer refused access to its memory",
        WcStatus::RemOpErr => "the peer failed to carry out the request",
        WcStatus::RetryExcErr => "no answer from the peer after all retries",
        WcStatus::RnrRetryExcErr => "the peer had no receive posted, after all retries",
        WcStatus::RemAbortErr => "the operation was aborted by the peer",
        WcStatus::GeneralErr => "general error",
    }
}

fn completion_advice(status: WcStatus) -> Option<&'static str> {
    Some(match status {
        WcStatus::LocLenErr => "post larger receive buffers",
        WcStatus::LocProtErr => "keep the region registered until its work is complete",
        WcStatus::RemAccessErr => "check the remote key, range and access flags",
        WcStatus::RetryExcErr => "check that the peer is alive",
        WcStatus::RnrRetryExcErr => "the peer must post receives before messages arrive",
        _ => return None,
    })
}

/// Adds the object and the operation to an error of a lower layer.
pub(crate) trait Attempt<T> {
    /// Converts a failure to an error of `object` in the operation `asked`.
    fn on(self, object: impl fmt::Display, asked: &'static str) -> Result<T>;
}

impl<T, E: Into<Cause>> Attempt<T> for std::result::Result<T, E> {
    fn on(self, object: impl fmt::Display, asked: &'static str) -> Result<T> {
        self.map_err(|e| Error::new(object.to_string(), asked, e.into()))
    }
}

impl From<io::Error> for Cause {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::TimedOut => Self::TimedOut,
            _ => Self::Os(e),
        }
    }
}

impl From<rdmux_acm_client::Error> for Cause {
    fn from(e: rdmux_acm_client::Error) -> Self {
        match e {
            rdmux_acm_client::Error::TimedOut(_) => Self::TimedOut,
            e => Self::Acm(e),
        }
    }
}

impl From<HostError> for Cause {
    fn from(e: HostError) -> Self {
        match e {
            HostError::ServiceGone { .. } => Self::Gone,
            e => Self::Host(e),
        }
    }
}

impl From<FabricError> for Cause {
    fn from(e: FabricError) -> Self {
        Self::Fabric(e)
    }
}

impl From<VerbsError> for Cause {
    fn from(e: VerbsError) -> Self {
        match e {
            VerbsError::Invalid { why, .. }
            | VerbsError::Unsupported { why, .. }
            | VerbsError::Memory { why, .. } => Self::Invalid(why),
            VerbsError::Attached(mgid) => Self::Invalid(format!("already attached to {mgid}")),
            VerbsError::NotPermitted { why, .. } => {
                Self::Os(io::Error::new(io::ErrorKind::PermissionDenied, why))
            }
            VerbsError::NoMemory { why, .. } | VerbsError::Busy { why, .. } => Self::Resources(why),
            VerbsError::Post { error: PostError::Full(entries), .. } => Self::Full(entries),
            VerbsError::Post { error, .. } => Self::Invalid(error.to_string()),
            VerbsError::Modify { error, .. } => Self::Invalid(error.to_string()),
            VerbsError::Control(ControlError::Gone) => Self::Gone,
            VerbsError::Control(ControlError::Refused { why, errno, .. })
                if io::Error::from_raw_os_error(errno).kind() == io::ErrorKind::InvalidInput =>
            {
                Self::Invalid(why)
            }
            VerbsError::Control(e @ ControlError::Refused { .. }) => Self::Resources(e.to_string()),
            VerbsError::Os { error, .. } => error.into(),
        }
    }
}

impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        Self::new(e.cause().kind(), e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_object_request_cause_and_advice() {
        let e = Error::new("queue pair 0x001002", "post a send", Cause::Full(16));
        assert_eq!(
            e.to_string(),
            "queue pair 0x001002: cannot post a send: its queue is full (16 entries); \
             poll completions first, or create a larger queue"
        );
    }

    #[test]
    fn service_gone_error_mentions_the_unread_event_limit() {
        let text = Error::new("device", "read events", Cause::Gone).to_string();
        assert!(text.contains("closed this process's connection"), "{text}");
        assert!(text.contains("16384") && text.contains("log"), "{text}");
    }

    #[test]
    fn an_io_error_keeps_its_kind_through_both_conversions() {
        let there: Result<()> =
            Err(io::Error::from(io::ErrorKind::AddrInUse)).on("id 3", "bind 127.0.0.1:7471");
        let back: io::Error = there.unwrap_err().into();
        assert_eq!(back.kind(), io::ErrorKind::AddrInUse);
        assert!(back.to_string().starts_with("id 3: cannot bind 127.0.0.1:7471"));
    }
}
