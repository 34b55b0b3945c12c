//! The cost of a packet between a state machine and a socket.

use std::hint::black_box;

use anyhow::{Result, ensure};
use rdmux_wire::icrc::{Icrc, Ipv4Pseudo};
use rdmux_wire::{Bth, HeaderBuf, Opcode, Packet, Psn, Qpn};

const PAYLOAD: usize = 64;

fn icrc_of(bytes: &[u8]) -> [u8; Icrc::LEN] {
    let (src, dst) = ([127, 77, 0, 1].into(), [127, 77, 0, 2].into());
    let udp_len = u16::try_from(8 + bytes.len() + Icrc::LEN).unwrap_or(0);
    let (src_port, dst_port) = (0xc000, 4791);
    let mut icrc = Icrc::ipv4(&Ipv4Pseudo { src, dst, id: 0, src_port, dst_port, udp_len });
    icrc.update(bytes);
    icrc.finish()
}

/// Builds a SEND of 64 bytes, checks it and parses it.
pub(crate) fn small(count: u32) -> Result<()> {
    let payload = black_box([7_u8; PAYLOAD]);
    for n in 0..count {
        let psn = Psn::new(n & 0x00ff_ffff);
        let bth = Bth {
            mig_req: true,
            ack_req: true,
            ..Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x11), psn)
        };
        let header = HeaderBuf::new(&bth);
        let header = header.as_slice();
        let mut packet = [0; Bth::LEN + PAYLOAD + Icrc::LEN];
        let (body, tail) = packet.split_at_mut(Bth::LEN + PAYLOAD);
        body[..Bth::LEN].copy_from_slice(header);
        body[Bth::LEN..].copy_from_slice(&payload);
        tail.copy_from_slice(&icrc_of(body));

        let packet = black_box(packet);
        let (body, tail) = packet.split_at(Bth::LEN + PAYLOAD);
        ensure!(icrc_of(body) == tail, "the ICRC is wrong");
        let parsed = Packet::parse(body)?;
        ensure!(black_box(parsed.payload) == payload, "the payload is wrong");
    }
    Ok(())
}

pub(crate) fn icrc(count: u32) -> Result<()> {
    let bytes = vec![7; 1024];
    for _ in 0..count {
        black_box(icrc_of(black_box(&bytes)));
    }
    Ok(())
}
