//! Which subscriptions are accepted, and the security rules of their Reports and records.

use rdmux_wire::Qpn;
use rdmux_wire::sa::{InformInfo, InformInfoRecord};
use rdmux_wire::sm::{Notice, Producer, Trap};

use super::registrations::{everything, reports, subscribe, to_trap};
use super::*;

#[test]
fn repeated_subscription_with_the_sa_key_becomes_trusted_and_stays_it() {
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
