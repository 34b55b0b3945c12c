//! Errors of commands, and the errno that a C program gets for each.

use thiserror::Error;

use crate::address::Addr;
use crate::group::GroupFault;
use crate::id::IdState;
use crate::sink::{ChannelId, IdHandle};

/// The values of Linux's errno that are used here.
pub mod errno {
    /// Operation not permitted.
    pub const EPERM: i32 = 1;
    /// No such file or directory.
    pub const ENOENT: i32 = 2;
    /// Cannot allocate memory.
    pub const ENOMEM: i32 = 12;
    /// Permission denied.
    pub const EACCES: i32 = 13;
    /// No such device.
    pub const ENODEV: i32 = 19;
    /// Invalid argument.
    pub const EINVAL: i32 = 22;
    /// Protocol error.
    pub const EPROTO: i32 = 71;
    /// Network is unreachable.
    pub const ENETUNREACH: i32 = 101;
    /// Function not implemented.
    pub const ENOSYS: i32 = 38;
    /// Address family not supported.
    pub const EAFNOSUPPORT: i32 = 97;
    /// Operation not supported.
    pub const EOPNOTSUPP: i32 = 95;
    /// Address already in use.
    pub const EADDRINUSE: i32 = 98;
    /// Cannot assign requested address.
    pub const EADDRNOTAVAIL: i32 = 99;
    /// Transport endpoint is not connected.
    pub const ENOTCONN: i32 = 107;
    /// Network dropped connection on reset.
    pub const ENETRESET: i32 = 102;
    /// Connection reset by peer.
    pub const ECONNRESET: i32 = 104;
    /// Connection timed out.
    pub const ETIMEDOUT: i32 = 110;
    /// No route to host.
    pub const EHOSTUNREACH: i32 = 113;
    /// Connection refused.
    pub const ECONNREFUSED: i32 = 111;
}

/// The commands, for error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the method of its name")]
pub enum Command {
    CreateId,
    Bind,
    ResolveAddr,
    ResolveRoute,
    SetPath,
    ResolveAlong,
    Listen,
    Take,
    Connect,
    Accept,
    Reject,
    Establish,
    Disconnect,
    Notify,
    Migrate,
    SetOption,
    Query,
    Join,
    Leave,
    Destroy,
    WriteEvent,
    ResolveService,
    LoadAlternate,
    AnswerAlternate,
    AskForTime,
    SetPrivateData,
}

impl core::fmt::Display for Command {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::CreateId => "create_id",
            Self::Bind => "bind",
            Self::ResolveAddr => "resolve_addr",
            Self::ResolveRoute => "resolve_route",
            Self::SetPath => "set_path",
            Self::ResolveAlong => "resolve_along",
            Self::Listen => "listen",
            Self::Take => "take",
            Self::Connect => "connect",
            Self::Accept => "accept",
            Self::Reject => "reject",
            Self::Establish => "establish",
            Self::Disconnect => "disconnect",
            Self::Notify => "notify",
            Self::Migrate => "migrate",
            Self::SetOption => "set_option",
            Self::Query => "query",
            Self::Join => "join",
            Self::Leave => "leave",
            Self::Destroy => "destroy",
            Self::WriteEvent => "write_event",
            Self::ResolveService => "resolve_service",
            Self::LoadAlternate => "load_alternate",
            Self::AnswerAlternate => "answer_alternate",
            Self::AskForTime => "ask_for_time",
            Self::SetPrivateData => "set_private_data",
        })
    }
}

/// The reason a command failed. [`errno`](Self::errno) gives the number for a C program.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CmError {
    /// The id was destroyed or never existed.
    #[error("{command}: {id} does not exist")]
    NoSuchId {
        /// The id.
        id: IdHandle,
        /// The command.
        command: Command,
    },
    /// The id's state does not allow the command.
    #[error("{command} on {id}: not possible in state {state}")]
    State {
        /// The id.
        id: IdHandle,
        /// The command.
        command: Command,
        /// The state that it was in.
        state: IdState,
    },
    /// A parameter is out of range.
    #[error("{command} on {id}: {what}")]
    Invalid {
        /// The id.
        id: IdHandle,
        /// The command.
        command: Command,
        /// The reason why it is invalid.
        what: &'static str,
    },
    /// The private data do not fit.
    #[error("{command} on {id}: {len} bytes of private data, at most {max} fit")]
    PrivateData {
        /// The id.
        id: IdHandle,
        /// The command.
        command: Command,
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// The port is taken.
    #[error("{command} on {id}: {addr} is in use in this port space")]
    AddrInUse {
        /// The id.
        id: IdHandle,
        /// The command.
        command: Command,
        /// The requested address.
        addr: Addr,
    },
    /// The port is taken, and one of the two claims on it is for the wildcard address.
    #[error(
        "{command} on {id}: the port of {addr} is in use in this port space: a wildcard address \
         cannot share a port with another address"
    )]
    WildcardInUse {
        /// The id.
        id: IdHandle,
        /// The command.
        command: Command,
        /// The requested address.
        addr: Addr,
    },
    /// No ephemeral port is free.
    #[error("{command} on {id}: every ephemeral port of this port space is in use")]
    PortsExhausted {
        /// The id.
        id: IdHandle,
        /// The command.
        command: Command,
    },
    /// No service ID is free: other ids have all or nearly all that could be assigned.
    #[error("{command} on {id}: all service IDs that can be assigned are in use")]
    NoServiceId {
        /// The id.
        id: IdHandle,
        /// The command.
        command: Command,
    },
    /// No device has the address.
    #[error("{command} on {id}: no RDMA device has the address {addr}")]
    AddrNotAvailable {
        /// The id.
        id: IdHandle,
        /// The command.
        command: Command,
        /// The requested address.
        addr: Addr,
    },
    /// Source and destination, or option and address, differ in family.
    #[error("{command} on {id}: wrong address family")]
    Family {
        /// The id.
        id: IdHandle,
        /// The command.
        command: Command,
    },
    /// Ports below [`Config::unprivileged_port_start`](crate::Config::unprivileged_port_start) require a privilege.
    #[error("bind on {id}: port {port} needs CAP_NET_BIND_SERVICE")]
    Permission {
        /// The id.
        id: IdHandle,
        /// The port.
        port: u16,
    },
    /// The id has not joined the group.
    #[error("{id} has not joined this group")]
    NotJoined {
        /// The id.
        id: IdHandle,
    },
    /// The id's group is not joined yet, was refused, or was lost.
    #[error(
        "{id} is not a member of the group: its join is pending, or failed as an event reported (errno {errno})"
    )]
    NoGroup {
        /// The id.
        id: IdHandle,
        /// ENOTCONN, or the errno of the event.
        errno: i32,
    },
    /// The requested multicast group is invalid.
    #[error("join on {id}: {fault}")]
    Group {
        /// The id.
        id: IdHandle,
        /// The field, and why.
        fault: GroupFault,
    },
    /// The id has as many groups as its limit allows.
    #[error("join on {id}: it has joined {max} groups already, the maximum")]
    TooManyGroups {
        /// The id.
        id: IdHandle,
        /// The limit.
        max: usize,
    },
    /// The id's device is an iWARP device, which has no multicast.
    #[error("join on {id}: iWARP has no multicast, use a RoCE or an InfiniBand device")]
    NoMulticast {
        /// The id.
        id: IdHandle,
    },
    /// The peer gave up before the program answered it.
    #[error("{command} on {id}: the peer gave up before it was answered")]
    PeerGone {
        /// The id.
        id: IdHandle,
        /// The command.
        command: Command,
    },
    /// A path record does not fit the id.
    #[error("set_path on {id}: {field} of the {path} path contradicts the port or another record")]
    Path {
        /// The id.
        id: IdHandle,
        /// The path.
        path: &'static str,
        /// The invalid field of its record.
        field: &'static str,
    },
    /// The id has no path along which to connect.
    #[error("connect on {id}: no path to {addr}: resolve the route, or set path records")]
    NoPath {
        /// The id.
        id: IdHandle,
        /// The destination.
        addr: Addr,
    },
    /// The channel has as many ids as its limit allows.
    #[error("create_id: event channel {} has {max} ids already, the maximum", channel.0)]
    TooManyIds {
        /// The channel.
        channel: ChannelId,
        /// The limit.
        max: usize,
    },
}

impl CmError {
    /// Returns the errno that the kernel's connection manager returns for this error.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::NoSuchId { .. } => errno::ENOENT,
            Self::State { .. }
            | Self::Invalid { .. }
            | Self::PrivateData { .. }
            | Self::Group { .. }
            | Self::Path { .. }
            | Self::NoPath { .. } => errno::EINVAL,
            Self::Family { .. } => errno::EINVAL,
            Self::AddrInUse { .. } => errno::EADDRINUSE,
            Self::WildcardInUse { .. }
            | Self::PortsExhausted { .. }
            | Self::NoServiceId { .. }
            | Self::AddrNotAvailable { .. } => errno::EADDRNOTAVAIL,
            Self::Permission { .. } => errno::EACCES,
            Self::PeerGone { .. } => errno::ECONNRESET,
            Self::NotJoined { .. } => errno::EADDRNOTAVAIL,
            Self::NoGroup { errno, .. } => *errno,
            Self::NoMulticast { .. } => errno::EOPNOTSUPP,
            Self::TooManyIds { .. } | Self::TooManyGroups { .. } => errno::ENOMEM,
        }
    }
}
