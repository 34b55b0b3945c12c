//! One connection: what is kept of it.

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

/// What a connection waits for.
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
    /// For TCP to connect.
    Connecting(Active),
    /// For the responder's frame.
    AwaitReply(Active),
    /// For the initiator's frame.
    AwaitRequest,
    /// For room in the listener's backlog.
    Queued(Request),
    /// For the program to accept or refuse.
    Requested(Asked),
    /// For the initiator's first frame, with which this becomes true.
    AwaitRtr(StreamParams),
    /// For its end: the stream is the queue pair's.
    Up,
    /// For its end, which was asked for.
    Closing,
}

/// What the initiator sends, or sent.
#[derive(Clone, Debug)]
pub(crate) struct Active {
    pub(crate) revision: Revision,
    pub(crate) wishes: Wishes,
    pub(crate) private_data: Vec<u8>,
    pub(crate) tos: u8,
}

/// A request that is good.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) asked: Asked,
    pub(crate) private_data: Vec<u8>,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Conn {
    /// The id that it belongs to: of a request the listener, until it has one of its own.
    pub(crate) owner: IdHandle,
    /// Our address and the peer's.
    pub(crate) ends: (SocketAddr, SocketAddr),
    pub(crate) state: State,
    /// The program's queue pair, once told.
    pub(crate) qpn: Option<Qpn>,
    /// What came of the frame that is awaited.
    pub(super) input: Vec<u8>,
    pub(super) deadline: Deadline,
}

impl Conn {
    pub(super) fn new(owner: IdHandle, ends: (SocketAddr, SocketAddr), state: State) -> Self {
        Self { owner, ends, state, qpn: None, input: Vec::new(), deadline: Deadline::default() }
    }

    /// Whether the stream is the queue pair's, or about to be.
    pub(crate) const fn is_up(&self) -> bool {
        matches!(self.state, State::Up | State::Closing)
    }

    /// How many bytes may be taken from the stream: not one beyond the awaited frame, for what
    /// follows is the queue pair's. Of what cannot be a frame one more, so that it is looked at.
    pub(crate) fn wants(&self) -> usize {
        let need = match &self.state {
            State::AwaitReply(_) | State::AwaitRequest => Startup::need(&self.input).ok(),
            State::AwaitRtr(params) => Some(rx_framing(params).need(0, &self.input).min(MAX_RTR)),
            _ => return 0,
        };
        need.unwrap_or(0).saturating_sub(self.input.len()).max(1)
    }
}

/// The longest ready-to-receive frame: no marker but the one in front, a Read request and its CRC.
const MAX_RTR: usize = rdmux_wire::iwarp::rtr::Frame::MAX_LEN;

/// How the frames are made that we receive.
pub(super) const fn rx_framing(params: &StreamParams) -> Framing {
    Framing { crc: params.crc, markers: params.rx_markers }
}

/// How the frames are made that we send.
pub(super) const fn tx_framing(params: &StreamParams) -> Framing {
    Framing { crc: params.crc, markers: params.tx_markers }
}

/// What happened to a connection, for the id that owns it.
#[derive(Debug)]
pub(crate) enum ConnEvent {
    /// A listener's: a peer wants to connect.
    Request(Request),
    /// It is up. On the active side with the reply.
    Established { params: StreamParams, private_data: Vec<u8> },
    /// The peer refused, or reset the connection while it was made; -errno.
    Rejected { status: i32, private_data: Vec<u8> },
    /// The peer does not answer; -errno.
    Unreachable(i32),
    /// It could not be made; -errno.
    Failed(i32),
    /// It is over.
    Disconnected,
}

/// Whether a frame is the one that `rtr` names.
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
