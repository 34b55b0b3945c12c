//! A board between its owner and a process that copies.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::check;
use crate::board::{Board, PeerBoard, QpRow, RegionRow};
use crate::shared::Mapping;

const OWNER: u16 = 3;
const KEY: u32 = 1 << 8 | 5;
const QPN: u32 = 2 * OWNER as u32 + 1;
/// The sequence number of its first row.
const SEQUENCE: u32 = 1;

fn region(n: u64) -> RegionRow {
    RegionRow { key: KEY, pd: 1, access: 7, addr: n, length: n, iova: n }
}

fn show_qp(own: &Board) {
    own.show_qp(&QpRow { qpn: QPN, dest_qpn: 9, pd: 1, access: 7, pkey: 0xffff });
}

/// Creates a board with two rows, and the view of it that others have.
fn owner() -> (Board, PeerBoard) {
    let own = Board::create().unwrap();
    own.add_slot(OWNER);
    own.show_region(&region(1));
    show_qp(&own);
    assert_eq!(own.qp_sequence(QPN), Some(SEQUENCE));
    let seen = PeerBoard::map(own.fd()).unwrap();
    (own, seen)
}

/// Checks that after a row is hidden and all copies have ended, no thread that saw the row copies. `copiers` threads of one process copy;
/// the owner reuses the memory, and then calls `next`. Needs: the full fences between setting a hazard and reading a row, and between
/// hiding the row and reading the hazards, and that a hazard is cleared with Release.
fn nobody_copies_who_saw_a_row_that_is_gone(
    copiers: usize,
    hide: fn(&Board),
    next: fn(&Board),
    see: fn(&PeerBoard) -> bool,
) {
    check(5 - copiers, move || {
        let (own, seen) = owner();
        let copier = Board::create().unwrap();
        let hazards = PeerBoard::map(copier.fd()).unwrap();
        let peer = Arc::new((copier, seen));
        // A word for each copier.
        let memory = Mapping::create_fd("memory", 8 * copiers).unwrap();
        let threads: Vec<_> = (0..copiers)
            .map(|n| {
                let (peer, piece) = (peer.clone(), Mapping::map(&memory, 8 * copiers).unwrap());
                thread::spawn(move || {
                    let (copier, seen) = &*peer;
                    let Some(_hazard) = copier.enter(OWNER) else { return };
                    if see(seen) {
                        piece.write(8 * n, &[1]);
                    }
                })
            })
            .collect();
        hide(&own);
        hazards.wait_for_copies(OWNER, Duration::MAX, || false).unwrap();
        next(&own);
        let memory = Mapping::map(&memory, 8 * copiers).unwrap();
        (0..copiers).for_each(|n| memory.write(8 * n, &[0]));
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn no_copy_after_a_region_is_hidden() {
    nobody_copies_who_saw_a_row_that_is_gone(
        1,
        |own| assert!(own.hide_region(KEY)),
        |_| {},
        |seen| seen.region(KEY).is_some(),
    );
}

#[test]
fn no_copy_after_a_region_is_hidden_with_two_copiers() {
    nobody_copies_who_saw_a_row_that_is_gone(
        2,
        |own| assert!(own.hide_region(KEY)),
        |_| {},
        |seen| seen.region(KEY).is_some(),
    );
}

#[test]
fn no_copy_after_a_qp_is_hidden() {
    nobody_copies_who_saw_a_row_that_is_gone(
        1,
        |own| assert!(own.hide_qp(QPN)),
        |_| {},
        |seen| seen.qp(QPN).is_some(),
    );
}

/// A fetch that was requested before is not executed after. Also needs that each row has another sequence number.
#[test]
fn no_copy_after_a_qp_is_hidden_and_shown_again() {
    nobody_copies_who_saw_a_row_that_is_gone(
        1,
        |own| assert!(own.hide_qp(QPN)),
        show_qp,
        |seen| seen.qp(QPN).is_some() && seen.is_qp_since(QPN, SEQUENCE),
    );
}

/// Needs: Release and Acquire of a row's first word, and the fences between it and the others.
#[test]
fn board_row_is_not_read_torn() {
    check(5, || {
        let (own, seen) = owner();
        let reader = thread::spawn(move || {
            if let Some(row) = seen.region(KEY) {
                assert!(row == region(1) || row == region(2), "{row:?}");
            }
        });
        own.show_region(&region(2));
        reader.join().unwrap();
    });
}
