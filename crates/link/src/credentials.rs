//! The credentials of the process at the other end of a Unix socket.

use std::io;
use std::os::fd::AsFd;

use rustix::process::Pid;

use crate::sys;

/// The process that connected, or, on the connecting side, the process that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// The process ID. None if the process has none in this process's PID namespace: it is in another one that is not a
    /// descendant (`pid_namespaces(7)`).
    pub pid: Option<Pid>,
    /// The user ID of the process.
    pub uid: u32,
}

/// Returns the peer's credentials from the kernel (`SO_PEERCRED`, `unix(7)`).
///
/// # Errors
/// ENOTCONN for a socket without a peer, and those of getsockopt(2).
pub fn peer_credentials(socket: impl AsFd) -> io::Result<PeerCredentials> {
    let libc::ucred { pid, uid, .. } = sys::peer_credentials(socket)?;
    if uid == u32::MAX {
        return Err(io::Error::from_raw_os_error(libc::ENOTCONN));
    }
    Ok(PeerCredentials { pid: if pid > 0 { Pid::from_raw(pid) } else { None }, uid })
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    use rustix::net::{AddressFamily, SocketType};
    use rustix::process::{getpid, getuid};

    use super::*;

    const ROLE: &str = "RDMUX_TEST_CREDENTIALS";

    #[test]
    fn peer_credentials_are_those_of_the_socketpair_creator() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let own = PeerCredentials { pid: Some(getpid()), uid: getuid().as_raw() };
        assert_eq!(peer_credentials(&socket).unwrap(), own);
    }

    #[test]
    fn peer_credentials_of_an_unconnected_socket_are_enotconn() {
        let lone = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        assert_eq!(peer_credentials(&lone).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
        assert!(peer_credentials(std::io::pipe().unwrap().0).is_err());
    }

    /// Not a test: the role of a process in a PID namespace of its own, which reports a peer outside.
    #[test]
    fn role_of_another_namespace() {
        if std::env::var_os(ROLE).is_some() {
            println!("SAYS {:?}", peer_credentials(std::io::stdin()).unwrap().pid);
        }
    }

    #[test]
    fn peer_outside_of_the_pid_namespace_has_no_pid() {
        let new = || {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user", "--pid", "--fork", "--"]);
            command
        };
        if !new().arg("true").output().is_ok_and(|out| out.status.success()) {
            return println!("SKIPPED: no PID namespace");
        }
        let says = |mut command: Command| {
            let (theirs, _ours) = UnixStream::pair().unwrap();
            let role = "credentials::tests::role_of_another_namespace";
            command.arg(std::env::current_exe().unwrap());
            command.args(["--exact", role, "--nocapture"]).env(ROLE, "1");
            let out = command.stdin(OwnedFd::from(theirs)).output().unwrap();
            String::from_utf8(out.stdout).unwrap()
        };
        let said = says(new());
        assert!(said.contains("SAYS None"), "{said}");
        let said = says(Command::new("env"));
        assert!(said.contains(&format!("SAYS {:?}", Some(getpid()))), "{said}");
    }
}
