//! Datagrams in: checked, sorted by queue pair, handed to the machines.

use std::sync::Arc;

use rdmux_link::udp::{Datagram, IcrcCheck};
use rdmux_transport::{RxPacket, Source};
use rdmux_wire::{Gid, Packet, Qpn, WireError};

use super::Engine;
use super::drive::Bound;
use crate::engine::device::{Device, QpTable};
use crate::objects::control::{SERVICE_SLOT, is_target, slot_of};
use crate::objects::counters::{Counter, Counters};

/// The GRH area of a packet whose receiver has no use for it.
pub(crate) const NO_GRH: [u8; 40] = [0; 40];

impl Engine {
    /// Hands datagrams to their queue pairs. Those of one queue pair in a row share its lock, and
    /// the system calls of what it sends in answer.
    pub(crate) fn deliver<'a>(
        &self,
        device: &Arc<Device>,
        table: &QpTable,
        datagrams: impl Iterator<Item = Datagram<'a>>,
    ) {
        let arrives = |_: &Datagram<'_>| {
            let lost = self.loss.strikes();
            if lost {
                count(device, Counter::RxLost);
            }
            !lost
        };
        let mut datagrams = datagrams.filter(arrives).peekable();
        while let Some(first) = datagrams.next() {
            let Some(qpn) = first.dest_qpn() else {
                count(device, Counter::RxMalformed);
                continue;
            };
            let Some(core) = table.get(Qpn::new(qpn)) else {
                self.not_ours(device, table, &first, Qpn::new(qpn));
                continue;
            };
            let mut bound = Bound::lock(device, core);
            let more = || datagrams.next_if(|next| next.dest_qpn() == Some(qpn));
            bound.receive(std::iter::once(first).chain(std::iter::from_fn(more)));
        }
    }

    /// A datagram whose queue pair is not here: another process's, a group's, or nobody's.
    fn not_ours(&self, device: &Arc<Device>, table: &QpTable, datagram: &Datagram<'_>, qpn: Qpn) {
        if qpn == Qpn::MULTICAST {
            return self.deliver_multicast(device, datagram);
        }
        let (slot, target) = (slot_of(qpn), is_target(qpn));
        let ours = table.owns(slot) || (target && device.xrc().is_hub());
        if !ours && (slot != SERVICE_SLOT || qpn == Qpn::QP1 || target) {
            // The kernel merged packets of several owners into one.
            count(device, Counter::RxStray);
            device.control().stray(datagram.src, datagram.dst.ip(), datagram.bytes);
        } else {
            count(device, Counter::RxNoQp);
        }
    }
}

impl Bound<'_> {
    /// Takes in datagrams, and sends what they allow to be sent.
    pub(crate) fn receive<'a>(&mut self, datagrams: impl Iterator<Item = Datagram<'a>>) {
        let device = self.device();
        let now = device.now();
        let (mut packets, mut bytes) = (0, 0);
        let state = self.run(|machine, env| {
            for datagram in datagrams {
                packets += 1;
                bytes += datagram.bytes.len() as u64;
                device.engine().capture().received(&datagram);
                let Some(packet) = accept(device, &datagram) else { continue };
                let grh = if packet.deth.is_some() { datagram.grh() } else { NO_GRH };
                let source = Source {
                    sgid: Gid::from(datagram.src.ip()),
                    dgid: Gid::from(datagram.dst.ip()),
                    grh: &grh,
                    slid: 0,
                    sl: packet_type(&datagram),
                    dlid_path_bits: 0,
                    has_grh: true,
                };
                machine.handle_packet(now, &RxPacket { packet: &packet, source: &source }, env);
            }
            machine.poll_transmit(now, super::drive::BUDGET, env)
        });
        self.settle_after(state);
        let counters = Counters(device.counters());
        counters.add(Counter::RxPackets, packets);
        counters.add(Counter::RxBytes, bytes);
    }
}

/// What stands for the service level, of which RoCEv2 has none: the kind of packet, which IBTA A17.4.5.1
/// wants completions to tell, in the bits in which adapters do. UCX drops datagrams over IPv4 without it.
fn packet_type(datagram: &Datagram<'_>) -> u8 {
    /// There was a UDP header.
    const UDP: u8 = 8;
    const IPV6: u8 = 1;
    const IPV4: u8 = 2;
    UDP | if datagram.dst.is_ipv4() { IPV4 } else { IPV6 }
}

/// The packet of a datagram, if its checksum is right and its headers make sense.
fn accept<'a>(device: &Device, datagram: &Datagram<'a>) -> Option<Packet<'a>> {
    if datagram.check_icrc() == IcrcCheck::Wrong {
        count(device, Counter::RxIcrc);
        return None;
    }
    parse(device, datagram.without_icrc())
}

/// The packet, from its BTH to its pad, if its headers make sense.
#[inline]
pub(crate) fn parse<'a>(device: &Device, bytes: &'a [u8]) -> Option<Packet<'a>> {
    checked(device, Packet::parse(bytes))
}

/// The packet, unless it was counted as one that makes no sense.
#[inline]
pub(crate) fn checked<'a>(
    device: &Device,
    parsed: Result<Packet<'a>, WireError>,
) -> Option<Packet<'a>> {
    match parsed {
        Ok(packet) => Some(packet),
        Err(error) => {
            count(
                device,
                match error {
                    WireError::Version(_) => Counter::RxVersion,
                    WireError::Opcode(_) => Counter::RxOpcode,
                    _ => Counter::RxMalformed,
                },
            );
            None
        }
    }
}

pub(crate) fn count(device: &Device, counter: Counter) {
    Counters(device.counters()).add(counter, 1);
}
