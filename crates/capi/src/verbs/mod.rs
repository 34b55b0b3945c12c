//! libibverbs.
//!
//! In reading order: `objects` (what C pointers point to), `process` (what there is once, and forks).

pub(crate) mod ext;
pub(crate) mod objects;
pub(crate) mod process;
