//! Subnet administration beside the embedded manager: what programs ask of the subnet, answered from what the manager knows.
//!
//! It reads and writes whole messages by an agent with RMPP in the manager's file. Alias GUIDs are set at their port before the answer
//! goes out. Groups are given to the manager when it works next, each once for all who have joined meanwhile; it sets the
//! switches soon.

use std::collections::{BTreeSet, VecDeque};

use rdmux_subnet::Time;
use rdmux_subnet::administration::{Administration, AdministrationSink, Config};
use rdmux_subnet::manager::{Event, Manager};
use rdmux_subnet::partitions::Partitions;
use rdmux_subnet::topology::PortRef;
use rdmux_subnet::umad::{Registration, UserAddress, UserMad};
use rdmux_wire::mad::{Method, MgmtClass};
use rdmux_wire::sa::CLASS_VERSION;
use rdmux_wire::sm::SmState;
use rdmux_wire::{Guid, Lid};

/// Administration's agent.
pub(super) const REGISTRATION: Registration = Registration {
    qpn: 1,
    class: MgmtClass::SUBN_ADM.0,
    class_version: CLASS_VERSION,
    oui: [0; 3],
    methods: 1 << Method::GET.0
        | 1 << Method::SET.0
        | 1 << Method::GET_TABLE.0
        | 1 << Method::GET_MULTI.0
        | 1 << Method::DELETE.0,
    rmpp_version: 1,
    flags: 0,
};

/// Administration, and what comes out of it.
#[derive(Debug)]
pub(super) struct Administered {
    administration: Administration,
    out: Out,
}

#[derive(Debug, Default)]
struct Out {
    sent: VecDeque<UserMad>,
    /// Groups whose members are others than the manager knows.
    groups: BTreeSet<Lid>,
    aliases: Vec<(PortRef, u8, Guid)>,
}

impl AdministrationSink for Out {
    fn send(&mut self, mad: UserMad) -> bool {
        self.sent.push_back(mad);
        true
    }

    fn group_changed(&mut self, mlid: Lid) {
        self.groups.insert(mlid);
    }

    fn set_alias(&mut self, port: PortRef, index: u8, guid: Guid) {
        self.aliases.push((port, index, guid));
    }
}

impl Administered {
    pub(super) fn new(partitions: Partitions) -> Self {
        let administration = Administration::new(Config::default(), partitions);
        Self { administration, out: Out::default() }
    }

    /// Whether a message is for administration, and not for the manager.
    pub(super) fn is_asked(mad: &UserMad) -> bool {
        const CLASS: usize = 1;
        mad.data.get(CLASS) == Some(&MgmtClass::SUBN_ADM.0)
    }

    /// What is to be written next to the manager's file.
    pub(super) fn next_mad(&mut self) -> Option<UserMad> {
        self.out.sent.pop_front()
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        if self.out.groups.is_empty() {
            self.administration.next_timeout()
        } else {
            Some(Time::ZERO)
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.administration.handle_timeout(now);
    }

    /// A question, or what became of a Report. `directed` is the agent by which aliases are set.
    pub(super) fn handle_mad(
        &mut self,
        now: Time,
        manager: &mut Manager,
        mad: &UserMad,
        directed: u32,
    ) {
        self.administration.handle_mad(now, manager.model(), mad, &mut self.out);
        self.settle(manager, directed);
    }

    /// The manager has told something.
    pub(super) fn handle_event(
        &mut self,
        now: Time,
        manager: &mut Manager,
        event: &Event,
        directed: u32,
    ) {
        let Self { administration, out } = self;
        match event {
            Event::State(SmState::MASTER) => {}
            Event::State(_) => self.resign(manager),
            Event::SweepEnded(_) if manager.is_up() => {
                administration.set_master(Some(manager.status().guid));
            }
            Event::SweepEnded(_) | Event::PortDisabled { .. } => {}
            Event::PortAppeared(guid) => {
                administration.port_appeared(now, manager.model(), *guid, out);
            }
            Event::PortGone(guid) => administration.port_gone(now, manager.model(), *guid, out),
            Event::ModelChanged => administration.model_changed(manager.model()),
            Event::Trap(notice) => {
                administration.handle_notice(now, manager.model(), notice, out);
            }
        }
        self.settle(manager, directed);
    }

    /// Groups end with the master: who is the next one asks their members to join again.
    fn resign(&mut self, manager: &mut Manager) {
        for mlid in self.administration.groups().collect::<Vec<_>>() {
            manager.set_group(mlid, []);
        }
        self.administration.set_master(None);
    }

    /// Gives the manager the groups that have changed.
    pub(super) fn settle_groups(&mut self, manager: &mut Manager) {
        for mlid in std::mem::take(&mut self.out.groups) {
            manager.set_group_members(mlid, self.administration.members(mlid));
        }
    }

    /// Gives ports the aliases that have changed.
    fn settle(&mut self, manager: &mut Manager, directed: u32) {
        for (port, index, guid) in std::mem::take(&mut self.out.aliases) {
            if let Some(request) = manager.set_alias(port, index, guid) {
                // Before the answer to who asked for it.
                self.out.sent.push_front(UserMad {
                    agent: directed,
                    status: 0,
                    timeout_ms: 200,
                    retries: 3,
                    address: UserAddress::directed(),
                    data: request.to_bytes().to_vec(),
                });
            }
        }
    }
}
