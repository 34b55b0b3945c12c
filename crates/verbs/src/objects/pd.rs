//! Protection domains by number.

/// The number of a protection domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PdId(pub(crate) u32);
