//! Transfers between a sender and a receiver, with loss, duplicates and aborts.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use rdmux_wire::{Qpn, Rmpp, RmppFlags, RmppStatus, RmppType};

use super::*;
use crate::Time;

const SA: u8 = 0x03;
const GET_TABLE_RESP: u8 = 0x92;
const RETRIES: u32 = 3;

/// Builds a long MAD of a class with this many data bytes, without repetition nearby.
fn message(class: u8, data: usize) -> Vec<u8> {
    let offset = data_offset(MgmtClass(class));
    let mut mad = vec![0; offset];
    mad[..4].copy_from_slice(&[1, class, 2, GET_TABLE_RESP]);
    mad[8..16].copy_from_slice(&7_u64.to_be_bytes());
    mad[36..offset].fill(0x5a);
    mad.extend((0..251_u8).cycle().take(data));
    mad
}

/// A transfer between a sender and a receiver, with a filter that drops and duplicates packets.
struct Transfer {
    now: Time,
    sender: Sender,
    receiver: Reassembly<u8, ()>,
    whole: Vec<Vec<u8>>,
    /// Segments that the sender sent, and the packets that the receiver sent back.
    segments: Vec<u32>,
    back: Vec<Rmpp>,
    gave_up: bool,
    error: Option<RmppStatus>,
}

const ID: TransferId<u8> =
    TransferId { peer: 1, qpn: Qpn::QP1, tid: 7, class: SA, method: GET_TABLE_RESP };

impl Transfer {
    fn new(message: Vec<u8>) -> Self {
        Self {
            now: Time(1),
            sender: Sender::new(message, 1, Duration::from_millis(100), RETRIES),
            receiver: Reassembly::new(Limits::default()),
            whole: Vec::new(),
            segments: Vec::new(),
            back: Vec::new(),
            gave_up: false,
            error: None,
        }
    }

    /// Runs until the transfer is idle. `copies` returns how often a packet arrives, given whether it is the sender's, and
    /// its index in its direction, from 0.
    fn run(&mut self, mut copies: impl FnMut(bool, usize) -> usize) -> &mut Self {
        loop {
            self.exchange(&mut copies);
            if self.sender.is_complete() || self.gave_up || self.error.is_some() {
                return self;
            }
            self.now = self.sender.deadline();
            self.gave_up = self.sender.handle_timeout(self.now) == Timeout::GiveUp;
        }
    }

    fn exchange(&mut self, copies: &mut impl FnMut(bool, usize) -> usize) {
        loop {
            let mut forward: VecDeque<Box<Mad>> = VecDeque::new();
            while let Some(mad) = self.sender.poll_segment(self.now) {
                let copies = copies(true, self.segments.len());
                self.segments.push(Rmpp::of(&mad).segment);
                forward.extend(vec![mad; copies]);
            }
            if forward.is_empty() {
                return;
            }
            for mad in forward {
                self.arrive(&mad, copies);
            }
        }
    }

    fn arrive(&mut self, mad: &Mad, copies: &mut impl FnMut(bool, usize) -> usize) {
        let mut back = Vec::new();
        let arrival =
            self.receiver.handle_data(self.now, ID, ID.peer, (), mad, |mad| back.push(mad));
        if let Arrival::Whole(message) = arrival {
            self.whole.push(message);
        }
        for mad in back {
            assert_eq!(mad[3], GET_TABLE_RESP ^ 0x80, "the method is turned");
            assert_eq!(mad[36..56], [0x5a; 20], "the class's header is kept");
            let rmpp = Rmpp::of(&mad);
            let n = copies(false, self.back.len());
            self.back.push(rmpp);
            for _ in 0..n {
                self.heard(&rmpp);
            }
        }
    }

    fn heard(&mut self, rmpp: &Rmpp) {
        match rmpp.kind {
            RmppType::ACK => {
                let ack = self.sender.handle_ack(self.now, rmpp.segment, rmpp.length);
                self.error = self.error.or(ack.err());
            }
            _ => self.error = Some(rmpp.status),
        }
    }

    fn acks(&self) -> Vec<(u32, u32)> {
        self.back.iter().map(|r| (r.segment, r.length)).collect()
    }
}

/// Checks that header and data arrived once, and that only the remembered transfer is left.
fn arrived(transfer: &Transfer, message: &[u8]) {
    assert_eq!(transfer.whole.len(), 1);
    let whole = &transfer.whole[0];
    assert_eq!(whole.len(), message.len());
    // The RMPP header of the first segment follows the MAD header.
    assert_eq!(whole[36..], message[36..]);
    assert_eq!(whole[..24], message[..24]);
    assert_eq!((transfer.receiver.len(), transfer.receiver.bytes()), (1, 0));
}

fn clean(data: usize) -> Transfer {
    let message = message(SA, data);
    let mut transfer = Transfer::new(message.clone());
    transfer.run(|_, _| 1);
    arrived(&transfer, &message);
    transfer
}

#[test]
fn table_of_0_records_is_one_segment_of_20_bytes() {
    let transfer = clean(0);
    let first = Rmpp::of(&transfer.sender_segment());
    assert_eq!((first.segment, first.length, first.flags), (1, 20, RmppFlags(7)));
    assert_eq!(transfer.whole[0].len(), 56);
    assert_eq!(transfer.acks(), [(1, 1)]);
}

impl Transfer {
    /// Returns the first segment as it was sent.
    fn sender_segment(&self) -> Box<Mad> {
        let mut again = Sender::new(self.sender.message().to_vec(), 1, Duration::ZERO, 0);
        again.poll_segment(Time(1)).expect("a segment")
    }
}

#[test]
fn table_of_1_record_is_one_segment() {
    let transfer = clean(112);
    let first = Rmpp::of(&transfer.sender_segment());
    assert_eq!((first.segment, first.length, first.flags), (1, 132, RmppFlags(7)));
}

#[test]
fn first_rmpp_segment_has_the_payload_length_of_the_whole_transfer() {
    let transfer = clean(450);
    let first = Rmpp::of(&transfer.sender_segment());
    // Three segments of 220 bytes, minus the 150 that the last one lacks.
    assert_eq!((first.length, first.flags), (3 * 220 - 150, RmppFlags(3)));
    assert_eq!(transfer.acks(), [(1, 65), (3, 65)]);
}

#[test]
fn windows_end_where_the_receiver_says() {
    for (segments, acks) in [
        (64, vec![(1, 65), (64, 65)]),
        (65, vec![(1, 65), (65, 65)]),
        (66, vec![(1, 65), (65, 129), (66, 129)]),
        (129, vec![(1, 65), (65, 129), (129, 129)]),
    ] {
        let transfer = clean(segments * 200);
        assert_eq!(transfer.acks(), acks, "{segments} segments");
        assert_eq!(transfer.segments.len(), segments);
    }
}

#[test]
fn ten_thousand_node_records_arrive() {
    let transfer = clean(10_000 * 112);
    assert_eq!(transfer.segments.len(), 5600);
    // One ACK for the first segment, one for each window of 64, including the last.
    assert_eq!(transfer.acks().len(), 1 + 5599_usize.div_ceil(64));
}

#[test]
fn lost_ack_makes_the_sender_send_its_window_again() {
    let message = message(SA, 200 * 100);
    let mut transfer = Transfer::new(message.clone());
    // Drop the ACK of segment 65.
    transfer.run(|forward, n| usize::from(forward || n != 1));
    arrived(&transfer, &message);
    let again = transfer.segments.iter().filter(|&&s| s == 2).count();
    assert_eq!((again, transfer.segments.len()), (2, 100 + 64));
    assert!(transfer.now > Time(100_000_000));
}

#[test]
fn duplicate_segments_change_nothing() {
    let message = message(SA, 200 * 200);
    let mut transfer = Transfer::new(message.clone());
    transfer.run(|forward, _| if forward { 2 } else { 1 });
    arrived(&transfer, &message);
    assert_eq!(transfer.segments.len(), 200);
}

#[test]
fn lost_final_ack_is_said_again() {
    let message = message(SA, 200 * 3);
    let mut transfer = Transfer::new(message.clone());
    transfer.run(|forward, n| usize::from(forward || n != 1));
    arrived(&transfer, &message);
    assert_eq!(transfer.acks(), [(1, 65), (3, 65), (3, 65), (3, 65)]);
    // The transfer is forgotten after ten seconds.
    let at = transfer.receiver.next_timeout().expect("remembered for some time");
    assert_eq!(at, Time(1).after(REMEMBERED));
    assert!(transfer.receiver.handle_timeout(at, |(), _| panic!("nothing to say")));
    assert!(transfer.receiver.is_empty() && transfer.receiver.next_timeout().is_none());
}

#[test]
fn lost_rmpp_segment_is_retransmitted_and_later_ones_are_kept() {
    let message = message(SA, 200 * 60);
    let mut transfer = Transfer::new(message.clone());
    transfer.run(|forward, n| usize::from(!forward || n != 30));
    arrived(&transfer, &message);
    // All of the window is retransmitted; the missing segment suffices.
    assert_eq!(transfer.segments.len(), 60 + 59);
}

#[test]
fn rmpp_sender_gives_up_after_its_retries_without_ack_progress() {
    let mut transfer = Transfer::new(message(SA, 200 * 300));
    transfer.run(|forward, n| usize::from(!forward || n < 100));
    assert!(transfer.gave_up);
    // The windows of 1, of 64, and 35 of the next; then 4 times the whole window.
    let tried = transfer.segments.iter().filter(|&&s| s == 129).count();
    assert_eq!(tried, 1 + RETRIES as usize);
    assert_eq!(transfer.now, Time(1 + 100_000_000 * (1 + u64::from(RETRIES))));
}

#[test]
fn rmpp_transfer_beyond_the_total_time_is_aborted() {
    let mut transfer = Transfer::new(message(SA, 200 * 10));
    transfer.exchange(&mut |forward, n| usize::from(!forward || n < 5));
    let due = transfer.receiver.next_timeout().expect("there is a limit");
    assert_eq!(due, Time(1).after(TOTAL_TIME));
    let mut said = None;
    assert!(transfer.receiver.handle_timeout(due, |(), mad| said = Some(mad)));
    let mad = said.expect("ABORT");
    let rmpp = Rmpp::of(&mad);
    assert_eq!((rmpp.kind, rmpp.status), (RmppType::ABORT, RmppStatus::TOTAL_TIME));
    assert_eq!((mad[3], &mad[8..16]), (0x12, &7_u64.to_be_bytes()[..]));
    assert!(transfer.receiver.is_empty() && transfer.receiver.bytes() == 0);
}

#[test]
fn abort_of_the_sender_midway_frees_what_came() {
    let mut transfer = Transfer::new(message(SA, 200 * 10));
    transfer.exchange(&mut |forward, n| usize::from(!forward || n < 5));
    assert_eq!(transfer.receiver.len(), 1);
    assert!(transfer.receiver.bytes() >= 5 * 200);
    transfer.receiver.end(&ID);
    assert!(transfer.receiver.is_empty());
    assert_eq!((transfer.receiver.bytes(), transfer.receiver.next_timeout()), (0, None));
    // A late segment starts no transfer and is not answered.
    let late = Rmpp { segment: 6, ..Rmpp::of(&transfer.sender_segment()) };
    let mut mad = transfer.sender_segment();
    Rmpp { flags: RmppFlags::ACTIVE, ..late }.put(&mut mad);
    transfer.arrive(&mad, &mut |_, _| panic!("nothing to say"));
    assert!(transfer.receiver.is_empty());
}

#[test]
fn rmpp_segment_with_bad_first_flag_or_length_is_aborted_with_status() {
    let mut transfer = Transfer::new(message(SA, 200 * 3));
    let first = transfer.sender_segment();
    let good = Rmpp::of(&first);
    let bad = [
        (Rmpp { segment: 2, ..good }, RmppStatus::FIRST_SEGMENT),
        (Rmpp { flags: RmppFlags::ACTIVE, ..good }, RmppStatus::FIRST_SEGMENT),
        (Rmpp { segment: 0, flags: RmppFlags::ACTIVE, ..good }, RmppStatus::FIRST_SEGMENT),
        (Rmpp { flags: RmppFlags(7), length: 221, ..good }, RmppStatus::LAST_LENGTH),
        (Rmpp { flags: RmppFlags(7), length: 19, ..good }, RmppStatus::LAST_LENGTH),
    ];
    for (rmpp, status) in bad {
        let mut mad = first.clone();
        rmpp.put(&mut mad);
        transfer.error = None;
        transfer.arrive(&mad, &mut |_, _| 1);
        assert_eq!(transfer.error, Some(status), "{rmpp}");
        assert!(transfer.receiver.is_empty() && transfer.receiver.bytes() == 0);
    }
}

#[test]
fn rmpp_packet_with_bad_version_type_or_status_is_an_error() {
    let data = Rmpp::of(&Transfer::new(message(SA, 0)).sender_segment());
    let (ok, status) = (RmppStatus::NORMAL, |s| Err(RmppStatus(s)));
    let cases = [
        (data, Ok(())),
        (Rmpp { version: 2, ..data }, status(125)),
        (Rmpp { kind: RmppType(0), ..data }, status(121)),
        (Rmpp { kind: RmppType(5), ..data }, status(121)),
        (Rmpp { status: RmppStatus(1), ..data }, status(124)),
        (Rmpp { kind: RmppType::ACK, status: RmppStatus(127), ..data }, status(124)),
        (Rmpp { kind: RmppType::STOP, status: RmppStatus(1), ..data }, Ok(())),
        (Rmpp { kind: RmppType::STOP, status: ok, ..data }, status(124)),
        (Rmpp { kind: RmppType::ABORT, status: RmppStatus(118), ..data }, Ok(())),
        (Rmpp { kind: RmppType::ABORT, status: RmppStatus(1), ..data }, status(124)),
    ];
    for (rmpp, expected) in cases {
        assert_eq!(check(&rmpp), expected, "{rmpp:?}");
    }
}

#[test]
fn rmpp_ack_beyond_sent_segments_or_shrinking_window_is_an_error() {
    let sender = || {
        let mut sender = Sender::new(message(SA, 200 * 10), 3, Duration::ZERO, 0);
        while sender.poll_segment(Time(1)).is_some() {}
        sender
    };
    let ack = |segment, window| sender().handle_ack(Time(2), segment, window);
    assert_eq!(ack(3, 2), Err(RmppStatus::WINDOW_TOO_SMALL));
    assert_eq!(ack(4, 65), Err(RmppStatus::SEGMENT_TOO_BIG));
    assert_eq!(ack(11, 65), Err(RmppStatus::SEGMENT_TOO_BIG));
    assert_eq!(ack(2, 2), Ok(Ack::Old));
    assert_eq!(ack(0, u32::MAX), Ok(Ack::More));
    assert_eq!(ack(3, u32::MAX), Ok(Ack::More));
}

#[test]
fn wide_rmpp_window_is_sent_in_bursts() {
    let mut sender = Sender::new(message(SA, 200 * 1000), u32::MAX, Duration::ZERO, 0);
    let now = Time(5);
    let turn = |sender: &mut Sender| core::iter::from_fn(|| sender.poll_segment(now)).count();
    assert_eq!(turn(&mut sender), BURST as usize);
    assert_eq!((turn(&mut sender), sender.deadline()), (0, now));
    assert_eq!(sender.handle_timeout(now), Timeout::Turn);
    assert_eq!(turn(&mut sender), BURST as usize);
    while sender.handle_timeout(now) == Timeout::Turn {
        turn(&mut sender);
    }
    assert_eq!(sender.deadline(), now.after(ACK_WAIT));
}

#[test]
fn rmpp_reassembly_restores_every_class_and_length() {
    for class in [0x03, 0x06, 0x10, 0x30, 0x4f] {
        for data in [0, 1, 191, 192, 193, 199, 200, 201, 216, 217, 384, 431, 432, 433] {
            let message = message(class, data);
            let mut sender = Sender::new(message.clone(), 65, Duration::ZERO, 0);
            let first = sender.poll_segment(Time(1)).expect("a segment");
            let mut receiver = Receiver::new(&first);
            let mut taken = receiver.handle_data(&first, &Rmpp::of(&first));
            receiver.ack();
            while let Some(mad) = sender.poll_segment(Time(1)) {
                taken = receiver.handle_data(&mad, &Rmpp::of(&mad));
            }
            assert_eq!(taken, Ok(Taken::Complete), "class {class:#x}, {data} bytes");
            assert_eq!(receiver.take()[36..], message[36..], "class {class:#x}, {data} bytes");
        }
    }
}

/// Sends the first segment of a transfer that never continues, with its own TID.
fn begin(receiver: &mut Reassembly<u8, ()>, peer: u8, tid: u64) -> Option<Rmpp> {
    let mut said = None;
    let mad = Transfer::new(message(SA, 1000)).sender_segment();
    receiver.handle_data(Time(1), TransferId { peer, tid, ..ID }, peer, (), &mad, |mad| {
        said = Some(Rmpp::of(&mad));
    });
    said
}

#[test]
fn rmpp_transfers_of_one_peer_are_limited_and_stopped_with_resources() {
    let limits = Limits { transfers: 10, peer_transfers: 4, ..Limits::default() };
    let mut receiver = Reassembly::new(limits);
    for tid in 0..4 {
        assert_eq!(begin(&mut receiver, 1, tid).map(|r| r.kind), Some(RmppType::ACK));
    }
    let stop = begin(&mut receiver, 1, 4).expect("an answer");
    assert_eq!((stop.kind, stop.status), (RmppType::STOP, RmppStatus::RESOURCES));
    assert_eq!(begin(&mut receiver, 2, 0).map(|r| r.kind), Some(RmppType::ACK));
    receiver.retain(|id| id.peer == 2);
    assert_eq!(receiver.len(), 1);
    assert_eq!(begin(&mut receiver, 1, 9).map(|r| r.kind), Some(RmppType::ACK));
}

#[test]
fn rmpp_message_beyond_the_limit_is_stopped_with_resources() {
    for limits in [
        Limits { message: 5000, ..Limits::default() },
        Limits { peer_bytes: 5000, ..Limits::default() },
        Limits { bytes: 5000, ..Limits::default() },
    ] {
        let mut transfer = Transfer::new(message(SA, 200 * 100));
        transfer.receiver = Reassembly::new(limits);
        transfer.run(|_, _| 1);
        assert_eq!(transfer.error, Some(RmppStatus::RESOURCES));
        assert!(transfer.receiver.is_empty() && transfer.receiver.bytes() == 0);
    }
}

#[test]
fn oldest_remembered_rmpp_transfer_is_forgotten_beyond_the_limit() {
    let mut receiver = Reassembly::new(Limits { remembered: 3, ..Limits::default() });
    let mad = Transfer::new(message(SA, 0)).sender_segment();
    for tid in 0..5 {
        let id = TransferId { tid, ..ID };
        let arrival = receiver.handle_data(Time(1 + tid), id, id.peer, (), &mad, |_| {});
        assert!(matches!(arrival, Arrival::Whole(_)));
    }
    let known: Vec<_> = (0..5).filter(|&tid| receiver.knows(&TransferId { tid, ..ID })).collect();
    assert_eq!(known, [2, 3, 4]);
}

/// A later ACK, which may be lost, opens the window.
#[test]
fn closed_rmpp_window_is_waited_for_during_all_retries() {
    let (start, wait) = (Time(7), Duration::from_secs(2));
    let mut sender = Sender::new(message(SA, 1000), 1, wait, RETRIES);
    sender.poll_segment(start).unwrap();
    assert_eq!(sender.handle_ack(start, 1, 1), Ok(Ack::More));
    let mut now = start;
    for _ in 0..RETRIES {
        now = now.after(wait);
        assert_eq!(sender.handle_timeout(now), Timeout::Resend);
        assert!(sender.poll_segment(now).is_none());
        assert_eq!(sender.handle_timeout(now), Timeout::Early);
    }
    assert_eq!(sender.handle_ack(now, 1, 65), Ok(Ack::More));
    assert!(sender.poll_segment(now).is_some());
}
