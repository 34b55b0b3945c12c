//! Connections between two hosts, in order and out of order.

mod net;

use net::{CLIENT, Host, Net, SERVER, param};
use rdmux_cm::{
    ChannelId, CmError, Command, Config, ConnParam, EventKind, EventParam, IdHandle, IdState,
};
use rdmux_transport::attr::{Access, AttrMask, QpState, QpType};
use rdmux_wire::cm::{CmMad, Message};
use rdmux_wire::{Mtu, Psn, Qpn, RnrTimer};
use std::time::Duration;

#[test]
fn req_rep_rtu_dreq_drep_connect_with_negotiated_attributes_and_disconnect() {
    let mut net = Net::new(2);
    let listener = net.listener(0, QpType::Rc);
    let active = net.connecting(1, 0, QpType::Rc);
    net.run_until_idle();

    let request = net.hosts[0].event(EventKind::ConnectRequest);
    assert_eq!((request.listen_id, request.context), (Some(listener), 77));
    let EventParam::Conn(asked) = &request.param else { panic!("{request:?}") };
    assert_eq!((asked.responder_resources, asked.initiator_depth), (5, 4), "sides are swapped");
    assert_eq!((asked.qp_num, asked.private_data.len()), (Qpn::new(0x11), 56));
    assert_eq!(asked.private_data[..4], [1, 2, 3, 0]);
    let route = request.route.unwrap();
    assert_eq!(route.src, net.addr(0, 7174));
    assert_eq!(route.dst.ip(), net.hosts[1].ip);
    let mut passive_qp = *request.negotiated.unwrap();

    let now = net.now;
    let answer = ConnParam { responder_resources: 3, initiator_depth: 2, ..param(0x22) };
    passive_qp.accept(&answer);
    let server = &mut net.hosts[0];
    server.cm.accept(now, request.id, &answer, &mut server.out).unwrap();
    net.run_until_idle();
    let response = net.hosts[1].event(EventKind::ConnectResponse);
    assert_eq!(response.param.private_data().len(), 196);
    let active_qp = *response.negotiated.unwrap();

    // The attributes of the two queue pairs match.
    assert_eq!((active_qp.dest_qpn, passive_qp.dest_qpn), (Qpn::new(0x22), Qpn::new(0x11)));
    assert_eq!((active_qp.sq_psn, active_qp.rq_psn), (passive_qp.rq_psn, passive_qp.sq_psn));
    assert_ne!(active_qp.sq_psn, Psn::default());
    assert_eq!((active_qp.max_rd_atomic, active_qp.max_dest_rd_atomic), (3, 2));
    assert_eq!((passive_qp.max_rd_atomic, passive_qp.max_dest_rd_atomic), (2, 3));
    assert_eq!((active_qp.rnr_retry, passive_qp.rnr_retry), (6, 6));
    // Six retries of each side last for 50 ms at least.
    assert_eq!([active_qp.min_rnr_timer, passive_qp.min_rnr_timer].map(RnrTimer::code), [20; 2]);
    assert_eq!((active_qp.timeout.code(), passive_qp.timeout.code()), (19, 19));
    assert_eq!(active_qp.path_mtu, Mtu::M1024);

    let client = &mut net.hosts[1];
    client.cm.establish(now, active, &mut client.out).unwrap();
    net.run_until_idle();
    net.hosts[0].event(EventKind::Established);
    assert!(net.hosts[1].events().is_empty(), "who establishes need not be told");

    let client = &mut net.hosts[1];
    client.cm.disconnect(now, active, &mut client.out).unwrap();
    net.run_until_idle();
    net.hosts[0].event(EventKind::Disconnected);
    assert!(net.hosts[1].events().is_empty(), "DREP comes when the peer's program answers");
    let server = &mut net.hosts[0];
    server.cm.disconnect(now, request.id, &mut server.out).unwrap();
    net.run_until_idle();
    net.hosts[1].event(EventKind::Disconnected);
    assert_eq!(net.log, ["REQ", "REP", "RTU", "DREQ", "DREP"]);

    net.exhaust();
    net.hosts[0].event(EventKind::TimewaitExit);
    net.hosts[1].event(EventKind::TimewaitExit);
    net.end();
}

/// In both orders of what may happen at that moment.
#[test]
fn id_destroyed_when_timewait_ends_has_had_the_event_or_never_has_it() {
    let mut exit = None;
    let events = [true, false].map(|exits_first| {
        let mut net = Net::new(2);
        net.listener(0, QpType::Rc);
        let (active, passive) = net.connected(QpType::Rc);
        for (host, id) in [(1, active), (0, passive)] {
            let Host { cm, out, .. } = &mut net.hosts[host];
            cm.disconnect(net.now, id, out).unwrap();
            net.run_until_idle();
        }
        net.hosts[1].event(EventKind::Disconnected);
        if exits_first {
            let client = &mut net.hosts[1];
            while client.out.events.is_empty() {
                net.now = client.cm.poll_timeout().unwrap();
                client.cm.handle_timeout(net.now, &mut client.out);
            }
            client.event(EventKind::TimewaitExit);
            exit = Some(net.now);
        } else {
            net.now = exit.unwrap();
        }
        let events = net.destroy(1, active);
        net.exhaust();
        assert!(net.hosts[1].events().is_empty());
        net.end();
        events
    });
    assert_eq!(events[0], events[1] + 1);
}

#[test]
fn attributes_are_those_that_rdma_init_qp_attr_gives() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    net.connecting(1, 0, QpType::Rc);
    net.run_until_idle();
    let mut qp = *net.hosts[0].event(EventKind::ConnectRequest).negotiated.unwrap();
    let mask = |qp: &rdmux_cm::Negotiated, state| qp.qp_attr(state).1;

    let (init, of_init) = qp.qp_attr(QpState::Init);
    assert_eq!(of_init.bits(), 1 | 1 << 3 | 1 << 4 | 1 << 5);
    assert_eq!((init.state, init.port_num, init.pkey_index), (QpState::Init, 1, 0));
    assert_eq!(init.access, Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC);
    let rtr =
        AttrMask::STATE | AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let rc = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    assert_eq!(mask(&qp, QpState::Rtr), rtr | rc);
    let rts = AttrMask::STATE | AttrMask::SQ_PSN;
    let rc =
        AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC | AttrMask::TIMEOUT;
    assert_eq!(mask(&qp, QpState::Rts), rts | rc);
    let av = qp.qp_attr(QpState::Rtr).0.av;
    assert_eq!((av.dgid.ip(), av.hop_limit, av.sgid_index), (net.hosts[1].ip, 64, 3));
    assert!(av.is_global);

    qp.max_dest_rd_atomic = 0;
    assert_eq!(qp.qp_attr(QpState::Init).0.access, Access::REMOTE_WRITE);
    qp.qp_type = QpType::Uc;
    assert_eq!((mask(&qp, QpState::Rtr), mask(&qp, QpState::Rts)), (rtr, rts));
    qp.qp_type = QpType::Ud;
    assert_eq!(mask(&qp, QpState::Init).bits(), 1 | 1 << 4 | 1 << 5 | 1 << 6);
    assert_eq!((mask(&qp, QpState::Rtr), mask(&qp, QpState::Rts)), (AttrMask::STATE, rts));
    assert_eq!(mask(&qp, QpState::Err), AttrMask::STATE);
}

#[test]
fn loopback_connection_of_a_host_to_itself_connects_and_disconnects() {
    let mut net = Net::new(1);
    net.listener(0, QpType::Rc);
    let active = net.connecting(0, 0, QpType::Rc);
    net.run_until_idle();
    let passive = net.hosts[0].event(EventKind::ConnectRequest).id;
    let now = net.now;
    let host = &mut net.hosts[0];
    host.cm.accept(now, passive, &param(0x22), &mut host.out).unwrap();
    net.run_until_idle();
    let host = &mut net.hosts[0];
    assert_eq!(host.event(EventKind::ConnectResponse).id, active);
    host.cm.establish(now, active, &mut host.out).unwrap();
    net.run_until_idle();
    let host = &mut net.hosts[0];
    assert_eq!(host.event(EventKind::Established).id, passive);
    // Both disconnect at once: neither waits for the other's program.
    host.cm.disconnect(now, active, &mut host.out).unwrap();
    host.cm.disconnect(now, passive, &mut host.out).unwrap();
    net.run_until_idle();
    let ended: Vec<_> = net.hosts[0].events().iter().map(|e| (e.kind, e.id)).collect();
    assert_eq!(ended.len(), 2, "{ended:?}");
    for id in [active, passive] {
        assert!(ended.contains(&(EventKind::Disconnected, id)), "{ended:?}");
    }
    net.end();
}

#[test]
fn nobody_listens() {
    let mut net = Net::new(2);
    net.connecting(1, 0, QpType::Rc);
    net.run_until_idle();
    assert_eq!(net.hosts[1].kinds(), [(EventKind::Rejected, 8)]);
    assert_eq!(net.hosts[0].cm.counters().no_listener, 1);
    assert_eq!(net.log, ["REQ", "REJ"]);
    net.end();
}

#[test]
fn request_waits_during_listener_grace_until_the_next_listener() {
    for qp_type in [QpType::Rc, QpType::Ud] {
        let mut net = Net::new(2);
        let first = net.listener(0, qp_type);
        net.destroy(0, first);
        let active = net.connecting(1, 0, qp_type);
        net.run_until_idle();
        assert!(net.hosts[1].kinds().is_empty());
        net.listener(0, qp_type);
        net.pass(Duration::ZERO);
        net.hosts[0].event(EventKind::ConnectRequest);
        net.destroy(1, active);
        net.run_until_idle();
    }
}

#[test]
fn request_is_rejected_invalid_service_id_when_listener_grace_ends() {
    let grace = Config::default().listener_grace;
    let mut net = Net::new(2);
    let first = net.listener(0, QpType::Rc);
    net.destroy(0, first);
    net.connecting(1, 0, QpType::Rc);
    net.pass(grace / 2);
    assert_eq!(net.hosts[1].kinds(), []);
    net.pass(grace);
    assert_eq!(net.hosts[1].kinds(), [(EventKind::Rejected, 8)]);
    // Much later the connection is forgotten.
    net.pass(Duration::from_secs(60));
    net.connecting(1, 0, QpType::Rc);
    net.run_until_idle();
    assert_eq!(net.hosts[1].kinds(), [(EventKind::Rejected, 8)]);
    assert_eq!(net.hosts[0].cm.counters().no_listener, 2);
    net.end();
}

#[test]
fn request_destroyed_during_listener_grace_raises_no_connect_request() {
    let mut net = Net::new(2);
    let first = net.listener(0, QpType::Rc);
    net.destroy(0, first);
    let active = net.connecting(1, 0, QpType::Rc);
    net.run_until_idle();
    net.destroy(1, active);
    net.run_until_idle();
    net.listener(0, QpType::Rc);
    net.pass(Duration::ZERO);
    assert_eq!(net.hosts[0].kinds(), []);
}

#[test]
fn reject_carries_reason_and_private_data_to_the_active_side() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    let active = net.connecting(1, 0, QpType::Rc);
    net.run_until_idle();
    let request = net.hosts[0].event(EventKind::ConnectRequest).id;
    let server = &mut net.hosts[0];
    let too_long = server.cm.reject(net.now, request, 28, &[0; 149], &mut server.out);
    assert_eq!(too_long.unwrap_err().errno(), 22);
    server.cm.reject(net.now, request, 28, b"no", &mut server.out).unwrap();
    net.run_until_idle();
    let refused = net.hosts[1].event(EventKind::Rejected);
    assert_eq!((refused.status, refused.id), (28, active));
    assert_eq!(refused.param.private_data().len(), 148);
    assert_eq!(refused.param.private_data()[..3], *b"no\0");
    // Disconnecting a closed connection is no error.
    let client = &mut net.hosts[1];
    client.cm.disconnect(net.now, active, &mut client.out).unwrap();
    let server = &mut net.hosts[0];
    let again = server.cm.accept(net.now, request, &param(1), &mut server.out).unwrap_err();
    assert!(matches!(again, CmError::State { state: IdState::Connect, .. }), "{again}");
    net.end();
}

#[test]
fn reject_of_a_rep_raises_rejected_at_the_passive_side() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    let active = net.connecting(1, 0, QpType::Rc);
    net.run_until_idle();
    let passive = net.hosts[0].event(EventKind::ConnectRequest).id;
    let server = &mut net.hosts[0];
    server.cm.accept(net.now, passive, &param(2), &mut server.out).unwrap();
    net.run_until_idle();
    let client = &mut net.hosts[1];
    client.event(EventKind::ConnectResponse);
    client.cm.reject(net.now, active, 28, &[], &mut client.out).unwrap();
    net.run_until_idle();
    assert_eq!(net.hosts[0].kinds(), [(EventKind::Rejected, 28)]);
    net.end();
}

#[test]
fn reject_after_accept_is_repeated_for_rtu_when_the_rej_was_lost() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    let mut lost = 1;
    net.filter = Box::new(move |m| {
        let lose = matches!(m, Message::Rej(_)) && lost > 0;
        lost -= u32::from(lose);
        !lose
    });
    let active = net.connecting(1, 0, QpType::Rc);
    net.run_until_idle();
    let now = net.now;
    let server = &mut net.hosts[0];
    let passive = server.event(EventKind::ConnectRequest).id;
    server.cm.accept(now, passive, &param(2), &mut server.out).unwrap();
    server.cm.reject(now, passive, 28, b"later", &mut server.out).unwrap();
    net.run_until_idle();
    let client = &mut net.hosts[1];
    client.event(EventKind::ConnectResponse);
    client.cm.establish(now, active, &mut client.out).unwrap();
    net.run_until_idle();
    let refused = net.hosts[1].event(EventKind::Rejected);
    assert_eq!((refused.status, &refused.param.private_data()[..5]), (28, &b"later"[..]));
    assert!(net.hosts[0].events().is_empty(), "who refuses need not be told");
    net.end();
}

/// Host 0 accepts and revokes that. The REJ is lost, as is every DREQ but the first. Returns host
/// 1's id, which has the response and has not decided yet.
fn disconnected_before_established(net: &mut Net) -> IdHandle {
    net.listener(0, QpType::Rc);
    let mut dreqs = 0;
    net.filter = Box::new(move |m| {
        dreqs += u32::from(matches!(m, Message::Dreq(_)));
        !matches!(m, Message::Rej(_)) && (dreqs <= 1 || !matches!(m, Message::Dreq(_)))
    });
    let active = net.connecting(1, 0, QpType::Rc);
    net.run_until_idle();
    let now = net.now;
    let server = &mut net.hosts[0];
    let passive = server.event(EventKind::ConnectRequest).id;
    server.cm.accept(now, passive, &param(2), &mut server.out).unwrap();
    server.cm.reject(now, passive, 28, &[], &mut server.out).unwrap();
    net.run_until_idle();
    net.hosts[1].event(EventKind::ConnectResponse);
    // Until host 0 has given up.
    net.pass(Duration::from_secs(200));
    assert_eq!(net.log.iter().filter(|&&name| name == "DREQ").count(), 16);
    assert!(net.hosts[1].events().is_empty(), "the program has not decided yet");
    active
}

#[test]
fn disconnected_before_establish_is_reported_after_establish() {
    let mut net = Net::new(2);
    let active = disconnected_before_established(&mut net);
    let (now, client) = (net.now, &mut net.hosts[1]);
    let ended = client.cm.disconnect(now, active, &mut client.out);
    assert!(matches!(ended, Err(CmError::State { .. })), "{ended:?}");
    client.cm.establish(now, active, &mut client.out).unwrap();
    client.event(EventKind::Disconnected);
    assert!(client.cm.establish(now, active, &mut client.out).is_err(), "once is enough");
    // The program sends the answer, which names the transaction of the DREQ.
    assert!(client.out.mads.is_empty());
    client.cm.disconnect(now, active, &mut client.out).unwrap();
    let answer = CmMad::parse(&client.out.mads[0].1).unwrap();
    assert!(matches!(answer.message, Message::Drep(_)), "{answer:?}");
    net.exhaust();
    net.hosts[1].event(EventKind::TimewaitExit);
    net.end();
}

/// Host 0 accepts and revokes that. The revocation overtakes the REP. The RTU is lost, as is everything that host 0 sends later.
#[test]
fn dreq_that_overtakes_rep_is_reported_after_establish() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    let active = net.connecting(1, 0, QpType::Rc);
    net.run_until_idle();
    let now = net.now;
    let server = &mut net.hosts[0];
    let passive = server.event(EventKind::ConnectRequest).id;
    server.cm.accept(now, passive, &param(2), &mut server.out).unwrap();
    let late = server.out.mads.pop_front().unwrap();
    server.cm.reject(now, passive, 28, &[], &mut server.out).unwrap();
    net.filter = Box::new(|m| matches!(m, Message::Dreq(_)));
    while !net.log.contains(&"DREQ") {
        net.pass(Duration::from_millis(100));
    }
    assert!(!net.log.contains(&"DREP"), "the peer says it again until the REP has come");
    net.filter = Box::new(|_| false);
    net.deliver(&late.0, &late.1);
    let client = &mut net.hosts[1];
    client.event(EventKind::ConnectResponse);
    client.cm.establish(net.now, active, &mut client.out).unwrap();
    client.event(EventKind::Disconnected);
    client.cm.disconnect(net.now, active, &mut client.out).unwrap();
    net.exhaust();
    net.hosts[1].event(EventKind::TimewaitExit);
    net.end();
}

#[test]
fn reject_instead_of_establish_after_dreq_raises_no_event() {
    let mut net = Net::new(2);
    let active = disconnected_before_established(&mut net);
    let (now, client) = (net.now, &mut net.hosts[1]);
    client.cm.reject(now, active, 28, &[], &mut client.out).unwrap();
    net.exhaust();
    assert!(net.hosts[1].events().is_empty());
    net.end();
}

#[test]
fn req_without_answer_is_unreachable_etimedout_after_16_transmissions() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    net.filter = Box::new(|m| !matches!(m, Message::Req(_)));
    let start = net.now;
    net.connecting(1, 0, QpType::Rc);
    net.pass(Duration::from_millis(6144 * 16 - 1));
    assert!(net.hosts[1].events().is_empty());
    net.pass(Duration::from_millis(2));
    assert_eq!(net.hosts[1].kinds(), [(EventKind::Unreachable, -110)]);
    assert_eq!(net.log.iter().filter(|&&name| name == "REQ").count(), 16);
    assert_eq!(net.now.since(start), Duration::from_millis(6144 * 16 + 1));
    assert_eq!(net.hosts[1].cm.counters().mads_retried, 15);
    net.end();
}

#[test]
fn icmp_unreachable_ends_req_and_sidr_req_with_ehostunreach() {
    let mut net = Net::new(2);
    net.filter = Box::new(|_| false);
    net.connecting(1, 0, QpType::Rc);
    net.connecting(1, 0, QpType::Ud);
    net.run_until_idle();
    let (now, ip) = (net.now, net.hosts[0].ip);
    let client = &mut net.hosts[1];
    client.cm.handle_unreachable(now, ip, &mut client.out);
    assert_eq!(client.kinds(), [(EventKind::Unreachable, -113); 2]);
    net.end();
}

#[test]
fn lost_req_rep_rtu_dreq_or_drep_is_recovered_by_retransmission() {
    for lost in ["REQ", "REP", "RTU", "DREQ", "DREP"] {
        let mut net = Net::new(2);
        net.listener(0, QpType::Rc);
        let mut drops = 1;
        net.filter = Box::new(move |m| {
            let drop = m.name() == lost && drops > 0;
            drops -= u32::from(drop);
            !drop
        });
        let active = net.connecting(1, 0, QpType::Rc);
        net.pass(Duration::from_secs(20));
        let passive = net.hosts[0].event(EventKind::ConnectRequest).id;
        let now = net.now;
        let server = &mut net.hosts[0];
        server.cm.accept(now, passive, &param(2), &mut server.out).unwrap();
        net.pass(Duration::from_secs(20));
        net.hosts[1].event(EventKind::ConnectResponse);
        let now = net.now;
        let client = &mut net.hosts[1];
        client.cm.establish(now, active, &mut client.out).unwrap();
        net.pass(Duration::from_secs(80));
        net.hosts[0].event(EventKind::Established);
        let now = net.now;
        let client = &mut net.hosts[1];
        client.cm.disconnect(now, active, &mut client.out).unwrap();
        net.pass(Duration::from_secs(7));
        net.hosts[0].event(EventKind::Disconnected);
        let now = net.now;
        let server = &mut net.hosts[0];
        server.cm.disconnect(now, passive, &mut server.out).unwrap();
        net.pass(Duration::from_secs(1));
        net.pass(Duration::from_secs(20));
        let kinds = net.hosts[1].kinds();
        assert_eq!(kinds[0].0, EventKind::Disconnected, "{lost}: {kinds:?}");
        assert_eq!(kinds[1], (EventKind::TimewaitExit, 0), "{lost}: {kinds:?}");
        net.end();
    }
}

#[test]
fn mra_keeps_the_peer_waiting_while_the_program_is_slow() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    let active = net.connecting(1, 0, QpType::Rc);
    // Far longer than all retries take without MRA.
    net.pass(Duration::from_secs(200));
    let passive = net.hosts[0].event(EventKind::ConnectRequest).id;
    assert!(net.hosts[1].events().is_empty());
    assert!(net.log.contains(&"MRA"));
    let now = net.now;
    let server = &mut net.hosts[0];
    server.cm.accept(now, passive, &param(2), &mut server.out).unwrap();
    net.pass(Duration::from_secs(200));
    net.hosts[1].event(EventKind::ConnectResponse);
    assert!(net.hosts[0].events().is_empty());
    let now = net.now;
    let client = &mut net.hosts[1];
    client.cm.establish(now, active, &mut client.out).unwrap();
    net.run_until_idle();
    net.hosts[0].event(EventKind::Established);
    net.end();
}

#[test]
fn comm_est_notify_before_rtu_raises_established_once() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    net.filter = Box::new(|m| !matches!(m, Message::Rtu(_)));
    let active = net.connecting(1, 0, QpType::Rc);
    net.run_until_idle();
    let now = net.now;
    let server = &mut net.hosts[0];
    let passive = server.event(EventKind::ConnectRequest).id;
    server.cm.accept(now, passive, &param(2), &mut server.out).unwrap();
    net.run_until_idle();
    let client = &mut net.hosts[1];
    client.cm.establish(now, active, &mut client.out).unwrap();
    net.run_until_idle();
    let server = &mut net.hosts[0];
    assert!(server.events().is_empty());
    server.cm.notify(now, passive, &mut server.out).unwrap();
    server.cm.notify(now, passive, &mut server.out).unwrap();
    server.event(EventKind::Established);
    net.filter = Box::new(|_| true);
    net.end();
}

#[test]
fn closed_channel_disconnects_connections_and_rejects_pending_requests() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    let (_, passive) = net.connected(QpType::Rc);
    // Another connection awaits the server's answer.
    let waiting = {
        let id = net.routed(1, 0, QpType::Rc);
        let now = net.now;
        let h = &mut net.hosts[1];
        h.cm.connect(now, id, &param(0x12), &mut h.out).unwrap();
        id
    };
    net.run_until_idle();
    net.hosts[0].event(EventKind::ConnectRequest);
    let now = net.now;
    let server = &mut net.hosts[0];
    server.cm.channel_gone(now, SERVER, &mut server.out);
    assert_eq!(server.cm.ids().count(), 0);
    assert_eq!(server.cm.ports_in_use(), 0);
    assert_eq!(server.cm.channel_of(passive), None);
    net.run_until_idle();
    let events = net.hosts[1].events();
    assert_eq!(events.len(), 2, "{events:?}");
    let rejected = events.iter().find(|e| e.id == waiting).unwrap();
    assert_eq!((rejected.kind, rejected.status), (EventKind::Rejected, 28));
    let down = events.iter().find(|e| e.id != waiting).unwrap();
    assert_eq!(down.kind, EventKind::Disconnected);
    net.hosts[1].cm.channel_gone(now, CLIENT, &mut net::Out::default());
    net.end();
}

#[test]
fn accept_after_the_active_process_has_died_is_einval() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    net.connecting(1, 0, QpType::Rc);
    net.run_until_idle();
    let request = net.hosts[0].event(EventKind::ConnectRequest).id;
    let now = net.now;
    let client = &mut net.hosts[1];
    client.cm.channel_gone(now, CLIENT, &mut client.out);
    net.run_until_idle();
    let server = &mut net.hosts[0];
    assert_eq!(server.kinds(), [], "the request is not answered");
    let refused = server.cm.accept(now, request, &param(0x22), &mut server.out);
    assert_eq!(refused.unwrap_err().errno(), 22);
    // A program that accepted without waiting for the result gets the event then, once.
    for _ in 0..2 {
        server.cm.handle_refused(request, Command::Accept, 22, &mut server.out);
    }
    assert_eq!(server.kinds(), [(EventKind::Rejected, 4)]);
    net.end();
}

#[test]
fn req_from_the_qp_of_an_existing_connection_is_rejected_stale() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    let (_, passive) = net.connected(QpType::Rc);
    // The client's host restarts and uses the same queue pair.
    let ip = net.hosts[1].ip;
    let mut fresh = rdmux_cm::Manager::new(rdmux_cm::Config::default(), [99; 32]);
    fresh.set_addresses(net.now, vec![net::local_address(ip, 2)], &mut net::Out::default());
    net.hosts[1].cm = fresh;
    net.connecting(1, 0, QpType::Rc);
    net.run_until_idle();
    assert_eq!(net.hosts[1].kinds(), [(EventKind::Rejected, 10)]);
    let down = net.hosts[0].event(EventKind::Disconnected);
    assert_eq!(down.id, passive, "the old one ends");
    assert_eq!(net.hosts[0].cm.counters().stale, 1);
    // Now the queue pair is free.
    net.connecting(1, 0, QpType::Rc);
    net.run_until_idle();
    net.hosts[0].event(EventKind::ConnectRequest);
    net.end();
}

#[test]
fn req_beyond_the_backlog_is_dropped_and_destroyed_listener_rejects_the_rest() {
    let mut net = Net::new(2);
    let listener = net.listener(0, QpType::Rc);
    for n in 0..20 {
        let id = net.routed(1, 0, QpType::Rc);
        let now = net.now;
        let h = &mut net.hosts[1];
        h.cm.connect(now, id, &param(0x100 + n), &mut h.out).unwrap();
    }
    net.run_until_idle();
    let requests: Vec<_> = net.hosts[0].events().iter().map(|e| e.id).collect();
    assert_eq!(requests.len(), 16);
    assert_eq!(net.hosts[0].cm.counters().backlog_full, 4);
    net.hosts[0].cm.take(requests[0]).unwrap();
    net.pass(Duration::from_secs(7));
    assert_eq!(net.hosts[0].events().len(), 1, "a dropped one came again");
    // Destroying the listener destroys its untaken requests.
    assert_eq!(net.destroy(0, listener), 17);
    net.filter = Box::new(|m| !matches!(m, Message::Req(_)));
    net.run_until_idle();
    let refused = net.hosts[1].kinds();
    assert_eq!(refused, [(EventKind::Rejected, 28); 16]);
    assert_eq!(net.hosts[0].cm.ids().collect::<Vec<_>>(), [requests[0]]);
    net.end();
}

#[test]
fn migrate_moves_events_to_the_new_channel_and_destroy_returns_their_count() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    let (active, passive) = net.connected(QpType::Rc);
    let other = ChannelId(9);
    assert_eq!(net.hosts[1].cm.migrate(active, other), Ok(3), "address, route, response");
    assert_eq!(net.hosts[1].cm.channel_of(active), Some(other));
    let server = &mut net.hosts[0];
    server.cm.disconnect(net.now, passive, &mut server.out).unwrap();
    net.run_until_idle();
    let (channel, event) = net.hosts[1].out.events.pop_front().unwrap();
    assert_eq!((channel, event.kind, event.context), (other, EventKind::Disconnected, 88));
    assert_eq!(net.destroy(1, active), 4);
    net.run_until_idle();
    net.exhaust();
    assert!(net.hosts[1].events().is_empty(), "an id that is gone hears nothing");
    // The passive id had ESTABLISHED, DISCONNECTED, TIMEWAIT_EXIT. Its CONNECT_REQUEST counts for
    // the listener.
    assert_eq!(net.destroy(0, passive), 3);
    net.end();
}

#[test]
fn req_of_uc_to_an_rc_listener_is_rejected_invalid_transport() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Uc);
    let (active, _) = net.connected(QpType::Uc);
    assert_eq!(net.hosts[1].cm.query(active).unwrap().qp_type, QpType::Uc);
    net.end();
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    net.connecting(1, 0, QpType::Uc);
    net.run_until_idle();
    assert_eq!(net.hosts[1].kinds(), [(EventKind::Rejected, 9)]);
    net.end();
}

#[test]
fn accept_with_maximal_depths_takes_those_of_the_request() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    net.connecting(1, 0, QpType::Rc);
    net.run_until_idle();
    let request = net.hosts[0].event(EventKind::ConnectRequest);
    let most = ConnParam { responder_resources: 255, initiator_depth: 255, ..param(2) };
    let mut own = *request.negotiated.unwrap();
    own.accept(&most);
    assert_eq!((own.max_dest_rd_atomic, own.max_rd_atomic), (5, 4));
    let too_many = ConnParam { responder_resources: 200, ..param(2) };
    let now = net.now;
    let server = &mut net.hosts[0];
    let refused = server.cm.accept(now, request.id, &too_many, &mut server.out);
    assert_eq!(refused.unwrap_err().errno(), 22);
    server.cm.accept(now, request.id, &most, &mut server.out).unwrap();
    net.run_until_idle();
    let response = *net.hosts[1].event(EventKind::ConnectResponse).negotiated.unwrap();
    assert_eq!((response.max_rd_atomic, response.max_dest_rd_atomic), (5, 4));
    net.end();
}

/// A device that serves few requests may have a peer that serves many.
#[test]
fn responder_resources_and_initiator_depth_have_separate_limits() {
    let config = Config { max_rd_atomic: 2, max_init_rd_atomic: 4, ..Config::default() };
    let mut net = Net::with(2, config);
    net.listener(0, QpType::Rc);
    let id = net.routed(1, 0, QpType::Rc);
    let now = net.now;
    let host = &mut net.hosts[1];
    for (responder_resources, initiator_depth) in [(3, 4), (2, 5)] {
        let deep = ConnParam { responder_resources, initiator_depth, ..param(1) };
        assert_eq!(host.cm.connect(now, id, &deep, &mut host.out).unwrap_err().errno(), 22);
    }
    let most = ConnParam { responder_resources: 255, initiator_depth: 255, ..param(1) };
    host.cm.connect(now, id, &most, &mut host.out).unwrap();
    net.run_until_idle();
    let request = net.hosts[0].event(EventKind::ConnectRequest);
    let EventParam::Conn(asked) = &request.param else { panic!("{request:?}") };
    assert_eq!((asked.responder_resources, asked.initiator_depth), (4, 2), "sides are swapped");
    let passive = request.negotiated.unwrap();
    assert_eq!((passive.max_dest_rd_atomic, passive.max_rd_atomic), (2, 2));
    net.end();
}
