//! The connection manager on a device with two InfiniBand ports, of one subnet or of two: each port has connections, lookups and groups of
//! its own.
//! own.

mod common;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use common::{active, disable, with_two_ports};
use rdmux::cm::{
    Addr, ConnParam, Event, EventChannel, EventKind, GroupWish, IbAddr, Id, JoinFlags, PortSpace,
    ServiceId,
};
use rdmux::umad::Fabric;
use rdmux::{Access, Cause, Context, Gid, Mr, Options, Qp, QpType, SendWr, WcStatus, Xrcd};

const SERVICE: ServiceId = ServiceId(0x1000_0000_0000_2b0a);
const PORT: u16 = 7199;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs a test between hosts with two ports: on one fabric, and on two.
fn with_hosts(test: impl Fn(&Context, &Context)) {
    with_hosts_on(|a, b, _| test(a, b));
}

/// Runs a test as [`with_hosts`] does, and passes it the number of fabrics.
fn with_hosts_on(test: impl Fn(&Context, &Context, usize)) {
    let one = Fabric::managed("switch:6").unwrap();
    let two = one.beside("two", "switch:3").unwrap();
    for (n, fabrics) in [[&one, &one], [&one, &two]].into_iter().enumerate() {
        let [a, b] = ["a", "b"].map(|name| with_two_ports(fabrics, &format!("{name}{n}")));
        test(&a, &b, n + 1);
    }
}

fn gid(context: &Context, port: u8) -> Gid {
    context.gid_of_port(port, 0).unwrap()
}

fn next(channel: &EventChannel, kind: EventKind) -> Event {
    channel.next(Some(TIMEOUT)).unwrap().expect("an event").expect(kind, "go on").unwrap()
}

/// An id, its channel, its queue pair and memory.
struct End {
    channel: EventChannel,
    id: Id,
    qp: Qp,
    mr: Mr,
}

impl End {
    fn new(context: &Context, space: PortSpace, qp_type: QpType, port: u8) -> Self {
        let channel = EventChannel::new(context).unwrap();
        let id = Id::with_type(&channel, space, qp_type).unwrap();
        let (cq, pd) = (context.cq(16).unwrap(), context.pd());
        let qp = pd.qp(qp_type).cq(&cq).port(port).max_inline(64).build().unwrap();
        let mr = pd.alloc(256, Access::LOCAL_WRITE).unwrap();
        Self { channel, id, qp, mr }
    }

    /// Resolves the route from a local address, or from any.
    fn resolve(&self, from: Option<Addr>, to: impl Into<Addr>) {
        self.id.resolve_addr(from, to, TIMEOUT).unwrap();
        next(&self.channel, EventKind::AddrResolved);
        self.id.resolve_route(TIMEOUT).unwrap();
        next(&self.channel, EventKind::RouteResolved);
    }
}

fn param() -> ConnParam {
    ConnParam { retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() }
}

/// Connects an id to a listener at this address. Both have their queue pairs at this port, or at the resolved one if it is 0, and
/// exchange a message.
fn connects(a: &Context, b: &Context, at: Addr, from: Option<Addr>, port: u8) {
    let space = if at.ib().is_some() { PortSpace::Ib } else { PortSpace::Tcp };
    let first = port.max(1);
    let listener = End::new(b, space, QpType::Rc, first);
    listener.id.bind(at).unwrap();
    listener.id.listen(1).unwrap();
    let active = End::new(a, space, QpType::Rc, first);
    active.resolve(from, at);
    let route = active.id.route().unwrap();
    let port = if port == 0 { route.av.port_num } else { port };
    assert_eq!((route.av.port_num, route.sgid, route.av.dgid), (port, gid(a, port), gid(b, port)));
    active.id.attach_qp(&active.qp).unwrap();
    active.id.connect(&param()).unwrap();
    let passive = next(&listener.channel, EventKind::ConnectRequest).take_id().unwrap();
    assert_eq!(passive.route().unwrap().av.port_num, port);
    passive.attach_qp(&listener.qp).unwrap();
    passive.accept(&param()).unwrap();
    next(&active.channel, EventKind::Established);
    next(&listener.channel, EventKind::Established);
    assert_eq!((active.qp.attr().port_num, listener.qp.attr().port_num), (port, port));
    listener.qp.post_recv(1, &[listener.mr.slice(..)]).unwrap();
    active.qp.post_send(&SendWr::send(2).inline(&[b"by this port"]).signaled()).unwrap();
    assert_eq!(active.qp.send_cq().wait_one(None).unwrap().status, WcStatus::Success);
    assert_eq!(listener.qp.recv_cq().wait_one(None).unwrap().byte_len, 12);
    active.id.disconnect().unwrap();
    next(&listener.channel, EventKind::Disconnected);
    passive.disconnect().unwrap();
    next(&active.channel, EventKind::Disconnected);
}

#[test]
fn ids_at_each_port_connect_and_disconnect_by_it() {
    with_hosts(|a, b| {
        for port in [2, 1] {
            let (from, at) = (IbAddr::of_port(gid(a, port)), IbAddr::new(gid(b, port), SERVICE));
            connects(a, b, at.into(), Some(from.into()), port);
        }
    });
}

#[test]
fn sidr_lookup_at_the_second_port_is_answered_by_that_port() {
    with_hosts(|a, b| {
        let at = IbAddr::new(gid(b, 2), SERVICE);
        let listener = End::new(b, PortSpace::Ib, QpType::Ud, 2);
        listener.id.bind(at).unwrap();
        listener.id.listen(1).unwrap();
        let active = End::new(a, PortSpace::Ib, QpType::Ud, 2);
        active.resolve(Some(IbAddr::of_port(gid(a, 2)).into()), at);
        active.id.attach_qp(&active.qp).unwrap();
        active.id.connect(&param()).unwrap();
        let passive = next(&listener.channel, EventKind::ConnectRequest).take_id().unwrap();
        assert_eq!(passive.route().unwrap().av.port_num, 2);
        passive.attach_qp(&listener.qp).unwrap();
        passive.accept(&param()).unwrap();
        next(&active.channel, EventKind::Established);
    });
}

/// Returns the address of a host, with a port.
fn address(context: &Context) -> Addr {
    SocketAddr::new(context.address().unwrap(), PORT).into()
}

#[test]
fn ip_address_resolves_to_second_port_while_first_is_down() {
    with_hosts_on(|a, b, fabrics| {
        // On two fabrics both ports query, and the first answer counts.
        connects(a, b, address(b), None, if fabrics == 1 { 1 } else { 0 });
        for context in [a, b] {
            disable(context, 1);
        }
        connects(a, b, address(b), None, 2);
        // And to the host itself.
        connects(b, b, address(b), None, 2);
    });
}

#[test]
fn hosts_of_either_fabric_reach_a_host_of_both_by_its_ip_address() {
    let one = Fabric::managed("switch:3").unwrap();
    let two = one.beside("two", "switch:3").unwrap();
    let both = with_two_ports([&one, &two], "both");
    for (port, fabric) in [(1, &one), (2, &two)] {
        let host = active(fabric, &format!("host{port}"));
        for is_asked in [false, true] {
            let [from, to] = if is_asked { [&host, &both] } else { [&both, &host] };
            let listener = End::new(to, PortSpace::Tcp, QpType::Rc, 1);
            listener.id.bind(address(to)).unwrap();
            listener.id.listen(1).unwrap();
            let end = End::new(from, PortSpace::Tcp, QpType::Rc, 1);
            end.resolve(None, address(to));
            let route = end.id.route().unwrap();
            let dgid = if is_asked { gid(&both, port) } else { gid(&host, 1) };
            let own = if is_asked { 1 } else { port };
            assert_eq!((route.av.dgid, route.av.port_num), (dgid, own));
            end.id.attach_qp(&end.qp).unwrap();
            end.id.connect(&param()).unwrap();
            let passive = next(&listener.channel, EventKind::ConnectRequest).take_id().unwrap();
            let of_peer = if is_asked { port } else { 1 };
            assert_eq!(passive.route().unwrap().av.port_num, of_peer);
            passive.attach_qp(&listener.qp).unwrap();
            passive.accept(&param()).unwrap();
            next(&end.channel, EventKind::Established);
        }
    }
}

#[test]
fn multicast_join_at_the_second_port_uses_its_gid() {
    with_hosts(|a, b| {
        let group = IpAddr::from(Ipv4Addr::new(239, 77, 3, 4));
        let ends = [a, b].map(|context| {
            let end = End::new(context, PortSpace::Udp, QpType::Ud, 2);
            end.id.bind(IbAddr::of_port(gid(context, 2))).unwrap();
            end.id.attach_qp(&end.qp).unwrap();
            end.id.join(GroupWish::address(group, JoinFlags::FullMember)).unwrap();
            next(&end.channel, EventKind::MulticastJoin);
            assert_eq!(end.id.group(group).unwrap().port_gid, gid(context, 2));
            end
        });
        let [from, to] = &ends;
        to.qp.post_recv(1, &[to.mr.slice(..)]).unwrap();
        // The switches may learn of the group after the members do.
        let got = loop {
            let datagram = SendWr::send(2).inline(&[b"to all"]).signaled();
            from.id.send_to(datagram, group).unwrap();
            assert_eq!(from.qp.send_cq().wait_one(None).unwrap().status, WcStatus::Success);
            match to.qp.recv_cq().poll_one() {
                Some(got) => break got,
                None => thread::yield_now(),
            }
        };
        assert_eq!((got.byte_len, got.src_qp), (46, from.qp.qpn()));
        assert_eq!(to.mr.to_vec(40..46), b"to all");
        for end in &ends {
            end.id.leave_multicast(group).unwrap();
        }
    });
}

#[test]
fn datagram_endpoint_uses_the_port_that_its_address_resolves_to() {
    with_hosts(|a, b| {
        let bind = |context| {
            let at = SocketAddr::new(Context::address(context).unwrap(), 0);
            Options::new().context(context).datagram(at).unwrap()
        };
        let at_first = [bind(a), bind(b)];
        for context in [a, b] {
            disable(context, 1);
        }
        let (mut left, mut right) = (bind(a), bind(b));
        let peer = left.resolve(right.local_addr()).unwrap();
        assert_eq!((peer.ah.vector().port_num, peer.ah.vector().dgid), (2, gid(b, 2)));
        left.send_to(&peer, b"by this port").unwrap();
        let (message, from) = right.recv_timeout(TIMEOUT).unwrap();
        assert_eq!((&message[..], from.ah.vector().port_num), (&b"by this port"[..], 2));
        right.send_to(&from, b"and back").unwrap();
        assert_eq!(left.recv_timeout(TIMEOUT).unwrap().0, b"and back");
        // The endpoints that were bound before are at ports without a link now.
        let error = at_first[0].resolve(right.local_addr()).unwrap_err();
        assert!(error.to_string().contains("port 2"), "{error}");
        let error = left.resolve(at_first[1].local_addr()).unwrap_err();
        assert!(matches!(error.cause(), Cause::Rejected { .. }), "{error}");
    });
}

#[test]
fn xrc_target_at_the_second_port_receives_by_that_port() {
    with_hosts(|a, b| {
        let cq = a.cq(16).unwrap();
        let sender = a.pd().qp(QpType::XrcSend).cq(&cq).port(2).max_inline(64).build().unwrap();
        let domain = Xrcd::private(b).unwrap().at_port(2);
        let (pd, received) = (b.pd(), b.cq(16).unwrap());
        let srq = pd.xrc_srq(&domain, &received, 16, 1).unwrap();
        let memory = pd.alloc(64, Access::LOCAL_WRITE).unwrap();
        srq.post_recv(1, &[memory.slice(..)]).unwrap();
        let target = domain.create().unwrap();
        target.accept(sender.endpoint(0).unwrap(), 0, Access::empty()).unwrap();
        assert_eq!(target.attr().unwrap().port_num, 2);
        sender.connect(target.endpoint(0).unwrap(), 0, Access::empty()).unwrap();
        // With the first ports down, no other route exists.
        [a, b].into_iter().for_each(|context| disable(context, 1));
        let number = srq.number().unwrap();
        sender.post_send(&SendWr::send(2).srq(number).inline(&[b"hello"]).signaled()).unwrap();
        assert_eq!(cq.wait_one(None).unwrap().status, WcStatus::Success);
        assert_eq!(received.wait_one(None).unwrap().byte_len, 5);
    });
}
