//! Queries the host's ACM service (`ib_acm`) for a path, before the connection manager resolves the path without it.
//!
//! | file | contents |
//! |---|---|
//! | `environment` | `RDMA_CM_USE_IB_ACM` and `RDMUX_ACM_TIMEOUT` |
//! | `question` | a query, and the check of its answer |
//! | `given` | ids with paths from ACM, which may turn out to be wrong |
//! | `known` | the paths that programs have from ACM, and those that have failed |
//! | `silence` | backoff from a service that does not answer |
//! | `start` | starts the service on demand |
//! | `helpers` | threads that wait on behalf of non-blocking calls |
//! | `route` | the connection manager's commands that query ACM |
//!
//! ACM is not part of the host service. If it hangs, dies or gives an invalid answer, the path is resolved without it, after
//! [`Settings::timeout`] at the latest. No lock is held while a query waits: each has a connection of its own ([`Client`]).
//! ACM's shared-memory cache is read without a query.

mod environment;
mod given;
mod helpers;
mod known;
mod question;
mod route;
mod silence;
mod start;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdmux_acm_client::{self as client, Client, Error, Places, Reply, Shared};
use rdmux_cm::{IdHandle, PathData};

pub use self::environment::{Settings, Use};
use self::given::Given;
use self::helpers::Helpers;
use self::known::{Known, Supplied};
pub(crate) use self::question::Question;
use self::silence::Silence;
pub(crate) use self::start::Starter;
use crate::error::HostError;

/// Time that a service may take to start if no query waits for it.
const STARTING: Duration = Duration::from_secs(30);

/// A process's access to its host's ACM service.
#[derive(Debug)]
pub(crate) struct Acm {
    settings: Settings,
    places: Places,
    starter: Option<Arc<Starter>>,
    client: Client,
    silence: Mutex<Silence>,
    given: Given,
    known: Arc<Known>,
    helpers: Helpers,
    /// Whether a thread keeps the service running for listeners.
    serves: AtomicBool,
}

/// The only job of [`Acm::serve`] at a time. It ends when this is dropped, also by a panic.
struct Serving(Arc<Acm>);

impl Serving {
    /// Begins the job. Returns none if one is already running.
    fn begin(acm: &Arc<Acm>) -> Option<Self> {
        let is_first = !acm.serves.swap(true, Ordering::AcqRel);
        is_first.then(|| Self(Arc::clone(acm)))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.serves.store(false, Ordering::Release);
    }
}

impl Acm {
    /// Makes access to the service at these places, which is started if a starter is given. None if ACM must not be
    /// queried.
    pub(crate) fn new(
        settings: Settings,
        places: Places,
        starter: impl FnOnce() -> Starter,
    ) -> Option<Arc<Self>> {
        let starter = match settings.usage {
            Use::Never => return None,
            Use::IfThere => None,
            Use::Always => Some(Arc::new(starter())),
        };
        Some(Arc::new(Self {
            settings,
            client: Client::new([places.clone().into()]),
            known: Known::of(&places),
            places,
            starter,
            silence: Mutex::default(),
            given: Given::default(),
            helpers: Helpers::default(),
            serves: AtomicBool::new(false),
        }))
    }

    /// Returns the deadline of a query that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.settings.timeout
    }

    /// Returns whether a query may get an answer.
    fn may_answer(&self) -> bool {
        !self.settings.timeout.is_zero()
            && !self.is_silent()
            && (self.starter.is_some() || self.has_place())
    }

    fn is_silent(&self) -> bool {
        self.silence.lock().is_on(Instant::now())
    }

    fn has_place(&self) -> bool {
        match self.places.address() {
            client::Address::Unix(path) => path.exists(),
            client::Address::Tcp(_) => true,
        }
    }

    /// Returns the path from the service's shared-memory cache. Does not block.
    fn cached(&self, question: &Question) -> Option<PathData> {
        // Each request for the memory stays in the backlog of a service that hangs.
        if self.is_silent() {
            return None;
        }
        let paths = self.client.cached(question.from.as_ref(), &question.to)?;
        question.checked(paths.paths.first()?.path)
    }

    /// Returns whether the service has yet to pass its shared-memory cache to this process.
    fn is_cache_coming(&self) -> bool {
        !self.is_silent() && self.client.shared().is_some_and(Shared::is_coming)
    }

    /// Waits until the service has passed its shared-memory cache: for half of the time left, so that a query is still possible. If only
    /// the cache is used, waits as long as the service may take.
    fn wait_for_cache(&self, left: Duration) {
        let is_all = self.settings.timeout.is_zero();
        let time = if is_all { Shared::WAIT } else { left / 2 };
        let is_passed = self.client.shared().is_none_or(|shared| shared.wait(time));
        if is_all && !is_passed {
            self.silence.lock().unanswered(Instant::now());
        }
    }

    /// Returns a path from ACM for a program to use, unless it has failed. If it fails later, it is reported.
    pub(crate) fn supply(&self, question: &Question, path: PathData) -> Option<PathData> {
        let path = Some(path).filter(|path| self.is_usable(path))?;
        self.known.supply(Supplied { to: question.to, way: (&path.record).into() });
        Some(path)
    }

    /// Returns whether the path may be used: it has not failed within the last ten minutes, or the service has invalidated it since.
    fn is_usable(&self, path: &PathData) -> bool {
        !self.known.has_failed((&path.record).into(), Instant::now())
    }

    /// Makes a request that gives an id a path from ACM. The path is recorded first: the connection may fail, and the id may be destroyed,
    /// before this thread has the reply.
    fn with_given(
        &self,
        id: IdHandle,
        path: Supplied,
        request: impl FnOnce() -> Result<(), HostError>,
    ) -> Result<(), HostError> {
        let before = self.given.insert(id, path);
        let done = request();
        if done.is_err() {
            self.given.remove(id);
            before.and_then(|path| self.given.insert(id, path));
        }
        done
    }

    /// Returns the path that the service has cached, or finds by the deadline.
    pub(crate) fn find(&self, question: &Question, deadline: Instant) -> Option<PathData> {
        let begun = Instant::now();
        let mut cached = self.cached(question);
        if cached.is_none() && self.is_cache_coming() {
            self.wait_for_cache(deadline.saturating_duration_since(begun));
            cached = self.cached(question);
        }
        if cached.is_some() || deadline <= Instant::now() || !self.may_answer() {
            return cached;
        }
        let answer = self.ask(question, begun, deadline);
        answer
            .inspect_err(|error| tracing::debug!(to = %question.to, %error, "ACM knows no path"))
            .ok()?
    }

    fn ask(
        &self,
        question: &Question,
        begun: Instant,
        deadline: Instant,
    ) -> Result<Option<PathData>, Error> {
        let ask = || {
            self.client.ask(question.query(), deadline.saturating_duration_since(Instant::now()))
        };
        let answered = match (ask(), &self.starter) {
            (Err(Error::NoService(place)), Some(starter)) => {
                starter.start();
                starter.wait(deadline);
                // A service that takes longer answers the next query.
                if deadline <= Instant::now() { Err(Error::NoService(place)) } else { ask() }
            }
            (answered, _) => answered,
        };
        match &answered {
            Ok(_) | Err(Error::Status(..)) => self.silence.lock().answered(),
            // Not counted if earlier queries of the lookup used up most of the time.
            Err(Error::TimedOut(_)) if begun.elapsed() >= self.settings.timeout / 2 => {
                self.silence.lock().unanswered(Instant::now());
            }
            Err(_) => {}
        }
        Ok(match answered? {
            Reply::Paths(paths) => paths.paths.first().and_then(|best| question.checked(best.path)),
            _ => None,
        })
    }

    /// Keeps a service that is started on demand running as long as this process, so that other hosts find this one. Does not block.
    /// One thread does this for all listeners, since it may take long and the other threads are for routes.
    fn serve(self: &Arc<Self>) {
        let Some(starter) = self.starter.clone() else { return };
        let Some(serving) = Serving::begin(self) else { return };
        self.helpers.run(move || {
            let acm = &serving.0;
            // The connection is kept, because a service that was started on demand stays while it has one.
            let ask = || acm.client.statistics(acm.settings.timeout);
            let mut there = ask();
            if matches!(there, Err(Error::NoService(_))) {
                starter.start();
                starter.wait(Instant::now() + STARTING);
                there = ask();
            }
            tracing::debug!(is_there = there.is_ok(), "ACM serves a listener's host");
        });
    }

    /// Makes the service invalidate a path that does not lead to its destination, and that an id has had since `since`. Until it has, this
    /// process does not use the path. Does not block. The service has until the timeout, as for a query that begins now; afterwards the
    /// report is dropped, so that it delays no query that follows it.
    fn report(self: &Arc<Self>, path: Supplied, since: Instant) {
        let Supplied { to, way } = path;
        if !self.known.fail(way, since, Instant::now()) {
            return;
        }
        let (acm, deadline) = (Arc::clone(self), self.deadline());
        let reports = self.may_answer()
            && self.helpers.run(move || {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    tracing::debug!(%to, "a path from ACM has failed, and its service is too slow to learn it");
                    return;
                }
                // Only the owner may have entries invalidated, and those of files stay.
                let flushed = acm.client.flush(Some(to), left);
                if flushed.as_ref().is_ok_and(|entries| *entries > 0) {
                    acm.known.renew(way, Instant::now());
                }
                tracing::debug!(%to, ?flushed, "a path from ACM has failed");
            });
        if !reports {
            tracing::debug!(%to, "a path from ACM has failed, which its service does not learn");
        }
    }
}
