//! Copies of all frames, for `rdmux capture`.
//!
//! While nobody captures, each batch of packets costs one look at a flag. A frame goes to a datagram
//! socket as a [`FrameHeader`] and an IP or InfiniBand packet, as it would be seen on a wire; what the socket does
//! not take is counted and forgotten.

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
    /// Of an InfiniBand packet what begins with its BTH, before it is known how long it is.
    transport: Vec<u8>,
    drops: u64,
}

/// What is below the BTH of a packet.
enum Below {
    /// UDP over IP.
    Ip(Ends),
    /// InfiniBand's link and network headers.
    Ib(IbRoute),
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
            let put = |b: &mut Vec<u8>| put_frame(b, frame);
            self.sink.lock().write(true, false, &Below::Ip(ends), put, true);
        }
    }

    /// A packet leaves along `av` by a wire that the device's driver brought, which may know its ends.
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

    /// A packet has arrived.
    #[inline]
    pub fn received(&self, arrival: &Arrival<'_>) {
        if self.on.load(Ordering::Acquire) {
            // The checksum covers an Identification that the socket did not tell; one that was
            // right is made right for the Identification written here, one that was wrong stays.
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

    /// A packet leaves through shared memory.
    #[inline]
    pub(crate) fn sent_in_memory(&self, device: &Device, av: &AddressVector, frame: &Frame<'_>) {
        if self.on.load(Ordering::Acquire) {
            let put = |b: &mut Vec<u8>| put_frame(b, frame);
            self.sink.lock().write(true, true, &below_of(device, av), put, true);
        }
    }

    /// A packet has arrived through shared memory, for a queue pair whose peer is at `av`.
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

/// What is below the BTH of a packet along `av`, where the wire does not say.
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
    /// Builds the packet and hands it over. `put` appends everything from the BTH on, with its ICRC unless that is to be added.
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
            // Its ICRC was checked, or is not there yet.
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

    /// Hands the frame in the buffer over.
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
