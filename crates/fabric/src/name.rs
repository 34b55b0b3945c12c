//! The name of a fabric.

use std::fmt;
use std::str::FromStr;

use rdmux_runtime::name::is_label;
use serde::Deserialize;

/// The name of a fabric: a DNS label in lower case, like host names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct FabricName(String);

/// The reason why a string is not a [`FabricName`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a fabric's name: use 1 to 63 of a-z, 0-9 and '-', with neither end a '-', as in \"fabric-1\""
)]
pub struct InvalidFabricName(String);

impl FabricName {
    /// The environment variable that names a process's fabric.
    pub const VARIABLE: &'static str = "RDMUX_FABRIC";
    /// The name of the fabric if none is given.
    pub const DEFAULT: &'static str = "default";

    /// Checks a name.
    ///
    /// # Errors
    /// [`InvalidFabricName`], which describes a valid name.
    pub fn new(name: &str) -> Result<Self, InvalidFabricName> {
        if is_label(name) {
            Ok(Self(name.to_owned()))
        } else {
            Err(InvalidFabricName(name.to_owned()))
        }
    }

    /// Returns the fabric that `$RDMUX_FABRIC` names, if it is set.
    ///
    /// # Errors
    /// [`InvalidFabricName`] for an invalid value of the variable.
    pub fn of_environment() -> Result<Option<Self>, InvalidFabricName> {
        let set = std::env::var_os(Self::VARIABLE).filter(|name| !name.is_empty());
        set.map(|name| Self::new(&name.to_string_lossy())).transpose()
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for FabricName {
    type Error = InvalidFabricName;
    fn try_from(s: String) -> Result<Self, Self::Error> {
        Self::new(&s)
    }
}

impl Default for FabricName {
    fn default() -> Self {
        Self(Self::DEFAULT.to_owned())
    }
}
impl fmt::Display for FabricName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl FromStr for FabricName {
    type Err = InvalidFabricName;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::new(s)
    }
}
