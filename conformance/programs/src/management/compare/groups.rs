//! Members of groups: rules for creating, joining and leaving them, and the records that managers return.

use rdmux_wire::mad::Method;
use rdmux_wire::sa::{
    JoinState, McMemberRecord, McMemberRecordMask as Member, PathRecord, PathRecordMask, Rate,
    Selector,
};
use rdmux_wire::{Gid, Guid, Lid, Pkey, Qkey};

use super::facts::{Facts, Port};
use super::question::Question;

/// Parses a GID as an IPv6 address; zero for an invalid one.
pub(super) fn gid(text: &str) -> Gid {
    text.parse::<std::net::Ipv6Addr>().map_or(Gid::ZERO, Gid::from)
}

/// The state for building requests of membership.
pub(super) struct Membership {
    pub(super) all: Vec<Question>,
    /// The record of each request before its changes.
    pub(super) member: McMemberRecord,
}

/// The components required in a request to join a group.
pub(super) const JOIN: Member = Member::MGID.union(Member::PORT_GID).union(Member::JOIN_STATE);
/// The components required in a request to create a group.
pub(super) const CREATE: Member = JOIN
    .union(Member::QKEY)
    .union(Member::TCLASS)
    .union(Member::PKEY)
    .union(Member::FLOW_LABEL)
    .union(Member::SL);

impl Membership {
    /// Adds a request whose record is changed by `change`.
    pub(super) fn ask(
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

    /// Adds a Set, which joins.
    pub(super) fn set(
        &mut self,
        name: &str,
        mask: Member,
        change: impl FnOnce(&mut McMemberRecord),
    ) {
        self.ask(name, Method::SET, mask, change);
    }

    /// Adds a Delete, which leaves.
    pub(super) fn delete(
        &mut self,
        name: &str,
        mask: Member,
        change: impl FnOnce(&mut McMemberRecord),
    ) {
        self.ask(name, Method::DELETE, mask, change);
    }

    /// Adds requests for all members, by a trusted and by an untrusted requester, and for the group itself.
    pub(super) fn look(&mut self, when: &str) {
        for key in [0, 1] {
            let name = format!("group: members {when}");
            self.all.push(Question::new(name, Method::GET_TABLE, McMemberRecord::ATTR_ID).key(key));
        }
        self.ask(&format!("itself {when}"), Method::GET, Member::MGID, |_| {});
    }
}

/// Returns requests that create, join and leave groups.
pub(super) fn questions(facts: &Facts) -> Vec<Question> {
    let Facts { own, other, last, .. } = facts;
    let member = McMemberRecord {
        mgid: gid("ff12:c0de::1"),
        port_gid: own.gid,
        qkey: Qkey(0x11),
        pkey: Pkey::DEFAULT,
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    };
    let mut m = Membership { all: Vec::new(), member };
    // Creating a group.
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
    m.set("made by a send-only member", CREATE, |r| r.join_state = JoinState::SEND_ONLY_NON_MEMBER);
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
        r.mgid = gid("ff12:a01b::7");
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
    // Joining an existing group.
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
    m.set("joined as a send-only member", JOIN, |r| r.join_state = JoinState::SEND_ONLY_NON_MEMBER);
    m.look("with two states");
    // On behalf of another port.
    m.set("joined for another port", JOIN, |r| r.port_gid = other.gid);
    m.look("with two members");
    m.ask("by its MLID", Method::GET_TABLE, Member::MLID, |r| r.mlid = Lid(0xc001));
    m.ask("by port", Method::GET_TABLE, Member::PORT_GID, |r| r.port_gid = other.gid);
    m.ask("by state", Method::GET_TABLE, Member::JOIN_STATE, |_| {});
    m.ask("by P_Key", Method::GET_TABLE, Member::PKEY, |_| {});
    m.ask("by Q_Key", Method::GET_TABLE, Member::QKEY, |_| {});
    m.ask("by another Q_Key", Method::GET_TABLE, Member::QKEY, |r| r.qkey = Qkey(1));
    m.all.extend(paths_to_group(&m.member, own, last));
    // Leaving.
    m.delete("left without a state", Member::MGID | Member::PORT_GID, |_| {});
    m.delete("left without a port", Member::MGID | Member::JOIN_STATE, |_| {});
    m.delete("left by state 0", JOIN, |r| r.join_state = JoinState::empty());
    m.delete("left by a state that is not held", JOIN, |r| r.join_state = JoinState::NON_MEMBER);
    m.delete("left by a port that is no member", JOIN, |r| r.port_gid = last.gid);
    m.delete("left by one of two states", JOIN, |r| {
        r.join_state = JoinState::SEND_ONLY_NON_MEMBER;
    });
    m.look("after one state was left");
    m.delete("left for another port", JOIN, |r| r.port_gid = other.gid);
    m.delete("left", JOIN, |_| {});
    m.look("after it was left");
    m.delete("left again", JOIN, |_| {});
    // Members that do not keep the group alive are removed with the last one that does.
    m.set("made again", CREATE, |_| {});
    m.set("joined by a non-member", JOIN, |r| {
        (r.port_gid, r.join_state) = (other.gid, JoinState::NON_MEMBER);
    });
    m.delete("left by the last that keeps it", JOIN, |_| {});
    m.look("after the last that keeps it has left");
    // The MLID is used again.
    m.set("another made", CREATE, |r| r.mgid = gid("ff12:c0de::2"));
    m.delete("another left", JOIN, |r| r.mgid = gid("ff12:c0de::2"));
    m.set("made by a send-only member, and keeps it", CREATE, |r| {
        r.join_state = JoinState::SEND_ONLY_FULL_MEMBER;
    });
    m.delete("left by a send-only member, and keeps it", JOIN, |r| {
        r.join_state = JoinState::SEND_ONLY_FULL_MEMBER;
    });
    // The broadcast group of all IP interfaces, which stays.
    let broadcast = |r: &mut McMemberRecord| r.mgid = gid("ff12:401b:ffff::ffff:ffff");
    m.ask("of all interfaces", Method::GET, Member::MGID, broadcast);
    m.set("of all interfaces joined", JOIN, broadcast);
    m.set("of all interfaces joined with its Q_Key", JOIN | Member::QKEY, |r| {
        broadcast(r);
        r.qkey = Qkey(0x0b1b);
    });
    m.set("of all interfaces joined with another Q_Key", JOIN | Member::QKEY, broadcast);
    m.delete("of all interfaces left", JOIN, broadcast);
    m.ask("of all interfaces, left", Method::GET, Member::MGID, broadcast);
    // An IP over IB group has the parameters of that group.
    let ip = |r: &mut McMemberRecord| r.mgid = gid("ff12:401b:ffff::16");
    m.set("of IP with another Q_Key", CREATE, ip);
    m.set("of IP", CREATE, |r| {
        ip(r);
        r.qkey = Qkey(0x0b1b);
    });
    m.delete("of IP left", JOIN, ip);
    m.all
}

/// Returns requests for paths to a group that has members.
pub(super) fn paths_to_group(
    member: &McMemberRecord,
    own: &Port,
    stranger: &Port,
) -> Vec<Question> {
    let mut all = Vec::new();
    for (name, from) in [("a member", own), ("a port that is no member", stranger)] {
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
