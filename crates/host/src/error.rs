//! Errors between a process, its host service and the file system.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use rdmux_runtime::{DirectoryError, process};
use rustix::process::Pid;

use crate::names::{HostName, NetworkNamespace, NodeGuid};

/// The reason why a host service could not be reached or started, or why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The service is gone, with everything that it held for this process.
    #[error("the service of host \"{host}\" is gone; open the device again to start a new one")]
    ServiceGone {
        /// The host's name.
        host: HostName,
    },
    /// The service refused the request.
    #[error("cannot {what}: {why}")]
    Refused {
        /// The request that was refused.
        what: String,
        /// The service's reason.
        why: String,
        /// The errno of the C interface.
        errno: i32,
    },
    /// The host has no running service.
    #[error("host \"{host}\" is not up: start it with `rdmux host up {host}`")]
    NotUp {
        /// The host's name.
        host: HostName,
    },
    /// A service runs for this host already.
    #[error(
        "host \"{host}\" is up already: another service holds its lock; `rdmux host down {host}` ends it"
    )]
    AlreadyUp {
        /// The host's name.
        host: HostName,
    },
    /// The service is in another network namespace than this process: as far as addresses go, on another machine.
    #[error(
        "the service of host \"{host}\" runs in another network namespace ({theirs}) than this \
         process ({ours}), which does not have its addresses: RDMUX_RUNTIME_DIR names one directory \
         for both; unset it, or give each namespace its own directory"
    )]
    OtherNetwork {
        /// The host's name.
        host: String,
        /// The network namespace of this process.
        ours: NetworkNamespace,
        /// The service's.
        theirs: NetworkNamespace,
    },
    /// A service exists but does not answer: it was stopped, or hangs.
    #[error("the service of host \"{host}\"{} does not answer: {why}; `rdmux host down --force {host}` ends it", process(*pid))]
    Unresponsive {
        /// The host's name.
        host: HostName,
        /// The service's process, if the kernel reports it.
        pid: Option<Pid>,
        /// The evidence that the service does not answer.
        why: String,
    },
    /// The service could not be started.
    #[error("cannot start the service of host \"{host}\": {why}")]
    Start {
        /// The host's name.
        host: HostName,
        /// The cause, and a remedy.
        why: String,
    },
    /// A directory or file in it cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The configuration file is wrong.
    #[error("{}: {why}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The error and its location.
        why: String,
    },
    /// Another virtual host has this address.
    #[error(
        "{address} belongs to host \"{owner}\": choose another address, or omit it and let the registry choose"
    )]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// The host that has the address.
        owner: HostName,
    },
    /// Another host has this node GUID.
    #[error(
        "the node GUID {guid} belongs to {owner}: choose another GUID, or omit it to get a random one"
    )]
    GuidTaken {
        /// The GUID.
        guid: NodeGuid,
        /// The host that has the GUID.
        owner: String,
    },
    /// Another socket is bound to UDP port 4791 of an address.
    #[error("UDP port {port} on {address} is in use{}{}", holder.as_ref().map(|h| format!(" by {h}")).unwrap_or_default(), Self::ASK_DOCTOR)]
    PortInUse {
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
        /// The user and process, if the kernel reports them.
        holder: Option<String>,
    },
    /// Another socket is bound to UDP port 4791 of the address that was assigned to a host.
    #[error(
        "UDP port {port} on {address}, which is assigned to host \"{host}\", is in use{}: end that program, or assign another address with `rdmux host up {host} --addr ADDRESS`",
        holder.as_ref().map(|h| format!(" by {h}")).unwrap_or_default()
    )]
    AssignedInUse {
        /// The host.
        host: HostName,
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
        /// The user and process, if the kernel reports them.
        holder: Option<String>,
    },
    /// Service and client are of different versions.
    #[error(
        "the service of host \"{host}\" speaks protocol version {theirs}, this program {ours}: end \
         it with `rdmux host down {host}`, or use programs of the same version"
    )]
    Version {
        /// The host's name.
        host: HostName,
        /// The version of this side.
        ours: u32,
        /// The version of the other side.
        theirs: u32,
    },
    /// The service sent something that the protocol does not allow.
    #[error("the service of host \"{host}\" violated the protocol: {why}")]
    Protocol {
        /// The host's name.
        host: HostName,
        /// The violation.
        why: String,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
}

impl HostError {
    /// The end of the text of [`PortInUse`](Self::PortInUse).
    pub const ASK_DOCTOR: &str = ": run `rdmux doctor` for advice";

    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }

    /// Returns the errno for this error in the C interface.
    pub fn errno(&self) -> i32 {
        match self {
            Self::ServiceGone { .. } => libc::EIO,
            Self::Refused { errno, .. } => *errno,
            Self::NotUp { .. } | Self::OtherNetwork { .. } | Self::Start { .. } => libc::ENODEV,
            Self::AlreadyUp { .. } => libc::EEXIST,
            Self::Unresponsive { .. } => libc::ETIMEDOUT,
            Self::Directory(_) => libc::EACCES,
            Self::Config { .. } => libc::EINVAL,
            Self::AddressTaken { .. }
            | Self::GuidTaken { .. }
            | Self::PortInUse { .. }
            | Self::AssignedInUse { .. } => libc::EADDRINUSE,
            Self::Version { .. } | Self::Protocol { .. } => libc::EPROTO,
            Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}
