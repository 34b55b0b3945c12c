//! What the configuration file says about fabrics, in its table `[fabric]`.

use serde::Deserialize;

use crate::{FabricName, InvalidFabricName};

/// The table `[fabric]`.
///
/// ```toml
/// [fabric]
/// name = "default"  # the fabric of this user's hosts
/// ports = ["a", "b"] # of hosts, whose first port is on the first; the one that `name` names if absent
/// users = [1000]    # numbers of users, beside the owner and root, whose programs may attach
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The fabric that hosts are on and commands are about where neither an option nor `$RDMUX_FABRIC` names one.
    pub name: FabricName,
    /// The fabrics that the ports of hosts are on, one for each port; if there are none, that of `name`, and hosts have one port.
    /// `$RDMUX_FABRIC` counts more.
    pub ports: Vec<FabricName>,
    /// Users, beside the owner and root, whose hosts and programs may attach. They find the fabric where
    /// `RDMUX_RUNTIME_DIR` leads to the owner's directory. They may not change the subnet.
    pub users: Vec<u32>,
    /// Whether the ports of hosts have no IP interface: they join no broadcast group, and no connection by IP address goes over them. For those who
    /// manage a subnet and want nobody's memberships in it.
    pub without_ip: bool,
}

impl Config {
    /// The fabrics that the ports of hosts are on: the one that `$RDMUX_FABRIC` names, or else those of this configuration.
    ///
    /// # Errors
    /// [`InvalidFabricName`] for what the variable holds.
    pub fn of_hosts(&self) -> Result<Vec<FabricName>, InvalidFabricName> {
        if let Some(named) = FabricName::of_environment()? {
            return Ok(vec![named]);
        }
        Ok(if self.ports.is_empty() { vec![self.name.clone()] } else { self.ports.clone() })
    }

    /// The fabric that `$RDMUX_FABRIC` names, or else this configuration.
    ///
    /// # Errors
    /// [`InvalidFabricName`] for what the variable holds.
    pub fn chosen(&self) -> Result<FabricName, InvalidFabricName> {
        Ok(FabricName::of_environment()?.unwrap_or_else(|| self.name.clone()))
    }
}
