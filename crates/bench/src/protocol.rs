//! What the bench asks of its other side.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::shared::{Hello, Kind};

/// A request. Whatever listens answers [`Answer::Listening`] first and [`Answer::Done`] when it is
/// over.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Read messages from one TCP stream.
    TcpSink {
        /// Where to listen.
        at: IpAddr,
        /// Bytes of a message.
        size: usize,
        /// Messages.
        count: u32,
    },
    /// Send messages back through one TCP stream, polling.
    TcpEcho {
        /// Where to listen.
        at: IpAddr,
        /// Messages.
        count: u32,
    },
    /// Send datagrams back.
    UdpEcho {
        /// Where to listen.
        at: IpAddr,
        /// Datagrams.
        count: u32,
    },
    /// Send messages back through a Unix socket of packets, which is listened at here.
    UnixEcho {
        /// The socket's path.
        path: String,
        /// Messages.
        count: u32,
    },
    /// Answer through a cache line of shared memory.
    LineEcho {
        /// The memory, as a file.
        file: String,
        /// Turns.
        count: u64,
    },
    /// Answer through cache lines that another process passes on.
    LinesEcho {
        /// The memory, as a file.
        file: String,
        /// Turns.
        count: u64,
    },
    /// Be that other process.
    LinesRelay {
        /// The memory, as a file.
        file: String,
        /// Turns.
        count: u64,
    },
    /// Make one side of a connection with a shared receive queue; answered by [`Answer::Hello`].
    SharedMake(Kind),
    /// Connect it; answered by [`Answer::Number`].
    SharedConnect {
        /// The other side.
        peer: Hello,
        /// What that accepts at.
        number: u32,
    },
    /// Take messages on it.
    SharedSink {
        /// Messages.
        count: u32,
    },
    /// Send messages back on it, polling.
    SharedEcho {
        /// Messages.
        count: u32,
    },
    /// Destroy all such sides.
    SharedForget,
    /// Accept TCP connections.
    TcpAccept {
        /// Where to listen.
        at: IpAddr,
        /// Connections.
        count: u32,
    },
    /// Accept one RDMA connection and keep it.
    RcAccept {
        /// Where to listen.
        at: IpAddr,
    },
    /// Send messages back on that connection, polling.
    RcEcho {
        /// Messages.
        count: u32,
    },
    /// Wait until a message comes on that connection.
    RcWaitMessage,
    /// Wait until that connection is down.
    RcWaitDisconnected,
    /// Poll a completion queue that stays empty, in a process without sockets.
    PollInVain {
        /// Polls.
        count: u32,
    },
    /// Accept RDMA connections one after another, and let them go when the client does.
    CmAccept {
        /// Where to listen.
        at: IpAddr,
        /// Connections.
        count: u32,
    },
    /// Make RDMA connections, so many at a time, and keep them.
    CmConnect {
        /// Who listens.
        to: SocketAddr,
        /// Connections.
        count: usize,
        /// At a time.
        at_once: usize,
    },
    /// End them.
    CmDisconnect,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Now the asker may come.
    Listening(SocketAddr),
    /// It is over.
    Done,
    /// One side of a connection.
    Hello(Hello),
    /// What it accepts at.
    Number(u32),
    /// It is over, and took so many seconds.
    Took(f64),
}
