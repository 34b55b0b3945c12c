//! The subnet manager: finds the nodes of a subnet, gives them LIDs and tables, and keeps them so.
//!
//! ```text
//!   datagrams of QP0 ----> Manager ----> model ----> administration <---- requests on QP1
//!      answers               |           what the        answers from the model
//!      traps                 |           manager knows
//!      SMInfo                v
//!                          sweep
//!        discovery -> election -> lids -> configure -> routing -> tables -> links, active
//!        who is there  who may   who is   ports know   by which   switches
//!                      manage    called   their LIDs   ports      know it
//! ```
//!
//! A manager is a program on a port. It reads and writes datagrams as programs do with the user MAD device ([`crate::umad`]), by
//! agents of the classes 0x01 and 0x81, but waits for answers and sends again by itself: that takes no memory for each request.
//! Time and datagrams are arguments, and what it wants to send goes to a [`ManagerSink`].
//!
//! A *heavy sweep* finds everything by directed routes and configures what is not as it should be. A *light sweep* asks only the switches
//! whether something has changed; if so, or when a trap says so, a heavy one follows. What a sweep does not reach, or what does not do as
//! it is told, is reported ([`Status`]), and the rest of the subnet is managed without it.

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
use rdmux_wire::{Guid, Lid};

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
    /// The GUID of its port, once it is known.
    guid: Guid,
    /// Its port in the model.
    own: PortRef,
    /// Grows with each sweep and each poll that is answered.
    act_count: u32,
    model: Model,
    /// What is not yet at the switches, by the index of the node.
    dirty: Vec<Option<Box<Dirty>>>,
    /// What a discovery has found so far.
    found: Model,
    phase: Phase,
    /// What is to be asked next.
    queue: VecDeque<Request>,
    requests: Requests,
    /// Which node the requests of this phase have come to.
    cursor: usize,
    tally: Tally,
    /// Whether tables are at the switches to which they were sent.
    doubt: Doubt,
    /// Traps of link errors that come again and again.
    babble: Babble,
    /// Nodes whose traps ask for sweeps.
    pauses: Pauses,
    /// The switches and cables for which the tables in the model were computed.
    graph: Graph,
    /// The model is newer than the graph: its nodes may have other indices.
    graph_is_old: bool,
    job: Option<Box<Routing>>,
    /// Who had which LID last.
    lids: BTreeMap<Guid, Lid>,
    pkeys: Box<dyn PkeyTables + Send>,
    /// Blocks of alias GUIDs, by the GUID of the port, that a discovery did not find.
    lost_aliases: BTreeSet<(Guid, u8)>,
    /// By multicast LID: the GUIDs of the ports that are members, and whether each receives. One that does not only sends.
    groups: BTreeMap<Lid, BTreeMap<Guid, bool>>,
    /// Those that have members or routes other than before.
    changed_groups: BTreeMap<Lid, multicast::Changed>,
    trees: trees::Trees,
    /// Ports that the last discovery has found for the first time.
    appeared: BTreeSet<Guid>,
    /// Ports that are to be asked to register everything again with administration, and have not answered that they were.
    unasked: BTreeSet<Guid>,
    /// Those that have answered so since the last discovery: cables may have been moved on the way to them.
    asked: BTreeSet<Guid>,
    /// Other managers that the last discovery has found.
    rivals: Vec<Rival>,
    /// The manager that a standby waits for, and how often it did not answer.
    master: Option<Rival>,
    misses: u32,
    /// What another manager has told this one to do, after the answer.
    command: Option<Command>,
    /// Nothing of what the subnet has is known to come from this manager.
    fresh: bool,
    /// Something has changed since the last discovery began.
    stale: bool,
    /// This sweep has found that nodes, cables or LIDs are others.
    changed: bool,
    /// When the next sweep is due: heavy, light.
    heavy_due: Option<Time>,
    light_due: Option<Time>,
    /// After a heavy sweep as much time passes as it took: a link that flaps does not keep the manager from everything else.
    rest_until: Time,
    poll_due: Option<Time>,
    /// Sweeps with errors, one after the other.
    failures: u32,
    sweeps: u64,
    last: Option<Report>,
}

impl Manager {
    /// A manager that begins to look around at `now`.
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

    /// What the manager knows of the subnet.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The same, for administration: aliases are its to change.
    pub fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// The options.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Who has which LID or had it last: what [`Config::lids`] takes. A manager that stands by knows none.
    pub fn lids(&self) -> &BTreeMap<Guid, Lid> {
        &self.lids
    }

    /// The manager's own port in the model.
    pub fn port(&self) -> PortRef {
        self.own
    }

    /// Whether it is the master, and has configured the subnet at least once.
    pub fn is_up(&self) -> bool {
        self.state == SmState::MASTER && !self.fresh
    }

    /// The state of the manager, and how the last sweep went.
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

    /// Sweeps the subnet as soon as what it does now has ended.
    pub fn sweep(&mut self, now: Time) {
        if matches!(self.state, SmState::MASTER | SmState::DISCOVERING) {
            self.request_sweep(now);
        }
    }

    /// Changes the priority, 0 to 15. The next sweep, of this manager or of the master, acts on it.
    pub fn set_priority(&mut self, now: Time, priority: u8) {
        self.config.priority = priority.min(15);
        self.sweep(now);
    }

    /// Who may be in which partition from now on; the tables are set by a sweep.
    pub fn set_pkey_tables(&mut self, now: Time, tables: Box<dyn PkeyTables + Send>) {
        self.pkeys = tables;
        self.sweep(now);
    }

    /// Stops, as the master after another manager has been told to go on, if there is one.
    pub fn leave(&mut self, now: Time, out: &mut impl ManagerSink) {
        self.abandon();
        (self.heavy_due, self.light_due, self.poll_due) = (None, None, None);
        let heir = (self.state == SmState::MASTER).then(|| self.heir(None)).flatten();
        match heir {
            Some(heir) => self.begin_handover(now, heir, true, out),
            None => self.become_state(SmState::NOT_ACTIVE, out),
        }
    }

    /// When [`Manager::handle_timeout`] has something to do: it may be at once.
    pub fn next_timeout(&self) -> Option<Time> {
        if self.job.is_some() || self.has_group_work() {
            return Some(Time::ZERO);
        }
        // What must wait for the end of what is under way is not due before.
        let heavy = self.heavy_due.filter(|_| self.may_begin());
        let light = self.light_due.filter(|_| self.phase == Phase::Idle);
        let due = [self.requests.next_timeout(), heavy, light, self.poll_due];
        due.into_iter().flatten().min()
    }

    /// Does what is due: sends again, begins a sweep, computes routes, a slice at a time.
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

    /// Takes a datagram that came to QP0 of the manager's port: an answer, a trap, or what another manager says.
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
                self.obey(now, out);
            }
            Method::TRAP if smp.header.attr_id == Notice::ATTR_ID => {
                self.handle_trap(now, from, &smp, out);
            }
            _ => return,
        }
        self.proceed(now, out);
    }

    /// Sends a request.
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
        // What has changed meanwhile no longer has the attribute that is waited for: the answer to the first is good enough.
        let Some(mut smp) = self.smp(pending.request) else { return };
        if (smp.header.attr_id, smp.header.attr_mod) == (pending.attr_id, pending.modifier) {
            smp.header.tid = pending.tid.into();
            self.tally.sets += u64::from(pending.request.what.is_set());
            out.send(UserAddress::directed(), Box::new(smp.to_bytes()));
        }
    }

    /// Sends as much as may be outstanding, and goes on to the next phase when everything is answered.
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

    /// Forgets what is under way.
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

    /// Something has changed: a heavy sweep is due, or due again after the one that is under way.
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
