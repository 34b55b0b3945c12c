//! The state that an id shares with its events, and how its queue pair follows them.

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

/// The state that an id shares with its events.
pub(crate) struct Core {
    pub(super) handle: IdHandle,
    space: PortSpace,
    state: Mutex<State>,
    /// Held while the queue pair is attached to or detached from a group and `State::groups` is updated accordingly.
    attaching: Mutex<()>,
    acknowledged: Condvar,
    destroyed: AtomicBool,
    pub(super) context: Context,
}

/// The state of an id that its lock guards.
pub(super) struct State {
    pub(super) channel: EventChannel,
    /// The attached queue pair.
    pub(super) qp: Option<Qp>,
    /// The attributes of the queue pair that the connection's messages have determined.
    pub(super) negotiated: Option<Negotiated>,
    /// Whether this id was created by a CONNECT_REQUEST.
    pub(super) passive: bool,
    /// The local address, once it is known.
    pub(super) local: Option<Addr>,
    /// The path to the peer, once it is known.
    pub(super) route: Option<Route>,
    /// Whether the address of the peer is resolved but no path to it is known or requested yet.
    pub(super) wants_path: bool,
    /// The id's multicast groups.
    pub(super) groups: Vec<Group>,
    /// The key of the group added last.
    pub(super) last_group: u64,
    /// The number of events that the program holds.
    unacknowledged: usize,
}

/// A multicast group of an id.
#[derive(Clone)]
pub(super) struct Group {
    /// The key by which the host service names the group in its events.
    pub(super) key: u64,
    /// The name that the program joined. For a new group, its assigned GID once it is joined.
    pub(super) name: GroupAddr,
    /// Whether the attached queue pair must receive the group's datagrams.
    pub(super) hears: bool,
    /// Whether the queue pair is attached to the group. It is attached once, even if several memberships of the id
    /// receive the group.
    pub(super) attached: bool,
    /// The address of the group, or an errno: ENOTCONN until it is joined.
    pub(super) way: std::result::Result<UdParam, i32>,
    /// Whether it was lost and then joined again. It stays until the event of the loss is read.
    pub(super) replaced: bool,
}

/// The errno of a group that is not joined yet, ENOTCONN.
pub(super) const NOT_YET: i32 = 107;

impl Group {
    /// Returns whether `name` names this group: the name given on joining, or its GID.
    pub(super) fn is_called(&self, name: GroupAddr) -> bool {
        self.name == name || matches!(name, GroupAddr::Gid(mgid) if self.has(mgid))
    }

    /// Returns whether `mgid` is the GID of this group.
    pub(super) fn has(&self, mgid: Gid) -> bool {
        self.way.as_ref().is_ok_and(|way| way.av.dgid == mgid)
    }

    /// Returns whether the join failed, or the group was lost.
    fn failed(&self) -> bool {
        self.way.as_ref().is_err_and(|why| *why != NOT_YET)
    }
}

/// Records that the group with this key is joined, or about to be. It replaces groups of its name: those that have failed are removed,
/// and others were lost, which is reported by events that the program has not read yet.
pub(super) fn replace(groups: &mut Vec<Group>, key: u64) {
    let Some(name) = groups.iter().find(|g| g.key == key).map(|g| g.name) else { return };
    let is_old = |g: &Group| g.key < key && g.name == name;
    groups.retain(|g| !(is_old(g) && g.failed()));
    if !name.is_new() {
        groups.iter_mut().filter(|g| is_old(g)).for_each(|g| g.replaced = true);
    }
}

/// Records that a join failed, or that a group was lost. Removes the group if another has replaced it.
fn failed(groups: &mut Vec<Group>, key: u64, why: i32) {
    if let Some(group) = groups.iter_mut().find(|g| g.key == key) {
        group.way = Err(why);
    }
    groups.retain(|g| g.key != key || !g.replaced);
}

/// The reason of a REJ sent at the program's request (IBTA table 108).
pub(super) const REASON_CONSUMER: u16 = 28;

/// The states from RESET or INIT to RTS.
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
        // The state is consistent at every point where a holder of the lock could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an event that the program holds.
    pub(super) fn event_delivered(&self) {
        self.lock().unacknowledged += 1;
    }

    /// Counts an event that the program has dropped, and wakes [`destroy`](Self::destroy) after the last one.
    pub(super) fn event_acknowledged(&self) {
        let mut state = self.lock();
        state.unacknowledged -= 1;
        if state.unacknowledged == 0 {
            self.acknowledged.notify_all();
        }
    }

    /// Waits until the program holds no more events.
    pub(super) fn wait_acknowledged(&self) {
        drop(self.acknowledged.wait_while(self.lock(), |s| s.unacknowledged > 0));
    }

    /// Applies an event to the id and its queue pair, as librdmacm does: the queue pair is then in the state that the
    /// event reports. Returns none if the event is of a group that the id has left.
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
                // Outstanding work is flushed. A queue pair that cannot change state is left to the program.
                let _ = qp.fail();
            }
            // The queue pair gets its stream before the program gets the event.
            (EventKind::Established, _) if self.has_streams() => {
                self.context.device().sync_control()
            }
            (EventKind::MulticastJoin, qp) => self.joined(qp.as_ref(), &event)?,
            (EventKind::MulticastError, _) => {
                let why = event.status.saturating_abs();
                let turn = self.attaching();
                self.detach(event.context);
                drop(turn);
                failed(&mut self.lock().groups, event.context, why);
            }
            _ => {}
        }
        Ok(Some(Event::new(event, self)))
    }

    /// Brings the queue pair up after the peer has accepted, and confirms the connection to the peer.
    fn respond(&self, qp: &Qp, event: &rdmux_cm::Event) -> Result<()> {
        let negotiated = event.negotiated.as_deref().ok_or_else(|| {
            let why = "the host service did not send the negotiated parameters".to_owned();
            Error::new(self.to_string(), "connect", Cause::Invalid(why))
        })?;
        if let Err(e) = advance(qp, negotiated, UP) {
            // The peer must not wait for this side. The error to report is the original one.
            let _ = self.context.client().reject(self.handle, REASON_CONSUMER, &[]);
            return Err(e);
        }
        self.context.client().establish(self.handle).on(self, "establish")
    }

    /// Attaches the queue pair to a group that was joined, if it must receive from it.
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
            // The id is no longer a member. The error to report is the original one.
            self.lock().groups.retain(|group| group.key != event.context);
            drop(turn);
            let _ = self.context.client().leave_multicast(self.handle, event.context);
        }
        attached
    }

    /// Removes a group and detaches the queue pair from it. Later events of the group have no effect.
    pub(super) fn leave(&self, key: u64) {
        let _turn = self.attaching();
        self.detach(key);
        self.lock().groups.retain(|group| group.key != key);
    }

    fn attaching(&self) -> MutexGuard<'_, ()> {
        self.attaching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Detaches the queue pair from a group, unless another membership of the id receives it. The caller holds `attaching`.
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
            // A queue pair that was attached to the id later never received the group.
            let _ = qp.detach_multicast(mgid);
        }
    }

    fn change_group<R>(&self, key: u64, f: impl FnOnce(&mut Group) -> R) -> Option<R> {
        self.lock().groups.iter_mut().find(|group| group.key == key).map(f)
    }

    /// Returns whether connections are streams (iWARP).
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
        // The id ended with the service.
        let _ = self.destroy();
    }
}

/// Moves a queue pair through `states` with the negotiated attributes.
pub(super) fn advance(qp: &Qp, negotiated: &Negotiated, states: &[QpState]) -> Result<()> {
    states.iter().try_for_each(|state| {
        let (attr, mask) = negotiated.qp_attr(*state);
        qp.modify(&attr, mask)
    })
}

/// Moves a queue pair from RESET to INIT before anything is negotiated, so that receives may be posted. Grants peers
/// `access`.
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn joined(key: u64) -> Group {
        let name = Ipv4Addr::new(239, 1, 2, 3).into();
        let way = Ok(UdParam::default());
        Group { key, name, hears: true, attached: false, way, replaced: false }
    }

    fn keys(groups: &[Group]) -> Vec<(u64, bool)> {
        groups.iter().map(|group| (group.key, group.replaced)).collect()
    }

    #[test]
    fn group_joined_again_before_its_loss_is_read_replaces_the_old_one() {
        const ENETRESET: i32 = 102;
        let pending = |key| Group { way: Err(NOT_YET), ..joined(key) };
        let mut groups = vec![joined(1), pending(2)];
        replace(&mut groups, 2);
        assert_eq!(keys(&groups), [(1, true), (2, false)]);
        failed(&mut groups, 1, ENETRESET);
        assert_eq!(keys(&groups), [(2, false)]);

        // A group that was not replaced stays until it is joined again or left.
        failed(&mut groups, 2, ENETRESET);
        assert_eq!(keys(&groups), [(2, false)]);
        groups.push(pending(3));
        replace(&mut groups, 3);
        assert_eq!(keys(&groups), [(3, false)]);
    }
}
