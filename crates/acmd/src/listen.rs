//! The sockets to which clients connect, and the files through which they find them.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdmux_acm_client::Places;
use rdmux_runtime::{Acceptor, listen_at};
use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};

use crate::AcmdError;

/// The time for which a connection over TCP is idle before the kernel probes its peer, the time between probes, and their number
/// (tcp(7)).
const PROBE_AFTER: Duration = Duration::from_secs(60);
const PROBE_PAUSE: Duration = Duration::from_secs(10);
const PROBES: u32 = 6;
/// The time after which a connection whose peer does not answer is ended.
const LOST: Duration = Duration::from_secs(120);

/// A listening socket. Its files are removed when it is dropped, unless systemd has created them.
#[derive(Debug)]
pub(crate) struct Listener {
    acceptor: Acceptor,
    kind: Kind,
    files: Vec<PathBuf>,
}

/// The kind of a socket's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Processes of this machine, whose users the kernel reports.
    Unix,
    /// Clients over TCP.
    Tcp,
}

/// The files to publish for connection managers, besides those that tools use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Publish {
    /// Whether connection managers can find the service (not with `acme_plus_kernel_only`).
    pub(crate) links: bool,
    /// Whether users other than the owner may connect.
    pub(crate) others: bool,
}

impl Publish {
    /// Returns the mode of socket files.
    pub(crate) fn socket_mode(self) -> u32 {
        if self.others { 0o666 } else { 0o600 }
    }
}

impl Listener {
    /// Listens on the Unix socket. A dead service's socket is replaced: the caller has the lock.
    ///
    /// # Errors
    /// [`AcmdError::Io`].
    pub(crate) fn unix(places: &Places, publish: Publish) -> Result<Self, AcmdError> {
        let path = places.socket();
        let mode = publish.socket_mode();
        let socket = listen_at(&path, SocketType::STREAM, mode)
            .map_err(AcmdError::of_file("listen at", &path))?;
        let mut this = Self::of(socket, Kind::Unix, vec![path]);
        this.link(places.socket_link(), publish)?;
        Ok(this)
    }

    /// Returns the Unix socket that systemd has created; its files belong to systemd. None if it has passed none.
    ///
    /// # Errors
    /// [`AcmdError::Io`] for a socket of another kind.
    pub(crate) fn of_systemd() -> Result<Option<Self>, AcmdError> {
        let mut passed = listenfd::ListenFd::from_env();
        let fail = AcmdError::of("use the socket that systemd has passed");
        let mut found = None;
        for index in 0..passed.len() {
            match passed.take_unix_listener(index) {
                Ok(Some(listener)) if found.is_none() => found = Some(listener),
                Ok(_) => {}
                // ibacm's unit also passes a netlink socket for requests from the kernel, which do not exist here.
                Err(e) => tracing::debug!("ignored socket {index} passed by systemd: {e}"),
            }
        }
        let Some(listener) = found else { return Ok(None) };
        let ready = |listener: UnixListener| {
            listener.set_nonblocking(true)?;
            Ok(Self::of(listener.into(), Kind::Unix, Vec::new()))
        };
        ready(listener).map(Some).map_err(fail)
    }

    /// Listens on a TCP port, of the loopback address or of all addresses (`open`), and writes its number to a file. If another service has
    /// the port, which is normal among virtual hosts, uses any free port: clients read the file.
    ///
    /// # Errors
    /// [`AcmdError::Io`].
    pub(crate) fn tcp(
        places: &Places,
        port: u16,
        open: bool,
        publish: Publish,
    ) -> Result<Self, AcmdError> {
        let ip = if open { Ipv4Addr::UNSPECIFIED } else { Ipv4Addr::LOCALHOST };
        let bind = |port| TcpListener::bind(SocketAddr::from((ip, port)));
        let listener = match bind(port) {
            Err(e) if e.kind() == ErrorKind::AddrInUse && !open => {
                tracing::warn!("TCP port {port} is in use: listening on a free one instead");
                bind(0)
            }
            bound => bound,
        };
        let what = format!("listen on TCP port {port}");
        let listener = listener.map_err(AcmdError::of(&what))?;
        let ready = || -> io::Result<u16> {
            listener.set_nonblocking(true)?;
            Ok(listener.local_addr()?.port())
        };
        let port = ready().map_err(AcmdError::of(&what))?;
        let path = places.port();
        let text = format!("{port}\n");
        rdmux_runtime::file::replace_unsynced(&path, text.as_bytes())
            .and_then(|()| {
                let mode = if publish.others { 0o644 } else { 0o600 };
                fs::set_permissions(&path, Permissions::from_mode(mode))
            })
            .map_err(AcmdError::of_file("write", &path))?;
        let mut this = Self::of(listener.into(), Kind::Tcp, vec![path]);
        this.link(places.port_link(), publish)?;
        Ok(this)
    }

    fn of(socket: OwnedFd, kind: Kind, files: Vec<PathBuf>) -> Self {
        Self { acceptor: Acceptor::new(socket), kind, files }
    }

    /// Creates the link through which connection managers connect, or removes an old one.
    fn link(&mut self, link: PathBuf, publish: Publish) -> Result<(), AcmdError> {
        let name = self.files.first().and_then(|f| f.file_name()).filter(|_| publish.links);
        // A link that is right stays: programs may be connecting by it.
        let is_right =
            name.is_some() && fs::read_link(&link).ok().as_deref() == name.map(Path::new);
        let made = match name {
            _ if is_right => Ok(()),
            Some(name) => remove(&link).and_then(|()| symlink(name, &link)),
            None => remove(&link),
        };
        made.map_err(AcmdError::of_file("create the link", &link))?;
        if publish.links {
            self.files.push(link);
        }
        Ok(())
    }

    /// Gives the file of a Unix socket another mode, and creates or removes its link. Files of systemd stay. Returns whether clients can
    /// connect: not if the file has been removed.
    ///
    /// # Errors
    /// [`AcmdError::Io`].
    pub(crate) fn publish(&mut self, places: &Places, publish: Publish) -> Result<bool, AcmdError> {
        let Some(path) = self.files.first() else { return Ok(true) };
        match fs::set_permissions(path, Permissions::from_mode(publish.socket_mode())) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            changed => changed.map_err(AcmdError::of_file("change the mode of", path))?,
        }
        self.files.truncate(1);
        self.link(places.socket_link(), publish)?;
        Ok(true)
    }

    /// Closes the socket, and leaves its files, which a successor has replaced.
    pub(crate) fn abandon_files(mut self) {
        self.files.clear();
    }

    /// Returns the kind of its clients.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Accepts a connection, as [`Acceptor::accept`] does. The kernel ends a connection over TCP whose host is gone.
    pub(crate) fn accept(&mut self) -> io::Result<Option<OwnedFd>> {
        let accepted = self.acceptor.accept()?;
        if let Some(socket) = accepted.as_ref().filter(|_| self.kind == Kind::Tcp)
            && let Err(e) = probe(socket)
        {
            tracing::debug!("a client's host is not probed: {e}");
        }
        Ok(accepted)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.acceptor.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for file in self.files.iter().rev() {
            let _ = fs::remove_file(file);
        }
    }
}

/// Removes the port files of an earlier service in TCP mode.
pub(crate) fn forget_port(places: &Places) {
    for file in [places.port_link(), places.port()] {
        let _ = fs::remove_file(file);
    }
}

/// Removes a link if it exists.
fn remove(link: &Path) -> io::Result<()> {
    match fs::remove_file(link) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Makes the kernel probe the peer of an idle connection, and end the connection if the peer does not answer for [`LOST`].
fn probe(socket: &OwnedFd) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_PAUSE)?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    // Also where bytes are outstanding, which suspend the probes.
    let lost = u32::try_from(LOST.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, lost)
}

/// The identity of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Peer {
    /// A user of this machine.
    User(u32),
    /// A host of the network. The kernel knows no user of it.
    Address(IpAddr),
}

impl Peer {
    /// Returns the user to whom the client's descriptors count. TCP carries no user.
    pub(crate) fn user(self) -> u32 {
        match self {
            Self::User(user) => user,
            Self::Address(_) => u32::MAX,
        }
    }
}

/// Returns the peer of a socket: for a Unix socket as the kernel reports it (`SO_PEERCRED`), otherwise by its address, and for a peer on
/// this machine by the kernel's table of TCP connections.
pub(crate) fn peer_of(socket: &OwnedFd, kind: Kind) -> io::Result<(Peer, Option<i32>)> {
    match kind {
        Kind::Unix => {
            let peer = rdmux_link::peer_credentials(socket)?;
            Ok((Peer::User(peer.uid), peer.pid.map(|pid| pid.as_raw_nonzero().get())))
        }
        Kind::Tcp => {
            let far = rustix::net::getpeername(socket)?.ok_or(Errno::NOTCONN)?;
            let far = SocketAddr::try_from(far).map_err(io::Error::from)?;
            let near = SocketAddr::try_from(rustix::net::getsockname(socket)?);
            let near = near.map_err(io::Error::from)?;
            let user = far.ip().is_loopback().then(|| user_of(far, near)).flatten();
            Ok((user.map_or(Peer::Address(far.ip()), Peer::User), None))
        }
    }
}

/// Returns the user of the socket at the far end of a connection, from `/proc/net/tcp` (proc(5)).
fn user_of(far: SocketAddr, near: SocketAddr) -> Option<u32> {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    let find =
        || tables.iter().find_map(|table| user_in(&fs::read_to_string(table).ok()?, far, near));
    let user = find()?;
    // A socket that is closed while its row is printed may be listed as root's.
    (user != 0 || find() == Some(0)).then_some(user)
}

/// Returns the user of the row with local address `far` and remote address `near`. A socket that no process has any more, as in TIME_WAIT,
/// has no inode and is listed as root's.
fn user_in(table: &str, far: SocketAddr, near: SocketAddr) -> Option<u32> {
    let (far, near) = (written(far)?, written(near)?);
    let row = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (local, remote) = (words.next()?, words.next()?);
        let user = words.nth(4)?;
        let inode = words.nth(1)?;
        let is_it = far.iter().any(|far| far == local) && near.iter().any(|near| near == remote);
        (is_it && inode != "0").then(|| user.parse().ok()).flatten()
    };
    table.lines().skip(1).find_map(row)
}

/// Returns an address in the table's format, and as a mapped address in that of the IPv6 table.
fn written(address: SocketAddr) -> Option<[String; 2]> {
    let SocketAddr::V4(address) = address else { return None };
    let hex = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
    let plain = format!("{}:{:04X}", hex(address.ip().octets()), address.port());
    let mapped = format!("{0}{0}{1}{plain}", hex([0; 4]), hex([0, 0, 255, 255]));
    Some([plain, mapped])
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::os::unix::fs::FileTypeExt as _;
    use std::os::unix::net::UnixStream;

    use rdmux_testing::temp_dir;

    use super::*;

    const OWNER: Publish = Publish { links: true, others: false };

    #[test]
    fn socket_is_the_owner_s_only_unless_others_may_and_replaces_a_dead_one() {
        let dir = temp_dir();
        let places = Places::new(dir.path(), "/nowhere");
        let mode = || fs::metadata(places.socket()).unwrap().permissions().mode() & 0o777;
        let left = UnixListener::bind(places.socket()).unwrap();
        let mut listener = Listener::unix(&places, OWNER).unwrap();
        drop(left);
        assert_eq!(mode(), 0o600);
        assert!(listener.accept().unwrap().is_none());
        let _client = UnixStream::connect(places.socket_link()).unwrap();
        let socket = listener.accept().unwrap().unwrap();
        let me = Peer::User(rustix::process::geteuid().as_raw());
        assert_eq!(peer_of(&socket, Kind::Unix).unwrap().0, me);
        drop(listener);
        assert!(!places.socket().exists() && fs::symlink_metadata(places.socket_link()).is_err());
        let _listener = Listener::unix(&places, Publish { links: false, others: true }).unwrap();
        assert_eq!(mode(), 0o666);
        assert!(fs::symlink_metadata(places.socket_link()).is_err());
    }

    #[test]
    fn socket_that_is_published_otherwise_keeps_the_clients_that_wait() {
        let dir = temp_dir();
        let places = Places::new(dir.path(), "/nowhere");
        let mode = || fs::metadata(places.socket()).unwrap().permissions().mode() & 0o777;
        let mut listener = Listener::unix(&places, OWNER).unwrap();
        let _client = UnixStream::connect(places.socket()).unwrap();
        assert!(listener.publish(&places, Publish { links: false, others: true }).unwrap());
        assert_eq!(mode(), 0o666);
        assert!(fs::symlink_metadata(places.socket_link()).is_err());
        assert!(listener.accept().unwrap().is_some());
        assert!(listener.publish(&places, OWNER).unwrap());
        assert_eq!(mode(), 0o600);
        let _client = UnixStream::connect(places.socket_link()).unwrap();
        // The link cannot be replaced: the socket stays.
        fs::remove_file(places.socket_link()).unwrap();
        fs::create_dir(places.socket_link()).unwrap();
        assert!(listener.publish(&places, OWNER).is_err());
        let _client = UnixStream::connect(places.socket()).unwrap();
        fs::remove_dir(places.socket_link()).unwrap();
        fs::remove_file(places.socket()).unwrap();
        assert!(!listener.publish(&places, OWNER).unwrap());
        let successor = Listener::unix(&places, OWNER).unwrap();
        listener.abandon_files();
        let _client = UnixStream::connect(places.socket_link()).unwrap();
        drop(successor);
        assert!(!places.socket().exists());
    }

    #[test]
    fn directory_in_place_of_the_socket_is_not_removed() {
        let dir = temp_dir();
        let places = Places::new(dir.path(), "/nowhere");
        fs::create_dir(places.socket()).unwrap();
        assert!(Listener::unix(&places, OWNER).is_err());
        assert!(places.socket().is_dir());
    }

    #[test]
    fn socket_in_a_folder_with_a_long_path_is_connected_to_by_its_owner() {
        let dir = temp_dir();
        let deep = dir.path().join("x".repeat(120));
        fs::create_dir(&deep).unwrap();
        let places = Places::new(&deep, "/nowhere");
        let _listener = Listener::unix(&places, OWNER).unwrap();
        assert!(fs::metadata(places.socket()).unwrap().file_type().is_socket());
    }

    #[test]
    fn port_that_is_taken_is_replaced_and_written_down() {
        let dir = temp_dir();
        let places = Places::new(dir.path(), "/nowhere");
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let mut listener = Listener::tcp(&places, port, false, OWNER).unwrap();
        let written: u16 = fs::read_to_string(places.port_link()).unwrap().trim().parse().unwrap();
        assert_ne!(written, port);
        // Others could lead programs elsewhere by a file that they may write.
        let mode = || fs::metadata(places.port()).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(), 0o600);
        let _client = TcpStream::connect((Ipv4Addr::LOCALHOST, written)).unwrap();
        let socket = std::iter::repeat_with(|| listener.accept().unwrap()).find_map(|s| s).unwrap();
        let me = Peer::User(rustix::process::geteuid().as_raw());
        assert_eq!(peer_of(&socket, Kind::Tcp).unwrap(), (me, None));
        // A peer that vanishes is noticed.
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), PROBE_AFTER);
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 120_000);
        drop(listener);
        assert!(!places.port().exists());
        let others = Publish { others: true, ..OWNER };
        let _listener = Listener::tcp(&places, 0, false, others).unwrap();
        assert_eq!(mode(), 0o644);
    }

    #[test]
    fn unit_of_systemd_has_the_socket_and_the_links_that_clients_look_for() {
        let unit = include_str!("../systemd/ib_acm.socket");
        let value = |name: &str| unit.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let [own, system] = [Places::new("/run/ib_acm", "/etc/rdma"), Places::of_system()];
        assert_eq!(Path::new(value("ListenStream=")), own.socket());
        let links: Vec<_> = value("Symlinks=").split(' ').map(PathBuf::from).collect();
        assert_eq!(links, [own.socket_link(), system.socket(), system.socket_link()]);
    }

    #[test]
    fn user_is_found_by_the_exact_addresses_of_a_socket_that_a_process_has() {
        const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        if cfg!(target_endian = "big") {
            return;
        }
        let user = |rows: &[&str]| {
            let table =
                rows.iter().fold(HEAD.to_owned(), |table, row| format!("{table}   0: {row}\n"));
            user_in(&table, "127.0.0.1:6125".parse().unwrap(), "127.0.0.1:6126".parse().unwrap())
        };
        let rest = "00000000:00000000 00:00000000 00000000";
        let row =
            |addresses: &str, state: &str, end: &str| format!("{addresses} {state} {rest} {end}");
        const BOTH: &str = "0100007F:17ED 0100007F:17EE";
        let held = row(BOTH, "01", " 1000        0 7 1 0000000000000000 20 4 30 10 -1");
        assert_eq!(user(&[&held]), Some(1000));
        // The peer has shut down its side, and reads the answers.
        assert_eq!(user(&[&row(BOTH, "05", " 1000        0 7 1")]), Some(1000));
        // Other connections of the same port, a listener there, and the near end.
        let others = [
            row("0100007F:17ED 0100007F:17EF", "01", " 7        0 8 1"),
            row("0100007F:17ED 0200007F:17EE", "01", " 7        0 8 1"),
            row("0100007F:17ED 00000000:0000", "0A", " 7        0 8 1"),
            row("0100007F:17EE 0100007F:17ED", "01", " 7        0 8 1"),
        ];
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        assert_eq!(user(&others), None);
        assert_eq!(user(&[&others[..], &[&held]].concat()), Some(1000));
        // No process has these any more.
        for (state, end) in
            [("04", " 0        0 0 1"), ("05", " 0        0 0 0"), ("06", " 0        0 0 3")]
        {
            assert_eq!(user(&[&row(BOTH, state, end)]), None, "{state}");
        }
        // The socket is an IPv6 socket.
        const MAPPED: &str = "0000000000000000FFFF00000100007F";
        let both = format!("{MAPPED}:17ED {MAPPED}:17EE");
        assert_eq!(user(&[&row(&both, "01", " 1000        0 7 1")]), Some(1000));
        let other = both.replace("FFFF0000", "00000000");
        assert_eq!(user(&[&row(&other, "01", " 1000        0 7 1")]), None);
        assert_eq!(user(&[]), None);
        assert_eq!(user(&["nonsense", BOTH, ""]), None);
    }
}
