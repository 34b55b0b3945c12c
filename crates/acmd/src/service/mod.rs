//! The service: one thread with an event loop, which never waits for a single source.
//!
//! In reading order: here the loop; `ask` handles client requests; `refresh` notifies the machine of ports, endpoints and
//! addresses; `answers` handles answers of subnet administration and the operating system; `reload` reads files again; `report`
//! collects the counters.

mod answers;
mod ask;
mod refresh;
mod reload;
mod report;

pub(crate) use refresh::unmet;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use rdmux::{AsyncEvent, DeviceKind};
use rdmux_acm::{ClientId, EndpointId, Machine, PortId, Time};
use rdmux_acm_files::Report;
use rdmux_link::spin_wait::{Slices, look};
use rdmux_wire::sa::PathRecord;

use crate::cache::{self, Cache};
use crate::clients::Clients;
use crate::config::{Config, Loaded, Sources};
use crate::devices::{At, Devices, Seen};
use crate::driver::Driver;
use crate::failures::Failures;
use crate::listen::Listener;
use crate::log::Log;
use crate::names::Names;
use crate::poller::{Interest, Poller, Ready, Token};
use crate::resolver::Resolver;
use crate::watch::{Addresses, Files, Signals};
use crate::worker::Worker;
use crate::{AcmdError, Setup};

/// Number of connections that are accepted in one turn.
const ACCEPTS: usize = 64;
/// Number of messages of a client that are processed in one turn.
const MESSAGES: usize = 128;
/// Number of datagrams of an endpoint that are processed in one turn.
const DATAGRAMS: usize = 256;
/// The delay between a hint of a change and the refresh: more hints follow, and the host's service has to notice the
/// change, too.
const SETTLE: Duration = Duration::from_millis(100);
/// The delay until a second refresh, for a host's service that was slow, or a fabric that was not up.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest pause before another attempt to get what could not be had.
const LONGEST: Duration = Duration::from_secs(30);

/// The service's state: see the module.
pub(crate) struct Service {
    resolver: Resolver,
    driver: Driver,
    devices: Devices,
    /// The ports as last reported to the machine.
    seen: BTreeMap<At, Seen>,
    /// The endpoints as last reported to the machine.
    planned: BTreeMap<EndpointId, refresh::Planned>,
    /// The common fields of all paths from each endpoint when loading of files with paths and addresses was begun.
    loaded_for: BTreeMap<EndpointId, PathRecord>,
    /// Whether those files must be loaded, even if they were loaded before.
    must_load: bool,
    loader: Worker<(Loaded, Report)>,
    /// What those files said when they could last be read.
    loaded: Loaded,
    names: Names,
    config: Config,
    /// Lines of the file of addresses that have no port, as they were logged.
    unmet: Report,
    sources: Sources,
    log: Log,
    poller: Poller,
    /// The Unix socket, and the TCP socket if the options require one.
    listeners: Vec<Listener>,
    /// Whether the options require other sockets than those that exist.
    must_listen: bool,
    /// What could not be had, and is tried again.
    failures: Failures<refresh::Needed>,
    /// The users of the host besides its owner.
    users: Vec<u32>,
    signals: Signals,
    files: Option<Files>,
    addresses: Option<Addresses>,
    /// Times at which to refresh devices and addresses.
    look: Vec<Instant>,
    /// Time at which to read files again.
    reload: Option<Instant>,
    next_request: u64,
    inbox: answers::Inbox,
    /// The time of the clients' last turn.
    now: Time,
    /// Endpoints that may have more datagrams to receive.
    busy: BTreeSet<EndpointId>,
    /// Whether the service has work that must not wait for an event.
    is_busy: bool,
    /// Whether the service expects the next event soon.
    expects: bool,
    /// Time to run without a client, or none to run forever.
    idle_exit: Option<Duration>,
    /// The time since which no client is connected.
    idle_since: Instant,
    began: Instant,
    ends: bool,
}

impl Service {
    /// Creates the sockets and notifies the machine of devices and endpoints. `files` has watched the files since
    /// before they were read.
    ///
    /// # Errors
    /// [`AcmdError`] when no socket can be created.
    pub(crate) fn new(
        setup: Setup,
        log: Log,
        config: Config,
        files: Option<Files>,
    ) -> Result<Self, AcmdError> {
        let poller = Poller::new().map_err(AcmdError::of("make an epoll instance"))?;
        let signals = Signals::new().map_err(AcmdError::of("handle signals"))?;
        for source in signals.sources() {
            let watched = poller.add(source, Token::Signal, Interest::Read);
            watched.map_err(AcmdError::of("watch signals"))?;
        }
        let addresses = Addresses::watch();
        let addresses =
            addresses.inspect_err(|e| tracing::warn!("changes of addresses go unseen: {e}")).ok();
        if let Some(addresses) = &addresses {
            let watched = poller.add(addresses, Token::Addresses, Interest::Read);
            watched.map_err(AcmdError::of("watch addresses"))?;
        }
        let names =
            Names::start(setup.connect.dir.clone()).map_err(AcmdError::of("start a thread"))?;
        let watched = poller.add(&names, Token::Names, Interest::Read);
        watched.map_err(AcmdError::of("watch a thread"))?;
        let loader = Worker::new().map_err(AcmdError::of("make a pair of sockets"))?;
        let watched = poller.add(&loader, Token::Loaded, Interest::Read);
        watched.map_err(AcmdError::of("watch a thread"))?;
        let users = setup.connect.config.service.users.clone();
        let options = &config.options;
        let access = reload::access(options, &users);
        let cache = Cache::open(&setup.sources.places, access.users.clone());
        let clients = Clients::new(reload::limits(options), access);
        let now = Instant::now();
        let mut this = Self {
            resolver: Resolver::new(Machine::new(config.options.machine.clone(), seed())),
            driver: Driver::new(clients, cache),
            devices: Devices::new(setup.host.name().as_str(), setup.choice),
            seen: BTreeMap::new(),
            planned: BTreeMap::new(),
            loaded_for: BTreeMap::new(),
            must_load: false,
            loader,
            loaded: Loaded::default(),
            names,
            config,
            unmet: Report::default(),
            sources: setup.sources,
            log,
            poller,
            listeners: Vec::new(),
            must_listen: false,
            failures: Failures::new(AGAIN, LONGEST),
            users,
            signals,
            files: None,
            addresses,
            look: Vec::new(),
            reload: None,
            next_request: 0,
            inbox: answers::Inbox::default(),
            now: time(),
            busy: BTreeSet::new(),
            is_busy: false,
            expects: false,
            idle_exit: setup.idle_exit,
            idle_since: now,
            began: now,
            ends: false,
        };
        this.driver.wait = this.config.wait();
        this.watch_files(files);
        this.refresh();
        // The first client already finds the contents of the files.
        if let Some(loaded) = this.loader.wait() {
            this.take_loaded(&loaded);
        }
        this.listen(setup.is_of_systemd)?;
        Ok(this)
    }

    /// Serves until it is requested to stop.
    ///
    /// # Errors
    /// Those of epoll_wait(2).
    pub(crate) fn run(mut self) -> Result<(), AcmdError> {
        // Programs wait for the service.
        let tell = |e: &std::io::Error| tracing::debug!("the service has usual time slices: {e}");
        let mut slices = Slices::new().inspect_err(tell).ok();
        let mut ready = Vec::with_capacity(64);
        while !self.ends {
            let is_crowded = self.devices.is_crowded(Instant::now());
            // Hosts that share processors would preempt each other.
            slices.take_if(|slices| slices.have(!is_crowded).inspect_err(tell).is_err());
            self.wait(is_crowded, &mut ready).map_err(AcmdError::of("wait for events"))?;
            let now = Instant::now();
            self.is_busy = false;
            self.handle_busy_queues();
            // Datagrams of other hosts first: they may contain what programs request.
            for clients in [false, true] {
                self.now = time();
                let is_of = |e: &&Ready| matches!(e.token, Token::Client(_)) == clients;
                for event in ready.iter().filter(is_of) {
                    self.handle(event, now);
                }
            }
            self.turn();
        }
        tracing::info!("ends");
        self.driver.leave_all();
        Ok(())
    }

    /// Waits for events. If one is expected soon, busy-polls first, unless others need the processor: a wakeup takes longer.
    fn wait(&mut self, is_crowded: bool, ready: &mut Vec<Ready>) -> io::Result<()> {
        let timeout = self.timeout();
        let (poller, clients) = (&self.poller, &mut self.driver.clients);
        if std::mem::take(&mut self.expects) && !is_crowded {
            let mut waited = Ok(());
            let comes = look(|| {
                waited = clients.wait(poller, Some(Duration::ZERO), ready);
                waited.is_err() || !ready.is_empty()
            });
            if comes {
                return waited;
            }
        }
        clients.wait(poller, timeout, ready)
    }

    /// Returns how long the loop may wait for an event.
    fn timeout(&self) -> Option<Duration> {
        if self.is_busy || !self.busy.is_empty() || !self.driver.later.is_empty() {
            return Some(Duration::ZERO);
        }
        let now = Instant::now();
        let machine = self.resolver.get().poll_timeout().map(|due| due.since(time()));
        let instants = [
            self.driver.clients.next_timeout(),
            self.devices.next_timeout(),
            self.look.iter().min().copied(),
            self.reload,
            self.driver.cache.next_timeout(),
            self.idle_exit
                .filter(|_| self.driver.clients.len() == 0)
                .map(|idle| self.idle_since + idle),
        ];
        let others = instants.into_iter().flatten().map(|at| at.saturating_duration_since(now));
        machine.into_iter().chain(others).min()
    }

    fn handle(&mut self, event: &Ready, now: Instant) {
        match event.token {
            Token::Listener(index) => self.accept(index, now),
            Token::Client(id) => self.handle_client(id, event, now),
            Token::Signal => self.handle_signal(),
            Token::Files => {
                if self.files.as_ref().is_some_and(Files::take) {
                    self.reload = Some(Instant::now() + SETTLE);
                }
            }
            Token::Mounts => {
                if self.files.as_ref().is_some_and(Files::are_elsewhere) {
                    self.reload = Some(Instant::now() + SETTLE);
                }
            }
            Token::Addresses => {
                if let Some(addresses) = &self.addresses {
                    addresses.take();
                }
                self.look_soon();
            }
            Token::Device(number) => self.handle_device(number),
            Token::Drive(number) => {
                if let Some(kind) = Devices::of_token(number) {
                    self.drive(kind, now);
                }
            }
            Token::Mads(id) => self.handle_mads(PortId(u16::try_from(id).unwrap_or(0))),
            Token::Names => self.handle_names(),
            Token::Loaded => {
                if let Some(loaded) = self.loader.take() {
                    self.take_loaded(&loaded);
                }
            }
        }
    }

    /// Performs the work that is due or that events have caused.
    fn turn(&mut self) {
        self.serve();
        self.handle_later();
        let now = Instant::now();
        if self.resolver.get().poll_timeout().is_some_and(|due| due <= time()) {
            // Datagrams that have already arrived may make sends unnecessary.
            for kind in self.devices.contexts().map(|(kind, _)| kind).collect::<Vec<_>>() {
                self.drive(kind, now);
            }
            self.resolver.change().handle_timeout(time(), &mut self.driver);
            self.handle_later();
        }
        self.handle_devices(now);
        if self.devices.next_try().is_some_and(|at| at <= now) {
            self.look.push(now);
        }
        if self.look.iter().any(|at| *at <= now) {
            self.look.retain(|at| *at > now);
            self.refresh();
        }
        if self.reload.is_some_and(|at| at <= now) {
            self.reload = None;
            self.read_files();
        }
        self.driver.cache.renew(now);
        for id in self.driver.clients.stalled(now) {
            tracing::info!("client {} reads nothing and is dropped", id.0);
            self.driver.clients.remove(id, &self.poller);
            self.resolver.change().remove_client(id);
        }
        self.settle(now);
        self.check_idle(now);
    }

    /// Settles the clients that were worked on.
    fn settle(&mut self, now: Instant) {
        while let Some(id) = self.driver.next_touched() {
            self.settle_client(id, now);
        }
        self.is_busy |= self.driver.clients.has_servable();
    }

    fn settle_client(&mut self, id: ClientId, now: Instant) {
        if self.driver.clients.settle(id, &self.poller, now) {
            self.resolver.change().remove_client(id);
        }
    }

    fn check_idle(&mut self, now: Instant) {
        if self.driver.clients.len() > 0 {
            self.idle_since = now;
        } else if self.idle_exit.is_some_and(|idle| now.duration_since(self.idle_since) >= idle) {
            tracing::info!("nobody has been here for {:?}", now.duration_since(self.idle_since));
            self.ends = true;
        }
    }

    /// Schedules a refresh of devices and addresses after a short delay, and another one later.
    fn look_soon(&mut self) {
        let now = Instant::now();
        self.look.retain(|at| *at <= now + SETTLE);
        if self.look.is_empty() {
            self.look.push(now + SETTLE);
        }
        self.look.push(now + AGAIN);
    }

    fn accept(&mut self, index: u64, now: Instant) {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        for _ in 0..ACCEPTS {
            let Some(listener) = self.listeners.get_mut(index) else { return };
            match listener.accept() {
                Ok(Some(socket)) => {
                    let kind = listener.kind();
                    let clients = &mut self.driver.clients;
                    let closed = |id| self.resolver.change().remove_client(id);
                    if let Some(id) = clients.admit(socket, kind, (&self.poller, now), closed) {
                        self.resolver.set_user(id, clients.user(id));
                    }
                }
                Ok(None) => return,
                Err(e) => {
                    tracing::warn!("a client could not be accepted: {e}");
                    return;
                }
            }
        }
    }

    fn handle_signal(&mut self) {
        let asked = self.signals.take();
        if asked.reload {
            tracing::info!("SIGHUP: reads its files");
            self.read_files();
        }
        if asked.report {
            self.report();
        }
        self.ends |= asked.end;
    }

    /// Handles an asynchronous event of a device.
    fn handle_device(&mut self, number: u64) {
        let Some(kind) = Devices::of_token(number) else { return };
        let (mut failed, mut reregistered) = (false, BTreeSet::new());
        while let Some(context) = self.devices.context(kind) {
            match context.next_event(Some(Duration::ZERO)) {
                Ok(Some(AsyncEvent::DeviceFatal)) | Err(_) => {
                    failed = true;
                    break;
                }
                Ok(Some(AsyncEvent::ClientReregister(number))) => {
                    reregistered.insert(self.devices.id(At { kind, number }));
                }
                Ok(Some(event)) => tracing::debug!("{context}: {event:?}"),
                Ok(None) => break,
            }
        }
        if failed {
            self.lose(kind);
        }
        let to = |this: &Self, id| this.driver.ports.get(&id).map(|port| port.to);
        let before: Vec<_> = reregistered.into_iter().map(|id| (id, to(self, id))).collect();
        self.refresh();
        // After the refresh, because another subnet manager requests the reregistration after a failover. Where the refresh noticed
        // another manager, the machine has already joined again.
        for (id, before) in before {
            if to(self, id) == before {
                self.resolver.change().reregister(time(), id, &mut self.driver);
            }
        }
        self.look.push(Instant::now() + AGAIN);
    }

    /// Closes a failed device, whose host service is gone. It is opened again later.
    fn lose(&mut self, kind: DeviceKind) {
        tracing::warn!(
            "the {kind:?} device is gone: its host's service has ended; it is opened again"
        );
        let ports: Vec<At> = self.seen.keys().filter(|at| at.kind == kind).copied().collect();
        for at in ports {
            self.close_port(at);
        }
        self.devices.close(kind, Instant::now(), &self.poller);
    }
}

/// Returns random bytes.
fn seed() -> [u8; 16] {
    let mut seed = [0; 16];
    if let Err(e) = getrandom::fill(&mut seed) {
        tracing::warn!("no random numbers: {e}");
    }
    seed
}

/// Returns the machine's time, which is that of the cache in shared memory.
fn time() -> Time {
    Time(cache::now())
}
