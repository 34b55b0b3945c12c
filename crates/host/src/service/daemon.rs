//! A service as a process of its own: `rdmux host serve`.

use rdmux_runtime::start::{apart, raise_descriptor_limit, say};

use super::{Service, ServiceOptions};
use crate::error::HostError;
use crate::names::{Config, HostName, RuntimeDir};

/// Runs a host's service in this process until it ends. `on_demand` ends it some seconds after the
/// last client. Prints "ready" on standard output once clients can connect, or "error: " and the
/// reason.
///
/// # Errors
/// Those of [`Service::new`] and [`Service::run`].
pub fn serve(host: &HostName, on_demand: bool) -> Result<(), HostError> {
    if apart() {
        return Ok(());
    }
    raise_descriptor_limit();
    let service = open(host, on_demand).inspect_err(|e| match e {
        // The process that started it adds the rest.
        HostError::Start { why, .. } => say(&format!("error: {why}")),
        e => say(&format!("error: {e}")),
    })?;
    say("ready");
    service.run()
}

fn open(host: &HostName, on_demand: bool) -> Result<Service, HostError> {
    let mut options = ServiceOptions::new(host.clone(), RuntimeDir::of_environment()?);
    options.config = Config::of_environment()?;
    options.idle_exit = options.config.service.idle_exit().filter(|_| on_demand);
    if on_demand {
        options.lock_wait = ServiceOptions::ENDING;
    }
    Service::new(options)
}
