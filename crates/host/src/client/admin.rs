//! What commands do with hosts: start, end, look, listen in.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::connect::{ConnectOptions, connect_running, connect_socket};
use super::rpc::Session;
use crate::error::HostError;
use crate::names::{HostName, Registry, RuntimeDir};
use crate::proto::{ClientKind, Request, Response, Status, socket};

/// The most bytes of a status that are believed.
const MAX_STATUS: u64 = 256 << 20;

/// Starts a host's service if it does not run, lets it stay, and returns its status. `address` fixes
/// the host's address.
///
/// # Errors
/// [`HostError::AddressTaken`], [`HostError::Start`] and others.
pub fn up(
    options: &ConnectOptions,
    host: &HostName,
    address: Option<IpAddr>,
) -> Result<Status, HostError> {
    if let Some(address) = address {
        Registry::open(&options.dir)?.assign(host, address)?;
    }
    let dir = options.dir.host(host)?;
    let socket = match connect_socket(&dir)? {
        Some(socket) => socket,
        None => options.start(&dir)?,
    };
    let session = tool(host, socket)?;
    match session.call(&Request::Stay, || "let the service stay".to_owned())? {
        Response::Done => ask_status(&session),
        other => Err(session.unexpected(&other)),
    }
}

/// Ends a host's service. Its clients' devices fail. One of another version, which does not understand us, is ended by
/// a signal.
///
/// # Errors
/// [`HostError::NotUp`].
pub fn down(dir: &RuntimeDir, host: &HostName) -> Result<(), HostError> {
    let socket = connect_running(&dir.host(host)?)?;
    let peer = socket_peercred(&socket);
    let session = match tool(host, socket) {
        Ok(session) => session,
        Err(error @ HostError::Version { .. }) => {
            return peer.and_then(|peer| terminate(peer.pid)).map_err(|_| error);
        }
        Err(error) => return Err(error),
    };
    match session.call(&Request::Shutdown, || format!("end the service of host {host}")) {
        Ok(Response::Done) | Err(HostError::ServiceGone { .. }) => Ok(()),
        Ok(other) => Err(session.unexpected(&other)),
        Err(e) => Err(e),
    }
}

/// The state of a host's service.
///
/// # Errors
/// [`HostError::NotUp`].
pub fn status(dir: &RuntimeDir, host: &HostName) -> Result<Status, HostError> {
    ask_status(&tool(host, connect_running(&dir.host(host)?)?)?)
}

/// Has the service write the files of its view ([`HostDir::view`](crate::HostDir::view)). Returns the
/// namespaces in which they are in place, for [`join`](crate::view::namespace::join), if the service
/// holds some for this user.
///
/// # Errors
/// [`HostError::NotUp`]; [`HostError::Refused`] when the files cannot be written.
pub fn view(dir: &RuntimeDir, host: &HostName) -> Result<Option<Vec<OwnedFd>>, HostError> {
    let session = tool(host, connect_running(&dir.host(host)?)?)?;
    let what = || "write the files under /sys/class/infiniband".to_owned();
    match session.call_with_fds(&Request::View, &[], what)? {
        (Response::Done, fds) if fds.is_empty() => Ok(None),
        (Response::Done, fds) => Ok(Some(fds)),
        (other, _) => Err(session.unexpected(&other)),
    }
}

/// Has the service hold namespaces for this user, as [`own`](crate::view::namespace::own) gives them.
///
/// # Errors
/// [`HostError::NotUp`].
pub fn hold_view(
    dir: &RuntimeDir,
    host: &HostName,
    namespaces: &[OwnedFd],
) -> Result<(), HostError> {
    let session = tool(host, connect_running(&dir.host(host)?)?)?;
    let fds: Vec<_> = namespaces.iter().map(AsFd::as_fd).collect();
    let what = || "hold a namespace".to_owned();
    match session.call_with_fds(&Request::HoldView, &fds, what)? {
        (Response::Done, _) => Ok(()),
        (other, _) => Err(session.unexpected(&other)),
    }
}

/// The hosts whose services run.
///
/// # Errors
/// [`HostError::Directory`].
pub fn running(dir: &RuntimeDir) -> Result<Vec<HostName>, HostError> {
    let mut hosts = Vec::new();
    for host in dir.hosts()? {
        if connect_socket(&dir.host(&host)?)?.is_some() {
            hosts.push(host);
        }
    }
    Ok(hosts)
}

/// Copies of a host's traffic, both directions, until it is dropped. Each message of the socket is
/// one frame, as [`rdmux_verbs::FrameHeader`] says.
#[derive(Debug)]
pub struct Capture {
    _session: Session,
    socket: OwnedFd,
}

impl Capture {
    /// Starts to listen in.
    ///
    /// # Errors
    /// [`HostError::NotUp`]; [`HostError::Refused`] with `EBUSY` when somebody else does already.
    pub fn start(dir: &RuntimeDir, host: &HostName) -> Result<Self, HostError> {
        let session = tool(host, connect_running(&dir.host(host)?)?)?;
        let what = || "capture traffic".to_owned();
        match session.call_with_fds(&Request::Capture, &[], what)? {
            (Response::Done, mut fds) if fds.len() == 1 => {
                Ok(Self { socket: fds.remove(0), _session: session })
            }
            (other, _) => Err(session.unexpected(&other)),
        }
    }

    /// The next frame, waited for; `None` when the service ended.
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

/// Asks a process to end (SIGTERM), and waits for that, for some seconds at most.
fn terminate(pid: Pid) -> rustix::io::Result<()> {
    const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    pidfd_send_signal(&process, Signal::TERM)?;
    match poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&PATIENCE))? {
        0 => Err(Errno::TIMEDOUT),
        _ => Ok(()),
    }
}

fn tool(host: &HostName, socket: OwnedFd) -> Result<Session, HostError> {
    Session::open(host, socket, ClientKind::Tool, &[]).map(|(session, _, _)| session)
}

fn ask_status(session: &Session) -> Result<Status, HostError> {
    let what = || "tell its status".to_owned();
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
        why: format!("its status is {e}"),
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
