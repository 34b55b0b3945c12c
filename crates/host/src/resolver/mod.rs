//! Names to what a connection needs: addresses, and where the device has them, paths.
//!
//! A layer of its own: it makes no connection, and a connection needs nothing of it but values. What it finds is plugged into
//! `resolve_addr`, `resolve_along` or `rdma_create_ep(3)` as it is.
//!
//! | file | finds |
//! |---|---|
//! | `ip` | IP addresses of a name (getaddrinfo(3), and the names of virtual hosts) |
//! | `gid` | the address of a GID that is given as text |
//! | `acm` | the paths that ACM knows to IP addresses and names |
//! | `native` | the GID behind an IP address, and the path to it |
//! | `services` | the services that subnet administration knows by a name |
//!
//! An answer with a GID comes before the one with an IP address that it was found by. Where no GID is found (iWARP, a peer that
//! does not answer) there is only the latter: then the connection says what is wrong.

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

/// Finds names for one host, over its service.
#[derive(Clone, Debug)]
pub struct Resolver {
    client: Arc<HostClient>,
    /// The only kind of device that connections are to have, if only one.
    only: Option<DeviceKind>,
    /// Where the names of virtual hosts are.
    dir: Option<RuntimeDir>,
}

/// What is wanted (`hints` of rdma_getaddrinfo(3)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// For a listener (`RAI_PASSIVE`).
    pub passive: bool,
    /// The name is an address as text (`RAI_NUMERICHOST`).
    pub numeric_host: bool,
    /// No path is wanted (`RAI_NOROUTE`).
    pub no_route: bool,
    /// InfiniBand's own addresses, where the device has them (`RDMUX_RAI_NATIVE`). In [`PortSpace::Ib`] listeners have these, too,
    /// and a device without them has an answer of [`PortSpace::Tcp`].
    pub native: bool,
    /// Of which family (`RAI_FAMILY`); none is any.
    pub family: Option<Family>,
    /// In which port space; none is that of `qp_type`, and of connections if that is none either.
    pub port_space: Option<PortSpace>,
    /// For which transport; none is that of the port space, and RC if that has several.
    pub qp_type: Option<QpType>,
    /// From where.
    pub src: Option<Addr>,
}

impl Hints {
    /// Whether answers are to have InfiniBand's own addresses.
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
    /// InfiniBand's own.
    Ib,
    /// One by its number, which nobody here knows.
    Other(i32),
}

/// What was found: all that goes into a connection (`rdma_addrinfo`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Whether it is for a listener, which has `src` only.
    pub passive: bool,
    /// The port space; none if the name service knows no transport.
    pub port_space: Option<PortSpace>,
    /// The transport; none likewise.
    pub qp_type: Option<QpType>,
    /// Our address, if it is known.
    pub src: Option<Addr>,
    /// The peer's.
    pub dst: Option<Addr>,
    /// The paths to it; none if it is not of InfiniBand's own and ACM knows none, or was not to have any.
    pub paths: Vec<PathData>,
    /// Whether ACM has told the paths. It may not have heard of a change yet: where the paths cannot be used, others are found by
    /// the addresses.
    pub by_acm: bool,
    /// What goes before the program's private data, so that a listener with an IP address understands them.
    pub connect: Vec<u8>,
}

/// Why nothing was found.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The name service has nothing, or fails (getaddrinfo(3)).
    #[error("cannot find {what}: {source}")]
    Lookup {
        /// What was asked for.
        what: String,
        /// Its error: one of `EAI_*`.
        code: i32,
        /// The same in words.
        source: io::Error,
    },
    /// It is no address of the family that was asked for.
    #[error("{text:?} is no GID: IPv6 and IPv4 addresses are")]
    NoGid {
        /// What was given.
        text: String,
    },
    /// Subnet administration knows no such service.
    #[error("no service {what} is registered at subnet administration")]
    NoService {
        /// What was asked for.
        what: String,
    },
    /// The host's service.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl ResolveError {
    /// The error of getaddrinfo(3), if it is one.
    pub fn eai(&self) -> Option<i32> {
        match self {
            Self::Lookup { code, .. } if *code != libc::EAI_SYSTEM => Some(*code),
            Self::NoGid { .. } => Some(libc::EAI_NONAME),
            _ => None,
        }
    }

    /// The error number.
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
    /// One for connections of this process, over the device of one kind only, or over any that the process sees.
    pub fn new(client: Arc<HostClient>, only: Option<DeviceKind>) -> Self {
        Self { client, only, dir: RuntimeDir::of_environment().ok() }
    }

    /// The same, with the names of virtual hosts from this directory instead of the usual one.
    pub fn names_of(self, dir: RuntimeDir) -> Self {
        Self { dir: Some(dir), ..self }
    }

    /// Finds a node and a service, one of which may be left out, as for getaddrinfo(3). The best answer is the first; there is
    /// one. Without hints answers are IP addresses for connections.
    ///
    /// It takes as long as the name service does, and where a path is wanted, up to 2 s for the neighbour and 2 s for the path.
    /// ACM is asked before them, for half a second at most (see [`Settings`](crate::client::acm::Settings)); a path that it knows
    /// also comes with an IP address. It is asked for a native address of a name, too, that the name service does not know.
    ///
    /// # Errors
    /// [`ResolveError`]. That a peer has no GID, or does not answer, is none.
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
        // An IP address has no service but a port.
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

    /// What is known of a name that has no IP address, if it is to have a native one.
    fn without_ip(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        hints: &Hints,
    ) -> Option<Vec<Answer>> {
        let is_active = !hints.passive && !hints.numeric_host && hints.is_native();
        let found = self.by_name(node.filter(|_| is_active)?, service, hints);
        let found = found.inspect_err(|error| tracing::debug!(%error, "no native service"));
        Some(vec![found.ok()??])
    }

    /// The native address of an IP address and the path there, and the IP address behind it.
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
