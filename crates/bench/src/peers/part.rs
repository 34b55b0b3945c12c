//! The other side of the references: a process that does not use rdmux.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::super::plain;
use super::acm;
use super::copy::{Buffer, Line};
use rdmux_command::child;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Allocate this many bytes of memory; answered by [`Answer::Memory`].
    Memory(usize),
    /// Allocate a cache line; answered by [`Answer::Memory`].
    Line,
    /// Answer each turn written into that line by writing into a line of another process.
    LineEcho {
        /// The process that has the other line.
        pid: i32,
        /// The address of its line.
        va: u64,
        /// The number of turns.
        count: u64,
    },
    /// Echo datagrams.
    UdpEcho {
        /// The address to listen at.
        at: IpAddr,
        /// The number of datagrams.
        count: u32,
    },
    /// Connect to a Unix socket, and answer messages of one length by messages of another.
    UnixEcho {
        /// The socket to connect to.
        path: PathBuf,
        /// The size of received messages in bytes.
        request: usize,
        /// The size of sent messages in bytes.
        reply: usize,
        /// The number of messages.
        count: u32,
    },
    /// Accept TCP connections and close them.
    TcpClose {
        /// The address to listen at.
        at: IpAddr,
        /// The number of connections.
        count: u32,
    },
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Memory at this address.
    Memory(u64),
    /// The requester may connect now.
    Listening(SocketAddr),
    /// The request is done.
    Done,
}

/// Serves requests until its input closes.
pub(super) fn run() -> Result<()> {
    let line = Line(AtomicU64::new(0));
    let mut memory = Buffer::new(0);
    child::serve(|ask, reply| {
        match ask {
            Ask::Memory(len) => {
                memory = Buffer::new(len);
                return Ok(Answer::Memory(memory.address()));
            }
            Ask::Line => return Ok(Answer::Memory(line.address())),
            Ask::LineEcho { pid, va, count } => line.echo(pid, va, count)?,
            Ask::UdpEcho { at, count } => {
                let socket = UdpSocket::bind(SocketAddr::new(at, 0))?;
                reply.send(Answer::Listening(socket.local_addr()?))?;
                plain::udp_echo(&socket, count)?;
            }
            Ask::UnixEcho { path, request, reply, count } => {
                acm::echo(&path, request, reply, count)?;
            }
            Ask::TcpClose { at, count } => {
                let listener = TcpListener::bind(SocketAddr::new(at, 0))?;
                reply.send(Answer::Listening(listener.local_addr()?))?;
                plain::tcp_close(&listener, count)?;
            }
        }
        Ok(Answer::Done)
    })
}
