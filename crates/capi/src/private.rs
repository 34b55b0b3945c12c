//! The private version node, which libibverbs shares with vendor drivers (<infiniband/driver.h>).
//!
//! perftest, libfabric, UCX and pyverbs link libmlx5 or libefa, and the loader refuses them all unless every
//! symbol that those import exists. Their constructors register a driver, which is never used, because
//! this library has a device of its own. So nothing else here is ever called. Functions with a result fail with
//! EOPNOTSUPP (`exports/private.txt`).

use std::ffi::c_uint;

/// Whether drivers may destroy objects of a device that was removed (a C `bool`). This device is never removed.
#[unsafe(no_mangle)]
pub(crate) static verbs_allow_disassociate_destroy: bool = false;

/// Returns how many attributes a chain of command buffers has: at least those of the first. No command is ever executed.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __ioctl_final_num_attrs(num_attrs: c_uint) -> c_uint {
    num_attrs
}
