//! Deferral of thread cancellation (pthread_cancel(3)): cancellation would unwind the stack, which Rust frames do not support.

use std::ffi::c_int;
use std::marker::PhantomData;

/// Defers cancellation of the calling thread while it lives. A pending cancellation acts at the thread's next cancellation point
/// after that.
#[derive(Debug)]
pub struct Uncancelled {
    before: c_int,
    /// Must stay on its thread.
    thread: PhantomData<*mut ()>,
}

/// PTHREAD_CANCEL_DISABLE of <pthread.h>.
const CANCEL_DISABLE: c_int = 1;

impl Uncancelled {
    /// Defers cancellation of the calling thread.
    #[expect(clippy::new_without_default, reason = "it is made for its effect")]
    pub fn new() -> Self {
        let mut before = 0;
        // SAFETY: the call only changes the calling thread's state, and returns the old one.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
        Self { before, thread: PhantomData }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: as above. With deferred cancellation, which is the default, the call itself is not a cancellation point.
        unsafe { pthread_setcancelstate(self.before, &raw mut ours) };
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Runs `f` in a thread whose cancellation is pending. A cancellation point in `f` ends the process: Rust frames cannot be unwound so.
#[cfg(test)]
pub(crate) fn while_pending<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    let cancelled = || {
        // SAFETY: it acts at a cancellation point.
        assert_eq!(unsafe { libc::pthread_cancel(libc::pthread_self()) }, 0);
        let result = f();
        // Nor does it act while the thread ends.
        std::mem::forget(Uncancelled::new());
        result
    };
    std::thread::scope(|scope| scope.spawn(cancelled).join().unwrap())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_cancellation_is_disabled_while_any_guard_lives() {
        let is_off = || {
            let mut now = 0;
            // SAFETY: as above.
            unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut now) };
            let mut ours = 0;
            // SAFETY: as above.
            unsafe { pthread_setcancelstate(now, &raw mut ours) };
            now == CANCEL_DISABLE
        };
        assert!(!is_off());
        let outer = Uncancelled::new();
        let inner = Uncancelled::new();
        drop(inner);
        assert!(is_off());
        drop(outer);
        assert!(!is_off());
    }
}
