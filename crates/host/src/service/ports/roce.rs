//! The port of RoCE: the sockets of UDP port 4791 on the host's addresses, and packets to and from QP1 (IBTA 13.5.1, annex
//! A17).

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::OwnedFd;

use rdmux_cm::MadPath;
use rdmux_link::udp::{GroupOptions, IcrcCheck, OpenError};
use rdmux_link::wire::{Arrival, Frame, Payload, TxFail, Wire};
use rdmux_link::{Destination, UdpGroup, UdpPort};
use rdmux_verbs::control::Limits;
use rdmux_wire::mad::MAD_LEN;
use rdmux_wire::{Bth, Deth, HeaderBuf, Opcode, Packet, Pkey, Psn, Qkey, Qpn};

use super::{ROCE, ServicePort, SocketWanted};
use crate::names::Config;
use crate::proto::Failure;
use crate::service::clients::ClientId;
use crate::service::core::Core;
use crate::service::counters::Count;
use crate::service::requests::failure;

/// Rounds of receiving before other sources get their turn.
const MAX_ROUNDS: usize = 4;

/// The operations for RoCE ports.
pub(super) struct Roce;

impl ServicePort for Roce {
    fn configure(&self, _config: &Config, limits: &Limits, cm: &mut rdmux_cm::Config) {
        cm.max_rd_atomic = limits.max_rd_atomic;
        cm.max_init_rd_atomic = limits.max_init_rd_atomic;
    }

    /// Sends an empty datagram, which a service ignores. The kernel refuses it at once if no socket is bound to the
    /// port.
    fn probe(&self, core: &Core, src: IpAddr, dst: IpAddr) -> Result<(), i32> {
        let port = core.options.config.service.port;
        let refused = || -> io::Result<()> {
            let socket = UdpSocket::bind((src, 0))?;
            socket.connect((dst, port))?;
            socket.send(&[])?;
            socket.take_error()?.map_or(Ok(()), Err)
        };
        match refused() {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Err(libc::EHOSTUNREACH),
            Err(e) => Err(e.raw_os_error().unwrap_or(libc::EHOSTUNREACH)),
        }
    }

    fn socket(
        &self,
        core: &mut Core,
        _client: ClientId,
        wanted: &SocketWanted,
    ) -> Result<OwnedFd, Failure> {
        let &SocketWanted { gid_index, slot, targets, .. } = wanted;
        let row = core
            .addresses
            .row_mut(gid_index)
            .ok_or_else(|| Failure::new(libc::EINVAL, format!("GID index {gid_index} is empty")))?;
        row.roce.socket(slot, targets).map_err(|e| failure(&e))
    }

    fn send_mad(&self, core: &mut Core, path: &MadPath, qkey: Qkey, mad: &[u8; MAD_LEN]) {
        core.send_from_qp1(path, qkey, mad);
    }
}

/// The sockets of an address.
#[derive(Debug)]
pub(in crate::service) struct Sockets {
    group: UdpGroup,
    /// The service's own socket, for QP1.
    pub(in crate::service) qp1: UdpPort,
}

impl Sockets {
    /// Opens the port on an address.
    pub(in crate::service) fn open(
        ip: IpAddr,
        port: u16,
        scope_id: u32,
    ) -> Result<Self, OpenError> {
        let options = GroupOptions {
            port,
            scope_id,
            // Processes with datagram queue pairs enable it.
            header_info: false,
            ..Default::default()
        };
        let mut group = UdpGroup::open(ip, &options)?;
        let what = "use a UDP socket";
        let fail = |source| OpenError::Io { what, addr: ip, source };
        let qp1 = group.socket(0).and_then(UdpPort::new).map_err(fail)?;
        Ok(Self { group, qp1 })
    }

    /// Returns a slot's socket. If `targets` is set, it also receives packets for XRC targets.
    fn socket(&mut self, slot: u16, targets: bool) -> io::Result<OwnedFd> {
        let socket = self.group.socket(slot)?;
        if targets {
            self.group.steer_targets(slot)?;
        }
        Ok(socket)
    }

    /// Drops the datagrams queued in a slot's sockets, before another process gets the slot.
    pub(in crate::service) fn recycle(&self, slot: u16) {
        self.group.recycle(slot);
    }
}

impl Core {
    /// Receives datagrams from the service's socket on an address.
    pub(in crate::service) fn receive(&mut self, index: u8) {
        for _ in 0..MAX_ROUNDS {
            let Some(mut rx) = self.rx.take() else { return };
            let got = match self.addresses.row(index) {
                Some(row) => row.roce.qp1.receive(&mut rx).unwrap_or_else(|e| {
                    // Errors of earlier packets are reported here; the next call receives again.
                    tracing::debug!("cannot receive on {}: {e}", row.ip);
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
            // Another host of this machine probes whether this one is up. The answer is that the kernel does not refuse
            // the datagram.
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
            qpn => {
                let of = (ROCE.device, qpn);
                self.process_stray(of, arrival.src, arrival.dst.ip(), arrival.bytes);
            }
        }
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
        self.process_mad(ROCE, &path, packet.payload)?;
        self.drain_outbox();
        Ok(())
    }

    fn send_from_qp1(&mut self, path: &MadPath, qkey: Qkey, mad: &[u8; MAD_LEN]) {
        let Some(row) = self.addresses.find(path.local.ip()) else {
            return self.counts.add(Count::TxErrors);
        };
        let is_own = self.addresses.find(path.remote().ip()).is_some();
        if is_own && path.remote_qpn == Qpn::QP1 && qkey == Qkey::QP1 && !self.is_captured() {
            self.counts.add(Count::TxMads);
            let mut path = path.seen_by_peer();
            path.av.flow_label = 0;
            return self.outbox.deliver(ROCE, &path, mad);
        }
        let header = header(path.remote_qpn, qkey);
        let port = self.options.config.service.port;
        let to = Destination {
            addr: row.peer(path.remote().ip(), port),
            tos: path.av.traffic_class,
            ttl: path.av.hop_limit,
        };
        let qp1 = &row.roce.qp1;
        let frame =
            Frame { header: header.as_slice(), payload: Payload::Bytes(mad), pad: 0, ack: None };
        self.capture.tap.sent(|| qp1.ends(&to), &frame);
        let pushed = qp1.send(&mut self.tx, &to, &frame);
        let sent = pushed.is_ok().then(|| qp1.flush(&mut self.tx));
        self.tx.clear();
        self.counts.add(if matches!(sent, Some(Ok(_))) { Count::TxMads } else { Count::TxErrors });
        if let Some(Err(TxFail::Io { source, .. })) = sent {
            tracing::debug!("cannot send to {}: {source}", to.addr);
            if is_unreachable(&source) {
                let now = self.now();
                self.manager.handle_unreachable(now, to.addr.ip(), &mut self.outbox);
            }
        }
    }
}

/// Returns whether the error means that the destination is unreachable, so that no answer can arrive.
fn is_unreachable(e: &std::io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ECONNREFUSED | libc::ENETDOWN)
    )
}

/// Makes the headers of a datagram from QP1.
fn header(dest_qpn: Qpn, qkey: Qkey) -> HeaderBuf {
    let bth = Bth { mig_req: true, ..Bth::new(Opcode::UD_SEND_ONLY, dest_qpn, Psn::default()) };
    HeaderBuf::new(&bth).deth(&Deth { qkey, src_qpn: Qpn::QP1 })
}
