//! The reasons why a request has no answer.

use std::time::Duration;

use rdmux_wire::WireError;
use rdmux_wire::acm::client::{Op, Status};
use rustix::io::Errno;

/// The reason why a request failed or was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No service listens at any of the places, or this host has no route to it.
    #[error("there is no ACM service at {0}: start ib_acm, or set RDMUX_ACM_DIR to its directory")]
    NoService(String),
    /// An untrusted user's process listens there.
    #[error(
        "the service at {at} runs as user {uid}, who is neither you, nor root, nor the owner of the \
         directory: not used"
    )]
    Untrusted {
        /// The socket.
        at: String,
        /// The user.
        uid: u32,
    },
    /// The service exited, or closed the connection, twice.
    #[error(
        "the ACM service closed the connection without an answer: it exited, or does not support the request"
    )]
    Closed,
    /// No answer arrived in time.
    #[error("the ACM service gave no answer within {0:?}")]
    TimedOut(Duration),
    /// The service sent an invalid answer.
    #[error("the ACM service sent an invalid answer: {0}")]
    Protocol(WireError),
    /// The service refused the request.
    #[error("{0}: {1}")]
    Status(Op, Status),
    /// A system call failed.
    #[error("{0}: {1}")]
    System(&'static str, Errno),
}

impl Error {
    /// Returns the corresponding errno of C (errno(3)).
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
