//! resolve_route: paths that are found at once, late, or never. set_path: paths from the program.

mod net;

use net::{Net, SECOND, param};
use rdmux_cm::{CmError, EventKind, IdHandle, IdOption, IdState, Path, PathData, PathQuery, Route};
use rdmux_transport::attr::{AddressVector, QpType};
use rdmux_wire::cm::{CmMad, Message};
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{Gid, Lid, Mtu, Pkey};
use std::time::Duration;

const HOST: usize = 1;

/// Creates a network, and an id on its second host that queries a path.
fn asking() -> (Net, IdHandle, PathQuery) {
    let (mut net, id) = resolved();
    let query = ask(&mut net, id);
    (net, id, query)
}

/// Creates a network, and an id on its second host that knows its peer's address.
fn resolved() -> (Net, IdHandle) {
    let mut net = Net::new(2);
    let (now, dst) = (net.now, net.addr(0, 7174));
    let host = &mut net.hosts[HOST];
    let id = host.cm.create_id(net::CLIENT, net::space(QpType::Rc), QpType::Rc, 88).unwrap();
    host.cm.resolve_addr(now, id, None, dst.into(), SECOND, false, &mut host.out).unwrap();
    net.run_until_idle();
    net.hosts[HOST].event(EventKind::AddrResolved);
    (net, id)
}

fn ask(net: &mut Net, id: IdHandle) -> PathQuery {
    let (now, host) = (net.now, &mut net.hosts[HOST]);
    host.cm.resolve_route(now, id, SECOND, &mut host.out).unwrap();
    assert_eq!(host.cm.query(id).unwrap().state, IdState::RouteQuery);
    host.path_query()
}

fn answer(net: &mut Net, id: IdHandle, attempt: u32, answer: Result<Path, i32>) {
    let now = net.now;
    net.hosts[HOST].answer_path(now, id, attempt, answer);
}

fn connect(net: &mut Net, id: IdHandle) -> Result<(), CmError> {
    let (now, host) = (net.now, &mut net.hosts[HOST]);
    host.cm.connect(now, id, &param(0x11), &mut host.out)
}

/// Returns a path as subnet administration gives it, without GRH.
fn by_lid(query: &PathQuery) -> Path {
    let av = AddressVector {
        is_global: false,
        dgid: Gid([0xfe; 16]),
        dlid: 0x21,
        sl: 5,
        src_path_bits: 1,
        static_rate: 3,
        hop_limit: 0,
        flow_label: 0,
        traffic_class: 0x11,
        ..query.by_address.av
    };
    Path {
        local: Gid([0xfd; 16]),
        slid: Lid(0x13),
        back_lid: Lid(0x13),
        av,
        pkey: Pkey(0x8001),
        pkey_index: 7,
        mtu: Mtu::M512,
        packet_lifetime: 14,
    }
}

#[test]
fn immediate_path_answer_raises_route_resolved() {
    let (mut net, id, query) = asking();
    let resolved = net.hosts[HOST].cm.query(id).unwrap().route.unwrap();
    assert_eq!((query.src, query.dst, query.timeout), (resolved.src, resolved.dst, SECOND));
    assert_eq!(query.service_id.port(), Some((net::space(QpType::Rc).code(), 7174)));
    assert_eq!(
        (query.by_address.local.ip(), query.by_address.av),
        (resolved.src.ip(), resolved.av)
    );
    answer(&mut net, id, query.attempt, Ok(query.by_address));
    let event = net.hosts[HOST].event(EventKind::RouteResolved);
    assert_eq!((event.status, *event.route.unwrap()), (0, resolved));
    assert_eq!(net.hosts[HOST].cm.deadlines(), 0);
    connect(&mut net, id).unwrap();
    net.run_until_idle();
    assert_eq!(net.hosts[HOST].out.cancelled, []);
    net.end();
}

#[test]
fn delayed_path_answer_sets_lids_sl_pkey_and_mtu_of_req() {
    let (mut net, id, query) = asking();
    net.pass(SECOND / 2);
    assert_eq!(net.hosts[HOST].kinds(), []);
    assert_eq!(connect(&mut net, id).unwrap_err().errno(), 22);
    let host = &mut net.hosts[HOST];
    let twice = host.cm.resolve_route(net.now, id, SECOND, &mut host.out).unwrap_err();
    assert_eq!(twice.to_string(), "resolve_route on id 1: not possible in state ROUTE_QUERY");

    let path = by_lid(&query);
    answer(&mut net, id, query.attempt, Ok(path));
    let route = *net.hosts[HOST].event(EventKind::RouteResolved).route.unwrap();
    assert_eq!((route.av, route.pkey), (path.av, path.pkey));
    assert_eq!((route.mtu, route.packet_lifetime), (path.mtu, path.packet_lifetime));

    connect(&mut net, id).unwrap();
    let (mad_path, mad) = net.hosts[HOST].out.mads[0];
    assert_eq!((mad_path.local, mad_path.av), (path.local, path.av));
    assert_eq!(mad_path.pkey_index, 7);
    let Message::Req(req) = CmMad::parse(&mad).unwrap().message else { panic!() };
    let primary = &req.primary;
    assert_eq!((primary.local_lid, primary.remote_lid), (Lid(0x13), Lid(0x21)));
    assert_eq!((primary.local_gid, primary.remote_gid), (path.local, path.av.dgid));
    assert_eq!((primary.sl, primary.rate, primary.tclass), (5, 3, 0x11));
    assert!(primary.subnet_local);
    assert_eq!((req.pkey, req.path_mtu), (path.pkey, Mtu::M512.code()));
    net.end();
}

#[test]
fn tos_and_ack_timeout_options_override_the_path_record() {
    let (mut net, id, query) = asking();
    net.hosts[HOST].cm.set_option(id, IdOption::Tos(0x68)).unwrap();
    answer(&mut net, id, query.attempt, Ok(by_lid(&query)));
    let route = net.hosts[HOST].event(EventKind::RouteResolved).route.unwrap();
    assert_eq!((route.av.traffic_class, route.packet_lifetime), (0x68, 14));
    net.hosts[HOST].cm.set_option(id, IdOption::AckTimeout(9)).unwrap();
    connect(&mut net, id).unwrap();
    let route = net.hosts[HOST].cm.query(id).unwrap().route.unwrap();
    assert_eq!((route.av.dlid, route.packet_lifetime), (0x21, 8));
    net.end();
}

#[test]
fn path_answer_mtu_and_lifetime_are_limited_to_the_ports() {
    let (mut net, id, query) = asking();
    let path = Path { mtu: Mtu::M4096, packet_lifetime: 255, ..query.by_address };
    answer(&mut net, id, query.attempt, Ok(path));
    let route = net.hosts[HOST].event(EventKind::RouteResolved).route.unwrap();
    assert_eq!((route.mtu, route.packet_lifetime), (Mtu::M1024, 31));
    connect(&mut net, id).unwrap();
    net.end();
}

#[test]
fn a_path_query_without_an_answer_ends_in_etimedout() {
    let (mut net, id, query) = asking();
    net.pass(SECOND - Duration::from_millis(1));
    assert_eq!(net.hosts[HOST].kinds(), []);
    net.pass(Duration::from_millis(1));
    let host = &mut net.hosts[HOST];
    assert_eq!(host.kinds(), [(EventKind::RouteError, -110)]);
    assert_eq!(host.out.cancelled, [(id, query.attempt)]);
    assert_eq!(host.cm.query(id).unwrap().state, IdState::AddrResolved);
    assert_eq!(host.cm.deadlines(), 0);
    // The program may try again.
    let again = ask(&mut net, id);
    answer(&mut net, id, again.attempt, Ok(again.by_address));
    net.hosts[HOST].event(EventKind::RouteResolved);
    net.end();
}

#[test]
fn failed_path_query_is_route_error_with_the_drivers_errno() {
    let (mut net, id, query) = asking();
    answer(&mut net, id, query.attempt, Err(113));
    let host = &mut net.hosts[HOST];
    assert_eq!(host.kinds(), [(EventKind::RouteError, -113)]);
    assert_eq!(host.out.cancelled, [], "the driver has answered");
    assert_eq!(host.cm.deadlines(), 0);
    assert_eq!(connect(&mut net, id).unwrap_err().errno(), 22);
    let again = ask(&mut net, id);
    assert_eq!(again.by_address, query.by_address);
    answer(&mut net, id, again.attempt, Ok(again.by_address));
    net.hosts[HOST].event(EventKind::RouteResolved);
    net.end();
}

#[test]
fn destroy_cancels_the_path_query() {
    let (mut net, id, query) = asking();
    net.destroy(HOST, id);
    assert_eq!(net.hosts[HOST].out.cancelled, [(id, query.attempt)]);
    net.hosts[HOST].assert_empty();
    answer(&mut net, id, query.attempt, Ok(query.by_address));
    net.pass(2 * SECOND);
    assert_eq!(net.hosts[HOST].kinds(), []);
    net.end();
}

#[test]
fn device_removal_cancels_the_path_query() {
    let (mut net, id, query) = asking();
    let (now, host) = (net.now, &mut net.hosts[HOST]);
    host.cm.set_addresses(now, Vec::new(), &mut host.out);
    assert_eq!(host.out.cancelled, [(id, query.attempt)]);
    answer(&mut net, id, query.attempt, Err(113));
    net.pass(2 * SECOND);
    assert_eq!(net.hosts[HOST].kinds(), [(EventKind::DeviceRemoval, 0)]);
    net.destroy(HOST, id);
    assert_eq!(net.hosts[HOST].out.cancelled.len(), 1);
    net.end();
}

#[test]
fn an_answer_to_an_earlier_path_query_is_ignored() {
    let (mut net, id, first) = asking();
    net.pass(SECOND);
    net.hosts[HOST].event(EventKind::RouteError);
    answer(&mut net, id, first.attempt, Ok(first.by_address));
    let second = ask(&mut net, id);
    assert_ne!(first.attempt, second.attempt);
    answer(&mut net, id, first.attempt, Ok(by_lid(&first)));
    answer(&mut net, id, first.attempt, Err(113));
    assert_eq!(net.hosts[HOST].kinds(), []);
    answer(&mut net, id, second.attempt, Ok(second.by_address));
    net.hosts[HOST].event(EventKind::RouteResolved);
    // The same answer does not count twice either.
    answer(&mut net, id, second.attempt, Err(113));
    answer(&mut net, id, second.attempt, Ok(by_lid(&second)));
    assert_eq!(net.hosts[HOST].kinds(), []);
    assert_eq!(net.hosts[HOST].cm.query(id).unwrap().route.unwrap().av, second.by_address.av);
    net.end();
}

#[test]
fn set_paths_resolves_the_route_without_a_query() {
    let (mut net, id) = resolved();
    let host = &mut net.hosts[HOST];
    let route = host.cm.query(id).unwrap().route.unwrap();
    let (local, remote) = (Gid::from(route.src.ip()), route.av.dgid);
    let record = |sgid, dgid| {
        let record = PathRecord { sgid, dgid, mtu: Mtu::M1024.code(), ..PathRecord::default() };
        [PathData { flags: PathData::GMP | PathData::PRIMARY | PathData::BIDIRECTIONAL, record }]
    };
    for (from, to) in [(remote, remote), (local, local), (Gid::ZERO, Gid::ZERO)] {
        let elsewhere = host.cm.set_paths(id, &record(from, to), &mut host.out).unwrap_err();
        assert_eq!(elsewhere.errno(), 22, "{elsewhere}");
    }
    assert_eq!(host.cm.query(id).unwrap().state, IdState::AddrResolved);
    let record = record(local, remote);
    host.cm.set_paths(id, &record, &mut host.out).unwrap();
    let event = host.event(EventKind::RouteResolved);
    let route = Route { packet_lifetime: 0, ..route };
    assert_eq!((event.status, *event.route.unwrap()), (0, route));
    let twice = host.cm.set_paths(id, &record, &mut host.out).unwrap_err();
    assert_eq!(twice.to_string(), "set_path on id 1: not possible in state ROUTE_RESOLVED");
    assert_eq!(net.hosts[HOST].cm.deadlines(), 0);
    connect(&mut net, id).unwrap();
    net.run_until_idle();
    net.end();
}
