//! The side of the other machine: a Unix socket like the fabric's own.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use rdmux_link::Doorbell;
use rdmux_runtime::Listener;
use rdmux_runtime::socket::{self, MAX_MESSAGE};
use rustix::event::{PollFd, PollFlags, poll};

use super::{handshake, pump, secret};
use crate::proto::{Failure, Greeting, Reply, Role, VERSION};
use crate::server::{ServerOptions, take_lock};
use crate::{FabricDir, FabricError};

/// A bridge to the fabric of another machine.
#[derive(Debug)]
pub struct Client {
    listener: Listener,
    stop: Arc<Doorbell>,
    way: Arc<Way>,
    users: Vec<u32>,
}

/// The way to the other machine.
#[derive(Debug)]
struct Way {
    to: SocketAddr,
    secret: Vec<u8>,
}

impl Client {
    /// Takes the lock and the socket of a fabric in its directory. The other machine must answer, and know the secret that
    /// is in the directory.
    ///
    /// # Errors
    /// [`FabricError::AlreadyUp`], [`FabricError::File`] without a secret, [`FabricError::Start`] when the other machine
    /// does not answer as it must.
    pub fn open(
        to: SocketAddr,
        dir: &FabricDir,
        options: ServerOptions,
    ) -> Result<Self, FabricError> {
        let lock: File = take_lock(dir, options.lock_wait)?;
        let way = Way { to, secret: secret::read(dir)? };
        way.connect().map_err(|why| FabricError::Start { fabric: dir.name().clone(), why })?;
        let listener = Listener::open(dir, lock)
            .map_err(|e| FabricError::io(format!("listen at {}", dir.socket().display()), e))?;
        let stop = Doorbell::new().map_err(|e| FabricError::io("make an eventfd", e))?;
        let (stop, way) = (Arc::new(stop), Arc::new(way));
        Ok(Self { listener, stop, way, users: options.config.users })
    }

    /// Serves until it is told to end. It stays also when nobody is left.
    ///
    /// # Errors
    /// When it cannot wait for clients.
    pub fn run(mut self) -> Result<(), FabricError> {
        loop {
            let mut fds = [
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&*self.stop, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(FabricError::io("wait for clients", e)),
                Ok(_) if !fds[1].revents().is_empty() => return Ok(()),
                Ok(_) => {}
            }
            match self.listener.accept() {
                Ok(Some(unix)) => self.serve(unix),
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "a client cannot be accepted"),
            }
        }
    }

    fn serve(&self, unix: OwnedFd) {
        let (way, stop, users) =
            (Arc::clone(&self.way), Arc::clone(&self.stop), self.users.clone());
        let thread = thread::Builder::new().name("rdmux-bridge".to_owned());
        let started = thread.spawn(move || {
            if let Err(error) = carry(unix, &way, &stop, &users) {
                tracing::debug!(%error, "a client is not served");
            }
        });
        if let Err(error) = started {
            tracing::debug!(%error, "no thread for a client");
        }
    }
}

/// Serves a client: reads its greeting, which may be for the bridge itself, then only carries.
fn carry(unix: OwnedFd, way: &Way, stop: &Doorbell, users: &[u32]) -> io::Result<()> {
    socket::set_nonblocking(&unix, false)?;
    let mut buf = vec![0; MAX_MESSAGE];
    let greeting = socket::recv_bytes(unix.as_fd(), &mut buf, &mut Vec::new());
    let greeting = greeting.map_err(io::Error::other)?;
    let refuse = |failure| answer(&unix, Err(failure));
    let role = Greeting::decode(greeting).map(|greeting| greeting.role);
    let shuts_down = matches!(role, Ok(Role::Shutdown));
    let uid = rustix::net::sockopt::socket_peercred(&unix)?.uid.as_raw();
    let owns = uid == 0 || uid == rustix::process::geteuid().as_raw();
    let commands = matches!(role, Ok(Role::Admin | Role::Shutdown));
    if !owns && (commands || !users.contains(&uid)) {
        return refuse(Failure::new(libc::EPERM, format!("the bridge is not user {uid}'s")));
    }
    if shuts_down {
        answer(&unix, Ok(()))?;
        return stop.ring();
    }
    let tcp = match way.connect() {
        Ok(tcp) => tcp,
        Err(why) => return refuse(Failure::new(libc::EHOSTUNREACH, why)),
    };
    pump::write_frame(&mut &tcp, greeting, &mut Vec::new())?;
    pump::run(unix, tcp)
}

fn answer(unix: &OwnedFd, reply: Reply<()>) -> io::Result<()> {
    let sent = socket::send(unix.as_fd(), &(VERSION, reply), &[], &mut Vec::new());
    sent.map_err(io::Error::other)
}

impl Way {
    /// A connection to the fabric.
    fn connect(&self) -> Result<TcpStream, String> {
        let connect = || -> io::Result<TcpStream> {
            let mut tcp = TcpStream::connect_timeout(&self.to, pump::HANDSHAKE)?;
            pump::prepare(&tcp)?;
            handshake::connect(&mut tcp, &self.secret)?;
            Ok(tcp)
        };
        let Self { to, .. } = self;
        connect().map_err(|e| {
            format!("the fabric at {to} cannot be reached: {e}; is it up there with `--listen`, and with this secret?")
        })
    }
}
