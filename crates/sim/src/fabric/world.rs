//! The subnet, its managers, hosts and troubles, on the virtual clock.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rdmux_fabric::server::Published;
use rdmux_subnet::rmpp::Mad;
use rdmux_subnet::topology::Shape;
use rdmux_subnet::umad::UserAddress;
use rdmux_subnet::{Config, MadPacket, PortEvent, PortId, Sink, Subnet, Time};
use rdmux_wire::sm::PortState;
use rdmux_wire::{Guid, Pkey};

use super::end::{Datagram, End, Group};
use super::host::Host;
use super::managers::{Keys, Seat};
use super::packets::Due;
use super::rogue::Undo;
use super::{FabricFailure, FabricScenario, FabricStats};
use crate::agenda::Agenda;
use crate::net::Network;
use crate::subnet::is_end;

/// The limit on the events of a run.
const EVENTS: u64 = 20_000_000;

/// The time that a subnet takes to come up, and the time for all effects of the last trouble: managers that find their master
/// dead, and connections whose peers do not answer, one after the other.
const UP: Duration = Duration::from_secs(60);
const QUIET: Duration = Duration::from_secs(400);

/// An event of the agenda.
#[derive(Debug)]
pub(super) enum Event {
    /// A manager's datagram is sent.
    Transmit { from: PortId, to: UserAddress, mad: Box<Mad> },
    /// A management datagram arrives for a port's programs.
    Arrive { at: PortId, packet: MadPacket },
    /// A manager has work to do.
    Manage(usize),
    /// The subnet has work to do.
    SubnetWakes,
    /// Work starts if the subnet is up.
    Begin,
    /// A trouble occurs.
    Trouble,
    /// A trouble ends.
    Undo(Box<Undo>),
    /// Route tables are compared with the switches' tables.
    Audit,
    /// A datagram arrives at a host.
    Deliver { to: usize, from: usize, datagram: Vec<u8>, damaged: bool },
    /// A queue pair may send.
    Wake(usize),
    /// A timer of a queue pair may have expired.
    Timer(usize),
    /// An application posts sends.
    Post(usize),
    /// An application posts a receive.
    Refill(usize),
    /// The ends of a plan connect.
    Connect(usize),
}

/// The output of the subnet.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    packets: Vec<(PortId, MadPacket)>,
}

impl Sink for Inbox {
    fn deliver(&mut self, port: PortId, packet: MadPacket) {
        self.packets.push((port, packet));
    }
    fn port_event(&mut self, _: PortId, _: PortEvent) {}
}

/// The fabric with its managers, hosts and queue pairs.
pub(super) struct World {
    pub(super) scenario: FabricScenario,
    pub(super) agenda: Agenda<Event>,
    pub(super) rng: ChaCha8Rng,
    pub(super) subnet: Subnet,
    pub(super) inbox: Inbox,
    subnet_wake: Option<Time>,
    pub(super) seats: Vec<Seat>,
    pub(super) keys: Keys,
    pub(super) groups: Vec<Group>,
    /// Route tables, as the fabric publishes them.
    pub(super) published: Published,
    pub(super) hosts: Vec<Host>,
    pub(super) ends: Vec<End>,
    /// The present ends of each plan, and how often they may connect again.
    pub(super) pairs: Vec<(Option<[usize; 2]>, u32)>,
    /// Operations that each end of each plan has yet to post.
    pub(super) left: Vec<[u32; 2]>,
    /// Datagrams of UD, by the number in their first bytes.
    pub(super) datagrams: BTreeMap<u64, Datagram>,
    /// Packets that a host must send with its next flush.
    pub(super) due: Vec<Due>,
    /// Fingerprints of the packets sent to each host.
    pub(super) sent_to: BTreeSet<u64>,
    pub(super) net: Network,
    pub(super) last_op: u64,
    /// The time at which the last trouble is over; none before the start.
    pub(super) calm: Option<Time>,
    pub(super) stats: FabricStats,
    tracing: bool,
}

impl World {
    pub(super) fn new(seed: u64, tracing: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let scenario = FabricScenario::draw(&mut rng);
        let shape: Result<Shape, _> = scenario.shape.parse();
        let topology = shape.map(|shape| shape.topology(Guid(0x10_0000))).unwrap_or_default();
        let config = Config { mtu_cap: scenario.mtu, ..Config::default() };
        let subnet = Subnet::new(&topology, config);
        let ends: Vec<PortId> =
            subnet.ports().map(|v| v.id()).filter(|id| is_end(&subnet, *id)).collect();
        let net = Network::new(scenario.faults.clone());
        let mut world = Self {
            agenda: Agenda::default(),
            subnet,
            inbox: Inbox::default(),
            subnet_wake: None,
            seats: Vec::new(),
            keys: Keys::default(),
            groups: Vec::new(),
            published: Published::default(),
            hosts: Vec::new(),
            ends: Vec::new(),
            pairs: Vec::new(),
            left: scenario.plans.iter().map(|plan| plan.ops).collect(),
            datagrams: BTreeMap::new(),
            due: Vec::new(),
            sent_to: BTreeSet::new(),
            net,
            last_op: 0,
            calm: None,
            stats: FabricStats { seeds: 1, ..FabricStats::default() },
            tracing,
            rng,
            scenario,
        };
        world.place_hosts(&ends);
        world.pairs = world.scenario.plans.iter().map(|plan| (None, plan.lives)).collect();
        for _ in 0..world.scenario.managers {
            let port = *ends.choose(&mut world.rng).expect("a subnet has ends");
            if world.seats.iter().all(|seat| seat.port != port) {
                let priority = world.rng.random_range(0..3);
                world.seats.push(Seat::new(port, priority));
            }
        }
        for index in 0..world.seats.len() {
            world.start(index);
        }
        world.agenda.after(Duration::ZERO, Event::Begin);
        world
    }

    /// Gives hosts adapters, P_Keys and groups.
    fn place_hosts(&mut self, ends: &[PortId]) {
        let mut adapters: Vec<PortId> =
            ends.iter().copied().filter(|port| port.number != 0).collect();
        adapters.shuffle(&mut self.rng);
        adapters.truncate(self.scenario.hosts);
        let count = adapters.len();
        let (narrow, segments) = (self.scenario.narrow, self.scenario.segments);
        for (number, port) in adapters.into_iter().enumerate() {
            self.hosts.push(Host::new(number, port, narrow, segments));
            let guid = self.view(number).guid();
            let mut keys = vec![Pkey(if self.rng.random_bool(0.9) { 0xffff } else { 0x7fff })];
            for partition in 1..=2 {
                match self.rng.random_range(0..3) {
                    0 => {}
                    1 => keys.push(Pkey(partition)),
                    _ => keys.push(Pkey(0x8000 | partition)),
                }
            }
            self.keys.0.insert(guid, keys);
        }
        for plan in &mut self.scenario.plans {
            plan.hosts = plan.hosts.map(|host| host % count);
        }
        for index in 0..self.scenario.groups {
            let mut group = Group::new(index);
            group.members = (0..count).filter(|_| self.rng.random_bool(0.6)).collect();
            self.groups.push(group);
        }
    }

    pub(super) fn run(mut self, seed: u64) -> Result<FabricStats, Box<FabricFailure>> {
        let result = self.all_events();
        self.stats.net = self.net.stats;
        self.stats.virtual_time = Duration::from_nanos(self.agenda.now().0);
        for host in &self.hosts {
            let drops = host.drops();
            self.stats.drops.iter_mut().zip(drops).for_each(|(all, more)| *all += more);
        }
        result.map(|()| self.stats).map_err(|what| {
            let (at, scenario) = (self.agenda.now(), self.scenario.clone());
            Box::new(FabricFailure { seed, at, what, scenario })
        })
    }

    fn all_events(&mut self) -> Result<(), String> {
        self.until_end()?;
        self.take_down()
    }

    /// Runs until all work is done.
    pub(super) fn until_end(&mut self) -> Result<(), String> {
        self.attach_all()?;
        for _ in 0..EVENTS {
            self.step()?;
            if self.is_finished() {
                return Ok(());
            }
            if self.calm.is_some_and(|calm| self.agenda.now() > calm.after(QUIET)) {
                return Err(format!("no end: {}", self.unfinished()));
            }
        }
        Err(format!("no end after {EVENTS} events: {}", self.unfinished()))
    }

    /// Attaches all hosts to the fabric.
    pub(super) fn attach_all(&mut self) -> Result<(), String> {
        for host in 0..self.hosts.len() {
            self.attach(host)?;
        }
        self.settle();
        Ok(())
    }

    /// Processes the next event and its effects.
    pub(super) fn step(&mut self) -> Result<(), String> {
        let event = self.agenda.next_event().ok_or("nothing is to come")?;
        self.happen(event)?;
        self.settle();
        Ok(())
    }

    /// Handles an event.
    pub(super) fn happen(&mut self, event: Event) -> Result<(), String> {
        let now = self.agenda.now();
        match event {
            Event::Transmit { from, to, mad } => self.mad_leaves(from, &to, mad),
            Event::Arrive { at, packet } => self.mad_arrives(at, &packet),
            Event::Manage(index) => {
                self.seats[index].wake = None;
                while self.seats[index].next_timeout().is_some_and(|due| due <= now) {
                    self.with(index, |manager, out| manager.handle_timeout(now, out));
                }
            }
            Event::SubnetWakes => {
                self.subnet_wake = None;
                self.subnet.handle_timeout(now, &mut self.inbox);
            }
            Event::Begin => self.begin()?,
            Event::Trouble => self.trouble()?,
            Event::Undo(undo) => self.undo(*undo)?,
            Event::Audit => self.audit()?,
            Event::Deliver { to, from, datagram, damaged } => {
                self.deliver(to, from, &datagram, damaged)?;
            }
            Event::Wake(id) => {
                self.ends[id].awake = false;
                self.wake(id)?;
            }
            Event::Timer(id) => self.timer(id)?,
            Event::Post(id) => self.post_some(id)?,
            Event::Refill(id) => self.post_receive(id)?,
            Event::Connect(plan) => self.connect(plan)?,
        }
        Ok(())
    }

    /// Starts work and troubles when all hosts' ports are active. Tries again soon if they are not.
    fn begin(&mut self) -> Result<(), String> {
        let now = self.agenda.now();
        let is_up = |host| self.view(host).state() == PortState::ACTIVE && self.stats.sweeps > 0;
        if !(0..self.hosts.len()).all(is_up) {
            if now.since(Time::ZERO) > UP {
                return Err("the subnet does not come up".to_owned());
            }
            self.agenda.after(Duration::from_millis(50), Event::Begin);
            return Ok(());
        }
        self.calm = Some(now.after(self.scenario.span));
        for plan in 0..self.scenario.plans.len() {
            let delay = self.micros(1000);
            self.agenda.after(delay, Event::Connect(plan));
        }
        for _ in 0..self.scenario.troubles {
            let when = self.rng.random_range(Duration::ZERO..self.scenario.span);
            self.agenda.after(when, Event::Trouble);
            // While managers react to it.
            let later = self.rng.random_range(Duration::ZERO..Duration::from_millis(20));
            self.agenda.after(when + later, Event::Audit);
        }
        self.agenda.after(Duration::ZERO, Event::Audit);
        Ok(())
    }

    /// Schedules the effects of the last step.
    pub(super) fn settle(&mut self) {
        self.publish();
        for (at, packet) in std::mem::take(&mut self.inbox.packets) {
            if self.seats.iter().any(|seat| seat.port == at && seat.manager.is_some()) {
                self.travel(Event::Arrive { at, packet });
            }
        }
        if let Some(due) = self.subnet.next_timeout()
            && self.subnet_wake.is_none_or(|wake| due < wake)
        {
            self.subnet_wake = Some(due);
            self.agenda.at(due, Event::SubnetWakes);
        }
        for (index, seat) in self.seats.iter_mut().enumerate() {
            if let Some(due) =
                seat.next_timeout().filter(|due| seat.wake.is_none_or(|wake| *due < wake))
            {
                seat.wake = Some(due);
                self.agenda.at(due, Event::Manage(index));
            }
        }
    }

    /// Draws a duration of at most this many microseconds.
    pub(super) fn micros(&mut self, most: u64) -> Duration {
        Duration::from_nanos(self.rng.random_range(0..=most * 1000))
    }

    /// Prints a line with the virtual time, if tracing is on.
    pub(super) fn trace(&self, what: fmt::Arguments<'_>) {
        if self.tracing {
            eprintln!("{:>12} {what}", self.agenda.now().0);
        }
    }

    pub(super) fn is_tracing(&self) -> bool {
        self.tracing
    }
}
