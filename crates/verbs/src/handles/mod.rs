//! The highest floor: what programs hold of queue pairs and memory, each object with its calls.
//!
//! The handles that the engine itself must make, for events and for who shares an object, are not here yet: `pd`, `cq`, `srq`,
//! `channel`, `event` and `device` lie on the engine's floor.

pub mod mr;
pub mod mw;
pub mod qp;
