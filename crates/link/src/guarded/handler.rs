//! The handler of SIGSEGV and SIGBUS, which replaces the program's disposition and chains to it.
//!
//! The handler resolves a fault in one of the [`routine`]s. It passes every other signal to the previous action, as the kernel
//! would have done: with its mask, its flags, or the default action as if it had never been changed.
//!
//! A program may replace this handler at any time, keep it as the one to chain to, and later restore it. So each action that is
//! replaced gets another entry ([`Layer`]), which permanently records the action below it. Code that chains to an entry that it
//! found, or restores it, gets the action that it found, and no two handlers call each other in a cycle.
//!
//! If the program's `sigaction(2)` is intercepted ([`replace`]), its handlers are placed below immediately, and the program sees
//! none of this.
//!
//! # What the unsafe code here relies on
//!
//! The kernel calls a handler with a `siginfo_t` and a `ucontext_t` that are valid for the call, and a handler that chains to the
//! previous one passes on its arguments (`sigaction(2)`). The entries are async-signal-safe: atomics, and system calls. An
//! `Action` is a handler that the program had installed, and is called as the kernel would have called it.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::{mem, ptr};

use super::routine;
use super::turn::Turn;

unsafe extern "C" {
    /// The C library's function, by a name that no other library defines: `sigaction` itself may be intercepted.
    #[cfg_attr(target_env = "gnu", link_name = "__sigaction")]
    fn sigaction(signal: c_int, new: *const libc::sigaction, before: *mut libc::sigaction)
    -> c_int;
}

/// The signals that are handled.
pub(super) const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// The maximum number of a program's actions that are replaced, for each signal. Beyond that the operating system guards
/// accesses.
const LAYERS: usize = 16;

type Entry = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// The disposition of a signal (`struct sigaction`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Action {
    /// The address of a handler, or `SIG_DFL`, or `SIG_IGN`.
    handler: usize,
    flags: c_int,
    /// The signals that are blocked during the handler, in the kernel's form: one bit each.
    mask: u64,
}

/// An entry of this handler, and the action below it. No thread waits for another here: a signal handler may have interrupted the
/// thread that writes, and a child of `fork(2)` does not have that thread.
struct Layer {
    /// Zero, [`WRITING`](Self::WRITING) or [`WRITTEN`](Self::WRITTEN), which is permanent.
    state: AtomicU8,
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
    /// Whether the action with `SA_RESETHAND` has been used.
    spent: AtomicBool,
}

static TABLE: [[Layer; LAYERS]; SIGNALS.len()] =
    [const { [const { Layer::new() }; LAYERS] }; SIGNALS.len()];

/// The entries, indexed as the layers.
static ENTRIES: [Entry; LAYERS] = [
    enter::<0>,
    enter::<1>,
    enter::<2>,
    enter::<3>,
    enter::<4>,
    enter::<5>,
    enter::<6>,
    enter::<7>,
    enter::<8>,
    enter::<9>,
    enter::<10>,
    enter::<11>,
    enter::<12>,
    enter::<13>,
    enter::<14>,
    enter::<15>,
];

/// Installs the handler as the first for both signals. Returns false if that is not possible.
pub(super) fn install() -> bool {
    static TURN: Turn = Turn::new();
    // A thread that finds another one installing may rely on it.
    TURN.take(|| SIGNALS.iter().all(|&signal| come_over(signal))).unwrap_or(true)
}

fn come_over(signal: c_int) -> bool {
    let Some(mut below) = Action::of(signal) else { return false };
    while !below.is_ours() {
        let Some(ours) = Layer::over(signal, below) else { return false };
        let Some(before) = ours.set(signal) else { return false };
        if before == below {
            break;
        }
        // The program changed it meanwhile.
        if before.is_ours() {
            return before.set(signal).is_some();
        }
        below = before;
    }
    true
}

/// Emulates `sigaction(2)` for a program that must not see this handler: returns the program's action, and atomically places a
/// `new` one below this handler. Returns none, without effect, if this handler is not installed for the signal,
/// or cannot be placed above `new`.
pub(super) fn replace(signal: c_int, new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    if !SIGNALS.contains(&signal) {
        return None;
    }
    let mut before = Action::of(signal).filter(Action::is_ours)?;
    if let Some(new) = new.map(Action::from_c) {
        let ours = if new.is_ours() { new } else { Layer::over(signal, new)? };
        before = ours.set(signal)?;
    }
    Some(Layer::below(signal, before).to_c())
}

impl Layer {
    const WRITING: u8 = 1;
    const WRITTEN: u8 = 2;

    const fn new() -> Self {
        Self {
            state: AtomicU8::new(0),
            handler: AtomicUsize::new(0),
            flags: AtomicI32::new(0),
            mask: AtomicU64::new(0),
            spent: AtomicBool::new(false),
        }
    }

    /// Returns the action below, if it is known yet.
    fn get(&self) -> Option<Action> {
        (self.state.load(Ordering::Acquire) == Self::WRITTEN).then(|| Action {
            handler: self.handler.load(Ordering::Relaxed),
            flags: self.flags.load(Ordering::Relaxed),
            mask: self.mask.load(Ordering::Relaxed),
        })
    }

    /// Returns whether this action is below. Sets it if none is yet.
    fn is_over(&self, below: Action) -> bool {
        let (empty, order) = (0, Ordering::Relaxed);
        if self.state.compare_exchange(empty, Self::WRITING, order, order).is_ok() {
            self.handler.store(below.handler, Ordering::Relaxed);
            self.flags.store(below.flags, Ordering::Relaxed);
            self.mask.store(below.mask, Ordering::Relaxed);
            self.state.store(Self::WRITTEN, Ordering::Release);
        }
        self.get() == Some(below)
    }

    /// Returns the action as a program without knowledge of this handler must see it.
    fn below(signal: c_int, action: Action) -> Action {
        let entry = |entry: &Entry| *entry as *const () as usize == action.handler;
        let Some(layer) = ENTRIES.iter().position(entry).map(|at| &layers(signal)[at]) else {
            return action;
        };
        let below = layer.get().unwrap_or(action);
        let spent = below.flags & libc::SA_RESETHAND != 0 && layer.spent.load(Ordering::Relaxed);
        if spent { Action::DEFAULT } else { below }
    }

    /// Returns an action of this handler above another. It is reused if the program returns to that one.
    fn over(signal: c_int, below: Action) -> Option<Action> {
        let (layer, entry) =
            layers(signal).iter().zip(ENTRIES).find(|(layer, _)| layer.is_over(below))?;
        layer.spent.store(false, Ordering::Relaxed);
        // The handler below runs on its requested stack, and system calls restart as it requested.
        let kept = match below.handler {
            libc::SIG_DFL | libc::SIG_IGN => libc::SA_ONSTACK,
            _ => below.flags & (libc::SA_ONSTACK | libc::SA_RESTART),
        };
        Some(Action {
            handler: entry as *const () as usize,
            flags: libc::SA_SIGINFO | kept,
            mask: 0,
        })
    }
}

fn layers(signal: c_int) -> &'static [Layer; LAYERS] {
    &TABLE[usize::from(signal == SIGNALS[1])]
}

/// The entry that the kernel calls.
unsafe extern "C" fn enter<const LAYER: usize>(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: the kernel's arguments, or those that another handler passed on.
    unsafe {
        // A positive code means that the thread itself caused the signal, not kill(2).
        let fault = (*info).si_code > 0;
        if fault && routine::resume(context.cast()) {
            return;
        }
        let layer = &layers(signal)[LAYER];
        let Some(below) = layer.get() else { return };
        let once = below.flags & libc::SA_RESETHAND != 0;
        if once && layer.spent.swap(true, Ordering::Relaxed) {
            return Action::DEFAULT.deliver(signal, info, context);
        }
        below.deliver(signal, info, context);
    }
}

impl Action {
    const DEFAULT: Self = Self { handler: libc::SIG_DFL, flags: 0, mask: 0 };

    fn is_ours(&self) -> bool {
        ENTRIES.iter().any(|entry| *entry as *const () as usize == self.handler)
    }

    /// Returns the present action of a signal.
    fn of(signal: c_int) -> Option<Self> {
        Self::exchange(signal, None)
    }

    /// Installs this action, and returns the previous one.
    fn set(&self, signal: c_int) -> Option<Self> {
        Self::exchange(signal, Some(self))
    }

    fn exchange(signal: c_int, new: Option<&Self>) -> Option<Self> {
        let new = new.map(|new| new.to_c());
        // SAFETY: all zeros is a valid `sigaction`; the pointers are to such or null. The new action
        // is an entry of this handler, one that the kernel returned, or the default.
        unsafe {
            let mut before: libc::sigaction = mem::zeroed();
            let new = new.as_ref().map_or(ptr::null(), ptr::from_ref);
            (sigaction(signal, new, &raw mut before) == 0).then(|| Self::from_c(&before))
        }
    }

    fn from_c(action: &libc::sigaction) -> Self {
        /// A flag by which the C library passes its own information to the kernel.
        const SA_RESTORER: c_int = 0x0400_0000;
        // SAFETY: the kernel's mask is the first eight bytes of the C library's.
        let mask = unsafe { (&raw const action.sa_mask).cast::<u64>().read_unaligned() };
        Self { handler: action.sa_sigaction, flags: action.sa_flags & !SA_RESTORER, mask }
    }

    fn to_c(self) -> libc::sigaction {
        // SAFETY: all zeros is a valid `sigaction`, and the mask is as above.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = self.handler;
            action.sa_flags = self.flags;
            (&raw mut action.sa_mask).cast::<u64>().write_unaligned(self.mask);
            action
        }
    }

    /// Delivers a signal to this action as the kernel would have done. Called in a signal handler.
    ///
    /// # Safety
    ///
    /// The arguments must be those of the signal handler that is being called.
    unsafe fn deliver(&self, signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: by the caller's promise; see the head of this file.
        unsafe {
            match self.handler {
                // The kernel does not permit a thread to ignore a fault of its own.
                libc::SIG_IGN if (*info).si_code <= 0 => {}
                libc::SIG_IGN | libc::SIG_DFL => end(signal, info),
                handler => {
                    self.block(signal, context.cast());
                    if self.flags & libc::SA_SIGINFO != 0 {
                        let handler: Entry = mem::transmute(handler);
                        handler(signal, info, context);
                    } else {
                        let handler: unsafe extern "C" fn(c_int) = mem::transmute(handler);
                        handler(signal);
                    }
                }
            }
        }
    }

    /// Blocks the signals that the kernel would block while this handler runs: its mask, and the signal itself. When the handler
    /// returns, or jumps, the mask is set again in any case.
    ///
    /// # Safety
    ///
    /// `context` is that of a signal handler.
    unsafe fn block(&self, signal: c_int, context: *const libc::ucontext_t) {
        let itself = if self.flags & libc::SA_NODEFER == 0 { 1_u64 << (signal - 1) } else { 0 };
        // SAFETY: the kernel's mask is the first eight bytes of the C library's; the call reads one.
        unsafe {
            let before = (&raw const (*context).uc_sigmask).cast::<u64>().read_unaligned();
            let mask = before | self.mask | itself;
            let none = std::ptr::null_mut::<u64>();
            let set = libc::SIG_SETMASK;
            libc::syscall(libc::SYS_rt_sigprocmask, set, &raw const mask, none, size_of::<u64>());
        }
    }
}

/// Takes the default action: terminates the program by this signal, with the same `siginfo_t`. The signal is blocked now, and
/// takes effect when the handler returns, at the instruction that faulted.
///
/// # Safety
///
/// `info` must be the argument of the handler that is being called.
unsafe fn end(signal: c_int, info: *mut libc::siginfo_t) {
    Action::DEFAULT.set(signal);
    // SAFETY: `info` is valid; the call reads it.
    unsafe {
        let (process, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info);
    }
}
