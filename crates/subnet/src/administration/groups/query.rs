//! Queries for groups and members.

use rdmux_wire::sa::{McMemberRecord, McMemberRecordMask as Mask, Pattern, Rate, Selector};

use rdmux_wire::Pkey;

use super::Group;
use crate::administration::path::rate;
use crate::administration::request::Request;
use crate::administration::table::Table;
use crate::administration::{Status, View};

/// Components that are not compared for equality.
const OTHERWISE: Mask = Mask::MTU_SELECTOR
    .union(Mask::MTU)
    .union(Mask::RATE_SELECTOR)
    .union(Mask::RATE)
    .union(Mask::PACKET_LIFE_TIME_SELECTOR)
    .union(Mask::PACKET_LIFE_TIME)
    .union(Mask::PKEY)
    .union(Mask::PORT_GID)
    .union(Mask::JOIN_STATE)
    .union(Mask::PROXY_JOIN);

/// Answers with members if the requester is trusted, and with groups otherwise.
pub(in super::super) fn read(
    view: &View<'_>,
    request: &Request<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    let wanted: McMemberRecord = request.record()?;
    let mask = Mask::from_bits_retain(request.mask());
    let pattern: Pattern = request.pattern::<McMemberRecord>(OTHERWISE.bits())?;
    let groups = &view.state.groups;
    let one = mask.contains(Mask::MGID).then(|| groups.get(wanted.mgid));
    let all = one.is_none().then(|| groups.iter());
    for group in one.flatten().into_iter().chain(all.into_iter().flatten()) {
        let record = group.record();
        let partition = |key: Pkey| key.0 & 0x7fff;
        let in_partition =
            !mask.contains(Mask::PKEY) || partition(group.pkey) == partition(wanted.pkey);
        let matches = group.is_visible(request) && in_partition && fits(group, &wanted, mask);
        if !matches || !pattern.matches(&record) {
            table.charge(McMemberRecord::LEN);
            continue;
        }
        members(group, request, &wanted, mask, table)?;
    }
    Ok(())
}

fn members(
    group: &Group,
    request: &Request<'_>,
    wanted: &McMemberRecord,
    mask: Mask,
    table: &mut Table,
) -> Result<(), Status> {
    let is_member = group.members.contains_key(&wanted.port_gid);
    if mask.contains(Mask::PORT_GID) && !is_member {
        return Ok(());
    }
    if !request.trusted {
        return table.push(&group.record());
    }
    for (&port_gid, member) in &group.members {
        let is = |bit: Mask, matches: bool| !mask.contains(bit) || matches;
        if is(Mask::PORT_GID, port_gid == wanted.port_gid)
            && is(Mask::JOIN_STATE, member.state == wanted.join_state)
            && is(Mask::PROXY_JOIN, member.proxy == wanted.proxy_join)
        {
            table.push(&McMemberRecord {
                port_gid,
                join_state: member.state,
                proxy_join: member.proxy,
                ..group.record()
            })?;
        }
    }
    Ok(())
}

/// Returns whether a group has the requested MTU, rate and life time.
pub(super) fn fits(group: &Group, wanted: &McMemberRecord, mask: Mask) -> bool {
    let rank = |rate: Rate| rate::rank(rate).unwrap_or(0);
    let compare = |bits: Mask, selector, has: usize, wanted: usize| {
        !mask.contains(bits)
            || match selector {
                Selector::GREATER_THAN => has > wanted,
                Selector::LESS_THAN => has < wanted,
                Selector::EXACTLY => has == wanted,
                _ => true,
            }
    };
    compare(
        Mask::MTU_SELECTOR | Mask::MTU,
        wanted.mtu_selector,
        group.mtu.code().into(),
        wanted.mtu.into(),
    ) && compare(
        Mask::RATE_SELECTOR | Mask::RATE,
        wanted.rate_selector,
        rank(group.rate),
        rank(wanted.rate),
    ) && compare(
        Mask::PACKET_LIFE_TIME_SELECTOR | Mask::PACKET_LIFE_TIME,
        wanted.packet_life_time_selector,
        group.life.into(),
        wanted.packet_life_time.into(),
    )
}
