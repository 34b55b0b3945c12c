//! Signals that end a command before it is done: it first ends the hosts and fabrics that it has started.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// The number of the signal that has arrived, 0 before.
static ARRIVED: AtomicUsize = AtomicUsize::new(0);
/// Whether one has arrived.
static HAS_ARRIVED: AtomicBool = AtomicBool::new(false);

/// The command is to end because of this signal.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted(u8);

impl Interrupted {
    /// Returns the exit status, as shells report the end by a signal.
    pub fn exit_status(&self) -> u8 {
        128_u8.saturating_add(self.0)
    }
}

/// Makes SIGINT, SIGTERM and SIGHUP an error that [`check`] returns, so that a command ends what it has started. A second Ctrl-C ends the
/// process at once, whatever it is waiting for. A signal that is ignored stays ignored, such as SIGHUP with nohup(1), and SIGINT in the
/// background of a script.
///
/// # Errors
/// When the signals cannot be handled.
pub fn defer() -> Result<()> {
    const WHAT: &str = "cannot handle signals";
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if is_ignored(signal) {
            continue;
        }
        let number = usize::try_from(signal)?;
        // The actions of a signal run in the order of their registration. Only SIGINT is repeated on purpose: timeout(1) and shells
        // send the others twice.
        if signal == SIGINT {
            flag::register_conditional_shutdown(signal, 128 + signal, &HAS_ARRIVED)
                .context(WHAT)?;
        }
        flag::register(signal, &HAS_ARRIVED).context(WHAT)?;
        flag::register_usize(signal, &ARRIVED, number).context(WHAT)?;
    }
    Ok(())
}

/// Checks that no signal has arrived. A command calls this between its steps, and where it waits for long.
///
/// # Errors
/// [`Interrupted`] after a signal.
pub fn check() -> Result<(), Interrupted> {
    match u8::try_from(ARRIVED.load(Ordering::Relaxed)) {
        Ok(0) => Ok(()),
        Ok(number) => Err(Interrupted(number)),
        Err(_) => Err(Interrupted(u8::MAX)),
    }
}

/// Returns whether this process ignores a signal.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (signal - 1) != 0
}
