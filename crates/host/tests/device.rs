//! The resources that a device gets from its service: sockets, rings, groups, notifications,
//! counters.

mod common;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use common::{Host, next_cm_event, next_event};
use rdmux_cm::{EventKind, GroupWish, JoinFlags, PortSpace};
use rdmux_host::{EventChannel, HostClient};
use rdmux_transport::attr::QpType;
use rdmux_verbs::control::{Control, ControlError, ControlEvent, DeviceKind, RingPeer, SLOT_SHIFT};
use rdmux_verbs::counters::Counter;
use rdmux_wire::{Gid, Qpn};

fn inode(fd: impl AsFd) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_ino
}

/// Returns a datagram whose destination QPN is `qpn`.
fn packet(qpn: u32, tag: u8) -> Vec<u8> {
    let mut bytes = vec![tag; 32];
    bytes[4..8].copy_from_slice(&qpn.to_be_bytes());
    bytes
}

fn receive(socket: &OwnedFd) -> Vec<u8> {
    common::wait_readable(socket);
    let mut buf = [0; 2048];
    let (n, _) = rustix::net::recv(socket, &mut buf[..], rustix::net::RecvFlags::empty()).unwrap();
    buf[..n].to_vec()
}

#[test]
fn packets_reach_the_process_whose_slot_their_qpn_names() {
    let host = Host::start();
    let clients = [host.client(), host.client(), host.client()];
    let slots = clients.each_ref().map(|c| c.info().slot.slot);
    let sockets = clients.each_ref().map(|c| c.attach_address(0, c.info().slot.slot).unwrap());
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for (i, slot) in slots.iter().enumerate() {
        let tag = u8::try_from(i).unwrap();
        let bytes = packet(u32::from(*slot) << SLOT_SHIFT | 5, tag);
        sender.send_to(&bytes, host.at(4791)).unwrap();
        assert_eq!(receive(&sockets[i]), bytes);
    }
    // A further slot of the same process has a socket of its own.
    let more = clients[0].new_slot().unwrap();
    let socket = clients[0].attach_address(0, more.slot).unwrap();
    let bytes = packet(u32::from(more.slot) << SLOT_SHIFT, 9);
    sender.send_to(&bytes, host.at(4791)).unwrap();
    assert_eq!(receive(&socket), bytes);
}

#[test]
fn a_packet_without_owner_is_counted_and_a_stray_one_passed_on() {
    let host = Host::start();
    let (a, b) = (host.client(), host.client());
    let bytes = packet(u32::from(a.info().slot.slot) << SLOT_SHIFT, 1);
    // The slot's socket is not attached yet, so this datagram arrives at the service's.
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.send_to(&bytes, host.at(4791)).unwrap();
    match next_event(&a).unwrap() {
        ControlEvent::Stray { src, dst, bytes: got } => {
            let to = SocketAddr::from((host.ip, 4791));
            assert_eq!((src, dst, got), (sender.local_addr().unwrap(), to, bytes.clone()));
        }
        other => panic!("{other:?}"),
    }
    b.stray("192.0.2.1:4791".parse().unwrap(), host.ip, &bytes);
    assert!(matches!(next_event(&a).unwrap(), ControlEvent::Stray { .. }));
    b.stray("192.0.2.1:4791".parse().unwrap(), host.ip, &packet(0x7f_f000, 1));
    b.stray("192.0.2.1:4791".parse().unwrap(), host.ip, &[]);
    b.new_slot().unwrap();
    assert_eq!(host.counter("service_strays_passed_on"), 2);
    assert_eq!(host.counter("service_drop_no_qp"), 1);
    assert_eq!(host.counter("service_drop_malformed"), 1);
}

#[test]
fn stray_packet_reaches_no_device_of_another_kind_and_none_by_a_foreign_address() {
    let host = Host::start();
    let (a, b) = (host.client(), host.client());
    let [iwarp, ib] = [DeviceKind::Iwarp, DeviceKind::Ib].map(|kind| host.client_of(kind));
    let to = |client: &HostClient| packet(u32::from(client.info().slot.slot) << SLOT_SHIFT | 5, 1);
    let src = "192.0.2.1:4791".parse().unwrap();
    for (from, of) in [(&ib, &ib), (&ib, &a), (&iwarp, &a), (&iwarp, &iwarp), (&b, &ib)] {
        from.stray(src, host.ip, &to(of));
    }
    b.stray(src, "192.0.2.2".parse().unwrap(), &to(&a));
    // Each request is handled before the next one of its client.
    for client in [&ib, &iwarp, &b] {
        client.new_slot().unwrap();
    }
    assert_eq!(host.counter("service_strays_passed_on"), 0);
    assert_eq!(host.counter("service_drop_no_qp"), 1);
    assert_eq!(host.counter("service_drop_stray"), 5);
    // Nor is a packet from the network for a device on a fabric.
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for client in [&ib, &iwarp, &a] {
        sender.send_to(&to(client), host.at(4791)).unwrap();
    }
    let ControlEvent::Stray { src, .. } = next_event(&a).unwrap() else { panic!() };
    assert_eq!(src, sender.local_addr().unwrap());
    assert_eq!(host.counter("service_drop_no_qp"), 3);
    assert_eq!(host.counter("service_strays_passed_on"), 1);
}

#[test]
fn both_ends_get_the_same_rings_whichever_asks() {
    let host = Host::start();
    let (a, b) = (host.client(), host.client());
    let (of_a, of_b) = (a.info().slot.slot, b.info().slot.slot);
    let (peer, ours) = a.connect_ring(RingPeer::here(of_b)).unwrap().unwrap();
    assert_eq!(peer, of_b);
    let ControlEvent::Ring { peer, end } = next_event(&b).unwrap() else { panic!() };
    assert_eq!(peer, of_a);
    assert_eq!((inode(&end.tx), inode(&end.rx)), (inode(&ours.rx), inode(&ours.tx)));
    ours.bell.ring().unwrap();
    assert!(end.bell.clear().unwrap() && !ours.bell.clear().unwrap());
    // The other side requests rings to another slot of the first, and gets the same rings.
    let more = a.new_slot().unwrap();
    let (peer, again) = b.connect_ring(RingPeer::here(more.slot)).unwrap().unwrap();
    assert_eq!((peer, inode(&again.tx)), (of_a, inode(&end.tx)));
    ours.bell.ring().unwrap();
    assert!(again.bell.clear().unwrap());
    for nobody in [of_a, more.slot, 0, 2047] {
        assert!(a.connect_ring(RingPeer::here(nobody)).unwrap().is_none(), "{nobody}");
    }
    assert_eq!(host.status().rings, 1);
}

#[test]
fn peers_get_peer_gone_when_a_process_ends_and_its_slot_is_not_reused_soon() {
    let host = Host::start();
    let (a, b) = (host.client(), host.client());
    let gone = b.info().slot.slot;
    a.connect_ring(RingPeer::here(gone)).unwrap().unwrap();
    drop(b);
    match next_event(&a).unwrap() {
        ControlEvent::PeerGone { slot } => assert_eq!(slot, gone),
        other => panic!("{other:?}"),
    }
    assert!(a.connect_ring(RingPeer::here(gone)).unwrap().is_none());
    assert_ne!(host.client().info().slot.slot, gone);
    assert_eq!(host.status().rings, 0);
}

#[test]
fn counters_outlive_their_process_and_gauges_do_not() {
    let host = Host::start();
    let watcher = host.client();
    for n in [3, 4] {
        let client = host.client();
        let words = client.counters().words();
        words[Counter::TxPackets as usize].store(n, Ordering::Relaxed);
        words[Counter::QpsOpen as usize].store(5, Ordering::Relaxed);
        assert_eq!(host.counter("qps_open"), 5);
        drop(client);
        assert!(matches!(next_event(&watcher).unwrap(), ControlEvent::PeerGone { .. }));
    }
    assert_eq!(host.counter("tx_packets"), 7);
    assert_eq!(host.counter("qps_open"), 0);
}

/// Returns whether the kernel has joined a group (`/proc/net/igmp` has addresses in the machine's
/// byte order).
fn joined(group: Ipv4Addr) -> bool {
    let hex = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    std::fs::read_to_string("/proc/net/igmp").unwrap().contains(&hex)
}

#[test]
fn a_group_is_joined_for_the_first_member_and_left_after_the_last() {
    let host = Host::start();
    let pid = std::process::id().to_be_bytes();
    let group = Ipv4Addr::new(239, 77, pid[2], pid[3]);
    let mgid = Gid::from(group);
    let (a, b) = (host.client(), host.client());
    let qpn = |c: &rdmux_host::HostClient, n| Qpn::new(u32::from(c.info().slot.slot) << 12 | n);
    assert!(!joined(group));
    let hears = a.attach_multicast(1, qpn(&a, 1), mgid).unwrap().unwrap();
    assert!(a.attach_multicast(1, qpn(&a, 2), mgid).unwrap().is_none());
    let too = b.attach_multicast(1, qpn(&b, 1), mgid).unwrap().unwrap();
    assert!(joined(group));
    assert_eq!(host.status().groups[0].members, 3);

    // All attached processes receive a datagram to the group.
    let from = a.attach_address(0, a.info().slot.slot).unwrap();
    let to = std::net::SocketAddr::from((group, 4791));
    let bytes = packet(0xff_ffff, 7);
    rustix::net::sendto(&from, &bytes, rustix::net::SendFlags::empty(), &to).unwrap();
    assert_eq!((receive(&hears), receive(&too)), (bytes.clone(), bytes));

    a.detach_multicast(1, qpn(&a, 1), mgid).unwrap();
    assert!(a.detach_multicast(1, qpn(&a, 1), mgid).is_err());
    drop(b);
    assert!(matches!(next_event(&a).unwrap(), ControlEvent::PeerGone { .. }));
    // The group is left, although processes still hold the sockets.
    assert!(joined(group));
    a.detach_multicast(1, qpn(&a, 2), mgid).unwrap();
    assert!(!joined(group));
    assert!(host.status().groups.is_empty());
    drop((hears, too));
}

#[test]
fn process_joins_multicast_group_once_per_interface() {
    let host = Host::with_two_addresses();
    let mut addresses = host.options.addresses.clone().unwrap();
    addresses.sort();
    let pid = std::process::id().to_be_bytes();
    let group = Ipv4Addr::new(239, 79, pid[2], pid[3]);
    let client = host.client();
    let channel = EventChannel::open(&client).unwrap();
    let qpn = |n| Qpn::new(u32::from(client.info().slot.slot) << SLOT_SHIFT | n);
    let join = |at: usize| {
        let id = client.create_id(&channel, PortSpace::Udp, QpType::Ud, 0).unwrap();
        client.bind_addr(id, std::net::SocketAddr::from((addresses[at], 0))).unwrap();
        client.join_multicast(id, GroupWish::address(group, JoinFlags::FullMember), 1).unwrap();
        assert_eq!(next_cm_event(&channel).kind, EventKind::MulticastJoin);
    };
    // The second id has the lower address, which comes first.
    join(1);
    let hears = client.attach_multicast(1, qpn(1), group.into()).unwrap();
    join(0);
    let again = client.attach_multicast(1, qpn(2), group.into()).unwrap();
    assert!(hears.is_some() && again.is_none());
    // Both queue pairs share the socket.
    client.detach_multicast(1, qpn(1), group.into()).unwrap();
    assert!(client.attach_multicast(1, qpn(3), group.into()).unwrap().is_none());
}

#[test]
fn a_process_is_in_as_many_groups_as_the_device_says_and_no_more() {
    let host = Host::start_with(|options| options.config.limits.max_mcast_grp = Some(2));
    let pid = std::process::id().to_be_bytes();
    for kind in [DeviceKind::Roce, DeviceKind::Ib] {
        let (a, b) = (host.client_of(kind), host.client_of(kind));
        assert_eq!(a.info().limits.max_mcast_grp, 2);
        let qpn = |c: &HostClient, n| Qpn::new(u32::from(c.info().slot.slot) << 12 | n);
        let group = |n| match kind {
            DeviceKind::Ib => Gid([0xff, 0x12, 0x40, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, n]),
            _ => Gid::from(Ipv4Addr::new(239, 78 + n, pid[2], pid[3])),
        };
        let attach = |c: &HostClient, qp, n| c.attach_multicast(1, qpn(c, qp), group(n)).map(drop);
        attach(&a, 1, 0).unwrap();
        attach(&a, 1, 1).unwrap();
        let refused = |result: Result<(), ControlError>| {
            matches!(result, Err(ControlError::Refused { errno: libc::ENOMEM, .. }))
        };
        assert!(refused(attach(&a, 1, 2)));
        // Another of its queue pairs in the same group, and another process.
        attach(&a, 2, 0).unwrap();
        attach(&b, 1, 2).unwrap();
        for qp in [1, 2] {
            assert!(refused(attach(&a, 2, 2)));
            a.detach_multicast(1, qpn(&a, qp), group(0)).unwrap();
        }
        attach(&a, 2, 2).unwrap();
    }
}

#[test]
fn ids_of_a_process_have_as_many_groups_joined_as_the_device_says() {
    let host = Host::start_with(|options| options.config.limits.max_mcast_grp = Some(2));
    let pid = std::process::id().to_be_bytes();
    let (a, b) = (host.client(), host.client());
    let channels = [&a, &b].map(|client| EventChannel::open(client).unwrap());
    let id = |at: usize| {
        let client = [&a, &b][at];
        let id = client.create_id(&channels[at], PortSpace::Udp, QpType::Ud, 0).unwrap();
        client.bind_addr(id, host.at(0)).unwrap();
        id
    };
    let join = |at: usize, id, n: u8| {
        let group = Ipv4Addr::new(239, 80 + n, pid[2], pid[3]);
        let wish = GroupWish::address(group, JoinFlags::FullMember);
        [&a, &b][at].join_multicast(id, wish, n.into()).unwrap();
        let event = next_cm_event(&channels[at]);
        (event.kind, event.status)
    };
    let joined = (EventKind::MulticastJoin, 0);
    let refused = (EventKind::MulticastError, -libc::ENOMEM);
    let [first, second, other] = [0, 0, 1].map(id);
    assert_eq!([join(0, first, 0), join(0, second, 1)], [joined; 2]);
    assert_eq!(join(0, second, 2), refused);
    // A group that is joined already, and another process.
    assert_eq!([join(0, second, 0), join(1, other, 2)], [joined; 2]);
    a.destroy_id(second).unwrap();
    let third = id(0);
    assert_eq!(join(0, third, 3), joined);
}
