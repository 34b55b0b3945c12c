//! Errors as programs see them.

/// An error number of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Errno {
    /// EIO: the agent is not registered, or the port is gone.
    #[error("no such agent, or the port is gone (EIO)")]
    Io,
    /// EBADF: no such file.
    #[error("no such file (EBADF)")]
    BadF,
    /// EAGAIN: somebody else has it.
    #[error("taken by another file (EAGAIN)")]
    Again,
    /// ENOMEM: a limit is reached.
    #[error("a limit is reached (ENOMEM)")]
    NoMem,
    /// EINVAL: an argument that is not allowed.
    #[error("invalid argument (EINVAL)")]
    Inval,
    /// EPIPE: the port is gone.
    #[error("the port is gone (EPIPE)")]
    Pipe,
}

impl Errno {
    /// The number, positive.
    pub const fn raw(self) -> i32 {
        match self {
            Self::Io => 5,
            Self::BadF => 9,
            Self::Again => 11,
            Self::NoMem => 12,
            Self::Inval => 22,
            Self::Pipe => 32,
        }
    }
}
