//! Received datagrams and failed requests.

use std::fmt;
use std::io;

use rdmux_subnet::umad::UserMad;
use rdmux_wire::mad::{MadHeader, Method};

use super::{Address, AgentId, Tid};

/// An event that an agent receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A datagram, or a message that RMPP has reassembled.
    Mad(Incoming),
    /// A request that will not be answered any more.
    Unanswered(Unanswered),
}

/// A datagram, or a message that RMPP has reassembled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// The agent that receives the datagram.
    pub agent: AgentId,
    /// The datagram's sender.
    pub from: Address,
    /// The header of the datagram.
    pub header: MadHeader,
    /// The whole datagram or message, including the header: 256 bytes for a datagram, any number for a message.
    pub mad: Vec<u8>,
}

/// A request that will not be answered any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The agent that sent the request.
    pub agent: AgentId,
    /// The header of the request.
    pub header: MadHeader,
    /// The reason.
    pub why: Why,
}

/// The reason why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The request timed out, after all retries.
    TimedOut,
    /// The peer aborted the transfer of the message, or violated the protocol.
    Aborted,
    /// The request was not sent: an errno of Linux, as from write(2) to the kernel's device. `ENOMEM` when too many requests
    /// are outstanding, `EINVAL` for an index of a P_Key or GID that the port does not have.
    Refused(i32),
}

impl Event {
    /// Converts a record to an event; none if it has no header.
    pub(super) fn new(record: UserMad) -> Option<Self> {
        let header = MadHeader::parse(&record.data).ok()?;
        let agent = AgentId(record.agent);
        let why = match record.status {
            0 => {
                let (from, mad) = (record.address, record.data);
                return Some(Self::Mad(Incoming { agent, from, header, mad }));
            }
            UserMad::TIMED_OUT => Why::TimedOut,
            UserMad::ABORTED => Why::Aborted,
            errno => Why::Refused(i32::try_from(errno).unwrap_or(i32::MAX)),
        };
        Some(Self::Unanswered(Unanswered { agent, header, why }))
    }

    /// Returns the agent that receives the event.
    pub fn agent(&self) -> AgentId {
        match self {
            Self::Mad(incoming) => incoming.agent,
            Self::Unanswered(unanswered) => unanswered.agent,
        }
    }

    /// Returns the agent's request that the event ends, as returned by [`Agent::request`](super::Agent::request). None for
    /// a request that another node sent to the agent.
    pub fn tid(&self) -> Option<Tid> {
        match self {
            Self::Mad(incoming) => incoming.answers(),
            Self::Unanswered(unanswered) => Some(Tid::of(&unanswered.header)),
        }
    }
}

impl Incoming {
    /// Returns the agent's request that this answers; none if this is a request of another node.
    pub fn answers(&self) -> Option<Tid> {
        let method = self.header.method;
        let answers = method.is_response() || method == Method::TRAP_REPRESS;
        answers.then(|| Tid::of(&self.header))
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => f.write_str("no answer after all retries"),
            Self::Aborted => f.write_str("the peer aborted the transfer"),
            Self::Refused(errno) => {
                write!(f, "it was not sent: {}", io::Error::from_raw_os_error(*errno))
            }
        }
    }
}
