//! Memory that peers may change at any time, and the only ways to access it.
//!
//! # Safety
//!
//! A [`Shared`] owns `len` bytes at `start` until it is dropped, or forever if they are leaked ([`Shared::leak`]), and never hands out a
//! reference to them. Peers and other threads may write them during a read. So bytes are copied by [`guarded`], as in the engine: by
//! assembly routines or by the kernel. A copy may hold a mixture of old and new bytes. The only accesses within the language's memory model
//! are atomic ones of eight aligned bytes ([`Shared::atomic`]), which never overlap in part.

#![expect(unsafe_code, reason = "bytes without a reference to them")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rdmux_link::guarded::{self, Unmapped};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The page size, which is also an alignment that suits any atomic.
const PAGE: usize = 4096;
/// Memory of at least this size is mapped rather than taken from the heap.
const MAPPING_FROM: usize = 16 * PAGE;

/// The owner of the bytes, which frees them.
#[derive(Debug)]
enum Owner {
    /// The allocation of this crate, with this layout.
    Heap(Layout),
    /// A private mapping of this crate, whose pages are allocated when they are first touched.
    Mapping,
    /// A `Vec<u8>` of this capacity, which was passed in and may be returned.
    Vec { capacity: usize },
    /// The caller, who promised that the bytes outlive the [`Shared`], or none, because peers may use leaked bytes forever.
    Other,
}

/// Bytes that this crate owns but that peers may write.
#[derive(Debug)]
pub(crate) struct Shared {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

// SAFETY: every access may race with others, and the memory belongs to no thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Allocates page-aligned zeroed memory. Returns none if memory is insufficient.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        if len >= MAPPING_FROM
            && let Some(start) = map(len)
        {
            return Some(Self { start, len, owner: Owner::Mapping });
        }
        let layout = Layout::from_size_align(len.max(1), PAGE).ok()?;
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, len, owner: Owner::Heap(layout) })
    }

    /// Takes ownership of a vector without copying it.
    pub(crate) fn from_vec(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        let start = NonNull::new(bytes.as_mut_ptr()).expect("a vector's pointer is never null");
        Self { start, len: bytes.len(), owner: Owner::Vec { capacity: bytes.capacity() } }
    }

    /// Wraps memory that the caller owns.
    ///
    /// # Safety
    /// `start .. start + len` must be readable and writable until this is dropped, and must not be accessed through a
    /// Rust reference meanwhile.
    pub(crate) unsafe fn borrowed(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, owner: Owner::Other }
    }

    /// Leaks the bytes, because peers may use them forever.
    pub(crate) fn leak(&mut self) {
        self.owner = Owner::Other;
    }

    /// Returns the vector that this owns, leaving this empty, or a copy of memory of another kind.
    pub(crate) fn take_vec(&mut self) -> Vec<u8> {
        if let Owner::Vec { capacity } = self.owner {
            let (start, len) = (std::mem::replace(&mut self.start, NonNull::dangling()), self.len);
            (self.len, self.owner) = (0, Owner::Other);
            // SAFETY: pointer, length and capacity are those of the vector that `from_vec` forgot, and are forgotten here.
            return unsafe { Vec::from_raw_parts(start.as_ptr(), len, capacity) };
        }
        let mut copy = vec![0; self.len];
        self.read(0, &mut copy);
        copy
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// Returns the range if it is inside the memory, and panics otherwise.
    fn check(&self, at: usize, len: usize) -> Range<usize> {
        let end = at.checked_add(len).filter(|end| *end <= self.len);
        at..end
            .unwrap_or_else(|| panic!("{len} bytes at {at} exceed a region of {} bytes", self.len))
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If the range is not inside the memory, or if memory of the caller's is not mapped.
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) {
        let r = self.check(at, to.len());
        let copied = guarded::read(self.start.as_ptr().wrapping_add(r.start), to);
        copied.unwrap_or_else(|e| self.is_gone(e));
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    pub(crate) fn write(&self, at: usize, from: &[u8]) {
        let r = self.check(at, from.len());
        // SAFETY: inside the memory, which this owns, and to which there are no references.
        let copied = unsafe { guarded::write(self.start.as_ptr().wrapping_add(r.start), from) };
        copied.unwrap_or_else(|e| self.is_gone(e));
    }

    fn is_gone(&self, e: Unmapped) -> ! {
        panic!("{} registered bytes at {:p}: {e}", self.len, self.start)
    }

    /// Returns the eight aligned bytes at `at` as one atomic variable, in the host's byte order.
    ///
    /// # Panics
    /// If they are not inside the memory or not aligned.
    pub(crate) fn atomic(&self, at: usize) -> &AtomicU64 {
        let r = self.check(at, 8);
        let cell: *mut u64 = self.start.as_ptr().wrapping_add(r.start).cast();
        assert!(cell.is_aligned(), "an atomic at {at} is not aligned");
        // SAFETY: inside the memory and aligned, and all other accesses to it are atomic or by `guarded`.
        unsafe { AtomicU64::from_ptr(cell) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        match self.owner {
            // SAFETY: allocated with this layout in `zeroed`.
            Owner::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            // SAFETY: mapped with this length in `zeroed`. A failure would leave it mapped.
            Owner::Mapping => unsafe {
                let _ = munmap(self.start.as_ptr().cast(), self.len);
            },
            // SAFETY: the parts of the vector that `from_vec` forgot.
            Owner::Vec { capacity } => unsafe {
                drop(Vec::from_raw_parts(self.start.as_ptr(), self.len, capacity));
            },
            Owner::Other => {}
        }
    }
}

/// Maps zeroed pages that use no memory until they are touched.
fn map(len: usize) -> Option<NonNull<u8>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new private mapping at an address chosen by the kernel overlaps no existing mapping.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) };
    NonNull::new(start.ok()?.cast())
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MprotectFlags, mprotect};

    use super::*;

    #[test]
    fn every_offset_and_length_copies_exactly_its_bytes() {
        let m = Shared::zeroed(64).unwrap();
        for at in 0..24 {
            for len in 0..=32_u8 {
                m.write(0, &[0xee; 64]);
                let data: Vec<u8> = (0..len).map(|i| i + 1).collect();
                m.write(at, &data);
                let mut all = [0; 64];
                m.read(0, &mut all);
                let mut expected = [0xee; 64];
                expected[at..at + usize::from(len)].copy_from_slice(&data);
                assert_eq!(all, expected, "{len} bytes at {at}");
                let mut part = vec![0; usize::from(len)];
                m.read(at, &mut part);
                assert_eq!(part, data);
            }
        }
    }

    #[test]
    fn large_memory_is_zeroed_aligned_and_writable_to_its_end() {
        let m = Shared::zeroed(MAPPING_FROM + 3).unwrap();
        assert!((m.as_ptr() as usize).is_multiple_of(PAGE));
        m.write(MAPPING_FROM, b"end");
        let mut tail = [1; 5];
        m.read(MAPPING_FROM - 2, &mut tail);
        assert_eq!(&tail, b"\0\0end");
    }

    #[test]
    fn allocation_beyond_available_memory_is_none() {
        for len in [1 << 60, isize::MAX as usize, usize::MAX] {
            assert!(Shared::zeroed(len).is_none(), "{len} bytes");
        }
    }

    #[test]
    fn take_vec_returns_the_same_allocation() {
        let v = vec![1, 2, 3];
        let p = v.as_ptr();
        let back = Shared::from_vec(v).take_vec();
        assert_eq!((back.as_ptr(), &back[..]), (p, &[1, 2, 3][..]));
    }

    #[test]
    fn take_vec_of_leaked_memory_returns_a_copy() {
        let v = vec![1, 2, 3];
        let p = v.as_ptr();
        let mut m = Shared::from_vec(v);
        m.leak();
        let copy = m.take_vec();
        assert_eq!(copy, [1, 2, 3]);
        assert_ne!(copy.as_ptr(), p);
        m.write(0, b"one");
        drop(m);
        // SAFETY: leaked above, so it still exists, and freed here once.
        drop(unsafe { Vec::from_raw_parts(p.cast_mut(), 3, 3) });
    }

    #[test]
    #[should_panic(expected = "the memory is not mapped")]
    fn read_of_unmapped_memory_panics_with_its_cause() {
        let start = map(PAGE).unwrap();
        // SAFETY: the test is about the range no longer being readable.
        let m = unsafe { Shared::borrowed(start, PAGE) };
        m.write(0, b"there");
        // SAFETY: nothing else uses the mapping.
        unsafe { mprotect(start.as_ptr().cast(), PAGE, MprotectFlags::empty()) }.unwrap();
        m.read(0, &mut [0; 5]);
    }

    #[test]
    #[should_panic(expected = "exceed a region of 8 bytes")]
    fn read_beyond_memory_region_panics() {
        Shared::zeroed(8).unwrap().read(1, &mut [0; 8]);
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn an_unaligned_atomic_is_refused() {
        Shared::zeroed(16).unwrap().atomic(1);
    }
}
