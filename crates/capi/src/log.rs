//! What the library has to say: nothing, unless `$RDMUX_LOG` holds a filter as of `tracing_subscriber`, as in
//! `RDMUX_LOG=debug`. It goes to standard error.

use tracing_subscriber::EnvFilter;

use crate::verbs::process;

/// The variable of the environment.
const VARIABLE: &str = "RDMUX_LOG";

/// Starts to log if that is wanted. Programs of Rust that log by themselves keep what they have.
pub(crate) fn start() {
    let started = &mut process::lists().logs;
    if std::mem::replace(started, true) {
        return;
    }
    if std::env::var_os(VARIABLE).is_some() {
        // What is no filter is said on standard error, and left out.
        let filter = EnvFilter::builder().with_env_var(VARIABLE).from_env_lossy();
        // Fails only when there is a subscriber already.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            // It would be said on standard error, and to be unable to is a panic.
            .log_internal_errors(false)
            .try_init();
    }
}
