//! A ring between a producer thread and a consumer thread.

use std::sync::Arc;

use loom::sync::Notify;
use loom::thread;

use super::{check, fence};
use crate::ring::{self, Consumer, MIN_CAPACITY, Producer, RingError};

/// The length of a record of one line. The ring has eight lines, and the longest record takes two.
const SHORT: usize = 8;
const LONG: usize = ring::SHORT;

/// Creates a ring that `before` records have passed through.
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

/// Writes a record filled with `n`, every other one by the short path.
fn push(tx: &mut Producer, n: u8, len: usize) -> Result<(), RingError> {
    if n.is_multiple_of(2) && tx.push_short(n, [n; 16], &[n; LONG], len) {
        return Ok(());
    }
    let mut record = tx.reserve_or_wait(len)?;
    record.put(&[n; LONG][..len]);
    record.publish(n, [n; 16]);
    Ok(())
}

/// Takes a record. Returns its fill value and its length.
fn pop(rx: &mut Consumer) -> Option<(u8, usize)> {
    let record = rx.pop().unwrap()?;
    let (n, len, mut bytes) = (record.kind(), record.len(), [0; LONG]);
    record.copy(0, &mut bytes);
    assert_eq!(record.meta(), [n; 16]);
    assert!(bytes[..len].iter().all(|byte| *byte == n));
    Some((n, len))
}

/// Checks that no byte is read before it is written, or overwritten before it is read, and that the word behind a record is never
/// taken for a record. Needs: Release and Acquire of the state word, the marker and the tail, and that words are cleared before
/// the record in front of them is published.
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
fn short_records_in_a_new_ring_arrive_in_order() {
    in_order(&[], &[SHORT, SHORT, SHORT]);
}

#[test]
fn records_of_a_second_lap_arrive_in_order() {
    // The first lap leaves payload bytes at the positions of the second lap's state words.
    in_order(&[LONG, LONG, LONG, LONG], &[SHORT, SHORT, LONG]);
}

#[test]
fn records_wrapping_around_the_ring_end_arrive_in_order() {
    in_order(&[LONG, SHORT, LONG, LONG], &[LONG, SHORT]);
}

#[test]
fn records_in_a_full_ring_arrive_in_order() {
    in_order(&[SHORT], &[LONG, LONG, LONG, LONG]);
}

/// Whether the consumer can execute the heavy fence.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heavy {
    /// The kernel has the system call.
    There,
    /// The kernel lacks the system call.
    Missing,
    /// The consumer may use the system call until it has mapped the ring, but not later.
    Forbidden,
}

/// Checks that no wakeup is lost: both sides sleep whenever they may, and a model in which neither is woken fails. Needs: the
/// full fences on both sides of both flags, and that a producer without a fence relies on a consumer that has the heavy one.
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
fn sleeping_consumer_is_woken() {
    no_wakeup_is_lost(3, &[SHORT, SHORT], Heavy::There);
}

#[test]
fn sleeping_consumer_is_woken_without_membarrier() {
    no_wakeup_is_lost(3, &[SHORT, SHORT], Heavy::Missing);
}

/// Also requires that the consumer informs the producer, and does not sleep until the producer must have seen this, and that the
/// producer writes a record before it checks which side executes the fence.
#[test]
fn sleeping_consumer_is_woken_after_membarrier_was_forbidden() {
    no_wakeup_is_lost(3, &[SHORT, SHORT], Heavy::Forbidden);
}

#[test]
fn waiting_producer_is_woken() {
    no_wakeup_is_lost(2, &[LONG, LONG, LONG, LONG], Heavy::There);
}
