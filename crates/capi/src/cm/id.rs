//! Ids.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rdmux_cm::{Ece, EventKind, IdHandle, Negotiated, PortSpace};

use super::addrinfo::Resolving;
use super::channel::Channel;
use super::device::Device;
use super::event::Event;
use super::multicast::Group;
use super::phase::Phase;
use super::process::Process;
use super::verbs::zeroed;
use crate::abi::cma::*;
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, status};
use crate::verbs::attr;

/// `rdma_cm_id`.
#[repr(C)]
pub(super) struct Id {
    /// Programs read it at any time and a few fields are theirs to write, so it is reached by raw pointer, never by
    /// reference.
    public: UnsafeCell<rdma_cm_id>,
    pub(super) handle: IdHandle,
    pub(super) process: &'static Process,
    state: Mutex<State>,
    acknowledged: Condvar,
}

// SAFETY: `public` is the program's to share between threads as the manual allows; the rest is.
unsafe impl Sync for Id {}

/// What programs do not see.
pub(super) struct State {
    /// Whether calls complete before they return, on a channel of the id's own.
    pub(super) synchronous: bool,
    /// What the queue pair needs, as far as it is known.
    pub(super) negotiated: Option<Negotiated>,
    /// The depths of the connection, of READs and atomics.
    pub(super) depths: Depths,
    /// The queue pair could not follow a connection. What the peer then says is of no interest.
    pub(super) failed: bool,
    /// What rdma_get_request makes queue pairs of.
    pub(super) qp_init_attr: Option<ibv_qp_init_attr>,
    /// The shared receive queue completes to `recv_cq`, which therefore outlives the queue pair.
    pub(super) cq_of_srq: bool,
    /// What goes before the program's private data (`ai_connect`).
    pub(super) connect_data: Vec<u8>,
    pub(super) local_ece: Ece,
    pub(super) remote_ece: Ece,
    pub(super) groups: Vec<Group>,
    pub(super) resolving: Resolving,
    /// Where `route.path_rec` points.
    pub(super) path: Option<Box<ibv_sa_path_rec>>,
    /// How far it has come.
    pub(super) phase: Phase,
    /// Its port is one that others may want as soon as it is destroyed.
    pub(super) has_known_port: bool,
    /// Events that the program holds.
    pub(super) unacknowledged: usize,
}

// SAFETY: the pointers in `qp_init_attr` are only kept for the program.
unsafe impl Send for State {}

/// READs and atomics at a time.
#[derive(Clone, Copy, Default)]
pub(super) struct Depths {
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
}

/// What a new id starts with.
pub(super) struct New {
    pub(super) handle: IdHandle,
    pub(super) phase: Phase,
    pub(super) channel: *mut rdma_event_channel,
    pub(super) synchronous: bool,
    pub(super) context: *mut c_void,
    pub(super) space: rdma_port_space,
    pub(super) qp_type: ibv_qp_type,
}

impl Id {
    /// A new id, which events find from now on.
    pub(super) fn new(process: &'static Process, new: &New) -> Box<Self> {
        // SAFETY: zero is NULL, or nothing, in every field.
        let mut public: rdma_cm_id = unsafe { zeroed() };
        public.channel = new.channel;
        public.context = new.context;
        public.ps = new.space;
        public.qp_type = new.qp_type;
        let state = State {
            synchronous: new.synchronous,
            negotiated: None,
            depths: Depths::default(),
            failed: false,
            qp_init_attr: None,
            cq_of_srq: false,
            connect_data: Vec::new(),
            local_ece: Ece::default(),
            remote_ece: Ece::default(),
            groups: Vec::new(),
            resolving: Resolving::default(),
            path: None,
            phase: new.phase,
            has_known_port: false,
            unacknowledged: 0,
        };
        let id = Box::new(Self {
            public: UnsafeCell::new(public),
            handle: new.handle,
            process,
            state: Mutex::new(state),
            acknowledged: Condvar::new(),
        });
        process.insert(&id);
        id
    }

    /// Gives the id to the program.
    pub(super) fn into_ptr(self: Box<Self>) -> *mut rdma_cm_id {
        Box::into_raw(self).cast()
    }

    /// What the program sees.
    pub(super) fn public(&self) -> *mut rdma_cm_id {
        self.public.get()
    }

    /// The id behind a pointer.
    ///
    /// # Errors
    /// EINVAL for NULL, ENODEV for one inherited over a fork: it is the parent's.
    ///
    /// # Safety
    /// The pointer is NULL or an id's that is not destroyed while the reference is used.
    pub(super) unsafe fn get<'a>(ptr: *mut rdma_cm_id) -> Result<&'a Self> {
        // SAFETY: not NULL, then an id's, whose address is that of its first field.
        let id = unsafe { ptr.cast::<Self>().as_ref() }.ok_or(Errno::EINVAL)?;
        id.process.client().map(|_| id)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether it has come just to `from`: then it goes on to `to`, which the service need not be asked about.
    pub(super) fn goes(&self, from: Phase, to: Phase) -> bool {
        let mut state = self.lock();
        let fits = state.phase == from;
        if fits {
            state.phase = to;
        }
        fits
    }

    /// From now on its way is not the usual one, or has come to `phase` with the service's consent.
    pub(super) fn is_at(&self, phase: Phase) {
        self.lock().phase = phase;
    }

    /// The program gave an event back.
    pub(super) fn event_acknowledged(&self, group: Option<u64>) {
        let mut state = self.lock();
        state.unacknowledged -= 1;
        if let Some(group) = state.groups.iter_mut().find(|g| Some(g.key) == group) {
            group.unacknowledged -= 1;
        }
        self.acknowledged.notify_all();
    }

    /// Waits as long as the program holds events of which `held` speaks.
    pub(super) fn wait_acknowledged(&self, held: impl Fn(&State) -> bool) {
        let mut state = self.lock();
        self.acknowledged.wait_while(&mut state, |state| held(state));
    }

    /// In synchronous mode: waits for the event that tells how the call went, and keeps it in `event`.
    ///
    /// # Errors
    /// What the event tells: ECONNREFUSED when the peer refused, else its errno.
    pub(super) fn complete(&self) -> Result<()> {
        if !self.lock().synchronous {
            return Ok(());
        }
        self.set_event(None);
        // SAFETY: in synchronous mode the channel is the id's own.
        let event = unsafe { Channel::get(self.channel())? }.next()?;
        let (kind, status) = event.outcome();
        self.set_event(Some(event));
        match (kind, status) {
            (_, 0) => Ok(()),
            (EventKind::Rejected, _) => Err(Errno(libc::ECONNREFUSED)),
            // A datagram service's refusal.
            (EventKind::Unreachable, 1..) => Err(Errno(libc::ECONNREFUSED)),
            (_, status) => Err(Errno(status.abs())),
        }
    }

    /// Puts an event into `event`, and acknowledges the one that was there.
    pub(super) fn set_event(&self, event: Option<Box<Event>>) {
        let new = event.map_or(ptr::null_mut(), Event::into_ptr);
        // SAFETY: the field of an id in synchronous mode is this library's, and holds nothing but events that were put here.
        unsafe {
            let old = ptr::replace(&raw mut (*self.public()).event, new);
            Event::acknowledge(old);
        }
    }
}

/// Accessors to fields that the program sees.
macro_rules! fields {
    (get { $($get:ident: $got:ty,)* } set { $($set:ident $field:ident: $type:ty,)* }) => {
        impl Id {
            $(
                pub(super) fn $get(&self) -> $got {
                    // SAFETY: the id lives, and the program does not change the field while it calls (rdma_cm(7)).
                    unsafe { (*self.public()).$get }
                }
            )*
            $(
                pub(super) fn $set(&self, value: $type) {
                    // SAFETY: as above.
                    unsafe { (*self.public()).$field = value };
                }
            )*
        }
    };
}
fields! {
    get {
        verbs: *mut ibv_context,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        qp: *mut ibv_qp,
        ps: rdma_port_space,
        port_num: u8,
        send_cq_channel: *mut ibv_comp_channel,
        send_cq: *mut ibv_cq,
        recv_cq_channel: *mut ibv_comp_channel,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        pd: *mut ibv_pd,
        qp_type: ibv_qp_type,
    }
    set {
        set_verbs verbs: *mut ibv_context,
        set_channel channel: *mut rdma_event_channel,
        set_qp qp: *mut ibv_qp,
        set_port_num port_num: u8,
        set_send_cq_channel send_cq_channel: *mut ibv_comp_channel,
        set_send_cq send_cq: *mut ibv_cq,
        set_recv_cq_channel recv_cq_channel: *mut ibv_comp_channel,
        set_recv_cq recv_cq: *mut ibv_cq,
        set_srq srq: *mut ibv_srq,
        set_pd pd: *mut ibv_pd,
    }
}

impl Id {
    /// Its device, once it has one.
    pub(super) fn device(&self) -> Option<&'static Device> {
        self.process.device_of(self.verbs())
    }

    /// Whether its device is one of iWARP.
    pub(super) fn is_iwarp(&self) -> bool {
        self.device().is_some_and(Device::is_iwarp)
    }

    /// Whether its queue pair is of UD.
    pub(super) fn is_ud(&self) -> bool {
        self.qp_type() == IBV_QPT_UD
    }

    /// Whether its queue pair completes receives to `recv_cq`. Neither end of XRC has a receive queue.
    pub(super) fn qp_receives(&self) -> bool {
        // SAFETY: NULL, or the id's, which lives.
        let qp = unsafe { self.qp().as_ref() };
        qp.is_some_and(|qp| !matches!(qp.qp_type, IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV))
    }
}

/// A new id, on `channel`, or in synchronous mode on one of its own if that is NULL.
///
/// # Safety
/// `channel` is NULL or a channel of this library that outlives the id.
pub(super) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    space: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<Box<Id>> {
    let code = u16::try_from(space).ok().and_then(PortSpace::from_code).ok_or(Errno::EINVAL)?;
    let transport = attr::qp_type(qp_type)?;
    let own = if channel.is_null() { Some(Channel::open(Process::current()?)?) } else { None };
    let on = match &own {
        Some(own) => own,
        // SAFETY: as promised.
        None => unsafe { Channel::get(channel)? },
    };
    let process = on.process();
    let handle =
        process.client()?.create_id_on(&*on.source()?, code, transport, process.transport(), 0)?;
    let synchronous = own.is_some();
    let channel = own.map_or(channel, Channel::into_ptr);
    Ok(Id::new(
        process,
        &New { handle, phase: Phase::New, channel, synchronous, context, space, qp_type },
    ))
}

/// A new id (rdma_create_id(3)). With a `channel` of NULL its calls complete before they return.
///
/// # Safety
/// `channel` is NULL or a channel of this library that outlives the id; `id` is NULL or may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    status(|| {
        let datagrams = matches!(ps, RDMA_PS_UDP | RDMA_PS_IPOIB);
        let qp_type = if datagrams { IBV_QPT_UD } else { IBV_QPT_RC };
        // SAFETY: as promised.
        unsafe {
            let id = id.as_mut().ok_or(Errno::EINVAL)?;
            *id = create(channel, context, ps, qp_type)?.into_ptr();
        }
        Ok(())
    })
}

/// Ends an id, in whatever state, once the events that the program holds of it are acknowledged: waits for that
/// (rdma_destroy_id(3)). Its queue pair is the program's to destroy before.
///
/// # Safety
/// `id` is NULL or an id of this library that nobody uses any more, but for acknowledging its events.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: as promised.
    status(|| unsafe { destroy(id) })
}

/// # Safety
/// As [`rdma_destroy_id`].
pub(super) unsafe fn destroy(ptr: *mut rdma_cm_id) -> Result<()> {
    // SAFETY: not NULL, then an id's.
    let id = unsafe { NonNull::new(ptr.cast::<Id>()).ok_or(Errno::EINVAL)?.as_ref() };
    let Ok(client) = id.process.client() else {
        // The parent's. Its locks may have been held when this process was forked.
        return Ok(());
    };
    // The id may be gone with its channel, or with the service.
    let others_wait = {
        let state = id.lock();
        state.has_known_port || !state.groups.is_empty()
    };
    let _ = match others_wait {
        true => client.destroy_id(id.handle).map(drop),
        false => client.destroy_id_soon(id.handle),
    };
    id.process.remove(id.handle);
    id.set_event(None);
    id.wait_acknowledged(|state| state.unacknowledged > 0);
    // SAFETY: it came from `into_ptr`; events no longer find it, and all that were delivered are back.
    let id = unsafe { Box::from_raw(ptr.cast::<Id>()) };
    if id.lock().synchronous {
        // SAFETY: the channel was opened for this id.
        unsafe { Channel::destroy(id.channel()) };
    }
    Ok(())
}

/// Moves an id, with the events that nobody has read, to another channel, or with NULL to synchronous mode
/// (rdma_migrate_id(3)). Waits until the events that the program holds are acknowledged.
///
/// # Safety
/// `id` is an id of this library that outlives the call; `channel` is NULL or a channel that outlives the id.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    status(|| {
        // SAFETY: as promised.
        let id = unsafe { Id::get(id)? };
        // SAFETY: as promised.
        unsafe { migrate(id, channel)? };
        id.wait_acknowledged(|state| state.unacknowledged > 0);
        Ok(())
    })
}

/// # Safety
/// `channel` is NULL or a channel that outlives the id.
pub(super) unsafe fn migrate(id: &Id, channel: *mut rdma_event_channel) -> Result<()> {
    let was_synchronous = id.lock().synchronous;
    if was_synchronous && channel.is_null() {
        return Err(Errno::EINVAL);
    }
    let own = if channel.is_null() { Some(Channel::open(id.process)?) } else { None };
    // SAFETY: an id's channel outlives it; the other as promised.
    let (from, to) = unsafe {
        let to = own.as_deref().map_or_else(|| Channel::get(channel), Ok)?;
        (Channel::get(id.channel())?, to)
    };
    id.process.client()?.migrate_id(id.handle, &*from.source()?, &*to.source()?)?;
    let old = id.channel();
    id.lock().synchronous = own.is_some();
    id.set_channel(own.map_or(channel, Channel::into_ptr));
    if was_synchronous {
        id.set_event(None);
        // SAFETY: the channel was opened for this id, which has another one now.
        unsafe { Channel::destroy(old) };
    }
    Ok(())
}
