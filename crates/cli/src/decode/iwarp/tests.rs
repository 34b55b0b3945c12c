//! Decoding of iWARP captures: the committed ones, and streams that are segmented, damaged, truncated or incomplete.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use rdmux_wire::Stag;
use rdmux_wire::ip::{self, Ipv4, Ipv6};
use rdmux_wire::iwarp::ddp::{Model, Tagged, Untagged};
use rdmux_wire::iwarp::mpa::Enhanced;
use rdmux_wire::iwarp::rdmap::Opcode;
use rdmux_wire::iwarp::rtr;
use rdmux_wire::iwarp::terminate::{Fault, Terminate};
use rdmux_wire::tcp::{self, Tcp};

use super::super::summary::Summary;
use super::super::tests::{ROCE_PORTS, captures, decode_file, pcap, quiet};
use super::super::{Printer, decode};
use super::*;

// ---- siw's captures

/// The frames of each capture, how many of them are iWARP, and the number of its FPDUs.
const CAPTURES: [(&str, u64, u64, u64); 17] = [
    ("siw_cm_reject", 2, 0, 0),
    ("siw_loss_write", 405, 277, 272),
    ("siw_read_bw", 332, 177, 172),
    ("siw_read_bw_stall", 10, 3, 1),
    ("siw_rping", 50, 37, 35),
    ("siw_rping_16k", 138, 96, 87),
    ("siw_rping_16k_mtu4300", 68, 46, 39),
    ("siw_rping_crc", 50, 37, 35),
    ("siw_rping_crc_read_terminate", 28, 14, 10),
    ("siw_rping_crc_server_ignored", 138, 93, 87),
    ("siw_rping_mpav1_closed", 11, 3, 1),
    ("siw_rping_p2p", 52, 38, 36),
    ("siw_rping_read_terminate", 31, 19, 15),
    ("siw_rsocket", 207, 131, 130),
    ("siw_send_bw", 250, 162, 142),
    ("siw_ucmatose", 81, 36, 30),
    ("siw_write_bw", 247, 163, 152),
];

#[test]
fn every_siw_capture_is_right() {
    let mut total = Summary::default();
    for (name, frames, iwarp, fpdus) in CAPTURES {
        let summary = decode_file(&captures().join(name).with_extension("pcap"));
        let found = summary.crc_none + summary.crc_right;
        assert_eq!((summary.frames, summary.iwarp, found), (frames, iwarp, fpdus), "{name}");
        assert_eq!(summary.iwarp_right, iwarp, "{name}");
        assert_eq!((summary.left_over, summary.midstream), (0, 0), "{name}");
        total.add(&summary);
    }
    assert!(total.all_right());
    assert_eq!(total.crc_right, 45);
    for (kind, count) in
        [("MPA request", 22), ("MPA reply", 22), ("READ_REQUEST", 46), ("TERMINATE", 2)]
    {
        assert_eq!(total.packets.get(kind), Some(&count), "{kind}");
    }
    let there = captures().read_dir().unwrap().filter(|entry| {
        entry.as_ref().is_ok_and(|e| e.file_name().to_string_lossy().starts_with("siw_"))
    });
    assert_eq!(there.count(), CAPTURES.len(), "every capture has its counts above");
}

#[test]
fn lines() {
    let mut printer = Printer { out: Vec::new(), json: false, quiet: false, headings: false };
    for name in ["siw_rping_p2p.pcap", "siw_rping_read_terminate.pcap"] {
        let file = std::fs::File::open(captures().join(name)).unwrap();
        decode(file, "x", &ROCE_PORTS, &mut printer).unwrap();
    }
    let text = String::from_utf8(printer.out).unwrap();
    for line in [
        "MPA request revision 2 flags S peer-to-peer rtr write rtr read ird 1 ord 1 private data 0",
        "WRITE stag 0x00000001 to 0x0 payload 0 (ready to receive)",
        "SEND qn 0 msn 1 mo 0 payload 16",
        "READ_REQUEST qn 1 msn 1 mo 0 len 64 from stag 0x7263f100 to 0x55b5f5702b80 into stag 0xa12de600",
        "TERMINATE qn 2 msn 1 mo 0 DDP tagged: base or bounds violation (fields in siw's order)",
        "TCP 33397 > 7174 [FIN, ACK] length 0",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

/// siw's Terminates can be parsed as MPA's, which only the initiator's first FPDU may carry.
#[test]
fn siw_terminate_is_an_mpa_error_only_as_first_fpdu_of_the_initiator() {
    let untagged = Untagged { last: true, invalidate: Stag(0), qn: 2, msn: 1, mo: 0 };
    let header = Header::new(Opcode::Terminate, Model::Untagged(untagged)).to_buf();
    let framing = Framing { crc: false, markers: false };
    let mut terminate = vec![0; framing.frame_len(0, header.len() + 4)];
    framing.emit(0, &[&header, &[0x20, 0x06, 0, 0]], &mut terminate);
    for (from, text) in [
        (INITIATOR, "MPA: insufficient IRD"),
        (RESPONDER, "RDMAP operation error: unexpected opcode (fields in siw's order)"),
    ] {
        let mut conversation = Conversation::open(false);
        conversation.startups(0, 0);
        conversation.send(from, &terminate, 100);
        let frames = conversation.frames();
        let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        let mut printer = Printer { out: Vec::new(), json: false, quiet: false, headings: false };
        decode(&pcap(false, &frames)[..], "x", &ROCE_PORTS, &mut printer).unwrap();
        let printed = String::from_utf8(printer.out).unwrap();
        assert!(printed.contains(text), "{printed}");
    }
}

// ---- captures made here

const INITIATOR: usize = 0;
const RESPONDER: usize = 1;
const PORTS: [u16; 2] = [40000, 7174];
/// The first sequence number of each direction: one of them wraps soon.
const FIRST: [u32; 2] = [u32::MAX - 100, 7];

/// The packet that an end sends.
#[derive(Clone)]
struct Packet {
    from: usize,
    seq: u32,
    ack: u32,
    flags: u8,
    payload: Vec<u8>,
}

/// Both directions of a connection, as packets.
#[derive(Clone)]
struct Conversation {
    ipv6: bool,
    sent: [usize; 2],
    packets: Vec<Packet>,
}

impl Conversation {
    /// Returns a conversation with the three segments that open it.
    fn open(ipv6: bool) -> Self {
        let mut conversation = Self { ipv6, sent: [0; 2], packets: Vec::new() };
        for (from, flags) in [(INITIATOR, 0x02), (RESPONDER, 0x12), (INITIATOR, 0x10)] {
            conversation.control(from, flags);
        }
        for from in [INITIATOR, RESPONDER] {
            conversation.packets[from].seq = FIRST[from];
        }
        conversation
    }

    fn number(&self, from: usize) -> u32 {
        FIRST[from].wrapping_add(1).wrapping_add(u32::try_from(self.sent[from]).unwrap())
    }

    fn control(&mut self, from: usize, flags: u8) {
        let (seq, ack) = (self.number(from), self.number(1 - from));
        self.packets.push(Packet { from, seq, ack, flags, payload: Vec::new() });
    }

    fn send(&mut self, from: usize, bytes: &[u8], segment: usize) {
        for payload in bytes.chunks(segment) {
            self.control(from, 0x18);
            self.packets.last_mut().unwrap().payload = payload.to_vec();
            self.sent[from] += payload.len();
        }
    }

    fn startups(&mut self, request: u8, reply: u8) {
        self.startups_with(request, reply, b"hello");
    }

    fn startups_with(&mut self, request: u8, reply: u8, private_data: &[u8]) {
        for (from, kind, flags) in
            [(INITIATOR, Kind::Request, request), (RESPONDER, Kind::Reply, reply)]
        {
            let (flags, enhanced) = (Flags(flags), Some(Enhanced::default()));
            let startup = Startup { kind, flags, revision: 2, enhanced, private_data };
            let mut out = [0; Startup::MAX_LEN];
            let len = startup.emit(&mut out);
            self.send(from, &out[..len], 1000);
        }
    }

    fn frames(&self) -> Vec<Vec<u8>> {
        self.packets.iter().map(|packet| packet.frame(self.ipv6)).collect()
    }

    fn decode(&self) -> Summary {
        decode_frames(&self.frames())
    }
}

impl Packet {
    fn frame(&self, ipv6: bool) -> Vec<u8> {
        let tcp = Tcp {
            src_port: PORTS[self.from],
            dst_port: PORTS[1 - self.from],
            seq: self.seq,
            ack: self.ack,
            header_len: 20,
            flags: tcp::Flags(self.flags),
            window: 1000,
        };
        let payload = [&tcp.to_bytes()[..], &self.payload].concat();
        let payload_len = u16::try_from(payload.len()).unwrap();
        let octet = u8::try_from(self.from).unwrap();
        if ipv6 {
            let src = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, octet.into());
            let dst = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1 - u16::from(octet));
            let (next_header, hop_limit) = (ip::TCP, 64);
            let header =
                Ipv6 { tclass: 0, flow_label: 0, payload_len, next_header, hop_limit, src, dst };
            return [&header.to_bytes()[..], &payload].concat();
        }
        let header = Ipv4 {
            header_len: 20,
            tos: 0,
            total_len: 20 + payload_len,
            id: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            ttl: 64,
            protocol: ip::TCP,
            src: Ipv4Addr::new(10, 0, 0, octet),
            dst: Ipv4Addr::new(10, 0, 0, 1 - octet),
        };
        [&header.to_bytes()[..], &payload].concat()
    }
}

fn decode_frames(frames: &[Vec<u8>]) -> Summary {
    let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    let (summary, error) =
        decode(&pcap(false, &frames)[..], "x", &ROCE_PORTS, &mut quiet()).unwrap();
    assert!(error.is_none());
    summary
}

/// Returns a stream of FPDUs of all kinds.
fn stream(framing: Framing, lens: &[usize]) -> (Vec<u8>, u64) {
    let untagged = |opcode: Opcode| {
        let qn = opcode.queue().unwrap();
        Model::Untagged(Untagged { last: true, invalidate: Stag(3), qn, msn: 1, mo: 0 })
    };
    let tagged = Model::Tagged(Tagged { last: false, stag: Stag(9), to: 0x1000 });
    let mut terminate = [0; Terminate::MAX_LEN];
    let len = Terminate::new(Fault::RdmapAccess).emit(&mut terminate);
    let request = rtr::READ_REQUEST.to_bytes();
    let mut ulpdus: Vec<(Opcode, Model, Vec<u8>)> = vec![
        (Opcode::ReadRequest, untagged(Opcode::ReadRequest), request.to_vec()),
        (Opcode::SendInvalidate, untagged(Opcode::SendInvalidate), vec![1; 7]),
        (Opcode::Immediate, untagged(Opcode::Immediate), vec![1; 8]),
    ];
    ulpdus.extend(lens.iter().map(|len| (Opcode::Write, tagged, vec![0x5a; *len])));
    ulpdus.push((Opcode::Terminate, untagged(Opcode::Terminate), terminate[..len].to_vec()));
    let mut bytes = Vec::new();
    for (opcode, model, payload) in &ulpdus {
        let position = bytes.len();
        let header = Header::new(*opcode, *model).to_buf();
        let len = framing.frame_len(position as u64, header.len() + payload.len());
        bytes.resize(position + len, 0);
        framing.emit(position as u64, &[&header, payload], &mut bytes[position..]);
    }
    (bytes, ulpdus.len() as u64)
}

/// Returns a conversation in which the initiator sends [`stream`] in segments.
fn conversation(flags: [u8; 2], ipv6: bool, lens: &[usize], segment: usize) -> (Conversation, u64) {
    let mut conversation = Conversation::open(ipv6);
    conversation.startups(flags[0], flags[1]);
    let crc = (flags[0] | flags[1]) & 0x40 != 0;
    let (bytes, fpdus) = stream(Framing { crc, markers: flags[1] & 0x80 != 0 }, lens);
    conversation.send(INITIATOR, &bytes, segment);
    conversation.control(RESPONDER, 0x10);
    conversation.control(INITIATOR, 0x11);
    (conversation, fpdus)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However segments are cut, joined, repeated and reordered, everything is decoded correctly.
    #[test]
    fn fpdus_are_decoded_across_any_segmentation_and_reordering(
        flags in prop::sample::select(vec![[0, 0], [0x40, 0], [0, 0x40], [0, 0xc0], [0x80, 0x80]]),
        ipv6: bool,
        lens in prop::collection::vec(0_usize..3000, 0..6),
        segment in prop::sample::select(vec![1_usize, 7, 512, 1448, 60_000]),
        swaps in prop::collection::vec((0_usize..10_000, 0_usize..3), 0..20),
    ) {
        let (mut conversation, fpdus) = conversation(flags, ipv6, &lens, segment);
        const START: usize = 5; // behind what opens the connection, and the start-up frames
        let data = START..conversation.packets.len() - 2;
        for (at, ahead) in swaps {
            let at = data.start + at % data.len();
            if ahead == 0 {
                let again = conversation.packets[at].clone();
                conversation.packets.insert(at + 1, again);
            } else if at + ahead < data.end {
                conversation.packets.swap(at, at + ahead);
            }
        }
        let summary = conversation.decode();
        prop_assert!(summary.all_right(), "{}", summary);
        prop_assert_eq!(summary.crc_right + summary.crc_none, fpdus);
        prop_assert_eq!(summary.crc_right > 0, (flags[0] | flags[1]) & 0x40 != 0);
        prop_assert_eq!(summary.iwarp, summary.iwarp_right);
        prop_assert_eq!(summary.left_over, 0);
    }

    /// A flipped bit after the first length is detected.
    #[test]
    fn flipped_bit_in_an_fpdu_is_a_wrong_crc(bit in 2_usize * 8..40 * 8) {
        let (mut conversation, _) = conversation([0x40, 0], false, &[100], 60_000);
        let payload = &mut conversation.packets[5].payload;
        payload[bit / 8] ^= 1 << (bit % 8);
        let summary = conversation.decode();
        prop_assert_eq!(summary.crc_wrong, 1);
        prop_assert!(!summary.all_right());
    }

    #[test]
    fn decoder_does_not_panic_on_any_tcp_segments(
        segments in prop::collection::vec(
            (0_usize..2, 0_u32..3000, 0_u32..3000, 0_u8..32, prop::collection::vec(any::<u8>(), 0..80)),
            0..30,
        ),
        startups: bool,
    ) {
        let mut conversation = Conversation::open(false);
        if startups {
            conversation.startups(0xc0, 0x80);
        }
        for (from, seq, ack, flags, payload) in segments {
            let seq = FIRST[from].wrapping_add(seq);
            let ack = FIRST[1 - from].wrapping_add(ack);
            conversation.packets.push(Packet { from, seq, ack, flags, payload });
        }
        let _ = conversation.decode().to_string();
    }
}

/// A segment was not captured: what follows it is not decoded, and that is no failure.
#[test]
fn uncaptured_segment_stops_decoding_without_failure() {
    let (mut conversation, fpdus) = conversation([0, 0], false, &[1000; 20], 1020);
    let lost = conversation.packets.remove(8);
    assert!(lost.payload.len() > 1000);
    let end = conversation.packets.split_off(conversation.packets.len() - 2);
    let summary = conversation.decode();
    assert!(summary.all_right());
    assert!(summary.crc_none < fpdus);
    assert!(summary.left_over > 15_000, "{summary}");
    // The peer acknowledges it, so it was sent, and will not be retransmitted.
    conversation.packets.extend(end);
    let summary = conversation.decode();
    assert!(summary.all_right());
    assert_eq!(summary.left_over, 0, "{summary}");
    assert_eq!(summary.iwarp - summary.iwarp_right, 1, "{summary}");
}

/// Bytes that are missing within a frame leave that frame unchecked, and the next ones correct.
#[test]
fn fpdus_truncated_by_snap_length_are_unchecked() {
    let (conversation, fpdus) = conversation([0x40, 0], false, &[1000; 5], 60_000);
    let bytes = &conversation.packets[5].payload;
    let framing = Framing { crc: true, markers: false };
    for private_data in [&b"hello"[..], &[7; 100]] {
        // One FPDU of the stream per segment.
        let mut by_frame = Conversation::open(false);
        by_frame.startups_with(0x40, 0, private_data);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (frame, behind) = rest.split_at(framing.need(0, rest));
            by_frame.send(INITIATOR, frame, 60_000);
            rest = behind;
        }
        let summary = decode_cut(&by_frame, 96);
        assert!(summary.all_right());
        assert_eq!(summary.crc_right + summary.crc_unchecked, fpdus, "{summary}");
        assert_eq!(summary.packets.get("MPA request"), Some(&1));
        assert_eq!(summary.packets.get("WRITE"), Some(&5));
        assert_eq!((summary.crc_unchecked, summary.iwarp - summary.iwarp_right), (5, 5));
    }
}

/// A frame uses memory only for its captured bytes, whatever the length in its header is.
#[test]
fn uncaptured_fpdu_bytes_take_no_memory() {
    let framing = Framing { crc: false, markers: false };
    let tagged = Model::Tagged(Tagged { last: true, stag: Stag(9), to: 0 });
    let header = Header::new(Opcode::Write, tagged).to_buf();
    let mut frame = vec![0; framing.frame_len(0, header.len() + 60_000)];
    framing.emit(0, &[&header, &[0; 60_000]], &mut frame);
    let (mut frames, mut units) = (Frames::default(), Vec::new());
    frames.agreed(framing, true, true, false);
    assert!(frames.take(&Piece::Bytes(frame[..40].to_vec()), &mut units));
    assert!(frames.take(&Piece::Missing(50_000), &mut units));
    assert!(units.is_empty() && frames.memory() < 1000, "{}", frames.memory());
    assert!(frames.take(&Piece::Bytes(frame[50_040..50_050].to_vec()), &mut units));
    let rest = u64::try_from(frame.len() - 50_050).unwrap();
    assert!(frames.take(&Piece::Missing(rest), &mut units));
    let [Unit::Frame(unit)] = &units[..] else { panic!("{units:?}") };
    assert_eq!(unit.check, Check::Unchecked);
    assert!(unit.to_string().contains("WRITE") && unit.to_string().contains("60000"), "{unit}");
}

/// The reply that requests markers may be captured after the frames that have them.
#[test]
fn late_mpa_marker_agreement_does_not_panic() {
    for markers in [false, true] {
        let (mut frames, mut units) = (Frames::default(), Vec::new());
        frames.agreed(Framing { crc: false, markers: !markers }, true, true, false);
        assert!(frames.take(&Piece::Bytes([200; 12].to_vec()), &mut units));
        assert!(frames.take(&Piece::Missing(1000), &mut units));
        assert!(frames.take(&Piece::Bytes([0; 8].to_vec()), &mut units));
        frames.agreed(Framing { crc: false, markers }, true, true, false);
        for _ in 0..100 {
            if !frames.take(&Piece::Bytes([0; 1000].to_vec()), &mut units) {
                break;
            }
        }
    }
}

/// More may be missing than the rest of the start-up frame, or all of its relevant contents.
#[test]
fn start_up_frames_that_were_cut_early_are_still_of_iwarp() {
    let (conversation, _) = conversation([0x40, 0], false, &[100], 60_000);
    // The request and the FPDUs in one segment.
    let mut joined = conversation.clone();
    let frames = joined.packets.remove(5);
    joined.packets[3].payload.extend(&frames.payload);
    for (conversation, payload, requests) in
        [(&joined, 26, 1), (&conversation, 23, 0), (&conversation, 16, 0)]
    {
        let summary = decode_cut(conversation, 40 + payload);
        assert!(summary.all_right());
        assert_eq!(summary.packets.get("MPA request").copied().unwrap_or_default(), requests);
        assert!(summary.iwarp > summary.iwarp_right, "{summary}");
    }
    assert_eq!(decode_cut(&conversation, 40 + 15).iwarp, 0);
}

/// Decodes a capture whose frames were truncated to this many bytes.
fn decode_cut(conversation: &Conversation, snap: usize) -> Summary {
    let mut file = pcap(false, &[]);
    for frame in conversation.frames() {
        let cut = &frame[..frame.len().min(snap)];
        let [len, original] = [cut.len(), frame.len()].map(|n| u32::try_from(n).unwrap());
        file.extend([9, 0, len, original].iter().flat_map(|v: &u32| v.to_le_bytes()));
        file.extend_from_slice(cut);
    }
    let (summary, error) = decode(&file[..], "x", &ROCE_PORTS, &mut quiet()).unwrap();
    assert!(error.is_none());
    summary
}

#[test]
fn iwarp_stream_without_mpa_startup_is_counted_midstream() {
    let (mut conversation, _) = conversation([0, 0], false, &[100; 4], 60_000);
    conversation.packets.drain(..5);
    let summary = conversation.decode();
    assert!(summary.all_right());
    assert_eq!((summary.iwarp, summary.midstream), (0, 1), "{summary}");
    assert!(summary.to_string().contains("look like iWARP"), "{summary}");
}

/// Without the reply the use of CRCs is unknown.
#[test]
fn iwarp_capture_of_one_direction_leaves_crcs_unchecked() {
    let (mut conversation, fpdus) = conversation([0, 0x40], false, &[100; 4], 60_000);
    conversation.packets.retain(|packet| packet.from == INITIATOR);
    let summary = conversation.decode();
    assert!(summary.all_right());
    assert_eq!(summary.crc_unchecked, fpdus);
}

#[test]
fn connection_end_within_an_fpdu_is_no_failure() {
    for (flags, from) in [(0x04, RESPONDER), (0x14, INITIATOR), (0x11, INITIATOR)] {
        let (mut conversation, fpdus) = conversation([0, 0], true, &[3000], 500);
        conversation.packets.truncate(8);
        conversation.control(from, flags);
        let summary = conversation.decode();
        assert!(summary.all_right());
        assert!(summary.crc_none < fpdus);
        assert_eq!(summary.iwarp, summary.iwarp_right);
    }
}

#[test]
fn reused_tcp_ports_are_decoded_as_a_new_stream() {
    let (first, fpdus) = conversation([0x40, 0], false, &[10], 100);
    let (mut second, _) = conversation([0, 0], false, &[10], 100);
    for packet in &mut second.packets {
        packet.seq = packet.seq.wrapping_add(77_777);
        packet.ack = packet.ack.wrapping_add(77_777);
    }
    let summary = decode_frames(&[first.frames(), second.frames()].concat());
    assert!(summary.all_right());
    assert_eq!((summary.crc_right, summary.crc_none), (fpdus, fpdus));
}

#[test]
fn mpa_reject_is_right_and_invalid_fpdu_or_reply_is_undecodable() {
    let mut refused = Conversation::open(false);
    refused.startups(0, 0x20);
    refused.send(RESPONDER, b"whatever", 100);
    let summary = refused.decode();
    assert!(summary.all_right());
    assert_eq!(summary.packets.len(), 2);
    // A frame of DDP version 0, and an invalid answer.
    let mut wrong = Conversation::open(false);
    wrong.startups(0, 0);
    wrong.send(
        INITIATOR,
        &[0, 20, 0x40, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        100,
    );
    wrong.send(INITIATOR, &[0; 100], 100);
    assert_eq!(wrong.decode().undecodable, 1);
    let mut answered = Conversation::open(false);
    answered.startups(0, 0);
    let reply = answered.packets.last_mut().unwrap();
    reply.payload = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
    assert_eq!(answered.decode().undecodable, 1);
}

#[test]
fn tcp_streams_that_are_not_mpa_are_not_iwarp() {
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"MPEG", b"MPA ID Request is what I mean", b"\0"] {
        for segment in [1, 100] {
            let mut other = Conversation::open(false);
            other.send(INITIATOR, bytes, segment);
            other.send(RESPONDER, bytes, segment);
            let summary = other.decode();
            assert!(summary.all_right());
            assert_eq!(summary.undecodable, 0);
            assert!(summary.iwarp < 16, "{summary}");
        }
    }
}

#[test]
fn json() {
    let mut printer = Printer { out: Vec::new(), json: true, quiet: false, headings: false };
    let file = std::fs::File::open(captures().join("siw_rping_crc.pcap")).unwrap();
    decode(file, "x", &ROCE_PORTS, &mut printer).unwrap();
    let text = String::from_utf8(printer.out).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let units: Vec<_> =
        lines.iter().filter_map(|line| line["units"].as_array()).flatten().collect();
    assert_eq!(units.len(), 37);
    assert_eq!(
        (&units[0]["what"], &units[1]["what"]),
        (&"MPA request".into(), &"MPA reply".into())
    );
    assert_eq!((&units[2]["what"], &units[2]["crc"]), (&"SEND".into(), &"right".into()));
    assert_eq!((&units[2]["msn"], &units[2]["payload"]), (&1.into(), &16.into()));
}
