//! Looks up paths to names and addresses in the host's ACM service, `ib_acm`. The service caches paths that it learns from its peers,
//! and queries subnet administration only for unknown destinations.
//!
//! ```no_run
//! # fn main() -> rdmux::Result<()> {
//! use rdmux::Context;
//! use rdmux::acm::{Acm, address};
//!
//! let acm = Acm::new(&Context::open()?)?;
//! let found = acm.resolve(None, address("node17")?)?;
//! for path in &found.paths {
//!     println!("LID {} with {:?}", path.path.dlid.0, path.path.mtu);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `tokio`, any number of tasks may issue requests concurrently. Without it, [`Requests`] has a
//! descriptor for event loops:
//!
//! ```no_run
//! # #[cfg(feature = "tokio")]
//! # async fn all() -> rdmux::Result<()> {
//! # use rdmux::acm::{Acm, address};
//! # let acm = Acm::new(&rdmux::Context::open()?)?;
//! let names = (1..=100).map(|n| address(&format!("node{n}"))).collect::<rdmux::Result<Vec<_>>>()?;
//! let tasks: Vec<_> = names.into_iter().map(|name| {
//!     let acm = acm.clone();
//!     tokio::spawn(async move { acm.resolve_async(None, name).await })
//! }).collect();
//! for task in tasks {
//!     println!("{}", task.await.expect("no panic")?.paths.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Cached entries are read from memory that the service shares, without a system call. The C equivalent of this module is
//! `<rdmux/acm.h>`.

use std::fmt;
#[cfg(feature = "tokio")]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdmux_acm_client::Client;
pub use rdmux_acm_client::{
    DEFAULT_TIMEOUT, Endpoint, Error as AcmError, Places, Reply, RequestId, Requests, Target,
};
pub use rdmux_wire::acm::Address;
pub use rdmux_wire::acm::client::{PathData, PathFlags, Paths, Query, Status};

use crate::Context;
use crate::error::{Attempt as _, Cause, Error, Result};

/// Parses an IP address or, if `text` is not one, a name of at most 63 bytes.
///
/// # Errors
/// If the text is longer than that, or empty.
pub fn address(text: &str) -> Result<Address> {
    if let Ok(ip) = text.parse::<std::net::IpAddr>() {
        return Ok(ip.into());
    }
    let why = || Cause::Invalid("a name has 1 to 63 bytes".into());
    Address::name(text)
        .ok_or_else(|| Error::new(format!("{text:?}"), "be used as an ACM name", why()))
}

/// A client of a host's ACM service. It connects on the first request. Clones share its connections.
#[derive(Clone)]
pub struct Acm {
    inner: Arc<Inner>,
    timeout: Duration,
}

struct Inner {
    name: String,
    targets: Vec<Target>,
    client: Client,
    #[cfg(feature = "tokio")]
    waiter: crate::wait::Waiter<Source>,
}

impl Acm {
    /// Returns a client of the service of a context's host, or of the service that `$RDMUX_ACM_DIR` names.
    ///
    /// # Errors
    /// When the host's directory is not safe to use, or the process has no descriptors left.
    pub fn new(context: &Context) -> Result<Self> {
        let host = context.options().dir.host(context.client().host());
        let places = host.on(context, "find its ACM service")?.acm().or_of_environment();
        Self::at([Target::Programs(places)])
    }

    /// Returns a client of the first service among `targets` that is running.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn at(targets: impl IntoIterator<Item = Target>) -> Result<Self> {
        let targets: Vec<_> = targets.into_iter().collect();
        let name = targets.first().map_or_else(String::new, ToString::to_string);
        let name = format!("ACM service at {name}");
        let inner = Inner {
            client: Client::new(targets.clone()),
            #[cfg(feature = "tokio")]
            waiter: crate::wait::Waiter::new(Source::new(&targets).on(&name, "be used")?),
            targets,
            name,
        };
        Ok(Self { inner: Arc::new(inner), timeout: DEFAULT_TIMEOUT })
    }

    /// Sets the timeout of each request, [`DEFAULT_TIMEOUT`] by default.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns the paths from `source` (none: the service chooses it) to a name or an address, best first, from the shared cache or
    /// by a request to the service.
    ///
    /// # Errors
    /// [`Cause::TimedOut`]; [`Cause::Acm`] when no service runs or it answers with an error.
    pub fn resolve(&self, source: Option<Address>, dest: Address) -> Result<Paths> {
        self.inner.client.resolve(source, dest, self.timeout).on(self, "resolve an address")
    }

    /// Returns the paths in the service's shared cache, if the service has passed it to this process. Never waits: the first call
    /// requests the cache, which [`resolve`](Self::resolve) waits for.
    pub fn cached(&self, source: Option<&Address>, dest: &Address) -> Option<Paths> {
        self.inner.client.cached(source, dest)
    }

    /// Sends any query to the service and returns its reply.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn ask(&self, query: &Query) -> Result<Reply> {
        self.inner.client.ask(*query, self.timeout).on(self, "answer")
    }

    /// Returns requests for the program's own event loop, which polls their descriptor and then takes the replies.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn requests(&self) -> Result<Requests> {
        Requests::new(self.inner.targets.clone()).on(self, "be used")
    }

    /// Async form of [`resolve`](Self::resolve). Dropping the future cancels the request.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    #[cfg(feature = "tokio")]
    pub async fn resolve_async(&self, source: Option<Address>, dest: Address) -> Result<Paths> {
        match self.ask_async(&Query::Resolve { source, dest, cached_only: false }).await? {
            Reply::Paths(paths) => Ok(paths),
            _ => Err(Error::new(
                self.to_string(),
                "resolve an address",
                Cause::Invalid("the service answered another request".into()),
            )),
        }
    }

    /// Async form of [`ask`](Self::ask). Dropping the future cancels the request.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    #[cfg(feature = "tokio")]
    pub async fn ask_async(&self, query: &Query) -> Result<Reply> {
        let source = self.inner.waiter.source();
        let asked = Asked { source, id: source.lock().start(query, self.timeout) };
        loop {
            let look = self.inner.waiter.look();
            if let Some(reply) = source.lock().take(asked.id) {
                return reply.on(self, "answer");
            }
            look.ready().await.on(self, "be waited for")?;
        }
    }
}

impl fmt::Display for Acm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.name)
    }
}

impl fmt::Debug for Acm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acm").field("targets", &self.inner.targets).finish_non_exhaustive()
    }
}

/// The outstanding requests of all tasks.
#[cfg(feature = "tokio")]
struct Source {
    requests: Mutex<Requests>,
    /// The descriptor of `requests`, which tasks wait for without holding the lock.
    fd: OwnedFd,
}

#[cfg(feature = "tokio")]
impl Source {
    fn new(targets: &[Target]) -> Result<Self, Cause> {
        let requests = Requests::new(targets.to_vec())?;
        let fd = requests.as_fd().try_clone_to_owned()?;
        Ok(Self { requests: Mutex::new(requests), fd })
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(feature = "tokio")]
impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A task's request. It is cancelled when this value is dropped.
#[cfg(feature = "tokio")]
struct Asked<'a> {
    source: &'a Source,
    id: RequestId,
}

#[cfg(feature = "tokio")]
impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.source.lock().cancel(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acm_destination_is_an_ip_address_or_a_name() {
        assert_eq!(address("10.1.2.3").unwrap(), std::net::Ipv4Addr::new(10, 1, 2, 3).into());
        assert_eq!(
            address("fd00::1").unwrap(),
            "fd00::1".parse::<std::net::Ipv6Addr>().unwrap().into()
        );
        assert_eq!(address("node1").unwrap(), Address::name("node1").unwrap());
        let error = address("").unwrap_err().to_string();
        assert_eq!(error, "\"\": cannot be used as an ACM name: a name has 1 to 63 bytes");
    }

    #[test]
    fn missing_acm_service_is_connection_refused_with_advice() {
        let acm = Acm::at([Target::Programs(Places::new("/nowhere", "/nowhere"))]).unwrap();
        let error = acm.resolve(None, address("node1").unwrap()).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("ACM service at /nowhere/ibacm.sock: cannot resolve"), "{text}");
        assert!(text.contains("start ib_acm"), "{text}");
        assert_eq!(error.cause().kind(), std::io::ErrorKind::ConnectionRefused);
    }
}
