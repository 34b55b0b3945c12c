//! Rows, hazards, and boards with arbitrary contents.

use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;

const QPN: u32 = 3 << 12 | 7;

fn pair() -> (Board, PeerBoard) {
    let own = Board::create().unwrap();
    own.add_slot(3);
    let peer = PeerBoard::map(own.fd()).unwrap();
    (own, peer)
}

fn region(key: u32) -> RegionRow {
    RegionRow { key, pd: 1, access: 7, addr: 0x10000, length: 4096, iova: 0x500 }
}

#[test]
fn board_rows_are_visible_until_hidden_and_match_key_generation() {
    let (own, peer) = pair();
    let qp = QpRow { qpn: QPN, dest_qpn: 9, pd: 2, access: 6, pkey: 0xffff };
    assert_eq!(peer.qp(QPN), None);
    own.show_qp(&qp);
    assert_eq!(peer.qp(QPN), Some(qp));
    assert!(own.hide_qp(QPN) && !own.hide_qp(QPN));
    assert_eq!(peer.qp(QPN), None);
    own.show_region(&region(0x105));
    assert_eq!(peer.region(0x105), Some(region(0x105)));
    // The same index with an older and a newer generation.
    assert_eq!((peer.region(0x104), peer.region(0x106)), (None, None));
    own.show_region(&region(0x106));
    assert_eq!((peer.region(0x105), peer.region(0x106)), (None, Some(region(0x106))));
    assert!(own.hide_region(0x106));
    assert_eq!(peer.region(0x106), None);
}

#[test]
fn board_row_out_of_range_is_not_found() {
    let (own, peer) = pair();
    for key in [u32::MAX, u32::try_from(REGIONS << 8).unwrap()] {
        own.show_region(&region(key));
        assert_eq!(peer.region(key), None);
        assert!(!own.hide_region(key));
    }
    for qpn in [u32::MAX, 4 << 12, 0, 1, 0x80_0000 | QPN] {
        own.show_qp(&QpRow { qpn, dest_qpn: 9, pd: 2, access: 6, pkey: 0xffff });
        assert_eq!(peer.qp(qpn), None);
    }
    // Slots beyond the limit evict none.
    (4..100).for_each(|slot| own.add_slot(slot));
    own.show_qp(&QpRow { qpn: QPN, dest_qpn: 9, pd: 2, access: 6, pkey: 0xffff });
    assert!(peer.qp(QPN).is_some());
    assert_eq!(own.qp_at(99 << 12), None);
}

#[test]
fn board_region_locates_only_ranges_within_its_bounds() {
    let row = region(1 << 8);
    assert_eq!(row.locate(0x500, 4096), Some(0x10000));
    assert_eq!(row.locate(0x501, 4095), Some(0x10001));
    assert_eq!(row.locate(0x1500, 0), Some(0x11000));
    for (va, len) in [(0x4ff, 1), (0x501, 4096), (0x1501, 0), (u64::MAX, 2), (0x500, u64::MAX)] {
        assert_eq!(row.locate(va, len), None, "{va:#x} {len}");
    }
    // Values that no honest owner publishes.
    let wild = RegionRow { addr: u64::MAX - 1, length: u64::MAX, iova: 0, ..row };
    assert_eq!(wild.locate(0, 2), None);
    assert_eq!(wild.locate(1, 0), Some(u64::MAX));
}

#[test]
fn board_row_is_not_read_torn_while_written() {
    let (own, peer) = pair();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..200_000_u64 {
                let n = n % 1000;
                own.show_region(&RegionRow { addr: n, length: n, iova: n, ..region(0x105) });
            }
            stop.store(true, Ordering::Release);
        });
        while !stop.load(Ordering::Acquire) {
            if let Some(row) = peer.region(0x105) {
                assert!(row.addr == row.length && row.addr == row.iova, "{row:?}");
            }
        }
    });
}

#[test]
fn nobody_copies_who_saw_a_row_that_is_gone() {
    let (own, theirs) = pair();
    let (copier, copiers) = (Board::create().unwrap(), AtomicBool::new(true));
    let hazards = PeerBoard::map(copier.fd()).unwrap();
    let in_use = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while copiers.load(Ordering::Acquire) {
                    let Some(_hazard) = copier.enter(3) else { continue };
                    if theirs.region(0x105).is_some() {
                        // The owner must not reuse the memory while the hazard is set.
                        assert_eq!(in_use.load(Ordering::SeqCst), 1);
                        assert_eq!(in_use.load(Ordering::SeqCst), 1);
                    }
                }
            });
        }
        for _ in 0..20_000 {
            in_use.store(1, Ordering::SeqCst);
            own.show_region(&region(0x105));
            own.hide_region(0x105);
            hazards.wait_for_copies(3, Duration::from_secs(60), || false).unwrap();
            in_use.store(0, Ordering::SeqCst);
        }
        copiers.store(false, Ordering::Release);
    });
}

#[test]
fn wait_for_copies_times_out_on_an_uncleared_hazard() {
    let (own, peer) = pair();
    let hazard = own.enter(5).unwrap();
    let timeout = Duration::ZERO;
    assert!(peer.is_copying(5) && !peer.is_copying(6));
    assert_eq!(peer.wait_for_copies(5, timeout, || false), Err(Stuck));
    assert_eq!(peer.wait_for_copies(5, Duration::MAX, || true), Ok(()), "the dead copy nothing");
    assert_eq!(peer.wait_for_copies(6, timeout, || false), Ok(()), "it is another's memory");
    drop(hazard);
    assert_eq!(peer.wait_for_copies(5, timeout, || false), Ok(()));
    assert!(!peer.is_copying(5));
}

#[test]
fn wait_for_copies_is_no_cancellation_point() {
    let (own, peer) = pair();
    let _hazard = own.enter(5).unwrap();
    let wait = || peer.wait_for_copies(5, Duration::ZERO, || false);
    assert_eq!(crate::cancel::while_pending(wait), Err(Stuck));
}

#[test]
fn board_hazards_are_limited() {
    let (own, peer) = pair();
    let hazards: Vec<_> = (0..HAZARDS).map(|_| own.enter(5).unwrap()).collect();
    assert!(own.enter(5).is_none());
    drop(hazards);
    assert!(own.enter(5).is_some());
    peer.wait_for_copies(5, Duration::ZERO, || false).unwrap();
}

#[test]
fn board_cannot_be_mapped_writable_by_others() {
    let own = Board::create().unwrap();
    let error = Mapping::map(own.fd(), PAGE).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM));
}

#[test]
fn mapping_a_memfd_that_is_no_board_fails() {
    let other = Mapping::create_fd("other", at::END).unwrap();
    assert_eq!(PeerBoard::map(&other).unwrap_err().kind(), io::ErrorKind::InvalidData);
    let short = Mapping::create_fd("short", PAGE).unwrap();
    assert!(PeerBoard::map(&short).is_err());
}

#[test]
fn random_board_contents_do_not_panic() {
    let fd = Mapping::create_fd("hostile", at::END).unwrap();
    let map = Mapping::map(&fd, at::END).unwrap();
    let mut x = 88_172_645_463_325_252_u64;
    for word in &map.words()[..(at::QPS + PAGE) / 8] {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        word.store(x, Ordering::Relaxed);
    }
    map.word(0).store(MAGIC, Ordering::Relaxed);
    map.word(at::SLOTS).store(3, Ordering::Relaxed);
    map.word(at::USED_HAZARDS).store(u64::MAX, Ordering::Relaxed);
    let peer = PeerBoard::map(&fd).unwrap();
    for low in 0..4096 {
        let _ = peer.qp(3 << 12 | low);
        if let Some(row) = peer.region(low << 8) {
            let _ = row.locate(row.iova, row.length);
        }
    }
    let _ = peer.wait_for_copies(5, Duration::ZERO, || false);
}
