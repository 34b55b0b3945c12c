//! Records of ports: PortInfo, and the tables of service levels, virtual lanes, GUIDs and partitions.

use rdmux_wire::mad::status;
use rdmux_wire::sa::{
    GuidInfoRecord, GuidInfoRecordMask, MATCH_CAPABILITY_BITS, MATCH_CAPABILITY2_BITS,
    PkeyTableRecord, PkeyTableRecordMask, PortInfoRecord, PortInfoRecordMask, SlToVlTableRecord,
    SlToVlTableRecordMask, VlArbitrationRecord, VlArbitrationRecordMask,
};
use rdmux_wire::sm::{GuidInfo, PkeyTable, PortInfo};
use rdmux_wire::{Guid, Lid, Mkey, Pkey};

use super::{blocks, end_ports};
use crate::administration::request::Request;
use crate::administration::table::Table;
use crate::administration::{Status, View};
use crate::manager::Model;
use crate::manager::model::{Node, Port};

/// Returns the port with a LID, or all ports; of a switch, every port that the requester may see.
fn ports<'a>(
    model: &'a Model,
    request: &'a Request<'_>,
    lid: Option<Lid>,
) -> impl Iterator<Item = (&'a Node, u8, &'a Port, Lid)> {
    end_ports(model, lid)
        .flat_map(|(place, node, _, lid)| {
            let numbers =
                if node.is_switch() { 0..=node.info.num_ports } else { place.port..=place.port };
            numbers.filter_map(move |number| {
                let port = node.ports.get(usize::from(number))?;
                Some((node, number, port, lid))
            })
        })
        .filter(|(_, _, port, _)| request.may_see(port))
}

pub(in super::super) fn info(
    view: &View<'_>,
    request: &Request<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    let mask = PortInfoRecordMask::LID.bits();
    // Only one form of the attribute is supported, whichever is requested.
    let options = PortInfoRecordMask::OPTIONS.bits();
    let mut pattern = request.pattern::<PortInfoRecord>(mask | options)?;
    for (bit, component) in [
        (MATCH_CAPABILITY_BITS, PortInfoRecordMask::CAPABILITY_MASK),
        (MATCH_CAPABILITY2_BITS, PortInfoRecordMask::CAPABILITY_MASK2),
    ] {
        if request.sa.header.attr_mod & bit != 0 {
            pattern = pattern.containing::<PortInfoRecord>(component.bits());
        }
    }
    let question: PortInfoRecord = request.record()?;
    let asked = if request.has(options) { question.options } else { 0 };
    let wanted = request.lid(mask, question.lid);
    for (_, port_num, port, lid) in ports(view.model, request, wanted) {
        let Some(info) = port.info else { continue };
        // Only trusted clients see keys.
        let mkey = if request.trusted { info.mkey } else { Mkey(0) };
        let port_info = PortInfo { mkey, ..info };
        let record = PortInfoRecord { lid, port_num, options: asked, port_info, reserved68: 0 };
        table.push_if(&pattern, &record)?;
    }
    Ok(())
}

pub(in super::super) fn sl_to_vl(
    view: &View<'_>,
    request: &Request<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    let mask = SlToVlTableRecordMask::LID.bits();
    let of_switch = request.pattern::<SlToVlTableRecord>(mask)?;
    // An adapter's port has one table, that of port 0, whatever ports are requested, as in OpenSM.
    let numbers = SlToVlTableRecordMask::INPUT_PORT_NUM | SlToVlTableRecordMask::OUTPUT_PORT_NUM;
    let of_other = request.pattern::<SlToVlTableRecord>(mask | numbers.bits())?;
    let wanted = request.lid(mask, request.record::<SlToVlTableRecord>()?.lid);
    for (node, number, port, lid) in ports(view.model, request, wanted) {
        let (pattern, output_port_num) =
            if node.is_switch() { (&of_switch, number) } else { (&of_other, 0) };
        let known = (0..=u8::MAX).zip(&port.sl_to_vl);
        for (input_port_num, entries) in known.filter_map(|(n, table)| Some((n, (*table)?))) {
            let record = SlToVlTableRecord {
                lid,
                input_port_num,
                output_port_num,
                table: entries,
                ..SlToVlTableRecord::default()
            };
            table.push_if(pattern, &record)?;
        }
    }
    Ok(())
}

pub(in super::super) fn vl_arbitration(
    view: &View<'_>,
    request: &Request<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    let mask = VlArbitrationRecordMask::LID.bits();
    let of_switch = request.pattern::<VlArbitrationRecord>(mask)?;
    // A LID names one port, except on a switch.
    let number = VlArbitrationRecordMask::OUTPUT_PORT_NUM.bits();
    let of_other = request.pattern::<VlArbitrationRecord>(mask | number)?;
    let wanted = request.lid(mask, request.record::<VlArbitrationRecord>()?.lid);
    for (node, output_port_num, port, lid) in ports(view.model, request, wanted) {
        let pattern = if node.is_switch() { &of_switch } else { &of_other };
        for (block_num, &entries) in (1..).zip(&port.vl_arbitration) {
            let record = VlArbitrationRecord {
                lid,
                output_port_num,
                block_num,
                table: entries,
                ..VlArbitrationRecord::default()
            };
            table.push_if(pattern, &record)?;
        }
    }
    Ok(())
}

pub(in super::super) fn guids(
    view: &View<'_>,
    request: &Request<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    let mask = GuidInfoRecordMask::LID.bits();
    let pattern = request.pattern::<GuidInfoRecord>(mask)?;
    let wanted = request.lid(mask, request.record::<GuidInfoRecord>()?.lid);
    for (_, _, port, lid) in end_ports(view.model, wanted) {
        let Some(info) = port.info.filter(|_| request.may_see(port)) else { continue };
        for block in blocks(info.guid_cap.into(), 8) {
            let record = GuidInfoRecord {
                lid,
                block_num: u8::try_from(block).unwrap_or(u8::MAX),
                guid_info: guid_block(port, block),
                ..GuidInfoRecord::default()
            };
            table.push_if(&pattern, &record)?;
        }
    }
    Ok(())
}

/// Returns a block of eight GUIDs of a port; the first of block 0 is its own.
pub(in super::super) fn guid_block(port: &Port, block: usize) -> GuidInfo {
    let guid = |index: usize| match index.checked_sub(1) {
        None => port.guid,
        Some(alias) => port.aliases.get(alias).copied().unwrap_or(Guid(0)),
    };
    GuidInfo { guids: core::array::from_fn(|index| guid(block * 8 + index)) }
}

pub(in super::super) fn pkeys(
    view: &View<'_>,
    request: &Request<'_>,
    table: &mut Table,
) -> Result<(), Status> {
    if !request.trusted {
        return Err(status::SA_REQUEST_INVALID);
    }
    let mask = PkeyTableRecordMask::LID.bits();
    let pattern = request.pattern::<PkeyTableRecord>(mask)?;
    let wanted = request.lid(mask, request.record::<PkeyTableRecord>()?.lid);
    for (node, port_num, port, lid) in ports(view.model, request, wanted) {
        for block in blocks(capacity(node, port_num), 32) {
            let keys = port.pkeys.chunks(32).nth(block).unwrap_or_default();
            let mut pkeys = [Pkey(0); 32];
            pkeys[..keys.len()].copy_from_slice(keys);
            let record = PkeyTableRecord {
                lid,
                block_num: u16::try_from(block).unwrap_or(u16::MAX),
                port_num,
                table: PkeyTable { pkeys },
                ..PkeyTableRecord::default()
            };
            table.push_if(&pattern, &record)?;
        }
    }
    Ok(())
}

/// Returns how many P_Keys a port can have.
fn capacity(node: &Node, port: u8) -> usize {
    let enforcement =
        node.switch.as_ref().map_or(0, |switch| switch.info.partition_enforcement_cap);
    usize::from(if node.is_switch() && port > 0 { enforcement } else { node.info.partition_cap })
}
