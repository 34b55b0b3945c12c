//! The name of a fabric.

use std::fmt;
use std::str::FromStr;

use rdmux_runtime::name::is_label;

/// The name of a fabric: a DNS label, lower case, as host names are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FabricName(String);

/// Why a string is not a [`FabricName`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a fabric's name: use 1 to 63 of a-z, 0-9 and '-', with neither end a '-', as in \"fabric-1\""
)]
pub struct InvalidFabricName(String);

impl FabricName {
    /// The variable of the environment that names a process's fabric.
    pub const VARIABLE: &'static str = "RDMUX_FABRIC";
    /// The name of the fabric that is meant where none is named.
    pub const DEFAULT: &'static str = "default";

    /// Takes a name.
    ///
    /// # Errors
    /// [`InvalidFabricName`], which says what a name is.
    pub fn new(name: &str) -> Result<Self, InvalidFabricName> {
        if is_label(name) {
            Ok(Self(name.to_owned()))
        } else {
            Err(InvalidFabricName(name.to_owned()))
        }
    }

    /// The fabric that this process's host is on: `$RDMUX_FABRIC`, or the default one.
    ///
    /// # Errors
    /// [`InvalidFabricName`] for what the variable holds.
    pub fn of_environment() -> Result<Self, InvalidFabricName> {
        match std::env::var_os(Self::VARIABLE) {
            Some(name) if !name.is_empty() => Self::new(&name.to_string_lossy()),
            _ => Ok(Self::default()),
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
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
