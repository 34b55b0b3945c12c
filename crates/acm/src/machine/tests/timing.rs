//! Retransmission, expiry, confirmation, deadlines, and turns of clients.

use core::time::Duration;

use super::net::*;
use crate::{ClientId, Dest, Endpoint, Failure, Forget, Options, Request, RequestId};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn lost_request_is_retransmitted_and_unknown_name_is_cached_as_negative() {
    let mut net = Net::new(2, &acm());
    net.hosts[1].is_cut_off = true;
    let id = net.ask(0, Dest::Address(name(1)));
    net.run();
    net.hosts[1].is_cut_off = false;
    net.pass(Duration::from_millis(499));
    assert_eq!(net.answer(0, id), None);
    net.pass(Duration::from_millis(2));
    assert!(net.answer(0, id).unwrap().is_ok());
    // No endpoint has this name: half a second, one, two.
    let id = net.ask(0, Dest::Address(name(9)));
    net.pass(Duration::from_millis(3400));
    assert_eq!(net.answer(0, id), None);
    net.pass(Duration::from_millis(200));
    assert_eq!(net.answer(0, id), Some(Err(Failure::TimedOut)));
    let sent = net.sent();
    assert_eq!(net.resolve(0, name(9)), Some(Err(Failure::TimedOut)));
    assert_eq!(net.sent(), sent);
    net.pass(SECOND);
    assert_eq!(net.resolve(0, name(9)), None);
    assert_eq!(net.sent(), sent + 1);
    // A claim of the name ends that.
    net.add(2, acm());
    net.with(2, |machine, now, io| {
        let mut endpoint = endpoint(2);
        endpoint.addresses = [name(9)].into();
        machine.set_endpoint(now, EP, endpoint, io);
    });
    net.run();
    net.ask(2, Dest::Address(name(0)));
    net.run();
    assert!(net.resolve(0, name(9)).unwrap().is_ok());
}

#[test]
fn addresses_expire_in_seconds() {
    let options = Options { address_timeout: 3 * SECOND, refresh: false, ..acm() };
    let mut net = Net::new(2, &options);
    net.resolve(0, name(1)).unwrap().unwrap();
    let (_, until) = net.hosts[0].io.published[&name(1)];
    assert!(until <= net.now.after(3 * SECOND));
    net.pass(Duration::from_millis(2700));
    let sent = net.sent();
    net.resolve(0, name(1)).unwrap().unwrap();
    assert_eq!(net.sent(), sent);
    net.hosts[1].is_cut_off = true;
    net.pass(Duration::from_millis(300));
    assert_eq!(net.resolve(0, name(1)), None);
    assert_eq!(net.sent(), sent + 1);
}

#[test]
fn routes_expire_and_addresses_stay() {
    let options = Options { route_timeout: 3 * SECOND, refresh: false, ..Options::default() };
    let mut net = Net::new(2, &options);
    net.resolve(0, name(1)).unwrap().unwrap();
    let sent = net.sent();
    net.pass(3 * SECOND);
    net.resolve(0, name(1)).unwrap().unwrap();
    assert_eq!((net.asked.len(), net.sent()), (2, sent));
}

#[test]
fn used_entries_are_refreshed_before_they_expire() {
    let options = Options { address_timeout: 40 * SECOND, ..acm() };
    let mut net = Net::new(2, &options);
    net.resolve(0, name(1)).unwrap().unwrap();
    let mut silent = 0;
    for _ in 0..600 {
        net.pass(SECOND / 2);
        let sent = net.sent();
        let resolved = net.resolve(0, name(1));
        assert!(matches!(resolved, Some(Ok(_))), "{resolved:?} at {:?}", net.now);
        silent += u32::from(net.sent() == sent);
    }
    assert!(silent > 500, "{silent}");
    let counters = net.hosts[0].machine.counters(None);
    assert!(counters.refreshed >= 5, "{counters:?}");
    // The others learned this host's address by that, too. From then on, only the holder is queried.
    assert!(counters.sent_checks == 0 && counters.sent_requests > 5, "{counters:?}");
    for n in 0..100 {
        net.ask(0, Dest::Address(name(100 + n)));
        for _ in 0..4 {
            net.pass(SECOND / 2);
            net.resolve(0, name(1)).unwrap().unwrap();
        }
    }
    let after = net.hosts[0].machine.counters(None);
    assert!(after.sent_checks > 2 && after.refreshed >= counters.refreshed + after.sent_checks);
}

/// The address moved to another host, and the former holder does not answer. A request that arrives after the entry was
/// invalidated gets the group's answer.
#[test]
fn request_after_forget_during_holder_check_is_multicast() {
    let mut net = Net::new(3, &Options { address_timeout: 40 * SECOND, ..acm() });
    net.resolve(0, name(1)).unwrap().unwrap();
    (net.hosts[1].is_cut_off, net.hosts[2].is_cut_off) = (true, true);
    let both = Endpoint { addresses: [name(1), name(2)].into(), ..endpoint(2) };
    net.with(2, |machine, now, io| machine.set_endpoint(now, EP, both, io));
    net.pass(25 * SECOND);
    net.hosts[2].is_cut_off = false;
    net.ask(0, Dest::Address(name(100)));
    let checks = |net: &Net| net.hosts[0].machine.counters(None).sent_checks;
    while checks(&net) == 0 {
        net.pass(SECOND / 2);
        net.resolve(0, name(1)).unwrap().unwrap();
    }
    net.with(0, |machine, now, io| machine.forget(now, Forget::Address(name(1)), io));
    let id = net.ask(0, Dest::Address(name(1)));
    net.pass(30 * SECOND);
    assert_eq!(net.answer(0, id).unwrap().map(|found| found.path.dgid), Ok(gid(2)));
    assert_eq!(net.hosts[0].machine.open(), (0, 0));
}

#[test]
fn unused_entries_expire_without_refresh() {
    let mut net = Net::new(2, &Options { address_timeout: 10 * SECOND, ..acm() });
    net.resolve(0, name(1)).unwrap().unwrap();
    let sent = net.sent();
    net.pass(1000 * SECOND);
    assert_eq!((net.sent(), net.hosts[0].machine.memory().0), (sent, 0));
    assert_eq!(net.hosts[0].machine.poll_timeout(), None);
}

#[test]
fn no_request_outlives_its_deadline() {
    let mut net = Net::new(1, &acm());
    let dest = Dest::Address(name(5));
    let timeout = Some(Duration::from_millis(700));
    let id = net.request(0, &Request { source: None, dest, no_delay: false, timeout });
    let later =
        net.request(0, &Request { source: None, dest, no_delay: false, timeout: Some(SECOND) });
    net.pass(Duration::from_millis(699));
    assert_eq!(net.answer(0, id), None);
    net.pass(Duration::from_millis(1));
    assert_eq!(net.answer(0, id), Some(Err(Failure::TimedOut)));
    assert_eq!(net.answer(0, later), None);
    net.pass(SECOND);
    assert_eq!(net.answer(0, later), Some(Err(Failure::TimedOut)));
    // Clients' deadlines are limited by the option.
    let options = Options { deadline: SECOND, ..acm() };
    net.with(0, |machine, now, io| machine.set_options(now, options, io));
    let timeout = Some(Duration::MAX);
    let dest = Dest::Address(name(6));
    let id = net.request(0, &Request { source: None, dest, no_delay: false, timeout });
    net.pass(SECOND);
    assert_eq!(net.answer(0, id), Some(Err(Failure::TimedOut)));
}

#[test]
fn silent_driver_costs_no_request_more_than_its_deadline() {
    let mut net = Net::new(1, &Options { deadline: 5 * SECOND, ..Options::default() });
    let ids = [gid(5), gid(6), gid(7)].map(|gid| net.ask(0, Dest::Address(gid.into())));
    let before = net.hosts[0].io.questions.len();
    assert_eq!(before, 1, "sa_depth");
    net.hosts[0].io.questions.clear();
    for _ in 0..20 {
        net.hosts[0].io.questions.clear();
        net.pass(SECOND);
        net.hosts[0].io.questions.clear();
    }
    for id in ids {
        assert!(matches!(net.answer(0, id), Some(Err(_))));
    }
    net.pass(100 * SECOND);
    assert_eq!(net.hosts[0].machine.open(), (0, 0));
}

#[test]
fn requests_of_many_clients_run_in_parallel_and_are_bounded() {
    let options = Options { max_requests_per_client: 10, max_requests: 25, ..acm() };
    let mut net = Net::new(1, &options);
    let request =
        |n| Request { source: None, dest: Dest::Address(name(n)), no_delay: false, timeout: None };
    for client in 0..4_u8 {
        for n in 0..12_u8 {
            let (to, id) = (ClientId(client.into()), RequestId(n.into()));
            let request = request(usize::from(client) * 100 + usize::from(n) + 1);
            net.with(0, |machine, now, io| machine.request(now, to, id, &request, io));
        }
    }
    let too_many = net.hosts[0].io.answers.iter().filter(|(_, a)| *a == Err(Failure::TooMany));
    assert_eq!(too_many.count(), 48 - 25);
    assert_eq!(net.hosts[0].machine.open(), (25, 25));
    net.with(0, |machine, _, _| {
        machine.cancel(ClientId(1), RequestId(0));
        machine.remove_client(ClientId(0));
    });
    assert_eq!(net.hosts[0].machine.open().0, 14);
    net.pass(100 * SECOND);
    assert_eq!(net.hosts[0].machine.open(), (0, 0));
    assert_eq!(net.hosts[0].io.answers.len(), 48 - 11);
}

#[test]
fn clients_take_turns_where_one_request_is_sent_at_a_time() {
    let mut net = Net::new(2, &acm());
    let ask = |net: &mut Net, client, n: usize| {
        let (dest, id) = (Dest::Address(name(n)), RequestId(u64::try_from(n).unwrap()));
        let request = Request { source: None, dest, no_delay: false, timeout: None };
        net.with(0, |machine, now, io| machine.request(now, ClientId(client), id, &request, io));
        id
    };
    // No endpoint has these names.
    for n in 0..50 {
        ask(&mut net, 2, 100 + n);
        ask(&mut net, 3, 200 + n);
    }
    for client in [1, 4] {
        let id = ask(&mut net, client, 1);
        net.pass(8 * SECOND);
        assert!(matches!(net.answer(0, id), Some(Ok(_))), "{client}");
        net.with(0, |machine, now, io| machine.forget(now, crate::Forget::All, io));
        net.hosts[0].io.answers.clear();
    }
    net.pass(100 * SECOND);
    assert_eq!(net.hosts[0].machine.open(), (0, 0));
}

#[test]
fn request_that_waits_is_sent_among_many_that_do_not() {
    for others_send in [false, true] {
        let mut net = Net::new(2, &acm());
        let lowest = net.hosts[0].machine.groups(EP)[0].mgid;
        let other = rdmux_wire::acm::Request {
            tid: 1,
            source: name(8),
            dest: name(9),
            groups: core::iter::once(lowest).collect(),
        };
        let other = rdmux_wire::acm::Datagram::Request(other).to_bytes();
        let pass = |net: &mut Net| {
            for _ in 0..if others_send { 100 } else { 0 } {
                net.with(0, |m, now, io| m.handle_datagram(now, EP, &peer(8), &other, io));
            }
            net.pass(Duration::from_millis(10));
        };
        pass(&mut net);
        // No endpoint has these names.
        for n in 100..1100 {
            let dest = Dest::Address(name(n));
            net.request(0, &Request { source: None, dest, no_delay: true, timeout: None });
        }
        pass(&mut net);
        let id = net.ask(0, Dest::Address(name(1)));
        let mut is_crowded = false;
        for _ in 0..800 {
            pass(&mut net);
            is_crowded |= net.hosts[0].machine.endpoints[&EP].pace.is_crowded();
        }
        assert_eq!(is_crowded, others_send);
        assert!(matches!(net.answer(0, id), Some(Ok(_))), "{others_send}");
        net.pass(100 * SECOND);
        assert_eq!(net.hosts[0].machine.open(), (0, 0));
    }
}

#[test]
fn cancelled_requests_send_nothing() {
    let mut net = Net::new(1, &acm());
    for n in 1..100 {
        net.ask(0, Dest::Address(name(n)));
    }
    net.with(0, |machine, _, _| machine.remove_client(CLIENT));
    // Unsent searches are dropped at once.
    assert_eq!(net.hosts[0].machine.open(), (0, net.sent()));
    net.pass(100 * SECOND);
    assert!(net.sent() <= 3, "{}", net.sent());
    assert_eq!(net.hosts[0].machine.open(), (0, 0));
}

#[test]
fn sa_queries_of_cancelled_requests_are_not_sent() {
    let mut net = Net::new(1, &Options::default());
    for n in 1..100 {
        net.ask(0, Dest::Address(gid(n).into()));
    }
    // One is kept without a waiting request.
    let (dest, timeout) = (Dest::Address(gid(200).into()), Some(3 * SECOND));
    net.request(0, &Request { source: None, dest, no_delay: true, timeout });
    net.with(0, |machine, _, _| {
        machine.cancel(CLIENT, RequestId(2));
        machine.remove_client(CLIENT);
    });
    assert_eq!((net.hosts[0].io.questions.len(), net.hosts[0].machine.open()), (1, (0, 2)));
    // Subnet administration is silent for that long.
    net.hosts[0].io.questions.clear();
    net.pass(4 * SECOND);
    assert_eq!(net.hosts[0].machine.open(), (0, 1));
    net.pass(100 * SECOND);
    assert_eq!((net.asked.len(), net.hosts[0].machine.open()), (0, (0, 0)));
}

#[test]
fn no_delay_requests_of_one_client_leave_room_for_waiting_clients() {
    let options = Options { max_requests: 9, ..acm() };
    let mut net = Net::new(2, &options);
    net.hosts[0].io.is_full = true;
    let ask = |net: &mut Net, client, n, no_delay| {
        let (dest, id) = (Dest::Address(name(n)), RequestId(u64::try_from(n).unwrap()));
        let request = Request { source: None, dest, no_delay, timeout: None };
        net.with(0, |machine, now, io| machine.request(now, ClientId(client), id, &request, io));
        net.answer(0, id)
    };
    for n in 100..120 {
        assert_eq!(ask(&mut net, 1, n, true), Some(Err(Failure::NoData)));
    }
    assert_eq!(net.hosts[0].machine.open(), (0, 5));
    for n in 1..5 {
        assert_eq!(ask(&mut net, 2, n, false), None);
    }
    assert_eq!(net.hosts[0].machine.open(), (4, 9));
    assert_eq!(ask(&mut net, 2, 9, false), Some(Err(Failure::TooMany)));
}

#[test]
fn unsent_search_ends_after_cancellation_and_no_delay_timeout() {
    let mut net = Net::new(1, &acm());
    net.hosts[0].io.is_full = true;
    let request = |no_delay, seconds| {
        let (dest, timeout) = (Dest::Address(name(5)), Some(SECOND * seconds));
        Request { source: None, dest, no_delay, timeout }
    };
    for gives_up in [false, true] {
        let id = net.request(0, &request(false, 1));
        net.request(0, &request(true, 3));
        if gives_up {
            net.with(0, |machine, _, _| machine.cancel(CLIENT, id));
        }
        net.pass(2 * SECOND);
        assert_eq!(net.hosts[0].machine.open(), (0, 1), "{gives_up}");
        net.pass(2 * SECOND);
        assert_eq!(net.hosts[0].machine.open(), (0, 0), "{gives_up}");
    }
}

#[test]
fn full_send_queue_delays_requests_and_answers() {
    let mut net = Net::new(3, &acm());
    net.hosts[0].io.is_full = true;
    let id = net.ask(0, Dest::Address(name(1)));
    // One answer is queued, the second one has no room.
    net.ask(1, Dest::Address(name(0)));
    net.ask(2, Dest::Address(ip(0)));
    net.run();
    net.hosts[0].io.is_full = false;
    net.with(0, |machine, now, io| machine.handle_room(now, EP, io));
    net.run();
    assert!(net.answer(0, id).unwrap().is_ok());
    let counters = net.hosts[0].machine.counters(None);
    assert!(counters.sent_answers + counters.dropped_answers >= 2, "{counters:?}");
    net.pass(SECOND);
    assert!(net.hosts[2].io.answers.iter().all(|(_, answer)| answer.is_ok()));
}
