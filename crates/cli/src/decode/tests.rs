//! Decoding of RoCE captures: the committed ones, damaged and truncated frames, and all file formats.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rdmux_wire::icrc::{Icrc, Ipv4Pseudo, Ipv6Pseudo};
use rdmux_wire::ip::{self, Ipv4, Ipv6};
use rdmux_wire::udp::Udp;
use rdmux_wire::{Bth, Grh, HeaderBuf, Lrh, Opcode, Psn, Qpn};

use super::file::Frame;
use super::frame::{Dissection, What};
use super::roce::IcrcCheck;
use super::*;

const ETHERNET: u16 = 1;
const RAW: u16 = 101;

/// The ports of RoCE in these tests.
pub(super) const ROCE_PORTS: [u16; 1] = [ROCE_PORT];

pub(super) fn dissect<'a>(frame: &Frame<'a>) -> Dissection<'a> {
    super::frame::dissect(frame, &ROCE_PORTS)
}

// ---- the parts of frames

const SRC: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const DST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const SRC6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const DST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// Returns BTH through pad of a packet of 64 bytes.
fn transport(opcode: Opcode, psn: u32) -> Vec<u8> {
    let bth = Bth::new(opcode, Qpn::new(0x12), Psn::new(psn));
    let mut bytes = HeaderBuf::new(&bth).as_slice().to_vec();
    bytes.extend([0x5a; 64]);
    bytes
}

fn udp(dst_port: u16, len: usize) -> Udp {
    let length = u16::try_from(Udp::LEN + len).unwrap();
    Udp { src_port: 0xc001, dst_port, length, checksum: 0 }
}

/// Appends the ICRC of a separate packet with this Identification.
pub(super) fn with_icrc_v4(transport: &[u8], id: u16) -> Vec<u8> {
    with_icrc_v4_to(ROCE_PORT, transport, id)
}

fn with_icrc_v4_to(port: u16, transport: &[u8], id: u16) -> Vec<u8> {
    let Udp { src_port, dst_port, length: udp_len, .. } = udp(port, transport.len() + 4);
    let pseudo = Ipv4Pseudo { src: SRC, dst: DST, id, src_port, dst_port, udp_len };
    let mut icrc = Icrc::ipv4(&pseudo);
    icrc.update(transport);
    [transport, &icrc.finish()].concat()
}

fn with_icrc_v6(transport: &[u8]) -> Vec<u8> {
    let Udp { src_port, dst_port, length: udp_len, .. } = udp(ROCE_PORT, transport.len() + 4);
    let pseudo = Ipv6Pseudo { src: SRC6, dst: DST6, src_port, dst_port, udp_len };
    let mut icrc = Icrc::ipv6(&pseudo);
    icrc.update(transport);
    [transport, &icrc.finish()].concat()
}

pub(super) fn ipv4(id: u16, payload: &[u8]) -> Vec<u8> {
    ipv4_to(ROCE_PORT, id, payload)
}

fn ipv4_to(port: u16, id: u16, payload: &[u8]) -> Vec<u8> {
    let udp = udp(port, payload.len());
    let header = Ipv4 {
        header_len: 20,
        tos: 0,
        total_len: 20 + udp.length,
        id,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: 64,
        protocol: ip::UDP,
        src: SRC,
        dst: DST,
    };
    [&header.to_bytes()[..], &udp.to_bytes(), payload].concat()
}

fn ipv6(payload: &[u8]) -> Vec<u8> {
    let udp = udp(ROCE_PORT, payload.len());
    let header = Ipv6 {
        tclass: 0,
        flow_label: 7,
        payload_len: udp.length,
        next_header: ip::UDP,
        hop_limit: 64,
        src: SRC6,
        dst: DST6,
    };
    [&header.to_bytes()[..], &udp.to_bytes(), payload].concat()
}

fn packet_v4() -> Vec<u8> {
    ipv4(0x1234, &with_icrc_v4(&transport(Opcode::RC_SEND_ONLY, 5), 0x1234))
}

pub(super) fn frame(link: u16, data: &[u8]) -> Frame<'_> {
    Frame { time: Duration::ZERO, link, data, original_len: data.len() }
}

pub(super) fn summary_of(frame: &Frame<'_>) -> Summary {
    let mut summary = Summary::default();
    summary.count(&dissect(frame).what);
    summary
}

/// Returns whether a file with this frame has one frame with valid RDMA.
fn is_right(frame: &Frame<'_>) -> bool {
    let Summary { rdma, icrc_right, offloaded, .. } = summary_of(frame);
    (rdma, icrc_right, offloaded) == (1, 1, 0)
}

#[test]
fn rdma_on_a_port_of_roce_is_decoded_and_on_any_other_is_udp() {
    const PORT: u16 = 4792;
    let data = ipv4_to(PORT, 7, &with_icrc_v4_to(PORT, &transport(Opcode::RC_SEND_ONLY, 5), 7));
    let mut wrong = data.clone();
    *wrong.last_mut().unwrap() ^= 1;
    for (data, icrc_right) in [(&data, 1), (&wrong, 0)] {
        let mut summary = Summary::default();
        summary.count(&super::frame::dissect(&frame(RAW, data), &[ROCE_PORT, PORT]).what);
        assert_eq!((summary.rdma, summary.icrc_right), (1, icrc_right));
        assert_eq!(summary.all_right(), icrc_right == 1);
    }
    assert_eq!(summary_of(&frame(RAW, &wrong)).rdma, 0);
}

/// Messages through shared memory have RoCE's port in captures, whichever port the host uses.
#[test]
fn decode_with_another_port_includes_the_usual_one() {
    use clap::Parser as _;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        decode: super::DecodeArgs,
    }
    let line = Line::parse_from(["decode", "--port", "4792", "file"]);
    assert_eq!(line.decode.ports(), [4792, ROCE_PORT]);
}

// ---- the kernel's captures

pub(super) fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures")
}

pub(super) fn quiet() -> Printer<io::Sink> {
    Printer { out: io::sink(), json: false, quiet: false, headings: false }
}

pub(super) fn decode_file(path: &Path) -> Summary {
    let (summary, error) =
        decode(File::open(path).unwrap(), "capture", &ROCE_PORTS, &mut quiet()).unwrap();
    assert!(error.is_none(), "{}: {error:?}", path.display());
    summary
}

/// The frames of each capture, and how many of them are RDMA.
const CAPTURES: [(&str, u64, u64); 18] = [
    ("rxe_atomic", 20, 20),
    ("rxe_cm_reject", 2, 2),
    ("rxe_loss_read", 340, 340),
    ("rxe_loss_write", 1437, 1437),
    ("rxe_mckey", 11, 5),
    ("rxe_rc_pingpong", 108, 108),
    ("rxe_read_bw", 180, 180),
    ("rxe_rnr_try", 591, 591),
    ("rxe_rping", 65, 65),
    ("rxe_rping_16k", 131, 131),
    ("rxe_rping_16k_mtu4096", 59, 59),
    ("rxe_rping_read_localerr", 24, 24),
    ("rxe_send_srq", 100, 100),
    ("rxe_ucmatose", 75, 75),
    ("rxe_ud", 24, 24),
    ("rxe_ud_pingpong", 20, 20),
    ("rxe_write_bw", 180, 180),
    ("rxe_write_bw_mtu4096", 50, 50),
];

#[test]
fn every_roce_capture_is_right() {
    let mut total = Summary::default();
    for (name, frames, rdma) in CAPTURES {
        let summary = decode_file(&captures().join(name).with_extension("pcap"));
        let counts = (summary.frames, summary.rdma, summary.icrc_right, summary.other);
        assert_eq!(counts, (frames, rdma, rdma, frames - rdma), "{name}");
        total.add(&summary);
    }
    assert!(total.all_right());
    for (kind, count) in [
        ("RC RDMA_WRITE_MIDDLE", 1348),
        ("RC ACKNOWLEDGE, NAK PSN sequence error", 28),
        ("RC FETCH_ADD", 10),
        ("UD SEND_ONLY_WITH_IMMEDIATE", 25),
        ("CM REQ", 8),
        ("CM SIDR_REP", 2),
    ] {
        assert_eq!(total.packets.get(kind), Some(&count), "{kind}");
    }
    let listed = CAPTURES.len();
    let there = captures().read_dir().unwrap().filter(|entry| {
        entry.as_ref().is_ok_and(|e| e.file_name().to_string_lossy().starts_with("rxe_"))
    });
    assert_eq!(there.count(), listed, "every capture has its counts above");
}

// ---- link and network layers

#[test]
fn ethernet_vlan_raw_and_linux_cooked_link_types_are_decoded() {
    let ip = packet_v4();
    let ether = |tail: &[u8]| [&[0; 12][..], tail, &ip].concat();
    assert!(is_right(&frame(RAW, &ip)));
    assert!(is_right(&frame(ETHERNET, &ether(&[8, 0]))));
    assert!(is_right(&frame(ETHERNET, &ether(&[0x88, 0xa8, 0, 1, 0x81, 0, 0, 2, 8, 0]))));
    assert!(is_right(&frame(0, &[&[2, 0, 0, 0], &ip[..]].concat())));
    assert!(is_right(&frame(113, &[&[0; 14][..], &[8, 0], &ip[..]].concat())));
    assert!(is_right(&frame(276, &[&[8, 0][..], &[0; 18], &ip[..]].concat())));
    let tagged = ether(&[0x81, 0, 0, 9, 8, 0]);
    assert_eq!(dissect(&frame(ETHERNET, &tagged)).vlan, Some(9));
}

#[test]
fn ethernet_padding_is_not_payload() {
    let padded = [&[0; 12][..], &[8, 0], &packet_v4(), &[0xaa; 9]].concat();
    assert!(is_right(&frame(ETHERNET, &padded)));
}

#[test]
fn icrc_of_rocev2_over_ipv6_is_checked() {
    let good = ipv6(&with_icrc_v6(&transport(Opcode::UC_SEND_ONLY, 1)));
    assert!(is_right(&frame(RAW, &good)));
    let mut bad = good;
    *bad.last_mut().unwrap() ^= 1;
    assert_eq!(summary_of(&frame(RAW, &bad)).icrc_wrong, 1);
}

#[test]
fn every_flipped_bit_covered_by_the_icrc_is_detected() {
    let good = packet_v4();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        // TOS, TTL, the IP and UDP checksums and the BTH's congestion byte are outside the ICRC.
        let masked = matches!(bit / 8, 1 | 8 | 10 | 11 | 26 | 27 | 32);
        assert_eq!(is_right(&frame(RAW, &bad)), masked, "bit {bit}");
    }
}

#[test]
fn truncated_frame_is_not_a_failure() {
    let whole = packet_v4();
    for len in 0..whole.len() {
        let cut = Frame { original_len: whole.len(), ..frame(RAW, &whole[..len]) };
        let summary = summary_of(&cut);
        assert!(summary.all_right() && summary.icrc_right == 0, "{len}: {summary}");
        // From the end of the UDP header on it is recognized as RDMA, and from the end of the BTH on by its opcode.
        assert_eq!(summary.cut_short, u64::from(len >= 28), "{len}");
        assert_eq!(summary.packets.len(), usize::from(len >= 40), "{len}");
    }
}

#[test]
fn inconsistent_ip_or_udp_length_is_undecodable() {
    let mut lies = packet_v4();
    lies.truncate(lies.len() - 4);
    assert_eq!(summary_of(&frame(RAW, &lies)).undecodable, 1);
    let mut udp_lies = packet_v4();
    udp_lies[25] += 4;
    assert_eq!(summary_of(&frame(RAW, &udp_lies)).undecodable, 1);
    let short = ipv4(0, &[0; 15]);
    assert_eq!(summary_of(&frame(RAW, &short)).undecodable, 1);
}

#[test]
fn fragments_are_named() {
    let mut first = packet_v4();
    first[6] = 0x20;
    assert_eq!(summary_of(&frame(RAW, &first)).fragments, 1);
    let what = dissect(&frame(RAW, &first)).what.to_string();
    assert_eq!(what, "IP fragment of UDP at 0");
    let mut later = first;
    later[7] = 2;
    let what = dissect(&frame(RAW, &later)).what.to_string();
    assert_eq!(what, "IP fragment of UDP at 16");

    const FRAGMENT: u8 = 44;
    for (field, at) in [(1_u16, 0), (0x0598, 0x598)] {
        let [high, low] = field.to_be_bytes();
        let mut packet = ipv6(&[0; 64]);
        packet[6] = FRAGMENT;
        packet.splice(40..40, [ip::UDP, 0, high, low, 0, 0, 0, 1]);
        let what = dissect(&frame(RAW, &packet)).what.to_string();
        assert_eq!(what, format!("IP fragment of UDP at {at}"));
    }
}

// ---- RDMA

/// RDMA in Ethernet without IP.
#[test]
fn roce_v1() {
    let transport = transport(Opcode::RC_SEND_ONLY, 1);
    let lrh = [0xff; Lrh::LEN];
    let grh = Grh {
        tclass: 1,
        flow_label: 2,
        pay_len: u16::try_from(transport.len() + 4).unwrap(),
        next_hdr: Grh::NEXT_BTH,
        hop_limit: 3,
        sgid: SRC6.into(),
        dgid: DST6.into(),
    };
    let mut icrc = Icrc::infiniband(&Lrh::parse(&lrh).unwrap(), Some(&grh));
    icrc.update(&transport);
    let packet = [&grh.to_bytes()[..], &transport, &icrc.finish()].concat();
    let ether = [&[0; 12][..], &[0x89, 0x15], &packet].concat();
    assert!(is_right(&frame(ETHERNET, &ether)));
}

#[test]
fn segmentation_offload_is_undone() {
    let packets = [
        transport(Opcode::RC_WRITE_MIDDLE, 1),
        transport(Opcode::RC_WRITE_MIDDLE, 2),
        transport(Opcode::RC_WRITE_LAST, 3)[..40].to_vec(),
    ];
    let segments = |with: &dyn Fn(&[u8], u16) -> Vec<u8>| {
        let ids = (7_u16..).step_by(3);
        packets.iter().zip(ids).flat_map(|(packet, id)| with(packet, id)).collect::<Vec<u8>>()
    };
    let v4 = ipv4(7, &segments(&|packet, id| with_icrc_v4(packet, id)));
    let v6 = ipv6(&segments(&|packet, _| with_icrc_v6(packet)));
    for bytes in [&v4, &v6] {
        let summary = summary_of(&frame(RAW, bytes));
        assert_eq!((summary.icrc_right, summary.offloaded), (1, 1));
        assert_eq!(summary.packets["RC RDMA_WRITE_MIDDLE"], 2);
        assert_eq!(summary.packets["RC RDMA_WRITE_LAST"], 1);
    }
    // One wrong byte in the last segment: the whole frame is wrong.
    let mut bad = v4;
    let at = bad.len() - 8;
    bad[at] ^= 1;
    assert_eq!(summary_of(&frame(RAW, &bad)).icrc_wrong, 1);
}

#[test]
fn a_wrong_icrc_says_what_it_should_be() {
    let mut bytes = packet_v4();
    let at = bytes.len() - 4;
    let right = u32::from_be_bytes(*bytes.last_chunk().unwrap());
    bytes[at..].fill(0);
    let data = frame(RAW, &bytes);
    let dissection = dissect(&data);
    let What::Roce(roce) = &dissection.what else { panic!("{dissection:?}") };
    assert_eq!(roce.icrc, IcrcCheck::Wrong { found: 0, computed: right });
    assert!(dissection.what.to_string().contains("ICRC WRONG: 00000000, should be"));
}

#[test]
fn non_mad_payload_to_qp1_is_undecodable() {
    let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::QP1, Psn::new(0));
    let deth = rdmux_wire::Deth { qkey: rdmux_wire::Qkey::QP1, src_qpn: Qpn::QP1 };
    let header = HeaderBuf::new(&bth).deth(&deth);
    let garbage = [header.as_slice(), &[7; 256]].concat();
    let bytes = ipv4(3, &with_icrc_v4(&garbage, 3));
    assert_eq!(summary_of(&frame(RAW, &bytes)).undecodable, 1);
}

// ---- files and status

#[test]
fn status() {
    let folder = rdmux_testing::temp_dir();
    let dir = folder.path();
    let write = |name: &str, packet: &[u8]| {
        let path = dir.join(name);
        std::fs::write(&path, pcap(false, &[packet])).unwrap();
        path
    };
    let good = write("good", &packet_v4());
    let mut wrong = packet_v4();
    *wrong.last_mut().unwrap() ^= 1;
    let wrong = write("wrong", &wrong);
    let missing = dir.join("missing");
    let empty = dir.join("empty");
    std::fs::write(&empty, []).unwrap();
    for (files, expected) in [
        (vec![&good], ExitCode::SUCCESS),
        (vec![&good, &wrong], ExitCode::FAILURE),
        (vec![&missing, &wrong, &good], ExitCode::from(2)),
        (vec![&empty], ExitCode::from(2)),
    ] {
        let files: Vec<PathBuf> = files.into_iter().cloned().collect();
        let Printer { out, json, quiet, headings } = quiet();
        let out = RefCell::new(out);
        let mut printer = Printer { out: Shared(&out), json, quiet, headings };
        assert_eq!(decode_all(&files, &ROCE_PORTS, &mut printer).unwrap(), expected, "{files:?}");
    }
}

#[test]
fn json_lines_are_objects() {
    let mut printer = Printer { out: Vec::new(), json: true, quiet: false, headings: false };
    let file = File::open(captures().join("rxe_mckey.pcap")).unwrap();
    let (summary, _) = decode(file, "x", &ROCE_PORTS, &mut printer).unwrap();
    printer.summary("x", &summary).unwrap();
    let text = String::from_utf8(printer.out).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 12);
    assert_eq!(lines[0]["kind"], "other");
    assert_eq!(lines[3]["packets"][0]["opcode"], "UD SEND_ONLY_WITH_IMMEDIATE");
    assert_eq!(lines[3]["icrc"], "right");
    assert_eq!(lines[11]["summary"]["rdma"], 5);
}

pub(super) fn pcap(big: bool, packets: &[&[u8]]) -> Vec<u8> {
    let u32 = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let head = [0xa1b2_c3d4, u32::from_be_bytes([0, 2, 0, 4]), 0, 0, 65535, RAW.into()];
    let mut file: Vec<u8> = head.iter().flat_map(|&v| u32(v)).collect();
    for packet in packets {
        let len = u32::try_from(packet.len()).unwrap();
        file.extend([9, 500_000, len, len].iter().flat_map(|&v| u32(v)));
        file.extend(*packet);
    }
    file
}

/// Returns a section with an interface of nanosecond time stamps, whose options have no end, and the packet in an
/// enhanced, an obsolete and a simple packet block.
fn pcapng(big: bool, packet: &[u8]) -> Vec<u8> {
    let u16 = |v: u16| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let u32 = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let block = |kind: u32, parts: &[&[u8]]| {
        let mut body = parts.concat();
        body.resize(body.len().next_multiple_of(4), 0);
        let len = u32(u32::try_from(body.len() + 12).unwrap());
        [&u32(kind)[..], &len, &body, &len].concat()
    };
    let len = u32(u32::try_from(packet.len()).unwrap());
    let (high, low) = (u32(2), u32(1_410_065_408)); // 10^10 ns
    let none = [0; 8];
    [
        block(0x0a0d_0d0a, &[&u32(0x1a2b_3c4d), &u16(1), &u16(0), &[0xff; 8]]),
        block(1, &[&u16(RAW), &[0; 6], &u16(9), &u16(1), &[9, 0, 0, 0]]),
        block(5, &[&none]), // statistics
        block(6, &[&u32(0), &high, &low, &len, &len, packet]),
        block(2, &[&u16(0), &u16(0), &high, &low, &len, &len, packet]),
        block(3, &[&len, packet]),
    ]
    .concat()
}

#[test]
fn both_formats_in_both_byte_orders() {
    let packet = packet_v4();
    for big in [false, true] {
        for (bytes, frames) in [(pcap(big, &[&packet, &packet]), 2), (pcapng(big, &packet), 3)] {
            let mut file = CaptureFile::open(&bytes[..]).unwrap();
            let first = file.next().unwrap().unwrap();
            assert!(
                first.time.as_nanos() == 9_500_000_000 || first.time.as_nanos() == 10_000_000_000
            );
            assert_eq!((first.data, first.link), (&packet[..], RAW));
            let (summary, error) = decode(&bytes[..], "x", &ROCE_PORTS, &mut quiet()).unwrap();
            assert!(error.is_none());
            assert_eq!((summary.frames, summary.icrc_right), (frames, frames));
            // A truncated file is read up to its end, followed by an error.
            let cut = &bytes[..bytes.len() - 1];
            let (summary, error) = decode(cut, "x", &ROCE_PORTS, &mut quiet()).unwrap();
            assert!(matches!(error, Some(FileError::CutShort(_))), "{error:?}");
            assert_eq!(summary.frames, frames - 1);
        }
    }
}

#[test]
fn two_sections_of_different_byte_order() {
    let bytes = [pcapng(false, &packet_v4()), pcapng(true, &packet_v4())].concat();
    let (summary, error) = decode(&bytes[..], "x", &ROCE_PORTS, &mut quiet()).unwrap();
    assert!(error.is_none());
    assert_eq!(summary.icrc_right, 6);
}

proptest! {
    #[test]
    fn decoder_does_not_panic_on_any_file(mut bytes in prop::collection::vec(any::<u8>(), 0..400), format in 0..3) {
        let start = match format {
            0 => pcap(false, &[]),
            1 => pcapng(true, &[]),
            _ => Vec::new(),
        };
        bytes.splice(0..0, start);
        decode(&bytes[..], "x", &ROCE_PORTS, &mut quiet()).unwrap();
    }

    #[test]
    fn dissector_does_not_panic_on_any_frame(
        link in prop::sample::select(vec![0_u16, 1, 12, 101, 108, 113, 197, 228, 247, 276]),
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        original_len in 0_usize..300,
    ) {
        let frame = Frame { time: Duration::ZERO, link, data: &bytes, original_len };
        let _ = dissect(&frame).what.to_string();
    }

    #[test]
    fn dissector_does_not_panic_on_a_mutated_frame(at in 0_usize..108, value: u8, cut in 0_usize..108) {
        let mut bytes = packet_v4();
        bytes[at] = value;
        let _ = dissect(&frame(RAW, &bytes[..bytes.len() - cut])).what.to_string();
    }
}
