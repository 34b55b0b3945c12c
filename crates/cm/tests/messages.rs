//! The messages of InfiniBand's connection manager, one by one: their fields, senders and effects.

mod net;

use std::net::IpAddr;
use std::time::Duration;

use net::{Net, SECOND, param};
use rdmux_cm::{
    Addr, CmOption, Config, ConnParam, Courtesy, EventKind, Failover, IdHandle, IdOption, Redirect,
    Refusal,
};
use rdmux_transport::attr::QpType;
use rdmux_wire::cm::{
    CmMad, Message, Mra, MraOf, Rej, RejOf, RejReason, SidrRep, SidrReq, SidrStatus,
};
use rdmux_wire::{Gid, Mtu, Pkey, Psn, Qkey, Qpn, ServiceId};

const SERVER: usize = 0;
const CLIENT: usize = 1;

fn set(net: &mut Net, host: usize, id: IdHandle, options: &[CmOption]) {
    for option in options {
        net.hosts[host].cm.set_option(id, IdOption::Cm(*option)).unwrap();
    }
}

/// Creates a listener and a client with a route to it, whose programs get all messages.
fn told(qp_type: QpType) -> (Net, IdHandle) {
    let mut net = Net::new(3);
    let listener = net.listener(SERVER, qp_type);
    set(&mut net, SERVER, listener, &[CmOption::Messages(true)]);
    let id = net.routed(CLIENT, SERVER, qp_type);
    set(&mut net, CLIENT, id, &[CmOption::Messages(true)]);
    (net, id)
}

fn connect(net: &mut Net, id: IdHandle) {
    let (now, host) = (net.now, &mut net.hosts[CLIENT]);
    host.cm.connect(now, id, &param(0x11), &mut host.out).unwrap();
}

fn accept(net: &mut Net, id: IdHandle) {
    let (now, host) = (net.now, &mut net.hosts[SERVER]);
    host.cm.accept(now, id, &param(0x22), &mut host.out).unwrap();
}

fn establish(net: &mut Net, id: IdHandle) {
    let (now, host) = (net.now, &mut net.hosts[CLIENT]);
    host.cm.establish(now, id, &mut host.out).unwrap();
}

fn disconnect(net: &mut Net, host: usize, id: IdHandle) {
    let (now, host) = (net.now, &mut net.hosts[host]);
    host.cm.disconnect(now, id, &mut host.out).unwrap();
}

fn refuse(net: &mut Net, host: usize, id: IdHandle, refusal: &Refusal) {
    let (now, host) = (net.now, &mut net.hosts[host]);
    host.cm.reject_with(now, id, refusal, &mut host.out).unwrap();
}

/// Returns a request that has reached the server.
fn requested(net: &mut Net, id: IdHandle) -> IdHandle {
    connect(net, id);
    net.run_until_idle();
    net.hosts[SERVER].event(EventKind::ConnectRequest).id
}

#[test]
fn cm_options_set_the_fields_of_req_and_rep() {
    let (mut net, id) = told(QpType::Rc);
    set(
        &mut net,
        CLIENT,
        id,
        &[
            CmOption::RemoteResponseTimeout(17),
            CmOption::LocalResponseTimeout(19),
            CmOption::MaxRetries(3),
            CmOption::StartingPsn(0x12_3456),
            CmOption::PathMtu(Mtu::M256),
            CmOption::LocalQkey(0x77),
            CmOption::LocalEecn(0x12_3456),
            CmOption::RemoteEecn(0xfe_dcba),
            CmOption::RdcExists(true),
        ],
    );
    connect(&mut net, id);
    net.run_until_idle();
    let event = net.hosts[SERVER].event(EventKind::ConnectRequest);
    let Some(Message::Req(req)) = event.message().map(|mad| mad.message) else { panic!() };
    assert_eq!((req.remote_cm_response_timeout, req.local_cm_response_timeout), (17, 19));
    assert_eq!((req.max_cm_retries, req.starting_psn), (3, Psn::new(0x12_3456)));
    assert_eq!((req.path_mtu, req.local_qkey), (Mtu::M256.code(), Qkey(0x77)));
    assert_eq!((req.local_eecn, req.remote_eecn, req.rdc_exists), (0x12_3456, 0xfe_dcba, true));
    let negotiated = event.negotiated.unwrap();
    assert_eq!((negotiated.path_mtu, negotiated.sq_psn), (Mtu::M256, Psn::new(0x12_3456)));

    set(&mut net, SERVER, event.id, &[CmOption::TargetAckDelay(9), CmOption::LocalQkey(0x88)]);
    set(
        &mut net,
        SERVER,
        event.id,
        &[CmOption::Failover(Failover::NotSupported), CmOption::LocalEecn(0xab_cdef)],
    );
    accept(&mut net, event.id);
    net.run_until_idle();
    let event = net.hosts[CLIENT].event(EventKind::ConnectResponse);
    let Some(Message::Rep(rep)) = event.message().map(|mad| mad.message) else { panic!() };
    assert_eq!((rep.target_ack_delay, rep.failover_accepted, rep.local_qkey), (9, 1, Qkey(0x88)));
    assert_eq!((rep.local_eecn, rep.local_qpn), (0xab_cdef, param(0x22).qp_num));
    // The client's own queue pair gets the short path MTU that the client asked for.
    assert_eq!(event.negotiated.unwrap().path_mtu, Mtu::M256);
    net.end();
}

#[test]
fn events_carry_no_message_without_the_messages_option() {
    let mut net = Net::new(2);
    net.listener(SERVER, QpType::Rc);
    net.connecting(CLIENT, SERVER, QpType::Rc);
    net.run_until_idle();
    let event = net.hosts[SERVER].event(EventKind::ConnectRequest);
    assert_eq!((event.mad.is_none(), event.message()), (true, None));
    net.end();
}

#[test]
fn options_out_of_range_or_too_late_are_refused() {
    let (mut net, id) = told(QpType::Rc);
    for option in [
        CmOption::RemoteResponseTimeout(32),
        CmOption::LocalResponseTimeout(32),
        CmOption::MaxRetries(16),
        CmOption::StartingPsn(1 << 24),
        CmOption::TargetAckDelay(32),
        CmOption::ServiceTimeout(32),
        CmOption::MaxRedirects(16),
        CmOption::LocalEecn(1 << 24),
        CmOption::RemoteEecn(u32::MAX),
    ] {
        let refused = net.hosts[CLIENT].cm.set_option(id, IdOption::Cm(option)).unwrap_err();
        assert_eq!(refused.errno(), 22, "{option:?}");
    }
    let passive = requested(&mut net, id);
    let late = IdOption::Cm(CmOption::StartingPsn(5));
    assert_eq!(net.hosts[CLIENT].cm.set_option(id, late).unwrap_err().errno(), 22);
    accept(&mut net, passive);
    assert_eq!(net.hosts[SERVER].cm.set_option(passive, late).unwrap_err().errno(), 22);
    net.end();
}

/// Returns the starting PSN of REP, and the first one that the client's queue pair sends.
fn psns_of_rep(net: &mut Net, passive: IdHandle) -> [Psn; 2] {
    accept(net, passive);
    net.run_until_idle();
    let event = net.hosts[CLIENT].event(EventKind::ConnectResponse);
    let Some(Message::Rep(rep)) = event.message().map(|mad| mad.message) else { panic!() };
    [rep.starting_psn, event.negotiated.unwrap().sq_psn]
}

#[test]
fn starting_psn_option_of_a_listener_is_in_its_rep() {
    let mut net = Net::new(2);
    let listener = net.listener(SERVER, QpType::Rc);
    set(&mut net, SERVER, listener, &[CmOption::StartingPsn(0x65_4321)]);
    let id = net.routed(CLIENT, SERVER, QpType::Rc);
    set(&mut net, CLIENT, id, &[CmOption::Messages(true)]);
    connect(&mut net, id);
    net.run_until_idle();
    let request = net.hosts[SERVER].event(EventKind::ConnectRequest);
    assert_eq!(request.negotiated.unwrap().rq_psn, Psn::new(0x65_4321));
    assert_eq!(psns_of_rep(&mut net, request.id), [Psn::new(0x65_4321); 2]);
    net.end();
}

#[test]
fn starting_psn_may_be_set_for_each_request() {
    let (mut net, id) = told(QpType::Rc);
    let passive = requested(&mut net, id);
    set(&mut net, SERVER, passive, &[CmOption::StartingPsn(0x12_3456)]);
    assert_eq!(psns_of_rep(&mut net, passive), [Psn::new(0x12_3456); 2]);
    net.end();
}

#[test]
fn response_timeouts_and_retries_of_req_rule_the_repetitions_of_both_sides() {
    let (mut net, id) = told(QpType::Rc);
    set(
        &mut net,
        CLIENT,
        id,
        &[
            CmOption::RemoteResponseTimeout(18),
            CmOption::LocalResponseTimeout(17),
            CmOption::MaxRetries(2),
        ],
    );
    net.filter = Box::new(|message| !matches!(message, Message::Req(_)));
    connect(&mut net, id);
    // Twice the packet lifetime of 1,024 ms, and 1,024 ms.
    net.pass(Duration::from_millis(3071));
    assert_eq!(net.log.iter().filter(|&&m| m == "REQ").count(), 1);
    net.pass(Duration::from_millis(1));
    assert_eq!(net.log.iter().filter(|&&m| m == "REQ").count(), 2);
    net.filter = Box::new(|message| !matches!(message, Message::Rep(_)));
    net.pass(Duration::from_millis(3072));
    let passive = net.hosts[SERVER].event(EventKind::ConnectRequest).id;
    net.log.clear();
    accept(&mut net, passive);
    net.pass(Duration::from_millis(511));
    assert_eq!(net.log, ["REP"]);
    net.pass(Duration::from_millis(1));
    assert_eq!(net.log, ["REP", "REP"]);
    net.pass(Duration::from_millis(1100));
    assert_eq!(net.log.iter().filter(|&&m| m == "REP").count(), 3, "as often as REQ says");
    let events = net.hosts[SERVER].kinds();
    assert_eq!(events, [(EventKind::Unreachable, -110)]);
    net.end();
}

#[test]
fn mra_of_req_delays_retransmission_and_is_repeated_for_a_duplicate_req() {
    let (mut net, id) = told(QpType::Rc);
    let passive = requested(&mut net, id);
    net.log.clear();
    // 65.5 s.
    let server = &mut net.hosts[SERVER];
    server.cm.ask_for_time(passive, 24, b"soon", &mut server.out).unwrap();
    net.run_until_idle();
    let event = net.hosts[CLIENT].event(EventKind::MoreTime);
    let Some(Message::Mra(mra)) = event.message().map(|mad| mad.message) else { panic!() };
    assert_eq!((event.status, mra.service_timeout, mra.message), (24, 24, MraOf::Req));
    assert_eq!(mra.private_data[..5], *b"soon\0");
    net.pass(65 * SECOND);
    assert_eq!(net.log, ["MRA"], "no repetition for as long as it says");
    net.pass(5 * SECOND);
    assert_eq!(net.log, ["MRA", "REQ", "MRA"]);
    assert_eq!(net.hosts[CLIENT].event(EventKind::MoreTime).status, 24);
    accept(&mut net, passive);
    net.run_until_idle();
    net.hosts[CLIENT].event(EventKind::ConnectResponse);
    net.end();
}

#[test]
fn mra_of_rep_delays_its_retransmission_until_rtu() {
    let (mut net, id) = told(QpType::Rc);
    let passive = requested(&mut net, id);
    accept(&mut net, passive);
    net.run_until_idle();
    net.hosts[CLIENT].event(EventKind::ConnectResponse);
    net.log.clear();
    let client = &mut net.hosts[CLIENT];
    client.cm.ask_for_time(id, 22, &[], &mut client.out).unwrap();
    net.pass(16 * SECOND);
    assert_eq!(net.log, ["MRA"]);
    assert_eq!(net.hosts[SERVER].event(EventKind::MoreTime).status, 22);
    establish(&mut net, id);
    net.run_until_idle();
    let event = net.hosts[SERVER].event(EventKind::Established);
    assert!(matches!(event.message().unwrap().message, Message::Rtu(_)));
    // Now there is no message that it could be about.
    let client = &mut net.hosts[CLIENT];
    let over = client.cm.ask_for_time(id, 22, &[], &mut client.out).unwrap_err();
    assert_eq!(over.errno(), 22);
    net.end();
}

#[test]
fn mra_is_sent_for_a_duplicate_rep_with_the_service_timeout_option() {
    let (mut net, id) = told(QpType::Rc);
    let passive = requested(&mut net, id);
    accept(&mut net, passive);
    net.run_until_idle();
    net.hosts[CLIENT].event(EventKind::ConnectResponse);
    // For REP the connecting side is the slow one.
    net.log.clear();
    net.pass(5 * SECOND);
    assert_eq!(net.log, ["REP", "MRA"]);
    assert_eq!(net.hosts[SERVER].event(EventKind::MoreTime).status, 24);
    net.end();
    let (mut net, id) = told(QpType::Rc);
    set(&mut net, CLIENT, id, &[CmOption::ServiceTimeout(13)]);
    let passive = requested(&mut net, id);
    accept(&mut net, passive);
    net.run_until_idle();
    net.hosts[CLIENT].event(EventKind::ConnectResponse);
    net.pass(5 * SECOND);
    assert_eq!(net.hosts[SERVER].events()[0].status, 13);
    net.end();
}

#[test]
fn endless_mras_end_in_unreachable_etimedout_and_are_counted_as_flood() {
    let (mut net, id) = told(QpType::Rc);
    set(&mut net, CLIENT, id, &[CmOption::MaxRetries(3)]);
    connect(&mut net, id);
    let (_, req) = net.sent(CLIENT);
    let Message::Req(sent) = req.message else { panic!() };
    let mra = Mra {
        local_comm_id: 77,
        remote_comm_id: sent.local_comm_id,
        message: MraOf::Req,
        service_timeout: 20,
        private_data: [0; 222],
    };
    net.filter = Box::new(|_| false);
    for _ in 0..20 {
        net.say(SERVER, CLIENT, req.tid, mra);
    }
    assert_eq!(net.hosts[CLIENT].cm.counters().floods, 16);
    net.pass(60 * SECOND);
    let kinds = net.hosts[CLIENT].kinds();
    assert_eq!(kinds.iter().filter(|(kind, _)| *kind == EventKind::MoreTime).count(), 4);
    assert_eq!(kinds.last(), Some(&(EventKind::Unreachable, -110)));
    net.end();
}

#[test]
fn rej_has_the_reason_and_the_additional_information_of_the_program() {
    for reason in [1, 3, 5, 12, 21, 28, 29, 33, 35, 0x1234] {
        let (mut net, id) = told(QpType::Rc);
        let passive = requested(&mut net, id);
        let info = (0..72).collect::<Vec<u8>>();
        let refusal = Refusal { reason, info: info.clone(), private_data: b"no".to_vec() };
        refuse(&mut net, SERVER, passive, &refusal);
        net.run_until_idle();
        let event = net.hosts[CLIENT].event(EventKind::Rejected);
        let Some(Message::Rej(rej)) = event.message().map(|mad| mad.message) else { panic!() };
        assert_eq!((event.status, rej.reason), (i32::from(reason), RejReason(reason)));
        assert_eq!((rej.message, rej.ari_len, &rej.ari[..]), (RejOf::Req, 72, &info[..]));
        assert_eq!(event.param.private_data()[..3], *b"no\0");
        net.end();
    }
}

#[test]
fn reject_or_mra_with_too_long_private_data_is_einval() {
    let (mut net, id) = told(QpType::Rc);
    let passive = requested(&mut net, id);
    let (now, server) = (net.now, &mut net.hosts[SERVER]);
    for refusal in [
        Refusal { info: vec![0; 73], ..Refusal::default() },
        Refusal { private_data: vec![0; 149], ..Refusal::default() },
    ] {
        let error = server.cm.reject_with(now, passive, &refusal, &mut server.out).unwrap_err();
        assert_eq!(error.errno(), 22);
    }
    let long = server.cm.ask_for_time(passive, 1, &[0; 223], &mut server.out).unwrap_err();
    let code = server.cm.ask_for_time(passive, 32, &[], &mut server.out).unwrap_err();
    let room = server.cm.set_private_data(passive, Courtesy::Dreq, &[0; 221]).unwrap_err();
    assert_eq!([long, code, room].map(|error| error.errno()), [22; 3]);
    assert!(server.out.mads.is_empty());
    net.end();
}

#[test]
fn private_data_of_rtu_dreq_and_drep_reach_the_peer() {
    let (mut net, id) = told(QpType::Rc);
    net.hosts[CLIENT].cm.set_private_data(id, Courtesy::Rtu, b"ready").unwrap();
    net.hosts[CLIENT].cm.set_private_data(id, Courtesy::Dreq, &[7; 220]).unwrap();
    let passive = requested(&mut net, id);
    net.hosts[SERVER].cm.set_private_data(passive, Courtesy::Drep, &[8; 224]).unwrap();
    accept(&mut net, passive);
    net.run_until_idle();
    net.hosts[CLIENT].event(EventKind::ConnectResponse);
    // The first RTU is lost: the retransmitted REP gets the same one.
    let mut first = true;
    net.filter = Box::new(move |m| !matches!(m, Message::Rtu(_)) || !std::mem::take(&mut first));
    establish(&mut net, id);
    net.pass(5 * SECOND);
    let event = net.hosts[SERVER].event(EventKind::Established);
    let Some(Message::Rtu(rtu)) = event.message().map(|mad| mad.message) else { panic!() };
    assert_eq!(rtu.private_data[..6], *b"ready\0");
    disconnect(&mut net, CLIENT, id);
    net.run_until_idle();
    let event = net.hosts[SERVER].event(EventKind::Disconnected);
    let Some(Message::Dreq(dreq)) = event.message().map(|mad| mad.message) else { panic!() };
    assert_eq!(dreq.private_data, [7; 220]);
    disconnect(&mut net, SERVER, passive);
    net.run_until_idle();
    let event = net.hosts[CLIENT].event(EventKind::Disconnected);
    let Some(Message::Drep(drep)) = event.message().map(|mad| mad.message) else { panic!() };
    assert_eq!(drep.private_data, [8; 224]);
    net.end();
}

#[test]
fn comm_est_notify_replaces_a_lost_rtu_and_event_has_no_message() {
    let (mut net, id) = told(QpType::Rc);
    let passive = requested(&mut net, id);
    accept(&mut net, passive);
    net.run_until_idle();
    net.hosts[CLIENT].event(EventKind::ConnectResponse);
    net.filter = Box::new(|m| !matches!(m, Message::Rtu(_)));
    establish(&mut net, id);
    net.run_until_idle();
    let (now, server) = (net.now, &mut net.hosts[SERVER]);
    server.cm.notify(now, passive, &mut server.out).unwrap();
    let event = server.event(EventKind::Established);
    assert_eq!(event.message(), None, "no message is the cause");
    net.pass(60 * SECOND);
    assert!(net.hosts[SERVER].kinds().is_empty());
    net.end();
}

/// Returns a redirection to a host.
fn at(net: &Net, host: usize) -> Redirect {
    Redirect { gid: net.hosts[host].ip.into(), ..Redirect::default() }
}

fn redirection(to: &Redirect, reason: RejReason) -> Refusal {
    Refusal { reason: reason.0, info: to.to_info().to_vec(), private_data: Vec::new() }
}

#[test]
fn req_redirected_by_rej_connects_to_the_other_host() {
    const THIRD: usize = 2;
    let (mut net, id) = told(QpType::Rc);
    net.listener(THIRD, QpType::Rc);
    let passive = requested(&mut net, id);
    let there = at(&net, THIRD);
    refuse(&mut net, SERVER, passive, &redirection(&there, RejReason::PORT_CM_REDIRECT));
    net.run_until_idle();
    assert!(net.hosts[CLIENT].kinds().is_empty(), "the program is not asked");
    let third = &mut net.hosts[THIRD];
    let request = third.event(EventKind::ConnectRequest);
    assert_eq!(request.param.private_data()[..3], [1, 2, 3]);
    let now = net.now;
    third.cm.accept(now, request.id, &param(0x33), &mut third.out).unwrap();
    net.run_until_idle();
    let event = net.hosts[CLIENT].event(EventKind::ConnectResponse);
    let negotiated = event.negotiated.unwrap();
    assert_eq!((negotiated.dest_qpn, negotiated.av.dgid), (Qpn::new(0x33), there.gid));
    let info = net.hosts[CLIENT].cm.query(id).unwrap();
    assert_eq!(info.peer, Some(Addr::Ip(net.addr(THIRD, 7174))));
    assert_eq!(info.route.unwrap().dst, Addr::Ip(net.addr(THIRD, 7174)));
    establish(&mut net, id);
    net.run_until_idle();
    net.hosts[THIRD].event(EventKind::Established);
    assert_eq!(net.hosts[CLIENT].cm.counters().redirected, 1);
    net.end();
}

#[test]
fn redirect_loop_is_rejected_after_four_redirects() {
    let (mut net, id) = told(QpType::Rc);
    let back = at(&net, SERVER);
    let refusal = redirection(&back, RejReason::PORT_CM_REDIRECT);
    let mut passive = requested(&mut net, id);
    for _ in 0..4 {
        refuse(&mut net, SERVER, passive, &refusal);
        net.run_until_idle();
        passive = net.hosts[SERVER].event(EventKind::ConnectRequest).id;
    }
    refuse(&mut net, SERVER, passive, &refusal);
    net.run_until_idle();
    let event = net.hosts[CLIENT].event(EventKind::Rejected);
    assert_eq!(event.status, 24);
    let Some(Message::Rej(rej)) = event.message().map(|mad| mad.message) else { panic!() };
    assert_eq!(Redirect::of_info(&rej.ari, rej.ari_len), Some(back));
    net.end();
}

#[test]
fn redirect_with_invalid_gid_pkey_qpn_or_ari_is_rejected() {
    let multicast = Gid([0xff; 16]);
    type Change = fn(&mut Redirect);
    let cases: &[(&str, Change)] = &[
        ("nowhere", |to| to.gid = Gid::ZERO),
        ("a group", |to| to.gid = IpAddr::from([239, 1, 1, 1]).into()),
        ("another family", |to| to.gid = "fd00::1".parse::<IpAddr>().unwrap().into()),
        ("the host itself", |to| to.gid = IpAddr::from([127, 0, 0, 1]).into()),
        ("another partition", |to| to.pkey = Pkey(0x8005)),
    ];
    assert!(multicast.is_multicast());
    for (what, change) in cases {
        let (mut net, id) = told(QpType::Rc);
        let passive = requested(&mut net, id);
        let mut to = at(&net, 2);
        change(&mut to);
        refuse(&mut net, SERVER, passive, &redirection(&to, RejReason::PORT_CM_REDIRECT));
        net.run_until_idle();
        assert_eq!(net.hosts[CLIENT].kinds(), [(EventKind::Rejected, 24)], "{what}");
        net.end();
    }
    // Too little information, another queue pair, and redirections disabled by the program.
    for (len, qpn, most) in [(39, 1, 4), (72, 2, 4), (72, 1, 0)] {
        let (mut net, id) = told(QpType::Rc);
        set(&mut net, CLIENT, id, &[CmOption::MaxRedirects(most)]);
        let passive = requested(&mut net, id);
        let mut info = at(&net, 2).to_info().to_vec();
        info[35] = qpn;
        info.truncate(len);
        let refusal = Refusal { reason: 24, info, private_data: Vec::new() };
        refuse(&mut net, SERVER, passive, &refusal);
        net.run_until_idle();
        assert_eq!(net.hosts[CLIENT].kinds(), [(EventKind::Rejected, 24)], "{len} {qpn} {most}");
        net.end();
    }
}

#[test]
fn sidr_req_redirected_by_sidr_rep_is_sent_to_the_other_host() {
    const THIRD: usize = 2;
    let (mut net, id) = told(QpType::Ud);
    net.listener(THIRD, QpType::Ud);
    let passive = requested(&mut net, id);
    let there = at(&net, THIRD);
    let refusal = Refusal {
        reason: SidrStatus::REDIRECT.0.into(),
        info: there.to_info().to_vec(),
        private_data: Vec::new(),
    };
    refuse(&mut net, SERVER, passive, &refusal);
    net.run_until_idle();
    let third = &mut net.hosts[THIRD];
    let request = third.event(EventKind::ConnectRequest).id;
    let now = net.now;
    third.cm.accept(now, request, &param(0x33), &mut third.out).unwrap();
    net.run_until_idle();
    let event = net.hosts[CLIENT].event(EventKind::Established);
    let Some(Message::SidrRep(rep)) = event.message().map(|mad| mad.message) else { panic!() };
    assert_eq!(rep.qpn, Qpn::new(0x33));
    let rdmux_cm::EventParam::Ud(ud) = event.param else { panic!() };
    assert_eq!((ud.av.dgid, ud.qp_num), (there.gid, Qpn::new(0x33)));
    net.end();
}

#[test]
fn lookup_is_refused_with_the_status_and_the_information_of_the_program() {
    for status in [1, 2, 3, 5, 200] {
        let (mut net, id) = told(QpType::Ud);
        let passive = requested(&mut net, id);
        let refusal = Refusal { reason: status, info: vec![9; 4], private_data: vec![3] };
        refuse(&mut net, SERVER, passive, &refusal);
        net.run_until_idle();
        let event = net.hosts[CLIENT].event(EventKind::Unreachable);
        let Some(Message::SidrRep(rep)) = event.message().map(|mad| mad.message) else { panic!() };
        assert_eq!((event.status, rep.status.0), (i32::from(status), rep.status.0));
        assert_eq!((rep.info_len, rep.info[..5].to_vec()), (4, vec![9, 9, 9, 9, 0]));
        net.end();
    }
    let (mut net, id) = told(QpType::Ud);
    let passive = requested(&mut net, id);
    let (now, server) = (net.now, &mut net.hosts[SERVER]);
    let valid = server.cm.reject_with(now, passive, &Refusal::default(), &mut server.out);
    assert_eq!(valid.unwrap_err().errno(), 22, "status 0 is no refusal");
    net.end();
}

#[test]
fn qkey_of_an_answer_to_a_lookup_is_that_of_the_option() {
    // A Q_Key of the option counts even if it is 0, and accept's overrides it.
    for (option, param_qkey, told_qkey) in [
        (None, None, Qkey::RDMA_UDP),
        (Some(0x88), None, Qkey(0x88)),
        (Some(0), None, Qkey(0)),
        (Some(0x88), Some(Qkey(5)), Qkey(5)),
    ] {
        let (mut net, id) = told(QpType::Ud);
        let passive = requested(&mut net, id);
        if let Some(qkey) = option {
            set(&mut net, SERVER, passive, &[CmOption::LocalQkey(qkey)]);
        }
        let param = ConnParam { qkey: param_qkey, ..param(0x22) };
        let (now, server) = (net.now, &mut net.hosts[SERVER]);
        server.cm.accept(now, passive, &param, &mut server.out).unwrap();
        net.run_until_idle();
        let event = net.hosts[CLIENT].event(EventKind::Established);
        let Some(Message::SidrRep(rep)) = event.message().map(|mad| mad.message) else { panic!() };
        let rdmux_cm::EventParam::Ud(ud) = event.param else { panic!() };
        assert_eq!((rep.qkey, ud.qkey), (told_qkey, told_qkey), "{option:?} {param_qkey:?}");
        net.end();
    }
}

#[test]
fn response_timeout_and_retries_rule_the_repetitions_of_a_lookup() {
    let (mut net, id) = told(QpType::Ud);
    set(&mut net, CLIENT, id, &[CmOption::RemoteResponseTimeout(17), CmOption::MaxRetries(2)]);
    net.filter = Box::new(|message| !matches!(message, Message::SidrReq(_)));
    connect(&mut net, id);
    for sent in 1..=3 {
        net.pass(Duration::from_millis(511));
        assert_eq!(net.log, vec!["SIDR_REQ"; sent]);
        assert!(net.hosts[CLIENT].kinds().is_empty());
        net.pass(Duration::from_millis(1));
    }
    assert_eq!(net.log, vec!["SIDR_REQ"; 3], "as often as the option says");
    assert_eq!(net.hosts[CLIENT].kinds(), [(EventKind::Unreachable, -110)]);
    net.end();
}

#[test]
fn answered_sidr_requests_are_bounded_and_forgotten_ones_counted() {
    let mut net = Net::new(2);
    net.listener(SERVER, QpType::Ud);
    let service_id = ServiceId::from_port(net::space(QpType::Ud).code(), 7174);
    let id = net.routed(CLIENT, SERVER, QpType::Ud);
    connect(&mut net, id);
    let (_, asked) = net.sent(CLIENT);
    let Message::SidrReq(like) = asked.message else { panic!() };
    assert_eq!(like.service_id, service_id);
    // Each is answered at once, as by a program that accepts everything.
    for request_id in 1..=6000 {
        net.say(CLIENT, SERVER, 1, SidrReq { request_id, ..like });
        let (now, server) = (net.now, &mut net.hosts[SERVER]);
        for event in server.events() {
            server.cm.accept(now, event.id, &param(0x22), &mut server.out).unwrap();
            let _events = server.cm.destroy(now, event.id, &mut server.out).unwrap();
        }
        server.out.mads.clear();
    }
    let server = &net.hosts[SERVER].cm;
    assert!(server.connections() <= 4097, "{} are kept", server.connections());
    assert_eq!(server.counters().sidr_forgotten, 6000 - 4096);
    net.end();
}

#[test]
fn sidr_rep_or_rej_redirect_with_unknown_id_is_ignored() {
    let (mut net, _) = told(QpType::Ud);
    let rep = SidrRep {
        request_id: 5,
        status: SidrStatus::REDIRECT,
        info_len: 72,
        vendor_id: 0,
        qpn: Qpn::new(1),
        service_id: ServiceId(1),
        qkey: Qkey(1),
        info: at(&net, 2).to_info(),
        private_data: [0; 136],
    };
    net.say(SERVER, CLIENT, 5, rep);
    let rej = Rej {
        local_comm_id: 5,
        remote_comm_id: 6,
        message: RejOf::Req,
        ari_len: 72,
        reason: RejReason::PORT_CM_REDIRECT,
        ari: at(&net, 2).to_info(),
        private_data: [0; 148],
    };
    net.say(SERVER, CLIENT, 5, rej);
    assert!(net.hosts[CLIENT].out.mads.is_empty() && net.hosts[CLIENT].kinds().is_empty());
    assert_eq!(net.hosts[CLIENT].cm.counters().unknown_connection, 2);
    net.end();
}

#[test]
fn connect_request_after_listener_grace_carries_the_req_message() {
    let mut net = Net::with(2, Config::default());
    let first = net.listener(SERVER, QpType::Rc);
    net.destroy(SERVER, first);
    let id = net.routed(CLIENT, SERVER, QpType::Rc);
    connect(&mut net, id);
    net.run_until_idle();
    assert!(net.hosts[SERVER].kinds().is_empty());
    let addr = net.addr(SERVER, 7174);
    let cm = &mut net.hosts[SERVER].cm;
    let second = cm.create_id(net::SERVER, net::space(QpType::Rc), QpType::Rc, 0).unwrap();
    cm.bind(second, addr, false).unwrap();
    cm.set_option(second, IdOption::Cm(CmOption::Messages(true))).unwrap();
    cm.listen(second, 1).unwrap();
    net.pass(SECOND);
    let event = net.hosts[SERVER].event(EventKind::ConnectRequest);
    let Some(CmMad { message: Message::Req(req), .. }) = event.message() else { panic!() };
    assert_eq!(req.local_qpn, Qpn::new(0x11));
    net.end();
}
