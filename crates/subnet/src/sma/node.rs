//! NodeInfo and NodeDescription.

use rdmux_wire::sm::{CapabilityMask2, NodeDescription, NodeInfo, NodeType};
use rdmux_wire::{mad, smp};

use super::{Data, Refused, Request, put};
use crate::subnet::Subnet;

/// Writes NodeInfo, including the port that was queried.
pub(super) fn info(subnet: &Subnet, r: &Request, data: &mut Data) -> Result<(), Refused> {
    if r.is_set {
        return Err(Refused::Unsupported);
    }
    if r.modifier != 0 {
        return Err(Refused::Invalid);
    }
    let at = r.arrival.at;
    let node = subnet.node_of(at);
    let info = NodeInfo {
        base_version: mad::BASE_VERSION,
        class_version: smp::CLASS_VERSION,
        node_type: NodeType(node.kind.code()),
        num_ports: node.num_ports,
        system_image_guid: node.system_guid,
        node_guid: node.guid,
        port_guid: subnet.ports[at].guid,
        partition_cap: subnet.config.partition_cap,
        device_id: node.device_id,
        revision: crate::node::REVISION,
        local_port_num: r.arrival.ingress,
        vendor_id: node.vendor_id,
    };
    put(data, &info.to_bytes());
    Ok(())
}

/// Gets or sets the node's description. A manager may set it if the capability mask allows that.
pub(super) fn description(
    subnet: &mut Subnet,
    r: &Request,
    data: &mut Data,
) -> Result<(), Refused> {
    let at = r.arrival.at;
    let mask = subnet.ports[at].info.capability_mask2;
    if r.is_set && !mask.contains(CapabilityMask2::SET_NODE_DESCRIPTION) {
        return Err(Refused::Unsupported);
    }
    if r.modifier != 0 {
        return Err(Refused::Invalid);
    }
    let node = subnet.node_of_mut(at);
    if r.is_set {
        node.description = NodeDescription::from_bytes(data);
    }
    put(data, &node.description.to_bytes());
    Ok(())
}
