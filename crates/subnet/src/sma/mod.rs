//! The subnet management agent of adapters and switches: a file for each group of attributes (IBTA 14.2.5).
//!
//! A Set changes the valid part of its data and answers with the resulting state, as a Get would. The status tells whether
//! all of it was valid.

mod node;
mod port_info;
mod switch;
mod tables;
mod vendor;

use rdmux_wire::Mkey;
use rdmux_wire::mad::{MAD_LEN, MadHeader, Method, status};
use rdmux_wire::sm::{
    GuidInfo, LinearForwardingTable, MlnxExtPortInfo, MulticastForwardingTable, NodeDescription,
    NodeInfo, PkeyTable, PortInfo, SlToVlTable, SwitchInfo, VlArbitration,
};
use rdmux_wire::smp::DATA_LEN;

use crate::forward::Arrival;
use crate::mkey;
use crate::sink::Sink;
use crate::subnet::{Cx, Subnet};

/// The data of a subnet management packet.
type Data = [u8; DATA_LEN];

/// The offset of the data.
const DATA: usize = 64;

/// A Get or a Set that the M_Key allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    arrival: Arrival,
    attr_id: u16,
    modifier: u32,
    is_set: bool,
    key: Mkey,
}

impl Request {
    pub(crate) fn new(arrival: Arrival, header: &MadHeader, mad: &[u8; MAD_LEN]) -> Self {
        Self {
            arrival,
            attr_id: header.attr_id,
            modifier: header.attr_mod,
            is_set: header.method == Method::SET,
            key: mkey::shown(mad),
        }
    }
}

/// The reason why a request is refused in whole or in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// The attribute does not exist here or cannot be set.
    Unsupported,
    /// The modifier or a value is not allowed.
    Invalid,
}

/// Answers a request: replaces the data with that of the answer. Returns the status.
pub(crate) fn answer(
    subnet: &mut Subnet,
    request: &Request,
    mad: &mut [u8; MAD_LEN],
    cx: &mut Cx<'_, impl Sink>,
) -> u16 {
    let Some(data) = mad[DATA..].first_chunk_mut::<DATA_LEN>() else {
        return status::UNSUPPORTED_METHOD_ATTRIBUTE;
    };
    let result = match request.attr_id {
        NodeInfo::ATTR_ID => node::info(subnet, request, data),
        NodeDescription::ATTR_ID => node::description(subnet, request, data),
        PortInfo::ATTR_ID => port_info::answer(subnet, request, data, cx),
        SwitchInfo::ATTR_ID => switch::info(subnet, request, data),
        LinearForwardingTable::ATTR_ID => switch::linear(subnet, request, data),
        MulticastForwardingTable::ATTR_ID => switch::multicast(subnet, request, data),
        GuidInfo::ATTR_ID => tables::guids(subnet, request, data, cx),
        PkeyTable::ATTR_ID => tables::pkeys(subnet, request, data, cx),
        SlToVlTable::ATTR_ID => tables::sl_to_vl(subnet, request, data),
        VlArbitration::ATTR_ID => tables::vl_arbitration(subnet, request, data),
        MlnxExtPortInfo::ATTR_ID => vendor::ext_port_info(subnet, request, data),
        _ => Err(Refused::Unsupported),
    };
    match result {
        Ok(()) => status::OK,
        Err(Refused::Unsupported) => status::UNSUPPORTED_METHOD_ATTRIBUTE,
        Err(Refused::Invalid) => status::INVALID_VALUE,
    }
}

/// Writes an attribute over the data and zeroes the rest.
fn put(data: &mut Data, attribute: &[u8]) {
    *data = [0; DATA_LEN];
    data[..attribute.len()].copy_from_slice(attribute);
}
