//! Ctrl-C, for commands that have work left to do after it.

use std::process;

use anyhow::{Context as _, Result};

/// The exit status of a process that ends by Ctrl-C, as in shells.
const INTERRUPTED: i32 = 128 + 2;

/// Makes the first Ctrl-C call `first` in a separate thread. A second one ends the process, whatever it is waiting
/// for.
///
/// # Errors
/// When the thread cannot be started, or Ctrl-C is handled already.
pub(crate) fn on_interrupt(mut first: impl FnMut() + Send + 'static) -> Result<()> {
    let mut again = false;
    ctrlc::set_handler(move || {
        if again {
            process::exit(INTERRUPTED);
        }
        again = true;
        first();
    })
    .context("cannot handle Ctrl-C")
}
