//! Subnet managers: their datagrams, partitions and groups.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;
use rdmux_subnet::manager::{self, Event as Told, Manager, ManagerSink, Model, PkeyTables};
use rdmux_subnet::rmpp::Mad;
use rdmux_subnet::topology::PortRef;
use rdmux_subnet::umad::UserAddress;
use rdmux_subnet::{MadPacket, PortId, Time};
use rdmux_wire::sm::SlToVlTable;
use rdmux_wire::{Guid, Lid, Pkey, Qpn};

use super::world::{Event, World};

/// The P_Keys of ports by GUID. All other ports are full members of the default partition.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys(pub(super) BTreeMap<Guid, Vec<Pkey>>);

impl PkeyTables for Keys {
    fn of(&self, model: &Model, port: PortRef) -> Vec<Pkey> {
        let guid = model.port(port).map(|entry| entry.guid);
        guid.and_then(|guid| self.0.get(&guid).cloned()).unwrap_or_else(|| vec![Pkey::DEFAULT])
    }
}

/// A place for a manager, with the manager that runs there.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) port: PortId,
    pub(super) manager: Option<Manager>,
    priority: u8,
    pub(super) wake: Option<Time>,
}

impl Seat {
    pub(super) fn new(port: PortId, priority: u8) -> Self {
        Self { port, manager: None, priority, wake: None }
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.manager.as_ref()?.next_timeout()
    }
}

/// The output of a manager in one call.
#[derive(Default)]
pub(super) struct Out {
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

impl World {
    /// Starts a manager.
    pub(super) fn start(&mut self, index: usize) {
        let (now, seat) = (self.agenda.now(), &mut self.seats[index]);
        let config = manager::Config {
            priority: seat.priority,
            routing: self.scenario.routing,
            lmc: self.scenario.lmc,
            sl_to_vl: self.scenario.service_levels.then(service_levels),
            sweep_interval: Duration::from_secs(1),
            retry_interval: Duration::from_millis(100),
            poll_interval: Duration::from_millis(500),
            timeout: Duration::from_millis(20),
            ..manager::Config::default()
        };
        let mut manager = Manager::new(config, now);
        manager.set_pkey_tables(now, Box::new(self.keys.clone()));
        for group in &self.groups {
            let guids = group
                .members
                .iter()
                .filter_map(|host| Some(self.subnet.port(self.hosts[*host].port)?.guid()));
            manager.set_group(group.mlid, guids);
        }
        let port = seat.port;
        seat.manager = Some(manager);
        self.subnet.set_attached(port, true);
        self.subnet.set_is_sm(now, port, true, &mut self.inbox);
    }

    /// Stops a manager.
    pub(super) fn stop(&mut self, index: usize) {
        let now = self.agenda.now();
        if self.seats[index].manager.take().is_some() {
            self.subnet.set_is_sm(now, self.seats[index].port, false, &mut self.inbox);
        }
    }

    /// Calls a running manager.
    pub(super) fn with(&mut self, index: usize, f: impl FnOnce(&mut Manager, &mut Out)) {
        let seat = &mut self.seats[index];
        let (port, mut out) = (seat.port, Out::default());
        let Some(manager) = &mut seat.manager else { return };
        f(manager, &mut out);
        for told in out.told {
            if let Told::SweepEnded(report) = &told {
                self.stats.sweeps += 1;
                self.trace(format_args!("manager {index} has swept: {report:?}"));
            }
        }
        for (to, mad) in out.sent {
            self.travel(Event::Transmit { from: port, to, mad });
        }
    }

    /// Gives every manager the present groups and P_Keys.
    pub(super) fn tell_managers(&mut self) {
        let now = self.agenda.now();
        for index in 0..self.seats.len() {
            let (keys, groups) = (self.keys.clone(), self.groups.clone());
            let guids: Vec<Guid> =
                (0..self.hosts.len()).map(|host| self.view(host).guid()).collect();
            self.with(index, |manager, _| {
                manager.set_pkey_tables(now, Box::new(keys));
                for group in groups {
                    manager.set_group(group.mlid, group.members.iter().map(|host| guids[*host]));
                }
            });
        }
    }

    /// Handles a datagram for the programs of a port.
    pub(super) fn mad_arrives(&mut self, at: PortId, packet: &MadPacket) {
        let now = self.agenda.now();
        let seat = self.seats.iter().position(|seat| seat.port == at && seat.manager.is_some());
        let Some(index) = seat.filter(|_| packet.dst_qpn == Qpn::QP0) else { return };
        let from = UserAddress::smi(packet.slid);
        self.with(index, |manager, out| manager.handle_mad(now, &from, &packet.mad, out));
    }

    /// Sends a manager's datagram.
    pub(super) fn mad_leaves(&mut self, from: PortId, to: &UserAddress, mad: Box<Mad>) {
        let now = self.agenda.now();
        let own = self.subnet.port(from).map_or(Lid::NONE, |view| view.lid());
        let packet = MadPacket::smp(own, to.lid, 0, mad);
        self.subnet.send(now, from, packet, &mut self.inbox);
    }

    /// Delays a datagram, or loses it.
    pub(super) fn travel(&mut self, event: Event) {
        if self.rng.random_bool(self.scenario.loss) {
            return;
        }
        let delay = self.rng.random_range(Duration::ZERO..=self.scenario.delay);
        self.agenda.after(delay, event);
    }
}

/// Returns a mapping in which service levels 12 and 13 have no lane, and the others have one of eight.
fn service_levels() -> SlToVlTable {
    let mut table = SlToVlTable::from_bytes(&[0; 8]);
    for (sl, vl) in (0..).zip(&mut table.vls) {
        vl.0 = if (12..14).contains(&sl) { 15 } else { sl % 8 };
    }
    table
}
