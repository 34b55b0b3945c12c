//! Hostile endpoints: impossible senders, and floods of claims, contradictions and requests.

use alloc::format;
use core::time::Duration;

use rdmux_wire::acm::{Address, Datagram, Group, Groups, Request, Response};
use rdmux_wire::sa::Rate;
use rdmux_wire::{Gid, Guid, Lid, Mtu, Pkey, Qpn};

use super::net::*;
use crate::{GroupSpec, Options, Peer, To};

fn groups(net: &Net) -> Groups {
    net.hosts[0].machine.groups(EP).iter().map(|group| group.mgid).collect()
}

fn request(net: &Net, source: Address, dest: Address) -> [u8; 256] {
    Datagram::Request(Request { tid: 1, source, dest, groups: groups(net) }).to_bytes()
}

fn receive(net: &mut Net, from: &Peer, bytes: &[u8]) {
    net.with(0, |machine, now, io| machine.handle_datagram(now, EP, from, bytes, io));
}

#[test]
fn ten_groups_announced_in_240_bytes_are_refused() {
    let mut net = Net::new(1, &acm());
    let mut bytes = request(&net, name(1), name(0));
    bytes[20] = 10;
    receive(&mut net, &peer(1), &bytes);
    receive(&mut net, &peer(1), &[]);
    receive(&mut net, &peer(1), &[0xff; 256]);
    assert_eq!(net.hosts[0].machine.counters(None).malformed, 3);
    assert_eq!((net.hosts[0].machine.memory().0, net.sent()), (0, 0));
}

#[test]
fn acm_messages_with_invalid_or_mismatched_sender_are_refused() {
    let mut net = Net::new(1, &acm());
    let bytes = request(&net, name(1), name(0));
    let good = peer(1);
    for from in [
        Peer { lid: Lid(0), ..good },
        Peer { lid: Lid(0xc000), ..good },
        Peer { lid: Lid(0xffff), ..good },
        Peer { gid: Gid::ZERO, ..good },
        Peer { gid: Gid::new(0xfec0 << 48, Guid(1)), ..good },
        Peer { gid: Gid::new(0xff15 << 48, Guid(1)), ..good },
        Peer { qpn: Qpn::QP1, ..good },
        Peer { qpn: Qpn::MULTICAST, ..good },
    ] {
        receive(&mut net, &from, &bytes);
    }
    // The GID or LID of the packet is not the one claimed.
    let bytes = request(&net, gid(3).into(), name(0));
    receive(&mut net, &good, &bytes);
    let bytes = request(&net, lid(3).into(), name(0));
    receive(&mut net, &good, &bytes);
    assert_eq!(net.hosts[0].machine.counters(None).refused, 10);
    assert_eq!((net.hosts[0].machine.memory().0, net.sent()), (0, 0));
}

#[test]
fn request_without_a_common_group_creates_no_cache_entry() {
    let mut net = Net::new(1, &acm());
    for theirs in [Groups::new(), [Gid([0xff; 16])].into_iter().collect()] {
        let [source, dest] = [name(1), name(0)];
        let bytes = Datagram::Request(Request { tid: 1, source, dest, groups: theirs }).to_bytes();
        receive(&mut net, &peer(1), &bytes);
    }
    assert_eq!((net.hosts[0].machine.memory().0, net.sent()), (0, 0));
}

#[test]
fn groups_that_no_endpoint_lists_any_more_make_room_for_those_of_others() {
    let second = Duration::from_secs(1);
    let mut net = Net::new(1, &Options { address_timeout: 60 * second, ..acm() });
    let lowest = groups(&net)[0];
    let lists = |net: &mut Net, n, rate| {
        let group = Group { pkey: Pkey::DEFAULT, tos: 0, rate, mtu: Mtu::M2048 }.gid();
        let groups = [lowest, group].into_iter().collect();
        let [source, dest] = [name(n), name(9)];
        let bytes = Datagram::Request(Request { tid: 1, source, dest, groups }).to_bytes();
        receive(net, &peer(n), &bytes);
        net.run();
        let mut known = net.hosts[0].machine.known(EP);
        let row = known.find(|row| row.address == name(n)).unwrap();
        row.path.unwrap().rate
    };
    for rate in [Rate::GBPS_14, Rate::GBPS_20, Rate::GBPS_25, Rate::GBPS_28] {
        assert_eq!(lists(&mut net, 5, rate), Rate::GBPS_10);
    }
    assert_eq!(net.hosts[0].machine.groups(EP).len(), 6);
    for _ in 0..2 {
        assert_eq!(lists(&mut net, 6, Rate::GBPS_50), Rate::GBPS_10);
    }
    net.pass(30 * second);
    // One of them is still in use.
    assert_eq!(lists(&mut net, 7, Rate::GBPS_14), Rate::GBPS_14);
    net.pass(31 * second);
    lists(&mut net, 6, Rate::GBPS_50);
    assert_eq!(lists(&mut net, 6, Rate::GBPS_50), Rate::GBPS_50);
    assert_eq!(lists(&mut net, 7, Rate::GBPS_14), Rate::GBPS_14);
    assert_eq!(net.hosts[0].machine.groups(EP).len(), 6);
}

#[test]
fn groups_of_other_endpoints_make_room_for_those_of_options() {
    let mut net = Net::new(1, &acm());
    let lowest = groups(&net)[0];
    let listed = [Rate::GBPS_14, Rate::GBPS_20, Rate::GBPS_25, Rate::GBPS_28];
    // The first is listed last.
    for rate in listed.into_iter().chain([listed[0]]) {
        net.pass(Duration::from_secs(1));
        let group = Group { pkey: Pkey::DEFAULT, tos: 0, rate, mtu: Mtu::M2048 }.gid();
        let groups = [lowest, group].into_iter().collect();
        let [source, dest] = [name(5), name(9)];
        let bytes = Datagram::Request(Request { tid: 1, source, dest, groups }).to_bytes();
        receive(&mut net, &peer(5), &bytes);
        net.run();
    }
    let rates = |net: &mut Net, options: Options| {
        net.with(0, |machine, now, io| machine.set_options(now, options, io));
        net.run();
        let joined = net.hosts[0].machine.groups(EP);
        assert_eq!(joined.len(), net.hosts[0].io.members.len());
        joined.iter().map(|record| record.rate).collect::<alloc::vec::Vec<_>>()
    };
    let [low, own] = [Rate::GBPS_10, Rate::GBPS_100];
    let [last, second] = [Rate::GBPS_14, Rate::GBPS_28];
    assert_eq!(rates(&mut net, acm()).len(), 6);
    let spec = |rate| GroupSpec { rate, mtu: Mtu::M4096, sl: 0, tos: 0 };
    let with = |groups: &[Rate], max_groups| {
        let groups = groups.iter().copied().map(spec).collect();
        Options { groups, max_groups, ..acm() }
    };
    let [one, other] = [Rate::GBPS_40, Rate::GBPS_60];
    assert_eq!(rates(&mut net, with(&[one, other], 6)), [low, last, second, one, other, own]);
    // Those of the options that are removed from them are left, and so are those beyond a smaller maximum.
    assert_eq!(rates(&mut net, with(&[other], 6)), [low, last, second, other, own]);
    assert_eq!(rates(&mut net, with(&[other], 4)), [low, last, other, own]);
    assert_eq!(rates(&mut net, with(&[], 1)), [low]);
}

#[test]
fn group_that_cannot_be_joined_makes_room_for_another() {
    let mut net = Net::new(1, &Options { max_groups: 3, ..acm() });
    net.has_sa = false;
    let lowest = groups(&net)[0];
    let lists = |net: &mut Net, rate| {
        let group = Group { pkey: Pkey::DEFAULT, tos: 0, rate, mtu: Mtu::M2048 }.gid();
        let groups = [lowest, group].into_iter().collect();
        let [source, dest] = [name(5), name(9)];
        let bytes = Datagram::Request(Request { tid: 1, source, dest, groups }).to_bytes();
        receive(net, &peer(5), &bytes);
        net.run();
    };
    lists(&mut net, Rate::GBPS_14);
    net.pass(Duration::from_secs(20));
    net.has_sa = true;
    lists(&mut net, Rate::GBPS_50);
    assert_eq!(net.hosts[0].machine.groups(EP).len(), 2, "it may still be joined");
    net.has_sa = false;
    net.pass(Duration::from_secs(100));
    net.has_sa = true;
    lists(&mut net, Rate::GBPS_50);
    let joined = net.hosts[0].machine.groups(EP);
    assert!(joined.iter().any(|record| record.rate == Rate::GBPS_50), "{joined:?}");
}

#[test]
fn answers_to_other_questions_make_nothing_known() {
    let mut net = Net::new(2, &acm());
    net.ask(0, crate::Dest::Address(name(1)));
    let (to, datagram) = net.hosts[0].io.sent.pop_front().unwrap();
    assert!(matches!(to, To::Group(_)));
    let lowest = groups(&net)[0];
    for tid in [0, 1, datagram.tid() ^ 1 << 40, !datagram.tid()] {
        let groups = core::iter::once(lowest).collect();
        let bytes = Datagram::Response(Response { tid, status: 0, groups }).to_bytes();
        receive(&mut net, &peer(7), &bytes);
    }
    let groups = core::iter::once(Gid([0xff; 16])).collect();
    let other = Response { tid: datagram.tid(), status: 0, groups };
    receive(&mut net, &peer(7), &Datagram::Response(other).to_bytes());
    assert_eq!(net.hosts[0].machine.counters(None).unsolicited, 5);
    assert_eq!((net.hosts[0].machine.memory().0, net.hosts[0].io.answers.len()), (0, 0));
    // The holder answers.
    let groups = core::iter::once(lowest).collect();
    let right = Response { tid: datagram.tid(), status: 0, groups };
    receive(&mut net, &peer(1), &Datagram::Response(right).to_bytes());
    assert_eq!(net.hosts[0].io.answers.len(), 1);
}

#[test]
fn flood_of_claims_is_bounded_and_keeps_what_programs_use() {
    let mut net = Net::new(3, &Options { max_entries: 200, ..acm() });
    net.resolve(0, name(1)).unwrap().unwrap();
    net.resolve(0, ip(2)).unwrap().unwrap();
    let sent = net.sent();
    for n in 0..20_000 {
        let claimed = Address::name(format!("no-such-host-with-a-long-name-{n}")).unwrap();
        let bytes = request(&net, claimed, name(9));
        receive(&mut net, &peer(5), &bytes);
    }
    let (count, bytes) = net.hosts[0].machine.memory();
    assert!(count <= 200 && bytes < 60_000, "{count} entries, {bytes} bytes");
    assert!(net.resolve(0, name(1)).unwrap().is_ok() && net.resolve(0, ip(2)).unwrap().is_ok());
    assert_eq!(net.sent(), sent, "no claim makes a datagram");
    let counters = net.hosts[0].machine.counters(None);
    assert!(counters.evicted > 10_000, "{counters:?}");
    // The number of timers does not grow, either.
    assert!(net.hosts[0].machine.timers.len() < 10);
}

#[test]
fn smaller_cache_evicts_entries_and_stores_new_ones() {
    let mut net = Net::new(2, &acm());
    for n in 100..200 {
        let bytes = request(&net, name(n), name(9));
        receive(&mut net, &peer(5), &bytes);
    }
    assert_eq!(net.hosts[0].machine.memory().0, 100);
    let options = Options { max_entries: 50, ..acm() };
    net.with(0, |machine, now, io| machine.set_options(now, options, io));
    assert_eq!(net.hosts[0].machine.memory().0, 50);
    net.resolve(0, name(1)).unwrap().unwrap();
    let sent = net.sent();
    net.resolve(0, name(1)).unwrap().unwrap();
    assert_eq!((net.sent(), net.hosts[0].machine.memory().0), (sent, 50));
}

#[test]
fn flood_of_contradicting_claims_starts_at_most_16_searches() {
    let claims = crate::ClaimPolicy::Verified;
    let mut net = Net::new(1, &Options { claims, ..acm() });
    for n in 1..200 {
        let claimed = Address::name(format!("host{n}")).unwrap();
        let bytes = request(&net, claimed, name(9));
        receive(&mut net, &peer(5), &bytes);
        receive(&mut net, &peer(6), &bytes);
    }
    assert_eq!(net.hosts[0].machine.open().1, 16);
    net.pass(Duration::from_secs(60));
    assert_eq!(net.hosts[0].machine.open().1, 0);
    assert_eq!(net.hosts[0].machine.endpoints[&EP].claims, 0);
}

#[test]
fn flood_of_requests_for_us_keeps_few_answers() {
    let mut net = Net::new(1, &Options { send_depth: 8, ..acm() });
    net.hosts[0].io.is_full = true;
    let bytes = request(&net, name(1), name(0));
    for _ in 0..1000 {
        receive(&mut net, &peer(1), &bytes);
    }
    assert_eq!(net.hosts[0].machine.endpoints[&EP].answers.len(), 8);
    assert_eq!(net.hosts[0].machine.counters(None).dropped_answers, 992);
    net.hosts[0].io.is_full = false;
    net.with(0, |machine, now, io| machine.handle_room(now, EP, io));
    assert_eq!(net.sent(), 8);
}

#[test]
fn looped_back_own_request_is_ignored() {
    let mut net = Net::new(1, &acm());
    let bytes = request(&net, name(0), name(0));
    receive(&mut net, &peer(0), &bytes);
    assert_eq!((net.sent(), net.hosts[0].io.contradictions.len()), (0, 0));
}
