//! The implemented part of <rdma/rsocket.h>: waiting for ordinary descriptors.
//!
//! There are no rsockets: [`rsocket`] fails with EOPNOTSUPP, and every call on one (`exports/cm.txt`) with EBADF, as for an
//! invalid descriptor. The functions that wait accept any descriptors, also in the reference implementation, so they do work.

use std::ffi::c_int;

use libc::{epoll_event, fd_set, nfds_t, pollfd, timeval};

use crate::boundary::Errno;

/// Fails with EOPNOTSUPP, in place of creating a socket over RDMA (rsocket(7)).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rsocket(_domain: c_int, _type: c_int, _protocol: c_int) -> c_int {
    Errno::EOPNOTSUPP.set();
    -1
}

/// Fails with -1, EBADF, in place of a call on an rsocket. Correct for any number of arguments, because in the C calling convention the
/// caller removes them, and for results of any integer type.
pub(crate) extern "C" fn not_one() -> isize {
    Errno(libc::EBADF).set();
    -1
}

unsafe extern "C-unwind" {
    // Cancellation points, which unwind, although libc declares them as functions that do not.
    fn poll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int;
    fn select(
        nfds: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int;
    fn epoll_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int;
}

/// Does what poll(2) does.
///
/// # Safety
/// As poll(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rpoll(
    fds: *mut pollfd,
    nfds: nfds_t,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { poll(fds, nfds, timeout) }
}

/// Does what select(2) does.
///
/// # Safety
/// As select(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn rselect(
    nfds: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { select(nfds, read, write, except, timeout) }
}

/// Does what epoll_create1(2) does (newer than rdma-core 44).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn repoll_create(flags: c_int) -> c_int {
    // SAFETY: it takes a number only.
    unsafe { libc::epoll_create1(flags & libc::EPOLL_CLOEXEC) }
}

/// Does what epoll_ctl(2) does (newer than rdma-core 44).
///
/// # Safety
/// As epoll_ctl(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn repoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { libc::epoll_ctl(epfd, op, fd, event) }
}

/// Does what epoll_wait(2) does (newer than rdma-core 44).
///
/// # Safety
/// As epoll_wait(2).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn repoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe { epoll_wait(epfd, events, max, timeout) }
}
