//! Which answers may differ, and why: docs/decisions.md, "Where subnet administration is not as OpenSM's", has the same list.

use rdmux_wire::Lid;
use rdmux_wire::class_port_info::ClassPortInfo;
use rdmux_wire::layout::Layout as _;
use rdmux_wire::mad::{Method, status};
use rdmux_wire::sa::{
    GuidInfoRecord, GuidInfoRecordMask, InformInfo, InformInfoRecord, LinearForwardingTableRecord,
    LinkRecord, MATCH_CAPABILITY2_BITS, McMemberRecord, McMemberRecordMask, MultiPathRecord,
    MulticastForwardingTableRecord, PkeyTableRecord, PkeyTableRecordMask, PortInfoRecord,
    PortInfoRecordMask as Port, SlToVlTableRecord, SlToVlTableRecordMask, SmInfoRecord,
    SmInfoRecordMask, VlArbitrationRecord, VlArbitrationRecordMask,
};
use rdmux_wire::sm::{CapabilityMask, PortInfo, SmState};

use super::facts::Facts;
use super::own::Own;
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
        SmInfoRecord::ATTR_ID => {
            // Where it is, how long it runs, and its priority: OpenSM must have a higher one to become the master.
            [0..2, 4..12, 20..24].into_iter().for_each(|place| clear(record, place));
            if let Some(byte) = record.get_mut(24) {
                *byte &= 0x0f;
            }
        }
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

/// Components of PortInfo whose values each manager sets as it likes.
const SET: Port = Port::SM_LID
    .union(Port::CAPABILITY_MASK)
    .union(Port::LOCAL_PORT_NUM)
    .union(Port::VL_STALL_COUNT)
    .union(Port::HOQ_LIFE)
    .union(Port::PARTITION_ENFORCEMENT_INBOUND)
    .union(Port::PARTITION_ENFORCEMENT_OUTBOUND)
    .union(Port::LOCAL_PHY_ERRORS)
    .union(Port::OVERRUN_ERRORS);

/// Those that OpenSM does not look at.
const IGNORED: Port = Port::INIT_TYPE_REPLY
    .union(Port::CLIENT_REREGISTER)
    .union(Port::MULTICAST_PKEY_TRAP_SUPPRESSION)
    .union(Port::MAX_CREDIT_HINT)
    .union(Port::LINK_ROUND_TRIP_LATENCY);

/// A question whose answers differ.
pub(super) struct Case<'a> {
    pub(super) question: &'a Question,
    /// The answers without what is hidden.
    pub(super) ours: &'a Answer,
    pub(super) theirs: &'a Answer,
    /// OpenSM's answer as it came, and all that it has of each kind.
    pub(super) came: &'a Answer,
    pub(super) own: Own<'a>,
    pub(super) facts: &'a Facts,
    /// Both managers set tables of service levels.
    pub(super) qos: bool,
}

impl Case<'_> {
    /// Whether OpenSM's answer is what its own table says, if those components count that `counts` says for each record.
    fn is_own(&self, counts: impl Fn(&[u8]) -> u64) -> bool {
        self.own.says(self.question, self.came, counts)
    }

    /// The same, where components of these count for ports of switches only.
    fn is_own_but_for_adapters(&self, components: u64) -> bool {
        self.is_own(|record| if self.facts.is_adapters(record) { !components } else { u64::MAX })
    }

    /// Whether the answers are the same when this has been taken out of each record.
    fn same_but(&self, clear: impl Fn(&mut [u8])) -> bool {
        self.ours.without(&clear) == self.theirs.without(&clear)
    }

    fn is_about(&self, attr_id: u16) -> bool {
        self.question.attr_id == attr_id
    }
}

/// A difference that is meant.
struct Named {
    /// As the line in docs/decisions.md begins.
    name: &'static str,
    /// Whether this is one.
    is: fn(&Case<'_>) -> bool,
}

const NAMED: &[Named] = &[
    Named {
        name: "components of PortInfoRecords",
        is: |case| {
            case.is_about(PortInfoRecord::ATTR_ID)
                && case.question.has((SET | IGNORED).bits())
                && case.is_own(|_| !IGNORED.bits())
        },
    },
    Named {
        name: "PortInfoRecords by BaseLID",
        is: |case| {
            case.is_about(PortInfoRecord::ATTR_ID)
                && case.question.has(Port::BASE_LID.bits())
                && case.theirs.records().is_empty()
        },
    },
    Named {
        name: "PortInfoRecords by bits of CapabilityMask2",
        is: |case| {
            case.is_about(PortInfoRecord::ATTR_ID)
                && case.question.has(Port::CAPABILITY_MASK2.bits())
                && case.question.modifier == MATCH_CAPABILITY2_BITS
                && case.theirs.records().is_empty()
        },
    },
    Named {
        name: "SMInfoRecords",
        is: |case| {
            let ignored = (SmInfoRecordMask::SM_KEY | SmInfoRecordMask::ACT_COUNT).bits();
            let standby = |record: &Vec<u8>| record.get(24).is_some_and(|b| b & 0xf != MASTER);
            let all = case.question.mask == 0 && case.question.method == Method::GET_TABLE;
            let mut theirs = case.theirs.records().to_vec();
            theirs.retain(|record| !standby(record));
            // Who is trusted is shown the key.
            let ours = case.ours.without(|record| clear(record, 12..20));
            case.is_about(SmInfoRecord::ATTR_ID)
                && case.question.reads()
                && if all { theirs == ours.records() } else { case.is_own(|_| !ignored) }
        },
    },
    Named {
        name: "GUIDInfoRecords of block 255",
        is: |case| {
            let block = GuidInfoRecordMask::BLOCK_NUM.bits();
            case.is_about(GuidInfoRecord::ATTR_ID)
                && case.question.reads()
                && case.question.has(block)
                && case.question.data.get(2) == Some(&u8::MAX)
                && case.is_own(|_| !block)
        },
    },
    Named {
        name: "GUIDInfoRecords by GUID",
        is: |case| {
            let places = GuidInfoRecordMask::LID | GuidInfoRecordMask::BLOCK_NUM;
            let own = case.facts.own.lid.0.to_be_bytes();
            case.is_about(GuidInfoRecord::ATTR_ID)
                && case.question.reads()
                && case.question.has(!places.bits())
                && case.theirs.records().iter().all(|record| record[..2] == own)
        },
    },
    Named {
        name: "P_KeyTableRecords by port",
        is: |case| {
            let port = PkeyTableRecordMask::PORT_NUM.bits();
            case.is_about(PkeyTableRecord::ATTR_ID)
                && case.question.has(port)
                && case.is_own_but_for_adapters(port)
        },
    },
    Named {
        name: "P_Keys of switches' external ports",
        is: |case| {
            let keys = |record: &mut [u8]| {
                clear(record, 2..4);
                if !case.facts.is_adapters(record) && record.get(4) != Some(&0) {
                    clear(record, 8..72);
                }
            };
            case.is_about(PkeyTableRecord::ATTR_ID) && case.same_but(keys)
        },
    },
    Named {
        // They are compared with the switches, and with each other.
        name: "MulticastForwardingTableRecords where there are several ways",
        is: |case| {
            case.is_about(MulticastForwardingTableRecord::ATTR_ID) && case.facts.switches.len() > 1
        },
    },
    Named {
        name: "MCMemberRecords by JoinState",
        is: |case| {
            case.is_about(McMemberRecord::ATTR_ID)
                && case.question.reads()
                && case.question.has(McMemberRecordMask::JOIN_STATE.bits())
        },
    },
    Named {
        name: "the answer to a member that leaves",
        is: |case| {
            let rest = |record: &mut [u8]| {
                clear(record, 32..36);
                clear(record, 40..42);
                clear_scope_and_proxy(record);
            };
            case.is_about(McMemberRecord::ATTR_ID)
                && case.question.method == Method::DELETE
                && case.same_but(rest)
        },
    },
    Named {
        name: "the queue pair of a subscription",
        is: |case| {
            let rest = |record: &mut [u8]| {
                clear(record, 16..18);
                clear(record, 52..55);
            };
            case.is_about(InformInfoRecord::ATTR_ID) && case.same_but(rest)
        },
    },
    Named {
        name: "MultiPathRecords of more ports than have room",
        is: |case| {
            case.is_about(MultiPathRecord::ATTR_ID)
                && case.question.is("of too many")
                && case.ours.status() == Some(status::SA_REQUEST_INVALID)
        },
    },
    Named {
        name: "between which of several ports two paths are",
        is: |case| {
            case.is_about(MultiPathRecord::ATTR_ID)
                && case.question.is("2 paths")
                && case.ours.records().len() == case.theirs.records().len()
        },
    },
    Named {
        name: "SLtoVL and VL arbitration records without QoS",
        is: |case| {
            let sl_to_vl = case.is_about(SlToVlTableRecord::ATTR_ID);
            let ports = if sl_to_vl { SL_TO_VL_PORTS } else { ARBITRATION_PORT };
            let is_zero = |record: &Vec<u8>| record[8..].iter().all(|byte| *byte == 0);
            let table = case.own.table(case.question);
            (sl_to_vl || case.is_about(VlArbitrationRecord::ATTR_ID))
                && !case.qos
                && case.ours.records().is_empty()
                && table.is_some_and(|table| table.iter().all(is_zero))
                && case.is_own_but_for_adapters(ports)
        },
    },
    Named {
        name: "SLtoVL and VL arbitration records with QoS",
        is: |case| {
            let sl_to_vl = case.is_about(SlToVlTableRecord::ATTR_ID);
            let ports = if sl_to_vl { SL_TO_VL_PORTS } else { ARBITRATION_PORT };
            let all = case.question.mask == 0 && case.question.method == Method::GET_TABLE;
            let mut theirs = case.theirs.without(|record| {
                if !sl_to_vl {
                    clear(record, 8..72);
                }
            });
            theirs
                .retain(|record| case.facts.is_adapters(record) || !is_to_itself(sl_to_vl, record));
            let ours = case.ours.without(|record| {
                if !sl_to_vl {
                    clear(record, 8..72);
                }
            });
            (sl_to_vl || case.is_about(VlArbitrationRecord::ATTR_ID))
                && case.qos
                && if all { theirs == ours } else { case.is_own_but_for_adapters(ports) }
        },
    },
    Named {
        name: "block numbers of P_KeyTableRecords",
        is: |case| {
            case.is_about(PkeyTableRecord::ATTR_ID)
                && (case.question.has(PkeyTableRecordMask::BLOCK_NUM.bits())
                    || case.same_but(|record| clear(record, 2..4)))
        },
    },
    Named {
        name: "the scope of a group that a program makes; ProxyJoin",
        is: |case| case.is_about(McMemberRecord::ATTR_ID) && case.same_but(clear_scope_and_proxy),
    },
    Named {
        name: "enumeration of subscriptions",
        is: |case| {
            case.is_about(InformInfoRecord::ATTR_ID)
                && case.same_but(|record| clear(record, 16..18))
        },
    },
    Named {
        name: "a subscription that is refused",
        is: |case| {
            case.is_about(InformInfo::ATTR_ID)
                && case.ours.status() == case.theirs.status()
                && case.ours.status() != Some(0)
        },
    },
    Named {
        name: "LinkRecords by the LID of a switch",
        is: |case| {
            let only_ours = case.theirs.records().is_empty() && !case.ours.records().is_empty();
            let not_found = case.theirs.status() == Some(status::SA_NO_RECORDS);
            case.facts.lmc > 0 && case.is_about(LinkRecord::ATTR_ID) && (only_ours || not_found)
        },
    },
];

/// Whether a record is of port 0 of a switch, or of packets that leave by the port by which they came.
fn is_to_itself(sl_to_vl: bool, record: &[u8]) -> bool {
    match record {
        [_, _, input, output, ..] if sl_to_vl => *output == 0 || input == output,
        [_, _, output, ..] => *output == 0,
        _ => false,
    }
}

const SL_TO_VL_PORTS: u64 =
    SlToVlTableRecordMask::INPUT_PORT_NUM.union(SlToVlTableRecordMask::OUTPUT_PORT_NUM).bits();

const ARBITRATION_PORT: u64 = VlArbitrationRecordMask::OUTPUT_PORT_NUM.bits();

/// The state of a master in SMInfo.
const MASTER: u8 = SmState::MASTER.0;

/// The components of a question that count for a record of ours: service levels and arbitration of an adapter's port are found whatever
/// port is asked for.
pub(super) fn counts(facts: &Facts, question: &Question, record: &[u8]) -> u64 {
    match question.attr_id {
        SlToVlTableRecord::ATTR_ID if facts.is_adapters(record) => !SL_TO_VL_PORTS,
        VlArbitrationRecord::ATTR_ID if facts.is_adapters(record) => !ARBITRATION_PORT,
        _ => u64::MAX,
    }
}

/// Whether what the manager has in its table at the time says nothing of an answer: what it is, but for how it was asked for.
pub(super) fn depends_on_question(question: &Question) -> bool {
    match question.attr_id {
        McMemberRecord::ATTR_ID => true,
        PortInfoRecord::ATTR_ID => question.has(Port::OPTIONS.bits()),
        SmInfoRecord::ATTR_ID => question.has(SmInfoRecordMask::ACT_COUNT.bits()),
        _ => false,
    }
}

fn clear(record: &mut [u8], at: std::ops::Range<usize>) {
    if let Some(bytes) = record.get_mut(at) {
        bytes.fill(0);
    }
}

fn clear_scope_and_proxy(record: &mut [u8]) {
    if let Some([scope, proxy]) = record.get_mut(48..50) {
        *scope &= 0x0f;
        *proxy = 0;
    }
}

/// The name of a difference between our answer and OpenSM's, if it has one.
pub(super) fn name(case: &Case<'_>) -> Option<&'static str> {
    NAMED.iter().find(|named| (named.is)(case)).map(|named| named.name)
}
