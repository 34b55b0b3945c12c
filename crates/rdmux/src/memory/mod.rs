//! Protection domains and registered memory.

mod pages;
mod remote;

pub use remote::RemoteMr;

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdmux_transport::attr::Access;
use rdmux_verbs as verbs;
use rdmux_wire::{Lkey, Rkey};

use self::pages::Shared;
use crate::error::{Attempt, Cause, Error, Result};
use crate::{Context, Sge};

/// A protection domain. A queue pair reaches only regions of its own domain. Clones are the same domain; it is freed
/// when its last user is dropped.
#[derive(Clone)]
pub struct Pd {
    pub(crate) context: Context,
    pub(crate) verbs: verbs::Pd,
}

impl Pd {
    /// Creates a domain, even if the device's limit is reached.
    pub(crate) fn new(context: &Context) -> Self {
        Self { context: context.clone(), verbs: verbs::Pd::new(context.device()) }
    }

    /// Allocates a domain within the device's limit.
    pub(crate) fn try_new(context: &Context) -> Result<Self> {
        let verbs =
            verbs::Pd::alloc(context.device()).on(context, "allocate a protection domain")?;
        Ok(Self { context: context.clone(), verbs })
    }

    /// Returns the device that the domain belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Allocates `len` zeroed, page-aligned bytes and registers them. The region owns them.
    ///
    /// # Errors
    /// When memory or the device's limit of regions is exhausted.
    pub fn alloc(&self, len: usize, access: Access) -> Result<Mr> {
        let bytes = Shared::zeroed(len).ok_or_else(|| {
            let cause = Cause::Resources("out of memory".to_owned());
            Error::new(format!("{len} bytes of memory"), "allocate", cause)
        })?;
        self.register_shared(bytes, access)
    }

    /// Registers a vector without copying it. The region owns it until [`Mr::into_vec`] returns it.
    ///
    /// # Errors
    /// When the device's limit of regions is reached.
    pub fn register(&self, bytes: Vec<u8>, access: Access) -> Result<Mr> {
        self.register_shared(Shared::from_vec(bytes), access)
    }

    /// Registers memory that is owned elsewhere: a mapped file, another library's buffer.
    ///
    /// # Errors
    /// When the device's limit of regions is reached.
    ///
    /// # Safety
    /// The range must be readable and writable until the region is dropped. Until then no Rust reference to it may exist, because
    /// peers and the device read and write it at any time. If processes of this host may be stopped (SIGSTOP) in the middle of a
    /// copy, this holds forever, unless copies between processes are off (`RDMUX_CROSS_MEMORY=off`).
    #[expect(unsafe_code, reason = "the promise is the caller's")]
    pub unsafe fn register_raw(
        &self,
        start: NonNull<u8>,
        len: usize,
        access: Access,
    ) -> Result<Mr> {
        // SAFETY: the caller promises it.
        self.register_shared(unsafe { Shared::borrowed(start, len) }, access)
    }

    #[expect(unsafe_code, reason = "the promise about the bytes is kept by `Shared`")]
    fn register_shared(&self, bytes: Shared, access: Access) -> Result<Mr> {
        let init = verbs::MrInit::own(bytes.as_ptr(), bytes.len(), access);
        // SAFETY: `bytes` stays until the region reports that nothing uses it any more, or forever
        // (`Region::deregister`). It is writable, and no Rust reference covers it.
        let registered = unsafe { verbs::Mr::register(&self.verbs, init) };
        let region = registered.on(format_args!("{} bytes of memory", bytes.len()), "register")?;
        Ok(Mr(Arc::new(Region { region: Some(region), bytes })))
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pd of {}", self.context)
    }
}

/// Registered memory: bytes that the device, and peers if `access` permits, may read and write.
///
/// Its bytes are accessed by copying only, because a peer may write them at any moment. A copy that races with a peer
/// holds a mixture of old and new bytes and has no worse effect. The completion of a transfer shows that its
/// bytes are complete.
///
/// A clone is the same region. When the last one is dropped, the region is deregistered and then its memory freed. Work requests that
/// still name it complete with an error, on this side or the peer's. If a process of this host was stopped (SIGSTOP) while it copied
/// from or to any memory of the device, the drop waits up to three seconds for it. If the process has not resumed by then, its copy
/// may still happen, and the memory is leaked instead of freed.
///
/// ```
/// # use rdmux::{Access, Context, RemoteMr};
/// # fn main() -> rdmux::Result<()> {
/// # let context = Context::builder().embedded().open()?;
/// let pd = context.pd();
/// let mr = pd.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
/// mr.write(0, b"for whom it may concern");
/// let advert: [u8; RemoteMr::LEN] = mr.remote().slice(0..23).to_bytes(); // send this to the peer
/// assert_eq!(mr.to_vec(4..8), b"whom");
/// # let _ = advert; Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Mr(Arc<Region>);

/// The registration ends before the bytes are freed.
struct Region {
    /// The registration; none once the region is deregistered.
    region: Option<verbs::Mr>,
    bytes: Shared,
}

impl Region {
    fn verbs(&self) -> &verbs::Mr {
        self.region.as_ref().expect("it is there until the last clone goes")
    }

    /// Deregisters the region. The bytes are freed unless a peer may still copy from or to them; then they are
    /// leaked.
    fn deregister(&mut self) {
        if self.region.take().is_some_and(|region| !region.withdraw()) {
            self.bytes.leak();
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.deregister();
    }
}

impl Mr {
    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "an empty region is of no use")]
    pub fn len(&self) -> usize {
        self.0.bytes.len()
    }
    /// Returns the key for gather and scatter lists.
    pub fn lkey(&self) -> Lkey {
        self.0.verbs().lkey()
    }
    /// Returns the key that peers need.
    pub fn rkey(&self) -> Rkey {
        self.0.verbs().rkey()
    }
    /// Returns the region's start address, as work requests name it.
    pub fn addr(&self) -> u64 {
        self.0.verbs().range().start
    }
    /// Returns what a peer needs to access the whole region.
    pub fn remote(&self) -> RemoteMr {
        RemoteMr { addr: self.addr(), rkey: self.rkey(), len: self.len() as u64 }
    }
    /// Returns a part as an entry of a gather or scatter list.
    ///
    /// # Panics
    /// If the range is not inside the region or is of 4 GiB or more.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Sge {
        let (start, len) = self.resolve(range);
        let length = u32::try_from(len).expect("an entry of a list is below 4 GiB");
        Sge { addr: self.addr() + start as u64, length, lkey: self.lkey() }
    }
    /// Copies bytes out of the region.
    ///
    /// # Panics
    /// If the range is not inside the region, or if memory that was [registered raw](Pd::register_raw) is not mapped.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        self.0.bytes.read(at, into);
    }
    /// Copies bytes into the region.
    ///
    /// # Panics
    /// As for [`read`](Self::read).
    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.0.bytes.write(at, bytes);
    }
    /// Copies a part out into a vector.
    ///
    /// # Panics
    /// As for [`read`](Self::read).
    pub fn to_vec(&self, range: impl RangeBounds<usize>) -> Vec<u8> {
        let (start, len) = self.resolve(range);
        let mut copy = vec![0; len];
        self.read(start, &mut copy);
        copy
    }
    /// Reads the eight aligned bytes at `at` atomically, in the host's byte order. Peers' atomics operate on such bytes.
    ///
    /// # Panics
    /// If they are not inside the region or not aligned.
    pub fn load(&self, at: usize) -> u64 {
        self.0.bytes.atomic(at).load(Ordering::Acquire)
    }
    /// Writes the eight aligned bytes at `at` atomically, in the host's byte order.
    ///
    /// # Panics
    /// If they are not inside the region or not aligned.
    pub fn store(&self, at: usize, value: u64) {
        self.0.bytes.atomic(at).store(value, Ordering::Release);
    }
    /// Changes the access rights. The keys stay: peers that have them get the new rights from now on.
    ///
    /// # Errors
    /// When clones of it exist, or the rights are inconsistent. The region is unchanged then.
    #[expect(unsafe_code, reason = "the promise about the bytes is kept by `Shared`")]
    pub fn reregister(&mut self, access: Access) -> Result<()> {
        const ASKED: &str = "change the rights";
        let object = format!("{self:?}");
        let Some(Region { region: Some(region), .. }) = Arc::get_mut(&mut self.0) else {
            return Err(Error::new(
                object,
                ASKED,
                Cause::Invalid("clones of the region exist; drop them first".to_owned()),
            ));
        };
        let change = verbs::MrChange { access: Some(access), ..Default::default() };
        // SAFETY: the range is still the one that `bytes` keeps.
        unsafe { region.reregister(change) }.on(object, ASKED)
    }
    /// Deregisters the memory and returns it as a vector: the vector that was [registered](Pd::register), or a copy of other
    /// memory, or a copy of memory that a stopped process may still access.
    ///
    /// # Errors
    /// Returns the region unchanged if clones of it exist.
    pub fn into_vec(self) -> std::result::Result<Vec<u8>, Self> {
        let mut region = Arc::try_unwrap(self.0).map_err(Self)?;
        region.deregister();
        Ok(region.bytes.take_vec())
    }

    /// Returns start and length of a range.
    fn resolve(&self, range: impl RangeBounds<usize>) -> (usize, usize) {
        let start = match range.start_bound() {
            Bound::Included(s) => *s,
            Bound::Excluded(s) => *s + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(e) => *e + 1,
            Bound::Excluded(e) => *e,
            Bound::Unbounded => self.len(),
        };
        assert!(start <= end && end <= self.len(), "{start}..{end} exceeds {self:?}");
        (start, end - start)
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mr({} bytes at {:#x}, key {})", self.len(), self.addr(), self.lkey())
    }
}
