//! The files that programs find in the file system besides the libraries.
//!
//! Some programs look at `/sys/class/infiniband` and `/dev/infiniband` themselves (UCX, Open MPI, pyverbs, scripts). The
//! service writes a tree of such files for its devices into the host's runtime directory, and updates it once a program has
//! requested it. A program sees it at the usual place
//!
//! - by a [`namespace`]: a mount namespace in which the tree is mounted there. Each user, host and choice of devices has its
//!   own, so a program finds in the files the devices that the library lists. The service holds it, and every program joins
//!   it. All of a user's belong to one user namespace, for all hosts, because processes of sibling user namespaces may not
//!   copy each other's memory;
//! - or, if the kernel forbids that, by a preloaded library that redirects paths.
//!
//! A program finds the user's virtual hosts by their names, too: a view has its own `/etc/hosts`, one file for all
//! views of a user, which every change of the registry of hosts updates.
//!
//! The files of the host's ACM service are also at their usual places: `/run/ibacm*`, `/etc/rdma` and `/var/log/ibacm.log`.
//!
//! Adapters of the machine do not appear: the libraries drive the software device only.

mod acm;
pub mod namespace;
pub(crate) mod tree;

use rdmux_verbs::control::DeviceKind;

/// Returns the name of the character device of a device of this kind (`ibv_device::dev_name`).
pub fn uverbs(kind: DeviceKind) -> String {
    format!("uverbs{}", kind as u8)
}

/// The directories that a view replaces. In the tree they have the same paths.
pub const DIRECTORIES: [&str; 4] = [
    "/sys/class/infiniband",
    "/sys/class/infiniband_verbs",
    "/sys/class/infiniband_mad",
    "/dev/infiniband",
];

/// The file that a view replaces with one that also has the virtual hosts.
pub const HOSTS: &str = "/etc/hosts";
