//! Tests of a subnet's agents, with requests as from a manager or a diagnostic tool.

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
