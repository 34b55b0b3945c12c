//! Every frame of siw in the kernel's captures: parsed, written again, and its CRC checked if CRCs were negotiated.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use pcap_file::pcap::PcapReader;
use rdmux_wire::ether::Ether;
use rdmux_wire::ip::{self, Ipv4};
use rdmux_wire::iwarp::ddp::{Header, Model};
use rdmux_wire::iwarp::fpdu::{CRC_LEN, Fpdu, Framing, LENGTH_LEN};
use rdmux_wire::iwarp::mpa::{Flags, Kind, Startup};
use rdmux_wire::iwarp::rdmap::{Opcode, ReadRequest};
use rdmux_wire::iwarp::rtr;
use rdmux_wire::iwarp::terminate::{Fault, Layout, Terminate};
use rdmux_wire::tcp::{self, Tcp};

/// Source and destination port.
type Direction = (u16, u16);

/// Returns the bytes of each direction in order, up to the first gap.
fn streams(path: &Path) -> BTreeMap<Direction, Vec<u8>> {
    let mut segments: BTreeMap<Direction, BTreeMap<u32, Vec<u8>>> = BTreeMap::new();
    let mut first = BTreeMap::new();
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    while let Some(packet) = reader.next_packet() {
        let frame = packet.unwrap().data;
        let ether = Ether::parse(&frame).unwrap();
        let bytes = &frame[ether.header_len..];
        let ip = Ipv4::parse(bytes).unwrap();
        assert_eq!(ip.protocol, ip::TCP);
        let bytes = &bytes[usize::from(ip.header_len)..usize::from(ip.total_len)];
        let tcp = Tcp::parse(bytes).unwrap();
        let direction = (tcp.src_port, tcp.dst_port);
        if tcp.flags.has(tcp::Flags::SYN) {
            first.insert(direction, tcp.seq.wrapping_add(1));
        } else if let Some(first) = first.get(&direction) {
            let payload = bytes[usize::from(tcp.header_len)..].to_vec();
            if !payload.is_empty() {
                let at = tcp.seq.wrapping_sub(*first);
                let segments = segments.entry(direction).or_default();
                let slot = segments.entry(at).or_default();
                if slot.len() < payload.len() {
                    *slot = payload;
                }
            }
        }
    }
    let join = |segments: BTreeMap<u32, Vec<u8>>| {
        let mut bytes = Vec::new();
        for (at, segment) in segments {
            let at = usize::try_from(at).unwrap();
            if at > bytes.len() {
                break;
            }
            bytes.extend_from_slice(segment.get(bytes.len() - at..).unwrap_or_default());
        }
        bytes
    };
    segments.into_iter().map(|(direction, segments)| (direction, join(segments))).collect()
}

/// The totals of all captures.
#[derive(Default)]
struct Counts {
    startups: usize,
    opcodes: BTreeMap<OpcodeCode, usize>,
    with_crc: usize,
    faults: Vec<Fault>,
}

/// An opcode's code, because opcodes have no order.
type OpcodeCode = u8;

impl Counts {
    fn stream(&mut self, file: &str, bytes: &[u8], crc: bool) {
        let startup = Startup::parse(bytes).unwrap();
        let mut out = [0; Startup::MAX_LEN];
        let len = startup.emit(&mut out);
        assert_eq!(out[..len], bytes[..len], "{file}: {startup}");
        self.startups += 1;
        let framing = Framing { crc, markers: false };
        let (mut rest, mut position) = (&bytes[len..], 0);
        while let Some(fpdu) = framing.parse(position, rest).expect(file) {
            let (frame, behind) = rest.split_at(fpdu.frame_len);
            self.frame(file, framing, position, &fpdu, frame);
            position += frame.len() as u64;
            rest = behind;
        }
    }

    fn frame(
        &mut self,
        file: &str,
        framing: Framing,
        position: u64,
        fpdu: &Fpdu<'_>,
        frame: &[u8],
    ) {
        let ulpdu = fpdu.contiguous().unwrap();
        let mut again = vec![0; frame.len()];
        framing.emit(position, &[ulpdu], &mut again);
        if !framing.crc {
            // siw does not clear its padding.
            let pad = LENGTH_LEN + ulpdu.len()..frame.len() - CRC_LEN;
            again[pad.clone()].copy_from_slice(&frame[pad]);
        }
        assert_eq!(again, frame, "{file}: at {position}");
        let header = Header::parse(ulpdu).unwrap();
        let (bytes, payload) = ulpdu.split_at(header.len());
        assert_eq!(header.to_buf()[..], *bytes, "{file}: {header}");
        if let Model::Untagged(untagged) = header.model {
            assert_eq!(Some(untagged.qn), header.opcode.queue(), "{file}: {header}");
        }
        match header.opcode {
            Opcode::ReadRequest => {
                assert_eq!(ReadRequest::parse(payload).unwrap().to_bytes(), payload, "{file}");
            }
            Opcode::Terminate => {
                let terminate = Terminate::parse(payload).unwrap();
                assert_eq!(terminate.layout, Layout::Siw);
                let of = Header::parse(terminate.ddp_header).unwrap();
                assert_eq!(of.opcode, Opcode::ReadResponse, "{file}: {terminate}");
                self.faults.push(terminate.fault);
            }
            _ => {}
        }
        *self.opcodes.entry(header.opcode.code()).or_default() += 1;
        self.with_crc += usize::from(framing.crc);
    }
}

fn captures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures")
}

#[test]
fn captured_siw_frames_round_trip() {
    let mut counts = Counts::default();
    for entry in captures().read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.starts_with("siw_") {
            continue;
        }
        let streams = streams(&path);
        for ((src, dst), bytes) in &streams {
            let wants_crc = |bytes: &[u8]| Startup::parse(bytes).unwrap().flags.has(Flags::CRC);
            let crc = wants_crc(bytes) || wants_crc(&streams[&(*dst, *src)]);
            counts.stream(&name, bytes, crc);
        }
    }
    let count = |opcode: Opcode| counts.opcodes.get(&opcode.code()).copied().unwrap_or_default();
    assert_eq!(counts.startups, 44);
    assert_eq!(counts.faults, [Fault::DdpTaggedBounds; 2]);
    let bulk = [Opcode::Write, Opcode::ReadRequest, Opcode::ReadResponse, Opcode::Send].map(count);
    assert_eq!(bulk, [544, 46, 238, 414]);
    assert_eq!(counts.opcodes.len(), bulk.len() + 1, "and Terminate");
    assert_eq!(counts.with_crc, 45);
}

/// In peer-to-peer mode siw's first frame equals the one written here.
#[test]
fn rtr_write_frame_equals_that_captured_from_siw() {
    let streams = streams(&captures().join("siw_rping_p2p.pcap"));
    let initiator = streams.values().find(|bytes| bytes.starts_with(Kind::Request.key())).unwrap();
    let request = Startup::parse(initiator).unwrap();
    let enhanced = request.enhanced.unwrap();
    assert!(enhanced.peer_to_peer && enhanced.rtr_write && enhanced.rtr_read && !enhanced.rtr_send);
    let frame = rtr::write(Framing::default());
    assert_eq!(initiator[request.len()..][..frame.len()], *frame);
}
