//! The configuration of a fabric's embedded subnet manager.

use std::path::Path;
use std::time::Duration;

use rdmux_subnet::manager::{self, RoutingEngine};
use rdmux_subnet::partitions::Partitions;
use rdmux_wire::Mkey;
use rdmux_wire::sm::{SlToVlTable, Vl};
use serde::{Deserialize, Serialize};

use super::setup::read;
use crate::FabricError;

/// The configuration of a fabric's embedded subnet manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ManagerSetup {
    /// Whether the fabric has no manager: a program on a host manages the subnet, or the subnet is not managed.
    pub off: bool,
    /// The priority, 0 to 15: of several managers the one with the highest is the master.
    pub priority: u8,
    /// The routing engine.
    pub routing: RoutingEngine,
    /// LID mask control, 0 to 7.
    pub lmc: u8,
    /// Milliseconds between light sweeps; 10 s if absent.
    pub sweep_ms: Option<u64>,
    /// Milliseconds between a standby's polls of the master; 10 s if absent.
    pub poll_ms: Option<u64>,
    /// The M_Key that is set on ports, and presented to them. 0 protects nothing.
    #[serde(with = "hex")]
    pub m_key: Mkey,
    /// The ports' reaction to a wrong M_Key, 0 to 3: see [`manager::Config::mkey_protect`].
    pub m_key_protect: u8,
    /// Seconds without a correct M_Key after which a port is no longer protected; 0 is never.
    pub m_key_lease: u16,
    /// The virtual lane of each service level, 0 to 15; none leaves that to the nodes.
    pub sl_to_vl: Option<[u8; 16]>,
    /// Whether ports that send traps of link errors without end are disabled: see [`manager::Config::disable_babbling`].
    pub babbling_port_policy: bool,
    /// The partitions and their members. Without it all ports are full members of the default partition.
    pub partitions: Option<PartitionsFile>,
}

/// OpenSM's partitions.conf, as it was when it was read. Later changes of the file have no effect until it is read
/// again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionsFile {
    /// The name of the file, for messages.
    pub name: String,
    /// The contents of the file.
    pub text: String,
}

impl PartitionsFile {
    /// Reads a file written by a user.
    ///
    /// # Errors
    /// [`FabricError::File`], which names the file, the line, the token and what is wrong there; [`FabricError::Io`].
    pub fn read(path: &Path) -> Result<Self, FabricError> {
        let none = || FabricError::File { path: path.to_owned(), why: "no such file".to_owned() };
        let text = read(path)?.ok_or_else(none)?;
        let file = Self { name: path.display().to_string(), text };
        file.parse().map(|_| file)
    }

    /// Parses the partitions.
    ///
    /// # Errors
    /// [`FabricError::File`].
    pub fn parse(&self) -> Result<Partitions, FabricError> {
        Partitions::parse(&self.name, &self.text).map_err(|e| {
            let at = if e.token.is_empty() {
                "at the end".to_owned()
            } else {
                format!("at `{}`", e.token.escape_debug())
            };
            let why = format!("line {}, {at}: {}", e.line, e.rule);
            FabricError::File { path: self.name.clone().into(), why }
        })
    }
}

impl ManagerSetup {
    /// Returns the configuration of a fabric without a manager.
    pub fn off() -> Self {
        Self { off: true, ..Self::default() }
    }

    /// Returns the manager's options; none if there is no manager.
    pub(super) fn config(&self) -> Option<manager::Config> {
        let mut config = manager::Config {
            priority: self.priority.min(15),
            routing: self.routing,
            lmc: self.lmc.min(7),
            mkey: self.m_key,
            mkey_protect: self.m_key_protect.min(3),
            mkey_lease: self.m_key_lease,
            disable_babbling: self.babbling_port_policy,
            sl_to_vl: self.sl_to_vl.map(|vls| SlToVlTable { vls: vls.map(|vl| Vl(vl & 0xf)) }),
            ..manager::Config::default()
        };
        if let Some(ms) = self.sweep_ms {
            config.sweep_interval = Duration::from_millis(ms.max(1));
        }
        if let Some(ms) = self.poll_ms {
            config.poll_interval = Duration::from_millis(ms.max(1));
        }
        (!self.off).then_some(config)
    }

    /// Returns the partitions of the subnet.
    pub(super) fn partitions(&self) -> Result<Partitions, FabricError> {
        self.partitions.as_ref().map_or_else(|| Ok(Partitions::default()), PartitionsFile::parse)
    }
}

/// Encodes a key as text, because TOML's numbers have 63 bits.
mod hex {
    use rdmux_wire::Mkey;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(key: &Mkey, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:#018x}", key.0))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mkey, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.strip_prefix("0x").filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let key = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        key.map(Mkey)
            .ok_or_else(|| D::Error::custom("an M_Key is 0x followed by hexadecimal digits"))
    }
}

#[cfg(test)]
mod tests {
    use rdmux_testing::temp_dir;

    use super::*;

    #[test]
    fn babbling_port_policy_sets_disable_babbling() {
        for policy in [false, true] {
            let setup = ManagerSetup { babbling_port_policy: policy, ..ManagerSetup::default() };
            assert_eq!(setup.config().unwrap().disable_babbling, policy);
        }
    }

    #[test]
    fn error_in_partitions_file_names_file_line_and_token() {
        let tmp = temp_dir();
        let path = tmp.path().join("partitions.conf");
        let fails = || PartitionsFile::read(&path).unwrap_err().to_string();
        assert!(fails().ends_with("partitions.conf: no such file"));
        std::fs::write(&path, "Default=0x7fff: ALL;\nA=1,\n rate=99: ALL;").unwrap();
        let named = path.display();
        assert!(
            fails().starts_with(&format!("{named}: line 3, at `99`: a rate is")),
            "{}",
            fails()
        );
        std::fs::write(&path, "A=1: ALL").unwrap();
        assert!(fails().starts_with(&format!("{named}: line 1, at the end: ")), "{}", fails());
        std::fs::write(&path, "A=1: ALL;").unwrap();
        let file = PartitionsFile::read(&path).unwrap();
        assert_eq!(file.parse().unwrap().iter().count(), 2);
        let setup = ManagerSetup { partitions: Some(file), ..ManagerSetup::default() };
        assert_eq!(setup.partitions().unwrap().iter().count(), 2);
    }
}
