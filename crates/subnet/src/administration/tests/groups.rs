//! MCMemberRecords, and paths to groups.

use super::*;
use rdmux_wire::sa::{
    GuidInfoRecord, GuidInfoRecordMask, JoinState, McMemberRecord, McMemberRecordMask as Mask,
    PathRecord, PathRecordMask, Rate, Selector,
};
use rdmux_wire::{Gid, Pkey, Qkey};

const ID: u16 = McMemberRecord::ATTR_ID;
pub(super) const BROADCAST: Gid =
    Gid([0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
pub(super) const OWN: Gid = Gid([0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

pub(super) const JOIN: Mask = Mask::MGID.union(Mask::PORT_GID).union(Mask::JOIN_STATE);
pub(super) const CREATE: Mask = JOIN
    .union(Mask::QKEY)
    .union(Mask::TCLASS)
    .union(Mask::PKEY)
    .union(Mask::FLOW_LABEL)
    .union(Mask::SL);

pub(super) const FULL: JoinState = JoinState::FULL_MEMBER;
const NON: JoinState = JoinState::NON_MEMBER;
const SEND_ONLY: JoinState = JoinState::SEND_ONLY_NON_MEMBER;
const SEND_FULL: JoinState = JoinState::SEND_ONLY_FULL_MEMBER;

/// Returns the GID of the port with a LID.
pub(super) fn gid(net: &Net, lid: u16) -> Gid {
    let port = net.model.port(net.model.by_lid(Lid(lid)).expect("a port")).expect("a port");
    Gid::new(Gid::DEFAULT_PREFIX, port.guid)
}

pub(super) fn record(net: &Net, mgid: Gid, lid: u16, join_state: JoinState) -> McMemberRecord {
    let port_gid = gid(net, lid);
    McMemberRecord { mgid, port_gid, join_state, pkey: Pkey::DEFAULT, ..McMemberRecord::default() }
}

/// Sends a join of the port with this LID for itself.
pub(super) fn join(
    net: &mut Net,
    mask: Mask,
    lid: u16,
    wanted: &McMemberRecord,
) -> Result<McMemberRecord, u16> {
    net.asks = Lid(lid);
    let answer = net.ask(Method::SET, ID, mask.bits(), wanted);
    if answer.status == 0 { Ok(answer.records[0]) } else { Err(answer.status) }
}

fn leave(net: &mut Net, lid: u16, wanted: &McMemberRecord) -> Result<McMemberRecord, u16> {
    net.asks = Lid(lid);
    let answer = net.ask(Method::DELETE, ID, JOIN.bits(), wanted);
    if answer.status == 0 { Ok(answer.records[0]) } else { Err(answer.status) }
}

fn members(net: &Net, mlid: u16) -> Vec<(Guid, bool)> {
    net.administration.members(Lid(mlid)).collect()
}

#[test]
fn broadcast_groups_are_there_from_the_start_and_stay() {
    let mut net = Net::new("switch:3", 0);
    let text = "Default=0x7fff,ipoib: ALL=full; A=0x11,ipoib,mtu=5,rate=7: ALL=full;";
    net.administration.set_partitions(Partitions::parse("p", text).unwrap());
    for (place, _) in net.ports() {
        net.model.port_mut(place).unwrap().pkeys = [Pkey::DEFAULT, Pkey(0x8011)].into();
    }
    let all = net.table(ID, 0, &McMemberRecord::default());
    let seen: Vec<_> = all.iter().map(|r| (r.mlid.0, r.pkey.0, r.mtu, r.rate.0)).collect();
    assert_eq!(
        seen,
        [(0xc001, 0x8011, 5, 7), (0xc000, 0xffff, 4, 3)],
        "in the order of their GIDs"
    );
    assert_eq!((all[1].mgid, all[1].qkey), (BROADCAST, Qkey(0x0b1b)));
    assert_eq!((all[1].packet_life_time, all[1].scope), (0x12, 2));
    let wanted = record(&net, BROADCAST, 2, FULL);
    let joined = join(&mut net, JOIN, 2, &wanted).expect("joined");
    assert_eq!((joined.mlid, joined.join_state, joined.mtu), (Lid(0xc000), FULL, 4));
    assert_eq!(leave(&mut net, 2, &wanted).expect("left").mlid, Lid(0));
    assert_eq!(net.table(ID, 0, &McMemberRecord::default()), all);
}

#[test]
fn groups_of_removed_partitions_are_deleted_with_their_members() {
    for state in [FULL, NON, SEND_ONLY] {
        groups_go_with_members_that_are(state);
    }
}

fn groups_go_with_members_that_are(state: JoinState) {
    let mut net = Net::new("switch:3", 0);
    let partitions = |text: &str| Partitions::parse("p", text).unwrap();
    let a = "Default=0x7fff,ipoib: ALL=full; A=0x11,ipoib: ALL=full;";
    net.administration.set_partitions(partitions(a));
    for (place, _) in net.ports() {
        let keys = [Pkey::DEFAULT, Pkey(0x8011), Pkey(0x8012)];
        net.model.port_mut(place).unwrap().pkeys = keys.into();
    }
    let wanted = record(&net, BROADCAST, 2, state);
    join(&mut net, JOIN, 2, &wanted).expect("joined");
    let b = "Default=0x7fff: ALL=full; B=0x12,ipoib,rate=7: ALL=full; A=0x11,ipoib,mtu=5,rate=2:;";
    net.administration.set_partitions(partitions(b));
    let seen = |net: &mut Net| {
        let all = net.table(ID, 0, &McMemberRecord::default());
        all.iter().map(|r| (r.mlid.0, r.pkey.0, r.mtu, r.rate.0)).collect::<Vec<_>>()
    };
    // The default partition's group has a member and keeps its parameters; that of A has those of the file.
    let all = [(0xc001, 0x8011, 5, 2), (0xc002, 0x8012, 4, 7), (0xc000, 0xffff, 4, 3)];
    assert_eq!(seen(&mut net), all);
    leave(&mut net, 2, &wanted).expect("left");
    assert_eq!(seen(&mut net), all[..2]);
    net.administration.set_partitions(partitions("Default=0x7fff,ipoib: ALL=full;"));
    assert_eq!(seen(&mut net), [(0xc000, 0xffff, 4, 3)]);
}

#[test]
fn ipoib_group_without_the_partitions_broadcast_group_is_refused() {
    let mut net = Net::new("switch:3", 0);
    let mgid = |text: &str| Gid::from(text.parse::<core::net::Ipv6Addr>().unwrap());
    for (place, _) in net.ports() {
        net.model.port_mut(place).unwrap().pkeys = [Pkey(0x8011)].into();
    }
    let make = |net: &mut Net, text: &str| {
        let wanted = McMemberRecord { pkey: Pkey(0x8011), ..record(net, mgid(text), 2, FULL) };
        join(net, CREATE, 2, &wanted).map(|joined| joined.mgid)
    };
    let (v4, v6) = ("ff12:401b:8011::16", "ff12:601b:8011::2");
    for text in [v4, v6, "ff12:601b:8011::ffff:ffff"] {
        assert_eq!(make(&mut net, text), Err(status::SA_REQUEST_INVALID), "{text}");
    }
    for text in ["ff12:401b:8011::ffff:ffff", v4, v6] {
        assert_eq!(make(&mut net, text), Ok(mgid(text)));
    }
}

#[test]
fn join_needs_its_components_and_what_fits_the_group() {
    let mut net = Net::new("switch:3", 0);
    let wanted = record(&net, BROADCAST, 2, FULL);
    for mask in [Mask::MGID, Mask::PORT_GID, Mask::JOIN_STATE] {
        let refused = join(&mut net, JOIN.difference(mask), 2, &wanted);
        assert_eq!(refused, Err(status::SA_INSUFFICIENT_COMPONENTS), "{mask}");
    }
    let invalid = Err(status::SA_REQUEST_INVALID);
    let nothing = McMemberRecord { join_state: JoinState::empty(), ..wanted };
    assert_eq!(join(&mut net, JOIN, 2, &nothing), invalid);
    let fits = McMemberRecord { qkey: Qkey(0x0b1b), mtu: 4, rate: Rate::GBPS_10, ..wanted };
    let exactly = McMemberRecord {
        mtu_selector: Selector::EXACTLY,
        rate_selector: Selector::EXACTLY,
        ..fits
    };
    let rate = Mask::RATE_SELECTOR | Mask::RATE;
    let mtu = Mask::MTU_SELECTOR | Mask::MTU;
    assert!(join(&mut net, CREATE | rate | mtu, 2, &exactly).is_ok());
    let wrong: [(Mask, McMemberRecord); 9] = [
        (Mask::QKEY, McMemberRecord { qkey: Qkey(1), ..fits }),
        (Mask::PKEY, McMemberRecord { pkey: Pkey(0x8001), ..fits }),
        (Mask::TCLASS, McMemberRecord { tclass: 1, ..fits }),
        (Mask::SL, McMemberRecord { sl: 1, ..fits }),
        (Mask::FLOW_LABEL, McMemberRecord { flow_label: 1, ..fits }),
        (Mask::HOP_LIMIT, McMemberRecord { hop_limit: 1, ..fits }),
        (mtu, McMemberRecord { mtu: 5, ..exactly }),
        (mtu, McMemberRecord { mtu_selector: Selector::GREATER_THAN, ..exactly }),
        (rate, McMemberRecord { rate_selector: Selector::LESS_THAN, ..exactly }),
    ];
    for (mask, wanted) in wrong {
        assert_eq!(join(&mut net, JOIN | mask, 2, &wanted), invalid, "{mask}");
    }
    let limited = McMemberRecord { pkey: Pkey(0x7fff), ..fits };
    assert!(join(&mut net, JOIN | Mask::PKEY, 2, &limited).is_ok(), "only its partition counts");
}

#[test]
fn ports_that_cannot_be_members_are_refused() {
    let mut net = Net::new("switch:3", 0);
    let mut wanted = record(&net, BROADCAST, 2, FULL);
    wanted.port_gid = Gid::new(1, wanted.port_gid.guid());
    assert_eq!(join(&mut net, JOIN, 2, &wanted), Err(status::SA_INVALID_GID));
    wanted.port_gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0xbad));
    let invalid = Err(status::SA_REQUEST_INVALID);
    assert_eq!(join(&mut net, JOIN, 2, &wanted), invalid);
    let place = net.model.by_lid(Lid(2)).unwrap();
    wanted.port_gid = gid(&net, 2);
    net.model.port_mut(place).unwrap().info.as_mut().unwrap().mtu_cap = 3;
    assert_eq!(join(&mut net, JOIN, 2, &wanted), invalid, "its MTU is too small");
    net.model.port_mut(place).unwrap().info.as_mut().unwrap().mtu_cap = 4;
    assert!(join(&mut net, JOIN, 2, &wanted).is_ok());
    net.model.port_mut(place).unwrap().pkeys = [Pkey(0x8001)].into();
    assert_eq!(join(&mut net, JOIN, 2, &wanted), invalid, "it is not in the partition");
}

#[test]
fn group_is_created_for_a_full_member_with_all_it_needs() {
    let mut net = Net::new("switch:3", 0);
    let wanted = McMemberRecord { qkey: Qkey(7), sl: 1, ..record(&net, OWN, 2, FULL) };
    for mask in [Mask::QKEY, Mask::TCLASS, Mask::PKEY, Mask::FLOW_LABEL, Mask::SL] {
        let refused = join(&mut net, CREATE.difference(mask), 2, &wanted);
        assert_eq!(refused, Err(status::SA_INSUFFICIENT_COMPONENTS), "{mask}");
    }
    let invalid = Err(status::SA_REQUEST_INVALID);
    for join_state in [NON, SEND_ONLY] {
        let wanted = McMemberRecord { join_state, ..wanted };
        assert_eq!(join(&mut net, CREATE, 2, &wanted), invalid, "{join_state}");
    }
    let foreign = McMemberRecord { pkey: Pkey(0x8001), ..wanted };
    assert_eq!(join(&mut net, CREATE, 2, &foreign), invalid);
    let created = join(&mut net, CREATE, 2, &wanted).expect("created");
    let expected = McMemberRecord {
        mlid: Lid(0xc001),
        mtu_selector: Selector::EXACTLY,
        mtu: 5,
        rate_selector: Selector::EXACTLY,
        rate: Rate::GBPS_100,
        packet_life_time_selector: Selector::EXACTLY,
        scope: 2,
        ..wanted
    };
    assert_eq!(created, expected);
    assert_eq!(members(&net, 0xc001), [(gid(&net, 2).guid(), true)]);
}

#[test]
fn mtu_and_rate_of_a_new_group_are_as_asked_if_the_port_can() {
    let mut net = Net::new("switch:3", 0);
    let (greater, less, exactly, largest) =
        (Selector::GREATER_THAN, Selector::LESS_THAN, Selector::EXACTLY, Selector::LARGEST);
    let mtu = CREATE | Mask::MTU_SELECTOR | Mask::MTU;
    for (n, (selector, value, expected)) in (0..).zip([
        (exactly, 2, Some(2)),
        (less, 4, Some(3)),
        (greater, 4, Some(5)),
        (greater, 5, None),
        (largest, 1, Some(5)),
        (exactly, 6, None),
        (less, 1, None),
    ]) {
        let mut wanted = record(&net, OWN, 2, FULL);
        wanted.mgid.0[15] = 0x20 + n;
        (wanted.mtu_selector, wanted.mtu) = (selector, value);
        let found = join(&mut net, mtu, 2, &wanted).ok().map(|group| group.mtu);
        assert_eq!(found, expected, "{selector} {value}");
    }
    let rate = CREATE | Mask::RATE_SELECTOR | Mask::RATE;
    for (n, (selector, value, expected)) in (0..).zip([
        (exactly, Rate::GBPS_10, Some(Rate::GBPS_10)),
        (exactly, Rate::GBPS_200, None),
        (less, Rate::GBPS_40, Some(Rate::GBPS_28)),
        (greater, Rate::GBPS_40, Some(Rate::GBPS_100)),
        (greater, Rate::GBPS_100, None),
        (largest, Rate::GBPS_10, Some(Rate::GBPS_100)),
    ]) {
        let mut wanted = record(&net, OWN, 2, FULL);
        wanted.mgid.0[15] = 0x40 + n;
        (wanted.rate_selector, wanted.rate) = (selector, value);
        let found = join(&mut net, rate, 2, &wanted).ok().map(|group| group.rate);
        assert_eq!(found, expected, "{selector} {value}");
    }
}

#[test]
fn gids_are_assigned_and_those_of_the_subnet_cannot_be_chosen() {
    let mut net = Net::new("switch:3", 0);
    let wanted = record(&net, Gid::ZERO, 2, FULL);
    let first = join(&mut net, CREATE, 2, &wanted).expect("created").mgid;
    assert_eq!(first.0[..4], [0xff, 0x12, 0xa0, 0x1b]);
    let second = join(&mut net, CREATE, 2, &wanted).expect("created").mgid;
    assert_ne!(first, second);
    let wide = McMemberRecord { scope: 5, ..wanted };
    let third = join(&mut net, CREATE | Mask::SCOPE, 2, &wide).expect("created");
    assert_eq!((third.mgid.0[1], third.scope), (0x15, 5));
    let again = McMemberRecord { mgid: first, ..wanted };
    let other = record(&net, first, 3, NON);
    assert!(join(&mut net, JOIN, 3, &other).is_ok(), "it is there");
    leave(&mut net, 2, &again).expect("left");
    let mut other = Gid([0; 16]);
    for mgid in [first, gid(&net, 2)] {
        other.0 = mgid.0;
        let wanted = record(&net, other, 2, FULL);
        assert_eq!(join(&mut net, CREATE, 2, &wanted), Err(status::SA_REQUEST_INVALID), "{mgid}");
    }
}

#[test]
fn ipoib_group_must_match_the_broadcast_groups_qkey_sl_tclass_and_flow_label() {
    let mut net = Net::new("switch:3", 0);
    let mut mgid = BROADCAST;
    mgid.0[12..].copy_from_slice(&[0, 0, 0, 1]);
    let like = McMemberRecord {
        qkey: Qkey(0x0b1b),
        mtu_selector: Selector::EXACTLY,
        mtu: 4,
        rate_selector: Selector::EXACTLY,
        rate: Rate::GBPS_10,
        ..record(&net, mgid, 2, FULL)
    };
    let mask = CREATE | Mask::MTU_SELECTOR | Mask::MTU | Mask::RATE_SELECTOR | Mask::RATE;
    let invalid = Err(status::SA_REQUEST_INVALID);
    for wrong in [
        McMemberRecord { qkey: Qkey(1), ..like },
        McMemberRecord { sl: 1, ..like },
        McMemberRecord { tclass: 9, ..like },
        McMemberRecord { flow_label: 9, ..like },
        McMemberRecord { hop_limit: 9, ..like },
    ] {
        let mask = mask | Mask::HOP_LIMIT;
        assert_eq!(join(&mut net, mask, 2, &wrong), invalid, "{wrong}");
    }
    let larger = McMemberRecord { mtu: 5, ..like };
    assert_eq!(join(&mut net, mask, 2, &larger).expect("created").mtu, 5, "but for the MTU");
    leave(&mut net, 2, &larger).expect("left");
    assert!(join(&mut net, mask, 2, &like).is_ok());
    let mut six = like;
    six.mgid.0[2] = 0x60;
    assert!(join(&mut net, mask, 2, &six).is_ok());
}

#[test]
fn join_states_add_up_and_are_left_one_by_one() {
    let mut net = Net::new("switch:3", 0);
    let with = |net: &Net, state| record(net, OWN, 2, state);
    let first = with(&net, FULL);
    join(&mut net, CREATE, 2, &first).expect("created");
    let more = with(&net, SEND_ONLY);
    assert_eq!(join(&mut net, JOIN, 2, &more).expect("joined").join_state.bits(), 5);
    let wrong = with(&net, FULL | NON);
    assert_eq!(leave(&mut net, 2, &wrong), Err(status::SA_REQUEST_INVALID));
    let other = record(&net, OWN, 3, FULL);
    join(&mut net, JOIN, 3, &other).expect("joined");
    let left = leave(&mut net, 2, &first).expect("left");
    assert_eq!((left.join_state, left.mlid, left.pkey), (SEND_ONLY, Lid(0), Pkey(0)));
    let [two, three] = [2, 3].map(|lid| gid(&net, lid).guid());
    assert_eq!(members(&net, 0xc001), [(two, false), (three, true)], "the first only sends");
    assert_eq!(leave(&mut net, 2, &more).expect("left").mlid, Lid(0));
    assert_eq!(members(&net, 0xc001), [(three, true)]);
    assert_eq!(leave(&mut net, 2, &more), Err(status::SA_REQUEST_INVALID), "it is no member");
}

#[test]
fn broadcast_group_loses_all_members_with_its_last_full_member() {
    let mut net = Net::new("switch:3", 0);
    let full = record(&net, BROADCAST, 2, FULL | SEND_ONLY);
    join(&mut net, JOIN, 2, &full).expect("joined");
    let non = record(&net, BROADCAST, 3, NON);
    join(&mut net, JOIN, 3, &non).expect("joined");
    let one = record(&net, BROADCAST, 2, FULL);
    let left = leave(&mut net, 2, &one).expect("left");
    assert_eq!(left.join_state, JoinState::empty());
    assert_eq!(members(&net, 0xc000), []);
    join(&mut net, JOIN, 3, &non).expect("joined again");
    let other = record(&net, BROADCAST, 2, NON);
    join(&mut net, JOIN, 2, &other).expect("joined");
    leave(&mut net, 3, &non).expect("left");
    assert_eq!(members(&net, 0xc000).len(), 1, "there was no full member before either");
}

#[test]
fn group_ends_with_its_last_full_member_and_its_lid_is_used_again() {
    let mut net = Net::new("switch:4", 0);
    let full = record(&net, OWN, 2, SEND_FULL);
    join(&mut net, CREATE, 2, &full).expect("created");
    let non = record(&net, OWN, 3, NON);
    join(&mut net, JOIN, 3, &non).expect("joined");
    let mut later = record(&net, OWN, 4, FULL);
    later.mgid.0[15] = 2;
    assert_eq!(join(&mut net, CREATE, 4, &later).expect("created").mlid, Lid(0xc002));
    leave(&mut net, 2, &full).expect("left");
    assert_eq!(members(&net, 0xc001), [], "though a member was left");
    assert_eq!(leave(&mut net, 3, &non), Err(status::SA_REQUEST_INVALID));
    later.mgid.0[15] = 3;
    assert_eq!(join(&mut net, CREATE, 4, &later).expect("created").mlid, Lid(0xc001), "the lowest");
    assert_eq!(net.administration.groups().count(), 3);
}

#[test]
fn membership_is_changed_only_by_its_port_or_its_proxy_joiner() {
    let mut net = Net::new("switch:4", 0);
    let wanted = record(&net, BROADCAST, 3, FULL);
    let proxy = join(&mut net, JOIN, 2, &wanted).expect("joined for another");
    assert!(proxy.proxy_join);
    assert_eq!(join(&mut net, JOIN, 4, &wanted), Err(status::SA_REQUEST_INVALID));
    assert_eq!(leave(&mut net, 4, &wanted), Err(status::SA_REQUEST_INVALID));
    assert!(join(&mut net, JOIN, 3, &wanted).is_ok());
    assert!(leave(&mut net, 2, &wanted).is_ok());
    let hidden = net.model.by_lid(Lid(4)).unwrap();
    net.model.port_mut(hidden).unwrap().pkeys = [Pkey(0x8001)].into();
    assert_eq!(join(&mut net, JOIN, 4, &wanted), Err(status::SA_REQUEST_INVALID));
}

#[test]
fn mcmember_records_are_hidden_from_requesters_without_sm_key() {
    let mut net = Net::new("switch:3", 0);
    for lid in [2, 3] {
        let wanted = record(&net, BROADCAST, lid, FULL);
        join(&mut net, JOIN, lid, &wanted).expect("joined");
    }
    let none = McMemberRecord::default();
    let untrusted = net.table(ID, 0, &none);
    assert_eq!(untrusted.len(), 1);
    assert_eq!((untrusted[0].port_gid, untrusted[0].join_state), (Gid::ZERO, JoinState::empty()));
    net.key = SmKey(1);
    let trusted = net.table(ID, 0, &none);
    let gids: Vec<_> = trusted.iter().map(|r| r.port_gid).collect();
    assert_eq!(gids, [gid(&net, 2), gid(&net, 3)]);
    assert!(trusted.iter().all(|r| r.join_state == FULL));
    let one = record(&net, BROADCAST, 3, FULL);
    assert_eq!(net.table(ID, Mask::PORT_GID.bits(), &one), trusted[1..]);
}

#[test]
fn mcmember_records_are_matched_by_mtu_selector_and_mlid_within_the_partition() {
    let mut net = Net::new("switch:3", 0);
    let group =
        McMemberRecord { mtu: 4, mtu_selector: Selector::GREATER_THAN, ..Default::default() };
    let mtu = (Mask::MTU | Mask::MTU_SELECTOR).bits();
    assert_eq!(net.table(ID, mtu, &group).len(), 0);
    let group = McMemberRecord { mtu: 3, ..group };
    assert_eq!(net.table(ID, mtu, &group).len(), 1);
    let mlid = McMemberRecord { mlid: Lid(0xc000), ..McMemberRecord::default() };
    assert_eq!(net.get(ID, Mask::MLID.bits(), &mlid).records[0].mgid, BROADCAST);
    let place = net.model.by_lid(net.asks).unwrap();
    net.model.port_mut(place).unwrap().pkeys = [Pkey(0x8001)].into();
    assert_eq!(net.table(ID, 0, &mlid), [], "not in its partition");
}

#[test]
fn member_changes_report_port_mlid_and_whether_it_receives() {
    let mut net = Net::new("switch:3", 0);
    let [a, b] = [2, 3].map(|lid| gid(&net, lid).guid());
    let created = record(&net, OWN, 2, SEND_FULL);
    join(&mut net, CREATE, 2, &created).expect("created");
    let joins = [(3, FULL), (2, SEND_ONLY), (2, NON)];
    for (lid, state) in joins {
        let wanted = record(&net, OWN, lid, state);
        join(&mut net, JOIN, lid, &wanted).expect("joined");
    }
    for (lid, state) in [(2, NON), (2, SEND_ONLY), (2, SEND_FULL)] {
        let left = record(&net, OWN, lid, state);
        leave(&mut net, lid, &left).expect("left");
    }
    let joined = [(a, Some(false)), (b, Some(true)), (a, Some(false)), (a, Some(true))];
    let left = [(a, Some(false)), (a, Some(false)), (a, None)];
    let expected = joined.into_iter().chain(left);
    let expected: Vec<_> = expected.map(|(port, is)| (Lid(0xc001), port, is)).collect();
    assert_eq!(net.out.members, expected);
    assert_eq!(net.out.changed, []);
    let last = record(&net, OWN, 3, FULL);
    leave(&mut net, 3, &last).expect("left");
    assert_eq!((&net.out.changed[..], net.out.members.len()), (&[Lid(0xc001)][..], 7));
}

#[test]
fn port_joined_by_several_gids_receives_and_stays_until_the_last_leaves() {
    let mut net = Net::new("switch:4", 0);
    let place = net.model.by_lid(Lid(2)).unwrap();
    let port = gid(&net, 2).guid();
    let own = record(&net, OWN, 2, SEND_FULL);
    join(&mut net, CREATE, 2, &own).expect("created");
    let other = record(&net, OWN, 3, FULL);
    join(&mut net, JOIN, 3, &other).expect("joined");
    // One alias sorts before the port's own GID, the other after it.
    let aliases = [Guid(1), Guid(u64::MAX)].map(|alias| {
        net.model.set_alias(place, u8::from(alias == Guid(1)) + 1, alias);
        let port_gid = Gid::new(Gid::DEFAULT_PREFIX, alias);
        McMemberRecord { port_gid, join_state: NON, ..own }
    });
    for alias in &aliases {
        net.out.members.clear();
        join(&mut net, JOIN, 2, alias).expect("joined");
        leave(&mut net, 2, alias).expect("left");
        join(&mut net, JOIN, 2, alias).expect("joined");
        leave(&mut net, 2, &own).expect("left");
        join(&mut net, JOIN, 2, &own).expect("joined");
        leave(&mut net, 2, alias).expect("left");
        let receives: Vec<_> = net.out.members.iter().map(|&(_, _, receives)| receives).collect();
        let [yes, no] = [Some(true), Some(false)];
        assert_eq!(receives, [yes, no, yes, yes, yes, no], "{}", alias.port_gid);
        leave(&mut net, 2, &own).expect("left");
        assert_eq!(net.out.members.pop(), Some((Lid(0xc001), port, None)));
        join(&mut net, JOIN, 2, &own).expect("joined");
    }
    for alias in &aliases {
        join(&mut net, JOIN, 2, alias).expect("joined");
    }
    net.out.members.clear();
    net.administration.port_gone(net.now, &net.model, port, &mut net.out);
    assert_eq!(net.out.members, [(Lid(0xc001), port, None)]);
    assert_eq!(members(&net, 0xc001), [(gid(&net, 3).guid(), true)]);
}

/// Sets the first two alias GUIDs of the port with LID 2, or releases them if they are zero.
fn set_aliases(net: &mut Net, aliases: [u64; 2]) {
    net.asks = Lid(2);
    let lids = GuidInfoRecordMask::LID | GuidInfoRecordMask::BLOCK_NUM;
    let mut record = GuidInfoRecord { lid: Lid(2), ..GuidInfoRecord::default() };
    record.guid_info.guids[1..3].copy_from_slice(&aliases.map(Guid));
    for (bit, alias) in [(GuidInfoRecordMask::GUID1, 0), (GuidInfoRecordMask::GUID2, 1)] {
        let method = if aliases[alias] == 0 { Method::DELETE } else { Method::SET };
        let answer = net.ask(method, GuidInfoRecord::ATTR_ID, (lids | bit).bits(), &record);
        assert_eq!(answer.status, 0);
        for (port, index, guid) in core::mem::take(&mut net.out.aliases) {
            net.model.set_alias(port, index, guid);
        }
    }
}

#[test]
fn deleted_alias_guid_leaves_its_multicast_groups() {
    let mut net = Net::new("switch:4", 0);
    let [port, other] = [2, 3].map(|lid| gid(&net, lid).guid());
    let with = |mgid, guid, join_state| McMemberRecord {
        port_gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(guid)),
        ..record(&Net::new("switch:4", 0), mgid, 2, join_state)
    };
    set_aliases(&mut net, [0x77, 0x78]);
    // A group that the port created, one that it has also joined with its own GID, and one that another port created.
    let both = with(BROADCAST, 0x77, FULL);
    join(&mut net, CREATE, 2, &with(OWN, 0x77, FULL)).expect("created");
    join(&mut net, JOIN, 2, &both).expect("joined");
    let sends = record(&net, BROADCAST, 2, SEND_FULL);
    join(&mut net, JOIN, 2, &sends).expect("joined");
    let mut third = OWN;
    third.0[15] = 9;
    let made = record(&net, third, 3, FULL);
    join(&mut net, CREATE, 3, &made).expect("created");
    join(&mut net, JOIN, 2, &with(third, 0x77, FULL)).expect("joined");
    assert_eq!(members(&net, 0xc002).len(), 2);
    (net.out.members, net.out.changed) = Default::default();
    set_aliases(&mut net, [0x79, 0x7a]);
    assert_eq!(members(&net, 0xc001), []);
    assert_eq!(net.out.changed, [Lid(0xc001)], "its group has ended");
    let told = [(Lid(0xc002), port, None), (Lid(0xc000), port, Some(false))];
    assert_eq!(net.out.members, told);
    assert_eq!(members(&net, 0xc000), [(port, false)]);
    assert_eq!(members(&net, 0xc002), [(other, true)]);
    // The alias is free for another port.
    let place = net.model.by_lid(Lid(4)).unwrap();
    net.model.set_alias(place, 1, Guid(0x77));
    let joined = join(&mut net, JOIN, 4, &both).expect("joined");
    assert_eq!((joined.join_state, members(&net, 0xc000).len()), (FULL, 2));
}

#[test]
fn alias_guid_moved_within_its_port_stays_a_group_member() {
    let mut net = Net::new("switch:3", 0);
    set_aliases(&mut net, [0x77, 0x78]);
    let port_gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x77));
    let wanted = McMemberRecord { port_gid, ..record(&net, BROADCAST, 2, FULL) };
    join(&mut net, JOIN, 2, &wanted).expect("joined");
    net.asks = Lid(2);
    let mask = GuidInfoRecordMask::LID
        | GuidInfoRecordMask::BLOCK_NUM
        | GuidInfoRecordMask::GUID1
        | GuidInfoRecordMask::GUID2;
    let mut swapped = GuidInfoRecord { lid: Lid(2), ..GuidInfoRecord::default() };
    swapped.guid_info.guids[1..3].copy_from_slice(&[Guid(0x78), Guid(0x77)]);
    let answer = net.ask(Method::SET, GuidInfoRecord::ATTR_ID, mask.bits(), &swapped);
    assert_eq!(answer.status, 0);
    assert_eq!(members(&net, 0xc000), [(gid(&net, 2).guid(), true)]);
}

#[test]
fn membership_moves_to_the_port_that_now_has_the_alias_guid() {
    let mut net = Net::new("switch:4", 0);
    let places = [2, 3].map(|lid| net.model.by_lid(Lid(lid)).unwrap());
    let ports = [2, 3].map(|lid| gid(&net, lid).guid());
    let port_gid = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x77));
    let wanted = McMemberRecord { port_gid, ..record(&net, BROADCAST, 2, FULL) };
    net.model.set_alias(places[0], 1, Guid(0x77));
    join(&mut net, JOIN, 2, &wanted).expect("joined");
    // A sweep has found the alias at another port.
    net.model.set_alias(places[0], 1, Guid(0));
    net.model.set_alias(places[1], 1, Guid(0x77));
    (net.out.members, net.out.changed) = Default::default();
    let joined = join(&mut net, JOIN, 3, &wanted).expect("joined");
    assert_eq!((joined.proxy_join, joined.join_state), (false, FULL));
    assert_eq!(members(&net, 0xc000), [(ports[1], true)]);
    assert_eq!(net.out.changed, [Lid(0xc000)], "the last full member had gone");
    assert_eq!(net.out.members, [(Lid(0xc000), ports[1], Some(true))]);
    net.administration.port_gone(net.now, &net.model, ports[0], &mut net.out);
    assert_eq!(members(&net, 0xc000), [(ports[1], true)]);
    assert!(leave(&mut net, 3, &wanted).is_ok());
}

#[test]
fn alias_guid_dropped_by_a_sweep_leaves_its_multicast_groups() {
    let mut net = Net::new("switch:4", 0);
    let port = gid(&net, 2).guid();
    let with = |net: &Net, mgid, join_state| McMemberRecord {
        port_gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(0x77)),
        ..record(net, mgid, 2, join_state)
    };
    set_aliases(&mut net, [0x77, 0x78]);
    let (own, both) = (with(&net, OWN, FULL), with(&net, BROADCAST, FULL));
    join(&mut net, CREATE, 2, &own).expect("created");
    join(&mut net, JOIN, 2, &both).expect("joined");
    let sends = record(&net, BROADCAST, 2, SEND_FULL);
    join(&mut net, JOIN, 2, &sends).expect("joined");
    let kept = McMemberRecord {
        port_gid: Gid::new(Gid::DEFAULT_PREFIX, Guid(0x78)),
        ..record(&net, BROADCAST, 2, SEND_ONLY)
    };
    join(&mut net, JOIN, 2, &kept).expect("joined");
    (net.out.members, net.out.changed) = Default::default();
    net.administration.model_changed(net.now, &net.model, &mut net.out);
    assert_eq!((&net.out.members[..], &net.out.changed[..]), (&[][..], &[][..]));
    let [place, other] = [2, 3].map(|lid| net.model.by_lid(Lid(lid)).unwrap());
    net.model.set_alias(place, 1, Guid(0));
    net.model.set_alias(other, 1, Guid(0x77));
    net.administration.model_changed(net.now, &net.model, &mut net.out);
    assert_eq!(net.out.changed, [Lid(0xc001)], "its group has ended");
    assert_eq!(net.out.members, [(Lid(0xc000), port, Some(false))]);
    assert_eq!(members(&net, 0xc000), [(port, false); 2]);
    assert!(net.administration.groups().eq([Lid(0xc000)]));
}

#[test]
fn removed_port_leaves_its_multicast_groups() {
    let mut net = Net::new("switch:3", 0);
    let wanted = record(&net, OWN, 2, FULL);
    join(&mut net, CREATE, 2, &wanted).expect("created");
    let broadcast = record(&net, BROADCAST, 2, FULL);
    join(&mut net, JOIN, 2, &broadcast).expect("joined");
    let port = gid(&net, 2).guid();
    net.out.changed.clear();
    net.administration.port_gone(net.now, &net.model, port, &mut net.out);
    assert_eq!(net.out.changed.len(), 2);
    assert!(net.administration.groups().eq([Lid(0xc000)]));
    assert_eq!(members(&net, 0xc000), []);
}

#[test]
fn multicast_fdb_cap_of_switches_limits_the_number_of_groups() {
    let mut net = Net::new("switch:3", 0);
    net.model.node_mut(0).unwrap().switch.as_mut().unwrap().info.multicast_fdb_cap = 3;
    let mut wanted = record(&net, OWN, 2, FULL);
    let mut join_next = |net: &mut Net| {
        wanted.mgid.0[15] += 1;
        join(net, CREATE, 2, &wanted).map(|group| group.mlid)
    };
    assert_eq!(join_next(&mut net), Ok(Lid(0xc001)));
    assert_eq!(join_next(&mut net), Ok(Lid(0xc002)));
    assert_eq!(join_next(&mut net), Err(status::SA_NO_RESOURCES));
    net.model.node_mut(0).unwrap().switch.as_mut().unwrap().info.multicast_fdb_cap = 4;
    net.administration.model_changed(net.now, &net.model, &mut net.out);
    assert_eq!(join_next(&mut net), Ok(Lid(0xc003)));
}

#[test]
fn one_port_cannot_create_more_than_three_quarters_of_all_groups() {
    let mut net = Net::new("switch:3", 0);
    net.model.node_mut(0).unwrap().switch.as_mut().unwrap().info.multicast_fdb_cap = 8;
    let make = |net: &mut Net, lid: u16, n: u8| {
        let mut wanted = record(net, OWN, lid, FULL);
        wanted.mgid.0[15] = n;
        join(net, CREATE, lid, &wanted).map(|_| wanted)
    };
    let first = make(&mut net, 2, 1).expect("created");
    assert!((2..=6).all(|n| make(&mut net, 2, n).is_ok()));
    assert_eq!(make(&mut net, 2, 7).err(), Some(status::SA_NO_RESOURCES));
    assert!(make(&mut net, 3, 6).is_ok(), "it is there already");
    assert!(make(&mut net, 3, 8).is_ok());
    assert!(make(&mut net, 2, 8).is_ok(), "another port has made it");
    leave(&mut net, 2, &first).expect("left");
    assert!(make(&mut net, 2, 7).is_ok());
}

#[test]
fn members_are_discarded_when_mastership_is_lost() {
    let mut net = Net::new("switch:3", 0);
    let wanted = record(&net, BROADCAST, 2, FULL);
    join(&mut net, JOIN, 2, &wanted).expect("joined");
    let own = net.administration.own;
    net.administration.set_master(None);
    net.administration.set_master(own);
    assert_eq!(members(&net, 0xc000), []);
    assert!(net.administration.groups().eq([Lid(0xc000)]));
}

#[test]
fn path_record_to_an_mgid_is_answered_to_its_members_only() {
    let mut net = Net::new("switch:3", 0);
    let question = PathRecord { dgid: BROADCAST, sgid: gid(&net, 2), ..PathRecord::default() };
    let mask = (PathRecordMask::DGID | PathRecordMask::SGID).bits();
    let refused = net.get(PathRecord::ATTR_ID, mask, &question);
    assert_eq!(refused.status, status::SA_NO_RECORDS);
    let wanted = record(&net, BROADCAST, 2, FULL);
    join(&mut net, JOIN, 2, &wanted).expect("joined");
    let path = net.get(PathRecord::ATTR_ID, mask, &question).records[0];
    assert_eq!((path.dlid, path.mtu, path.rate), (Lid(0xc000), 4, Rate::GBPS_10));
    assert_eq!((path.packet_life_time, path.numb_path, path.hop_limit), (0x12, 1, 0));
    let by_lid = PathRecord { dlid: Lid(0xc000), slid: Lid(2), ..PathRecord::default() };
    let lids = (PathRecordMask::DLID | PathRecordMask::SLID).bits();
    let refused = net.get(PathRecord::ATTR_ID, lids, &by_lid).status;
    assert_eq!(refused, status::SA_NO_RECORDS, "a group is asked for by its GID");
    let mtu = PathRecordMask::MTU_SELECTOR | PathRecordMask::MTU;
    let fast = PathRecord { mtu: 4, ..question };
    let found = net.get(PathRecord::ATTR_ID, mask | mtu.bits(), &fast);
    assert_eq!(found.records[0].mtu, 4, "what is asked for does not matter");
    let limited = PathRecord { pkey: Pkey(0x7fff), ..question };
    let found = net.get(PathRecord::ATTR_ID, mask | PathRecordMask::PKEY.bits(), &limited);
    assert_eq!(found.status, status::SA_NO_RECORDS, "the group has the full key");
    let unknown = PathRecord { dgid: OWN, ..question };
    assert_eq!(net.get(PathRecord::ATTR_ID, mask, &unknown).status, status::SA_NO_RECORDS);
}

#[test]
fn path_record_to_a_global_scope_mgid_has_hop_limit_255() {
    let mut net = Net::new("switch:3", 0);
    let mut wanted = record(&net, OWN, 2, FULL);
    wanted.mgid.0[1] = 0x1e;
    join(&mut net, CREATE, 2, &wanted).expect("created");
    let question = PathRecord { dgid: wanted.mgid, sgid: gid(&net, 2), ..PathRecord::default() };
    let mask = (PathRecordMask::DGID | PathRecordMask::SGID).bits();
    assert_eq!(net.get(PathRecord::ATTR_ID, mask, &question).records[0].hop_limit, 255);
}
