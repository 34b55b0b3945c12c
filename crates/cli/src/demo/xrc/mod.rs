//! The rows on XRC: the nine steps in which the proposal of 2007 describes the use of its receive queue pairs, called
//! targets here. Three processes receive, this one sends; one of the three is killed.

mod cast;
mod receiver;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rdmux::{SendWr, WcStatus};

pub(super) use self::cast::Cast;
pub(super) use self::receiver::run as receive;
use self::receiver::{Ask, DEPTH};
use super::rows::{Row, row};
use super::stage::{Done, Link, Stage};

/// The bytes of a message; each takes many packets over UDP.
const MESSAGE: usize = 32 << 10;

/// The rows: each performs the steps up to its own that were not performed yet.
pub(super) const ROWS: &[Row] = &[
    row("XRC 1: three processes open a domain", |s| play(s, 0)).staying(),
    row("XRC 2: each makes a shared receive queue", |s| play(s, 1)).staying(),
    row("XRC 3: the sender makes one queue pair", |s| play(s, 2)).staying(),
    row("XRC 4: R1 makes the target, to RTR", |s| play(s, 3)).staying(),
    row("XRC 5: R2 and R3 register by its number", |s| play(s, 4)).staying(),
    row("XRC 6: the sender connects to it", |s| play(s, 5)).staying(),
    row("XRC 7: SEND to R1 and R2, one connection", |s| play(s, 6)),
    row("XRC 7: R1 killed while R2 receives", |s| play(s, 7)),
    row("XRC 8: R3 unregisters, R2 goes on", |s| play(s, 8)),
    row("XRC 9: the last unregisters, sender learns", |s| play(s, 9)).staying(),
    row("XRC: nothing is left at the host", |s| play(s, 10)).staying(),
];

/// The steps.
const STEPS: [fn(&mut Stage) -> Result<Done>; 11] =
    [open, queues, sender, alloc, register, connect, send, kill, unregister, destroy, leave];

/// Performs the steps up to `last`.
fn play(s: &mut Stage, last: usize) -> Result<Done> {
    let mut done = Done { bytes: 0, time: Duration::ZERO };
    let next = s.xrc.as_ref().map_or(0, |cast| cast.played).min(last);
    for (n, step) in STEPS.iter().enumerate().take(last + 1).skip(next) {
        done = step(s)?;
        if let Some(cast) = &mut s.xrc {
            cast.played = n + 1;
        }
    }
    Ok(done)
}

fn took(start: Instant) -> Result<Done> {
    Ok(Done { bytes: 0, time: start.elapsed() })
}

fn open(s: &mut Stage) -> Result<Done> {
    let mut cast = Cast::start(s)?;
    let start = Instant::now();
    let ask = Ask::Open(cast.file.path.to_path_buf());
    cast.receivers.iter_mut().try_for_each(|r| r.ask(&ask))?;
    let done = took(start);
    let status = s.status()?;
    let domain = cast.domain(&status).context("the host lists no XRC domain of this file")?;
    let mut pids: Vec<_> = cast.receivers.iter().map(|r| r.pid).collect();
    let mut opened = domain.pids.clone();
    pids.sort_unstable();
    opened.sort_unstable();
    ensure!(pids == opened, "the domain is open in processes {opened:?}, not in {pids:?}");
    s.xrc = Some(cast);
    done
}

fn queues(s: &mut Stage) -> Result<Done> {
    let cast = s.cast()?;
    let start = Instant::now();
    for receiver in &mut cast.receivers {
        receiver.srqn = receiver.number(&Ask::MakeQueue)?;
    }
    let done = took(start);
    let numbers: std::collections::BTreeSet<_> = cast.receivers.iter().map(|r| r.srqn).collect();
    ensure!(numbers.len() == 3, "the receive queues' numbers are not distinct: {numbers:x?}");
    let status = s.status()?;
    let srqs = s.cast()?.domain(&status).map(|d| d.srqs);
    ensure!(srqs == Some(3), "the domain has {srqs:?} shared receive queues, not 3");
    done
}

fn sender(s: &mut Stage) -> Result<Done> {
    let context = s.context.clone();
    let start = Instant::now();
    s.cast()?.make_sender(&context)?;
    took(start)
}

fn alloc(s: &mut Stage) -> Result<Done> {
    let cast = s.cast()?;
    let ask = Ask::Alloc(cast.sender()?.qp.endpoint(0)?.to_bytes().to_vec());
    let start = Instant::now();
    cast.target = Some(cast.receivers[0].number(&ask)?);
    let done = took(start);
    let peer = cast.sender()?.qp.qpn().get();
    let status = s.status()?;
    let row = s.cast()?.target(&status).context("the host lists no such target")?;
    ensure!(row.qpn >> 23 == 1, "the top bit of QPN {:#08x} is not set", row.qpn);
    ensure!(row.state.eq_ignore_ascii_case("rtr"), "the target's state is {}", row.state);
    ensure!(row.dest_qpn == peer, "the target's peer is QPN {:#08x}", row.dest_qpn);
    s.held_by(&[0])?;
    done
}

fn register(s: &mut Stage) -> Result<Done> {
    let cast = s.cast()?;
    let target = cast.target.context("no target")?;
    let start = Instant::now();
    for receiver in &mut cast.receivers[1..] {
        receiver.ask(&Ask::Register(target))?;
    }
    let done = took(start);
    s.held_by(&[0, 1, 2])?;
    done
}

fn connect(s: &mut Stage) -> Result<Done> {
    let cast = s.cast()?;
    let start = Instant::now();
    cast.connect()?;
    let done = took(start);
    let same_host = s.cast()?.sender()?.qp.is_same_host();
    ensure!(
        same_host == (s.link == Link::SameHost),
        "the connection uses the wrong link: shared memory or not"
    );
    done
}

/// Sends one message to a receiver, which compares it. Returns the time from the post to the completion.
fn deliver(s: &mut Stage, to: usize) -> Result<Duration> {
    let data = s.data(MESSAGE);
    let cast = s.cast()?;
    cast.receivers[to].ask(&Ask::Post(1))?;
    cast.receivers[to].tell(&Ask::Receive(vec![data]))?;
    let start = Instant::now();
    cast.post(to, 0, data)?;
    cast.completed()?;
    let time = start.elapsed();
    cast.receivers[to].done()?;
    Ok(time)
}

fn send(s: &mut Stage) -> Result<Done> {
    let mut time = Duration::ZERO;
    for to in [0, 1, 0, 1] {
        time += deliver(s, to)?;
    }
    Ok(Done { bytes: 4 * MESSAGE as u64, time })
}

fn kill(s: &mut Stage) -> Result<Done> {
    let all: Vec<_> = (0..DEPTH).map(|_| s.data(MESSAGE)).collect();
    let cast = s.cast()?;
    // R1 has a receive posted, too, when it is killed.
    cast.receivers[0].ask(&Ask::Post(1))?;
    cast.receivers[1].ask(&Ask::Post(DEPTH))?;
    cast.receivers[1].tell(&Ask::Receive(all.clone()))?;
    let start = Instant::now();
    let half = all.len() / 2;
    for (n, data) in all.iter().enumerate() {
        cast.post(1, n, *data)?;
        if n == half {
            cast.receivers[0].kill()?;
        }
    }
    for _ in &all {
        cast.completed()?;
    }
    let time = start.elapsed();
    cast.receivers[1].done()?;
    s.held_by(&[1, 2])?;
    Ok(Done { bytes: (all.len() * MESSAGE) as u64, time })
}

fn unregister(s: &mut Stage) -> Result<Done> {
    let cast = s.cast()?;
    let target = cast.target.context("no target")?;
    cast.receivers[2].ask(&Ask::Unregister(target))?;
    s.held_by(&[1])?;
    let time = deliver(s, 1)?;
    Ok(Done { bytes: MESSAGE as u64, time })
}

fn destroy(s: &mut Stage) -> Result<Done> {
    let cast = s.cast()?;
    let target = cast.target.context("no target")?;
    let start = Instant::now();
    cast.receivers[1].ask(&Ask::Unregister(target))?;
    let status = s.status()?;
    ensure!(s.cast()?.target(&status).is_none(), "the host still lists the target");
    let cast = s.cast()?;
    let (qp, srqn) = (&cast.sender()?.qp, cast.receivers[1].srqn);
    qp.post_send(&SendWr::send(1).srq(srqn).inline(&[b"anybody?"]))?;
    let status = cast.ended()?;
    ensure!(status == WcStatus::RetryExcErr, "the sender's request completed with {status:?}");
    took(start)
}

fn leave(s: &mut Stage) -> Result<Done> {
    let cast = s.cast()?;
    let pids: Vec<_> = cast.receivers.iter().map(|r| r.pid).collect();
    let start = Instant::now();
    cast.receivers[1..].iter_mut().try_for_each(cast::Receiver::kill)?;
    s.until("the host still lists domains or targets", |cast, status| {
        let gone = status.clients.iter().all(|c| !pids.contains(&c.pid));
        gone && cast.domain(status).is_none() && cast.target(status).is_none()
    })?;
    s.xrc = None;
    took(start)
}
