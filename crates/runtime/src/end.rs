//! Waiting for a service to end.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rdmux_link::peer_credentials;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;

use crate::ServiceDir;
use crate::connect::{ConnectError, connect};

/// The poll interval after the service has closed the connection: the close of its socket raises no event.
const LOOK: Duration = Duration::from_millis(1);

/// Waits until a service that was requested to end no longer listens. Until then it would appear to be running.
/// `connection` is a connection to it, on which nothing more is expected, and `pid` its process, if the kernel
/// shows it. Returns false if this takes longer than `timeout`.
///
/// # Errors
/// Those of socket(2) and connect(2).
pub fn wait_for_end(
    dir: &ServiceDir,
    connection: impl AsFd,
    pid: Option<Pid>,
    timeout: Duration,
) -> io::Result<bool> {
    let start = Instant::now();
    let limit = Timespec::try_from(timeout).map_err(io::Error::other)?;
    // The service sends nothing more: a readable connection is a closed one.
    let closed = poll(&mut [PollFd::new(&connection, PollFlags::IN)], Some(&limit));
    if closed.is_ok_and(|ready| ready == 0) {
        return Ok(false);
    }
    loop {
        match connect(dir, LOOK) {
            Ok(None) => return Ok(true),
            // The next service has already started.
            Ok(Some(socket)) if peer_credentials(&socket).is_ok_and(|peer| peer.pid != pid) => {
                return Ok(true);
            }
            Ok(Some(_)) | Err(ConnectError::Busy(_)) => {}
            Err(ConnectError::Io(e)) => return Err(e),
        }
        if start.elapsed() >= timeout {
            return Ok(false);
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rdmux_testing::temp_dir;
    use rustix::process::getpid;

    use super::*;
    use crate::{Listener, UserDir};

    const LONG: Duration = Duration::from_secs(1000);

    #[test]
    fn wait_for_end_waits_until_the_service_stops_listening() {
        let tmp = temp_dir();
        let dir = UserDir::at(tmp.path().join("r")).unwrap().service("hosts", "a").unwrap();
        let lock = dir.lock_service().unwrap().unwrap();
        let mut listener = Listener::open(&dir, lock).unwrap();
        let connection = connect(&dir, LONG).unwrap().unwrap();
        drop(listener.accept().unwrap().unwrap());
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // A connection arrives, so the function polls.
                while listener.accept().unwrap().is_none() {
                    std::thread::yield_now();
                }
                ended.store(true, Ordering::SeqCst);
                drop(listener);
            });
            assert!(wait_for_end(&dir, &connection, Some(getpid()), LONG).unwrap());
            assert!(ended.load(Ordering::SeqCst));
        });
    }

    #[test]
    fn wait_for_end_times_out_while_the_service_runs() {
        let tmp = temp_dir();
        let dir = UserDir::at(tmp.path().join("r")).unwrap().service("hosts", "a").unwrap();
        let lock = dir.lock_service().unwrap().unwrap();
        let mut listener = Listener::open(&dir, lock).unwrap();
        let connection = connect(&dir, LONG).unwrap().unwrap();
        let wait = |pid| wait_for_end(&dir, &connection, pid, Duration::ZERO).unwrap();
        assert!(!wait(Some(getpid())), "the connection is there");
        drop(listener.accept().unwrap());
        assert!(!wait(Some(getpid())), "it listens");
        assert!(wait(None), "another process has taken its place");
    }
}
