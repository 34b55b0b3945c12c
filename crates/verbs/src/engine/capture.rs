//! Copies of all frames, for `rdmux capture`.
//!
//! While nobody captures, each batch of packets costs one look at a flag. A frame goes to a datagram
//! socket as a [`FrameHeader`] and an IP packet, as it would be seen on a wire; what the socket does
//! not take is counted and forgotten.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rdmux_link::IcrcCheck;
use rdmux_link::wire::{Arrival, Ends, Frame, Payload};
use rdmux_transport::attr::AddressVector;
use rdmux_wire::icrc::{Icrc, Ipv4Pseudo, Ipv6Pseudo};
use rdmux_wire::ip::{self, Ipv4, Ipv6};
use rdmux_wire::udp::Udp;

use crate::engine::device::{Device, PORT};

/// What precedes each captured packet: 16 bytes, numbers in the machine's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Whether this process sent it.
    pub sent: bool,
    /// Whether it went through shared memory; its network headers are then made up.
    pub memory: bool,
    /// When, in nanoseconds since 1970.
    pub time: u64,
}

impl FrameHeader {
    /// Its length.
    pub const LEN: usize = 16;

    /// Takes a header off the front of a message.
    pub fn parse(message: &[u8]) -> Option<(Self, &[u8])> {
        let (header, packet) = message.split_first_chunk::<{ Self::LEN }>()?;
        let [sent, memory, _, _, _, _, _, _, time @ ..] = *header;
        let time = u64::from_ne_bytes(time);
        Some((Self { sent: sent != 0, memory: memory != 0, time }, packet))
    }

    fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.sent.into();
        bytes[1] = self.memory.into();
        bytes[8..].copy_from_slice(&self.time.to_ne_bytes());
        bytes
    }
}

/// Where frames go, if anywhere.
#[derive(Debug, Default)]
pub struct Capture {
    on: AtomicBool,
    sink: Mutex<Sink>,
}

#[derive(Debug, Default)]
struct Sink {
    socket: Option<OwnedFd>,
    buffer: Vec<u8>,
    drops: u64,
}

impl Capture {
    /// Begins or ends.
    pub fn set(&self, socket: Option<OwnedFd>) {
        let mut sink = self.sink.lock();
        self.on.store(socket.is_some(), Ordering::Release);
        sink.socket = socket;
    }

    /// A packet leaves.
    #[inline]
    pub fn sent(&self, ends: impl FnOnce() -> Option<Ends>, frame: &Frame<'_>) {
        if self.on.load(Ordering::Acquire)
            && let Some(ends) = ends()
        {
            self.sink.lock().write(true, false, &ends, |b| put_frame(b, frame), true);
        }
    }

    /// A packet has arrived.
    #[inline]
    pub fn received(&self, arrival: &Arrival<'_>) {
        if self.on.load(Ordering::Acquire) {
            // The checksum covers an Identification that the socket did not tell; one that was
            // right is made right for the Identification written here, one that was wrong stays.
            let right = arrival.check_icrc() != IcrcCheck::Wrong;
            let bytes = if right { arrival.without_icrc() } else { arrival.bytes };
            let put = |b: &mut Vec<u8>| b.extend_from_slice(bytes);
            self.sink.lock().write(false, false, &arrival.ends(), put, right);
        }
    }

    /// A packet leaves through shared memory.
    #[inline]
    pub(crate) fn sent_in_memory(&self, device: &Device, av: &AddressVector, frame: &Frame<'_>) {
        if self.on.load(Ordering::Acquire) {
            let put = |b: &mut Vec<u8>| put_frame(b, frame);
            self.sink.lock().write(true, true, &ends_of(device, av), put, true);
        }
    }

    /// A packet has arrived through shared memory, for a queue pair whose peer is at `av`.
    #[inline]
    pub(crate) fn received_in_memory(&self, device: &Device, av: &AddressVector, bytes: &[u8]) {
        if self.on.load(Ordering::Acquire) {
            let Ends { src, dst, .. } = ends_of(device, av);
            let ends = Ends::between(dst.ip(), src.ip());
            let put = |b: &mut Vec<u8>| b.extend_from_slice(bytes);
            self.sink.lock().write(false, true, &ends, put, true);
        }
    }
}

/// The ends of a packet along `av` by a wire that has no addresses.
pub(crate) fn ends_of(device: &Device, av: &AddressVector) -> Ends {
    let src = device.gid(av.port_num.max(PORT), av.sgid_index).map_or(av.dgid, |entry| entry.gid);
    Ends::between(src.ip(), av.dgid.ip())
}

impl Sink {
    /// Builds the IP packet in the buffer and hands it over.
    fn write(
        &mut self,
        sent: bool,
        memory: bool,
        ends: &Ends,
        put: impl FnOnce(&mut Vec<u8>),
        add_icrc: bool,
    ) {
        let Some(socket) = &self.socket else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let network = if ends.dst.is_ipv4() { Ipv4::LEN } else { Ipv6::LEN };
        let start = FrameHeader::LEN + network + Udp::LEN;
        self.buffer.clear();
        self.buffer.extend_from_slice(&FrameHeader { sent, memory, time }.to_bytes());
        self.buffer.resize(start, 0);
        put(&mut self.buffer);
        if add_icrc {
            let icrc = icrc(ends, &self.buffer[start..]);
            self.buffer.extend_from_slice(&icrc);
        }
        let payload = self.buffer.len() - start;
        put_headers(ends, payload, &mut self.buffer[FrameHeader::LEN..start]);
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        if rustix::net::send(socket, &self.buffer, flags).is_err() {
            self.drops += 1;
        }
    }
}

fn put_frame(buffer: &mut Vec<u8>, frame: &Frame<'_>) {
    buffer.extend_from_slice(frame.header);
    match frame.payload {
        Payload::None => {}
        Payload::Bytes(bytes) => buffer.extend_from_slice(bytes),
        Payload::Pieces(pieces) => pieces.iter().for_each(|p| {
            // It was there a moment ago. If it is not any more, zeros are shown.
            let _ = crate::objects::memory::append(buffer, *p);
        }),
    }
    buffer.extend_from_slice(&[0; 3][..usize::from(frame.pad & 3)]);
}

fn icrc(ends: &Ends, packet: &[u8]) -> [u8; Icrc::LEN] {
    let (src_port, udp_len) = (ends.src.port(), udp_len(packet.len() + Icrc::LEN));
    let mut icrc = match (ends.src.ip(), ends.dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            Icrc::ipv4(&Ipv4Pseudo { src, dst, id: 0, src_port, udp_len })
        }
        (src, dst) => {
            let (src, dst) = (v6(src), v6(dst));
            Icrc::ipv6(&Ipv6Pseudo { src, dst, src_port, udp_len })
        }
    };
    icrc.update(packet);
    icrc.finish()
}

/// A UDP length; what does not fit is a packet of shared memory's, which no IP packet could hold.
fn udp_len(payload: usize) -> u16 {
    u16::try_from(Udp::LEN + payload).unwrap_or(u16::MAX)
}

fn v6(ip: IpAddr) -> std::net::Ipv6Addr {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// Writes the network and UDP headers of a packet with `payload` bytes after them.
fn put_headers(ends: &Ends, payload: usize, to: &mut [u8]) {
    let length = udp_len(payload);
    let (network, udp) = to.split_at_mut(to.len() - Udp::LEN);
    match (ends.src.ip(), ends.dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => network.copy_from_slice(
            &Ipv4 {
                header_len: 20,
                tos: ends.tos,
                total_len: length.saturating_add(20),
                id: 0,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset: 0,
                ttl: ends.ttl,
                protocol: ip::UDP,
                src,
                dst,
            }
            .to_bytes(),
        ),
        (src, dst) => network.copy_from_slice(
            &Ipv6 {
                tclass: ends.tos,
                flow_label: 0,
                payload_len: length,
                next_header: ip::UDP,
                hop_limit: ends.ttl,
                src: v6(src),
                dst: v6(dst),
            }
            .to_bytes(),
        ),
    }
    let (src_port, dst_port) = (ends.src.port(), ends.dst.port());
    udp.copy_from_slice(&Udp { src_port, dst_port, length, checksum: 0 }.to_bytes());
}
