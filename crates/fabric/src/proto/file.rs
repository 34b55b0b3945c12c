//! A program's requests about an open management interface, other than datagrams.

use rdmux_subnet::umad::{Registration, UserMad};
use serde::{Deserialize, Serialize};

/// A program's request. Datagrams that it sent before are handled first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileRequest {
    /// Registers an agent (`umad_register2(3)`).
    Register(Registration),
    /// Unregisters an agent.
    Unregister {
        /// The agent's number.
        agent: u32,
    },
    /// Checks whether this datagram could be sent now: not if its transaction ID and class are those of an
    /// outstanding request. Only its first 256 bytes matter.
    Check(UserMad),
}

/// The fabric's reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileReply {
    /// The file is open. Its datagrams have a connection of their own.
    Opened {
        /// The number of the file.
        file: u64,
        /// A key that proves that the other connection is of the same client.
        key: [u8; 16],
    },
    /// The agent's number.
    Agent(u32),
    /// Done, or possible.
    Done,
}
