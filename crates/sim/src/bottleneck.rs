//! The efficiency of the congestion window: one sender, and a slower receiver with a finite socket buffer, so that packets
//! sent too fast are lost.

use std::collections::VecDeque;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rdmux_testing::env::{TestEnv, link};
use rdmux_testing::memory::Zeroes;
use rdmux_testing::qp::steps;
use rdmux_transport::attr::{Access, AddressVector, QpAttr, QpCaps, QpState, QpType};
use rdmux_transport::wr::{SendData, SendOp, SendWr, Sge, WcStatus};
use rdmux_transport::{Qp, QpInit, RxPacket, Source, Time};
use rdmux_wire::{AckTimeout, Gid, Lkey, Mtu, Packet, Psn, Qpn, Rkey, RnrTimer};

use crate::agenda::Agenda;

/// The two machines and the link between them.
#[derive(Clone, Copy, Debug)]
pub struct Bottleneck {
    /// Path MTU.
    pub mtu: Mtu,
    /// The sender's time per packet.
    pub send: Duration,
    /// The receiver's time per packet.
    pub receive: Duration,
    /// The capacity of the receiver's socket buffer in packets.
    pub buffer: usize,
    /// The transit time of a packet.
    pub delay: Duration,
    /// Whether the receiver writes to the sender's memory, or the sender READs.
    pub read: bool,
    /// The link loses one packet of this many; 0 for none.
    pub lose_one_of: u32,
    /// Whether the receiver buffers out-of-order packets.
    pub keeps: bool,
}

/// The outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goodput {
    /// The received bytes, as a fraction of what the receiver could have processed in that time.
    pub share: f64,
    /// Packets lost, at the full buffer or by the line.
    pub lost: u64,
    /// Packets sent.
    pub sent: u64,
}

/// Bytes per message, and the number of outstanding messages.
const MESSAGE: (u32, u64) = (256 << 10, 8);
/// Total bytes.
const TOTAL: u64 = 64 << 20;

/// An event of the agenda.
#[derive(Debug)]
enum Event {
    /// An end may send.
    Send(usize),
    /// A packet reaches the socket buffer of an end.
    Arrive(usize, Vec<u8>),
    /// An end takes the next packet from its buffer.
    Take(usize),
    /// A timer of an end may have expired.
    Timer(usize),
}

/// An end of the connection: its queue pair, its socket buffer and its pending events.
struct End {
    qp: Qp,
    port: TestEnv,
    buffer: VecDeque<Vec<u8>>,
    taking: bool,
    sending: bool,
    timer: Time,
}

fn end(mtu: Mtu, id: u32, keeps: bool) -> End {
    let caps = QpCaps { max_send_wr: 16, max_recv_wr: 1, max_send_sge: 1, ..QpCaps::default() };
    let qp_type = QpType::Rc;
    let init = QpInit { qpn: Qpn::new(id), qp_type, caps, sq_sig_all: true, has_srq: false };
    let (mut qp, mut port) = (Qp::new(&init), TestEnv::new(link(4096, false), Zeroes::default()));
    port.buffers_out_of_order = keeps;
    let mut attr = qp.attr();
    attr.path_mtu = mtu;
    (attr.sq_psn, attr.rq_psn) = (Psn::new(7), Psn::new(7));
    attr.dest_qpn = Qpn::new(1 - id);
    attr.av = AddressVector { is_global: true, dgid: Gid([1; 16]), ..Default::default() };
    attr.access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    attr.timeout = AckTimeout::new(18);
    (attr.retry_cnt, attr.rnr_retry) = (7, 7);
    (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (16, 16);
    attr.min_rnr_timer = RnrTimer::new(1);
    for (state, mask) in steps(qp_type, QpState::Rts) {
        qp.modify(Time::ZERO, &QpAttr { state, ..attr }, mask, &mut port).expect("usual values");
    }
    let buffer = VecDeque::new();
    End { qp, port, buffer, taking: false, sending: false, timer: Time::NEVER }
}

/// Transfers a fixed amount and returns the goodput.
pub fn run(config: Bottleneck) -> Goodput {
    let mut ends = [0, 1].map(|id| end(config.mtu, id, config.keeps));
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut agenda = Agenda::default();
    let (mut posted, mut lost, mut sent) = (0, 0, 0_u64);
    let messages = TOTAL / u64::from(MESSAGE.0);
    agenda.after(Duration::ZERO, Event::Send(0));
    while completed(&ends[0]) < messages {
        let Some(event) = agenda.next_event() else { break };
        let now = agenda.now();
        let poked = matches!(event, Event::Take(_) | Event::Timer(_));
        let id = match event {
            Event::Send(id) => {
                ends[id].sending = false;
                while id == 0 && posted < messages && posted - completed(&ends[0]) < MESSAGE.1 {
                    post(&mut ends[0].qp, now, config.read);
                    posted += 1;
                }
                let e = &mut ends[id];
                e.port.room = 16;
                e.qp.poll_transmit(now, u32::MAX, &mut e.port);
                id
            }
            Event::Arrive(id, _) if ends[id].buffer.len() >= config.buffer => {
                lost += 1;
                continue;
            }
            Event::Arrive(id, bytes) => {
                ends[id].buffer.push_back(bytes);
                if !ends[id].taking {
                    ends[id].taking = true;
                    agenda.after(config.receive, Event::Take(id));
                }
                continue;
            }
            Event::Take(id) => {
                take(&mut ends[id], now);
                ends[id].taking = !ends[id].buffer.is_empty();
                if ends[id].taking {
                    agenda.after(config.receive, Event::Take(id));
                }
                id
            }
            Event::Timer(id) => {
                let e = &mut ends[id];
                e.timer = Time::NEVER;
                e.qp.handle_timeout(now, &mut e.port);
                id
            }
        };
        // The packets are transmitted one by one, and the end continues as long as there are any.
        let e = &mut ends[id];
        let out = std::mem::take(&mut e.port.packets);
        let busy = config.send * u32::try_from(out.len()).unwrap_or(u32::MAX);
        if !e.sending && (poked || !out.is_empty()) {
            e.sending = true;
            agenda.after(busy.max(Duration::from_nanos(500)), Event::Send(id));
        }
        for (i, bytes) in out.into_iter().enumerate() {
            sent += 1;
            if config.lose_one_of != 0 && rng.random_ratio(1, config.lose_one_of) {
                lost += 1;
                continue;
            }
            let left = config.send * u32::try_from(i + 1).unwrap_or(u32::MAX);
            agenda.after(left + config.delay, Event::Arrive(1 - id, bytes));
        }
        if let Some(at) = ends[id].qp.poll_timeout()
            && at < ends[id].timer
        {
            ends[id].timer = at;
            agenda.at(at, Event::Timer(id));
        }
    }
    let packets = TOTAL as f64 / f64::from(config.mtu.bytes());
    let ideal = packets * config.receive.max(config.send).as_secs_f64();
    Goodput { share: ideal / agenda.now().since(Time::ZERO).as_secs_f64(), lost, sent }
}

/// Returns the number of completed messages, after checking that all succeeded.
fn completed(end: &End) -> u64 {
    let completions = &end.port.completions;
    assert!(completions.back().is_none_or(|(_, wc)| wc.status == WcStatus::Success));
    completions.len() as u64
}

fn post(qp: &mut Qp, now: Time, read: bool) {
    let sges = [Sge { addr: 0, length: MESSAGE.0, lkey: Lkey(0) }];
    let (remote_addr, rkey) = (0, Rkey(0));
    let op =
        if read { SendOp::Read { remote_addr, rkey } } else { SendOp::Write { remote_addr, rkey } };
    let data = SendData::Sges(&sges);
    let wr = SendWr::new(0, op, data);
    qp.post_send(now, &wr).expect("there is room");
}

/// Handles a packet. The last of a burst, and every 32nd, is acknowledged.
fn take(e: &mut End, now: Time) {
    let Some(bytes) = e.buffer.pop_front() else { return };
    let packet = Packet::parse(&bytes).expect("ours");
    let source = Source {
        sgid: Gid([1; 16]),
        dgid: Gid([1; 16]),
        grh: &[0; 40],
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
        has_grh: true,
    };
    e.port.room = 16;
    e.qp.handle_packet(now, &RxPacket { packet: &packet, source: &source }, &mut e.port);
    if e.buffer.len().is_multiple_of(32) {
        e.qp.flush_ack(now, &mut e.port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NS: Duration = Duration::from_nanos(1);

    /// A window that ignores losses, or that waits for the transport timer, is far less efficient.
    #[test]
    fn goodput_stays_high_behind_a_small_bottleneck_buffer() {
        for (buffer, least) in [(50, 0.5), (150, 0.8), (600, 0.8)] {
            for (send, receive) in [(200, 300), (300, 300), (100, 1000)] {
                for (mtu, read) in [(Mtu::M1024, false), (Mtu::M4096, false), (Mtu::M1024, true)] {
                    let (send, receive) = (NS * send, NS * receive);
                    let delay = NS * 10_000;
                    let config = Bottleneck {
                        mtu,
                        send,
                        receive,
                        buffer,
                        delay,
                        read,
                        lose_one_of: 0,
                        keeps: buffer != 150,
                    };
                    let goodput = run(config);
                    assert!(goodput.share > least, "{config:?}: {goodput:?}");
                }
            }
        }
    }

    #[test]
    fn goodput_stays_high_with_one_percent_packet_loss() {
        for (keeps, delay, least) in [
            (true, 2_000, 0.85),
            (true, 10_000, 0.8),
            (true, 30_000, 0.6),
            (false, 2_000, 0.5),
            (false, 10_000, 0.4),
        ] {
            let config = Bottleneck {
                mtu: Mtu::M4096,
                send: NS * 1500,
                receive: NS * 1500,
                buffer: 300,
                delay: NS * delay,
                read: false,
                lose_one_of: 100,
                keeps,
            };
            let goodput = run(config);
            assert!(goodput.share > least, "{config:?}: {goodput:?}");
        }
    }
}
