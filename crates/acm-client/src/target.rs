//! The service to use.

use std::fmt;

use crate::{Address, Places};

/// A service, given by its files or by an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The service with these files, as connection managers find it.
    Programs(Places),
    /// The service with these files, even if it is hidden from connection managers (`acme_plus_kernel_only`).
    Tools(Places),
    /// The service at an address, whose files are unknown.
    At(Address),
}

impl Target {
    /// Returns the service's current address: a service that restarts may use another mode.
    fn address(&self) -> Address {
        match self {
            Self::Programs(places) => places.address(),
            Self::Tools(places) => places.address_of_tools(),
            Self::At(address) => address.clone(),
        }
    }

    /// Returns the service's current addresses, in the order in which to try them. The kernel reports the user only of a Unix socket's
    /// listener, and a service that was killed leaves the file with its port.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Address> {
        let address = self.address();
        let socket = match (&address, self) {
            (Address::Tcp(_), Self::Programs(places)) => Some(places.socket_link()),
            (Address::Tcp(_), Self::Tools(places)) => Some(places.socket()),
            _ => None,
        };
        socket.map(Address::Unix).into_iter().chain([address])
    }

    /// Returns the files, if they are known.
    pub(crate) fn places(&self) -> Option<&Places> {
        match self {
            Self::Programs(places) | Self::Tools(places) => Some(places),
            Self::At(_) => None,
        }
    }
}

impl From<Places> for Target {
    fn from(places: Places) -> Self {
        Self::Programs(places)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address() {
            Address::Unix(path) => path.display().fmt(f),
            Address::Tcp(address) => address.fmt(f),
        }
    }
}
