//! Behaviour after refusals of the kernel, provoked from inside.

use std::sync::Arc;
use std::time::Instant;

use super::*;
use crate::sys;
use crate::udp::group::GroupOptions;
use crate::udp::rx::RxBatch;
use crate::udp::{IcrcCheck, UdpGroup, UdpPort, ZeroCopyPool};
use crate::wire::{Piece, Trailer};

static PIECE: [u8; 1000] = [0x5a; 1000];

/// A receiver, a sender, and the destination.
fn ports(host: u8) -> (UdpPort, UdpPort, Destination, [UdpGroup; 2]) {
    let options = GroupOptions { port: 0, ..GroupOptions::default() };
    let open = |last| UdpGroup::open([127, 77, 202, last].into(), &options).unwrap();
    let mut groups = [open(host), open(host + 1)];
    let port = |g: &mut UdpGroup| UdpPort::new(g.socket(0).unwrap()).unwrap();
    let (rx, tx) = (port(&mut groups[0]), port(&mut groups[1]));
    let at = rx.local_addr();
    (rx, tx, Destination::new(at.ip(), at.port()), groups)
}

fn fill(batch: &mut TxBatch, port: &UdpPort, to: &Destination, packets: u8) {
    let pieces = [Piece::new(PIECE.as_ptr(), PIECE.len()), Piece::new(PIECE.as_ptr(), 24)];
    for i in 0..packets {
        let header = [i, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, i];
        let frame = Frame { header: &header, payload: Payload::Pieces(&pieces), pad: 0, ack: None };
        batch.push(port, to, &frame).unwrap();
    }
}

/// Receives `packets` packets, numbered from `first`, and checks that each arrived alone.
fn expect_single(port: &UdpPort, first: u8, packets: u8) {
    let mut rx = RxBatch::new(8);
    let mut next = first;
    let since = Instant::now();
    while next < first + packets {
        rx.recv(port).unwrap();
        for d in rx.arrivals() {
            assert_eq!(d.icrc, Trailer::Ip(0));
            assert_eq!(d.check_icrc(), IcrcCheck::Right);
            assert_eq!((d.bytes[0], d.bytes.len()), (next, 12 + 1024 + 4));
            next += 1;
        }
        assert!(since.elapsed().as_secs() < 20, "packet {next} is missing");
    }
}

#[test]
fn packets_are_sent_singly_without_gso() {
    let (rx, tx, to, _groups) = ports(1);
    let mut batch = TxBatch::new();
    // Refused between push and flush, as if by another thread.
    fill(&mut batch, &tx, &to, 5);
    tx.refuse_segments(to.addr);
    assert_eq!(batch.flush(&tx).unwrap().packets, 5);
    expect_single(&rx, 0, 5);
    // Known from the start.
    fill(&mut batch, &tx, &to, 7);
    assert_eq!(batch.flush(&tx).unwrap().packets, 7);
    expect_single(&rx, 0, 7);
}

/// The kernel segments no message of a socket that computes no checksums, as it segments none that IPsec protects.
fn set_checksums(port: &UdpPort, on: bool) {
    sys::set_int(port, libc::SOL_SOCKET, libc::SO_NO_CHECK, (!on).into()).unwrap();
}

#[test]
fn refusal_of_one_destination_leaves_others_segmentation_and_zerocopy() {
    let (rx, tx, to, _groups) = ports(17);
    let (other_rx, _, other, _other_groups) = ports(19);
    let pool = Arc::new(ZeroCopyPool::new(2).unwrap());
    let (mut batch, mut came) = (TxBatch::new(), RxBatch::new(2));
    let flush_zerocopy = |batch: &mut TxBatch, mark| {
        let mut buf = pool.take(batch.zerocopy_dest().unwrap()).unwrap();
        let (taken, flushed) = batch.flush_zerocopy(&tx, &mut buf);
        assert_eq!(flushed.unwrap().packets, 5, "{mark}");
        buf.recycle();
        taken
    };
    set_checksums(&tx, false);
    fill_long(&mut batch, &tx, &to, 5, 1);
    assert!(flush_zerocopy(&mut batch, 1), "the kernel was asked");
    expect_long(&rx, &mut came, 5, 1);
    assert!(!tx.segments(to.addr) && !tx.supports_zerocopy(to.addr));
    fill(&mut batch, &tx, &to, 5);
    assert_eq!(batch.flush(&tx).unwrap().packets, 5);
    expect_single(&rx, 0, 5);

    set_checksums(&tx, true);
    assert!(tx.segments(other.addr) && tx.supports_zerocopy(other.addr));
    fill_long(&mut batch, &tx, &other, 5, 2);
    assert!(flush_zerocopy(&mut batch, 2));
    expect_long(&other_rx, &mut came, 5, 2);
    fill_long(&mut batch, &tx, &to, 5, 3);
    assert!(!flush_zerocopy(&mut batch, 3), "this is the one that was refused");
    expect_long(&rx, &mut came, 5, 3);
}

#[test]
fn segmentation_is_tried_again_after_many_batches() {
    let (rx, tx, to, _groups) = ports(21);
    let (mut batch, mut came) = (TxBatch::new(), RxBatch::new(2));
    tx.refuse_segments(to.addr);
    let mut send = || {
        fill_long(&mut batch, &tx, &to, 2, 1);
        let numbered = batch.numbered;
        assert_eq!(batch.flush(&tx).unwrap().packets, 2);
        expect_long(&rx, &mut came, 2, 1);
        numbered
    };
    assert!(!send());
    assert!((0..10_000).any(|_| send()), "it is never tried");
    assert!(tx.segments(to.addr));
}

#[test]
fn batch_refuses_packets_for_another_socket_slot() {
    let (_rx, tx, to, _groups) = ports(5);
    let mut batch = TxBatch::new();
    let to_qpn = |batch: &mut TxBatch, qpn: u32| {
        let mut header = [0; 12];
        header[4..8].copy_from_slice(&(0xff00_0000 | qpn).to_be_bytes());
        batch.push(&tx, &to, &Frame { header: &header, payload: Payload::None, pad: 0, ack: None })
    };
    to_qpn(&mut batch, 0x001_001).unwrap();
    to_qpn(&mut batch, 0x001_fff).unwrap();
    assert_eq!(to_qpn(&mut batch, 0x002_001), Err(PushError::Full));
    assert_eq!(to_qpn(&mut batch, 0x801_001), Err(PushError::Full));
    batch.clear();
    to_qpn(&mut batch, 0x002_001).unwrap();
}

#[test]
fn batch_remainder_after_a_partial_send_is_intact() {
    let (rx, tx, to, _groups) = ports(3);
    let mut batch = TxBatch::new();
    fill(&mut batch, &tx, &to, 6);
    batch.renumber(&tx);
    batch.forget(2);
    assert_eq!((batch.len(), batch.bytes), (4, 4 * 1040));
    assert!(!batch.room(&to, 1040));
    assert_eq!(batch.flush(&tx).unwrap(), Flushed { packets: 4, bytes: 4 * 1040 });
    expect_single(&rx, 2, 4);
    assert!(batch.room(&to, 1040));
}

/// Fills a batch with packets of WRITEs, which their payload identifies.
fn fill_long(batch: &mut TxBatch, port: &UdpPort, to: &Destination, packets: u8, mark: u8) {
    for i in 0..packets {
        let header = [i, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, mark];
        let payload = [i ^ mark; 4096];
        let frame = Frame { header: &header, payload: Payload::Bytes(&payload), pad: 0, ack: None };
        batch.push(port, to, &frame).unwrap();
    }
}

/// Receives such a batch, skipping single packets in between.
fn expect_long(port: &UdpPort, rx: &mut RxBatch, packets: u8, mark: u8) {
    let mut next = 0;
    let since = Instant::now();
    while next < packets {
        rx.recv(port).unwrap();
        for d in rx.arrivals() {
            assert_eq!(d.check_icrc(), IcrcCheck::Right);
            if d.bytes.len() == 12 + 4096 + 4 {
                assert_eq!((d.bytes[0], d.bytes[11]), (next, mark));
                assert!(d.bytes[12..12 + 4096].iter().all(|b| *b == next ^ mark));
                next += 1;
            }
        }
        assert!(since.elapsed().as_secs() < 20, "packet {next} is missing");
    }
}

#[test]
fn zerocopy_bytes_arrive_as_if_copied() {
    let (rx, tx, to, _groups) = ports(7);
    let pool = Arc::new(ZeroCopyPool::new(2).unwrap());
    let (mut batch, mut came) = (TxBatch::new(), RxBatch::new(2));
    for mark in 0..100 {
        let packets = 2 + mark % 14;
        fill_long(&mut batch, &tx, &to, packets, mark);
        let mut buf = pool.take(batch.zerocopy_dest().unwrap()).unwrap();
        let (taken, flushed) = batch.flush_zerocopy(&tx, &mut buf);
        let bytes = usize::from(packets) * (12 + 4096 + 4);
        assert_eq!(flushed.unwrap(), Flushed { packets: packets.into(), bytes });
        assert!(taken && batch.is_empty());
        expect_long(&rx, &mut came, packets, mark);
        buf.recycle();
    }
}

#[test]
fn zerocopy_flush_copies_if_zerocopy_is_refused() {
    let (rx, tx, to, _groups) = ports(11);
    let (mut batch, mut came) = (TxBatch::new(), RxBatch::new(2));
    tx.zerocopy_refused(to.addr, &io::ErrorKind::Unsupported.into());
    assert_eq!(batch.zerocopy_dest(), None);
    fill_long(&mut batch, &tx, &to, 15, 1);
    let zerocopy_dest = batch.zerocopy_dest().unwrap();
    assert_eq!(zerocopy_dest.addr, to.addr);
    let mut buf = Arc::new(ZeroCopyPool::new(1).unwrap()).take(zerocopy_dest).unwrap();
    let (taken, flushed) = batch.flush_zerocopy(&tx, &mut buf);
    assert_eq!((taken, flushed.unwrap().packets), (false, 15));
    expect_long(&rx, &mut came, 15, 1);
}

#[test]
fn corked_message_of_a_former_socket_owner_is_sent_alone() {
    let (rx, tx, to, mut groups) = ports(13);
    sys::send(&tx, &SockAddr::from(to.addr), &[0xaa; 40], &[], true).unwrap();
    let next = UdpPort::new(groups[1].socket(0).unwrap()).unwrap();
    let (mut batch, mut came) = (TxBatch::new(), RxBatch::new(2));
    fill_long(&mut batch, &next, &to, 1, 5);
    assert_eq!(batch.flush(&next).unwrap().packets, 1);
    while came.recv(&rx).unwrap() == 0 {}
    assert_eq!(came.arrivals().next().unwrap().bytes, [0xaa; 40]);
    expect_long(&rx, &mut came, 1, 5);
}
