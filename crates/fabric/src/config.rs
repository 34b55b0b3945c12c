//! What the configuration file says about fabrics, in its table `[fabric]`.

use serde::Deserialize;

use crate::{FabricName, InvalidFabricName};

/// The table `[fabric]`.
///
/// ```toml
/// [fabric]
/// name = "default"  # the fabric of this user's hosts
/// users = [1000]    # numbers of users, beside the owner and root, whose programs may attach
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The fabric that hosts are on and commands are about where neither an option nor `$RDMUX_FABRIC` names one.
    pub name: FabricName,
    /// Users, beside the owner and root, whose hosts and programs may attach. They find the fabric where
    /// `RDMUX_RUNTIME_DIR` leads to the owner's directory. They may not change the subnet.
    pub users: Vec<u32>,
}

impl Config {
    /// The fabric that `$RDMUX_FABRIC` names, or else this configuration.
    ///
    /// # Errors
    /// [`InvalidFabricName`] for what the variable holds.
    pub fn chosen(&self) -> Result<FabricName, InvalidFabricName> {
        Ok(FabricName::of_environment()?.unwrap_or_else(|| self.name.clone()))
    }
}
