//! What the library has to say: nothing, unless `$RDMUX_LOG` holds a filter as of `tracing_subscriber`, as in
//! `RDMUX_LOG=debug`. It goes to standard error.

use tracing_subscriber::EnvFilter;

use crate::verbs::process;

/// Starts to log if that is wanted. Programs of Rust that log by themselves keep what they have.
pub(crate) fn start() {
    let started = &mut process::lists().logs;
    if std::mem::replace(started, true) {
        return;
    }
    if let Ok(filter) = EnvFilter::try_from_env("RDMUX_LOG") {
        // Fails only when there is a subscriber already.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            // It would be said on standard error, and to be unable to is a panic.
            .log_internal_errors(false)
            .try_init();
    }
}
