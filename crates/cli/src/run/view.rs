//! A program's view of `/sys/class/infiniband`, `/dev/infiniband` and `/etc/hosts`.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use rdmux_host::client::admin;
use rdmux_host::view::namespace::{self, JoinError, Namespaces};
use rdmux_host::{ConnectOptions, DeviceChoice, HostName};

use super::variables::Variables;
use rdmux_command::library::Library;

/// The way in which a view is set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum View {
    /// By a mount namespace; where the kernel allows none, by a library if the program is known to read these files
    #[default]
    Auto,
    /// By a mount namespace
    Namespace,
    /// By a library that redirects paths
    Preload,
    /// Not at all
    None,
}

/// The variable that names the tree to the library that redirects paths.
pub(crate) const VARIABLE: &str = "RDMUX_VIEW";

/// The advice if a namespace was requested and is not available.
const NO_NAMESPACE: &str = "cannot create a mount namespace here; try --view preload";

/// A host, and those of its devices that a program sees.
pub(crate) struct Place<'a> {
    pub(crate) options: &'a ConnectOptions,
    pub(crate) host: &'a HostName,
    pub(crate) devices: DeviceChoice,
}

/// The things that a program is known to look for, as far as that can be determined. Evaluated only when needed.
pub(crate) struct Wants<'a> {
    /// The device's files.
    pub(crate) files: &'a dyn Fn() -> bool,
    /// A virtual host by its name.
    pub(crate) names: &'a dyn Fn() -> bool,
}

/// Sets up the view according to `how`. Moves this process into the view's namespaces, or adds to the variables.
pub(crate) fn show(
    how: View,
    wants: &Wants<'_>,
    place: &Place<'_>,
    library: &Library,
    variables: &mut Variables,
) -> Result<()> {
    match how {
        View::None => {}
        View::Namespace => {
            enter(place, true).context(NO_NAMESPACE)?;
            lock_issm(place, library, variables);
        }
        View::Preload => preload(place, library, variables)?,
        // A service that runs in the program itself has no files yet.
        View::Auto if place.options.embedded => {}
        View::Auto => {
            let looks = (wants.files)();
            match enter(place, looks) {
                Ok(true) => lock_issm(place, library, variables),
                Ok(false) if (wants.names)() => preload(place, library, variables)?,
                Ok(false) => {}
                Err(e) if has_moved(&e) => return Err(e.context(NO_NAMESPACE)),
                Err(e) if looks || (wants.names)() => {
                    preload(place, library, variables)?;
                    let shows = if looks {
                        "the device under /sys/class/infiniband"
                    } else {
                        "the names of virtual hosts"
                    };
                    eprintln!(
                        "rdmux: no mount namespace here ({}): librdmux_view.so shows {shows} instead",
                        rdmux_command::output::text(&e)
                    );
                }
                Err(_) => {}
            }
        }
    }
    Ok(())
}

/// Returns whether the process has already left the namespaces in which the program is to run.
fn has_moved(e: &anyhow::Error) -> bool {
    matches!(e.downcast_ref(), Some(JoinError::Moved(_)))
}

/// Moves this process into the view's namespaces, which are created if necessary. A program that is not known to look
/// at the files keeps its capabilities instead. Returns false then.
fn enter(place: &Place<'_>, looks: bool) -> Result<bool> {
    let namespaces = namespaces(place)?;
    if !looks && namespace::costs_capabilities(&namespaces)? {
        return Ok(false);
    }
    namespace::join(&namespaces)?;
    Ok(true)
}

/// Returns the namespaces of this user's view.
pub(crate) fn namespaces(place: &Place<'_>) -> Result<Namespaces> {
    if let Some(held) = held(place)? {
        return Ok(held);
    }
    let _lock = place.options.dir.host(place.host)?.lock_view()?;
    if let Some(held) = held(place)? {
        return Ok(held);
    }
    // In a separate process, because a failure halfway leaves the process unusable.
    let exe = std::env::current_exe().context("cannot find this program's own file")?;
    let maker = Command::new(exe)
        .args(["host", "mount", place.host.as_str()])
        .env("RDMUX_RUNTIME_DIR", place.options.dir.path())
        .env(DeviceChoice::VARIABLE, place.devices.word())
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .output()
        .context("cannot re-execute this program")?;
    if !maker.status.success() {
        let said = String::from_utf8_lossy(&maker.stderr);
        bail!("{}", said.trim().trim_start_matches("rdmux: "));
    }
    held(place)?.context("the host's service does not hold the namespaces")
}

/// Returns the namespaces that the service holds.
fn held(place: &Place<'_>) -> Result<Option<Namespaces>> {
    let held = admin::view(&place.options.dir, place.host, place.devices)?;
    Ok(held.user.zip(held.mounts).map(|(user, mounts)| Namespaces { user, mounts }))
}

/// Creates the namespaces of this user's view from this process's, and passes them to the service. The environment selects
/// the devices in the view.
pub(crate) fn make(options: &ConnectOptions, host: &HostName) -> Result<()> {
    let devices = DeviceChoice::of_environment()?;
    // All hosts share one user namespace. The lock is held until the service has it.
    let _lock = options.dir.lock_views()?;
    let held = admin::view(&options.dir, host, devices)?;
    let shared = || admin::user_namespace_of_others(&options.dir, host);
    let dir = options.dir.host(host)?;
    namespace::build(&dir.view(devices), &dir.acm(), held.user.as_ref(), shared)?;
    Ok(admin::hold_view(&options.dir, host, devices, &namespace::own()?)?)
}

/// Makes the program load the library even though it sees the files, for its opens of `issmN`: where the host has no port of
/// a managed subnet there are none.
fn lock_issm(place: &Place<'_>, library: &Library, variables: &mut Variables) {
    if place.devices.kinds().iter().any(|kind| kind.is_on_fabric())
        && let Ok(host) = place.options.dir.host(place.host)
        && let Ok(object) = library.view(&host)
    {
        variables.prepend("LD_PRELOAD", &object);
    }
}

/// Makes the program load the library that redirects paths.
pub(crate) fn preload(
    place: &Place<'_>,
    library: &Library,
    variables: &mut Variables,
) -> Result<()> {
    let object = library.view(&place.options.dir.host(place.host)?)?;
    admin::view(&place.options.dir, place.host, place.devices)?;
    variables.prepend("LD_PRELOAD", &object);
    // Programs may also create the files that they look for in /run and /etc/rdma. Few do, so it is not a failure if they cannot: the
    // home directory may be another user's, as under `su`.
    let acm = place.options.dir.host(place.host)?.acm();
    for folder in [acm.runtime(), acm.config()] {
        if let Err(e) = DirBuilder::new().recursive(true).mode(0o700).create(folder) {
            tracing::debug!("ACM's files cannot be in {}: {e}", folder.display());
        }
    }
    variables.set(VARIABLE, place.options.dir.host(place.host)?.view(place.devices));
    Ok(())
}
