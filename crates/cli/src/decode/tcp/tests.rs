//! The table of TCP connections: which ones are dropped when there are too many or they have ended.

use std::net::{IpAddr, Ipv4Addr};

use super::*;

const SERVER: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 80);
/// The first bytes of an MPA request.
const MPA: &[u8] = b"MPA ID Req Frame";

/// Returns the address of client `n`.
fn client(n: u32) -> (IpAddr, u16) {
    let [_, a, b, c] = n.to_be_bytes();
    (Ipv4Addr::new(10, 1, a, b).into(), 40_000 + u16::from(c))
}

fn follow(
    streams: &mut Streams,
    (from, to): ((IpAddr, u16), (IpAddr, u16)),
    flags: u8,
    seq: u32,
    payload: &[u8],
) -> bool {
    let flags = rdmux_wire::tcp::Flags(flags);
    let (src_port, dst_port) = (from.1, to.1);
    let tcp = Tcp { src_port, dst_port, seq, ack: 1, header_len: 20, flags, window: 1000 };
    let segment = Segment { tcp, payload, len: payload.len(), ipv6: false, midstream: false };
    let addresses = Some(Addresses { src: from.0, dst: to.0 });
    let dissection = Dissection { addresses, lrh: None, vlan: None, what: What::Tcp(segment) };
    matches!(streams.follow(dissection).what, What::Iwarp(_))
}

const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
const FIN_ACK: u8 = 0x11;

#[test]
fn connections_that_are_not_iwarp_are_forgotten_when_there_are_too_many() {
    let mut streams = Streams::default();
    let early = (client(1 << 20), SERVER);
    follow(&mut streams, early, SYN, 0, b"");
    assert!(follow(&mut streams, early, ACK, 1, &MPA[..10]));
    let busy = (client(2 << 20), SERVER);
    follow(&mut streams, busy, SYN, 0, b"");
    let mut most = 0;
    for n in 0..100_000 {
        follow(&mut streams, (client(n), SERVER), SYN, 0, b"");
        follow(&mut streams, busy, ACK, 1, b"");
        most = most.max(streams.connections.len());
    }
    assert!(most <= MAX_OTHERS + 1, "{most}");
    assert!(follow(&mut streams, early, ACK, 11, &MPA[10..]), "what is iWARP stays");
    assert!(follow(&mut streams, busy, ACK, 1, MPA), "and what was not silent");
}

#[test]
fn connections_that_are_iwarp_do_not_take_the_room_of_others() {
    let mut streams = Streams::default();
    for n in 0..u32::try_from(MAX_OTHERS).unwrap() + 10 {
        follow(&mut streams, (client(n), SERVER), SYN, 0, b"");
        follow(&mut streams, (client(n), SERVER), ACK, 1, MPA);
    }
    for n in 1 << 20..(1 << 20) + 10 {
        follow(&mut streams, (client(n), SERVER), SYN, 0, b"");
    }
    assert_eq!(streams.connections.len(), MAX_OTHERS + 20);
}

#[test]
fn connections_that_are_iwarp_are_forgotten_when_there_are_too_many() {
    let mut streams = Streams::default();
    let count = u32::try_from(MAX_IWARP + MAX_OTHERS).unwrap() + 10;
    for n in 0..count {
        follow(&mut streams, (client(n), SERVER), SYN, 0, b"");
        follow(&mut streams, (client(n), SERVER), ACK, 1, &MPA[..10]);
        follow(&mut streams, (client(n), SERVER), ACK, 100, b"early");
        assert!(streams.connections.len() <= MAX_IWARP + MAX_OTHERS);
    }
    assert_eq!(streams.left_over(), 5 * u64::from(count), "what was forgotten counts");
    assert!(
        follow(&mut streams, (client(count - 1), SERVER), ACK, 11, &MPA[10..]),
        "the last stays"
    );
}

#[test]
fn connections_of_iwarp_that_end_hold_nothing() {
    let there = (client(1), SERVER);
    let back = (SERVER, client(1));
    for reset in [false, true] {
        let mut streams = Streams::default();
        follow(&mut streams, there, SYN, 0, b"");
        follow(&mut streams, there, ACK, 1, MPA);
        follow(&mut streams, there, ACK, 1000, &[0; 500]);
        if !reset {
            follow(&mut streams, there, FIN_ACK, 1500, b"");
        }
        let flags = if reset { RST } else { FIN_ACK };
        follow(&mut streams, back, flags, 1, b"");
        let held = |streams: &Streams| -> u64 {
            streams.connections.values().map(Connection::left_over).sum()
        };
        assert_eq!((held(&streams), streams.left_over()), (0, 500));
        assert!(follow(&mut streams, there, ACK, 1, MPA), "a segment that comes again is known");
        assert!(follow(&mut streams, there, ACK, 2000, &[0; 500]));
        assert_eq!((held(&streams), streams.left_over()), (0, 1000));
        // Another connection with the same addresses, whose first SYN was not captured.
        follow(&mut streams, back, SYN | ACK, 5000, b"");
        assert!(!follow(&mut streams, back, ACK, 5001, b"HTTP/1.1 200 OK"));
    }
}

#[test]
fn connections_that_end_are_forgotten() {
    let mut streams = Streams::default();
    let there = (client(1), SERVER);
    let back = (SERVER, client(1));
    for data in [&b""[..], b"GET / HTTP/1.1"] {
        follow(&mut streams, there, SYN, 0, b"");
        follow(&mut streams, there, ACK, 1, data);
        follow(&mut streams, there, FIN_ACK, 1, b"");
        assert_eq!(streams.connections.len(), 1, "one half of it goes on");
        follow(&mut streams, back, FIN_ACK, 1, b"");
        follow(&mut streams, there, ACK, 2, b"");
        assert_eq!(streams.connections.len(), 0);
        follow(&mut streams, there, SYN, 0, b"");
        follow(&mut streams, there, ACK, 1, data);
        follow(&mut streams, back, RST, 1, b"");
        assert_eq!(streams.connections.len(), 0);
    }
}

#[test]
fn connection_recognized_as_not_mpa_holds_no_bytes() {
    for (first, rest) in [(&b"G"[..], &b"ET / HTTP/1.1"[..]), (b"MPA ", b"is a word")] {
        let mut streams = Streams::default();
        let there = (client(1), SERVER);
        follow(&mut streams, there, SYN, 0, b"");
        follow(&mut streams, there, ACK, 1000, &[0; 500]);
        let held = |streams: &Streams| -> u64 {
            let connections = streams.connections.values();
            connections.flat_map(|connection| &connection.halves).map(Reassembly::held).sum()
        };
        assert_eq!(held(&streams), 500);
        let at = 1 + u32::try_from(first.len()).unwrap();
        follow(&mut streams, there, ACK, 1, first);
        follow(&mut streams, there, ACK, at, rest);
        assert_eq!((streams.connections.len(), held(&streams)), (1, 0));
    }
}
