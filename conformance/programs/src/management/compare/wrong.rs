//! Invalid requests, and those that get no answer: methods that a record does not support, attributes that do not exist, keys.

use rdmux_wire::class_port_info::ClassPortInfo;
use rdmux_wire::mad::Method;
use rdmux_wire::sa::{
    GuidInfoRecord, InformInfo, InformInfoRecord, LinearForwardingTableRecord, LinkRecord,
    McMemberRecord, MultiPathRecord, MulticastForwardingTableRecord, NodeRecord, NodeRecordMask,
    PathRecord, PkeyTableRecord, PortInfoRecord, ServiceRecord, SlToVlTableRecord, SmInfoRecord,
    SwitchInfoRecord, VlArbitrationRecord,
};

use super::facts::Facts;
use super::question::Question;

/// All attributes except the one of GetMulti.
const ATTRIBUTES: [u16; 17] = [
    ClassPortInfo::ATTR_ID,
    InformInfo::ATTR_ID,
    NodeRecord::ATTR_ID,
    PortInfoRecord::ATTR_ID,
    SlToVlTableRecord::ATTR_ID,
    SwitchInfoRecord::ATTR_ID,
    LinearForwardingTableRecord::ATTR_ID,
    MulticastForwardingTableRecord::ATTR_ID,
    SmInfoRecord::ATTR_ID,
    LinkRecord::ATTR_ID,
    GuidInfoRecord::ATTR_ID,
    ServiceRecord::ATTR_ID,
    PkeyTableRecord::ATTR_ID,
    PathRecord::ATTR_ID,
    VlArbitrationRecord::ATTR_ID,
    McMemberRecord::ATTR_ID,
    InformInfoRecord::ATTR_ID,
];

/// RandomForwardingTableRecord, TraceRecord, ServiceAssociationRecord, Notice, and undefined ones.
const UNKNOWN: [u16; 6] = [0x16, 0x39, 0x3b, 0x02, 0x99, 0xff00];

/// Returns invalid requests.
pub(super) fn questions(facts: &Facts) -> Vec<Question> {
    let mut all = Vec::new();
    for id in ATTRIBUTES {
        all.push(Question::new("method Get", Method::GET, id));
        all.push(Question::new("method GetTable", Method::GET_TABLE, id));
        all.push(Question::new("method GetMulti", Method::GET_MULTI, id).plain());
        all.push(Question::new("method GetTraceTable", Method::GET_TRACE_TABLE, id).silent());
        all.push(Question::new("method Set", Method::SET, id));
        all.push(Question::new("method Delete", Method::DELETE, id));
    }
    for method in [Method::GET, Method::GET_TABLE, Method::SET, Method::DELETE] {
        all.push(Question::new("method of GetMulti's", method, MultiPathRecord::ATTR_ID).plain());
    }
    for id in UNKNOWN {
        all.push(Question::new("unknown attribute", Method::GET, id).silent());
        all.push(Question::new("unknown attribute", Method::GET_TABLE, id).silent());
    }
    let node = NodeRecord { lid: facts.own.lid, ..NodeRecord::default() }.to_bytes();
    let by_lid = NodeRecordMask::LID.bits();
    for key in [0, 1, 2, u64::MAX] {
        let question = Question::new(format!("key {key:#x}"), Method::GET, NodeRecord::ATTR_ID);
        let question = question.with(by_lid, &node).key(key);
        all.push(if key < 2 { question } else { question.silent() });
    }
    for modifier in [1, 0x8000_0000, u32::MAX] {
        let name = format!("modifier {modifier:#x}");
        all.push(
            Question::new(name, Method::GET, NodeRecord::ATTR_ID)
                .with(by_lid, &node)
                .modifier(modifier),
        );
    }
    all
}
