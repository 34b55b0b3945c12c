//! InfiniBand's own addresses: GIDs, partitions and service IDs, and path records from the program.

mod net;

use std::net::SocketAddr;

use net::{CLIENT, Out, SECOND, SERVER};
use rdmux_cm::{
    Addr, CmError, ConnParam, DevicePort, EventKind, IbAddr, IdHandle, IdOption, IdState,
    LocalAddress, MadPath, Manager, PathData, PortSpace, Time,
};
use rdmux_transport::attr::{QpType, TransportType};
use rdmux_wire::cm::{CmMad, Message, Rej, RejReason, Req, SidrStatus};
use rdmux_wire::sa::{PathRecord, Rate};
use rdmux_wire::{Gid, Guid, Lid, Mtu, Pkey, Qpn, ServiceId};

const PREFIX: u64 = 0xfe80 << 48;
const SERVICE: ServiceId = ServiceId(0x1000_0000_dead_0001);

/// A host with an InfiniBand port in two partitions and, before it, RoCE.
struct Host {
    cm: Manager,
    out: Out,
    gid: Gid,
    lid: Lid,
    /// Number of the last connection's queue pair: each has one of its own.
    qp_num: Qpn,
}

impl Host {
    fn new(n: u8) -> Self {
        let mut cm = Manager::new(rdmux_cm::Config::default(), [n; 32]);
        let (gid, lid) = (Gid::new(PREFIX, Guid(n.into())), Lid(u16::from(n) * 8));
        let ip = std::net::IpAddr::from([10, 0, 0, n]);
        let port = |device: u32, has_lids| DevicePort {
            device,
            port_num: 1,
            transport: TransportType::Ib,
            node_guid: Guid(u64::from(n) + u64::from(device) * 0x100),
            mtu: Mtu::M2048,
            has_lids,
            lid: if has_lids { lid } else { Lid(0) },
            lmc: if has_lids { 3 } else { 0 },
            gids: vec![if has_lids { gid } else { ip.into() }],
            pkeys: if has_lids { vec![Pkey(0xffff), Pkey(0x8005)] } else { vec![Pkey(0xffff)] },
        };
        let address = |device| {
            let guid = Guid(u64::from(n) + u64::from(device) * 0x100);
            LocalAddress::over_ip(ip, (device, TransportType::Ib), guid, Mtu::M2048)
        };
        let ib = LocalAddress { gid, has_lids: true, ..address(2) };
        let mut out = Out::default();
        cm.set_device_ports(vec![port(0, false), port(2, true)]);
        cm.set_addresses(Time::ZERO, vec![address(0), ib], &mut out);
        Self { cm, out, gid, lid, qp_num: Qpn::new(0x10) }
    }

    fn id(&mut self, ps: PortSpace) -> IdHandle {
        let qp_type = if ps == PortSpace::Udp { QpType::Ud } else { QpType::Rc };
        self.cm.create_id(CLIENT, ps, qp_type, 0).unwrap()
    }

    fn listener(&mut self, ps: PortSpace, at: IbAddr) -> IdHandle {
        let id = self.cm.create_id(SERVER, ps, QpType::Rc, 0).unwrap();
        self.cm.bind(id, at, false).unwrap();
        self.cm.listen(id, 0).unwrap();
        id
    }

    /// Returns a path record to another host, whose LIDs have these path bits.
    fn record_to(&self, to: &Self, bits: u16) -> PathRecord {
        PathRecord {
            sgid: self.gid,
            dgid: to.gid,
            slid: Lid(self.lid.0 + bits),
            dlid: Lid(to.lid.0 + bits),
            pkey: Pkey(0xffff),
            sl: 2,
            mtu: Mtu::M2048.code(),
            rate: Rate::GBPS_40,
            packet_life_time: 14,
            ..PathRecord::default()
        }
    }

    fn along(&mut self, to: Addr, records: &[PathData]) -> Result<IdHandle, CmError> {
        let id = self.id(PortSpace::Ib);
        self.cm.resolve_along(Time::ZERO, id, (None, to), records, false, &mut self.out)?;
        assert_eq!(self.event(EventKind::RouteResolved).id, id);
        Ok(id)
    }

    fn connect(&mut self, id: IdHandle, private_data: &[u8]) -> (MadPath, Req) {
        self.qp_num = Qpn::new(self.qp_num.get() + 1);
        let (private_data, qp_num) = (private_data.to_vec(), self.qp_num);
        let param = ConnParam { private_data, qp_num, ..ConnParam::default() };
        self.cm.connect(Time::ZERO, id, &param, &mut self.out).unwrap();
        let (path, mad) = self.out.mads.pop_front().unwrap();
        let Message::Req(req) = CmMad::parse(&mad).unwrap().message else { panic!("no REQ") };
        (path, req)
    }

    #[track_caller]
    fn event(&mut self, kind: EventKind) -> rdmux_cm::Event {
        let event = self.out.events.pop_front().unwrap().1;
        assert_eq!((event.kind, event.status), (kind, 0));
        event
    }

    /// Delivers a message of another host, by LID.
    fn take(&mut self, from: &Self, message: impl Into<Message>) {
        let mut path = MadPath::between([0, 0, 0, 0].into(), [0, 0, 0, 0].into());
        (path.device, path.local) = (2, self.gid);
        (path.av.is_global, path.av.dgid, path.av.dlid) = (false, Gid::ZERO, from.lid.0);
        let mad = CmMad::new(7, message.into()).to_bytes();
        self.cm.handle_mad(Time::ZERO, &path, &mad, &mut self.out);
    }

    #[track_caller]
    fn refusal(&mut self) -> Rej {
        assert!(self.out.events.is_empty());
        let (_, mad) = self.out.mads.pop_front().unwrap();
        let Message::Rej(rej) = CmMad::parse(&mad).unwrap().message else { panic!("no REJ") };
        rej
    }

    /// Checks that no query was sent.
    fn asked_nobody(&self) -> bool {
        self.out.queries.is_empty() && self.out.paths.is_empty()
    }
}

fn data(flags: u32, record: PathRecord) -> PathData {
    PathData { flags, record }
}

const BOTH: u32 = PathData::BIDIRECTIONAL;

fn back(record: PathRecord) -> PathRecord {
    PathRecord {
        sgid: record.dgid,
        dgid: record.sgid,
        slid: record.dlid,
        dlid: record.slid,
        ..record
    }
}

#[test]
fn ib_service_id_and_92_bytes_of_private_data_are_in_req_unchanged() {
    let (mut server, mut client) = (Host::new(1), Host::new(2));
    let at = IbAddr { sid_mask: !0xff, ..IbAddr::new(server.gid, SERVICE) };
    let listener = server.listener(PortSpace::Ib, at);
    let sid = ServiceId(SERVICE.0 + 0x42);
    let to = IbAddr::new(server.gid, sid);
    let record = client.record_to(&server, 0);
    let id = client.along(to.into(), &[data(PathData::PRIMARY | BOTH, record)]).unwrap();
    let (path, req) = client.connect(id, &[7; 92]);
    assert!(client.asked_nobody());
    assert_eq!((req.service_id, req.private_data), (sid, [7; 92]));
    assert_eq!((path.device, path.av.dlid, path.local), (2, server.lid.0, client.gid));

    server.take(&client, req);
    let request = server.event(EventKind::ConnectRequest);
    assert_eq!(request.listen_id, Some(listener));
    let rdmux_cm::EventParam::Conn(param) = &request.param else { panic!("no parameters") };
    assert_eq!(param.private_data, [7; 92]);
    let route = request.route.unwrap();
    let here = route.src.ib().unwrap();
    assert_eq!((here.gid, here.sid, here.pkey), (server.gid, sid, Pkey(0xffff)));
    assert_eq!(route.dst.ib().unwrap().gid, client.gid);
}

#[test]
fn sidr_req_by_service_id_carries_216_bytes_of_private_data_unchanged() {
    let (mut server, mut client) = (Host::new(1), Host::new(2));
    let at = IbAddr { sid_mask: !0xff, ..IbAddr::new(server.gid, SERVICE) };
    let listener = server.cm.create_id(SERVER, PortSpace::Ib, QpType::Ud, 0).unwrap();
    server.cm.bind(listener, at, false).unwrap();
    server.cm.listen(listener, 0).unwrap();
    let sid = ServiceId(SERVICE.0 + 0x42);
    let to = IbAddr::new(server.gid, sid);
    let records = [data(PathData::PRIMARY | BOTH, client.record_to(&server, 0))];
    let id = client.cm.create_id(CLIENT, PortSpace::Ib, QpType::Ud, 0).unwrap();
    let sink = &mut client.out;
    client.cm.resolve_along(Time::ZERO, id, (None, to.into()), &records, false, sink).unwrap();
    client.event(EventKind::RouteResolved);
    let long = ConnParam { private_data: vec![7; 217], ..ConnParam::default() };
    let refused = client.cm.connect(Time::ZERO, id, &long, &mut client.out).unwrap_err();
    assert!(matches!(refused, CmError::PrivateData { len: 217, max: 216, .. }), "{refused}");
    let param = ConnParam { private_data: vec![7; 216], ..ConnParam::default() };
    client.cm.connect(Time::ZERO, id, &param, &mut client.out).unwrap();
    let (path, mad) = client.out.mads.pop_front().unwrap();
    assert!(client.asked_nobody());
    let Message::SidrReq(req) = CmMad::parse(&mad).unwrap().message else { panic!("no SIDR_REQ") };
    assert_eq!((req.service_id, req.pkey, req.private_data), (sid, Pkey(0xffff), [7; 216]));
    assert_eq!((path.device, path.av.dlid, path.local), (2, server.lid.0, client.gid));

    server.take(&client, req);
    let request = server.event(EventKind::ConnectRequest);
    assert_eq!(request.listen_id, Some(listener));
    let rdmux_cm::EventParam::Ud(param) = &request.param else { panic!("no parameters") };
    assert_eq!(param.private_data, [7; 216]);
    let route = request.route.unwrap();
    let here = route.src.ib().unwrap();
    assert_eq!((here.gid, here.sid, here.pkey), (server.gid, sid, Pkey(0xffff)));
}

#[test]
fn ib_listeners_are_matched_by_service_id_pkey_and_tcp_port() {
    let (mut server, mut client) = (Host::new(1), Host::new(2));
    let at = |pkey, sid| IbAddr { pkey: Pkey(pkey), ..IbAddr::new(Gid::ZERO, ServiceId(sid)) };
    let first = server.listener(PortSpace::Ib, at(0x8005, 0x77));
    let any = server.listener(PortSpace::Ib, at(0, 0x78));
    // A port encoded as a service ID, which IP addresses share.
    let tcp = ServiceId::from_port(PortSpace::Tcp.code(), 7174);
    let port = server.listener(PortSpace::Tcp, IbAddr::new(server.gid, tcp));
    let of_port = |port| ServiceId::from_port(PortSpace::Tcp.code(), port);
    let at_port = IbAddr { pkey: Pkey(0x8005), ..IbAddr::new(server.gid, of_port(7176)) };
    server.listener(PortSpace::Tcp, at_port);
    for (sid, pkey, heard) in [
        (ServiceId(0x77), 0x8005, Some(first)),
        (ServiceId(0x77), 0xffff, None),
        (ServiceId(0x78), 0xffff, Some(any)),
        (ServiceId(0x79), 0xffff, None),
        (tcp, 0xffff, Some(port)),
        (of_port(7175), 0xffff, None),
        (of_port(7176), 0xffff, None),
    ] {
        let missed = server.cm.counters().no_listener;
        let to = IbAddr { pkey: Pkey(pkey), ..IbAddr::new(server.gid, sid) };
        let record = PathRecord { pkey: Pkey(pkey), ..client.record_to(&server, 0) };
        let id = client.along(to.into(), &[data(PathData::PRIMARY | BOTH, record)]).unwrap();
        let (_, req) = client.connect(id, b"");
        server.take(&client, req);
        match heard {
            Some(listener) => {
                let request = server.event(EventKind::ConnectRequest);
                assert_eq!(request.listen_id, Some(listener), "{sid} {pkey:#x}");
            }
            None => {
                assert_eq!(server.refusal().reason, RejReason::INVALID_SERVICE_ID, "{sid}");
                let of_port = u64::from(sid.port().is_some());
                assert_eq!(server.cm.counters().no_listener, missed + of_port, "{sid}");
            }
        }
    }
}

#[test]
fn sidr_req_by_gid_for_a_port_without_listener_is_unsupported_service_id() {
    let (mut server, mut client) = (Host::new(1), Host::new(2));
    let port = ServiceId::from_port(PortSpace::Udp.code(), 7174);
    let records = [data(PathData::PRIMARY | BOTH, client.record_to(&server, 0))];
    let id = client.cm.create_id(CLIENT, PortSpace::Ib, QpType::Ud, 0).unwrap();
    let (to, sink) = (IbAddr::new(server.gid, port), &mut client.out);
    client.cm.resolve_along(Time::ZERO, id, (None, to.into()), &records, false, sink).unwrap();
    client.event(EventKind::RouteResolved);
    client.cm.connect(Time::ZERO, id, &ConnParam::default(), &mut client.out).unwrap();
    let (_, mad) = client.out.mads.pop_front().unwrap();
    let Message::SidrReq(req) = CmMad::parse(&mad).unwrap().message else { panic!("no SIDR_REQ") };
    server.take(&client, req);
    let (_, mad) = server.out.mads.pop_front().unwrap();
    let Message::SidrRep(rep) = CmMad::parse(&mad).unwrap().message else { panic!("no SIDR_REP") };
    assert_eq!(rep.status, SidrStatus::UNSUPPORTED_SERVICE_ID);
}

#[test]
fn ib_and_ip_addresses_share_one_port_space() {
    let mut host = Host::new(1);
    let tcp = ServiceId::from_port(PortSpace::Tcp.code(), 7174);
    host.listener(PortSpace::Tcp, IbAddr::new(Gid::ZERO, tcp));
    let id = host.id(PortSpace::Tcp);
    let taken = host.cm.bind(id, SocketAddr::new([10, 0, 0, 1].into(), 7174), false).unwrap_err();
    assert_eq!(taken.errno(), 99, "{taken}");
    let of_udp = IbAddr::new(host.gid, ServiceId::from_port(PortSpace::Udp.code(), 7));
    assert!(matches!(host.cm.bind(id, of_udp, true), Err(CmError::Invalid { .. })));
    let low = IbAddr::new(host.gid, ServiceId::from_port(PortSpace::Tcp.code(), 80));
    assert!(matches!(host.cm.bind(id, low, false), Err(CmError::Permission { .. })));
    let foreign = IbAddr::new(Gid::new(PREFIX, Guid(9)), tcp);
    assert!(matches!(host.cm.bind(id, foreign, false), Err(CmError::AddrNotAvailable { .. })));
    // Without a service ID it gets a port of its space.
    let Addr::Ib(bound) = host.cm.bind(id, IbAddr::of_port(host.gid), false).unwrap() else {
        panic!("another form")
    };
    assert_eq!(bound.ip_service().unwrap().0, PortSpace::Tcp);
    assert_ne!(bound.sid.0 & 0xffff, 0);
}

#[test]
fn bind_without_free_service_id_is_eaddrnotavail() {
    let mut host = Host::new(1);
    let half = IbAddr { sid_mask: 1 << 63, ..IbAddr::new(host.gid, ServiceId(0)) };
    host.listener(PortSpace::Ib, half);
    let id = host.id(PortSpace::Ib);
    let refused = host.cm.bind(id, IbAddr::of_port(host.gid), false).unwrap_err();
    assert!(matches!(refused, CmError::NoServiceId { .. }), "{refused}");
    assert_eq!(refused.errno(), 99);
}

#[test]
fn resolve_addr_of_a_gid_sends_no_query_and_resolve_route_a_path_query() {
    let (server, mut client) = (Host::new(1), Host::new(2));
    let id = client.id(PortSpace::Ib);
    let to = IbAddr::new(server.gid, SERVICE);
    let now = Time::ZERO;
    client.cm.resolve_addr(now, id, None, to.into(), SECOND, false, &mut client.out).unwrap();
    let route = *client.event(EventKind::AddrResolved).route.unwrap();
    assert_eq!((route.sgid, route.av.dgid, route.device), (client.gid, server.gid, 2));
    assert!(client.asked_nobody());
    // A connection needs a path.
    let none = client.cm.connect(now, id, &ConnParam::default(), &mut client.out).unwrap_err();
    assert!(matches!(none, CmError::NoPath { .. }), "{none}");
    let said = none.to_string();
    assert!(said.contains("no path to") && said.contains("path records"), "{said}");
    assert!(client.out.mads.is_empty());
    client.cm.resolve_route(now, id, SECOND, &mut client.out).unwrap();
    let (_, query) = client.out.paths.pop_front().unwrap();
    assert_eq!((query.by_address.local, query.by_address.av.dgid), (client.gid, server.gid));
    assert_eq!(query.service_id, SERVICE);
}

#[test]
fn gid_that_is_an_ip_address_is_reached_over_roce() {
    let mut client = Host::new(2);
    let id = client.id(PortSpace::Ib);
    let to = Gid::from(std::net::IpAddr::from([10, 0, 0, 1]));
    let to = IbAddr { flowinfo: 0x0120_0007, ..IbAddr::new(to, SERVICE) };
    let now = Time::ZERO;
    client.cm.resolve_addr(now, id, None, to.into(), SECOND, false, &mut client.out).unwrap();
    let (_, query) = client.out.queries.pop_front().unwrap();
    assert!(query.is_gid, "nobody is looked for");
    let answer = query.over_ip([10, 0, 0, 2].into(), 0);
    client.cm.handle_resolved(now, id, answer, &mut client.out);
    let route = *client.event(EventKind::AddrResolved).route.unwrap();
    assert_eq!((route.device, route.av.is_global, route.av.dgid), (0, true, to.gid));
    assert_eq!((route.av.flow_label, route.av.traffic_class), (7, 0x12));
    client.cm.resolve_route(now, id, SECOND, &mut client.out).unwrap();
    let (_, query) = client.out.paths.pop_front().unwrap();
    let path = Ok(query.by_address);
    client.cm.handle_path(now, id, query.attempt, path, &mut client.out);
    client.event(EventKind::RouteResolved);
    let (_, req) = client.connect(id, b"native");
    assert_eq!((req.service_id, &req.private_data[..6]), (SERVICE, &b"native"[..]));
}

#[test]
fn supplied_primary_alternate_and_gmp_path_records_set_req_and_its_route() {
    let (server, mut client) = (Host::new(1), Host::new(2));
    let primary = client.record_to(&server, 1);
    let primary_back = PathRecord { dlid: Lid(client.lid.0 + 5), ..back(primary) };
    let alternate = PathRecord { sl: 7, rate: Rate::GBPS_20, ..client.record_to(&server, 2) };
    let alternate_back = PathRecord { dlid: Lid(client.lid.0 + 6), ..back(alternate) };
    let cm = PathRecord { sl: 1, ..client.record_to(&server, 3) };
    let records = [
        data(PathData::GMP | BOTH, cm),
        data(PathData::PRIMARY | PathData::OUTBOUND, primary),
        data(PathData::PRIMARY | PathData::INBOUND, primary_back),
        data(PathData::ALTERNATE | PathData::OUTBOUND, alternate),
        data(PathData::ALTERNATE | PathData::INBOUND, alternate_back),
    ];
    let to = IbAddr::new(server.gid, SERVICE);
    let id = client.along(to.into(), &records).unwrap();
    let (path, req) = client.connect(id, b"");
    assert!(client.asked_nobody());
    assert_eq!((path.av.dlid, path.av.src_path_bits, path.av.sl), (server.lid.0 + 3, 3, 1));
    let lids = |path: &rdmux_wire::cm::Path| (path.local_lid.0, path.remote_lid.0, path.sl);
    assert_eq!(lids(&req.primary), (client.lid.0 + 5, server.lid.0 + 1, 2));
    assert_eq!(lids(&req.alternate), (client.lid.0 + 6, server.lid.0 + 2, 7));
    assert_eq!((req.primary.rate, req.alternate.rate), (Rate::GBPS_40.0, Rate::GBPS_20.0));
    assert_eq!((req.alternate.local_gid, req.alternate.remote_gid), (client.gid, server.gid));
}

#[test]
fn contradictory_path_records_are_einval_naming_the_field() {
    let (server, mut client) = (Host::new(1), Host::new(2));
    let good = client.record_to(&server, 0);
    let out = PathData::PRIMARY | PathData::OUTBOUND;
    let inbound = PathData::PRIMARY | PathData::INBOUND;
    let one = |patch: fn(&mut PathRecord)| {
        let mut record = good;
        patch(&mut record);
        vec![data(PathData::PRIMARY | BOTH, record)]
    };
    let two = |patch: fn(&mut PathRecord)| {
        let mut record = back(good);
        patch(&mut record);
        vec![data(out, good), data(inbound, record)]
    };
    let cases = [
        (vec![], "flags of the primary path"),
        (vec![data(PathData::GMP, good)], "flags of the primary path"),
        (vec![data(out, good)], "flags of the primary path"),
        (vec![data(PathData::PRIMARY | BOTH, good); 2], "flags of the primary path"),
        (vec![data(PathData::PRIMARY | 1 << 9, good)], "flags of the any path"),
        (one(|r| r.sgid = Gid::new(PREFIX, Guid(99))), "sgid of the primary path"),
        (one(|r| r.dgid = Gid::new(PREFIX, Guid(99))), "dgid of the primary path"),
        (one(|r| r.slid = Lid(0x99)), "slid of the primary path"),
        (one(|r| r.dlid = Lid(0xc000)), "dlid of the primary path"),
        (one(|r| r.pkey = Pkey(0x8009)), "sgid of the primary path"),
        (one(|r| r.mtu = 9), "mtu of the primary path"),
        (one(|r| r.mtu = Mtu::M4096.code()), "mtu of the primary path"),
        (two(|r| r.sl = 9), "sl of the primary path"),
        (two(|r| r.rate = Rate::GBPS_10), "rate of the primary path"),
        (two(|r| r.dlid = Lid(0x99)), "dlid of the primary path"),
        (two(|r| r.hop_limit = 3), "hop_limit of the primary path"),
        (two(|r| r.sgid = Gid::ZERO), "sgid of the primary path"),
    ];
    let to = IbAddr::new(server.gid, SERVICE);
    for (records, what) in cases {
        let error = client.along(to.into(), &records).unwrap_err();
        assert_eq!(error.errno(), 22);
        assert!(error.to_string().contains(what), "{error} ({what})");
    }
    let lower = PathRecord { mtu: Mtu::M1024.code(), ..client.record_to(&server, 1) };
    let alternate = data(PathData::ALTERNATE | BOTH, lower);
    let error = client.along(to.into(), &[data(PathData::PRIMARY | BOTH, good), alternate]);
    assert!(error.unwrap_err().to_string().contains("mtu of the alternate path"));
    let ids: Vec<IdHandle> = client.cm.ids().collect();
    assert!(ids.iter().all(|id| client.cm.query(*id).unwrap().state == IdState::Idle));
    assert_eq!((client.cm.ports_in_use(), client.out.events.len()), (0, 0));
}

#[test]
fn ip_address_with_supplied_path_records_needs_no_query() {
    let (mut server, mut client) = (Host::new(1), Host::new(2));
    let id = server.cm.create_id(SERVER, PortSpace::Tcp, QpType::Rc, 0).unwrap();
    server.cm.bind(id, SocketAddr::new([10, 0, 0, 1].into(), 7174), false).unwrap();
    server.cm.listen(id, 0).unwrap();
    let to = SocketAddr::new([10, 0, 0, 1].into(), 7174);
    let record = client.record_to(&server, 0);
    let id = client.id(PortSpace::Tcp);
    client.cm.set_option(id, IdOption::ReuseAddr(true)).unwrap();
    let records = [data(PathData::PRIMARY | BOTH, record)];
    let sink = &mut client.out;
    client.cm.resolve_along(Time::ZERO, id, (None, to.into()), &records, false, sink).unwrap();
    client.event(EventKind::RouteResolved);
    assert_eq!(client.cm.query(id).unwrap().local.unwrap().ip().to_string(), "10.0.0.2");
    let (_, req) = client.connect(id, b"with a header");
    assert!(client.asked_nobody());
    server.take(&client, req);
    let request = server.event(EventKind::ConnectRequest);
    assert_eq!(request.route.unwrap().dst.ip().to_string(), "10.0.0.2");
}
