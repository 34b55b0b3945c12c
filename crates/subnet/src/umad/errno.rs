//! The errors that programs see.

/// A Linux error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Errno {
    /// EPERM: the program's user may not manage the subnet. The driver returns it; the device itself knows no users.
    #[error("only the owner of the subnet and root may manage it (EPERM)")]
    Perm,
    /// EIO: the agent is not registered, or the port is gone.
    #[error("no such agent, or the port is gone (EIO)")]
    Io,
    /// EBADF: no such file.
    #[error("no such file (EBADF)")]
    BadF,
    /// EAGAIN: another program has it open.
    #[error("in use by another file (EAGAIN)")]
    Again,
    /// ENOMEM: a limit is exceeded.
    #[error("a limit is reached (ENOMEM)")]
    NoMem,
    /// EINVAL: an invalid argument.
    #[error("invalid argument (EINVAL)")]
    Inval,
    /// EPIPE: the port is gone.
    #[error("the port is gone (EPIPE)")]
    Pipe,
}

impl Errno {
    /// Returns the number, positive.
    pub const fn raw(self) -> i32 {
        match self {
            Self::Perm => 1,
            Self::Io => 5,
            Self::BadF => 9,
            Self::Again => 11,
            Self::NoMem => 12,
            Self::Inval => 22,
            Self::Pipe => 32,
        }
    }
}
