//! Requests that change something, one after the other: members of groups, services, subscriptions, alias GUIDs. Each change is
//! queried afterwards, and undone.

use rdmux_wire::mad::Method;
use rdmux_wire::sa::{
    GuidInfoRecord, GuidInfoRecordMask, InformInfo, InformInfoRecord, PathRecord, PathRecordMask,
    ServiceRecord, ServiceRecordMask as Service,
};
use rdmux_wire::sm::Producer;
use rdmux_wire::{Gid, Guid, Lid, Pkey, Qpn, ServiceId};

use super::facts::Facts;
use super::groups;
use super::question::Question;

/// Returns requests that change the registrations of subnet administration.
pub(super) fn questions(facts: &Facts) -> Vec<Question> {
    let mut all = groups::questions(facts);
    all.extend(services(facts));
    all.extend(subscriptions(facts));
    all.extend(aliases(facts));
    all
}

fn services(facts: &Facts) -> Vec<Question> {
    const KEY: Service =
        Service::SERVICE_ID.union(Service::SERVICE_GID).union(Service::SERVICE_PKEY);
    let base = ServiceRecord {
        service_id: ServiceId(0x1234_5678_9abc_def0),
        service_gid: facts.own.gid,
        service_pkey: Pkey::DEFAULT,
        // For ever: the remainder of another lease depends on time.
        service_lease: u32::MAX,
        service_name: "a service".into(),
        service_data8: std::array::from_fn(|n| u8::try_from(n).unwrap_or(0)),
        service_data64: [1, 2],
        ..ServiceRecord::default()
    };
    let mut all = Vec::new();
    let mut ask =
        |name: &str, method: Method, mask: Service, change: &dyn Fn(&mut ServiceRecord)| {
            let mut record = base;
            change(&mut record);
            let question =
                Question::new(format!("service: {name}"), method, ServiceRecord::ATTR_ID);
            all.push(question.with(mask.bits(), &record.to_bytes()));
        };
    let as_it_is: &dyn Fn(&mut ServiceRecord) = &|_| {};
    ask("without a number", Method::SET, KEY.difference(Service::SERVICE_ID), as_it_is);
    ask("without a GID", Method::SET, KEY.difference(Service::SERVICE_GID), as_it_is);
    ask("of another partition", Method::SET, KEY, &|r| r.service_pkey = Pkey(0x8123));
    ask("before it is there", Method::GET, KEY, as_it_is);
    ask("deleted before it is there", Method::DELETE, KEY, as_it_is);
    ask("registered", Method::SET, KEY, as_it_is);
    for (name, mask) in Service::all().iter_names() {
        // No request contains a key.
        if mask == Service::SERVICE_KEY {
            continue;
        }
        ask(&format!("by {name}"), Method::GET_TABLE, mask, as_it_is);
        ask(&format!("by another {name}"), Method::GET_TABLE, mask, &|r| {
            *r = ServiceRecord {
                service_id: ServiceId(1),
                service_gid: facts.last.gid,
                service_pkey: Pkey(0x8001),
                service_lease: 5,
                service_name: "another".into(),
                service_data8: [0x55; 16],
                service_data16: [0x55; 8],
                service_data32: [0x55; 4],
                service_data64: [0x55; 2],
                ..*r
            };
        });
    }
    ask("itself", Method::GET, KEY, as_it_is);
    ask("replaced", Method::SET, KEY, &|r| r.service_data8 = [7; 16]);
    ask("after it was replaced", Method::GET, KEY, as_it_is);
    ask("a second", Method::SET, KEY, &|r| r.service_id = ServiceId(2));
    ask("two of one GID", Method::GET, Service::SERVICE_GID, as_it_is);
    ask("two of one GID", Method::GET_TABLE, Service::SERVICE_GID, as_it_is);
    ask("of another port", Method::SET, KEY, &|r| r.service_gid = facts.last.gid);
    ask("all", Method::GET_TABLE, Service::empty(), as_it_is);
    ask("deleted", Method::DELETE, KEY, as_it_is);
    ask("deleted again", Method::DELETE, KEY, as_it_is);
    ask("the second deleted", Method::DELETE, KEY, &|r| r.service_id = ServiceId(2));
    ask("of another port deleted", Method::DELETE, KEY, &|r| r.service_gid = facts.last.gid);
    ask("all, deleted", Method::GET_TABLE, Service::empty(), as_it_is);
    all
}

fn subscriptions(facts: &Facts) -> Vec<Question> {
    let base = InformInfo {
        lid_range_begin: Lid(0xffff),
        is_generic: 1,
        subscribe: 1,
        notice_type: 0xffff,
        trap_number: 0xffff,
        producer: Producer(0x00ff_ffff),
        ..InformInfo::default()
    };
    let set = |name: &str, change: &dyn Fn(&mut InformInfo)| {
        let mut record = base;
        change(&mut record);
        Question::new(format!("subscription: {name}"), Method::SET, InformInfo::ATTR_ID)
            .with(0, &record.to_bytes())
    };
    let list = |name: &str, key: u64| {
        let name = format!("subscription: {name}");
        Question::new(name, Method::GET_TABLE, InformInfoRecord::ATTR_ID).key(key)
    };
    let ends = |r: &mut InformInfo| (r.subscribe, r.qpn) = (0, Qpn::QP1);
    vec![
        set("ended before there is one", &ends),
        set("neither begun nor ended", &|r| r.subscribe = 2),
        set("to traps of links", &|r| r.trap_number = 128),
        list("all", 0),
        list("all, trusted", 1),
        set("to traps of links again", &|r| r.trap_number = 128),
        list("all after the same again", 1),
        set("to group's traps", &|r| r.trap_number = 66),
        set("of switches", &|r| (r.trap_number, r.producer) = (64, Producer::SWITCH)),
        set("of a LID", &|r| {
            (r.lid_range_begin, r.lid_range_end) = (facts.other.lid, facts.other.lid);
            r.trap_number = 145;
        }),
        set("of LIDs in the wrong order", &|r| {
            (r.lid_range_begin, r.lid_range_end) = (Lid(5), Lid(4))
        }),
        set("to violations", &|r| r.trap_number = 257),
        list("several", 1),
        set("ended without the queue pair", &|r| (r.trap_number, r.subscribe) = (128, 0)),
        set("ended", &|r| {
            ends(r);
            r.trap_number = 128;
        }),
        set("ended again", &|r| {
            ends(r);
            r.trap_number = 128;
        }),
        set("to group's traps ended", &|r| {
            ends(r);
            r.trap_number = 66;
        }),
        set("of switches ended", &|r| {
            ends(r);
            (r.trap_number, r.producer) = (64, Producer::SWITCH);
        }),
        set("of a LID ended", &|r| {
            ends(r);
            (r.lid_range_begin, r.lid_range_end) = (facts.other.lid, facts.other.lid);
            r.trap_number = 145;
        }),
        list("all ended", 1),
    ]
}

fn aliases(facts: &Facts) -> Vec<Question> {
    use GuidInfoRecordMask as Mask;
    const BLOCK: Mask = Mask::LID.union(Mask::BLOCK_NUM);
    let mut all = Vec::new();
    let mut ask =
        |name: &str, method: Method, mask: Mask, lid: Lid, block: u8, guids: &[(usize, u64)]| {
            let mut record = GuidInfoRecord { lid, block_num: block, ..GuidInfoRecord::default() };
            for (at, guid) in guids {
                record.guid_info.guids[*at] = Guid(*guid);
            }
            let question = Question::new(format!("alias: {name}"), method, GuidInfoRecord::ATTR_ID);
            all.push(question.with(mask.bits(), &record.to_bytes()));
        };
    let (lid, chosen) = (facts.own.lid, 0x0077_0000_0000_0001);
    ask("without a LID", Method::SET, Mask::BLOCK_NUM | Mask::GUID3, lid, 0, &[(3, chosen)]);
    ask("without a block", Method::SET, Mask::LID | Mask::GUID3, lid, 0, &[(3, chosen)]);
    ask("the first", Method::SET, BLOCK | Mask::GUID0, lid, 0, &[(0, chosen)]);
    ask("of a block that is not there", Method::SET, BLOCK | Mask::GUID3, lid, 200, &[(3, chosen)]);
    ask("of an unknown LID", Method::SET, BLOCK | Mask::GUID3, facts.free, 0, &[(3, chosen)]);
    ask("set", Method::SET, BLOCK | Mask::GUID3, lid, 0, &[(3, chosen)]);
    ask("of the port", Method::GET, BLOCK, lid, 0, &[]);
    ask("of the port", Method::GET_TABLE, Mask::LID, lid, 0, &[]);
    ask("set again", Method::SET, BLOCK | Mask::GUID3, lid, 0, &[(3, chosen)]);
    let alias = Gid::new(Gid::DEFAULT_PREFIX, Guid(chosen));
    let path = |name: &str, sgid: Gid, dgid: Gid| {
        let record = PathRecord { sgid, dgid, ..PathRecord::default() };
        let mask = PathRecordMask::SGID | PathRecordMask::DGID;
        Question::new(format!("alias: {name}"), Method::GET, PathRecord::ATTR_ID)
            .with(mask.bits(), &record.to_bytes())
    };
    let paths = [
        path("a path from it", alias, facts.other.gid),
        path("a path to it", facts.other.gid, alias),
    ];
    let after = path("a path from it when it is gone", alias, facts.other.gid);
    ask("deleted", Method::DELETE, BLOCK | Mask::GUID3, lid, 0, &[]);
    let at = all.len() - 1;
    all.splice(at..at, paths);
    all.push(after);
    all
}
