//! The tables of a port: GUIDs, P_Keys, service levels, VL arbitration.

use rdmux_wire::sm::{GuidInfo, PkeyTable, VlArbitration};
use rdmux_wire::{Guid, Pkey};

use super::{Data, Refused, Request, put};
use crate::changes::Change;
use crate::port::{PortKind, default_sl_to_vl};
use crate::sink::{PortEvent, Sink};
use crate::subnet::{Cx, Subnet};

/// Handles GUIDInfo: block b has the GUIDs from 8b on. The very first is the port's own and cannot be set.
pub(super) fn guids(
    subnet: &mut Subnet,
    r: &Request,
    data: &mut Data,
    cx: &mut Cx<'_, impl Sink>,
) -> Result<(), Refused> {
    const BLOCK: usize = 8;
    let at = r.arrival.at;
    let port = &mut subnet.ports[at];
    let cap = usize::from(port.info.guid_cap);
    let block = usize::try_from(r.modifier).map_err(|_| Refused::Invalid)?;
    let first = block.checked_mul(BLOCK).filter(|first| *first < cap).ok_or(Refused::Invalid)?;
    let mut changed = false;
    if r.is_set {
        let new = GuidInfo::from_bytes(data);
        for (index, guid) in (first..cap).zip(new.guids).filter(|(index, _)| *index != 0) {
            if port.aliases.len() < index && guid != Guid(0) {
                port.aliases.resize(index, Guid(0));
            }
            if let Some(alias) = port.aliases.get_mut(index - 1) {
                changed |= core::mem::replace(alias, guid) != guid;
            }
        }
    }
    let guid = |i: usize| match (first + i).checked_sub(1) {
        None => port.guid,
        Some(alias) => port.aliases.get(alias).copied().unwrap_or_default(),
    };
    put(data, &GuidInfo { guids: core::array::from_fn(guid) }.to_bytes());
    if changed {
        subnet.event(at, PortEvent::GidChange, cx);
    }
    Ok(())
}

/// Handles P_KeyTable: of the addressed port, or of an external port of a switch.
pub(super) fn pkeys(
    subnet: &mut Subnet,
    r: &Request,
    data: &mut Data,
    cx: &mut Cx<'_, impl Sink>,
) -> Result<(), Refused> {
    const BLOCK: usize = 32;
    let [high, number, block_high, block_low] = r.modifier.to_be_bytes();
    let block = usize::from(u16::from_be_bytes([block_high, block_low]));
    let at = table_port(subnet, r, number).filter(|_| high == 0).ok_or(Refused::Invalid)?;
    let cap = usize::from(match subnet.kind(at) {
        PortKind::External => subnet.config.partition_enforcement_cap,
        _ => subnet.config.partition_cap,
    });
    let first = Some(block * BLOCK).filter(|first| *first < cap).ok_or(Refused::Invalid)?;
    let keys = &mut subnet.ports[at].pkeys;
    let mut changed = false;
    if r.is_set {
        let new = PkeyTable::from_bytes(data);
        for (index, key) in (first..cap).zip(new.pkeys) {
            if keys.len() <= index && key != Pkey(0) {
                keys.resize(index + 1, Pkey(0));
            }
            if let Some(mine) = keys.get_mut(index) {
                changed |= core::mem::replace(mine, key) != key;
            }
        }
        let used = keys.iter().rposition(|key| *key != Pkey(0));
        keys.truncate(used.map_or(0, |last| last + 1));
    }
    let key = |i| keys.get(first + i).copied().unwrap_or_default();
    put(data, &PkeyTable { pkeys: core::array::from_fn(key) }.to_bytes());
    if changed {
        subnet.port_changed(at);
        subnet.event(at, PortEvent::PkeyChange, cx);
    }
    Ok(())
}

/// Handles SLtoVLMappingTable: of an adapter's port, or from one port of a switch to another. An adapter has one table per
/// port, whether the modifier is 0 or the port's number, as OpenSM and smpquery write it.
pub(super) fn sl_to_vl(subnet: &mut Subnet, r: &Request, data: &mut Data) -> Result<(), Refused> {
    let [high, middle, input, output] = r.modifier.to_be_bytes();
    if (high, middle) != (0, 0) {
        return Err(Refused::Invalid);
    }
    let at = r.arrival.at;
    let out = table_port(subnet, r, output).ok_or(Refused::Invalid)?;
    let default = default_sl_to_vl(subnet.ports[out].info.operational_vls.count());
    let new: [u8; 8] = core::array::from_fn(|i| data[i]);
    let node = subnet.node_of_mut(at);
    let ports = node.num_ports;
    let now = match &mut node.switch {
        Some(_) if input > ports => return Err(Refused::Invalid),
        Some(switch) if r.is_set => {
            // The first Set also gives all other mappings a value.
            let is_first = switch.sl_to_vl(ports, input, output).is_none();
            let slot = switch.sl_to_vl_mut(ports, input, output, default);
            let old = core::mem::replace(slot.ok_or(Refused::Invalid)?, new);
            let node = subnet.ports[at].id.node;
            if is_first {
                subnet.changes.add(Change::Node(node));
            } else if old != new {
                subnet.changes.add(Change::Lanes { node, input, output });
            }
            new
        }
        Some(switch) => switch.sl_to_vl(ports, input, output).copied().unwrap_or(default),
        None if input != 0 => return Err(Refused::Invalid),
        None => {
            let port = &mut subnet.ports[at];
            let old = port.sl_to_vl;
            if r.is_set && old != Some(new) {
                port.sl_to_vl = Some(new);
                subnet.port_changed(at);
            }
            if r.is_set { new } else { old.unwrap_or(default) }
        }
    };
    put(data, &now);
    Ok(())
}

/// Handles VLArbitrationTable: low priority in blocks 1 and 2, high priority in 3 and 4.
pub(super) fn vl_arbitration(
    subnet: &mut Subnet,
    r: &Request,
    data: &mut Data,
) -> Result<(), Refused> {
    const BLOCKS: usize = 4;
    const ENTRIES: u8 = 32;
    let [block_high, block, high, number] = r.modifier.to_be_bytes();
    let at = table_port(subnet, r, number).filter(|_| (block_high, high) == (0, 0));
    let port = &mut subnet.ports[at.ok_or(Refused::Invalid)?];
    let (low, high) = (port.info.vl_arbitration_low_cap, port.info.vl_arbitration_high_cap);
    let entries = match block {
        1 => low,
        2 => low.saturating_sub(ENTRIES),
        3 => high,
        4 => high.saturating_sub(ENTRIES),
        _ => 0,
    };
    let Some(index) = block.checked_sub(1).filter(|_| entries > 0) else {
        return Err(Refused::Invalid);
    };
    if r.is_set {
        let mut new = VlArbitration::from_bytes(data);
        for entry in new.entries.iter_mut().skip(entries.into()) {
            *entry = Default::default();
        }
        port.vl_arbitration.resize(BLOCKS, VlArbitration::default());
        port.vl_arbitration[usize::from(index)] = new;
    }
    let now = port.vl_arbitration.get(usize::from(index)).copied().unwrap_or_default();
    put(data, &now.to_bytes());
    Ok(())
}

/// Returns the port whose table a modifier names: any port of a switch; of an adapter the addressed port, which may also be
/// named 0.
fn table_port(subnet: &Subnet, r: &Request, number: u8) -> Option<usize> {
    let at = r.arrival.at;
    let node = subnet.node_of(at);
    match number {
        0 if node.switch.is_none() => Some(at),
        number => node.port(number).filter(|port| node.switch.is_some() || *port == at),
    }
}
