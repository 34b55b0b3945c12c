//! Master election with SMInfo (IBTA 14.4).
//!
//! ```text
//!                   no better one found            HANDOVER from the master
//!   DISCOVERING ------------------------> MASTER <---------------------------- STANDBY
//!        |   ^                              |                                   ^  |  ^
//!        |   | the master is silent, or     | a better one found: HANDOVER      |  |  | STANDBY
//!        |   | DISCOVER                     +-----------------------------------+  v  |
//!        +---+------------ a master or a better one found --> STANDBY --------> NOT-ACTIVE
//!                                                                       DISABLE
//! ```
//!
//! Of two managers the better one has the higher priority, or the lower port GUID.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cmp::Reverse;

use rdmux_wire::mad::{Method, status};
use rdmux_wire::sm::{SmInfo, SmState};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Guid, Lid};

use super::requests::{Request, What};
use super::sweep::Phase;
use super::{Event, Manager, ManagerSink};
use crate::Time;
use crate::topology::PortRef;
use crate::umad::UserAddress;

/// Another manager and the route to it.
#[derive(Clone, Debug)]
pub(super) struct Rival {
    pub(super) info: SmInfo,
    pub(super) route: Vec<u8>,
}

/// A command from another manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    BecomeMaster,
    Sweep,
    Discover,
    Disable,
    StandBy,
}

/// Returns the rank of a manager: the better one compares greater.
fn rank(info: &SmInfo) -> (u8, Reverse<Guid>) {
    (info.priority, Reverse(info.guid))
}

impl Manager {
    /// Returns this manager's SMInfo.
    pub(super) fn sm_info(&self, state: SmState) -> SmInfo {
        let (guid, sm_key, priority) = (self.guid, self.config.sm_key, self.config.priority);
        SmInfo { guid, sm_key, act_count: self.act_count, priority, state }
    }

    /// Stores this manager's own SMInfo in the model, like that of others.
    pub(super) fn know_itself(&mut self) {
        let info = self.sm_info(self.state);
        if let Some(port) = self.model.port_mut(self.own) {
            port.manager = Some(info);
        }
    }

    /// Handles the SMInfo of another manager, found during discovery.
    pub(super) fn found_manager(&mut self, place: PortRef, smp: &Smp) {
        let Ok(info) = SmInfo::parse(&smp.data[..]) else { return };
        let Some(hops) = self.hops_to(&self.found, place) else { return };
        if let Some(port) = self.found.port_mut(place) {
            port.manager = Some(info);
        }
        if info.guid != self.guid {
            self.rivals.push(Rival { info, route: hops.as_slice().to_vec() });
        }
    }

    /// Handles the end of discovery. Returns whether this manager continues and configures the subnet.
    pub(super) fn discovered(&mut self, now: Time, out: &mut impl ManagerSink) -> bool {
        if self.found.port(self.own).is_none_or(|port| port.info.is_none()) {
            // The manager's own port did not answer.
            self.abandon();
            self.heavy_due = Some(now.after(self.config.retry_interval));
            return false;
        }
        if self.state == SmState::DISCOVERING {
            let own = rank(&self.sm_info(self.state));
            let better =
                |rival: &&Rival| rival.info.state != SmState::NOT_ACTIVE && rank(&rival.info) > own;
            let master = self.rivals.iter().find(|rival| rival.info.state == SmState::MASTER);
            let first = self.rivals.iter().filter(better).max_by_key(|rival| rank(&rival.info));
            if let Some(master) = master.or(first).cloned() {
                self.abandon();
                self.stand_by(now, Some(master), out);
                return false;
            }
            self.become_master(out);
        }
        let (appeared, gone) = self.adopt();
        self.know_itself();
        self.assign_lids();
        self.settle_doubt();
        self.changed |= !gone.is_empty() || !appeared.is_empty();
        self.appeared.extend(appeared);
        self.note_unasked(&gone);
        for guid in gone {
            out.event(Event::PortGone(guid));
        }
        let heir = self.heir(Some(rank(&self.sm_info(SmState::MASTER))));
        if let Some(heir) = heir.filter(|&heir| !self.has_just_refused(heir)) {
            self.begin_handover(now, heir, false, out);
            return false;
        }
        self.refused_by = None;
        self.wake_worse_masters();
        true
    }

    /// Returns whether a manager has refused the last handover. The subnet is then configured once before it is asked again,
    /// unless that manager is a master, which does it.
    fn has_just_refused(&self, heir: usize) -> bool {
        let refused = |rival: &Rival| self.refused_by == Some(rival.info.guid);
        let heir = self.rivals.get(heir).filter(|rival| rival.info.state != SmState::MASTER);
        heir.is_some_and(refused)
    }

    /// Sends DISCOVER to lower-ranked masters: they then find this one and hand over. They may not notice it by themselves,
    /// since this manager clears the switches' change bits.
    fn wake_worse_masters(&mut self) {
        for (index, rival) in self.rivals.iter().enumerate() {
            if rival.info.state == SmState::MASTER {
                let port = PortRef { node: index, port: 0 };
                self.queue.push_back(Request { port, what: What::Discover });
            }
        }
    }

    /// Wakes a master that refuses DISCOVER, as OpenSM does while it is master. A HANDOVER from another master makes it sweep.
    pub(super) fn wake(&mut self, port: PortRef) {
        self.queue.push_back(Request { port, what: What::Wake });
    }

    /// Returns the best of the other managers, if it is better than `than`.
    pub(super) fn heir(&self, than: Option<(u8, Reverse<Guid>)>) -> Option<usize> {
        let active = |(_, rival): &(usize, &Rival)| rival.info.state != SmState::NOT_ACTIVE;
        let all = self.rivals.iter().enumerate().filter(active);
        let (index, best) = all.max_by_key(|(_, rival)| rank(&rival.info))?;
        than.is_none_or(|than| rank(&best.info) > than).then_some(index)
    }

    /// Becomes the master.
    pub(super) fn become_master(&mut self, out: &mut impl ManagerSink) {
        self.fresh = true;
        self.master = None;
        self.poll_due = None;
        self.become_state(SmState::MASTER, out);
    }

    fn stand_by(&mut self, now: Time, master: Option<Rival>, out: &mut impl ManagerSink) {
        (self.heavy_due, self.light_due) = (None, None);
        self.misses = 0;
        // Another manager assigns LIDs now: the LIDs that ports get from it are valid.
        self.lids.clear();
        self.master = master;
        self.poll_due = Some(now.after(self.config.poll_interval));
        self.become_state(SmState::STANDBY, out);
    }

    /// Polls the master.
    pub(super) fn poll_master(&mut self, now: Time, out: &mut impl ManagerSink) {
        self.poll_due = Some(now.after(self.config.poll_interval));
        self.act_count = self.act_count.wrapping_add(1);
        if self.master.is_none() {
            return self.master_is_silent(now, out);
        }
        let request = Request { port: PortRef { node: 0, port: 0 }, what: What::Poll };
        self.transmit(now, request, out);
    }

    /// Handles the master's SMInfo, the answer to a poll by this standby.
    pub(super) fn master_answers(&mut self, now: Time, smp: &Smp, out: &mut impl ManagerSink) {
        let info = SmInfo::parse(&smp.data[..]).unwrap_or_default();
        match &mut self.master {
            Some(master) if info.state == SmState::MASTER => {
                master.info = info;
                self.misses = 0;
            }
            _ => self.master_is_silent(now, out),
        }
    }

    /// Counts a poll that the master did not answer, or answered as non-master. After `poll_misses` of them this manager
    /// starts discovery.
    pub(super) fn master_is_silent(&mut self, now: Time, out: &mut impl ManagerSink) {
        self.misses += 1;
        if self.state == SmState::STANDBY && self.misses >= self.config.poll_misses {
            self.discover_again(now, out);
        }
    }

    /// Enters DISCOVERING again, to find out which managers there are and which becomes master.
    fn discover_again(&mut self, now: Time, out: &mut impl ManagerSink) {
        self.abandon();
        self.become_state(SmState::DISCOVERING, out);
        (self.poll_due, self.light_due) = (None, None);
        self.heavy_due = Some(now);
    }

    /// Handles another manager's SMInfo in a light sweep.
    pub(super) fn rival_answers(&mut self, now: Time, index: usize, smp: &Smp) {
        let Ok(info) = SmInfo::parse(&smp.data[..]) else { return };
        let own = rank(&self.sm_info(self.state));
        let Some(rival) = self.rivals.get_mut(index) else { return };
        let changed = rival.info.guid != info.guid || info.state == SmState::MASTER;
        rival.info = info;
        if info.state == SmState::MASTER {
            self.doubt.note_rival();
        }
        if changed || info.state != SmState::NOT_ACTIVE && rank(&info) > own {
            self.heavy_due = Some(now);
        }
    }

    /// Sends HANDOVER to another manager.
    pub(super) fn begin_handover(
        &mut self,
        now: Time,
        heir: usize,
        leaves: bool,
        out: &mut impl ManagerSink,
    ) {
        self.queue.clear();
        self.requests.clear();
        self.phase = Phase::Handover { leaves };
        self.master = self.rivals.get(heir).cloned();
        let request = Request { port: PortRef { node: heir, port: 0 }, what: What::Handover };
        self.transmit(now, request, out);
    }

    /// Handles the acceptance of a handover.
    pub(super) fn end_handover(&mut self, now: Time, leaves: bool, out: &mut impl ManagerSink) {
        self.phase = Phase::Idle;
        match leaves {
            true => self.become_state(SmState::NOT_ACTIVE, out),
            false if self.state == SmState::MASTER && self.master.is_some() => {
                let master = self.master.take();
                self.stand_by(now, master, out);
            }
            false => {}
        }
    }

    /// Handles a refused handover: this manager stays master.
    pub(super) fn handover_failed(&mut self, now: Time, out: &mut impl ManagerSink) {
        let leaves = matches!(self.phase, Phase::Handover { leaves: true });
        self.phase = Phase::Idle;
        self.refused_by = self.master.take().map(|heir| heir.info.guid);
        if leaves {
            return self.become_state(SmState::NOT_ACTIVE, out);
        }
        self.heavy_due = Some(now.after(self.config.retry_interval));
    }

    /// Answers another manager's Get or Set of SMInfo. [`Manager::obey`] executes a command after the answer.
    pub(super) fn answer_sm_info(
        &mut self,
        from: &UserAddress,
        smp: &Smp,
        out: &mut impl ManagerSink,
    ) {
        if self.guid == Guid(0) {
            return;
        }
        let mut answer = *smp;
        answer.header.method = Method::GET_RESP;
        answer.set_status(status::OK);
        if smp.header.method == Method::SET {
            let theirs = SmInfo::parse(&smp.data[..]).unwrap_or_default();
            self.command = self.command(smp.header.attr_mod, &theirs);
            let ignored = smp.header.attr_mod == SmInfo::ACKNOWLEDGE;
            if self.command.is_none() && !ignored {
                answer.set_status(status::INVALID_VALUE);
            }
        } else if smp.header.attr_mod != 0 {
            answer.set_status(status::INVALID_VALUE);
        }
        answer.set_attribute(&self.sm_info(self.state).into());
        answer.set_returning(smp.is_directed());
        let to = if smp.is_directed() && smp.dr_slid == Lid::PERMISSIVE {
            UserAddress::directed()
        } else {
            UserAddress::smi(from.lid)
        };
        out.send(to, Box::new(answer.to_bytes()));
    }

    /// Returns the command that a Set(SMInfo) is for this manager (IBTA 14.4.1, table of state transitions).
    fn command(&self, modifier: u32, theirs: &SmInfo) -> Option<Command> {
        let from_master = theirs.state == SmState::MASTER;
        match (self.state, modifier) {
            (SmState::STANDBY | SmState::DISCOVERING, SmInfo::HANDOVER) if from_master => {
                Some(Command::BecomeMaster)
            }
            (SmState::MASTER, SmInfo::HANDOVER) if from_master => Some(Command::Sweep),
            (SmState::MASTER, SmInfo::DISCOVER) if from_master => Some(Command::Sweep),
            (SmState::STANDBY, SmInfo::DISABLE) if from_master => Some(Command::Disable),
            (SmState::STANDBY, SmInfo::DISCOVER) if from_master => Some(Command::Discover),
            (SmState::NOT_ACTIVE, SmInfo::STANDBY) if from_master => Some(Command::StandBy),
            _ => None,
        }
    }

    /// Executes the command of another manager.
    pub(super) fn obey(&mut self, now: Time, from: &UserAddress, out: &mut impl ManagerSink) {
        match self.command.take() {
            None => {}
            Some(Command::Sweep) => {
                self.doubt.note_claim();
                self.request_sweep_for(now, self.model.by_lid(from.lid));
            }
            Some(Command::Discover) => self.discover_again(now, out),
            Some(Command::BecomeMaster) => {
                self.abandon();
                // The configured LIDs are outdated as well.
                self.lids.clear();
                if let Some(master) = self.master.take() {
                    self.rivals = Vec::from([master]);
                    let port = PortRef { node: 0, port: 0 };
                    self.transmit(now, Request { port, what: What::Acknowledge }, out);
                }
                self.become_master(out);
                self.heavy_due = Some(now);
            }
            Some(Command::Disable) => {
                self.poll_due = None;
                self.become_state(SmState::NOT_ACTIVE, out);
            }
            Some(Command::StandBy) => {
                let master = self.master.take();
                self.stand_by(now, master, out);
            }
        }
    }
}
