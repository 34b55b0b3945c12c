//! `librdmux_view.so`: for programs that look at `/sys/class/infiniband` or `/dev/infiniband` where the
//! system allows no mount namespace.
//!
//! Loaded before the C library (`LD_PRELOAD`, ld.so(8)), it takes the place of the functions that open or
//! look at a path. A path in one of the directories of a view becomes the same path below the tree that
//! `$RDMUX_VIEW` names; every other one goes on as it came. So a program finds the device by its path, but
//! does not see it when it lists `/sys/class`, nor does a program that is linked statically.
//!
//! In reading order: `path` decides, `forward` finds the C library's own function, `hooks` are ours.
//!
//! # What the unsafe code here relies on
//!
//! Callers pass what the functions' manual pages ask for: paths are NULL or strings that end with a
//! NUL. All else is handed on untouched. Nothing here allocates, locks or keeps state but the addresses
//! of functions, so that it works in a signal handler and after fork wherever the function itself does.

mod forward;
#[cfg_attr(test, expect(dead_code, reason = "tests use the C library's own functions"))]
mod hooks;
mod path;
