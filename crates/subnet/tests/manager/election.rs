//! Several managers: one is the master, and when it stops another one takes over.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use rdmux_subnet::manager::{Config, Event, Manager};
use rdmux_subnet::rmpp::Mad;
use rdmux_subnet::umad::UserAddress;
use rdmux_subnet::{MadPacket, PortEvent, Time};
use rdmux_wire::mad::{MadHeader, Method};
use rdmux_wire::sm::{GuidInfo, SmInfo, SmState};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid, SmKey};

use crate::net::{Net, Way, config, port};

const MINUTE: Duration = Duration::from_secs(60);

fn with_priority(priority: u8) -> Config {
    Config { priority, ..config() }
}

fn states(net: &Net) -> Vec<SmState> {
    (0..net.managers.len()).map(|index| net.state(index)).collect()
}

#[test]
fn a_better_newcomer_gets_the_subnet_by_handover() {
    let mut net = Net::up("switch:4", with_priority(1));
    net.start(port(2, 1), with_priority(5));
    net.pass(MINUTE);
    assert_eq!(states(&net), [SmState::STANDBY, SmState::MASTER]);
    let master = net.managers[1].1.status().guid;
    assert_eq!(net.managers[0].1.status().master, Some(master));
    let lid = net.subnet.port(port(2, 1)).expect("a port").lid();
    for view in net.subnet.ports().filter(|view| view.lid().0 != 0) {
        assert_eq!(view.sm_lid(), lid, "{}", view.id());
    }
    net.assert_configured();
    net.assert_routed();
}

/// OpenSM ignores a manager with another key, and would become a second master.
#[test]
fn sm_info_has_the_key_that_opensm_has_by_default() {
    let mut net = Net::up("switch:4", with_priority(1));
    let keys: Rc<RefCell<Vec<SmKey>>> = Rc::default();
    let seen = Rc::clone(&keys);
    net.meddler = Box::new(move |_, way, mad| {
        let smp = Smp::parse(mad).expect("an SMP");
        let answer = smp.header.method == Method::GET_RESP && smp.header.attr_id == SmInfo::ATTR_ID;
        if way == Way::ToManager && answer {
            seen.borrow_mut().push(SmInfo::parse(&smp.data[..]).expect("SMInfo").sm_key);
        }
        true
    });
    net.start(port(2, 1), with_priority(0));
    net.pass(MINUTE);
    assert!(!keys.borrow().is_empty());
    assert!(keys.borrow().iter().all(|key| *key == SmKey(1)), "{:?}", keys.borrow());
}

#[test]
fn a_worse_newcomer_stands_by_and_nothing_changes() {
    let mut net = Net::up("switch:4", with_priority(5));
    net.pass(MINUTE);
    net.sets = 0;
    net.start(port(2, 1), with_priority(1));
    net.pass(MINUTE);
    assert_eq!(states(&net), [SmState::MASTER, SmState::STANDBY]);
    assert_eq!(net.sets, 0);
}

#[test]
fn of_equal_priorities_the_lower_guid_wins() {
    let mut net = Net::of("switch:4");
    net.start(port(3, 1), config());
    net.start(port(2, 1), config());
    net.pass(MINUTE);
    let guid = |at| net.subnet.port(at).expect("a port").guid();
    assert!(guid(port(2, 1)) < guid(port(3, 1)));
    assert_eq!(states(&net), [SmState::STANDBY, SmState::MASTER]);
}

#[test]
fn a_standby_takes_over_from_a_dead_master_with_the_lids_that_ports_have() {
    let mut net = Net::up("fattree:40", with_priority(5));
    net.start(port(30, 1), with_priority(1));
    net.pass(MINUTE);
    let lids: Vec<_> = net.subnet.ports().map(|view| view.lid()).collect();
    net.kill(0);
    net.inbox.events.clear();
    net.pass(Duration::from_secs(39));
    assert_eq!(net.state(1), SmState::STANDBY, "three polls are not enough");
    net.pass(MINUTE);
    assert_eq!(net.state(1), SmState::MASTER);
    assert_eq!(net.subnet.ports().map(|view| view.lid()).collect::<Vec<_>>(), lids);
    let asked = net.inbox.events.iter().filter(|(_, e)| *e == PortEvent::ClientReregister);
    assert_eq!(asked.count(), net.ends().len(), "all programs are asked to register again");
    net.assert_configured();
}

/// In the meantime another master has swapped the LIDs of two ports.
#[test]
fn a_master_that_was_a_standby_leaves_ports_the_lids_that_another_master_gave() {
    for is_killed in [false, true] {
        let mut net = Net::up("switch:4", with_priority(1));
        net.pass(MINUTE);
        let of = |net: &Net, at| net.subnet.port(at).expect("a port").lid();
        let all = |net: &Net| net.subnet.ports().map(|view| view.lid()).collect::<Vec<_>>();
        let (one, two) = (port(3, 1), port(4, 1));
        let (first, second) = (of(&net, one), of(&net, two));
        let guid = |at| net.subnet.port(at).expect("a port").guid();
        let lids = BTreeMap::from([(guid(one), second), (guid(two), first)]);
        // The first manager is stopped while the other one starts.
        net.dead[0] = true;
        net.start(port(2, 1), Config { lids, ..with_priority(9) });
        net.pass(MINUTE);
        net.dead[0] = false;
        net.pass(MINUTE);
        assert_eq!(states(&net), [SmState::STANDBY, SmState::MASTER]);
        assert_eq!([of(&net, one), of(&net, two)], [second, first]);
        let given = all(&net);
        match is_killed {
            true => net.kill(1),
            false => net.with(1, |manager, now, out| manager.leave(now, out)),
        }
        net.pass(MINUTE);
        assert_eq!(net.state(0), SmState::MASTER);
        assert_eq!(all(&net), given, "{is_killed}");
        net.assert_configured();
        net.assert_routed();
    }
}

#[test]
fn a_manager_that_is_handed_a_subnet_while_it_discovers_leaves_ports_their_lids() {
    let mut net = Net::up("switch:4", with_priority(1));
    net.pass(MINUTE);
    let all = |net: &Net| net.subnet.ports().map(|view| view.lid()).collect::<Vec<_>>();
    let given = all(&net);
    let view = |at| net.subnet.port(at).expect("a port");
    let (one, two) = (view(port(3, 1)), view(port(4, 1)));
    let lids = BTreeMap::from([(one.guid(), two.lid()), (two.guid(), one.lid())]);
    let mut smp = Smp::lid_routed(Method::SET, SmInfo::ATTR_ID, SmInfo::HANDOVER);
    smp.set_attribute(&SmInfo { state: SmState::MASTER, ..SmInfo::default() }.into());
    let from = UserAddress::smi(view(port(0, 0)).lid());
    net.dead[0] = true;
    let answers = Rc::new(Cell::new(0));
    let counted = Rc::clone(&answers);
    net.meddler = Box::new(move |_, way, _| {
        counted.set(counted.get() + u32::from(way == Way::ToManager));
        true
    });
    let at = port(2, 1);
    net.managers.push((at, Manager::new(Config { lids, ..with_priority(9) }, net.now)));
    net.dead.push(false);
    net.subnet.set_attached(at, true);
    net.settle_until(|| answers.get() >= 4);
    assert_eq!(net.state(1), SmState::DISCOVERING);
    net.with(1, |manager, now, out| manager.handle_mad(now, &from, &smp.to_bytes(), out));
    net.pass(MINUTE);
    assert_eq!(net.state(1), SmState::MASTER);
    assert_eq!(all(&net), given);
}

#[test]
fn a_priority_that_is_raised_makes_a_standby_the_master() {
    let mut net = Net::up("switch:4", with_priority(5));
    net.start(port(2, 1), with_priority(1));
    net.pass(MINUTE);
    net.with(1, |manager, now, _| manager.set_priority(now, 9));
    net.pass(MINUTE);
    assert_eq!(states(&net), [SmState::STANDBY, SmState::MASTER]);
    net.with(0, |manager, now, _| manager.set_priority(now, 12));
    net.pass(MINUTE);
    assert_eq!(states(&net), [SmState::MASTER, SmState::STANDBY]);
}

#[test]
fn two_masters_agree_on_one_once_sm_info_is_exchanged() {
    let mut net = Net::up("two", with_priority(1));
    net.meddler = Box::new(|_, way, mad| way == Way::ToManager || !is_sm_info(mad));
    net.start(port(1, 1), with_priority(5));
    net.pass(Duration::from_secs(3));
    net.meddler = Box::new(|_, _, _| true);
    net.pass(MINUTE);
    assert_eq!(states(&net), [SmState::STANDBY, SmState::MASTER]);
    net.assert_configured();
}

#[test]
fn a_master_that_leaves_hands_over_at_once() {
    let mut net = Net::up("switch:4", with_priority(5));
    net.start(port(2, 1), with_priority(1));
    net.pass(MINUTE);
    net.out.events.clear();
    net.with(0, |manager, now, out| manager.leave(now, out));
    assert_eq!(states(&net), [SmState::NOT_ACTIVE, SmState::MASTER]);
    assert!(net.out.events.contains(&(1, Event::State(SmState::MASTER))));
    net.assert_configured();
}

#[test]
fn a_manager_that_is_master_again_takes_the_alias_guids_that_ports_have() {
    for is_killed in [false, true] {
        let mut net = Net::up("switch:4", with_priority(5));
        net.pass(MINUTE);
        let guid = net.subnet.port(port(3, 1)).expect("a port").guid();
        let set = |net: &mut Net, index: usize, alias: u8, to: u64| {
            let (from, manager) = &mut net.managers[index];
            let (from, at) = (*from, manager.model().by_port_guid(guid).expect("known"));
            let request = manager.set_alias(at, alias, Guid(to)).expect("a request");
            assert_eq!(net.ask(from, request).expect("an answer").status(), 0);
        };
        let owners = |net: &Net, index: usize| {
            let model = net.managers[index].1.model();
            let at = model.by_port_guid(guid);
            [0x77, 0x78, 0x79, 0x7a].map(|alias| at == model.by_port_guid(Guid(alias)))
        };
        for (index, alias) in [(3, 0x77), (4, 0x78), (9, 0x79)] {
            set(&mut net, 0, index, alias);
        }
        net.start(port(2, 1), with_priority(9));
        net.pass(MINUTE);
        assert_eq!(states(&net), [SmState::STANDBY, SmState::MASTER]);
        assert_eq!(owners(&net, 1), [true, true, true, false]);
        for (index, alias) in [(3, 0), (9, 0), (10, 0x7a)] {
            set(&mut net, 1, index, alias);
        }
        match is_killed {
            true => net.kill(1),
            false => net.with(1, |manager, now, out| manager.leave(now, out)),
        }
        net.pass(MINUTE);
        assert_eq!(net.state(0), SmState::MASTER);
        let table = |net: &mut Net, block| {
            let smp = Smp::directed(Method::GET, GuidInfo::ATTR_ID, block, &[3]);
            GuidInfo::from_bytes(&net.ask(port(0, 0), smp).expect("an answer").data).guids
        };
        // The next sweep shows what is set again.
        for _ in 0..2 {
            assert_eq!(owners(&net, 0), [false, true, false, true], "{is_killed}");
            assert_eq!(table(&mut net, 0)[3..5], [Guid(0), Guid(0x78)], "{is_killed}");
            assert_eq!(table(&mut net, 1)[1..3], [Guid(0), Guid(0x7a)], "{is_killed}");
            net.with(0, |manager, now, _| manager.sweep(now));
            net.pass(MINUTE);
        }
    }
}

#[test]
fn joined_subnets_keep_the_higher_priority_master() {
    // Two switches with adapters and a manager on each, and no cable between them yet.
    let mut net = Net::of("torus:2x1x1");
    let cables: Vec<_> =
        (1..=6).map(|n| port(0, n)).filter(|p| net.subnet.peer(*p).is_some()).collect();
    let between: Vec<_> = cables
        .into_iter()
        .filter(|cable| net.is_switch(net.subnet.peer(*cable).expect("a cable").node))
        .collect();
    assert!(!between.is_empty());
    for &cable in &between {
        net.change(|subnet, now, inbox| subnet.set_cable(now, cable, false, inbox))
            .expect("a cable");
    }
    net.start(port(0, 0), with_priority(1));
    net.start(port(1, 0), with_priority(2));
    net.pass(MINUTE);
    assert_eq!(states(&net), [SmState::MASTER, SmState::MASTER]);
    for &cable in &between {
        net.change(|subnet, now, inbox| subnet.set_cable(now, cable, true, inbox))
            .expect("a cable");
    }
    net.pass(MINUTE);
    assert_eq!(states(&net), [SmState::STANDBY, SmState::MASTER]);
    net.assert_configured();
    net.assert_routed();
}

#[test]
fn lower_priority_master_is_sent_discover_and_no_handover() {
    let told = told_by_a_better_master(|_| {});
    assert!(told.contains_key(&SmInfo::DISCOVER) && !told.contains_key(&SmInfo::HANDOVER));
    let first = &told[&SmInfo::DISCOVER];
    assert_eq!((first.state, first.priority), (SmState::MASTER, 7));
}

/// OpenSM ignores DISCOVER as a master, but sweeps when another master sends HANDOVER.
#[test]
fn lower_priority_master_that_ignores_discover_is_sent_handover() {
    // Only a master may send it.
    let refused = |mad: &mut Mad| mad[SM_STATE_AT] &= 0xf0;
    let told = told_by_a_better_master(refused);
    assert!(told.contains_key(&SmInfo::DISCOVER));
    let first = told.get(&SmInfo::HANDOVER).expect("a Set of SMInfo with modifier HANDOVER");
    assert_eq!((first.state, first.priority), (SmState::MASTER, 7));
}

/// The offset of the manager's priority and state in a datagram with SMInfo.
const SM_STATE_AT: usize = 64 + 20;

/// Joins two subnets that have a master each. The lower-ranked master notices no change, because the better one clears the
/// change bits first. Returns the first SMInfo that the better master sends it, for each modifier. `change` modifies the
/// DISCOVER message.
fn told_by_a_better_master(change: fn(&mut Mad)) -> BTreeMap<u32, SmInfo> {
    let mut net = Net::of("torus:2x1x1");
    let between: Vec<_> = (1..=6)
        .map(|n| port(0, n))
        .filter(|cable| net.subnet.peer(*cable).is_some_and(|far| net.is_switch(far.node)))
        .collect();
    for &cable in &between {
        net.change(|subnet, now, inbox| subnet.set_cable(now, cable, false, inbox))
            .expect("a cable");
    }
    net.start(port(0, 0), Config { sweep_interval: MINUTE * 60 * 24, ..with_priority(3) });
    net.start(port(1, 0), with_priority(7));
    net.pass(MINUTE);
    assert_eq!(states(&net), [SmState::MASTER, SmState::MASTER]);
    let told: Rc<RefCell<BTreeMap<u32, SmInfo>>> = Rc::default();
    let seen = Rc::clone(&told);
    net.meddler = Box::new(move |_, way, mad| {
        let smp = Smp::parse(mad).expect("an SMP");
        let is_set = smp.header.method == Method::SET && smp.header.attr_id == SmInfo::ATTR_ID;
        let info = SmInfo::parse(&smp.data[..]).unwrap_or_default();
        // Ignore what the lower-ranked master sends when it hands over.
        if way == Way::ToManager && is_set && info.priority == 7 {
            seen.borrow_mut().entry(smp.header.attr_mod).or_insert(info);
            if smp.header.attr_mod == SmInfo::DISCOVER {
                change(mad);
            }
        }
        smp.header.method != Method::TRAP
    });
    for &cable in &between {
        net.change(|subnet, now, inbox| subnet.set_cable(now, cable, true, inbox))
            .expect("a cable");
    }
    net.pass(MINUTE);
    assert_eq!(states(&net), [SmState::STANDBY, SmState::MASTER]);
    net.assert_configured();
    net.assert_routed();
    told.take()
}

/// Returns whether a datagram carries SMInfo.
fn is_sm_info(mad: &Mad) -> bool {
    MadHeader::parse(&mad[..]).is_ok_and(|header| header.attr_id == SmInfo::ATTR_ID)
}

#[test]
fn tables_set_by_a_second_master_are_overwritten_after_it_stands_by() {
    // The other manager swaps the adapters' LIDs.
    for moment in (0..).step_by(7) {
        let mut net = Net::up("torus:3x1x1", with_priority(5));
        let ends = net.ends();
        let view = |end| net.subnet.port(end).expect("a port");
        let guids = ends.iter().map(|end| view(*end).guid());
        let lids: Vec<Lid> = ends.iter().map(|end| view(*end).lid()).collect();
        let adapters = ends.iter().filter(|end| end.number != 0).count();
        let (switches, others) = lids.split_at(lids.len() - adapters);
        let turned = switches.iter().chain(others.iter().rev()).copied();
        let lids: BTreeMap<Guid, Lid> = guids.zip(turned).collect();
        let other = *ends.last().expect("an adapter");
        // The managers cannot see each other's SMInfo, and the first one sweeps while the other one sets its tables.
        let count = Rc::new(Cell::new(0));
        let counted = Rc::clone(&count);
        net.meddler = Box::new(move |_, way, mad| {
            counted.set(counted.get() + 1);
            way == Way::ToManager || !is_sm_info(mad)
        });
        net.managers.push((other, Manager::new(Config { lids, ..with_priority(1) }, net.now)));
        net.dead.push(false);
        net.subnet.set_attached(other, true);
        net.subnet.set_is_sm(net.now, other, true, &mut net.inbox);
        net.settle_until(|| count.get() >= moment);
        let (ended, now) = (count.get() < moment, net.now);
        net.manager().sweep(now);
        net.pass(Duration::from_secs(1));
        assert_eq!(states(&net), [SmState::MASTER, SmState::MASTER]);
        net.meddler = Box::new(|_, _, _| true);
        net.pass(MINUTE);
        assert_eq!(states(&net), [SmState::MASTER, SmState::STANDBY], "moment {moment}");
        net.assert_configured();
        net.assert_routed();
        if ended {
            assert!(moment > 100, "a sweep has more datagrams");
            break;
        }
    }
}

#[test]
fn a_master_that_does_not_know_of_a_better_one_finds_that_its_port_has_another_manager() {
    let mut net = Net::up("torus:3x1x1", with_priority(1));
    let better = net.ends().into_iter().next_back().expect("an adapter");
    // The managers cannot see each other's SMInfo, and no trap reports the new one.
    net.meddler = Box::new(|_, _, mad| {
        let is_trap = MadHeader::parse(&mad[..]).is_ok_and(|h| h.method == Method::TRAP);
        !is_trap && !is_sm_info(mad)
    });
    net.start(better, with_priority(5));
    net.pass(Duration::from_secs(5));
    assert_eq!(states(&net), [SmState::MASTER, SmState::MASTER]);
    net.meddler = Box::new(|_, _, _| true);
    net.pass(MINUTE);
    assert_eq!(states(&net), [SmState::STANDBY, SmState::MASTER]);
}

/// The port does not know its manager yet, so no trap is sent.
#[test]
fn a_better_manager_that_comes_between_discovery_and_the_first_set_gets_the_subnet() {
    let mut net = Net::of("two");
    let done = Cell::new(false);
    net.meddler = Box::new(move |subnet, way, mad| {
        let header = MadHeader::parse(&mad[..]).expect("a MAD");
        if way == Way::ToSubnet && header.method == Method::SET && !done.replace(true) {
            subnet.set_is_sm(Time::ZERO, port(1, 1), true, &mut ());
        }
        true
    });
    net.start_first(with_priority(1));
    net.start(port(1, 1), with_priority(5));
    net.pass(MINUTE);
    assert_eq!(states(&net), [SmState::STANDBY, SmState::MASTER]);
}

#[test]
fn a_better_manager_that_refuses_handovers_does_not_keep_new_nodes_down() {
    let mut net = Net::of("switch:4");
    let newcomer = port(4, 1);
    net.subnet.set_cable(net.now, newcomer, false, &mut net.inbox).expect("a cable");
    net.start_first(with_priority(1));
    net.pass(MINUTE);
    net.meddler = Box::new(|_, way, mad| {
        let header = MadHeader::parse(&mad[..]).expect("a MAD");
        let is_command = (header.method, header.attr_id) == (Method::SET, SmInfo::ATTR_ID);
        !(way == Way::ToManager && is_command && header.attr_mod == SmInfo::HANDOVER)
    });
    net.start(port(2, 1), with_priority(5));
    net.pass(MINUTE);
    assert_eq!(net.state(0), SmState::MASTER);
    net.change(|s, now, inbox| s.set_cable(now, newcomer, true, inbox)).expect("a cable");
    net.pass(Duration::from_secs(15));
    net.assert_configured();
    net.meddler = Box::new(|_, _, _| true);
    net.pass(MINUTE);
    assert_eq!(states(&net), [SmState::STANDBY, SmState::MASTER], "it is asked again");
}

/// Sends 100 commands of a master that does not exist to the manager, within a minute.
fn command_100_times(net: &mut Net, modifier: u32) {
    let from = port(1, 1);
    net.subnet.set_attached(from, true);
    let [own, to] = [from, net.managers[0].0].map(|at| net.subnet.port(at).expect("a port").lid());
    let info = SmInfo { guid: Guid(0x77), state: SmState::MASTER, ..SmInfo::default() };
    let mut smp = Smp::lid_routed(Method::SET, SmInfo::ATTR_ID, modifier);
    smp.set_attribute(&info.into());
    for _ in 0..100 {
        let packet = MadPacket::smp(own, to, 0, Box::new(smp.to_bytes()));
        net.change(|s, now, inbox| s.send(now, from, packet, inbox));
        net.pass(MINUTE / 100);
    }
}

#[test]
fn commands_of_a_master_that_a_sweep_does_not_find_configure_nothing_again() {
    for modifier in [SmInfo::HANDOVER, SmInfo::DISCOVER] {
        let mut net = Net::up("switch:4", config());
        net.pass(MINUTE);
        net.sets = 0;
        net.inbox.events.clear();
        command_100_times(&mut net, modifier);
        net.pass(MINUTE);
        let asked = net.inbox.events.iter().filter(|(_, e)| *e == PortEvent::ClientReregister);
        assert_eq!((net.sets, asked.count()), (0, 0), "{modifier}");
    }
}

#[test]
fn sweeps_for_commands_of_a_port_become_rarer() {
    let mut net = Net::of("switch:4");
    // Adapter 4 never answers, so that a sweep takes some time.
    let cable = net.subnet.peer(port(4, 1)).expect("a cable").number;
    net.meddler = Box::new(move |_, _, mad| mad[7] == 0 || mad[128 + usize::from(mad[7])] != cable);
    net.start_first(config());
    net.pass(MINUTE * 3);
    let before = net.managers[0].1.status().sweeps;
    command_100_times(&mut net, SmInfo::DISCOVER);
    let sweeps = net.managers[0].1.status().sweeps - before;
    assert!(sweeps < 25, "{sweeps} sweeps in a minute");
}
