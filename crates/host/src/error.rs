//! What can go wrong between a process, its host service and the file system.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use rdmux_runtime::{DirectoryError, process};
use rustix::process::Pid;

use crate::names::{HostName, NetworkNamespace, NodeGuid};

/// Why a host service could not be reached, started or asked.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The service is gone. Everything that it held for this process is gone with it.
    #[error("the service of host \"{host}\" is gone; open the device again to start a new one")]
    ServiceGone {
        /// Which host's.
        host: HostName,
    },
    /// The service was asked and said no.
    #[error("cannot {what}: {why}")]
    Refused {
        /// What was asked.
        what: String,
        /// The service's words.
        why: String,
        /// The errno that the C interface gives.
        errno: i32,
    },
    /// No service runs for this host.
    #[error("host \"{host}\" is not up: start it with `rdmux host up {host}`")]
    NotUp {
        /// Which host.
        host: HostName,
    },
    /// A service runs for this host already.
    #[error(
        "host \"{host}\" is up already: another service holds its lock; `rdmux host down {host}` ends it"
    )]
    AlreadyUp {
        /// Which host.
        host: HostName,
    },
    /// The service lives in another network namespace than this process: on another machine, as far as addresses go.
    #[error(
        "the service of host \"{host}\" lives in another network namespace ({theirs}) than this process ({ours}), which has not its addresses: RDMUX_RUNTIME_DIR leads both to one directory; unset it, or give each namespace a directory of its own"
    )]
    OtherNetwork {
        /// Which host.
        host: String,
        /// This process's.
        ours: NetworkNamespace,
        /// The service's.
        theirs: NetworkNamespace,
    },
    /// A service is there, but does not answer: it was stopped, or hangs.
    #[error("the service of host \"{host}\"{} does not answer: {why}; `rdmux host down --force {host}` ends it", process(*pid))]
    Unresponsive {
        /// Which host's.
        host: HostName,
        /// Its process, as far as the kernel tells.
        pid: Option<Pid>,
        /// What shows that.
        why: String,
    },
    /// The service could not be started.
    #[error("cannot start the service of host \"{host}\": {why}")]
    Start {
        /// Which host.
        host: HostName,
        /// What happened, and what to do.
        why: String,
    },
    /// A directory or file in it cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The configuration file is wrong.
    #[error("{}: {why}", path.display())]
    Config {
        /// Which file.
        path: PathBuf,
        /// What, and where.
        why: String,
    },
    /// Another virtual host has this address.
    #[error(
        "{address} belongs to host \"{owner}\": choose another, or leave the choice to the registry"
    )]
    AddressTaken {
        /// The address.
        address: IpAddr,
        /// Its host.
        owner: HostName,
    },
    /// Another host has this node GUID.
    #[error("the node GUID {guid} belongs to {owner}: choose another, or let one be drawn")]
    GuidTaken {
        /// The GUID.
        guid: NodeGuid,
        /// Its host.
        owner: String,
    },
    /// Somebody else holds UDP port 4791 on an address.
    #[error("UDP port {port} on {address} is in use{}{}", holder.as_ref().map(|h| format!(" by {h}")).unwrap_or_default(), Self::ASK_DOCTOR)]
    PortInUse {
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
        /// The user and process, as far as the kernel tells.
        holder: Option<String>,
    },
    /// Somebody else holds UDP port 4791 on the address that was assigned to a host.
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
        /// The user and process, as far as the kernel tells.
        holder: Option<String>,
    },
    /// Service and client are of different versions.
    #[error(
        "the service of host \"{host}\" speaks protocol {theirs}, this program {ours}: end it with `rdmux host down {host}`, or use programs of one version"
    )]
    Version {
        /// Which host.
        host: HostName,
        /// This side's.
        ours: u32,
        /// The other side's.
        theirs: u32,
    },
    /// The service said something that it may not say.
    #[error("the service of host \"{host}\" broke the protocol: {why}")]
    Protocol {
        /// Which host.
        host: HostName,
        /// What.
        why: String,
    },
    /// The operating system said no.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// The kernel's word.
        source: io::Error,
    },
}

impl HostError {
    /// How the text of [`PortInUse`](Self::PortInUse) ends.
    pub const ASK_DOCTOR: &str = ": `rdmux doctor` tells what to do";

    pub(crate) fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.into(), source: source.into() }
    }

    /// The errno that stands for this error in the C interface.
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
