//! Starting the service as a background process, which outlives the process that starts it.

use std::process::{Command, Stdio};

use crate::{AcmdError, Args, Setup};

/// Starts the service in the background and waits until clients can connect. Until it opens its own log, it writes to the default
/// one.
///
/// # Errors
/// The service's own error.
pub(crate) fn start(args: &Args, setup: &Setup) -> Result<(), AcmdError> {
    setup.make_folder()?;
    let path = setup.sources.places.log();
    let log = crate::log::open(&path).map_err(AcmdError::of_file("open the log", &path))?;
    let program = std::env::current_exe().map_err(AcmdError::of("find this program's own file"))?;
    let mut command = Command::new(program);
    command.args(["-D", "--on-demand", "--host", setup.host.name().as_str()]);
    for (option, file) in [("-A", &args.addresses), ("-O", &args.options)] {
        if let Some(file) = file {
            let file = std::path::absolute(file).map_err(AcmdError::of_file("find", file))?;
            command.arg(option).arg(file);
        }
    }
    rdmux_runtime::start::from_root(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut child = command.spawn().map_err(AcmdError::of("start a process"))?;
    rdmux_runtime::start::until_ready(&mut child).map_err(|why| {
        AcmdError::Config(if why.is_empty() {
            format!("the background process ended without a message: see {}", path.display())
        } else {
            why
        })
    })
}
