//! Datagrams to QP1: for registered agents, and invalid ones, which are counted by reason.

mod common;

use std::net::{Ipv4Addr, UdpSocket};

use common::{Host, next_event};
use rdmux_host::HostClient;
use rdmux_host::client::MadEvent;
use rdmux_host::proto::MadAddress;
use rdmux_verbs::control::Control;
use rdmux_wire::icrc::{Icrc, Ipv4Pseudo};
use rdmux_wire::{Bth, Deth, HeaderBuf, Opcode, Pkey, Psn, Qkey, Qpn};

/// The class of subnet administration, its version, and Get.
const SA: (u8, u8, u8) = (3, 2, 1);

fn mad(method: u8, tid: u64) -> [u8; 256] {
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, SA.0, SA.1, method]);
    mad[8..16].copy_from_slice(&tid.to_be_bytes());
    mad
}

fn next_mad(client: &HostClient) -> MadEvent {
    loop {
        if let Some(mad) = client.take_mad() {
            return mad;
        }
        common::wait_readable(client.notify_fd());
        assert!(client.poll_event().unwrap().is_none());
    }
}

#[test]
fn agents_of_two_hosts_talk_to_each_other() {
    let (here, there) = (Host::start(), Host::start());
    let (server, asker) = (here.client(), there.client());
    let serves = server.register_agent(1, Qpn::QP1, SA.0, SA.1, 1 << SA.2).unwrap();
    let asks = asker.register_agent(1, Qpn::QP1, SA.0, SA.1, 0).unwrap();
    let (qpn, qkey) = (Qpn::QP1, Qkey::QP1);
    let to = MadAddress { local: there.ip.into(), remote: here.ip.into(), qpn, qkey };
    asker.send_mad(asks, to, &mad(SA.2, 7), 60_000, 3).unwrap();

    let request = next_mad(&server);
    assert_eq!((request.agent, request.errno), (serves, 0));
    assert_eq!(request.from.remote.ip(), there.ip);
    let mut answer = <[u8; 256]>::try_from(request.mad).unwrap();
    answer[3] |= 0x80;
    server.send_mad(serves, request.from, &answer, 0, 0).unwrap();

    let response = next_mad(&asker);
    assert_eq!((response.agent, response.errno), (asks, 0));
    assert_eq!(response.mad[12..16], 7u32.to_be_bytes());
    // A response that nothing waits for any more.
    server.send_mad(serves, request.from, &answer, 0, 0).unwrap();
    assert_eq!(eventually(&there, "service_drop_mad_stale", 1), 1);
}

#[test]
fn mad_without_answer_is_etimedout_after_its_retries() {
    let host = Host::start();
    let asker = host.client();
    let asks = asker.register_agent(1, Qpn::QP1, SA.0, SA.1, 0).unwrap();
    let (qpn, qkey) = (Qpn::QP1, Qkey::QP1);
    let to = MadAddress { local: host.ip.into(), remote: host.ip.into(), qpn, qkey };
    asker.send_mad(asks, to, &mad(SA.2, 7), 5, 2).unwrap();
    assert_eq!(next_mad(&asker).errno, libc::ETIMEDOUT);
    assert_eq!(host.counter("service_tx_mads"), 3);
    assert_eq!(eventually(&host, "service_drop_mad_no_agent", 3), 3);
}

/// Waits until a counter has at least this value, because datagrams take time to arrive.
fn eventually(host: &Host, name: &str, least: u64) -> u64 {
    let deadline = std::time::Instant::now() + 20 * common::SECOND;
    loop {
        let value = host.counter(name);
        if value >= least {
            return value;
        }
        assert!(std::time::Instant::now() < deadline, "{name} is {value}");
    }
}

/// A management datagram to QP1 as sent on the wire.
struct Wire {
    from: UdpSocket,
    opcode: Opcode,
    pkey: Pkey,
    qkey: Qkey,
    dest: Qpn,
    mad: Vec<u8>,
    wrong_icrc: bool,
}

impl Wire {
    /// Makes a valid one, of a class without an agent.
    fn new() -> Self {
        Self {
            from: UdpSocket::bind("127.0.0.1:0").unwrap(),
            opcode: Opcode::UD_SEND_ONLY,
            pkey: Pkey::DEFAULT,
            qkey: Qkey::QP1,
            dest: Qpn::QP1,
            mad: mad(SA.2, 1).to_vec(),
            wrong_icrc: false,
        }
    }

    fn send(&self, host: &Host) {
        let bth =
            Bth { mig_req: true, pkey: self.pkey, ..Bth::new(self.opcode, self.dest, Psn::new(0)) };
        let mut header = HeaderBuf::new(&bth);
        if self.opcode.has_deth() {
            header = header.deth(&Deth { qkey: self.qkey, src_qpn: Qpn::QP1 });
        }
        let mut bytes = [header.as_slice(), &self.mad].concat();
        let std::net::IpAddr::V4(dst) = host.ip else { panic!() };
        let mut icrc = Icrc::ipv4(&Ipv4Pseudo {
            src: Ipv4Addr::LOCALHOST,
            dst,
            id: 0,
            src_port: self.from.local_addr().unwrap().port(),
            dst_port: 4791,
            udp_len: u16::try_from(8 + bytes.len() + Icrc::LEN).unwrap(),
        });
        icrc.update(&bytes);
        bytes.extend(icrc.finish());
        if self.wrong_icrc {
            bytes[30] ^= 1;
        }
        self.from.send_to(&bytes, host.at(4791)).unwrap();
    }
}

#[test]
fn malformed_qp1_packets_are_dropped_and_counted_by_reason() {
    let host = Host::start();
    let bystander = host.client();
    let mut cm_version = mad(3, 0);
    cm_version[1..3].copy_from_slice(&[7, 1]);
    let mut base_version = mad(SA.2, 0);
    base_version[0] = 2;
    let cases: Vec<(&str, Wire)> = vec![
        ("service_drop_mad_no_agent", Wire::new()),
        ("service_drop_mad_no_agent", Wire { mad: cm_version.to_vec(), ..Wire::new() }),
        ("service_drop_icrc", Wire { wrong_icrc: true, ..Wire::new() }),
        ("service_drop_qkey", Wire { qkey: Qkey(1), ..Wire::new() }),
        ("service_drop_pkey", Wire { pkey: Pkey(0x8001), ..Wire::new() }),
        ("service_drop_opcode", Wire { opcode: Opcode::RC_SEND_ONLY, ..Wire::new() }),
        ("service_drop_qp0", Wire { dest: Qpn::QP0, ..Wire::new() }),
        ("service_drop_no_qp", Wire { dest: Qpn::new(0x7f_f000), ..Wire::new() }),
        ("service_drop_no_qp", Wire { dest: Qpn::new(0x80_0001), ..Wire::new() }),
        ("service_drop_mad_length", Wire { mad: vec![1; 252], ..Wire::new() }),
        ("service_drop_mad_version", Wire { mad: base_version.to_vec(), ..Wire::new() }),
        ("service_drop_mad_stale", Wire { mad: mad(0x81, 9).to_vec(), ..Wire::new() }),
    ];
    for (reason, wire) in &cases {
        let before = host.counter(reason);
        wire.send(&host);
        assert_eq!(eventually(&host, reason, before + 1), before + 1, "{reason}");
    }
    let from = UdpSocket::bind("127.0.0.1:0").unwrap();
    // 16 bits of IPv4's checksum remain: if it is right by chance, the datagram is dropped for
    // another reason.
    let drops = || {
        let counters = host.status().service_counters;
        let dropped = counters.iter().filter(|(name, _)| name.starts_with("service_drop_"));
        dropped.map(|(_, count)| count).sum::<u64>()
    };
    let before = drops();
    let total = host.counter("service_rx_packets");
    for len in 1..=300u16 {
        // To QP1, or too short to have a destination.
        let mut bytes = vec![0; usize::from(len)];
        if let Some(last) = bytes.get_mut(7) {
            *last = 1;
        }
        from.send_to(&bytes, host.at(4791)).unwrap();
    }
    eventually(&host, "service_rx_packets", total + 300);
    assert_eq!(drops() - before, 300);
    // An empty datagram probes whether the host is up.
    from.send_to(&[], host.at(4791)).unwrap();
    assert!(bystander.new_slot().is_ok());
    drop(host.client());
    next_event(&bystander).unwrap();
}
