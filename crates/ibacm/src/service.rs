//! The names by which programs refer to a service.

use std::net::ToSocketAddrs;
use std::path::Path;

use rdmux_acm_client::{Address, Places, Target};

use crate::boundary::{Errno, Result};

/// The TCP port of ibacm.
const PORT: u16 = 6125;

/// Returns the services that a name stands for. The first one that is running is used.
pub(crate) fn targets(name: &[u8]) -> Result<Vec<Target>> {
    let name = std::str::from_utf8(name).map_err(|_| Errno::EINVAL)?;
    if name.is_empty() {
        return Ok(usual());
    }
    if name.starts_with('/') {
        return Ok(vec![of_socket(Path::new(name))]);
    }
    let port = match Places::of_system().address_of_tools() {
        Address::Tcp(address) => address.port(),
        Address::Unix(_) => PORT,
    };
    let found = (name, port).to_socket_addrs().map_err(|_| Errno(libc::EHOSTUNREACH))?;
    Ok(found.map(|address| Target::At(Address::Tcp(address))).collect())
}

/// Returns the service of `$RDMUX_ACM_DIR`, or that of the virtual host, followed by the machine's own.
fn usual() -> Vec<Target> {
    let system = Places::of_system();
    if let Some(chosen) = Places::of_variable() {
        return vec![Target::Tools(chosen)];
    }
    Places::of_environment().into_iter().chain([system]).map(Target::Tools).collect()
}

/// Returns the service of a socket: by its files, if the socket has a service's usual name, so that its cache is
/// found.
fn of_socket(path: &Path) -> Target {
    let places = path.parent().map(|folder| Places::new(folder, folder));
    match places.filter(|places| [places.socket(), places.socket_link()].iter().any(|s| s == path))
    {
        Some(places) => Target::Tools(places),
        None => Target::At(Address::Unix(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_argument_is_a_socket_path_or_host_or_an_errno() {
        let tools = Target::Tools(Places::new("/run/x", "/run/x"));
        assert_eq!(targets(b"/run/x/ibacm.sock").unwrap(), [tools]);
        let other = Target::At(Address::Unix("/run/x/other".into()));
        assert_eq!(targets(b"/run/x/other").unwrap(), [other]);
        let [Target::At(Address::Tcp(address))] = targets(b"127.0.0.2").unwrap()[..] else {
            panic!()
        };
        assert_eq!(address.ip().to_string(), "127.0.0.2");
        assert_eq!(targets(b"\xff").unwrap_err(), Errno::EINVAL);
        assert_eq!(targets(b"no.such.host.invalid").unwrap_err(), Errno(libc::EHOSTUNREACH));
    }

    #[test]
    fn places_of_a_host_are_those_that_the_host_has() {
        let dir = rdmux_host::RuntimeDir::of_environment().unwrap();
        let host = rdmux_host::HostName::of_environment().unwrap();
        assert_eq!(Places::of_environment(), Some(dir.host(&host).unwrap().acm()));
    }
}
