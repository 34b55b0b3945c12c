//! The other side of the bench, a separate process.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, UdpSocket};

use anyhow::{Context as _, Result, bail};
use rdmux::Context;
use rdmux_link::SharedMem;

use super::connections::Connector;
use super::plain::{self, Relay};
use super::protocol::{Answer, Ask};
use super::rc::Rc;
use super::shared::Others;
use rdmux_command::child::{self, Reply};

/// Serves requests until its input closes.
pub(super) fn run(context: &Context) -> Result<()> {
    let (mut rc, mut shared, mut kept) = (None, Others::default(), None);
    child::serve(|ask, reply| match ask {
        Ask::CmConnect { to, count, at_once } => {
            let connector = Connector::new(context)?;
            let (nodes, _) = connector.connect(to, count, at_once)?;
            kept = Some((connector, nodes));
            Ok(Answer::Done)
        }
        Ask::CmDisconnect => {
            let (connector, nodes) =
                kept.take().context("there are no connections to disconnect")?;
            connector.disconnect(nodes)?;
            Ok(Answer::Done)
        }
        ask => answer(context, &mut rc, &mut shared, ask, reply),
    })
}

fn answer(
    context: &Context,
    rc: &mut Option<Rc>,
    shared: &mut Others,
    ask: Ask,
    reply: &mut Reply<Answer>,
) -> Result<Answer> {
    const NONE: &str = "there is no connection yet";
    const TOO_SMALL: &str = "the shared memory is too small";
    match ask {
        Ask::TcpSink { at, size, count } => {
            let listener = tcp(at.into_addr(), reply)?;
            plain::tcp_sink(&listener, size, count)?;
        }
        Ask::TcpEcho { at, count } => {
            let listener = tcp(at.into_addr(), reply)?;
            plain::tcp_echo(&listener, count)?;
        }
        Ask::TcpAccept { at, count } => {
            let listener = tcp(at.into_addr(), reply)?;
            plain::tcp_accept(&listener, count)?;
        }
        Ask::UdpEcho { at, count } => {
            let socket = UdpSocket::bind(at.into_addr())?;
            reply.send(Answer::Listening(socket.local_addr()?))?;
            plain::udp_echo(&socket, count)?;
        }
        Ask::UnixEcho { path, count } => super::mad::echo(&path, count)?,
        Ask::LineEcho { file, count } => {
            let memory = map(&file)?;
            let line = memory.words().first().context(TOO_SMALL)?;
            plain::line_echo(line, count)?;
        }
        Ask::LinesEcho { file, count } => {
            let memory = map(&file)?;
            plain::relay_echo(&Relay::new(&memory).context(TOO_SMALL)?, count)?;
        }
        Ask::LinesRelay { file, count } => {
            let memory = map(&file)?;
            plain::relay(&Relay::new(&memory).context(TOO_SMALL)?, count)?;
        }
        Ask::SharedMake(kind) => return Ok(Answer::Hello(shared.make(context, kind)?)),
        Ask::SharedConnect { peer, number } => {
            return Ok(Answer::Number(shared.connect(&peer, number)?));
        }
        Ask::SharedSink { count } => shared.last()?.end.sink(count)?,
        Ask::SharedEcho { count } => shared.last()?.end.echo(count)?,
        Ask::SharedForget => shared.forget(),
        Ask::RcAccept { at } => {
            *rc = None;
            *rc = Some(Rc::accept(context, at, |at| reply.send(Answer::Listening(at)))?);
        }
        Ask::RcEcho { count } => rc.as_ref().context(NONE)?.end.echo(count)?,
        Ask::RcWaitMessage => rc.as_ref().context(NONE)?.end.wait_message()?,
        Ask::PollInVain { count } => {
            let cq = context.cq(16)?;
            let start = std::time::Instant::now();
            for _ in 0..count {
                cq.poll(&mut [rdmux::EMPTY]);
            }
            return Ok(Answer::Took(start.elapsed().as_secs_f64()));
        }
        Ask::CmAccept { at, count } => {
            let connector = Connector::new(context)?;
            connector.accept(at, count, |at| reply.send(Answer::Listening(at)))?;
        }
        Ask::CmConnect { .. } | Ask::CmDisconnect => {
            bail!("this process does not keep these connections")
        }
        Ask::RcWaitDisconnected => {
            rc.take().context(NONE)?.wait_disconnected()?;
        }
    }
    Ok(Answer::Done)
}

/// Converts an address to one with any port.
trait IntoAddr {
    fn into_addr(self) -> SocketAddr;
}

impl IntoAddr for std::net::IpAddr {
    fn into_addr(self) -> SocketAddr {
        SocketAddr::new(self, 0)
    }
}

fn tcp(at: SocketAddr, reply: &mut Reply<Answer>) -> Result<TcpListener> {
    let listener = TcpListener::bind(at)?;
    reply.send(Answer::Listening(listener.local_addr()?))?;
    Ok(listener)
}

/// Maps memory of the requesting process.
fn map(file: &str) -> Result<SharedMem> {
    let file = File::options().read(true).write(true).open(file);
    let file = file.context("cannot open the other process's memory")?;
    Ok(SharedMem::map(file.into(), LINE_WORDS)?)
}

/// The words of shared memory for a cache line. One would be enough; this is a page.
pub(super) const LINE_WORDS: usize = 512;
