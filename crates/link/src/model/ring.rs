//! A ring between a thread that fills it and one that empties it.

use std::sync::Arc;

use loom::sync::Notify;
use loom::thread;

use super::{check, fence};
use crate::ring::{self, Consumer, MIN_CAPACITY, Producer, RingError};

/// Bytes of a record of one line, of which the ring has eight, and of the longest: two lines.
const SHORT: usize = 8;
const LONG: usize = ring::SHORT;

/// A ring that `before` records have gone through already.
fn pair(before: &[usize]) -> (Producer, Consumer) {
    let fd = ring::create(MIN_CAPACITY).unwrap();
    let (mut tx, mut rx) = (Producer::map(&fd).unwrap(), Consumer::map(&fd).unwrap());
    for len in before {
        push(&mut tx, 0, *len).unwrap();
        assert_eq!(pop(&mut rx), Some((0, *len)));
        rx.producer_waits();
    }
    (tx, rx)
}

/// Writes a record that is full of `n`, every other one in the short way.
fn push(tx: &mut Producer, n: u8, len: usize) -> Result<(), RingError> {
    if n.is_multiple_of(2) && tx.push_short(n, [n; 16], &[n; LONG], len) {
        return Ok(());
    }
    let mut record = tx.reserve_or_wait(len)?;
    record.put(&[n; LONG][..len]);
    record.publish(n, [n; 16]);
    Ok(())
}

/// Takes one. Returns what it is full of, and its length.
fn pop(rx: &mut Consumer) -> Option<(u8, usize)> {
    let record = rx.pop().unwrap()?;
    let (n, len, mut bytes) = (record.kind(), record.len(), [0; LONG]);
    record.copy(0, &mut bytes);
    assert_eq!(record.meta(), [n; 16]);
    assert!(bytes[..len].iter().all(|byte| *byte == n));
    Some((n, len))
}

/// Nothing is read before it is written, nor written over before it is read; and the word behind a record is never
/// taken for one. Needs: the state word's Release and Acquire, the marker's, the tail's, and that words are cleared before
/// what is in front of them is shown.
fn in_order(before: &'static [usize], lens: &'static [usize]) {
    check(3, move || {
        let (mut tx, mut rx) = pair(before);
        let producer = thread::spawn(move || {
            for (n, len) in (1..).zip(lens) {
                while push(&mut tx, n, *len).is_err() {
                    thread::yield_now();
                }
            }
        });
        for (n, len) in (1..).zip(lens) {
            let next = loop {
                match pop(&mut rx) {
                    Some(next) => break next,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(next, (n, *len));
        }
        assert_eq!(pop(&mut rx), None);
        producer.join().unwrap();
    });
}

#[test]
fn short_records_of_a_new_ring() {
    in_order(&[], &[SHORT, SHORT, SHORT]);
}

#[test]
fn records_over_the_bytes_of_earlier_ones() {
    // The first lap leaves bytes where state words of the second are.
    in_order(&[LONG, LONG, LONG, LONG], &[SHORT, SHORT, LONG]);
}

#[test]
fn records_around_the_end() {
    in_order(&[LONG, SHORT, LONG, LONG], &[LONG, SHORT]);
}

#[test]
fn a_full_ring() {
    in_order(&[SHORT], &[LONG, LONG, LONG, LONG]);
}

/// Whether the consumer can do the heavy fence.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heavy {
    There,
    Missing,
    /// Only while it maps the ring.
    Forbidden,
}

/// Both sides sleep whenever they may, and a model in which nobody wakes them is a failure. Needs: the full fences on
/// both sides of both flags, and that a producer without one relies on a consumer that has the heavy one.
fn no_wakeup_is_lost(switches: usize, lens: &'static [usize], heavy: Heavy) {
    check(switches, move || {
        fence::set_there(heavy != Heavy::Missing);
        let (mut tx, mut rx) = pair(&[]);
        fence::set_there(heavy == Heavy::There);
        let bells = Arc::new([Notify::new(), Notify::new()]);
        let theirs = bells.clone();
        let producer = thread::spawn(move || {
            for (n, len) in (1..).zip(lens) {
                while push(&mut tx, n, *len).is_err() {
                    theirs[0].wait();
                }
                if tx.consumer_sleeps() {
                    theirs[1].notify();
                }
            }
        });
        let (mut last, mut refused) = (0, 0);
        while last < lens.len() {
            while let Some((n, _)) = pop(&mut rx) {
                last += 1;
                assert_eq!(usize::from(n), last);
            }
            if rx.producer_waits() {
                bells[0].notify();
            }
            if last == lens.len() {
                break;
            }
            if rx.prepare_sleep() {
                bells[1].wait();
                rx.awake();
                continue;
            }
            refused += 1;
            if refused == 2 && heavy == Heavy::Forbidden {
                fence::wait_long();
            }
        }
        producer.join().unwrap();
    });
}

#[test]
fn a_consumer_that_sleeps_is_woken() {
    no_wakeup_is_lost(3, &[SHORT, SHORT], Heavy::There);
}

#[test]
fn a_consumer_that_sleeps_is_woken_without_the_heavy_fence() {
    no_wakeup_is_lost(3, &[SHORT, SHORT], Heavy::Missing);
}

/// Needs also: that the consumer tells the producer before it begins to wait until that is known, and does not sleep before; and
/// that the producer writes a record before it looks who does its fence.
#[test]
fn a_consumer_that_sleeps_is_woken_after_the_heavy_fence_was_forbidden() {
    no_wakeup_is_lost(3, &[SHORT, SHORT], Heavy::Forbidden);
}

#[test]
fn a_producer_that_waits_is_woken() {
    no_wakeup_is_lost(2, &[LONG, LONG, LONG, LONG], Heavy::There);
}
