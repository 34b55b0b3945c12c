//! Nonblocking requests.

mod table;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdmux_wire::acm::client::{Query, Request};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use self::table::{FOREVER, Table};
use crate::connection::Connection;
use crate::socket::{BUSY, Connecting, connect, is_absent, is_connected};
use crate::{Error, Reply, Shared, Target};

/// The maximum number of requests on a connection to a service that accepts several, and of connections to one that
/// does not.
const PIPELINED: usize = 128;
const CONNECTIONS: usize = 8;
/// The number of connections in a row that a service closes with several requests unanswered, from which on it is taken for
/// one that accepts one request at a time. The first may have been closed by a restart.
const REFUSALS: u8 = 2;
/// The maximum time of a wait, because epoll_wait(2) cannot wait longer than 24 days.
const LONGEST: Duration = Duration::from_secs(3600);
/// The event data of the timer; that of a connection is its key.
const TIMER: u64 = 0;

/// Identifies a request of one [`Requests`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Any number of concurrent requests, with a descriptor that is readable when [`next`](Self::next) has work.
///
/// A request ends within its timeout, whatever the service does. After fork(2), a child sends its requests again over its own connections.
/// Its descriptor has the same number. If no descriptors are left for the child, its requests fail.
#[derive(Debug)]
pub struct Requests {
    targets: Vec<Target>,
    shared: Option<Shared>,
    poller: Poller,
    links: HashMap<u64, Link>,
    next_key: u64,
    table: Table,
    done: VecDeque<(RequestId, Result<Reply, Error>)>,
    /// For each target, how many connections in a row it has closed with several requests unanswered, without proof that it accepts
    /// several.
    refusals: Vec<u8>,
    /// Time until which the service is too busy to accept connections.
    busy: Option<Instant>,
    /// Connections with requests that [`process`](Self::process) will send together.
    unsent: Vec<u64>,
}

/// A connection.
#[derive(Debug)]
struct Link {
    connection: Connection,
    /// The index of the target that it leads to.
    target: usize,
    is_connected: bool,
    /// Whether the connection carries several requests at a time.
    is_pipelined: bool,
    /// The number of calls that sent requests. A service that accepts one at a time answers at most one for each.
    sent: u64,
    /// The number of requests that were answered.
    answered: u64,
    /// Whether the connection gets no more requests.
    is_stale: bool,
    /// Whether the poller waits for the connection to be writable.
    wants_out: bool,
    asked: Vec<u64>,
}

impl Requests {
    /// Returns requests to the first of these services that is running. It connects on the first request. Cached entries are read from the
    /// shared memory of the first service.
    ///
    /// # Errors
    /// [`Error::System`] if no descriptors are left.
    pub fn new(targets: impl IntoIterator<Item = Target>) -> Result<Self, Error> {
        let targets: Vec<_> = targets.into_iter().collect();
        let places = targets.first().and_then(Target::places);
        Ok(Self {
            refusals: vec![0; targets.len()],
            shared: places.map(|places| Shared::new(places.paths())),
            targets,
            poller: Poller::new()?,
            links: HashMap::new(),
            next_key: TIMER + 1,
            table: Table::default(),
            done: VecDeque::new(),
            busy: None,
            unsent: Vec::new(),
        })
    }

    /// Starts a request. If the service has passed its shared cache to this process, and the answer is there, [`next`](Self::next) returns
    /// it at once. While other requests are outstanding,
    /// the request is sent in one message with those that follow, by the next call of [`next`](Self::next) or [`wait`](Self::wait); the
    /// descriptor is readable until then.
    pub fn start(&mut self, query: &Query, timeout: Duration) -> RequestId {
        // A request that is queued behind others is sent later.
        if self.unsent.is_empty() || self.poller.is_watched() {
            self.come_back_from_fork();
        }
        let cached = match query {
            Query::Resolve { source, dest, .. } => {
                self.shared.as_ref().and_then(|shared| shared.get(source.as_ref(), dest))
            }
            _ => None,
        };
        let id = self.table.next_id();
        if let Some(paths) = cached {
            self.done.push_back((RequestId(id), Ok(Reply::Paths(paths))));
        } else {
            let request = Request { tid: id, query: *query }.to_bytes();
            self.table.add(id, request, timeout);
            self.dispatch();
        }
        self.set_timer();
        RequestId(id)
    }

    /// Cancels a request, so that [`next`](Self::next) returns nothing for it. Returns whether the request existed.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        self.come_back_from_fork();
        let before = self.done.len();
        self.done.retain(|(done, _)| *done != id);
        let was_there = self.done.len() < before || self.table.remove(id.0).is_some();
        self.leave(id.0, false);
        self.dispatch();
        self.set_timer();
        was_there
    }

    /// Returns the number of requests that are unanswered, or whose answers have not been taken.
    pub fn len(&self) -> usize {
        self.table.len() + self.done.len()
    }

    /// Returns whether no request is outstanding.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Does all work that needs no waiting, and returns the next answer, in any order. If it returns none, wait until the descriptor
    /// is readable.
    #[expect(clippy::should_implement_trait, reason = "none is not the end")]
    pub fn next(&mut self) -> Option<(RequestId, Result<Reply, Error>)> {
        self.next_within(|| Duration::ZERO)
    }

    /// Returns the next answer, after waiting for at most this long. None may be returned earlier.
    fn next_within(
        &mut self,
        time: impl FnOnce() -> Duration,
    ) -> Option<(RequestId, Result<Reply, Error>)> {
        if self.done.is_empty() || self.poller.is_watched() {
            self.come_back_from_fork();
        }
        if self.done.is_empty() {
            self.process(time());
        }
        let next = self.done.pop_front();
        self.set_timer();
        next
    }

    /// Returns the answer to one request, if it has arrived. Answers to others are kept, and the descriptor stays
    /// readable.
    pub fn take(&mut self, id: RequestId) -> Option<Result<Reply, Error>> {
        self.come_back_from_fork();
        self.process(Duration::ZERO);
        let at = self.done.iter().position(|(done, _)| *done == id);
        let (_, reply) = at.and_then(|at| self.done.remove(at)).unzip();
        self.set_timer();
        reply
    }

    /// Waits at most this long for the next answer. Returns none after that, and without requests.
    pub fn wait(&mut self, time: Duration) -> Option<(RequestId, Result<Reply, Error>)> {
        let mut deadline = None;
        let mut is_late = false;
        loop {
            // Read only if no answer is available yet.
            let left = || {
                let now = Instant::now();
                let deadline = *deadline.get_or_insert_with(|| now.checked_add(time));
                let left = deadline.map_or(FOREVER, |d| d.saturating_duration_since(now));
                is_late = left.is_zero();
                left
            };
            if let Some(next) = self.next_within(left) {
                return Some(next);
            }
            if self.is_empty() || is_late {
                return None;
            }
        }
    }

    /// Receives from each ready connection, and ends requests that timed out. Waits at most this long for an event.
    fn process(&mut self, time: Duration) {
        if let Some(shared) = &self.shared {
            shared.take();
        }
        self.send_unsent();
        let time = if self.is_empty() || !self.done.is_empty() { Duration::ZERO } else { time };
        for key in self.poller.ready(self.until_due(time)) {
            self.progress(key);
        }
        let now = Instant::now();
        while let Some((id, pending)) = self.table.expired(now) {
            self.leave(id, true);
            self.done.push_back((RequestId(id), Err(Error::TimedOut(pending.timeout))));
        }
        self.busy = self.busy.filter(|busy| *busy > now);
        self.dispatch();
        self.send_unsent();
    }

    /// Sends the requests that [`dispatch`](Self::dispatch) has deferred.
    fn send_unsent(&mut self) {
        while !self.unsent.is_empty() {
            for key in std::mem::take(&mut self.unsent) {
                let Some(link) = self.links.get_mut(&key) else { continue };
                if link.is_connected {
                    self.flush(key);
                }
            }
            // Requests of a connection that takes no more are moved to another one.
            self.dispatch();
        }
    }

    /// Assigns waiting requests to connections that accept one, and connects if none exists.
    fn dispatch(&mut self) {
        while self.busy.is_none() && self.table.is_waiting() {
            let free = self.links.iter().find(|(_, link)| link.takes_request());
            let Some(key) = free.map(|(key, _)| *key).or_else(|| self.connect(0)) else { break };
            let (Some(link), Some((id, pending))) = (self.links.get_mut(&key), self.table.take())
            else {
                break;
            };
            link.connection.put(&pending.request);
            link.asked.push(id);
            // After a connection that looked like a refusal, requests are sent together, so that their answers are a proof.
            let is_doubted = link.is_pipelined && self.refusals[link.target] > 0;
            if link.asked.len() > 1 || is_doubted && self.table.is_waiting() {
                if self.unsent.last() != Some(&key) {
                    self.unsent.push(key);
                }
            } else if link.is_connected {
                self.flush(key);
            } else {
                self.progress(key);
            }
        }
    }

    /// Sends the queued bytes of a connection.
    fn flush(&mut self, key: u64) {
        let Some(link) = self.links.get_mut(&key) else { return };
        match link.send() {
            Ok(()) => self.watch(key),
            // Answers that it sent before can still be received.
            Err(_) => self.progress(key),
        }
    }

    /// Makes the poller wait for what a connection may do next.
    fn watch(&mut self, key: u64) {
        let Some(link) = self.links.get_mut(&key) else { return };
        let wants_out = !link.is_connected || link.connection.is_sending();
        if wants_out != std::mem::replace(&mut link.wants_out, wants_out) {
            self.poller.set(link.connection.fd(), key, wants_out);
        }
    }

    /// Opens a new connection, within the limit, to the first target from `from` on that is running.
    fn connect(&mut self, from: usize) -> Option<u64> {
        let mut open = self.links.values().filter(|link| !link.is_stale);
        if open.clone().any(|link| link.is_pipelined) || open.nth(CONNECTIONS - 1).is_some() {
            return None;
        }
        if let Err(e) = self.poller.renew() {
            self.fail_waiting(&e);
            return None;
        }
        let (target, fd, is_connected) = match connect(&self.targets, from) {
            Ok((at, Connecting::Done(fd))) => (at, fd, true),
            Ok((at, Connecting::Wait(fd))) => (at, fd, false),
            Ok((_, Connecting::Busy)) => {
                self.busy = Instant::now().checked_add(BUSY);
                return None;
            }
            Err(e) => {
                self.fail_waiting(&e);
                return None;
            }
        };
        let key = self.next_key;
        self.next_key += 1;
        if let Err(e) = self.poller.add(&fd, key) {
            self.fail_waiting(&e);
            return None;
        }
        // ibacm has no such socket, and takes one request at a time. A service that was killed leaves it.
        let shares = self.targets[target].places().is_some_and(|places| places.paths().exists());
        let connection = Connection::new(fd);
        let link = Link {
            connection,
            target,
            is_connected,
            is_pipelined: shares && self.refusals[target] < REFUSALS,
            sent: 0,
            answered: 0,
            is_stale: false,
            wants_out: true,
            asked: Vec::new(),
        };
        self.links.insert(key, link);
        Some(key)
    }

    /// Fails all waiting requests.
    fn fail_waiting(&mut self, error: &Error) {
        while let Some((id, _)) = self.table.take() {
            self.table.remove(id);
            self.done.push_back((RequestId(id), Err(error.clone())));
        }
    }

    /// Sends and receives as much as a connection allows.
    fn progress(&mut self, key: u64) {
        let Some(link) = self.links.get_mut(&key) else { return };
        let outcome = link.exchange(&mut |tid, answer| {
            if self.table.remove(tid).is_some() {
                self.done.push_back((RequestId(tid), answer));
            }
        });
        if link.has_accepted_several() {
            self.refusals[link.target] = 0;
        }
        match outcome {
            Ok(()) if link.is_stale && link.asked.is_empty() => drop(self.links.remove(&key)),
            Ok(()) => self.watch(key),
            Err(error) => self.fail(key, &error),
        }
    }

    /// Closes a failed connection. Its requests are sent once more if that may help, or to the next target if no service was there.
    fn fail(&mut self, key: u64, error: &Error) {
        let Some(link) = self.links.remove(&key) else { return };
        if !link.is_connected && is_absent(error) {
            for id in link.asked {
                self.table.again(id, false);
            }
            if self.busy.is_none() && self.table.is_waiting() {
                self.connect(link.target + 1);
            }
            return;
        }
        let was_closed = *error == Error::Closed;
        // A service that takes one request at a time closes the connection when it gets two.
        let was_refusal =
            was_closed && link.is_pipelined && link.asked.len() > 1 && !link.has_accepted_several();
        // A restart closes all idle connections, and each may be assigned a request.
        let was_kept = !link.is_pipelined && link.answered > 0;
        if was_refusal {
            self.refusals[link.target] = self.refusals[link.target].saturating_add(1);
        } else if was_closed
            && was_kept
            && self.links.values().all(|other| other.target != link.target)
        {
            // After a restart it may be another service.
            self.refusals[link.target] = 0;
        }
        for id in link.asked {
            if was_closed && self.table.again(id, !was_refusal && !was_kept) {
                continue;
            }
            if self.table.remove(id).is_some() {
                self.done.push_back((RequestId(id), Err(error.clone())));
            }
        }
    }

    /// Abandons a request. Its answer may still arrive, so its connection takes no other request if it carries one at a time, or if the
    /// service was too slow for this one.
    fn leave(&mut self, id: u64, was_late: bool) {
        for link in self.links.values_mut().filter(|link| link.asked.contains(&id)) {
            link.is_stale |= was_late || !link.is_pipelined;
            link.asked.retain(|asked| *asked != id);
        }
        self.links.retain(|_, link| !link.is_stale || !link.asked.is_empty());
    }

    /// Returns how long the poller may wait: until the next timeout, and at most this time.
    fn until_due(&self, time: Duration) -> Duration {
        if time.is_zero() {
            return time;
        }
        let due = self.table.first_deadline().into_iter().chain(self.busy).min();
        due.map_or(time, |due| due.saturating_duration_since(Instant::now()).min(time))
    }

    fn set_timer(&mut self) {
        if !self.poller.is_watched() || self.poller.is_foreign {
            return;
        }
        let wake = if self.done.is_empty() && self.unsent.is_empty() {
            self.table.first_deadline().into_iter().chain(self.busy).min().map(Wake::At)
        } else {
            Some(Wake::Now)
        };
        self.poller.set_timer(wake);
    }

    /// Replaces the connections and the poller after a fork, because they are the parent's.
    fn come_back_from_fork(&mut self) {
        if self.poller.is_ours() {
            return;
        }
        // This process's copies of the sockets are closed first, so that there are descriptors for a new poller.
        for (_, link) in self.links.drain() {
            for id in link.asked {
                self.table.again(id, false);
            }
        }
        self.busy = None;
        self.unsent.clear();
        // If that fails, so do the requests, which cannot be sent: a connection must not be added to the parent's poller.
        let _ = self.poller.renew();
        self.dispatch();
    }
}

impl Link {
    /// Returns whether the connection accepts another request.
    fn takes_request(&self) -> bool {
        let most = if self.is_pipelined { PIPELINED } else { 1 };
        !self.is_stale && self.asked.len() < most
    }

    /// Returns whether the answers prove that the service accepts several requests at a time.
    fn has_accepted_several(&self) -> bool {
        self.answered > self.sent
    }

    /// Sends as much of the queued requests as the connection accepts.
    fn send(&mut self) -> Result<(), Error> {
        self.sent += u64::from(self.connection.is_sending());
        self.connection.send()
    }

    fn exchange(&mut self, take: &mut impl FnMut(u64, Result<Reply, Error>)) -> Result<(), Error> {
        if !self.is_connected {
            self.is_connected = is_connected(self.connection.fd())?;
            if !self.is_connected {
                return Ok(());
            }
        }
        let sent = self.send();
        let was_all = self.connection.receive()?;
        while let Some((tid, answer)) = self.connection.take()? {
            // An answer to a request that was not sent here is ignored.
            if let Some(at) = self.asked.iter().position(|asked| *asked == tid) {
                self.asked.swap_remove(at);
                self.answered += 1;
                take(tid, answer);
            }
        }
        // The poller reports that more input is left.
        if was_all { sent } else { Ok(()) }
    }
}

/// The descriptor is readable when [`Requests::next`] has something to do.
impl AsFd for Requests {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.watched()
    }
}

/// A descriptor that covers all connections and the timer.
#[derive(Debug)]
struct Poller {
    epoll: OwnedFd,
    timer: OwnedFd,
    process: Pid,
    /// Whether the descriptors are still the parent's, after fork(2), because none were left for others.
    is_foreign: bool,
    /// Whether the program has the descriptor, and may wait until it is readable. Otherwise the timer is not set.
    is_watched: AtomicBool,
    /// The current setting of the timer, once it has been set.
    wake: Option<Option<Wake>>,
}

/// Time at which the descriptor must become readable although nothing has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    Now,
    At(Instant),
}

impl Poller {
    fn new() -> Result<Self, Error> {
        let failed = |errno| Error::System("cannot wait for the ACM service", errno);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN).map_err(failed)?;
        let process = rustix::process::getpid();
        let is_watched = AtomicBool::new(false);
        Ok(Self { epoll, timer, process, is_foreign: false, is_watched, wake: None })
    }

    /// Returns the descriptor. It is readable until the first poll that follows, which sets the timer.
    fn watched(&self) -> BorrowedFd<'_> {
        if !self.is_watched.swap(true, Ordering::Relaxed) {
            self.arm(Duration::from_nanos(1));
        }
        self.epoll.as_fd()
    }

    fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// Returns whether the descriptors belong to this process, not to its parent.
    fn is_ours(&self) -> bool {
        self.process == rustix::process::getpid()
    }

    /// Replaces the descriptors if they are the parent's. The program's descriptor keeps its number. If no descriptors are left, nothing
    /// changes, and the next call tries again.
    fn renew(&mut self) -> Result<(), Error> {
        if self.is_ours() {
            return Ok(());
        }
        self.is_foreign = true;
        let Self { epoll, timer, process, wake, .. } = Self::new()?;
        rustix::io::dup3(&epoll, &mut self.epoll, rustix::io::DupFlags::CLOEXEC)
            .map_err(|errno| Error::System("cannot wait for the ACM service", errno))?;
        (self.timer, self.process, self.wake) = (timer, process, wake);
        self.is_foreign = false;
        Ok(())
    }

    fn add(&self, fd: &OwnedFd, key: u64) -> Result<(), Error> {
        let flags = EventFlags::IN | EventFlags::OUT;
        epoll::add(&self.epoll, fd, EventData::new_u64(key), flags)
            .map_err(|errno| Error::System("cannot wait for the ACM service", errno))
    }

    fn set(&self, fd: &OwnedFd, key: u64, wants_out: bool) {
        let flags = if wants_out { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        // A registration that was added can be modified.
        let _ = epoll::modify(&self.epoll, fd, EventData::new_u64(key), flags);
    }

    /// Returns the keys of connections that are ready within a time.
    fn ready(&self, time: Duration) -> Vec<u64> {
        let mut events = Vec::with_capacity(CONNECTIONS + PIPELINED);
        let time = timespec(time.min(LONGEST));
        let found = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&time));
        if found.is_err() {
            return Vec::new();
        }
        events.iter().map(|event| event.data.u64()).filter(|key| *key != TIMER).collect()
    }

    /// Makes the descriptor readable from a time on. A timer that expires earlier, but not yet, is kept: a system call for each answer
    /// would cost more than one wakeup without work.
    fn set_timer(&mut self, wake: Option<Wake>) {
        let suits = match (self.wake, wake) {
            (Some(Some(Wake::At(set))), Some(Wake::At(at))) => set <= at && set > Instant::now(),
            (set, wake) => set == Some(wake),
        };
        if suits {
            return;
        }
        self.wake = Some(wake);
        let left = match wake {
            None => Duration::ZERO,
            Some(Wake::Now) => Duration::from_nanos(1),
            Some(Wake::At(at)) => {
                at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1))
            }
        };
        self.arm(left);
    }

    /// Sets the timer to this duration, or disarms it.
    fn arm(&self, left: Duration) {
        let (it_value, it_interval) = (timespec(left), Timespec::default());
        let value = Itimerspec { it_interval, it_value };
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value);
        debug_assert_ne!(set.err(), Some(Errno::INVAL), "{}", self.timer.as_raw_fd());
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}
