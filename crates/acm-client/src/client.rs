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

/// How many connections without a request are kept.
const IDLE: usize = 4;

/// A client whose calls wait for the answer. Calls of several threads do not wait for each other: each has a connection while
/// it lasts.
#[derive(Debug)]
pub struct Client {
    targets: Vec<Target>,
    shared: Option<Shared>,
    idle: Mutex<Idle>,
    tid: AtomicU64,
}

/// Connections without a request. They belong to one process: a child of fork(2) has its own.
#[derive(Debug, Default)]
struct Idle {
    process: Option<Pid>,
    connections: Vec<Connection>,
}

impl Client {
    /// A client of the first of some services that is there. Connects when something is asked. What is cached is read from the shared
    /// memory of the first.
    pub fn new(targets: impl IntoIterator<Item = Target>) -> Self {
        let targets: Vec<_> = targets.into_iter().collect();
        let shared = targets.first().and_then(Target::places);
        let shared = shared.map(|places| Shared::new(places.paths()));
        Self { targets, shared, idle: Mutex::default(), tid: AtomicU64::new(1) }
    }

    /// Connects now, so that it is known whether there is a service.
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

    /// The paths to a name or an address, the best first: from the shared cache, or by asking.
    ///
    /// # Errors
    /// [`Error`]; [`Error::Status`] is the service's word.
    pub fn resolve(
        &self,
        source: Option<Address>,
        dest: Address,
        timeout: Duration,
    ) -> Result<Paths, Error> {
        self.resolve_by(source, dest, false, timeout)
    }

    /// As [`resolve`](Self::resolve), if the service has it cached; it may find it later otherwise.
    ///
    /// # Errors
    /// The same; [`Status::NO_DATA`](rdmux_wire::acm::client::Status::NO_DATA) if it is not cached.
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
        match self.cached(source.as_ref(), &dest) {
            Some(paths) => Ok(paths),
            None => self.paths(Query::Resolve { source, dest, cached_only }, timeout),
        }
    }

    /// What the shared cache has, without asking anybody.
    pub fn cached(&self, source: Option<&Address>, dest: &Address) -> Option<Paths> {
        self.shared.as_ref()?.get(source, dest)
    }

    /// The cache in shared memory, if the service's files are known.
    pub fn shared(&self) -> Option<&Shared> {
        self.shared.as_ref()
    }

    /// The paths to the destination of a path record: to its LID, or without one to its GID.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn resolve_path(&self, path: PathRecord, timeout: Duration) -> Result<Paths, Error> {
        self.paths(Query::ResolvePath { path, cached_only: false }, timeout)
    }

    /// What subnet administration says to a path record, in which fields that are zero are not asked for.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn query_sa(&self, path: PathRecord, timeout: Duration) -> Result<Paths, Error> {
        self.paths(Query::QuerySa { path }, timeout)
    }

    /// The counters of the service, or of an endpoint.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn counters(&self, subject: Subject, timeout: Duration) -> Result<Counters, Error> {
        match self.ask(Query::Counters(subject), timeout)? {
            Reply::Counters(counters) => Ok(counters),
            other => Err(unexpected(&other)),
        }
    }

    /// An endpoint of the service's host: `index`, from 1 on, of those of a port, or of all if `port` is 0.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); [`Status::INVALID`](rdmux_wire::acm::client::Status::INVALID) if there is none.
    pub fn endpoint(&self, index: u8, port: u8, timeout: Duration) -> Result<Endpoint, Error> {
        match self.ask(Query::Endpoint { index, port }, timeout)? {
            Reply::Endpoint(endpoint) => Ok(endpoint),
            other => Err(unexpected(&other)),
        }
    }

    /// Has the service forget what it knows of a destination, or of all. Returns how many entries that were.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); [`Error::Closed`] by ibacm, which does not know this request.
    pub fn flush(&self, dest: Option<Address>, timeout: Duration) -> Result<u64, Error> {
        match self.ask(Query::Flush(dest), timeout)? {
            Reply::Flushed(entries) => Ok(entries),
            other => Err(unexpected(&other)),
        }
    }

    /// All that the service counts, by name.
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
        match self.ask(query, timeout)? {
            Reply::Paths(paths) => Ok(paths),
            other => Err(unexpected(&other)),
        }
    }

    /// Asks anything, and waits for the answer until the time is over.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn ask(&self, query: Query, timeout: Duration) -> Result<Reply, Error> {
        let deadline = Instant::now().checked_add(timeout).ok_or(Error::TimedOut(timeout))?;
        let tid = self.tid.fetch_add(1, Ordering::Relaxed);
        let request = Request { tid, query }.to_bytes();
        // A connection that was kept may be one to a service that is gone.
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
            // Even if nothing can be sent any more, an answer may be there.
            let sent = connection.send();
            let left = left(deadline).ok_or(Error::TimedOut(timeout))?;
            if sent.is_ok() {
                let sending =
                    if connection.is_sending() { PollFlags::OUT } else { PollFlags::empty() };
                wait(connection.fd(), PollFlags::IN | sending, left)?;
            }
            let was_all = connection.receive()?;
            // An answer to somebody else's question is none of a service that keeps to the protocol, and is ignored.
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

    /// A connection that nobody uses.
    fn kept(&self) -> Option<Connection> {
        // A thread of the process that this one was forked from may have it for good.
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

/// An answer to another question.
fn unexpected(_: &Reply) -> Error {
    let what = "kind of an ACM answer";
    Error::Protocol(rdmux_wire::WireError::Value { what, value: 0 })
}
