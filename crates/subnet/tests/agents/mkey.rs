//! M_Keys: case 8.

use std::time::Duration;

use rdmux_subnet::DropReason;
use rdmux_wire::mad::{Method, status};
use rdmux_wire::sm::{Attribute, NodeInfo, PortInfo, Trap};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Lid, Mkey};

use crate::manager::Manager;
use crate::net::{Net, get, port, set};

const KEY: Mkey = Mkey(0x1234_5678);
const WRONG: Mkey = Mkey(0x1234_5679);

/// Protects adapter 2 of a switch with the key, at a level of protection and with a lease of 15 seconds.
fn protected(level: u8) -> Net {
    let mut net = Net::of("switch:2");
    Manager::bring_up(&mut net, port(1, 1)).expect("a subnet");
    let changed = net.change(port(1, 1), &[1, 2], 1, |info| {
        (info.mkey, info.mkey_protect_bits, info.mkey_lease_period) = (KEY, level, 15);
    });
    assert_eq!(changed.expect("an answer").0, status::OK);
    net.inbox.packets.clear();
    net
}

fn ask(net: &mut Net, mut smp: Smp, key: Mkey) -> Option<PortInfo> {
    smp.mkey = key;
    let answer = net.dr(port(1, 1), &[1, 2], &smp)?;
    match answer.attribute()? {
        Attribute::PortInfo(info) => Some(info),
        other => panic!("{other}"),
    }
}

fn question() -> Smp {
    get(PortInfo::ATTR_ID, 1)
}

/// Returns a Set that changes nothing: the key stays.
fn command(level: u8) -> Smp {
    let info = PortInfo {
        mkey: KEY,
        mkey_protect_bits: level,
        mkey_lease_period: 15,
        lid: Lid(3),
        sm_lid: Lid(1),
        subnet_timeout: 0x12,
        mkey_violations: 1,
        ..PortInfo::default()
    };
    set(info, 1)
}

#[test]
fn without_the_key_gets_are_answered_at_levels_0_and_1_only() {
    for (level, answered, shown) in
        [(0, true, KEY), (1, true, Mkey(0)), (2, false, Mkey(0)), (3, false, Mkey(0))]
    {
        let mut net = protected(level);
        for key in [Mkey(0), WRONG] {
            let info = ask(&mut net, question(), key);
            assert_eq!(info.map(|i| i.mkey), answered.then_some(shown), "level {level}");
        }
        assert_eq!(ask(&mut net, question(), KEY).map(|i| i.mkey), Some(KEY), "level {level}");
        let other = net.dr(port(1, 1), &[1, 2], &get(NodeInfo::ATTR_ID, 0));
        assert_eq!(other.is_some(), answered, "level {level}");
    }
}

#[test]
fn sets_without_the_key_are_silently_dropped_at_every_level() {
    for level in 0..4 {
        let mut net = protected(level);
        assert_eq!(ask(&mut net, command(level), WRONG), None, "level {level}");
        let far = net.subnet.port(port(2, 1)).expect("a port");
        assert_eq!(far.info().mkey_violations, 1);
        assert_eq!(far.drops(DropReason::WrongMkey), 1);
        assert!(ask(&mut net, command(level), KEY).is_some(), "level {level}");
    }
}

#[test]
fn get_with_wrong_mkey_is_a_violation_at_level_2_and_not_at_level_1() {
    let mut net = protected(1);
    ask(&mut net, question(), WRONG);
    assert_eq!(net.subnet.port(port(2, 1)).expect("a port").info().mkey_violations, 0);
    let mut net = protected(2);
    ask(&mut net, question(), WRONG);
    assert_eq!(net.subnet.port(port(2, 1)).expect("a port").info().mkey_violations, 1);
}

#[test]
fn the_lease_ends_the_protection_unless_the_key_is_shown() {
    let mut net = protected(2);
    ask(&mut net, question(), WRONG);
    net.pass(Duration::from_secs(14));
    assert_eq!(ask(&mut net, question(), WRONG), None, "it does not start again");
    net.pass(Duration::from_secs(2));
    let info = ask(&mut net, question(), WRONG).expect("level 0");
    assert_eq!((info.mkey_protect_bits, info.mkey), (0, KEY), "the key is still there");

    let mut net = protected(2);
    ask(&mut net, question(), WRONG);
    net.pass(Duration::from_secs(14));
    assert!(ask(&mut net, question(), KEY).is_some());
    net.pass(Duration::from_secs(60));
    assert_eq!(ask(&mut net, question(), WRONG), None);
}

#[test]
fn mkey_lease_period_zero_never_expires() {
    let mut net = protected(2);
    let mut smp = command(2);
    let Some(Attribute::PortInfo(info)) = smp.attribute() else { panic!() };
    smp.set_attribute(&PortInfo { mkey_lease_period: 0, ..info }.into());
    ask(&mut net, smp, KEY).expect("an answer");
    ask(&mut net, question(), WRONG);
    net.pass(Duration::from_secs(1_000_000));
    assert_eq!(ask(&mut net, question(), WRONG), None);
}

#[test]
fn a_violation_is_told_to_the_manager() {
    let mut net = protected(2);
    net.inbox.packets.clear();
    let mut smp = set(PortInfo::default(), 1);
    smp.mkey = WRONG;
    assert_eq!(net.dr(port(1, 1), &[1, 2], &smp), None);
    let (at, packet, trap) = net.take_smps().pop().expect("a trap");
    assert_eq!((at, packet.dlid, trap.header.method), (port(1, 1), Lid(1), Method::TRAP));
    let Some(Attribute::Notice(notice)) = trap.attribute() else { panic!("{trap}") };
    let Some(Trap::Mkey(bad)) = notice.trap() else { panic!("{notice}") };
    assert_eq!((bad.mkey, bad.method, bad.attribute_id), (WRONG, Method::SET.0, PortInfo::ATTR_ID));
    assert_eq!(
        (bad.dr_notice, bad.dr_hop_count, bad.return_path[..2].to_vec()),
        (true, 2, vec![1, 1])
    );
}

#[test]
fn the_key_of_port_0_protects_the_whole_switch() {
    let mut net = Net::of("switch:2");
    net.change(port(1, 1), &[1], 0, |info| (info.mkey, info.mkey_protect_bits) = (KEY, 3));
    for (attr_id, modifier) in [(0x12, 0), (0x15, 2), (0x19, 0), (0x11, 0)] {
        let mut smp = get(attr_id, modifier);
        assert_eq!(net.dr(port(1, 1), &[1], &smp), None, "{attr_id:#x}");
        smp.mkey = KEY;
        assert!(net.dr(port(1, 1), &[1], &smp).is_some(), "{attr_id:#x}");
    }
    assert!(net.dr(port(1, 1), &[1, 2], &get(0x11, 0)).is_some(), "packets cross it");
}
