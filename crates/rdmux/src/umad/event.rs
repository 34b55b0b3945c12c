//! What is received.

use std::fmt;
use std::io;

use rdmux_subnet::umad::UserMad;
use rdmux_wire::mad::{MadHeader, Method};

use super::{Address, AgentId, Tid};

/// What an agent gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A datagram, or the message that RMPP has made of many.
    Mad(Incoming),
    /// A request to which no answer comes any more.
    Unanswered(Unanswered),
}

/// A datagram, or the message that RMPP has made of many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// The agent that it is for.
    pub agent: AgentId,
    /// Who sent it.
    pub from: Address,
    /// Its header.
    pub header: MadHeader,
    /// All of it, header included: 256 bytes of a datagram, as many as there are of a message.
    pub mad: Vec<u8>,
}

/// A request to which no answer comes any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The agent that had sent it.
    pub agent: AgentId,
    /// Its header.
    pub header: MadHeader,
    /// What happened.
    pub why: Why,
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The time was over, after all retries.
    TimedOut,
    /// The peer ended the transfer of the message, or broke its protocol.
    Aborted,
    /// It was not sent: an error number of Linux, as write(2) to the kernel's device gives. `ENOMEM` when too much is
    /// outstanding, `EINVAL` for an index of a P_Key or GID that the port does not have.
    Refused(i32),
}

impl Event {
    /// What a record is; none if it has no header.
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

    /// The agent that it is for.
    pub fn agent(&self) -> AgentId {
        match self {
            Self::Mad(incoming) => incoming.agent,
            Self::Unanswered(unanswered) => unanswered.agent,
        }
    }

    /// The request of the agent that it ends: what [`Agent::request`](super::Agent::request) returned. None of a request of
    /// somebody else.
    pub fn tid(&self) -> Option<Tid> {
        match self {
            Self::Mad(incoming) => incoming.answers(),
            Self::Unanswered(unanswered) => Some(Tid::of(&unanswered.header)),
        }
    }
}

impl Incoming {
    /// The request of the agent that this answers; none if it is a request of somebody else.
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
            Self::Aborted => f.write_str("the peer ended the transfer"),
            Self::Refused(errno) => {
                write!(f, "it was not sent: {}", io::Error::from_raw_os_error(*errno))
            }
        }
    }
}
