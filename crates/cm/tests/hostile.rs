//! Attacks by a peer that must have no effect.

mod net;

use net::{Net, Out, SERVER, param};
use proptest::prelude::*;
use rdmux_cm::{EventKind, IdHandle, MadPath, Time};
use rdmux_transport::attr::QpType;
use rdmux_wire::cm::{
    AprStatus, CmMad, Drep, Dreq, Lap, Message, Path, Rej, RejOf, RejReason, Rep, Req, Rtu,
};
use rdmux_wire::{AckTimeout, Gid, Guid, Mtu, Psn, Qkey, Qpn};
use std::net::IpAddr;
use std::time::Duration;

/// Returns the path of a datagram to host 0 whose source address is `from`.
fn path_from(net: &Net, from: IpAddr) -> MadPath {
    MadPath::between(from, net.hosts[0].ip)
}

/// Creates a connection from host 1 to host 0. Returns also all datagrams that host 0 received meanwhile.
fn recorded() -> (Net, IdHandle, Vec<[u8; 256]>) {
    let mut net = Net::new(3);
    net.listener(0, QpType::Rc);
    let active = net.connecting(1, 0, QpType::Rc);
    let req = net.hosts[1].out.mads[0].1;
    net.run_until_idle();
    let now = net.now;
    let server = &mut net.hosts[0];
    let passive = server.event(EventKind::ConnectRequest).id;
    server.cm.accept(now, passive, &param(0x22), &mut server.out).unwrap();
    net.run_until_idle();
    let client = &mut net.hosts[1];
    client.event(EventKind::ConnectResponse);
    client.cm.establish(now, active, &mut client.out).unwrap();
    let rtu = client.out.mads[0].1;
    net.run_until_idle();
    net.hosts[0].event(EventKind::Established);
    (net, passive, vec![req, rtu])
}

fn ids_of(rtu: &[u8; 256]) -> (u32, u32) {
    let Message::Rtu(rtu) = CmMad::parse(rtu).unwrap().message else { panic!() };
    (rtu.local_comm_id, rtu.remote_comm_id)
}

#[test]
fn mad_with_bad_length_version_class_method_or_attribute_is_counted_and_dropped() {
    let (mut net, _, mads) = recorded();
    let path = path_from(&net, net.hosts[1].ip);
    let patched = |at: usize, value: u8| {
        let mut mad = mads[0];
        mad[at] = value;
        mad
    };
    net.deliver(&path, &mads[0][..255]);
    net.deliver(&path, &[&mads[0][..], &[0]].concat());
    for (at, value) in [(0, 2), (1, 3), (2, 1), (3, 0x83), (17, 0x0f), (17, 0x1b)] {
        net.deliver(&path, &patched(at, value));
    }
    let counters = *net.hosts[0].cm.counters();
    assert_eq!((counters.bad_length, counters.bad_version), (2, 1));
    assert_eq!((counters.bad_class, counters.bad_class_version), (1, 1));
    assert_eq!((counters.bad_method, counters.bad_attribute), (1, 2));
    assert!(net.hosts[0].out.mads.is_empty() && net.hosts[0].events().is_empty());
    net.end();
}

#[test]
fn replayed_messages_are_counted_as_duplicates_and_not_answered() {
    let (mut net, _, mads) = recorded();
    let path = path_from(&net, net.hosts[1].ip);
    for _ in 0..3 {
        for mad in &mads {
            net.deliver(&path, mad);
        }
    }
    assert!(net.hosts[0].out.mads.is_empty() && net.hosts[0].events().is_empty());
    assert_eq!(net.hosts[0].cm.counters().duplicates, 6);
    net.end();
}

#[test]
fn dreq_or_rej_from_another_host_or_with_wrong_ids_does_not_disconnect() {
    let (mut net, passive, mads) = recorded();
    let (theirs, ours) = ids_of(&mads[1]);
    let stranger = path_from(&net, net.hosts[2].ip);
    let peer = path_from(&net, net.hosts[1].ip);
    let dreq = |remote_comm_id, local_comm_id, qpn| {
        let dreq = Dreq {
            local_comm_id,
            remote_comm_id,
            remote_qpn: Qpn::new(qpn),
            private_data: [0; 220],
        };
        CmMad::new(1, dreq.into()).to_bytes()
    };
    net.deliver(&stranger, &dreq(ours, theirs, 0x22));
    net.deliver(&peer, &dreq(ours, theirs ^ 1, 0x22));
    net.deliver(&peer, &dreq(ours, theirs, 0x23));
    let rej = |which| {
        let rej = Rej {
            local_comm_id: theirs,
            remote_comm_id: ours,
            message: which,
            ari_len: 0,
            reason: RejReason::STALE_CONN,
            ari: [0; 72],
            private_data: [0; 148],
        };
        CmMad::new(1, rej.into()).to_bytes()
    };
    net.deliver(&stranger, &rej(RejOf::Req));
    net.deliver(&stranger, &rej(RejOf::NoMessage));
    assert!(net.hosts[0].events().is_empty());
    // A request that names the peer's queue pair is refused, and the refusal reveals nothing of the peer.
    let mut req = CmMad::parse(&mads[0]).unwrap();
    let Message::Req(fields) = &mut req.message else { panic!() };
    fields.local_comm_id ^= 1;
    net.deliver(&stranger, &req.to_bytes());
    let (path, answer) = net.hosts[0].out.mads.pop_back().unwrap();
    let Message::Rej(refusal) = CmMad::parse(&answer).unwrap().message else { panic!("a DREQ") };
    assert_eq!((refusal.reason, path.remote()), (RejReason::STALE_CONN, stranger.local));
    assert!(net.hosts[0].events().is_empty());
    // The two DREQs for connections that do not exist were answered.
    net.run_until_idle();
    assert_eq!(net.log.iter().filter(|&&m| m == "DREP").count(), 2);
    let drep = Drep { local_comm_id: theirs, remote_comm_id: ours, private_data: [0; 224] };
    net.deliver(&peer, &CmMad::new(1, drep.into()).to_bytes());
    assert!(net.hosts[0].events().is_empty(), "an answer to nothing");
    net.deliver(&peer, &dreq(ours, theirs, 0x22));
    assert_eq!(net.hosts[0].event(EventKind::Disconnected).id, passive, "the right one counts");
    net.end();
}

/// Sends a request of host 1 to a listener of host 0, with the longest times that its fields can hold.
fn request_with_longest_times(net: &mut Net) -> Req {
    net.listener(0, QpType::Rc);
    net.connecting(1, 0, QpType::Rc);
    let Message::Req(mut req) = net.sent(1).1.message else { panic!() };
    req.local_cm_response_timeout = 31;
    req.primary.ack_timeout = AckTimeout::new(31);
    req
}

/// Accepts the request and establishes the connection. Returns the id of host 0, and its communication id.
fn comes_up(net: &mut Net, req: Req) -> (IdHandle, u32) {
    let local_comm_id = req.local_comm_id;
    net.say(1, 0, 1, req);
    let (now, host) = (net.now, &mut net.hosts[0]);
    let passive = host.event(EventKind::ConnectRequest).id;
    host.cm.accept(now, passive, &param(0x22), &mut host.out).unwrap();
    let Message::Rep(rep) = net.sent(0).1.message else { panic!() };
    let remote_comm_id = rep.local_comm_id;
    net.say(1, 0, 1, Rtu { local_comm_id, remote_comm_id, private_data: [0; 224] });
    net.hosts[0].event(EventKind::Established);
    (passive, remote_comm_id)
}

/// The peer disconnects such a connection, and the program agrees.
fn goes_down(net: &mut Net, passive: IdHandle, (ours, theirs): (u32, u32)) {
    let (remote_qpn, private_data) = (Qpn::new(0x22), [0; 220]);
    let dreq = Dreq { local_comm_id: theirs, remote_comm_id: ours, remote_qpn, private_data };
    net.say(1, 0, 2, dreq);
    let (now, host) = (net.now, &mut net.hosts[0]);
    host.event(EventKind::Disconnected);
    host.cm.disconnect(now, passive, &mut host.out).unwrap();
    assert_eq!(net.sent(0).1.message.name(), "DREP");
}

#[test]
fn timewait_is_bounded_whatever_the_peers_timeouts_say() {
    let mut net = Net::new(2);
    let req = request_with_longest_times(&mut net);
    let (passive, ours) = comes_up(&mut net, req);
    goes_down(&mut net, passive, (ours, req.local_comm_id));
    let ends = net.hosts[0].cm.poll_timeout().unwrap();
    assert!(ends <= net.now.after(Duration::from_secs(17)), "{ends:?}");
    net.end();
}

#[test]
fn dreq_retransmission_is_bounded_whatever_the_peers_timeouts_say() {
    let mut net = Net::new(2);
    let req = request_with_longest_times(&mut net);
    let (passive, _) = comes_up(&mut net, req);
    net.filter = Box::new(|_| false);
    net.destroy(0, passive);
    assert!(net.hosts[0].cm.says_goodbye());
    net.pass(16 * Duration::from_secs(17));
    assert!(!net.hosts[0].cm.says_goodbye(), "the peer is gone");
    net.end();
}

#[test]
fn oldest_timewait_is_forgotten_beyond_the_limit_and_counted() {
    const MOST: usize = 1 << 15;
    let mut net = Net::new(2);
    let mut req = request_with_longest_times(&mut net);
    let mut first = None;
    for local_comm_id in 1..=u32::try_from(MOST + 2).unwrap() {
        req.local_comm_id = local_comm_id;
        let (passive, ours) = comes_up(&mut net, req);
        goes_down(&mut net, passive, (ours, local_comm_id));
        if first.is_some() {
            net.destroy(0, passive);
        } else {
            first = Some(passive);
        }
    }
    let (now, host) = (net.now, &mut net.hosts[0]);
    host.cm.handle_timeout(now, &mut host.out);
    let exit = host.event(EventKind::TimewaitExit);
    assert_eq!(Some(exit.id), first, "the oldest is forgotten");
    assert_eq!((host.cm.connections(), host.cm.counters().timewait_forgotten), (MOST, 2));
    net.end();
}

#[test]
fn lap_is_answered_apr_unsupported_or_invalid_comm_id_and_counted() {
    let (mut net, _, mads) = recorded();
    let (theirs, ours) = ids_of(&mads[1]);
    let peer = path_from(&net, net.hosts[1].ip);
    for (remote_comm_id, status) in
        [(ours, AprStatus::UNSUPPORTED), (ours ^ 1, AprStatus::INVALID_COMM_ID)]
    {
        let lap = Lap {
            local_comm_id: theirs,
            remote_comm_id,
            remote_qpn: Qpn::new(0x22),
            remote_cm_response_timeout: 20,
            alternate: Path::default(),
            private_data: [0; 168],
        };
        net.deliver(&peer, &CmMad::new(9, lap.into()).to_bytes());
        let (_, mad) = net.hosts[0].out.mads.pop_front().unwrap();
        let mad = CmMad::parse(&mad).unwrap();
        let Message::Apr(apr) = mad.message else { panic!() };
        assert_eq!((apr.status, apr.remote_comm_id, mad.tid), (status, theirs, 9));
    }
    assert_eq!(net.hosts[0].cm.counters().laps_refused, 2);
    net.end();
}

#[test]
fn rep_or_rtu_with_unknown_comm_id_is_rejected_and_mra_or_rej_ignored() {
    let mut net = Net::new(2);
    let peer = path_from(&net, net.hosts[1].ip);
    let rep = Rep {
        local_comm_id: 5,
        remote_comm_id: 6,
        local_qkey: Qkey(0),
        local_qpn: Qpn::new(7),
        local_eecn: 0,
        vendor_id: 0,
        starting_psn: Psn::new(0),
        responder_resources: 0,
        initiator_depth: 0,
        target_ack_delay: 0,
        failover_accepted: 0,
        end_to_end_flow_control: false,
        rnr_retry_count: 0,
        srq: false,
        local_ca_guid: Guid(0),
        private_data: [0; 196],
    };
    net.deliver(&peer, &CmMad::new(3, rep.into()).to_bytes());
    let (_, mad) = net.hosts[0].out.mads.pop_front().unwrap();
    let Message::Rej(rej) = CmMad::parse(&mad).unwrap().message else { panic!() };
    assert_eq!((rej.reason, rej.message), (RejReason::INVALID_COMM_ID, RejOf::Rep));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (6, 5));
    let rtu = Rtu { local_comm_id: 5, remote_comm_id: 6, private_data: [0; 224] };
    net.deliver(&peer, &CmMad::new(3, rtu.into()).to_bytes());
    let (_, mad) = net.hosts[0].out.mads.pop_front().unwrap();
    let Message::Rej(rej) = CmMad::parse(&mad).unwrap().message else { panic!() };
    assert_eq!((rej.reason, rej.message), (RejReason::INVALID_COMM_ID, RejOf::NoMessage));
    let mra = rdmux_wire::cm::Mra {
        local_comm_id: 5,
        remote_comm_id: 6,
        message: rdmux_wire::cm::MraOf::Rep,
        service_timeout: 31,
        private_data: [0; 222],
    };
    net.deliver(&peer, &CmMad::new(3, mra.into()).to_bytes());
    net.deliver(&peer, &mad);
    assert!(net.hosts[0].out.mads.is_empty(), "MRA and REJ to nothing are not answered");
    net.end();
}

#[test]
fn req_that_contradicts_its_datagram_is_rejected_with_the_reason() {
    let mut net = Net::new(3);
    net.listener(0, QpType::Rc);
    net.connecting(1, 0, QpType::Rc);
    let mad = net.hosts[1].out.mads.pop_front().unwrap().1;
    let right = path_from(&net, net.hosts[1].ip);
    let lies = |patch: &dyn Fn(&mut rdmux_wire::cm::Req)| {
        let mut mad = CmMad::parse(&mad).unwrap();
        let Message::Req(req) = &mut mad.message else { panic!() };
        patch(req);
        mad.to_bytes()
    };
    let elsewhere = Gid::from(net.hosts[2].ip);
    for (what, mad, reason) in [
        ("data would go elsewhere", lies(&|r| r.primary.local_gid = elsewhere), 12),
        ("to another host", lies(&|r| r.primary.remote_gid = elsewhere), 12),
        ("MTU above the port's", lies(&|r| r.path_mtu = Mtu::M4096.code()), 26),
        ("no MTU", lies(&|r| r.path_mtu = 9), 26),
        ("IP version", lies(&|r| r.private_data[1] = 0x50), 28),
        ("private data's address", lies(&|r| r.private_data[19] = 77), 12),
        ("another service", lies(&|r| r.service_id.0 += 1), 8),
        ("no IP service", lies(&|r| r.service_id.0 |= 1 << 40), 8),
        ("reliable datagrams", lies(&|r| r.transport = rdmux_wire::cm::Transport::Rd), 9),
        ("XRC", lies(&|r| r.transport = rdmux_wire::cm::Transport::XRC), 9),
        ("no transport", lies(&|r| r.transport = rdmux_wire::cm::Transport::Extended(5)), 9),
    ] {
        net.deliver(&right, &mad);
        let (_, answer) = net.hosts[0].out.mads.pop_front().expect(what);
        let Message::Rej(rej) = CmMad::parse(&answer).unwrap().message else { panic!("{what}") };
        assert_eq!((rej.reason.0, rej.message), (reason, RejOf::Req), "{what}");
        assert_eq!(net.hosts[0].cm.connections(), 0, "{what}");
    }
    assert!(net.hosts[0].events().is_empty());
    net.deliver(&right, &mad);
    net.hosts[0].event(EventKind::ConnectRequest);
    net.end();
}

#[test]
fn comm_ids_psns_and_tids_of_successive_connections_are_unpredictable() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    let reqs: Vec<_> = (0..16)
        .map(|_| {
            net.connecting(1, 0, QpType::Rc);
            let (_, mad) = net.hosts[1].out.mads.pop_back().unwrap();
            let CmMad { tid, message: Message::Req(req), .. } = CmMad::parse(&mad).unwrap() else {
                panic!("a REQ is the first message")
            };
            (req.local_comm_id, req.starting_psn.get(), tid & 0xffff_ffff)
        })
        .collect();
    let far = |a: u32, b: u32| a.abs_diff(b) > 64 && a ^ b > 64;
    for two in reqs.windows(2) {
        let [(id, psn, tid), (next_id, next_psn, next_tid)] = [two[0], two[1]];
        assert!(far(id, next_id), "communication ids {id:#x} {next_id:#x}");
        assert!(far(psn, next_psn), "PSNs {psn:#x} {next_psn:#x}");
        assert_ne!(tid, next_tid);
    }
}

proptest! {
    /// Mutated datagrams, in any number, cause no panic and leak nothing.
    #[test]
    fn mutated_cm_datagrams_do_not_panic_or_leak(
        edits in prop::collection::vec((0usize..8, 0usize..200, any::<u8>()), 1..60),
    ) {
        let (mut net, _, mut mads) = recorded();
        let (theirs, ours) = ids_of(&mads[1]);
        let path = path_from(&net, net.hosts[1].ip);
        // Every message type, about the connection that exists.
        for attr in 0x11..=0x1a {
            let mut mad = mads[1];
            mad[17] = attr;
            mads.push(mad);
        }
        prop_assert_ne!(theirs, ours);
        for (n, (mad, at, value)) in edits.into_iter().enumerate() {
            let mut bytes = mads[(mad + n) % mads.len()];
            bytes[at] = value;
            net.deliver(&path, &bytes);
            let host = &mut net.hosts[0];
            host.cm.handle_timeout(Time(net.now.0 + n as u64), &mut host.out);
        }
        let now = net.now;
        net.hosts[0].cm.channel_gone(now, SERVER, &mut Out::default());
        prop_assert_eq!(net.hosts[0].cm.ids().count(), 0);
        net.end();
    }
}
