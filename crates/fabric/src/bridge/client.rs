//! The bridge's side on the other machine: a Unix socket like the fabric's own.
//!
//! A bridge ends some time after its last client, unless it was requested to stay, and it ends with the fabric. Its clients see
//! that as the end of the fabric, and the next client starts the bridge again.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rdmux_runtime::Listener;
use rdmux_runtime::closing::Closer;
use rdmux_runtime::socket::{self, MAX_MESSAGE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::clients::{Clients, Place};
use super::copies::Copies;
use super::machines::Preface;
use super::state::State;
use super::{handshake, pump, secret, watch};
use crate::proto::{AdminRequest, AttachmentRequest, Failure, Greeting, Reply, Role, VERSION};
use crate::server::{FIRST_CLIENT, ServerOptions, take_lock};
use crate::{FabricDir, FabricError};

/// A bridge to the fabric of another machine.
#[derive(Debug)]
pub struct Client {
    listener: Listener,
    shared: Arc<Shared>,
    /// The connection for route tables. It ends with the fabric.
    watched: TcpStream,
    /// Time that the bridge may be without clients if it need not stay.
    idle_exit: Option<Duration>,
    /// Closes the sockets of refused clients, and descriptors that they sent.
    closer: Closer,
}

/// State that the threads of a bridge share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) way: Way,
    pub(super) state: State,
    pub(super) copies: Copies,
    users: Vec<u32>,
    clients: Clients,
}

/// The connection to the other machine.
#[derive(Debug)]
pub(super) struct Way {
    to: SocketAddr,
    secret: Vec<u8>,
    /// The number that identifies this machine to the fabric.
    machine: [u8; 16],
    /// The number of the next connection.
    next: AtomicU64,
}

impl Client {
    /// Takes the lock and the socket of a fabric in its directory. The other machine must answer, and know the secret in
    /// the directory.
    ///
    /// # Errors
    /// [`FabricError::AlreadyUp`], [`FabricError::File`] without a secret, [`FabricError::Start`] when the other machine
    /// does not answer correctly.
    pub fn open(
        to: SocketAddr,
        dir: &FabricDir,
        options: ServerOptions,
    ) -> Result<Self, FabricError> {
        let lock = take_lock(dir, options.lock_wait)?;
        let mut machine = [0; 16];
        getrandom::fill(&mut machine).map_err(|e| {
            FabricError::io("get random bytes from the kernel", io::Error::other(e))
        })?;
        let way = Way { to, secret: secret::read(dir)?, machine, next: AtomicU64::new(0) };
        let start = |why| FabricError::Start { fabric: dir.name().clone(), why };
        let watched = way.connect_tables().map_err(start)?;
        let listener = Listener::open(dir, lock)
            .map_err(|e| FabricError::io(format!("listen at {}", dir.socket().display()), e))?;
        if !options.config.users.is_empty() {
            options.user.open_to_others(dir)?;
        }
        let state = State::new(options.idle_exit.is_none());
        let state = state.map_err(|e| FabricError::io("make an eventfd", e))?;
        // The other side accepts no more.
        let clients = Clients::new(super::server::MAX_CONNECTIONS);
        let users = options.config.users;
        let copies = Copies::default();
        let shared = Arc::new(Shared { way, state, copies, users, clients });
        let (idle_exit, closer) = (options.idle_exit, Closer::default());
        Ok(Self { listener, shared, watched, idle_exit, closer })
    }

    /// Serves until it is requested to end, or has no clients and need not stay, or can no longer reach the fabric.
    /// Then ends its clients' connections.
    ///
    /// # Errors
    /// An error if it cannot wait for clients.
    pub fn run(mut self) -> Result<(), FabricError> {
        let watch = watch::start(&self.shared, &self.watched);
        let watch = watch.map_err(|e| FabricError::io("start a thread", e))?;
        let result = self.serve_all();
        drop(watch);
        self.shared.clients.end();
        result
    }

    fn serve_all(&mut self) -> Result<(), FabricError> {
        while !self.shared.state.is_ending() {
            let left = self.left();
            if left == Some(Duration::ZERO) {
                break;
            }
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut fds = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(self.shared.state.changed(), PollFlags::IN),
            ];
            match poll(&mut fds, left.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(FabricError::io("wait for clients", e)),
                Ok(_) => {}
            }
            self.shared.state.changed().clear();
            match self.listener.accept() {
                Ok(Some(unix)) => self.serve(unix),
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "cannot accept a client"),
            }
        }
        Ok(())
    }

    /// Returns how long until the bridge may end; none while it has clients or stays.
    fn left(&self) -> Option<Duration> {
        let Shared { state, clients, .. } = &*self.shared;
        let exit = self.idle_exit.filter(|_| !state.stays())?;
        let since = clients.idle_since()?;
        let first = if clients.has_served() { Duration::ZERO } else { FIRST_CLIENT };
        Some(exit.max(first).saturating_sub(since.elapsed()))
    }

    fn serve(&self, unix: OwnedFd) {
        let shared = Arc::clone(&self.shared);
        let user = rdmux_link::peer_credentials(&unix).map_or(0, |peer| peer.uid);
        let Some(place) = shared.clients.take(user, &unix) else {
            drop(self.closer.socket(user, unix));
            return tracing::debug!("client refused: too many clients");
        };
        let thread = thread::Builder::new().name("rdmux-bridge".to_owned());
        let started = thread.spawn(move || {
            if let Err(error) = carry(unix, place, &shared) {
                tracing::debug!(%error, "the connection of a client failed");
            }
            drop(shared.clients.leave(place));
            shared.state.has_changed();
        });
        if let Err(error) = started {
            tracing::debug!(%error, "cannot start a thread for a client");
            drop(self.shared.clients.leave(place).map(|unix| self.closer.socket(user, unix)));
        }
    }
}

/// Serves a client: reads its greeting, which may be for the bridge itself, and then relays messages.
fn carry(unix: OwnedFd, place: Place, shared: &Arc<Shared>) -> io::Result<()> {
    socket::set_nonblocking(&unix, false)?;
    // A client that does not greet is disconnected.
    sockopt::set_socket_timeout(&unix, sockopt::Timeout::Recv, Some(pump::HANDSHAKE))?;
    let mut buf = vec![0; MAX_MESSAGE];
    let greeting = socket::recv_bytes(unix.as_fd(), &mut buf, &mut Vec::new());
    let greeting = greeting.map_err(io::Error::other)?;
    let refuse = |failure| answer(&unix, Err(failure));
    let role = Greeting::decode(greeting).map(|greeting| greeting.role);
    let uid = rdmux_link::peer_credentials(&unix)?.uid;
    let owns = uid == 0 || uid == rustix::process::geteuid().as_raw();
    // The fabric would treat each of these as from the bridge's owner.
    let is_owners = matches!(role, Ok(Role::Admin | Role::Shutdown | Role::Capture(_)));
    if !owns && (is_owners || !shared.users.contains(&uid)) {
        return refuse(Failure::new(
            libc::EPERM,
            format!(
                "user {uid} may not use the bridge; `users` in the table [fabric] \
                 of its owner's configuration lets others attach"
            ),
        ));
    }
    shared.clients.greeted(place);
    if matches!(role, Ok(Role::Shutdown)) {
        answer(&unix, Ok(()))?;
        shared.state.end();
        return Ok(());
    }
    let (tcp, connection) = match shared.way.connect() {
        Ok(connected) => connected,
        Err(why) => return refuse(Failure::new(libc::EHOSTUNREACH, why)),
    };
    match role {
        Ok(Role::Attach { .. }) => attach(unix, uid, (tcp, connection), greeting, shared),
        Ok(Role::Tables) => {
            refuse(Failure::new(libc::EPERM, "only bridges may read the route tables"))
        }
        Ok(Role::Admin) => {
            pump::write_frame(&mut &tcp, greeting, &mut Vec::new())?;
            let ours = Arc::clone(shared);
            let outward = move |tcp: &TcpStream, request: &[u8], _| {
                let instead = for_bridge(request, &ours);
                let request = instead.as_deref().unwrap_or(request);
                pump::write_frame(&mut &*tcp, request, &mut Vec::new())
            };
            pump::run(unix, tcp, outward, |unix, frame| in_turn(unix, frame, &[], shared))
        }
        _ => {
            pump::write_frame(&mut &tcp, greeting, &mut Vec::new())?;
            let mut frame = Vec::new();
            let outward = move |tcp: &TcpStream, message: &[u8], _| {
                pump::write_frame(&mut &*tcp, message, &mut frame)
            };
            pump::run(unix, tcp, outward, |unix, frame| in_turn(unix, frame, &[], shared))
        }
    }
}

/// Passes a message of the fabric to a client, after the route table updates that preceded it.
fn in_turn(
    unix: &OwnedFd,
    frame: &[u8],
    fds: &[BorrowedFd<'_>],
    shared: &Shared,
) -> io::Result<()> {
    let (sequence, message) = pump::numbered(frame)?;
    shared.copies.wait_for(sequence)?;
    socket::send_bytes(unix.as_fd(), message, fds).map_err(io::Error::other)
}

/// Relays for a host. The answer to its greeting carries the copy of its route table, and the bridge itself handles requests about rows of
/// the host's processes.
fn attach(
    unix: OwnedFd,
    uid: u32,
    (tcp, connection): (TcpStream, u64),
    greeting: &[u8],
    shared: &Arc<Shared>,
) -> io::Result<()> {
    let (copy, table) = shared.copies.open(connection, uid, &tcp)?;
    copy.send(greeting)?;
    let (theirs, ours) = (Arc::clone(&copy), Arc::clone(shared));
    let outward = move |_: &TcpStream, message: &[u8], fds: Vec<OwnedFd>| {
        if message.is_empty() {
            return ours.copies.report(&theirs, false);
        }
        let broke = || io::Error::new(io::ErrorKind::InvalidData, "an invalid request");
        match (socket::decode(message).map_err(io::Error::other)?, &fds[..]) {
            (AttachmentRequest::Rows { process }, [rows]) => theirs.count_in(process, rows),
            (AttachmentRequest::RowsGone { process }, []) if theirs.counts(process) => {
                ours.copies.report(&theirs, true)?;
                theirs.process_gone(process);
                Ok(())
            }
            (AttachmentRequest::RowsGone { .. }, []) => Ok(()),
            (AttachmentRequest::Counted { .. } | AttachmentRequest::CountBy { .. }, _) => {
                Err(broke())
            }
            (request, []) => {
                let counts =
                    matches!(request, AttachmentRequest::Refresh | AttachmentRequest::Violation(_));
                if counts {
                    ours.copies.report(&theirs, false)?;
                }
                theirs.send(message)
            }
            _ => Err(broke()),
        }
    };
    let mut table = Some(table);
    let result = pump::run(unix, tcp, outward, |unix, frame| {
        let table = table.take();
        let fds: Vec<_> = table.iter().map(AsFd::as_fd).collect();
        in_turn(unix, frame, &fds, shared)
    });
    shared.copies.close(connection);
    result
}

/// Handles a command that is for the bridge rather than the fabric: to stay. Returns the request for the fabric that
/// has the same answer.
fn for_bridge(request: &[u8], shared: &Shared) -> Option<Vec<u8>> {
    if !matches!(socket::decode(request), Ok(AdminRequest::Stay)) {
        return None;
    }
    shared.state.stay();
    postcard::to_stdvec(&AdminRequest::Status).ok()
}

fn answer(unix: &OwnedFd, reply: Reply<()>) -> io::Result<()> {
    let sent = socket::send(unix.as_fd(), &(VERSION, reply), &[], &mut Vec::new());
    sent.map_err(io::Error::other)
}

impl Way {
    /// Connects to the fabric. Returns the connection and its number.
    fn connect(&self) -> Result<(TcpStream, u64), String> {
        let connection = self.next.fetch_add(1, Ordering::Relaxed);
        let preface = Preface { machine: self.machine, connection };
        let connect = || -> io::Result<TcpStream> {
            let tcp = TcpStream::connect_timeout(&self.to, pump::HANDSHAKE)?;
            pump::prepare(&tcp)?;
            let mut timed = pump::Timed::new(&tcp);
            handshake::connect(&mut timed, &self.secret)?;
            let preface = postcard::to_stdvec(&preface).map_err(io::Error::other)?;
            pump::write_frame(&mut timed, &preface, &mut Vec::new())?;
            tcp.set_read_timeout(Some(pump::HANDSHAKE))?;
            tcp.set_write_timeout(Some(pump::HANDSHAKE))?;
            Ok(tcp)
        };
        let Self { to, .. } = self;
        let connected = connect().map_err(|e| {
            format!(
                "cannot connect to the fabric at {to}: {e}; check that it is up with \
                 `--listen`, and with the same secret"
            )
        })?;
        Ok((connected, connection))
    }

    /// Opens the connection for route table updates.
    fn connect_tables(&self) -> Result<TcpStream, String> {
        let (tcp, _) = self.connect()?;
        let greet = || -> io::Result<(u32, Reply<()>)> {
            pump::detect_loss_in_flight(&tcp)?;
            let greeting = Greeting::new(Role::Tables);
            let greeting = postcard::to_stdvec(&greeting).map_err(io::Error::other)?;
            pump::write_frame(&mut &tcp, &greeting, &mut Vec::new())?;
            let mut buf = pump::buffer();
            let frame = pump::read_frame(&mut &tcp, &mut buf)?.unwrap_or_default();
            socket::decode(pump::numbered(frame)?.1).map_err(io::Error::other)
        };
        match greet() {
            Ok((_, Ok(()))) => Ok(tcp),
            Ok((_, Err(failure))) => Err(failure.why),
            Err(e) => Err(format!("the fabric at {} rejected the bridge: {e}", self.to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use rdmux_runtime::UserDir;
    use rdmux_testing::temp_dir;

    use super::*;
    use crate::FabricName;
    use crate::server::{ManagerSetup, Server, Setup};

    /// Makes a connection, and greets with this role.
    fn open(way: &Way, role: Role) -> TcpStream {
        let (tcp, _) = way.connect().unwrap();
        // Longer than anything here takes.
        tcp.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let greeting = postcard::to_stdvec(&Greeting::new(role)).unwrap();
        pump::write_frame(&mut &tcp, &greeting, &mut Vec::new()).unwrap();
        tcp
    }

    /// Makes a connection with this role. Returns it after the answer to its greeting.
    fn greet(way: &Way, role: Role) -> TcpStream {
        let tcp = open(way, role);
        assert!(pump::read_frame(&mut &tcp, &mut pump::buffer()).unwrap().is_some());
        tcp
    }

    #[test]
    fn connections_of_a_machine_end_with_its_route_tables_and_not_because_they_are_not_read() {
        let tmp = temp_dir();
        let (user, name) = (UserDir::at(tmp.path().join("r")).unwrap(), FabricName::default());
        let dir = FabricDir::open(&user, &name).unwrap();
        let listen = Some("127.0.0.1:0".parse().unwrap());
        let setup = Setup { listen, manager: ManagerSetup::off(), ..Setup::default() };
        setup.keep(&dir, None).unwrap();
        let server = Server::new(ServerOptions::new(name, user)).unwrap();
        let to = server.remote_address().unwrap();
        let server = thread::spawn(|| server.run());
        let [first, second] = [1, 2].map(|machine| Way {
            to,
            secret: secret::read(&dir).unwrap(),
            machine: [machine; 16],
            next: AtomicU64::new(0),
        });
        let [tables, _second_tables] = [&first, &second].map(|way| way.connect_tables().unwrap());
        let [ends, stays] = [&first, &second].map(|way| greet(way, Role::Admin));
        let timeouts = [&tables, &ends].map(|tcp| sockopt::tcp_user_timeout(tcp).unwrap());
        assert!(timeouts[0] > 0 && timeouts[1] == 0, "{timeouts:?}");
        drop(tables);
        let end = pump::read_frame(&mut &ends, &mut pump::buffer()).map(|frame| frame.is_some());
        let end = end.map_err(|e| e.kind());
        assert!(matches!(end, Ok(false) | Err(io::ErrorKind::ConnectionReset)), "{end:?}");
        let request = postcard::to_stdvec(&AdminRequest::Status).unwrap();
        pump::write_frame(&mut &stays, &request, &mut Vec::new()).unwrap();
        assert!(pump::read_frame(&mut &stays, &mut pump::buffer()).unwrap().is_some());
        // The answer may be lost, because the fabric ends.
        let _shutdown = open(&second, Role::Shutdown);
        server.join().unwrap().unwrap();
    }
}
