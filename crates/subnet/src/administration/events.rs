//! Events that administration itself reports to subscribers: traps 64 to 67 (IBTA 14.4.9 and 15.4.2).

use alloc::vec::Vec;

use rdmux_wire::sm::{GidEvent, Notice, Producer, Trap};
use rdmux_wire::{Gid, Guid, Lid, Pkey};

use super::groups::{Group, has_partition};
use super::subscriptions::Audience;
use super::{AdministrationSink, Context, State};
use crate::manager::model::Port;

/// Reports that a port has appeared or disappeared.
pub(super) fn port(
    state: &mut State,
    cx: &Context<'_>,
    guid: Guid,
    port: &Port,
    is_there: bool,
    sink: &mut dyn AdministrationSink,
) {
    let event = event(Gid::new(cx.config.gid_prefix, guid));
    let trap = if is_there { Trap::GidInService(event) } else { Trap::GidOutOfService(event) };
    report(state, cx, &trap, Audience::Of(port), sink);
}

/// Reports that a group has its first full member.
pub(super) fn group_created(
    state: &mut State,
    cx: &Context<'_>,
    mgid: Gid,
    pkey: Pkey,
    sink: &mut dyn AdministrationSink,
) {
    report(state, cx, &Trap::GroupCreated(event(mgid)), Audience::Partition(pkey), sink);
}

/// Reports that a group has lost its last full member.
pub(super) fn group_deleted(
    state: &mut State,
    cx: &Context<'_>,
    mgid: Gid,
    pkey: Pkey,
    sink: &mut dyn AdministrationSink,
) {
    report(state, cx, &Trap::GroupDeleted(event(mgid)), Audience::Partition(pkey), sink);
}

/// Handles a port's loss of one of its GIDs: ends its memberships with that GID.
pub(super) fn gid_lost(
    state: &mut State,
    cx: &Context<'_>,
    port: Guid,
    gid: Gid,
    sink: &mut dyn AdministrationSink,
) {
    members_lost(state, cx, port, |_, member| member == gid, sink);
}

/// Handles the end of a sweep: ends memberships with GIDs that ports have lost, and in groups whose partition the port has left.
pub(super) fn swept(state: &mut State, cx: &Context<'_>, sink: &mut dyn AdministrationSink) {
    for guid in state.groups.ports().collect::<Vec<_>>() {
        let place = cx.model.by_own_guid(guid);
        // The manager reports ports that are gone.
        let Some((place, port)) = place.and_then(|at| Some((at, cx.model.port(at)?))) else {
            continue;
        };
        let is_over = |group: &Group, gid: Gid| {
            cx.model.by_port_guid(gid.guid()) != Some(place)
                || !has_partition(&port.pkeys, group.pkey)
        };
        members_lost(state, cx, guid, is_over, sink);
    }
}

fn members_lost(
    state: &mut State,
    cx: &Context<'_>,
    port: Guid,
    is_over: impl Fn(&Group, Gid) -> bool,
    sink: &mut dyn AdministrationSink,
) {
    for (mgid, pkey) in state.groups.remove_members(port, is_over, sink) {
        group_deleted(state, cx, mgid, pkey, sink);
    }
}

fn event(gid: Gid) -> GidEvent {
    GidEvent { gid, ..GidEvent::default() }
}

/// Reports a trap in the name of the manager's own port.
fn report(
    state: &mut State,
    cx: &Context<'_>,
    trap: &Trap,
    audience: Audience<'_>,
    sink: &mut dyn AdministrationSink,
) {
    let place = cx.model.by_port_guid(cx.own);
    let lid = place.and_then(|at| cx.model.port(at)?.lid()).unwrap_or(Lid(0));
    let notice = Notice::new(trap, Producer::CLASS_MANAGER, lid);
    let issuer = Gid::new(cx.config.gid_prefix, cx.own);
    state.dropped_reports += state.subscriptions.report(cx, &notice, issuer, audience, sink);
}
