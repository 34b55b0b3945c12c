//! Peers that break the rules, and silent peers.
//!
//! Once a queue pair has the stream, every fault has its Terminate (RFC 5040, section 7; RFC 5041, section 8; RFC 5044,
//! section 8), then the stream ends, the program gets an event, and no memory was written that the peer
//! had no right to write.

use anyhow::{Context as _, Result, ensure};
use rdmux::QpEvent;
use rdmux::cm::EventKind;
use rdmux_wire::Stag;
use rdmux_wire::iwarp::ddp::{Header, Model, Tagged, Untagged};
use rdmux_wire::iwarp::fpdu::Framing;
use rdmux_wire::iwarp::mpa::{Flags, Kind};
use rdmux_wire::iwarp::rdmap::{AtomicOp, AtomicRequest, Opcode, ReadRequest};
use rdmux_wire::iwarp::rtr;
use rdmux_wire::iwarp::terminate::{Fault, Terminate};

use super::Row;
use super::matrix::{Bits, Speaks};
use super::ours::{BUFFER, DEPTH, End, Hosts, Settings};
use super::wire::{Wire, listen};

/// The peer's action on an established connection.
type Act = fn(&mut Wire, &End) -> Result<()>;

/// A case on an established connection: the name, the peer's action, the Terminate, the asynchronous event.
type Case = (&'static str, Act, Fault, Option<QpEvent>);

/// The length of a region, and one byte more.
const SIZE: u64 = BUFFER as u64;
const LONG: u32 = 4097;

const FATAL: Option<QpEvent> = Some(QpEvent::Fatal);
const ACCESS: Option<QpEvent> = Some(QpEvent::AccessErr);
const REQUEST: Option<QpEvent> = Some(QpEvent::ReqErr);

/// Invalid frames.
const FRAMES: &[Case] = &[
    (
        "an ULPDU too short for a header",
        |w, _| w.send_ulpdu(&[&[0x41, 0x43, 0, 0]]),
        Fault::MpaMarker,
        FATAL,
    ),
    ("DDP version 0, tagged", |w, _| raw(w, 0xc0, 0x40), Fault::DdpTaggedVersion, FATAL),
    ("DDP version 2, untagged", |w, _| raw(w, 0x42, 0x43), Fault::DdpUntaggedVersion, FATAL),
    ("RDMAP version 0", |w, _| raw(w, 0x41, 0x03), Fault::RdmapVersion, FATAL),
    ("an opcode that does not exist", |w, _| raw(w, 0x41, 0x4f), Fault::RdmapOpcode, REQUEST),
    ("a Send that is tagged", |w, _| raw(w, 0xc1, 0x43), Fault::RdmapOpcode, REQUEST),
    ("a Write that is not tagged", |w, _| raw(w, 0x41, 0x40), Fault::RdmapOpcode, REQUEST),
    (
        "a Send to a queue that does not exist",
        |w, _| send(w, |u| u.qn = 9),
        Fault::DdpUntaggedQueue,
        FATAL,
    ),
    (
        "a Send to the queue of Read Requests",
        |w, _| send(w, |u| u.qn = 1),
        Fault::RdmapOpcode,
        REQUEST,
    ),
    ("a Send out of sequence", |w, _| send(w, |u| u.msn = 3), Fault::DdpUntaggedMsn, FATAL),
    (
        "a Send that does not begin at 0",
        |w, _| send(w, |u| u.mo = 8),
        Fault::DdpUntaggedOffset,
        FATAL,
    ),
    ("a Send longer than the receive", too_long, Fault::DdpUntaggedTooLong, None),
    ("a Send without a receive", without_receive, Fault::DdpUntaggedNoBuffer, FATAL),
    ("a Send that invalidates nothing", invalidate, Fault::RdmapInvalidate, ACCESS),
    (
        "a Write to a key that does not exist",
        |w, e| write(w, Stag(0xdead_beef), e.remote.addr(), 8),
        Fault::DdpTaggedStag,
        ACCESS,
    ),
    (
        "a Write beyond the end",
        |w, e| write(w, e.remote.rkey().into(), e.remote.addr() + SIZE - 4, 8),
        Fault::DdpTaggedBounds,
        ACCESS,
    ),
    (
        "a Write before the start",
        |w, e| write(w, e.remote.rkey().into(), e.remote.addr() - 4, 8),
        Fault::DdpTaggedBounds,
        ACCESS,
    ),
    (
        "a Write around the end of addresses",
        |w, e| write(w, e.remote.rkey().into(), u64::MAX - 3, 8),
        Fault::DdpTaggedWrap,
        ACCESS,
    ),
    (
        "a Write where only reading is allowed",
        |w, e| write(w, e.read_only.rkey().into(), e.read_only.addr(), 8),
        Fault::RdmapAccess,
        ACCESS,
    ),
    (
        "a Write to a receive's memory",
        |w, e| write(w, e.buffer.rkey().into(), e.buffer.addr(), 8),
        Fault::RdmapAccess,
        ACCESS,
    ),
    (
        "a Read of a key that does not exist",
        |w, e| read(w, Stag(0xdead_beef), e.remote.addr(), 8),
        Fault::RdmapStag,
        ACCESS,
    ),
    (
        "a Read beyond the end",
        |w, e| read(w, e.remote.rkey().into(), e.remote.addr(), LONG),
        Fault::RdmapBounds,
        ACCESS,
    ),
    (
        "a Read around the end of addresses",
        |w, e| read(w, e.remote.rkey().into(), u64::MAX - 3, 8),
        Fault::RdmapWrap,
        ACCESS,
    ),
    (
        "a Read where it is not allowed",
        |w, e| read(w, e.buffer.rkey().into(), e.buffer.addr(), 8),
        Fault::RdmapAccess,
        ACCESS,
    ),
    ("more Reads than are served", many_reads, Fault::DdpUntaggedNoBuffer, REQUEST),
    (
        "a Read Request that is short",
        |w, _| with_payload(w, Opcode::ReadRequest, 20),
        Fault::RdmapOperation,
        REQUEST,
    ),
    (
        "a Read Request that is long",
        |w, _| with_payload(w, Opcode::ReadRequest, 40),
        Fault::DdpUntaggedTooLong,
        REQUEST,
    ),
    (
        "an atomic on memory that is not aligned",
        |w, e| atomic(w, e.remote.rkey().into(), e.remote.addr() + 4),
        Fault::RdmapOperation,
        REQUEST,
    ),
    (
        "an atomic where only reading is allowed",
        |w, e| atomic(w, e.read_only.rkey().into(), e.read_only.addr()),
        Fault::RdmapAccess,
        ACCESS,
    ),
    ("a Read Response that nobody asked for", unasked, Fault::RdmapOpcode, REQUEST),
    (
        "an Atomic Response that nobody asked for",
        |w, _| with_payload(w, Opcode::AtomicResponse, 12),
        Fault::RdmapOpcode,
        REQUEST,
    ),
];

/// Invalid requests, which the listener resets.
const REQUESTS: &[(&str, &[u8])] = &[
    ("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    ("a wrong last letter of the key", b"MPA ID Req Framf\0\x01\0\0"),
    ("a reply", b"MPA ID Rep Frame\0\x01\0\0"),
    ("revision 0", b"MPA ID Req Frame\0\0\0\0"),
    ("revision 3", b"MPA ID Req Frame\0\x03\0\0"),
    ("513 bytes of private data", b"MPA ID Req Frame\0\x01\x02\x01"),
    ("S without what it announces", b"MPA ID Req Frame\x10\x02\0\x02ab"),
];

/// Invalid replies, which are answered by a Terminate with code 4.
const REPLIES: &[(&str, &[u8])] = &[
    ("HTTP", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    ("a request", b"MPA ID Req Frame\0\x01\0\0"),
    ("revision 0", b"MPA ID Rep Frame\0\0\0\0"),
    ("revision 3", b"MPA ID Rep Frame\0\x03\0\0"),
    ("513 bytes of private data", b"MPA ID Rep Frame\0\x01\x02\x01"),
    ("S without what it announces", b"MPA ID Rep Frame\x10\x02\0\x02ab"),
];

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for &(name, act, fault, event) in FRAMES {
        rows.push(Row::new(format!("bad frame | {name} | {fault}"), move |hosts| {
            for crc in [false, true] {
                let settings = Settings { crc, ..Settings::default() };
                bad_frame(hosts, settings, act, fault, event)
                    .with_context(|| format!("with CRC {crc}"))?;
            }
            Ok(())
        }));
    }
    rows.push(Row::new(format!("bad frame | a wrong CRC | {}", Fault::MpaCrc), |hosts| {
        let settings = Settings { crc: true, ..Settings::default() };
        bad_frame(hosts, settings, wrong_crc, Fault::MpaCrc, FATAL)
    }));
    rows.push(Row::new(format!("bad frame | a wrong marker | {}", Fault::MpaMarker), |hosts| {
        let settings = Settings { markers: "ask", ..Settings::default() };
        bad_frame(hosts, settings, wrong_marker, Fault::MpaMarker, FATAL)
    }));
    for &(name, bytes) in REQUESTS {
        rows.push(Row::new(format!("bad request | {name} | reset"), move |hosts| {
            bad_request(hosts, bytes)
        }));
    }
    for &(name, bytes) in REPLIES {
        let fault = Fault::MpaStartup;
        rows.push(Row::new(format!("bad reply | {name} | {fault}"), move |hosts| {
            bad_reply(hosts, bytes)
        }));
    }
    rows.extend([
        Row::new("bad first frame | another than was chosen | reset", bad_rtr),
        Row::new("end | in the middle of a frame | disconnected", |hosts| ends(hosts, 20, false)),
        Row::new("end | between frames | disconnected", |hosts| ends(hosts, 0, false)),
        Row::new("end | reset in the middle of a frame | disconnected", |hosts| {
            ends(hosts, 20, true)
        }),
        Row::new("end | reset between frames | disconnected", |hosts| ends(hosts, 0, true)),
        Row::new("end | a Terminate | disconnected", terminated),
        Row::new("silence | instead of a request | dropped in time", |hosts| silence(hosts, b"")),
        Row::new("silence | in the middle of a request | dropped in time", |hosts| {
            silence(hosts, b"MPA ID Req")
        }),
        Row::new("silence | instead of a reply | unreachable in time", no_reply),
        Row::new("silence | instead of the first frame | unreachable in time", no_rtr),
        Row::new("slow | every byte by itself | connected", byte_by_byte),
    ]);
    rows
}

// ---- established connections

/// Establishes a connection that the peer initiates, in which the active side must send first.
fn connected(hosts: &Hosts, settings: Settings) -> Result<(Wire, End)> {
    let ours = hosts.with(settings)?;
    let listener = ours.listen()?;
    let mut wire = Wire::connect(listener.at)?;
    let request = Speaks::V2(Bits::default()).said(Kind::Request, Flags::default());
    wire.send(&request.bytes())?;
    let (end, _) = listener.accept(&ours.context)?;
    wire.startup()?;
    let crc = settings.crc;
    wire.agree(
        Framing { crc, markers: false },
        Framing { crc, markers: settings.markers == "ask" },
    );
    end.event(EventKind::Established)?;
    Ok((wire, end))
}

fn bad_frame(
    hosts: &Hosts,
    settings: Settings,
    act: Act,
    fault: Fault,
    event: Option<QpEvent>,
) -> Result<()> {
    let (mut wire, end) = connected(hosts, settings)?;
    act(&mut wire, &end)?;
    let told = wire.fault().context("waiting for the Terminate")?;
    ensure!(told == fault, "the Terminate has the error {told}");
    wire.ended()?;
    drop(wire);
    end.event(EventKind::Disconnected)?;
    if let Some(event) = event {
        let found = end.async_event(&hosts.with(settings)?.context)?;
        ensure!(found == event, "the event is {found:?}, not {event:?}");
    }
    end.is_broken_cleanly()
}

/// Sends a frame with these control bytes, and zeros in the other fields.
fn raw(wire: &mut Wire, ddp: u8, rdmap: u8) -> Result<()> {
    let mut ulpdu = [0; Header::MAX_LEN + 8];
    ulpdu[..2].copy_from_slice(&[ddp, rdmap]);
    wire.send_ulpdu(&[&ulpdu])
}

/// Sends a Send of eight bytes with a changed header.
fn send(wire: &mut Wire, change: fn(&mut Untagged)) -> Result<()> {
    let mut header = wire.untagged(Opcode::Send);
    if let Model::Untagged(untagged) = &mut header.model {
        change(untagged);
    }
    wire.send_segment(&header, &[0; 8])
}

fn with_payload(wire: &mut Wire, opcode: Opcode, len: usize) -> Result<()> {
    let header = wire.untagged(opcode);
    wire.send_segment(&header, &vec![0; len])
}

fn too_long(wire: &mut Wire, _: &End) -> Result<()> {
    with_payload(wire, Opcode::Send, BUFFER + 1)
}

fn without_receive(wire: &mut Wire, end: &End) -> Result<()> {
    wire.send_message()?;
    end.receive()?;
    with_payload(wire, Opcode::Send, 8)
}

fn invalidate(wire: &mut Wire, _: &End) -> Result<()> {
    let mut header = wire.untagged(Opcode::SendInvalidate);
    if let Model::Untagged(untagged) = &mut header.model {
        untagged.invalidate = Stag(0xdead_beef);
    }
    wire.send_segment(&header, &[0; 8])
}

fn write(wire: &mut Wire, stag: Stag, to: u64, len: usize) -> Result<()> {
    let model = Model::Tagged(Tagged { last: true, stag, to });
    wire.send_segment(&Header::new(Opcode::Write, model), &vec![0; len])
}

fn read_request(wire: &mut Wire, source_stag: Stag, source_to: u64, len: u32) -> Vec<u8> {
    let request = ReadRequest { sink_stag: Stag(1), sink_to: 0, len, source_stag, source_to };
    let header = wire.untagged(Opcode::ReadRequest).to_buf();
    [&header[..], &request.to_bytes()].concat()
}

fn read(wire: &mut Wire, stag: Stag, to: u64, len: u32) -> Result<()> {
    let request = read_request(wire, stag, to, len);
    wire.send_ulpdu(&[&request])
}

/// Sends one Read more than are served at a time, in one TCP segment.
fn many_reads(wire: &mut Wire, end: &End) -> Result<()> {
    let (stag, to) = (end.remote.rkey().into(), end.remote.addr());
    let mut bytes = Vec::new();
    for _ in 0..=DEPTH {
        let request = read_request(wire, stag, to, BUFFER.try_into()?);
        bytes.extend(wire.frame(&[&request])); // without markers, frames do not depend on their position
    }
    wire.send(&bytes)
}

fn atomic(wire: &mut Wire, stag: Stag, to: u64) -> Result<()> {
    let (op, data) = (AtomicOp::FetchAdd, 1);
    let request = AtomicRequest { op, id: 7, stag, to, data, mask: 0, compare: 0, compare_mask: 0 };
    let header = wire.untagged(Opcode::AtomicRequest);
    wire.send_segment(&header, &request.to_bytes())
}

fn unasked(wire: &mut Wire, end: &End) -> Result<()> {
    let (stag, to) = (end.remote.rkey().into(), end.remote.addr());
    let model = Model::Tagged(Tagged { last: true, stag, to });
    wire.send_segment(&Header::new(Opcode::ReadResponse, model), &[0; 8])
}

fn wrong_crc(wire: &mut Wire, _: &End) -> Result<()> {
    let header = wire.untagged(Opcode::Send).to_buf();
    let mut frame = wire.frame(&[&header, &[0; 8]]);
    frame[25] ^= 1;
    wire.send(&frame)
}

fn wrong_marker(wire: &mut Wire, _: &End) -> Result<()> {
    let header = wire.untagged(Opcode::Send).to_buf();
    let mut frame = wire.frame(&[&header, &[0; 8]]);
    frame[3] ^= 4;
    wire.send(&frame)
}

// ---- start-up

fn bad_request(hosts: &Hosts, bytes: &[u8]) -> Result<()> {
    let ours = hosts.plain()?;
    let listener = ours.listen()?;
    let mut wire = Wire::connect(listener.at)?;
    wire.send(bytes)?;
    wire.ended()?;
    ensure!(listener.channel.try_next()?.is_none(), "the program received an event");
    Ok(())
}

fn bad_reply(hosts: &Hosts, bytes: &[u8]) -> Result<()> {
    let (listener, at) = listen()?;
    let end = hosts.plain()?.connect(at, true)?;
    let mut wire = Wire::accept(&listener)?;
    wire.startup()?;
    wire.send(bytes)?;
    let told = wire.fault()?;
    ensure!(told == Fault::MpaStartup, "the Terminate has the error {told}");
    wire.ended()?;
    let event = end.any_event()?;
    ensure!(event.kind() == EventKind::ConnectError, "{:?}", event.kind());
    Ok(())
}

/// Establishes a connection that the peer initiates, which rdmux has accepted and which awaits a Write.
fn accepted(hosts: &Hosts, settings: Settings) -> Result<(Wire, End)> {
    let ours = hosts.with(settings)?;
    let listener = ours.listen()?;
    let mut wire = Wire::connect(listener.at)?;
    let bits = Bits { a: true, c: true, ..Bits::default() };
    wire.send(&Speaks::V2(bits).said(Kind::Request, Flags::default()).bytes())?;
    let (end, _) = listener.accept(&ours.context)?;
    wire.startup()?;
    Ok((wire, end))
}

fn bad_rtr(hosts: &Hosts) -> Result<()> {
    let plain = Framing::default();
    for frame in [rtr::send(plain), rtr::read(plain)] {
        let (mut wire, end) = accepted(hosts, Settings::default())?;
        wire.send(&frame)?;
        wire.ended()?;
        let event = end.any_event()?;
        ensure!(event.kind() == EventKind::ConnectError, "{:?}", event.kind());
    }
    Ok(())
}

// ---- ends of streams

/// The peer sends so many bytes of a frame, and ends or resets the stream.
fn ends(hosts: &Hosts, bytes: usize, reset: bool) -> Result<()> {
    let (mut wire, end) = connected(hosts, Settings::default())?;
    wire.send_message()?;
    end.receive()?;
    let header = wire.untagged(Opcode::Send).to_buf();
    let frame = wire.frame(&[&header, &[0; 100]]);
    wire.send(&frame[..bytes])?;
    if reset {
        wire.reset()?;
    } else {
        wire.finish()?;
        while wire.segment().is_ok() {}
    }
    end.event(EventKind::Disconnected)?;
    if reset || bytes > 0 { end.is_broken() } else { Ok(()) }
}

fn terminated(hosts: &Hosts) -> Result<()> {
    let (mut wire, end) = connected(hosts, Settings::default())?;
    let mut terminate = [0; Terminate::MAX_LEN];
    let len = Terminate::new(Fault::RdmapGlobalCatastrophic).emit(&mut terminate);
    let header = wire.untagged(Opcode::Terminate);
    wire.send_segment(&header, &terminate[..len])?;
    wire.ended()?;
    drop(wire);
    end.event(EventKind::Disconnected)?;
    end.is_broken()
}

/// Every byte of the peer arrives separately.
fn byte_by_byte(hosts: &Hosts) -> Result<()> {
    for settings in
        [Settings::default(), Settings { crc: true, markers: "ask", ..Settings::default() }]
    {
        let ours = hosts.with(settings)?;
        let listener = ours.listen()?;
        let mut wire = Wire::connect(listener.at)?;
        wire.dribbles();
        let request = Speaks::V2(Bits::default()).said(Kind::Request, Flags::default());
        wire.send(&request.bytes())?;
        let (end, _) = listener.accept(&ours.context)?;
        wire.startup()?;
        let crc = settings.crc;
        wire.agree(Framing { crc, markers: false }, Framing { crc, markers: crc });
        end.event(EventKind::Established)?;
        wire.send_message()?;
        end.receive()?;
        end.send()?;
        wire.receive_message(1)?;
    }
    Ok(())
}

// ---- silent peers

const SHORT_TIMEOUTS: Settings =
    Settings { crc: false, markers: "give", revision: 2, short_timeouts: true };

fn silence(hosts: &Hosts, bytes: &[u8]) -> Result<()> {
    let ours = hosts.with(SHORT_TIMEOUTS)?;
    let listener = ours.listen()?;
    let mut wire = Wire::connect(listener.at)?;
    wire.send(bytes)?;
    wire.ended()?;
    ensure!(listener.channel.try_next()?.is_none(), "the program received an event");
    Ok(())
}

fn no_reply(hosts: &Hosts) -> Result<()> {
    let (listener, at) = listen()?;
    let end = hosts.with(SHORT_TIMEOUTS)?.connect(at, true)?;
    let mut wire = Wire::accept(&listener)?;
    wire.startup()?;
    wire.ended()?;
    let event = end.any_event()?;
    ensure!(event.kind() == EventKind::Unreachable, "{:?}", event.kind());
    Ok(())
}

fn no_rtr(hosts: &Hosts) -> Result<()> {
    let (mut wire, end) = accepted(hosts, SHORT_TIMEOUTS)?;
    wire.ended()?;
    let event = end.any_event()?;
    ensure!(event.kind() == EventKind::Unreachable, "{:?}", event.kind());
    Ok(())
}
