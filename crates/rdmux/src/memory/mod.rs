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

/// A protection domain: what belongs together. A queue pair reaches only regions of its own domain.
/// Clones are the same domain; it goes when its last user goes.
#[derive(Clone)]
pub struct Pd {
    pub(crate) context: Context,
    pub(crate) verbs: verbs::Pd,
}

impl Pd {
    pub(crate) fn new(context: &Context) -> Self {
        Self { context: context.clone(), verbs: verbs::Pd::new(context.device()) }
    }

    pub(crate) fn try_new(context: &Context) -> Result<Self> {
        let verbs =
            verbs::Pd::alloc(context.device()).on(context, "allocate a protection domain")?;
        Ok(Self { context: context.clone(), verbs })
    }

    /// The device that it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Registers `len` zeroed, page-aligned bytes that the region owns.
    ///
    /// # Errors
    /// When there is not so much memory, or the device has no further region to give.
    pub fn alloc(&self, len: usize, access: Access) -> Result<Mr> {
        let bytes = Shared::zeroed(len).ok_or_else(|| {
            let cause = Cause::Resources("there is not so much".to_owned());
            Error::new(format!("{len} bytes of memory"), "allocate", cause)
        })?;
        self.register_shared(bytes, access)
    }

    /// Registers a vector, without a copy. The region owns it until
    /// [`Mr::into_vec`] gives it back.
    ///
    /// # Errors
    /// When the device has no further region to give.
    pub fn register(&self, bytes: Vec<u8>, access: Access) -> Result<Mr> {
        self.register_shared(Shared::from_vec(bytes), access)
    }

    /// Registers memory that somebody else owns: a mapped file, another library's buffer.
    ///
    /// # Errors
    /// When the device has no further region to give.
    ///
    /// # Safety
    /// The range is readable and writable until the region is dropped, and until then nobody makes
    /// a Rust reference to it: peers and the device read and write it at any time. If processes of this host may be stopped in the
    /// middle of a copy (SIGSTOP), that is so for ever, or copies between processes are off (`RDMUX_CROSS_MEMORY=off`).
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
        // SAFETY: `bytes` stays until the region says that nobody uses it any more, or for ever (`Region::deregister`),
        // is writable, and no Rust reference covers it.
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

/// Registered memory: bytes that the device, and peers if `access` says so, may read and write.
///
/// Its bytes are reached by copying only, for a peer may write them at any moment: a copy that
/// races with a peer holds a mixture of old and new bytes, and that is all that happens. To know
/// that bytes are complete, wait for the completion that says so.
///
/// A clone is the same region. When the last one goes, the region is deregistered first and
/// its memory freed then; work that still names it completes with an error, on this side or
/// the peer's. If a process of this host was stopped (SIGSTOP) in the middle of a copy from or to the device's memory, that is waited
/// for three seconds; if it has not gone on then, its copy may still come, and the memory is not freed but leaked.
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

/// First the registration goes, then the bytes.
struct Region {
    /// None once it is deregistered.
    region: Option<verbs::Mr>,
    bytes: Shared,
}

impl Region {
    fn verbs(&self) -> &verbs::Mr {
        self.region.as_ref().expect("it is there until the last clone goes")
    }

    /// Takes the bytes back, unless a peer may still copy from or to them: then they are nobody's.
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
    /// How many bytes.
    #[expect(clippy::len_without_is_empty, reason = "an empty region is of no use")]
    pub fn len(&self) -> usize {
        self.0.bytes.len()
    }
    /// The key for gather and scatter lists.
    pub fn lkey(&self) -> Lkey {
        self.0.verbs().lkey()
    }
    /// The key that peers need.
    pub fn rkey(&self) -> Rkey {
        self.0.verbs().rkey()
    }
    /// Where the region begins, as work requests name it.
    pub fn addr(&self) -> u64 {
        self.0.verbs().range().start
    }
    /// What a peer needs to reach all of it.
    pub fn remote(&self) -> RemoteMr {
        RemoteMr { addr: self.addr(), rkey: self.rkey(), len: self.len() as u64 }
    }
    /// A part, as an entry of a gather or scatter list.
    ///
    /// # Panics
    /// If the range leaves the region or is of 4 GiB or more.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Sge {
        let (start, len) = self.resolve(range);
        let length = u32::try_from(len).expect("an entry of a list is below 4 GiB");
        Sge { addr: self.addr() + start as u64, length, lkey: self.lkey() }
    }
    /// Copies out.
    ///
    /// # Panics
    /// If the range leaves the region, or memory that was [registered raw](Pd::register_raw) is not there.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        self.0.bytes.read(at, into);
    }
    /// Copies in.
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
    /// Reads the eight aligned bytes at `at`, whole, in the host's byte order: what atomics of
    /// peers work on.
    ///
    /// # Panics
    /// If they leave the region or are not aligned.
    pub fn load(&self, at: usize) -> u64 {
        self.0.bytes.atomic(at).load(Ordering::Acquire)
    }
    /// Writes the eight aligned bytes at `at`, whole, in the host's byte order.
    ///
    /// # Panics
    /// If they leave the region or are not aligned.
    pub fn store(&self, at: usize, value: u64) {
        self.0.bytes.atomic(at).store(value, Ordering::Release);
    }
    /// Changes who may do what with it. Its keys stay: peers who have them may do more, or less, from
    /// now on.
    ///
    /// # Errors
    /// When clones of it exist, or the rights make no sense; it then stays as it was.
    #[expect(unsafe_code, reason = "the promise about the bytes is kept by `Shared`")]
    pub fn reregister(&mut self, access: Access) -> Result<()> {
        const ASKED: &str = "change the rights";
        let object = format!("{self:?}");
        let Some(Region { region: Some(region), .. }) = Arc::get_mut(&mut self.0) else {
            return Err(Error::new(object, ASKED, Cause::Invalid("clones of it exist".to_owned())));
        };
        let change = verbs::MrChange { access: Some(access), ..Default::default() };
        // SAFETY: the range stays the one that `bytes` keeps.
        unsafe { region.reregister(change) }.on(object, ASKED)
    }
    /// Deregisters the memory and gives it back as a vector: the one that was
    /// [registered](Pd::register), or a copy of other memory, and of memory that a stopped process may still copy from or to.
    ///
    /// # Errors
    /// Gives the region back if clones of it exist.
    pub fn into_vec(self) -> std::result::Result<Vec<u8>, Self> {
        let mut region = Arc::try_unwrap(self.0).map_err(Self)?;
        region.deregister();
        Ok(region.bytes.take_vec())
    }

    /// Start and length of a range.
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
        assert!(start <= end && end <= self.len(), "{start}..{end} leaves {self:?}");
        (start, end - start)
    }
}

impl fmt::Debug for Mr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mr({} bytes at {:#x}, key {})", self.len(), self.addr(), self.lkey())
    }
}
