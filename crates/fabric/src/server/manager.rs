//! The embedded subnet manager: a program on a port of the subnet, without a process of its own.
//!
//! It has a file and agents like any program's manager, so that requests of others reach it and no other manager can use its port. Its own
//! requests, hundreds of thousands of datagrams for a large subnet, bypass the agents, which would keep each for retransmission: the
//! manager does that itself. It works in slices, between which clients are served.

use std::collections::VecDeque;

use rdmux_subnet::administration;
pub(super) use rdmux_subnet::manager::Config;
use rdmux_subnet::manager::{Event, Manager, ManagerSink};
use rdmux_subnet::partitions::{PartitionTables, Partitions};
use rdmux_subnet::rmpp::Mad;
use rdmux_subnet::service::Service;
use rdmux_subnet::umad::{Registration, UserAddress, UserMad};
use rdmux_subnet::{MadPacket, PortId, Subnet, Time};
use rdmux_wire::mad::{MAD_LEN, Method, MgmtClass};
use rdmux_wire::{Lid, Qpn};

use super::core::Core;
use crate::proto::{ManagerStatus, SweepStatus};

/// Datagrams that the manager sends before clients get their turn.
pub(super) const SLICE: usize = 256;

/// The agents of the manager and of subnet administration.
pub(super) const REGISTRATIONS: [Registration; 3] = [
    agent(MgmtClass::SUBN_LID, 1 << Method::GET.0 | 1 << Method::SET.0 | 1 << Method::TRAP.0),
    agent(MgmtClass::SUBN_DIRECTED, 1 << Method::GET.0 | 1 << Method::SET.0),
    Service::REGISTRATION,
];
/// The number of the second of them in the manager's file.
const DIRECTED: u32 = 1;

const fn agent(class: MgmtClass, methods: u128) -> Registration {
    let (class, class_version) = (class.0, 1);
    Registration { qpn: 0, class, class_version, oui: [0; 3], methods, rmpp_version: 0, flags: 0 }
}

/// The manager, and its queued output.
#[derive(Debug)]
pub(super) struct Managed {
    manager: Manager,
    service: Service,
    port: PortId,
    out: Out,
    /// Events that administration has handled, for the log.
    events: Vec<Event>,
}

/// The datagrams and events that the manager produced.
#[derive(Debug, Default)]
struct Out {
    sent: VecDeque<(UserAddress, Box<Mad>)>,
    events: VecDeque<Event>,
}

impl ManagerSink for Out {
    fn send(&mut self, to: UserAddress, mad: Box<Mad>) {
        self.sent.push_back((to, mad));
    }

    fn event(&mut self, event: Event) {
        self.events.push_back(event);
    }
}

impl Managed {
    /// Makes a manager on a port, whose GUID is in the options.
    pub(super) fn new(port: PortId, config: Config, partitions: Partitions) -> Self {
        let tables = PartitionTables { partitions: partitions.clone(), manager: config.guid };
        let mut manager = Manager::new(config, Time::ZERO);
        manager.set_pkey_tables(Time::ZERO, Box::new(tables));
        Self {
            manager,
            service: Service::new(administration::Config::default(), partitions, DIRECTED),
            port,
            out: Out::default(),
            events: Vec::new(),
        }
    }

    /// Sets other partitions, whose tables the next sweep writes.
    pub(super) fn set_partitions(&mut self, now: Time, partitions: Partitions) {
        let manager = self.manager.config().guid;
        let tables = PartitionTables { partitions: partitions.clone(), manager };
        self.manager.set_pkey_tables(now, Box::new(tables));
        self.service.set_partitions(partitions);
    }

    pub(super) fn manager(&self) -> &Manager {
        &self.manager
    }

    pub(super) fn port(&self) -> PortId {
        self.port
    }

    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Returns when the next action is due: at once if datagrams are queued.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        if !self.out.sent.is_empty() {
            return Some(Time::ZERO);
        }
        let due = [self.manager.next_timeout(), self.service.next_timeout()];
        due.into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.service.handle_timeout(now, &mut self.manager);
        if self.manager.next_timeout().is_some_and(|due| due <= now) {
            self.manager.handle_timeout(now, &mut self.out);
            self.tell_administration(now);
        }
    }

    /// Passes the manager's events to subnet administration.
    fn tell_administration(&mut self, now: Time) {
        while let Some(event) = self.out.events.pop_front() {
            self.service.handle_event(now, &mut self.manager, &event);
            self.events.push(event);
        }
    }

    /// Returns the next datagram that administration writes to the manager's file.
    pub(super) fn next_mad(&mut self) -> Option<UserMad> {
        self.service.next_mad()
    }

    /// Handles a failure to send a datagram from [`Managed::next_mad`].
    pub(super) fn handle_unsent(&mut self, mad: &UserMad) {
        self.service.handle_unsent(mad);
    }

    /// Returns the next datagram that it sends, and the port it is sent from.
    pub(super) fn next_packet(&mut self, subnet: &Subnet) -> Option<(PortId, MadPacket)> {
        let (to, mad) = self.out.sent.pop_front()?;
        let own = subnet.port(self.port).map_or(Lid::NONE, |view| view.lid());
        Some((self.port, MadPacket::smp(own, to.lid, to.sl, mad)))
    }

    /// Returns whether a datagram is an answer to the manager: agents of programs have numbers from 1 in the upper half of
    /// transaction IDs.
    pub(super) fn is_answered_by(&self, port: PortId, packet: &MadPacket) -> bool {
        const METHOD: usize = 3;
        const TID: std::ops::Range<usize> = 8..12;
        port == self.port
            && packet.dst_qpn == Qpn::QP0
            && packet.mad[METHOD] == Method::GET_RESP.0
            && packet.mad[TID] == [0; 4]
    }

    /// Handles a response to a request of the manager.
    pub(super) fn handle_answer(&mut self, now: Time, packet: &MadPacket) {
        let from = UserAddress::smi(packet.slid);
        self.manager.handle_mad(now, &from, &packet.mad, &mut self.out);
        self.tell_administration(now);
    }

    /// Handles a trap, another manager's request, or a query to administration.
    pub(super) fn handle_request(&mut self, now: Time, request: &UserMad) {
        if Service::is_asked(request) {
            self.service.handle_mad(now, &mut self.manager, request);
        } else if let Some(mad) = request.data.first_chunk::<MAD_LEN>() {
            self.manager.handle_mad(now, &request.address, mad, &mut self.out);
            self.tell_administration(now);
        }
    }
}

impl Core {
    /// Logs an event of the manager. New LIDs are written to the directory.
    pub(super) fn note_manager_event(&mut self, event: &Event) {
        match event {
            Event::State(state) => tracing::info!("the subnet manager is {state} now"),
            Event::ModelChanged => self.store.touch(),
            Event::SweepEnded(report) => {
                for problem in &report.problems {
                    tracing::warn!("subnet manager: {problem}");
                }
                let (nodes, took) = (report.nodes, report.took);
                tracing::debug!("the subnet manager swept {nodes} nodes in {took:?}");
            }
            Event::PortDisabled { node, port } => {
                tracing::warn!("babbling port {port} of {:#018x} was disabled", node.0);
            }
            Event::PortAppeared(_) | Event::PortGone(_) | Event::Trap(_) => {}
        }
    }

    /// Returns the status of the embedded manager, if any.
    pub(super) fn manager_status(&self) -> Option<ManagerStatus> {
        let manager = self.world.manager()?;
        let status = manager.status();
        let micros =
            |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let last = status.last.map(|last| SweepStatus {
            ago_us: micros(self.now().since(last.ended)),
            took_us: micros(last.took),
            nodes: last.nodes as u64,
            switches: last.switches as u64,
            sets: last.sets,
            problem_count: last.problem_count,
            problems: last.problems.iter().map(ToString::to_string).collect(),
        });
        Some(ManagerStatus {
            state: status.state.to_string().to_lowercase(),
            guid: status.guid,
            priority: status.priority,
            master: status.master,
            routing: manager.config().routing,
            sweeping: status.sweeping,
            sweeps: status.sweeps,
            partitions: self.setup.manager.partitions.as_ref().map(|file| file.name.clone()),
            last,
        })
    }
}
