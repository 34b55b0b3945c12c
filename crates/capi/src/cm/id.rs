//! Connection manager ids.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::NonNull;

use parking_lot::{Condvar, Mutex, MutexGuard};
use rdmux_cm::{Ece, IdHandle, Negotiated, Route, UdParam};

use super::device::Device;
use super::found::Resolving;
use super::group::{self, Destinations, Group};
use super::phase::Phase;
use super::process::Process;
use super::verbs;
use crate::abi::cma::*;
use crate::abi::verbs::*;
use crate::boundary::{Errno, Result, zeroed};

/// `rdma_cm_id`.
#[repr(C)]
pub(super) struct Id {
    /// Programs read it at any time and may write a few fields, so it is accessed by raw pointer, never by
    /// reference.
    public: UnsafeCell<rdma_cm_id>,
    pub(super) handle: IdHandle,
    pub(super) process: &'static Process,
    state: Mutex<State>,
    acknowledged: Condvar,
    /// Held while the queue pair is attached or detached, so that it matches `State::groups`.
    attaching: Mutex<()>,
    /// The groups of `State::groups`, in the form that rdma_sendto reads.
    pub(super) destinations: Destinations,
}

// SAFETY: the program shares `public` between threads as the manual allows; the rest is `Sync`.
unsafe impl Sync for Id {}

/// The state that programs do not see.
pub(super) struct State {
    /// Whether calls complete before they return, on a channel of the id's own.
    pub(super) synchronous: bool,
    /// The attributes that the queue pair needs, as far as they are known.
    pub(super) negotiated: Option<Negotiated>,
    /// The route to the peer, as the last event reported it.
    pub(super) route: Option<Route>,
    /// The depths of the connection, of READs and atomics.
    pub(super) depths: Depths,
    /// Whether the queue pair could not follow a connection. Later events of the peer are then ignored.
    pub(super) failed: bool,
    /// The attributes of queue pairs that rdma_get_request creates.
    pub(super) qp_init_attr: Option<ibv_qp_init_attr>,
    /// Whether the shared receive queue completes to `recv_cq`, which therefore outlives the queue pair.
    pub(super) cq_of_srq: bool,
    /// The bytes that precede the program's private data (`ai_connect`).
    pub(super) connect_data: Vec<u8>,
    pub(super) local_ece: Ece,
    pub(super) remote_ece: Ece,
    pub(super) groups: Vec<Group>,
    pub(super) resolving: Resolving,
    /// The target of `route.path_rec`.
    pub(super) path: Option<Box<ibv_sa_path_rec>>,
    /// The id's phase.
    pub(super) phase: Phase,
    /// Whether the connection has ended, or its establishment failed. No event follows except TIMEWAIT_EXIT, much later.
    pub(super) is_over: bool,
    /// Whether an event has reported that the id's device is gone.
    pub(super) removed: bool,
    /// Whether other ids may want the id's port as soon as the id is destroyed.
    pub(super) has_known_port: bool,
    /// The number of events that the program holds.
    pub(super) unacknowledged: usize,
}

// SAFETY: the pointers in `qp_init_attr` are only kept for the program.
unsafe impl Send for State {}

/// The numbers of READs and atomics at a time.
#[derive(Clone, Copy, Default)]
pub(super) struct Depths {
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
}

/// The initial values of a new id.
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
    /// Creates an id, which events find from now on.
    pub(super) fn new(process: &'static Process, new: &New) -> Box<Self> {
        // SAFETY: zero is NULL, or no value, in every field.
        let mut public: rdma_cm_id = unsafe { zeroed() };
        public.channel = new.channel;
        public.context = new.context;
        public.ps = new.space;
        public.qp_type = new.qp_type;
        let state = State {
            synchronous: new.synchronous,
            negotiated: None,
            route: None,
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
            is_over: false,
            removed: false,
            has_known_port: false,
            unacknowledged: 0,
        };
        let id = Box::new(Self {
            public: UnsafeCell::new(public),
            handle: new.handle,
            process,
            state: Mutex::new(state),
            acknowledged: Condvar::new(),
            attaching: Mutex::new(()),
            destinations: Destinations::default(),
        });
        process.insert(new.handle, NonNull::from(&*id).cast());
        id
    }

    /// Passes the id to the program.
    pub(super) fn into_ptr(self: Box<Self>) -> *mut rdma_cm_id {
        Box::into_raw(self).cast()
    }

    /// Returns the part that the program sees.
    pub(super) fn public(&self) -> *mut rdma_cm_id {
        self.public.get()
    }

    /// Returns the id behind a pointer.
    ///
    /// # Errors
    /// EINVAL for NULL, ENODEV for one inherited over a fork: it is the parent's.
    ///
    /// # Safety
    /// The pointer is NULL or an id's that is not destroyed while the reference is used.
    pub(super) unsafe fn get<'a>(ptr: *mut rdma_cm_id) -> Result<&'a Self> {
        // SAFETY: the caller guarantees it.
        let id = unsafe { Self::peek(ptr)? };
        id.process.client().map(|_| id)
    }

    /// Returns the id as [`get`](Self::get) does, without checking that this process created it, which the caller's next step does.
    ///
    /// # Safety
    /// As for [`get`](Self::get).
    pub(super) unsafe fn peek<'a>(ptr: *mut rdma_cm_id) -> Result<&'a Self> {
        // SAFETY: not NULL, then an id's, whose address is that of its first field.
        unsafe { ptr.cast::<Self>().as_ref() }.ok_or(Errno::EINVAL)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Advances the id from phase `from` to `to` without a request to the service. Returns whether it was in `from`.
    pub(super) fn goes(&self, from: Phase, to: Phase) -> bool {
        let mut state = self.lock();
        let fits = state.phase == from;
        if fits {
            state.phase = to;
        }
        fits
    }

    /// Asks the service for a step, which advances the id to `phase` unless the service refuses.
    pub(super) fn tries<T, E>(
        &self,
        phase: Phase,
        ask: impl FnOnce() -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        // Before the event of this step can arrive.
        let before = std::mem::replace(&mut self.lock().phase, phase);
        let asked = ask();
        if asked.is_err() {
            self.is_at(before);
        }
        asked
    }

    /// Sets the phase, because the id has left the usual sequence, or the service has agreed to `phase`.
    pub(super) fn is_at(&self, phase: Phase) {
        self.lock().phase = phase;
    }

    /// Handles the acknowledgement of an event by the program.
    pub(super) fn event_acknowledged(&self, group: Option<u64>) {
        let mut state = self.lock();
        state.unacknowledged -= 1;
        if let Some(group) = state.groups.iter_mut().find(|g| Some(g.key) == group) {
            group.unacknowledged -= 1;
        }
        self.acknowledged.notify_all();
    }

    /// Changes groups, and publishes them to senders.
    pub(super) fn change_groups<R>(&self, f: impl FnOnce(&mut Vec<Group>) -> R) -> R {
        let mut state = self.lock();
        let result = f(&mut state.groups);
        self.destinations.publish(&state.groups);
        result
    }

    /// Attaches the queue pair to a joined group, if it must receive it and no other membership does so yet.
    pub(super) fn attach(&self, key: u64, how: &UdParam) -> Result<()> {
        let _turn = self.attaching.lock();
        let has_qp = !self.qp().is_null();
        if !self.change_groups(|groups| group::joined(groups, key, how, has_qp)) {
            return Ok(());
        }
        let attached = verbs::attach_mcast(self.qp(), &ibv_gid { raw: how.av.dgid.0 });
        if attached.is_err() {
            self.change_groups(|groups| group::left(groups, key));
        }
        attached
    }

    /// Detaches the queue pair from a group, unless another membership of the id receives it.
    pub(super) fn detach(&self, key: u64) {
        let _turn = self.attaching.lock();
        if let Some(mgid) = self.change_groups(|groups| group::left(groups, key))
            && !self.qp().is_null()
        {
            // A queue pair that the program has created in its place was never attached.
            let _ = verbs::detach_mcast(self.qp(), &ibv_gid { raw: mgid.0 });
        }
    }

    /// Waits until the program holds no more events that `held` selects.
    pub(super) fn wait_acknowledged(&self, held: impl Fn(&State) -> bool) {
        let mut state = self.lock();
        self.acknowledged.wait_while(&mut state, |state| held(state));
    }
}

/// Accessors of fields that the program sees.
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
    /// Returns the id's device, once it has one.
    pub(super) fn device(&self) -> Option<&'static Device> {
        self.process.device_of(self.verbs())
    }

    /// Returns whether the id's device is an iWARP device.
    pub(super) fn has_streams(&self) -> bool {
        self.device().is_some_and(Device::has_streams)
    }

    /// Returns whether the id's queue pair is UD.
    pub(super) fn is_ud(&self) -> bool {
        self.qp_type() == IBV_QPT_UD
    }

    /// Returns whether the id's queue pair completes receives to `recv_cq`. Neither end of XRC has a receive queue.
    pub(super) fn qp_receives(&self) -> bool {
        // SAFETY: NULL, or the id's, which lives.
        let qp = unsafe { self.qp().as_ref() };
        qp.is_some_and(|qp| !matches!(qp.qp_type, IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV))
    }
}
