//! SwitchInfo and the forwarding tables.

use rdmux_wire::sm::SwitchInfo;

use super::{Data, Refused, Request, put};
use crate::changes::Change;
use crate::subnet::Subnet;
use crate::switch::{MFT_BLOCK, Switch};

/// Returns the switch that a request addresses; adapters have none of these attributes.
fn switch<'a>(subnet: &'a mut Subnet, r: &Request) -> Result<&'a mut Switch, Refused> {
    let node = subnet.node_of_mut(r.arrival.at);
    node.switch.as_deref_mut().ok_or(Refused::Unsupported)
}

pub(super) fn info(subnet: &mut Subnet, r: &Request, data: &mut Data) -> Result<(), Refused> {
    let switch = switch(subnet, r)?;
    if r.modifier != 0 {
        return Err(Refused::Invalid);
    }
    let mut result = Ok(());
    let mut has_other_top = false;
    if r.is_set {
        let mut new = SwitchInfo::default();
        if let Ok(theirs) = SwitchInfo::parse(&data[..]) {
            new = theirs;
        }
        let info = &mut switch.info;
        let old_top = info.linear_fdb_top;
        if new.linear_fdb_top.0 < info.linear_fdb_cap {
            info.linear_fdb_top = new.linear_fdb_top;
        } else {
            result = Err(Refused::Invalid);
        }
        info.default_port = new.default_port;
        info.default_multicast_primary_port = new.default_multicast_primary_port;
        info.default_multicast_not_primary_port = new.default_multicast_not_primary_port;
        info.life_time_value = new.life_time_value;
        // Writing 1 clears the bit.
        info.port_state_change &= !new.port_state_change;
        has_other_top = info.linear_fdb_top != old_top;
    }
    put(data, &switch.info.to_bytes());
    if has_other_top {
        subnet.changes.add(Change::Node(subnet.ports[r.arrival.at].id.node));
    }
    result
}

pub(super) fn linear(subnet: &mut Subnet, r: &Request, data: &mut Data) -> Result<(), Refused> {
    let switch = switch(subnet, r)?;
    let block = usize::try_from(r.modifier).map_err(|_| Refused::Invalid)?;
    let old = switch.lft_block(block).ok_or(Refused::Invalid)?;
    if !r.is_set {
        *data = old;
    } else if old != *data {
        switch.set_lft_block(block, data);
        if let Ok(block) = u16::try_from(block) {
            let node = subnet.ports[r.arrival.at].id.node;
            subnet.changes.add(Change::Linear { node, block });
        }
    }
    Ok(())
}

pub(super) fn multicast(subnet: &mut Subnet, r: &Request, data: &mut Data) -> Result<(), Refused> {
    const BLOCKS: u32 = 0x1ff;
    let ports = subnet.node_of(r.arrival.at).num_ports;
    let switch = switch(subnet, r)?;
    let (position, block) = (r.modifier >> 28, r.modifier & BLOCKS);
    let reserved = r.modifier & !(0xf << 28 | BLOCKS);
    if reserved != 0 || position > u32::from(ports) / 16 {
        return Err(Refused::Invalid);
    }
    let mut changed = None;
    let [position, block] = [position, block].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    if r.is_set {
        let mut masks = [0; MFT_BLOCK];
        for (mask, bytes) in masks.iter_mut().zip(data.chunks_exact(2)) {
            *mask = u16::from_be_bytes([bytes[0], bytes[1]]);
        }
        let old = switch.mft_block(position, block).ok_or(Refused::Invalid)?;
        if old != masks {
            switch.set_mft_block(position, block, &masks);
            changed = u16::try_from(block).ok();
        }
    }
    let masks = switch.mft_block(position, block).ok_or(Refused::Invalid)?;
    if let Some(block) = changed {
        let node = subnet.ports[r.arrival.at].id.node;
        subnet.changes.add(Change::Multicast { node, block });
    }
    for (bytes, mask) in data.chunks_exact_mut(2).zip(masks) {
        bytes.copy_from_slice(&mask.to_be_bytes());
    }
    Ok(())
}
