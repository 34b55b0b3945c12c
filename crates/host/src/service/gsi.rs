//! The general services interface: packets to and from QP1 (IBTA 13.5.1, annex A17).

use std::net::IpAddr;

use rdmux_cm::{MadPath, Time};
use rdmux_link::Destination;
use rdmux_link::udp::IcrcCheck;
use rdmux_link::wire::{Arrival, Frame, Payload, TxFail, Wire};
use rdmux_wire::mad::MAD_LEN;
use rdmux_wire::{Bth, Deth, HeaderBuf, Opcode, Packet, Pkey, Psn, Qkey, Qpn};

use super::clients::ClientId;
use super::core::Core;
use super::counters::Count;
use super::mad::{Due, Owner};
use crate::proto::{MadAddress, Notify};

/// Rounds of receiving before others have their turn.
const MAX_ROUNDS: usize = 4;

impl Core {
    /// Receives datagrams from the service's socket on an address.
    pub(super) fn receive(&mut self, index: u8) {
        for _ in 0..MAX_ROUNDS {
            let Some(mut rx) = self.rx.take() else { return };
            let got = match self.addresses.row(index) {
                Some(row) => row.qp1.receive(&mut rx).unwrap_or_else(|e| {
                    // The errors of earlier packets come up here; the next call receives again.
                    tracing::debug!("receiving on {}: {e}", row.ip);
                    0
                }),
                None => 0,
            };
            for arrival in rx.arrivals() {
                self.counts.add(Count::RxPackets);
                self.process_packet(&arrival);
            }
            let more = got != 0;
            self.rx = Some(rx);
            if !more {
                break;
            }
        }
        self.drain_outbox();
    }

    fn process_packet(&mut self, arrival: &Arrival<'_>) {
        if arrival.bytes.is_empty() {
            // Another host of this machine asks whether anybody is here: that nobody objects is
            // the answer.
            return;
        }
        let Some(dest) = arrival.dest_qpn() else { return self.counts.add(Count::DropMalformed) };
        match Qpn::new(dest) {
            Qpn::QP0 => self.counts.add(Count::DropQp0),
            Qpn::QP1 => {
                self.capture.tap.received(arrival);
                if let Err(reason) = self.process_qp1(arrival) {
                    self.counts.add(reason);
                }
            }
            qpn => self.process_stray(qpn, arrival.src, arrival.dst.ip(), arrival.bytes),
        }
    }

    /// A datagram that arrived at a socket that is not its owner's: the kernel merges packets of
    /// several owners, and a socket may have been bound after the packet came.
    pub(super) fn process_stray(
        &mut self,
        qpn: Qpn,
        src: std::net::SocketAddr,
        dst: IpAddr,
        bytes: &[u8],
    ) {
        let Some(owner) = self.owner_of(qpn) else {
            return self.counts.add(Count::DropNoQp);
        };
        let stray = Notify::Stray { src, dst, bytes: bytes.to_vec() };
        let told = self.offer(owner, &stray);
        self.counts.add(if told { Count::Strays } else { Count::StraysLost });
    }

    fn process_qp1(&mut self, arrival: &Arrival<'_>) -> Result<(), Count> {
        if arrival.check_icrc() == IcrcCheck::Wrong {
            return Err(Count::DropIcrc);
        }
        let packet = Packet::parse(arrival.without_icrc()).map_err(|_| Count::DropMalformed)?;
        if packet.bth.opcode != Opcode::UD_SEND_ONLY {
            return Err(Count::DropOpcode);
        }
        let deth = packet.deth.ok_or(Count::DropOpcode)?;
        if !packet.bth.pkey.admits(Pkey::DEFAULT) {
            return Err(Count::DropPkey);
        }
        if deth.qkey != Qkey::QP1 {
            return Err(Count::DropQkey);
        }
        let mut path = MadPath::between(arrival.dst.ip(), arrival.src.ip());
        path.remote_qpn = deth.src_qpn;
        path.av.hop_limit = arrival.ttl.unwrap_or(0);
        path.av.traffic_class = arrival.tos.unwrap_or(0);
        self.process_mad(&path, packet.payload)?;
        self.drain_outbox();
        Ok(())
    }

    /// Gives a management datagram to the agent that takes it.
    fn process_mad(&mut self, path: &MadPath, mad: &[u8]) -> Result<(), Count> {
        self.counts.add(Count::RxMads);
        let (number, owner) = self.agents.dispatch(Qpn::QP1, mad)?;
        match owner {
            Owner::Cm => {
                let now = self.now();
                self.manager.handle_mad(now, path, mad, &mut self.outbox);
            }
            Owner::Client(client) => {
                let (local, remote, qpn) = (path.local, path.remote(), path.remote_qpn);
                self.notify_mad(
                    client,
                    number,
                    MadAddress { local, remote, qpn, qkey: Qkey::QP1 },
                    0,
                    mad,
                );
            }
        }
        Ok(())
    }

    /// A management datagram of this host's arrives on this host.
    pub(super) fn deliver_mad(&mut self, path: &MadPath, mad: &[u8; MAD_LEN]) {
        if let Err(reason) = self.process_mad(path, mad) {
            self.counts.add(reason);
        }
    }

    /// Tells a client of a datagram, or of one that got no response.
    fn notify_mad(
        &mut self,
        client: ClientId,
        agent: u32,
        from: MadAddress,
        errno: i32,
        mad: &[u8],
    ) {
        let notify = Notify::Mad { agent, from, errno, mad: mad.to_vec() };
        if errno == 0 {
            self.offer(client, &notify);
        } else {
            self.notify(client, &notify, Vec::new());
        }
    }

    /// Sends again what got no response, or tells that none came.
    pub(super) fn resend_mads(&mut self, now: Time) {
        for due in self.agents.handle_timeout(now) {
            match due {
                Due::Retry { to, mad } => self.send_agent_mad(&to, &mad),
                Due::Expired { agent, client, to, mad } => {
                    self.counts.add(Count::MadTimeouts);
                    self.notify_mad(client, agent, to, libc::ETIMEDOUT, &mad[..]);
                }
            }
        }
    }

    /// Sends an agent's datagram.
    pub(super) fn send_agent_mad(&mut self, to: &MadAddress, mad: &[u8; MAD_LEN]) {
        let path =
            MadPath { remote_qpn: to.qpn, ..MadPath::between(to.local.ip(), to.remote.ip()) };
        self.send_mad(&path, to.qkey, mad);
    }

    /// Sends a management datagram from QP1. What does not leave is lost, as on any network.
    pub(super) fn send_mad(&mut self, path: &MadPath, qkey: Qkey, mad: &[u8; MAD_LEN]) {
        let Some(row) = self.addresses.find(path.local.ip()) else {
            return self.counts.add(Count::TxErrors);
        };
        let is_own = self.addresses.find(path.remote().ip()).is_some();
        if is_own && path.remote_qpn == Qpn::QP1 && qkey == Qkey::QP1 && !self.is_captured() {
            self.counts.add(Count::TxMads);
            let mut path = path.seen_by_peer();
            path.av.flow_label = 0;
            return self.outbox.deliver(&path, mad);
        }
        let header = header(path.remote_qpn, qkey);
        let port = self.options.config.service.port;
        let to = Destination {
            addr: row.peer(path.remote().ip(), port),
            tos: path.av.traffic_class,
            ttl: path.av.hop_limit,
        };
        let frame =
            Frame { header: header.as_slice(), payload: Payload::Bytes(mad), pad: 0, ack: None };
        self.capture.tap.sent(|| row.qp1.ends(&to), &frame);
        let pushed = row.qp1.send(&mut self.tx, &to, &frame);
        let sent = pushed.is_ok().then(|| row.qp1.flush(&mut self.tx));
        self.tx.clear();
        self.counts.add(if matches!(sent, Some(Ok(_))) { Count::TxMads } else { Count::TxErrors });
        if let Some(Err(TxFail::Io { source, .. })) = sent {
            tracing::debug!("sending to {}: {source}", to.addr);
            if is_unreachable(&source) {
                let now = self.now();
                self.manager.handle_unreachable(now, to.addr.ip(), &mut self.outbox);
            }
        }
    }
}

/// Whether the system knows that nobody is there, so that no answer will come.
fn is_unreachable(e: &std::io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ECONNREFUSED | libc::ENETDOWN)
    )
}

/// The headers of a datagram from QP1.
fn header(dest_qpn: Qpn, qkey: Qkey) -> HeaderBuf {
    let bth = Bth {
        opcode: Opcode::UD_SEND_ONLY,
        solicited: false,
        mig_req: true,
        pad: 0,
        tver: 0,
        pkey: Pkey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qpn,
        ack_req: false,
        psn: Psn::default(),
    };
    HeaderBuf::new(&bth).deth(&Deth { qkey, src_qpn: Qpn::QP1 })
}
