//! Connections with two paths: programs that arm, migrate and rearm, and paths that fail and recover.

use std::collections::BTreeMap;
use std::time::Duration;

use rdmux_transport::Time;
use rdmux_transport::attr::{AddressVector, AttrMask, MigState, QpAttr, QpState};
use rdmux_transport::env::QpEvent;
use rdmux_wire::AckTimeout;

use crate::check::ensure;
use crate::packets::gid;
use crate::scenario::DeadPath;
use crate::world::{Event, World};

/// The shortest time before a program rearms, in microseconds: by then no packet with outdated migration state is in flight.
const SETTLED: u64 = 3000;
/// How often a path failure waits for both ends to be ready.
const PATIENCE: u32 = 200;

/// The dead paths, by connection and number, with the time when each recovers.
pub(crate) type DeadPaths = BTreeMap<(usize, u8), Time>;

impl World {
    /// Returns the path that an endpoint uses.
    pub(crate) fn path_of(&self, id: usize) -> u8 {
        self.endpoints[id].qp.attr().av.sgid_index
    }

    fn mig_state(&self, id: usize) -> MigState {
        MigState::of_code(self.endpoints[id].qp.attr().path_mig_state).unwrap_or_default()
    }

    /// Returns whether a path of a plan is dead now.
    pub(crate) fn is_dead(&self, plan: usize, path: u8) -> bool {
        self.dead.get(&(plan, path)).is_some_and(|until| self.agenda.now() < *until)
    }

    /// Returns the address of the peer on a path.
    pub(crate) fn way(&self, id: usize, path: u8) -> AddressVector {
        let dgid = gid(self.endpoints[self.endpoints[id].peer].node, path);
        AddressVector { is_global: true, dgid, sgid_index: path, port_num: 1, ..Default::default() }
    }

    /// Schedules the path events.
    pub(crate) fn plan_moves(&mut self) {
        for plan in 0..self.scenario.plans.len() {
            let Some(moves) = self.scenario.plans[plan].moves.clone() else { continue };
            for (end, at) in moves.armed.into_iter().enumerate() {
                self.put(at, Event::Arm(plan * 2 + end));
            }
            for (end, at) in moves.asks {
                self.put(at, Event::Migrate(plan * 2 + end));
            }
            for dead in moves.dead {
                self.put(dead.at, Event::Dead(plan, dead, PATIENCE));
            }
        }
    }

    /// Loads the other path, and arms migration to it.
    pub(crate) fn arm(&mut self, id: usize) -> Result<(), String> {
        let state = self.endpoints[id].qp.state();
        if !self.is_alive(id) || self.mig_state(id) != MigState::Migrated {
            return Ok(());
        }
        match state {
            QpState::Rts => {}
            QpState::Sqd => {
                self.put(Duration::from_millis(1), Event::Arm(id));
                return Ok(());
            }
            _ => return Ok(()),
        }
        let timeout = self.scenario.plans[self.endpoints[id].plan.0].timeout;
        let mut attr = self.endpoints[id].qp.attr();
        attr.alt_av = self.way(id, 1 - self.path_of(id));
        (attr.alt_port_num, attr.alt_timeout) = (1, AckTimeout::new(timeout));
        attr.path_mig_state = MigState::Rearm as u8;
        self.trace(format_args!("ep {id} is to be armed at path {}", self.path_of(id)));
        self.modify(id, &attr, AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE)?;
        self.wake_soon(id, 5);
        Ok(())
    }

    /// Makes a program request migration, if it may and the other path is alive.
    pub(crate) fn migrate(&mut self, id: usize) -> Result<(), String> {
        let is_ready = matches!(self.endpoints[id].qp.state(), QpState::Rts | QpState::Sqd)
            && self.mig_state(id) == MigState::Armed;
        let other = 1 - self.path_of(id);
        if !self.is_alive(id) || !is_ready || self.is_dead(self.endpoints[id].plan.0, other) {
            return Ok(());
        }
        self.trace(format_args!("ep {id} migrates to path {other}"));
        let state = MigState::Migrated as u8;
        let attr = QpAttr { path_mig_state: state, ..self.endpoints[id].qp.attr() };
        self.modify(id, &attr, AttrMask::PATH_MIG_STATE)?;
        self.wake_soon(id, 5);
        Ok(())
    }

    /// Fails a path, once the connection would survive that. Sometimes it need not survive.
    pub(crate) fn cut_path(
        &mut self,
        plan: usize,
        dead: DeadPath,
        patience: u32,
    ) -> Result<(), String> {
        let ends = [plan * 2, plan * 2 + 1];
        if ends.iter().any(|id| !self.is_alive(*id)) {
            return Ok(());
        }
        let at = ends.map(|id| self.path_of(id));
        let is_settled = at[0] == at[1] && !self.is_dead(plan, 1 - dead.path);
        let survives = is_settled
            && (at[0] != dead.path || ends.iter().all(|id| self.mig_state(*id) == MigState::Armed));
        if !survives && patience != 0 {
            let delay = self.micros(500);
            self.put(delay, Event::Dead(plan, dead, patience - 1));
            return Ok(());
        }
        if !survives {
            if dead.is_merciful {
                return Ok(());
            }
            ends.into_iter().for_each(|id| self.endpoints[id].doomed = true);
        }
        let until = self.agenda.now().after(dead.lasts);
        self.trace(format_args!("path {} of plan {plan} is dead until {}", dead.path, until.0));
        self.dead.insert((plan, dead.path), until);
        self.stats.dead_paths += 1;
        Ok(())
    }

    /// Handles a migration, or a migration request from an unexpected path.
    pub(crate) fn moved(&mut self, id: usize, event: QpEvent) -> Result<(), String> {
        let has_two = self.scenario.plans[self.endpoints[id].plan.0].moves.is_some();
        ensure!(has_two, "ep {id}: {event:?}, but it has one path only");
        if event == QpEvent::PathMigErr {
            // Packets that the peer sent before it was armed may arrive late.
            let faults = &self.scenario.faults;
            let is_late = faults.reorder > 0.0 || faults.duplicate > 0.0;
            ensure!(is_late, "ep {id}: {event:?}, but its peer has the right path");
            return Ok(());
        }
        self.stats.migrations += 1;
        self.trace(format_args!("ep {id} has migrated to path {}", self.path_of(id)));
        let delay = Duration::from_micros(SETTLED) + self.micros(SETTLED);
        self.put(delay, Event::Arm(id));
        Ok(())
    }
}
