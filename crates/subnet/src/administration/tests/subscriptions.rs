//! Which subscriptions are accepted, and the security rules of their Reports and records.

use rdmux_wire::sa::{InformInfo, InformInfoRecord};
use rdmux_wire::sm::{LocalChange, Notice, Producer, Trap};
use rdmux_wire::{Pkey, Qpn};

use super::registrations::{everything, gid, reports, subscribe, to_trap};
use super::*;

/// The number of Reports that can be unanswered at a time.
const REPORT_TIDS: usize = 0x1_0000;

#[test]
fn repeated_subscription_with_the_sa_key_becomes_and_stays_trusted() {
    let mut net = Net::new("switch:3", 0);
    let security = Notice::new(&Trap::Pkey(Default::default()), Producer::CA, Lid(4));
    let is_reported = |net: &mut Net| {
        net.administration.handle_notice(net.now, &net.model, &security, &mut net.out);
        !reports(net).is_empty()
    };
    for (key, reported) in [(0, false), (1, true), (0, true)] {
        net.key = SmKey(key);
        assert_eq!(subscribe(&mut net, 2, &everything()), 0);
        assert_eq!(is_reported(&mut net), reported, "SA key {key}");
    }
}

#[test]
fn security_trap_subscription_without_the_sa_key_is_refused_even_if_it_exists() {
    let mut net = Net::new("switch:3", 0);
    net.key = SmKey(1);
    assert_eq!(subscribe(&mut net, 2, &to_trap(257)), 0);
    net.key = SmKey(0);
    assert_eq!(subscribe(&mut net, 2, &to_trap(257)), status::SA_REQUEST_INVALID);
    let end = InformInfo { subscribe: 0, qpn: Qpn::QP1, ..to_trap(257) };
    assert_eq!(subscribe(&mut net, 2, &end), status::SA_REQUEST_INVALID);
    net.key = SmKey(1);
    assert_eq!(subscribe(&mut net, 2, &end), 0);
}

#[test]
fn vendor_notice_with_the_number_of_a_security_trap_is_reported_and_listed_to_all() {
    let mut net = Net::new("switch:3", 0);
    let what = InformInfo { is_generic: 0, ..to_trap(257) };
    assert_eq!(subscribe(&mut net, 2, &what), 0);
    let trap = Trap::Pkey(Default::default());
    let notice = Notice { is_generic: false, ..Notice::new(&trap, Producer::CA, Lid(4)) };
    net.administration.handle_notice(net.now, &net.model, &notice, &mut net.out);
    assert!(reports(&mut net).iter().map(|(lid, _)| lid.0).eq([2]));
    net.asks = Lid(3);
    assert_eq!(net.table(InformInfoRecord::ATTR_ID, 0, &InformInfoRecord::default()).len(), 1);
}

#[test]
fn subscription_about_a_port_needs_a_common_partition_whether_the_port_exists_or_not() {
    let mut net = Net::new("switch:3", 0);
    let hidden = net.model.by_lid(Lid(4)).unwrap();
    net.model.port_mut(hidden).unwrap().pkeys = [Pkey(0x8001)].into();
    let invalid = status::SA_REQUEST_INVALID;
    for (asks, about, expected) in [(2, 3, 0), (2, 4, invalid), (4, 4, 0), (3, 2, 0)] {
        let by_lid = InformInfo { lid_range_begin: Lid(about), ..everything() };
        assert_eq!(subscribe(&mut net, asks, &by_lid), expected, "{asks} {about}");
        let by_gid = InformInfo { gid: gid(&net, about), ..everything() };
        assert_eq!(subscribe(&mut net, asks, &by_gid), expected, "{asks} {about}");
    }
    let unknown = InformInfo { gid: Gid([1; 16]), ..everything() };
    assert_eq!(subscribe(&mut net, 2, &unknown), invalid);
    // A port that was in the partition at first.
    net.model.port_mut(net.model.by_lid(Lid(3)).unwrap()).unwrap().pkeys = [Pkey(0x8001)].into();
    let again = InformInfo { lid_range_begin: Lid(3), ..everything() };
    assert_eq!(subscribe(&mut net, 2, &again), invalid);
    let end = InformInfo { subscribe: 0, qpn: Qpn::QP1, ..again };
    assert_eq!(subscribe(&mut net, 2, &end), 0);
}

#[test]
fn subscription_about_a_range_of_lids_needs_access_to_each_port_and_skips_unused_lids() {
    let mut net = Net::new("switch:4", 1);
    let (asks, used) = (net.asks.0, net.ports().iter().map(|(_, lid)| lid.0).collect::<Vec<_>>());
    assert_eq!(used, [2, 4, 6, 8, 10], "switch, requester, and three others");
    let invalid = status::SA_REQUEST_INVALID;
    net.model.port_mut(net.model.by_lid(Lid(10)).unwrap()).unwrap().pkeys = [Pkey(0x8001)].into();
    for (first, last, expected) in [
        (0, 0, 0),
        (1, 4, 0),
        (3, 3, 0),
        (4, 9, 0),
        (4, 2, 0),
        (4, 10, invalid),
        (5, 0xfffe, invalid),
        (0, 0xffff, invalid),
        (11, 0, invalid),
        (12, 0xfffe, invalid),
        (0xffff, 0, 0),
        (0xffff, 10, 0),
    ] {
        let (lid_range_begin, lid_range_end) = (Lid(first), Lid(last));
        let what = InformInfo { lid_range_begin, lid_range_end, ..everything() };
        assert_eq!(subscribe(&mut net, asks, &what), expected, "{first} to {last}");
    }
}

#[test]
fn queue_pair_of_a_subscription_is_shown_only_with_the_sa_key() {
    let mut net = Net::new("switch:3", 0);
    assert_eq!(subscribe(&mut net, 2, &everything()), 0);
    for (asks, key, qpn) in [(3, 0, Qpn::QP0), (2, 0, Qpn::QP0), (3, 1, Qpn::QP1)] {
        (net.asks, net.key) = (Lid(asks), SmKey(key));
        let seen = net.table(InformInfoRecord::ATTR_ID, 0, &InformInfoRecord::default());
        assert_eq!(seen.iter().map(|record| record.inform_info.qpn).collect::<Vec<_>>(), [qpn]);
    }
}

#[test]
fn ports_that_answer_no_report_leave_room_for_another_port() {
    let mut net = Net::new("fattree:1100", 0);
    let lids: Vec<_> = net.ports().iter().map(|(_, lid)| lid.0).collect();
    let (&last, others) = lids.split_last().expect("ports");
    assert!(others.len() > 1024);
    for &lid in others {
        assert_eq!(subscribe(&mut net, lid, &to_trap(144)), 0);
    }
    let raise = |net: &mut Net, number| {
        let change = LocalChange { lid: Lid(last), ..LocalChange::default() };
        let notice = Notice::new(&Trap::Local(change), Producer::CA, Lid(last));
        let notice = Notice { trap_number: number, ..notice };
        net.administration.handle_notice(net.now, &net.model, &notice, &mut net.out);
        core::mem::take(&mut net.out.sent).len()
    };
    let sent: usize = (0..64).map(|_| raise(&mut net, 144)).sum();
    assert!((16 * others.len()..REPORT_TIDS).contains(&sent), "{sent}");
    assert_eq!(subscribe(&mut net, last, &to_trap(145)), 0);
    assert_eq!((0..16).map(|_| raise(&mut net, 145)).sum::<usize>(), 16);
}
