//! Alternate paths of connections: that of REQ, and those of LAP and APR.

mod net;

use std::net::IpAddr;
use std::time::Duration;

use net::{CLIENT as CLIENTS, Net, SECOND, param, space};
use rdmux_cm::{
    Addr, CmOption, EventKind, Failover, IdHandle, IdOption, Negotiated, PathData, Refusal,
};
use rdmux_transport::attr::{AttrMask, MigState, QpState, QpType};
use rdmux_wire::cm::{Apr, AprStatus, CmMad, Lap, Message, Path};
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{AckTimeout, Gid, Lid, Mtu, Qpn};

const SERVER: usize = 0;
const CLIENT: usize = 1;

/// An address of a host: its first or its second one.
fn ip(host: usize, n: u8) -> IpAddr {
    IpAddr::from([10, 0, n, u8::try_from(host + 1).unwrap()])
}

fn record(flags: u32, from: u8, to: u8) -> PathData {
    let record = PathRecord {
        sgid: ip(CLIENT, from).into(),
        dgid: ip(SERVER, to).into(),
        mtu: Mtu::M1024.code(),
        packet_life_time: 14,
        hop_limit: 64,
        ..PathRecord::default()
    };
    PathData { flags: flags | PathData::BIDIRECTIONAL, record }
}

/// Creates hosts with two addresses each, a listener, and a client that connects along the path between the first addresses, with
/// an alternate path between the second ones if one is given.
fn connecting(alternate: Option<PathData>) -> (Net, IdHandle) {
    let mut net = Net::with_two_addresses(3);
    let listener = net.listener(SERVER, QpType::Rc);
    let told = IdOption::Cm(CmOption::Messages(true));
    net.hosts[SERVER].cm.set_option(listener, told).unwrap();
    let (now, dst) = (net.now, Addr::from(net.addr(SERVER, 7174)));
    let client = &mut net.hosts[CLIENT];
    let id = client.cm.create_id(CLIENTS, space(QpType::Rc), QpType::Rc, 88).unwrap();
    let mut records = vec![record(PathData::PRIMARY, 0, 0)];
    records.extend(alternate);
    client.cm.resolve_along(now, id, (None, dst), &records, false, &mut client.out).unwrap();
    client.event(EventKind::RouteResolved);
    client.cm.set_option(id, told).unwrap();
    client.cm.connect(now, id, &param(0x11), &mut client.out).unwrap();
    (net, id)
}

/// Returns the parameters on which both ends have agreed.
fn agreed(net: &mut Net, id: IdHandle) -> (IdHandle, [Negotiated; 2]) {
    net.run_until_idle();
    let request = net.hosts[SERVER].event(EventKind::ConnectRequest);
    let now = net.now;
    let server = &mut net.hosts[SERVER];
    server.cm.accept(now, request.id, &param(0x22), &mut server.out).unwrap();
    net.run_until_idle();
    let response = net.hosts[CLIENT].event(EventKind::ConnectResponse);
    let client = &mut net.hosts[CLIENT];
    client.cm.establish(now, id, &mut client.out).unwrap();
    net.run_until_idle();
    net.hosts[SERVER].event(EventKind::Established);
    (request.id, [*request.negotiated.unwrap(), *response.negotiated.unwrap()])
}

/// Creates a connection between the first addresses.
fn connected() -> (Net, IdHandle, IdHandle) {
    let (mut net, id) = connecting(None);
    let (passive, negotiated) = agreed(&mut net, id);
    assert!(negotiated.iter().all(|n| n.alternate.is_none()));
    net.log.clear();
    (net, id, passive)
}

fn load(net: &mut Net, id: IdHandle, from: u8, to: u8) {
    let (now, client) = (net.now, &mut net.hosts[CLIENT]);
    let records = [record(PathData::ALTERNATE, from, to)];
    client.cm.load_alternate(now, id, &records, b"please", &mut client.out).unwrap();
}

fn answer(net: &mut Net, passive: IdHandle, status: AprStatus) {
    let server = &mut net.hosts[SERVER];
    let (info, private_data) = (vec![status.0; 3], b"well".to_vec());
    let answer = Refusal { reason: status.0.into(), info, private_data };
    server.cm.answer_alternate(passive, &answer, &mut server.out).unwrap();
}

#[test]
fn lap_shows_the_accepting_side_that_a_lost_rtu_was_sent() {
    let (mut net, id) = connecting(None);
    net.run_until_idle();
    let passive = net.hosts[SERVER].event(EventKind::ConnectRequest).id;
    let (now, server) = (net.now, &mut net.hosts[SERVER]);
    server.cm.accept(now, passive, &param(0x22), &mut server.out).unwrap();
    net.run_until_idle();
    net.hosts[CLIENT].event(EventKind::ConnectResponse);
    net.filter = Box::new(|message| !matches!(message, Message::Rtu(_)));
    let client = &mut net.hosts[CLIENT];
    client.cm.establish(now, id, &mut client.out).unwrap();
    load(&mut net, id, 1, 1);
    net.run_until_idle();
    net.hosts[SERVER].event(EventKind::Established);
    // The LAP is retransmitted, and the program gets the event again.
    net.pass(10 * SECOND);
    net.hosts[SERVER].event(EventKind::AlternateRequest);
    assert_eq!(
        net.hosts[CLIENT].event(EventKind::MoreTime).status,
        24,
        "when it came a third time"
    );
    answer(&mut net, passive, AprStatus::LOADED);
    net.run_until_idle();
    assert_eq!(net.hosts[CLIENT].event(EventKind::AlternateResponse).status, 0);
    net.end();
}

#[test]
fn alternate_path_of_req_is_loaded_at_both_ends() {
    let (mut net, id) = connecting(Some(record(PathData::ALTERNATE, 1, 1)));
    let (_, req) = net.hosts[CLIENT].out.mads[0];
    let Message::Req(req) = CmMad::parse(&req).unwrap().message else { panic!() };
    let gids = [ip(CLIENT, 1), ip(SERVER, 1)].map(Gid::from);
    assert_eq!([req.alternate.local_gid, req.alternate.remote_gid], gids);
    let (_, [passive, active]) = agreed(&mut net, id);
    let [ours, theirs] = [active, passive].map(|n| n.alternate.unwrap());
    assert_eq!((ours.av.dgid, ours.av.sgid_index), (gids[1], 1));
    assert_eq!((theirs.av.dgid, theirs.av.sgid_index), (gids[0], 1));
    assert_eq!(theirs.timeout, req.alternate.ack_timeout);
    // The attributes for RTR and RTS load it and arm it for migration.
    for negotiated in [active, passive] {
        let (attr, mask) = negotiated.qp_attr(QpState::Rtr);
        assert!(mask.contains(AttrMask::ALT_PATH) && !mask.contains(AttrMask::PATH_MIG_STATE));
        assert_eq!(Some(attr.alt_av), negotiated.alternate.map(|alternate| alternate.av));
        assert_eq!((attr.alt_port_num, attr.port_num), (1, 1));
        let (attr, mask) = negotiated.qp_attr(QpState::Rts);
        assert!(mask.contains(AttrMask::PATH_MIG_STATE) && !mask.contains(AttrMask::ALT_PATH));
        assert_eq!(attr.path_mig_state, MigState::Rearm as u8);
        let (attr, mask) = negotiated.qp_attr(QpState::Init);
        assert!(!mask.intersects(AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE));
        assert_eq!(attr.path_mig_state, 0);
    }
    net.end();
}

#[test]
fn qp_attr_without_alternate_path_has_no_alt_path_or_path_mig_state() {
    let (mut net, id) = connecting(None);
    let (_, negotiated) = agreed(&mut net, id);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        for end in negotiated {
            let (_, mask) = end.qp_attr(state);
            assert!(!mask.intersects(AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE));
        }
    }
    net.end();
}

/// Changes the REQ that a client has sent.
fn patch_req(net: &mut Net, change: impl Fn(&mut Path)) {
    let (_, mad) = net.hosts[CLIENT].out.mads.front_mut().unwrap();
    let mut req = CmMad::parse(mad).unwrap();
    let Message::Req(message) = &mut req.message else { panic!() };
    change(&mut message.alternate);
    *mad = req.to_bytes();
}

#[test]
fn req_alternate_path_with_foreign_gid_is_answered_failover_rejected_in_rep() {
    let changes: [fn(&mut Path); 5] = [
        |path| path.remote_gid = IpAddr::from([10, 9, 9, 9]).into(),
        |path| path.remote_gid = Gid::ZERO,
        |path| path.local_gid = Gid::ZERO,
        |path| path.local_gid = IpAddr::from([239, 0, 0, 1]).into(),
        |path| path.local_gid = "fd00::7".parse::<IpAddr>().unwrap().into(),
    ];
    for change in changes {
        let (mut net, id) = connecting(Some(record(PathData::ALTERNATE, 1, 1)));
        patch_req(&mut net, change);
        net.run_until_idle();
        let request = net.hosts[SERVER].event(EventKind::ConnectRequest);
        assert_eq!(request.negotiated.unwrap().alternate, None);
        let (now, server) = (net.now, &mut net.hosts[SERVER]);
        server.cm.accept(now, request.id, &param(0x22), &mut server.out).unwrap();
        net.run_until_idle();
        let response = net.hosts[CLIENT].event(EventKind::ConnectResponse);
        let Some(Message::Rep(rep)) = response.message().map(|mad| mad.message) else { panic!() };
        assert_eq!(rep.failover_accepted, Failover::Rejected as u8);
        assert_eq!(response.negotiated.unwrap().alternate, None);
        let _ = id;
        net.end();
    }
}

#[test]
fn failover_option_of_the_accepting_program_is_in_rep() {
    for failover in [Failover::NotSupported, Failover::Rejected] {
        let (mut net, _) = connecting(Some(record(PathData::ALTERNATE, 1, 1)));
        net.run_until_idle();
        let request = net.hosts[SERVER].event(EventKind::ConnectRequest);
        assert!(request.negotiated.unwrap().alternate.is_some());
        let (now, server) = (net.now, &mut net.hosts[SERVER]);
        let option = IdOption::Cm(CmOption::Failover(failover));
        server.cm.set_option(request.id, option).unwrap();
        server.cm.accept(now, request.id, &param(0x22), &mut server.out).unwrap();
        net.run_until_idle();
        let response = net.hosts[CLIENT].event(EventKind::ConnectResponse);
        let Some(Message::Rep(rep)) = response.message().map(|mad| mad.message) else { panic!() };
        assert_eq!(rep.failover_accepted, failover as u8);
        assert_eq!(response.negotiated.unwrap().alternate, None);
        net.end();
    }
}

#[test]
fn lap_accepted_by_apr_loads_the_alternate_path_at_both_qps() {
    let (mut net, id, passive) = connected();
    load(&mut net, id, 1, 0);
    net.run_until_idle();
    let asked = net.hosts[SERVER].event(EventKind::AlternateRequest);
    assert_eq!((asked.id, &asked.param.private_data()[..7]), (passive, &b"please\0"[..]));
    let Some(Message::Lap(lap)) = asked.message().map(|mad| mad.message) else { panic!() };
    assert_eq!((lap.remote_qpn, lap.alternate.ack_timeout), (Qpn::new(0x22), AckTimeout::new(16)));
    let theirs = asked.negotiated.unwrap();
    assert_eq!(theirs.alternate.unwrap().av.dgid, ip(CLIENT, 1).into());
    assert_eq!(theirs.alternate.unwrap().av.sgid_index, 0);
    answer(&mut net, passive, AprStatus::LOADED);
    net.run_until_idle();
    let answered = net.hosts[CLIENT].event(EventKind::AlternateResponse);
    assert_eq!((answered.status, &answered.param.private_data()[..5]), (0, &b"well\0"[..]));
    let ours = answered.negotiated.unwrap();
    let to = ours.alternate.unwrap().av;
    assert_eq!((to.dgid, to.sgid_index), (ip(SERVER, 0).into(), 1));
    // A queue pair in RTS gets no other attributes.
    for negotiated in [theirs, ours] {
        let (attr, mask) = negotiated.qp_attr(QpState::Rts);
        assert_eq!(mask, AttrMask::STATE | AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE);
        assert_eq!(attr.path_mig_state, MigState::Rearm as u8);
    }
    assert_eq!(net.log, ["LAP", "APR"]);
    net.pass(60 * SECOND);
    assert_eq!(net.log, ["LAP", "APR"], "nothing is sent again");
    net.end();
}

#[test]
fn every_status_of_apr_reaches_the_program_that_asked() {
    for status in (2..=13).chain([255]) {
        let (mut net, id, passive) = connected();
        load(&mut net, id, 1, 1);
        net.run_until_idle();
        net.hosts[SERVER].event(EventKind::AlternateRequest);
        answer(&mut net, passive, AprStatus(status));
        net.run_until_idle();
        let answered = net.hosts[CLIENT].event(EventKind::AlternateResponse);
        let Some(Message::Apr(apr)) = answered.message().map(|mad| mad.message) else { panic!() };
        assert_eq!((answered.status, apr.status), (status.into(), AprStatus(status)));
        assert_eq!((apr.info_len, apr.info[2], apr.info[3]), (3, status, 0));
        assert_eq!(answered.negotiated, None, "nothing is loaded");
        // The next LAP may succeed.
        load(&mut net, id, 1, 1);
        net.run_until_idle();
        net.hosts[SERVER].event(EventKind::AlternateRequest);
        net.end();
    }
}

#[test]
fn invalid_lap_is_answered_by_apr_with_status_and_raises_no_event() {
    type Patch = fn(&mut Lap);
    let cases: [(Patch, AprStatus); 5] = [
        (|lap| lap.remote_comm_id ^= 1, AprStatus::INVALID_COMM_ID),
        (|lap| lap.remote_qpn = Qpn::new(5), AprStatus::INVALID_QPN),
        (|lap| lap.alternate.remote_gid = Gid([7; 16]), AprStatus::INVALID_GID),
        (|lap| lap.alternate.local_gid = Gid::ZERO, AprStatus::INVALID_GID),
        (
            |lap| {
                lap.alternate.remote_gid = ip(SERVER, 0).into();
                lap.alternate.local_gid = ip(CLIENT, 0).into();
            },
            AprStatus::IS_CURRENT,
        ),
    ];
    for (n, (patch, status)) in cases.into_iter().enumerate() {
        let (mut net, id, _) = connected();
        load(&mut net, id, 1, 1);
        let (path, mad) = net.sent(CLIENT);
        let Message::Lap(mut lap) = mad.message else { panic!() };
        patch(&mut lap);
        net.deliver(&path, &CmMad::new(mad.tid, lap.into()).to_bytes());
        let (_, mad) = net.sent(SERVER);
        let Message::Apr(apr) = mad.message else { panic!() };
        assert_eq!(apr.status, status, "case {n}");
        assert!(net.hosts[SERVER].kinds().is_empty());
        assert_eq!(net.hosts[SERVER].cm.counters().laps_refused, 1);
        net.end();
    }
}

#[test]
fn lap_to_id_without_messages_option_is_answered_apr_unsupported() {
    let (mut net, id, passive) = connected();
    let silent = IdOption::Cm(CmOption::Messages(false));
    net.hosts[SERVER].cm.set_option(passive, silent).unwrap();
    load(&mut net, id, 1, 1);
    net.run_until_idle();
    let answered = net.hosts[CLIENT].event(EventKind::AlternateResponse);
    assert_eq!(answered.status, AprStatus::UNSUPPORTED.0.into());
    assert!(net.hosts[SERVER].kinds().is_empty());
    net.end();
}

#[test]
fn lap_is_sent_only_by_the_active_side_and_one_at_a_time() {
    let (mut net, id, passive) = connected();
    let (now, records) = (net.now, [record(PathData::ALTERNATE, 1, 1)]);
    let server = &mut net.hosts[SERVER];
    let error = server.cm.load_alternate(now, passive, &records, &[], &mut server.out);
    assert_eq!(error.unwrap_err().errno(), 22);
    load(&mut net, id, 1, 1);
    let client = &mut net.hosts[CLIENT];
    let error = client.cm.load_alternate(now, id, &records, &[], &mut client.out).unwrap_err();
    assert!(error.to_string().contains("one at a time"), "{error}");
    // A peer that sends LAP nonetheless is refused.
    let (_, mad) = net.sent(CLIENT);
    let Message::Lap(lap) = mad.message else { panic!() };
    let (local_comm_id, remote_comm_id) = (lap.remote_comm_id, lap.local_comm_id);
    net.say(SERVER, CLIENT, 9, Lap { local_comm_id, remote_comm_id, ..lap });
    let (_, mad) = net.sent(CLIENT);
    let Message::Apr(apr) = mad.message else { panic!() };
    assert_eq!(apr.status, AprStatus::UNSUPPORTED);
    net.end();
}

#[test]
fn load_alternate_with_invalid_path_records_is_einval() {
    let (mut net, id, _) = connected();
    let (now, client) = (net.now, &mut net.hosts[CLIENT]);
    let good = record(PathData::ALTERNATE, 1, 1);
    let with = |change: fn(&mut PathData)| {
        let mut data = good;
        change(&mut data);
        vec![data]
    };
    for records in [
        vec![],
        vec![record(PathData::PRIMARY, 1, 1)],
        vec![good, record(PathData::PRIMARY, 0, 0)],
        vec![good, good],
        with(|data| data.flags = 0),
        with(|data| data.record.sgid = Gid([9; 16])),
        with(|data| data.record.dgid = Gid::ZERO),
        with(|data| data.record.mtu = Mtu::M512.code()),
        with(|data| data.record.mtu = Mtu::M4096.code()),
        with(|data| data.record.mtu = 9),
    ] {
        let error = client.cm.load_alternate(now, id, &records, &[], &mut client.out).unwrap_err();
        assert_eq!(error.errno(), 22, "{records:?}");
    }
    let long = client.cm.load_alternate(now, id, &[good], &[0; 169], &mut client.out);
    assert_eq!(long.unwrap_err().errno(), 22);
    assert!(client.out.mads.is_empty());
    net.end();
}

#[test]
fn lap_without_apr_times_out_with_etimedout_and_connection_stays() {
    let (mut net, id, passive) = connected();
    net.filter = Box::new(|message| !matches!(message, Message::Lap(_)));
    load(&mut net, id, 1, 1);
    net.pass(Duration::from_secs(200));
    assert_eq!(net.log.iter().filter(|&&m| m == "LAP").count(), 16);
    assert_eq!(net.hosts[CLIENT].kinds(), [(EventKind::AlternateResponse, -110)]);
    net.filter = Box::new(|_| true);
    load(&mut net, id, 1, 1);
    net.run_until_idle();
    net.hosts[SERVER].event(EventKind::AlternateRequest);
    answer(&mut net, passive, AprStatus::LOADED);
    net.run_until_idle();
    assert_eq!(net.hosts[CLIENT].event(EventKind::AlternateResponse).status, 0);
    net.end();
}

#[test]
fn duplicate_lap_gets_mra_while_unanswered_and_the_same_apr_afterwards() {
    let (mut net, id, passive) = connected();
    load(&mut net, id, 1, 1);
    net.pass(Duration::from_millis(4300));
    assert_eq!(net.log, ["LAP", "LAP", "MRA"]);
    assert_eq!(net.hosts[CLIENT].event(EventKind::MoreTime).status, 24);
    // The MRA asks for 65.5 s, during which the connecting side retransmits nothing.
    net.pass(60 * SECOND);
    assert_eq!(net.log.len(), 3);
    net.hosts[SERVER].event(EventKind::AlternateRequest);
    let server = &mut net.hosts[SERVER];
    server.cm.ask_for_time(passive, 10, b"still", &mut server.out).unwrap();
    net.run_until_idle();
    let event = net.hosts[CLIENT].event(EventKind::MoreTime);
    let Some(Message::Mra(mra)) = event.message().map(|mad| mad.message) else { panic!() };
    assert_eq!(mra.private_data[..6], *b"still\0");
    net.log.clear();
    let mut first = true;
    net.filter = Box::new(move |m| !matches!(m, Message::Apr(_)) || !std::mem::take(&mut first));
    answer(&mut net, passive, AprStatus::LOADED);
    net.pass(10 * SECOND);
    assert_eq!(net.log, ["APR", "LAP", "APR"]);
    assert_eq!(net.hosts[CLIENT].event(EventKind::AlternateResponse).status, 0);
    assert!(net.hosts[SERVER].kinds().is_empty(), "the program is asked once");
    net.end();
}

#[test]
fn late_mra_of_an_answered_lap_does_not_extend_the_next_laps_timeout() {
    let (mut net, id, passive) = connected();
    load(&mut net, id, 1, 1);
    net.run_until_idle();
    net.hosts[SERVER].event(EventKind::AlternateRequest);
    let server = &mut net.hosts[SERVER];
    server.cm.ask_for_time(passive, 24, b"", &mut server.out).unwrap();
    let (path, mra) = net.sent(SERVER);
    answer(&mut net, passive, AprStatus::LOADED);
    net.run_until_idle();
    net.hosts[CLIENT].event(EventKind::AlternateResponse);
    load(&mut net, id, 1, 0);
    let (_, lap) = net.sent(CLIENT);
    assert_ne!(lap.tid, mra.tid);
    let due = net.hosts[CLIENT].cm.poll_timeout();
    net.deliver(&path, &mra.to_bytes());
    assert!(net.hosts[CLIENT].kinds().is_empty());
    assert_eq!(net.hosts[CLIENT].cm.poll_timeout(), due);
    assert_eq!(net.hosts[CLIENT].cm.counters().unexpected, 1);
    // An MRA of its own LAP does.
    net.deliver(&path, &CmMad::new(lap.tid, mra.message).to_bytes());
    assert_eq!(net.hosts[CLIENT].event(EventKind::MoreTime).status, 24);
    assert!(net.hosts[CLIENT].cm.poll_timeout() > due);
    net.end();
}

#[test]
fn flood_of_laps_raises_one_event_and_the_rest_are_counted() {
    let (mut net, id, passive) = connected();
    load(&mut net, id, 1, 1);
    let (_, mad) = net.sent(CLIENT);
    let Message::Lap(lap) = mad.message else { panic!() };
    for tid in 1..=1000 {
        net.say(CLIENT, SERVER, tid, lap);
    }
    assert_eq!(net.hosts[SERVER].kinds(), [(EventKind::AlternateRequest, 0)]);
    assert_eq!(net.hosts[SERVER].cm.counters().floods, 999);
    assert!(net.hosts[SERVER].out.mads.is_empty());
    // A duplicate of the answered LAP gets the same answer.
    answer(&mut net, passive, AprStatus::REJECTED);
    let (_, first) = net.sent(SERVER);
    for _ in 0..3 {
        net.say(CLIENT, SERVER, 1, lap);
        assert_eq!(net.sent(SERVER).1, first);
    }
    net.end();
}

#[test]
fn apr_with_wrong_tid_comm_id_or_sender_is_ignored() {
    let (mut net, id, _) = connected();
    load(&mut net, id, 1, 1);
    let (_, mad) = net.sent(CLIENT);
    let Message::Lap(lap) = mad.message else { panic!() };
    let apr = Apr {
        local_comm_id: lap.remote_comm_id,
        remote_comm_id: lap.local_comm_id,
        info_len: 0,
        status: AprStatus::LOADED,
        info: [0; 72],
        private_data: [0; 148],
    };
    net.say(SERVER, CLIENT, mad.tid ^ 1, apr);
    net.say(SERVER, CLIENT, mad.tid, Apr { local_comm_id: apr.local_comm_id ^ 1, ..apr });
    net.say(2, CLIENT, mad.tid, apr);
    assert!(net.hosts[CLIENT].kinds().is_empty());
    net.say(SERVER, CLIENT, mad.tid, apr);
    assert_eq!(net.hosts[CLIENT].kinds(), [(EventKind::AlternateResponse, 0)]);
    net.say(SERVER, CLIENT, mad.tid, apr);
    assert!(net.hosts[CLIENT].kinds().is_empty(), "once");
    net.end();
}

#[test]
fn apr_after_disconnect_is_einval() {
    for by_client in [true, false] {
        let (mut net, id, passive) = connected();
        load(&mut net, id, 1, 1);
        net.run_until_idle();
        net.hosts[SERVER].event(EventKind::AlternateRequest);
        let (host, ending) = if by_client { (CLIENT, id) } else { (SERVER, passive) };
        let (now, end) = (net.now, &mut net.hosts[host]);
        end.cm.disconnect(now, ending, &mut end.out).unwrap();
        net.run_until_idle();
        let other = &mut net.hosts[1 - host];
        other.event(EventKind::Disconnected);
        let answer = Refusal::default();
        let server = &mut net.hosts[SERVER];
        let late = server.cm.answer_alternate(passive, &answer, &mut server.out).unwrap_err();
        assert_eq!(late.errno(), 22);
        net.end();
    }
}

#[test]
fn cm_messages_use_the_alternate_path_after_path_migration() {
    let (mut net, id) = connecting(Some(record(PathData::ALTERNATE, 1, 1)));
    let (passive, _) = agreed(&mut net, id);
    net.hosts[CLIENT].cm.migrated(id).unwrap();
    let route = net.hosts[CLIENT].cm.query(id).unwrap().route.unwrap();
    assert_eq!((route.sgid, route.av.dgid), (ip(CLIENT, 1).into(), ip(SERVER, 1).into()));
    // Back to the first addresses; the server has not followed yet, and accepts messages from either.
    load(&mut net, id, 0, 0);
    let (path, lap) = net.sent(CLIENT);
    assert_eq!((path.local, path.remote()), (ip(CLIENT, 1).into(), ip(SERVER, 1).into()));
    net.deliver(&path, &lap.to_bytes());
    let Message::Apr(apr) = net.sent(SERVER).1.message else { panic!() };
    assert_eq!(apr.status, AprStatus::IS_CURRENT, "as far as it knows");
    net.say(SERVER, CLIENT, lap.tid, apr);
    net.hosts[CLIENT].event(EventKind::AlternateResponse);

    net.hosts[SERVER].cm.migrated(passive).unwrap();
    load(&mut net, id, 0, 0);
    net.run_until_idle();
    net.hosts[SERVER].event(EventKind::AlternateRequest);
    answer(&mut net, passive, AprStatus::LOADED);
    net.run_until_idle();
    assert_eq!(net.hosts[CLIENT].event(EventKind::AlternateResponse).status, 0);
    // The connection migrates back.
    net.hosts[CLIENT].cm.migrated(id).unwrap();
    net.hosts[SERVER].cm.migrated(passive).unwrap();
    let (now, server) = (net.now, &mut net.hosts[SERVER]);
    server.cm.disconnect(now, passive, &mut server.out).unwrap();
    let (path, dreq) = net.sent(SERVER);
    assert_eq!((path.local, path.remote()), (ip(SERVER, 0).into(), ip(CLIENT, 0).into()));
    net.deliver(&path, &dreq.to_bytes());
    net.hosts[CLIENT].event(EventKind::Disconnected);
    net.end();
}

#[test]
fn late_lap_by_the_former_path_does_not_undo_path_migration() {
    let (mut net, id) = connecting(Some(record(PathData::ALTERNATE, 1, 1)));
    let (passive, _) = agreed(&mut net, id);
    load(&mut net, id, 0, 1);
    let (path, lap) = net.sent(CLIENT);
    for (host, id) in [(CLIENT, id), (SERVER, passive)] {
        net.hosts[host].cm.migrated(id).unwrap();
    }
    net.deliver(&path, &lap.to_bytes());
    net.hosts[SERVER].event(EventKind::AlternateRequest);
    let (now, server) = (net.now, &mut net.hosts[SERVER]);
    server.cm.disconnect(now, passive, &mut server.out).unwrap();
    let (path, _) = net.sent(SERVER);
    assert_eq!((path.local, path.remote()), (ip(SERVER, 1).into(), ip(CLIENT, 1).into()));
    net.end();
}

#[test]
fn migrated_or_apr_without_an_alternate_path_or_lap_is_einval() {
    let (mut net, id, passive) = connected();
    for (host, id) in [(CLIENT, id), (SERVER, passive)] {
        assert_eq!(net.hosts[host].cm.migrated(id).unwrap_err().errno(), 22);
    }
    let server = &mut net.hosts[SERVER];
    let nothing = server.cm.answer_alternate(passive, &Refusal::default(), &mut server.out);
    assert_eq!(nothing.unwrap_err().errno(), 22, "nobody asked");
    net.end();
}

#[test]
fn lids_of_a_roce_alternate_path_are_ignored() {
    let (mut net, id) = connecting(Some(record(PathData::ALTERNATE, 1, 1)));
    patch_req(&mut net, |path| (path.local_lid, path.remote_lid) = (Lid(7), Lid(0)));
    let (_, negotiated) = agreed(&mut net, id);
    assert!(negotiated.iter().all(|n| n.alternate.is_some()));
    net.end();
}

#[test]
fn repeated_rep_by_the_former_path_does_not_end_a_connection_that_has_migrated() {
    let (mut net, id) = connecting(Some(record(PathData::ALTERNATE, 1, 1)));
    net.run_until_idle();
    let request = net.hosts[SERVER].event(EventKind::ConnectRequest).id;
    let (now, server) = (net.now, &mut net.hosts[SERVER]);
    server.cm.accept(now, request, &param(0x22), &mut server.out).unwrap();
    let (path, rep) = net.sent(SERVER);
    net.deliver(&path, &rep.to_bytes());
    net.hosts[CLIENT].event(EventKind::ConnectResponse);
    let client = &mut net.hosts[CLIENT];
    client.cm.establish(now, id, &mut client.out).unwrap();
    client.cm.migrated(id).unwrap();
    net.run_until_idle();
    net.deliver(&path, &rep.to_bytes());
    let (_, mad) = net.sent(CLIENT);
    assert!(matches!(mad.message, Message::Rtu(_)), "{mad}");
    net.end();
}
