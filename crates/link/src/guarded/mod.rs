//! Guarded access to the program's memory, which may be unmapped.
//!
//! A program may unmap memory, protect it, or truncate the file behind it, while it is registered. A thread that accesses it then
//! gets a signal. Every access to the program's memory goes through the functions here, which return [`Unmapped`] instead.
//!
//! The accesses are a few instructions in one place (`routine`). The handler of SIGSEGV and SIGBUS (`handler`) makes a fault in
//! that place return to the caller, and chains every other signal to the handler that it replaced. If the handler cannot be
//! installed, the kernel copies (`kernel`). See `docs/safety.md` for details.

mod handler;
mod kernel;
#[cfg(target_arch = "x86_64")]
mod routine;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_routine.rs"]
mod routine;
mod turn;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The memory is not mapped, or does not permit the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory is not mapped, or not for this access")]
pub struct Unmapped;

/// The mechanism that detects unmapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Guard {
    /// The method of access is not chosen yet.
    None,
    /// The signal handler of this module.
    Handler,
    /// The operating system.
    Kernel,
}

static GUARD: AtomicU8 = AtomicU8::new(Guard::None as u8);

/// Returns whether the handler is the guard. The first call installs it.
#[inline]
fn handler_guards() -> bool {
    GUARD.load(Ordering::Relaxed) == Guard::Handler as u8 || choose_guard()
}

#[cold]
fn choose_guard() -> bool {
    if GUARD.load(Ordering::Acquire) == Guard::None as u8 {
        protect();
    }
    GUARD.load(Ordering::Acquire) == Guard::Handler as u8
}

/// The maximum time in nanoseconds for which a handler that the program installs over this one is not detected, while [`keep`]
/// is called. The program's handler gets the faults of guarded accesses meanwhile.
pub const NOTICE: u64 = 1_000_000;

/// Enables the guard: installs the handler, or reinstalls it above one that the program has installed since. Takes two system
/// calls. Must be called when memory is registered.
pub fn protect() {
    let guard = if routine::EXISTS && handler::install() { Guard::Handler } else { Guard::Kernel };
    GUARD.store(guard as u8, Ordering::Release);
}

/// Enables the guard like [`protect`], but at most once per [`NOTICE`]. `now` is in nanoseconds of any one clock.
#[inline]
pub fn keep(now: u64) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if now >= NEXT.load(Ordering::Relaxed) {
        NEXT.store(now + NOTICE, Ordering::Relaxed);
        protect();
    }
}

/// Emulates `sigaction(2)` as if this handler did not exist, for a library that intercepts a program's calls. The program's
/// action is placed below this handler immediately, so that it does not get faults of guarded accesses even for [`NOTICE`].
/// Returns none if the C library's function must be called: this handler is not installed for the signal,
/// or can replace no more actions.
///
/// Async-signal-safe, as `sigaction(2)` is.
pub fn sigaction(signal: i32, new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    if GUARD.load(Ordering::Acquire) != Guard::Handler as u8 {
        return None;
    }
    let before = handler::replace(signal, new);
    if before.is_none() && new.is_some() && handler::SIGNALS.contains(&signal) {
        // The program's handler is about to replace this one.
        GUARD.store(Guard::Kernel as u8, Ordering::Release);
    }
    before
}

/// Fills `to` from the program's memory.
///
/// # Errors
///
/// [`Unmapped`]; some of `to` may have been filled.
#[inline]
#[expect(clippy::not_unsafe_ptr_arg_deref, reason = "any address will do")]
pub fn read(from: *const u8, to: &mut [u8]) -> Result<(), Unmapped> {
    // SAFETY: `to` is valid and exclusive.
    unsafe { read_raw(from, to.as_mut_ptr(), to.len()) }
}

/// Reads like [`read`], but into memory given by address.
///
/// # Safety
///
/// `to` must be writable for `len` bytes that no Rust reference covers.
///
/// # Errors
///
/// As for [`read`].
#[inline]
pub unsafe fn read_raw(from: *const u8, to: *mut u8, len: usize) -> Result<(), Unmapped> {
    if handler_guards() {
        // SAFETY: `to` by the caller's promise; `from` may be anything, since the handler guards.
        return outcome(unsafe { routine::copy(to, from, len) });
    }
    // SAFETY: `to` by the caller's promise.
    unsafe { kernel::read(from, to, len) }
}

/// Writes `from` to the program's memory, in ascending order: a thread that sees the last byte sees all.
///
/// # Safety
///
/// The memory there must belong to the program, and no Rust reference may cover it.
///
/// # Errors
///
/// [`Unmapped`]; some of it may have been written.
#[inline]
pub unsafe fn write(to: *mut u8, from: &[u8]) -> Result<(), Unmapped> {
    // SAFETY: `from` is a slice; the rest by the caller's promise.
    unsafe { write_raw(to, from.as_ptr(), from.len()) }
}

/// Writes like [`write()`], but from memory given by address.
///
/// # Safety
///
/// As for [`write()`], and `from` must be readable for `len` bytes.
///
/// # Errors
///
/// As for [`write()`].
#[inline]
pub unsafe fn write_raw(to: *mut u8, from: *const u8, len: usize) -> Result<(), Unmapped> {
    if handler_guards() {
        // SAFETY: `from` by the caller's promise; `to` may be unmapped, since the handler guards, and
        // the bytes there may be overwritten by the caller's promise.
        return outcome(unsafe { routine::copy(to, from, len) });
    }
    // SAFETY: by the caller's promise.
    unsafe { kernel::write(to, from, len) }
}

/// Adds to eight bytes of the program's memory, atomically, and returns their previous value. They must be aligned to eight.
///
/// # Safety
///
/// As for [`write()`].
///
/// # Errors
///
/// [`Unmapped`]; nothing was changed.
pub unsafe fn fetch_add(cell: *mut u64, add: u64) -> Result<u64, Unmapped> {
    debug_assert!(cell.is_aligned());
    let mut before = 0;
    if handler_guards() {
        // SAFETY: `before` is a local; `cell` as in `write`.
        outcome(unsafe { routine::fetch_add(cell, add, &raw mut before) })?;
        return Ok(before);
    }
    // SAFETY: by the caller's promise.
    unsafe { kernel::update(cell, |value| value.wrapping_add(add)) }
}

/// Replaces eight bytes of the program's memory by `swap` if they equal `compare`, atomically, and returns their previous value.
/// They must be aligned to eight.
///
/// # Safety
///
/// As for [`write()`].
///
/// # Errors
///
/// [`Unmapped`]; nothing was changed.
pub unsafe fn compare_swap(cell: *mut u64, compare: u64, swap: u64) -> Result<u64, Unmapped> {
    debug_assert!(cell.is_aligned());
    let mut before = 0;
    if handler_guards() {
        // SAFETY: `before` is a local; `cell` as in `write`.
        outcome(unsafe { routine::compare_swap(cell, compare, swap, &raw mut before) })?;
        return Ok(before);
    }
    // SAFETY: by the caller's promise.
    unsafe { kernel::update(cell, |value| if value == compare { swap } else { value }) }
}

#[inline]
fn outcome(code: u32) -> Result<(), Unmapped> {
    if code == 0 { Ok(()) } else { Err(Unmapped) }
}

#[cfg(test)]
mod tests;
