//! Compares with frames that Linux 6.1 sent (`tests/captures`). The stack understands the kernel's messages, and
//! its own are, byte for byte, those that the kernel sends.

mod net;

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use net::{CLIENT, Out, SERVER, local_address};
use pcap_file::pcap::PcapReader;
use rdmux_cm::{
    Config, ConnParam, EventKind, EventParam, IdHandle, LocalAddress, MadPath, Manager, PortSpace,
    Time,
};
use rdmux_transport::attr::QpType;
use rdmux_wire::cm::{CmMad, Message, Req};
use rdmux_wire::ether::Ether;
use rdmux_wire::ip::Ipv4;
use rdmux_wire::udp::Udp;
use rdmux_wire::{Gid, Guid, Mtu, Packet, Qpn};

type Mad = [u8; 256];

/// A management datagram of a capture, with its source and destination.
struct Frame {
    src: IpAddr,
    dst: IpAddr,
    mad: Mad,
}

impl Frame {
    fn path(&self) -> MadPath {
        MadPath::between(self.dst, self.src)
    }
    fn message(&self) -> Message {
        CmMad::parse(&self.mad).unwrap().message
    }
}

/// Returns the management datagrams of a capture.
fn frames(name: &str) -> Vec<Frame> {
    let mut frames = Vec::new();
    each_packet(name, |src, dst, packet| {
        if packet.bth.dest_qpn == Qpn::QP1 {
            frames.push(Frame { src, dst, mad: packet.payload.try_into().unwrap() });
        }
    });
    assert!(!frames.is_empty());
    frames
}

/// Passes every RoCE packet of a capture to `show`, with its source and destination.
fn each_packet(name: &str, mut show: impl FnMut(IpAddr, IpAddr, &Packet<'_>)) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures").join(name);
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.unwrap();
        let ether = Ether::parse(&packet.data).unwrap();
        let bytes = &packet.data[ether.header_len..];
        let Ok(ip) = Ipv4::parse(bytes) else { continue };
        let udp = &bytes[usize::from(ip.header_len)..usize::from(ip.total_len)];
        let Some((transport, _icrc)) = udp[Udp::LEN..].split_last_chunk::<4>() else { continue };
        if let Ok(packet) = Packet::parse(transport) {
            show(ip.src.into(), ip.dst.into(), &packet);
        }
    }
}

/// A manager that stands in for a host of a capture.
struct Stand {
    cm: Manager,
    out: Out,
}

impl Stand {
    fn new(ip: IpAddr, guid: Guid) -> Self {
        let mut cm = Manager::new(Config::default(), [1; 32]);
        let mut out = Out::default();
        let addr = LocalAddress { node_guid: guid, mtu: Mtu::M1024, ..local_address(ip, 0) };
        cm.set_addresses(Time::ZERO, vec![addr], &mut out);
        Self { cm, out }
    }

    fn listen(&mut self, port: u16, qp_type: QpType) {
        let id = self.cm.create_id(SERVER, net::space(qp_type), qp_type, 0).unwrap();
        self.cm.bind(id, SocketAddr::new([0, 0, 0, 0].into(), port), false).unwrap();
        self.cm.listen(id, 0).unwrap();
    }

    fn take(&mut self, frame: &Frame) {
        self.cm.handle_mad(Time::ZERO, &frame.path(), &frame.mad, &mut self.out);
    }

    fn take_with(&mut self, frame: &Frame, patch: impl FnOnce(&mut CmMad)) {
        let mut mad = CmMad::parse(&frame.mad).unwrap();
        patch(&mut mad);
        self.cm.handle_mad(Time::ZERO, &frame.path(), &mad.to_bytes(), &mut self.out);
    }

    fn sent(&mut self) -> Mad {
        assert_eq!(self.out.mads.len(), 1);
        self.out.mads.pop_front().unwrap().1
    }

    fn event(&mut self, kind: EventKind) -> rdmux_cm::Event {
        let event = self.out.events.pop_front().unwrap().1;
        assert_eq!(event.kind, kind);
        event
    }

    /// Creates an id with a route from `src` to `dst`.
    fn routed(
        &mut self,
        ps: PortSpace,
        qp_type: QpType,
        src: SocketAddr,
        dst: SocketAddr,
    ) -> IdHandle {
        let id = self.cm.create_id(CLIENT, ps, qp_type, 0).unwrap();
        let (now, soon) = (Time::ZERO, net::SECOND);
        self.cm
            .resolve_addr(now, id, Some(src.into()), dst.into(), soon, false, &mut self.out)
            .unwrap();
        let (_, query) = self.out.queries.pop_front().unwrap();
        let answer = query.over_ip(src.ip(), 0);
        self.cm.handle_resolved(now, id, answer, &mut self.out);
        self.cm.resolve_route(now, id, soon, &mut self.out).unwrap();
        let (_, query) = self.out.paths.pop_front().unwrap();
        self.cm.handle_path(now, id, query.attempt, Ok(query.by_address), &mut self.out);
        self.out.events.clear();
        id
    }
}

/// Returns the offsets at which two datagrams differ, except in the ranges that may differ.
fn differences(ours: &Mad, theirs: &Mad, free: &[std::ops::Range<usize>]) -> Vec<usize> {
    let bound = |i: &usize| !free.iter().any(|range| range.contains(i));
    (0..256).filter(|&i| ours[i] != theirs[i]).filter(bound).collect()
}

/// The transaction, the communication id (of the sender, in every message), and the PSN.
const TID: std::ops::Range<usize> = 8..16;
const LOCAL_ID: std::ops::Range<usize> = 24..28;
const REMOTE_ID: std::ops::Range<usize> = 28..32;
const REQ_PSN: std::ops::Range<usize> = 24 + 44..24 + 47;
const REP_PSN: std::ops::Range<usize> = 24 + 20..24 + 23;

fn req_of(frame: &Frame) -> Req {
    let Message::Req(req) = frame.message() else { panic!() };
    req
}

#[test]
fn rep_dreq_and_drep_to_a_captured_kernel_req_equal_the_kernels_bytes() {
    for capture in ["rxe_rping.pcap", "rxe_ucmatose.pcap"] {
        let frames = frames(capture);
        let kernel_req = &frames[0];
        let req = req_of(kernel_req);
        let kernel_rep = about(&frames, "REP", &req);
        let Message::Rep(rep) = kernel_rep.message() else { panic!() };
        let mut server = Stand::new(kernel_req.dst, rep.local_ca_guid);
        let (_, port) = req.service_id.port().unwrap();
        server.listen(port, QpType::Rc);
        server.take(kernel_req);

        let request = server.event(EventKind::ConnectRequest);
        let header = req.private_data;
        let src_port = u16::from_be_bytes([header[2], header[3]]);
        let route = request.route.unwrap();
        assert_eq!(route.dst, SocketAddr::new(kernel_req.src, src_port));
        assert_eq!(route.src, SocketAddr::new(kernel_req.dst, port));
        let negotiated = request.negotiated.unwrap();
        assert_eq!((negotiated.dest_qpn, negotiated.sq_psn), (req.local_qpn, req.starting_psn));
        assert_eq!(negotiated.timeout.code(), 19);

        let accept = ConnParam {
            responder_resources: rep.responder_resources,
            initiator_depth: rep.initiator_depth,
            rnr_retry_count: rep.rnr_retry_count,
            flow_control: rep.end_to_end_flow_control,
            srq: rep.srq,
            qp_num: rep.local_qpn,
            private_data: rep.private_data.to_vec(),
            ..ConnParam::default()
        };
        server.cm.accept(Time::ZERO, request.id, &accept, &mut server.out).unwrap();
        let ours = server.sent();
        let differ = differences(&ours, &kernel_rep.mad, &[LOCAL_ID, REP_PSN]);
        assert_eq!(differ, [0; 0], "{capture}: REP");
        let our_id = u32::from_be_bytes(ours[LOCAL_ID].try_into().unwrap());

        // The kernel's RTU and DREQ, addressed to this end's communication id.
        server.take_with(about(&frames, "RTU", &req), |mad| {
            let Message::Rtu(rtu) = &mut mad.message else { panic!() };
            rtu.remote_comm_id = our_id;
        });
        server.event(EventKind::Established);
        let dreq = about(&frames, "DREQ", &req);
        if dreq.src != kernel_req.src {
            // In this capture the accepting side disconnects: the DREQ equals the kernel's.
            server.cm.disconnect(Time::ZERO, request.id, &mut server.out).unwrap();
            let differ = differences(&server.sent(), &dreq.mad, &[TID, LOCAL_ID]);
            assert_eq!(differ, [0; 0], "{capture}: DREQ");
            continue;
        }
        server.take_with(dreq, |mad| {
            let Message::Dreq(dreq) = &mut mad.message else { panic!() };
            assert_eq!(dreq.remote_qpn, rep.local_qpn);
            dreq.remote_comm_id = our_id;
        });
        server.event(EventKind::Disconnected);
        server.cm.disconnect(Time::ZERO, request.id, &mut server.out).unwrap();
        let drep = about(&frames, "DREP", &req);
        let differ = differences(&server.sent(), &drep.mad, &[LOCAL_ID]);
        assert_eq!(differ, [0; 0], "{capture}: DREP");
    }
}

#[test]
fn req_and_rtu_equal_those_of_a_captured_kernel_connection() {
    for capture in ["rxe_rping.pcap", "rxe_ucmatose.pcap"] {
        let frames = frames(capture);
        let kernel_req = &frames[0];
        let req = req_of(kernel_req);
        let kernel_rep = about(&frames, "REP", &req);
        let Message::Rep(rep) = kernel_rep.message() else { panic!() };
        let mut client = Stand::new(kernel_req.src, req.local_ca_guid);
        let header = req.private_data;
        let src = SocketAddr::new(kernel_req.src, u16::from_be_bytes([header[2], header[3]]));
        let dst = SocketAddr::new(kernel_req.dst, req.service_id.port().unwrap().1);
        let id = client.routed(PortSpace::Tcp, QpType::Rc, src, dst);
        let wish = ConnParam {
            private_data: header[36..].to_vec(),
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            flow_control: req.end_to_end_flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            qp_num: req.local_qpn,
            qkey: None,
            ece: rdmux_cm::Ece::default(),
            peer_to_peer: None,
        };
        client.cm.connect(Time::ZERO, id, &wish, &mut client.out).unwrap();
        let ours = client.sent();
        let differ = differences(&ours, &kernel_req.mad, &[TID, LOCAL_ID, REQ_PSN]);
        assert_eq!(differ, [0; 0], "{capture}: REQ");

        let our_id = u32::from_be_bytes(ours[LOCAL_ID].try_into().unwrap());
        let our_tid = u64::from_be_bytes(ours[TID].try_into().unwrap());
        client.take_with(kernel_rep, |mad| {
            mad.tid = our_tid;
            let Message::Rep(rep) = &mut mad.message else { panic!() };
            rep.remote_comm_id = our_id;
        });
        let response = client.event(EventKind::ConnectResponse);
        let negotiated = response.negotiated.unwrap();
        assert_eq!((negotiated.dest_qpn, negotiated.sq_psn), (rep.local_qpn, rep.starting_psn));
        assert_eq!(negotiated.timeout.code(), 19);
        client.cm.establish(Time::ZERO, id, &mut client.out).unwrap();
        let differ = differences(
            &client.sent(),
            &about(&frames, "RTU", &req).mad,
            &[TID, LOCAL_ID, REMOTE_ID],
        );
        assert_eq!(differ, [0; 0], "{capture}: RTU");
        client.cm.disconnect(Time::ZERO, id, &mut client.out).unwrap();
        let Message::Dreq(dreq) = CmMad::parse(&client.sent()).unwrap().message else { panic!() };
        assert_eq!(dreq.remote_qpn, rep.local_qpn);
    }
}

/// Returns the first message of this name that has the communication id of `req`, from either side.
fn about<'a>(frames: &'a [Frame], name: &str, req: &Req) -> &'a Frame {
    let id = req.local_comm_id.to_be_bytes();
    let is_about = |f: &&Frame| f.mad[LOCAL_ID] == id || f.mad[REMOTE_ID] == id;
    frames.iter().filter(|f| f.message().name() == name).find(is_about).unwrap()
}

fn frames_of<'a>(frames: &'a [Frame], name: &str) -> &'a Frame {
    frames.iter().find(|f| f.message().name() == name).unwrap()
}

#[test]
fn kernel_capture_sends_first_packet_with_the_peers_starting_psn() {
    let frames = frames("rxe_rping.pcap");
    let req = req_of(&frames[0]);
    let Message::Rep(rep) = about(&frames, "REP", &req).message() else { panic!() };
    let mut first = Vec::new();
    each_packet("rxe_rping.pcap", |src, _, packet| {
        let request = packet.bth.dest_qpn != Qpn::QP1 && !packet.bth.opcode.is_response();
        if request && !first.iter().any(|&(seen, _)| seen == src) {
            first.push((src, packet.bth.psn));
        }
    });
    let named = [(frames[0].src, rep.starting_psn), (frames[0].dst, req.starting_psn)];
    assert_eq!(first, named);
}

#[test]
fn rej_without_listener_equals_the_kernels_bytes() {
    let frames = frames("rxe_cm_reject.pcap");
    let (req, rej) = (&frames[0], &frames[1]);
    let mut server = Stand::new(req.dst, Guid(1));
    server.take(req);
    assert_eq!(differences(&server.sent(), &rej.mad, &[]), [0; 0]);
    assert!(server.out.events.is_empty());

    // The kernel's REJ also ends a connection of this stack.
    let mut client = Stand::new(req.src, Guid(2));
    let src = SocketAddr::new(req.src, 0);
    let id = client.routed(PortSpace::Tcp, QpType::Rc, src, SocketAddr::new(req.dst, 7174));
    client.cm.connect(Time::ZERO, id, &net::param(1), &mut client.out).unwrap();
    let ours = client.sent();
    client.take_with(rej, |mad| {
        mad.tid = u64::from_be_bytes(ours[TID].try_into().unwrap());
        let Message::Rej(rej) = &mut mad.message else { panic!() };
        rej.remote_comm_id = u32::from_be_bytes(ours[LOCAL_ID].try_into().unwrap());
    });
    assert_eq!(client.event(EventKind::Rejected).status, 8);
}

#[test]
fn sidr_req_and_sidr_rep_equal_the_kernels_bytes() {
    let frames = frames("rxe_ud.pcap");
    let kernel_req = frames_of(&frames, "SIDR_REQ");
    let Message::SidrReq(req) = kernel_req.message() else { panic!() };
    let kernel_rep = frames
        .iter()
        .find(|f| matches!(f.message(), Message::SidrRep(r) if r.request_id == req.request_id));
    let kernel_rep = kernel_rep.unwrap();
    let Message::SidrRep(rep) = kernel_rep.message() else { panic!() };
    let port = req.service_id.port().unwrap().1;

    let mut server = Stand::new(kernel_req.dst, Guid(1));
    server.listen(port, QpType::Ud);
    server.take(kernel_req);
    let request = server.event(EventKind::ConnectRequest);
    assert_eq!(request.param.private_data().len(), 180);
    let accept = ConnParam {
        qp_num: rep.qpn,
        private_data: rep.private_data.to_vec(),
        ..ConnParam::default()
    };
    server.cm.accept(Time::ZERO, request.id, &accept, &mut server.out).unwrap();
    assert_eq!(differences(&server.sent(), &kernel_rep.mad, &[]), [0; 0], "SIDR_REP");

    let mut client = Stand::new(kernel_req.src, Guid(2));
    let header = req.ip_header().unwrap();
    let src = SocketAddr::new(kernel_req.src, header.src_port);
    let dst = SocketAddr::new(kernel_req.dst, port);
    let id = client.routed(PortSpace::Udp, QpType::Ud, src, dst);
    let wish = ConnParam { private_data: req.private_data[36..].to_vec(), ..ConnParam::default() };
    client.cm.connect(Time::ZERO, id, &wish, &mut client.out).unwrap();
    let ours = client.sent();
    assert_eq!(differences(&ours, &kernel_req.mad, &[TID, LOCAL_ID]), [0; 0], "SIDR_REQ");
    client.take_with(kernel_rep, |mad| {
        let Message::SidrRep(rep) = &mut mad.message else { panic!() };
        rep.request_id = u32::from_be_bytes(ours[LOCAL_ID].try_into().unwrap());
    });
    let EventParam::Ud(found) = client.event(EventKind::Established).param else { panic!() };
    assert_eq!((found.qp_num, found.qkey), (rep.qpn, rep.qkey));
    assert_eq!(found.av.dgid, Gid::from(kernel_req.dst));
}
