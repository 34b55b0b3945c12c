//! The answers that may differ, with reasons: docs/decisions.md, "Where subnet administration is not as OpenSM's", has the same list.

use std::collections::BTreeMap;

use rdmux_wire::class_port_info::ClassPortInfo;
use rdmux_wire::layout::Layout as _;
use rdmux_wire::mad::{Method, status};
use rdmux_wire::sa::{
    GuidInfoRecord, GuidInfoRecordMask, InformInfo, InformInfoRecord, LinearForwardingTableRecord,
    LinkRecord, MATCH_CAPABILITY2_BITS, McMemberRecord, McMemberRecordMask, MultiPathRecord,
    MultiPathRecordMask, MulticastForwardingTableRecord, PathRecord, PathRecordMask,
    PkeyTableRecord, PkeyTableRecordMask, PortInfoRecord, PortInfoRecordMask as Port,
    SlToVlTableRecord, SlToVlTableRecordMask, SmInfoRecord, SmInfoRecordMask, VlArbitrationRecord,
    VlArbitrationRecordMask,
};
use rdmux_wire::sm::{CapabilityMask, PortInfo, SmState};
use rdmux_wire::{Gid, Lid, Pkey};

use super::facts::Facts;
use super::own::Own;
use super::partitions;
use super::question::{Answer, Question};

/// Clears the fields of a record that are the manager's own, or a choice of routes: rows of `saquery` compare these with the
/// fabric's state.
pub(super) fn hide(question: &Question, record: &mut [u8]) {
    match question.attr_id {
        PortInfoRecord::ATTR_ID => hide_port(record),
        // Each manager chooses among equally short routes.
        LinearForwardingTableRecord::ATTR_ID | MulticastForwardingTableRecord::ATTR_ID => {
            clear(record, 8..72);
        }
        SmInfoRecord::ATTR_ID => {
            // The manager's LID, its uptime, and its priority: OpenSM must have a higher one to become the master.
            [0..2, 4..12, 20..24].into_iter().for_each(|place| clear(record, place));
            if let Some(byte) = record.get_mut(24) {
                *byte &= 0x0f;
            }
        }
        // The response time: rows give OpenSM more time than its default.
        ClassPortInfo::ATTR_ID => clear(record, 7..8),
        _ => {}
    }
}

/// Clears the fields that each manager sets as it likes: its LID, and whether it is on the port; partition enforcement of switches'
/// ports, packet lifetime limits, error thresholds. And the port by which the manager reaches the node.
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

/// Components of PortInfo that each manager sets as it likes.
const SET: Port = Port::SM_LID
    .union(Port::CAPABILITY_MASK)
    .union(Port::LOCAL_PORT_NUM)
    .union(Port::VL_STALL_COUNT)
    .union(Port::HOQ_LIFE)
    .union(Port::PARTITION_ENFORCEMENT_INBOUND)
    .union(Port::PARTITION_ENFORCEMENT_OUTBOUND)
    .union(Port::LOCAL_PHY_ERRORS)
    .union(Port::OVERRUN_ERRORS);

/// Components that OpenSM ignores.
const IGNORED: Port = Port::INIT_TYPE_REPLY
    .union(Port::CLIENT_REREGISTER)
    .union(Port::MULTICAST_PKEY_TRAP_SUPPRESSION)
    .union(Port::MAX_CREDIT_HINT)
    .union(Port::LINK_ROUND_TRIP_LATENCY);

/// A request whose answers differ.
pub(super) struct Case<'a> {
    pub(super) question: &'a Question,
    /// The answers without hidden fields.
    pub(super) ours: &'a Answer,
    pub(super) theirs: &'a Answer,
    /// OpenSM's complete answer, and all records of each kind that it has.
    pub(super) came: &'a Answer,
    pub(super) own: Own<'a>,
    /// The P_Keys of each port, by the LID of its node and its number.
    pub(super) keys: &'a BTreeMap<(Lid, u8), Vec<Pkey>>,
    pub(super) facts: &'a Facts,
    /// Whether both managers set tables of service levels.
    pub(super) qos: bool,
}

impl Case<'_> {
    /// Returns whether OpenSM's answer matches its own table, when only the components that `counts` returns for a record count.
    fn is_own(&self, counts: impl Fn(&[u8]) -> u64) -> bool {
        self.own.says(self.question, self.came, counts)
    }

    /// Returns the same, where these components count for ports of switches only.
    fn is_own_but_for_adapters(&self, components: u64) -> bool {
        self.is_own(|record| if self.facts.is_adapters(record) { !components } else { u64::MAX })
    }

    /// Returns whether the answers are the same after `clear` was applied to each record.
    fn same_but(&self, clear: impl Fn(&mut [u8])) -> bool {
        self.ours.without(&clear) == self.theirs.without(&clear)
    }

    /// Returns whether the P_Key tables at both ends of a LinkRecord have a common partition in which not both are limited members. A port
    /// without keys shares one with all.
    fn ends_share_a_key(&self, link: &[u8]) -> bool {
        let Ok(link) = LinkRecord::parse(link) else { return false };
        let keys = |lid: Lid, port: u8| self.keys.get(&(lid, port)).map_or(&[][..], Vec::as_slice);
        let (from, to) = (keys(link.from_lid, link.from_port), keys(link.to_lid, link.to_port));
        let common = from.iter().any(|key| to.iter().any(|other| key.admits(*other)));
        from.is_empty() || to.is_empty() || common
    }

    fn is_about(&self, attr_id: u16) -> bool {
        self.question.attr_id == attr_id
    }
}

/// An intended difference.
struct Named {
    /// The start of its line in docs/decisions.md.
    name: &'static str,
    /// Returns whether a case is this difference.
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
            // A trusted requester is shown the key.
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
        name: "P_KeyTableRecords by block or port",
        is: |case| {
            let (block, port) = (PkeyTableRecordMask::BLOCK_NUM, PkeyTableRecordMask::PORT_NUM);
            let counts = |record: &[u8]| {
                let adapters = if case.facts.is_adapters(record) { port.bits() } else { 0 };
                !adapters
            };
            // A block beyond the port's table is answered, without keys.
            let mut first = case.question.clone();
            clear(&mut first.data, 2..4);
            let asked = case.question.data.get(2..4);
            let empty = |record: &mut [u8]| {
                clear(record, 8..72);
                if let (Some(block), Some([high, low])) = (record.get_mut(2..4), asked) {
                    block.copy_from_slice(&[*low, *high]);
                }
            };
            case.is_about(PkeyTableRecord::ATTR_ID)
                && case.question.has((block | port).bits())
                && if case.question.has(block.bits()) && asked != Some(&[0, 0]) {
                    case.own.says_changed(&first, case.came, counts, empty)
                } else {
                    case.is_own(counts)
                }
        },
    },
    Named {
        name: "block numbers of P_KeyTableRecords; P_Keys of switches' ports that lead to no adapter; SELF in `partitions.conf`",
        is: |case| {
            let mut theirs = case.theirs.clone();
            theirs.change(|record| {
                if let Some(block) = record.get_mut(2..4) {
                    block.reverse();
                }
                if case.facts.is_unguarded(record) && record.get(8..72) == Some(&ONLY_DEFAULT[..]) {
                    clear(record, 8..72);
                }
            });
            case.is_about(PkeyTableRecord::ATTR_ID)
                && theirs.without(clear_self) == case.ours.without(clear_self)
        },
    },
    Named {
        name: "SELF in `partitions.conf`: the path from the manager's port to itself",
        is: |case| {
            let Ok(asked) = PathRecord::parse(&case.question.data) else { return false };
            let only = |answer: &Answer, gid: Option<Gid>| {
                let mut paths = answer.records().iter().map(|record| PathRecord::parse(record));
                paths
                    .all(|path| path.is_ok_and(|path| [path.sgid, path.dgid].map(Some) == [gid; 2]))
            };
            case.is_about(PathRecord::ATTR_ID)
                && case.question.has(PathRecordMask::PKEY.bits())
                && asked.pkey.0 & 0x7fff == partitions::SELF
                && only(case.theirs, Some(case.facts.other.gid))
                && only(case.ours, case.facts.switch.map(|switch| switch.gid))
        },
    },
    Named {
        name: "LinkRecords between limited members",
        is: |case| {
            let all = case.question.mask == 0 && case.question.method == Method::GET_TABLE;
            let mut ours = case.ours.clone();
            ours.retain(|record| case.ends_share_a_key(record));
            case.is_about(LinkRecord::ATTR_ID)
                && if all { *case.theirs == ours } else { case.is_own(|_| u64::MAX) }
        },
    },
    Named {
        name: "the flow label of a path to a group",
        is: |case| {
            let mut ours = case.ours.clone();
            ours.change(|record| {
                // 20 bits before the hop limit.
                if let Some([first, second, third, _]) = record.get_mut(44..48) {
                    (*first, *second, *third) = (*first & 0xf0 | *second & 0x0f, *third, 0);
                }
            });
            let is_group =
                PathRecord::parse(&case.question.data).is_ok_and(|p| p.dgid.0[0] == 0xff);
            case.is_about(PathRecord::ATTR_ID) && is_group && *case.theirs == ours
        },
    },
    Named {
        name: "the scope of a broadcast group in `partitions.conf`",
        is: |case| {
            let scope = |record: &mut [u8]| {
                if record.get(40..42) == Some(&(partitions::SCOPED | 0x8000).to_be_bytes()) {
                    clear(record, 1..2);
                    clear(record, 47..49);
                }
            };
            case.is_about(McMemberRecord::ATTR_ID)
                && !case.question.has(McMemberRecordMask::MGID.bits())
                && case.same_but(scope)
        },
    },
    Named {
        name: "the service level of a partition without QoS",
        is: |case| {
            let level = |record: &mut [u8]| {
                if let Some(level) = record.get_mut(53) {
                    *level &= 0xf0;
                }
            };
            let is_zero = |record: &Vec<u8>| record.get(53).is_some_and(|level| level & 0xf == 0);
            let asked = MultiPathRecordMask::SL.bits() | PathRecordMask::SL.bits();
            (case.is_about(PathRecord::ATTR_ID) || case.is_about(MultiPathRecord::ATTR_ID))
                && !case.qos
                && !case.question.has(asked)
                && case.theirs.records().iter().all(is_zero)
                && case.same_but(level)
        },
    },
    Named {
        // The records are compared with the switches, and with each other.
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
                && case.ours.records().len() >= case.theirs.records().len()
                && !case.theirs.records().is_empty()
        },
    },
    Named {
        name: "SLtoVL and VL arbitration records without QoS",
        is: |case| {
            let sl_to_vl = case.is_about(SlToVlTableRecord::ATTR_ID);
            let ports = if sl_to_vl { SL_TO_VL_PORTS } else { ARBITRATION_PORT };
            let is_zero = |record: &Vec<u8>| record[8..].iter().all(|byte| *byte == 0);
            let all = case.question.mask == 0 && case.question.method == Method::GET_TABLE;
            (sl_to_vl || case.is_about(VlArbitrationRecord::ATTR_ID))
                && !case.qos
                && case.ours.records().is_empty()
                && case.theirs.records().iter().all(is_zero)
                && (all || case.is_own_but_for_adapters(ports))
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
                && case.ours.status() != Some(0)
                && case.same_but(|record| clear(record, 23..24))
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

/// Returns whether a record is of port 0 of a switch, or of packets that leave by the port at which they arrived.
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

/// A P_Key table with the default partition only.
const ONLY_DEFAULT: [u8; 64] = {
    let mut table = [0; 64];
    (table[0], table[1]) = (0xff, 0xff);
    table
};

/// The state of a master in SMInfo.
const MASTER: u8 = SmState::MASTER.0;

/// Returns the components of a request that count for a record of rdmux: service levels and arbitration of an adapter's port match any
/// port number.
pub(super) fn counts(facts: &Facts, question: &Question, record: &[u8]) -> u64 {
    match question.attr_id {
        SlToVlTableRecord::ATTR_ID if facts.is_adapters(record) => !SL_TO_VL_PORTS,
        VlArbitrationRecord::ATTR_ID if facts.is_adapters(record) => !ARBITRATION_PORT,
        _ => u64::MAX,
    }
}

/// Returns whether an answer depends on the request itself, so that the manager's current table does not determine it.
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

/// Clears the key of the partition that has the manager's port only.
fn clear_self(record: &mut [u8]) {
    let own = (partitions::SELF | 0x8000).to_be_bytes();
    if let Some(keys) = record.get_mut(8..72) {
        keys.chunks_exact_mut(2).filter(|key| *key == own).for_each(|key| key.fill(0));
    }
}

fn clear_scope_and_proxy(record: &mut [u8]) {
    if let Some([scope, proxy]) = record.get_mut(48..50) {
        *scope &= 0x0f;
        *proxy = 0;
    }
}

/// Returns the name of the difference between rdmux's answer and OpenSM's, if it has one.
pub(super) fn name(case: &Case<'_>) -> Option<&'static str> {
    NAMED.iter().find(|named| (named.is)(case)).map(|named| named.name)
}
