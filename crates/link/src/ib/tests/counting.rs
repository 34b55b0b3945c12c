//! Counts for the ports on the path, and reports of wrong keys.

use std::sync::Mutex;

use super::*;
use crate::routes::{Route, RouteId};
use crate::rows::{Counted, RowReader, Rows};

/// A port whose rows are read.
struct Counting {
    port: Port,
    reader: RowReader,
    reports: Arc<Mutex<Vec<KeyViolation>>>,
}

impl Counting {
    fn new(port: Port) -> Self {
        let fd = Rows::create().unwrap();
        let view = RouteView::map(port.table.fd()).unwrap();
        port.routes.set_view_with(Some(view), Some(Rows::map(&fd).unwrap()));
        let reports = Arc::<Mutex<Vec<KeyViolation>>>::default();
        let to = reports.clone();
        port.routes.report_violations(move |violation| to.lock().unwrap().push(*violation));
        Self { port, reader: RowReader::map(&fd).unwrap(), reports }
    }

    fn set_route(&mut self, dlid: Lid, id: u64, way: Option<Way>) {
        self.port.table.set_route(dlid, Route { id: RouteId(id), way }).unwrap();
        self.port.table.publish();
    }

    /// Returns the counts since the last time.
    fn read(&mut self) -> Vec<(Counted, u64, u64)> {
        let mut all = Vec::new();
        self.reader.read(|row| all.push((row.counted, row.packets, row.words)));
        all.retain(|(_, packets, words)| *packets | *words != 0);
        all.sort_unstable();
        all
    }
}

fn sent(route: u64, dlid: u16, sl: u8, pkey: u8, payload: u16) -> Counted {
    Counted::Sent { route: RouteId(route), dlid: Lid(dlid), sl, pkey, payload }
}

#[test]
fn sent_packets_and_words_are_counted_per_route() {
    let (a, mut b) = pair(240);
    let mut a = Counting::new(a);
    a.set_route(Lid(0x20), 7, Some(way(2)));
    a.set_route(Lid(0x21), 8, Some(way(2)));
    for len in [0, 1, 4096] {
        a.port.send(&local(0x20), &Sent::new(1, len)).unwrap();
    }
    a.port.send(&AddressVector { sl: 5, ..local(0x21) }, &Sent::new(1, 4)).unwrap();
    a.port.send(&global(0x20, gid(2)), &Sent::to(Qpn::new(0x234), 1, 4, PARTITION)).unwrap();
    a.port.flush();
    b.expect(5);
    // LRH, BTH and ICRC are six words, a GRH ten.
    let expected = [
        (sent(7, 0x20, 3, 0, 0), 3, 3 * 6 + 1 + 1024),
        (sent(7, 0x20, 3, 5, 0), 1, 17),
        (sent(8, 0x21, 5, 0, 0), 1, 7),
    ];
    assert_eq!(a.read(), expected);
    assert_eq!(a.read(), []);
    // A packet to the own port does not leave it.
    a.port.send(&local(0x10), &Sent::new(1, 4)).unwrap();
    a.port.flush();
    assert_eq!((a.port.expect(1).len(), a.read()), (1, vec![]));
}

#[test]
fn packets_after_a_route_change_are_counted_for_the_new_route() {
    let (a, mut b) = pair(241);
    let mut a = Counting::new(a);
    for id in 1..=5000 {
        a.set_route(Lid(0x20), id, Some(way(2)));
        for _ in 0..id % 3 {
            a.port.send(&local(0x20), &Sent::new(1, 0)).unwrap();
        }
        a.port.flush();
        if id % 3 != 0 {
            b.expect(usize::try_from(id % 3).unwrap());
        }
        if id % 1000 == 0 {
            let read = a.read();
            let multiples = |id: u64| id / 3;
            let expected = 1000 - (multiples(id) - multiples(id - 1000));
            assert_eq!(read.len() as u64, expected);
            for (counted, packets, words) in read {
                let by = counted.route().unwrap().0;
                assert_eq!((packets, words), (by % 3, by % 3 * 6));
            }
        }
    }
}

#[test]
fn packets_dropped_on_the_route_are_counted_by_reason_and_reported() {
    let (a, _b) = pair(242);
    let mut a = Counting::new(a);
    a.set_route(Lid(0x20), 7, Some(Way { mtu: Mtu::M1024, sls: 8, pkeys: 1, ..way(2) }));
    a.set_route(Lid(0x30), 9, None);
    let key = |len| Sent::to(Qpn::new(0x234), 1, len, PARTITION);
    a.port.send(&local(0x20), &Sent::new(1, 1028)).unwrap();
    a.port.send(&AddressVector { sl: 4, ..local(0x20) }, &Sent::new(1, 0)).unwrap();
    a.port.send(&local(0x20), &key(4)).unwrap();
    a.port.send(&local(0x30), &Sent::new(1, 4)).unwrap();
    a.port.send(&local(0x77), &Sent::new(1, 8)).unwrap();
    // The port does not have this key, so the packet does not leave it.
    a.port.send(&local(0x20), &Sent::to(Qpn::new(1), 1, 4, Pkey(0x8123))).unwrap();
    a.port.flush();
    let expected = [
        (sent(0, 0x77, 3, 0, 8), 1, 8),
        (sent(7, 0x20, 3, 0, 1028), 1, 6 + 257),
        (sent(7, 0x20, 3, 5, 4), 1, 7),
        (sent(7, 0x20, 4, 0, 0), 1, 6),
        (sent(9, 0x30, 3, 0, 4), 1, 7),
    ];
    assert_eq!(a.read(), expected);
    let dropped = [("tx_no_way", 2), ("tx_pkey", 2), ("tx_sl", 1), ("tx_length", 1)];
    assert_eq!(a.port.dropped(), dropped);
    a.port.table.set_own(&OwnPort { active: false, ..own(1) }).unwrap();
    a.port.table.publish();
    a.port.send(&local(0x20), &Sent::new(1, 4)).unwrap();
    assert_eq!(a.read(), [(Counted::Dropped(IbDrop::TxInactive as u8), 1, 0)]);
    assert_eq!(IbDrop::from_number(IbDrop::TxInactive as u8), Some(IbDrop::TxInactive));
    assert_eq!(IbDrop::from_number(IbDrop::ALL.len().try_into().unwrap()), None);
    // The report names the switch that does not pass the partition.
    let reports = a.reports.lock().unwrap();
    let [report] = reports[..] else { panic!("{reports:?}") };
    assert_eq!((report.kind, report.key), (Violated::SwitchPkey, PARTITION.0.into()));
    let (slid, dlid) = (Lid(0x12), Lid(0x20));
    assert_eq!((report.slid, report.dlid, report.sl, report.gids), (slid, dlid, 3, None));
    assert_eq!((report.src_qpn, report.dst_qpn), (Qpn::QP0, Qpn::new(0x234)));
}

#[test]
fn multicast_packet_is_counted_once_regardless_of_members() {
    let (mut a, mut b) = pair(243);
    let mut c = Port::new(243, 3);
    a.reaches(&c);
    let mut a = Counting::new(a);
    let narrow = Way { mtu: Mtu::M256, ..way(3) };
    a.port.table.set_group_route(MLID, RouteId(4), &[way(2), narrow]).unwrap();
    a.port.table.publish();
    let av = AddressVector { is_global: false, ..global(MLID.0, MGID) };
    for len in [40, 300] {
        a.port.send(&av, &Sent::to(Qpn::MULTICAST, 1, len, Pkey::DEFAULT)).unwrap();
    }
    a.port.flush();
    b.expect(2);
    c.expect(1);
    let words = 2 * (6 + 10) + 10 + 75;
    assert_eq!(a.read(), [(sent(4, MLID.0, 3, 0, 0), 2, words)]);
    // A packet with unmapped payload does not leave.
    let (packet, gone) = (
        Sent::to(Qpn::MULTICAST, 1, 8, Pkey::DEFAULT),
        [Piece::new(std::ptr::without_provenance(64), 8)],
    );
    let frame =
        Frame { header: &packet.header, payload: Payload::Pieces(&gone), pad: 0, ack: None };
    let result = a.port.wire.send(&mut a.port.tx.borrow_mut(), &av, &frame);
    assert!(matches!(result, Err(LinkError::Unmapped(_))), "{result:?}");
    assert_eq!(a.read(), []);
    // The group has no members, and the packet leaves the port nevertheless.
    a.port.table.set_group_route(MLID, RouteId(5), &[]).unwrap();
    a.port.table.publish();
    a.port.send(&av, &Sent::to(Qpn::MULTICAST, 1, 0, Pkey::DEFAULT)).unwrap();
    a.port.flush();
    assert_eq!(a.read(), [(sent(5, MLID.0, 3, 0, 0), 1, 16)]);
}

#[test]
fn pkey_violations_of_received_packets_are_counted_and_reports_rate_limited() {
    let mut s = Stranger::new(244);
    s.port = Port::new(244, 2);
    let mut b = Counting::new(s.port);
    let send = |b: &Counting, packet: Vec<u8>| {
        let datagram = &datagrams(&packet, 1, 0)[0];
        s.socket.send_to(datagram, b.port.group.local_addr()).unwrap();
    };
    let lrh = Lrh { dlid: lid(2), ..LRH };
    let bad = forged(lrh, None, 0x234, Pkey(0x8013), b"bad!");
    for _ in 0..100 {
        send(&b, bad.clone());
    }
    let mut damaged = bad;
    damaged[25] ^= 1;
    send(&b, damaged);
    send(&b, forged(lrh, None, 0x234, Pkey::DEFAULT, b"good"));
    b.port.expect(1);
    let [pkey, icrc] = [IbDrop::RxPkey, IbDrop::RxIcrc].map(|why| Counted::Dropped(why as u8));
    assert_eq!(b.read(), [(pkey, 100, 0), (icrc, 1, 0)]);
    let reports = b.reports.lock().unwrap();
    assert!((1..100).contains(&reports.len()), "{}", reports.len());
    let KeyViolation { kind, slid, dlid, key, .. } = reports[0];
    assert_eq!((kind, slid, dlid, key), (Violated::Pkey, Lid(0x20), lid(2), 0x8013));
}
