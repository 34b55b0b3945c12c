//! The hub's objects that the users of a host share: how many one user may have.

use std::any::Any;
use std::fmt::Debug;

use super::numbers;

/// A kind of object that the hub has for the processes of all users.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shared {
    /// XRC shared receive queues.
    Srq,
    /// XRC receive queue pairs. Each counts for the user of the process that created it, until it is destroyed.
    Target,
    /// Memory regions that the hub mirrors.
    Region,
}

impl Shared {
    /// Returns how many objects there may be for all users together.
    pub const fn total(self) -> usize {
        match self {
            Self::Srq | Self::Target => numbers::MOST,
            // One user may have half: as many as a process can register.
            Self::Region => 1 << 21,
        }
    }

    /// Returns the objects' name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Srq => "XRC shared receive queues",
            Self::Target => "XRC receive queue pairs",
            Self::Region => "memory regions for XRC",
        }
    }
}

/// A user's share of the hub's objects, which is returned when it is dropped.
pub type Share = Box<dyn Any + Send + Sync>;

/// The rule by which users share the hub's objects.
pub trait Shares: Debug + Send + Sync {
    /// Counts an object for a user, until the returned value is dropped.
    ///
    /// # Errors
    ///
    /// The reason, if the user may not have another one.
    fn take(&self, user: u32, of: Shared) -> Result<Share, String>;
}
