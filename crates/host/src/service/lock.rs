//! The lock that makes a host's service unique, also while the previous service is still ending.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rdmux_runtime::Lock;

use crate::client::connect_socket;
use crate::error::HostError;
use crate::names::HostDir;

/// Interval at which to check, while waiting for the lock, whether its holder listens by now.
const LOOK: Duration = Duration::from_millis(100);

/// Takes the lock of a host's service. A service that is ending closes its socket first and keeps the lock until all
/// its resources are released. This function waits for that, at most `wait`.
///
/// # Errors
/// [`HostError::AlreadyUp`] when another service listens; [`HostError::Unresponsive`] when the other service does not
/// listen, but keeps the lock.
pub(super) fn take(dir: &HostDir, wait: Duration) -> Result<Lock, HostError> {
    if let Some(lock) = dir.lock_service()? {
        return Ok(lock);
    }
    let host = || dir.name().clone();
    let start = Instant::now();
    let (taken, lock) = channel();
    // flock(2) has no timeout. If this call returns late, the lock is released with the message that nothing
    // receives.
    let mut waiter = Some(move |dir: HostDir| drop(taken.send(dir.wait_service_lock())));
    loop {
        if connect_socket(dir, LOOK)?.is_some() || wait.is_zero() {
            return Err(HostError::AlreadyUp { host: host() });
        }
        if let Some(waiter) = waiter.take() {
            let dir = dir.clone();
            rdmux_verbs::signals::with_blocked(|| {
                let thread = std::thread::Builder::new().name("rdmux-lock".to_owned());
                thread.spawn(move || waiter(dir))
            })
            .map_err(|e| HostError::io("start a thread", e))?;
        }
        let left = wait.saturating_sub(start.elapsed());
        match lock.recv_timeout(left.min(LOOK)) {
            Ok(lock) => return Ok(lock?),
            Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
            Err(_) => {
                let why = format!("it has held the host's lock for {wait:?} without listening");
                let pid = dir.service_lock_holder();
                return Err(HostError::Unresponsive { host: host(), pid, why });
            }
        }
    }
}
