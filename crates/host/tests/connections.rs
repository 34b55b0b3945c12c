//! Connections between hosts through their services: the connection manager end to end, with real
//! datagrams on UDP port 4791. Its details are tested in its own crate.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Host, SECOND, next_cm_event};
use rdmux_cm::{
    ConnParam, Event, EventKind, EventParam, GroupWish, IdHandle, JoinFlags, PortSpace,
};
use rdmux_host::{EventChannel, HostClient};
use rdmux_transport::attr::QpType;
use rdmux_wire::Qpn;

/// A process on a host, with a channel.
struct Process {
    client: Arc<HostClient>,
    channel: EventChannel,
}

impl Process {
    fn on(host: &Host) -> Self {
        let client = host.client();
        let channel = EventChannel::open(&client).unwrap();
        Self { client, channel }
    }

    fn id(&self, space: PortSpace, context: u64) -> IdHandle {
        self.id_of(space, asking(space), context)
    }

    fn id_of(&self, space: PortSpace, qp_type: QpType, context: u64) -> IdHandle {
        self.client.create_id(&self.channel, space, qp_type, context).unwrap()
    }

    fn expect(&self, kind: EventKind) -> Event {
        let event = next_cm_event(&self.channel);
        assert_eq!(event.kind, kind, "{event:?}");
        event
    }

    /// Listens on an ephemeral port. Returns the id and the port.
    fn listen(&self, host: &Host, space: PortSpace) -> (IdHandle, u16) {
        let answering = if space == PortSpace::Ib { QpType::XrcRecv } else { asking(space) };
        let id = self.id_of(space, answering, 1);
        let bound = self.client.bind_addr(id, host.at(0)).unwrap();
        assert_eq!(self.client.listen(id, 8).unwrap(), bound);
        (id, bound.port())
    }

    /// Returns an id whose address and route are resolved.
    fn resolved(&self, host: &Host, port: u16, space: PortSpace) -> IdHandle {
        let id = self.id(space, 2);
        self.client.resolve_addr(id, None, host.at(port), SECOND).unwrap();
        self.expect(EventKind::AddrResolved);
        self.client.resolve_route(id, SECOND).unwrap();
        self.expect(EventKind::RouteResolved);
        id
    }
}

/// Returns the queue pair type that these tests use in a port space.
fn asking(space: PortSpace) -> QpType {
    match space {
        PortSpace::Tcp => QpType::Rc,
        PortSpace::Udp | PortSpace::IpoIb => QpType::Ud,
        PortSpace::Ib => QpType::XrcSend,
    }
}

fn param(qpn: u32, data: &[u8]) -> ConnParam {
    ConnParam { qp_num: Qpn::new(qpn), private_data: data.to_vec(), ..ConnParam::default() }
}

/// Connects two processes. Returns their ids, the passive one first.
fn connect(a: (&Host, &Process), b: &Process) -> (IdHandle, IdHandle) {
    connect_as(a, b, 0x1234)
}

/// Connects `qpn` to the next number. A peer refuses numbers that it still has a connection to.
fn connect_as(a: (&Host, &Process), b: &Process, qpn: u32) -> (IdHandle, IdHandle) {
    let (listener, port) = a.1.listen(a.0, PortSpace::Tcp);
    let id = b.resolved(a.0, port, PortSpace::Tcp);
    b.client.connect_id(id, &param(qpn, b"hello")).unwrap();
    let request = a.1.expect(EventKind::ConnectRequest);
    assert_eq!(request.listen_id, Some(listener));
    assert_eq!(&request.param.private_data()[..5], b"hello");
    a.1.client.accept(request.id, &param(qpn + 1, b"welcome")).unwrap();
    let response = b.expect(EventKind::ConnectResponse);
    assert_eq!(&response.param.private_data()[..7], b"welcome");
    assert_eq!(response.negotiated.unwrap().dest_qpn, Qpn::new(qpn + 1));
    b.client.establish(id).unwrap();
    a.1.expect(EventKind::Established);
    (request.id, id)
}

#[test]
fn two_hosts_connect_and_disconnect() {
    let (here, there) = (Host::start(), Host::start());
    let (a, b) = (Process::on(&here), Process::on(&there));
    let (passive, active) = connect((&here, &a), &b);
    let info = b.client.query_id(active).unwrap();
    assert_eq!(info.local.unwrap().ip(), there.ip);
    assert_eq!(info.peer.unwrap().ip(), here.ip);
    assert_eq!(here.status().ids.len(), 2);
    b.client.disconnect(active).unwrap();
    a.expect(EventKind::Disconnected);
    a.client.disconnect(passive).unwrap();
    b.expect(EventKind::Disconnected);
    assert!(b.client.destroy_id(active).unwrap() >= 4);
    assert_eq!(here.counter("cm_established"), 1);
    assert!(here.counter("service_tx_mads") >= 2 && here.counter("service_rx_mads") >= 3);
    for host in [&here, &there] {
        let drops = host.status();
        let drops = drops.service_counters.iter().filter(|(n, _)| n.contains("_drop_"));
        assert_eq!(drops.map(|(_, v)| v).sum::<u64>(), 0);
    }
}

#[test]
fn two_processes_of_one_host_connect() {
    let host = Host::start();
    let (a, b) = (Process::on(&host), Process::on(&host));
    connect((&host, &a), &b);
}

#[test]
fn connect_without_listener_is_rejected_with_reason_8() {
    let (here, there) = (Host::start(), Host::start());
    let b = Process::on(&there);
    let id = b.resolved(&here, 7, PortSpace::Tcp);
    b.client.connect_id(id, &param(1, &[])).unwrap();
    assert_eq!(b.expect(EventKind::Rejected).status, 8);
}

#[test]
fn reject_carries_private_data_with_reason_28() {
    let (here, there) = (Host::start(), Host::start());
    let (a, b) = (Process::on(&here), Process::on(&there));
    let (_, port) = a.listen(&here, PortSpace::Tcp);
    let id = b.resolved(&here, port, PortSpace::Tcp);
    b.client.connect_id(id, &param(1, &[])).unwrap();
    let request = a.expect(EventKind::ConnectRequest);
    a.client.reject(request.id, 28, b"not today").unwrap();
    let rejected = b.expect(EventKind::Rejected);
    assert_eq!(rejected.status, 28);
    assert_eq!(&rejected.param.private_data()[..9], b"not today");
}

#[test]
fn a_host_that_is_not_up_is_an_error_at_once() {
    let mut gone = Host::start();
    let there = Host::start();
    gone.service.take().unwrap().stop().unwrap();
    let b = Process::on(&there);
    let id = b.id(PortSpace::Tcp, 0);
    b.client.resolve_addr(id, None, gone.at(5), 3600 * SECOND).unwrap();
    assert_eq!(b.expect(EventKind::AddrError).status, -libc::EHOSTUNREACH);
}

#[test]
fn a_virtual_host_does_not_reach_beyond_the_machine() {
    let there = Host::start();
    let b = Process::on(&there);
    let id = b.id(PortSpace::Tcp, 0);
    let outside: SocketAddr = "192.0.2.1:5".parse().unwrap();
    b.client.resolve_addr(id, None, outside, 3600 * SECOND).unwrap();
    assert_eq!(b.expect(EventKind::AddrError).status, -libc::ENETUNREACH);
}

#[test]
fn the_peer_of_a_process_that_goes_is_disconnected() {
    let (here, there) = (Host::start(), Host::start());
    let (a, b) = (Process::on(&here), Process::on(&there));
    connect((&here, &a), &b);
    drop(a);
    b.expect(EventKind::Disconnected);
    assert!(here.status().ids.is_empty());
}

/// A DREQ or DREP may be lost: the last program's DREQ is retransmitted before its service ends.
#[test]
fn on_demand_service_exits_only_after_dreq_is_answered() {
    let (here, first) = Host::start_on_demand(Duration::ZERO);
    // This sets the retransmission interval that the other side uses: 256 ms.
    let there = Host::start_with(|o| o.config.cm.response_timeout = 16);
    let (a, b) = (Process::on(&here), Process::on(&there));
    drop(first);
    let (_, active) = connect((&here, &a), &b);
    let before = there.counter("cm_duplicates");
    drop(a);
    b.expect(EventKind::Disconnected);
    // While this program does not answer, the DREQ is retransmitted.
    until("a second DREQ", || there.counter("cm_duplicates") > before);
    b.client.disconnect(active).unwrap();
    until("the end", || here.service.as_ref().unwrap().is_finished());
}

/// Polls until a condition holds that no event reports.
fn until(what: &str, there: impl Fn() -> bool) {
    let deadline = Instant::now() + 20 * SECOND;
    while !there() {
        assert!(Instant::now() < deadline, "gave up waiting for {what}");
        std::thread::yield_now();
    }
}

#[test]
fn closing_event_channel_disconnects_its_ids() {
    let (here, there) = (Host::start(), Host::start());
    let (a, b) = (Process::on(&here), Process::on(&there));
    connect((&here, &a), &b);
    let Process { client, channel } = a;
    drop(channel);
    b.expect(EventKind::Disconnected);
    // The process lives on, and can open another channel.
    let again = Process { channel: EventChannel::open(&client).unwrap(), client };
    connect_as((&here, &again), &b, 0x2468);
}

#[test]
fn sidr_resolves_qpn_and_address_of_udp_listener() {
    let (here, there) = (Host::start(), Host::start());
    let (a, b) = (Process::on(&here), Process::on(&there));
    let (_, port) = a.listen(&here, PortSpace::Udp);
    let id = b.resolved(&here, port, PortSpace::Udp);
    b.client.connect_id(id, &param(0x1234, b"who")).unwrap();
    let request = a.expect(EventKind::ConnectRequest);
    a.client.accept(request.id, &param(0x5678, b"me")).unwrap();
    let EventParam::Ud(ud) = b.expect(EventKind::Established).param else { panic!() };
    assert_eq!(ud.qp_num, Qpn::new(0x5678));
    assert_eq!(ud.av.dgid.ip(), here.ip);
}

/// The receiving end passes its queue pair number in a field of the message, and numbers of shared
/// receive queues in private data.
#[test]
fn the_two_ends_of_xrc_connect() {
    let (here, there) = (Host::start(), Host::start());
    let (a, b) = (Process::on(&here), Process::on(&there));
    let (_, port) = a.listen(&here, PortSpace::Ib);
    let sender = b.resolved(&here, port, PortSpace::Ib);
    b.client.connect_id(sender, &param(0x1234, &[])).unwrap();
    let request = a.expect(EventKind::ConnectRequest);
    let negotiated = request.negotiated.unwrap();
    assert_eq!((negotiated.qp_type, negotiated.dest_qpn), (QpType::XrcRecv, Qpn::new(0x1234)));
    let (target, srqs) = (0x80_4321, 77_u32.to_be_bytes());
    a.client.accept(request.id, &param(target, &srqs)).unwrap();
    let response = b.expect(EventKind::ConnectResponse);
    assert_eq!(response.param.private_data()[..4], srqs);
    let negotiated = response.negotiated.unwrap();
    assert_eq!((negotiated.qp_type, negotiated.dest_qpn), (QpType::XrcSend, Qpn::new(target)));
    b.client.establish(sender).unwrap();
    a.expect(EventKind::Established);
    b.client.disconnect(sender).unwrap();
    a.expect(EventKind::Disconnected);
}

#[test]
fn an_id_joins_a_group_at_the_network_and_leaves_it() {
    let host = Host::start();
    let a = Process::on(&host);
    let pid = std::process::id().to_be_bytes();
    let group = std::net::Ipv4Addr::new(239, 78, pid[2], pid[3]);
    let hex = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    let joined = || std::fs::read_to_string("/proc/net/igmp").unwrap().contains(&hex);
    let id = a.id(PortSpace::Udp, 0);
    let wish = GroupWish::address(group, JoinFlags::FullMember);
    a.client.bind_addr(id, host.at(0)).unwrap();
    a.client.join_multicast(id, wish, 99).unwrap();
    let event = a.expect(EventKind::MulticastJoin);
    assert_eq!(event.context, 99);
    let EventParam::Ud(ud) = event.param else { panic!() };
    assert_eq!((ud.qp_num, ud.av.dgid.ip()), (Qpn::MULTICAST, group.into()));
    assert!(joined());
    a.client.leave_multicast(id, 99).unwrap();
    assert!(!joined());
    // A process that ends leaves its groups, too.
    a.client.join_multicast(id, wish, 99).unwrap();
    a.expect(EventKind::MulticastJoin);
    assert!(joined());
    let watcher = host.client();
    drop(a);
    common::next_event(&watcher).unwrap();
    assert!(!joined());
}

#[test]
fn nonblocking_event_channel_returns_none_when_empty() {
    let host = Host::start();
    let a = Process::on(&host);
    a.channel.set_nonblocking(true).unwrap();
    assert_eq!(a.channel.get_event().unwrap(), None);
    let id = a.id(PortSpace::Tcp, 5);
    a.client.resolve_addr(id, None, host.at(1), SECOND).unwrap();
    assert_eq!(a.expect(EventKind::AddrResolved).context, 5);
    assert_eq!(a.channel.get_event().unwrap(), None);
}
