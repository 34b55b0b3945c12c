//! Blocking calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdmux_wire::acm::Address;
use rdmux_wire::acm::client::{Counters, Paths, Query, Request, Statistic, Subject};
use rdmux_wire::sa::PathRecord;
use rustix::event::PollFlags;
use rustix::process::Pid;

use crate::connection::Connection;
use crate::reply::Endpoint;
use crate::socket::{connect_within, left, wait};
use crate::{Error, Reply, Shared, Target};

/// The maximum number of idle connections that are kept. Each takes one of the clients that the service accepts, and hundreds of
/// processes may keep theirs for their lives.
const IDLE: usize = 1;

/// A client with blocking calls. Calls of several threads do not wait for each other: each uses its own connection.
#[derive(Debug)]
pub struct Client {
    targets: Vec<Target>,
    shared: Option<Shared>,
    idle: Mutex<Idle>,
    tid: AtomicU64,
}

/// The idle connections. They belong to one process: a child of fork(2) opens its own.
#[derive(Debug, Default)]
struct Idle {
    process: Option<Pid>,
    connections: Vec<Connection>,
}

impl Client {
    /// Returns a client of the first of these services that is running. It connects on the first request. Cached entries are read
    /// from the shared memory of the first service.
    pub fn new(targets: impl IntoIterator<Item = Target>) -> Self {
        let targets: Vec<_> = targets.into_iter().collect();
        let shared = targets.first().and_then(Target::places);
        let shared = shared.map(|places| Shared::new(places.paths()));
        Self { targets, shared, idle: Mutex::default(), tid: AtomicU64::new(1) }
    }

    /// Connects now, to check that a service is running.
    ///
    /// # Errors
    /// [`Error`].
    pub fn connect(&self, timeout: Duration) -> Result<(), Error> {
        let deadline = Instant::now().checked_add(timeout).ok_or(Error::TimedOut(timeout))?;
        let kept = self.kept();
        let socket = connect_within(&self.targets, deadline, timeout)?;
        kept.into_iter().chain([Connection::new(socket)]).for_each(|c| self.keep(c));
        Ok(())
    }

    /// Returns the paths to a name or an address, best first, from the shared cache or by a request.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Status`] is the service's refusal.
    pub fn resolve(
        &self,
        source: Option<Address>,
        dest: Address,
        timeout: Duration,
    ) -> Result<Paths, Error> {
        self.resolve_by(source, dest, false, timeout)
    }

    /// Returns the paths as [`resolve`](Self::resolve) does, if the service has them cached. Otherwise the service
    /// starts a search.
    ///
    /// # Errors
    /// As `resolve`, and [`Status::NO_DATA`](rdmux_wire::acm::client::Status::NO_DATA) if they are not cached.
    pub fn resolve_cached(
        &self,
        source: Option<Address>,
        dest: Address,
        timeout: Duration,
    ) -> Result<Paths, Error> {
        self.resolve_by(source, dest, true, timeout)
    }

    fn resolve_by(
        &self,
        source: Option<Address>,
        dest: Address,
        cached_only: bool,
        timeout: Duration,
    ) -> Result<Paths, Error> {
        if let Some(paths) = self.cached(source.as_ref(), &dest) {
            return Ok(paths);
        }
        let deadline = Instant::now().checked_add(timeout).ok_or(Error::TimedOut(timeout))?;
        if let Some(paths) = self.cached_within(source.as_ref(), &dest, timeout / 2) {
            return Ok(paths);
        }
        let query = Query::Resolve { source, dest, cached_only };
        paths(self.ask_until(query, (deadline, timeout))?)
    }

    /// Returns the paths in the shared cache, if the service has passed it to this process and has them cached. Never waits: the first
    /// call, and the first after a restart of the service, requests the cache.
    pub fn cached(&self, source: Option<&Address>, dest: &Address) -> Option<Paths> {
        self.shared.as_ref()?.get(source, dest)
    }

    /// Returns the paths in the shared cache. Waits until the service has passed the cache to this process, for this time and
    /// [`Shared::WAIT`] at most.
    fn cached_within(
        &self,
        source: Option<&Address>,
        dest: &Address,
        time: Duration,
    ) -> Option<Paths> {
        let shared = self.shared.as_ref()?;
        let cached = shared.get(source, dest);
        if cached.is_some() || !shared.is_coming() {
            return cached;
        }
        shared.wait(time);
        shared.get(source, dest)
    }

    /// Returns the cache in shared memory, if the service's files are known.
    pub fn shared(&self) -> Option<&Shared> {
        self.shared.as_ref()
    }

    /// Returns the paths to the destination of a path record: to its LID, or without one to its GID.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn resolve_path(&self, path: PathRecord, timeout: Duration) -> Result<Paths, Error> {
        self.paths(Query::ResolvePath { path, cached_only: false }, timeout)
    }

    /// Queries subnet administration for a path record, whose zero fields are wildcards.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn query_sa(&self, path: PathRecord, timeout: Duration) -> Result<Paths, Error> {
        self.paths(Query::QuerySa { path }, timeout)
    }

    /// Returns the counters of the service, or of an endpoint.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn counters(&self, subject: Subject, timeout: Duration) -> Result<Counters, Error> {
        match self.ask(Query::Counters(subject), timeout)? {
            Reply::Counters(counters) => Ok(counters),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns an endpoint of the service's host: number `index`, from 1 on, of those of a port, or of all if `port`
    /// is 0.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); [`Status::INVALID`](rdmux_wire::acm::client::Status::INVALID) if there is none.
    pub fn endpoint(&self, index: u8, port: u8, timeout: Duration) -> Result<Endpoint, Error> {
        match self.ask(Query::Endpoint { index, port }, timeout)? {
            Reply::Endpoint(endpoint) => Ok(endpoint),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes the service invalidate its cache entries of a destination, or all. Returns how many it invalidated.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); [`Error::Closed`] from ibacm, which does not support this request.
    pub fn flush(&self, dest: Option<Address>, timeout: Duration) -> Result<u64, Error> {
        match self.ask(Query::Flush(dest), timeout)? {
            Reply::Flushed(entries) => Ok(entries),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns all counters of the service, by name.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn statistics(&self, timeout: Duration) -> Result<Vec<Statistic>, Error> {
        match self.ask(Query::Statistics, timeout)? {
            Reply::Statistics(all) => Ok(all),
            other => Err(unexpected(&other)),
        }
    }

    fn paths(&self, query: Query, timeout: Duration) -> Result<Paths, Error> {
        paths(self.ask(query, timeout)?)
    }

    /// Sends any query, and waits for the answer until the timeout.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn ask(&self, query: Query, timeout: Duration) -> Result<Reply, Error> {
        let deadline = Instant::now().checked_add(timeout).ok_or(Error::TimedOut(timeout))?;
        self.ask_until(query, (deadline, timeout))
    }

    /// Sends a query, and waits for the answer until the deadline, which is that of the timeout.
    fn ask_until(
        &self,
        query: Query,
        (deadline, timeout): (Instant, Duration),
    ) -> Result<Reply, Error> {
        let tid = self.tid.fetch_add(1, Ordering::Relaxed);
        let request = Request { tid, query }.to_bytes();
        // An idle connection may belong to a service that has exited.
        while let Some(connection) = self.kept() {
            match self.ask_by(connection, &request, tid, (deadline, timeout)) {
                Err(Error::Closed) => {}
                answer => return answer,
            }
        }
        let socket = connect_within(&self.targets, deadline, timeout)?;
        self.ask_by(Connection::new(socket), &request, tid, (deadline, timeout))
    }

    fn ask_by(
        &self,
        mut connection: Connection,
        request: &[u8],
        tid: u64,
        (deadline, timeout): (Instant, Duration),
    ) -> Result<Reply, Error> {
        connection.put(request);
        loop {
            // Even if nothing can be sent any more, an answer may have arrived.
            let sent = connection.send();
            let left = left(deadline).ok_or(Error::TimedOut(timeout))?;
            if sent.is_ok() {
                let sending =
                    if connection.is_sending() { PollFlags::OUT } else { PollFlags::empty() };
                wait(connection.fd(), PollFlags::IN | sending, left)?;
            }
            let was_all = connection.receive()?;
            // A service that conforms to the protocol answers only this request. Other answers are ignored.
            while let Some((of, answer)) = connection.take()? {
                if of == tid {
                    self.keep(connection);
                    return answer;
                }
            }
            if was_all {
                sent?;
            }
        }
    }

    /// Returns an idle connection.
    fn kept(&self) -> Option<Connection> {
        // At fork(2), a thread of the parent may have held the lock, which is then never released here.
        let mut idle = self.idle.try_lock()?;
        let process = rustix::process::getpid();
        if idle.process.replace(process) != Some(process) {
            idle.connections.clear();
        }
        idle.connections.pop()
    }

    fn keep(&self, connection: Connection) {
        let Some(mut idle) = self.idle.try_lock() else { return };
        let is_ours = idle.process == Some(rustix::process::getpid());
        if is_ours && idle.connections.len() < IDLE && connection.is_between_messages() {
            idle.connections.push(connection);
        }
    }
}

/// Returns the paths of an answer.
fn paths(answer: Reply) -> Result<Paths, Error> {
    match answer {
        Reply::Paths(paths) => Ok(paths),
        other => Err(unexpected(&other)),
    }
}

/// Returns the error for an answer of the wrong kind.
fn unexpected(_: &Reply) -> Error {
    let what = "kind of an ACM answer";
    Error::Protocol(rdmux_wire::WireError::Value { what, value: 0 })
}
