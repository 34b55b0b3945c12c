//! The agents of a subnet, asked as a manager or a diagnostic tool asks them.

mod delivery;
mod directed;
mod links;
mod manager;
mod mkey;
mod net;
mod node;
mod operators;
mod perf;
mod port_info;
mod sweep;
mod tables;
mod traps;
