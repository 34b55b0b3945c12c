//! Resolves names to the addresses and, for devices with native addresses, the paths that a connection needs.
//!
//! It is a layer of its own: it makes no connection, and connections take only its values. The answers can be passed
//! unchanged to `resolve_addr`, `resolve_along` or `rdma_create_ep(3)`.
//!
//! | file | finds |
//! |---|---|
//! | `ip` | IP addresses of a name (getaddrinfo(3), and the names of virtual hosts) |
//! | `gid` | the address of a GID that is given as text |
//! | `acm` | the paths that ACM knows to IP addresses and names |
//! | `native` | the GID behind an IP address, and the path to it |
//! | `services` | the services that subnet administration knows by name |
//!
//! An answer with a GID precedes the answer with the IP address from which it was resolved. If no GID is found (iWARP, a peer
//! that does not answer), there is only the latter, and connecting reports the error.

mod acm;
mod gid;
mod ip;
mod native;
mod probe;
mod services;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rdmux_cm::{Addr, PathData, PortSpace};
use rdmux_transport::attr::QpType;
use rdmux_verbs::control::DeviceKind;

use crate::client::HostClient;
use crate::error::HostError;
use crate::names::RuntimeDir;

/// Resolves names for one host, through its service.
#[derive(Clone, Debug)]
pub struct Resolver {
    client: Arc<HostClient>,
    /// The only kind of device that connections may use, if restricted.
    only: Option<DeviceKind>,
    /// Whether one of the devices is on a fabric.
    is_on_fabric: bool,
    /// The directory with the names of virtual hosts.
    dir: Option<RuntimeDir>,
}

/// Constraints of a lookup (`hints` of rdma_getaddrinfo(3)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Whether the answers are for a listener (`RAI_PASSIVE`).
    pub passive: bool,
    /// The name is an address as text (`RAI_NUMERICHOST`).
    pub numeric_host: bool,
    /// Whether no path is requested (`RAI_NOROUTE`).
    pub no_route: bool,
    /// Whether native InfiniBand addresses are requested if the device has them (`RDMUX_RAI_NATIVE`). In [`PortSpace::Ib`]
    /// listeners get these, too, and a device without them gets an answer in [`PortSpace::Tcp`].
    pub native: bool,
    /// The address family (`RAI_FAMILY`); none is any.
    pub family: Option<Family>,
    /// The port space; none is that of `qp_type`, or of connections if that is none, too.
    pub port_space: Option<PortSpace>,
    /// The transport; none is that of the port space, or RC if that has several.
    pub qp_type: Option<QpType>,
    /// The source address.
    pub src: Option<Addr>,
}

impl Hints {
    /// Returns whether answers must have native InfiniBand addresses.
    fn is_native(&self) -> bool {
        self.native || self.family == Some(Family::Ib) || self.port_space == Some(PortSpace::Ib)
    }
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
    /// Native InfiniBand addresses.
    Ib,
    /// An unsupported family, by its number.
    Other(i32),
}

/// A result of a lookup, with everything that a connection needs (`rdma_addrinfo`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Whether the answer is for a listener. Such an answer has only `src`.
    pub passive: bool,
    /// The port space; none if the name service knows no transport.
    pub port_space: Option<PortSpace>,
    /// The transport; none likewise.
    pub qp_type: Option<QpType>,
    /// The local address, if known.
    pub src: Option<Addr>,
    /// The peer's address.
    pub dst: Option<Addr>,
    /// The paths to the peer. Empty if the address is not native and ACM has no path, or if none was requested.
    pub paths: Vec<PathData>,
    /// Whether the paths are from ACM. ACM may not have learned of a change yet: if the paths cannot be used, others are resolved
    /// from the addresses.
    pub by_acm: bool,
    /// The header before the program's private data, for listeners with an IP address.
    pub connect: Vec<u8>,
}

/// The reason why nothing was found.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The name service has nothing, or fails (getaddrinfo(3)).
    #[error("cannot find {what}: {source}")]
    Lookup {
        /// The name that was looked up.
        what: String,
        /// The error code: one of `EAI_*`.
        code: i32,
        /// The error as text.
        source: io::Error,
    },
    /// The text is not an address of the requested family.
    #[error("{text:?} is not a GID: use an IPv6 or IPv4 address")]
    NoGid {
        /// The text.
        text: String,
    },
    /// Subnet administration has no such service.
    #[error("subnet administration has no record of service {what}")]
    NoService {
        /// The service that was looked up.
        what: String,
    },
    /// The request to the host's service failed.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl ResolveError {
    /// Returns the error of getaddrinfo(3), if it is one.
    pub fn eai(&self) -> Option<i32> {
        match self {
            Self::Lookup { code, .. } if *code != libc::EAI_SYSTEM => Some(*code),
            Self::NoGid { .. } => Some(libc::EAI_NONAME),
            _ => None,
        }
    }

    /// Returns the errno.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Lookup { code: libc::EAI_SYSTEM, source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            Self::Lookup { code: libc::EAI_AGAIN, .. } => libc::EAGAIN,
            Self::Lookup { code: libc::EAI_MEMORY, .. } => libc::ENOMEM,
            Self::Lookup { code: libc::EAI_FAMILY, .. } => libc::EAFNOSUPPORT,
            Self::Lookup { .. } | Self::NoGid { .. } | Self::NoService { .. } => libc::ENOENT,
            Self::Host(error) => error.errno(),
        }
    }
}

impl Resolver {
    /// Makes a resolver for this process's connections over the devices of these kinds.
    pub fn new(client: Arc<HostClient>, kinds: &[DeviceKind]) -> Self {
        let only = <[DeviceKind; 1]>::try_from(kinds).ok().map(|[kind]| kind);
        let is_on_fabric = kinds.iter().any(|kind| kind.is_on_fabric());
        Self { client, only, is_on_fabric, dir: RuntimeDir::of_environment().ok() }
    }

    /// Takes the names of virtual hosts from this directory instead of the usual one.
    pub fn names_of(self, dir: RuntimeDir) -> Self {
        Self { dir: Some(dir), ..self }
    }

    /// Resolves a node and a service, one of which may be left out, as for getaddrinfo(3). Returns at least one answer, the best
    /// first. Without hints, answers are IP addresses for connections.
    ///
    /// It takes as long as the name service does and, if a path is requested, up to 2 s for the neighbour and 2 s for the path.
    /// ACM is queried before them, for half a second at most (see [`Settings`](crate::client::acm::Settings)). Answers with an
    /// IP address get a path that ACM knows, too. ACM is also queried for the native address of a name that the name service
    /// does not know.
    ///
    /// # Errors
    /// [`ResolveError`]. A peer without a GID, or one that does not answer, is not an error.
    pub fn resolve(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        hints: Option<&Hints>,
    ) -> Result<Vec<Answer>, ResolveError> {
        let wanted = hints.copied().unwrap_or_default();
        let by_gid = wanted.family == Some(Family::Ib) && wanted.numeric_host;
        if by_gid {
            return gid::answer(node, service, &wanted).map(|answer| vec![answer]);
        }
        // With an IP address a service must be a port.
        let port = service.filter(|service| gid::sid_of(wanted.port_space, service).is_none());
        let found = match (node, port, service) {
            (None, None, Some(_)) => Vec::new(),
            _ => match ip::answers(self.dir.as_ref(), node, port, hints) {
                Ok(found) => found,
                Err(error) => return self.without_ip(node, service, &wanted).ok_or(error),
            },
        };
        if wanted.passive {
            return if wanted.native && wanted.port_space == Some(PortSpace::Ib) {
                native::passive(service, &wanted, found)
            } else {
                Ok(found)
            };
        }
        Ok(match wanted.is_native() {
            true => self.with_native(service, &wanted, found),
            false => self.with_known_paths(&wanted, found),
        })
    }

    /// Resolves a name that has no IP address, if native addresses are requested.
    fn without_ip(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        hints: &Hints,
    ) -> Option<Vec<Answer>> {
        let is_active = !hints.passive && !hints.numeric_host && hints.is_native();
        let found = self.by_name(node.filter(|_| is_active)?, service, hints);
        let found =
            found.inspect_err(|error| tracing::debug!(%error, "no native record of the service"));
        Some(vec![found.ok()??])
    }

    /// Returns the native address for an IP address with the path to it, and then the IP address itself.
    pub fn resolve_addr(&self, dst: SocketAddr, hints: &Hints) -> Vec<Answer> {
        let by_ip = Answer {
            port_space: Some(hints.port_space.unwrap_or(match hints.qp_type {
                Some(QpType::Ud) => PortSpace::Udp,
                _ => PortSpace::Tcp,
            })),
            qp_type: Some(hints.qp_type.unwrap_or(match hints.port_space {
                Some(PortSpace::Udp | PortSpace::IpoIb) => QpType::Ud,
                _ => QpType::Rc,
            })),
            src: hints.src,
            dst: Some(dst.into()),
            ..Answer::default()
        };
        self.with_native(None, hints, vec![by_ip])
    }
}
