//! The network, the crowds, and the clock.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rdmux_acm::{SaFailure, Time, To};
use rdmux_wire::acm::{Datagram, Groups, Request, Response};
use rdmux_wire::sa::McMemberRecord;

use super::Setup;
use super::administration::Administration;
use super::cpu_time;
use super::crowd::Crowd;
use super::node::{ENDPOINT, Node, address_of, endpoint_at, endpoint_of, peer_of};
use super::outcome::{Counts, Outcome};
use crate::agenda::Agenda;

/// The time at which all endpoints start. An endpoint listens before its first request only after a pause, and machines do
/// not start at time zero.
pub(super) const START: Time = Time(1_000_000_000);

/// The transit time of a datagram.
const LATENCY: Duration = Duration::from_micros(5);

/// How long to wait for an answer of subnet administration, and how often to retransmit: the service's defaults.
const WAIT: Duration = Duration::from_secs(2);
const RETRIES: u32 = 2;

/// The longest time between two requests over which a crowd's requests are spread.
const LONGEST_GAP: Duration = Duration::from_millis(100);

/// The pause before a client repeats a failed request. Its machine caches the failure for a while and would return it again
/// at once.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// An event of the agenda.
#[derive(Debug)]
enum Event {
    /// A node's timer expires.
    Timer(u32),
    /// A node has joined a group.
    Joined(u32, McMemberRecord),
    /// A join has no answer yet: it is retransmitted up to `retries` times, or fails.
    Unanswered { by: u32, record: McMemberRecord, retries: u32 },
    /// A node's client repeats a failed request.
    Again { by: u32, dest: u32 },
    /// A request arrives at all members of the group.
    Request { from: u32, dest: u32, tid: u64 },
    /// A response arrives at a node.
    Response { to: u32, from: u32, tid: u64 },
}

/// The state of a simulation.
pub(super) struct World {
    setup: Setup,
    agenda: Agenda<Event>,
    rng: ChaCha8Rng,
    nodes: Vec<Node>,
    crowd: Crowd,
    administration: Administration,
    /// The groups in requests, and the one that responses choose. All endpoints are equal.
    groups: Groups,
    last_request: Time,
    counts: Counts,
}

impl World {
    pub(super) fn new(setup: Setup) -> Self {
        let weight = setup.weight();
        Self {
            crowd: Crowd::new(&setup),
            setup,
            agenda: Agenda::beginning_at(START),
            rng: ChaCha8Rng::seed_from_u64(setup.seed),
            nodes: (0..setup.sample).map(|i| Node::new(&setup, i * weight)).collect(),
            administration: Administration::new(setup.joins_per_second),
            groups: Groups::new(),
            last_request: Time::ZERO,
            counts: Counts::default(),
        }
    }

    /// Runs cold resolution: all endpoints start at once, join, and resolve all others.
    pub(super) fn run_cold(&mut self) {
        let start = cpu_time();
        for at in 0..self.nodes.len() {
            let now = self.agenda.now();
            self.nodes[at].start(now);
            self.fulfil(at);
        }
        while self.nodes.iter().any(|node| !node.has_joined) && self.step() {}
        self.counts.joined = self.agenda.now();
        self.last_request = self.agenda.now();
        self.begin();
        let all = self.setup.endpoints - 1;
        let mut open = self.nodes.len();
        while open > 0 && self.step() {
            if self.counts.is_news {
                self.counts.is_news = false;
                open = self.nodes.iter().filter(|node| node.resolved < all).count();
            }
        }
        self.counts.end = self.agenda.now();
        self.counts.cpu = cpu_time().saturating_sub(start);
        self.counts.resolved = self.nodes.iter().map(|node| u64::from(node.resolved)).sum();
    }

    /// Runs warm resolution: some endpoints resolve all others again.
    pub(super) fn run_warm(&mut self) {
        let before = self.counts.requests;
        let now = self.agenda.now();
        let start = cpu_time();
        let endpoints = self.setup.endpoints;
        for node in self.nodes.iter_mut().take(8) {
            node.forget_progress();
            while node.resolved < endpoints - 1 {
                node.ask(now, endpoints, endpoints);
                let answers = std::mem::take(&mut node.wishes.answers);
                if answers.is_empty() {
                    break;
                }
                for (dest, answer) in answers {
                    node.answered(dest, answer);
                    self.counts.warm += 1;
                }
            }
        }
        self.counts.warm_cpu = cpu_time().saturating_sub(start);
        for at in 0..self.nodes.len().min(8) {
            self.fulfil(at);
        }
        self.counts.warm_requests = self.counts.requests - before;
    }

    pub(super) fn outcome(&self) -> Outcome {
        Outcome::new(&self.setup, &self.counts, &self.nodes, self.administration.datagrams)
    }

    /// Starts all clients.
    fn begin(&mut self) {
        let at_once = self.nodes[0].machine.options().at_once();
        for from in self.crowd.begin(at_once, &mut self.rng) {
            let dest = (from + 1) % self.setup.endpoints;
            self.agenda.after(LATENCY, Event::Request { from, dest, tid: 0 });
        }
        for at in 0..self.nodes.len() {
            self.ask(at);
        }
        self.crowd.has_begun();
    }

    fn ask(&mut self, at: usize) {
        let now = self.agenda.now();
        self.nodes[at].ask(now, self.setup.endpoints, self.setup.window);
        self.fulfil(at);
    }

    /// Processes one event. Returns false if there is none.
    fn step(&mut self) -> bool {
        let Some(event) = self.agenda.next_event() else { return false };
        let now = self.agenda.now();
        match event {
            Event::Timer(at) => {
                let at = at as usize;
                let node = &mut self.nodes[at];
                if node.timer <= now {
                    node.timer = Time::NEVER;
                    node.machine.handle_timeout(now, &mut node.wishes);
                    self.fulfil(at);
                }
            }
            Event::Joined(at, record) => {
                let at = at as usize;
                let node = &mut self.nodes[at];
                node.machine.handle_join(now, ENDPOINT, record.mgid, Ok(&record), &mut node.wishes);
                node.has_joined = node.machine.is_ready(ENDPOINT);
                self.fulfil(at);
                if self.nodes[at].has_joined {
                    self.groups =
                        self.nodes[at].machine.groups(ENDPOINT).iter().map(|r| r.mgid).collect();
                }
            }
            Event::Unanswered { by, record, retries: 0 } => {
                let node = &mut self.nodes[by as usize];
                let failed = Err(SaFailure::Silent);
                node.machine.handle_join(now, ENDPOINT, record.mgid, failed, &mut node.wishes);
                self.fulfil(by as usize);
            }
            Event::Unanswered { by, record, retries } => self.join(by, record, retries - 1),
            Event::Again { by, dest } => {
                let node = &mut self.nodes[by as usize];
                node.request(now, dest);
                self.fulfil(by as usize);
            }
            Event::Request { from, dest, tid } => self.deliver_request(from, dest, tid),
            Event::Response { to, from, tid } => {
                let groups = self.groups.last().copied().into_iter().collect();
                let datagram = Datagram::Response(Response { tid, status: 0, groups });
                self.deliver(to as usize, from, &datagram.to_bytes());
            }
        }
        true
    }

    /// Delivers a request to all other nodes.
    fn deliver_request(&mut self, from: u32, dest: u32, tid: u64) {
        self.counts.requests += 1;
        let request = Request {
            tid,
            source: address_of(from),
            dest: address_of(dest),
            groups: self.groups.clone(),
        };
        let bytes = Datagram::Request(request).to_bytes();
        for at in 0..self.nodes.len() {
            if self.nodes[at].endpoint != from {
                self.deliver(at, from, &bytes);
            }
        }
        let weight = self.setup.weight();
        let is_of_crowd = !dest.is_multiple_of(weight);
        if is_of_crowd && !self.is_lost() {
            // Only answers to a node's own requests matter.
            self.counts.responses += 1;
            if from.is_multiple_of(weight) && !self.is_lost() {
                let to = from / weight;
                self.agenda.after(LATENCY, Event::Response { to, from: dest, tid });
            }
        }
    }

    fn is_lost(&mut self) -> bool {
        self.setup.loss_ppm > 0 && self.rng.random_range(0..1_000_000) < self.setup.loss_ppm
    }

    fn deliver(&mut self, at: usize, from: u32, bytes: &[u8]) {
        if self.is_lost() {
            self.counts.lost += 1;
            return;
        }
        let (now, random) = (self.agenda.now(), self.rng.random());
        let node = &mut self.nodes[at];
        if !node.takes(now, &self.setup, random) {
            return;
        }
        node.machine.handle_datagram(now, ENDPOINT, &peer_of(from), bytes, &mut node.wishes);
        self.fulfil(at);
    }

    /// Executes a node's requests and sets its timer.
    fn fulfil(&mut self, at: usize) {
        let now = self.agenda.now();
        loop {
            let node = &mut self.nodes[at];
            let answers = std::mem::take(&mut node.wishes.answers);
            if answers.is_empty() {
                break;
            }
            for (dest, answer) in answers {
                node.answered(dest, answer);
            }
            self.counts.is_news = true;
            node.ask(now, self.setup.endpoints, self.setup.window);
        }
        for dest in std::mem::take(&mut self.nodes[at].failed) {
            self.agenda.after(PAUSE, Event::Again { by: number(at), dest });
        }
        for (to, datagram) in std::mem::take(&mut self.nodes[at].wishes.sends) {
            self.send(at, to, &datagram);
        }
        for record in std::mem::take(&mut self.nodes[at].wishes.joins) {
            self.join(number(at), record, RETRIES);
        }
        let node = &mut self.nodes[at];
        let next = node.machine.poll_timeout().unwrap_or(Time::NEVER);
        if next < node.timer {
            node.timer = next;
            self.agenda.at(next, Event::Timer(number(at)));
        }
    }

    /// Sends a node's join, and those of its crowd.
    fn join(&mut self, by: u32, record: McMemberRecord, retries: u32) {
        let (now, is_lost) = (self.agenda.now(), self.is_lost());
        let answer = self.administration.join(now, self.setup.weight(), is_lost);
        match answer.filter(|_| !self.is_lost()) {
            Some(done) => self.agenda.at(done, Event::Joined(by, record)),
            None => self.agenda.after(WAIT, Event::Unanswered { by, record, retries }),
        }
    }

    fn send(&mut self, at: usize, to: To, datagram: &Datagram) {
        let endpoint = self.nodes[at].endpoint;
        match (to, datagram) {
            (To::Group(_), Datagram::Request(request)) => {
                let Some(dest) = endpoint_of(&request.dest) else { return };
                self.send_as_crowd(endpoint, dest, request.tid);
            }
            (To::Peer(peer), Datagram::Response(response)) => {
                self.counts.responses += 1;
                let to = endpoint_at(peer.gid);
                if to.is_multiple_of(self.setup.weight()) && !self.is_lost() {
                    let to = to / self.setup.weight();
                    let event = Event::Response { to, from: endpoint, tid: response.tid };
                    self.agenda.after(LATENCY, event);
                }
            }
            // An endpoint verifies another's address only when the cache entry expires.
            _ => self.counts.others += 1,
        }
    }

    /// Sends an endpoint's request, and those of its crowd.
    fn send_as_crowd(&mut self, endpoint: u32, dest: u32, tid: u64) {
        let now = self.agenda.now();
        let gap = now.since(self.last_request).min(LONGEST_GAP);
        let gap = u64::try_from(gap.as_nanos()).unwrap_or(0);
        self.last_request = now;
        self.agenda.after(LATENCY, Event::Request { from: endpoint, dest, tid });
        let hops = dest + self.setup.endpoints - endpoint;
        for from in self.crowd.send_with(endpoint) {
            let late = Duration::from_nanos(self.rng.random_range(0..=gap));
            let dest = (from + hops) % self.setup.endpoints;
            self.agenda.after(LATENCY + late, Event::Request { from, dest, tid });
        }
    }
}

fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}
