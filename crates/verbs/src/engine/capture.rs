//! Copies of all frames, for `rdmux capture`.
//!
//! Without a capture, each batch of packets costs one read of a flag. A frame is sent to a datagram socket as a [`FrameHeader`]
//! and an IP or InfiniBand packet, as it would be seen on a wire. Frames that the socket does not accept are counted and dropped.

mod infiniband;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rdmux_link::IcrcCheck;
use rdmux_link::capture::{FrameHeader, FrameKind};
use rdmux_link::wire::{Arrival, Ends, Frame, IbRoute, Payload};
use rdmux_transport::attr::AddressVector;
use rdmux_wire::icrc::{Icrc, Ipv4Pseudo, Ipv6Pseudo};
use rdmux_wire::ip::{self, Ipv4, Ipv6};
use rdmux_wire::udp::Udp;

use crate::engine::device::{Device, PORT};
use crate::objects::kind::LinkLayer;

/// The destination of captured frames, if a capture runs.
#[derive(Debug, Default)]
pub struct Capture {
    on: AtomicBool,
    sink: Mutex<Sink>,
}

/// The capture's socket and buffers.
#[derive(Debug, Default)]
struct Sink {
    socket: Option<OwnedFd>,
    buffer: Vec<u8>,
    /// An InfiniBand packet from its BTH on, before its length is known.
    transport: Vec<u8>,
    drops: u64,
}

/// The headers below a packet's BTH.
enum Below {
    /// UDP over IP.
    Ip(Ends),
    /// InfiniBand's link and network headers.
    Ib(IbRoute),
}

impl Capture {
    /// Starts or stops a capture.
    pub fn set(&self, socket: Option<OwnedFd>) {
        let mut sink = self.sink.lock();
        self.on.store(socket.is_some(), Ordering::Release);
        sink.socket = socket;
    }

    /// Captures a packet that is sent.
    #[inline]
    pub fn sent(&self, ends: impl FnOnce() -> Option<Ends>, frame: &Frame<'_>) {
        if self.on.load(Ordering::Acquire)
            && let Some(ends) = ends()
        {
            let put = |b: &mut Vec<u8>| put_frame(b, frame);
            self.sink.lock().write(true, false, &Below::Ip(ends), put, true);
        }
    }

    /// Captures a packet that is sent along `av` by a wire of the device's driver. The wire may know its endpoints.
    #[inline]
    pub(crate) fn sent_along(
        &self,
        device: &Device,
        av: &AddressVector,
        ends: impl FnOnce() -> Option<Ends>,
        frame: &Frame<'_>,
    ) {
        if self.on.load(Ordering::Acquire) {
            let below = match ends() {
                Some(ends) => Below::Ip(ends),
                None => below_of(device, av),
            };
            let put = |b: &mut Vec<u8>| put_frame(b, frame);
            self.sink.lock().write(true, false, &below, put, true);
        }
    }

    /// Captures a packet that arrived.
    #[inline]
    pub fn received(&self, arrival: &Arrival<'_>) {
        if self.on.load(Ordering::Acquire) {
            // The ICRC covers an Identification that the socket did not report. A correct ICRC is replaced by one for the
            // Identification written here; a wrong one is kept.
            let right = arrival.check_icrc() != IcrcCheck::Wrong;
            let bytes = if right { arrival.without_icrc() } else { arrival.bytes };
            let put = |b: &mut Vec<u8>| b.extend_from_slice(bytes);
            let below = match arrival.ib {
                Some(route) => Below::Ib(*route),
                None => Below::Ip(arrival.ends()),
            };
            self.sink.lock().write(false, false, &below, put, right);
        }
    }

    /// Captures a packet that is sent through shared memory.
    #[inline]
    pub(crate) fn sent_in_memory(&self, device: &Device, av: &AddressVector, frame: &Frame<'_>) {
        if self.on.load(Ordering::Acquire) {
            let put = |b: &mut Vec<u8>| put_frame(b, frame);
            self.sink.lock().write(true, true, &below_of(device, av), put, true);
        }
    }

    /// Captures a packet that arrived through shared memory, for a queue pair whose peer is at `av`.
    #[inline]
    pub(crate) fn received_in_memory(&self, device: &Device, av: &AddressVector, bytes: &[u8]) {
        if self.on.load(Ordering::Acquire) {
            let below = match below_of(device, av) {
                Below::Ip(Ends { src, dst, .. }) => Below::Ip(Ends::between(dst.ip(), src.ip())),
                Below::Ib(route) => Below::Ib(infiniband::reversed(&route)),
            };
            let put = |b: &mut Vec<u8>| b.extend_from_slice(bytes);
            self.sink.lock().write(false, true, &below, put, true);
        }
    }
}

/// Returns the headers below the BTH of a packet along `av`, if the wire does not provide them.
fn below_of(device: &Device, av: &AddressVector) -> Below {
    match device.kind().row().link_layer {
        LinkLayer::InfiniBand => Below::Ib(infiniband::route_of(device, av)),
        LinkLayer::Ethernet => {
            let src = device.gid(av.port_num.max(PORT), av.sgid_index);
            let src = src.map_or(av.dgid, |entry| entry.gid);
            Below::Ip(Ends::between(src.ip(), av.dgid.ip()))
        }
    }
}

impl Sink {
    /// Builds the packet and writes it to the socket. `put` appends everything from the BTH on, including the ICRC unless
    /// `add_icrc` is set.
    fn write(
        &mut self,
        sent: bool,
        memory: bool,
        below: &Below,
        put: impl FnOnce(&mut Vec<u8>),
        add_icrc: bool,
    ) {
        if self.socket.is_none() {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let header = |kind| FrameHeader { sent, memory, kind, time };
        match below {
            Below::Ip(ends) => self.write_ip(header(FrameKind::Ip), ends, put, add_icrc),
            // The packet's ICRC was checked, or is not computed yet.
            Below::Ib(route) => self.write_ib(header(FrameKind::InfiniBand), route, put),
        }
    }

    fn write_ip(
        &mut self,
        header: FrameHeader,
        ends: &Ends,
        put: impl FnOnce(&mut Vec<u8>),
        add_icrc: bool,
    ) {
        let network = if ends.dst.is_ipv4() { Ipv4::LEN } else { Ipv6::LEN };
        let start = FrameHeader::LEN + network + Udp::LEN;
        self.buffer.clear();
        self.buffer.extend_from_slice(&header.to_bytes());
        self.buffer.resize(start, 0);
        put(&mut self.buffer);
        if add_icrc {
            let icrc = icrc(ends, &self.buffer[start..]);
            self.buffer.extend_from_slice(&icrc);
        }
        let payload = self.buffer.len() - start;
        put_headers(ends, payload, &mut self.buffer[FrameHeader::LEN..start]);
        self.hand_over();
    }

    /// Writes the frame in the buffer to the socket.
    fn hand_over(&mut self) {
        let Some(socket) = &self.socket else { return };
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
            // The memory was mapped a moment ago. If it no longer is, zeros are shown.
            let _ = crate::objects::memory::append(buffer, *p);
        }),
    }
    buffer.extend_from_slice(&[0; 3][..usize::from(frame.pad & 3)]);
}

fn icrc(ends: &Ends, packet: &[u8]) -> [u8; Icrc::LEN] {
    let (src_port, dst_port) = (ends.src.port(), ends.dst.port());
    let udp_len = udp_len(packet.len() + Icrc::LEN);
    let mut icrc = match (ends.src.ip(), ends.dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            Icrc::ipv4(&Ipv4Pseudo { src, dst, id: 0, src_port, dst_port, udp_len })
        }
        (src, dst) => {
            let (src, dst) = (v6(src), v6(dst));
            Icrc::ipv6(&Ipv6Pseudo { src, dst, src_port, dst_port, udp_len })
        }
    };
    icrc.update(packet);
    icrc.finish()
}

/// Returns a UDP length. A packet of shared memory may be longer than any IP packet: its length is capped.
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
