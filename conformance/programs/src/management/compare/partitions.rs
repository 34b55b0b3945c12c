//! Partitions: a file that both managers read, and requests within its partitions and across them.

use anyhow::{Context, Result};
use rdmux_fabric::proto::Snapshot;
use rdmux_fabric::server::FIRST_GUID;
use rdmux_subnet::topology::{NodeKind, Shape};
use rdmux_wire::mad::Method;
use rdmux_wire::sa::{
    JoinState, McMemberRecord, McMemberRecordMask as Member, MultiPathRecord, MultiPathRecordMask,
    PathRecord, PathRecordMask, ServiceRecord, ServiceRecordMask,
};
use rdmux_wire::{Gid, Pkey, Qkey, ServiceId};

use super::super::ground::Shown;
use super::facts::{Facts, Port};
use super::groups::{CREATE, JOIN, Membership, gid, paths_to_group};
use super::question::Question;

/// Full and limited members, partitions in several definitions and with several rules for a port, service levels, groups of IP over IB and
/// others, with a scope and without. Only the eighth adapter and a manager's port are alone in a partition.
///
/// Each manager is on another port: what `SELF` adds to the default partition exists for both.
const FILE: &str = "\
# A comment; with a semicolon
Default=0x7fff, ipoib: ALL=limited, ALL_SWITCHES=full, SELF=full, {1}=full;
storage=0x10, ipoib, sl=3, rate=7, mtu=5, Q_Key=0x1234, TClass=4, FlowLabel=0x77:
    mgid=ff15:c0de::10
    mgid=ff12:401b::16, sl=3 # of IP
    mgid=ff12:601b:8010::2
    mgid=ff12:c0de::11, scope=5, scope=14, rate=3, mtu=2, sl=1, Q_Key=9, TClass=5, FlowLabel=6
    {1}=full, {2}=limited, {3}=limited, {4}=full;
lab=0x20, defmember=full, sl=2, ipoib: {2}, {5}, {6}=limited;
lab=0x20, ipoib, rate=2: {7}, {5};
lab=0x20, scope=5, Q_Key=7:
    mgid=ff12:c0de::20
    ALL_ROUTERS=full;
first=0x8, indx0: {7}=full;
cas=0x30, sl=5: {3}=full, ALL_CAS=limited, {7}=full, ALL_SWITCHES=full, 0xdead=full;
alone=0x40, sl=1: {6}=full, ALL_ROUTERS;
self=0x50: SELF=full;
far=0x60, ipoib, scope=5: {8}=full;
";

/// The partition that has each manager's own port as its only member.
pub(super) const SELF: u16 = 0x50;

/// The partition whose definition gives the scope of its broadcast group. Its group is the last one, so that all others have the same LIDs.
pub(super) const SCOPED: u16 = 0x60;

/// The keys of the file without the membership bit, and an unknown one.
const BASES: [u16; 9] = [0x7fff, 0x10, 0x20, 0x8, 0x30, 0x40, SELF, SCOPED, 0x70];

/// The groups of the file, and those that both managers may create for it.
const GROUPS: [(&str, u16); 13] = [
    ("ff12:401b:ffff::ffff:ffff", 0x7fff),
    ("ff12:401b:8010::ffff:ffff", 0x10),
    ("ff15:c0de::10", 0x10),
    ("ff12:c0de::10", 0x10),
    ("ff12:401b:8010::16", 0x10),
    ("ff12:601b:8010::2", 0x10),
    ("ff12:c0de::11", 0x10),
    ("ff15:c0de::11", 0x10),
    ("ff1e:c0de::11", 0x10),
    ("ff12:401b:8020::ffff:ffff", 0x20),
    ("ff12:c0de::20", 0x20),
    ("ff15:c0de::20", 0x20),
    ("ff12:401b:8030::ffff:ffff", 0x30),
];

/// Returns the file for a shape. Without QoS OpenSM has no service levels, and the groups have none, so that their other parameters
/// can be compared.
///
/// # Errors
/// When it has too few adapters.
pub(super) fn file(shape: &str, qos: bool) -> Result<String> {
    let shape: Shape = shape.parse().map_err(|e| anyhow::anyhow!("{shape}: {e}"))?;
    let topology = shape.topology(FIRST_GUID);
    let mut adapters = topology.nodes.iter().filter(|node| node.kind == NodeKind::Ca);
    let mut text = FILE.to_owned();
    if !qos {
        text = text.replace("ipoib, sl=3", "ipoib").replace("sl=2, ipoib", "ipoib");
    }
    for number in 1..=8 {
        let guid = adapters.next().context("an adapter")?.guid.0 + 1;
        text = text.replace(&format!("{{{number}}}"), &format!("{guid:#x}"));
    }
    Ok(text)
}

/// Returns requests for paths between ports of every kind of membership, with each key and without, and for other records with keys.
pub(super) fn questions(facts: &Facts) -> Vec<Question> {
    let mut all = paths(&ends(facts));
    all.extend(several(&facts.adapters));
    all.extend(groups());
    all
}

/// Returns the adapters that the file names, the next one and a switch.
fn ends(facts: &Facts) -> Vec<Port> {
    facts.adapters.iter().take(8).chain(facts.switches.first()).copied().collect()
}

/// Returns each key as a full and as a limited member sends it.
fn keys() -> impl Iterator<Item = Pkey> {
    BASES.into_iter().flat_map(|base| [Pkey(base | 0x8000), Pkey(base)])
}

fn paths(ends: &[Port]) -> Vec<Question> {
    let both = PathRecordMask::SGID | PathRecordMask::DGID;
    let mut all = Vec::new();
    for (a, from) in ends.iter().enumerate() {
        for (b, to) in ends.iter().enumerate() {
            let path = PathRecord { sgid: from.gid, dgid: to.gid, ..PathRecord::default() };
            let mut ask = |name: String, mask: PathRecordMask, path: PathRecord| {
                let question = Question::new(name, Method::GET_TABLE, PathRecord::ATTR_ID);
                all.push(question.with(mask.bits(), &path.to_bytes()));
            };
            ask(format!("path from end {a} to {b}"), both, path);
            for pkey in keys() {
                let name = format!("path from end {a} to {b} with P_Key {:#06x}", pkey.0);
                ask(name, both | PathRecordMask::PKEY, PathRecord { pkey, ..path });
            }
        }
    }
    for (a, from) in ends.iter().enumerate() {
        let path = PathRecord { sgid: from.gid, ..PathRecord::default() };
        for pkey in keys() {
            let name = format!("paths from end {a} with P_Key {:#06x}", pkey.0);
            let mask = (PathRecordMask::SGID | PathRecordMask::PKEY).bits();
            let path = PathRecord { pkey, ..path };
            let question = Question::new(name, Method::GET_TABLE, PathRecord::ATTR_ID);
            all.push(question.with(mask, &path.to_bytes()));
        }
        for sl in [0, 1, 2, 3, 5] {
            let name = format!("paths from end {a} with service level {sl}");
            let mask = (PathRecordMask::SGID | PathRecordMask::SL).bits();
            let path = PathRecord { sl, ..path };
            let question = Question::new(name, Method::GET_TABLE, PathRecord::ATTR_ID);
            all.push(question.with(mask, &path.to_bytes()));
        }
    }
    all
}

/// Returns requests for paths between several ports, with each key.
fn several(adapters: &[Port]) -> Vec<Question> {
    use MultiPathRecordMask as Many;
    let mut all = Vec::new();
    let counts = Many::SGID_COUNT | Many::DGID_COUNT;
    let [a, b, c, d, e, ..] = adapters else { return all };
    for (name, from, to) in
        [("storage", [b, c], [a, d]), ("limited", [b, b], [c, c]), ("lab", [b, c], [e, e])]
    {
        let mut gids = [Gid::ZERO; 11];
        for (place, port) in gids.iter_mut().zip(from.iter().chain(&to)) {
            *place = port.gid;
        }
        let record =
            MultiPathRecord { sgid_count: 2, dgid_count: 2, gids, ..MultiPathRecord::default() };
        let ask = |name: String, mask: Many, record: &MultiPathRecord| {
            Question::new(name, Method::GET_MULTI, MultiPathRecord::ATTR_ID)
                .with(mask.bits(), &record.to_bytes())
        };
        all.push(ask(format!("several: {name}"), counts, &record));
        for pkey in keys() {
            let name = format!("several: {name} with P_Key {:#06x}", pkey.0);
            all.push(ask(name, counts | Many::PKEY, &MultiPathRecord { pkey, ..record }));
        }
    }
    all
}

/// Returns requests for the groups of the file, by GID and by key.
fn groups() -> Vec<Question> {
    let mut all = Vec::new();
    for key in [0, 1] {
        let mut ask = |name: String, method: Method, mask: Member, record: &McMemberRecord| {
            let question = Question::new(name, method, McMemberRecord::ATTR_ID).key(key);
            all.push(question.with(mask.bits(), &record.to_bytes()));
        };
        for (mgid, _) in GROUPS {
            let record = McMemberRecord { mgid: gid(mgid), ..McMemberRecord::default() };
            ask(format!("group {mgid}"), Method::GET, Member::MGID, &record);
        }
        for pkey in keys() {
            let record = McMemberRecord { pkey, ..McMemberRecord::default() };
            let name = format!("groups with P_Key {:#06x}", pkey.0);
            ask(name, Method::GET_TABLE, Member::PKEY, &record);
        }
        for scope in [0, 2, 5, 14] {
            let record = McMemberRecord { scope, ..McMemberRecord::default() };
            ask(format!("groups with scope {scope}"), Method::GET_TABLE, Member::SCOPE, &record);
        }
    }
    all
}

/// Returns joins to the groups of the file, and creations of groups and services with each key: each is undone.
pub(super) fn changes(facts: &Facts) -> Vec<Question> {
    let member = McMemberRecord {
        join_state: JoinState::FULL_MEMBER,
        port_gid: facts.own.gid,
        qkey: Qkey(0x11),
        ..McMemberRecord::default()
    };
    let mut m = Membership { all: Vec::new(), member };
    for (number, port) in ends(facts).iter().enumerate() {
        for (mgid, base) in GROUPS {
            let mgid = gid(mgid);
            let of = |r: &mut McMemberRecord| (r.mgid, r.port_gid) = (mgid, port.gid);
            m.set(&format!("{mgid:?} joined by end {number}"), JOIN, of);
            for key in [base, base | 0x8000] {
                m.set(
                    &format!("{mgid:?} joined by end {number}, P_Key {key:#06x}"),
                    JOIN | Member::PKEY,
                    |r| {
                        of(r);
                        r.pkey = Pkey(key);
                    },
                );
            }
            if number == 1 {
                let group = McMemberRecord { mgid, ..member };
                m.all.extend(paths_to_group(&group, port, &facts.last));
                m.look(&format!("of {mgid:?} joined by end {number}"));
            }
            m.delete(&format!("{mgid:?} left by end {number}"), JOIN, of);
        }
    }
    for pkey in keys() {
        let key = format!("with P_Key {:#06x}", pkey.0);
        for (signature, ip) in [("c0de", false), ("401b", true)] {
            let mgid = gid(&format!("ff12:{signature}:{:x}::77", pkey.0 | 0x8000));
            let of = |r: &mut McMemberRecord| (r.mgid, r.pkey) = (mgid, pkey);
            m.set(&format!("made {key}, IP {ip}"), CREATE, of);
            m.set(&format!("made {key}, IP {ip}, as its broadcast group"), CREATE, |r| {
                of(r);
                r.qkey = Qkey(if pkey.0 & 0x7fff == 0x10 { 0x1234 } else { 0x0b1b });
                if pkey.0 & 0x7fff == 0x10 {
                    (r.sl, r.tclass, r.flow_label) = (3, 4, 0x77);
                }
            });
            m.set(&format!("made {key}, IP {ip}, joined by another"), JOIN, |r| {
                of(r);
                r.port_gid = facts.other.gid;
            });
            m.look(&format!("made {key}, IP {ip}"));
            m.delete(&format!("made {key}, IP {ip}, left by another"), JOIN, |r| {
                of(r);
                r.port_gid = facts.other.gid;
            });
            m.delete(&format!("made {key}, IP {ip}, left"), JOIN, of);
        }
    }
    m.all.extend(keys().flat_map(|pkey| services(facts, pkey)));
    m.all
}

/// Returns requests that register a service of a partition, query it and remove it.
fn services(facts: &Facts, pkey: Pkey) -> Vec<Question> {
    use ServiceRecordMask as Service;
    let mask = Service::SERVICE_ID | Service::SERVICE_GID | Service::SERVICE_PKEY;
    let record = ServiceRecord {
        service_id: ServiceId(77),
        service_gid: facts.own.gid,
        service_pkey: pkey,
        service_lease: u32::MAX,
        ..ServiceRecord::default()
    };
    [(Method::SET, "begins"), (Method::GET, "is there"), (Method::DELETE, "ends")]
        .map(|(method, what)| {
            let name = format!("service with P_Key {:#06x} {what}", pkey.0);
            Question::new(name, method, ServiceRecord::ATTR_ID)
                .with(mask.bits(), &record.to_bytes())
        })
        .into()
}

/// Requests all tables from ports of every kind of membership. One has another key than that of the default partition at index 0, and so
/// does not reach the manager.
pub(super) fn by_others<'s>(
    shown: &'s Snapshot,
    tables: &[Question],
) -> Result<Vec<(&'s str, Vec<Question>)>> {
    let all = shown.adapters().take(8).enumerate().filter(|(n, _)| *n != 6).map(|(_, node)| {
        let name = node.description.as_str();
        (name, tables.iter().map(|table| table.clone().by(name)).collect())
    });
    Ok(all.collect())
}
