//! Names of hosts, where their sockets lie, which addresses they own, and the configuration.

mod config;
mod host_name;
mod registry;
mod runtime;

pub use config::{CmConfig, Config, LimitsConfig, ServiceConfig};
pub use host_name::{HostName, InvalidHostName};
pub use registry::Registry;
pub(crate) use runtime::open_log;
pub use runtime::{HostDir, RuntimeDir};
