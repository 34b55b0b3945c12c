//! Dissects a frame from its link layer down to its contents.

use std::net::IpAddr;

use rdmux_link::capture::FrameKind;
use rdmux_wire::ether::{self, Ether};
use rdmux_wire::grh::Grh;
use rdmux_wire::ib_packet::Parts;
use rdmux_wire::ip::{self, Ipv4, Ipv6};
use rdmux_wire::lrh::{Lnh, Lrh};
use rdmux_wire::udp::Udp;
use rdmux_wire::{Gid, WireError};

use super::file::Frame;
use super::iwarp::Iwarp;
use super::other;
use super::roce::{Network, Outer, Roce, Vcrc};
use super::tcp::Segment;

/// The dissected frame.
#[derive(Debug)]
pub(super) struct Dissection<'a> {
    pub(super) addresses: Option<Addresses>,
    /// The LRH of a packet on an InfiniBand subnet.
    pub(super) lrh: Option<Lrh>,
    pub(super) vlan: Option<u16>,
    pub(super) what: What<'a>,
}

/// Source and destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Addresses {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
}

/// The contents of a frame.
#[derive(Debug)]
pub(super) enum What<'a> {
    /// One or several RDMA packets.
    Roce(Box<Roce<'a>>),
    /// A segment of an iWARP stream, which only the preceding stream reveals.
    Iwarp(Box<Iwarp<'a>>),
    /// A segment of any other stream, or of one that is not followed.
    Tcp(Segment<'a>),
    /// RDMA that cannot be decoded.
    Undecodable(WireError),
    /// RDMA with too few captured bytes to decode.
    CutShort { captured: usize, original: usize },
    /// A fragment of an IP packet, with its protocol and the offset of its first byte.
    Fragment { protocol: u8, offset: u32 },
    /// A frame without RDMA: the name of its contents.
    Other(String),
}

impl<'a> Dissection<'a> {
    fn of(what: What<'a>) -> Self {
        Self { addresses: None, lrh: None, vlan: None, what }
    }

    fn other(name: impl Into<String>) -> Self {
        Self::of(What::Other(name.into()))
    }
}

/// Returns the link type of live frames of a kind.
pub(super) const fn link_of(kind: FrameKind) -> u16 {
    match kind {
        FrameKind::Ip => link::RAW,
        FrameKind::InfiniBand => link::INFINIBAND,
    }
}

mod link {
    pub(super) const NULL: u16 = 0;
    pub(super) const ETHERNET: u16 = 1;
    pub(super) const RAW_BSD: u16 = 12;
    pub(super) const RAW_OPENBSD: u16 = 14;
    pub(super) const RAW: u16 = 101;
    pub(super) const LOOP: u16 = 108;
    pub(super) const LINUX_SLL: u16 = 113;
    pub(super) const ERF: u16 = 197;
    pub(super) const IPV4: u16 = 228;
    pub(super) const IPV6: u16 = 229;
    pub(super) const INFINIBAND: u16 = 247;
    pub(super) const LINUX_SLL2: u16 = 276;
}

/// Dissects a frame, in which these UDP destination ports are RoCE's. Never fails: invalid contents are described as such.
pub(super) fn dissect<'a>(frame: &Frame<'a>, ports: &[u16]) -> Dissection<'a> {
    let data = frame.data;
    let missing = frame.original_len.saturating_sub(data.len());
    let (ethertype, at) = match frame.link {
        link::ETHERNET => match Ether::parse(data) {
            Ok(Ether { ethertype, header_len, vlan, .. }) => {
                let rest = &data[header_len..];
                return Dissection { vlan, ..network(ethertype, rest, missing, ports) };
            }
            Err(error) => return Dissection::other(error.to_string()),
        },
        // The numbers of address families differ between systems, the IP version does not.
        link::NULL | link::LOOP => (ip_ethertype(data.get(4..)), 4),
        link::RAW | link::RAW_BSD | link::RAW_OPENBSD | link::IPV4 | link::IPV6 => {
            (ip_ethertype(Some(data)), 0)
        }
        link::LINUX_SLL => (ethertype_at(data, 14), 16),
        link::LINUX_SLL2 => (ethertype_at(data, 0), 20),
        link::INFINIBAND => return infiniband(data, missing),
        link::ERF => return erf(data, missing),
        other => return Dissection::other(format!("link type {other}")),
    };
    let (Some(ethertype), Some(rest)) = (ethertype, data.get(at..)) else {
        return Dissection::other("no network header");
    };
    match ether::skip_vlan(ethertype, rest) {
        Ok((vlan, ethertype, tags)) => {
            Dissection { vlan, ..network(ethertype, &rest[tags..], missing, ports) }
        }
        Err(error) => Dissection::other(error.to_string()),
    }
}

/// Dissects an ERF record: a header, extension headers, and the packet. Only records of InfiniBand are decoded.
fn erf(record: &[u8], missing: usize) -> Dissection<'_> {
    const HEADER: usize = 16;
    const EXTENSION: usize = 8;
    const TYPE: usize = 8;
    const MORE: u8 = 0x80;
    const INFINIBAND: u8 = 21;
    let Some((header, mut rest)) = record.split_at_checked(HEADER) else {
        return Dissection::other("no ERF header");
    };
    let mut more = header[TYPE] & MORE != 0;
    while more {
        let Some((extension, behind)) = rest.split_at_checked(EXTENSION) else {
            return Dissection::other("no ERF header");
        };
        (more, rest) = (extension[0] & MORE != 0, behind);
    }
    match header[TYPE] & !MORE {
        INFINIBAND => {
            // The padding of a record is not part of the packet.
            let len = usize::from(u16::from_be_bytes([header[14], header[15]]));
            infiniband(&rest[..len.min(rest.len())], missing)
        }
        other => Dissection::other(format!("ERF type {other}")),
    }
}

fn ethertype_at(data: &[u8], at: usize) -> Option<u16> {
    data.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

fn ip_ethertype(packet: Option<&[u8]>) -> Option<u16> {
    match packet?.first()? >> 4 {
        4 => Some(ether::IPV4),
        6 => Some(ether::IPV6),
        _ => None,
    }
}

/// Dissects a network packet. `missing`: how many bytes of the frame were not captured.
fn network<'a>(ethertype: u16, packet: &'a [u8], missing: usize, ports: &[u16]) -> Dissection<'a> {
    let dissection = match ethertype {
        ether::IPV4 => ipv4(packet, missing, ports),
        ether::IPV6 => ipv6(packet, missing, ports),
        ether::ROCE_V1 => roce_v1(packet, missing),
        _ => return Dissection::other(other::ethertype(ethertype, packet)),
    };
    dissection.unwrap_or_else(|error| Dissection::other(error.to_string()))
}

fn ipv4<'a>(packet: &'a [u8], missing: usize, ports: &[u16]) -> Result<Dissection<'a>, WireError> {
    let header = Ipv4::parse(packet)?;
    let (head, rest) = packet.split_at(header.header_len.into());
    let addresses = Addresses { src: header.src.into(), dst: header.dst.into() };
    let len = usize::from(header.total_len - u16::from(header.header_len));
    let payload = Payload::new(rest, len, missing, "IPv4 total length");
    let what = if header.is_fragment() {
        let offset = u32::from(header.fragment_offset) * 8;
        What::Fragment { protocol: header.protocol, offset }
    } else {
        transport(header.protocol, &payload, addresses, Network::Ipv4 { header: head }, ports)
    };
    Ok(Dissection { addresses: Some(addresses), ..Dissection::of(what) })
}

fn ipv6<'a>(packet: &'a [u8], missing: usize, ports: &[u16]) -> Result<Dissection<'a>, WireError> {
    let header = Ipv6::parse(packet)?;
    let addresses = Addresses { src: header.src.into(), dst: header.dst.into() };
    let rest = &packet[Ipv6::LEN..];
    let found = ip::skip_ipv6_extensions(header.next_header, rest)?;
    let extensions = rest.len() - found.bytes.len();
    let what = if let Some(offset) = found.fragment {
        What::Fragment { protocol: found.protocol, offset: offset.into() }
    } else {
        let len = usize::from(header.payload_len).saturating_sub(extensions);
        let payload = Payload::new(found.bytes, len, missing, "IPv6 payload length");
        let network = Network::Ipv6 { src: header.src, dst: header.dst };
        transport(found.protocol, &payload, addresses, network, ports)
    };
    Ok(Dissection { addresses: Some(addresses), ..Dissection::of(what) })
}

/// Dissects a GRH and a BTH directly in Ethernet.
fn roce_v1(packet: &[u8], missing: usize) -> Result<Dissection<'_>, WireError> {
    let grh = Grh::parse(packet)?;
    let Gid(src) = grh.sgid;
    let Gid(dst) = grh.dgid;
    let addresses = Addresses { src: src.into(), dst: dst.into() };
    let payload = &packet[Grh::LEN..];
    let payload = Payload::new(payload, grh.pay_len.into(), missing, "GRH payload length");
    let what = rdma(&payload, &Outer::Grh(grh));
    Ok(Dissection { addresses: Some(addresses), ..Dissection::of(what) })
}

/// Dissects an LRH and what follows it. The VCRC is not checked, because captures often lack it.
fn infiniband(packet: &[u8], missing: usize) -> Dissection<'_> {
    let lrh = match Lrh::parse(packet) {
        Ok(lrh) => lrh,
        Err(error) => return Dissection::other(error.to_string()),
    };
    let (route_len, grh) = match lrh.lnh {
        Lnh::Raw => return Dissection { lrh: Some(lrh), ..Dissection::other("raw packet") },
        Lnh::Ip => return Dissection { lrh: Some(lrh), ..Dissection::other("raw IPv6 packet") },
        Lnh::Local => (Lrh::LEN, None),
        Lnh::Global => {
            (Lrh::LEN + Grh::LEN, packet.get(Lrh::LEN..).and_then(|b| Grh::parse(b).ok()))
        }
    };
    let addresses = grh.map(|grh| Addresses { src: grh.sgid.0.into(), dst: grh.dgid.0.into() });
    let len = usize::from(lrh.pkt_len) * 4;
    let cut_short = missing > 0 && packet.len() < len;
    let parts = Parts::split(packet);
    let mut what = match (packet.split_at_checked(route_len), parts) {
        (_, Err(error)) if !cut_short => What::Undecodable(error),
        (Some((route, rest)), _) if len >= route_len => {
            let payload = Payload::new(rest, len - route_len, missing, "LRH packet length");
            rdma(&payload, &Outer::Route(route))
        }
        _ => What::CutShort { captured: packet.len(), original: len },
    };
    if let (What::Roce(roce), Ok(parts)) = (&mut what, &parts) {
        roce.vcrc = Vcrc::of(parts);
    }
    Dissection { addresses, lrh: Some(lrh), ..Dissection::of(what) }
}

/// The payload of a header: its length, and the bytes present.
pub(super) struct Payload<'a> {
    /// The bytes present, without Ethernet's padding of short frames.
    pub(super) bytes: &'a [u8],
    /// The length according to the header.
    pub(super) len: usize,
    /// The number of bytes of the frame that were not captured.
    missing: usize,
    /// The header field with the length.
    says: &'static str,
}

impl<'a> Payload<'a> {
    fn new(bytes: &'a [u8], len: usize, missing: usize, says: &'static str) -> Self {
        Self { bytes: bytes.get(..len).unwrap_or(bytes), len, missing, says }
    }

    /// Returns why this is not complete, if it is not.
    fn defect(&self) -> Option<What<'a>> {
        let have = self.bytes.len();
        if have == self.len {
            None
        } else if self.missing > 0 {
            Some(What::CutShort { captured: have, original: self.len })
        } else {
            let (what, says) = (self.says, self.len);
            Some(What::Undecodable(WireError::Truncated { what, says, have }))
        }
    }
}

fn transport<'a>(
    protocol: u8,
    payload: &Payload<'a>,
    addresses: Addresses,
    network: Network<'a>,
    ports: &[u16],
) -> What<'a> {
    if protocol == ip::TCP {
        let segment = Segment::parse(payload.bytes, payload.len, addresses);
        return segment.map_or_else(|| What::Other("TCP".into()), What::Tcp);
    }
    if protocol != ip::UDP {
        return What::Other(other::protocol(protocol, payload.bytes));
    }
    let header = match Udp::parse(payload.bytes) {
        Ok(header) => header,
        Err(error) => return What::Other(error.to_string()),
    };
    if !ports.contains(&header.dst_port) {
        return What::Other(header.to_string());
    }
    let len = usize::from(header.length) - Udp::LEN;
    if header.length > u16::try_from(payload.len).unwrap_or(u16::MAX) {
        let (says, have) = (header.length.into(), payload.len);
        return What::Undecodable(WireError::Truncated { what: "UDP length", says, have });
    }
    let bytes = &payload.bytes[Udp::LEN..];
    let inner = Payload::new(bytes, len, payload.missing, payload.says);
    rdma(&inner, &Outer::Udp { network, udp: header })
}

/// Dissects an RDMA packet. `payload`: from the BTH through the ICRC.
fn rdma<'a>(payload: &Payload<'a>, outer: &Outer<'_>) -> What<'a> {
    let roce = match payload.defect() {
        None => Roce::parse(payload.bytes, outer),
        Some(cut @ What::CutShort { .. }) => match Roce::parse_cut(payload.bytes, payload.len) {
            Ok(roce) => Ok(roce),
            Err(_) => return cut,
        },
        Some(defect) => return defect,
    };
    match roce {
        Ok(roce) => What::Roce(Box::new(roce)),
        Err(error) => What::Undecodable(error),
    }
}
