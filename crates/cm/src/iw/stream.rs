//! The seam to the driver, which has the TCP sockets.

use alloc::vec::Vec;
use core::net::SocketAddr;

use rdmux_transport::iwarp::StreamParams;
use rdmux_wire::Qpn;

use crate::sink::IdHandle;

/// The number of a TCP connection; unique in a [`Manager`](crate::Manager) and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// What the driver is to do with TCP. Wishes about one stream come in an order that must be kept, and the events
/// that a program gets must not overtake them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamWish {
    /// Nobody listens for this id any more: close its listening sockets.
    Unlisten(IdHandle),
    /// Open a connection, and tell with
    /// [`handle_stream_connected`](crate::Manager::handle_stream_connected) or
    /// [`handle_stream_ended`](crate::Manager::handle_stream_ended) how it went.
    Connect {
        /// Its number from now on.
        stream: StreamId,
        /// From this address; port 0 is any.
        local: SocketAddr,
        /// To this one.
        remote: SocketAddr,
        /// Type of service.
        tos: u8,
    },
    /// Send these bytes, behind those that wait.
    Send {
        /// On which.
        stream: StreamId,
        /// At most some hundred bytes.
        bytes: Vec<u8>,
    },
    /// Send what waits, and end the stream in order.
    Close {
        /// Which; it is forgotten.
        stream: StreamId,
    },
    /// Reset the stream.
    Reset {
        /// Which; it is forgotten.
        stream: StreamId,
    },
    /// Send what waits, then give the socket to the process that has the queue pair. If that is
    /// not possible, close it, and call
    /// [`handle_qp_stream_ended`](crate::Manager::handle_qp_stream_ended).
    HandOver {
        /// Which. It keeps its number, by which its end is told.
        stream: StreamId,
        /// The queue pair.
        qpn: Qpn,
        /// What was agreed on.
        params: StreamParams,
    },
    /// Have the process that has the queue pair end its stream, in order.
    CloseQp {
        /// The stream's number.
        stream: StreamId,
        /// The queue pair.
        qpn: Qpn,
    },
}
