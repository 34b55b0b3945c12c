//! Ids by themselves: addresses, ports, options, groups, and refused commands.

mod net;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use net::{CLIENT, Net, Out, SECOND, SERVER, local_address, param};
use rdmux_cm::error::Command;
use rdmux_cm::{
    ChannelId, CmError, Config, ConnParam, Ece, EventKind, EventParam, GroupWish, IdHandle,
    IdOption, IdState, JoinFlags, JoinQuery, LocalAddress, Manager, PortSpace, Resolved, Time,
};
use rdmux_transport::attr::QpType;
use rdmux_wire::cm::Message;
use rdmux_wire::{AckTimeout, Gid, Mtu, Qkey, Qpn};

fn tcp(cm: &mut Manager) -> IdHandle {
    cm.create_id(SERVER, PortSpace::Tcp, QpType::Rc, 0).unwrap()
}

fn sock(addr: &str) -> SocketAddr {
    addr.parse().unwrap()
}

#[test]
fn bind_claims_a_port_of_its_port_space_until_destroy() {
    let mut net = Net::new(1);
    let cm = &mut net.hosts[0].cm;
    let (a, b) = (tcp(cm), tcp(cm));
    let udp = cm.create_id(SERVER, PortSpace::Udp, QpType::Ud, 0).unwrap();
    let addr = sock("10.0.0.1:7174");
    assert_eq!(cm.bind(a, addr, false), Ok(addr.into()));
    let taken = cm.bind(b, addr, false).unwrap_err();
    assert_eq!(
        (taken.errno(), taken.to_string()),
        (98, "bind on id 2: 10.0.0.1:7174 is in use in this port space".into())
    );
    assert_eq!(cm.bind(udp, addr, false), Ok(addr.into()), "another port space");
    assert_eq!(cm.bind(b, sock("10.0.0.9:1"), true).unwrap_err().errno(), 99);
    assert_eq!(cm.bind(b, sock("10.0.0.1:80"), false).unwrap_err().errno(), 13);
    assert_eq!(cm.bind(b, sock("10.0.0.1:80"), true), Ok(sock("10.0.0.1:80").into()));
    let again = cm.bind(b, sock("10.0.0.1:81"), true).unwrap_err();
    assert!(matches!(again, CmError::State { state: IdState::AddrBound, .. }), "{again}");
    assert_eq!(cm.ports_in_use(), 3);
    net.destroy(0, a);
    let cm = &mut net.hosts[0].cm;
    let c = tcp(cm);
    assert_eq!(
        cm.bind(c, sock("[::ffff:10.0.0.1]:7174"), false),
        Ok(addr.into()),
        "IPv4 in disguise"
    );
    let d = tcp(cm);
    let any = cm.bind(d, sock("0.0.0.0:0"), false).unwrap();
    assert!(Config::default().ephemeral_ports.contains(&any.port()));
    net.end();
}

#[test]
fn reuseaddr_and_afonly_set_before_bind_share_a_port() {
    let mut net = Net::new(1);
    let cm = &mut net.hosts[0].cm;
    let addr = sock("10.0.0.1:7174");
    let ids: Vec<_> = (0..2).map(|_| tcp(cm)).collect();
    for &id in &ids {
        cm.set_option(id, IdOption::ReuseAddr(true)).unwrap();
        cm.bind(id, addr, false).unwrap();
    }
    assert_eq!(cm.listen(ids[0], 1).unwrap_err().errno(), 98, "a listener shares with nobody");
    assert_eq!(cm.set_option(ids[0], IdOption::ReuseAddr(false)).unwrap_err().errno(), 22);
    let v6 = tcp(cm);
    let wildcard = cm.bind(v6, sock("[::]:7174"), false).unwrap_err();
    assert_eq!(wildcard.errno(), 99, "a wildcard shares a port with no address");
    cm.set_option(v6, IdOption::AfOnly(true)).unwrap();
    cm.bind(v6, sock("[::]:7174"), false).unwrap();
    assert_eq!(cm.set_option(v6, IdOption::AckTimeout(32)).unwrap_err().errno(), 22);
    let ud = cm.create_id(SERVER, PortSpace::Udp, QpType::Ud, 0).unwrap();
    assert_eq!(cm.set_option(ud, IdOption::AckTimeout(3)).unwrap_err().errno(), 22);
    assert_eq!(cm.create_id(SERVER, PortSpace::Udp, QpType::Rc, 0).unwrap_err().errno(), 22);
    net.end();
}

/// The options apply to the port that the id has, as in Linux (`rdma_set_reuseaddr`, `rdma_set_afonly`).
#[test]
fn reuseaddr_and_afonly_set_after_bind_apply_to_the_bound_port() {
    let mut net = Net::new(1);
    let cm = &mut net.hosts[0].cm;
    let addr = sock("10.0.0.1:7174");
    let [first, second] = [tcp(cm), tcp(cm)];
    cm.bind(first, addr, false).unwrap();
    cm.set_option(second, IdOption::ReuseAddr(true)).unwrap();
    assert_eq!(cm.bind(second, addr, false).unwrap_err().errno(), 98);
    cm.set_option(first, IdOption::ReuseAddr(true)).unwrap();
    assert_eq!(cm.set_option(first, IdOption::ReuseAddr(false)).unwrap_err().errno(), 22);
    cm.bind(second, addr, false).unwrap();
    net.end();

    let mut net = Net::new(1);
    let cm = &mut net.hosts[0].cm;
    let [v4, v6] = [tcp(cm), tcp(cm)];
    cm.bind(v6, sock("[::]:7174"), false).unwrap();
    assert_eq!(cm.bind(v4, sock("0.0.0.0:7174"), false).unwrap_err().errno(), 99);
    cm.set_option(v6, IdOption::AfOnly(true)).unwrap();
    cm.bind(v4, sock("0.0.0.0:7174"), false).unwrap();
    cm.set_option(v6, IdOption::AfOnly(false)).unwrap();
    assert_eq!(cm.listen(v6, 1).unwrap_err().errno(), 99, "the other has the port");
    cm.set_option(v6, IdOption::AfOnly(true)).unwrap();
    cm.listen(v6, 1).unwrap();
    cm.listen(v4, 1).unwrap();
    for option in [IdOption::ReuseAddr(true), IdOption::ReuseAddr(false), IdOption::AfOnly(true)] {
        assert_eq!(cm.set_option(v6, option).unwrap_err().errno(), 22, "{option:?}");
    }
    net.end();
}

#[test]
fn an_ipv6_wildcard_listens_for_ipv4_too() {
    for (only, answer) in [(None, EventKind::ConnectResponse), (Some(true), EventKind::Rejected)] {
        let mut net = Net::new(2);
        let host = &mut net.hosts[0];
        let id = tcp(&mut host.cm);
        if let Some(only) = only {
            host.cm.set_option(id, IdOption::AfOnly(only)).unwrap();
        }
        host.cm.bind(id, sock("[::]:7174"), false).unwrap();
        host.cm.listen(id, 1).unwrap();
        net.connecting(1, 0, QpType::Rc);
        net.run_until_idle();
        let now = net.now;
        let host = &mut net.hosts[0];
        for request in host.events() {
            assert_eq!(request.route.unwrap().src, sock("10.0.0.1:7174"));
            host.cm.accept(now, request.id, &param(2), &mut host.out).unwrap();
        }
        net.run_until_idle();
        net.hosts[1].event(answer);
        net.end();
    }
}

#[test]
fn loopback_address_is_bound_and_resolved_to_the_hosts_own_address() {
    for (mut net, localhost) in [(Net::new(1), "127.0.0.1:7174"), (Net::v6(1), "[::1]:7174")] {
        let own = net.addr(0, 7174);
        let net::Host { cm, out, .. } = &mut net.hosts[0];
        let (listener, client) = (tcp(cm), tcp(cm));
        assert_eq!(cm.bind(listener, sock(localhost), false), Ok(own.into()));
        cm.resolve_addr(net.now, client, None, sock(localhost).into(), SECOND, false, out).unwrap();
        assert_eq!(cm.query(client).unwrap().peer, Some(own.into()));
        // Without an address of the family, the other loopback address is not this host.
        let other = if own.is_ipv4() { "[::1]:1" } else { "127.0.0.1:1" };
        let third = tcp(cm);
        assert_eq!(cm.bind(third, sock(other), true).unwrap_err().errno(), 99);
        // On a host that has the loopback address, it means that address.
        let lo = local_address(sock(localhost).ip(), 2);
        let addrs = vec![local_address(own.ip(), 1), lo];
        cm.set_addresses(net.now, addrs, out);
        assert_eq!(cm.bind(third, sock(localhost), false), Ok(sock(localhost).into()));
    }
}

#[test]
fn ipv6_addresses_work_for_rc_connections_and_sidr_requests() {
    let mut net = Net::v6(2);
    net.listener(0, QpType::Rc);
    let (active, passive) = net.connected(QpType::Rc);
    let of = |host: usize, id| net.hosts[host].cm.query(id).unwrap();
    assert_eq!(of(1, active).peer, Some(sock("[fd00::1]:7174").into()));
    assert_eq!(of(0, passive).local, Some(sock("[fd00::1]:7174").into()));
    assert_eq!(of(0, passive).peer, of(1, active).local);
    assert_eq!(of(1, active).route.unwrap().av.dgid.to_string(), "fd00::1");
    net.listener(0, QpType::Ud);
    net.connecting(1, 0, QpType::Ud);
    net.run_until_idle();
    let request = net.hosts[0].event(EventKind::ConnectRequest);
    assert_eq!(request.route.unwrap().dst.ip(), net.hosts[1].ip);
    net.end();
}

#[test]
fn out_of_range_configuration_does_not_panic_or_prevent_connecting() {
    let config = Config {
        cm_response_timeout: 255,
        max_cm_retries: 255,
        mra_service_timeout: 255,
        packet_lifetime: 255,
        ack_delay: 255,
        ephemeral_ports: std::ops::RangeInclusive::new(2, 1),
        ..Config::default()
    };
    let mut net = Net::with(2, config);
    let dst = net.addr(1, 7174);
    let now = net.now;
    let host = &mut net.hosts[0];
    let id = tcp(&mut host.cm);
    let none =
        host.cm.resolve_addr(now, id, None, dst.into(), SECOND, false, &mut host.out).unwrap_err();
    assert_eq!(
        none.to_string(),
        "resolve_addr on id 1: every ephemeral port of this port space is in use"
    );
    let src = Some(sock("10.0.0.1:5000"));
    host.cm
        .resolve_addr(now, id, src.map(Into::into), dst.into(), SECOND, false, &mut host.out)
        .unwrap();
    net.run_until_idle();
    let host = &mut net.hosts[0];
    host.cm.resolve_route(now, id, SECOND, &mut host.out).unwrap();
    host.answer_paths(now);
    host.cm.connect(now, id, &param(1), &mut host.out).unwrap();
    net.run_until_idle();
    assert_eq!(net.hosts[0].kinds().last(), Some(&(EventKind::Rejected, 8)));
    net.end();
}

#[test]
fn resolve_addr_raises_addr_resolved_addr_error_or_etimedout() {
    let mut net = Net::new(2);
    let (now, dst) = (net.now, net.addr(0, 7174));
    let host = &mut net.hosts[1];
    let id = tcp(&mut host.cm);
    let nowhere = sock("10.0.0.77:1");
    host.cm.resolve_addr(now, id, None, nowhere.into(), SECOND, false, &mut host.out).unwrap();
    net.run_until_idle();
    assert_eq!(net.hosts[1].kinds(), [(EventKind::AddrError, -113)]);

    // There is no answer, or it is too late. The next query has an answer of its own.
    let host = &mut net.hosts[1];
    host.cm.resolve_addr(now, id, None, nowhere.into(), SECOND, false, &mut host.out).unwrap();
    let again = host.cm.resolve_addr(now, id, None, dst.into(), SECOND, false, &mut host.out);
    assert_eq!(again.unwrap_err().errno(), 22);
    host.out.queries.clear();
    net.pass(SECOND);
    assert_eq!(net.hosts[1].kinds(), [(EventKind::AddrError, -110)]);
    let now = net.now;
    let host = &mut net.hosts[1];
    host.cm.handle_resolve_failed(now, id, 113, &mut host.out);
    assert!(host.events().is_empty());
    host.cm.resolve_addr(now, id, None, dst.into(), SECOND, false, &mut host.out).unwrap();
    let known = Resolved { src: host.ip, device: 0, port_num: 1, dgid: dst.ip().into(), mtu: None };
    let answer = Resolved { mtu: Some(Mtu::M512), ..known };
    host.cm.handle_resolved(now, id, answer, &mut host.out);
    let resolved = host.event(EventKind::AddrResolved);
    let route = *resolved.route.unwrap();
    assert_eq!((route.src.ip(), route.dst, route.mtu), (host.ip, dst.into(), Mtu::M512));
    let expected = (u32::from(route.src.port()) * 31 + 7174) & 0xf_ffff;
    assert_eq!(route.av.flow_label, expected);
    assert_eq!(host.cm.query(id).unwrap().local, Some(route.src));

    // The source address belongs to no device.
    let other = tcp(&mut host.cm);
    let src = Some(sock("10.0.0.99:0"));
    let refused = host.cm.resolve_addr(
        now,
        other,
        src.map(Into::into),
        dst.into(),
        SECOND,
        false,
        &mut host.out,
    );
    assert_eq!(refused.unwrap_err().errno(), 99);
    let mixed = host.cm.resolve_addr(
        now,
        other,
        Some(sock("[::]:0").into()),
        dst.into(),
        SECOND,
        false,
        &mut host.out,
    );
    assert_eq!(mixed.unwrap_err().errno(), 22);
    assert_eq!(host.cm.query(other).unwrap().state, IdState::Idle, "errors change nothing");
    assert_eq!(host.cm.ports_in_use(), 1);
    // The answer names an address that is not local.
    host.cm.resolve_addr(now, other, None, dst.into(), SECOND, false, &mut host.out).unwrap();
    let answer = Resolved { src: IpAddr::from([10, 9, 9, 9]), ..known };
    host.cm.handle_resolved(now, other, answer, &mut host.out);
    assert_eq!(host.kinds(), [(EventKind::AddrError, -19)]);
    net.end();
}

/// The program decides for how long the driver waits for an address, and the driver has room for only so many.
#[test]
fn unanswered_address_query_is_cancelled_by_destroy_timeout_and_device_removal() {
    let mut net = Net::new(1);
    let (now, own) = (net.now, net.addr(0, 0));
    let host = &mut net.hosts[0];
    let nowhere = sock("10.0.0.77:1");
    let resolving = |host: &mut net::Host| {
        let (id, src) = (tcp(&mut host.cm), Some(rdmux_cm::Addr::from(own)));
        let (cm, out) = (&mut host.cm, &mut host.out);
        cm.resolve_addr(now, id, src, nowhere.into(), SECOND, false, out).unwrap();
        id
    };
    let cancelled = |host: &mut net::Host| std::mem::take(&mut host.out.unresolved);
    let destroyed = resolving(host);
    host.cm.destroy(now, destroyed, &mut host.out).unwrap();
    assert_eq!(cancelled(host), [destroyed]);
    let closed = resolving(host);
    host.cm.channel_gone(now, SERVER, &mut host.out);
    assert_eq!(cancelled(host), [closed]);
    let late = resolving(host);
    host.cm.handle_timeout(now.after(SECOND), &mut host.out);
    assert_eq!(cancelled(host), [late]);
    host.cm.destroy(now, late, &mut host.out).unwrap();
    let removed = resolving(host);
    host.cm.set_addresses(now, Vec::new(), &mut host.out);
    assert_eq!(cancelled(host), [removed]);
    assert_eq!(host.kinds(), [(EventKind::AddrError, -110), (EventKind::DeviceRemoval, 0)]);
    host.cm.destroy(now, removed, &mut host.out).unwrap();
    assert!(cancelled(host).is_empty(), "both are over");
    host.out.queries.clear();
    net.end();
}

/// A link-local address means nothing without its interface.
#[test]
fn bound_link_local_address_keeps_its_scope_id() {
    let mut net = Net::new(1);
    let now = net.now;
    let host = &mut net.hosts[0];
    let own = local_address("fe80::1".parse().unwrap(), 1);
    host.cm.set_addresses(now, vec![own], &mut host.out);
    let id = tcp(&mut host.cm);
    let bound = host.cm.bind(id, sock("[fe80::1%2]:0"), false).unwrap();
    let scoped = |port| sock(&format!("[fe80::1%2]:{port}"));
    assert_eq!(bound, scoped(bound.port()));
    let peer = sock("[fe80::9%2]:7174");
    host.cm.resolve_addr(now, id, None, peer.into(), SECOND, false, &mut host.out).unwrap();
    let (_, query) = host.out.queries.pop_front().unwrap();
    let answer = query.over_ip("fe80::1".parse().unwrap(), 0);
    host.cm.handle_resolved(now, id, answer, &mut host.out);
    let route = *host.event(EventKind::AddrResolved).route.unwrap();
    assert_eq!((route.src, host.cm.query(id).unwrap().local), (bound, Some(bound)));
    net.end();
}

#[test]
fn a_wildcard_destination_is_this_host() {
    let mut net = Net::new(1);
    let now = net.now;
    let host = &mut net.hosts[0];
    let id = tcp(&mut host.cm);
    host.cm
        .resolve_addr(now, id, None, sock("0.0.0.0:7").into(), SECOND, false, &mut host.out)
        .unwrap();
    net.run_until_idle();
    let route = *net.hosts[0].event(EventKind::AddrResolved).route.unwrap();
    assert_eq!((route.src.ip(), route.dst), (net.hosts[0].ip, sock("10.0.0.1:7").into()));
    net.end();
}

#[test]
fn tos_and_ack_timeout_options_are_in_req_and_qp_attributes() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    let id = net.routed(1, 0, QpType::Rc);
    let now = net.now;
    let host = &mut net.hosts[1];
    host.cm.set_option(id, IdOption::Tos(0x68)).unwrap();
    host.cm.set_option(id, IdOption::AckTimeout(12)).unwrap();
    host.cm.connect(now, id, &param(1), &mut host.out).unwrap();
    let (path, mad) = host.out.mads[0];
    assert_eq!(path.av.traffic_class, 0x68);
    let Message::Req(req) = rdmux_wire::cm::CmMad::parse(&mad).unwrap().message else { panic!() };
    assert_eq!(req.primary.tclass, 0x68);
    // Lifetime 11, delay 15: the delay dominates.
    assert_eq!(req.primary.ack_timeout, AckTimeout::new(15));
    net.run_until_idle();
    let request = net.hosts[0].event(EventKind::ConnectRequest);
    assert_eq!(request.negotiated.unwrap().av.traffic_class, 0x68);
    let server = &mut net.hosts[0];
    server.cm.accept(now, request.id, &param(2), &mut server.out).unwrap();
    net.run_until_idle();
    let response = net.hosts[1].event(EventKind::ConnectResponse);
    assert_eq!(response.negotiated.unwrap().timeout, AckTimeout::new(12));
    net.end();
}

#[test]
fn ece_is_carried_by_req_and_rep() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    let id = net.routed(1, 0, QpType::Rc);
    let now = net.now;
    let ours = Ece { vendor_id: 0x0015_b3fe, options: 0x1234_5678 };
    let host = &mut net.hosts[1];
    host.cm.connect(now, id, &ConnParam { ece: ours, ..param(1) }, &mut host.out).unwrap();
    net.run_until_idle();
    let request = net.hosts[0].event(EventKind::ConnectRequest);
    let EventParam::Conn(asked) = request.param else { panic!("{request:?}") };
    assert_eq!(asked.ece, ours);
    let theirs = Ece { options: 0x1000_0000, ..ours };
    let server = &mut net.hosts[0];
    let accept = ConnParam { ece: theirs, ..param(2) };
    server.cm.accept(now, request.id, &accept, &mut server.out).unwrap();
    net.run_until_idle();
    let response = net.hosts[1].event(EventKind::ConnectResponse);
    let EventParam::Conn(answer) = response.param else { panic!("{response:?}") };
    assert_eq!(answer.ece, theirs);
    net.end();
}

#[test]
fn write_event_of_a_cm_event_kind_is_einval() {
    let mut net = Net::new(1);
    let host = &mut net.hosts[0];
    let id = tcp(&mut host.cm);
    host.cm.write_event(id, EventKind::User, -7, 0x5566_7788_99aa_bbcc, &mut host.out).unwrap();
    let event = host.event(EventKind::User);
    assert_eq!((event.id, event.status), (id, -7));
    assert_eq!(event.param, EventParam::Arg(0x5566_7788_99aa_bbcc));
    let refused = host.cm.write_event(id, EventKind::Established, 0, 0, &mut host.out);
    assert_eq!(refused.unwrap_err().errno(), 22);
    assert!(host.events().is_empty());
    assert_eq!(net.destroy(0, id), 1);
}

#[test]
fn sidr_req_is_answered_with_qpn_and_qkey_or_unsupported_service() {
    let mut net = Net::new(2);
    let nobody = net.connecting(1, 0, QpType::Ud);
    net.run_until_idle();
    let refused = net.hosts[1].event(EventKind::Unreachable);
    assert_eq!((refused.id, refused.status), (nobody, 1));

    net.listener(0, QpType::Ud);
    let asking = net.connecting(1, 0, QpType::Ud);
    net.run_until_idle();
    let request = net.hosts[0].event(EventKind::ConnectRequest);
    assert_eq!(request.negotiated.as_ref().unwrap().qkey, Qkey::RDMA_UDP);
    let EventParam::Ud(asked) = &request.param else { panic!() };
    assert_eq!((asked.private_data.len(), asked.av.dgid.ip()), (180, net.hosts[1].ip));
    let now = net.now;
    let server = &mut net.hosts[0];
    let long = ConnParam { private_data: vec![0; 137], ..param(2) };
    let refused = server.cm.accept(now, request.id, &long, &mut server.out).unwrap_err();
    assert_eq!(refused.errno(), 22);
    let accept = ConnParam { qkey: Some(Qkey(5)), ..param(0x22) };
    server.cm.accept(now, request.id, &accept, &mut server.out).unwrap();
    assert_eq!(
        server.cm.accept(now, request.id, &accept, &mut server.out).unwrap_err().errno(),
        22
    );
    net.run_until_idle();
    let found = net.hosts[1].event(EventKind::Established);
    assert_eq!(found.id, asking);
    let EventParam::Ud(found) = found.param else { panic!() };
    assert_eq!((found.qp_num, found.qkey), (Qpn::new(0x22), Qkey(5)));
    assert_eq!((found.private_data.len(), found.private_data[..3].to_vec()), (136, vec![1, 2, 3]));
    net.end();
}

#[test]
fn duplicate_sidr_req_gets_the_same_sidr_rep_and_one_connect_request() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Ud);
    let mut drops = 2;
    net.filter = Box::new(move |m| {
        let drop = matches!(m, Message::SidrRep(_)) && drops > 0;
        drops -= u32::from(drop);
        !drop
    });
    net.connecting(1, 0, QpType::Ud);
    net.run_until_idle();
    let request = net.hosts[0].event(EventKind::ConnectRequest).id;
    let now = net.now;
    let server = &mut net.hosts[0];
    server.cm.accept(now, request, &param(2), &mut server.out).unwrap();
    net.pass(Duration::from_secs(9));
    net.hosts[1].event(EventKind::Established);
    assert!(net.hosts[0].events().is_empty());
    assert_eq!(net.hosts[0].cm.counters().duplicates, 2);
    net.end();
}

#[test]
fn destroyed_sidr_request_is_rejected() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Ud);
    net.connecting(1, 0, QpType::Ud);
    net.run_until_idle();
    let request = net.hosts[0].event(EventKind::ConnectRequest).id;
    net.destroy(0, request);
    net.run_until_idle();
    assert_eq!(net.hosts[1].kinds(), [(EventKind::Unreachable, 2)]);
    net.end();
}

#[test]
fn multicast_join_leave_and_network_errors_raise_one_event_each() {
    let mut net = Net::new(1);
    let now = net.now;
    let host = &mut net.hosts[0];
    let id = host.cm.create_id(CLIENT, PortSpace::Udp, QpType::Ud, 5).unwrap();
    let group: IpAddr = Ipv4Addr::new(239, 1, 2, 3).into();
    let wish = |group: IpAddr| GroupWish::address(group, JoinFlags::FullMember);
    let join = |host: &mut net::Host, group| {
        host.cm.join(now, id, wish(group), 99, &mut host.out).map_err(|e| e.errno())
    };
    assert_eq!(join(host, group), Err(22), "it has no address");
    host.cm.bind(id, sock("10.0.0.1:0"), false).unwrap();
    assert_eq!(join(host, "10.0.0.1".parse().unwrap()), Err(22));
    assert_eq!(join(host, group), Ok(()));
    assert_eq!(join(host, group), Err(22), "twice");
    let (device, port_num, port_space) = (0, 1, PortSpace::Udp);
    let (context, wish) = (99, wish(group));
    let query = JoinQuery { device, port_num, port_space, local: host.ip, context, wish };
    assert_eq!(host.out.joins, [(id, query)]);
    let known = |host: &net::Host| host.cm.group(id, context).map_err(|e| e.errno());
    assert_eq!(known(host), Err(107), "nobody has answered");
    host.cm.handle_joined(now, id, query, query.over_ip(64, Mtu::M1024), &mut host.out);
    assert_eq!(known(host), query.over_ip(64, Mtu::M1024));
    let joined = host.event(EventKind::MulticastJoin);
    assert_eq!(joined.context, 99);
    let EventParam::Ud(ud) = joined.param else { panic!() };
    assert_eq!((ud.qp_num, ud.qkey), (Qpn::MULTICAST, Qkey::RDMA_UDP));
    assert_eq!((ud.av.dgid, ud.av.hop_limit), (Gid::from(group), 64));
    assert_eq!(ud.av.dgid.to_string(), "::ffff:239.1.2.3");

    assert_eq!(host.cm.leave(now, id, context, &mut host.out), Ok(1));
    assert_eq!(host.out.leaves, [(id, query)]);
    let again = host.cm.leave(now, id, context, &mut host.out).unwrap_err();
    assert_eq!(again.errno(), 99);

    // A group that the network refused is not left there.
    assert_eq!(join(host, group), Ok(()));
    host.cm.handle_joined(now, id, query, Err(105), &mut host.out);
    host.cm.handle_joined(now, id, query, Err(102), &mut host.out);
    assert_eq!(host.kinds(), [(EventKind::MulticastError, -105)], "one event");
    assert_eq!(known(host), Err(105));
    // The group may be joined again without being left.
    assert_eq!(join(host, group), Ok(()));
    host.cm.handle_joined(now, id, query, Err(22), &mut host.out);
    assert_eq!(host.kinds(), [(EventKind::MulticastError, -22)]);
    host.cm.leave(now, id, context, &mut host.out).unwrap();
    assert_eq!(host.out.leaves.len(), 1);
    // A joined group is left when the id is destroyed.
    assert_eq!(join(host, group), Ok(()));
    net.destroy(0, id);
    assert_eq!(net.hosts[0].out.leaves.len(), 2);
    net.end();
}

#[test]
fn removed_address_raises_addr_change_and_removed_device_device_removal() {
    let mut net = Net::new(2);
    net.listener(0, QpType::Rc);
    let (active, _) = net.connected(QpType::Rc);
    let (now, ip) = (net.now, net.hosts[1].ip);
    let host = &mut net.hosts[1];
    let elsewhere = local_address(IpAddr::from([10, 0, 9, 9]), 2);
    host.cm.set_addresses(now, vec![elsewhere.clone()], &mut host.out);
    assert_eq!(host.kinds(), [(EventKind::AddrChange, 0)]);
    host.cm.set_addresses(now, vec![elsewhere.clone()], &mut host.out);
    assert_eq!(host.kinds(), [], "it was told");
    host.cm.set_addresses(now, vec![local_address(ip, 2)], &mut host.out);
    host.cm.set_addresses(now, vec![elsewhere.clone()], &mut host.out);
    assert_eq!(host.kinds(), [(EventKind::AddrChange, 0)], "the address was back");
    let other_device = LocalAddress { device: 1, ..elsewhere };
    host.cm.set_addresses(now, vec![other_device], &mut host.out);
    assert_eq!(host.kinds(), [(EventKind::DeviceRemoval, 0)]);
    assert_eq!(host.cm.query(active).unwrap().state, IdState::DeviceRemoval);
    // Disconnecting succeeds, as for a connection that is over already.
    assert_eq!(host.cm.disconnect(now, active, &mut host.out), Ok(()));
    net.run_until_idle();
    assert_eq!(net.hosts[0].kinds(), [(EventKind::Disconnected, 0)]);
    net.end();
}

#[test]
fn removed_address_leaves_its_multicast_groups_with_multicast_error() {
    let mut net = Net::new(1);
    let now = net.now;
    let host = &mut net.hosts[0];
    let id = host.cm.create_id(CLIENT, PortSpace::Udp, QpType::Ud, 5).unwrap();
    host.cm.bind(id, sock("10.0.0.1:0"), false).unwrap();
    for context in [1, 2, 3] {
        let group: IpAddr = Ipv4Addr::new(239, 1, 2, u8::try_from(context).unwrap()).into();
        let wish = GroupWish::address(group, JoinFlags::FullMember);
        host.cm.join(now, id, wish, context, &mut host.out).unwrap();
    }
    let [joined, lost, open] = host.out.joins[..] else { panic!() };
    let record = joined.1.over_ip(64, Mtu::M1024);
    host.cm.handle_joined(now, id, joined.1, record, &mut host.out);
    host.cm.handle_joined(now, id, lost.1, Err(105), &mut host.out);
    let told = [(EventKind::MulticastJoin, 0), (EventKind::MulticastError, -105)];
    assert_eq!(host.kinds(), told);
    let elsewhere = local_address(IpAddr::from([10, 0, 9, 9]), 1);
    host.cm.set_addresses(now, vec![elsewhere], &mut host.out);
    let reset = (EventKind::MulticastError, -102);
    assert_eq!(host.kinds(), [reset, reset, (EventKind::AddrChange, 0)]);
    assert_eq!(host.out.leaves, [joined, open], "not the one that the network has taken back");
    host.cm.handle_joined(now, id, open.1, record, &mut host.out);
    host.cm.leave(now, id, 1, &mut host.out).unwrap();
    net.destroy(0, id);
    assert_eq!(net.hosts[0].kinds(), [], "a late answer says nothing");
    assert_eq!(net.hosts[0].out.leaves.len(), 2, "each is left once");
    net.end();
}

#[test]
fn ports_below_the_configured_start_need_a_privilege() {
    for start in [0, 80, 2000, 65_536] {
        let config = Config { unprivileged_port_start: start, ..Config::default() };
        let mut net = Net::with(1, config);
        let cm = &mut net.hosts[0].cm;
        for port in [1, 79, 80, 1023, 1024, 1999, 2000, 65_535] {
            let id = tcp(cm);
            let addr = SocketAddr::from(([10, 0, 0, 1], port));
            let bound = cm.bind(id, addr, false).map_err(|e| e.errno());
            let is_free = u32::from(port) >= start;
            assert_eq!(bound, if is_free { Ok(addr.into()) } else { Err(13) }, "{start}: {port}");
            assert!(is_free || cm.bind(id, addr, true).is_ok());
        }
        let id = tcp(cm);
        assert!(cm.bind(id, sock("10.0.0.1:0"), false).is_ok(), "an ephemeral port");
    }
}

#[test]
fn exceeded_limits_and_wrong_states_are_errors_with_errno_and_text() {
    let config = Config { max_ids_per_channel: 2, ..Config::default() };
    let mut net = Net::with(2, config);
    let cm = &mut net.hosts[0].cm;
    let id = tcp(cm);
    tcp(cm);
    let full = cm.create_id(SERVER, PortSpace::Tcp, QpType::Rc, 0).unwrap_err();
    assert_eq!(full.errno(), 12);
    assert!(cm.create_id(ChannelId(7), PortSpace::Tcp, QpType::Rc, 0).is_ok());
    assert_eq!(cm.migrate(id, ChannelId(7)), Ok(0));
    assert_eq!(cm.migrate(IdHandle(999), ChannelId(7)).unwrap_err().errno(), 2);
    let id = net.routed(1, 0, QpType::Rc);
    let now = net.now;
    let host = &mut net.hosts[1];
    let long = ConnParam { private_data: vec![0; 57], ..param(1) };
    let refused = host.cm.connect(now, id, &long, &mut host.out).unwrap_err();
    assert_eq!(refused.to_string(), "connect on id 1: 57 bytes of private data, at most 56 fit");
    let deep = ConnParam { initiator_depth: 129, ..param(1) };
    assert_eq!(host.cm.connect(now, id, &deep, &mut host.out).unwrap_err().errno(), 22);
    assert!(host.out.mads.is_empty());
    let early = host.cm.disconnect(now, id, &mut host.out).unwrap_err();
    assert_eq!(early.to_string(), "disconnect on id 1: not possible in state ROUTE_RESOLVED");
    net.end();
}

#[test]
fn reserved_id_numbers_are_not_given_to_other_ids() {
    let mut net = Net::new(1);
    let cm = &mut net.hosts[0].cm;
    let IdHandle(first) = cm.reserve_ids(2);
    let other = tcp(cm);
    assert_eq!(other, IdHandle(first + 2));
    let space = (PortSpace::Tcp, QpType::Rc);
    for id in [IdHandle(first + 1), IdHandle(first)] {
        assert_eq!(cm.create_id_as(id, SERVER, space, None, 9), Ok(()));
        assert_eq!(cm.query(id).unwrap().context, 9);
    }
    assert_eq!(cm.ids().count(), 3);
    net.end();
}

#[test]
fn late_command_failure_becomes_connect_error_only_if_state_still_fits() {
    let mut net = Net::new(2);
    let id = net.routed(1, 0, QpType::Rc);
    let host = &mut net.hosts[1];
    for command in [Command::ResolveAddr, Command::ResolveRoute, Command::Disconnect] {
        host.cm.handle_refused(id, command, 22, &mut host.out);
    }
    assert_eq!(host.kinds(), [], "it has come further, or was told");
    host.cm.handle_refused(id, Command::Connect, 22, &mut host.out);
    assert_eq!(host.kinds(), [(EventKind::ConnectError, -22)]);
    assert_eq!(host.cm.query(id).unwrap().state, IdState::RouteResolved);
    net.end();
}

#[test]
fn established_connections_need_no_timer_and_outlive_their_listener() {
    let mut net = Net::new(2);
    let listener = net.listener(0, QpType::Rc);
    for n in 0..1000 {
        let id = net.routed(1, 0, QpType::Rc);
        let now = net.now;
        let h = &mut net.hosts[1];
        h.cm.connect(now, id, &param(0x1000 + n), &mut h.out).unwrap();
        net.run_until_idle();
        let h = &mut net.hosts[0];
        let passive = h.event(EventKind::ConnectRequest).id;
        h.cm.accept(now, passive, &param(0x2000 + n), &mut h.out).unwrap();
        net.run_until_idle();
        let h = &mut net.hosts[1];
        h.event(EventKind::ConnectResponse);
        h.cm.establish(now, id, &mut h.out).unwrap();
        net.run_until_idle();
        net.hosts[0].event(EventKind::Established);
    }
    assert_eq!(net.hosts[0].cm.deadlines(), 0, "an established connection needs no timer");
    net.destroy(0, listener);
    assert_eq!(net.hosts[0].cm.connections(), 1000, "they outlive their listener");
    net.end();
}

#[test]
fn idle_manager_has_no_timeout_event_or_message() {
    let cm = Manager::new(Config::default(), [0; 32]);
    assert_eq!(cm.poll_timeout(), None);
    let mut cm = cm;
    let mut out = Out::default();
    cm.handle_timeout(Time(1 << 60), &mut out);
    cm.channel_gone(Time(1 << 60), CLIENT, &mut out);
    assert!(out.events.is_empty() && out.mads.is_empty());
}
