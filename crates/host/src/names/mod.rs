//! Names of hosts, where their sockets lie, which addresses they own, and the configuration.

mod config;
mod device_choice;
mod etc_hosts;
mod file;
mod host_name;
mod lock_holder;
mod network;
mod node_guid;
pub(crate) mod peer_to_peer;
mod registry;
mod runtime;

pub use config::{CmConfig, Config, LimitsConfig, ServiceConfig};
pub use device_choice::{DeviceChoice, InvalidDeviceChoice};
pub use host_name::{HostName, InvalidHostName};
pub use network::NetworkNamespace;
pub use node_guid::{InvalidNodeGuid, NodeGuid};
pub use registry::{Registry, RegistryEntry};
pub(crate) use runtime::open_log;
pub use runtime::{HostDir, RuntimeDir};
