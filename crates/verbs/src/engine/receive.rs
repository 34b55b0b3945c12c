//! Received packets: checked, sorted by queue pair, and passed to the machines.

use std::sync::Arc;

use rdmux_link::IcrcCheck;
use rdmux_link::wire::Arrival;
use rdmux_transport::RxPacket;
use rdmux_wire::{Packet, Qpn, WireError};

use super::drive::Bound;
use super::env::Arrived;
use super::{Engine, multicast};
use crate::engine::device::{Device, QpTable};
use crate::objects::control::{SERVICE_SLOT, is_target, slot_of};
use crate::objects::counters::{Counter, Counters};

/// The GRH area for packets whose receiver does not use it.
pub(crate) const NO_GRH: [u8; 40] = [0; 40];

impl Engine {
    /// Passes packets to their queue pairs. Consecutive packets of one queue pair or group share its lock, and the system calls
    /// for the answers.
    pub(crate) fn deliver<'a>(
        &self,
        device: &Arc<Device>,
        table: &QpTable,
        arrivals: impl Iterator<Item = Arrival<'a>>,
    ) {
        let arrives = |_: &Arrival<'_>| {
            let lost = self.loss.strikes();
            if lost {
                count(device, Counter::RxLost);
            }
            !lost
        };
        let mut arrivals = arrivals.filter(arrives).peekable();
        while let Some(first) = arrivals.next() {
            let Some(qpn) = first.dest_qpn() else {
                count(device, Counter::RxMalformed);
                continue;
            };
            let is_of_it = |next: &Arrival<'_>| next.dest_qpn() == Some(qpn);
            if qpn == Qpn::MULTICAST.get() {
                let group = multicast::group_of(&first);
                let is_next =
                    |next: &Arrival<'_>| is_of_it(next) && multicast::group_of(next) == group;
                let more = std::iter::from_fn(|| arrivals.next_if(is_next));
                self.deliver_multicast(device, group, std::iter::once(first).chain(more));
                continue;
            }
            let Some(core) = table.get(Qpn::new(qpn)) else {
                self.not_ours(device, table, &first, Qpn::new(qpn));
                continue;
            };
            let mut bound = Bound::lock(device, core);
            let more = std::iter::from_fn(|| arrivals.next_if(is_of_it));
            bound.receive(std::iter::once(first).chain(more));
        }
    }

    /// Handles a packet whose queue pair is not here: it belongs to another process, or does not exist.
    fn not_ours(&self, device: &Arc<Device>, table: &QpTable, arrival: &Arrival<'_>, qpn: Qpn) {
        let (slot, target) = (slot_of(qpn), is_target(qpn));
        let ours = table.owns(slot) || (target && device.xrc().is_hub());
        if !ours && (slot != SERVICE_SLOT || qpn == Qpn::QP1 || target) {
            // The kernel merged packets of several owners into one.
            count(device, Counter::RxStray);
            // An InfiniBand wire passes strays on itself.
            if arrival.ib.is_none() {
                device.control().stray(arrival.src, arrival.dst.ip(), arrival.bytes);
            }
        } else {
            count(device, Counter::RxNoQp);
        }
    }
}

impl Bound<'_> {
    /// Processes packets, and sends the packets that these permit.
    pub(crate) fn receive<'a>(&mut self, arrivals: impl Iterator<Item = Arrival<'a>>) {
        let device = self.device();
        let now = device.now();
        let (mut packets, mut bytes) = (0, 0);
        let state = self.run(|machine, env| {
            for arrival in arrivals {
                packets += 1;
                bytes += arrival.bytes.len() as u64;
                device.engine().capture().received(&arrival);
                env.arrived = match arrival.ib {
                    None => Arrived::AtAddress,
                    Some(route) if route.port_num == env.port() => Arrived::AtPort(route.port_num),
                    Some(route) if machine.minds_path() => Arrived::AtPort(route.port_num),
                    Some(_) => {
                        // The queue pair's number is not valid at another port.
                        count(device, Counter::RxNoQp);
                        continue;
                    }
                };
                let Some(packet) = accept(device, &arrival) else { continue };
                let grh = if packet.deth.is_some() { arrival.grh() } else { NO_GRH };
                let source = arrival.source(&grh);
                machine.handle_packet(now, &RxPacket { packet: &packet, source: &source }, env);
            }
            machine.poll_transmit(now, super::drive::BUDGET, env)
        });
        self.schedule_after(state);
        let counters = Counters(device.counters());
        counters.add(Counter::RxPackets, packets);
        counters.add(Counter::RxBytes, bytes);
    }
}

/// Parses a packet, if its checksum is right and its headers are valid.
fn accept<'a>(device: &Device, arrival: &Arrival<'a>) -> Option<Packet<'a>> {
    if arrival.check_icrc() == IcrcCheck::Wrong {
        count(device, Counter::RxIcrc);
        return None;
    }
    parse(device, arrival.without_icrc())
}

/// Parses a packet from its BTH to its pad, if its headers are valid.
#[inline]
pub(crate) fn parse<'a>(device: &Device, bytes: &'a [u8]) -> Option<Packet<'a>> {
    checked(device, Packet::parse(bytes))
}

/// Returns a parsed packet. Counts an invalid one.
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
