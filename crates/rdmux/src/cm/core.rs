//! What an id shares with its events, and how its queue pair follows them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rdmux_cm::{Addr, EventKind, GroupAddr, IdHandle, Negotiated, PortSpace, Route, UdParam};
use rdmux_transport::attr::{Access, AttrMask, QpAttr, QpState};
use rdmux_wire::Gid;

use super::channel::EventChannel;
use super::event::Event;
use crate::error::{Attempt, Cause, Error, Result};
use crate::{Context, Qp};

/// What an id's events share with it.
pub(crate) struct Core {
    pub(super) handle: IdHandle,
    space: PortSpace,
    state: Mutex<State>,
    /// Held while the queue pair is attached to a group, or detached, as `State::groups` then says.
    attaching: Mutex<()>,
    acknowledged: Condvar,
    destroyed: AtomicBool,
    pub(super) context: Context,
}

pub(super) struct State {
    pub(super) channel: EventChannel,
    pub(super) qp: Option<Qp>,
    pub(super) negotiated: Option<Negotiated>,
    /// Whether this id came with a CONNECT_REQUEST.
    pub(super) passive: bool,
    pub(super) local: Option<Addr>,
    pub(super) route: Option<Route>,
    /// Whether the way to the peer is known, and no path to it is or is asked for.
    pub(super) wants_path: bool,
    /// Its multicast groups.
    pub(super) groups: Vec<Group>,
    /// The number of the last one.
    pub(super) last_group: u64,
    /// Events that the program holds.
    unacknowledged: usize,
}

/// A multicast group of an id.
#[derive(Clone)]
pub(super) struct Group {
    /// The host service tells it in the group's events.
    pub(super) key: u64,
    /// As the program named it; of a new group, once it is joined, the GID that it was given.
    pub(super) name: GroupAddr,
    /// Whether the attached queue pair is to hear it.
    pub(super) hears: bool,
    /// Whether it does. It is attached once, also if the id hears a group by several memberships.
    pub(super) attached: bool,
    /// How to reach it, or an errno: ENOTCONN until it is joined.
    pub(super) way: std::result::Result<UdParam, i32>,
}

impl Group {
    /// Whether a name is its: that by which it was joined, or its GID.
    pub(super) fn is_called(&self, name: GroupAddr) -> bool {
        self.name == name || matches!(name, GroupAddr::Gid(mgid) if self.has(mgid))
    }

    /// Whether this is its GID.
    pub(super) fn has(&self, mgid: Gid) -> bool {
        self.way.as_ref().is_ok_and(|way| way.av.dgid == mgid)
    }
}

/// The reason of a REJ by the program's wish (IBTA table 108).
pub(super) const REASON_CONSUMER: u16 = 28;

/// From RESET or INIT to where data flow.
pub(super) const UP: &[QpState] = &[QpState::Init, QpState::Rtr, QpState::Rts];

impl Core {
    pub(super) fn new(channel: &EventChannel, handle: IdHandle, space: PortSpace) -> Arc<Self> {
        let core = Arc::new(Self {
            handle,
            space,
            state: Mutex::new(State {
                channel: channel.clone(),
                qp: None,
                negotiated: None,
                passive: false,
                local: None,
                route: None,
                wants_path: false,
                groups: Vec::new(),
                last_group: 0,
                unacknowledged: 0,
            }),
            attaching: Mutex::new(()),
            acknowledged: Condvar::new(),
            destroyed: AtomicBool::new(false),
            context: channel.context().clone(),
        });
        channel.context().ids().insert(&core);
        core
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole at every point where its holder could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn event_delivered(&self) {
        self.lock().unacknowledged += 1;
    }

    pub(super) fn event_acknowledged(&self) {
        let mut state = self.lock();
        state.unacknowledged -= 1;
        if state.unacknowledged == 0 {
            self.acknowledged.notify_all();
        }
    }

    /// Waits until the program holds no event any more.
    pub(super) fn wait_acknowledged(&self) {
        drop(self.acknowledged.wait_while(self.lock(), |s| s.unacknowledged > 0));
    }

    /// Lets the id and its queue pair follow an event, as librdmacm does: what the event reports
    /// is then true of the queue pair too. None if the event is of a group that the id has left.
    pub(super) fn follow(self: Arc<Self>, mut event: rdmux_cm::Event) -> Result<Option<Event>> {
        let of_group = matches!(event.kind, EventKind::MulticastJoin | EventKind::MulticastError);
        let qp = {
            let mut state = self.lock();
            if of_group && !state.groups.iter().any(|group| group.key == event.context) {
                return Ok(None);
            }
            state.route = event.route.as_deref().copied().or(state.route);
            match event.kind {
                EventKind::AddrResolved => state.wants_path = true,
                EventKind::RouteResolved => state.wants_path = false,
                _ => {}
            }
            state.negotiated = event.negotiated.as_deref().copied().or(state.negotiated);
            state.qp.clone()
        };
        match (event.kind, qp) {
            (EventKind::ConnectResponse, Some(qp)) => {
                self.respond(&qp, &event)?;
                event.kind = EventKind::Established;
            }
            (EventKind::AlternateResponse, Some(qp)) if event.status == 0 => {
                let negotiated = event.negotiated.as_deref();
                negotiated
                    .map_or(Ok(()), |negotiated| advance(&qp, negotiated, &[QpState::Rts]))?;
            }
            (EventKind::Rejected, Some(qp)) => {
                // What was posted is flushed. A queue pair that cannot follow is the program's to see.
                let _ = qp.fail();
            }
            // The queue pair has its stream before the program hears of it.
            (EventKind::Established, _) if self.has_streams() => {
                self.context.device().sync_control()
            }
            (EventKind::MulticastJoin, qp) => self.joined(qp.as_ref(), &event)?,
            (EventKind::MulticastError, _) => {
                let why = event.status.saturating_abs();
                let turn = self.attaching();
                self.detach(event.context);
                drop(turn);
                self.change_group(event.context, |group| group.way = Err(why));
            }
            _ => {}
        }
        Ok(Some(Event::new(event, self)))
    }

    /// The peer accepted: brings the queue pair up and tells the peer so.
    fn respond(&self, qp: &Qp, event: &rdmux_cm::Event) -> Result<()> {
        let negotiated = event.negotiated.as_deref().ok_or_else(|| {
            let why = "the host service did not say what was agreed".to_owned();
            Error::new(self.to_string(), "connect", Cause::Invalid(why))
        })?;
        if let Err(e) = advance(qp, negotiated, UP) {
            // The peer must not wait for us; what went wrong here is the error to report.
            let _ = self.context.client().reject(self.handle, REASON_CONSUMER, &[]);
            return Err(e);
        }
        self.context.client().establish(self.handle).on(self, "establish")
    }

    /// A group is joined: the attached queue pair hears it, if it is to.
    fn joined(&self, qp: Option<&Qp>, event: &rdmux_cm::Event) -> Result<()> {
        let rdmux_cm::EventParam::Ud(ud) = &event.param else { return Ok(()) };
        let mgid = ud.av.dgid;
        let turn = self.attaching();
        let is_heard = self.lock().groups.iter().any(|group| group.attached && group.has(mgid));
        let attaches = self.change_group(event.context, |group| {
            group.way = Ok(ud.clone());
            if group.name.is_new() {
                group.name = mgid.into();
            }
            group.attached = group.hears && qp.is_some();
            group.attached && !is_heard
        });
        let attached = match qp {
            Some(qp) if attaches == Some(true) => qp.attach_multicast(mgid),
            _ => return Ok(()),
        };
        if attached.is_err() {
            // The id is no member then; what went wrong here is the error to report.
            self.lock().groups.retain(|group| group.key != event.context);
            drop(turn);
            let _ = self.context.client().leave_multicast(self.handle, event.context);
        }
        attached
    }

    /// Forgets a group, which the attached queue pair does not hear from now on. An event that tells of it changes nothing any more.
    pub(super) fn leave(&self, key: u64) {
        let _turn = self.attaching();
        self.detach(key);
        self.lock().groups.retain(|group| group.key != key);
    }

    fn attaching(&self) -> MutexGuard<'_, ()> {
        self.attaching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the attached queue pair out of a group, unless the id hears that by another membership, too. The caller has `attaching`.
    fn detach(&self, key: u64) {
        let attached = self.change_group(key, |group| {
            let was = std::mem::replace(&mut group.attached, false);
            group.way.as_ref().ok().filter(|_| was).map(|way| way.av.dgid)
        });
        let Some(mgid) = attached.flatten() else { return };
        let state = self.lock();
        let is_heard = state.groups.iter().any(|group| group.attached && group.has(mgid));
        let qp = state.qp.clone().filter(|_| !is_heard);
        drop(state);
        if let Some(qp) = qp {
            // One that was attached later was never in it.
            let _ = qp.detach_multicast(mgid);
        }
    }

    fn change_group<R>(&self, key: u64, f: impl FnOnce(&mut Group) -> R) -> Option<R> {
        self.lock().groups.iter_mut().find(|group| group.key == key).map(f)
    }

    /// Whether connections are streams.
    pub(super) fn has_streams(&self) -> bool {
        self.context.device().kind().has_streams()
    }

    pub(super) fn destroy(&self) -> Result<()> {
        if self.destroyed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.context.ids().remove(self.handle);
        self.context.client().destroy_id(self.handle).map(drop).on(self, "destroy")
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // If the service is gone, so is the id.
        let _ = self.destroy();
    }
}

/// Takes a queue pair through `states` as negotiated.
pub(super) fn advance(qp: &Qp, negotiated: &Negotiated, states: &[QpState]) -> Result<()> {
    states.iter().try_for_each(|state| {
        let (attr, mask) = negotiated.qp_attr(*state);
        qp.modify(&attr, mask)
    })
}

/// RESET to INIT, before anything is negotiated: receives may be posted. Peers get `access`.
pub(super) fn to_init(qp: &Qp, access: Access) -> Result<()> {
    let attr = QpAttr { state: QpState::Init, port_num: 1, pkey_index: 0, access, ..qp.attr() };
    let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    qp.modify(&attr, mask)
}

impl fmt::Display for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        match state.route {
            Some(r) if state.passive => write!(f, "connection from {}", r.dst),
            Some(r) if self.space == PortSpace::Tcp => write!(f, "connection to {}", r.dst),
            Some(r) => write!(f, "datagrams to {}", r.dst),
            None => match state.local {
                Some(local) => write!(f, "{} on {local}", self.handle),
                None => write!(f, "{}", self.handle),
            },
        }
    }
}
