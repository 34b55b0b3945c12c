//! PathRecords of paths to groups.

use rdmux_wire::Gid;
use rdmux_wire::sa::{McMemberRecord, McMemberRecordMask, PathRecord, PathRecordMask as Mask};

use super::groups::{BROADCAST, CREATE, FULL, JOIN, OWN, gid, join, record};
use super::*;

fn status_of(net: &mut Net, mask: Mask, question: &PathRecord) -> u16 {
    net.get(PathRecord::ATTR_ID, mask.bits(), question).status
}

#[test]
fn path_to_a_group_has_the_requested_traffic_class_flow_label_and_hop_limit_or_none() {
    let mut net = Net::new("switch:3", 0);
    let wanted = McMemberRecord {
        tclass: 3,
        flow_label: 0x12345,
        hop_limit: 9,
        ..record(&net, OWN, 2, FULL)
    };
    let hop_limit = McMemberRecordMask::HOP_LIMIT;
    join(&mut net, CREATE | hop_limit, 2, &wanted).expect("created");
    let question = PathRecord {
        dgid: OWN,
        sgid: wanted.port_gid,
        tclass: 3,
        flow_label: 0x12345,
        hop_limit: 9,
        ..PathRecord::default()
    };
    let ends = Mask::DGID | Mask::SGID;
    let all = ends | Mask::TCLASS | Mask::FLOW_LABEL | Mask::HOP_LIMIT;
    assert_eq!(status_of(&mut net, all, &question), 0);
    for (bit, other) in [
        (Mask::TCLASS, PathRecord { tclass: 0, ..question }),
        (Mask::FLOW_LABEL, PathRecord { flow_label: 1, ..question }),
        (Mask::HOP_LIMIT, PathRecord { hop_limit: 0xff, ..question }),
    ] {
        assert_eq!(status_of(&mut net, ends | bit, &other), status::SA_NO_RECORDS, "{bit}");
        assert_eq!(status_of(&mut net, all.difference(bit), &other), 0, "{bit}");
    }
}

#[test]
fn path_to_a_group_needs_its_source_gid_as_a_member_or_its_source_lid_of_a_members_port() {
    let mut net = Net::new("switch:3", 0);
    let place = net.model.by_lid(Lid(2)).unwrap();
    net.model.set_alias(place, 1, Guid(0x77));
    let alias = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x77));
    let (own, other) = (gid(&net, 2), gid(&net, 3));
    let wanted = McMemberRecord { port_gid: alias, ..record(&net, BROADCAST, 2, FULL) };
    join(&mut net, JOIN, 2, &wanted).expect("joined");
    let none = status::SA_NO_RECORDS;
    for (sgid, expected) in [(alias, 0), (own, none), (other, none)] {
        let question = PathRecord { dgid: BROADCAST, sgid, ..PathRecord::default() };
        let mask = Mask::DGID | Mask::SGID;
        assert_eq!(status_of(&mut net, mask, &question), expected, "{sgid}");
    }
    for (slid, expected) in [(Lid(2), 0), (Lid(3), none), (Lid(99), none)] {
        let question = PathRecord { dgid: BROADCAST, slid, ..PathRecord::default() };
        let mask = Mask::DGID | Mask::SLID;
        assert_eq!(status_of(&mut net, mask, &question), expected, "{slid}");
    }
}

#[test]
fn path_to_a_group_along_another_dlid_is_no_records() {
    let mut net = Net::new("switch:3", 0);
    let dgid = BROADCAST;
    for (dlid, expected) in [(Lid(0xc000), 0), (Lid(0xc001), status::SA_NO_RECORDS)] {
        let question = PathRecord { dgid, dlid, ..PathRecord::default() };
        assert_eq!(status_of(&mut net, Mask::DGID | Mask::DLID, &question), expected, "{dlid}");
    }
}
