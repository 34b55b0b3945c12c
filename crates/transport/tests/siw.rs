//! The queue pair in place of the kernel's iWARP driver, replaying captures of that driver: the data of one
//! side is fed to a queue pair of rdmux, which is given the other side's work and must send the same messages.
#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test")]

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddrV4;
use std::path::PathBuf;

use pcap_file::pcap::PcapReader;
use rdmux_testing::env::{TestEnv, link};
use rdmux_testing::memory::Zeroes;
use rdmux_transport::attr::{Access, AttrMask, QpAttr, QpCaps, QpState, QpType};
use rdmux_transport::iwarp::{Qp, StreamParams};
use rdmux_transport::wr::{RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, WcStatus};
use rdmux_transport::{QpInit, Time};
use rdmux_wire::Qpn;
use rdmux_wire::ether::Ether;
use rdmux_wire::ip::{self, Ipv4};
use rdmux_wire::iwarp::ddp::{Header, Model};
use rdmux_wire::iwarp::fpdu::Framing;
use rdmux_wire::iwarp::mpa::{Flags, Startup};
use rdmux_wire::iwarp::rdmap::{Opcode, ReadRequest};
use rdmux_wire::tcp::Tcp;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures").join(name)
}

/// Returns the data that each side of each connection sent, by the addresses of both, without gaps.
fn streams(name: &str) -> BTreeMap<(SocketAddrV4, SocketAddrV4), Vec<u8>> {
    let mut reader = PcapReader::new(File::open(file(name)).unwrap()).unwrap();
    let mut parts: BTreeMap<_, (u32, BTreeMap<u32, Vec<u8>>)> = BTreeMap::new();
    while let Some(frame) = reader.next_packet() {
        let frame = frame.unwrap().data.into_owned();
        let bytes = &frame[Ether::parse(&frame).unwrap().header_len..];
        let Ok(ip) = Ipv4::parse(bytes) else { continue };
        if ip.protocol != ip::TCP {
            continue;
        }
        let segment = &bytes[usize::from(ip.header_len)..usize::from(ip.total_len)];
        let tcp = Tcp::parse(segment).unwrap();
        let ends =
            (SocketAddrV4::new(ip.src, tcp.src_port), SocketAddrV4::new(ip.dst, tcp.dst_port));
        let data = &segment[usize::from(tcp.header_len)..];
        if tcp.flags.has(rdmux_wire::tcp::Flags::SYN) {
            parts.insert(ends, (tcp.seq.wrapping_add(1), BTreeMap::new()));
        } else if let Some((first, all)) = parts.get_mut(&ends)
            && !data.is_empty()
        {
            all.entry(tcp.seq.wrapping_sub(*first)).or_insert_with(|| data.to_vec());
        }
    }
    let join = |parts: BTreeMap<u32, Vec<u8>>| {
        let mut stream = Vec::new();
        for (at, data) in parts {
            let known = stream.len().saturating_sub(at as usize);
            if at as usize > stream.len() {
                break;
            }
            stream.extend_from_slice(data.get(known..).unwrap_or_default());
        }
        stream
    };
    parts.into_iter().map(|(ends, (_, parts))| (ends, join(parts))).collect()
}

/// A message: its first header, and its length without headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message {
    header: Header,
    len: u32,
    request: Option<ReadRequest>,
}

/// Returns the messages of a stream after its start-up frame. The last may be incomplete.
fn messages(framing: Framing, mut stream: &[u8]) -> Vec<Message> {
    let mut found: Vec<Message> = Vec::new();
    let mut more = false;
    while let Some(frame) = framing.parse(0, stream).unwrap() {
        let ulpdu = frame.contiguous().unwrap();
        let header = Header::parse(ulpdu).unwrap();
        let payload = &ulpdu[header.len()..];
        if more {
            found.last_mut().unwrap().len += payload.len() as u32;
        } else {
            let request = (header.opcode == Opcode::ReadRequest)
                .then(|| ReadRequest::parse(payload).unwrap());
            found.push(Message { header, len: payload.len() as u32, request });
        }
        more = !header.last();
        stream = &stream[frame.frame_len..];
    }
    if more {
        found.pop();
    }
    found
}

/// Returns the parts of a message that must agree: all but its segmentation.
fn essence(message: &Message) -> String {
    let place = match message.header.model {
        Model::Tagged(tagged) => format!("{} {:#x}", tagged.stag, tagged.to),
        Model::Untagged(untagged) => format!("{} {}", untagged.qn, untagged.msn),
    };
    format!("{} {place} {} {:?}", message.header.opcode, message.len, message.request)
}

fn queue_pair(env: &mut TestEnv, crc: bool) -> Qp {
    let caps = QpCaps {
        max_send_wr: 1024,
        max_recv_wr: 1024,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let qp_type = QpType::Rc;
    let init = QpInit { qpn: Qpn::new(1), qp_type, caps, sq_sig_all: true, has_srq: false };
    let mut qp = Qp::new(&init);
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let attr = QpAttr { state: QpState::Init, access, ..QpAttr::default() };
    let mask = AttrMask::STATE | AttrMask::ACCESS_FLAGS;
    qp.modify(Time::ZERO, &attr, mask, env).unwrap();
    // The ready-to-receive frame is among those that are fed, or posted.
    let params = StreamParams {
        initiator: true,
        crc,
        tx_markers: false,
        rx_markers: false,
        ord: 1024,
        ird: 1024,
        rtr: None,
    };
    qp.attach(Time::ZERO, &params, 1460, env).unwrap();
    qp
}

/// Posts the work request that produced a message.
fn post(qp: &mut Qp, message: &Message) {
    let (op, sge) = match (message.header.model, message.request) {
        (_, Some(request)) => (
            SendOp::Read { remote_addr: request.source_to, rkey: request.source_stag.into() },
            Sge { addr: request.sink_to, length: request.len, lkey: request.sink_stag.into() },
        ),
        (Model::Tagged(tagged), _) => (
            SendOp::Write { remote_addr: tagged.to, rkey: tagged.stag.into() },
            Sge { length: message.len, ..Sge::default() },
        ),
        _ => (SendOp::Send, Sge { length: message.len, ..Sge::default() }),
    };
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::SOLICITED, message.header.opcode.is_solicited());
    let sges = [sge];
    let wr = SendWr { flags, ..SendWr::new(1, op, SendData::Sges(&sges)) };
    qp.post_send(Time::ZERO, &wr).unwrap();
}

/// Runs a queue pair of rdmux in place of one side, which sent `own` and received `heard`. Returns how many
/// messages were compared.
fn stand_in(name: &str, framing: Framing, own: &[u8], heard: &[u8]) -> usize {
    let (own, theirs) = (messages(framing, own), messages(framing, heard));
    let mut env = TestEnv::new(link(0, true), Zeroes::default());
    let mut qp = queue_pair(&mut env, framing.crc);
    for _ in theirs.iter().filter(|m| m.header.opcode == Opcode::Send) {
        qp.post_recv(&RecvWr { wr_id: 2, sges: &[Sge { length: 1 << 20, ..Sge::default() }] })
            .unwrap();
    }
    let is_answer = |m: &&Message| m.header.opcode == Opcode::ReadResponse;
    let ends = |m: &&Message| m.header.opcode == Opcode::Terminate;
    own.iter().filter(|m| !is_answer(m) && !ends(m)).for_each(|m| post(&mut qp, m));
    while qp.poll_transmit(Time(1), 64, &mut env) == rdmux_transport::TxState::More {}
    let mut inbox = Vec::new();
    for piece in heard.chunks(7) {
        inbox.extend_from_slice(piece);
        let used = qp.handle_bytes(Time(1), &inbox, &mut env);
        inbox.drain(..used);
        qp.poll_transmit(Time(1), u32::MAX, &mut env);
    }
    let said = messages(framing, env.stream.bytes.make_contiguous());
    let terminated = theirs.iter().any(|m| ends(&m));
    let state = if terminated { QpState::Err } else { QpState::Rts };
    assert_eq!(qp.state(), state, "{name}: {said:?}");
    let failed = env.completions.iter().filter(|(_, wc)| wc.status != WcStatus::Success).count();
    assert!(terminated || failed == 0, "{name}: {failed} failed");
    for answers in [false, true] {
        let of = |all: &[Message]| -> Vec<String> {
            let all = all.iter().filter(|m| is_answer(m) == answers && !ends(m));
            all.map(essence).collect()
        };
        let (said, own) = (of(&said), of(&own));
        // The capture has only those responses that were sent before it ended.
        let comparable = if answers { own.len().min(said.len()) } else { own.len() };
        assert_eq!(said[..comparable], own[..comparable], "{name}");
        assert!(own.len() <= said.len(), "{name}: {} of {}", said.len(), own.len());
    }
    own.len()
}

#[test]
fn iwarp_streams_equal_those_captured_from_kernel_siw() {
    let mut compared = 0;
    for name in [
        "siw_rping.pcap",
        "siw_rping_16k.pcap",
        "siw_rping_16k_mtu4300.pcap",
        "siw_rping_crc.pcap",
        "siw_rping_crc_read_terminate.pcap",
        "siw_rping_crc_server_ignored.pcap",
        "siw_rping_p2p.pcap",
        "siw_rping_read_terminate.pcap",
        "siw_send_bw.pcap",
        "siw_read_bw.pcap",
        "siw_ucmatose.pcap",
        "siw_write_bw.pcap",
    ] {
        let streams = streams(name);
        for (&(from, to), request) in &streams {
            let Some(reply) = streams.get(&(to, from)) else { continue };
            let (Ok(start), Ok(answer)) = (Startup::parse(request), Startup::parse(reply)) else {
                continue;
            };
            if start.kind != rdmux_wire::iwarp::mpa::Kind::Request {
                continue;
            }
            let crc = start.flags.has(Flags::CRC) && answer.flags.has(Flags::CRC);
            let framing = Framing { crc, markers: false };
            let (request, reply) = (&request[start.len()..], &reply[answer.len()..]);
            compared += stand_in(name, framing, request, reply);
            compared += stand_in(name, framing, reply, request);
        }
    }
    assert!(compared > 300, "{compared} messages");
}
