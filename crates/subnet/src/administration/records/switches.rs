//! SwitchInfoRecords, and the forwarding tables of switches.

use rdmux_wire::Lid;
use rdmux_wire::sa::{
    LinearForwardingTableRecord, LinearForwardingTableRecordMask, MulticastForwardingTableRecord,
    MulticastForwardingTableRecordMask, SwitchInfoRecord, SwitchInfoRecordMask,
};
use rdmux_wire::sm::{LinearForwardingTable, MulticastForwardingTable, NO_ROUTE};

use super::{blocks, switches};
use crate::administration::request::Request;
use crate::administration::table::Table;
use crate::administration::{Status, View};
use crate::manager::model::Switch;

pub(in super::super) fn info(
    view: &View<'_>,
    request: &Request<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    let mask = SwitchInfoRecordMask::LID.bits();
    let pattern = request.pattern::<SwitchInfoRecord>(mask)?;
    let wanted = request.lid(mask, request.record::<SwitchInfoRecord>()?.lid);
    for (switch, _, port, lid) in switches(view.model, wanted) {
        if request.may_see(port) {
            let record =
                SwitchInfoRecord { lid, switch_info: switch.info, ..SwitchInfoRecord::default() };
            table.push_if(&pattern, &record)?;
        }
    }
    Ok(())
}

pub(in super::super) fn linear(
    view: &View<'_>,
    request: &Request<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    let mask = LinearForwardingTableRecordMask::LID.bits();
    let pattern = request.pattern::<LinearForwardingTableRecord>(mask)?;
    let wanted = request.lid(mask, request.record::<LinearForwardingTableRecord>()?.lid);
    for (switch, _, port, lid) in switches(view.model, wanted) {
        if !request.may_see(port) {
            continue;
        }
        let count = usize::from(switch.info.linear_fdb_top.0) + 1;
        for block in blocks(count, 64) {
            let record = LinearForwardingTableRecord {
                lid,
                block_num: u16::try_from(block).unwrap_or(u16::MAX),
                table: linear_block(switch, block),
                ..LinearForwardingTableRecord::default()
            };
            table.push_if(&pattern, &record)?;
        }
    }
    Ok(())
}

fn linear_block(switch: &Switch, block: usize) -> LinearForwardingTable {
    let mut ports = [NO_ROUTE; 64];
    let routes = switch.forwarding.chunks(64).nth(block).unwrap_or_default();
    ports[..routes.len()].copy_from_slice(routes);
    LinearForwardingTable { ports }
}

pub(in super::super) fn multicast(
    view: &View<'_>,
    request: &Request<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    let mask = MulticastForwardingTableRecordMask::LID.bits();
    let pattern = request.pattern::<MulticastForwardingTableRecord>(mask)?;
    let wanted = request.lid(mask, request.record::<MulticastForwardingTableRecord>()?.lid);
    for (switch, node, port, lid) in switches(view.model, wanted) {
        if !request.may_see(port) {
            continue;
        }
        let Some((&top, _)) = switch.multicast.last_key_value() else { continue };
        let count = usize::from(top.0.saturating_sub(Lid::FIRST_MULTICAST.0)) + 1;
        for block in blocks(count, 32) {
            for position in 0..=node.info.num_ports / 16 {
                let record = MulticastForwardingTableRecord {
                    lid,
                    position,
                    block_num: u16::try_from(block).unwrap_or(u16::MAX),
                    table: multicast_block(switch, block, position),
                    ..MulticastForwardingTableRecord::default()
                };
                table.push_if(&pattern, &record)?;
            }
        }
    }
    Ok(())
}

fn multicast_block(switch: &Switch, block: usize, position: u8) -> MulticastForwardingTable {
    let mut port_masks = [0; 32];
    let first = u16::try_from(block * 32).unwrap_or(0x3fff) | Lid::FIRST_MULTICAST.0;
    for (mask, mlid) in port_masks.iter_mut().zip(first..) {
        *mask = switch.multicast.get(&Lid(mlid)).map_or(0, |ports| ports.mask(position));
    }
    MulticastForwardingTable { port_masks }
}
