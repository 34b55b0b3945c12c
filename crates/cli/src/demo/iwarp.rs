//! The rows on iWARP: two hosts, connected by TCP.

use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use rdmux::{Options, SendWr, WcStatus};

use super::protocol::{Answer, Ask, Kind};
use super::rows::{self, Row, row};
use super::side::{HALF, TIMEOUT};
use super::stage::{Done, Stage};

/// All rows, in the order of the table.
pub(super) const ROWS: &[Row] = &[
    row("iWARP connect, private data both ways", rows::connect).staying(),
    row("iWARP: the passive side sends first", passive_first).staying(),
    row("iWARP SEND", |s| rows::send(s, Kind::Rc, 4096)).staying(),
    row("iWARP SEND, 16 MiB", |s| rows::send(s, Kind::Rc, 16 << 20)).staying(),
    row("iWARP SEND with invalidate", send_invalidate).staying(),
    row("iWARP SEND to a shared receive queue", |s| rows::send(s, Kind::RcSrq, 4096)).staying(),
    row("iWARP WRITE", |s| rows::write(s, Kind::Rc, 64 << 10)).staying(),
    row("iWARP WRITE with immediate", |s| rows::write_imm(s, Kind::Rc)).staying(),
    row("iWARP WRITE, 16 MiB", |s| rows::write(s, Kind::Rc, 16 << 20)).staying(),
    row("iWARP READ", |s| rows::read(s, 64 << 10)).staying(),
    row("iWARP READ, 16 MiB", |s| rows::read(s, 16 << 20)).staying(),
    row("iWARP FETCH AND ADD", rows::fetch_add).staying(),
    row("iWARP COMPARE AND SWAP", rows::cmp_swap).staying(),
    row("iWARP READ with a wrong key: Terminate", wrong_key).staying(),
    row("iWARP connect, refused by the program", rows::refused).staying(),
    row("iWARP: 1,000 connections, either side first", many).staying(),
    row("iWARP disconnect, seen by both", rows::disconnect).staying(),
];

/// The rows between hosts that request CRCs.
pub(super) const WITH_CRC: &[Row] = &[
    row("iWARP with CRC: SEND", |s| rows::send(s, Kind::Rc, 4096)).staying(),
    row("iWARP with CRC: WRITE, 16 MiB", |s| rows::write(s, Kind::Rc, 16 << 20)).staying(),
    row("iWARP with CRC: READ, 16 MiB", |s| rows::read(s, 16 << 20)).staying(),
    row("iWARP with CRC: disconnect", rows::disconnect).staying(),
];

/// The configuration of the hosts of [`WITH_CRC`].
pub(super) const CRC_CONFIG: &str = "[iwarp]\ncrc = true\n";

/// The number of connections of [`many`].
const CONNECTIONS: u32 = 1000;

/// The accepting side sends before the connecting side has sent anything.
fn passive_first(s: &mut Stage) -> Result<Done> {
    s.hang_up()?;
    s.connect(Kind::Rc)?;
    let data = s.data(4096);
    let side = &s.connection()?.side;
    ensure!(side.peer_to_peer == Some(true), "the connection is not in peer-to-peer mode");
    side.post_receive()?;
    let start = Instant::now();
    s.ask(&Ask::Send(data))?;
    s.connection()?.side.receive(data)?;
    rows::moved(data, start.elapsed())
}

fn send_invalidate(s: &mut Stage) -> Result<Done> {
    let (data, piece) = rows::filled(s, Kind::Rc, 4096)?;
    let victim = s.memory(Some(&Ask::Disposable))?;
    let wr = SendWr::send_invalidate(1, victim.rkey).sges(&piece);
    let (answer, time) = rows::exchange(s, data, wr)?;
    match answer {
        Answer::Message { invalidated: Some(key), .. } if key == victim.rkey.0 => {}
        other => bail!("the key was not invalidated: {other:?}"),
    }
    // The key is no longer valid.
    refused_read(s, victim)?;
    rows::moved(data, time)
}

fn wrong_key(s: &mut Stage) -> Result<Done> {
    s.connect(Kind::Rc)?;
    let mut wrong = s.connection()?.remote;
    wrong.rkey.0 ^= 1;
    let start = Instant::now();
    refused_read(s, wrong)?;
    Ok(Done { bytes: 0, time: start.elapsed() })
}

/// Posts a READ, to which the other side responds by ending the connection. A WRITE would show nothing: it completes
/// when TCP has accepted its data.
fn refused_read(s: &mut Stage, what: rdmux::RemoteMr) -> Result<()> {
    let side = &s.connection()?.side;
    let into = [side.memory.slice(HALF..HALF + 64)];
    let status = side.run_failing(SendWr::read(2, what).sges(&into))?;
    s.abandon();
    ensure!(status == WcStatus::RemAccessErr, "a READ with a wrong key completed with {status:?}");
    Ok(())
}

/// Opens connection after connection, on each of which the passive side first sends the number of the connection.
fn many(s: &mut Stage) -> Result<Done> {
    let to = s.listening(&Ask::SayFirst { at: s.addr, connections: CONNECTIONS })?;
    let start = Instant::now();
    for n in 0..CONNECTIONS {
        let options = Options::new().context(&s.context).depth(4).timeout(TIMEOUT);
        let mut connection = options.message_size(64).connect(to)?;
        let said = connection
            .recv()?
            .with_context(|| format!("connection {n} ended without a message"))?;
        ensure!(said == n.to_be_bytes(), "connection {n} received {said:?}");
        connection.close()?;
    }
    let time = start.elapsed();
    s.done()?;
    Ok(Done { bytes: u64::from(CONNECTIONS) * 4, time })
}
