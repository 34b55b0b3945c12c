//! XRC as the engine drives it: `side` is what a process does with the hub's records (`objects::xrc::record`), `member` and
//! `members` are the processes as the hub sees them, and `place` reaches their memory.

pub(crate) mod member;
pub(crate) mod members;
pub(crate) mod place;
pub(crate) mod side;
