//! Which answers may differ, and why: docs/decisions.md, "Where subnet administration is not as OpenSM's", has the same list.

use rdmux_wire::class_port_info::ClassPortInfo;
use rdmux_wire::mad::Method;
use rdmux_wire::sa::{
    GuidInfoRecord, InformInfo, InformInfoRecord, LinearForwardingTableRecord, LinkRecord,
    McMemberRecord, McMemberRecordMask, MultiPathRecord, MulticastForwardingTableRecord,
    PkeyTableRecord, PkeyTableRecordMask, PortInfoRecord, PortInfoRecordMask as Port,
    SlToVlTableRecord, SmInfoRecord, VlArbitrationRecord,
};

use rdmux_wire::Lid;
use rdmux_wire::layout::Layout as _;
use rdmux_wire::sm::{CapabilityMask, PortInfo};

use super::question::{Answer, Question};

/// Takes out of a record what is the manager's own, or a choice of routes: rows of `saquery` compare that with what the fabric
/// shows.
pub(super) fn hide(question: &Question, record: &mut [u8]) {
    match question.attr_id {
        PortInfoRecord::ATTR_ID => hide_port(record),
        // Of equally short routes each takes its own.
        LinearForwardingTableRecord::ATTR_ID | MulticastForwardingTableRecord::ATTR_ID => {
            clear(record, 8..72);
        }
        SmInfoRecord::ATTR_ID => clear(record, 0..32),
        // How long an answer may take: rows give OpenSM more time than it has by default.
        ClassPortInfo::ATTR_ID => clear(record, 7..8),
        _ => {}
    }
}

/// What each manager sets as it likes: its LID, and whether it is on the port; partition enforcement of switches' ports, how long
/// packets may wait, which errors are too many. And the port by which it reaches the node.
fn hide_port(record: &mut [u8]) {
    let Some((head, rest)) = record.split_at_mut_checked(4) else { return };
    let (Ok(mut info), [_, _, port, _]) = (PortInfo::parse(rest), &*head) else { return };
    (info.sm_lid, info.local_port_num) = (Lid(0), *port);
    info.capability_mask.remove(CapabilityMask::SM);
    (info.vl_stall_count, info.hoq_life) = (0, 0);
    (info.partition_enforcement_inbound, info.partition_enforcement_outbound) = (false, false);
    (info.local_phy_errors, info.overrun_errors) = (0, 0);
    info.write(rest);
}

/// The components of those, and others that OpenSM does not look at, or in the wrong byte order.
const UNLIKE: Port = Port::SM_LID
    .union(Port::BASE_LID)
    .union(Port::CAPABILITY_MASK)
    .union(Port::LOCAL_PORT_NUM)
    .union(Port::VL_STALL_COUNT)
    .union(Port::HOQ_LIFE)
    .union(Port::PARTITION_ENFORCEMENT_INBOUND)
    .union(Port::PARTITION_ENFORCEMENT_OUTBOUND)
    .union(Port::LOCAL_PHY_ERRORS)
    .union(Port::OVERRUN_ERRORS)
    .union(Port::INIT_TYPE_REPLY)
    .union(Port::CLIENT_REREGISTER)
    .union(Port::MULTICAST_PKEY_TRAP_SUPPRESSION)
    .union(Port::MAX_CREDIT_HINT)
    .union(Port::LINK_ROUND_TRIP_LATENCY)
    .union(Port::CAPABILITY_MASK2);

/// A difference that is meant.
struct Named {
    /// As the line in docs/decisions.md begins.
    name: &'static str,
    /// Whether this is one.
    is: fn(&Question, &Answer, &Answer) -> bool,
}

const NAMED: &[Named] = &[
    Named {
        name: "components of PortInfoRecords",
        is: |question, _, _| {
            question.attr_id == PortInfoRecord::ATTR_ID && question.mask & UNLIKE.bits() != 0
        },
    },
    Named { name: "SMInfoRecords", is: |question, _, _| question.attr_id == SmInfoRecord::ATTR_ID },
    Named {
        name: "GUIDInfoRecords by block and by GUID",
        is: |question, _, _| {
            let asks = matches!(question.method, Method::GET | Method::GET_TABLE);
            question.attr_id == GuidInfoRecord::ATTR_ID && asks && question.mask & !1 != 0
        },
    },
    Named {
        name: "P_KeyTableRecords by port",
        is: |question, _, _| {
            let by_port = question.mask & PkeyTableRecordMask::PORT_NUM.bits() != 0;
            question.attr_id == PkeyTableRecord::ATTR_ID && by_port
        },
    },
    Named {
        name: "P_Keys of switches' ports",
        is: |question, ours, theirs| {
            let keys = |record: &mut [u8]| {
                clear(record, 2..4);
                clear(record, 8..72);
            };
            question.attr_id == PkeyTableRecord::ATTR_ID && same_but(ours, theirs, keys)
        },
    },
    Named {
        name: "MCMemberRecords by JoinState",
        is: |question, _, _| {
            let asks = matches!(question.method, Method::GET | Method::GET_TABLE);
            let by_state = question.mask & McMemberRecordMask::JOIN_STATE.bits() != 0;
            question.attr_id == McMemberRecord::ATTR_ID && asks && by_state
        },
    },
    Named {
        name: "the answer to a member that leaves",
        is: |question, ours, theirs| {
            let rest = |record: &mut [u8]| {
                clear(record, 32..36);
                clear(record, 40..42);
                if let Some([scope, proxy]) = record.get_mut(48..50) {
                    *scope &= 0x0f;
                    *proxy = 0;
                }
            };
            question.attr_id == McMemberRecord::ATTR_ID
                && question.method == Method::DELETE
                && same_but(ours, theirs, rest)
        },
    },
    Named {
        name: "the queue pair of a subscription",
        is: |question, ours, theirs| {
            question.attr_id == InformInfoRecord::ATTR_ID
                && same_but(ours, theirs, |record| {
                    clear(record, 16..18);
                    clear(record, 52..55);
                })
        },
    },
    Named {
        name: "MultiPathRecords of more ports than have room",
        is: |question, ours, _| {
            question.attr_id == MultiPathRecord::ATTR_ID
                && question.is("of too many")
                && ours.status() == Some(0x0200)
        },
    },
    Named {
        name: "between which of several ports two paths are",
        is: |question, ours, theirs| {
            question.attr_id == MultiPathRecord::ATTR_ID
                && question.is("2 paths")
                && ours.records().len() == theirs.records().len()
        },
    },
    Named {
        name: "SLtoVL and VL arbitration records without QoS",
        is: |question, _, _| {
            matches!(question.attr_id, SlToVlTableRecord::ATTR_ID | VlArbitrationRecord::ATTR_ID)
        },
    },
    Named {
        name: "block numbers of P_KeyTableRecords",
        is: |question, ours, theirs| {
            let block = |record: &mut [u8]| clear(record, 2..4);
            question.attr_id == PkeyTableRecord::ATTR_ID
                && (question.mask & 2 != 0 || same_but(ours, theirs, block))
        },
    },
    Named {
        name: "the scope of a group that a program makes; ProxyJoin",
        is: |question, ours, theirs| {
            let scope_and_proxy = |record: &mut [u8]| {
                if let Some([scope, proxy]) = record.get_mut(48..50) {
                    *scope &= 0x0f;
                    *proxy = 0;
                }
            };
            question.attr_id == McMemberRecord::ATTR_ID && same_but(ours, theirs, scope_and_proxy)
        },
    },
    Named {
        name: "enumeration of subscriptions",
        is: |question, ours, theirs| {
            question.attr_id == InformInfoRecord::ATTR_ID
                && same_but(ours, theirs, |record| clear(record, 16..18))
        },
    },
    Named {
        name: "a subscription that is refused",
        is: |question, ours, theirs| {
            question.attr_id == InformInfo::ATTR_ID
                && ours.status() == theirs.status()
                && ours.status() != Some(0)
        },
    },
];

/// Where ports of adapters have several LIDs.
const WITH_LMC: &[Named] = &[Named {
    name: "LinkRecords by the LID of a switch",
    is: |question, ours, theirs| {
        let only_ours = theirs.records().is_empty() && !ours.records().is_empty();
        question.attr_id == LinkRecord::ATTR_ID && (only_ours || theirs.status() == Some(0x0300))
    },
}];

fn clear(record: &mut [u8], at: std::ops::Range<usize>) {
    if let Some(bytes) = record.get_mut(at) {
        bytes.fill(0);
    }
}

/// Whether answers are the same when this has been taken out of each record.
fn same_but(ours: &Answer, theirs: &Answer, clear: fn(&mut [u8])) -> bool {
    ours.without(clear) == theirs.without(clear)
}

/// The name of a difference between our answer and OpenSM's, if it has one.
pub(super) fn name(
    question: &Question,
    ours: &Answer,
    theirs: &Answer,
    lmc: u8,
) -> Option<&'static str> {
    let with_lmc = if lmc > 0 { WITH_LMC } else { &[] };
    let mut all = NAMED.iter().chain(with_lmc);
    all.find(|named| (named.is)(question, ours, theirs)).map(|named| named.name)
}
