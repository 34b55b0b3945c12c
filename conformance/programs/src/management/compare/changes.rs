//! What changes something, one question after the other: members of groups, services, subscriptions, alias GUIDs. What each has
//! changed is asked for afterwards, and taken back.

use rdmux_wire::mad::Method;
use rdmux_wire::sa::{
    GuidInfoRecord, GuidInfoRecordMask, InformInfo, InformInfoRecord, JoinState, McMemberRecord,
    McMemberRecordMask as Member, PathRecord, PathRecordMask, Rate, Selector, ServiceRecord,
    ServiceRecordMask as Service,
};
use rdmux_wire::sm::Producer;
use rdmux_wire::{Gid, Guid, Lid, Pkey, Qkey, Qpn, ServiceId};

use super::facts::{Facts, Port};
use super::question::Question;

pub(super) fn questions(facts: &Facts) -> Vec<Question> {
    let mut all = groups(facts);
    all.extend(services(facts));
    all.extend(subscriptions(facts));
    all.extend(aliases(facts));
    all
}

fn group(text: &str) -> Gid {
    text.parse::<std::net::Ipv6Addr>().map_or(Gid::ZERO, Gid::from)
}

/// What a question of membership is about.
struct Membership {
    all: Vec<Question>,
    member: McMemberRecord,
}

const JOIN: Member = Member::MGID.union(Member::PORT_GID).union(Member::JOIN_STATE);
const CREATE: Member = JOIN
    .union(Member::QKEY)
    .union(Member::TCLASS)
    .union(Member::PKEY)
    .union(Member::FLOW_LABEL)
    .union(Member::SL);

impl Membership {
    fn ask(
        &mut self,
        name: &str,
        method: Method,
        mask: Member,
        change: impl FnOnce(&mut McMemberRecord),
    ) {
        let mut record = self.member;
        change(&mut record);
        let question = Question::new(format!("group: {name}"), method, McMemberRecord::ATTR_ID);
        self.all.push(question.with(mask.bits(), &record.to_bytes()));
    }

    fn set(&mut self, name: &str, mask: Member, change: impl FnOnce(&mut McMemberRecord)) {
        self.ask(name, Method::SET, mask, change);
    }

    fn delete(&mut self, name: &str, mask: Member, change: impl FnOnce(&mut McMemberRecord)) {
        self.ask(name, Method::DELETE, mask, change);
    }

    /// All members, as one who is trusted and one who is not sees them; and the group itself.
    fn look(&mut self, when: &str) {
        for key in [0, 1] {
            let name = format!("group: members {when}");
            self.all.push(Question::new(name, Method::GET_TABLE, McMemberRecord::ATTR_ID).key(key));
        }
        self.ask(&format!("itself {when}"), Method::GET, Member::MGID, |_| {});
    }
}

fn groups(facts: &Facts) -> Vec<Question> {
    let Facts { own, other, last, .. } = facts;
    let member = McMemberRecord {
        mgid: group("ff12:c0de::1"),
        port_gid: own.gid,
        qkey: Qkey(0x11),
        pkey: Pkey::DEFAULT,
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    };
    let mut m = Membership { all: Vec::new(), member };
    // To make a group.
    for (name, missing) in [
        ("Q_Key", Member::QKEY),
        ("class of traffic", Member::TCLASS),
        ("P_Key", Member::PKEY),
        ("flow", Member::FLOW_LABEL),
        ("service level", Member::SL),
        ("MGID", Member::MGID),
        ("port", Member::PORT_GID),
        ("state", Member::JOIN_STATE),
    ] {
        m.set(&format!("made without {name}"), CREATE.difference(missing), |_| {});
    }
    m.set("joined before it is there", JOIN, |_| {});
    m.set("made by state 0", CREATE, |r| r.join_state = JoinState::empty());
    m.set("made by who only sends", CREATE, |r| r.join_state = JoinState::SEND_ONLY_NON_MEMBER);
    m.set("made by a non-member", CREATE, |r| r.join_state = JoinState::NON_MEMBER);
    m.set("made for a port of another subnet", CREATE, |r| {
        r.port_gid = Gid::new(0xfec0_0000_0000_0001, own.guid);
    });
    m.set("made for an unknown port", CREATE, |r| {
        r.port_gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0xdead));
    });
    m.set("made in another partition", CREATE, |r| r.pkey = Pkey(0x8123));
    m.set("made with a GID of no group", CREATE, |r| r.mgid = own.gid);
    m.set("made with a GID that is assigned, of this link", CREATE, |r| {
        r.mgid = group("ff12:a01b::7");
    });
    m.set("made with service level 15", CREATE, |r| r.sl = 15);
    for (name, selector, mtu) in
        [("too large an MTU", 2, 6), ("more than the largest MTU", 0, 5), ("MTU 0", 2, 0)]
    {
        m.set(&format!("made with {name}"), CREATE | Member::MTU_SELECTOR | Member::MTU, |r| {
            (r.mtu_selector, r.mtu) = (Selector(selector), mtu);
        });
    }
    for (name, selector, rate) in
        [("too high a rate", 2, 22), ("more than the highest rate", 0, 16), ("rate 0", 2, 0)]
    {
        m.set(&format!("made with {name}"), CREATE | Member::RATE_SELECTOR | Member::RATE, |r| {
            (r.rate_selector, r.rate) = (Selector(selector), Rate(rate));
        });
    }
    m.look("before it is there");
    m.set("made", CREATE, |_| {});
    m.look("when it is there");
    // To join one that is there.
    m.set("joined again", JOIN, |_| {});
    m.set("joined with the same parameters", CREATE, |_| {});
    m.set("joined with another Q_Key", JOIN | Member::QKEY, |r| r.qkey = Qkey(0x12));
    m.set("joined with another P_Key", JOIN | Member::PKEY, |r| r.pkey = Pkey(0x8123));
    m.set("joined with a limited P_Key", JOIN | Member::PKEY, |r| r.pkey = Pkey(0x7fff));
    m.set("joined with another class of traffic", JOIN | Member::TCLASS, |r| r.tclass = 1);
    m.set("joined with another flow", JOIN | Member::FLOW_LABEL, |r| r.flow_label = 1);
    m.set("joined with another service level", JOIN | Member::SL, |r| r.sl = 1);
    m.set("joined with another hop limit", JOIN | Member::HOP_LIMIT, |r| r.hop_limit = 1);
    m.set("joined with another MLID", JOIN | Member::MLID, |r| r.mlid = Lid(0xc123));
    m.set("joined with another scope", JOIN | Member::SCOPE, |r| r.scope = 5);
    for selector in 0..4 {
        for mtu in [1, 4, 5] {
            let mask = JOIN | Member::MTU_SELECTOR | Member::MTU;
            m.set(&format!("joined with MTU {mtu}, selector {selector}"), mask, |r| {
                (r.mtu_selector, r.mtu) = (Selector(selector), mtu);
            });
        }
        for rate in [3, 7, 16] {
            let mask = JOIN | Member::RATE_SELECTOR | Member::RATE;
            m.set(&format!("joined with rate {rate}, selector {selector}"), mask, |r| {
                (r.rate_selector, r.rate) = (Selector(selector), Rate(rate));
            });
        }
    }
    m.set("joined as who only sends", JOIN, |r| r.join_state = JoinState::SEND_ONLY_NON_MEMBER);
    m.look("with two states");
    // Another port, for which this one asks.
    m.set("joined for another port", JOIN, |r| r.port_gid = other.gid);
    m.look("with two members");
    m.ask("by its MLID", Method::GET_TABLE, Member::MLID, |r| r.mlid = Lid(0xc001));
    m.ask("by port", Method::GET_TABLE, Member::PORT_GID, |r| r.port_gid = other.gid);
    m.ask("by state", Method::GET_TABLE, Member::JOIN_STATE, |_| {});
    m.ask("by P_Key", Method::GET_TABLE, Member::PKEY, |_| {});
    m.ask("by Q_Key", Method::GET_TABLE, Member::QKEY, |_| {});
    m.ask("by another Q_Key", Method::GET_TABLE, Member::QKEY, |r| r.qkey = Qkey(1));
    m.all.extend(paths_to_group(&m.member, own, last));
    // To leave.
    m.delete("left without a state", Member::MGID | Member::PORT_GID, |_| {});
    m.delete("left without a port", Member::MGID | Member::JOIN_STATE, |_| {});
    m.delete("left by state 0", JOIN, |r| r.join_state = JoinState::empty());
    m.delete("left by a state that is not held", JOIN, |r| r.join_state = JoinState::NON_MEMBER);
    m.delete("left by who is no member", JOIN, |r| r.port_gid = last.gid);
    m.delete("left by one of two states", JOIN, |r| {
        r.join_state = JoinState::SEND_ONLY_NON_MEMBER;
    });
    m.look("after one state was left");
    m.delete("left for another port", JOIN, |r| r.port_gid = other.gid);
    m.delete("left", JOIN, |_| {});
    m.look("after it was left");
    m.delete("left again", JOIN, |_| {});
    // Those who do not keep it go with the last who does.
    m.set("made again", CREATE, |_| {});
    m.set("joined by a non-member", JOIN, |r| {
        (r.port_gid, r.join_state) = (other.gid, JoinState::NON_MEMBER);
    });
    m.delete("left by the last that keeps it", JOIN, |_| {});
    m.look("after the last that keeps it has left");
    // The MLID is used again.
    m.set("another made", CREATE, |r| r.mgid = group("ff12:c0de::2"));
    m.delete("another left", JOIN, |r| r.mgid = group("ff12:c0de::2"));
    m.set("made by who only sends, and keeps it", CREATE, |r| {
        r.join_state = JoinState::SEND_ONLY_FULL_MEMBER;
    });
    m.delete("left by who only sends, and keeps it", JOIN, |r| {
        r.join_state = JoinState::SEND_ONLY_FULL_MEMBER;
    });
    // The group of all interfaces, which stays.
    let broadcast = |r: &mut McMemberRecord| r.mgid = group("ff12:401b:ffff::ffff:ffff");
    m.ask("of all interfaces", Method::GET, Member::MGID, broadcast);
    m.set("of all interfaces joined", JOIN, broadcast);
    m.set("of all interfaces joined with its Q_Key", JOIN | Member::QKEY, |r| {
        broadcast(r);
        r.qkey = Qkey(0x0b1b);
    });
    m.set("of all interfaces joined with another Q_Key", JOIN | Member::QKEY, broadcast);
    m.delete("of all interfaces left", JOIN, broadcast);
    m.ask("of all interfaces, left", Method::GET, Member::MGID, broadcast);
    // One of IP over IB has the parameters of that group.
    let ip = |r: &mut McMemberRecord| r.mgid = group("ff12:401b:ffff::16");
    m.set("of IP with another Q_Key", CREATE, ip);
    m.set("of IP", CREATE, |r| {
        ip(r);
        r.qkey = Qkey(0x0b1b);
    });
    m.delete("of IP left", JOIN, ip);
    m.all
}

/// Paths to a group that has members.
fn paths_to_group(member: &McMemberRecord, own: &Port, stranger: &Port) -> Vec<Question> {
    let mut all = Vec::new();
    for (name, from) in [("a member", own), ("who is none", stranger)] {
        for method in [Method::GET, Method::GET_TABLE] {
            let record = PathRecord {
                sgid: from.gid,
                slid: from.lid,
                dgid: member.mgid,
                dlid: Lid(0xc001),
                ..PathRecord::default()
            };
            for (way, mask) in [
                ("GID", PathRecordMask::SGID | PathRecordMask::DGID),
                ("LID", PathRecordMask::SLID | PathRecordMask::DLID),
            ] {
                let name = format!("group: path to it from {name}, by {way}");
                let question = Question::new(name, method, PathRecord::ATTR_ID);
                all.push(question.with(mask.bits(), &record.to_bytes()));
            }
        }
    }
    all
}

fn services(facts: &Facts) -> Vec<Question> {
    const KEY: Service =
        Service::SERVICE_ID.union(Service::SERVICE_GID).union(Service::SERVICE_PKEY);
    let base = ServiceRecord {
        service_id: ServiceId(0x1234_5678_9abc_def0),
        service_gid: facts.own.gid,
        service_pkey: Pkey::DEFAULT,
        // For ever: what is left of another lease depends on time.
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
        // Nobody has asked for a key.
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
