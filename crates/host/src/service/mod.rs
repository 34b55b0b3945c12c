//! The service: a single-threaded event loop.
//!
//! In reading order: [`Service`] (here) waits for events and dispatches them; `core` holds the state and handles clients that connect and
//! leave; `requests` handles clients' requests, and `late` replies that cannot be sent at once; `clients`, `slots`, `addresses`, `rings`,
//! `host_rings` and `mcast` are the resources of the service, and `shares` limits each user's part of them; `ports` has what differs
//! between kinds of devices; `hub` is for XRC; `management` and `mad` handle management datagrams, `kinds` chooses among devices, `cm` and
//! `resolve` connect the connection manager; `status` and `capture` are for observation; `view` is for programs that search for the device
//! in the file system.

mod addresses;
mod capture;
mod clients;
mod cm;
mod core;
mod counters;
pub mod daemon;
mod host_rings;
mod hub;
mod kinds;
mod late;
mod lock;
mod mad;
mod management;
mod mcast;
mod netlink;
mod open;
mod options;
mod outgoing;
mod poller;
mod ports;
mod requests;
mod resolve;
mod rings;
mod shares;
mod slots;
mod status;
#[cfg(test)]
mod testing;
mod view;

use std::time::{Duration, Instant};

use rdmux_link::Doorbell;
use rdmux_link::spin_wait::ask_for_short_slices;
use rdmux_runtime::Listener;
use rdmux_verbs::throttled;

pub use options::{ServiceHandle, ServiceOptions};

use self::clients::Gone;
use self::core::Core;
use self::counters::Count;
use self::netlink::AddressMonitor;
use self::open::open_core;
use self::poller::{Interest, Ready, Token};
use self::ports::ib::PortAt;
use crate::error::HostError;
use crate::proto::MAX_MESSAGE;

/// Time that the service waits for further changes of the machine's addresses after one.
const RESCAN_DELAY: Duration = Duration::from_millis(100);

/// The least time that a service started on demand waits for its first client, which started it and may be slow to
/// connect.
const FIRST_CLIENT: Duration = Duration::from_secs(5);

/// A host's service.
#[derive(Debug)]
pub struct Service {
    core: Core,
    listener: Listener,
    monitor: AddressMonitor,
    stop: Doorbell,
    buf: Vec<u8>,
    /// Time at which to scan the machine's addresses again.
    rescan: Option<Instant>,
    idle_since: Option<Instant>,
}

impl Service {
    /// Takes the host's lock, its addresses and its socket. Clients may connect from now on.
    ///
    /// # Errors
    /// [`HostError::AlreadyUp`], [`HostError::Unresponsive`], [`HostError::PortInUse`] and others.
    pub fn new(options: ServiceOptions) -> Result<Self, HostError> {
        let io = |what: &'static str| move |e: std::io::Error| HostError::io(what, e);
        let dir = options.dir.host(&options.host)?;
        let lock = lock::take(&dir, options.lock_wait)?;
        // Opened before the addresses are scanned, so that changes meanwhile lead to another scan.
        let monitor = AddressMonitor::open().map_err(io("open a netlink socket"))?;
        let core = open_core(&options, dir.socket().exists())?;
        let stop = Doorbell::new().map_err(io("make an eventfd"))?;
        core.poller
            .add(&stop, Token::Stop, Interest::Read)
            .and(core.poller.add(&monitor, Token::Monitor, Interest::Read))
            .map_err(io("watch a descriptor"))?;
        let listener = Listener::open(&dir, lock)
            .map_err(|e| HostError::io(format!("listen at {}", dir.socket().display()), e))?;
        if !options.config.service.users.is_empty() {
            options.dir.user_dir().open_to_others(&dir)?;
        }
        core.poller
            .add(&listener, Token::Listener, Interest::Read)
            .map_err(io("watch a socket"))?;
        tracing::info!("host {} is up at {}", core.options.host, dir.socket().display());
        Ok(Self {
            core,
            listener,
            monitor,
            stop,
            buf: vec![0; MAX_MESSAGE],
            rescan: None,
            idle_since: None,
        })
    }

    /// Runs a service in a thread, which is ready when this returns. The thread blocks signals.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn spawn(options: ServiceOptions) -> Result<ServiceHandle, HostError> {
        Self::new(options)?.start()
    }

    /// Like [`spawn`](Self::spawn), for a service that clients may have connected to already.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(self) -> Result<ServiceHandle, HostError> {
        let stop = self.stop.try_clone();
        let stop = stop.map_err(|e| HostError::io("duplicate an eventfd", e))?;
        let thread = rdmux_verbs::signals::with_blocked(|| {
            std::thread::Builder::new().name("rdmuxd".to_owned()).spawn(|| self.run())
        });
        let thread = thread.map_err(|e| HostError::io("start a thread", e))?;
        Ok(ServiceHandle::new(stop, thread))
    }

    /// Serves until it is requested to end, or no clients are left.
    ///
    /// # Errors
    /// When the event loop itself fails.
    pub fn run(mut self) -> Result<(), HostError> {
        if let Err(error) = ask_for_short_slices() {
            tracing::debug!(%error, "cannot set short time slices for the service");
        }
        let mut ready = Vec::new();
        let result = loop {
            if self.core.stopping || (self.is_idle_too_long() && self.leave()) {
                break Ok(());
            }
            if let Err(e) = poller::wait(&self.core.poller, self.timeout(), &mut ready) {
                break Err(HostError::io("wait for events", e));
            }
            for event in &ready {
                self.handle(event);
                self.core.bury();
            }
            self.handle_time();
            self.core.flush_events();
            self.core.bury();
        };
        self.core.shut_down();
        tracing::info!("host {} is down", self.core.options.host);
        result
    }

    fn handle(&mut self, event: &Ready) {
        match event.token {
            Token::Listener => self.accept(),
            Token::Stop => self.core.stopping = true,
            Token::Monitor => {
                self.monitor.drain();
                // The first change sets the time: later ones do not put it off.
                self.rescan.get_or_insert(Instant::now() + RESCAN_DELAY);
            }
            Token::Rpc(id) => {
                if event.gone {
                    self.core.drop_late_reply(id);
                }
                self.core.serve(id, &mut self.buf);
            }
            Token::Pid(id) => {
                self.core.serve_rest(id, &mut self.buf);
                self.core.process_died(id);
            }
            Token::Notify(id) if event.writable && !event.readable => self.core.flush_notify(id),
            // The process writes nothing there: the other end is closed.
            Token::Notify(id) => self.core.doom(id, Gone::Closed),
            Token::Channel(id) if event.writable && !event.readable => self.core.flush_channel(id),
            Token::Channel(id) => self.core.channel_closed(id),
            Token::Qp1(index) => self.core.receive(index),
            Token::Stream(stream) => self.core.handle_stream(stream, event),
            Token::StreamListener(number) => self.core.accept_streams(number),
            Token::Fabric(port) => self.at_port(port, Core::fabric_event),
            Token::IsSm(port) => self.at_port(port, Core::is_sm_event),
            Token::Issm => self.core.issm_opened(),
            Token::Lookout(port) => self.at_port(port, Core::lookout_event),
            Token::IbData(port) => self.at_port(port, Core::receive_ib),
            Token::HostRing(pair) => self.core.host_ring_event(pair),
            Token::Sa(port) => self.at_port(port, Core::sa_event),
            Token::IssmFile(view, port) => {
                self.at_port(port, |core, at| core.issm_closed(view, at));
            }
            // Only the hub's own poller has this.
            Token::Events => {}
        }
    }

    /// Handles an event of a port of the adapter.
    fn at_port(&mut self, port: u8, handle: impl FnOnce(&mut Core, PortAt)) {
        if let Some(at) = self.core.adapter.at(port) {
            handle(&mut self.core, at);
        }
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok(Some(socket)) => {
                if let Err(e) = self.core.add_client(socket) {
                    throttled!(warn, "refused a client: {e}");
                    self.core.counts.add(Count::ClientsRefused);
                }
            }
            Ok(None) => {}
            Err(e) => {
                throttled!(warn, "cannot accept a client: {e}");
                self.core.counts.add(Count::ClientsRefused);
            }
        }
    }

    fn handle_time(&mut self) {
        if self.core.poll_timeout().is_some_and(|due| due <= self.core.now()) {
            self.core.handle_timeout();
        }
        if self.rescan.is_some_and(|at| at <= Instant::now()) {
            self.rescan = None;
            if let Err(e) = self.core.scan_addresses() {
                throttled!(warn, "cannot follow a change of addresses: {e}");
            }
            self.core.bury();
        }
        self.idle_since = match self.core.idle_exit() {
            Some(_) => self.idle_since.or_else(|| Some(Instant::now())),
            None => None,
        };
    }

    /// Returns how long to wait at most.
    fn timeout(&self) -> Option<Duration> {
        let due = self.core.poll_timeout().map(|due| due.since(self.core.now()));
        let from_now = |at: Instant| at.saturating_duration_since(Instant::now());
        let rescan = self.rescan.map(from_now);
        let idle = self.idle_end().map(from_now);
        [due, rescan, idle].into_iter().flatten().min()
    }

    /// Returns when the service ends if no client connects.
    fn idle_end(&self) -> Option<Instant> {
        let idle = self.core.idle_exit()?;
        let nobody_came = self.core.counts.get(Count::ClientsCame) == 0;
        Some(self.idle_since? + if nobody_came { idle.max(FIRST_CLIENT) } else { idle })
    }

    fn is_idle_too_long(&self) -> bool {
        self.idle_end().is_some_and(|end| end <= Instant::now())
    }

    /// Accepts clients that have just connected. Returns whether none are left, so that the service may end. A later client
    /// starts a new service.
    fn leave(&mut self) -> bool {
        self.accept();
        let alone = self.core.clients.iter().all(|(id, _)| self.core.is_hub(id));
        if !alone {
            self.idle_since = None;
        }
        alone
    }
}

/// Returns unpredictable random bytes from the kernel (`getrandom(2)`: it needs no file, which a chroot may lack).
fn random_bytes<const N: usize>() -> Result<[u8; N], HostError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| HostError::io("ask the kernel for random bytes", e))?;
    Ok(bytes)
}
