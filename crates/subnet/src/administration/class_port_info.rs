//! ClassPortInfo: the capabilities of this administration (IBTA 15.2.5.1).

use rdmux_wire::class_port_info::{ClassCapabilities, ClassPortInfo};
use rdmux_wire::sa::{CLASS_VERSION, capability};
use rdmux_wire::{Qkey, Qpn};

use super::request::Request;
use super::table::Table;
use super::{Status, View};

/// The response time: 4.096 us * 2^16, 268 ms.
const RESP_TIME: u8 = 0x10;

pub(super) fn read(_: &View<'_>, _: &Request<'_>, table: &mut Table) -> Result<(), Status> {
    let own = capability::UD_MULTICAST
        | capability::MULTI_PATH
        | capability::PORT_INFO_CAPABILITY_MASK_MATCH;
    table.push(&ClassPortInfo {
        base_version: 1,
        class_version: CLASS_VERSION,
        capability_mask: ClassCapabilities::GET_SET_NOTICE
            | ClassCapabilities::from_bits_retain(own),
        capability_mask2: capability::MULTICAST_TOP
            | capability::ALIAS_GUID
            | capability::FULL_PORT_INFO
            | capability::EXTENDED_SPEEDS
            | capability::MULTICAST_SERVICE_RECORD
            | capability::PORT_INFO_CAPABILITY_MASK2_MATCH
            | capability::SEND_ONLY_FULL_MEMBER
            | capability::LINK_WIDTH_2X
            | capability::LINK_SPEED_HDR,
        resp_time_value: RESP_TIME,
        redirect_qp: Qpn::QP1,
        redirect_qkey: Qkey::QP1,
        trap_qkey: Qkey::QP1,
        ..ClassPortInfo::default()
    })?;
    table.is_no_record();
    Ok(())
}
