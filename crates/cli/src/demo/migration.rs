//! A connection that the connection manager has established with an alternate path, to other LIDs of the same ports: it migrates to
//! that path, loads the first path again by LAP and APR, and migrates back.

use std::time::Instant;

use anyhow::{Result, ensure};
use rdmux::cm::{CmOption, ConnParam, EventChannel, EventKind, IdOption, PathData, ServiceId};
use rdmux::{Context, Lid, MigState, QpType, SendWr};
use rdmux_command::cmutil;
use rdmux_command::two_paths::{self, Connected, Place};

use super::fabric::until;
use super::infiniband::{End, Ground, SIZE, compare};
use super::protocol::Data;
use super::side::{TIMEOUT, pattern};
use super::stage::Done;

const SERVICE: ServiceId = ServiceId(0x1000_0000_0000_de30);

/// Returns the end of path `number` at a host.
fn place(context: &Context, number: u16) -> Result<Place> {
    Ok((context.gid(0)?, Lid(context.query_port()?.lid.0 + number)))
}

/// Returns the record of path `number`, as primary or alternate path.
fn record([a, b]: &[Context; 2], role: u32, number: u16) -> Result<PathData> {
    Ok(two_paths::record(role, [place(a, number)?, place(b, number)?]))
}

/// Two ends, and the connection manager's side of them.
struct Connection {
    ends: [End; 2],
    cm: Connected,
}

impl Connection {
    fn new(contexts: &[Context; 2]) -> Result<Self> {
        let [a, b] = contexts;
        let records =
            [record(contexts, PathData::PRIMARY, 0)?, record(contexts, PathData::ALTERNATE, 1)?];
        let ends = [End::new(a, QpType::Rc)?, End::new(b, QpType::Rc)?];
        let param = ConnParam { retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() };
        let options = [IdOption::Cm(CmOption::Messages(true))];
        let qps = [&ends[0].qp, &ends[1].qp];
        let paths = (SERVICE, &records[..]);
        let cm = two_paths::connect([a, b], qps, paths, (&param, &options), TIMEOUT)?;
        Ok(Self { ends, cm })
    }

    fn until_both_are(&self, state: MigState) -> Result<()> {
        until("both ends of a connection", || {
            Ok(self.ends.iter().all(|end| end.qp.migration() == state))
        })
    }

    /// Sends a message, compares it, and checks that it used path `number`.
    fn send(&self, contexts: &[Context; 2], number: u16, seed: u32) -> Result<()> {
        let [a, b] = &self.ends;
        let to = place(&contexts[1], number)?.1;
        ensure!(
            a.qp.attr().av.dlid == to.0,
            "the connection sends to LID {}, not {to}",
            a.qp.attr().av.dlid
        );
        let data = pattern(Data { seed, len: SIZE });
        a.mr.write(0, &data);
        b.qp.post_recv(1, &[b.mr.slice(..)])?;
        a.qp.post_send(&SendWr::send(2).sges(&[a.mr.slice(..)]).signaled())?;
        b.wait()?;
        a.wait()?;
        compare(&b.mr.to_vec(..), &data)
    }

    fn migrate(&self) -> Result<()> {
        self.ends[0].qp.migrate()?;
        self.until_both_are(MigState::Migrated)?;
        self.cm.ids.iter().try_for_each(|id| Ok(id.notify_migrated()?))
    }
}

fn expect(channel: &EventChannel, kind: EventKind) -> Result<()> {
    cmutil::expect(channel, kind, "go on", TIMEOUT).map(drop)
}

/// Migrates there and back, with messages before, between and after.
pub(super) fn there_and_back(ground: &Ground) -> Result<Done> {
    let contexts = ground.contexts();
    let connection = Connection::new(contexts)?;
    connection.until_both_are(MigState::Armed)?;
    connection.send(contexts, 0, 11)?;
    let start = Instant::now();
    connection.migrate()?;
    let time = start.elapsed();
    connection.send(contexts, 1, 12)?;
    connection.cm.ids[0].load_alternate(&[record(contexts, PathData::ALTERNATE, 0)?], &[])?;
    expect(&connection.cm.channels[1], EventKind::AlternateRequest)?;
    connection.cm.ids[1].accept_alternate(&[])?;
    expect(&connection.cm.channels[0], EventKind::AlternateResponse)?;
    connection.until_both_are(MigState::Armed)?;
    connection.migrate()?;
    connection.send(contexts, 0, 13)?;
    Ok(Done { bytes: 3 * SIZE as u64, time })
}
