//! Requests for records of nodes, ports, switches, links and tables: each table, and records by each component.

use rdmux_wire::mad::Method;
use rdmux_wire::sa::{
    Components, GuidInfoRecord, GuidInfoRecordMask, InformInfoRecord, LinearForwardingTableRecord,
    LinearForwardingTableRecordMask, LinkRecord, LinkRecordMask, MATCH_CAPABILITY_BITS,
    MATCH_CAPABILITY2_BITS, McMemberRecord, McMemberRecordMask, MulticastForwardingTableRecord,
    MulticastForwardingTableRecordMask, NodeRecord, NodeRecordMask, PathRecord, PkeyTableRecord,
    PkeyTableRecordMask, PortInfoRecord, PortInfoRecordMask, ServiceRecord, SlToVlTableRecord,
    SlToVlTableRecordMask, SmInfoRecord, SmInfoRecordMask, SwitchInfoRecord, SwitchInfoRecordMask,
    VlArbitrationRecord, VlArbitrationRecordMask,
};

use super::question::{Answer, Question};

/// A kind of record that can be requested by its components.
struct Kind {
    attr_id: u16,
    /// The length in bytes.
    len: usize,
    components: Vec<(&'static str, u64)>,
    /// Copies components from one record to another.
    copy: fn(u64, &[u8], &mut [u8]),
}

macro_rules! kinds {
    ($($record:ident $mask:ident),*) => {
        vec![$(Kind {
            attr_id: $record::ATTR_ID,
            len: $record::LEN,
            components: $mask::all().iter_names().map(|(name, bit)| (name, bit.bits())).collect(),
            copy: <$record as Components>::copy_components,
        }),*]
    };
}

/// Returns the records that have the components of a request, where only those that `counts` returns for a record count.
pub(super) fn matching<'r>(
    question: &Question,
    records: &'r [Vec<u8>],
    counts: impl Fn(&[u8]) -> u64,
) -> Option<Vec<&'r [u8]>> {
    let kind = kinds().into_iter().find(|kind| kind.attr_id == question.attr_id)?;
    let mut wanted = vec![0; kind.len];
    let given = question.data.len().min(kind.len);
    wanted[..given].copy_from_slice(&question.data[..given]);
    let matches = |record: &&[u8]| {
        let mask = question.mask & counts(record);
        let mut care = vec![0; kind.len];
        (kind.copy)(mask, &vec![0xff; kind.len], &mut care);
        for (bit, component) in CAPABILITIES {
            if kind.attr_id == PortInfoRecord::ATTR_ID && question.modifier & bit != 0 {
                // Requested bits must be set; the others do not count.
                (kind.copy)(mask & component.bits(), &wanted, &mut care);
            }
        }
        let mut pairs = care.iter().zip(record.iter().zip(&wanted));
        pairs.all(|(care, (have, wanted))| (have ^ wanted) & care == 0)
    };
    let all = records.iter().filter_map(|record| record.get(..kind.len));
    Some(all.filter(matches).collect())
}

/// The bits of a modifier that determine how capability masks are compared.
const CAPABILITIES: [(u32, PortInfoRecordMask); 2] = [
    (MATCH_CAPABILITY_BITS, PortInfoRecordMask::CAPABILITY_MASK),
    (MATCH_CAPABILITY2_BITS, PortInfoRecordMask::CAPABILITY_MASK2),
];

fn kinds() -> Vec<Kind> {
    kinds![
        NodeRecord NodeRecordMask,
        PortInfoRecord PortInfoRecordMask,
        SlToVlTableRecord SlToVlTableRecordMask,
        SwitchInfoRecord SwitchInfoRecordMask,
        LinearForwardingTableRecord LinearForwardingTableRecordMask,
        MulticastForwardingTableRecord MulticastForwardingTableRecordMask,
        SmInfoRecord SmInfoRecordMask,
        LinkRecord LinkRecordMask,
        GuidInfoRecord GuidInfoRecordMask,
        PkeyTableRecord PkeyTableRecordMask,
        VlArbitrationRecord VlArbitrationRecordMask,
        McMemberRecord McMemberRecordMask
    ]
}

/// Returns requests for all records of each kind, with the SA key and without.
pub(super) fn tables() -> Vec<Question> {
    let others = [PathRecord::ATTR_ID, ServiceRecord::ATTR_ID, InformInfoRecord::ATTR_ID];
    let all: Vec<u16> = kinds().iter().map(|kind| kind.attr_id).chain(others).collect();
    let plain = all.iter().map(|id| Question::new("all", Method::GET_TABLE, *id));
    let trusted = all.iter().map(|id| Question::new("all, trusted", Method::GET_TABLE, *id).key(1));
    plain.chain(trusted).collect()
}

/// Returns requests of each kind, for records that the table had: the first one, one in the middle and the last one.
pub(super) fn questions(tables: &[Question], answers: &[Answer]) -> Vec<Question> {
    let mut all = Vec::new();
    for kind in kinds() {
        let of_kind = |(question, _): &(&Question, &Answer)| question.attr_id == kind.attr_id;
        // A trusted requester sees more of them.
        let table = tables.iter().zip(answers).rfind(of_kind);
        let records = table.map_or(&[][..], |(_, answer)| answer.records());
        let zeros = vec![0; kind.len];
        let records: Vec<&[u8]> = match records.len() {
            0 => vec![&zeros[..]],
            len => vec![&records[0][..], &records[len / 2][..], &records[len - 1][..]],
        };
        for (n, record) in records.into_iter().enumerate() {
            let record = record.get(..kind.len).unwrap_or(&zeros);
            all.extend(by_component(&kind, n, record));
        }
        all.push(
            Question::new("an unknown component", Method::GET_TABLE, kind.attr_id)
                .with(1 << 63, &zeros),
        );
        all.push(Question::new("one of many", Method::GET, kind.attr_id));
    }
    all.extend(capabilities(tables, answers));
    all
}

/// Returns requests by each component, with the value of the record and with another one; by the first two components, one of which
/// may be wrong; and by all components.
fn by_component(kind: &Kind, n: usize, record: &[u8]) -> Vec<Question> {
    // OpenSM uses port numbers of tables of service levels unchecked, and crashes on those that no port has.
    let ports = matches!(kind.attr_id, SlToVlTableRecord::ATTR_ID | VlArbitrationRecord::ATTR_ID);
    let flip = if ports { 1 } else { u8::MAX };
    let inverted: Vec<u8> = record.iter().map(|byte| byte ^ flip).collect();
    let with = |name: String, method: Method, mask: u64, wrong: u64| {
        let mut data = vec![0; kind.len];
        (kind.copy)(mask, record, &mut data);
        (kind.copy)(wrong, &inverted, &mut data);
        // P_Keys are visible to trusted requesters only.
        let key = u64::from(kind.attr_id == PkeyTableRecord::ATTR_ID);
        Question::new(name, method, kind.attr_id).with(mask, &data).key(key)
    };
    let mut all = Vec::new();
    for (name, bit) in &kind.components {
        all.push(with(format!("record {n} by {name}"), Method::GET_TABLE, *bit, 0));
        all.push(with(format!("record {n} by another {name}"), Method::GET_TABLE, *bit, *bit));
    }
    let bits: Vec<u64> = kind.components.iter().map(|(_, bit)| *bit).collect();
    if let [first, second, rest @ ..] = &bits[..] {
        let both = first | second;
        all.push(with(format!("record {n} by the first two"), Method::GET, both, 0));
        all.push(with(format!("record {n} by the first two"), Method::GET_TABLE, both, 0));
        all.push(with(format!("record {n} by a wrong second"), Method::GET, both, *second));
        if let [third, ..] = rest {
            let three = both | third;
            all.push(with(format!("record {n} by the first three"), Method::GET, three, 0));
        }
    }
    let every = bits.iter().fold(0, |all, bit| all | bit);
    all.push(with(format!("record {n} by everything"), Method::GET, every, 0));
    all
}

/// Returns requests for PortInfoRecords by bits of their capability masks.
fn capabilities(tables: &[Question], answers: &[Answer]) -> Vec<Question> {
    let ports = tables.iter().zip(answers).find(|(q, _)| q.attr_id == PortInfoRecord::ATTR_ID);
    let Some(record) = ports.and_then(|(_, answer)| answer.records().first()) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    let masks = [
        ("CapabilityMask", MATCH_CAPABILITY_BITS, PortInfoRecordMask::CAPABILITY_MASK),
        ("CapabilityMask2", MATCH_CAPABILITY2_BITS, PortInfoRecordMask::CAPABILITY_MASK2),
    ];
    for (name, modifier, mask) in masks {
        let ask = |name: String, data: &[u8]| {
            Question::new(name, Method::GET_TABLE, PortInfoRecord::ATTR_ID)
                .with(mask.bits(), data)
                .modifier(modifier)
        };
        all.push(ask(format!("by the bits of a {name}"), record));
        all.push(ask(format!("by no bits of {name}"), &[0; PortInfoRecord::LEN]));
        all.push(ask(format!("by all bits of {name}"), &[0xff; PortInfoRecord::LEN]));
    }
    // The manager's port has this bit.
    let mut is_sm = PortInfoRecord::default();
    is_sm.port_info.capability_mask = rdmux_wire::sm::CapabilityMask::SM;
    let question = Question::new("managers", Method::GET_TABLE, PortInfoRecord::ATTR_ID);
    let mask = PortInfoRecordMask::CAPABILITY_MASK.bits();
    all.push(question.clone().with(mask, &is_sm.to_bytes()).modifier(MATCH_CAPABILITY_BITS));
    all.push(question.with(mask, &is_sm.to_bytes()));
    all
}
