//! InfiniBand packets in captures: from the LRH to the VCRC, with the addresses that they have or would have on a cable.

use rdmux_link::capture::FrameHeader;
use rdmux_link::wire::IbRoute;
use rdmux_transport::attr::AddressVector;
use rdmux_wire::ib_packet::IbPacket;
use rdmux_wire::{Gid, Grh, Lid, Lrh, Mtu, Opcode, Operation, Packet};

use super::Sink;
use crate::engine::device::{Device, PORT};

/// The maximum number of bytes around a payload: LRH, GRH, BTH with extension headers, pad, ICRC, VCRC.
const AROUND: usize = 256;

/// The maximum payload of a packet. Packets of rings are longer, and are shown as several.
const MOST: usize = Mtu::M4096.bytes() as usize;

/// Returns the addresses of a packet along `av`. Its virtual lane is not known; captures show lane 0.
pub(super) fn route_of(device: &Device, av: &AddressVector) -> IbRoute {
    let port_num = av.port_num.max(PORT);
    let (lid, lmc) =
        device.port(port_num, |port| (port.attr.lid, port.attr.lmc)).unwrap_or((Lid::NONE, 0));
    let mask = (1 << lmc.min(7)) - 1;
    let dlid = Lid(av.dlid);
    let grh = (av.is_global || dlid.is_multicast()).then(|| {
        let sgid = device.gid(port_num, av.sgid_index).map_or(Gid::ZERO, |entry| entry.gid);
        let (tclass, flow_label, hop_limit) = (av.traffic_class, av.flow_label, av.hop_limit);
        let (pay_len, next_hdr) = (0, Grh::NEXT_BTH);
        let dgid = av.dgid;
        Grh { tclass, flow_label, pay_len, next_hdr, hop_limit, sgid, dgid }.to_bytes()
    });
    let slid = Lid(lid.0 & !mask | u16::from(av.src_path_bits) & mask);
    IbRoute { port_num, slid, dlid, sl: av.sl & 0xf, dlid_path_bits: 0, grh }
}

/// Returns the addresses of packets in the reverse direction.
pub(super) fn reversed(route: &IbRoute) -> IbRoute {
    let grh = route.grh.as_ref().and_then(|grh| Grh::parse(grh).ok());
    let grh = grh.map(|grh| Grh { sgid: grh.dgid, dgid: grh.sgid, ..grh }.to_bytes());
    IbRoute { slid: route.dlid, dlid: route.slid, grh, ..*route }
}

impl Sink {
    /// Writes an InfiniBand packet. Writes several if a ring's packet is longer than the MTU. `put` appends the packet
    /// from its BTH on.
    pub(super) fn write_ib(
        &mut self,
        header: FrameHeader,
        route: &IbRoute,
        put: impl FnOnce(&mut Vec<u8>),
    ) {
        let mut transport = std::mem::take(&mut self.transport);
        transport.clear();
        put(&mut transport);
        if let Ok(packet) = Packet::parse(&transport) {
            let lrh = Lrh { slid: route.slid, dlid: route.dlid, sl: route.sl, ..Lrh::DEFAULT };
            let grh = route.grh.as_ref().and_then(|grh| Grh::parse(grh).ok());
            for_each_packet(packet, |packet| {
                self.buffer.clear();
                self.buffer.extend_from_slice(&header.to_bytes());
                self.buffer.resize(FrameHeader::LEN + AROUND + packet.payload.len(), 0);
                let len = IbPacket { lrh, grh, packet }.emit(&mut self.buffer[FrameHeader::LEN..]);
                self.buffer.truncate(FrameHeader::LEN + len);
                self.hand_over();
            });
        } else {
            self.drops += 1;
        }
        self.transport = transport;
    }
}

/// Splits a packet into packets that fit a cable, and shows each. All have its PSN.
fn for_each_packet(packet: Packet<'_>, mut show: impl FnMut(Packet<'_>)) {
    if packet.payload.len() <= MOST {
        return show(packet);
    }
    let whole = packet.bth.opcode;
    let last = (packet.payload.len() - 1) / MOST;
    for (index, payload) in packet.payload.chunks(MOST).enumerate() {
        let place = (whole.starts_message() && index == 0, whole.ends_message() && index == last);
        let Some(opcode) = part_of(whole, place) else { continue };
        let mut bth = packet.bth;
        bth.opcode = opcode;
        show(Packet {
            bth,
            payload,
            reth: packet.reth.filter(|_| opcode.has_reth()),
            aeth: packet.aeth.filter(|_| opcode.has_aeth()),
            imm: packet.imm.filter(|_| opcode.has_imm()),
            ieth: packet.ieth.filter(|_| opcode.has_ieth()),
            ..packet
        });
    }
}

/// Returns the opcode of a part of a message: first, last, both or neither.
fn part_of(whole: Opcode, (first, last): (bool, bool)) -> Option<Opcode> {
    let parts = Operation::ALL.iter().map(|operation| Opcode::of(whole.service(), *operation));
    parts.filter(|part| part.kind() == whole.kind()).find(|part| {
        (part.starts_message(), part.ends_message()) == (first, last)
            && part.has_imm() == (last && whole.has_imm())
            && part.has_ieth() == (last && whole.has_ieth())
    })
}

#[cfg(test)]
mod tests {
    use rdmux_wire::{Bth, ImmDt, Psn, Qpn, Reth, Rkey};

    use super::*;

    fn parts(packet: Packet<'_>) -> Vec<(Opcode, usize)> {
        let mut parts = Vec::new();
        for_each_packet(packet, |part| {
            // It can be written and parsed again: its headers match its opcode.
            let mut bytes = [0; MOST + AROUND];
            let len = IbPacket { lrh: Lrh::DEFAULT, grh: None, packet: part }.emit(&mut bytes);
            let read = IbPacket::parse(&bytes[..len]).expect("a packet");
            assert_eq!(read.packet.payload, part.payload);
            assert_eq!((read.packet.imm, read.packet.reth), (part.imm, part.reth));
            parts.push((part.bth.opcode, part.payload.len()));
        });
        parts
    }

    #[test]
    fn captured_ring_packets_are_split_at_the_largest_mtu() {
        let payload = vec![7; 2 * MOST + 5];
        let packet = |opcode| {
            let bth = Bth::new(opcode, Qpn::new(1), Psn::new(2));
            let mut packet = Packet::new(bth, &payload);
            let reth = Reth { va: 0, rkey: Rkey(1), dma_len: 9 };
            packet.reth = opcode.has_reth().then_some(reth);
            packet.imm = opcode.has_imm().then_some(ImmDt([1, 2, 3, 4]));
            packet
        };
        let [first, middle, last] = [Opcode(0), Opcode(1), Opcode(3)];
        let imm = packet(Opcode(5));
        assert_eq!(parts(imm), [(first, MOST), (middle, MOST), (last, 5)]);
        assert_eq!(parts(packet(first)), [(first, MOST), (middle, MOST), (middle, 5)]);
        let [first, middle, last] = [Opcode(6), Opcode(7), Opcode(8)];
        assert_eq!(parts(packet(Opcode(10))), [(first, MOST), (middle, MOST), (last, 5)]);
        assert_eq!(parts(packet(middle)), [(middle, MOST), (middle, MOST), (middle, 5)]);
        let short = Packet { payload: &payload[..MOST], ..packet(Opcode(5)) };
        assert_eq!(parts(short), [(Opcode(5), MOST)]);
    }

    #[test]
    fn captured_reply_has_swapped_lids_and_gids() {
        let grh = Grh {
            tclass: 1,
            flow_label: 2,
            pay_len: 0,
            next_hdr: Grh::NEXT_BTH,
            hop_limit: 3,
            sgid: Gid([1; 16]),
            dgid: Gid([2; 16]),
        };
        let route = IbRoute {
            port_num: 1,
            slid: Lid(1),
            dlid: Lid(2),
            sl: 3,
            dlid_path_bits: 0,
            grh: Some(grh.to_bytes()),
        };
        let back = reversed(&route);
        assert_eq!((back.slid, back.dlid, back.sl), (Lid(2), Lid(1), 3));
        let grh = Grh::parse(&back.grh.unwrap()).unwrap();
        assert_eq!((grh.sgid, grh.dgid, grh.hop_limit), (Gid([2; 16]), Gid([1; 16]), 3));
        assert_eq!(reversed(&back), route);
    }
}
