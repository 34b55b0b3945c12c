//! The subnet, its managers and troubles, on the virtual clock.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rdmux_subnet::manager::{self, Event as Told, Manager, ManagerSink};
use rdmux_subnet::rmpp::Mad;
use rdmux_subnet::service::Service;
use rdmux_subnet::topology::Shape;
use rdmux_subnet::umad::{self, FileId, Umad, UserAddress};
use rdmux_subnet::{Config, MadPacket, PortEvent, PortId, Sink, Subnet, Time};
use rdmux_wire::{Gid, Guid, Lid};

use super::lies::Liar;
use super::programs::Program;
use super::{SubnetFailure, SubnetScenario, SubnetStats};
use crate::agenda::Agenda;

/// The limit on the events of a run.
const EVENTS: u64 = 20_000_000;

/// How long after the last trouble and the last loss everything must be right: a standby finds that the master is dead, and
/// the longest pause after a failed sweep is over.
const QUIET: Duration = Duration::from_secs(60);

/// How long before the first check programs query paths.
const QUESTIONS: Duration = Duration::from_secs(20);

/// The time for all effects of a new group.
const SHORT: Duration = Duration::from_secs(10);

/// The groups of a run without programs.
pub(super) const GROUPS: [Lid; 3] = [Lid(0xc000), Lid(0xc001), Lid(0xc040)];

/// An event of the agenda.
pub(super) enum Event {
    Transmit {
        from: PortId,
        to: UserAddress,
        mad: Box<Mad>,
    },
    /// A datagram of a program's agent, or of administration's, is sent.
    Depart {
        from: PortId,
        packet: MadPacket,
    },
    Arrive {
        at: PortId,
        packet: MadPacket,
    },
    /// A program takes its next step.
    Act {
        program: usize,
    },
    DeviceWakes,
    /// The lying node sends a trap.
    Babble,
    /// Programs query paths.
    Questions,
    /// A program creates a group.
    Create,
    Wake {
        index: usize,
    },
    SubnetWakes,
    Trouble,
    /// Nothing is lost from now on.
    Calm,
    Sweep,
    End,
}

/// A place for a manager, with the manager that runs there.
pub(super) struct Seat {
    pub(super) port: PortId,
    pub(super) manager: Option<Manager>,
    /// Administration, if there are programs.
    pub(super) service: Option<Service>,
    /// Administration's file.
    pub(super) file: FileId,
    priority: u8,
    wake: Option<Time>,
}

/// The output of a manager in one call.
#[derive(Default)]
pub(super) struct Out {
    pub(super) sent: Vec<(UserAddress, Box<Mad>)>,
    pub(super) told: Vec<Told>,
}

impl ManagerSink for Out {
    fn send(&mut self, to: UserAddress, mad: Box<Mad>) {
        self.sent.push((to, mad));
    }
    fn event(&mut self, event: Told) {
        self.told.push(event);
    }
}

/// The datagrams and events that the subnet has delivered to programs.
#[derive(Default)]
pub(super) struct Inbox {
    packets: Vec<(PortId, MadPacket)>,
    events: Vec<(PortId, PortEvent)>,
}

impl Sink for Inbox {
    fn deliver(&mut self, port: PortId, packet: MadPacket) {
        self.packets.push((port, packet));
    }
    fn port_event(&mut self, port: PortId, event: PortEvent) {
        self.events.push((port, event));
    }
}

/// The subnet with its managers and programs.
pub(super) struct World {
    pub(super) scenario: SubnetScenario,
    pub(super) agenda: Agenda<Event>,
    pub(super) rng: ChaCha8Rng,
    pub(super) subnet: Subnet,
    pub(super) inbox: Inbox,
    subnet_wake: Option<Time>,
    pub(super) seats: Vec<Seat>,
    /// The device of all ports.
    pub(super) umad: Umad,
    device_wake: Option<Time>,
    pub(super) programs: Vec<Program>,
    /// The program that creates a group at the end.
    pub(super) maker: Option<usize>,
    /// Ports that get Reports without having subscribed.
    pub(super) mistaken: BTreeSet<Gid>,
    pub(super) liar: Option<Liar>,
    /// Members of the groups.
    pub(super) members: [BTreeSet<PortId>; GROUPS.len()],
    /// Whether datagrams are lost.
    pub(super) lossy: bool,
    /// Sets sent since the last sweep was requested.
    pub(super) sets: u64,
    pub(super) stats: SubnetStats,
    tracing: bool,
}

impl World {
    pub(super) fn new(seed: u64, tracing: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let scenario = SubnetScenario::draw(&mut rng);
        let shape: Result<Shape, _> = scenario.shape.parse();
        let topology = shape.map(|shape| shape.topology(Guid(0x10_0000))).unwrap_or_default();
        let guids: Vec<Guid> = topology.nodes.iter().map(|node| node.guid).collect();
        let subnet = Subnet::new(&topology, Config::default());
        let ends: Vec<PortId> =
            subnet.ports().map(|v| v.id()).filter(|id| is_end(&subnet, *id)).collect();
        let mut world = Self {
            agenda: Agenda::default(),
            subnet,
            inbox: Inbox::default(),
            subnet_wake: None,
            seats: Vec::new(),
            umad: Umad::new(umad::Config::default()),
            device_wake: None,
            programs: Vec::new(),
            maker: None,
            mistaken: BTreeSet::new(),
            liar: None,
            members: Default::default(),
            lossy: true,
            sets: 0,
            stats: SubnetStats { seeds: 1, ..SubnetStats::default() },
            tracing,
            rng,
            scenario,
        };
        for _ in 0..world.scenario.managers {
            let port = ends[world.rng.random_range(0..ends.len())];
            if world.seats.iter().all(|seat| seat.port != port) {
                let priority = world.rng.random_range(0..3);
                let (manager, service, file) = (None, None, FileId(0));
                world.seats.push(Seat { port, manager, service, file, priority, wake: None });
            }
        }
        for index in 0..world.seats.len() {
            world.start(index);
        }
        world.start_programs(&ends);
        world.pick_liar(&guids);
        for _ in 0..world.scenario.troubles {
            let when = world.rng.random_range(Duration::ZERO..world.scenario.span);
            world.agenda.after(when, Event::Trouble);
        }
        world.agenda.after(world.scenario.span, Event::Calm);
        let quiet = world.scenario.span + QUIET;
        world.agenda.after(quiet, Event::Sweep);
        if world.programs.is_empty() {
            world.agenda.after(quiet + QUIET, Event::End);
        } else {
            world.agenda.after(quiet - QUESTIONS, Event::Questions);
            world.agenda.after(quiet + QUIET, Event::Create);
            world.agenda.after(quiet + QUIET + SHORT, Event::End);
        }
        world
    }

    pub(super) fn run(mut self, seed: u64) -> Result<SubnetStats, Box<SubnetFailure>> {
        let result = self.all_events();
        self.stats.virtual_time = Duration::from_nanos(self.agenda.now().0);
        result.map(|()| self.stats).map_err(|what| {
            let (at, scenario) = (self.agenda.now(), self.scenario.clone());
            Box::new(SubnetFailure { seed, at, what, scenario })
        })
    }

    fn all_events(&mut self) -> Result<(), String> {
        self.until_end()?;
        match self.programs.is_empty() {
            true => self.check_quiet()?,
            false => self.check_reports()?,
        }
        self.check()
    }

    /// Runs everything except the last checks.
    pub(super) fn until_end(&mut self) -> Result<(), String> {
        self.settle();
        for _ in 0..EVENTS {
            match self.agenda.next_event() {
                None => return Err("nothing is to come".to_owned()),
                Some(Event::End) => return Ok(()),
                Some(event) => self.happen(event)?,
            }
            self.settle();
        }
        Err("it does not end".to_owned())
    }

    /// Checks that nothing has happened since the last sweep was requested.
    fn check_quiet(&self) -> Result<(), String> {
        match self.sets {
            0 => Ok(()),
            n => Err(format!("a sweep without a reason has sent {n} Sets")),
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        let now = self.agenda.now();
        match event {
            Event::Depart { from, packet } => {
                self.subnet.send(now, from, packet, &mut self.inbox);
            }
            Event::Act { program } => self.act(program)?,
            Event::DeviceWakes => {
                self.device_wake = None;
                self.device(|umad, _, agents| umad.handle_timeout(now, agents))?;
            }
            Event::Questions => self.questions(),
            Event::Create => {
                self.check_quiet()?;
                self.check()?;
                self.check_silence()?;
                self.create_group();
            }
            Event::Transmit { from, to, mut mad } => {
                if !self.tamper_request(from, &mut mad) {
                    return Ok(());
                }
                let own = self.subnet.port(from).map_or(Lid::NONE, |view| view.lid());
                let packet = MadPacket::smp(own, to.lid, 0, mad);
                self.subnet.send(now, from, packet, &mut self.inbox);
            }
            Event::Arrive { at, mut packet } => {
                self.tamper_answer(at, &mut packet.mad);
                self.arrive(at, &packet)?;
            }
            Event::Babble => self.babble(),
            Event::Wake { index } => {
                self.seats[index].wake = None;
                while self.seats[index].next_timeout().is_some_and(|due| due <= now) {
                    self.with(index, |manager, service, out| {
                        if let Some(service) = service {
                            service.handle_timeout(now, manager);
                        }
                        if manager.next_timeout().is_some_and(|due| due <= now) {
                            manager.handle_timeout(now, out);
                        }
                    })?;
                }
            }
            Event::SubnetWakes => {
                self.subnet_wake = None;
                self.subnet.handle_timeout(now, &mut self.inbox);
            }
            Event::Trouble => self.trouble()?,
            Event::Calm => {
                self.lossy = false;
                self.liar_reforms();
            }
            Event::Sweep => {
                self.check()?;
                self.sets = 0;
                self.programs.iter_mut().for_each(Program::begin_silence);
                for index in 0..self.seats.len() {
                    self.with(index, |manager, _, _| manager.sweep(now))?;
                }
            }
            Event::End => {}
        }
        Ok(())
    }

    /// Schedules the effects of the last step.
    fn settle(&mut self) {
        for (at, packet) in std::mem::take(&mut self.inbox.packets) {
            let is_there = |seat: &Seat| seat.port == at && seat.manager.is_some();
            if !self.programs.is_empty() || self.seats.iter().any(is_there) {
                self.travel(Event::Arrive { at, packet });
            }
        }
        for (at, event) in std::mem::take(&mut self.inbox.events) {
            self.port_event(at, event);
        }
        if let Some(due) = self.umad.next_timeout()
            && self.device_wake.is_none_or(|wake| due < wake)
        {
            self.device_wake = Some(due);
            self.agenda.at(due, Event::DeviceWakes);
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
                self.agenda.at(due, Event::Wake { index });
            }
        }
    }

    pub(super) fn start(&mut self, index: usize) {
        let (now, seat) = (self.agenda.now(), &mut self.seats[index]);
        let config = manager::Config {
            priority: seat.priority,
            routing: self.scenario.routing,
            lmc: self.scenario.lmc,
            outstanding: self.scenario.outstanding,
            sweep_interval: Duration::from_secs(1),
            retry_interval: Duration::from_millis(100),
            poll_interval: Duration::from_millis(500),
            timeout: Duration::from_millis(50),
            routing_slice: 1,
            ..manager::Config::default()
        };
        let mut manager = Manager::new(config, now);
        if self.scenario.programs > 0 {
            let (service, file) = super::device::open_service(&mut self.umad, seat.port);
            (seat.service, seat.file) = (Some(service), file);
        }
        for (mlid, members) in GROUPS.into_iter().zip(&self.members) {
            let guids = members.iter().filter_map(|port| Some(self.subnet.port(*port)?.guid()));
            manager.set_group(mlid, guids);
        }
        let port = seat.port;
        seat.manager = Some(manager);
        self.subnet.set_attached(port, true);
        self.subnet.set_is_sm(now, port, true, &mut self.inbox);
    }

    pub(super) fn trace(&self, what: impl FnOnce() -> String) {
        if self.tracing {
            eprintln!("{:>15} {}", self.agenda.now().0, what());
        }
    }
}

impl Seat {
    fn next_timeout(&self) -> Option<Time> {
        let service = self.service.as_ref().and_then(Service::next_timeout);
        let manager = self.manager.as_ref()?.next_timeout();
        [manager, service].into_iter().flatten().min()
    }
}

/// Returns whether a port can have a LID.
pub(crate) fn is_end(subnet: &Subnet, port: PortId) -> bool {
    port.number == 0 || subnet.port(PortId::new(port.node, 0)).is_none()
}
