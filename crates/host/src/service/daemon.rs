//! A service as a process of its own: `rdmux host serve`.

use std::io::Write;

use rustix::process::{Resource, Rlimit};

use super::{Service, ServiceOptions};
use crate::error::HostError;
use crate::names::{Config, HostName, RuntimeDir};

/// Runs a host's service in this process until it ends; `on_demand` ends it some seconds after the
/// last client. Says "ready" on standard output once clients can connect, or "error: " and why they
/// cannot.
///
/// # Errors
/// Those of [`Service::new`] and [`Service::run`].
pub fn serve(host: &HostName, on_demand: bool) -> Result<(), HostError> {
    raise_descriptor_limit();
    let service = open(host, on_demand).inspect_err(|e| say(&format!("error: {e}")))?;
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

fn say(word: &str) {
    // The process that started this one may be gone; others are served all the same.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{word}").and_then(|()| out.flush());
}

/// Each process costs some descriptors, and each slot one on each address.
fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(e) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::debug!("the descriptor limit stays: {e}");
    }
}
