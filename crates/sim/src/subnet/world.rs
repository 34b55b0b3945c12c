//! The subnet, its managers and what befalls them, on the virtual clock.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rdmux_subnet::manager::{self, Event as Told, Manager, ManagerSink};
use rdmux_subnet::rmpp::Mad;
use rdmux_subnet::topology::{LinkRate, Shape};
use rdmux_subnet::umad::UserAddress;
use rdmux_subnet::{Config, MadPacket, NodeId, PortEvent, PortId, Sink, Subnet, Time};
use rdmux_wire::mad::{MadHeader, Method};
use rdmux_wire::sm::SmState;
use rdmux_wire::{Guid, Lid, Pkey, Qkey, Qpn};

use super::{SubnetFailure, SubnetScenario, SubnetStats};
use crate::agenda::Agenda;

/// No run has more events than this.
const EVENTS: u64 = 20_000_000;

/// So long after the last trouble and the last loss everything must be well: a standby finds that the master is dead, and the longest pause after a failed
/// sweep is over.
const QUIET: Duration = Duration::from_secs(60);

/// The groups.
pub(super) const GROUPS: [Lid; 3] = [Lid(0xc000), Lid(0xc001), Lid(0xc040)];

enum Event {
    Transmit {
        from: PortId,
        to: UserAddress,
        mad: Box<Mad>,
    },
    Arrive {
        at: PortId,
        packet: MadPacket,
    },
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

/// A place for a manager, and the one that lives there.
pub(super) struct Seat {
    pub(super) port: PortId,
    pub(super) manager: Option<Manager>,
    priority: u8,
    /// Which life it is: the dead get nothing.
    wake: Option<Time>,
}

#[derive(Default)]
struct Out {
    sent: Vec<(UserAddress, Box<Mad>)>,
    told: Vec<Told>,
}

impl ManagerSink for Out {
    fn send(&mut self, to: UserAddress, mad: Box<Mad>) {
        self.sent.push((to, mad));
    }
    fn event(&mut self, event: Told) {
        self.told.push(event);
    }
}

#[derive(Default)]
struct Inbox(Vec<(PortId, MadPacket)>);

impl Sink for Inbox {
    fn deliver(&mut self, port: PortId, packet: MadPacket) {
        self.0.push((port, packet));
    }
    fn port_event(&mut self, _: PortId, _: PortEvent) {}
}

pub(super) struct World {
    scenario: SubnetScenario,
    agenda: Agenda<Event>,
    rng: ChaCha8Rng,
    pub(super) subnet: Subnet,
    inbox: Inbox,
    subnet_wake: Option<Time>,
    pub(super) seats: Vec<Seat>,
    /// Members of the groups.
    pub(super) members: [BTreeSet<PortId>; GROUPS.len()],
    /// Whether datagrams are lost.
    lossy: bool,
    /// Sets that were sent since the last sweep was asked for.
    sets: u64,
    pub(super) stats: SubnetStats,
    tracing: bool,
}

impl World {
    pub(super) fn new(seed: u64, tracing: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let scenario = SubnetScenario::draw(&mut rng);
        let shape: Result<Shape, _> = scenario.shape.parse();
        let topology = shape.map(|shape| shape.topology(Guid(0x10_0000))).unwrap_or_default();
        let subnet = Subnet::new(&topology, Config::default());
        let ends: Vec<PortId> =
            subnet.ports().map(|v| v.id()).filter(|id| is_end(&subnet, *id)).collect();
        let mut world = Self {
            agenda: Agenda::default(),
            subnet,
            inbox: Inbox::default(),
            subnet_wake: None,
            seats: Vec::new(),
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
                world.seats.push(Seat { port, manager: None, priority, wake: None });
            }
        }
        for index in 0..world.seats.len() {
            world.start(index);
        }
        for _ in 0..world.scenario.troubles {
            let when = world.rng.random_range(Duration::ZERO..world.scenario.span);
            world.agenda.after(when, Event::Trouble);
        }
        world.agenda.after(world.scenario.span, Event::Calm);
        let quiet = world.scenario.span + QUIET;
        world.agenda.after(quiet, Event::Sweep);
        world.agenda.after(quiet + QUIET, Event::End);
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
        self.settle();
        for _ in 0..EVENTS {
            match self.agenda.next_event() {
                None => return Err("nothing is to come".to_owned()),
                Some(Event::End) => {
                    self.check()?;
                    return match self.sets {
                        0 => Ok(()),
                        n => Err(format!("a sweep without a reason has sent {n} Sets")),
                    };
                }
                Some(event) => self.happen(event)?,
            }
            self.settle();
        }
        Err("it does not end".to_owned())
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        let now = self.agenda.now();
        match event {
            Event::Transmit { from, to, mad } => {
                let own = self.subnet.port(from).map_or(Lid::NONE, |view| view.lid());
                let packet = MadPacket {
                    slid: if own == Lid::NONE { Lid::PERMISSIVE } else { own },
                    dlid: to.lid,
                    sl: 0,
                    src_qpn: Qpn::QP0,
                    dst_qpn: Qpn::QP0,
                    qkey: Qkey(0),
                    pkey: Pkey::DEFAULT,
                    grh: None,
                    mad,
                };
                self.subnet.send(now, from, packet, &mut self.inbox);
            }
            Event::Arrive { at, packet } => {
                let seat = self.seats.iter().position(|seat| seat.port == at);
                if let Some(index) = seat {
                    let from = UserAddress::smi(packet.slid);
                    self.with(index, |manager, out| {
                        manager.handle_mad(now, &from, &packet.mad, out)
                    });
                }
            }
            Event::Wake { index } => {
                self.seats[index].wake = None;
                let due = |m: &Manager| m.next_timeout().is_some_and(|due| due <= now);
                while self.seats[index].manager.as_ref().is_some_and(due) {
                    self.with(index, |manager, out| manager.handle_timeout(now, out));
                }
            }
            Event::SubnetWakes => {
                self.subnet_wake = None;
                self.subnet.handle_timeout(now, &mut self.inbox);
            }
            Event::Trouble => self.trouble(),
            Event::Calm => self.lossy = false,
            Event::Sweep => {
                self.check()?;
                self.sets = 0;
                for index in 0..self.seats.len() {
                    self.with(index, |manager, _| manager.sweep(now));
                }
            }
            Event::End => {}
        }
        Ok(())
    }

    /// Puts down what comes of what has happened.
    fn settle(&mut self) {
        for (at, packet) in std::mem::take(&mut self.inbox.0) {
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
            let due = seat.manager.as_ref().and_then(Manager::next_timeout);
            if let Some(due) = due.filter(|due| seat.wake.is_none_or(|wake| *due < wake)) {
                seat.wake = Some(due);
                self.agenda.at(due, Event::Wake { index });
            }
        }
    }

    /// Does something with a manager that lives.
    fn with(&mut self, index: usize, f: impl FnOnce(&mut Manager, &mut Out)) {
        let seat = &mut self.seats[index];
        let (port, mut out) = (seat.port, Out::default());
        let Some(manager) = &mut seat.manager else { return };
        f(manager, &mut out);
        for told in out.told {
            self.trace(|| format!("manager {index}: {told:?}"));
            match told {
                Told::SweepEnded(report) => {
                    self.stats.sweeps += 1;
                    self.stats.problems += report.problem_count;
                }
                Told::State(SmState::MASTER) => self.stats.masters += 1,
                _ => {}
            }
        }
        for (to, mad) in out.sent {
            if MadHeader::parse(&mad[..]).is_ok_and(|header| header.method == Method::SET) {
                self.sets += 1;
            }
            self.travel(Event::Transmit { from: port, to, mad });
        }
    }

    /// A datagram takes some time, or is lost.
    fn travel(&mut self, event: Event) {
        self.stats.datagrams += 1;
        let mixed = self.agenda.now().0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.stats.fingerprint = self.stats.fingerprint.rotate_left(7) ^ mixed;
        if self.lossy && self.rng.random_bool(self.scenario.loss) {
            self.stats.lost += 1;
            return;
        }
        let delay = self.rng.random_range(Duration::ZERO..=self.scenario.delay);
        self.agenda.after(delay, event);
    }

    fn start(&mut self, index: usize) {
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
        for (mlid, members) in GROUPS.into_iter().zip(&self.members) {
            let guids = members.iter().filter_map(|port| Some(self.subnet.port(*port)?.guid()));
            manager.set_group(mlid, guids);
        }
        let port = seat.port;
        seat.manager = Some(manager);
        self.subnet.set_attached(port, true);
        self.subnet.set_is_sm(now, port, true, &mut self.inbox);
    }

    /// Something happens.
    fn trouble(&mut self) {
        let now = self.agenda.now();
        let ports: Vec<PortId> = self.subnet.ports().map(|view| view.id()).collect();
        let cabled: Vec<PortId> =
            ports.iter().copied().filter(|port| self.subnet.peer(*port).is_some()).collect();
        let ends: Vec<PortId> =
            ports.iter().copied().filter(|port| is_end(&self.subnet, *port)).collect();
        match self.rng.random_range(0..6) {
            0 if !cabled.is_empty() => {
                let cable = cabled[self.rng.random_range(0..cabled.len())];
                let up = self.subnet.is_cable_down(cable);
                self.trace(|| format!("cable of {cable}: up {up}"));
                self.stats.flaps += 1;
                let _ = self.subnet.set_cable(now, cable, up, &mut self.inbox);
                if !up && self.rng.random_bool(0.7) {
                    self.stats.flaps += 1;
                    let _ = self.subnet.set_cable(now, cable, true, &mut self.inbox);
                }
            }
            1 if cabled.len() > 2 => {
                let a = cabled[self.rng.random_range(0..cabled.len())];
                let b = cabled[self.rng.random_range(0..cabled.len())];
                self.swap(a, b);
            }
            2 => {
                let switches: Vec<NodeId> =
                    ports.iter().filter(|port| port.number == 0).map(|port| port.node).collect();
                if !switches.is_empty() {
                    let node = switches[self.rng.random_range(0..switches.len())];
                    self.trace(|| format!("{node} is reset"));
                    self.stats.resets += 1;
                    let _ = self.subnet.reset_switch(now, node, &mut self.inbox);
                    // The driver of a manager there sets the bit again.
                    for seat in
                        self.seats.iter().filter(|s| s.port.node == node && s.manager.is_some())
                    {
                        self.subnet.set_is_sm(now, seat.port, true, &mut self.inbox);
                    }
                }
            }
            3 => {
                let index = self.rng.random_range(0..self.seats.len());
                if self.seats[index].manager.take().is_some() {
                    self.trace(|| format!("manager {index} dies"));
                    self.stats.deaths += 1;
                    self.subnet.set_is_sm(now, self.seats[index].port, false, &mut self.inbox);
                } else {
                    self.trace(|| format!("manager {index} comes back"));
                    self.start(index);
                }
            }
            _ => {
                let (group, end) = (
                    self.rng.random_range(0..GROUPS.len()),
                    ends[self.rng.random_range(0..ends.len())],
                );
                let guid = self.subnet.port(end).map(|view| view.guid()).unwrap_or_default();
                let joins = self.members[group].insert(end);
                if !joins {
                    self.members[group].remove(&end);
                }
                for index in 0..self.seats.len() {
                    self.with(index, |manager, _| match joins {
                        true => manager.add_member(GROUPS[group], guid),
                        false => manager.remove_member(GROUPS[group], guid),
                    });
                }
            }
        }
    }

    /// Two cables change their ends.
    fn swap(&mut self, a: PortId, b: PortId) {
        let now = self.agenda.now();
        let (Some(to_a), Some(to_b)) = (self.subnet.peer(a), self.subnet.peer(b)) else { return };
        if a == b || to_a == b {
            return;
        }
        self.trace(|| format!("{a} and {b} change places"));
        self.stats.swaps += 1;
        for end in [a, b] {
            let _ = self.subnet.unplug(now, end, &mut self.inbox);
        }
        for (end, far) in [(a, to_b), (b, to_a)] {
            let _ = self.subnet.plug(now, end, far, LinkRate::DEFAULT, &mut self.inbox);
        }
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        if self.tracing {
            eprintln!("{:>15} {}", self.agenda.now().0, what());
        }
    }
}

/// Whether a port can have a LID.
pub(super) fn is_end(subnet: &Subnet, port: PortId) -> bool {
    port.number == 0 || subnet.port(PortId::new(port.node, 0)).is_none()
}
