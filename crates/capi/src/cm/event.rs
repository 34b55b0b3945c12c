//! Events, as programs hold them.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use rdmux_cm::{ConnParam, EventKind, EventParam, IdHandle, UdParam};

use super::id::Id;
use super::process::Process;
use crate::abi::cma::*;
use crate::abi::rdmux_cm::*;
use crate::boundary::{Errno, number, status, zeroed};
use crate::verbs::attr::ah_attr;

/// `rdma_cm_event`, with the data that its pointers refer to.
#[repr(C)]
pub(super) struct Event {
    public: UnsafeCell<rdma_cm_event>,
    private_data: Vec<u8>,
    /// The peer's message that caused the event.
    mad: Option<Vec<u8>>,
    /// For an iWARP connection: whether either side may send first.
    peer_to_peer: Option<bool>,
    /// Keeps the id alive until the program acknowledges the event.
    _delivered: Delivered,
}

/// An event that the program holds, counted for an id. Dropping it acknowledges the event. For
/// CONNECT_REQUEST the id is the listener.
pub(super) struct Delivered {
    id: NonNull<Id>,
    /// For an event of a multicast group: its key.
    group: Option<u64>,
}

impl Delivered {
    /// Counts an event that will be delivered to the program, so that its id stays until it is acknowledged. None if
    /// the id was destroyed meanwhile.
    pub(super) fn by(process: &Process, handle: IdHandle) -> Option<Self> {
        process.find(handle, |id| {
            let id = id.cast::<Id>();
            // SAFETY: the table has the id's address, and the id lives while this runs; a call that destroys it waits for delivered
            // events.
            unsafe { id.as_ref() }.lock().unacknowledged += 1;
            Self { id, group: None }
        })
    }

    pub(super) fn id(&self) -> &Id {
        // SAFETY: the id waits for this to be dropped.
        unsafe { self.id.as_ref() }
    }

    /// Records that it is about a group. Returns false if the id has left the group meanwhile.
    pub(super) fn concerns_group(&mut self, key: u64) -> bool {
        let id = self.id;
        // SAFETY: as above.
        let mut state = unsafe { id.as_ref() }.lock();
        match state.groups.iter_mut().find(|g| g.key == key && !g.leaving) {
            Some(group) => {
                group.unacknowledged += 1;
                self.group = Some(key);
                true
            }
            None => false,
        }
    }
}

impl Drop for Delivered {
    fn drop(&mut self) {
        // An event inherited over a fork is the parent's, and its lock may be held.
        if self.id().process.is_ours() {
            self.id().event_acknowledged(self.group);
        }
    }
}

impl Event {
    /// Creates an event for the program.
    pub(super) fn new(delivered: Delivered, kind: EventKind, status: i32) -> Box<Self> {
        // SAFETY: zero is NULL, or no value, in every field.
        let mut public: rdma_cm_event = unsafe { zeroed() };
        public.id = delivered.id().public();
        public.event = kind as rdma_cm_event_type;
        public.status = status;
        let public = UnsafeCell::new(public);
        Box::new(Self {
            public,
            private_data: Vec::new(),
            mad: None,
            peer_to_peer: None,
            _delivered: delivered,
        })
    }

    /// Returns the id that the event counts for.
    pub(super) fn id(&self) -> &Id {
        self._delivered.id()
    }

    /// Returns the key of the multicast group that the event is about.
    pub(super) fn group(&self) -> Option<u64> {
        self._delivered.group
    }

    /// Stores the peer's message in it.
    pub(super) fn set_mad(&mut self, mad: Option<Vec<u8>>) {
        self.mad = mad;
    }

    /// Returns the peer's message of an event that the program holds.
    ///
    /// # Safety
    /// The event came from [`into_ptr`](Self::into_ptr), and lives as long as the result is used.
    pub(super) unsafe fn mad_of<'a>(event: *const rdma_cm_event) -> Option<&'a [u8]> {
        // SAFETY: the caller guarantees it; the program may write the public part, which is not borrowed here.
        let mad = unsafe { &(*event.cast::<Self>()).mad };
        mad.as_deref()
    }

    /// Returns whether either side of the connection may send first, according to an event that the program holds.
    ///
    /// # Safety
    /// As [`mad_of`](Self::mad_of).
    unsafe fn peer_to_peer_of(event: *const rdma_cm_event) -> Option<bool> {
        // SAFETY: as there.
        unsafe { (*event.cast::<Self>()).peer_to_peer }
    }

    /// Stores parameters in it.
    pub(super) fn set_param(&mut self, param: EventParam) {
        match param {
            EventParam::None | EventParam::Services(_) => {}
            EventParam::Conn(conn) => self.set_conn(conn),
            EventParam::Ud(ud) => self.set_ud(ud),
            EventParam::Arg(arg) => self.public.get_mut().param.arg = arg,
        }
    }

    fn set_conn(&mut self, param: ConnParam) {
        self.peer_to_peer = param.peer_to_peer;
        let (private_data, private_data_len) = self.keep(param.private_data);
        self.public.get_mut().param.conn = rdma_conn_param {
            private_data,
            private_data_len,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            flow_control: param.flow_control.into(),
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq: param.srq.into(),
            qp_num: param.qp_num.get(),
        };
    }

    fn set_ud(&mut self, param: UdParam) {
        let (private_data, private_data_len) = self.keep(param.private_data);
        self.public.get_mut().param.ud = rdma_ud_param {
            private_data,
            private_data_len,
            ah_attr: ah_attr(&param.av),
            qp_num: param.qp_num.get(),
            qkey: param.qkey.0,
        };
    }

    /// Keeps private data as long as the event, and returns their address and length.
    fn keep(&mut self, data: Vec<u8>) -> (*const c_void, u8) {
        self.private_data = data;
        if self.private_data.is_empty() {
            return (ptr::null(), 0);
        }
        let len = u8::try_from(self.private_data.len()).unwrap_or(u8::MAX);
        (self.private_data.as_ptr().cast(), len)
    }

    /// Stores the context of rdma_join_multicast as `private_data`, in events of multicast groups.
    pub(super) fn set_group_context(&mut self, context: *mut c_void) {
        // SAFETY: every bit pattern is a value of this part of the union.
        let ud = unsafe { &mut self.public.get_mut().param.ud };
        ud.private_data = context.cast_const();
    }

    /// Stores the new id of CONNECT_REQUEST. The event counts for the listener.
    pub(super) fn set_request(&mut self, new: *mut rdma_cm_id) {
        let public = self.public.get_mut();
        public.listen_id = public.id;
        public.id = new;
    }

    /// Returns the new id of CONNECT_REQUEST.
    pub(super) fn request(&self) -> *mut rdma_cm_id {
        // SAFETY: the program does not have it yet.
        unsafe { (*self.public.get()).id }
    }

    /// Changes the event's kind and status.
    pub(super) fn set_outcome(&mut self, kind: EventKind, status: i32) {
        let public = self.public.get_mut();
        public.event = kind as rdma_cm_event_type;
        public.status = status;
    }

    /// Returns the event's kind and status.
    pub(super) fn outcome(&self) -> (EventKind, i32) {
        // SAFETY: the program does not have it yet.
        let (event, status) = unsafe { ((*self.public.get()).event, (*self.public.get()).status) };
        let kind = EventKind::ALL.into_iter().find(|k| *k as rdma_cm_event_type == event);
        (kind.unwrap_or(EventKind::User), status)
    }

    /// Passes the event to the program.
    pub(super) fn into_ptr(self: Box<Self>) -> *mut rdma_cm_event {
        Box::into_raw(self).cast()
    }

    /// Takes back an event from the program.
    ///
    /// # Safety
    /// The pointer came from [`into_ptr`](Self::into_ptr), and is no longer used.
    pub(super) unsafe fn from_ptr(ptr: *mut rdma_cm_event) -> Box<Self> {
        // SAFETY: the caller guarantees it.
        unsafe { Box::from_raw(ptr.cast()) }
    }

    /// Takes back an event and acknowledges it.
    ///
    /// # Safety
    /// The pointer is NULL or an event's that the program holds and will no longer use.
    pub(super) unsafe fn acknowledge(ptr: *mut rdma_cm_event) {
        if !ptr.is_null() {
            // SAFETY: the caller guarantees that it came from `into_ptr`.
            drop(unsafe { Self::from_ptr(ptr) });
        }
    }
}

/// Stores an event in an id's `event`, and acknowledges the one that was there.
pub(super) fn set_event(id: &Id, event: Option<Box<Event>>) {
    let new = event.map_or(ptr::null_mut(), Event::into_ptr);
    // SAFETY: the field of an id in synchronous mode is this library's, and holds only events that were stored here.
    unsafe {
        let old = ptr::replace(&raw mut (*id.public()).event, new);
        Event::acknowledge(old);
    }
}

/// Acknowledges an event and frees its private data (rdma_ack_cm_event(3)).
///
/// # Safety
/// `event` is NULL or an event of rdma_get_cm_event(3), once.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    status(|| {
        if event.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller guarantees it.
        unsafe { Event::acknowledge(event) };
        Ok(())
    })
}

/// Returns the name of an event (rdma_event_str(3)).
#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    let name = match event {
        RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        RDMA_CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        RDMA_CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        RDMA_CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        RDMA_CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        RDMA_CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        RDMA_CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        RDMA_CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        RDMA_CM_EVENT_ADDRINFO_RESOLVED => c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        RDMA_CM_EVENT_ADDRINFO_ERROR => c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        RDMA_CM_EVENT_USER => c"RDMA_CM_EVENT_USER",
        RDMA_CM_EVENT_INTERNAL => c"RDMA_CM_EVENT_INTERNAL",
        RDMUX_CM_EVENT_ALTERNATE_REQUEST => c"RDMUX_CM_EVENT_ALTERNATE_REQUEST",
        RDMUX_CM_EVENT_ALTERNATE_RESPONSE => c"RDMUX_CM_EVENT_ALTERNATE_RESPONSE",
        RDMUX_CM_EVENT_MORE_TIME => c"RDMUX_CM_EVENT_MORE_TIME",
        _ => c"UNKNOWN EVENT",
    };
    name.as_ptr()
}

/// Returns 1 if either side of an iWARP connection may send first, 0 if the side that connects must; ENODATA for events without this
/// information (<rdmux/iwarp.h>).
///
/// # Safety
/// `event` is NULL or an event of rdma_get_cm_event(3) that is not acknowledged.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdmux_event_peer_to_peer(event: *const rdma_cm_event) -> c_int {
    number(|| {
        if event.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller guarantees it.
        unsafe { Event::peer_to_peer_of(event) }.map(c_int::from).ok_or(Errno(libc::ENODATA))
    })
}

/// Writes an event of the program's own to the id's channel: RDMA_CM_EVENT_USER with `status` and `arg`
/// (rdma_write_cm_event(3), newer than 44).
///
/// # Safety
/// `id` is an id of this library that outlives the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    arg: u64,
) -> c_int {
    crate::boundary::status(|| {
        if event != RDMA_CM_EVENT_USER {
            return Err(Errno::EINVAL);
        }
        // SAFETY: the caller guarantees it.
        let id = unsafe { Id::get(id)? };
        Ok(id.process.client()?.write_event(id.handle, EventKind::User, status, arg)?)
    })
}
