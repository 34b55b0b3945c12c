//! What a program gets to see under `/sys/class/infiniband` and `/dev/infiniband`.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use rdmux_host::client::admin;
use rdmux_host::view::namespace;
use rdmux_host::{ConnectOptions, HostName};

use super::library::Library;
use super::variables::Variables;

/// How.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum View {
    /// By a namespace where the program is known to look there, else not at all
    #[default]
    Auto,
    /// By a mount namespace
    Namespace,
    /// By a library that redirects paths
    Preload,
    /// Not at all
    None,
}

/// Shows the device as `how` says; `look` tells whether the program is known to look. Moves this process
/// into the view's namespaces, or adds to the variables.
pub(crate) fn show(
    how: View,
    look: impl FnOnce() -> bool,
    options: &ConnectOptions,
    host: &HostName,
    library: &Library,
    variables: &mut Variables,
) -> Result<()> {
    match how {
        View::None => {}
        View::Namespace => enter(options, host)
            .context("there can be no mount namespace here, but --view preload may do")?,
        View::Preload => preload(options, host, library, variables)?,
        // A service that runs in the program itself has no files yet.
        View::Auto if options.embedded || !look() => {}
        View::Auto => {
            if let Err(e) = enter(options, host) {
                preload(options, host, library, variables)?;
                eprintln!(
                    "rdmux: no mount namespace here ({}): librdmux_view.so shows the device under \
                     /sys/class/infiniband instead",
                    crate::text(&e)
                );
            }
        }
    }
    Ok(())
}

/// Moves this process into the view's namespaces, which are made if there are none.
fn enter(options: &ConnectOptions, host: &HostName) -> Result<()> {
    Ok(namespace::join(&namespaces(options, host)?)?)
}

/// The namespaces of this user's view.
pub(crate) fn namespaces(options: &ConnectOptions, host: &HostName) -> Result<Vec<OwnedFd>> {
    if let Some(held) = admin::view(&options.dir, host)? {
        return Ok(held);
    }
    let _lock = options.dir.host(host)?.lock_view()?;
    if let Some(held) = admin::view(&options.dir, host)? {
        return Ok(held);
    }
    // In a process of its own, which is spoiled if it fails halfway.
    let exe = std::env::current_exe().context("cannot find this program's own file")?;
    let maker = Command::new(exe)
        .args(["host", "mount", host.as_str()])
        .env("RDMUX_RUNTIME_DIR", options.dir.path())
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output()
        .context("cannot run this program anew")?;
    if !maker.status.success() {
        let said = String::from_utf8_lossy(&maker.stderr);
        bail!("{}", said.trim().trim_start_matches("rdmux: "));
    }
    admin::view(&options.dir, host)?.context("the service does not hold the namespaces")
}

/// Makes the namespaces of this user's view from this process's, and hands them to the service.
pub(crate) fn make(options: &ConnectOptions, host: &HostName) -> Result<()> {
    namespace::build(&options.dir.host(host)?.view())?;
    Ok(admin::hold_view(&options.dir, host, &namespace::own()?)?)
}

/// Has the program load the library that redirects paths.
pub(crate) fn preload(
    options: &ConnectOptions,
    host: &HostName,
    library: &Library,
    variables: &mut Variables,
) -> Result<()> {
    let object = library.view()?;
    admin::view(&options.dir, host)?;
    variables.prepend("LD_PRELOAD", &object);
    variables.set("RDMUX_VIEW", options.dir.host(host)?.view());
    Ok(())
}
