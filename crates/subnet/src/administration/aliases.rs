//! GUIDInfoRecord: alias GUIDs that a port requests or releases (IBTA 15.2.5.18).
//!
//! The manager writes them to the port after the answer is made: the Set of the port's table is sent first, the answer
//! second. When a port releases a GUID, its group memberships with that GUID end.

use core::iter;

use rdmux_wire::mad::{Method, status};
use rdmux_wire::sa::{GuidInfoRecord, GuidInfoRecordMask as Mask};
use rdmux_wire::sm::GuidInfo;
use rdmux_wire::{Gid, Guid};

use super::records::ports::guid_block;
use super::request::Request;
use super::table::Table;
use super::{AdministrationSink, Context, State, Status, events};
use crate::manager::model::Port;
use crate::topology::PortRef;

/// The first GUID that administration assigns; later ones count up.
const FIRST_ASSIGNED: u64 = 0x0014_0500_0000_0001;

/// Handles a Set or Delete of GUIDInfoRecord.
pub(super) fn change(
    state: &mut State,
    cx: &Context<'_>,
    request: &Request<'_>,
    table: &mut Table,
    sink: &mut dyn AdministrationSink,
) -> Result<(), Status> {
    let record: GuidInfoRecord = request.record()?;
    if !request.has((Mask::LID | Mask::BLOCK_NUM).bits()) {
        return Err(status::SA_INSUFFICIENT_COMPONENTS);
    }
    let place = cx.model.by_lid(record.lid).ok_or(status::SA_NO_RECORDS)?;
    let port = cx.model.port(place).ok_or(status::SA_NO_RECORDS)?;
    // Only the port itself or a trusted client may change its GUIDs.
    if place != request.place && !request.trusted {
        return Err(status::SA_DENIED);
    }
    let capacity = usize::from(port.info.as_ref().map_or(0, |info| info.guid_cap));
    let first = usize::from(record.block_num) * 8;
    if first >= capacity {
        return Err(status::SA_NO_RECORDS);
    }
    let asked = |index: usize| request.has(Mask::GUID0.bits() << index);
    if first == 0 && asked(0) {
        return Err(status::SA_REQUEST_INVALID);
    }
    let before = guid_block(port, record.block_num.into());
    let mut block = before;
    let changed = || (0..8).filter(|&index| asked(index) && first + index < capacity);
    let is_set = request.method() != Method::DELETE;
    for index in changed() {
        block.guids[index] = if is_set { record.guid_info.guids[index] } else { Guid(0) };
    }
    let is_taken = |guid: Guid| is_anothers(cx, place, guid) || is_twice(port, first, &block, guid);
    if changed().map(|index| block.guids[index]).any(|guid| guid != Guid(0) && is_taken(guid)) {
        return Err(status::SA_REQUEST_INVALID);
    }
    for index in changed().filter(|_| is_set) {
        if block.guids[index] == Guid(0) {
            block.guids[index] = next_guid(state, cx, &block);
        }
    }
    for (index, (new, old)) in block.guids.iter().zip(&before.guids).enumerate() {
        if let (true, Ok(at)) = (new != old, u8::try_from(first + index)) {
            sink.set_alias(place, at, *new);
        }
    }
    let is_lost = |guid: &&Guid| !table_with(port, first, &block).any(|new| new == **guid);
    for &guid in before.guids.iter().filter(is_lost) {
        events::gid_lost(state, cx, port.guid, Gid::new(cx.config.gid_prefix, guid), sink);
    }
    let lid = port.lid().unwrap_or(record.lid);
    table.push(&GuidInfoRecord { lid, block_num: record.block_num, guid_info: block, ..record })
}

/// Returns whether a GUID belongs to another port.
fn is_anothers(cx: &Context<'_>, place: PortRef, guid: Guid) -> bool {
    cx.model.by_port_guid(guid).is_some_and(|owner| owner != place)
}

/// Returns whether a port's table would have a GUID more than once after this block is written at index `first`.
fn is_twice(port: &Port, first: usize, block: &GuidInfo, guid: Guid) -> bool {
    table_with(port, first, block).filter(|other| *other == guid).count() > 1
}

/// Returns the GUIDs of a port's table after this block is written at index `first`.
fn table_with(port: &Port, first: usize, block: &GuidInfo) -> impl Iterator<Item = Guid> {
    let table = iter::once(port.guid).chain(port.aliases.iter().copied()).enumerate();
    let replaced = first..first + block.guids.len();
    let others = table.filter(move |(at, _)| !replaced.contains(at));
    others.map(|(_, other)| other).chain(block.guids)
}

/// Returns a GUID that no port has and that the request does not set.
fn next_guid(state: &mut State, cx: &Context<'_>, wanted: &GuidInfo) -> Guid {
    loop {
        let guid = Guid(FIRST_ASSIGNED.wrapping_add(state.assigned_guids));
        state.assigned_guids += 1;
        if cx.model.by_port_guid(guid).is_none() && !wanted.guids.contains(&guid) {
            return guid;
        }
    }
}
