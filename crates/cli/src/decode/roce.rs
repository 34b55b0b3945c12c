//! The RDMA packets of a frame: their contents, and the check of their ICRC.

use std::net::Ipv6Addr;

use rdmux_wire::grh::Grh;
use rdmux_wire::ib_packet::Parts;
use rdmux_wire::icrc::{Icrc, Ipv4Pseudo, Ipv6Pseudo, solve_ipv4_id};
use rdmux_wire::ip::Ipv4;
use rdmux_wire::lrh::{Lnh, Lrh};
use rdmux_wire::udp::Udp;
use rdmux_wire::{Bth, Lid, MAX_HEADER, Packet, Qpn, Service, Syndrome, WireError};

use super::mad::Mad;

/// The packets of a frame, usually one.
#[derive(Debug)]
pub(super) struct Roce<'a> {
    /// The first packet.
    pub(super) first: RocePacket<'a>,
    /// The packets that follow if the capturing host left segmentation to its adapter (or had it coalesce received
    /// packets), so that the frame differs from the packets on the wire.
    pub(super) offloaded: Vec<RocePacket<'a>>,
    pub(super) icrc: IcrcCheck,
    /// The VCRC of InfiniBand, if the capture contains it.
    pub(super) vcrc: Option<Vcrc>,
}

/// The VCRC of a packet: as captured, and as computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Vcrc {
    pub(super) found: u16,
    pub(super) computed: u16,
}

impl Vcrc {
    /// Computes the VCRC of a packet that was captured completely.
    pub(super) fn of(parts: &Parts<'_>) -> Option<Self> {
        let [found, computed] = [parts.vcrc?, parts.right_vcrc()].map(u16::from_be_bytes);
        Some(Self { found, computed })
    }

    /// Returns whether the checksum is correct.
    pub(super) fn is_right(self) -> bool {
        self.found == self.computed
    }
}

/// A packet, with its management datagram.
#[derive(Debug, Clone, Copy)]
pub(super) struct RocePacket<'a> {
    pub(super) packet: Packet<'a>,
    pub(super) mad: Option<Mad<'a>>,
}

/// The result of the ICRC check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IcrcCheck {
    Right,
    Wrong {
        found: u32,
        computed: u32,
    },
    /// Parts of the packet were not captured.
    Unchecked,
}

/// The network header in front of a UDP header.
#[derive(Debug, Clone, Copy)]
pub(super) enum Network<'a> {
    Ipv4 { header: &'a [u8] },
    Ipv6 { src: Ipv6Addr, dst: Ipv6Addr },
}

/// The headers in front of the BTH.
#[derive(Debug, Clone, Copy)]
pub(super) enum Outer<'a> {
    /// RoCEv2.
    Udp { network: Network<'a>, udp: Udp },
    /// RoCEv1.
    Grh(Grh),
    /// InfiniBand: the LRH, and the GRH if there is one, as captured.
    Route(&'a [u8]),
}

impl<'a> Roce<'a> {
    /// Parses a packet. `bytes`: from the BTH through the ICRC.
    pub(super) fn parse(bytes: &'a [u8], outer: &Outer<'_>) -> Result<Self, WireError> {
        let (transport, found) = split_icrc(bytes)?;
        let computed = outer.icrc(transport);
        if computed == found {
            let first = RocePacket::parse(transport)?;
            return Ok(Self { first, offloaded: Vec::new(), icrc: IcrcCheck::Right, vcrc: None });
        }
        if let Some(segments) = segments(bytes, outer) {
            let mut packets = segments.map(|segment| RocePacket::parse(split_icrc(segment)?.0));
            let first = packets.next().unwrap_or_else(|| RocePacket::parse(transport))?;
            let offloaded = packets.collect::<Result<_, _>>()?;
            return Ok(Self { first, offloaded, icrc: IcrcCheck::Right, vcrc: None });
        }
        let [found, computed] = [found, computed].map(u32::from_be_bytes);
        let icrc = IcrcCheck::Wrong { found, computed };
        let first = RocePacket::parse(transport)?;
        Ok(Self { first, offloaded: Vec::new(), icrc, vcrc: None })
    }

    /// Parses the first bytes of a packet of `len` bytes.
    pub(super) fn parse_cut(bytes: &'a [u8], len: usize) -> Result<Self, WireError> {
        let transport = &bytes[..bytes.len().min(len.saturating_sub(Icrc::LEN))];
        let first = RocePacket { packet: Packet::parse(transport)?, mad: None };
        Ok(Self { first, offloaded: Vec::new(), icrc: IcrcCheck::Unchecked, vcrc: None })
    }

    /// Returns all packets, in order.
    pub(super) fn packets(&self) -> impl Iterator<Item = &RocePacket<'a>> {
        std::iter::once(&self.first).chain(&self.offloaded)
    }
}

impl<'a> RocePacket<'a> {
    fn parse(transport: &'a [u8]) -> Result<Self, WireError> {
        let packet = Packet::parse(transport)?;
        let to_management = matches!(packet.bth.dest_qpn, Qpn::QP0 | Qpn::QP1);
        let is_datagram = packet.bth.opcode.service() == Service::Ud;
        let mad =
            if to_management && is_datagram { Some(Mad::parse(packet.payload)?) } else { None };
        Ok(Self { packet, mad })
    }

    /// Returns the packet's kind, for counting: the opcode with the kind of NAK, or the message to QP0 or QP1.
    pub(super) fn kind(&self) -> String {
        let opcode = self.packet.bth.opcode;
        match (&self.mad, self.packet.aeth.map(|aeth| aeth.syndrome)) {
            (Some(mad), _) => mad.kind(),
            (None, Some(Syndrome::Rnr(_))) => format!("{opcode}, RNR NAK"),
            (None, Some(nak @ Syndrome::Nak(_))) => format!("{opcode}, {nak}"),
            (None, _) => opcode.to_string(),
        }
    }
}

fn split_icrc(bytes: &[u8]) -> Result<(&[u8], [u8; Icrc::LEN]), WireError> {
    let need = Bth::LEN + Icrc::LEN;
    let short = WireError::Short { what: "BTH and ICRC", need, have: bytes.len() };
    let (transport, icrc) = bytes.split_last_chunk().ok_or(short)?;
    if bytes.len() < need { Err(short) } else { Ok((transport, *icrc)) }
}

/// Returns the packets into which segmentation offload will split `bytes`, or from which it joined them, all of one
/// size except for the last. The frame does not contain the size: it is the one with which every ICRC is right.
fn segments<'a>(
    bytes: &'a [u8],
    outer: &Outer<'_>,
) -> Option<impl Iterator<Item = &'a [u8]> + use<'a>> {
    const LARGEST: usize = MAX_HEADER + 4096 + Icrc::LEN;
    let largest = LARGEST.min(bytes.len().saturating_sub(1));
    let mut sizes = (Bth::LEN + Icrc::LEN..=largest).step_by(4);
    let size = sizes.find(|&size| bytes.chunks(size).all(|segment| outer.is_segment(segment)))?;
    Some(bytes.chunks(size))
}

impl Outer<'_> {
    /// Computes the ICRC of `transport`, from the BTH through the pad.
    fn icrc(&self, transport: &[u8]) -> [u8; Icrc::LEN] {
        let mut icrc = match *self {
            Self::Udp { network: Network::Ipv4 { header }, udp } => {
                Icrc::of_ipv4_headers(header, udp.to_bytes())
            }
            Self::Udp { network: Network::Ipv6 { src, dst }, udp } => {
                let Udp { src_port, dst_port, length: udp_len, .. } = udp;
                Icrc::ipv6(&Ipv6Pseudo { src, dst, src_port, dst_port, udp_len })
            }
            Self::Grh(grh) => {
                let no = Lid(0);
                let lrh =
                    Lrh { vl: 0, lver: 0, sl: 0, lnh: Lnh::Global, dlid: no, pkt_len: 0, slid: no };
                Icrc::infiniband(&lrh, Some(&grh))
            }
            Self::Route(route) => Icrc::of_route_headers(route),
        };
        icrc.update(transport);
        icrc.finish()
    }

    /// Returns whether `segment`, of a larger frame with these headers, is a packet with the right ICRC. It has its
    /// own lengths and its own IPv4 Identification, which is not in the frame.
    fn is_segment(&self, segment: &[u8]) -> bool {
        let Self::Udp { network, udp } = *self else { return false };
        let Ok((transport, found)) = split_icrc(segment) else { return false };
        let Ok(udp_len) = u16::try_from(Udp::LEN + segment.len()) else { return false };
        match network {
            Network::Ipv4 { header } => {
                let Ok(Ipv4 { src, dst, .. }) = Ipv4::parse(header) else { return false };
                let Udp { src_port, dst_port, .. } = udp;
                let pseudo = Ipv4Pseudo { src, dst, id: 0, src_port, dst_port, udp_len };
                let mut icrc = Icrc::ipv4(&pseudo);
                icrc.update(transport);
                solve_ipv4_id(icrc.finish(), found, udp_len).is_some()
            }
            Network::Ipv6 { .. } => {
                Self::Udp { network, udp: Udp { length: udp_len, ..udp } }.icrc(transport) == found
            }
        }
    }
}
