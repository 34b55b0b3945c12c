//! Changes of ports and endpoints.

use alloc::vec::Vec;
use core::time::Duration;

use rdmux_wire::acm::{Address, Datagram};
use rdmux_wire::sa::{PathRecord, Rate};
use rdmux_wire::{Gid, Guid, Lid, Mtu, Pkey};

use super::net::*;
use crate::{
    Dest, Endpoint, EndpointId, Failure, Forget, GroupSpec, Options, Peer, Port, PortId, PortKind,
    Request, RequestId, System,
};

fn change(net: &mut Net, n: usize, port: Port) {
    net.with(n, |machine, now, io| machine.set_port(now, PORT, port, io));
    net.run();
}

#[test]
fn lid_change_is_announced_to_other_ports() {
    let mut net = Net::new(3, &acm());
    net.resolve(0, name(1)).unwrap().unwrap();
    change(&mut net, 1, Port { lid: Lid(77), ..port(1) });
    net.pass(Duration::from_secs(1));
    let sent = net.sent();
    assert_eq!(net.resolve(0, name(1)).unwrap().unwrap().path.dlid, Lid(77));
    assert_eq!((net.sent(), net.hosts[1].machine.counters(None).announcements), (sent, 2));
    // The paths of the renumbered port begin at its new LID.
    assert_eq!(net.resolve(1, name(0)).unwrap().unwrap().path.slid, Lid(77));
}

#[test]
fn new_address_is_announced_and_removed_address_is_not_answered() {
    let mut net = Net::new(2, &acm());
    let addresses = [name(1), Address::Ip6([9; 16].into())].into();
    net.with(1, |m, now, io| m.set_endpoint(now, EP, Endpoint { addresses, ..endpoint(1) }, io));
    net.run();
    let sent = net.sent();
    assert_eq!(sent, 1);
    assert!(net.resolve(0, Address::Ip6([9; 16].into())).unwrap().is_ok());
    assert_eq!(net.sent(), sent);
    assert_eq!(net.resolve(0, ip(1)), None);
}

#[test]
fn sa_answer_for_one_port_keeps_entries_with_equal_lids_on_another_port() {
    const OTHER: EndpointId = EndpointId(2);
    const OTHER_PORT: PortId = PortId(2);
    let mut net = Net::new(2, &acm());
    // The second port is on another subnet, where host 8 has host 1's LID.
    let request = rdmux_wire::acm::Request {
        tid: 1,
        source: name(8),
        dest: name(9),
        groups: net.hosts[0].machine.groups(EP).iter().map(|group| group.mgid).collect(),
    };
    let bytes = Datagram::Request(request).to_bytes();
    net.with(0, |machine, now, io| {
        machine.set_port(now, OTHER_PORT, Port { gids: [gid(50)].into(), ..port(0) }, io);
        let addresses = [name(7)].into();
        let other = Endpoint { port: OTHER_PORT, addresses, ..endpoint(0) };
        machine.set_endpoint(now, OTHER, other, io);
        let joined = io.joins.pop_front().unwrap();
        machine.handle_join(now, OTHER, joined.mgid, Ok(&joined), io);
    });
    net.run();
    let from = Peer { lid: lid(1), ..peer(8) };
    net.with(0, |machine, now, io| machine.handle_datagram(now, OTHER, &from, &bytes, io));
    let knows = |net: &Net| net.hosts[0].machine.known(OTHER).any(|row| row.address == name(8));
    assert!(knows(&net));
    let record = PathRecord { dgid: gid(1), sgid: gid(0), dlid: lid(1), ..PathRecord::default() };
    let id = net.ask(0, Dest::Query(record));
    net.run();
    assert!(net.answer(0, id).unwrap().is_ok());
    assert!(knows(&net));
}

#[test]
fn sa_query_queued_behind_a_removed_endpoint_is_sent() {
    const OTHER: EndpointId = EndpointId(2);
    let mut net = Net::new(1, &Options::default());
    let partition = Pkey(0x8010);
    let pkeys = [Pkey::DEFAULT, partition].into();
    change(&mut net, 0, Port { pkeys, ..port(0) });
    net.with(0, |machine, now, io| {
        let addresses = [name(7)].into();
        machine.set_endpoint(
            now,
            OTHER,
            Endpoint { pkey: partition, addresses, ..endpoint(0) },
            io,
        );
    });
    net.run();
    let ask = |net: &mut Net, source, dest: usize| {
        let dest = Dest::Address(gid(dest).into());
        let source = Some(source);
        net.request(0, &Request { source, dest, no_delay: false, timeout: None });
        net.hosts[0].io.questions.back().unwrap().1.dgid
    };
    assert_eq!(ask(&mut net, name(7), 1), gid(1));
    assert_eq!(ask(&mut net, name(0), 2), gid(1), "one at a time");
    net.with(0, |machine, now, io| machine.set_port(now, PORT, port(0), io));
    assert_eq!(net.hosts[0].io.questions.back().unwrap().1.dgid, gid(2));
}

#[test]
fn own_lid_change_asks_for_routes_again() {
    let mut net = Net::new(2, &Options::default());
    net.resolve(0, name(1)).unwrap().unwrap();
    assert!(net.hosts[0].io.published.contains_key(&name(1)));
    change(&mut net, 0, Port { lid: Lid(99), ..port(0) });
    assert!(net.hosts[0].io.published.is_empty());
    net.resolve(0, name(1)).unwrap().unwrap();
    assert_eq!(net.asked.len(), 2);
}

#[test]
fn path_is_kept_when_peer_sends_from_another_lid_of_its_lmc_range() {
    let mut net = Net::new(4, &Options::default());
    change(&mut net, 0, Port { lmc: 1, ..port(0) });
    // LIDs 4 and 5.
    change(&mut net, 3, Port { lmc: 1, ..port(3) });
    net.resolve(0, name(3)).unwrap().unwrap();
    let hear = |net: &mut Net, lid| {
        let groups = net.hosts[3].machine.groups(EP).iter().map(|group| group.mgid).collect();
        let request = rdmux_wire::acm::Request { tid: 1, source: name(3), dest: name(9), groups };
        let (from, bytes) = (Peer { lid, ..peer(3) }, Datagram::Request(request).to_bytes());
        net.with(0, |machine, now, io| machine.handle_datagram(now, EP, &from, &bytes, io));
    };
    hear(&mut net, Lid(5));
    assert!(net.hosts[0].io.published.contains_key(&name(3)));
    assert_eq!(net.resolve(0, name(3)).unwrap().unwrap().path.dlid, Lid(4));
    assert_eq!(net.asked.len(), 1);
    // A LID of another port.
    hear(&mut net, Lid(6));
    assert!(!net.hosts[0].io.published.contains_key(&name(3)));
    net.resolve(0, name(3)).unwrap().unwrap();
    assert_eq!(net.asked.len(), 2);
}

#[test]
fn another_subnet_manager_and_reregistration_join_again_and_ask_again() {
    let mut net = Net::new(2, &Options::default());
    net.resolve(0, name(1)).unwrap().unwrap();
    net.hosts[0].io.members.clear();
    change(&mut net, 0, Port { sm_lid: Lid(2000), ..port(0) });
    assert_eq!(net.hosts[0].io.members.len(), 1);
    net.resolve(0, name(1)).unwrap().unwrap();
    net.hosts[0].io.members.clear();
    net.with(0, |machine, now, io| machine.reregister(now, PORT, io));
    net.run();
    assert_eq!(net.hosts[0].io.members.len(), 1);
    let sent = net.sent();
    net.resolve(0, name(1)).unwrap().unwrap();
    // The address was still valid.
    assert_eq!((net.asked.len(), net.sent()), (3, sent));
}

#[test]
fn reregistration_or_another_manager_during_a_join_joins_again_at_once() {
    let mut net = Net::new(1, &Options::default());
    let reregister = |net: &mut Net| {
        net.with(0, |machine, now, io| machine.reregister(now, PORT, io));
        net.hosts[0].io.joins.pop_front()
    };
    let before = reregister(&mut net).expect("it joins");
    assert_eq!(reregister(&mut net), Some(before), "the earlier answer may be outdated");
    let other = Port { sm_lid: Lid(1001), ..port(0) };
    net.with(0, |machine, now, io| machine.set_port(now, PORT, other, io));
    let again = net.hosts[0].io.joins.pop_front();
    assert_eq!(again, Some(before), "the earlier manager may be gone");
    assert!(!net.hosts[0].machine.is_ready(EP));
    net.with(0, |m, now, io| m.handle_join(now, EP, before.mgid, Ok(&before), io));
    assert!(net.hosts[0].machine.is_ready(EP) && net.hosts[0].io.joins.is_empty());
    let late = Err(crate::SaFailure::Silent);
    net.with(0, |m, now, io| m.handle_join(now, EP, before.mgid, late, io));
    assert!(net.hosts[0].machine.is_ready(EP) && net.hosts[0].io.joins.is_empty());
}

#[test]
fn join_without_an_answer_is_repeated() {
    let mut net = Net::new(1, &Options::default());
    net.with(0, |machine, now, io| machine.reregister(now, PORT, io));
    net.hosts[0].io.joins.clear();
    net.pass(Duration::from_secs(1));
    assert!(!net.hosts[0].machine.is_ready(EP));
    net.pass(Duration::from_secs(60));
    assert!(net.hosts[0].machine.is_ready(EP));
    let counters = net.hosts[0].machine.counters(None);
    assert_eq!((counters.joins, counters.failed_joins), (2, 1));
    assert_eq!(net.hosts[0].machine.poll_timeout(), None);
}

#[test]
fn subnet_prefix_change_empties_the_cache() {
    let mut net = Net::new(2, &acm());
    net.resolve(0, name(1)).unwrap().unwrap();
    change(&mut net, 0, Port { gids: [Gid::new(0xfec0 << 48, Guid(1))].into(), ..port(0) });
    assert_eq!(net.hosts[0].machine.memory().0, 0);
}

#[test]
fn addresses_of_an_ip_port_come_and_go_and_paths_from_the_others_stay() {
    let mut net = Net::new(1, &Options::default());
    let own = [1, 2].map(|n| Gid::from(core::net::Ipv4Addr::new(10, 0, 0, n)));
    let link_local = Gid::from(core::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));
    let roce = |gids: &[Gid]| Port { kind: PortKind::Roce, gids: gids.into(), ..port(0) };
    net.with(0, |machine, now, io| {
        machine.remove_port(now, PORT, io);
        machine.set_port(now, PORT, roce(&own), io);
        machine.set_endpoint(now, EP, endpoint(0), io);
    });
    for (dest, source) in [(name(1), own[0]), (name(2), own[1])] {
        net.ask(0, Dest::Address(dest));
        let (question, _) = net.hosts[0].io.system.pop_front().unwrap();
        let answer = System { gid: gid(9), source, mtu: rdmux_wire::Mtu::M1024, hop_limit: 64 };
        net.with(0, |m, now, io| m.handle_system(now, question, Some(&answer), io));
    }
    let known = |net: &Net| net.hosts[0].io.published.keys().copied().collect::<Vec<_>>();
    assert_eq!(known(&net), [name(1), name(2)]);
    // Another address, which is also the first now.
    change(&mut net, 0, roce(&[link_local, own[0], own[1]]));
    assert_eq!(known(&net), [name(1), name(2)]);
    change(&mut net, 0, roce(&[own[0]]));
    assert_eq!(known(&net), [name(1)]);
    assert!(net.resolve(0, name(1)).unwrap().is_ok());
    assert_eq!((net.resolve(0, name(2)), net.hosts[0].io.system.len()), (None, 1));
}

#[test]
fn port_down_fails_requests_and_cache_survives_until_port_up() {
    let mut net = Net::new(2, &acm());
    net.resolve(0, name(1)).unwrap().unwrap();
    let id = net.ask(0, Dest::Address(name(9)));
    change(&mut net, 0, Port { is_active: false, ..port(0) });
    assert_eq!(net.answer(0, id), Some(Err(Failure::NotConnected)));
    assert_eq!(net.resolve(0, name(1)), Some(Err(Failure::NotConnected)));
    assert!(net.hosts[0].io.members.is_empty());
    let sent = net.sent();
    change(&mut net, 0, port(0));
    // The cache was kept, with the paths.
    assert!(net.resolve(0, name(1)).unwrap().is_ok());
    assert_eq!((net.sent(), net.hosts[0].io.members.len()), (sent, 2));
    assert_eq!(net.asked, []);
}

#[test]
fn path_by_a_group_is_withdrawn_while_the_port_is_down_and_waits_for_the_join_after_that() {
    let mut net = Net::new(2, &acm());
    let before = net.resolve(0, name(1)).unwrap().unwrap().path;
    assert!(net.hosts[0].io.published.contains_key(&name(1)));
    change(&mut net, 0, Port { is_active: false, ..port(0) });
    assert!(net.hosts[0].io.published.is_empty());
    // The joins are outstanding.
    net.with(0, |machine, now, io| machine.set_port(now, PORT, port(0), io));
    let sent = net.sent();
    let id = net.ask(0, Dest::Address(name(1)));
    assert_eq!((net.answer(0, id), net.hosts[0].io.questions.len()), (None, 0));
    net.run();
    assert_eq!(net.answer(0, id).unwrap().unwrap().path, before);
    assert!(net.hosts[0].io.published.contains_key(&name(1)));
    assert_eq!((net.sent(), net.asked.len()), (sent, 0));
}

#[test]
fn path_by_a_group_that_cannot_be_joined_again_comes_from_subnet_administration() {
    let mut net = Net::new(2, &acm());
    net.resolve(0, name(1)).unwrap().unwrap();
    net.with(0, |machine, now, io| machine.reregister(now, PORT, io));
    let id = net.ask(0, Dest::Address(name(1)));
    let joins: Vec<_> = net.hosts[0].io.joins.drain(..).map(|record| record.mgid).collect();
    assert_eq!((net.answer(0, id), joins.len()), (None, 1));
    let refused = Err(crate::SaFailure::Silent);
    net.with(0, |m, now, io| m.handle_join(now, EP, joins[0], refused, io));
    net.run();
    assert_eq!(net.answer(0, id).unwrap().unwrap().path.sl, 3);
    assert_eq!(net.asked.len(), 1);
}

#[test]
fn search_that_waits_for_a_group_does_not_wait_for_another_at_its_index() {
    let spec = |sl, tos| GroupSpec { rate: Rate::GBPS_100, mtu: Mtu::M4096, sl, tos };
    let with = |group: GroupSpec| Options { groups: [group].into(), ..acm() };
    let mut net = Net::new(2, &with(spec(5, 4)));
    assert_eq!(net.resolve(0, name(1)).unwrap().unwrap().path.sl, 5);
    net.with(0, |machine, now, io| machine.reregister(now, PORT, io));
    let id = net.ask(0, Dest::Address(name(1)));
    net.with(0, |machine, now, io| machine.set_options(now, with(spec(6, 8)), io));
    net.run();
    assert_eq!((net.answer(0, id).unwrap().unwrap().path.sl, net.asked.len()), (3, 1));
}

#[test]
fn request_that_waits_for_a_join_ends_with_its_time() {
    let mut net = Net::new(2, &acm());
    net.resolve(0, name(1)).unwrap().unwrap();
    net.with(0, |machine, now, io| machine.reregister(now, PORT, io));
    net.hosts[0].io.joins.clear();
    let timeout = Some(Duration::from_millis(100));
    let dest = Dest::Address(name(1));
    let id = net.request(0, &Request { source: None, dest, no_delay: false, timeout });
    let canceled = net.request(
        0,
        &Request { source: None, dest: Dest::Address(ip(1)), no_delay: false, timeout: None },
    );
    net.with(0, |machine, _, _| machine.cancel(CLIENT, canceled));
    net.pass(Duration::from_millis(200));
    assert_eq!(net.answer(0, id), Some(Err(Failure::TimedOut)));
    assert_eq!(net.hosts[0].machine.searches.len(), 0);
}

#[test]
fn group_that_the_options_do_not_name_any_more_is_left() {
    let spec = GroupSpec { rate: Rate::GBPS_100, mtu: Mtu::M4096, sl: 5, tos: 4 };
    let with = Options { groups: [spec].into(), ..acm() };
    let mut net = Net::new(2, &with);
    assert_eq!(net.hosts[0].io.members.len(), 3);
    assert_eq!(net.resolve(0, name(1)).unwrap().unwrap().path.sl, 5);
    for n in 0..2 {
        net.with(n, |machine, now, io| machine.set_options(now, acm(), io));
    }
    net.run();
    assert_eq!(net.hosts[0].io.members.len(), 2);
    assert_ne!(net.resolve(0, name(1)).unwrap().unwrap().path.sl, 5);
}

#[test]
fn changed_qpn_rejoins_groups_and_resets_the_full_send_queue() {
    let mut net = Net::new(3, &acm());
    net.hosts[0].io.is_full = true;
    net.ask(1, Dest::Address(name(0)));
    net.run();
    let answers = |net: &Net, n: usize| net.hosts[n].machine.counters(None).sent_answers;
    assert_eq!(answers(&net, 0), 0);
    // The old queue pair is gone, with its attachments and its full send queue.
    net.hosts[0].io.is_full = false;
    net.hosts[0].io.members.clear();
    let endpoint = Endpoint { qpn: rdmux_wire::Qpn::new(0x99), ..endpoint(0) };
    let mut again = endpoint.clone();
    net.with(0, |machine, now, io| machine.set_endpoint(now, EP, endpoint, io));
    net.run();
    assert_eq!((net.hosts[0].io.members.len(), answers(&net, 0)), (2, 1));
    assert!(net.resolve(0, name(2)).unwrap().is_ok());
    assert!(net.resolve(2, ip(0)).unwrap().is_ok());
    assert_eq!(answers(&net, 0), 2);
    // Another address does not mean another queue pair.
    again.addresses.push(name(7));
    net.with(0, |machine, now, io| machine.set_endpoint(now, EP, again, io));
    assert_eq!(net.hosts[0].io.joins.len(), 0);
}

#[test]
fn other_speed_asks_for_paths_again() {
    let mut net = Net::new(2, &Options::default());
    net.resolve(0, name(1)).unwrap().unwrap();
    // A query sent now is answered with the old speed.
    net.with(0, |machine, now, io| {
        let request = Dest::Address(gid(1).into());
        let request = Request { source: None, dest: request, no_delay: false, timeout: None };
        machine.request(now, CLIENT, RequestId(99), &request, io);
    });
    let old = net.hosts[0].io.questions[0].0;
    change(&mut net, 0, Port { rate: Rate::GBPS_25, ..port(0) });
    assert!(net.hosts[0].io.published.keys().all(|address| *address == gid(1).into()));
    let asked: Vec<_> = net.asked.iter().map(|record| record.dgid).collect();
    assert_eq!(asked, [gid(1); 3], "a path, and one twice");
    assert_ne!(net.hosts[0].io.questions.front().map(|(id, _)| *id), Some(old));
    let sent = net.sent();
    net.resolve(0, name(1)).unwrap().unwrap();
    assert_eq!((net.asked.len(), net.sent()), (4, sent));
    change(&mut net, 0, Port { mtu: Mtu::M1024, rate: Rate::GBPS_25, ..port(0) });
    assert!(net.hosts[0].io.published.is_empty());
}

#[test]
fn path_by_a_group_is_not_shared_when_the_group_is_left_or_gives_no_paths() {
    let lowest = Options { max_groups: 1, ..acm() };
    let of_another_rate = Options { min_rate: Rate::GBPS_25, ..lowest.clone() };
    let by_administration = Options { max_groups: 1, ..Options::default() };
    for options in [of_another_rate, by_administration] {
        let mut net = Net::new(2, &lowest);
        let all = [name(1), gid(1).into()];
        for address in all {
            net.resolve(0, address).unwrap().unwrap();
        }
        let shared = |net: &Net| net.hosts[0].io.published.keys().copied().collect::<Vec<_>>();
        assert_eq!(shared(&net), all);
        net.with(0, |machine, now, io| machine.set_options(now, options, io));
        // Subnet administration's answers remain valid.
        assert_eq!(shared(&net), [gid(1).into()]);
    }
}

/// The earlier subnet manager may still answer the join of a group, or the endpoint is a member already.
#[test]
fn group_that_is_not_needed_any_more_after_a_failover_is_left() {
    for is_member in [false, true] {
        let mut net = Net::new(0, &acm());
        net.add(0, acm());
        let lowest = net.hosts[0].io.joins.pop_front().unwrap();
        net.hosts[0].io.members.push(lowest.mgid);
        net.with(0, |m, now, io| m.handle_join(now, EP, lowest.mgid, Ok(&lowest), io));
        if is_member {
            net.run();
            assert_eq!(net.hosts[0].io.members.len(), 2);
        }
        net.with(0, |machine, now, io| {
            machine.set_port(now, PORT, Port { sm_lid: Lid(2000), ..port(0) }, io);
            machine.set_options(now, Options::default(), io);
        });
        net.run();
        assert_eq!(net.hosts[0].io.members.last(), Some(&lowest.mgid));
        let others = net.hosts[0].io.members.iter().filter(|group| **group != lowest.mgid);
        assert_eq!(others.count(), 0, "{is_member}");
    }
}

#[test]
fn endpoint_is_not_connected_without_its_pkey() {
    let mut net = Net::new(2, &acm());
    change(&mut net, 0, Port { pkeys: [Pkey(0x8001)].into(), ..port(0) });
    assert_eq!(net.resolve(0, name(1)), Some(Err(Failure::NotConnected)));
    // A limited member is in the partition, too.
    change(&mut net, 0, Port { pkeys: [Pkey(0x7fff)].into(), ..port(0) });
    assert!(net.resolve(0, name(1)).unwrap().is_ok());
}

#[test]
fn group_join_is_retried_until_sa_is_reachable() {
    let mut net = Net::new(0, &acm());
    net.has_sa = false;
    net.add(0, acm());
    net.add(1, acm());
    net.run();
    let id = net.ask(0, Dest::Address(name(1)));
    net.pass(Duration::from_secs(10));
    assert_eq!((net.answer(0, id), net.sent()), (None, 0));
    net.has_sa = true;
    net.pass(Duration::from_secs(10));
    assert!(net.answer(0, id).unwrap().is_ok());
}

#[test]
fn forget_removes_entries_by_address_gid_lid_routes_or_endpoint() {
    let mut net = Net::new(4, &acm());
    let fill = |net: &mut Net| {
        for n in 1..4 {
            net.resolve(0, name(n)).unwrap().unwrap();
        }
    };
    let cases = [
        (Forget::Address(name(1)), 2),
        (Forget::Gid(gid(1)), 2),
        (Forget::Lid(lid(1)), 2),
        (Forget::Routes, 3),
        (Forget::Endpoint(EP), 0),
        (Forget::All, 0),
    ];
    for (what, left) in cases {
        fill(&mut net);
        net.with(0, |machine, now, io| machine.forget(now, what, io));
        assert_eq!(net.hosts[0].machine.memory().0, left, "{what:?}");
        let published = if what == Forget::Routes { 0 } else { left };
        assert_eq!(net.hosts[0].io.published.len(), published, "{what:?}");
    }
}

#[test]
fn removed_port_leaves_nothing() {
    let mut net = Net::new(2, &acm());
    net.resolve(0, name(1)).unwrap().unwrap();
    let id = net.ask(0, Dest::Address(name(9)));
    net.with(0, |machine, now, io| machine.remove_port(now, PORT, io));
    assert_eq!(net.answer(0, id), Some(Err(Failure::NotConnected)));
    let Host { machine, io, .. } = &mut net.hosts[0];
    assert_eq!((machine.memory(), machine.open()), ((0, 0), (0, 0)));
    assert!(io.published.is_empty() && io.members.is_empty());
    machine.handle_timeout(net.now.after(Duration::from_secs(9000)), io);
    assert_eq!(machine.poll_timeout(), None);
    assert!(machine.counters(None).resolves >= 2);
}

#[test]
fn path_is_published_again_after_the_cache_of_programs_was_emptied() {
    let mut net = Net::new(2, &Options::default());
    net.resolve(0, name(1)).unwrap().unwrap();
    net.with(0, |machine, _, io| {
        io.published.clear();
        machine.published_nothing();
    });
    net.resolve(0, name(1)).unwrap().unwrap();
    assert!(net.hosts[0].io.published.contains_key(&name(1)));
}
