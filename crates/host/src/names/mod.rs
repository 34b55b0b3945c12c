//! Hosts' names, addresses and directories, and the configuration.

mod config;
mod device_choice;
mod etc_hosts;
mod host_name;
mod node_guid;
pub(crate) mod peer_to_peer;
mod registry;
mod runtime;
mod service_key;

pub use config::{CmConfig, Config, LimitsConfig, ServiceConfig};
pub use device_choice::{DeviceChoice, InvalidDeviceChoice};
pub use host_name::{HostName, InvalidHostName};
pub use node_guid::{InvalidNodeGuid, NodeGuid};
pub use rdmux_runtime::NetworkNamespace;
pub use registry::{Registry, RegistryEntry};
pub use runtime::{HostDir, RuntimeDir};
pub use service_key::ServiceKey;
