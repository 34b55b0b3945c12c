//! `librdmux_view.so`: for programs that use `/sys/class/infiniband` or `/dev/infiniband` where the
//! operating system does not permit a mount namespace.
//!
//! Loaded before the C library (`LD_PRELOAD`, ld.so(8)), it replaces the functions that take a path.
//! A path in one of the directories of a view becomes the same path below the tree that `$RDMUX_VIEW`
//! names. Every other path is passed on unchanged. So a program finds the device by its path, but
//! does not see it when it lists `/sys/class`. A statically linked program does not see it at all.
//!
//! It also resolves names of virtual hosts: the functions that look names up read `/etc/hosts`, a
//! file of the view, within the C library, and so are given the address instead.
//!
//! Only one program at a time can open `issmN`, which is a FIFO in a view, as with the kernel's device. For this the
//! library is also loaded where a mount namespace provides the files: without `$RDMUX_VIEW` it redirects nothing.
//!
//! In reading order: `path` and `names` decide what to replace, `issm` locks, `forward` finds the C
//! library's functions, `hooks` defines those here.
//!
//! # What the unsafe code here relies on
//!
//! Callers pass what the functions' manual pages require: paths and names are NULL or strings that end with a
//! NUL. All other arguments are passed on unchanged. Nothing here allocates, locks or keeps state other than the
//! addresses of functions, so it works in a signal handler and after fork wherever the function itself does.

mod forward;
#[cfg_attr(test, expect(dead_code, reason = "tests use the C library's own functions"))]
mod hooks;
mod issm;
mod names;
mod path;
