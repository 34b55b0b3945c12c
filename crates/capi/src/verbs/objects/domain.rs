//! The state of parent domains.

use super::users::Use;

/// State of a protection domain beyond a plain one.
#[derive(Debug, Default)]
pub(crate) struct PdExt {
    /// The domain that a parent domain was created from.
    _base: Option<Use>,
    /// The thread domain of a parent domain.
    td: Option<Use>,
}

impl PdExt {
    /// Returns the state of a parent domain that was created from `base`, with a thread domain or without.
    pub(crate) fn parent(base: Use, td: Option<Use>) -> Self {
        Self { _base: Some(base), td }
    }

    /// Returns whether objects created in it are used by one thread at a time.
    pub(crate) fn single_threaded(&self) -> bool {
        self.td.is_some()
    }
}
