//! Addresses that two endpoints claim, under each `claim_policy`.

use alloc::vec::Vec;
use core::time::Duration;

use rdmux_wire::Lid;
use rdmux_wire::acm::{Datagram, Request};

use super::net::*;
use crate::{ClaimPolicy, Dest, Forget, Options, Peer, Port, RequestId};

/// Returns three hosts. The last one claims the first one's name.
fn with_a_liar(claims: ClaimPolicy) -> Net {
    let mut net = Net::new(3, &Options { claims, ..acm() });
    net.resolve(1, name(0)).unwrap().unwrap();
    lie(&mut net);
    net
}

fn lie(net: &mut Net) {
    claim(net, &peer(2));
}

fn claim(net: &mut Net, from: &Peer) {
    let groups = net.hosts[2].machine.groups(EP).iter().map(|group| group.mgid).collect();
    let request = Request { tid: 1, source: name(0), dest: name(9), groups };
    let bytes = Datagram::Request(request).to_bytes();
    net.with(1, |machine, now, io| machine.handle_datagram(now, EP, from, &bytes, io));
}

fn holder(net: &mut Net) -> usize {
    let path = net.resolve(1, name(0)).unwrap().unwrap().path;
    usize::from(path.dlid.0 - 1)
}

/// The first holder is gone in one case, and present in the other.
#[test]
fn newest_claim_is_believed_while_administration_is_asked_for_the_holder_before() {
    for is_gone in [false, true] {
        let mut net = Net::new(3, &Options::default());
        claim(&mut net, &peer(0));
        let id = net.ask(1, Dest::Address(name(0)));
        let question = net.hosts[1].io.questions[0].1;
        assert_eq!(question.dgid, gid(0));
        claim(&mut net, &peer(2));
        net.hosts[0].is_cut_off = is_gone;
        net.run();
        assert_eq!(net.answer(1, id).unwrap().unwrap().path.dgid, gid(2));
        assert_eq!(holder(&mut net), 2);
        assert_eq!(net.hosts[1].io.published[&name(0)].0.dgid, gid(2));
    }
}

#[test]
fn newest_claim_is_believed_and_counted() {
    let mut net = with_a_liar(ClaimPolicy::Newest);
    assert_eq!(holder(&mut net), 2);
    let counters = net.hosts[1].machine.counters(None);
    assert_eq!((counters.contradictions, counters.replaced), (1, 1));
    assert_eq!(net.hosts[1].io.contradictions, [(name(0), gid(0), gid(2), true)]);
}

#[test]
fn first_claim_is_believed_until_it_expires() {
    let mut net = with_a_liar(ClaimPolicy::First);
    assert_eq!(holder(&mut net), 0);
    assert_eq!(net.hosts[1].io.contradictions, [(name(0), gid(0), gid(2), false)]);
    net.hosts[0].is_cut_off = true;
    net.pass(Duration::from_secs(1440 * 60));
    lie(&mut net);
    assert_eq!(holder(&mut net), 2);
}

#[test]
fn verified_claim_is_refused_while_the_holder_answers() {
    let mut net = with_a_liar(ClaimPolicy::Verified);
    net.pass(Duration::from_secs(10));
    assert_eq!(holder(&mut net), 0);
    assert_eq!(net.hosts[1].io.contradictions, [(name(0), gid(0), gid(2), false)]);
    assert_eq!(net.asked.len(), 0);
}

#[test]
fn verified_claim_is_accepted_if_holder_is_silent_and_sa_knows_the_claimant() {
    let mut net = Net::new(3, &Options { claims: ClaimPolicy::Verified, ..acm() });
    net.resolve(1, name(0)).unwrap().unwrap();
    net.hosts[0].is_cut_off = true;
    lie(&mut net);
    net.pass(Duration::from_secs(10));
    assert_eq!(holder(&mut net), 2);
    assert_eq!((net.asked.len(), net.asked[0].dgid), (1, gid(2)));
    // The claim is not believed when subnet administration has no such port.
    let mut net = Net::new(3, &Options { claims: ClaimPolicy::Verified, ..acm() });
    net.resolve(1, name(0)).unwrap().unwrap();
    net.hosts[0].is_cut_off = true;
    lie(&mut net);
    net.hosts[2].is_cut_off = true;
    net.pass(Duration::from_secs(10));
    assert_eq!(holder(&mut net), 0);
}

/// Returns a host that knows the holder of a name, and a request for the name that arrives while a claim of it is
/// being verified.
fn with_a_liar_and_a_client() -> (Net, RequestId) {
    let mut net = Net::new(3, &Options { claims: ClaimPolicy::Verified, ..Options::default() });
    net.ask(0, Dest::Address(name(9)));
    net.run();
    net.with(0, |machine, _, _| machine.remove_client(CLIENT));
    lie(&mut net);
    let id = net.ask(1, Dest::Address(name(0)));
    assert_eq!((net.answer(1, id), net.asked.len()), (None, 0));
    (net, id)
}

fn assert_holder_keeps_it(mut net: Net, id: RequestId) {
    net.run();
    assert_eq!(net.answer(1, id).unwrap().unwrap().path.dlid, lid(0));
    assert_eq!(net.hosts[1].io.contradictions, [(name(0), gid(0), gid(2), false)]);
    assert_eq!(holder(&mut net), 0);
    // The next claim is verified like the first one.
    let checks = net.hosts[1].machine.counters(None).sent_checks;
    lie(&mut net);
    assert_eq!(net.hosts[1].machine.counters(None).sent_checks, checks + 1);
    net.pass(Duration::from_secs(10));
    assert_eq!(net.hosts[1].machine.open(), (0, 0));
}

#[test]
fn verified_claim_is_refused_also_where_administration_gives_the_path() {
    let (mut net, id) = with_a_liar_and_a_client();
    net.run();
    assert_eq!(net.asked.iter().map(|record| record.dgid).collect::<Vec<_>>(), [gid(0)]);
    assert_holder_keeps_it(net, id);
}

#[test]
fn verified_claim_is_refused_when_the_holder_sends_a_request() {
    let (mut net, id) = with_a_liar_and_a_client();
    claim(&mut net, &peer(0));
    assert_eq!(net.hosts[1].io.questions[0].1.dgid, gid(0));
    assert_holder_keeps_it(net, id);
    // The result is the same when subnet administration was already queried for the claimant.
    let (mut net, id) = with_a_liar_and_a_client();
    ask_for_the_liar(&mut net);
    claim(&mut net, &peer(0));
    assert_holder_keeps_it(net, id);
}

/// Keeps the holder silent until subnet administration is queried for the claimant.
fn ask_for_the_liar(net: &mut Net) {
    net.hosts[1].io.sent.clear();
    while net.hosts[1].io.questions.is_empty() {
        net.now = net.hosts[1].machine.poll_timeout().unwrap();
        net.with(1, |machine, now, io| {
            machine.handle_timeout(now, io);
            io.sent.clear();
        });
    }
    assert_eq!(net.hosts[1].io.questions[0].1.dgid, gid(2));
}

fn forget(net: &mut Net) {
    net.with(1, |machine, now, io| machine.forget(now, Forget::Address(name(0)), io));
}

#[test]
fn verified_claim_is_refused_when_the_holder_answers_after_it_was_forgotten() {
    let (mut net, id) = with_a_liar_and_a_client();
    forget(&mut net);
    assert_holder_keeps_it(net, id);
}

#[test]
fn waiting_client_gets_path_when_address_is_forgotten_during_claim_verification() {
    for is_there in [true, false] {
        let (mut net, id) = with_a_liar_and_a_client();
        ask_for_the_liar(&mut net);
        forget(&mut net);
        net.hosts[2].is_cut_off = !is_there;
        net.run();
        assert_eq!(net.answer(1, id).unwrap().unwrap().path.dlid, lid(0), "{is_there}");
        assert_eq!(net.hosts[1].machine.open(), (0, 0));
    }
}

#[test]
fn forgotten_address_with_open_claim_and_no_client_sends_no_more_requests() {
    let (mut net, _) = with_a_liar_and_a_client();
    ask_for_the_liar(&mut net);
    forget(&mut net);
    net.with(1, |machine, _, _| machine.remove_client(CLIENT));
    let sent = net.hosts[1].io.count;
    net.pass(Duration::from_secs(10));
    assert_eq!(net.hosts[1].machine.open(), (0, 0));
    assert_eq!(net.hosts[1].io.count, sent);
}

#[test]
fn waiting_client_gets_path_to_the_holder_that_claim_verification_finds() {
    for is_there in [true, false] {
        let (mut net, id) = with_a_liar_and_a_client();
        // The holder's service is gone, not its port.
        net.hosts[1].io.sent.clear();
        net.with(0, |machine, now, io| {
            let endpoint = crate::Endpoint { addresses: [name(7)].into(), ..endpoint(0) };
            machine.set_endpoint(now, EP, endpoint, io);
        });
        net.hosts[2].is_cut_off = !is_there;
        net.pass(Duration::from_secs(10));
        let holder = if is_there { 2 } else { 0 };
        assert_eq!(net.answer(1, id).unwrap().unwrap().path.dlid, lid(holder), "{is_there}");
        assert_eq!(net.hosts[1].io.contradictions, [(name(0), gid(0), gid(2), is_there)]);
    }
}

#[test]
fn verified_claim_may_come_from_any_lid_of_its_port() {
    let mut net = Net::new(6, &Options { claims: ClaimPolicy::Verified, ..acm() });
    net.with(1, |m, now, io| m.set_port(now, PORT, Port { lmc: 1, ..port(1) }, io));
    net.run();
    net.resolve(1, name(0)).unwrap().unwrap();
    net.hosts[0].is_cut_off = true;
    // Subnet administration has it at LID 6, and LID 7 belongs to the same port.
    claim(&mut net, &Peer { lid: Lid(7), ..peer(5) });
    net.pass(Duration::from_secs(10));
    assert_eq!(net.hosts[1].io.contradictions, [(name(0), gid(0), gid(5), true)]);
}

#[test]
fn claim_of_a_local_address_is_refused_and_reported() {
    for claims in [ClaimPolicy::First, ClaimPolicy::Newest, ClaimPolicy::Verified] {
        let mut net = Net::new(2, &Options { claims, ..acm() });
        let groups = net.hosts[0].machine.groups(EP).iter().map(|group| group.mgid).collect();
        let request = Request { tid: 1, source: name(0), dest: name(0), groups };
        let bytes = Datagram::Request(request).to_bytes();
        net.with(0, |machine, now, io| machine.handle_datagram(now, EP, &peer(1), &bytes, io));
        net.run();
        assert_eq!(net.resolve(0, name(0)).unwrap().unwrap().path.dlid, lid(0));
        assert_eq!((net.sent(), net.hosts[0].io.contradictions.len()), (0, 1));
    }
}

#[test]
fn changed_qpn_of_a_restarted_service_is_not_counted_as_contradiction() {
    let mut net = Net::new(2, &Options { claims: ClaimPolicy::First, ..acm() });
    net.resolve(0, name(1)).unwrap().unwrap();
    net.with(1, |machine, now, io| {
        let qpn = rdmux_wire::Qpn::new(0x99);
        machine.set_endpoint(now, EP, crate::Endpoint { qpn, ..endpoint(1) }, io);
    });
    net.resolve(1, ip(0)).unwrap().unwrap();
    assert_eq!(net.hosts[0].machine.counters(None).contradictions, 0);
}
