//! Why there is no answer.

use std::time::Duration;

use rdmux_wire::WireError;
use rdmux_wire::acm::client::{Op, Status};
use rustix::io::Errno;

/// Why a request has no answer, or that the answer is no.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nobody listens at any of the places, or this host has no way there.
    #[error("there is no ACM service at {0}: start ib_acm, or set RDMUX_ACM_DIR to its directory")]
    NoService(String),
    /// Somebody else listens there.
    #[error(
        "at {at} listens user {uid}, who is neither you, nor root, nor the owner of the directory: not asked"
    )]
    Untrusted {
        /// The socket.
        at: String,
        /// Who listens.
        uid: u32,
    },
    /// The service ended, or closed the connection, twice.
    #[error(
        "the ACM service closed the connection without an answer: it ended, or does not know the request"
    )]
    Closed,
    /// There was no answer in time.
    #[error("the ACM service gave no answer within {0:?}")]
    TimedOut(Duration),
    /// What it sent is no answer.
    #[error("the ACM service sent no proper answer: {0}")]
    Protocol(WireError),
    /// The answer is no.
    #[error("{0}: {1}")]
    Status(Op, Status),
    /// The operating system said no.
    #[error("{0}: {1}")]
    System(&'static str, Errno),
}

impl Error {
    /// The errno of C calls for it (errno(3)).
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoService(_) => Errno::CONNREFUSED.raw_os_error(),
            Self::Untrusted { .. } => Errno::ACCESS.raw_os_error(),
            Self::Closed => Errno::CONNRESET.raw_os_error(),
            Self::TimedOut(_) => Errno::TIMEDOUT.raw_os_error(),
            Self::Protocol(_) => Errno::PROTO.raw_os_error(),
            Self::Status(_, status) => status.errno(),
            Self::System(_, errno) => errno.raw_os_error(),
        }
    }
}
