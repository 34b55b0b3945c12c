//! Services, subscriptions with their Reports, and alias GUIDs.

use core::time::Duration;

use super::*;
use rdmux_wire::sa::*;
use rdmux_wire::sm::{
    GidEvent, LinkError, LinkStateChange, LocalChange, Notice, NoticeType, Producer, Trap,
};
use rdmux_wire::{Gid, Pkey, Qpn, ServiceId};

const SERVICE: u16 = ServiceRecord::ATTR_ID;
const NEEDED: ServiceRecordMask =
    ServiceRecordMask::SERVICE_ID.union(ServiceRecordMask::SERVICE_GID);

pub(super) fn gid(net: &Net, lid: u16) -> Gid {
    let port = net.model.port(net.model.by_lid(Lid(lid)).expect("a port")).expect("a port");
    Gid::new(Gid::DEFAULT_PREFIX, port.guid)
}

fn service(id: u64) -> ServiceRecord {
    ServiceRecord {
        service_id: ServiceId(id),
        service_gid: Gid([7; 16]),
        ..ServiceRecord::default()
    }
}

fn set(net: &mut Net, mask: ServiceRecordMask, record: &ServiceRecord) -> u16 {
    net.ask(Method::SET, SERVICE, mask.bits(), record).status
}

fn pass(net: &mut Net, time: Duration) {
    net.now = net.now.after(time);
    net.administration.handle_timeout(net.now);
}

#[test]
fn service_needs_id_gid_and_a_partition_of_the_requester() {
    let mut net = Net::new("two", 0);
    for mask in [ServiceRecordMask::SERVICE_ID, ServiceRecordMask::SERVICE_GID] {
        assert_eq!(set(&mut net, mask, &service(1)), status::SA_REQUEST_INVALID);
    }
    let mask = NEEDED | ServiceRecordMask::SERVICE_PKEY;
    let service_gid = gid(&net, 2);
    let foreign = ServiceRecord { service_gid, service_pkey: Pkey(0x8001), ..service(1) };
    assert_eq!(set(&mut net, mask, &foreign), status::SA_REQUEST_INVALID);
    let own = ServiceRecord { service_pkey: Pkey(0x7fff), ..foreign };
    assert_eq!(set(&mut net, mask, &own), 0);
}

#[test]
fn service_in_a_partition_needs_the_port_of_its_gid_in_it_until_it_is_deleted() {
    let mut net = Net::new("switch:3", 0);
    let mask = NEEDED | ServiceRecordMask::SERVICE_PKEY;
    let place = net.model.by_lid(Lid(2)).unwrap();
    net.model.port_mut(place).unwrap().pkeys = [Pkey::DEFAULT, Pkey(0x8001)].into();
    let alias = Gid::new(Gid::DEFAULT_PREFIX, Guid(0x77));
    net.model.set_alias(place, 1, alias.guid());
    let (unknown, group, invalid) = (Gid([7; 16]), Gid([0xff; 16]), status::SA_REQUEST_INVALID);
    for (service_gid, pkey, expected) in [
        (gid(&net, 2), 0x8001, 0),
        (alias, 0x0001, 0),
        (gid(&net, 3), 0xffff, 0),
        (gid(&net, 3), 0x8001, invalid),
        (unknown, 0xffff, invalid),
        (group, 0x8001, 0),
    ] {
        let record = ServiceRecord { service_gid, service_pkey: Pkey(pkey), ..service(1) };
        assert_eq!(set(&mut net, mask, &record), expected, "{service_gid} {pkey:#x}");
    }
    assert_eq!(set(&mut net, NEEDED, &service(1)), 0, "in no partition");
    net.model.set_alias(place, 1, Guid(0));
    let gone = ServiceRecord { service_gid: alias, service_pkey: Pkey(1), ..service(1) };
    assert_eq!(set(&mut net, mask, &gone), invalid);
    assert_eq!(net.ask(Method::DELETE, SERVICE, mask.bits(), &gone).status, 0);
}

#[test]
fn service_with_the_same_key_is_replaced_and_deleted_once() {
    let mut net = Net::new("two", 0);
    let first = ServiceRecord { service_name: "one".into(), ..service(1) };
    let second = ServiceRecord { service_name: "two".into(), ..service(1) };
    assert_eq!(set(&mut net, NEEDED, &first), 0);
    assert_eq!(set(&mut net, NEEDED, &second), 0);
    assert_eq!(set(&mut net, NEEDED, &service(2)), 0);
    let all = net.table(SERVICE, 0, &service(0));
    assert_eq!(all.iter().map(|r| r.service_name).collect::<Vec<_>>(), ["two".into(), "".into()]);
    let by_name = ServiceRecordMask::SERVICE_NAME.bits();
    assert_eq!(net.table(SERVICE, by_name, &second), all[..1]);
    assert_eq!(all[0].service_lease, u32::MAX, "without a lease it does not end");
    let delete = |net: &mut Net| net.ask(Method::DELETE, SERVICE, NEEDED.bits(), &second).status;
    assert_eq!(delete(&mut net), 0);
    assert_eq!(delete(&mut net), status::SA_NO_RECORDS);
    assert_eq!(net.table(SERVICE, 0, &service(0)).len(), 1);
}

#[test]
fn lease_ends_and_is_renewed() {
    let mut net = Net::new("two", 0);
    let mask = NEEDED | ServiceRecordMask::SERVICE_LEASE;
    let leased = ServiceRecord { service_lease: 3, ..service(1) };
    assert_eq!(set(&mut net, mask, &leased), 0);
    let due = net.administration.next_timeout();
    assert_eq!(due, Some(Time::ZERO.after(Duration::from_secs(3))));
    pass(&mut net, Duration::from_secs(2));
    assert_eq!(net.table(SERVICE, 0, &leased)[0].service_lease, 1);
    assert_eq!(set(&mut net, mask, &leased), 0);
    pass(&mut net, Duration::from_millis(2_999));
    assert_eq!(net.table(SERVICE, 0, &leased).len(), 1);
    pass(&mut net, Duration::from_millis(1));
    assert_eq!(net.table(SERVICE, 0, &leased), []);
    assert_eq!(net.administration.next_timeout(), None);
}

#[test]
fn service_key_is_hidden_and_required_to_change_or_delete_the_service() {
    let mut net = Net::new("two", 0);
    let secret = ServiceRecord { service_key: [9; 16], ..service(1) };
    assert_eq!(set(&mut net, NEEDED, &secret), 0);
    assert_eq!(net.table(SERVICE, 0, &service(0))[0].service_key, [0; 16]);
    let guess = ServiceRecord { service_key: [8; 16], ..service(1) };
    let by_key = ServiceRecordMask::SERVICE_KEY.bits();
    assert_eq!(net.table(SERVICE, by_key, &guess).len(), 1, "guesses tell nothing");
    assert_eq!(set(&mut net, NEEDED, &guess), status::SA_REQUEST_INVALID);
    let answer = net.ask(Method::DELETE, SERVICE, NEEDED.bits(), &guess);
    assert_eq!(answer.status, status::SA_REQUEST_INVALID);
    net.key = SmKey(1);
    assert_eq!(net.table(SERVICE, 0, &service(0))[0].service_key, [9; 16]);
    net.key = SmKey(0);
    assert_eq!(net.ask(Method::DELETE, SERVICE, NEEDED.bits(), &secret).status, 0);
}

#[test]
fn services_of_other_partitions_are_not_shown() {
    let mut net = Net::new("switch:2", 0);
    let mask = NEEDED | ServiceRecordMask::SERVICE_PKEY;
    let service_gid = gid(&net, 2);
    let record = ServiceRecord { service_gid, service_pkey: Pkey::DEFAULT, ..service(1) };
    assert_eq!(set(&mut net, mask, &record), 0);
    net.asks = Lid(3);
    let place = net.model.by_lid(Lid(3)).unwrap();
    net.model.port_mut(place).unwrap().pkeys = [Pkey(0x8001)].into();
    assert_eq!(net.table(SERVICE, 0, &record), []);
    let refused = net.ask(Method::DELETE, SERVICE, mask.bits(), &record).status;
    assert_eq!(refused, status::SA_REQUEST_INVALID);
    let unknown = ServiceRecord { service_id: ServiceId(2), ..record };
    let refused = net.ask(Method::DELETE, SERVICE, mask.bits(), &unknown).status;
    assert_eq!(refused, status::SA_REQUEST_INVALID, "whether it is there is not told");
}

#[test]
fn service_record_without_pkey_component_has_pkey_zero() {
    let mut net = Net::new("switch:2", 0);
    let foreign = ServiceRecord { service_pkey: Pkey(0x8001), ..service(1) };
    assert_eq!(set(&mut net, NEEDED, &foreign), 0);
    let all = net.table(SERVICE, 0, &service(0));
    assert_eq!(all.iter().map(|record| record.service_pkey).collect::<Vec<_>>(), [Pkey(0)]);
    let delete = |net: &mut Net| net.ask(Method::DELETE, SERVICE, NEEDED.bits(), &foreign).status;
    assert_eq!(delete(&mut net), 0, "nor is the P_Key of the record looked at");
    // A service in a partition is still found by the record that was returned for it.
    let service_gid = gid(&net, 2);
    let own = ServiceRecord { service_gid, service_pkey: Pkey::DEFAULT, ..service(1) };
    assert_eq!(set(&mut net, NEEDED | ServiceRecordMask::SERVICE_PKEY, &own), 0);
    assert_eq!(net.ask(Method::DELETE, SERVICE, NEEDED.bits(), &own).status, 0);
}

#[test]
fn service_registrations_of_a_port_are_limited() {
    let mut net = Net::new("switch:2", 0);
    net.administration.config.services_of_port = 2;
    let tried = [1, 2, 3, 2].map(|id| set(&mut net, NEEDED, &service(id)));
    assert_eq!(tried, [0, 0, status::SA_NO_RESOURCES, 0]);
    net.asks = Lid(3);
    assert_eq!(set(&mut net, NEEDED, &service(3)), 0, "another port may");
}

/// Returns a subscription to everything.
pub(super) fn everything() -> InformInfo {
    InformInfo {
        lid_range_begin: Lid(0xffff),
        is_generic: 1,
        subscribe: 1,
        notice_type: 0xffff,
        trap_number: 0xffff,
        producer: Producer(0xff_ffff),
        ..InformInfo::default()
    }
}

pub(super) fn to_trap(trap_number: u16) -> InformInfo {
    InformInfo { trap_number, ..everything() }
}

pub(super) fn subscribe(net: &mut Net, lid: u16, what: &InformInfo) -> u16 {
    net.asks = Lid(lid);
    let answer = net.exchange(Method::SET, InformInfo::ATTR_ID, 0, &what.to_bytes());
    let answer = answer.expect("an answer");
    let mad = SaMad::parse(&answer.data).unwrap();
    let is_accepted = mad.header.status == 0;
    let echo = InformInfo { subscribe: if is_accepted { what.subscribe } else { 0 }, ..*what };
    assert_eq!(mad.record::<InformInfo>().unwrap(), echo, "Subscribe is 0 if it is refused");
    mad.header.status
}

/// Returns the Reports that were sent, with their receivers.
pub(super) fn reports(net: &mut Net) -> Vec<(Lid, ReportedNotice)> {
    let sent = core::mem::take(&mut net.out.sent);
    let report = |mad: &UserMad| {
        let sa = SaMad::parse(&mad.data).unwrap();
        assert_eq!((sa.header.method, sa.header.attr_id), (Method::REPORT, 2));
        assert_eq!(sa.header.tid >> 16, 0x02da);
        assert_eq!((mad.address.qpn, mad.retries), (Qpn::QP1, 3));
        (mad.address.lid, sa.record().unwrap())
    };
    sent.iter().map(report).collect()
}

fn appear(net: &mut Net, lid: u16) {
    let guid = gid(net, lid).guid();
    net.administration.port_appeared(net.now, &net.model, guid, &mut net.out);
}

fn disappear(net: &mut Net, lid: u16) {
    let port = gid(net, lid).guid();
    net.administration.port_gone(net.now, &net.model, port, &mut net.out);
}

#[test]
fn trap_64_and_65_reports_are_sent_for_appearing_and_vanishing_ports() {
    let mut net = Net::new("switch:3", 0);
    assert_eq!(subscribe(&mut net, 2, &to_trap(64)), 0);
    assert_eq!(subscribe(&mut net, 3, &everything()), 0);
    appear(&mut net, 4);
    let sent = reports(&mut net);
    assert_eq!(sent.iter().map(|(lid, _)| *lid).collect::<Vec<_>>(), [Lid(2), Lid(3)]);
    let notice = sent[0].1.notice;
    let subject = GidEvent { gid: gid(&net, 4), ..GidEvent::default() };
    assert_eq!(notice.trap(), Some(Trap::GidInService(subject)));
    assert_eq!(notice.notice_type, NoticeType::SUBNET_MANAGEMENT);
    assert_eq!(notice.producer, Producer::CLASS_MANAGER);
    assert_eq!((notice.issuer_lid, sent[0].1.issuer_gid), (Lid(4), gid(&net, 4)));
    disappear(&mut net, 4);
    let sent = reports(&mut net);
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].0, sent[0].1.notice.trap_number), (Lid(3), 65));
}

#[test]
fn trap_65_of_a_removed_port_goes_to_its_partition() {
    forgotten_port_is_reported_to_its_partition(|net| appear(net, 5));
}

#[test]
fn trap_65_of_a_removed_port_of_the_first_sweep_goes_to_its_partition() {
    forgotten_port_is_reported_to_its_partition(|net| {
        let own = net.administration.own;
        net.administration.set_master(None);
        appear(net, 5);
        net.administration.set_master(own);
        assert_eq!(reports(net), [], "nobody has subscribed yet");
    });
}

#[test]
fn trap_65_of_a_removed_port_goes_to_its_partition_after_remastering() {
    forgotten_port_is_reported_to_its_partition(|net| {
        appear(net, 5);
        let own = net.administration.own;
        net.administration.set_master(None);
        net.administration.set_master(own);
    });
}

#[test]
fn remembered_port_pkeys_are_discarded_when_mastership_is_lost() {
    let mut net = Net::new("switch:4", 0);
    appear(&mut net, 5);
    net.administration.set_partitions(Partitions::default());
    assert_eq!(net.administration.state.pkeys.len(), 1);
    net.administration.set_master(None);
    assert_eq!(net.administration.state.pkeys.len(), 0);
}

/// Checks that a forgotten port is reported to its partition. `found` is how administration learned of the port.
fn forgotten_port_is_reported_to_its_partition(found: fn(&mut Net)) {
    let mut net = Net::new("switch:4", 0);
    for (lid, keys) in [(3, [0xffff, 0x8001]), (4, [0xffff, 0x8002]), (5, [0x7fff, 0x8001])] {
        let place = net.model.by_lid(Lid(lid)).unwrap();
        net.model.port_mut(place).unwrap().pkeys = keys.map(Pkey).into();
    }
    let gone = net.model.by_lid(Lid(5)).unwrap();
    let guid = gid(&net, 5).guid();
    found(&mut net);
    net.model.port_mut(gone).unwrap().pkeys = [Pkey(0x8001)].into();
    net.administration.model_changed(net.now, &net.model, &mut net.out);
    for lid in [3, 4] {
        assert_eq!(subscribe(&mut net, lid, &to_trap(65)), 0);
    }
    // The model of a later sweep.
    let mut model = Model::default();
    for node in net.model.nodes().iter().filter(|node| node.ports.iter().all(|p| p.guid != guid)) {
        model.add(node.clone());
    }
    net.administration.port_gone(net.now, &model, guid, &mut net.out);
    assert!(reports(&mut net).iter().map(|(lid, _)| lid.0).eq([3]), "it had the partition 1 only");
}

#[test]
fn trap_66_and_67_reports_are_sent_for_created_and_deleted_groups() {
    let mut net = Net::new("switch:3", 0);
    assert_eq!(subscribe(&mut net, 3, &everything()), 0);
    net.asks = Lid(2);
    let record = McMemberRecord {
        mgid: Gid([0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        port_gid: gid(&net, 2),
        pkey: Pkey::DEFAULT,
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    };
    let optional = McMemberRecordMask::MTU_SELECTOR
        | McMemberRecordMask::RATE_SELECTOR
        | McMemberRecordMask::PACKET_LIFE_TIME_SELECTOR
        | McMemberRecordMask::SCOPE;
    let mask = McMemberRecordMask::all().difference(optional).bits();
    assert_eq!(net.ask(Method::SET, McMemberRecord::ATTR_ID, mask, &record).status, 0);
    assert_eq!(net.ask(Method::SET, McMemberRecord::ATTR_ID, mask, &record).status, 0);
    let traps = |net: &mut Net| {
        reports(net).iter().map(|(_, report)| report.notice.trap_number).collect::<Vec<_>>()
    };
    assert_eq!(traps(&mut net), [66], "only the first full member counts");
    assert_eq!(net.ask(Method::DELETE, McMemberRecord::ATTR_ID, mask, &record).status, 0);
    assert_eq!(traps(&mut net), [67]);
}

#[test]
fn who_makes_a_group_is_told_of_it_beside_the_answer() {
    let mut net = Net::new("switch:3", 0);
    assert_eq!(subscribe(&mut net, 2, &everything()), 0);
    net.asks = Lid(2);
    let record = McMemberRecord {
        mgid: Gid([0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        port_gid: gid(&net, 2),
        pkey: Pkey::DEFAULT,
        join_state: JoinState::FULL_MEMBER,
        ..McMemberRecord::default()
    };
    let mut mad = SaMad::new(Method::SET, McMemberRecord::ATTR_ID, &[]);
    let bytes = record.to_bytes();
    (mad.data, mad.header.tid) = (&bytes, 0x77);
    let needed = McMemberRecordMask::MGID
        | McMemberRecordMask::PORT_GID
        | McMemberRecordMask::JOIN_STATE
        | McMemberRecordMask::QKEY
        | McMemberRecordMask::TCLASS
        | McMemberRecordMask::PKEY
        | McMemberRecordMask::FLOW_LABEL
        | McMemberRecordMask::SL;
    mad.sa.component_mask = needed.bits();
    net.put(mad.to_bytes().to_vec());
    let mut sent: Vec<_> = net
        .out
        .sent
        .iter()
        .map(|mad| SaMad::parse(&mad.data).unwrap().header)
        .map(|header| (header.method, header.tid == 0x77))
        .collect();
    sent.sort_unstable_by_key(|(method, _)| method.0);
    assert_eq!(sent, [(Method::REPORT, false), (Method::GET_RESP, true)], "in either order");
}

#[test]
fn traps_of_ports_are_forwarded_with_the_gid_of_their_issuer() {
    let mut net = Net::new("switch:3", 0);
    assert_eq!(subscribe(&mut net, 2, &to_trap(144)), 0);
    let only = InformInfo { gid: gid(&net, 4), ..to_trap(144) };
    assert_eq!(subscribe(&mut net, 3, &only), 0);
    let notice = |lid| {
        Notice::new(&Trap::Local(LocalChange { lid, ..LocalChange::default() }), Producer::CA, lid)
    };
    for (lid, receivers) in [(Lid(3), &[Lid(2)][..]), (Lid(4), &[Lid(2), Lid(3)]), (Lid(99), &[])] {
        net.administration.handle_notice(net.now, &net.model, &notice(lid), &mut net.out);
        let sent = reports(&mut net);
        assert!(sent.iter().map(|(lid, _)| lid).eq(receivers), "{lid}");
        assert!(
            sent.iter().all(|(_, r)| r.notice == notice(lid) && r.issuer_gid == gid(&net, lid.0))
        );
    }
    let other = Trap::LinkIntegrity(LinkError { lid: Lid(4), ..LinkError::default() });
    let other = Notice::new(&other, Producer::CA, Lid(4));
    net.administration.handle_notice(net.now, &net.model, &other, &mut net.out);
    assert_eq!(reports(&mut net), []);
}

#[test]
fn subscriptions_are_matched_by_lids_type_and_producer() {
    let notice = Notice::new(
        &Trap::LinkState(LinkStateChange { lid: Lid(1), ..LinkStateChange::default() }),
        Producer::SWITCH,
        Lid(1),
    );
    let all = everything();
    let cases = [
        (all, true),
        (InformInfo { is_generic: 0, ..all }, false),
        (InformInfo { lid_range_begin: Lid(1), lid_range_end: Lid(1), ..all }, true),
        (InformInfo { lid_range_begin: Lid(1), ..all }, true),
        (InformInfo { lid_range_begin: Lid(2), lid_range_end: Lid(9), ..all }, false),
        (InformInfo { notice_type: 1, ..all }, true),
        (InformInfo { notice_type: 4, ..all }, false),
        (InformInfo { trap_number: 128, ..all }, true),
        (InformInfo { trap_number: 129, ..all }, false),
        (InformInfo { producer: Producer::SWITCH, ..all }, true),
        (InformInfo { producer: Producer::CA, ..all }, false),
    ];
    for (what, expected) in cases {
        let mut net = Net::new("switch:3", 0);
        assert_eq!(subscribe(&mut net, 2, &what), 0);
        net.administration.handle_notice(net.now, &net.model, &notice, &mut net.out);
        assert_eq!(!reports(&mut net).is_empty(), expected, "{what}");
    }
}

#[test]
fn events_of_other_partitions_and_of_others_security_are_not_reported() {
    let mut net = Net::new("switch:3", 0);
    assert_eq!(subscribe(&mut net, 2, &everything()), 0);
    net.key = SmKey(1);
    assert_eq!(subscribe(&mut net, 3, &everything()), 0);
    let trap = Trap::Pkey(Default::default());
    let security = Notice::new(&trap, Producer::CA, Lid(4));
    net.administration.handle_notice(net.now, &net.model, &security, &mut net.out);
    assert!(reports(&mut net).iter().map(|(lid, _)| lid.0).eq([3]), "who knows the key");
    let own = Notice::new(&trap, Producer::CA, Lid(2));
    net.administration.handle_notice(net.now, &net.model, &own, &mut net.out);
    assert!(reports(&mut net).iter().map(|(lid, _)| lid.0).eq([2, 3]) || net.out.sent.is_empty());
    let hidden = net.model.by_lid(Lid(4)).unwrap();
    net.model.port_mut(hidden).unwrap().pkeys = [Pkey(0x8001)].into();
    appear(&mut net, 4);
    assert_eq!(reports(&mut net), []);
}

#[test]
fn subscription_ends_with_queue_pair_1_and_once() {
    let mut net = Net::new("switch:3", 0);
    let invalid = status::SA_REQUEST_INVALID;
    assert_eq!(subscribe(&mut net, 2, &InformInfo { subscribe: 2, ..everything() }), invalid);
    assert_eq!(subscribe(&mut net, 2, &everything()), 0);
    assert_eq!(subscribe(&mut net, 2, &everything()), 0, "again is the same");
    let end = InformInfo { subscribe: 0, ..everything() };
    assert_eq!(subscribe(&mut net, 2, &end), invalid, "queue pair 0");
    let end = InformInfo { qpn: Qpn::QP1, ..end };
    assert_eq!(subscribe(&mut net, 3, &end), invalid, "another's");
    assert_eq!(subscribe(&mut net, 2, &end), 0);
    assert_eq!(subscribe(&mut net, 2, &end), invalid);
    appear(&mut net, 4);
    assert_eq!(reports(&mut net), []);
    let unknown = InformInfo { gid: Gid([1; 16]), ..everything() };
    assert_eq!(subscribe(&mut net, 2, &unknown), invalid);
    let get = net.exchange(Method::GET, InformInfo::ATTR_ID, 0, &[]).expect("an answer");
    let header = MadHeader::parse(&get.data).unwrap();
    assert_eq!(header.status, status::UNSUPPORTED_METHOD_ATTRIBUTE);
}

#[test]
fn subscriptions_are_listed() {
    let mut net = Net::new("switch:3", 0);
    assert_eq!(subscribe(&mut net, 2, &everything()), 0);
    assert_eq!(subscribe(&mut net, 3, &to_trap(257)), status::SA_REQUEST_INVALID);
    let unknown = InformInfo { lid_range_begin: Lid(99), ..to_trap(144) };
    assert_eq!(subscribe(&mut net, 3, &unknown), status::SA_REQUEST_INVALID);
    net.key = SmKey(1);
    assert_eq!(subscribe(&mut net, 3, &to_trap(257)), 0);
    net.key = SmKey(0);
    let (id, none) = (InformInfoRecord::ATTR_ID, InformInfoRecord::default());
    assert_eq!(net.table(id, 0, &none).len(), 2, "its own security trap is shown");
    net.asks = Lid(4);
    let seen = net.table(id, 0, &none);
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].subscriber_gid, seen[0].inform_info.trap_number), (gid(&net, 2), 0xffff));
    net.key = SmKey(1);
    assert_eq!(net.table(id, 0, &none).len(), 2);
    let wanted = InformInfoRecord { subscriber_gid: gid(&net, 3), ..none };
    let mask = InformInfoRecordMask::SUBSCRIBER_GID.bits();
    assert_eq!(net.table(id, mask, &wanted)[0].inform_info.trap_number, 257);
}

#[test]
fn subscriber_that_never_answers_gets_no_more_reports_until_they_time_out() {
    let mut net = Net::new("switch:3", 0);
    net.administration.config.reports_of_port = 3;
    assert_eq!(subscribe(&mut net, 2, &everything()), 0);
    assert_eq!(subscribe(&mut net, 3, &everything()), 0);
    let mut first = None;
    for _ in 0..5 {
        appear(&mut net, 4);
        let sent = core::mem::take(&mut net.out.sent);
        first = first.or(sent.iter().find(|mad| mad.address.lid == Lid(2)).cloned());
        // The second subscriber answers.
        let answered = sent.iter().find(|mad| mad.address.lid == Lid(3)).expect("it is told");
        let mut answer = answered.data.clone();
        answer[3] = Method::REPORT_RESP.0;
        // The user MAD device has put its agent's number into the upper half.
        answer[11] = 9;
        net.put(answer);
    }
    assert_eq!(net.administration.counters().dropped_reports, 2);
    let mut gone = first.expect("one");
    (gone.status, gone.data) = (UserMad::TIMED_OUT, gone.data[..24].to_vec());
    net.administration.handle_mad(net.now, &net.model, &gone, &mut net.out);
    appear(&mut net, 4);
    assert!(reports(&mut net).iter().map(|(lid, _)| lid.0).eq([2, 3]));
    net.out.full = true;
    for _ in 0..10 {
        appear(&mut net, 4);
    }
    assert_eq!(net.administration.counters().dropped_reports, 2 + 20, "none could be sent");
}

#[test]
fn unsent_report_frees_its_slot_and_is_counted_once_as_dropped() {
    let mut net = Net::new("switch:3", 0);
    net.administration.config.reports_of_port = 1;
    assert_eq!(subscribe(&mut net, 2, &everything()), 0);
    for dropped in 1..=3 {
        appear(&mut net, 4);
        let mut unsent = net.out.sent.pop().expect("a Report");
        (unsent.status, unsent.data) = (12, unsent.data[..24].to_vec());
        net.administration.handle_unsent(&unsent);
        assert_eq!(net.administration.counters().dropped_reports, dropped);
        net.administration.handle_unsent(&unsent);
        assert_eq!(net.administration.counters().dropped_reports, dropped, "it was over before");
    }
    appear(&mut net, 4);
    assert_eq!(reports(&mut net).len(), 1);
}

#[test]
fn removed_port_loses_its_inform_info_subscriptions() {
    let mut net = Net::new("switch:3", 0);
    assert_eq!(subscribe(&mut net, 2, &everything()), 0);
    disappear(&mut net, 2);
    appear(&mut net, 4);
    assert_eq!(reports(&mut net), []);
    net.administration.config.subscriptions_of_port = 1;
    assert_eq!(subscribe(&mut net, 2, &to_trap(64)), 0);
    assert_eq!(subscribe(&mut net, 2, &to_trap(65)), status::SA_NO_RESOURCES);
}

const GUIDS: u16 = GuidInfoRecord::ATTR_ID;
const BLOCK: GuidInfoRecordMask = GuidInfoRecordMask::LID.union(GuidInfoRecordMask::BLOCK_NUM);

fn change(
    net: &mut Net,
    method: Method,
    mask: GuidInfoRecordMask,
    record: &GuidInfoRecord,
) -> Answer<GuidInfoRecord> {
    let answer = net.ask(method, GUIDS, mask.bits(), record);
    for (port, index, guid) in core::mem::take(&mut net.out.aliases) {
        net.model.set_alias(port, index, guid);
    }
    answer
}

#[test]
fn guid_info_record_set_assigns_or_takes_alias_guids_and_delete_frees_them() {
    let mut net = Net::new("switch:3", 0);
    let mut wanted = GuidInfoRecord { lid: Lid(2), ..GuidInfoRecord::default() };
    wanted.guid_info.guids[2] = Guid(0x77);
    let mask = BLOCK | GuidInfoRecordMask::GUID1 | GuidInfoRecordMask::GUID2;
    let set = change(&mut net, Method::SET, mask, &wanted);
    let guids = set.records[0].guid_info.guids;
    assert_eq!(guids[..4], [gid(&net, 2).guid(), Guid(0x0014_0500_0000_0001), Guid(0x77), Guid(0)]);
    assert_eq!(net.table(GUIDS, BLOCK.bits(), &wanted)[0].guid_info.guids, guids);
    let place = net.model.by_lid(Lid(2));
    assert_eq!(net.model.by_port_guid(Guid(0x77)), place);
    wanted.block_num = 3;
    let other = change(&mut net, Method::SET, BLOCK | GuidInfoRecordMask::GUID0, &wanted);
    assert_eq!(other.records[0].guid_info.guids[0], Guid(0x0014_0500_0000_0002));
    wanted.block_num = 0;
    let gone = change(&mut net, Method::DELETE, BLOCK | GuidInfoRecordMask::GUID2, &wanted);
    assert_eq!(gone.records[0].guid_info.guids[1..3], [guids[1], Guid(0)]);
    assert_eq!(net.model.by_port_guid(Guid(0x77)), None);
}

#[test]
fn alias_guid_moves_within_a_block_and_is_unique_across_blocks() {
    let mut net = Net::new("switch:3", 0);
    let place = net.model.by_lid(Lid(2)).unwrap();
    let [one, two] = [GuidInfoRecordMask::GUID1, GuidInfoRecordMask::GUID2];
    let wanted = |block_num, guids: [u64; 3]| {
        let mut record = GuidInfoRecord { lid: Lid(2), block_num, ..GuidInfoRecord::default() };
        record.guid_info.guids[..3].copy_from_slice(&guids.map(Guid));
        record
    };
    let mut set = |mask, block_num, guids| {
        let answer = change(&mut net, Method::SET, BLOCK | mask, &wanted(block_num, guids));
        let known = [0xa, 0xb, 0xc].map(|guid| net.model.by_port_guid(Guid(guid)) == Some(place));
        (answer.status, known, net.model.port(place).unwrap().aliases.clone())
    };
    let aliases = |all: &[u64]| all.iter().copied().map(Guid).collect::<Vec<_>>();
    let both = one | two;
    assert_eq!(set(both, 0, [0, 0xa, 0xb]), (0, [true, true, false], aliases(&[0xa, 0xb])));
    assert_eq!(set(both, 0, [0, 0xb, 0xc]), (0, [false, true, true], aliases(&[0xb, 0xc])));
    assert_eq!(set(both, 0, [0, 0xc, 0xb]), (0, [false, true, true], aliases(&[0xc, 0xb])));
    let as_before = (status::SA_REQUEST_INVALID, [false, true, true], aliases(&[0xc, 0xb]));
    assert_eq!(set(one, 0, [0, 0xb, 0]), as_before, "the next one is this already");
    assert_eq!(set(two, 1, [0, 0, 0xc]), as_before, "another block has it");
    // An assigned GUID differs from every requested one.
    let next = 0x0014_0500_0000_0001;
    let (status, _, all) = set(both, 0, [0, 0, next]);
    assert_eq!((status, all), (0, aliases(&[next + 1, next])));
}

#[test]
fn invalid_guid_info_record_set_is_refused_and_changes_nothing() {
    let mut net = Net::new("switch:3", 0);
    let wanted = GuidInfoRecord { lid: Lid(2), ..GuidInfoRecord::default() };
    let block = |block_num| GuidInfoRecord { block_num, ..wanted };
    let mut taken = wanted;
    taken.guid_info.guids[3] = gid(&net, 3).guid();
    let mut twice = wanted;
    twice.guid_info.guids[1..3].copy_from_slice(&[Guid(5); 2]);
    let [zero, one, two, three] = [
        GuidInfoRecordMask::GUID0,
        GuidInfoRecordMask::GUID1,
        GuidInfoRecordMask::GUID2,
        GuidInfoRecordMask::GUID3,
    ];
    let cases = [
        (GuidInfoRecordMask::LID | one, wanted, status::SA_INSUFFICIENT_COMPONENTS),
        (GuidInfoRecordMask::BLOCK_NUM | one, wanted, status::SA_INSUFFICIENT_COMPONENTS),
        (BLOCK | zero, wanted, status::SA_REQUEST_INVALID),
        (BLOCK | one, block(4), status::SA_NO_RECORDS),
        (BLOCK | one, GuidInfoRecord { lid: Lid(99), ..wanted }, status::SA_NO_RECORDS),
        (BLOCK | one, GuidInfoRecord { lid: Lid(3), ..wanted }, status::SA_DENIED),
        (BLOCK | one | three, taken, status::SA_REQUEST_INVALID),
        (BLOCK | one | two, twice, status::SA_REQUEST_INVALID),
    ];
    for (mask, record, expected) in cases {
        assert_eq!(change(&mut net, Method::SET, mask, &record).status, expected, "{mask}");
    }
    let place = net.model.by_lid(Lid(2)).unwrap();
    assert_eq!(net.model.port(place).unwrap().aliases, []);
    net.key = SmKey(1);
    let trusted = GuidInfoRecord { lid: Lid(3), ..wanted };
    assert_eq!(change(&mut net, Method::SET, BLOCK | one, &trusted).status, 0);
}

/// No port is in this partition.
#[test]
fn fruitless_path_queries_are_answered_busy_after_a_while() {
    for all_at_once in [false, true] {
        let mut net = Net::new("switch:20", 0);
        net.administration.config.table_bytes = if all_at_once { 256 } else { 8192 };
        let none = PathRecord { pkey: Pkey(0x8123), ..PathRecord::default() };
        let mask = PathRecordMask::PKEY.bits();
        let mut ask = || net.ask(Method::GET_TABLE, PathRecord::ATTR_ID, mask, &none).status;
        if all_at_once {
            assert_eq!(ask(), status::SA_NO_RESOURCES);
            continue;
        }
        assert_eq!(ask(), 0);
        assert!((0..20).any(|_| ask() == status::BUSY));
    }
}

#[test]
fn requester_of_many_tables_gets_busy_while_others_are_answered() {
    let mut net = Net::new("switch:20", 0);
    net.administration.config.table_bytes = 8192;
    let (id, all) = (PortInfoRecord::ATTR_ID, PortInfoRecord::default());
    let statuses: Vec<_> = (0..8).map(|_| net.ask(Method::GET_TABLE, id, 0, &all).status).collect();
    assert_eq!(statuses[0], 0);
    assert_eq!(statuses[7], status::BUSY);
    assert!(net.administration.counters().busy > 0);
    net.asks = Lid(3);
    assert_eq!(net.ask(Method::GET_TABLE, id, 0, &all).status, 0);
    net.asks = Lid(2);
    pass(&mut net, Duration::from_secs(2));
    assert_eq!(net.ask(Method::GET_TABLE, id, 0, &all).status, 0);
}
