//! Counting, reuse of rows, changes of ways, and rows with arbitrary contents.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;
use crate::shared::{Mapping, Ordering};

fn sent(route: u64, sl: u8) -> Counted {
    Counted::Sent { route: RouteId(route), dlid: Lid(5), sl, pkey: 127, payload: 0xffff }
}

/// A process's rows and their reader.
fn pair() -> (Arc<Rows>, RowReader) {
    let fd = Rows::create().unwrap();
    (Arc::new(Rows::map(&fd).unwrap()), RowReader::map(&fd).unwrap())
}

fn all(reader: &mut RowReader) -> Vec<(Counted, u64, u64, bool)> {
    let mut all = Vec::new();
    reader.read(|row| all.push((row.counted, row.packets, row.words, row.is_open)));
    all
}

#[test]
fn reader_gets_the_increments_since_its_last_read() {
    let (rows, mut reader) = pair();
    let mut tally = Tally::new(rows.clone());
    assert_eq!(all(&mut reader), []);
    let (a, b) = (sent(1, 0), Counted::Dropped(17));
    let [x, y] = [a, b].map(|counted| tally.find(&counted, |_| true).unwrap());
    tally.add(x, 2, 100);
    tally.add(y, 1, 0);
    assert_eq!(all(&mut reader), [(a, 2, 100, true), (b, 1, 0, true)]);
    assert_eq!(tally.find(&a, |_| true), Ok(x), "the same");
    tally.add(x, 1, 7);
    assert_eq!(all(&mut reader), [(a, 1, 7, true), (b, 0, 0, true)]);
    assert!(!reader.has_dropped());
    tally.has_dropped();
    assert!(reader.has_dropped() && reader.has_dropped());
    assert_eq!((all(&mut reader).len(), reader.has_dropped()), (2, false));
    // Another sender has its own rows.
    let mut other = Tally::new(rows);
    let z = other.find(&a, |_| true).unwrap();
    other.add(z, 5, 50);
    assert_eq!(all(&mut reader), [(a, 0, 0, true), (b, 0, 0, true), (a, 5, 50, true)]);
}

#[test]
fn closed_row_is_reused_after_its_reader_read_it() {
    let (rows, mut reader) = pair();
    let mut tally = Tally::new(rows.clone());
    let x = tally.find(&sent(1, 0), |_| true).unwrap();
    tally.add(x, 3, 30);
    drop(tally);
    let mut tally = Tally::new(rows);
    let y = tally.find(&sent(2, 0), |_| true).unwrap();
    assert_ne!(x, y);
    assert_eq!(all(&mut reader), [(sent(1, 0), 3, 30, false), (sent(2, 0), 0, 0, true)]);
    let z = tally.find(&sent(3, 0), |_| true).unwrap();
    assert_eq!(z, x);
    tally.add(z, 1, 10);
    assert_eq!(all(&mut reader), [(sent(3, 0), 1, 10, true), (sent(2, 0), 0, 0, true)]);
}

#[test]
fn rows_of_removed_routes_are_closed_and_not_opened() {
    let (rows, mut reader) = pair();
    let mut tally = Tally::new(rows);
    let x = tally.find(&sent(1, 0), |_| true).unwrap();
    tally.add(x, 1, 10);
    assert_eq!(tally.find(&sent(2, 0), |_| false), Err(Unfound::Changed));
    tally.refresh();
    let y = tally.find(&sent(3, 0), |counted| counted.route() == Some(RouteId(3))).unwrap();
    tally.add(y, 2, 20);
    let expected =
        [(sent(1, 0), 1, 10, false), (sent(2, 0), 0, 0, false), (sent(3, 0), 2, 20, true)];
    assert_eq!(all(&mut reader), expected);
    assert_eq!(all(&mut reader), [(sent(3, 0), 0, 0, true)]);
}

#[test]
fn counter_rows_are_limited() {
    let (rows, mut reader) = pair();
    let mut tally = Tally::new(rows);
    let found = (1..=5000).filter(|n| tally.find(&sent(*n, 0), |_| true).is_ok()).count();
    assert_eq!(tally.find(&sent(9000, 0), |_| true), Err(Unfound::Full));
    assert_eq!(found, ROWS as usize);
    assert_eq!(all(&mut reader).len(), ROWS as usize);
    tally.refresh();
    assert_eq!(tally.find(&sent(9000, 0), |_| false), Err(Unfound::Full));
    assert_eq!(all(&mut reader).len(), ROWS as usize, "what they had is told once more");
    assert!(tally.find(&sent(9000, 0), |_| true).is_ok());
}

#[test]
fn counts_are_exact_per_route_while_routes_change() {
    const ROUNDS: u64 = 20_000;
    let (rows, mut reader) = pair();
    let stop = AtomicBool::new(false);
    let mut total = BTreeMap::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut tally = Tally::new(rows);
            for n in 1..=ROUNDS {
                tally.refresh();
                let counted = sent(n, (n % 16) as u8);
                // If no row is left, the reader lags behind.
                let row = loop {
                    if let Ok(row) = tally.find(&counted, |it| *it == counted) {
                        break row;
                    }
                    thread::yield_now();
                };
                tally.add(row, 1, n % 100);
                tally.add(row, 2, 0);
            }
            drop(tally);
            stop.store(true, Ordering::Release);
        });
        let mut read = || {
            reader.read(|row| {
                let Counted::Sent { route, .. } = row.counted else { panic!("{row:?}") };
                let entry: &mut (u64, u64) = total.entry(route.0).or_default();
                *entry = (entry.0 + row.packets, entry.1 + row.words);
            });
        };
        while !stop.load(Ordering::Acquire) {
            read();
        }
        read();
    });
    assert_eq!(total.len() as u64, ROUNDS);
    assert!(total.iter().all(|(n, sum)| *sum == (3, n % 100)), "{total:?}");
}

#[test]
fn counts_of_a_hostile_writer_are_bounded() {
    let fd = Rows::create().unwrap();
    let map = Mapping::map(&fd, at::END).unwrap();
    let mut reader = RowReader::map(&fd).unwrap();
    let rows = Arc::new(Rows::map(&fd).unwrap());
    let mut tally = Tally::new(rows);
    let row = tally.find(&sent(1, 0), |_| true).unwrap();
    let set = |at: usize, value| map.word(row_at(row.0) + at).store(value, Ordering::Relaxed);
    set(at::WORDS, u64::MAX);
    assert_eq!(all(&mut reader), [(sent(1, 0), 0, 0, true)], "words of no packet");
    tally.add(row, 2, 1);
    assert_eq!(all(&mut reader), [(sent(1, 0), 2, 2 * MAX_WORDS, true)]);
    set(at::PACKETS, u64::MAX / 2);
    assert_eq!(all(&mut reader), [(sent(1, 0), 0, 0, true)]);
    map.word(at::USED).store(u64::MAX, Ordering::Relaxed);
    let mut x = 88_172_645_463_325_252_u64;
    for _ in 0..4 {
        for word in &map.words()[at::ROWS / 8..] {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            // Half of the rows have a valid state.
            word.store(
                if x.is_multiple_of(2) { x } else { x & 0xff0f_ffff_ff0f_0303 },
                Ordering::Relaxed,
            );
        }
        let (mut packets, mut words) = (0_u64, 0_u64);
        reader.read(|row| {
            assert!(row.packets <= MAX_PACKETS);
            packets = packets.wrapping_add(row.packets);
            words = words.wrapping_add(row.words);
        });
        assert!(words <= packets.saturating_add(2).saturating_mul(4 * MAX_WORDS));
    }
}

#[test]
fn reader_limits_rows_per_read_and_reads_the_rest_later() {
    let (rows, mut reader) = pair();
    let mut tally = Tally::new(rows);
    for route in 1..=5 {
        let row = tally.find(&sent(route, 0), |_| true).unwrap();
        tally.add(row, route, 0);
    }
    let mut read = |most| {
        let (mut in_use, mut packets) = (0, Vec::new());
        let within = |used| {
            in_use = used;
            most
        };
        reader.read_within(within, |row| packets.push(row.packets));
        assert_eq!(in_use, 5);
        packets
    };
    assert_eq!(read(3), [1, 2, 3]);
    assert_eq!(read(1), [0, 0, 0]);
    assert_eq!(read(6), [0, 0, 0, 4, 5]);
}

#[test]
fn mapping_a_memfd_that_holds_no_rows_fails() {
    let other = Mapping::create_fd("other", at::END).unwrap();
    assert_eq!(Rows::map(&other).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    assert_eq!(RowReader::map(&other).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    let short = Mapping::create_fd("short", 4096).unwrap();
    assert!(Rows::map(&short).is_err() && RowReader::map(&short).is_err());
}

#[test]
fn counted_key_round_trips() {
    for counted in [sent(u64::MAX, 15), sent(0, 3), Counted::Dropped(255)] {
        assert_eq!(Counted::from_words(counted.to_words()), Some(counted));
    }
    let (named, unnamed) = (sent(7, 0), sent(0, 0));
    assert_eq!((named.route(), unnamed.route()), (Some(RouteId(7)), None));
    assert_eq!(Counted::Dropped(1).route(), None);
}
