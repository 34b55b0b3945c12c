//! A process asks ACM, the service of its host that knows paths (`ib_acm`), before the connection manager looks for a path
//! without it.
//!
//! | file | is |
//! |---|---|
//! | `environment` | `RDMA_CM_USE_IB_ACM` and `RDMUX_ACM_TIMEOUT` |
//! | `question` | what is asked, and whether the answer is one |
//! | `given` | paths that were told, and turn out to be wrong |
//! | `silence` | a service that does not answer is left alone |
//! | `start` | the service is started on demand |
//! | `helpers` | threads that wait on behalf of calls that do not |
//! | `route` | the commands of the connection manager that ask |
//!
//! The service is no part of the host's: if it hangs, dies, or says what cannot be, the path is looked for as without it, after
//! [`Settings::timeout`] at the latest. No lock is held meanwhile: each question that waits has a connection of its own
//! ([`Client`]). What the service has in shared memory needs no question.

mod environment;
mod given;
mod helpers;
mod question;
mod route;
mod silence;
mod start;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdmux_acm_client::{self as client, Client, Error, Places, Reply};
use rdmux_cm::PathData;
use rdmux_wire::acm::Address;

pub use self::environment::{Settings, Use};
use self::given::Given;
use self::helpers::Helpers;
pub(crate) use self::question::Question;
use self::silence::Silence;
pub(crate) use self::start::Starter;

/// How long a service may take to start where nobody waits for it.
const STARTING: Duration = Duration::from_secs(30);

/// How a process asks its host's service.
#[derive(Debug)]
pub(crate) struct Acm {
    settings: Settings,
    places: Places,
    starter: Option<Arc<Starter>>,
    client: Client,
    silence: Mutex<Silence>,
    given: Given,
    helpers: Helpers,
}

impl Acm {
    /// One that asks the service of these places, and starts one if there is a starter; none if ACM is not to be asked.
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
            places,
            starter,
            silence: Mutex::default(),
            given: Given::default(),
            helpers: Helpers::default(),
        }))
    }

    /// Until when a question that begins now may take.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.settings.timeout
    }

    /// Whether it makes sense to ask.
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

    /// The path that the service has in shared memory.
    fn cached(&self, question: &Question) -> Option<PathData> {
        // To get at the memory of one that hangs takes a while, too.
        if self.is_silent() {
            return None;
        }
        let paths = self.client.cached(question.from.as_ref(), &question.to)?;
        question.checked(paths.paths.first()?.path)
    }

    /// The path that the service knows, or finds by the deadline.
    pub(crate) fn find(&self, question: &Question, deadline: Instant) -> Option<PathData> {
        let cached = self.cached(question);
        if cached.is_some() || deadline <= Instant::now() || !self.may_answer() {
            return cached;
        }
        let answer = self.ask(question, deadline);
        answer
            .inspect_err(|error| tracing::debug!(to = %question.to, %error, "ACM knows no path"))
            .ok()?
    }

    fn ask(&self, question: &Question, deadline: Instant) -> Result<Option<PathData>, Error> {
        let begun = Instant::now();
        let ask = || {
            self.client.ask(question.query(), deadline.saturating_duration_since(Instant::now()))
        };
        let answered = match (ask(), &self.starter) {
            (Err(Error::NoService(place)), Some(starter)) => {
                starter.start();
                starter.wait(deadline);
                // One that takes longer answers the next question.
                if deadline <= Instant::now() { Err(Error::NoService(place)) } else { ask() }
            }
            (answered, _) => answered,
        };
        match &answered {
            Ok(_) | Err(Error::Status(..)) => self.silence.lock().answered(),
            // Of what waited for others there was too little time.
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

    /// Where the service is started on demand: has it run as long as this process does, so that others find the host. Does not wait.
    fn serve(self: &Arc<Self>) {
        let Some(starter) = self.starter.clone() else { return };
        let acm = Arc::clone(self);
        self.helpers.run(move || {
            // The connection is kept, and a service that was started on demand stays while there is one.
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

    /// Has the service forget the path to this address, which does not lead there. Does not wait.
    fn report(self: &Arc<Self>, to: Address) {
        let acm = Arc::clone(self);
        let reports = self.may_answer()
            && self.helpers.run(move || {
                let flushed = acm.client.flush(Some(to), acm.settings.timeout);
                tracing::debug!(%to, ?flushed, "a path that ACM told has failed");
            });
        if !reports {
            tracing::debug!(%to, "a path that ACM told has failed, and ACM is not there to be told");
        }
    }
}
