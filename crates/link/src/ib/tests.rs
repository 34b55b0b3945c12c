//! Wires between ports whose tables are written by hand.

use std::cell::{Cell, RefCell};
use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use rdmux_transport::attr::{AddressVector, QpAttr};
use rdmux_wire::icrc::Icrc;
use rdmux_wire::lrh::Lrh;
use rdmux_wire::{Bth, Gid, Grh, Guid, IbPacket, Lid, Mtu, Opcode, Packet, Pkey, Psn, Qpn};

use super::*;
use crate::guarded::Unmapped;
use crate::routes::{OwnPort, PKEYS, Peer, PeerId, RouteTable, RouteView, Way};
use crate::rows::{Counted, RowReader, Rows};
use crate::sys;
use crate::udp::{GroupOptions, UdpGroup, ZeroCopyPool};
use crate::wire::{
    Arrivals, Flushed, Frame, Gathering, IbRoute, LinkError, Payload, Piece, Trailer, TxFail, Wire,
};

use std::sync::Arc;

const PARTITION: Pkey = Pkey(0x8012);
const MGID: Gid = Gid([0xff, 0x12, 0x40, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
const MLID: Lid = Lid(0xc005);

/// A port with the LIDs 16 * n to 16 * n + 3.
struct Port {
    group: UdpGroup,
    table: RouteTable,
    routes: Arc<Routes>,
    wire: IbWire,
    tx: RefCell<Sender>,
    /// Packets that were sent before a flush.
    left: Cell<usize>,
    rx: Arrivals,
    n: u16,
}

fn lid(n: u16) -> Lid {
    Lid(16 * n)
}

fn gid(n: u16) -> Gid {
    Gid::new(0xfe80_0000_0000_0005, Guid(0x100 + u64::from(n)))
}

fn own(n: u16) -> OwnPort {
    let mut pkeys = [Pkey(0); PKEYS];
    (pkeys[0], pkeys[5]) = (Pkey::DEFAULT, PARTITION);
    OwnPort {
        active: true,
        lid: lid(n),
        lmc: 2,
        mtu: Mtu::M4096,
        gid_prefix: 0xfe80_0000_0000_0005,
        port_guid: gid(n).guid(),
        multicast: false,
        pkeys,
    }
}

fn way(n: u16) -> Way {
    let peer = PeerId::new(n).unwrap();
    let (mtu, rate, pkeys) = (Mtu::M4096, 3, 1 | 1 << 5);
    Way { peer, hops: 3, mtu, rate, sls: 0xff, pkeys, back: 0xf, answered: pkeys }
}

impl Port {
    fn new(net: u8, n: u16) -> Self {
        Self::of_fabric(0, net, n)
    }

    fn of_fabric(fabric: u64, net: u8, n: u16) -> Self {
        let options = GroupOptions { port: 0, ..GroupOptions::default() };
        let ip = [127, 77, net, n.to_le_bytes()[0]];
        let mut group = UdpGroup::open(ip.into(), &options).unwrap();
        let mut table = RouteTable::of_fabric(fabric).unwrap();
        table.set_own(&own(n)).unwrap();
        let routes = Arc::new(Routes::new(7));
        routes.set_view(Some(RouteView::map(table.fd()).unwrap()));
        routes.set_gids(&[gid(n), gid(n + 0x1000)]);
        let wire = IbWire::new(group.socket(0).unwrap(), 0, routes.clone()).unwrap();
        let (tx, left, rx) = (RefCell::default(), Cell::default(), Arrivals::default());
        Self { group, table, routes, wire, tx, left, rx, n }
    }

    /// Adds routes to another port's LIDs.
    fn reaches(&mut self, other: &Self) {
        let (addr, port_guid) = (other.group.local_addr(), gid(other.n).guid());
        let id = PeerId::new(other.n).unwrap();
        let peer = Peer { addr, port_guid, lid: lid(other.n), lmc: 2, multicast: false };
        self.table.set_peer(id, Some(&peer)).unwrap();
        self.set_way(other.n, &way(other.n));
    }

    fn set_way(&mut self, n: u16, way: &Way) {
        (0..4).for_each(|bits| self.table.set_way(Lid(lid(n).0 + bits), Some(way)).unwrap());
        self.table.publish();
    }

    fn send(&self, av: &AddressVector, packet: &Sent) -> Result<(), LinkError> {
        let payload = Payload::Bytes(&packet.payload);
        let frame = Frame { header: &packet.header, payload, pad: packet.pad(), ack: None };
        let tx = &mut *self.tx.borrow_mut();
        match self.wire.send(tx, av, &frame) {
            Err(LinkError::Full) => {
                let sent = self.wire.flush(tx).unwrap();
                assert_ne!(sent.packets, 0);
                self.left.set(self.left.get() + sent.packets);
                self.wire.send(tx, av, &frame)
            }
            other => other,
        }
    }

    /// Sends the gathered packets. Returns what was sent since the last time.
    fn flush(&self) -> Flushed {
        let mut flushed = self.wire.flush(&mut self.tx.borrow_mut()).unwrap();
        flushed.packets += self.left.take();
        flushed
    }

    /// Receives this many packets.
    fn expect(&mut self, packets: usize) -> Vec<(Vec<u8>, IbRoute)> {
        let (mut came, since) = (Vec::new(), Instant::now());
        while came.len() < packets {
            let n = self.wire.receive(&mut self.rx).unwrap();
            assert_eq!((n, self.rx.len()), (self.rx.iter().count(), n));
            let intact = self.wire.intact(&self.rx, |_| true);
            came.extend(intact.map(|a| (a.bytes.to_vec(), *a.ib.unwrap())));
            assert!(since.elapsed().as_secs() < 20, "{} of {packets}", came.len());
        }
        assert_eq!(came.len(), packets);
        came
    }

    fn dropped(&self) -> Vec<(&'static str, u64)> {
        self.routes.counters().filter(|(_, n)| *n != 0).collect()
    }
}

/// A packet to send, from its BTH on.
#[derive(Clone)]
struct Sent {
    header: Vec<u8>,
    payload: Vec<u8>,
}

impl Sent {
    fn new(psn: u32, len: usize) -> Self {
        Self::to(Qpn::new(0x234), psn, len, Pkey::DEFAULT)
    }

    fn to(qpn: Qpn, psn: u32, len: usize, pkey: Pkey) -> Self {
        let pad = (len.next_multiple_of(4) - len).to_le_bytes()[0];
        let bth = Bth { pkey, pad, ..Bth::new(Opcode::UC_SEND_ONLY, qpn, Psn::new(psn)) };
        let payload = (0..len).map(|i| (i * 3 + psn as usize).to_le_bytes()[0]).collect();
        Self { header: bth.to_bytes().to_vec(), payload }
    }

    fn pad(&self) -> u8 {
        (self.payload.len().next_multiple_of(4) - self.payload.len()).to_le_bytes()[0]
    }

    /// Returns the packet as it arrives.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = [&self.header[..], &self.payload].concat();
        bytes.resize(bytes.len() + usize::from(self.pad()), 0);
        bytes
    }
}

fn local(dlid: u16) -> AddressVector {
    AddressVector { dlid, sl: 3, src_path_bits: 6, ..AddressVector::default() }
}

fn global(dlid: u16, dgid: Gid) -> AddressVector {
    let (flow_label, hop_limit, traffic_class) = (0x12345, 7, 9);
    AddressVector {
        is_global: true,
        dgid,
        sgid_index: 1,
        flow_label,
        hop_limit,
        traffic_class,
        ..local(dlid)
    }
}

fn pair(net: u8) -> (Port, Port) {
    let (mut a, b) = (Port::new(net, 1), Port::new(net, 2));
    a.reaches(&b);
    (a, b)
}

#[test]
fn a_packet_without_a_grh_arrives_with_its_lids() {
    let (a, mut b) = pair(220);
    for (len, bits) in [(0, 0), (1, 1), (255, 2), (4096, 3)] {
        let sent = Sent::new(7, len);
        a.send(&local(0x20 + bits), &sent).unwrap();
        let flushed = a.flush();
        assert_eq!(flushed, Flushed { packets: 1, bytes: 8 + sent.bytes().len() + 4 });
        let (bytes, route) = b.expect(1).remove(0);
        assert_eq!(bytes, sent.bytes());
        let dlid_path_bits = bits.to_le_bytes()[0];
        // Of the path bits 6, the port uses the low two.
        let (slid, dlid) = (Lid(0x12), Lid(0x20 + bits));
        assert_eq!(route, IbRoute { port_num: 7, slid, dlid, sl: 3, dlid_path_bits, grh: None });
    }
    assert_eq!((a.dropped(), b.dropped()), (vec![], vec![]));
}

#[test]
fn packet_with_a_grh_arrives_with_its_gids() {
    let (a, mut b) = pair(221);
    let default = Gid::new(Gid::DEFAULT_PREFIX, gid(2).guid());
    for dgid in [gid(2), gid(0x1002), default] {
        let sent = Sent::new(7, 64);
        a.send(&global(0x20, dgid), &sent).unwrap();
        a.flush();
        let (bytes, route) = b.expect(1).remove(0);
        assert_eq!(bytes, sent.bytes());
        let grh = Grh::parse(&route.grh.unwrap()).unwrap();
        assert_eq!((grh.sgid, grh.dgid), (gid(0x1001), dgid));
        assert_eq!((grh.tclass, grh.flow_label, grh.hop_limit), (9, 0x12345, 7));
        assert_eq!((grh.pay_len, grh.next_hdr), (12 + 64 + 4, Grh::NEXT_BTH));
    }
}

#[test]
fn sender_alternating_between_wires_uses_the_routes_of_each() {
    let (a, mut b) = pair(236);
    let mut c = Port::new(236, 3);
    c.reaches(&b);
    for round in 0..3 {
        for port in [&a, &c] {
            let sent = Sent::new(round, 40);
            let frame = Frame {
                header: &sent.header,
                payload: Payload::Bytes(&sent.payload),
                pad: 0,
                ack: None,
            };
            let tx = &mut *a.tx.borrow_mut();
            port.wire.send(tx, &local(0x20), &frame).unwrap();
            assert_eq!((port.wire.packets(tx), c.wire.flush(tx).unwrap().packets), (1, 1));
            let (bytes, route) = b.expect(1).remove(0);
            assert_eq!((bytes, route.slid), (sent.bytes(), Lid(lid(port.n).0 + 2)));
        }
    }
}

/// 15 packets of the largest size, each with its own PSN from `psn` on.
fn long(a: &Port, psn: u32) -> Vec<Sent> {
    let sent: Vec<_> = (psn..psn + 15).map(|psn| Sent::new(psn, 4096)).collect();
    sent.iter().for_each(|sent| a.send(&local(0x20), sent).unwrap());
    sent
}

#[test]
fn zerocopy_packets_arrive_intact() {
    let (a, mut b) = pair(237);
    let Ok(pool) = ZeroCopyPool::new(2) else {
        eprintln!("the kernel takes no pages");
        return;
    };
    let pool = Arc::new(pool);
    for round in 0..20 {
        let sent = long(&a, 100 * round);
        let tx = &mut *a.tx.borrow_mut();
        let mut buf = pool.take(a.wire.zerocopy_dest(tx).unwrap()).unwrap();
        assert!(a.wire.supports_zerocopy(tx) && a.wire.bytes(tx) > 15 * 4096);
        let (taken, flushed) = a.wire.flush_zerocopy(tx, &mut buf);
        assert!(taken);
        assert_eq!(flushed.unwrap().packets, 15);
        let came = b.expect(15);
        assert!(came.iter().zip(&sent).all(|((bytes, _), sent)| *bytes == sent.bytes()));
        buf.recycle();
    }
    // One packet is not sent zero-copy.
    a.send(&local(0x20), &Sent::new(1, 4096)).unwrap();
    let tx = &mut *a.tx.borrow_mut();
    let mut buf = pool.take(a.wire.zerocopy_dest(tx).unwrap()).unwrap();
    assert!(!a.wire.flush_zerocopy(tx, &mut buf).0);
    assert_eq!(b.expect(1).len(), 1);
    assert_eq!((a.dropped(), b.dropped()), (vec![], vec![]));
}

#[test]
fn packets_refused_by_a_full_socket_are_kept_until_forgotten() {
    let (a, _b) = pair(238);
    // No thread receives. If the receiver's buffer is the smaller one, packets are lost there instead.
    let busy = (0..2_000).find_map(|round| {
        long(&a, round);
        a.wire.flush(&mut a.tx.borrow_mut()).err()
    });
    let Some(error) = busy else { return };
    assert!(matches!(error, TxFail::Busy { kept: 15, .. }), "{error}");
    let tx = &mut *a.tx.borrow_mut();
    a.wire.forget(tx);
    assert_eq!(a.wire.packets(tx), 0);
}

#[test]
fn own_lids_are_reached_without_a_route() {
    let mut a = Port::new(222, 1);
    for bits in 0..4 {
        a.send(&local(0x10 + bits), &Sent::new(1, 100)).unwrap();
        a.flush();
        let (_, route) = a.expect(1).remove(0);
        assert_eq!((route.slid, route.dlid_path_bits), (Lid(0x12), bits.to_le_bytes()[0]));
    }
    a.send(&local(0x14), &Sent::new(1, 100)).unwrap();
    assert_eq!(a.dropped(), [("tx_no_way", 1)]);
}

#[test]
fn every_member_of_a_group_gets_a_copy() {
    let (mut a, mut b) = pair(223);
    let mut c = Port::new(223, 3);
    a.reaches(&c);
    let narrow = Way { mtu: Mtu::M256, ..way(3) };
    a.table.set_group(MLID, &[way(2), narrow]).unwrap();
    a.table.publish();
    let av = AddressVector { is_global: false, ..global(MLID.0, MGID) };
    let sent = [40, 300].map(|len| Sent::to(Qpn::MULTICAST, 1, len, Pkey::DEFAULT));
    sent.iter().for_each(|sent| a.send(&av, sent).unwrap());
    assert_eq!(a.flush().packets, 5);
    for (port, packets) in [(&mut a, 2), (&mut b, 2), (&mut c, 1)] {
        for ((bytes, route), sent) in port.expect(packets).iter().zip(&sent) {
            assert_eq!((bytes, route.dlid, route.dlid_path_bits), (&sent.bytes(), MLID, 0));
            assert_eq!(Grh::parse(&route.grh.unwrap()).unwrap().dgid, MGID);
        }
    }
    assert_eq!(a.dropped(), [("tx_length", 1)]);
    a.send(&AddressVector { dlid: 0xc006, ..av }, &sent[0]).unwrap();
    assert_eq!(a.dropped(), [("tx_no_way", 1), ("tx_length", 1)]);
}

/// A socket whose received datagrams can be examined.
fn bare(net: u8) -> (UdpSocket, Peer) {
    let socket = UdpSocket::bind(SocketAddr::from(([127, 77, net, 9], 0))).unwrap();
    let addr = socket.local_addr().unwrap();
    let peer = Peer { addr, port_guid: Guid(9), lid: lid(9), lmc: 2, multicast: false };
    (socket, peer)
}

#[test]
fn packets_of_one_size_are_segmented_together_and_the_last_is_not_padded() {
    let mut a = Port::new(224, 1);
    let (socket, peer) = bare(224);
    a.table.set_peer(PeerId::new(9).unwrap(), Some(&peer)).unwrap();
    a.set_way(9, &way(9));
    for (psn, len) in [(0, 100), (1, 100), (2, 100), (3, 20)] {
        a.send(&local(0x90), &Sent::new(psn, len)).unwrap();
    }
    // To another process, and larger: each takes a call.
    a.send(&local(0x90), &Sent::to(Qpn::new(0x5234), 4, 100, Pkey::DEFAULT)).unwrap();
    a.send(&local(0x90), &Sent::to(Qpn::new(0x5235), 5, 400, Pkey::DEFAULT)).unwrap();
    let flushed = a.flush();
    assert_eq!(flushed.packets, 6);
    let mut datagram = [0; 2000];
    for (psn, filled) in [(0, 1), (1, 1), (2, 1), (3, 0), (4, 0), (5, 0)] {
        let len = socket.recv(&mut datagram).unwrap();
        let (encap, body) = Encap::parse(&datagram[..len]).unwrap();
        assert_eq!((encap.part, encap.parts), (0, 1));
        assert_eq!(len, Encap::LEN + body.len() + filled, "{psn}");
        let parts = rdmux_wire::ib_packet::Parts::split(body).unwrap();
        assert_eq!(parts.right_icrc(), parts.icrc);
        let packet = Packet::parse(parts.transport).unwrap();
        assert_eq!((packet.bth.psn.get(), packet.bth.dest_qpn.get()), (psn, encap.steer));
    }
    assert_eq!(a.dropped(), []);
}

#[test]
fn packets_are_split_at_the_path_mtu() {
    let (a, mut b) = pair(225);
    let to = b.group.local_addr();
    // Path limits last until routes change, and the first packet finds that they have.
    a.send(&local(0x20), &Sent::new(0, 0)).unwrap();
    a.flush();
    b.expect(1);
    a.routes.narrow(to, 512);
    let lens = [4096, 4096, 4096, 512, 480, 100, 4000, 0, 1500];
    let sent: Vec<_> = (0..).zip(lens).map(|(psn, len)| Sent::new(psn, len)).collect();
    sent.iter().for_each(|sent| a.send(&local(0x20), sent).unwrap());
    assert_eq!(a.flush().packets, sent.len());
    let came = b.expect(sent.len());
    for ((bytes, _), sent) in came.iter().zip(&sent) {
        assert_eq!(bytes, &sent.bytes());
    }
    assert_eq!((a.dropped(), b.dropped()), (vec![], vec![]));
}

#[test]
fn discovered_smaller_path_mtu_is_used_for_later_packets() {
    let (a, mut b) = pair(226);
    let to = b.group.local_addr();
    for (mtu, room) in [(9000, 8936), (1500, 1436), (1428, 1336), (600, 512)] {
        a.tx.borrow_mut().batch.pretended = Some(mtu - 48);
        for round in 0..2 {
            let sent: Vec<_> = (0..5).map(|psn| Sent::new(psn, 4096)).collect();
            sent.iter().for_each(|sent| a.send(&local(0x20), sent).unwrap());
            assert_eq!(a.flush().packets, 5, "{mtu}, {round}");
            let came = b.expect(5);
            assert!(came.iter().zip(&sent).all(|((bytes, _), sent)| *bytes == sent.bytes()));
        }
        let found = a.routes.room(to);
        assert_eq!(found.min(8936), room, "{mtu}");
    }
    assert!(a.wire.port().segments(to), "that the path is narrow is no reason to send singly");
    // Not even the smallest part fits there.
    a.tx.borrow_mut().batch.pretended = Some(100);
    a.send(&local(0x20), &Sent::new(1, 4096)).unwrap();
    assert_eq!((a.flush().packets, a.dropped()), (0, vec![("tx_refused", 1)]));
}

#[test]
fn datagrams_are_sent_singly_without_gso() {
    let (a, mut b) = pair(227);
    let to = b.group.local_addr();
    // The kernel segments no message of a socket that computes no checksums.
    let set = |value| sys::set_int(a.wire.port(), libc::SOL_SOCKET, libc::SO_NO_CHECK, value);
    let sent: Vec<_> = (0..5).map(|psn| Sent::new(psn, 1000)).collect();
    let mut exchange = || {
        sent.iter().for_each(|sent| a.send(&local(0x20), sent).unwrap());
        assert_eq!(a.flush().packets, 5);
        assert!(b.expect(5).iter().zip(&sent).all(|((bytes, _), sent)| *bytes == sent.bytes()));
    };
    set(1).unwrap();
    exchange();
    set(0).unwrap();
    let (ours, others) = (a.wire.port(), SocketAddr::from(([127, 77, 99, 1], 4791)));
    assert!(!ours.segments(to) && !ours.supports_zerocopy(to));
    assert!(ours.segments(others) && ours.supports_zerocopy(others));
    // What was refused is not tried for a while, but not forever.
    let refused = (0..10_000).take_while(|_| {
        exchange();
        !ours.segments(to)
    });
    assert!((1..9_999).contains(&refused.count()));
}

#[test]
fn unmapped_payload_is_an_error_and_sends_nothing() {
    let (a, mut b) = pair(228);
    let sent = Sent::new(1, 64);
    let pieces =
        [Piece::new(sent.payload.as_ptr(), 60), Piece::new(std::ptr::without_provenance(64), 4)];
    let payload = Payload::Pieces(&pieces);
    let frame = Frame { header: &sent.header, payload, pad: 0, ack: None };
    let error = a.wire.send(&mut a.tx.borrow_mut(), &local(0x20), &frame).unwrap_err();
    assert!(matches!(error, LinkError::Unmapped(Unmapped)), "{error}");
    a.send(&local(0x20), &sent).unwrap();
    assert_eq!(a.flush().packets, 1);
    assert_eq!(b.expect(1)[0].0, sent.bytes());
}

#[test]
fn packet_not_allowed_by_its_route_is_dropped_and_counted() {
    let (mut a, mut b) = pair(229);
    let big = Sent::new(1, 300);
    let other = Sent::to(Qpn::new(0x234), 1, 40, PARTITION);
    let limited = Sent::to(Qpn::new(0x234), 1, 40, Pkey(0x7fff));
    let nobodys = Sent::to(Qpn::new(0x234), 1, 40, Pkey(0));
    let uneven = Sent { header: Sent::new(1, 0).header, payload: vec![0; 40] };
    let mut counts = [0; IbDrop::ALL.len()];
    let mut lost = |a: &Port, why: IbDrop, av: &AddressVector, sent: &Sent| {
        a.send(av, sent).unwrap();
        counts[why as usize] += 1;
        let counted: Vec<_> = IbDrop::ALL.iter().map(|why| a.routes.dropped(*why)).collect();
        assert_eq!(counted, counts, "{why:?}");
        assert_eq!(a.flush(), Flushed::default());
    };
    let small = Sent::new(1, 256);
    lost(&a, IbDrop::TxNoWay, &local(0x30), &small);
    lost(&a, IbDrop::TxNoWay, &local(0), &small);
    lost(&a, IbDrop::TxNoWay, &local(0xffff), &small);
    lost(&a, IbDrop::TxSl, &AddressVector { sl: 8, ..local(0x20) }, &small);
    lost(&a, IbDrop::TxPkey, &local(0x20), &limited);
    lost(&a, IbDrop::TxPkey, &local(0x20), &nobodys);
    lost(&a, IbDrop::TxGid, &AddressVector { sgid_index: 2, ..global(0x20, gid(2)) }, &small);
    lost(
        &a,
        IbDrop::TxLength,
        &local(0x20),
        &Sent { payload: vec![0; 41], ..uneven.clone() }.odd(),
    );
    lost(&a, IbDrop::TxLength, &local(0x20), &Sent { header: vec![1; 4], ..uneven });
    lost(&a, IbDrop::TxLength, &local(0x20), &Sent::new(1, 4097));
    a.set_way(2, &Way { pkeys: 1, mtu: Mtu::M256, ..way(2) });
    lost(&a, IbDrop::TxPkey, &local(0x20), &other);
    lost(&a, IbDrop::TxLength, &local(0x20), &big);
    a.send(&local(0x20), &small).unwrap();
    a.flush();
    assert_eq!(b.expect(1).len(), 1, "and what passes arrives");
    // A route whose peer is gone.
    a.table.set_peer(PeerId::new(2).unwrap(), None).unwrap();
    a.table.publish();
    lost(&a, IbDrop::TxNoWay, &local(0x20), &small);
    for port in [OwnPort { active: false, ..own(1) }, OwnPort { lid: Lid::NONE, ..own(1) }] {
        a.table.set_own(&port).unwrap();
        a.table.publish();
        lost(&a, IbDrop::TxInactive, &local(0x20), &small);
    }
    a.table.set_own(&own(1)).unwrap();
    a.table.publish();
    a.routes.set_view(None);
    lost(&a, IbDrop::TxInactive, &local(0x20), &small);
}

impl Sent {
    /// Makes its header longer than any valid one.
    fn odd(mut self) -> Self {
        self.header.push(0);
        self
    }
}

#[test]
fn changed_route_applies_to_the_next_packet() {
    let (mut a, mut b) = pair(230);
    let mut c = Port::new(230, 3);
    a.reaches(&c);
    a.send(&local(0x20), &Sent::new(1, 40)).unwrap();
    a.flush();
    b.expect(1);
    // The port that had the LID 0x20 has moved.
    let mut moved = own(3);
    moved.lid = lid(2);
    c.table.set_own(&moved).unwrap();
    c.table.publish();
    a.set_way(2, &way(3));
    a.send(&local(0x20), &Sent::new(2, 40)).unwrap();
    a.flush();
    assert_eq!(c.expect(1)[0].0, Sent::new(2, 40).bytes());
    // Another fabric, with other tables.
    let mut table = RouteTable::create().unwrap();
    table.set_own(&own(5)).unwrap();
    a.routes.set_view(Some(RouteView::map(table.fd()).unwrap()));
    a.send(&local(0x50), &Sent::new(3, 40)).unwrap();
    a.flush();
    assert_eq!(a.expect(1)[0].1.slid, Lid(0x52));
}

/// Builds a packet from the LRH to the ICRC, as any program may send it.
fn forged(lrh: Lrh, grh: Option<Grh>, qpn: u32, pkey: Pkey, payload: &[u8]) -> Vec<u8> {
    let bth = Bth { pkey, ..Bth::new(Opcode::UC_SEND_ONLY, Qpn::new(qpn), Psn::new(1)) };
    let packet = IbPacket { lrh, grh, packet: Packet::new(bth, payload) };
    let mut bytes = vec![0; packet.wire_len()];
    let len = packet.emit(&mut bytes);
    bytes.truncate(len - 2);
    bytes
}

const LRH: Lrh = Lrh { sl: 1, dlid: Lid(0x10), slid: Lid(0x20), ..Lrh::DEFAULT };

/// Splits a packet into datagrams.
fn datagrams(packet: &[u8], parts: u8, number: u32) -> Vec<Vec<u8>> {
    let total = u16::try_from(packet.len()).unwrap();
    let encap = |part| Encap { part, parts, steer: 0x234, number, total };
    let datagram = |part| [&encap(part).to_bytes(), &packet[encap(part).place()]].concat();
    (0..parts).map(datagram).collect()
}

/// An untrusted sender of datagrams to a port.
struct Stranger {
    port: Port,
    socket: UdpSocket,
}

impl Stranger {
    fn new(net: u8) -> Self {
        let (port, (socket, _)) = (Port::new(net, 1), bare(net));
        Self { port, socket }
    }

    fn send(&self, datagram: &[u8]) {
        self.socket.send_to(datagram, self.port.group.local_addr()).unwrap();
    }

    /// Sends datagrams that must all be dropped, and one that must be received. Returns the counts of drops
    /// meanwhile.
    fn lost(&mut self, datagrams: &[Vec<u8>]) -> Vec<(&'static str, u64)> {
        let counts = |port: &Port| port.routes.counters().collect::<Vec<_>>();
        let before = counts(&self.port);
        datagrams.iter().for_each(|datagram| self.send(datagram));
        let good = forged(LRH, None, 0x234, Pkey::DEFAULT, b"good");
        self.send(&self::datagrams(&good, 1, 0)[0]);
        assert_eq!(self.port.expect(1)[0].0[12..], *b"good");
        let after = counts(&self.port).into_iter().zip(before);
        after.map(|((name, n), (_, before))| (name, n - before)).filter(|(_, n)| *n != 0).collect()
    }
}

#[test]
fn lost_duplicate_and_reordered_parts_are_handled() {
    let mut s = Stranger::new(231);
    let packets = [1, 2].map(|n| forged(LRH, None, 0x234, Pkey::DEFAULT, &[n; 1000]));
    let [a, b] = [datagrams(&packets[0], 3, 1), datagrams(&packets[1], 4, 2)];
    for datagram in [&a[1], &b[3], &b[0], &a[0], &b[0], &b[1], &a[2], &b[2]] {
        s.send(datagram);
    }
    let came = s.port.expect(2);
    assert_eq!([came[0].0[12], came[1].0[12]], [1, 2]);
    assert_eq!(s.port.dropped(), [("rx_part", 1)]);
    // One part of each of many packets is lost.
    let lost: Vec<_> =
        (0..20).flat_map(|number| datagrams(&packets[0], 3, 100 + number)[1..].to_vec()).collect();
    assert_eq!(s.lost(&lost), [("rx_given_up", 4)]);
}

#[test]
fn invalid_received_packets_are_dropped_and_counted_by_reason() {
    let mut s = Stranger::new(232);
    let whole = |packet: Vec<u8>| vec![datagrams(&packet, 1, 0).remove(0)];
    let plain = |lrh, qpn, pkey| whole(forged(lrh, None, qpn, pkey, b"bad!"));
    let good = plain(LRH, 0x234, Pkey::DEFAULT);
    let changed = |at: usize, with: u8| {
        let mut datagram = good[0].clone();
        datagram[at] ^= with;
        vec![datagram]
    };
    let grh = |dgid| {
        let sgid = gid(2);
        Grh { tclass: 0, flow_label: 0, pay_len: 0, next_hdr: 0x1b, hop_limit: 1, sgid, dgid }
    };
    let to_group = Lrh { dlid: MLID, ..LRH };
    let group = |lrh, grh| {
        let mut datagrams = whole(forged(lrh, grh, 0xff_ffff, Pkey::DEFAULT, b"bad!"));
        datagrams[0][5..8].fill(0xff);
        datagrams
    };
    let fine = group(to_group, Some(grh(MGID)));
    s.send(&fine[0]);
    assert_eq!(s.port.expect(1)[0].1.dlid, MLID);
    // A byte of the payload, the ICRC itself, the service level.
    let table = [
        ("rx_icrc", changed(16 + 8 + 12, 1)),
        ("rx_icrc", changed(good[0].len() - 1, 0x80)),
        ("rx_icrc", changed(16 + 1, 0x10)),
        ("rx_version", changed(0, 3)),
        ("rx_malformed", changed(1, 1)),
        ("rx_malformed", changed(7, 1)),
        ("rx_malformed", vec![good[0][..30].to_vec()]),
        ("rx_malformed", vec![b"x".to_vec()]),
        // The link version, the length, no BTH.
        ("rx_malformed", changed(16, 1)),
        ("rx_malformed", changed(16 + 5, 1)),
        ("rx_malformed", changed(16 + 1, 2)),
        ("rx_management", plain(Lrh { vl: 15, ..LRH }, 0x234, Pkey::DEFAULT)),
        ("rx_lid", plain(Lrh { dlid: Lid(0x14), ..LRH }, 0x234, Pkey::DEFAULT)),
        ("rx_lid", plain(Lrh { dlid: Lid::PERMISSIVE, ..LRH }, 0x234, Pkey::DEFAULT)),
        ("rx_lid", plain(Lrh { slid: Lid::NONE, ..LRH }, 0x234, Pkey::DEFAULT)),
        ("rx_lid", plain(to_group, 0x234, Pkey::DEFAULT)),
        ("rx_lid", group(LRH, Some(grh(MGID)))),
        ("rx_gid", group(to_group, None)),
        ("rx_gid", group(to_group, Some(grh(gid(1))))),
        ("rx_gid", whole(forged(LRH, Some(grh(gid(3))), 0x234, Pkey::DEFAULT, b"bad!"))),
        ("rx_pkey", plain(LRH, 0x234, Pkey(0x8013))),
        ("rx_pkey", plain(LRH, 0x234, Pkey(0x8000))),
    ];
    for (why, datagrams) in table {
        assert_eq!(s.lost(&datagrams), [(why, 1)], "{datagrams:x?}");
    }
    let mut to_qp0 = plain(LRH, 0, Pkey::DEFAULT);
    to_qp0[0][5..8].fill(0);
    assert_eq!(s.lost(&to_qp0), [("rx_management", 1)]);
    // A limited member of a partition. The port is a full member of it.
    s.send(&plain(LRH, 0x234, Pkey(0x0012))[0]);
    assert_eq!(s.port.expect(1).len(), 1);
}

#[test]
fn inactive_port_drops_received_packets() {
    let mut s = Stranger::new(233);
    let good = datagrams(&forged(LRH, None, 0x234, Pkey::DEFAULT, b"good"), 1, 0).remove(0);
    s.send(&good);
    s.port.expect(1);
    s.port.table.set_own(&OwnPort { active: false, ..own(1) }).unwrap();
    s.port.table.publish();
    s.send(&good);
    while s.port.dropped().is_empty() {
        assert_eq!(s.port.wire.receive(&mut s.port.rx).unwrap(), 0);
    }
    assert_eq!(s.port.dropped(), [("rx_inactive", 1)]);
    s.port.table.set_own(&own(1)).unwrap();
    s.port.table.publish();
    s.send(&good);
    s.port.expect(1);
}

#[test]
fn packet_received_by_the_wrong_process_is_passed_on() {
    // The second socket is a process's, or that for objects of no process.
    for second in [0x2234, 0x80_0001] {
        comes_to_the_second(second);
    }
}

fn comes_to_the_second(qpn: u32) {
    let mut s = Stranger::new(234);
    let wire = |port: &mut Port, slot| {
        let fd = port.group.socket(slot).unwrap();
        IbWire::new(fd, slot, port.routes.clone()).unwrap()
    };
    let (first, second) = (wire(&mut s.port, 1), wire(&mut s.port, 2).with_targets());
    s.port.group.steer_targets(2).unwrap();
    // Merged, and steered by the first of them.
    let (mut rx, mut came) = (Arrivals::default(), Vec::new());
    let to = |qpn: u32| {
        let mut datagram =
            datagrams(&forged(LRH, None, qpn, Pkey::DEFAULT, b"data"), 1, 0).remove(0);
        datagram[4..8].copy_from_slice(&qpn.to_be_bytes());
        datagram
    };
    let (mine, others) = (to(0x1234), to(qpn));
    let both = [mine.clone(), others].concat();
    let socket = crate::UdpPort::new(s.socket.try_clone().unwrap().into()).unwrap();
    let name = s.port.group.local_addr().into();
    let mut control = crate::udp::control::ControlBuf::new();
    let size = u16::try_from(mine.len()).unwrap();
    control.push(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
    socket.send_message(&name, &both, &control).unwrap();
    let since = Instant::now();
    while came.len() < 2 {
        for (slot, wire) in [(1, &first), (2, &second)] {
            wire.receive(&mut rx).unwrap();
            let packets = wire.intact(&rx, |_| true);
            came.extend(packets.map(|a| (slot, a.dest_qpn().unwrap())));
        }
        assert!(since.elapsed().as_secs() < 20, "{came:?}");
    }
    assert_eq!(came, [(1, 0x1234), (2, qpn)]);
    assert_eq!(s.port.dropped(), [("rx_stray", 1)]);
}

fn guarded(a: &Port, b: &Port, av: AddressVector, path_mtu: Mtu) -> RouteGuard {
    let mut guard = RouteGuard::new(a.routes.clone(), b.group.local_addr());
    guard.follow(&QpAttr { av, path_mtu, pkey_index: 5, ..QpAttr::default() });
    guard
}

fn lets(guard: &mut RouteGuard, pkey: Pkey, len: usize) -> bool {
    let sent = Sent::to(Qpn::new(0x234), 1, len, pkey);
    let (header, payload) = (&sent.header, Payload::Bytes(&sent.payload));
    guard.passes(pkey, &Frame { header, payload, pad: sent.pad(), ack: None })
}

#[test]
fn route_guard_passes_what_the_wire_would_send_and_counts_drops() {
    let (mut a, b) = pair(239);
    let mut guard = guarded(&a, &b, local(0x20), Mtu::M1024);
    assert_eq!(guard.pkey_index(), 5);
    assert!(guard.is_open(PARTITION) && lets(&mut guard, PARTITION, 64 << 10));
    let lost = |a: &mut Port, guard: &mut RouteGuard, why: IbDrop, pkey, to: Option<Way>| {
        (0..4).for_each(|bits| a.table.set_way(Lid(0x20 + bits), to.as_ref()).unwrap());
        a.table.publish();
        let before = a.routes.dropped(why);
        assert!(!guard.is_open(pkey) && !lets(guard, pkey, 300), "{why:?}");
        assert_eq!(a.routes.dropped(why), before + 1);
        a.set_way(2, &way(2));
        assert!(guard.is_open(PARTITION));
    };
    let way_2 = way(2);
    lost(&mut a, &mut guard, IbDrop::TxNoWay, PARTITION, None);
    let no_key = Way { pkeys: 1, ..way_2 };
    lost(&mut a, &mut guard, IbDrop::TxPkey, PARTITION, Some(no_key));
    lost(&mut a, &mut guard, IbDrop::TxPkey, Pkey(0x8013), Some(way_2));
    lost(&mut a, &mut guard, IbDrop::TxPkey, Pkey(0), Some(way_2));
    lost(&mut a, &mut guard, IbDrop::TxSl, PARTITION, Some(Way { sls: 0xf7, ..way_2 }));
    lost(&mut a, &mut guard, IbDrop::TxLength, PARTITION, Some(Way { mtu: Mtu::M256, ..way_2 }));
    // The LID belongs to another host now.
    let elsewhere = Way { peer: PeerId::new(7).unwrap(), ..way_2 };
    lost(&mut a, &mut guard, IbDrop::TxNoWay, PARTITION, Some(elsewhere));
    let (_socket, peer) = bare(239);
    a.table.set_peer(PeerId::new(7).unwrap(), Some(&peer)).unwrap();
    lost(&mut a, &mut guard, IbDrop::TxNoWay, PARTITION, Some(elsewhere));
    for port in [OwnPort { active: false, ..own(1) }, OwnPort { lid: Lid::NONE, ..own(1) }] {
        a.table.set_own(&port).unwrap();
        a.table.publish();
        assert!(!guard.is_open(PARTITION) && !lets(&mut guard, PARTITION, 1));
    }
    a.table.set_own(&own(1)).unwrap();
    a.table.publish();
    assert!(guard.is_open(PARTITION));
    a.routes.set_view(None);
    assert!(!guard.is_open(PARTITION) && !lets(&mut guard, PARTITION, 1));
}

#[test]
fn route_guard_counts_long_messages_as_mtu_sized_packets() {
    let (mut a, b) = pair(242);
    let rows = Rows::create().unwrap();
    let mut reader = RowReader::map(&rows).unwrap();
    let view = RouteView::map(a.table.fd()).unwrap();
    a.routes.set_view_with(Some(view), Some(Rows::map(&rows).unwrap()));
    let mut guard = guarded(&a, &b, local(0x20), Mtu::M1024);
    assert!(lets(&mut guard, PARTITION, 3001));
    guard.sent(Bth::LEN, 3001);
    guard.sent(Bth::LEN + 4, 0);
    let mut read = Vec::new();
    let mut look = || reader.read(|row| read.push((row.counted, row.packets, row.words)));
    look();
    // A switch does not pass the partition: the packet is lost after it left the port.
    a.set_way(2, &Way { pkeys: 1, ..way(2) });
    assert!(!lets(&mut guard, PARTITION, 300));
    look();
    let of = |payload: u16| move |(counted, ..): &&(Counted, u64, u64)| matches!(counted, Counted::Sent { dlid: Lid(0x20), sl: 3, pkey: 5, payload: p, .. } if *p == payload);
    let sum = |payload| {
        let rows = read.iter().filter(of(payload));
        rows.fold((0, 0), |(n, w), (_, packets, words)| (n + packets, w + words))
    };
    let words = (3 * (8 + 12 + 4) + 3004) / 4;
    assert_eq!(sum(0), (4, words + (8 + 12 + 4 + 4) / 4));
    assert_eq!(sum(300), (1, (8 + 12 + 300 + 4) / 4));
}

#[test]
fn route_guard_without_return_route_passes_packets_but_is_closed() {
    let (mut a, b) = pair(240);
    // Of the path bits 6, the port uses the low two.
    let mut guard = guarded(&a, &b, local(0x20), Mtu::M1024);
    let mut shut = |a: &mut Port, way: Way| {
        a.set_way(2, &way);
        let open = guard.is_open(PARTITION);
        assert!(lets(&mut guard, PARTITION, 64 << 10));
        !open
    };
    assert!(shut(&mut a, Way { back: 0, ..way(2) }));
    assert!(shut(&mut a, Way { back: 0b1011, ..way(2) }));
    assert!(!shut(&mut a, Way { back: 0b0100, ..way(2) }));
    assert!(shut(&mut a, Way { answered: 1, ..way(2) }));
    assert!(!shut(&mut a, Way { answered: 1 << 5, ..way(2) }));
    assert_eq!(a.dropped(), []);
}

#[test]
fn link_mtu_below_path_mtu_drops_longer_messages() {
    let (mut a, b) = pair(241);
    let mut guard = guarded(&a, &b, local(0x20), Mtu::M1024);
    a.set_way(2, &Way { mtu: Mtu::M512, ..way(2) });
    assert!(!guard.is_open(PARTITION), "a long message would not arrive");
    for (len, passes) in [(0, true), (512, true), (513, false), (1024, false), (9000, false)] {
        assert_eq!(lets(&mut guard, PARTITION, len), passes, "{len}");
    }
    assert_eq!(a.dropped(), [("tx_length", 3)]);
}

#[test]
fn multicast_packet_is_passed_on_to_a_process() {
    let (mut a, mut b) = pair(235);
    a.table.set_group(MLID, &[way(2)]).unwrap();
    a.table.publish();
    let member = IbWire::new(b.group.socket(3).unwrap(), 3, b.routes.clone()).unwrap();
    // Group packets do not go to the socket of XRC targets.
    b.group.steer_targets(3).unwrap();
    let sent = Sent::to(Qpn::MULTICAST, 1, 41, Pkey::DEFAULT);
    a.send(&global(MLID.0, MGID), &sent).unwrap();
    a.flush();
    let came = b.expect(1);
    let first = b.wire.intact(&b.rx, |_| true).next().unwrap();
    b.wire.pass_on(&mut b.tx.borrow_mut(), &first, 3).unwrap();
    let mut rx = Arrivals::default();
    let since = Instant::now();
    while member.receive(&mut rx).unwrap() == 0 {
        assert!(since.elapsed().as_secs() < 20);
    }
    let arrival = member.intact(&rx, |_| true).next().unwrap();
    assert_eq!((arrival.bytes, arrival.ib), (&came[0].0[..], Some(&came[0].1)));
    assert_eq!((arrival.bytes, arrival.dgid()), (&sent.bytes()[..], MGID));
    assert_eq!(b.dropped(), []);
    let crate::Arrival { src, dst, bytes, .. } = arrival;
    let none =
        crate::Arrival { src, dst, bytes, icrc: Trailer::None, tos: None, ttl: None, ib: None };
    member.pass_on(&mut Sender::new(), &none, 3).unwrap_err();
}

#[test]
fn local_packet_icrc_equals_the_example_of_ibta_9_6_2_3() {
    // IBTA 9.6.2.3, as the facts of `rdmux_wire::icrc` have it: a local packet.
    let route = [0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2];
    let header = [
        0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1, 0xb3, 0x00, 0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a,
        0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05, 0x00, 0x00, 0x00, 0x0e,
    ];
    let payload =
        [0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4];
    let frame = Frame { header: &header, payload: Payload::Bytes(&payload), pad: 2, ack: None };
    let contents = batch::Contents { route: &route, frame: &frame };
    let mut bytes = vec![0xff; contents.len()];
    contents.put(&mut bytes).unwrap();
    let (rest, icrc) = bytes.split_last_chunk::<{ Icrc::LEN }>().unwrap();
    assert_eq!((icrc, &rest[50..]), (&[0x96, 0x25, 0xb7, 0x5a], &[0, 0][..]));
}

mod counting;
mod multicast;
