//! What the configuration file says about fabrics, in its table `[fabric]`.

use serde::Deserialize;

/// The table `[fabric]`.
///
/// ```toml
/// [fabric]
/// users = [1000]    # numbers of users, beside the owner and root, whose programs may attach
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Users, beside the owner and root, whose hosts and programs may attach. They find the fabric where
    /// `RDMUX_RUNTIME_DIR` leads to the owner's directory. They may not change the subnet.
    pub users: Vec<u32>,
}
