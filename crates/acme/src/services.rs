//! The services to query: those of `-S`, or that of the host.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use rdmux_acm_client::{Address, Places, Target};
use rdmux_host::{HostName, RuntimeDir};

use crate::errno;

/// The TCP port of services, unless a file names another.
const PORT: u16 = 6125;

/// The timeout of connecting.
pub(crate) const CONNECT: Duration = Duration::from_secs(10);

/// The return value of `ib_acme` when there is no better number.
const FAILED: i32 = -1;

/// A service to query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    /// The word of `-S`, or the service's address.
    name: String,
    place: Place,
    /// The service's files, if it runs on this machine.
    places: Option<Places>,
}

/// The location of a service: a Unix socket, or a TCP port of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Unix(PathBuf),
    Tcp { host: String, port: u16 },
}

/// A service that has no listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreachable {
    /// The reason.
    pub(crate) why: String,
    /// The return value of `ib_acme`: an errno, the code of getaddrinfo(3), or -1.
    pub(crate) status: i32,
}

impl Service {
    /// Returns the service of a word of `-S`: a word that starts with a slash is the path of a socket, any other a
    /// host.
    pub(crate) fn of_word(word: &str) -> Self {
        let place = if word.starts_with('/') {
            Place::Unix(word.into())
        } else {
            Place::Tcp { host: word.to_owned(), port: port() }
        };
        // The other files are beside the socket.
        let places = Path::new(word).parent().filter(|_| word.starts_with('/'));
        let places = places.map(|folder| Places::new(folder, ""));
        Self { name: word.to_owned(), place, places }
    }

    /// Returns the service of the host of this name. Without a name, returns the service of the host that the environment
    /// names, or the machine's service if that host has none and the machine has one: in a view that is a host's service,
    /// not necessarily of the named host.
    ///
    /// # Errors
    /// Those of [`places`].
    pub(crate) fn of_host(host: Option<&str>) -> Result<Self> {
        let own = places(host)?;
        let is_named = host.is_some_and(|name| !name.is_empty());
        let system = (!is_named).then(Places::of_system);
        Ok(Self::of_places(&own, system.as_ref()))
    }

    /// Returns the service of these files, or the machine's service if they have none and the machine has one.
    fn of_places(own: &Places, system: Option<&Places>) -> Self {
        let all = [Some(own), system];
        let there = all.into_iter().flatten().find(|places| is_there(places)).unwrap_or(own);
        let (name, place) = match there.address_of_tools() {
            Address::Unix(path) => (path.display().to_string(), Place::Unix(path)),
            // The services of this machine's hosts differ only in their ports.
            Address::Tcp(at) => {
                (at.to_string(), Place::Tcp { host: at.ip().to_string(), port: at.port() })
            }
        };
        Self { name, place, places: Some(there.clone()) }
    }

    /// Returns the service's name for output.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the service's address, after a check that the service has a listener. The check takes at most
    /// `within` for each address.
    ///
    /// # Errors
    /// The output, and the return value of `ib_acme`.
    pub(crate) fn reach(&self, within: Duration) -> Result<Address, Unreachable> {
        match &self.place {
            Place::Unix(path) => {
                let address = Address::Unix(path.clone());
                let failed = |e| Unreachable { why: errno::of(&e), status: e.errno() };
                Target::At(address.clone()).reach(within).map_err(failed).map(|()| address)
            }
            Place::Tcp { host, port } => reach_tcp(host, *port, within).map(Address::Tcp),
        }
    }

    /// Returns the socket that passes the cache to clients, if the service runs on this machine.
    pub(crate) fn cache(&self) -> Option<PathBuf> {
        self.places.as_ref().map(Places::paths)
    }
}

fn reach_tcp(host: &str, port: u16, within: Duration) -> Result<SocketAddr, Unreachable> {
    let found = dns_lookup::getaddrinfo(Some(host), None, None).map_err(|e| {
        let status = e.error_num();
        Unreachable { why: errno::text(&e.into()), status }
    })?;
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for info in found.flatten() {
        let at = SocketAddr::new(info.sockaddr.ip(), port);
        match TcpStream::connect_timeout(&at, within) {
            Ok(_) => return Ok(at),
            Err(e) => last = e,
        }
    }
    Err(Unreachable { why: errno::text(&last), status: FAILED })
}

fn is_there(places: &Places) -> bool {
    match places.address_of_tools() {
        Address::Unix(path) => path.exists(),
        Address::Tcp(_) => true,
    }
}

/// Returns the port of other machines' services: that of this machine's service, as in rdma-core.
fn port() -> u16 {
    match Places::of_system().address_of_tools() {
        Address::Tcp(at) => at.port(),
        Address::Unix(_) => PORT,
    }
}

/// Returns the locations of the files of a host's service; without a name, of the host that the environment names.
///
/// # Errors
/// When the name is invalid, or the runtime directory cannot be used.
pub(crate) fn places(host: Option<&str>) -> Result<Places> {
    let name = host.filter(|name| !name.is_empty());
    let name = name.map_or_else(HostName::of_environment, HostName::new)?;
    let places = RuntimeDir::of_environment()?.host(&name)?.acm();
    Ok(if host.is_some() { places } else { places.or_of_environment() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use rdmux_runtime::listen_at;
    use rustix::net::SocketType;

    use super::*;

    #[test]
    fn service_word_with_a_path_is_a_socket_and_otherwise_a_host() {
        let unix = Service::of_word("/run/x.sock");
        assert_eq!(unix.place, Place::Unix("/run/x.sock".into()));
        assert_eq!(unix.cache(), Some("/run/paths".into()));
        let host = Service::of_word("node1");
        assert_eq!(host.cache(), None);
        assert!(matches!(host.place, Place::Tcp { host, .. } if host == "node1"));
    }

    #[test]
    fn own_service_on_a_port_has_its_cache_and_its_port_in_its_name() {
        let dir = rdmux_testing::temp_dir();
        let places = Places::new(dir.path(), "");
        std::fs::write(places.port(), "7125\n").unwrap();
        let service = Service::of_places(&places, None);
        assert_eq!(service.name(), "127.0.0.1:7125");
        assert_eq!(service.place, Place::Tcp { host: "127.0.0.1".to_owned(), port: 7125 });
        assert_eq!(service.cache(), Some(places.paths()));
    }

    #[test]
    fn host_without_a_service_has_the_system_s_only_if_it_may() {
        let dir = rdmux_testing::temp_dir();
        let [own, system] = ["own", "system"].map(|name| Places::new(dir.path().join(name), ""));
        std::fs::create_dir(system.runtime()).unwrap();
        std::fs::write(system.socket(), "").unwrap();
        let socket = |service: Service| PathBuf::from(service.name());
        assert_eq!(socket(Service::of_places(&own, Some(&system))), system.socket());
        assert_eq!(socket(Service::of_places(&own, None)), own.socket());
    }

    #[test]
    fn missing_socket_is_an_errno_and_missing_host_a_code_of_getaddrinfo() {
        let Unreachable { why, status } =
            Service::of_word("/nowhere/x.sock").reach(CONNECT).unwrap_err();
        assert_eq!((why.as_str(), status), ("No such file or directory", 2));
        assert!(Service::of_word("no such host").reach(CONNECT).unwrap_err().status < 0);
    }

    #[test]
    fn socket_with_a_long_path_is_reached() {
        let dir = rdmux_testing::temp_dir();
        let folder = dir.path().join("x".repeat(120));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("svc");
        let _listener = listen_at(&path, SocketType::STREAM, 0o600).unwrap();
        let service = Service::of_word(path.to_str().unwrap());
        assert_eq!(service.reach(CONNECT), Ok(Address::Unix(path)));
    }

    #[test]
    fn service_whose_backlog_is_full_is_not_waited_for_without_end() {
        let dir = rdmux_testing::temp_dir();
        let path = dir.path().join("svc");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let service = Service::of_word(path.to_str().unwrap());
        let _waits = UnixStream::connect(&path).unwrap();
        let Unreachable { why, status } = service.reach(Duration::from_millis(1)).unwrap_err();
        assert_eq!((why.as_str(), status), ("Connection timed out", 110));
    }
}
