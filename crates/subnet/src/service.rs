//! Subnet administration combined with a manager: answers queries from the manager's model.
//!
//! ```text
//!   Manager --- Event ---> Service ---> Administration <--- requests, outcomes of Reports
//!      ^                      |               |
//!      +---- groups, aliases -+               +---> answers, Reports: Service::next_mad
//! ```
//!
//! It reads and writes whole messages by an agent with RMPP, [`Service::REGISTRATION`], on the manager's port. Alias GUIDs
//! are set at their port before the answer is sent. Group changes are batched and passed to the manager when it works next:
//! the ports that have joined or left, or all members of a group that is new or has ended. The manager soon updates the
//! switches.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use rdmux_wire::mad::{MadHeader, Method, MgmtClass, status};
use rdmux_wire::sa::CLASS_VERSION;
use rdmux_wire::sm::{GuidInfo, SmState};
use rdmux_wire::{Guid, Lid};

use crate::Time;
use crate::administration::{Administration, AdministrationSink, Config};
use crate::manager::{Event, Manager};
use crate::partitions::Partitions;
use crate::topology::PortRef;
use crate::umad::{Registration, UserAddress, UserMad};

/// Administration and its output.
#[derive(Debug)]
pub struct Service {
    administration: Administration,
    /// The directed-route agent that sets aliases.
    directed: u32,
    /// The transaction ID of the last Set of aliases.
    tid: u32,
    /// A Set of aliases has failed.
    has_failed: bool,
    out: Out,
}

/// The output of administration in one call.
#[derive(Debug, Default)]
struct Out {
    sent: VecDeque<UserMad>,
    /// Groups whose members have changed since the last report to the manager.
    groups: BTreeSet<Lid>,
    /// Changes of single ports since the last report to the manager: whether the port receives; none if it is no member any more.
    members: BTreeMap<(Lid, Guid), Option<bool>>,
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

    fn member_changed(&mut self, mlid: Lid, port: Guid, receives: Option<bool>) {
        self.members.insert((mlid, port), receives);
    }

    fn set_alias(&mut self, port: PortRef, index: u8, guid: Guid) {
        self.aliases.push((port, index, guid));
    }
}

impl Service {
    /// The registration of administration's agent.
    pub const REGISTRATION: Registration = Registration {
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

    /// Creates administration for a manager that is not yet the master. `directed` is the agent of the same file that sends
    /// by directed routes.
    pub fn new(config: Config, partitions: Partitions, directed: u32) -> Self {
        let administration = Administration::new(config, partitions);
        Self { administration, directed, tid: 0, has_failed: false, out: Out::default() }
    }

    /// Returns the administration with its registrations.
    pub const fn administration(&self) -> &Administration {
        &self.administration
    }

    /// Changes the partitions: see [`Administration::set_partitions`].
    pub fn set_partitions(&mut self, partitions: Partitions) {
        self.administration.set_partitions(partitions);
    }

    /// Returns whether a message is for administration rather than for the manager: a request, or the outcome of what
    /// [`Service::next_mad`] has returned.
    pub fn is_asked(mad: &UserMad) -> bool {
        const CLASS: usize = 1;
        mad.data.get(CLASS) == Some(&MgmtClass::SUBN_ADM.0) || alias_outcome(mad).is_some()
    }

    /// Returns the next message to write to the file that has the agents.
    pub fn next_mad(&mut self) -> Option<UserMad> {
        self.out.sent.pop_front()
    }

    /// Returns when [`Service::handle_timeout`] has work to do.
    pub fn next_timeout(&self) -> Option<Time> {
        if self.out.groups.is_empty() && self.out.members.is_empty() && !self.has_failed {
            self.administration.next_timeout()
        } else {
            Some(Time::ZERO)
        }
    }

    /// Expires leases, and passes changed groups and failures to the manager. Call this before the manager's own [`Manager::handle_timeout`].
    pub fn handle_timeout(&mut self, now: Time, manager: &mut Manager) {
        for ((mlid, port), receives) in core::mem::take(&mut self.out.members) {
            if !self.out.groups.contains(&mlid) {
                manager.set_member(mlid, port, receives);
            }
        }
        for mlid in core::mem::take(&mut self.out.groups) {
            manager.set_group_members(mlid, self.administration.members(mlid));
        }
        if core::mem::take(&mut self.has_failed) {
            manager.restore_aliases(now);
        }
        self.administration.handle_timeout(now);
    }

    /// Handles a request, or the outcome of a Report or of a Set of aliases.
    pub fn handle_mad(&mut self, now: Time, manager: &mut Manager, mad: &UserMad) {
        if let Some(has_succeeded) = alias_outcome(mad) {
            self.has_failed |= !has_succeeded;
            return;
        }
        self.administration.handle_mad(now, manager.model(), mad, &mut self.out);
        self.set_aliases(manager);
    }

    /// Handles a message of [`Service::next_mad`] that could not be written: its header, with a status.
    pub fn handle_unsent(&mut self, mad: &UserMad) {
        match alias_outcome(mad) {
            Some(_) => self.has_failed = true,
            None if Self::is_asked(mad) => self.administration.handle_unsent(mad),
            None => {}
        }
    }

    /// Handles an event of the manager.
    pub fn handle_event(&mut self, now: Time, manager: &mut Manager, event: &Event) {
        let Self { administration, out, .. } = self;
        match event {
            Event::State(SmState::MASTER) => {}
            Event::State(_) => self.resign(manager),
            Event::SweepEnded(_) if manager.is_up() => {
                administration.set_master(Some(manager.status().guid));
                administration.model_changed(now, manager.model(), out);
            }
            Event::SweepEnded(_) | Event::ModelChanged | Event::PortDisabled { .. } => {}
            Event::PortAppeared(guid) => {
                administration.port_appeared(now, manager.model(), *guid, out);
            }
            Event::PortGone(guid) => administration.port_gone(now, manager.model(), *guid, out),
            Event::Trap(notice) => {
                administration.handle_notice(now, manager.model(), notice, out);
            }
        }
        self.set_aliases(manager);
    }

    /// Removes all groups when this manager is no longer master: the next master asks their members to join again.
    fn resign(&mut self, manager: &mut Manager) {
        for mlid in self.administration.groups().collect::<Vec<_>>() {
            manager.set_group(mlid, []);
        }
        self.out.members.clear();
        self.administration.set_master(None);
    }

    /// Sends changed aliases to their ports, before the answer to the requester. A Set that fails is repeated by a sweep.
    fn set_aliases(&mut self, manager: &mut Manager) {
        // The last request for each block has all its changes.
        let mut requests = BTreeMap::new();
        for (port, index, guid) in core::mem::take(&mut self.out.aliases) {
            if let Some(request) = manager.set_alias(port, index, guid) {
                requests.insert((port, request.header.attr_mod), request);
            }
        }
        for mut request in requests.into_values() {
            self.tid = self.tid.wrapping_add(1);
            request.header.tid = self.tid.into();
            self.out.sent.push_front(UserMad {
                agent: self.directed,
                status: 0,
                timeout_ms: 200,
                retries: 3,
                address: UserAddress::directed(),
                data: request.to_bytes().to_vec(),
            });
        }
    }
}

/// Returns whether a Set of aliases has succeeded; none if the message is not the outcome of one.
fn alias_outcome(mad: &UserMad) -> Option<bool> {
    let header = MadHeader::parse(&mad.data[..]).ok()?;
    let of = (header.mgmt_class, header.attr_id);
    let is_answer = header.method == Method::GET_RESP;
    let is_ok = mad.status == 0 && header.status & !status::DIRECTION == status::OK;
    (of == (MgmtClass::SUBN_DIRECTED, GuidInfo::ATTR_ID)).then_some(is_answer && is_ok)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager;

    #[test]
    fn pending_membership_changes_are_discarded_when_mastership_ends() {
        let mut manager = Manager::new(manager::Config::default(), Time::ZERO);
        let mut service = Service::new(Config::default(), Partitions::default(), 1);
        service.out.member_changed(Lid(0xc001), Guid(7), Some(true));
        assert_eq!(service.next_timeout(), Some(Time::ZERO));
        service.resign(&mut manager);
        assert_eq!(service.next_timeout(), None);
    }
}
