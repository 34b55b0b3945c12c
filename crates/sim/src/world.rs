//! The world: nodes, endpoints and the network on one clock, from the first post to the last completion.

use std::fmt;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rdmux_transport::attr::{Access, QpCaps, QpState, QpType};
use rdmux_transport::env::{Drop, LinkCaps, QpEvent, Side};
use rdmux_transport::{Qp, QpInit, Time, TxState};
use rdmux_wire::Qpn;

use crate::agenda::Agenda;
use crate::check::ensure;
use crate::endpoint::{Endpoint, Node, Process, index_of};
use crate::env::{Owners, Processes, SimEnv};
use crate::memory::Memory;
use crate::net::{Network, NodeId};
use crate::paths::DeadPaths;
use crate::scenario::{BETWEEN_PAUSES, DeadPath, LONGEST_PAUSE, Scenario};
use crate::workload::MAX_INLINE;
use crate::{Failure, Stats};

/// The first queue pair's number.
pub(crate) const FIRST_QPN: u32 = 0x100;

/// The limits on virtual time and on events, beyond which a run counts as stuck.
const MOST_TIME: Duration = Duration::from_secs(4000);
const MOST_EVENTS: u64 = 20_000_000;

/// An event of the simulation.
#[derive(Debug)]
pub(crate) enum Event {
    /// A packet arrives.
    Deliver { to: usize, from: usize, path: u8, bytes: Vec<u8>, icrc: [u8; 4] },
    /// An endpoint may send.
    Wake(usize),
    /// A timer of an endpoint may have expired.
    Timer(usize),
    /// An application posts a send.
    Post(usize),
    /// An application posts a receive, in this process.
    Refill(usize, usize),
    /// A process executes its oldest deferred atomic for an XRC target.
    Atomic(usize, usize),
    /// Two nodes are partitioned until a time.
    Cut(NodeId, NodeId, Time),
    /// A node dies.
    Crash(NodeId),
    /// A driver is notified that its peer's process is gone.
    PeerGone(usize),
    /// An application starts to drain its send queue.
    Drain(usize),
    /// An application ends draining.
    Resume(usize),
    /// A node is paused.
    Pause(NodeId),
    /// An application loads the other path and arms its queue pair.
    Arm(usize),
    /// An application requests migration.
    Migrate(usize),
    /// A path of a connection fails. The last field is how often this may still wait for the connection to be able to survive it.
    Dead(usize, DeadPath, u32),
    /// An endpoint must have noticed that its peer's node is dead by now, if sends from before the crash are outstanding. The
    /// last field is the number posted then.
    Found(usize, u32),
}

impl Event {
    /// Returns the endpoint whose node must run for this event, and whether the event waits until received packets are processed.
    fn runs(&self) -> Option<(usize, bool)> {
        match *self {
            Self::Deliver { to, .. } => Some((to, false)),
            Self::Timer(id) => Some((id, true)),
            Self::Wake(id)
            | Self::Post(id)
            | Self::Refill(id, _)
            | Self::Atomic(id, _)
            | Self::PeerGone(id)
            | Self::Drain(id)
            | Self::Arm(id)
            | Self::Migrate(id)
            | Self::Resume(id) => Some((id, false)),
            Self::Dead(..) | Self::Cut(..) | Self::Crash(_) | Self::Pause(_) | Self::Found(..) => {
                None
            }
        }
    }
}

/// The state of the simulation.
pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) rng: ChaCha8Rng,
    pub(crate) agenda: Agenda<Event>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) last_op: u64,
    pub(crate) stats: Stats,
    /// Whether the work is done and the queue pairs are being closed.
    pub(crate) ending: bool,
    pub(crate) net: Network,
    pub(crate) dead: DeadPaths,
    pub(crate) tracing: bool,
}

impl World {
    pub(crate) fn new(seed: u64, tracing: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let scenario = Scenario::draw(&mut rng);
        let kinds = scenario.srq.iter().zip(&scenario.keeps);
        let nodes =
            kinds.map(|(&has_srq, &keeps)| Node { has_srq, keeps, ..Node::default() }).collect();
        let net = Network::new(scenario.faults.clone());
        let mut world = Self {
            scenario,
            rng,
            agenda: Agenda::default(),
            nodes,
            endpoints: Vec::new(),
            last_op: 0,
            stats: Stats::default(),
            ending: false,
            net,
            dead: DeadPaths::default(),
            tracing,
        };
        for plan in 0..world.scenario.plans.len() {
            world.add_endpoint(plan, 0);
            world.add_endpoint(plan, 1);
        }
        world
    }

    fn add_endpoint(&mut self, plan_index: usize, end: usize) {
        let plan = &self.scenario.plans[plan_index];
        let id = self.endpoints.len();
        let node = plan.ends[end];
        let peer = if end == 0 { id + 1 } else { id - 1 };
        let caps = QpCaps {
            max_send_wr: plan.depth,
            max_recv_wr: plan.depth + 1,
            max_send_sge: 4,
            max_recv_sge: 3,
            max_inline_data: MAX_INLINE,
        };
        let qpn = Qpn::new(FIRST_QPN + u32::try_from(id).expect("few endpoints"));
        let has_srq = self.nodes[node].has_srq;
        let init =
            QpInit { qpn, qp_type: plan.type_of(end), caps, sq_sig_all: plan.signal_all, has_srq };
        let rights = Access::REMOTE_ATOMIC;
        let to_post = plan.ops[end];
        self.endpoints.push(Endpoint {
            node,
            qp: Qp::new(&init),
            peer,
            plan: (plan_index, end),
            to_post,
            posted: 0,
            sends: Default::default(),
            recvs: Default::default(),
            expected: Default::default(),
            counters: self.nodes[node]
                .processes
                .each_mut()
                .map(|process| process.memory.register(vec![0; 8], rights)),
            peer_counters: Default::default(),
            taken: None,
            put_off: Default::default(),
            doomed: false,
            failed: false,
            awake: false,
            posting: false,
            timer: Time::NEVER,
            draining: false,
            unreliable_writes: Vec::new(),
        });
    }

    /// Runs the simulation to its end.
    pub(crate) fn run(&mut self) -> Result<(), String> {
        self.connect_all()?;
        self.plan_trouble();
        self.plan_moves();
        let mut events = 0_u64;
        while !self.is_finished() {
            let Some(event) = self.agenda.next_event() else {
                return Err(format!("nothing happens any more, but {}", self.unfinished()));
            };
            self.happen(event)?;
            events += 1;
            let late = self.agenda.now().since(Time::ZERO) > MOST_TIME || events > MOST_EVENTS;
            ensure!(!late, "no end after {events} events: {}", self.unfinished());
        }
        self.take_down()
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        if let Some((id, last)) = event.runs()
            && let until = self.nodes[self.endpoints[id].node].paused_until
            && self.agenda.now() < until
        {
            let tick = Duration::from_nanos(last.into());
            self.agenda.at(until.after(tick), event);
            return Ok(());
        }
        match event {
            Event::Deliver { to, from, path, bytes, icrc } => {
                self.deliver(to, (from, path), &bytes, icrc)
            }
            Event::Wake(id) => {
                self.endpoints[id].awake = false;
                self.wake(id)
            }
            Event::Timer(id) => self.timer(id),
            Event::Post(id) => self.post_some(id),
            Event::Refill(id, process) => self.post_refill(id, process),
            Event::Atomic(id, process) => self.do_atomic(id, process),
            Event::Cut(a, b, until) => {
                self.stats.cuts += 1;
                self.net.partition(a, b, until);
                Ok(())
            }
            Event::Crash(node) => {
                self.stats.crashes += 1;
                self.crash(node);
                Ok(())
            }
            Event::PeerGone(id) => self.act(id, |ep, now, _| ep.qp.peer_gone(now)),
            Event::Pause(node) => {
                self.pause(node);
                Ok(())
            }
            Event::Found(id, posted) => self.check_found(id, posted),
            Event::Arm(id) => self.arm(id),
            Event::Migrate(id) => self.migrate(id),
            Event::Dead(plan, dead, patience) => self.cut_path(plan, dead, patience),
            Event::Drain(id) => self.drain(id),
            Event::Resume(id) => self.resume(id),
        }
    }

    /// Schedules an event.
    pub(crate) fn put(&mut self, delay: Duration, event: Event) {
        self.agenda.after(delay, event);
    }

    /// Draws a duration of at most this many microseconds.
    pub(crate) fn micros(&mut self, most: u64) -> Duration {
        Duration::from_nanos(self.rng.random_range(0..=most * 1000))
    }

    fn plan_trouble(&mut self) {
        if let Some(cut) = self.scenario.cut {
            let until = self.agenda.now().after(cut.at + cut.lasts);
            self.put(cut.at, Event::Cut(cut.nodes.0, cut.nodes.1, until));
            // A partition that outlasts all retries excuses errors between these two nodes.
            let (a, b) = cut.nodes;
            for id in 0..self.endpoints.len() {
                let ends = self.scenario.plans[self.endpoints[id].plan.0].ends;
                let timeout = self.scenario.plans[self.endpoints[id].plan.0].timeout;
                let long = cut.lasts > Duration::from_nanos(4096 << timeout);
                if long && (ends == [a, b] || ends == [b, a]) {
                    self.endpoints[id].doomed = true;
                }
            }
        }
        if let Some((node, at)) = self.scenario.crash {
            self.put(at, Event::Crash(node));
        }
        for node in 0..self.nodes.len() {
            if self.scenario.pauses[node] {
                self.put(Duration::ZERO, Event::Pause(node));
            }
        }
    }

    fn pause(&mut self, node: NodeId) {
        let now = self.agenda.now();
        let lasts = LONGEST_PAUSE.mul_f64(self.rng.random());
        self.nodes[node].paused_until = now.after(lasts);
        self.stats.pauses += 1;
        let [least, most] = BETWEEN_PAUSES;
        let runs = least + (most - least).mul_f64(self.rng.random());
        self.put(lasts + runs, Event::Pause(node));
    }

    /// Returns the longest time until a queue pair notices that no answer arrives: four times its timer for each retry (IBTA
    /// 9.7.6.1.3). If this side may be late each time, as much again and two of the longest pauses are added. The peer may
    /// also have made it wait first.
    fn longest_search(&self, id: usize) -> Duration {
        let plan = &self.scenario.plans[self.endpoints[id].plan.0];
        let expiry = Duration::from_nanos(4096 << plan.timeout) * 4;
        let late = if self.scenario.pauses.contains(&true) {
            expiry + LONGEST_PAUSE * 2
        } else {
            Duration::ZERO
        };
        let paths = if plan.moves.is_some() { 2 } else { 1 };
        (expiry + late) * 8 * paths + Duration::from_secs(2) + late
    }

    fn check_found(&mut self, id: usize, posted: u32) -> Result<(), String> {
        let ep = &self.endpoints[id];
        let before = ep.sends.len().saturating_sub((ep.posted - posted) as usize);
        // An unsignaled send reports no success.
        let waits = ep.sends.iter().take(before).any(|send| send.signaled);
        ensure!(!waits, "ep {id} waits for a dead node still ({:?})", ep.qp.state());
        Ok(())
    }

    fn crash(&mut self, node: NodeId) {
        self.net.crash(node);
        for id in 0..self.endpoints.len() {
            let peer = self.endpoints[id].peer;
            if self.endpoints[id].node == node {
                self.endpoints[id].doomed = true;
                self.endpoints[id].to_post = 0;
                self.endpoints[id].sends.clear();
            } else if self.endpoints[peer].node == node {
                self.endpoints[id].doomed = true;
                let found = Event::Found(id, self.endpoints[id].posted);
                self.put(self.longest_search(id), found);
                if self.scenario.lossless {
                    let delay = self.micros(1000);
                    self.put(delay, Event::PeerGone(id));
                }
            }
        }
    }

    /// Returns whether an endpoint's node is alive.
    pub(crate) fn is_alive(&self, id: usize) -> bool {
        !self.net.is_down(self.endpoints[id].node)
    }

    fn is_finished(&self) -> bool {
        self.endpoints.iter().all(|ep| ep.is_finished() || self.net.is_down(ep.node))
    }

    fn unfinished(&self) -> String {
        let list: Vec<String> = self
            .endpoints
            .iter()
            .enumerate()
            .filter(|(_, ep)| !ep.is_finished())
            .map(|(id, ep)| {
                format!(
                    "ep {id} ({:?}) has {} sends outstanding, {} to post, {} messages to come",
                    ep.qp.state(),
                    ep.sends.len(),
                    ep.to_post,
                    ep.expected.len()
                )
            })
            .collect();
        list.join("; ")
    }

    pub(crate) fn process(&mut self, id: usize, process: usize) -> &mut Process {
        &mut self.nodes[self.endpoints[id].node].processes[process]
    }

    pub(crate) fn memory(&mut self, id: usize, process: usize) -> &mut Memory {
        &mut self.process(id, process).memory
    }

    pub(crate) fn peer_memory(&mut self, id: usize, process: usize) -> &mut Memory {
        self.memory(self.endpoints[id].peer, process)
    }

    fn link(&self) -> LinkCaps {
        LinkCaps {
            max_payload: self.scenario.max_payload,
            lossless: self.scenario.lossless,
            by_reference: false,
            piggybacks_acks: false,
        }
    }

    /// Returns the longest payload of a packet.
    pub(crate) fn mtu(&self, qp_type: QpType) -> u32 {
        match qp_type {
            QpType::Ud => self.scenario.max_payload.min(4096),
            _ if self.scenario.lossless => self.scenario.max_payload,
            _ => self.scenario.mtu.bytes(),
        }
    }

    /// Returns the global route header that datagrams are received with.
    pub(crate) fn grh(&self) -> [u8; 40] {
        [0x45; 40]
    }

    /// Calls an endpoint's queue pair and executes its output.
    pub(crate) fn act<R>(
        &mut self,
        id: usize,
        f: impl FnOnce(&mut Endpoint, Time, &mut SimEnv<'_>) -> R,
    ) -> Result<R, String> {
        let now = self.agenda.now();
        let busy = self.scenario.busy > 0.0 && self.rng.random_bool(self.scenario.busy);
        let room: u32 = if busy { self.rng.random_range(0..4) } else { u32::MAX };
        let link = self.link();
        let ep = &mut self.endpoints[id];
        let node = &mut self.nodes[ep.node];
        let is_target = ep.qp.qp_type() == QpType::XrcRecv;
        let Scenario { owner_busy: busy, late_atomics, .. } = self.scenario;
        let owners = is_target.then_some(Owners { busy, rng: &mut self.rng });
        let mut env = SimEnv::new(link, Processes::new(&mut node.processes, owners));
        env.room = room as usize;
        env.buffers_out_of_order = node.keeps;
        env.later = late_atomics && is_target;
        // An XRC target chooses a process for each message.
        env.selected = (!is_target).then_some(0);
        env.taken = ep.taken;
        let result = f(ep, now, &mut env);
        let SimEnv { memory, packets, completions, received, put_off, events, dropped, .. } = env;
        ep.taken = env.taken;
        self.stats.busy += memory.met_busy;
        for reason in dropped {
            match reason {
                Drop::Early => self.stats.kept += 1,
                Drop::Filled => self.stats.filled += 1,
                _ => self.stats.refused += 1,
            }
        }
        for bytes in packets {
            self.send(id, bytes);
        }
        let mut received = received.into_iter();
        for (side, wc) in completions {
            let receive = if side == Side::Recv { received.next() } else { None };
            self.completed(id, side, &wc, receive.map_or(0, |(srqn, ..)| index_of(srqn)))?;
        }
        for atomic in put_off {
            let process = index_of(atomic.process);
            self.endpoints[id].put_off[process].push_back(atomic);
            let delay = self.micros(1000);
            self.put(delay, Event::Atomic(id, process));
        }
        for event in events {
            self.raised(id, event)?;
        }
        if self.endpoints[id].qp.state() == QpState::Err {
            self.endpoints[id].to_post = 0;
            self.last_completion_is_out(id)?;
        }
        self.set_timer(id);
        Ok(result)
    }

    fn raised(&mut self, id: usize, event: QpEvent) -> Result<(), String> {
        match event {
            QpEvent::SqDrained => {
                ensure!(self.endpoints[id].draining, "ep {id}: drained, but nobody asked");
                let delay = self.micros(500);
                self.put(delay, Event::Resume(id));
            }
            QpEvent::CommEst => {}
            QpEvent::PathMig | QpEvent::PathMigErr => self.moved(id, event)?,
            QpEvent::LastWqeReached if self.endpoints[id].qp.qp_type() == QpType::XrcRecv => {
                return Err(format!("ep {id}: {event:?}, but it has no shared receive queue"));
            }
            _ => {
                let excused = self.endpoints[id].doomed || self.ending;
                ensure!(excused, "ep {id}: {event:?} for no reason");
            }
        }
        Ok(())
    }

    fn do_atomic(&mut self, id: usize, process: usize) -> Result<(), String> {
        if !self.is_alive(id) {
            return Ok(());
        }
        let atomic = self.endpoints[id].put_off[process].pop_front();
        let atomic = atomic.ok_or_else(|| format!("ep {id}: no atomic to do"))?;
        self.stats.late_atomics += 1;
        let result = self.memory(id, process).atomic(atomic.rkey, atomic.va, atomic.op);
        self.trace(format_args!("ep {id} has its atomic {} done: {result:?}", atomic.psn.get()));
        self.act(id, |ep, now, env| ep.qp.atomic_done(now, atomic.psn, result, env))?;
        self.wake_soon(id, 5);
        Ok(())
    }

    fn set_timer(&mut self, id: usize) {
        let ep = &mut self.endpoints[id];
        if let Some(at) = ep.qp.poll_timeout()
            && at < ep.timer
        {
            ep.timer = at;
            self.agenda.at(at, Event::Timer(id));
        }
    }

    /// Schedules a wake-up of an endpoint, unless one is scheduled.
    pub(crate) fn wake_soon(&mut self, id: usize, most_micros: u64) {
        if !self.endpoints[id].awake {
            self.endpoints[id].awake = true;
            let delay = self.micros(most_micros);
            self.put(delay, Event::Wake(id));
        }
    }

    fn wake(&mut self, id: usize) -> Result<(), String> {
        if !self.is_alive(id) {
            return Ok(());
        }
        if self.endpoints[id].qp.wants_ack() && self.rng.random_bool(0.3) {
            self.act(id, |ep, now, env| ep.qp.flush_ack(now, env))?;
        }
        let budget = self.rng.random_range(1..=64);
        let state = self.act(id, |ep, now, env| ep.qp.poll_transmit(now, budget, env))?;
        match state {
            TxState::Idle if !self.endpoints[id].qp.wants_ack() => {}
            TxState::Idle | TxState::More => self.wake_soon(id, 1),
            TxState::Blocked => self.wake_soon(id, 20),
        }
        Ok(())
    }

    fn timer(&mut self, id: usize) -> Result<(), String> {
        let now = self.agenda.now();
        if self.endpoints[id].timer > now || !self.is_alive(id) {
            return Ok(());
        }
        self.endpoints[id].timer = Time::NEVER;
        if self.endpoints[id].qp.poll_timeout().is_some_and(|at| at <= now) {
            self.stats.timeouts += 1;
            self.trace(format_args!("ep {id} times out"));
            self.act(id, |ep, now, env| ep.qp.handle_timeout(now, env))?;
            self.wake_soon(id, 1);
        }
        self.set_timer(id);
        Ok(())
    }

    /// Schedules the application's next post, if it has operations left.
    pub(crate) fn post_soon(&mut self, id: usize) {
        let ep = &mut self.endpoints[id];
        if ep.to_post > 0 && !ep.posting {
            ep.posting = true;
            let pace = self.scenario.plans[ep.plan.0].pace;
            let delay = self.micros(pace);
            self.put(delay, Event::Post(id));
        }
    }

    fn post_some(&mut self, id: usize) -> Result<(), String> {
        if !self.is_alive(id) {
            return Ok(());
        }
        self.endpoints[id].posting = false;
        let mut room = true;
        for _ in 0..self.rng.random_range(1..=8) {
            room = self.post_next(id)?;
        }
        self.wake_soon(id, 2);
        if room {
            self.post_soon(id);
        }
        Ok(())
    }

    /// Schedules the next receive of a process.
    pub(crate) fn refill(&mut self, id: usize, process: usize) {
        let most = self.scenario.plans[self.endpoints[id].plan.0].refill;
        let delay = most.mul_f64(self.rng.random());
        self.put(delay, Event::Refill(id, process));
    }

    fn post_refill(&mut self, id: usize, process: usize) -> Result<(), String> {
        let ep = &self.endpoints[id];
        let shared = self.nodes[ep.node].has_srq || process != 0;
        if (shared || ep.qp.state() != QpState::Err) && self.is_alive(id) {
            self.post_receive(id, process)?;
        }
        Ok(())
    }

    /// Prints a line with the virtual time, if tracing is on.
    pub(crate) fn trace(&self, what: fmt::Arguments<'_>) {
        if self.tracing {
            eprintln!("{:>12} {what}", self.agenda.now().0);
        }
    }

    /// Returns the results so far.
    pub(crate) fn into_result(
        mut self,
        seed: u64,
        result: Result<(), String>,
    ) -> Result<Stats, Failure> {
        self.stats.seeds = 1;
        self.stats.net = self.net.stats;
        self.stats.virtual_time = self.agenda.now().since(Time::ZERO);
        match result {
            Ok(()) => Ok(self.stats),
            Err(what) => Err(Failure {
                seed,
                at: self.agenda.now(),
                what,
                scenario: format!("{:#?}", self.scenario),
            }),
        }
    }
}
