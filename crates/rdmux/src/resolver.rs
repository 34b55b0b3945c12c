//! Names to what a connection needs: addresses, and on InfiniBand and RoCE GIDs and paths. A layer of its own, which makes no
//! connection.
//!
//! An [`Answer`] has all that a connection takes: port space, both addresses, paths, and what goes before its private data.
//! [`Options::connect_along`](crate::Options::connect_along) plugs it in as it is, over whatever device the host has:
//!
//! ```
//! use rdmux::resolver::{Hints, Resolver};
//! use rdmux::{Context, Options};
//!
//! # fn main() -> rdmux::Result<()> {
//! # let context = Context::builder().embedded().open()?;
//! let mut listener = Options::new().context(&context).bind((context.address()?, 0).into())?;
//! let port = listener.local_addr().port().to_string();
//! let node = context.address()?.to_string(); // or a name
//! let server = std::thread::spawn(move || {
//!     let mut peer = listener.accept()?;
//!     while let Some(message) = peer.recv()? {
//!         peer.send(&message)?;
//!     }
//!     rdmux::Result::Ok(())
//! });
//!
//! let hints = Hints { native: true, ..Hints::default() };
//! let answers = Resolver::new(&context).resolve(Some(&node), Some(&port), &hints)?;
//! for answer in &answers {
//!     println!("{} by {} paths", answer.dst.expect("an address"), answer.paths.len());
//! }
//! let mut connection = Options::new().context(&context).connect_along(&answers[0])?;
//! connection.send(b"hello")?;
//! assert_eq!(connection.recv()?.as_deref(), Some(&b"hello"[..]));
//! connection.close()?;
//! server.join().unwrap()
//! # }
//! ```
//!
//! In C this is `rdma_getaddrinfo(3)` with `RDMUX_RAI_NATIVE` of `<rdmux/cm.h>`.

use std::fmt;
use std::net::SocketAddr;

pub use rdmux_host::ServiceKey;
pub use rdmux_host::resolver::{Answer, Family, Hints};
use rdmux_host::resolver::{self as host, ResolveError};

use crate::Context;
use crate::error::{Attempt as _, Cause, Result};

/// Finds names for connections over a context's device.
#[derive(Clone)]
pub struct Resolver {
    context: Context,
    resolver: host::Resolver,
}

impl Resolver {
    /// One for a context's device and host.
    pub fn new(context: &Context) -> Self {
        let resolver = host::Resolver::new(context.client().clone(), Some(context.kind()));
        let resolver = resolver.names_of(context.options().dir.clone());
        Self { context: context.clone(), resolver }
    }

    /// Finds a node and a service, as getaddrinfo(3) does: the best answer is the first, and there is one. With
    /// [`Hints::native`] that is one with a GID and a path, if the device has them; those with IP addresses follow.
    ///
    /// It blocks for as long as the name service does, and up to 2 s each for the neighbour and the path.
    ///
    /// # Errors
    /// When the name service knows nothing, or the host service is gone. That a peer does not answer is no error: then
    /// there are IP addresses only.
    pub fn resolve(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        hints: &Hints,
    ) -> Result<Vec<Answer>> {
        self.resolver.resolve(node, service, Some(hints)).on(self, "resolve a name")
    }

    /// The native address of an IP address and the path there, and the IP address behind it.
    pub fn resolve_addr(&self, to: SocketAddr, hints: &Hints) -> Vec<Answer> {
        self.resolver.resolve_addr(to, hints)
    }

    /// The services of a name or a service ID that subnet administration knows, asked by this port of an InfiniBand device. They have
    /// no paths.
    ///
    /// # Errors
    /// When there is none, or nobody answers within 2 s.
    pub fn services(&self, port: u8, service: &ServiceKey) -> Result<Vec<Answer>> {
        let gid = self.context.device().gid(port, 0).map(|entry| entry.gid);
        let no_gid = || Cause::Invalid(format!("port {port} has no GID"));
        let gid = gid.ok_or_else(no_gid).on(self, "look for a service")?;
        self.resolver.services(gid, service).on(self, "look for a service")
    }
}

impl fmt::Display for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "resolver of host {}", self.context.host())
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resolver({})", self.context.host())
    }
}

impl From<ResolveError> for Cause {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::Host(error) => error.into(),
            other => Self::Unresolved(other),
        }
    }
}
