//! Received packets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use rdmux_transport::Source;
use rdmux_wire::icrc::Icrc;
use rdmux_wire::{Gid, Grh, Lid};

use crate::udp::checksum::{self, IcrcCheck};
use crate::udp::{ROCE_PORT, RxBatch, UdpPort};

/// The two ends of a packet, as captures show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The source.
    pub src: SocketAddr,
    /// The destination.
    pub dst: SocketAddr,
    /// The traffic class (IPv4 TOS).
    pub tos: u8,
    /// The hop limit (IPv4 TTL).
    pub ttl: u8,
}

impl Ends {
    /// Returns the ends of a packet that no network has carried, as RoCEv2 would show them.
    pub fn between(src: IpAddr, dst: IpAddr) -> Self {
        let end = |ip| SocketAddr::new(ip, ROCE_PORT);
        Self { src: end(src), dst: end(dst), tos: 0, ttl: 64 }
    }
}

/// The contents of an InfiniBand packet's link and network headers (IBTA 7.7, 8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IbRoute {
    /// The number of the port at which it arrived.
    pub port_num: u8,
    /// The packet's source LID.
    pub slid: Lid,
    /// The packet's destination LID: one of the port's, or a group's.
    pub dlid: Lid,
    /// The service level, 0 to 15.
    pub sl: u8,
    /// The path bits of the DLID, 0 to 127; 0 if it is a group's.
    pub dlid_path_bits: u8,
    /// The GRH, if the packet had one.
    pub grh: Option<[u8; Grh::LEN]>,
}

/// The headers that the ICRC at the end of a packet covers besides the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trailer<'a> {
    /// The packet has no ICRC: the wire has none, or has checked it.
    None,
    /// Addresses, and the likely IPv4 Identification: the position among the datagrams that the kernel merged.
    Ip(u16),
    /// The headers of an InfiniBand packet: LRH and GRH.
    Ib(&'a [u8]),
}

/// A packet received over an IP network or over InfiniBand.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The sender. For an InfiniBand packet: the sender of the datagrams that carried it.
    pub src: SocketAddr,
    /// The destination: one of this host's addresses, or a multicast group. For an InfiniBand packet: the destination of the
    /// datagrams.
    pub dst: SocketAddr,
    /// The packet from its BTH to its pad, and to its ICRC if it has one. Of any length and content.
    pub bytes: &'a [u8],
    /// The headers that the packet's ICRC covers besides, if it has one.
    pub icrc: Trailer<'a>,
    /// The traffic class (IPv4 TOS), if the wire reports it.
    pub tos: Option<u8>,
    /// The hop limit (IPv4 TTL), if the wire reports it.
    pub ttl: Option<u8>,
    /// The packet's headers below the BTH, if it is an InfiniBand packet.
    pub ib: Option<&'a IbRoute>,
}

impl<'a> Arrival<'a> {
    /// Checks the ICRC. Reads all bytes once.
    pub fn check_icrc(&self) -> IcrcCheck {
        match self.icrc {
            Trailer::None => IcrcCheck::Absent,
            Trailer::Ip(id) => checksum::check(self.src, self.dst, id, self.bytes),
            Trailer::Ib(below) => {
                let Some((packet, found)) = self.bytes.split_last_chunk() else {
                    return IcrcCheck::Wrong;
                };
                let mut icrc = Icrc::of_route_headers(below);
                icrc.update(packet);
                if icrc.finish() == *found { IcrcCheck::Right } else { IcrcCheck::Wrong }
            }
        }
    }

    /// Returns the packet without its ICRC, if that is right.
    #[inline]
    pub(crate) fn intact(self) -> Option<Self> {
        let is_wrong = self.check_icrc() == IcrcCheck::Wrong;
        let intact = || Self { bytes: self.without_icrc(), icrc: Trailer::None, ..self };
        (!is_wrong).then(intact)
    }

    /// Returns everything before the ICRC; nothing if the packet is too short for its ICRC.
    pub fn without_icrc(&self) -> &'a [u8] {
        if self.icrc == Trailer::None {
            return self.bytes;
        }
        self.bytes.split_last_chunk::<{ Icrc::LEN }>().map_or(&[], |(packet, _)| packet)
    }

    /// Returns the destination QPN, if the packet is long enough for it, without parsing the rest.
    pub fn dest_qpn(&self) -> Option<u32> {
        let word = self.bytes.get(4..)?.first_chunk()?;
        Some(u32::from_be_bytes(*word) & 0x00ff_ffff)
    }

    /// Returns whether the packet is a response: a READ or ATOMIC response or an acknowledgement, by its opcode, in any transport
    /// (IBTA table 38).
    pub fn is_response(&self) -> bool {
        self.bytes.first().is_some_and(|opcode| (0x0d..=0x12).contains(&(opcode & 0x1f)))
    }

    /// Returns the packet's two ends, as captures show them.
    pub fn ends(&self) -> Ends {
        let Self { src, dst, tos, ttl, .. } = *self;
        Ends { src, dst, tos: tos.unwrap_or(0), ttl: ttl.unwrap_or(64) }
    }

    /// Returns the packet's source in the transport's form. `grh` is the result of [`grh`](Self::grh), or anything if it will not
    /// be read.
    #[inline]
    pub fn source<'g>(&self, grh: &'g [u8; 40]) -> Source<'g> {
        if let Some(ib) = self.ib {
            return ib.source(grh);
        }
        Source {
            sgid: Gid::from(self.src.ip()),
            dgid: Gid::from(self.dst.ip()),
            grh,
            slid: 0,
            sl: self.packet_type(),
            dlid_path_bits: 0,
            has_grh: true,
        }
    }

    /// Returns the destination GID: that of one of this host's addresses, or of a multicast group. Zero for an InfiniBand packet
    /// without a GRH.
    pub fn dgid(&self) -> Gid {
        self.ib.map_or_else(|| Gid::from(self.dst.ip()), |ib| ib.gids().1)
    }

    /// Returns the value for the service level, which RoCEv2 does not have: the kind of packet, which IBTA A17.4.5.1 requires in
    /// completions, in the bits that adapters use. Without it, UCX drops datagrams over IPv4.
    fn packet_type(&self) -> u8 {
        /// The flag of a packet that had a UDP header.
        const UDP: u8 = 8;
        const IPV6: u8 = 1;
        const IPV4: u8 = 2;
        UDP | if self.dst.is_ipv4() { IPV4 } else { IPV6 }
    }

    /// Returns the network header for the 40-byte GRH area of a UD receive: an IPv6 header, or an IPv4 header in the last 20
    /// bytes (IBTA A17.4.5.1). Fields that the wire does not report are zero: flow label, Identification, and those whose
    /// reporting is disabled. For an InfiniBand packet the GRH, or zeros if it had none.
    pub fn grh(&self) -> [u8; 40] {
        if let Some(ib) = self.ib {
            return ib.grh.unwrap_or([0; 40]);
        }
        let mut grh = [0; 40];
        let udp_len = u16::try_from(8 + self.bytes.len()).unwrap_or(u16::MAX);
        let (tos, ttl) = (self.tos.unwrap_or(0), self.ttl.unwrap_or(0));
        match (self.src.ip(), self.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let ip = &mut grh[20..];
                ip[0] = 0x45;
                ip[1] = tos;
                ip[2..4].copy_from_slice(&udp_len.saturating_add(20).to_be_bytes());
                ip[6] = 0x40;
                ip[8] = ttl;
                ip[9] = IPPROTO_UDP;
                ip[12..16].copy_from_slice(&src.octets());
                ip[16..20].copy_from_slice(&dst.octets());
                let sum = ipv4_checksum(ip);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            (src, dst) => {
                let v6 = |ip| match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                let word = 6 << 28 | u32::from(tos) << 20;
                grh[..4].copy_from_slice(&word.to_be_bytes());
                grh[4..6].copy_from_slice(&udp_len.to_be_bytes());
                grh[6] = IPPROTO_UDP;
                grh[7] = ttl;
                grh[8..24].copy_from_slice(&v6(src).octets());
                grh[24..40].copy_from_slice(&v6(dst).octets());
            }
        }
        grh
    }
}

impl IbRoute {
    /// Returns the sender's and the receiver's GID; both zero without a GRH.
    fn gids(&self) -> (Gid, Gid) {
        let grh = self.grh.as_ref().and_then(|grh| Grh::parse(grh).ok());
        grh.map_or((Gid::ZERO, Gid::ZERO), |grh| (grh.sgid, grh.dgid))
    }

    fn source<'g>(&self, grh: &'g [u8; 40]) -> Source<'g> {
        let (sgid, dgid) = self.gids();
        let Self { slid, sl, dlid_path_bits, .. } = *self;
        Source { sgid, dgid, grh, slid: slid.0, sl, dlid_path_bits, has_grh: self.grh.is_some() }
    }
}

const IPPROTO_UDP: u8 = 17;

/// Returns the checksum of an IPv4 header whose checksum field is zero (RFC 1071).
fn ipv4_checksum(header: &[u8]) -> u16 {
    let sum: u32 =
        header.chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(u16::MAX)
}

/// The packets of a receive, for wires that have no buffers of their own.
///
/// Its memory is kept: nothing is allocated once it has grown to the usual size.
#[derive(Debug, Default)]
pub struct Arrivals {
    data: Vec<u8>,
    /// The number of bytes in use.
    used: usize,
    /// The buffers of received datagrams, if any were received.
    datagrams: Option<RxBatch>,
    list: Vec<Arrived>,
    /// The ends of packets, stored once for consecutive packets with the same ends.
    ends: Vec<Ends>,
}

/// A packet, and its metadata.
#[derive(Debug)]
struct Arrived {
    place: Place,
    /// The length of LRH and GRH before it, if its ICRC must be checked.
    below: usize,
    /// The index of the packet's ends.
    ends: usize,
    ib: Option<IbRoute>,
}

/// The location of a packet.
#[derive(Clone, Debug)]
enum Place {
    Data(Range<usize>),
    Datagrams(Range<usize>),
}

/// A sink for the packets of a datagram.
pub(crate) struct Shown<'a> {
    datagrams: &'a RxBatch,
    ends: Ends,
    data: &'a mut Vec<u8>,
    used: &'a mut usize,
    list: &'a mut Vec<Arrived>,
    all_ends: &'a mut Vec<Ends>,
}

impl Shown<'_> {
    /// Adds an InfiniBand packet, LRH to ICRC, that is part of the datagram. `below` is the length of its LRH and GRH.
    pub(crate) fn in_place(&mut self, packet: &[u8], below: usize, route: IbRoute) {
        let Range { start, end } = self.datagrams.place_of(packet);
        self.add(Place::Datagrams(start + below..end), below, route);
    }

    /// Adds one that is not part of the datagram.
    pub(crate) fn copied(&mut self, packet: &[u8], below: usize, route: IbRoute) {
        let start = *self.used;
        self.data.truncate(start);
        self.data.extend_from_slice(packet);
        *self.used = self.data.len();
        self.add(Place::Data(start + below..*self.used), below, route);
    }

    fn add(&mut self, place: Place, below: usize, route: IbRoute) {
        let ends = place_of_ends(self.all_ends, self.ends);
        self.list.push(Arrived { place, below, ends, ib: Some(route) });
    }
}

/// Returns the index of a packet's ends, which are added unless they equal the last ones.
#[inline]
fn place_of_ends(all: &mut Vec<Ends>, ends: Ends) -> usize {
    if all.last() != Some(&ends) {
        all.push(ends);
    }
    all.len() - 1
}

impl Arrivals {
    /// The size of the buffer for each packet: a payload of 64 KiB and its headers.
    const ROOM: usize = (64 << 10) + 128;

    /// Discards the packets.
    pub fn clear(&mut self) {
        self.list.clear();
        self.ends.clear();
        self.used = 0;
    }

    /// Adds a packet. `receive` writes it to the given buffer, and returns its length and ends.
    ///
    /// # Errors
    ///
    /// That of `receive`; nothing was added.
    pub fn add(
        &mut self,
        receive: impl FnOnce(&mut [u8]) -> io::Result<(usize, Ends)>,
    ) -> io::Result<()> {
        self.put(|buffer| receive(buffer).map(|(len, ends)| (len, ends, None)))
    }

    /// Adds a packet like [`add`](Self::add), for an InfiniBand packet from its BTH to its pad. Its ICRC was checked.
    ///
    /// # Errors
    ///
    /// As for [`add`](Self::add).
    pub fn add_ib(
        &mut self,
        receive: impl FnOnce(&mut [u8]) -> io::Result<(usize, Ends, IbRoute)>,
    ) -> io::Result<()> {
        self.put(|buffer| receive(buffer).map(|(len, ends, route)| (len, ends, Some(route))))
    }

    fn put(
        &mut self,
        receive: impl FnOnce(&mut [u8]) -> io::Result<(usize, Ends, Option<IbRoute>)>,
    ) -> io::Result<()> {
        let start = self.used;
        if self.data.len() < start + Self::ROOM {
            self.data.resize(start + Self::ROOM, 0);
        }
        let (len, ends, ib) = receive(&mut self.data[start..start + Self::ROOM])?;
        self.used = start + len.min(Self::ROOM);
        let ends = place_of_ends(&mut self.ends, ends);
        self.list.push(Arrived { place: Place::Data(start..self.used), below: 0, ends, ib });
        Ok(())
    }

    /// Receives datagrams, and replaces the previous packets. `judge` determines which packets they contain. Returns the number
    /// of packets.
    pub(crate) fn receive_ib(
        &mut self,
        port: &UdpPort,
        mut judge: impl FnMut(&Arrival<'_>, &mut Shown<'_>),
    ) -> io::Result<usize> {
        self.clear();
        let Self { data, used, datagrams, list, ends: all_ends } = self;
        let datagrams = datagrams.get_or_insert_with(|| RxBatch::new(RxBatch::USUAL));
        datagrams.recv(port)?;
        for arrival in datagrams.arrivals() {
            let ends = arrival.ends();
            judge(&arrival, &mut Shown { datagrams, ends, data, used, list, all_ends });
        }
        Ok(list.len())
    }

    /// Returns the number of packets.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether the batch has no packets.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns all packets, in order. Those from datagrams have an ICRC that must still be checked.
    pub fn iter(&self) -> impl Iterator<Item = Arrival<'_>> {
        self.list.iter().map(|Arrived { place, below, ends, ib }| {
            let Ends { src, dst, tos, ttl } = self.ends[*ends];
            let whole = |range: &Range<usize>| range.start.saturating_sub(*below)..range.end;
            let all = match (place, &self.datagrams) {
                (Place::Data(range), _) => self.data.get(whole(range)),
                (Place::Datagrams(range), Some(datagrams)) => Some(datagrams.bytes(whole(range))),
                (Place::Datagrams(_), None) => None,
            };
            let (headers, bytes) =
                all.unwrap_or_default().split_at_checked(*below).unwrap_or_default();
            let icrc = if *below == 0 { Trailer::None } else { Trailer::Ib(headers) };
            Arrival { src, dst, bytes, icrc, tos: Some(tos), ttl: Some(ttl), ib: ib.as_ref() }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_iterated_in_order_until_cleared() {
        let [src, dst] = [1, 2].map(|n| SocketAddr::from(([127, 0, 0, n], 4791)));
        let ends = Ends { src, dst, tos: 3, ttl: 9 };
        let mut arrivals = Arrivals::default();
        for round in 0..3 {
            arrivals.clear();
            assert!(arrivals.is_empty());
            for (byte, len) in [(1, 20), (2, 0), (3, 70_000)] {
                let fill = |buffer: &mut [u8]| {
                    buffer.fill(byte + round);
                    Ok((len, ends))
                };
                arrivals.add(fill).unwrap();
            }
            arrivals.add(|_| Err(io::ErrorKind::WouldBlock.into())).unwrap_err();
            assert_eq!(arrivals.len(), 3);
            let got: Vec<_> = arrivals.iter().map(|a| (a.bytes.len(), a.bytes.first())).collect();
            let byte = [1 + round, 3 + round];
            assert_eq!(got, [(20, Some(&byte[0])), (0, None), (Arrivals::ROOM, Some(&byte[1]))]);
            assert!(arrivals.iter().all(|a| a.ends() == ends && a.without_icrc() == a.bytes));
            assert!(arrivals.iter().all(|a| a.check_icrc() == IcrcCheck::Absent));
        }
    }

    fn arrived(src: &str, dst: &str, route: IbRoute) -> Arrivals {
        let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
        let mut arrivals = Arrivals::default();
        let ends = Ends { src, dst, tos: 0, ttl: 64 };
        arrivals.add_ib(|_| Ok((12, ends, route))).unwrap();
        arrivals
    }

    const LOCAL: IbRoute =
        IbRoute { port_num: 1, slid: Lid(7), dlid: Lid(0x43), sl: 5, dlid_path_bits: 3, grh: None };

    #[test]
    fn infiniband_arrival_without_grh_has_only_lids_as_source() {
        let arrivals = arrived("10.0.0.1:1", "10.0.0.2:2", LOCAL);
        let arrival = arrivals.iter().next().unwrap();
        let grh = arrival.grh();
        let source = arrival.source(&grh);
        assert_eq!((source.slid, source.sl, source.dlid_path_bits), (7, 5, 3));
        assert_eq!((source.sgid, source.dgid, source.has_grh), (Gid::ZERO, Gid::ZERO, false));
        assert_eq!((source.grh, arrival.dgid()), (&[0; 40], Gid::ZERO));
        assert_eq!(arrival.check_icrc(), IcrcCheck::Absent);
    }

    #[test]
    fn infiniband_arrival_with_grh_has_gids_as_source() {
        let [sgid, dgid] = [5, 6].map(|guid| Gid::new(Gid::DEFAULT_PREFIX, rdmux_wire::Guid(guid)));
        let grh =
            Grh { tclass: 9, flow_label: 7, pay_len: 0, next_hdr: 0x1b, hop_limit: 3, sgid, dgid };
        let route = IbRoute { grh: Some(grh.to_bytes()), ..LOCAL };
        let arrivals = arrived("10.0.0.1:1", "10.0.0.2:2", route);
        let arrival = arrivals.iter().next().unwrap();
        assert_eq!((arrival.grh(), arrival.dgid()), (grh.to_bytes(), dgid));
        let area = arrival.grh();
        let source = arrival.source(&area);
        assert_eq!((source.sgid, source.dgid, source.has_grh), (sgid, dgid, true));
        assert_eq!((source.grh, source.slid), (&grh.to_bytes(), 7));
    }
}
