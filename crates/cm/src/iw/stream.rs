//! The interface to the driver, which has the TCP sockets.

use alloc::vec::Vec;
use core::net::SocketAddr;

use rdmux_transport::iwarp::StreamParams;
use rdmux_wire::Qpn;

use crate::sink::IdHandle;

/// The number of a TCP connection; unique in a [`Manager`](crate::Manager) and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// A TCP operation for the driver. The driver must keep the order of the operations on one stream,
/// and must not deliver an event ahead of an earlier operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamWish {
    /// Close the listening sockets of this id, which no longer listens.
    Unlisten(IdHandle),
    /// Open a connection, and report the result by
    /// [`handle_stream_connected`](crate::Manager::handle_stream_connected) or
    /// [`handle_stream_ended`](crate::Manager::handle_stream_ended).
    Connect {
        /// The number of the new stream.
        stream: StreamId,
        /// The local address; port 0 is any.
        local: SocketAddr,
        /// The peer's address.
        remote: SocketAddr,
        /// Type of service.
        tos: u8,
    },
    /// Send these bytes after those that wait.
    Send {
        /// The stream.
        stream: StreamId,
        /// The bytes, at most some hundred.
        bytes: Vec<u8>,
    },
    /// Send the waiting bytes, and end the stream in order.
    Close {
        /// The stream, which is then forgotten.
        stream: StreamId,
    },
    /// Reset the stream.
    Reset {
        /// The stream, which is then forgotten.
        stream: StreamId,
    },
    /// Send the waiting bytes, then pass the socket to the process that has the queue pair. If that is
    /// not possible, close it, and call
    /// [`handle_qp_stream_ended`](crate::Manager::handle_qp_stream_ended).
    HandOver {
        /// The stream. It keeps its number, by which its end is reported.
        stream: StreamId,
        /// The queue pair.
        qpn: Qpn,
        /// The negotiated parameters.
        params: StreamParams,
    },
    /// Make the process that has the queue pair end its stream, in order.
    CloseQp {
        /// The stream's number.
        stream: StreamId,
        /// The queue pair.
        qpn: Qpn,
    },
}
