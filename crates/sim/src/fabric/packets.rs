//! The path of a packet: from a queue pair, through its host's wire and the network, into the wire of another host and a
//! queue pair there, with the oracle's checks of each step.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;

use rand::Rng;
use rdmux_link::ib::{Encap, IbDrop};
use rdmux_link::wire::{Arrival, Frame, IbRoute, Payload, Trailer};
use rdmux_subnet::PortId;
use rdmux_transport::RxPacket;
use rdmux_transport::attr::{AddressVector, QpType};
use rdmux_transport::env::Drop;
use rdmux_wire::icrc::Icrc;
use rdmux_wire::lrh::{Lnh, Lrh};
use rdmux_wire::{Bth, Grh, Lid, Packet, Pkey, Qpn};

use super::end::SentAs;
use super::oracle::{Headers, Oracle};
use super::world::{Event, World};
use crate::check::ensure;
use crate::memory::mix;

/// A packet that must be sent with the next flush.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Due {
    to: SocketAddr,
    /// The packet's bytes, from the LRH to the ICRC.
    bytes: Vec<u8>,
}

/// A packet that was sent, with its datagrams.
struct Left {
    due: Due,
    datagrams: Vec<Vec<u8>>,
}

impl World {
    /// Returns the oracle, which knows the subnet.
    pub(super) fn oracle(&mut self) -> Oracle<'_> {
        let now = self.agenda.now();
        Oracle { subnet: &mut self.subnet, inbox: &mut self.inbox, now }
    }

    /// Sends a packet of a queue pair with the next [`World::flush`].
    pub(super) fn send(
        &mut self,
        id: usize,
        path: &AddressVector,
        bytes: &[u8],
    ) -> Result<(), String> {
        let packet = Packet::parse(bytes).map_err(|e| format!("ep {id} sends garbage: {e}"))?;
        let (now, host) = (self.agenda.now(), self.ends[id].host);
        self.stats.packets += 1;
        self.stats.fingerprint =
            mix(self.stats.fingerprint ^ mix(now.0 ^ u64::from(packet.bth.psn.get()) << 40));
        let header_len = packet.header().as_slice().len();
        let frame = Frame {
            header: &bytes[..header_len],
            payload: Payload::Bytes(packet.payload),
            pad: packet.bth.pad,
            ack: None,
        };
        let hosts = self.destinations(host, path, &packet);
        let whole = self.on_the_wire(host, path, bytes);
        if self.is_tracing() {
            let dlid = Lid(path.dlid);
            self.trace(format_args!("ep {id} to LID {dlid}, hosts {hosts:?}: {packet}"));
        }
        if hosts.is_empty() {
            self.stats.forbidden += 1;
            self.lost(id);
        }
        if self.ends[id].qp.qp_type() == QpType::Ud {
            self.datagram_leaves(path, &packet, &whole, &hosts);
        }
        for to in hosts {
            let due = Due { to: self.hosts[to].addr, bytes: whole.clone() };
            let fingerprint = fingerprint_of(to, &due.bytes);
            self.sent_to.insert(fingerprint);
            self.due.push(due);
        }
        let sent = self.hosts[host].wire.send(path, &frame);
        sent.map_err(|error| format!("ep {id}: its wire has failed: {error}"))
    }

    /// Returns the hosts that a packet reaches, once per copy.
    fn destinations(
        &mut self,
        host: usize,
        path: &AddressVector,
        packet: &Packet<'_>,
    ) -> Vec<usize> {
        let from = self.hosts[host].port;
        let (dlid, sl, pkey) = (Lid(path.dlid), path.sl, packet.bth.pkey);
        let headers = Headers { dlid, sl, pkey, payload: packet.payload.len() };
        if !self.hosts[host].attached {
            return Vec::new();
        }
        let mut oracle = self.oracle();
        let mut ports: Vec<PortId> = Vec::new();
        if dlid.is_multicast() {
            // Members on the sender's own port get it without a switch (IBTA 10.5.2.2).
            ports.extend(oracle.may_send(from, &headers).then_some(from));
            ports.extend(oracle.multicast(from, &headers));
            self.stats.copies += ports.len() as u64;
        } else {
            ports.extend(oracle.unicast(from, &headers));
        }
        let taken_by =
            |port: PortId| self.hosts.iter().position(|host| host.port == port && host.attached);
        ports.into_iter().filter_map(taken_by).collect()
    }

    /// Returns a packet as it must be on the wire, LRH to ICRC.
    fn on_the_wire(&self, host: usize, path: &AddressVector, transport: &[u8]) -> Vec<u8> {
        let view = self.view(host);
        let mask = (1 << view.lmc()) - 1;
        let slid = Lid(view.lid().0 & !mask | u16::from(path.src_path_bits) & mask);
        let dlid = Lid(path.dlid);
        let has_grh = path.is_global || dlid.is_multicast();
        let route = Lrh::LEN + if has_grh { Grh::LEN } else { 0 };
        let total = route + transport.len() + Icrc::LEN;
        let lnh = if has_grh { Lnh::Global } else { Lnh::Local };
        let pkt_len = u16::try_from(total / 4).expect("packets are short");
        let lrh = Lrh { sl: path.sl & 0xf, dlid, slid, lnh, pkt_len, ..Lrh::DEFAULT };
        let mut bytes = lrh.to_bytes().to_vec();
        if has_grh {
            let pay_len = u16::try_from(transport.len() + Icrc::LEN).expect("packets are short");
            let grh = Grh {
                tclass: path.traffic_class,
                flow_label: path.flow_label,
                pay_len,
                next_hdr: Grh::NEXT_BTH,
                hop_limit: path.hop_limit,
                sgid: self.gid(host),
                dgid: path.dgid,
            };
            bytes.extend_from_slice(&grh.to_bytes());
        }
        let mut icrc = Icrc::of_route_headers(&bytes);
        icrc.update(transport);
        bytes.extend_from_slice(transport);
        bytes.extend_from_slice(&icrc.finish());
        bytes
    }

    /// Records the headers with which a datagram was sent.
    fn datagram_leaves(
        &mut self,
        path: &AddressVector,
        packet: &Packet<'_>,
        whole: &[u8],
        hosts: &[usize],
    ) {
        let op = packet.payload.first_chunk().map(|op| u64::from_le_bytes(*op));
        let Some(datagram) = op.and_then(|op| self.datagrams.get_mut(&op)) else { return };
        let slid = Lid(u16::from_be_bytes([whole[6], whole[7]]));
        let has_grh = whole[1] & 3 == Lnh::Global as u8;
        let grh = if has_grh { whole[Lrh::LEN..].first_chunk().copied() } else { None };
        let (dlid, sl, pkey) = (Lid(path.dlid), path.sl & 0xf, packet.bth.pkey);
        datagram.sent = Some(SentAs { slid, dlid, sl, pkey, grh, hosts: hosts.to_vec() });
    }

    /// Sends the packets of a host. They must be exactly those that are due.
    pub(super) fn flush(&mut self, host: usize) -> Result<(), String> {
        self.hosts[host].wire.flush();
        let mut due = std::mem::take(&mut self.due);
        let left = joined(self.hosts[host].wire.outlet().take())?;
        let mut sent: Vec<&Due> = left.iter().map(|left| &left.due).collect();
        sent.sort_unstable();
        due.sort_unstable();
        let is_right = sent.iter().copied().eq(&due);
        ensure!(is_right, "host {host} has sent {}, not {}", listed(sent), listed(due.iter()));
        for Left { due, datagrams } in left {
            self.stats.datagrams += datagrams.len() as u64;
            self.stats.parts += if datagrams.len() > 1 { datagrams.len() as u64 } else { 0 };
            let to = self.host_at(due.to).ok_or_else(|| format!("nobody is at {}", due.to))?;
            for datagram in datagrams {
                self.carry(host, to, &due.bytes, datagram);
            }
        }
        Ok(())
    }

    /// Passes a datagram through the network.
    fn carry(&mut self, from: usize, to: usize, packet: &[u8], datagram: Vec<u8>) {
        let bth_at = transport_of(packet);
        let Ok(bth) = Bth::parse(&packet[bth_at..]) else { return };
        let response = u64::from(bth.opcode.is_response());
        let dest = u64::from(bth.dest_qpn.get());
        let identity = u64::from(bth.psn.get()) | dest << 24 | (to as u64) << 48 | response << 56;
        let now = self.agenda.now();
        for delivery in self.net.send(now, from, to, identity, &mut self.rng).deliveries {
            let mut datagram = datagram.clone();
            let damaged = delivery.corrupt && self.damage(&mut datagram, bth_at);
            let event = Event::Deliver { to, from, datagram, damaged };
            self.agenda.after(delivery.after, event);
        }
    }

    /// Flips bits, except those that the ICRC does not cover because switches and routers may change them: for a packet with
    /// a GRH its whole LRH. (On cables the VCRC covers them, here UDP's checksum does.) Returns whether it flipped any.
    fn damage(&mut self, datagram: &mut [u8], bth_at: usize) -> bool {
        let Ok((encap, _)) = Encap::parse(datagram) else { return false };
        let start = encap.place().start;
        let mut damaged = false;
        for _ in 0..self.rng.random_range(1..=3) {
            let at = self.rng.random_range(0..datagram.len());
            let open = at.checked_sub(Encap::LEN).is_some_and(|at| {
                let at = at + start;
                let grh = Lrh::LEN..bth_at;
                let in_grh = grh.contains(&at) && (at < Lrh::LEN + 4 || at == Lrh::LEN + 7);
                let in_lrh = at == 0 || !grh.is_empty() && at < Lrh::LEN;
                in_lrh
                    || in_grh
                    || at == bth_at + rdmux_wire::bth::CONGESTION_BYTE
                    || at >= usize::from(encap.total)
            });
            if !open {
                datagram[at] ^= 1 << self.rng.random_range(0..8);
                damaged = true;
            }
        }
        damaged
    }

    /// Delivers a datagram to a host.
    pub(super) fn deliver(
        &mut self,
        to: usize,
        from: usize,
        datagram: &[u8],
        damaged: bool,
    ) -> Result<(), String> {
        let src = self.hosts[from].addr;
        let mut shown: Option<(Vec<u8>, IbRoute)> = None;
        let forbidden = self.forbidden(to);
        self.hosts[to].wire.take(src, datagram, |arrival| {
            shown = arrival.ib.map(|route| (arrival.bytes.to_vec(), *route));
        });
        let whole = datagram.get(3) == Some(&1) && !damaged;
        let Some((bytes, route)) = shown else {
            if whole {
                return self.refused(to, &datagram[Encap::LEN..]);
            }
            if self.forbidden(to) != forbidden {
                // The last part of a packet that is not admitted.
                self.lost_to(
                    to,
                    Qpn::new(u32::from_be_bytes([0, datagram[5], datagram[6], datagram[7]])),
                );
            }
            return Ok(());
        };
        self.stats.admitted += 1;
        let is_sent = self.sent_to.contains(&fingerprint(to, &route, &bytes));
        ensure!(is_sent, "host {to} lets in a packet that nobody has sent it: {route:?}");
        let pkey = Pkey(u16::from_be_bytes([bytes[2], bytes[3]]));
        let may = self.may_come_in(to, route.slid, route.dlid, pkey);
        ensure!(may, "host {to} lets in {route:?} with {pkey}, which its port does not allow");
        self.hand_over(to, src, &bytes, &route)
    }

    fn may_come_in(&mut self, to: usize, slid: Lid, dlid: Lid, pkey: Pkey) -> bool {
        let (port, attached) = (self.hosts[to].port, self.hosts[to].attached);
        attached && self.oracle().admits(port, slid, dlid, pkey)
    }

    /// Checks that a whole, undamaged packet was dropped for a reason.
    fn refused(&mut self, to: usize, packet: &[u8]) -> Result<(), String> {
        let lid = |at| Lid(u16::from_be_bytes([packet[at], packet[at + 1]]));
        let transport = &packet[transport_of(packet)..];
        let pkey = Pkey(u16::from_be_bytes([transport[2], transport[3]]));
        let may = self.may_come_in(to, lid(6), lid(2), pkey);
        // The GID may have changed in the meantime.
        let dgid_is_ours = packet[1] & 3 != Lnh::Global as u8
            || lid(2).is_multicast()
            || packet[32..48] == self.gid(to).0;
        ensure!(!(may && dgid_is_ours), "host {to} drops a packet for no reason");
        let qpn = Qpn::new(u32::from_be_bytes([0, transport[5], transport[6], transport[7]]));
        self.lost_to(to, qpn);
        Ok(())
    }

    /// Returns how many packets a host's port has dropped because of its state, LIDs, GIDs and P_Keys.
    fn forbidden(&self, host: usize) -> u64 {
        let reasons = [IbDrop::RxInactive, IbDrop::RxLid, IbDrop::RxGid, IbDrop::RxPkey];
        let routes = self.hosts[host].wire.routes();
        reasons.iter().map(|why| routes.dropped(*why)).sum()
    }

    /// Records that the fabric dropped a packet for a queue pair of a host, if there is such a queue pair.
    fn lost_to(&mut self, host: usize, qpn: Qpn) {
        if let Some(&id) = self.hosts[host].qps.get(&qpn) {
            self.lost(id);
        }
    }

    /// Records that the fabric dropped a packet between an end and its peer.
    pub(super) fn lost(&mut self, id: usize) {
        let (now, peer) = (self.agenda.now(), self.ends[id].peer);
        self.ends[id].lost(now);
        if peer != id {
            self.ends[peer].lost(now);
        }
    }

    /// Delivers a packet to its queue pair, or to those of a group.
    fn hand_over(
        &mut self,
        host: usize,
        src: SocketAddr,
        bytes: &[u8],
        route: &IbRoute,
    ) -> Result<(), String> {
        let dst = self.hosts[host].addr;
        let arrival =
            Arrival { src, dst, bytes, icrc: Trailer::None, tos: None, ttl: None, ib: Some(route) };
        let packet = Packet::parse(bytes).map_err(|e| format!("garbage was sent: {e}"))?;
        let grh = arrival.grh();
        let source = arrival.source(&grh);
        let qpn = packet.bth.dest_qpn;
        let ends: Vec<usize> = if qpn == Qpn::MULTICAST {
            let dgid = arrival.dgid();
            let group = self.groups.iter().position(|group| group.mgid == dgid);
            let hears = |id: &usize| group.is_some_and(|g| self.ends[*id].groups.contains(&g));
            self.hosts[host].qps.values().copied().filter(hears).collect()
        } else {
            self.hosts[host].qps.get(&qpn).copied().into_iter().collect()
        };
        for id in ends {
            let dropped = self.act(id, |qp, now, env| {
                qp.handle_packet(now, &RxPacket { packet: &packet, source: &source }, env);
                // The connection's P_Key or LID is no longer that of its packets.
                env.dropped.iter().any(|why| matches!(why, Drop::Pkey | Drop::Source))
            })?;
            if dropped {
                self.lost(id);
            }
            // Packets that arrive in the meantime form one burst.
            self.wake_soon(id, 5);
        }
        Ok(())
    }
}

/// Returns the offset of a packet's BTH.
fn transport_of(packet: &[u8]) -> usize {
    let has_grh = packet[1] & 3 == Lnh::Global as u8;
    Lrh::LEN + if has_grh { Grh::LEN } else { 0 }
}

/// Returns a fingerprint of the bytes of a packet that a host receives, LRH to ICRC.
fn fingerprint_of(host: usize, packet: &[u8]) -> u64 {
    let lid = |at| Lid(u16::from_be_bytes([packet[at], packet[at + 1]]));
    let at = transport_of(packet);
    let grh = if at > Lrh::LEN { packet[Lrh::LEN..].first_chunk().copied() } else { None };
    let (slid, dlid, sl) = (lid(6), lid(2), packet[1] >> 4);
    let route = IbRoute { port_num: 1, slid, dlid, sl, dlid_path_bits: 0, grh };
    fingerprint(host, &route, &packet[at..packet.len() - Icrc::LEN])
}

fn fingerprint(host: usize, route: &IbRoute, transport: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    let IbRoute { slid, dlid, sl, grh, .. } = route;
    (host, slid.0, dlid.0, sl, grh, transport).hash(&mut hasher);
    hasher.finish()
}

/// Reassembles packets. The format requires the parts of a packet to be consecutive.
fn joined(datagrams: Vec<(SocketAddr, Vec<u8>)>) -> Result<Vec<Left>, String> {
    let mut left: Vec<Left> = Vec::new();
    for (to, datagram) in datagrams {
        let [_, _, part, parts, _, _, _, _, _, _, _, _, 0, 0, a, b, ..] = *datagram.as_slice()
        else {
            return Err("a datagram without its header".to_owned());
        };
        let total = usize::from(u16::from_be_bytes([a, b]));
        let size = total / usize::from(parts.max(1)) + 1;
        let start = size * usize::from(part);
        let body = datagram.get(Encap::LEN..Encap::LEN + size.min(total - start.min(total)));
        let body = body.ok_or("a datagram that is shorter than its part")?;
        if part == 0 {
            let due = Due { to, bytes: Vec::with_capacity(total) };
            left.push(Left { due, datagrams: Vec::new() });
        }
        let packet = left.last_mut().ok_or("a part before the first")?;
        let fits = packet.due.to == to && packet.due.bytes.len() == start;
        ensure!(fits, "part {part} of {parts} is out of order");
        packet.due.bytes.extend_from_slice(body);
        packet.datagrams.push(datagram);
    }
    Ok(left)
}

/// Formats packets briefly.
fn listed<'a>(packets: impl IntoIterator<Item = &'a Due>) -> String {
    let short = |due: &Due| {
        let packet = Packet::parse(&due.bytes[transport_of(&due.bytes)..due.bytes.len() - 4]);
        let text = packet.map_or_else(|error| error.to_string(), |packet| packet.to_string());
        format!("[{} {:02x?} {text}]", due.to, &due.bytes[..8])
    };
    packets.into_iter().map(short).collect::<Vec<_>>().join(" ")
}
