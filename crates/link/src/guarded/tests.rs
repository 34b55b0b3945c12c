//! Copies and atomics on missing memory, and handlers of the program.

use std::ptr;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::*;

const PAGE: usize = 4096;

/// Pages with a second half that is not fully accessible.
struct Pages {
    base: *mut u8,
    half: usize,
}

impl Pages {
    fn anonymous() -> Self {
        let (len, access) = (2 * PAGE, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping.
        let base = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE).unwrap()
        };
        Self { base: base.cast(), half: PAGE }
    }
    fn protect(flags: MprotectFlags) -> Self {
        let pages = Self::anonymous();
        // SAFETY: the second page is the test's own and unused.
        unsafe { rustix::mm::mprotect(pages.second().cast(), PAGE, flags).unwrap() };
        pages
    }
    /// Pages of a file that ends after the first page.
    fn truncated() -> Self {
        let file = memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, PAGE as u64).unwrap();
        let (len, access) = (2 * PAGE, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping.
        let base = unsafe {
            rustix::mm::mmap(ptr::null_mut(), len, access, MapFlags::SHARED, &file, 0).unwrap()
        };
        Self { base: base.cast(), half: PAGE }
    }
    fn second(&self) -> *mut u8 {
        self.base.wrapping_add(self.half)
    }
}

type Read = unsafe fn(*const u8, *mut u8, usize) -> Result<(), Unmapped>;
type Write = unsafe fn(*mut u8, *const u8, usize) -> Result<(), Unmapped>;

/// Both guards.
const GUARDS: [(&str, Read, Write); 2] =
    [("handler", read_raw, write_raw), ("kernel", kernel::read, kernel::write)];

#[test]
fn guarded_copies_of_every_size_and_alignment_are_exact() {
    let source: Vec<u8> = (0..700).map(|i| (i % 251) as u8).collect();
    for (name, read, write) in GUARDS {
        for len in (0..300).chain([511, 512, 513, 600]) {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 13), (15, 15), (8, 7)] {
                let mut target = vec![0xee_u8; 700];
                let right = |target: &[u8]| {
                    target[to..to + len] == source[from..from + len]
                        && target[..to].iter().chain(&target[to + len..]).all(|b| *b == 0xee)
                };
                // SAFETY: both ranges are inside their vectors.
                unsafe {
                    read(source[from..].as_ptr(), target[to..].as_mut_ptr(), len).unwrap();
                    assert!(right(&target), "{name}: read {len} from {from} to {to}");
                    target.fill(0xee);
                    write(target[to..].as_mut_ptr(), source[from..].as_ptr(), len).unwrap();
                    assert!(right(&target), "{name}: write {len} from {from} to {to}");
                }
            }
        }
    }
}

#[test]
fn guarded_copy_reaching_unmapped_memory_is_an_error_at_any_offset() {
    let (none, read_only) = (MprotectFlags::empty(), MprotectFlags::READ);
    for (name, read, write) in GUARDS {
        for (pages, readable) in [
            (Pages::protect(none), false),
            (Pages::protect(read_only), true),
            (Pages::truncated(), false),
        ] {
            for len in [1, 3, 8, 15, 16, 33, 64, 65, 200, 4096] {
                for inside in [0, len / 2, len - 1] {
                    let at = pages.second().wrapping_sub(inside);
                    let mut private = vec![0; len];
                    // SAFETY: `private` is as long; the memory at `at` is the test's own or unmapped.
                    unsafe {
                        let wrote = write(at, private.as_ptr(), len);
                        assert_eq!(wrote, Err(Unmapped), "{name}: write {len}, {inside} inside");
                        let got = read(at, private.as_mut_ptr(), len);
                        assert_eq!(got.is_ok(), readable, "{name}: read {len}, {inside} inside");
                    }
                }
            }
            let mut last = [0; 64];
            // SAFETY: the last bytes of the first page.
            unsafe { read(pages.second().wrapping_sub(64), last.as_mut_ptr(), 64).unwrap() };
        }
    }
}

#[test]
fn guarded_copy_of_null_and_non_canonical_addresses_is_an_error() {
    let mut private = [0; 100];
    for (name, read, write) in GUARDS {
        for at in [0, 8, 1 << 47, 0x1234 << 48, usize::MAX - 8, 0xffff_ffff_8000_0000] {
            let at = ptr::with_exposed_provenance_mut(at);
            // SAFETY: no program has memory at these addresses.
            unsafe {
                assert_eq!(read(at, private.as_mut_ptr(), 100), Err(Unmapped), "{name} {at:p}");
                assert_eq!(write(at, private.as_ptr(), 100), Err(Unmapped), "{name} {at:p}");
            }
        }
    }
}

#[test]
fn guarded_atomics_on_read_only_memory_are_an_error() {
    let mut cell = 40_u64;
    let own = &raw mut cell;
    let pages = Pages::protect(MprotectFlags::READ);
    let theirs = pages.second().cast::<u64>();
    // SAFETY: the cell is a local; the page is the test's own.
    unsafe {
        assert_eq!(fetch_add(own, 2), Ok(40));
        assert_eq!(compare_swap(own, 42, 7), Ok(42));
        assert_eq!(compare_swap(own, 42, 8), Ok(7));
        assert_eq!(kernel::update(own, |v| v + 1), Ok(7));
        assert_eq!(*own, 8);
        assert_eq!(fetch_add(theirs, 2), Err(Unmapped));
        assert_eq!(compare_swap(theirs, 1, 2), Err(Unmapped), "even if it would not swap");
        assert_eq!(kernel::update(theirs, |v| v + 1), Err(Unmapped));
    }
}

#[test]
fn concurrent_faults_of_several_threads_are_errors() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let pages = Pages::protect(MprotectFlags::empty());
                for i in 0..1000 {
                    let mut private = [0; 128];
                    let from = pages.second().wrapping_sub(i % 128);
                    assert_eq!(super::read(from, &mut private), Err(Unmapped));
                }
            });
        }
    });
}

/// Returns the handler that the kernel has, by another name of the C library's function.
fn installed(signal: i32) -> usize {
    unsafe extern "C" {
        fn __sigaction(s: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> i32;
    }
    // SAFETY: all zeros is an action; the call fills it in.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        assert_eq!(__sigaction(signal, ptr::null(), &raw mut action), 0);
        action.sa_sigaction
    }
}

#[test]
fn sigaction_wrapper_hides_the_guard_handler() {
    extern "C" fn own(_: i32) {}
    protect();
    let ours = installed(libc::SIGBUS);
    let before = super::sigaction(libc::SIGBUS, None).unwrap();
    assert_ne!(before.sa_sigaction, ours, "somebody's lies below");

    let mut new = before;
    new.sa_sigaction = own as *const () as usize;
    new.sa_flags = libc::SA_RESTART;
    let replaced = super::sigaction(libc::SIGBUS, Some(&new)).unwrap();
    assert_eq!(replaced.sa_sigaction, before.sa_sigaction);
    assert_eq!(replaced.sa_flags, before.sa_flags);
    assert_ne!(installed(libc::SIGBUS), new.sa_sigaction, "it never is on top");
    let read = super::read(Pages::truncated().second(), &mut [0; 8]);
    assert_eq!(read, Err(Unmapped));

    let back = super::sigaction(libc::SIGBUS, Some(&before)).unwrap();
    assert_eq!((back.sa_sigaction, back.sa_flags), (new.sa_sigaction, new.sa_flags));
    assert_eq!(installed(libc::SIGBUS), ours, "the same entry as before");
    assert!(super::sigaction(libc::SIGTERM, None).is_none(), "the C library's business");
}
