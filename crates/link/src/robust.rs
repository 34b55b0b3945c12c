//! A word of shared memory by which others see that a process's memory is gone, because it has ended or has called execve(2).
//!
//! A pidfd does not show the latter. The word is a robust futex (`set_robust_list(2)`) of one thread of the process: it holds the
//! thread's ID. Both end the thread, and before the memory of the process is replaced, the kernel sets a bit in the word.
//!
//! # What the unsafe code here relies on
//!
//! A thread has one list of robust futexes, whose entries have their words at the same distance. The list here has one entry, in private
//! memory, and a distance that leads to the word. When the thread ends, the kernel follows the list, and writes the word if it holds the
//! thread's ID. The list and the word exist as long as the list is registered: [`Robust`] owns the list and holds the word's memory, and
//! cannot leave its thread. If it is forgotten, neither is ever freed.
//!
//! The list replaces the one that the C library has registered for the thread's robust mutexes. The C library's own list remains valid,
//! and only the kernel reads what is registered, when the thread ends. So if the program's code locks such a mutex on the thread, it works,
//! but its other users are not told if the thread ends while it holds the mutex. The thread must be one that locks none.

use std::io;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// An entry of the list (`struct robust_list`).
#[repr(C)]
struct Entry {
    next: *const Entry,
}

/// The head of the list (`struct robust_list_head`).
#[repr(C)]
struct Head {
    list: Entry,
    /// The distance in bytes from an entry to its word.
    futex_offset: libc::c_long,
    /// An entry that is being added or removed.
    pending: *const Entry,
}

/// The head, and the only entry.
#[repr(C)]
struct List {
    head: Head,
    only: Entry,
}

/// A registered word of the calling thread. When it is dropped, the word is zero again.
#[derive(Debug)]
pub(crate) struct Robust<W: AsRef<AtomicU64>> {
    list: NonNull<List>,
    word: W,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl<W: AsRef<AtomicU64>> Robust<W> {
    /// Registers a word for the calling thread, and stores the thread's ID in it. `word` keeps it at its address. The thread must lock no
    /// robust mutex until this is dropped, and must not have another registered word.
    ///
    /// # Errors
    ///
    /// Those of `set_robust_list(2)`: `ENOSYS` if the kernel has no robust futexes, or what a sandbox returns.
    pub(crate) fn register(word: W) -> io::Result<Self> {
        let none = std::ptr::null();
        let head = Head { list: Entry { next: none }, futex_offset: 0, pending: none };
        let list = NonNull::from(Box::leak(Box::new(List { head, only: Entry { next: none } })));
        let at = list.as_ptr();
        // SAFETY: `list` was just allocated, and the kernel does not know it yet. The list ends with its head, as it must.
        unsafe {
            let only = &raw mut (*at).only;
            (*only).next = &raw const (*at).head.list;
            (*at).head.list.next = only;
            let distance = half(word.as_ref()).wrapping_sub(only.expose_provenance());
            (*at).head.futex_offset = distance.cast_signed() as libc::c_long;
        }
        // SAFETY: see the head of this file.
        if let Err(error) = unsafe { set(&raw const (*at).head) } {
            // SAFETY: allocated above, and the kernel does not know it.
            drop(unsafe { Box::from_raw(at) });
            return Err(error);
        }
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        word.as_ref().store(u64::from(tid.unsigned_abs()), Ordering::Release);
        Ok(Self { list, word, _thread: PhantomData })
    }
}

impl<W: AsRef<AtomicU64>> Drop for Robust<W> {
    fn drop(&mut self) {
        self.word.as_ref().store(0, Ordering::Release);
        // SAFETY: without a list, the kernel has nothing to follow.
        if unsafe { set(std::ptr::null()) }.is_ok() {
            // SAFETY: from `Box::leak` in `register`, and no longer known to the kernel. Otherwise it is leaked.
            drop(unsafe { Box::from_raw(self.list.as_ptr()) });
        }
    }
}

/// Returns the address of the half of a word with its lower 32 bits, which are the futex.
fn half(word: &AtomicU64) -> usize {
    let offset = if cfg!(target_endian = "big") { size_of::<u32>() } else { 0 };
    word.as_ptr().expose_provenance() + offset
}

/// Registers a list for the calling thread.
///
/// # Safety
///
/// The list must be valid until another one is registered, or the thread has ended.
unsafe fn set(head: *const Head) -> io::Result<()> {
    // SAFETY: the caller's promise; the kernel only remembers the address.
    let r = unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<Head>()) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[derive(Clone)]
    struct Word(Arc<AtomicU64>);

    impl AsRef<AtomicU64> for Word {
        fn as_ref(&self) -> &AtomicU64 {
            &self.0
        }
    }

    #[test]
    fn word_of_a_thread_that_ends_is_marked_unless_unregistered() {
        for registered in [true, false] {
            let word = Word(Arc::new(AtomicU64::new(7)));
            let of_thread = word.clone();
            let tid = thread::spawn(move || {
                let robust = Robust::register(of_thread.clone()).unwrap();
                let tid = of_thread.0.load(Ordering::Relaxed);
                assert_eq!(tid, rustix::thread::gettid().as_raw_nonzero().get() as u64);
                if registered {
                    std::mem::forget(robust);
                } else {
                    drop(robust);
                    assert_eq!(of_thread.0.load(Ordering::Relaxed), 0);
                    of_thread.0.store(tid, Ordering::Relaxed);
                }
                tid
            });
            let tid = tid.join().unwrap();
            let there = word.0.load(Ordering::Relaxed);
            assert_eq!(there, if registered { libc::FUTEX_OWNER_DIED.into() } else { tid });
        }
    }
}
