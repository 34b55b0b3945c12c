//! The M_Key, and alias GUIDs that ports have lost.

use std::collections::BTreeSet;
use std::time::Duration;

use rdmux_subnet::MadPacket;
use rdmux_subnet::manager::{Config, Event};
use rdmux_subnet::partitions::Partitions;
use rdmux_subnet::service::Service;
use rdmux_subnet::topology::PortRef;
use rdmux_subnet::umad::{Errno, Unsent, UserAddress, UserMad};
use rdmux_wire::mad::{MadHeader, Method};
use rdmux_wire::sa::{GuidInfoRecord, GuidInfoRecordMask, SaMad};
use rdmux_wire::sm::{GidEvent, GuidInfo, NodeInfo, Notice, PortInfo, Producer, SmInfo, Trap};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Mkey};

use crate::net::{Net, config, port};
use crate::partitions::tell;

const QUIET: Duration = Duration::from_secs(60);

const KEY: Mkey = Mkey(0xfeed_0000_0000_0042);

fn keyed() -> Config {
    Config { mkey: KEY, mkey_protect: 2, mkey_lease: 30, ..config() }
}

fn assert_keyed(net: &Net) {
    for end in net.ends() {
        let info = net.subnet.port(end).expect("a port").info();
        let key = (info.mkey, info.mkey_protect_bits, info.mkey_lease_period);
        assert_eq!(key, (KEY, 2, 30), "{end}");
    }
    let last = net.managers.last().expect("one").1.status().last.expect("a sweep");
    assert_eq!(last.problem_count, 0, "{:?}", last.problems);
}

#[test]
fn ports_are_protected_and_the_manager_shows_the_key() {
    let mut net = Net::up("fattree:40", keyed());
    net.pass(QUIET);
    net.assert_configured();
    assert_keyed(&net);
    let mut question = Smp::directed(Method::GET, NodeInfo::ATTR_ID, 0, &[1]);
    assert!(net.ask(port(0, 0), question).is_none(), "without the key");
    question.mkey = KEY;
    assert!(net.ask(port(0, 0), question).is_some());
    net.sets = 0;
    net.with(0, |manager, now, _| manager.sweep(now));
    net.pass(QUIET);
    assert_eq!(net.sets, 0);
    // A switch that was reset has no key, but a trap is repressed with the key.
    net.change(|s, now, inbox| s.reset_switch(now, rdmux_subnet::NodeId(2), inbox)).expect("one");
    net.pass(QUIET);
    assert_keyed(&net);
}

#[test]
fn programs_do_not_see_the_mkey_in_what_they_get() {
    let mut net = Net::up("switch:2", keyed());
    net.pass(QUIET);
    let at = port(1, 1);
    net.subnet.set_attached(at, true);
    let [own, manager] = [at, port(0, 0)].map(|at| net.subnet.port(at).expect("a port").lid());
    let notice = Notice::new(&Trap::GidInService(GidEvent::default()), Producer::CA, own);
    let mut trap = Smp::lid_routed(Method::TRAP, Notice::ATTR_ID, 0);
    trap.header.tid = 0x77;
    trap.set_attribute(&notice.into());
    let trap = MadPacket::smp(own, manager, 0, Box::new(trap.to_bytes()));
    net.change(|s, now, inbox| s.send(now, at, trap, inbox));
    // The manager asks ports with IsSM for SMInfo.
    net.change(|s, now, inbox| s.set_is_sm(now, at, true, inbox));
    net.pass(QUIET);
    let seen = net.strays.iter().filter(|(to, _)| *to == at);
    let seen = seen.map(|(_, packet)| Smp::parse(&packet.mad[..]).expect("an SMP"));
    let seen: Vec<_> = seen.map(|smp| (smp.header.method, smp.header.attr_id, smp.mkey)).collect();
    let expected = [(Method::TRAP_REPRESS, Notice::ATTR_ID), (Method::GET, SmInfo::ATTR_ID)];
    for (method, attr_id) in expected {
        assert!(seen.contains(&(method, attr_id, Mkey(0))), "{seen:?}");
    }
    assert!(seen.iter().all(|(_, _, key)| *key == Mkey(0)), "{seen:?}");
}

#[test]
fn restarted_sm_with_the_mkey_manages_protected_ports() {
    let mut net = Net::up("fattree:40", keyed());
    net.pass(QUIET);
    net.kill(0);
    let lids = net.managers[0].1.lids().clone();
    net.start(port(0, 0), Config { lids, ..keyed() });
    net.pass(QUIET);
    assert!(net.managers[1].1.is_up());
    net.assert_configured();
    assert_keyed(&net);
}

#[test]
fn zero_mkey_sets_no_protection_and_no_lease() {
    let mut net = Net::up("switch:2", Config { mkey: Mkey(0), ..keyed() });
    let smp = Smp::directed(Method::GET, PortInfo::ATTR_ID, 0, &[1]);
    let info = PortInfo::from_bytes(&net.ask(port(0, 0), smp).expect("an answer").data);
    assert_eq!((info.mkey, info.mkey_protect_bits, info.mkey_lease_period), (Mkey(0), 0, 0));
}

/// Returns the GUIDs of a block of the port at the end of a route.
fn guids(net: &mut Net, route: &[u8], block: u32) -> [Guid; 8] {
    let smp = Smp::directed(Method::GET, GuidInfo::ATTR_ID, block, route);
    GuidInfo::from_bytes(&net.ask(port(0, 0), smp).expect("an answer").data).guids
}

#[test]
fn aliases_that_a_port_has_lost_are_set_again_by_the_next_sweep() {
    let mut net = Net::up("switch:3", config());
    net.pass(QUIET);
    let guid = net.subnet.port(port(2, 1)).expect("a port").guid();
    let at: PortRef = net.manager().model().by_port_guid(guid).expect("known");
    for (index, alias) in [(3, 0x77), (9, 0x78)] {
        let request = net.manager().set_alias(at, index, Guid(alias)).expect("a request");
        assert_eq!(net.ask(port(0, 0), request).expect("an answer").status(), 0);
    }
    let expected = (Guid(0x77), Guid(0x78), guid);
    let now =
        |net: &mut Net| (guids(net, &[2], 0)[3], guids(net, &[2], 1)[1], guids(net, &[2], 0)[0]);
    assert_eq!(now(&mut net), expected);
    net.sets = 0;
    net.with(0, |manager, now, _| manager.sweep(now));
    assert_eq!(net.sets, 0, "they are there");
    for block in [0, 1] {
        let mut smp = Smp::directed(Method::SET, GuidInfo::ATTR_ID, block, &[2]);
        smp.set_attribute(&GuidInfo { guids: [Guid(0); 8] }.into());
        net.ask(port(0, 0), smp).expect("an answer");
    }
    assert_eq!(now(&mut net), (Guid(0), Guid(0), guid));
    net.with(0, |manager, now, _| manager.sweep(now));
    net.pass(QUIET);
    assert_eq!(now(&mut net), expected);
    assert_eq!(net.sets, 2);
    assert_eq!(net.manager().model().by_port_guid(Guid(0x78)), Some(at));
}

/// Asks administration to set an alias of a port. Returns the Set for the port, which comes before the answer.
fn ask_alias(net: &mut Net, service: &mut Service, index: usize, alias: Guid) -> UserMad {
    let lid = net.subnet.port(port(2, 1)).expect("a port").lid();
    let mut record = GuidInfoRecord { lid, ..GuidInfoRecord::default() };
    record.guid_info.guids[index] = alias;
    let data = record.to_bytes();
    let mut mad = SaMad::new(Method::SET, GuidInfoRecord::ATTR_ID, &data);
    let block = GuidInfoRecordMask::LID | GuidInfoRecordMask::BLOCK_NUM;
    mad.sa.component_mask = block.bits() | GuidInfoRecordMask::GUID0.bits() << index;
    let (address, data) = (UserAddress::gsi(lid), mad.to_bytes().to_vec());
    let mad = UserMad { agent: 0, status: 0, timeout_ms: 0, retries: 0, address, data };
    service.handle_mad(net.now, net.manager(), &mad);
    let set = service.next_mad().expect("a Set");
    assert_eq!(set.agent, 1);
    let answer = service.next_mad().expect("an answer");
    assert_eq!(MadHeader::parse(&answer.data).expect("a MAD").status, 0);
    set
}

#[test]
fn set_of_an_alias_that_fails_is_repeated_by_a_sweep_at_once() {
    let mut net = Net::up("switch:3", config());
    net.pass(QUIET);
    let mut service = Service::new(Default::default(), Partitions::default(), 1);
    tell(&mut net, &mut service);
    let with_status = |set: &UserMad, status: u16| {
        let mut answer = Smp::parse(&set.data[..]).expect("an SMP");
        answer.header.method = Method::GET_RESP;
        answer.set_status(status);
        UserMad { data: answer.to_bytes().to_vec(), ..set.clone() }
    };
    let sweeps = |net: &mut Net| net.manager().status().sweeps;
    let mut tids = BTreeSet::new();
    for (index, alias) in (1..).zip([0x71, 0x72, 0x73, 0x74].map(Guid)) {
        let set = ask_alias(&mut net, &mut service, index, alias);
        let tid = MadHeader::parse(&set.data).expect("a MAD").tid;
        assert!(tids.insert(tid), "the user MAD device refuses a transaction ID that is in use");
        let before = sweeps(&mut net);
        let outcome = match index {
            1 => UserMad { status: UserMad::TIMED_OUT, ..set },
            2 => with_status(&set, 0x1c),
            3 => Unsent::of(&set).expect("a MAD").record(Errno::Again),
            _ => with_status(&set, 0),
        };
        assert!(Service::is_asked(&outcome));
        match index {
            3 => service.handle_unsent(&outcome),
            _ => service.handle_mad(net.now, net.manager(), &outcome),
        }
        let is_due = service.next_timeout().is_some_and(|due| due <= net.now);
        assert_eq!(is_due, index < 4);
        let now = net.now;
        service.handle_timeout(now, net.manager());
        net.settle();
        if index < 4 {
            assert_eq!(guids(&mut net, &[2], 0)[index], alias);
        } else {
            assert_eq!(sweeps(&mut net), before, "it has succeeded");
        }
    }
}

#[test]
fn port_regains_its_guid_that_became_another_ports_alias_while_unplugged() {
    let mut net = Net::up("switch:3", config());
    net.pass(QUIET);
    let guid = |net: &Net, at| net.subnet.port(at).expect("a port").guid();
    let (low, high) = (guid(&net, port(1, 1)), guid(&net, port(3, 1)));
    let cable = |net: &mut Net, up| {
        net.out.events.clear();
        net.change(|s, now, inbox| s.set_cable(now, port(1, 1), up, inbox)).expect("a cable");
        net.pass(QUIET);
    };
    cable(&mut net, false);
    assert!(net.out.events.contains(&(0, Event::PortGone(low))));
    let at = net.manager().model().by_port_guid(high).expect("known");
    for (index, alias) in [(1, low), (2, Guid(0x77))] {
        let request = net.manager().set_alias(at, index, alias).expect("a request");
        assert_eq!(net.ask(port(0, 0), request).expect("an answer").status(), 0);
    }
    cable(&mut net, true);
    assert!(net.out.events.contains(&(0, Event::PortAppeared(low))));
    let model = net.manager().model();
    let [first, last] = [low, high].map(|guid| model.by_port_guid(guid).expect("known"));
    assert_ne!(first, last);
    assert_eq!(model.port(first).expect("known").aliases, []);
    assert_eq!(model.by_port_guid(Guid(0x77)), Some(last));
    net.with(0, |manager, now, _| manager.sweep(now));
    net.pass(QUIET);
    assert_eq!(guids(&mut net, &[1], 0)[..3], [low, Guid(0), Guid(0)]);
    assert_eq!(guids(&mut net, &[3], 0)[..3], [high, Guid(0), Guid(0x77)]);
    // The port is not mistaken for the other one when it disappears again.
    cable(&mut net, false);
    assert!(net.out.events.contains(&(0, Event::PortGone(low))));
}
