//! What clients and a fabric say to each other.
//!
//! A client connects to the fabric's `SOCK_SEQPACKET` socket, once for each thing that it wants, and says in its first
//! message what that is ([`Greeting`]). The fabric answers with a [`Reply`]. A message is one value in postcard's
//! encoding, except for management datagrams, which have a fixed header ([`mad`]):
//!
//! | [`Role`] | the client then says | the fabric says |
//! |---|---|---|
//! | `Attach` | [`AttachmentRequest`] | [`PortUpdate`], after each change of a port and each request |
//! | `OpenFile` | [`FileRequest`] | a [`Reply`] to each |
//! | `Mads` | records ([`mad`]) | records |
//! | `IsSm` | nothing | nothing: the bit is set as long as the connection lives |
//! | `Tables` | nothing | [`TableUpdate`] |
//! | `Capture` | nothing | frames: a [`FrameHeader`](rdmux_link::capture::FrameHeader) and an InfiniBand packet each |
//! | `Admin` | [`AdminRequest`] | a [`Reply`] with a length to each, then messages of as many bytes |
//! | `Shutdown` | nothing | nothing |
//!
//! A message that does not decode or that is out of place closes that connection, and nobody else notices. The answer to `Attach` comes
//! with a descriptor, the route table of the host's port ([`rdmux_link::routes`]), and so does [`AttachmentRequest::Rows`]. No other message has one, and all
//! but these go through a [bridge](crate::bridge) to another machine as they are.

mod admin;
mod attachment;
mod file;
pub mod mad;
mod tables;
mod update;

use rdmux_runtime::socket::{self, MessageError};
use rdmux_wire::Guid;
use serde::{Deserialize, Serialize};

pub use admin::{
    AdminRequest, Attached, End, FileStatus, LinkView, ManagerStatus, NodeRef, NodeView, PortView,
    Snapshot, Status, SweepStatus, ambiguous,
};
pub use attachment::{
    AttachmentRequest, Described, HostPort, MAX_PORTS, PortFacts, PortUpdate, Violation,
    ViolationKind,
};
pub use file::{FileReply, FileRequest};
pub use rdmux_runtime::socket::MAX_MESSAGE;
pub use rdmux_subnet::PortEvent;
pub use tables::{SwitchTables, Tables};
pub use update::{Entry, RowEntry, TableUpdate, WayEntry};

/// The version of everything here. Both sides must have the same.
pub const VERSION: u32 = 6;

/// The most bytes of a name in a message.
pub const MAX_NAME: usize = 64;

/// The first message of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// [`VERSION`]. It comes first in every version.
    pub version: u32,
    /// What the connection is for.
    pub role: Role,
}

/// What a connection is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A host takes a port of an adapter; it gives it back when the connection ends. Reply: [`Described`].
    Attach {
        /// The host's name.
        host: String,
        /// The GUID of the host's node: a new adapter gets it, and the host gets the adapter again that it had before.
        node_guid: Guid,
        /// Which port of its adapter.
        port: HostPort,
    },
    /// A program opens the management interface of a port. Reply: [`FileReply::Opened`].
    OpenFile(PortRef),
    /// The connection for the datagrams of a file. Reply: nothing but that it is.
    Mads {
        /// Of [`FileReply::Opened`].
        file: u64,
        /// Of [`FileReply::Opened`].
        key: [u8; 16],
    },
    /// A manager: the port's IsSM bit is set as long as the connection lives. One at a time has it. Reply: nothing but
    /// that it has, or `EAGAIN`.
    IsSm {
        /// Which port.
        port: PortRef,
        /// Whether to wait until the one who has it lets go.
        wait: bool,
    },
    /// A bridge is told what changes of the route tables of its hosts ([`TableUpdate`]). Reply: nothing but that it is.
    Tables,
    /// A command looks or changes something. Reply: nothing but that it may.
    Admin,
    /// The fabric, or the bridge to it, ends. Reply: nothing but that it does.
    Shutdown,
    /// Somebody captures the management datagrams of a port, both directions. Reply: nothing but that they come.
    Capture(PortRef),
}

/// A port, as clients name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRef {
    /// Its node.
    pub node: NodeRef,
    /// Its number: 1 for most adapters, 0 for a switch.
    pub port: u8,
}

/// What the fabric answers.
pub type Reply<T> = Result<T, Failure>;

/// Why the fabric did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What it means for a program in C.
    pub errno: i32,
    /// For people: what is wrong, and what to do.
    pub why: String,
}

impl Failure {
    /// A failure.
    pub fn new(errno: i32, why: impl Into<String>) -> Self {
        Self { errno, why: why.into() }
    }
}

/// Why a greeting is not accepted.
#[derive(Debug)]
pub enum BadGreeting {
    /// It is of another version.
    Version(u32),
    /// It does not decode.
    Malformed(MessageError),
}

impl Greeting {
    /// A greeting of this version.
    pub fn new(role: Role) -> Self {
        Self { version: VERSION, role }
    }

    /// Reads a greeting.
    ///
    /// # Errors
    /// [`BadGreeting::Version`] also where the rest cannot be read.
    pub fn decode(message: &[u8]) -> Result<Self, BadGreeting> {
        let (version, _) = socket::decode_first(message).map_err(BadGreeting::Malformed)?;
        if version != VERSION {
            return Err(BadGreeting::Version(version));
        }
        socket::decode(message).map_err(BadGreeting::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greeting_of_another_version_is_told_even_if_its_rest_is_unknown() {
        let version = u8::try_from(VERSION).unwrap();
        let message = [version + 1, 0xff, 0xff];
        assert!(
            matches!(Greeting::decode(&message), Err(BadGreeting::Version(v)) if v == VERSION + 1)
        );
        let cut = [version, 0xff];
        assert!(matches!(Greeting::decode(&cut), Err(BadGreeting::Malformed(_))));
        let whole = postcard::to_stdvec(&Greeting::new(Role::Admin)).unwrap();
        assert_eq!(Greeting::decode(&whole).unwrap().role, Role::Admin);
    }
}
