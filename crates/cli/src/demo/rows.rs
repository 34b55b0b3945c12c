//! The rows of the demo, one function each.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rdmux::{Cause, Options, SendWr, Sge, WcStatus};

use super::protocol::{Answer, Ask, Data, Kind};
use super::side::{HALF, INLINE, SGES, Side, TIMEOUT, compare, pattern};
use super::stage::{Done, Link, Stage};
use super::xrc;

/// A row: its name and its function.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) run: fn(&mut Stage) -> Result<Done>,
    /// Whether packets of RoCE or InfiniBand are received.
    pub(super) crosses: bool,
}

pub(super) const fn row(name: &'static str, run: fn(&mut Stage) -> Result<Done>) -> Row {
    Row { name, run, crosses: true }
}

impl Row {
    /// Marks a row for which no packets of RoCE or InfiniBand are counted: it runs between processes and their host's service, or
    /// over TCP.
    pub(super) const fn staying(self) -> Self {
        Self { crosses: false, ..self }
    }
}

/// Returns all rows, in the order of the table.
pub(super) fn all() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().chain(xrc::ROWS).chain([&LAST])
}

/// Ends the connection that the other rows used.
const LAST: Row = row("disconnect, seen by both", disconnect);

const ROWS: &[Row] = &[
    row("connect, private data both ways", connect),
    row("RC SEND", |s| send(s, Kind::Rc, 4096)),
    row("RC SEND, no data", |s| send(s, Kind::Rc, 0)),
    row("RC SEND, inline", send_inline),
    row("RC SEND with immediate", send_imm),
    row("RC SEND with invalidate", send_invalidate),
    row("RC SEND gathered from 16 places", send_gather),
    row("RC SEND, receive posted late", send_late),
    row("RC SEND, 16 MiB", |s| send(s, Kind::Rc, 16 << 20)),
    row("RC WRITE", |s| write(s, Kind::Rc, 64 << 10)),
    row("RC WRITE with immediate", |s| write_imm(s, Kind::Rc)),
    row("RC WRITE, 16 MiB", |s| write(s, Kind::Rc, 16 << 20)),
    row("RC READ", |s| read(s, 64 << 10)),
    row("RC READ, 16 MiB", |s| read(s, 16 << 20)),
    row("RC FETCH AND ADD", fetch_add),
    row("RC COMPARE AND SWAP", cmp_swap),
    row("RC SEND to a shared receive queue", |s| send(s, Kind::RcSrq, 4096)),
    row("RC WRITE with a wrong key, refused", wrong_key),
    row("UC SEND", |s| send(s, Kind::Uc, 4096)),
    row("UC WRITE", |s| write(s, Kind::Uc, 64 << 10)),
    row("UC WRITE with immediate", |s| write_imm(s, Kind::Uc)),
    row("UD SEND, echoed", datagram),
    row("UD SEND to a multicast group", |s| multicast(s, false)),
    row("UD SEND to a multicast group by its address", |s| multicast(s, true)),
    row("connect, refused by the program", refused),
    row("connect, nobody listening", nobody),
];

pub(super) fn connect(s: &mut Stage) -> Result<Done> {
    const WORDS: &[u8] = b"what is said here comes back";
    s.hang_up()?;
    let start = Instant::now();
    let said = s.connect_with(Kind::Rc, WORDS)?;
    let time = start.elapsed();
    ensure!(said.starts_with(WORDS), "the private data were not returned");
    Ok(Done { bytes: 2 * WORDS.len() as u64, time })
}

/// Sends the contents of this side's memory, which the other side compares. Returns its answer.
pub(super) fn exchange(s: &mut Stage, data: Data, wr: SendWr<'_>) -> Result<(Answer, Duration)> {
    s.ask(&Ask::PostReceive)?;
    let time = s.connection()?.side.run(wr)?;
    Ok((s.other.ask(&Ask::Receive(data))?, time))
}

/// Connects and fills the local memory. Returns the data, and the part of the memory that holds it.
pub(super) fn filled(s: &mut Stage, kind: Kind, len: usize) -> Result<(Data, [Sge; 1])> {
    s.connect(kind)?;
    let data = s.data(len);
    let side = &s.connection()?.side;
    side.fill(data);
    Ok((data, [side.memory.slice(..len)]))
}

/// Returns the result of a row that transferred data.
pub(super) fn moved(data: Data, time: Duration) -> Result<Done> {
    Ok(Done { bytes: data.len as u64, time })
}

pub(super) fn send(s: &mut Stage, kind: Kind, len: usize) -> Result<Done> {
    let (data, piece) = filled(s, kind, len)?;
    let (_, time) = exchange(s, data, SendWr::send(1).sges(&piece))?;
    moved(data, time)
}

fn send_inline(s: &mut Stage) -> Result<Done> {
    s.connect(Kind::Rc)?;
    let data = s.data(INLINE as usize);
    let bytes = pattern(data);
    let (_, time) = exchange(s, data, SendWr::send(1).inline(&[&bytes[..100], &bytes[100..]]))?;
    moved(data, time)
}

fn send_imm(s: &mut Stage) -> Result<Done> {
    let (data, piece) = filled(s, Kind::Rc, 4096)?;
    let (answer, time) = exchange(s, data, SendWr::send(1).sges(&piece).imm(*b"imm!"))?;
    expect_imm(&answer)?;
    moved(data, time)
}

fn expect_imm(answer: &Answer) -> Result<()> {
    let Answer::Message { imm: Some(imm), .. } = answer else {
        bail!("the completion has no immediate data");
    };
    compare("the immediate data", imm, b"imm!")
}

fn send_invalidate(s: &mut Stage) -> Result<Done> {
    let (data, piece) = filled(s, Kind::Rc, 4096)?;
    let victim = s.memory(Some(&Ask::Disposable))?;
    let wr = SendWr::send_invalidate(1, victim.rkey).sges(&piece);
    let (answer, time) = exchange(s, data, wr)?;
    match answer {
        Answer::Message { invalidated: Some(key), .. } if key == victim.rkey.0 => {}
        other => bail!("the key was not invalidated: {other:?}"),
    }
    // The key is no longer valid.
    let status = s.connection()?.side.run_failing(SendWr::write(2, victim).sges(&piece))?;
    s.abandon();
    ensure!(
        status == WcStatus::RemAccessErr,
        "a WRITE with the invalidated key completed with {status:?}"
    );
    moved(data, time)
}

fn send_gather(s: &mut Stage) -> Result<Done> {
    s.connect(Kind::Rc)?;
    let places = SGES as usize;
    let data = s.data(places * 1000);
    let side = &s.connection()?.side;
    // The pieces are separate, and in reverse order.
    let at = |i: usize| (places - 1 - i) * 5000 + 3;
    for (i, piece) in pattern(data).chunks(1000).enumerate() {
        side.memory.write(at(i), piece);
    }
    let list: Vec<_> = (0..places).map(|i| side.memory.slice(at(i)..at(i) + 1000)).collect();
    let (_, time) = exchange(s, data, SendWr::send(1).sges(&list))?;
    moved(data, time)
}

fn send_late(s: &mut Stage) -> Result<Done> {
    let (data, piece) = filled(s, Kind::Rc, 4096)?;
    let start = Instant::now();
    s.connection()?.side.qp.post_send(&SendWr::send(1).sges(&piece))?;
    s.ask(&Ask::PostReceive)?;
    s.other.tell(&Ask::Receive(data))?;
    s.connection()?.side.qp.send_cq().wait_one(Some(TIMEOUT))?;
    let time = start.elapsed();
    let _: Answer = s.other.hear()?;
    moved(data, time)
}

pub(super) fn write(s: &mut Stage, kind: Kind, len: usize) -> Result<Done> {
    let (data, piece) = filled(s, kind, len)?;
    let c = s.connection()?;
    let time = c.side.run(SendWr::write(1, c.remote).sges(&piece))?;
    s.ask(&Ask::Compare(data))?;
    moved(data, time)
}

pub(super) fn write_imm(s: &mut Stage, kind: Kind) -> Result<Done> {
    let (data, piece) = filled(s, kind, 64 << 10)?;
    let remote = s.connection()?.remote;
    let wr = SendWr::write(1, remote).sges(&piece).imm(*b"imm!");
    let (answer, time) = exchange(s, data, wr)?;
    expect_imm(&answer)?;
    s.ask(&Ask::Compare(data))?;
    moved(data, time)
}

pub(super) fn read(s: &mut Stage, len: usize) -> Result<Done> {
    s.connect(Kind::Rc)?;
    let data = s.data(len);
    s.ask(&Ask::Fill(data))?;
    let c = s.connection()?;
    let into = [c.side.memory.slice(HALF..HALF + len)];
    let time = c.side.run(SendWr::read(1, c.remote).sges(&into))?;
    compare("what was read", &c.side.memory.to_vec(HALF..HALF + len), &pattern(data))?;
    moved(data, time)
}

/// Runs an atomic on a word that the other side sets before and reads after.
fn atomic(s: &mut Stage, before: u64, after: u64, wr: SendWr<'static>) -> Result<Done> {
    s.connect(Kind::Rc)?;
    s.ask(&Ask::Store(before))?;
    let side = &s.connection()?.side;
    let into = [side.memory.slice(HALF..HALF + 8)];
    let time = side.run(wr.sges(&into))?;
    let was = side.memory.load(HALF);
    ensure!(was == before, "the atomic returned {was:#x}, not {before:#x}");
    let Answer::Word(is) = s.other.ask(&Ask::Load)? else {
        bail!("the peer did not answer with the word in memory")
    };
    ensure!(is == after, "the word is {is:#x} afterwards, not {after:#x}");
    Ok(Done { bytes: 8, time })
}

pub(super) fn fetch_add(s: &mut Stage) -> Result<Done> {
    const BEFORE: u64 = u64::MAX - 1;
    s.connect(Kind::Rc)?;
    let remote = s.connection()?.remote;
    atomic(s, BEFORE, BEFORE.wrapping_add(5), SendWr::fetch_add(1, remote, 5))
}

pub(super) fn cmp_swap(s: &mut Stage) -> Result<Done> {
    s.connect(Kind::Rc)?;
    let remote = s.connection()?.remote;
    atomic(s, 0xaa, 0x55, SendWr::cmp_swap(1, remote, 0xaa, 0x55))?;
    atomic(s, 0xaa, 0xaa, SendWr::cmp_swap(1, remote, 0xab, 0x55))
}

fn wrong_key(s: &mut Stage) -> Result<Done> {
    let (_, piece) = filled(s, Kind::Rc, 64)?;
    let c = s.connection()?;
    let mut wrong = c.remote;
    wrong.rkey.0 ^= 1;
    let start = Instant::now();
    let status = c.side.run_failing(SendWr::write(1, wrong).sges(&piece))?;
    let time = start.elapsed();
    s.abandon();
    ensure!(status == WcStatus::RemAccessErr, "a WRITE with a wrong key completed with {status:?}");
    Ok(Done { bytes: 0, time })
}

fn datagram(s: &mut Stage) -> Result<Done> {
    let at = s.addr;
    let to = s.listening(&Ask::Datagrams { at })?;
    s.done()?;
    let options = Options::new().context(&s.context).timeout(TIMEOUT);
    let mut ours = options.datagram((s.own_addr, 0).into())?;
    let peer = ours.resolve(to)?;
    let data = s.data(1000);
    s.other.tell(&Ask::ReturnDatagram(data))?;
    let start = Instant::now();
    ours.send_to(&peer, &pattern(data))?;
    let (back, _) = ours.recv_timeout(TIMEOUT).context("the datagram was not returned")?;
    let time = start.elapsed();
    compare("the returned datagram", &back, &pattern(data))?;
    s.done()?;
    moved(data, time)
}

fn multicast(s: &mut Stage, by_address: bool) -> Result<Done> {
    // One group per link and row, so that hosts do not receive each other's rows.
    let last = if s.link == Link::Udp { 1 } else { 2 } + if by_address { 10 } else { 0 };
    let group = IpAddr::V4(Ipv4Addr::new(239, 77, 91, last));
    let at = s.addr;
    s.listening(&Ask::Datagrams { at })?;
    s.done()?;
    s.ask(&Ask::Join(group))?;
    let options = Options::new().context(&s.context).timeout(TIMEOUT);
    let mut ours = options.datagram((s.own_addr, 0).into())?;
    let members = ours.join(group)?;
    let data = s.data(1000);
    s.other.tell(&Ask::ReturnDatagram(data))?;
    let start = Instant::now();
    match by_address {
        true => ours.send_to_group(group, &pattern(data))?,
        false => ours.send_to(&members, &pattern(data))?,
    }
    // This side is a member, too: the first datagram may be its own.
    let answer = loop {
        let (message, from) = ours.recv_timeout(TIMEOUT).context("no datagram was returned")?;
        if from.ah.ip() != s.own_addr || s.link == Link::SameHost {
            break message;
        }
    };
    let time = start.elapsed();
    compare("the returned datagram", &answer, &pattern(data))?;
    s.done()?;
    ours.leave(group)?;
    moved(data, time)
}

/// Checks that a refused connection attempt gets the private data of the refusal.
pub(super) fn refused(s: &mut Stage) -> Result<Done> {
    const WORDS: &str = "no, thank you";
    let ask = Ask::Reject { at: s.addr, words: WORDS.to_owned() };
    let to = s.listening(&ask)?;
    let start = Instant::now();
    let Err(error) = Side::connect(&s.context, to, Kind::Rc, &[]) else {
        bail!("the connection was accepted; it should have been refused");
    };
    let time = start.elapsed();
    s.done()?;
    // "Consumer defined", of the IB CM; iWARP has no reasons.
    let expected = if s.link.device().has_streams() { 0 } else { 28 };
    match cause(&error) {
        Some(Cause::Rejected { reason, private_data, .. })
            if *reason == expected && private_data.starts_with(WORDS.as_bytes()) =>
        {
            Ok(Done { bytes: WORDS.len() as u64, time })
        }
        _ => Err(error.context("the connection was not refused as expected")),
    }
}

fn nobody(s: &mut Stage) -> Result<Done> {
    let start = Instant::now();
    // Port 1 has no listener: only root may bind it, and the demo does not.
    let Err(error) = Side::connect(&s.context, (s.addr, 1).into(), Kind::Rc, &[]) else {
        bail!("the connection was accepted although nothing listens");
    };
    match cause(&error) {
        Some(Cause::Rejected { reason: 8, .. }) => Ok(Done { bytes: 0, time: start.elapsed() }),
        _ => Err(error.context("the connection was not rejected as expected")),
    }
}

fn cause(error: &anyhow::Error) -> Option<&Cause> {
    error.downcast_ref::<rdmux::Error>().map(rdmux::Error::cause)
}

pub(super) fn disconnect(s: &mut Stage) -> Result<Done> {
    s.connect(Kind::Rc)?;
    let start = Instant::now();
    s.hang_up()?;
    Ok(Done { bytes: 0, time: start.elapsed() })
}
