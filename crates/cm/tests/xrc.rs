//! Extended reliable connections: the sending end connects, the receiving end listens.

mod net;

use net::{CLIENT, Net, SECOND, SERVER, param};
use rdmux_cm::{CmError, ConnParam, EventKind, EventParam, IdHandle, IdOption, PortSpace};
use rdmux_transport::attr::{Access, AttrMask, QpState, QpType};
use rdmux_wire::Qpn;
use rdmux_wire::cm::{CmMad, Message, Rep, Req, Transport};

/// The number of a receiving queue pair, as this stack assigns them.
const TGT: u32 = 0x80_4001;

fn answer() -> ConnParam {
    ConnParam { responder_resources: 3, initiator_depth: 2, flow_control: true, ..param(TGT) }
}

/// Returns the datagram that a host is about to send.
fn sent(net: &Net, host: usize) -> Message {
    CmMad::parse(&net.hosts[host].out.mads[0].1).unwrap().message
}

fn request(net: &Net) -> Req {
    let Message::Req(req) = sent(net, 1) else { panic!("no REQ") };
    req
}

fn reply(net: &Net) -> Rep {
    let Message::Rep(rep) = sent(net, 0) else { panic!("no REP") };
    rep
}

/// Returns the listener's side of an answered request, whose REP is about to be sent.
fn answered(net: &mut Net) -> IdHandle {
    net.run_until_idle();
    let id = net.hosts[0].event(EventKind::ConnectRequest).id;
    let (now, server) = (net.now, &mut net.hosts[0]);
    server.cm.accept(now, id, &answer(), &mut server.out).unwrap();
    id
}

#[test]
fn xrc_req_has_extended_transport_type_and_zero_responder_fields() {
    let mut net = Net::new(2);
    net.listener(0, QpType::XrcSend);
    net.connecting(1, 0, QpType::XrcSend);
    let req = request(&net);
    assert_eq!(req.transport, Transport::XRC);
    assert_eq!((req.local_qpn, req.local_eecn), (Qpn::new(0x11), 0));
    assert_eq!((req.initiator_depth, req.responder_resources), (5, 0));
    assert_eq!((req.retry_count, req.rnr_retry_count, req.srq), (0, 0, false));
    assert_eq!(req.service_id.port(), Some((PortSpace::Ib.code(), 7174)));
    net.run_until_idle();
    net.end();
}

#[test]
fn xrc_rep_carries_the_target_qpn_in_the_eecn_field() {
    let mut net = Net::new(2);
    net.listener(0, QpType::XrcSend);
    net.connecting(1, 0, QpType::XrcSend);
    answered(&mut net);
    let rep = reply(&net);
    assert_eq!((rep.local_eecn, rep.local_qpn), (TGT, Qpn::default()));
    assert!(rep.srq, "every receive queue of XRC is shared");
    assert_eq!((rep.responder_resources, rep.initiator_depth), (3, 0));
    assert_eq!((rep.rnr_retry_count, rep.end_to_end_flow_control), (6, false));
    net.end();
}

#[test]
fn xrc_ini_and_tgt_qps_have_matching_qpn_psn_and_depths() {
    let mut net = Net::new(2);
    net.listener(0, QpType::XrcSend);
    let active = net.connecting(1, 0, QpType::XrcSend);
    net.run_until_idle();
    let request = net.hosts[0].event(EventKind::ConnectRequest);
    let EventParam::Conn(asked) = &request.param else { panic!("{request:?}") };
    assert_eq!((asked.qp_num, asked.srq), (Qpn::new(0x11), false));
    assert_eq!((asked.responder_resources, asked.initiator_depth), (5, 0), "sides are swapped");
    let mut target = *request.negotiated.unwrap();
    target.accept(&answer());
    let (now, server) = (net.now, &mut net.hosts[0]);
    assert_eq!(server.cm.query(request.id).unwrap().qp_type, QpType::XrcRecv);
    server.cm.accept(now, request.id, &answer(), &mut server.out).unwrap();
    net.run_until_idle();

    let response = net.hosts[1].event(EventKind::ConnectResponse);
    let EventParam::Conn(said) = &response.param else { panic!("{response:?}") };
    assert_eq!((said.qp_num, said.srq), (Qpn::new(TGT), true));
    let initiator = *response.negotiated.unwrap();
    assert_eq!((initiator.qp_type, target.qp_type), (QpType::XrcSend, QpType::XrcRecv));
    assert_eq!((initiator.dest_qpn, target.dest_qpn), (Qpn::new(TGT), Qpn::new(0x11)));
    assert_eq!((initiator.sq_psn, initiator.rq_psn), (target.rq_psn, target.sq_psn));
    assert_eq!((initiator.max_rd_atomic, target.max_dest_rd_atomic), (3, 3));
    assert_eq!((initiator.retry_cnt, initiator.rnr_retry), (7, 6), "ours, and the peer's wish");

    let client = &mut net.hosts[1];
    client.cm.establish(now, active, &mut client.out).unwrap();
    net.run_until_idle();
    net.hosts[0].event(EventKind::Established);
    net.end();
}

/// DREQ names the receiver's queue pair: a wrong one would not be accepted.
#[test]
fn xrc_dreq_by_either_end_is_answered_by_drep() {
    for host in [0, 1] {
        let mut net = Net::new(2);
        net.listener(0, QpType::XrcSend);
        let (active, passive) = net.connected(QpType::XrcSend);
        let ids = [passive, active];
        let now = net.now;
        for host in [host, 1 - host] {
            let h = &mut net.hosts[host];
            h.cm.disconnect(now, ids[host], &mut h.out).unwrap();
            net.run_until_idle();
            net.hosts[1 - host].event(EventKind::Disconnected);
        }
        assert_eq!(net.log, ["REQ", "REP", "RTU", "DREQ", "DREP"]);
        net.end();
    }
}

#[test]
fn attributes_are_those_that_rdma_init_qp_attr_gives() {
    let mut net = Net::new(2);
    net.listener(0, QpType::XrcSend);
    net.connecting(1, 0, QpType::XrcSend);
    net.run_until_idle();
    let mut qp = *net.hosts[0].event(EventKind::ConnectRequest).negotiated.unwrap();
    let base =
        AttrMask::STATE | AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let mask = |qp: &rdmux_cm::Negotiated, state| qp.qp_attr(state).1;

    let (init, of_init) = qp.qp_attr(QpState::Init);
    assert_eq!(of_init.bits(), 1 | 1 << 3 | 1 << 4 | 1 << 5);
    assert_eq!(init.access, Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC);
    let served = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    assert_eq!(mask(&qp, QpState::Rtr), base | served);
    assert_eq!(mask(&qp, QpState::Rts), AttrMask::STATE | AttrMask::SQ_PSN | AttrMask::TIMEOUT);

    qp.qp_type = QpType::XrcSend;
    assert_eq!(mask(&qp, QpState::Init), of_init);
    assert_eq!(mask(&qp, QpState::Rtr), base);
    let asking =
        AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC | AttrMask::TIMEOUT;
    assert_eq!(mask(&qp, QpState::Rts), AttrMask::STATE | AttrMask::SQ_PSN | asking);
}

/// The queue pairs of both transports could not speak to each other.
#[test]
fn req_with_transport_other_than_the_listeners_is_rejected() {
    for (asks, listens) in [
        (QpType::Rc, QpType::XrcRecv),
        (QpType::XrcSend, QpType::Rc),
        (QpType::Uc, QpType::XrcRecv),
    ] {
        let mut net = Net::new(2);
        let addr = net.addr(0, 7174);
        let server = &mut net.hosts[0].cm;
        let listener = server.create_id(SERVER, PortSpace::Ib, listens, 0).unwrap();
        server.bind(listener, addr, false).unwrap();
        server.listen(listener, 1).unwrap();
        let (now, client) = (net.now, &mut net.hosts[1]);
        let id = client.cm.create_id(CLIENT, PortSpace::Ib, asks, 0).unwrap();
        client.cm.resolve_addr(now, id, None, addr.into(), SECOND, false, &mut client.out).unwrap();
        net.run_until_idle();
        let client = &mut net.hosts[1];
        client.cm.resolve_route(now, id, SECOND, &mut client.out).unwrap();
        client.answer_paths(now);
        client.events();
        client.cm.connect(now, id, &param(0x11), &mut client.out).unwrap();
        net.run_until_idle();
        assert_eq!(net.hosts[1].kinds(), [(EventKind::Rejected, 9)], "{asks:?} to {listens:?}");
        assert!(net.hosts[0].events().is_empty(), "{asks:?} to {listens:?}");
        net.end();
    }
}

#[test]
fn xrc_recv_cannot_connect_and_xrc_send_cannot_listen() {
    let mut net = Net::new(2);
    net.listener(0, QpType::XrcSend);
    let receiving = net.routed(1, 0, QpType::XrcRecv);
    let (now, client) = (net.now, &mut net.hosts[1]);
    let refused = client.cm.connect(now, receiving, &param(1), &mut client.out);
    assert!(matches!(refused, Err(CmError::Invalid { .. })), "{refused:?}");
    assert!(client.out.mads.is_empty());
    let option = client.cm.set_option(receiving, IdOption::AckTimeout(5));
    assert!(matches!(option, Err(CmError::Invalid { .. })), "it waits for no ACK: {option:?}");

    let sending = client.cm.create_id(CLIENT, PortSpace::Ib, QpType::XrcSend, 0).unwrap();
    let refused = client.cm.listen(sending, 1);
    assert!(matches!(refused, Err(CmError::Invalid { .. })), "{refused:?}");
    assert_eq!(client.cm.query(sending).unwrap().local, None, "an error changes nothing");
    client.cm.set_option(sending, IdOption::AckTimeout(5)).unwrap();
    for space in [PortSpace::Udp, PortSpace::IpoIb] {
        for end in [QpType::XrcSend, QpType::XrcRecv] {
            client.cm.create_id(CLIENT, space, end, 0).unwrap_err();
        }
    }
    net.end();
}

/// The peer's fields are 24 bits wide each, and it may set them to anything.
#[test]
fn xrc_rep_with_zero_eecn_is_accepted_with_dest_qpn_zero() {
    let mut net = Net::new(2);
    net.listener(0, QpType::XrcSend);
    let active = net.connecting(1, 0, QpType::XrcSend);
    answered(&mut net);
    let (path, mad) = net.hosts[0].out.mads.pop_front().unwrap();
    let mut rep = CmMad::parse(&mad).unwrap();
    let Message::Rep(body) = &mut rep.message else { panic!() };
    (body.local_eecn, body.local_qpn, body.srq) = (0, Qpn::new(0x77), false);
    net.deliver(&path, &rep.to_bytes());
    let response = net.hosts[1].event(EventKind::ConnectResponse);
    assert_eq!(response.id, active);
    assert_eq!(
        response.negotiated.unwrap().dest_qpn,
        Qpn::default(),
        "the other field is not XRC's"
    );
    net.end();
}
