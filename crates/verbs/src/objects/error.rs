//! What can go wrong with verbs, and the `errno` that the C interface gives for it.

use rdmux_wire::{Gid, Qpn};

use crate::objects::control::ControlError;

/// Why a verb failed: which object, what was asked, and what stood against it.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// An argument makes no sense.
    #[error("cannot {what}: {why}")]
    Invalid {
        /// What was asked, as in "create a queue pair".
        what: &'static str,
        /// Why it cannot be.
        why: String,
    },
    /// A table or queue is full, or a limit of the device reached.
    #[error("cannot {what}: {why}")]
    NoMemory {
        /// What was asked.
        what: &'static str,
        /// Which limit.
        why: String,
    },
    /// Memory is not there, or not for this.
    #[error("cannot {what}: {why}")]
    Memory {
        /// What was asked.
        what: &'static str,
        /// Which memory, and why.
        why: String,
        /// The number that the C interface gives.
        errno: i32,
    },
    /// The device has no such thing.
    #[error("cannot {what}: {why}")]
    Unsupported {
        /// What was asked.
        what: &'static str,
        /// Why there is none.
        why: String,
    },
    /// Only a privileged program may do that.
    #[error("cannot {what}: {why}")]
    NotPermitted {
        /// What was asked.
        what: &'static str,
        /// Why it is privileged.
        why: String,
    },
    /// Something still uses the object.
    #[error("cannot {what}: {why}")]
    Busy {
        /// What was asked.
        what: &'static str,
        /// Who uses it.
        why: String,
    },
    /// The queue pair is attached to this multicast group already.
    #[error("cannot attach to a multicast group: already attached to {0}")]
    Attached(Gid),
    /// The queue pair does not take this work request.
    #[error("queue pair {qpn}: {error}")]
    Post {
        /// The queue pair.
        qpn: Qpn,
        /// Why.
        error: rdmux_transport::error::PostError,
    },
    /// The queue pair does not make this transition.
    #[error("queue pair {qpn}: {error}")]
    Modify {
        /// The queue pair.
        qpn: Qpn,
        /// Why.
        error: rdmux_transport::error::ModifyError,
    },
    /// The host service refused, or is gone.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The operating system refused.
    #[error("cannot {what}: {error}")]
    Os {
        /// What was asked.
        what: &'static str,
        /// Its answer.
        error: std::io::Error,
    },
}

impl VerbsError {
    pub(crate) fn invalid(what: &'static str, why: impl Into<String>) -> Self {
        Self::Invalid { what, why: why.into() }
    }
    pub(crate) fn no_memory(what: &'static str, why: impl Into<String>) -> Self {
        Self::NoMemory { what, why: why.into() }
    }
    pub(crate) fn unsupported(what: &'static str, why: impl Into<String>) -> Self {
        Self::Unsupported { what, why: why.into() }
    }
    pub(crate) fn memory(what: &'static str, why: impl Into<String>, errno: i32) -> Self {
        Self::Memory { what, why: why.into(), errno }
    }
    pub(crate) fn still_bound(what: &'static str, n: u32) -> Self {
        Self::Busy { what, why: format!("{n} memory windows are bound to it") }
    }
    pub(crate) fn os(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::Os { what, error }
    }

    /// The number that the C interface gives.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Invalid { .. } | Self::Attached(_) | Self::Modify { .. } => libc::EINVAL,
            Self::NoMemory { .. } => libc::ENOMEM,
            Self::Memory { errno, .. } => *errno,
            Self::Unsupported { .. } => libc::EOPNOTSUPP,
            Self::NotPermitted { .. } => libc::EPERM,
            Self::Busy { .. } => libc::EBUSY,
            Self::Post { error, .. } => post_errno(error),
            Self::Control(ControlError::Gone) => libc::EIO,
            Self::Control(ControlError::Refused { errno, .. }) => *errno,
            Self::Os { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// A full queue is ENOMEM, anything else a mistake of the caller's.
fn post_errno(error: &rdmux_transport::error::PostError) -> i32 {
    if matches!(error, rdmux_transport::error::PostError::Full(_)) {
        libc::ENOMEM
    } else {
        libc::EINVAL
    }
}
