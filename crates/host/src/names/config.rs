//! The configuration file: TOML, every key optional, unknown keys refused.
//!
//! docs/configuration.md documents all keys.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdmux_cm::iw;
use rdmux_link::udp::ROCE_PORT;
use rdmux_runtime::environment;
use rdmux_verbs::control::{DeviceKind, Limits};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::NodeGuid;
use crate::error::HostError;

/// The contents of the configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Addresses of the default host. If absent, those of the machine's interfaces.
    pub addresses: Option<Vec<IpAddr>>,
    /// GUID of the default host's node. If absent, one is drawn.
    pub node_guid: Option<NodeGuid>,
    /// Settings of services.
    pub service: ServiceConfig,
    /// Limits of the device.
    pub limits: LimitsConfig,
    /// The connection manager's timers.
    pub cm: CmConfig,
    /// Settings of iWARP connections.
    pub iwarp: IwarpConfig,
    /// Settings of fabrics.
    pub fabric: rdmux_fabric::Config,
}

/// Returns the directory of the user's configuration: `$XDG_CONFIG_HOME`, else `~/.config`. None without a home.
pub(super) fn config_home() -> Option<PathBuf> {
    let var = |name| environment::path(name).map(PathBuf::from);
    var("XDG_CONFIG_HOME").or_else(|| var("HOME").map(|h| h.join(".config")))
}

/// Settings of services.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServiceConfig {
    /// Time after its last client at which a service that was started on demand ends. 0 is never. In the file it is
    /// `idle_exit_seconds`.
    #[serde(rename = "idle_exit_seconds", deserialize_with = "seconds")]
    pub idle_exit: Duration,
    /// The UDP port. Other machines expect 4791.
    pub port: u16,
    /// Users besides the owner and root whose programs may open the devices of hosts. They find a host if their
    /// `RDMUX_RUNTIME_DIR` names the owner's directory, which must be root's. If empty, the file system controls access
    /// to the socket: the owner and root, unless its permissions are changed.
    pub users: Vec<u32>,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        Self { idle_exit: Duration::from_secs(5), port: ROCE_PORT, users: Vec::new() }
    }
}

impl ServiceConfig {
    /// Returns how long after its last client the service ends, if it ever does.
    pub fn idle_exit(&self) -> Option<Duration> {
        (!self.idle_exit.is_zero()).then_some(self.idle_exit)
    }
}

/// Deserializes a time from a number of seconds.
fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(D::Error::custom)
}

/// The connection manager's timers (IBTA 12.7).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CmConfig {
    /// CM response timeout, as the 5-bit code of REQ: 4.096 us * 2^code.
    pub response_timeout: u8,
    /// Number of retransmissions of a REQ, REP or DREQ, 0 to 15.
    pub max_retries: u8,
}

impl Default for CmConfig {
    fn default() -> Self {
        Self { response_timeout: 20, max_retries: 15 }
    }
}

/// Settings of iWARP connections. The fields are those of [`rdmux_cm::iw::Config`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IwarpConfig {
    /// Whether connections that this host initiates are peer-to-peer.
    pub peer_to_peer: bool,
    /// Whether this host requests CRCs.
    pub crc: bool,
    /// The use of markers.
    pub markers: MarkersConfig,
    /// The MPA revision that this host sends: 1 or 2.
    pub revision: u8,
    /// Time in milliseconds that a peer that connected may take to send its request.
    pub request_timeout_ms: u32,
    /// Time in milliseconds that a peer to which this host connects may take to send its reply.
    pub reply_timeout_ms: u32,
    /// Time in milliseconds that a peer that was accepted may take to send its ready-to-receive frame.
    pub rtr_timeout_ms: u32,
    /// Time in milliseconds that a message waits for a receive to be posted before the connection ends.
    pub receive_wait_ms: u32,
}

/// The use of markers, as in [`rdmux_cm::iw::Markers`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MarkersConfig {
    /// Peers that request them are refused.
    Refuse,
    /// Peers that request them get them.
    #[default]
    Give,
    /// Like `Give`, and this host requests markers, too.
    Ask,
}

impl Default for IwarpConfig {
    fn default() -> Self {
        let default = iw::Config::default();
        let ms = |d: Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
        Self {
            peer_to_peer: default.peer_to_peer,
            crc: default.crc,
            markers: MarkersConfig::default(),
            revision: default.revision.number(),
            request_timeout_ms: ms(default.request_timeout),
            reply_timeout_ms: ms(default.reply_timeout),
            rtr_timeout_ms: ms(default.rtr_timeout),
            receive_wait_ms: 2000,
        }
    }
}

impl From<&IwarpConfig> for iw::Config {
    fn from(config: &IwarpConfig) -> Self {
        let ms = |ms: u32| Duration::from_millis(ms.into());
        Self {
            peer_to_peer: config.peer_to_peer,
            crc: config.crc,
            markers: match config.markers {
                MarkersConfig::Refuse => iw::Markers::Refuse,
                MarkersConfig::Give => iw::Markers::Give,
                MarkersConfig::Ask => iw::Markers::Ask,
            },
            revision: if config.revision == 1 { iw::Revision::V1 } else { iw::Revision::V2 },
            request_timeout: ms(config.request_timeout_ms),
            reply_timeout: ms(config.reply_timeout_ms),
            rtr_timeout: ms(config.rtr_timeout_ms),
            ..Self::default()
        }
    }
}

macro_rules! limits {
    ($($name:ident: $int:ty,)*) => {
        /// Limits of the device. An absent one has the default value.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct LimitsConfig {
            $(#[doc = concat!("As in [`Limits::", stringify!($name), "`].")] pub $name: Option<$int>,)*
        }
        impl LimitsConfig {
            /// Returns the limits of a kind of device.
            pub fn of(&self, kind: DeviceKind) -> Limits {
                let default = Limits::of(kind);
                Limits { $($name: self.$name.unwrap_or(default.$name),)* }.possible_for(kind)
            }
        }
    };
}
limits! {
    max_qp: u32, max_qp_wr: u32, max_sge: u32, max_cq: u32, max_cqe: u32, max_mr: u32, max_mw: u32,
    max_pd: u32, max_srq: u32, max_srq_wr: u32, max_ah: u32, max_rd_atomic: u8,
    max_init_rd_atomic: u8, max_inline_data: u32, max_mcast_grp: u32, max_mcast_qp_attach: u32,
}

impl Config {
    /// Loads the configuration of this user: the file that `$RDMUX_CONFIG` names, else `~/.config/rdmux/config.toml`,
    /// else `/etc/rdmux/config.toml`, else the defaults.
    ///
    /// # Errors
    /// [`HostError::Config`] when a file exists but is wrong, or the file of `$RDMUX_CONFIG` does not exist.
    pub fn of_environment() -> Result<Self, HostError> {
        if let Some(path) = environment::path("RDMUX_CONFIG") {
            return Self::load(path.as_ref());
        }
        [config_home(), Some("/etc".into())]
            .into_iter()
            .flatten()
            .map(|dir| dir.join("rdmux/config.toml"))
            .find(|path| path.exists())
            .map_or_else(|| Ok(Self::default()), |path| Self::load(&path))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`HostError::Config`], which names the file and the line.
    pub fn load(path: &Path) -> Result<Self, HostError> {
        let fail = |why: String| HostError::Config { path: path.to_owned(), why };
        let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
        Self::parse(&text).map_err(fail)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|e| e.to_string())?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        let in_range = |name: &str, v: u8, max: u8| {
            if v <= max { Ok(()) } else { Err(format!("{name} = {v}: the maximum is {max}")) }
        };
        in_range("cm.response_timeout", self.cm.response_timeout, 31)?;
        in_range("cm.max_retries", self.cm.max_retries, 15)?;
        if !(1..=2).contains(&self.iwarp.revision) {
            return Err(format!("iwarp.revision = {}: use 1 or 2", self.iwarp.revision));
        }
        if self.service.port == 0 {
            return Err("service.port = 0: use a port from 1 to 65535".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rdmux_verbs::kind;

    use super::*;

    #[test]
    fn empty_configuration_has_the_default_values() {
        let config = Config::parse("").unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(config.service.port, 4791);
        assert_eq!(config.service.idle_exit(), Some(Duration::from_secs(5)));
        assert_eq!(config.limits.of(DeviceKind::default()), Limits::default());
    }

    /// The document's file has every table, and no unknown key.
    #[test]
    fn document_s_file_can_be_read() {
        let document = include_str!("../../../../docs/configuration.md");
        let file = document.split("```toml").nth(1).unwrap().split("```").next().unwrap();
        let config = Config::parse(file).unwrap();
        assert_eq!((config.addresses, config.node_guid), (None, None), "of some other machine");
        // Includes the lines that depend on the machine.
        let config = Config::parse(&file.replace("\n# ", "\n")).unwrap();
        assert!(config.addresses.is_some() && config.node_guid.is_some());
        assert_eq!((&config.service.users, config.fabric.users.len()), (&vec![1000], 1));
        assert_eq!(iw::Config::from(&config.iwarp), iw::Config::default());
        assert_eq!((config.cm, config.limits.max_mcast_grp.is_some()), (CmConfig::default(), true));
        assert_eq!(config.limits.of(DeviceKind::Roce), Limits::of(DeviceKind::Roce));
    }

    #[test]
    fn configured_values_replace_the_defaults() {
        let config = Config::parse(
            "addresses = ['10.0.0.1', 'fe80::1']\nnode_guid = '0211:2233:4455:6676'\n[service]\nidle_exit_seconds = 0\n\
             [limits]\nmax_qp = 9\n[cm]\nmax_retries = 3\n[fabric]\nname = 'f'\n",
        )
        .unwrap();
        assert_eq!(config.addresses.unwrap().len(), 2);
        assert_eq!(config.node_guid.unwrap().guid().0, 0x0211_2233_4455_6676);
        assert_eq!(config.service.idle_exit(), None);
        for (text, ms) in [("7", 7000), ("0.25", 250)] {
            let config = Config::parse(&format!("[service]\nidle_exit_seconds = {text}")).unwrap();
            assert_eq!(config.service.idle_exit(), Some(Duration::from_millis(ms)));
        }
        for row in kind::rows() {
            assert_eq!(config.limits.of(row.kind).max_qp, 9);
        }
        assert_eq!((config.cm.max_retries, config.cm.response_timeout), (3, 20));
        assert_eq!(config.fabric.name.as_str(), "f");
    }

    #[test]
    fn iwarp_section_sets_mpa_options_and_defaults_apply_without_it() {
        let of = |text: &str| iw::Config::from(&Config::parse(text).unwrap().iwarp);
        assert_eq!(of(""), iw::Config::default());
        let config =
            of("[iwarp]\npeer_to_peer = false\ncrc = true\nmarkers = 'ask'\nrevision = 1\n\
             rtr_timeout_ms = 7");
        assert_eq!(
            config,
            iw::Config {
                peer_to_peer: false,
                crc: true,
                markers: iw::Markers::Ask,
                revision: iw::Revision::V1,
                rtr_timeout: Duration::from_millis(7),
                ..Default::default()
            }
        );
    }

    #[test]
    fn configuration_error_names_the_wrong_key_or_value() {
        for (text, word) in [
            ("colour = 'red'", "colour"),
            ("[limits]\nmax_qq = 1", "max_qq"),
            ("[cm]\nmax_retries = 16", "cm.max_retries"),
            ("[cm]\nresponse_timeout = 32", "cm.response_timeout"),
            ("[service]\nport = 0", "service.port"),
            ("[service]\nidle_exit_seconds = -1", "idle_exit_seconds"),
            ("[iwarp]\nrevision = 3", "iwarp.revision"),
            ("[iwarp]\nmarkers = 'some'", "markers"),
            ("addresses = ['nowhere']", "nowhere"),
            ("[fabric]\nname = 'A b'", "fabric-1"),
            ("node_guid = '0211:2233'", "16 hexadecimal digits"),
        ] {
            let e = Config::parse(text).unwrap_err();
            assert!(e.contains(word), "{e}");
        }
    }
}
