//! State that a process inherits from the program that started it, and that a service must not keep.

use std::io;
use std::mem::MaybeUninit;

/// Unblocks all signals for the calling thread. The parent may have blocked them: a mask survives execve(2).
pub fn unblock_signals() {
    let mut none = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is to a local set, which `sigemptyset` initialises before it is read; the calls change
    // nothing but the calling thread's mask.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

/// Returns whether this process got rights that the process which started it does not have: by a set-user-ID or set-group-ID program, or
/// by capabilities of its file (`AT_SECURE`, getauxval(3)).
pub fn has_more_rights() -> bool {
    // SAFETY: the call takes no pointer, and only reads what the kernel told this process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns whether this process runs as the user that started it. A set-user-ID program does not, whatever it does with its IDs later; a
/// program that only got capabilities or another group does (`AT_UID` and `AT_EUID`, getauxval(3)).
pub fn is_of_its_user() -> bool {
    // SAFETY: as above.
    let [started_by, started_as] =
        [libc::AT_UID, libc::AT_EUID].map(|what| unsafe { libc::getauxval(what) });
    let now = rustix::process::geteuid().as_raw();
    is_of_user([started_by, started_as, now.into()], has_more_rights())
}

/// Returns whether a process that one user started, as a second one, and that runs as a third one, runs as the first one. A process without
/// more rights than its user may change it only if that user may.
fn is_of_user([started_by, started_as, now]: [u64; 3], has_more_rights: bool) -> bool {
    started_by == now || started_by == started_as && !has_more_rights
}

/// Marks all descriptors except standard input, output and error as close-on-exec.
///
/// # Errors
/// ENOSYS or EINVAL of kernels before 5.11.
pub fn close_descriptors_on_exec() -> io::Result<()> {
    let (first, last) = (3_u32, u32::MAX);
    // SAFETY: the call takes no pointer, and closes no descriptor of this process: it only sets a flag.
    let r = unsafe { libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_CLOEXEC) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_user_id_program_is_of_its_user_only_while_it_runs_as_that_user() {
        assert!(is_of_its_user() && !has_more_rights());
        let cases = [
            ([1000, 1000, 1000], false, true),
            // A daemon of root that acts for a user.
            ([0, 0, 1000], false, true),
            // A set-user-ID program of root, which may have called setuid(0), and one that has given up its rights.
            ([1000, 0, 0], true, false),
            ([1000, 0, 1000], true, true),
            // Programs with capabilities: one stays with its user, and one has called setuid(0).
            ([1000, 1000, 1000], true, true),
            ([1000, 1000, 0], true, false),
        ];
        for (users, has_more_rights, expected) in cases {
            assert_eq!(is_of_user(users, has_more_rights), expected, "{users:?}");
        }
    }
}
