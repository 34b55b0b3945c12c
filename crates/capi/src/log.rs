//! The library's log on standard error: empty, unless `$RDMUX_LOG` holds a filter of `tracing_subscriber`, such as
//! `RDMUX_LOG=debug`.

use tracing_subscriber::EnvFilter;

use crate::verbs::process;

/// The environment variable.
const VARIABLE: &str = "RDMUX_LOG";

/// Starts logging if `$RDMUX_LOG` is set. Rust programs with a subscriber of their own keep it.
pub(crate) fn start() {
    let started = &mut process::lists().logs;
    if std::mem::replace(started, true) {
        return;
    }
    if std::env::var_os(VARIABLE).is_some() {
        // An invalid filter is reported on standard error, and ignored.
        let filter = EnvFilter::builder().with_env_var(VARIABLE).from_env_lossy();
        // Fails only when there is a subscriber already.
        let _ = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            // Such an error would be written to standard error, and a failure to do so is a panic.
            .log_internal_errors(false)
            .try_init();
    }
}
