//! Tests of the subnet manager on a subnet of this crate, by the resulting state of the subnet.

mod bring_up;
mod changes;
mod election;
mod keys;
mod lids;
mod lies;
mod memberships;
mod multicast;
mod net;
mod partitions;
mod reregister;
mod routing;
mod service_levels;
mod timeouts;
mod traps;
