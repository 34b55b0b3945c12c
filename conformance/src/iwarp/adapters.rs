//! Peers with the behaviour of adapters that are not available, in both roles: what their drivers send by default, and how
//! they respond to rdmux.
//!
//! | | siw | cxgb4 | irdma |
//! |---|---|---|---|
//! | offers as initiator | nothing, or Write and Read | Read | Write and Read |
//! | chooses as responder | Write | Read | Read |
//! | a request without A | accepts | accepts | refuses |
//! | CRC | if the peer asks | asks | asks |
//! | markers | refuses | sends none | sends |
//! | an older peer | does not retry | retries with revision 1 | |

use anyhow::{Result, ensure};
use rdmux::cm::EventKind;
use rdmux_wire::iwarp::fpdu::Framing;
use rdmux_wire::iwarp::mpa::{Enhanced, Flags, Kind};
use rdmux_wire::iwarp::terminate::Fault;

use super::Row;
use super::matrix::{Bits, Cell, Outcome, Speaks, they_ask, we_ask};
use super::ours::{Hosts, OURS, Settings, THEIRS, WAIT};
use super::wire::{Rtr, Said, Wire, listen};

const WRITE_OR_READ: Bits = Bits { a: true, b: false, c: true, d: true };
const READ: Bits = Bits { a: true, b: false, c: false, d: true };
const WRITE: Bits = Bits { a: true, b: false, c: true, d: false };
const NOTHING: Bits = Bits { a: false, b: false, c: false, d: false };

fn with_crc() -> Cell {
    Cell { their_crc: true, ..Cell::plain() }
}

pub(super) fn rows() -> Vec<Row> {
    let up = Outcome::Up;
    let mut rows = Vec::new();
    // rdmux connects: the adapter, with or without peer-to-peer, the reply, the outcome.
    for (who, mode, cell, answer, outcome) in [
        ("siw", true, Cell::plain(), WRITE, up(Some(Rtr::Write))),
        ("siw", false, Cell::plain(), NOTHING, up(None)),
        ("cxgb4", true, with_crc(), READ, up(Some(Rtr::Read))),
        ("cxgb4", false, with_crc(), NOTHING, up(None)),
        ("irdma", true, with_crc(), READ, up(Some(Rtr::Read))),
        ("irdma that wants markers", true, markers(), READ, up(Some(Rtr::Read))),
    ] {
        let mode_name = if mode { "peer-to-peer" } else { "client-server" };
        rows.push(Row::new(format!("rdmux asks {mode_name} | {who} | {outcome}"), move |hosts| {
            we_ask(hosts, &cell, mode, Speaks::V2(answer), outcome)
        }));
    }
    // The peer connects.
    for (who, cell, request, rtr) in [
        ("siw", Cell::plain(), Speaks::V2(NOTHING), None),
        ("siw, peer-to-peer on", Cell::plain(), Speaks::V2(WRITE_OR_READ), Some(Rtr::Write)),
        ("cxgb4", with_crc(), Speaks::V2(READ), Some(Rtr::Read)),
        ("cxgb4 with revision 1", with_crc(), Speaks::V1, None),
        ("irdma", with_crc(), Speaks::V2(WRITE_OR_READ), Some(Rtr::Write)),
        ("irdma that wants markers", markers(), Speaks::V2(WRITE_OR_READ), Some(Rtr::Write)),
    ] {
        rows.push(Row::new(format!("{who} asks | {}", up(rtr)), move |hosts| {
            they_ask(hosts, &cell, request, rtr)
        }));
    }
    rows.extend([
        Row::new("rdmux asks client-server | irdma, which refuses | rejected", irdma_refuses),
        Row::new("rdmux asks | the peer refuses with a reason | rejected", refused),
        Row::new(
            "rdmux asks | of revision 1, resets | connected, the active side first",
            |hosts| falls_back(hosts, true),
        ),
        Row::new(
            "rdmux asks | of revision 1, closes | connected, the active side first",
            |hosts| falls_back(hosts, false),
        ),
        Row::new("rdmux asks | resets both revisions | rejected", resets_both),
        Row::new("peer asks | rdmux refuses, with private data | refused", we_refuse),
        Row::new("peer asks with markers | rdmux gives none | refused", no_markers),
        Row::new("rdmux asks | depths are not negotiated | connected", |hosts| {
            depths(hosts, [Enhanced::NOT_NEGOTIATED; 2], None)
        }),
        Row::new(
            "rdmux asks | the peer serves no Read, and wants one first | terminated",
            |hosts| depths(hosts, [0, 1], Some(Fault::MpaInsufficientIrd)),
        ),
        Row::new("rdmux asks | the peer wants more Reads than there are | terminated", |hosts| {
            depths(hosts, [1, 0x3ffe], Some(Fault::MpaInsufficientIrd))
        }),
    ]);
    rows
}

fn markers() -> Cell {
    Cell { their_markers: true, ..with_crc() }
}

/// Receives the request of a connection that rdmux initiates.
fn asked(
    hosts: &Hosts,
    peer_to_peer: bool,
) -> Result<(super::ours::End, std::net::TcpListener, Wire, Said)> {
    let (listener, at) = listen()?;
    let end = hosts.plain()?.connect(at, peer_to_peer)?;
    let mut wire = Wire::accept(&listener)?;
    let request = wire.startup()?;
    Ok((end, listener, wire, request))
}

fn irdma_refuses(hosts: &Hosts) -> Result<()> {
    let (end, _, mut wire, request) = asked(hosts, false)?;
    ensure!(request.enhanced.is_some_and(|enhanced| !enhanced.peer_to_peer), "{request:?}");
    wire.send(&Speaks::V2(NOTHING).said(Kind::Reply, Flags::REJECT).bytes())?;
    wire.ended()?;
    let event = end.any_event()?;
    ensure!(event.kind() == EventKind::Rejected, "{:?}", event.kind());
    Ok(())
}

fn refused(hosts: &Hosts) -> Result<()> {
    for speaks in [Speaks::V1, Speaks::V2(WRITE)] {
        let (end, _, mut wire, _) = asked(hosts, true)?;
        wire.send(&speaks.said(Kind::Reply, Flags::REJECT).bytes())?;
        wire.ended()?;
        let event = end.any_event()?;
        ensure!(event.kind() == EventKind::Rejected, "{:?}", event.kind());
        ensure!(
            event.private_data() == THEIRS,
            "the event has private data {:?}",
            event.private_data()
        );
    }
    Ok(())
}

fn falls_back(hosts: &Hosts, resets: bool) -> Result<()> {
    let (end, listener, wire, first) = asked(hosts, true)?;
    ensure!(first.revision == 2, "{first:?}");
    if resets {
        wire.reset()?;
    } else {
        drop(wire);
    }
    let mut wire = Wire::accept(&listener)?;
    let second = wire.startup()?;
    let wanted = Said { revision: 1, enhanced: None, ..first };
    ensure!(second == wanted, "the second request is {second:?}");
    wire.send(&Speaks::V1.said(Kind::Reply, Flags::CRC).bytes())?;
    let framing = Framing { crc: true, markers: false };
    wire.agree(framing, framing);
    let event = end.event(EventKind::Established)?;
    ensure!(event.peer_to_peer() == Some(false), "the active side must send first");
    end.send()?;
    wire.receive_message(1)?;
    wire.send_message()?;
    end.receive()
}

fn resets_both(hosts: &Hosts) -> Result<()> {
    let (end, listener, wire, _) = asked(hosts, true)?;
    wire.reset()?;
    let mut wire = Wire::accept(&listener)?;
    wire.startup()?;
    wire.reset()?;
    let event = end.any_event()?;
    ensure!(event.kind() == EventKind::Rejected, "{:?}", event.kind());
    Ok(())
}

fn we_refuse(hosts: &Hosts) -> Result<()> {
    let ours = hosts.plain()?;
    let listener = ours.listen()?;
    for (speaks, enhanced) in [(Speaks::V1, None), (Speaks::V2(READ), Some(Enhanced::default()))] {
        let mut wire = Wire::connect(listener.at)?;
        wire.send(&speaks.said(Kind::Request, Flags::default()).bytes())?;
        let event = listener.channel.next(Some(WAIT))?;
        let mut event =
            event.ok_or_else(|| anyhow::anyhow!("no connection request arrived in time"))?;
        let id =
            event.take_id().ok_or_else(|| anyhow::anyhow!("the connection request has no id"))?;
        id.reject(OURS)?;
        let reply = wire.startup()?;
        ensure!(reply.flags.has(Flags::REJECT), "{reply:?}");
        ensure!((reply.enhanced, &reply.private_data[..]) == (enhanced, OURS), "{reply:?}");
        wire.ended()?;
    }
    Ok(())
}

fn no_markers(hosts: &Hosts) -> Result<()> {
    let ours = hosts.with(Settings { markers: "refuse", ..Settings::default() })?;
    let listener = ours.listen()?;
    let mut wire = Wire::connect(listener.at)?;
    wire.send(&Speaks::V1.said(Kind::Request, Flags::MARKERS).bytes())?;
    let reply = wire.startup()?;
    ensure!(reply.flags.has(Flags::REJECT), "{reply:?}");
    wire.ended()?;
    ensure!(listener.channel.try_next()?.is_none(), "the program received an event");
    Ok(())
}

/// The peer replies with these depths, IRD and ORD, and chooses a Read as the first frame.
fn depths(hosts: &Hosts, [ird, ord]: [u16; 2], fault: Option<Fault>) -> Result<()> {
    let (end, _, mut wire, _) = asked(hosts, true)?;
    let mut reply = Speaks::V2(READ).said(Kind::Reply, Flags::CRC);
    reply.enhanced = Some(Enhanced { ird, ord, ..READ.enhanced() });
    wire.send(&reply.bytes())?;
    let framing = Framing { crc: true, markers: false };
    wire.agree(framing, framing);
    if let Some(fault) = fault {
        let told = wire.fault()?;
        ensure!(told == fault, "the Terminate has the error {told}");
        let event = end.any_event()?;
        ensure!(event.kind() == EventKind::ConnectError, "{:?}", event.kind());
        return wire.ended();
    }
    wire.take_rtr(Rtr::Read)?;
    end.event(EventKind::Established)?;
    wire.send_message()?;
    end.receive()
}
