//! Which service is meant.

use std::fmt;

use crate::{Address, Places};

/// A service, by the places of its files or by an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The service whose files are there, as connection managers find it.
    Programs(Places),
    /// The same, also where the service hides from connection managers (`acme_plus_kernel_only`).
    Tools(Places),
    /// The one at an address, of which no more is known.
    At(Address),
}

impl Target {
    /// Where it can be connected to now: a service that restarts may choose another mode.
    pub(crate) fn address(&self) -> Address {
        match self {
            Self::Programs(places) => places.address(),
            Self::Tools(places) => places.address_of_tools(),
            Self::At(address) => address.clone(),
        }
    }

    /// The files, if they are known.
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
