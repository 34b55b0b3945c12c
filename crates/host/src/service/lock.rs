//! The lock that says whose service a host's is, where the service before may still be ending.

use std::fs::File;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::client::connect_socket;
use crate::error::HostError;
use crate::names::HostDir;

/// While waiting for the lock, how often to look whether its holder listens by now.
const LOOK: Duration = Duration::from_millis(100);

/// Takes the lock of a host's service. One that is ending has it until everything of it is gone, with its socket closed
/// already: its end is waited for, at most `wait`.
///
/// # Errors
/// [`HostError::AlreadyUp`] when another service listens; [`HostError::Unresponsive`] when it does not and keeps the
/// lock.
pub(super) fn take(dir: &HostDir, wait: Duration) -> Result<File, HostError> {
    if let Some(lock) = dir.lock_service()? {
        return Ok(lock);
    }
    let host = || dir.name().clone();
    let start = Instant::now();
    let (taken, lock) = channel();
    // flock(2) knows no timeout. If this one is late, the lock goes with the message that nobody takes.
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
                let why = format!("it holds the host's lock for {wait:?} without listening");
                let pid = dir.service_lock_holder();
                return Err(HostError::Unresponsive { host: host(), pid, why });
            }
        }
    }
}
