//! What a parent domain has beyond a plain one.

use super::users::Use;

/// State of a protection domain beyond the classic one.
#[derive(Debug, Default)]
pub(crate) struct PdExt {
    /// The domain that a parent domain was made from.
    _base: Option<Use>,
    /// The thread domain of a parent domain.
    td: Option<Use>,
}

impl PdExt {
    /// Of a parent domain that was made from `base`, with a thread domain or without.
    pub(crate) fn parent(base: Use, td: Option<Use>) -> Self {
        Self { _base: Some(base), td }
    }

    /// Whether one thread at a time uses what is created in it.
    pub(crate) fn single_threaded(&self) -> bool {
        self.td.is_some()
    }
}
