//! The engine's part of XRC: `side` handles the hub's records in a process (`objects::xrc::record`), `member` and `members` are
//! the processes as the hub sees them, and `place` accesses their memory.

pub(crate) mod member;
pub(crate) mod members;
pub(crate) mod place;
pub(crate) mod side;
