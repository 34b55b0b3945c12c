//! Troubles of the subnet: cables, switches, managers, and programs that change their minds.

use rand::Rng;
use rdmux_subnet::topology::LinkRate;
use rdmux_subnet::{NodeId, PortId};

use super::world::{GROUPS, World, is_end};

impl World {
    /// Causes a trouble.
    pub(super) fn trouble(&mut self) -> Result<(), String> {
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
                    // The driver of a manager on this port sets the bit again.
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
                    let file = self.seats[index].file;
                    self.seats[index].service = None;
                    self.device(|umad, _, agents| umad.close(file, agents))?;
                    self.trace(|| format!("manager {index} dies"));
                    self.stats.deaths += 1;
                    self.subnet.set_is_sm(now, self.seats[index].port, false, &mut self.inbox);
                } else {
                    self.trace(|| format!("manager {index} comes back"));
                    self.start(index);
                }
            }
            _ if !self.programs.is_empty() => {
                let program = self.rng.random_range(0..self.programs.len());
                self.change_mind(program);
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
                    let receives = joins.then_some(true);
                    self.with(index, |manager, _, _| {
                        manager.set_member(GROUPS[group], guid, receives);
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Swaps the ends of two cables.
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
}
