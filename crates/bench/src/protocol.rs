//! The requests of the bench to its other side.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::shared::{Hello, Kind};

/// A request. A request that listens is answered by [`Answer::Listening`] first, and by [`Answer::Done`] when it is
/// done.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Read messages from one TCP stream.
    TcpSink {
        /// The address to listen at.
        at: IpAddr,
        /// The size of a message in bytes.
        size: usize,
        /// The number of messages.
        count: u32,
    },
    /// Echo messages through one TCP stream, busy-polling.
    TcpEcho {
        /// The address to listen at.
        at: IpAddr,
        /// The number of messages.
        count: u32,
    },
    /// Echo datagrams.
    UdpEcho {
        /// The address to listen at.
        at: IpAddr,
        /// The number of datagrams.
        count: u32,
    },
    /// Echo messages through a Unix socket of packets, on which this side listens.
    UnixEcho {
        /// The socket's path.
        path: String,
        /// The number of messages.
        count: u32,
    },
    /// Answer through a cache line of shared memory.
    LineEcho {
        /// The memory, as a file.
        file: String,
        /// The number of turns.
        count: u64,
    },
    /// Answer through cache lines that a third process relays.
    LinesEcho {
        /// The memory, as a file.
        file: String,
        /// The number of turns.
        count: u64,
    },
    /// Be that third process.
    LinesRelay {
        /// The memory, as a file.
        file: String,
        /// The number of turns.
        count: u64,
    },
    /// Create one side of a connection with a shared receive queue; answered by [`Answer::Hello`].
    SharedMake(Kind),
    /// Connect that side; answered by [`Answer::Number`].
    SharedConnect {
        /// The other side.
        peer: Hello,
        /// The number at which that side accepts.
        number: u32,
    },
    /// Receive messages on it.
    SharedSink {
        /// The number of messages.
        count: u32,
    },
    /// Echo messages on it, busy-polling.
    SharedEcho {
        /// The number of messages.
        count: u32,
    },
    /// Destroy all such sides.
    SharedForget,
    /// Accept TCP connections.
    TcpAccept {
        /// The address to listen at.
        at: IpAddr,
        /// The number of connections.
        count: u32,
    },
    /// Accept one RDMA connection and keep it.
    RcAccept {
        /// The address to listen at.
        at: IpAddr,
    },
    /// Echo messages on that connection, busy-polling.
    RcEcho {
        /// The number of messages.
        count: u32,
    },
    /// Wait until a message arrives on that connection.
    RcWaitMessage,
    /// Wait until that connection is down.
    RcWaitDisconnected,
    /// Poll a completion queue that stays empty, in a process without sockets.
    PollInVain {
        /// The number of polls.
        count: u32,
    },
    /// Accept RDMA connections one after another, and release them when the client does.
    CmAccept {
        /// The address to listen at.
        at: IpAddr,
        /// The number of connections.
        count: u32,
    },
    /// Establish RDMA connections, this many at a time, and keep them.
    CmConnect {
        /// The listener's address.
        to: SocketAddr,
        /// The number of connections.
        count: usize,
        /// The number of concurrent connects.
        at_once: usize,
    },
    /// Disconnect them.
    CmDisconnect,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The requester may connect now.
    Listening(SocketAddr),
    /// The request is done.
    Done,
    /// One side of a connection.
    Hello(Hello),
    /// The number at which the side accepts.
    Number(u32),
    /// The request is done, and took this many seconds.
    Took(f64),
}
