//! The state of one connection.

use alloc::vec::Vec;
use core::net::SocketAddr;

use rdmux_transport::iwarp::{Rtr, StreamParams};
use rdmux_wire::Qpn;
use rdmux_wire::iwarp::fpdu::Framing;
use rdmux_wire::iwarp::mpa::Startup;

use super::Revision;
use super::negotiate::{Asked, Wishes};
use crate::sink::IdHandle;
use crate::timers::Deadline;

/// The state of a connection: the event that it awaits.
///
/// ```text
///   active    Connecting -- TCP is up --> AwaitReply -- it is good ------------------> Up
///                  ^                          | reset, closed
///                  +--- once, revision 1 -----+
///   passive   AwaitRequest -- it is good --> Queued -- room --> Requested -- accept --> AwaitRtr
///                                                                    |  not peer-to-peer     |
///                                                                    +--------> Up <---------+
///   both      Up -- the program disconnects --> Closing -- the stream ended --> (gone)
/// ```
///
/// Deadlines are set in Connecting, AwaitReply, AwaitRequest and AwaitRtr, and nowhere else.
#[derive(Debug)]
pub(crate) enum State {
    /// TCP to connect.
    Connecting(Active),
    /// The responder's frame.
    AwaitReply(Active),
    /// The initiator's frame.
    AwaitRequest,
    /// Room in the listener's backlog.
    Queued(Request),
    /// The program to accept or refuse.
    Requested(Asked),
    /// The initiator's first frame, with which these parameters take effect.
    AwaitRtr(StreamParams),
    /// The end of the stream, which the queue pair has.
    Up,
    /// The end of the stream, which this end has requested.
    Closing,
}

/// The initiator's request.
#[derive(Clone, Debug)]
pub(crate) struct Active {
    pub(crate) revision: Revision,
    pub(crate) wishes: Wishes,
    pub(crate) private_data: Vec<u8>,
    pub(crate) tos: u8,
}

/// A valid request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) asked: Asked,
    pub(crate) private_data: Vec<u8>,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Conn {
    /// The id that it belongs to; for a request the listener, until it has an id of its own.
    pub(crate) owner: IdHandle,
    /// The local address and the peer's.
    pub(crate) ends: (SocketAddr, SocketAddr),
    pub(crate) state: State,
    /// The program's queue pair, once known.
    pub(crate) qpn: Option<Qpn>,
    /// The bytes received of the awaited frame.
    pub(super) input: Vec<u8>,
    pub(super) deadline: Deadline,
}

impl Conn {
    pub(super) fn new(owner: IdHandle, ends: (SocketAddr, SocketAddr), state: State) -> Self {
        Self { owner, ends, state, qpn: None, input: Vec::new(), deadline: Deadline::default() }
    }

    /// Returns whether the queue pair has the stream, or is about to get it.
    pub(crate) const fn is_up(&self) -> bool {
        matches!(self.state, State::Up | State::Closing)
    }

    /// Returns how many bytes may be read from the stream: none beyond the awaited frame, because the bytes that
    /// follow are the queue pair's. For bytes that cannot be a frame it is one more, so that they are examined.
    pub(crate) fn wants(&self) -> usize {
        let need = match &self.state {
            State::AwaitReply(_) | State::AwaitRequest => Startup::need(&self.input).ok(),
            State::AwaitRtr(params) => Some(rx_framing(params).need(0, &self.input).min(MAX_RTR)),
            _ => return 0,
        };
        need.unwrap_or(0).saturating_sub(self.input.len()).max(1)
    }
}

/// The longest ready-to-receive frame: no marker except the leading one, a Read request and its CRC.
const MAX_RTR: usize = rdmux_wire::iwarp::rtr::Frame::MAX_LEN;

/// Returns the framing of received frames.
pub(super) const fn rx_framing(params: &StreamParams) -> Framing {
    Framing { crc: params.crc, markers: params.rx_markers }
}

/// Returns the framing of sent frames.
pub(super) const fn tx_framing(params: &StreamParams) -> Framing {
    Framing { crc: params.crc, markers: params.tx_markers }
}

/// An event of a connection, for the id that owns it.
#[derive(Debug)]
pub(crate) enum ConnEvent {
    /// A peer requests a connection to a listener.
    Request(Request),
    /// The connection is established. On the active side with the reply.
    Established { params: StreamParams, private_data: Vec<u8> },
    /// The peer refused, or reset the connection before it was established; -errno.
    Rejected { status: i32, private_data: Vec<u8> },
    /// The peer does not answer; -errno.
    Unreachable(i32),
    /// The connection could not be established; -errno.
    Failed(i32),
    /// The connection is over.
    Disconnected,
}

/// Returns whether a frame is the kind of ready-to-receive frame that `rtr` names.
pub(super) fn is_rtr(rtr: Rtr, frame: &rdmux_wire::iwarp::fpdu::Fpdu<'_>) -> bool {
    use rdmux_wire::iwarp::ddp::{Header, Model, queue};
    use rdmux_wire::iwarp::rdmap::{Opcode, ReadRequest};
    let Some(ulpdu) = frame.contiguous() else { return false };
    let Ok(header) = Header::parse(ulpdu) else { return false };
    let payload = ulpdu.get(header.len()..).unwrap_or_default();
    let first = |qn: u32| matches!(header.model, Model::Untagged(u) if u.qn == qn && u.msn == 1 && u.mo == 0 && u.last);
    match (rtr, header.opcode) {
        (Rtr::Write, Opcode::Write) => header.last() && payload.is_empty(),
        (Rtr::Send, Opcode::Send) => first(queue::SEND) && payload.is_empty(),
        (Rtr::Read, Opcode::ReadRequest) => {
            first(queue::READ_REQUEST)
                && ReadRequest::parse(payload).is_ok_and(|request| request.len == 0)
        }
        _ => false,
    }
}
