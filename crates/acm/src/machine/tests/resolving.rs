//! Resolution: the requests and queries that are sent, and the paths that result.

use alloc::vec::Vec;
use core::net::Ipv4Addr;
use core::time::Duration;

use rdmux_wire::acm::{Address, Datagram, Group};
use rdmux_wire::sa::{PathRecord, Rate, Selector};
use rdmux_wire::{Gid, Guid, Lid, Mtu, Pkey, Qpn};

use super::net::*;
use crate::{
    ClientId, Dest, Endpoint, EndpointId, Failure, Forget, Known, Options, Port, PortId, PortKind,
    Request, Resolved, RouteProtocol, System, To,
};

fn with_source(dest: Dest, source: Address) -> Request {
    Request { source: Some(source), dest, no_delay: false, timeout: None }
}

#[test]
fn first_resolve_multicasts_a_request_and_second_is_served_from_cache() {
    let mut net = Net::new(3, &acm());
    let resolved = net.resolve(0, name(1)).unwrap().unwrap();
    assert_eq!((resolved.path.dgid, resolved.path.dlid), (gid(1), lid(1)));
    assert_eq!((resolved.path.sgid, resolved.path.slid), (gid(0), lid(0)));
    // The best common group, not the lowest.
    assert_eq!((resolved.path.rate, resolved.path.mtu), (Rate::GBPS_100, Mtu::M4096.code()));
    assert_eq!((resolved.source, resolved.path.pkey), (Some(name(0)), Pkey::DEFAULT));
    assert!(resolved.path.reversible);
    let sent = net.sent();
    assert_eq!(sent, 2, "a request and its answer");
    assert!(!resolved.is_cached);
    let known = Resolved { is_cached: true, ..resolved };
    assert_eq!(net.resolve(0, name(1)).unwrap(), Ok(known));
    assert_eq!((net.sent(), net.asked.len()), (sent, 0));
    let counters = net.hosts[0].machine.counters(None);
    assert_eq!((counters.resolves, counters.address_queries, counters.route_hits), (2, 1, 1));
}

#[test]
fn every_group_member_caches_the_requester() {
    let mut net = Net::new(5, &acm());
    net.resolve(0, name(1)).unwrap().unwrap();
    let sent = net.sent();
    for n in 1..5 {
        assert_eq!(net.resolve(n, name(0)).unwrap().unwrap().path.dlid, lid(0));
    }
    assert_eq!(net.sent(), sent);
}

#[test]
fn all_to_all_resolution_sends_few_requests_per_endpoint() {
    let mut net = Net::new(40, &acm());
    for n in 0..40 {
        for other in 0..40 {
            net.ask(n, Dest::Address(ip(other)));
        }
    }
    net.pass(Duration::from_secs(2));
    for host in &net.hosts {
        let counters = host.machine.counters(None);
        assert_eq!(host.io.answers.len(), 40);
        assert!(host.io.answers.iter().all(|(_, answer)| answer.is_ok()));
        assert!(counters.sent_requests <= 2, "{counters:?}");
    }
}

#[test]
fn paths_of_administration_are_asked_once_and_only_for_what_is_used() {
    let mut net = Net::new(4, &Options::default());
    let path = net.resolve(0, ip(1)).unwrap().unwrap().path;
    assert_eq!((path.sl, path.dgid, net.asked.len()), (3, gid(1), 1));
    net.resolve(0, ip(1)).unwrap().unwrap();
    assert_eq!((net.asked.len(), net.hosts[2].machine.memory().0), (1, 1));
    net.resolve(2, ip(0)).unwrap().unwrap();
    assert_eq!(net.asked.len(), 2);
    // One group is enough.
    assert_eq!(net.hosts[0].machine.groups(EP).len(), 1);
}

#[test]
fn gids_lids_and_paths_are_resolved_by_administration_at_once() {
    for options in [Options::default(), acm()] {
        let mut net = Net::new(3, &options);
        let dests = [
            Dest::Address(gid(1).into()),
            Dest::Address(lid(1).into()),
            Dest::Path(PathRecord { dgid: gid(1), sgid: gid(0), ..PathRecord::default() }),
            // The LID takes precedence over the GID.
            Dest::Path(PathRecord { dgid: gid(2), dlid: lid(1), ..PathRecord::default() }),
        ];
        for dest in dests {
            let id = net.ask(0, dest);
            net.pass(Duration::from_millis(1));
            let path = net.answer(0, id).unwrap().unwrap().path;
            assert_eq!((path.dgid, path.dlid, path.sgid), (gid(1), lid(1), gid(0)), "{dest:?}");
        }
        assert_eq!((net.asked.len(), net.sent()), (2, 0));
        let id = net.ask(0, Dest::Path(PathRecord::default()));
        assert_eq!(net.answer(0, id), Some(Err(Failure::DestAddress)));
    }
}

#[test]
fn gid_or_lid_of_port_without_acm_service_resolves_by_sa() {
    for options in [Options::default(), acm()] {
        let mut net = Net::new(2, &options);
        net.with(1, |machine, now, io| machine.remove_endpoint(now, EP, io));
        for dest in [gid(1).into(), lid(1).into()] {
            assert_eq!(net.resolve(0, dest).unwrap().unwrap().path.dlid, lid(1), "{dest}");
        }
        assert_eq!((net.asked.len(), net.sent()), (2, 0));
    }
}

#[test]
fn gid_is_confirmed_by_administration_before_it_expires() {
    let options = Options { address_timeout: Duration::from_secs(100), ..acm() };
    let mut net = Net::new(2, &options);
    net.with(1, |machine, now, io| machine.remove_endpoint(now, EP, io));
    net.resolve(0, gid(1).into()).unwrap().unwrap();
    net.pass(Duration::from_secs(99));
    // A program's use of the entry causes its confirmation.
    net.resolve(0, gid(1).into()).unwrap().unwrap();
    net.pass(Duration::from_secs(50));
    assert_eq!(net.asked.len(), 2);
    net.resolve(0, gid(1).into()).unwrap().unwrap();
    assert_eq!((net.asked.len(), net.sent()), (2, 0));
}

#[test]
fn source_is_accepted_by_any_local_address_and_unknown_source_fails() {
    let mut net = Net::new(2, &acm());
    for source in [name(0), ip(0), gid(0).into(), lid(0).into()] {
        let id = net.request(0, &with_source(Dest::Address(name(1)), source));
        net.run();
        let resolved = net.answer(0, id).unwrap().unwrap();
        assert_eq!((resolved.path.slid, resolved.source), (lid(0), None));
    }
    let id = net.request(0, &with_source(Dest::Address(name(1)), name(9)));
    assert_eq!(net.answer(0, id), Some(Err(Failure::SourceAddress)));
}

#[test]
fn source_is_chosen_by_the_leading_bits_of_own_addresses() {
    let mut net = Net::new(1, &acm());
    let mut other = endpoint(0);
    other.addresses = [Address::Ip4([192, 168, 0, 1].into())].into();
    other.pkey = Pkey(0x8001);
    net.with(0, |machine, now, io| {
        let pkeys = [Pkey::DEFAULT, Pkey(0x8001)].into();
        machine.set_port(now, PORT, Port { pkeys, ..port(0) }, io);
        machine.set_endpoint(now, EndpointId(2), other, io);
    });
    for (dest, source) in [([192, 168, 9, 9], [192, 168, 0, 1]), ([10, 9, 9, 9], [10, 0, 0, 1])] {
        net.ask(0, Dest::Address(Address::Ip4(dest.into())));
        net.run();
        let request = net.hosts[0].machine.searches.iter().next_back().unwrap().1;
        assert_eq!(request.source, Address::Ip4(source.into()));
    }
}

#[test]
fn source_for_a_gid_is_on_its_subnet_or_has_its_leading_bits() {
    let mut net = Net::new(1, &acm());
    let roce = |n: u8| Port {
        kind: PortKind::Roce,
        gids: [Gid::new(0xfe80 << 48, Guid(n.into())), Gid::from(Ipv4Addr::new(10, n, 0, 1))]
            .into(),
        ..port(0)
    };
    for n in [2u8, 3] {
        let (port, id) = (PortId(n.into()), EndpointId(n.into()));
        let endpoint = Endpoint { port, addresses: [name(n.into())].into(), ..endpoint(0) };
        net.with(0, |machine, now, io| {
            machine.set_port(now, port, roce(n), io);
            machine.set_endpoint(now, id, endpoint, io);
        });
    }
    let by_ip = |ip: [u8; 4]| Gid::from(Ipv4Addr::from(ip));
    for (dest, id) in
        [(gid(9), EP), (by_ip([10, 2, 0, 9]), EndpointId(2)), (by_ip([10, 3, 0, 9]), EndpointId(3))]
    {
        let (chosen, _) = net.hosts[0].machine.choose_source(&dest.into()).unwrap();
        assert_eq!(chosen, id, "{dest}");
    }
}

#[test]
fn local_addresses_resolve_without_requests() {
    let mut net = Net::new(1, &acm());
    for dest in [name(0), ip(0), gid(0).into(), lid(0).into()] {
        let path = net.resolve(0, dest).unwrap().unwrap().path;
        assert_eq!((path.dlid, path.slid, path.dgid), (lid(0), lid(0), gid(0)));
    }
    assert_eq!(net.sent(), 0);
}

#[test]
fn request_that_does_not_wait_leaves_the_search_running() {
    let mut net = Net::new(2, &acm());
    let dest = Dest::Address(name(1));
    let request = Request { source: None, dest, no_delay: true, timeout: None };
    let id = net.request(0, &request);
    assert_eq!(net.answer(0, id), Some(Err(Failure::NoData)));
    net.run();
    let id = net.request(0, &request);
    assert!(net.answer(0, id).unwrap().is_ok());
    assert_eq!(net.hosts[0].machine.counters(None).no_data, 1);
}

#[test]
fn request_that_does_not_wait_has_no_data_where_nobody_has_the_address() {
    let mut net = Net::new(1, &acm());
    let dest = Dest::Address(name(9));
    let id = net.ask(0, dest);
    net.pass(Duration::from_millis(3600));
    assert_eq!(net.answer(0, id), Some(Err(Failure::TimedOut)));
    let request = Request { source: None, dest, no_delay: true, timeout: None };
    let id = net.request(0, &request);
    assert_eq!(net.answer(0, id), Some(Err(Failure::NoData)));
    // A waiting request learns at once that no endpoint has it.
    let id = net.request(0, &Request { no_delay: false, ..request });
    assert_eq!(net.answer(0, id), Some(Err(Failure::TimedOut)));
}

#[test]
fn query_asks_each_time_and_forgets_what_it_contradicts() {
    let mut net = Net::new(3, &acm());
    net.resolve(0, name(1)).unwrap().unwrap();
    net.resolve(0, name(2)).unwrap().unwrap();
    let record = PathRecord { dgid: gid(1), sgid: gid(0), dlid: lid(1), ..PathRecord::default() };
    let id = net.ask(0, Dest::Query(record));
    net.run();
    assert_eq!(net.answer(0, id).unwrap().unwrap().path.sl, 3);
    assert_eq!(net.hosts[0].machine.memory().0, 2);
    net.hosts[1].is_cut_off = true;
    let id = net.ask(0, Dest::Query(record));
    net.run();
    assert_eq!(net.answer(0, id), Some(Err(Failure::Sa(3))));
    let known: Vec<_> = net.hosts[0].machine.known(EP).map(|row| row.address).collect();
    assert_eq!(known, [name(2)]);
}

#[test]
fn refused_query_forgets_only_paths_that_it_asks_for() {
    let ends = PathRecord { dgid: gid(1), sgid: gid(0), ..PathRecord::default() };
    let others = [
        PathRecord { sl: 15, ..ends },
        PathRecord { slid: lid(7), ..ends },
        PathRecord { dlid: lid(7), ..ends },
        PathRecord { mtu_selector: Selector::GREATER_THAN, mtu: Mtu::M4096.code(), ..ends },
    ];
    let sa = Options { route_protocol: RouteProtocol::Sa, ..acm() };
    // With a path from a group, with one from subnet administration, and without a path, as when host 1's request is
    // received.
    for (options, by, to) in [(acm(), 0, 1), (sa.clone(), 0, 1), (sa, 1, 0)] {
        let mut net = Net::new(3, &options);
        net.resolve(by, name(to)).unwrap().unwrap();
        net.hosts[1].is_cut_off = true;
        for record in others {
            let id = net.ask(0, Dest::Query(record));
            net.run();
            assert_eq!(net.answer(0, id), Some(Err(Failure::Sa(3))), "{record:?}");
            let known = net.hosts[0].machine.known(EP);
            assert!(known.map(|row| row.address).any(|known| known == name(1)), "{record:?}");
        }
        net.ask(0, Dest::Query(ends));
        net.run();
        let known = net.hosts[0].machine.known(EP);
        assert!(known.map(|row| row.address).all(|known| known != name(1)));
    }
}

#[test]
fn path_to_a_slower_port_has_rate_and_mtu_of_a_common_group() {
    let mut net = Net::new(2, &acm());
    let slow = |n| Port { rate: Rate::GBPS_56, mtu: Mtu::M2048, ..port(n) };
    net.with(1, |machine, now, io| machine.set_port(now, PORT, slow(1), io));
    net.run();
    let path = net.resolve(0, name(1)).unwrap().unwrap().path;
    assert_eq!(path.rate, Rate::GBPS_10);
    // When the faster host learns of the slower one's group, it joins that group.
    net.resolve(1, ip(0)).unwrap().unwrap();
    net.with(1, |machine, now, io| machine.forget(now, Forget::All, io));
    let path = net.resolve(1, ip(0)).unwrap().unwrap().path;
    assert_eq!((path.rate, path.mtu), (Rate::GBPS_56, Mtu::M2048.code()));
    assert_eq!(net.hosts[0].machine.groups(EP).len(), 3);
}

#[test]
fn as_many_groups_as_the_options_say_are_joined_whatever_others_have() {
    for most in [3, 6] {
        joined_groups_are_bounded(most);
    }
}

fn joined_groups_are_bounded(most: usize) {
    let mut net = Net::new(1, &Options { max_groups: most, ..acm() });
    let lowest = Group { pkey: Pkey::DEFAULT, tos: 0, rate: Rate::GBPS_10, mtu: Mtu::M2048 };
    for (rate, mtu) in (2..=16).flat_map(|rate| (3..=5).map(move |mtu| (Rate(rate), mtu))) {
        let other = Group { rate, mtu: Mtu::from_code(mtu).unwrap(), ..lowest };
        let groups = [lowest.gid(), other.gid()].into_iter().collect();
        let [source, dest] = [name(7), name(8)];
        let request = rdmux_wire::acm::Request { tid: 1, source, dest, groups };
        let bytes = Datagram::Request(request).to_bytes();
        net.with(0, |m, now, io| m.handle_datagram(now, EP, &peer(7), &bytes, io));
        net.run();
    }
    let groups = net.hosts[0].machine.groups(EP);
    assert_eq!(groups.len(), most);
    assert!(groups.iter().all(|group| group.rate.mbps() <= 100_000));
}

#[test]
fn request_goes_to_the_lowest_group_with_all_groups_in_order() {
    let mut net = Net::new(1, &acm());
    net.ask(0, Dest::Address(name(5)));
    let (to, datagram) = net.hosts[0].io.sent.pop_front().unwrap();
    let Datagram::Request(request) = datagram else { panic!("{datagram}") };
    assert_eq!(to, To::Group(request.groups[0]));
    let groups: Vec<_> = request.groups.iter().map(|gid| Group::from_gid(*gid).unwrap()).collect();
    assert_eq!((groups[0].rate, groups[1].rate), (Rate::GBPS_10, Rate::GBPS_100));
    assert_eq!((request.source, request.dest), (name(0), name(5)));
}

#[test]
fn files_make_paths_that_do_not_expire() {
    let mut net = Net::new(1, &Options::default());
    let path = PathRecord { dgid: gid(9), dlid: lid(9), sl: 2, ..PathRecord::default() };
    net.with(0, |machine, now, io| {
        let known = Known { gid: gid(9), lid: lid(9), path: Some(path) };
        machine.load(now, EP, lid(9).into(), &known, io);
        machine.load(now, EP, gid(9).into(), &known, io);
        machine.load(now, EP, name(9), &Known { lid: Lid::NONE, path: None, ..known }, io);
    });
    net.pass(Duration::from_secs(1_000_000));
    net.with(0, |machine, now, io| machine.forget(now, Forget::All, io));
    for dest in [name(9), gid(9).into(), lid(9).into()] {
        let resolved = net.resolve(0, dest).unwrap().unwrap().path;
        assert_eq!((resolved.dlid, resolved.sl, resolved.slid), (lid(9), 2, lid(0)));
    }
    assert_eq!((net.sent(), net.asked.len()), (0, 0));
    net.with(0, |machine, now, io| machine.unload(now, EP, io));
    assert_eq!(net.hosts[0].machine.memory().0, 0);
}

#[test]
fn address_of_a_file_that_has_no_room_is_reported() {
    let mut net = Net::new(1, &Options { max_entries: 2, ..Options::default() });
    net.resolve(0, name(0));
    let known = Known { gid: gid(9), lid: lid(9), path: None };
    let loaded = [1, 2, 3, 1]
        .map(|n| net.with(0, |machine, now, io| machine.load(now, EP, name(n), &known, io)));
    assert_eq!(loaded, [true, true, false, true]);
}

#[test]
fn preloaded_host_resolves_after_its_port_is_back() {
    let mut net = Net::new(2, &Options::default());
    net.with(0, |machine, now, io| {
        let known = Known { gid: gid(1), lid: Lid::NONE, path: None };
        machine.load(now, EP, name(9), &known, io);
    });
    net.hosts[1].is_cut_off = true;
    assert_eq!(net.resolve(0, name(9)), Some(Err(Failure::Sa(3))));
    net.hosts[1].is_cut_off = false;
    net.pass(Duration::from_secs(2));
    for _ in 0..2 {
        assert_eq!(net.resolve(0, name(9)).unwrap().unwrap().path.dlid, lid(1));
    }
    assert_eq!((net.sent(), net.asked.len()), (0, 2));
}

#[test]
fn host_loaded_from_file_during_its_search_replaces_the_answer() {
    for is_answered in [true, false] {
        let mut net = Net::new(3, &Options::default());
        net.hosts[1].is_cut_off = !is_answered;
        let id = net.ask(0, Dest::Address(name(1)));
        net.with(0, |machine, now, io| {
            let known = Known { gid: gid(2), lid: Lid::NONE, path: None };
            machine.load(now, EP, name(1), &known, io);
        });
        net.run();
        net.pass(Duration::from_secs(60));
        assert_eq!(net.answer(0, id).unwrap().is_ok(), is_answered);
        assert_eq!(net.hosts[0].io.published.get(&name(1)), None, "it is another's path");
        assert_eq!(net.resolve(0, name(1)).unwrap().unwrap().path.dgid, gid(2));
    }
}

/// Returns a host whose port is of this kind.
fn ip_port(kind: PortKind, own: Gid) -> Net {
    let mut net = Net::new(0, &acm());
    net.add(0, acm());
    net.run();
    net.with(0, |machine, now, io| {
        machine.remove_port(now, PORT, io);
        let port = Port { kind, gids: [own].into(), lid: Lid::NONE, ..port(0) };
        machine.set_port(now, PORT, port, io);
        machine.set_endpoint(now, EP, Endpoint { qpn: Qpn::new(0), ..endpoint(0) }, io);
    });
    net
}

#[test]
fn question_to_the_operating_system_is_wanted_while_a_client_waits_for_the_answer() {
    let mut net = ip_port(PortKind::Roce, Gid::from(core::net::Ipv4Addr::new(10, 0, 0, 1)));
    let asked = |net: &mut Net| net.hosts[0].io.system.pop_front().map(|(question, _)| question);
    let is_wanted = |net: &mut Net, question| net.with(0, |m, now, _| m.is_wanted(now, question));
    let clients_of = |net: &Net, question| -> Vec<ClientId> {
        net.hosts[0].machine.clients_of(question).collect()
    };
    let [one, two] = [(); 2].map(|()| net.ask(0, Dest::Address(name(1))));
    let question = asked(&mut net).unwrap();
    assert_eq!((asked(&mut net), clients_of(&net, question)), (None, [CLIENT; 2].into()));
    assert_eq!(net.hosts[0].io.waits, [(question, CLIENT); 2]);
    net.pass(Duration::from_millis(1));
    net.hosts[0].machine.cancel(CLIENT, one);
    assert!(is_wanted(&mut net, question));
    net.hosts[0].machine.cancel(CLIENT, two);
    assert_eq!(clients_of(&net, question), []);
    // Until the driver calls `is_wanted`, the next request waits for the same answer.
    let three = net.ask(0, Dest::Address(name(1)));
    assert!(asked(&mut net).is_none() && is_wanted(&mut net, question));
    net.hosts[0].machine.remove_client(CLIENT);
    assert!(!is_wanted(&mut net, question) && !is_wanted(&mut net, question));
    let four = net.ask(0, Dest::Address(name(1)));
    let again = asked(&mut net).unwrap();
    assert!(again != question && is_wanted(&mut net, again));
    // The answer to the old query is for no request, and is ignored.
    net.with(0, |machine, now, io| machine.handle_system(now, question, None, io));
    assert!(is_wanted(&mut net, again) && net.answer(0, four).is_none());
    assert_eq!((net.answer(0, one), net.answer(0, three)), (None, None));
    // The search for a client that does not wait is needed for as long as others would wait.
    net.hosts[0].machine.remove_client(CLIENT);
    net.pass(Duration::from_millis(1));
    let dest = Dest::Address(name(2));
    net.request(0, &Request { source: None, dest, no_delay: true, timeout: None });
    let question = asked(&mut net).unwrap();
    assert!(is_wanted(&mut net, question) && !is_wanted(&mut net, again));
    assert_eq!(clients_of(&net, question), []);
    net.pass(Duration::from_secs(3600));
    assert!(!is_wanted(&mut net, question));
    assert_eq!(net.hosts[0].machine.open(), (0, 0));
}

#[test]
fn system_query_refused_by_driver_is_too_many_and_may_be_repeated() {
    let mut net = ip_port(PortKind::Roce, Gid::from(core::net::Ipv4Addr::new(10, 0, 0, 1)));
    for _ in 0..2 {
        let waiting = [(); 2].map(|()| net.ask(0, Dest::Address(name(1))));
        let (question, _) = net.hosts[0].io.system.pop_front().unwrap();
        for _ in 0..2 {
            net.with(0, |machine, now, io| machine.refuse_system(now, question, io));
        }
        let answers = waiting.map(|id| net.answer(0, id));
        assert_eq!(answers, [Some(Err(Failure::TooMany)); 2]);
        assert_eq!(net.hosts[0].machine.open(), (0, 0));
    }
}

#[test]
fn ip_ports_ask_the_operating_system() {
    for kind in [PortKind::Roce, PortKind::Iwarp] {
        let own: Gid = Gid::from(core::net::Ipv4Addr::new(10, 0, 0, 1));
        let mut net = ip_port(kind, own);
        let id = net.ask(0, Dest::Address(name(1)));
        let (question, address) = net.hosts[0].io.system.pop_front().unwrap();
        assert_eq!(address, name(1));
        let to = Gid::from(core::net::Ipv4Addr::new(10, 0, 0, 2));
        let system = System { gid: to, source: Gid::ZERO, mtu: Mtu::M1024, hop_limit: 64 };
        net.with(0, |m, now, io| m.handle_system(now, question, Some(&system), io));
        let path = net.answer(0, id).unwrap().unwrap().path;
        assert_eq!((path.dgid, path.sgid, path.mtu, path.hop_limit), (to, own, 3, 64));
        assert_eq!(net.resolve(0, name(1)).unwrap().unwrap().path, path);
        let id = net.ask(0, Dest::Address(name(2)));
        let (question, _) = net.hosts[0].io.system.pop_front().unwrap();
        net.with(0, |machine, now, io| machine.handle_system(now, question, None, io));
        assert_eq!(net.answer(0, id), Some(Err(Failure::TimedOut)));
        assert_eq!((net.sent(), net.hosts[0].io.members.len()), (0, 0));
        assert_eq!(PortId(1), PORT);
    }
}
