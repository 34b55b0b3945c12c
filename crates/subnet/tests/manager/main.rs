//! The subnet manager on a subnet of this crate: what it sets is looked at in the subnet itself.

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
