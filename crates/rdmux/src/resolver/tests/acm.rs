//! ACM is queried before neighbours and administration. The mock service of these tests sends predefined answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdmux_testing::acm::{self, AcmService, Step};
use rdmux_wire::acm::Address as Endpoint;
use rdmux_wire::acm::client::{Query, Status};
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{Gid, Lid, Mtu};

use super::*;
use crate::cm::{ConnParam, EventChannel, EventKind, Id};

const TIMEOUT: Duration = Duration::from_secs(20);

/// Starts a service on a host that knows one path. Returns it and the list of queries that it receives.
fn knows(context: &Context, path: PathRecord) -> (AcmService, Arc<Mutex<Vec<Query>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let name = HostName::new(context.host()).unwrap();
    let places = context.options().dir.host(&name).unwrap().acm();
    let queries = Arc::clone(&asked);
    let service = AcmService::start(places.runtime(), move |request| {
        queries.lock().unwrap().push(request.query);
        Step::Say(acm::path(request, path))
    });
    (service, asked)
}

/// Returns the path between two hosts that administration knows.
fn told(from: &Context, to: &Listener) -> PathRecord {
    let [first, ..] = &found(from, to)[..] else { panic!("no answer") };
    assert!(!first.by_acm);
    first.paths[0].record
}

/// Returns the path with changes by which its source can be recognized.
fn changed(path: PathRecord) -> PathRecord {
    assert!(path.mtu > Mtu::M512.code());
    PathRecord { mtu: Mtu::M512.code(), packet_life_time: 7, ..path }
}

/// Returns an id with a resolved route, and how many queries its host has sent for the path.
fn resolved(channel: &EventChannel, to: Addr) -> (Id, u64) {
    let next = |kind, what| channel.next(Some(TIMEOUT)).unwrap().unwrap().expect(kind, what);
    let id = Id::new(channel, PortSpace::Tcp).unwrap();
    id.resolve_addr(None, to, TIMEOUT).unwrap();
    next(EventKind::AddrResolved, "find the address").unwrap();
    let before = questions(channel.context());
    id.resolve_route(TIMEOUT).unwrap();
    next(EventKind::RouteResolved, "find the path").unwrap();
    let asked = questions(channel.context()) - before;
    (id, asked)
}

#[test]
fn acm_path_becomes_route_and_req_path_without_sa_query() {
    let [a, b] = infiniband();
    let path = changed(told(&a, &listener(&b)));
    let there = EventChannel::new(&b).unwrap();
    let passive = Id::new(&there, PortSpace::Tcp).unwrap();
    passive.bind(SocketAddr::from((b.address().unwrap(), 0))).unwrap();
    passive.listen(1).unwrap();
    let (_service, asked) = knows(&a, path);
    let here = EventChannel::new(&a).unwrap();
    let (id, questions) = resolved(&here, passive.local_addr().unwrap());
    assert_eq!(questions, 0, "nobody but ACM was asked");
    let route = id.route().unwrap();
    assert_eq!((route.mtu, route.packet_lifetime), (Mtu::M512, 7));
    let [source, dest] = [&a, &b].map(|of| of.address().unwrap().into());
    let query = Query::Resolve { source: Some(source), dest, cached_only: false };
    assert_eq!(*asked.lock().unwrap(), [query]);

    let qp = a.pd().qp(crate::QpType::Rc).cq(&a.cq(16).unwrap()).build().unwrap();
    id.attach_qp(&qp).unwrap();
    id.connect(&ConnParam::default()).unwrap();
    let request = there.next(Some(TIMEOUT)).unwrap().unwrap();
    let request = request.expect(EventKind::ConnectRequest, "be asked").unwrap();
    assert_eq!(request.route().unwrap().mtu, Mtu::M512);
}

#[test]
fn path_that_contradicts_the_neighbour_or_the_port_is_not_used() {
    let [a, b] = infiniband();
    let listener = listener(&b);
    let path = told(&a, &listener);
    let mut other = path.dgid;
    other.0[15] ^= 0x40;
    for wrong in [
        PathRecord { dgid: other, ..changed(path) },
        PathRecord { sgid: other, ..changed(path) },
        PathRecord { mtu: 9, ..changed(path) },
        PathRecord { slid: Lid(0xbfff), ..changed(path) },
        PathRecord { dlid: Lid(0xc001), ..changed(path) },
    ] {
        let (_service, asked) = knows(&a, wrong);
        let channel = EventChannel::new(&a).unwrap();
        let (id, questions) = resolved(&channel, listener.local_addr().into());
        assert_eq!(id.route().unwrap().packet_lifetime, path.packet_life_time, "{wrong:?}");
        assert_eq!(asked.lock().unwrap().len(), 1);
        assert!(questions > 0);
    }
}

#[test]
fn native_address_is_found_by_acm_alone_and_connects() {
    let [a, b] = infiniband();
    let mut listener = listener(&b);
    let path = changed(told(&a, &listener));
    let (_service, _) = knows(&a, path);
    let before = questions(&a);
    let answers = found(&a, &listener);
    assert_eq!(questions(&a), before);
    let [first, ..] = &answers[..] else { panic!("no answer") };
    assert_eq!((first.by_acm, first.paths[0].record), (true, path));
    assert_eq!(first.dst.unwrap().ib().unwrap().gid, path.dgid);
    assert_eq!(first.connect.len(), 36);
    connects(&a, first, &mut listener);
    assert_eq!(questions(&a), before);
}

#[test]
fn ip_address_resolved_by_acm_has_its_path_and_connects() {
    let [a, b] = infiniband();
    let mut listener = listener(&b);
    let path = changed(told(&a, &listener));
    let to = listener.local_addr();
    let by_ip = Hints { native: false, ..NATIVE };
    let resolve = || {
        let (node, service) = (to.ip().to_string(), to.port().to_string());
        Resolver::new(&a).resolve(Some(&node), Some(&service), &by_ip).unwrap().swap_remove(0)
    };
    assert!(resolve().paths.is_empty());
    for mtu in [Mtu::M512.code(), 9] {
        let (_service, _) = knows(&a, PathRecord { mtu, ..path });
        let answer = resolve();
        assert_eq!((answer.dst, answer.by_acm), (Some(to.into()), true));
        assert_eq!(answer.paths[0].record.mtu, mtu);
        connects(&a, &answer, &mut listener);
    }
}

#[test]
fn name_that_only_acm_knows_has_a_native_address() {
    let [a, b] = infiniband();
    let path = told(&a, &listener(&b));
    let (_service, asked) = knows(&a, path);
    let resolver = Resolver::new(&a);
    let node = "node7.only.acm.invalid";
    let answers = resolver.resolve(Some(node), Some("7174"), &NATIVE).unwrap();
    let [answer] = &answers[..] else { panic!("more than one: {answers:?}") };
    let dst = answer.dst.unwrap();
    assert_eq!((dst.ib().unwrap().gid, dst.port()), (path.dgid, 7174));
    assert_eq!((answer.port_space, answer.paths[0].record), (Some(PortSpace::Tcp), path));
    let dest = Endpoint::name(node).unwrap();
    let query = Query::Resolve { source: None, dest, cached_only: false };
    assert_eq!(*asked.lock().unwrap(), [query]);
    let by_ip = Hints { native: false, ..NATIVE };
    assert!(resolver.resolve(Some(node), None, &by_ip).is_err());
}

#[test]
fn invalid_acm_paths_do_not_prevent_roce_and_iwarp_connections() {
    for kind in [DeviceKind::Roce, DeviceKind::Iwarp] {
        let [a, _] = alone(kind);
        let ip = a.address().unwrap();
        let own = Gid::from(ip);
        let right = PathRecord {
            sgid: own,
            dgid: own,
            pkey: Pkey::DEFAULT,
            mtu: Mtu::M512.code(),
            packet_life_time: 7,
            ..PathRecord::default()
        };
        for path in [right, PathRecord { mtu: 0, ..right }, PathRecord { dgid: Gid::ZERO, ..right }]
        {
            let (service, _) = knows(&a, path);
            let mut listener = listener(&a);
            let channel = EventChannel::new(&a).unwrap();
            let (id, _) = resolved(&channel, listener.local_addr().into());
            if kind == DeviceKind::Roce && path == right {
                assert_eq!((id.route().unwrap().mtu, service.questions()), (Mtu::M512, 1));
            }
            let answers = found(&a, &listener);
            for answer in [&answers[0], &answers[answers.len() - 1]] {
                connects(&a, answer, &mut listener);
            }
            drop((id, service));
        }
    }
}

#[test]
fn acm_failure_falls_back_to_sa_query() {
    let [a, b] = infiniband();
    let listener = listener(&b);
    let path = told(&a, &listener);
    let name = HostName::new(a.host()).unwrap();
    let places = a.options().dir.host(&name).unwrap().acm();
    let _service = AcmService::start(places.runtime(), |request| {
        Step::Say(acm::failure(request, Status::TIMED_OUT))
    });
    let channel = EventChannel::new(&a).unwrap();
    let (id, questions) = resolved(&channel, listener.local_addr().into());
    assert_eq!(id.route().unwrap().av.dlid, path.dlid.0);
    assert!(questions > 0);
}

/// A host with a fabric has an InfiniBand port whose IP addresses may be the same, but no port with the same GIDs.
#[test]
fn context_off_a_fabric_asks_for_ip_addresses_by_gid() {
    for kind in [DeviceKind::Roce, DeviceKind::Iwarp] {
        let [context, _] = alone(kind);
        let ip = context.address().unwrap();
        let (_service, asked) = knows(&context, PathRecord::default());
        let hints = Hints { src: Some(SocketAddr::from((ip, 0)).into()), native: false, ..NATIVE };
        let resolver = Resolver::new(&context);
        resolver.resolve(Some("127.77.0.9"), Some("7174"), &hints).unwrap();
        let dest = Gid::from(std::net::Ipv4Addr::new(127, 77, 0, 9)).into();
        let query = Query::Resolve { source: Some(Gid::from(ip).into()), dest, cached_only: false };
        assert_eq!(*asked.lock().unwrap(), [query], "{kind:?}");
    }
}
