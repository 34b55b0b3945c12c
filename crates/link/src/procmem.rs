//! The memory of another process, by cross-process copy (`process_vm_readv(2)`).
//!
//! The operating system decides which process may access which memory (`ptrace(2)`, access mode checking): it requires the same
//! user and the same user namespace. If Yama restricts access, the target must also permit it with `PR_SET_PTRACER`.
//!
//! # What the unsafe code here relies on
//!
//! The kernel checks the remote range and fails with `EFAULT`. The local range is a slice, or a caller promises that it is
//! valid. Writing to a process's own memory this way would bypass the borrow checker, so its own PID is refused.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI64, Ordering};

use rustix::time::{ClockId, clock_gettime};

use crate::board::{PeerBoard, ProcessEnd};
use crate::wire::Piece;

/// The reason why a copy failed, in whole or in part.
#[derive(Debug, thiserror::Error)]
pub enum ProcMemError {
    /// The process has ended, or has called execve(2), if it has a board that shows that.
    #[error("process {pid} is gone")]
    Gone {
        /// The process.
        pid: i32,
    },
    /// The range, or its end, is not mapped in the other process, or not with the required access right.
    #[error("process {pid}: {len} bytes at {va:#x} are not accessible ({done} bytes copied)")]
    Fault {
        /// The process.
        pid: i32,
        /// The start of the range.
        va: u64,
        /// The length of the range.
        len: usize,
        /// The number of bytes that were copied nevertheless.
        done: usize,
    },
    /// The operating system does not permit access to this process's memory. Use a link that does not need it, or let the process
    /// call `prctl(PR_SET_PTRACER)`.
    #[error("no permission to access the memory of process {pid}")]
    Refused {
        /// The process.
        pid: i32,
    },
    /// The process is the calling process, which is not permitted.
    #[error("process {pid} is this process")]
    OwnProcess {
        /// The process.
        pid: i32,
    },
    /// `/proc` belongs to another PID namespace than this process, so that its process IDs are not valid here.
    #[error("/proc belongs to another PID namespace, so its process IDs are not valid here")]
    ForeignProc,
    /// Anything else.
    #[error("cannot access the memory of process {pid}: {source}")]
    Io {
        /// The process.
        pid: i32,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Permits all other processes of the same user to access this one's memory, as they could without Yama (`PR_SET_PTRACER_ANY`,
/// see `ptrace(2)`).
///
/// # Errors
///
/// `EINVAL` if the kernel has no Yama.
pub fn let_others_in() -> io::Result<()> {
    // SAFETY: sets an attribute of the process; no memory is involved.
    let done = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The number of bytes of a write that are written last.
const LAST: usize = size_of::<u64>();
/// The maximum number of pieces of one copy.
pub const MAX_PIECES: usize = 32;

const NOTHING: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Converts pieces for the kernel; at most [`MAX_PIECES`].
fn iovecs(pieces: &[Piece]) -> [libc::iovec; MAX_PIECES] {
    let mut iovecs = [NOTHING; MAX_PIECES];
    for (to, piece) in iovecs.iter_mut().zip(pieces) {
        *to = libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
    }
    iovecs
}

/// Returns the total length of pieces in bytes.
fn total(pieces: &[Piece]) -> usize {
    pieces.iter().fold(0, |n, piece| n.saturating_add(piece.len()))
}

/// A range of another process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The start of the range.
    pub va: u64,
    /// The length of the range in bytes.
    pub len: u32,
}

/// Another process's memory.
///
/// Copies are not atomic: concurrent writes on either side may yield any mixture.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: i32,
    pidfd: Option<OwnedFd>,
    /// Time when the process was last found alive, in ticks of the coarse clock.
    seen: AtomicI64,
    /// Shows that the process has called execve(2), which its pidfd does not.
    end: Option<ProcessEnd>,
}

impl ProcessMemory {
    /// Creates a handle of the memory of process `pid`. Only checks that it is not this process. With a pidfd, a later process
    /// with the same ID is never mistaken for this one.
    ///
    /// # Errors
    ///
    /// [`ProcMemError::OwnProcess`]; [`ProcMemError::Gone`] for an invalid PID.
    pub fn new(pid: i32, pidfd: Option<OwnedFd>) -> Result<Self, ProcMemError> {
        if pid <= 0 {
            return Err(ProcMemError::Gone { pid });
        }
        // A thread's ID gives access to the memory of its process, too.
        let thread = std::path::PathBuf::from(format!("/proc/self/task/{pid}"));
        if i64::from(pid) == i64::from(std::process::id()) || thread.exists() {
            return Err(ProcMemError::OwnProcess { pid });
        }
        Ok(Self { pid, pidfd, seen: AtomicI64::new(-1), end: None })
    }

    /// Creates a handle of the memory of a pidfd's process, which may have any ID here.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new); [`ForeignProc`](ProcMemError::ForeignProc); [`Io`](ProcMemError::Io) for a descriptor that is
    /// not a pidfd, or without `/proc`.
    pub fn of_pidfd(pidfd: OwnedFd) -> Result<Self, ProcMemError> {
        let io = |source| ProcMemError::Io { pid: 0, source };
        let own = std::fs::read_link("/proc/self").map_err(io)?;
        if own.as_os_str() != std::process::id().to_string().as_str() {
            return Err(ProcMemError::ForeignProc);
        }
        let path = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
        let info = std::fs::read_to_string(path).map_err(io)?;
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
        Self::new(pid.unwrap_or(0), Some(pidfd))
    }

    /// Makes copies fail as [`Gone`](ProcMemError::Gone) once the process has called execve(2), if its board has an
    /// [`EndMark`](crate::board::EndMark). Only a write that has just begun then may still reach the new program.
    #[must_use]
    pub fn with_board(mut self, board: &PeerBoard) -> Self {
        self.end = Some(board.process_end());
        self
    }

    /// Returns the process ID.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns whether the process is known to have ended. Without a pidfd, only a copy shows that.
    pub fn is_gone(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let Some(pidfd) = &self.pidfd else { return false };
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(n) if n > 0)
    }

    /// Fills `to` from the other process's address `va`.
    ///
    /// # Errors
    ///
    /// [`ProcMemError`]. After an error, `to` holds some mixture of its old contents and bytes that were read.
    pub fn read(&self, va: u64, to: &mut [u8]) -> Result<(), ProcMemError> {
        // SAFETY: `to` is a valid, exclusive slice.
        unsafe { self.read_raw(va, to.as_mut_ptr(), to.len()) }
    }

    /// Writes `from` to the other process's address `va`.
    ///
    /// # Errors
    ///
    /// [`ProcMemError`]. After an error some of it may have been written.
    pub fn write(&self, va: u64, from: &[u8]) -> Result<(), ProcMemError> {
        // SAFETY: `from` is a valid slice.
        unsafe { self.write_raw(va, from.as_ptr(), from.len()) }
    }

    /// Reads like [`read`](Self::read), but into memory given by address: the application's registered buffers, which its
    /// threads may share.
    ///
    /// # Safety
    ///
    /// `len` bytes at `to` must be writable, and no Rust reference to them may be alive.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    pub unsafe fn read_raw(&self, va: u64, to: *mut u8, len: usize) -> Result<(), ProcMemError> {
        self.copy(va, to, len, false)
    }

    /// Writes like [`write`](Self::write), but from memory given by address.
    ///
    /// # Safety
    ///
    /// `len` bytes at `from` must be readable.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write).
    pub unsafe fn write_raw(
        &self,
        va: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), ProcMemError> {
        self.copy(va, from.cast_mut(), len, true)
    }

    /// Fills memory of this process, piece by piece, from the other process's address `va`, with one system call. Pieces that are
    /// not mapped here are an error like any other.
    ///
    /// # Safety
    ///
    /// The pieces must be memory that may be written to (registered, say), and no Rust reference to it may be
    /// alive.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read), and [`Fault`](ProcMemError::Fault) for more than [`MAX_PIECES`] pieces.
    pub unsafe fn read_pieces(&self, va: u64, to: &[Piece]) -> Result<(), ProcMemError> {
        self.copy_pieces(va, to, false)
    }

    /// Reads like [`read_pieces`](Self::read_pieces), but from ranges with the same total length as the pieces.
    ///
    /// # Safety
    ///
    /// As for [`read_pieces`](Self::read_pieces).
    ///
    /// # Errors
    ///
    /// As for [`read_pieces`](Self::read_pieces), and [`Fault`](ProcMemError::Fault) for more than [`MAX_PIECES`] ranges, or
    /// ranges of another total length than the pieces.
    pub unsafe fn read_ranges(&self, from: &[Range], to: &[Piece]) -> Result<(), ProcMemError> {
        let pid = self.pid;
        let len = total(to);
        let va = from.first().map_or(0, |range| range.va);
        let fault = |done| ProcMemError::Fault { pid, va, len, done };
        let far_len = from.iter().map(|range| range.len as usize).sum::<usize>();
        if far_len != len || from.len() > MAX_PIECES || to.len() > MAX_PIECES {
            return Err(fault(0));
        }
        self.look_for_it()?;
        let near = iovecs(to);
        let mut far = [NOTHING; MAX_PIECES];
        for (iovec, range) in far.iter_mut().zip(from) {
            let start = usize::try_from(range.va).map_err(|_| fault(0))?;
            *iovec = libc::iovec { iov_base: start as *mut _, iov_len: range.len as usize };
        }
        let (near_n, far_n) = (to.len() as libc::c_ulong, from.len() as libc::c_ulong);
        // SAFETY: both arrays have as many entries as their counts. The kernel checks all the addresses. `far` is in another
        // process (see `new`), and the caller promises that what is written here may be.
        let copied =
            unsafe { libc::process_vm_readv(pid, near.as_ptr(), near_n, far.as_ptr(), far_n, 0) };
        self.outcome(copied, len, false, fault)
    }

    /// Writes memory of this process, piece by piece, to the other process's address `va`, with one system call. The last eight
    /// bytes are written after all others: a program that polls for the last byte of a peer's WRITE then has all of it, as with
    /// adapters.
    ///
    /// # Errors
    ///
    /// As for [`read_pieces`](Self::read_pieces).
    pub fn write_pieces(&self, va: u64, from: &[Piece]) -> Result<(), ProcMemError> {
        self.copy_pieces(va, from, true)
    }

    /// Copies all pieces with one call. A partial copy is an error: the caller then uses another method.
    fn copy_pieces(&self, va: u64, near: &[Piece], write: bool) -> Result<(), ProcMemError> {
        let pid = self.pid;
        let len = total(near);
        let fault = |done| ProcMemError::Fault { pid, va, len, done };
        let inside = usize::try_from(va).ok().filter(|at| at.checked_add(len).is_some());
        let (Some(remote), true) = (inside, near.len() <= MAX_PIECES) else { return Err(fault(0)) };
        self.look_for_it()?;
        let iovecs = iovecs(near);
        // The kernel copies one range after the other, but may copy the bytes of one in any order.
        let tail = if write && len > LAST { LAST } else { 0 };
        let far = [(0, len - tail), (len - tail, tail)]
            .map(|(at, n)| libc::iovec { iov_base: (remote + at) as *mut _, iov_len: n });
        let far_n = if tail == 0 { 1 } else { 2 };
        let n = near.len() as libc::c_ulong;
        // SAFETY: both arrays have as many entries as their counts. The kernel checks all the addresses. `far` is in another
        // process (see `new`), and what is written here may be, by the promise of `read_pieces`.
        let copied = unsafe {
            if write {
                libc::process_vm_writev(pid, iovecs.as_ptr(), n, far.as_ptr(), far_n, 0)
            } else {
                libc::process_vm_readv(pid, iovecs.as_ptr(), n, far.as_ptr(), far_n, 0)
            }
        };
        self.outcome(copied, len, write, fault)
    }

    /// Converts the result of a call.
    fn outcome(
        &self,
        copied: isize,
        len: usize,
        write: bool,
        fault: impl Fn(usize) -> ProcMemError,
    ) -> Result<(), ProcMemError> {
        match usize::try_from(copied) {
            Ok(done) if done == len => self.is_still_it_after(write),
            Ok(done) => Err(fault(done)),
            Err(_) => Err(self.failed(fault(0))),
        }
    }

    /// Checks after a complete copy that what was read is not another program's memory. What was written has arrived, even if the process
    /// has ended since then.
    #[inline]
    fn is_still_it_after(&self, write: bool) -> Result<(), ProcMemError> {
        if write { Ok(()) } else { self.is_still_it() }
    }

    /// Returns an error if the process has called execve(2), as its board shows: the memory is that of another program. Checked before
    /// a copy, and after a read, since the process may have called it meanwhile.
    #[inline]
    fn is_still_it(&self) -> Result<(), ProcMemError> {
        match &self.end {
            Some(end) if end.is_over() => Err(ProcMemError::Gone { pid: self.pid }),
            _ => Ok(()),
        }
    }

    /// Returns an error if the process is known to have ended, or its memory to be another program's. Checks the former once in each
    /// tick of the coarse clock, some milliseconds: no kernel allocates all its process IDs in that time, and none is reused before.
    fn look_for_it(&self) -> Result<(), ProcMemError> {
        self.is_still_it()?;
        let now = clock_gettime(ClockId::MonotonicCoarse);
        let tick = now.tv_sec * 1000 + now.tv_nsec / 1_000_000;
        if self.seen.load(Ordering::Relaxed) == tick {
            return Ok(());
        }
        if self.is_gone() {
            return Err(ProcMemError::Gone { pid: self.pid });
        }
        self.seen.store(tick, Ordering::Relaxed);
        Ok(())
    }

    /// Converts the kernel's error of a copy. `fault` is the error for a bad address.
    fn failed(&self, fault: ProcMemError) -> ProcMemError {
        let (pid, source) = (self.pid, io::Error::last_os_error());
        match source.raw_os_error() {
            Some(libc::EFAULT) => fault,
            Some(libc::ESRCH) => ProcMemError::Gone { pid },
            Some(libc::EPERM | libc::EACCES) => ProcMemError::Refused { pid },
            _ => ProcMemError::Io { pid, source },
        }
    }

    /// Copies between `local` and `va`, and continues after a partial copy: only the second attempt reports where the memory
    /// ends. The callers promise that `local` is valid.
    fn copy(&self, va: u64, local: *mut u8, len: usize, write: bool) -> Result<(), ProcMemError> {
        let pid = self.pid;
        let fault = |done| ProcMemError::Fault { pid, va, len, done };
        let Ok(remote) = usize::try_from(va) else { return Err(fault(0)) };
        if remote.checked_add(len).is_none() {
            return Err(fault(0));
        }
        self.look_for_it()?;
        let mut done = 0;
        while done < len {
            let near =
                libc::iovec { iov_base: local.wrapping_add(done).cast(), iov_len: len - done };
            let far = libc::iovec { iov_base: (remote + done) as *mut _, iov_len: len - done };
            // SAFETY: `local` is valid for `len` bytes by the callers' promise. The kernel checks `far`, which is in another
            // process (see `new`).
            let copied = unsafe {
                if write {
                    libc::process_vm_writev(pid, &near, 1, &far, 1, 0)
                } else {
                    libc::process_vm_readv(pid, &near, 1, &far, 1, 0)
                }
            };
            match usize::try_from(copied) {
                Ok(0) => return Err(fault(done)),
                Ok(n) => done += n,
                Err(_) => return Err(self.failed(fault(done))),
            }
        }
        self.is_still_it_after(write)
    }
}
