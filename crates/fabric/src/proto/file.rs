//! What a program asks about an open management interface, beside its datagrams.

use rdmux_subnet::umad::{Registration, UserMad};
use serde::{Deserialize, Serialize};

/// What a program asks. Everything that it sent as a datagram before counts as sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileRequest {
    /// To be an agent (`umad_register2(3)`).
    Register(Registration),
    /// To be one no longer.
    Unregister {
        /// The agent's number.
        agent: u32,
    },
    /// Whether this could be sent now: a request whose transaction ID and class are those of one that is outstanding
    /// cannot. More than 256 bytes of the datagram are of no interest.
    Check(UserMad),
}

/// What the fabric answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileReply {
    /// The file is open. Its datagrams have a connection of their own.
    Opened {
        /// The number of the file.
        file: u64,
        /// What shows that the other connection is of the same client.
        key: [u8; 16],
    },
    /// The agent's number.
    Agent(u32),
    /// It is done, or could be.
    Done,
}
