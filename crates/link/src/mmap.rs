//! Mapped memory: memfds, and memory whose pages are sent zero-copy.
//!
//! # What the unsafe code here relies on
//!
//! A mapping of a memfd is valid from `mmap` to `munmap`, which is `Drop`. It is never remapped. It cannot fault: the file behind it is a
//! memfd that is sealed against shrinking, checked before mapping, is not of huge pages, and is at least as large as the mapping, checked
//! after the seal. Other processes may write to it at any time, so it is only accessed through atomics and raw copies into private memory,
//! and no two decisions are made from the same shared bytes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::guarded::{self, Unmapped};
use crate::sys;

/// File system of memfds of huge pages (statfs(2)): a page that was removed from such a file may not be available again, so that an access
/// gets SIGBUS in spite of all seals.
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// Returns whether this many bytes of memory are available: maps them, and unmaps them.
pub fn has_room(bytes: usize) -> bool {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address of the kernel's choice, which no other code knows.
    unsafe {
        rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes.max(1), access, flags)
            .and_then(|base| rustix::mm::munmap(base, bytes.max(1)))
            .is_ok()
    }
}

/// A memfd, mapped readable and, except inside [`ReadMapping`], writable. Page-aligned.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, and every access goes through atomics or raw copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates a memfd of `len` bytes, sealed against any change of size.
    pub(crate) fn create_fd(name: &str, len: usize) -> io::Result<OwnedFd> {
        if len == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(fd)
    }

    /// Creates a memfd of `len` bytes that only the returned mapping can write: others can only map it for reading. (On a kernel without
    /// that seal, every holder can write to it.)
    pub(crate) fn create_readable(name: &str, len: usize) -> io::Result<(OwnedFd, Self)> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        let map = Self::map(&fd, len)?;
        let _ = rustix::fs::fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE);
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SEAL)?;
        Ok((fd, map))
    }

    /// Maps the first `len` bytes.
    pub(crate) fn map(fd: impl AsFd, len: usize) -> io::Result<Self> {
        Self::map_for(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map_for(fd: impl AsFd, len: usize, access: ProtFlags) -> io::Result<Self> {
        let bad = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        if len == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| bad("not a memfd"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(bad("the memfd is not sealed against shrinking"));
        }
        if rustix::fs::fstatfs(&fd)?.f_type & 0xffff_ffff == HUGETLBFS_MAGIC {
            return Err(bad("the memfd is of huge pages"));
        }
        let size = u64::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0);
        if size < len as u64 {
            return Err(bad("the memfd is too small"));
        }
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &fd, 0)?
        };
        let base = NonNull::new(base.cast()).ok_or_else(|| bad("mapped at address zero"))?;
        Ok(Self { base, len })
    }

    /// Returns all of it as words, without a tail of less than a word.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, `len` bytes long, and lives as long as `self`.
        // Atomics may be written by others.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.len / 8) }
    }

    /// Returns the word at byte `offset`, which must be a multiple of eight inside the mapping.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        &self.words()[offset / 8]
    }

    /// Returns `n` words from byte `offset` on, as [`word`](Self::word).
    #[inline]
    pub(crate) fn row(&self, offset: usize, n: usize) -> impl Iterator<Item = &AtomicU64> {
        self.words()[offset / 8..offset / 8 + n].iter()
    }

    /// Copies from `offset` into `to`.
    pub(crate) fn read(&self, offset: usize, to: &mut [u8]) {
        // SAFETY: `to` is valid and private.
        unsafe { self.read_raw(offset, to.as_mut_ptr(), to.len()) }
    }

    /// Copies `len` bytes from `offset` to `to`.
    ///
    /// # Safety
    ///
    /// `to` must be writable for `len` bytes that no Rust reference covers.
    pub(crate) unsafe fn read_raw(&self, offset: usize, to: *mut u8, len: usize) {
        assert!(offset <= self.len && len <= self.len - offset, "inside the mapping");
        // SAFETY: in bounds by the line above; `to` by the caller's promise. A peer may write
        // meanwhile: the copy then holds some mixture, which is the peer's own doing.
        unsafe { copy(self.base.as_ptr().add(offset), to, len) }
    }

    /// Returns `len` bytes at `offset`, in place.
    ///
    /// # Safety
    ///
    /// No other process may write to them, or the caller makes no decision by them.
    pub(crate) unsafe fn slice(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset <= self.len && len <= self.len - offset, "inside the mapping");
        // SAFETY: in bounds by the line above; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), len) }
    }

    /// Copies `len` bytes from `from`, which may be unmapped, to `offset`.
    pub(crate) fn write_guarded(
        &self,
        offset: usize,
        from: *const u8,
        len: usize,
    ) -> Result<(), Unmapped> {
        assert!(offset <= self.len && len <= self.len - offset, "inside the mapping");
        // SAFETY: in bounds by the line above; no reference to these bytes exists.
        unsafe { guarded::read_raw(from, self.base.as_ptr().add(offset), len) }
    }

    /// Copies `from` to `offset`.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        assert!(offset <= self.len && from.len() <= self.len - offset, "inside the mapping");
        // SAFETY: in bounds by the line above; no reference to these bytes exists.
        unsafe { copy(from.as_ptr(), self.base.as_ptr().add(offset), from.len()) }
    }
}

/// Copies like `copy_nonoverlapping`, but without its function call for the few bytes of a header or a small message.
///
/// # Safety
///
/// As for `copy_nonoverlapping`.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    /// Copies two words, the first and the last, which may overlap.
    ///
    /// # Safety
    ///
    /// As above, and `len` is from one to two words.
    #[inline]
    unsafe fn words<T>(from: *const u8, to: *mut u8, len: usize) {
        let last = len - size_of::<T>();
        // SAFETY: both words are within the range, and the accesses need no alignment.
        unsafe {
            let first = from.cast::<T>().read_unaligned();
            let end = from.add(last).cast::<T>().read_unaligned();
            to.cast::<T>().write_unaligned(first);
            to.add(last).cast::<T>().write_unaligned(end);
        }
    }
    // SAFETY: the caller's promise, and the length.
    unsafe {
        match len {
            0 => {}
            1 => to.write(from.read()),
            2..=3 => words::<u16>(from, to, len),
            4..=7 => words::<u32>(from, to, len),
            8..=15 => words::<u64>(from, to, len),
            16..=32 => words::<u128>(from, to, len),
            33..=64 => words::<[u128; 2]>(from, to, len),
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

/// A memfd, mapped for reading: only loads are offered, because a store would fault.
#[derive(Debug)]
pub(crate) struct ReadMapping(Mapping);

impl ReadMapping {
    /// Maps the first `len` bytes.
    pub(crate) fn map(fd: impl AsFd, len: usize) -> io::Result<Self> {
        Mapping::map_for(fd, len, ProtFlags::READ).map(Self)
    }

    /// Loads the word at byte `offset`, which must be a multiple of eight inside the mapping.
    pub(crate) fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.0.word(offset).load(order)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, with this length, and nothing borrows it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Private memory of this process, whose pages can be sent zero-copy. It uses huge pages if available, so that few pages need reference
/// counts and lookups. Only accessed through raw copies, because the kernel may read it at any time.
#[derive(Debug)]
pub(crate) struct PrivateMapping {
    whole: NonNull<u8>,
    mapped: usize,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, and every access goes through raw copies.
unsafe impl Send for PrivateMapping {}
// SAFETY: as above. The methods document which of them two threads may call at once.
unsafe impl Sync for PrivateMapping {}

impl PrivateMapping {
    /// The alignment of a huge page.
    const HUGE: usize = 2 << 20;

    /// Maps `len` bytes, which take memory only when they are first written.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let mapped = len.checked_add(Self::HUGE).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let whole =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped, access, flags)? };
        let whole = NonNull::new(whole.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let skip = whole.as_ptr().align_offset(Self::HUGE).min(Self::HUGE);
        // SAFETY: at least `skip` bytes more than `len` are mapped.
        let base = unsafe { whole.add(skip) };
        let mapping = Self { whole, mapped, base, len };
        // The kernel may refuse both, which matters little. A child has no use for the mapping, and copying its pages would cost
        // time.
        for advice in [Advice::LinuxHugepage, Advice::LinuxDontFork] {
            // SAFETY: the range is this mapping's own, and neither advice changes its contents.
            let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, advice) };
        }
        Ok(mapping)
    }

    /// Copies `from` to `offset` with non-temporal stores: another processor reads it, and would have to fetch each line from this one's
    /// cache, which would later have to fetch it back. No other thread may write to the same bytes meanwhile.
    pub(crate) fn stream(&self, offset: usize, from: &[u8]) {
        assert!(offset <= self.len && from.len() <= self.len - offset, "inside the mapping");
        // SAFETY: in bounds by the line above; no reference to these bytes exists.
        unsafe { stream(from, self.base.as_ptr().add(offset)) }
    }

    /// Writes like [`stream`](Self::stream), but through the caches.
    pub(crate) fn write(&self, offset: usize, from: &[u8]) {
        assert!(offset <= self.len && from.len() <= self.len - offset, "inside the mapping");
        // SAFETY: in bounds by the line above; no reference to these bytes exists.
        unsafe { copy(from.as_ptr(), self.base.as_ptr().add(offset), from.len()) }
    }

    /// Puts the pages of `len` bytes at `offset` into a pipe. Returns how many bytes were put in.
    pub(crate) fn vmsplice(&self, offset: usize, len: usize, pipe: impl AsFd) -> io::Result<usize> {
        assert!(offset <= self.len && len <= self.len - offset, "inside the mapping");
        // SAFETY: in bounds by the line above. A thread that writes meanwhile, which `stream` forbids, races with the
        // kernel and not with this one, which only takes the address.
        let bytes = unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), len) };
        sys::name_pages(pipe, bytes)
    }

    /// Replaces the pages of `len` bytes at `offset`, both multiples of a page. The kernel keeps the old ones while it uses them.
    pub(crate) fn renew(&self, offset: usize, len: usize) -> io::Result<()> {
        assert!(offset <= self.len && len <= self.len - offset, "inside the mapping");
        // SAFETY: the range is this mapping's own, and no reference to its bytes exists.
        unsafe {
            let at = self.base.as_ptr().add(offset).cast();
            rustix::mm::madvise(at, len, Advice::LinuxDontNeed)?;
        }
        Ok(())
    }
}

impl Drop for PrivateMapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, with this length, and nothing borrows it any more.
        let _ = unsafe { rustix::mm::munmap(self.whole.as_ptr().cast(), self.mapped) };
    }
}

/// Copies with non-temporal stores if the processor has them.
///
/// # Safety
///
/// `to` must be writable for as many bytes as `from` has, and no Rust reference may cover them.
unsafe fn stream(from: &[u8], to: *mut u8) {
    // SAFETY: the caller's promise; the streamed bytes are the first part of both.
    unsafe {
        let done = stream_lines(from, to);
        let rest = &from[done..];
        std::ptr::copy_nonoverlapping(rest.as_ptr(), to.add(done), rest.len());
    }
}

/// Copies whole cache lines with non-temporal stores. Returns how many bytes were copied.
///
/// # Safety
///
/// As for [`stream`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream_lines(from: &[u8], to: *mut u8) -> usize {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    /// The size of a cache line.
    const LINE: usize = 64;
    if to.align_offset(LINE) != 0 {
        return 0;
    }
    let mut done = 0;
    for line in from.chunks_exact(LINE) {
        for part in (0..LINE).step_by(16) {
            // SAFETY: the part lies within the line, and as far into `to`, which is aligned. Every processor of this
            // kind has these instructions.
            unsafe {
                let bytes = _mm_loadu_si128(line.as_ptr().add(part).cast());
                _mm_stream_si128(to.add(done + part).cast(), bytes);
            }
        }
        done += LINE;
    }
    // SAFETY: as above. Streamed bytes become visible before later stores.
    unsafe { _mm_sfence() };
    done
}

/// Copies nothing: non-temporal stores are used on x86-64 only.
///
/// # Safety
///
/// As for [`stream`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream_lines(_from: &[u8], _to: *mut u8) -> usize {
    0
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, SealFlags};

    use super::{Mapping, PrivateMapping};

    fn bytes(mapping: &PrivateMapping, len: usize) -> Vec<u8> {
        // SAFETY: no other code knows the mapping, which is as long.
        unsafe { std::slice::from_raw_parts(mapping.base.as_ptr(), len) }.to_vec()
    }

    #[test]
    fn streaming_store_writes_exactly_its_range() {
        let mapping = PrivateMapping::new(1 << 16).unwrap();
        let from: Vec<u8> = (0..=255).cycle().take(4096).collect();
        for (offset, len) in [(0, 4096), (0, 4001), (64, 63), (1, 300), (4095, 1), (128, 0)] {
            mapping.renew(0, 1 << 16).unwrap();
            mapping.stream(offset, &from[..len]);
            let there = bytes(&mapping, 1 << 16);
            assert_eq!(there[offset..offset + len], from[..len]);
            assert_eq!(there.iter().filter(|b| **b != 0).count(), len - len.div_ceil(256));
        }
    }

    #[test]
    fn memfd_of_huge_pages_is_not_mapped() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let fd = match rustix::fs::memfd_create("huge", flags) {
            Ok(fd) => fd,
            // Kernels without them, and sandboxes, need no check.
            Err(e) => return println!("no memfd of huge pages here: {e}"),
        };
        rustix::fs::ftruncate(&fd, 2 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
        let refused = Mapping::map(&fd, 4096).unwrap_err();
        assert!(refused.to_string().contains("huge pages"), "{refused}");
    }

    #[test]
    #[should_panic(expected = "inside the mapping")]
    fn streaming_store_beyond_the_end_panics() {
        PrivateMapping::new(4096).unwrap().stream(4000, &[1; 97]);
    }

    #[test]
    fn short_copy_writes_exactly_its_length() {
        let from: Vec<u8> = (1..=200).collect();
        for len in 0..=130 {
            let mut to = vec![0; 200];
            // SAFETY: both are longer than that, and do not overlap.
            unsafe { super::copy(from.as_ptr(), to.as_mut_ptr(), len) };
            assert_eq!(to[..len], from[..len]);
            assert!(to[len..].iter().all(|b| *b == 0), "{len}");
        }
    }
}
