//! Packets over UDP on loopback: steering, batches, checksums, holders of ports, multicast.
#![expect(clippy::cast_possible_truncation, reason = "patterns of bytes")]

use std::net::{IpAddr, SocketAddr};

use rdmux_link::udp::{GroupOptions, OpenError, PushError, holder_of};
use rdmux_link::wire::{Ends, Flushed, Frame, LinkError, Payload, Piece, Trailer, Wire};
use rdmux_link::{Destination, IcrcCheck, McastSocket, RxBatch, TxBatch, UdpGroup, UdpPort};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const ANY_PORT: GroupOptions =
    GroupOptions { port: 0, buffer: 4 << 20, header_info: true, scope_id: 0 };

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

/// A BTH to `qpn` with `psn`.
fn bth(qpn: u32, psn: u32) -> [u8; 12] {
    let mut b = [0; 12];
    b[0] = 0x64;
    b[2..4].copy_from_slice(&[0xff; 2]);
    b[4..8].copy_from_slice(&qpn.to_be_bytes());
    b[8..12].copy_from_slice(&psn.to_be_bytes());
    b
}

/// A received packet: destination QPN, PSN, bytes, check, position among merged ones.
type Arrived = (u32, u32, usize, IcrcCheck, u16);

/// Receives until `count` datagrams have arrived. Waits for the socket, not for a time.
fn receive(port: &UdpPort, count: usize) -> Vec<Arrived> {
    let mut batch = RxBatch::new(4);
    let mut all = Vec::new();
    while all.len() < count {
        let mut fds = [PollFd::new(port, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_ne!(poll(&mut fds, Some(&timeout)).unwrap(), 0, "only {} arrived", all.len());
        batch.recv(port).unwrap();
        for d in batch.arrivals() {
            let psn = u32::from_be_bytes(*d.bytes[8..].first_chunk().unwrap());
            let Trailer::Ip(id) = d.icrc else { panic!("{d:?}") };
            all.push((d.dest_qpn().unwrap(), psn, d.bytes.len(), d.check_icrc(), id));
        }
    }
    assert_eq!(batch.recv(port).unwrap(), 0, "more arrived than was sent");
    assert_eq!(batch.truncated(), 0);
    all
}

struct Pair {
    group: UdpGroup,
    sender: UdpPort,
    to: Destination,
    _senders: UdpGroup,
}

fn pair(receiver: &str, sender: &str) -> Pair {
    let group = UdpGroup::open(ip(receiver), &ANY_PORT).unwrap();
    let mut senders = UdpGroup::open(ip(sender), &ANY_PORT).unwrap();
    let sender = UdpPort::new(senders.socket(0).unwrap()).unwrap();
    let to = Destination::new(ip(receiver), group.local_addr().port());
    Pair { group, sender, to, _senders: senders }
}

impl Pair {
    fn port(&mut self, slot: u16) -> UdpPort {
        UdpPort::new(self.group.socket(slot).unwrap()).unwrap()
    }

    fn send(&self, batch: &mut TxBatch, qpn: u32, psn: u32, payload: &[u8]) {
        let pad = (payload.len().wrapping_neg() & 3) as u8;
        let header = bth(qpn, psn);
        let frame = Frame { header: &header, payload: Payload::Bytes(payload), pad, ack: None };
        batch.push(&self.sender, &self.to, &frame).unwrap();
    }
}

#[test]
fn packets_go_to_the_slot_of_their_qpn() {
    let mut p = pair("127.77.201.1", "127.77.201.2");
    // The request for the fourth creates all of them.
    let ports: Vec<_> = [3, 0, 1, 2].map(|slot| (slot, p.port(slot))).into_iter().collect();
    assert_eq!(p.group.sockets(), 4);
    let mut batch = TxBatch::new();
    let expect = |qpn: u32| if qpn & 1 << 23 != 0 { 0 } else { qpn >> 12 };
    let qpns = [1, 0x1000, 0x2001, 0x3fff, 0x0fff, 0xff_ffff, 0x80_2000];
    for round in 0..50 {
        for qpn in qpns {
            p.send(&mut batch, qpn, round, b"hello");
            batch.flush(&p.sender).unwrap();
        }
    }
    // Slot 9 has no process: the service gets it.
    p.send(&mut batch, 0x9000, 50, b"");
    batch.flush(&p.sender).unwrap();
    for (slot, port) in &ports {
        let mine: Vec<_> = qpns.into_iter().filter(|q| expect(*q) == u32::from(*slot)).collect();
        let extra = usize::from(*slot == 0);
        let got = receive(port, 50 * mine.len() + extra);
        for (qpn, psn, _, check, _) in got {
            assert!(mine.contains(&qpn) || (qpn == 0x9000 && psn == 50), "{qpn:#x} in {slot}");
            assert_eq!(check, IcrcCheck::Right);
        }
    }
}

#[test]
fn gso_batch_arrives_intact_at_its_slot() {
    let mut p = pair("127.77.201.3", "127.77.201.4");
    let (port, other) = (p.port(2), p.port(1));
    let mut batch = TxBatch::new();
    let payload: Vec<u8> = (0..4096u32).map(|i| (i * 7) as u8).collect();
    for psn in 0..15 {
        p.send(&mut batch, 0x2007, psn, &payload);
    }
    let frame =
        Frame { header: &bth(0x2007, 15), payload: Payload::Bytes(&payload), pad: 0, ack: None };
    assert_eq!(batch.push(&p.sender, &p.to, &frame), Err(PushError::Full));
    let sent = batch.flush(&p.sender).unwrap();
    assert_eq!(sent, Flushed { packets: 15, bytes: 15 * (12 + 4096 + 4) });
    assert!(p.sender.segments(p.to.addr));
    let got = receive(&port, 15);
    for (i, (qpn, psn, len, check, index)) in got.into_iter().enumerate() {
        assert_eq!((qpn, psn as usize, len), (0x2007, i, 12 + 4096 + 4));
        assert_eq!((check, usize::from(index)), (IcrcCheck::Right, i));
    }
    assert_eq!(RxBatch::new(1).recv(&other).unwrap(), 0);
}

#[test]
fn smaller_packet_closes_a_gso_batch_and_larger_one_is_refused() {
    let mut p = pair("127.77.201.5", "127.77.201.6");
    let port = p.port(0);
    let mut batch = TxBatch::new();
    p.send(&mut batch, 1, 0, &[1; 1024]);
    let larger =
        Frame { header: &bth(1, 9), payload: Payload::Bytes(&[2; 1028]), pad: 0, ack: None };
    assert_eq!(batch.push(&p.sender, &p.to, &larger), Err(PushError::Full));
    let elsewhere = Destination { tos: 8, ..p.to };
    assert!(!batch.room(&elsewhere, 100));
    p.send(&mut batch, 1, 1, &[3; 1024]);
    p.send(&mut batch, 1, 2, &[4; 5]);
    assert!(!batch.room(&p.to, 16), "closed by the smaller one");
    assert_eq!(batch.flush(&p.sender).unwrap().packets, 3);
    assert!(batch.is_empty());
    let lens: Vec<_> = receive(&port, 3).into_iter().map(|a| (a.1, a.2, a.3)).collect();
    let right = IcrcCheck::Right;
    assert_eq!(lens, [(0, 1040, right), (1, 1040, right), (2, 12 + 8 + 4, right)]);
}

#[test]
fn payload_pieces_are_gathered_in_order() {
    static PARTS: [&[u8]; 5] = [&[1; 300], &[], &[2; 1], &[3; 211], &[4; 512]];
    let mut p = pair("127.77.201.7", "127.77.201.8");
    let port = p.port(0);
    let pieces = PARTS.map(|part| Piece::new(part.as_ptr(), part.len()));
    let mut batch = TxBatch::new();
    for psn in 0..3 {
        let header = bth(1, psn);
        let frame = Frame { header: &header, payload: Payload::Pieces(&pieces), pad: 0, ack: None };
        batch.push(&p.sender, &p.to, &frame).unwrap();
    }
    batch.flush(&p.sender).unwrap();
    let mut rx = RxBatch::new(2);
    while rx.recv(&port).unwrap() == 0 {
        std::thread::yield_now();
    }
    let mut count = 0;
    for d in rx.arrivals() {
        assert_eq!(d.check_icrc(), IcrcCheck::Right);
        assert_eq!(d.without_icrc()[12..], PARTS.concat());
        count += 1;
    }
    assert_eq!(count, 3);
}

#[test]
fn every_damaged_byte_is_an_icrc_error() {
    let mut p = pair("127.77.201.9", "127.77.201.10");
    let port = p.port(0);
    let raw = std::net::UdpSocket::from(p._senders.socket(0).unwrap());
    let mut batch = TxBatch::new();
    p.send(&mut batch, 1, 0, &[7; 64]);
    batch.flush(&p.sender).unwrap();
    let mut rx = RxBatch::new(1);
    while rx.recv(&port).unwrap() == 0 {
        std::thread::yield_now();
    }
    let good = rx.arrivals().next().unwrap().bytes.to_vec();
    // The congestion bits are not covered; all other bits are. One in 65,536 wrong packets passes.
    for at in (0..good.len()).filter(|at| *at != 4) {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        raw.send_to(&bad, p.to.addr).unwrap();
    }
    for short in 0..4 {
        raw.send_to(&good[..short], p.to.addr).unwrap();
    }
    let mut seen = 0;
    let wanted = good.len() - 1 + 3; // an empty datagram yields nothing
    while seen < wanted {
        rx.recv(&port).unwrap();
        for d in rx.arrivals() {
            assert_eq!(d.check_icrc(), IcrcCheck::Wrong, "{} bytes", d.bytes.len());
            seen += 1;
        }
    }
}

#[test]
fn arrival_reports_ip_header_fields_in_its_grh() {
    let mut p = pair("127.77.201.11", "127.77.201.12");
    let port = p.port(0);
    p.to.tos = 0x28;
    p.to.ttl = 3;
    let mut batch = TxBatch::new();
    p.send(&mut batch, 1, 0, &[7; 64]);
    batch.flush(&p.sender).unwrap();
    let mut rx = RxBatch::new(1);
    while rx.recv(&port).unwrap() == 0 {
        std::thread::yield_now();
    }
    let d = rx.arrivals().next().unwrap();
    assert_eq!((d.tos, d.ttl), (Some(0x28), Some(3)));
    assert_eq!((d.src, d.dst), (p.sender.local_addr(), p.to.addr));
    let grh = d.grh();
    assert_eq!(grh[..20], [0; 20]);
    let (src, dst) = ([127, 77, 201, 12], [127, 77, 201, 11]);
    assert_eq!((grh[20], grh[21], grh[28], grh[29]), (0x45, 0x28, 3, 17));
    assert_eq!((&grh[32..36], &grh[36..40]), (&src[..], &dst[..]));
    let sum: u32 = grh[20..].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
}

#[test]
fn ipv6_packets_arrive_with_right_icrc_and_grh() {
    let mut group = match UdpGroup::open(ip("::1"), &ANY_PORT) {
        Ok(group) => group,
        Err(e) => return println!("SKIPPED: no IPv6 loopback here ({e})"),
    };
    let port = UdpPort::new(group.socket(1).unwrap()).unwrap();
    let to =
        Destination { tos: 0x28, ttl: 9, ..Destination::new(ip("::1"), port.local_addr().port()) };
    let mut batch = TxBatch::new();
    for psn in 0..40 {
        let header = bth(0x1001, psn);
        let payload = Payload::Bytes(&[9; 1024]);
        let frame = Frame { header: &header, payload, pad: 0, ack: None };
        while let Err(error) = port.send(&mut batch, &to, &frame) {
            assert!(matches!(error, LinkError::Full), "{error}");
            port.flush(&mut batch).unwrap();
        }
    }
    port.flush(&mut batch).unwrap();
    let ends = Ends { src: port.local_addr(), dst: to.addr, tos: 0x28, ttl: 9 };
    assert_eq!(port.ends(&to), Some(ends));
    let mut rx = RxBatch::new(2);
    let mut count = 0;
    while count < 40 {
        rx.recv(&port).unwrap();
        for d in rx.arrivals() {
            assert_eq!(d.check_icrc(), IcrcCheck::Right);
            assert_eq!((d.tos, d.ttl, d.ends()), (Some(0x28), Some(9), ends));
            let grh = d.grh();
            let source = d.source(&grh);
            assert_eq!((source.sgid, source.sl, source.has_grh), (ip("::1").into(), 9, true));
            assert_eq!(grh[..8], [0x62, 0x80, 0, 0, 4, 24, 17, 9]);
            assert_eq!(grh[8..24], grh[24..40]);
            count += 1;
        }
    }
}

#[test]
fn recycled_socket_has_no_packets_left() {
    let mut p = pair("127.77.201.13", "127.77.201.14");
    let (one, two) = (p.port(1), p.port(2));
    let mut batch = TxBatch::new();
    for psn in 0..10 {
        p.send(&mut batch, 0x1000, psn, b"for a process that is gone");
        batch.flush(&p.sender).unwrap();
    }
    p.send(&mut batch, 0x2000, 0, b"for one that lives");
    batch.flush(&p.sender).unwrap();
    drop(one);
    // The last packet that was sent: the others have arrived, too.
    assert_eq!(receive(&two, 1)[0].0, 0x2000);
    assert_eq!(p.group.recycle(1), 10);
    assert_eq!(p.group.recycle(7), 0);
    let one = p.port(1);
    assert_eq!(RxBatch::new(1).recv(&one).unwrap(), 0);
}

#[test]
fn bind_of_a_used_port_names_the_holding_process() {
    let first = UdpGroup::open(ip("127.77.201.15"), &ANY_PORT).unwrap();
    let port = first.local_addr().port();
    let again = UdpGroup::open(ip("127.77.201.15"), &GroupOptions { port, ..ANY_PORT });
    let Err(OpenError::InUse { holder: Some(holder), .. }) = &again else { panic!("{again:?}") };
    assert_eq!(holder.pid, Some(std::process::id()));
    let said = again.unwrap_err().to_string();
    assert!(said.contains("127.77.201.15") && said.contains("uid"), "{said}");
    assert_eq!(holder_of(ip("127.77.201.16"), port), None);
    // The same port of another host does not conflict.
    UdpGroup::open(ip("127.77.201.16"), &GroupOptions { port, ..ANY_PORT }).unwrap();
    drop(first);
    UdpGroup::open(ip("127.77.201.15"), &GroupOptions { port, ..ANY_PORT }).unwrap();
}

#[test]
fn bind_to_a_non_local_address_is_refused() {
    let e = UdpGroup::open(ip("192.0.2.1"), &ANY_PORT).unwrap_err();
    assert!(matches!(e, OpenError::NotLocal { .. }), "{e}");
    let e = McastSocket::join(ip("239.77.1.1"), ip("192.0.2.1"), &ANY_PORT).unwrap_err();
    assert!(matches!(e, OpenError::NotLocal { .. }), "{e}");
    let e = McastSocket::join(ip("10.0.0.1"), ip("127.0.0.1"), &ANY_PORT).unwrap_err();
    assert!(matches!(e, OpenError::Io { .. }), "{e}");
}

/// Returns whether `/proc/net/igmp` shows the group on the loopback interface.
fn igmp_shows(group: [u8; 4]) -> bool {
    let wanted = format!("{:08X}", u32::from_ne_bytes(group));
    let table = std::fs::read_to_string("/proc/net/igmp").unwrap();
    let mut device = "";
    table.lines().any(|line| {
        let mut words = line.split_ascii_whitespace();
        if !line.starts_with('\t') {
            device = words.nth(1).unwrap_or_default();
            return false;
        }
        device == "lo" && words.next() == Some(&wanted)
    })
}

#[test]
fn multicast_reaches_every_member_host() {
    // A group that no other process on this machine uses now.
    let [.., high, low] = std::process::id().to_be_bytes();
    let group = [239, 76, high, low];
    let mut p = pair("127.77.201.17", "127.77.201.18");
    let first = McastSocket::join(IpAddr::from(group), ip("127.77.201.19"), &ANY_PORT).unwrap();
    let port = first.port().local_addr().port();
    let options = GroupOptions { port, ..ANY_PORT };
    let second = McastSocket::join(IpAddr::from(group), ip("127.77.201.20"), &options).unwrap();
    assert!(igmp_shows(group));
    p.to = Destination::new(IpAddr::from(group), port);
    let mut batch = TxBatch::new();
    for psn in 0..20 {
        p.send(&mut batch, 0xff_ffff, psn, &[5; 512]);
    }
    batch.flush(&p.sender).unwrap();
    for member in [&first, &second] {
        let got = receive(member.port(), 20);
        assert!(got.iter().all(|a| a.0 == 0xff_ffff && a.3 == IcrcCheck::Right), "{got:?}");
    }
    drop(second);
    assert!(igmp_shows(group), "the first is still a member");
    drop(first);
    assert!(!igmp_shows(group));
}

#[test]
fn ipv6_multicast_reaches_a_member() {
    let group = ip("ff05::77:201");
    let member = match McastSocket::join(group, ip("::1"), &ANY_PORT) {
        Ok(member) => member,
        Err(e) => return println!("SKIPPED: no IPv6 multicast on loopback here ({e})"),
    };
    let mut senders = UdpGroup::open(ip("::1"), &ANY_PORT).unwrap();
    let sender = UdpPort::new(senders.socket(0).unwrap()).unwrap();
    let to = Destination::new(group, member.port().local_addr().port());
    let mut batch = TxBatch::new();
    let header = bth(0xff_ffff, 1);
    let frame = Frame { header: &header, payload: Payload::None, pad: 0, ack: None };
    sender.send(&mut batch, &to, &frame).unwrap();
    if let Err(e) = sender.flush(&mut batch) {
        return println!("SKIPPED: loopback has no route for IPv6 multicast ({e})");
    }
    assert_eq!(receive(member.port(), 1)[0].3, IcrcCheck::Right);
}

#[test]
fn unreachable_destination_is_an_error_and_the_port_stays_usable() {
    let mut p = pair("127.77.201.21", "127.77.201.22");
    let port = p.port(0);
    let mut batch = TxBatch::new();
    let good = p.to;
    // A host socket on loopback has no route to a foreign address.
    p.to.addr = SocketAddr::new(ip("192.0.2.1"), 4791);
    for psn in 0..3 {
        p.send(&mut batch, 1, psn, &[1; 8]);
    }
    assert!(batch.flush(&p.sender).is_err());
    assert!(batch.is_empty());
    p.to = good;
    p.send(&mut batch, 1, 3, &[1; 8]);
    p.send(&mut batch, 1, 4, &[1; 8]);
    batch.flush(&p.sender).unwrap();
    assert_eq!(receive(&port, 2).len(), 2);
    let huge =
        Frame { header: &[0; 12], payload: Payload::Bytes(&vec![0; 65_500]), pad: 0, ack: None };
    assert_eq!(batch.push(&p.sender, &p.to, &huge), Err(PushError::TooLarge { len: 65_516 }));
}

/// The hop limit that is not passed with each packet is that of the socket.
#[test]
fn hop_limit_of_each_packet_arrives() {
    let mut group = UdpGroup::open(ip("127.0.0.1"), &ANY_PORT).unwrap();
    let a = UdpPort::new(group.socket(0).unwrap()).unwrap();
    let mut rx = RxBatch::new(4);
    let mut batch = TxBatch::new();
    for ttl in [64, 7, 255] {
        let to = Destination { addr: a.local_addr(), tos: 0, ttl };
        batch
            .push(&a, &to, &Frame { header: &bth(1, 0), payload: Payload::None, pad: 0, ack: None })
            .unwrap();
        batch.flush(&a).unwrap();
        while rx.recv(&a).unwrap() == 0 {}
        assert_eq!(rx.arrivals().next().unwrap().ttl, Some(ttl));
    }
}
