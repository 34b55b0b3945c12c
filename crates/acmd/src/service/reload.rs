//! Reads files again, and opens the sockets that options require.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use rdmux_acm::{EndpointId, Known};
use rdmux_acm_client::Users;
use rdmux_acm_files::Report;
use rdmux_acm_files::options::{Options, ServerMode, SocketAccess};
use rdmux_acm_files::routes::DumpedPort;
use rdmux_wire::acm::Address;
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{Gid, Lid};

use super::refresh::Needed;
use super::{SETTLE, Service, time};
use crate::AcmdError;
use crate::clients::{Access, Limits};
use crate::config::{Loaded, Sources, surplus};
use crate::listen::{Listener, Publish, forget_port};
use crate::poller::{Interest, Token};
use crate::watch::Files;

impl Service {
    /// Reads the configuration files again. Settings that were removed from them are undone; unchanged ones stay, and so do
    /// those of a file that cannot be read now.
    pub(super) fn read_files(&mut self) {
        // Drops the previous watcher first: a user may have few of them (max_user_instances, inotify(7)).
        self.watch_files(None);
        let (config, problems, files) = self.sources.read_watched(Some(&self.config));
        self.watch_files(files);
        for problem in problems.problems() {
            tracing::warn!("{problem}");
        }
        self.log.follow(&config.log, config.options.log_level);
        let old = std::mem::replace(&mut self.config, config);
        if old.lock != self.config.lock {
            tracing::warn!("lock_file counts when the service is started anew");
        }
        self.driver.wait = self.config.wait();
        let (old, new) = (old.options, &self.config.options);
        let sockets = |options: &Options| {
            let Options { server_mode, server_port, socket_access, acme_plus_kernel_only, .. } =
                *options;
            (server_mode, server_port, socket_access, acme_plus_kernel_only)
        };
        let has_other_sockets = sockets(&old) != sockets(new);
        let access = access(new, &self.users);
        self.driver.cache.set_users(access.users.clone());
        self.driver.clients.set_limits(limits(new), access);
        if old.machine != new.machine {
            tracing::info!("options have changed");
            self.resolver.change().set_options(time(), new.machine.clone(), &mut self.driver);
        }
        self.must_listen |= has_other_sockets;
        self.must_load = true;
        // What still cannot be had is logged again.
        self.failures.clear();
        self.devices.forget_failures(Instant::now());
        self.unmet = Report::default();
        self.refresh();
        self.settle(Instant::now());
    }

    /// Replaces the watcher of the files.
    pub(super) fn watch_files(&mut self, files: Option<Files>) {
        if let Some(old) = std::mem::replace(&mut self.files, files) {
            self.poller.remove(&old);
            if let Some(mounts) = old.mounts() {
                self.poller.remove(mounts);
            }
        }
        // Only the error condition is awaited: the table can always be read.
        if let Some(mounts) = self.files.as_ref().and_then(Files::mounts)
            && let Err(e) = self.poller.add(mounts, Token::Mounts, Interest::Nothing)
        {
            tracing::warn!("changes of mounts go unseen: {e}; send SIGHUP");
        }
        // What has changed before the poller watches the table is not reported.
        if self.files.as_ref().is_some_and(Files::are_elsewhere) {
            self.reload = Some(Instant::now() + SETTLE);
        }
        if let Some(files) = &self.files
            && let Err(e) = self.poller.add(files, Token::Files, Interest::Read)
        {
            tracing::warn!("changes of files go unseen: {e}; send SIGHUP");
        }
    }

    fn publish(&self) -> Publish {
        publish(&self.sources, &self.config.options)
    }

    /// Creates the sockets that changed options require. If that fails, they are created later.
    pub(super) fn listen_anew(&mut self) {
        if !self.must_listen {
            return;
        }
        match self.listen(false) {
            Ok(()) => {
                self.must_listen = false;
                self.failures.end(&Needed::Sockets);
            }
            Err(e) => self.retry(Needed::Sockets, &e),
        }
    }

    /// Creates the sockets that the options require. The Unix socket stays, except for the mode of its file, and its link.
    ///
    /// # Errors
    /// [`AcmdError::Io`].
    pub(super) fn listen(&mut self, is_of_systemd: bool) -> Result<(), AcmdError> {
        self.listen_unix(is_of_systemd)?;
        // The new one may have the same port. The files are removed with the old one.
        for old in self.listeners.drain(1..) {
            self.poller.remove(&old);
        }
        let places = &self.sources.places;
        let (mode, port) = (self.config.options.server_mode, self.config.options.server_port);
        if mode == ServerMode::Unix {
            forget_port(places);
            return Ok(());
        }
        let tcp = Listener::tcp(places, port, mode == ServerMode::Open, self.publish())?;
        self.watch_listener(&tcp, 1)?;
        self.listeners.push(tcp);
        Ok(())
    }

    /// Creates the Unix socket, or changes the files of the present one.
    fn listen_unix(&mut self, is_of_systemd: bool) -> Result<(), AcmdError> {
        let (places, publish) = (&self.sources.places, self.publish());
        let present = match self.listeners.first_mut() {
            Some(unix) => unix.publish(places, publish)?,
            None => false,
        };
        if present {
            return Ok(());
        }
        let passed = if is_of_systemd { Listener::of_systemd()? } else { None };
        let unix = match passed {
            Some(listener) => listener,
            None => Listener::unix(places, publish)?,
        };
        self.watch_listener(&unix, 0)?;
        if let Some(old) = self.listeners.first_mut() {
            self.poller.remove(&*old);
            std::mem::replace(old, unix).abandon_files();
        } else {
            self.listeners.push(unix);
        }
        Ok(())
    }

    fn watch_listener(&self, listener: &Listener, index: u64) -> Result<(), AcmdError> {
        let watched = self.poller.add(listener, Token::Listener(index), Interest::Read);
        watched.map_err(AcmdError::of("watch a socket"))
    }

    /// Makes a thread load routes and addresses from the files that the options name, unless they are already loaded for the present
    /// endpoints. Entries of an unchanged endpoint stay until then.
    pub(super) fn load(&mut self) {
        let ends: BTreeMap<EndpointId, PathRecord> =
            self.planned.keys().filter_map(|id| Some((*id, self.near_end(*id)?))).collect();
        if !std::mem::take(&mut self.must_load) && ends == self.loaded_for {
            return;
        }
        let data = self.config.data.clone();
        for id in self.planned.keys() {
            if data.is_empty() || ends.get(id) != self.loaded_for.get(id) {
                self.resolver.change().unload(time(), *id, &mut self.driver);
            }
        }
        let local: Vec<DumpedPort> = ends.values().filter_map(dumped).collect();
        self.loaded_for = ends;
        if data.is_empty() {
            self.loader.cancel();
            self.loaded = Loaded::default();
        } else {
            let before = self.loaded.clone();
            self.loader.ask(move || data.load(&local, &before));
        }
    }

    /// Passes the contents of loaded files to the machine, for the present endpoints.
    pub(super) fn take_loaded(&mut self, (loaded, problems): &(Loaded, Report)) {
        for problem in problems.problems() {
            tracing::warn!("{problem}");
        }
        self.loaded = loaded.clone();
        for (id, end) in self.loaded_for.clone() {
            self.resolver.change().unload(time(), id, &mut self.driver);
            self.load_endpoint(id, &end, loaded);
        }
    }

    /// Returns the common fields of all paths from an endpoint: its port's end, at its own MTU, and its partition. The transit time is the
    /// subnet's maximum.
    fn near_end(&self, id: EndpointId) -> Option<PathRecord> {
        let planned = self.planned.get(&id)?;
        let port = &self.seen.get(&planned.at)?.port;
        let packet_life_time = port.subnet_timeout & 31;
        Some(PathRecord { packet_life_time, ..port.path_to(planned.pkey(), Gid::ZERO, Lid::NONE) })
    }

    fn load_endpoint(&mut self, id: EndpointId, end: &PathRecord, loaded: &Loaded) {
        let routes = dumped(end).and_then(|port| loaded.routes.of.get(&port));
        let mut rows: Vec<(Address, Known)> = Vec::new();
        for (dlid, route) in routes.into_iter().flatten() {
            let gid = route.guid.map_or(Gid::ZERO, |guid| Gid::new(end.sgid.prefix(), guid));
            let path = PathRecord {
                dgid: gid,
                dlid: *dlid,
                sl: route.sl,
                mtu: route.mtu.code().min(end.mtu),
                rate: route.rate,
                ..*end
            };
            let known = Known { gid, lid: *dlid, path: Some(path) };
            rows.push((Address::Lid(*dlid), known));
            if !gid.is_zero() {
                rows.push((Address::Gid(gid), known));
            }
        }
        let lids: HashMap<Gid, Lid> =
            rows.iter().map(|(_, known)| (known.gid, known.lid)).collect();
        rows.extend(loaded.hosts.iter().map(|(address, gid)| {
            let lid = lids.get(gid).copied().unwrap_or_default();
            (*address, Known { gid: *gid, lid, path: None })
        }));
        let mut loaded = 0;
        for (address, known) in &rows {
            let fits = self.resolver.change().load(time(), id, *address, known, &mut self.driver);
            loaded += usize::from(fits);
        }
        if !rows.is_empty() {
            tracing::info!("endpoint {}: {loaded} addresses loaded", id.0);
        }
        if loaded < rows.len() {
            let why = surplus(&self.config.options, rows.len() - loaded, rows.len());
            tracing::warn!("endpoint {}: {why}", id.0);
        }
    }
}

/// Returns the limits of clients, as far as descriptors are available.
pub(super) fn limits(options: &Options) -> Limits {
    let descriptors = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let descriptors = descriptors.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    limits_with(options, descriptors)
}

/// Returns the limits for a process that may have this many descriptors. A quarter of them is reserved for everything
/// else.
fn limits_with(options: &Options, descriptors: usize) -> Limits {
    let most = (descriptors - descriptors.div_ceil(4)).max(1);
    Limits::of(options.max_clients.min(most), options.machine.max_requests_per_client)
}

/// Returns what is published for clients.
pub(super) fn publish(sources: &Sources, options: &Options) -> Publish {
    let others = sources.others || options.socket_access == SocketAccess::All;
    Publish { links: !options.acme_plus_kernel_only, others }
}

/// Returns which users may connect, besides the owner and root.
pub(super) fn access(options: &Options, users: &[u32]) -> Access {
    let users = match options.socket_access {
        SocketAccess::All => Users::All,
        SocketAccess::Owner => Users::Of(users.iter().copied().collect()),
    };
    Access { users, unknown: options.server_mode == ServerMode::Open }
}

/// Returns the port at the near end of a path as OpenSM's dump names it, once it has a LID.
fn dumped(end: &PathRecord) -> Option<DumpedPort> {
    (end.slid != Lid::NONE).then_some(DumpedPort { guid: end.sgid.guid(), base_lid: end.slid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_limit_is_half_of_max_clients_bounded_by_descriptors() {
        let limits = |clients, descriptors| {
            let options = Options { max_clients: clients, ..Options::default() };
            let limits = limits_with(&options, descriptors);
            (limits.clients, limits.of_peer, limits.of_others)
        };
        let default = Options::default().max_clients;
        assert_eq!(limits(default, 1 << 20), (default, default.div_ceil(2), default - default / 4));
        assert_eq!(limits(1 << 16, 1024), (768, 384, 576));
        assert_eq!(limits(7, usize::MAX), (7, 4, 6));
        assert_eq!(limits(1, 1024), (1, 1, 1));
        assert_eq!(limits(1, 0), (1, 1, 1));
    }
}
