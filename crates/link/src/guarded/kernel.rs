//! Access to the program's memory through the kernel, which checks it: `process_vm_readv(2)` and `process_vm_writev(2)` on this
//! process, about half a microsecond each. If these are forbidden, too (seccomp), an access to unmapped memory terminates the
//! program, as it does without rdmux.
//!
//! # What the unsafe code here relies on
//!
//! The kernel checks the program's range and fails with `EFAULT`; the other range is valid by the
//! callers' promise.

use std::io;

use super::Unmapped;
use super::turn::{Turn, own_pid};

/// Fills `len` bytes at `to`.
///
/// # Safety
///
/// They are writable, and no Rust reference covers them.
pub(super) unsafe fn read(from: *const u8, to: *mut u8, len: usize) -> Result<(), Unmapped> {
    match transfer(to, from.cast_mut(), len, false) {
        // SAFETY: `to` by the caller's promise; nothing vouches for `from`.
        Outcome::Forbidden => unsafe { std::ptr::copy(from, to, len) },
        Outcome::Done => {}
        Outcome::Fault => return Err(Unmapped),
    }
    Ok(())
}

/// Writes `len` bytes at `from` to `to`.
///
/// # Safety
///
/// They are readable, and the bytes at `to` may be overwritten.
pub(super) unsafe fn write(to: *mut u8, from: *const u8, len: usize) -> Result<(), Unmapped> {
    match transfer(from.cast_mut(), to, len, true) {
        // SAFETY: `from` by the caller's promise; nothing vouches for `to`.
        Outcome::Forbidden => unsafe { std::ptr::copy(from, to, len) },
        Outcome::Done => {}
        Outcome::Fault => return Err(Unmapped),
    }
    Ok(())
}

/// Changes a cell and returns its previous value. Atomic with respect to callers of this function, but not to the program.
///
/// # Safety
///
/// As for [`write()`].
pub(super) unsafe fn update(cell: *mut u64, f: impl Fn(u64) -> u64) -> Result<u64, Unmapped> {
    static TURN: Turn = Turn::new();
    let once = || {
        let mut bytes = [0; 8];
        // SAFETY: `bytes` is a local.
        unsafe { read(cell.cast(), bytes.as_mut_ptr(), 8)? };
        let before = u64::from_ne_bytes(bytes);
        // SAFETY: by the caller's promise.
        unsafe { write(cell.cast(), f(before).to_ne_bytes().as_ptr(), 8)? };
        Ok(before)
    };
    loop {
        match TURN.take(once) {
            Some(result) => return result,
            None => std::thread::yield_now(),
        }
    }
}

/// The result of a copy by the kernel.
enum Outcome {
    Done,
    Fault,
    Forbidden,
}

/// Moves bytes between `near`, which is valid by the callers' promise, and `far`, which may be unmapped.
fn transfer(near: *mut u8, far: *mut u8, len: usize, write: bool) -> Outcome {
    let mut done = 0;
    while done < len {
        let of = |start: *mut u8| libc::iovec {
            iov_base: start.wrapping_add(done).cast(),
            iov_len: len - done,
        };
        let (near, far) = (of(near), of(far));
        let pid = own_pid();
        // SAFETY: `near` is valid; the kernel checks `far`.
        let moved = unsafe {
            if write {
                libc::process_vm_writev(pid, &raw const near, 1, &raw const far, 1, 0)
            } else {
                libc::process_vm_readv(pid, &raw const near, 1, &raw const far, 1, 0)
            }
        };
        match usize::try_from(moved) {
            Ok(0) => return Outcome::Fault,
            Ok(n) => done += n,
            Err(_) => {
                return match io::Error::last_os_error().raw_os_error() {
                    Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => Outcome::Forbidden,
                    _ => Outcome::Fault,
                };
            }
        }
    }
    Outcome::Done
}
