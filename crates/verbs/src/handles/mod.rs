//! The highest floor: the handles that programs hold on the device and its objects, each with its calls.

pub mod channel;
pub mod cq;
pub mod device;
pub mod event;
pub mod mr;
pub mod mw;
pub mod pd;
pub mod qp;
pub(crate) mod refs;
pub mod srq;
pub mod xrc;
