//! Entries, epochs, reuse of rows, and reading while the table is written.

use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;
use crate::shared::{Mapping, Ordering};

fn pair() -> (RouteTable, RouteView) {
    let table = RouteTable::create().unwrap();
    let view = RouteView::map(table.fd()).unwrap();
    (table, view)
}

fn id(n: u16) -> PeerId {
    PeerId::new(n).unwrap()
}

/// A way whose fields are all derived from `n`.
fn way(n: u16) -> Way {
    let bits = u128::from(n) << 100 | u128::from(n);
    let (hops, rate) = (n.to_le_bytes()[0], n.to_le_bytes()[1]);
    let (peer, mtu, answered) = (id(1 + n % 4095), Mtu::M2048, bits << 7);
    Way { peer, hops, mtu, rate, sls: n, pkeys: bits, back: !bits, answered }
}

fn port(n: u16) -> OwnPort {
    OwnPort {
        active: true,
        lid: Lid(n),
        lmc: 3,
        mtu: Mtu::M4096,
        gid_prefix: n.into(),
        port_guid: Guid(n.into()),
        multicast: n.is_multiple_of(2),
        pkeys: [Pkey(n); PKEYS],
    }
}

fn group(view: &RouteView, mlid: u16) -> Vec<Way> {
    let mut ways = vec![way(7)];
    view.group(Lid(mlid), &mut ways);
    ways
}

#[test]
fn new_route_table_is_empty() {
    let (_table, view) = pair();
    assert_eq!((view.epoch(), view.own()), (1, OwnPort::default()));
    assert!(!view.own().active);
    assert_eq!((view.way(Lid(5)), view.peer(id(1)), group(&view, 0xc000)), (None, None, vec![]));
}

#[test]
fn route_table_entries_are_found_until_removed() {
    let (mut table, view) = pair();
    for n in [1, 0x1234, 0xbfff] {
        let mut own = port(n);
        own.pkeys[127] = Pkey(0x8001);
        table.set_own(&own).unwrap();
        assert_eq!(view.own(), own);
        table.set_way(Lid(n), Some(&way(n))).unwrap();
        assert_eq!(view.way(Lid(n)), Some(way(n)));
    }
    assert_eq!(view.way(Lid(2)), None);
    for (n, addr) in [(1, "10.1.2.3:4791"), (4095, "[fe80::1%7]:9"), (2, "[2001:db8::ffff]:65535")]
    {
        let (addr, port_guid) = (addr.parse().unwrap(), Guid(u64::MAX - u64::from(n)));
        let peer = Peer { addr, port_guid, lid: Lid(n << 3), lmc: 3, multicast: n == 2 };
        table.set_peer(id(n), Some(&peer)).unwrap();
        assert_eq!(view.peer(id(n)), Some(peer));
    }
    let ways: Vec<_> = (0..300).map(way).collect();
    for mlid in [0xc000, 0xfffe] {
        table.set_group(Lid(mlid), &ways).unwrap();
        assert_eq!(group(&view, mlid), ways);
        table.set_group(Lid(mlid), &ways[..2]).unwrap();
        assert_eq!(group(&view, mlid), ways[..2]);
        table.set_group(Lid(mlid), &[]).unwrap();
        assert_eq!(group(&view, mlid), []);
    }
    table.set_way(Lid(1), None).unwrap();
    table.set_peer(id(1), None).unwrap();
    assert_eq!((view.way(Lid(1)), view.peer(id(1))), (None, None));
    assert_eq!(view.way(Lid(0xbfff)), Some(way(0xbfff)));
}

#[test]
fn epoch_rises_only_when_a_change_is_published() {
    let (mut table, view) = pair();
    assert_eq!(table.publish(), 1);
    let addr = "10.1.2.3:4791".parse().unwrap();
    let peer = Peer { addr, port_guid: Guid(1), lid: Lid(3), lmc: 0, multicast: false };
    let mut epoch = 1;
    for again in [false, true] {
        table.set_own(&port(3)).unwrap();
        epoch += u64::from(!again);
        assert_eq!((table.publish(), view.epoch()), (epoch, epoch), "own, {again}");
        table.set_way(Lid(3), Some(&way(3))).unwrap();
        epoch += u64::from(!again);
        assert_eq!((table.publish(), view.epoch()), (epoch, epoch), "way, {again}");
        table.set_peer(id(3), Some(&peer)).unwrap();
        epoch += u64::from(!again);
        assert_eq!((table.publish(), view.epoch()), (epoch, epoch), "peer, {again}");
        table.set_group(Lid(0xc003), &[way(3), way(4)]).unwrap();
        epoch += u64::from(!again);
        assert_eq!((table.publish(), view.epoch()), (epoch, epoch), "group, {again}");
        table.set_way(Lid(9), None).unwrap();
        assert_eq!(table.publish(), epoch, "there was none, {again}");
    }
    // A shorter or longer list, or another order, is a change.
    for ways in [&[way(3)][..], &[way(3), way(4), way(5)], &[way(4), way(3), way(5)]] {
        table.set_group(Lid(0xc003), ways).unwrap();
        epoch += 1;
        assert_eq!(table.publish(), epoch);
    }
}

#[test]
fn route_entries_out_of_range_are_refused() {
    let (mut table, view) = pair();
    assert_eq!((PeerId::new(0), PeerId::new(4096)), (None, None));
    for lid in [0, 0xc000, 0xffff] {
        assert_eq!(table.set_way(Lid(lid), Some(&way(1))), Err(RouteError::OutOfRange));
        assert_eq!(view.way(Lid(lid)), None);
    }
    for mlid in [0, 1, 0xbfff, 0xffff] {
        assert_eq!(table.set_group(Lid(mlid), &[way(1)]), Err(RouteError::OutOfRange));
        assert_eq!(group(&view, mlid), []);
    }
    table.set_own(&port(8)).unwrap();
    assert_eq!(table.set_own(&OwnPort { lmc: 8, ..port(9) }), Err(RouteError::OutOfRange));
    assert_eq!(view.own(), port(8));
    let addr = "10.1.2.3:4791".parse().unwrap();
    let good = Peer { addr, port_guid: Guid(1), lid: Lid(1), lmc: 0, multicast: false };
    for addr in ["0.0.0.0:1", "[::]:1", "10.1.2.3:0"] {
        table.set_peer(id(1), Some(&good)).unwrap();
        let peer = Peer { addr: addr.parse().unwrap(), ..good };
        assert_eq!(table.set_peer(id(1), Some(&peer)), Err(RouteError::OutOfRange));
        assert_eq!(view.peer(id(1)), None, "not the one before");
    }
    table.set_group(Lid(0xc001), &[way(1)]).unwrap();
    let ways = vec![way(1); 4096];
    assert_eq!(table.set_group(Lid(0xc001), &ways), Err(RouteError::OutOfRange));
    assert_eq!(group(&view, 0xc001), [], "not the ways before");
}

#[test]
fn route_rows_are_reused_and_limited() {
    let (mut table, view) = pair();
    let ways: Vec<_> = (0..4095).map(way).collect();
    for round in 0..200 {
        table.set_group(Lid(0xc000 + round % 3), &ways[usize::from(round)..]).unwrap();
        table.set_way(Lid(1), Some(&way(round))).unwrap();
    }
    assert!(table.used < 5 * 4096, "{}", table.used);
    (0..60).for_each(|n| table.set_group(Lid(0xc100 + n), &ways).unwrap());
    let full = |table: &mut RouteTable| {
        let full = (0..20).find(|n| table.set_group(Lid(0xc200 + n), &ways).is_err()).unwrap();
        0xc200 + full
    };
    let mlid = full(&mut table);
    assert_eq!(table.set_group(Lid(mlid), &ways), Err(RouteError::Full));
    assert_eq!(group(&view, mlid), []);
    // The other entries are unchanged, and a replaced list makes room for its replacement.
    assert_eq!((group(&view, 0xc100), group(&view, mlid - 1)), (ways.clone(), ways.clone()));
    let last: Vec<_> = ways.iter().rev().copied().collect();
    table.set_group(Lid(0xc100), &last).unwrap();
    assert_eq!(group(&view, 0xc100), last);
    // A removed list makes room for others.
    table.set_group(Lid(0xc101), &[]).unwrap();
    table.set_group(Lid(mlid), &ways).unwrap();
    assert_eq!(group(&view, mlid), ways);
}

#[test]
fn nothing_is_read_torn_while_it_is_written() {
    let (mut table, view) = pair();
    let stop = AtomicBool::new(false);
    let ways = |n: u16| [way(n), way(n), way(n)];
    let peer = |n: u16| Peer {
        addr: (Ipv4Addr::LOCALHOST, n).into(),
        port_guid: Guid(n.into()),
        lid: Lid(n),
        lmc: 0,
        multicast: n.is_multiple_of(2),
    };
    table.set_own(&port(1)).unwrap();
    table.set_way(Lid(5), Some(&way(1))).unwrap();
    table.set_peer(id(1), Some(&peer(1))).unwrap();
    table.set_group(Lid(0xc000), &ways(1)).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..60_000 {
                let n = 1 + n % 1000;
                table.set_way(Lid(5), Some(&way(n))).unwrap();
                table.set_group(Lid(0xc000), &ways(n)).unwrap();
                table.set_peer(id(1), Some(&peer(n))).unwrap();
                table.set_own(&port(n)).unwrap();
                table.publish();
            }
            stop.store(true, Ordering::Release);
        });
        let mut found = Vec::new();
        while !stop.load(Ordering::Acquire) {
            let own = view.own();
            assert!(own == OwnPort::default() || own == port(own.lid.0), "{own:?}");
            if let Some(it) = view.way(Lid(5)) {
                assert_eq!(it, way(it.sls));
            }
            if let Some(it) = view.peer(id(1)) {
                assert_eq!(it, peer(it.addr.port()));
            }
            view.group(Lid(0xc000), &mut found);
            assert!(found.is_empty() || found == ways(found[0].sls), "{found:?}");
        }
    });
}

#[test]
fn entries_carry_a_route_id_even_without_a_route() {
    let (mut table, view) = pair();
    let mut ways = Vec::new();
    assert_eq!((view.route(Lid(5)), view.group(Lid(0xc005), &mut ways)), Default::default());
    let route = |id, way| Route { id: RouteId(id), way };
    table.set_route(Lid(5), route(3, Some(way(9)))).unwrap();
    assert_eq!((view.route(Lid(5)), view.way(Lid(5))), (route(3, Some(way(9))), Some(way(9))));
    table.set_route(Lid(5), route(4, None)).unwrap();
    assert_eq!((view.route(Lid(5)), view.way(Lid(5))), (route(4, None), None));
    assert_eq!((view.route_id(Lid(5)), view.route_id(Lid(6))), (RouteId(4), RouteId::NONE));
    let mlid = Lid(0xc005);
    table.set_group_route(mlid, RouteId(5), &[way(1), way(2)]).unwrap();
    assert_eq!((view.group(mlid, &mut ways), ways.len()), (RouteId(5), 2));
    table.set_group_route(mlid, RouteId(6), &[]).unwrap();
    assert_eq!((view.group(mlid, &mut ways), ways.len()), (RouteId(6), 0));
    assert_eq!(view.route_id(mlid), RouteId(6));
    table.set_group(mlid, &[]).unwrap();
    table.set_way(Lid(5), None).unwrap();
    assert_eq!((view.route_id(mlid), view.route_id(Lid(5))), (RouteId::NONE, RouteId::NONE));
}

#[test]
fn path_bits_are_derived_from_own_lid_and_lmc() {
    let own = OwnPort { lid: Lid(0x40), lmc: 2, ..OwnPort::default() };
    let bits: Vec<_> = (0x3f..0x45).map(|lid| own.path_bits(Lid(lid))).collect();
    assert_eq!(bits, [None, Some(0), Some(1), Some(2), Some(3), None]);
    assert_eq!(
        (own.lid_with(3), own.lid_with(5), own.lid_with(0x80)),
        (Lid(0x43), Lid(0x41), Lid(0x40))
    );
    assert_eq!(OwnPort::default().path_bits(Lid(0)), None, "no LID is nobody's");
    let last = OwnPort { lid: Lid(0xc000), lmc: 7, ..OwnPort::default() };
    assert_eq!(last.path_bits(Lid(0xc001)), None, "of a group");
}

#[test]
fn route_allows_the_sls_and_pkeys_of_its_bitmaps() {
    let last = 1 << 127;
    let way = Way { sls: 1 << 15, pkeys: last, back: last, answered: last | 1, ..way(0) };
    assert!(way.takes_sl(15) && !way.takes_sl(14) && !way.takes_sl(16) && !way.takes_sl(255));
    assert!(way.takes_pkey(127) && !way.takes_pkey(126) && !way.takes_pkey(128));
    assert!(way.comes_back(127, 127) && way.comes_back(127, 0));
    assert!(!way.comes_back(126, 127) && !way.comes_back(255, 127));
    assert!(!way.comes_back(127, 126) && !way.comes_back(127, 128));
}

#[test]
fn peer_is_found_by_each_of_its_lids_with_and_without_a_route() {
    let (mut table, view) = pair();
    let peer = |n: u16, lmc| Peer {
        addr: ([10, 0, 0, n.to_le_bytes()[0]], 1).into(),
        port_guid: Guid(n.into()),
        lid: Lid(16 * n),
        lmc,
        multicast: false,
    };
    for (n, lmc) in [(1, 0), (2, 2), (3, 3)] {
        table.set_peer(id(n), Some(&peer(n, lmc))).unwrap();
    }
    // One way leads to the right port, the other to another port.
    table.set_way(Lid(0x20), Some(&Way { peer: id(2), ..way(1) })).unwrap();
    table.set_way(Lid(0x30), Some(&Way { peer: id(1), ..way(1) })).unwrap();
    let found = |lid| view.peer_with(Lid(lid)).map(|peer| peer.port_guid.0);
    assert_eq!([0x10, 0x20, 0x23, 0x30, 0x37].map(found), [1, 2, 2, 3, 3].map(Some));
    assert_eq!([0, 0x11, 0x24, 0x38, 0xc000, 0xffff].map(found), [None; 6]);
    table.set_peer(id(4), Some(&Peer { lid: Lid::NONE, ..peer(4, 7) })).unwrap();
    assert_eq!(found(0), None);
    assert_eq!(table.set_peer(id(5), Some(&peer(5, 8))), Err(RouteError::OutOfRange));
}

#[test]
fn readers_cannot_write() {
    let (table, _view) = pair();
    let error = Mapping::map(table.fd(), 4096).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
}

#[test]
fn what_is_no_table_is_not_taken_for_one() {
    let other = Mapping::create_fd("other", at::END).unwrap();
    assert_eq!(RouteView::map(&other).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    let short = Mapping::create_fd("short", 4096).unwrap();
    assert!(RouteView::map(&short).is_err());
}

/// A table with a malicious writer.
fn hostile() -> (Mapping, RouteView) {
    let fd = Mapping::create_fd("hostile", at::END).unwrap();
    let map = Mapping::map(&fd, at::END).unwrap();
    map.word(0).store(MAGIC, Ordering::Relaxed);
    let view = RouteView::map(&fd).unwrap();
    (map, view)
}

#[test]
fn any_words_at_all_are_only_something_or_nothing() {
    let (map, view) = hostile();
    let mut x = 88_172_645_463_325_252_u64;
    let end = at::ROWS + 4096 * LINE;
    for (i, word) in map.words()[1..end / 8].iter().enumerate() {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        // Half of the entries point to existing rows.
        word.store(if i % 2 == 0 { x } else { x & 0xffff_0000_0000_0fff }, Ordering::Relaxed);
    }
    let mut ways = Vec::new();
    for lid in 0..=u16::MAX {
        let _ = view.way(Lid(lid));
        view.group(Lid(lid), &mut ways);
        assert!(ways.len() <= MAX_PEERS.into());
        if let Some(peer) = PeerId::new(lid).and_then(|id| view.peer(id)) {
            assert!(peer.addr.port() != 0 && !peer.addr.ip().is_unspecified());
        }
    }
    let own = view.own();
    assert!(own.lmc <= 7);
    assert!(own.path_bits(Lid(1)).is_none_or(|bits| bits < 128));
}

#[test]
fn cyclic_or_invalid_group_list_is_read_as_empty() {
    let (map, view) = hostile();
    map.word(at::MLIDS).store(1, Ordering::Relaxed);
    let words = Route { id: RouteId(7), way: Some(way(1)) }.to_words();
    for (i, word) in words.into_iter().enumerate() {
        map.word(at::ROWS + 8 * i).store(word, Ordering::Relaxed);
    }
    assert_eq!(group(&view, 0xc000), [way(1)]);
    map.word(at::ROWS + 8 * NEXT).store(1, Ordering::Relaxed);
    assert_eq!(group(&view, 0xc000), []);
    // Even one without a way.
    (0..NEXT).for_each(|i| map.word(at::ROWS + 8 * i).store(0, Ordering::Relaxed));
    assert_eq!(group(&view, 0xc000), []);
    // An invalid row number ends it, too.
    map.word(at::ROWS + 8 * NEXT).store(u64::from(ROWS) + 1, Ordering::Relaxed);
    assert_eq!(group(&view, 0xc000), []);
}
