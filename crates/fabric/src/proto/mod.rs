//! The protocol between clients and a fabric.
//!
//! A client connects to the fabric's `SOCK_SEQPACKET` socket, once for each purpose, which its first message names
//! ([`Greeting`]). The fabric answers with a [`Reply`]. A message is one value in postcard's encoding, except for
//! management datagrams, which have a fixed header ([`mad`]):
//!
//! | [`Role`] | the client then sends | the fabric sends |
//! |---|---|---|
//! | `Attach` | [`AttachmentRequest`] | [`PortUpdate`], after each change of a port and each request |
//! | `OpenFile` | [`FileRequest`] | a [`Reply`] to each |
//! | `Mads` | records ([`mad`]) | records |
//! | `IsSm` | nothing | nothing: the bit is set as long as the connection lives |
//! | `Tables` | nothing | [`TableUpdate`] |
//! | `Capture` | nothing | frames: a [`FrameHeader`](rdmux_link::capture::FrameHeader) and an InfiniBand packet each |
//! | `Admin` | [`AdminRequest`] | a [`Reply`] with a length to each, then messages of that many bytes |
//! | `Shutdown` | nothing | nothing |
//!
//! A message that does not decode or is out of place closes that connection; others are not affected. The answer to `Attach` has a
//! descriptor, the route table of the host's port ([`rdmux_link::routes`]), and so has [`AttachmentRequest::Rows`]. No other message has
//! one, and all but these pass through a [bridge](crate::bridge) to another machine unchanged.

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

/// Maximum length of a name in a message in bytes.
pub const MAX_NAME: usize = 64;

/// The first message of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// [`VERSION`]. It is the first field in every version.
    pub version: u32,
    /// The purpose of the connection.
    pub role: Role,
}

/// The purpose of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A host attaches a port of an adapter, and releases it when the connection ends. Reply: [`Described`].
    Attach {
        /// The host's name.
        host: String,
        /// The GUID of the host's node: a new adapter gets it, and by it the host gets its earlier adapter again.
        node_guid: Guid,
        /// The port of the host's adapter.
        port: HostPort,
    },
    /// A program opens the management interface of a port. Reply: [`FileReply::Opened`].
    OpenFile(PortRef),
    /// The connection for the datagrams of a file. Reply: empty.
    Mads {
        /// The file, from [`FileReply::Opened`].
        file: u64,
        /// The key, from [`FileReply::Opened`].
        key: [u8; 16],
    },
    /// A subnet manager sets the port's IsSM bit until the connection ends. Only one at a time has it. Reply: empty, or
    /// `EAGAIN`.
    IsSm {
        /// The port.
        port: PortRef,
        /// Whether to wait until the present holder clears it.
        wait: bool,
    },
    /// A bridge receives changes of its hosts' route tables ([`TableUpdate`]). Reply: empty.
    Tables,
    /// A command shows or changes something. Reply: empty.
    Admin,
    /// The fabric, or the bridge to it, ends. Reply: empty.
    Shutdown,
    /// A program captures the management datagrams of a port, in both directions. Reply: empty.
    Capture(PortRef),
}

/// A port, in a client's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRef {
    /// The node of the port.
    pub node: NodeRef,
    /// The port's number: 1 for most adapters, 0 for a switch.
    pub port: u8,
}

/// The fabric's reply.
pub type Reply<T> = Result<T, Failure>;

/// The reason why the fabric refused a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The errno of the C interface.
    pub errno: i32,
    /// The reason for users: what is wrong, and what to do.
    pub why: String,
}

impl Failure {
    /// Makes a failure.
    pub fn new(errno: i32, why: impl Into<String>) -> Self {
        Self { errno, why: why.into() }
    }
}

/// The reason why a greeting is not accepted.
#[derive(Debug)]
pub enum BadGreeting {
    /// The greeting is of another version.
    Version(u32),
    /// The greeting does not decode.
    Malformed(MessageError),
}

impl Greeting {
    /// Makes a greeting of this version.
    pub fn new(role: Role) -> Self {
        Self { version: VERSION, role }
    }

    /// Decodes a greeting.
    ///
    /// # Errors
    /// [`BadGreeting::Version`] also if the rest does not decode.
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
    fn greeting_of_another_version_is_a_version_error_even_if_undecodable() {
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
