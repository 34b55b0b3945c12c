//! Events that administration itself tells subscribers of: traps 64 to 67 (IBTA 14.4.9 and 15.4.2).

use alloc::vec::Vec;

use rdmux_wire::sm::{GidEvent, Notice, Producer, Trap};
use rdmux_wire::{Gid, Guid, Lid, Pkey};

use super::groups::{Group, has_partition};
use super::subscriptions::Audience;
use super::{AdministrationSink, Context, State};
use crate::manager::model::Port;

/// A port is there, or is there no more.
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

/// A group has its first full member.
pub(super) fn group_created(
    state: &mut State,
    cx: &Context<'_>,
    mgid: Gid,
    pkey: Pkey,
    sink: &mut dyn AdministrationSink,
) {
    report(state, cx, &Trap::GroupCreated(event(mgid)), Audience::Partition(pkey), sink);
}

/// A group has lost its last full member.
pub(super) fn group_deleted(
    state: &mut State,
    cx: &Context<'_>,
    mgid: Gid,
    pkey: Pkey,
    sink: &mut dyn AdministrationSink,
) {
    report(state, cx, &Trap::GroupDeleted(event(mgid)), Audience::Partition(pkey), sink);
}

/// A port has lost one of its GIDs, and is a member by it no more.
pub(super) fn gid_lost(
    state: &mut State,
    cx: &Context<'_>,
    port: Guid,
    gid: Gid,
    sink: &mut dyn AdministrationSink,
) {
    members_lost(state, cx, port, |_, member| member == gid, sink);
}

/// A sweep has ended: ports are members no more by GIDs that they have lost, and of groups whose partition they are not in any more.
pub(super) fn swept(state: &mut State, cx: &Context<'_>, sink: &mut dyn AdministrationSink) {
    for guid in state.groups.ports().collect::<Vec<_>>() {
        let place = cx.model.by_own_guid(guid);
        // Of those that are gone the manager tells.
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

/// These are from the manager's own port.
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
