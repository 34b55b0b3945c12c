//! A memfd and its mappings, as words of a model; see `mmap`.
//!
//! # What the unsafe code here relies on
//!
//! The threads of a model run one at a time, and switch only inside accesses to atomics. So while a reference to a word lives for
//! one call, no other exists.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use loom::sync::atomic::{AtomicU64, Ordering};
use rustix::fs::MemfdFlags;

use crate::guarded::Unmapped;

loom::lazy_static! {
    /// The files behind the descriptors of one execution, by inode number.
    static ref FILES: Mutex<HashMap<u64, Arc<[Word]>>> = Mutex::default();
}

#[derive(Debug)]
struct Word(UnsafeCell<AtomicU64>);

/// See `mmap::Mapping`.
#[derive(Debug)]
pub(crate) struct Mapping(Arc<[Word]>);

// SAFETY: see the head of this file.
unsafe impl Send for Mapping {}
// SAFETY: see the head of this file.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn create_fd(name: &str, len: usize) -> io::Result<OwnedFd> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
        let words = (0..len / 8).map(|_| Word(UnsafeCell::new(AtomicU64::new(0)))).collect();
        FILES.lock().unwrap().insert(rustix::fs::fstat(&fd)?.st_ino, words);
        Ok(fd)
    }

    pub(crate) fn create_readable(name: &str, len: usize) -> io::Result<(OwnedFd, Self)> {
        let fd = Self::create_fd(name, len)?;
        let map = Self::map(&fd, len)?;
        Ok((fd, map))
    }

    pub(crate) fn map(fd: impl AsFd, len: usize) -> io::Result<Self> {
        let file = FILES.lock().unwrap()[&rustix::fs::fstat(&fd)?.st_ino].clone();
        assert!(len / 8 <= file.len());
        Ok(Self(file))
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert_eq!(offset % 8, 0);
        // SAFETY: see the head of this file; `change` makes the only other reference.
        unsafe { &*self.0[offset / 8].0.get() }
    }

    pub(crate) fn row(&self, offset: usize, n: usize) -> impl Iterator<Item = &AtomicU64> {
        (0..n).map(move |i| self.word(offset + 8 * i))
    }

    /// Stores part of a word, which must be ordered with every other access to the word.
    fn change(&self, offset: usize, byte: u8) {
        // SAFETY: see the head of this file.
        let word = unsafe { &mut *self.0[offset / 8].0.get() };
        word.with_mut(|word| {
            let mut bytes = word.to_ne_bytes();
            bytes[offset % 8] = byte;
            *word = u64::from_ne_bytes(bytes);
        });
    }

    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) {
        for (at, byte) in (offset..).zip(to) {
            // SAFETY: see the head of this file.
            *byte = unsafe { self.word(at & !7).unsync_load() }.to_ne_bytes()[at % 8];
        }
    }

    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        for (at, byte) in (offset..).zip(from) {
            self.change(at, *byte);
        }
    }

    /// # Safety
    ///
    /// As for the function of `mmap`.
    pub(crate) unsafe fn read_raw(&self, offset: usize, to: *mut u8, len: usize) {
        // SAFETY: by the caller's promise.
        self.read(offset, unsafe { std::slice::from_raw_parts_mut(to, len) });
    }

    /// Is not modelled, and panics.
    ///
    /// # Safety
    ///
    /// As for the function of `mmap`.
    pub(crate) unsafe fn slice(&self, _: usize, _: usize) -> &[u8] {
        panic!("not modelled")
    }

    pub(crate) fn write_guarded(&self, _: usize, _: *const u8, _: usize) -> Result<(), Unmapped> {
        panic!("not modelled")
    }
}

/// See `mmap::ReadMapping`.
#[derive(Debug)]
pub(crate) struct ReadMapping(Mapping);

impl ReadMapping {
    pub(crate) fn map(fd: impl AsFd, len: usize) -> io::Result<Self> {
        Mapping::map(fd, len).map(Self)
    }

    pub(crate) fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.0.word(offset).load(order)
    }
}
