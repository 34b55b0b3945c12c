//! Connections over InfiniBand: paths have LIDs, partitions and service levels, and addresses are not GIDs.

mod net;

use std::net::{IpAddr, SocketAddr};

use net::{CLIENT, Out, SECOND, SERVER};
use rdmux_cm::{
    CmOption, ConnParam, DevicePort, EventKind, EventParam, GroupWish, IbAddr, IdHandle, IdOption,
    JoinFlags, LocalAddress, MadPath, Manager, OnlyDevice, Path, PathData, PathQuery, PortSpace,
    Redirect, Refusal, Resolved, Time,
};
use rdmux_transport::attr::{AddressVector, QpType, TransportType};
use rdmux_wire::cm::{CmMad, Message, Mra, MraOf, RejReason, Req, SidrStatus};
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{Gid, Guid, Lid, Mtu, Pkey, Qkey, Qpn, ServiceId};

const IB: u32 = 2;
const PORT: u16 = 7174;
/// The partition is the second key of each port; the client is a limited member.
const PARTITION: Pkey = Pkey(0x8005);

struct Host {
    cm: Manager,
    out: Out,
    ip: IpAddr,
    port: DevicePort,
}

impl Host {
    fn new(n: u8) -> Self {
        let mut cm = Manager::new(rdmux_cm::Config::default(), [n; 32]);
        let (ip, gid) = (IpAddr::from([10, 0, 0, n]), Gid::new(0xfe80 << 48, Guid(n.into())));
        let key = if n == 1 { PARTITION } else { Pkey(PARTITION.0 & 0x7fff) };
        let port = DevicePort {
            device: IB,
            port_num: 1,
            transport: TransportType::Ib,
            node_guid: Guid(n.into()),
            mtu: Mtu::M2048,
            has_lids: true,
            lid: Lid(u16::from(n) * 4),
            lmc: 2,
            gids: vec![gid, Gid::new(0xfe80 << 48, Guid(0x100 + u64::from(n)))],
            pkeys: vec![Pkey::DEFAULT, key],
        };
        let device = (IB, TransportType::Ib);
        let address = LocalAddress {
            gid,
            pkey: key,
            ipoib_qkey: Qkey(0xb1b),
            has_lids: true,
            ..LocalAddress::over_ip(ip, device, Guid(n.into()), Mtu::M2048)
        };
        // RoCE has the same addresses, and is first in the list.
        let roce = LocalAddress::over_ip(
            ip,
            (0, TransportType::Ib),
            Guid(0x50 + u64::from(n)),
            Mtu::M1024,
        );
        let mut out = Out::default();
        cm.set_device_ports(vec![port.clone()]);
        cm.set_addresses(Time::ZERO, vec![roce, address], &mut out);
        Self { cm, out, ip, port }
    }

    fn listener(&mut self, only: Option<u32>, ps: PortSpace, qp_type: QpType) -> IdHandle {
        let only = only.map(|device| OnlyDevice { device, transport: TransportType::Ib });
        let id = self.cm.create_id_on(SERVER, ps, qp_type, only, 0).unwrap();
        self.cm.bind(id, SocketAddr::new(self.ip, PORT), false).unwrap();
        self.cm.listen(id, 0).unwrap();
        id
    }

    /// Creates an id with a path to another host, as subnet administration would return it.
    fn routed(&mut self, to: &Self, ps: PortSpace, qp_type: QpType, hop_limit: u8) -> IdHandle {
        let only = Some(OnlyDevice { device: IB, transport: TransportType::Ib });
        let id = self.cm.create_id_on(CLIENT, ps, qp_type, only, 0).unwrap();
        let (now, dst) = (Time::ZERO, SocketAddr::new(to.ip, PORT));
        self.cm.resolve_addr(now, id, None, dst.into(), SECOND, false, &mut self.out).unwrap();
        let (_, query) = self.out.queries.pop_front().unwrap();
        assert_eq!(query.only.map(|only| only.device), Some(IB));
        let answer = Resolved { dgid: to.port.gids[0], ..query.over_ip(self.ip, IB) };
        self.cm.handle_resolved(now, id, answer, &mut self.out);
        self.cm.resolve_route(now, id, SECOND, &mut self.out).unwrap();
        let (_, query) = self.out.paths.pop_front().unwrap();
        let by_address = query.by_address;
        assert_eq!((by_address.local, by_address.av.dgid), (self.port.gids[0], to.port.gids[0]));
        assert_eq!((by_address.pkey_index, by_address.av.is_global), (1, false));
        let path = Path {
            slid: Lid(self.port.lid.0 + 1),
            av: AddressVector {
                is_global: hop_limit > 1,
                hop_limit,
                dlid: to.port.lid.0 + 1,
                sl: 3,
                src_path_bits: 1,
                static_rate: 7,
                ..by_address.av
            },
            mtu: Mtu::M2048,
            ..by_address
        };
        self.cm.handle_path(now, id, query.attempt, Ok(path), &mut self.out);
        self.out.events.clear();
        id
    }

    fn sent(&mut self) -> (MadPath, [u8; 256]) {
        assert_eq!(self.out.mads.len(), 1);
        self.out.mads.pop_front().unwrap()
    }

    fn event(&mut self, kind: EventKind) -> rdmux_cm::Event {
        let event = self.out.events.pop_front().unwrap().1;
        assert_eq!((event.kind, event.status), (kind, 0));
        event
    }

    /// Delivers a datagram of another host: by LID, and with the GID if there is a GRH.
    fn take(&mut self, from: &Self, path: &MadPath, mad: &[u8]) {
        let av = &path.av;
        let bits = self.port.path_bits(Lid(av.dlid)).expect("our LID");
        let global = av.is_global;
        let came = MadPath {
            local: if global { av.dgid } else { self.port.gids[0] },
            av: AddressVector {
                dgid: if global { path.local } else { Gid::ZERO },
                dlid: from.port.lid.0 + u16::from(av.src_path_bits),
                src_path_bits: bits,
                sgid_index: 0,
                static_rate: 0,
                ..*av
            },
            ..*path
        };
        self.cm.handle_mad(Time::ZERO, &came, mad, &mut self.out);
    }
}

fn param(qpn: u32) -> ConnParam {
    ConnParam { qp_num: Qpn::new(qpn), ..ConnParam::default() }
}

#[test]
fn infiniband_connection_uses_the_sa_path_record_at_both_ends() {
    for hop_limit in [0, 64] {
        let (mut server, mut client) = (Host::new(1), Host::new(2));
        server.listener(None, PortSpace::Tcp, QpType::Rc);
        let id = client.routed(&server, PortSpace::Tcp, QpType::Rc, hop_limit);
        client.cm.connect(Time::ZERO, id, &param(0x22), &mut client.out).unwrap();
        let (path, mad) = client.sent();
        assert_eq!((path.device, path.pkey_index), (IB, 1));
        let Message::Req(req) = CmMad::parse(&mad).unwrap().message else { panic!("no REQ") };
        let lids = (req.primary.local_lid, req.primary.remote_lid);
        // Across routers LIDs mean nothing (IBTA 12.6.5).
        let expected = if hop_limit > 1 { (Lid(0xffff), Lid(0xffff)) } else { (Lid(9), Lid(5)) };
        assert_eq!((lids, req.primary.subnet_local), (expected, hop_limit <= 1));
        assert_eq!((req.primary.sl, req.primary.rate, req.pkey), (3, 7, Pkey(5)));
        assert_eq!((req.primary.local_gid, req.local_ca_guid), (client.port.gids[0], Guid(2)));

        server.take(&client, &path, &mad);
        let request = server.event(EventKind::ConnectRequest);
        let negotiated = *request.negotiated.unwrap();
        let av = negotiated.av;
        assert_eq!((av.dlid, av.src_path_bits, av.sl, av.static_rate), (9, 1, 3, 7));
        assert_eq!((av.is_global, av.dgid), (hop_limit > 1, client.port.gids[0]));
        assert_eq!((negotiated.pkey_index, negotiated.path_mtu), (1, Mtu::M2048));
        let route = *request.route.unwrap();
        assert_eq!((route.device, route.sgid, route.slid), (IB, server.port.gids[0], Lid(5)));
        assert_eq!(route.pkey, PARTITION, "our own key");

        server.cm.accept(Time::ZERO, request.id, &param(0x11), &mut server.out).unwrap();
        let (path, mad) = server.sent();
        assert_eq!((path.av.dlid, path.av.sl, path.pkey_index), (9, 3, 1));
        client.take(&server, &path, &mad);
        let negotiated = *client.event(EventKind::ConnectResponse).negotiated.unwrap();
        assert_eq!((negotiated.av.dlid, negotiated.av.src_path_bits), (5, 1));
        assert_eq!((negotiated.pkey_index, negotiated.dest_qpn), (1, Qpn::new(0x11)));
        client.cm.establish(Time::ZERO, id, &mut client.out).unwrap();
        let (path, mad) = client.sent();
        server.take(&client, &path, &mad);
        server.event(EventKind::Established);
    }
}

#[test]
fn infiniband_req_with_foreign_gid_lid_pkey_or_mtu_is_rejected() {
    type Patch = fn(&mut Req);
    let patches: [(Patch, RejReason); 5] = [
        (|req| req.primary.remote_gid = Gid::new(7, Guid(7)), RejReason::INVALID_GID),
        (|req| req.primary.remote_lid = Lid(0x30), RejReason::INVALID_LID),
        (|req| req.primary.local_lid = Lid(0xc000), RejReason::INVALID_LID),
        (|req| req.pkey = Pkey(0x8007), RejReason::INVALID_GID),
        (|req| req.path_mtu = Mtu::M4096.code(), RejReason::INVALID_MTU),
    ];
    for (n, (patch, reason)) in patches.into_iter().enumerate() {
        let (mut server, mut client) = (Host::new(1), Host::new(2));
        server.listener(None, PortSpace::Tcp, QpType::Rc);
        let id = client.routed(&server, PortSpace::Tcp, QpType::Rc, 0);
        client.cm.connect(Time::ZERO, id, &param(0x22), &mut client.out).unwrap();
        let (path, mad) = client.sent();
        let mut mad = CmMad::parse(&mad).unwrap();
        let Message::Req(req) = &mut mad.message else { panic!("no REQ") };
        patch(req);
        server.take(&client, &path, &mad.to_bytes());
        assert!(server.out.events.is_empty(), "patch {n}");
        let (_, mad) = server.sent();
        let Message::Rej(rej) = CmMad::parse(&mad).unwrap().message else { panic!("no REJ") };
        assert_eq!(rej.reason, reason, "patch {n}");
    }
}

#[test]
fn req_to_an_alias_gid_of_the_port_gets_its_gid_index() {
    let (mut server, mut client) = (Host::new(1), Host::new(2));
    server.listener(None, PortSpace::Tcp, QpType::Rc);
    let id = client.routed(&server, PortSpace::Tcp, QpType::Rc, 0);
    client.cm.connect(Time::ZERO, id, &param(0x22), &mut client.out).unwrap();
    let (path, mad) = client.sent();
    let mut mad = CmMad::parse(&mad).unwrap();
    let Message::Req(req) = &mut mad.message else { panic!("no REQ") };
    req.primary.remote_gid = server.port.gids[1];
    server.take(&client, &path, &mad.to_bytes());
    let request = server.event(EventKind::ConnectRequest);
    assert_eq!(request.negotiated.unwrap().av.sgid_index, 1);
}

#[test]
fn listener_bound_to_one_device_gets_no_req_of_another_device() {
    for (only, hears) in [(None, true), (Some(IB), true), (Some(0), false)] {
        let (mut server, mut client) = (Host::new(1), Host::new(2));
        server.listener(only, PortSpace::Tcp, QpType::Rc);
        let id = client.routed(&server, PortSpace::Tcp, QpType::Rc, 0);
        client.cm.connect(Time::ZERO, id, &param(0x22), &mut client.out).unwrap();
        let (path, mad) = client.sent();
        server.take(&client, &path, &mad);
        assert_eq!(server.out.events.len(), usize::from(hears), "{only:?}");
    }
}

#[test]
fn sidr_over_infiniband_uses_lids_and_the_qkey_of_the_port_space() {
    for (ps, qkey) in [(PortSpace::Udp, Qkey::RDMA_UDP), (PortSpace::IpoIb, Qkey(0xb1b))] {
        let (mut server, mut client) = (Host::new(1), Host::new(2));
        server.listener(None, ps, QpType::Ud);
        let id = client.routed(&server, ps, QpType::Ud, 0);
        client.cm.connect(Time::ZERO, id, &param(0x22), &mut client.out).unwrap();
        let (path, mad) = client.sent();
        server.take(&client, &path, &mad);
        let request = server.event(EventKind::ConnectRequest);
        let negotiated = *request.negotiated.unwrap();
        assert_eq!((negotiated.qkey, negotiated.pkey_index), (qkey, 1));
        server.cm.accept(Time::ZERO, request.id, &param(0x11), &mut server.out).unwrap();
        let (path, mad) = server.sent();
        assert_eq!((path.av.dlid, path.av.src_path_bits, path.av.sl), (9, 1, 3));
        client.take(&server, &path, &mad);
        let event = client.event(EventKind::Established);
        let EventParam::Ud(ud) = event.param else { panic!("no datagram peer") };
        assert_eq!((ud.av.dlid, ud.qp_num, ud.qkey), (5, Qpn::new(0x11), qkey));
    }
}

/// Returns a path record from a LID of the client's port to one of the server's; `bits` are the path bits of both.
fn record(client: &DevicePort, server: &DevicePort, bits: u16, flags: u32) -> PathData {
    let record = PathRecord {
        sgid: client.gids[0],
        dgid: server.gids[0],
        slid: Lid(client.lid.0 + bits),
        dlid: Lid(server.lid.0 + bits),
        pkey: PARTITION,
        sl: 2,
        mtu: Mtu::M2048.code(),
        ..PathRecord::default()
    };
    PathData { flags: flags | PathData::BIDIRECTIONAL, record }
}

/// Adds a second port to the same device.
fn second_port(host: &mut Host) -> DevicePort {
    let n = u64::from(host.port.lid.0 / 4);
    let port = DevicePort {
        port_num: 2,
        lid: Lid(host.port.lid.0 + 0x100),
        gids: vec![Gid::new(0xfe80 << 48, Guid(0x200 + n))],
        ..host.port.clone()
    };
    host.cm.set_device_ports(vec![host.port.clone(), port.clone()]);
    port
}

/// Creates an id that will connect along these records.
fn along(client: &mut Host, server: &Host, records: &[PathData]) -> IdHandle {
    let only = Some(OnlyDevice { device: IB, transport: TransportType::Ib });
    let id = client.cm.create_id_on(CLIENT, PortSpace::Tcp, QpType::Rc, only, 0).unwrap();
    let (now, dst) = (Time::ZERO, SocketAddr::new(server.ip, PORT));
    let taken =
        client.cm.resolve_along(now, id, (None, dst.into()), records, true, &mut client.out);
    taken.unwrap();
    client.event(EventKind::RouteResolved);
    client.cm.connect(now, id, &param(0x22), &mut client.out).unwrap();
    id
}

#[test]
fn alternate_path_leads_to_other_lids_of_a_port_or_to_a_second_port() {
    for second in [false, true] {
        let (mut server, mut client) = (Host::new(1), Host::new(2));
        server.listener(None, PortSpace::Tcp, QpType::Rc);
        let ports = if second {
            (second_port(&mut client), second_port(&mut server))
        } else {
            (client.port.clone(), server.port.clone())
        };
        let records = [
            record(&client.port, &server.port, 0, PathData::PRIMARY),
            record(&ports.0, &ports.1, 3, PathData::ALTERNATE),
        ];
        along(&mut client, &server, &records);
        let (path, mad) = client.sent();
        server.take(&client, &path, &mad);
        let request = server.event(EventKind::ConnectRequest);
        let alternate = request.negotiated.unwrap().alternate.unwrap();
        let port_num = if second { 2 } else { 1 };
        let av = alternate.av;
        assert_eq!((av.dlid, av.src_path_bits, av.sl), (ports.0.lid.0 + 3, 3, 2));
        assert_eq!((av.port_num, av.dgid, alternate.pkey_index), (port_num, ports.0.gids[0], 1));
        server.cm.accept(Time::ZERO, request.id, &param(0x11), &mut server.out).unwrap();
        let (path, mad) = server.sent();
        client.take(&server, &path, &mad);
        let negotiated = *client.event(EventKind::ConnectResponse).negotiated.unwrap();
        let av = negotiated.alternate.unwrap().av;
        assert_eq!((av.dlid, av.src_path_bits, av.port_num), (ports.1.lid.0 + 3, 3, port_num));
        let (attr, _) = negotiated.qp_attr(rdmux_transport::attr::QpState::Rtr);
        assert_eq!((attr.port_num, attr.alt_port_num), (1, port_num));
    }
}

#[test]
fn alternate_path_to_a_lid_or_partition_that_is_not_ours_is_rejected() {
    type Patch = fn(&mut Req);
    let patches: [Patch; 4] = [
        |req| req.alternate.remote_lid = Lid(0x30),
        |req| req.alternate.remote_lid = Lid(0xffff),
        |req| req.alternate.local_lid = Lid(0xc000),
        |req| req.alternate.remote_gid = Gid::new(7, Guid(7)),
    ];
    for (n, patch) in patches.into_iter().enumerate() {
        let (mut server, mut client) = (Host::new(1), Host::new(2));
        server.listener(None, PortSpace::Tcp, QpType::Rc);
        let records = [
            record(&client.port, &server.port, 0, PathData::PRIMARY),
            record(&client.port, &server.port, 3, PathData::ALTERNATE),
        ];
        along(&mut client, &server, &records);
        let (path, mad) = client.sent();
        let mut mad = CmMad::parse(&mad).unwrap();
        let Message::Req(req) = &mut mad.message else { panic!("no REQ") };
        patch(req);
        server.take(&client, &path, &mad.to_bytes());
        let request = server.event(EventKind::ConnectRequest);
        assert_eq!(request.negotiated.unwrap().alternate, None, "patch {n}");
        server.cm.accept(Time::ZERO, request.id, &param(0x11), &mut server.out).unwrap();
        let (_, mad) = server.sent();
        let Message::Rep(rep) = CmMad::parse(&mad).unwrap().message else { panic!("no REP") };
        assert_eq!(rep.failover_accepted, 2, "patch {n}");
    }
}

#[test]
fn cm_redirect_is_followed_to_a_unicast_lid_with_a_matching_pkey_only() {
    // The partition is 5, in which either may be a full or a limited member; 0 names none.
    let cases = [
        (Lid(0xc001), Pkey(0), false),
        (Lid(7), Pkey(0), true),
        (Lid(7), Pkey(0x8000), true),
        (Lid(7), Pkey(5), true),
        (Lid(7), Pkey(0x8005), true),
        (Lid(7), Pkey(7), false),
        (Lid(7), Pkey(0x8004), false),
        (Lid(7), Pkey(0xffff), false),
    ];
    for (lid, pkey, follows) in cases {
        let (mut server, mut client) = (Host::new(1), Host::new(2));
        server.listener(None, PortSpace::Tcp, QpType::Rc);
        let id = client.routed(&server, PortSpace::Tcp, QpType::Rc, 0);
        client.cm.connect(Time::ZERO, id, &param(0x22), &mut client.out).unwrap();
        let (path, mad) = client.sent();
        server.take(&client, &path, &mad);
        let request = server.event(EventKind::ConnectRequest).id;
        let gid = server.port.gids[1];
        let to = Redirect { gid, lid, pkey, sl: 4, tclass: 9, flow_label: 77 };
        let (reason, info) = (24, to.to_info().to_vec());
        let refusal = Refusal { reason, info, private_data: Vec::new() };
        server.cm.reject_with(Time::ZERO, request, &refusal, &mut server.out).unwrap();
        let (path, mad) = server.sent();
        client.take(&server, &path, &mad);
        if !follows {
            let rejected = client.out.events.pop_front().unwrap().1;
            let refused = (EventKind::Rejected, 24);
            assert_eq!((rejected.kind, rejected.status), refused, "{lid:?} {pkey:?}");
            continue;
        }
        let (path, mad) = client.sent();
        assert_eq!((path.av.dlid, path.av.sl, path.av.dgid), (7, 4, gid), "{pkey:?}");
        assert_eq!((path.av.traffic_class, path.av.flow_label), (9, 77));
        let Message::Req(req) = CmMad::parse(&mad).unwrap().message else { panic!("no REQ") };
        assert_eq!((req.primary.remote_lid, req.primary.sl), (lid, 4));
        assert_eq!((req.primary.tclass, req.primary.flow_label), (9, 77));
        assert_eq!(req.primary.remote_gid, gid);
        server.take(&client, &path, &mad);
        let request = server.event(EventKind::ConnectRequest);
        assert_eq!(request.negotiated.unwrap().av.sgid_index, 1);
    }
}

/// Sends the client's request with an alternate path, refuses it for this reason, and returns what the client sends next.
fn sent_after(reason: RejReason, gid: impl Fn(&Host) -> Gid) -> (Host, Host, IdHandle) {
    let (mut server, mut client) = (Host::new(1), Host::new(2));
    server.listener(None, PortSpace::Tcp, QpType::Rc);
    let records = [
        record(&client.port, &server.port, 0, PathData::PRIMARY),
        record(&client.port, &server.port, 3, PathData::ALTERNATE),
    ];
    let id = along(&mut client, &server, &records);
    let (path, mad) = client.sent();
    server.take(&client, &path, &mad);
    let request = server.event(EventKind::ConnectRequest).id;
    let to = Redirect { gid: gid(&server), lid: Lid(7), ..Redirect::default() };
    let (reason, info) = (reason.0, to.to_info().to_vec());
    let refusal = Refusal { reason, info, private_data: Vec::new() };
    server.cm.reject_with(Time::ZERO, request, &refusal, &mut server.out).unwrap();
    let (path, mad) = server.sent();
    client.take(&server, &path, &mad);
    (server, client, id)
}

#[test]
fn port_redirect_resends_req_to_the_same_cm_and_port_cm_redirect_to_the_new_one() {
    for (reason, asked) in [(RejReason::PORT_REDIRECT, 4), (RejReason::PORT_CM_REDIRECT, 7)] {
        let (server, mut client, id) = sent_after(reason, |server| server.port.gids[1]);
        let (path, mad) = client.sent();
        assert_eq!(path.av.dlid, asked, "{reason:?}");
        let Message::Req(req) = CmMad::parse(&mad).unwrap().message else { panic!("no REQ") };
        let gid = server.port.gids[1];
        assert_eq!((req.primary.remote_lid, req.primary.remote_gid), (Lid(7), gid));
        // The alternate path led to the port that has refused.
        assert_eq!(req.alternate, Default::default());
        assert_eq!(client.cm.query(id).unwrap().route.unwrap().av.dgid, gid);
        assert_eq!(client.cm.counters().redirected, 1);
    }
}

#[test]
fn port_cm_redirect_with_lid_and_zero_gid_keeps_the_remote_gid() {
    let (server, mut client, id) = sent_after(RejReason::PORT_CM_REDIRECT, |_| Gid::ZERO);
    let (path, mad) = client.sent();
    assert_eq!((path.av.dlid, path.av.dgid), (7, server.port.gids[0]));
    let Message::Req(req) = CmMad::parse(&mad).unwrap().message else { panic!("no REQ") };
    assert_eq!(req.primary.remote_gid, server.port.gids[0]);
    assert_eq!(client.cm.query(id).unwrap().route.unwrap().av.dgid, server.port.gids[0]);
}

/// Redirects a client's request to the server's second GID, without a LID. Returns also the REJ and its path.
fn redirected(gid: impl Fn(&Host) -> Gid) -> (Host, Host, IdHandle, (MadPath, [u8; 256])) {
    let (mut server, mut client) = (Host::new(1), Host::new(2));
    server.listener(None, PortSpace::Tcp, QpType::Rc);
    let id = client.routed(&server, PortSpace::Tcp, QpType::Rc, 0);
    let messages = IdOption::Cm(CmOption::Messages(true));
    client.cm.set_option(id, messages).unwrap();
    client.cm.connect(Time::ZERO, id, &param(0x22), &mut client.out).unwrap();
    let (path, mad) = client.sent();
    server.take(&client, &path, &mad);
    let request = server.event(EventKind::ConnectRequest).id;
    let to = Redirect { gid: gid(&server), ..Redirect::default() };
    let refusal = Refusal { reason: 24, info: to.to_info().to_vec(), private_data: Vec::new() };
    server.cm.reject_with(Time::ZERO, request, &refusal, &mut server.out).unwrap();
    let (path, mad) = server.sent();
    client.take(&server, &path, &mad);
    (server, client, id, (path, mad))
}

/// Returns the path that subnet administration has for a query.
fn way(client: &Host, query: &PathQuery) -> Path {
    let by_address = query.by_address;
    let av = AddressVector { dlid: 7, sl: 4, src_path_bits: 2, ..by_address.av };
    let (slid, back_lid) = (Lid(client.port.lid.0 + 2), Lid(0));
    Path { slid, back_lid, av, mtu: Mtu::M1024, ..by_address }
}

#[test]
fn redirect_without_a_lid_queries_a_path_record_and_follows_it() {
    let (mut server, mut client, id, (path, rej)) = redirected(|server| server.port.gids[1]);
    let (asked, query) = client.out.paths.pop_front().unwrap();
    let wanted = (id, server.port.gids[1], client.port.gids[0], Pkey(5));
    let by_address = &query.by_address;
    assert_eq!((asked, by_address.av.dgid, by_address.local, by_address.pkey), wanted);
    assert!(client.out.events.is_empty() && client.out.mads.is_empty());
    // Meanwhile the request is not retransmitted, and the path not queried twice.
    client.take(&server, &path, &rej);
    client.cm.handle_timeout(Time::ZERO.after(SECOND), &mut client.out);
    assert!(client.out.paths.is_empty() && client.out.mads.is_empty());
    assert!(client.out.events.is_empty());
    let found = way(&client, &query);
    client.cm.handle_path(Time::ZERO, id, query.attempt - 1, Ok(found), &mut client.out);
    assert!(client.out.mads.is_empty(), "an answer to an older query");
    client.cm.handle_path(Time::ZERO, id, query.attempt, Ok(found), &mut client.out);
    let (path, mad) = client.sent();
    assert_eq!((path.av.dlid, path.av.sl, path.av.src_path_bits), (7, 4, 2));
    let Message::Req(req) = CmMad::parse(&mad).unwrap().message else { panic!("no REQ") };
    let primary = &req.primary;
    assert_eq!((primary.local_lid, primary.remote_lid, primary.sl), (Lid(10), Lid(7), 4));
    assert_eq!((primary.remote_gid, req.path_mtu), (server.port.gids[1], Mtu::M1024.code()));
    assert_eq!(client.cm.counters().redirected, 1);
    server.take(&client, &path, &mad);
    let request = server.event(EventKind::ConnectRequest);
    assert_eq!(request.negotiated.unwrap().av.dlid, 10);
    server.cm.accept(Time::ZERO, request.id, &param(0x11), &mut server.out).unwrap();
    let (path, mad) = server.sent();
    client.take(&server, &path, &mad);
    let negotiated = *client.event(EventKind::ConnectResponse).negotiated.unwrap();
    assert_eq!((negotiated.av.dlid, negotiated.path_mtu), (7, Mtu::M1024));
}

#[test]
fn mra_after_a_redirect_does_not_cancel_the_path_query() {
    let (server, mut client, id, (path, rej)) = redirected(|server| server.port.gids[1]);
    let (_, query) = client.out.paths.pop_front().unwrap();
    let CmMad { tid, message: Message::Rej(rej), .. } = CmMad::parse(&rej).unwrap() else {
        panic!("no REJ")
    };
    let mra = Mra {
        local_comm_id: rej.local_comm_id,
        remote_comm_id: rej.remote_comm_id,
        message: MraOf::Req,
        service_timeout: 24,
        private_data: [0; 222],
    };
    client.take(&server, &path, &CmMad::new(tid, mra.into()).to_bytes());
    assert!(client.out.cancelled.is_empty() && client.out.events.is_empty());
    assert_eq!(client.cm.counters().unexpected, 1);
    let found = way(&client, &query);
    client.cm.handle_path(Time::ZERO, id, query.attempt, Ok(found), &mut client.out);
    let (path, mad) = client.sent();
    assert_eq!(path.av.dlid, 7);
    assert!(matches!(CmMad::parse(&mad).unwrap().message, Message::Req(_)));
}

#[test]
fn redirect_to_a_gid_without_a_path_is_rejected_with_the_redirect_reason() {
    let late = Time::ZERO.after(SECOND * 2);
    let refused = |client: &mut Host| {
        let rejected = client.out.events.pop_front().unwrap().1;
        assert_eq!((rejected.kind, rejected.status), (EventKind::Rejected, 24));
        let Some(Message::Rej(rej)) = rejected.message().map(|mad| mad.message) else { panic!() };
        assert_eq!(rej.reason, RejReason::PORT_CM_REDIRECT);
        assert!(client.out.mads.is_empty());
        assert_eq!((client.cm.connections(), client.cm.deadlines()), (0, 0));
    };
    let to_gid = |server: &Host| server.port.gids[1];
    let (_, mut client, id, _) = redirected(to_gid);
    let (_, query) = client.out.paths.pop_front().unwrap();
    client.cm.handle_path(Time::ZERO, id, query.attempt, Err(22), &mut client.out);
    refused(&mut client);

    let (_, mut client, id, _) = redirected(to_gid);
    let (_, query) = client.out.paths.pop_front().unwrap();
    client.cm.handle_timeout(late, &mut client.out);
    assert_eq!(client.out.cancelled, [(id, query.attempt)]);
    refused(&mut client);

    // No query is sent for a GID that no path leads to.
    for gid in [Gid::ZERO, Gid([0xff; 16])] {
        let (_, mut client, ..) = redirected(|_| gid);
        assert!(client.out.paths.is_empty());
        refused(&mut client);
    }
}

#[test]
fn destroy_during_a_redirects_path_query_cancels_the_query() {
    let (_, mut client, id, _) = redirected(|server| server.port.gids[1]);
    let (_, query) = client.out.paths.pop_front().unwrap();
    client.cm.destroy(Time::ZERO, id, &mut client.out).unwrap();
    assert_eq!(client.out.cancelled, [(id, query.attempt)]);
    let found = way(&client, &query);
    client.cm.handle_path(Time::ZERO, id, query.attempt, Ok(found), &mut client.out);
    assert_eq!((client.cm.connections(), client.cm.deadlines()), (0, 0));
}

#[test]
fn sidr_redirect_without_a_lid_queries_a_path_record_and_follows_it() {
    let (mut server, mut client) = (Host::new(1), Host::new(2));
    server.listener(None, PortSpace::Udp, QpType::Ud);
    for answer in [true, false] {
        let id = client.routed(&server, PortSpace::Udp, QpType::Ud, 0);
        client.cm.connect(Time::ZERO, id, &param(0), &mut client.out).unwrap();
        let (path, mad) = client.sent();
        server.take(&client, &path, &mad);
        let request = server.event(EventKind::ConnectRequest).id;
        let to = Redirect { gid: server.port.gids[1], ..Redirect::default() };
        let (reason, info) = (SidrStatus::REDIRECT.0.into(), to.to_info().to_vec());
        let refusal = Refusal { reason, info, private_data: Vec::new() };
        server.cm.reject_with(Time::ZERO, request, &refusal, &mut server.out).unwrap();
        let (path, mad) = server.sent();
        client.take(&server, &path, &mad);
        let (_, query) = client.out.paths.pop_front().unwrap();
        assert_eq!(query.by_address.av.dgid, server.port.gids[1]);
        client.cm.handle_timeout(Time::ZERO.after(SECOND), &mut client.out);
        assert!(client.out.mads.is_empty(), "it is not repeated meanwhile");
        let found = answer.then(|| way(&client, &query)).ok_or(22);
        client.cm.handle_path(Time::ZERO, id, query.attempt, found, &mut client.out);
        if !answer {
            let told = client.out.events.pop_front().unwrap().1;
            let status = SidrStatus::REDIRECT.0.into();
            assert_eq!((told.kind, told.status), (EventKind::Unreachable, status));
            continue;
        }
        let (path, mad) = client.sent();
        assert_eq!((path.av.dlid, path.av.sl), (7, 4));
        server.take(&client, &path, &mad);
        let request = server.event(EventKind::ConnectRequest).id;
        server.cm.accept(Time::ZERO, request, &param(0x33), &mut server.out).unwrap();
        let (path, mad) = server.sent();
        client.take(&server, &path, &mad);
        let EventParam::Ud(ud) = client.event(EventKind::Established).param else { panic!() };
        assert_eq!((ud.av.dlid, ud.qp_num), (7, Qpn::new(0x33)));
    }
}

#[test]
fn req_for_the_second_port_received_at_the_first_is_accepted() {
    let (mut server, mut client) = (Host::new(1), Host::new(2));
    let second = second_port(&mut server);
    let id = server.cm.create_id(SERVER, PortSpace::Ib, QpType::Rc, 0).unwrap();
    let service = ServiceId(0x1000_0000_0000_0007);
    let at = IbAddr { pkey: PARTITION, ..IbAddr::new(second.gids[0], service) };
    server.cm.bind(id, at, false).unwrap();
    server.cm.listen(id, 0).unwrap();
    let id = client.cm.create_id(CLIENT, PortSpace::Ib, QpType::Rc, 0).unwrap();
    let records = [
        record(&client.port, &second, 0, PathData::PRIMARY),
        record(&client.port, &server.port, 0, PathData::GMP),
    ];
    let dst = (None, at.into());
    client.cm.resolve_along(Time::ZERO, id, dst, &records, false, &mut client.out).unwrap();
    client.event(EventKind::RouteResolved);
    client.cm.connect(Time::ZERO, id, &param(0x22), &mut client.out).unwrap();
    let (path, mad) = client.sent();
    assert_eq!(path.av.dlid, server.port.lid.0);
    server.take(&client, &path, &mad);
    let request = server.event(EventKind::ConnectRequest);
    let av = request.negotiated.unwrap().av;
    assert_eq!((av.port_num, av.dlid), (2, client.port.lid.0));
    // The answer takes the path of the request.
    server.cm.accept(Time::ZERO, request.id, &param(0x11), &mut server.out).unwrap();
    let (path, _) = server.sent();
    assert_eq!((path.av.port_num, path.local), (1, server.port.gids[0]));
}

#[test]
fn removed_gid_raises_addr_change_for_ids_bound_to_it() {
    let mut host = Host::new(1);
    let id = host.cm.create_id(CLIENT, PortSpace::Ib, QpType::Rc, 0).unwrap();
    let at = IbAddr::new(host.port.gids[1], ServiceId(0x1000_0000_0000_0007));
    host.cm.bind(id, at, false).unwrap();
    let (ip, device) = (host.ip, (IB, TransportType::Ib));
    let address = LocalAddress::over_ip(ip, device, Guid(1), Mtu::M2048);
    host.cm.set_addresses(Time::ZERO, vec![address.clone()], &mut host.out);
    assert!(host.out.events.is_empty());
    host.port.gids.truncate(1);
    host.cm.set_device_ports(vec![host.port.clone()]);
    host.cm.set_addresses(Time::ZERO, vec![address], &mut host.out);
    host.event(EventKind::AddrChange);
}

#[test]
fn ipv4_id_joins_ipv6_group_on_infiniband_but_not_on_roce() {
    let mut host = Host::new(1);
    let group: IpAddr = "ff12:a01b:fe80::1".parse().unwrap();
    for (device, expected) in [(IB, Ok(())), (0, Err(22))] {
        let only = Some(OnlyDevice { device, transport: TransportType::Ib });
        let id = host.cm.create_id_on(CLIENT, PortSpace::Udp, QpType::Ud, only, 0).unwrap();
        host.cm.bind(id, SocketAddr::new(host.ip, 0), false).unwrap();
        let wish = GroupWish::address(group, JoinFlags::FullMember);
        let joined = host.cm.join(Time::ZERO, id, wish, 1, &mut host.out);
        assert_eq!(joined.map_err(|e| e.errno()), expected);
    }
}
