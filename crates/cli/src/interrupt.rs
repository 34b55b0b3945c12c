//! Ctrl-C for commands that have something left to do then.

use std::process;

use anyhow::{Context as _, Result};

/// The status of a process that ends by Ctrl-C, as shells give it.
const INTERRUPTED: i32 = 128 + 2;

/// Has the first Ctrl-C call `first`, in a thread of its own. Another one ends the process, whatever it waits for.
///
/// # Errors
/// When there is no such thread, or Ctrl-C is handled already.
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
