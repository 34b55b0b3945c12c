//! Memory that others may change at any time, and the only ways to touch it.
//!
//! # Safety
//!
//! A [`Shared`] owns `len` bytes at `start` until it is dropped and never hands out a reference to
//! them. Peers may write them while we read. Therefore every access here is an atomic one of eight
//! aligned bytes or of a single byte, relaxed: a torn *message* is possible and documented, a data
//! race in the sense of the language is not.

#![expect(unsafe_code, reason = "bytes without a reference to them")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Where a page begins; also the alignment that lets any atomic be used.
const PAGE: usize = 4096;
/// Memory of this size and more is mapped rather than taken from the heap.
const MAPPING_FROM: usize = 16 * PAGE;

/// Who frees the bytes.
#[derive(Debug)]
enum Owner {
    /// Us, by this layout.
    Heap(Layout),
    /// Us: a mapping of its own, whose pages come into being when they are first touched.
    Mapping,
    /// A `Vec<u8>` of this capacity, given to us and to be given back.
    Vec { capacity: usize },
    /// The caller, who promised that they outlive us.
    Caller,
}

/// Bytes that are ours to free but that others may write.
#[derive(Debug)]
pub(crate) struct Shared {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

// SAFETY: every access is atomic, and the memory belongs to no thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Page-aligned zeroes.
    pub(crate) fn zeroed(len: usize) -> Self {
        if len >= MAPPING_FROM
            && let Some(start) = map(len)
        {
            return Self { start, len, owner: Owner::Mapping };
        }
        let layout = Layout::from_size_align(len.max(1), PAGE).expect("a length below isize::MAX");
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })
            .unwrap_or_else(|| handle_alloc_error(layout));
        Self { start, len, owner: Owner::Heap(layout) }
    }

    /// Takes over a vector, without a copy.
    pub(crate) fn from_vec(bytes: Vec<u8>) -> Self {
        let mut bytes = ManuallyDrop::new(bytes);
        let start = NonNull::new(bytes.as_mut_ptr()).expect("a vector's pointer is never null");
        Self { start, len: bytes.len(), owner: Owner::Vec { capacity: bytes.capacity() } }
    }

    /// Looks at memory that the caller keeps.
    ///
    /// # Safety
    /// `start .. start + len` is readable and writable until this is dropped, and nobody reads or
    /// writes it through a Rust reference meanwhile.
    pub(crate) unsafe fn borrowed(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, owner: Owner::Caller }
    }

    /// Gives the vector back; other memory is copied into one.
    pub(crate) fn into_vec(self) -> Vec<u8> {
        if let Owner::Vec { capacity } = self.owner {
            let this = ManuallyDrop::new(self);
            // SAFETY: pointer, length and capacity are those of the vector that `from_vec` forgot.
            return unsafe { Vec::from_raw_parts(this.start.as_ptr(), this.len, capacity) };
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

    /// The range, if it lies inside.
    fn check(&self, at: usize, len: usize) -> Range<usize> {
        let end = at.checked_add(len).filter(|end| *end <= self.len);
        at..end.unwrap_or_else(|| panic!("{len} bytes at {at} leave a region of {}", self.len))
    }

    fn byte(&self, i: usize) -> &AtomicU8 {
        debug_assert!(i < self.len, "checked by the caller");
        // SAFETY: inside the allocation (callers check), any alignment is right for a byte, and all
        // accesses of the whole module are atomic.
        unsafe { AtomicU8::from_ptr(self.start.as_ptr().add(i)) }
    }

    fn word(&self, i: usize) -> &AtomicU64 {
        debug_assert!(i + 8 <= self.len, "checked by the caller");
        // SAFETY: inside the allocation and aligned (callers check both).
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(i).cast()) }
    }

    /// Splits a range into bytes before the first aligned word, whole words, and the rest.
    fn words(&self, r: &Range<usize>) -> (usize, usize) {
        let misaligned = (self.start.as_ptr() as usize + r.start) % 8;
        let head = ((8 - misaligned) % 8).min(r.len());
        (r.start + head, r.start + head + (r.len() - head) / 8 * 8)
    }

    /// Copies out.
    ///
    /// # Panics
    /// If the range leaves the memory.
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) {
        let r = self.check(at, to.len());
        let (first, last) = self.words(&r);
        let (head, rest) = to.split_at_mut(first - r.start);
        let (body, tail) = rest.split_at_mut(last - first);
        for (i, b) in head.iter_mut().enumerate() {
            *b = self.byte(r.start + i).load(Ordering::Relaxed);
        }
        for (i, w) in body.chunks_exact_mut(8).enumerate() {
            w.copy_from_slice(&self.word(first + 8 * i).load(Ordering::Relaxed).to_ne_bytes());
        }
        for (i, b) in tail.iter_mut().enumerate() {
            *b = self.byte(last + i).load(Ordering::Relaxed);
        }
    }

    /// Copies in.
    ///
    /// # Panics
    /// If the range leaves the memory.
    pub(crate) fn write(&self, at: usize, from: &[u8]) {
        let r = self.check(at, from.len());
        let (first, last) = self.words(&r);
        let (head, rest) = from.split_at(first - r.start);
        let (body, tail) = rest.split_at(last - first);
        for (i, b) in head.iter().enumerate() {
            self.byte(r.start + i).store(*b, Ordering::Relaxed);
        }
        for (i, w) in body.chunks_exact(8).enumerate() {
            let word = u64::from_ne_bytes(w.try_into().expect("chunks of eight"));
            self.word(first + 8 * i).store(word, Ordering::Relaxed);
        }
        for (i, b) in tail.iter().enumerate() {
            self.byte(last + i).store(*b, Ordering::Relaxed);
        }
    }

    /// The eight aligned bytes at `at` as one atomic variable, in the host's byte order.
    ///
    /// # Panics
    /// If they leave the memory or are not aligned.
    pub(crate) fn atomic(&self, at: usize) -> &AtomicU64 {
        let r = self.check(at, 8);
        assert!(
            (self.start.as_ptr() as usize + r.start).is_multiple_of(8),
            "an atomic at {at} is not aligned"
        );
        self.word(r.start)
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
            Owner::Caller => {}
        }
    }
}

/// Zeroes that take no memory yet.
fn map(len: usize) -> Option<NonNull<u8>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new private mapping at an address of the kernel's choice touches nothing that is
    // there.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) };
    NonNull::new(start.ok()?.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offset_and_length_copies_exactly_its_bytes() {
        let m = Shared::zeroed(64);
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
        let m = Shared::zeroed(MAPPING_FROM + 3);
        assert!((m.as_ptr() as usize).is_multiple_of(PAGE));
        m.write(MAPPING_FROM, b"end");
        let mut tail = [1; 5];
        m.read(MAPPING_FROM - 2, &mut tail);
        assert_eq!(&tail, b"\0\0end");
    }

    #[test]
    fn a_vector_comes_back_as_it_went() {
        let v = vec![1, 2, 3];
        let p = v.as_ptr();
        let back = Shared::from_vec(v).into_vec();
        assert_eq!((back.as_ptr(), &back[..]), (p, &[1, 2, 3][..]));
    }

    #[test]
    #[should_panic(expected = "leave a region of 8")]
    fn a_range_that_leaves_is_refused() {
        Shared::zeroed(8).read(1, &mut [0; 8]);
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn an_unaligned_atomic_is_refused() {
        Shared::zeroed(16).atomic(1);
    }
}
