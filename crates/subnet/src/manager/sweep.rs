//! Sweeps: their phases, and when the next one is due.

use core::time::Duration;

use rdmux_wire::Guid;
use rdmux_wire::mad::status;
use rdmux_wire::sm::{
    CapabilityMask, NodeDescription, NodeInfo, PkeyTable, PortInfo, SmState, SwitchInfo,
};
use rdmux_wire::smp::Smp;

use super::encode::is_kept;
use super::model::Port;
use super::requests::{Request, What};
use super::status::{ProblemKind, Report, Tally};
use super::{Event, Manager, ManagerSink};
use crate::Time;
use crate::topology::PortRef;

/// The present activity of a manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// No sweep is under way.
    Idle,
    /// Finds nodes and cables.
    Discovery,
    /// Sets LIDs and partitions at end ports.
    Identity,
    /// Computes routes.
    Routing,
    /// Writes routes to switches.
    Tables,
    /// Links go from Init to Armed.
    Arm,
    /// Links go from Armed to Active.
    Activate,
    /// Asks switches for changes.
    Light,
    /// Writes the routes of changed groups to switches.
    Groups,
    /// Hands over to another manager. This one then becomes standby, or stops if `leaves` is set.
    Handover { leaves: bool },
}

/// How often the time between sweeps with errors is doubled at most.
const MAX_DOUBLINGS: u32 = 6;

impl Manager {
    /// Returns whether a heavy sweep may begin now, which it may not during another one.
    pub(super) fn may_begin(&self) -> bool {
        matches!(self.phase, Phase::Idle | Phase::Light)
            && matches!(self.state, SmState::MASTER | SmState::DISCOVERING)
    }

    /// Begins a heavy sweep, and abandons the present one.
    pub(super) fn begin_heavy(&mut self, now: Time, out: &mut impl ManagerSink) {
        self.abandon();
        (self.heavy_due, self.light_due) = (None, None);
        self.stale = false;
        self.pauses.begin(now);
        self.act_count = self.act_count.wrapping_add(1);
        self.tally = Tally::new(now);
        self.phase = Phase::Discovery;
        self.rivals.clear();
        self.lost_aliases.clear();
        self.queue.push_back(Request { port: self.own, what: What::Own });
        self.proceed(now, out);
    }

    /// Starts a light sweep: queries all switches for port state changes, and checks what else may have changed.
    pub(super) fn begin_light(&mut self, now: Time) {
        self.light_due = None;
        self.act_count = self.act_count.wrapping_add(1);
        self.tally = Tally::new(now);
        self.phase = Phase::Light;
        for (index, node) in self.model.nodes().iter().enumerate() {
            let port = |number| PortRef { node: index, port: number };
            if node.switch.is_some() {
                self.queue.push_back(Request { port: port(0), what: What::Changed });
            }
            if node.description == NodeDescription::default() {
                self.queue.push_back(Request { port: port(0), what: What::Description });
            }
        }
        self.queue.push_back(Request { port: self.own, what: What::OwnPort });
        let is_end = self.model.node(self.own.node).is_some_and(|node| !node.is_switch());
        if is_end && self.model.port(self.own).is_some_and(|port| port.peer.is_some()) {
            self.queue.push_back(Request { port: self.own, what: What::Neighbour });
        }
        for index in 0..self.rivals.len() {
            let port = PortRef { node: index, port: 0 };
            self.queue.push_back(Request { port, what: What::Rival });
        }
    }

    /// Queues the requests for the next node. Returns false if the phase has no more nodes.
    pub(super) fn refill(&mut self) -> bool {
        if self.cursor >= self.model.nodes().len() {
            return false;
        }
        match self.phase {
            Phase::Identity => self.queue_identity(self.cursor),
            Phase::Tables => self.queue_tables(self.cursor),
            Phase::Arm => self.queue_links(self.cursor, What::Arm),
            Phase::Activate => self.queue_links(self.cursor, What::Activate),
            _ => return false,
        }
        self.cursor += 1;
        true
    }

    /// Enters the next phase when all requests of this one are answered. Returns false if nothing is to be sent now.
    pub(super) fn next_phase(&mut self, now: Time, out: &mut impl ManagerSink) -> bool {
        let next = match self.phase {
            Phase::Idle => return false,
            Phase::Discovery => match self.discovered(now, out) {
                true => Phase::Identity,
                false => return self.phase != Phase::Idle,
            },
            Phase::Identity => {
                if self.begin_routing() {
                    self.phase = Phase::Routing;
                    return false;
                }
                Phase::Tables
            }
            Phase::Routing if self.job.is_some() => return false,
            Phase::Routing => Phase::Tables,
            Phase::Tables => Phase::Arm,
            Phase::Arm => Phase::Activate,
            Phase::Activate => {
                self.end_heavy(now, out);
                return false;
            }
            Phase::Light => {
                self.phase = Phase::Idle;
                self.know_itself();
                // A sweep that only waits for its retry does not make light sweeps superfluous.
                if self.heavy_due.is_none_or(|due| due > now) {
                    if self.tally.count == 0 {
                        self.doubt.note_quiet();
                    }
                    self.light_due = Some(now.after(self.config.sweep_interval));
                }
                return false;
            }
            Phase::Groups => {
                self.phase = Phase::Idle;
                if self.tally.count > 0 || self.stale {
                    self.heavy_due.get_or_insert(now);
                }
                self.sweep_for_traps(now);
                return false;
            }
            Phase::Handover { leaves } => {
                self.end_handover(now, leaves, out);
                return false;
            }
        };
        self.phase = next;
        self.cursor = 0;
        self.pkey_plans.clear();
        if next == Phase::Tables {
            self.route_all_groups();
        }
        true
    }

    /// Ends a heavy sweep: all reachable nodes are configured.
    fn end_heavy(&mut self, now: Time, out: &mut impl ManagerSink) {
        self.phase = Phase::Idle;
        self.sweeps += 1;
        let was_fresh = core::mem::take(&mut self.fresh);
        let took = now.since(self.tally.started);
        let switches = self.model.nodes().iter().filter(|node| node.switch.is_some()).count();
        let report = Report {
            ended: now,
            took,
            nodes: self.model.nodes().len(),
            switches,
            end_ports: self.model.end_ports().filter(|(_, port)| port.info.is_some()).count(),
            sets: self.tally.sets,
            problem_count: self.tally.count,
            problems: core::mem::take(&mut self.tally.problems),
        };
        self.last = Some(report.clone());
        for guid in core::mem::take(&mut self.appeared) {
            out.event(Event::PortAppeared(guid));
        }
        if core::mem::take(&mut self.changed) {
            out.event(Event::ModelChanged);
        }
        out.event(Event::SweepEnded(report));
        // Changes that a switch has reported since before its ports were read need another sweep to clear and examine them.
        // This is normal after power-on.
        let rest = if was_fresh { Duration::ZERO } else { took };
        self.rest_until = now.after(rest);
        self.pauses.end(now, rest, self.config.sweep_interval);
        if self.stale || self.changes_are_pending() {
            self.heavy_due = Some(self.rest_until);
        } else if self.tally.count > 0 {
            let wait = self.config.retry_interval * (1 << self.failures.min(MAX_DOUBLINGS));
            self.failures += 1;
            self.heavy_due = Some(now.after(wait).max(self.rest_until));
        } else {
            self.failures = 0;
        }
        self.sweep_for_traps(now);
        self.light_due = Some(now.after(self.config.sweep_interval));
    }

    /// Returns whether a switch has reported a change that was not cleared before its ports were read.
    fn changes_are_pending(&self) -> bool {
        let switches = self.model.nodes().iter().filter_map(|node| node.switch.as_ref());
        switches.into_iter().any(|switch| switch.info.port_state_change)
    }

    /// Handles an answer.
    pub(super) fn handle_answer(
        &mut self,
        now: Time,
        request: Request,
        smp: &Smp,
        out: &mut impl ManagerSink,
    ) {
        // A port that is active already may answer with this status.
        let tolerated = request.what == What::Activate && smp.status() == status::INVALID_VALUE;
        if smp.status() != status::OK && !tolerated {
            return self.handle_failure(now, request, Some(smp.status()), out);
        }
        let mut kept = true;
        if request.what.is_set() {
            let wanted = self.value(self.working(), request);
            kept = wanted.is_some_and(|wanted| is_kept(&wanted, &smp.data));
            if !kept {
                self.undo(request);
                self.problem(ProblemKind::NotKept, request.port);
            }
        }
        let place = request.port;
        match request.what {
            What::Own => self.found_node(None, smp),
            What::Probe => self.found_node(Some(place), smp),
            What::SwitchInfo => self.found_switch(place, smp),
            What::ClearChange => self.cleared_change(place, smp),
            What::PortInfo => self.found_port(place, smp),
            What::SmInfo => self.found_manager(place, smp),
            What::Description => {
                if let Some(node) = self.working_mut().node_mut(place.node) {
                    node.description = NodeDescription::from_bytes(&smp.data);
                }
            }
            What::Pkeys(block) | What::SetPkeys(block) => {
                let keys = PkeyTable::from_bytes(&smp.data).pkeys;
                self.know_pkeys(place, block, keys);
            }
            What::Identity | What::Enforce | What::Arm | What::Activate => {
                if let Some(port) = self.model.port_mut(place) {
                    let was_up = port.is_up();
                    let had_manager = has_manager(port);
                    port.info = Some(PortInfo::from_bytes(&smp.data));
                    // A port that does not know its manager yet sends no trap when a manager starts on it.
                    self.stale |= !had_manager && has_manager(port);
                    // The link has come up since discovery. No switch reports the manager's own port if it is an adapter's.
                    self.stale |= !was_up && port.is_up();
                    if request.what == What::Identity && kept && self.unasked.remove(&port.guid) {
                        self.asked.insert(port.guid);
                    }
                }
            }
            // A switch does not report changes that the manager has made.
            What::Disable => self.request_sweep(now),
            What::SwitchSetup => self.know_switch(place, smp),
            What::SlToVl(input) if kept => self.know_sl_to_vl(place, input),
            What::Arbitration(block) => self.know_arbitration(place, block, smp),
            What::Guids(block) => self.found_aliases(place, block, smp),
            What::Changed => {
                let known = self.model.node(place.node).and_then(|node| node.switch.as_ref());
                let top = known.map(|switch| switch.info.linear_fdb_top);
                let now_is = SwitchInfo::parse(&smp.data[..]).ok();
                if !now_is.is_some_and(|i| !i.port_state_change && Some(i.linear_fdb_top) == top) {
                    self.heavy_due = Some(now);
                }
            }
            What::OwnPort => {
                let told = |info: PortInfo| (info.port_state, info.lid, info.sm_lid);
                let known = self.model.port(place).and_then(|port| port.info);
                if known.map(told) != Some(told(PortInfo::from_bytes(&smp.data))) {
                    self.heavy_due = Some(now);
                }
            }
            What::Neighbour => {
                let known = self.model.port(place).and_then(|port| port.peer);
                let known =
                    known.and_then(|at| Some((self.model.node(at.node)?.info.node_guid, at.port)));
                let now_is = NodeInfo::parse(&smp.data[..]).ok();
                if now_is.map(|info| (info.node_guid, info.local_port_num)) != known {
                    self.heavy_due = Some(now);
                }
            }
            What::Rival => self.rival_answers(now, place.node, smp),
            What::Poll => self.master_answers(now, smp, out),
            What::Linear(_)
            | What::Multicast { .. }
            | What::SlToVl(_)
            | What::SetGuids(_)
            | What::Handover
            | What::Acknowledge
            | What::Discover
            | What::Wake => {}
        }
    }

    /// Handles a request without answer, or with an answer that refuses it.
    pub(super) fn handle_failure(
        &mut self,
        now: Time,
        request: Request,
        refused: Option<u16>,
        out: &mut impl ManagerSink,
    ) {
        self.undo(request);
        let place = request.port;
        match request.what {
            What::Poll => return self.master_is_silent(now, out),
            What::Changed | What::OwnPort | What::Neighbour => self.heavy_due = Some(now),
            What::Rival => return self.request_sweep(now),
            What::Handover => return self.handover_failed(now, out),
            What::Discover if refused.is_some() => return self.wake(place),
            What::Acknowledge | What::Discover | What::Wake => return,
            // The other manager is gone. One that does not answer is queried again by the next sweep.
            What::SmInfo if refused.is_some() => return,
            What::Pkeys(block) => self.keep_pkeys(place, block),
            _ => {}
        }
        self.problem(
            match (request.what, refused) {
                (_, Some(status)) => ProblemKind::Refused(status),
                (What::Probe, None) => ProblemKind::Silent,
                _ => ProblemKind::NoAnswer,
            },
            place,
        );
        if request.what == What::ClearChange && self.phase == Phase::Discovery {
            self.queue_ports(place.node);
        }
    }

    /// Notes a problem of a port.
    pub(super) fn problem(&mut self, what: ProblemKind, port: PortRef) {
        let node = self.working().node(port.node).map_or(Guid(0), |node| node.info.node_guid);
        self.tally.add(what, node, port.port);
    }

    fn know_switch(&mut self, port: PortRef, smp: &Smp) {
        let node = self.model.node_mut(port.node);
        if let Some(switch) = node.and_then(|node| node.switch.as_deref_mut())
            && let Ok(info) = SwitchInfo::parse(&smp.data[..])
        {
            switch.info = info;
        }
    }

    /// Records that a port does not have the values that were set, so that they are set again.
    fn undo(&mut self, request: Request) {
        if let What::SlToVl(input) = request.what {
            self.forget_sl_to_vl(request.port, input);
        }
        let dirty = self.dirty.get_mut(request.port.node).and_then(Option::as_deref_mut);
        match (request.what, dirty) {
            (What::Linear(block), Some(dirty)) => dirty.mark_linear(block),
            (What::Multicast { position, block }, Some(dirty)) => {
                dirty.mark_multicast(position, block);
            }
            _ => {}
        }
    }
}

/// Returns whether a port reports a manager.
fn has_manager(port: &Port) -> bool {
    port.info.is_some_and(|info| info.capability_mask.contains(CapabilityMask::SM))
}
