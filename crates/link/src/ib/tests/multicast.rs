//! Groups whose members receive them by IP multicast.

use std::os::fd::AsFd as _;

use super::super::multicast::{destination, probe, put};
use super::*;

/// A port whose host receives the group.
struct Member {
    port: Port,
    wire: IbWire,
    rx: Arrivals,
}

/// Packets that arrived by IP multicast, and those that arrived as copies.
type Heard = (Vec<Vec<u8>>, Vec<Vec<u8>>);

/// A fabric that no other test of this or another process has.
fn fabric(n: u8) -> u64 {
    u64::from(std::process::id()) << 8 | u64::from(n)
}

impl Member {
    fn new(fabric: u64, net: u8, n: u16) -> Self {
        Self::of_group(fabric, net, n, MGID)
    }

    fn of_group(fabric: u64, net: u8, n: u16, mgid: Gid) -> Self {
        let mut port = Port::of_fabric(fabric, net, n);
        port.table.set_own(&OwnPort { multicast: true, ..own(n) }).unwrap();
        port.table.publish();
        let socket = super::super::multicast::hear(mgid, port.group.local_addr().ip()).unwrap();
        let fd = socket.port().as_fd().try_clone_to_owned().unwrap();
        let wire = IbWire::of_group(fd, mgid, port.routes.clone()).unwrap();
        Self { port, wire, rx: Arrivals::default() }
    }

    /// Adds routes to these ports, whose hosts receive groups.
    fn reaches(&mut self, others: &[&Self]) {
        for other in others {
            self.port.reaches(&other.port);
            let addr = other.port.group.local_addr();
            let port_guid = gid(other.port.n).guid();
            let peer = Peer { addr, port_guid, lid: lid(other.port.n), lmc: 2, multicast: true };
            self.port.table.set_peer(PeerId::new(other.port.n).unwrap(), Some(&peer)).unwrap();
        }
    }

    fn set_group(&mut self, ways: &[Way]) {
        self.port.table.set_group(MLID, ways).unwrap();
        self.port.table.publish();
    }

    fn send(&self, sent: &Sent) {
        self.port.send(&global(MLID.0, MGID), sent).unwrap();
        self.port.flush();
    }

    /// Receives packets: those that arrived by IP multicast, and copies.
    fn came(&mut self) -> Heard {
        let all = |wire: &IbWire, rx: &mut Arrivals| {
            let mut came = Vec::new();
            while wire.receive(rx).unwrap() > 0 {
                came.extend(wire.intact(rx, |_| true).map(|arrival| arrival.bytes.to_vec()));
            }
            came
        };
        (all(&self.wire, &mut self.rx), all(&self.port.wire, &mut self.port.rx))
    }

    /// Receives until this many packets have arrived, and any that are queued beside them.
    ///
    /// The kernel mostly delivers on loopback during the send, but on a busy machine later.
    fn heard(&mut self, packets: usize) -> Heard {
        let (mut heard, since) = (Heard::default(), Instant::now());
        loop {
            let had = heard.0.len() + heard.1.len();
            let (multicast, copies) = self.came();
            heard.0.extend(multicast);
            heard.1.extend(copies);
            if had >= packets {
                return heard;
            }
            assert!(since.elapsed().as_secs() < 20, "{heard:?} of {packets}");
        }
    }

    /// Receives until a packet is dropped beyond those counted in `before`.
    fn expect_another_drop(&mut self, before: &[(&str, u64)]) {
        let since = Instant::now();
        while self.port.dropped() == before {
            assert_eq!(self.came(), Heard::default());
            assert!(since.elapsed().as_secs() < 20, "only {before:?}");
        }
    }
}

fn sent(len: usize) -> Sent {
    Sent::to(Qpn::MULTICAST, 1, len, Pkey::DEFAULT)
}

#[test]
fn multicast_datagram_reaches_all_listening_members_and_others_get_copies() {
    let fabric = fabric(0);
    let [mut a, mut b, mut c] = [1, 2, 3].map(|n| Member::new(fabric, 240, n));
    let mut copied = Port::of_fabric(fabric, 240, 4);
    a.reaches(&[&b, &c]);
    a.port.reaches(&copied);
    a.set_group(&[way(2), way(4), way(3)]);
    for len in [0, 40, 4096] {
        let sent = sent(len);
        a.send(&sent);
        for member in [&mut a, &mut b, &mut c] {
            assert_eq!(member.heard(1), (vec![sent.bytes()], vec![]), "{len}");
        }
        assert_eq!(copied.expect(1)[0].0, sent.bytes());
    }
    assert_eq!((a.port.dropped(), b.port.dropped()), (vec![], vec![]));
}

#[test]
fn multicast_delivery_follows_the_routes_and_not_the_listeners() {
    let fabric = fabric(1);
    let [mut a, mut b, mut c, mut d] = [1, 2, 3, 4].map(|n| Member::new(fabric, 241, n));
    a.reaches(&[&b, &c, &d]);
    // One has no route, and another has one that does not pass the packet.
    a.set_group(&[way(2), Way { mtu: Mtu::M256, ..way(3) }]);
    a.send(&sent(300));
    assert_eq!(b.heard(1).0.len(), 1);
    assert_eq!((c.came(), d.came()), (Default::default(), Default::default()));
    assert_eq!(a.port.dropped(), [("tx_length", 1)]);
    // Without a member the own host still receives it.
    a.heard(1);
    a.set_group(&[]);
    a.port.send(&global(MLID.0, MGID), &sent(3)).unwrap();
    assert_eq!((a.heard(1).0.len(), b.came().0.len()), (1, 0));
    assert_eq!(a.port.dropped(), [("tx_no_way", 1), ("tx_length", 1)]);
    // A port that is no longer active receives nothing.
    a.set_group(&[way(2)]);
    b.port.table.set_own(&OwnPort { active: false, multicast: true, ..own(2) }).unwrap();
    b.port.table.publish();
    a.send(&sent(5));
    b.expect_another_drop(&[]);
    assert_eq!(b.port.dropped(), [("rx_inactive", 1)]);
}

#[test]
fn ports_of_another_fabric_with_the_same_guids_receive_no_multicast() {
    let mut a = Member::new(fabric(2), 242, 1);
    let mut b = Member::new(fabric(3), 242, 2);
    a.reaches(&[&b]);
    a.set_group(&[way(2)]);
    a.send(&sent(9));
    assert_eq!((a.heard(1).0.len(), b.came()), (1, Default::default()));
    assert_eq!(b.port.dropped(), []);
}

#[test]
fn port_without_ip_multicast_sends_unicast_copies() {
    let fabric = fabric(4);
    let [mut a, mut b] = [1, 2].map(|n| Member::new(fabric, 243, n));
    a.reaches(&[&b]);
    a.port.table.set_own(&own(1)).unwrap();
    a.set_group(&[way(2)]);
    a.send(&sent(9));
    for member in [&mut a, &mut b] {
        assert_eq!(member.heard(1), (vec![], vec![sent(9).bytes()]));
    }
}

#[test]
fn multicast_socket_drops_packets_of_other_groups_and_unicast() {
    let fabric = fabric(5);
    // Every process that receives the group counts a datagram of no fabric: no other test receives this group.
    let mut mgid = MGID;
    mgid.0[11..15].copy_from_slice(&std::process::id().to_be_bytes());
    let mut b = Member::of_group(fabric, 244, 2, mgid);
    let socket = UdpSocket::bind("127.77.244.9:0").unwrap();
    let datagram = |dlid, qpn, dgid| {
        let frame = Sent::to(qpn, 1, 8, Pkey::DEFAULT);
        let (sgid, next_hdr) = (gid(1), Grh::NEXT_BTH);
        let grh = Grh { tclass: 0, flow_label: 0, pay_len: 0, next_hdr, hop_limit: 1, sgid, dgid };
        let lrh = Lrh { dlid, slid: lid(1), ..Lrh::DEFAULT };
        let rest = frame.bytes().len() + Icrc::LEN;
        let route = super::super::sender::RouteHeaders::new(lrh, Some(grh), rest).unwrap();
        let payload = Payload::Bytes(&frame.payload);
        let frame = Frame { header: &frame.header, payload, pad: 0, ack: None };
        let contents = batch::Contents { route: route.as_slice(), frame: &frame };
        let mut packet = vec![0; contents.len()];
        contents.put(&mut packet).unwrap();
        let mut datagram = Vec::new();
        put(fabric, std::iter::once(gid(2).guid()), &packet, &mut datagram);
        datagram
    };
    let mut other = mgid;
    other.0[15] ^= 1;
    for (bytes, heard, dropped) in [
        (datagram(MLID, Qpn::MULTICAST, mgid), 1, None),
        (datagram(MLID, Qpn::MULTICAST, other), 0, None),
        (datagram(lid(2), Qpn::new(0x234), gid(2)), 0, Some("rx_malformed")),
        (datagram(lid(2), Qpn::MULTICAST, mgid), 0, Some("rx_lid")),
        (vec![2; 7], 0, Some("rx_malformed")),
        (vec![1; 70], 0, Some("rx_version")),
    ] {
        let before = b.port.dropped();
        socket.send_to(&bytes, destination(mgid)).unwrap();
        match dropped {
            Some(_) => b.expect_another_drop(&before),
            None => assert_eq!(b.heard(heard).0.len(), heard),
        }
        let counts = |dropped: &[(&str, u64)]| dropped.iter().map(|(_, n)| n).sum::<u64>();
        let after = b.port.dropped();
        let counted = after.iter().find(|row| !before.contains(row)).map(|(name, _)| *name);
        assert_eq!(counted, dropped);
        assert_eq!(counts(&after) - counts(&before), u64::from(dropped.is_some()));
    }
}

#[test]
fn multicast_probe_succeeds_on_this_machine() {
    let port = Port::new(245, 1);
    probe(&port.wire).unwrap();
}
