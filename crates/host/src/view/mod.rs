//! What programs find in the file system beside the libraries.
//!
//! Some programs look at `/sys/class/infiniband` and `/dev/infiniband` themselves (UCX, Open MPI,
//! pyverbs, scripts). The service writes a tree of such files for its devices into the host's
//! runtime directory, and keeps it up to date once anybody has asked for it. A program gets to see it
//! at the usual place
//!
//! - by a [`namespace`]: a mount namespace in which the tree lies there. One for each user, host and choice of devices: a
//!   program finds in the files what the library lists. The service holds it, and every program joins it. Those of a user
//!   belong to one user namespace, whatever their host, because processes of sibling user namespaces may not copy each other's
//!   memory;
//! - or, where the kernel forbids that, by a library that is loaded before the others and redirects
//!   paths.
//!
//! A program finds the user's virtual hosts by their names, too: a view has an `/etc/hosts` of its own, one file for
//! all views of a user, which every change of the registry of hosts brings up to date.
//!
//! The files of the host's ACM service, too, are where programs look for them: `/run/ibacm*`, `/etc/rdma` and `/var/log/ibacm.log`.
//!
//! Adapters of the machine do not appear: the libraries drive the software device only.

mod acm;
pub mod namespace;
pub(crate) mod tree;

use rdmux_verbs::control::DeviceKind;

/// The character device of a device of this kind (`ibv_device::dev_name`).
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

/// The file that a view replaces, by one in which virtual hosts have names, too.
pub const HOSTS: &str = "/etc/hosts";
