//! `librdmux_view.so`: for programs that look at `/sys/class/infiniband` or `/dev/infiniband` where the
//! system allows no mount namespace.
//!
//! Loaded before the C library (`LD_PRELOAD`, ld.so(8)), it takes the place of the functions that open or
//! look at a path. A path in one of the directories of a view becomes the same path below the tree that
//! `$RDMUX_VIEW` names; every other one goes on as it came. So a program finds the device by its path, but
//! does not see it when it lists `/sys/class`, nor does a program that is linked statically.
//!
//! Names of virtual hosts it answers, too: `/etc/hosts` is a file of the view, and the functions that look names up, which
//! read it within the C library, are given the address.
//!
//! An open of `issmN`, which is a FIFO in a view, is that of one program at a time, as with the kernel's. For this it is loaded also
//! where a mount namespace shows the files: without `$RDMUX_VIEW` it redirects nothing.
//!
//! In reading order: `path` and `names` decide, `issm` locks, `forward` finds the C library's own function, `hooks` are ours.
//!
//! # What the unsafe code here relies on
//!
//! Callers pass what the functions' manual pages ask for: paths and names are NULL or strings that end with a
//! NUL. All else is handed on untouched. Nothing here allocates, locks or keeps state but the addresses
//! of functions, so that it works in a signal handler and after fork wherever the function itself does.

mod forward;
#[cfg_attr(test, expect(dead_code, reason = "tests use the C library's own functions"))]
mod hooks;
mod issm;
mod names;
mod path;
