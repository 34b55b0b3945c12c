//! The name of a (virtual) host.

use std::fmt;
use std::str::FromStr;

use rdmux_runtime::name::{self, is_label};

/// The name of a host: a DNS label in lower case (RFC 1123). It is also the name of a directory, so
/// it holds nothing else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(String);

/// The reason why a string is not a [`HostName`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a host name: use 1 to 63 of a-z, 0-9 and '-', with neither end a '-', as in \"node-1\""
)]
pub struct InvalidHostName(String);

impl HostName {
    /// The most bytes of a name.
    pub const MAX: usize = name::MAX;
    /// The name of the host that owns the machine's own addresses.
    pub const DEFAULT: &'static str = "default";

    /// Checks a name.
    ///
    /// # Errors
    /// [`InvalidHostName`], which describes a valid name.
    pub fn new(name: &str) -> Result<Self, InvalidHostName> {
        if is_label(name) {
            Ok(Self(name.to_owned()))
        } else {
            Err(InvalidHostName(name.to_owned()))
        }
    }

    /// Returns the host that this process is on: `$RDMUX_HOST`, or the default one.
    ///
    /// # Errors
    /// [`InvalidHostName`] for an invalid value of the variable.
    pub fn of_environment() -> Result<Self, InvalidHostName> {
        match std::env::var("RDMUX_HOST") {
            Ok(name) if !name.is_empty() => Self::new(&name),
            _ => Ok(Self::default()),
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this is the host that owns the machine's own addresses.
    pub fn is_default(&self) -> bool {
        self.0 == Self::DEFAULT
    }
}

impl Default for HostName {
    fn default() -> Self {
        Self(Self::DEFAULT.to_owned())
    }
}
impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl FromStr for HostName {
    type Err = InvalidHostName;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::new(s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_labels_are_names() {
        for good in ["a", "node-1", "0", &"x".repeat(63)] {
            assert_eq!(HostName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a/b", "..", "a b", "ä", "a\0", &"x".repeat(64)] {
            assert!(HostName::new(bad).is_err(), "{bad:?}");
        }
        assert!(HostName::default().is_default());
    }
}
