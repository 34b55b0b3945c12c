//! Administration of hosts: start, stop, status, views, captures.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rdmux_runtime::{holder_of, wait_for_end};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::connect::{ConnectOptions, TIMEOUT, connect_running, connect_socket};
use super::rpc::Session;
use crate::error::HostError;
use crate::names::{DeviceChoice, HostName, Registry, RegistryEntry, RuntimeDir};
use crate::proto::{ClientKind, Request, Response, Status, socket};
use crate::view::namespace::Namespaces;

/// The largest status that is accepted, in bytes.
const MAX_STATUS: u64 = 256 << 20;
/// Time that a service may take to answer an optional request.
const GLANCE: Duration = Duration::from_millis(500);
/// Time to wait for an orderly end before the service is killed, if force is requested.
const BEFORE_FORCE: Duration = Duration::from_secs(2);
/// Time that a process may take to exit.
const END: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Starts a host's service if it does not run, makes it stay, and returns its status. `address` assigns the host's
/// address.
///
/// # Errors
/// [`HostError::AddressTaken`], [`HostError::Start`] and others. The host then keeps the address that it had before.
pub fn up(
    options: &ConnectOptions,
    host: &HostName,
    address: Option<IpAddr>,
) -> Result<Status, HostError> {
    let before = match address {
        Some(address) => Some(assign(options, host, address)?),
        None => None,
    };
    let status = options.greet(host, |socket| {
        let session = tool(host, socket)?;
        match session.call(&Request::Stay, || "keep the service up".to_owned())? {
            Response::Done => ask_status(&session),
            other => Err(session.unexpected(&other)),
        }
    });
    if let (Err(_), Some(address), Some(before)) = (&status, address, before)
        && let Err(e) = Registry::open(&options.dir).and_then(|mut r| r.undo(host, address, before))
    {
        tracing::warn!("host {host} keeps the address {address}: {e}");
    }
    status
}

/// Records an address for a host in the registry, if the host can have it. Returns the host's entry before that.
fn assign(
    options: &ConnectOptions,
    host: &HostName,
    address: IpAddr,
) -> Result<Option<RegistryEntry>, HostError> {
    let refused = |why| HostError::Start { host: host.clone(), why };
    let kind = match address {
        ip if ip.is_unspecified() => Some("is the unspecified address"),
        ip if ip.is_multicast() => Some("is a multicast address"),
        IpAddr::V4(ip) if ip.is_broadcast() => Some("is the broadcast address"),
        _ => None,
    };
    if let Some(kind) = kind {
        return Err(refused(format!("{address} {kind}, which a host cannot have")));
    }
    // An address that this machine does not have is not recorded.
    if let Err(e) = UdpSocket::bind((address, 0)) {
        return Err(refused(format!("this machine does not have the address {address}: {e}")));
    }
    let mut registry = Registry::open(&options.dir)?;
    let before = registry.get(host).cloned();
    registry.assign(host, address)?;
    Ok(before)
}

/// Ends a host's service. Its clients' devices fail. A service of another version, which does not understand the
/// request, is ended by a signal.
///
/// # Errors
/// [`HostError::NotUp`]; [`HostError::Unresponsive`].
pub fn down(dir: &RuntimeDir, host: &HostName) -> Result<(), HostError> {
    down_within(dir, host, TIMEOUT)
}

/// Like [`down`], but kills the process of a service that does not answer. If that service is a thread of a program, the
/// program is killed.
///
/// # Errors
/// [`HostError::NotUp`]; [`HostError::Unresponsive`] when the process cannot be found or killed.
pub fn down_by_force(dir: &RuntimeDir, host: &HostName) -> Result<(), HostError> {
    let host_dir = dir.host(host)?;
    let (pid, why) = match down_within(dir, host, BEFORE_FORCE) {
        Err(HostError::Unresponsive { pid, why, .. }) => (pid, why),
        // It may have closed its socket, and then hung.
        Err(HostError::NotUp { .. }) if host_dir.lock_service()?.is_none() => {
            (host_dir.service_lock_holder(), "it does not listen".to_owned())
        }
        other => return other,
    };
    let unresponsive = |why| HostError::Unresponsive { host: host.clone(), pid, why };
    let Some(pid) = pid else {
        return Err(unresponsive(format!("{why}, and the kernel does not show its process")));
    };
    let fail = |e: Errno| unresponsive(format!("{why}, and it cannot be killed: {e}"));
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(fail)?;
    // Only now is it certain that the PID was not reused.
    if host_dir.service_lock_holder() != Some(pid) {
        return Err(unresponsive(format!("{why}, and its process does not hold the host's lock")));
    }
    // Its socket file stays, which shows the next service that clients may still be closing their connections.
    signal_and_wait(&process, Signal::KILL).map_err(fail)
}

fn down_within(dir: &RuntimeDir, host: &HostName, timeout: Duration) -> Result<(), HostError> {
    let host_dir = dir.host(host)?;
    let socket = connect_running(&host_dir, timeout)?;
    let pid = rdmux_link::peer_credentials(&socket).ok().and_then(|peer| peer.pid);
    let session = match tool(host, socket) {
        Ok(session) => session,
        Err(error @ HostError::Version { .. }) => {
            return pid.and_then(|pid| terminate(pid).ok()).ok_or(error);
        }
        Err(error) => return Err(error),
    };
    match session.call(&Request::Shutdown, || format!("end the service of host {host}")) {
        Ok(Response::Done) | Err(HostError::ServiceGone { .. }) => {
            match wait_for_end(&host_dir, &session, pid, timeout) {
                Ok(true) => Ok(()),
                Ok(false) => Err(HostError::Unresponsive {
                    host: host.clone(),
                    pid: host_dir.service_lock_holder(),
                    why: "it confirmed the request to end, but still runs".to_owned(),
                }),
                Err(e) => {
                    Err(HostError::io(format!("connect to {}", host_dir.socket().display()), e))
                }
            }
        }
        Ok(other) => Err(session.unexpected(&other)),
        Err(e) => Err(e),
    }
}

/// Ends a host's ACM service, which would start the host's service again. `by_force` kills it. Returns whether one was
/// running.
///
/// # Errors
/// When its process cannot be ended.
pub fn end_acm(dir: &RuntimeDir, host: &HostName, by_force: bool) -> Result<bool, HostError> {
    let file = dir.host(host)?.acm().pid();
    let Some(pid) = holder_of(&file) else { return Ok(false) };
    let fail = |e: Errno| {
        let what = format!("end the ACM service of host {host}, process {}", pid.as_raw_nonzero());
        let hangs = e == Errno::TIMEDOUT && !by_force;
        let hint = || {
            let why =
                format!("it did not end after SIGTERM; `rdmux host down --force {host}` kills it");
            io::Error::new(io::ErrorKind::TimedOut, why)
        };
        HostError::io(what, if hangs { hint() } else { e.into() })
    };
    let process = pidfd_open(pid, PidfdFlags::empty()).map_err(fail)?;
    // Only now is it certain that the PID was not reused.
    if holder_of(&file) != Some(pid) {
        return Ok(false);
    }
    signal_and_wait(&process, if by_force { Signal::KILL } else { Signal::TERM }).map_err(fail)?;
    Ok(true)
}

/// Returns the state of a host's service.
///
/// # Errors
/// [`HostError::NotUp`]; [`HostError::Unresponsive`].
pub fn status(dir: &RuntimeDir, host: &HostName) -> Result<Status, HostError> {
    status_within(dir, host, TIMEOUT)
}

/// Like [`status`], with the time that the service has to answer.
///
/// # Errors
/// As [`status`].
pub fn status_within(
    dir: &RuntimeDir,
    host: &HostName,
    timeout: Duration,
) -> Result<Status, HostError> {
    ask_status(&tool(host, connect_running(&dir.host(host)?, timeout)?)?)
}

/// Returns the states of all running services, by host name. All are queried at the same time, and each has this time
/// to answer.
///
/// # Errors
/// [`HostError::Directory`].
#[expect(clippy::type_complexity, reason = "a list of results")]
pub fn status_of_all(
    dir: &RuntimeDir,
    timeout: Duration,
) -> Result<Vec<(HostName, Result<Status, HostError>)>, HostError> {
    let hosts = dir.hosts()?;
    let answers: Vec<_> = std::thread::scope(|scope| {
        let ask = |host| scope.spawn(move || status_within(dir, host, timeout));
        let asked: Vec<_> = hosts.iter().map(ask).collect();
        asked.into_iter().map(|thread| thread.join()).collect()
    });
    let answers = hosts.into_iter().zip(answers).filter_map(|(host, answer)| {
        let answer = answer.unwrap_or_else(|_| {
            Err(HostError::io("query a service", std::io::Error::other("a thread panicked")))
        });
        let up = !matches!(&answer, Err(HostError::NotUp { .. } | HostError::ServiceGone { .. }));
        up.then_some((host, answer))
    });
    Ok(answers.collect())
}

/// Makes the service write the view's files for these devices ([`HostDir::view`](crate::HostDir::view)), and updates the
/// names of hosts. Returns the namespaces that the service holds for this user, if any.
///
/// # Errors
/// [`HostError::NotUp`]; [`HostError::Refused`] when the files cannot be written.
pub fn view(dir: &RuntimeDir, host: &HostName, devices: DeviceChoice) -> Result<Held, HostError> {
    // The machine's own `/etc/hosts` may have changed.
    if let Err(e) = Registry::open(dir).and_then(|registry| registry.show_names()) {
        tracing::warn!("names of hosts may be missing: {e}");
    }
    let session = tool(host, connect_running(&dir.host(host)?, TIMEOUT)?)?;
    let what = || "write the files under /sys/class/infiniband".to_owned();
    match session.call_with_fds(&Request::View { devices }, &[], what)? {
        (Response::Done, fds) if fds.len() <= 2 => {
            let mut fds = fds.into_iter();
            Ok(Held { user: fds.next(), mounts: fds.next() })
        }
        (other, _) => Err(session.unexpected(&other)),
    }
}

/// Returns the user namespace that another host's service holds for this user's views. A service that does not answer at
/// once is skipped.
pub fn user_namespace_of_others(dir: &RuntimeDir, host: &HostName) -> Option<OwnedFd> {
    let others = dir.hosts().ok()?.into_iter().filter(|other| other != host);
    let ask = |other: HostName| -> Option<OwnedFd> {
        let socket = connect_socket(&dir.host(&other).ok()?, GLANCE).ok()??;
        let session = tool(&other, socket).ok()?;
        let what = || "pass its user namespace to the service".to_owned();
        let (_, mut fds) = session.call_with_fds(&Request::UserNamespace, &[], what).ok()?;
        fds.pop()
    };
    others.filter_map(ask).next()
}

/// The namespaces that a service holds for the views of a user.
#[derive(Debug)]
pub struct Held {
    /// The user namespace of all of the user's views.
    pub user: Option<OwnedFd>,
    /// The mount namespace in which the view's files are mounted.
    pub mounts: Option<OwnedFd>,
}

/// Makes the service hold a view's namespaces for this user.
///
/// # Errors
/// [`HostError::NotUp`].
pub fn hold_view(
    dir: &RuntimeDir,
    host: &HostName,
    devices: DeviceChoice,
    namespaces: &Namespaces,
) -> Result<(), HostError> {
    let session = tool(host, connect_running(&dir.host(host)?, TIMEOUT)?)?;
    let fds = [namespaces.user.as_fd(), namespaces.mounts.as_fd()];
    let what = || "hold a namespace".to_owned();
    match session.call_with_fds(&Request::HoldView { devices }, &fds, what)? {
        (Response::Done, _) => Ok(()),
        (other, _) => Err(session.unexpected(&other)),
    }
}

/// Lists the hosts whose services run.
///
/// # Errors
/// [`HostError::Directory`].
pub fn running(dir: &RuntimeDir) -> Result<Vec<HostName>, HostError> {
    let mut hosts = Vec::new();
    for host in dir.hosts()? {
        match connect_socket(&dir.host(&host)?, BEFORE_FORCE) {
            Ok(None) => {}
            Ok(Some(_)) | Err(HostError::Unresponsive { .. }) => hosts.push(host),
            Err(e) => return Err(e),
        }
    }
    Ok(hosts)
}

/// A capture of a host's traffic in both directions, until it is dropped. Each message of the socket is one frame, in
/// the format of [`rdmux_link::capture::FrameHeader`].
#[derive(Debug)]
pub struct Capture {
    _session: Session,
    socket: OwnedFd,
}

impl Capture {
    /// Starts a capture.
    ///
    /// # Errors
    /// [`HostError::NotUp`]; [`HostError::Refused`] with `EBUSY` when another capture runs already.
    pub fn start(dir: &RuntimeDir, host: &HostName) -> Result<Self, HostError> {
        let session = tool(host, connect_running(&dir.host(host)?, TIMEOUT)?)?;
        let what = || "capture traffic".to_owned();
        match session.call_with_fds(&Request::Capture, &[], what)? {
            (Response::Done, mut fds) if fds.len() == 1 => {
                Ok(Self { socket: fds.remove(0), _session: session })
            }
            (other, _) => Err(session.unexpected(&other)),
        }
    }

    /// Waits for the next frame. `None` when the service ended.
    ///
    /// # Errors
    /// Those of recvmsg(2).
    pub fn next_frame<'b>(&self, buf: &'b mut [u8]) -> Result<Option<&'b [u8]>, HostError> {
        match socket::recv_bytes(self.socket.as_fd(), buf, &mut Vec::new()) {
            Ok(frame) => Ok(Some(frame)),
            Err(socket::MessageError::Closed) => Ok(None),
            Err(e) => Err(HostError::io("read captured frames", std::io::Error::other(e))),
        }
    }
}

impl AsFd for Capture {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sends a process SIGTERM, and waits some seconds at most for its exit.
fn terminate(pid: Pid) -> rustix::io::Result<()> {
    signal_and_wait(&pidfd_open(pid, PidfdFlags::empty())?, Signal::TERM)
}

/// Sends a process a signal, and waits some seconds at most for its exit.
fn signal_and_wait(process: &OwnedFd, signal: Signal) -> rustix::io::Result<()> {
    pidfd_send_signal(process, signal)?;
    match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&END))? {
        0 => Err(Errno::TIMEDOUT),
        _ => Ok(()),
    }
}

fn tool(host: &HostName, socket: OwnedFd) -> Result<Session, HostError> {
    Session::open(host, socket, ClientKind::Tool, &[]).map(|(session, _, _)| session)
}

fn ask_status(session: &Session) -> Result<Status, HostError> {
    let what = || "get the host's status".to_owned();
    let (len, fd) = match session.call_with_fds(&Request::Status, &[], what)? {
        (Response::Status(len), mut fds) if fds.len() == 1 => (len, fds.remove(0)),
        (other, _) => return Err(session.unexpected(&other)),
    };
    let mut bytes = Vec::new();
    File::from(fd)
        .take(len.min(MAX_STATUS))
        .read_to_end(&mut bytes)
        .map_err(|e| HostError::io("read the status", e))?;
    socket::decode(&bytes).map_err(|e| HostError::Protocol {
        host: session.host().clone(),
        why: format!("it sent an invalid status: {e}"),
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_ended_and_waited_for() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        terminate(Pid::from_child(&child)).unwrap();
        assert!(!child.try_wait().unwrap().unwrap().success());
    }
}
