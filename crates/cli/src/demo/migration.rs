//! A connection that the connection manager has made with an alternate path, to other LIDs of the same ports: it migrates there, gets
//! the first path again by LAP and APR, and migrates back.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use rdmux::cm::{
    CmOption, ConnParam, EventChannel, EventKind, IbAddr, Id, IdOption, PathData, PathRecord,
    PortSpace, ServiceId,
};
use rdmux::{Context, Gid, Lid, MigState, Mtu, Pkey, QpType, SendWr};
use rdmux_command::cmutil;

use super::fabric::until;
use super::infiniband::{End, Ground, SIZE, compare};
use super::protocol::Data;
use super::side::{TIMEOUT, pattern};
use super::stage::Done;

const SERVICE: ServiceId = ServiceId(0x1000_0000_0000_de30);

/// Where the path of a number begins and ends, at a host.
fn place(context: &Context, number: u16) -> Result<(Gid, Lid)> {
    Ok((context.gid(0)?, Lid(context.query_port()?.lid.0 + number)))
}

/// The record of the path of a number, for the primary or the alternate path.
fn record([a, b]: &[Context; 2], role: u32, number: u16) -> Result<PathData> {
    let (from, to) = (place(a, number)?, place(b, number)?);
    let record = PathRecord {
        sgid: from.0,
        dgid: to.0,
        slid: from.1,
        dlid: to.1,
        pkey: Pkey::DEFAULT,
        mtu: Mtu::M1024.code(),
        packet_life_time: 8,
        ..PathRecord::default()
    };
    Ok(PathData { flags: role | PathData::BIDIRECTIONAL, record })
}

/// Two ends, and how they were connected.
struct Connection {
    ends: [End; 2],
    ids: [Id; 2],
    channels: [EventChannel; 2],
}

impl Connection {
    fn new(contexts: &[Context; 2]) -> Result<Self> {
        let [a, b] = contexts;
        let channels = [EventChannel::new(a)?, EventChannel::new(b)?];
        let listener = Id::with_type(&channels[1], PortSpace::Ib, QpType::Rc)?;
        listener.bind(IbAddr::new(Gid::ZERO, SERVICE))?;
        listener.set_option(IdOption::Cm(CmOption::Messages(true)))?;
        listener.listen(1)?;
        let active = Id::with_type(&channels[0], PortSpace::Ib, QpType::Rc)?;
        let records =
            [record(contexts, PathData::PRIMARY, 0)?, record(contexts, PathData::ALTERNATE, 1)?];
        active.resolve_along(None, IbAddr::new(b.gid(0)?, SERVICE), &records)?;
        expect(&channels[0], EventKind::RouteResolved)?;
        let ends = [End::new(a, QpType::Rc)?, End::new(b, QpType::Rc)?];
        let param = ConnParam { retry_count: 7, rnr_retry_count: 7, ..ConnParam::default() };
        active.attach_qp(&ends[0].qp)?;
        active.connect(&param)?;
        let mut request =
            cmutil::expect(&channels[1], EventKind::ConnectRequest, "go on", TIMEOUT)?;
        let passive = request.take_id().context("a request without an id")?;
        passive.attach_qp(&ends[1].qp)?;
        passive.accept(&param)?;
        expect(&channels[0], EventKind::Established)?;
        expect(&channels[1], EventKind::Established)?;
        Ok(Self { ends, ids: [active, passive], channels })
    }

    fn until_both_are(&self, state: MigState) -> Result<()> {
        until("both ends of a connection", || {
            Ok(self.ends.iter().all(|end| end.qp.migration() == state))
        })
    }

    /// A message, which is compared. The path that it goes by is that of a number.
    fn send(&self, contexts: &[Context; 2], number: u16, seed: u32) -> Result<()> {
        let [a, b] = &self.ends;
        let to = place(&contexts[1], number)?.1;
        ensure!(a.qp.attr().av.dlid == to.0, "it goes to LID {}, not {to}", a.qp.attr().av.dlid);
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
        self.ids.iter().try_for_each(|id| Ok(id.notify_migrated()?))
    }
}

fn expect(channel: &EventChannel, kind: EventKind) -> Result<()> {
    cmutil::expect(channel, kind, "go on", TIMEOUT).map(drop)
}

/// There and back, with messages before, between and after.
pub(super) fn there_and_back(ground: &Ground) -> Result<Done> {
    let contexts = ground.contexts();
    let connection = Connection::new(contexts)?;
    connection.until_both_are(MigState::Armed)?;
    connection.send(contexts, 0, 11)?;
    let start = Instant::now();
    connection.migrate()?;
    let time = start.elapsed();
    connection.send(contexts, 1, 12)?;
    connection.ids[0].load_alternate(&[record(contexts, PathData::ALTERNATE, 0)?], &[])?;
    expect(&connection.channels[1], EventKind::AlternateRequest)?;
    connection.ids[1].accept_alternate(&[])?;
    expect(&connection.channels[0], EventKind::AlternateResponse)?;
    connection.until_both_are(MigState::Armed)?;
    connection.migrate()?;
    connection.send(contexts, 0, 13)?;
    Ok(Done { bytes: 3 * SIZE as u64, time })
}
