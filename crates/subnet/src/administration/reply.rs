//! Answers to requests.

use rdmux_wire::mad::{MAD_LEN, MadHeader, Method};
use rdmux_wire::sa::{DATA_AT, DATA_LEN, InformInfo, MultiPathRecord, PathRecord, SaHeader, SaMad};
use rdmux_wire::{Rmpp, RmppFlags, RmppStatus, RmppType, SmKey};

use super::request::Request;
use super::table::Table;
use super::{Config, Status};
use crate::umad::UserMad;

/// The place of the field Subscribe in InformInfo.
const SUBSCRIBE: usize = 23;

/// Builds the answer to a request.
pub(super) fn reply(
    config: &Config,
    request: &Request<'_>,
    answer: Result<Table, Status>,
) -> UserMad {
    let in_segments = matches!(request.method(), Method::GET_TABLE | Method::GET_MULTI);
    let header = MadHeader { method: request.method().response(), ..request.sa.header };
    let sa = SaHeader { sm_key: SmKey(0), ..request.sa.sa };
    let none = Rmpp {
        version: 0,
        kind: RmppType(0),
        resp_time: 0,
        flags: RmppFlags::default(),
        status: RmppStatus::NORMAL,
        segment: 0,
        length: 0,
    };
    let data = match answer {
        Err(status) => {
            let header = MadHeader { status, attr_id: attribute(request), ..header };
            let data = &request.sa.data[..request.sa.data.len().min(DATA_LEN)];
            let mut bytes = SaMad { header, rmpp: none, sa, data }.to_bytes();
            if (request.method(), header.attr_id) == (Method::SET, InformInfo::ATTR_ID) {
                // Nothing is subscribed (IBTA o13-13.1.1).
                bytes[DATA_AT + SUBSCRIBE] = 0;
            }
            bytes.to_vec()
        }
        Ok(table) => {
            let active = RmppFlags::ACTIVE;
            let data = Rmpp { version: Rmpp::VERSION, kind: RmppType::DATA, flags: active, ..none };
            let rmpp = if in_segments { data } else { none };
            let header = MadHeader { status: 0, attr_id: attribute(request), ..header };
            let sa = SaHeader { attribute_offset: table.offset(), ..sa };
            let mut bytes = table.into_bytes(&SaMad { header, rmpp, sa, data: &[] }.head());
            if !in_segments {
                bytes.resize(MAD_LEN, 0);
            }
            bytes
        }
    };
    UserMad {
        agent: request.mad.agent,
        status: 0,
        // No response follows an answer. An acknowledged answer is complete and makes room for others.
        timeout_ms: 0,
        retries: if in_segments { config.retries } else { 0 },
        address: request.mad.address,
        data,
    }
}

/// Returns the attribute of the answer: MultiPathRecord queries are answered with PathRecords.
fn attribute(request: &Request<'_>) -> u16 {
    match request.sa.header.attr_id {
        MultiPathRecord::ATTR_ID => PathRecord::ATTR_ID,
        id => id,
    }
}
