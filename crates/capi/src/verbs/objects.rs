//! The objects behind the pointers that programs hold.
//!
//! Each is a box that begins with the public structure of <infiniband/verbs.h>; its address is the C
//! pointer. Creation leaks the box, destruction takes it back. A pointer from the program is trusted to be
//! one that it was given and has not destroyed yet, as with the reference implementation; only NULL is detected.
//!
//! Programs read the public fields at any time and may write a few, so they are in an [`UnsafeCell`] and
//! are accessed by raw pointer, never by reference.

pub(crate) mod build;
pub(crate) mod clock;
pub(crate) mod dm;
pub(crate) mod domain;
pub(crate) mod generation;
pub(crate) mod lock;
pub(crate) mod poll;
pub(crate) mod users;

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rdmux_host::HostClient;
use rdmux_transport::attr::AddressVector;
use rdmux_verbs as verbs;
use rdmux_verbs::control::Control as _;
use rdmux_verbs::kind::Services;

use self::build::QpExt;
use self::clock::WallClock;
use self::dm::{Dms, MrExt};
use self::domain::PdExt;
use self::generation::Generation;
use self::poll::CqExt;
pub(crate) use self::users::{Use, Users};
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result};

/// An object that a program holds a pointer to.
///
/// # Safety
///
/// The type is `repr(C)`, and its first field is an `UnsafeCell` of a structure that begins with `Public`.
pub(crate) unsafe trait Object: Sized {
    /// The public structure.
    type Public;

    /// Returns the device that it belongs to.
    fn opened(&self) -> &Arc<Opened>;

    /// Returns the object behind a pointer.
    ///
    /// # Errors
    /// EINVAL for NULL, ENODEV for an object inherited over a fork: it is the parent's.
    ///
    /// # Safety
    /// The pointer is NULL or was made by [`into_ptr`](Self::into_ptr), and the object is not destroyed while the
    /// reference is used.
    unsafe fn get<'a>(ptr: *mut Self::Public) -> Result<&'a Self> {
        // SAFETY: the same guarantee, passed on.
        let object = unsafe { Self::peek(ptr)? };
        object.opened().check()?;
        Ok(object)
    }

    /// Returns the object as [`get`](Self::get) does, even if it is the parent's, which must not be changed.
    ///
    /// # Errors
    /// EINVAL for NULL.
    ///
    /// # Safety
    /// As for [`get`](Self::get).
    unsafe fn peek<'a>(ptr: *mut Self::Public) -> Result<&'a Self> {
        // SAFETY: not NULL, then an object of this library, whose address is that of its first field.
        unsafe { ptr.cast::<Self>().as_ref() }.ok_or(Errno::EINVAL)
    }

    /// Returns the C pointer.
    fn as_ptr(&self) -> *mut Self::Public {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Passes the object to the program.
    fn into_ptr(self: Box<Self>) -> *mut Self::Public {
        Box::into_raw(self).cast()
    }

    /// Takes the object back, to drop it.
    ///
    /// # Safety
    /// The pointer was made by [`into_ptr`](Self::into_ptr), and the object is no longer used.
    unsafe fn take(ptr: *mut Self::Public) -> Box<Self> {
        // SAFETY: the caller guarantees that it came out of a box of this type.
        unsafe { Box::from_raw(ptr.cast()) }
    }
}

/// The state that all objects made from one `ibv_open_device`, and imported contexts, share: the device with its engine, and the
/// connection to the host service.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) device: Arc<verbs::Device>,
    pub(crate) client: Arc<HostClient>,
    /// `cmd_fd`: an anonymous file, so that its inode identifies duplicates of it.
    pub(crate) cmd_fd: OwnedFd,
    generation: Generation,
    handles: AtomicU32,
    /// Domains by handle, for imports.
    pub(crate) pds: Mutex<HashMap<u32, Weak<PdCore>>>,
    /// Regions by handle, for imports.
    pub(crate) mrs: Mutex<HashMap<u32, Weak<MrCore>>>,
    pub(crate) dms: Arc<Dms>,
    pub(crate) wall_clock: WallClock,
}

impl Opened {
    pub(crate) fn new(
        device: Arc<verbs::Device>,
        client: Arc<HostClient>,
        cmd_fd: OwnedFd,
    ) -> Self {
        Self {
            device,
            client,
            cmd_fd,
            generation: Generation::current(),
            handles: AtomicU32::new(0),
            pds: Mutex::default(),
            mrs: Mutex::default(),
            dms: Arc::default(),
            wall_clock: WallClock::find(),
        }
    }

    /// Returns whether this process opened the device, and did not inherit it over a fork.
    pub(crate) fn is_ours(&self) -> bool {
        self.generation.is_current()
    }

    /// Fails with ENODEV if it was inherited.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_ours() { Ok(()) } else { Err(Errno(libc::ENODEV)) }
    }

    /// Fails with EOPNOTSUPP for a device that has no datagrams and no XRC, such as an iWARP device: the error for functions that
    /// its driver lacks.
    pub(crate) fn check_infiniband(&self) -> Result<()> {
        match self.client.info().kind.row().services {
            Services::All => Ok(()),
            Services::ReliableConnections => Err(Errno::EOPNOTSUPP),
        }
    }

    /// Returns a number for an object's `handle`.
    pub(crate) fn next_handle(&self) -> u32 {
        self.handles.fetch_add(1, Ordering::Relaxed)
    }
}

/// `ibv_context`, which is the tail of a `verbs_context`: the pointer is to the middle of the box.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) verbs: UnsafeCell<verbs_context>,
    pub(crate) opened: Arc<Opened>,
    /// Command and event descriptors of an imported context, which has duplicates of its own.
    pub(crate) own_fds: Option<[OwnedFd; 2]>,
}

const PUBLIC_CONTEXT: usize = offset_of!(verbs_context, context);

// SAFETY: `repr(C)`, and `as_ptr`, `peek`, `into_ptr` and `take` all use the offset of the public part.
unsafe impl Object for Context {
    type Public = ibv_context;

    fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }
    unsafe fn peek<'a>(ptr: *mut ibv_context) -> Result<&'a Self> {
        if ptr.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: a context of this library, so a `Context` begins that many bytes before.
        Ok(unsafe { &*ptr.byte_sub(PUBLIC_CONTEXT).cast() })
    }
    fn as_ptr(&self) -> *mut ibv_context {
        // SAFETY: the field is within the object.
        unsafe { &raw mut (*self.verbs.get()).context }
    }
    fn into_ptr(self: Box<Self>) -> *mut ibv_context {
        // SAFETY: the offset is that of a field of the box.
        unsafe { Box::into_raw(self).byte_add(PUBLIC_CONTEXT).cast() }
    }
    unsafe fn take(ptr: *mut ibv_context) -> Box<Self> {
        // SAFETY: `into_ptr` made it by adding the same offset to a box's pointer.
        unsafe { Box::from_raw(ptr.byte_sub(PUBLIC_CONTEXT).cast()) }
    }
}

/// Defines an object whose public structure comes first.
macro_rules! object {
    ($name:ident: $public:ty) => {
        // SAFETY: `repr(C)`, and the first field begins with the public structure.
        unsafe impl Object for $name {
            type Public = $public;
            fn opened(&self) -> &Arc<Opened> {
                &self.opened
            }
        }
    };
}

/// `ibv_pd`: a domain, one that was imported, or a parent domain.
#[repr(C)]
pub(crate) struct Pd {
    pub(crate) public: UnsafeCell<ibv_pd>,
    pub(crate) opened: Arc<Opened>,
    pub(crate) core: Arc<PdCore>,
    /// The state that makes it more than a plain domain.
    pub(crate) ext: PdExt,
}
object!(Pd: ibv_pd);

/// The state that a domain and its imports share.
#[derive(Debug)]
pub(crate) struct PdCore {
    pub(crate) pd: verbs::Pd,
    pub(crate) users: Users,
}

/// `ibv_mr`.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) public: UnsafeCell<ibv_mr>,
    pub(crate) opened: Arc<Opened>,
    pub(crate) core: Arc<MrCore>,
    /// The domain that it is in; none for an import.
    pub(crate) pd: Mutex<Option<Use>>,
    /// Its memory, unless that is the program's.
    pub(crate) ext: MrExt,
}
object!(Mr: ibv_mr);

/// The state that a memory region and its imports share.
#[derive(Debug)]
pub(crate) struct MrCore {
    pub(crate) mr: Mutex<verbs::Mr>,
}

/// `ibv_comp_channel`.
#[repr(C)]
pub(crate) struct CompChannel {
    pub(crate) public: UnsafeCell<ibv_comp_channel>,
    pub(crate) opened: Arc<Opened>,
    pub(crate) channel: verbs::CompChannel,
    pub(crate) users: Users,
}
object!(CompChannel: ibv_comp_channel);

/// `ibv_cq`, which is the head of an `ibv_cq_ex`.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) public: UnsafeCell<ibv_cq_ex>,
    pub(crate) opened: Arc<Opened>,
    /// Its context is the address of this object.
    pub(crate) cq: verbs::Cq,
    /// Queue pairs and shared receive queues that use it.
    pub(crate) users: Users,
    pub(crate) channel: Option<Use>,
    /// State of the extended interface.
    pub(crate) ext: CqExt,
}
object!(Cq: ibv_cq);

/// `ibv_srq`.
#[repr(C)]
pub(crate) struct Srq {
    pub(crate) public: UnsafeCell<ibv_srq>,
    pub(crate) opened: Arc<Opened>,
    /// Its context is the address of this object.
    pub(crate) srq: verbs::Srq,
    pub(crate) users: Users,
    /// Its domain and, if it belongs to an XRC domain, its completion queue.
    pub(crate) needs: [Option<Use>; 2],
}
object!(Srq: ibv_srq);

/// `ibv_xrcd`, which is the head of an `ibv_xrc_domain`.
#[repr(C)]
pub(crate) struct Xrcd {
    pub(crate) public: UnsafeCell<ibv_xrc_domain>,
    pub(crate) opened: Arc<Opened>,
    /// The engine's domain, which counts its own users.
    pub(crate) xrcd: verbs::Xrcd,
}
object!(Xrcd: ibv_xrcd);

/// `ibv_qp`, which is the head of an `ibv_qp_ex`.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) public: UnsafeCell<ibv_qp_ex>,
    pub(crate) opened: Arc<Opened>,
    /// Its context is the address of this object; its `qpn()` is `qp_num`.
    pub(crate) end: End,
    /// State of the extended interface.
    pub(crate) ext: QpExt,
    /// Its domain, completion queues and shared receive queue.
    pub(crate) needs: [Option<Use>; 4],
}
object!(Qp: ibv_qp);

/// The kind of endpoint that a queue pair is.
#[derive(Debug)]
pub(crate) enum End {
    /// A queue pair of the process.
    Own(verbs::Qp),
    /// A handle on an XRC receive queue pair, which belongs to no process. It accepts no requests.
    Target(verbs::Target),
}

impl Qp {
    /// Returns the queue pair, if it is the process's own.
    ///
    /// # Errors
    /// EINVAL for an XRC receive queue pair.
    pub(crate) fn own(&self) -> Result<&verbs::Qp> {
        match &self.end {
            End::Own(qp) => Ok(qp),
            End::Target(_) => Err(Errno::EINVAL),
        }
    }
}

/// `ibv_ah`.
#[repr(C)]
pub(crate) struct Ah {
    pub(crate) public: UnsafeCell<ibv_ah>,
    pub(crate) opened: Arc<Opened>,
    pub(crate) av: AddressVector,
    pub(crate) _permit: verbs::quota::Permit,
    pub(crate) pd: Use,
}
object!(Ah: ibv_ah);

impl Ah {
    /// Returns the address handle, for a queue pair of this device.
    ///
    /// # Errors
    /// EINVAL if it is another device's, where its GID index and port have another meaning.
    pub(crate) fn of_device(&self, opened: &Arc<Opened>) -> Result<&Self> {
        let is_same = |a: &Opened, b: &Opened| {
            a.client.info().kind == b.client.info().kind && a.client.host() == b.client.host()
        };
        let fits = Arc::ptr_eq(&self.opened, opened) || is_same(&self.opened, opened);
        if fits { Ok(self) } else { Err(Errno::EINVAL) }
    }
}
