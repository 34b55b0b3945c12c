//! Helpers for commands that use the connection manager directly: addresses, and waiting for events.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rdmux::cm::{Event, EventChannel, EventKind, Id};
use rdmux::{Completion, Cq, EMPTY, WcStatus, ok};
use rdmux_host::{Registry, RuntimeDir};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The timeout of address and route resolution, as in rping and similar programs.
pub const RESOLVE: Duration = Duration::from_secs(2);

/// Returns the socket address of a name, of a virtual host or any other, or of an address.
pub fn address(name: &str, port: u16) -> Result<SocketAddr> {
    let virtual_host =
        RuntimeDir::of_environment().ok().and_then(|dir| Registry::look_up(&dir, name));
    if let Some(address) = virtual_host {
        return Ok(SocketAddr::new(address, port));
    }
    let mut all = (name, port)
        .to_socket_addrs()
        .with_context(|| format!("cannot find the address of {name:?}"))?;
    all.next().with_context(|| format!("{name:?} has no address"))
}

/// Returns the address to which a server binds: the given one, or the IPv4 wildcard.
pub fn local(name: Option<&str>, port: u16) -> Result<SocketAddr> {
    match name {
        Some(name) => address(name, port),
        None => Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)),
    }
}

/// Waits for an event of this kind. Any other event is an error.
pub fn expect(
    channel: &EventChannel,
    kind: EventKind,
    asked: &'static str,
    timeout: Duration,
) -> Result<Event> {
    match channel.next(Some(timeout))? {
        Some(event) => Ok(event.expect(kind, asked)?),
        None => bail!("cannot {asked}: no answer within {} s", timeout.as_secs_f64()),
    }
}

/// Resolves address and route.
pub fn resolve(
    channel: &EventChannel,
    id: &Id,
    src: Option<SocketAddr>,
    dst: SocketAddr,
) -> Result<()> {
    id.resolve_addr(src.map(Into::into), dst, RESOLVE)?;
    expect(channel, EventKind::AddrResolved, "resolve the address", RESOLVE * 2)?;
    id.resolve_route(RESOLVE)?;
    expect(channel, EventKind::RouteResolved, "resolve the route", RESOLVE * 2)?;
    Ok(())
}

/// A completion or an event, whichever is first.
pub enum Notification {
    /// A successful completion.
    Completion(Completion),
    /// An event.
    Event(Event),
}

/// Waits for a completion or an event. If both are available, returns the completion. Flushed work requests are skipped: the event that
/// the connection has ended may arrive after their completions, as on iWARP. If it does not arrive, the flush is the error. A timeout that
/// the clock cannot hold means none.
pub fn wait(cq: &Cq, channel: &EventChannel, timeout: Duration) -> Result<Notification> {
    let deadline = Instant::now().checked_add(timeout);
    let mut flushed = None;
    loop {
        let mut one = [EMPTY];
        if cq.poll_or_arm(&mut one)? == 1 {
            let [done] = one;
            if done.status != WcStatus::WrFlushErr {
                return Ok(Notification::Completion(ok(done)?));
            }
            flushed = Some(done);
            continue;
        }
        if let Some(event) = channel.try_next()? {
            return Ok(Notification::Event(event));
        }
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            if let Some(flushed) = flushed {
                ok(flushed)?;
            }
            bail!("the peer was silent for {} s", timeout.as_secs_f64());
        }
        let left = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let (a, b) = (cq.as_fd(), channel.as_fd());
        let mut fds = [PollFd::new(&a, PollFlags::IN), PollFd::new(&b, PollFlags::IN)];
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e).context("cannot wait for completions and events"),
        }
    }
}
