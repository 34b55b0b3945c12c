//! GUIDInfoRecord: alias GUIDs that a port asks for or gives up (IBTA 15.2.5.18).
//!
//! The manager sets them at the port after the answer is made: the set of the port's table leaves first, the answer second.

use rdmux_wire::Guid;
use rdmux_wire::mad::{Method, status};
use rdmux_wire::sa::{GuidInfoRecord, GuidInfoRecordMask as Mask};

use super::records::ports::guid_block;
use super::request::Request;
use super::table::Table;
use super::{AdministrationSink, Context, State, Status};

/// The GUIDs that are assigned count up from here.
const FIRST_ASSIGNED: u64 = 0x0014_0500_0000_0001;

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
    // A port's GUIDs are its own.
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
    let mut block = guid_block(port, record.block_num.into());
    for index in (0..8).filter(|&index| asked(index) && first + index < capacity) {
        let wanted = record.guid_info.guids[index];
        block.guids[index] = match request.method() {
            Method::DELETE => Guid(0),
            _ if wanted == Guid(0) => next_guid(state, cx),
            _ if is_taken(cx, place, wanted) || block.guids[..index].contains(&wanted) => {
                return Err(status::SA_REQUEST_INVALID);
            }
            _ => wanted,
        };
    }
    let before = guid_block(port, record.block_num.into());
    for (index, (new, old)) in block.guids.iter().zip(&before.guids).enumerate() {
        if let (true, Ok(at)) = (new != old, u8::try_from(first + index)) {
            sink.set_alias(place, at, *new);
        }
    }
    let lid = port.lid().unwrap_or(record.lid);
    table.push(&GuidInfoRecord { lid, block_num: record.block_num, guid_info: block, ..record })
}

/// Whether a GUID is one of another port, or the port's own.
fn is_taken(cx: &Context<'_>, place: crate::topology::PortRef, guid: Guid) -> bool {
    let owner = cx.model.by_port_guid(guid);
    owner.is_some_and(|owner| {
        owner != place || cx.model.port(owner).is_some_and(|port| port.guid == guid)
    })
}

/// A GUID that no port has.
fn next_guid(state: &mut State, cx: &Context<'_>) -> Guid {
    loop {
        let guid = Guid(FIRST_ASSIGNED.wrapping_add(state.assigned_guids));
        state.assigned_guids += 1;
        if cx.model.by_port_guid(guid).is_none() {
            return guid;
        }
    }
}
