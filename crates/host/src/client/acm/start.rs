//! Starts the ACM service, the program `ib_acm`, when the first process needs it.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rdmux_acm_client::{Error, Places, Target};
use rdmux_runtime::{environment, start};
use rdmux_verbs::signals;
use rustix::fs::FlockOperation;

use crate::names::{HostDir, RuntimeDir};

/// The program's name.
const PROGRAM: &str = "ib_acm";
/// Time after an attempt to start the service, successful or not, in which this process makes no other.
const PAUSE: Duration = Duration::from_secs(10);
/// Time that a service may take to accept a connection before it counts as one that hangs.
const REACH: Duration = Duration::from_secs(1);

/// The way in which a host's service is started.
#[derive(Debug)]
pub(crate) struct Starter {
    /// The `rdmux` that belongs to the caller, in the form that [`start::program`] takes.
    given: Option<PathBuf>,
    dir: RuntimeDir,
    host: HostDir,
    /// The files of the service.
    places: Places,
    state: Mutex<State>,
    changed: Condvar,
}

/// Whether a start is in progress, and the time before which no other is made.
#[derive(Debug, Default)]
struct State {
    is_starting: bool,
    not_before: Option<Instant>,
}

impl Starter {
    pub(crate) fn new(
        given: Option<PathBuf>,
        dir: RuntimeDir,
        host: HostDir,
        places: Places,
    ) -> Self {
        Self { given, dir, host, places, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Starts the program in a thread, unless an attempt is in progress or ended less than [`PAUSE`] ago.
    pub(super) fn start(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let is_early = state.not_before.is_some_and(|then| Instant::now() < then);
        if state.is_starting || is_early {
            return;
        }
        let starter = Arc::clone(self);
        let thread = thread::Builder::new().name("rdmux-acm".to_owned());
        let started = signals::with_blocked(|| thread.spawn(move || starter.run()));
        state.is_starting = started.is_ok();
    }

    /// Runs the program until it serves or has failed.
    fn run(&self) {
        if let Err(why) = self.spawn() {
            let host = self.host.name();
            tracing::warn!(%host, "ACM is not asked, its service cannot be started: {why}");
        }
        let mut state = self.state.lock();
        (state.is_starting, state.not_before) = (false, Instant::now().checked_add(PAUSE));
        self.changed.notify_all();
    }

    /// Waits until the program that this process started serves or has failed, but no longer than the
    /// deadline.
    pub(super) fn wait(&self, deadline: Instant) {
        let mut state = self.state.lock();
        while state.is_starting && !self.changed.wait_until(&mut state, deadline).timed_out() {}
    }

    fn spawn(&self) -> Result<(), String> {
        // By the time the lock is free, another process may have started the service.
        let lock = self.host.lock("acm-start", FlockOperation::LockExclusive);
        let _lock = lock.map_err(|e| e.to_string())?;
        if self.is_running()? {
            return Ok(());
        }
        let program = self.program().ok_or_else(|| {
            format!("there is no program {PROGRAM} beside rdmux or in PATH; set RDMA_CM_USE_IB_ACM=0 to do without")
        })?;
        let arguments = ["--on-demand", "--host", self.host.name().as_str()];
        start::spawn(&program, &arguments, self.dir.user_dir(), &self.host)
    }

    /// Returns whether programs find a service.
    ///
    /// # Errors
    /// When a service is there that they cannot use, and that another one could not replace.
    fn is_running(&self) -> Result<bool, String> {
        for (target, is_seen) in [
            (Target::Programs(self.places.clone()), true),
            (Target::Tools(self.places.clone()), false),
        ] {
            match target.reach(REACH) {
                Ok(()) if is_seen => return Ok(true),
                Ok(()) => {
                    let at = self.places.runtime().display();
                    return Err(format!(
                        "the one in {at} is hidden from connection managers (acme_plus_kernel_only)"
                    ));
                }
                Err(Error::System(..)) => {}
                Err(hangs_or_untrusted) => return Err(hangs_or_untrusted.to_string()),
            }
        }
        Ok(false)
    }

    /// Finds the program beside `rdmux`, or in `$PATH`.
    fn program(&self) -> Option<PathBuf> {
        let beside = start::program(self.given.as_deref());
        let beside = beside.map(|rdmux| rdmux.with_file_name(PROGRAM));
        beside.filter(|program| program.is_file()).or_else(|| {
            let path = environment::path("PATH")?;
            std::env::split_paths(&path).map(|dir| dir.join(PROGRAM)).find(|p| p.is_file())
        })
    }
}
