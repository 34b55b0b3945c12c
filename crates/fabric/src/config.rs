//! The configuration file's table `[fabric]`.

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
    /// The fabric of hosts and commands if neither an option nor `$RDMUX_FABRIC` names one.
    pub name: FabricName,
    /// The fabrics of hosts' ports, one for each port. If empty, hosts have one port, on the fabric of `name`. `$RDMUX_FABRIC`
    /// takes precedence.
    pub ports: Vec<FabricName>,
    /// Users besides the owner and root whose hosts and programs may attach. They find the fabric if their
    /// `RDMUX_RUNTIME_DIR` names the owner's directory. They may not change the subnet.
    pub users: Vec<u32>,
    /// Whether hosts' ports have no IP interface: they join no broadcast group, and carry no connections by IP address. For users who
    /// manage a subnet without memberships in it.
    pub without_ip: bool,
}

impl Config {
    /// Returns the fabrics of hosts' ports: the one that `$RDMUX_FABRIC` names, or else those of this configuration.
    ///
    /// # Errors
    /// [`InvalidFabricName`] for an invalid value of the variable.
    pub fn of_hosts(&self) -> Result<Vec<FabricName>, InvalidFabricName> {
        if let Some(named) = FabricName::of_environment()? {
            return Ok(vec![named]);
        }
        Ok(if self.ports.is_empty() { vec![self.name.clone()] } else { self.ports.clone() })
    }

    /// Returns the fabric that `$RDMUX_FABRIC` names, or else this configuration's.
    ///
    /// # Errors
    /// [`InvalidFabricName`] for an invalid value of the variable.
    pub fn chosen(&self) -> Result<FabricName, InvalidFabricName> {
        Ok(FabricName::of_environment()?.unwrap_or_else(|| self.name.clone()))
    }
}
