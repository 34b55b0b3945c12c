//! The engine in place of the kernel's driver, replaying captures of that driver: the packets of one side are fed
//! to a queue pair of rdmux, whose responses must equal those of the other side.
#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use pcap_file::pcap::PcapReader;
use rdmux_testing::env::{TestEnv, link};
use rdmux_testing::memory::Zeroes;
use rdmux_testing::qp::steps;
use rdmux_transport::attr::{Access, AddressVector, QpAttr, QpCaps, QpState, QpType};
use rdmux_transport::wr::{RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, WcStatus};
use rdmux_transport::{Qp, QpInit, RxPacket, Source, Time};
use rdmux_wire::ether::Ether;
use rdmux_wire::ip::Ipv4;
use rdmux_wire::udp::Udp;
use rdmux_wire::{
    AckTimeout, Gid, Lkey, Mtu, Operation, Packet, Psn, Qpn, Rkey, RnrTimer, Service,
};

/// One direction of a connection: the requests, and the responses to them.
#[derive(Default)]
struct Flow {
    /// The packets in capture order: whether each is a request, and its bytes from the BTH on.
    packets: Vec<(bool, Vec<u8>)>,
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/captures").join(name)
}

/// Returns the RC packets of a capture, with the sender's address.
fn rc_packets(name: &str) -> Vec<(Ipv4Addr, Vec<u8>)> {
    let mut reader = PcapReader::new(File::open(file(name)).unwrap()).unwrap();
    let mut all = Vec::new();
    while let Some(frame) = reader.next_packet() {
        let frame = frame.unwrap().data.into_owned();
        let bytes = &frame[Ether::parse(&frame).unwrap().header_len..];
        let Ok(ip) = Ipv4::parse(bytes) else { continue };
        if ip.protocol != rdmux_wire::ip::UDP {
            continue;
        }
        let datagram = &bytes[usize::from(ip.header_len)..usize::from(ip.total_len)];
        let transport = &datagram[Udp::LEN..datagram.len() - 4];
        if Packet::parse(transport).is_ok_and(|p| p.bth.opcode.service() == Service::Rc) {
            all.push((ip.src, transport.to_vec()));
        }
    }
    all
}

/// Splits a capture into flows. A response belongs to the flow whose requests used its PSN.
fn flows(name: &str) -> Vec<Flow> {
    let all = rc_packets(name);
    let mut flows: BTreeMap<(Ipv4Addr, Qpn), (Flow, BTreeSet<u32>)> = BTreeMap::new();
    for (src, bytes) in all {
        let p = Packet::parse(&bytes).unwrap();
        if !p.bth.opcode.is_response() {
            let (flow, psns) = flows.entry((src, p.bth.dest_qpn)).or_default();
            let npsn = match (p.bth.opcode.operation(), p.reth) {
                (Some(Operation::ReadRequest), Some(reth)) => reth.dma_len.div_ceil(256).max(1),
                _ => 1,
            };
            psns.extend((0..npsn).map(|i| p.bth.psn.add(i).get()));
            flow.packets.push((true, bytes));
            continue;
        }
        let owner = flows
            .iter_mut()
            .find(|((from, _), (_, psns))| *from != src && psns.contains(&p.bth.psn.get()));
        if let Some((_, (flow, _))) = owner {
            flow.packets.push((false, bytes));
        }
    }
    flows.into_values().map(|(flow, _)| flow).collect()
}

impl Flow {
    fn parsed(&self, requests: bool) -> impl Iterator<Item = Packet<'_>> {
        let chosen = self.packets.iter().filter(move |(request, _)| *request == requests);
        chosen.map(|(_, bytes)| Packet::parse(bytes).unwrap())
    }

    /// Returns the path MTU, from any packet that must be full.
    fn mtu(&self) -> Mtu {
        let full = self
            .packets
            .iter()
            .map(|(_, b)| Packet::parse(b).unwrap())
            .find(|p| p.bth.opcode.has_payload() && !p.bth.opcode.ends_message());
        full.map_or(Mtu::M4096, |p| Mtu::at_most(p.payload.len() as u32).unwrap())
    }

    /// Returns the flow without retransmitted requests.
    fn once(&self) -> Self {
        let (mtu, mut next) = (self.mtu().bytes(), self.first_psn());
        let mut packets = self.packets.clone();
        packets.retain(|(request, bytes)| {
            let p = Packet::parse(bytes).unwrap();
            if !*request || p.bth.psn != next {
                return !*request;
            }
            let read = p.reth.filter(|_| !p.bth.opcode.has_payload());
            next = next.add(read.map_or(1, |r| r.dma_len.div_ceil(mtu).max(1)));
            true
        });
        Self { packets }
    }

    fn first_psn(&self) -> Psn {
        self.parsed(true).next().unwrap().bth.psn
    }
}

const PEER: Gid = Gid([9; 16]);

/// Returns an environment without a congestion window, since the kernel's driver has none.
fn env(flow: &Flow) -> TestEnv {
    TestEnv::new(link(flow.mtu().bytes(), true), Zeroes::default())
}

fn queue_pair(flow: &Flow, env: &mut TestEnv) -> Qp {
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
    let mut attr = qp.attr();
    attr.path_mtu = flow.mtu();
    (attr.sq_psn, attr.rq_psn) = (flow.first_psn(), flow.first_psn());
    attr.av = AddressVector { is_global: true, dgid: PEER, ..Default::default() };
    attr.access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (128, 128);
    (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (AckTimeout::new(14), 7, 7);
    attr.min_rnr_timer = RnrTimer::new(12);
    for (state, mask) in steps(QpType::Rc, QpState::Rts) {
        qp.modify(Time::ZERO, &QpAttr { state, ..attr }, mask, env).unwrap();
    }
    qp
}

fn feed(qp: &mut Qp, env: &mut TestEnv, bytes: &[u8]) {
    let packet = Packet::parse(bytes).unwrap();
    let grh = [0; 40];
    let source = Source {
        sgid: PEER,
        dgid: PEER,
        grh: &grh,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
        has_grh: true,
    };
    qp.handle_packet(Time(1), &RxPacket { packet: &packet, source: &source }, env);
    qp.poll_transmit(Time(1), u32::MAX, env);
}

/// Returns the fields of a response that must agree: all but queue pair number, flags and payload.
fn essence(p: &Packet<'_>) -> String {
    format!("{} {} {:?} {:?} {}", p.bth.opcode, p.bth.psn, p.aeth, p.atomic_ack, p.payload.len())
}

/// Captures without loss, or with all loss before the capture.
const CLEAN: [&str; 12] = [
    "rxe_atomic.pcap",
    "rxe_rc_pingpong.pcap",
    "rxe_read_bw.pcap",
    "rxe_rping.pcap",
    "rxe_rping_16k.pcap",
    "rxe_rping_16k_mtu4096.pcap",
    "rxe_send_srq.pcap",
    "rxe_ucmatose.pcap",
    "rxe_write_bw.pcap",
    "rxe_write_bw_mtu4096.pcap",
    "rxe_loss_read.pcap",
    "rxe_rping_read_localerr.pcap",
];

#[test]
fn responder_sends_the_responses_captured_from_kernel_rxe() {
    let mut compared = 0;
    for name in CLEAN.into_iter().chain(["rxe_loss_write.pcap"]) {
        for flow in flows(name) {
            let mut env = env(&flow);
            let mut qp = queue_pair(&flow, &mut env);
            for p in flow.parsed(false) {
                env.memory.originals.extend(p.atomic_ack.map(|a| a.original));
            }
            let sges = [Sge { addr: 0, length: 1 << 20, lkey: Lkey(1) }];
            for wr_id in 0..1000 {
                qp.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
            }
            for (request, bytes) in &flow.packets {
                if *request {
                    feed(&mut qp, &mut env, bytes);
                    qp.flush_ack(Time(1), &mut env);
                }
            }
            let mut ours: Vec<String> =
                env.packets.iter().map(|b| essence(&Packet::parse(b).unwrap())).collect();
            let mut theirs: Vec<String> = flow.parsed(false).map(|p| essence(&p)).collect();
            if name == "rxe_loss_write.pcap" {
                // The next packet was captured, but not received.
                ours.truncate(104);
                theirs.truncate(104);
            }
            assert_eq!(ours, theirs, "{name}");
            compared += ours.len();
        }
    }
    assert!(compared > 800, "{compared} responses compared");
}

/// Derives the work request from a message's first packet, its length and its immediate data.
fn work_requests(flow: &Flow) -> Vec<(SendOp, u32)> {
    let mut list: Vec<(SendOp, u32)> = Vec::new();
    for p in flow.parsed(true) {
        let (remote_addr, rkey) = p.reth.map_or((0, Rkey(0)), |r| (r.va, r.rkey));
        if p.bth.opcode.starts_message() {
            list.push(match (p.bth.opcode.operation().unwrap(), p.atomic) {
                (Operation::ReadRequest, _) => {
                    (SendOp::Read { remote_addr, rkey }, p.reth.unwrap().dma_len)
                }
                (Operation::FetchAdd, Some(a)) => {
                    let (remote_addr, rkey, add) = (a.va, a.rkey, a.swap_add);
                    (SendOp::FetchAdd { remote_addr, rkey, add }, 8)
                }
                (Operation::SendFirst | Operation::SendOnly, _) => (SendOp::Send, 0),
                (Operation::WriteFirst | Operation::WriteOnly, _) => {
                    (SendOp::Write { remote_addr, rkey }, 0)
                }
                (other, _) => panic!("{other:?} is in no capture"),
            });
        }
        list.last_mut().unwrap().1 += p.payload.len() as u32;
    }
    list
}

#[test]
fn requester_sends_the_requests_captured_from_kernel_rxe_and_takes_its_responses() {
    let mut compared = 0;
    for name in CLEAN {
        for flow in flows(name) {
            let flow = flow.once();
            let mut env = env(&flow);
            let mut qp = queue_pair(&flow, &mut env);
            let mut works: VecDeque<_> = work_requests(&flow).into();
            let posted = works.len();
            for (request, bytes) in &flow.packets {
                let p = Packet::parse(bytes).unwrap();
                if !*request {
                    feed(&mut qp, &mut env, bytes);
                    continue;
                }
                if p.bth.opcode.starts_message() {
                    let (op, length) = works.pop_front().unwrap();
                    let sges = [Sge { addr: 0, length, lkey: Lkey(1) }];
                    let data = SendData::Sges(&sges);
                    let flags =
                        if p.bth.solicited { SendFlags::SOLICITED } else { SendFlags::empty() };
                    qp.post_send(Time(1), &SendWr { flags, ..SendWr::new(0, op, data) }).unwrap();
                }
                qp.poll_transmit(Time(1), 1, &mut env);
                let ours = env.packets.pop_front().expect("a packet");
                let ours = Packet::parse(&ours).unwrap();
                let mut bth = ours.bth;
                // Queue pair numbers, and when to request an ACK within a message, may differ.
                (bth.dest_qpn, bth.ack_req) = (p.bth.dest_qpn, p.bth.ack_req);
                // The kernel's driver has no path migration and leaves MigReq clear; adapters set it (IBTA 17.2.8).
                assert!(bth.mig_req && !p.bth.mig_req, "{name}");
                bth.mig_req = false;
                // The kernel leaves fields that an operation does not use unchanged.
                let ours = Packet { bth, payload: p.payload, ..ours };
                assert_eq!(ours.bth, p.bth, "{name}");
                assert_eq!((ours.reth, ours.imm), (p.reth, p.imm), "{name}");
                compared += 1;
            }
            let statuses = env.statuses();
            assert_eq!(statuses.len(), posted, "{name}: {statuses:?}");
            assert!(statuses.iter().all(|(_, s)| *s == WcStatus::Success), "{name}");
            assert_eq!(qp.poll_timeout(), None, "{name}");
        }
    }
    assert!(compared > 500, "{compared} requests compared");
}
