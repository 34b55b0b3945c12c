//! Signals of a program that uses guarded copies. Each scenario is a process of its own, this test's program started again,
//! because a handler belongs to a process and some tests expect it to be terminated.

use std::mem;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use rdmux_link::guarded::{self, Unmapped};

const SCENARIO: &str = "RDMUX_TEST_SCENARIO";

fn run(scenario: &str) -> ExitStatus {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(SCENARIO, scenario)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("panicked"), "{scenario}: {said}");
    output.status
}

/// Runs the scenario that another test selected.
#[test]
fn child() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: no core file is wanted.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
    // Rust's own handler is not under test here.
    set(libc::SIGSEGV, libc::SIG_DFL, 0);
    match scenario.as_str() {
        "default" => {
            guarded::protect();
            ours_is_an_error();
            fault();
        }
        "killed" => {
            guarded::protect();
            raise();
        }
        "ignored" => {
            set(libc::SIGSEGV, libc::SIG_IGN, 0);
            guarded::protect();
            raise();
            ours_is_an_error();
            fault();
        }
        "before" => {
            set(libc::SIGSEGV, count as *const () as usize, libc::SA_SIGINFO);
            guarded::protect();
            counted_and_resumed(1);
        }
        "after" => {
            guarded::protect();
            set(libc::SIGSEGV, count as *const () as usize, libc::SA_SIGINFO);
            guarded::protect();
            counted_and_resumed(1);
            guarded::protect();
            counted_and_resumed(2);
        }
        "noticed" => {
            guarded::keep(5);
            set(libc::SIGSEGV, count as *const () as usize, libc::SA_SIGINFO);
            guarded::keep(5 + guarded::NOTICE);
            counted_and_resumed(1);
        }
        "chained" => {
            guarded::protect();
            let before = set(libc::SIGSEGV, pass_on as *const () as usize, libc::SA_SIGINFO);
            NEXT.store(before.sa_sigaction, Ordering::Relaxed);
            guarded::protect();
            ours_is_an_error();
            fault();
        }
        "put back" => {
            guarded::protect();
            let before = set(libc::SIGSEGV, leave as *const () as usize, 0);
            guarded::protect();
            // SAFETY: restores the previous action.
            unsafe { libc::sigaction(libc::SIGSEGV, &raw const before, ptr::null_mut()) };
            guarded::protect();
            ours_is_an_error();
            fault();
        }
        "once" => {
            let flags = libc::SA_SIGINFO | libc::SA_RESETHAND;
            set(libc::SIGSEGV, count as *const () as usize, flags);
            guarded::protect();
            counted_and_resumed(1);
            fault();
        }
        "stack and mask" => {
            on_a_stack();
            set(libc::SIGSEGV, look as *const () as usize, libc::SA_ONSTACK | libc::SA_NODEFER);
            guarded::protect();
            raise();
            assert_eq!(LOOKED.load(Ordering::Relaxed), ON_STACK | USR1_BLOCKED);
        }
        "plain stack" => {
            on_a_stack();
            set(libc::SIGSEGV, look as *const () as usize, 0);
            guarded::protect();
            raise();
            assert_eq!(LOOKED.load(Ordering::Relaxed), USR1_BLOCKED | SEGV_BLOCKED);
        }
        "many" => {
            // More handlers than there are layers: the kernel copies instead.
            for flags in 0..64 {
                let bits = [
                    libc::SA_NODEFER,
                    libc::SA_RESTART,
                    libc::SA_NOCLDSTOP,
                    libc::SA_NOCLDWAIT,
                    libc::SA_ONSTACK,
                    libc::SA_SIGINFO,
                ];
                let flags = (0..6).filter(|i| flags >> i & 1 != 0).map(|i| bits[i]).sum();
                set(libc::SIGSEGV, leave as *const () as usize, flags);
                guarded::protect();
                ours_is_an_error();
            }
        }
        "unmapped" => {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: new pages, one of them unmapped; no other thread maps memory here.
            let page = unsafe {
                let pages = libc::mmap(ptr::null_mut(), 3 * 4096, access, kind, -1, 0);
                let page = pages.cast::<u8>().add(4096);
                assert_eq!(libc::munmap(page.cast(), 4096), 0);
                page
            };
            let mut private = [0; 64];
            assert_eq!(guarded::read(page, &mut private), Err(Unmapped));
            assert_eq!(guarded::read(page.wrapping_sub(1), &mut private), Err(Unmapped));
            assert_eq!(guarded::read(page.wrapping_sub(64), &mut private), Ok(()));
            // SAFETY: no memory is mapped there.
            assert_eq!(unsafe { guarded::write(page, &private) }, Err(Unmapped));
        }
        "forked" => {
            guarded::protect();
            // SAFETY: the child copies, and ends.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    ours_is_an_error();
                    guarded::protect();
                    ours_is_an_error();
                    libc::_exit(0);
                }
                let mut status = -1;
                libc::waitpid(child, &raw mut status, 0);
                assert_eq!(status, 0);
            }
        }
        other => panic!("no scenario {other}"),
    }
}

/// Checks that a guarded copy of unmapped memory returns an error.
fn ours_is_an_error() {
    assert_eq!(guarded::read(ptr::without_provenance(16), &mut [0; 99]), Err(Unmapped));
}

fn counted_and_resumed(times: u32) {
    ours_is_an_error();
    fault();
    assert_eq!(COUNT.load(Ordering::Relaxed), times);
    ours_is_an_error();
}

/// Causes a fault of the program's own, at address 8; a handler may skip it.
fn fault() {
    // SAFETY: a load of two bytes of code, the only one here that faults; see `count`.
    unsafe {
        std::arch::asm!("mov al, [rcx]", in("rcx") 8_u64, out("al") _);
    }
}

fn raise() {
    // SAFETY: a signal to this thread.
    unsafe { libc::raise(libc::SIGSEGV) };
}

/// Installs a handler that blocks SIGUSR1 while it runs.
fn set(signal: i32, handler: usize, flags: i32) -> libc::sigaction {
    // SAFETY: all zeros is a valid action; the handlers of this file match their flags.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        let mut before: libc::sigaction = mem::zeroed();
        (action.sa_sigaction, action.sa_flags) = (handler, flags);
        libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR1);
        assert_eq!(libc::sigaction(signal, &raw const action, &raw mut before), 0);
        before
    }
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Counts the fault and skips its instruction.
unsafe extern "C" fn count(_: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel's arguments.
    unsafe {
        if (*info).si_addr() as usize != 8 {
            libc::_exit(99);
        }
        (&mut (*context).uc_mcontext.gregs)[libc::REG_RIP as usize] += 2;
    }
    COUNT.fetch_add(1, Ordering::Relaxed);
}

static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Chains to the previous handler, once, as well-behaved handlers do.
unsafe extern "C" fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if COUNT.fetch_add(1, Ordering::Relaxed) != 0 {
        // SAFETY: terminates the process.
        unsafe { libc::_exit(98) };
    }
    type Entry = unsafe extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
    // SAFETY: `NEXT` is a handler with three arguments.
    unsafe {
        let next: Entry = mem::transmute(NEXT.load(Ordering::Relaxed));
        next(signal, info, context);
    }
}

unsafe extern "C" fn leave(_: i32) {
    // SAFETY: terminates the process.
    unsafe { libc::_exit(97) };
}

const ON_STACK: i32 = 1;
const USR1_BLOCKED: i32 = 2;
const SEGV_BLOCKED: i32 = 4;
static LOOKED: AtomicI32 = AtomicI32::new(-1);

/// Records on which stack it runs, and which signals are blocked.
unsafe extern "C" fn look(_: i32) {
    // SAFETY: the calls fill in the structures.
    unsafe {
        let mut stack: libc::stack_t = mem::zeroed();
        libc::sigaltstack(ptr::null(), &raw mut stack);
        let mut mask: libc::sigset_t = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &raw mut mask);
        let mut seen = 0;
        for (bit, is) in [
            (ON_STACK, stack.ss_flags & libc::SS_ONSTACK != 0),
            (USR1_BLOCKED, libc::sigismember(&raw const mask, libc::SIGUSR1) == 1),
            (SEGV_BLOCKED, libc::sigismember(&raw const mask, libc::SIGSEGV) == 1),
        ] {
            seen |= if is { bit } else { 0 };
        }
        LOOKED.store(seen, Ordering::Relaxed);
    }
}

fn on_a_stack() {
    let bytes = Box::leak(vec![0_u8; 1 << 16].into_boxed_slice());
    let stack =
        libc::stack_t { ss_sp: bytes.as_mut_ptr().cast(), ss_flags: 0, ss_size: bytes.len() };
    // SAFETY: the memory is never freed.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) }, 0);
}

#[test]
fn own_fault_of_a_program_with_default_action_kills_it_with_sigsegv() {
    for scenario in ["default", "killed", "ignored"] {
        assert_eq!(run(scenario).signal(), Some(libc::SIGSEGV), "{scenario}");
    }
}

#[test]
fn program_handler_gets_only_faults_outside_of_guarded_copies() {
    for scenario in ["before", "after", "noticed"] {
        assert!(run(scenario).success(), "{scenario}: {}", run(scenario));
    }
}

#[test]
fn handler_installed_over_the_guard_may_chain_to_it() {
    assert_eq!(run("chained").signal(), Some(libc::SIGSEGV));
}

#[test]
fn handler_installed_over_the_guard_may_be_removed() {
    assert_eq!(run("put back").signal(), Some(libc::SIGSEGV));
}

#[test]
fn sigaction_flags_of_a_handler_below_the_guard_are_honoured() {
    assert_eq!(run("once").signal(), Some(libc::SIGSEGV));
    for scenario in ["stack and mask", "plain stack"] {
        assert!(run(scenario).success(), "{scenario}: {}", run(scenario));
    }
}

#[test]
fn kernel_copies_are_used_when_the_fault_handler_is_unavailable() {
    assert!(run("many").success(), "{}", run("many"));
}

#[test]
fn guarded_access_to_unmapped_pages_is_an_error() {
    assert!(run("unmapped").success(), "{}", run("unmapped"));
}

#[test]
fn a_forked_child_is_guarded() {
    assert!(run("forked").success());
}
