//! Queries to subnet administration, from QP1 of the adapter's ports. For each port the service has its own agent of the class, on a
//! management interface of the fabric like those of programs (`ib_sa` does this in the kernel).
//!
//! The interface is opened, without waiting, once the port is attached, and again later if that failed or the interface is lost. The
//! fabric's user MAD device repeats a query and reports timeouts. A query is given up here if the fabric reports neither.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;

use rdmux_cm::{IdHandle, PathQuery, Time};
use rdmux_fabric::client::{MadFile, OpeningFile, Partial, Progress};
use rdmux_fabric::proto::PortRef;
use rdmux_fabric::{FabricDir, FabricError};
use rdmux_runtime::Share;
use rdmux_subnet::umad::{Registration, UserAddress, UserMad};
use rdmux_verbs::port::PortState;
use rdmux_verbs::throttled;
use rdmux_wire::Lid;
use rdmux_wire::mad::{MAD_LEN, MadHeader, Method, MgmtClass, status};
use rdmux_wire::rmpp::Rmpp;
use rdmux_wire::sa::{CLASS_VERSION, McMemberRecord, PathRecord, SaMad};

use super::adapter::{FIRST_RETRY, LAST_RETRY};
use super::adapters::PortAt;
use crate::service::core::Core;
use crate::service::counters::Count;
use crate::service::poller::{Interest, Token};

/// The number of times that a query is sent, which divides its time into as many parts, as in Linux.
const TRIES: u32 = 10;
/// The shortest and the longest time for one try.
const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(10);
/// Time after its deadline at which a query is given up if the fabric reports nothing.
const GRACE: Duration = Duration::from_secs(1);
/// Time to wait before a query is repeated after a manager was busy.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of outstanding queries.
pub(in crate::service) const MAX_QUERIES: usize = 65_536;
/// Answers that are read before other sources get their turn.
const MAX_ROW: usize = 64;

/// The subject of a query, which determines the receiver of the answer.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    /// A path for an id.
    Path(IdHandle, Box<PathQuery>),
    /// A query of the port's memberships, by its number.
    Group(u64),
    /// Services for an id.
    Services(IdHandle),
}

/// A port's queries to subnet administration.
#[derive(Debug, Default)]
pub(in crate::service) struct SaClient {
    state: State,
    /// An answer that has arrived in part.
    partial: Partial,
    /// The outstanding queries, by the lower half of their transaction IDs.
    open: BTreeMap<u32, Open>,
    /// Those that can be sent at once.
    unsent: BTreeSet<u32>,
    /// All of them, in the order in which their times come.
    due: BTreeSet<(Time, u32)>,
    /// Those for paths, by the id and its attempt.
    paths: BTreeSet<(IdHandle, u32, u32)>,
    last_tid: u32,
    /// Time at which the interface is opened again, and the number of attempts that have failed in a row.
    retry: Option<Time>,
    failures: u32,
}

/// The state of the management interface.
#[derive(Debug, Default)]
enum State {
    #[default]
    Closed,
    Opening(OpeningFile),
    Ready {
        file: MadFile,
        agent: u32,
    },
}

#[derive(Debug)]
struct Open {
    subject: Subject,
    mad: Box<[u8; MAD_LEN]>,
    /// The time for one try.
    slot: Duration,
    until: Time,
    /// Time at which the query is sent again, after a manager was busy.
    again: Option<Time>,
    sent: bool,
    /// The share of the user that it is for, if it is for an id.
    _share: Option<Share>,
}

impl Open {
    /// Returns when it is sent again or given up.
    fn due(&self) -> Time {
        self.again.unwrap_or(self.until.after(GRACE))
    }
}

impl SaClient {
    /// Returns when the next action is due.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.due.first().map(|&(at, _)| at).into_iter().chain(self.retry).min()
    }

    fn insert(&mut self, number: u32, open: Open) {
        self.due.insert((open.due(), number));
        if !open.sent && open.again.is_none() {
            self.unsent.insert(number);
        }
        if let Subject::Path(id, query) = &open.subject {
            self.paths.insert((*id, query.attempt, number));
        }
        self.open.insert(number, open);
    }

    fn remove(&mut self, number: u32) -> Option<Open> {
        let open = self.open.remove(&number)?;
        self.due.remove(&(open.due(), number));
        self.unsent.remove(&number);
        if let Subject::Path(id, query) = &open.subject {
            self.paths.remove(&(*id, query.attempt, number));
        }
        Some(open)
    }

    /// Sets whether a query was sent, and when it is sent again.
    fn set(&mut self, number: u32, sent: bool, again: Option<Time>) {
        if let Some(open) = self.remove(number) {
            self.insert(number, Open { sent, again, ..open });
        }
    }

    /// Removes all queries, and returns their subjects.
    fn end(&mut self) -> Vec<Subject> {
        self.unsent.clear();
        self.due.clear();
        self.paths.clear();
        std::mem::take(&mut self.open).into_values().map(|open| open.subject).collect()
    }

    /// Returns the queries whose time has come.
    fn over(&self, now: Time) -> Vec<u32> {
        self.due.iter().take_while(|(at, _)| *at <= now).map(|&(_, number)| number).collect()
    }

    /// Schedules another attempt to open the interface.
    fn open_later(&mut self, now: Time) {
        let pause = FIRST_RETRY * (1 << self.failures.min(8));
        self.retry = Some(now.after(pause.min(LAST_RETRY)));
        self.failures = self.failures.saturating_add(1);
    }

    /// Cancels the query for a path.
    pub(super) fn cancel_path(&mut self, id: IdHandle, attempt: u32) {
        let cancelled = self.paths.range((id, attempt, 0)..=(id, attempt, u32::MAX));
        for number in cancelled.map(|&(.., number)| number).collect::<Vec<_>>() {
            self.remove(number);
        }
    }

    /// Sends the queries that were not sent, if a manager runs.
    fn send(&mut self, now: Time, sm: Option<(Lid, u8)>) -> Result<(), FabricError> {
        let is_ready = matches!(self.state, State::Ready { .. }) && sm.is_some();
        for number in self.over(now) {
            if self.open.get(&number).is_some_and(|open| open.again.is_some()) {
                // The presence of a manager is checked again only after a pause.
                let again = (!is_ready).then(|| now.after(BUSY_PAUSE));
                self.set(number, false, again);
            }
        }
        while let Some(&number) = self.unsent.first() {
            let (State::Ready { file, agent }, Some(sm)) = (&self.state, sm) else { break };
            let Some(open) = self.open.get(&number) else { break };
            let left = open.until.since(now).as_nanos() / open.slot.as_nanos().max(1);
            let mad = UserMad {
                agent: *agent,
                status: 0,
                timeout_ms: u32::try_from(open.slot.as_millis()).unwrap_or(u32::MAX),
                retries: u32::try_from(left).unwrap_or(0).saturating_sub(1).min(TRIES - 1),
                address: UserAddress { sl: sm.1, ..UserAddress::gsi(sm.0) },
                data: open.mad.to_vec(),
            };
            match file.send_mad(&mad) {
                Ok(()) => self.set(number, true, None),
                // The fabric has not yet read what was sent: this query and those behind it are sent later.
                Err(FabricError::Unresponsive { .. }) => {
                    self.set(number, false, Some(now.after(BUSY_PAUSE)));
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Core {
    /// Opens the port's management interface, once the port is attached.
    pub(super) fn open_sa(&mut self, at: PortAt) {
        let Some(port) = self.adapter[at].held_port() else { return };
        let user = self.options.dir.user_dir();
        let dir = FabricDir::existing(user, self.adapter[at].fabric()).map_err(FabricError::from);
        let begun = dir.map(|dir| dir.map(|dir| begin(&dir, &port)));
        match begun.and_then(|begun| begun.transpose().map(Option::flatten)) {
            Ok(Some(opening)) => self.await_sa(at, opening),
            // The fabric is busy with others.
            Ok(None) => self.open_sa_later(at),
            Err(e) => self.sa_has_failed(at, &e),
        }
    }

    fn await_sa(&mut self, at: PortAt, opening: OpeningFile) {
        match self.poller.add(&opening, Token::Sa(at.number()), Interest::Read) {
            Ok(()) => self.adapter[at].sa.state = State::Opening(opening),
            Err(e) => self.sa_has_failed(at, &e),
        }
    }

    fn sa_has_failed(&mut self, at: PortAt, why: &dyn Display) {
        throttled!(warn, "cannot reach subnet administration; trying again later: {why}");
        self.open_sa_later(at);
    }

    fn open_sa_later(&mut self, at: PortAt) {
        let now = self.now();
        self.adapter[at].sa.open_later(now);
    }

    /// Closes the interface, because the fabric is gone or its port is another one. Outstanding queries get no answer.
    pub(super) fn close_sa(&mut self, at: PortAt) {
        self.adapter[at].sa.partial = Partial::default();
        (self.adapter[at].sa.retry, self.adapter[at].sa.failures) = (None, 0);
        self.end_sa(at);
    }

    fn end_sa(&mut self, at: PortAt) {
        match std::mem::take(&mut self.adapter[at].sa.state) {
            State::Closed => {}
            State::Opening(opening) => self.poller.remove(&opening),
            State::Ready { file, .. } => self.poller.remove(&file),
        }
        for subject in self.adapter[at].sa.end() {
            self.answered(at, subject, Err(libc::ENETDOWN));
        }
    }

    /// Handles the fabric's reply about the interface, or an answer.
    pub(in crate::service) fn sa_event(&mut self, at: PortAt) {
        match std::mem::take(&mut self.adapter[at].sa.state) {
            State::Closed => {}
            State::Opening(opening) => {
                self.poller.remove(&opening);
                match opening.poll() {
                    Ok(Progress::Pending(opening)) => self.await_sa(at, opening),
                    Ok(Progress::Done((file, agent))) => self.sa_is_open(at, file, agent),
                    Err(e) => self.sa_has_failed(at, &e),
                }
            }
            State::Ready { file, agent } => {
                self.adapter[at].sa.state = State::Ready { file, agent };
                self.read_sa(at);
            }
        }
        self.drain_outbox();
    }

    fn sa_is_open(&mut self, at: PortAt, file: MadFile, agent: u32) {
        if let Err(e) = self.poller.add(&file, Token::Sa(at.number()), Interest::Read) {
            return self.sa_has_failed(at, &e);
        }
        self.adapter[at].sa.state = State::Ready { file, agent };
        self.send_questions(at);
        self.follow_interface(at);
    }

    /// Returns whether queries would reach a manager.
    pub(super) fn has_sa(&self, at: PortAt) -> bool {
        matches!(self.adapter[at].sa.state, State::Ready { .. })
            && self.manager_of_port(at).is_some()
    }

    /// Returns the LID of the subnet manager and the service level to it, while the port is active.
    fn manager_of_port(&self, at: PortAt) -> Option<(Lid, u8)> {
        let attr = self.adapter[at].attr()?;
        let is_managed = attr.state == PortState::Active && attr.sm_lid.0 != 0;
        is_managed.then_some((attr.sm_lid, attr.sm_sl))
    }

    /// Sends a query that may take at most this time, for a user's id if there is a user. The answer may arrive at once. Departures from
    /// groups are sent beyond the user's share, too.
    pub(super) fn ask_sa(
        &mut self,
        at: PortAt,
        subject: Subject,
        mad: &SaMad<'_>,
        (timeout, user): (Duration, Option<u32>),
    ) {
        let mut share = user.map(|user| self.shares.queries.none(user));
        let is_free = match &mut share {
            Some(share) if mad.header.method == Method::DELETE => {
                share.set(1);
                true
            }
            Some(share) => share.take(1).is_ok(),
            None => true,
        };
        if !is_free || self.adapter[at].sa.open.len() >= MAX_QUERIES {
            return self.answered(at, subject, Err(libc::ENOBUFS));
        }
        if self.manager_of_port(at).is_none() || matches!(self.adapter[at].sa.state, State::Closed)
        {
            return self.answered(at, subject, Err(libc::ENETDOWN));
        }
        let now = self.now();
        let sa = &mut self.adapter[at].sa;
        sa.last_tid = sa.last_tid.wrapping_add(1).max(1);
        let tid = sa.last_tid;
        let header = MadHeader { tid: tid.into(), ..mad.header };
        let mad = Box::new(SaMad { header, ..*mad }.to_bytes());
        let slot = (timeout / TRIES).clamp(SHORTEST, LONGEST);
        let until = now.after(timeout);
        let (again, sent) = (None, false);
        sa.insert(tid, Open { subject, mad, slot, until, again, sent, _share: share });
        self.send_questions(at);
    }

    fn send_questions(&mut self, at: PortAt) {
        let sm = self.manager_of_port(at);
        let now = self.now();
        if let Err(e) = self.adapter[at].sa.send(now, sm) {
            // The interface's socket, and the attachment's, report the same.
            tracing::debug!("cannot send to subnet administration: {e}");
        }
    }

    fn read_sa(&mut self, at: PortAt) {
        for _ in 0..MAX_ROW {
            let SaClient { state: State::Ready { file, .. }, partial, .. } =
                &mut self.adapter[at].sa
            else {
                return;
            };
            match file.try_recv_part(partial) {
                Ok(Some(mad)) => self.process_sa(at, &mad),
                Ok(None) => return,
                Err(e) => {
                    self.adapter[at].sa.partial = Partial::default();
                    self.end_sa(at);
                    return self.sa_has_failed(at, &e);
                }
            }
        }
    }

    fn process_sa(&mut self, at: PortAt, mad: &UserMad) {
        let Ok(header) = MadHeader::parse(&mad.data) else {
            return self.counts.add(Count::DropMadVersion);
        };
        let Some(mut open) = self.adapter[at].sa.remove(number_of(header.tid)) else {
            return self.counts.add(Count::DropMadStale);
        };
        if mad.status != 0 {
            self.counts.add(Count::SaTimeouts);
            return self.answered(at, open.subject, Err(libc::ETIMEDOUT));
        }
        self.counts.add(Count::SaAnswers);
        self.adapter[at].sa.failures = 0;
        if header.status == status::BUSY && self.now() < open.until {
            (open.sent, open.again) = (false, Some(self.now().after(BUSY_PAUSE)));
            self.adapter[at].sa.insert(number_of(header.tid), open);
            return;
        }
        let answer = if header.status == 0 {
            SaMad::parse(&mad.data).map_err(|_| libc::EPROTO)
        } else {
            tracing::debug!(
                "subnet administration refused a request with status {:#06x}",
                header.status
            );
            // Linux returns this errno for every error of subnet administration.
            Err(libc::EINVAL)
        };
        self.answered(at, open.subject, answer);
    }

    fn answered(&mut self, at: PortAt, subject: Subject, answer: Result<SaMad<'_>, i32>) {
        match subject {
            Subject::Path(id, query) => {
                let record =
                    answer.and_then(|mad| mad.record::<PathRecord>().map_err(|_| libc::EPROTO));
                self.path_answered(at, id, &query, record);
            }
            Subject::Group(question) => {
                let record =
                    answer.and_then(|mad| mad.record::<McMemberRecord>().map_err(|_| libc::EPROTO));
                self.group_answered(at, question, record);
            }
            Subject::Services(id) => self.services_answered(id, answer),
        }
    }

    /// Gives up queries on which the fabric does not report, repeats those that found a manager busy, and retries to
    /// open interfaces.
    pub(super) fn poll_sa(&mut self, at: PortAt) {
        let now = self.now();
        if self.adapter[at].sa.retry.take_if(|due| *due <= now).is_some() {
            self.open_sa(at);
        }
        let sa = &mut self.adapter[at].sa;
        let is_over = |open: &Open| open.until.after(GRACE) <= now;
        let mut over = sa.over(now);
        over.retain(|number| sa.open.get(number).is_some_and(is_over));
        for number in over {
            if let Some(open) = self.adapter[at].sa.remove(number) {
                self.counts.add(Count::SaTimeouts);
                self.answered(at, open.subject, Err(libc::ETIMEDOUT));
            }
        }
        self.send_questions(at);
    }
}

/// Returns the number of a query: the upper half of its transaction ID is the agent's.
fn number_of(tid: u64) -> u32 {
    let [.., a, b, c, d] = tid.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// Starts to open the agent. It has no methods, so it receives only responses.
fn begin(dir: &FabricDir, port: &PortRef) -> Result<Option<OpeningFile>, FabricError> {
    let class = MgmtClass::SUBN_ADM.0;
    // A response with several records arrives in several datagrams.
    let rmpp_version = Rmpp::VERSION;
    let class_version = CLASS_VERSION;
    let registration =
        Registration { qpn: 1, class, class_version, rmpp_version, ..Registration::default() };
    MadFile::begin(dir, port, registration)
}

/// Makes a query for one record.
pub(super) fn question<'a>(method: Method, attr_id: u16, record: &'a [u8], mask: u64) -> SaMad<'a> {
    let mut mad = SaMad::new(method, attr_id, record);
    mad.sa.component_mask = mask;
    mad
}
