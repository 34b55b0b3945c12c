//! PathRecord: routes of packets from port to port (IBTA 15.2.5.16).
//!
//! A query by GID or LID takes a look-up of each end and a walk along the switches of the route, there and back. The cost
//! does not depend on the number of nodes, nor does the locality of memory accesses: `links` packs the needed
//! properties of ports, `ways` caches the results of earlier walks, and `sets` does each look-up of either in one cache line.

mod find;
mod links;
mod multi_path;
pub(crate) mod rate;
mod route;
mod sets;
pub(super) mod wants;
mod ways;

use rdmux_wire::mad::{Method, status};
use rdmux_wire::sa::{PathRecord, PathRecordMask, Selector};
use rdmux_wire::{Gid, Lid};

use self::find::{End, Finder};
use self::wants::Wants;
use super::request::Request;
use super::table::Table;
use super::{Status, View};

pub(super) use links::Links;
pub(super) use multi_path::read as read_multi;

/// Returns whether the paths that a request is for may be between many pairs of ports: it is for a table and does not name both ends.
pub(super) fn has_many_pairs(request: &Request<'_>) -> bool {
    let mask = PathRecordMask::from_bits_retain(request.mask());
    let names_source = mask.intersects(PathRecordMask::SGID | PathRecordMask::SLID);
    let names_destination = mask.intersects(PathRecordMask::DGID | PathRecordMask::DLID);
    request.method() == Method::GET_TABLE && !(names_source && names_destination)
}

pub(super) fn read(
    view: &View<'_>,
    request: &Request<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    let mask = PathRecordMask::from_bits_retain(request.mask());
    let record: PathRecord = request.record()?;
    let service = PathRecordMask::SERVICE_ID_MSB | PathRecordMask::SERVICE_ID_LSB;
    if mask.intersects(service) && !mask.contains(service) {
        return Err(status::SA_INSUFFICIENT_COMPONENTS);
    }
    let mut wants = Wants::path(request.mask(), &record)?;
    if request.method() == Method::GET {
        wants.count = 1;
    }
    let finder = Finder { view, request, wants: &wants };
    let gid = |bit, gid: Gid| mask.contains(bit).then_some(gid);
    let lid = |bit, lid: Lid| mask.contains(bit).then_some(lid);
    let (sgid, slid) =
        (gid(PathRecordMask::SGID, record.sgid), lid(PathRecordMask::SLID, record.slid));
    let (dgid, dlid) =
        (gid(PathRecordMask::DGID, record.dgid), lid(PathRecordMask::DLID, record.dlid));
    if dgid.is_some_and(|gid| gid.0[0] == 0xff) {
        return multicast(&finder, &record, mask, table);
    }
    let Some(sources) = finder.ends(sgid, slid)? else { return Ok(()) };
    let Some(destinations) = finder.ends(dgid, dlid)? else { return Ok(()) };
    if wants.count == 0 {
        return Ok(());
    }
    // A Get is answered with the first path, whatever ends it names.
    for to in ends(view, destinations) {
        for from in ends(view, sources) {
            if !table.is_full() {
                finder.paths(&from, &to, table)?;
            }
        }
    }
    Ok(())
}

/// Returns one end, or all ends if the request names none.
fn ends<'a>(view: &View<'a>, one: Option<End<'a>>) -> impl Iterator<Item = End<'a>> {
    let prefix = view.cx.config.gid_prefix;
    let all = one.is_none().then(|| view.model.end_ports());
    let all = all.into_iter().flatten();
    all.filter_map(move |(place, port)| End::new(prefix, place, port)).chain(one)
}

/// Returns the path to a group: its LID and the group's parameters, whatever MTU, rate and life time are requested.
fn multicast(
    finder: &Finder<'_>,
    record: &PathRecord,
    mask: PathRecordMask,
    table: &mut Table,
) -> Result<(), Status> {
    let groups = &finder.view.state.groups;
    let Some(group) = groups.get(record.dgid) else { return Ok(()) };
    let gid = mask.contains(PathRecordMask::SGID).then_some(record.sgid);
    let lid = mask.contains(PathRecordMask::SLID).then_some(record.slid);
    let Some(source) = finder.ends(gid, lid)? else { return Ok(()) };
    let is_member = |end: &End<'_>| groups.has_member(group.mgid, end.port.guid);
    let may_send =
        source.as_ref().is_none_or(is_member) && gid.is_none_or(|gid| group.has_member_gid(gid));
    let is = |bit, matches| !mask.contains(bit) || matches;
    let wants = finder.wants;
    let is_asked = wants.pkey.is_none_or(|pkey| pkey == group.pkey)
        && wants.sl.is_none_or(|sl| sl == group.sl)
        && wants.count > 0
        && is(PathRecordMask::DLID, record.dlid == group.mlid)
        && is(PathRecordMask::TCLASS, record.tclass == group.tclass)
        && is(PathRecordMask::FLOW_LABEL, record.flow_label == group.flow_label)
        && is(PathRecordMask::HOP_LIMIT, record.hop_limit == group.hop_limit);
    if !may_send || !is_asked || !group.is_visible(finder.request) {
        return Ok(());
    }
    table.push(&PathRecord {
        dgid: group.mgid,
        dlid: group.mlid,
        sgid: record.sgid,
        slid: record.slid,
        flow_label: group.flow_label,
        // Packets that leave the subnet pass routers.
        hop_limit: if group.is_link_local() { group.hop_limit } else { 0xff },
        tclass: group.tclass,
        numb_path: 1,
        pkey: group.pkey,
        sl: group.sl,
        mtu_selector: Selector::EXACTLY,
        mtu: group.mtu.code(),
        rate_selector: Selector::EXACTLY,
        rate: group.rate,
        packet_life_time_selector: Selector::EXACTLY,
        packet_life_time: group.life,
        ..PathRecord::default()
    })
}
