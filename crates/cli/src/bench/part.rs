//! The other side of the bench, a process of its own.

use std::fs::File;
use std::net::{SocketAddr, TcpListener, UdpSocket};

use anyhow::{Context as _, Result};
use rdmux::Context;
use rdmux_link::SharedMem;

use super::connections::Connector;
use super::plain;
use super::protocol::{Answer, Ask};
use super::rc::Rc;
use crate::child::{self, Reply};

/// Does what it is asked until nobody asks any more.
pub(super) fn run(context: &Context) -> Result<()> {
    let mut rc = None;
    child::serve(|ask, reply| answer(context, &mut rc, ask, reply))
}

fn answer(
    context: &Context,
    rc: &mut Option<Rc>,
    ask: Ask,
    reply: &mut Reply<Answer>,
) -> Result<Answer> {
    const NONE: &str = "there is no connection yet";
    match ask {
        Ask::TcpSink { at, size, count } => {
            let listener = tcp(at.into_addr(), reply)?;
            plain::tcp_sink(&listener, size, count)?;
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
        Ask::LineEcho { file, count } => {
            let memory = map(&file)?;
            let line = memory.words().first().context("the memory is too small")?;
            plain::line_echo(line, count)?;
        }
        Ask::RcAccept { at } => {
            *rc = None;
            *rc = Some(Rc::accept(context, at, |at| reply.send(Answer::Listening(at)))?);
        }
        Ask::RcEcho { count } => rc.as_ref().context(NONE)?.echo(count)?,
        Ask::RcWaitMessage => rc.as_ref().context(NONE)?.wait_message()?,
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
        Ask::RcWaitDisconnected => {
            rc.take().context(NONE)?.wait_disconnected()?;
        }
    }
    Ok(Answer::Done)
}

/// An address with any port.
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

/// Memory of the process that asks.
fn map(file: &str) -> Result<SharedMem> {
    let file = File::options().read(true).write(true).open(file);
    let file = file.context("cannot open the memory of the other side")?;
    Ok(SharedMem::map(file.into(), LINE_WORDS)?)
}

/// One would do; this is a page.
pub(super) const LINE_WORDS: usize = 512;
