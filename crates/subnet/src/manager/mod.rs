//! The subnet manager: discovers the nodes of a subnet, assigns LIDs, writes tables, and keeps them up to date.
//!
//! ```text
//!   datagrams of QP0 ----> Manager ----> model ----> administration <---- requests on QP1
//!      answers               |           what the        answers from the model
//!      traps                 |           manager knows
//!      SMInfo                v
//!                          sweep
//!        discovery -> election -> lids -> configure -> routing -> tables -> links, active
//!        which nodes  who may  which    ports learn  by which   switches
//!        exist        manage   LIDs     their LIDs   ports      learn it
//! ```
//!
//! A manager is a program on a port. It reads and writes datagrams as programs do with the user MAD device ([`crate::umad`]),
//! by agents of the classes 0x01 and 0x81, but does timeouts and retransmission itself, which takes no memory in the device
//! for each request. Time and datagrams are arguments, and output goes to a [`ManagerSink`].
//!
//! A *heavy sweep* discovers everything by directed routes and configures whatever differs from the target. A *light sweep*
//! only queries the switches for changes. If there are any, or if a trap reports one, a heavy sweep follows. Nodes that a
//! sweep cannot reach, or that do not accept their settings, are reported ([`Status`]), and the rest of the subnet is
//! managed without them.

mod aliases;
mod babble;
mod config;
mod configure;
mod discovery;
mod doubt;
mod election;
mod encode;
mod graph;
mod lids;
pub mod model;
mod multicast;
mod pauses;
mod pkeys;
mod requests;
mod routing;
mod service_levels;
mod sink;
mod status;
mod sweep;
mod tables;
mod traps;
mod trees;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use rdmux_wire::mad::Method;
use rdmux_wire::sm::{Notice, SmInfo, SmState};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid, Pkey};

pub use config::{Config, NoSuchEngine, RoutingEngine};
pub use model::Model;
pub use pkeys::{DefaultPartition, PkeyTables};
pub use sink::{Event, ManagerSink};
pub use status::{Problem, ProblemKind, Report, Status};

use self::babble::Babble;
use self::doubt::Doubt;
use self::election::{Command, Rival};
use self::graph::Graph;
use self::pauses::Pauses;
use self::requests::{MAX_OUTSTANDING, Overdue, Request, Requests};
use self::routing::Routing;
use self::status::Tally;
use self::sweep::Phase;
use self::tables::Dirty;
use crate::Time;
use crate::rmpp::Mad;
use crate::topology::PortRef;
use crate::umad::UserAddress;

/// A subnet manager.
#[derive(Debug)]
pub struct Manager {
    config: Config,
    state: SmState,
    /// The GUID of the manager's port, once known.
    guid: Guid,
    /// The manager's port in the model.
    own: PortRef,
    /// SMInfo's ActCount. Incremented with each sweep and each poll.
    act_count: u32,
    model: Model,
    /// Settings not yet written to the switches, by node index.
    dirty: Vec<Option<Box<Dirty>>>,
    /// The model of a discovery in progress.
    found: Model,
    phase: Phase,
    /// Requests to be sent next.
    queue: VecDeque<Request>,
    requests: Requests,
    /// The next node that this phase makes requests for.
    cursor: usize,
    tally: Tally,
    /// Whether tables are at the switches to which they were sent.
    doubt: Doubt,
    /// Repeated traps of link errors.
    babble: Babble,
    /// Nodes whose traps request sweeps.
    pauses: Pauses,
    /// The switches and cables for which the tables in the model were computed.
    graph: Graph,
    /// The model is newer than the graph, so node indices may differ.
    graph_is_old: bool,
    job: Option<Box<Routing>>,
    /// The last LID of each port.
    lids: BTreeMap<Guid, Lid>,
    pkeys: Box<dyn PkeyTables + Send>,
    /// The tables that this phase sets.
    pkey_plans: BTreeMap<PortRef, Vec<Pkey>>,
    /// Blocks of alias GUIDs, by port GUID, that a discovery did not find.
    lost_aliases: BTreeSet<(Guid, u8)>,
    /// Members of each multicast LID: port GUIDs, and whether each receives. A send-only member does not.
    groups: BTreeMap<Lid, BTreeMap<Guid, bool>>,
    /// Groups whose members or routes have changed.
    changed_groups: BTreeMap<Lid, multicast::Changed>,
    trees: trees::Trees,
    /// Ports that the last discovery has found for the first time.
    appeared: BTreeSet<Guid>,
    /// Ports that must be asked to reregister with administration and have not acknowledged it.
    unasked: BTreeSet<Guid>,
    /// Ports that have acknowledged it since the last discovery. If cables on the route were moved, another port may have answered.
    asked: BTreeSet<Guid>,
    /// Other managers that the last discovery has found.
    rivals: Vec<Rival>,
    /// The master that a standby polls, and the number of its unanswered polls.
    master: Option<Rival>,
    misses: u32,
    /// The manager that has refused the last handover.
    refused_by: Option<Guid>,
    /// A command of another manager, to be executed after the answer.
    command: Option<Command>,
    /// No setting in the subnet is known to come from this manager.
    fresh: bool,
    /// Something has changed since the last discovery began.
    stale: bool,
    /// This sweep has found changes of nodes, cables or LIDs.
    changed: bool,
    /// The times at which the next heavy and the next light sweep are due.
    heavy_due: Option<Time>,
    light_due: Option<Time>,
    /// Pause after a heavy sweep, as long as the sweep took, so that a flapping link does not occupy the manager completely.
    rest_until: Time,
    poll_due: Option<Time>,
    /// The number of consecutive sweeps with errors.
    failures: u32,
    sweeps: u64,
    last: Option<Report>,
}

impl Manager {
    /// Creates a manager that begins discovery at `now`.
    pub fn new(config: Config, now: Time) -> Self {
        Self {
            state: SmState::DISCOVERING,
            guid: config.guid,
            own: PortRef { node: 0, port: 0 },
            act_count: 0,
            model: Model::default(),
            dirty: Vec::new(),
            found: Model::default(),
            phase: Phase::Idle,
            queue: VecDeque::new(),
            requests: Requests::default(),
            cursor: 0,
            tally: Tally::default(),
            doubt: Doubt::default(),
            babble: Babble::default(),
            pauses: Pauses::default(),
            graph: Graph::default(),
            graph_is_old: false,
            job: None,
            lids: config.lids.clone(),
            pkeys: Box::new(DefaultPartition),
            pkey_plans: BTreeMap::new(),
            lost_aliases: BTreeSet::new(),
            groups: BTreeMap::new(),
            changed_groups: BTreeMap::new(),
            trees: trees::Trees::default(),
            appeared: BTreeSet::new(),
            unasked: BTreeSet::new(),
            asked: BTreeSet::new(),
            rivals: Vec::new(),
            master: None,
            misses: 0,
            refused_by: None,
            command: None,
            fresh: true,
            stale: false,
            changed: false,
            heavy_due: Some(now),
            light_due: None,
            rest_until: Time::ZERO,
            poll_due: None,
            failures: 0,
            sweeps: 0,
            last: None,
            config,
        }
    }

    /// Returns the manager's model of the subnet.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Returns the model for administration, which changes the aliases.
    pub fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// Returns the options.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the present or last LID of each port, in the form of [`Config::lids`]. A standby returns none.
    pub fn lids(&self) -> &BTreeMap<Guid, Lid> {
        &self.lids
    }

    /// Returns the manager's own port in the model.
    pub fn port(&self) -> PortRef {
        self.own
    }

    /// Returns whether the manager is the master and has configured the subnet at least once.
    pub fn is_up(&self) -> bool {
        self.state == SmState::MASTER && !self.fresh
    }

    /// Returns the state of the manager and the report of the last sweep.
    pub fn status(&self) -> Status {
        let master = match self.state {
            SmState::MASTER => Some(self.guid),
            _ => self.master.as_ref().map(|master| master.info.guid),
        };
        Status {
            state: self.state,
            guid: self.guid,
            priority: self.config.priority,
            master,
            sweeping: !matches!(self.phase, Phase::Idle | Phase::Light),
            sweeps: self.sweeps,
            last: self.last.clone(),
        }
    }

    /// Requests a sweep, which starts when the present activity has ended.
    pub fn sweep(&mut self, now: Time) {
        if matches!(self.state, SmState::MASTER | SmState::DISCOVERING) {
            self.request_sweep(now);
        }
    }

    /// Changes the priority, 0 to 15. It takes effect with the next sweep, of this manager or of the master.
    pub fn set_priority(&mut self, now: Time, priority: u8) {
        self.config.priority = priority.min(15);
        self.sweep(now);
    }

    /// Changes the partitions. A sweep writes the new tables.
    pub fn set_pkey_tables(&mut self, now: Time, tables: Box<dyn PkeyTables + Send>) {
        self.pkeys = tables;
        self.sweep(now);
    }

    /// Stops the manager. A master first hands over to another manager, if there is one.
    pub fn leave(&mut self, now: Time, out: &mut impl ManagerSink) {
        self.abandon();
        (self.heavy_due, self.light_due, self.poll_due) = (None, None, None);
        let heir = (self.state == SmState::MASTER).then(|| self.heir(None)).flatten();
        match heir {
            Some(heir) => self.begin_handover(now, heir, true, out),
            None => self.become_state(SmState::NOT_ACTIVE, out),
        }
    }

    /// Returns when [`Manager::handle_timeout`] has work to do, possibly at once.
    pub fn next_timeout(&self) -> Option<Time> {
        if self.job.is_some() || self.has_group_work() {
            return Some(Time::ZERO);
        }
        // A sweep that must wait for the present activity is not due before that ends.
        let heavy = self.heavy_due.filter(|_| self.may_begin());
        let light = self.light_due.filter(|_| self.phase == Phase::Idle);
        let due = [self.requests.next_timeout(), heavy, light, self.poll_due];
        due.into_iter().flatten().min()
    }

    /// Handles expired timers: retransmits, begins a sweep, and computes routes in slices.
    pub fn handle_timeout(&mut self, now: Time, out: &mut impl ManagerSink) {
        let again = now.after(self.config.timeout);
        while let Some(overdue) = self.requests.overdue(now, again) {
            match overdue {
                Overdue::Again(pending) => self.transmit_again(&pending, out),
                Overdue::Failed(request) => self.handle_failure(now, request, None, out),
            }
        }
        if self.heavy_due.is_some_and(|due| due <= now) && self.may_begin() {
            self.begin_heavy(now, out);
        } else if self.light_due.is_some_and(|due| due <= now) && self.phase == Phase::Idle {
            self.begin_light(now);
        }
        if self.poll_due.is_some_and(|due| due <= now) {
            self.poll_master(now, out);
        }
        self.compute();
        self.update_groups(now);
        self.proceed(now, out);
    }

    /// Handles a datagram for QP0 of the manager's port: an answer, a trap, or a message of another manager.
    pub fn handle_mad(
        &mut self,
        now: Time,
        from: &UserAddress,
        mad: &Mad,
        out: &mut impl ManagerSink,
    ) {
        let Ok(smp) = Smp::parse(mad) else { return };
        match smp.header.method {
            Method::GET_RESP => {
                let tid = requests::low(smp.header.tid);
                let (attr_id, modifier) = (smp.header.attr_id, smp.header.attr_mod);
                let Some(request) = self.requests.take(tid, attr_id, modifier) else { return };
                self.handle_answer(now, request, &smp, out);
            }
            Method::GET | Method::SET if smp.header.attr_id == SmInfo::ATTR_ID => {
                self.answer_sm_info(from, &smp, out);
                self.obey(now, from, out);
            }
            Method::TRAP if smp.header.attr_id == Notice::ATTR_ID => {
                self.handle_trap(now, from, &smp, out);
            }
            _ => return,
        }
        self.proceed(now, out);
    }

    /// Sends a new request.
    fn transmit(&mut self, now: Time, request: Request, out: &mut impl ManagerSink) {
        let Some(mut smp) = self.smp(request) else { return };
        let key = (smp.header.attr_id, smp.header.attr_mod);
        let due = now.after(self.config.timeout);
        let tid = self.requests.add(request, key, due, self.config.retries);
        smp.header.tid = tid.into();
        self.tally.sets += u64::from(request.what.is_set());
        self.doubt.note_sent(request.what);
        out.send(UserAddress::directed(), Box::new(smp.to_bytes()));
    }

    fn transmit_again(&mut self, pending: &requests::Pending, out: &mut impl ManagerSink) {
        // If the model has changed so that the request now has another attribute, do not retransmit: an answer to the first
        // transmission suffices.
        let Some(mut smp) = self.smp(pending.request) else { return };
        if (smp.header.attr_id, smp.header.attr_mod) == (pending.attr_id, pending.modifier) {
            smp.header.tid = pending.tid.into();
            self.tally.sets += u64::from(pending.request.what.is_set());
            out.send(UserAddress::directed(), Box::new(smp.to_bytes()));
        }
    }

    /// Sends requests up to the limit in flight, and enters the next phase when all are answered.
    fn proceed(&mut self, now: Time, out: &mut impl ManagerSink) {
        let window = self.config.outstanding.clamp(1, MAX_OUTSTANDING);
        loop {
            while self.requests.len() < window {
                let Some(request) = self.queue.pop_front() else {
                    if self.refill() {
                        continue;
                    }
                    break;
                };
                self.transmit(now, request, out);
            }
            if !self.requests.is_empty() || !self.queue.is_empty() || !self.next_phase(now, out) {
                return;
            }
        }
    }

    /// Abandons the present activity.
    fn abandon(&mut self) {
        self.requests.clear();
        self.queue.clear();
        self.found.clear();
        self.job = None;
        self.phase = Phase::Idle;
    }

    fn become_state(&mut self, state: SmState, out: &mut impl ManagerSink) {
        if self.state != state {
            self.state = state;
            out.event(Event::State(state));
        }
    }

    /// Requests a heavy sweep: now, or again after the present one.
    fn request_sweep(&mut self, now: Time) {
        self.failures = 0;
        if matches!(self.phase, Phase::Idle | Phase::Light) {
            let soon = now.max(self.rest_until);
            self.heavy_due = Some(self.heavy_due.map_or(soon, |due| due.min(soon)));
        } else {
            self.stale = true;
        }
    }
}
