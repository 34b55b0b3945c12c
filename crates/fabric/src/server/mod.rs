//! The fabric: a single-threaded event loop.
//!
//! In reading order: [`Server`] (here) waits for events and dispatches them; `core` holds the state and handles clients that connect and
//! leave; `serving` receives their messages; `world` is the subnet and the programs' agents, and carries datagrams between them; `manager`
//! is the embedded subnet manager; `files`, `attachments` and `admin` handle requests; `published` has the hosts' route tables, `counted`
//! the counts of the packets that they sent; `violations` handles packets with wrong keys; `captures` copies ports' datagrams; `setup` is
//! the state that survives a restart.

mod admin;
mod attachments;
mod captures;
mod connection;
mod core;
mod counted;
mod counters;
mod facts;
mod files;
mod host_table;
mod manager;
mod manager_setup;
mod nodes;
mod options;
mod outgoing;
mod poller;
mod published;
mod serving;
mod setup;
mod store;
mod tables;
mod violations;
mod world;

use std::time::{Duration, Instant};

use rdmux_link::Doorbell;
use rdmux_link::spin_wait::ask_for_short_slices;
use rdmux_runtime::{Listener, start};

pub use manager_setup::{ManagerSetup, PartitionsFile};
pub use options::{ServerHandle, ServerOptions};
pub use published::Published;
pub use setup::{DEFAULT_SHAPE, FIRST_GUID, Setup, read_topology};

use self::core::Core;
use self::counters::Count;
use self::poller::{Ready, Token};
use crate::bridge;
use crate::client::connect_socket;
use crate::{Config, FabricDir, FabricError, FabricName};

/// The least time that a fabric started on demand waits for its first client, which started it and may be slow to
/// connect.
pub(crate) const FIRST_CLIENT: Duration = Duration::from_secs(5);

/// A fabric.
#[derive(Debug)]
pub struct Server {
    core: Core,
    listener: Listener,
    stop: Doorbell,
    idle_since: Option<Instant>,
    idle_exit: Option<Duration>,
    remote: Option<bridge::Server>,
}

impl Server {
    /// Takes the fabric's lock and its socket, and brings up the subnet of its directory. Clients may connect from now
    /// on.
    ///
    /// # Errors
    /// [`FabricError::AlreadyUp`], [`FabricError::File`] for a damaged directory, and others.
    pub fn new(options: ServerOptions) -> Result<Self, FabricError> {
        let dir = FabricDir::open(&options.user, &options.fabric)?;
        let lock = take_lock(&dir, options.lock_wait)?;
        let setup = Setup::load(&dir)?;
        if setup.join.is_some() {
            let why = "it is a bridge to another machine; `rdmux fabric up --join` starts it";
            return Err(FabricError::Start { fabric: options.fabric, why: why.to_owned() });
        }
        let mut core = Core::open(dir.clone(), &options, setup.clone())?;
        let stop = Doorbell::new().map_err(|e| FabricError::io("make an eventfd", e))?;
        let listener = Listener::open(&dir, lock)
            .map_err(|e| FabricError::io(format!("listen at {}", dir.socket().display()), e))?;
        core.poller
            .add(&stop, Token::Stop)
            .and(core.poller.add(&listener, Token::Listener))
            .map_err(|e| FabricError::io("watch a descriptor", e))?;
        if !options.config.users.is_empty() {
            options.user.open_to_others(&dir)?;
        }
        let open = |at| bridge::Server::open(at, &dir, core.machines.clone());
        let remote = setup.listen.map(open).transpose()?;
        core.listens_at(remote.as_ref().map(bridge::Server::address));
        tracing::info!("fabric {} is up at {}", options.fabric, dir.socket().display());
        let idle_exit = options.idle_exit;
        Ok(Self { core, listener, stop, idle_since: None, idle_exit, remote })
    }

    /// Runs a fabric in a thread, which is ready when this returns.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn spawn(options: ServerOptions) -> Result<ServerHandle, FabricError> {
        let server = Self::new(options)?;
        let stop = server.stop.try_clone();
        let stop = stop.map_err(|e| FabricError::io("duplicate an eventfd", e))?;
        let thread = std::thread::Builder::new().name("rdmux-fabric".to_owned());
        let thread = thread.spawn(|| server.run());
        Ok(ServerHandle::new(stop, thread.map_err(|e| FabricError::io("start a thread", e))?))
    }

    /// Returns the address where it listens for other machines.
    pub fn remote_address(&self) -> Option<std::net::SocketAddr> {
        self.remote.as_ref().map(bridge::Server::address)
    }

    /// Serves until it is requested to end, or no clients are left.
    ///
    /// # Errors
    /// When the event loop itself fails.
    pub fn run(mut self) -> Result<(), FabricError> {
        if let Err(error) = ask_for_short_slices() {
            tracing::debug!(%error, "cannot set short time slices for the fabric");
        }
        let mut ready = Vec::new();
        let result = loop {
            if self.core.is_stopping() || self.is_idle_too_long() {
                break Ok(());
            }
            let timeout = self.timeout();
            if let Err(e) = self.core.poller.wait(timeout, &mut ready) {
                break Err(FabricError::io("wait for events", e));
            }
            for event in &ready {
                self.handle(event);
            }
            self.core.handle_time();
        };
        self.core.shut_down();
        tracing::info!("fabric {} is down", self.core.name());
        result
    }

    fn handle(&mut self, event: &Ready) {
        match event.token {
            Token::Listener => match self.listener.accept() {
                Ok(Some(socket)) => self.core.add_client(socket),
                Ok(None) => {}
                Err(e) => {
                    tracing::debug!("cannot accept a client: {e}");
                    self.core.count(Count::ClientsRefused);
                }
            },
            Token::Stop => self.core.stop(),
            Token::Connection(id) => self.core.handle(id, event),
        }
    }

    /// Returns how long until the next action that needs no event.
    fn timeout(&mut self) -> Option<Duration> {
        let due = self.core.next_timeout();
        let idle = self.idle_exit.filter(|_| self.core.is_idle()).map(|exit| {
            let since = *self.idle_since.get_or_insert_with(Instant::now);
            exit.max(self.first_client()).saturating_sub(since.elapsed())
        });
        if idle.is_none() {
            self.idle_since = None;
        }
        due.into_iter().chain(idle).min()
    }

    fn is_idle_too_long(&self) -> bool {
        let Some((exit, since)) = self.idle_exit.zip(self.idle_since) else { return false };
        self.core.is_idle() && since.elapsed() >= exit.max(self.first_client())
    }

    fn first_client(&self) -> Duration {
        if self.core.has_served() { Duration::ZERO } else { FIRST_CLIENT }
    }
}

/// Runs a fabric, or the bridge to one, in this process until it ends. `on_demand` ends it some seconds after the last client. Once
/// clients can connect, calls `started` and then prints "ready" on standard output; otherwise prints "error: " and the reason.
///
/// # Errors
/// Those of [`Server::new`] and [`Server::run`].
pub fn serve(
    user: &rdmux_runtime::UserDir,
    fabric: &FabricName,
    config: Config,
    on_demand: bool,
    started: impl FnOnce(),
) -> Result<(), FabricError> {
    if start::apart() {
        return Ok(());
    }
    start::raise_descriptor_limit();
    let say_why = |e: &FabricError| match e {
        // The process that started it adds the rest.
        FabricError::Start { why, .. } => start::say(&format!("error: {why}")),
        e => start::say(&format!("error: {e}")),
    };
    let mut options = ServerOptions::new(fabric.clone(), user.clone());
    options.config = config;
    options.idle_exit = on_demand.then_some(ServerOptions::IDLE_EXIT);
    if on_demand {
        options.lock_wait = ServerOptions::ENDING;
    }
    let dir = FabricDir::open(user, fabric)?;
    if let Some(join) = Setup::load(&dir).inspect_err(say_why)?.join {
        let client = bridge::Client::open(join, &dir, options).inspect_err(say_why)?;
        started();
        start::say("ready");
        return client.run();
    }
    let server = Server::new(options).inspect_err(say_why)?;
    started();
    start::say("ready");
    server.run()
}

/// Takes the lock of a fabric. A fabric that is ending closes its socket first and keeps the lock until all its
/// resources are released. This function waits for that, at most `wait`.
pub(crate) fn take_lock(
    dir: &FabricDir,
    wait: Duration,
) -> Result<rdmux_runtime::Lock, FabricError> {
    /// Interval at which to check whether the holder listens by now.
    const LOOK: Duration = Duration::from_millis(20);
    let start = Instant::now();
    loop {
        if let Some(lock) = dir.lock_service()? {
            return Ok(lock);
        }
        if connect_socket(dir, LOOK)?.is_some() || start.elapsed() >= wait {
            return Err(FabricError::AlreadyUp { fabric: dir.name().clone() });
        }
        // flock(2) has no timeout.
        std::thread::sleep(LOOK);
    }
}
