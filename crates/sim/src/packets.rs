//! The path of a packet: from a queue pair, through the network, into another queue pair.

use std::net::Ipv4Addr;

use rand::Rng;
use rdmux_transport::{RxPacket, Source};
use rdmux_wire::icrc::{Icrc, Ipv4Pseudo};
use rdmux_wire::{Bth, Gid, Packet};

use crate::memory::mix;
use crate::net::NodeId;
use crate::world::{Event, FIRST_QPN, World};

impl World {
    /// Passes a packet of an endpoint to the network.
    pub(crate) fn send(&mut self, from: usize, bytes: Vec<u8>) {
        let Ok(bth) = Bth::parse(&bytes) else { return };
        self.stats.packets += 1;
        self.stats.fingerprint =
            mix(self.stats.fingerprint ^ mix(self.agenda.now().0 ^ u64::from(bth.psn.get()) << 40));
        let first = FIRST_QPN;
        let to = bth.dest_qpn.get().wrapping_sub(first) as usize;
        if to >= self.endpoints.len() {
            return;
        }
        if self.tracing {
            let text = Packet::parse(&bytes).map(|p| p.to_string()).unwrap_or_default();
            self.trace(format_args!("ep {from} -> {to}: {text}"));
        }
        let response = u64::from(bth.opcode.is_response());
        let identity = u64::from(bth.psn.get()) | (to as u64) << 24 | response << 56;
        let (src, dst) = (self.endpoints[from].node, self.endpoints[to].node);
        let now = self.agenda.now();
        let path = self.path_of(from);
        if self.is_dead(self.endpoints[from].plan.0, path) {
            self.net.stats.unreachable += 1;
            return;
        }
        let verdict = self.net.send_by((src, dst, path), now, identity, &mut self.rng);
        let icrc = if verdict.deliveries.iter().any(|d| d.corrupt) {
            icrc((src, dst, path), &bytes)
        } else {
            [0; 4]
        };
        for delivery in verdict.deliveries {
            let mut bytes = bytes.clone();
            let mut sealed = [0; 4];
            if delivery.corrupt {
                sealed = icrc;
                self.damage(&mut bytes);
            }
            self.put(delivery.after, Event::Deliver { to, from, path, bytes, icrc: sealed });
        }
    }

    /// Flips one to three bits anywhere except in the byte that routers may change.
    fn damage(&mut self, bytes: &mut [u8]) {
        for _ in 0..self.rng.random_range(1..=3) {
            let at = self.rng.random_range(0..bytes.len());
            if at != rdmux_wire::bth::CONGESTION_BYTE {
                bytes[at] ^= 1 << self.rng.random_range(0..8);
            } else {
                bytes[0] ^= 1;
            }
        }
    }

    /// Delivers a packet to an endpoint.
    pub(crate) fn deliver(
        &mut self,
        to: usize,
        (from, path): (usize, u8),
        bytes: &[u8],
        sealed: [u8; 4],
    ) -> Result<(), String> {
        if !self.is_alive(to) {
            return Ok(());
        }
        let (src, dst) = (self.endpoints[from].node, self.endpoints[to].node);
        if sealed != [0; 4] && icrc((src, dst, path), bytes) != sealed {
            // A link drops packets with a wrong checksum. Bits flipped twice are no damage.
            return Ok(());
        }
        let packet = Packet::parse(bytes).map_err(|e| format!("ep {from} sent garbage: {e}"))?;
        let grh = self.grh();
        let source = Source {
            sgid: gid(src, path),
            dgid: gid(dst, path),
            grh: &grh,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
            has_grh: true,
        };
        self.act(to, |ep, now, env| {
            ep.qp.handle_packet(now, &RxPacket { packet: &packet, source: &source }, env)
        })?;
        // Packets that arrive in the meantime form one burst.
        self.wake_soon(to, 5);
        Ok(())
    }
}

/// Returns a node's address on a path.
fn address(node: NodeId, path: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, path, u8::try_from(node + 1).expect("few nodes"))
}

/// Returns the GID of a node on a path.
pub(crate) fn gid(node: NodeId, path: u8) -> Gid {
    address(node, path).into()
}

fn icrc((src, dst, path): (NodeId, NodeId, u8), bytes: &[u8]) -> [u8; 4] {
    let udp_len = u16::try_from(8 + bytes.len() + Icrc::LEN).unwrap_or(u16::MAX);
    let (src, dst) = (address(src, path), address(dst, path));
    let (src_port, dst_port) = (0xc000, 4791);
    let mut icrc = Icrc::ipv4(&Ipv4Pseudo { src, dst, id: 0, src_port, dst_port, udp_len });
    icrc.update(bytes);
    icrc.finish()
}
