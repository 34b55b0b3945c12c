//! Removes a port from a group.

use rdmux_wire::mad::status;
use rdmux_wire::sa::{JoinState, McMemberRecord, McMemberRecordMask as Mask, Selector};

use super::{FULL, scope};
use crate::administration::request::Request;
use crate::administration::table::Table;
use crate::administration::{AdministrationSink, Context, State, Status, events};
use crate::manager::model::Port;
use crate::topology::PortRef;

/// Handles a Delete of MCMemberRecord: leaves a group.
pub(in super::super) fn leave(
    state: &mut State,
    cx: &Context<'_>,
    request: &Request<'_>,
    table: &mut Table,
    sink: &mut dyn AdministrationSink,
) -> Result<(), Status> {
    let record: McMemberRecord = request.record()?;
    let mask = Mask::from_bits_retain(request.mask());
    if !mask.contains(Mask::MGID | Mask::PORT_GID | Mask::JOIN_STATE) {
        return Err(status::SA_INSUFFICIENT_COMPONENTS);
    }
    let (place, _) = port(cx, request, &record)?;
    let invalid = status::SA_REQUEST_INVALID;
    let group = state.groups.by_mgid.get_mut(&record.mgid).ok_or(invalid)?;
    let member = group.members.get_mut(&record.port_gid).ok_or(invalid)?;
    let may = place == request.place || member.by == request.requester.guid;
    let bits = record.join_state;
    if !may || bits.is_empty() || !member.state.contains(bits) {
        return Err(invalid);
    }
    let left = member.state.difference(bits);
    let was_full = member.state.intersects(FULL);
    let (mlid, pkey, port) = (group.mlid, group.pkey, member.port);
    // The answer has the remaining join state and none of the group's parameters.
    let mut answer = McMemberRecord {
        mgid: record.mgid,
        port_gid: record.port_gid,
        mtu_selector: Selector::EXACTLY,
        rate_selector: Selector::EXACTLY,
        packet_life_time_selector: Selector::EXACTLY,
        scope: scope(record.mgid),
        join_state: left,
        ..McMemberRecord::default()
    };
    let last = if left.is_empty() {
        state.groups.remove(record.mgid, record.port_gid).is_some_and(|(_, last)| last)
    } else {
        if let Some(member) = group.members.get_mut(&record.port_gid) {
            member.state = left;
        }
        let is_full = was_full && !left.intersects(FULL);
        group.full_members -= usize::from(is_full);
        let last = is_full && group.full_members == 0;
        if last {
            state.groups.last_full_member_left(record.mgid);
        }
        last
    };
    if last {
        answer.join_state = JoinState::empty();
        sink.group_changed(mlid);
    } else {
        sink.member_changed(mlid, port, state.groups.receives(record.mgid, port));
    }
    table.push(&answer)?;
    if last {
        events::group_deleted(state, cx, record.mgid, pkey, sink);
    }
    Ok(())
}

/// Returns the port that a record names, if the requester may act for it.
pub(super) fn port<'a>(
    cx: &Context<'a>,
    request: &Request<'_>,
    record: &McMemberRecord,
) -> Result<(PortRef, &'a Port), Status> {
    if record.port_gid.prefix() != cx.config.gid_prefix {
        return Err(status::SA_INVALID_GID);
    }
    let place = cx.model.by_port_guid(record.port_gid.guid());
    let found = place.and_then(|place| Some((place, cx.model.port(place)?)));
    let may = found.filter(|(place, port)| *place == request.place || request.may_see(port));
    may.ok_or(status::SA_REQUEST_INVALID)
}
